//! A file, directory or other thing of the host, as the rest of the kernel sees it.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering::*};

use linux_raw_sys::general as abi;

use super::dir::Dir;
use super::file::{Backing, Contents};
use super::session::{Attributes, Change, Fid, Open, MOST};
use super::Fs;
use crate::charge::{Charge, Count, Counted, User};
use crate::cred::Cred;
use crate::errno::*;
use crate::fs::access;
use crate::fs::file::File;
use crate::fs::inode::*;
use crate::fs::lease::Opens;
use crate::fs::ops::*;
use crate::fs::pipe::Pipe;
use crate::sched::{self, Nanos};
use crate::share;
use crate::sync::SpinLock;
use crate::uio::{Sink, Source};
use crate::vm;

/// How long `stat` believes what the host has said.
const MOMENT: Nanos = 10_000_000;
/// Nodes that users share, each of which may have a part: fewer than there are fids.
const NODES: usize = MOST / 4;
/// What a node is charged: with its place in the table and the heads of its memory.
const COST: usize = size_of::<Node>() + 2 * size_of::<Contents>() + 512;

pub(in crate::fs) struct Node {
    fs: Arc<Fs>,
    /// The host's number.
    pub(super) path: u64,
    kind: Kind,
    known: SpinLock<Known>,
    body: Body,
    /// The file has no name any more.
    unlinked: AtomicBool,
    opens: Opens,
    me: Weak<Node>,
    _charge: Charge,
    _count: Count,
}

/// What the host has said, and when.
struct Known {
    found: Attributes,
    asked: Nanos,
}

enum Body {
    Dir(Dir, Fid),
    File(Contents),
    Fifo(Arc<Pipe>, Fid),
    /// Symbolic links, devices, sockets.
    Other(Fid),
}

impl Node {
    /// The node of a fid, which is none from then on.
    pub(super) fn new(fs: &Arc<Fs>, fid: &Fid, found: &Attributes, uid: u32) -> Result<Arc<Node>> {
        let charge = Charge::lasting(uid, COST).map_err(|_| ENOMEM)?;
        let count = Count::of(User::of(uid), Counted::HostNodes, 1, share::share_of(NODES));
        let count = count.map_err(|_| ENOMEM)?;
        let own = Fid::none();
        let body = match found.kind {
            Kind::Dir => Body::Dir(Dir::new(), own),
            Kind::File => {
                Body::File(Contents::new(Backing::new(&fs.session, own, found.size), found)?)
            }
            Kind::Fifo => Body::Fifo(Pipe::fifo(uid)?, own),
            _ => Body::Other(own),
        };
        let node = Arc::new_cyclic(|me| Node {
            fs: fs.clone(),
            path: found.path,
            kind: found.kind,
            known: SpinLock::new(Known { found: *found, asked: sched::now() }),
            body,
            unlinked: AtomicBool::new(false),
            opens: Opens::default(),
            me: me.clone(),
            _charge: charge,
            _count: count,
        });
        node.fid().take(fid);
        Ok(node)
    }

    pub(super) fn fs(&self) -> &Arc<Fs> {
        &self.fs
    }

    /// Itself. It is called through a reference, so it is alive.
    pub(super) fn this(&self) -> Result<Arc<Node>> {
        self.me.upgrade().ok_or(ENOENT)
    }

    /// The fid that stands for its name.
    pub(super) fn fid(&self) -> &Fid {
        match &self.body {
            Body::File(contents) => &contents.backing.fid,
            Body::Dir(_, fid) | Body::Fifo(_, fid) | Body::Other(fid) => fid,
        }
    }

    pub(super) fn dir(&self) -> Result<&Dir> {
        match &self.body {
            Body::Dir(dir, _) => Ok(dir),
            _ => Err(ENOTDIR),
        }
    }

    pub(super) fn contents(&self) -> Result<&Contents> {
        match &self.body {
            Body::File(contents) => Ok(contents),
            Body::Dir(..) => Err(EISDIR),
            _ => Err(EINVAL),
        }
    }

    pub(super) fn is_dirty(&self) -> bool {
        self.contents().is_ok_and(Contents::is_dirty)
    }

    pub(super) fn is_unlinked(&self) -> bool {
        self.unlinked.load(Acquire)
    }

    /// Asks the host what it has, and goes by it; nothing if that is another file by now.
    pub(super) fn refresh(&self) -> Result<Option<Attributes>> {
        let found = match &self.body {
            Body::File(contents) => contents.refresh()?,
            _ => {
                let found = self.fs.session.attributes(self.fid())?;
                Some(found).filter(|found| found.path == self.path && found.kind == self.kind)
            }
        };
        if let Some(found) = found {
            *self.known.lock() = Known { found, asked: sched::now() };
        }
        Ok(found)
    }

    /// What is known is asked again before it is told.
    pub(super) fn is_outdated(&self) {
        self.known.lock().asked = 0;
    }

    /// After it has lost a name.
    pub(super) fn lost_name(&self) {
        let is_last = {
            let mut known = self.known.lock();
            let links =
                if self.kind == Kind::Dir { 0 } else { known.found.links.saturating_sub(1) };
            known.found.links = links;
            known.found.ctime = sched::wall();
            links == 0
        };
        if is_last {
            self.unlinked.store(true, Release);
            if let Ok(node) = self.this() {
                self.fs.orphan(&node);
            }
        }
    }

    /// Gives a new node to the user who made it, as far as the host lets its user do so.
    pub(super) fn give_to(&self, uid: u32, gid: u32) -> Result<()> {
        let now = self.ownership();
        if (now.uid, now.gid) == (uid, gid) || !self.fs.gives_away.load(Relaxed) {
            return Ok(());
        }
        let change = Change { uid: Some(uid), gid: Some(gid), ..Change::default() };
        match self.fs.session.change(self.fid(), &change) {
            Err(EPERM) => self.fs.gives_away.store(false, Relaxed),
            other => other?,
        }
        self.refresh().map(drop)
    }

    /// Before a change of the contents: takes set-id bits away.
    fn strip(&self) -> Result<()> {
        if access::mode_after_write(&self.ownership()).is_none() {
            return Ok(());
        }
        self.set_attr(&|now| {
            Ok(SetAttr { perm: access::mode_after_write(now), ..SetAttr::default() })
        })
    }
}

impl Inode for Node {
    fn opens(&self) -> Option<&Opens> {
        matches!(self.body, Body::File(_)).then_some(&self.opens)
    }

    fn stat(&self) -> Stat {
        let is_old = sched::now().saturating_sub(self.known.lock().asked) > MOMENT;
        if is_old && !self.is_unlinked() {
            // What isn't there any more is as it was.
            let _ = self.refresh();
        }
        let size = self.contents().ok().map(Contents::size);
        let Known { found, .. } = &*self.known.lock();
        Stat {
            dev: self.fs.dev,
            ino: self.path,
            kind: self.kind,
            perm: found.perm,
            nlink: found.links,
            uid: found.uid,
            gid: found.gid,
            rdev: found.rdev,
            size: size.unwrap_or(found.size),
            blocks: found.sectors,
            atime: found.atime,
            mtime: found.mtime,
            ctime: found.ctime,
            btime: None,
            flags: 0,
        }
    }

    fn kind(&self) -> Kind {
        self.kind
    }

    fn ownership(&self) -> Ownership {
        let Known { found, .. } = &*self.known.lock();
        Ownership {
            kind: self.kind,
            perm: found.perm,
            uid: found.uid,
            gid: found.gid,
            marks: Marks::default(),
            acl: None,
        }
    }

    fn set_attr(&self, change: Decide<'_>) -> Result<()> {
        const SET_IDS: u32 = abi::S_ISUID | abi::S_ISGID;
        if self.fs.read_only {
            return Err(EROFS);
        }
        let _names = self.fs.names.lock();
        let now = self.ownership();
        let SetAttr { perm, uid, gid, atime, mtime } = change(&now)?;
        let gains = perm.map_or(0, |perm| perm & SET_IDS & !now.perm);
        if gains != 0 && self.kind != Kind::Dir {
            return Err(EPERM);
        }
        let change = Change { perm, uid, gid, size: None, atime, mtime };
        self.fs.session.change(self.fid(), &change)?;
        self.refresh().map(drop)
    }

    fn is_read_only(&self) -> bool {
        self.fs.read_only
    }

    fn fs_stat(&self) -> FsStat {
        let none = FsStat::empty(super::MAGIC);
        self.fs.session.stat(self.fid()).unwrap_or(none)
    }

    fn lookup(&self, name: &[u8]) -> Result<InodeRef> {
        Ok(self.find(name)?)
    }

    fn create(&self, name: &[u8], new: NewNode<'_>, perm: Asked, by: &Cred) -> Result<InodeRef> {
        Ok(self.make(name, new, perm.masked(), by)?)
    }

    fn link(&self, name: &[u8], node: &InodeRef, by: &Cred) -> Result<()> {
        self.give_name(name, node, by)
    }

    fn unlink(&self, name: &[u8], what: Unlink, by: &Cred) -> Result<()> {
        self.take_name(name, what, by)
    }

    fn rename(
        &self,
        name: &[u8],
        to_dir: &InodeRef,
        to_name: &[u8],
        mode: RenameMode,
        by: &Cred,
    ) -> Result<()> {
        self.move_name(name, to_dir, to_name, mode, by)
    }

    fn list(&self, from: u64, each: &mut dyn FnMut(DirEntry<'_>) -> Flow) -> Result<()> {
        self.list_names(from, each)
    }

    fn parent(&self) -> Option<(InodeRef, Vec<u8>)> {
        let (above, name) = self.dir().ok()?.above()?;
        Some((above, name))
    }

    fn cover(&self) -> Option<&Cover> {
        self.dir().ok().map(|dir| dir.cover())
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        if self.kind != Kind::Symlink {
            return Err(EINVAL);
        }
        self.fs.prepare()?;
        self.fs.session.read_link(self.fid())
    }

    fn open(self: Arc<Self>, flags: u32) -> Result<FileRef> {
        match &self.body {
            Body::Dir(..) => {}
            Body::File(contents) => {
                let writes = flags & abi::O_ACCMODE != abi::O_RDONLY;
                if self.fs.read_only && (writes || flags & abi::O_TRUNC != 0) {
                    return Err(EROFS);
                }
                contents.open(if writes { Open::ReadWrite } else { Open::Read })?;
            }
            Body::Fifo(pipe, _) => return Pipe::open_fifo(pipe, flags),
            // A device's number is the host's.
            Body::Other(_) if self.kind != Kind::Socket => return Err(EACCES),
            Body::Other(_) => return Err(ENXIO),
        }
        Ok(self)
    }

    fn truncate(&self, len: u64) -> Result<()> {
        let contents = self.contents()?;
        if self.fs.read_only {
            return Err(EROFS);
        }
        self.strip()?;
        contents.truncate(len, !self.is_unlinked())?;
        self.is_outdated();
        Ok(())
    }
}

impl FileOps for Node {
    fn size(&self) -> u64 {
        self.stat().size
    }

    fn seekable(&self) -> bool {
        self.kind == Kind::File
    }

    fn release(&self, _file: &File) {
        if let Ok(contents) = self.contents() {
            contents.release();
        }
        if self.is_unlinked() {
            super::flusher::wake();
        }
    }

    fn read(&self, file: &File, at: u64, to: &mut Sink<'_>) -> Result<usize> {
        let contents = self.contents()?;
        if at.saturating_add(to.left() as u64) > contents.size() && !self.is_unlinked() {
            // The host may have written more. What it doesn't tell is not there.
            let _ = self.refresh();
        }
        contents.read(at, to, file.usage())
    }

    fn write(&self, file: &File, at: Position, from: &mut Source<'_>) -> Result<(usize, u64)> {
        let contents = self.contents()?;
        if from.left() > 0 {
            self.strip()?;
        }
        let written = contents.write(at, from)?;
        self.is_outdated();
        if file.flags() & abi::O_DSYNC != 0 {
            file.sync()?;
        }
        Ok(written)
    }

    fn truncate(&self, len: u64) -> Result<()> {
        Inode::truncate(self, len)
    }

    fn allocate(&self, _how: Allocate, _at: u64, _len: u64) -> Result<()> {
        Err(self.contents().map_or(ENODEV, |_| EOPNOTSUPP))
    }

    fn seek_data(&self, from: u64, what: Seek) -> Result<u64> {
        self.contents()?.seek(from, what)
    }

    fn mappable(&self) -> Option<&dyn Mappable> {
        Some(self)
    }

    fn stored(&self) -> Option<&dyn Stored> {
        Some(self)
    }
}

impl Mappable for Node {
    fn object(&self) -> Option<vm::Object> {
        self.contents().ok().map(|contents| contents.object().clone())
    }
}

impl Stored for Node {
    fn sync(&self) -> Result<()> {
        match self.contents() {
            Ok(contents) if !self.fs.read_only => contents.sync(),
            _ => Ok(()),
        }
    }

    fn sync_fs(&self) -> Result<()> {
        self.fs.flush();
        Ok(())
    }

    fn swap_extents(&self) -> Result<Vec<Extent>> {
        Err(EINVAL)
    }

    fn swap_release(&self) {}

    fn write_errors(&self) -> u64 {
        self.contents().map_or(0, |contents| contents.object().write_errors())
    }

    fn write_errors_seen(&self) -> u64 {
        self.contents().map_or(0, Contents::errors_seen)
    }

    fn saw_write_errors(&self, count: u64) {
        if let Ok(contents) = self.contents() {
            contents.saw_errors(count);
        }
    }

    fn last_write_error(&self) -> Errno {
        self.contents().map_or(EIO, Contents::take_failure)
    }
}
