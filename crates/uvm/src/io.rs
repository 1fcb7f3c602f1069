//! How I/O is started and how it ends.
//!
//! ```text
//!   attempt, locks held      allocate pages, mark them BUSY, give them to their owner, chain them  -> ReadRequest
//!   outermost loop, nothing  collect the chain, call the pager or the swap device                  -> Transfer
//!   completion, nothing      look at each page's owner, lock it, end the I/O, wake threads that wait
//! ```
//! A file system may have to sleep to find its blocks, so I/O is started by the loop that runs the
//! attempts and holds nothing ([`Stop::Read`](crate::Stop)). An attempt that succeeds may leave a
//! [`ReadRequest`] behind as well: read-ahead, for which no thread waits.
//!
//! What belongs to a page under I/O is said by its record alone, so a completion needs no request
//! structure, and paging allocates none.
//!
//! I1: a page of a chain is BUSY, on no queue, in no translation, and its owner's or an orphan. I2:
//! a thread that makes a page BUSY for I/O sees to it that [`Uvm::read_done`] or
//! [`Uvm::write_done`] is called for it once. I3: a page that is written is CLEAN from the start: a
//! store meanwhile clears CLEAN or sets the pmap's modified bit, and a write that fails clears
//! CLEAN. I4: an owner that goes while I/O has its page makes it an `Owner::Orphan`, with a
//! wiring that is the I/O's: the last wiring to go frees it.
//!
//! The road not taken is starting I/O under the owner's lock, which asks of every file system that
//! it never sleep.

use machine::lines::Ordering::Relaxed;

use arrayvec::ArrayVec;

use machine::{Channel, Machine, PageNo, Pages};

use crate::page::{Frames, Slot};
use crate::Uvm;

/// The most pages of one read.
pub const CLUSTER: usize = 64;

/// Pages that reading ahead leaves to users: a thread that reads a page to copy it needs another
/// beside it, or the page daemon makes room by taking the first, for ever.
pub(crate) const FOR_COPIES: usize = 2;

/// What became of a transfer that a host was asked for.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// struct Full;
///
/// impl Vnode<SoftMachine> for Full {
///     fn read(&self, machine: &SoftMachine, _: Pages, pages: &[PageNo]) -> Transfer {
///         pages.iter().for_each(|&page| machine.zero(page));
///         Transfer::Done
///     }
///     fn write(&self, _: &SoftMachine, _: Pages, _: &[PageNo]) -> Transfer {
///         Transfer::Failed
///     }
/// }
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transfer {
    /// It has been made.
    Done,
    /// It is on its way: the host calls [`Uvm::read_done`] or [`Uvm::write_done`] for each page,
    /// once.
    Started,
    /// It can't be made.
    Failed,
}

/// How a transfer that was [`Started`](Transfer::Started) ended.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// /// What a disk's interrupt handler does, with nothing locked.
/// fn ended(uvm: &System, held: &mut Held<'_, Nothing>, pages: &[PageNo], error: u32) {
///     let outcome = if error == 0 { Outcome::Done } else { Outcome::Failed };
///     uvm.read_done(held, pages, outcome);
/// }
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The bytes are there.
    Done,
    /// The bytes are there, but zeroes in pages that were read have no room in their file yet, and
    /// it may be full: before a program stores to such a page through a mapping,
    /// [`fill_hole`](crate::Vnode::fill_hole) is asked.
    Hole,
    /// They are not. Said of several pages at once it means that one of them, at least, could not
    /// be read or written.
    Failed,
}

/// Where the pages of a chain are read from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// A pager's data; the first page's index, the others follow.
    Object { id: u32, index: Pages },
    /// Swap; the first page's slot, the others follow.
    Swap(Slot),
}

/// Pages that wait for their read to be started: a chain through their records.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let file = file(uvm, held, "text", 4)?;
/// let got = {
///     let (mut body, mut h) = file.object().lock(held);
///     file.get(uvm, &mut body, &mut h, Pages(0), Access::PAGE)
/// };
/// assert!(matches!(got, Err(GetError::Read(_))), "the thread is to start a read");
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadRequest {
    head: PageNo,
    from: Source,
}

impl ReadRequest {
    /// A read of busy pages that follow one another; none if there is no page.
    pub(crate) fn new<M: Machine>(
        frames: &Frames<M>,
        from: Source,
        pages: &[PageNo],
    ) -> Option<ReadRequest> {
        let nexts = pages.iter().skip(1).map(|&next| Some(next)).chain([None]);
        pages.iter().zip(nexts).for_each(|(&page, next)| frames.chain(page, next));
        Some(ReadRequest { head: *pages.first()?, from })
    }

    /// Its pages, in order, and where they are read from.
    pub(crate) fn take<M: Machine>(
        self,
        frames: &Frames<M>,
    ) -> (ArrayVec<PageNo, CLUSTER>, Source) {
        let chain = core::iter::successors(Some(self.head), |&page| frames.chained(page));
        (chain.collect(), self.from)
    }
}

/// Which way a transfer went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// A transfer that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ended {
    pub(crate) direction: Direction,
    pub(crate) outcome: Outcome,
    /// Pages that ended together.
    pub(crate) pages: usize,
}

impl<M: Machine> Uvm<M> {
    /// Counts pages that have been made busy to be read as coming in, before their owner's lock
    /// goes: between this and the transfer's start a thread that was refused memory would find
    /// nothing to take, and nothing to wait for.
    pub(crate) fn read_prepared(&self, pages: usize) {
        self.coming_in.fetch_add(pages, Relaxed);
    }

    /// Counts pages that were written to be freed as under way, before their write is started.
    pub(crate) fn pageout_started(&self, pages: usize) {
        self.in_flight.fetch_add(pages, Relaxed);
    }

    /// The write of pages that were to be freed has ended: threads that wait for memory look again.
    pub(crate) fn pageout_ended(&self, pages: usize) {
        if pages != 0 {
            self.in_flight.fetch_sub(pages, Relaxed);
            self.mem().wake(Channel::MEMORY);
        }
    }
}
