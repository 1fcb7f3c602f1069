//! A process's memory: `maps`, `smaps`, `uvm`, and the totals that `status` and `statm` show.

use core::fmt::{self, Write};

use super::text::{Spot, Text};
use crate::arch::layout::USER_END;
use crate::errno::*;
use crate::proc::Process;
use crate::sched;
use crate::vm::{self, MapLine, Prot, RangeStats, Sharing, Space};

const PAGE: u64 = 4096;

/// Sums over the mappings, in pages.
#[derive(Default)]
pub(super) struct MemoryStats {
    pub mapped: u64,
    pub resident: u64,
    pub shared: u64,
    pub text: u64,
    pub data: u64,
    pub stack: u64,
    pub locked: u64,
    /// Of files or shared memory, and mapped.
    pub file: u64,
    pub swapped: u64,
    /// Page tables.
    pub tables: u64,
}

/// All zero in a process that has ended.
pub(super) fn memory_stats(process: &Process) -> MemoryStats {
    let mut memory_stats = MemoryStats::default();
    let Some(space) = process.space() else { return memory_stats };
    let stats = vm::mapping_stats(&space, 0, USER_END);
    memory_stats.mapped = stats.mapped / PAGE;
    memory_stats.locked = stats.locked / PAGE;
    memory_stats.resident = vm::resident_pages(&space);
    memory_stats.tables = vm::tables(&space);
    let range_stats = vm::range_stats(&space, 0, USER_END);
    memory_stats.file = range_stats.mapped as u64;
    memory_stats.shared = memory_stats.file;
    memory_stats.swapped = range_stats.swapped as u64;
    let mut at = 0;
    while let Some(end) = vm::line(&space, at, &mut |line| {
        let pages = (line.end - line.start) / PAGE;
        if line.name == "[stack]" {
            memory_stats.stack += pages;
        } else if line.prot.contains(Prot::EXECUTE) {
            memory_stats.text += pages;
        } else if line.prot.contains(Prot::WRITE) && line.sharing == Sharing::Private {
            memory_stats.data += pages;
        }
    }) {
        at = end;
        sched::give_way();
    }
    memory_stats
}

fn put_line(out: &mut Text, line: &MapLine<'_>) -> fmt::Result {
    let flag = |prot, letter| if line.prot.contains(prot) { letter } else { '-' };
    let start = out.len();
    write!(
        out,
        "{:08x}-{:08x} {}{}{}{} {:08x} 00:{:02x} {} ",
        line.start,
        line.end,
        flag(Prot::READ, 'r'),
        flag(Prot::WRITE, 'w'),
        flag(Prot::EXECUTE, 'x'),
        if line.sharing == Sharing::Shared { 's' } else { 'p' },
        line.offset,
        if line.object == 0 { 0 } else { 1 },
        line.object,
    )?;
    if !line.name.is_empty() {
        const NAME_COLUMN: usize = 73;
        let column = NAME_COLUMN.saturating_sub(out.len() - start);
        write!(out, "{:column$}", "")?;
        // A program chooses its files' names: none ends the line.
        for part in line.name.split_inclusive('\n') {
            let (text, end) = part.strip_suffix('\n').map_or((part, ""), |text| (text, "\\012"));
            write!(out, "{text}{end}")?;
        }
    }
    out.write_char('\n')
}

pub(super) fn maps(
    _process: &Process,
    space: &Space,
    spot: Spot,
    out: &mut Text,
) -> Result<Option<u64>> {
    let mut put = Ok(());
    let next = vm::line(space, spot.key, &mut |line| put = put_line(out, line));
    put?;
    Ok(next)
}

/// One mapping's numbers, or all of them.
fn put_sizes(out: &mut Text, range_stats: &RangeStats, locked: u64) -> fmt::Result {
    let (anonymous, mapped, swapped) =
        (range_stats.anonymous as u64, range_stats.mapped as u64, range_stats.swapped as u64);
    let share = |bytes: usize| bytes as u64 / PAGE;
    for (name, pages) in [
        ("Rss:", anonymous + mapped),
        ("Pss:", share(range_stats.anonymous_share) + mapped),
        ("Shared_Clean:", 0),
        ("Shared_Dirty:", 0),
        ("Private_Clean:", mapped),
        ("Private_Dirty:", anonymous),
        ("Referenced:", anonymous + mapped),
        ("Anonymous:", anonymous),
        ("Swap:", swapped),
        ("SwapPss:", share(range_stats.swapped_share)),
        ("Locked:", locked / PAGE),
    ] {
        writeln!(out, "{name:<16}{:>8} kB", pages * 4)?;
    }
    Ok(())
}

/// `Pss` divides anonymous pages by the number of processes that have them. Pages of files count in
/// full for each process that maps them.
pub(super) fn smaps(
    _process: &Process,
    space: &Space,
    spot: Spot,
    out: &mut Text,
) -> Result<Option<u64>> {
    let (mut put, mut shown) = (Ok(()), (0, 0, false));
    let next = vm::line(space, spot.key, &mut |line| {
        put = put_line(out, line);
        shown = (line.start, line.end, line.locked);
    });
    put?;
    if next.is_none() {
        return Ok(None);
    }
    let (start, end, is_locked) = shown;
    writeln!(out, "Size:           {:>8} kB", (end - start) / 1024)?;
    out.write_str("KernelPageSize:        4 kB\nMMUPageSize:           4 kB\n")?;
    let locked = if is_locked { end - start } else { 0 };
    put_sizes(out, &vm::range_stats(space, start, end), locked)?;
    Ok(next)
}

pub(super) fn smaps_rollup(
    _process: &Process,
    space: &Space,
    _spot: Spot,
    out: &mut Text,
) -> Result<Option<u64>> {
    writeln!(out, "{:08x}-{USER_END:08x} ---p 00000000 00:00 0 [rollup]", 0)?;
    let locked = vm::mapping_stats(space, 0, USER_END).locked;
    put_sizes(out, &vm::range_stats(space, 0, USER_END), locked)?;
    Ok(None)
}

/// The address space as the VM system sees it, behind what the kernel keeps for the process.
pub(super) fn uvm(
    process: &Process,
    space: &Space,
    spot: Spot,
    out: &mut Text,
) -> Result<Option<u64>> {
    if spot.line == 0 {
        vm::dump_sums(space, out)?;
        let (account, made) = (process.account(), |pages: usize| pages as u64 * PAGE);
        let (user, kept) = (account.user(), account.kept());
        let (own, all) = (made(account.pages()), made(user.memory().used()));
        writeln!(
            out,
            "kept: {kept} bytes, {} for its user; objects it made: {own} bytes, {all} its user",
            user.kept()
        )?;
        return Ok(Some(0));
    }
    Ok(vm::dump_line(space, spot.key, out)?)
}
