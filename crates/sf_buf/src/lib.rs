//! Ephemeral mappings: kernel addresses at which a page is seen for a moment.
//!
//! A kernel that has no address for every page (its address space is too small, or it wants no
//! stray read to reach what programs have) maps a page when it copies its bytes. What that costs is
//! TLB invalidations, and those of other CPUs cost most. This crate has the interface of the sf_buf
//! paper and four ways to do it, of which the kernel picks one at start-up:
//!
//! ```text
//!   direct    every page has an address for good: nothing to do
//!   cache     a hash of mappings by page; those without a user stay valid, in the order of their
//!             last use, until their slot is needed: a page that comes back costs nothing
//!   private   slots of this CPU alone: no lock, no other CPU is ever told; gone when closed
//!   original  a slot taken, mapped, unmapped and forgotten by all CPUs, each time
//! ```
//! Pages are named by their physical address. Slots are pages of kernel address space.
//! [`KernelMap`] is what the kernel supplies: one entry of a page table for each slot, and
//! invalidations of one address.
//!
//! I1: while an [`SfBuf`] lasts, its slot's entry shows its page; and no CPU that may use it (the
//! one that opened it, or any if it was opened with [`Reach::AnyCpu`]) has another translation of
//! the slot. I2: a CPU that is not in a slot's set may have a translation of an earlier page of the
//! slot. I3: a slot is on the inactive list if and only if it has no user. Checked by
//! [`SfBufs::audit`].
//!
//! Source: Elmeleegy, Chanda, Cox, Zwaenepoel, "A Portable Kernel Abstraction for Low-Overhead
//! Ephemeral Mapping Management", section 4. Two things differ. An old entry whose accessed bit is
//! clear leaves the slot's set of CPUs as it is, where section 4.2 makes it all CPUs: a CPU outside
//! of the set may still have the translation from before that entry (I2; the test
//! `a_set_that_grows_by_a_clear_bit_is_wrong`). And the private slots have no counterpart there.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod cache;
mod counts;
mod original;
mod private;

use machine::order::{RawLock, Unlocked};
use machine::{CpuSet, NoMemory, Pa};

pub use counts::Counts;
pub use private::DEPTH;

use cache::Cache;
use original::Original;
use private::Private;

/// What a kernel supplies: one page of its address space for each slot.
///
/// ```
/// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
/// # use host::*;
/// let map = Tables::new(8);
/// assert!(!map.set(3, Some(Pa(7))), "the entry before was not used");
/// ```
pub trait KernelMap {
    /// The CPU that calls. It stays there while a window of [`Reach::ThisCpu`] is open.
    fn cpu(&self) -> usize;

    /// The CPUs that run. One that comes later forgets all translations first, after it is named.
    fn cpus(&self) -> CpuSet;

    /// Has the slot's entry show a page, or nothing, with a clear accessed bit, in one step. Says
    /// whether the entry before was present and had been used; a machine without accessed bits says
    /// whether it was present.
    fn set(&self, slot: u32, page: Option<Pa>) -> bool;

    /// Has an empty slot of this CPU's own show a page.
    #[inline]
    fn show_own(&self, slot: u32, page: Pa) {
        self.set(slot, Some(page));
    }

    /// Has a slot of this CPU's own show nothing, and this CPU forget it. Says whether there was
    /// anything to forget, or may have been.
    #[inline]
    fn hide_own(&self, slot: u32) -> bool {
        let was_used = self.set(slot, None);
        if was_used {
            self.invalidate(slot);
        }
        was_used
    }

    /// This CPU forgets its translation of the slot.
    fn invalidate(&self, slot: u32);

    /// Those CPUs, of which this isn't one, forget theirs; returns when they have. Called with the
    /// lock of the cache held: a CPU that waits for a lock must answer.
    fn invalidate_on(&self, slot: u32, cpus: CpuSet);

    /// A count of wake-ups, for [`wait`](KernelMap::wait).
    fn ticket(&self) -> u64;

    /// Sleeps until there was a wake-up since the ticket was read, or for less.
    ///
    /// # Errors
    /// [`Interrupted`] by a signal, if `interruptible`.
    fn wait(
        &self,
        held: &mut Unlocked<'_>,
        ticket: u64,
        interruptible: bool,
    ) -> Result<(), Interrupted>;

    /// Wakes a sleeper, or more.
    fn wake(&self);
}

/// A sleep was ended by a signal.
///
/// ```
/// assert_eq!(sf_buf::Interrupted.to_string(), "interrupted by a signal");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interrupted;

impl core::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("interrupted by a signal")
    }
}

impl core::error::Error for Interrupted {}

/// Which CPUs are going to use a mapping: the paper's flag "private", or not.
///
/// ```
/// use sf_buf::Reach;
/// assert_ne!(Reach::ThisCpu, Reach::AnyCpu);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// The one that opens it, without sleeping meanwhile.
    ThisCpu,
    /// Any.
    AnyCpu,
}

/// How mappings are made.
///
/// ```
/// use sf_buf::Kind;
/// assert_eq!(Kind::parse("cache"), Some(Kind::Cache));
/// assert_eq!(Kind::parse("none"), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Every page has an address for good.
    Direct,
    /// Mappings are kept until their slot is needed.
    Cache,
    /// Slots of each CPU's own; mappings for any CPU are cached.
    Private,
    /// Mappings are made and forgotten by all CPUs each time.
    Original,
}

impl Kind {
    /// All, with their names.
    pub const ALL: [(&'static str, Kind); 4] = [
        ("direct", Kind::Direct),
        ("cache", Kind::Cache),
        ("private", Kind::Private),
        ("original", Kind::Original),
    ];

    /// The one of that name.
    ///
    /// ```
    /// assert_eq!(sf_buf::Kind::parse("direct"), Some(sf_buf::Kind::Direct));
    /// ```
    #[must_use]
    pub fn parse(name: &str) -> Option<Kind> {
        Kind::ALL.iter().find(|(known, _)| *known == name).map(|&(_, kind)| kind)
    }
}

/// Where an open mapping is.
///
/// ```
/// use sf_buf::Place;
/// assert_ne!(Place::Direct, Place::Slot(0));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// At the address that the page always has.
    Direct,
    /// In that slot.
    Slot(u32),
}

/// The ephemeral mappings of a kernel.
///
/// ```
/// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
/// # use host::*;
/// let bufs = SfBufs::<Lock>::new(Kind::Cache, 2, 16)?;
/// let map = Tables::new(bufs.slots());
/// let buf = bufs.open(&map, Pa(7), Reach::AnyCpu).expect("16 slots, one in use");
/// assert_eq!((buf.page(), map.seen(buf.place())), (Pa(7), Some(Pa(7))));
/// drop(buf);
/// bufs.audit();
/// # Ok::<(), machine::NoMemory>(())
/// ```
pub struct SfBufs<R> {
    kind: Kind,
    private: Private,
    cache: Cache<R>,
    original: Original<R>,
}

/// An open mapping of one page, which ends when dropped.
///
/// ```
/// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
/// # use host::*;
/// let bufs = SfBufs::<Lock>::new(Kind::Private, 2, 0)?;
/// let map = Tables::new(bufs.slots());
/// let place = bufs.open_here(&map, Pa(7)).place();
/// assert_eq!(map.seen(place), None, "its window is closed");
/// # Ok::<(), machine::NoMemory>(())
/// ```
#[must_use = "a mapping ends when dropped"]
pub struct SfBuf<'a, R: RawLock, K: KernelMap> {
    bufs: &'a SfBufs<R>,
    map: &'a K,
    page: Pa,
    slot: u32,
}

/// In place of a slot: the page is seen where it always is.
const DIRECT: u32 = u32::MAX;

/// A mapping that its owner [ends](SfBufs::end) by hand, once and on the CPU that took it.
///
/// ```
/// use sf_buf::{Place, Slot};
/// assert_eq!(Slot::DIRECT.place(), Place::Direct);
/// ```
#[must_use = "a mapping that isn't ended keeps its slot"]
#[derive(Debug)]
pub struct Slot(u32);

impl Slot {
    /// No slot, of a page that is seen where it always is: it need not be ended.
    pub const DIRECT: Slot = Slot(DIRECT);

    /// Where the page is seen.
    ///
    /// ```
    /// # use sf_buf::*;
    /// assert_eq!(Slot::DIRECT.place(), Place::Direct);
    /// ```
    #[inline]
    pub fn place(&self) -> Place {
        match self.0 {
            DIRECT => Place::Direct,
            slot => Place::Slot(slot),
        }
    }
}

impl<R: RawLock> SfBufs<R> {
    /// Mappings of a kind, for CPUs of numbers below `cpus`; `shared` of them may be open or kept
    /// at a time beside those of each CPU.
    ///
    /// # Errors
    /// [`NoMemory`].
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// assert_eq!(SfBufs::<Lock>::new(Kind::Direct, 64, 1000)?.slots(), 0);
    /// # Ok::<(), machine::NoMemory>(())
    /// ```
    pub fn new(kind: Kind, cpus: usize, shared: u32) -> Result<SfBufs<R>, NoMemory> {
        let of = |here: &[Kind]| if here.contains(&kind) { shared } else { 0 };
        let private = Private::new(if kind == Kind::Direct { 0 } else { cpus })?;
        let first = private.slots();
        Ok(SfBufs {
            kind,
            private,
            cache: Cache::new(first, of(&[Kind::Cache, Kind::Private]))?,
            original: Original::new(first, of(&[Kind::Original]))?,
        })
    }

    /// The kind.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// assert_eq!(SfBufs::<Lock>::new(Kind::Direct, 1, 0)?.kind(), Kind::Direct);
    /// # Ok::<(), machine::NoMemory>(())
    /// ```
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Slots that [`KernelMap::set`] is called with: numbers below this.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// let bufs = SfBufs::<Lock>::new(Kind::Cache, 2, 16)?;
    /// assert_eq!(bufs.slots(), 16 + 2 * sf_buf::DEPTH);
    /// # Ok::<(), machine::NoMemory>(())
    /// ```
    pub fn slots(&self) -> u32 {
        self.private.slots() + self.cache.slots() + self.original.slots()
    }

    /// A mapping without waiting for one: the paper's flag "no wait". `None` if all are in use.
    ///
    /// Cost: O(1) expected; of a cached page nothing is invalidated, of another one at most one
    /// address, on other CPUs only for [`Reach::AnyCpu`].
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// let bufs = SfBufs::<Lock>::new(Kind::Cache, 1, 1)?;
    /// let map = Tables::new(bufs.slots());
    /// let one = bufs.open(&map, Pa(7), Reach::AnyCpu);
    /// assert!(bufs.open(&map, Pa(8), Reach::AnyCpu).is_none());
    /// assert!(bufs.open(&map, Pa(7), Reach::AnyCpu).is_some(), "it is shared");
    /// # drop(one);
    /// # Ok::<(), machine::NoMemory>(())
    /// ```
    #[inline]
    pub fn open<'a, K: KernelMap>(
        &'a self,
        map: &'a K,
        page: Pa,
        reach: Reach,
    ) -> Option<SfBuf<'a, R, K>> {
        let slot = match (self.kind, reach) {
            (Kind::Direct, _) => DIRECT,
            (Kind::Private, Reach::ThisCpu) => self.private.open(map, page)?,
            (Kind::Private | Kind::Cache, _) => self.cache.open(map, page, reach)?,
            (Kind::Original, _) => self.original.open(map, page)?,
        };
        Some(SfBuf { bufs: self, map, page, slot })
    }

    /// A mapping for this CPU, for a caller that can neither wait nor be refused: where all shared
    /// ones are in use it is one of the CPU's own.
    ///
    /// # Panics
    /// If this CPU has [`DEPTH`] open.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// let bufs = SfBufs::<Lock>::new(Kind::Cache, 1, 0)?;
    /// let map = Tables::new(bufs.slots());
    /// assert_eq!(bufs.open_here(&map, Pa(7)).page(), Pa(7));
    /// # Ok::<(), machine::NoMemory>(())
    /// ```
    #[inline]
    pub fn open_here<'a, K: KernelMap>(&'a self, map: &'a K, page: Pa) -> SfBuf<'a, R, K> {
        SfBuf { bufs: self, map, page, slot: self.take(map, page).0 }
    }

    /// As [`open_here`](SfBufs::open_here), for a guard of the host's own, which may be smaller
    /// than [`SfBuf`].
    ///
    /// # Panics
    /// As [`open_here`](SfBufs::open_here).
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// let bufs = SfBufs::<Lock>::new(Kind::Private, 1, 0)?;
    /// let map = Tables::new(bufs.slots());
    /// let slot = bufs.take(&map, Pa(0x7000));
    /// assert_eq!(map.seen(slot.place()), Some(Pa(0x7000)));
    /// bufs.end(&map, slot);
    /// # Ok::<(), machine::NoMemory>(())
    /// ```
    #[inline]
    pub fn take<K: KernelMap>(&self, map: &K, page: Pa) -> Slot {
        if self.kind == Kind::Private {
            if let Some(slot) = self.private.open(map, page) {
                return Slot(slot);
            }
        }
        self.take_otherwise(map, page)
    }

    /// Out of line: the private way is a few instructions, and should stay so.
    #[inline(never)]
    fn take_otherwise<K: KernelMap>(&self, map: &K, page: Pa) -> Slot {
        let slot = match self.kind {
            Kind::Direct => return Slot::DIRECT,
            Kind::Private => None,
            Kind::Cache => self.cache.open(map, page, Reach::ThisCpu),
            Kind::Original => self.original.open(map, page),
        };
        match slot.or_else(|| self.private.open(map, page)) {
            Some(slot) => Slot(slot),
            None => panic!("{DEPTH} ephemeral mappings are open on one CPU"),
        }
    }

    /// Ends a mapping.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// let bufs = SfBufs::<Lock>::new(Kind::Direct, 1, 0)?;
    /// let map = Tables::new(bufs.slots());
    /// bufs.end(&map, bufs.take(&map, Pa(0x7000)));
    /// # Ok::<(), machine::NoMemory>(())
    /// ```
    #[inline]
    pub fn end<K: KernelMap>(&self, map: &K, slot: Slot) {
        self.end_slot(map, slot.0);
    }

    #[inline]
    fn end_slot<K: KernelMap>(&self, map: &K, slot: u32) {
        if slot < self.private.slots() {
            self.private.close(map, slot);
        } else if slot != DIRECT {
            self.end_shared(map, slot);
        }
    }

    #[inline(never)]
    fn end_shared<K: KernelMap>(&self, map: &K, slot: u32) {
        match self.kind {
            Kind::Original => self.original.close(map, slot),
            _ => self.cache.close(map, slot),
        }
    }

    /// A mapping, which is waited for if all are in use: the paper's flag "interruptible", or not.
    /// A private one isn't waited for: this CPU has them all, and its other code can't run.
    ///
    /// # Errors
    /// [`Interrupted`], if `interruptible`.
    ///
    /// # Panics
    /// As [`open_here`](SfBufs::open_here), of private ones.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// let bufs = SfBufs::<Lock>::new(Kind::Cache, 1, 1)?;
    /// let map = Tables::new(bufs.slots());
    /// let mut thread = machine::ThreadCtx::new();
    /// let buf = bufs.open_waiting(&map, &mut thread.held(), Pa(7), Reach::AnyCpu, true)?;
    /// # drop(buf);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open_waiting<'a, K: KernelMap>(
        &'a self,
        map: &'a K,
        held: &mut Unlocked<'_>,
        page: Pa,
        reach: Reach,
        interruptible: bool,
    ) -> Result<SfBuf<'a, R, K>, Interrupted> {
        if (self.kind, reach) == (Kind::Private, Reach::ThisCpu) {
            return Ok(self.open_here(map, page));
        }
        loop {
            // Before the look: a wake-up between the two isn't lost.
            let ticket = map.ticket();
            if let Some(buf) = self.open(map, page, reach) {
                return Ok(buf);
            }
            map.wait(held, ticket, interruptible)?;
        }
    }

    /// What has happened so far, on all CPUs.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// let bufs = SfBufs::<Lock>::new(Kind::Private, 1, 0)?;
    /// let map = Tables::new(bufs.slots());
    /// drop(bufs.open_here(&map, Pa(7)));
    /// assert_eq!(bufs.counts().opened, 1);
    /// # Ok::<(), machine::NoMemory>(())
    /// ```
    pub fn counts(&self) -> Counts {
        self.private.counts().plus(self.cache.counts()).plus(self.original.counts())
    }

    /// Checks the lists and the hash against each other; panics if they don't fit. For tests, at a
    /// moment when no other thread opens or closes a mapping.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// SfBufs::<Lock>::new(Kind::Cache, 1, 4)?.audit();
    /// # Ok::<(), machine::NoMemory>(())
    /// ```
    pub fn audit(&self) {
        self.cache.audit();
    }
}

impl<R: RawLock, K: KernelMap> SfBuf<'_, R, K> {
    /// The page.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// let bufs = SfBufs::<Lock>::new(Kind::Direct, 1, 0)?;
    /// assert_eq!(bufs.open_here(&Tables::new(0), Pa(7)).page(), Pa(7));
    /// # Ok::<(), machine::NoMemory>(())
    /// ```
    #[inline]
    pub fn page(&self) -> Pa {
        self.page
    }

    /// Where the page is seen, for as long as this lasts.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// let bufs = SfBufs::<Lock>::new(Kind::Direct, 1, 0)?;
    /// assert_eq!(bufs.open_here(&Tables::new(0), Pa(7)).place(), Place::Direct);
    /// # Ok::<(), machine::NoMemory>(())
    /// ```
    #[inline]
    pub fn place(&self) -> Place {
        Slot(self.slot).place()
    }
}

impl<R: RawLock, K: KernelMap> Drop for SfBuf<'_, R, K> {
    #[inline]
    fn drop(&mut self) {
        self.bufs.end_slot(self.map, self.slot);
    }
}

/// The example of the crate's README, tested.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
