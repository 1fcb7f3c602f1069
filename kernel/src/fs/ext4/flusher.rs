//! What happens behind programs' backs: write-back every few seconds, commits, and the forgetting
//! of nodes.
//!
//! I1: the flusher never waits for memory that only it could free: it is told of dirty pages by
//! `write_later` and writes them with what is set aside for that; what it needs of the heap is
//! small and short-lived. I2: an inode without names is freed only after its pages are gone: a
//! write that is still on its way must not meet the blocks' next owner.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::dir::Dir;
use super::file::{backing_of, Contents};
use super::node::{Body, Node};
use super::{errno, Fs, MOUNTED};
use crate::block::SECTOR;
use crate::errno::*;
use crate::fs::inode::{Inode, InodeRef, Kind};
use crate::fs::ops::Stored;
use crate::println;
use crate::sched;
use crate::sync::{Once, WaitQueue};

/// How often it comes by.
const INTERVAL: sched::Nanos = 5_000_000_000;

/// A thread waits for dirty pages to be written.
static CALLED: AtomicBool = AtomicBool::new(false);
/// Memory is short: unused nodes shall go.
static SHORT: AtomicBool = AtomicBool::new(false);
/// How often what is unused goes at most: while memory stays short there is little of it.
const REST: sched::Nanos = 1_000_000_000;
/// What a look at a node comes to in bytes copied.
const LOOK: usize = 256;
/// A file without a name was closed.
static CLOSED: AtomicBool = AtomicBool::new(false);
/// Files that may be closed and without names and not be freed yet: what they free comes into the
/// next commit, and no write has to wait for that.
const FEW_CLOSED: usize = 4;
/// Bytes of a file that is large: it is freed at once, and no commit waits for that.
const LARGE: u64 = 1 << 20;
/// References to the mounted directory when no program uses it: the node table's, the last mount's,
/// and the caller's.
const HOLD_ROOT: usize = 3;

static CALLS: WaitQueue = WaitQueue::new();

/// Starts the thread, once.
pub(super) fn start() {
    static STARTED: Once<()> = Once::new();
    STARTED.call_once(|| {
        if sched::spawn_kernel("flusher", run).is_err() {
            println!("ext4: no memory for the flusher: files are written when they are synced");
        }
    });
}

/// Asks the flusher to write back now. From anywhere.
pub(super) fn wake() {
    CALLED.store(true, Ordering::Release);
    CALLS.wake_one();
}

/// Asks the flusher to free nodes that have no name and were closed.
pub(super) fn closed() {
    CLOSED.store(true, Ordering::Release);
    CALLS.wake_one();
}

/// Asks the flusher to forget names, listings and nodes that are unused and have no pages. The page
/// daemon's.
pub fn memory_is_short() {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let now = sched::now();
    if now >= NEXT.load(Ordering::Relaxed) {
        NEXT.store(now + REST, Ordering::Relaxed);
        SHORT.store(true, Ordering::Release);
        CALLS.wake_one();
    }
}

fn run() {
    let mut next = sched::now() + INTERVAL;
    loop {
        let called =
            || [&CALLED, &CLOSED, &SHORT].into_iter().any(|asked| asked.load(Ordering::Acquire));
        // A call and the deadline are treated alike.
        let _ = CALLS.wait_intr(Some(next), || called().then_some(()));
        if CLOSED.swap(false, Ordering::AcqRel) {
            mounted().iter().for_each(|fs| fs.reap_closed());
        }
        if SHORT.swap(false, Ordering::AcqRel) {
            drop_nodes();
        }
        if !CALLED.swap(false, Ordering::AcqRel) && sched::now() < next {
            continue;
        }
        next = sched::now() + INTERVAL;
        for fs in mounted() {
            fs.flush();
            if fs.changed.load(Ordering::Acquire) && fs.commit().is_err() {
                println!("ext4: {}: a commit failed", fs.data.disk.name());
            }
        }
    }
}

fn mounted() -> Vec<Arc<Fs>> {
    MOUNTED.lock().clone()
}

/// Writes everything back, and waits for it.
pub fn sync_all() {
    for fs in mounted().iter().filter(|fs| !fs.is_read_only()) {
        fs.flush();
        // As in sync(2), no program is told.
        let _ = fs.commit();
    }
}

/// Before the machine goes off: everything is written, and file systems are left clean as far as no
/// program uses them. They stay locked: other CPUs still run, and what they would write now would
/// be half done when the power goes.
pub fn shut_down() {
    sync_all();
    for fs in mounted().iter().filter(|fs| !fs.is_read_only()) {
        let mut volume = fs.volume();
        if volume.unmount().is_err() {
            // Files without names are still open: the next mount frees them.
            let _ = volume.sync();
        }
        core::mem::forget(volume);
    }
}

/// Has the file behind a memory object written back and committed; `false` if there is no such
/// file.
///
/// # Errors
/// As `fsync`.
pub fn sync_object(id: u64) -> Result<bool> {
    let Some(node) = backing_of(id).and_then(|backing| backing.fs.known(backing.ino)) else {
        return Ok(false);
    };
    let synced = Stored::sync(&*node);
    node.contents()?.check_mapping()?;
    synced.map(|()| true)
}

/// Drops pages of files that are clean and neither mapped nor used.
pub fn drop_pages() {
    /// Bytes of a file with whose object locked.
    const STEP: u64 = 1 << 20;
    let of_node = |node: &Arc<Node>| {
        let Ok(contents) = node.contents() else { return };
        for at in (0..contents.object().size()).step_by(STEP as usize) {
            if contents.object().resident() == 0 {
                break;
            }
            contents.object().drop_clean(at, STEP);
            sched::give_way();
        }
    };
    mounted().iter().for_each(|fs| fs.each_node(of_node));
}

/// Forgets names of directories, nodes that are not needed and have no pages, and metadata.
pub fn drop_nodes() {
    for fs in mounted() {
        fs.reap_unused();
        fs.each_node(|node| node.dir().map_or((), Dir::forget));
        fs.each_node(Node::forget_runs);
        fs.forget_idle(0);
        fs.volume.lock().forget();
    }
}

impl Fs {
    /// Writes back what is dirty and forgets what is not needed; no commit.
    pub(super) fn flush(&self) {
        if !self.is_read_only() {
            self.write_all();
        }
        self.forget();
    }

    /// Writes back what is dirty.
    pub(super) fn write_all(&self) {
        let _walk = self.walk.lock();
        // What lies together on the disk goes there in one request, of whatever file it is.
        self.data.with_plug(|| self.each_node(|node| node.start_write_back()));
        // Data that can't be written is counted by its object, names and sizes stay to be tried
        // again.
        self.each_node(|node| _ = node.write_back());
    }

    /// Whether a program has a file mapped so that stores come through, though it may have closed
    /// it.
    pub(super) fn is_mapped_for_writing(&self) -> bool {
        let found = self.find_node(|node| {
            let is_it = node.contents().is_ok_and(|contents| contents.object().has_writers());
            is_it.then_some(())
        });
        found.is_some()
    }

    /// Forgets what is unused: nodes without names at once, those without pages when there are
    /// many.
    fn forget(&self) {
        self.reap_unused();
        self.trim();
    }

    /// Takes a node out of the table if there is no other reference and it is still as wanted.
    pub(super) fn take_unused(
        &self,
        ino: u32,
        wanted: impl Fn(&Arc<Node>) -> bool,
    ) -> Option<Arc<Node>> {
        let mut nodes = self.nodes.lock();
        let node = nodes.get(&ino)?;
        if is_unused(node) && wanted(node) {
            nodes.remove(&ino)
        } else {
            None
        }
    }

    /// A node has no name any more; with the volume locked.
    pub(super) fn lost_last_name(&self, node: &Node) {
        let order = self.next_unlinked.fetch_add(1, Ordering::Relaxed);
        node.unlinked.store(order, Ordering::Release);
        self.unlinked.lock().insert(order, node.ino);
        self.was_closed(node);
    }

    /// A thread is about to let a node go that has no name.
    pub(super) fn was_closed(&self, node: &Node) {
        let order = node.unlinked.load(Ordering::Acquire);
        if order == 0 {
            return;
        }
        let is_large = |contents: &Contents| contents.backing.sectors() > LARGE / SECTOR as u64;
        let is_urgent = node.contents().is_ok_and(is_large);
        let count = {
            let mut closed = self.closed.lock();
            closed.insert(order, (node.ino, false));
            closed.len()
        };
        if is_urgent || count > FEW_CLOSED {
            closed();
        }
    }

    /// Like [`reap_closed`](Self::reap_closed), unless they are few.
    pub(super) fn reap_closed_if_many(&self) {
        if self.closed.lock().len() > FEW_CLOSED {
            self.reap_closed();
        }
    }

    /// Frees what has no name and was closed. The list of the others on the disk should stay short:
    /// it is walked at every change of it, from the node that came last.
    pub(super) fn reap_closed(&self) {
        let _turn = self.reaping.lock();
        let mut below = u64::MAX;
        loop {
            let mut closed = self.closed.lock();
            let Some((&order, &(ino, was_in_use))) = closed.range(..below).next_back() else {
                return;
            };
            below = order;
            closed.remove(&order);
            drop(closed);
            if !self.reap(order, ino) && !was_in_use {
                // The thread that closed the node may not be through with that. Later `reap_unused`
                // finds the node.
                self.closed.lock().entry(order).or_insert((ino, true));
            }
            sched::work_done(LOOK);
        }
    }

    /// Like [`reap_closed`](Self::reap_closed), for all nodes that are unused, closed or not: those
    /// that were mapped, and those that were looked at too early.
    pub(super) fn reap_unused(&self) {
        let _turn = self.reaping.lock();
        let mut below = u64::MAX;
        loop {
            let last =
                self.unlinked.lock().range(..below).next_back().map(|(&order, &ino)| (order, ino));
            let Some((order, ino)) = last else { return };
            below = order;
            self.reap(order, ino);
            sched::work_done(LOOK);
        }
    }

    /// Frees an inode that has no names; `false` if it is in use.
    fn reap(&self, order: u64, ino: u32) -> bool {
        let is_it = |node: &Arc<Node>| node.unlinked.load(Ordering::Acquire) == order;
        let Some(node) = self.take_unused(ino, is_it) else { return false };
        self.unlinked.lock().remove(&order);
        if let Ok(contents) = node.contents() {
            contents.empty();
        }
        drop(node);
        let mut volume = self.volume();
        if let Err(kind) = volume.reap(ino) {
            println!(
                "ext4: {}: inode {ino} could not be freed: error {}",
                self.data.disk.name(),
                errno(kind).0
            );
        }
        self.changed(&volume);
        true
    }

    /// Frees the inode of a mounted directory that has lost its name, before the unmount.
    pub(super) fn reap_mounted(&self, node: &Node) -> Result<()> {
        if !node.is_unlinked() {
            return Ok(());
        }
        self.unlinked.lock().remove(&node.unlinked.load(Ordering::Acquire));
        let mut volume = self.volume();
        let reaped = volume.reap(node.ino).map_err(errno);
        self.changed(&volume);
        reaped
    }

    /// Empties the table, for an unmount. A node that the kernel itself holds for a moment, for a
    /// read ahead or a look at its pages, is not in use: it is asked for again.
    ///
    /// # Errors
    /// `EBUSY`: some node is in use; the others may have gone.
    pub(super) fn forget_all(&self, root: &InodeRef) -> Result<()> {
        /// Looks, and the time between two.
        const LOOKS: u32 = 10;
        const MOMENT: sched::Nanos = 2_000_000;
        let pause = WaitQueue::new();
        for _ in 0..LOOKS {
            if self.forget_unused(root) && Arc::strong_count(root) <= HOLD_ROOT {
                return Ok(());
            }
            let _ = pause.wait_until(sched::now() + MOMENT, || None::<()>);
        }
        Err(EBUSY)
    }

    /// Takes all unused nodes out of the table; whether none but the directory that was
    /// mounted and those above it are left.
    fn forget_unused(&self, mounted: &InodeRef) -> bool {
        self.forget_unless(0, |node| !node.is_unlinked() && !is_dirty(node));
        // The table's, that of the child and the walk's.
        const HOLD_ABOVE: usize = 3;
        let mut left = 1;
        let mut above = mounted.parent();
        while let Some((dir, _)) = above {
            sched::work_done(LOOK);
            if Arc::strong_count(&dir) > HOLD_ABOVE {
                return false;
            }
            left += 1;
            above = dir.parent();
        }
        self.nodes.lock().len() <= left
    }
}

/// The table alone has it, and it isn't mapped.
fn is_unused(node: &Arc<Node>) -> bool {
    Arc::strong_count(node) == 1
        && node.contents().map_or(true, |contents| !contents.object().is_mapped())
}

fn is_dirty(node: &Node) -> bool {
    matches!(&node.body, Body::File(contents) if contents.is_dirty())
}

/// Nothing would be lost, nor have to be read again but names and attributes.
pub(super) fn is_idle(node: &Arc<Node>) -> bool {
    match &node.body {
        Body::File(contents) => !contents.is_dirty() && contents.object().resident() == 0,
        _ => node.kind() != Kind::Fifo,
    }
}
