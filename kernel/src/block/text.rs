//! Disks in `/proc`.

use alloc::string::String;
use core::fmt::Write;

use super::{disks, Disk};
use crate::devnum::major_and_minor;

const MILLI: u64 = 1_000_000;

/// `/proc/partitions`: sizes in KiB.
pub fn partitions() -> String {
    let mut out = String::from("major minor  #blocks  name\n\n");
    for disk in disks() {
        let (major, minor) = major_and_minor(disk.number());
        let _ = writeln!(out, "{major:>4}  {minor:>7} {:>10} {}", disk.sectors() / 2, disk.name());
    }
    out
}

/// `/proc/diskstats`, as Linux's `Documentation/admin-guide/iostats.rst` lists the columns. Nothing
/// is ever merged or discarded.
pub fn diskstats() -> String {
    let mut out = String::new();
    for disk in disks() {
        let (major, minor) = major_and_minor(disk.number());
        let _ = write!(out, "{major:>4} {minor:>7} {}{}", disk.name(), stat(disk));
    }
    out
}

/// `/sys/block/DISK/stat`, as the columns there behind the name.
pub fn stat(disk: &Disk) -> String {
    let mut out = String::new();
    let stats = disk.stats();
    for counts in [stats.reads, stats.writes] {
        let _ = write!(out, " {} 0 {} {}", counts.requests, counts.sectors, counts.nanos / MILLI);
    }
    let _ = write!(out, " {} {} {}", stats.in_flight, stats.busy / MILLI, stats.weighted / MILLI);
    let _ = writeln!(out, " 0 0 0 0 {} {}", stats.flushes.requests, stats.flushes.nanos / MILLI);
    out
}
