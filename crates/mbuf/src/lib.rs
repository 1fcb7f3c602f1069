//! Chains of buffers, in the manner of BSD's mbufs.
//!
//! A [`Chain`] is a run of bytes in pieces. What stands between processes (pipes, sockets) moves bytes by moving
//! pieces from chain to chain: appending, prepending, joining, splitting and trimming copy no byte that a chain holds.
//!
//! ```text
//!   Chain   len 8,300
//!     | Mbuf inline  | Mbuf page         | Mbuf page (lent)   | Mbuf page           |
//!     | "ab"         | ....bbbbbbbb      | bbbbbbbbbbbb       | bbbb|  room         |
//!                      ^start     ^end    whole: may be         ^start^end
//!                                         taken as it is            appended to here
//! ```
//!
//! Three kinds of storage: a few bytes in the mbuf itself; a page that the chain asked for (a *cluster*), written
//! behind what it holds as long as nobody else refers to it; and a page from elsewhere: lent by a process, or of a
//! file. The last two are one kind here, a page of the host's [`Pages`]; whether it may be written is the host's to say.
//!
//! Invariants, checked by [`Chain::audit`]:
//! * I1: `len` is the sum of the pieces' lengths, and no piece is empty.
//! * I2: bytes outside `start..end` of a piece are never shown: what a fresh page held stays unseen.
//! * I3: every page was got by `alloc`, `share` or from the caller, and goes back by `release` once.
//! * I4: appending makes no two short pieces in a row, so bytes written one by one cost a small factor of themselves.
//!
//! Locks: none; whoever owns a chain locks it. Source: the paper's section 2.3 (mbufs, external storage), 5.1, 5.2.
//! The road not taken is a linked list as in BSD: a piece's own allocation for each, where the deque has one for many.
#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

extern crate alloc;

mod chain;
mod piece;

pub use chain::Chain;
pub use machine::{NoMemory, PAGE_SIZE};
pub use piece::INLINE;

/// Where the pages of chains come from.
///
/// A page's release is a verb, since it may take locks and wake people, which no destructor may.
pub trait Pages {
    /// A reference to a page of [`PAGE_SIZE`] bytes.
    type Page;

    /// A page that nobody else refers to, with any contents.
    ///
    /// Fails with [`NoMemory`], and nothing has changed then.
    fn alloc(&self) -> Result<Self::Page, NoMemory>;

    /// Another reference to the same page.
    ///
    /// Fails with [`NoMemory`] if the host can't count one more.
    fn share(&self, page: &Self::Page) -> Result<Self::Page, NoMemory>;

    /// Takes a reference back; the page goes with the last.
    fn release(&self, page: Self::Page);

    /// The page's bytes: [`PAGE_SIZE`] of them.
    fn bytes<'a>(&self, page: &'a Self::Page) -> &'a [u8];

    /// The page's bytes for writing, or `None` if others refer to it or the page isn't the chain's to write.
    fn bytes_mut<'a>(&self, page: &'a mut Self::Page) -> Option<&'a mut [u8]>;
}
