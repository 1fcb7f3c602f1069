//! A file, directory or other thing of the file system, as the rest of the kernel sees it.
//!
//! I1: attributes are the volume's, but for times and the size, which go to the disk with the data.
//! Access times go only when something else does.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use linux_raw_sys::{general as abi, ioctl as requests};
use volume::{AccessList, Attributes, Change};

use super::device::timestamp;
use super::dir::Dir;
use super::direct::Through;
use super::file::Contents;
use super::{errno, Fs, Volume};
use crate::cred::Cred;
use crate::devnum::device_number;
use crate::errno::*;
use crate::fs::access;
use crate::fs::acl::Acl;
use crate::fs::file::File;
use crate::fs::inode::*;
use crate::fs::lease::Opens;
use crate::fs::ops::*;
use crate::fs::pipe::Pipe;
use crate::sched::{self, Nanos};
use crate::sync::SpinLock;
use crate::uio::{Sink, Source};
use crate::upcalls;
use crate::user;
use crate::vm;

const SECOND: Nanos = 1_000_000_000;
/// The flags that `chattr` can change: those that are heeded, and hints.
const SETTABLE: u32 = volume::SYNC
    | volume::IMMUTABLE
    | volume::APPEND_ONLY
    | volume::NO_ATIME
    | abi::FS_NODUMP_FL
    | abi::FS_TOPDIR_FL;

pub(in crate::fs) struct Node {
    fs: Arc<Fs>,
    pub(super) ino: u32,
    kind: Kind,
    rdev: u64,
    /// What is made in this directory begins with this list.
    default_acl: Option<Acl>,
    attr: SpinLock<Attr>,
    pub(super) body: Body,
    /// Its place among those that have lost their last name; 0 while it has one.
    pub(super) unlinked: AtomicU64,
    opens: Opens,
    me: Weak<Node>,
}

struct Attr {
    perm: u32,
    nlink: u32,
    uid: u32,
    gid: u32,
    size: u64,
    sectors: u64,
    /// What `chattr` sets.
    flags: u32,
    acl: Option<Arc<Acl>>,
    atime: Nanos,
    mtime: Nanos,
    ctime: Nanos,
    /// The disk has other times.
    stale: bool,
}

pub(super) enum Body {
    Dir(Dir),
    File(Contents),
    Fifo(Arc<Pipe>),
    /// Symbolic links, devices, sockets.
    Other,
}

/// The access lists of a node that is brought in.
#[derive(Default)]
pub(super) struct Lists {
    own: Option<Acl>,
    default: Option<Acl>,
}

impl Lists {
    pub(super) fn read(volume: &mut Volume, found: &Attributes) -> Lists {
        let kind = Kind::from_mode(found.mode);
        let mut read = |which| match volume.access_list(found.ino, which) {
            Ok(None) => None,
            Ok(Some(bytes)) => Some(Acl::parse(&bytes)),
            Err(_) => Some(Acl::unreadable()),
        };
        match kind {
            Some(Kind::Symlink) | None => Lists::default(),
            Some(Kind::Dir) => {
                Lists { own: read(AccessList::Own), default: read(AccessList::Default) }
            }
            Some(_) => Lists { own: read(AccessList::Own), default: None },
        }
    }
}

impl Node {
    /// The permission bits of what is made in this directory.
    pub(super) fn perm_for(&self, kind: Kind, asked: Asked) -> u32 {
        if self.default_acl.is_some() && kind != Kind::Symlink {
            asked.perm
        } else {
            asked.masked()
        }
    }

    /// What is made in this directory with mode `perm` gets: its mode and its lists.
    pub(super) fn lists_for(&self, kind: Kind, perm: u32) -> (u32, [Option<Vec<u8>>; 2]) {
        let Some(default) = self.default_acl.as_ref().filter(|_| kind != Kind::Symlink) else {
            return (perm, [None, None]);
        };
        if !default.is_readable() {
            // Its owner alone.
            return (perm & !0o077, [None, None]);
        }
        let (perm, own) = default.inherited(perm);
        (perm, [own.map(|own| own.bytes()), (kind == Kind::Dir).then(|| default.bytes())])
    }

    pub(super) fn new(fs: &Arc<Fs>, found: &Attributes, lists: Lists) -> Result<Arc<Node>> {
        let kind = Kind::from_mode(found.mode).ok_or(EIO)?;
        let body = match kind {
            Kind::Dir => Body::Dir(Dir::new()),
            Kind::File => Body::File(Contents::new(fs, found)?),
            Kind::Fifo => Body::Fifo(Pipe::fifo(found.uid)?),
            _ => Body::Other,
        };
        let time = |time: volume::Timestamp| {
            // What was before 1970 is shown as of then.
            time.sec.max(0) as Nanos * SECOND + if time.sec < 0 { 0 } else { time.nsec.into() }
        };
        let attr = Attr {
            perm: found.mode & 0o7777,
            nlink: found.links,
            uid: found.uid,
            gid: found.gid,
            size: found.size,
            sectors: found.blocks,
            flags: found.flags,
            acl: lists.own.map(Arc::new),
            atime: time(found.atime),
            mtime: time(found.mtime),
            ctime: time(found.ctime),
            stale: false,
        };
        Ok(Arc::new_cyclic(|me| Node {
            fs: fs.clone(),
            ino: found.ino,
            kind,
            rdev: found.device.map_or(0, |(major, minor)| device_number(major, minor)),
            default_acl: lists.default,
            attr: SpinLock::new(attr),
            body,
            unlinked: AtomicU64::new(0),
            opens: Opens::default(),
            me: me.clone(),
        }))
    }

    pub(super) fn fs(&self) -> &Arc<Fs> {
        &self.fs
    }

    /// Itself. It is called through a reference, so it is alive.
    pub(super) fn this(&self) -> Result<Arc<Node>> {
        self.me.upgrade().ok_or(ENOENT)
    }

    pub(super) fn dir(&self) -> Result<&Dir> {
        match &self.body {
            Body::Dir(dir) => Ok(dir),
            _ => Err(ENOTDIR),
        }
    }

    pub(super) fn contents(&self) -> Result<&Contents> {
        match &self.body {
            Body::File(contents) => Ok(contents),
            Body::Dir(_) => Err(EISDIR),
            _ => Err(EINVAL),
        }
    }

    /// Whether the node has no name any more.
    pub(super) fn is_unlinked(&self) -> bool {
        self.attr.lock().nlink == 0
    }

    /// Forgets where its contents lie.
    pub(super) fn forget_runs(self: &Arc<Node>) {
        if let Body::File(contents) = &self.body {
            contents.backing.forget_runs();
        }
    }

    /// Whether the node may be unlinked or renamed: not what is swapped on.
    pub(super) fn may_lose_names(&self) -> Result<()> {
        match &self.body {
            Body::File(contents) if contents.is_swapped_on() => Err(EPERM),
            _ => Ok(()),
        }
    }

    /// Takes over what the volume says of links and room.
    pub(super) fn refresh(&self, volume: &mut Volume) {
        if let Ok(now) = volume.attributes(self.ino) {
            let mut attr = self.attr.lock();
            attr.nlink = now.links;
            attr.size = now.size;
            attr.sectors = now.blocks;
        }
        self.attr.lock().ctime = sched::wall();
    }

    pub(super) fn modified(&self) {
        let now = sched::wall();
        let mut attr = self.attr.lock();
        attr.mtime = now;
        attr.ctime = now;
        attr.stale = true;
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

    /// What `chattr` sets.
    fn flags(&self) -> u32 {
        self.attr.lock().flags
    }

    /// Changes what `chattr` sets.
    ///
    /// # Errors
    /// `EPERM`; `EOPNOTSUPP` for a flag without effect here; `EROFS`, `EIO`.
    fn set_flags(&self, flags: u32) -> Result<()> {
        let by = upcalls::cred();
        let mut volume = self.fs.volume_with_room()?;
        if self.fs.is_read_only() {
            return Err(EROFS);
        }
        let now = self.flags();
        access::may_change_flags(&by, &self.ownership(), Marks::of(flags))?;
        if (now ^ flags) & !SETTABLE != 0 {
            return Err(EOPNOTSUPP);
        }
        let change = Change { flags: Some(flags), ..Change::default() };
        let changed = volume.change(self.ino, &change).map_err(errno)?;
        self.fs.changed(&volume);
        let mut attr = self.attr.lock();
        attr.flags = changed.flags;
        attr.ctime = sched::wall();
        Ok(())
    }

    /// The contents were read.
    fn accessed(&self, file: &File) {
        let mut attr = self.attr.lock();
        if attr.flags & volume::NO_ATIME == 0 && !self.fs.is_read_only() {
            attr.atime = file.access_time(attr.atime, attr.mtime);
        }
    }

    /// Carries times to the volume that it doesn't have.
    pub(super) fn write_times(&self) -> Result<()> {
        let (atime, mtime) = {
            let mut attr = self.attr.lock();
            if !attr.stale || attr.nlink == 0 {
                return Ok(());
            }
            attr.stale = false;
            (attr.atime, attr.mtime)
        };
        let change = Change {
            atime: Some(timestamp(atime)),
            mtime: Some(timestamp(mtime)),
            ..Change::default()
        };
        let mut volume = self.fs.volume();
        volume.change(self.ino, &change).map_err(errno)?;
        self.fs.changed(&volume);
        Ok(())
    }
}

impl Inode for Node {
    fn opens(&self) -> Option<&Opens> {
        matches!(self.body, Body::File(_)).then_some(&self.opens)
    }

    fn stat(&self) -> Stat {
        let file = match &self.body {
            Body::File(contents) => {
                if contents.take_stores() {
                    self.modified();
                }
                Some((contents.size(), contents.sectors()))
            }
            _ => None,
        };
        let attr = self.attr.lock();
        let (size, blocks) = file.unwrap_or((attr.size, attr.sectors));
        Stat {
            dev: self.fs.dev,
            ino: u64::from(self.ino),
            kind: self.kind,
            perm: attr.perm,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev: self.rdev,
            size,
            blocks,
            atime: attr.atime,
            mtime: attr.mtime,
            ctime: attr.ctime,
            btime: None,
            flags: attr.flags,
        }
    }

    fn kind(&self) -> Kind {
        self.kind
    }

    fn ownership(&self) -> Ownership {
        let attr = self.attr.lock();
        Ownership {
            kind: self.kind,
            perm: attr.perm,
            uid: attr.uid,
            gid: attr.gid,
            marks: Marks::of(attr.flags),
            acl: attr.acl.clone(),
        }
    }

    fn set_attr(&self, change: Decide<'_>) -> Result<()> {
        let mut volume = self.fs.volume_with_room()?;
        let now = self.ownership();
        let change = change(&now)?;
        let owner = (change.uid.is_some() || change.gid.is_some())
            .then(|| (change.uid.unwrap_or(now.uid), change.gid.unwrap_or(now.gid)));
        let on_disk = Change {
            flags: None,
            perm: change.perm,
            owner,
            atime: change.atime.map(timestamp),
            mtime: change.mtime.map(timestamp),
        };
        let set_list = |volume: &mut Volume, acl: &Acl| {
            let outcome = volume.set_access_list(self.ino, AccessList::Own, &acl.bytes());
            self.fs.changed(volume);
            outcome.map_err(errno)
        };
        let listed = now.acl.as_ref().filter(|acl| acl.is_readable());
        let list = listed.zip(change.perm).map(|(acl, perm)| acl.with_mode(perm));
        if let Some(list) = &list {
            set_list(&mut volume, list)?;
        }
        let changed = volume.change(self.ino, &on_disk).map_err(errno);
        self.fs.changed(&volume);
        if let (Err(_), Some(_), Some(before)) = (&changed, &list, listed) {
            set_list(&mut volume, before)?;
        }
        changed?;
        let acl = list.map(Arc::new).or(now.acl);
        let mut attr = self.attr.lock();
        let old = core::mem::replace(&mut attr.acl, acl);
        attr.perm = change.perm.map_or(attr.perm, |perm| perm & 0o7777);
        (attr.uid, attr.gid) = owner.unwrap_or((attr.uid, attr.gid));
        attr.atime = change.atime.unwrap_or(attr.atime);
        attr.mtime = change.mtime.unwrap_or(attr.mtime);
        attr.ctime = sched::wall();
        drop(attr);
        drop(old);
        Ok(())
    }

    fn is_read_only(&self) -> bool {
        self.fs.is_read_only()
    }

    fn fs_stat(&self) -> FsStat {
        self.fs.stat()
    }

    fn lookup(&self, name: &[u8]) -> Result<InodeRef> {
        Ok(self.find(name)?)
    }

    fn create(&self, name: &[u8], new: NewNode<'_>, perm: Asked, by: &Cred) -> Result<InodeRef> {
        Ok(self.make(name, new, perm, by)?)
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
        self.fs.volume_with_room()?.read_link(self.ino).map_err(errno)
    }

    fn open(self: Arc<Self>, flags: u32) -> Result<FileRef> {
        match &self.body {
            Body::Fifo(pipe) => Pipe::open_fifo(pipe, flags),
            Body::Other if matches!(self.kind, Kind::Char | Kind::Block) => {
                upcalls::open_device(self.kind, self.rdev, flags)
            }
            Body::Other => Err(ENXIO),
            Body::File(contents) => {
                let writes = flags & abi::O_ACCMODE != abi::O_RDONLY || flags & abi::O_TRUNC != 0;
                if writes && (self.fs.is_read_only() || !contents.is_writable()) {
                    return Err(EROFS);
                }
                if flags & abi::O_ACCMODE != abi::O_RDONLY {
                    self.fs.writers.fetch_add(1, Ordering::AcqRel);
                }
                Ok(self)
            }
            Body::Dir(_) => Ok(self),
        }
    }

    fn truncate(&self, len: u64) -> Result<()> {
        let contents = self.contents()?;
        let node = self.ownership();
        access::may_change(&node).and(access::may_change_elsewhere(&node))?;
        self.strip()?;
        contents.truncate(len)?;
        self.modified();
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

    fn ioctl(&self, file: &File, request: u32, arg: u64) -> Result<u64> {
        match request {
            requests::FS_IOC_GETFLAGS => user::put(arg, &self.flags())?,
            requests::FS_IOC_SETFLAGS => {
                let flags = user::get(arg)?;
                file.place().may_change()?;
                self.set_flags(flags)?;
            }
            _ => return Err(ENOTTY),
        }
        Ok(0)
    }

    fn release(&self, file: &File) {
        if matches!(self.body, Body::File(_)) && file.is_writable() {
            self.fs.writers.fetch_sub(1, Ordering::AcqRel);
        }
        if self.is_unlinked() {
            self.fs.was_closed(self);
        }
    }

    fn read(&self, file: &File, at: u64, to: &mut Sink<'_>) -> Result<usize> {
        let contents = self.contents()?;
        let n = match Through::of(file) {
            Through::Cache => contents.read(at, to, file.usage())?,
            Through::Past => contents.read_past(at, to)?,
        };
        self.accessed(file);
        Ok(n)
    }

    fn write(&self, file: &File, at: Position, from: &mut Source<'_>) -> Result<(usize, u64)> {
        let contents = self.contents()?;
        access::may_change(&self.ownership())?;
        if from.left() > 0 {
            self.strip()?;
        }
        let written = contents.write(at, from, Through::of(file))?;
        self.modified();
        if file.flags() & abi::O_DSYNC != 0 || self.flags() & volume::SYNC != 0 {
            // With the errors of the pages' writes, which the node alone doesn't tell.
            file.sync()?;
        } else {
            contents.hold_back()?;
        }
        Ok(written)
    }

    fn truncate(&self, len: u64) -> Result<()> {
        Inode::truncate(self, len)
    }

    fn allocate(&self, how: Allocate, at: u64, len: u64) -> Result<()> {
        let contents = self.contents().map_err(|_| ENODEV)?;
        let node = self.ownership();
        access::may_change(&node)?;
        if how != Allocate::Extend && how != Allocate::KeepSize {
            access::may_change_elsewhere(&node)?;
        }
        self.strip()?;
        contents.allocate(how, at, len)?;
        self.modified();
        Ok(())
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

    fn mapped(&self, file: &File) {
        self.accessed(file);
    }
}

impl Stored for Node {
    fn swap_extents(&self) -> Result<Vec<Extent>> {
        self.contents()?.swap_extents()
    }

    fn swap_release(&self) {
        if let Ok(contents) = self.contents() {
            contents.swap_release();
        }
    }

    fn sync(&self) -> Result<()> {
        if self.fs.is_read_only() {
            return Ok(());
        }
        let written = self.write_back();
        let committed = self.fs.commit();
        written.and(committed)
    }

    fn sync_fs(&self) -> Result<()> {
        self.fs.flush();
        self.fs.commit()
    }

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
