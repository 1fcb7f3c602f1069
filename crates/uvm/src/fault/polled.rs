//! Faults that never sleep, for kernels and programs whose tasks are polled: one attempt, and what
//! it would have waited for.
//!
//! ```text
//!   try_fault -> Ok                   the access may be tried again
//!             -> Err(Retry::Wait)     poll the ticket; when it has been woken: try_fault
//!             -> Err(Retry::Read)     start_read, which may ask the disk; then try_fault
//!             -> Err(Retry::Memory)   poll the ticket, which the page daemon wakes; then try_fault
//!             -> Err(Retry::Hole)     make_hole_room, which may sleep; then try_fault
//!             -> Err(Retry::Failed)   the program gets its signal
//! ```
//! An attempt keeps nothing: what it has learnt is in the map, the pages and the tables, and the
//! next attempt finds it there. So a task may be dropped between two attempts, but that a
//! [`PreparedRead`] is started first: its pages are busy, and others wait for them.
//!
//! [`Uvm::fault`] is this loop with [`Machine::wait`] in it, and with a turn in the line of threads
//! that were refused memory. A polled fault has no turn: it takes what is free when it comes.

use machine::{Channel, Machine, Prot, Ticket, Unlocked, Va};

use super::{Effects, FaultError, Hole, Refused, Request, BYTES, SMALL_AMAP_BYTES};
use crate::io::ReadRequest;
use crate::owed::Owed;
use crate::page::Gather;
use crate::stat::Counter;
use crate::{Space, Stop, Uvm};

/// A read whose pages have been made ready and marked busy: give it to [`Uvm::start_read`], soon
/// and with nothing locked. Dropping this does not start it, panics with debug assertions, and
/// fails every [audit](Uvm::audit) from then on.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let file = file(uvm, held, "text", 1)?;
/// let request = MapRequest::object(file, Pages(0), Pages(1), Sharing::Shared);
/// let at = uvm.map(held, space, &request)?;
/// match uvm.try_fault(held, space, at, Prot::READ) {
///     Err(Retry::Read(read)) => uvm.start_read(held, read),
///     other => panic!("nothing was read before: {other:?}"),
/// }
/// uvm.try_fault(held, space, at, Prot::READ)?;
/// # Ok(()) });
/// ```
#[must_use = "its pages stay busy until `start_read` gets this"]
#[derive(PartialEq, Eq, Debug)]
pub struct PreparedRead(ReadRequest);

impl Drop for PreparedRead {
    fn drop(&mut self) {
        Owed::Read.note_dropped();
    }
}

/// A hole in a file that a store would reach: see [`Uvm::make_hole_room`].
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let at = uvm.map(held, space, &MapRequest::zero(Pages(1)))?;
/// if let Err(Retry::Hole(hole)) = uvm.try_fault(held, space, at, Prot::WRITE) {
///     uvm.make_hole_room(held, hole)?; // The file finds room; then the store is tried again.
/// }
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FaultHole(pub(super) Hole);

/// Why a fault isn't resolved by the attempt that was made, with nothing locked.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let at = uvm.map(held, space, &MapRequest::zero(Pages(1)))?;
/// let resolved = match uvm.try_fault(held, space, at, Prot::WRITE) {
///     Ok(ahead) => ahead.is_none(),
///     Err(Retry::Failed(why)) => return Err(why.into()),
///     Err(_) => false, // To be tried again, once what it says has happened.
/// };
/// assert!(resolved);
/// # Ok(()) });
/// ```
#[must_use]
#[derive(PartialEq, Eq, Debug)]
pub enum Retry {
    /// A page or a part of a map is in use: to be tried again once the ticket's channel was woken.
    Wait(Ticket),
    /// A page must be read: to be tried again once [`Uvm::start_read`] has got this. That attempt
    /// says what to wait for.
    Read(PreparedRead),
    /// No memory is left: to be tried again once the ticket's channel was woken, as it is when
    /// pages are freed. A page daemon must run, or a thread call [`Uvm::make_room`], which says
    /// whether there is hope.
    Memory(Ticket),
    /// A store reaches a hole in a file: to be tried again once [`Uvm::make_hole_room`] has found
    /// room for it.
    Hole(FaultHole),
    /// It fails for good.
    Failed(FaultError),
}

impl<M: Machine> Uvm<M> {
    /// Makes one attempt to resolve an access that the MMU refused, as [`fault`](Self::fault) does,
    /// and never sleeps. If it is resolved the access may be tried again, and a read that no thread
    /// waits for, of pages that will be wanted next, may be there to be started.
    ///
    /// A fault that waited for a read is a major one; the caller counts it, as only the caller
    /// knows whether it has waited.
    ///
    /// Cost: that of a fault; each attempt begins anew.
    ///
    /// # Errors
    /// [`Retry`]: what must happen before the next attempt, or why there is none.
    ///
    /// ```
    /// use machine::{Machine, order::Nothing, Held, Prot, Va};
    /// use uvm::{FaultError, Retry, Space, Uvm};
    /// /// What a task does each time that it is polled; `None`: later.
    /// fn poll<M: Machine>(
    ///     uvm: &Uvm<M>, held: &mut Held<'_, Nothing>, space: &Space<M>, va: Va,
    /// ) -> Option<Result<(), FaultError>> {
    ///     loop {
    ///         match uvm.try_fault(held, space, va, Prot::READ) {
    ///             Ok(ahead) => {
    ///                 ahead.into_iter().for_each(|read| uvm.start_read(held, read));
    ///                 return Some(Ok(()));
    ///             }
    ///             Err(Retry::Read(read)) => uvm.start_read(held, read),
    ///             Err(Retry::Wait(ticket) | Retry::Memory(ticket)) => {
    ///                 if uvm.machine().ticket(ticket.channel) == ticket {
    ///                     return None;
    ///                 }
    ///             }
    ///             Err(Retry::Hole(hole)) => match uvm.make_hole_room(held, hole) {
    ///                 Ok(()) => {}
    ///                 Err(e) => return Some(Err(e)),
    ///             },
    ///             Err(Retry::Failed(e)) => return Some(Err(e)),
    ///         }
    ///     }
    /// }
    /// ```
    pub fn try_fault(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        va: Va,
        access: Prot,
    ) -> Result<Option<PreparedRead>, Retry> {
        let request = Request::new(space, va, access);
        // What is freed after this was read, and before it is waited for, has woken it.
        let memory = self.mem().ticket(Channel::MEMORY);
        let mut reserve = BYTES + SMALL_AMAP_BYTES;
        let mut down = Gather::new();
        let result = loop {
            if self.mem().reserve_heap(reserve).is_err() {
                break Err(Retry::Memory(memory));
            }
            let mut effects = Effects { down: &mut down, ahead: None };
            let stop = match self.fault_once(held, &request, &mut effects, reserve) {
                Ok(()) => break Ok(effects.ahead.map(PreparedRead)),
                Err(stop) => self.stop_fault(held, stop, effects),
            };
            break Err(match stop {
                Stop::Heap(bytes) => {
                    reserve = bytes;
                    continue;
                }
                Stop::Wait(ticket) => Retry::Wait(ticket),
                Stop::Read(read) => Retry::Read(PreparedRead(read)),
                Stop::Fail(Refused::Hole(hole)) => Retry::Hole(FaultHole(hole)),
                Stop::Fail(Refused::Error(FaultError::NoMemory)) => Retry::Memory(memory),
                Stop::Fail(Refused::Error(e)) => Retry::Failed(e),
            });
        };
        down.perform(self.frames(), self.mem(), held);
        if matches!(result, Ok(_) | Err(Retry::Failed(_))) {
            self.count(Counter::Faults, 1);
        }
        result
    }

    /// Starts the read that an attempt has prepared: calls the pager or the swap device, whose
    /// transfer may end before this returns, or later by [`read_done`](Self::read_done).
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let file = file(uvm, held, "text", 1)?;
    /// let request = MapRequest::object(file, Pages(0), Pages(1), Sharing::Shared);
    /// let at = uvm.map(held, space, &request)?;
    /// if let Err(Retry::Read(read)) = uvm.try_fault(held, space, at, Prot::READ) {
    ///     uvm.start_read(held, read);
    /// }
    /// assert_eq!(&load(uvm, space, at)?, b"text");
    /// # Ok(()) });
    /// ```
    pub fn start_read(&self, held: &mut Unlocked<'_>, read: PreparedRead) {
        let request = read.0;
        core::mem::forget(read);
        self.start(held, request);
    }

    /// Has a file find room for what a store would put into a hole of it. Asks the file system,
    /// which may sleep.
    ///
    /// # Errors
    /// [`FaultError::NoSpace`], [`FaultError::Io`], [`FaultError::NoMemory`], or
    /// [`FaultError::Bus`] if the file has become shorter.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let file = file(uvm, held, "text", 1)?;
    /// let request = MapRequest::object(file.clone(), Pages(0), Pages(1), Sharing::Shared);
    /// let at = uvm.map(held, space, &request)?;
    /// load::<1>(uvm, space, at)?;
    /// file.mark_hole(uvm, held, Pages(0));
    /// let Err(Retry::Hole(hole)) = uvm.try_fault(held, space, at, Prot::WRITE) else { panic!() };
    /// uvm.make_hole_room(held, hole)?;
    /// store(uvm, space, at, b"T")?;
    /// # Ok(()) });
    /// ```
    pub fn make_hole_room(
        &self,
        held: &mut Unlocked<'_>,
        hole: FaultHole,
    ) -> Result<(), FaultError> {
        self.fill_hole(held, hole.0)
    }
}
