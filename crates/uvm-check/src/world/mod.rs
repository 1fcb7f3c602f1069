//! The VM system under test beside the model: one step on both, then the comparison.
//!
//! Two kinds of looking: `peek` compares what the tables map without touching anything, so that it never brings in a
//! page that a bug would need absent; `look` reads as a program does. A list is run with either after each step.

mod answer;
mod apply;
mod look;
mod maps;

use std::collections::BTreeMap;
use std::sync::Arc;

use machine::order::Nothing;
use machine::{
    Held, Machine, NoMemory, PageNo, Pages, Prot, ThreadCtx, Va, VaRange, Wiring, PAGE_SHIFT, PAGE_SIZE,
};
use uvm::{
    Access, Advice, AnonObject, Backing, EntryInfo, FaultError, GetError, Inherit, Intent, MapError,
    MapRequest, Pager, Place, RangeError, RemapPlace, Sharing, Space, Uvm,
};
use uvm_soft::{Config, Denied, SoftMachine};

use crate::host::{File, Line, Manner};
use crate::model::{Contents, Expect, Identity, Model, Refusal, Writes};
use crate::op::{At, Back, Inh, Kind, Op, Span, SPACES, WINDOW, WORDS};

pub(crate) use answer::word_offset;
use answer::{accessed, advice, compare, inheritance, placed, prot, range, ranged, va, Got};

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

/// What a space of the model is in the system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Shape {
    /// A space.
    #[default]
    Flat,
    /// A submap of a space: operations name the submap, accesses come through the space around it. Children of a fork
    /// are flat, since a submap is not inherited.
    Nested,
}

/// How a list is run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The machine.
    pub machine: Config,
    /// What is compared after each step.
    pub watch: Watch,
    /// What spaces are.
    pub shape: Shape,
}

impl Setup {
    /// Flat spaces on this machine.
    pub fn new(machine: Config, watch: Watch) -> Setup {
        Setup { machine, watch, shape: Shape::Flat }
    }
}

/// A space, and the one around it if it is a submap.
struct Home {
    space: Space<Soft>,
    around: Option<Space<Soft>>,
}

impl Home {
    /// The space that a CPU runs in.
    fn entrance(&self) -> &Space<Soft> {
        self.around.as_ref().unwrap_or(&self.space)
    }
}

pub(crate) type Soft = SoftMachine;
pub(crate) type System = Uvm<Soft>;

/// See the module.
pub struct World {
    uvm: Arc<System>,
    spaces: [Option<Home>; SPACES],
    objects: Vec<Arc<dyn Pager<Soft>>>,
    /// Those of the objects that are files; the host keeps a handle on each.
    files: BTreeMap<usize, File>,
    line: Arc<Line>,
    model: Model,
    free: usize,
    setup: Setup,
}

impl World {
    /// An empty world.
    pub fn new(setup: &Setup) -> World {
        let machine = SoftMachine::new(setup.machine.clone());
        let uvm = Arc::new(Uvm::new(machine).expect("a new machine has memory"));
        let free = uvm.machine().frames().free();
        World {
            uvm,
            spaces: [None, None, None, None],
            objects: Vec::new(),
            files: BTreeMap::new(),
            line: Line::new(Manner::Either, setup.machine.seed),
            model: Model::default(),
            free,
            setup: setup.clone(),
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
        if self.setup.watch == Watch::Look {
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
