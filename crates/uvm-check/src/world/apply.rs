//! One operation, run on the system.

use super::*;

/// How much of what was dirty has been written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cleaned {
    All,
    Part,
}

impl<M: Desk> World<M> {
    pub(super) fn apply(&mut self, op: &Op, word: u64) -> Result<Got, String> {
        self.machine().stir();
        let mut ctx = ThreadCtx::new();
        let held = &mut ctx.held();
        match *op {
            Op::Spawn { s } => {
                let made = self.uvm.space_create(held, range(Span(0, WINDOW)));
                Ok(made.map_or(Got::NoMemory, |made| {
                    self.spaces[s] = Some(made);
                    Got::Done
                }))
            }
            Op::NewObject { kind, len, .. } => {
                Ok(self.new_object(held, kind, Pages(len)).map_or(Got::NoMemory, |()| Got::Done))
            }
            Op::Truncate { o, len } => {
                self.uvm.truncate(held, &self.object(o), Pages(len));
                if let Some(file) = self.file(o) {
                    file.cut(len);
                }
                Ok(Got::Done)
            }
            Op::ObjectRead { o, page } => {
                let read = |_: &M, page| self.contents(page);
                Ok(
                    match self.uvm.with_page(
                        held,
                        &self.object(o),
                        Pages(page),
                        Intent::Read,
                        Access::PAGE,
                        read,
                    ) {
                        Ok(found) => Got::Sees(found.unwrap_or([0; WORDS])),
                        Err(e) => Got::Object(e),
                    },
                )
            }
            Op::ObjectWrite { o, page, word: at } => {
                if let Some(full) = self.make_room(o, page..page + 1) {
                    return Ok(full);
                }
                let write = |soft: &M, page| soft.write(page, word_offset(at), &word.to_le_bytes());
                let written = self.uvm.with_page(
                    held,
                    &self.object(o),
                    Pages(page),
                    Intent::Write,
                    Access::PAGE,
                    write,
                );
                Ok(written.map_or_else(Got::Object, |_| Got::Done))
            }
            Op::Sync { o } => self.sync(held, o),
            Op::Clean { o, span } => self.clean(held, o, span).map(|_| Got::Done),
            Op::Punch { o, span } => {
                self.uvm.punch(held, &self.object(o), span.pages());
                if let Some(file) = self.file(o) {
                    let len =
                        self.model.objects[self.model.slots[o].expect("the file has a slot")].len;
                    file.punch(span.0..span.pages().end.min(len));
                }
                Ok(Got::Done)
            }
            Op::Room { n } => {
                self.line.set_room(n);
                Ok(Got::Done)
            }
            Op::Quota { n } => {
                self.quota.set_most(n as usize);
                Ok(Got::Done)
            }
            Op::Attach { o, .. } => {
                let used = self.object(o).object().attach_if_used();
                used.then_some(Got::Done)
                    .ok_or_else(|| "an object with a handle has no reference".into())
            }
            Op::Detach { o } => {
                self.uvm.detach(held, &*self.object(o));
                Ok(Got::Done)
            }
            Op::Forget => {
                self.machine().forget_all();
                Ok(Got::Done)
            }
            Op::Exit { s } => {
                let space = self.spaces[s].take().expect("the model has this space");
                self.uvm.space_destroy(held, space);
                Ok(Got::Done)
            }
            Op::Fork { s, child } => {
                let made = self.uvm.fork(held, self.space(s));
                Ok(made.map_or(Got::NoMemory, |made| {
                    self.spaces[child] = Some(made);
                    Got::Done
                }))
            }
            Op::PageOut { n } => {
                let free = self.machine().frames().free();
                self.uvm.pageout(held, free + n);
                Ok(Got::Done)
            }
            Op::Pin { p, s, span, access } => {
                let pinned = self.uvm.wire_pages(held, self.space(s), range(span), prot(access));
                Ok(pinned.map_or_else(Got::Refused, |pinned| {
                    self.pins[p] = Some(pinned);
                    Got::Done
                }))
            }
            Op::Unpin { p, word: at } => {
                self.unpin(held, p, at, word);
                Ok(Got::Done)
            }
            Op::Inspect { s, span } => self.inspect(held, s, span),
            Op::Patch { s, span, word: at } => Ok(self.patch(held, s, span, at, word)),
            Op::Loan { l, s, span } => {
                let loan = self.uvm.loan_to_kernel(held, self.space(s), range(span));
                Ok(loan.map_or_else(Got::Refused, |loan| {
                    self.loans[l] = Some(loan);
                    Got::Done
                }))
            }
            Op::Give { l, s, span } => {
                let given = give(&self.uvm, held, self.space(s), span);
                Ok(given.map_or_else(Got::Refused, |loan| {
                    self.loans[l] = Some(loan);
                    Got::Done
                }))
            }
            Op::LoanObject { l, o, span } => {
                let mut loan = Loan::new();
                let done = self.uvm.loan_object(
                    held,
                    &self.object(o),
                    Pages(span.0),
                    span.1 as usize,
                    &mut loan,
                );
                Ok(done.map_or_else(Got::Object, |_| {
                    self.loans[l] = Some(loan);
                    Got::Done
                }))
            }
            Op::LoanAgain { l, to } => {
                let loan = self.loans[l].as_ref().expect("the model has this loan");
                let _host = host();
                let again = loan.pages().iter().map(|page| self.uvm.loan_again(page));
                self.loans[to] =
                    Some(again.map(|page| page.expect("it is loaned rarely")).collect());
                Ok(Got::Done)
            }
            Op::Pass { s, span, to, at, way } => {
                let (from, to) = (self.space(s), self.space(to));
                Ok(placed(self.uvm.pass_range(held, from, range(span), to, place(at), pass(way))))
            }
            Op::Extract { r, s, span, way } => {
                let taken = self.uvm.extract(held, self.space(s), range(span), pass(way));
                Ok(taken.map_or_else(Got::Map, |taken| {
                    self.ranges[r] = Some(taken);
                    Got::Done
                }))
            }
            Op::AttachRange { r, s, at } => {
                let taken = self.ranges[r].take().expect("the model has this range");
                Ok(match self.uvm.attach_range(held, self.space(s), taken, place(at)) {
                    Ok(at) => Got::Placed(at),
                    Err((e, taken)) => {
                        self.ranges[r] = Some(taken);
                        Got::Map(e)
                    }
                })
            }
            Op::DropRange { r } => {
                let taken = self.ranges[r].take().expect("the model has this range");
                self.uvm.drop_detached(held, taken);
                Ok(Got::Done)
            }
            Op::Transfer { l, s, page } => Ok(self.transfer(held, l, s, To::Fixed(va(page)))),
            Op::TransferAnywhere { l, s } => Ok(self.transfer(held, l, s, To::Anywhere)),
            Op::Limit { r, rights } => {
                let range = self.ranges[r].as_ref().expect("the model has this range");
                self.uvm.limit(held, range, prot(rights));
                Ok(Got::Done)
            }
            Op::Return { l } => {
                let loan = self.loans[l].take().expect("the model has this loan");
                self.uvm.return_loan(held, loan).unwrap();
                Ok(Got::Done)
            }
            Op::SwapOn { d } => Ok(self.swap_on(held, d)),
            Op::SwapOff { d } => Ok(self.swap_off(held, d)),
            Op::Zram { percent } => {
                let set = Zram::set_share(&self.uvm, held, &mut self.zram, percent);
                Ok(set.map_or_else(Got::Swap, |()| Got::Done))
            }
            Op::CompleteIo { k } => {
                self.machine().complete(k, Fate::Works);
                Ok(Got::Done)
            }
            Op::FailIo { k } => {
                self.machine().complete(k, Fate::Fails);
                Ok(Got::Done)
            }
            Op::Read { s, page, cpu } => self.load(s, page, cpu),
            Op::Write { s, page, cpu, word: at } => self.store(s, page, cpu, at, word),
            Op::Execute { s, page, cpu } => self.execute(s, page, cpu),
            Op::Map { s, at, len, back, rights, inherit } => {
                let request = request(|o| self.object(o), at, len, back, rights, inherit);
                Ok(placed(self.uvm.map(held, self.space(s), &request)))
            }
            _ => Ok(on_range(&self.uvm, held, self.space(subject(op)), op)),
        }
    }

    /// Writes what the model says that the device writes, and gives the pages back.
    fn unpin(&mut self, held: &mut Held<'_, Nothing>, p: usize, at: usize, word: u64) {
        let pinned = self.pins[p].take().expect("the model says that it is pinned");
        let pins = self.model.pins[p].as_ref().expect("the model has it too");
        let known =
            pins.pages.iter().zip(pinned.pages()).filter(|(is, _)| {
                pins.access == 2 && is.is_some_and(|is| self.model.is(is).is_some())
            });
        for (n, (_, &page)) in known.enumerate() {
            self.machine().write(page, word_offset(at), &(word + n as u64).to_le_bytes());
        }
        self.uvm.unwire_pages(held, pinned).unwrap();
    }

    /// The second device is preferred.
    fn swap_on(&mut self, held: &mut Held<'_, Nothing>, d: usize) -> Got {
        self.swaps[d].renew();
        match self.uvm.swap_on(held, self.swaps[d].clone(), d as i16) {
            Ok(id) => {
                self.on[d] = Some(id);
                Got::Done
            }
            Err(e) => Got::Swap(e),
        }
    }

    fn transfer(&mut self, held: &mut Held<'_, Nothing>, l: usize, s: usize, to: To) -> Got {
        let loan = self.loans[l].take().expect("the model has this loan");
        match self.uvm.transfer(held, self.space(s), loan, to) {
            Ok(at) => Got::Placed(at),
            Err((e, loan)) => {
                self.loans[l] = Some(loan);
                Got::Transfer(e)
            }
        }
    }

    fn swap_off(&mut self, held: &mut Held<'_, Nothing>, d: usize) -> Got {
        let id = self.on[d].expect("the model says that it is on");
        match self.uvm.swap_off(held, id) {
            Ok(()) => {
                self.swaps[d].leave();
                self.on[d] = None;
                Got::Done
            }
            Err(e) => Got::Swap(e),
        }
    }

    fn new_object(
        &mut self,
        held: &mut Held<'_, Nothing>,
        kind: Kind,
        len: Pages,
    ) -> Result<(), NoMemory> {
        let number = self.objects.len();
        let object: Arc<dyn Pager<M>> = match kind {
            Kind::Anon => AnonObject::new(&self.uvm, held, len)?,
            Kind::Within => AnonObject::within(&self.uvm, held, len, self.quota.clone(), None)?,
            Kind::File => {
                let file = File::new(&self.uvm, held, &self.line, number, len)?;
                let pager = file.pager().clone();
                pager.object().attach();
                let _host = host();
                self.files.insert(number, file);
                pager
            }
            Kind::Device => {
                let first = self.idle_run();
                for n in 0..RUN {
                    print(self.machine(), PageNo(first.0 + n as u32), n);
                }
                DevicePager::new(&self.uvm, held, first, Pages(len.0.min(RUN)))?
            }
            Kind::Rom => Rom::new(&self.uvm, self.chips, len),
        };
        let _host = host();
        self.objects.push(object);
        Ok(())
    }

    /// Frames of a device that has no user.
    fn idle_run(&self) -> PageNo {
        let frames = self.machine().frames();
        let idle = |first: &u32| {
            (*first..*first + RUN as u32)
                .map(PageNo)
                .all(|page| frames.owner(page) == Owner::Kernel && frames.hold_count(page) == 0)
        };
        let mut runs = (frames.total() as u32..frames.numbers() as u32).step_by(RUN as usize);
        PageNo(runs.find(idle).expect("more runs than the model uses"))
    }

    /// Writes part of a file back, and compares what arrived with what ought to be stored. An error
    /// must be reported exactly if a page could not be written; says whether it was.
    fn clean(&self, held: &mut Held<'_, Nothing>, o: usize, span: Span) -> Result<Cleaned, String> {
        let Some(file) = self.file(o) else { return Ok(Cleaned::All) };
        let number = self.model.slots[o].expect("the model has this object");
        self.line.take_unwritten();
        let result = file.pager().clean(&self.uvm, held, span.pages());
        let mut failed = self.line.take_unwritten();
        failed.retain(|&(object, _)| object == number);
        let inside = failed.iter().any(|(_, index)| span.pages().contains(index));
        if result.is_err() && failed.is_empty() || result.is_ok() && inside {
            return Err(format!("writing back said {result:?}, and what failed is {failed:?}"));
        }
        for (index, ought) in self.model.objects[number].pages.range(span.pages()) {
            let stored = file.stored(*index);
            if stored != *ought && !failed.contains(&(number, *index)) {
                return Err(format!(
                    "file page {index} was written back as {stored:x?}, ought to be {ought:x?}"
                ));
            }
        }
        Ok(if failed.is_empty() { Cleaned::All } else { Cleaned::Part })
    }

    /// Writes a file back, and drops the pages, as a host does that needs memory.
    fn sync(&self, held: &mut Held<'_, Nothing>, o: usize) -> Result<Got, String> {
        let object = self.model.slots[o].expect("the model has this object");
        let len = self.model.objects[object].len;
        if self.clean(held, o, Span(0, len))? == Cleaned::Part {
            return Ok(Got::Done);
        }
        let pager = self.object(o);
        for index in 0..len {
            let page = pager.object().lock(held).0.page(Pages(index));
            if page.is_some_and(|page| self.machine().frames().hold_count(page) == 0) {
                self.uvm.punch(held, &pager, index..index + 1);
            }
        }
        Ok(Got::Done)
    }

    /// Has room made on the disk for pages of a file that are about to be written, as a host's
    /// `write` does; `None` where that works, or is not needed.
    fn make_room(&self, o: usize, pages: std::ops::Range<u64>) -> Option<Got> {
        let len = self.model.objects[self.model.slots[o]?].len;
        let file = self.file(o).filter(|_| pages.end <= len)?;
        let is_full = pages.into_iter().any(|page| file.fill_hole(page).is_err());
        is_full.then_some(Got::Object(GetError::NoSpace))
    }

    pub(super) fn file(&self, o: usize) -> Option<&File<M>> {
        self.files.get(&self.model.slots[o]?)
    }

    pub(super) fn space(&self, s: usize) -> &Space<M> {
        self.spaces[s].as_ref().expect("the model has this space")
    }

    /// The object that a slot names; the model is one step behind.
    pub(super) fn object(&self, o: usize) -> Arc<dyn Pager<M>> {
        self.objects[self.model.slots[o].expect("the model has this object")].clone()
    }

    pub(super) fn load(&self, s: usize, page: u64, cpu: usize) -> Result<Got, String> {
        let mut contents = [0; WORDS];
        for (at, word) in contents.iter_mut().enumerate() {
            let mut bytes = [0; 8];
            let va = Va(va(page).0 + word_offset(at) as u64);
            let result =
                self.machine().load(cpu, self.space(s).pmap(), va, &mut bytes, |va, access| {
                    self.fault(s, va, access)
                });
            match accessed(result)? {
                Got::Done => *word = u64::from_le_bytes(bytes),
                refused => return Ok(refused),
            }
        }
        Ok(Got::Sees(contents))
    }

    fn store(&self, s: usize, page: u64, cpu: usize, at: usize, word: u64) -> Result<Got, String> {
        let va = Va(va(page).0 + word_offset(at) as u64);
        let bytes = word.to_le_bytes();
        accessed(
            self.machine().store(cpu, self.space(s).pmap(), va, &bytes, |va, access| {
                self.fault(s, va, access)
            }),
        )
    }

    /// A fetch shows the same bytes as a load, but needs another right.
    fn execute(&self, s: usize, page: u64, cpu: usize) -> Result<Got, String> {
        let fault = |va, access| self.fault(s, va, access);
        match self.machine().fetch(cpu, self.space(s).pmap(), va(page), fault) {
            Ok(page) => Ok(Got::Sees(self.contents(page))),
            Err(denied) => accessed(Err(denied)),
        }
    }

    fn fault(&self, s: usize, va: Va, access: Prot) -> Result<(), FaultError> {
        let mut ctx = ThreadCtx::new();
        let held = &mut ctx.held();
        // Where memory runs out, a fault keeps its turn in the line until that is known.
        if self.setup.memory == Memory::Suffices && self.setup.machine.seed % 4 == 1 {
            return self.poll_fault(held, s, va, access);
        }
        self.uvm.fault(held, self.space(s), va, access).map(|_| ())
    }

    /// A fault as a task makes it that is polled.
    fn poll_fault(
        &self,
        held: &mut Held<'_, Nothing>,
        s: usize,
        va: Va,
        access: Prot,
    ) -> Result<(), FaultError> {
        loop {
            match self.uvm.try_fault(held, self.space(s), va, access) {
                Ok(ahead) => {
                    ahead.into_iter().for_each(|read| self.uvm.start_read(held, read));
                    return Ok(());
                }
                Err(Retry::Read(read)) => self.uvm.start_read(held, read),
                Err(Retry::Wait(ticket)) => self.machine().wait(held, ticket),
                Err(Retry::Hole(hole)) => self.uvm.make_hole_room(held, hole)?,
                Err(Retry::Memory(_)) if self.uvm.make_room(held) => {}
                Err(Retry::Memory(_)) => return Err(FaultError::NoMemory),
                Err(Retry::Failed(e)) => return Err(e),
            }
        }
    }

    pub(super) fn contents(&self, page: PageNo) -> Contents {
        std::array::from_fn(|word| {
            let mut bytes = [0; 8];
            self.machine().read(page, word_offset(word), &mut bytes);
            u64::from_le_bytes(bytes)
        })
    }
}
