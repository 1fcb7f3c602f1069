//! Bytes from and to the memory of another process: for `process_vm_readv` and its like, and
//! `/proc/PID/mem`.
//!
//! The other's pages are brought in and pinned as for a device, and copied through the kernel's
//! map: they need not be mapped here.

use alloc::sync::Arc;

use machine::PAGE_SIZE;

use super::access::{self, By};
use super::{table, Pid};
use crate::arch::bytes::PageBytes;
use crate::arch::layout::USER_END;
use crate::errno::*;
use crate::mem::frames::KERNEL;
use crate::sched;
use crate::uio::{outcome, IoVec, Sink, Source};
use crate::vm::{Access, Pins, Space};

/// The memory of a process that the caller may look into.
///
/// # Errors
/// `ESRCH`, `EPERM`.
pub fn space_of(pid: Pid) -> Result<Arc<Space>> {
    let process = table::process(pid).ok_or(ESRCH)?;
    let mm = access::memory_of(&process, By::Real)?.ok_or(ESRCH)?;
    Ok(mm.space.clone())
}

/// On whose behalf another's memory is accessed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum As {
    /// As the other could itself: `process_vm_readv` and its like.
    Itself,
    /// As a debugger of it: `ptrace`, `/proc/PID/mem`.
    Debugger,
}

/// Pages that are pinned together.
const WINDOW: usize = 16;

/// Copies as many bytes of `remote` as there is room for in `to`.
///
/// # Errors
/// `EFAULT`, `ENOMEM`; only if nothing was copied.
pub fn read(space: &Space, by: As, remote: &[IoVec], to: &mut Sink<'_>) -> Result<usize> {
    each_part(space, by, remote, to.left(), Access::Read, |bytes| to.put_page(bytes))
}

/// Copies the bytes of `from` to `remote`, as many as have room there.
///
/// # Errors
/// As [`read`].
pub fn write(space: &Space, by: As, remote: &[IoVec], from: &mut Source<'_>) -> Result<usize> {
    each_part(space, by, remote, from.left(), Access::Write, |bytes| from.get_page(bytes))
}

/// Calls `copy` for each part of the first `room` bytes of the other's memory that lies in one
/// page, until one is not copied whole. Fails only if nothing was copied.
fn each_part(
    space: &Space,
    by: As,
    remote: &[IoVec],
    room: usize,
    access: Access,
    mut copy: impl FnMut(PageBytes) -> Result<usize>,
) -> Result<usize> {
    let mut done = 0;
    for piece in remote {
        let (mut addr, mut left) = (piece.addr, piece.len.min(room - done));
        while left > 0 {
            let pins = match pin(space, by, addr, left, access) {
                Ok(pins) => pins,
                Err(errno) => return outcome(done, Err(errno)),
            };
            for &page in pins.pages() {
                let start = addr as usize % PAGE_SIZE;
                let len = left.min(PAGE_SIZE - start);
                match copy(KERNEL.bytes(page).part(start, len)) {
                    Ok(copied) => {
                        done += copied;
                        if copied < len {
                            return Ok(done);
                        }
                    }
                    Err(errno) => return outcome(done, Err(errno)),
                }
                addr += len as u64;
                left -= len;
            }
            drop(pins);
            sched::give_way();
        }
    }
    Ok(done)
}

/// Pins the pages of the first of `len` bytes of the other's memory.
fn pin(space: &Space, by: As, addr: u64, len: usize, access: Access) -> Result<Pins> {
    let start = addr as usize % PAGE_SIZE;
    let first = addr - start as u64;
    let there = USER_END.checked_sub(first).ok_or(EFAULT)? as usize / PAGE_SIZE;
    let pages = (start + len).div_ceil(PAGE_SIZE).min(WINDOW).min(there);
    if pages == 0 {
        return Err(EFAULT);
    }
    // A hole behind the first page is for the next call to tell of.
    let new = if by == As::Debugger { Pins::for_debugger } else { Pins::new };
    new(space, first, pages as u64, access).or_else(|errno| match pages {
        1 => Err(errno),
        _ => new(space, first, 1, access),
    })
}
