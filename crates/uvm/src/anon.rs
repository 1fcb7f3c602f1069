//! Anons: one page of anonymous memory each.
//!
//! An anon counts its references and says where its data is: in a page, on swap, or in both. With one reference it
//! may be written; with more it is copy-on-write (1999, section 5.2). References come from the
//! leaves of amaps' slots, which copies of an amap share.
//!
//! ```text
//!   page   swap   flags of the page
//!   some   none   -                 never written out, or written to since
//!   some   slot   CLEAN             the same bytes on both, unless the pmap says modified: then the slot is stale
//!   some   slot   BUSY              coming in; with PAGEOUT on its way out; with neither, about to be taken away
//!   none   slot                     on swap alone
//!   none   LOST                     it could not be read back
//! ```
//!
//! Anons live in a table of the instance and are named by number, so that an amap slot is four bytes, making one
//! is taking a number off a list, and an audit can walk all of them. The table has room for one anon per page
//! frame and one per slot of the most swap there can be; its chunks are made when first needed and stay. The road not taken is a counted pointer per anon: twice the size of a slot, and a heap call for each
//! page that is touched.
//!
//! I1: `refs` is the number of leaves that hold the anon; a free anon has none. I2: an anon in use has a page, whose
//! owner is this anon, or a slot, which nobody else holds, or both. I3: a page that is about to be shown by a
//! translation is on no queue yet, so that nobody takes it away between: whoever makes an anon activates its page when
//! it has been entered. Locks: `AnonBody` by the anon's own; the list of free numbers by its own.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::num::NonZeroU32;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

use machine::frames::PageFlags;
use machine::order::{self, Before, FreeList, PageCache};
use machine::{Held, Machine, NoMemory, Ordered, Owner, PageNo, Shootdown};
use spin::Once;

use crate::swap::{Slot, Swap, SLOTS_PER_FRAME};

/// The number of an anon.
pub(crate) type AnonNo = NonZeroU32;

const CHUNK: usize = 256;

/// Heap bytes that making one anon may need.
pub(crate) const NEW_BYTES: usize = 16 << 10;

pub(crate) struct AnonBody {
    pub(crate) refs: u32,
    pub(crate) page: Option<PageNo>,
    pub(crate) swap: Option<Slot>,
}

pub(crate) type Anon<M> = Ordered<order::Anon, <M as Machine>::Lock, AnonBody>;

struct Cell<M: Machine> {
    anon: Anon<M>,
    /// The next free number, 0 at the end; written under the free list's lock.
    next_free: AtomicU32,
}

struct FreeAnons {
    /// The first free number, 0 if none.
    head: u32,
    /// Numbers from here on have never been used.
    fresh: u32,
}

/// All anons of an instance.
pub(crate) struct Anons<M: Machine> {
    chunks: Vec<Once<Box<[Cell<M>]>>>,
    free: Ordered<FreeList, M::Lock, FreeAnons>,
    in_use: AtomicUsize,
    pub(crate) swap: Swap<M>,
}

impl<M: Machine> Anons<M> {
    /// Room for one anon a page and one a slot.
    pub(crate) fn new(pages: usize) -> Result<Self, NoMemory> {
        let most = pages * (1 + SLOTS_PER_FRAME as usize);
        let count = most.div_ceil(CHUNK) + 1;
        let mut chunks = Vec::new();
        chunks.try_reserve_exact(count).map_err(|_| NoMemory)?;
        chunks.resize_with(count, Once::new);
        let free = Ordered::new(FreeAnons { head: 0, fresh: 1 });
        Ok(Anons { chunks, free, in_use: AtomicUsize::new(0), swap: Swap::new() })
    }

    #[inline]
    pub(crate) fn get(&self, no: AnonNo) -> &Anon<M> {
        &self.cell(no).anon
    }

    #[inline]
    fn cell(&self, no: AnonNo) -> &Cell<M> {
        let i = no.get() as usize;
        match self.chunks[i / CHUNK].get() {
            Some(chunk) => &chunk[i % CHUNK],
            None => unreachable!("anon {i} was never made"),
        }
    }

    /// Anons in use.
    pub(crate) fn in_use(&self) -> usize {
        self.in_use.load(Relaxed)
    }

    /// A new anon with one reference for a page that is filled and nobody else's. The caller activates the page once
    /// it has been entered (I3). On an error the page is free again.
    #[inline]
    pub(crate) fn make<P>(
        &self,
        machine: &M,
        held: &mut Held<'_, P>,
        page: PageNo,
    ) -> Result<AnonNo, NoMemory>
    where
        P: Before<order::Anon> + Before<PageCache> + Before<FreeList>,
    {
        let (no, cell) = match self.take_cell(held) {
            Ok(taken) => taken,
            Err(e) => {
                machine.frames().free_page(machine, held, page);
                return Err(e);
            }
        };
        *cell.anon.lock(held).0 = AnonBody { refs: 1, page: Some(page), swap: None };
        machine.frames().set_owner(page, Owner::Anon(no.get()), 0);
        self.in_use.fetch_add(1, Relaxed);
        Ok(no)
    }

    #[inline]
    fn take_cell<P: Before<FreeList>>(&self, held: &mut Held<'_, P>) -> Result<(AnonNo, &Cell<M>), NoMemory> {
        let (mut free, _) = self.free.lock(held);
        let Some(no) = AnonNo::new(free.head) else { return self.fresh_cell(&mut free) };
        let cell = self.cell(no);
        free.head = cell.next_free.load(Relaxed);
        Ok((no, cell))
    }

    #[cold]
    fn fresh_cell(&self, free: &mut FreeAnons) -> Result<(AnonNo, &Cell<M>), NoMemory> {
        let no = AnonNo::new(free.fresh).ok_or(NoMemory)?;
        let chunk = self.chunks.get(no.get() as usize / CHUNK).ok_or(NoMemory)?;
        chunk.call_once(new_chunk::<M>);
        free.fresh += 1;
        Ok((no, self.cell(no)))
    }

    /// Adds a reference.
    pub(crate) fn reference<P: Before<order::Anon>>(&self, held: &mut Held<'_, P>, no: AnonNo) {
        let (mut body, _) = self.get(no).lock(held);
        body.refs += 1;
    }

    /// Numbers below this have been used.
    pub(crate) fn end<P: Before<FreeList>>(&self, held: &mut Held<'_, P>) -> u32 {
        self.free.lock(held).0.fresh
    }

    /// Drops a reference; the last frees the anon and its slot, and puts its page, which nothing maps any more, into
    /// `down`. A page that is busy is left to whoever made it so, with its slot.
    pub(crate) fn release<P>(&self, machine: &M, held: &mut Held<'_, P>, no: AnonNo, down: &mut Shootdown)
    where
        P: Before<order::Anon>,
    {
        let (mut body, mut h) = self.get(no).lock(held);
        body.refs -= 1;
        if body.refs != 0 {
            return;
        }
        let slot = body.swap.take();
        let page = body.page.take();
        match page {
            Some(page) if machine.frames().flags(page).contains(PageFlags::BUSY) => {
                let place = slot.filter(|s| s.is_place()).map_or(0, |s| u64::from(s.number()));
                machine.frames().wire(page);
                machine.frames().set_owner(page, Owner::Orphan, place);
            }
            _ => {
                if let Some(slot) = slot {
                    self.swap.free(&mut h, slot);
                }
                if let Some(page) = page {
                    drop_page(machine, &mut h, page, down);
                }
            }
        }
        let (mut free, _) = self.free.lock(&mut h);
        self.cell(no).next_free.store(free.head, Relaxed);
        free.head = no.get();
        self.in_use.fetch_sub(1, Relaxed);
    }
}

/// Frees a page that nothing maps any more, or leaves it to its last unpinning.
#[inline]
fn drop_page<M: Machine>(machine: &M, held: &mut Held<'_, order::Anon>, page: PageNo, down: &mut Shootdown) {
    let frames = machine.frames();
    if frames.wire_count(page) == 0 {
        return frames.release(held, page, down);
    }
    // Whoever pinned it frees it as soon as the anon's lock goes, and doesn't know of `down`.
    down.flush(machine.pmap());
    frames.dequeue(held, page);
    frames.set_owner(page, Owner::Kernel, 0);
}

fn new_chunk<M: Machine>() -> Box<[Cell<M>]> {
    (0..CHUNK)
        .map(|_| Cell {
            anon: Ordered::new(AnonBody { refs: 0, page: None, swap: None }),
            next_free: AtomicU32::new(0),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use uvm_soft::SoftMachine;

    use super::*;
    use crate::map::{tree::Node, Entry};

    /// The figures of docs/decisions/052-paging.md; the kernel's lock is no larger than std's.
    #[test]
    fn an_anon_and_a_map_entry_are_as_small_as_stated() {
        assert_eq!((size_of::<Cell<SoftMachine>>(), size_of::<Node<Entry<SoftMachine>>>()), (24, 136));
        let directory = size_of::<Once<Box<[Cell<SoftMachine>]>>>();
        assert!(directory <= 24, "{directory} bytes for {CHUNK} anons");
    }
}
