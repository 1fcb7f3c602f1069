//! A heap that holds operations to what they have reserved.
//!
//! [`Machine::reserve_heap`](machine::Machine::reserve_heap) is a promise with two sides: the host
//! has the bytes, and the library allocates no more of them, and none in pieces over [`PIECE`]. A
//! host sees the second broken only when its heap is empty. Here each byte that an operation
//! allocates is charged to its last reservation, and the first allocation that goes too far is kept
//! with its place in the program:
//!
//! ```text
//!   charged(|| uvm.fork(...))      reserve_heap(900) -> 900 left
//!                                  alloc(200)        -> 700 left
//!                                  SoftMachine's, a pager's own allocations: not charged (`host`)
//!                                  free(200)         -> 700 left
//!                                  alloc(800)        -> the operation is at fault
//! ```
//!
//! With `ChargedHeap<true>`, what a thread allocates while it holds a lock of the VM system is
//! charged without [`charged`], to the last reservation, whichever operation made it. So each test
//! whose binary names it holds to the promise what operations do under locks, and only that.
//!
//! What is freed isn't given back: a host promises bytes, and those that are freed are any
//! thread's. Another thread may have them a moment later, and an allocator needn't be able to make
//! one piece of two.
//!
//! The allocator counts by thread of the host. Tasks of shuttle share one, and switch only in code
//! of the host: there the count is [put aside](aside).
//!
//! A test's binary names the allocator, as those do that link `uvm-check`:
//!
//! ```
//! #[global_allocator]
//! static HEAP: uvm_soft::ChargedHeap = uvm_soft::ChargedHeap;
//!
//! let fault = uvm_soft::charged(|| drop(std::hint::black_box(Box::new(7)))).1;
//! assert!(fault.unwrap().contains("4 bytes"));
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Bytes of one allocation, at most.
pub const PIECE: usize = 4 * machine::PAGE_SIZE;

/// The system's allocator, which charges what is allocated inside [`charged`], or also under locks.
///
/// ```
/// use uvm_soft::{charged, ChargedHeap};
///
/// #[global_allocator]
/// static HEAP: ChargedHeap<false> = ChargedHeap;
///
/// let (boxed, fault) = charged(|| Box::new(7));
/// assert_eq!(*boxed, 7);
/// assert!(fault.is_some(), "it had reserved nothing");
/// ```
pub struct ChargedHeap<const UNDER_LOCKS: bool = false>;

/// What a thread may allocate. It has no destructor, so that an allocator may look at it at any
/// time.
#[derive(Clone, Copy)]
struct Charge {
    /// Bytes that are left of the last reservation.
    left: usize,
    /// Whether [`charged`] says that this is an operation.
    is_operation: bool,
    /// How many locks of the VM system the thread holds: what has any is an operation too.
    locks: usize,
    /// How deep the thread is in code of the host.
    host: usize,
    /// What was allocated wrongly first. It ends a test, so it is never freed.
    fault: Option<&'static str>,
}

const NOTHING: Charge = Charge { left: 0, is_operation: false, locks: 0, host: 0, fault: None };

thread_local! {
    static CHARGE: Cell<Charge> = const { Cell::new(NOTHING) };
    /// The thread's CPU time when it took the first of the locks that it holds, if it is measured.
    static HELD_SINCE: Cell<Option<Duration>> = const { Cell::new(None) };
    static LONGEST_HOLD: Cell<Option<Duration>> = const { Cell::new(None) };
}

/// The longest CPU time that the thread spends with locks of the VM system in an operation, from
/// the first that it takes to the last that it gives back. Not for tasks of shuttle.
///
/// ```
/// assert!(uvm_soft::longest_hold(|| ()).is_zero(), "no lock was taken");
/// ```
pub fn longest_hold(operation: impl FnOnce()) -> Duration {
    LONGEST_HOLD.set(Some(Duration::ZERO));
    operation();
    LONGEST_HOLD.take().unwrap_or_default()
}

/// The thread's own.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// What was there before, which comes back when this is dropped.
struct Before(Charge);

impl Before {
    fn replace(charge: Charge) -> Before {
        Before(CHARGE.replace(charge))
    }
}

impl Drop for Before {
    fn drop(&mut self) {
        CHARGE.set(self.0);
    }
}

/// Code of the host runs in an operation as long as this lives: what it allocates isn't the
/// library's.
///
/// ```
/// let host: uvm_soft::Host = uvm_soft::host();
/// drop(host); // What is allocated now is the library's again.
/// ```
pub struct Host(());

/// The thread enters code of the host.
///
/// ```
/// let _host = uvm_soft::host();
/// let own = vec![0; 64]; // The host's, and charged to no operation.
/// # let _ = own;
/// ```
#[must_use]
pub fn host() -> Host {
    let charge = CHARGE.get();
    CHARGE.set(Charge { host: charge.host + 1, ..charge });
    Host(())
}

impl Drop for Host {
    fn drop(&mut self) {
        let charge = CHARGE.get();
        CHARGE.set(Charge { host: charge.host - 1, ..charge });
    }
}

/// A guard of the host's, which allocates as the host while it lives.
pub(crate) struct Own<G>(G, Host);

impl<G> Own<G> {
    /// The guard that `lock` returns.
    pub(crate) fn new(lock: impl FnOnce() -> G) -> Own<G> {
        let host = host();
        Own(lock(), host)
    }
}

impl<G: Deref> Deref for Own<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.0
    }
}

impl<G: DerefMut> DerefMut for Own<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.0
    }
}

/// Runs an operation with nothing reserved, and says which allocation was the first that it had not
/// reserved, or was too large.
///
/// ```
/// let (seven, fault) = uvm_soft::charged(|| 7);
/// assert_eq!((seven, fault), (7, None));
/// ```
pub fn charged<T>(operation: impl FnOnce() -> T) -> (T, Option<&'static str>) {
    let _before = Before::replace(Charge { is_operation: true, ..NOTHING });
    let result = operation();
    (result, CHARGE.get().fault)
}

/// The result of an operation that allocates no more than it reserves.
///
/// # Panics
/// If it does.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let request = MapRequest::zero(Pages(4));
/// uvm_soft::within_reservation(|| uvm.map(held, space, &request))?;
/// # Ok(()) });
/// ```
pub fn within_reservation<T>(operation: impl FnOnce() -> T) -> T {
    let (result, fault) = charged(operation);
    if let Some(fault) = fault {
        panic!("{fault}");
    }
    result
}

/// Runs code of the host in which another task may come to the thread, or an operation begin.
pub(crate) fn aside<T>(switch: impl FnOnce() -> T) -> T {
    let _before = Before::replace(NOTHING);
    switch()
}

/// Bytes have been promised: they are all that the thread may allocate before its next reservation.
pub(crate) fn allow(bytes: usize) {
    CHARGE.set(Charge { left: bytes, ..CHARGE.get() });
}

/// The thread has taken a lock of the VM system.
pub(crate) fn locked() {
    let charge = CHARGE.get();
    CHARGE.set(Charge { locks: charge.locks + 1, ..charge });
    if charge.locks == 0 && LONGEST_HOLD.get().is_some() {
        HELD_SINCE.set(Some(cpu_time()));
    }
}

/// The thread has given one back.
///
/// # Panics
/// If it was the last one, and what it did with them was no part of [`charged`] and at fault.
pub(crate) fn unlocked() {
    let charge = CHARGE.get();
    let locks = charge.locks.saturating_sub(1);
    if let Some(since) = (locks == 0).then(|| HELD_SINCE.take()).flatten() {
        LONGEST_HOLD.set(LONGEST_HOLD.get().map(|longest| longest.max(cpu_time() - since)));
    }
    let told = charge.fault.filter(|_| locks == 0 && !charge.is_operation);
    CHARGE.set(Charge { locks, fault: charge.fault.filter(|_| told.is_none()), ..charge });
    if let Some(fault) = told.filter(|_| !std::thread::panicking()) {
        panic!("{fault}");
    }
}

fn charge(bytes: usize, under_locks: bool) {
    let Ok(charge) = CHARGE.try_with(Cell::get) else { return };
    let Charge { left, host: 0, fault: None, .. } = charge else { return };
    // A panic's own text comes from no operation, and its lock isn't to be taken again here.
    if !(charge.is_operation || under_locks && charge.locks > 0) || std::thread::panicking() {
        return;
    }
    match left.checked_sub(bytes).filter(|_| bytes <= PIECE) {
        Some(left) => CHARGE.set(Charge { left, ..charge }),
        None => {
            let ours = host();
            let callers = callers();
            if !charge.is_operation
                && ["/audit.rs:", "/describe.rs:"].iter().any(|own| callers.contains(own))
            {
                // For tests alone, or what a test does with each entry.
                drop((callers, ours));
                return CHARGE.set(Charge { left: usize::MAX, ..charge });
            }
            let why = if bytes > PIECE { "in one piece" } else { "unreserved" };
            let callers = first_lines(&callers);
            let why = keep(format!("{bytes} bytes allocated {why}, {left} left, by\n{callers}"));
            drop((callers, ours));
            CHARGE.set(Charge { fault: Some(why), ..charge });
        }
    }
}

/// Keeps a text for ever, where a search for leaks finds it.
fn keep(text: String) -> &'static str {
    static KEPT: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
    let text: &'static str = text.leak();
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    text
}

/// The library's functions on the stack with their places, innermost first. A function is known by
/// its file: its name has a path only where all debug information is built.
fn callers() -> String {
    let stack = Backtrace::force_capture().to_string();
    let lines: Vec<&str> = stack.lines().map(str::trim).collect();
    let is_ours = |place: &str| {
        ["/uvm/src/", "/machine/src/", "at ./src/"].iter().any(|folder| place.contains(folder))
    };
    let frames = lines.windows(2).filter(|pair| pair[1].starts_with("at ") && is_ours(pair[1]));
    frames.map(|pair| format!("  {} {}\n", pair[0], pair[1])).collect()
}

/// As many callers as say which operation it was.
fn first_lines(callers: &str) -> String {
    callers.lines().take(12).collect::<Vec<_>>().join("\n")
}

// SAFETY: the system's allocator does all the work.
unsafe impl<const UNDER_LOCKS: bool> GlobalAlloc for ChargedHeap<UNDER_LOCKS> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        charge(layout.size(), UNDER_LOCKS);
        // SAFETY: as the caller of this says.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller of this says.
        unsafe { System.dealloc(at, layout) }
    }
}
