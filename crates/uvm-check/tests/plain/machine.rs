//! A machine without a TLB: the smallest that keeps the contract, by `machine::plain`.
//!
//! Every access looks into the tables, under the lock that each call of the pmap takes. So what
//! leaves the tables is used by no CPU from that moment on, no shootdown has anything to tell, and
//! law P6 holds by itself. Nothing is forgotten but on demand, transfers end at once, nothing can
//! be made to fail.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use machine::order::{Nothing, PageCache};
use machine::plain::{Entry, PlainPmap, Tables};
use machine::{
    Before, Channel, CpuSet, Held, Machine, NoMemory, PageNo, Pmap, Prot, Shootdown, ThreadCtx,
    Ticket, Va, VaRange, Wiring, PAGE_SIZE,
};
use uvm::page::Frames;
use uvm::Uvm;
use uvm_check::desk::Desk;
use uvm_soft::{Config, Denied, Mapping, Sleepers, StdThreads, Threads};

/// Simulated CPUs: names for threads.
const CPUS: usize = 2;

/// Entries by space and address.
#[derive(Default)]
pub struct List {
    entries: BTreeMap<(u64, Va), Entry>,
    spaces: u64,
}

impl List {
    fn access(&mut self, space: u64, va: Va, access: Prot) -> Option<PageNo> {
        let entry = self.entries.get_mut(&(space, va))?;
        let may = entry.prot.contains(access);
        if may {
            entry.seen |= Prot::READ | access & Prot::WRITE;
        }
        may.then_some(entry.page)
    }
}

impl Tables for List {
    fn create<P: Before<PageCache>>(&mut self, _: &mut Held<'_, P>) -> Result<u64, NoMemory> {
        self.spaces += 1;
        Ok(self.spaces)
    }

    fn destroy<P: Before<PageCache>>(&mut self, _: &mut Held<'_, P>, space: u64) {
        let all = VaRange::new(Va(0), Va(u64::MAX));
        assert_eq!(self.first(space, all), None, "a space is destroyed with mappings");
    }

    fn get(&self, space: u64, va: Va) -> Option<Entry> {
        self.entries.get(&(space, va)).copied()
    }

    fn first(&self, space: u64, range: VaRange) -> Option<(Va, Entry)> {
        let start = (space, range.start);
        let mut there = self.entries.range(start..(space, range.end).max(start));
        there.next().map(|((_, va), entry)| (*va, *entry))
    }

    fn set(&mut self, space: u64, va: Va, new: Option<Entry>) -> Option<Entry> {
        match new {
            Some(new) => self.entries.insert((space, va), new),
            None => self.entries.remove(&(space, va)),
        }
    }

    fn holders(&self, _: u64) -> CpuSet {
        CpuSet::NONE
    }

    fn flush(_: &Shootdown) {}
}

pub type Lock = <StdThreads as Threads>::Lock;

pub struct PlainMachine {
    pmap: PlainPmap<List, Lock>,
    frames: Arc<Frames<PlainMachine>>,
    bytes: Vec<Mutex<Box<[u8; PAGE_SIZE]>>>,
    sleepers: <StdThreads as Threads>::Sleepers,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Machine for PlainMachine {
    type Lock = Lock;
    type Pmap = PlainPmap<List, Lock>;

    fn pmap(&self) -> &Self::Pmap {
        &self.pmap
    }

    fn cpu(&self) -> usize {
        StdThreads::cpu() % CPUS
    }

    fn zero(&self, page: PageNo) {
        self.frames.bytes_at(page);
        lock(&self.bytes[page.0 as usize]).fill(0);
    }

    fn copy(&self, from: PageNo, to: PageNo) {
        self.frames.bytes_at(from);
        self.frames.bytes_at(to);
        let bytes = *lock(&self.bytes[from.0 as usize]).clone();
        **lock(&self.bytes[to.0 as usize]) = bytes;
    }

    fn read(&self, page: PageNo, offset: usize, buf: &mut [u8]) {
        self.frames.bytes_at(page);
        buf.copy_from_slice(&lock(&self.bytes[page.0 as usize])[offset..offset + buf.len()]);
    }

    fn write(&self, page: PageNo, offset: usize, bytes: &[u8]) {
        self.frames.bytes_at(page);
        lock(&self.bytes[page.0 as usize])[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn reserve_heap(&self, _: usize) -> Result<(), NoMemory> {
        Ok(())
    }

    fn ticket(&self, channel: Channel) -> Ticket {
        self.sleepers.ticket(channel)
    }

    fn wait(&self, _: &mut Held<'_, Nothing>, ticket: Ticket) {
        self.sleepers.wait(ticket, &|| false);
    }

    fn wake(&self, channel: Channel) {
        self.sleepers.wake(channel);
    }
}

impl PlainMachine {
    /// One access of a program, and what it does to the page's bytes, as one step.
    fn drive<E>(
        &self,
        cpu: usize,
        space: u64,
        at: Va,
        access: Prot,
        mut fault: impl FnMut(Va, Prot) -> Result<(), E>,
        mut data: impl FnMut(PageNo),
    ) -> Result<(), Denied<E>> {
        StdThreads::set_cpu(cpu % CPUS);
        for _ in 0..64 {
            let is_done = self.pmap.tables(|tables| {
                tables.access(space, at.page_floor(), access).map(&mut data).is_some()
            });
            if is_done {
                return Ok(());
            }
            fault(at, access).map_err(Denied::Fault)?;
        }
        Err(Denied::Broken(format!("{access:?} at {at:?} faults for ever")))
    }
}

impl Desk for PlainMachine {
    fn boot(config: &Config) -> Result<Uvm<PlainMachine>, NoMemory> {
        let frames = Arc::new(Frames::with(&config.segments, &[], &config.devices, CPUS)?);
        let pages = frames.numbers();
        let garbage = || Mutex::new(Box::new([0xa5; PAGE_SIZE]));
        let machine = PlainMachine {
            pmap: PlainPmap::new(List::default(), pages),
            frames: frames.clone(),
            bytes: (0..pages).map(|_| garbage()).collect(),
            sleepers: Default::default(),
        };
        Uvm::new(machine, frames)
    }

    fn frames(&self) -> &Frames<PlainMachine> {
        &self.frames
    }

    fn cpus(&self) -> usize {
        CPUS
    }

    fn load<E>(
        &self,
        cpu: usize,
        space: &u64,
        va: Va,
        buf: &mut [u8],
        fault: impl FnMut(Va, Prot) -> Result<(), E>,
    ) -> Result<(), Denied<E>> {
        self.drive(cpu, *space, va, Prot::READ, fault, |page| {
            self.read(page, va.page_offset(), buf);
        })
    }

    fn store<E>(
        &self,
        cpu: usize,
        space: &u64,
        va: Va,
        bytes: &[u8],
        fault: impl FnMut(Va, Prot) -> Result<(), E>,
    ) -> Result<(), Denied<E>> {
        self.drive(cpu, *space, va, Prot::WRITE, fault, |page| {
            self.write(page, va.page_offset(), bytes);
        })
    }

    fn fetch<E>(
        &self,
        cpu: usize,
        space: &u64,
        va: Va,
        fault: impl FnMut(Va, Prot) -> Result<(), E>,
    ) -> Result<PageNo, Denied<E>> {
        let mut from = None;
        self.drive(cpu, *space, va, Prot::EXECUTE, fault, |page| from = Some(page))?;
        from.ok_or_else(|| Denied::Broken("a fetch came from nowhere".into()))
    }

    fn mappings(&self, space: &u64) -> Vec<Mapping> {
        let mapping = |((_, va), entry): (&(u64, Va), &Entry)| Mapping {
            va: *va,
            page: entry.page,
            prot: entry.prot,
            wiring: entry.wiring,
        };
        let all = (*space, Va(0))..(*space + 1, Va(0));
        self.pmap.tables(|tables| tables.entries.range(all).map(mapping).collect())
    }

    fn forget_all(&self) {
        let pageable =
            |(at, entry): (&(u64, Va), &Entry)| (entry.wiring == Wiring::Pageable).then_some(*at);
        let all: Vec<_> =
            self.pmap.tables(|tables| tables.entries.iter().filter_map(pageable).collect());
        let held = &mut ThreadCtx::new();
        for (space, va) in all {
            self.pmap.forget(&mut held.held(), &space, va, &mut Shootdown::new());
        }
    }
}
