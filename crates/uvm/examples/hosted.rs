//! A port to an ordinary Linux process: a plain pointer reads and writes memory that the library
//! manages.
//!
//! ```text
//!   frames     a memfd; the machine's own view of it is one mapping, `direct`
//!   pmap       mmap(MAP_FIXED | MAP_SHARED) of a frame into a space's window of addresses
//!   faults     SIGSEGV, whose handler calls the library
//! ```
//! What an MMU does for other ports Linux does here, and makes much of the contract easy. `mmap`
//! and `mprotect` return when all CPUs know: so nothing is left for a shootdown to tell (laws P2,
//! P3 and P6). Only referenced and modified bits are nowhere to be read, so a mapping shows no more
//! than what its page's bits say, and the access that is still missing faults (law P4).
//!
//! The handler takes locks and allocates, which a handler may do where the interrupted code does
//! neither: programs' memory is touched in `load` and `store` alone. `cargo run --example hosted`
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::io::Error;
use std::ops::Bound::{Excluded, Included};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use machine::order::{Before, Held, Nothing, PageCache, RawLock};
use machine::{
    Channel, Machine, NoMemory, Pa, PageNo, PageRange, Pages, Pmap, Prot, Run, Shootdown,
    ThreadCtx, Ticket, Va, VaRange, Wiring, PAGE_SIZE,
};
use uvm::page::Frames;
use uvm::{Counter, MapRequest, Space, SwapDevice, Transfer, Uvm};

const FRAMES: u32 = 256;
const PAGES: u64 = 4 * FRAMES as u64;
/// Bytes of addresses of each space.
const WINDOW: usize = 1 << 30;

/// Maps into this process; panics where Linux refuses.
fn map(at: *mut u8, bytes: usize, prot: i32, flags: i32, fd: i32, offset: usize) -> *mut u8 {
    // SAFETY: `at` is null, or inside a window of ours, where no Rust object lies.
    let at = unsafe { libc::mmap(at.cast(), bytes, prot, flags, fd, offset as i64) };
    assert!(at != libc::MAP_FAILED, "mmap: {}", Error::last_os_error());
    at.cast()
}

/// A lock; threads of a process give way to each other where they would spin.
struct Lock(AtomicBool);

// SAFETY: the exchange says yes to one until `unlock`; acquire and release order what it guards.
unsafe impl RawLock for Lock {
    fn new() -> Self {
        Lock(AtomicBool::new(false))
    }

    fn lock(&self) {
        while !self.try_lock() {
            std::thread::yield_now();
        }
    }

    fn try_lock(&self) -> bool {
        !self.0.swap(true, Acquire)
    }

    unsafe fn unlock(&self) {
        self.0.store(false, Release);
    }
}

/// The machine.
struct Process {
    frames: Arc<Frames<Process>>,
    direct: NonNull<u8>,
    pmap: Windows,
    wakes: Mutex<BTreeMap<u64, u64>>,
    woken: Condvar,
}

// SAFETY: `direct` is mapped for as long as the process runs, and accessed as `bytes` says.
unsafe impl Send for Process {}
// SAFETY: the same.
unsafe impl Sync for Process {}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Process {
    fn new() -> Process {
        let bytes = FRAMES as usize * PAGE_SIZE;
        // SAFETY: makes a file; the name ends with a zero.
        let fd = unsafe { libc::memfd_create(c"frames".as_ptr(), libc::MFD_CLOEXEC) };
        // SAFETY: sets the length of that file.
        let done = fd >= 0 && unsafe { libc::ftruncate(fd, bytes as i64) } == 0;
        assert!(done, "memfd: {}", Error::last_os_error());
        let read_write = libc::PROT_READ | libc::PROT_WRITE;
        let direct = map(ptr::null_mut(), bytes, read_write, libc::MAP_SHARED, fd, 0);
        let frames = Frames::new(&[(Pa(0), FRAMES)], 1).expect("there is heap");
        let state = State {
            spaces: BTreeMap::new(),
            mapped_at: vec![Vec::new(); frames.numbers()],
            bits: vec![Prot::NONE; frames.numbers()],
        };
        Process {
            frames: Arc::new(frames),
            direct: NonNull::new(direct).expect("mmap says where"),
            pmap: Windows { fd, state: Mutex::new(state) },
            wakes: Mutex::default(),
            woken: Condvar::new(),
        }
    }

    /// Bytes of a frame. Programs may change them meanwhile, so nobody makes a reference to them.
    fn bytes(&self, page: PageNo, offset: usize, len: usize) -> *mut u8 {
        assert!(len <= PAGE_SIZE && offset <= PAGE_SIZE - len, "bytes beyond a page's end");
        self.direct.as_ptr().wrapping_add(self.frames.bytes_at(page).0 as usize + offset)
    }
}

impl Machine for Process {
    type Lock = Lock;
    type Pmap = Windows;

    fn pmap(&self) -> &Windows {
        &self.pmap
    }

    fn cpu(&self) -> usize {
        0
    }

    fn zero(&self, page: PageNo) {
        // SAFETY: `bytes` names a page of the memfd, which holds no Rust object.
        unsafe { self.bytes(page, 0, PAGE_SIZE).write_bytes(0, PAGE_SIZE) };
    }

    fn copy(&self, from: PageNo, to: PageNo) {
        // SAFETY: as above.
        unsafe { self.bytes(from, 0, PAGE_SIZE).copy_to(self.bytes(to, 0, PAGE_SIZE), PAGE_SIZE) };
    }

    fn read(&self, page: PageNo, offset: usize, buf: &mut [u8]) {
        // SAFETY: as above.
        unsafe { self.bytes(page, offset, buf.len()).copy_to(buf.as_mut_ptr(), buf.len()) };
    }

    fn write(&self, page: PageNo, offset: usize, bytes: &[u8]) {
        // SAFETY: as above.
        unsafe { self.bytes(page, offset, bytes.len()).copy_from(bytes.as_ptr(), bytes.len()) };
    }

    /// Linux promises a process what it asks for, and ends one when it has promised too much.
    fn reserve_heap(&self, _bytes: usize) -> Result<(), NoMemory> {
        Ok(())
    }

    fn ticket(&self, channel: Channel) -> Ticket {
        let sequence = locked(&self.wakes).get(&channel.0).copied().unwrap_or(0);
        Ticket { channel, sequence }
    }

    fn wait(&self, _held: &mut Held<'_, Nothing>, ticket: Ticket) {
        let wakes = locked(&self.wakes);
        let is_asleep = |wakes: &mut BTreeMap<u64, u64>| {
            wakes.get(&ticket.channel.0).copied().unwrap_or(0) == ticket.sequence
        };
        drop(self.woken.wait_while(wakes, is_asleep).unwrap_or_else(PoisonError::into_inner));
    }

    fn wake(&self, channel: Channel) {
        *locked(&self.wakes).entry(channel.0).or_insert(0) += 1;
        self.woken.notify_all();
    }
}

#[derive(Clone, Copy)]
struct Mapping {
    page: PageNo,
    prot: Prot,
    wired: bool,
}

/// By address in its space, as a number that also says which space: see [`Windows::at`].
type Spot = u64;

struct State {
    spaces: BTreeMap<u64, BTreeMap<Spot, Mapping>>,
    /// By frame: where it is mapped, and whether it was referenced (READ) and modified (WRITE).
    mapped_at: Vec<Vec<(u64, Spot)>>,
    bits: Vec<Prot>,
}

/// The pmap. A space is a window of addresses of the process, and is named by where that begins.
struct Windows {
    fd: i32,
    state: Mutex<State>,
}

impl State {
    /// Has Linux map what a mapping shows: what the page's bits don't count yet is left out.
    fn show(&self, fd: i32, space: u64, spot: Spot) {
        let at = (space + spot) as *mut u8;
        let Some(mapping) = self.spaces[&space].get(&spot) else {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            map(at, PAGE_SIZE, libc::PROT_NONE, flags | libc::MAP_FIXED, -1, 0);
            return;
        };
        let bits = self.bits[mapping.page.0 as usize];
        let seen = mapping.prot & if bits.contains(Prot::READ) { bits } else { Prot::NONE };
        let mut prot = if seen.contains(Prot::READ) { libc::PROT_READ } else { libc::PROT_NONE };
        if seen.contains(Prot::WRITE) {
            prot |= libc::PROT_WRITE;
        }
        let offset = mapping.page.0 as usize * PAGE_SIZE;
        map(at, PAGE_SIZE, prot, libc::MAP_SHARED | libc::MAP_FIXED, fd, offset);
    }

    fn show_all(&self, fd: i32, page: PageNo) {
        self.mapped_at[page.0 as usize].iter().for_each(|(space, at)| self.show(fd, *space, *at));
    }

    /// Lowers a mapping to at most `prot`; says whether a wired one is gone.
    fn lower(&mut self, fd: i32, space: u64, spot: Spot, prot: Prot) -> bool {
        let mappings = self.spaces.get_mut(&space).expect("a space that is there");
        let Some(mapping) = mappings.get_mut(&spot) else { return false };
        mapping.prot &= prot;
        let Mapping { page, prot: left, wired } = *mapping;
        if left.is_empty() {
            mappings.remove(&spot);
            self.mapped_at[page.0 as usize].retain(|at| *at != (space, spot));
        }
        self.show(fd, space, spot);
        left.is_empty() && wired
    }

    fn in_range(&self, space: u64, range: VaRange) -> Vec<(Spot, Mapping)> {
        let bounds = (Included(range.start.0), Excluded(range.end.0.max(range.start.0 + 1)));
        let mappings = self.spaces[&space].range(bounds);
        mappings.filter(|(at, _)| **at < range.end.0).map(|(at, m)| (*at, *m)).collect()
    }
}

impl Pmap for Windows {
    type Space = u64;

    fn create<P: Before<PageCache>>(&self, _held: &mut Held<'_, P>) -> Result<u64, NoMemory> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let base = map(ptr::null_mut(), WINDOW, libc::PROT_NONE, flags, -1, 0) as u64;
        locked(&self.state).spaces.insert(base, BTreeMap::new());
        Ok(base)
    }

    fn destroy<P: Before<PageCache>>(&self, _held: &mut Held<'_, P>, space: u64) {
        locked(&self.state).spaces.remove(&space);
        // SAFETY: the window is this space's, and nothing points into it any more.
        unsafe { libc::munmap(space as *mut _, WINDOW) };
    }

    fn enter<P: Before<PageCache>>(
        &self,
        _held: &mut Held<'_, P>,
        space: &u64,
        run: Run,
        prot: Prot,
        access: Prot,
        wiring: Wiring,
        _down: &mut Shootdown,
    ) -> Result<(), NoMemory> {
        let state = &mut *locked(&self.state);
        let wired = wiring == Wiring::Wired;
        for (va, page) in run.iter() {
            let mappings = state.spaces.get_mut(space).expect("a space that is there");
            let old = mappings.insert(va.0, Mapping { page, prot, wired });
            if let Some(old) = old {
                state.mapped_at[old.page.0 as usize].retain(|at| *at != (*space, va.0));
            }
            state.mapped_at[page.0 as usize].push((*space, va.0));
            if !access.is_empty() {
                state.bits[page.0 as usize] |= Prot::READ | access & Prot::WRITE;
            }
            // Other mappings of the page may show more now, and will when they fault.
            state.show(self.fd, *space, va.0);
        }
        Ok(())
    }

    /// Nothing is mapped ahead: it would fault all the same, as the page's bits are clear.
    fn enter_ahead<P: Before<PageCache>>(
        &self,
        _held: &mut Held<'_, P>,
        _space: &u64,
        _va: Va,
        _pages: &[Option<(PageNo, Prot)>],
        _may: impl Fn(usize) -> bool,
    ) {
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
        _held: &mut Held<'_, P>,
        space: &u64,
        range: VaRange,
        prot: Prot,
        _down: &mut Shootdown,
    ) {
        let state = &mut *locked(&self.state);
        for (at, _) in state.in_range(*space, range) {
            state.lower(self.fd, *space, at, prot);
        }
    }

    fn unwire(&self, space: &u64, range: VaRange) -> Option<(Va, PageNo)> {
        let state = &mut *locked(&self.state);
        let wired = state.in_range(*space, range).into_iter().find(|(_, mapping)| mapping.wired);
        wired.map(|(at, mapping)| {
            let mappings = state.spaces.get_mut(space).expect("a space that is there");
            mappings.insert(at, Mapping { wired: false, ..mapping });
            (Va(at), mapping.page)
        })
    }

    fn part(&self, space: &u64, range: VaRange, mappings: usize) -> Va {
        let all = locked(&self.state).in_range(*space, range);
        all.get(mappings).map_or(range.end, |(at, _)| Va(*at))
    }

    fn extract(&self, space: &u64, va: Va) -> Option<(PageNo, Prot)> {
        let state = locked(&self.state);
        state.spaces[space].get(&va.page_floor().0).map(|mapping| (mapping.page, mapping.prot))
    }

    fn resident(&self, space: &u64) -> usize {
        locked(&self.state).spaces[space].len()
    }

    fn page_protect<P: Before<PageCache>>(
        &self,
        _held: &mut Held<'_, P>,
        page: PageNo,
        prot: Prot,
        _down: &mut Shootdown,
    ) -> u32 {
        let state = &mut *locked(&self.state);
        let spots = state.mapped_at[page.0 as usize].clone();
        let lower = |&(space, at): &(u64, Spot)| state.lower(self.fd, space, at, prot);
        spots.iter().map(lower).filter(|wired| *wired).count() as u32
    }

    fn is_mapped(&self, page: PageNo) -> bool {
        !locked(&self.state).mapped_at[page.0 as usize].is_empty()
    }

    fn is_referenced(&self, page: PageNo) -> bool {
        locked(&self.state).bits[page.0 as usize].contains(Prot::READ)
    }

    fn clear_referenced(&self, page: PageNo) -> bool {
        let state = &mut *locked(&self.state);
        let was = state.bits[page.0 as usize].contains(Prot::READ);
        state.bits[page.0 as usize].remove(Prot::READ);
        state.show_all(self.fd, page);
        was
    }

    fn is_modified(&self, page: PageNo) -> bool {
        locked(&self.state).bits[page.0 as usize].contains(Prot::WRITE)
    }

    fn clear_modified(&self, page: PageNo, _down: &mut Shootdown) -> bool {
        let state = &mut *locked(&self.state);
        let was = state.bits[page.0 as usize].contains(Prot::WRITE);
        state.bits[page.0 as usize].remove(Prot::WRITE);
        state.show_all(self.fd, page);
        was
    }

    fn forget_modified(&self, page: PageNo) {
        locked(&self.state).bits[page.0 as usize].remove(Prot::WRITE);
    }

    fn flush(&self, down: &Shootdown) {
        assert!(!down.is_needed(), "nothing is ever noted");
    }
}

static UVM: OnceLock<Uvm<Process>> = OnceLock::new();
/// Spaces whose windows programs use.
static SPACES: Mutex<Vec<Arc<Space<Process>>>> = Mutex::new(Vec::new());

/// A fault in a window is the library's to resolve; any other ends the process. Whether it was a
/// load or a store is said by each kind of CPU in its own way; that the page may be read already
/// says it on all, where one thread uses a space.
extern "C" fn on_fault(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: Linux hands the address over.
    let at = unsafe { (*info).si_addr() } as u64;
    let is_there = |space: &&Arc<Space<Process>>| at.wrapping_sub(*space.pmap()) < WINDOW as u64;
    let space = locked(&SPACES).iter().find(is_there).cloned();
    let (Some(space), Some(uvm)) = (space, UVM.get()) else { std::process::abort() };
    let va = Va(at - space.pmap());
    let machine = uvm.machine();
    let bits = |page| (machine.pmap.is_referenced(page), machine.pmap.is_modified(page));
    let access = match machine.pmap.extract(space.pmap(), va) {
        Some((page, _)) if bits(page).0 => Prot::WRITE,
        _ => Prot::READ,
    };
    if let Err(error) = uvm.fault(&mut ThreadCtx::new().held(), &space, va, access) {
        eprintln!("{access:?} at {va:?}: {error:?}");
        std::process::abort();
    }
}

fn serve_faults() {
    // SAFETY: a zeroed action is one without flags and mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_fault as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the handler runs where `load` and `store` are, and may do what any function may.
    let done = unsafe { libc::sigaction(libc::SIGSEGV, &action, ptr::null_mut()) };
    assert!(done == 0, "sigaction: {}", Error::last_os_error());
}

/// A pointer to memory of a space: an ordinary one.
fn pointer(space: &Space<Process>, va: Va) -> *mut u64 {
    (space.pmap() + va.0) as *mut u64
}

fn load(space: &Space<Process>, va: Va) -> u64 {
    // SAFETY: the address lies in a window; no Rust object does.
    unsafe { pointer(space, va).read_volatile() }
}

fn store(space: &Space<Process>, va: Va, word: u64) {
    // SAFETY: as above.
    unsafe { pointer(space, va).write_volatile(word) }
}

/// A disk that is an array.
struct Disk(Mutex<Vec<[u8; PAGE_SIZE]>>);

impl SwapDevice<Process> for Disk {
    fn slots(&self) -> u32 {
        locked(&self.0).len() as u32
    }

    fn read(
        &self,
        machine: &Process,
        _: &mut Held<'_, Nothing>,
        slot: u32,
        pages: &[PageNo],
    ) -> Transfer {
        let slots = locked(&self.0);
        pages
            .iter()
            .zip(&slots[slot as usize..])
            .for_each(|(page, at)| machine.write(*page, 0, at));
        Transfer::Done
    }

    fn write(
        &self,
        machine: &Process,
        _: &mut Held<'_, Nothing>,
        slot: u32,
        pages: &[PageNo],
    ) -> Transfer {
        let mut slots = locked(&self.0);
        let places = slots[slot as usize..].iter_mut();
        pages.iter().zip(places).for_each(|(page, at)| machine.read(*page, 0, at));
        Transfer::Done
    }
}

fn daemon(uvm: &Uvm<Process>) -> ! {
    let (mut ctx, frames) = (ThreadCtx::new(), uvm.frames());
    loop {
        let ticket = uvm.machine().ticket(Channel::PAGE_DAEMON);
        while frames.free() + uvm.pages_in_flight() < frames.high_water() {
            let progress = uvm.pageout(&mut ctx.held(), frames.high_water());
            if progress.freed + progress.started == 0 {
                break;
            }
        }
        uvm.machine().wait(&mut ctx.held(), ticket);
    }
}

/// Runs the example; a test does, too.
pub fn main() {
    let process = Process::new();
    let frames = process.frames.clone();
    let uvm = UVM.get_or_init(|| Uvm::new(process, frames).expect("there is heap"));
    let mut ctx = ThreadCtx::new();
    let h = &mut ctx.held();
    serve_faults();
    std::thread::spawn(|| daemon(uvm));
    let disk = Disk(Mutex::new(vec![[0; PAGE_SIZE]; 2 * PAGES as usize]));
    uvm.swap_on(h, Arc::new(disk), 0).expect("the disk has room");

    let bounds = PageRange::new(Va(1 << 16), Va(WINDOW as u64)).expect("whole pages");
    let parent = Arc::new(uvm.space_create(h, bounds).expect("there is memory"));
    locked(&SPACES).push(parent.clone());
    let at = uvm.map(h, &parent, &MapRequest::zero(Pages(PAGES))).expect("there is room");
    assert_eq!(load(&parent, at), 0);
    store(&parent, at, 7);
    println!("a pointer: {:?} reads {}", pointer(&parent, at), load(&parent, at));

    let child = Arc::new(uvm.fork(h, &parent).expect("there is memory"));
    locked(&SPACES).push(child.clone());
    let copied = || uvm.stat().get(Counter::FaultsAnonCopied);
    let before = copied();
    assert_eq!((load(&parent, at), load(&child, at), copied()), (7, 7, before));
    store(&child, at, 8);
    assert_eq!((load(&parent, at), load(&child, at), copied()), (7, 8, before + 1));
    println!("a fork: the parent reads 7, the child 8; the child's store copied one page");

    for n in 0..PAGES {
        store(&parent, at + Pages(n), n);
    }
    for n in 0..PAGES {
        assert_eq!(load(&parent, at + Pages(n)), n);
    }
    assert_eq!(load(&child, at), 8);
    let of = |counter| uvm.stat().get(counter);
    let (out, back) = (of(Counter::SwapOuts), of(Counter::SwapIns));
    println!("paging: {PAGES} pages in {FRAMES} frames; {out} went out and {back} came back");
    assert!(out > PAGES / 2 && back > PAGES / 2);

    uvm.audit(h, &[&parent, &child], &[]).expect("every count is right");
    locked(&SPACES).clear();
    for space in [parent, child] {
        uvm.space_destroy(h, Arc::into_inner(space).expect("the list had the other reference"));
    }
    assert_eq!(uvm.frames().free(), uvm.frames().total(), "every page came back");
}
