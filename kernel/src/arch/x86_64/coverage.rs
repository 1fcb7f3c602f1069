//! Which parts of the kernel have run: the counters that LLVM's sanitizer-coverage pass adds to
//! every edge of the control flow, where the kernel is built with it (`./uvm fuzz` does so; feature
//! `coverage`).
//!
//! The pass places one byte for each edge into section `__sancov_cntrs` and has plain instructions
//! increment it: two CPUs may lose a count, which costs a fuzzer nothing. The linker script puts a
//! second array of the same length beside it.

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

extern "C" {
    static coverage_start: AtomicU8;
    static coverage_end: AtomicU8;
    static coverage_seen: AtomicU8;
}

/// The pass has each object file announce its counters before `main`; the kernel finds them all
/// between two symbols.
#[no_mangle]
extern "C" fn __sanitizer_cov_8bit_counters_init(_start: *mut u8, _end: *mut u8) {}

/// So with the table of addresses, which `./uvm fuzz --coverage` reads from the kernel's file.
#[no_mangle]
extern "C" fn __sanitizer_cov_pcs_init(_start: *const u8, _end: *const u8) {}

fn counters() -> (&'static [AtomicU8], &'static [AtomicU8]) {
    let start = &raw const coverage_start;
    let len = (&raw const coverage_end).addr() - start.addr();
    // SAFETY: the linker script places `len` bytes from each of the two symbols on; they are read
    // and written as atomics alone, here, and by increments that the compiler added, which tear
    // nothing.
    unsafe {
        (
            core::slice::from_raw_parts(start, len),
            core::slice::from_raw_parts(&raw const coverage_seen, len),
        )
    }
}

/// Sets all counters to zero, and says how many edges have been taken as often as never before:
/// once, twice, three times, from 4, 8, 16, 32 or 128 times on. Cost: by all edges of the kernel,
/// some 100,000.
pub fn news() -> u64 {
    let (counters, seen) = counters();
    let mut news = 0;
    for (counter, seen) in counters.iter().zip(seen) {
        let count = counter.load(Relaxed);
        if count == 0 {
            continue;
        }
        counter.store(0, Relaxed);
        let class = match count {
            1..=3 => count - 1,
            4..=7 => 3,
            8..=15 => 4,
            16..=31 => 5,
            32..=127 => 6,
            _ => 7,
        };
        let before = seen.load(Relaxed);
        if before & 1 << class == 0 {
            seen.store(before | 1 << class, Relaxed);
            news += 1;
        }
    }
    news
}

/// How often each edge from the one numbered `at` on was taken since [`forget`], as far as [`news`]
/// has looked: a bit for each class, none for an edge that wasn't taken. Returns how many of `to`
/// it has set.
pub fn taken(at: usize, to: &mut [u8]) -> usize {
    let (_, seen) = counters();
    let from = seen.get(at..).unwrap_or(&[]);
    from.iter().zip(to).map(|(seen, to)| *to = seen.load(Relaxed)).count()
}

/// As if no edge had been taken yet.
pub fn forget() {
    let (counters, seen) = counters();
    counters.iter().chain(seen).for_each(|count| count.store(0, Relaxed));
}
