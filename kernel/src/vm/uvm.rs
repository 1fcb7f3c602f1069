//! The adapter to UVM.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use machine::order::Nothing;
use machine::{Class, Held, Machine, Pages, Pmap, Prot, Va, VaRange, PAGE_SIZE};
use uvm::{FaultError, FaultKind, Inherit, MapError, MapRequest, RangeError, Sharing, Tally};

use super::{
    advice, census, daemon, Access, Advice, Asks, Backing, Census, MapArgs, MapLine, OldRange,
    Place, Populate, RemapPlace, Stats, Sums, SwapArea, SwapId, SwapUse, VmSystem,
};
use crate::arch::machine::{unlocked, KernelMachine, KERNEL};
use crate::errno::{Result, EACCES, EEXIST, EFAULT, EINVAL, ENOMEM};
use crate::mem::fault;
use crate::mem::layout::USER_END;
use crate::sync::Once;

pub use super::object::Object;

/// The lowest address that is ever mapped, so that a null pointer with a small offset faults.
const USER_START: u64 = 0x1000;
/// Mappings of a space at most, until a program writes another number: Linux's.
const MAPPINGS: usize = 65530;
/// One of so many pages is left free by a new process of root's, and by one of another user and a
/// file in memory, which leave enough for root's.
const PROCESS_LEAVES: usize = 64;
const FILE_LEAVES: usize = 32;

static SYSTEM: Once<uvm::Uvm<KernelMachine>> = Once::new();

/// The instance. It exists before the first process.
#[inline]
pub(super) fn system() -> &'static uvm::Uvm<KernelMachine> {
    match SYSTEM.get() {
        Some(system) => system,
        None => unreachable!("the VM system is used before vm::init"),
    }
}

/// Runs `call` with the token that says this thread holds no VM lock: true of all code outside
/// `uvm`.
#[inline]
pub(super) fn with<T>(
    call: impl FnOnce(&'static uvm::Uvm<KernelMachine>, &mut Held<'_, Nothing>) -> T,
) -> T {
    let call = || unlocked(|held| call(system(), held));
    if cfg!(debug_assertions) {
        // The library's large pieces can fail, which `uvm-soft` checks.
        return fault::excused(call);
    }
    call()
}

/// One process's address space.
pub struct Space {
    /// Taken out only when dropped.
    inner: Option<uvm::Space<KernelMachine>>,
}

impl Space {
    #[inline]
    pub(super) fn get(&self) -> &uvm::Space<KernelMachine> {
        match &self.inner {
            Some(space) => space,
            None => unreachable!("a space is used while it is dropped"),
        }
    }
}

impl Drop for Space {
    /// The last process has left; no CPU runs in it.
    fn drop(&mut self) {
        if let Some(space) = self.inner.take() {
            with(|uvm, held| uvm.space_destroy(held, space));
        }
    }
}

pub(super) fn map_errno(e: MapError) -> crate::errno::Errno {
    match e {
        MapError::NoSpace | MapError::NoMemory | MapError::TooMany => ENOMEM,
        MapError::Exists => EEXIST,
        MapError::Invalid => EINVAL,
        MapError::NoMapping => EFAULT,
    }
}

pub(super) fn range_errno(e: RangeError) -> crate::errno::Errno {
    match e {
        RangeError::NoMapping | RangeError::NoMemory | RangeError::TooMany | RangeError::Fault => {
            ENOMEM
        }
        RangeError::Access => EACCES,
        RangeError::Invalid => EINVAL,
    }
}

fn range(addr: u64, len: u64) -> VaRange {
    VaRange::new(Va(addr), Va(addr + len))
}

pub(super) fn access_prot(access: Access) -> Prot {
    match access {
        Access::Read => Prot::READ,
        Access::Write => Prot::WRITE,
        Access::Execute => Prot::EXECUTE,
    }
}

/// The caller keeps `args`, and with it its handle on what is to be mapped, until the mapping has
/// its own.
fn request(args: &MapArgs) -> MapRequest<KernelMachine> {
    let backing = match &args.backing {
        Backing::Anon => uvm::Backing::Zero,
        Backing::Object { object, offset } => {
            uvm::Backing::Object { pager: object.pager(), offset: Pages::floor(*offset) }
        }
        Backing::Segment(segment) => {
            uvm::Backing::Object { pager: segment.pager(), offset: Pages(0) }
        }
    };
    let va = Va(args.addr);
    MapRequest {
        place: match args.place {
            Place::Anywhere => uvm::Place::Anywhere,
            Place::Common => uvm::Place::Common,
            Place::Hint => uvm::Place::Hint(va),
            Place::Fixed => uvm::Place::Fixed(va),
            Place::FixedNoReplace => uvm::Place::FixedNoReplace(va),
        },
        len: Pages::floor(args.len),
        prot: args.prot,
        max_prot: args.max_prot,
        sharing: args.sharing,
        inherit: None,
        advice: uvm::Advice::Normal,
        backing,
        wired: args.locked,
        name: args.name.clone(),
    }
}

/// A space's addresses from `from` on; `None` if there are none.
fn behind(space: &Space, from: u64) -> Option<VaRange> {
    let bounds = space.get().bounds();
    (from < bounds.end.0).then(|| VaRange::new(Va(from.max(bounds.start.0)), bounds.end))
}

/// The first entry that reaches behind `from`, with what lies in its layers.
fn described(space: &Space, mut from: u64) -> Option<uvm::EntryInfo> {
    loop {
        let next = with(|uvm, held| uvm.first_in(held, space.get(), behind(space, from)?))?;
        let info = with(|uvm, held| uvm.describe_at(held, space.get(), next.range.start));
        if info.is_some() {
            return info;
        }
        // It has gone meanwhile.
        from = next.range.end.0;
    }
}

/// See [`VmSystem`].
pub struct Uvm;

impl VmSystem for Uvm {
    fn init() {
        match uvm::Uvm::new(KernelMachine) {
            Ok(system) => {
                system.knobs().set_most_entries(MAPPINGS);
                SYSTEM.call_once(|| system);
            }
            Err(e) => panic!("the VM system's tables do not fit: {e}"),
        }
    }

    fn space_new() -> Result<Arc<Space>> {
        let bounds = VaRange::new(Va(USER_START), Va(USER_END));
        let space = with(|uvm, held| uvm.space_create(held, bounds)).map_err(|_| ENOMEM)?;
        Ok(Arc::new(Space { inner: Some(space) }))
    }

    fn space_fork(space: &Space) -> Result<Arc<Space>> {
        let child = with(|uvm, held| uvm.fork(held, space.get())).map_err(|_| ENOMEM)?;
        Ok(Arc::new(Space { inner: Some(child) }))
    }

    fn space_clear(space: &Space) {
        with(|uvm, held| uvm.space_clear(held, space.get()));
    }

    #[inline]
    fn activate(space: &Space) {
        KERNEL.pmap().activate(space.get().pmap());
    }

    fn deactivate() {
        KERNEL.pmap().deactivate();
    }

    fn map(space: &Space, args: &MapArgs) -> Result<u64> {
        let (now, len, prot) = (args.populate, args.len, args.prot);
        let request = request(args);
        let va = with(|uvm, held| uvm.map(held, space.get(), &request)).map_err(map_errno)?;
        if now == Populate::Now {
            // What is shared is there when it has been read; a store would make it dirty.
            let order = match args.sharing {
                Sharing::Shared => [Prot::READ, Prot::EXECUTE, Prot::WRITE],
                Sharing::Private => [Prot::WRITE, Prot::READ, Prot::EXECUTE],
            };
            let access = order.into_iter().find(|&access| prot.contains(access));
            // As in mmap(2), a page that can't be had now is had when it is touched.
            let _ = access.map(|access| advice::fault_in(space, range(va.0, len), access));
        }
        Ok(va.0)
    }

    fn unmap(space: &Space, addr: u64, len: u64) -> Result<()> {
        with(|uvm, held| uvm.unmap(held, space.get(), range(addr, len))).map_err(range_errno)
    }

    fn protect(space: &Space, addr: u64, len: u64, prot: Prot) -> Result<()> {
        with(|uvm, held| uvm.protect(held, space.get(), range(addr, len), prot))
            .map_err(range_errno)
    }

    fn remap(
        space: &Space,
        old: u64,
        old_len: u64,
        new_len: u64,
        place: RemapPlace,
        keep: OldRange,
    ) -> Result<u64> {
        let old_range = range(old, old_len);
        if keep == OldRange::Keep {
            let to = match place {
                RemapPlace::Fixed(va) => Some(Va(va)),
                RemapPlace::InPlace | RemapPlace::MayMove => None,
            };
            let new = with(|uvm, held| uvm.remap_and_keep(held, space.get(), old_range, to));
            return new.map(|va| va.0).map_err(map_errno);
        }
        let place = match place {
            RemapPlace::InPlace => uvm::RemapPlace::Stay,
            RemapPlace::MayMove => uvm::RemapPlace::MayMove,
            RemapPlace::Fixed(va) => uvm::RemapPlace::Fixed(Va(va)),
        };
        let new =
            with(|uvm, held| uvm.remap(held, space.get(), old_range, Pages::floor(new_len), place));
        new.map(|va| va.0).map_err(map_errno)
    }

    fn brk(space: &Space, old_end: u64, new_end: u64, lock: Option<Populate>) -> Result<()> {
        if new_end <= old_end {
            return Self::unmap(space, new_end, old_end - new_end);
        }
        let args = MapArgs {
            addr: old_end,
            len: new_end - old_end,
            place: Place::FixedNoReplace,
            populate: lock.unwrap_or_default(),
            locked: lock.is_some(),
            name: Some("[heap]".into()),
            ..MapArgs::default()
        };
        Self::map(space, &args).map(|_| ())
    }

    fn stack(space: &Space, top: u64, len: u64, prot: Prot) -> Result<()> {
        let args = MapArgs {
            addr: top - len,
            len,
            prot,
            place: Place::FixedNoReplace,
            name: Some("[stack]".into()),
            ..MapArgs::default()
        };
        Self::map(space, &args).map(|_| ())
    }

    fn advise(space: &Space, addr: u64, len: u64, advice: Advice) -> Result<()> {
        advice::advise(space, range(addr, len), advice)
    }

    fn inherit(space: &Space, addr: u64, len: u64, inherit: Inherit) -> Result<()> {
        advice::inherit(space, range(addr, len), inherit)
    }

    fn resident(space: &Space, addr: u64, out: &mut [u8]) -> Result<()> {
        out.fill(0);
        let range = range(addr, Pages(out.len() as u64).bytes());
        let covered =
            with(|uvm, held| uvm.resident(held, space.get(), range, |n| out[n.0 as usize] = 1));
        if covered {
            Ok(())
        } else {
            Err(ENOMEM)
        }
    }

    fn lock(space: &Space, addr: u64, len: u64, when: Populate) -> Result<()> {
        advice::lock(space, range(addr, len), when)
    }

    fn unlock(space: &Space, addr: u64, len: u64) -> Result<()> {
        /// Pages that are unlocked at once.
        const STEP: Pages = Pages(512);
        let mut rest = range(addr, len);
        if !with(|uvm, held| uvm.is_mapped(held, space.get(), rest)) {
            return Err(ENOMEM);
        }
        let unwire = |range| with(|uvm, held| uvm.unwire(held, space.get(), range));
        while rest.pages() > STEP {
            let first = VaRange::new(rest.start, rest.start + STEP);
            // Without room for what is cut for a moment, all goes at once.
            if unwire(first).is_err() {
                break;
            }
            rest.start = first.end;
            crate::sched::give_way();
        }
        unwire(rest).map_err(range_errno)
    }

    fn lock_all(space: &Space, when: Populate, most: u64) {
        advice::lock_all(space, when, most);
    }

    fn unlock_all(space: &Space) -> Result<()> {
        let range = space.get().bounds();
        advice::each_part(space, range, |part| {
            Self::unlock(space, part.range.start.0, part.range.pages().bytes())
        })
        .map(|_| ())
    }

    /// Every object here lives in memory, so there is nothing to write.
    fn sync(space: &Space, addr: u64, len: u64) -> Result<()> {
        let covered = with(|uvm, held| uvm.is_mapped(held, space.get(), range(addr, len)));
        if covered {
            Ok(())
        } else {
            Err(ENOMEM)
        }
    }

    #[inline]
    fn admit(space: &Space, va: u64) -> bool {
        let (pmap, space) = (KERNEL.pmap(), space.get().pmap());
        pmap.lacks(space, Va(va)) && with(|_, held| pmap.admit(held, space, Va(va)))
    }

    #[inline]
    fn fault(
        space: &Space,
        va: u64,
        access: Access,
    ) -> core::result::Result<FaultKind, FaultError> {
        with(|uvm, held| uvm.fault(held, space.get(), Va(va), access_prot(access)))
    }

    fn sums(space: &Space, start: u64, end: u64) -> Sums {
        advice::sums(space, start, end)
    }

    fn tables(space: &Space) -> u64 {
        space.get().pmap().tables() as u64
    }

    fn resident_pages(space: &Space) -> u64 {
        KERNEL.pmap().resident(space.get().pmap()) as u64
    }

    fn shared_key(space: &Space, va: u64) -> Option<(u64, u64)> {
        let here = range(va & !(PAGE_SIZE as u64 - 1), PAGE_SIZE as u64);
        let entry = with(|uvm, held| uvm.first_in(held, space.get(), here))?;
        let (id, first) = entry.object?;
        let offset = first.bytes() + (va - entry.range.start.0);
        (entry.sharing == Sharing::Shared).then_some((id, offset))
    }

    fn line(space: &Space, from: u64, show: &mut dyn FnMut(&MapLine<'_>)) -> Option<u64> {
        let (e, name) =
            with(|uvm, held| uvm.first_named_in(held, space.get(), behind(space, from)?))?;
        show(&line(&e, name.as_deref().unwrap_or("")));
        Some(e.range.end.0)
    }

    fn dump_sums(space: &Space, out: &mut dyn fmt::Write) -> fmt::Result {
        let (mut entries, mut anons, mut at) = (0, 0, 0);
        while let Some(e) = described(space, at) {
            entries += 1;
            anons += e.layers.amap.map_or(0, |(_, anons, _)| anons);
            at = e.range.end.0;
            crate::sched::give_way();
        }
        let (tally, tables) = (Self::tally(space, 0, USER_END), Self::tables(space));
        let (swapped, heap, resident) = (tally.swapped, tally.heap, Self::resident_pages(space));
        write!(
            out,
            "map: {entries} entries, {anons} anons, {swapped} on swap, {resident} translations, "
        )?;
        writeln!(out, "{tables} tables, {heap} bytes of heap")
    }

    fn dump_line(
        space: &Space,
        from: u64,
        out: &mut dyn fmt::Write,
    ) -> core::result::Result<Option<u64>, fmt::Error> {
        let Some(e) = described(space, from) else { return Ok(None) };
        write!(out, "{e}")?;
        match Self::tally(space, e.range.start.0, e.range.end.0).swapped {
            0 => writeln!(out)?,
            swapped => writeln!(out, " | {swapped} on swap")?,
        }
        Ok(Some(e.range.end.0))
    }

    fn swap_on(area: Arc<SwapArea>, priority: i16) -> Result<SwapId> {
        with(|uvm, held| uvm.swap_on(held, area, priority)).map_err(super::swap::errno)
    }

    fn swap_off(id: SwapId) -> Result<()> {
        with(|uvm, held| uvm.swap_off(held, id)).map_err(super::swap::errno)
    }

    fn swap_room() -> u64 {
        system().swap_room()
    }

    fn swap_list() -> Vec<SwapUse> {
        let areas = with(|uvm, held| uvm.swap_info(held));
        areas.iter().map(|area| SwapUse { id: area.id, used: u64::from(area.used) }).collect()
    }

    fn stats() -> Stats {
        let uvm = system();
        let frames = uvm.frames();
        let tier = with(|uvm, held| uvm.tier_info(held));
        Stats {
            total_pages: frames.total() as u64,
            free_pages: frames.free() as u64,
            low_water: frames.low_water() as u64,
            anon_pages: uvm.anons() as u64,
            swap_pages: u64::from(uvm.swap_space().0),
            swap_used: u64::from(uvm.swap_space().1),
            tier_frames: u64::from(tier.frames),
            tier_pages: u64::from(tier.pages),
            events: uvm::COUNTERS.map(|(counter, name)| (name, uvm.stat().get(counter))),
        }
    }

    fn census() -> Census {
        census::count()
    }

    fn shares(class: Class) -> (u8, u8) {
        system().knobs().shares(class)
    }

    fn set_shares(class: Class, least: u8, most: u8) -> Result<()> {
        system().knobs().set_shares(class, least, most).map_err(|_| EINVAL)
    }

    fn tier() -> u8 {
        with(|uvm, held| uvm.tier_info(held)).percent
    }

    fn set_tier(percent: u8) -> Result<()> {
        if percent > uvm::MOST_TIER {
            return Err(EINVAL);
        }
        with(|uvm, held| uvm.set_tier(held, percent)).map_err(super::swap::errno)
    }

    fn neighbours() -> bool {
        system().knobs().neighbours()
    }

    fn set_neighbours(on: bool) {
        system().knobs().set_neighbours(on);
    }

    fn most_mappings() -> usize {
        system().knobs().most_entries()
    }

    fn set_most_mappings(most: usize) {
        system().knobs().set_most_entries(most);
    }

    fn set_low_water(pages: u64) -> Result<()> {
        let frames = system().frames();
        if pages > frames.total() as u64 / 4 {
            return Err(EINVAL);
        }
        let low = pages as usize;
        let high = low + (frames.high_water() - frames.low_water());
        frames.set_water_marks(low, high);
        Ok(())
    }

    fn start_daemon() -> Result<()> {
        daemon::start()
    }

    fn leave_memory(who: Asks) -> Result<()> {
        let fraction = match who {
            Asks::Process => PROCESS_LEAVES,
            Asks::OtherProcess | Asks::File => FILE_LEAVES,
        };
        Ok(daemon::keep_free(fraction)?)
    }

    fn tally(space: &Space, start: u64, end: u64) -> Tally {
        let range = VaRange::new(Va(start), Va(end));
        with(|uvm, held| uvm.tally(held, space.get(), range))
    }
}

fn line<'a>(e: &uvm::Outline, name: &'a str) -> MapLine<'a> {
    MapLine {
        start: e.range.start.0,
        end: e.range.end.0,
        prot: e.prot,
        sharing: e.sharing,
        offset: e.object.map_or(0, |(_, first)| first.bytes()),
        object: e.object.map_or(0, |(id, _)| id),
        name,
        locked: e.wired,
    }
}
