//! Names and attributes.

use alloc::vec::Vec;

use crate::bytes::{get32, put, put32};
use crate::dir::Place;
use crate::index::{is_dots, Known};
use crate::inode::{self, Inode};
use crate::{extents, Cursor, Device, ErrorKind, Result, Timestamp, Volume};

/// Blocks that a directory without an index on the disk may have and be walked at each look-up.
const FEW_BLOCKS: u64 = 4;
/// Names that a look-up learns of a larger one.
const LEARNED: usize = 256;

/// Flags of an inode, as `chattr` sets them: each write waits for the disk.
pub const SYNC: u32 = inode::SYNC;
/// It can't be changed, nor get a name or lose one.
pub const IMMUTABLE: u32 = inode::IMMUTABLE;
/// It can only be written to behind its end; a directory can only get names.
pub const APPEND_ONLY: u32 = inode::APPEND_ONLY;
/// Reads leave its access time.
pub const NO_ATIME: u32 = inode::NO_ATIME;

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
    /// In whole seconds where inodes are small.
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    /// Major and minor number of a device.
    pub device: Option<(u32, u32)>,
    /// Its blocks are found by extents, which is what can be written here.
    pub has_extents: bool,
    /// [`IMMUTABLE`] and the others, as `chattr` sees them.
    pub flags: u32,
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
    /// The kind of attribute that it is.
    fn kind(self) -> u8 {
        match self {
            AccessList::Own => 2,
            AccessList::Default => 3,
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

/// Links that an inode can have; a directory with more says that it has one.
const MOST_LINKS: u16 = 65_000;
/// Directories between a directory and the root, at most.
const DEEPEST: usize = 1 << 16;

/// The type bits that a directory's entry says.
fn type_bits(kind: u8) -> u32 {
    match kind {
        1 => 0o100_000,
        2 => 0o040_000,
        3 => 0o020_000,
        4 => 0o060_000,
        5 => 0o010_000,
        6 => 0o140_000,
        7 => 0o120_000,
        _ => 0,
    }
}

/// A device's numbers as an inode has them: short ones in 16 bits, others in 32.
fn device(map: &[u8]) -> (u32, u32) {
    let (old, new) = (get32(map, 0), get32(map, 4));
    match old {
        0 => (new >> 8 & 0xfff, new & 0xff | new >> 12 & 0xf_ff00),
        _ => (old >> 8 & 0xff, old & 0xff),
    }
}

fn put_device(map: &mut [u8], major: u32, minor: u32) -> Result<()> {
    if major > 0xfff || minor > 0xf_ffff {
        return Err(ErrorKind::InvalidInput);
    }
    match major < 256 && minor < 256 {
        true => put32(map, 0, major << 8 | minor),
        false => put32(map, 4, minor & 0xff | major << 8 | (minor & !0xff) << 12),
    }
    Ok(())
}

/// A name that may be made, moved or taken away.
fn named(text: &[u8]) -> Result<()> {
    if is_dots(text) {
        return Err(ErrorKind::InvalidInput);
    }
    Ok(())
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
        let inode = self.inode(ino)?;
        Ok(self.attributes_of(&inode))
    }

    fn attributes_of(&self, inode: &Inode) -> Attributes {
        let (uid, gid) = inode.owner();
        let is_device = matches!(inode.kind(), 0o020_000 | 0o060_000);
        Attributes {
            ino: inode.ino,
            mode: inode.mode().into(),
            uid,
            gid,
            links: inode.links().into(),
            size: inode.size(),
            blocks: self.inode_blocks(inode),
            atime: inode.time(inode::ATIME),
            mtime: inode.time(inode::MTIME),
            ctime: inode.time(inode::CTIME),
            device: is_device.then(|| device(inode.map())),
            has_extents: inode.has(inode::EXTENTS),
            flags: inode.flags(),
        }
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
        self.attempt(|volume| {
            let mut inode = volume.inode(ino)?;
            if let Some(perm) = change.perm {
                inode.set_mode(inode.kind() | (perm & 0o7777) as u16);
            }
            if let Some(owner) = change.owner {
                inode.set_owner(owner);
            }
            if let Some(flags) = change.flags {
                let set = flags & inode::SETTABLE;
                inode.set_flags(inode.flags() & !inode::SETTABLE | set);
            }
            for (time, to) in [(inode::ATIME, change.atime), (inode::MTIME, change.mtime)] {
                to.into_iter().for_each(|to| inode.set_time(time, to));
            }
            inode.set_time(inode::CTIME, volume.now());
            volume.put_inode(&inode)?;
            Ok(volume.attributes_of(&inode))
        })
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
        let inode = self.inode(ino)?;
        self.attribute(&inode, which.kind())
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
        self.attempt(|volume| {
            let mut inode = volume.inode(ino)?;
            inode.set_time(inode::CTIME, volume.now());
            volume.set_attribute(&mut inode, which.kind(), bytes)
        })
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
        let dir = self.inode(dir)?;
        let Some(found) = self.find_name(&dir, text)? else { return Ok(None) };
        Ok(Some(self.attributes(found.ino)?))
    }

    /// What the index knows of a name; it learns more of the directory if that is large and a list.
    fn known(&mut self, dir: u32, text: &[u8]) -> Result<Known> {
        if is_dots(text) {
            return Ok(Known::Unknown);
        }
        if !self.index.has(dir) {
            let inode = self.inode(dir)?;
            let is_walked = inode.is_dir() && !self.is_indexed(&inode);
            if !is_walked || inode.size() <= FEW_BLOCKS * self.block_size() {
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
        let inode = self.inode(dir)?;
        let behind = match from {
            Cursor::End => return Ok(Vec::new()),
            Cursor::Linear { offset } => return self.list_by_offset(&inode, offset, max),
            Cursor::Start => None,
            Cursor::Hashed { hash, minor } => Some((hash, minor)),
        };
        self.dir_blocks(&inode)?;
        if !self.is_indexed(&inode) {
            return match behind {
                None => self.list_by_offset(&inode, 0, max),
                Some(_) => Err(ErrorKind::InvalidInput),
            };
        }
        let mut all = Vec::new();
        if behind.is_none() {
            // They aren't in the index; the first hash is behind them.
            for name in [&b"."[..], b".."] {
                let found = self.find_name(&inode, name)?.ok_or(ErrorKind::Corrupted)?;
                let next = match name.len() {
                    1 => Cursor::Linear { offset: crate::dir::needs(1) as u64 },
                    _ => Cursor::Hashed { hash: 0, minor: 0 },
                };
                all.push(Entry {
                    ino: found.ino,
                    file_type: type_bits(2),
                    name: name.into(),
                    next,
                });
            }
        }
        let left = max.saturating_sub(all.len());
        if left == 0 {
            all.truncate(max);
            return Ok(all);
        }
        let behind = behind.filter(|&behind| behind != (0, 0));
        let Some(found) = self.list_hashed(&inode, behind, left)? else {
            return self.list_by_offset(&inode, 0, max);
        };
        all.extend(found.into_iter().map(|((hash, minor), ino, kind, name)| Entry {
            ino,
            file_type: type_bits(kind),
            name,
            next: Cursor::Hashed { hash, minor },
        }));
        Ok(all)
    }

    fn list_by_offset(&mut self, dir: &Inode, from: u64, max: usize) -> Result<Vec<Entry>> {
        let found = self.list_in_order(dir, from, max)?;
        let entry = |(ino, kind, name, offset)| Entry {
            ino,
            file_type: type_bits(kind),
            name,
            next: Cursor::Linear { offset },
        };
        Ok(found.into_iter().map(entry).collect())
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
        named(text)?;
        let made = self.attempt(|volume| volume.create_in(dir, text, new, perm, owner));
        match &made {
            Ok(made) => self.index.set(dir, text, Some(made.ino)),
            Err(_) => self.name_changed(dir, text),
        }
        made
    }

    fn create_in(
        &mut self,
        dir: u32,
        text: &[u8],
        new: New<'_>,
        perm: u32,
        owner: (u32, u32),
    ) -> Result<Attributes> {
        let mut parent = self.free_name(dir, text)?;
        let kind = match new {
            New::File => inode::FILE,
            New::Dir => inode::DIR,
            New::Symlink(_) => inode::LINK,
            New::Fifo => 0o010_000,
            New::Socket => 0o140_000,
            New::CharDevice(..) => 0o020_000,
            New::BlockDevice(..) => 0o060_000,
        };
        let group = (dir - 1) / self.layout.group_inodes;
        let ino = self.take_inode(group, kind == inode::DIR)?;
        let mut inode = self.new_inode(ino)?;
        let (now, size) = (self.now(), self.layout.inode_size);
        inode.born(kind | (perm & 0o7777) as u16, &parent, size, now);
        inode.set_owner(owner);
        inode.set_links(1);
        match new {
            New::File => {
                extents::plant(inode.map_mut());
                inode.set_flags(inode.flags() | inode::EXTENTS);
            }
            New::Dir => {
                self.found_dir(&mut inode, dir)?;
                inode.set_links(2);
                self.add_link(&mut parent)?;
            }
            New::Symlink(target) => self.put_target(&mut inode, target)?,
            New::Fifo | New::Socket => {}
            New::CharDevice(major, minor) | New::BlockDevice(major, minor) => {
                put_device(inode.map_mut(), major, minor)?;
            }
        }
        self.put_inode(&inode)?;
        self.add_name(&mut parent, text, ino, inode.mode())?;
        self.touch(&mut parent);
        self.put_inode(&parent)?;
        Ok(self.attributes_of(&inode))
    }

    /// A directory in which a name can be made.
    fn free_name(&mut self, dir: u32, text: &[u8]) -> Result<Inode> {
        let parent = self.inode(dir)?;
        if self.find_name(&parent, text)?.is_some() {
            return Err(ErrorKind::AlreadyExists);
        }
        if parent.links() == 0 {
            return Err(ErrorKind::NotFound);
        }
        Ok(parent)
    }

    /// What an inode holds has changed. Rights that a file gives to all who run it are the host's
    /// to take away, as the program writes: this may come long after that.
    pub(crate) fn touch(&self, inode: &mut Inode) {
        let now = self.now();
        inode.set_time(inode::MTIME, now);
        inode.set_time(inode::CTIME, now);
    }

    fn add_link(&self, inode: &mut Inode) -> Result<()> {
        let links = match (inode.is_dir(), inode.links()) {
            (true, 1) if self.layout.has_many_links => 1,
            (true, links) if links >= MOST_LINKS - 1 && self.layout.has_many_links => 1,
            (_, links) if links >= MOST_LINKS => return Err(ErrorKind::TooManyLinks),
            (_, links) => links + 1,
        };
        inode.set_links(links);
        Ok(())
    }

    /// A directory below is gone.
    fn remove_link(dir: &mut Inode) {
        if dir.links() > 2 {
            dir.set_links(dir.links() - 1);
        }
    }

    /// Whether a link's target is where others have their maps.
    pub(crate) fn is_short_link(&self, inode: &Inode) -> bool {
        let each = self.block_size() / inode::SECTOR;
        let own = if inode.attributes() == 0 { 0 } else { each };
        self.inode_blocks(inode) <= own && inode.size() < inode::MAP.len() as u64
    }

    fn put_target(&mut self, inode: &mut Inode, target: &[u8]) -> Result<()> {
        if target.is_empty() || target.len() >= self.layout.block_size {
            return Err(ErrorKind::InvalidInput);
        }
        inode.set_size(target.len() as u64);
        if target.len() < inode::MAP.len() {
            put(inode.map_mut(), 0, target);
            return Ok(());
        }
        extents::plant(inode.map_mut());
        inode.set_flags(inode.flags() | inode::EXTENTS);
        let start = self.take_own_block(inode)?;
        let extent = extents::Extent { at: 0, len: 1, start, is_unwritten: false };
        self.add_extent(inode, extent)?;
        put(self.store.fresh(start, crate::cache::Seal::None), 0, target);
        Ok(())
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
        named(text)?;
        let linked = self.attempt(|volume| {
            let mut parent = volume.free_name(dir, text)?;
            let mut inode = volume.inode(ino)?;
            if inode.is_dir() {
                return Err(ErrorKind::PermissionDenied);
            }
            if inode.links() == 0 {
                return Err(ErrorKind::NotFound);
            }
            volume.add_link(&mut inode)?;
            inode.set_time(inode::CTIME, volume.now());
            volume.add_name(&mut parent, text, ino, inode.mode())?;
            volume.touch(&mut parent);
            volume.put_inode(&parent)?;
            volume.put_inode(&inode)?;
            Ok(volume.attributes_of(&inode))
        });
        match &linked {
            Ok(_) => self.index.set(dir, text, Some(ino)),
            Err(_) => self.name_changed(dir, text),
        }
        linked
    }

    /// Takes away a name of something that isn't a directory. `true`: it was the last, and the
    /// inode is the host's to [reap](Volume::reap).
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
        named(text)?;
        let gone = self.attempt(|volume| {
            let (parent, place) = volume.name_of(dir, text)?;
            let mut inode = volume.inode(place.ino)?;
            if inode.is_dir() {
                return Err(ErrorKind::IsDirectory);
            }
            volume.remove_name(&parent, &place)?;
            volume.lose_name(&mut inode)?;
            volume.touched(parent)?;
            Ok(inode.links() == 0)
        });
        match &gone {
            Ok(_) => self.index.set(dir, text, None),
            Err(_) => self.name_changed(dir, text),
        }
        gone
    }

    /// A directory, and where it has a name.
    fn name_of(&mut self, dir: u32, text: &[u8]) -> Result<(Inode, Place)> {
        let parent = self.inode(dir)?;
        let place = self.find_name(&parent, text)?.ok_or(ErrorKind::NotFound)?;
        Ok((parent, place))
    }

    fn touched(&mut self, mut dir: Inode) -> Result<()> {
        self.touch(&mut dir);
        self.put_inode(&dir)
    }

    /// An inode has a name less; a directory has none then.
    fn lose_name(&mut self, inode: &mut Inode) -> Result<()> {
        if inode.links() == 0 {
            return Err(ErrorKind::Corrupted);
        }
        inode.set_links(if inode.is_dir() { 0 } else { inode.links() - 1 });
        inode.set_time(inode::CTIME, self.now());
        if inode.links() == 0 {
            if inode.ino < self.layout.first_inode || self.orphans.contains(&inode.ino) {
                return Err(ErrorKind::Corrupted);
            }
            self.add_orphan(inode);
        }
        self.put_inode(inode)
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
        named(text)?;
        let gone = self.attempt(|volume| {
            let (mut parent, place) = volume.name_of(dir, text)?;
            let mut inode = volume.inode(place.ino)?;
            if !volume.is_empty(&inode)? {
                return Err(ErrorKind::NotEmpty);
            }
            volume.remove_name(&parent, &place)?;
            volume.lose_name(&mut inode)?;
            Self::remove_link(&mut parent);
            volume.touched(parent)
        });
        match &gone {
            Ok(()) => self.index.set(dir, text, None),
            Err(_) => self.name_changed(dir, text),
        }
        gone
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
        named(text)?;
        named(to)?;
        let moved = self.attempt(|volume| match how {
            Rename::Exchange => volume.exchange((dir, text), (to_dir, to)).map(|()| None),
            _ => volume.move_name((dir, text), (to_dir, to), how),
        });
        self.name_changed(dir, text);
        self.name_changed(to_dir, to);
        moved
    }

    fn move_name(
        &mut self,
        (dir, text): (u32, &[u8]),
        (to_dir, to): (u32, &[u8]),
        how: Rename,
    ) -> Result<Option<u32>> {
        let (_, place) = self.name_of(dir, text)?;
        let mut inode = self.inode(place.ino)?;
        let parent = self.inode(to_dir)?;
        let target = self.find_name(&parent, to)?;
        if target.is_some() && how == Rename::NoReplace {
            return Err(ErrorKind::AlreadyExists);
        }
        if target.is_some_and(|target| target.ino == place.ino) {
            return Ok(None);
        }
        if parent.links() == 0 {
            return Err(ErrorKind::NotFound);
        }
        self.may_move(&inode, to_dir)?;
        let mut gone = None;
        match target {
            Some(target) => {
                let mut old = self.inode(target.ino)?;
                match (inode.is_dir(), old.is_dir()) {
                    (true, false) => return Err(ErrorKind::NotDirectory),
                    (false, true) => return Err(ErrorKind::IsDirectory),
                    (true, true) if !self.is_empty(&old)? => return Err(ErrorKind::NotEmpty),
                    _ => {}
                }
                self.point_name(&parent, &target, inode.ino, inode.mode())?;
                self.lose_name(&mut old)?;
                if old.is_dir() {
                    let mut parent = parent;
                    Self::remove_link(&mut parent);
                    self.put_inode(&parent)?;
                }
                gone = (old.links() == 0).then_some(old.ino);
            }
            None => {
                let mut parent = parent;
                self.add_name(&mut parent, to, inode.ino, inode.mode())?;
                self.put_inode(&parent)?;
            }
        }
        // Where it is now: blocks may have been split.
        let (from, place) = self.name_of(dir, text)?;
        self.remove_name(&from, &place)?;
        if inode.is_dir() && dir != to_dir {
            self.move_dir(&inode, dir, to_dir)?;
        }
        for dir in [dir, to_dir] {
            let dir = self.inode(dir)?;
            self.touched(dir)?;
        }
        inode.set_time(inode::CTIME, self.now());
        self.put_inode(&inode)?;
        Ok(gone)
    }

    fn exchange(&mut self, (dir, text): (u32, &[u8]), (to_dir, to): (u32, &[u8])) -> Result<()> {
        let ((one, a), (other, b)) = (self.name_of(dir, text)?, self.name_of(to_dir, to)?);
        let (first, second) = (self.inode(a.ino)?, self.inode(b.ino)?);
        if first.ino == second.ino {
            return Ok(());
        }
        self.may_move(&first, to_dir)?;
        self.may_move(&second, dir)?;
        self.point_name(&one, &a, second.ino, second.mode())?;
        self.point_name(&other, &b, first.ino, first.mode())?;
        if dir != to_dir {
            // The one with room for a link more comes last.
            for (inode, from, to) in [(&first, dir, to_dir), (&second, to_dir, dir)] {
                if inode.is_dir() {
                    self.move_dir(inode, from, to)?;
                }
            }
        }
        for dir in [dir, to_dir] {
            let dir = self.inode(dir)?;
            self.touched(dir)?;
        }
        for mut inode in [first, second] {
            inode.set_time(inode::CTIME, self.now());
            self.put_inode(&inode)?;
        }
        Ok(())
    }

    /// Whether a directory can be moved into another: it isn't that, nor above it.
    fn may_move(&mut self, inode: &Inode, to: u32) -> Result<()> {
        let mut at = to;
        if !inode.is_dir() {
            return Ok(());
        }
        for _ in 0..DEEPEST {
            if at == inode.ino {
                return Err(ErrorKind::InvalidInput);
            }
            if at == self.root() {
                return Ok(());
            }
            let (_, above) = self.name_of(at, b"..")?;
            at = above.ino;
        }
        Err(ErrorKind::Corrupted)
    }

    /// Has a directory know the one above it, which is another now.
    fn move_dir(&mut self, inode: &Inode, from: u32, to: u32) -> Result<()> {
        let above = self.find_name(inode, b"..")?.ok_or(ErrorKind::Corrupted)?;
        self.point_name(inode, &above, to, inode::DIR)?;
        let mut old = self.inode(from)?;
        Self::remove_link(&mut old);
        self.put_inode(&old)?;
        let mut new = self.inode(to)?;
        self.add_link(&mut new)?;
        self.put_inode(&new)
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
        let inode = self.inode(ino)?;
        let len = inode.size() as usize;
        if inode.kind() != inode::LINK {
            return Err(ErrorKind::InvalidInput);
        }
        if len == 0 || len > self.layout.block_size {
            return Err(ErrorKind::Corrupted);
        }
        if self.is_short_link(&inode) {
            return Ok(inode.map()[..len].to_vec());
        }
        let found = match inode.has(inode::EXTENTS) {
            true => self.extent_of(&inode, 0)?,
            false => self.indirect_extents(&inode, 0, 1, 1)?.first().copied(),
        };
        let extent = found.filter(|extent| !extent.is_unwritten).ok_or(ErrorKind::Corrupted)?;
        Ok(self.store.read(extent.start)?[..len].to_vec())
    }
}
