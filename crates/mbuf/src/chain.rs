//! The chain itself.

use alloc::collections::VecDeque;
use core::ops::Range;

use crate::piece::{Piece, INLINE};
use crate::{Bytes, NoMemory, Pages, Room, PAGE_SIZE};

/// A part of a page that is smaller is copied where it is moved to: its page would stay for little.
const SLIVER: usize = PAGE_SIZE / 4;

/// Pieces that a chain may have room for, however few it holds: those of a pipe of the usual size.
const KEPT: usize = 32;

/// A run of bytes in pieces. See the crate's head.
///
/// A chain that holds pages must end in [`release`](Chain::release) or [`join`](Chain::join):
/// dropping it drops references to pages without giving them back.
///
/// ```
/// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
/// # use host::*;
/// # let heap = Heap;
/// let mut chain = Chain::new();
/// chain.append(&heap, b"bytes")?;
/// let copy = chain.refer(&heap, 5)?;
/// chain.join(copy).map_err(|(why, _)| why)?;
/// assert_eq!(chain.len(), 10);
/// # Ok::<(), NoMemory>(())
/// ```
#[must_use = "a chain's pages go back by `release`"]
pub struct Chain<H: Pages> {
    pieces: VecDeque<Piece<H>>,
    len: usize,
    memory: usize,
}

impl<H: Pages> Default for Chain<H> {
    fn default() -> Self {
        Chain::new()
    }
}

impl<H: Pages> Chain<H> {
    /// A chain without bytes or memory.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// # let heap = Heap;
    /// assert!(Chain::<Heap>::new().is_empty());
    /// # Ok::<(), NoMemory>(())
    /// ```
    pub const fn new() -> Self {
        Chain { pieces: VecDeque::new(), len: 0, memory: 0 }
    }

    /// Bytes held.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// # let heap = Heap;
    /// let mut chain = Chain::new();
    /// chain.append(&heap, b"bytes")?;
    /// assert_eq!(chain.len(), 5);
    /// # Ok::<(), NoMemory>(())
    /// ```
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds none.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// # let heap = Heap;
    /// assert!(Chain::<Heap>::new().is_empty());
    /// # Ok::<(), NoMemory>(())
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of memory that stand behind it: whole pages, and the pieces themselves.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// # let heap = Heap;
    /// let mut chain = Chain::new();
    /// chain.append(&heap, &[7; 100])?;
    /// assert!(chain.memory() >= chain.len());
    /// # Ok::<(), NoMemory>(())
    /// ```
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// Whether there is much more of it than of bytes.
    fn is_sparse(&self) -> bool {
        self.memory > PAGE_SIZE / SLIVER * self.len
    }

    /// Adds a piece behind the others; room for it has been reserved.
    fn push_back(&mut self, piece: Piece<H>) {
        self.len += piece.len();
        self.memory += piece.memory();
        self.pieces.push_back(piece);
    }

    fn push_front(&mut self, piece: Piece<H>) {
        self.len += piece.len();
        self.memory += piece.memory();
        self.pieces.push_front(piece);
    }

    fn pop_front(&mut self) -> Option<Piece<H>> {
        let piece = self.pieces.pop_front()?;
        self.len -= piece.len();
        self.memory -= piece.memory();
        self.shrink();
        Some(piece)
    }

    /// Gives back most of a list that is far too large for the pieces left in it, since `memory`
    /// counts these alone; without memory it stays as it is. At most an eighth of the list is
    /// moved, once for all pieces that have gone since. One piece that comes back has room.
    #[inline]
    fn shrink(&mut self) {
        if self.pieces.capacity() <= KEPT || self.pieces.len() > self.pieces.capacity() / 8 {
            return;
        }
        let mut smaller = VecDeque::new();
        if smaller.try_reserve(2 * self.pieces.len() + 1).is_ok() {
            smaller.append(&mut self.pieces);
            self.pieces = smaller;
        }
    }

    /// Copies `bytes` in behind what is there.
    ///
    /// Fails with [`NoMemory`] when no page can be had; the chain is then as it was.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// # let heap = Heap;
    /// let mut chain = Chain::new();
    /// chain.append(&heap, &[7; 10_000])?;
    /// assert_eq!(chain.len(), 10_000);
    /// # Ok::<(), NoMemory>(())
    /// ```
    pub fn append(&mut self, pages: &H, bytes: &[u8]) -> Result<(), NoMemory> {
        let before = self.len;
        self.append_bytes(pages, Bytes::Here(bytes))
            .inspect_err(|_| self.trim_back(pages, self.len - before))
    }

    /// Copies bytes in behind what is there, as far as pages can be had.
    fn append_bytes(&mut self, pages: &H, bytes: Bytes<'_, H>) -> Result<(), NoMemory> {
        let mut done = 0;
        while done < bytes.len() {
            let room = self.room(pages, bytes.len() - done)?;
            let n = room.len().min(bytes.len() - done);
            pages.copy(bytes.clone().part(done..done + n), room.part(0..n));
            self.wrote(pages, n);
            done += n;
        }
        Ok(())
    }

    /// Room behind what is there, for a caller that fills it itself and says so with
    /// [`wrote`](Chain::wrote); at least a byte. What it holds is left from earlier use. `want` is
    /// how much the caller has, and decides how large a new piece is.
    ///
    /// Fails with [`NoMemory`].
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// # let heap = Heap;
    /// let mut chain = Chain::new();
    /// let room = chain.room(&heap, 100)?;
    /// heap.copy(Bytes::Here(b"bytes"), room.part(0..5));
    /// chain.wrote(&heap, 5);
    /// assert_eq!(chain.first().to_vec(&heap), b"bytes");
    /// # Ok::<(), NoMemory>(())
    /// ```
    pub fn room<'a>(&'a mut self, pages: &H, want: usize) -> Result<Room<'a, H>, NoMemory> {
        let last_has = self.pieces.back_mut().map_or(0, |last| last.room_behind(pages).len());
        if last_has == 0 {
            // I4: behind a piece without a page comes one with.
            let inline = !self.pieces.back().is_some_and(Piece::is_inline);
            self.pieces.try_reserve(1).map_err(|_| NoMemory)?;
            self.push_back(Piece::fresh(pages, want, inline)?);
        }
        match self.pieces.back_mut() {
            Some(last) => Ok(last.room_behind(pages)),
            None => Err(NoMemory),
        }
    }

    /// The first `n` bytes of the last [`room`](Chain::room) have been written; 0 if none were.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// # let heap = Heap;
    /// let mut chain = Chain::new();
    /// heap.copy(Bytes::Here(&[7; 3]), chain.room(&heap, 100)?.part(0..3));
    /// chain.wrote(&heap, 3);
    /// assert_eq!(chain.first().to_vec(&heap), [7, 7, 7]);
    /// # Ok::<(), NoMemory>(())
    /// ```
    pub fn wrote(&mut self, pages: &H, n: usize) {
        if let Some(last) = self.pieces.back_mut() {
            last.grow_back(n);
            self.len += n;
            if last.len() == 0 {
                self.drop_last(pages);
            }
        }
    }

    /// Copies `bytes` in before what is there: into room that the first piece has in front, or a
    /// piece of their own that ends where its storage does, so that more can come in front of it.
    ///
    /// Fails with [`NoMemory`]; the chain is then as it was.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// # let heap = Heap;
    /// let mut chain = Chain::new();
    /// chain.append(&heap, b"body")?;
    /// chain.prepend(&heap, b"head ")?;
    /// assert_eq!(chain.bytes(&heap), b"head body");
    /// # Ok::<(), NoMemory>(())
    /// ```
    pub fn prepend(&mut self, pages: &H, bytes: &[u8]) -> Result<(), NoMemory> {
        let before = self.len;
        let mut left = bytes;
        while !left.is_empty() {
            if self.make_front(pages, left.len()).is_err() {
                self.trim_front(pages, self.len - before);
                return Err(NoMemory);
            }
            let Some(first) = self.pieces.front_mut() else { return Err(NoMemory) };
            let room = first.room_before(pages);
            let n = room.len().min(left.len());
            let (at, end) = (room.len() - n, room.len());
            pages.copy(Bytes::Here(&left[left.len() - n..]), room.part(at..end));
            first.grow_front(n);
            self.len += n;
            left = &left[..left.len() - n];
        }
        Ok(())
    }

    fn make_front(&mut self, pages: &H, want: usize) -> Result<(), NoMemory> {
        if self.pieces.front_mut().is_some_and(|first| !first.room_before(pages).is_empty()) {
            return Ok(());
        }
        self.pieces.try_reserve(1).map_err(|_| NoMemory)?;
        let inline = !self.pieces.front().is_some_and(Piece::is_inline);
        let mut piece = Piece::fresh(pages, want, inline)?;
        piece.leave_front(if piece.is_inline() { INLINE } else { PAGE_SIZE });
        self.push_front(piece);
        Ok(())
    }

    /// Puts `range` of a page that the caller refers to behind what is there; the reference is the
    /// chain's then.
    ///
    /// Fails with [`NoMemory`] and hands the page back. An empty range is refused by panic: it
    /// would hold a page for nothing.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// # let heap = Heap;
    /// let mut chain = Chain::<Heap>::new();
    /// let page = heap.alloc()?;
    /// chain.append_page(page, 100..200).map_err(|(why, _)| why)?;
    /// assert_eq!(chain.len(), 100);
    /// # Ok::<(), NoMemory>(())
    /// ```
    pub fn append_page(
        &mut self,
        page: H::Page,
        range: Range<usize>,
    ) -> Result<(), (NoMemory, H::Page)> {
        assert!(!range.is_empty(), "a piece holds bytes");
        if self.pieces.try_reserve(1).is_err() {
            return Err((NoMemory, page));
        }
        self.push_back(Piece::of_page(page, range));
        Ok(())
    }

    /// Puts `range` of the bytes of a run, whose pages are just those, behind what is there; the
    /// run is the chain's then.
    ///
    /// Fails with [`NoMemory`] and hands the run back. An empty range is refused by panic, as for a
    /// page.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// # let heap = Heap;
    /// let mut chain = Chain::<Heap>::new();
    /// let run = vec![heap.alloc()?, heap.alloc()?];
    /// chain.append_run(run, 0..2 * PAGE_SIZE).map_err(|(why, _)| why)?;
    /// assert_eq!(chain.len(), 2 * PAGE_SIZE);
    /// # Ok::<(), NoMemory>(())
    /// ```
    pub fn append_run(
        &mut self,
        run: H::Run,
        range: Range<usize>,
    ) -> Result<(), (NoMemory, H::Run)> {
        assert!(!range.is_empty(), "a piece holds bytes");
        if self.pieces.try_reserve(1).is_err() {
            return Err((NoMemory, run));
        }
        self.push_back(Piece::of_run(run, range));
        Ok(())
    }

    /// Another chain of the first `len` bytes, on the same pages; `len` is at most the chain's.
    ///
    /// Fails with [`NoMemory`]; nothing has changed then. Cost: the pieces.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// # let heap = Heap;
    /// let mut chain = Chain::new();
    /// chain.append(&heap, &[7; 10_000])?;
    /// let same = chain.refer(&heap, 4_000)?;
    /// assert_eq!((chain.len(), same.len()), (10_000, 4_000));
    /// # Ok::<(), NoMemory>(())
    /// ```
    pub fn refer(&self, pages: &H, len: usize) -> Result<Chain<H>, NoMemory> {
        let mut copy = Chain::new();
        let count = self.locate(len).0 + 1;
        copy.pieces.try_reserve_exact(count.min(self.pieces.len())).map_err(|_| NoMemory)?;
        for piece in &self.pieces {
            let part = piece.len().min(len - copy.len);
            if part == 0 {
                break;
            }
            match piece.part(pages, 0..part) {
                Ok(piece) => copy.push_back(piece),
                Err(NoMemory) => {
                    copy.release(pages);
                    return Err(NoMemory);
                }
            }
        }
        Ok(copy)
    }

    /// Puts all of `other` behind what is there.
    ///
    /// Fails with [`NoMemory`] and hands `other` back. Cost: the pieces of `other`.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// # let heap = Heap;
    /// let (mut chain, mut tail) = (Chain::new(), Chain::new());
    /// chain.append(&heap, b"to")?;
    /// tail.append(&heap, b"gether")?;
    /// chain.join(tail).map_err(|(why, _)| why)?;
    /// assert_eq!(chain.len(), 8);
    /// # Ok::<(), NoMemory>(())
    /// ```
    pub fn join(&mut self, mut other: Chain<H>) -> Result<(), (NoMemory, Chain<H>)> {
        if self.pieces.is_empty() {
            *self = other;
            return Ok(());
        }
        if self.pieces.try_reserve(other.pieces.len()).is_err() {
            return Err((NoMemory, other));
        }
        self.pieces.append(&mut other.pieces);
        self.len += other.len;
        self.memory += other.memory;
        Ok(())
    }

    /// Moves the first `most` bytes of `other`, or all it has, behind what is there; a page that is
    /// cut is in both halves from then on. Small parts of pages are copied: so a chain that only
    /// grows by this and by copies has a small multiple of its bytes as its memory.
    ///
    /// Fails with [`NoMemory`]; what was moved until then is whole, and the rest is in `other`.
    /// Cost: the pieces moved.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// # let heap = Heap;
    /// let (mut to, mut from) = (Chain::new(), Chain::new());
    /// from.append(&heap, b"head body")?;
    /// to.take_from(&heap, &mut from, 5)?;
    /// assert_eq!((to.len(), from.len()), (5, 4));
    /// # Ok::<(), NoMemory>(())
    /// ```
    pub fn take_from(
        &mut self,
        pages: &H,
        other: &mut Chain<H>,
        most: usize,
    ) -> Result<(), NoMemory> {
        if self.pieces.is_empty() && most >= other.len && !other.is_sparse() {
            core::mem::swap(self, other);
            return Ok(());
        }
        // No more pieces than that come, for the bytes that come.
        let pieces = other.pieces.len().min(2 * (most / SLIVER + 1));
        self.pieces.try_reserve(pieces).map_err(|_| NoMemory)?;
        let mut left = most.min(other.len);
        while left > 0 {
            let Some(first) = other.pieces.front() else { break };
            let part = first.len().min(left);
            if part < SLIVER {
                let bytes = first.bytes_from(0);
                let n = bytes.len().min(part);
                let before = self.len;
                if self.append_bytes(pages, bytes.part(0..n)).is_err() {
                    self.trim_back(pages, self.len - before);
                    return Err(NoMemory);
                }
                other.trim_front(pages, n);
                left -= n;
                continue;
            }
            self.pieces.try_reserve(1).map_err(|_| NoMemory)?;
            let mut piece = other.take_first(pages, part)?;
            piece.drop_passed(pages);
            self.push_back(piece);
            left -= part;
        }
        Ok(())
    }

    /// Takes out the first piece, or as many bytes of it as are wanted.
    ///
    /// Fails with [`NoMemory`]; the chain is then as it was.
    fn take_first(&mut self, pages: &H, len: usize) -> Result<Piece<H>, NoMemory> {
        let mut piece = self.pop_front().ok_or(NoMemory)?;
        if len < piece.len() {
            match piece.cut(pages, len) {
                Ok(rest) => self.push_front(rest),
                Err(NoMemory) => {
                    self.push_front(piece);
                    return Err(NoMemory);
                }
            }
        }
        Ok(piece)
    }

    /// Cuts the chain at byte `at`, at most its length; returns what follows. A page that is cut is
    /// in both halves from then on.
    ///
    /// Fails with [`NoMemory`]; the chain is then as it was. Cost: the pieces that follow, or that
    /// stay if those are fewer.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// # let heap = Heap;
    /// let mut chain = Chain::new();
    /// chain.append(&heap, b"head body")?;
    /// let body = chain.split_at(&heap, 5)?;
    /// assert_eq!(body.first().to_vec(&heap), b"body");
    /// # Ok::<(), NoMemory>(())
    /// ```
    pub fn split_at(&mut self, pages: &H, at: usize) -> Result<Chain<H>, NoMemory> {
        assert!(at <= self.len, "a chain is cut within");
        let (index, within) = self.locate(at);
        let mut rest = Chain::new();
        rest.pieces.try_reserve_exact(self.pieces.len() - index + 1).map_err(|_| NoMemory)?;
        let mut kept = index;
        if within > 0 {
            let before = self.pieces[index].memory();
            rest.push_back(self.pieces[index].cut(pages, within)?);
            self.memory = self.memory + self.pieces[index].memory() - before;
            kept += 1;
        }
        for piece in self.pieces.drain(kept..) {
            self.memory -= piece.memory();
            rest.push_back(piece);
        }
        self.len = at;
        self.shrink();
        Ok(rest)
    }

    /// The piece in which byte `at` lies and where in it; the end is the start of a piece that
    /// isn't there.
    fn locate(&self, at: usize) -> (usize, usize) {
        let mut left = at;
        for (index, piece) in self.pieces.iter().enumerate() {
            if left < piece.len() {
                return (index, left);
            }
            left -= piece.len();
        }
        (self.pieces.len(), 0)
    }

    /// Drops the first `n` bytes, or all if there are fewer. Cost: the pieces that go.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// # let heap = Heap;
    /// let mut chain = Chain::new();
    /// chain.append(&heap, b"bytes")?;
    /// chain.trim_front(&heap, 2);
    /// assert_eq!(chain.first().to_vec(&heap), b"tes");
    /// # Ok::<(), NoMemory>(())
    /// ```
    pub fn trim_front(&mut self, pages: &H, n: usize) {
        let mut left = n.min(self.len);
        while left > 0 {
            let Some(first) = self.pieces.front_mut() else { return };
            if left < first.len() {
                let before = first.memory();
                first.trim_front(pages, left);
                self.memory = self.memory + first.memory() - before;
                self.len -= left;
                return;
            }
            left -= first.len();
            if let Some(piece) = self.pop_front() {
                piece.release(pages);
            }
        }
    }

    /// Drops the last `n` bytes, or all if there are fewer.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// # let heap = Heap;
    /// let mut chain = Chain::new();
    /// chain.append(&heap, b"bytes")?;
    /// chain.trim_back(&heap, 2);
    /// assert_eq!(chain.first().to_vec(&heap), b"byt");
    /// # Ok::<(), NoMemory>(())
    /// ```
    pub fn trim_back(&mut self, pages: &H, n: usize) {
        let mut left = n.min(self.len);
        self.len -= left;
        while left > 0 {
            let Some(last) = self.pieces.back_mut() else { return };
            if left < last.len() {
                let before = last.memory();
                last.trim_back(pages, left);
                self.memory = self.memory + last.memory() - before;
                return;
            }
            left -= last.len();
            self.drop_last(pages);
        }
    }

    fn drop_last(&mut self, pages: &H) {
        if let Some(piece) = self.pieces.pop_back() {
            self.memory -= piece.memory();
            piece.release(pages);
            self.shrink();
        }
    }

    /// The first bytes, as far as they lie together; none in an empty chain.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// # let heap = Heap;
    /// let mut chain = Chain::new();
    /// chain.append(&heap, b"bytes")?;
    /// assert_eq!(chain.first().to_vec(&heap), b"bytes");
    /// # Ok::<(), NoMemory>(())
    /// ```
    pub fn first(&self) -> Bytes<'_, H> {
        self.pieces.front().map_or(Bytes::Here(&[]), |piece| piece.bytes_from(0))
    }

    /// Shows the bytes to `take`, as they lie together, and drops those that it says it has, until
    /// it wants fewer than it is shown or fails. Pages go back piece by piece.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// # let heap = Heap;
    /// let mut chain = Chain::new();
    /// chain.append(&heap, b"bytes")?;
    /// let mut sent = 0;
    /// chain.consume(&heap, |piece| {
    ///     sent += piece.len();
    ///     Ok::<_, NoMemory>(piece.len())
    /// })?;
    /// assert_eq!((sent, chain.len()), (5, 0));
    /// # Ok::<(), NoMemory>(())
    /// ```
    pub fn consume<E>(
        &mut self,
        pages: &H,
        mut take: impl FnMut(Bytes<'_, H>) -> Result<usize, E>,
    ) -> Result<(), E> {
        while let Some(first) = self.pieces.front() {
            let (mut done, mut goes_on) = (0, Ok(true));
            while done < first.len() && matches!(goes_on, Ok(true)) {
                let bytes = first.bytes_from(done);
                let shown = bytes.len();
                goes_on = take(bytes).map(|n| {
                    done += n;
                    n == shown
                });
            }
            self.trim_front(pages, done);
            if !goes_on? {
                break;
            }
        }
        Ok(())
    }

    /// The bytes, as they lie together.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// # let heap = Heap;
    /// let mut chain = Chain::new();
    /// chain.append(&heap, &[7; 10_000])?;
    /// assert_eq!(chain.pieces().map(|bytes| bytes.len()).sum::<usize>(), 10_000);
    /// # Ok::<(), NoMemory>(())
    /// ```
    pub fn pieces(&self) -> impl Iterator<Item = Bytes<'_, H>> + '_ {
        self.pieces.iter().flat_map(move |piece| {
            let mut at = 0;
            core::iter::from_fn(move || {
                let bytes = (at < piece.len()).then(|| piece.bytes_from(at))?;
                at += bytes.len();
                Some(bytes)
            })
        })
    }

    /// Copies bytes out from byte `at` on and leaves them in the chain; returns how many there
    /// were.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// # let heap = Heap;
    /// let mut chain = Chain::new();
    /// chain.append(&heap, b"some bytes")?;
    /// let mut out = [0; 5];
    /// assert_eq!(chain.copy_out(&heap, 5, &mut out), 5);
    /// assert_eq!(&out, b"bytes");
    /// # Ok::<(), NoMemory>(())
    /// ```
    pub fn copy_out(&self, pages: &H, at: usize, to: &mut [u8]) -> usize {
        let mut done = 0;
        let mut skip = at;
        for piece in self.pieces() {
            let from = skip.min(piece.len());
            skip -= from;
            let n = (piece.len() - from).min(to.len() - done);
            pages.copy(piece.part(from..from + n), Room::Here(&mut to[done..done + n]));
            done += n;
            if done == to.len() {
                break;
            }
        }
        done
    }

    /// A copy of all bytes. For tests.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// # let heap = Heap;
    /// let mut chain = Chain::new();
    /// chain.append(&heap, b"bytes")?;
    /// assert_eq!(chain.bytes(&heap), b"bytes");
    /// # Ok::<(), NoMemory>(())
    /// ```
    pub fn bytes(&self, pages: &H) -> alloc::vec::Vec<u8> {
        self.pieces().flat_map(|piece| piece.to_vec(pages)).collect()
    }

    /// The page of the first piece, if the piece is a whole page.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// # let heap = Heap;
    /// let mut chain = Chain::<Heap>::new();
    /// chain.append_page(heap.alloc()?, 0..PAGE_SIZE).map_err(|(why, _)| why)?;
    /// assert!(chain.first_page().is_some());
    /// # Ok::<(), NoMemory>(())
    /// ```
    pub fn first_page(&self) -> Option<&H::Page> {
        self.pieces.front().and_then(Piece::whole_page)
    }

    /// Takes the first piece out if it is a whole page; the reference is the caller's then.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// # let heap = Heap;
    /// let mut chain = Chain::<Heap>::new();
    /// chain.append_page(heap.alloc()?, 0..PAGE_SIZE).map_err(|(why, _)| why)?;
    /// assert!(chain.take_page().is_some(), "a whole page goes as it is");
    /// # Ok::<(), NoMemory>(())
    /// ```
    pub fn take_page(&mut self) -> Option<H::Page> {
        self.first_page()?;
        self.pop_front()?.into_page()
    }

    /// Bytes of the whole pages with which a run begins that is the first piece: as
    /// [`first_page`](Chain::first_page).
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// # let heap = Heap;
    /// let mut chain = Chain::<Heap>::new();
    /// let run = vec![heap.alloc()?, heap.alloc()?];
    /// chain.append_run(run, 0..2 * PAGE_SIZE).map_err(|(why, _)| why)?;
    /// assert_eq!(chain.first_run(), 2 * PAGE_SIZE);
    /// # Ok::<(), NoMemory>(())
    /// ```
    pub fn first_run(&self) -> usize {
        self.pieces.front().map_or(0, Piece::whole_run)
    }

    /// The run that is the first piece, if it begins with whole pages, and which of its pages those
    /// are.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// # let heap = Heap;
    /// let mut chain = Chain::<Heap>::new();
    /// let run = vec![heap.alloc()?, heap.alloc()?];
    /// chain.append_run(run, 0..2 * PAGE_SIZE).map_err(|(why, _)| why)?;
    /// assert_eq!(chain.peek_run().map(|(_, pages)| pages), Some(0..2));
    /// # Ok::<(), NoMemory>(())
    /// ```
    pub fn peek_run(&self) -> Option<(&H::Run, Range<usize>)> {
        let first = self.pieces.front()?;
        let (start, len) = (first.start() / PAGE_SIZE, first.whole_run() / PAGE_SIZE);
        first.run().filter(|_| len > 0).map(|run| (run, start..start + len))
    }

    /// Takes those pages out; `None` if there are none.
    ///
    /// Fails with [`NoMemory`]; the chain is then as it was.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// # let heap = Heap;
    /// let mut chain = Chain::<Heap>::new();
    /// let run = vec![heap.alloc()?, heap.alloc()?];
    /// chain.append_run(run, 0..2 * PAGE_SIZE).map_err(|(why, _)| why)?;
    /// assert_eq!(chain.take_run(&heap)?.map(|run| run.len()), Some(2));
    /// # Ok::<(), NoMemory>(())
    /// ```
    pub fn take_run(&mut self, pages: &H) -> Result<Option<H::Run>, NoMemory> {
        let len = self.first_run();
        if len == 0 {
            return Ok(None);
        }
        Ok(self.take_first(pages, len)?.into_run(pages))
    }

    /// Shows each run to `f`, until it fails.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// # let heap = Heap;
    /// let mut chain = Chain::<Heap>::new();
    /// let run = vec![heap.alloc()?, heap.alloc()?];
    /// chain.append_run(run, 0..2 * PAGE_SIZE).map_err(|(why, _)| why)?;
    /// let mut pages = 0;
    /// chain.try_each_run(|run| {
    ///     pages += run.len();
    ///     Ok::<(), NoMemory>(())
    /// })?;
    /// assert_eq!(pages, 2);
    /// # Ok::<(), NoMemory>(())
    /// ```
    pub fn try_each_run<E>(
        &mut self,
        f: impl FnMut(&mut H::Run) -> Result<(), E>,
    ) -> Result<(), E> {
        self.pieces.iter_mut().filter_map(Piece::run_mut).try_for_each(f)
    }

    /// Gives all pages back.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// # let heap = Heap;
    /// let mut chain = Chain::new();
    /// chain.append(&heap, b"bytes")?;
    /// chain.release(&heap);
    /// # Ok::<(), NoMemory>(())
    /// ```
    pub fn release(mut self, pages: &H) {
        self.clear(pages);
    }

    /// As [`release`](Chain::release), but the chain may be used on.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// # let heap = Heap;
    /// let mut chain = Chain::new();
    /// chain.append(&heap, b"bytes")?;
    /// chain.clear(&heap);
    /// assert!(chain.is_empty());
    /// # Ok::<(), NoMemory>(())
    /// ```
    pub fn clear(&mut self, pages: &H) {
        for piece in self.pieces.drain(..) {
            piece.release(pages);
        }
        self.shrink();
        (self.len, self.memory) = (0, 0);
    }

    /// Checks I1 and I5; panics if one doesn't hold. For tests.
    ///
    /// ```
    /// # mod host { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/example.rs")); }
    /// # use host::*;
    /// # let heap = Heap;
    /// let mut chain = Chain::new();
    /// chain.append(&heap, b"bytes")?;
    /// chain.audit();
    /// # Ok::<(), NoMemory>(())
    /// ```
    pub fn audit(&self) {
        assert_eq!(self.len, self.pieces.iter().map(Piece::len).sum::<usize>(), "I1: the length");
        assert!(self.pieces.iter().all(|piece| piece.len() > 0), "I1: no piece is empty");
        assert_eq!(
            self.memory,
            self.pieces.iter().map(Piece::memory).sum::<usize>(),
            "I5: the memory"
        );
    }
}
