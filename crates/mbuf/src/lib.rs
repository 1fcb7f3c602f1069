//! Chains of buffers, in the manner of BSD's mbufs.
//!
//! A [`Chain`] is a run of bytes in pieces. What stands between processes (pipes, sockets) moves
//! bytes by moving pieces from chain to chain: appending, prepending, joining, splitting and
//! trimming copy no byte that a chain holds.
//!
//! ```text
//!   Chain   len 1,000,000
//!     | inline  | cluster           | run of pages (loaned)           | cluster             |
//!     | "ab"    | ....bbbbbbbb      | ..bb|bbbb|bbbb|bbbb|bbbb|bb.. | bbbb|  room         |
//!                 ^start     ^end     ^start                   ^end   ^start^end
//!                                    whole pages may be taken as they are    appended to here
//! ```
//!
//! Three kinds of storage: a few bytes in the mbuf itself; a page that the chain asked for (a
//! *cluster*), written behind what it holds as long as there is no other reference to it; and a run
//! of pages from elsewhere, loaned by a process or of a file, which is one piece however long it
//! is, and is never written. Pages and runs are the host's: see [`Pages`].
//!
//! Invariants, checked by [`Chain::audit`]:
//! * I1: `len` is the sum of the pieces' lengths, and no piece is empty.
//! * I2: bytes outside `start..end` of a piece are never shown: what a fresh page held stays
//!   unseen.
//! * I3: every page was got by `alloc`, `share` or from the caller, and goes back by `release`
//!   once; so do those of runs.
//! * I4: appending makes no two short pieces in a row, so bytes written one by one cost a small
//!   factor of themselves.
//! * I5: `memory` is the sum of the pieces', each with all pages behind it, those too of which no
//!   byte counts any more.
//!
//! Locks: none; a chain's owner locks it. Source: the paper's section 2.3 (mbufs, external
//! storage), 5.1, 5.2. The road not taken is a linked list as in BSD: a piece's own allocation for
//! each, where the deque has one for many.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

use core::ops::Range;

mod bytes;
mod chain;
mod piece;

pub use bytes::{Bytes, Room};
pub use chain::Chain;
pub use machine::{NoMemory, PAGE_SIZE};
pub use piece::INLINE;

/// Where the pages of chains come from.
///
/// A page's release is a verb, since it may take locks and wake threads, which no destructor may.
/// The bytes of a page are reached by [`copy`](Pages::copy) alone, while it runs: a host needs no
/// address at which they are seen for longer.
///
/// ```
/// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
/// # use host::*;
/// # let heap = Heap;
/// let page = heap.alloc()?;
/// let other = heap.share(&page)?;
/// heap.release(page);
/// let mut bytes = [1; PAGE_SIZE];
/// heap.copy(Bytes::Page(&other, 0..PAGE_SIZE), Room::Here(&mut bytes));
/// assert_eq!(bytes, [0; PAGE_SIZE], "it is there for the other reference");
/// # Ok::<(), NoMemory>(())
/// ```
pub trait Pages: Sized {
    /// A reference to a page of [`PAGE_SIZE`] bytes.
    type Page;
    /// References to pages in a row, which are not written.
    type Run;

    /// A page without another reference, with any contents.
    ///
    /// Fails with [`NoMemory`], and nothing has changed then.
    fn alloc(&self) -> Result<Self::Page, NoMemory>;

    /// Another reference to the same page.
    ///
    /// Fails with [`NoMemory`] if the host can't count one more.
    fn share(&self, page: &Self::Page) -> Result<Self::Page, NoMemory>;

    /// Takes a reference back; the page goes with the last.
    fn release(&self, page: Self::Page);

    /// Whether the page is the chain's to write: it asked for it, and there is no other reference.
    fn is_writable(&self, page: &Self::Page) -> bool;

    /// Copies bytes to room that is as long.
    fn copy(&self, from: Bytes<'_, Self>, to: Room<'_, Self>);

    /// Another run of some of the same pages.
    ///
    /// Fails with [`NoMemory`], and nothing has changed then.
    fn share_run(&self, run: &Self::Run, pages: Range<usize>) -> Result<Self::Run, NoMemory>;

    /// Takes the pages from `at` on, which is within the run, out of it. If `both`, the first of
    /// them stays there, too.
    ///
    /// Fails with [`NoMemory`], and nothing has changed then.
    fn cut_run(&self, run: &mut Self::Run, at: usize, both: bool) -> Result<Self::Run, NoMemory>;

    /// Takes back all pages of a run but `kept`.
    fn shrink_run(&self, run: &mut Self::Run, kept: Range<usize>);

    /// Takes back a run.
    fn release_run(&self, run: Self::Run);
}

/// The example of the crate's README, tested.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
