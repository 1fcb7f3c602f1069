//! System calls by which a program says how it uses its memory, or asks how the kernel does:
//! madvise, minherit, msync, mincore.

use super::mem::{current_mm, range, PAGE};
use super::{calls, Calls, Handler};
use crate::arch::layout::USER_END;
use crate::errno::{Result, EBUSY, EFAULT, EINTR, EINVAL, ENOMEM};
use crate::fs;
use crate::vm::{self, Advice, Inherit, Sharing, Space};
use crate::{sched, user};
use linux_raw_sys::general as abi;

/// The work of looking a mapping up: that of copying so many bytes.
const MAPPING: usize = 1024;

pub const CALLS: Calls = calls! {
    __NR_madvise => madvise[3],
    __NR_msync => msync[3],
    __NR_mincore => mincore[3],
};

/// Calls that Linux doesn't have, from the far end of the table.
pub const OWN_CALLS: Calls = {
    const MINHERIT: (u32, Handler) = (510, super::handler!(minherit, 3));
    &[MINHERIT]
};

fn advice(number: u32) -> Result<Advice> {
    Ok(match number {
        abi::MADV_NORMAL => Advice::Normal,
        abi::MADV_RANDOM => Advice::Random,
        abi::MADV_SEQUENTIAL => Advice::Sequential,
        abi::MADV_WILLNEED => Advice::WillNeed,
        abi::MADV_DONTNEED => Advice::DontNeed,
        abi::MADV_DONTNEED_LOCKED => Advice::DontNeedLocked,
        abi::MADV_FREE => Advice::Free,
        abi::MADV_REMOVE => Advice::Remove,
        abi::MADV_DONTFORK => Advice::DontFork,
        abi::MADV_DOFORK => Advice::DoFork,
        abi::MADV_WIPEONFORK => Advice::WipeOnFork,
        abi::MADV_KEEPONFORK => Advice::KeepOnFork,
        abi::MADV_POPULATE_READ => Advice::PopulateRead,
        abi::MADV_POPULATE_WRITE => Advice::PopulateWrite,
        abi::MADV_COLD => Advice::Cold,
        abi::MADV_PAGEOUT => Advice::PageOut,
        abi::MADV_MERGEABLE
        | abi::MADV_UNMERGEABLE
        | abi::MADV_HUGEPAGE
        | abi::MADV_NOHUGEPAGE
        | abi::MADV_DONTDUMP
        | abi::MADV_DODUMP => Advice::Hint,
        _ => return Err(EINVAL),
    })
}

/// `madvise`: an impossible range is a wrong argument, a hole in a possible one `ENOMEM`.
fn madvise(addr: u64, len: u64, number: u32) -> Result<()> {
    let advice = advice(number)?;
    if !addr.is_multiple_of(PAGE) {
        return Err(EINVAL);
    }
    let len = len.checked_next_multiple_of(PAGE).ok_or(EINVAL)?;
    let end = addr.checked_add(len).ok_or(EINVAL)?;
    if len == 0 {
        return Ok(());
    }
    let mm = current_mm()?;
    let inside = end.min(USER_END).saturating_sub(addr);
    if inside != 0 {
        // Until what it unlocks is locked again no other thread may lock as much elsewhere.
        let _growing = (advice == Advice::DontNeedLocked).then(|| mm.growing.lock());
        vm::advise(&mm.space, addr, inside, advice)?;
    }
    if inside == len {
        Ok(())
    } else {
        Err(ENOMEM)
    }
}

/// minherit, as 4.4BSD and NetBSD have it (1999, section 5.4): what a child gets of a range. Its
/// numbers are theirs.
fn minherit(addr: u64, len: u64, inherit: u32) -> Result<()> {
    let inherit = match inherit {
        0 => Inherit::Share,
        1 => Inherit::Copy,
        2 => Inherit::None,
        4 => Inherit::Zero,
        _ => return Err(EINVAL),
    };
    let len = range(addr, len)?;
    if len == 0 {
        return Ok(());
    }
    vm::inherit(&current_mm()?.space, addr, len, inherit)
}

/// `msync`. Linux writes what it finds on both sides of a hole, and then says that there is one.
fn msync(addr: u64, len: u64, flags: u32) -> Result<()> {
    const BOTH: u32 = abi::MS_SYNC | abi::MS_ASYNC;
    if flags & !(BOTH | abi::MS_INVALIDATE) != 0
        || flags & BOTH == BOTH
        || !addr.is_multiple_of(PAGE)
    {
        return Err(EINVAL);
    }
    let len = range(addr, len)?;
    if len == 0 {
        return Ok(());
    }
    let mm = current_mm()?;
    if flags & abi::MS_INVALIDATE != 0 && vm::mapping_stats(&mm.space, addr, addr + len).locked != 0
    {
        return Err(EBUSY);
    }
    let covered = vm::check_mapped(&mm.space, addr, len);
    if flags & abi::MS_SYNC != 0 {
        sync_files(&mm.space, addr, len)?;
    }
    covered
}

/// Has the files that are mapped shared in a range written back. Without being asked to wait, the
/// flusher does it in time.
fn sync_files(space: &Space, addr: u64, len: u64) -> Result<()> {
    /// Files that are remembered as written: mappings of few files may follow each other by turns.
    const RECENT: usize = 16;
    let (mut recent, mut synced) = ([0; RECENT], 0);
    let (mut at, end) = (addr, addr + len);
    while at < end && !sched::is_leaving() {
        let mut object = 0;
        let mapping_end = vm::line(space, at, &mut |line| {
            if line.start < end && line.sharing == Sharing::Shared {
                object = line.object;
            }
        });
        let Some(mapping_end) = mapping_end else { break };
        if object != 0 && !recent.contains(&object) {
            fs::sync_object(object)?;
            recent[synced % RECENT] = object;
            synced += 1;
        }
        sched::work_done(MAPPING);
        at = mapping_end;
    }
    Ok(())
}

fn mincore(addr: u64, len: u64, out: u64) -> Result<()> {
    /// How many pages are asked for at once.
    const CHUNK: usize = 256;
    let len = range(addr, len)?;
    if out.checked_add(len / PAGE).is_none_or(|end| end > USER_END) {
        return Err(EFAULT);
    }
    let mm = current_mm()?;
    let mut done = 0;
    while done < len {
        let pages = ((len - done) / PAGE).min(CHUNK as u64) as usize;
        let mut found = [0u8; CHUNK];
        vm::resident(&mm.space, addr + done, &mut found[..pages])?;
        user::copy_out(out + done / PAGE, &found[..pages])?;
        done += pages as u64 * PAGE;
        // Each page was looked up in the map, its amap and its object.
        if sched::work_done(pages * 256) && sched::is_leaving() {
            return Err(EINTR);
        }
    }
    Ok(())
}
