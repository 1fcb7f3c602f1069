//! From a path to a node.
//!
//! [`walk`] goes through a path one component at a time, following symbolic links (at most 40) and
//! mounts, and stops at the last name, which may or may not exist: all calls that create, remove or
//! open things start from what it found. [`resolve`] is for calls that want the node itself.
//!
//! A directory may be bound to several places, so a walk carries the [`Mount`] that it came by: it
//! says what is above, and what may be done there. A [`Place`] remembers where a node was found, so
//! that its path can be told later; directories know their own. A renamed file's old name isn't
//! tracked: its path then reads as deleted.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Write;

use super::access;
use super::context::FsContext;
use super::inode::{same, InodeRef, Kind};
use super::mount::{self, Mount};
use crate::charge::{self, Charge};
use crate::cred::Cred;
use crate::errno::*;
use crate::{sched, upcalls};

/// The longest name and the longest path that a program may pass (with its terminator).
pub const NAME_MAX: usize = 255;
pub const PATH_MAX: usize = 4096;

const MAX_LINKS: u32 = 40;
/// The most text that link targets may add to a path.
const MAX_TEXT: usize = 16 * PATH_MAX;
/// What a component takes, in bytes copied: links make a path that has tens of thousands.
const COMPONENT: usize = 256;

/// A directory, and the mount by which a walk came to it.
#[derive(Clone)]
pub struct Dir {
    pub mount: Arc<Mount>,
    pub inode: InodeRef,
}

impl Dir {
    /// Whether both are one directory in one mount.
    pub fn same(&self, other: &Dir) -> bool {
        Arc::ptr_eq(&self.mount, &other.mount) && same(&self.inode, &other.inode)
    }

    fn up(&self) -> Up {
        if same(&self.inode, self.mount.root()) {
            return self.mount.mount_point().map_or(Up::End, Up::MountPoint);
        }
        match self.inode.parent() {
            Some((inode, name)) => Up::Parent(Dir { inode, mount: self.mount.clone() }, name),
            None => Up::End,
        }
    }

    /// Whether following `..` from here reaches `root`. Cost: the depth.
    pub fn is_under(&self, root: &Dir) -> bool {
        let mut at = self.clone();
        loop {
            sched::work_done(COMPONENT);
            if at.same(root) {
                return true;
            }
            match at.up() {
                Up::Parent(dir, _) | Up::MountPoint(dir) if !sched::is_leaving() => at = dir,
                _ => return false,
            }
        }
    }
}

/// One step from a directory towards the root.
enum Up {
    /// To the directory that has its name.
    Parent(Dir, Vec<u8>),
    /// From a mount's root to the directory that the mount is on.
    MountPoint(Dir),
    /// The directory is the root of the first mount or of one that was unmounted, or it was
    /// removed.
    End,
}

impl From<Dir> for Place {
    fn from(dir: Dir) -> Place {
        Place { mount: Some(dir.mount), ..Place::anonymous(dir.inode) }
    }
}

/// Where a node was found.
#[derive(Clone)]
pub struct Place {
    /// `None` for what no path leads to.
    pub mount: Option<Arc<Mount>>,
    pub inode: InodeRef,
    /// The directory and name that led there; without a directory the name is a description.
    pub parent: Option<InodeRef>,
    pub name: Box<[u8]>,
}

impl Place {
    /// A node without a path.
    pub fn anonymous(inode: InodeRef) -> Place {
        Place { mount: None, inode, parent: None, name: Box::default() }
    }

    /// A node without a path, that `/proc` describes as `name`.
    pub fn described(inode: InodeRef, name: Vec<u8>) -> Place {
        Place { mount: None, inode, parent: None, name: name.into_boxed_slice() }
    }

    /// The node with its mount, as the start of a walk.
    ///
    /// # Errors
    /// `ENOTDIR` for what can be no directory.
    pub fn dir(&self) -> Result<Dir> {
        let mount = self.mount.clone().ok_or(ENOTDIR)?;
        Ok(Dir { mount, inode: self.inode.clone() })
    }

    /// Flags of the mount, of [`mount::FLAGS`].
    pub fn mount_flags(&self) -> u32 {
        self.mount.as_ref().map_or(0, |mount| mount.flags())
    }

    /// Asked before each change of the node.
    ///
    /// # Errors
    /// `EROFS`: it was found in a mount through which nothing can be changed.
    pub fn may_change(&self) -> Result<()> {
        self.mount.as_ref().map_or(Ok(()), |mount| mount.may_change())
    }

    /// Whether `by` may use the node in all the ways of `mask`. A file system for reading only
    /// refuses before that is judged, where the node's contents are kept there; a mount that is so
    /// says nothing here.
    ///
    /// # Errors
    /// `EROFS`, `EACCES`, `EPERM`.
    pub fn permits(&self, by: &Cred, mask: u32) -> Result<()> {
        let is_kept = matches!(self.inode.kind(), Kind::File | Kind::Dir | Kind::Symlink);
        let is_closed = self.mount.as_ref().is_some_and(|mount| mount.is_of_read_only());
        if mask & access::WRITE != 0 && is_kept && is_closed {
            return Err(EROFS);
        }
        self.inode.permits(by, mask)
    }

    /// The path from the root of everything, with ` (deleted)` behind it if it no longer leads
    /// here.
    pub fn path(&self) -> Vec<u8> {
        self.path_from(None)
    }

    /// The path from `root`; from the root of everything if that is `None`.
    pub fn path_from(&self, root: Option<&Dir>) -> Vec<u8> {
        const DELETED: &[u8] = b" (deleted)";
        if self.inode.kind() == Kind::Dir {
            let path = self.dir().ok().and_then(|dir| dir_path(&dir, root));
            return path.unwrap_or_else(|| [b"/", DELETED].concat());
        }
        let (Some(parent), Some(mount)) = (&self.parent, &self.mount) else {
            return self.name.to_vec();
        };
        let dir = Dir { mount: mount.clone(), inode: parent.clone() };
        let mut path = dir_path(&dir, root).unwrap_or_default();
        if path.last() != Some(&b'/') {
            path.push(b'/');
        }
        path.extend_from_slice(&self.name);
        if !matches!(parent.lookup(&self.name), Ok(now) if same(&now, &self.inode)) {
            path.extend_from_slice(DELETED);
        }
        path
    }
}

/// The path of `dir` from `root`. Outside of that: the path from the first mount's root, or of what
/// was unmounted, behind `(unreachable)`. `None`: the directory was removed. Of a path that no call
/// could pass, only the end: somewhat more than [`PATH_MAX`] bytes.
pub fn dir_path(dir: &Dir, root: Option<&Dir>) -> Option<Vec<u8>> {
    const UNREACHABLE: &[u8] = b"(unreachable)";
    let global = mount::root();
    let root = root.unwrap_or(&global);
    let mut backwards: Vec<u8> = Vec::new();
    let mut at = dir.clone();
    while backwards.len() <= PATH_MAX && !at.same(root) {
        match at.up() {
            Up::Parent(dir, name) => {
                backwards.extend(name.iter().rev());
                backwards.push(b'/');
                at = dir;
            }
            Up::MountPoint(dir) => at = dir,
            Up::End if same(&at.inode, at.mount.root()) => {
                if backwards.is_empty() {
                    backwards.push(b'/');
                }
                backwards.extend(UNREACHABLE.iter().rev());
                break;
            }
            Up::End => return None,
        }
    }
    if backwards.is_empty() {
        return Some(b"/".to_vec());
    }
    backwards.reverse();
    Some(backwards)
}

/// Whether a symbolic link at the end of a path is followed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Follow {
    Yes,
    /// Not, unless a slash behind it asks for what it leads to.
    No,
    /// Never: the call is about the name itself.
    Name,
}

/// What a walk may not do, as `openat2` is told.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Rules {
    /// Come to another mount.
    pub no_mounts: bool,
    /// Follow a link of `/proc` that leads to a node.
    pub no_jumps: bool,
    /// Follow any link.
    pub no_links: bool,
    /// Leave the directory where it starts, which a path that begins with a slash does.
    pub beneath: bool,
    /// The directory where it starts is its root.
    pub in_root: bool,
    /// Look at what isn't in memory, or might not be.
    pub at_once: bool,
}

impl Rules {
    fn is_scoped(self) -> bool {
        self.beneath || self.in_root
    }

    /// Before an absolute path is followed, that of a link in one that isn't absolute perhaps.
    fn check_absolute(self, is_first: bool) -> Result<()> {
        if self.beneath || self.no_mounts && !is_first {
            return Err(EXDEV);
        }
        Ok(())
    }

    fn check_mount(self, from: &Arc<Mount>, to: &Arc<Mount>) -> Result<()> {
        if self.no_mounts && !Arc::ptr_eq(from, to) {
            return Err(EXDEV);
        }
        Ok(())
    }

    fn check_jump(self, from: &Dir, to: &Place) -> Result<()> {
        if self.no_jumps {
            return Err(ELOOP);
        }
        let is_here = to.mount.as_ref().is_some_and(|to| Arc::ptr_eq(to, &from.mount));
        if self.is_scoped() || self.no_mounts && !is_here {
            return Err(EXDEV);
        }
        Ok(())
    }
}

/// Where a walk starts.
pub struct Start {
    pub root: Dir,
    pub dir: Dir,
    /// The credentials that the walk is checked against.
    pub by: Arc<Cred>,
    pub rules: Rules,
}

impl Start {
    /// At the working directory.
    pub fn cwd(context: &FsContext) -> Start {
        Start {
            root: context.root(),
            dir: context.cwd(),
            by: upcalls::cred(),
            rules: Rules::default(),
        }
    }

    /// At `root`, on the kernel's behalf.
    pub fn kernel(root: Dir) -> Start {
        Start { dir: root.clone(), root, by: Cred::kernel(), rules: Rules::default() }
    }
}

/// What a walk found.
pub struct Found {
    /// The directory of the last component.
    pub dir: Dir,
    /// The last component; `None` if the path ends in `.` or `..`, or is `/`.
    pub name: Option<Box<[u8]>>,
    pub inode: Option<InodeRef>,
    /// The mount whose root that is, where the last component is a mount point.
    pub mounted: Option<Arc<Mount>>,
    /// Slashes at the end ask for a directory.
    pub wants_dir: bool,
    /// The place that a link of `/proc` led to.
    jumped: Option<Place>,
}

impl Found {
    /// The node as a place; `ENOENT` if there is none.
    pub fn place(self) -> Result<Place> {
        if let Some(place) = self.jumped {
            if self.wants_dir && place.inode.kind() != Kind::Dir {
                return Err(ENOTDIR);
            }
            return Ok(place);
        }
        let inode = self.inode.ok_or(ENOENT)?;
        if self.wants_dir && inode.kind() != Kind::Dir {
            return Err(ENOTDIR);
        }
        let mount = Some(self.mounted.unwrap_or(self.dir.mount));
        let name = self.name.unwrap_or_default();
        Ok(Place { mount, inode, parent: Some(self.dir.inode), name })
    }

    /// The directory and name for a call that creates something.
    ///
    /// # Errors
    /// `EEXIST`, `EROFS`.
    pub fn vacant(self) -> Result<(Dir, Box<[u8]>)> {
        let (None, Some(name)) = (self.inode, self.name) else { return Err(EEXIST) };
        self.dir.mount.may_change()?;
        Ok((self.dir, name))
    }
}

/// Walks `path` from `start`.
pub fn walk(start: &Start, path: &[u8], follow: Follow) -> Result<Found> {
    if path.is_empty() {
        return Err(ENOENT);
    }
    let rules = start.rules;
    let is_absolute = path[0] == b'/';
    if is_absolute {
        rules.check_absolute(true)?;
    }
    let root = if rules.is_scoped() { &start.dir } else { &start.root };
    let mut dir = if is_absolute { root.clone() } else { start.dir.clone() };
    let mut replaced: Option<Vec<u8>> = None;
    // Of what links have made longer: others may run before the path's end.
    let mut _longer: Option<Charge> = None;
    let mut at = 0;
    let mut links = 0;
    let restricted = access::restricts_paths(&start.by);
    let mut inside = Inside::default();
    loop {
        sched::work_done(COMPONENT);
        let text: &[u8] = replaced.as_deref().unwrap_or(path);
        let Some(step) = Step::next(text, at) else {
            if dir.inode.kind() != Kind::Dir {
                return Err(ENOTDIR);
            }
            return Ok(Found {
                inode: Some(dir.inode.clone()),
                mounted: None,
                dir,
                name: None,
                wants_dir: true,
                jumped: None,
            });
        };
        at = step.after;
        if restricted && dir.inode.kind() == Kind::Dir {
            dir.inode.permits(&start.by, access::EXECUTE)?;
        }
        if step.name == b".." {
            if rules.is_scoped() {
                // What was inside may have been moved out since.
                inside = Inside::default();
            }
            let above = match rules.beneath && dir.same(root) {
                true => return Err(EXDEV),
                false => dotdot(&dir, root, &mut inside)?,
            };
            rules.check_mount(&dir.mount, &above.mount)?;
            dir = above;
            continue;
        }
        if step.name == b"." {
            if dir.inode.kind() != Kind::Dir {
                return Err(ENOTDIR);
            }
            continue;
        }
        if step.name.len() > NAME_MAX {
            return Err(ENAMETOOLONG);
        }
        if rules.at_once && !dir.inode.is_in_memory() {
            return Err(EAGAIN);
        }
        let found = match dir.inode.lookup(step.name) {
            Ok(inode) => inode,
            // Linux remembers no names that there are none of, here.
            Err(ENOENT) if rules.at_once => return Err(EAGAIN),
            Err(ENOENT) if step.last => return Ok(step.found(dir, None, None)),
            Err(errno) => return Err(errno),
        };
        let (inode, mounted) = match mount::topmost_on(&dir.mount, &found) {
            Some(top) => (top.inode, Some(top.mount)),
            None => (found, None),
        };
        mounted.as_ref().map_or(Ok(()), |to| rules.check_mount(&dir.mount, to))?;
        let is_meant = match follow {
            Follow::Yes => false,
            Follow::No => step.last && !step.slash,
            Follow::Name => step.last,
        };
        if inode.kind() != Kind::Symlink || is_meant {
            if step.last {
                return Ok(step.found(dir, Some(inode), mounted));
            }
            dir.inode = inode;
            if let Some(mount) = mounted {
                dir.mount = mount;
            }
            continue;
        }
        links += 1;
        if links > MAX_LINKS || rules.no_links {
            return Err(ELOOP);
        }
        if step.last {
            access::may_follow(&start.by, &dir.inode.ownership(), &inode.ownership())?;
        }
        if let Some(place) = inode.jump() {
            let place = place?;
            rules.check_jump(&dir, &place)?;
            if step.last {
                return Ok(Found { jumped: Some(place), ..step.found(dir, Some(inode), None) });
            }
            dir = place.dir()?;
            inside = Inside::default();
            continue;
        }
        let text = spliced(&inode.read_link()?, &text[step.end..])?;
        if text[0] == b'/' {
            rules.check_absolute(is_absolute)?;
            dir = root.clone();
        }
        if text.len() > PATH_MAX {
            _longer = Some(charge::take(text.len()).map_err(|_| ENOMEM)?);
        }
        replaced = Some(text);
        at = 0;
    }
}

/// The node that `path` leads to.
pub fn resolve(start: &Start, path: &[u8], follow: Follow) -> Result<Place> {
    walk(start, path, follow)?.place()
}

/// One component of a path.
struct Step<'a> {
    name: &'a [u8],
    /// Where the component ends, and where the next one starts.
    end: usize,
    after: usize,
    last: bool,
    slash: bool,
}

impl<'a> Step<'a> {
    fn next(text: &'a [u8], from: usize) -> Option<Step<'a>> {
        let begin = from + text[from..].iter().position(|&byte| byte != b'/')?;
        let end =
            text[begin..].iter().position(|&byte| byte == b'/').map_or(text.len(), |n| begin + n);
        let after =
            text[end..].iter().position(|&byte| byte != b'/').map_or(text.len(), |n| end + n);
        let last = after == text.len();
        Some(Step { name: &text[begin..end], end, after, last, slash: after > end })
    }

    fn found(&self, dir: Dir, inode: Option<InodeRef>, mounted: Option<Arc<Mount>>) -> Found {
        let name = Some(self.name.into());
        Found { dir, name, inode, mounted, wants_dir: self.slash, jumped: None }
    }
}

/// What a walk has found out about the directories that it is in: `..` asks it once, not at each
/// step, since a directory above one that is under a root is so too.
#[derive(Default)]
struct Inside {
    /// Under the root of this mount.
    mount: Option<Arc<Mount>>,
    /// Under the process's root.
    root: bool,
}

impl Inside {
    /// Whether `dir` is under its mount's root and the process's; not if it was renamed out of one.
    fn check(&mut self, dir: &Dir, root: &Dir) -> bool {
        let mount = &dir.mount;
        if mount.shows_part() && !self.mount.as_ref().is_some_and(|known| Arc::ptr_eq(known, mount))
        {
            if !dir.is_under(&mount.top()) {
                return false;
            }
            self.mount = Some(mount.clone());
        }
        self.root = self.root || root.same(&mount::root()) || dir.is_under(root);
        self.root
    }
}

/// The directory that `..` leads to; the root's is itself, and so is that of a removed directory.
///
/// # Errors
/// `ENOENT`: it was renamed out of what is mounted there, or of the process's root; `ENOTDIR`.
fn dotdot(dir: &Dir, root: &Dir, inside: &mut Inside) -> Result<Dir> {
    if dir.inode.kind() != Kind::Dir {
        return Err(ENOTDIR);
    }
    let mut at = dir.clone();
    let above = loop {
        if at.same(root) {
            break dir.clone();
        }
        match at.up() {
            Up::MountPoint(dir) => at = dir,
            Up::Parent(dir, _) if inside.check(&dir, root) => break dir,
            Up::Parent(..) => return Err(ENOENT),
            Up::End => break dir.clone(),
        }
    };
    Ok(mount::topmost_on(&above.mount, &above.inode).unwrap_or(above))
}

/// A link's target with what followed the link's name behind it.
fn spliced(target: &[u8], rest: &[u8]) -> Result<Vec<u8>> {
    if target.is_empty() {
        return Err(ENOENT);
    }
    if target.len() + rest.len() > MAX_TEXT {
        return Err(ENAMETOOLONG);
    }
    Ok([target, rest].concat())
}

/// A name for a table in `/proc`, with what would end its field in octal.
pub fn escaped(name: &[u8]) -> String {
    let mut out = String::new();
    for part in name.utf8_chunks() {
        for char in part.valid().chars() {
            match char {
                ' ' | '\t' | '\n' | '\\' => {
                    let _ = write!(out, "\\{:03o}", char as u32);
                }
                _ => out.push(char),
            }
        }
        if !part.invalid().is_empty() {
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
    out
}
