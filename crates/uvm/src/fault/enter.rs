//! What the address shows: entering a page there, wired or pinned where it is to stay, and having
//! every CPU forget what was there before.

use core::cell::Cell;

use machine::{order, Held, Machine, PageNo, Pages, Pmap, Prot, Run, VaRange, Wiring};

use super::resolve::is_to_ask;
use super::{Attempt, Fault, FaultError, Pin, Reach};
use crate::object::ObjectBody;

/// The token of whatever lock keeps the page: its owner's, or one before it.
type Locked<'h> = Held<'h, order::Anon>;

impl<M: Machine> Fault<'_, '_, M> {
    /// Makes `page` what the address shows, wired if the entry is.
    #[inline]
    pub(super) fn enter(&mut self, held: &mut Locked<'_>, page: PageNo, prot: Prot) -> Attempt<()> {
        if self.entry.wired || self.pins.is_some() {
            return self.enter_kept(held, page, prot);
        }
        self.enter_as(held, Run::one(self.va, page), prot, Wiring::Pageable)
    }

    /// Makes a device's page what the address shows, along with those of the window that follow one
    /// another: nothing is known of their use, and none is ever taken away.
    #[cold]
    pub(super) fn enter_device(
        &mut self,
        held: &mut Locked<'_>,
        body: &ObjectBody,
        index: Pages,
        page: PageNo,
        prot: Prot,
    ) -> Attempt<()> {
        if self.entry.wired || self.pins.is_some() {
            return self.enter_kept(held, page, prot);
        }
        if let Some(w) = self.window() {
            let (before, behind) = (w.fault as u64, (w.len - w.fault) as u64);
            let frames = self.uvm.frames();
            // The pages at so many places before or behind this one, if they are the device's next.
            let has = |at: Option<u64>, next: Option<u32>| {
                let there = at.and_then(|at| body.page(Pages(at)));
                let is_plain = |page| !is_to_ask(frames, page, frames.flags(page));
                there.is_some_and(|page| next == Some(page.0) && is_plain(page))
            };
            let behind = (1..behind)
                .take_while(|&n| has(index.0.checked_add(n), page.0.checked_add(n as u32)));
            let before = (1..=before)
                .take_while(|&n| has(index.0.checked_sub(n), page.0.checked_sub(n as u32)));
            let (behind, before) = (behind.count() as u64, before.count() as u64);
            let run = Run {
                va: self.va - Pages(before),
                page: PageNo(page.0 - before as u32),
                pages: Pages(before + 1 + behind),
            };
            if self.enter_as(held, run, prot, Wiring::Pageable).is_ok() {
                return Ok(());
            }
        }
        // There may be memory for one.
        self.enter_as(held, Run::one(self.va, page), prot, Wiring::Pageable)
    }

    #[inline(always)]
    fn enter_as(
        &mut self,
        held: &mut Locked<'_>,
        run: Run,
        prot: Prot,
        wiring: Wiring,
    ) -> Attempt<()> {
        let (pmap, space, down) =
            (self.uvm.mem().pmap(), &self.space.pmap, &mut *self.effects.down);
        Ok(pmap.enter(held, space, run, prot, self.access, wiring, down)?)
    }

    /// Like [`enter`](Self::enter), where the page is to stay: wired, or pinned for a thread that
    /// needs no translation to read it. Its owner's lock is held, or it is on no queue yet.
    #[cold]
    fn enter_kept(&mut self, held: &mut Locked<'_>, page: PageNo, prot: Prot) -> Attempt<()> {
        let frames = self.uvm.frames();
        if self.pins.is_some() && !frames.may_pin(page) {
            return Err(FaultError::TooOften.into());
        }
        // What only a debugger may do is not for a translation.
        let is_programs = prot.contains(self.access);
        if is_programs && self.entry.wired {
            let wiring = match frames.may_wire(page) {
                true => Wiring::Wired,
                false if self.reach == Reach::ToWire => return Err(FaultError::TooOften.into()),
                false => Wiring::Pageable,
            };
            self.end_wiring(held);
            self.enter_as(held, Run::one(self.va, page), prot, wiring)?;
            if wiring == Wiring::Wired {
                frames.wire(page);
            }
        } else if is_programs && self.access == Prot::WRITE {
            self.enter_as(held, Run::one(self.va, page), prot, Wiring::Pageable)?;
        }
        if let Some(to) = self.pins {
            self.pin(page, to);
        }
        Ok(())
    }

    fn pin(&self, page: PageNo, to: &Cell<Option<Pin<M>>>) {
        self.uvm.frames().wire(page);
        let is_stored_to = self.access == Prot::WRITE && self.entry.writes_to().is_some();
        let stored_to =
            self.entry.object.as_ref().filter(|_| is_stored_to).map(|oref| oref.pager.clone());
        if let Some(pager) = &stored_to {
            pager.object().pin_writer();
        }
        let before = to.replace(Some(Pin { page, stored_to }));
        assert!(before.is_none(), "one attempt resolves a fault");
    }

    /// Has every CPU forget what the address shows, before the page is copied that takes its place:
    /// a page of a file may be stored to meanwhile, and a thread that has loaded that store from
    /// here must not find an older copy.
    #[inline]
    pub(super) fn forget_here(&mut self, held: &mut Locked<'_>) {
        if self.entry.wired || self.pins.is_some() {
            self.end_wiring(held);
        }
        self.uvm.mem().pmap().forget(held, &self.space.pmap, self.va, self.effects.down);
    }

    /// Makes what the address shows pageable.
    #[cold]
    fn end_wiring(&mut self, held: &mut Locked<'_>) {
        let machine = self.uvm.mem();
        let one = VaRange::new(self.va, self.va + Pages(1));
        if let Some((_, old)) = machine.pmap().unwire(&self.space.pmap, one) {
            machine.frames().unwire(machine, held, old);
        }
    }

    /// Removes every translation of a page that is replaced in a slot which other entries refer to:
    /// a thread that shares the slot by inheritance must find the new page. Mappings that show the
    /// old one lawfully get it again by a fault.
    pub(super) fn forget_everywhere(&mut self, held: &mut Locked<'_>, page: PageNo) {
        let (machine, down) = (self.uvm.mem(), &mut *self.effects.down);
        for _ in 0..machine.pmap().page_protect(held, page, Prot::NONE, down) {
            machine.frames().unwire(machine, held, page);
        }
        down.flush(machine.pmap());
    }
}
