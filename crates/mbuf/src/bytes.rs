//! Bytes that lie together, and room for some: named, not shown, where they are a page's.

use core::ops::Range;

use crate::{Pages, PAGE_SIZE};

/// Bytes that lie together.
///
/// ```
/// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
/// # use host::*;
/// # let heap = Heap;
/// let page = heap.alloc()?;
/// assert_eq!(Bytes::Page(&page, 10..20).to_vec(&heap), [0; 10]);
/// # Ok::<(), NoMemory>(())
/// ```
pub enum Bytes<'a, H: Pages> {
    /// In memory of the chain or the caller.
    Here(&'a [u8]),
    /// In a page.
    Page(&'a H::Page, Range<usize>),
    /// In that page of a run.
    Run(&'a H::Run, usize, Range<usize>),
}

impl<H: Pages> Clone for Bytes<'_, H> {
    fn clone(&self) -> Self {
        match *self {
            Bytes::Here(bytes) => Bytes::Here(bytes),
            Bytes::Page(page, ref range) => Bytes::Page(page, range.clone()),
            Bytes::Run(run, page, ref range) => Bytes::Run(run, page, range.clone()),
        }
    }
}

impl<'a, H: Pages> Bytes<'a, H> {
    /// Those from byte `at` of a run on, up to `end`, that lie in one page.
    pub(crate) fn of_run(run: &'a H::Run, at: usize, end: usize) -> Self {
        let page = at / PAGE_SIZE;
        Bytes::Run(run, page, at % PAGE_SIZE..(end - page * PAGE_SIZE).min(PAGE_SIZE))
    }

    /// How many they are.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// assert_eq!(Bytes::<Heap>::Here(b"bytes").len(), 5);
    /// ```
    pub fn len(&self) -> usize {
        match self {
            Bytes::Here(bytes) => bytes.len(),
            Bytes::Page(_, range) | Bytes::Run(_, _, range) => range.len(),
        }
    }

    /// Whether there are none.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// assert!(Bytes::<Heap>::Here(b"").is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes `range` of them.
    ///
    /// # Panics
    /// If there are not so many.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// # let heap = Heap;
    /// assert_eq!(Bytes::<Heap>::Here(b"some bytes").part(5..10).to_vec(&heap), b"bytes");
    /// ```
    pub fn part(self, range: Range<usize>) -> Self {
        assert!(range.end <= self.len(), "bytes {range:?} of {}", self.len());
        let within = |all: Range<usize>| all.start + range.start..all.start + range.end;
        match self {
            Bytes::Here(bytes) => Bytes::Here(&bytes[range]),
            Bytes::Page(page, all) => Bytes::Page(page, within(all)),
            Bytes::Run(run, page, all) => Bytes::Run(run, page, within(all)),
        }
    }

    /// A copy of them.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// # let heap = Heap;
    /// assert_eq!(Bytes::<Heap>::Here(b"bytes").to_vec(&heap), b"bytes");
    /// ```
    pub fn to_vec(self, pages: &H) -> alloc::vec::Vec<u8> {
        let mut copy = alloc::vec![0; self.len()];
        pages.copy(self, Room::Here(&mut copy));
        copy
    }
}

/// Room for bytes that lie together.
///
/// ```
/// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
/// # use host::*;
/// # let heap = Heap;
/// let mut page = heap.alloc()?;
/// heap.copy(Bytes::Here(b"bytes"), Room::Page(&mut page, 0..5));
/// assert_eq!(&page[..5], b"bytes");
/// # Ok::<(), NoMemory>(())
/// ```
pub enum Room<'a, H: Pages> {
    /// In memory of the chain or the caller.
    Here(&'a mut [u8]),
    /// In a page that may be written.
    Page(&'a mut H::Page, Range<usize>),
}

impl<'a, H: Pages> Room<'a, H> {
    /// For how many bytes.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// assert_eq!(Room::<Heap>::Here(&mut [0; 5]).len(), 5);
    /// ```
    pub fn len(&self) -> usize {
        match self {
            Room::Here(bytes) => bytes.len(),
            Room::Page(_, range) => range.len(),
        }
    }

    /// Whether there is none.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// assert!(Room::<Heap>::Here(&mut []).is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The part `range` of it.
    ///
    /// # Panics
    /// If there is not so much.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// # let heap = Heap;
    /// let mut room = [0; 5];
    /// heap.copy(Bytes::Here(b"es"), Room::Here(&mut room).part(3..5));
    /// assert_eq!(&room, b"\0\0\0es");
    /// ```
    pub fn part(self, range: Range<usize>) -> Self {
        assert!(range.end <= self.len(), "room {range:?} of {}", self.len());
        match self {
            Room::Here(bytes) => Room::Here(&mut bytes[range]),
            Room::Page(page, all) => {
                Room::Page(page, all.start + range.start..all.start + range.end)
            }
        }
    }
}
