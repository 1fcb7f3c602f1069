//! One piece of a chain: where its bytes are, and which of them count.

use core::ops::Range;

use crate::{NoMemory, Pages, PAGE_SIZE};

/// Bytes that fit into a piece without a page.
pub const INLINE: usize = 48;

/// Where a piece's bytes are.
enum Storage<P> {
    Inline([u8; INLINE]),
    Page(P),
}

/// A run of bytes: `start..end` of its storage.
pub(crate) struct Piece<P> {
    storage: Storage<P>,
    start: u16,
    end: u16,
}

impl<P> Piece<P> {
    /// An empty piece without a page.
    pub(crate) fn inline() -> Self {
        Piece { storage: Storage::Inline([0; INLINE]), start: 0, end: 0 }
    }

    /// The bytes `range` of `page`.
    pub(crate) fn of_page(page: P, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= PAGE_SIZE, "a piece lies in its page");
        Piece { storage: Storage::Page(page), start: range.start as u16, end: range.end as u16 }
    }

    pub(crate) fn len(&self) -> usize {
        usize::from(self.end - self.start)
    }

    pub(crate) fn is_inline(&self) -> bool {
        matches!(self.storage, Storage::Inline(_))
    }

    /// Moves the start so that room in front can be written before what it holds.
    pub(crate) fn leave_front(&mut self, room: usize) {
        self.start = room as u16;
        self.end = room as u16;
    }

    pub(crate) fn bytes<'a>(&'a self, pages: &impl Pages<Page = P>) -> &'a [u8] {
        let range = usize::from(self.start)..usize::from(self.end);
        match &self.storage {
            Storage::Inline(bytes) => &bytes[range],
            Storage::Page(page) => &pages.bytes(page)[range],
        }
    }

    /// The whole storage for writing, if it may be written.
    fn writable<'a>(&'a mut self, pages: &impl Pages<Page = P>) -> Option<&'a mut [u8]> {
        match &mut self.storage {
            Storage::Inline(bytes) => Some(bytes),
            Storage::Page(page) => pages.bytes_mut(page),
        }
    }

    /// The bytes behind the piece that may be written; none if it is full or not to be written.
    pub(crate) fn room_behind<'a>(&'a mut self, pages: &impl Pages<Page = P>) -> &'a mut [u8] {
        let end = usize::from(self.end);
        self.writable(pages).map_or(&mut [], |bytes| &mut bytes[end..])
    }

    /// The bytes in front of the piece that may be written.
    pub(crate) fn room_before<'a>(&'a mut self, pages: &impl Pages<Page = P>) -> &'a mut [u8] {
        let start = usize::from(self.start);
        self.writable(pages).map_or(&mut [], |bytes| &mut bytes[..start])
    }

    /// The first `n` bytes of the room behind have been written.
    pub(crate) fn grow_back(&mut self, n: usize) {
        self.end += n as u16;
    }

    /// The last `n` bytes of the room before have been written.
    pub(crate) fn grow_front(&mut self, n: usize) {
        self.start -= n as u16;
    }

    pub(crate) fn trim_front(&mut self, n: usize) {
        self.start += n as u16;
    }

    pub(crate) fn trim_back(&mut self, n: usize) {
        self.end -= n as u16;
    }

    /// The bytes `range` of the piece, on the same page.
    ///
    /// Fails with [`NoMemory`] if the page can't be shared.
    pub(crate) fn part(&self, pages: &impl Pages<Page = P>, range: Range<usize>) -> Result<Self, NoMemory> {
        let storage = match &self.storage {
            Storage::Inline(bytes) => Storage::Inline(*bytes),
            Storage::Page(page) => Storage::Page(pages.share(page)?),
        };
        Ok(Piece { storage, start: self.start + range.start as u16, end: self.start + range.end as u16 })
    }

    /// Cuts the piece at `at`; returns what follows, on the same page.
    ///
    /// Fails as [`part`](Self::part) does; nothing has changed then.
    pub(crate) fn cut(&mut self, pages: &impl Pages<Page = P>, at: usize) -> Result<Self, NoMemory> {
        let rest = self.part(pages, at..self.len())?;
        self.end = self.start + at as u16;
        Ok(rest)
    }

    /// The page, if every byte of it counts.
    pub(crate) fn whole_page(&self) -> Option<&P> {
        match &self.storage {
            Storage::Page(page) if self.len() == PAGE_SIZE => Some(page),
            _ => None,
        }
    }

    /// The page, whatever of it counts.
    pub(crate) fn into_page(self) -> Option<P> {
        match self.storage {
            Storage::Page(page) => Some(page),
            Storage::Inline(_) => None,
        }
    }

    pub(crate) fn release(self, pages: &impl Pages<Page = P>) {
        if let Some(page) = self.into_page() {
            pages.release(page);
        }
    }

    /// A piece for bytes to come: inline if `want` fit there and `inline` allows it, else a fresh page.
    pub(crate) fn fresh(pages: &impl Pages<Page = P>, want: usize, inline: bool) -> Result<Self, NoMemory> {
        if inline && want <= INLINE {
            return Ok(Self::inline());
        }
        Ok(Self::of_page(pages.alloc()?, 0..0))
    }
}
