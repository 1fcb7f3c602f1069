//! Bytes between programs' memory and chains: copied, or loaned.
//!
//! ```text
//!   write   .....PPPP|PPPPPPPP|PPPPPPPP|PPP....      copied | loaned | loaned | copied
//! ```
//! Whole pages of a large write are loaned: the chain refers to the program's own pages, which
//! change no more (`uvm::loan`). What is smaller, and what is left at both ends, is copied. From
//! which size on that pays was measured: see docs/moving.md.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use mbuf::{NoMemory, Pages, Room, PAGE_SIZE};

use super::frame::Frame;
use super::{append_loaned, Chain, Clusters, Run};
use crate::arch::io;
use crate::arch::layout::USER_END;
use crate::charge::{self, Charge, Full};
use crate::errno::*;
use crate::mem::fault;
use crate::sched;
use crate::uio::{Sink, Source};
use crate::vm::{self, Loan, LoanedPage, Space};

/// Bytes from which a mechanism is used.
pub struct Threshold {
    pub from: AtomicUsize,
    pub usual: usize,
}

impl Threshold {
    const fn new(usual: usize) -> Threshold {
        Threshold { from: AtomicUsize::new(usual), usual }
    }

    /// Whether so many bytes are enough.
    #[inline]
    pub fn allows(&self, bytes: usize) -> bool {
        bytes >= self.from.load(Relaxed)
    }

    /// The least pages; one at least.
    fn pages(&self) -> usize {
        self.from.load(Relaxed).div_ceil(PAGE_SIZE).max(1)
    }

    /// What a write of `bytes` loans where there is room for `room`. One that finds room is copied:
    /// its writer goes on, and may store into what is not read yet, which costs more than a copy.
    /// One that doesn't waits for the reader anyway.
    pub fn loans(&self, bytes: usize, room: usize) -> Loans {
        if self.allows(PAGE_SIZE) {
            Loans::Pages
        } else if bytes > room && self.allows(bytes) {
            Loans::Runs
        } else {
            Loans::Nothing
        }
    }
}

/// What a write loans of what it has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Loans {
    Nothing,
    /// Pages in a row; single ones are copied sooner.
    Runs,
    /// All whole pages.
    Pages,
}

/// From how many bytes on a write loans its whole pages.
pub static LOAN: Threshold = Threshold::new(16 * PAGE_SIZE);
/// Like [`LOAN`], for pipes.
pub static PIPE_LOAN: Threshold = Threshold::new(16 * PAGE_SIZE);
/// From how many bytes on a read takes the pages that it finds, if no program is going to write
/// them, in place of copies.
pub static RECEIVE: Threshold = Threshold::new(16 * PAGE_SIZE);

/// Puts up to `most` bytes of `from` behind what `chain` has.
///
/// Fails with `EFAULT` or `ENOBUFS`, after what could be taken.
pub fn append(chain: &mut Chain, from: &mut Source<'_>, most: usize, loans: Loans) -> Result<()> {
    let end = from.done() + most.min(from.left());
    while from.done() < end {
        let left = end - from.done();
        let part = match pages_ahead(from, left, loans) {
            Some((0, addr, pages)) => {
                if loan(chain, from, addr, pages)? {
                    continue;
                }
                // The pages can't be read, as a copy will find out; or memory is short.
                left
            }
            Some((before, ..)) => before,
            None => left,
        };
        copy(chain, from, part)?;
    }
    Ok(())
}

/// Whole pages among the next `left` bytes that are worth loaning: how many bytes come before,
/// where they are, how many.
fn pages_ahead(from: &Source<'_>, left: usize, loans: Loans) -> Option<(usize, u64, usize)> {
    let fewest = match loans {
        Loans::Nothing => return None,
        Loans::Runs => 2,
        Loans::Pages => 1,
    };
    let (addr, len) = from.run()?;
    let before = addr.wrapping_neg() as usize % PAGE_SIZE;
    let pages = len.min(left).checked_sub(before)? / PAGE_SIZE;
    (pages >= fewest).then_some((before, addr + before as u64, pages))
}

/// Loans pages to a chain; says no if they can't be loaned.
fn loan(chain: &mut Chain, from: &mut Source<'_>, addr: u64, pages: usize) -> Result<bool> {
    if addr.checked_add((pages * PAGE_SIZE) as u64).is_none_or(|end| end > USER_END) {
        return Ok(false);
    }
    let Some(space) = space() else { return Ok(false) };
    let Ok(loan) = vm::loan(&space, addr, pages as u64) else { return Ok(false) };
    let len = loan.len() * PAGE_SIZE;
    append_loaned(chain, loan, 0..len)?;
    from.skip(len);
    Ok(true)
}

/// Copies `len` bytes of `from` behind what `chain` has.
fn copy(chain: &mut Chain, from: &mut Source<'_>, len: usize) -> Result<()> {
    let end = from.done() + len;
    while from.done() < end {
        let left = end - from.done();
        let room = chain.room(&Clusters, left).map_err(|NoMemory| ENOBUFS)?;
        let n = room.len().min(left);
        match super::copy_in(from, room.part(0..n)) {
            Ok(n) => chain.wrote(&Clusters, n),
            Err(errno) => {
                chain.wrote(&Clusters, 0);
                return Err(errno);
            }
        }
    }
    Ok(())
}

/// Puts `len` bytes of whole pages from `addr` on behind what `chain` has, without copying; fewer
/// if not all can be read.
///
/// Fails with `EFAULT` if the first can't be, with `ENOBUFS`.
pub fn loan_pages(chain: &mut Chain, space: &Space, addr: u64, len: usize) -> Result<()> {
    let mut pages = pages_of(addr, len)?;
    let loan = loop {
        match vm::loan(space, addr, pages) {
            Err(EFAULT) if pages > 1 => pages /= 2,
            result => break result?,
        }
    };
    let len = len.min(loan.len() * PAGE_SIZE);
    append_loaned(chain, loan, 0..len)
}

/// Like [`loan_pages`], of pages that leave the program, of which [`take_back`] gives the program
/// back what is left. Says no if they must be loaned.
///
/// Fails with `EFAULT`, `ENOBUFS`.
pub fn give_pages(chain: &mut Chain, space: &Space, addr: u64, len: usize) -> Result<bool> {
    let Some(loan) = vm::give(space, addr, pages_of(addr, len)?)? else { return Ok(false) };
    let len = len.min(loan.len() * PAGE_SIZE);
    let appended = chain.append_run(Run::Loan(loan), 0..len);
    appended.map(|()| true).map_err(|(NoMemory, run)| {
        if let Run::Loan(loan) = run {
            vm::put_back(space, loan, addr);
        }
        ENOBUFS
    })
}

/// Charges the running process for pages in its hands, which are in no queue while it waits for
/// room in one, and need not be in its memory any more.
///
/// # Errors
/// `ENOBUFS`: it has all that it may.
pub fn hold(chain: &Chain) -> Result<Charge> {
    charge::take(chain.memory()).map_err(|Full| ENOBUFS)
}

/// How many pages so many bytes are that begin at a page's start.
fn pages_of(addr: u64, len: usize) -> Result<u64> {
    let pages = len.div_ceil(PAGE_SIZE);
    let end = addr.checked_add((pages * PAGE_SIZE) as u64);
    end.filter(|&end| end <= USER_END).map(|_| pages as u64).ok_or(EFAULT)
}

/// Puts what is left of a chain of [given pages](give_pages) back where the program had it: whole
/// pages from `addr` on.
pub fn take_back(mut chain: Chain, space: &Space, addr: u64) {
    let mut at = addr;
    let _ = chain.try_each_run(|run| {
        let pages = run.pages();
        // Nothing may be lost: a process is ended before this fails.
        if let Ok(loan) = vm::with_room_at_any_cost(|| vm::loan_all_again(pages.iter())) {
            vm::put_back(space, loan, at);
        }
        at += (pages.len() * PAGE_SIZE) as u64;
        Ok::<(), Errno>(())
    });
    chain.release(&Clusters);
}

/// Bytes that lie together in pages that were made of a chain.
pub struct Piece {
    /// From the first page's start.
    pub offset: usize,
    pub len: usize,
}

/// Makes a chain whole pages, in at most `most` pieces: pages of which every byte counts stay what
/// they are, the others are copied, with zeroes behind.
///
/// Fails with `ENOBUFS` and the chain, as far as memory allows.
pub fn to_pages(
    mut chain: Chain,
    most: usize,
) -> core::result::Result<(Loan, Vec<Piece>), (Errno, Chain)> {
    let mut made = Made { pages: Vec::new(), open: None, pieces: Vec::new() };
    while !chain.is_empty() {
        if made.add(&mut chain, most).is_err() {
            let (pages, pieces) = made.end();
            let mut front = from_pages(pages, &pieces);
            if let Err((_, rest)) = front.join(chain) {
                rest.release(&Clusters);
            }
            return Err((ENOBUFS, front));
        }
    }
    Ok(made.end())
}

/// The way back from [`to_pages`], as far as memory allows.
pub fn from_pages(mut loan: Loan, pieces: &[Piece]) -> Chain {
    let mut chain = Chain::new();
    for piece in pieces {
        let Ok(rest) = loan.try_split_off(piece.len.div_ceil(PAGE_SIZE)) else { break };
        let run = core::mem::replace(&mut loan, rest);
        if append_loaned(&mut chain, run, 0..piece.len).is_err() {
            break;
        }
    }
    vm::give_back(loan);
    chain
}

/// Pages under way.
struct Made {
    pages: Vec<LoanedPage>,
    /// The page behind those, which has room.
    open: Option<Frame>,
    pieces: Vec<Piece>,
}

impl Made {
    fn end(mut self) -> (Loan, Vec<Piece>) {
        self.close();
        (self.pages.into_iter().collect(), self.pieces)
    }

    /// What comes next begins at a page; room for that was made when the page was.
    fn close(&mut self) {
        self.pages.extend(self.open.take().map(Frame::into_page));
    }

    /// Adds a part of the chain.
    fn add(&mut self, chain: &mut Chain, most: usize) -> Result<()> {
        let is_whole = chain.first_run() > 0 || chain.first_page().is_some();
        if !is_whole || self.open.is_some() && self.pieces.len() == most {
            return self.copy(chain);
        }
        self.close();
        self.reserve(chain.first_run() / PAGE_SIZE)?;
        if let Some(Run::Loan(loan)) = chain.take_run(&Clusters).map_err(|NoMemory| ENOBUFS)? {
            self.count(loan.len() * PAGE_SIZE);
            self.pages.extend(loan.into_pages());
        } else if let Some(frame) = chain.take_page() {
            self.count(PAGE_SIZE);
            self.pages.push(frame.into_page());
        }
        Ok(())
    }

    /// Makes room for so many pages more, besides a single one.
    fn reserve(&mut self, pages: usize) -> Result<()> {
        fault::attempt(|| self.pages.try_reserve(pages + 1)).map_err(|_| ENOBUFS)?;
        fault::attempt(|| self.pieces.try_reserve(1)).map_err(|_| ENOBUFS)
    }

    /// Counts bytes at the start of the page that comes next.
    fn count(&mut self, len: usize) {
        let offset = self.pages.len() * PAGE_SIZE;
        match self.pieces.last_mut() {
            Some(last) if last.offset + last.len == offset => last.len += len,
            _ => self.pieces.push(Piece { offset, len }),
        }
    }

    /// Copies bytes that lie together into the page that has room, or a new one, with zeroes behind
    /// them.
    fn copy(&mut self, chain: &mut Chain) -> Result<()> {
        if self.open.is_none() {
            self.reserve(0)?;
            let frame = Clusters.alloc().map_err(|NoMemory| ENOBUFS)?;
            frame.bytes().zero_page();
            self.count(0);
            self.open = Some(frame);
        }
        let (Some(frame), Some(piece)) = (&mut self.open, self.pieces.last_mut()) else {
            return Err(ENOBUFS);
        };
        let used = piece.offset + piece.len - self.pages.len() * PAGE_SIZE;
        let bytes = chain.first();
        let n = bytes.len().min(PAGE_SIZE - used);
        Clusters.copy(bytes.part(0..n), Room::Page(frame, used..used + n));
        piece.len += n;
        chain.trim_front(&Clusters, n);
        if used + n == PAGE_SIZE {
            self.close();
        }
        Ok(())
    }
}

/// Bytes copied before interrupts that wait are taken.
const STEP: usize = 64 * 1024;

/// Moves a chain's bytes out as far as there is room, and drops them from it: first as the pages
/// that they are on, as long as the reader has whole pages for them and that pays; then copied. The
/// caller holds no spin lock.
pub fn pour(chain: &mut Chain, to: &mut Sink<'_>) -> Result<()> {
    while hand_over(chain, to) {}
    let mut next = to.done() + STEP;
    chain.consume(&Clusters, |bytes| {
        let n = super::copy_out(to, bytes)?;
        if to.done() >= next {
            io::interrupt_window();
            next += STEP;
        }
        Ok::<usize, Errno>(n)
    })?;
    // A piece that could not be put whole ends the walk, too: behind it nothing may be taken.
    if to.left() > 0 && !chain.is_empty() {
        return Err(EFAULT);
    }
    Ok(())
}

/// Gives the reader the pages that come first as they are. Says no if they had better be copied.
#[inline]
fn hand_over(chain: &mut Chain, to: &mut Sink<'_>) -> bool {
    RECEIVE.allows(to.left().min(chain.first_run())) && hand_over_run(chain, to)
}

#[cold]
fn hand_over_run(chain: &mut Chain, to: &mut Sink<'_>) -> bool {
    let (Some((addr, room)), Some((Run::Loan(loan), whole))) = (to.whole_pages(), chain.peek_run())
    else {
        return false;
    };
    let Some(space) = space() else { return false };
    let pages = &loan.pages()[whole];
    let pages = &pages[..pages.len().min(room as usize)];
    let count = vm::worth_remapping(&space, pages, RECEIVE.pages());
    if count == 0 {
        return false;
    }
    let len = count * PAGE_SIZE;
    let Ok(rest) = chain.split_at(&Clusters, len) else { return false };
    let front = core::mem::replace(chain, rest);
    match receive(front, &space, addr) {
        Ok(()) => {
            to.skip(len);
            true
        }
        Err(mut front) => {
            core::mem::swap(chain, &mut front);
            // Nothing may be lost: a process is ended before this fails.
            let _ =
                vm::with_room_at_any_cost(|| chain.take_from(&Clusters, &mut front, usize::MAX));
            front.release(&Clusters);
            false
        }
    }
}

/// Gives a program a chain that is one run of whole pages.
///
/// # Errors
/// The chain again.
fn receive(mut chain: Chain, space: &Space, addr: u64) -> core::result::Result<(), Chain> {
    let Ok(Some(Run::Loan(loan))) = chain.take_run(&Clusters) else { return Err(chain) };
    let len = loan.len() * PAGE_SIZE;
    vm::receive(space, loan, addr).map_err(|loan| {
        // There is room for it where it was.
        let back = chain.append_run(Run::Loan(loan), 0..len);
        debug_assert!(back.is_ok(), "a piece takes the place of one that was taken");
        chain
    })
}

/// The running thread's address space.
fn space() -> Option<Arc<Space>> {
    sched::current().user()?.space()
}
