//! The memory of a request, as a device is told of it: frames that lie together.

use arrayvec::ArrayVec;
use machine::{PageNo, PAGE_SIZE};

use crate::arch::layout;
use crate::arch::tables;
use crate::mem::frames::KERNEL;

/// Segments of one request at most: 128 pages, and one more where bytes don't start at a page.
pub const MAX_SEGMENTS: usize = 129;

/// Bytes that lie together in memory.
#[derive(Clone, Copy)]
pub struct Segment {
    /// In the direct map.
    pub(super) at: u64,
    pub(super) len: u32,
}

/// The memory of one request.
pub type Segments = ArrayVec<Segment, MAX_SEGMENTS>;

/// Appends bytes of the direct map, to the last segment if they follow it.
fn append(list: &mut Segments, at: u64, len: u32) {
    match list.last_mut() {
        Some(last) if last.at + u64::from(last.len) == at => last.len += len,
        _ => list.push(Segment { at, len }),
    }
}

/// The segments of whole pages; at most 128.
pub fn of_pages(pages: &[PageNo]) -> Segments {
    let mut list = Segments::new();
    pages.iter().for_each(|&page| append(&mut list, KERNEL.address(page), PAGE_SIZE as u32));
    list
}

/// Kernel memory for a transfer.
#[derive(Clone, Copy)]
pub struct Bytes {
    at: u64,
    len: usize,
}

impl Bytes {
    /// `len` bytes at `at`.
    ///
    /// # Safety
    /// The bytes are the caller's until all requests for them have ended; and no other thread's, if
    /// a disk is to write there.
    pub unsafe fn new(at: u64, len: usize) -> Bytes {
        Bytes { at, len }
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
        Bytes { at: self.at + start as u64, len }
    }
}

/// The segments of kernel memory, at most 128 pages of it.
pub fn of_bytes(bytes: Bytes) -> Segments {
    let mut list = Segments::new();
    let end = bytes.at + bytes.len as u64;
    let mut from = bytes.at;
    while from < end {
        let next = (from + 1).next_multiple_of(PAGE_SIZE as u64).min(end);
        let pa = tables::physical(from).expect("a buffer of the kernel's is mapped");
        append(&mut list, layout::direct(pa), (next - from) as u32);
        from = next;
    }
    list
}

/// The segments of `len` bytes, at most, of pages behind the first `skip` bytes; at most 128 pages.
pub fn of_part(pages: &[PageNo], mut skip: u64, mut len: u64) -> Segments {
    let mut part = Segments::new();
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
