//! Page frames cut into chunks: where compressed pages lie.
//!
//! ```text
//!   frame   | chunk 0 | chunk 1 | chunk 2 |     a frame of 3: chunks of 1365 bytes
//!   shared  3: frame -> frame -> ...         by chunks to a frame: those with a live chunk and a
//!   free one
//! ```
//! All chunks of a frame have one size, a page's part: a half to a sixteenth. What is smaller than
//! a sixteenth wastes the rest, what is larger than a half has no place here. A frame comes with
//! its first chunk and goes with its last.
//!
//! I1: a frame in use has at least one live chunk; it is on its list exactly if it has a free one
//! too. I2: `used` counts the frames in use, `unused` their free chunks.
//!
//! The road not taken is moving chunks together so that frames become free sooner: it needs to know
//! every chunk's owner.

use machine::{NoMemory, PageNo, Pieces, PAGE_SIZE};

/// The most chunks of a frame.
const MOST: usize = 16;
/// No frame.
const NIL: u32 = u32::MAX;

/// A part of a page frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Chunk {
    frame: u32,
    index: u8,
}

/// Chunks to a frame, 2 to 16: says how large they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Parts(u8);

impl Parts {
    /// A record's without a frame.
    const NONE: Parts = Parts(0);

    /// The smallest chunks that hold `len` bytes; none if they would be over half a page.
    pub(super) fn for_len(len: usize) -> Option<Parts> {
        let parts = (PAGE_SIZE / len.max(1)).min(MOST);
        (parts >= 2).then_some(Parts(parts as u8))
    }

    fn size(self) -> usize {
        PAGE_SIZE / usize::from(self.0)
    }

    fn all(self) -> u16 {
        (u32::from(u16::MAX) >> (16 - self.0)) as u16
    }
}

#[derive(Clone, Copy)]
struct Frame {
    page: PageNo,
    parts: Parts,
    /// A bit for each chunk in use; none for a record without a frame.
    live: u16,
    next: u32,
    prev: u32,
}

/// See the module.
pub(super) struct SizeClasses {
    frames: Pieces<Frame>,
    /// Frames in use.
    pub(super) used: u32,
    /// Free chunks of those.
    pub(super) unused: u32,
    /// By `Parts`: the first frame with a free chunk; records without a frame have no parts.
    shared: [u32; MOST + 1],
}

impl SizeClasses {
    /// The most chunks of a frame.
    pub(super) const MOST: u32 = MOST as u32;

    /// Heap bytes for the records of so many frames.
    pub(super) const fn bytes(most: u32) -> usize {
        Pieces::<Frame>::bytes(most as usize)
    }

    /// Room for the records of so many frames.
    pub(super) fn new(most: u32) -> Result<SizeClasses, NoMemory> {
        let blank = Frame { page: PageNo(0), parts: Parts::NONE, live: 0, next: NIL, prev: NIL };
        let frames = Pieces::new(most as usize, &blank)?;
        let mut new = SizeClasses { frames, used: 0, unused: 0, shared: [NIL; MOST + 1] };
        (0..most).rev().for_each(|frame| new.link(frame));
        Ok(new)
    }

    /// Takes a chunk of a frame that others use too, if there is one.
    pub(super) fn share(&mut self, parts: Parts) -> Option<Chunk> {
        let frame = self.shared[usize::from(parts.0)];
        let record = self.record(frame)?;
        let index = record.live.trailing_ones() as u8;
        record.live |= 1 << index;
        let is_full = record.live == parts.all();
        self.unused -= 1;
        if is_full {
            self.unlink(frame);
        }
        Some(Chunk { frame, index })
    }

    /// Cuts a frame up, and takes its first chunk.
    ///
    /// # Errors
    /// [`NoMemory`] if there is no record for it.
    pub(super) fn cut(&mut self, page: PageNo, parts: Parts) -> Result<Chunk, NoMemory> {
        let frame = self.shared[0];
        self.record(frame).ok_or(NoMemory)?;
        self.unlink(frame);
        self.frames[frame as usize] = Frame { page, parts, live: 1, next: NIL, prev: NIL };
        self.used += 1;
        self.unused += u32::from(parts.0) - 1;
        self.link(frame);
        Ok(Chunk { frame, index: 0 })
    }

    /// Frees a chunk. The frame, if that was its last, which is the caller's now.
    pub(super) fn free(&mut self, chunk: Chunk) -> Option<PageNo> {
        let record = &mut self.frames[chunk.frame as usize];
        debug_assert!(record.live & 1 << chunk.index != 0, "{chunk:?} is freed twice");
        let was_full = record.live == record.parts.all();
        record.live &= !(1 << chunk.index);
        let Frame { live, page, parts, .. } = *record;
        self.unused += 1;
        if live == 0 {
            self.unused -= u32::from(parts.0);
            self.unlink(chunk.frame);
            self.frames[chunk.frame as usize].parts = Parts::NONE;
            self.link(chunk.frame);
            self.used -= 1;
            return Some(page);
        }
        if was_full {
            self.link(chunk.frame);
        }
        None
    }

    /// Where a chunk's bytes are: the frame, and the offset in it.
    pub(super) fn place(&self, chunk: Chunk) -> (PageNo, usize) {
        let record = &self.frames[chunk.frame as usize];
        (record.page, usize::from(chunk.index) * record.parts.size())
    }

    fn record(&mut self, frame: u32) -> Option<&mut Frame> {
        (frame != NIL).then(|| &mut self.frames[frame as usize])
    }

    fn link(&mut self, frame: u32) {
        let list = usize::from(self.frames[frame as usize].parts.0);
        let next = core::mem::replace(&mut self.shared[list], frame);
        self.frames[frame as usize].next = next;
        self.frames[frame as usize].prev = NIL;
        if let Some(next) = self.record(next) {
            next.prev = frame;
        }
    }

    fn unlink(&mut self, frame: u32) {
        let Frame { parts, next, prev, .. } = self.frames[frame as usize];
        match self.record(prev) {
            Some(prev) => prev.next = next,
            None => self.shared[usize::from(parts.0)] = next,
        }
        if let Some(next) = self.record(next) {
            next.prev = prev;
        }
    }

    /// Checks I1 and I2. `chunks` is how many chunks are in use, as their users count.
    ///
    /// # Errors
    /// What doesn't hold.
    pub(super) fn audit(&self, chunks: usize) -> Result<(), &'static str> {
        let used = self.frames.iter().filter(|f| f.live != 0);
        if used.clone().count() != self.used as usize {
            return Err("a frame of zram is counted wrongly");
        }
        if used.clone().map(|f| f.live.count_ones() as usize).sum::<usize>() != chunks {
            return Err("a chunk of zram has no user, or two");
        }
        let unused: u32 = used.clone().map(|f| u32::from(f.parts.0) - f.live.count_ones()).sum();
        if unused != self.unused {
            return Err("free chunks of zram are counted wrongly");
        }
        let mut on_lists = 0;
        for (parts, &first) in self.shared.iter().enumerate() {
            let (mut at, mut prev) = (first, NIL);
            while at != NIL {
                let f = &self.frames[at as usize];
                let fits = usize::from(f.parts.0) == parts && f.prev == prev;
                if !fits || (f.live == 0) != (parts == 0) || (f.live == f.parts.all() && parts != 0)
                {
                    return Err("a frame of zram is on the wrong list");
                }
                on_lists += usize::from(parts != 0);
                (prev, at) = (at, f.next);
            }
        }
        match used.filter(|f| f.live != f.parts.all()).count() == on_lists {
            true => Ok(()),
            false => Err("a frame of zram with a free chunk is on no list"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn what_is_over_half_a_page_has_no_cell() {
        assert_eq!(Parts::for_len(PAGE_SIZE / 2), Some(Parts(2)));
        assert_eq!(Parts::for_len(PAGE_SIZE / 2 + 1), None);
        assert_eq!((Parts::for_len(1), Parts::for_len(256)), (Some(Parts(16)), Some(Parts(16))));
        for len in 1..=PAGE_SIZE / 2 {
            let parts = Parts::for_len(len).unwrap();
            assert!(parts.size() >= len && parts.size() * usize::from(parts.0) <= PAGE_SIZE);
        }
    }

    #[test]
    fn cells_of_a_frame_do_not_overlap_and_the_last_gives_it_back() {
        let mut chunks = SizeClasses::new(1).unwrap();
        let parts = Parts::for_len(PAGE_SIZE / 4 - 24).unwrap();
        assert_eq!(chunks.share(parts), None);
        let mut held = std::vec![chunks.cut(PageNo(7), parts).unwrap()];
        held.extend(core::iter::from_fn(|| chunks.share(parts)));
        let offsets: Vec<_> = held.iter().map(|&chunk| chunks.place(chunk)).collect();
        assert_eq!(offsets, [0, 1, 2, 3].map(|n| (PageNo(7), n * PAGE_SIZE / 4)));
        assert_eq!(chunks.cut(PageNo(8), parts), Err(NoMemory));
        assert_eq!(chunks.free(held[2]), None);
        assert_eq!(chunks.share(parts), Some(held[2]), "a hole is filled");
        let freed: Vec<_> = held.into_iter().filter_map(|chunk| chunks.free(chunk)).collect();
        assert_eq!((freed, chunks.used, chunks.audit(0)), (std::vec![PageNo(7)], 0, Ok(())));
    }

    #[test]
    fn a_cell_has_one_user_whatever_the_order() {
        let mut chunks = SizeClasses::new(40).unwrap();
        let (mut held, mut pages) = (Vec::new(), (0..40).map(PageNo).collect::<Vec<_>>());
        let mut seed = 1u64;
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let pick = (seed >> 33) as usize;
            if seed >> 63 == 0 {
                let parts = Parts::for_len(pick % 2048 + 1).unwrap();
                let chunk =
                    chunks.share(parts).or_else(|| Some(chunks.cut(pages.pop()?, parts).unwrap()));
                held.extend(chunk);
            } else if !held.is_empty() {
                pages.extend(chunks.free(held.swap_remove(pick % held.len())));
            }
            let places: std::collections::BTreeSet<_> =
                held.iter().map(|&c| chunks.place(c)).collect();
            assert_eq!((places.len(), chunks.used as usize), (held.len(), 40 - pages.len()));
            chunks.audit(held.len()).unwrap();
        }
    }
}
