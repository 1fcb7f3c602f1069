//! What is in a pipe.
//!
//! ```text
//!   first out   | front: put back | ring: copied bytes | behind: pages moved in, and bytes after them |   last in
//! ```
//!
//! Copies go into the ring, in at most two pieces a call. The ring starts small and takes its full
//! size when a writer first finds it full, so that the many pipes that only carry a line cost a
//! page. Pages that come as they are go behind it; what a mover took and couldn't place comes back
//! in front.
//!
//! Invariants: H1: `moved` is the length of `front` and `behind` together. H2: nothing is copied
//! into the ring while `moved` isn't 0, so bytes leave in the order they came. H3: `charged`, the
//! memory of the ring and of the chains, is what the totals of the pipe's maker know of. H4:
//! `ranges` is how many donated ranges are in `behind`; they are made loans before it is read, cut,
//! or moved, and nothing is there in front of the first that leaves as it is.

use alloc::sync::Arc;

use mbuf::NoMemory;

use super::packets::{Packets, Piece};
use super::ring::Ring;
use super::zero_copy::{append, pour, Loans, PIPE_LOAN};
use super::{Chain, Clusters, Run};
use crate::charge::Account;
use crate::errno::*;
use crate::uio::{Sink, Source};
use crate::vm::{self, Export, Space};

const PAGE: usize = 4096;

pub struct Contents {
    front: Chain,
    ring: Ring,
    behind: Chain,
    moved: usize,
    ranges: usize,
    packets: Packets,
    maker: Arc<Account>,
    charged: usize,
}

impl Contents {
    /// Nothing; what comes counts for the pipe's maker.
    pub fn new(maker: Arc<Account>) -> Contents {
        let (front, ring, behind) = (Chain::new(), Ring::new(), Chain::new());
        let packets = Packets::new();
        Contents { front, ring, behind, moved: 0, ranges: 0, packets, maker, charged: 0 }
    }

    /// Keeps H3.
    fn charge(&mut self) {
        let now = self.ring.size() + self.front.memory() + self.behind.memory();
        let now = now + self.packets.memory();
        self.maker.changed(self.charged, now);
        self.charged = now;
    }

    fn resize(&mut self, size: usize) -> Result<()> {
        self.ring.resize(size).map_err(|_| ENOMEM)?;
        self.charge();
        Ok(())
    }

    /// Bytes held.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.ring.len() + self.moved
    }

    /// Packets held.
    pub fn packets(&self) -> usize {
        self.packets.count()
    }

    /// The first `n` bytes have left.
    #[inline(always)]
    pub fn passed(&mut self, n: usize) {
        if self.packets.count() > 0 {
            self.packets.passed(n);
        }
    }

    /// Makes the ring no larger than `size`, which is enough for what is held.
    pub fn shrink(&mut self, size: usize) -> Result<()> {
        if self.ring.size() > size {
            self.resize(size)?;
        }
        Ok(())
    }

    /// Drops all.
    pub fn clear(&mut self) {
        self.front.clear(&Clusters);
        self.behind.clear(&Clusters);
        (self.moved, self.ranges) = (0, 0);
        self.charge();
        let left = self.ring.len();
        self.ring.consume(left);
    }

    /// Copies out what there is room for, up to the end of the first packet. What has no room of a
    /// packet that was begun is dropped.
    #[inline(always)]
    pub fn drain(&mut self, to: &mut Sink<'_>) -> Result<()> {
        if self.packets.count() > 0 {
            return self.drain_packet(to);
        }
        self.drain_bytes(to)
    }

    #[cold]
    fn drain_packet(&mut self, to: &mut Sink<'_>) -> Result<()> {
        let Some(first) = self.packets.first() else { return Ok(()) };
        let whole = first.before + first.len;
        let (held, away) = (self.len(), to.narrow(whole));
        let result = self.drain_bytes(to);
        to.widen(away);
        let out = held - self.len();
        if out > first.before && result.is_ok() {
            self.skip(whole - out);
        }
        result
    }

    /// Drops the first `bytes`, copied ones and pages alike.
    fn skip(&mut self, bytes: usize) {
        let _ = self.with_moved(|held| {
            let front = bytes.min(held.front.len());
            held.front.trim_front(&Clusters, front);
            let copied = (bytes - front).min(held.ring.len());
            held.ring.consume(copied);
            held.behind.trim_front(&Clusters, bytes - front - copied);
            Ok(())
        });
    }

    #[inline(always)]
    fn drain_bytes(&mut self, to: &mut Sink<'_>) -> Result<()> {
        if self.moved != 0 {
            return self.with_moved(|held| {
                pour(&mut held.front, to)?;
                held.drain_ring(to)?;
                if to.left() == 0 {
                    return Ok(());
                }
                held.loan_ranges()?;
                pour(&mut held.behind, to)
            });
        }
        self.drain_ring(to)
    }

    #[inline(always)]
    fn drain_ring(&mut self, to: &mut Sink<'_>) -> Result<()> {
        while self.ring.len() > 0 && to.left() > 0 {
            let n = to.put(self.ring.readable())?;
            self.ring.consume(n);
        }
        Ok(())
    }

    /// Runs what changes the chains, and keeps H1.
    #[cold]
    fn with_moved(&mut self, change: impl FnOnce(&mut Contents) -> Result<()>) -> Result<()> {
        let result = change(self);
        self.moved = self.front.len() + self.behind.len();
        self.charge();
        result
    }

    /// Keeps H4.
    fn loan_ranges(&mut self) -> Result<()> {
        if self.ranges > 0 {
            self.behind.try_each_run(|run| run.make_loaned().map(|_| ()))?;
            self.ranges = 0;
        }
        Ok(())
    }

    /// Moves a range out of a program's memory in, however large it is, if it can be
    /// [donated](vm::to_donate): when there is a place for it, so that it never has to go back to
    /// where another thread may have mapped something since.
    ///
    /// # Errors
    /// `ENOBUFS`, `ENOMEM`; nothing has changed.
    pub fn give_range(&mut self, space: &Space, addr: u64, pages: u64) -> Result<bool> {
        let Some(range) = vm::to_donate(space, addr, pages)? else { return Ok(false) };
        let len = pages as usize * PAGE;
        self.behind.append_run(Run::Range(range.clone()), 0..len).map_err(|_| ENOBUFS)?;
        if let Err(errno) = range.donate(space, addr) {
            self.behind.trim_back(&Clusters, len);
            return Err(errno);
        }
        self.ranges += 1;
        self.moved += len;
        self.charge();
        Ok(true)
    }

    /// Has `map` take what comes first, if it is a donated range of at most `most` bytes; what
    /// `map` has made of it, and its length.
    ///
    /// # Errors
    /// Errors of `map`: the range stays.
    pub fn take_range<T>(
        &mut self,
        most: usize,
        map: impl FnOnce(&Export) -> Result<T>,
    ) -> Result<Option<(T, usize)>> {
        let is_first = self.ranges > 0 && self.front.is_empty() && self.ring.len() == 0;
        let len = self.behind.first_run();
        if !is_first || len > most {
            return Ok(None);
        }
        let Some((Run::Range(range), _)) = self.behind.peek_run() else { return Ok(None) };
        let mapped = map(range)?;
        self.behind.trim_front(&Clusters, len);
        self.ranges -= 1;
        self.moved -= len;
        self.charge();
        Ok(Some((mapped, len)))
    }

    /// Copies in what there is room for, of `capacity` in all; loans pages where that pays, of up
    /// to `most` in all.
    #[inline(always)]
    pub fn fill(&mut self, capacity: usize, most: usize, from: &mut Source<'_>) -> Result<()> {
        let room = capacity - self.len();
        let loans = PIPE_LOAN.loans(from.left(), room);
        if self.moved != 0 || loans != Loans::Nothing {
            let is_whole =
                loans != Loans::Nothing && from.run().is_some_and(|(_, len)| len >= 4 * PAGE);
            let room = if is_whole { most - self.len() } else { room };
            return self.with_moved(|held| append(&mut held.behind, from, room, loans));
        }
        let wanted = (self.ring.len() + from.left()).min(capacity);
        if self.ring.size() < wanted {
            self.resize(if wanted <= PAGE { PAGE } else { capacity })?;
        }
        let ring = &mut self.ring;
        while ring.len() < ring.size() && from.left() > 0 {
            let n = from.get(ring.writable())?;
            ring.produced(n);
        }
        Ok(())
    }

    /// Copies the next `len` bytes in as a packet, of `capacity` in all.
    ///
    /// # Errors
    /// `EFAULT`, `ENOMEM`: no packet has come.
    pub fn fill_packet(
        &mut self,
        capacity: usize,
        len: usize,
        from: &mut Source<'_>,
    ) -> Result<()> {
        self.packets.room()?;
        let before = self.len();
        let away = from.narrow(len);
        let result = self.fill(capacity, capacity, from);
        from.widen(away);
        let came = self.len() - before;
        if came < len {
            from.back(came);
            let copied = came.saturating_sub(self.behind.len());
            self.trim_back(came - copied);
            self.ring.trim_back(copied);
            return result.and(Err(EFAULT));
        }
        self.packets.push(before + len, len);
        self.charge();
        Ok(())
    }

    /// Drops the last `bytes`, which were loaned last.
    pub fn trim_back(&mut self, bytes: usize) {
        let _ = self.with_moved(|held| {
            held.behind.trim_back(&Clusters, bytes);
            Ok(())
        });
    }

    /// Moves a chain in as a packet, of `most` bytes in all.
    pub fn give_packet(&mut self, most: usize, chain: &mut Chain) -> Result<()> {
        self.packets.room()?;
        let before = self.len();
        let result = self.give(most, chain);
        let came = self.len() - before;
        if came > 0 {
            self.packets.push(before + came, came);
            self.charge();
        }
        result
    }

    /// As [`take`](Self::take), but no further than to the beginning or end of a packet.
    pub fn take_piece(&mut self, most: usize, to: &mut Chain) -> Result<Piece> {
        let mut pieces = self.packets.pieces(most);
        let (len, kind) = pieces.find(|&(len, _)| len > 0).unwrap_or((0, Piece::Bytes));
        drop(pieces);
        self.take(len, to).map(|()| kind)
    }

    /// Puts back what was taken as a packet, in front of all else.
    pub fn unget_packet(&mut self, chain: Chain) {
        let len = chain.len();
        self.join_front(chain);
        self.packets.put_back_packet(len);
    }

    /// The pieces that the first `most` bytes fall into.
    pub fn pieces(&self, most: usize) -> impl Iterator<Item = (usize, Piece)> + '_ {
        self.packets.pieces(most.min(self.len())).filter(|&(len, _)| len > 0)
    }

    /// Moves in what there is room for, of `most` in all.
    pub fn give(&mut self, most: usize, chain: &mut Chain) -> Result<()> {
        let room = most - self.len();
        self.with_moved(|held| {
            held.behind.take_from(&Clusters, chain, room).map_err(|NoMemory| ENOBUFS)
        })
    }

    /// Moves up to `most` bytes to `to`; those of the ring are copied.
    pub fn take(&mut self, most: usize, to: &mut Chain) -> Result<()> {
        self.with_moved(|held| {
            to.take_from(&Clusters, &mut held.front, most).map_err(|NoMemory| ENOBUFS)?;
            while held.ring.len() > 0 && to.len() < most {
                let bytes = held.ring.readable();
                let n = bytes.len().min(most - to.len());
                to.append(&Clusters, &bytes[..n]).map_err(|NoMemory| ENOBUFS)?;
                held.ring.consume(n);
            }
            let left = most - to.len();
            if held.ranges > 0 && (left == 0 || !to.is_empty()) {
                // The next caller has the ranges as they are.
                return Ok(());
            }
            held.loan_ranges()?;
            to.take_from(&Clusters, &mut held.behind, left).map_err(|NoMemory| ENOBUFS)
        })
    }

    /// Puts back what was taken, in front of all else.
    pub fn unget(&mut self, chain: Chain) {
        self.packets.put_back(chain.len());
        self.join_front(chain);
    }

    fn join_front(&mut self, mut chain: Chain) {
        let _ = self.with_moved(|held| {
            // Only a second mover finds something here. Nothing may be lost: a process is ended
            // before this fails.
            let joined = vm::with_room_at_any_cost(|| {
                chain.take_from(&Clusters, &mut held.front, usize::MAX)
            });
            if joined.is_err() {
                held.front.clear(&Clusters);
            }
            held.front = chain;
            Ok(())
        });
    }

    /// The first `most` bytes on the same pages; those of the ring are copied.
    pub fn look(&mut self, most: usize) -> Result<Chain> {
        self.loan_ranges()?;
        let mut chain =
            self.front.refer(&Clusters, most.min(self.front.len())).map_err(|NoMemory| ENOBUFS)?;
        let result = self.look_behind(most, &mut chain);
        if let Err(errno) = result {
            chain.release(&Clusters);
            return Err(errno);
        }
        Ok(chain)
    }

    fn look_behind(&self, most: usize, chain: &mut Chain) -> Result<()> {
        for part in self.ring.pieces() {
            let n = part.len().min(most - chain.len());
            chain.append(&Clusters, &part[..n]).map_err(|NoMemory| ENOBUFS)?;
        }
        let left = (most - chain.len()).min(self.behind.len());
        let mut behind = self.behind.refer(&Clusters, left).map_err(|NoMemory| ENOBUFS)?;
        let joined = chain.take_from(&Clusters, &mut behind, left);
        behind.release(&Clusters);
        joined.map_err(|NoMemory| ENOBUFS)
    }
}

impl Drop for Contents {
    fn drop(&mut self) {
        self.maker.changed(self.charged, 0);
    }
}
