//! Mapping what lies around a fault and is resident anyway.
//!
//! The window is 16 pages aligned to 16, so it lies in one page of tables and costs the pmap one
//! walk. `Random` advice and the knob ask for none; `Sequential` for those ahead. UVM maps three
//! pages back and four ahead; a wider window pays here since a trap costs as much as mapping ten
//! pages (`./uvm bench micro`: file fault rows).
//!
//! Anons are mapped along only where they can be mapped writable: after a fork has come and gone,
//! the parent gets its memory back sixteen pages at a fault. A child that will soon exec is not
//! made to map what it won't use. What came by a transfer is mapped along to be read: it came to be
//! read.

use core::ops::Range;

use crate::page::PageFlags;
use machine::{order, Held, Machine, Pages, Pmap, Prot, Va};

use super::anon::Beside;
use super::Fault;
use crate::amap::slots::{Slots, LEAF};
use crate::anon::AnonNo;
use crate::loan::slots::borrowed;
use crate::map::lock::WINDOW;
use crate::map::{Advice, Entry, ORef, Writes};
use crate::object::{resident, ObjectBody};
use crate::Uvm;

/// The run of pages around a fault, as addresses.
pub(super) struct Window {
    start: Va,
    pub(super) len: usize,
    /// The faulting page's place in it.
    pub(super) fault: usize,
}

impl<M: Machine> Uvm<M> {
    pub(super) fn window(&self, fault: &Fault<'_, M>, entry: &Entry<M>) -> Option<Window> {
        // Who pins a page comes for the next one itself.
        let is_alone = entry.advice == Advice::Random || entry.wired || fault.pins.is_some();
        if is_alone || !self.knobs().fault_around() {
            return None;
        }
        let aligned = Va(fault.va.0 & !(Pages(WINDOW as u64).bytes() - 1));
        let start = if entry.advice == Advice::Sequential {
            fault.va
        } else {
            aligned.max(entry.range.start)
        };
        // The addresses may end before the window does.
        let end = aligned + (entry.range.end - aligned).min(Pages(WINDOW as u64));
        let len = (end - start).0 as usize;
        (len > 1).then(|| Window { start, len, fault: (fault.va - start).0 as usize })
    }

    /// The slots of the pages that are mapped along with one, which has `slot`.
    pub(super) fn slots_around(
        &self,
        fault: &Fault<'_, M>,
        entry: &Entry<M>,
        slot: u64,
    ) -> Range<u64> {
        match self.window(fault, entry) {
            Some(w) => slot - w.fault as u64..slot + (w.len - w.fault) as u64,
            None => slot..slot + 1,
        }
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn map_object_neighbours(
        &self,
        held: &mut Held<'_, order::Object>,
        fault: &mut Fault<'_, M>,
        entry: &Entry<M>,
        oref: &ORef<M>,
        body: &ObjectBody,
        amap: Option<(&Slots, u64)>,
        prot: Prot,
    ) {
        let Some(w) = self.window(fault, entry) else { return };
        let mut pages = [0u32; WINDOW];
        let pages = &mut pages[..w.len];
        let first = entry.index(oref, w.start);
        body.window(first.0, pages);
        let mut anons = [0u32; WINDOW];
        if let Some((slots, slot)) = amap {
            slots.window(slot - w.fault as u64, &mut anons[..w.len]);
        }
        let frames = self.frames();
        let mut found = [None; WINDOW];
        let mut any = false;
        // A mark is a leaf's: one for each leaf that the window touches, not for each page.
        let mut unmarked = 0;
        // Who comes to a marked page must be noticed.
        let special = PageFlags::BUSY | PageFlags::ERROR | PageFlags::AHEAD;
        for i in 0..w.len {
            let Some(page) = resident(pages[i]).filter(|_| i != w.fault && anons[i] == 0) else {
                continue;
            };
            if frames.flags(page).intersects(special) {
                continue;
            }
            let own = if self.is_to_ask(page) { prot.without_write() } else { prot };
            let index = first.0 + i as u64;
            if own.contains(Prot::WRITE) && index >= unmarked {
                body.mark(Pages(index));
                unmarked = (index / LEAF + 1) * LEAF;
            }
            found[i] = Some((page, own));
            any = true;
        }
        if any {
            self.mem().pmap().enter_ahead(
                held,
                &fault.space.pmap,
                w.start,
                &found[..w.len],
                |_| true,
            );
        }
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn map_anon_neighbours(
        &self,
        held: &mut Held<'_, order::Amap>,
        fault: &mut Fault<'_, M>,
        entry: &Entry<M>,
        slots: &Slots,
        slot: u64,
        beside: Beside,
    ) {
        if entry.writes != Writes::CopyOnWrite || !entry.prot.contains(Prot::WRITE) {
            return;
        }
        let Some(w) = self.window(fault, entry) else { return };
        let first = slot - w.fault as u64;
        if slots.any_shared(first..first + w.len as u64) {
            return;
        }
        let mut numbers = [0u32; WINDOW];
        if !slots.window(first, &mut numbers[..w.len]) {
            return;
        }
        let mut found = [None; WINDOW];
        let others: [Range<usize>; 2] = [0..w.fault, w.fault + 1..w.len];
        for i in others.into_iter().flatten() {
            let Some(no) = AnonNo::new(numbers[i]) else { continue };
            let (anon, _) = self.anons.get(no).lock(held);
            let Some(page) = anon.page() else { continue };
            if anon.refs() == 1 && self.frames().loans(page) == 0 {
                found[i] = Some((page, entry.prot));
            }
        }
        // The anons' locks are gone: somebody may be taking their pages away, loaning or sharing
        // them, or putting a copy in a slot. The record goes before the slot (`Frames::is_alone`).
        let frames = self.frames();
        let is_slots =
            |i: usize| beside == Beside::Nobody || slots.has(first + i as u64, numbers[i]);
        let is_there = |i: usize| {
            found[i].is_some_and(|(page, _)| frames.is_alone(page, numbers[i])) && is_slots(i)
        };
        self.mem().pmap().enter_ahead(held, &fault.space.pmap, w.start, &found[..w.len], is_there);
    }

    /// Maps pages that slots have on loan along with one. They stay in their slots while somebody
    /// reads the amap.
    pub(super) fn map_borrowed_neighbours(
        &self,
        held: &mut Held<'_, order::Amap>,
        fault: &mut Fault<'_, M>,
        entry: &Entry<M>,
        slots: &Slots,
        slot: u64,
    ) {
        let Some(w) = self.window(fault, entry) else { return };
        let mut numbers = [0u32; WINDOW];
        slots.window(slot - w.fault as u64, &mut numbers[..w.len]);
        numbers[w.fault] = 0;
        let prot = entry.prot.without_write();
        let found = numbers.map(|number| borrowed(number).map(|page| (page, prot)));
        self.mem().pmap().enter_ahead(held, &fault.space.pmap, w.start, &found[..w.len], |_| true);
    }
}
