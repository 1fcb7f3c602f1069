//! Directories of tmpfs: names, and the operations that move them about.
//!
//! An entry sits in two maps: by name for lookups, and by a cookie that only grows for listings, so
//! that a listing in progress neither skips nor repeats entries while others come and go.
//!
//! Invariants: I1: both maps hold the same entries. I2: a directory in the tree has exactly one
//! name, and its `above` says where; a removed one has `dead` set and takes no new entries. I3:
//! letting a tree go costs no more stack than letting one node go ([`Dir::empty`]).

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use super::TmpNode;
use crate::charge::Charge;
use crate::cred::Cred;
use crate::errno::*;
use crate::fs::access;
use crate::fs::inode::*;
use crate::fs::listing;
use crate::sched;
use crate::sync::SpinLock;

/// Positions 0 and 1 of a listing are `.` and `..`.
const FIRST_COOKIE: u64 = 2;

pub(super) struct Dir {
    entries: SpinLock<Entries>,
    cover: Cover,
}

/// What a name costs besides its bytes: its places in both maps.
const NAME: usize = 160;

/// The work of letting a name and its node go, in bytes that are copied in that time.
const WORK: usize = 1024;

/// The work of going one directory up, likewise.
const ABOVE: usize = 128;

/// Charges a user for a name, in which it outlives the process that makes it.
fn name_charge(uid: u32, name: &[u8]) -> Result<Charge> {
    Charge::lasting(uid, NAME + name.len()).map_err(|_| ENOSPC)
}

/// A node by a name.
struct Entry {
    name: Arc<[u8]>,
    node: Arc<TmpNode>,
    _charge: Charge,
}

struct Entries {
    by_name: BTreeMap<Arc<[u8]>, u64>,
    by_cookie: BTreeMap<u64, Entry>,
    next_cookie: u64,
    above: Option<Weak<TmpNode>>,
    name: Box<[u8]>,
    dead: bool,
    /// Of a tree that goes: the directory that is emptied after this one.
    next: Option<Arc<TmpNode>>,
}

impl Dir {
    pub(super) fn new(above: Option<Weak<TmpNode>>, name: &[u8]) -> Dir {
        let entries = Entries {
            by_name: BTreeMap::new(),
            by_cookie: BTreeMap::new(),
            next_cookie: FIRST_COOKIE,
            above,
            name: name.into(),
            dead: false,
            next: None,
        };
        Dir { entries: SpinLock::new(entries), cover: Cover::new() }
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
        entries.by_cookie.get(cookie).map(|entry| entry.node.clone())
    }

    pub(super) fn parent(&self) -> Option<(InodeRef, Vec<u8>)> {
        let entries = self.entries.lock();
        if entries.dead {
            return None;
        }
        let above = entries.above.as_ref()?.upgrade()?;
        Some((above, entries.name.to_vec()))
    }

    pub(super) fn cover(&self) -> &Cover {
        &self.cover
    }

    /// Enters a name that isn't there.
    fn add(&self, name: &[u8], node: Arc<TmpNode>, charge: Charge) {
        let name: Arc<[u8]> = name.into();
        let mut entries = self.entries.lock();
        let cookie = entries.next_cookie;
        entries.next_cookie += 1;
        let old = entries.by_name.insert(name.clone(), cookie);
        debug_assert!(old.is_none(), "a name is entered twice");
        entries.by_cookie.insert(cookie, Entry { name, node, _charge: charge });
    }

    /// Takes an entry out; the caller lets the node go without a lock.
    fn take(&self, name: &[u8]) -> Option<Entry> {
        let mut entries = self.entries.lock();
        let cookie = entries.by_name.remove(name)?;
        entries.by_cookie.remove(&cookie)
    }

    fn is_dead(&self) -> bool {
        self.entries.lock().dead
    }

    fn moved(&self, above: &TmpNode, name: &[u8]) {
        let mut entries = self.entries.lock();
        entries.above = Some(above.me.clone());
        entries.name = name.into();
    }

    /// Lets all that is below go, in a loop: directories that only their entries hold are put in a
    /// row and emptied one after the other. A thread that reaches one from a directory below
    /// it sees a removed directory.
    pub(super) fn empty(&self) {
        let mut row = None;
        self.move_below(&mut row);
        while let Some(node) = row {
            let Ok(dir) = node.dir() else { return };
            row = dir.entries.lock().next.take();
            dir.move_below(&mut row);
        }
    }

    /// Empties a directory that goes, and gives way on the way; the directories in it come to the
    /// front of the row.
    fn move_below(&self, row: &mut Option<Arc<TmpNode>>) {
        loop {
            let Entry { name, node, .. } = {
                let mut entries = self.entries.lock();
                entries.dead = true;
                let Some((_, entry)) = entries.by_cookie.pop_first() else { return };
                entries.by_name.remove(&entry.name);
                entry
            };
            drop(name);
            sched::work_done(WORK);
            if Arc::strong_count(&node) > 1 {
                continue;
            }
            if let Ok(dir) = node.dir() {
                dir.entries.lock().next = row.take();
                *row = Some(node);
            }
        }
    }

    /// Marks an empty directory as removed.
    fn mark_dead(&self) -> Result<()> {
        self.cover.remove()?;
        let mut entries = self.entries.lock();
        if !entries.by_name.is_empty() {
            self.cover.clear();
            return Err(ENOTEMPTY);
        }
        entries.dead = true;
        Ok(())
    }
}

impl TmpNode {
    /// Enters a node for a user who is charged for the name, unless `may` says no, which is asked
    /// when nothing is in the way.
    pub(super) fn add_entry(
        &self,
        name: &[u8],
        node: Arc<TmpNode>,
        uid: u32,
        may: impl FnOnce(&TmpNode, &TmpNode) -> Result<()>,
    ) -> Result<()> {
        let dir = self.dir()?;
        let charge = name_charge(uid, name)?;
        let _tree = self.fs.tree.lock();
        if dir.is_dead() {
            return Err(ENOENT);
        }
        if dir.find(name).is_some() {
            return Err(EEXIST);
        }
        may(self, &node)?;
        if node.kind == Kind::Dir {
            self.count_links(1);
        }
        dir.add(name, node, charge);
        self.modified();
        Ok(())
    }

    pub(super) fn link_entry(&self, name: &[u8], node: &InodeRef, by: &Cred) -> Result<()> {
        let node = self.local(node)?;
        if node.kind == Kind::Dir {
            return Err(EPERM);
        }
        if node.attr.lock().nlink == u32::MAX {
            return Err(EMLINK);
        }
        // A name takes memory as a node does, and counts as one: so does Linux.
        let limits = &self.fs.limits;
        limits.add_node()?;
        let entered =
            self.add_entry(name, node.me.upgrade().ok_or(ENOENT)?, by.uid, |dir, node| {
                access::may_create(by, &dir.ownership())?;
                let mut attr = node.attr.lock();
                if attr.nlink == 0 && !attr.linkable {
                    return Err(ENOENT);
                }
                // The name of one without names comes with the node.
                if core::mem::take(&mut attr.linkable) && attr.nlink == 0 {
                    limits.remove_node();
                }
                drop(attr);
                node.count_links(1);
                Ok(())
            });
        entered.inspect_err(|_| limits.remove_node())
    }

    pub(super) fn remove_entry(&self, name: &[u8], what: Unlink, by: &Cred) -> Result<()> {
        let dir = self.dir()?;
        let tree = self.fs.tree.lock();
        let node = dir.find(name).ok_or(ENOENT)?;
        access::may_remove(by, &self.ownership(), &node.ownership())?;
        match (what, &node.body) {
            (Unlink::File, super::Body::Dir(_)) => return Err(EISDIR),
            (Unlink::File, _) => {}
            (Unlink::Dir, _) => node.dir()?.mark_dead()?,
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
            if node.attr.lock().nlink > 1 {
                self.fs.limits.remove_node();
            }
            node.count_links(-1);
        }
    }

    pub(super) fn rename_entry(
        &self,
        name: &[u8],
        to_dir: &InodeRef,
        to_name: &[u8],
        mode: RenameMode,
        by: &Cred,
    ) -> Result<()> {
        let from = self.dir()?;
        let to_node = self.local(to_dir)?;
        let to = to_node.dir()?;
        let charges = (name_charge(by.uid, name)?, name_charge(by.uid, to_name)?);
        let tree = self.fs.tree.lock();
        let node = from.find(name).ok_or(ENOENT)?;
        let target = to.find(to_name);
        if to.is_dead() {
            return Err(ENOENT);
        }
        if node.kind == Kind::Dir && to_node.is_below(&node) {
            return Err(EINVAL);
        }
        if mode != RenameMode::NoReplace
            && target.as_ref().is_some_and(|target| Arc::ptr_eq(target, &node))
        {
            return Ok(());
        }
        let replaced = target.as_deref().map(|target| target as &dyn Inode);
        access::may_rename(by, (self, &*node), (to_node, replaced), mode)?;
        if let Some(target) = &target {
            if mode == RenameMode::Exchange {
                if target.kind == Kind::Dir && self.is_below(target) {
                    return Err(EINVAL);
                }
                self.exchange((name, &node), to_node, (to_name, target), charges);
                return Ok(());
            }
            if let super::Body::Dir(dir) = &target.body {
                dir.mark_dead()?;
            }
            to_node.unlinked(target);
        }
        let replaced = to.take(to_name);
        let moved = from.take(name);
        to.add(to_name, node.clone(), charges.1);
        self.update_links(&node, to_node, to_name);
        self.modified();
        to_node.modified();
        drop(tree);
        drop((moved, replaced, target));
        Ok(())
    }

    /// Swaps two entries.
    fn exchange(
        &self,
        (name, node): (&[u8], &Arc<TmpNode>),
        to_node: &TmpNode,
        (to_name, target): (&[u8], &Arc<TmpNode>),
        charges: (Charge, Charge),
    ) {
        if let (Ok(from), Ok(to)) = (self.dir(), to_node.dir()) {
            let taken = (from.take(name), to.take(to_name));
            from.add(name, target.clone(), charges.0);
            to.add(to_name, node.clone(), charges.1);
            self.update_links(node, to_node, to_name);
            to_node.update_links(target, self, name);
            self.modified();
            to_node.modified();
            drop(taken);
        }
    }

    /// After `node` moved from this directory to `to`: its back link and both directories' counts.
    fn update_links(&self, node: &TmpNode, to: &TmpNode, name: &[u8]) {
        if let Ok(dir) = node.dir() {
            dir.moved(to, name);
            if !core::ptr::eq(self, to) {
                self.count_links(-1);
                to.count_links(1);
            }
        }
        node.count_links(0);
    }

    /// Whether this directory is `other` or somewhere below it. Needs the tree lock to mean
    /// anything.
    fn is_below(&self, other: &TmpNode) -> bool {
        let mut at = self.me.upgrade();
        while let Some(node) = at {
            if core::ptr::eq(&*node, other) {
                return true;
            }
            sched::work_done(ABOVE);
            let above = node.dir().ok().and_then(|dir| dir.entries.lock().above.clone());
            at = above.and_then(|above| above.upgrade());
        }
        false
    }

    /// `node` as one of this file system's.
    fn local<'a>(&self, node: &'a InodeRef) -> Result<&'a TmpNode> {
        local(node, |node: &TmpNode| Arc::ptr_eq(&node.fs, &self.fs))
    }

    pub(super) fn list_entries(
        &self,
        from: u64,
        each: &mut dyn FnMut(DirEntry<'_>) -> Flow,
    ) -> Result<()> {
        const BATCH: usize = 32;
        let dir = self.dir()?;
        let above = dir.parent().map_or(self.ino, |(above, _)| above.stat().ino);
        if listing::dots(from, (self.ino, above), each) == Flow::Stop {
            return Ok(());
        }
        let mut cookie = from.max(FIRST_COOKIE);
        loop {
            let batch: Vec<(u64, Arc<[u8]>, u64, Kind)> = {
                let entries = dir.entries.lock();
                let range = entries.by_cookie.range(cookie..).take(BATCH);
                range.map(|(at, e)| (*at, e.name.clone(), e.node.ino, e.node.kind)).collect()
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
