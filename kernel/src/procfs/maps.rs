//! A process's memory: `maps`, `smaps`, `uvm`, and the totals that `status` and `statm` show.

use core::fmt::{self, Write};

use super::text::{Spot, Text};
use crate::arch::layout::USER_END;
use crate::devnum::major_and_minor;
use crate::errno::*;
use crate::fs::mount;
use crate::fs::path::dir_path;
use crate::proc::{curproc, Process};
use crate::sched;
use crate::vm::{self, Inherit, MapLine, Prot, Sharing, Space, Usage};

const PAGE: u64 = 4096;

/// Sums over the mappings, in pages.
#[derive(Default)]
pub(super) struct MemoryStats {
    pub mapped: u64,
    pub resident: u64,
    /// What may be executed, and what of that is the program's own.
    pub text: u64,
    pub code: u64,
    pub data: u64,
    pub stack: u64,
    pub locked: u64,
    /// Mapped pages of files and shared memory, and those of shared memory.
    pub of_objects: u64,
    pub shared_memory: u64,
    pub swapped: u64,
    /// Page tables.
    pub tables: u64,
}

/// How much is mapped, and how much of that is in memory; in pages.
pub(super) fn sizes(process: &Process) -> (u64, u64) {
    let Some(space) = process.space() else { return (0, 0) };
    (vm::mapping_stats(&space, 0, USER_END).mapped / PAGE, vm::resident_pages(&space))
}

/// All zero in a process that has ended.
pub(super) fn memory_stats(process: &Process) -> MemoryStats {
    let mut sums = MemoryStats::default();
    let Some(mm) = process.mm() else { return sums };
    let (space, (code, code_end)) = (&mm.space, mm.marks().code);
    let stats = vm::mapping_stats(space, 0, USER_END);
    sums.mapped = stats.mapped / PAGE;
    sums.locked = stats.locked / PAGE;
    sums.resident = vm::resident_pages(space);
    sums.tables = vm::tables(space);
    sums.code = code_end.div_ceil(PAGE) - code / PAGE;
    let range_stats = vm::range_stats(space, 0, USER_END);
    sums.of_objects = range_stats.mapped as u64;
    sums.swapped = range_stats.swapped as u64;
    let mut at = 0;
    loop {
        let mut shared = None;
        let next = vm::line(space, at, &mut |line| {
            let pages = (line.end - line.start) / PAGE;
            if line.name == "[stack]" {
                sums.stack += pages;
            } else if line.prot.contains(Prot::EXECUTE) {
                sums.text += pages;
            } else if line.prot.contains(Prot::WRITE) && line.sharing == Sharing::Private {
                sums.data += pages;
            }
            shared = line.is_shared_memory.then_some((line.start, line.end));
        });
        let Some(end) = next else { return sums };
        if let Some((start, end)) = shared {
            sums.shared_memory += vm::range_stats(space, start, end).mapped as u64;
        }
        at = end;
        sched::give_way();
        if sched::is_leaving() {
            return sums;
        }
    }
}

/// A name without the path of the running process's root in front; another one as it is.
fn from_root(name: &str) -> &str {
    let Ok(context) = curproc::context() else { return name };
    let (root, global) = (context.root(), mount::root());
    if root.same(&global) || !name.starts_with('/') {
        return name;
    }
    let prefix = dir_path(&root, None);
    let prefix = prefix.as_deref().and_then(|prefix| core::str::from_utf8(prefix).ok());
    let rest = prefix.and_then(|prefix| name.strip_prefix(prefix));
    rest.filter(|rest| rest.starts_with('/')).unwrap_or(name)
}

fn put_line(out: &mut Text, line: &MapLine<'_>) -> fmt::Result {
    let flag = |prot, letter| if line.prot.contains(prot) { letter } else { '-' };
    let start = out.len();
    let ((major, minor), ino) = (major_and_minor(line.node.0), line.node.1);
    write!(
        out,
        "{:08x}-{:08x} {}{}{}{} {:08x} {major:02x}:{minor:02x} {ino} ",
        line.start,
        line.end,
        flag(Prot::READ, 'r'),
        flag(Prot::WRITE, 'w'),
        flag(Prot::EXECUTE, 'x'),
        if line.sharing == Sharing::Shared { 's' } else { 'p' },
        line.offset,
    )?;
    let name = from_root(line.name);
    if !name.is_empty() {
        const NAME_COLUMN: usize = 73;
        let column = NAME_COLUMN.saturating_sub(out.len() - start);
        write!(out, "{:column$}", "")?;
        // A program chooses its files' names: none ends the line.
        for part in name.split_inclusive('\n') {
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

/// The numbers of the mappings from `start` to `end`.
fn put_sizes(out: &mut Text, space: &Space, (start, end): (u64, u64), locked: u64) -> fmt::Result {
    let (range_stats, objects) =
        (vm::range_stats(space, start, end), vm::object_stats(space, start, end));
    let share = |bytes: usize| bytes as u64 / PAGE;
    let [[shared, shared_dirty], [alone, alone_dirty]] =
        objects.pages.map(|pages| pages.map(|count| count as u64));
    let of_objects = shared + shared_dirty + alone + alone_dirty;
    let (anonymous, own) = (range_stats.anonymous as u64, range_stats.anonymous_alone as u64);
    for (name, pages) in [
        ("Rss:", anonymous + of_objects),
        ("Pss:", share(range_stats.anonymous_share + objects.share)),
        ("Shared_Clean:", shared),
        ("Shared_Dirty:", shared_dirty + (anonymous - own)),
        ("Private_Clean:", alone),
        ("Private_Dirty:", alone_dirty + own),
        ("Anonymous:", anonymous),
        ("Swap:", range_stats.swapped as u64),
        ("SwapPss:", share(range_stats.swapped_share)),
        ("Locked:", locked / PAGE),
    ] {
        writeln!(out, "{name:<16}{:>8} kB", pages * 4)?;
    }
    Ok(())
}

/// What Linux calls `VmFlags`, as far as there is such a thing here.
fn put_flags(out: &mut Text, line: &MapLine<'_>) -> fmt::Result {
    out.write_str("VmFlags:")?;
    for (is, name) in [
        (line.prot.contains(Prot::READ), "rd"),
        (line.prot.contains(Prot::WRITE), "wr"),
        (line.prot.contains(Prot::EXECUTE), "ex"),
        (line.sharing == Sharing::Shared, "sh"),
        (line.max_prot.contains(Prot::READ), "mr"),
        (line.max_prot.contains(Prot::WRITE), "mw"),
        (line.max_prot.contains(Prot::EXECUTE), "me"),
        (line.sharing == Sharing::Shared, "ms"),
        (line.grows_down, "gd"),
        (line.locked, "lo"),
        (line.usage == Usage::Sequential, "sr"),
        (line.usage == Usage::Random, "rr"),
        (line.inherit == Inherit::None, "dc"),
        (line.inherit == Inherit::Zero, "wf"),
    ] {
        if is {
            write!(out, " {name}")?;
        }
    }
    // As on Linux, a blank is behind the last.
    out.write_str(" \n")
}

/// `Pss` divides pages by the number of mappings that show them.
pub(super) fn smaps(
    _process: &Process,
    space: &Space,
    spot: Spot,
    out: &mut Text,
) -> Result<Option<u64>> {
    let (mut put, mut shown, mut flags) = (Ok(()), (0, 0, false), Text::default());
    let next = vm::line(space, spot.key, &mut |line| {
        put = put_line(out, line).and_then(|()| put_flags(&mut flags, line));
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
    put_sizes(out, space, (start, end), locked)?;
    out.put(flags.bytes())?;
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
    put_sizes(out, space, (0, USER_END), locked)?;
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
