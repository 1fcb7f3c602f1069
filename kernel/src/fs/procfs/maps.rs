//! A process's memory: `maps`, `smaps`, `uvm`, and the totals that `status` and `statm` show.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;

use crate::errno::*;
use crate::mem::layout::USER_END;
use crate::proc::Process;
use crate::vm::{self, MapLine, Prot, Sharing, Tally};

const PAGE: u64 = 4096;

/// Sums over the mappings, in pages.
#[derive(Default)]
pub(super) struct Totals {
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
}

/// All zero in a process that has ended.
pub(super) fn totals(process: &Process) -> Totals {
    let mut totals = Totals::default();
    let Some(space) = process.space() else { return totals };
    let sums = vm::sums(&space, 0, USER_END);
    totals.mapped = sums.mapped / PAGE;
    totals.locked = sums.locked / PAGE;
    totals.resident = vm::resident_pages(&space);
    let tally = vm::tally(&space, 0, USER_END);
    totals.file = tally.mapped as u64;
    totals.shared = totals.file;
    totals.swapped = tally.swapped as u64;
    vm::describe(&space, &mut |line| {
        let pages = (line.end - line.start) / PAGE;
        if line.name == "[stack]" {
            totals.stack += pages;
        } else if line.prot.contains(Prot::EXECUTE) {
            totals.text += pages;
        } else if line.prot.contains(Prot::WRITE) && line.sharing == Sharing::Private {
            totals.data += pages;
        }
    });
    totals
}

fn put_line(out: &mut String, line: &MapLine<'_>) {
    let flag = |prot, letter| if line.prot.contains(prot) { letter } else { '-' };
    let start = out.len();
    let _ = write!(
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
    );
    if !line.name.is_empty() {
        const NAME_COLUMN: usize = 73;
        while out.len() - start < NAME_COLUMN {
            out.push(' ');
        }
        out.push_str(line.name);
    }
    out.push('\n');
}

pub(super) fn maps(process: &Process) -> Result<Vec<u8>> {
    let mut out = String::new();
    if let Some(space) = process.space() {
        vm::describe(&space, &mut |line| put_line(&mut out, line));
    }
    Ok(out.into_bytes())
}

/// One mapping's numbers, or all of them.
fn put_sizes(out: &mut String, tally: &Tally, locked: u64) {
    let (anonymous, mapped, swapped) = (tally.anonymous as u64, tally.mapped as u64, tally.swapped as u64);
    for (name, pages) in [
        ("Rss", anonymous + mapped),
        ("Pss", anonymous + mapped),
        ("Shared_Clean", 0),
        ("Shared_Dirty", 0),
        ("Private_Clean", mapped),
        ("Private_Dirty", anonymous),
        ("Referenced", anonymous + mapped),
        ("Anonymous", anonymous),
        ("Swap", swapped),
        ("SwapPss", swapped),
        ("Locked", locked / PAGE),
    ] {
        let _ = writeln!(out, "{:<16}{:>8} kB", alloc::format!("{name}:"), pages * 4);
    }
}

/// Shared pages count in full for each process that maps them, in `Pss` too: who else does is not looked for.
pub(super) fn smaps(process: &Process) -> Result<Vec<u8>> {
    let mut out = String::new();
    if let Some(space) = process.space() {
        vm::describe(&space, &mut |line| {
            put_line(&mut out, line);
            let length = line.end - line.start;
            let _ = writeln!(out, "Size:           {:>8} kB", length / 1024);
            let _ = writeln!(out, "KernelPageSize:        4 kB\nMMUPageSize:           4 kB");
            let locked = if line.locked { length } else { 0 };
            put_sizes(&mut out, &vm::tally(&space, line.start, line.end), locked);
        });
    }
    Ok(out.into_bytes())
}

pub(super) fn smaps_rollup(process: &Process) -> Result<Vec<u8>> {
    let mut out = String::new();
    if let Some(space) = process.space() {
        let _ = writeln!(out, "{:08x}-{USER_END:08x} ---p 00000000 00:00 0 [rollup]", 0);
        let locked = vm::sums(&space, 0, USER_END).locked;
        put_sizes(&mut out, &vm::tally(&space, 0, USER_END), locked);
    }
    Ok(out.into_bytes())
}

/// The address space as the VM system sees it.
pub(super) fn uvm(process: &Process) -> Result<Vec<u8>> {
    let mut out = String::new();
    if let Some(space) = process.space() {
        vm::dump(&space, &mut out).map_err(|_| EIO)?;
    }
    Ok(out.into_bytes())
}
