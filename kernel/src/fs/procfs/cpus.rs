//! `/sys/devices/system/cpu`: which CPUs there are, where C libraries and tools look first.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::{text, Member, Show};
use crate::arch::cpu;

macro_rules! names {
    ($($number:literal)*) => { [$(concat!("cpu", $number)),*] };
}

static NAMES: [&str; cpu::MAX_CPUS] = names!(
    0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
    32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
);

static FIXED: &[Member] = &[
    text("online", || list(cpu::count())),
    text("present", || list(cpu::count())),
    // No CPU comes later.
    text("possible", || list(cpu::count())),
    text("offline", || String::from("\n")),
    text("kernel_max", || format!("{}\n", cpu::MAX_CPUS - 1)),
];

/// What the folder of a CPU holds: none can be switched off.
static CPU: &[Member] = &[text("online", || String::from("1\n"))];

/// The first `count` CPUs, as Linux writes a set of them.
fn list(count: usize) -> String {
    match count {
        1 => String::from("0\n"),
        _ => format!("0-{}\n", count - 1),
    }
}

pub(super) fn members() -> Vec<(&'static str, Show)> {
    let folders = NAMES.iter().take(cpu::count()).map(|&name| (name, Show::Fixed(CPU)));
    FIXED.iter().map(|member| (member.name, member.show)).chain(folders).collect()
}
