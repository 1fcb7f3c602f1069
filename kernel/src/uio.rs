//! Where the bytes of a read go and the bytes of a write come from.
//!
//! A [`Sink`] or [`Source`] is one pass over a user buffer, a user `iovec` array or kernel memory.
//! File types copy straight between it and their own pages; no byte goes through a buffer in
//! between.
//!
//! Invariants: I1: `done` counts only bytes that were copied whole; a bad pointer stops the pass
//! and what was not copied is not counted, so a pipe or file can leave it where it was. I2: user
//! memory may fault and sleep, so no spin lock is held by a caller.

use crate::arch::bytes::PageBytes;
use crate::arch::layout::USER_END;
use crate::errno::{Errno, Result, EFAULT};
use crate::user;
use machine::PAGE_SIZE;

/// The most that one call transfers, as on Linux.
pub const MAX_TRANSFER: usize = 0x7fff_f000;

/// One piece of a user buffer.
#[derive(Clone, Copy)]
pub struct IoVec {
    pub addr: u64,
    pub len: usize,
}

enum Target<'a> {
    User(u64),
    Vector(&'a [IoVec]),
    Kernel(&'a mut [u8]),
    Page(PageBytes),
}

/// The whole pages in `len` bytes at `addr`, if they begin there; none outside user memory.
fn whole_pages(addr: u64, len: usize) -> Option<(u64, u64)> {
    let pages = (len / PAGE_SIZE) as u64;
    let end = addr.checked_add(pages * PAGE_SIZE as u64)?;
    (addr.is_multiple_of(PAGE_SIZE as u64) && pages > 0 && end <= USER_END).then_some((addr, pages))
}

/// How many bytes lie between an address and the end of its page.
fn before_page_end(addr: u64) -> usize {
    PAGE_SIZE - addr as usize % PAGE_SIZE
}

fn is_multiple(addr: u64, len: usize, unit: usize) -> bool {
    addr.is_multiple_of(unit as u64) && len.is_multiple_of(unit)
}

/// Where a read puts its bytes.
pub struct Sink<'a> {
    target: Target<'a>,
    left: usize,
    done: usize,
}

impl<'a> Sink<'a> {
    pub fn user(addr: u64, len: usize) -> Self {
        Sink { target: Target::User(addr), left: len.min(MAX_TRANSFER), done: 0 }
    }

    pub fn vector(vector: &'a [IoVec]) -> Self {
        Sink { left: total(vector), target: Target::Vector(vector), done: 0 }
    }

    pub fn kernel(buf: &'a mut [u8]) -> Self {
        Sink { left: buf.len(), target: Target::Kernel(buf), done: 0 }
    }

    /// Bytes of a page that the caller keeps.
    pub fn page(bytes: PageBytes) -> Self {
        Sink { left: bytes.len(), target: Target::Page(bytes), done: 0 }
    }

    /// Leaves room for `most` bytes only; returns how much that takes away, for [`Sink::widen`].
    pub fn narrow(&mut self, most: usize) -> usize {
        let away = self.left.saturating_sub(most);
        self.left -= away;
        away
    }

    /// Gives back what [`Sink::narrow`] took.
    pub fn widen(&mut self, away: usize) {
        self.left += away;
    }

    /// Room left.
    pub fn left(&self) -> usize {
        self.left
    }

    /// Bytes put so far.
    pub fn done(&self) -> usize {
        self.done
    }

    /// Copies as much of `bytes` as there is room for; returns how much that was. Fails only if
    /// nothing was.
    pub fn put(&mut self, bytes: &[u8]) -> Result<usize> {
        let want = bytes.len().min(self.left);
        if let Target::User(addr) = self.target {
            user::copy_out(addr + self.done as u64, &bytes[..want])?;
            self.advance(want);
            return Ok(want);
        }
        self.pieces(want, |piece, at| match piece {
            Piece::User(addr, len) => user::copy_out(addr, &bytes[at..at + len]),
            Piece::Kernel(to) => {
                to.copy_from_slice(&bytes[at..at + to.len()]);
                Ok(())
            }
            Piece::Page(to) => {
                to.copy_from(&bytes[at..at + to.len()]);
                Ok(())
            }
        })
    }

    /// As [`Sink::put_bytes`], but where not all of a piece can be put, what fits before the end of
    /// its first page is: files are read so.
    pub fn put_page(&mut self, bytes: PageBytes) -> Result<usize> {
        let want = bytes.len().min(self.left);
        let put = self.put_bytes(bytes.part(0, want));
        if put == Ok(want) {
            return put;
        }
        let before = put.unwrap_or(0);
        let room = match self.target {
            Target::User(addr) => before_page_end(addr + self.done as u64),
            Target::Vector(vector) => {
                locate(vector, self.done).map_or(0, |(addr, len)| before_page_end(addr).min(len))
            }
            Target::Kernel(_) | Target::Page(_) => 0,
        };
        if room >= want - before {
            return put;
        }
        match self.put_bytes(bytes.part(before, room)) {
            Ok(more) => Ok(before + more),
            Err(_) => put,
        }
    }

    /// As [`Sink::put`], with what fits before the end of the first page where not all of a piece
    /// can be put.
    pub fn put_part(&mut self, bytes: &[u8]) -> Result<usize> {
        let put = self.put(bytes);
        let room = match self.target {
            Target::User(addr) => before_page_end(addr + self.done as u64),
            _ => 0,
        };
        if put.is_ok() || room == 0 || room >= bytes.len() {
            return put;
        }
        self.put(&bytes[..room])
    }

    /// As [`Sink::put`] with bytes of a page that others may write meanwhile.
    pub fn put_bytes(&mut self, bytes: PageBytes) -> Result<usize> {
        self.pieces(bytes.len().min(self.left), |piece, at| match piece {
            Piece::User(addr, len) => user::copy_out_page(addr, bytes.part(at, len)),
            Piece::Kernel(to) => {
                bytes.part(at, to.len()).copy_to(to);
                Ok(())
            }
            Piece::Page(to) => {
                to.copy_between(bytes.part(at, to.len()));
                Ok(())
            }
        })
    }

    /// The whole pages of user memory that come next, if the next byte goes to the start of one:
    /// their address and number. For a device that fills them itself.
    pub fn whole_pages(&self) -> Option<(u64, u64)> {
        match self.target {
            Target::User(addr) => whole_pages(addr + self.done as u64, self.left),
            Target::Vector(vector) => {
                let (addr, room) = locate(vector, self.done)?;
                whole_pages(addr, room.min(self.left))
            }
            Target::Kernel(_) | Target::Page(_) => None,
        }
    }

    /// Whether every piece of a program's memory begins and ends with a multiple of `unit`.
    pub fn is_multiple_of(&self, unit: usize) -> bool {
        match self.target {
            Target::User(addr) => is_multiple(addr + self.done as u64, self.left, unit),
            Target::Vector(vector) => {
                vector.iter().all(|piece| is_multiple(piece.addr, piece.len, unit))
            }
            Target::Kernel(_) | Target::Page(_) => true,
        }
    }

    /// Counts bytes as put that a device has.
    pub fn skip(&mut self, len: usize) {
        self.advance(len.min(self.left));
    }

    /// As [`Sink::put`] with `len` zero bytes.
    pub fn zero(&mut self, len: usize) -> Result<usize> {
        let want = len.min(self.left);
        self.pieces(want, |piece, _| match piece {
            Piece::User(addr, len) => user::zero_out(addr, len),
            Piece::Kernel(to) => {
                to.fill(0);
                Ok(())
            }
            Piece::Page(to) => {
                to.zero();
                Ok(())
            }
        })
    }

    fn advance(&mut self, n: usize) {
        self.done += n;
        self.left -= n;
    }

    /// Calls `f` for each piece of the next `want` bytes with the piece and its offset in them.
    fn pieces(
        &mut self,
        want: usize,
        mut f: impl FnMut(Piece<'_>, usize) -> Result<()>,
    ) -> Result<usize> {
        let mut at = 0;
        while at < want {
            let done = self.done;
            let (piece, len) = match &mut self.target {
                Target::User(addr) => (Piece::User(*addr + done as u64, want - at), want - at),
                Target::Kernel(buf) => (Piece::Kernel(&mut buf[done..done + want - at]), want - at),
                Target::Page(page) => (Piece::Page(page.part(done, want - at)), want - at),
                Target::Vector(vector) => {
                    let (addr, room) = locate(vector, done).ok_or(EFAULT)?;
                    let len = room.min(want - at);
                    (Piece::User(addr, len), len)
                }
            };
            match f(piece, at) {
                Ok(()) => self.advance(len),
                Err(_) if at > 0 => return Ok(at),
                Err(errno) => return Err(errno),
            }
            at += len;
        }
        Ok(at)
    }
}

enum Piece<'a> {
    User(u64, usize),
    Kernel(&'a mut [u8]),
    Page(PageBytes),
}

/// A piece of what is taken.
enum Bytes<'a> {
    User(u64, usize),
    Kernel(&'a [u8]),
    Page(PageBytes),
}

enum Origin<'a> {
    User(u64),
    Vector(&'a [IoVec]),
    Kernel(&'a [u8]),
    Page(PageBytes),
}

/// Where a write takes its bytes from.
pub struct Source<'a> {
    origin: Origin<'a>,
    left: usize,
    done: usize,
}

impl<'a> Source<'a> {
    pub fn user(addr: u64, len: usize) -> Self {
        Source { origin: Origin::User(addr), left: len.min(MAX_TRANSFER), done: 0 }
    }

    pub fn vector(vector: &'a [IoVec]) -> Self {
        Source { left: total(vector), origin: Origin::Vector(vector), done: 0 }
    }

    pub fn kernel(bytes: &'a [u8]) -> Self {
        Source { left: bytes.len(), origin: Origin::Kernel(bytes), done: 0 }
    }

    /// Bytes of a page that the caller keeps.
    pub fn page(bytes: PageBytes) -> Self {
        Source { left: bytes.len(), origin: Origin::Page(bytes), done: 0 }
    }

    /// Leaves `most` bytes only; returns how many that takes away, for [`Source::widen`].
    pub fn narrow(&mut self, most: usize) -> usize {
        let away = self.left.saturating_sub(most);
        self.left -= away;
        away
    }

    /// Gives back what [`Source::narrow`] took.
    pub fn widen(&mut self, away: usize) {
        self.left += away;
    }

    /// The bytes of user memory that come next and lie together: their address and number.
    pub fn run(&self) -> Option<(u64, usize)> {
        match self.origin {
            Origin::User(addr) => Some((addr + self.done as u64, self.left)),
            Origin::Vector(vector) => {
                locate(vector, self.done).map(|(addr, len)| (addr, len.min(self.left)))
            }
            Origin::Kernel(_) | Origin::Page(_) => None,
        }
    }

    /// The whole pages of user memory that come next, as in [`Sink::whole_pages`].
    pub fn whole_pages(&self) -> Option<(u64, u64)> {
        match self.origin {
            Origin::User(addr) => whole_pages(addr + self.done as u64, self.left),
            Origin::Vector(vector) => {
                let (addr, room) = locate(vector, self.done)?;
                whole_pages(addr, room.min(self.left))
            }
            Origin::Kernel(_) | Origin::Page(_) => None,
        }
    }

    /// Whether every piece of a program's memory begins and ends with a multiple of `unit`.
    pub fn is_multiple_of(&self, unit: usize) -> bool {
        match self.origin {
            Origin::User(addr) => is_multiple(addr + self.done as u64, self.left, unit),
            Origin::Vector(vector) => {
                vector.iter().all(|piece| is_multiple(piece.addr, piece.len, unit))
            }
            Origin::Kernel(_) | Origin::Page(_) => true,
        }
    }

    /// Bytes that were not taken yet.
    pub fn left(&self) -> usize {
        self.left
    }

    /// Bytes taken so far.
    pub fn done(&self) -> usize {
        self.done
    }

    /// Takes bytes without copying them anywhere.
    pub fn skip(&mut self, len: usize) -> usize {
        let len = len.min(self.left);
        self.done += len;
        self.left -= len;
        len
    }

    /// Has the last `len` bytes that were taken come again.
    pub fn back(&mut self, len: usize) {
        self.done -= len;
        self.left += len;
    }

    /// Fails if not even the next byte can be read; takes nothing.
    pub fn probe(&self) -> Result<()> {
        let addr = match self.origin {
            Origin::Kernel(_) | Origin::Page(_) => return Ok(()),
            Origin::User(addr) => addr + self.done as u64,
            Origin::Vector(vector) => locate(vector, self.done).ok_or(EFAULT)?.0,
        };
        user::copy_in(&mut [0], addr)
    }

    /// Fills `to` as far as there are bytes; returns how many that was. Fails only if none were.
    pub fn get(&mut self, to: &mut [u8]) -> Result<usize> {
        self.pieces(to.len(), |piece, at| match piece {
            Bytes::User(addr, len) => user::copy_in(&mut to[at..at + len], addr),
            Bytes::Kernel(from) => {
                to[at..at + from.len()].copy_from_slice(from);
                Ok(())
            }
            Bytes::Page(from) => {
                from.copy_to(&mut to[at..at + from.len()]);
                Ok(())
            }
        })
    }

    /// As [`Source::get_bytes`], but where not all of a piece can be had, what lies before the end
    /// of its first page is: files are written so.
    pub fn get_page(&mut self, to: PageBytes) -> Result<usize> {
        let want = to.len().min(self.left);
        let got = self.get_bytes(to.part(0, want));
        if got == Ok(want) {
            return got;
        }
        let before = got.unwrap_or(0);
        let room = self.run().map_or(0, |(addr, len)| before_page_end(addr).min(len));
        if matches!(self.origin, Origin::Kernel(_) | Origin::Page(_)) || room >= want - before {
            return got;
        }
        match self.get_bytes(to.part(before, room)) {
            Ok(more) => Ok(before + more),
            Err(_) => got,
        }
    }

    /// As [`Source::get`] to bytes of a page that others may read and write meanwhile.
    pub fn get_bytes(&mut self, to: PageBytes) -> Result<usize> {
        self.pieces(to.len(), |piece, at| match piece {
            Bytes::User(addr, len) => user::copy_in_page(to.part(at, len), addr),
            Bytes::Kernel(from) => {
                to.part(at, from.len()).copy_from(from);
                Ok(())
            }
            Bytes::Page(from) => {
                to.part(at, from.len()).copy_between(from);
                Ok(())
            }
        })
    }

    /// Calls `f` for each piece of the next `want` bytes, as far as there are any, with the piece
    /// and its offset in them.
    fn pieces(
        &mut self,
        want: usize,
        mut f: impl FnMut(Bytes<'a>, usize) -> Result<()>,
    ) -> Result<usize> {
        let want = want.min(self.left);
        let mut at = 0;
        while at < want {
            let left = want - at;
            let (piece, len) = match self.origin {
                Origin::User(addr) => (Bytes::User(addr + self.done as u64, left), left),
                Origin::Kernel(from) => (Bytes::Kernel(&from[self.done..self.done + left]), left),
                Origin::Page(from) => (Bytes::Page(from.part(self.done, left)), left),
                Origin::Vector(vector) => {
                    let (addr, room) = locate(vector, self.done).ok_or(EFAULT)?;
                    let len = room.min(left);
                    (Bytes::User(addr, len), len)
                }
            };
            match f(piece, at) {
                Ok(()) => {
                    self.skip(len);
                }
                Err(_) if at > 0 => return Ok(at),
                Err(errno) => return Err(errno),
            }
            at += len;
        }
        Ok(at)
    }
}

fn total(vector: &[IoVec]) -> usize {
    vector.iter().fold(0usize, |sum, piece| sum.saturating_add(piece.len)).min(MAX_TRANSFER)
}

/// The address of byte `at` of the whole, and how much of its piece follows.
fn locate(vector: &[IoVec], mut at: usize) -> Option<(u64, usize)> {
    for piece in vector {
        if at < piece.len {
            return Some((piece.addr.wrapping_add(at as u64), piece.len - at));
        }
        at -= piece.len;
    }
    None
}

/// What a transfer returns: what was moved if anything was, else the error.
pub fn outcome(done: usize, result: Result<(), Errno>) -> Result<usize> {
    match result {
        Err(errno) if done == 0 => Err(errno),
        _ => Ok(done),
    }
}
