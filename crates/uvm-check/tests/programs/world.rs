//! The VM system under a program: what its threads share, and what each operation answered.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use machine::order::Nothing;
use machine::{Held, Machine, PageNo, Pages, Prot, ThreadCtx, Va};
use uvm::{
    Access, AnonObject, At as To, Detached, FaultError, Intent, Loan, Pager, Pinned, Space, SwapId,
    Uvm,
};
use uvm_check::host::{File, Line, Manner, SwapDisk};
use uvm_check::model::Contents;
use uvm_check::op::{Kind, Op, Span, LOANS, OBJECTS, PINS, RANGES, SPACES, WINDOW, WORDS};
use uvm_check::world::answer::{accessed, pass, place, placed, prot, range, va, word_offset, Got};
use uvm_check::world::ranges::{on_range, request, subject};
use uvm_soft::{host, within_reservation, Config, Fate, IoBy, ShuttleThreads, SoftMachine, Stage};

use crate::program::PAGES;

pub type Soft = SoftMachine<ShuttleThreads>;

/// Page frames: more than a program can fill, so that no operation may say that there is none.
const FRAMES: u32 = 96;
/// Slots of the swap device.
const SLOTS: u32 = 32;
/// Readers one after another, with no writer between, after which a lock is open to all.
const READS_TO_OPEN: usize = 6;
/// Pages of addresses that are looked at in the end: a program's, and where it may have moved them.
pub const SHOWN: u64 = 3 * PAGES;

/// What an operation answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// What it names isn't there: nothing was done.
    Skipped,
    /// As in the runs of one thread.
    Got(Got),
    /// An access saw this in one word of the page; which word says the CPU.
    Word(usize, u64),
    /// An instruction was fetched from the page.
    Fetched,
    /// What was to be given was loaned, since it can't be given.
    LoanedInstead,
    /// What a loan held when it was given back.
    Loan(Vec<Contents>),
}

/// What can be seen when all threads have ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndState {
    /// By space and page of addresses; `None` where the space isn't there.
    pub pages: Vec<Vec<Option<Got>>>,
    /// By loan.
    pub loans: [Option<Vec<Contents>>; LOANS],
}

/// One operation that was run, and when: operation A came before B if A's end is before B's begin.
#[derive(Clone, Debug)]
pub struct Event {
    pub op: Op,
    /// The number that its store writes.
    pub number: u64,
    pub answer: Answer,
    pub begin: u64,
    pub end: u64,
}

impl Event {
    /// Whether neither came before the other.
    pub fn meets(&self, other: &Event) -> bool {
        self.begin < other.end && other.begin < self.end
    }
}

/// A place for a value that no thread has, or one.
type Slot<T> = Mutex<Option<T>>;

fn hold<T>(slot: &Mutex<T>) -> MutexGuard<'_, T> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

/// See the module.
pub struct World {
    uvm: Arc<Uvm<Soft>>,
    spaces: [Slot<Arc<Space<Soft>>>; SPACES],
    objects: [Slot<Arc<dyn Pager<Soft>>>; OBJECTS],
    file: Slot<Arc<File<Soft>>>,
    /// Held while a file's length changes, as a host's lock of the file.
    resizing: shuttle::sync::Mutex<()>,
    loans: [Slot<Loan>; LOANS],
    pins: [Slot<Pinned<Soft>>; PINS],
    ranges: [Slot<Detached<Soft>>; RANGES],
    line: Arc<Line>,
    swap: Arc<SwapDisk<Soft>>,
    swap_is_on: Slot<SwapId>,
    clock: AtomicU64,
    free: usize,
}

impl World {
    /// An empty world. `seed` says when transfers end and what the pmap forgets.
    pub fn new(seed: u64) -> World {
        let config = Config {
            segments: vec![(machine::Pa(0), FRAMES)],
            cpus: 4,
            seed,
            forget_one_in: [0, 0, 3][(seed % 3) as usize],
            stage: Stage::Concurrent,
            io: IoBy::Waiters,
            ..Config::default()
        };
        let uvm = Arc::new(
            SoftMachine::with_threads(&config).into_uvm().expect("a new machine has memory"),
        );
        let held = &mut ThreadCtx::new();
        // The page of zeroes is made when it is first needed, and stays.
        let zero = uvm.zero_page(&mut held.held()).expect("a new machine has memory");
        uvm.return_page(&mut held.held(), zero).unwrap();
        let free = uvm.frames().free();
        let line = Line::new(Manner::Either, seed);
        let swap = SwapDisk::new(&uvm, &line, SLOTS);
        World {
            uvm,
            spaces: Default::default(),
            objects: Default::default(),
            file: Slot::default(),
            resizing: shuttle::sync::Mutex::new(()),
            loans: Default::default(),
            pins: Default::default(),
            ranges: Default::default(),
            line,
            swap,
            swap_is_on: Slot::default(),
            clock: AtomicU64::new(0),
            free,
        }
    }

    /// Puts the calling thread on a CPU.
    pub fn use_cpu(&self, cpu: usize) {
        self.uvm.machine().run_on(cpu);
    }

    /// Ends all transfers that are under way, as a device does that has time. A thread that is left
    /// behind may wait for one.
    pub fn end_transfers(&self) {
        while self.uvm.machine().complete(0, Fate::Works) {}
    }

    /// Reads map and amaps often enough without a change, by faults, that CPUs read them beside
    /// each other from then on; then forgets the translations that the faults made.
    pub fn open_locks(&self) {
        for space in self.spaces.iter().filter_map(|space| hold(space).clone()) {
            for page in (0..PAGES).flat_map(|page| [page; READS_TO_OPEN]) {
                // Where nothing can be read there is nothing to open.
                let _ = self.fault(&space, va(page), Prot::READ);
            }
        }
        self.uvm.machine().pmap().forget_all();
    }

    /// Runs an operation and says what came of it.
    pub fn run(&self, op: &Op, number: u64) -> Event {
        let begin = self.clock.fetch_add(1, SeqCst);
        let resizes = matches!(op, Op::Truncate { .. });
        let _resizing = resizes.then(|| self.resizing.lock().unwrap());
        let answer = within_reservation(|| self.apply(op, number));
        Event { op: *op, number, answer, begin, end: self.clock.fetch_add(1, SeqCst) }
    }

    fn space(&self, s: usize) -> Option<Arc<Space<Soft>>> {
        hold(&self.spaces[s]).clone()
    }

    fn object(&self, o: usize) -> Arc<dyn Pager<Soft>> {
        hold(&self.objects[o]).clone().expect("programs begin with their objects")
    }

    fn file(&self, o: usize) -> Option<Arc<File<Soft>>> {
        let file = hold(&self.file).clone()?;
        let pager: Arc<dyn Pager<Soft>> = file.pager().clone();
        Arc::ptr_eq(&pager, &self.object(o)).then_some(file)
    }

    fn apply(&self, op: &Op, number: u64) -> Answer {
        let mut ctx = ThreadCtx::new();
        let held = &mut ctx.held();
        match *op {
            Op::Read { .. } | Op::Write { .. } | Op::Execute { .. } => self.access(op, number),
            Op::Spawn { .. }
            | Op::Fork { .. }
            | Op::Exit { .. }
            | Op::Map { .. }
            | Op::Pass { .. } => self.apply_to_spaces(held, op),
            Op::NewObject { .. }
            | Op::Truncate { .. }
            | Op::ObjectRead { .. }
            | Op::ObjectWrite { .. } => self.apply_to_object(held, op, number),
            Op::Clean { .. } | Op::Sync { .. } | Op::Punch { .. } => {
                self.apply_to_object(held, op, number)
            }
            Op::Loan { .. } | Op::LoanObject { .. } | Op::Give { .. } | Op::Return { .. } => {
                self.apply_to_loan(held, op)
            }
            Op::Transfer { .. } => self.apply_to_loan(held, op),
            Op::Pin { .. } | Op::Unpin { .. } => self.apply_to_pin(held, op),
            Op::Extract { .. } | Op::AttachRange { .. } | Op::DropRange { .. } => {
                self.apply_to_detached(held, op)
            }
            Op::SwapOn { .. } | Op::SwapOff { .. } => self.switch(held, op),
            Op::Forget => {
                self.uvm.machine().pmap().forget_all();
                Answer::Got(Got::Done)
            }
            Op::PageOut { n } => {
                self.uvm.pageout(held, self.uvm.frames().free() + n);
                Answer::Got(Got::Done)
            }
            _ => match self.space(subject(op)) {
                Some(space) => Answer::Got(on_range(&self.uvm, held, &space, op)),
                None => Answer::Skipped,
            },
        }
    }

    fn apply_to_spaces(&self, held: &mut Held<'_, Nothing>, op: &Op) -> Answer {
        let keep = |s: usize, made: Space<Soft>| {
            let _host = host();
            *hold(&self.spaces[s]) = Some(Arc::new(made));
        };
        match *op {
            Op::Spawn { s } => {
                let bounds = range(Span(0, WINDOW));
                keep(s, self.uvm.space_create(held, bounds).expect("there is memory"));
                Answer::Got(Got::Done)
            }
            Op::Fork { s, child } => {
                let Some(parent) = self.space(s).filter(|_| self.space(child).is_none()) else {
                    return Answer::Skipped;
                };
                let made = self.uvm.fork(held, &parent);
                Answer::Got(made.map_or(Got::NoMemory, |made| {
                    keep(child, made);
                    Got::Done
                }))
            }
            Op::Exit { s } => {
                let Some(space) = hold(&self.spaces[s]).take() else { return Answer::Skipped };
                let space = Arc::into_inner(space).expect("no other thread names this space");
                self.uvm.space_destroy(held, space);
                Answer::Got(Got::Done)
            }
            Op::Map { s, at, len, back, rights, inherit } => {
                let Some(space) = self.space(s) else { return Answer::Skipped };
                let request = request(|o| self.object(o), at, len, back, rights, inherit);
                Answer::Got(placed(self.uvm.map(held, &space, &request)))
            }
            Op::Pass { s, span, to, at, way } => {
                let (Some(from), Some(to)) = (self.space(s), self.space(to)) else {
                    return Answer::Skipped;
                };
                let passed =
                    self.uvm.pass_range(held, &from, range(span), &to, place(at), pass(way));
                Answer::Got(placed(passed))
            }
            _ => unreachable!("{op:?}"),
        }
    }

    fn apply_to_object(&self, held: &mut Held<'_, Nothing>, op: &Op, number: u64) -> Answer {
        let with =
            |held: &mut Held<'_, Nothing>, o, page, intent, act: &mut dyn FnMut(&Soft, PageNo)| {
                let act = |machine: &Soft, page| act(machine, page);
                self.uvm.with_page(held, &self.object(o), Pages(page), intent, Access::PAGE, act)
            };
        let got = match *op {
            Op::NewObject { o, kind, len } => self.new_object(held, o, kind, Pages(len)),
            Op::Truncate { o, len } => {
                self.uvm.truncate(held, &self.object(o), Pages(len));
                if let Some(file) = self.file(o) {
                    file.cut(len);
                }
                Got::Done
            }
            Op::ObjectRead { o, page } => {
                let mut seen = 0;
                let mut read = |machine: &Soft, page| seen = read_word(machine, page, 0);
                match with(held, o, page, Intent::Read, &mut read) {
                    Ok(_) => return Answer::Word(0, seen),
                    Err(e) => Got::Object(e),
                }
            }
            Op::ObjectWrite { o, page, word } => {
                let bytes = number.to_le_bytes();
                let mut write =
                    |machine: &Soft, page| machine.write(page, word_offset(word), &bytes);
                with(held, o, page, Intent::Write, &mut write)
                    .map_or_else(Got::Object, |_| Got::Done)
            }
            Op::Punch { o, span } => {
                self.uvm.punch(held, &self.object(o), span.pages());
                Got::Done
            }
            Op::Clean { o, span } => {
                let Some(file) = self.file(o) else { return Answer::Skipped };
                file.pager().clean(&self.uvm, held, span.pages()).expect("the disk works");
                Got::Done
            }
            Op::Sync { o } => {
                let Some(file) = self.file(o) else { return Answer::Skipped };
                file.pager().drop_clean(&self.uvm, held, 0..WINDOW);
                Got::Done
            }
            _ => unreachable!("{op:?}"),
        };
        Answer::Got(got)
    }

    fn new_object(&self, held: &mut Held<'_, Nothing>, o: usize, kind: Kind, len: Pages) -> Got {
        let object: Arc<dyn Pager<Soft>> = if kind == Kind::File {
            let file = File::new(&self.uvm, held, &self.line, o, len).expect("there is memory");
            let pager = file.pager().clone();
            pager.object().attach();
            let _host = host();
            *hold(&self.file) = Some(Arc::new(file));
            pager
        } else {
            AnonObject::new(&self.uvm, held, len).expect("there is memory")
        };
        *hold(&self.objects[o]) = Some(object);
        Got::Done
    }

    fn apply_to_loan(&self, held: &mut Held<'_, Nothing>, op: &Op) -> Answer {
        let (Op::Loan { l, .. } | Op::LoanObject { l, .. } | Op::Give { l, .. } | Op::Return { l }) =
            *op
        else {
            return self.transfer(held, op);
        };
        let has = hold(&self.loans[l]).is_some();
        let made = match *op {
            Op::Return { .. } => {
                let Some(loan) = hold(&self.loans[l]).take() else { return Answer::Skipped };
                let held_bytes = self.bytes(&loan);
                self.uvm.return_loan(held, loan).unwrap();
                return Answer::Loan(held_bytes);
            }
            _ if has => return Answer::Skipped,
            Op::LoanObject { o, span, .. } => {
                let mut loan = Loan::new();
                let pages = span.1 as usize;
                self.uvm
                    .loan_object(held, &self.object(o), Pages(span.0), pages, &mut loan)
                    .map(|_| loan)
                    .map_err(Got::Object)
            }
            Op::Loan { s, span, .. } => match self.space(s) {
                Some(space) => {
                    self.uvm.loan_to_kernel(held, &space, range(span)).map_err(Got::Refused)
                }
                None => return Answer::Skipped,
            },
            Op::Give { s, span, .. } => match self.space(s) {
                Some(space) => match self.uvm.give_to_kernel(held, &space, range(span)) {
                    Ok(Some(given)) => Ok(given),
                    Ok(None) => return self.loan_instead(held, l, &space, span),
                    Err(e) => Err(Got::Refused(e)),
                },
                None => return Answer::Skipped,
            },
            _ => unreachable!("{op:?}"),
        };
        Answer::Got(made.map_or_else(
            |got| got,
            |loan| {
                *hold(&self.loans[l]) = Some(loan);
                Got::Done
            },
        ))
    }

    /// A host loans what can't be given, and discards it then: that is two operations, of which
    /// this is the first.
    fn loan_instead(
        &self,
        held: &mut Held<'_, Nothing>,
        l: usize,
        space: &Space<Soft>,
        span: Span,
    ) -> Answer {
        match self.uvm.loan_to_kernel(held, space, range(span)) {
            Ok(loan) => {
                *hold(&self.loans[l]) = Some(loan);
                Answer::LoanedInstead
            }
            Err(e) => Answer::Got(Got::Refused(e)),
        }
    }

    fn transfer(&self, held: &mut Held<'_, Nothing>, op: &Op) -> Answer {
        let Op::Transfer { l, s, page } = *op else { unreachable!("{op:?}") };
        let Some(loan) = hold(&self.loans[l]).take() else { return Answer::Skipped };
        let (got, loan) = match self.space(s) {
            None => (None, Some(loan)),
            Some(space) => match self.uvm.transfer(held, &space, loan, To::Fixed(va(page))) {
                Ok(at) => (Some(Got::Placed(at)), None),
                Err((e, loan)) => (Some(Got::Transfer(e)), Some(loan)),
            },
        };
        *hold(&self.loans[l]) = loan;
        got.map_or(Answer::Skipped, Answer::Got)
    }

    fn apply_to_pin(&self, held: &mut Held<'_, Nothing>, op: &Op) -> Answer {
        match *op {
            Op::Pin { p, s, span, access } => {
                let Some(space) = self.space(s).filter(|_| hold(&self.pins[p]).is_none()) else {
                    return Answer::Skipped;
                };
                let pinned = self.uvm.wire_pages(held, &space, range(span), prot(access));
                Answer::Got(pinned.map_or_else(Got::Refused, |pinned| {
                    *hold(&self.pins[p]) = Some(pinned);
                    Got::Done
                }))
            }
            Op::Unpin { p, .. } => {
                let Some(pinned) = hold(&self.pins[p]).take() else { return Answer::Skipped };
                self.uvm.unwire_pages(held, pinned).unwrap();
                Answer::Got(Got::Done)
            }
            _ => unreachable!("{op:?}"),
        }
    }

    fn apply_to_detached(&self, held: &mut Held<'_, Nothing>, op: &Op) -> Answer {
        match *op {
            Op::Extract { r, s, span, way } => {
                let Some(space) = self.space(s).filter(|_| hold(&self.ranges[r]).is_none()) else {
                    return Answer::Skipped;
                };
                let taken = self.uvm.extract(held, &space, range(span), pass(way));
                Answer::Got(taken.map_or_else(Got::Map, |taken| {
                    *hold(&self.ranges[r]) = Some(taken);
                    Got::Done
                }))
            }
            Op::AttachRange { r, s, at } => {
                let Some(space) = self.space(s) else { return Answer::Skipped };
                let Some(taken) = hold(&self.ranges[r]).take() else { return Answer::Skipped };
                Answer::Got(match self.uvm.attach_range(held, &space, taken, place(at)) {
                    Ok(at) => Got::Placed(at),
                    Err((e, taken)) => {
                        *hold(&self.ranges[r]) = Some(taken);
                        Got::Map(e)
                    }
                })
            }
            Op::DropRange { r } => {
                let Some(taken) = hold(&self.ranges[r]).take() else { return Answer::Skipped };
                self.uvm.drop_detached(held, taken);
                Answer::Got(Got::Done)
            }
            _ => unreachable!("{op:?}"),
        }
    }

    fn switch(&self, held: &mut Held<'_, Nothing>, op: &Op) -> Answer {
        let mut on = *hold(&self.swap_is_on);
        let got = match (op, on) {
            (Op::SwapOn { .. }, None) => {
                self.swap.renew();
                on = Some(self.uvm.swap_on(held, self.swap.clone(), 0).expect("there is heap"));
                Got::Done
            }
            (Op::SwapOff { .. }, Some(id)) => {
                self.uvm.swap_off(held, id).expect("memory has room for all");
                self.swap.leave();
                on = None;
                Got::Done
            }
            _ => return Answer::Skipped,
        };
        *hold(&self.swap_is_on) = on;
        Answer::Got(got)
    }

    fn access(&self, op: &Op, number: u64) -> Answer {
        let (Op::Read { s, page, cpu }
        | Op::Write { s, page, cpu, .. }
        | Op::Execute { s, page, cpu }) = *op
        else {
            unreachable!("{op:?}")
        };
        let Some(space) = self.space(s) else { return Answer::Skipped };
        let fault = |va, access| self.fault(&space, va, access);
        let machine = self.uvm.machine();
        let broken = |why: String| -> Got { panic!("{why}") };
        match *op {
            Op::Write { word, .. } => {
                let at = word_at(page, word);
                let stored = machine.store(cpu, space.pmap(), at, &number.to_le_bytes(), fault);
                Answer::Got(accessed(stored).unwrap_or_else(broken))
            }
            Op::Read { .. } => {
                // Each CPU looks at one word of a page, so that a look is one moment.
                let word = if cpu == 1 { WORDS - 1 } else { 0 };
                let mut bytes = [0; 8];
                let loaded =
                    machine.load(cpu, space.pmap(), word_at(page, word), &mut bytes, fault);
                match accessed(loaded).unwrap_or_else(broken) {
                    Got::Done => Answer::Word(word, u64::from_le_bytes(bytes)),
                    refused => Answer::Got(refused),
                }
            }
            _ => match machine.fetch(cpu, space.pmap(), va(page), fault) {
                Ok(_) => Answer::Fetched,
                Err(denied) => Answer::Got(accessed(Err(denied)).unwrap_or_else(broken)),
            },
        }
    }

    fn fault(&self, space: &Space<Soft>, va: Va, access: Prot) -> Result<(), FaultError> {
        self.uvm.fault(&mut ThreadCtx::new().held(), space, va, access).map(drop)
    }

    fn bytes(&self, loan: &Loan) -> Vec<Contents> {
        let _host = host();
        let contents =
            |page: PageNo| std::array::from_fn(|word| read_word(self.uvm.machine(), page, word));
        loan.pages().iter().map(|page| contents(page.page())).collect()
    }

    /// Counts everything, once no thread is left but the caller's.
    pub fn audit(&self) {
        self.line.trouble().unwrap_or_else(|why| panic!("{why}"));
        self.uvm.machine().tlb_audit().unwrap_or_else(|why| panic!("{why}"));
        let spaces: Vec<_> = self.spaces.iter().filter_map(|space| hold(space).clone()).collect();
        let ranges = self.ranges.each_ref().map(hold);
        let detached = ranges.iter().filter_map(|range| range.as_ref().map(Detached::space));
        let spaces: Vec<&Space<Soft>> =
            spaces.iter().map(|space| &**space).chain(detached).collect();
        let objects: Vec<_> =
            self.objects.iter().filter_map(|object| hold(object).clone()).collect();
        let loans = self.loans.each_ref().map(hold);
        let loan = loans.iter().filter_map(|loan| loan.as_ref()).flat_map(|loan| loan.pages());
        let mut ctx = ThreadCtx::new();
        let held = &mut ctx.held();
        self.uvm
            .audit_loans(held, &spaces, loan)
            .unwrap_or_else(|why| panic!("audit of loans: {why}"));
        self.uvm.audit(held, &spaces, &objects).unwrap_or_else(|why| panic!("audit: {why}"));
    }

    /// What every word of every page of every space and object shows, and every loan.
    pub fn end_state(&self) -> EndState {
        let machine = self.uvm.machine();
        let page = |s: usize, page| {
            let space = self.space(s)?;
            let mut contents = [0; WORDS];
            for (word, seen) in contents.iter_mut().enumerate() {
                let mut bytes = [0; 8];
                let fault = |va, access| self.fault(&space, va, access);
                let loaded = machine.load(3, space.pmap(), word_at(page, word), &mut bytes, fault);
                match accessed(loaded).unwrap_or_else(|why| panic!("{why}")) {
                    Got::Done => *seen = u64::from_le_bytes(bytes),
                    refused => return Some(refused),
                }
            }
            Some(Got::Sees(contents))
        };
        let pages = (0..SPACES).map(|s| (0..SHOWN).map(|at| page(s, at)).collect()).collect();
        let loans =
            self.loans.each_ref().map(|loan| hold(loan).as_ref().map(|loan| self.bytes(loan)));
        EndState { pages, loans }
    }

    /// What the disk has of the file's pages, after all have been written back.
    pub fn stored(&self) -> Vec<Contents> {
        let file = hold(&self.file).clone().expect("programs begin with a file");
        file.pager()
            .clean(&self.uvm, &mut ThreadCtx::new().held(), 0..WINDOW)
            .expect("the disk works");
        (0..PAGES).map(|index| file.stored(index)).collect()
    }

    /// Takes everything down; all memory must come back.
    pub fn finish(&self) {
        let ops =
            |n: usize, op: &dyn Fn(usize) -> Op| (0..n).for_each(|k| drop(self.apply(&op(k), 0)));
        ops(PINS, &|p| Op::Unpin { p, word: 0 });
        ops(SPACES, &|s| Op::Exit { s });
        ops(RANGES, &|r| Op::DropRange { r });
        ops(LOANS, &|l| Op::Return { l });
        let held = &mut ThreadCtx::new();
        let file = hold(&self.file).take();
        for object in &self.objects {
            let Some(object) = hold(object).take() else { continue };
            self.uvm.detach(&mut held.held(), &*object);
            self.end_transfers();
            if file.as_ref().is_some_and(|file| {
                std::ptr::addr_eq(Arc::as_ptr(file.pager()), Arc::as_ptr(&object))
            }) {
                self.uvm.truncate(&mut held.held(), &object, Pages(0));
            }
        }
        self.end_transfers();
        self.uvm.machine().tlb_audit().unwrap_or_else(|why| panic!("{why}"));
        for device in self.uvm.swap_info(&mut held.held()) {
            assert_eq!(device.used, 0, "slots leaked: {device:?}");
        }
        let leaked = self.free as isize - self.uvm.frames().free() as isize;
        assert_eq!(leaked, 0, "page frames leaked");
    }
}

fn word_at(page: u64, word: usize) -> Va {
    Va(va(page).0 + word_offset(word) as u64)
}

fn read_word(machine: &Soft, page: PageNo, word: usize) -> u64 {
    let mut bytes = [0; 8];
    machine.read(page, word_offset(word), &mut bytes);
    u64::from_le_bytes(bytes)
}
