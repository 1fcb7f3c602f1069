//! Address spaces: system calls' numbers in, the library's types out.

use alloc::sync::Arc;
use core::fmt;
use core::sync::atomic::AtomicU64;

use machine::{CpuSet, Machine, PageRange, Pages, Pmap, Prot, Va, PAGE_SIZE};
use uvm::{
    FaultError, FaultKind, Inherit, MapError, MapRequest, Pager, RangeError, RangeStats, Sharing,
};

pub use super::object::Object;
use super::system::with;
use super::{
    advice, commit, stack, Access, Advice, Backing, MapArgs, MapLine, MappingStats, ObjectStats,
    OldRange, PageState, Place, Populate, RemapPlace,
};
use crate::arch::layout::USER_END;
use crate::arch::pmap;
use crate::errno::{Result, EACCES, EEXIST, EFAULT, EINVAL, ENOMEM, EPERM};
use crate::mem::frames::{KernelMachine, KERNEL};

/// Where `MAP_32BIT` maps, as on Linux.
const LOW: PageRange = match PageRange::new(Va(1 << 30), Va(1 << 31)) {
    Some(range) => range,
    None => panic!("the range is of whole pages"),
};

/// The lowest address that is ever mapped, so that a null pointer with a small offset faults.
const USER_START: u64 = 0x1000;

const PAGE: u64 = PAGE_SIZE as u64;

/// One process's address space.
pub struct Space {
    /// Taken out only when dropped.
    inner: Option<uvm::Space<KernelMachine>>,
    /// Pages that it is counted with among what is promised: see `commit`.
    promised: AtomicU64,
}

impl Space {
    #[inline]
    pub(super) fn get(&self) -> &uvm::Space<KernelMachine> {
        match &self.inner {
            Some(space) => space,
            None => unreachable!("a space is used while it is dropped"),
        }
    }

    fn new(inner: uvm::Space<KernelMachine>) -> Arc<Space> {
        Arc::new(Space { inner: Some(inner), promised: AtomicU64::new(0) })
    }

    pub(super) fn promised(&self) -> &AtomicU64 {
        &self.promised
    }
}

impl Drop for Space {
    /// The last process has left; no CPU runs in it.
    fn drop(&mut self) {
        commit::leave(self);
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
    }
}

/// The range that a call names: `EINVAL` if it isn't one of whole pages.
pub(super) fn range(addr: u64, len: u64) -> Result<PageRange> {
    let end = addr.checked_add(len).ok_or(EINVAL)?;
    PageRange::new(Va(addr), Va(end)).ok_or(EINVAL)
}

/// `pages` pages from `addr` on: `EINVAL` if that isn't page aligned.
pub(super) fn pages_from(addr: u64, pages: u64) -> Result<PageRange> {
    PageRange::sized(Va(addr), Pages(pages)).ok_or(EINVAL)
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
        Backing::Mapped(mapped) => {
            uvm::Backing::Object { pager: mapped.pager.clone(), offset: mapped.offset }
        }
    };
    let va = Va(args.addr);
    MapRequest {
        place: match args.place {
            Place::Anywhere => uvm::Place::Anywhere,
            Place::Hint => uvm::Place::Hint(va),
            Place::Fixed => uvm::Place::Fixed(va),
            Place::FixedNoReplace => uvm::Place::FixedNoReplace(va),
            Place::Low => uvm::Place::Within(LOW),
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
fn behind(space: &Space, from: u64) -> Option<PageRange> {
    let rest = space.get().bounds().skip_to(Va(from));
    (!rest.is_empty()).then_some(rest)
}

/// The first entry that reaches behind `from`, with what lies in its layers.
fn described(space: &Space, mut from: u64) -> Option<uvm::EntryInfo> {
    loop {
        let (next, _) = with(|uvm, held| uvm.first_in(held, space.get(), behind(space, from)?))?;
        let info = with(|uvm, held| uvm.entry_at(held, space.get(), next.range.start));
        if info.is_some() {
            return info;
        }
        // The entry has gone meanwhile.
        from = next.range.end.0;
    }
}

/// An empty address space.
pub fn space_new() -> Result<Arc<Space>> {
    let bounds = range(USER_START, USER_END - USER_START)?;
    let space = with(|uvm, held| uvm.space_create(held, bounds)).map_err(|_| ENOMEM)?;
    Ok(Space::new(space))
}

/// A child's address space, by fork's rules.
pub fn space_fork(space: &Space) -> Result<Arc<Space>> {
    let child = with(|uvm, held| uvm.fork(held, space.get())).map_err(|_| ENOMEM)?;
    Ok(Space::new(child))
}

/// Unmaps everything.
pub fn space_clear(space: &Space) {
    with(|uvm, held| uvm.space_clear(held, space.get()));
    commit::leave(space);
}

/// Loads the space's tables on this CPU.
#[inline]
pub fn activate(space: &Space) {
    KERNEL.pmap().activate(space.get().pmap());
}

/// Leaves user space: loads tables without any.
pub fn deactivate() {
    KERNEL.pmap().deactivate();
}

/// Makes a mapping and says where.
pub fn map(space: &Space, args: &MapArgs) -> Result<u64> {
    let (now, len, prot) = (args.populate, args.len, args.prot);
    let try_map = |request: &MapRequest<_>| with(|uvm, held| uvm.map(held, space.get(), request));
    let end = args.addr.saturating_add(args.len);
    let at_hint = (args.place == Place::Low && end <= LOW.end.0).then(|| {
        let place = uvm::Place::FixedNoReplace(Va(args.addr));
        try_map(&MapRequest { place, ..request(args) })
    });
    let va = match at_hint {
        Some(Ok(va)) => va,
        Some(Err(_)) | None => try_map(&request(args)).map_err(map_errno)?,
    };
    if now == Populate::Now {
        // What is shared is there when it has been read; a store would make it dirty.
        let order = match args.sharing {
            Sharing::Shared => [Prot::READ, Prot::EXECUTE, Prot::WRITE],
            Sharing::Private => [Prot::WRITE, Prot::READ, Prot::EXECUTE],
        };
        let access = order.into_iter().find(|&access| prot.contains(access));
        // As in mmap(2), a page that can't be had now is had when it is touched.
        if let (Some(access), Ok(range)) = (access, range(va.0, len)) {
            let _ = advice::fault_in(space, range, access);
        }
    }
    Ok(va.0)
}

/// Removes mappings; holes are fine.
pub fn unmap(space: &Space, addr: u64, len: u64) -> Result<()> {
    let range = range(addr, len)?;
    with(|uvm, held| uvm.unmap(held, space.get(), range)).map_err(range_errno)
}

/// Sets protection: `ENOMEM` for a hole, `EACCES` beyond what the mapping may allow.
pub fn protect(space: &Space, addr: u64, len: u64, prot: Prot) -> Result<()> {
    let range = range(addr, len)?;
    with(|uvm, held| uvm.protect(held, space.get(), range, prot)).map_err(range_errno)
}

/// An object's pages, from one of them on. While it lives, another writer may be counted.
pub struct Mapped {
    pager: Arc<dyn Pager<KernelMachine>>,
    offset: Pages,
    is_writer: bool,
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if self.is_writer {
            self.pager.object().leave_writer();
        }
    }
}

/// What another mapping is made with to show what the one at an address does, from there on; or
/// from `offset` bytes of its object on.
///
/// # Errors
/// `EFAULT`: nothing is mapped there; `EPERM`: it may be written, and no more such mappings are
/// admitted.
pub fn mapped(space: &Space, at: u64, offset: Option<u64>) -> Result<MapArgs> {
    let here = pages_from(at & !(PAGE - 1), 1)?;
    let (entry, name) = with(|uvm, held| uvm.first_in(held, space.get(), here)).ok_or(EFAULT)?;
    let object = with(|uvm, held| uvm.object_at(held, space.get(), here.start));
    let mut backing = Backing::Anon;
    if let Some((shown, pager, first)) = object {
        let is_writer = shown.sharing == Sharing::Shared && shown.max_prot.contains(Prot::WRITE);
        if is_writer && !pager.object().admit_writer() {
            return Err(EPERM);
        }
        let offset = offset.map_or(first, Pages::floor);
        backing = Backing::Mapped(Arc::new(Mapped { pager, offset, is_writer }));
    }
    Ok(MapArgs {
        prot: entry.prot,
        max_prot: entry.max_prot,
        sharing: entry.sharing,
        backing,
        locked: entry.wired,
        name,
        ..MapArgs::default()
    })
}

/// Whether a range is covered by mappings that differ in nothing, and continue each other.
pub fn is_one_mapping(space: &Space, addr: u64, len: u64) -> Result<bool> {
    let range = range(addr, len)?;
    let (mut last, mut is_one): (Option<uvm::Outline>, _) = (None, true);
    let covered = advice::each_part(space, range, |part| {
        if let Some(last) = &last {
            let follows = match (last.object, part.object) {
                (None, None) => true,
                (Some((a, first)), Some((b, next))) => a == b && first + last.range.pages() == next,
                _ => false,
            };
            let kind = |part: &uvm::Outline| {
                (part.prot, part.max_prot, part.sharing, part.wired, part.inherit, part.advice)
            };
            is_one &= follows && kind(last) == kind(part);
        }
        last = Some(*part);
        if is_one {
            Ok(())
        } else {
            Err(EFAULT)
        }
    });
    Ok(is_one && covered == Ok(advice::Covered::Whole))
}

/// Resizes or moves.
pub fn remap(
    space: &Space,
    old: u64,
    old_len: u64,
    new_len: u64,
    place: RemapPlace,
    keep: OldRange,
) -> Result<u64> {
    let old_range = range(old, old_len)?;
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

/// Moves the end of the heap from `old_end` to `new_end`, page aligned. What is new is locked
/// in memory if `lock` says so.
pub fn brk(space: &Space, old_end: u64, new_end: u64, lock: Option<Populate>) -> Result<()> {
    if new_end <= old_end {
        return unmap(space, new_end, old_end - new_end);
    }
    let args = MapArgs {
        addr: old_end,
        len: new_end - old_end,
        place: Place::FixedNoReplace,
        populate: lock.unwrap_or_default(),
        locked: lock.is_some(),
        name: Some(Arc::new("[heap]")),
        ..MapArgs::default()
    };
    map(space, &args).map(|_| ())
}

/// Takes advice.
pub fn advise(space: &Space, addr: u64, len: u64, advice: Advice) -> Result<()> {
    advice::advise(space, range(addr, len)?, advice)
}

/// Says what a child gets of a range: `ENOMEM` for a hole.
pub fn inherit(space: &Space, addr: u64, len: u64, inherit: Inherit) -> Result<()> {
    advice::inherit(space, range(addr, len)?, inherit)
}

/// Sets 1 for each resident page: `ENOMEM` for a hole.
pub fn resident(space: &Space, addr: u64, out: &mut [u8]) -> Result<()> {
    out.fill(0);
    let range = pages_from(addr, out.len() as u64)?;
    let covered =
        with(|uvm, held| uvm.resident(held, space.get(), range, |n| out[n.0 as usize] = 1));
    if covered {
        Ok(())
    } else {
        Err(ENOMEM)
    }
}

/// Locks in memory: brings pages in now, or keeps each as it is touched.
pub fn lock(space: &Space, addr: u64, len: u64, when: Populate) -> Result<()> {
    advice::lock(space, range(addr, len)?, when)
}

/// Takes that back.
pub fn unlock(space: &Space, addr: u64, len: u64) -> Result<()> {
    let range = range(addr, len)?;
    with(|uvm, held| uvm.unwire(held, space.get(), range)).map_err(range_errno)
}

/// Locks every mapping, and brings in what can be had; ends before more than `most` bytes are
/// locked.
pub fn lock_all(space: &Space, when: Populate, most: u64) {
    advice::lock_all(space, when, most);
}

/// Takes that back.
pub fn unlock_all(space: &Space) -> Result<()> {
    let range = space.get().bounds();
    advice::each_part(space, range, |part| {
        unlock(space, part.range.start.0, part.range.pages().bytes())
    })
    .map(|_| ())
}

/// Whether all of a range is mapped: `ENOMEM` for a hole.
pub fn check_mapped(space: &Space, addr: u64, len: u64) -> Result<()> {
    let range = range(addr, len)?;
    let covered = with(|uvm, held| uvm.is_mapped(held, space.get(), range));
    if covered {
        Ok(())
    } else {
        Err(ENOMEM)
    }
}

/// Resolves a page fault.
#[inline]
pub fn fault(
    space: &Space,
    va: u64,
    access: Access,
) -> core::result::Result<FaultKind, FaultError> {
    with(|uvm, held| uvm.fault(held, space.get(), Va(va), access_prot(access)))
}

/// Sums over the parts of mappings that lie from `start` to `end`.
pub fn mapping_stats(space: &Space, start: u64, end: u64) -> MappingStats {
    advice::mapping_stats(space, start, end)
}

/// Page tables.
pub fn tables(space: &Space) -> u64 {
    space.get().pmap().tables() as u64
}

/// The CPUs that run programs in it, and perhaps some that have just left it.
pub fn cpus(space: &Space) -> CpuSet {
    space.get().pmap().cpus()
}

/// Translations present.
pub fn resident_pages(space: &Space) -> u64 {
    KERNEL.pmap().resident(space.get().pmap()) as u64
}

/// Names shared memory at an address: object and byte.
pub fn shared_key(space: &Space, va: u64) -> Option<(u64, u64)> {
    let here = pages_from(va & !(PAGE_SIZE as u64 - 1), 1).ok()?;
    let (entry, _) = with(|uvm, held| uvm.first_in(held, space.get(), here))?;
    let (id, first) = entry.object?;
    let offset = first.bytes() + (va - entry.range.start.0);
    (entry.sharing == Sharing::Shared).then_some((id, offset))
}

/// The first mapping that reaches behind `from`, and its end; `None` if there is none. With it
/// one goes through a space in order.
pub fn line(space: &Space, from: u64, show: &mut dyn FnMut(&MapLine<'_>)) -> Option<u64> {
    let (e, name) = with(|uvm, held| uvm.first_in(held, space.get(), behind(space, from)?))?;
    let (text, node) = name.as_ref().map_or(("", (0, 0)), |name| (name.text(), name.node()));
    show(&map_line(&e, text, node, stack::grows_down(name.as_ref())));
    Some(e.range.end.0)
}

/// What the mappings of a space come to, as the first line of its drawing in the papers. Cost:
/// by its pages.
pub fn dump_sums(space: &Space, out: &mut dyn fmt::Write) -> fmt::Result {
    let (mut entries, mut anons, mut at) = (0, 0, 0);
    while let Some(e) = described(space, at) {
        entries += 1;
        anons += e.layers.amap.map_or(0, |(_, anons, _)| anons);
        at = e.range.end.0;
        crate::sched::give_way();
    }
    let (range_stats, tables) = (range_stats(space, 0, USER_END), tables(space));
    let (swapped, heap, resident) = (range_stats.swapped, range_stats.heap, resident_pages(space));
    write!(
        out,
        "map: {entries} entries, {anons} anons, {swapped} on swap, {resident} translations, "
    )?;
    writeln!(out, "{tables} tables, {heap} bytes of heap")
}

/// The mapping of `line` as the papers draw it.
pub fn dump_line(
    space: &Space,
    from: u64,
    out: &mut dyn fmt::Write,
) -> core::result::Result<Option<u64>, fmt::Error> {
    let Some(e) = described(space, from) else { return Ok(None) };
    write!(out, "{e}")?;
    match range_stats(space, e.range.start.0, e.range.end.0).swapped {
        0 => writeln!(out)?,
        swapped => writeln!(out, " | {swapped} on swap")?,
    }
    Ok(Some(e.range.end.0))
}

/// Counts where pages are, over the part of the space's mappings from `start` to `end`.
pub fn range_stats(space: &Space, start: u64, end: u64) -> RangeStats {
    let range = PageRange::new(Va(start), Va(end)).unwrap_or_default();
    with(|uvm, held| uvm.range_stats(held, space.get(), range))
}

fn map_line<'a>(
    e: &uvm::Outline,
    name: &'a str,
    node: (u64, u64),
    grows_down: bool,
) -> MapLine<'a> {
    MapLine {
        start: e.range.start.0,
        end: e.range.end.0,
        prot: e.prot,
        sharing: e.sharing,
        offset: e.object.map_or(0, |(_, first)| first.bytes()),
        object: e.object.map_or(0, |(id, _)| id),
        node,
        name,
        grows_down,
        locked: e.wired,
        max_prot: e.max_prot,
        inherit: e.inherit,
        usage: e.advice,
        is_shared_memory: e.kind == "anonymous",
    }
}

/// The pages of files and shared memory that the space's tables lead to, from `start` to `end`.
pub fn object_stats(space: &Space, start: u64, end: u64) -> ObjectStats {
    /// Pages and mappings that are looked at with the map locked.
    const AT_ONCE: usize = 16;
    let mut sums = ObjectStats::default();
    let mut rest = PageRange::new(Va(start), Va(end)).unwrap_or_default();
    while !rest.is_empty() && !crate::sched::is_leaving() {
        let look = |page| {
            let mappings = pmap::mappings(page).max(1);
            sums.share += PAGE_SIZE / mappings;
            let pages = &mut sums.pages[usize::from(mappings == 1)];
            pages[usize::from(!super::frame_stats::is_clean(page))] += 1;
        };
        let next = with(|uvm, held| uvm.object_pages(held, space.get(), rest, AT_ONCE, look));
        let Some(next) = next else { break };
        rest = rest.skip_to(next);
        crate::sched::give_way();
    }
    sums
}

/// Tells of each page that is there, of so many from `addr` on: its place among these, and where it
/// is.
pub fn page_states(space: &Space, addr: u64, pages: u64, mut each: impl FnMut(usize, PageState)) {
    let end = addr.saturating_add(pages * PAGE).min(USER_END);
    let mut at = addr;
    while let Some((e, _)) = with(|uvm, held| uvm.first_in(held, space.get(), behind(space, at)?)) {
        let (start, stop) = (e.range.start.0.max(at), e.range.end.0.min(end));
        if start >= end {
            return;
        }
        for va in (start..stop).step_by(PAGE as usize) {
            let stats = range_stats(space, va, va + PAGE);
            let frame = KERNEL.pmap().extract(space.get().pmap(), Va(va)).map(|(page, _)| page.0);
            let state = match frame.map(u64::from) {
                // In memory without a translation, too: it is there, and no frame shows it here.
                None if stats.swapped + stats.anonymous != 0 => PageState::Swapped,
                None => continue,
                Some(frame) if stats.anonymous != 0 => {
                    PageState::Anonymous { frame, is_alone: stats.anonymous_share == PAGE_SIZE }
                }
                Some(frame) => PageState::OfObject { frame },
            };
            each(((va - addr) / PAGE) as usize, state);
        }
        at = stop;
    }
}
