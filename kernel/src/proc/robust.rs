//! Robust mutexes: what a thread held when it died is marked so, and one waiter for each is woken.
//!
//! The list lies in user memory and is not trusted: it is walked for at most `LIMIT` entries, and a
//! bad pointer ends it.

use core::sync::atomic::Ordering;

use super::futex;
use super::thread::Thread;
use crate::errno::{Result, EINVAL};
use crate::{sched, user};

const LIMIT: usize = 2048;
/// An entry's work, which may bring two pages in: that of copying so many bytes.
const WORK: usize = 4096;
pub(super) const WAITERS: u32 = 0x8000_0000;
pub(super) const OWNER_DIED: u32 = 0x4000_0000;
pub(super) const TID_MASK: u32 = 0x3fff_ffff;
/// The size of `struct robust_list_head`, which `set_robust_list` must be told.
pub const HEAD_SIZE: u64 = 24;

/// Releases everything on the thread's robust list.
pub fn release_all(thread: &Thread) {
    let head = thread.robust_list.swap(0, Ordering::Relaxed);
    if head != 0 {
        let _ = walk(thread, head);
    }
}

fn walk(thread: &Thread, head: u64) -> Result<()> {
    let [first, offset, pending]: [u64; 3] = user::get(head)?;
    let mut entry = first & !1;
    for _ in 0..LIMIT {
        if entry == head {
            break;
        }
        let next: u64 = user::get(entry)?;
        if entry != pending {
            release(thread, entry.wrapping_add(offset), Why::Held)?;
        }
        entry = next & !1;
        sched::work_done(WORK);
    }
    if pending != 0 {
        release(thread, (pending & !1).wrapping_add(offset), Why::Pending)?;
    }
    Ok(())
}

/// How a word got on the list.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    Held,
    /// The thread was about to lock or unlock it.
    Pending,
}

fn release(thread: &Thread, word: u64, why: Why) -> Result<()> {
    if !word.is_multiple_of(4) {
        return Err(EINVAL);
    }
    loop {
        let value = user::load_u32(word)?;
        if why == Why::Pending && value == 0 {
            futex::wake_address(word, 1);
            return Ok(());
        }
        if value & TID_MASK != thread.tid() as u32 {
            return Ok(());
        }
        if user::compare_exchange_u32(word, value, value & WAITERS | OWNER_DIED)? == value {
            if value & WAITERS != 0 {
                futex::wake_address(word, 1);
            }
            return Ok(());
        }
    }
}
