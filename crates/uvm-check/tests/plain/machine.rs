//! A machine without a TLB: the smallest that keeps the contract.
//!
//! Every access walks the tables, under the lock that each call of the pmap takes. So what leaves
//! the tables is used by no CPU from that moment on, no shootdown has anything to tell, and law P6
//! holds by itself. Nothing is forgotten but on demand, transfers end at once, nothing can be made
//! to fail.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use machine::order::{Nothing, PageCache};
use machine::{
    Before, Channel, Held, Machine, NoMemory, PageNo, Pmap, Prot, Run, Shootdown, Ticket, Va,
    VaRange, Wiring, PAGE_SHIFT, PAGE_SIZE,
};
use uvm::page::Frames;
use uvm::Uvm;
use uvm_check::desk::Desk;
use uvm_soft::{Config, Denied, Mapping, Sleepers, StdThreads, Threads};

/// Simulated CPUs: names for threads.
const CPUS: usize = 2;

/// Which page of which space.
type Spot = (u64, u64);

#[derive(Clone, Copy)]
struct Pte {
    page: PageNo,
    prot: Prot,
    wired: bool,
}

#[derive(Default)]
struct Tables {
    ptes: BTreeMap<Spot, Pte>,
    referenced: Vec<bool>,
    modified: Vec<bool>,
    spaces: u64,
}

pub struct PlainPmap(Mutex<Tables>);

pub struct PlainMachine {
    pmap: PlainPmap,
    frames: Arc<Frames<PlainMachine>>,
    bytes: Vec<Mutex<Box<[u8; PAGE_SIZE]>>>,
    sleepers: <StdThreads as Threads>::Sleepers,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn spots(space: u64, range: VaRange) -> std::ops::Range<Spot> {
    let start = (space, range.start.0 >> PAGE_SHIFT);
    start..(space, range.end.0 >> PAGE_SHIFT).max(start)
}

fn va(spot: Spot) -> Va {
    Va(spot.1 << PAGE_SHIFT)
}

impl Tables {
    fn access(&mut self, spot: Spot, access: Prot) -> Option<PageNo> {
        let pte = self.ptes.get(&spot).filter(|pte| pte.prot.contains(access))?;
        let page = pte.page;
        self.touch(page, access);
        Some(page)
    }

    fn touch(&mut self, page: PageNo, access: Prot) {
        self.referenced[page.0 as usize] |= access != Prot::NONE;
        self.modified[page.0 as usize] |= access.contains(Prot::WRITE);
    }

    fn lower(&mut self, spots: impl IntoIterator<Item = Spot>, prot: Prot) -> u32 {
        let mut wired = 0;
        for spot in spots {
            let Some(pte) = self.ptes.get_mut(&spot) else { continue };
            pte.prot &= prot;
            if prot == Prot::NONE {
                wired += u32::from(pte.wired);
                self.ptes.remove(&spot);
            }
        }
        wired
    }

    fn of(&self, space: u64, range: VaRange) -> Vec<Spot> {
        self.ptes.range(spots(space, range)).map(|(spot, _)| *spot).collect()
    }

    fn maps(&self, page: PageNo) -> Vec<Spot> {
        self.ptes.iter().filter(|(_, pte)| pte.page == page).map(|(spot, _)| *spot).collect()
    }
}

impl Pmap for PlainPmap {
    type Space = u64;

    fn create<P: Before<PageCache>>(&self, _: &mut Held<'_, P>) -> Result<u64, NoMemory> {
        let mut tables = lock(&self.0);
        tables.spaces += 1;
        Ok(tables.spaces)
    }

    fn destroy<P: Before<PageCache>>(&self, _: &mut Held<'_, P>, space: u64) {
        assert_eq!(self.resident(&space), 0, "a space is destroyed with mappings");
    }

    fn enter<P: Before<PageCache>>(
        &self,
        _: &mut Held<'_, P>,
        space: &u64,
        run: Run,
        prot: Prot,
        access: Prot,
        wiring: Wiring,
        _: &mut Shootdown,
    ) -> Result<(), NoMemory> {
        let mut tables = lock(&self.0);
        for (va, page) in run.iter() {
            let pte = Pte { page, prot, wired: wiring == Wiring::Wired };
            tables.ptes.insert((*space, va.0 >> PAGE_SHIFT), pte);
            tables.touch(page, access);
        }
        Ok(())
    }

    fn enter_ahead<P: Before<PageCache>>(
        &self,
        _: &mut Held<'_, P>,
        space: &u64,
        va: Va,
        pages: &[Option<(PageNo, Prot)>],
        may: impl Fn(usize) -> bool,
    ) {
        let mut tables = lock(&self.0);
        for (n, run) in pages.iter().enumerate() {
            let Some((page, prot)) = *run else { continue };
            if may(n) {
                let spot = (*space, (va.0 >> PAGE_SHIFT) + n as u64);
                tables.ptes.entry(spot).or_insert(Pte { page, prot, wired: false });
            }
        }
    }

    fn remove<P: Before<PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        space: &u64,
        range: VaRange,
        down: &mut Shootdown,
    ) {
        self.protect(held, space, range, Prot::NONE, down);
    }

    fn protect<P: Before<PageCache>>(
        &self,
        _: &mut Held<'_, P>,
        space: &u64,
        range: VaRange,
        prot: Prot,
        _: &mut Shootdown,
    ) {
        let mut tables = lock(&self.0);
        let spots = tables.of(*space, range);
        tables.lower(spots, prot);
    }

    fn unwire(&self, space: &u64, range: VaRange) -> Option<(Va, PageNo)> {
        let mut tables = lock(&self.0);
        let (spot, pte) = tables.ptes.range_mut(spots(*space, range)).find(|(_, pte)| pte.wired)?;
        pte.wired = false;
        Some((va(*spot), pte.page))
    }

    fn part(&self, space: &u64, range: VaRange, mappings: usize) -> Va {
        lock(&self.0).of(*space, range).get(mappings).map_or(range.end, |spot| va(*spot))
    }

    fn extract(&self, space: &u64, va: Va) -> Option<(PageNo, Prot)> {
        let tables = lock(&self.0);
        tables.ptes.get(&(*space, va.0 >> PAGE_SHIFT)).map(|pte| (pte.page, pte.prot))
    }

    fn resident(&self, space: &u64) -> usize {
        lock(&self.0).of(*space, VaRange::new(Va(0), Va(!0))).len()
    }

    fn page_protect<P: Before<PageCache>>(
        &self,
        _: &mut Held<'_, P>,
        page: PageNo,
        prot: Prot,
        _: &mut Shootdown,
    ) -> u32 {
        let mut tables = lock(&self.0);
        let spots = tables.maps(page);
        tables.lower(spots, prot)
    }

    fn is_mapped(&self, page: PageNo) -> bool {
        !lock(&self.0).maps(page).is_empty()
    }

    fn is_referenced(&self, page: PageNo) -> bool {
        lock(&self.0).referenced[page.0 as usize]
    }

    fn clear_referenced(&self, page: PageNo) -> bool {
        std::mem::replace(&mut lock(&self.0).referenced[page.0 as usize], false)
    }

    fn is_modified(&self, page: PageNo) -> bool {
        lock(&self.0).modified[page.0 as usize]
    }

    fn clear_modified(&self, page: PageNo, _: &mut Shootdown) -> bool {
        std::mem::replace(&mut lock(&self.0).modified[page.0 as usize], false)
    }

    fn forget_modified(&self, page: PageNo) {
        lock(&self.0).modified[page.0 as usize] = false;
    }

    fn flush(&self, _: &Shootdown) {}
}

impl Machine for PlainMachine {
    type Lock = <StdThreads as Threads>::Lock;
    type Pmap = PlainPmap;

    fn pmap(&self) -> &PlainPmap {
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
            {
                let mut tables = lock(&self.pmap.0);
                if let Some(page) = tables.access((space, at.0 >> PAGE_SHIFT), access) {
                    data(page);
                    return Ok(());
                }
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
        let (referenced, modified) = (vec![false; pages], vec![false; pages]);
        let tables = Tables { referenced, modified, ..Tables::default() };
        let machine = PlainMachine {
            pmap: PlainPmap(Mutex::new(tables)),
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
        let all = spots(*space, VaRange::new(Va(0), Va(!0)));
        let tables = lock(&self.pmap.0);
        let mapping = |(spot, pte): (&Spot, &Pte)| Mapping {
            va: va(*spot),
            page: pte.page,
            prot: pte.prot,
            wiring: if pte.wired { Wiring::Wired } else { Wiring::Pageable },
        };
        tables.ptes.range(all).map(mapping).collect()
    }

    fn forget_all(&self) {
        lock(&self.pmap.0).ptes.retain(|_, pte| pte.wired);
    }
}
