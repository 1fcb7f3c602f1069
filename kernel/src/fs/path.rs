//! From a path to a node.
//!
//! [`walk`] goes through a path one component at a time, following symbolic links (at most 40) and
//! mounts, and stops at the last name, which may or may not exist: all calls that create, remove or
//! open things start from what it found. [`resolve`] is for calls that want the node itself.
//!
//! A [`Place`] remembers where a node was found, so that its path can be told later; directories
//! know their own. A renamed file's old name isn't tracked: its path then reads as deleted.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::access;
use super::context::FsContext;
use super::current;
use super::inode::{same, InodeRef, Kind};
use super::mount;
use crate::charge::{self, Charge};
use crate::errno::*;
use crate::proc::cred::Cred;
use crate::sched;

/// The longest name and the longest path that a program may pass (with its terminator).
pub const NAME_MAX: usize = 255;
pub const PATH_MAX: usize = 4096;

const MAX_LINKS: u32 = 40;
/// The most text that link targets may add to a path.
const MAX_TEXT: usize = 16 * PATH_MAX;
/// What a component takes, in bytes copied: links make a path that has tens of thousands.
const COMPONENT: usize = 256;

/// Where a node was found.
#[derive(Clone)]
pub struct Place {
    pub inode: InodeRef,
    /// The directory and name that led there; without a directory the name is a description.
    pub parent: Option<InodeRef>,
    pub name: Box<[u8]>,
}

impl Place {
    /// A node without a path.
    pub fn anonymous(inode: InodeRef) -> Place {
        Place { inode, parent: None, name: Box::default() }
    }

    /// A node without a path, that `/proc` describes as `name`.
    pub fn described(inode: InodeRef, name: Vec<u8>) -> Place {
        Place { inode, parent: None, name: name.into_boxed_slice() }
    }

    /// The path from the root of everything, with ` (deleted)` behind it if it no longer leads
    /// here.
    pub fn path(&self) -> Vec<u8> {
        const DELETED: &[u8] = b" (deleted)";
        if self.inode.kind() == Kind::Dir {
            return dir_path(&self.inode, None).unwrap_or_else(|| [b"/", DELETED].concat());
        }
        let Some(parent) = &self.parent else {
            return self.name.to_vec();
        };
        let mut path = dir_path(parent, None).unwrap_or_default();
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

/// A directory's path up to `root`, or to the root of everything; `None` if it was removed. Of a
/// path that no call could pass, only the end: somewhat more than [`PATH_MAX`] bytes.
pub fn dir_path(dir: &InodeRef, root: Option<&InodeRef>) -> Option<Vec<u8>> {
    let mut backwards: Vec<u8> = Vec::new();
    let mut at = dir.clone();
    while backwards.len() <= PATH_MAX && !root.is_some_and(|root| same(root, &at)) {
        if let Some((parent, name)) = at.parent() {
            backwards.extend(name.iter().rev());
            backwards.push(b'/');
            at = mount::top(parent);
        } else if let Some(covered) = mount::covered_by(&at) {
            at = covered;
        } else if same(&at, &mount::root()) {
            break;
        } else {
            return None;
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
    No,
}

/// Where a walk starts.
pub struct Start {
    pub root: InodeRef,
    pub dir: InodeRef,
    /// On whose behalf.
    pub by: Arc<Cred>,
}

impl Start {
    /// At the working directory.
    pub fn cwd(context: &FsContext) -> Start {
        Start { root: context.root(), dir: context.cwd(), by: current::cred() }
    }

    /// At `root`, on the kernel's behalf.
    pub fn kernel(root: InodeRef) -> Start {
        Start { dir: root.clone(), root, by: Cred::kernel() }
    }
}

/// What a walk found.
pub struct Found {
    /// The directory of the last component.
    pub dir: InodeRef,
    /// The last component; `None` if the path ends in `.`, `..`, `/` or a link of `/proc`.
    pub name: Option<Box<[u8]>>,
    pub inode: Option<InodeRef>,
    /// Slashes at the end ask for a directory.
    pub wants_dir: bool,
    /// The place that a link of `/proc` led to.
    jumped: Option<Place>,
}

impl Found {
    /// The node as a place; `ENOENT` if there is none.
    pub fn place(self) -> Result<Place> {
        if let Some(place) = self.jumped {
            return Ok(place);
        }
        let inode = self.inode.ok_or(ENOENT)?;
        if self.wants_dir && inode.kind() != Kind::Dir {
            return Err(ENOTDIR);
        }
        Ok(Place { inode, parent: Some(self.dir), name: self.name.unwrap_or_default() })
    }

    /// The directory and name for a call that creates something.
    pub fn vacant(self) -> Result<(InodeRef, Box<[u8]>)> {
        match (self.inode, self.name) {
            (None, Some(name)) => Ok((self.dir, name)),
            _ => Err(EEXIST),
        }
    }
}

/// Walks `path` from `start`.
pub fn walk(start: &Start, path: &[u8], follow: Follow) -> Result<Found> {
    if path.is_empty() {
        return Err(ENOENT);
    }
    let mut dir = if path[0] == b'/' { start.root.clone() } else { start.dir.clone() };
    let mut replaced: Option<Vec<u8>> = None;
    // Of what links have made longer: others may run before the path's end.
    let mut _longer: Option<Charge> = None;
    let mut at = 0;
    let mut links = 0;
    let restricted = access::restricts_paths(&start.by);
    loop {
        sched::work_done(COMPONENT);
        let text: &[u8] = replaced.as_deref().unwrap_or(path);
        let Some(step) = Step::next(text, at) else {
            if dir.kind() != Kind::Dir {
                return Err(ENOTDIR);
            }
            return Ok(Found {
                inode: Some(dir.clone()),
                dir,
                name: None,
                wants_dir: true,
                jumped: None,
            });
        };
        at = step.after;
        if restricted && dir.kind() == Kind::Dir {
            dir.permits(&start.by, access::EXECUTE)?;
        }
        if step.name == b".." {
            dir = above(&dir, &start.root)?;
            continue;
        }
        if step.name == b"." {
            if dir.kind() != Kind::Dir {
                return Err(ENOTDIR);
            }
            continue;
        }
        if step.name.len() > NAME_MAX {
            return Err(ENAMETOOLONG);
        }
        let inode = match dir.lookup(step.name) {
            Ok(inode) => mount::top(inode),
            Err(ENOENT) if step.last => return Ok(step.found(dir, None)),
            Err(errno) => return Err(errno),
        };
        if inode.kind() != Kind::Symlink || step.last && !step.slash && follow == Follow::No {
            if step.last {
                return Ok(step.found(dir, Some(inode)));
            }
            dir = inode;
            continue;
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(ELOOP);
        }
        if step.last {
            access::may_follow(&start.by, &dir.ownership(), &inode.ownership())?;
        }
        if let Some(place) = inode.jump() {
            let place = place?;
            if step.last {
                return Ok(Found { jumped: Some(place), ..step.found(dir, Some(inode)) });
            }
            dir = place.inode;
            continue;
        }
        let text = spliced(&inode.read_link()?, &text[step.end..])?;
        if text[0] == b'/' {
            dir = start.root.clone();
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
    /// Where it ends, and where the next one starts.
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

    fn found(&self, dir: InodeRef, inode: Option<InodeRef>) -> Found {
        Found { dir, name: Some(self.name.into()), inode, wants_dir: self.slash, jumped: None }
    }
}

/// The directory above `dir`; the root's is itself.
fn above(dir: &InodeRef, root: &InodeRef) -> Result<InodeRef> {
    if dir.kind() != Kind::Dir {
        return Err(ENOTDIR);
    }
    let mut at = dir.clone();
    loop {
        if same(&at, root) {
            return Ok(at);
        }
        if let Some((parent, _)) = at.parent() {
            return Ok(mount::top(parent));
        }
        match mount::covered_by(&at) {
            Some(covered) => at = covered,
            None => return Ok(at),
        }
    }
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
