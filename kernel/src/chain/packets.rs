//! Where the packets in a pipe lie: what a writer with `O_DIRECT` wrote in one piece.
//!
//! Invariants: I1: `covered` is the sum of all marks' bytes, and no more than the pipe holds.

use alloc::collections::VecDeque;

use crate::errno::Result;
use crate::mem::fault::{self, Room};

/// A packet, and the bytes in front of it that are in none.
#[derive(Clone, Copy)]
pub struct Mark {
    pub before: usize,
    pub len: usize,
}

/// Whether bytes that move together are a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    Bytes,
    Packet,
}

/// The packets of a pipe, first in first out.
pub struct Packets {
    marks: VecDeque<Mark>,
    covered: usize,
}

impl Packets {
    pub const fn new() -> Packets {
        Packets { marks: VecDeque::new(), covered: 0 }
    }

    pub fn first(&self) -> Option<Mark> {
        self.marks.front().copied()
    }

    pub fn count(&self) -> usize {
        self.marks.len()
    }

    /// Bytes of memory for the marks.
    pub fn memory(&self) -> usize {
        self.marks.capacity() * size_of::<Mark>()
    }

    /// Makes room for one more.
    ///
    /// # Errors
    /// `ENOMEM`; nothing has changed.
    pub fn room(&mut self) -> Result<()> {
        Ok(self.marks.room(1)?)
    }

    /// The last `len` of the `held` bytes are a packet, for which there is [room](Self::room).
    pub fn push(&mut self, held: usize, len: usize) {
        self.marks.push_back(Mark { before: held - self.covered - len, len });
        self.covered = held;
    }

    /// The first `n` bytes have left.
    pub fn passed(&mut self, n: usize) {
        let mut left = n.min(self.covered);
        self.covered -= left;
        while let Some(first) = self.marks.front_mut() {
            let before = left.min(first.before);
            first.before -= before;
            let within = (left - before).min(first.len);
            first.len -= within;
            left -= before + within;
            if first.len > 0 {
                return;
            }
            self.marks.pop_front();
            fault::shrink(&mut self.marks);
        }
    }

    /// `n` bytes have come in front of all, as a packet, if there is memory for its mark.
    pub fn put_back_packet(&mut self, n: usize) {
        if self.room().is_err() {
            return self.put_back(n);
        }
        self.marks.push_front(Mark { before: 0, len: n });
        self.covered += n;
    }

    /// The lengths of what the first `most` bytes fall into, and which are packets.
    pub fn pieces(&self, most: usize) -> impl Iterator<Item = (usize, Piece)> + '_ {
        let marks = self
            .marks
            .iter()
            .flat_map(|mark| [(mark.before, Piece::Bytes), (mark.len, Piece::Packet)]);
        let mut left = most;
        marks.chain([(usize::MAX, Piece::Bytes)]).map(move |(len, kind)| {
            let len = len.min(left);
            left -= len;
            (len, kind)
        })
    }

    /// `n` bytes have come in front of all, in no packet.
    pub fn put_back(&mut self, n: usize) {
        if let Some(first) = self.marks.front_mut() {
            first.before += n;
            self.covered += n;
        }
    }
}
