//! Proof that a page has no mapping left, for whoever frees it.
//!
//! ```text
//!   page's owner:    Gather::unmap     page_protect; the CPUs that may know the page are in the Gather
//!   map's owner:     Unmapped::by_ranges  its range was removed, and the CPUs were told, before the map's lock went
//!                         |
//!                         v
//!   Frames::release(page, down)  -->  down.perform: CPUs are told, then the page is free
//! ```
//! That the tables show no mapping is no proof. Another thread may have taken one out a moment ago,
//! and the CPUs not know of it yet (law P6 of [`machine::pmap`]):
//! [`Pmap::is_mapped`] says nothing about who still reaches a page. So it
//! makes no [`Unmapped`], and what frees a page asks for one.

use machine::order::{Before, Held, PageCache, PageQueues};
use machine::{Machine, PageNo, Pmap, Prot};

use super::{Frames, Gather};

/// See the module. Neither copied nor kept: the owner's lock, or the map's, under which it was
/// made, is held.
#[must_use]
pub struct Unmapped(PageNo);

impl Unmapped {
    /// A page each of whose mappings lay in a range that its map's owner has removed; the CPUs were
    /// told under that map's lock, or are told by the `Gather` that the page goes into. It is an
    /// anon's that nobody refers to any more, or was never mapped.
    #[inline]
    pub const fn by_ranges(page: PageNo) -> Unmapped {
        Unmapped(page)
    }

    /// Which page.
    #[inline]
    #[must_use]
    pub const fn page(&self) -> PageNo {
        self.0
    }
}

impl Gather {
    /// Takes a page out of all tables, under its owner's lock. Wirings of mappings are given back.
    pub fn unmap<M: Machine, P>(
        &mut self,
        frames: &Frames<M>,
        machine: &M,
        held: &mut Held<'_, P>,
        page: PageNo,
    ) -> Unmapped
    where
        P: Before<PageQueues> + Before<PageCache>,
    {
        for _ in 0..machine.pmap().page_protect(held, page, Prot::NONE, self) {
            frames.unwire(machine, held, page);
        }
        Unmapped(page)
    }
}
