//! What `/proc` says about memory as a whole, by Linux's names where Linux has the thing:
//! `meminfo`, `vmstat`.

use alloc::format;
use alloc::string::String;
use core::fmt::Write;
use core::sync::atomic::Ordering::Relaxed;

use crate::arch::pmap;
use crate::lock::lock_times;
use crate::mem::{fault, heap, stack, window};
use crate::proc::{oom, trap};
use crate::vm::{self, commit};

pub(super) fn meminfo() -> String {
    let (stats, now) = (vm::stats(), vm::frame_stats());
    let sum = |[anon, file]: [u64; 2]| anon + file;
    let clean_files = (now.file - now.shared).saturating_sub(now.dirty);
    let available = (stats.free_pages + clean_files).saturating_sub(stats.low_water);
    let heap = heap::bytes() / 4096;
    let lines = [
        ("MemTotal", stats.total_pages),
        ("MemFree", stats.free_pages),
        ("MemAvailable", available),
        ("Buffers", 0),
        ("Cached", now.file),
        ("SwapCached", now.swap_cached),
        ("Active", sum(now.active)),
        ("Inactive", sum(now.inactive)),
        ("Active(anon)", now.active[0]),
        ("Inactive(anon)", now.inactive[0]),
        ("Active(file)", now.active[1]),
        ("Inactive(file)", now.inactive[1]),
        ("Unevictable", now.wired),
        ("Mlocked", now.wired),
        ("SwapTotal", stats.swap_pages),
        ("SwapFree", stats.swap_pages - stats.swap_used),
        ("Zswap", stats.zswap_frames),
        ("Zswapped", stats.zswap_pages),
        ("Dirty", now.dirty),
        ("Writeback", now.writeback),
        ("AnonPages", now.anon),
        ("Mapped", now.mapped),
        ("Shmem", now.shared),
        ("Slab", heap),
        ("KernelStack", stack::pages()),
        ("PageTables", now.tables),
        ("CommitLimit", commit::limit()),
    ];
    // Only then is it counted.
    let promised = commit::is_strict().then(|| ("Committed_AS", commit::promised()));
    let mut out = String::new();
    for (name, pages) in lines.into_iter().chain(promised) {
        let _ = writeln!(out, "{:<16}{:>8} kB", format!("{name}:"), pages * 4);
    }
    out
}

/// All memory is one zone. The page daemon runs below `low`, until `high` pages are free.
pub(super) fn zoneinfo() -> String {
    let (stats, now) = (vm::stats(), vm::frame_stats());
    let (low, high) = vm::water_marks();
    let mut out = String::from("Node 0, zone   Normal\n");
    let _ = writeln!(out, "  pages free     {}\n        low      {low}", stats.free_pages);
    let _ = writeln!(out, "        high     {high}\n        managed  {}", stats.total_pages);
    for (name, pages) in [
        ("nr_free_pages", stats.free_pages),
        ("nr_zone_inactive_anon", now.inactive[0]),
        ("nr_zone_active_anon", now.active[0]),
        ("nr_zone_inactive_file", now.inactive[1]),
        ("nr_zone_active_file", now.active[1]),
        ("nr_zone_unevictable", now.wired),
    ] {
        let _ = writeln!(out, "      {name:<12} {pages}");
    }
    out
}

pub(super) fn vmstat() -> String {
    let (stats, now) = (vm::stats(), vm::frame_stats());
    let event = |wanted: &str| {
        stats.events.iter().find(|(name, _)| *name == wanted).map_or(0, |(_, count)| *count)
    };
    let pages = [
        ("nr_free_pages", stats.free_pages),
        ("nr_active_anon", now.active[0]),
        ("nr_inactive_anon", now.inactive[0]),
        ("nr_active_file", now.active[1]),
        ("nr_inactive_file", now.inactive[1]),
        ("nr_unevictable", now.wired),
        ("nr_mlock", now.wired),
        ("nr_anon_pages", now.anon),
        ("nr_mapped", now.mapped),
        ("nr_file_pages", now.file),
        ("nr_dirty", now.dirty),
        ("nr_writeback", now.writeback),
        ("nr_shmem", now.shared),
        ("nr_page_table_pages", now.tables),
        ("nr_swapcached", now.swap_cached),
        ("pgfault", event("faults")),
        ("pgmajfault", trap::MAJOR_FAULTS.load(Relaxed)),
        // In KiB, as on Linux.
        ("pgpgin", 4 * (event("file_pages_read") + event("pswpin"))),
        ("pgpgout", 4 * (event("file_pages_written") + event("pswpout"))),
        ("oom_kill", oom::KILLS.load(Relaxed)),
    ];
    let mut out = String::new();
    for (name, value) in
        pages.iter().chain(&stats.events).chain(&stats.zswap_events).chain(&pmap::counters())
    {
        let _ = writeln!(out, "{name} {value}");
    }
    let counters = fault::counters().into_iter().chain(heap::counters()).chain(window::counters());
    for (name, value) in counters {
        let _ = writeln!(out, "{name} {value}");
    }
    for (name, value) in lock_times::counters() {
        let _ = writeln!(out, "{name} {value}");
    }
    out
}

/// What memory is in use for, exactly: pages, and bytes of the heap by the sizes of its classes.
pub(super) fn in_use() -> String {
    let mut out = String::new();
    for (name, count) in vm::in_use().unwrap_or_default() {
        let _ = writeln!(out, "{name} {count}");
    }
    out
}
