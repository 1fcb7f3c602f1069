//! Zram: a swap device in memory, whose pages are compressed.
//!
//! ```text
//!   slot --> all zeroes, and nothing else is kept
//!        --> a chunk with some bytes, in a frame of the device's: size_classes.rs
//! ```
//! A page that is written is compressed (LZ4, blocks). If half a page holds it, its bytes get a
//! chunk, and the page's own frame is free at once; else, and where the device has its share of
//! memory, the write fails, and the page goes to a device of lower priority. Transfers end where
//! they are started, with a page each, and a slot is free once its page has been read
//! ([`SwapDevice::is_memory`]).
//!
//! I1: a slot has a chunk exactly if the last page written there isn't all zeroes and the slot is
//! in use. I2: frames of the device are the kernel's to all others, at most `limit` but for those
//! that it had when the limit was lowered. I3: `room` is what `Store::room` says, so that no page
//! is compressed for a full device.
//!
//! Locks: two of the device's own. The buffers' has the rank of the swap table's, which no thread
//! holds at a transfer, and is held for as long as a page takes to be packed or unpacked. The
//! store's has the rank of the queues', none of which is taken inside. Nothing is allocated on the
//! way out but frames, and a frame that is asked for serves a page that is about to give one back.
//!
//! Source: Linux's zram. The roads not taken: buffers for each CPU, to be had when many CPUs are
//! seen to wait here; writing the oldest pages on to another device, as Linux's zswap does, which
//! needs each slot's holder.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod size_classes;

use alloc::boxed::Box;
use alloc::sync::Arc;
use machine::lines::{AtomicU32, Ordering::Relaxed};

use lz4_flex::block::{
    compress_into_with_table, decompress_into, get_maximum_output_size, CompressTable,
};
use machine::{order, Held, Machine, NoMemory, Ordered, PageNo, Pieces, Unlocked, PAGE_SIZE};
use uvm::page::{Frames, Reserve};
use uvm::{SwapDevice, SwapError, SwapId, Transfer, Uvm};

use size_classes::{Chunk, Parts, SizeClasses};

/// The largest share of memory that the device may have, in percent.
pub const MOST_ZRAM: u8 = 50;

/// Slots for each page frame of the machine.
const SLOTS_PER_FRAME: usize = 2;

/// What the device holds at some moment, and has done since it was made.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let mut zram = None;
/// uvm_zram::Zram::set_share(uvm, held, &mut zram, 20)?;
/// let (device, _) = zram.as_ref().ok_or("it is on")?;
/// assert_eq!((device.info(held).percent, device.info(held).pages), (20, 0));
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ZramInfo {
    /// The share of memory that it may have, in percent.
    pub percent: u8,
    /// Page frames that it has.
    pub frames: u32,
    /// Pages that are in it.
    pub pages: u32,
    /// Pages that were stored.
    pub stored: u64,
    /// Pages that were read back.
    pub read: u64,
    /// Pages that were too large when compressed.
    pub too_large: u64,
}

#[derive(Clone, Copy)]
enum Entry {
    Empty,
    Zeroes,
    Packed(Chunk, u16),
}

struct Store {
    /// By slot.
    entries: Pieces<Entry>,
    chunks: SizeClasses,
    /// Frames that it may have.
    limit: u32,
    /// But for its frames, which `chunks` counts; `pages` are the slots that aren't empty.
    info: ZramInfo,
}

/// Where pages are packed and unpacked, and LZ4's table of what it has seen: 8 KiB.
struct Work {
    page: [u8; PAGE_SIZE],
    packed: [u8; get_maximum_output_size(PAGE_SIZE)],
    table: CompressTable,
}

/// See the module.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let mut zram = None;
/// uvm_zram::Zram::set_share(uvm, held, &mut zram, 20)?;
/// let range = memory(uvm, held, space, 8)?;
/// uvm.pageout_range(held, space, range);
/// assert_eq!(load(uvm, space, range.start)?, [1], "packed, and unpacked");
/// # Ok(()) });
/// ```
pub struct Zram<M: Machine> {
    frames: Arc<Frames<M>>,
    work: Ordered<order::Swap, M::Lock, Box<Work>>,
    store: Ordered<order::PageQueues, M::Lock, Store>,
    slots: u32,
    room: AtomicU32,
}

/// The device of an instance, and its name while it is on.
pub type ZramOn<M> = Option<(Arc<Zram<M>>, SwapId)>;

impl<M: Machine> Zram<M> {
    /// A device with a share of memory, in percent from 1 to [`MOST_ZRAM`], that is on nowhere yet.
    ///
    /// # Errors
    /// [`NoMemory`] if there is none for its tables.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// let machine = SoftMachine::new(Config::default());
    /// let frames = Arc::new(Frames::new(&[(Pa(0), 1024)], machine.cpus())?);
    /// let zram = uvm_zram::Zram::new(&machine, frames.clone(), 20)?;
    /// let uvm = Uvm::new(machine, frames)?;
    /// uvm.swap_on(&mut ThreadCtx::new().held(), zram, 0)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(machine: &M, frames: Arc<Frames<M>>, percent: u8) -> Result<Arc<Self>, NoMemory> {
        let total = frames.total();
        let (slots, most) = (total * SLOTS_PER_FRAME, total * usize::from(MOST_ZRAM) / 100);
        let tables = Pieces::<Entry>::bytes(slots) + SizeClasses::bytes(most as u32);
        machine.reserve_heap(tables + size_of::<Work>() + 8192 + size_of::<Self>() + 64)?;
        let work = Work {
            page: [0; PAGE_SIZE],
            packed: [0; get_maximum_output_size(PAGE_SIZE)],
            table: CompressTable::small(),
        };
        let mut store = Store {
            entries: Pieces::new(slots, &Entry::Empty)?,
            chunks: SizeClasses::new(most as u32)?,
            limit: 0,
            info: ZramInfo::default(),
        };
        store.set_percent(total, percent);
        Ok(Arc::new(Zram {
            frames,
            work: Ordered::new(Box::new(work)),
            slots: slots as u32,
            room: AtomicU32::new(store.room()),
            store: Ordered::new(store),
        }))
    }

    /// Gives an instance's device a share of memory, in percent up to [`MOST_ZRAM`], and switches
    /// it on before all other devices if need be; 0 brings home what is in it, and switches it off.
    /// One thread at a time.
    ///
    /// # Errors
    /// [`SwapError`]: `TooMuch`, `TooMany`, `Io` or `NoMemory`. The share is what it was.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let mut zram = None;
    /// uvm_zram::Zram::set_share(uvm, held, &mut zram, 20)?;
    /// uvm_zram::Zram::set_share(uvm, held, &mut zram, 0)?;
    /// assert!(zram.is_none(), "and is off again");
    /// # Ok(()) });
    /// ```
    pub fn set_share(
        uvm: &Uvm<M>,
        held: &mut Unlocked<'_>,
        on: &mut ZramOn<M>,
        percent: u8,
    ) -> Result<(), SwapError> {
        if percent > MOST_ZRAM {
            return Err(SwapError::TooMuch);
        }
        match (&*on, percent) {
            (None, 0) => {}
            (None, _) => {
                let device = Zram::new(uvm.machine(), uvm.shared_frames(), percent)?;
                let id = uvm.swap_on(held, device.clone(), i16::MAX)?;
                *on = Some((device, id));
            }
            (Some((_, id)), 0) => {
                uvm.swap_off(held, *id)?;
                *on = None;
            }
            (Some((device, _)), _) => device.resize(held, uvm.frames().total(), percent),
        }
        Ok(())
    }

    /// Gives it another share of so many frames.
    fn resize(&self, held: &mut Unlocked<'_>, total: usize, percent: u8) {
        let mut store = self.store.lock(held).0;
        store.set_percent(total, percent);
        self.room.store(store.room(), Relaxed);
    }

    /// What it holds, and has done.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let mut zram = None;
    /// uvm_zram::Zram::set_share(uvm, held, &mut zram, 20)?;
    /// let (device, _) = zram.as_ref().ok_or("it is on")?;
    /// println!("{:?}", device.info(held));
    /// # Ok(()) });
    /// ```
    pub fn info(&self, held: &mut Unlocked<'_>) -> ZramInfo {
        let (store, _) = self.store.lock(held);
        ZramInfo { frames: store.chunks.used, ..store.info }
    }

    /// Checks I1, I3 and the chunks.
    ///
    /// # Errors
    /// What doesn't hold.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let mut zram = None;
    /// uvm_zram::Zram::set_share(uvm, held, &mut zram, 20)?;
    /// let (device, _) = zram.as_ref().ok_or("it is on")?;
    /// device.audit(held)?;
    /// # Ok(()) });
    /// ```
    pub fn audit(&self, held: &mut Unlocked<'_>) -> Result<(), &'static str> {
        let (store, _) = self.store.lock(held);
        let count = |which: fn(&Entry) -> bool| store.entries.iter().filter(|&e| which(e)).count();
        if count(|entry| !matches!(entry, Entry::Empty)) != store.info.pages as usize {
            return Err("pages of zram are counted wrongly");
        }
        if self.room.load(Relaxed) != store.room() {
            return Err("zram's room is not what it says");
        }
        store.chunks.audit(count(|entry| matches!(entry, Entry::Packed(..))))
    }

    fn write_page(
        &self,
        machine: &M,
        held: &mut Unlocked<'_>,
        slot: u32,
        page: PageNo,
    ) -> Result<(), NoMemory> {
        let (mut work, mut h) = self.work.lock(held);
        machine.read(page, 0, &mut work.page);
        let packed = work.pack();
        let (mut store, mut h) = self.store.lock(&mut h);
        store.info.too_large += u64::from(packed.is_err());
        let entry = match packed? {
            None => Entry::Zeroes,
            Some((len, parts)) => {
                let chunk = store.chunk((machine, &self.frames), &mut h, parts)?;
                let (frame, offset) = store.chunks.place(chunk);
                machine.write(frame, offset, &work.packed[..len]);
                Entry::Packed(chunk, len as u16)
            }
        };
        store.entries[slot as usize] = entry;
        store.info.pages += 1;
        self.room.store(store.room(), Relaxed);
        store.info.stored += 1;
        Ok(())
    }

    fn read_page(&self, machine: &M, held: &mut Unlocked<'_>, slot: u32, page: PageNo) -> bool {
        let (mut work, mut h) = self.work.lock(held);
        let (mut store, _h) = self.store.lock(&mut h);
        store.info.read += 1;
        let len = match store.entries[slot as usize] {
            Entry::Empty => return false,
            Entry::Zeroes => {
                machine.zero(page);
                return true;
            }
            Entry::Packed(chunk, len) => {
                let (frame, offset) = store.chunks.place(chunk);
                machine.read(frame, offset, &mut work.packed[..usize::from(len)]);
                usize::from(len)
            }
        };
        drop(store);
        let Work { page: bytes, packed, .. } = &mut **work;
        let is_whole = decompress_into(&packed[..len], bytes).is_ok_and(|len| len == PAGE_SIZE);
        if is_whole {
            machine.write(page, 0, bytes);
        }
        is_whole
    }
}

impl<M: Machine> SwapDevice<M> for Zram<M> {
    fn slots(&self) -> u32 {
        self.slots
    }

    fn is_memory(&self) -> bool {
        true
    }

    fn room(&self) -> u32 {
        self.room.load(Relaxed)
    }

    fn read(&self, machine: &M, held: &mut Unlocked<'_>, slot: u32, pages: &[PageNo]) -> Transfer {
        let mut slots = (slot..).zip(pages);
        match slots.all(|(slot, &page)| self.read_page(machine, held, slot, page)) {
            true => Transfer::Done,
            false => Transfer::Failed,
        }
    }

    fn write(&self, machine: &M, held: &mut Unlocked<'_>, slot: u32, pages: &[PageNo]) -> Transfer {
        let mut slots = (slot..).zip(pages);
        match slots.all(|(slot, &page)| self.write_page(machine, held, slot, page).is_ok()) {
            true => Transfer::Done,
            false => Transfer::Failed,
        }
    }

    fn freed(&self, machine: &M, held: &mut Held<'_, order::Swap>, slot: u32) {
        let (mut store, mut h) = self.store.lock(held);
        let old = core::mem::replace(&mut store.entries[slot as usize], Entry::Empty);
        if let Entry::Packed(chunk, _) = old {
            if let Some(frame) = store.chunks.free(chunk) {
                self.frames.free_page(machine, &mut h, frame);
            }
        }
        store.info.pages -= u32::from(!matches!(old, Entry::Empty));
        self.room.store(store.room(), Relaxed);
    }
}

impl Work {
    /// Packs the page in `page`: into how many bytes and what chunks, none for zeroes alone.
    fn pack(&mut self) -> Result<Option<(usize, Parts)>, NoMemory> {
        if self.page.iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        let len = compress_into_with_table(&self.page, &mut self.packed, &mut self.table)
            .map_err(|_| NoMemory)?;
        Ok(Some((len, Parts::for_len(len).ok_or(NoMemory)?)))
    }
}

impl Store {
    fn set_percent(&mut self, total: usize, percent: u8) {
        self.limit = (total * usize::from(percent) / 100).max(1) as u32;
        self.info.percent = percent;
    }

    /// Pages that it may have room for, if they are small.
    fn room(&self) -> u32 {
        let frames = self.limit.saturating_sub(self.chunks.used);
        frames * SizeClasses::MOST + self.chunks.unused
    }

    /// A chunk in a frame that has one, or in a new one.
    fn chunk<M: Machine>(
        &mut self,
        (machine, frames): (&M, &Frames<M>),
        held: &mut Held<'_, order::PageQueues>,
        parts: Parts,
    ) -> Result<Chunk, NoMemory> {
        if let Some(chunk) = self.chunks.share(parts) {
            return Ok(chunk);
        }
        if self.chunks.used >= self.limit {
            return Err(NoMemory);
        }
        let frame = frames.alloc(machine, held, Reserve::Pageout)?;
        self.chunks.cut(frame, parts).inspect_err(|_| frames.free_page(machine, held, frame))
    }
}

/// The example of the crate's README, tested.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
