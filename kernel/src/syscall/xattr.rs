//! System calls on extended attributes.

use alloc::vec::Vec;

use linux_raw_sys::general as abi;

use super::path_args::{only, place, CWD};
use super::{calls, Calls};
use crate::errno::*;
use crate::fs::path::{Follow, Place};
use crate::fs::xattr::{self, NAME_MAX, VALUE_MAX};
use crate::mem::fault::Room;
use crate::proc::curproc;
use crate::user;

pub const CALLS: Calls = calls! {
    __NR_setxattr => setxattr[5], __NR_lsetxattr => lsetxattr[5], __NR_fsetxattr => fsetxattr[5],
    __NR_getxattr => getxattr[4], __NR_lgetxattr => lgetxattr[4], __NR_fgetxattr => fgetxattr[4],
    __NR_listxattr => listxattr[3], __NR_llistxattr => llistxattr[3], __NR_flistxattr => flistxattr[3],
    __NR_removexattr => removexattr[2], __NR_lremovexattr => lremovexattr[2],
    __NR_fremovexattr => fremovexattr[2],
};

fn path(path: u64) -> Result<Place> {
    place(CWD, path, Follow::Yes)
}

fn link(path: u64) -> Result<Place> {
    place(CWD, path, Follow::No)
}

fn file(fd: i32) -> Result<Place> {
    Ok(curproc::file(fd)?.place().clone())
}

/// The name of an attribute: neither empty nor too long.
fn name(name: u64) -> Result<Vec<u8>> {
    match user::read_cstr(name, NAME_MAX + 1) {
        Ok(name) if name.is_empty() => Err(ERANGE),
        Err(ENAMETOOLONG) => Err(ERANGE),
        found => found,
    }
}

fn set(place: &Place, name_at: u64, value: u64, size: usize, flags: u32) -> Result<()> {
    place.may_change()?;
    only(flags, abi::XATTR_CREATE | abi::XATTR_REPLACE)?;
    let name = name(name_at)?;
    if size > VALUE_MAX {
        return Err(E2BIG);
    }
    let mut bytes = Vec::new();
    bytes.room(size)?;
    bytes.resize(size, 0);
    user::copy_in(&mut bytes, value)?;
    xattr::set(&curproc::cred(), &place.inode, &name, bytes, flags)
}

/// Writes bytes out, and says how many; with no room at all, that alone.
fn put(bytes: &[u8], at: u64, size: usize) -> Result<usize> {
    if size != 0 && bytes.len() > size {
        return Err(ERANGE);
    }
    if size != 0 && !bytes.is_empty() {
        user::copy_out(at, bytes)?;
    }
    Ok(bytes.len())
}

fn get(place: &Place, name_at: u64, value: u64, size: usize) -> Result<usize> {
    let name = name(name_at)?;
    put(&xattr::get(&curproc::cred(), &place.inode, &name, size)?, value, size)
}

fn list(place: &Place, names: u64, size: usize) -> Result<usize> {
    put(&xattr::names(&curproc::cred(), &place.inode)?, names, size)
}

fn remove(place: &Place, name_at: u64) -> Result<()> {
    place.may_change()?;
    xattr::remove(&curproc::cred(), &place.inode, &name(name_at)?)
}

fn setxattr(at: u64, name: u64, value: u64, size: usize, flags: u32) -> Result<()> {
    set(&path(at)?, name, value, size, flags)
}

fn lsetxattr(at: u64, name: u64, value: u64, size: usize, flags: u32) -> Result<()> {
    set(&link(at)?, name, value, size, flags)
}

fn fsetxattr(fd: i32, name: u64, value: u64, size: usize, flags: u32) -> Result<()> {
    set(&file(fd)?, name, value, size, flags)
}

fn getxattr(at: u64, name: u64, value: u64, size: usize) -> Result<usize> {
    get(&path(at)?, name, value, size)
}

fn lgetxattr(at: u64, name: u64, value: u64, size: usize) -> Result<usize> {
    get(&link(at)?, name, value, size)
}

fn fgetxattr(fd: i32, name: u64, value: u64, size: usize) -> Result<usize> {
    get(&file(fd)?, name, value, size)
}

fn listxattr(at: u64, names: u64, size: usize) -> Result<usize> {
    list(&path(at)?, names, size)
}

fn llistxattr(at: u64, names: u64, size: usize) -> Result<usize> {
    list(&link(at)?, names, size)
}

fn flistxattr(fd: i32, names: u64, size: usize) -> Result<usize> {
    list(&file(fd)?, names, size)
}

fn removexattr(at: u64, name: u64) -> Result<()> {
    remove(&path(at)?, name)
}

fn lremovexattr(at: u64, name: u64) -> Result<()> {
    remove(&link(at)?, name)
}

fn fremovexattr(fd: i32, name: u64) -> Result<()> {
    remove(&file(fd)?, name)
}
