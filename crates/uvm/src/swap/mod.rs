//! Swap: where anonymous pages go that memory has no room for.
//!
//! ```text
//!   slot numbers   1 ........ n   n+2 ........ m  ...     one range for each device, a gap between
//!   devices        [ priority 5 ] [ priority 1 ]          a bit for each slot: bits.rs
//! ```
//! A slot is a page's place on a device, named by one number over all devices. It belongs to what
//! keeps the number: an anon, an anonymous object's table, or a page that its owner left
//! while I/O had it. Where a page goes is decided when it is written: the page daemon takes a run
//! of slots for pages from anywhere, so that they leave in one write (1999, section 6), and
//! whatever slots they had before are free again.
//!
//! Devices of higher priority fill first; among equals they take turns, a run each. Only
//! swapped-out data is on a device: `swap_off` (`pageout/swap.rs`) brings it home. A device may
//! be [memory](SwapDevice::is_memory), as the one of the crate `uvm-zram` is.
//!
//! I1: a slot is taken exactly if one holder keeps its number, or a run that was just allocated
//! does. I2: a slot that I/O reads or writes, or that a prepared read names, is taken: so a device
//! without taken slots has nothing under way. I3: two consecutive numbers in use lie on the same
//! device, one behind the other.
//!
//! Locks: one, of level `Swap`, around all of it; held for a few words, or a bounded search. A
//! device is told of its free slots under it. The road not taken is a reference count per slot, as
//! kernels have that share a slot among address spaces: here the anon is what is shared.

mod bits;

use alloc::sync::Arc;
use core::ops::Range;
use machine::lines::{AtomicU32, Ordering::Relaxed};

use arrayvec::ArrayVec;

pub(crate) use bits::Bits;
use machine::{order, Before, Held, Machine, Ordered, PageNo, Unlocked};

use crate::io::Transfer;
use crate::memory::Memory;
pub use crate::page::Slot;
use crate::stat::Counter;
use crate::Uvm;

/// Devices at most.
pub const DEVICES: usize = 16;

/// Slots for each page frame at most: so many anons without a page have numbers.
pub const SLOTS_PER_FRAME: u32 = 10;

/// Pages of one write at most: 1 MiB.
pub const WRITE_CLUSTER: usize = 256;

/// Storage for swapped pages, as the host has it: a disk, a file whose blocks it knows, or memory.
///
/// Both transfers are called with nothing locked, may sleep, and start I/O for consecutive slots;
/// they allocate no memory that could be short, since they are how memory is made free. What they
/// answer with [`Transfer::Started`] they end by [`Uvm::read_done`] or [`Uvm::write_done`], once
/// for every page. A device that finds a part unreadable says so of that part's pages alone if it
/// can.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// /// A device that forgets: what is on it comes back as zeroes.
/// struct Null;
///
/// impl SwapDevice<SoftMachine> for Null {
///     fn slots(&self) -> u32 {
///         64
///     }
///     fn read(
///         &self,
///         machine: &SoftMachine,
///         _: &mut Held<'_, Nothing>,
///         _: u32,
///         pages: &[PageNo],
///     ) -> Transfer {
///         pages.iter().for_each(|&page| machine.zero(page));
///         Transfer::Done
///     }
///     fn write(
///         &self,
///         _: &SoftMachine,
///         _: &mut Held<'_, Nothing>,
///         _: u32,
///         _: &[PageNo],
///     ) -> Transfer {
///         Transfer::Done
///     }
/// }
///
/// uvm.swap_on(held, Arc::new(Null), 0)?;
/// # Ok(()) });
/// ```
pub trait SwapDevice<M: Machine>: Send + Sync {
    /// Pages that have room.
    fn slots(&self) -> u32;

    /// Fills pages, at most [`CLUSTER`](crate::io::CLUSTER), from consecutive slots.
    fn read(&self, machine: &M, held: &mut Unlocked<'_>, slot: u32, pages: &[PageNo]) -> Transfer;

    /// Writes pages, at most [`WRITE_CLUSTER`], to consecutive slots.
    fn write(&self, machine: &M, held: &mut Unlocked<'_>, slot: u32, pages: &[PageNo]) -> Transfer;

    /// Whether the device is memory, where a transfer of many pages gains nothing and a copy of a
    /// page that has been read wastes a page: each page is transferred alone, and its slot is free
    /// once it has been read. A write that fails there says that the device has no room for the
    /// page, which then goes to a device of lower priority. Always the same.
    fn is_memory(&self) -> bool {
        false
    }

    /// How many more slots can be written now, as far as the device knows; for one whose slots
    /// share what there is.
    fn room(&self) -> u32 {
        u32::MAX
    }

    /// A slot is free: what it holds, if it was written, is not asked for any more. Called with
    /// locks held; locks of the device's own rank as the queues'.
    fn freed(&self, _machine: &M, _held: &mut Held<'_, order::Swap>, _slot: u32) {}
}

/// The name of a swap device while it is on.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let id = uvm.swap_on(held, disk(64), 0)?;
/// uvm.swap_off(held, id)?;
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SwapId(u32);

/// One device, as it was at some moment.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let id = uvm.swap_on(held, disk(64), 5)?;
/// let info = uvm.swap_info(held)[0];
/// assert_eq!((info.id, info.priority), (id, 5));
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SwapInfo {
    /// Its name.
    pub id: SwapId,
    /// Slots in all.
    pub slots: u32,
    /// Slots with data.
    pub used: u32,
    /// Slots that failed, and are not used any more.
    pub bad: u32,
    /// Higher fills first.
    pub priority: i16,
}

/// Why swap was not switched on or off; nothing has changed.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// assert_eq!(uvm.swap_on(held, disk(0), 0), Err(SwapError::Empty));
/// println!("{}", SwapError::Empty);
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SwapError {
    /// The device has no slots.
    Empty,
    /// More than [`SLOTS_PER_FRAME`] times the memory would be on.
    TooMuch,
    /// [`DEVICES`] are on already.
    TooMany,
    /// No such device is on.
    NotFound,
    /// Another thread switches it off right now.
    Busy,
    /// What it holds does not fit elsewhere.
    NoMemory,
    /// Some of what it holds could not be read: that is lost, the rest is where it was or at home.
    Io,
}

/// A run of slots that was just allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub(crate) first: Slot,
    pub(crate) len: u32,
    /// Its device's.
    pub(crate) priority: i16,
    pub(crate) is_memory: bool,
}

struct Device<M: Machine> {
    id: SwapId,
    io: Arc<dyn SwapDevice<M>>,
    /// The number of its first slot.
    base: u32,
    priority: i16,
    /// A thread brings home what is there: no slots are given.
    is_leaving: bool,
    bits: Bits,
}

impl<M: Machine> Device<M> {
    fn numbers(&self) -> Range<u32> {
        self.base..self.base + self.bits.len
    }

    /// Slots that can be given.
    fn room(&self) -> u32 {
        match self.is_leaving {
            true => 0,
            false => self.bits.free_slots().min(self.io.room()),
        }
    }

    /// Whether a slot is given back once it has been read.
    fn gives_back(&self) -> bool {
        self.is_leaving || self.io.is_memory()
    }

    fn info(&self) -> SwapInfo {
        let bits = &self.bits;
        SwapInfo {
            id: self.id,
            slots: bits.len,
            used: bits.used,
            bad: bits.bad,
            priority: self.priority,
        }
    }
}

struct Table<M: Machine> {
    /// By priority, the highest first.
    devices: ArrayVec<Device<M>, DEVICES>,
    /// Counts runs, so that devices of one priority take turns.
    turn: usize,
    next_id: u32,
}

/// An instance's swap space.
pub(crate) struct Swap<M: Machine> {
    table: Ordered<order::Swap, M::Lock, Table<M>>,
    slots: AtomicU32,
    used: AtomicU32,
    /// Devices that are being switched off, or are memory.
    giving_back: AtomicU32,
}

impl<M: Machine> Table<M> {
    fn device_of(&mut self, slot: Slot) -> Option<(&mut Device<M>, u32)> {
        let number = slot.number();
        let device = self.devices.iter_mut().find(|d| d.numbers().contains(&number))?;
        let at = number - device.base;
        Some((device, at))
    }

    /// The first number from which `len` slots find room, with a gap on both sides (I3).
    fn room_for(&self, len: u32) -> Option<u32> {
        let mut taken: ArrayVec<Range<u32>, DEVICES> =
            self.devices.iter().map(Device::numbers).collect();
        taken.sort_unstable_by_key(|r| r.start);
        let mut base = 1;
        for range in taken {
            if u64::from(base) + u64::from(len) < u64::from(range.start) {
                break;
            }
            base = range.end + 1;
        }
        (u64::from(base) + u64::from(len) < u64::from(Slot::NUMBERS)).then_some(base)
    }

    /// The devices of one priority after another, each group from where it is whose turn; of a
    /// priority lower than `below` alone, if one is given.
    fn alloc(&mut self, most: u32, below: Option<i16>) -> Option<Run> {
        let mut from = below
            .map_or(0, |below| self.devices.partition_point(|device| device.priority >= below));
        while from < self.devices.len() {
            let priority = self.devices[from].priority;
            let group = self.devices[from..].iter().take_while(|d| d.priority == priority).count();
            for i in 0..group {
                let device = &mut self.devices[from + (self.turn + i) % group];
                let is_memory = device.io.is_memory();
                let most = most.min(device.room()).min(if is_memory { 1 } else { u32::MAX });
                if let Some(run) = device.bits.alloc(most) {
                    let first = Slot::new(device.base + run.start)?;
                    self.turn = self.turn.wrapping_add(1);
                    return Some(Run { first, len: run.end - run.start, priority, is_memory });
                }
            }
            from += group;
        }
        None
    }
}

impl<M: Machine> Swap<M> {
    pub(crate) fn new() -> Self {
        let table = Table { devices: ArrayVec::new(), turn: 0, next_id: 1 };
        Swap {
            table: Ordered::new(table),
            slots: AtomicU32::new(0),
            used: AtomicU32::new(0),
            giving_back: AtomicU32::new(0),
        }
    }

    /// Slots that can be given, as far as is known.
    pub(crate) fn room<P: Before<order::Swap>>(&self, held: &mut Held<'_, P>) -> u32 {
        self.table.lock(held).0.devices.iter().map(Device::room).sum()
    }

    /// Slots of all devices, bad ones too.
    pub(crate) fn slots(&self) -> u32 {
        self.slots.load(Relaxed)
    }

    /// Slots in use.
    pub(crate) fn used(&self) -> u32 {
        self.used.load(Relaxed)
    }

    /// Takes a run of at most `most` slots, on a device of lower priority than `below`; none if all
    /// such devices are full.
    pub(crate) fn alloc<P: Before<order::Swap>>(
        &self,
        held: &mut Held<'_, P>,
        most: u32,
        below: Option<i16>,
    ) -> Option<Run> {
        let run = self.table.lock(held).0.alloc(most, below)?;
        self.used.fetch_add(run.len, Relaxed);
        Some(run)
    }

    /// Calls `change` with a device and its slot, which is in use, so the device is on.
    fn change<P: Before<order::Swap>, T>(
        &self,
        held: &mut Held<'_, P>,
        slot: Slot,
        change: impl FnOnce(&mut Device<M>, u32, &mut Held<'_, order::Swap>) -> T,
    ) -> T {
        let (mut table, mut h) = self.table.lock(held);
        match table.device_of(slot) {
            Some((device, at)) => change(device, at, &mut h),
            None => unreachable!("{slot:?} is in use and on no device"),
        }
    }

    /// Frees a slot; [`Slot::LOST`] is none.
    pub(crate) fn free<P: Before<order::Swap>>(
        &self,
        machine: &Memory<M>,
        held: &mut Held<'_, P>,
        slot: Slot,
    ) {
        self.end_use(machine, held, slot, Bits::free);
    }

    /// Ends the use of a slot, in one of the ways that [`Bits`] has: it is free, or failed and out
    /// of use for good. [`Slot::LOST`] is none.
    pub(crate) fn end_use<P: Before<order::Swap>>(
        &self,
        machine: &Memory<M>,
        held: &mut Held<'_, P>,
        slot: Slot,
        end: fn(&mut Bits, u32),
    ) {
        if slot.is_place() {
            self.change(held, slot, |device, at, h| {
                device.io.freed(machine, h, at);
                end(&mut device.bits, at);
            });
            self.used.fetch_sub(1, Relaxed);
        }
    }

    /// Notes that a transfer failed of which the slot was a part: it is tried alone the next time.
    pub(crate) fn doubt<P: Before<order::Swap>>(&self, held: &mut Held<'_, P>, slot: Slot) {
        self.change(held, slot, |device, at, _| device.bits.doubt(at));
    }

    /// Notes that a slot has been found good.
    pub(crate) fn trust<P: Before<order::Swap>>(&self, held: &mut Held<'_, P>, slot: Slot) {
        self.change(held, slot, |device, at, _| device.bits.trust(at));
    }

    /// Whether the slot must be read alone.
    pub(crate) fn is_alone<P: Before<order::Swap>>(
        &self,
        held: &mut Held<'_, P>,
        slot: Slot,
    ) -> bool {
        self.change(held, slot, |device, at, _| {
            device.io.is_memory() || device.bits.is_doubtful(at)
        })
    }

    /// Whether a slot is given back once it has been read.
    pub(crate) fn gives_back<P: Before<order::Swap>>(
        &self,
        held: &mut Held<'_, P>,
        slot: Slot,
    ) -> bool {
        self.giving_back.load(Relaxed) != 0
            && self.change(held, slot, |device, _, _| device.gives_back())
    }

    /// Whether a slot is taken.
    pub(crate) fn is_taken<P: Before<order::Swap>>(
        &self,
        held: &mut Held<'_, P>,
        slot: Slot,
    ) -> bool {
        let (mut table, _) = self.table.lock(held);
        table.device_of(slot).is_some_and(|(device, at)| device.bits.is_taken(at))
    }

    pub(crate) fn device<P: Before<order::Swap>>(
        &self,
        held: &mut Held<'_, P>,
        slot: Slot,
    ) -> Option<(Arc<dyn SwapDevice<M>>, u32)> {
        let (mut table, _) = self.table.lock(held);
        table.device_of(slot).map(|(device, at)| (device.io.clone(), at))
    }

    /// Stops giving slots of a device, and says which numbers they have.
    pub(crate) fn begin_off(
        &self,
        held: &mut Unlocked<'_>,
        id: SwapId,
    ) -> Result<Range<u32>, SwapError> {
        let (mut table, _) = self.table.lock(held);
        let device = table.devices.iter_mut().find(|d| d.id == id).ok_or(SwapError::NotFound)?;
        if device.is_leaving {
            return Err(SwapError::Busy);
        }
        device.is_leaving = true;
        self.giving_back.fetch_add(1, Relaxed);
        Ok(device.numbers())
    }

    /// Takes a device out that [`begin_off`](Self::begin_off) began to switch off; or, where it
    /// couldn't be `emptied`, gives its slots again.
    pub(crate) fn end_off(
        &self,
        held: &mut Unlocked<'_>,
        id: SwapId,
        emptied: Result<(), SwapError>,
    ) {
        let (mut table, guard) = self.table.lock(held);
        self.giving_back.fetch_sub(1, Relaxed);
        let Some(at) = table.devices.iter().position(|d| d.id == id) else { return };
        table.devices[at].is_leaving = false;
        if emptied.is_ok() {
            let device = table.devices.remove(at);
            self.slots.fetch_sub(device.bits.len, Relaxed);
            self.giving_back.fetch_sub(u32::from(device.io.is_memory()), Relaxed);
            // The host's device may do as it likes when it is dropped.
            drop((table, guard));
            drop(device);
        }
    }

    /// Slots in use among a device's numbers, and those that lost what they held.
    pub(crate) fn used_on(&self, held: &mut Unlocked<'_>, numbers: &Range<u32>) -> (u32, u32) {
        let (table, _) = self.table.lock(held);
        let device = table.devices.iter().find(|d| d.base == numbers.start);
        device.map_or((0, 0), |d| (d.bits.used, d.bits.lost))
    }
}

impl<M: Machine> Uvm<M> {
    /// Switches a swap device on. Devices of higher priority fill first.
    ///
    /// # Errors
    /// [`SwapError`]: nothing has changed.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// uvm.swap_on(held, disk(64), 0)?;
    /// let range = memory(uvm, held, space, 8)?;
    /// uvm.pageout_range(held, space, range);
    /// assert_eq!(uvm.swap_space(), (64, 8));
    /// # Ok(()) });
    /// ```
    pub fn swap_on(
        &self,
        held: &mut Unlocked<'_>,
        io: Arc<dyn SwapDevice<M>>,
        priority: i16,
    ) -> Result<SwapId, SwapError> {
        let (swap, slots) = (self.swap(), io.slots());
        if slots == 0 {
            return Err(SwapError::Empty);
        }
        if u64::from(slots) > self.swap_room() {
            return Err(SwapError::TooMuch);
        }
        self.mem().reserve_heap(Bits::bytes(slots))?;
        let bits = Bits::new(slots)?;
        let (mut table, _) = swap.table.lock(held);
        if table.devices.is_full() {
            return Err(SwapError::TooMany);
        }
        let base = table.room_for(slots).ok_or(SwapError::TooMuch)?;
        let id = SwapId(table.next_id);
        table.next_id += 1;
        swap.slots.fetch_add(slots, Relaxed);
        swap.giving_back.fetch_add(u32::from(io.is_memory()), Relaxed);
        let at = table.devices.partition_point(|d| d.priority >= priority);
        table.devices.insert(at, Device { id, io, base, priority, is_leaving: false, bits });
        Ok(id)
    }

    /// Starts a read of pages from consecutive slots, all in use.
    pub(crate) fn read_swap(
        &self,
        held: &mut Unlocked<'_>,
        slot: Slot,
        pages: &[PageNo],
    ) -> Transfer {
        let Some((device, at)) = self.swap().device(held, slot) else { return Transfer::Failed };
        if !device.is_memory() {
            self.count(Counter::SwapIns, pages.len() as u64);
            self.count(Counter::SwapReads, 1);
        }
        device.read(self.mem(), held, at, pages)
    }

    /// Slots that devices may have beside those that are on.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// assert!(uvm.swap_room() >= uvm.frames().total() as u64);
    /// # Ok(()) });
    /// ```
    pub fn swap_room(&self) -> u64 {
        let most = self.frames().total() as u64 * u64::from(SLOTS_PER_FRAME);
        most.saturating_sub(u64::from(self.swap_space().0))
    }

    /// All swap devices, in the order in which they fill.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// uvm.swap_on(held, disk(64), 0)?;
    /// uvm.swap_on(held, disk(32), 1)?;
    /// let priorities: Vec<i16> = uvm.swap_info(held).iter().map(|info| info.priority).collect();
    /// assert_eq!(priorities, [1, 0]);
    /// # Ok(()) });
    /// ```
    pub fn swap_info(&self, held: &mut Unlocked<'_>) -> ArrayVec<SwapInfo, DEVICES> {
        self.swap().table.lock(held).0.devices.iter().map(Device::info).collect()
    }

    /// Pages that swap devices have room for, and how many are there.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// uvm.swap_on(held, disk(64), 0)?;
    /// assert_eq!(uvm.swap_space(), (64, 0));
    /// # Ok(()) });
    /// ```
    pub fn swap_space(&self) -> (u32, u32) {
        (self.swap().slots(), self.swap().used())
    }
}
