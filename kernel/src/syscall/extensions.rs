//! The calls for programs that move memory (docs/calls.md): transfer-read, anflush, donate-write,
//! export, import.

use alloc::sync::Arc;

use machine::PAGE_SIZE;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::mem::{current_mm, prot, PAGE, PROT_KNOWN};
use super::{Calls, Handler};
use crate::arch::layout::USER_END;
use crate::chain::zero_copy::{from_pages, give_pages, hold, loan_pages, take_back, to_pages};
use crate::chain::{Chain, Clusters};
use crate::errno::*;
use crate::fs::export::ExportNode;
use crate::fs::fdtable::OnExec;
use crate::fs::file::File;
use crate::fs::inode::downcast;
use crate::fs::pipe::{self, Blocking, Taken};
use crate::proc::curproc;
use crate::proc::growth::allow_growth;
use crate::user;
use crate::vm::{self, Export, Giving};
use linux_raw_sys::general as abi;

/// Numbers that Linux doesn't use.
pub const CALLS: Calls = {
    const TRANSFER_READ: (u32, Handler) = (501, super::handler!(transfer_read, 4));
    const ANFLUSH: (u32, Handler) = (502, super::handler!(anflush, 2));
    const DONATE_WRITE: (u32, Handler) = (503, super::handler!(donate_write, 3));
    const EXPORT: (u32, Handler) = (504, super::handler!(export, 4));
    const IMPORT: (u32, Handler) = (505, super::handler!(import, 3));
    &[TRANSFER_READ, ANFLUSH, DONATE_WRITE, EXPORT, IMPORT]
};

/// A piece of a transfer as programs have it.
#[repr(C)]
#[derive(Clone, Copy, IntoBytes, FromBytes, Immutable)]
struct UserPiece {
    start: u64,
    len: u64,
}

/// Bytes from which memory is given to a pipe as it is, and not page by page.
const RANGE: usize = 8 * PAGE_SIZE;

/// The most pieces and bytes of one call.
const MOST_PIECES: u32 = 256;
const MOST_BYTES: usize = 4 << 20;

fn transfer_read(fd: i32, pieces: u64, count: u32, most: usize) -> Result<usize> {
    let file = curproc::file(fd)?;
    let mm = current_mm()?;
    if count == 0 {
        return Err(EINVAL);
    }
    if most == 0 {
        return Ok(0);
    }
    let count = count.min(MOST_PIECES) as usize;
    let size = size_of::<UserPiece>() as u64;
    user::zero_out(pieces, count * size_of::<UserPiece>())?;
    let most = most.min(MOST_BYTES);
    let taken = match pipe::of(&file).filter(|_| file.is_readable()) {
        Some(pipe) => {
            pipe.take_any(Blocking::of(&file), most, |range| super::mem::import(range, None))?
        }
        None => Taken::Bytes(file.take(most)?),
    };
    let chain = match taken {
        Taken::Bytes(chain) => chain,
        Taken::Range(start, len) => {
            user::put(pieces, &UserPiece { start, len: len as u64 })?;
            return Ok(1);
        }
    };
    if chain.is_empty() {
        return Ok(0);
    }
    let (loan, found) = match to_pages(chain, count) {
        Ok(done) => done,
        Err((errno, chain)) => return Err(put_back(&file, chain, errno)),
    };
    let growing = match allow_growth(&mm, (loan.len() * PAGE_SIZE) as u64, 0..0) {
        Ok(growing) => growing,
        Err(errno) => return Err(put_back(&file, from_pages(loan, &found), errno)),
    };
    let at = match vm::transfer(&mm.space, loan) {
        Ok(at) => at,
        Err((errno, loan)) => {
            // The holder of a pipe's lock, which `put_back` takes, may wait for this.
            drop(growing);
            return Err(put_back(&file, from_pages(loan, &found), errno));
        }
    };
    // The address of the pieces may be where a stack is about to grow, which takes this too.
    drop(growing);
    for (index, piece) in found.iter().enumerate() {
        let piece = UserPiece { start: at + piece.offset as u64, len: piece.len as u64 };
        user::put(pieces + index as u64 * size, &piece)?;
    }
    Ok(found.len())
}

/// Puts back what could not be delivered, for the next reader.
fn put_back(file: &File, chain: Chain, errno: Errno) -> Errno {
    file.unget(chain);
    errno
}

/// Gives up the private memory of all pages that a range touches.
fn anflush(addr: u64, len: u64) -> Result<()> {
    let end = addr.checked_add(len).filter(|&end| end <= USER_END).ok_or(EINVAL)?;
    let start = addr / PAGE * PAGE;
    let len = end.next_multiple_of(PAGE) - start;
    if addr == end {
        return Ok(());
    }
    vm::flush(&current_mm()?.space, start, len)
}

/// Gives a pipe the memory as it is; another file, and what isn't plain memory, in the form of
/// loaned pages that are then taken from the program: what is on loan from no owner any more moves
/// whole.
fn donate_write(fd: i32, addr: u64, len: usize) -> Result<usize> {
    let file = curproc::file(fd)?;
    if !addr.is_multiple_of(PAGE) {
        return Err(EINVAL);
    }
    if !file.is_writable() {
        return Err(EBADF);
    }
    let mm = current_mm()?;
    let mut done = 0;
    while done < len {
        let part = (len - done).min(MOST_BYTES);
        let moved = donate_part(&file, &mm.space, addr + done as u64, part);
        match moved {
            Ok(moved) => {
                done += moved;
                if moved < part {
                    break;
                }
            }
            Err(errno) if done == 0 => return Err(errno),
            Err(_) => break,
        }
    }
    Ok(done)
}

fn donate_part(file: &Arc<File>, space: &vm::Space, addr: u64, len: usize) -> Result<usize> {
    if let Some(pipe) = pipe::of(file).filter(|_| len >= RANGE && len.is_multiple_of(PAGE_SIZE)) {
        if pipe.give_range(Blocking::of(file), space, addr, len as u64 / PAGE)? {
            return Ok(len);
        }
    }
    let mut chain = Chain::new();
    let was_given = give_pages(&mut chain, space, addr, len)?;
    if !was_given {
        loan_pages(&mut chain, space, addr, len)?;
    }
    let part = chain.len();
    let sent = hold(&chain).and_then(|_charge| file.give(&mut chain));
    let done = sent.unwrap_or(0);
    // A page of which a part went is still the program's: whole pages go, and so does the end of
    // the range.
    let is_all = done == part && part == len;
    let gone =
        if is_all { len.next_multiple_of(PAGE_SIZE) } else { done / PAGE_SIZE * PAGE_SIZE } as u64;
    if was_given {
        take_back(chain, space, addr + gone);
        let _ = vm::unmap_donated(space, addr, gone);
    } else {
        chain.release(&Clusters);
        if gone > 0 {
            // What can't be forgotten (locked memory, a hole by now) has been loaned, which is as
            // good to the receiver.
            let _ = vm::flush(space, addr, gone);
        }
    }
    sent
}

fn export(addr: u64, len: u64, mode: u32, bits: u32) -> Result<i32> {
    if bits & !PROT_KNOWN != 0
        || len == 0
        || !addr.is_multiple_of(PAGE)
        || !len.is_multiple_of(PAGE)
    {
        return Err(EINVAL);
    }
    addr.checked_add(len).filter(|&end| end <= USER_END).ok_or(EINVAL)?;
    let giving = match mode {
        1 => Giving::Share,
        2 => Giving::Copy,
        3 => Giving::Donate,
        4 => Giving::DonateZero,
        _ => return Err(EINVAL),
    };
    // Room for the descriptor first: what was donated can't be given back.
    let files = curproc::files()?;
    let node = ExportNode::empty();
    let file = File::anonymous(node.clone(), abi::O_RDWR)?;
    let number = files.reserve()?;
    node.fill(Export::new(&current_mm()?.space, addr, len / PAGE, giving, prot(bits))?);
    Ok(number.open(file, OnExec::Close))
}

fn import(fd: i32, addr: u64, flags: u32) -> Result<u64> {
    const FIXED: u32 = 1;
    let file = curproc::file(fd)?;
    let node = downcast::<ExportNode>(file.inode()).ok_or(EBADF)?;
    let export = node.export().ok_or(EBADF)?;
    if flags & !FIXED != 0 {
        return Err(EINVAL);
    }
    let place = if flags & FIXED != 0 { Some(addr) } else { None };
    super::mem::import(export, place)
}
