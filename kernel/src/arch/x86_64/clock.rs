//! Time: the time stamp counter as nanoseconds since boot, the APIC timer as alarm, the CMOS clock
//! for the date.
//!
//! Both counters are calibrated once against the PIT's channel 0, which every PC-like machine here
//! has; a machine without gets QEMU's fixed 1 GHz. A virtual machine may stand still at any time:
//! `sample` and `Reading` say what that does to them.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{apic, io};

/// The time stamp counter.
pub use super::io::rdtsc as ticks;

/// Time in nanoseconds: an instant on the clock since boot, or a span.
pub type Nanos = u64;

/// Nanoseconds per tick, as a fraction of 2^32.
static TSC_SCALE: AtomicU64 = AtomicU64::new(1 << 32);
static TSC_START: AtomicU64 = AtomicU64::new(0);
/// APIC ticks per nanosecond, as a fraction of 2^32.
static APIC_SCALE: AtomicU64 = AtomicU64::new(1 << 32);
/// CLOCK_REALTIME at boot.
static WALL_START: AtomicU64 = AtomicU64::new(0);

const PIT_HZ: u64 = 1_193_182;
/// PIT ticks to calibrate over, at least: about 2 ms.
const SAMPLE: u16 = 2386;
const SAMPLES: usize = 3;
/// Readings of the counters, of which the quickest counts.
const TRIES: usize = 8;

/// Nanoseconds since boot.
#[inline]
pub fn now() -> u64 {
    of_ticks(io::rdtsc() - TSC_START.load(Relaxed))
}

/// Ticks of the time stamp counter as nanoseconds.
#[inline]
pub fn of_ticks(ticks: u64) -> Nanos {
    scale(ticks, TSC_SCALE.load(Relaxed))
}

/// How often the time stamp counter counts in a millisecond.
pub fn ticks_per_ms() -> u64 {
    (1_000_000 << 32) / TSC_SCALE.load(Relaxed).max(1)
}

/// CLOCK_REALTIME in nanoseconds.
pub fn wall() -> u64 {
    WALL_START.load(Relaxed) + now()
}

/// Interrupts this CPU after `nanos`.
#[inline]
pub fn arm(nanos: u64) {
    let ticks = scale(nanos.min(1 << 40), APIC_SCALE.load(Relaxed)).clamp(1, u64::from(u32::MAX));
    apic::arm(ticks as u32);
}

/// No interrupt comes.
pub fn disarm() {
    apic::arm(0);
}

/// Halts this CPU until another asks for something, or for at most `nanos`; then the alarm is what
/// it was.
pub fn doze(nanos: u64) {
    apic::doze(scale(nanos, APIC_SCALE.load(Relaxed)).max(1) as u32);
    crate::upcalls::arm_again();
}

#[inline]
fn scale(value: u64, by: u64) -> u64 {
    ((u128::from(value) * u128::from(by)) >> 32) as u64
}

/// Calibrates. The APIC is up.
pub fn init() {
    let start = io::rdtsc();
    // A host that leaves us alone for longer than the PIT takes to go round makes both counters
    // look fast, never slow.
    let best = (0..SAMPLES)
        .filter_map(|_| sample())
        .min_by_key(|sample| (sample.tsc << 16) / sample.nanos);
    if let Some(Sample { nanos, tsc, apic }) = best {
        // QEMU's counters run at exactly 1 GHz: take a measurement that close for it.
        let round = |ticks: u64| if ticks.abs_diff(nanos) < nanos / 50 { nanos } else { ticks };
        TSC_SCALE.store((nanos << 32) / round(tsc).max(1), Relaxed);
        APIC_SCALE.store((round(apic) << 32) / nanos, Relaxed);
    }
    TSC_START.store(start, Relaxed);
    WALL_START.store(cmos_seconds() * 1_000_000_000, Relaxed);
}

/// What the counters did in some time by the PIT.
struct Sample {
    nanos: u64,
    tsc: u64,
    apic: u64,
}

/// Both counters while the PIT counts at least `SAMPLE` down; `None` if it doesn't count.
fn sample() -> Option<Sample> {
    io::out8(0x43, 0x34);
    io::out8(0x40, 0xff);
    io::out8(0x40, 0xff);
    apic::arm(u32::MAX);
    let from = Reading::closest();
    let passed = (0..1_000_000).find(|_| {
        core::hint::spin_loop();
        from.pit.wrapping_sub(pit()) >= SAMPLE
    });
    let to = Reading::closest();
    apic::arm(0);
    passed?;
    // The time that passed, not the time that was wanted: the host may have taken its own.
    let ticks = u64::from(from.pit.wrapping_sub(to.pit));
    Some(Sample {
        nanos: ticks * 1_000_000_000 / PIT_HZ,
        tsc: to.tsc - from.tsc,
        apic: u64::from(from.apic - to.apic),
    })
}

/// The three counters at one time.
struct Reading {
    pit: u16,
    tsc: u64,
    apic: u32,
}

impl Reading {
    /// Of some readings the one that took the shortest: nothing came between its counters.
    fn closest() -> Reading {
        let read = |_| {
            let start = io::rdtsc();
            let (pit, tsc, apic) = (pit(), io::rdtsc(), apic::remaining());
            (io::rdtsc() - start, Reading { pit, tsc, apic })
        };
        let best = (0..TRIES).map(read).min_by_key(|(took, _)| *took);
        best.expect("some were taken").1
    }
}

fn pit() -> u16 {
    io::out8(0x43, 0);
    u16::from(io::in8(0x40)) | u16::from(io::in8(0x40)) << 8
}

/// Seconds since 1970 by the CMOS clock, which keeps UTC; zero where there is none.
fn cmos_seconds() -> u64 {
    let read = |register: u8| {
        io::out8(0x70, register);
        io::in8(0x71)
    };
    let fields = || [0u8, 2, 4, 7, 8, 9].map(read);
    let mut last = fields();
    for _ in 0..8 {
        let again = fields();
        if again == last {
            break;
        }
        last = again;
    }
    let binary = read(0x0b) & 4 != 0;
    let decode = |v: u8| u64::from(if binary { v } else { (v >> 4) * 10 + (v & 15) });
    let [second, minute, hour, day, month, year] = last.map(decode);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return 0;
    }
    days_since_1970(2000 + year, month, day) * 86400 + hour * 3600 + minute * 60 + second
}

/// Days from 1970-01-01 to a date of the Gregorian calendar, counting years from March so that leap
/// days come last.
fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let era_day = year * 365 + year / 4 - year / 100 + year / 400 + day_of_year;
    era_day - 719_468
}
