//! `/sys/devices/system/cpu`: which CPUs there are, where C libraries and tools look first.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use machine::CpuSet;

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
    text("online", || list(cpu::online()) + "\n"),
    text("present", || list(cpu::online()) + "\n"),
    // No CPU comes later.
    text("possible", || list(cpu::online()) + "\n"),
    text("offline", || String::from("\n")),
    text("kernel_max", || format!("{}\n", cpu::MAX_CPUS - 1)),
];

/// What the folder of a CPU holds: none can be switched off.
static CPU: &[Member] = &[text("online", || String::from("1\n"))];

/// A set of CPUs as Linux lists it: `0,2-3`.
pub(super) fn list(cpus: CpuSet) -> String {
    let has = |cpu: usize| cpu < cpu::MAX_CPUS && cpus.contains(cpu);
    let mut list = String::new();
    for first in cpus.iter().filter(|&cpu| cpu == 0 || !has(cpu - 1)) {
        let last = (first..).find(|&cpu| !has(cpu + 1)).unwrap_or(first);
        let comma = if list.is_empty() { "" } else { "," };
        list += &if last == first {
            format!("{comma}{first}")
        } else {
            format!("{comma}{first}-{last}")
        };
    }
    list
}

/// A set of CPUs as Linux writes its bits: `3,ffffffff`.
pub(super) fn set(cpus: CpuSet) -> String {
    let bits = cpus.bits();
    let digits = cpu::count().div_ceil(4);
    match digits.checked_sub(8) {
        Some(more @ 1..) => format!("{:0more$x},{:08x}", bits >> 32, bits as u32),
        _ => format!("{bits:0digits$x}"),
    }
}

pub(super) fn members() -> Vec<(&'static str, Show)> {
    let folders = NAMES.iter().take(cpu::count()).map(|&name| (name, Show::Fixed(CPU)));
    FIXED.iter().map(|member| (member.name, member.show)).chain(folders).collect()
}
