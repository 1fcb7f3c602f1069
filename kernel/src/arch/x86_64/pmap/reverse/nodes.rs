//! Nodes of the reverse map, and lists of them.
//!
//! A node names mappings of a last table; what its place word says is its list's. Nodes lie in
//! frames of their own. Each CPU has free ones at hand; what it has too many of lies in a depot,
//! each node with the others of its frame. Whole free frames go back to all ([`give_back`]).
//!
//! ```text
//!   record of a frame of nodes: newest free node | free nodes here | next frame | previous frame
//! ```
//!
//! A CPU that adds to a list writes the list's ends and the new node, and no node that another CPU
//! made. What lies towards the newest a node learns only when the oldest is taken away, in one walk
//! for all that came since the last.
//!
//! I1: a node's `newer` is NIL or the node whose `older` it is.

use core::cell::Cell;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::arch::layout;
use crate::mem::frames::Reserve;
use machine::order::{Before, Held, PageCache};
use machine::{NoMemory, PageNo, PAGE_SIZE};

use super::super::record::record;
use super::super::NIL;
use crate::arch::{cpu, preempt};
use crate::lock::SpinLock;
use crate::mem::frames::{unlocked, KERNEL};
use crate::mem::{direct, heap};

/// Nodes in a frame, and in a batch that CPUs exchange.
const NODES: u32 = 256;

#[repr(C)]
pub(super) struct Node {
    pub(super) table: AtomicU32,
    pub(super) place: AtomicU32,
    /// Of a free node: the next one.
    older: AtomicU32,
    newer: AtomicU32,
}

/// One CPU's free nodes: a list that it takes from and gives to, and a full batch beside. Only that
/// CPU touches them.
pub struct FreeNodes {
    head: Cell<u32>,
    len: Cell<u32>,
    spare: Cell<u32>,
}

impl FreeNodes {
    /// No node.
    pub(in super::super::super) const fn new() -> FreeNodes {
        FreeNodes { head: Cell::new(NIL), len: Cell::new(0), spare: Cell::new(NIL) }
    }
}

/// Frames of nodes.
pub static FRAMES: AtomicU32 = AtomicU32::new(0);
/// The frames with free nodes that no CPU has; their records change with it locked.
static DEPOT: SpinLock<Depot> = SpinLock::new(Depot { first: [NIL; 2], whole: 0 });
/// Whole free frames that the depot keeps.
const KEPT: usize = 2;

/// Where the record of a frame of nodes keeps what.
const FREE: usize = 0;
const COUNT: usize = 1;
const NEXT: usize = 2;
const PREVIOUS: usize = 3;

struct Depot {
    /// The first of the frames some of whose nodes are here, and of those all of whose are.
    first: [u32; 2],
    /// Frames in the second list.
    whole: usize,
}

impl Depot {
    /// Puts a free node to its frame.
    fn put(&mut self, number: u32) {
        let frame = number / NODES;
        let words = &record(PageNo(frame)).words;
        let (mut free, count) = (NIL, words[COUNT].load(Relaxed));
        if count > 0 {
            free = words[FREE].load(Relaxed);
        }
        node(number).older.store(free, Relaxed);
        words[FREE].store(number, Relaxed);
        if count == 0 {
            self.link(frame, 1);
        } else if count + 1 == NODES {
            self.unlink(frame);
            self.link(frame, NODES);
        } else {
            words[COUNT].store(count + 1, Relaxed);
        }
    }

    /// Takes all free nodes of a frame: their chain, or NIL, and number.
    fn take(&mut self) -> (u32, u32) {
        let Some(frame) = self.first.into_iter().find(|&frame| frame != NIL) else {
            return (NIL, 0);
        };
        let words = &record(PageNo(frame)).words;
        let (chain, count) = (words[FREE].load(Relaxed), words[COUNT].load(Relaxed));
        self.unlink(frame);
        (chain, count)
    }

    /// Puts a frame in that has so many free nodes.
    fn link(&mut self, frame: u32, count: u32) {
        let words = &record(PageNo(frame)).words;
        let is_whole = count == NODES;
        let first = &mut self.first[usize::from(is_whole)];
        words[COUNT].store(count, Relaxed);
        words[NEXT].store(*first, Relaxed);
        words[PREVIOUS].store(NIL, Relaxed);
        if *first != NIL {
            record(PageNo(*first)).words[PREVIOUS].store(frame, Relaxed);
        }
        *first = frame;
        self.whole += usize::from(is_whole);
    }

    /// Takes a frame out with all its free nodes.
    fn unlink(&mut self, frame: u32) {
        let words = &record(PageNo(frame)).words;
        let is_whole = words[COUNT].swap(0, Relaxed) == NODES;
        let (next, previous) = (words[NEXT].load(Relaxed), words[PREVIOUS].load(Relaxed));
        match previous {
            NIL => self.first[usize::from(is_whole)] = next,
            previous => record(PageNo(previous)).words[NEXT].store(next, Relaxed),
        }
        if next != NIL {
            record(PageNo(next)).words[PREVIOUS].store(previous, Relaxed);
        }
        self.whole -= usize::from(is_whole);
    }

    /// Takes a frame out whose nodes are all free, if there are more than are kept.
    fn take_whole(&mut self) -> Option<u32> {
        let frame = self.first[1];
        (self.whole > KEPT).then(|| self.unlink(frame))?;
        Some(frame)
    }
}

/// Gives whole free frames back. Nothing is locked.
pub fn give_back() {
    loop {
        let Some(frame) = DEPOT.lock().take_whole() else { return };
        record(PageNo(frame)).make_plain();
        FRAMES.fetch_sub(1, Relaxed);
        // SAFETY: all nodes of the frame are free and no other CPU has them; no record names them.
        unlocked(|held| unsafe { direct::give(held, PageNo(frame)) });
    }
}

/// Puts this CPU's free nodes to their frames.
pub fn drain() {
    preempt::closed(|| {
        let free = &cpu::this().nodes;
        put_aside(free);
        put_aside(free);
    });
}

/// A node by its number: frame and place in the frame.
#[inline]
pub(super) fn node(number: u32) -> &'static Node {
    let frame = layout::direct(KERNEL.frames().pa(PageNo(number / NODES)).0);
    // SAFETY: node numbers are made in `refill` only, of frames that hold nodes as long as one is
    // in use; the fields are atomics.
    unsafe { &*((frame as *const Node).add((number % NODES) as usize)) }
}

/// Takes a free node.
///
/// # Errors
/// [`NoMemory`]; nothing has changed.
#[inline]
pub(in super::super) fn take_node<P: Before<PageCache>>(
    held: &mut Held<'_, P>,
) -> Result<u32, NoMemory> {
    let free = &cpu::this().nodes;
    if free.head.get() == NIL {
        refill(free, held)?;
    }
    let number = free.head.get();
    free.head.set(node(number).older.load(Relaxed));
    free.len.set(free.len.get() - 1);
    Ok(number)
}

/// Gives a node back.
#[inline]
pub(super) fn give_node(number: u32) {
    let free = &cpu::this().nodes;
    if free.len.get() == NODES {
        put_aside(free);
    }
    node(number).older.store(free.head.get(), Relaxed);
    free.head.set(number);
    free.len.set(free.len.get() + 1);
}

/// Makes the list the spare batch, and puts the nodes of the spare one there was to their frames.
#[cold]
fn put_aside(free: &FreeNodes) {
    let mut number = free.spare.replace(free.head.replace(NIL));
    free.len.set(0);
    if number == NIL {
        return;
    }
    let mut depot = DEPOT.lock();
    while number != NIL {
        let next = node(number).older.load(Relaxed);
        depot.put(number);
        number = next;
    }
    if depot.whole > KEPT {
        heap::is_worth_a_look();
    }
}

/// Gives an empty list a batch: this CPU's spare one, a frame's nodes that others have given back,
/// or a new frame.
#[cold]
fn refill<P: Before<PageCache>>(free: &FreeNodes, held: &mut Held<'_, P>) -> Result<(), NoMemory> {
    let (mut batch, mut len) = (free.spare.replace(NIL), NODES);
    if batch == NIL {
        (batch, len) = DEPOT.lock().take();
    }
    if batch == NIL {
        let frame = direct::take(held, Reserve::Kernel)?;
        // A number must fit 32 bits and not be NIL: frames up to 64 GiB.
        let Some(first) = frame.0.checked_mul(NODES).filter(|n| n < &(NIL - NODES)) else {
            // SAFETY: it was just taken.
            unsafe { direct::give(held, frame) };
            return Err(NoMemory);
        };
        record(frame).make_own();
        FRAMES.fetch_add(1, Relaxed);
        batch = first;
        len = NODES;
        record(frame).words[COUNT].store(0, Relaxed);
        for number in batch..batch + NODES {
            let next = if number + 1 == batch + NODES { NIL } else { number + 1 };
            node(number).older.store(next, Relaxed);
        }
    }
    free.head.set(batch);
    free.len.set(len);
    Ok(())
}

/// The two ends of a list of nodes, under the lock of the record or bucket that has them.
#[derive(Clone, Copy)]
pub(super) struct List<'a> {
    pub(super) newest: &'a AtomicU32,
    pub(super) oldest: &'a AtomicU32,
}

impl List<'_> {
    /// Adds a node.
    #[inline]
    pub(super) fn push(&self, number: u32, table: PageNo, place: u32) {
        let (this, newest) = (node(number), self.newest.load(Relaxed));
        this.table.store(table.0, Relaxed);
        this.place.store(place, Relaxed);
        this.older.store(newest, Relaxed);
        this.newer.store(NIL, Relaxed);
        self.newest.store(number, Relaxed);
        if newest == NIL {
            self.oldest.store(number, Relaxed);
        }
    }

    /// Takes the oldest node out and gives it back. There is one.
    #[inline]
    pub(super) fn remove_oldest(&self) {
        self.remove(self.oldest.load(Relaxed), None);
    }

    /// Makes the oldest node the newest. There is one.
    pub(super) fn renew_oldest(&self) {
        let oldest = self.oldest.load(Relaxed);
        self.take_out(oldest, None);
        self.push(
            oldest,
            PageNo(node(oldest).table.load(Relaxed)),
            node(oldest).place.load(Relaxed),
        );
    }

    /// Makes a node that was [found](Self::find) the oldest.
    pub(super) fn age(&self, number: u32, newer: Option<u32>) {
        self.take_out(number, newer);
        let oldest = self.oldest.load(Relaxed);
        if self.newest.load(Relaxed) == NIL {
            self.newest.store(number, Relaxed);
        } else {
            node(oldest).older.store(number, Relaxed);
        }
        node(number).older.store(NIL, Relaxed);
        node(number)
            .newer
            .store(if self.newest.load(Relaxed) == number { NIL } else { oldest }, Relaxed);
        self.oldest.store(number, Relaxed);
    }

    /// Takes a node that was [found](Self::find) out and gives it back.
    #[inline]
    pub(super) fn remove(&self, number: u32, newer: Option<u32>) {
        self.take_out(number, newer);
        give_node(number);
    }

    /// Takes a node out; `newer` is the one before it, NIL if there is none, or `None` for the
    /// oldest node.
    #[inline]
    fn take_out(&self, number: u32, newer: Option<u32>) {
        let newer = newer.unwrap_or_else(|| {
            if node(number).newer.load(Relaxed) == NIL {
                self.learn_newer();
            }
            node(number).newer.load(Relaxed)
        });
        debug_assert!(
            newer == NIL || node(newer).older.load(Relaxed) == number,
            "I1: a node names a wrong newer one"
        );
        let older = node(number).older.load(Relaxed);
        match newer {
            NIL => self.newest.store(older, Relaxed),
            newer => node(newer).older.store(older, Relaxed),
        }
        match older {
            NIL => self.oldest.store(newer, Relaxed),
            older if node(older).newer.load(Relaxed) != NIL => {
                node(older).newer.store(newer, Relaxed)
            }
            _ => {}
        }
    }

    /// Tells the nodes behind the newest which is newer, up to the first that knows.
    fn learn_newer(&self) {
        let mut number = self.newest.load(Relaxed);
        loop {
            let older = node(number).older.load(Relaxed);
            if older == NIL || node(older).newer.load(Relaxed) == number {
                return;
            }
            node(older).newer.store(number, Relaxed);
            number = older;
        }
    }

    /// Calls `f` with each node, the newest first.
    #[inline]
    pub(super) fn each(&self, mut f: impl FnMut(&Node)) {
        let mut number = self.newest.load(Relaxed);
        while number != NIL {
            f(node(number));
            number = node(number).older.load(Relaxed);
        }
    }

    /// A node that `is_it`: the newest, the oldest, or else the newest of the others; and the one
    /// before it, NIL for the newest and not known of the oldest.
    #[inline]
    pub(super) fn find(&self, is_it: impl Fn(&Node) -> bool) -> Option<(u32, Option<u32>)> {
        let newest = self.newest.load(Relaxed);
        if newest == NIL || is_it(node(newest)) {
            return (newest != NIL).then_some((newest, Some(NIL)));
        }
        let oldest = self.oldest.load(Relaxed);
        if is_it(node(oldest)) {
            return Some((oldest, None));
        }
        let mut newer = newest;
        loop {
            let number = node(newer).older.load(Relaxed);
            if number == NIL {
                return None;
            }
            if is_it(node(number)) {
                return Some((number, Some(newer)));
            }
            newer = number;
        }
    }
}

/// Bytes of nodes fill a frame.
const _: () = assert!(core::mem::size_of::<Node>() * NODES as usize == PAGE_SIZE);
