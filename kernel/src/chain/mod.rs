//! The pages of chains: clusters of the kernel's own, pages that programs loan, pages of files.

pub mod contents;
pub mod frame;
pub mod packets;
mod ring;
pub mod zero_copy;

use alloc::sync::Arc;
use core::ops::Range;

use mbuf::{Bytes, NoMemory, Pages, Room};

use self::frame::Frame;
use crate::arch::bytes::PageBytes;
use crate::errno::{Result, ENOBUFS};
use crate::mem::frames::KERNEL;
use crate::uio::{Sink, Source};
use crate::vm::{self, Export, Loan, LoanedPage};

/// A chain as the kernel has it.
pub type Chain = mbuf::Chain<Clusters>;

/// Where chains get their pages.
pub struct Clusters;

/// Pages in a row.
pub enum Run {
    /// On loan.
    Loan(Loan),
    /// Memory that a program has given away as it was: for one that takes it the same way. Only
    /// pipes hold such, and make a loan of it before anything else is done with it
    /// (`contents`).
    Range(Arc<Export>),
}

impl Run {
    /// Makes the run a loan.
    ///
    /// # Errors
    /// `ENOBUFS`, and it is what it was.
    pub fn make_loaned(&mut self) -> Result<&mut Loan> {
        if let Run::Range(range) = self {
            *self = Run::Loan(range.loan().map_err(|_| ENOBUFS)?);
        }
        match self {
            Run::Loan(loan) => Ok(loan),
            Run::Range(_) => Err(ENOBUFS),
        }
    }

    /// The pages on loan; none of a range.
    pub fn pages(&self) -> &[LoanedPage] {
        match self {
            Run::Loan(loan) => loan.pages(),
            Run::Range(_) => &[],
        }
    }
}

/// Bytes of a chain, as the rest of the kernel copies them.
enum Seen<'a> {
    Here(&'a [u8]),
    Page(PageBytes),
}

/// Those bytes.
///
/// # Panics
/// If they are in a range, which is made a loan before it is read.
#[inline]
fn seen<'a>(bytes: Bytes<'a, Clusters>) -> Seen<'a> {
    let (page, range) = match bytes {
        Bytes::Here(bytes) => return Seen::Here(bytes),
        Bytes::Page(frame, range) => (frame.page(), range),
        Bytes::Run(run, page, range) => (&run.pages()[page], range),
    };
    Seen::Page(KERNEL.bytes(page.page()).part(range.start, range.len()))
}

/// Copies bytes of a chain out, as far as there is room; returns how many.
///
/// # Errors
/// `EFAULT`: not one.
#[inline]
pub fn copy_out(to: &mut Sink<'_>, bytes: Bytes<'_, Clusters>) -> Result<usize> {
    match seen(bytes) {
        Seen::Here(bytes) => to.put(bytes),
        Seen::Page(bytes) => to.put_bytes(bytes),
    }
}

/// Bytes of a chain as what a write takes.
pub fn source<'a>(bytes: Bytes<'a, Clusters>) -> Source<'a> {
    match seen(bytes) {
        Seen::Here(bytes) => Source::kernel(bytes),
        Seen::Page(bytes) => Source::page(bytes),
    }
}

/// Fills room of a chain, as far as there are bytes; returns how many.
///
/// # Errors
/// `EFAULT`: not one.
#[inline]
pub fn copy_in(from: &mut Source<'_>, room: Room<'_, Clusters>) -> Result<usize> {
    match room {
        Room::Here(room) => from.get(room),
        Room::Page(frame, range) => from.get_bytes(frame.bytes().part(range.start, range.len())),
    }
}

impl Pages for Clusters {
    type Page = Frame;
    type Run = Run;

    /// Makes room if memory is short, and so may sleep.
    fn alloc(&self) -> core::result::Result<Frame, NoMemory> {
        Frame::new().or_else(|_| vm::with_room(Frame::new))
    }

    #[inline]
    fn share(&self, page: &Frame) -> core::result::Result<Frame, NoMemory> {
        page.share()
    }

    #[inline]
    fn release(&self, page: Frame) {
        page.free();
    }

    #[inline]
    fn is_writable(&self, page: &Frame) -> bool {
        page.is_writable()
    }

    fn copy(&self, from: Bytes<'_, Self>, to: Room<'_, Self>) {
        match (seen(from), to) {
            (Seen::Here(from), Room::Here(to)) => to.copy_from_slice(from),
            (Seen::Page(from), Room::Here(to)) => from.copy_to(to),
            (Seen::Here(from), Room::Page(frame, range)) => {
                frame.bytes().part(range.start, range.len()).copy_from(from);
            }
            (Seen::Page(from), Room::Page(frame, range)) => {
                frame.bytes().part(range.start, range.len()).copy_between(from);
            }
        }
    }

    fn share_run(&self, run: &Run, pages: Range<usize>) -> core::result::Result<Run, NoMemory> {
        let pages = run.pages().get(pages).ok_or(NoMemory)?;
        loan_all_again(pages.len(), |index| &pages[index]).map(Run::Loan)
    }

    fn cut_run(&self, run: &mut Run, at: usize, both: bool) -> core::result::Result<Run, NoMemory> {
        let run = run.make_loaned().map_err(|_| NoMemory)?;
        let rest = run.try_split_off(at)?;
        if both {
            match rest.pages().first().and_then(vm::loan_again) {
                Some(page) => run.push(page),
                None => {
                    run.append(rest);
                    return Err(NoMemory);
                }
            }
        }
        Ok(Run::Loan(rest))
    }

    fn shrink_run(&self, run: &mut Run, kept: Range<usize>) {
        if let Run::Loan(loan) = run {
            vm::give_back_others(loan, kept);
        }
    }

    fn release_run(&self, run: Run) {
        if let Run::Loan(loan) = run {
            vm::give_back(loan);
        }
    }
}

/// One more loan of each of `count` pages.
///
/// # Errors
/// [`NoMemory`], also where one is loaned too often.
pub fn loan_all_again<'a>(
    count: usize,
    page: impl Fn(usize) -> &'a LoanedPage,
) -> core::result::Result<Loan, NoMemory> {
    let loan = vm::loan_all_again((0..count).map(page))?;
    if loan.len() < count {
        vm::give_back(loan);
        return Err(NoMemory);
    }
    Ok(loan)
}

/// Puts `range` of the bytes of pages on loan, which are just those, behind what a chain has; gives
/// them back if it can't.
///
/// # Errors
/// `ENOBUFS`.
pub fn append_loaned(chain: &mut Chain, loan: Loan, range: Range<usize>) -> Result<()> {
    if range.is_empty() {
        vm::give_back(loan);
        return Ok(());
    }
    chain.append_run(Run::Loan(loan), range).map_err(|(NoMemory, run)| {
        Clusters.release_run(run);
        ENOBUFS
    })
}
