//! Many anons at once: numbers come from the depot and go back to it as lists, under one hold of
//! its lock.
//!
//! Source: as for magazines (`page/free.rs`), whose depot this is. The road not taken is
//! larger magazines: a CPU would keep what nobody else can have.

use crate::page::{Gather, Owner};
use crate::page::{Magazine, HALF};
use crate::Memory;
use arrayvec::ArrayVec;
use machine::lines::Ordering::Relaxed;
use machine::order::{self, Before, FreeList, PageCache, PageQueues};
use machine::{Held, Machine, NoMemory, PageNo};

use super::{leave_all, AnonBody, AnonNo, Anons, Depot, LetGo};

/// Numbers handled at once, those of a leaf of slots.
const MANY: usize = 64;

/// Their pages.
pub(super) type Pages = ArrayVec<PageNo, MANY>;

/// Free numbers that a caller has for itself.
pub(crate) type Numbers = ArrayVec<AnonNo, MANY>;

impl<M: Machine> Anons<M> {
    /// Takes free numbers, `count` of them or as many as a list holds.
    ///
    /// # Errors
    /// [`NoMemory`]; nothing is taken then.
    pub(crate) fn take_many<P: Before<PageCache> + Before<FreeList>>(
        &self,
        machine: &Memory<M>,
        held: &mut Held<'_, P>,
        count: usize,
    ) -> Result<Numbers, NoMemory> {
        let mut numbers = Numbers::new();
        let count = count.min(MANY);
        if count == 0 {
            return Ok(numbers);
        }
        let result = {
            let cpu = machine.cpu();
            let per_cpu = &self.per_cpu[cpu];
            let (mut free, mut h) = per_cpu.free.lock(held);
            if count < HALF {
                pop_up_to(&mut free, &mut numbers, count);
            }
            let result = if numbers.len() == count {
                Ok(())
            } else {
                let (mut depot, _h) = self.depot.lock(&mut h);
                self.take_from_depot(&mut depot, cpu, &mut free, &mut numbers, count)
            };
            per_cpu.len.store(free.len(), Relaxed);
            result
        };
        if result.is_err() {
            self.give_back_many(machine, held, &numbers);
        }
        result.map(|()| numbers)
    }

    fn take_from_depot(
        &self,
        depot: &mut Depot,
        cpu: usize,
        free: &mut Magazine,
        numbers: &mut Numbers,
        count: usize,
    ) -> Result<(), NoMemory> {
        let before = numbers.len();
        self.take_listed(depot, cpu, count - before, |no| numbers.push(no));
        self.out.fetch_add(numbers.len() - before, Relaxed);
        // What the CPU has at hand goes before numbers that were never used.
        pop_up_to(free, numbers, count);
        while numbers.len() < count {
            numbers.push(self.fresh(depot)?);
            self.out.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    /// Gives numbers back.
    pub(crate) fn give_back_many<P: Before<PageCache> + Before<FreeList>>(
        &self,
        machine: &Memory<M>,
        held: &mut Held<'_, P>,
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
    pub(crate) fn make_of<P: Before<order::Anon>>(
        &self,
        machine: &Memory<M>,
        held: &mut Held<'_, P>,
        no: AnonNo,
        page: PageNo,
    ) {
        *self.get(no).lock(held).0 = AnonBody { refs: 1, page: Some(page), swap: None };
        machine.frames().set_new_owner(page, Owner::Anon(no.get()));
    }

    /// Drops a reference to each of some anons: see [`release`](Self::release).
    pub(crate) fn release_many<P>(
        &self,
        machine: &Memory<M>,
        held: &mut Held<'_, P>,
        anons: impl Iterator<Item = AnonNo>,
        down: &mut Gather,
    ) where
        P: Before<order::Anon> + Before<PageQueues> + Before<PageCache> + Before<FreeList>,
    {
        let (mut free, mut idle, mut loan) = (Numbers::new(), Pages::new(), Pages::new());
        machine.frames().announce(MANY);
        for no in anons {
            // A page that leaves takes a number along: there is room.
            match self.let_go(machine, held, no, down) {
                LetGo::Kept => continue,
                LetGo::Gone => {}
                LetGo::Idle(page) => idle.push(page),
                LetGo::Loan(page) => loan.push(page),
            }
            free.push(no);
            if free.is_full() {
                machine.frames().release_all(held, &idle, MANY, down);
                leave_all(machine, held, &loan, down);
                machine.frames().announce(MANY);
                idle.clear();
                loan.clear();
                self.give_back_many(machine, held, &free);
                free.clear();
            }
        }
        machine.frames().release_all(held, &idle, MANY, down);
        leave_all(machine, held, &loan, down);
        self.give_back_many(machine, held, &free);
    }
}

/// Moves numbers from a magazine to a list, until that has `count`.
fn pop_up_to(from: &mut Magazine, to: &mut Numbers, count: usize) {
    while to.len() < count {
        let Some(no) = from.pop().and_then(AnonNo::new) else { break };
        to.push(no);
    }
}
