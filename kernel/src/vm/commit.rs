//! How much memory is promised to programs, and how much may be (`/proc/sys/vm/overcommit_*`).
//!
//! A private mapping that may be stored to is a promise, and so are the pages that were stored to
//! of one that no longer may; and memory that is shared without a file, by its size. In mode
//! [`GUESS`] one promise of more than all memory and swap is refused, in [`ALWAYS`] none, and in
//! [`NEVER`] any by which all would be more than [`limit`], less what is kept for root and for each
//! program's user.
//!
//! C1: in mode `NEVER`, `PROMISED` is the sum of what spaces say of themselves (`Space::promised`),
//! each of which is what the space holds, or is about to. A space is counted anew, as a whole, by
//! whatever has changed its mappings, with `Mm::growing` held: only in this mode, so that mappings
//! cost nothing for it in the others. C2: memory that is shared is counted in all modes, by what is
//! attached to it ([`Shared`]).
//!
//! Pages of files in memory don't count, and have bounds of their own.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, AtomicU8, Ordering::Relaxed};

use machine::{Pages, Prot, PAGE_SIZE};
use uvm::{Attached, Sharing};

use super::settings::memory_and_swap;
use super::space::Space;
use super::system::with;
use crate::errno::{Result, EINVAL, ENOMEM};
use crate::mem::fault::Room;

/// One promise of more than there is is refused.
pub const GUESS: u8 = 0;
/// None is.
pub const ALWAYS: u8 = 1;
/// No more is promised than there is.
pub const NEVER: u8 = 2;

const PAGE: u64 = PAGE_SIZE as u64;
/// Mappings of a space that may no longer be stored to and whose pages are counted one by one; more
/// are counted as wholes.
const ONCE: usize = 1024;

static MODE: AtomicU8 = AtomicU8::new(GUESS);
/// Of the limit in mode `NEVER`: percent of memory, and if that isn't zero KiB in its place.
pub static RATIO: AtomicU64 = AtomicU64::new(50);
pub static KBYTES: AtomicU64 = AtomicU64::new(0);
/// KiB that are kept for root, and for a program's user to stop it, at most.
pub static ADMIN_RESERVE: AtomicU64 = AtomicU64::new(8 << 10);
pub static USER_RESERVE: AtomicU64 = AtomicU64::new(128 << 10);

/// Pages promised to spaces, and of memory that is shared.
static PROMISED: AtomicU64 = AtomicU64::new(0);
static SHARED: AtomicU64 = AtomicU64::new(0);

/// Who asks: the privileged may use what is kept for them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Asker {
    Admin,
    Other,
}

pub fn mode() -> u8 {
    MODE.load(Relaxed)
}

/// Whether spaces are counted.
pub fn is_strict() -> bool {
    mode() == NEVER
}

/// # Errors
/// `EINVAL`: there is no such mode.
pub fn set_mode(mode: u8) -> Result<()> {
    if mode > NEVER {
        return Err(EINVAL);
    }
    MODE.store(mode, Relaxed);
    Ok(())
}

/// Pages that may be promised in mode `NEVER`.
pub fn limit() -> u64 {
    let (memory, swap) = memory_and_swap();
    let of_memory = match KBYTES.load(Relaxed) {
        0 => (u128::from(memory) * u128::from(RATIO.load(Relaxed)) / 100) as u64,
        kbytes => kbytes / 4,
    };
    of_memory.saturating_add(swap)
}

/// Pages that are promised of memory that is shared.
pub fn shared() -> u64 {
    SHARED.load(Relaxed)
}

/// Pages that a space holds promises of. Cost: by its mappings, and by the pages of those that were
/// stored to once.
pub fn count(space: &Space) -> u64 {
    let mut pages = 0;
    let mut once = Vec::new();
    let _ = once.room(ONCE);
    with(|uvm, held| {
        uvm.outline(held, space.get(), space.get().bounds(), |entry| {
            if entry.sharing != Sharing::Private {
                return;
            }
            let all = entry.range.pages().0;
            if entry.prot.contains(Prot::WRITE) {
                pages += all;
            } else if entry.has_amap {
                // With the map locked: nothing is allocated here.
                if once.len() < once.capacity() {
                    once.push(entry.range);
                } else {
                    pages += all;
                }
            }
        });
    });
    for range in once {
        let stats = with(|uvm, held| uvm.range_stats(held, space.get(), range));
        pages += (stats.anonymous + stats.swapped) as u64;
    }
    pages
}

/// Whether so many pages more may be promised where a program has mapped so many bytes; those that
/// are counted already are told too.
fn may_promise(pages: u64, counted: u64, mapped: u64, asker: Asker) -> Result<()> {
    let fits = match mode() {
        _ if pages == 0 => true,
        GUESS => {
            let (memory, swap) = memory_and_swap();
            pages <= memory + swap
        }
        NEVER => {
            let admin = if asker == Asker::Admin { 0 } else { ADMIN_RESERVE.load(Relaxed) / 4 };
            let user = (mapped / PAGE / 32).min(USER_RESERVE.load(Relaxed) / 4);
            counted < limit().saturating_sub(admin).saturating_sub(user)
        }
        _ => true,
    };
    fits.then_some(()).ok_or(ENOMEM)
}

/// Promises a space so many bytes more, where so many are mapped; in mode `NEVER` until
/// [`settle`] finds what has become of that.
///
/// # Errors
/// `ENOMEM`; nothing is promised.
pub fn take(space: &Space, more: u64, mapped: u64, asker: Asker) -> Result<()> {
    let pages = more.div_ceil(PAGE);
    if !is_strict() {
        return may_promise(pages, 0, mapped, asker);
    }
    let counted = PROMISED.fetch_add(pages, Relaxed) + pages + shared();
    space.promised().fetch_add(pages, Relaxed);
    may_promise(pages, counted, mapped, asker).inspect_err(|_| {
        PROMISED.fetch_sub(pages, Relaxed);
        space.promised().fetch_sub(pages, Relaxed);
    })
}

/// Counts a space anew, whose mappings may have changed. No other thread changes them meanwhile.
pub fn settle(space: &Space) {
    set(space, count(space));
}

/// The space's mappings go.
pub fn leave(space: &Space) {
    set(space, 0);
}

fn set(space: &Space, pages: u64) {
    let before = space.promised().swap(pages, Relaxed);
    PROMISED.fetch_add(pages.wrapping_sub(before), Relaxed);
}

/// What memory that is shared without a file is promised, as long as it is there.
pub struct Shared(u64);

impl Attached for Shared {}

impl Shared {
    /// # Errors
    /// `ENOMEM`.
    pub fn take(bytes: u64, mapped: u64, asker: Asker) -> Result<Shared> {
        let pages = Pages::ceil(bytes).0;
        let counted = SHARED.fetch_add(pages, Relaxed) + pages + PROMISED.load(Relaxed);
        let taken = Shared(pages);
        may_promise(pages, counted, mapped, asker)?;
        Ok(taken)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        SHARED.fetch_sub(self.0, Relaxed);
    }
}

/// All that is promised in mode `NEVER`.
pub fn promised() -> u64 {
    PROMISED.load(Relaxed) + shared()
}
