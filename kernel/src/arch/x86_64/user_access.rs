//! The few instructions that touch user memory, each with a place to go on when they fault.

use super::bytes::PageBytes;
use super::{cpu, pmap};
use crate::arch::layout::USER_END;
use crate::mem::window;
use machine::PAGE_SIZE;

extern "C" {
    fn user_copy(dst: u64, src: u64, len: usize) -> u64;
    fn user_try_copy(dst: u64, src: u64, len: usize) -> usize;
    fn user_try_copy_words();
    fn user_try_copy_bytes();
    fn user_zero(dst: u64, len: usize) -> u64;
    fn user_string(dst: *mut u8, src: u64, max: usize) -> i64;
    fn user_load32(src: u64, out: *mut u32) -> u64;
    fn user_peek32(src: u64, out: *mut u32) -> u64;
    fn user_peek32_load();
    fn user_exchange32(at: u64, expected: u32, new: u32, found: *mut u32) -> u64;
    fn user_try_exchange32(at: u64, expected: u32, new: u32, found: *mut u32) -> u64;
    fn user_try_exchange32_store();
    static fixups_start: [u64; 2];
    static fixups_end: [u64; 2];
    static smap_sites_start: [u64; 2];
    static smap_sites_end: [u64; 2];
}

/// A user address was bad.
pub struct Fault;

/// Addresses that are programs' and never the kernel's: they end at the user limit at the latest.
#[derive(Clone, Copy)]
pub struct UserRange {
    start: u64,
    len: usize,
}

impl UserRange {
    /// `len` bytes from `start` on; `None` if not all of them are below the user limit.
    #[inline]
    pub fn new(start: u64, len: usize) -> Option<UserRange> {
        match start.checked_add(len as u64) {
            Some(end) if end <= USER_END => Some(UserRange { start, len }),
            _ => None,
        }
    }

    /// `len` bytes of it from its byte `at` on.
    ///
    /// # Panics
    /// If there are not so many.
    #[inline]
    pub fn part(self, at: usize, len: usize) -> UserRange {
        assert!(at <= self.len && len <= self.len - at, "{len} bytes at {at} of {}", self.len);
        UserRange { start: self.start + at as u64, len }
    }

    /// All addresses from the range's start to the user limit.
    pub fn to_limit(self) -> UserRange {
        UserRange { len: (USER_END - self.start) as usize, ..self }
    }

    /// Its bytes.
    #[inline]
    pub fn len(self) -> usize {
        self.len
    }

    /// Where the range begins, for an access of `len` bytes, which are all.
    #[inline]
    fn start(self, len: usize) -> u64 {
        assert!(self.len == len, "an access of {len} bytes to {}", self.len);
        self.start
    }
}

/// Does what uses the program's translations, with nothing in between but faults.
#[inline]
fn using<T>(access: impl FnOnce() -> T) -> T {
    pmap::begin_use();
    let result = access();
    pmap::end_use();
    result
}

fn check(failed: u64) -> Result<(), Fault> {
    if failed == 0 {
        Ok(())
    } else {
        Err(Fault)
    }
}

/// Where to go on after a fault at `rip`; `None` if nothing there may fault.
pub fn fixup(rip: u64) -> Option<u64> {
    // SAFETY: the linker script puts the table between the two symbols, in read-only memory.
    let table = unsafe {
        let start = &raw const fixups_start;
        let len = (&raw const fixups_end).offset_from(start) as usize;
        core::slice::from_raw_parts(start, len)
    };
    table.iter().find(|entry| entry[0] == rip).map(|entry| entry[1])
}

/// Writes STAC and CLAC to their places if the CPU has them. Runs while the image is still
/// writable.
pub fn enable_smap() {
    if !cpu::has_smap() {
        return;
    }
    // SAFETY: as in `fixup`; each site is three bytes of a no-op in the kernel's text, which the
    // boot tables map writable.
    unsafe {
        let start = &raw const smap_sites_start;
        let len = (&raw const smap_sites_end).offset_from(start) as usize;
        for [site, code] in core::slice::from_raw_parts(start, len) {
            core::ptr::copy_nonoverlapping(
                core::ptr::from_ref(code).cast::<u8>(),
                *site as *mut u8,
                3,
            );
        }
    }
    // CPUID serialises: no stale no-op is executed.
    let _ = core::arch::x86_64::__cpuid(0);
}

/// Copies from user memory; `dst` is as long.
#[inline]
pub fn copy_in(dst: &mut [u8], src: UserRange) -> Result<(), Fault> {
    let src = src.start(dst.len());
    // SAFETY: `dst` is ours; faults at `src` are caught.
    check(using(|| unsafe { user_copy(dst.as_mut_ptr() as u64, src, dst.len()) }))
}

/// Like [`copy_in`], to bytes of a page, which other threads may write meanwhile.
#[inline]
pub fn copy_in_page(dst: PageBytes, src: UserRange) -> Result<(), Fault> {
    if !window::are_ephemeral() {
        let window = dst.window();
        let src = src.start(dst.len());
        // SAFETY: the window's page holds no Rust object; faults at `src` are caught.
        return check(using(|| unsafe { user_copy(window.at() as u64, src, dst.len()) }));
    }
    by_parts(
        dst.len(),
        src,
        |done, src| {
            let window = dst.part(done, dst.len() - done).window();
            // SAFETY: as above.
            using(|| unsafe { user_try_copy(window.at() as u64, src, dst.len() - done) })
        },
        |done, src| {
            let mut few = [0; FEW];
            let few = &mut few[..src.len()];
            copy_in(few, src)?;
            dst.part(done, few.len()).copy_from(few);
            Ok(())
        },
    )
}

/// Bytes that are copied by way of the stack where a fault is to be answered.
const FEW: usize = 64;

/// Copies `len` bytes between a page and user memory with no window open while a fault is answered:
/// `all` copies from byte `done` on until there is a fault, and says how many bytes are left;
/// `few` copies some, which may fault and sleep.
#[cold]
fn by_parts(
    len: usize,
    user: UserRange,
    all: impl Fn(usize, u64) -> usize,
    few: impl Fn(usize, UserRange) -> Result<(), Fault>,
) -> Result<(), Fault> {
    user.start(len);
    let mut done = 0;
    loop {
        done = len - all(done, user.part(done, len - done).start(len - done));
        if done == len {
            return Ok(());
        }
        let to_page_end = PAGE_SIZE - user.part(done, 1).start(1) as usize % PAGE_SIZE;
        let some = FEW.min(len - done).min(to_page_end);
        few(done, user.part(done, some))?;
        done += some;
        if done == len {
            return Ok(());
        }
    }
}

/// Copies to user memory; `src` is as long.
#[inline]
pub fn copy_out(dst: UserRange, src: &[u8]) -> Result<(), Fault> {
    let dst = dst.start(src.len());
    // SAFETY: `src` is ours; a program's memory is no Rust object; faults are caught.
    check(using(|| unsafe { user_copy(dst, src.as_ptr() as u64, src.len()) }))
}

/// Like [`copy_out`], from bytes of a page, which other threads may write meanwhile.
#[inline]
pub fn copy_out_page(dst: UserRange, src: PageBytes) -> Result<(), Fault> {
    if !window::are_ephemeral() {
        let window = src.window();
        let dst = dst.start(src.len());
        // SAFETY: the window's bytes can be read; the rest as in `copy_out`.
        return check(using(|| unsafe { user_copy(dst, window.at() as u64, src.len()) }));
    }
    by_parts(
        src.len(),
        dst,
        |done, dst| {
            let window = src.part(done, src.len() - done).window();
            // SAFETY: as above.
            using(|| unsafe { user_try_copy(dst, window.at() as u64, src.len() - done) })
        },
        |done, dst| {
            let mut few = [0; FEW];
            let few = &mut few[..dst.len()];
            src.part(done, few.len()).copy_to(few);
            copy_out(dst, few)
        },
    )
}

/// Zeroes user memory.
pub fn zero(dst: UserRange) -> Result<(), Fault> {
    // SAFETY: as in `copy_out`.
    check(using(|| unsafe { user_zero(dst.start, dst.len) }))
}

/// Copies a string without its zero byte from a range as long as `dst`; the number of bytes before
/// it, or `dst.len()` if there is none.
pub fn string(dst: &mut [u8], src: UserRange) -> Result<usize, Fault> {
    let src = src.start(dst.len());
    // SAFETY: as in `copy_in`.
    let n = using(|| unsafe { user_string(dst.as_mut_ptr(), src, dst.len()) });
    usize::try_from(n).map_err(|_| Fault)
}

/// Loads an aligned word of four bytes atomically.
pub fn load32(src: UserRange) -> Result<u32, Fault> {
    let (src, mut value) = (src.start(4), 0);
    // SAFETY: faults at `src` are caught.
    check(using(|| unsafe { user_load32(src, &mut value) }))?;
    Ok(value)
}

/// Loads an aligned word atomically if its page is mapped here and now. Neither sleeps nor asks the
/// VM system.
pub fn peek32(src: UserRange) -> Result<u32, Fault> {
    let (src, mut value) = (src.start(4), 0);
    // SAFETY: as in `load32`.
    check(using(|| unsafe { user_peek32(src, &mut value) }))?;
    Ok(value)
}

/// Whether a fault at `rip` is not to be answered.
pub fn is_peek(rip: u64) -> bool {
    let peeks = [
        user_peek32_load as *const (),
        user_try_exchange32_store as *const (),
        user_try_copy_words as *const (),
        user_try_copy_bytes as *const (),
    ];
    peeks.iter().any(|&at| rip == at as u64)
}

/// As [`exchange32`], but a fault is the end of it. May run with spin locks held.
pub fn try_exchange32(at: UserRange, expected: u32, new: u32) -> Result<u32, Fault> {
    let (at, mut found) = (at.start(4), 0);
    // SAFETY: as in `copy_out`.
    check(using(|| unsafe { user_try_exchange32(at, expected, new, &mut found) }))?;
    Ok(found)
}

/// Stores `new` if the word is `expected`, atomically; what was found.
pub fn exchange32(at: UserRange, expected: u32, new: u32) -> Result<u32, Fault> {
    let (at, mut found) = (at.start(4), 0);
    // SAFETY: as in `copy_out`.
    check(using(|| unsafe { user_exchange32(at, expected, new, &mut found) }))?;
    Ok(found)
}
