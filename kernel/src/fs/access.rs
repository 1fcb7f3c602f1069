//! Who may do what to a file: owners, permission bits, the sticky bit.
//!
//! The superuser may do all, but execute only what somebody may execute. Checks look at the credentials of the
//! running process; the kernel's own opening of files at boot makes none.

use linux_raw_sys::general as abi;

use super::inode::{InodeRef, Kind, SetAttr, Stat};
use crate::errno::*;
use crate::proc;
use crate::sched;

pub const READ: u32 = abi::R_OK;
pub const WRITE: u32 = abi::W_OK;
pub const EXECUTE: u32 = abi::X_OK;

/// Whether the running process may use `node` in all the ways of `mask`; `EACCES` if not.
pub fn check(node: &InodeRef, mask: u32) -> Result<()> {
    let cred = proc::current_process().cred();
    if cred.fsuid == 0 {
        if mask & EXECUTE == 0 {
            return Ok(());
        }
        let stat = node.stat();
        return if stat.kind == Kind::Dir || stat.perm & 0o111 != 0 { Ok(()) } else { Err(EACCES) };
    }
    let stat = node.stat();
    let granted = if stat.uid == cred.fsuid {
        stat.perm >> 6
    } else if stat.gid == cred.fsgid || cred.groups.contains(&stat.gid) {
        stat.perm >> 3
    } else {
        stat.perm
    };
    if mask & !granted & 7 == 0 {
        Ok(())
    } else {
        Err(EACCES)
    }
}

/// Whether paths must be checked on the way: not for the superuser, and not for the kernel's own walks.
pub fn restricts_paths() -> bool {
    sched::current().user().is_some_and(|thread| thread.process.cred().fsuid != 0)
}

/// Gives a new node to the running process.
pub fn take_ownership(node: &InodeRef) -> Result<()> {
    let cred = proc::current_process().cred();
    if cred.fsuid == 0 && cred.fsgid == 0 {
        return Ok(());
    }
    node.set_attr(&SetAttr { uid: Some(cred.fsuid), gid: Some(cred.fsgid), ..SetAttr::default() })
}

/// Whether the running process may give a file with `stat` to these owners.
pub fn check_give(stat: &Stat, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
    let cred = proc::current_process().cred();
    let keeps_user = uid.is_none_or(|uid| uid == stat.uid);
    let own_group = gid.is_none_or(|gid| gid == stat.gid || gid == cred.fsgid || cred.groups.contains(&gid));
    if cred.fsuid == 0 || stat.uid == cred.fsuid && keeps_user && own_group {
        return Ok(());
    }
    Err(EPERM)
}

/// Whether names may be made in `dir`.
pub fn check_dir_write(dir: &InodeRef) -> Result<()> {
    check(dir, WRITE | EXECUTE)
}

/// Whether the name of `node` may be taken out of `dir`.
pub fn check_removal(dir: &InodeRef, node: &InodeRef) -> Result<()> {
    check_dir_write(dir)?;
    let uid = proc::current_process().cred().fsuid;
    let stat = dir.stat();
    if uid != 0 && stat.perm & abi::S_ISVTX != 0 && stat.uid != uid && node.stat().uid != uid {
        return Err(EPERM);
    }
    Ok(())
}

/// Whether the running process owns the file or is the superuser; `EPERM` if not.
pub fn check_owner(stat: &Stat) -> Result<()> {
    let uid = proc::current_process().cred().fsuid;
    if uid == 0 || uid == stat.uid {
        Ok(())
    } else {
        Err(EPERM)
    }
}

/// Whether the running process is the superuser.
pub fn check_root() -> Result<()> {
    if proc::current_process().cred().fsuid == 0 {
        Ok(())
    } else {
        Err(EPERM)
    }
}
