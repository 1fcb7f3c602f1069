//! Nodes of the reverse map, and lists of them.
//!
//! A node names mappings of a last table; what its place word says is its list's. Nodes lie in frames of their own; a frame of nodes is
//! never given back. Each CPU has free ones at hand.
//!
//! Who adds to a list writes its ends and the new node, and none of those that other CPUs made. What lies towards the newest a node
//! learns only when the oldest is taken away, in one walk for all that came since the last.
//!
//! I1: a node's `newer` is NIL or the node whose `older` it is.

use core::cell::Cell;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use machine::order::{Before, Held, PageCache};
use machine::{Machine, NoMemory, PageNo, Reserve, PAGE_SIZE};

use super::super::NIL;
use crate::arch::cpu;
use crate::arch::machine::KERNEL;
use crate::mem::layout;
use crate::sync::SpinLock;

/// Nodes in a frame, and in a batch that CPUs exchange.
const NODES: u32 = 256;

#[repr(C)]
pub(super) struct Node {
    pub(super) table: AtomicU32,
    pub(super) place: AtomicU32,
    /// In a batch: the next node.
    older: AtomicU32,
    /// In a batch's first node: the next batch.
    newer: AtomicU32,
}

/// One CPU's free nodes: a list that it takes from and gives to, and a full batch beside. Only that CPU touches them.
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
/// Full batches that no CPU has.
static DEPOT: SpinLock<u32> = SpinLock::new(NIL);

/// A node by its number: frame and place in the frame.
#[inline]
pub(super) fn node(number: u32) -> &'static Node {
    let frame = layout::direct(KERNEL.frames().pa(PageNo(number / NODES)).0);
    // SAFETY: node numbers are made in `refill` only, of frames that hold nodes for ever; the fields are atomics.
    unsafe { &*((frame as *const Node).add((number % NODES) as usize)) }
}

/// Takes a free node.
///
/// # Errors
/// [`NoMemory`]; nothing has changed.
#[inline]
pub(in super::super) fn take_node<P: Before<PageCache>>(held: &mut Held<'_, P>) -> Result<u32, NoMemory> {
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

/// Makes the full list the spare batch, and gives the spare one there was to all.
#[cold]
fn put_aside(free: &FreeNodes) {
    let full = free.spare.replace(free.head.replace(NIL));
    free.len.set(0);
    if full != NIL {
        let mut depot = DEPOT.lock();
        node(full).newer.store(*depot, Relaxed);
        *depot = full;
    }
}

/// Gives an empty list a batch: this CPU's spare one, one that others have given back, or a new frame.
#[cold]
fn refill<P: Before<PageCache>>(free: &FreeNodes, held: &mut Held<'_, P>) -> Result<(), NoMemory> {
    let mut batch = free.spare.replace(NIL);
    if batch == NIL {
        let mut depot = DEPOT.lock();
        batch = *depot;
        if batch != NIL {
            *depot = node(batch).newer.load(Relaxed);
        }
    }
    if batch == NIL {
        let frame = KERNEL.frames().alloc(&KERNEL, held, Reserve::Kernel)?;
        KERNEL.frames().keep(frame);
        FRAMES.fetch_add(1, Relaxed);
        // A number must fit 32 bits and not be NIL: frames up to 64 GiB.
        batch = frame.0.checked_mul(NODES).filter(|n| n < &(NIL - NODES)).ok_or(NoMemory)?;
        for number in batch..batch + NODES {
            let next = if number + 1 == batch + NODES { NIL } else { number + 1 };
            node(number).older.store(next, Relaxed);
        }
    }
    free.head.set(batch);
    free.len.set(NODES);
    Ok(())
}

/// The two ends of a list of nodes, under the lock of whoever has them.
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
        let oldest = self.oldest.load(Relaxed);
        if node(oldest).newer.load(Relaxed) == NIL {
            self.learn_newer();
        }
        self.remove(oldest, node(oldest).newer.load(Relaxed));
    }

    /// Takes a node out and gives it back; `newer` is the one before it, or NIL.
    #[inline]
    pub(super) fn remove(&self, number: u32, newer: u32) {
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
            older if node(older).newer.load(Relaxed) != NIL => node(older).newer.store(newer, Relaxed),
            _ => {}
        }
        give_node(number);
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

    /// The newest node that `is_it`, and the one before it or NIL.
    #[inline]
    pub(super) fn find(&self, is_it: impl Fn(&Node) -> bool) -> Option<(u32, u32)> {
        let (mut number, mut newer) = (self.newest.load(Relaxed), NIL);
        while number != NIL {
            if is_it(node(number)) {
                return Some((number, newer));
            }
            (number, newer) = (node(number).older.load(Relaxed), number);
        }
        None
    }
}

/// Bytes of nodes fill a frame.
const _: () = assert!(core::mem::size_of::<Node>() * NODES as usize == PAGE_SIZE);
