//! Directories: names and what they lead to.
//!
//! Names that were looked up are remembered with their inode's number; the node is in the table, or
//! the volume is asked. A listing is kept until the directory changes.
//!
//! I1: names that are remembered are the volume's; both change with the volume locked (`ext4`, I2).
//! I2: `above` is the directory that holds this one's name, and keeps it in the table.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use arrayvec::ArrayVec;
use volume::{AccessList, Change, Cursor, New, Rename};

use super::node::{Body, Node};
use super::{errno, Volume};
use crate::charge::{self, Charge};
use crate::cred::Cred;
use crate::errno::*;
use crate::fs::access;
use crate::fs::inode::*;
use crate::fs::listing::{self, Listing};
use crate::mem::heap;
use crate::sched;
use crate::sync::SpinLock;

/// Entries taken from the volume at once.
const BATCH: usize = 128;
/// More heap than so many take.
const PART: usize = BATCH * 512;
/// Bytes that a directory takes which keeps another: its node, and the name by which it is there.
const KEPT: usize = size_of::<Node>() + 2 * MAX_NAME;
/// What a user has to have left, or unused directories are forgotten: more than a call keeps, with
/// a descriptor for what it finds.
const SPARE: usize = 64 << 10;
/// The longest name.
const MAX_NAME: usize = 255;

/// The parent and the name in it. Charged to the user whose look-up brought the directory in, since
/// this reference keeps the parent in memory.
type Above = (Arc<Node>, Box<[u8]>, Charge);

pub(super) struct Dir {
    names: SpinLock<BTreeMap<Box<[u8]>, u32>>,
    listing: SpinLock<Option<Arc<Listing>>>,
    above: SpinLock<Option<Above>>,
    cover: Cover,
}

impl Dir {
    pub(super) fn new() -> Dir {
        Dir {
            names: SpinLock::new(BTreeMap::new()),
            listing: SpinLock::new(None),
            above: SpinLock::new(None),
            cover: Cover::new(),
        }
    }

    pub(super) fn above(&self) -> Option<(Arc<Node>, Vec<u8>)> {
        self.above.lock().as_ref().map(|(node, name, _)| (node.clone(), name.to_vec()))
    }

    fn set_above(&self, node: Arc<Node>, name: &[u8], charge: Charge) {
        let new = Some((node, Box::from(name), charge));
        let old = core::mem::replace(&mut *self.above.lock(), new);
        drop(old);
    }

    /// The directory above is another, or its name.
    fn move_above(&self, node: Arc<Node>, name: &[u8]) {
        let name = Box::from(name);
        let mut above = self.above.lock();
        let old = above.as_mut().map(|now| {
            (core::mem::replace(&mut now.0, node), core::mem::replace(&mut now.1, name))
        });
        drop(above);
        drop(old);
    }

    fn is_found(&self) -> bool {
        self.above.lock().is_some()
    }

    pub(super) fn cover(&self) -> &Cover {
        &self.cover
    }

    /// Forgets what is only remembered.
    pub(super) fn forget(&self) {
        self.forget_names();
        self.forget_listing();
    }

    pub(super) fn forget_names(&self) {
        let mut names = core::mem::take(&mut *self.names.lock());
        while names.pop_first().is_some() {
            sched::work_done(MAX_NAME);
        }
    }

    pub(super) fn forget_listing(&self) {
        let listing = self.listing.lock().take();
        drop(listing);
    }

    /// Forgets a name, and the listing.
    fn changed(&self, name: &[u8]) {
        let gone = self.names.lock().remove(name);
        let listing = self.listing.lock().take();
        drop((gone, listing));
    }
}

/// Gives a new inode its access lists.
fn set_lists(volume: &mut Volume, ino: u32, lists: &[Option<Vec<u8>>; 2]) -> Result<()> {
    for (which, bytes) in [AccessList::Own, AccessList::Default].into_iter().zip(lists) {
        if let Some(bytes) = bytes {
            volume.set_access_list(ino, which, bytes).map_err(errno)?;
        }
    }
    Ok(())
}

impl Node {
    /// The node that a name leads to.
    pub(super) fn find(&self, name: &[u8]) -> Result<Arc<Node>> {
        let dir = self.dir()?;
        {
            let names = dir.names.lock();
            let known = names.get(name).and_then(|&ino| self.fs().known(ino));
            if let Some(node) = known.filter(|node| node.dir().map_or(true, Dir::is_found)) {
                return Ok(node);
            }
        }
        self.with_charge(|volume, charge| self.find_in(volume, name, charge))
    }

    /// Does something with the volume that may need a charge for a directory. A user who has little
    /// left is given back first what is kept of unused directories.
    fn with_charge<T>(
        &self,
        act: impl Fn(&mut Volume, &mut Option<Charge>) -> Result<T>,
    ) -> Result<T> {
        let uid = charge::account().user().uid();
        let mut has_forgotten = false;
        let mut has_room = Charge::lasting(uid, SPARE).is_ok();
        loop {
            if !has_room {
                self.fs().forget_listings();
                self.fs().forget_idle(0);
                has_forgotten = true;
            }
            let mut charge = Charge::lasting(uid, KEPT).ok();
            let done = act(&mut *self.fs().volume_with_room()?, &mut charge);
            has_room = charge.is_some() || !matches!(done, Err(ENOMEM));
            if has_room || has_forgotten {
                return done;
            }
        }
    }

    /// The node that a name leads to. One that is looked up in full needs the charge, if it is a
    /// directory's that no thread knows yet.
    fn find_in(
        &self,
        volume: &mut Volume,
        name: &[u8],
        charge: &mut Option<Charge>,
    ) -> Result<Arc<Node>> {
        let dir = self.dir()?;
        let node = self.look_at(volume, name)?;
        if let Body::Dir(below) = &node.body {
            if !below.is_found() {
                below.set_above(self.this()?, name, charge.take().ok_or(ENOMEM)?);
            }
        }
        let key: Box<[u8]> = name.into();
        dir.names.lock().insert(key, node.ino);
        self.fs().cache.has_name();
        Ok(node)
    }

    /// The node of a name; neither the name nor its parent is cached.
    fn look_at(&self, volume: &mut Volume, name: &[u8]) -> Result<Arc<Node>> {
        let found = volume.lookup(self.ino, name).map_err(errno)?;
        self.fs().adopt(volume, &found)
    }

    pub(super) fn make(
        &self,
        name: &[u8],
        new: NewNode<'_>,
        perm: Asked,
        by: &Cred,
    ) -> Result<Arc<Node>> {
        self.dir()?;
        if let NewNode::Symlink(target) = new {
            // With a zero behind it, it lies in a block.
            if target.len() as u64 >= self.fs().block_size {
                return Err(ENAMETOOLONG);
            }
        }
        let number =
            |rdev: u64| ((rdev >> 8 & 0xfff) as u32, (rdev & 0xff | rdev >> 12 & 0xf_ff00) as u32);
        let kind = match new {
            NewNode::File => Kind::File,
            NewNode::Dir => Kind::Dir,
            NewNode::Symlink(_) => Kind::Symlink,
            NewNode::Special(kind, _) => kind,
        };
        let new = match new {
            NewNode::File => New::File,
            NewNode::Dir => New::Dir,
            NewNode::Symlink(target) => New::Symlink(target),
            NewNode::Special(Kind::Fifo, _) => New::Fifo,
            NewNode::Special(Kind::Socket, _) => New::Socket,
            NewNode::Special(Kind::Block, rdev) => New::BlockDevice(number(rdev).0, number(rdev).1),
            NewNode::Special(_, rdev) => New::CharDevice(number(rdev).0, number(rdev).1),
        };
        self.with_charge(|volume, charge| self.make_in(volume, charge, name, (kind, new), perm, by))
    }

    fn make_in(
        &self,
        volume: &mut Volume,
        charge: &mut Option<Charge>,
        name: &[u8],
        (kind, new): (Kind, New<'_>),
        perm: Asked,
        by: &Cred,
    ) -> Result<Arc<Node>> {
        let dir = self.dir()?;
        if self.is_unlinked() {
            return Err(ENOENT);
        }
        let above = self.ownership();
        let born = access::reserved(by, &above, kind, self.perm_for(kind, perm));
        // What is there already is told first.
        if let Err(refused) = access::may_create(by, &above) {
            return Err(if self.look_at(volume, name).is_ok() { EEXIST } else { refused });
        }
        self.fs().check_room_for_name(by)?;
        if kind == Kind::Dir && charge.is_none() {
            return Err(ENOMEM);
        }
        let (perm, lists) = self.lists_for(kind, born.perm);
        // The group's class has its rights when the list says who is in it, also after a crash.
        let first = if lists[0].is_some() { perm & !0o070 } else { perm };
        let made = volume.create(self.ino, name, new, first, (born.uid, born.gid));
        self.fs().changed(volume);
        let ino = made.map_err(errno)?.ino;
        dir.changed(name);
        let listed = set_lists(volume, ino, &lists).and_then(|()| match first == perm {
            true => Ok(()),
            false => {
                let change = Change { perm: Some(perm), ..Change::default() };
                volume.change(ino, &change).map(|_| ()).map_err(errno)
            }
        });
        self.fs().changed(volume);
        let found = listed.and_then(|()| self.find_in(volume, name, charge)).or_else(|error| {
            // No thread has seen it.
            let gone = match kind {
                Kind::Dir => volume.remove_dir(self.ino, name),
                _ => volume.unlink(self.ino, name).map(|_| ()),
            };
            let gone = gone.and_then(|()| volume.reap(ino));
            self.fs().changed(volume);
            dir.changed(name);
            gone.map_err(errno).and(Err(error))
        });
        self.refresh(volume);
        self.modified();
        found
    }

    pub(super) fn give_name(&self, name: &[u8], node: &InodeRef, by: &Cred) -> Result<()> {
        let node = self.local(node)?;
        if node.kind() == Kind::Dir {
            return Err(EPERM);
        }
        let dir = self.dir()?;
        let mut volume = self.fs().volume_with_room()?;
        if self.is_unlinked() || node.is_unlinked() {
            return Err(ENOENT);
        }
        access::may_create(by, &self.ownership())?;
        access::may_link(by, &node.ownership())?;
        self.fs().check_room_for_name(by)?;
        let linked = volume.link(node.ino, self.ino, name);
        self.fs().changed(&volume);
        linked.map_err(errno)?;
        dir.changed(name);
        node.refresh(&mut volume);
        self.modified();
        Ok(())
    }

    pub(super) fn take_name(&self, name: &[u8], what: Unlink, by: &Cred) -> Result<()> {
        let dir = self.dir()?;
        self.fs().reap_closed_if_many();
        let mut volume = self.fs().volume_with_room()?;
        let node = self.look_at(&mut volume, name)?;
        access::may_remove(by, &self.ownership(), &node.ownership())?;
        node.may_lose_names()?;
        if let (Unlink::Dir, Some(cover)) = (what, node.cover()) {
            cover.remove()?;
        }
        let taken = match (what, node.kind() == Kind::Dir) {
            (Unlink::File, true) => return Err(EISDIR),
            (Unlink::File, false) => volume.unlink(self.ino, name).map(|_| ()),
            (Unlink::Dir, true) => volume.remove_dir(self.ino, name),
            (Unlink::Dir, false) => return Err(ENOTDIR),
        };
        self.fs().changed(&volume);
        if let (Err(_), Unlink::Dir, Some(cover)) = (&taken, what, node.cover()) {
            cover.clear();
        }
        taken.map_err(errno)?;
        dir.changed(name);
        self.detached(&mut volume, &node);
        self.refresh(&mut volume);
        self.modified();
        Ok(())
    }

    /// After `node` has lost a name. The thread that found it still holds it, so it is freed later.
    fn detached(&self, volume: &mut Volume, node: &Arc<Node>) {
        node.refresh(volume);
        if !node.is_unlinked() {
            return;
        }
        if let Body::File(contents) = &node.body {
            contents.backing.lost_last_name(volume);
        }
        self.fs().lost_last_name(node);
        if let Body::Dir(gone) = &node.body {
            let above = gone.above.lock().take();
            drop(above);
            gone.forget();
        }
    }

    pub(super) fn move_name(
        &self,
        name: &[u8],
        to_dir: &InodeRef,
        to_name: &[u8],
        mode: RenameMode,
        by: &Cred,
    ) -> Result<()> {
        let to_node = self.local(to_dir)?;
        let (from, to) = (self.dir()?, to_node.dir()?);
        self.fs().reap_closed_if_many();
        let mut guard = self.fs().volume_with_room()?;
        let volume = &mut *guard;
        let how = match mode {
            RenameMode::Replace => Rename::Replace,
            RenameMode::NoReplace => Rename::NoReplace,
            RenameMode::Exchange => Rename::Exchange,
        };
        if to_node.is_unlinked() {
            return Err(ENOENT);
        }
        let node = self.look_at(volume, name)?;
        let target = match to_node.look_at(volume, to_name) {
            Ok(target) => Some(target),
            Err(ENOENT) => None,
            Err(errno) => return Err(errno),
        };
        if mode == RenameMode::Replace
            && target.as_ref().is_some_and(|target| Arc::ptr_eq(target, &node))
        {
            return Ok(());
        }
        let replaced = target.as_deref().map(|target| target as &dyn Inode);
        access::may_rename(by, (self, &*node), (to_node, replaced), mode)?;
        if target.is_none() {
            self.fs().check_room_for_name(by)?;
        }
        node.may_lose_names()?;
        target.as_ref().map_or(Ok(()), |target| target.may_lose_names())?;
        let replaced = target.as_ref().filter(|_| mode == RenameMode::Replace);
        let cover = replaced.and_then(|target| target.cover());
        cover.map_or(Ok(()), Cover::remove)?;
        let moved = volume.rename(self.ino, name, to_node.ino, to_name, how);
        self.fs().changed(volume);
        if let (Err(_), Some(cover)) = (&moved, cover) {
            cover.clear();
        }
        moved.map_err(errno)?;
        from.changed(name);
        to.changed(to_name);
        if let Body::Dir(dir) = &node.body {
            dir.move_above(to_node.this()?, to_name);
        }
        if let (RenameMode::Exchange, Some(Body::Dir(dir))) =
            (mode, target.as_ref().map(|node| &node.body))
        {
            dir.move_above(self.this()?, name);
        }
        node.refresh(volume);
        if let Some(target) = &target {
            self.detached(volume, target);
        }
        for dir in [self, to_node] {
            dir.refresh(volume);
            dir.modified();
        }
        Ok(())
    }

    /// `node` as one of this file system's.
    fn local<'a>(&self, node: &'a InodeRef) -> Result<&'a Node> {
        local(node, |node: &Node| Arc::ptr_eq(node.fs(), self.fs()))
    }

    pub(super) fn list_names(
        &self,
        from: u64,
        each: &mut dyn FnMut(DirEntry<'_>) -> Flow,
    ) -> Result<()> {
        let above = self.dir()?.above().map_or(self.ino, |(above, _)| above.ino);
        if listing::dots(from, (u64::from(self.ino), u64::from(above)), each) == Flow::More {
            self.listing()?.each(from, each);
        }
        Ok(())
    }

    fn listing(&self) -> Result<Arc<Listing>> {
        let dir = self.dir()?;
        if let Some(listing) = &*dir.listing.lock() {
            return Ok(listing.clone());
        }
        self.with_charge(|volume, charge| self.listing_in(volume, charge))
    }

    fn listing_in(&self, volume: &mut Volume, charge: &mut Option<Charge>) -> Result<Arc<Listing>> {
        let mut listing = Listing::new(charge.take().ok_or(ENOMEM)?);
        let mut from = Cursor::Start;
        while from != Cursor::End && !self.is_unlinked() {
            let mut part = volume.list(self.ino, from, BATCH).map_err(errno)?;
            let Some(last) = part.last() else { break };
            from = last.next;
            part.retain(|entry| !matches!(entry.name.as_slice(), b"." | b".."));
            // What the names take, and the next part.
            heap::reserve(PART)?;
            let mut kinds = ArrayVec::<Kind, BATCH>::new();
            for entry in part.iter().take(BATCH) {
                kinds.push(match Kind::from_mode(entry.file_type) {
                    Some(kind) => kind,
                    None => Kind::from_mode(volume.attributes(entry.ino).map_err(errno)?.mode)
                        .ok_or(EIO)?,
                });
            }
            let entries = part.iter().zip(&kinds);
            listing.add(
                entries.map(|(entry, &kind)| (entry.name.as_slice(), u64::from(entry.ino), kind)),
            )?;
            sched::give_way();
        }
        listing.sort();
        self.fs().cache.has_listing(listing.len());
        let listing = Arc::new(listing);
        let old = self.dir()?.listing.lock().replace(listing.clone());
        drop(old);
        Ok(listing)
    }
}
