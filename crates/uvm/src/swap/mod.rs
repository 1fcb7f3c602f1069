//! Swap: where anonymous pages go that memory has no room for.
//!
//! ```text
//!   slot numbers   1 ........ n   n+2 ........ m  ...  2^28 ........    one range for each device, a gap between
//!   devices        [ priority 5 ] [ priority 1 ]       [ zswap ]     a bit for each slot: bits.rs
//! ```
//! A slot is a page's place on a device, named by one number over all devices. It belongs to
//! whoever keeps the number: an anon, an anonymous object's table, or a page that its owner left
//! while I/O had it. Where a page goes is decided when it is written: the page daemon takes a run
//! of slots for pages from anywhere, so that they leave in one write (1999, section 6), and
//! whatever slots they had before are free again.
//!
//! Devices of higher priority fill first; among equals they take turns, a run each. Only
//! swapped-out data is on a device: `swap_off` (`off.rs`) brings it home. Before all of them comes
//! zswap, if it is on: compressed pages in memory (`zswap.rs`).
//!
//! I1: a slot is taken exactly if one holder keeps its number, or a run that was just allocated
//! does. I2: a slot that I/O reads or writes, or that a prepared read names, is taken: so a device
//! without taken slots has nothing under way. I3: two consecutive numbers in use lie on the same
//! device, one behind the other.
//!
//! Locks: one, of level `Swap`, around all of it; held for a few words, or a bounded search. The
//! road not taken is a reference count per slot, as kernels have that share a slot among address
//! spaces: here the anon is what is shared.

mod bits;
mod off;
mod oldest;
mod pieces;
mod size_classes;
mod zswap;

use alloc::sync::Arc;
use core::fmt;
use core::num::NonZeroU32;
use core::ops::Range;
use machine::lines::{AtomicU32, Ordering::Relaxed};

use arrayvec::ArrayVec;

use bits::Bits;
use machine::{order, Before, Held, Machine, NoMemory, Ordered, PageNo};

use crate::io::Transfer;
use crate::stat::Counter;
use crate::{Memory, Uvm};
pub(crate) use zswap::{Holder, Refusal};
use zswap::{Zswap, ZSWAP};
pub use zswap::{ZswapInfo, MOST_ZSWAP};

/// Devices at most.
pub const DEVICES: usize = 16;

/// Slots of devices for each page frame at most.
pub const SLOTS_PER_FRAME: u32 = 8;

/// Slots for each page frame at most, zswap's too: so many anons without a page have numbers.
pub const MOST_SLOTS_PER_FRAME: u32 = SLOTS_PER_FRAME + zswap::SLOTS_PER_FRAME;

/// Pages of one write at most: 1 MiB.
pub const WRITE_CLUSTER: usize = 256;

/// A page's place on swap; see the module.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Slot(NonZeroU32);

impl Slot {
    /// No place: the data could not be read, and is gone.
    pub const LOST: Slot = Slot(NonZeroU32::MAX);

    /// The slot of a number.
    #[must_use]
    pub const fn new(number: u32) -> Option<Slot> {
        match NonZeroU32::new(number) {
            Some(number) => Some(Slot(number)),
            None => None,
        }
    }

    /// The slot's number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0.get()
    }

    /// The slot `n` places behind.
    #[must_use]
    pub const fn behind(self, n: u32) -> Slot {
        Slot(self.0.saturating_add(n))
    }

    /// The place in zswap, if it is there.
    fn in_zswap(self) -> Option<u32> {
        self.number().checked_sub(ZSWAP).filter(|_| self.is_place())
    }

    /// Whether data is there.
    #[must_use]
    pub fn is_place(self) -> bool {
        self != Slot::LOST
    }
}

/// Storage for swapped pages, as the host has it: a disk, or a file whose blocks it knows.
///
/// Both transfers are called with nothing locked, may sleep, and start I/O for consecutive slots;
/// they allocate no memory that could be short, since they are how memory is made free. What they
/// answer with [`Transfer::Started`] they end by [`Uvm::read_done`] or [`Uvm::write_done`], once
/// for every page. A device that finds a part unreadable says so of that part's pages alone if it
/// can.
pub trait SwapDevice<M: Machine>: Send + Sync {
    /// Pages that have room.
    fn slots(&self) -> u32;

    /// Fills pages, at most [`CLUSTER`](crate::io::CLUSTER), from consecutive slots.
    fn read(&self, machine: &M, slot: u32, pages: &[PageNo]) -> Transfer;

    /// Writes pages, at most [`WRITE_CLUSTER`], to consecutive slots.
    fn write(&self, machine: &M, slot: u32, pages: &[PageNo]) -> Transfer;
}

/// The name of a swap device while it is on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SwapId(u32);

/// One device, as it was at some moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
    /// Somebody else switches it off right now.
    Busy,
    /// What it holds does not fit elsewhere.
    NoMemory,
    /// Some of what it holds could not be read: that is lost, the rest is where it was or at home.
    Io,
}

impl fmt::Display for SwapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SwapError::Empty => "the device has no room for a page",
            SwapError::TooMuch => "more than eight times the memory can't be kept on swap",
            SwapError::TooMany => "sixteen swap devices are on already",
            SwapError::NotFound => "no such swap device is on",
            SwapError::Busy => "the device is being switched off already",
            SwapError::NoMemory => {
                "what is on the device does not fit into memory and other devices"
            }
            SwapError::Io => "a part of what is on the device could not be read",
        })
    }
}

impl From<NoMemory> for SwapError {
    fn from(_: NoMemory) -> Self {
        SwapError::NoMemory
    }
}

/// A run of slots that was just allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub(crate) first: Slot,
    pub(crate) len: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Slots are allocated.
    On,
    /// Somebody brings home what is there.
    Leaving,
}

struct Device<M: Machine> {
    id: SwapId,
    io: Arc<dyn SwapDevice<M>>,
    /// The number of its first slot.
    base: u32,
    priority: i16,
    state: State,
    bits: Bits,
}

impl<M: Machine> Device<M> {
    fn numbers(&self) -> Range<u32> {
        self.base..self.base + self.bits.len()
    }

    fn info(&self) -> SwapInfo {
        let bits = &self.bits;
        SwapInfo {
            id: self.id,
            slots: bits.len(),
            used: bits.used(),
            bad: bits.bad(),
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
    zswap: Zswap<M>,
    table: Ordered<order::Swap, M::Lock, Table<M>>,
    slots: AtomicU32,
    used: AtomicU32,
    /// Devices that are being switched off.
    leaving: AtomicU32,
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
        (u64::from(base) + u64::from(len) < u64::from(ZSWAP)).then_some(base)
    }

    /// The devices of one priority after another, each group from where it is whose turn.
    fn alloc(&mut self, most: u32) -> Option<Run> {
        let mut from = 0;
        while from < self.devices.len() {
            let priority = self.devices[from].priority;
            let group = self.devices[from..].iter().take_while(|d| d.priority == priority).count();
            for i in 0..group {
                let device = &mut self.devices[from + (self.turn + i) % group];
                if device.state != State::On {
                    continue;
                }
                if let Some(run) = device.bits.alloc(most) {
                    let first = Slot::new(device.base + run.start)?;
                    self.turn = self.turn.wrapping_add(1);
                    return Some(Run { first, len: run.end - run.start });
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
            zswap: Zswap::new(),
            table: Ordered::new(table),
            slots: AtomicU32::new(0),
            used: AtomicU32::new(0),
            leaving: AtomicU32::new(0),
        }
    }

    /// Free slots on devices and in zswap, but for what is being switched off.
    pub(crate) fn room<P: Before<order::Swap>>(&self, held: &mut Held<'_, P>) -> u32 {
        self.room_on_devices(held) + self.zswap.room(held)
    }

    /// Free slots on devices that are not being switched off.
    pub(crate) fn room_on_devices<P: Before<order::Swap>>(&self, held: &mut Held<'_, P>) -> u32 {
        let (table, _) = self.table.lock(held);
        table.devices.iter().filter(|d| d.state == State::On).map(|d| d.bits.free_slots()).sum()
    }

    /// Slots of all devices, bad ones too, and of zswap.
    pub(crate) fn slots(&self) -> u32 {
        self.slots.load(Relaxed) + self.zswap.slots()
    }

    /// Takes a run of at most `most` slots; none if all devices are full.
    pub(crate) fn alloc<P: Before<order::Swap>>(
        &self,
        held: &mut Held<'_, P>,
        most: u32,
    ) -> Option<Run> {
        let (mut table, _) = self.table.lock(held);
        let run = table.alloc(most)?;
        self.used.fetch_add(run.len, Relaxed);
        Some(run)
    }

    /// Calls `change` with a device's slot; it is in use, so its device is on.
    fn change<P: Before<order::Swap>, T>(
        &self,
        held: &mut Held<'_, P>,
        slot: Slot,
        change: impl FnOnce(&mut Bits, u32) -> T,
    ) -> T {
        let (mut table, _) = self.table.lock(held);
        match table.device_of(slot) {
            Some((device, at)) => change(&mut device.bits, at),
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

    /// Takes a slot that failed out of use for good.
    pub(crate) fn retire<P: Before<order::Swap>>(
        &self,
        machine: &Memory<M>,
        held: &mut Held<'_, P>,
        slot: Slot,
    ) {
        self.end_use(machine, held, slot, Bits::retire);
    }

    /// The same, for a slot whose contents can't be read.
    pub(crate) fn lose<P: Before<order::Swap>>(
        &self,
        machine: &Memory<M>,
        held: &mut Held<'_, P>,
        slot: Slot,
    ) {
        self.end_use(machine, held, slot, Bits::lose);
    }

    fn end_use<P: Before<order::Swap>>(
        &self,
        machine: &Memory<M>,
        held: &mut Held<'_, P>,
        slot: Slot,
        end: fn(&mut Bits, u32),
    ) {
        match slot.in_zswap() {
            Some(at) => self.zswap.free(machine, held, at),
            None if slot.is_place() => {
                self.change(held, slot, end);
                self.used.fetch_sub(1, Relaxed);
            }
            None => {}
        }
    }

    /// Notes that a transfer failed of which the slot was a part: it is tried alone the next time.
    pub(crate) fn doubt<P: Before<order::Swap>>(&self, held: &mut Held<'_, P>, slot: Slot) {
        self.change(held, slot, |bits, at| bits.set_doubtful(at, true));
    }

    /// Notes that a slot has been found good.
    pub(crate) fn trust<P: Before<order::Swap>>(&self, held: &mut Held<'_, P>, slot: Slot) {
        if slot.in_zswap().is_none() {
            self.change(held, slot, |bits, at| bits.set_doubtful(at, false));
        }
    }

    /// Whether the slot must be read alone.
    pub(crate) fn is_alone<P: Before<order::Swap>>(
        &self,
        held: &mut Held<'_, P>,
        slot: Slot,
    ) -> bool {
        slot.in_zswap().is_some() || self.change(held, slot, |bits, at| bits.is_doubtful(at))
    }

    /// Whether a slot is given back once it has been read: its device is being switched off, or it
    /// is zswap's.
    pub(crate) fn is_leaving<P: Before<order::Swap>>(
        &self,
        held: &mut Held<'_, P>,
        slot: Slot,
    ) -> bool {
        if slot.in_zswap().is_some() {
            return true;
        }
        if self.leaving.load(Relaxed) == 0 {
            return false;
        }
        let (mut table, _) = self.table.lock(held);
        table.device_of(slot).is_some_and(|(device, _)| device.state == State::Leaving)
    }

    /// Whether a slot is taken.
    pub(crate) fn is_taken<P: Before<order::Swap>>(
        &self,
        held: &mut Held<'_, P>,
        slot: Slot,
    ) -> bool {
        if let Some(at) = slot.in_zswap() {
            return self.zswap.is_taken(held, at);
        }
        let (mut table, _) = self.table.lock(held);
        table.device_of(slot).is_some_and(|(device, at)| device.bits.is_taken(at))
    }

    fn device<P: Before<order::Swap>>(
        &self,
        held: &mut Held<'_, P>,
        slot: Slot,
    ) -> Option<(Arc<dyn SwapDevice<M>>, u32)> {
        let (mut table, _) = self.table.lock(held);
        table.device_of(slot).map(|(device, at)| (device.io.clone(), at))
    }

    /// Starts a write of pages to consecutive slots, all in use.
    pub(crate) fn write(
        &self,
        machine: &Memory<M>,
        held: &mut Held<'_, order::Nothing>,
        slot: Slot,
        pages: &[PageNo],
    ) -> Transfer {
        match self.device(held, slot) {
            Some((device, at)) => device.write(machine, at, pages),
            None => Transfer::Failed,
        }
    }

    /// Checks zswap's own books.
    ///
    /// # Errors
    /// What doesn't hold.
    pub(crate) fn audit_zswap(
        &self,
        held: &mut Held<'_, order::Nothing>,
    ) -> Result<(), &'static str> {
        self.zswap.audit(held)
    }

    fn add(
        &self,
        held: &mut Held<'_, order::Nothing>,
        io: Arc<dyn SwapDevice<M>>,
        priority: i16,
        bits: Bits,
    ) -> Result<SwapId, SwapError> {
        let (mut table, _) = self.table.lock(held);
        if table.devices.is_full() {
            return Err(SwapError::TooMany);
        }
        let base = table.room_for(bits.len()).ok_or(SwapError::TooMuch)?;
        let id = SwapId(table.next_id);
        table.next_id += 1;
        self.slots.fetch_add(bits.len(), Relaxed);
        let at = table.devices.partition_point(|d| d.priority >= priority);
        table.devices.insert(at, Device { id, io, base, priority, state: State::On, bits });
        Ok(id)
    }
}

impl<M: Machine> Uvm<M> {
    /// Switches a swap device on. Devices of higher priority fill first.
    ///
    /// # Errors
    /// [`SwapError`]: nothing has changed.
    pub fn swap_on(
        &self,
        held: &mut Held<'_, order::Nothing>,
        device: Arc<dyn SwapDevice<M>>,
        priority: i16,
    ) -> Result<SwapId, SwapError> {
        let slots = device.slots();
        if slots == 0 {
            return Err(SwapError::Empty);
        }
        if u64::from(slots) > self.swap_room() {
            return Err(SwapError::TooMuch);
        }
        self.mem().reserve_heap(Bits::bytes(slots))?;
        let bits = Bits::new(slots)?;
        self.swap().add(held, device, priority, bits)
    }

    /// Starts a read of pages from consecutive slots, all in use; of zswap's, one at a time.
    pub(crate) fn read_swap(
        &self,
        held: &mut Held<'_, order::Nothing>,
        slot: Slot,
        pages: &[PageNo],
    ) -> Transfer {
        let (machine, cpu) = (self.mem(), self.mem().cpu());
        if let (Some(at), &[page]) = (slot.in_zswap(), pages) {
            self.stat().add(cpu, Counter::ZswapIns, 1);
            return self.swap().zswap.read(machine, held, at, page);
        }
        self.stat().add(cpu, Counter::SwapIns, pages.len() as u64);
        self.stat().add(cpu, Counter::SwapReads, 1);
        match self.swap().device(held, slot) {
            Some((device, at)) => device.read(machine, at, pages),
            None => Transfer::Failed,
        }
    }

    /// Keeps a dirty page in zswap. It is busy, and in no translation.
    ///
    /// # Errors
    /// [`Refusal`]: it has to go elsewhere.
    pub(crate) fn store_in_zswap(
        &self,
        held: &mut Held<'_, order::Nothing>,
        page: PageNo,
        holder: Holder,
    ) -> Result<Slot, Refusal> {
        let stored = self.swap().zswap.store(self.mem(), held, page, holder);
        match stored {
            Ok(_) => self.stat().add(self.mem().cpu(), Counter::ZswapOuts, 1),
            Err(Refusal::Large) => self.stat().add(self.mem().cpu(), Counter::ZswapRefused, 1),
            Err(Refusal::Off | Refusal::Full) => {}
        }
        stored
    }

    /// What zswap holds.
    pub fn zswap_info(&self, held: &mut Held<'_, order::Nothing>) -> ZswapInfo {
        self.swap().zswap.info(held)
    }

    /// Slots in use, those of zswap too.
    pub(crate) fn slots_in_use(&self, held: &mut Held<'_, order::Nothing>) -> u32 {
        self.swap().used.load(Relaxed) + self.zswap_info(held).pages
    }

    /// Slots that devices may have beside those that are on.
    pub fn swap_room(&self) -> u64 {
        let most = self.frames().total() as u64 * u64::from(SLOTS_PER_FRAME);
        most.saturating_sub(u64::from(self.swap_space().0))
    }

    /// All swap devices, in the order in which they fill.
    pub fn swap_info(&self, held: &mut Held<'_, order::Nothing>) -> ArrayVec<SwapInfo, DEVICES> {
        self.swap().table.lock(held).0.devices.iter().map(Device::info).collect()
    }

    /// Pages that swap devices have room for, and how many are there.
    pub fn swap_space(&self) -> (u32, u32) {
        (self.swap().slots.load(Relaxed), self.swap().used.load(Relaxed))
    }
}
