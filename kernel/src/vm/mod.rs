//! What the kernel asks of the library, and the only place where it does.
//!
//! Addresses and lengths here are the system calls' own: bytes, checked and page aligned by the
//! caller where the text says so; errors are error numbers. Nothing here may be called with a spin
//! lock held, but for `activate`, `deactivate` and the counters.

mod advice;
mod audit;
pub mod commit;
mod daemon;
mod frame_stats;
mod loan;
mod machine;
mod object;
mod pin;
mod segment;
mod settings;
mod space;
mod stack;
mod swap;
mod system;
mod transfer;

use alloc::string::String;
use alloc::sync::Arc;

pub use self::audit::audit;
pub use self::daemon::{with_room, with_room_at_any_cost};
pub use self::frame_stats::{frame_stats, in_use};
pub use self::loan::{
    give, give_back, give_back_others, give_back_page, loan, loan_again, loan_all_again,
    loan_object, new_page,
};
pub use self::settings::{
    leave_memory, most_mappings, neighbours, set_low_water, set_most_mappings, set_neighbours,
    set_shares, set_zswap, shares, start_daemon, stats, swap_list, swap_off, swap_on, swap_room,
    water_marks, zswap,
};
pub use self::settings::{swap_transfer_ended, SwapTransfer};
pub use self::space::{
    activate, advise, brk, check_mapped, cpus, deactivate, dump_line, dump_sums, fault, inherit,
    is_one_mapping, line, lock, lock_all, map, mapped, mapping_stats, object_stats, page_states,
    protect, range_stats, remap, resident, resident_pages, shared_key, space_clear, space_fork,
    space_new, tables, unlock, unlock_all, unmap, Mapped, Object, Space,
};
pub use self::stack::{grow_stack, stack, stack_above, stack_name};
pub use self::system::{init, Above};
pub use self::transfer::{
    flush, put_back, receive, to_donate, transfer, unmap_donated, worth_remapping, Export, Giving,
};
pub use ::machine::Prot;
pub use ::uvm::page::Class;
pub use ::uvm::Advice as Usage;
pub use ::uvm::{
    FaultError, FaultKind, GetError, Inherit, Loan, LoanedPage, Name, Quota, Sharing, SwapDevice,
    SwapId, Transfer, Vnode,
};
pub use object::{holes_read, object_io, object_io_as, pages_read, pages_written, Dir, Writing};
pub use pin::Pins;
pub use segment::{Locked, Remnant, Segment};

use crate::charge::{self, Charge};
use crate::errno::{Result, ENOMEM};

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
    /// What another mapping shows.
    Mapped(Arc<Mapped>),
}

/// Where a mapping is to lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Place {
    /// Anywhere.
    #[default]
    Anywhere,
    /// At `addr` if that is free.
    Hint,
    /// At `addr`, in place of what is there.
    Fixed,
    /// At `addr` or not at all.
    FixedNoReplace,
    /// Below 2 GiB, at `addr` if that is free.
    Low,
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

/// A mapping's name that a program has chosen, charged to the process that mapped first until the
/// last mapping has gone.
pub struct ChargedName {
    text: String,
    node: (u64, u64),
    _charge: Charge,
}

impl ChargedName {
    /// Of a node, which is on a device.
    ///
    /// # Errors
    /// `ENOMEM`: the process has all that it may.
    pub fn new(text: String, node: (u64, u64)) -> Result<Arc<ChargedName>> {
        let charge = charge::take(size_of::<ChargedName>() + text.len()).map_err(|_| ENOMEM)?;
        Ok(Arc::new(ChargedName { text, node, _charge: charge }))
    }
}

impl Name for ChargedName {
    fn text(&self) -> &str {
        &self.text
    }

    fn node(&self) -> (u64, u64) {
        self.node
    }
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
    /// Whether other mappings see stores.
    pub sharing: Sharing,
    /// How binding `addr` is.
    pub place: Place,
    /// What the mapping shows.
    pub backing: Backing,
    /// When pages come.
    pub populate: Populate,
    /// Whether each is locked in memory when it comes.
    pub locked: bool,
    /// What `/proc/PID/maps` calls it.
    pub name: Option<Arc<dyn Name>>,
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
    /// The range stays.
    InPlace,
    /// The range may move.
    MayMove,
    /// The range moves here.
    Fixed(u64),
}

/// What becomes of the addresses that a mapping moved away from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OldRange {
    /// The addresses are free.
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
    /// Like [`DontNeed`](Self::DontNeed), in locked mappings too.
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

/// What memory is asked for, if that can be refused while there is some.
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
pub struct MappingStats {
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
    /// Whether other mappings see stores.
    pub sharing: Sharing,
    /// Bytes from the start of the object.
    pub offset: u64,
    /// The object's id; 0 without one.
    pub object: u64,
    /// The device and the node that the name is of; zeroes without one.
    pub node: (u64, u64),
    /// The mapping's name; empty if it has none.
    pub name: &'a str,
    /// Whether it is a stack: see [`grow_stack`].
    pub grows_down: bool,
    /// Whether the mapping is locked in memory.
    pub locked: bool,
    /// The most that accesses may be allowed.
    pub max_prot: Prot,
    /// What a child gets.
    pub inherit: Inherit,
    /// How it is used.
    pub usage: Usage,
    /// Whether the object is memory alone, and no file on a disk or device.
    pub is_shared_memory: bool,
}

/// Pages of files and of shared memory, by the mappings that lead to them.
#[derive(Clone, Copy, Default)]
pub struct ObjectStats {
    /// Bytes, each page divided by its mappings.
    pub share: usize,
    /// Pages: those with other mappings and those without, each clean ones and modified ones.
    pub pages: [[usize; 2]; 2],
}

/// Where a page of a space is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageState {
    /// On swap.
    Swapped,
    /// In a frame; `is_alone`: no other space has it.
    Anonymous {
        /// Its number.
        frame: u64,
        /// No other space has the page.
        is_alone: bool,
    },
    /// A page of a file or of shared memory.
    OfObject {
        /// Its number.
        frame: u64,
    },
}

/// Memory as `/proc/meminfo` and `/proc/vmstat` show it; counts of pages.
pub struct Stats {
    /// Page frames the VM system manages.
    pub total_pages: u64,
    /// Free ones.
    pub free_pages: u64,
    /// Free pages under which the page daemon runs.
    pub low_water: u64,
    /// What swap areas have room for.
    pub swap_pages: u64,
    /// What is there.
    pub swap_used: u64,
    /// Page frames of the compressed swap device, which no swap area counts.
    pub zswap_frames: u64,
    /// Pages that are in it.
    pub zswap_pages: u64,
    /// What has gone there, come back and been refused since it was switched on.
    pub zswap_events: [(&'static str, u64); 3],
    /// Event counts with their names.
    pub events: [(&'static str, u64); ::uvm::COUNTERS.len()],
}
