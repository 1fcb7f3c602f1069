//! Bytes of a page frame that programs and other CPUs may read and write at the same time.
//!
//! Rust's references promise that no other writes meanwhile, which no kernel can promise here. So
//! no reference to such bytes is made: instructions that the compiler doesn't look into copy them
//! in and out, and a reader takes each byte as it was at some moment.

use core::arch::asm;

use machine::{PageNo, PAGE_SIZE};

use crate::mem::frames::KERNEL;
use crate::mem::window::Window;

/// Bytes that lie together in one page, which the caller keeps from being freed: their name, by
/// which the operations here reach them through a [`Window`].
#[derive(Clone, Copy)]
pub struct PageBytes {
    /// The physical address of the first.
    at: u64,
    len: usize,
}

impl PageBytes {
    /// All bytes of a page.
    ///
    /// # Panics
    /// If the frame holds no bytes of use.
    #[inline]
    pub fn of(page: PageNo) -> PageBytes {
        PageBytes { at: KERNEL.frames().bytes_at(page).0, len: PAGE_SIZE }
    }

    /// How many they are.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// A window onto them.
    #[inline]
    pub fn window(self) -> Window {
        Window::open(self.at)
    }

    /// `len` of them from `start` on.
    ///
    /// # Panics
    /// If there are not so many.
    #[inline]
    pub fn part(self, start: usize, len: usize) -> PageBytes {
        assert!(
            start <= self.len && len <= self.len - start,
            "{len} bytes at {start} of {}",
            self.len
        );
        PageBytes { at: self.at + start as u64, len }
    }

    /// Copies the bytes to `to`, which is as long.
    #[inline]
    pub fn copy_to(self, to: &mut [u8]) {
        assert!(to.len() == self.len, "{} bytes are copied to {}", self.len, to.len());
        // SAFETY: both are `len` bytes long, by this type and the check; what is exclusively
        // borrowed overlaps with no page's bytes.
        unsafe { copy(self.window().at(), to.as_mut_ptr(), self.len) };
    }

    /// Copies `from`, which is as long, to them.
    #[inline]
    pub fn copy_from(self, from: &[u8]) {
        assert!(from.len() == self.len, "{} bytes are copied from {}", self.len, from.len());
        // SAFETY: as in `copy_to`; no Rust object lies in a page that has such bytes.
        unsafe { copy(from.as_ptr(), self.window().at(), self.len) };
    }

    /// Makes the bytes zero.
    pub fn zero(self) {
        let window = self.window();
        // SAFETY: as in `copy_from`.
        unsafe {
            asm!(
                "rep stosq",
                "mov ecx, {rest:e}",
                "rep stosb",
                rest = in(reg) self.len % 8,
                in("rax") 0u64,
                inout("rdi") window.at() => _,
                inout("rcx") self.len / 8 => _,
                options(nostack, preserves_flags)
            );
        }
    }

    /// Makes a whole page zero.
    ///
    /// # Panics
    /// If they are no whole page.
    #[inline]
    pub fn zero_page(self) {
        assert!(self.len == PAGE_SIZE, "{} bytes are no page", self.len);
        // SAFETY: as in `copy_from`, and they begin a page.
        unsafe { zero_page(self.window().at()) };
    }

    /// Copies the whole page `from` to this one.
    ///
    /// # Panics
    /// If either is no whole page.
    #[inline]
    pub fn copy_page(self, from: PageBytes) {
        assert!([self.len, from.len] == [PAGE_SIZE; 2], "{} bytes are no page", self.len);
        let (from, to) = (from.window(), self.window());
        // SAFETY: as in `copy_from`.
        unsafe {
            asm!(
                "rep movsq",
                inout("rsi") from.at() => _,
                inout("rdi") to.at() => _,
                inout("rcx") PAGE_SIZE / 8 => _,
                options(nostack, preserves_flags)
            );
        }
    }

    /// Copies `from`, bytes of another page and as many, to these.
    pub fn copy_between(self, from: PageBytes) {
        assert!(self.len == from.len, "{} bytes are copied to {}", from.len, self.len);
        let (from, to) = (from.window(), self.window());
        // SAFETY: as in `copy_from`.
        unsafe { copy(from.at(), to.at(), self.len) };
    }

    /// Whether all are zero.
    pub fn are_zero(self) -> bool {
        const STEP: usize = 64;
        let whole = self.len / STEP * STEP;
        if whole != 0 && !self.are_zero_in_steps(whole) {
            return false;
        }
        let mut rest = [0; STEP];
        let rest = &mut rest[..self.len - whole];
        self.part(whole, rest.len()).copy_to(rest);
        rest.iter().all(|&byte| byte == 0)
    }

    /// Whether the first `len` bytes are zero: some multiple of 64, and not none.
    fn are_zero_in_steps(self, len: usize) -> bool {
        debug_assert!(len != 0 && len.is_multiple_of(64) && len <= self.len);
        let window = self.window();
        let found: u64;
        // SAFETY: `len` bytes can be read, by this type and its callers.
        unsafe {
            asm!(
                "2:",
                "mov {found}, [{at}]",
                ".set looked, 8",
                ".rept 7",
                "or {found}, [{at} + looked]",
                ".set looked, looked + 8",
                ".endr",
                "test {found}, {found}",
                "jnz 3f",
                "add {at}, 64",
                "cmp {at}, {end}",
                "jne 2b",
                "3:",
                found = out(reg) found,
                at = inout(reg) window.at() => _,
                end = in(reg) window.at().wrapping_add(len),
                options(nostack, readonly)
            );
        }
        found == 0
    }
}

/// Makes a page zero, with 16-byte stores: half the instructions of 8-byte ones, and faster under
/// TCG than any `rep`. The program's vector register is put back.
///
/// # Safety
/// The page at `at` is mapped, and is the caller's or holds no Rust object.
#[inline]
pub(super) unsafe fn zero_page(at: *mut u8) {
    // SAFETY: by the caller's promise; xmm0 holds a program's value and is restored.
    unsafe {
        asm!(
            "sub rsp, 16",
            "movups [rsp], xmm0",
            "pxor xmm0, xmm0",
            "2:",
            ".set zeroed, 0",
            ".rept 64",
            "movaps [{at} + zeroed], xmm0",
            ".set zeroed, zeroed + 16",
            ".endr",
            "add {at}, 1024",
            "test {at}, 0xfff",
            "jnz 2b",
            "movups xmm0, [rsp]",
            "add rsp, 16",
            at = inout(reg) at => _,
        );
    }
}

/// # Safety
/// `len` bytes can be read at `from` and written at `to`, and the two don't overlap. Others may
/// write them meanwhile.
#[inline]
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: by the caller's promise.
    unsafe {
        asm!(
            "rep movsq",
            "mov ecx, {rest:e}",
            "rep movsb",
            rest = in(reg) len % 8,
            inout("rsi") from => _,
            inout("rdi") to => _,
            inout("rcx") len / 8 => _,
            options(nostack, preserves_flags)
        );
    }
}
