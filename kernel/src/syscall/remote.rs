//! `process_vm_readv` and `process_vm_writev`: bytes from and to another process's memory.
//!
//! The other's pages are brought in and pinned as for a device, and copied through the kernel's map: they need not be mapped here.

use alloc::sync::Arc;
use alloc::vec::Vec;

use machine::PAGE_SIZE;

use super::file::vector;
use super::{calls, Calls};
use crate::arch::io;
use crate::arch::machine::KERNEL;
use crate::errno::*;
use crate::fs::io::{outcome, IoVec, Sink, Source};
use crate::mem::layout::USER_END;
use crate::proc::{current_process, table, Pid};
use crate::vm::{Access, Pins, Space};

pub const CALLS: Calls = calls! {
    __NR_process_vm_readv => process_vm_readv[6],
    __NR_process_vm_writev => process_vm_writev[6],
};

/// The memory of a process that the caller may look into.
fn space_of(pid: Pid) -> Result<Arc<Space>> {
    let process = table::process(pid).ok_or(ESRCH)?;
    let own = current_process();
    if !core::ptr::eq(&**own, &*process) && !own.cred().may_look_into(&process.cred()) {
        return Err(EPERM);
    }
    process.space().ok_or(ESRCH)
}

/// What a call works with: the vectors, and the other's memory. Linux looks at the vectors first.
fn operands(
    pid: Pid,
    local: [u64; 2],
    remote: [u64; 2],
    flags: u64,
) -> Result<(Vec<IoVec>, Vec<IoVec>, Arc<Space>)> {
    if flags != 0 {
        return Err(EINVAL);
    }
    let local = vector(local[0], local[1] as usize)?;
    let remote = vector(remote[0], remote[1] as usize)?;
    Ok((local, remote, space_of(pid)?))
}

fn process_vm_readv(
    pid: Pid,
    local: u64,
    locals: u64,
    remote: u64,
    remotes: u64,
    flags: u64,
) -> Result<usize> {
    let (local, remote, space) = operands(pid, [local, locals], [remote, remotes], flags)?;
    let mut to = Sink::vector(&local);
    let mut buffer = alloc::vec![0; PAGE_SIZE];
    each_part(&remote, to.left(), |addr, len| {
        with_page(&space, addr, len, Access::Read, |bytes| buffer[..len].copy_from_slice(bytes))?;
        // Not from the page itself: this may wait for memory, and meanwhile the page need not be pinned.
        to.put(&buffer[..len])
    })
}

fn process_vm_writev(
    pid: Pid,
    local: u64,
    locals: u64,
    remote: u64,
    remotes: u64,
    flags: u64,
) -> Result<usize> {
    let (local, remote, space) = operands(pid, [local, locals], [remote, remotes], flags)?;
    let mut from = Source::vector(&local);
    let mut buffer = alloc::vec![0; PAGE_SIZE];
    each_part(&remote, from.left(), |addr, len| {
        let got = from.get(&mut buffer[..len])?;
        with_page(&space, addr, got, Access::Write, |bytes| bytes.copy_from_slice(&buffer[..got]))?;
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
