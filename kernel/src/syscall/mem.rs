//! System calls that map: they check what Linux checks, in its order, and hand over to the VM
//! system.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use super::{calls, mlock, Calls};
use crate::arch::layout::{MAP_LOWEST, USER_END};
use crate::cred::caps::Caps;
use crate::errno::{
    Result, EACCES, EAGAIN, EFAULT, EINVAL, ENODEV, ENOMEM, EOVERFLOW, EPERM, ESRCH,
};
use crate::fs::file::{File, MapAccess};
use crate::proc::curproc;
use crate::proc::growth::{allow_growth, asker, check_locked, growing, Growth, Promise};
use crate::proc::limits::{INFINITY, RLIMIT_DATA};
use crate::proc::mm::Mm;
use crate::proc::thread::OwnMm;
use crate::proc::{current_process, current_thread};
use crate::vm::{
    self, commit, Backing, Export, MapArgs, Name, Object, Place, Populate, Prot, RemapPlace,
    Sharing, Writing,
};

use linux_raw_sys::general as abi;

pub const CALLS: Calls = calls! {
    __NR_mmap => mmap[6],
    __NR_munmap => munmap[2],
    __NR_mprotect => mprotect[3],
    __NR_mremap => mremap[5],
    __NR_brk => brk[1],
    __NR_remap_file_pages => remap_file_pages[5],
};

pub(super) const PAGE: u64 = 4096;
/// Flags that only say what Linux should do with pages that we handle alike, or that name defaults.
const MAP_IGNORED: u32 = abi::MAP_NORESERVE
    | abi::MAP_STACK
    | abi::MAP_DENYWRITE
    | abi::MAP_EXECUTABLE
    | abi::MAP_NONBLOCK
    | abi::MAP_UNINITIALIZED;
/// The sizes of large pages, which say nothing without `MAP_HUGETLB`.
const MAP_HUGE_SIZES: u32 = abi::MAP_HUGE_2MB | abi::MAP_HUGE_1GB;

pub(super) fn current_mm() -> Result<OwnMm> {
    current_thread().own_mm().ok_or(ESRCH)
}

/// A length in whole pages; `None` when it is zero or overflows.
pub(super) fn whole_pages(len: u64) -> Option<u64> {
    len.checked_next_multiple_of(PAGE).filter(|&len| len != 0)
}

/// A range of whole pages of user memory: `EINVAL` for a start inside a page, `ENOMEM` for one that
/// leaves user space.
pub(super) fn range(addr: u64, len: u64) -> Result<u64> {
    if !addr.is_multiple_of(PAGE) {
        return Err(EINVAL);
    }
    let len = len.checked_next_multiple_of(PAGE).ok_or(ENOMEM)?;
    match addr.checked_add(len) {
        Some(end) if end <= USER_END => Ok(len),
        _ => Err(ENOMEM),
    }
}

pub(super) fn prot(bits: u32) -> Prot {
    let one = |bit, prot| if bits & bit != 0 { prot } else { Prot::NONE };
    let write = one(abi::PROT_WRITE, Prot::WRITE);
    one(abi::PROT_READ, Prot::READ) | write | one(abi::PROT_EXEC, Prot::EXECUTE)
}

pub(super) const PROT_KNOWN: u32 =
    abi::PROT_READ | abi::PROT_WRITE | abi::PROT_EXEC | abi::PROT_SEM;

/// What is to be mapped: the sharing and the memory behind it.
struct Source {
    sharing: Sharing,
    max_prot: Prot,
    backing: Backing,
    name: Option<Arc<dyn Name>>,
    /// Held until the mapping counts itself.
    _writing: Option<Writing>,
}

fn mmap(addr: u64, len: u64, prot_bits: u32, flags: u32, fd: i32, offset: u64) -> Result<u64> {
    if !offset.is_multiple_of(PAGE) {
        return Err(EINVAL);
    }
    let file = match flags & abi::MAP_ANONYMOUS != 0 {
        true => None,
        false => Some(curproc::file(fd)?),
    };
    if len == 0 {
        return Err(EINVAL);
    }
    let len = whole_pages(len).filter(|&len| len <= USER_END).ok_or(ENOMEM)?;
    let fixed = flags & (abi::MAP_FIXED | abi::MAP_FIXED_NOREPLACE) != 0;
    if fixed {
        check_fixed(addr, len)?;
    }
    let wanted = prot(prot_bits);
    let source = match &file {
        None => anonymous_source(flags, len)?,
        Some(file) => file_source(file, flags, wanted, offset, len)?,
    };
    let place = if flags & abi::MAP_FIXED_NOREPLACE != 0 {
        Place::FixedNoReplace
    } else if fixed {
        Place::Fixed
    } else if flags & abi::MAP_32BIT != 0 {
        Place::Low
    } else if addr != 0 {
        Place::Hint
    } else {
        Place::Anywhere
    };
    let lock = if flags & abi::MAP_LOCKED != 0 {
        mlock::check_may_lock(&current_process())?;
        Some(Populate::Now)
    } else {
        None
    };
    let populate = flags & abi::MAP_POPULATE != 0 && flags & abi::MAP_NONBLOCK == 0;
    let args = MapArgs {
        addr: if matches!(place, Place::Hint | Place::Low) {
            (addr & !(PAGE - 1)).max(MAP_LOWEST)
        } else {
            addr & !(PAGE - 1)
        },
        len,
        prot: wanted,
        max_prot: source.max_prot,
        sharing: source.sharing,
        place,
        backing: source.backing,
        populate: if populate { Populate::Now } else { Populate::OnTouch },
        locked: false,
        name: source.name,
    };
    map_new(&args, lock, promise_of(flags))
}

fn promise_of(flags: u32) -> Promise {
    if flags & abi::MAP_NORESERVE != 0 && !commit::is_strict() {
        Promise::None
    } else {
        Promise::Made
    }
}

/// Makes a mapping in the running process, as far as its limits go; locked in memory if it says so
/// or if all new ones are to be.
pub(super) fn map_new(args: &MapArgs, lock: Option<Populate>, promise: Promise) -> Result<u64> {
    let mm = current_mm()?;
    let lock = lock.or(mm.lock_future());
    let replaces = args.place == Place::Fixed;
    let counts = args.sharing == Sharing::Private && args.prot.contains(Prot::WRITE);
    let growth = Growth {
        mapped: args.len,
        data: if counts { args.len } else { 0 },
        replaced: if replaces { args.addr..args.addr + args.len } else { 0..0 },
    };
    let _growing = growing(&mm, lock);
    growth.check(&mm)?;
    if lock.is_some() {
        check_locked(&mm, args.len).map_err(|_| EAGAIN)?;
    }
    if promise == Promise::None {
        mm.has_unpromised.store(true, Ordering::Relaxed);
    }
    growth.promised(&mm, promise, || match lock {
        // What can't be had now is locked when it is touched.
        Some(when) => {
            let populate = if when == Populate::Now { when } else { args.populate };
            vm::map(&mm.space, &MapArgs { populate, locked: true, ..args.clone() })
        }
        None => vm::map(&mm.space, args),
    })
}

fn check_fixed(addr: u64, len: u64) -> Result<()> {
    if !addr.is_multiple_of(PAGE) {
        return Err(EINVAL);
    }
    let end = addr.checked_add(len).ok_or(ENOMEM)?;
    if end > USER_END {
        return Err(ENOMEM);
    }
    check_low(addr)
}

/// Only a process that may ask for devices may map the lowest addresses: a null pointer of the
/// kernel's must lead nowhere.
pub(super) fn check_low(addr: u64) -> Result<()> {
    if addr < MAP_LOWEST {
        current_process().cred().need(Caps::SYS_RAWIO)?;
    }
    Ok(())
}

fn sharing(flags: u32) -> Result<Sharing> {
    const KINDS: u32 = abi::MAP_SHARED | abi::MAP_PRIVATE;
    match flags & KINDS {
        abi::MAP_PRIVATE => Ok(Sharing::Private),
        abi::MAP_SHARED => Ok(Sharing::Shared),
        KINDS => validated_flags(flags).map(|()| Sharing::Shared),
        _ => Err(EINVAL),
    }
}

/// `MAP_SHARED_VALIDATE` refuses flags it doesn't know.
fn validated_flags(flags: u32) -> Result<()> {
    const KNOWN: u32 = MAP_IGNORED
        | MAP_HUGE_SIZES
        | abi::MAP_32BIT
        | abi::MAP_HUGETLB
        | abi::MAP_SHARED
        | abi::MAP_PRIVATE
        | abi::MAP_FIXED
        | abi::MAP_FIXED_NOREPLACE
        | abi::MAP_ANONYMOUS
        | abi::MAP_POPULATE
        | abi::MAP_LOCKED
        | abi::MAP_GROWSDOWN;
    if flags & !KNOWN == 0 {
        Ok(())
    } else {
        Err(crate::errno::EOPNOTSUPP)
    }
}

fn anonymous_source(flags: u32, len: u64) -> Result<Source> {
    if flags & abi::MAP_HUGETLB != 0 {
        return Err(ENOMEM);
    }
    let sharing = match flags & (abi::MAP_SHARED | abi::MAP_PRIVATE) {
        abi::MAP_SHARED => Sharing::Shared,
        abi::MAP_PRIVATE => Sharing::Private,
        _ => return Err(EINVAL),
    };
    let grows = flags & abi::MAP_GROWSDOWN != 0;
    let (backing, name) = match sharing {
        Sharing::Private => (Backing::Anon, grows.then(vm::stack_name)),
        Sharing::Shared if grows => return Err(EINVAL),
        Sharing::Shared => {
            let object = match promise_of(flags) {
                Promise::Made => Object::promised(len, shared_promise(len)?)?,
                Promise::None => Object::shared(len)?,
            };
            (
                Backing::Object { object, offset: 0 },
                Some(Arc::new("/dev/zero (deleted)") as Arc<dyn Name>),
            )
        }
    };
    Ok(Source { sharing, max_prot: Prot::all(), backing, name, _writing: None })
}

/// What memory is promised that is shared without a file.
pub(super) fn shared_promise(len: u64) -> Result<commit::Shared> {
    let mapped = if commit::is_strict() { current_mm()?.mapping_stats().mapped } else { 0 };
    commit::Shared::take(len, mapped, asker())
}

fn file_source(file: &File, flags: u32, wanted: Prot, offset: u64, len: u64) -> Result<Source> {
    if offset.checked_add(len).is_none_or(|end| end > i64::MAX as u64) {
        return Err(EOVERFLOW);
    }
    let sharing = sharing(flags)?;
    if flags & abi::MAP_GROWSDOWN != 0 {
        return Err(EINVAL);
    }
    if file.is_dir() {
        return Err(ENODEV);
    }
    let access = match sharing {
        Sharing::Private => MapAccess::Private,
        Sharing::Shared if wanted.contains(Prot::WRITE) => MapAccess::SharedWrite,
        Sharing::Shared => MapAccess::SharedRead,
    };
    if !file.is_readable() {
        return Err(EACCES);
    }
    let object = file.mmap_object(access)?;
    // A file is sealed by denying its object new writers. A thread that seals it from now on finds
    // this one.
    let writing =
        if sharing == Sharing::Shared && file.is_writable() { object.writing() } else { None };
    if access == MapAccess::SharedWrite && writing.is_none() {
        return Err(EPERM);
    }
    let writable = sharing == Sharing::Private || writing.is_some();
    let mut max_prot = if writable { Prot::all() } else { Prot::all().without_write() };
    if file.place().mount_flags() & abi::MS_NOEXEC != 0 {
        if wanted.contains(Prot::EXECUTE) {
            return Err(EPERM);
        }
        max_prot = max_prot.intersection(Prot::READ_WRITE);
    }
    let name: Option<Arc<dyn Name>> = Some(file.mapping_name()?);
    let backing = Backing::Object { object, offset };
    Ok(Source { sharing, max_prot, backing, name, _writing: writing })
}

/// Maps what was exported, at `place` or anywhere, as far as the running process's limits go.
pub(super) fn import(export: &Export, place: Option<u64>) -> Result<u64> {
    let mm = current_mm()?;
    let len = export.pages() * PAGE;
    if let Some(at) = place {
        check_fixed(at, len)?;
    }
    let replaced = place.map_or(0..0, |at| at..at + len);
    let _growing = allow_growth(&mm, len, replaced)?;
    export.import(&mm.space, place)
}

fn munmap(addr: u64, len: u64) -> Result<()> {
    let pages = whole_pages(len).ok_or(EINVAL)?;
    if !addr.is_multiple_of(PAGE) || addr.checked_add(pages).is_none_or(|end| end > USER_END) {
        return Err(EINVAL);
    }
    let mm = current_mm()?;
    if !commit::is_strict() {
        return vm::unmap(&mm.space, addr, pages);
    }
    let _growing = mm.growing.lock();
    let result = vm::unmap(&mm.space, addr, pages);
    commit::settle(&mm.space);
    result
}

fn mprotect(mut addr: u64, len: u64, bits: u64) -> Result<()> {
    const GROWS: u32 = abi::PROT_GROWSDOWN | abi::PROT_GROWSUP;
    let bits = u32::try_from(bits).map_err(|_| EINVAL)?;
    if bits & !(PROT_KNOWN | GROWS) != 0 || bits & GROWS == GROWS || !addr.is_multiple_of(PAGE) {
        return Err(EINVAL);
    }
    if len == 0 {
        return Ok(());
    }
    let mut len = range(addr, len)?;
    let mm = current_mm()?;
    if bits & GROWS != 0 {
        vm::check_mapped(&mm.space, addr, PAGE)?;
        // No mapping grows upwards.
        let stack = stack_start(&mm, addr).filter(|_| bits & abi::PROT_GROWSUP == 0);
        let start = stack.ok_or(EINVAL)?;
        (addr, len) = (start, addr + len - start);
    }
    let writes = bits & abi::PROT_WRITE != 0;
    let is_limited = writes && current_process().limit(RLIMIT_DATA) != INFINITY;
    let is_strict = commit::is_strict();
    let _growing = (is_limited || is_strict).then(|| mm.growing.lock());
    let mut growth = Growth::default();
    if writes && commit::mode() != commit::ALWAYS || is_limited {
        let there = vm::mapping_stats(&mm.space, addr, addr + len);
        growth.data = there.private - there.data;
    }
    if is_limited {
        growth.check(&mm)?;
    }
    growth.promised(&mm, Promise::of_mapped(&mm), || vm::protect(&mm.space, addr, len, prot(bits)))
}

/// The start of the stack that an address is in.
fn stack_start(mm: &Mm, addr: u64) -> Option<u64> {
    let mut start = None;
    vm::line(&mm.space, addr, &mut |line| start = line.grows_down.then_some(line.start));
    start.filter(|&start| start <= addr)
}

fn mremap(old: u64, old_len: u64, new_len: u64, flags: u64, new: u64) -> Result<u64> {
    const MAYMOVE: u32 = abi::MREMAP_MAYMOVE;
    const FIXED: u32 = abi::MREMAP_FIXED;
    const DONTUNMAP: u32 = abi::MREMAP_DONTUNMAP;
    let flags = u32::try_from(flags).map_err(|_| EINVAL)?;
    let known = flags & !(MAYMOVE | FIXED | DONTUNMAP) == 0;
    let needs_move = flags & (FIXED | DONTUNMAP) != 0 && flags & MAYMOVE == 0;
    let old_pages = old_len.checked_next_multiple_of(PAGE).ok_or(EINVAL)?;
    let new_pages = whole_pages(new_len).ok_or(EINVAL)?;
    if !known || needs_move || !old.is_multiple_of(PAGE) {
        return Err(EINVAL);
    }
    if flags & DONTUNMAP != 0 && old_pages != new_pages {
        return Err(EINVAL);
    }
    if old >= USER_END {
        return Err(EFAULT);
    }
    if old.checked_add(old_pages).is_none_or(|end| end > USER_END) {
        return Err(EINVAL);
    }
    if new_pages > USER_END {
        return Err(if flags & (FIXED | DONTUNMAP) != 0 { EINVAL } else { ENOMEM });
    }
    let place = match flags & (MAYMOVE | FIXED) {
        0 => RemapPlace::InPlace,
        MAYMOVE => RemapPlace::MayMove,
        _ => {
            let end = new
                .checked_add(new_pages)
                .filter(|&end| new.is_multiple_of(PAGE) && end <= USER_END)
                .ok_or(EINVAL)?;
            if new < old + old_pages && old < end {
                return Err(EINVAL);
            }
            check_low(new)?;
            RemapPlace::Fixed(new)
        }
    };
    let mm = current_mm()?;
    vm::check_mapped(&mm.space, old, PAGE).map_err(|_| EFAULT)?;
    let stays = flags & (FIXED | DONTUNMAP) == 0;
    if stays && new_pages <= old_pages {
        if new_pages < old_pages {
            munmap(old + new_pages, old_pages - new_pages)?;
        }
        return Ok(old);
    }
    if old_pages == 0 {
        return repeat(&mm, old, new_pages, place);
    }
    if !vm::is_one_mapping(&mm.space, old, old_pages.min(new_pages))? {
        return Err(EFAULT);
    }
    let grows = flags & DONTUNMAP != 0 || new_pages > old_pages;
    let _growing = (grows || commit::is_strict()).then(|| mm.growing.lock());
    let mut growth = Growth::default();
    if flags & DONTUNMAP != 0 {
        // What stays isn't locked.
        growth = check_size(&mm, old, old_pages)?;
    } else if new_pages > old_pages {
        growth = check_longer(&mm, old + old_pages.saturating_sub(PAGE), new_pages - old_pages)?;
    }
    let keep = if flags & DONTUNMAP != 0 { vm::OldRange::Keep } else { vm::OldRange::Unmap };
    let promise = if keep == vm::OldRange::Keep { Promise::of_mapped(&mm) } else { Promise::Made };
    growth.promised(&mm, promise, || vm::remap(&mm.space, old, old_pages, new_pages, place, keep))
}

/// Maps what is shared at an address a second time, as `mremap` does for a mapping of no length.
fn repeat(mm: &Mm, old: u64, len: u64, place: RemapPlace) -> Result<u64> {
    let args = vm::mapped(&mm.space, old, None)?;
    if args.sharing != Sharing::Shared {
        return Err(EINVAL);
    }
    let (addr, place) = match place {
        RemapPlace::InPlace => return Err(ENOMEM),
        RemapPlace::MayMove => (0, Place::Anywhere),
        RemapPlace::Fixed(addr) => (addr, Place::Fixed),
    };
    let lock = args.locked.then_some(Populate::Now);
    map_new(&MapArgs { addr, len, place, locked: false, ..args }, lock, Promise::None)
}

/// Shows other pages of what is mapped shared at an address: `page` is the first, counted from the
/// object's.
fn remap_file_pages(start: u64, len: u64, prot: u64, page: u64, _flags: u32) -> Result<()> {
    let (addr, len) = (start & !(PAGE - 1), len & !(PAGE - 1));
    let offset = page.checked_mul(PAGE).filter(|at| at.checked_add(len).is_some());
    let (Some(offset), true) = (offset, prot == 0 && len != 0) else { return Err(EINVAL) };
    range(addr, len).map_err(|_| EINVAL)?;
    let mm = current_mm()?;
    let args = vm::mapped(&mm.space, addr, Some(offset)).map_err(|_| EINVAL)?;
    if args.sharing != Sharing::Shared || !vm::is_one_mapping(&mm.space, addr, len)? {
        return Err(EINVAL);
    }
    let lock = args.locked.then_some(Populate::Now);
    let args =
        MapArgs { addr, len, place: Place::Fixed, populate: Populate::Now, locked: false, ..args };
    map_new(&args, lock, Promise::None).map(drop)
}

/// Whether the mapping that has its last page at an address may become longer.
fn check_longer(mm: &Mm, at: u64, more: u64) -> Result<Growth> {
    if vm::mapping_stats(&mm.space, at, at + PAGE).locked != 0 {
        check_locked(mm, more).map_err(|_| EAGAIN)?;
    }
    check_size(mm, at, more)
}

/// Whether there may be more of the kind of mapping that is at an address, whatever of it is
/// locked.
fn check_size(mm: &Mm, at: u64, more: u64) -> Result<Growth> {
    let data = if vm::mapping_stats(&mm.space, at, at + PAGE).data != 0 { more } else { 0 };
    let growth = Growth { mapped: more, data, ..Growth::default() };
    growth.check(mm)?;
    Ok(growth)
}

fn brk(wanted: u64) -> Result<u64> {
    let mm = current_mm()?;
    let _growing = mm.growing.lock();
    let lock = mm.lock_future();
    let (start, end) = {
        let layout = mm.layout.lock();
        (layout.heap_start, layout.heap_end)
    };
    if wanted < start || wanted > USER_END {
        return Ok(end);
    }
    let limit = current_process().limit(RLIMIT_DATA);
    if wanted - start > limit {
        return Ok(end);
    }
    let (old_page, new_page) = (end.next_multiple_of(PAGE), wanted.next_multiple_of(PAGE));
    let mut growth = Growth::default();
    if new_page > old_page {
        let more = new_page - old_page;
        growth = Growth { mapped: more, data: more, ..growth };
        if growth.check(&mm).is_err() || (lock.is_some() && check_locked(&mm, more).is_err()) {
            return Ok(end);
        }
    }
    let change = || vm::brk(&mm.space, old_page, new_page, lock);
    if new_page != old_page && growth.promised(&mm, Promise::Made, change).is_err() {
        return Ok(end);
    }
    mm.layout.lock().heap_end = wanted;
    Ok(wanted)
}
