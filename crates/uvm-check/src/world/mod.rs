//! The VM system under test beside the model: one step on both, then the comparison.
//!
//! Two kinds of looking: `peek` compares what the tables map without touching anything, so that it
//! never brings in a page that a bug would need absent; `look` reads as a program does. A list is
//! run with either after each step.

pub mod answer;
mod apply;
mod debugger;
mod full;
mod judge;
mod look;
mod maps;
pub mod ranges;

use std::collections::BTreeMap;
use std::sync::Arc;

use machine::order::Nothing;
use machine::{
    Held, NoMemory, Pa, PageNo, PageRange, Pages, Prot, ThreadCtx, Va, Wiring, PAGE_SHIFT,
    PAGE_SIZE,
};
use uvm::page::Owner;
use uvm::{
    Access, Advice, AnonObject, At as To, Detached, DevicePager, EntryInfo, FaultError, GetError,
    Inherit, Intent, Loan, MapError, MapRequest, Pager, Pass, Pinned, Place, Quota, RangeError,
    RemapPlace, Retry, Sharing, Space, SwapError, SwapId, TransferError, Uvm, CLUSTER,
};
use uvm_soft::{host, Config, Denied, Fate, SoftMachine};
use uvm_zram::{Zram, ZramInfo, ZramOn};

use crate::desk::Desk;
use crate::host::{print, File, Line, Manner, Rom, SwapDisk};
use crate::model::{Contents, Expect, Identity, Model, Refusal, Writes, QUOTA};
use crate::op::{
    At, Back, Inh, Kind, Op, Span, Way, CHIPS, DEVICES, LOANS, PINS, RANGES, RUN, RUNS, SPACES,
    WINDOW, WORDS,
};

pub(crate) use answer::word_offset;
use answer::{
    accessed, advice, compare, inheritance, pass, place, placed, prot, range, ranged, va, Got,
};
pub use judge::{Lasting, Scarce};
use ranges::{give, on_range, request, subject};

/// Address of the window's first page: 16 pages below the end of a table page's span.
pub const BASE: Va = Va((2 << 20) - 16 * PAGE_SIZE as u64);

/// How a list is watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Watch {
    /// Tables are compared after each step, nothing is touched; every page is read at the end.
    Peek,
    /// The pages that a step concerns are also read in every space after it.
    Look,
}

/// Whether memory and swap together may run out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    /// They never do: it is an error to say so.
    Suffices,
    /// They may. An operation that says so has done nothing.
    MayRunOut,
}

/// How a list is run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The machine.
    pub machine: Config,
    /// What is compared after each step.
    pub watch: Watch,
    /// Whether an operation may say that there is no memory.
    pub memory: Memory,
    /// When transfers end.
    pub manner: Manner,
    /// Slots of each swap device; the first is on from the beginning if it has any.
    pub swaps: [u32; DEVICES],
}

impl Setup {
    /// Memory that suffices, without swap, on this machine.
    pub fn new(machine: Config, watch: Watch) -> Setup {
        Setup {
            machine,
            watch,
            memory: Memory::Suffices,
            manner: Manner::Either,
            swaps: [0; DEVICES],
        }
    }
}

/// See the module.
pub struct World<M: Desk = SoftMachine> {
    uvm: Arc<Uvm<M>>,
    spaces: [Option<Space<M>>; SPACES],
    objects: Vec<Arc<dyn Pager<M>>>,
    /// Those of the objects that are files; the host keeps a handle on each.
    files: BTreeMap<usize, File<M>>,
    /// What devices have pinned.
    pins: [Option<Pinned<M>>; PINS],
    /// What the kernel has on loan.
    loans: [Option<Loan>; LOANS],
    /// What belongs to no space.
    ranges: [Option<Detached<M>>; RANGES],
    /// The pages of all ROMs.
    chips: [PageNo; CHIPS as usize],
    line: Arc<Line>,
    quota: Arc<Quota>,
    swaps: [Arc<SwapDisk<M>>; DEVICES],
    /// The names of those that are on.
    on: [Option<SwapId>; DEVICES],
    zram: ZramOn<M>,
    model: Model,
    /// Operations that found no memory.
    shortages: u64,
    /// A failure was injected into the operation that is judged.
    is_injected: bool,
    /// What the model can't know has happened: the list ends here.
    over: bool,
    free: usize,
    setup: Setup,
}

/// A list that fails ends where it is, whatever the host has then.
impl<M: Desk> Drop for World<M> {
    fn drop(&mut self) {
        std::mem::forget(std::mem::take(&mut self.loans));
        std::mem::forget(std::mem::take(&mut self.pins));
        std::mem::forget(std::mem::take(&mut self.ranges));
    }
}

impl World {
    /// An empty world on the software machine.
    pub fn new(setup: &Setup) -> World {
        World::on(setup)
    }
}

impl<M: Desk> World<M> {
    /// An empty world on a machine of its own.
    ///
    /// # Panics
    /// If the machine has no memory for it.
    pub fn on(setup: &Setup) -> World<M> {
        // A run that is pinned when its device goes has no owner yet.
        let runs = (RUNS as u64 + (PINS as u64 * CLUSTER as u64).div_ceil(RUN)) as u32;
        let devices = vec![(Pa(1 << 40), runs * RUN as u32)];
        let config = Config { devices, ..setup.machine.clone() };
        let uvm = Arc::new(M::boot(&config).expect("a new machine has memory"));
        let chips =
            Rom::chips(&uvm, &mut ThreadCtx::new().held()).expect("a new machine has memory");
        // It is made when it is first needed, and stays.
        let zero = uvm.zero_page(&mut ThreadCtx::new().held()).expect("a new machine has memory");
        uvm.return_page(&mut ThreadCtx::new().held(), zero).unwrap();
        let free = uvm.machine().frames().free();
        let line = Line::new(setup.manner, setup.machine.seed);
        let swaps = setup.swaps.map(|slots| SwapDisk::new(&uvm, &line, slots));
        let mut world = World {
            uvm,
            spaces: [None, None, None, None],
            objects: Vec::new(),
            files: BTreeMap::new(),
            pins: [None, None],
            loans: [const { None }; LOANS],
            ranges: [const { None }; RANGES],
            chips,
            line,
            quota: Arc::new(Quota::new(QUOTA as usize)),
            swaps,
            on: [None; DEVICES],
            zram: None,
            model: Model::default(),
            shortages: 0,
            is_injected: false,
            over: false,
            free,
            setup: setup.clone(),
        };
        if setup.swaps[0] != 0 {
            world.step(&Op::SwapOn { d: 0 }).expect("an empty world takes a device");
        }
        world
    }

    /// The machine underneath.
    pub fn machine(&self) -> &M {
        self.uvm.machine()
    }

    /// Whether the list has come to where the model can't follow. What follows it is left out.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Operations that were refused since no memory was left.
    pub fn shortages(&self) -> u64 {
        self.shortages
    }

    /// Pages of anonymous memory that the spaces' mappings show: in memory, and on swap alone.
    pub fn pages(&self) -> (usize, usize) {
        let tallies = self.spaces.iter().flatten().map(|space| {
            let (mut ctx, all) = (ThreadCtx::new(), space.bounds());
            let range_stats = self.uvm.range_stats(&mut ctx.held(), space, all);
            let anonymous = self.uvm.anonymous_in(&mut ctx.held(), space, all);
            assert_eq!(
                anonymous,
                range_stats.anonymous + range_stats.swapped,
                "both count a range's slots"
            );
            range_stats
        });
        tallies.fold((0, 0), |sum, range_stats| {
            (sum.0 + range_stats.anonymous, sum.1 + range_stats.swapped)
        })
    }

    /// What zram holds, and has done since it was switched on; nothing if it is off.
    pub fn zram_info(&self) -> ZramInfo {
        let info = |(device, _): &(Arc<Zram<M>>, SwapId)| device.info(&mut ThreadCtx::new().held());
        self.zram.as_ref().map_or_else(ZramInfo::default, info)
    }

    /// The VM system.
    pub fn uvm(&self) -> &Uvm<M> {
        &self.uvm
    }

    /// All storage: for tests that make it fail.
    pub fn line(&self) -> &Line {
        &self.line
    }

    /// The model, as it is now.
    pub fn model(&self) -> &Model {
        &self.model
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
        if self.over {
            self.check_system()?;
        } else {
            self.check()?;
        }
        for p in 0..PINS {
            self.step(&Op::Unpin { p, word: 0 })?;
        }
        for s in 0..SPACES {
            self.step(&Op::Exit { s })?;
        }
        for r in 0..RANGES {
            self.step(&Op::DropRange { r })?;
        }
        for l in 0..LOANS {
            self.step(&Op::Return { l })?;
        }
        for o in 0..self.model.slots.len() {
            self.step(&Op::Detach { o })?;
        }
        while self.machine().complete(0, Fate::Works) {}
        let mut ctx = ThreadCtx::new();
        let held = &mut ctx.held();
        for object in self.files.keys() {
            self.uvm.truncate(held, &self.objects[*object], Pages(0));
        }
        self.machine().audit()?;
        if let Some(device) = self.uvm.swap_info(held).iter().find(|device| device.used != 0) {
            return Err(format!("slots leaked: {device:?}"));
        }
        if self.quota.used() != 0 {
            return Err(format!("{} pages of the quota leaked", self.quota.used()));
        }
        match self.machine().frames().free() {
            free if free == self.free => Ok(()),
            free => Err(format!("{} page frames leaked", self.free as isize - free as isize)),
        }
    }
}
