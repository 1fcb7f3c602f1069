//! What is compared after every step: the system's own audits, every translation, and what programs
//! see.

use super::*;

impl<M: Desk> World<M> {
    /// Everything that must hold between operations.
    pub(super) fn check(&self) -> Result<(), String> {
        self.peek()?;
        self.peek_pins()?;
        self.peek_loans()?;
        self.check_anons()?;
        self.check_maps()?;
        self.check_made()?;
        self.check_system()
    }

    /// Objects within the quota have the pages that were used, and these are counted.
    fn check_made(&self) -> Result<(), String> {
        let none = BTreeMap::new();
        for object in self.model.alive(&none) {
            let made: Vec<u64> = self.model.objects[object].made.iter().copied().collect();
            let stored = self.stored(object);
            if stored != made {
                return Err(format!(
                    "object {object} has pages {stored:?}, ought to have {made:?}"
                ));
            }
        }
        let (used, made) = (self.quota.used() as u64, self.model.made(&none));
        if used == made {
            Ok(())
        } else {
            Err(format!("{used} pages of the quota are used, ought to be {made}"))
        }
    }

    /// The indices at which an object within the quota has a page, in memory or on swap.
    pub(super) fn stored(&self, object: usize) -> Vec<u64> {
        let mut ctx = ThreadCtx::new();
        let held = &mut ctx.held();
        if self.model.objects.get(object).is_none_or(|o| o.kind != Kind::Within) {
            return Vec::new();
        }
        let (body, _) = self.objects[object].object().lock(held);
        let next = |from: u64| body.next_stored(Pages(from)).map(|index| index.0);
        std::iter::successors(next(0), |at| next(at + 1)).collect()
    }

    /// What must hold whatever the model says.
    pub(super) fn check_system(&self) -> Result<(), String> {
        self.machine().audit()?;
        self.line.trouble()?;
        let mut ctx = ThreadCtx::new();
        let spaces: Vec<&Space<M>> = self.spaces.iter().flatten().collect();
        let detached = self.ranges.iter().flatten().map(Detached::space);
        let spaces: Vec<&Space<M>> = spaces.into_iter().chain(detached).collect();
        let objects: Vec<Arc<dyn Pager<M>>> = (0..self.objects.len())
            .filter(|n| self.files.contains_key(n) || self.model.slots.contains(&Some(*n)))
            .map(|n| self.objects[n].clone())
            .collect();
        let loan = self.loans.iter().flatten().flat_map(|loan| loan.pages());
        self.uvm.audit_loans(&mut ctx.held(), &spaces, loan).map_err(|e| format!("audit: {e}"))?;
        if let Some((device, _)) = &self.zram {
            device.audit(&mut ctx.held())?;
        }
        self.uvm.audit(&mut ctx.held(), &spaces, &objects).map_err(|e| format!("audit: {e}"))
    }

    /// Compares every translation with the model.
    fn peek(&self) -> Result<(), String> {
        let mut seen: BTreeMap<u32, Vec<(usize, u64, bool)>> = BTreeMap::new();
        for (s, space) in self.spaces.iter().enumerate() {
            let Some(space) = space else { continue };
            let mut wired = Vec::new();
            for m in self.machine().mappings(space.pmap()) {
                let page = (m.va.0 - BASE.0) >> PAGE_SHIFT;
                self.peek_at(s, page, m.page, m.prot)?;
                seen.entry(m.page.0).or_default().push((s, page, m.prot.contains(Prot::WRITE)));
                if m.wiring == Wiring::Wired {
                    wired.push(page);
                }
            }
            self.peek_wired(s, &wired)?;
        }
        seen.values().try_for_each(|mappings| self.peek_shared(mappings))
    }

    fn peek_at(&self, s: usize, page: u64, frame: PageNo, allowed: Prot) -> Result<(), String> {
        let at = format!("space {s} page {page}");
        let Some(model) = self.model.page(s, page) else {
            return Err(format!("{at} is translated but not mapped"));
        };
        if !prot(model.rights).contains(allowed) {
            return Err(format!(
                "{at} is translated for {allowed:?}, mapped for {:?}",
                prot(model.rights)
            ));
        }
        if allowed.contains(Prot::WRITE) && self.model.stores_to_hole(s, page) {
            return Err(format!("{at} can be stored to, and is a hole"));
        }
        let (shown, ought) = (self.contents(frame), self.model.shows(s, page));
        if ought != Ok(shown) {
            return Err(format!("{at} is translated to {shown:x?}, ought to show {ought:x?}"));
        }
        Ok(())
    }

    /// What a device has is there, on no list of free pages, and holds what the model says as long
    /// as that is certain.
    fn peek_pins(&self) -> Result<(), String> {
        for (pinned, pins) in self.pins.iter().zip(&self.model.pins) {
            let (Some(pinned), Some(pins)) = (pinned, pins) else { continue };
            if pinned.pages().len() != pins.pages.len() {
                return Err(format!(
                    "{} pages are pinned of {}",
                    pinned.pages().len(),
                    pins.pages.len()
                ));
            }
            for (&page, is) in pinned.pages().iter().zip(&pins.pages) {
                let (frames, ought) =
                    (self.machine().frames(), is.and_then(|is| self.model.is(is)));
                if frames.hold_count(page) == 0 || frames.owner(page) == Owner::Free {
                    return Err(format!("{page:?} is pinned, and free to go"));
                }
                if ought.is_some_and(|ought| ought != self.contents(page)) {
                    let holds = self.contents(page);
                    return Err(format!(
                        "{page:?} is pinned and holds {holds:x?}, ought to be {ought:x?}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Whatever the lenders did, borrowers see what was loaned.
    fn peek_loans(&self) -> Result<(), String> {
        for (l, (loan, expected)) in self.loans.iter().zip(&self.model.loans).enumerate() {
            let seen: Option<Vec<Contents>> = loan
                .as_ref()
                .map(|loan| loan.pages().iter().map(|page| self.contents(page.page())).collect());
            if seen != *expected {
                return Err(format!("loan {l} shows {seen:x?}, ought to be {expected:x?}"));
            }
        }
        Ok(())
    }

    /// A page that can be written through one address must be the same memory at all others.
    fn peek_shared(&self, mappings: &[(usize, u64, bool)]) -> Result<(), String> {
        let Some(&(s, page, _)) = mappings.iter().find(|m| m.2) else { return Ok(()) };
        let identity = self.model.identity(s, page);
        for &(other, at, writable) in mappings {
            let same = self.model.identity(other, at) == identity;
            if !same {
                return Err(format!(
                    "a store to space {s} page {page} would show in space {other} page {at}"
                ));
            }
            if writable
                && matches!(identity, Some(Identity::Object(..)))
                && !self.model.stores_in_place(other, at)
            {
                return Err(format!("a store to space {other} page {at} would reach the object"));
            }
        }
        Ok(())
    }

    fn peek_wired(&self, s: usize, wired: &[u64]) -> Result<(), String> {
        for page in 0..WINDOW {
            let Some(at) = self.model.page(s, page) else { continue };
            if wired.contains(&page) && !at.wired {
                return Err(format!(
                    "space {s} page {page} is translated as wired, but isn't wired"
                ));
            }
        }
        Ok(())
    }

    /// Reads the pages that an operation concerned, in every space.
    pub(super) fn look_at(&mut self, op: &Op) -> Result<(), String> {
        let pages = match *op {
            Op::Map { len, at: At::Fixed(page) | At::Free(page) | At::Hint(page), .. } => {
                page..page + len
            }
            Op::Unmap { span, .. } | Op::Protect { span, .. } | Op::Inherit { span, .. } => {
                span.pages()
            }
            Op::Discard { span, .. } | Op::Wire { span, .. } | Op::Unwire { span, .. } => {
                span.pages()
            }
            Op::WireTouched { span, .. } | Op::Pin { span, .. } => span.pages(),
            Op::Inspect { span, .. } | Op::Patch { span, .. } => span.pages(),
            Op::Read { page, .. } | Op::Write { page, .. } | Op::Execute { page, .. } => {
                page..page + 1
            }
            Op::Advise { .. } | Op::Spawn { .. } | Op::NewObject { .. } | Op::Detach { .. } => {
                return Ok(())
            }
            Op::Attach { .. } | Op::PageOutRange { .. } | Op::Cool { .. } => return Ok(()),
            Op::LoanAgain { .. } | Op::Return { .. } | Op::DropRange { .. } => return Ok(()),
            Op::Loan { span, .. } | Op::Give { span, .. } => span.pages(),
            _ => 0..WINDOW,
        };
        for page in pages.start..pages.end.min(WINDOW) {
            for s in 0..SPACES {
                self.look(s, page, (s + page as usize) % self.machine().cpus())?;
            }
        }
        Ok(())
    }
}
