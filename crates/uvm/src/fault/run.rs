//! Pages of zeroes that a program is about to ask for: it fills memory upwards.
//!
//! ```text
//!   touched      0        1        3           7           15   16            32            48
//!   made along            2        4 5 6       8 to 14          17 to 31      33 to 47      49 to 63
//! ```
//! A trap costs as much as making several pages. So a store that comes right behind a run of pages
//! makes as many more as the run is long, within the window of sixteen that a fault maps anyway
//! (`around.rs`). Thus at most half of what such a program has was made for nothing, and never
//! more than fifteen pages for each place that it fills. Nothing is remembered: how long the run
//! is, the amap knows. Stacks grow downwards and get no more than they touch; nor does any memory
//! where frames are short, or where advice says that touches have no order.
//!
//! Source: UVM maps along what is resident; that a run of first touches is answered by several
//! pages at once is from large folios (Linux 6.8's multi-size pages), without their being one piece
//! of memory.

use arrayvec::ArrayVec;
use machine::{order, Held, Machine, PageNo, Pages, Pmap, Prot};

use super::Fault;
use crate::amap::slots::Found;
use crate::anon::AnonNo;
use crate::map::lock::WINDOW;
use crate::map::Writes;
use crate::stat::Counter;

impl<M: Machine> Fault<'_, '_, M> {
    /// Makes pages of zeroes behind the one that a store has just got in a slot right behind a run.
    /// What can't be had is left.
    #[inline(never)]
    pub(super) fn continue_run(&mut self, held: &mut Held<'_, order::Amap>, found: Found<'_>) {
        let (uvm, entry) = (self.uvm, self.entry);
        // A thread that reads the amap anew may find its leaf shared: another space that has the
        // same slots may have forked.
        if self.access != Prot::WRITE || entry.writes != Writes::CopyOnWrite || !found.is_open() {
            return;
        }
        let (machine, frames) = (uvm.mem(), uvm.frames());
        let Some(w) = self.window().filter(|_| frames.is_plentiful()) else { return };
        let mut made = ArrayVec::<(PageNo, AnonNo), WINDOW>::new();
        for next in found.behind().take((w.len - w.fault - 1).min(found.run_before())) {
            if next.number().is_some() {
                break;
            }
            let Ok(Some((anon, page, _))) = self.fill_slot(held, next) else { break };
            made.push((page, anon));
        }
        if made.is_empty() {
            return;
        }
        let mut pages = [None; WINDOW];
        made.iter().zip(&mut pages).for_each(|(&(page, _), to)| *to = Some((page, entry.prot)));
        // Threads that read the amap may have found them by now, and loaned, shared or replaced
        // them.
        let is_there = |i: usize| {
            let (page, anon) = made[i];
            frames.is_alone(page, anon.get())
                && found.behind_by(1 + i).number() == Some(anon.number())
        };
        let (at, pages) = (self.va + Pages(1), &pages[..made.len()]);
        machine.pmap().enter_ahead(held, &self.space.pmap, at, pages, is_there);
        made.iter().for_each(|&(page, _)| frames.activate(machine, held, page));
        uvm.count(Counter::ZeroedAhead, made.len() as u64);
    }
}
