//! Swap areas by name: what swapon(2) takes, what `/proc/swaps` shows.
//!
//! I1: an area in the table has its node's extents, and gives them back when it is switched off.

mod area;
mod header;

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt::Write;

use linux_raw_sys::general::O_RDWR;
use machine::PAGE_SIZE;

use self::area::{Area as Slots, Run};
use self::header::Header;
use super::file::File;
use super::inode::{same, InodeRef, Kind};
use super::ops::Extent;
use super::path::escaped;
use crate::block::SECTOR;
use crate::errno::*;
use crate::println;
use crate::sync::Mutex;
use crate::vm::{self, SwapId};

/// The priority of the first area that asks for none; the next gets one less, and so on.
const FIRST_PRIORITY: i16 = -2;

/// An area in use.
struct Area {
    file: Arc<File>,
    id: SwapId,
    pages: u64,
    priority: i16,
}

static AREAS: Mutex<Vec<Area>> = Mutex::new(Vec::new());

/// The good pages of an area as runs of slots.
fn runs(extents: &[Extent], header: &Header) -> Vec<Run> {
    let mut list: Vec<Run> = Vec::new();
    for extent in extents {
        header.good(extent.page..extent.page + extent.pages, |pages| {
            let slot = list.last().map_or(0, |run| run.slot + run.slots);
            let sector = extent.sector + (pages.start - extent.page) * (PAGE_SIZE / SECTOR) as u64;
            let slots = (pages.end - pages.start) as u32;
            list.push(Run { slot, slots, disk: extent.disk.clone(), sector });
        });
    }
    list
}

/// Whether two nodes are the same file or the same device.
fn same_place(a: &InodeRef, b: &InodeRef) -> bool {
    let (one, other) = (a.stat(), b.stat());
    same(a, b) || one.kind == Kind::Block && other.kind == Kind::Block && one.rdev == other.rdev
}

/// Swaps on what the command line names by `swapon=DEVICE[:PRIORITY]`, up to what can't be swapped
/// on, which is said; in a thread, since it waits for disks.
pub fn on_named(cmdline: &str) -> Result<()> {
    for word in cmdline.split_ascii_whitespace().take_while(|&word| word != "--") {
        let Some(what) = word.strip_prefix("swapon=") else { continue };
        let (device, priority) = match what.split_once(':') {
            Some((device, priority)) => (device, priority.parse().ok()),
            None => (what, None),
        };
        let switched = super::open_kernel(device, O_RDWR).and_then(|file| on(file, priority));
        switched.inspect_err(|errno| {
            let why = reason(*errno);
            println!("uvm: can't swap on {device}{why} ({errno:?}), so nothing is started");
        })?;
    }
    Ok(())
}

fn reason(errno: Errno) -> &'static str {
    match errno {
        ENOENT | ENXIO => ": there is no such disk",
        EINVAL => ": there is no swap area on it that this kernel can use",
        EBUSY => ": it is in use",
        ENOMEM => ": there is as much swap already as this memory can have",
        EIO => ": it can't be read",
        _ => "",
    }
}

/// Swaps on a file from now on. Areas with a higher priority fill first; without one it comes after
/// all others.
pub fn on(file: Arc<File>, priority: Option<i16>) -> Result<()> {
    let kind = file.inode().kind();
    if !matches!(kind, Kind::Block | Kind::File) {
        return Err(EINVAL);
    }
    let mut areas = AREAS.lock();
    if areas.iter().any(|area| same_place(area.file.inode(), file.inode())) {
        return Err(EBUSY);
    }
    let extents = file.io().stored().ok_or(EINVAL)?.swap_extents()?;
    let lowest = areas.iter().map(|area| area.priority).min().unwrap_or(0).min(FIRST_PRIORITY + 1);
    let priority = priority.unwrap_or(lowest.saturating_sub(1));
    let there = file.io().size() / PAGE_SIZE as u64;
    match switch_on(&extents, there, kind, priority) {
        Ok((id, pages)) => {
            areas.push(Area { file, id, pages, priority });
            Ok(())
        }
        Err(errno) => {
            release(&file);
            Err(errno)
        }
    }
}

/// Swaps on an area of `there` pages; returns how many of them are good.
fn switch_on(extents: &[Extent], there: u64, kind: Kind, priority: i16) -> Result<(SwapId, u64)> {
    let first = extents.first().filter(|first| first.page == 0 && first.pages > 0).ok_or(EINVAL)?;
    let mut page = vec![0; PAGE_SIZE];
    first.disk.read(first.sector, &mut page)?;
    let header = Header::parse(&page).ok_or(EINVAL)?;
    if header.last_page >= there || kind == Kind::File && !header.bad.is_empty() {
        return Err(EINVAL);
    }
    let mut runs = runs(extents, &header);
    let room = vm::swap_room();
    let pages: u64 = runs.iter().map(|run| u64::from(run.slots)).sum();
    if pages > room {
        println!(
            "uvm: {} KiB of {} KiB are swapped on, all that this memory can keep track of",
            room * 4,
            pages * 4
        );
        runs.retain(|run| u64::from(run.slot) < room);
        if let Some(last) = runs.last_mut() {
            last.slots = last.slots.min((room - u64::from(last.slot)) as u32);
        }
    }
    let pages = pages.min(room);
    let id = vm::swap_on(Arc::new(Slots::new(Box::from(runs))), priority)?;
    Ok((id, pages))
}

/// Gives a file's extents back.
fn release(file: &File) {
    if let Some(stored) = file.io().stored() {
        stored.swap_release();
    }
}

/// Brings everything home that is on a file, and swaps on it no more.
pub fn off(file: &File) -> Result<()> {
    let find =
        |areas: &[Area]| areas.iter().position(|area| same_place(area.file.inode(), file.inode()));
    let id = {
        let areas = AREAS.lock();
        areas[find(&areas).ok_or(EINVAL)?].id
    };
    vm::swap_off(id)?;
    let mut areas = AREAS.lock();
    let at = areas.iter().position(|area| area.id == id).ok_or(EINVAL)?;
    let area = areas.remove(at);
    release(&area.file);
    Ok(())
}

/// `/proc/swaps`: sizes in KiB.
pub fn table() -> String {
    let mut out = String::from("Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n");
    let uses = vm::swap_list();
    for area in AREAS.lock().iter() {
        let used = uses.iter().find(|one| one.id == area.id).map_or(0, |one| one.used);
        let name = escaped(&area.file.path());
        let kind = if area.file.inode().kind() == Kind::Block { "partition" } else { "file\t" };
        let column = |kib: u64| format!("{kib}{}", if kib < 10_000_000 { "\t" } else { "" });
        let (size, used) = (column(area.pages * 4), column(used * 4));
        let _ = writeln!(out, "{name:<39} {kind}\t{size}\t{used}\t{}", area.priority);
    }
    out
}
