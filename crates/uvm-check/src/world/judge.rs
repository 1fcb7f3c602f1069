//! One step on model and system, and what may be answered: once as it comes, or with everything
//! failing in turn.

use super::*;

/// What runs short.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scarce {
    /// Heap reservations.
    Heap,
    /// Page tables.
    Tables,
    /// Page frames.
    Frames,
}

/// For how long it runs short.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lasting {
    /// One call fails.
    Once,
    /// It and all that follow fail, until the operation gives up.
    ForGood,
}

/// Operations of several steps: one that fails may leave the first of them done, as its
/// documentation says.
fn partial(op: &Op) -> bool {
    match op {
        Op::Wire { .. } | Op::Pin { .. } => true,
        Op::Patch { span, .. } => span.1 > 1,
        Op::Remap { span, new_len, .. } => *new_len < span.1,
        _ => false,
    }
}

impl<M: Desk> World<M> {
    /// Runs one operation on both and compares.
    ///
    /// # Errors
    /// A sentence that says what differs.
    pub fn step(&mut self, op: &Op) -> Result<(), String> {
        let word = self.model.next_store();
        let mut after = self.model.clone();
        let expect = after.apply(op);
        if expect == Expect::Skip || self.leaves_out(op) {
            return Ok(());
        }
        let got = self.apply_charged(op, word)?;
        self.judge(op, after, &expect, &got)
    }

    /// Runs one operation again and again, the first time with the first call that can fail
    /// failing, then the second, until it needs no more calls; `first` calls are spared. An
    /// operation that fails once may try again by itself, after a pass of the page daemon, and is
    /// done then. Each failure must leave everything as it was. Says how many there were.
    ///
    /// # Errors
    /// A sentence that says what differs.
    pub fn step_against(
        &mut self,
        op: &Op,
        scarce: Scarce,
        lasting: Lasting,
        first: u64,
    ) -> Result<u64, String> {
        let word = self.model.next_store();
        let mut after = self.model.clone();
        let expect = after.apply(op);
        if expect == Expect::Skip || matches!(op, Op::SwapOn { .. } | Op::SwapOff { .. }) {
            return self.step(op).map(|()| 0);
        }
        if self.wires_as_it_can(op) {
            return self.step(op).map(|()| 0);
        }
        let mut failures = 0;
        loop {
            self.arm(scarce, lasting, first + failures);
            let got = self.apply_charged(op, word);
            self.disarm();
            let got = got?;
            self.learn_filled(&mut after);
            if got.is_no_memory() {
                self.learn_made(&mut after);
            }
            if !self.uvm.clear_left(&mut ThreadCtx::new().held()) {
                return Err("slots without a reference stay, though there is heap".into());
            }
            // Beyond so many the shortage is the world's own.
            if !got.is_no_memory() || first + failures > 40 {
                self.is_injected = true;
                let judged = self.judge(op, after, &expect, &got);
                self.is_injected = false;
                return judged.map(|()| failures);
            }
            let checked = if partial(op) { self.check_system() } else { self.check() };
            checked
                .map_err(|e| format!("after failure {failures} of {scarce:?} in {op:?}: {e}"))?;
            failures += 1;
        }
    }

    /// Runs one operation, and takes it for an error if it allocates more than it has reserved.
    fn apply_charged(&mut self, op: &Op, word: u64) -> Result<Got, String> {
        let (got, fault) = M::charged(|| self.apply(op, word));
        fault.map_or(got, |fault| Err(fault.into()))
    }

    /// Compares an answer with what the model expects, and accepts what a device's failure or a
    /// lack of memory excuse.
    fn judge(
        &mut self,
        op: &Op,
        mut after: Model,
        expect: &Expect,
        got: &Got,
    ) -> Result<(), String> {
        self.learn_filled(&mut after);
        if self.learn_losses() != 0 {
            return self.judge_anew(op, got);
        }
        self.shorten(op, &mut after);
        let mut expect = *expect;
        if let (Op::TransferAnywhere { l, s }, Got::Placed(at)) = (*op, *got) {
            after = self.model.clone();
            expect = after.transfer_at(l, s, at.0.wrapping_sub(BASE.0) >> PAGE_SHIFT);
        }
        match compare(&expect, got) {
            Ok(()) => {
                self.model = after;
                if matches!(got, Got::Sees(_) | Got::Done) {
                    self.model.trust(op);
                }
            }
            // What a device has may not fit elsewhere, and what it can't read is reported once.
            Err(_) if *got == Got::Swap(SwapError::NoMemory) => self.excuse_shortage(op)?,
            Err(_) if *got == Got::Swap(SwapError::Io) && self.model.doubts_anything() => {}
            Err(_) if got.is_no_memory() && self.setup.memory == Memory::MayRunOut => {
                self.excuse_shortage(op)?;
                self.learn_made(&mut after);
                self.shortages += 1;
                self.over |= partial(op);
            }
            Err(_) if got.is_io() && self.model.after_loss(op).is_some() => {
                self.model = self.model.after_loss(op).expect("it was there a moment ago");
            }
            // Which of its pages it was that is lost, and what was done before it was met, can't be
            // told.
            Err(_) if (got.is_io() || self.wires_as_it_can(op)) && self.model.doubts(op) => {
                self.over = true
            }
            Err(why) => return Err(why),
        }
        if self.over {
            return self.check_system();
        }
        self.check()?;
        if self.setup.watch == Watch::Look {
            self.look_at(op)?;
            self.check()?;
        }
        Ok(())
    }

    /// A loan of an object's pages may be shorter where memory or a device fails; never empty.
    fn shorten(&self, op: &Op, after: &mut Model) {
        let Op::LoanObject { l, .. } = *op else { return };
        let (Some(loan), Some(ought)) = (&self.loans[l], &mut after.loans[l]) else { return };
        if self.setup.memory == Memory::MayRunOut || self.is_injected || self.model.doubts(op) {
            ought.truncate(loan.len().max(1));
        }
    }

    /// Like [`judge`](Self::judge), after the model has learnt of a failure that happened during
    /// the operation.
    fn judge_anew(&mut self, op: &Op, got: &Got) -> Result<(), String> {
        let mut after = self.model.clone();
        let expect = after.apply(op);
        self.judge(op, after, &expect, got)
    }

    /// Tells the model, as it was and as it ought to be, which holes the disk has found room for:
    /// whether the store came to its end or not, it has.
    fn learn_filled(&mut self, after: &mut Model) {
        for (object, index) in self.line.take_filled() {
            self.model.fill_hole(object, index);
            after.fill_hole(object, index);
        }
    }

    /// Tells the model which pages an operation that found no memory has had made for objects
    /// within the quota: they stay, and are zeroes. None of those that were there may have gone.
    fn learn_made(&mut self, after: &mut Model) {
        for object in 0..self.objects.len() {
            let made = self.stored(object);
            self.model.objects[object].made.extend(&made);
            after.objects[object].made.extend(&made);
        }
    }

    /// Tells the model which blocks could not be read, and says how many they were.
    pub(super) fn learn_losses(&mut self) -> usize {
        let lost = self.line.take_lost();
        lost.iter().for_each(|lost| self.model.doubt(lost));
        lost.len()
    }

    /// Reads one page as a program does, and compares.
    pub(super) fn look(&mut self, s: usize, page: u64, cpu: usize) -> Result<(), String> {
        self.machine().stir();
        if self.spaces[s].is_none() {
            return Ok(());
        }
        let got = self.load(s, page, cpu)?;
        self.learn_losses();
        let op = Op::Read { s, page, cpu };
        let mut after = self.model.clone();
        match compare(&after.apply(&op), &got) {
            Ok(()) => {
                self.model = after;
                if matches!(got, Got::Sees(_)) {
                    self.model.trust(&op);
                }
            }
            Err(_) if got.is_no_memory() && self.setup.memory == Memory::MayRunOut => {}
            Err(why) => match self.model.after_loss(&op) {
                Some(after) if got.is_io() => self.model = after,
                _ => return Err(format!("space {s} page {page}: {why}")),
            },
        }
        Ok(())
    }

    /// What this world can't run: a device without slots, and what shortage makes a matter of luck.
    fn leaves_out(&self, op: &Op) -> bool {
        match *op {
            Op::SwapOn { d } => self.setup.swaps[d] == 0,
            Op::Remap { .. } | Op::RemapKeep { .. } => {
                self.setup.memory == Memory::MayRunOut && self.wires_as_it_can(op)
            }
            _ => false,
        }
    }

    /// Whether the operation wires its result again by best effort, so that a shortage shows in
    /// what is wired.
    fn wires_as_it_can(&self, op: &Op) -> bool {
        let wired = |s, page| self.model.page(s, page).is_some_and(|at| at.wired);
        matches!(*op, Op::Remap { s, span, .. } | Op::RemapKeep { s, span, .. } if span.pages().any(|page| wired(s, page)))
    }

    /// Makes the call fail that follows `n` calls that work, or all from it on.
    fn arm(&self, scarce: Scarce, lasting: Lasting, n: u64) {
        match (self.machine().injector(scarce), lasting) {
            (None, _) if scarce == Scarce::Frames => self.machine().leave_free(n as usize),
            (None, _) => {}
            (Some(calls), Lasting::Once) => calls.fail_nth(n + 1),
            (Some(calls), Lasting::ForGood) => calls.fail_from(n + 1),
        }
    }

    fn disarm(&self) {
        for calls in [Scarce::Heap, Scarce::Tables].map(|scarce| self.machine().injector(scarce)) {
            calls.into_iter().for_each(|calls| calls.fail_nth(0));
        }
        self.machine().give_back();
    }
}
