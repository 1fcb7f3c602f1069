//! How much of a file to read when a page is missing, and when to read on before a reader asks.
//!
//! ```text
//!   window read      |M . . . . . . .|M . . . . . . . . . . . . . . .|
//!   reader                            ^ meets the mark: the next window is started, twice as long
//! ```
//! A *stream* is a reader that goes upwards: it missed a page just where the last read ended. Its
//! windows double up to 64 pages, and from 4 pages on the first page of each carries a mark (the
//! flag `AHEAD`): a thread that comes to it starts the next window, so the device works on one
//! while another is used up. A thread that comes to a marked page that is still under way is faster
//! than the device: once windows have their full size, it starts as many as make [`DEPTH`] pages,
//! so that the device always has the next one. A few streams per object are kept, for a few
//! readers.
//!
//! A fault that follows no stream brings its own page alone, but for a file's first pages and for
//! files that programs run: a random reader costs what it touches. Only if such faults come near
//! one another, the missing pages *around* them are read, twice as many each time that a program
//! has touched the last ones, half as many if none has. A call of the host that follows no stream
//! gets the pages it asked for.
//!
//! Pure policy: no lock, no page. Source: the paper leaves this to the file system; windows and
//! marks are as in most systems of today. Not taken: streams per open file, which a fault can't
//! name.

use core::ops::Range;

use super::{Access, Advice};
use crate::io::CLUSTER;

/// The longest window.
const MOST: u64 = CLUSTER as u64;
/// The first window that is marked, and the first of a file that is read from its start.
const LEAST: u64 = 4;
/// How far behind a reader that waits for the device the last window may end.
const DEPTH: u64 = 3 * MOST;
/// The most pages around a fault.
const AROUND: u64 = 16;
/// Pages of the first read by a fault where more are likely to be wanted: at a file's start, and in
/// what programs run.
const LIKELY: u64 = 8;
/// Two lone faults so near to each other are worth another try.
const NEAR: u64 = 4;
/// Streams kept.
const STREAMS: usize = 3;

/// A read to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    /// Pages, the missing one among them; never more than a cluster.
    pub(crate) pages: Range<u64>,
    /// Whether the first page of what is read carries the mark.
    pub(crate) marked: bool,
    /// Whether the page that was come to keeps its mark: its reader will start one more window.
    pub(crate) again: bool,
}

impl Plan {
    fn new(pages: Range<u64>, marked: bool) -> Plan {
        Plan { pages, marked, again: false }
    }
}

/// Whether a reader has to wait for the page that it came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reader {
    Waits,
    GoesOn,
}

/// An object's readers as they were last seen.
#[derive(Debug)]
pub(crate) struct ReadAhead {
    /// What was read last for each reader, none if it is empty; the last used first.
    streams: [Range<u64>; STREAMS],
    /// Pages to read around a fault that follows no stream: a power of two.
    around: u64,
    /// What was read around the last such fault, and the page that it wanted.
    last: (Range<u64>, u64),
    /// Pages that could not be read as a cluster: they are read one by one.
    alone: Range<u64>,
}

impl ReadAhead {
    pub(crate) fn new() -> ReadAhead {
        ReadAhead { streams: Default::default(), around: 1, last: (0..0, 0), alone: 0..0 }
    }

    /// Programs run what the object holds: it is not read at random.
    pub(crate) fn runs(&mut self) {
        self.around = self.around.max(LIKELY);
    }

    /// What to read for a page that is missing in an object of `len` pages. `used` says whether a
    /// page of a range has been touched but for the one named.
    pub(crate) fn miss(
        &mut self,
        index: u64,
        access: Access,
        len: u64,
        used: impl FnOnce(Range<u64>, u64) -> bool,
    ) -> Plan {
        let (advice, asked) = match access {
            Access::Fault(advice) => (advice, 1),
            Access::Call(advice, pages) => (advice, u64::from(pages).clamp(1, MOST)),
        };
        let mut plan = if self.alone.contains(&index) {
            Plan::new(index..index + 1, false)
        } else {
            match advice {
                Advice::Random => Plan::new(index..index + asked, false),
                Advice::Sequential => {
                    Plan::new(self.goes_on(STREAMS - 1, index..index + MOST), true)
                }
                Advice::Normal => {
                    match self.streams.iter().position(|s| s.end == index && index != 0) {
                        Some(at) => {
                            let (size, marked) = self.longer(at);
                            Plan::new(self.goes_on(at, index..index + size.max(asked)), marked)
                        }
                        None => self.aside(index, access, used),
                    }
                }
            }
        };
        plan.pages.end = plan.pages.end.min(len).max(index + 1);
        plan
    }

    /// What to read next, as a thread has come to the marked page at `index`.
    pub(crate) fn touch(&mut self, index: u64, len: u64, reader: Reader) -> Option<Plan> {
        let follows = |s: &Range<u64>| s.end > index && s.end - index < DEPTH;
        let at = self.streams.iter().position(follows)?;
        let (start, (size, _)) = (self.streams[at].end, self.longer(at));
        let pages = start..(start + size).min(len);
        if pages.is_empty() {
            return None;
        }
        let full = start - self.streams[at].start >= MOST;
        let again = full && reader == Reader::Waits && pages.end - index < DEPTH;
        Some(Plan { pages: self.goes_on(at, pages), marked: true, again })
    }

    /// A stream's next window, or a new stream's first in the place of the last one.
    fn goes_on(&mut self, at: usize, window: Range<u64>) -> Range<u64> {
        self.streams[..=at].rotate_right(1);
        self.streams[0] = window.clone();
        window
    }

    /// Takes note of a page that could not be read together with others. Called for each, in order.
    pub(crate) fn failed(&mut self, index: u64) {
        let start = if self.alone.end == index { self.alone.start } else { index };
        self.alone = start..index + 1;
    }

    /// The size of the window behind a stream's last, and whether it is marked: two pages in a row
    /// may be an accident.
    fn longer(&self, at: usize) -> (u64, bool) {
        let window = &self.streams[at];
        let size = (window.end - window.start) * 2;
        (size.min(MOST), size >= LEAST)
    }

    /// A read that follows no stream, and may be the start of one.
    fn aside(
        &mut self,
        index: u64,
        access: Access,
        used: impl FnOnce(Range<u64>, u64) -> bool,
    ) -> Plan {
        let pages = match access {
            Access::Call(_, asked) => {
                let asked = u64::from(asked).clamp(1, MOST);
                index..index + if index == 0 { asked.max(LEAST) } else { asked }
            }
            Access::Fault(_) if index == 0 => 0..LIKELY,
            Access::Fault(_) => {
                self.adapt(index, used);
                let start = index & !(self.around - 1);
                self.last = (start..start + self.around, index);
                self.last.0.clone()
            }
        };
        // A call that goes on behind the first cluster will surely come to the mark.
        let marked = matches!(access, Access::Call(_, asked) if u64::from(asked) > MOST);
        Plan::new(self.goes_on(STREAMS - 1, pages), marked)
    }

    /// Learns from what became of the pages around the last fault.
    fn adapt(&mut self, index: u64, used: impl FnOnce(Range<u64>, u64) -> bool) {
        let (read, wanted) = self.last.clone();
        let pays = match read.end - read.start {
            0 => return,
            1 => index.abs_diff(wanted) <= NEAR,
            _ => used(read, wanted),
        };
        self.around = if pays { (self.around * 2).min(AROUND) } else { (self.around / 2).max(1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const FAULT: Access = Access::Fault(Advice::Normal);
    const LEN: u64 = 1 << 20;

    /// Reads pages in order, as a program does, and returns what was read for each.
    fn reads(
        ahead: &mut ReadAhead,
        order: impl Iterator<Item = u64>,
        access: Access,
    ) -> Vec<Range<u64>> {
        let (mut resident, mut marks, mut reads) = (Vec::new(), Vec::new(), Vec::new());
        let mut take = |plan: Plan, resident: &mut Vec<u64>, marks: &mut Vec<u64>| {
            let fresh: Vec<u64> = plan.pages.clone().filter(|p| !resident.contains(p)).collect();
            marks.extend(fresh.first().filter(|_| plan.marked));
            resident.extend(&fresh);
            reads.push(plan.pages);
        };
        for page in order {
            if !resident.contains(&page) {
                let plan = ahead.miss(page, access, LEN, |_, _| false);
                assert!(plan.pages.contains(&page) && plan.pages.end - plan.pages.start <= MOST);
                take(plan, &mut resident, &mut marks);
            }
            if let Some(at) = marks.iter().position(|&m| m == page) {
                marks.remove(at);
                if let Some(plan) = ahead.touch(page, LEN, Reader::GoesOn) {
                    take(plan, &mut resident, &mut marks);
                }
            }
        }
        reads
    }

    #[test]
    fn a_sequential_reader_is_always_a_window_ahead() {
        let mut ahead = ReadAhead::new();
        let reads = reads(&mut ahead, 0..200, FAULT);
        assert_eq!(reads, [0..8, 8..24, 24..56, 56..120, 120..184, 184..248, 248..312]);
        let sizes: Vec<u64> = reads.iter().map(|r| r.end - r.start).collect();
        assert!(sizes.is_sorted());
    }

    #[test]
    fn a_reader_who_waits_for_the_device_gives_it_more_to_do() {
        let mut ahead = ReadAhead::new();
        // 0..8, 8..24, 24..56, 56..120: windows double before they are many.
        for (index, again) in [(8, false), (24, false)] {
            if index == 8 {
                ahead.miss(0, FAULT, LEN, |_, _| false);
                ahead.miss(8, FAULT, LEN, |_, _| false);
            }
            let plan = ahead.touch(index, LEN, Reader::Waits).unwrap();
            assert_eq!(plan.again, again, "{plan:?}");
        }
        let first = ahead.touch(56, LEN, Reader::Waits).unwrap();
        assert_eq!(first, Plan { pages: 120..184, marked: true, again: true });
        let second = ahead.touch(56, LEN, Reader::Waits).unwrap();
        assert_eq!(second, Plan { pages: 184..248, marked: true, again: false });
        // The next mark keeps the distance; a reader that doesn't wait lets it shrink.
        assert_eq!(ahead.touch(120, LEN, Reader::Waits).unwrap().pages, 248..312);
        assert_eq!(ahead.touch(120, LEN, Reader::Waits), None);
        assert_eq!(ahead.touch(184, LEN, Reader::GoesOn).unwrap().pages, 312..376);
        assert_eq!(ahead.touch(248, LEN, Reader::GoesOn).unwrap().pages, 376..440);
    }

    #[test]
    fn two_readers_at_once_are_two_streams() {
        let mut ahead = ReadAhead::new();
        let order = (0..128u64).flat_map(|n| [n, 5000 + n]);
        let reads = reads(&mut ahead, order, Access::PAGE);
        let pages: u64 = reads.iter().map(|r| r.end - r.start).sum();
        assert!(reads.len() < 20 && pages <= 2 * 128 + 4 * MOST, "{reads:?}");
    }

    #[test]
    fn random_faults_read_no_more_than_they_touch() {
        let mut ahead = ReadAhead::new();
        let order = (1..500u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 45);
        assert!(reads(&mut ahead, order, FAULT).iter().all(|r| r.end - r.start == 1));
    }

    #[test]
    fn faults_near_one_another_bring_their_neighbours_soon() {
        let mut ahead = ReadAhead::new();
        let order = (0..200u64).rev().map(|n| 5000 + n);
        let reads = reads(&mut ahead, order, FAULT);
        assert_eq!(reads[..3], [5199..5200, 5198..5200, 5197..5198]);
        let mut ahead = ReadAhead::new();
        ahead.runs();
        assert_eq!(ahead.miss(9000, FAULT, LEN, |_, _| true).pages.count(), 8);
    }

    #[test]
    fn random_calls_read_what_they_ask_for() {
        let mut ahead = ReadAhead::new();
        let order = (1..500u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 45);
        assert!(reads(&mut ahead, order, Access::PAGE).iter().all(|r| r.end - r.start == 1));
        let plan = ahead.miss(900_000, Access::Call(Advice::Normal, 9), LEN, |_, _| false);
        assert_eq!(plan, Plan::new(900_000..900_009, false));
    }

    #[test]
    fn advice_is_obeyed() {
        let mut ahead = ReadAhead::new();
        let plan =
            |a: &mut ReadAhead, i, advice| a.miss(i, Access::Fault(advice), 100, |_, _| true);
        for i in 0..10 {
            assert_eq!(plan(&mut ahead, i, Advice::Random), Plan::new(i..i + 1, false));
        }
        assert_eq!(plan(&mut ahead, 30, Advice::Sequential), Plan::new(30..94, true));
        assert_eq!(ahead.touch(30, 100, Reader::GoesOn), Some(Plan::new(94..100, true)));
        assert_eq!(ahead.touch(94, 100, Reader::GoesOn), None);
    }

    #[test]
    fn neighbours_that_are_used_bring_more_neighbours() {
        let mut ahead = ReadAhead::new();
        ahead.runs();
        let first = ahead.miss(1000, FAULT, LEN, |_, _| unreachable!());
        let second =
            ahead.miss(2000, FAULT, LEN, |pages, wanted| pages == (1000..1008) && wanted == 1000);
        assert_eq!((first.pages, second.pages), (1000..1008, 2000..2016));
        (2000..2016).for_each(|page| ahead.failed(page));
        assert_eq!(ahead.miss(2003, FAULT, LEN, |_, _| true).pages, 2003..2004);
    }
}
