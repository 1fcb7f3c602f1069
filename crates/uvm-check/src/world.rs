//! The VM system under test beside the model: one step on both, then the comparison.
//!
//! Two kinds of looking: `peek` compares what the tables map without touching anything, so that it never brings in a
//! page that a bug would need absent; `look` reads as a program does. A list is run with either after each step.

mod look;

use std::collections::BTreeMap;
use std::sync::Arc;

use machine::order::Nothing;
use machine::{
    Held, Machine, NoMemory, PageNo, Pages, Prot, ThreadCtx, Va, VaRange, Wiring, PAGE_SHIFT, PAGE_SIZE,
};
use uvm::{
    Advice, AnonObject, Backing, FaultError, GetError, Inherit, Intent, MapError, MapRequest, Pager, Place,
    RangeError, RemapPlace, Sharing, Space, Uvm,
};
use uvm_soft::{Config, Denied, SoftMachine};

use crate::file::File;
use crate::model::{Contents, Expect, Identity, Model, Refusal};
use crate::op::{At, Back, Inh, Kind, Op, Span, SPACES, WINDOW, WORDS};

/// Address of the window's first page: 16 pages below the end of a table page's span.
pub const BASE: Va = Va((2 << 20) - 16 * PAGE_SIZE as u64);

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

/// Operations of several steps: one that fails may leave the first of them done, as its documentation says.
fn partial(op: &Op) -> bool {
    match op {
        Op::Wire { .. } => true,
        Op::Remap { span, new_len, .. } => *new_len < span.1,
        _ => false,
    }
}

/// How a list is watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Watch {
    /// Tables are compared after each step, nothing is touched; every page is read at the end.
    Peek,
    /// The pages that a step concerns are also read in every space after it.
    Look,
}

pub(crate) type Soft = SoftMachine;
pub(crate) type System = Uvm<Soft>;

/// See the module.
pub struct World {
    uvm: Arc<System>,
    spaces: [Option<Space<Soft>>; SPACES],
    objects: Vec<Arc<dyn Pager<Soft>>>,
    /// Those of the objects that are files; the host keeps a handle on each.
    files: BTreeMap<usize, File>,
    model: Model,
    free: usize,
    watch: Watch,
}

impl World {
    /// An empty world.
    pub fn new(config: Config, watch: Watch) -> World {
        let uvm = Arc::new(Uvm::new(SoftMachine::new(config)).expect("a new machine has memory"));
        let free = uvm.machine().frames().free();
        World {
            uvm,
            spaces: [None, None, None, None],
            objects: Vec::new(),
            files: BTreeMap::new(),
            model: Model::default(),
            free,
            watch,
        }
    }

    /// The machine underneath.
    pub fn machine(&self) -> &Soft {
        self.uvm.machine()
    }

    /// The model, as it is now.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Runs one operation on both and compares.
    ///
    /// # Errors
    /// A sentence that says what differs.
    pub fn step(&mut self, op: &Op) -> Result<(), String> {
        let word = self.model.next_store();
        let mut after = self.model.clone();
        let expect = after.apply(op);
        if expect == Expect::Skip {
            return Ok(());
        }
        let got = self.apply(op, word)?;
        self.commit(op, after, &expect, &got)
    }

    /// Runs one operation again and again, the first time with the first call that can fail failing, then the
    /// second, until it needs no more calls. Each failure must leave everything as it was. Says how many there were.
    ///
    /// # Errors
    /// A sentence that says what differs.
    pub fn step_against(&mut self, op: &Op, scarce: Scarce) -> Result<u64, String> {
        let word = self.model.next_store();
        let mut after = self.model.clone();
        let expect = after.apply(op);
        if expect == Expect::Skip {
            return Ok(0);
        }
        if self.wires_as_it_can(op) {
            return self.step(op).map(|()| 0);
        }
        let mut failures = 0;
        loop {
            self.arm(scarce, failures);
            let got = self.apply(op, word);
            self.disarm();
            let got = got?;
            if !got.is_no_memory() {
                return self.commit(op, after, &expect, &got).map(|()| failures);
            }
            let checked = if partial(op) { self.check_system() } else { self.check() };
            checked.map_err(|e| format!("after failure {failures} of {scarce:?} in {op:?}: {e}"))?;
            failures += 1;
        }
    }

    fn commit(&mut self, op: &Op, after: Model, expect: &Expect, got: &Got) -> Result<(), String> {
        compare(expect, got)?;
        self.model = after;
        self.check()?;
        if self.watch == Watch::Look {
            self.look_at(op)?;
            self.check()?;
        }
        Ok(())
    }

    /// Whether the operation wires its result again by best effort, so that a shortage shows in what is wired.
    fn wires_as_it_can(&self, op: &Op) -> bool {
        let wired = |s, page| self.model.page(s, page).is_some_and(|at| at.wired);
        matches!(*op, Op::Remap { s, span, .. } if span.pages().any(|page| wired(s, page)))
    }

    /// Makes the call fail that follows `n` calls that work.
    fn arm(&self, scarce: Scarce, n: u64) {
        match scarce {
            Scarce::Heap => self.machine().heap.fail_nth(n + 1),
            Scarce::Tables => self.machine().pmap().tables.fail_nth(n + 1),
            Scarce::Frames => self.machine().leave_free(n as usize),
        }
    }

    fn disarm(&self) {
        self.machine().heap.fail_nth(0);
        self.machine().pmap().tables.fail_nth(0);
        self.machine().give_back();
    }

    /// Reads everything, takes everything down, and counts what came back.
    ///
    /// # Errors
    /// A sentence that says what differs, or what leaked.
    pub fn finish(mut self) -> Result<(), String> {
        for s in 0..SPACES {
            for page in 0..WINDOW {
                self.look(s, page, page as usize % self.machine().cpus())?;
            }
        }
        self.check()?;
        for s in 0..SPACES {
            self.step(&Op::Exit { s })?;
        }
        for o in 0..self.model.slots.len() {
            self.step(&Op::Detach { o })?;
        }
        let mut ctx = ThreadCtx::new();
        let held = &mut ctx.held();
        for object in self.files.keys() {
            self.uvm.truncate(held, &self.objects[*object], Pages(0));
        }
        self.machine().tlb_audit()?;
        match self.machine().frames().free() {
            free if free == self.free => Ok(()),
            free => Err(format!("{} page frames leaked", self.free as isize - free as isize)),
        }
    }
}

impl World {
    fn apply(&mut self, op: &Op, word: u64) -> Result<Got, String> {
        let mut ctx = ThreadCtx::new();
        let held = &mut ctx.held();
        match *op {
            Op::Spawn { s } => {
                let bounds = range(Span(0, WINDOW));
                let made = self.uvm.space_create(held, bounds);
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
                let read = |_: &Soft, page| self.contents(page);
                Ok(match self.uvm.with_page(held, &self.object(o), Pages(page), Intent::Read, read) {
                    Ok(found) => Got::Sees(found.unwrap_or([0; WORDS])),
                    Err(e) => Got::Object(e),
                })
            }
            Op::ObjectWrite { o, page, word: at } => {
                let write = |soft: &Soft, page| soft.write(page, word_offset(at), &word.to_le_bytes());
                let written = self.uvm.with_page(held, &self.object(o), Pages(page), Intent::Write, write);
                Ok(written.map_or_else(Got::Object, |_| Got::Done))
            }
            Op::Sync { o } => self.sync(held, o),
            Op::Detach { o } => {
                self.uvm.detach(held, &*self.object(o));
                Ok(Got::Done)
            }
            Op::Forget => {
                self.machine().pmap().forget_all();
                Ok(Got::Done)
            }
            Op::Clear { s } => {
                self.uvm.space_clear(held, self.space(s));
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
            Op::Read { s, page, cpu } => self.load(s, page, cpu),
            Op::Write { s, page, cpu, word: at } => self.store(s, page, cpu, at, word),
            Op::Execute { s, page, cpu } => self.execute(s, page, cpu),
            _ => Ok(self.apply_to_range(held, op)),
        }
    }

    fn apply_to_range(&self, held: &mut Held<'_, Nothing>, op: &Op) -> Got {
        let uvm = &*self.uvm;
        match *op {
            Op::Map { s, at, len, back, rights, inherit } => {
                let request = self.request(at, len, back, rights, inherit);
                placed(uvm.map(held, self.space(s), &request))
            }
            Op::Remap { s, span, new_len, at } => {
                let place = match at {
                    At::Any => RemapPlace::MayMove,
                    At::Hint(_) => RemapPlace::Stay,
                    At::Fixed(page) | At::Free(page) => RemapPlace::Fixed(va(page)),
                };
                placed(uvm.remap(held, self.space(s), range(span), Pages(new_len), place))
            }
            Op::Unmap { s, span } => ranged(uvm.unmap(held, self.space(s), range(span))),
            Op::Protect { s, span, rights } => {
                ranged(uvm.protect(held, self.space(s), range(span), prot(rights)))
            }
            Op::Inherit { s, span, inherit } => {
                ranged(uvm.inherit(held, self.space(s), range(span), inheritance(inherit)))
            }
            Op::Advise { s, span, advice } => {
                let advice = [Advice::Normal, Advice::Random, Advice::Sequential][usize::from(advice)];
                ranged(uvm.advise(held, self.space(s), range(span), advice))
            }
            Op::Discard { s, span } => ranged(uvm.discard(held, self.space(s), range(span))),
            Op::Wire { s, span } => ranged(uvm.wire(held, self.space(s), range(span))),
            Op::Unwire { s, span } => ranged(uvm.unwire(held, self.space(s), range(span))),
            _ => unreachable!("{op:?} concerns no range"),
        }
    }

    fn new_object(&mut self, held: &mut Held<'_, Nothing>, kind: Kind, len: Pages) -> Result<(), NoMemory> {
        let number = self.objects.len();
        match kind {
            Kind::Anon => self.objects.push(AnonObject::new(&self.uvm, len)?),
            Kind::File => {
                let file = File::new(&self.uvm, len)?;
                let pager: Arc<dyn Pager<Soft>> = file.pager().clone();
                self.uvm.attach(held, &pager);
                self.files.insert(number, file);
                self.objects.push(pager);
            }
        }
        Ok(())
    }

    fn request(&self, at: At, len: u64, back: Back, rights: u8, inherit: Option<Inh>) -> MapRequest<Soft> {
        let object = |o, first| Backing::Object { pager: self.object(o), offset: Pages(first) };
        let (backing, sharing) = match back {
            Back::Zero => (Backing::Zero, Sharing::Private),
            Back::Private(o, first) => (object(o, first), Sharing::Private),
            Back::Shared(o, first) => (object(o, first), Sharing::Shared),
        };
        let place = match at {
            At::Any => Place::Anywhere,
            At::Hint(page) => Place::Hint(va(page)),
            At::Fixed(page) => Place::Fixed(va(page)),
            At::Free(page) => Place::FixedNoReplace(va(page)),
        };
        let zero = MapRequest::zero(Pages(len));
        MapRequest { place, prot: prot(rights), sharing, inherit: inherit.map(inheritance), backing, ..zero }
    }

    /// Writes a file back, compares what arrived, and drops the pages, as a host does that needs memory.
    fn sync(&self, held: &mut Held<'_, Nothing>, o: usize) -> Result<Got, String> {
        let Some(file) = self.file(o) else { return Ok(Got::Done) };
        let object = self.model.slots[o].expect("the model has this object");
        let len = self.model.objects[object].len;
        file.pager().clean(&self.uvm, held, 0..len).map_err(|()| "a file can't be written back")?;
        for (index, ought) in &self.model.objects[object].pages {
            let stored = file.stored(*index);
            if stored != *ought {
                return Err(format!(
                    "file page {index} was written back as {stored:x?}, ought to be {ought:x?}"
                ));
            }
        }
        let pager = self.object(o);
        for index in 0..len {
            let page = pager.object().lock(held).0.page(Pages(index));
            if page.is_some_and(|page| self.machine().frames().wire_count(page) == 0) {
                self.uvm.punch(held, &pager, index..index + 1);
            }
        }
        Ok(Got::Done)
    }

    fn file(&self, o: usize) -> Option<&File> {
        self.files.get(&self.model.slots[o]?)
    }

    fn space(&self, s: usize) -> &Space<Soft> {
        self.spaces[s].as_ref().expect("the model has this space")
    }

    /// The object that a slot names; the model is one step behind.
    fn object(&self, o: usize) -> Arc<dyn Pager<Soft>> {
        self.objects[self.model.slots[o].expect("the model has this object")].clone()
    }

    fn load(&self, s: usize, page: u64, cpu: usize) -> Result<Got, String> {
        let mut contents = [0; WORDS];
        for (at, word) in contents.iter_mut().enumerate() {
            let mut bytes = [0; 8];
            let va = Va(va(page).0 + word_offset(at) as u64);
            let result = self
                .machine()
                .load(cpu, self.space(s).pmap(), va, &mut bytes, |va, access| self.fault(s, va, access));
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
            self.machine()
                .store(cpu, self.space(s).pmap(), va, &bytes, |va, access| self.fault(s, va, access)),
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
        self.uvm.fault(&mut ctx.held(), self.space(s), va, access).map(|_| ())
    }

    fn contents(&self, page: PageNo) -> Contents {
        std::array::from_fn(|word| {
            let mut bytes = [0; 8];
            self.machine().read(page, word_offset(word), &mut bytes);
            u64::from_le_bytes(bytes)
        })
    }
}

/// What the system answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Got {
    Done,
    Placed(Va),
    Map(MapError),
    Range(RangeError),
    Sees(Contents),
    Refused(FaultError),
    Object(GetError),
    NoMemory,
}

impl Got {
    fn is_no_memory(self) -> bool {
        matches!(
            self,
            Got::NoMemory
                | Got::Map(MapError::NoMemory)
                | Got::Range(RangeError::NoMemory)
                | Got::Refused(FaultError::NoMemory)
                | Got::Object(GetError::NoMemory)
        )
    }
}

fn compare(expect: &Expect, got: &Got) -> Result<(), String> {
    let same = match (*expect, *got) {
        (Expect::Done, Got::Done) => true,
        (Expect::Placed(page), Got::Placed(at)) => va(page) == at,
        (Expect::NoSpace, Got::Map(MapError::NoSpace | MapError::Exists)) => true,
        (Expect::NoMapping, Got::Map(MapError::NoMapping) | Got::Range(RangeError::NoMapping)) => true,
        (Expect::Invalid, Got::Map(MapError::Invalid)) => true,
        (Expect::Access, Got::Range(RangeError::Access)) => true,
        (Expect::Fault, Got::Range(RangeError::Fault)) => true,
        (Expect::Sees(ought), Got::Sees(seen)) => ought == seen,
        (Expect::Refused(why), Got::Refused(said)) => matches!(
            (why, said),
            (Refusal::NoMapping, FaultError::NoMapping)
                | (Refusal::Protection, FaultError::Protection)
                | (Refusal::Bus, FaultError::Bus)
                | (Refusal::Io, FaultError::Io)
        ),
        (Expect::Refused(Refusal::Bus), Got::Object(GetError::PastEnd)) => true,
        (Expect::Refused(Refusal::Io), Got::Object(GetError::Io)) => true,
        _ => false,
    };
    if same {
        Ok(())
    } else {
        Err(format!("expected {expect:x?}, got {got:x?}"))
    }
}

fn placed(result: Result<Va, MapError>) -> Got {
    result.map_or_else(Got::Map, Got::Placed)
}

fn ranged(result: Result<(), RangeError>) -> Got {
    result.map_or_else(Got::Range, |()| Got::Done)
}

fn accessed(result: Result<(), Denied<FaultError>>) -> Result<Got, String> {
    match result {
        Ok(()) => Ok(Got::Done),
        Err(Denied::Fault(e)) => Ok(Got::Refused(e)),
        Err(Denied::Broken(why)) => Err(why),
    }
}

fn va(page: u64) -> Va {
    BASE + Pages(page)
}

fn range(span: Span) -> VaRange {
    VaRange::new(va(span.0), va(span.0 + span.1))
}

fn prot(rights: u8) -> Prot {
    Prot::from_bits_truncate(rights)
}

fn inheritance(inherit: Inh) -> Inherit {
    match inherit {
        Inh::None => Inherit::None,
        Inh::Share => Inherit::Share,
        Inh::Copy => Inherit::Copy,
        Inh::Zero => Inherit::Zero,
    }
}

/// Where a compared word lies in its page: over all of it, the last word included.
pub(crate) fn word_offset(word: usize) -> usize {
    (word * (PAGE_SIZE - 8) / (WORDS - 1)) & !7
}
