//! What a small port on bare metal takes as it is: a spin lock, and bytes of frames that the kernel
//! has mapped.

use core::sync::atomic::{AtomicBool, Ordering::*};

use crate::{RawLock, PAGE_SIZE};

/// A spin lock. A kernel that takes interrupts where it uses the library needs one of its own,
/// which keeps them out; and a CPU that spins must not be one that another waits for, in a flush.
///
/// ```
/// use machine::{bare::Spin, RawLock};
/// static LOCK: Spin = Spin::new();
/// LOCK.lock();
/// assert!(!LOCK.try_lock());
/// ```
pub struct Spin(AtomicBool);

impl Spin {
    /// A free lock, for a static.
    ///
    /// ```
    /// static LOCK: machine::bare::Spin = machine::bare::Spin::new();
    /// ```
    #[expect(clippy::new_without_default, reason = "a lock is made where it stays")]
    pub const fn new() -> Self {
        Spin(AtomicBool::new(false))
    }
}

// SAFETY: one thread changes the flag from false to true, and has the lock until it stores false.
unsafe impl RawLock for Spin {
    fn new() -> Self {
        Spin::new()
    }

    fn lock(&self) {
        while !self.try_lock() {
            // By loads, which leave the line with the CPU that has the lock.
            while self.0.load(Relaxed) {
                core::hint::spin_loop();
            }
        }
    }

    fn try_lock(&self) -> bool {
        !self.0.swap(true, Acquire)
    }

    unsafe fn unlock(&self) {
        self.0.store(false, Release);
    }
}

/// The bytes of a frame where the kernel has mapped it: what `Machine`'s `zero`, `copy`, `read` and
/// `write` are about. Programs may change them meanwhile: so all accesses are volatile, and there
/// is no reference to them.
///
/// ```
/// use machine::{bare::FrameBytes, PAGE_SIZE};
/// #[repr(align(8))]
/// struct Frame([u8; PAGE_SIZE]);
/// let mut frame = Frame([7; PAGE_SIZE]);
/// // SAFETY: it is accessed in no other way meanwhile.
/// let bytes = unsafe { FrameBytes::new(&raw mut frame.0 as *mut u8) };
/// bytes.zero();
/// bytes.write(PAGE_SIZE - 2, &[1, 2]);
/// let mut word = [9; 2];
/// bytes.read(PAGE_SIZE - 3, &mut word);
/// assert_eq!(word, [0, 1]);
/// ```
#[derive(Clone, Copy)]
pub struct FrameBytes(*mut u8);

impl FrameBytes {
    /// Those that begin at an address.
    ///
    /// # Safety
    /// So many bytes as a page has are mapped there, to be read and written, for as long as the
    /// value is used; no Rust object is among them.
    ///
    /// ```no_run
    /// let direct = 0xffff_8000_0000_0000 as *mut u8;
    /// // SAFETY: the kernel has mapped all memory from there on, and this is a page of it.
    /// unsafe { machine::bare::FrameBytes::new(direct) }.zero();
    /// ```
    pub const unsafe fn new(at: *mut u8) -> FrameBytes {
        FrameBytes(at)
    }

    /// Fills the page with zeroes.
    ///
    /// ```
    /// # let mut frame = vec![7_u64; machine::PAGE_SIZE / 8];
    /// # // SAFETY: it is accessed in no other way meanwhile.
    /// # let bytes = unsafe { machine::bare::FrameBytes::new(frame.as_mut_ptr().cast()) };
    /// bytes.zero();
    /// # assert!(frame.iter().all(|word| *word == 0));
    /// ```
    pub fn zero(self) {
        // Words, so that they are moved as such.
        move_bytes([0_u64; PAGE_SIZE / 8].as_ptr().cast(), self.0, PAGE_SIZE);
    }

    /// Makes the page a copy of another.
    ///
    /// ```
    /// # let (mut a, mut b) = (vec![7_u64; machine::PAGE_SIZE / 8], vec![0; machine::PAGE_SIZE / 8]);
    /// # let bytes = |of: &mut Vec<u64>| {
    /// #     // SAFETY: it is accessed in no other way meanwhile.
    /// #     unsafe { machine::bare::FrameBytes::new(of.as_mut_ptr().cast()) }
    /// # };
    /// # let (from, to) = (bytes(&mut a), bytes(&mut b));
    /// to.copy(from);
    /// # assert_eq!(a, b);
    /// ```
    pub fn copy(self, from: FrameBytes) {
        move_bytes(from.0, self.0, PAGE_SIZE);
    }

    /// Reads bytes of the page; panics if there are none so far behind.
    ///
    /// ```
    /// # let mut frame = vec![7_u64; machine::PAGE_SIZE / 8];
    /// # // SAFETY: it is accessed in no other way meanwhile.
    /// # let bytes = unsafe { machine::bare::FrameBytes::new(frame.as_mut_ptr().cast()) };
    /// let mut word = [0; 8];
    /// bytes.read(16, &mut word);
    /// # assert_eq!(u64::from_ne_bytes(word), 7);
    /// ```
    pub fn read(self, offset: usize, to: &mut [u8]) {
        move_bytes(self.at(offset, to.len()), to.as_mut_ptr(), to.len());
    }

    /// Writes bytes of the page; panics if there are none so far behind.
    ///
    /// ```
    /// # let mut frame = vec![7_u64; machine::PAGE_SIZE / 8];
    /// # // SAFETY: it is accessed in no other way meanwhile.
    /// # let bytes = unsafe { machine::bare::FrameBytes::new(frame.as_mut_ptr().cast()) };
    /// bytes.write(16, &1_u64.to_ne_bytes());
    /// # assert_eq!(frame[2], 1);
    /// ```
    pub fn write(self, offset: usize, from: &[u8]) {
        move_bytes(from.as_ptr(), self.at(offset, from.len()), from.len());
    }

    fn at(self, offset: usize, len: usize) -> *mut u8 {
        assert!(len <= PAGE_SIZE && offset <= PAGE_SIZE - len, "bytes beyond a page's end");
        self.0.wrapping_add(offset)
    }
}

/// Copies by words, where all is aligned for them.
fn move_bytes(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: callers name bytes of a frame (`FrameBytes::new`), or of a slice that they have.
    unsafe {
        if (from.addr() | to.addr() | len).is_multiple_of(8) {
            let (from, to) = (from.cast::<u64>(), to.cast::<u64>());
            (0..len / 8).for_each(|n| to.add(n).write_volatile(from.add(n).read_volatile()));
        } else {
            (0..len).for_each(|n| to.add(n).write_volatile(from.add(n).read_volatile()));
        }
    }
}
