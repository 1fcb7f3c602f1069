//! What a process may do to a file: owners, permission bits, sticky and set-id bits, and the
//! capabilities that overrule them. The only place where ids are compared with those of files.
//!
//! Every function judges by the credentials and the ownership that it is given and looks at nothing
//! else, so that a file system can ask with its own lock held, of what it is about to change.

use linux_raw_sys::general as abi;

use super::acl::{self, Acl};
use super::inode::{Cover, Inode, Kind, Marks, Ownership, RenameMode, SetAttr};
use crate::cred::caps::Caps;
use crate::cred::Cred;
use crate::errno::*;
use crate::sched::{self, Nanos};

pub const READ: u32 = abi::R_OK;
pub const WRITE: u32 = abi::W_OK;
pub const EXECUTE: u32 = abi::X_OK;

const SET_IDS: u32 = abi::S_ISUID | abi::S_ISGID;
const GROUP_EXECUTES: u32 = abi::S_ISGID | abi::S_IXGRP;

/// Whether a node may be used in all the ways of `mask`.
///
/// # Errors
/// `EACCES`; `EPERM` for a write to what is immutable.
pub fn check(by: &Cred, node: &Ownership, mask: u32) -> Result<()> {
    if mask & WRITE != 0 && node.marks.immutable {
        return Err(EPERM);
    }
    let list = node.acl.as_ref().filter(|_| acl::is_asked(node));
    let granted = if node.uid == by.fsuid {
        node.perm >> 6
    } else if let Some(list) = list {
        if list.permits(by, node, mask) {
            mask
        } else {
            0
        }
    } else if by.in_group(node.gid) {
        node.perm >> 3
    } else {
        node.perm
    };
    if mask & !granted & 7 == 0 {
        return Ok(());
    }
    let is_dir = node.kind == Kind::Dir;
    let searches = if is_dir { mask & WRITE == 0 } else { mask == READ };
    let overrides = is_dir || mask & EXECUTE == 0 || node.perm & 0o111 != 0;
    if searches && by.has(Caps::DAC_READ_SEARCH) || overrides && by.has(Caps::DAC_OVERRIDE) {
        return Ok(());
    }
    Err(EACCES)
}

/// Whether paths must be checked on the way.
pub fn restricts_paths(by: &Cred) -> bool {
    !by.has(Caps::DAC_OVERRIDE) && !by.has(Caps::DAC_READ_SEARCH)
}

/// Whether the node counts as the caller's own.
fn owns(by: &Cred, node: &Ownership) -> bool {
    by.fsuid == node.uid || by.has(Caps::FOWNER)
}

/// Whether the node may be read with no trace of that in its access time.
///
/// # Errors
/// `EPERM`.
pub fn may_hide_reads(by: &Cred, node: &Ownership) -> Result<()> {
    if owns(by, node) {
        Ok(())
    } else {
        Err(EPERM)
    }
}

/// Whether a process may be told before others open the node: its owner.
///
/// # Errors
/// `EACCES`.
pub fn may_lease(by: &Cred, node: &Ownership) -> Result<()> {
    if by.fsuid == node.uid || by.has(Caps::LEASE) {
        Ok(())
    } else {
        Err(EACCES)
    }
}

/// Whether a node may be opened with `flags`, besides what [`check`] says of them.
///
/// # Errors
/// `EPERM`: it is append-only, and would be written to elsewhere, or cut.
pub fn may_open(node: &Ownership, flags: u32) -> Result<()> {
    let writes = flags & abi::O_ACCMODE != abi::O_RDONLY;
    if writes && flags & abi::O_APPEND == 0 || flags & abi::O_TRUNC != 0 {
        may_change_elsewhere(node)?;
    }
    Ok(())
}

/// Whether a node may be changed elsewhere than behind its end.
///
/// # Errors
/// `EPERM`: it is append-only.
pub fn may_change_elsewhere(node: &Ownership) -> Result<()> {
    if node.marks.append_only {
        Err(EPERM)
    } else {
        Ok(())
    }
}

/// Whether a node's contents may be changed through a file that is open; perhaps since before the
/// node was marked.
///
/// # Errors
/// `EPERM`: it is immutable.
pub fn may_change(node: &Ownership) -> Result<()> {
    if node.marks.immutable {
        Err(EPERM)
    } else {
        Ok(())
    }
}

/// Whether a node may get or lose a name, another owner or mode, or times of the caller's choice.
fn may_describe(node: &Ownership) -> Result<()> {
    may_change(node).and(may_change_elsewhere(node))
}

/// Whether what `chattr` sets may be changed, and the marks to `marks` by it.
///
/// # Errors
/// `EPERM`: the node is another's, or marks would change, for which it takes a capability.
pub fn may_change_flags(by: &Cred, node: &Ownership, marks: Marks) -> Result<()> {
    if !owns(by, node) {
        return Err(EPERM);
    }
    if node.marks != marks {
        by.need(Caps::LINUX_IMMUTABLE)?;
    }
    Ok(())
}

/// Whether room that a file system keeps for one user and group may be used.
pub fn may_use_reserve(by: &Cred, (uid, gid): (u32, u32)) -> bool {
    by.fsuid == uid || gid != 0 && by.in_group(gid) || by.has(Caps::SYS_RESOURCE)
}

/// Whether names may be made in `dir`.
///
/// # Errors
/// `EACCES`.
pub fn may_create(by: &Cred, dir: &Ownership) -> Result<()> {
    check(by, dir, WRITE | EXECUTE)
}

/// The owner of a new node in `dir`, and its mode.
pub fn reserved(by: &Cred, dir: &Ownership, kind: Kind, perm: u32) -> Ownership {
    let marks = Marks::default();
    let mut new =
        Ownership { kind, perm: perm & 0o7777, uid: by.fsuid, gid: by.fsgid, marks, acl: None };
    if dir.perm & abi::S_ISGID != 0 {
        new.gid = dir.gid;
        if kind == Kind::Dir {
            new.perm |= abi::S_ISGID;
        } else if perm & GROUP_EXECUTES == GROUP_EXECUTES
            && !by.in_group(dir.gid)
            && !by.has(Caps::FSETID)
        {
            new.perm &= !abi::S_ISGID;
        }
    }
    new
}

/// Whether the name of `node` may be taken out of `dir`.
///
/// # Errors
/// `EACCES`; `EPERM` for the sticky bit and for marks.
pub fn may_remove(by: &Cred, dir: &Ownership, node: &Ownership) -> Result<()> {
    check(by, dir, WRITE | EXECUTE)?;
    may_change_elsewhere(dir)?;
    may_describe(node)?;
    if dir.perm & abi::S_ISVTX != 0 && dir.uid != by.fsuid && !owns(by, node) {
        return Err(EPERM);
    }
    Ok(())
}

/// Whether a rename may move `node` from the directory `from` to `to`, where `target` has its new
/// name. The file system has found them with its lock held.
///
/// # Errors
/// `EEXIST` and `ENOENT` for the mode; `EACCES`; `EPERM` for the sticky bit; `EISDIR` or `ENOTDIR`
/// if a directory and another node would replace each other; `EBUSY` for a mount point.
pub fn may_rename(
    by: &Cred,
    (from, node): (&dyn Inode, &dyn Inode),
    (to, target): (&dyn Inode, Option<&dyn Inode>),
    mode: RenameMode,
) -> Result<()> {
    let (moved, to_dir) = (node.ownership(), to.ownership());
    let replaced = target.map(|target| target.ownership());
    match (mode, &replaced) {
        (RenameMode::NoReplace, Some(_)) => return Err(EEXIST),
        (RenameMode::Exchange, None) => return Err(ENOENT),
        _ => {}
    }
    may_remove(by, &from.ownership(), &moved)?;
    match &replaced {
        None => may_create(by, &to_dir)?,
        Some(replaced) => {
            may_remove(by, &to_dir, replaced)?;
            match (mode, moved.kind == Kind::Dir, replaced.kind == Kind::Dir) {
                (RenameMode::Exchange, ..) | (_, true, true) | (_, false, false) => {}
                (_, true, false) => return Err(ENOTDIR),
                (_, false, true) => return Err(EISDIR),
            }
        }
    }
    if !core::ptr::addr_eq(from, to) {
        // A directory that gets another parent is written to: its `..` changes.
        let back = replaced.as_ref().filter(|_| mode == RenameMode::Exchange);
        let mut dirs =
            [Some(&moved), back].into_iter().flatten().filter(|node| node.kind == Kind::Dir);
        dirs.try_for_each(|dir| check(by, dir, WRITE))?;
    }
    if [Some(node), target]
        .into_iter()
        .flatten()
        .any(|node| node.cover().is_some_and(Cover::is_covered))
    {
        return Err(EBUSY);
    }
    Ok(())
}

/// Whether a file may be given another name: by its owner, or by a process that may read and write
/// the file, so that no other user keeps a file that its owner removes (`protected_hardlinks` of
/// Linux).
///
/// # Errors
/// `EPERM`.
pub fn may_link(by: &Cred, node: &Ownership) -> Result<()> {
    may_describe(node)?;
    let gains = node.perm & abi::S_ISUID != 0 || node.perm & GROUP_EXECUTES == GROUP_EXECUTES;
    let is_plain = node.kind == Kind::File && !gains && check(by, node, READ | WRITE).is_ok();
    if is_plain || owns(by, node) {
        Ok(())
    } else {
        Err(EPERM)
    }
}

/// Whether a symbolic link at the end of a path is followed: in a sticky directory that anyone may
/// write to, only a link of the caller or of the directory's owner (`protected_symlinks` of Linux).
///
/// # Errors
/// `EACCES`.
pub fn may_follow(by: &Cred, dir: &Ownership, link: &Ownership) -> Result<()> {
    let anybodys = abi::S_ISVTX | abi::S_IWOTH;
    if dir.perm & anybodys != anybodys || link.uid == by.fsuid || link.uid == dir.uid {
        Ok(())
    } else {
        Err(EACCES)
    }
}

/// `chmod`.
///
/// # Errors
/// `EPERM`.
pub fn change_mode(by: &Cred, node: &Ownership, mode: u32) -> Result<SetAttr> {
    may_describe(node)?;
    if !owns(by, node) {
        return Err(EPERM);
    }
    let keeps = by.in_group(node.gid) || by.has(Caps::FSETID);
    let perm = if keeps { mode } else { mode & !abi::S_ISGID };
    Ok(SetAttr { perm: Some(perm & 0o7777), ..SetAttr::default() })
}

/// The mode of a node that is given an access list, which programs give by owners.
///
/// # Errors
/// `EPERM`.
pub fn change_list(by: &Cred, node: &Ownership, list: Option<&Acl>) -> Result<u32> {
    may_own(by, node)?;
    let Some(list) = list else { return Ok(node.perm) };
    let keeps = by.in_group(node.gid) || by.has(Caps::FSETID);
    let lost = if keeps { 0 } else { abi::S_ISGID };
    Ok((node.perm & !0o777 | list.mode()) & !lost)
}

/// Whether what only owners change may be.
///
/// # Errors
/// `EPERM`.
pub fn may_own(by: &Cred, node: &Ownership) -> Result<()> {
    may_hide_reads(by, node)
}

/// `chown`: the set-id bits go, as they must when a file changes hands.
///
/// # Errors
/// `EPERM`.
pub fn change_owner(
    by: &Cred,
    node: &Ownership,
    uid: Option<u32>,
    gid: Option<u32>,
) -> Result<SetAttr> {
    may_describe(node)?;
    let own = by.fsuid == node.uid;
    let user = uid.is_none_or(|uid| own && uid == node.uid);
    let group = gid.is_none_or(|gid| own && (gid == node.gid || by.in_group(gid)));
    if !(user && group || by.has(Caps::CHOWN)) {
        return Err(EPERM);
    }
    let mut change = SetAttr { uid, gid, ..SetAttr::default() };
    let lost = if node.kind == Kind::Dir { 0 } else { set_ids_lost(by, node) };
    if lost != 0 {
        // Taking set-id bits away is a change of the mode.
        if !owns(by, node) {
            return Err(EPERM);
        }
        change.perm = Some(node.perm & !lost);
    }
    Ok(change)
}

/// The set-id bits that go when the node is changed by `by`.
fn set_ids_lost(by: &Cred, node: &Ownership) -> u32 {
    let group_stays =
        node.perm & abi::S_IXGRP == 0 && (by.in_group(node.gid) || by.has(Caps::FSETID));
    node.perm & if group_stays { abi::S_ISUID } else { SET_IDS }
}

/// The mode that is left of a file after the running process wrote to it or cut it; `None` if it
/// stays. A program that another user changed must not run with its owner's rights.
pub fn mode_after_write(node: &Ownership) -> Option<u32> {
    if node.perm & SET_IDS == 0 || node.kind != Kind::File {
        return None;
    }
    let by = sched::current().user()?.process.cred();
    let lost = set_ids_lost(&by, node);
    (lost != 0 && !by.has(Caps::FSETID)).then_some(node.perm & !lost)
}

/// What `utimensat` was asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Times {
    /// Both are to be now, as a write would have it.
    Now(Nanos),
    /// Access and modification; `None` leaves one.
    Given([Option<Nanos>; 2]),
}

/// Changes times: all may be set by the owner; processes that may write may do what a write does.
///
/// # Errors
/// `EPERM`, `EACCES`.
pub fn change_times(by: &Cred, node: &Ownership, times: Times) -> Result<SetAttr> {
    let [atime, mtime] = match times {
        Times::Now(now) => {
            may_change(node)?;
            if !owns(by, node) {
                check(by, node, WRITE)?;
            }
            [Some(now); 2]
        }
        Times::Given(times) if owns(by, node) => {
            may_describe(node)?;
            times
        }
        Times::Given(_) => return Err(EPERM),
    };
    Ok(SetAttr { atime, mtime, ..SetAttr::default() })
}
