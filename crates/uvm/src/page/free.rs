//! Free pages that are in no CPU's cache.
//!
//! ```text
//!   lists:  CPU 0's | CPU 1's | ... | never used, or nobody's
//! ```
//! What a CPU gives back comes on a list of its own, and it takes from there first: what it has
//! written last lies in its own memory caches. With one list for all, two CPUs that filled and
//! unmapped memory exchanged their pages, and with each page the 64 lines that one had written and
//! the other was about to zero. Then it takes what no CPU has had, then the others' pages. One lock
//! guards all lists; a CPU takes it once in 32 pages.

use alloc::vec::Vec;

use super::{Frames, List, NIL};
use machine::atomic::Ordering::Relaxed;
use machine::{Machine, NoMemory};

/// See the module.
pub(super) struct FreeLists {
    /// One for each CPU, and behind them the one for all.
    pub(super) lists: Vec<List>,
    /// Pages on all of them.
    pub(super) len: usize,
}

impl FreeLists {
    /// One list for all, and empty ones for so many CPUs.
    ///
    /// # Errors
    /// [`NoMemory`] if the heap can't hold them.
    pub(super) fn new(cpus: usize, all: List) -> Result<FreeLists, NoMemory> {
        let mut lists = Vec::new();
        lists.try_reserve_exact(cpus + 1).map_err(|_| NoMemory)?;
        lists.resize(cpus, List::EMPTY);
        lists.push(all);
        Ok(FreeLists { lists, len: all.len })
    }

    /// The list that a CPU takes from next: its own, that of all, those of others. `None` if all
    /// are empty.
    fn next_for(&mut self, cpu: usize) -> Option<&mut List> {
        let all = self.lists.len() - 1;
        let others = (0..all).map(|i| (cpu + i) % all).skip(1);
        let mut order = [cpu, all].into_iter().chain(others);
        order.find(|&at| self.lists[at].len != 0).map(|at| &mut self.lists[at])
    }
}

impl<M: Machine> Frames<M> {
    /// Takes so many pages, of which there are as many, off the lists. Their records still say that
    /// they are there.
    pub(super) fn take_free(
        &self,
        free: &mut FreeLists,
        cpu: usize,
        mut count: usize,
        mut each: impl FnMut(u32),
    ) {
        free.len -= count;
        while count != 0 {
            let Some(list) = free.next_for(cpu) else { unreachable!("free pages are on no list") };
            let taken = count.min(list.len);
            for _ in 0..taken {
                let page = &self.pages[list.head as usize];
                each(list.head);
                list.head = page.next.load(Relaxed);
            }
            list.len -= taken;
            match self.pages.get(list.head as usize) {
                Some(first) => first.prev.store(NIL, Relaxed),
                None => list.tail = NIL,
            }
            count -= taken;
        }
    }

    /// Brings all pages on the list for all. Cost: by CPUs.
    pub(super) fn gather_free<'a>(&self, free: &'a mut FreeLists) -> &'a mut List {
        let [own @ .., all] = &mut free.lists[..] else { unreachable!("there is a list for all") };
        for list in own {
            let from = core::mem::replace(list, List::EMPTY);
            if from.len != 0 {
                self.splice_front(all, from);
            }
        }
        all
    }

    /// Puts a list that isn't empty before another.
    pub(super) fn splice_front(&self, list: &mut List, front: List) {
        self.pages[front.tail as usize].next.store(list.head, Relaxed);
        match self.pages.get(list.head as usize) {
            Some(first) => first.prev.store(front.tail, Relaxed),
            None => list.tail = front.tail,
        }
        list.head = front.head;
        list.len += front.len;
    }
}
