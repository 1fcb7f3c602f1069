//! The kernel's side of its VM system: one trait, one adapter for each system behind it.
//!
//! The kernel calls the functions of this module; they are those of [`VmSystem`], which the adapter
//! chosen at build time implements ([`uvm`]). Addresses and lengths here are the system calls' own:
//! bytes, checked and page aligned by the caller where the text says so; errors are error numbers.
//! Nothing here may be called with a spin lock held, but for `activate`, `deactivate` and the
//! counters.

mod advice;
mod audit;
mod census;
mod daemon;
mod lent;
mod object;
mod passing;
mod pin;
mod segment;
mod swap;
mod uvm;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use crate::errno::Result;

pub use self::audit::audit;
pub use self::census::{in_use, Census};
pub use self::daemon::{with_room, with_room_at_any_cost};
pub use self::lent::{
    give, give_back, give_back_others, give_back_page, lend, lend_again, lend_all_again,
    lend_object, new_page,
};
pub use self::uvm::{Object, Space};
pub use ::machine::{Class, Prot};
pub use ::uvm::Advice as Usage;
pub use ::uvm::Lent;
pub use ::uvm::{FaultError, FaultKind, Inherit, Sharing, Tally};
pub use object::{holes_read, object_io, object_io_as, pages_read, pages_written, Dir, Writing};
pub use passing::{
    flush, put_back, receive, to_donate, transfer, unmap_donated, worth_receiving, Export, Giving,
};
pub use pin::Pins;
pub use segment::{Locked, Remnant, Segment};
pub use swap::{Area as SwapArea, Run as SwapRun, SwapId, SwapUse};

/// The VM system this kernel is built with.
type System = self::uvm::Uvm;

/// What a mapping shows.
#[derive(Clone, Default)]
pub enum Backing {
    /// Zeroes.
    #[default]
    Anon,
    /// An object's pages from `offset` bytes on, page aligned.
    Object {
        /// Whose.
        object: Object,
        /// From where.
        offset: u64,
    },
    /// A shared segment from its start.
    Segment(Segment),
}

/// Where a mapping is to lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Place {
    /// Anywhere.
    #[default]
    Anywhere,
    /// Anywhere, for another thread to use.
    Common,
    /// At `addr` if that is free.
    Hint,
    /// At `addr`, in place of what is there.
    Fixed,
    /// At `addr` or not at all.
    FixedNoReplace,
}

/// When pages are brought in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Populate {
    /// As they are touched.
    #[default]
    OnTouch,
    /// At once, as far as memory goes.
    Now,
}

/// A mapping to be made.
#[derive(Clone)]
pub struct MapArgs {
    /// Where, or near where; page aligned.
    pub addr: u64,
    /// Bytes; whole pages, not zero.
    pub len: u64,
    /// What accesses may do.
    pub prot: Prot,
    /// The most that they may be allowed later.
    pub max_prot: Prot,
    /// Who sees stores.
    pub sharing: Sharing,
    /// How binding `addr` is.
    pub place: Place,
    /// What it shows.
    pub backing: Backing,
    /// When pages come.
    pub populate: Populate,
    /// Whether each is locked in memory when it comes.
    pub locked: bool,
    /// What `/proc/PID/maps` calls it.
    pub name: Option<Arc<str>>,
}

impl Default for MapArgs {
    fn default() -> Self {
        MapArgs {
            addr: 0,
            len: 0,
            prot: Prot::READ_WRITE,
            max_prot: Prot::all(),
            sharing: Sharing::Private,
            place: Place::Anywhere,
            backing: Backing::Anon,
            populate: Populate::OnTouch,
            locked: false,
            name: None,
        }
    }
}

/// Where a remapped range goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemapPlace {
    /// It stays.
    InPlace,
    /// It may move.
    MayMove,
    /// It moves here.
    Fixed(u64),
}

/// What becomes of the addresses that a mapping moved away from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OldRange {
    /// They are free.
    Unmap,
    /// The mapping stays there, without its private memory.
    Keep,
}

/// madvise's advice, as far as it means something here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// Neighbours on both sides.
    Normal,
    /// No neighbours.
    Random,
    /// Neighbours ahead.
    Sequential,
    /// Bring pages in.
    WillNeed,
    /// Forget private pages.
    DontNeed,
    /// The same, in locked mappings too.
    DontNeedLocked,
    /// Forget private pages when it suits.
    Free,
    /// Punch a hole in the object.
    Remove,
    /// A child gets nothing.
    DontFork,
    /// A child gets what it would by default.
    DoFork,
    /// A child gets zeroes.
    WipeOnFork,
    /// A child gets a copy.
    KeepOnFork,
    /// Fault everything in for reading.
    PopulateRead,
    /// Fault everything in for writing.
    PopulateWrite,
    /// Take pages for unused.
    Cold,
    /// Write pages out and free them.
    PageOut,
    /// Only check the range.
    Hint,
}

/// Who asks for memory and can be refused it while there is some.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asks {
    /// A new process of root's.
    Process,
    /// A new process of another user's.
    OtherProcess,
    /// A file that lives in memory.
    File,
}

/// Sums over mappings, in bytes.
#[derive(Clone, Copy, Default)]
pub struct Sums {
    /// All.
    pub mapped: u64,
    /// Private.
    pub private: u64,
    /// Private and writable: what `RLIMIT_DATA` counts.
    pub data: u64,
    /// Locked in memory.
    pub locked: u64,
}

/// A kind of access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Load.
    Read,
    /// Store.
    Write,
    /// Fetch an instruction.
    Execute,
}

/// A line of `/proc/PID/maps`.
pub struct MapLine<'a> {
    /// First address.
    pub start: u64,
    /// First address behind.
    pub end: u64,
    /// What accesses may do.
    pub prot: Prot,
    /// Who sees stores.
    pub sharing: Sharing,
    /// Bytes from the start of the object.
    pub offset: u64,
    /// The object's id; 0 without one.
    pub object: u64,
    /// What it is called; empty if nothing.
    pub name: &'a str,
    /// Whether it is locked in memory.
    pub locked: bool,
}

/// Memory as `/proc/meminfo` and `/proc/vmstat` show it; counts of pages.
pub struct Stats {
    /// Page frames the VM system manages.
    pub total_pages: u64,
    /// Free ones.
    pub free_pages: u64,
    /// Free pages under which the page daemon runs.
    pub low_water: u64,
    /// Anonymous memory.
    pub anon_pages: u64,
    /// What swap areas have room for.
    pub swap_pages: u64,
    /// What is there.
    pub swap_used: u64,
    /// Page frames of the compressed tier.
    pub tier_frames: u64,
    /// Pages that are in it.
    pub tier_pages: u64,
    /// Event counts with their names.
    pub events: [(&'static str, u64); ::uvm::COUNTERS.len()],
}

/// Declares the trait and, for each of its functions, a function of this module that calls the
/// system built in.
macro_rules! vm_system {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?;)*) => {
        /// What the kernel asks of a VM system.
        pub trait VmSystem {
            $($(#[$doc])* fn $name($($arg: $ty),*) $(-> $ret)?;)*
        }
        $($(#[$doc])* #[inline] pub fn $name($($arg: $ty),*) $(-> $ret)? { System::$name($($arg),*) })*
    };
}

vm_system! {
    /// Takes over the machine's memory; once, before anything else here.
    fn init();
    /// An empty address space.
    fn space_new() -> Result<Arc<Space>>;
    /// A child's address space, by fork's rules.
    fn space_fork(space: &Space) -> Result<Arc<Space>>;
    /// Unmaps everything.
    fn space_clear(space: &Space);
    /// Loads the space's tables on this CPU.
    fn activate(space: &Space);
    /// Leaves user space: loads tables without any.
    fn deactivate();
    /// Makes a mapping and says where.
    fn map(space: &Space, args: &MapArgs) -> Result<u64>;
    /// Removes mappings; holes are fine.
    fn unmap(space: &Space, addr: u64, len: u64) -> Result<()>;
    /// Sets protection: `ENOMEM` for a hole, `EACCES` beyond what the mapping may allow.
    fn protect(space: &Space, addr: u64, len: u64, prot: Prot) -> Result<()>;
    /// Resizes or moves.
    fn remap(space: &Space, old: u64, old_len: u64, new_len: u64, place: RemapPlace, keep: OldRange) -> Result<u64>;
    /// Moves the end of the heap from `old_end` to `new_end`, page aligned. What is new is locked
    /// in memory if `lock` says so.
    fn brk(space: &Space, old_end: u64, new_end: u64, lock: Option<Populate>) -> Result<()>;
    /// Maps a stack of at most `len` bytes that ends at `top`.
    fn stack(space: &Space, top: u64, len: u64, prot: Prot) -> Result<()>;
    /// Takes advice.
    fn advise(space: &Space, addr: u64, len: u64, advice: Advice) -> Result<()>;
    /// Sets 1 for each resident page: `ENOMEM` for a hole.
    fn resident(space: &Space, addr: u64, out: &mut [u8]) -> Result<()>;
    /// Says what a child gets of a range: `ENOMEM` for a hole.
    fn inherit(space: &Space, addr: u64, len: u64, inherit: Inherit) -> Result<()>;
    /// Locks in memory: brings pages in now, or keeps each as it is touched.
    fn lock(space: &Space, addr: u64, len: u64, when: Populate) -> Result<()>;
    /// Takes that back.
    fn unlock(space: &Space, addr: u64, len: u64) -> Result<()>;
    /// Locks every mapping, and brings in what can be had; ends before more than `most` bytes are
    /// locked.
    fn lock_all(space: &Space, when: Populate, most: u64);
    /// Takes that back.
    fn unlock_all(space: &Space) -> Result<()>;
    /// Writes shared mappings back.
    fn sync(space: &Space, addr: u64, len: u64) -> Result<()>;
    /// Lets this CPU look for an address of its space where it has not been before; whether that is
    /// all that a fault of its was about.
    fn admit(space: &Space, va: u64) -> bool;
    /// Resolves a page fault.
    fn fault(space: &Space, va: u64, access: Access) -> core::result::Result<FaultKind, FaultError>;
    /// Sums over the parts of mappings that lie from `start` to `end`.
    fn sums(space: &Space, start: u64, end: u64) -> Sums;
    /// Page tables.
    fn tables(space: &Space) -> u64;
    /// Translations present.
    fn resident_pages(space: &Space) -> u64;
    /// Names shared memory at an address: object and byte.
    fn shared_key(space: &Space, va: u64) -> Option<(u64, u64)>;
    /// The first mapping that reaches behind `from`, and its end; `None` if there is none. With it
    /// one goes through a space in order.
    fn line(space: &Space, from: u64, show: &mut dyn FnMut(&MapLine<'_>)) -> Option<u64>;
    /// What the mappings of a space come to, as the first line of its drawing in the papers. Cost:
    /// by its pages.
    fn dump_sums(space: &Space, out: &mut dyn fmt::Write) -> fmt::Result;
    /// The mapping of `line` as the papers draw it.
    fn dump_line(space: &Space, from: u64, out: &mut dyn fmt::Write) -> core::result::Result<Option<u64>, fmt::Error>;
    /// Swaps on an area from now on; those of higher priority fill first.
    fn swap_on(area: Arc<SwapArea>, priority: i16) -> Result<SwapId>;
    /// Brings home what is on an area, and swaps on it no more: `ENOMEM` if that has no room.
    fn swap_off(id: SwapId) -> Result<()>;
    /// Pages that areas may have beside those in use.
    fn swap_room() -> u64;
    /// The areas in use.
    fn swap_list() -> Vec<SwapUse>;
    /// Counts.
    fn stats() -> Stats;
    /// What pages are used for. Cost: by the machine's memory.
    fn census() -> Census;
    /// The least and the most share of memory that a kind of pages is to have, in percent.
    fn shares(class: Class) -> (u8, u8);
    /// Sets them: `EINVAL` for shares that can't be.
    fn set_shares(class: Class, least: u8, most: u8) -> Result<()>;
    /// The share of memory that compressed pages may have, in percent; 0 if none are kept.
    fn tier() -> u8;
    /// Sets it: `EINVAL` for too much, `ENOMEM` if what is compressed does not fit elsewhere.
    fn set_tier(percent: u8) -> Result<()>;
    /// Whether a fault brings in and maps what lies around its page.
    fn neighbours() -> bool;
    /// Sets that.
    fn set_neighbours(on: bool);
    /// How many mappings a space may have.
    fn most_mappings() -> usize;
    /// Sets that.
    fn set_most_mappings(most: usize);
    /// Sets how many pages are free before the page daemon runs: `EINVAL` for most of memory.
    fn set_low_water(pages: u64) -> Result<()>;
    /// Starts what frees memory before it runs out.
    fn start_daemon() -> Result<()>;
    /// Leaves some memory to others than `who` asks: `ENOMEM` if so little is left that it should
    /// be refused.
    fn leave_memory(who: Asks) -> Result<()>;
    /// Counts where pages are, over the part of the space's mappings from `start` to `end`.
    fn tally(space: &Space, start: u64, end: u64) -> Tally;
}
