//! The memory of a request, as a device is told of it: frames that lie together.

use arrayvec::ArrayVec;
use machine::{PageNo, PAGE_SIZE};

use crate::arch::layout;
use crate::arch::tables;
use crate::mem::frames::KERNEL;

/// Bytes that lie together in memory.
#[derive(Clone, Copy)]
pub struct Segment {
    /// Their physical address.
    pub(super) at: u64,
    pub(super) len: u32,
}

impl Segment {
    /// An address that stands for the first byte towards the driver's crate, which hands it to
    /// `Hal::share` and to nothing else: the kernel may have no mapping there.
    pub(super) fn at(&self) -> *mut u8 {
        layout::direct(self.at) as *mut u8
    }
}

/// Makes one segment of those that follow each other.
fn joined(parts: impl Iterator<Item = Segment>) -> impl Iterator<Item = Segment> {
    let mut parts = parts.peekable();
    core::iter::from_fn(move || {
        let mut whole = parts.next()?;
        while let Some(next) = parts.next_if(|next| whole.at + u64::from(whole.len) == next.at) {
            whole.len += next.len;
        }
        Some(whole)
    })
}

/// The segments of whole pages.
pub fn of_pages(pages: &[PageNo]) -> impl Iterator<Item = Segment> + '_ {
    let each = |&page| Segment { at: KERNEL.frames().bytes_at(page).0, len: PAGE_SIZE as u32 };
    joined(pages.iter().map(each))
}

/// Memory for a transfer.
#[derive(Clone, Copy)]
pub struct Bytes {
    at: At,
    len: usize,
}

/// Where its bytes are.
#[derive(Clone, Copy)]
enum At {
    /// At addresses of the kernel's own memory.
    Kernel(u64),
    /// In one frame, at that physical address.
    Frame(u64),
}

impl Bytes {
    /// `len` bytes at `at`.
    ///
    /// # Safety
    /// The bytes are the caller's until all requests for them have ended; and no other thread's, if
    /// a disk is to write there.
    pub unsafe fn new(at: u64, len: usize) -> Bytes {
        Bytes { at: At::Kernel(at), len }
    }

    /// The first `len` bytes of a page, at most all.
    ///
    /// # Safety
    /// As for [`new`](Bytes::new).
    pub unsafe fn of_page(page: PageNo, len: usize) -> Bytes {
        assert!(len <= PAGE_SIZE, "{len} bytes of a page");
        Bytes { at: At::Frame(KERNEL.frames().bytes_at(page).0), len }
    }

    /// How many they are.
    pub fn len(self) -> usize {
        self.len
    }

    /// `len` of them from `start` on.
    pub fn part(self, start: usize, len: usize) -> Bytes {
        assert!(
            start <= self.len && len <= self.len - start,
            "{len} bytes at {start} of {}",
            self.len
        );
        let at = match self.at {
            At::Kernel(at) => At::Kernel(at + start as u64),
            At::Frame(at) => At::Frame(at + start as u64),
        };
        Bytes { at, len }
    }
}

/// The segments of a transfer's memory.
pub fn of_bytes(bytes: Bytes) -> impl Iterator<Item = Segment> {
    let (At::Kernel(mut from) | At::Frame(mut from)) = bytes.at;
    let end = from + bytes.len as u64;
    let pages = core::iter::from_fn(move || {
        let next = (from + 1).next_multiple_of(PAGE_SIZE as u64).min(end);
        let len = next.checked_sub(from).filter(|&len| len > 0)? as u32;
        let at = match bytes.at {
            At::Kernel(_) => tables::physical(from).expect("a buffer of the kernel's is mapped"),
            At::Frame(_) => from,
        };
        from = next;
        Some(Segment { at, len })
    });
    joined(pages)
}

/// The segments of `len` bytes, at most, of pages behind the first `skip` bytes; at most so many
/// pages as the list has room for.
pub fn of_part<const PAGES: usize>(
    pages: &[PageNo],
    mut skip: u64,
    mut len: u64,
) -> ArrayVec<Segment, PAGES> {
    let mut part = ArrayVec::new();
    for Segment { at, len: bytes } in of_pages(pages) {
        let from = skip.min(u64::from(bytes));
        let take = (u64::from(bytes) - from).min(len);
        if take > 0 {
            part.push(Segment { at: at + from, len: take as u32 });
        }
        (skip, len) = (skip - from, len - take);
    }
    part
}

/// How many bytes a list has.
pub fn bytes(list: &[Segment]) -> usize {
    list.iter().map(|segment| segment.len as usize).sum()
}
