//! Bytes between programs' memory and chains: copied, or lent.
//!
//! ```text
//!   write   .....PPPP|PPPPPPPP|PPPPPPPP|PPP....      copied | lent | lent | copied
//! ```
//! Whole pages of a large write are lent: the chain refers to the program's own pages, which change no more (`uvm::loan`). What is
//! smaller, and what is left at both ends, is copied. From which size on that pays was measured: see docs/moving.md.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use mbuf::{NoMemory, Pages, PAGE_SIZE};

use super::pages::{append_lent, Chain, Clusters};
use crate::arch::frame::Frame;
use crate::errno::*;
use crate::fs::io::{Sink, Source};
use crate::mem::layout::USER_END;
use crate::vm::{Lent, Space};
use crate::{proc, vm};

/// Bytes from which a mechanism is used.
pub struct Threshold {
    from: AtomicUsize,
    usual: usize,
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

    /// As text: bytes, or `never`.
    pub fn show(&self) -> alloc::string::String {
        match self.from.load(Relaxed) {
            usize::MAX => "never\n".into(),
            from => alloc::format!("{from}\n"),
        }
    }

    /// Takes bytes, `never` or `default`.
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn set(&self, text: &str) -> Result<()> {
        let from = match text.trim() {
            "never" => usize::MAX,
            "default" => self.usual,
            number => number.parse().map_err(|_| EINVAL)?,
        };
        self.from.store(from, Relaxed);
        Ok(())
    }
}

/// From how many bytes on a write lends its whole pages.
pub static LOAN: Threshold = Threshold::new(16 * PAGE_SIZE);
/// The same for pipes. Where the reader copies, a loan spares one copy of two, and 64 KiB of a buffer that was never touched cost
/// 30,100 instructions in place of 19,400: so not by itself.
pub static PIPE_LOAN: Threshold = Threshold::new(usize::MAX);
/// Pages that are lent together, at least: fewer are copied sooner.
const FEWEST: usize = 2;

/// Puts up to `most` bytes of `from` behind what `chain` has.
///
/// Fails with `EFAULT` or `ENOBUFS`, after what could be taken.
pub fn append(chain: &mut Chain, from: &mut Source<'_>, most: usize) -> Result<()> {
    let end = from.done() + most.min(from.left());
    while from.done() < end {
        let left = end - from.done();
        let part = match pages_ahead(from, left) {
            Some((0, addr, pages)) => {
                if lend(chain, from, addr, pages)? {
                    continue;
                }
                // They can't be read, as a copy will find out; or memory is short.
                left
            }
            Some((before, ..)) => before,
            None => left,
        };
        copy(chain, from, part)?;
    }
    Ok(())
}

/// Whole pages among the next `left` bytes that are worth lending: how many bytes come before, where they are, how many.
fn pages_ahead(from: &Source<'_>, left: usize) -> Option<(usize, u64, usize)> {
    // What has no room yet counts: it will come.
    if !LOAN.allows(from.left()) {
        return None;
    }
    let (addr, len) = from.run()?;
    let before = addr.wrapping_neg() as usize % PAGE_SIZE;
    let pages = len.min(left).checked_sub(before)? / PAGE_SIZE;
    let enough = pages >= FEWEST || LOAN.allows(PAGE_SIZE);
    (pages > 0 && enough).then_some((before, addr + before as u64, pages))
}

/// Lends pages to a chain; says no if they can't be lent.
fn lend(chain: &mut Chain, from: &mut Source<'_>, addr: u64, pages: usize) -> Result<bool> {
    if addr.checked_add((pages * PAGE_SIZE) as u64).is_none_or(|end| end > USER_END) {
        return Ok(false);
    }
    let Some(space) = proc::current_thread().space() else { return Ok(false) };
    let Ok(lent) = vm::lend(&space, addr, pages as u64) else { return Ok(false) };
    let before = chain.len();
    let result = append_lent(chain, lent);
    from.skip(chain.len() - before);
    result.map(|()| true)
}

/// Copies `len` bytes of `from` behind what `chain` has.
fn copy(chain: &mut Chain, from: &mut Source<'_>, len: usize) -> Result<()> {
    let end = from.done() + len;
    while from.done() < end {
        let left = end - from.done();
        let room = chain.room(&Clusters, left).map_err(|NoMemory| ENOBUFS)?;
        let n = room.len().min(left);
        match from.get(&mut room[..n]) {
            Ok(n) => chain.wrote(&Clusters, n),
            Err(errno) => {
                chain.wrote(&Clusters, 0);
                return Err(errno);
            }
        }
    }
    Ok(())
}

/// Puts `len` bytes of whole pages from `addr` on behind what `chain` has, without copying; fewer if not all can be read.
///
/// Fails with `EFAULT` if the first can't be, with `ENOBUFS`.
pub fn lend_pages(chain: &mut Chain, space: &Space, addr: u64, len: usize) -> Result<()> {
    let mut pages = len.div_ceil(PAGE_SIZE);
    let end = addr.checked_add((pages * PAGE_SIZE) as u64);
    if end.is_none_or(|end| end > USER_END) {
        return Err(EFAULT);
    }
    let lent = loop {
        match vm::lend(space, addr, pages as u64) {
            Err(EFAULT) if pages > 1 => pages /= 2,
            result => break result?,
        }
    };
    let pages = lent.len();
    append_lent(chain, lent)?;
    chain.trim_back(&Clusters, (pages * PAGE_SIZE).saturating_sub(len));
    Ok(())
}

/// Bytes that lie together in pages that were made of a chain.
pub struct Piece {
    /// From the first page's start.
    pub offset: usize,
    pub len: usize,
}

/// Makes a chain whole pages, in at most `most` pieces: pages of which every byte counts stay what they are, the others are copied,
/// with zeroes behind.
///
/// Fails with `ENOBUFS` and the chain, as far as memory allows.
pub fn to_pages(mut chain: Chain, most: usize) -> core::result::Result<(Lent, Vec<Piece>), (Errno, Chain)> {
    let mut made = Made { frames: Vec::new(), pieces: Vec::new() };
    while !chain.is_empty() {
        let done = match chain.first_page() {
            Some(_) if made.is_at_page() || made.pieces.len() < most => made.take(&mut chain),
            _ => made.copy(&mut chain),
        };
        if done.is_err() {
            let mut front = from_pages(made.frames.into_iter().map(Frame::into_page).collect(), &made.pieces);
            if let Err((_, rest)) = front.join(chain) {
                rest.release(&Clusters);
            }
            return Err((ENOBUFS, front));
        }
    }
    Ok((made.frames.into_iter().map(Frame::into_page).collect(), made.pieces))
}

/// The way back from [`to_pages`].
pub fn from_pages(lent: Lent, pieces: &[Piece]) -> Chain {
    let mut chain = Chain::new();
    for (index, page) in lent.into_pages().into_iter().enumerate() {
        let start = index * PAGE_SIZE;
        let frame = Frame::lent(page);
        let piece = pieces.iter().find(|piece| piece.offset + piece.len > start);
        let len = piece.map_or(0, |piece| (piece.offset + piece.len - start).min(PAGE_SIZE));
        if len == 0 {
            frame.free();
        } else if let Err((_, frame)) = chain.append_page(frame, 0..len) {
            frame.free();
        }
    }
    chain
}

/// Pages under way.
struct Made {
    frames: Vec<Frame>,
    pieces: Vec<Piece>,
}

impl Made {
    fn end(&self) -> usize {
        self.pieces.last().map_or(0, |piece| piece.offset + piece.len)
    }

    /// Whether the last piece ends where its page does.
    fn is_at_page(&self) -> bool {
        !self.pieces.is_empty() && self.end().is_multiple_of(PAGE_SIZE)
    }

    fn reserve(&mut self) -> Result<()> {
        self.frames.try_reserve(1).map_err(|_| ENOBUFS)?;
        self.pieces.try_reserve(1).map_err(|_| ENOBUFS)
    }

    fn add(&mut self, len: usize) {
        let offset = self.frames.len() * PAGE_SIZE;
        match self.pieces.last_mut() {
            Some(last) if last.offset + last.len == offset => last.len += len,
            _ => self.pieces.push(Piece { offset, len }),
        }
    }

    /// The chain's first page as it is.
    fn take(&mut self, chain: &mut Chain) -> Result<()> {
        self.reserve()?;
        let frame = chain.take_page().ok_or(ENOBUFS)?;
        self.add(PAGE_SIZE);
        self.frames.push(frame);
        Ok(())
    }

    /// Some bytes, into what the last page has left, or a new one.
    fn copy(&mut self, chain: &mut Chain) -> Result<()> {
        let used = self.end() % PAGE_SIZE;
        if used == 0 {
            self.reserve()?;
            let mut frame = Clusters.alloc().map_err(|_| ENOBUFS)?;
            let n = fill(&mut frame, 0, chain);
            self.add(n);
            self.frames.push(frame);
            return Ok(());
        }
        let (Some(frame), Some(piece)) = (self.frames.last_mut(), self.pieces.last_mut()) else {
            return Err(ENOBUFS);
        };
        piece.len += fill(frame, used, chain);
        Ok(())
    }
}

/// Moves a chain's first bytes into a page from `at` on, with zeroes behind them; returns how many.
fn fill(frame: &mut Frame, at: usize, chain: &mut Chain) -> usize {
    let Some(bytes) = frame.bytes_mut() else { return 0 };
    let n = chain.copy_out(&Clusters, 0, &mut bytes[at..]);
    bytes[at + n..].fill(0);
    chain.trim_front(&Clusters, n);
    n
}

/// Copies a chain's bytes out as far as there is room, and drops them from it.
pub fn pour(chain: &mut Chain, to: &mut Sink<'_>) -> Result<()> {
    while to.left() > 0 && !chain.is_empty() {
        let n = to.put(chain.first(&Clusters))?;
        chain.trim_front(&Clusters, n);
    }
    Ok(())
}
