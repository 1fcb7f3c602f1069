//! System calls on memory: checks what Linux checks, in its order, and hands over to the VM system.

use alloc::string::String;
use alloc::sync::Arc;

use super::{calls, Calls};
use crate::errno::{Result, EACCES, EAGAIN, EINVAL, ENODEV, ENOMEM, EOVERFLOW, EPERM, ESRCH};
use crate::fs::current;
use crate::fs::file::{File, MapAccess};
use crate::mem::layout::USER_END;
use crate::proc::limits::{INFINITY, RLIMIT_AS, RLIMIT_DATA, RLIMIT_MEMLOCK};
use crate::proc::mm::{LockFuture, Mm};
use crate::proc::{current_process, current_thread};
use crate::user;
use crate::vm::{self, Advice, Backing, MapArgs, Object, Place, Populate, Prot, RemapPlace, Sharing};
use linux_raw_sys::general as abi;

pub const CALLS: Calls = calls! {
    __NR_mmap => mmap[6],
    __NR_munmap => munmap[2],
    __NR_mprotect => mprotect[3],
    __NR_mremap => mremap[5],
    __NR_brk => brk[1],
    __NR_madvise => madvise[3],
    __NR_msync => msync[3],
    __NR_mincore => mincore[3],
    __NR_mlock => mlock[2],
    __NR_mlock2 => mlock2[3],
    __NR_munlock => munlock[2],
    __NR_mlockall => mlockall[1],
    __NR_munlockall => munlockall[0],
};

const PAGE: u64 = 4096;
/// Flags that only say what Linux should do with pages that we handle alike, or that name defaults.
const MAP_IGNORED: u32 = abi::MAP_NORESERVE
    | abi::MAP_STACK
    | abi::MAP_DENYWRITE
    | abi::MAP_EXECUTABLE
    | abi::MAP_NONBLOCK
    | abi::MAP_32BIT
    | abi::MAP_UNINITIALIZED;
/// The lowest address a program may map by name.
const MAP_LOWEST: u64 = PAGE * 16;

fn current_mm() -> Result<Arc<Mm>> {
    current_thread().mm().ok_or(ESRCH)
}

/// A length in whole pages; `None` when it is zero or overflows.
fn whole_pages(len: u64) -> Option<u64> {
    len.checked_next_multiple_of(PAGE).filter(|&len| len != 0)
}

/// A range of whole pages of user memory: `EINVAL` for a start inside a page, `ENOMEM` for one that leaves user space.
fn range(addr: u64, len: u64) -> Result<u64> {
    if !addr.is_multiple_of(PAGE) {
        return Err(EINVAL);
    }
    let len = len.checked_next_multiple_of(PAGE).ok_or(ENOMEM)?;
    match addr.checked_add(len) {
        Some(end) if end <= USER_END => Ok(len),
        _ => Err(ENOMEM),
    }
}

fn prot(bits: u32) -> Prot {
    let one = |bit, prot| if bits & bit != 0 { prot } else { Prot::NONE };
    let write = one(abi::PROT_WRITE, Prot::READ_WRITE);
    one(abi::PROT_READ, Prot::READ) | write | one(abi::PROT_EXEC, Prot::EXECUTE)
}

const PROT_KNOWN: u32 = abi::PROT_READ | abi::PROT_WRITE | abi::PROT_EXEC | abi::PROT_SEM;

/// What is to be mapped: the sharing and the memory behind it.
struct Source {
    sharing: Sharing,
    max_prot: Prot,
    backing: Backing,
    name: Option<Arc<str>>,
}

fn mmap(addr: u64, len: u64, prot_bits: u32, flags: u32, fd: i32, offset: u64) -> Result<u64> {
    if !offset.is_multiple_of(PAGE) || len == 0 {
        return Err(EINVAL);
    }
    let len = whole_pages(len).filter(|&len| len <= USER_END).ok_or(ENOMEM)?;
    let mm = current_mm()?;
    let fixed = flags & (abi::MAP_FIXED | abi::MAP_FIXED_NOREPLACE) != 0;
    if fixed {
        check_fixed(addr, len)?;
    }
    let wanted = prot(prot_bits);
    let source = if flags & abi::MAP_ANONYMOUS != 0 {
        anonymous_source(flags, len)?
    } else {
        file_source(&*current::file(fd)?, flags, wanted, offset, len)?
    };
    check_space(&mm, addr, len, fixed)?;
    let place = if flags & abi::MAP_FIXED_NOREPLACE != 0 {
        Place::FixedNoReplace
    } else if fixed {
        Place::Fixed
    } else if addr != 0 {
        Place::Hint
    } else {
        Place::Anywhere
    };
    let locked = flags & abi::MAP_LOCKED != 0 || mm.layout.lock().lock_future == LockFuture::Yes;
    let populate = flags & abi::MAP_POPULATE != 0 && flags & abi::MAP_NONBLOCK == 0;
    let args = MapArgs {
        addr: addr & !(PAGE - 1),
        len,
        prot: wanted,
        max_prot: source.max_prot,
        sharing: source.sharing,
        place,
        backing: source.backing,
        populate: if populate { Populate::Now } else { Populate::OnTouch },
        name: source.name,
    };
    let at = vm::map(&mm.space, args)?;
    if locked {
        let _ = vm::lock(&mm.space, at, len);
    }
    Ok(at)
}

fn check_fixed(addr: u64, len: u64) -> Result<()> {
    if !addr.is_multiple_of(PAGE) {
        return Err(EINVAL);
    }
    let end = addr.checked_add(len).ok_or(ENOMEM)?;
    if end > USER_END {
        return Err(ENOMEM);
    }
    if addr < MAP_LOWEST && !current_process().cred().is_root() {
        return Err(EPERM);
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
    let (backing, name) = match sharing {
        Sharing::Private => (Backing::Anon, None),
        Sharing::Shared => {
            (Backing::Object { object: Object::anon(len)?, offset: 0 }, Some("/dev/zero (deleted)".into()))
        }
    };
    Ok(Source { sharing, max_prot: Prot::all(), backing, name })
}

fn file_source(file: &File, flags: u32, wanted: Prot, offset: u64, len: u64) -> Result<Source> {
    if offset.checked_add(len).is_none_or(|end| end > i64::MAX as u64) {
        return Err(EOVERFLOW);
    }
    let sharing = sharing(flags)?;
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
    let writable = sharing == Sharing::Private || file.is_writable();
    let max_prot = if writable { Prot::all() } else { Prot::all().without_write() };
    let name: Arc<str> = String::from_utf8_lossy(&file.path()).into();
    Ok(Source { sharing, max_prot, backing: Backing::Object { object, offset }, name: Some(name) })
}

/// Enforces `RLIMIT_AS`; what a fixed mapping replaces counts as new, as the limit is far from exact anyway.
fn check_space(mm: &Mm, _addr: u64, len: u64, _fixed: bool) -> Result<()> {
    let limit = current_process().limit(RLIMIT_AS);
    if limit != INFINITY && vm::mapped_bytes(&mm.space).saturating_add(len) > limit {
        return Err(ENOMEM);
    }
    Ok(())
}

fn munmap(addr: u64, len: u64) -> Result<()> {
    let pages = whole_pages(len).ok_or(EINVAL)?;
    if !addr.is_multiple_of(PAGE) || addr.checked_add(pages).is_none_or(|end| end > USER_END) {
        return Err(EINVAL);
    }
    vm::unmap(&current_mm()?.space, addr, pages)
}

fn mprotect(addr: u64, len: u64, bits: u32) -> Result<()> {
    const GROWS: u32 = abi::PROT_GROWSDOWN | abi::PROT_GROWSUP;
    if bits & !(PROT_KNOWN | GROWS) != 0 || bits & GROWS == GROWS || !addr.is_multiple_of(PAGE) {
        return Err(EINVAL);
    }
    if len == 0 {
        return Ok(());
    }
    let len = range(addr, len)?;
    vm::protect(&current_mm()?.space, addr, len, prot(bits))
}

fn mremap(old: u64, old_len: u64, new_len: u64, flags: u32, new: u64) -> Result<u64> {
    const MAYMOVE: u32 = abi::MREMAP_MAYMOVE;
    const FIXED: u32 = abi::MREMAP_FIXED;
    const DONTUNMAP: u32 = abi::MREMAP_DONTUNMAP;
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
    if old.checked_add(old_pages).is_none_or(|end| end > USER_END) || new_pages > USER_END {
        return Err(EINVAL);
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
            RemapPlace::Fixed(new)
        }
    };
    let mm = current_mm()?;
    if new_pages > old_pages {
        check_space(&mm, new, new_pages - old_pages, false)?;
    }
    let keep = if flags & DONTUNMAP != 0 { vm::OldRange::Keep } else { vm::OldRange::Unmap };
    vm::remap(&mm.space, old, old_pages, new_pages, place, keep)
}

fn brk(wanted: u64) -> Result<u64> {
    let mm = current_mm()?;
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
    if new_page > old_page && check_space(&mm, old_page, new_page - old_page, false).is_err() {
        return Ok(end);
    }
    if new_page != old_page && vm::brk(&mm.space, start, old_page, new_page).is_err() {
        return Ok(end);
    }
    mm.layout.lock().heap_end = wanted;
    Ok(wanted)
}

fn madvise(addr: u64, len: u64, advice: u32) -> Result<()> {
    let advice = match advice {
        abi::MADV_NORMAL => Advice::Normal,
        abi::MADV_RANDOM => Advice::Random,
        abi::MADV_SEQUENTIAL => Advice::Sequential,
        abi::MADV_WILLNEED => Advice::WillNeed,
        abi::MADV_DONTNEED | abi::MADV_DONTNEED_LOCKED => Advice::DontNeed,
        abi::MADV_FREE => Advice::Free,
        abi::MADV_REMOVE => Advice::Remove,
        abi::MADV_DONTFORK => Advice::DontFork,
        abi::MADV_DOFORK => Advice::DoFork,
        abi::MADV_WIPEONFORK => Advice::WipeOnFork,
        abi::MADV_KEEPONFORK => Advice::KeepOnFork,
        abi::MADV_POPULATE_READ => Advice::PopulateRead,
        abi::MADV_POPULATE_WRITE => Advice::PopulateWrite,
        abi::MADV_MERGEABLE
        | abi::MADV_UNMERGEABLE
        | abi::MADV_HUGEPAGE
        | abi::MADV_NOHUGEPAGE
        | abi::MADV_DONTDUMP
        | abi::MADV_DODUMP
        | abi::MADV_COLD
        | abi::MADV_PAGEOUT => Advice::Hint,
        _ => return Err(EINVAL),
    };
    let len = range(addr, len).map_err(|_| EINVAL)?;
    if len == 0 {
        return Ok(());
    }
    vm::advise(&current_mm()?.space, addr, len, advice)
}

fn msync(addr: u64, len: u64, flags: u32) -> Result<()> {
    const BOTH: u32 = abi::MS_SYNC | abi::MS_ASYNC;
    if flags & !(BOTH | abi::MS_INVALIDATE) != 0 || flags & BOTH == BOTH || !addr.is_multiple_of(PAGE) {
        return Err(EINVAL);
    }
    let len = range(addr, len)?;
    if len == 0 {
        return Ok(());
    }
    vm::sync(&current_mm()?.space, addr, len)
}

fn mincore(addr: u64, len: u64, out: u64) -> Result<()> {
    /// How many pages are asked for at once.
    const CHUNK: usize = 256;
    let len = range(addr, len)?;
    let mm = current_mm()?;
    let mut done = 0;
    while done < len {
        let pages = ((len - done) / PAGE).min(CHUNK as u64) as usize;
        let mut found = [0u8; CHUNK];
        vm::resident(&mm.space, addr + done, &mut found[..pages])?;
        user::copy_out(out + done / PAGE, &found[..pages])?;
        done += pages as u64 * PAGE;
    }
    Ok(())
}

fn check_lock(len: u64) -> Result<()> {
    let process = current_process();
    let limit = process.limit(RLIMIT_MEMLOCK);
    if limit == INFINITY || process.cred().is_root() {
        return Ok(());
    }
    match limit {
        0 => Err(EPERM),
        limit if len > limit => Err(ENOMEM),
        _ => Ok(()),
    }
}

fn mlock(addr: u64, len: u64) -> Result<()> {
    let start = addr & !(PAGE - 1);
    let len = range(start, len.checked_add(addr - start).ok_or(EINVAL)?)?;
    if len == 0 {
        return Ok(());
    }
    check_lock(len)?;
    vm::lock(&current_mm()?.space, start, len).map_err(|errno| if errno == EAGAIN { ENOMEM } else { errno })
}

fn mlock2(addr: u64, len: u64, flags: u32) -> Result<()> {
    const ONFAULT: u32 = 1;
    match flags {
        0 => mlock(addr, len),
        ONFAULT => {
            let start = addr & !(PAGE - 1);
            range(start, len.checked_add(addr - start).ok_or(EINVAL)?).map(|_| ())
        }
        _ => Err(EINVAL),
    }
}

fn munlock(addr: u64, len: u64) -> Result<()> {
    let start = addr & !(PAGE - 1);
    let len = range(start, len.checked_add(addr - start).ok_or(EINVAL)?)?;
    if len == 0 {
        return Ok(());
    }
    vm::unlock(&current_mm()?.space, start, len)
}

fn mlockall(flags: u32) -> Result<()> {
    const CURRENT: u32 = 1;
    const FUTURE: u32 = 2;
    const ONFAULT: u32 = 4;
    if flags == 0 || flags & !(CURRENT | FUTURE | ONFAULT) != 0 || flags == ONFAULT {
        return Err(EINVAL);
    }
    let mm = current_mm()?;
    check_lock(vm::mapped_bytes(&mm.space))?;
    if flags & CURRENT != 0 && flags & ONFAULT == 0 {
        vm::lock_all(&mm.space)?;
    }
    let future = if flags & FUTURE != 0 && flags & ONFAULT == 0 { LockFuture::Yes } else { LockFuture::No };
    mm.layout.lock().lock_future = future;
    Ok(())
}

fn munlockall() -> Result<()> {
    let mm = current_mm()?;
    mm.layout.lock().lock_future = LockFuture::No;
    vm::unlock_all(&mm.space)
}
