//! The end of anons: the numbers of many go back to the depot as a list, under one hold of its
//! lock.
//!
//! Source: as for magazines (`free.rs` of `uvm-page`), whose depot this is. The road not taken is
//! larger magazines: a CPU would keep what no other CPU can have.

use crate::memory::Memory;
use crate::page::{Gather, Owner, PageFlags, Unmapped, HALF};
use arrayvec::ArrayVec;
use machine::lines::Ordering::Relaxed;
use machine::order;
use machine::{Held, Machine, PageNo};

use super::{leave, AnonBody, AnonNo, Anons};

/// Numbers handled at once, those of a leaf of slots.
const MANY: usize = 64;

/// Their pages.
type Pages = ArrayVec<PageNo, MANY>;

/// Free numbers.
type Numbers = ArrayVec<AnonNo, MANY>;

/// What became of an anon that lost a reference.
enum LetGo {
    /// Others have it.
    Kept,
    /// It is free, and has let its data go.
    Gone,
    /// It is free, and has let its data go, but for a page that the caller releases.
    Idle(PageNo),
    /// It is free, and has let its data go, but for a page that has other holders: the caller
    /// leaves it to them.
    Loan(PageNo),
}

impl<M: Machine> Anons<M> {
    /// Gives numbers back.
    fn give_back_many(
        &self,
        machine: &Memory<M>,
        held: &mut Held<'_, order::Object>,
        numbers: &[AnonNo],
    ) {
        let (Some(first), Some(last)) = (numbers.first(), numbers.last()) else { return };
        if numbers.len() < HALF {
            return numbers.iter().for_each(|&no| self.give_back(machine, held, no));
        }
        for pair in numbers.windows(2) {
            self.cell(pair[0]).next_free.store(pair[1].get(), Relaxed);
        }
        let (mut depot, _h) = self.depot.lock(held);
        let list = &mut depot.free[machine.cpu()];
        self.cell(*last).next_free.store(*list, Relaxed);
        *list = first.get();
        self.out.fetch_sub(numbers.len(), Relaxed);
    }

    /// A new anon of a number that was taken before, for a page that was [taken
    /// over](crate::page::Frames::take_over).
    #[inline]
    pub(crate) fn make_of(
        &self,
        machine: &Memory<M>,
        held: &mut Held<'_, order::Amap>,
        no: AnonNo,
        page: PageNo,
    ) {
        *self.get(no).lock(held).0 = AnonBody { refs: 1, page: Some(page), swap: None };
        machine.frames().set_new_owner(page, Owner::Anon(no.get()));
    }

    /// Drops a reference to each of some anons, as [`drop_anon`](crate::Uvm::drop_anon) does; their
    /// pages go into `down`.
    pub(crate) fn release_many(
        &self,
        machine: &Memory<M>,
        held: &mut Held<'_, order::Object>,
        mut anons: impl Iterator<Item = AnonNo>,
        down: &mut Gather,
    ) {
        loop {
            let (mut free, mut idle, mut loan) = (Numbers::new(), Pages::new(), Pages::new());
            machine.frames().announce(MANY);
            // A page that leaves takes a number along: there is room.
            while !free.is_full() {
                let Some(no) = anons.next() else { break };
                match self.let_go(machine, held, no, down) {
                    LetGo::Kept => continue,
                    LetGo::Gone => {}
                    LetGo::Idle(page) => idle.push(page),
                    LetGo::Loan(page) => loan.push(page),
                }
                free.push(no);
            }
            machine.frames().release_all(held, &idle, MANY, down);
            leave_all(machine, held, &loan, down);
            self.give_back_many(machine, held, &free);
            if !free.is_full() {
                return;
            }
        }
    }

    /// Drops a reference. With the last the anon is free: the caller gives its number back, and
    /// sees to its page.
    #[inline(always)]
    fn let_go(
        &self,
        machine: &Memory<M>,
        held: &mut Held<'_, order::Object>,
        no: AnonNo,
        down: &mut Gather,
    ) -> LetGo {
        let (mut body, mut h) = self.get(no).lock(held);
        if body.drop_reference(machine.frames()) != 0 {
            return LetGo::Kept;
        }
        let (slot, page) = (body.swap.take(), body.page.take());
        if let Some(page) = page.filter(|_| slot.is_none()) {
            let frames = machine.frames();
            if frames.leaves_owner(page) {
                return LetGo::Idle(page);
            }
            if !frames.flags(page).contains(PageFlags::BUSY) {
                // A thread that finds it on its queue finds that it is ownerless.
                frames.set_owner(page, Owner::Kernel, 0);
                return LetGo::Loan(page);
            }
        }
        self.drop_data(machine, &mut h, page, slot, down);
        LetGo::Gone
    }
}

/// Like [`drop_page`](super::drop_page), for pages whose record names no owner any more, on
/// whatever queue they are.
#[inline(never)]
fn leave_all<M: Machine>(
    machine: &Memory<M>,
    held: &mut Held<'_, order::Object>,
    pages: &[PageNo],
    down: &mut Gather,
) {
    if pages.is_empty() {
        return;
    }
    let listed = pages.iter().copied().filter(|&page| !machine.frames().leaves_batch(page));
    let listed: Pages = listed.collect();
    machine.frames().dequeue_all(held, &listed);
    for &page in pages {
        leave(machine, held, Unmapped::by_ranges(page), down);
    }
}
