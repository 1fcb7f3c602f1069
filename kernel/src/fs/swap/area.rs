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

use crate::block::{Disk, Done, Op, SECTOR};
use crate::errno::{Result, EIO};
use crate::mem::frames::KernelMachine;
use crate::vm::{self, SwapDevice, SwapTransfer, Transfer};
use machine::order::Nothing;
use machine::{Held, PageNo};

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
    let what = if write == 0 { SwapTransfer::Read } else { SwapTransfer::Write };
    vm::swap_transfer_ended(what, pages, result);
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
