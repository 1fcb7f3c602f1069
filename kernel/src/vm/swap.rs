//! Swap areas as the VM system drives them: slots on disks.
//!
//! An area is the pages of a disk, or of a file on one, that may hold swapped data: a list of runs,
//! found once, so that a transfer knows its sectors without asking a file system. Transfers are
//! started here and end in the disk's interrupt, which tells the VM system. Nothing is allocated on
//! the way.
//!
//! I1: runs lie one behind the other in slots, the first at slot 0, none empty.

use alloc::boxed::Box;
use alloc::sync::Arc;

use machine::order::Nothing;
use machine::{Held, PageNo};
use uvm::swap::zram::{Zram, ZramInfo, ZramOn};
use uvm::{Outcome, SwapDevice, SwapError, Transfer};

use super::system::{system, with};
use crate::arch::machine::KernelMachine;
use crate::dev::block::{Disk, Done, Op, SECTOR};
use crate::errno::{Errno, Result, EBUSY, EINVAL, EIO, ENOMEM, EPERM};
use crate::sync::{Mutex, SpinLock};

pub use uvm::SwapId;

const SECTORS_PER_PAGE: u64 = (machine::PAGE_SIZE / SECTOR) as u64;

/// Slots that lie together on a disk.
pub struct Run {
    /// The first of them.
    pub slot: u32,
    /// How many.
    pub slots: u32,
    pub disk: Arc<Disk>,
    /// Where the first lies.
    pub sector: u64,
}

/// See the module.
pub struct Area {
    runs: Box<[Run]>,
}

/// An area in use.
pub struct SwapUse {
    pub id: SwapId,
    /// Pages with data.
    pub used: u64,
}

impl Area {
    /// The area of these runs, which are as I1 says.
    pub fn new(runs: Box<[Run]>) -> Area {
        Area { runs }
    }

    fn transfer(&self, op: Op, slot: u32, pages: &[PageNo]) -> Transfer {
        let mut done = 0;
        while done < pages.len() {
            let at = slot + done as u32;
            let index = self.runs.partition_point(|run| run.slot + run.slots <= at);
            let started = self.runs.get(index).ok_or(EIO).and_then(|run| {
                let inside = at - run.slot;
                let count = ((run.slots - inside) as usize)
                    .min(run.disk.max_pages())
                    .min(pages.len() - done);
                let sector = run.sector + u64::from(inside) * SECTORS_PER_PAGE;
                let told = Done { call: ended, token: u64::from(op == Op::Write) };
                run.disk.submit(op, sector, &pages[done..done + count], told).map(|()| count)
            });
            match started {
                Ok(count) => done += count,
                Err(_) if done == 0 => return Transfer::Failed,
                Err(error) => {
                    ended(u64::from(op == Op::Write), &pages[done..], Err(error));
                    break;
                }
            }
        }
        Transfer::Started
    }
}

/// Part of a transfer has ended; `write` is 0 or 1.
fn ended(write: u64, pages: &[PageNo], result: Result<()>) {
    let outcome = if result.is_ok() { Outcome::Done } else { Outcome::Failed };
    with(|uvm, held| {
        if write == 0 {
            uvm.read_done(held, pages, outcome);
        } else {
            uvm.write_done(held, pages, outcome);
        }
    });
}

impl SwapDevice<KernelMachine> for Area {
    fn slots(&self) -> u32 {
        self.runs.last().map_or(0, |run| run.slot + run.slots)
    }

    fn read(
        &self,
        _machine: &KernelMachine,
        _: &mut Held<'_, Nothing>,
        slot: u32,
        pages: &[PageNo],
    ) -> Transfer {
        self.transfer(Op::Read, slot, pages)
    }

    fn write(
        &self,
        _machine: &KernelMachine,
        _: &mut Held<'_, Nothing>,
        slot: u32,
        pages: &[PageNo],
    ) -> Transfer {
        self.transfer(Op::Write, slot, pages)
    }
}

/// The device of compressed pages while it is on, and who may change that.
static ZRAM: SpinLock<ZramOn<KernelMachine>> = SpinLock::new(None);
static ZRAM_CHANGES: Mutex<()> = Mutex::new(());

/// What the device of compressed pages holds.
pub(super) fn zram() -> ZramInfo {
    let on = ZRAM.lock().clone();
    on.map_or_else(ZramInfo::default, |(device, _)| with(|_, held| device.info(held)))
}

/// Slots of all areas, and slots in use: those of compressed pages, which are memory, don't count.
pub(super) fn space() -> (u32, u32) {
    let (slots, used) = system().swap_space();
    let zram = ZRAM.lock().as_ref().map_or(0, |(device, _)| device.slots());
    (slots.saturating_sub(zram), used.saturating_sub(self::zram().pages))
}

/// Gives compressed pages a share of memory, in percent.
pub(super) fn set_zram(percent: u8) -> Result<()> {
    let _alone = ZRAM_CHANGES.lock();
    let mut on = ZRAM.lock().clone();
    let result = with(|uvm, held| Zram::set_share(uvm, held, &mut on, percent));
    let old = core::mem::replace(&mut *ZRAM.lock(), on);
    drop(old);
    result.map_err(errno)
}

/// As swapon(2) and swapoff(2) say it.
pub(super) fn errno(error: SwapError) -> Errno {
    match error {
        SwapError::Empty | SwapError::NotFound => EINVAL,
        SwapError::TooMuch | SwapError::NoMemory => ENOMEM,
        SwapError::TooMany => EPERM,
        SwapError::Busy => EBUSY,
        SwapError::Io => EIO,
    }
}
