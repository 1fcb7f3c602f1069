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
use crate::{proc, sched};

/// The longest name and the longest path that a program may pass (with its terminator).
pub const NAME_MAX: usize = 255;
pub const PATH_MAX: usize = 4096;

const MAX_LINKS: u32 = 40;
/// The most text that link targets may add to a path.
const MAX_TEXT: usize = 16 * PATH_MAX;
/// The most directories that are looked at on the way up to a process's root.
const MOST_LOOKS: usize = 64 * 1024;
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
        self.path_from(None)
    }

    /// The same from a root, as far as it lies below.
    pub fn path_from(&self, root: Option<&InodeRef>) -> Vec<u8> {
        const DELETED: &[u8] = b" (deleted)";
        if self.inode.kind() == Kind::Dir {
            return dir_path(&self.inode, root).unwrap_or_else(|| [b"/", DELETED].concat());
        }
        let Some(parent) = &self.parent else {
            return self.name.to_vec();
        };
        let mut path = dir_path(parent, root).unwrap_or_default();
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

/// A directory's path up to `root`, or to the root of everything, where that isn't below `root`,
/// and then it says so; `None` if the directory was removed. Of a path that no call could pass,
/// only the end: somewhat more than [`PATH_MAX`] bytes.
pub fn dir_path(dir: &InodeRef, root: Option<&InodeRef>) -> Option<Vec<u8>> {
    const UNREACHABLE: &[u8] = b"(unreachable)";
    let own_root = root.filter(|root| !same(root, &mount::root()));
    let mut backwards: Vec<u8> = Vec::new();
    let mut at = dir.clone();
    while backwards.len() <= PATH_MAX && !own_root.is_some_and(|root| same(root, &at)) {
        let mut all: Vec<_> = all_above(&at).collect();
        // Of a bound directory's names, one that leads to the root.
        let leads = |(above, _): &(InodeRef, _)| own_root.is_some_and(|root| is_below(above, root));
        let chosen = if all.len() > 1 { all.iter().position(leads).unwrap_or(0) } else { 0 };
        if chosen < all.len() {
            let (above, name) = all.swap_remove(chosen);
            backwards.extend(name.iter().rev());
            backwards.push(b'/');
            at = above;
        } else if same(&at, &mount::root()) {
            if own_root.is_some() {
                backwards.extend(UNREACHABLE.iter().rev());
            }
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
    /// Not, unless a slash behind it asks for what it leads to.
    No,
    /// Never: the call is about the name itself.
    Name,
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
            if self.wants_dir && place.inode.kind() != Kind::Dir {
                return Err(ENOTDIR);
            }
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
        let is_meant = match follow {
            Follow::Yes => false,
            Follow::No => step.last && !step.slash,
            Follow::Name => step.last,
        };
        if inode.kind() != Kind::Symlink || is_meant {
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

/// The directory above `dir`; the root's is itself. A walk doesn't know by which mount it came: of
/// several that may be above a bound directory, a process with a root of its own gets one below
/// that.
fn above(dir: &InodeRef, root: &InodeRef) -> Result<InodeRef> {
    if dir.kind() != Kind::Dir {
        return Err(ENOTDIR);
    }
    if same(dir, root) {
        return Ok(root.clone());
    }
    if !same(root, &mount::root()) {
        let mut all = all_above(dir).map(|(above, _)| above);
        return all.find(|above| is_below(above, root)).ok_or(ENOENT);
    }
    Ok(all_above(dir).next().map_or_else(|| dir.clone(), |(above, _)| above))
}

/// The directories above `dir`, each with the name that leads on: the one that holds its name, and
/// those above what it covers.
fn all_above(dir: &InodeRef) -> impl Iterator<Item = (InodeRef, Vec<u8>)> {
    let named = |(parent, name)| (mount::top(parent), name);
    let covered = mount::all_covered_by(dir).into_iter().filter_map(|mut covered| loop {
        if let Some(parent) = covered.parent() {
            return Some(parent);
        }
        covered = mount::covered_by(&covered)?;
    });
    dir.parent().into_iter().chain(covered).map(named)
}

/// Whether a walk from `root` may come to `dir`.
fn is_below(dir: &InodeRef, root: &InodeRef) -> bool {
    let mut left = Vec::from([dir.clone()]);
    // Of mounts that lead to each other, each is gone through once.
    let mut looks = 0;
    while let Some(dir) = left.pop() {
        let mut at = Some(dir);
        while let Some(dir) = at {
            sched::work_done(COMPONENT);
            if same(&dir, root) {
                return true;
            }
            looks += 1;
            if looks > MOST_LOOKS || proc::is_leaving() {
                return false;
            }
            let mut all = all_above(&dir).map(|(above, _)| above);
            at = all.next();
            left.extend(all);
        }
    }
    false
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
