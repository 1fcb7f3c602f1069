//! The host's folders, by 9P2000.L over virtio: `./uvm run --share`.
//!
//! ```text
//!   Inode calls --> Node ---- names, attributes -----> Session --> block::p9::Channel --> host
//!                    |   (node, dir)                      ^
//!                    +-- vm::Object = VnodePager --> Backing      pages (file)
//!   flusher: every few seconds or when asked: writes stores of mappings back, forgets nodes
//! ```
//! The host's programs change these files too, so nothing is believed for long: each look-up asks
//! the host, and so does `stat`, where the last answer is older than a moment. A file whose time or
//! size the host has changed loses its pages when it is next looked up or opened. What programs
//! here write is the host's before their call returns, but for stores through mappings (`file`).
//!
//! The host's user is who QEMU runs as: rights are judged here by the owners and modes that the
//! host tells, and by the host again. Nothing made here is a device or has set-id bits there.
//!
//! I1: one node for a file of the host, by its number, as long as it is in the table; a node that
//! leaves it because the host has another file of that number stays among `orphans` while it is
//! used. I2: a node's fids are given back when it leaves both ([`Fs::dispose`]). I3: names change
//! with `names` held, so what a call judges it judges of what it changes, as far as the host lets
//! the folder be. Locks: `names`, a file's `writer`, its `opening`, the channel's turn; then what
//! spins.
//!
//! Not taken: a cache of names. To look them up costs two messages; to be told of the host's
//! changes there is no way.

mod dir;
mod file;
mod flusher;
mod message;
mod node;
mod session;

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};

use arrayvec::ArrayVec;

pub use flusher::{drop_nodes, drop_pages, sync_all, sync_object, wake_to_forget};

use super::inode::{downcast, Inode, InodeRef, Kind};
use super::Mode;
use crate::block::p9;
use crate::charge;
use crate::errno::*;
use crate::mem::fault::Room;
use crate::mem::heap;
use crate::sched;
use crate::sync::{Mutex, SpinLock, WaitQueue};
use crate::vm;
use node::Node;
use session::{Attributes, Fid, Session};

/// All that are mounted.
static MOUNTED: SpinLock<Vec<Arc<Fs>>> = SpinLock::new(Vec::new());

/// What `statfs` calls it.
const MAGIC: u64 = 0x0102_1997;
/// Nodes that stay though they are unused.
const KEPT: usize = 2048;
/// Nodes that are looked at with the table locked.
const PART: usize = 16;
/// Heap that a call may need, beside what is charged.
const ROOM: usize = 32 << 10;

/// A mounted file system.
pub(super) struct Fs {
    dev: u64,
    session: Arc<Session>,
    read_only: bool,
    nodes: SpinLock<BTreeMap<u64, Arc<Node>>>,
    orphans: SpinLock<Vec<Arc<Node>>>,
    /// Held by the thread that changes names or attributes.
    names: Mutex<()>,
    /// Held by the thread that says which directory is above another.
    tree: Mutex<()>,
    /// How many nodes there may be before unused ones are looked for.
    next_walk: AtomicUsize,
    /// Files may be given away on the host: by root alone.
    gives_away: AtomicBool,
}

/// Mounts the folder that the host shows under a name; returns it.
///
/// # Errors
/// `ENXIO`: there is none of this name; `EBUSY`: it is mounted; `EIO`: the host speaks another
/// language.
pub fn mount(tag: &[u8], mode: Mode) -> Result<InodeRef> {
    let channel = p9::by_tag(tag).ok_or(ENXIO)?;
    channel.claim()?;
    // From here on the claim is the session's.
    let (session, root) = Session::begin(channel)?;
    let found = session.attributes(&root)?;
    if found.kind != Kind::Dir {
        return Err(ENOTDIR);
    }
    let fs = Arc::new(Fs {
        dev: super::new_device(),
        session: Arc::new(session),
        read_only: mode == Mode::ReadOnly,
        nodes: SpinLock::new(BTreeMap::new()),
        orphans: SpinLock::new(Vec::new()),
        names: Mutex::new(()),
        tree: Mutex::new(()),
        next_walk: AtomicUsize::new(KEPT),
        gives_away: AtomicBool::new(true),
    });
    let root = fs.enter(root, &found)?;
    MOUNTED.lock().push(fs);
    flusher::start();
    Ok(root)
}

/// Closes the file system of this directory, which was mounted; `false` if it isn't one of these.
///
/// # Errors
/// `EBUSY`: something of it is in use.
pub fn unmount(root: &InodeRef) -> Result<bool> {
    let Some(node) = downcast::<Node>(root) else { return Ok(false) };
    let fs = node.fs().clone();
    fs.forget_all(root)?;
    MOUNTED.lock().retain(|other| !Arc::ptr_eq(other, &fs));
    // Those of the mounted directory and above, which have the file system.
    let nodes = core::mem::take(&mut *fs.nodes.lock());
    nodes.values().for_each(|node| fs.dispose(node));
    Ok(true)
}

/// Whether a node is of one of these.
pub fn has(node: &InodeRef) -> bool {
    downcast::<Node>(node).is_some()
}

impl Fs {
    /// Has room on the heap for a call, and brings the table back within its bounds.
    fn prepare(&self) -> Result<()> {
        self.trim();
        vm::with_room(|| heap::reserve(ROOM)).map_err(|_| ENOMEM)
    }

    fn known(&self, path: u64) -> Option<Arc<Node>> {
        self.nodes.lock().get(&path).cloned()
    }

    /// The node for a file that is not in the table, with its fid. If another thread was faster,
    /// that one's.
    fn enter(self: &Arc<Self>, fid: Fid, found: &Attributes) -> Result<Arc<Node>> {
        let uid = charge::account().user().uid();
        let made = Node::new(self, &fid, found, uid).or_else(|errno| {
            if errno != ENOMEM {
                return Err(errno);
            }
            // What unused nodes were charged to may be this user.
            self.forget_idle(0);
            Node::new(self, &fid, found, uid)
        });
        let node = match made {
            Ok(node) => node,
            Err(errno) => {
                self.session.clunk(&fid);
                return Err(errno);
            }
        };
        let there = {
            let mut nodes = self.nodes.lock();
            let there = nodes.get(&found.path).cloned();
            if there.is_none() {
                nodes.insert(found.path, node.clone());
            }
            there
        };
        if let Some(there) = there {
            self.dispose(&node);
            return Ok(there);
        }
        Ok(node)
    }

    /// Takes a node out of the table that has no name any more, or whose number is another file's.
    fn orphan(&self, node: &Arc<Node>) {
        if let Ok(dir) = node.dir() {
            dir.detach();
        }
        let mut nodes = self.nodes.lock();
        if !nodes.get(&node.path).is_some_and(|there| Arc::ptr_eq(there, node)) {
            return;
        }
        let taken = nodes.remove(&node.path);
        drop(nodes);
        let mut orphans = self.orphans.lock();
        match orphans.room(1) {
            Ok(()) => orphans.extend(taken),
            // It keeps the host's fids.
            Err(_) => drop(orphans),
        }
    }

    /// Gives back what the host keeps for a node that has left the table.
    fn dispose(&self, node: &Node) {
        if let Ok(dir) = node.dir() {
            dir.detach();
        }
        match node.contents() {
            Ok(contents) => {
                contents.clean();
                contents.backing.close();
            }
            Err(_) => self.session.clunk(node.fid()),
        }
    }

    /// Gives orphans back that no program uses.
    fn dispose_orphans(&self) {
        loop {
            let unused = {
                let mut orphans = self.orphans.lock();
                let at = orphans.iter().position(is_unused);
                at.map(|at| orphans.swap_remove(at))
            };
            let Some(node) = unused else { return };
            if let Ok(contents) = node
                .contents()
                .and_then(|contents| node.is_unlinked().then_some(contents).ok_or(ENOENT))
            {
                contents.empty();
            }
            self.dispose(&node);
        }
    }

    /// Calls `look` with the nodes until it finds something.
    fn find_node<T>(&self, mut look: impl FnMut(&Arc<Node>) -> Option<T>) -> Option<T> {
        let mut at = 0;
        loop {
            let some: ArrayVec<Arc<Node>, PART> =
                self.orphans.lock().iter().skip(at).take(PART).cloned().collect();
            at += some.len();
            if some.is_empty() {
                break;
            }
            if let Some(found) = some.iter().find_map(&mut look) {
                return Some(found);
            }
        }
        let mut next = Some(0);
        while let Some(from) = next {
            let some: ArrayVec<Arc<Node>, PART> = {
                let nodes = self.nodes.lock();
                nodes.range(from..).take(PART).map(|(_, node)| node.clone()).collect()
            };
            next = some.last().and_then(|node| node.path.checked_add(1));
            if let Some(found) = some.iter().find_map(&mut look) {
                return Some(found);
            }
            drop(some);
            sched::give_way();
        }
        None
    }

    fn each_node(&self, each: impl Fn(&Arc<Node>)) {
        self.find_node(|node| {
            each(node);
            None::<()>
        });
    }

    /// Forgets unused nodes if many have come.
    fn trim(&self) {
        let is_due = self.nodes.lock().len() > self.next_walk.load(Relaxed);
        if is_due {
            // One at a time.
            self.next_walk.store(usize::MAX, Relaxed);
            self.forget_idle(KEPT / 4 * 3);
            let left = self.nodes.lock().len();
            self.next_walk.store(left + left.max(KEPT) / 4, Relaxed);
        }
    }

    /// Forgets unused nodes, until so many are left.
    fn forget_idle(&self, least: usize) {
        let mut left = usize::MAX;
        // Once more, for those above nodes that have gone.
        while self.nodes.lock().len() < left && left > least {
            left = self.nodes.lock().len();
            let mut next = Some(0);
            while let Some(from) = next {
                let some: ArrayVec<u64, PART> = {
                    let nodes = self.nodes.lock();
                    nodes.range(from..).take(PART).map(|(&path, _)| path).collect()
                };
                next = some.last().and_then(|path| path.checked_add(1));
                some.into_iter().for_each(|path| self.forget_unused(path));
                if self.nodes.lock().len() <= least {
                    return;
                }
                sched::give_way();
            }
        }
    }

    fn forget_unused(&self, path: u64) {
        let taken = {
            let mut nodes = self.nodes.lock();
            let may_go = nodes.get(&path).is_some_and(|node| {
                is_unused(node) && node.kind() != Kind::Fifo && !node.is_dirty()
            });
            if may_go {
                nodes.remove(&path)
            } else {
                None
            }
        };
        taken.into_iter().for_each(|node| self.dispose(&node));
        sched::work_done(size_of::<Node>());
    }

    /// Empties the table, for an unmount. A node that the kernel itself holds for a moment is not
    /// in use: it is asked for again.
    fn forget_all(&self, root: &InodeRef) -> Result<()> {
        /// Looks, and the time between two.
        const LOOKS: u32 = 10;
        const MOMENT: sched::Nanos = 2_000_000;
        /// References to the mounted directory when no program uses it: the table's, the last
        /// mount's, and the caller's.
        const HOLD_ROOT: usize = 3;
        let pause = WaitQueue::new();
        for _ in 0..LOOKS {
            self.flush();
            self.forget_idle(0);
            let (mut left, mut above) = (1, root.parent());
            while let Some((dir, _)) = above {
                left += 1;
                above = dir.parent();
                sched::work_done(size_of::<Node>());
            }
            let is_empty = self.nodes.lock().len() <= left && self.orphans.lock().is_empty();
            if is_empty && Arc::strong_count(root) <= HOLD_ROOT {
                return Ok(());
            }
            let _ = pause.wait_until(sched::now() + MOMENT, || None::<()>);
        }
        Err(EBUSY)
    }

    /// Writes back what was stored through mappings, and gives back what is unused.
    fn flush(&self) {
        self.each_node(|node| _ = node.contents().map(|contents| contents.clean()));
        self.dispose_orphans();
    }
}

/// The table, or the list of orphans, alone has it, and it isn't mapped.
fn is_unused(node: &Arc<Node>) -> bool {
    Arc::strong_count(node) == 1
        && node.contents().map_or(true, |contents| !contents.object().is_mapped())
}
