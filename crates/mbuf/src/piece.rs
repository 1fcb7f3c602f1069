//! One piece of a chain: where its bytes are, and which of them count.

use core::ops::Range;

use crate::{Bytes, NoMemory, Pages, Room, PAGE_SIZE};

/// Bytes that fit into a piece without a page.
pub const INLINE: usize = 48;

/// Pages of a run that are done with before they go back: together that is cheaper, and few wait.
const TOGETHER: usize = 16;

/// Where a piece's bytes are.
enum Storage<H: Pages> {
    Inline([u8; INLINE]),
    Page(H::Page),
    Run(H::Run),
}

/// A run of bytes: `start..end` of its storage.
pub(crate) struct Piece<H: Pages> {
    storage: Storage<H>,
    start: u32,
    end: u32,
}

impl<H: Pages> Piece<H> {
    fn new(storage: Storage<H>, range: Range<usize>) -> Self {
        Piece { storage, start: range.start as u32, end: range.end as u32 }
    }

    /// An empty piece without a page.
    pub(crate) fn inline() -> Self {
        Piece::new(Storage::Inline([0; INLINE]), 0..0)
    }

    /// The bytes `range` of `page`.
    pub(crate) fn of_page(page: H::Page, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= PAGE_SIZE, "a piece lies in its page");
        Piece::new(Storage::Page(page), range)
    }

    /// The bytes `range` of a run's pages, which are just those.
    pub(crate) fn of_run(run: H::Run, range: Range<usize>) -> Self {
        assert!(
            range.start < PAGE_SIZE && range.end <= u32::MAX as usize,
            "a piece begins in its first page"
        );
        Piece::new(Storage::Run(run), range)
    }

    fn range(&self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    /// Where it begins in its storage.
    pub(crate) fn start(&self) -> usize {
        self.start as usize
    }

    pub(crate) fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    pub(crate) fn is_inline(&self) -> bool {
        matches!(self.storage, Storage::Inline(_))
    }

    /// Bytes of the pages that stand behind it, and its own.
    #[inline]
    pub(crate) fn memory(&self) -> usize {
        let pages = match self.storage {
            Storage::Inline(_) => 0,
            Storage::Page(_) => 1,
            // From the run's first page on, of which no byte may count any more.
            Storage::Run(_) => self.range().end.div_ceil(PAGE_SIZE),
        };
        pages * PAGE_SIZE + size_of::<Self>()
    }

    /// Gives back pages of a run that lie before the first byte.
    pub(crate) fn drop_passed(&mut self, pages: &H) {
        if self.range().start >= PAGE_SIZE {
            self.shrink(pages);
        }
    }

    /// Moves the start so that room in front can be written before what it holds.
    pub(crate) fn leave_front(&mut self, room: usize) {
        self.start = room as u32;
        self.end = room as u32;
    }

    /// The bytes from byte `at` of the piece on, as far as they lie together.
    #[inline]
    pub(crate) fn bytes_from(&self, at: usize) -> Bytes<'_, H> {
        let range = self.range().start + at..self.range().end;
        match &self.storage {
            Storage::Inline(bytes) => Bytes::Here(&bytes[range]),
            Storage::Page(page) => Bytes::Page(page, range),
            Storage::Run(run) => Bytes::of_run(run, range.start, range.end),
        }
    }

    /// The part `range` of its storage; nothing if it may not be written.
    fn room<'a>(&'a mut self, pages: &H, range: Range<usize>) -> Room<'a, H> {
        match &mut self.storage {
            Storage::Inline(bytes) => Room::Here(&mut bytes[range]),
            Storage::Page(page) if pages.is_writable(page) => Room::Page(page, range),
            _ => Room::Here(&mut []),
        }
    }

    /// The bytes behind the piece that may be written; none if it is full or not to be written.
    pub(crate) fn room_behind<'a>(&'a mut self, pages: &H) -> Room<'a, H> {
        let end = if self.is_inline() { INLINE } else { PAGE_SIZE };
        // A run ends where it ends.
        let start = self.range().end.min(end);
        self.room(pages, start..end)
    }

    /// The bytes in front of the piece that may be written.
    pub(crate) fn room_before<'a>(&'a mut self, pages: &H) -> Room<'a, H> {
        let start = self.range().start;
        self.room(pages, 0..start)
    }

    /// The first `n` bytes of the room behind have been written.
    pub(crate) fn grow_back(&mut self, n: usize) {
        self.end += n as u32;
    }

    /// The last `n` bytes of the room before have been written.
    pub(crate) fn grow_front(&mut self, n: usize) {
        self.start -= n as u32;
    }

    /// Drops the first `n` bytes, which aren't all.
    #[inline]
    pub(crate) fn trim_front(&mut self, pages: &H, n: usize) {
        self.start += n as u32;
        if self.range().start >= TOGETHER * PAGE_SIZE {
            self.shrink(pages);
        }
    }

    /// Drops the last `n` bytes, which aren't all.
    pub(crate) fn trim_back(&mut self, pages: &H, n: usize) {
        self.end -= n as u32;
        self.shrink(pages);
    }

    /// Gives back those pages of a run of which no byte counts.
    fn shrink(&mut self, pages: &H) {
        let range = self.range();
        let kept = range.start / PAGE_SIZE..range.end.div_ceil(PAGE_SIZE);
        if let Storage::Run(run) = &mut self.storage {
            self.start -= (kept.start * PAGE_SIZE) as u32;
            self.end -= (kept.start * PAGE_SIZE) as u32;
            pages.shrink_run(run, kept);
        }
    }

    /// The bytes `range` of the piece, on the same pages.
    ///
    /// Fails with [`NoMemory`] if they can't be shared.
    pub(crate) fn part(&self, pages: &H, range: Range<usize>) -> Result<Self, NoMemory> {
        let mut range = self.range().start + range.start..self.range().start + range.end;
        let storage = match &self.storage {
            Storage::Inline(bytes) => Storage::Inline(*bytes),
            Storage::Page(page) => Storage::Page(pages.share(page)?),
            Storage::Run(run) => {
                let first = range.start / PAGE_SIZE;
                let run = pages.share_run(run, first..range.end.div_ceil(PAGE_SIZE))?;
                range = range.start - first * PAGE_SIZE..range.end - first * PAGE_SIZE;
                Storage::Run(run)
            }
        };
        Ok(Piece::new(storage, range))
    }

    /// Cuts the piece at `at`, which is within it; returns what follows. A page that is cut is in
    /// both halves.
    ///
    /// Fails with [`NoMemory`]; nothing has changed then.
    pub(crate) fn cut(&mut self, pages: &H, at: usize) -> Result<Self, NoMemory> {
        let (middle, end) = (self.range().start + at, self.range().end);
        let rest = match &mut self.storage {
            Storage::Run(run) => {
                let (page, within) = (middle / PAGE_SIZE, middle % PAGE_SIZE);
                let run = pages.cut_run(run, page, within > 0)?;
                Piece::of_run(run, within..end - page * PAGE_SIZE)
            }
            _ => self.part(pages, at..self.len())?,
        };
        self.end = middle as u32;
        Ok(rest)
    }

    /// The page, if there is one of its own and every byte of it counts.
    pub(crate) fn whole_page(&self) -> Option<&H::Page> {
        match &self.storage {
            Storage::Page(page) if self.len() == PAGE_SIZE => Some(page),
            _ => None,
        }
    }

    /// The page, whatever of it counts.
    pub(crate) fn into_page(self) -> Option<H::Page> {
        match self.storage {
            Storage::Page(page) => Some(page),
            _ => None,
        }
    }

    /// Bytes of the whole pages that a run begins with; none of another piece, nor of a run that
    /// begins within a page.
    pub(crate) fn whole_run(&self) -> usize {
        match self.storage {
            Storage::Run(_) if self.range().start.is_multiple_of(PAGE_SIZE) => {
                self.len() - self.len() % PAGE_SIZE
            }
            _ => 0,
        }
    }

    pub(crate) fn run(&self) -> Option<&H::Run> {
        match &self.storage {
            Storage::Run(run) => Some(run),
            _ => None,
        }
    }

    pub(crate) fn run_mut(&mut self) -> Option<&mut H::Run> {
        match &mut self.storage {
            Storage::Run(run) => Some(run),
            _ => None,
        }
    }

    /// The pages of a run, whatever of them counts.
    pub(crate) fn into_run(mut self, pages: &H) -> Option<H::Run> {
        self.shrink(pages);
        match self.storage {
            Storage::Run(run) => Some(run),
            _ => None,
        }
    }

    pub(crate) fn release(self, pages: &H) {
        match self.storage {
            Storage::Inline(_) => {}
            Storage::Page(page) => pages.release(page),
            Storage::Run(run) => pages.release_run(run),
        }
    }

    /// A piece for bytes to come: inline if `want` fit there and `inline` allows it, else a fresh
    /// page.
    pub(crate) fn fresh(pages: &H, want: usize, inline: bool) -> Result<Self, NoMemory> {
        if inline && want <= INLINE {
            return Ok(Self::inline());
        }
        Ok(Self::of_page(pages.alloc()?, 0..0))
    }
}
