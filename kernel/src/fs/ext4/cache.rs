//! What is kept of a file system though it is unused: nodes, names of directories, listings, and
//! where files lie.
//!
//! A thread that comes for the volume finds the cache within its bounds, or brings it back there
//! first: so a program that looks at a million files has the kernel keep as many as one that looks
//! at a thousand. A walk costs by nodes, and there is one for each quarter of them that came since
//! the last. Walks take some nodes at a time and let others run in between.
//!
//! I1: a node that goes is the table's alone (`ext4`, I3), and has no pages.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use arrayvec::ArrayVec;

use super::dir::Dir;
use super::flusher::is_idle;
use super::node::Node;
use super::Fs;
use crate::{sched, vm};

/// Nodes without pages that stay: one for so many pages of memory.
const PAGES_PER_NODE: u64 = 16;
/// Names that are remembered, for each of these nodes.
const NAMES_PER_NODE: usize = 4;
/// Entries of listings that are kept, for each of these nodes.
const LISTED_PER_NODE: usize = 4;
/// Pieces of files that are listed, for each of these nodes.
const RUNS_PER_NODE: usize = 8;
/// Nodes that are looked at with the table locked.
const PART: usize = 16;

/// Counts of what came since the last walk.
pub(super) struct Cache {
    /// How many nodes there may be before the next.
    next_walk: AtomicUsize,
    names: AtomicUsize,
    listed: AtomicUsize,
    runs: AtomicUsize,
}

impl Cache {
    pub(super) fn new() -> Cache {
        Cache {
            next_walk: AtomicUsize::new(most()),
            names: AtomicUsize::new(0),
            listed: AtomicUsize::new(0),
            runs: AtomicUsize::new(0),
        }
    }

    /// A name is remembered.
    pub(super) fn has_name(&self) {
        self.names.fetch_add(1, Relaxed);
    }

    /// A listing of so many entries is kept.
    pub(super) fn has_listing(&self, entries: usize) {
        self.listed.fetch_add(entries, Relaxed);
    }

    /// A list of so many pieces of a file is kept.
    pub(super) fn has_runs(&self, runs: usize) {
        self.runs.fetch_add(runs, Relaxed);
    }
}

/// Nodes that stay.
fn most() -> usize {
    (vm::stats().total_pages / PAGES_PER_NODE) as usize
}

impl Fs {
    /// Calls `look` with the nodes until it finds something.
    pub(super) fn find_node<T>(&self, mut look: impl FnMut(&Arc<Node>) -> Option<T>) -> Option<T> {
        let mut next = Some(0);
        while let Some(from) = next {
            let some: ArrayVec<Arc<Node>, PART> = {
                let nodes = self.nodes.lock();
                nodes.range(from..).take(PART).map(|(_, node)| node.clone()).collect()
            };
            next = some.last().and_then(|node| node.ino.checked_add(1));
            let found = some.iter().find_map(&mut look);
            drop(some);
            if found.is_some() {
                return found;
            }
            sched::give_way();
        }
        None
    }

    /// Calls `each` with the nodes.
    pub(super) fn each_node(&self, each: impl Fn(&Arc<Node>)) {
        self.find_node(|node| {
            each(node);
            None::<()>
        });
    }

    /// Brings the cache back within its bounds, if too much has come. The volume isn't locked.
    pub(super) fn trim(&self) {
        let most = most();
        let Cache { next_walk, names, listed, runs } = &self.cache;
        let is_far = |count: &AtomicUsize, bound: usize| {
            let is_far = count.load(Relaxed) > bound;
            if is_far {
                count.store(0, Relaxed);
            }
            is_far
        };
        if is_far(names, most * NAMES_PER_NODE) {
            self.each_node(|node| node.dir().map_or((), Dir::forget_names));
        }
        if is_far(listed, most * LISTED_PER_NODE) {
            self.forget_listings();
        }
        if is_far(runs, most * RUNS_PER_NODE) {
            self.each_node(Node::forget_runs);
        }
        let is_due = |nodes: usize| nodes > next_walk.load(Relaxed);
        let count = self.nodes.lock().len();
        if is_due(count) {
            // One at a time.
            next_walk.store(usize::MAX, Relaxed);
            self.forget_idle(most / 4 * 3);
            let left = self.nodes.lock().len();
            next_walk.store(left + left.max(most) / 4, Relaxed);
        }
    }

    /// Forgets listings of directories.
    pub(super) fn forget_listings(&self) {
        self.each_node(|node| node.dir().map_or((), Dir::forget_listing));
    }

    /// Forgets nodes that are not needed and have no pages, until so many are left.
    pub(super) fn forget_idle(&self, least: usize) {
        self.forget_unless(least, |node| !node.is_unlinked() && is_idle(node));
    }

    /// Forgets a node if it is unused and may go, and then those above it.
    fn forget_with_above(&self, ino: u32, may_go: impl Fn(&Arc<Node>) -> bool) {
        let mut next = Some(ino);
        while let Some(node) = next.and_then(|ino| self.take_unused(ino, &may_go)) {
            next = node.dir().ok().and_then(|dir| dir.above()).map(|(above, _)| above.ino);
            // Step by step, as a drop can't.
            if let Ok(dir) = node.dir() {
                dir.forget();
            }
            drop(node);
            sched::work_done(size_of::<Node>());
        }
    }

    /// Forgets nodes that are unused and may go, until so many are left.
    pub(super) fn forget_unless(&self, least: usize, may_go: impl Fn(&Arc<Node>) -> bool) {
        let mut left = usize::MAX;
        // Once more, for those that a thread looked at meanwhile.
        while self.nodes.lock().len() < left && left > least {
            left = self.nodes.lock().len();
            let mut next = Some(0);
            while let Some(from) = next {
                let some: ArrayVec<u32, PART> = {
                    let nodes = self.nodes.lock();
                    nodes.range(from..).take(PART).map(|(&ino, _)| ino).collect()
                };
                next = some.last().and_then(|ino| ino.checked_add(1));
                some.into_iter().for_each(|ino| self.forget_with_above(ino, &may_go));
                if self.nodes.lock().len() <= least {
                    return;
                }
                sched::give_way();
            }
        }
    }
}
