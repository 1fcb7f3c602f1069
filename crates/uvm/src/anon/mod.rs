//! Anons: one page of anonymous memory each.
//!
//! An anon counts its references and says where its data is: in a page, on swap, or in both. With
//! one reference it may be written; with more it is copy-on-write (1999, section 5.2). References
//! come from the leaves of amaps' slots, which copies of an amap share.
//!
//! ```text
//!   page   swap   flags of the page
//!   some   none   -                 never written out, or written to since
//!   some   slot   CLEAN             the same bytes on both, unless the pmap says modified: then the slot is stale
//!   some   slot   BUSY              coming in; with PAGEOUT on its way out; with neither, about to be taken away
//!   none   slot                     on swap alone
//!   none   LOST                     it could not be read back
//!   some   ZERO   CLEAN             freed lazily: it may go, unless the pmap says modified
//!   none   ZERO                     gone so: zeroes
//! ```
//!
//! Anons live in a table of the instance and are named by number, so that an amap slot is four
//! bytes, making one is taking a number out of a CPU's magazine, and an audit can walk all of them.
//! The table has room for one anon per page frame and one per slot of the most swap there can be;
//! its chunks are made when first needed and stay. The road not taken is a counted pointer per
//! anon: twice the size of a slot, and a heap call for each page that is touched.
//!
//! I1: `refs` is the number of leaves that hold the anon; a free anon has none. I2: an anon in use
//! has a page, whose owner is this anon, or a slot, which it alone holds, or both (`LOST` and
//! `ZERO` are no places: any number of anons have them). I3: a page that is about to be shown by a
//! translation is on no queue yet, so that the page daemon doesn't take it: the thread that makes
//! an anon activates its page when that has been entered. I4: the
//! page's record is marked as shared exactly if `refs` is more than one, so that a thread that maps
//! the page ahead need not hold the lock ([`Frames::is_alone`]). Locks: `AnonBody` by the anon's
//! own; the magazines of free numbers and their depot by their own.

mod many;

use crate::memory::Memory;
use crate::Uvm;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::num::NonZeroU32;
use machine::lines::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed};

use crate::page::{Frames, Gather, Magazine, Owner, PageFlags, Reserve, Unmapped, FULL, HALF};
use machine::order::{self, Before, FreeList, PageCache, PageQueues};
use machine::shared::CachePadded;
use machine::{Held, Machine, NoMemory, Ordered, PageNo};
use spin::Once;

use crate::swap::{Slot, Swap, SLOTS_PER_FRAME};

/// The number of an anon: below 2^31, so that slots can hold something else too (`amap::borrowed`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct AnonNo(NonZeroU32);

impl fmt::Display for AnonNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl AnonNo {
    /// The number, if it is an anon's: one comparison for both, none and
    /// [`BORROWED`](crate::amap::borrowed::BORROWED).
    #[inline(always)]
    pub(crate) fn new(number: u32) -> Option<AnonNo> {
        if number.cast_signed() > 0 {
            return NonZeroU32::new(number).map(AnonNo);
        }
        None
    }

    #[inline(always)]
    pub(crate) fn get(self) -> u32 {
        self.0.get()
    }

    /// As a slot holds it.
    #[inline(always)]
    pub(crate) fn number(self) -> NonZeroU32 {
        self.0
    }
}

const CHUNK: usize = 256;

/// Heap bytes that making one anon may need.
pub(crate) const NEW_BYTES: usize = 16 << 10;

/// Heap bytes that making so many anons may need.
pub(crate) const fn many_bytes(anons: usize) -> usize {
    (anons / CHUNK + 2) * NEW_BYTES
}

pub(crate) struct AnonBody {
    refs: u32,
    page: Option<PageNo>,
    pub(crate) swap: Option<Slot>,
}

/// References and page change here alone: the page's record says whether the anon is shared (I4).
impl AnonBody {
    /// Leaves that hold the anon.
    #[inline]
    pub(crate) fn refs(&self) -> u32 {
        self.refs
    }

    #[inline]
    pub(crate) fn page(&self) -> Option<PageNo> {
        self.page
    }

    /// Whether it has data: else it was [freed lazily](crate::Uvm::free_lazily), and has gone.
    pub(crate) fn has_data(&self) -> bool {
        self.page.is_some() || self.swap != Some(Slot::ZERO)
    }

    /// One more leaf holds it. The caller sees to it that no mapping can write the page, or has it
    /// on loan: then none can.
    #[inline]
    pub(crate) fn add_reference<M: Machine>(&mut self, frames: &Frames<M>) {
        if let Some(page) = self.page.filter(|_| self.refs == 1) {
            frames.mark_shared(page);
        }
        self.refs += 1;
    }

    /// One leaf less does. How many still do.
    #[inline]
    fn drop_reference<M: Machine>(&mut self, frames: &Frames<M>) -> u32 {
        self.refs -= 1;
        if let Some(page) = self.page.filter(|_| self.refs == 1) {
            frames.mark_alone(page);
        }
        self.refs
    }

    /// Gives the anon a page to be read into.
    pub(crate) fn set_page<M: Machine>(&mut self, frames: &Frames<M>, no: AnonNo, page: PageNo) {
        debug_assert!(self.page.is_none(), "anon {no} has a page");
        frames.set_owner(page, Owner::Anon(no.get()), 0);
        if self.refs > 1 {
            frames.mark_shared(page);
        }
        self.page = Some(page);
    }

    /// Takes the page away: it is its holder's to free. One that is busy stays so until then, so
    /// that no thread which found it here without the lock maps it meanwhile
    /// ([`Frames::is_alone`]).
    pub(crate) fn take_page<M: Machine>(&mut self, frames: &Frames<M>) {
        if let Some(page) = self.page.take() {
            frames.set_owner(page, Owner::Kernel, 0);
        }
    }
}

pub(crate) type Anon<M> = Ordered<order::Anon, <M as Machine>::Lock, AnonBody>;

struct Cell<M: Machine> {
    anon: Anon<M>,
    /// The next free number of the depot's list, 0 at the end; written by the thread that has the
    /// number, or under the depot's lock.
    next_free: AtomicU32,
}

/// Cells that one CPU mostly uses, on lines of their own: as many as it gets at once.
const ROW: usize = HALF;

type Chunk<M> = Box<[CachePadded<[Cell<M>; ROW]>; CHUNK / ROW]>;

struct Depot {
    /// For each CPU the first of a list of free numbers that it gave back, linked through their
    /// cells; 0 if there is none. What it has used is what it gets, so that no two CPUs exchange
    /// cells' lines.
    free: Vec<u32>,
    /// Numbers from here on have never been used.
    fresh: u32,
}

/// A CPU's own free numbers.
struct PerCpu<M: Machine> {
    free: Ordered<PageCache, M::Lock, Magazine>,
    /// As many as `free` has, to be read without its lock.
    len: AtomicUsize,
}

/// A look at many anons, which knows the last one's chunk.
pub(crate) struct Many<'a, M: Machine> {
    anons: &'a Anons<M>,
    last: Option<(u32, &'a Chunk<M>)>,
}

impl<'a, M: Machine> Many<'a, M> {
    #[inline(always)]
    pub(crate) fn get(&mut self, no: AnonNo) -> &'a Anon<M> {
        let key = no.get() / CHUNK as u32;
        let chunk = match self.last {
            Some((last, chunk)) if last == key => chunk,
            _ => {
                let chunk = self.anons.chunk(no);
                self.last = Some((key, chunk));
                chunk
            }
        };
        &in_chunk(chunk, no).anon
    }
}

#[inline(always)]
fn in_chunk<M: Machine>(chunk: &Chunk<M>, no: AnonNo) -> &Cell<M> {
    let i = no.get() as usize;
    &chunk[i % CHUNK / ROW].0[i % ROW]
}

/// All anons of an instance.
pub(crate) struct Anons<M: Machine> {
    chunks: Vec<Once<Chunk<M>>>,
    per_cpu: Vec<CachePadded<PerCpu<M>>>,
    depot: Ordered<FreeList, M::Lock, Depot>,
    /// Numbers that the depot has given out, to CPUs or users.
    out: AtomicUsize,
    /// Slots that hold pages on loan.
    pub(crate) borrowed: AtomicUsize,
    /// Whether any space has ever had locked memory: a hint.
    pub(crate) was_wired: AtomicBool,
    pub(crate) swap: Swap<M>,
}

impl<M: Machine> Anons<M> {
    /// Room for one anon a page and one a slot, and for what CPUs have at hand.
    pub(crate) fn new(pages: usize, cpus: usize) -> Result<Self, NoMemory> {
        let most = pages * (1 + SLOTS_PER_FRAME as usize) + cpus * FULL;
        let count = most.div_ceil(CHUNK) + 1;
        let mut chunks = Vec::new();
        chunks.try_reserve_exact(count).map_err(|_| NoMemory)?;
        chunks.resize_with(count, Once::new);
        let mut lists = Vec::new();
        lists.try_reserve_exact(cpus).map_err(|_| NoMemory)?;
        lists.resize(cpus, 0);
        let per_cpu = || {
            CachePadded(PerCpu { free: Ordered::new(Magazine::new()), len: AtomicUsize::new(0) })
        };
        Ok(Anons {
            chunks,
            per_cpu: (0..cpus).map(|_| per_cpu()).collect(),
            depot: Ordered::new(Depot { free: lists, fresh: 1 }),
            out: AtomicUsize::new(0),
            borrowed: AtomicUsize::new(0),
            was_wired: AtomicBool::new(false),
            swap: Swap::new(),
        })
    }

    /// Heap bytes of the chunks that there are.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.chunks.iter().filter_map(|chunk| chunk.get()).map(|chunk| size_of_val(&**chunk)).sum()
    }

    #[inline]
    pub(crate) fn get(&self, no: AnonNo) -> &Anon<M> {
        &self.cell(no).anon
    }

    #[inline]
    fn cell(&self, no: AnonNo) -> &Cell<M> {
        in_chunk(self.chunk(no), no)
    }

    #[inline]
    fn chunk(&self, no: AnonNo) -> &Chunk<M> {
        match self.chunks[no.get() as usize / CHUNK].get() {
            Some(chunk) => chunk,
            None => unreachable!("anon {no} was never made"),
        }
    }

    /// For a look at many, whose numbers often lie close together.
    #[inline]
    pub(crate) fn many(&self) -> Many<'_, M> {
        Many { anons: self, last: None }
    }

    /// Anons in use; a moment's value where several CPUs run.
    pub(crate) fn in_use(&self) -> usize {
        let cached: usize = self.per_cpu.iter().map(|cpu| cpu.len.load(Relaxed)).sum();
        self.out.load(Relaxed).saturating_sub(cached)
    }

    /// Takes a free number.
    #[inline]
    pub(crate) fn take(
        &self,
        machine: &Memory<M>,
        held: &mut Held<'_, order::Object>,
    ) -> Result<AnonNo, NoMemory> {
        let per_cpu = &self.per_cpu[machine.cpu()];
        let (mut free, mut h) = per_cpu.free.lock(held);
        if free.is_empty() {
            self.refill(&mut h, &mut free, machine.cpu())?;
        }
        let no = free.pop().and_then(AnonNo::new).ok_or(NoMemory)?;
        per_cpu.len.store(free.len(), Relaxed);
        Ok(no)
    }

    /// Fills a CPU's empty magazine, by one number at least.
    #[cold]
    #[inline(never)]
    fn refill(
        &self,
        held: &mut Held<'_, PageCache>,
        free: &mut Magazine,
        cpu: usize,
    ) -> Result<(), NoMemory> {
        let (mut depot, _h) = self.depot.lock(held);
        // First numbers that have been used before, of these those that the CPU gave back.
        let (others, own) = depot.free.split_at_mut(cpu);
        for list in own.iter_mut().chain(others) {
            while let Some(no) = AnonNo::new(*list).filter(|_| free.len() < HALF) {
                free.push(no.get());
                *list = self.cell(no).next_free.load(Relaxed);
            }
        }
        while free.len() < HALF {
            match self.fresh(&mut depot) {
                Ok(no) => free.push(no.get()),
                Err(e) if free.is_empty() => return Err(e),
                Err(_) => break,
            }
            if (depot.fresh as usize).is_multiple_of(ROW) {
                // A row each.
                break;
            }
        }
        self.out.fetch_add(free.len(), Relaxed);
        Ok(())
    }

    /// A number that was never used.
    fn fresh(&self, depot: &mut Depot) -> Result<AnonNo, NoMemory> {
        let no = AnonNo::new(depot.fresh).ok_or(NoMemory)?;
        let chunk = self.chunks.get(no.get() as usize / CHUNK).ok_or(NoMemory)?;
        chunk.call_once(new_chunk::<M>);
        depot.fresh += 1;
        Ok(no)
    }

    /// Gives a number back that no anon has.
    #[inline]
    pub(crate) fn give_back<P: Before<PageCache>>(
        &self,
        machine: &Memory<M>,
        held: &mut Held<'_, P>,
        no: AnonNo,
    ) {
        let per_cpu = &self.per_cpu[machine.cpu()];
        let (mut free, mut h) = per_cpu.free.lock(held);
        if free.is_full() {
            self.drain(&mut h, &mut free, machine.cpu());
        }
        free.push(no.get());
        per_cpu.len.store(free.len(), Relaxed);
    }

    /// Gives half of a CPU's magazine to the depot.
    #[cold]
    #[inline(never)]
    fn drain(&self, held: &mut Held<'_, PageCache>, free: &mut Magazine, cpu: usize) {
        let (mut depot, _h) = self.depot.lock(held);
        let list = &mut depot.free[cpu];
        for no in (0..HALF).map_while(|_| free.pop().and_then(AnonNo::new)) {
            self.cell(no).next_free.store(*list, Relaxed);
            *list = no.get();
        }
        self.out.fetch_sub(HALF, Relaxed);
    }

    /// Numbers below this have been used.
    pub(crate) fn end<P: Before<FreeList>>(&self, held: &mut Held<'_, P>) -> u32 {
        self.depot.lock(held).0.fresh
    }

    /// Drops a page and a slot that an anon has let go.
    #[inline(never)]
    fn drop_data(
        &self,
        machine: &Memory<M>,
        held: &mut Held<'_, order::Anon>,
        page: Option<PageNo>,
        slot: Option<Slot>,
        down: &mut Gather,
    ) {
        match page {
            Some(page) if machine.frames().flags(page).contains(PageFlags::BUSY) => {
                machine.frames().wire(page);
                machine.frames().set_orphan(page, slot.filter(|slot| slot.is_place()));
                leave(machine, held, Unmapped::by_ranges(page), down);
            }
            _ => {
                if let Some(slot) = slot {
                    self.swap.free(machine, held, slot);
                }
                if let Some(page) = page {
                    drop_page(machine, held, Unmapped::by_ranges(page), down);
                }
            }
        }
    }
}

impl<M: Machine> Uvm<M> {
    /// A new anon with one reference for a new page, which the caller activates once it has been
    /// entered (I3). Where there is none the page is free again.
    #[inline(always)]
    pub(crate) fn new_anon(
        &self,
        held: &mut Held<'_, order::Object>,
        page: PageNo,
    ) -> Result<AnonNo, NoMemory> {
        let (machine, frames) = (self.mem(), self.frames());
        let taken = self.anons.take(machine, held);
        let no = taken.inspect_err(|_| frames.free_page(machine, held, page))?;
        *self.anons.get(no).lock(held).0 = AnonBody { refs: 1, page: Some(page), swap: None };
        frames.set_owner(page, Owner::Anon(no.get()), 0);
        Ok(no)
    }

    /// Calls `copy` with an anon under its lock, and with a new anon and its page, to be filled.
    /// Returns the page and what `copy` does; nothing, and the new anon is gone, if it returns
    /// nothing.
    #[inline]
    pub(crate) fn copy_anon<T>(
        &self,
        held: &mut Held<'_, order::Object>,
        from: AnonNo,
        copy: impl FnOnce(&mut AnonBody, &mut Held<'_, order::Anon>, AnonNo, PageNo) -> Option<T>,
    ) -> Result<Option<(PageNo, T)>, NoMemory> {
        let page = self.frames().alloc(self.mem(), held, Reserve::User)?;
        let anon = self.new_anon(held, page)?;
        let copied = {
            let (mut body, mut h) = self.anons.get(from).lock(held);
            copy(&mut body, &mut h, anon, page)
        };
        if copied.is_none() {
            self.drop_anon(held, anon);
        }
        Ok(copied.map(|done| (page, done)))
    }

    /// Drops a reference to an anon; the last frees it with its slot and its page, which nothing
    /// maps any more. A page that is busy is left to the thread that made it so, with its slot.
    pub(crate) fn drop_anon(&self, held: &mut Held<'_, order::Object>, no: AnonNo) {
        let mut down = Gather::new();
        self.anons.release_many(self.mem(), held, core::iter::once(no), &mut down);
        down.perform(self.frames(), self.mem(), held);
    }
}

/// Frees a page that nothing maps any more, or leaves it to the last pin or loan. Its
/// owner's lock is held, and the owner has forgotten it.
#[inline]
pub(crate) fn drop_page<M: Machine, P: Before<PageQueues>>(
    machine: &Memory<M>,
    held: &mut Held<'_, P>,
    unmapped: Unmapped,
    down: &mut Gather,
) {
    let (frames, page) = (machine.frames(), unmapped.page());
    if frames.hold_count(page) == 0 {
        return frames.release(held, unmapped, down);
    }
    frames.dequeue(held, page);
    frames.set_owner(page, Owner::Kernel, 0);
    leave(machine, held, unmapped, down);
}

/// Lets a page go that may be held, once its record names no owner and no list has it.
pub(crate) fn leave<M: Machine, P: Before<PageQueues>>(
    machine: &Memory<M>,
    held: &mut Held<'_, P>,
    page: Unmapped,
    down: &mut Gather,
) {
    // The last holder frees it at once, and doesn't know of `down`.
    down.flush(machine.pmap());
    if machine.frames().disown(page.page()) {
        machine.frames().release(held, page, down);
    }
}

fn new_chunk<M: Machine>() -> Chunk<M> {
    const {
        assert!(
            size_of::<[CachePadded<[Cell<M>; ROW]>; CHUNK / ROW]>() <= NEW_BYTES,
            "a machine's lock is small"
        )
    };
    let cell = |_| Cell {
        anon: Ordered::new(AnonBody { refs: 0, page: None, swap: None }),
        next_free: AtomicU32::new(0),
    };
    let rows: Box<[_]> =
        (0..CHUNK / ROW).map(|_| CachePadded(core::array::from_fn(cell))).collect();
    match rows.try_into() {
        Ok(chunk) => chunk,
        Err(_) => unreachable!("a chunk has as many rows as were made"),
    }
}

#[cfg(test)]
mod tests {
    use uvm_soft::SoftMachine;

    use super::*;

    /// The figures of docs/decisions/page-out-and-swap.md; the kernel's lock is no larger than
    /// std's.
    #[test]
    fn an_anon_is_as_small_as_stated() {
        assert_eq!(size_of::<Cell<SoftMachine>>(), 24);
        let directory = size_of::<Once<Chunk<SoftMachine>>>();
        assert!(directory <= 24, "{directory} bytes for {CHUNK} anons");
    }
}
