//! Directories: names and what they lead to.
//!
//! I1: `above` is the directory by which this one was found last; following it leads to the root,
//! or to a directory that was detached, and never in a circle: it changes with `Fs::tree` held.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::node::Node;
use super::session::Open;
use crate::charge::{self, Charge};
use crate::cred::Cred;
use crate::errno::*;
use crate::fs::access;
use crate::fs::inode::*;
use crate::fs::listing::{self, Listing};
use crate::mem::heap;
use crate::sched;
use crate::sync::SpinLock;

/// What a step upwards comes to, in bytes copied.
const STEP: usize = 256;
/// More heap than the names of one answer take.
const PART: usize = 64 << 10;

const SET_IDS: u32 = linux_raw_sys::general::S_ISUID | linux_raw_sys::general::S_ISGID;

/// The directory above, and the name in it.
type Above = Option<(Arc<Node>, Box<[u8]>)>;

pub(super) struct Dir {
    above: SpinLock<Above>,
    listing: SpinLock<Option<Arc<Listing>>>,
    cover: Cover,
}

impl Dir {
    pub(super) fn new() -> Dir {
        Dir { above: SpinLock::new(None), listing: SpinLock::new(None), cover: Cover::new() }
    }

    pub(super) fn above(&self) -> Option<(Arc<Node>, Vec<u8>)> {
        self.above.lock().as_ref().map(|(node, name)| (node.clone(), name.to_vec()))
    }

    pub(super) fn cover(&self) -> &Cover {
        &self.cover
    }

    /// It has no name any more.
    pub(super) fn detach(&self) {
        let old = self.above.lock().take();
        drop(old);
        self.forget_listing();
    }

    fn forget_listing(&self) {
        let listing = self.listing.lock().take();
        drop(listing);
    }
}

impl Node {
    /// The node that a name leads to, with what the host says of it now.
    pub(super) fn find(&self, name: &[u8]) -> Result<Arc<Node>> {
        self.dir()?;
        let fs = self.fs();
        fs.prepare()?;
        let (fid, path) = match fs.session.walk(self.fid(), Some(name)) {
            // Those of nodes that are only kept go first.
            Err(ENFILE) => {
                fs.forget_idle(0);
                fs.session.walk(self.fid(), Some(name))?
            }
            walked => walked?,
        };
        let mut known = fs.known(path);
        if let Some(node) = &known {
            // By the name that it has now.
            fs.session.replace(node.fid(), &fid);
            if node.refresh()?.is_none() {
                // It was another file that the host had before under this number.
                fid.take(node.fid());
                fs.orphan(node);
                known = None;
            }
        }
        let node = match known {
            Some(node) => node,
            None => {
                let found = fs.session.attributes(&fid);
                let found = found.inspect_err(|_| fs.session.clunk(&fid))?;
                fs.enter(fid, &found)?
            }
        };
        if let Ok(dir) = node.dir() {
            self.put_above(&node, dir, name)?;
        }
        Ok(node)
    }

    /// Says that this directory is above another, which has this name in it.
    ///
    /// # Errors
    /// `ELOOP`: it is below that one: the host shows a folder inside itself, or has moved it.
    fn put_above(&self, node: &Arc<Node>, dir: &Dir, name: &[u8]) -> Result<()> {
        let this = self.this()?;
        let is_so = |above: &Above| {
            above.as_ref().is_some_and(|(at, known)| Arc::ptr_eq(at, &this) && **known == *name)
        };
        if is_so(&dir.above.lock()) {
            return Ok(());
        }
        let _tree = self.fs().tree.lock();
        let mut at = Some(this.clone());
        while let Some(above) = at {
            if Arc::ptr_eq(&above, node) {
                return Err(ELOOP);
            }
            sched::work_done(STEP);
            at = above.dir()?.above.lock().as_ref().map(|(above, _)| above.clone());
        }
        let new = Some((this, Box::from(name)));
        let old = core::mem::replace(&mut *dir.above.lock(), new);
        drop(old);
        Ok(())
    }

    /// After a change of the names here.
    fn names_changed(&self) {
        if let Ok(dir) = self.dir() {
            dir.forget_listing();
        }
        self.is_outdated();
    }

    fn may_change_names(&self) -> Result<()> {
        self.dir()?;
        if self.fs().read_only {
            return Err(EROFS);
        }
        if self.is_unlinked() {
            return Err(ENOENT);
        }
        self.fs().prepare()
    }

    pub(super) fn make(
        &self,
        name: &[u8],
        new: NewNode<'_>,
        perm: u32,
        by: &Cred,
    ) -> Result<Arc<Node>> {
        self.may_change_names()?;
        let (fs, session) = (self.fs(), &self.fs().session);
        let _names = fs.names.lock();
        let kind = match new {
            NewNode::File => Kind::File,
            NewNode::Dir => Kind::Dir,
            NewNode::Symlink(_) => Kind::Symlink,
            NewNode::Special(kind, _) => kind,
        };
        let above = self.ownership();
        // What is there already is told first.
        if let Err(refused) = access::may_create(by, &above) {
            return Err(if self.find(name).is_ok() { EEXIST } else { refused });
        }
        // A set-id program would be the host's user's; a device, the host's.
        let is_harmful = match kind {
            Kind::Char | Kind::Block => true,
            Kind::Dir => false,
            _ => perm & SET_IDS != 0,
        };
        if is_harmful {
            return Err(EPERM);
        }
        let mut opened = None;
        match new {
            NewNode::File => {
                let (fid, _) = session.walk(self.fid(), None)?;
                session.create(&fid, name, perm).inspect_err(|_| session.clunk(&fid))?;
                opened = Some(fid);
            }
            NewNode::Dir => session.make_dir(self.fid(), name, perm)?,
            NewNode::Symlink(target) => session.make_link(self.fid(), name, target)?,
            NewNode::Special(..) => session.make_node(self.fid(), name, kind.mode_bits() | perm)?,
        }
        self.names_changed();
        let made = self.find(name);
        if let Some(fid) = opened {
            match made.as_ref().map(|node| node.contents()) {
                Ok(Ok(contents)) => contents.backing.opened(&fid),
                // The host has something else there already.
                _ => session.clunk(&fid),
            }
        }
        let made = made?;
        let born = access::reserved(by, &above, kind, perm);
        made.give_to(born.uid, born.gid)?;
        Ok(made)
    }

    pub(super) fn give_name(&self, name: &[u8], node: &InodeRef, by: &Cred) -> Result<()> {
        let node = self.local(node)?;
        if node.kind() == Kind::Dir {
            return Err(EPERM);
        }
        self.may_change_names()?;
        let _names = self.fs().names.lock();
        access::may_create(by, &self.ownership())?;
        access::may_link(by, &node.ownership())?;
        self.fs().session.link(self.fid(), node.fid(), name)?;
        self.names_changed();
        node.is_outdated();
        Ok(())
    }

    pub(super) fn take_name(&self, name: &[u8], what: Unlink, by: &Cred) -> Result<()> {
        self.may_change_names()?;
        let _names = self.fs().names.lock();
        let node = self.find(name)?;
        access::may_remove(by, &self.ownership(), &node.ownership())?;
        let is_dir = node.kind() == Kind::Dir;
        match (what, is_dir) {
            (Unlink::File, true) => return Err(EISDIR),
            (Unlink::Dir, false) => return Err(ENOTDIR),
            _ => {}
        }
        node.cover().map_or(Ok(()), Cover::remove)?;
        if let Err(errno) = self.fs().session.unlink(self.fid(), name, is_dir) {
            node.cover().into_iter().for_each(Cover::clear);
            return Err(errno);
        }
        node.lost_name();
        self.names_changed();
        Ok(())
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
        self.may_change_names()?;
        to_node.may_change_names()?;
        if mode != RenameMode::Replace {
            // No message says so.
            return Err(EINVAL);
        }
        let _names = self.fs().names.lock();
        let node = self.find(name)?;
        let target = match to_node.find(to_name) {
            Ok(target) => Some(target),
            Err(ENOENT) => None,
            Err(errno) => return Err(errno),
        };
        if target.as_ref().is_some_and(|target| Arc::ptr_eq(target, &node)) {
            return Ok(());
        }
        let replaced = target.as_deref().map(|target| target as &dyn Inode);
        access::may_rename(by, (self, &*node), (to_node, replaced), mode)?;
        let cover = target.as_ref().and_then(|target| target.cover());
        cover.map_or(Ok(()), Cover::remove)?;
        let moved = self.fs().session.rename((self.fid(), name), (to_node.fid(), to_name));
        if let Err(errno) = moved {
            cover.into_iter().for_each(Cover::clear);
            return Err(errno);
        }
        if let Some(target) = &target {
            target.lost_name();
        }
        node.is_outdated();
        [self, to_node].into_iter().for_each(Node::names_changed);
        if let Ok(dir) = node.dir() {
            to_node.put_above(&node, dir, to_name)?;
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
        let dir = self.dir()?;
        let above = dir.above().map_or(self.path, |(above, _)| above.path);
        // From the beginning on it is read anew.
        let kept = dir.listing.lock().clone().filter(|_| from != 0);
        let listing = match kept {
            Some(listing) => listing,
            None => self.read_listing(dir)?,
        };
        if listing::dots(from, (self.path, above), each) == Flow::More {
            listing.each(from, each);
        }
        Ok(())
    }

    fn read_listing(&self, dir: &Dir) -> Result<Arc<Listing>> {
        let (fs, session) = (self.fs(), &self.fs().session);
        fs.prepare()?;
        let uid = charge::account().user().uid();
        let mut listing = Listing::new(Charge::lasting(uid, STEP).map_err(|_| ENOMEM)?);
        if !self.is_unlinked() {
            let (fid, _) = session.walk(self.fid(), None)?;
            let mut read = || -> Result<()> {
                session.open(&fid, Open::Directory)?;
                let mut from = Some(0);
                while let Some(at) = from.filter(|_| !sched::is_leaving()) {
                    heap::reserve(PART)?;
                    from = session.list(&fid, at, |names| listing.add(names))?;
                    sched::give_way();
                }
                Ok(())
            };
            let outcome = read();
            session.clunk(&fid);
            outcome?;
        }
        listing.sort();
        let listing = Arc::new(listing);
        let old = dir.listing.lock().replace(listing.clone());
        drop(old);
        Ok(listing)
    }
}
