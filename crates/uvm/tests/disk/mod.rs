//! A disk with one file, for tests: says what it was asked for, fails where it is told to, answers
//! at once or later.
#![allow(dead_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use machine::order::Nothing;
use machine::{Held, Machine, PageNo, PageRange, Pages, ThreadCtx, Va, PAGE_SIZE};
use uvm::{
    Access, FaultError, GetError, Intent, Outcome, Pager, Space, Transfer, Uvm, Vnode, VnodePager,
};
use uvm_soft::{Config, Denied, Fate, IoBy, SoftMachine, Stage};

pub type World = Uvm<SoftMachine>;

/// When a transfer is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answers {
    AtOnce,
    Later,
}

#[derive(Default)]
pub struct State {
    /// Bytes that were written; other pages hold their own number in every byte.
    pub written: BTreeMap<u64, u8>,
    /// Pages that can't be transferred.
    pub bad: BTreeSet<u64>,
    /// Pages of zeroes that the file has no room for, and for which it was asked for some; whether
    /// there is none left.
    pub holes: BTreeSet<u64>,
    pub asked: Vec<u64>,
    pub full: bool,
    /// How often the hole is punched again, and read, before the thread that asked for room comes
    /// back.
    pub punches: usize,
    pub reads: Vec<Range<u64>>,
    pub writes: Vec<Range<u64>>,
    /// Whether the page daemon is told that the host writes dirty pages itself, and how often it
    /// was.
    pub flusher: bool,
    pub told: usize,
}

/// What runs in the middle of an operation.
type Hook = Mutex<Option<Box<dyn Fn(&SoftMachine) + Send>>>;

pub struct Disk {
    pub state: Mutex<State>,
    /// What runs as the next read begins.
    pub on_read: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// What runs as each write begins.
    pub on_write: Hook,
    answers: Answers,
    uvm: OnceLock<Weak<World>>,
}

impl Disk {
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pages read since the last call.
    pub fn take_reads(&self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.state().reads)
    }

    pub fn take_writes(&self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.state().writes)
    }

    fn byte(&self, page: u64) -> u8 {
        let state = self.state();
        let first = if state.holes.contains(&page) { 0 } else { page as u8 };
        state.written.get(&page).copied().unwrap_or(first)
    }

    /// Ends a read that went well, page by page, as each is a hole or not.
    fn read_done(&self, range: Range<u64>, pages: &[PageNo]) {
        let Some(uvm) = self.uvm.get().and_then(Weak::upgrade) else { return };
        for (n, page) in range.zip(pages) {
            let hole = self.state().holes.contains(&n);
            let outcome = if hole { Outcome::Hole } else { Outcome::Done };
            uvm.read_done(&mut ThreadCtx::new().held(), std::slice::from_ref(page), outcome);
        }
    }

    fn end(&self, pages: Range<u64>, fate: Fate, end: impl FnOnce(Outcome)) -> Transfer {
        let bad = pages.clone().any(|n| self.state().bad.contains(&n)) || fate == Fate::Fails;
        end(if bad { Outcome::Failed } else { Outcome::Done });
        if bad {
            Transfer::Failed
        } else {
            Transfer::Done
        }
    }
}

/// The disk as the library sees it.
pub struct Node(pub Arc<Disk>);

impl Vnode<SoftMachine> for Node {
    fn read(&self, machine: &SoftMachine, index: Pages, pages: &[PageNo]) -> Transfer {
        let hook = self.0.on_read.lock().unwrap().take();
        if let Some(hook) = hook {
            hook();
        }
        let range = index.0..index.0 + pages.len() as u64;
        self.0.state().reads.push(range.clone());
        let fill = |disk: &Disk, machine: &SoftMachine, range: Range<u64>, pages: &[PageNo]| {
            for (n, &page) in range.zip(pages) {
                machine.write(page, 0, &[disk.byte(n); PAGE_SIZE]);
            }
        };
        if self.0.answers == Answers::AtOnce {
            fill(&self.0, machine, range.clone(), pages);
            let ended = self.0.end(range.clone(), Fate::Works, |_| ());
            if ended == Transfer::Failed
                || self.0.state().holes.range(range.clone()).next().is_none()
            {
                return ended;
            }
            self.0.read_done(range, pages);
            return Transfer::Started;
        }
        let (disk, pages) = (self.0.clone(), pages.to_vec());
        machine.begin(move |machine, fate| {
            let Some(uvm) = disk.uvm.get().and_then(Weak::upgrade) else { return };
            fill(&disk, machine, range.clone(), &pages);
            disk.end(range.clone(), fate, |outcome| match outcome {
                Outcome::Failed => uvm.read_done(&mut ThreadCtx::new().held(), &pages, outcome),
                _ => disk.read_done(range, &pages),
            });
        });
        Transfer::Started
    }

    fn fill_hole(&self, _: &SoftMachine, index: Pages) -> Result<(), GetError> {
        let mut state = self.0.state();
        state.asked.push(index.0);
        if state.full {
            return Err(GetError::NoSpace);
        }
        state.holes.remove(&index.0);
        if state.punches != 0 {
            state.punches -= 1;
            state.holes.insert(index.0);
            drop(state);
            let uvm = self.0.uvm.get().and_then(Weak::upgrade).expect("it asks");
            let pager = uvm.pager(&mut ThreadCtx::new().held(), 1).expect("the file is known");
            uvm.punch(&mut ThreadCtx::new().held(), &pager, index.0..index.0 + 1);
            let read = uvm.with_page(
                &mut ThreadCtx::new().held(),
                &pager,
                index,
                Intent::Read,
                Access::PAGE,
                |_, _| (),
            );
            read.expect("a hole can be read");
        }
        Ok(())
    }

    fn write(&self, machine: &SoftMachine, index: Pages, pages: &[PageNo]) -> Transfer {
        let range = index.0..index.0 + pages.len() as u64;
        if let Some(hook) = &*self.0.on_write.lock().unwrap() {
            hook(machine);
        }
        self.0.state().writes.push(range.clone());
        let keep = |disk: &Disk, machine: &SoftMachine, range: Range<u64>, pages: &[PageNo]| {
            for (n, &page) in range.zip(pages) {
                let mut byte = [0];
                machine.read(page, 0, &mut byte);
                let mut state = disk.state();
                assert!(
                    !state.holes.contains(&n),
                    "page {n} is written, and the file has no room for it"
                );
                if !state.bad.contains(&n) {
                    state.written.insert(n, byte[0]);
                }
            }
        };
        if self.0.answers == Answers::AtOnce {
            keep(&self.0, machine, range.clone(), pages);
            return self.0.end(range, Fate::Works, |_| ());
        }
        let (disk, pages) = (self.0.clone(), pages.to_vec());
        machine.begin(move |machine, fate| {
            let Some(uvm) = disk.uvm.get().and_then(Weak::upgrade) else { return };
            keep(&disk, machine, range.clone(), &pages);
            disk.end(range, fate, |outcome| {
                uvm.write_done(&mut ThreadCtx::new().held(), &pages, outcome);
            });
        });
        Transfer::Started
    }

    fn write_later(&self) -> bool {
        let mut state = self.0.state();
        state.told += usize::from(state.flusher);
        state.flusher
    }
}

/// A system, a disk, and the pager of its file.
pub struct Desk {
    pub uvm: Arc<World>,
    pub disk: Arc<Disk>,
    pub file: Arc<VnodePager<SoftMachine>>,
    pub pager: Arc<dyn Pager<SoftMachine>>,
}

impl Desk {
    pub fn new(answers: Answers, len: u64) -> Desk {
        Desk::on(Config::default(), answers, len)
    }

    /// With a device that only the test answers for.
    pub fn slow(len: u64) -> Desk {
        Desk::on(
            Config { io: IoBy::Test, stage: Stage::Concurrent, ..Config::default() },
            Answers::Later,
            len,
        )
    }

    pub fn on(config: Config, answers: Answers, len: u64) -> Desk {
        let uvm = Arc::new(SoftMachine::new(config).into_uvm().unwrap());
        let disk = Arc::new(Disk {
            state: Mutex::default(),
            on_read: Mutex::default(),
            on_write: Mutex::default(),
            answers,
            uvm: OnceLock::new(),
        });
        disk.uvm.set(Arc::downgrade(&uvm)).unwrap();
        let node = Box::new(Node(disk.clone()));
        let file = VnodePager::new(&uvm, &mut ThreadCtx::new().held(), node, Pages(len)).unwrap();
        let pager = file.clone();
        Desk { uvm, disk, file, pager }
    }

    pub fn space(&self, held: &mut Held<'_, Nothing>) -> Space<SoftMachine> {
        self.uvm
            .space_create(held, PageRange::new(Va(machine::PAGE_SIZE as u64), Va(1 << 40)).unwrap())
            .unwrap()
    }

    pub fn load(&self, space: &Space<SoftMachine>, va: Va) -> Result<u8, FaultError> {
        load(&self.uvm, space, va)
    }

    pub fn store(&self, space: &Space<SoftMachine>, va: Va, byte: u8) -> Result<(), FaultError> {
        store(&self.uvm, space, va, byte)
    }

    /// Ends the world and counts what came back.
    pub fn close(self, held: &mut Held<'_, Nothing>, spaces: Vec<Space<SoftMachine>>) {
        while self.uvm.machine().complete(0, Fate::Works) {}
        let all: Vec<_> = spaces.iter().collect();
        self.uvm.audit(held, &all, std::slice::from_ref(&self.pager)).unwrap();
        self.uvm.machine().tlb_audit().unwrap();
        for space in spaces {
            self.uvm.space_destroy(held, space);
        }
        self.uvm.detach(held, &*self.pager);
        assert_eq!(self.uvm.frames().free(), self.uvm.frames().total(), "pages leaked");
    }
}

pub fn store(uvm: &World, space: &Space<SoftMachine>, va: Va, byte: u8) -> Result<(), FaultError> {
    let fault = |va, access| uvm.fault(&mut ThreadCtx::new().held(), space, va, access).map(drop);
    uvm.machine().store(0, space.pmap(), va, &[byte], fault).map_err(refused)
}

pub fn load(uvm: &World, space: &Space<SoftMachine>, va: Va) -> Result<u8, FaultError> {
    let mut byte = [0];
    let fault = |va, access| uvm.fault(&mut ThreadCtx::new().held(), space, va, access).map(drop);
    uvm.machine().load(0, space.pmap(), va, &mut byte, fault).map_err(refused)?;
    Ok(byte[0])
}

fn refused(denied: Denied<FaultError>) -> FaultError {
    match denied {
        Denied::Fault(e) => e,
        other => panic!("{other:?}"),
    }
}
