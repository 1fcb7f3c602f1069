//! What a host supplies, and how an operation waits.
//!
//! # Waiting
//! An operation is an attempt that never sleeps. Where it must wait (a page is busy with I/O), it
//! reads a [`Ticket`] under the lock of the page's owner, returns it as an error with every lock
//! released, and the outermost loop, which holds nothing, calls [`Machine::wait`] and tries again.
//! The ticket carries a sequence number, so that a wake-up between the unlock and the sleep isn't
//! lost. Sleeping under a lock is a type error, since `wait` asks for `Held<Nothing>`.
//!
//! # Memory for structures
//! Operations announce what they will need from the heap ([`Machine::reserve_heap`]) before they
//! change anything; after that the ordinary containers of `alloc` may be used, which cannot fail.
//! The road not taken is a fallible twin of every container: it would fork the code for the sake of
//! an error that a reservation gives earlier.
//!
//! # Bytes of frames
//! [`Machine::zero`], [`copy`](Machine::copy), [`read`](Machine::read) and
//! [`write`](Machine::write) are safe functions of a plain number. So a host checks it: a number of
//! no frame, and bytes beyond the page's end, are a panic and never an access elsewhere;
//! The library's frame table refuses such numbers by the comparison that it makes anyway. Whose a
//! frame is they can't know: callers name frames that they have allocated and not freed. And
//! programs may store to a frame that is read or written: a host makes no reference to its bytes.

use core::fmt;

use crate::order::{Held, Nothing, RawLock};
use crate::{PageNo, Pmap};

/// No page, table or heap memory is left; nothing has changed.
///
/// ```
/// use machine::NoMemory;
/// fn table(entries: usize) -> Result<Vec<u64>, NoMemory> {
///     let mut table = Vec::new();
///     table.try_reserve_exact(entries).map_err(|_| NoMemory)?;
///     Ok(table)
/// }
/// assert_eq!(table(usize::MAX / 8), Err(NoMemory));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoMemory;

impl fmt::Display for NoMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("out of memory")
    }
}

impl core::error::Error for NoMemory {}

/// What threads wait for: any number that waiter and waker agree on, by convention [`PageNo`], an
/// object's id, or one of the constants.
///
/// ```
/// use machine::{Channel, Machine};
/// fn memory_is_free<M: Machine>(machine: &M) {
///     machine.wake(Channel::MEMORY);
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Channel(pub u64);

impl Channel {
    /// Woken when free pages have fallen under the low water mark: the page daemon's.
    pub const PAGE_DAEMON: Channel = Channel(u64::MAX);
    /// Woken when pages have been freed, or written out so that they can be: for threads that wait
    /// for memory.
    pub const MEMORY: Channel = Channel(u64::MAX - 1);
    /// Threads that were refused memory and wait for their turn: woken by [`Machine::wake_one`].
    pub const MEMORY_TURN: Channel = Channel(u64::MAX - 3);
}

impl From<PageNo> for Channel {
    fn from(page: PageNo) -> Channel {
        Channel(u64::from(page.0))
    }
}

/// A channel as it was at some moment: [`Machine::wait`] returns once it has been woken since.
///
/// ```
/// use machine::{order::Nothing, Channel, Held, Machine};
/// /// Waits until `is_so`, which others make so and then wake the channel.
/// fn wait_for<M: Machine>(
///     machine: &M,
///     held: &mut Held<'_, Nothing>,
///     channel: Channel,
///     is_so: impl Fn() -> bool,
/// ) {
///     loop {
///         // Before the look: a wake-up between the two isn't lost.
///         let ticket = machine.ticket(channel);
///         if is_so() {
///             return;
///         }
///         machine.wait(held, ticket);
///     }
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket {
    /// What is waited for.
    pub channel: Channel,
    /// The channel's count of wake-ups when the ticket was read.
    pub sequence: u64,
}

/// Heap bytes that may be allocated where memory is given up and none could be reserved: see
/// [`Machine::reserve_heap`].
pub const UNRESERVED_BYTES: usize = 10 * 1024;

/// The host of a VM system: bare metal, the software MMU, a process.
///
/// One machine per binary is the rule, but not a global: tests run many at once.
///
/// ```
/// use machine::{Machine, PageNo, PAGE_SIZE};
/// /// Anything that needs a machine is generic over it.
/// fn is_zero<M: Machine>(machine: &M, page: PageNo) -> bool {
///     let mut bytes = [1; PAGE_SIZE];
///     machine.read(page, 0, &mut bytes);
///     bytes == [0; PAGE_SIZE]
/// }
/// # use uvm_soft::example::{System, run};
/// # run(|uvm, held, _| {
/// #     let page = uvm.new_page(held)?;
/// #     uvm.machine().zero(page.page());
/// #     assert!(is_zero(uvm.machine(), page.page()));
/// #     uvm.return_page(held, page).map_err(|(why, _)| why)?;
/// #     Ok(())
/// # });
/// ```
pub trait Machine: Sized + Send + Sync + 'static {
    /// The lock behind every [`Ordered`](crate::Ordered). A small one, as each page of anonymous
    /// memory has its own.
    type Lock: RawLock;
    /// The code that programs the MMU.
    type Pmap: Pmap;

    /// The MMU.
    fn pmap(&self) -> &Self::Pmap;

    /// The CPU this thread runs on, below the count that the frame table was given. A thread that
    /// moves right after only loses locality: the number picks a cache, not exclusion.
    fn cpu(&self) -> usize;

    /// Fills a page with zeroes. The caller owns the frame: no other thread can reach it.
    ///
    /// # Panics
    /// If the frame holds no bytes: it is free, or the embedding kernel's own.
    fn zero(&self, page: PageNo);

    /// Copies all bytes of `from` to `to`. The caller owns `to`; `from` can't be written through
    /// any mapping that the VM system knows, or its writers accept either value.
    ///
    /// # Panics
    /// If one of the frames holds no bytes: it is free, or the embedding kernel's own.
    fn copy(&self, from: PageNo, to: PageNo);

    /// Reads bytes of a page from `offset`.
    ///
    /// # Panics
    /// If the frame holds no bytes: it is free, or the embedding kernel's own, or `offset +
    /// buf.len()` is more than a page.
    fn read(&self, page: PageNo, offset: usize, buf: &mut [u8]);

    /// Writes bytes of a page from `offset`.
    ///
    /// # Panics
    /// If the frame holds no bytes: it is free, or the embedding kernel's own, or `offset +
    /// bytes.len()` is more than a page.
    fn write(&self, page: PageNo, offset: usize, bytes: &[u8]);

    /// Promises that heap allocations of up to `bytes` in all, none over four pages, made by this
    /// thread before its next call of this function will not fail. What the frame table and
    /// `Uvm::new` allocate by the machine's size comes before all that, in larger pieces, and is an
    /// error if it fails.
    ///
    /// A thread that gives memory up isn't refused: the end of a space, and the release of what has
    /// been unmapped or replaced, go on after an error, and allocate at most [`UNRESERVED_BYTES`]
    /// before the next call of this function. A host keeps them in store. What ends I/O has no
    /// reservation, and allocates nothing.
    ///
    /// What is freed adds nothing to the promise: another thread may have it by then.
    /// `uvm_soft::ChargedHeap` holds the library to all this.
    ///
    /// # Errors
    /// [`NoMemory`] if that can't be promised; nothing has changed.
    fn reserve_heap(&self, bytes: usize) -> Result<(), NoMemory>;

    /// The channel as it is now. Read under the lock that the waker holds when it changes what is
    /// waited for.
    fn ticket(&self, channel: Channel) -> Ticket;

    /// Sleeps until the ticket's channel has been woken since the ticket was read. May return
    /// early.
    fn wait(&self, held: &mut Held<'_, Nothing>, ticket: Ticket);

    /// Wakes all that wait on the channel. May be called with locks held and from interrupt
    /// handlers.
    fn wake(&self, channel: Channel);

    /// Wakes the one that has waited longest on the channel, or more. Where it wakes one, a sleeper
    /// that returns early must not take another's wake-up with it. Only [`Channel::MEMORY_TURN`] is
    /// woken so.
    fn wake_one(&self, channel: Channel) {
        self.wake(channel);
    }

    /// A long operation holds no lock at this moment. A host whose threads aren't preempted takes
    /// interrupts and lets other threads run; they may change all that the caller has.
    fn pause(&self, _held: &mut Held<'_, Nothing>) {}

    /// Whether the calling thread is being ended. It is then refused memory at once, so that it can
    /// leave and give back what it has; and the host, as it ends a thread, ends its `wait`.
    fn has_fatal_signal(&self) -> bool {
        false
    }

    /// Memory and swap have run out for a fault of the calling thread. All others that need memory
    /// wait until this returns; the host may end a program meanwhile and wait for its end. Says
    /// whether it is worth to try again; if not, the fault fails.
    fn out_of_memory(&self, _held: &mut Held<'_, Nothing>) -> bool {
        false
    }
}
