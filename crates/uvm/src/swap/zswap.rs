//! Zswap: pages that are kept in memory, small, so that they need no disk.
//!
//! ```text
//!   slot   2^28 + n --> entry n --> nothing: all zeroes
//!                               --> a chunk with some bytes, in a frame of zswap's: size_classes.rs
//! ```
//! A page that the daemon would write is compressed first (LZ4, blocks). If half a page holds it,
//! it gets a slot of zswap and its bytes a chunk; its frame is free at once. Everything else goes
//! to the devices, if there are any. A slot of zswap is a slot like others to whoever keeps it:
//! numbers from [`ZSWAP`] on are zswap's. Three things differ. Its transfers end where they are
//! started; it is read alone, since nothing is saved by reading neighbours with it; and what has
//! been read leaves zswap, so that nothing is in memory twice.
//!
//! When zswap has nearly its share of memory, its oldest pages make room: `pageout` takes them
//! back and writes them to a device together (`oldest.rs`). Slots are given in a circle, so the one
//! behind the last is the oldest in use. Without a device, a full zswap takes no more.
//!
//! I1: an entry is taken exactly if its slot is (`swap` I1), and has a chunk exactly if it isn't
//! all zeroes. I2: frames of zswap are the kernel's to all others, at most `limit` but for those
//! that it had when the limit was lowered. I3: a slot's bytes don't change while it is taken. I4:
//! whoever has zswap's work buffers has them by its lock.
//!
//! Locks: `Zswap` around the buffers, for as long as a page takes to be packed or unpacked; inside
//! it, and by itself where slots are freed, `Swap`. Nothing is allocated on the way out but frames,
//! and a frame that is asked for serves a page that is about to give one back. The road not taken
//! is buffers for each CPU: to be had when many CPUs are seen to wait here.

use crate::Memory;
use alloc::boxed::Box;
use machine::lines::{AtomicU32, Ordering::Relaxed};

use crate::page::Reserve;
use lz4_flex::block::{
    compress_into_with_table, decompress_into, get_maximum_output_size, CompressTable,
};
use machine::{order, Before, Held, Machine, NoMemory, Ordered, PageNo, PAGE_SIZE};

use super::bits::Bits;
use super::pieces::Pieces;
use super::size_classes::{Chunk, Parts, SizeClasses};
use super::Slot;
use crate::io::Transfer;

/// The number of zswap's first slot, and how many it may have: devices' are below, and a page's
/// record has room for numbers below twice this.
pub(super) const ZSWAP: u32 = 1 << 28;

/// The largest share of memory that zswap may have, in percent.
pub const MOST_ZSWAP: u8 = 50;

/// Slots of zswap for each page frame of the machine.
pub(super) const SLOTS_PER_FRAME: u32 = 2;

/// Zswap is nearly full when this part of what it may have is left.
const NEARLY: u32 = 8;

/// What zswap holds, at some moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ZswapInfo {
    /// The share of memory that it may have, in percent; 0 if it is off.
    pub percent: u8,
    /// Page frames that it has.
    pub frames: u32,
    /// Pages that are in it.
    pub pages: u32,
}

/// Who keeps a slot's number; may be out of date.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Holder {
    /// An anon.
    Anon(u32),
    /// A page of an object.
    Object(u32, u32),
    /// Not known: such a page isn't found by its slot.
    Unknown,
}

/// Why zswap has not taken a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// It is off, or being switched off.
    Off,
    /// It has its share, or there is no frame.
    Full,
    /// Half a page does not hold it.
    Large,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Bytes {
    Zeroes,
    Packed(Chunk, u16),
}

#[derive(Clone, Copy)]
struct Entry {
    bytes: Bytes,
    holder: Holder,
}

struct State {
    bits: Bits,
    /// By slot; means something if that is taken.
    entries: Pieces<Entry>,
    chunks: SizeClasses,
    /// Frames that it may have.
    limit: u32,
    percent: u8,
    /// It is being switched off.
    leaving: bool,
    /// Where the search for the oldest slot goes on.
    hand: u32,
}

/// Where pages are packed and unpacked.
struct Work {
    page: [u8; PAGE_SIZE],
    packed: [u8; get_maximum_output_size(PAGE_SIZE)],
}

/// The buffers, and LZ4's table of what it has seen: 8 KiB, made once.
type Buffers = (Box<Work>, CompressTable);

/// See the module.
pub(super) struct Zswap<M: Machine> {
    work: Ordered<order::Zswap, M::Lock, Option<Buffers>>,
    state: Ordered<order::Swap, M::Lock, Option<State>>,
    /// Slots; none if it is off.
    slots: AtomicU32,
}

impl<M: Machine> Zswap<M> {
    pub(super) fn new() -> Self {
        Zswap { work: Ordered::new(None), state: Ordered::new(None), slots: AtomicU32::new(0) }
    }

    /// Slots; none if it is off.
    pub(super) fn slots(&self) -> u32 {
        self.slots.load(Relaxed)
    }

    /// Gives zswap a share of memory: switches it on, or changes what it may have.
    ///
    /// # Errors
    /// [`NoMemory`] if there is none for its tables; nothing has changed.
    pub(super) fn set(
        &self,
        machine: &Memory<M>,
        held: &mut Held<'_, order::Nothing>,
        percent: u8,
    ) -> Result<(), NoMemory> {
        let total = machine.frames().total();
        let limit = (total * usize::from(percent) / 100).max(1) as u32;
        let (mut work, mut state) = match self.slots() {
            0 => (Some(buffers(machine)?), Some(State::new(machine, total)?)),
            _ => (None, None),
        };
        let (mut old_work, mut h) = self.work.lock(held);
        let (mut old, _h) = self.state.lock(&mut h);
        if old.is_none() {
            // What another thread made meanwhile stays.
            core::mem::swap(&mut *old_work, &mut work);
            core::mem::swap(&mut *old, &mut state);
        }
        let state = old.as_mut().ok_or(NoMemory)?;
        (state.limit, state.percent) = (limit, percent);
        self.slots.store(state.bits.len(), Relaxed);
        Ok(())
    }

    /// Takes no more pages from now on. Says whether it is on, and nobody had said so before.
    pub(super) fn leave(&self, held: &mut Held<'_, order::Nothing>) -> bool {
        let (mut state, _) = self.state.lock(held);
        state.as_mut().is_some_and(|state| !core::mem::replace(&mut state.leaving, true))
    }

    /// Ends what [`leave`](Self::leave) began: zswap is off if nothing is left in it, and on
    /// again otherwise.
    pub(super) fn left(&self, held: &mut Held<'_, order::Nothing>) {
        let gone = {
            let (mut work, mut h) = self.work.lock(held);
            let (mut state, _h) = self.state.lock(&mut h);
            match state.as_mut() {
                Some(state) if state.bits.used() != 0 => state.leaving = false,
                _ => self.slots.store(0, Relaxed),
            }
            match self.slots() {
                0 => (work.take(), state.take()),
                _ => (None, None),
            }
        };
        drop(gone);
    }

    /// What it holds.
    pub(super) fn info<P: Before<order::Swap>>(&self, held: &mut Held<'_, P>) -> ZswapInfo {
        let (state, _) = self.state.lock(held);
        let info = |s: &State| ZswapInfo {
            percent: s.percent,
            frames: s.chunks.used(),
            pages: s.bits.used(),
        };
        state.as_ref().map_or_else(ZswapInfo::default, info)
    }

    /// Pages that it may have room for, if they are small.
    pub(super) fn room<P: Before<order::Swap>>(&self, held: &mut Held<'_, P>) -> u32 {
        if self.slots() == 0 {
            return 0;
        }
        let (state, _) = self.state.lock(held);
        state.as_ref().filter(|state| !state.leaving).map_or(0, State::room)
    }

    /// Whether old pages should leave, so that new ones find room.
    pub(super) fn is_nearly_full(&self, held: &mut Held<'_, order::Nothing>) -> bool {
        let (state, _) = self.state.lock(held);
        let is_nearly_full = |s: &State| {
            let (frames, slots) = (s.limit - s.limit / NEARLY, s.bits.len() / NEARLY);
            s.chunks.used() >= frames || s.bits.free_slots() <= slots
        };
        state.as_ref().is_some_and(|s| !s.leaving && is_nearly_full(s))
    }

    /// Puts a page's bytes into zswap. The page is busy and in no translation.
    ///
    /// # Errors
    /// [`Refusal`]: nothing has changed.
    pub(super) fn store(
        &self,
        machine: &Memory<M>,
        held: &mut Held<'_, order::Nothing>,
        page: PageNo,
        holder: Holder,
    ) -> Result<Slot, Refusal> {
        let (mut work, mut h) = self.work.lock(held);
        let (work, table) = work.as_mut().ok_or(Refusal::Off)?;
        machine.read(page, 0, &mut work.page);
        let packed = work.pack(table)?;
        let (mut state, mut h) = self.state.lock(&mut h);
        let state = state.as_mut().filter(|state| !state.leaving).ok_or(Refusal::Off)?;
        if state.bits.free_slots() == 0 {
            return Err(Refusal::Full);
        }
        let bytes = match packed {
            None => Bytes::Zeroes,
            Some((len, parts)) => {
                let chunk = state.chunk(machine, &mut h, parts).ok_or(Refusal::Full)?;
                let (frame, offset) = state.chunks.place(chunk);
                machine.write(frame, offset, &work.packed[..len]);
                Bytes::Packed(chunk, len as u16)
            }
        };
        let at = state.bits.alloc(1).ok_or(Refusal::Full)?.start;
        state.entries[at as usize] = Entry { bytes, holder };
        Slot::new(ZSWAP + at).ok_or(Refusal::Full)
    }

    /// Fills a page from a slot that is taken.
    pub(super) fn read(
        &self,
        machine: &Memory<M>,
        held: &mut Held<'_, order::Nothing>,
        at: u32,
        page: PageNo,
    ) -> Transfer {
        let (mut work, mut h) = self.work.lock(held);
        let Some((work, _)) = work.as_mut() else { return Transfer::Failed };
        let len = {
            let (state, _h) = self.state.lock(&mut h);
            let Some(state) = state.as_ref() else { return Transfer::Failed };
            match state.entries[at as usize].bytes {
                Bytes::Zeroes => {
                    machine.zero(page);
                    return Transfer::Done;
                }
                Bytes::Packed(chunk, len) => {
                    let (frame, offset) = state.chunks.place(chunk);
                    machine.read(frame, offset, &mut work.packed[..usize::from(len)]);
                    usize::from(len)
                }
            }
        };
        match decompress_into(&work.packed[..len], &mut work.page) {
            Ok(PAGE_SIZE) => {
                machine.write(page, 0, &work.page);
                Transfer::Done
            }
            _ => Transfer::Failed,
        }
    }

    /// Frees a slot, and its frame if that was the last of it.
    pub(super) fn free<P: Before<order::Swap>>(
        &self,
        machine: &Memory<M>,
        held: &mut Held<'_, P>,
        at: u32,
    ) {
        let (mut state, mut h) = self.state.lock(held);
        let Some(state) = state.as_mut() else { unreachable!("slot {at} is taken of no zswap") };
        state.bits.free(at);
        if let Bytes::Packed(chunk, _) = state.entries[at as usize].bytes {
            if let Some(frame) = state.chunks.free(chunk) {
                machine.frames().free_page(machine, &mut h, frame);
            }
        }
    }

    /// Whether a slot is taken.
    pub(super) fn is_taken<P: Before<order::Swap>>(&self, held: &mut Held<'_, P>, at: u32) -> bool {
        let (state, _) = self.state.lock(held);
        state.as_ref().is_some_and(|state| at < state.bits.len() && state.bits.is_taken(at))
    }

    /// The slot that has been taken longest, of those that this has not named in this round; and
    /// who holds it.
    pub(super) fn oldest(&self, held: &mut Held<'_, order::Nothing>) -> Option<(Slot, Holder)> {
        let (mut state, _) = self.state.lock(held);
        let state = state.as_mut()?;
        let at = state.bits.next_taken(state.hand)?;
        state.hand = if at + 1 == state.bits.len() { 0 } else { at + 1 };
        Some((Slot::new(ZSWAP + at)?, state.entries[at as usize].holder))
    }

    /// Checks I1 and I2, and the chunks.
    ///
    /// # Errors
    /// What doesn't hold.
    pub(super) fn audit(&self, held: &mut Held<'_, order::Nothing>) -> Result<(), &'static str> {
        let (state, _) = self.state.lock(held);
        let Some(state) = state.as_ref() else { return Ok(()) };
        let taken = (0..state.bits.len()).filter(|&at| state.bits.is_taken(at));
        if taken.clone().count() != state.bits.used() as usize {
            return Err("slots of zswap are counted wrongly");
        }
        let packed = taken.filter(|&at| state.entries[at as usize].bytes != Bytes::Zeroes);
        state.chunks.audit(packed.count())
    }
}

fn buffers<M: Machine>(machine: &Memory<M>) -> Result<Buffers, NoMemory> {
    machine.reserve_heap(size_of::<Work>() + 8192)?;
    let work = Work { page: [0; PAGE_SIZE], packed: [0; get_maximum_output_size(PAGE_SIZE)] };
    Ok((Box::new(work), CompressTable::small()))
}

impl Work {
    /// Packs the page in `page`: into how many bytes and what chunks, none for zeroes alone.
    fn pack(&mut self, table: &mut CompressTable) -> Result<Option<(usize, Parts)>, Refusal> {
        if self.page.iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        let len = compress_into_with_table(&self.page, &mut self.packed, table)
            .map_err(|_| Refusal::Large)?;
        Ok(Some((len, Parts::for_len(len).ok_or(Refusal::Large)?)))
    }
}

impl State {
    fn new<M: Machine>(machine: &Memory<M>, total: usize) -> Result<State, NoMemory> {
        let slots = (total * SLOTS_PER_FRAME as usize).min(ZSWAP as usize);
        let frames = total * usize::from(MOST_ZSWAP) / 100;
        let bytes = Pieces::<Entry>::bytes(slots)
            + Bits::bytes(slots as u32)
            + SizeClasses::bytes(frames as u32);
        machine.reserve_heap(bytes)?;
        let entries = Pieces::new(slots, &Entry { bytes: Bytes::Zeroes, holder: Holder::Unknown })?;
        let (bits, chunks) = (Bits::new(slots as u32)?, SizeClasses::new(frames as u32)?);
        Ok(State { bits, entries, chunks, limit: 0, percent: 0, leaving: false, hand: 0 })
    }

    fn room(&self) -> u32 {
        let frames = self.limit.saturating_sub(self.chunks.used());
        self.bits.free_slots().min(frames * SizeClasses::MOST + self.chunks.unused())
    }

    /// A chunk in a frame that has one, or in a new one.
    fn chunk<M: Machine>(
        &mut self,
        machine: &Memory<M>,
        held: &mut Held<'_, order::Swap>,
        parts: Parts,
    ) -> Option<Chunk> {
        if let Some(chunk) = self.chunks.share(parts) {
            return Some(chunk);
        }
        if self.chunks.used() >= self.limit {
            return None;
        }
        let frame = machine.frames().alloc(machine, held, Reserve::Pageout).ok()?;
        match self.chunks.cut(frame, parts) {
            Ok(chunk) => Some(chunk),
            Err(NoMemory) => {
                machine.frames().free_page(machine, held, frame);
                None
            }
        }
    }
}
