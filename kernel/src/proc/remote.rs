//! Bytes from and to the memory of another process: for `process_vm_readv` and its like, and `/proc/PID/mem`.
//!
//! The other's pages are brought in and pinned as for a device, and copied through the kernel's map: they need not be mapped here.

use alloc::sync::Arc;

use machine::PAGE_SIZE;

use super::{current_process, table, Pid};
use crate::arch::io;
use crate::arch::machine::KERNEL;
use crate::errno::*;
use crate::fs::io::{outcome, IoVec, Sink, Source};
use crate::mem::layout::USER_END;
use crate::vm::{Access, Pins, Space};

/// The memory of a process that the caller may look into.
///
/// # Errors
/// `ESRCH`, `EPERM`.
pub fn space_of(pid: Pid) -> Result<Arc<Space>> {
    let process = table::process(pid).ok_or(ESRCH)?;
    let own = current_process();
    if !core::ptr::eq(&**own, &*process) && !own.cred().may_look_into(&process.cred()) {
        return Err(EPERM);
    }
    process.space().ok_or(ESRCH)
}

/// Copies as many bytes of `remote` as there is room for in `to`.
///
/// # Errors
/// `EFAULT`, `ENOMEM`; only if nothing was copied.
pub fn read(space: &Space, remote: &[IoVec], to: &mut Sink<'_>) -> Result<usize> {
    let mut buffer = alloc::vec![0; PAGE_SIZE];
    each_part(remote, to.left(), |addr, len| {
        with_page(space, addr, len, Access::Read, |bytes| buffer[..len].copy_from_slice(bytes))?;
        // Not from the page itself: this may wait for memory, and meanwhile the page need not be pinned.
        to.put(&buffer[..len])
    })
}

/// Copies the bytes of `from` to `remote`, as many as have room there.
///
/// # Errors
/// As [`read`].
pub fn write(space: &Space, remote: &[IoVec], from: &mut Source<'_>) -> Result<usize> {
    let mut buffer = alloc::vec![0; PAGE_SIZE];
    each_part(remote, from.left(), |addr, len| {
        let got = from.get(&mut buffer[..len])?;
        with_page(space, addr, got, Access::Write, |bytes| bytes.copy_from_slice(&buffer[..got]))?;
        Ok(got)
    })
}

/// Calls `copy` for each part of the first `room` bytes of the other's memory that lies in one page, until one is not copied whole.
/// Fails only if nothing was copied.
fn each_part(
    remote: &[IoVec],
    room: usize,
    mut copy: impl FnMut(u64, usize) -> Result<usize>,
) -> Result<usize> {
    let mut done = 0;
    for piece in remote {
        let (mut addr, mut left) = (piece.addr, piece.len.min(room - done));
        while left > 0 {
            let len = left.min(PAGE_SIZE - addr as usize % PAGE_SIZE);
            match copy(addr, len) {
                Ok(copied) => {
                    done += copied;
                    if copied < len {
                        return Ok(done);
                    }
                }
                Err(errno) => return outcome(done, Err(errno)),
            }
            io::interrupt_window();
            addr = addr.wrapping_add(len as u64);
            left -= len;
        }
    }
    Ok(done)
}

/// Calls `copy` with bytes of the other's memory, which lie in one page.
fn with_page(
    space: &Space,
    addr: u64,
    len: usize,
    access: Access,
    copy: impl FnOnce(&mut [u8]),
) -> Result<()> {
    let from = addr as usize % PAGE_SIZE;
    if addr.checked_add(len as u64).is_none_or(|end| end > USER_END) {
        return Err(EFAULT);
    }
    let pins = Pins::new(space, addr - from as u64, 1, access)?;
    let page = *pins.pages().first().ok_or(EFAULT)?;
    KERNEL.with_bytes(page, |bytes| copy(&mut bytes[from..from + len]));
    Ok(())
}
