//! Bytes between programs' memory and chains: copied, or lent.
//!
//! ```text
//!   write   .....PPPP|PPPPPPPP|PPPPPPPP|PPP....      copied | lent | lent | copied
//! ```
//! Whole pages of a large write are lent: the chain refers to the program's own pages, which change no more (`uvm::loan`). What is
//! smaller, and what is left at both ends, is copied. From which size on that pays was measured: see docs/moving.md.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use mbuf::{NoMemory, PAGE_SIZE};

use super::pages::{append_lent, Chain, Clusters};
use crate::errno::*;
use crate::fs::io::{Sink, Source};
use crate::mem::layout::USER_END;
use crate::{proc, vm};

/// Bytes from which a mechanism is used.
pub struct Threshold {
    from: AtomicUsize,
    usual: usize,
}

impl Threshold {
    const fn new(usual: usize) -> Threshold {
        Threshold { from: AtomicUsize::new(usual), usual }
    }

    /// Whether so many bytes are enough.
    #[inline]
    pub fn allows(&self, bytes: usize) -> bool {
        bytes >= self.from.load(Relaxed)
    }

    /// As text: bytes, or `never`.
    pub fn show(&self) -> alloc::string::String {
        match self.from.load(Relaxed) {
            usize::MAX => "never\n".into(),
            from => alloc::format!("{from}\n"),
        }
    }

    /// Takes bytes, `never` or `default`.
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn set(&self, text: &str) -> Result<()> {
        let from = match text.trim() {
            "never" => usize::MAX,
            "default" => self.usual,
            number => number.parse().map_err(|_| EINVAL)?,
        };
        self.from.store(from, Relaxed);
        Ok(())
    }
}

/// From how many bytes on a write lends its whole pages.
pub static LOAN: Threshold = Threshold::new(16 * PAGE_SIZE);
/// The same for pipes. Where the reader copies, a loan spares one copy of two, and 64 KiB of a buffer that was never touched cost
/// 30,100 instructions in place of 19,400: so not by itself.
pub static PIPE_LOAN: Threshold = Threshold::new(usize::MAX);
/// Pages that are lent together, at least: fewer are copied sooner.
const FEWEST: usize = 2;

/// Puts up to `most` bytes of `from` behind what `chain` has.
///
/// Fails with `EFAULT` or `ENOBUFS`, after what could be taken.
pub fn append(chain: &mut Chain, from: &mut Source<'_>, most: usize) -> Result<()> {
    let end = from.done() + most.min(from.left());
    while from.done() < end {
        let left = end - from.done();
        let part = match pages_ahead(from, left) {
            Some((0, addr, pages)) => {
                if lend(chain, from, addr, pages)? {
                    continue;
                }
                // They can't be read, as a copy will find out; or memory is short.
                left
            }
            Some((before, ..)) => before,
            None => left,
        };
        copy(chain, from, part)?;
    }
    Ok(())
}

/// Whole pages among the next `left` bytes that are worth lending: how many bytes come before, where they are, how many.
fn pages_ahead(from: &Source<'_>, left: usize) -> Option<(usize, u64, usize)> {
    // What has no room yet counts: it will come.
    if !LOAN.allows(from.left()) {
        return None;
    }
    let (addr, len) = from.run()?;
    let before = addr.wrapping_neg() as usize % PAGE_SIZE;
    let pages = len.min(left).checked_sub(before)? / PAGE_SIZE;
    let enough = pages >= FEWEST || LOAN.allows(PAGE_SIZE);
    (pages > 0 && enough).then_some((before, addr + before as u64, pages))
}

/// Lends pages to a chain; says no if they can't be lent.
fn lend(chain: &mut Chain, from: &mut Source<'_>, addr: u64, pages: usize) -> Result<bool> {
    if addr.checked_add((pages * PAGE_SIZE) as u64).is_none_or(|end| end > USER_END) {
        return Ok(false);
    }
    let Some(space) = proc::current_thread().space() else { return Ok(false) };
    let Ok(lent) = vm::lend(&space, addr, pages as u64) else { return Ok(false) };
    let before = chain.len();
    let result = append_lent(chain, lent);
    from.skip(chain.len() - before);
    result.map(|()| true)
}

/// Copies `len` bytes of `from` behind what `chain` has.
fn copy(chain: &mut Chain, from: &mut Source<'_>, len: usize) -> Result<()> {
    let end = from.done() + len;
    while from.done() < end {
        let left = end - from.done();
        let room = chain.room(&Clusters, left).map_err(|NoMemory| ENOBUFS)?;
        let n = room.len().min(left);
        match from.get(&mut room[..n]) {
            Ok(n) => chain.wrote(&Clusters, n),
            Err(errno) => {
                chain.wrote(&Clusters, 0);
                return Err(errno);
            }
        }
    }
    Ok(())
}

/// Copies a chain's bytes out as far as there is room, and drops them from it.
pub fn pour(chain: &mut Chain, to: &mut Sink<'_>) -> Result<()> {
    while to.left() > 0 && !chain.is_empty() {
        let n = to.put(chain.first(&Clusters))?;
        chain.trim_front(&Clusters, n);
    }
    Ok(())
}
