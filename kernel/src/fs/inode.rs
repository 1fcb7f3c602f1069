//! What a file system is made of: nodes, which have names and attributes.
//!
//! Everything that a path can lead to is an [`Inode`]: directories and files, devices, pipes,
//! sockets, what `/proc` shows. The defaults are the errors that Linux gives for a node of the
//! wrong kind, so an implementation is only what it can do; what can be asked of an open file is in
//! `ops`. There is no name cache: directories find names themselves, and know their own parent and
//! name.
//!
//! Invariants: I1: `lookup` never sees `.` or `..` (the path walk does those). I2: a node's
//! device and inode number of `stat` are unique among live nodes and constant. I3: no method but
//! `cover` is called with a spin lock held.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

use linux_raw_sys::general as abi;

use super::access;
use super::acl::{Acl, Which};
use super::lease::Opens;
use super::ops::FileRef;
use super::path::Place;
use super::xattr::Attributes;
use crate::cred::Cred;
use crate::errno::*;
use crate::sched::Nanos;

pub type InodeRef = Arc<dyn Inode>;

/// What a node is: the type bits of its mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    File,
    Dir,
    Symlink,
    Char,
    Block,
    Fifo,
    Socket,
    /// Known by descriptors alone, and none of these: an epoll set, an event, a timer.
    Unnamed,
}

impl Kind {
    pub const fn mode_bits(self) -> u32 {
        match self {
            Kind::File => abi::S_IFREG,
            Kind::Dir => abi::S_IFDIR,
            Kind::Symlink => abi::S_IFLNK,
            Kind::Char => abi::S_IFCHR,
            Kind::Block => abi::S_IFBLK,
            Kind::Fifo => abi::S_IFIFO,
            Kind::Socket => abi::S_IFSOCK,
            Kind::Unnamed => 0,
        }
    }

    pub const fn from_mode(mode: u32) -> Option<Kind> {
        Some(match mode & abi::S_IFMT {
            abi::S_IFREG => Kind::File,
            abi::S_IFDIR => Kind::Dir,
            abi::S_IFLNK => Kind::Symlink,
            abi::S_IFCHR => Kind::Char,
            abi::S_IFBLK => Kind::Block,
            abi::S_IFIFO => Kind::Fifo,
            abi::S_IFSOCK => Kind::Socket,
            _ => return None,
        })
    }

    /// The type byte of a directory entry.
    pub const fn dirent_type(self) -> u8 {
        (self.mode_bits() >> 12) as u8
    }
}

/// All that `stat` tells. Times are nanoseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub struct Stat {
    pub dev: u64,
    pub ino: u64,
    pub kind: Kind,
    /// Permission bits with set-id and sticky bits.
    pub perm: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u64,
    pub size: u64,
    /// In units of 512 bytes.
    pub blocks: u64,
    pub atime: Nanos,
    pub mtime: Nanos,
    pub ctime: Nanos,
    /// When it was made, where the file system knows.
    pub btime: Option<Nanos>,
    /// What `chattr` sets, as far as the file system keeps it.
    pub flags: u32,
}

/// What can be done to a node only by processes that may take the mark away: `chattr`'s `i` and
/// `a`.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Marks {
    /// The node can't be changed, nor get a name or lose one.
    pub immutable: bool,
    /// A file can only be written to behind its end; a directory can only get names.
    pub append_only: bool,
}

impl Marks {
    /// What `chattr`'s flags mark.
    pub fn of(flags: u32) -> Marks {
        Marks {
            immutable: flags & abi::FS_IMMUTABLE_FL != 0,
            append_only: flags & abi::FS_APPEND_FL != 0,
        }
    }
}

impl Stat {
    /// A node without a history: times are those of boot.
    pub fn plain(dev: u64, ino: u64, kind: Kind, perm: u32) -> Stat {
        let time = super::boot_time();
        Stat {
            dev,
            ino,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: None,
            flags: 0,
        }
    }

    pub fn mode(&self) -> u32 {
        self.kind.mode_bits() | self.perm
    }

    pub fn ownership(&self) -> Ownership {
        Ownership {
            kind: self.kind,
            perm: self.perm,
            uid: self.uid,
            gid: self.gid,
            marks: Marks::default(),
            acl: None,
        }
    }
}

/// What rights are judged by.
#[derive(Clone)]
pub struct Ownership {
    pub kind: Kind,
    /// Permission bits with set-id and sticky bits.
    pub perm: u32,
    pub uid: u32,
    pub gid: u32,
    pub marks: Marks,
    pub acl: Option<Arc<Acl>>,
}

/// Changes to a node's attributes; `None` leaves one as it is.
#[derive(Clone, Copy, Default)]
pub struct SetAttr {
    pub perm: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub atime: Option<Nanos>,
    pub mtime: Option<Nanos>,
}

/// Judges by a node's owner, and says what changes.
pub type Decide<'a> = &'a dyn Fn(&Ownership) -> Result<SetAttr>;

/// The permission bits of a new node: those that are asked for, and those that the umask takes away
/// where the directory has no default list.
#[derive(Clone, Copy)]
pub struct Asked {
    pub perm: u32,
    pub umask: u32,
}

impl Asked {
    /// These, whatever the umask.
    pub const fn exactly(perm: u32) -> Asked {
        Asked { perm, umask: 0 }
    }

    pub fn masked(self) -> u32 {
        self.perm & !self.umask
    }
}

/// What a new node shall be.
pub enum NewNode<'a> {
    File,
    Dir,
    Symlink(&'a [u8]),
    /// A device, fifo or socket with its device number.
    Special(Kind, u64),
}

/// How a rename treats an existing target.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum RenameMode {
    Replace,
    NoReplace,
    Exchange,
}

/// Which kind of node `unlink` removes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unlink {
    File,
    Dir,
}

/// One entry as `getdents` shows it; `next` is the position after it.
pub struct DirEntry<'a> {
    pub ino: u64,
    pub next: u64,
    pub kind: Kind,
    pub name: &'a [u8],
}

/// Whether a directory listing goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    More,
    Stop,
}

/// What a file system says of itself.
#[derive(Clone, Copy)]
pub struct FsStat {
    pub magic: u64,
    /// In pages.
    pub blocks: u64,
    pub free: u64,
    /// What processes that may not use what is reserved can have of it.
    pub available: u64,
    pub files: u64,
    pub files_free: u64,
}

impl FsStat {
    /// A file system without storage.
    pub const fn empty(magic: u64) -> FsStat {
        FsStat { magic, blocks: 0, free: 0, available: 0, files: 0, files_free: 0 }
    }
}

/// A node. See the module's head for the rules.
pub trait Inode: Any + Send + Sync {
    fn stat(&self) -> Stat;

    fn kind(&self) -> Kind {
        self.stat().kind
    }

    fn ownership(&self) -> Ownership {
        self.stat().ownership()
    }

    /// Whether `by` may use the node in all the ways of `mask`.
    fn permits(&self, by: &Cred, mask: u32) -> Result<()> {
        access::check(by, &self.ownership(), mask)
    }

    /// Changes attributes as `change` says, which sees the node's owner with the node locked; it
    /// must not sleep.
    fn set_attr(&self, _change: Decide<'_>) -> Result<()> {
        Err(EPERM)
    }

    fn fs_stat(&self) -> FsStat {
        FsStat::empty(u64::from(match self.kind() {
            Kind::Unnamed => abi::ANON_INODE_FS_MAGIC,
            Kind::Socket => abi::SOCKFS_MAGIC,
            Kind::Fifo => abi::PIPEFS_MAGIC,
            _ => abi::TMPFS_MAGIC,
        }))
    }

    // Directories.

    fn lookup(&self, _name: &[u8]) -> Result<InodeRef> {
        Err(ENOTDIR)
    }

    /// Makes a node, which belongs to `by` from its first moment. Whether that is allowed is judged
    /// in the step that makes it; so it is with the other operations on names.
    fn create(
        &self,
        _name: &[u8],
        _new: NewNode<'_>,
        _perm: Asked,
        _by: &Cred,
    ) -> Result<InodeRef> {
        Err(if self.kind() == Kind::Dir { EPERM } else { ENOTDIR })
    }

    /// Gives `node` another name here.
    fn link(&self, _name: &[u8], _node: &InodeRef, _by: &Cred) -> Result<()> {
        Err(EPERM)
    }

    fn unlink(&self, _name: &[u8], _what: Unlink, _by: &Cred) -> Result<()> {
        Err(EPERM)
    }

    /// Moves `name` here to `to_name` in `to_dir`.
    fn rename(
        &self,
        _name: &[u8],
        _to_dir: &InodeRef,
        _to_name: &[u8],
        _mode: RenameMode,
        _by: &Cred,
    ) -> Result<()> {
        Err(EPERM)
    }

    /// Hands out the entries from position `from` on (0 and 1 are `.` and `..`).
    fn list(&self, _from: u64, _each: &mut dyn FnMut(DirEntry<'_>) -> Flow) -> Result<()> {
        Err(ENOTDIR)
    }

    /// The directory above and this one's name in it. `None`: root of its file system, or removed.
    fn parent(&self) -> Option<(InodeRef, Vec<u8>)> {
        None
    }

    /// Whether mounts cover this directory, in any place; `None` where nothing can be mounted. Also
    /// called with a spin lock held.
    fn cover(&self) -> Option<&Cover> {
        None
    }

    /// What `/proc/mounts` says of its file system, each option behind a comma.
    fn shown_options(&self) -> String {
        String::new()
    }

    /// Its extended attributes, where its file system keeps some.
    fn attributes(&self) -> Option<&Attributes> {
        None
    }

    /// Its access list, or of a directory the one that what is made there begins with.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: its file system shows none.
    fn access_list(&self, _which: Which) -> Result<Option<Arc<Acl>>> {
        Err(EOPNOTSUPP)
    }

    /// Gives it another, or takes it away.
    ///
    /// # Errors
    /// `EOPNOTSUPP`, `EPERM`, `ENOSPC`; nothing has changed.
    fn set_access_list(&self, _which: Which, _list: Option<Acl>, _by: &Cred) -> Result<()> {
        Err(EOPNOTSUPP)
    }

    /// How it is open, for a node that can have leases.
    fn opens(&self) -> Option<&Opens> {
        None
    }

    /// Whether names here, and what they lead to, are found without waiting for a disk or another
    /// program.
    fn is_in_memory(&self) -> bool {
        false
    }

    /// Whether its file system is mounted for reading only.
    fn is_read_only(&self) -> bool {
        false
    }

    // Symbolic links.

    fn read_link(&self) -> Result<Vec<u8>> {
        Err(EINVAL)
    }

    /// For the links of `/proc` that lead to a node and not to a path.
    fn jump(&self) -> Option<Result<Place>> {
        None
    }

    /// Opens the node: what is returned serves the transfers, which may be the node itself.
    fn open(self: Arc<Self>, flags: u32) -> Result<FileRef>;

    fn truncate(&self, _len: u64) -> Result<()> {
        Err(if self.kind() == Kind::Dir { EISDIR } else { EINVAL })
    }
}

/// Whether mounts cover a directory, which keeps this. A directory isn't removed while it is
/// covered, and not covered when it was removed.
pub struct Cover(AtomicU8);

impl Cover {
    const FREE: u8 = 0;
    const COVERED: u8 = 1;
    const REMOVED: u8 = 2;

    pub const fn new() -> Cover {
        Cover(AtomicU8::new(Cover::FREE))
    }

    pub fn is_covered(&self) -> bool {
        self.0.load(Relaxed) == Cover::COVERED
    }

    /// # Errors
    /// `ENOENT`: the directory was removed.
    pub(super) fn cover(&self) -> Result<()> {
        let cover = |now| (now != Cover::REMOVED).then_some(Cover::COVERED);
        self.0.fetch_update(Relaxed, Relaxed, cover).map(|_| ()).map_err(|_| ENOENT)
    }

    /// The directory is about to be removed.
    ///
    /// # Errors
    /// `EBUSY`: it is covered.
    pub fn remove(&self) -> Result<()> {
        let remove = |now| (now != Cover::COVERED).then_some(Cover::REMOVED);
        self.0.fetch_update(Relaxed, Relaxed, remove).map(|_| ()).map_err(|_| EBUSY)
    }

    /// No mount covers it any more, or it wasn't removed after all.
    pub fn clear(&self) {
        self.0.store(Cover::FREE, Relaxed);
    }
}

/// Whether two references are to one node.
pub fn same(a: &InodeRef, b: &InodeRef) -> bool {
    core::ptr::addr_eq(Arc::as_ptr(a), Arc::as_ptr(b))
}

/// A node of another name's directory as its concrete type, if it is of the same file system.
///
/// # Errors
/// `EXDEV`.
pub(super) fn local<T: Inode>(node: &InodeRef, is_here: impl FnOnce(&T) -> bool) -> Result<&T> {
    downcast(node).filter(|&node| is_here(node)).ok_or(EXDEV)
}

/// The node as its concrete type.
pub fn downcast<T: Inode>(node: &InodeRef) -> Option<&T> {
    (&**node as &dyn Any).downcast_ref::<T>()
}
