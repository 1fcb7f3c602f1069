//! User memory, touched only here: checked copies that turn a bad pointer into `EFAULT`.
//!
//! A copy checks that its range lies below the user limit and then just copies. A page fault on the way is answered by the VM system
//! as if the program had touched the page; if that fails, the exception table of `arch::user_access` ends the copy.
//! A copy may sleep, for a page that has to be read or for memory: never call these with a spin lock held. Builds with
//! debug assertions check that.

use alloc::vec::Vec;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::arch::{io, user_access};
use crate::errno::{Result, EFAULT, ENAMETOOLONG};
use crate::mem::layout::USER_END;
use crate::sync::assert_none_held;

pub use user_access::fixup;

/// Bytes copied between two looks at pending interrupts.
const CHUNK: usize = 64 * 1024;

/// Every way to user memory comes through here.
#[inline]
#[track_caller]
fn check(va: u64, len: usize) -> Result<()> {
    assert_none_held();
    match va.checked_add(len as u64) {
        Some(end) if end <= USER_END => Ok(()),
        _ => Err(EFAULT),
    }
}

/// Copies from user memory.
#[inline]
pub fn copy_in(dst: &mut [u8], src: u64) -> Result<()> {
    check(src, dst.len())?;
    if dst.len() <= CHUNK {
        return user_access::copy_in(dst, src).map_err(|_| EFAULT);
    }
    for (n, part) in dst.chunks_mut(CHUNK).enumerate() {
        user_access::copy_in(part, src + (n * CHUNK) as u64).map_err(|_| EFAULT)?;
        io::interrupt_window();
    }
    Ok(())
}

/// Copies to user memory.
#[inline]
pub fn copy_out(dst: u64, src: &[u8]) -> Result<()> {
    check(dst, src.len())?;
    if src.len() <= CHUNK {
        return user_access::copy_out(dst, src).map_err(|_| EFAULT);
    }
    for (n, part) in src.chunks(CHUNK).enumerate() {
        user_access::copy_out(dst + (n * CHUNK) as u64, part).map_err(|_| EFAULT)?;
        io::interrupt_window();
    }
    Ok(())
}

/// Zeroes user memory.
pub fn zero_out(dst: u64, len: usize) -> Result<()> {
    check(dst, len)?;
    for at in (0..len).step_by(CHUNK) {
        user_access::zero(dst + at as u64, CHUNK.min(len - at)).map_err(|_| EFAULT)?;
        io::interrupt_window();
    }
    Ok(())
}

/// Reads a string without its zero byte; `ENAMETOOLONG` if there is none in the first `max` bytes.
pub fn read_cstr(src: u64, max: usize) -> Result<Vec<u8>> {
    check(src, 0)?;
    let mut text = Vec::new();
    let mut step = 64;
    loop {
        let done = text.len();
        let room = step.min(max - done).min((USER_END - src) as usize - done);
        text.resize(done + room, 0);
        let n = user_access::string(&mut text[done..], src + done as u64).map_err(|_| EFAULT)?;
        if n < room {
            text.truncate(done + n);
            return Ok(text);
        }
        if text.len() == max {
            return Err(ENAMETOOLONG);
        }
        if room == 0 {
            return Err(EFAULT);
        }
        step = 4096;
    }
}

/// Reads a value from user memory.
#[inline]
pub fn get<T: FromBytes + IntoBytes>(src: u64) -> Result<T> {
    let mut value = T::new_zeroed();
    copy_in(value.as_mut_bytes(), src)?;
    Ok(value)
}

/// Writes a value to user memory.
#[inline]
pub fn put<T: IntoBytes + Immutable>(dst: u64, value: &T) -> Result<()> {
    copy_out(dst, value.as_bytes())
}

/// Loads an aligned word of user memory atomically.
pub fn load_u32(src: u64) -> Result<u32> {
    check(src, 4)?;
    user_access::load32(src).map_err(|_| EFAULT)
}

/// Stores `new` in an aligned word of user memory if it is `expected`, atomically; returns what was found.
pub fn compare_exchange_u32(at: u64, expected: u32, new: u32) -> Result<u32> {
    check(at, 4)?;
    user_access::exchange32(at, expected, new).map_err(|_| EFAULT)
}
