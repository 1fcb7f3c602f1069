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
//! than what its entry has seen, and the access that is still missing faults (law P4). The rest of
//! the pmap is `machine::plain`'s, locks and sleep are `uvm_soft`'s.
//!
//! The handler may take locks and allocate, as the code that it interrupts, `load` and `store`,
//! does neither. `cargo run --example hosted`
#![allow(unsafe_code)]

#[path = "common/mod.rs"]
mod common;

use std::collections::BTreeMap;
use std::io::Error;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};

use common::Disk;
use machine::bare::FrameBytes;
use machine::order::{Before, Held, Nothing, PageCache};
use machine::plain::{Entry, PlainPmap, Tables};
use machine::{
    Channel, CpuSet, Machine, NoMemory, Pa, PageNo, PageRange, Pages, Prot, Shootdown, ThreadCtx,
    Ticket, Va, VaRange, PAGE_SIZE,
};
use uvm::page::Frames;
use uvm::{Counter, MapRequest, Space, Uvm};
use uvm_soft::{Sleepers, StdThreads, Threads};

const FRAMES: u32 = 256;
const PAGES: u64 = 4 * FRAMES as u64;
const WINDOW: usize = 1 << 30;

/// Maps into this process; panics where Linux refuses.
fn map(at: *mut u8, bytes: usize, prot: i32, flags: i32, fd: i32, offset: usize) -> *mut u8 {
    // SAFETY: `at` is null, or inside a window of ours, where no Rust object lies.
    let at = unsafe { libc::mmap(at.cast(), bytes, prot, flags, fd, offset as i64) };
    assert!(at != libc::MAP_FAILED, "mmap: {}", Error::last_os_error());
    at.cast()
}

/// Addresses at which nothing is: anywhere, or from `at` on.
fn map_nothing(at: *mut u8, bytes: usize) -> *mut u8 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let fixed = if at.is_null() { 0 } else { libc::MAP_FIXED };
    map(at, bytes, libc::PROT_NONE, flags | fixed, -1, 0)
}

type Lock = <StdThreads as Threads>::Lock;

/// The machine.
struct Process {
    frames: Arc<Frames<Process>>,
    direct: NonNull<u8>,
    pmap: PlainPmap<Windows, Lock>,
    sleepers: <StdThreads as Threads>::Sleepers,
}

// SAFETY: `direct` is mapped for as long as the process runs, and accessed as `bytes` says.
unsafe impl Send for Process {}
// SAFETY: as above.
unsafe impl Sync for Process {}

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
        let windows = Windows { fd, entries: BTreeMap::new() };
        Process {
            pmap: PlainPmap::new(windows, frames.numbers()),
            frames: Arc::new(frames),
            direct: NonNull::new(direct).expect("mmap says where"),
            sleepers: Default::default(),
        }
    }

    /// The bytes of a frame.
    fn bytes(&self, page: PageNo) -> FrameBytes {
        let at = self.direct.as_ptr().wrapping_add(self.frames.bytes_at(page).0 as usize);
        // SAFETY: `bytes_at` names a page of the memfd, which holds no Rust object.
        unsafe { FrameBytes::new(at) }
    }
}

impl Machine for Process {
    type Lock = Lock;
    type Pmap = PlainPmap<Windows, Lock>;

    fn pmap(&self) -> &Self::Pmap {
        &self.pmap
    }

    fn cpu(&self) -> usize {
        0
    }

    fn zero(&self, page: PageNo) {
        self.bytes(page).zero();
    }

    fn copy(&self, from: PageNo, to: PageNo) {
        self.bytes(to).copy(self.bytes(from));
    }

    fn read(&self, page: PageNo, offset: usize, buf: &mut [u8]) {
        self.bytes(page).read(offset, buf);
    }

    fn write(&self, page: PageNo, offset: usize, bytes: &[u8]) {
        self.bytes(page).write(offset, bytes);
    }

    /// Linux promises a process what it asks for, and ends one when it has promised too much.
    fn reserve_heap(&self, _bytes: usize) -> Result<(), NoMemory> {
        Ok(())
    }

    fn ticket(&self, channel: Channel) -> Ticket {
        self.sleepers.ticket(channel)
    }

    fn wait(&self, _held: &mut Held<'_, Nothing>, ticket: Ticket) {
        self.sleepers.wait(ticket, &|| false);
    }

    fn wake(&self, channel: Channel) {
        self.sleepers.wake(channel);
    }
}

/// The MMU. A space is a window of 1 GiB of addresses of the process, and its number is where that
/// begins.
struct Windows {
    fd: i32,
    /// By space and address there.
    entries: BTreeMap<(u64, Va), Entry>,
}

impl Tables for Windows {
    fn create<P: Before<PageCache>>(&mut self, _held: &mut Held<'_, P>) -> Result<u64, NoMemory> {
        Ok(map_nothing(ptr::null_mut(), WINDOW) as u64)
    }

    fn destroy<P: Before<PageCache>>(&mut self, _held: &mut Held<'_, P>, space: u64) {
        // SAFETY: the window is this space's, and nothing points into it any more.
        unsafe { libc::munmap(space as *mut _, WINDOW) };
    }

    /// Nothing is mapped ahead: it would fault all the same, as its entry has seen nothing.
    fn has_room(&self, _space: u64, _va: Va) -> bool {
        false
    }

    fn get(&self, space: u64, va: Va) -> Option<Entry> {
        self.entries.get(&(space, va)).copied()
    }

    fn first(&self, space: u64, range: VaRange) -> Option<(Va, Entry)> {
        let mut entries = self.entries.range((space, range.start)..(space, range.end));
        entries.next().map(|((_, va), entry)| (*va, *entry))
    }

    /// Has Linux map what an entry shows.
    fn set(&mut self, space: u64, va: Va, new: Option<Entry>) -> Option<Entry> {
        let at = (space + va.0) as *mut u8;
        let Some(new) = new else {
            map_nothing(at, PAGE_SIZE);
            return self.entries.remove(&(space, va));
        };
        let seen = new.prot & new.seen;
        let bit = |right, bit| if seen.contains(right) { bit } else { libc::PROT_NONE };
        let prot = bit(Prot::READ, libc::PROT_READ) | bit(Prot::WRITE, libc::PROT_WRITE);
        let offset = new.page.0 as usize * PAGE_SIZE;
        map(at, PAGE_SIZE, prot, libc::MAP_SHARED | libc::MAP_FIXED, self.fd, offset);
        self.entries.insert((space, va), new)
    }

    fn holders(&self, _space: u64) -> CpuSet {
        CpuSet::NONE
    }

    fn flush(down: &Shootdown) {
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
    let space = SPACES.lock().expect("it isn't poisoned").iter().find(is_there).cloned();
    let (Some(space), Some(uvm)) = (space, UVM.get()) else { std::process::abort() };
    let va = Va(at - space.pmap());
    let entry = uvm.machine().pmap.tables(|tables| tables.get(*space.pmap(), va.page_floor()));
    let access = match entry {
        Some(entry) if entry.seen.contains(Prot::READ) => Prot::WRITE,
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
    (space.pmap() + va.0) as _
}

fn load(space: &Space<Process>, va: Va) -> u64 {
    // SAFETY: the address lies in a window; no Rust object does.
    unsafe { pointer(space, va).read_volatile() }
}

fn store(space: &Space<Process>, va: Va, word: u64) {
    // SAFETY: as above.
    unsafe { pointer(space, va).write_volatile(word) }
}

/// Runs the example; a test does, too.
pub fn main() {
    let process = Process::new();
    let frames = process.frames.clone();
    let uvm = UVM.get_or_init(|| Uvm::new(process, frames).expect("there is heap"));
    let mut ctx = ThreadCtx::new();
    let h = &mut ctx.held();
    serve_faults();
    static STOP: AtomicBool = AtomicBool::new(false);
    let daemon = std::thread::spawn(|| {
        uvm.page_daemon(&mut ThreadCtx::new().held(), || STOP.load(Relaxed));
    });
    uvm.swap_on(h, Arc::new(Disk::new(2 * PAGES as usize)), 0).expect("the disk has room");

    let bounds = PageRange::new(Va(1 << 16), Va(WINDOW as u64)).expect("whole pages");
    let parent = Arc::new(uvm.space_create(h, bounds).expect("there is memory"));
    SPACES.lock().expect("it isn't poisoned").push(parent.clone());
    let at = uvm.map(h, &parent, &MapRequest::zero(Pages(PAGES))).expect("there is room");
    assert_eq!(load(&parent, at), 0);
    store(&parent, at, 7);
    println!("a pointer: {:?} reads {}", pointer(&parent, at), load(&parent, at));

    let child = Arc::new(uvm.fork(h, &parent).expect("there is memory"));
    SPACES.lock().expect("it isn't poisoned").push(child.clone());
    let of = |counter| uvm.stat().get(counter);
    let copied = || of(Counter::FaultsAnonCopied);
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
    let (out, back) = (of(Counter::SwapOuts), of(Counter::SwapIns));
    println!("paging: {PAGES} pages in {FRAMES} frames; {out} went out and {back} came back");
    assert!(out > PAGES / 2 && back > PAGES / 2);

    STOP.store(true, Relaxed);
    uvm.machine().wake(Channel::PAGE_DAEMON);
    daemon.join().expect("it hasn't panicked");
    uvm.audit(h, &[&parent, &child], &[]).expect("every count is right");
    SPACES.lock().expect("it isn't poisoned").clear();
    for space in [parent, child] {
        uvm.space_destroy(h, Arc::into_inner(space).expect("the list had the other reference"));
    }
    assert_eq!(uvm.frames().free(), uvm.frames().total(), "every page came back");
}
