//! What `/proc` and swapon show and set of the VM system.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;

use machine::PageNo;
use uvm::page::Class;
use uvm::{Outcome, SwapDevice};

use super::system::{system, with};
use super::{daemon, Asks, Stats, SwapId};
use crate::charge;
use crate::errno::{Result, EINVAL};
use crate::mem::frames::KernelMachine;
use crate::sched;

/// One of so many pages is left free by a new process of root's, and by one of another user and a
/// file in memory, which leave enough for root's.
const PROCESS_LEAVES: usize = 64;
const FILE_LEAVES: usize = 32;

/// Swaps on an area from now on; those of higher priority fill first.
pub fn swap_on(area: Arc<dyn SwapDevice<KernelMachine>>, priority: i16) -> Result<SwapId> {
    let id = with(|uvm, held| uvm.swap_on(held, area, priority)).map_err(super::swap::errno)?;
    charge::set_swap(super::swap::space().0);
    Ok(id)
}

/// Brings home what is on an area, and swaps on it no more: `ENOMEM` if that has no room.
pub fn swap_off(id: SwapId) -> Result<()> {
    with(|uvm, held| uvm.swap_off(held, id)).map_err(super::swap::errno)?;
    charge::set_swap(super::swap::space().0);
    Ok(())
}

/// What a transfer of an area's device was.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum SwapTransfer {
    /// From the device.
    Read,
    /// To the device.
    Write,
}

/// A transfer of these pages that a device of an area has started has ended; called in interrupt
/// context, too.
pub fn swap_transfer_ended(what: SwapTransfer, pages: &[PageNo], result: Result<()>) {
    let outcome = if result.is_ok() { Outcome::Done } else { Outcome::Failed };
    with(|uvm, held| match what {
        SwapTransfer::Read => uvm.read_done(held, pages, outcome),
        SwapTransfer::Write => uvm.write_done(held, pages, outcome),
    });
}

/// An area in use.
pub struct SwapUse {
    pub id: SwapId,
    /// Pages with data.
    pub used: u64,
}

/// Pages that areas may have beside those in use.
pub fn swap_room() -> u64 {
    system().swap_room()
}

/// The areas in use.
pub fn swap_list() -> Vec<SwapUse> {
    let areas = with(|uvm, held| uvm.swap_info(held));
    areas.iter().map(|area| SwapUse { id: area.id, used: u64::from(area.used) }).collect()
}

/// Pages of memory, and of the swap devices.
pub fn memory_and_swap() -> (u64, u64) {
    let uvm = system();
    (uvm.frames().total() as u64, u64::from(uvm.swap_space().0))
}

/// Counts.
pub fn stats() -> Stats {
    let uvm = system();
    let frames = uvm.frames();
    let (zram, (slots, used)) = (super::swap::zram(), super::swap::space());
    Stats {
        total_pages: frames.total() as u64,
        free_pages: frames.free() as u64,
        low_water: frames.low_water() as u64,
        swap_pages: u64::from(slots),
        swap_used: u64::from(used),
        zswap_frames: u64::from(zram.frames),
        zswap_pages: u64::from(zram.pages),
        zswap_events: [
            ("zswpout", zram.stored),
            ("zswpin", zram.read),
            ("zswpreject", zram.too_large),
        ],
        events: uvm::COUNTERS.map(|(counter, name)| (name, uvm.stat().get(counter))),
    }
}

/// The least and the most share of memory that a kind of pages is to have, in percent.
pub fn shares(class: Class) -> (u8, u8) {
    system().knobs().shares(class)
}

/// Sets the shares of a class: `EINVAL` for shares that can't be.
pub fn set_shares(class: Class, least: u8, most: u8) -> Result<()> {
    system().knobs().set_shares(class, least, most).map_err(|_| EINVAL)
}

/// The share of memory that compressed pages may have, in percent; 0 if none are kept.
pub fn zswap() -> u8 {
    super::swap::zram().percent
}

/// Sets that share: `EINVAL` for too much, `ENOMEM` if what is compressed does not fit elsewhere.
pub fn set_zswap(percent: u8) -> Result<()> {
    if percent > uvm_zram::MOST_ZRAM {
        return Err(EINVAL);
    }
    super::swap::set_zram(percent)
}

/// Whether a fault brings in and maps what lies around its page.
pub fn neighbours() -> bool {
    system().knobs().fault_around()
}

/// Sets that.
pub fn set_neighbours(on: bool) {
    system().knobs().set_fault_around(on);
}

/// How many mappings a space may have.
pub fn most_mappings() -> usize {
    system().knobs().most_entries()
}

/// Sets that.
pub fn set_most_mappings(most: usize) {
    system().knobs().set_most_entries(most);
}

/// Below how many free pages the page daemon runs, and until how many are free.
pub fn water_marks() -> (usize, usize) {
    let frames = system().frames();
    (frames.low_water(), frames.high_water())
}

/// Sets how many pages are free before the page daemon runs: `EINVAL` for most of memory, and for
/// less than the kernel keeps for itself.
pub fn set_low_water(pages: u64) -> Result<()> {
    let frames = system().frames();
    if pages > frames.total() as u64 / 4 {
        return Err(EINVAL);
    }
    let (low, (old_low, old_high)) = (pages as usize, water_marks());
    frames.set_water_marks(low, low + (old_high - old_low));
    if frames.low_water() != low {
        frames.set_water_marks(old_low, old_high);
        return Err(EINVAL);
    }
    Ok(())
}

/// Starts what frees memory before it runs out.
pub fn start_daemon() -> Result<()> {
    daemon::start()
}

/// Leaves some memory for requests that count more than `who`'s: `ENOMEM` if so little is left that
/// `who`'s should be refused.
pub fn leave_memory(who: Asks) -> Result<()> {
    let fraction = match who {
        Asks::Process => PROCESS_LEAVES,
        Asks::OtherProcess | Asks::File => FILE_LEAVES,
    };
    match (daemon::keep_free(fraction), who) {
        // A process that has most of memory, and asks for no more, would keep all others from
        // beginning anything.
        (Err(_), Asks::Process | Asks::OtherProcess) => {
            Ok(for_new(|| daemon::make_free(fraction))?)
        }
        (result, _) => Ok(result?),
    }
}

/// Runs `ask`, which asks for memory for a process, a file or the like that isn't there yet: if
/// memory runs out, `ask` is refused where its own user has most of what there is, and no process
/// is killed for it.
fn for_new<T>(ask: impl FnOnce() -> T) -> T {
    let task = sched::current();
    task.asks_for_new.store(true, Relaxed);
    let result = ask();
    task.asks_for_new.store(false, Relaxed);
    result
}
