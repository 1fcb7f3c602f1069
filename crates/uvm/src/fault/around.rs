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

use machine::{order, Held, Machine, Pages, Pmap, Prot, Va};

use super::resolve::{is_to_ask, Hold};
use super::Fault;
use crate::amap::borrowed::borrowed;
use crate::amap::slots::{Slots, LEAF};
use crate::anon::AnonNo;
use crate::map::lock::WINDOW;
use crate::map::{Advice, ORef, Writes};
use crate::object::{resident, ObjectBody};
use crate::page::PageFlags;

/// The run of pages around a fault, as addresses.
pub(super) struct Window {
    start: Va,
    pub(super) len: usize,
    /// The faulting page's place in it.
    pub(super) fault: usize,
}

impl<M: Machine> Fault<'_, '_, M> {
    pub(super) fn window(&self) -> Option<Window> {
        let entry = self.entry;
        // A thread that pins a page comes for the next one itself.
        let is_alone = entry.advice == Advice::Random || entry.wired || self.pins.is_some();
        if is_alone || !self.uvm.knobs().fault_around() {
            return None;
        }
        let aligned = Va(self.va.0 & !(Pages(WINDOW as u64).bytes() - 1));
        let start = if entry.advice == Advice::Sequential {
            self.va
        } else {
            aligned.max(entry.range.start)
        };
        // The addresses may end before the window does.
        let end = aligned + (entry.range.end - aligned).min(Pages(WINDOW as u64));
        let len = (end - start).0 as usize;
        (len > 1).then(|| Window { start, len, fault: (self.va - start).0 as usize })
    }

    #[inline(never)]
    pub(super) fn enter_object_around(
        &mut self,
        held: &mut Held<'_, order::Object>,
        oref: &ORef<M>,
        body: &ObjectBody,
        amap: Option<(&Slots, u64)>,
        prot: Prot,
    ) {
        let Some(w) = self.window() else { return };
        let mut pages = [0u32; WINDOW];
        let pages = &mut pages[..w.len];
        let first = self.entry.index(oref, w.start);
        body.window(first.0, pages);
        let mut anons = [0u32; WINDOW];
        if let Some((slots, slot)) = amap {
            slots.window(slot - w.fault as u64, &mut anons[..w.len]);
        }
        let mut found = [None; WINDOW];
        let mut any = false;
        // A mark is a leaf's: one for each leaf that the window touches, not for each page.
        let mut unmarked = 0;
        // A fault that comes to a marked page must be noticed.
        let special = PageFlags::BUSY | PageFlags::ERROR | PageFlags::AHEAD;
        let frames = self.uvm.frames();
        let places = pages.iter().zip(&anons).zip(&mut found).enumerate();
        for (i, ((&number, &anon), to)) in places {
            let is_other = i != w.fault && anon == 0;
            let Some(page) = resident(number).filter(|_| is_other) else { continue };
            let flags = frames.flags(page);
            if flags.intersects(special) {
                continue;
            }
            let own = if is_to_ask(frames, page, flags) { prot.without_write() } else { prot };
            let index = first.0 + i as u64;
            if own.contains(Prot::WRITE) && index >= unmarked {
                body.mark(Pages(index));
                unmarked = (index / LEAF + 1) * LEAF;
            }
            *to = Some((page, own));
            any = true;
        }
        if any {
            let (pmap, found) = (self.uvm.mem().pmap(), &found[..w.len]);
            pmap.enter_ahead(held, &self.space.pmap, w.start, found, |_| true);
        }
    }

    pub(super) fn enter_anons_around(
        &mut self,
        held: &mut Held<'_, order::Amap>,
        slots: &Slots,
        slot: u64,
        hold: Hold,
    ) {
        let (uvm, entry) = (self.uvm, self.entry);
        if entry.writes != Writes::CopyOnWrite || !entry.prot.contains(Prot::WRITE) {
            return;
        }
        let Some(w) = self.window() else { return };
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
            let (anon, _) = uvm.anons.get(no).lock(held);
            let Some(page) = anon.page() else { continue };
            if anon.refs() == 1 && uvm.frames().loans(page) == 0 {
                found[i] = Some((page, entry.prot));
            }
        }
        // The anons' locks are gone: another thread may be taking their pages away, loaning or
        // sharing them, or putting a copy in a slot. The record goes before the slot
        // (`Frames::is_alone`).
        let frames = uvm.frames();
        let is_slots =
            |i: usize| hold == Hold::Exclusive || slots.has(first + i as u64, numbers[i]);
        let is_there = |i: usize| {
            found[i].is_some_and(|(page, _)| frames.is_alone(page, numbers[i])) && is_slots(i)
        };
        uvm.mem().pmap().enter_ahead(held, &self.space.pmap, w.start, &found[..w.len], is_there);
    }

    /// Maps pages that slots have on loan along with one. They stay in their slots as long as the
    /// amap is read.
    pub(super) fn enter_loaned_around(
        &mut self,
        held: &mut Held<'_, order::Amap>,
        slots: &Slots,
        slot: u64,
    ) {
        let Some(w) = self.window() else { return };
        let mut numbers = [0u32; WINDOW];
        slots.window(slot - w.fault as u64, &mut numbers[..w.len]);
        numbers[w.fault] = 0;
        let prot = self.entry.prot.without_write();
        let found = numbers.map(|number| borrowed(number).map(|page| (page, prot)));
        let (pmap, found) = (self.uvm.mem().pmap(), &found[..w.len]);
        pmap.enter_ahead(held, &self.space.pmap, w.start, found, |_| true);
    }
}
