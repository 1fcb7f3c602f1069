//! Names and attributes: the part of the crate's interface that is used as it is.

use alloc::vec::Vec;

use rsext4::{
    DeviceNumber, DirectoryEntryType, FileName, FilePermissions, InodeFlags, InodeInfo,
    InodeMetadataUpdate, InodeNumber, MutationContext, RenameOptions, SpecialInodeKind,
    XattrNamespace, XattrSetMode,
};

use crate::index::{is_dots, Known};
use crate::{kind, number, Cursor, Device, ErrorKind, Result, Timestamp, Volume};

/// Blocks that a directory without an index on the disk may have and be walked at each look-up.
const FEW_BLOCKS: u64 = 4;
/// Names that a look-up learns of a larger one.
const LEARNED: usize = 256;

/// Flags of an inode, as `chattr` sets them: each write waits for the disk.
pub const SYNC: u32 = InodeFlags::SYNC.bits();
/// It can't be changed, nor get a name or lose one.
pub const IMMUTABLE: u32 = InodeFlags::IMMUTABLE.bits();
/// It can only be written to behind its end; a directory can only get names.
pub const APPEND_ONLY: u32 = InodeFlags::APPEND.bits();
/// Reads leave its access time.
pub const NO_ATIME: u32 = InodeFlags::NO_ATIME.bits();

/// What an inode says of itself.
///
/// ```
/// # volume::example::run(|volume| {
/// # use volume::New;
/// # let root = volume.root();
/// # let file = volume.create(root, b"data", New::File, 0o644, (0, 0))?.ino;
/// let file = volume.attributes(file)?;
/// assert_eq!((file.mode, file.links, file.size), (0o100_644, 1, 0));
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Attributes {
    pub ino: u32,
    /// Type and permissions, as `stat` has them.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub links: u32,
    pub size: u64,
    /// In units of 512 bytes.
    pub blocks: u64,
    /// Seconds since 1970.
    pub atime: u32,
    pub mtime: u32,
    pub ctime: u32,
    /// Major and minor number of a device.
    pub device: Option<(u32, u32)>,
    /// Its blocks are found by extents, which is what can be written here.
    pub has_extents: bool,
    /// [`IMMUTABLE`] and the others, as `chattr` sees them.
    pub flags: u32,
}

impl From<InodeInfo> for Attributes {
    fn from(info: InodeInfo) -> Self {
        Attributes {
            ino: info.number.raw(),
            mode: u32::from(info.mode),
            uid: info.uid,
            gid: info.gid,
            links: u32::from(info.links),
            size: info.size,
            blocks: info.blocks,
            atime: info.atime,
            mtime: info.mtime,
            ctime: info.ctime,
            device: info.device_number.map(|number| (number.major(), number.minor())),
            has_extents: info.flags.contains(InodeFlags::EXTENTS),
            flags: info.flags.bits(),
        }
    }
}

/// Which of an inode's lists says what each user may do.
///
/// ```
/// # volume::example::run(|volume| {
/// # use volume::AccessList;
/// let root = volume.root();
/// assert_eq!(volume.access_list(root, AccessList::Own)?, None);
/// assert_eq!(volume.access_list(root, AccessList::Default)?, None);
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessList {
    /// Its own.
    Own,
    /// That of what is made in a directory.
    Default,
}

impl AccessList {
    fn namespace(self) -> XattrNamespace {
        match self {
            AccessList::Own => XattrNamespace::PosixAclAccess,
            AccessList::Default => XattrNamespace::PosixAclDefault,
        }
    }
}

/// What to make.
///
/// ```
/// # volume::example::run(|volume| {
/// # use volume::New;
/// let root = volume.root();
/// let pipe = volume.create(root, b"pipe", New::Fifo, 0o600, (1, 1))?;
/// let zero = volume.create(root, b"zero", New::CharDevice(1, 5), 0o666, (0, 0))?;
/// assert_eq!((pipe.uid, zero.device), (1, Some((1, 5))));
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, Debug)]
pub enum New<'a> {
    File,
    Dir,
    Symlink(&'a [u8]),
    Fifo,
    Socket,
    CharDevice(u32, u32),
    BlockDevice(u32, u32),
}

/// What to change; `None` leaves it.
///
/// ```
/// # volume::example::run(|volume| {
/// # use volume::{Change, New};
/// # let root = volume.root();
/// # let file = volume.create(root, b"data", New::File, 0o644, (0, 0))?.ino;
/// let change = Change { owner: Some((7, 8)), ..Change::default() };
/// let file = volume.change(file, &change)?;
/// assert_eq!((file.uid, file.gid, file.mode), (7, 8, 0o100_644));
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, Default, Debug)]
pub struct Change {
    pub perm: Option<u32>,
    pub owner: Option<(u32, u32)>,
    pub atime: Option<Timestamp>,
    pub mtime: Option<Timestamp>,
    /// All that `chattr` can set.
    pub flags: Option<u32>,
}

/// How a rename treats what has the name already.
///
/// ```
/// # volume::example::run(|volume| {
/// # use volume::{ErrorKind, New, Rename};
/// let root = volume.root();
/// for name in [b"one", b"two"] {
///     volume.create(root, name, New::File, 0o644, (0, 0))?;
/// }
/// let refused = volume.rename(root, b"one", root, b"two", Rename::NoReplace);
/// assert_eq!(refused, Err(ErrorKind::AlreadyExists));
/// volume.rename(root, b"one", root, b"two", Rename::Exchange)?;
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rename {
    Replace,
    NoReplace,
    Exchange,
}

/// One name of a directory; `next` is where the listing goes on behind it.
///
/// ```
/// # volume::example::run(|volume| {
/// let names = volume.list(volume.root(), volume::Cursor::Start, 2)?;
/// assert_eq!((&names[0].name[..], &names[1].name[..]), (&b"."[..], &b".."[..]));
/// # Ok(()) });
/// ```
#[derive(Clone, Debug)]
pub struct Entry {
    pub ino: u32,
    /// The type bits of its mode; 0 if the directory doesn't say.
    pub file_type: u32,
    pub name: Vec<u8>,
    pub next: Cursor,
}

fn name(bytes: &[u8]) -> Result<FileName<'_>> {
    FileName::new(bytes).map_err(kind)
}

fn permissions(perm: u32) -> Result<FilePermissions> {
    FilePermissions::new((perm & 0o7777) as u16).map_err(kind)
}

const fn type_bits(file_type: DirectoryEntryType) -> u32 {
    match file_type {
        DirectoryEntryType::Unknown => 0,
        DirectoryEntryType::RegularFile => 0o100000,
        DirectoryEntryType::Directory => 0o040000,
        DirectoryEntryType::CharacterDevice => 0o020000,
        DirectoryEntryType::BlockDevice => 0o060000,
        DirectoryEntryType::Fifo => 0o010000,
        DirectoryEntryType::Socket => 0o140000,
        DirectoryEntryType::Symlink => 0o120000,
    }
}

impl<D: Device> Volume<D> {
    /// # Errors
    /// [`ErrorKind::NotFound`]: no such inode; I/O and damage.
    ///
    /// ```
    /// # volume::example::run(|volume| {
    /// let root = volume.attributes(volume.root())?;
    /// assert_eq!((root.uid, root.device), (0, None));
    /// # Ok(()) });
    /// ```
    pub fn attributes(&mut self, ino: u32) -> Result<Attributes> {
        Ok(self.fs.inode(number(ino)?).map_err(kind)?.into())
    }

    /// # Errors
    /// I/O and damage; [`ErrorKind::ReadOnly`].
    ///
    /// ```
    /// # volume::example::run(|volume| {
    /// # use volume::{Change, New};
    /// # let root = volume.root();
    /// # let file = volume.create(root, b"data", New::File, 0o644, (0, 0))?.ino;
    /// let change = Change { perm: Some(0o600), ..Change::default() };
    /// assert_eq!(volume.change(file, &change)?.mode, 0o100_600);
    /// # Ok(()) });
    /// ```
    pub fn change(&mut self, ino: u32, change: &Change) -> Result<Attributes> {
        self.begin_change()?;
        let update = InodeMetadataUpdate {
            permissions: change.perm.map(permissions).transpose()?,
            owner: change.owner,
            atime: change.atime,
            mtime: change.mtime,
            flags: change.flags.map(InodeFlags::from_bits_retain),
            ..InodeMetadataUpdate::default()
        };
        let ino = number(ino)?;
        Ok(self.attempt(|fs| fs.update_inode_metadata(ino, update))?.into())
    }

    /// An inode's access list, as it is on the disk, if it has one.
    ///
    /// # Errors
    /// I/O and damage.
    ///
    /// ```
    /// # volume::example::run(|volume| {
    /// # use volume::{AccessList, New};
    /// # let root = volume.root();
    /// # let file = volume.create(root, b"data", New::File, 0o644, (0, 0))?.ino;
    /// assert_eq!(volume.access_list(file, AccessList::Own)?, None);
    /// # Ok(()) });
    /// ```
    pub fn access_list(&mut self, ino: u32, which: AccessList) -> Result<Option<Vec<u8>>> {
        match self.fs.get_xattr(number(ino)?, which.namespace(), b"") {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(kind(error)),
        }
    }

    /// Gives an inode an access list, in place of what it had.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`]: it has as before; I/O and damage.
    ///
    /// ```
    /// # volume::example::run(|volume| {
    /// # use volume::{AccessList, New};
    /// # let root = volume.root();
    /// # let file = volume.create(root, b"data", New::File, 0o644, (0, 0))?.ino;
    /// # let list = [1, 0, 0, 0, 1, 0, 6, 0, 4, 0, 4, 0, 32, 0, 4, 0];
    /// // As ext4 writes one: a version, then entries.
    /// volume.set_access_list(file, AccessList::Own, &list)?;
    /// assert_eq!(volume.access_list(file, AccessList::Own)?, Some(list.to_vec()));
    /// # Ok(()) });
    /// ```
    pub fn set_access_list(&mut self, ino: u32, which: AccessList, bytes: &[u8]) -> Result<()> {
        self.begin_change()?;
        let ino = number(ino)?;
        let mode = XattrSetMode::Upsert;
        self.attempt(|fs| fs.set_xattr(ino, which.namespace(), b"", bytes, mode))
    }

    /// The inode that has a name in a directory.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; I/O and damage: a name of an inode without links is that too. A
    /// machine that went off leaves such names on a volume without a journal, and what the inode
    /// says of itself is of a file that was freed, or of none.
    ///
    /// ```
    /// # volume::example::run(|volume| {
    /// # use volume::{ErrorKind, New};
    /// # let root = volume.root();
    /// # let file = volume.create(root, b"data", New::File, 0o644, (0, 0))?.ino;
    /// assert_eq!(volume.lookup(root, b"data")?.ino, file);
    /// assert_eq!(volume.lookup(root, b"none").err(), Some(ErrorKind::NotFound));
    /// # Ok(()) });
    /// ```
    pub fn lookup(&mut self, dir: u32, text: &[u8]) -> Result<Attributes> {
        let found = match self.known(dir, text)? {
            Known::Inode(ino) => self.attributes(ino)?,
            Known::Absent => return Err(ErrorKind::NotFound),
            Known::Unknown => {
                let found = self.find(dir, text)?;
                self.index.set(dir, text, found.map(|found| found.ino));
                found.ok_or(ErrorKind::NotFound)?
            }
        };
        if found.links == 0 {
            return Err(ErrorKind::Corrupted);
        }
        Ok(found)
    }

    /// The inode that has a name, as the directory on the disk says.
    fn find(&mut self, dir: u32, text: &[u8]) -> Result<Option<Attributes>> {
        let found = self.fs.lookup_child(number(dir)?, name(text)?).map_err(kind)?;
        Ok(found.map(Attributes::from))
    }

    /// What the index knows of a name; it learns more of the directory if that is large and a list.
    fn known(&mut self, dir: u32, text: &[u8]) -> Result<Known> {
        if is_dots(text) {
            return Ok(Known::Unknown);
        }
        if !self.index.has(dir) {
            let info = self.fs.inode(number(dir)?).map_err(kind)?;
            let is_walked =
                info.is_directory() && !info.flags.contains(InodeFlags::DIRECTORY_INDEX);
            if !is_walked || info.size <= FEW_BLOCKS * self.block_size {
                return Ok(Known::Unknown);
            }
            self.index.begin(dir);
        }
        let known = self.index.get(dir, text);
        let (Known::Unknown, Some(from)) = (known, self.index.next(dir)) else { return Ok(known) };
        match self.list(dir, from, LEARNED) {
            Ok(part) => self.index.learn(dir, &part),
            // A caller that asks the directory itself gets the error, if it concerns that name.
            Err(_) => self.index.stop(dir),
        }
        Ok(self.index.get(dir, text))
    }

    /// Has the index know what a name leads to after a change, or one that failed.
    fn name_changed(&mut self, dir: u32, text: &[u8]) {
        if !self.index.has(dir) {
            return;
        }
        match self.find(dir, text) {
            Ok(found) => self.index.set(dir, text, found.map(|found| found.ino)),
            Err(_) => self.index.forget(dir),
        }
    }

    /// At most `max` names from `from` on, `.` and `..` among them.
    ///
    /// # Errors
    /// I/O and damage; [`ErrorKind::InvalidInput`]: a cursor of another kind of directory.
    ///
    /// ```
    /// # volume::example::run(|volume| {
    /// # use volume::{Cursor, New};
    /// # let root = volume.root();
    /// # let file = volume.create(root, b"data", New::File, 0o644, (0, 0))?.ino;
    /// let (mut from, mut names) = (Cursor::Start, Vec::new());
    /// loop {
    ///     let part = volume.list(root, from, 2)?;
    ///     let Some(last) = part.last() else { break };
    ///     from = last.next;
    ///     names.extend(part.into_iter().map(|entry| entry.name));
    /// }
    /// assert!(names.contains(&b"data".to_vec()));
    /// # Ok(()) });
    /// ```
    pub fn list(&mut self, dir: u32, from: Cursor, max: usize) -> Result<Vec<Entry>> {
        let entries = self.fs.read_directory(number(dir)?, from, max).map_err(kind)?;
        Ok(entries
            .into_iter()
            .map(|entry| Entry {
                ino: entry.inode.raw(),
                file_type: type_bits(entry.file_type),
                name: entry.name,
                next: entry.next_cursor,
            })
            .collect())
    }

    /// Makes something under a name that is free.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`], [`ErrorKind::NoSpace`]: nothing changed; I/O and damage.
    ///
    /// ```
    /// # volume::example::run(|volume| {
    /// # use volume::New;
    /// let root = volume.root();
    /// let dir = volume.create(root, b"dir", New::Dir, 0o755, (0, 0))?;
    /// volume.create(dir.ino, b"link", New::Symlink(b"../data"), 0o777, (0, 0))?;
    /// # Ok(()) });
    /// ```
    pub fn create(
        &mut self,
        dir: u32,
        text: &[u8],
        new: New<'_>,
        perm: u32,
        owner: (u32, u32),
    ) -> Result<Attributes> {
        self.begin_change()?;
        let who = MutationContext::new(owner.0, owner.1, 0, 0);
        let made = self.create_in(number(dir)?, name(text)?, new, permissions(perm)?, who);
        match &made {
            Ok(made) => {
                self.index.set(dir, text, Some(made.ino));
            }
            Err(_) => self.name_changed(dir, text),
        }
        made
    }

    fn create_in(
        &mut self,
        parent: InodeNumber,
        text: FileName<'_>,
        new: New<'_>,
        perm: FilePermissions,
        who: MutationContext,
    ) -> Result<Attributes> {
        let device = |major, minor| DeviceNumber::new(major, minor).map_err(kind);
        let special = match new {
            New::File => {
                return Ok(self
                    .attempt(|fs| fs.create_regular_file(who, parent, text, perm))?
                    .into());
            }
            New::Dir => {
                return Ok(self.attempt(|fs| fs.create_directory(who, parent, text, perm))?.into())
            }
            New::Symlink(target) => {
                return Ok(self.attempt(|fs| fs.create_symlink(who, parent, text, target))?.into());
            }
            New::Fifo => SpecialInodeKind::Fifo,
            New::Socket => SpecialInodeKind::Socket,
            New::CharDevice(major, minor) => {
                SpecialInodeKind::CharacterDevice(device(major, minor)?)
            }
            New::BlockDevice(major, minor) => SpecialInodeKind::BlockDevice(device(major, minor)?),
        };
        Ok(self.attempt(|fs| fs.create_special_inode(who, parent, text, perm, special))?.into())
    }

    /// Gives an inode that isn't a directory another name.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`], [`ErrorKind::TooManyLinks`], [`ErrorKind::NoSpace`]; I/O and
    /// damage.
    ///
    /// ```
    /// # volume::example::run(|volume| {
    /// # use volume::New;
    /// # let root = volume.root();
    /// # let file = volume.create(root, b"data", New::File, 0o644, (0, 0))?.ino;
    /// assert_eq!(volume.link(file, root, b"other")?.links, 2);
    /// # Ok(()) });
    /// ```
    pub fn link(&mut self, ino: u32, dir: u32, text: &[u8]) -> Result<Attributes> {
        self.begin_change()?;
        let (inode, parent, called) = (number(ino)?, number(dir)?, name(text)?);
        let linked = self.attempt(|fs| fs.hard_link(inode, parent, called));
        match &linked {
            Ok(_) => self.index.set(dir, text, Some(ino)),
            Err(_) => self.name_changed(dir, text),
        }
        Ok(linked?.into())
    }

    /// Takes away a name of something that isn't a directory. `true`: it was the last, and the
    /// inode is the host's to [reap](Volume::reap); a file has lost the blocks that were never
    /// written, which read as zeroes as before.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::IsDirectory`]; I/O and damage.
    ///
    /// ```
    /// # volume::example::run(|volume| {
    /// # use volume::New;
    /// # let root = volume.root();
    /// # let file = volume.create(root, b"data", New::File, 0o644, (0, 0))?.ino;
    /// volume.link(file, root, b"other")?;
    /// assert!(!volume.unlink(root, b"data")?, "it has another name");
    /// assert!(volume.unlink(root, b"other")?);
    /// volume.reap(file)?;
    /// # Ok(()) });
    /// ```
    pub fn unlink(&mut self, dir: u32, text: &[u8]) -> Result<bool> {
        self.begin_change()?;
        let (parent, called) = (number(dir)?, name(text)?);
        let gone = self.attempt(|fs| fs.unlink(parent, called));
        match &gone {
            Ok(_) => self.index.set(dir, text, None),
            Err(_) => self.name_changed(dir, text),
        }
        let gone = gone?;
        if gone.requires_reap() {
            self.lost_last_name(gone.inode.raw());
        }
        Ok(gone.requires_reap())
    }

    /// Takes away an empty directory, which is the host's to [reap](Volume::reap).
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::NotDirectory`], [`ErrorKind::NotEmpty`]; I/O and
    /// damage.
    ///
    /// ```
    /// # volume::example::run(|volume| {
    /// # use volume::New;
    /// let root = volume.root();
    /// let dir = volume.create(root, b"dir", New::Dir, 0o755, (0, 0))?;
    /// volume.remove_dir(root, b"dir")?;
    /// volume.reap(dir.ino)?;
    /// # Ok(()) });
    /// ```
    pub fn remove_dir(&mut self, dir: u32, text: &[u8]) -> Result<()> {
        self.begin_change()?;
        let (parent, called) = (number(dir)?, name(text)?);
        let gone = self.attempt(|fs| fs.remove_empty_directory(parent, called));
        match &gone {
            Ok(_) => self.index.set(dir, text, None),
            Err(_) => self.name_changed(dir, text),
        }
        gone.map(|_| ())
    }

    /// Moves a name. Returns the inode that lost its last name by it, which is the host's to
    /// [reap](Volume::reap), as after [`unlink`](Self::unlink).
    ///
    /// # Errors
    /// As `rename(2)` says; I/O and damage.
    ///
    /// ```
    /// # volume::example::run(|volume| {
    /// # use volume::{New, Rename};
    /// # let root = volume.root();
    /// # let file = volume.create(root, b"data", New::File, 0o644, (0, 0))?.ino;
    /// let lost = volume.rename(root, b"data", root, b"other", Rename::Replace)?;
    /// assert_eq!((volume.lookup(root, b"other")?.ino, lost), (file, None));
    /// # Ok(()) });
    /// ```
    pub fn rename(
        &mut self,
        dir: u32,
        text: &[u8],
        to_dir: u32,
        to: &[u8],
        how: Rename,
    ) -> Result<Option<u32>> {
        self.begin_change()?;
        let options = match how {
            Rename::Replace => RenameOptions::REPLACE,
            Rename::NoReplace => RenameOptions::NO_REPLACE,
            Rename::Exchange => RenameOptions::EXCHANGE,
        };
        let (parent, old, new_parent, new) =
            (number(dir)?, name(text)?, number(to_dir)?, name(to)?);
        let mut moved = self.attempt(|fs| fs.rename(parent, old, new_parent, new, options));
        // What the crate finds where the name was depends on what the split has put there.
        let may_split = dir == to_dir && how != Rename::Exchange;
        if may_split && matches!(moved, Err(ErrorKind::NotFound | ErrorKind::Corrupted)) {
            // Nothing is split for a name that is there: that one's error stands.
            let is_new = self.find(dir, to)?.is_none();
            if let Some(there) = self.find(dir, text)?.filter(|_| is_new) {
                moved = self.rename_after_split(dir, text, to, &there);
            }
        }
        self.name_changed(dir, text);
        self.name_changed(to_dir, to);
        let gone = moved?.replaced.filter(|gone| gone.requires_reap()).map(|gone| gone.inode.raw());
        gone.into_iter().for_each(|ino| self.lost_last_name(ino));
        Ok(gone)
    }

    /// Moves a name within a directory of which a block must be split for the new one: a leaf of
    /// the index, or the only block, which becomes an index. The crate looks for the old name's
    /// place first, splits the block that it lies in, and finds nothing there, or an index. So
    /// something empty is made under the new name, which splits what must be split, and the name is
    /// moved onto that. Both changes are committed together, but for a journal that fills up in
    /// between.
    fn rename_after_split(
        &mut self,
        dir: u32,
        text: &[u8],
        to: &[u8],
        there: &Attributes,
    ) -> Result<rsext4::RenameOutcome> {
        let parent = number(dir)?;
        let new = if there.mode & 0o170000 == 0o040000 { New::Dir } else { New::File };
        let who = MutationContext::new(0, 0, 0, 0);
        let made = self.create_in(parent, name(to)?, new, permissions(0)?, who)?;
        let (old, target) = (name(text)?, name(to)?);
        let moved =
            self.attempt(|fs| fs.rename(parent, old, parent, target, RenameOptions::REPLACE));
        if moved.is_err() {
            match new {
                New::Dir => _ = self.attempt(|fs| fs.remove_empty_directory(parent, target)),
                _ => _ = self.attempt(|fs| fs.unlink(parent, target)),
            }
        }
        self.reap(made.ino)?;
        // What was replaced is gone already.
        moved.map(|_| rsext4::RenameOutcome::default())
    }

    /// A symbolic link's target.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`]: it is none; I/O and damage.
    ///
    /// ```
    /// # volume::example::run(|volume| {
    /// # use volume::New;
    /// let root = volume.root();
    /// let link = volume.create(root, b"link", New::Symlink(b"data"), 0o777, (0, 0))?;
    /// assert_eq!(volume.read_link(link.ino)?, b"data");
    /// # Ok(()) });
    /// ```
    pub fn read_link(&mut self, ino: u32) -> Result<Vec<u8>> {
        let info = self.fs.inode(number(ino)?).map_err(kind)?;
        if u32::from(info.mode) & 0o170000 != 0o120000 {
            return Err(ErrorKind::InvalidInput);
        }
        // The crate makes room for as much as the inode says.
        if info.size == 0 || info.size > self.block_size {
            return Err(ErrorKind::Corrupted);
        }
        let mut target = alloc::vec![0; info.size as usize];
        let n = self.fs.read_inode(number(ino)?, 0, &mut target).map_err(kind)?;
        target.truncate(n);
        Ok(target)
    }
}
