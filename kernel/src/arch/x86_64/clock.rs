//! Time: the time stamp counter as nanoseconds since boot, the APIC timer as alarm, the CMOS clock for the date.
//!
//! Both counters are calibrated once against the PIT's channel 0, which every PC-like machine here has; a machine without gets
//! QEMU's fixed 1 GHz.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{apic, io};

/// Nanoseconds per tick, as a fraction of 2^32.
static TSC_SCALE: AtomicU64 = AtomicU64::new(1 << 32);
static TSC_START: AtomicU64 = AtomicU64::new(0);
/// APIC ticks per nanosecond, as a fraction of 2^32.
static APIC_SCALE: AtomicU64 = AtomicU64::new(1 << 32);
/// CLOCK_REALTIME at boot.
static WALL_START: AtomicU64 = AtomicU64::new(0);

const PIT_HZ: u64 = 1_193_182;
/// PIT ticks to calibrate over: about 4 ms.
const SAMPLE: u16 = 4772;

/// Nanoseconds since boot.
#[inline]
pub fn now() -> u64 {
    scale(io::rdtsc() - TSC_START.load(Relaxed), TSC_SCALE.load(Relaxed))
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

#[inline]
fn scale(value: u64, by: u64) -> u64 {
    ((u128::from(value) * u128::from(by)) >> 32) as u64
}

/// Calibrates. The APIC is up.
pub fn init() {
    let start = io::rdtsc();
    if let Some((tsc, apic_ticks)) = sample() {
        let nanos = u64::from(SAMPLE) * 1_000_000_000 / PIT_HZ;
        // QEMU's counters run at exactly 1 GHz: take a measurement that close for it.
        let round = |ticks: u64| if ticks.abs_diff(nanos) < nanos / 50 { nanos } else { ticks };
        TSC_SCALE.store((nanos << 32) / round(tsc).max(1), Relaxed);
        APIC_SCALE.store((round(apic_ticks) << 32) / nanos, Relaxed);
    }
    TSC_START.store(start, Relaxed);
    WALL_START.store(cmos_seconds() * 1_000_000_000, Relaxed);
}

/// TSC and APIC ticks while the PIT counts `SAMPLE` down; `None` if it doesn't count.
fn sample() -> Option<(u64, u64)> {
    io::out8(0x43, 0x34);
    io::out8(0x40, 0xff);
    io::out8(0x40, 0xff);
    let read = || {
        io::out8(0x43, 0);
        u16::from(io::in8(0x40)) | u16::from(io::in8(0x40)) << 8
    };
    apic::arm(u32::MAX);
    let (from, tsc, timer) = (read(), io::rdtsc(), apic::remaining());
    for _ in 0..1_000_000 {
        if from.wrapping_sub(read()) >= SAMPLE {
            let result = (io::rdtsc() - tsc, u64::from(timer - apic::remaining()));
            apic::arm(0);
            return Some(result);
        }
        core::hint::spin_loop();
    }
    apic::arm(0);
    None
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

/// Days from 1970-01-01 to a date of the Gregorian calendar, counting years from March so that leap days come last.
fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let era_day = year * 365 + year / 4 - year / 100 + year / 400 + day_of_year;
    era_day - 719_468
}
