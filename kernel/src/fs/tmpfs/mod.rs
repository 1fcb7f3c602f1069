//! The in-memory file system: the root that the initramfs is unpacked into, `/dev`, `/tmp`, and
//! memfds.
//!
//! ```text
//!   TmpFs (device number, tree lock)
//!     ^
//!   TmpNode --- attributes (owner, permissions, links, times)
//!     |-- Dir: names -> nodes          (dir.rs)
//!     |-- File: one vm::Object         (data.rs)   mapped and read/written views are the same pages
//!     |-- Symlink, Special, Fifo
//! ```
//!
//! Invariants: I1: directories change only with the file system's `tree` lock held, so an operation
//! on two directories sees both still; lookups take just one directory's spin lock. I2: `nlink`
//! counts the names of a node (for a directory: 2 + its subdirectories); at 0 the node lives on
//! until its last user goes. I3: nodes are never dropped under a spin lock: their memory is given
//! back to the VM system then. I4: what a file system holds is bounded (limits.rs), but for that of
//! memfds, which no path leads to.
//!
//! Locks: `tree` -> one directory's `entries` -> a node's `attr`.

mod data;
mod dir;
mod limits;

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use linux_raw_sys::{general as abi, ioctl as requests};

use super::access;
use super::acl::{Acl, Which};
use super::file::File;
use super::inode::*;
use crate::charge::{self, Charge};
use crate::cred::Cred;
use crate::errno::*;
use crate::fs::lease::Opens;
use crate::fs::ops::*;
use crate::fs::pipe::Pipe;
use crate::fs::xattr::Attributes;
use crate::sched::{self, Nanos};
use crate::sync::{Mutex, SpinLock};
use crate::uio::{Sink, Source};
use crate::vm::{self, Asks};
use crate::{upcalls, user};
use data::Data;
use dir::Dir;
use limits::Limits;
pub use limits::Options;

/// One file system.
pub struct TmpFs {
    dev: u64,
    next_ino: AtomicU64,
    limits: Limits,
    tree: Mutex<()>,
}

/// What a node costs: with what its file's memory is known by, or the heads of a folder.
const NODE: usize = size_of::<TmpNode>() + 512;

/// Charges a user for a node with so many bytes behind it, in which it outlives the process that
/// makes it.
fn node_charge(uid: u32, bytes: usize) -> Result<Charge> {
    Charge::lasting(uid, NODE + bytes).map_err(|_| ENOSPC)
}

/// A file, directory or other node.
pub struct TmpNode {
    fs: Arc<TmpFs>,
    ino: u64,
    kind: Kind,
    attr: SpinLock<Attr>,
    body: Body,
    opens: Opens,
    attributes: Attributes,
    me: Weak<TmpNode>,
    _charge: Charge,
}

struct Attr {
    perm: u32,
    nlink: u32,
    uid: u32,
    gid: u32,
    atime: Nanos,
    mtime: Nanos,
    ctime: Nanos,
    btime: Nanos,
    /// What `chattr` sets.
    flags: u32,
    acl: Option<Arc<Acl>>,
    /// Of a directory: the list that what is made there begins with.
    default_acl: Option<Arc<Acl>>,
    /// The file has no name yet, and may get one.
    linkable: bool,
}

impl Attr {
    fn ownership(&self, kind: Kind) -> Ownership {
        let marks = Marks::of(self.flags);
        let acl = self.acl.clone();
        Ownership { kind, perm: self.perm, uid: self.uid, gid: self.gid, marks, acl }
    }
}

enum Body {
    Dir(Dir),
    File(Data),
    Symlink(Box<[u8]>),
    /// A device or socket by its number.
    Special(u64),
    Fifo(Arc<Pipe>),
}

impl TmpFs {
    /// A new file system with the usual limits, whose files count in the first one's too; returns
    /// its root directory.
    ///
    /// # Errors
    /// `ENOSPC`: the user has all that it may.
    pub fn create(first: &InodeRef, perm: u32) -> Result<Arc<TmpNode>> {
        let options = Options { perm: Some(perm), ..Options::default() };
        let limits = match downcast::<TmpNode>(first) {
            Some(first) => Limits::within(&first.fs.limits, &options),
            None => Limits::new(&options),
        };
        TmpFs::with_limits(limits, &options)
    }

    /// A new file system as the options of a mount ask for; returns its root directory.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn mount(options: &Options) -> Result<Arc<TmpNode>> {
        TmpFs::with_limits(Limits::new(options), options)
    }

    fn with_limits(limits: Limits, options: &Options) -> Result<Arc<TmpNode>> {
        let fs = Arc::new(TmpFs {
            dev: super::new_device(),
            next_ino: AtomicU64::new(1),
            limits,
            tree: Mutex::new(()),
        });
        let perm = options.perm.unwrap_or(0o1777);
        let charge = node_charge(Cred::kernel().uid, 0)?;
        let root = TmpNode::new(&fs, Kind::Dir, Body::Dir(Dir::new(None, &[])), perm, charge)?;
        let mut attr = root.attr.lock();
        (attr.uid, attr.gid) = (options.uid.unwrap_or(0), options.gid.unwrap_or(0));
        drop(attr);
        Ok(root)
    }
}

/// Changes the limits of the file system with this root; `false` if it isn't one of these.
///
/// # Errors
/// `EINVAL` for a bad option, or where there is more already than it would allow.
pub fn remount(root: &InodeRef, options: &[u8]) -> Result<bool> {
    let Some(node) = downcast::<TmpNode>(root) else { return Ok(false) };
    node.fs.limits.change(&Options::parse(options)?)?;
    Ok(true)
}

impl TmpNode {
    /// The file system has what it begins with: what comes from now on is limited.
    pub fn limit(&self) {
        self.fs.limits.begin();
    }

    fn new(
        fs: &Arc<TmpFs>,
        kind: Kind,
        body: Body,
        perm: u32,
        charge: Charge,
    ) -> Result<Arc<TmpNode>> {
        let now = sched::wall();
        fs.limits.add_node()?;
        let nlink = if kind == Kind::Dir { 2 } else { 1 };
        let attr = Attr {
            perm: perm & 0o7777,
            nlink,
            uid: 0,
            gid: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            flags: 0,
            acl: None,
            default_acl: None,
            linkable: false,
        };
        Ok(Arc::new_cyclic(|me| TmpNode {
            ino: fs.next_ino.fetch_add(1, Ordering::Relaxed),
            fs: fs.clone(),
            kind,
            attr: SpinLock::new(attr),
            body,
            opens: Opens::default(),
            attributes: Attributes::default(),
            me: me.clone(),
            _charge: charge,
        }))
    }

    /// Sets owner, mode and lists of a node that is in no directory yet, and is made in `dir`.
    ///
    /// # Errors
    /// `ENOSPC`: the user has all that it may.
    fn belong(&self, dir: &TmpNode, asked: Asked, by: &Cred) -> Result<()> {
        let above = dir.ownership();
        let default = dir.attr.lock().default_acl.clone().filter(|_| self.kind != Kind::Symlink);
        let perm = if default.is_some() { asked.perm } else { asked.masked() };
        let mut born = access::reserved(by, &above, self.kind, perm);
        if let Some(default) = &default {
            let (perm, list) = default.inherited(born.perm);
            born.perm = perm;
            born.acl = list.map(|list| list.charged(by.uid)).transpose()?.map(Arc::new);
        }
        let mut attr = self.attr.lock();
        (attr.perm, attr.uid, attr.gid) = (born.perm, born.uid, born.gid);
        attr.acl = born.acl;
        attr.default_acl = default.filter(|_| self.kind == Kind::Dir);
        Ok(())
    }

    /// A file of `by` that no directory holds, for `memfd_create`.
    pub fn unnamed(perm: u32, seals: u32, by: &Cred) -> Result<Arc<TmpNode>> {
        static UNNAMED: spin::Once<Arc<TmpFs>> = spin::Once::new();
        let fs = UNNAMED
            .try_call_once(|| TmpFs::mount(&Options::UNLIMITED).map(|root| root.fs.clone()))?;
        let account = charge::account();
        let charge = Charge::to(account.clone(), NODE).map_err(|_| ENFILE)?;
        let data = Data::new(seals, Some(account.memory()))?;
        let node = TmpNode::new(fs, Kind::File, Body::File(data), perm, charge)?;
        let mut attr = node.attr.lock();
        (attr.nlink, attr.uid, attr.gid) = (0, by.fsuid, by.fsgid);
        drop(attr);
        Ok(node)
    }

    /// `O_TMPFILE`: a file without a name on the file system of this directory; `linkable` if it
    /// may get one.
    pub fn unnamed_here(&self, perm: Asked, linkable: bool, by: &Cred) -> Result<Arc<TmpNode>> {
        access::may_create(by, &self.ownership())?;
        let data = self.new_data()?;
        let charge = node_charge(by.uid, 0)?;
        let node = TmpNode::new(&self.fs, Kind::File, Body::File(data), perm.masked(), charge)?;
        node.belong(self, perm, by)?;
        let mut attr = node.attr.lock();
        (attr.nlink, attr.linkable) = (0, linkable);
        drop(attr);
        Ok(node)
    }

    /// The contents of a new file.
    fn new_data(&self) -> Result<Data> {
        Data::new(abi::F_SEAL_SEAL, Some(self.fs.limits.quota()))
    }

    fn dir(&self) -> Result<&Dir> {
        match &self.body {
            Body::Dir(dir) => Ok(dir),
            _ => Err(ENOTDIR),
        }
    }

    fn data(&self) -> Result<&Data> {
        match &self.body {
            Body::File(data) => Ok(data),
            Body::Dir(_) => Err(EISDIR),
            _ => Err(EINVAL),
        }
    }

    /// Before a change of the contents: takes set-id bits away.
    fn strip(&self) {
        let mut attr = self.attr.lock();
        if let Some(perm) = access::mode_after_write(&attr.ownership(self.kind)) {
            attr.perm = perm;
        }
    }

    /// The contents changed.
    fn modified(&self) {
        let now = sched::wall();
        let mut attr = self.attr.lock();
        attr.mtime = now;
        attr.ctime = now;
    }

    /// The number of names changed by `by`.
    fn count_links(&self, by: i32) {
        let now = sched::wall();
        let mut attr = self.attr.lock();
        attr.nlink = attr.nlink.saturating_add_signed(by);
        attr.ctime = now;
    }

    /// The contents were read.
    fn accessed(&self, file: &File) {
        let mut attr = self.attr.lock();
        attr.atime = file.access_time(attr.atime, attr.mtime);
    }

    /// Changes what `chattr` sets.
    ///
    /// # Errors
    /// `EPERM`; `EOPNOTSUPP` for a flag without effect here.
    fn set_flags(&self, flags: u32) -> Result<()> {
        const SETTABLE: u32 = abi::FS_IMMUTABLE_FL | abi::FS_APPEND_FL | abi::FS_NODUMP_FL;
        if flags & !SETTABLE != 0 {
            return Err(EOPNOTSUPP);
        }
        let by = upcalls::cred();
        let _tree = (self.kind == Kind::Dir).then(|| self.fs.tree.lock());
        let mut attr = self.attr.lock();
        access::may_change_flags(&by, &attr.ownership(self.kind), Marks::of(flags))?;
        attr.flags = flags;
        attr.ctime = sched::wall();
        Ok(())
    }

    /// Appends whole contents at unpacking time.
    pub fn fill(&self, bytes: &[u8]) -> Result<()> {
        self.data()?.fill(bytes)
    }
}

impl Drop for TmpNode {
    fn drop(&mut self) {
        if let Body::Dir(dir) = &self.body {
            dir.empty();
        }
        self.fs.limits.remove_node();
    }
}

impl Inode for TmpNode {
    fn attributes(&self) -> Option<&Attributes> {
        Some(&self.attributes)
    }

    fn is_in_memory(&self) -> bool {
        true
    }

    fn opens(&self) -> Option<&Opens> {
        matches!(self.body, Body::File(_)).then_some(&self.opens)
    }

    fn stat(&self) -> Stat {
        let (size, blocks, rdev) = match &self.body {
            Body::Dir(dir) => (dir.len() as u64 * 20 + 40, 0, 0),
            Body::File(data) => (data.size(), data.resident_pages() * 8, 0),
            Body::Symlink(target) => (target.len() as u64, 0, 0),
            Body::Special(rdev) => (0, 0, *rdev),
            Body::Fifo(_) => (0, 0, 0),
        };
        let attr = self.attr.lock();
        Stat {
            dev: self.fs.dev,
            ino: self.ino,
            kind: self.kind,
            perm: attr.perm,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev,
            size,
            blocks,
            atime: attr.atime,
            mtime: attr.mtime,
            ctime: attr.ctime,
            btime: Some(attr.btime),
            flags: attr.flags,
        }
    }

    fn kind(&self) -> Kind {
        self.kind
    }

    fn ownership(&self) -> Ownership {
        self.attr.lock().ownership(self.kind)
    }

    fn set_attr(&self, change: Decide<'_>) -> Result<()> {
        let now = sched::wall();
        // What may be done to names in a folder doesn't change while it is done (I1).
        let _tree = (self.kind == Kind::Dir).then(|| self.fs.tree.lock());
        let mut attr = self.attr.lock();
        let change = change(&attr.ownership(self.kind))?;
        if let (Some(perm), Body::File(data)) = (change.perm, &self.body) {
            // With the node locked, under which it is sealed too.
            if data.seals() & abi::F_SEAL_EXEC != 0 && (perm ^ attr.perm) & 0o111 != 0 {
                return Err(EPERM);
            }
        }
        let mut old = None;
        if let (Some(perm), Some(list)) = (change.perm, &attr.acl) {
            let list = list.with_mode(perm).charged(list.uid().unwrap_or(attr.uid))?;
            old = attr.acl.replace(Arc::new(list));
        }
        attr.perm = change.perm.map_or(attr.perm, |perm| perm & 0o7777);
        attr.uid = change.uid.unwrap_or(attr.uid);
        attr.gid = change.gid.unwrap_or(attr.gid);
        attr.atime = change.atime.unwrap_or(attr.atime);
        attr.mtime = change.mtime.unwrap_or(attr.mtime);
        attr.ctime = now;
        drop(attr);
        drop(old);
        Ok(())
    }

    fn access_list(&self, which: Which) -> Result<Option<Arc<Acl>>> {
        if self.kind == Kind::Symlink {
            return Err(EOPNOTSUPP);
        }
        let attr = self.attr.lock();
        Ok(match which {
            Which::Access => attr.acl.clone(),
            Which::Default => attr.default_acl.clone(),
        })
    }

    fn set_access_list(&self, which: Which, list: Option<Acl>, by: &Cred) -> Result<()> {
        let list = list.map(|list| list.charged(by.uid)).transpose()?;
        let now = sched::wall();
        // As for `set_attr`.
        let _tree = (self.kind == Kind::Dir).then(|| self.fs.tree.lock());
        let mut attr = self.attr.lock();
        let own = attr.ownership(self.kind);
        let old = match which {
            Which::Access => {
                attr.perm = access::change_list(by, &own, list.as_ref())?;
                let list = list.filter(|list| !list.is_mode_alone()).map(Arc::new);
                core::mem::replace(&mut attr.acl, list)
            }
            Which::Default => {
                access::may_own(by, &own)?;
                core::mem::replace(&mut attr.default_acl, list.map(Arc::new))
            }
        };
        attr.ctime = now;
        drop(attr);
        drop((old, own));
        Ok(())
    }

    fn fs_stat(&self) -> FsStat {
        let limits = &self.fs.limits;
        let (blocks, free) = match limits.most_pages() {
            Some(most) => (most, limits.free_pages()),
            None => super::memory_pages(),
        };
        let (files, files_free) = limits.nodes();
        FsStat {
            magic: u64::from(abi::TMPFS_MAGIC),
            blocks,
            free,
            available: free,
            files: files.saturating_add(files_free),
            files_free,
        }
    }

    fn shown_options(&self) -> String {
        self.fs.limits.show()
    }

    fn lookup(&self, name: &[u8]) -> Result<InodeRef> {
        self.dir()?.lookup(name)
    }

    fn create(&self, name: &[u8], new: NewNode<'_>, perm: Asked, by: &Cred) -> Result<InodeRef> {
        vm::leave_memory(Asks::Process).map_err(|_| ENOSPC)?;
        let long = if let NewNode::Symlink(target) = &new { target.len() } else { 0 };
        let charge = node_charge(by.uid, long)?;
        let (kind, body) = match new {
            NewNode::File => (Kind::File, Body::File(self.new_data()?)),
            NewNode::Dir => (Kind::Dir, Body::Dir(Dir::new(Some(self.me.clone()), name))),
            NewNode::Symlink(target) => (Kind::Symlink, Body::Symlink(target.into())),
            NewNode::Special(Kind::Fifo, _) => (Kind::Fifo, Body::Fifo(Pipe::fifo(by.uid)?)),
            NewNode::Special(kind, rdev) => (kind, Body::Special(rdev)),
        };
        let node = TmpNode::new(&self.fs, kind, body, perm.masked(), charge)?;
        self.add_entry(name, node.clone(), by.uid, |dir, node| {
            access::may_create(by, &dir.ownership())?;
            node.belong(dir, perm, by)
        })?;
        Ok(node)
    }

    fn link(&self, name: &[u8], node: &InodeRef, by: &Cred) -> Result<()> {
        self.link_entry(name, node, by)
    }

    fn unlink(&self, name: &[u8], what: Unlink, by: &Cred) -> Result<()> {
        self.remove_entry(name, what, by)
    }

    fn rename(
        &self,
        name: &[u8],
        to_dir: &InodeRef,
        to_name: &[u8],
        mode: RenameMode,
        by: &Cred,
    ) -> Result<()> {
        self.rename_entry(name, to_dir, to_name, mode, by)
    }

    fn list(&self, from: u64, each: &mut dyn FnMut(DirEntry<'_>) -> Flow) -> Result<()> {
        self.list_entries(from, each)
    }

    fn parent(&self) -> Option<(InodeRef, Vec<u8>)> {
        self.dir().ok()?.parent()
    }

    fn cover(&self) -> Option<&Cover> {
        self.dir().ok().map(|dir| dir.cover())
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        match &self.body {
            Body::Symlink(target) => Ok(target.to_vec()),
            _ => Err(EINVAL),
        }
    }

    fn open(self: Arc<Self>, flags: u32) -> Result<FileRef> {
        match &self.body {
            Body::Fifo(pipe) => Pipe::open_fifo(pipe, flags),
            Body::Special(number) => upcalls::open_device(self.kind, *number, flags),
            _ => Ok(self),
        }
    }

    fn truncate(&self, len: u64) -> Result<()> {
        let data = self.data()?;
        access::may_change_elsewhere(&self.ownership())?;
        self.strip();
        data.truncate(len)?;
        self.modified();
        Ok(())
    }
}

impl FileOps for TmpNode {
    fn size(&self) -> u64 {
        self.stat().size
    }

    fn seekable(&self) -> bool {
        self.kind == Kind::File
    }

    fn ioctl(&self, file: &File, request: u32, arg: u64) -> Result<u64> {
        match request {
            requests::FS_IOC_GETFLAGS => user::put(arg, &self.attr.lock().flags.clone())?,
            requests::FS_IOC_SETFLAGS => {
                let flags = user::get(arg)?;
                file.place().may_change()?;
                self.set_flags(flags)?;
            }
            _ => return Err(ENOTTY),
        }
        Ok(0)
    }

    fn read(&self, file: &File, at: u64, to: &mut Sink<'_>) -> Result<usize> {
        let n = self.data()?.read(at, to)?;
        self.accessed(file);
        Ok(n)
    }

    fn write(&self, _file: &File, at: Position, from: &mut Source<'_>) -> Result<(usize, u64)> {
        let data = self.data()?;
        if from.left() > 0 {
            self.strip();
        }
        let written = data.write(at, from)?;
        if written.0 > 0 {
            self.modified();
        }
        Ok(written)
    }

    fn truncate(&self, len: u64) -> Result<()> {
        Inode::truncate(self, len)
    }

    fn allocate(&self, how: Allocate, at: u64, len: u64) -> Result<()> {
        let data = self.data().map_err(|_| ENODEV)?;
        match how {
            Allocate::Extend | Allocate::KeepSize => access::may_change(&self.ownership())?,
            _ => access::may_change_elsewhere(&self.ownership())?,
        }
        self.strip();
        data.allocate(how, at, len)?;
        self.modified();
        Ok(())
    }

    fn seek_data(&self, from: u64, what: Seek) -> Result<u64> {
        self.data()?.seek(from, what)
    }

    fn mappable(&self) -> Option<&dyn Mappable> {
        Some(self)
    }
}

impl Mappable for TmpNode {
    fn object(&self) -> Option<vm::Object> {
        self.data().ok().map(|data| data.object().clone())
    }

    fn mapped(&self, file: &File) {
        self.accessed(file);
    }

    fn seals(&self) -> Result<u32> {
        Ok(self.data()?.seals())
    }

    fn add_seals(&self, seals: u32) -> Result<()> {
        self.data()?.add_seals(seals, |sealed| {
            // The mode is looked at and sealed in one step.
            let attr = self.attr.lock();
            sealed.fetch_or(abi::F_SEAL_EXEC, Ordering::Relaxed);
            attr.perm
        })
    }
}
