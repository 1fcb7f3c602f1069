//! The system calls by which a program on a UVM kernel moves memory without copying it.
//!
//! ```text
//!   donate_write ---> pipe, socket ---> transfer_read      pages go from program to program
//!   export ---------> descriptor -----> import             ranges of addresses do, with all that is mapped there
//! ```
//! On every other kernel each call fails with [`Errno::NO_SYSTEM_CALL`], so a program can fall back
//! on `read`, `write` and copies. What each call does, and how it fails, stands in `docs/calls.md`;
//! `include/uvm.h` is the same for C. The calls are unsafe where they change what an address shows:
//! as with `mmap` and `munmap`, no Rust reference may be left to what goes.
//!
//! Source: Cranor and Parulkar, "Zero-Copy Data Movement Mechanisms for UVM", sections 4.2 and 4.3.

#![no_std]
#![allow(unsafe_code)]

use core::ffi::c_long;

/// The numbers of the calls.
pub mod number {
    use core::ffi::c_long;

    /// [`transfer_read`](super::transfer_read).
    pub const TRANSFER_READ: c_long = 501;
    /// [`anflush`](super::anflush).
    pub const ANFLUSH: c_long = 502;
    /// [`donate_write`](super::donate_write).
    pub const DONATE_WRITE: c_long = 503;
    /// [`export`](super::export).
    pub const EXPORT: c_long = 504;
    /// [`import`](super::import).
    pub const IMPORT: c_long = 505;
    /// [`minherit`](super::minherit).
    pub const MINHERIT: c_long = 510;
}

/// Why a call failed: an error number as in `errno.h`.
///
/// ```
/// use uvm_user::{transfer_read, Errno};
/// let refused = transfer_read(-1, &mut [], 0);
/// assert_ne!(refused, Err(Errno(0)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);

impl Errno {
    /// This kernel doesn't have the call.
    pub const NO_SYSTEM_CALL: Errno = Errno(libc::ENOSYS);
}

impl core::fmt::Display for Errno {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "system error {}", self.0)
    }
}

impl core::error::Error for Errno {}

/// A file descriptor.
pub type Fd = i32;

/// Bytes that came by a transfer: `length` of them, from `start` on. The rest of their pages is
/// zero.
///
/// ```
/// use uvm_user::Piece;
/// fn length(pieces: &[Piece]) -> usize {
///     pieces.iter().map(|piece| piece.length).sum()
/// }
/// assert_eq!(length(&[Piece::NONE; 4]), 0);
/// ```
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Where they are.
    pub start: *mut u8,
    /// How many.
    pub length: usize,
}

impl Piece {
    /// No bytes.
    pub const NONE: Piece = Piece { start: core::ptr::null_mut(), length: 0 };
}

/// What an export gives to a program that imports it.
///
/// ```
/// # fn f(start: *mut u8, length: usize) -> Result<uvm_user::Fd, uvm_user::Errno> {
/// use uvm_user::{export, Export};
/// const PROT_READ: i32 = 1;
/// // SAFETY: others may read it, and may see later stores or not.
/// unsafe { export(start, length, Export::Share, PROT_READ) }
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Export {
    /// The same memory.
    Share = 1,
    /// What it holds now.
    Copy = 2,
    /// It leaves the giver, and nothing stays there.
    Donate = 3,
    /// It leaves the giver, and zeroes take its place.
    DonateZero = 4,
}

/// Where an import goes.
///
/// ```
/// # fn f(descriptor: uvm_user::Fd) -> Result<*mut u8, uvm_user::Errno> {
/// use uvm_user::{import, Place};
/// // SAFETY: nothing is replaced.
/// unsafe { import(descriptor, Place::Anywhere) }
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Where the kernel likes.
    Anywhere,
    /// To this address, a multiple of the page size, in place of what is there.
    Fixed(*mut u8),
}

/// What a child gets of a range.
///
/// ```
/// # fn f(start: *mut u8, length: usize) -> Result<(), uvm_user::Errno> {
/// use uvm_user::{minherit, Inherit};
/// minherit(start, length, Inherit::None) // A child gets nothing of a secret.
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Inherit {
    /// The same memory.
    Share = 0,
    /// A copy.
    Copy = 1,
    /// Nothing.
    None = 2,
    /// Zeroes.
    Zero = 4,
}

/// Takes up to `most` bytes out of a pipe or socket, in pages that are mapped where the kernel
/// likes; returns how many pieces they came in, 0 at the end. They are the caller's memory from
/// then on; [`anflush`] gives them back.
///
/// # Errors
/// As `read`, and `EINVAL` for no room in `pieces` or a descriptor that has no such bytes.
///
/// ```
/// # fn f(pipe: uvm_user::Fd) -> Result<(), uvm_user::Errno> {
/// use uvm_user::{anflush, transfer_read, Piece};
/// let mut pieces = [Piece::NONE; 16];
/// let count = transfer_read(pipe, &mut pieces, 1 << 20)?;
/// for piece in &pieces[..count] {
///     // SAFETY: they came by the transfer, and are used no more.
///     unsafe { anflush(piece.start, piece.length)? };
/// }
/// # Ok(()) }
/// ```
pub fn transfer_read(fd: Fd, pieces: &mut [Piece], most: usize) -> Result<usize, Errno> {
    let count = pieces.len().min(u32::MAX as usize);
    // SAFETY: the kernel writes at most `count` pieces, which are plain data, and maps pages only
    // where nothing was.
    let result =
        unsafe { libc::syscall(number::TRANSFER_READ, fd, pieces.as_mut_ptr(), count, most) };
    done(result).map(|pieces| pieces as usize)
}

/// Gives up the memory of a range: pages that came by a transfer are gone, other private pages read
/// as zeroes again.
///
/// # Safety
/// Nothing in these pages is used any more.
///
/// # Errors
/// `EINVAL` for a range outside of user memory, `ENOMEM` if it has holes.
///
/// ```
/// # fn f(piece: uvm_user::Piece) -> Result<(), uvm_user::Errno> {
/// // SAFETY: what came is not used any more.
/// unsafe { uvm_user::anflush(piece.start, piece.length) }
/// # }
/// ```
pub unsafe fn anflush(start: *mut u8, length: usize) -> Result<(), Errno> {
    // SAFETY: the caller has given the pages up.
    done(unsafe { libc::syscall(number::ANFLUSH, start, length) }).map(|_| ())
}

/// Writes bytes whose pages leave the caller; zeroes take their place. `start` is a multiple of the
/// page size; of a last page that isn't used whole the rest is lost. Returns how many bytes went.
///
/// # Safety
/// All of the pages' contents may go: nothing else in them is used any more.
///
/// # Errors
/// As `write`; `EINVAL` for an address inside a page.
///
/// ```
/// # fn f(pipe: uvm_user::Fd, pages: *mut u8) -> Result<usize, uvm_user::Errno> {
/// // SAFETY: these pages hold nothing else that is used later.
/// unsafe { uvm_user::donate_write(pipe, pages, 16 << 12) }
/// # }
/// ```
pub unsafe fn donate_write(fd: Fd, start: *mut u8, length: usize) -> Result<usize, Errno> {
    // SAFETY: the caller has given the pages up.
    done(unsafe { libc::syscall(number::DONATE_WRITE, fd, start, length) })
        .map(|bytes| bytes as usize)
}

/// Makes a range of whole pages fit to be imported, by a process that has the descriptor that this
/// returns, with at most `protection` (`PROT_READ` and so on). Closing its last copy takes back
/// what was not imported.
///
/// # Safety
/// A range that is donated isn't used any more, and one that is shared may change at any time.
///
/// # Errors
/// `EINVAL` for parts of pages, `EACCES` for more protection than the caller has, `ENOMEM`,
/// `EMFILE`.
///
/// ```
/// # fn f(pages: *mut u8) -> Result<uvm_user::Fd, uvm_user::Errno> {
/// use uvm_user::{export, Export};
/// const PROT_READ: i32 = 1;
/// // SAFETY: the range is used no more.
/// unsafe { export(pages, 16 << 12, Export::Donate, PROT_READ) }
/// # }
/// ```
pub unsafe fn export(
    start: *mut u8,
    length: usize,
    mode: Export,
    protection: i32,
) -> Result<Fd, Errno> {
    // SAFETY: the caller has given up, or shares, the range.
    done(unsafe { libc::syscall(number::EXPORT, start, length, mode as c_long, protection) })
        .map(|fd| fd as Fd)
}

/// Maps what was exported as `fd`; returns where. Donated memory can be imported once.
///
/// # Safety
/// As `mmap`: with [`Place::Fixed`] nothing that was there is used any more.
///
/// # Errors
/// `EBADF` if it isn't an export, `ENODATA` if it was donated and imported before, `ENOMEM`,
/// `EINVAL`.
///
/// ```
/// # fn f(descriptor: uvm_user::Fd) -> Result<(), uvm_user::Errno> {
/// use uvm_user::{import, Place};
/// // SAFETY: nothing is replaced.
/// let start = unsafe { import(descriptor, Place::Anywhere)? };
/// println!("it lies at {start:?}");
/// # Ok(()) }
/// ```
pub unsafe fn import(fd: Fd, place: Place) -> Result<*mut u8, Errno> {
    const FIXED: c_long = 1;
    let (start, flags) = match place {
        Place::Anywhere => (core::ptr::null_mut(), 0),
        Place::Fixed(start) => (start, FIXED),
    };
    // SAFETY: the caller has given up what was at the place.
    done(unsafe { libc::syscall(number::IMPORT, fd, start, flags) }).map(|start| start as *mut u8)
}

/// Says what children get of a range of whole pages.
///
/// # Errors
/// `EINVAL` for parts of pages, `ENOMEM` for holes.
///
/// ```
/// # fn f(stack: *mut u8, length: usize) -> Result<(), uvm_user::Errno> {
/// use uvm_user::{minherit, Inherit};
/// minherit(stack, length, Inherit::Zero)
/// # }
/// ```
#[expect(
    clippy::not_unsafe_ptr_arg_deref,
    reason = "only the kernel looks at the address, and not behind it"
)]
pub fn minherit(start: *mut u8, length: usize, inherit: Inherit) -> Result<(), Errno> {
    // SAFETY: nothing that the caller can see changes.
    done(unsafe { libc::syscall(number::MINHERIT, start, length, inherit as c_long) }).map(|_| ())
}

fn done(result: c_long) -> Result<c_long, Errno> {
    if result == -1 {
        // SAFETY: the address of this thread's own error number, which lives as long as the thread.
        return Err(Errno(unsafe { *libc::__errno_location() }));
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    /// On a kernel without them programs are told so, and can fall back.
    #[test]
    fn other_kernels_say_that_they_lack_the_calls() {
        let mut page = std::vec![0u8; 4096];
        let mut pieces = [Piece::NONE; 2];
        assert_eq!(transfer_read(0, &mut pieces, 1), Err(Errno::NO_SYSTEM_CALL));
        // SAFETY: the calls don't exist here.
        unsafe {
            assert_eq!(anflush(page.as_mut_ptr(), 4096), Err(Errno::NO_SYSTEM_CALL));
            assert_eq!(donate_write(1, page.as_mut_ptr(), 4096), Err(Errno::NO_SYSTEM_CALL));
            assert_eq!(
                export(page.as_mut_ptr(), 4096, Export::Copy, 1),
                Err(Errno::NO_SYSTEM_CALL)
            );
            assert_eq!(import(0, Place::Anywhere), Err(Errno::NO_SYSTEM_CALL));
        }
        assert_eq!(minherit(page.as_mut_ptr(), 4096, Inherit::Zero), Err(Errno::NO_SYSTEM_CALL));
    }
}

/// The example of the crate's README, tested.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
