//! Directories of tmpfs: names, and the operations that move them about.
//!
//! An entry sits in two maps: by name for lookups, and by a cookie that only grows for listings, so that a
//! listing in progress neither skips nor repeats entries while others come and go.
//!
//! Invariants: I1: both maps hold the same entries. I2: a directory in the tree has exactly one name, and
//! its `above` says where; a removed one has `dead` set and takes no new entries.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use hashbrown::HashMap;

use super::TmpNode;
use crate::errno::*;
use crate::fs::inode::*;
use crate::sync::SpinLock;

/// Positions 0 and 1 of a listing are `.` and `..`.
const FIRST_COOKIE: u64 = 2;

pub(super) struct Dir {
    entries: SpinLock<Entries>,
    covered: AtomicBool,
}

struct Entries {
    by_name: HashMap<Arc<[u8]>, u64>,
    by_cookie: BTreeMap<u64, (Arc<[u8]>, Arc<TmpNode>)>,
    next_cookie: u64,
    above: Option<Weak<TmpNode>>,
    name: Box<[u8]>,
    dead: bool,
}

impl Dir {
    pub(super) fn new(above: Option<Weak<TmpNode>>, name: &[u8]) -> Dir {
        let entries = Entries {
            by_name: HashMap::new(),
            by_cookie: BTreeMap::new(),
            next_cookie: FIRST_COOKIE,
            above,
            name: name.into(),
            dead: false,
        };
        Dir { entries: SpinLock::new(entries), covered: AtomicBool::new(false) }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.lock().by_name.len()
    }

    pub(super) fn lookup(&self, name: &[u8]) -> Result<InodeRef> {
        Ok(self.find(name).ok_or(ENOENT)?)
    }

    fn find(&self, name: &[u8]) -> Option<Arc<TmpNode>> {
        let entries = self.entries.lock();
        let cookie = entries.by_name.get(name)?;
        entries.by_cookie.get(cookie).map(|(_, node)| node.clone())
    }

    pub(super) fn parent(&self) -> Option<(InodeRef, Vec<u8>)> {
        let entries = self.entries.lock();
        if entries.dead {
            return None;
        }
        let above = entries.above.as_ref()?.upgrade()?;
        Some((above, entries.name.to_vec()))
    }

    pub(super) fn is_covered(&self) -> bool {
        self.covered.load(Ordering::Relaxed)
    }

    pub(super) fn set_covered(&self, covered: bool) {
        self.covered.store(covered, Ordering::Relaxed);
    }

    fn add(&self, name: &[u8], node: Arc<TmpNode>) {
        let name: Arc<[u8]> = name.into();
        let mut entries = self.entries.lock();
        let cookie = entries.next_cookie;
        entries.next_cookie += 1;
        entries.by_name.insert(name.clone(), cookie);
        entries.by_cookie.insert(cookie, (name, node));
    }

    /// Takes an entry out; the caller lets the node go without a lock.
    fn take(&self, name: &[u8]) -> Option<Arc<TmpNode>> {
        let mut entries = self.entries.lock();
        let cookie = entries.by_name.remove(name)?;
        entries.by_cookie.remove(&cookie).map(|(_, node)| node)
    }

    fn is_dead(&self) -> bool {
        self.entries.lock().dead
    }

    fn moved(&self, above: &TmpNode, name: &[u8]) {
        let mut entries = self.entries.lock();
        entries.above = Some(above.me.clone());
        entries.name = name.into();
    }

    /// Marks an empty directory as removed.
    fn bury(&self) -> Result<()> {
        if self.is_covered() {
            return Err(EBUSY);
        }
        let mut entries = self.entries.lock();
        if !entries.by_name.is_empty() {
            return Err(ENOTEMPTY);
        }
        entries.dead = true;
        Ok(())
    }
}

impl TmpNode {
    pub(super) fn add_entry(&self, name: &[u8], node: Arc<TmpNode>) -> Result<()> {
        let dir = self.dir()?;
        let _tree = self.fs.tree.lock();
        if dir.is_dead() {
            return Err(ENOENT);
        }
        if dir.find(name).is_some() {
            return Err(EEXIST);
        }
        if node.kind == Kind::Dir {
            self.count_links(1);
        }
        dir.add(name, node);
        self.modified();
        Ok(())
    }

    pub(super) fn link_entry(&self, name: &[u8], node: &InodeRef) -> Result<()> {
        let node = self.local(node)?;
        if node.kind == Kind::Dir {
            return Err(EPERM);
        }
        if node.attr.lock().nlink == u32::MAX {
            return Err(EMLINK);
        }
        self.add_entry(name, node.me.upgrade().ok_or(ENOENT)?)?;
        node.count_links(1);
        Ok(())
    }

    pub(super) fn remove_entry(&self, name: &[u8], what: Unlink) -> Result<()> {
        let dir = self.dir()?;
        let tree = self.fs.tree.lock();
        let node = dir.find(name).ok_or(ENOENT)?;
        match (what, &node.body) {
            (Unlink::File, super::Body::Dir(_)) => return Err(EISDIR),
            (Unlink::File, _) => {}
            (Unlink::Dir, _) => node.dir()?.bury()?,
        }
        let taken = dir.take(name);
        self.unlinked(&node);
        self.modified();
        drop(tree);
        drop(taken);
        Ok(())
    }

    /// The counts after `node` has lost its name in this directory.
    fn unlinked(&self, node: &TmpNode) {
        if node.kind == Kind::Dir {
            node.count_links(-2);
            self.count_links(-1);
        } else {
            node.count_links(-1);
        }
    }

    pub(super) fn rename_entry(
        &self,
        name: &[u8],
        to_dir: &InodeRef,
        to_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        let from = self.dir()?;
        let to_node = self.local(to_dir)?;
        let to = to_node.dir()?;
        let tree = self.fs.tree.lock();
        let node = from.find(name).ok_or(ENOENT)?;
        let target = to.find(to_name);
        if to.is_dead() {
            return Err(ENOENT);
        }
        if node.kind == Kind::Dir && to_node.is_below(&node) {
            return Err(EINVAL);
        }
        let target = match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(EEXIST),
            (RenameMode::Exchange, None) => return Err(ENOENT),
            (RenameMode::Exchange, Some(target)) => {
                if target.kind == Kind::Dir && self.is_below(&target) {
                    return Err(EINVAL);
                }
                self.exchange(name, &node, to_node, to_name, &target);
                return Ok(());
            }
            (_, target) => target,
        };
        if let Some(target) = &target {
            if Arc::ptr_eq(target, &node) {
                return Ok(());
            }
            match (node.kind == Kind::Dir, &target.body) {
                (true, super::Body::Dir(dir)) => dir.bury()?,
                (true, _) => return Err(ENOTDIR),
                (false, super::Body::Dir(_)) => return Err(EISDIR),
                (false, _) => {}
            }
            to_node.unlinked(target);
        }
        let replaced = to.take(to_name);
        let moved = from.take(name);
        to.add(to_name, node.clone());
        self.settle(&node, to_node, to_name);
        self.modified();
        to_node.modified();
        drop(tree);
        drop((moved, replaced, target));
        Ok(())
    }

    /// Swaps two entries.
    fn exchange(
        &self,
        name: &[u8],
        node: &Arc<TmpNode>,
        to_node: &TmpNode,
        to_name: &[u8],
        target: &Arc<TmpNode>,
    ) {
        if let (Ok(from), Ok(to)) = (self.dir(), to_node.dir()) {
            let taken = (from.take(name), to.take(to_name));
            from.add(name, target.clone());
            to.add(to_name, node.clone());
            self.settle(node, to_node, to_name);
            to_node.settle(target, self, name);
            self.modified();
            to_node.modified();
            drop(taken);
        }
    }

    /// After `node` moved from this directory to `to`: its back link and both directories' counts.
    fn settle(&self, node: &TmpNode, to: &TmpNode, name: &[u8]) {
        if let Ok(dir) = node.dir() {
            dir.moved(to, name);
            if !core::ptr::eq(self, to) {
                self.count_links(-1);
                to.count_links(1);
            }
        }
        node.count_links(0);
    }

    /// Whether this directory is `other` or somewhere below it. Needs the tree lock to mean anything.
    fn is_below(&self, other: &TmpNode) -> bool {
        let mut at = self.me.upgrade();
        while let Some(node) = at {
            if core::ptr::eq(&*node, other) {
                return true;
            }
            let above = node.dir().ok().and_then(|dir| dir.entries.lock().above.clone());
            at = above.and_then(|above| above.upgrade());
        }
        false
    }

    /// `node` as one of this file system's.
    fn local<'a>(&self, node: &'a InodeRef) -> Result<&'a TmpNode> {
        let node = downcast::<TmpNode>(node).ok_or(EXDEV)?;
        if Arc::ptr_eq(&node.fs, &self.fs) {
            Ok(node)
        } else {
            Err(EXDEV)
        }
    }

    pub(super) fn list_entries(&self, from: u64, each: &mut dyn FnMut(DirEntry<'_>) -> Flow) -> Result<()> {
        const BATCH: usize = 32;
        let dir = self.dir()?;
        let above = dir.parent().map_or(self.ino, |(above, _)| above.stat().ino);
        for (position, name, ino) in [(0, b".".as_slice(), self.ino), (1, b"..", above)] {
            if from <= position
                && each(DirEntry { ino, next: position + 1, kind: Kind::Dir, name }) == Flow::Stop
            {
                return Ok(());
            }
        }
        let mut cookie = from.max(FIRST_COOKIE);
        loop {
            let batch: Vec<(u64, Arc<[u8]>, u64, Kind)> = {
                let entries = dir.entries.lock();
                let range = entries.by_cookie.range(cookie..).take(BATCH);
                range.map(|(at, (name, node))| (*at, name.clone(), node.ino, node.kind)).collect()
            };
            if batch.is_empty() {
                return Ok(());
            }
            for (at, name, ino, kind) in batch {
                cookie = at + 1;
                if each(DirEntry { ino, next: cookie, kind, name: &name }) == Flow::Stop {
                    return Ok(());
                }
            }
        }
    }
}
