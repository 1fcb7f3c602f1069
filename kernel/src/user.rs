//! User memory, touched only here: checked copies that turn a bad pointer into `EFAULT`.
//!
//! A copy checks that its range lies below the user limit and then just copies. A page fault on the
//! way is answered by the VM system as if the program had touched the page; if that fails, the
//! exception table of `arch::user_access` ends the copy. A copy may sleep, for a page that has to
//! be read or for memory: never call these with a spin lock held. Builds with debug assertions
//! check that.

use alloc::vec::Vec;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::arch::bytes::PageBytes;
use crate::arch::user_access::{self, UserRange};
use crate::errno::{Result, E2BIG, EFAULT, ENAMETOOLONG};
use crate::mem::fault::Room;
use crate::sched;
use crate::sync::assert_none_held;

/// Bytes copied between two looks at the tasks that wait.
const CHUNK: usize = 64 * 1024;

/// Every way to user memory that may sleep comes through here.
#[inline]
#[track_caller]
fn check(va: u64, len: usize) -> Result<UserRange> {
    assert_none_held();
    UserRange::new(va, len).ok_or(EFAULT)
}

/// Whether a piece of memory lies in the program's half of addresses, as far as it goes.
pub fn is_within(va: u64, len: usize) -> bool {
    UserRange::new(va, len).is_some()
}

/// Fewer bytes than these are not counted as work: their call has more to do than to copy.
const FEW: usize = 256;

/// So many bytes were copied: others may run now. A thread that is being ended copies no more.
#[inline]
fn copied(bytes: usize) -> Result<()> {
    if bytes >= FEW && sched::work_done(bytes) && sched::is_leaving() {
        return Err(EFAULT);
    }
    Ok(())
}

/// Copies from user memory.
#[inline]
pub fn copy_in(dst: &mut [u8], src: u64) -> Result<()> {
    let src = check(src, dst.len())?;
    if dst.len() <= CHUNK {
        user_access::copy_in(dst, src).map_err(|_| EFAULT)?;
        return copied(dst.len());
    }
    for (n, part) in dst.chunks_mut(CHUNK).enumerate() {
        user_access::copy_in(part, src.part(n * CHUNK, part.len())).map_err(|_| EFAULT)?;
        copied(part.len())?;
    }
    Ok(())
}

/// Copies to user memory.
#[inline]
pub fn copy_out(dst: u64, src: &[u8]) -> Result<()> {
    let dst = check(dst, src.len())?;
    if src.len() <= CHUNK {
        user_access::copy_out(dst, src).map_err(|_| EFAULT)?;
        return copied(src.len());
    }
    for (n, part) in src.chunks(CHUNK).enumerate() {
        user_access::copy_out(dst.part(n * CHUNK, part.len()), part).map_err(|_| EFAULT)?;
        copied(part.len())?;
    }
    Ok(())
}

/// Copies from user memory to bytes of a page.
#[inline]
pub fn copy_in_page(dst: PageBytes, src: u64) -> Result<()> {
    let bytes = dst.len();
    user_access::copy_in_page(dst, check(src, bytes)?).map_err(|_| EFAULT)?;
    copied(bytes)
}

/// Copies bytes of a page to user memory.
#[inline]
pub fn copy_out_page(dst: u64, src: PageBytes) -> Result<()> {
    let bytes = src.len();
    user_access::copy_out_page(check(dst, bytes)?, src).map_err(|_| EFAULT)?;
    copied(bytes)
}

/// Zeroes user memory.
pub fn zero_out(dst: u64, len: usize) -> Result<()> {
    let dst = check(dst, len)?;
    for at in (0..len).step_by(CHUNK) {
        let part = CHUNK.min(len - at);
        user_access::zero(dst.part(at, part)).map_err(|_| EFAULT)?;
        copied(part)?;
    }
    Ok(())
}

/// Reads a string without its zero byte; `ENAMETOOLONG` if there is none in the first `max` bytes.
pub fn read_cstr(src: u64, max: usize) -> Result<Vec<u8>> {
    let all = check(src, 0)?.to_limit();
    let mut text = Vec::new();
    let mut step = 64;
    loop {
        let done = text.len();
        let room = step.min(max - done).min(all.len() - done);
        text.room(room)?;
        text.resize(done + room, 0);
        let n = user_access::string(&mut text[done..], all.part(done, room)).map_err(|_| EFAULT)?;
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

/// Makes sure that what a newer program may say behind a structure, of which `len` bytes are not
/// known here, says nothing.
///
/// # Errors
/// `E2BIG`: it says something, or is longer than a page; `EFAULT`.
pub fn check_zeroes(from: u64, len: usize) -> Result<()> {
    let mut bytes = [0u8; 64];
    if len > 4096 {
        return Err(E2BIG);
    }
    for at in (0..len).step_by(bytes.len()) {
        let part = &mut bytes[..(len - at).min(64)];
        copy_in(part, from.saturating_add(at as u64))?;
        if part.iter().any(|&byte| byte != 0) {
            return Err(E2BIG);
        }
    }
    Ok(())
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
    user_access::load32(check(src, 4)?).map_err(|_| EFAULT)
}

/// Loads an aligned word of user memory atomically if its page is mapped; else `EFAULT`, and
/// [`load_u32`] may still succeed. May be called with spin locks held.
pub fn peek_u32(src: u64) -> Result<u32> {
    user_access::peek32(UserRange::new(src, 4).ok_or(EFAULT)?).map_err(|_| EFAULT)
}

/// As [`compare_exchange_u32`] if its page is mapped and may be written; else `EFAULT`, and that
/// may still succeed. May be called with spin locks held.
pub fn try_exchange_u32(at: u64, expected: u32, new: u32) -> Result<u32> {
    let at = UserRange::new(at, 4).ok_or(EFAULT)?;
    user_access::try_exchange32(at, expected, new).map_err(|_| EFAULT)
}

/// Stores `new` in an aligned word of user memory if it is `expected`, atomically; returns what was
/// found.
pub fn compare_exchange_u32(at: u64, expected: u32, new: u32) -> Result<u32> {
    user_access::exchange32(check(at, 4)?, expected, new).map_err(|_| EFAULT)
}
