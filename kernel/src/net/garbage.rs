//! Garbage collection of local sockets in flight: an incremental mark and sweep.
//!
//! A socket is in flight while a message in a queue holds it, or while it waits in a listener's
//! backlog. Sockets in flight may hold each other in a cycle that no descriptor leads to.
//!
//! ```text
//!   edges     (holder H, number) -> S    S is in a message in the queue of H, or in the backlog of H
//!   vertices  S: its open file, how many edges lead to it, the cycle that marked it last
//! ```
//!
//! Roots are sockets that a socket not in flight holds, and those whose file has more references
//! than edges: a descriptor's, or a system call's. Marking goes in steps; other threads change the
//! graph between them. Each change does [`SHARE`] steps itself, more than it can add, so that no
//! threads keep a cycle from its end, and what they add to its list stays a part of the graph's
//! size.
//!
//! Invariants: G1: garbage stays garbage, since no thread can receive or accept it. G2 (the write
//! barrier): while a cycle marks, the socket of each edge that begins or ends is marked, and so is
//! each that a thread peeks at. So a socket that is reachable when marking ends is marked: either
//! the path to it is as old as the cycle, which has followed all of it, or the end of the path's
//! youngest part was marked by itself. G3: a socket's memory outlives its edges and those of which
//! it is the holder, so its address names it.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

/// A socket's address, or [`NONE`].
type Key = usize;
const NONE: Key = 0;

struct Vertex<F> {
    /// Without a target for a socket that waits in a backlog.
    file: Weak<F>,
    edges: usize,
    /// The last cycle that marked the vertex.
    marked: u64,
    /// While the vertex is in the list of marked ones whose edges are still to be followed: the
    /// next.
    next: Option<Key>,
}

/// What the cycle does next.
#[derive(Clone, Copy)]
enum Phase {
    Idle,
    /// Mark what sockets that aren't in flight hold, from this edge on.
    Holders(Key, u64),
    /// Mark sockets whose files have other references, from this vertex on.
    Files(Key),
    /// Take the next marked vertex.
    Marked,
    /// Mark what a marked socket holds, from this edge on.
    Edges(Key, u64),
    /// Marking has ended: gather what isn't marked, from this vertex on.
    Sweep(Key),
}

/// Steps of a cycle that marks, for each edge that begins or ends.
const SHARE: usize = 4;

/// Heap that an edge takes: either map may be twice as large as it has to be.
pub const EDGE: usize = 2 * (size_of::<((Key, u64), Key)>() + size_of::<(Key, Vertex<()>)>());

/// Sockets in flight, whose open files are `F`s.
pub struct InFlight<F> {
    edges: BTreeMap<(Key, u64), Key>,
    vertices: BTreeMap<Key, Vertex<F>>,
    phase: Phase,
    cycle: u64,
    /// No edge before the cycle had this number or a higher one.
    first_new: u64,
    /// The number of the next edge.
    next_number: u64,
    /// The first of the marked ones whose edges are still to be followed.
    marked: Key,
}

impl<F> InFlight<F> {
    pub const fn new() -> InFlight<F> {
        InFlight {
            edges: BTreeMap::new(),
            vertices: BTreeMap::new(),
            phase: Phase::Idle,
            cycle: 0,
            first_new: 0,
            next_number: 0,
            marked: NONE,
        }
    }

    /// How many edges there are.
    pub fn len(&self) -> usize {
        self.edges.len()
    }

    /// Numbers for so many edges, in a row; returns the first.
    pub fn take_numbers(&mut self, count: usize) -> u64 {
        let first = self.next_number;
        self.next_number += count as u64;
        first
    }

    /// Adds edge `number` from `holder` to `socket`, whose open file is `file`. Cost: O(log n).
    pub fn add(&mut self, holder: Key, number: u64, socket: Key, file: Weak<F>) {
        self.edges.insert((holder, number), socket);
        // In the sweep it counts as marked.
        let marked = if self.is_marking() { 0 } else { self.cycle };
        let new = Vertex { file: Weak::new(), edges: 0, marked, next: None };
        let vertex = self.vertices.entry(socket).or_insert(new);
        if vertex.edges == 0 {
            vertex.file = file;
        }
        vertex.edges += 1;
        self.mark(socket);
        self.mark_more(SHARE);
    }

    /// Removes an edge. Cost: O(log n).
    pub fn remove(&mut self, holder: Key, number: u64) {
        let Some(socket) = self.edges.remove(&(holder, number)) else { return };
        self.mark(socket);
        if let Some(vertex) = self.vertices.get_mut(&socket) {
            vertex.edges -= 1;
            // A vertex on the list is removed as it leaves the list.
            if vertex.edges == 0 && vertex.next.is_none() {
                self.vertices.remove(&socket);
            }
        }
        self.mark_more(SHARE);
    }

    fn is_marking(&self) -> bool {
        !matches!(self.phase, Phase::Idle | Phase::Sweep(_))
    }

    /// Marks a socket that a thread has or had (G2).
    pub fn mark(&mut self, socket: Key) {
        if !self.is_marking() {
            return;
        }
        let Some(vertex) = self.vertices.get_mut(&socket) else { return };
        if vertex.marked != self.cycle {
            vertex.marked = self.cycle;
            vertex.next = Some(core::mem::replace(&mut self.marked, socket));
        }
    }

    /// Goes on with the cycle, or begins one, by at most `steps` edges and vertices. Files of
    /// garbage come to `garbage` as far as it has room. Returns whether the cycle is over.
    pub fn step(&mut self, steps: usize, garbage: &mut Vec<Arc<F>>) -> bool {
        if matches!(self.phase, Phase::Idle) {
            self.cycle += 1;
            self.first_new = self.next_number;
            self.phase = Phase::Holders(NONE, 0);
        }
        for _ in self.mark_more(steps)..steps {
            let Phase::Sweep(from) = self.phase else { break };
            self.phase = self.sweep(from, garbage);
        }
        matches!(self.phase, Phase::Idle)
    }

    /// Goes on with marking by at most `steps`; returns how many it was.
    fn mark_more(&mut self, steps: usize) -> usize {
        for done in 0..steps {
            self.phase = match self.phase {
                Phase::Holders(holder, number) => self.mark_held(holder, number),
                Phase::Files(from) => self.mark_referenced(from),
                Phase::Marked => self.next_marked(),
                Phase::Edges(holder, number) => self.follow(holder, number),
                Phase::Idle | Phase::Sweep(_) => return done,
            };
        }
        steps
    }

    fn mark_held(&mut self, holder: Key, number: u64) -> Phase {
        let Some((&(holder, number), &socket)) = self.edges.range((holder, number)..).next() else {
            return Phase::Files(NONE);
        };
        // Edges that were added since are marked, and a program could add such edges for ever.
        if number >= self.first_new {
            return Phase::Holders(holder + 1, 0);
        }
        if !self.vertices.contains_key(&holder) {
            self.mark(socket);
        }
        Phase::Holders(holder, number + 1)
    }

    fn mark_referenced(&mut self, from: Key) -> Phase {
        let Some((&socket, vertex)) = self.vertices.range(from..).next() else {
            return Phase::Marked;
        };
        if vertex.file.strong_count() > vertex.edges {
            self.mark(socket);
        }
        Phase::Files(socket + 1)
    }

    fn next_marked(&mut self) -> Phase {
        match core::mem::replace(&mut self.marked, NONE) {
            NONE => Phase::Sweep(NONE),
            socket => {
                if let Some(vertex) = self.vertices.get_mut(&socket) {
                    self.marked = vertex.next.take().unwrap_or(NONE);
                    if vertex.edges == 0 {
                        self.vertices.remove(&socket);
                    }
                }
                Phase::Edges(socket, 0)
            }
        }
    }

    fn follow(&mut self, holder: Key, number: u64) -> Phase {
        let edge = self.edges.range((holder, number)..(holder, self.first_new.max(number))).next();
        let Some((&(_, number), &socket)) = edge else { return Phase::Marked };
        self.mark(socket);
        Phase::Edges(holder, number + 1)
    }

    fn sweep(&mut self, from: Key, garbage: &mut Vec<Arc<F>>) -> Phase {
        let Some((&socket, vertex)) = self.vertices.range(from..).next() else {
            return Phase::Idle;
        };
        if vertex.marked != self.cycle && garbage.len() < garbage.capacity() {
            garbage.extend(vertex.file.upgrade());
        }
        Phase::Sweep(socket + 1)
    }
}
