//! The few instructions that touch user memory, each with a place to go on when they fault.

use super::{cpu, io, pmap};

extern "C" {
    fn user_copy(dst: u64, src: u64, len: usize) -> u64;
    fn user_zero(dst: u64, len: usize) -> u64;
    fn user_string(dst: *mut u8, src: u64, max: usize) -> i64;
    fn user_load32(src: u64, out: *mut u32) -> u64;
    fn user_exchange32(at: u64, expected: u32, new: u32, found: *mut u32) -> u64;
    static fixups_start: [u64; 2];
    static fixups_end: [u64; 2];
    static smap_sites_start: [u64; 2];
    static smap_sites_end: [u64; 2];
}

/// A user address was bad.
pub struct Fault;

/// Does what uses the program's translations, with nothing in between but faults.
#[inline]
fn using<T>(access: impl FnOnce() -> T) -> T {
    pmap::begin_use();
    let result = access();
    pmap::end_use();
    result
}

fn check(failed: u64) -> Result<(), Fault> {
    if failed == 0 {
        Ok(())
    } else {
        Err(Fault)
    }
}

/// Where to go on after a fault at `rip`; `None` if nothing there may fault.
pub fn fixup(rip: u64) -> Option<u64> {
    // SAFETY: the linker script puts the table between the two symbols, in read-only memory.
    let table = unsafe {
        let start = &raw const fixups_start;
        let len = (&raw const fixups_end).offset_from(start) as usize;
        core::slice::from_raw_parts(start, len)
    };
    table.iter().find(|entry| entry[0] == rip).map(|entry| entry[1])
}

/// Writes STAC and CLAC to their places if the CPU has them. Runs while the image is still writable.
pub fn enable_smap() {
    if !cpu::has_smap() {
        return;
    }
    // SAFETY: as in `fixup`; each site is three bytes of a no-op in the kernel's text, which the boot tables map writable.
    unsafe {
        let start = &raw const smap_sites_start;
        let len = (&raw const smap_sites_end).offset_from(start) as usize;
        for [site, code] in core::slice::from_raw_parts(start, len) {
            core::ptr::copy_nonoverlapping(core::ptr::from_ref(code).cast::<u8>(), *site as *mut u8, 3);
        }
    }
    // A far transfer or CR3 write follows before any of them runs; a serialising instruction makes it certain.
    let _ = core::arch::x86_64::__cpuid(0);
    let _ = io::read_cr4();
}

/// Copies from user memory at `src`, which lies below the user limit.
#[inline]
pub fn copy_in(dst: &mut [u8], src: u64) -> Result<(), Fault> {
    // SAFETY: `dst` is ours; faults at `src` are caught.
    check(using(|| unsafe { user_copy(dst.as_mut_ptr() as u64, src, dst.len()) }))
}

/// Copies to user memory at `dst`, which lies below the user limit.
#[inline]
pub fn copy_out(dst: u64, src: &[u8]) -> Result<(), Fault> {
    // SAFETY: `src` is ours; the user's memory is no Rust object; faults are caught.
    check(using(|| unsafe { user_copy(dst, src.as_ptr() as u64, src.len()) }))
}

/// Zeroes user memory at `dst`, which lies below the user limit.
pub fn zero(dst: u64, len: usize) -> Result<(), Fault> {
    // SAFETY: as in `copy_out`.
    check(using(|| unsafe { user_zero(dst, len) }))
}

/// Copies a string without its zero byte; the number of bytes before it, or `dst.len()` if there is none.
pub fn string(dst: &mut [u8], src: u64) -> Result<usize, Fault> {
    // SAFETY: as in `copy_in`.
    let n = using(|| unsafe { user_string(dst.as_mut_ptr(), src, dst.len()) });
    usize::try_from(n).map_err(|_| Fault)
}

/// Loads an aligned word atomically.
pub fn load32(src: u64) -> Result<u32, Fault> {
    let mut value = 0;
    // SAFETY: faults at `src` are caught.
    check(using(|| unsafe { user_load32(src, &mut value) }))?;
    Ok(value)
}

/// Stores `new` if the word is `expected`, atomically; what was found.
pub fn exchange32(at: u64, expected: u32, new: u32) -> Result<u32, Fault> {
    let mut found = 0;
    // SAFETY: as in `copy_out`.
    check(using(|| unsafe { user_exchange32(at, expected, new, &mut found) }))?;
    Ok(found)
}
