//! Extended attributes: values that programs leave at a node by names (xattr(7)). Files in memory
//! keep those of `trusted.` and `security.`, and access lists, as on Linux 6.1; no other file
//! system here keeps any.

use alloc::boxed::Box;
use alloc::vec::Vec;

use linux_raw_sys::general as abi;

use super::access;
use super::acl::{Acl, Which};
use super::inode::{InodeRef, Kind};
use crate::charge::Charge;
use crate::cred::caps::Caps;
use crate::cred::Cred;
use crate::errno::*;
use crate::mem::fault::Room;
use crate::sync::SpinLock;

/// The longest name, value, and list of names.
pub const NAME_MAX: usize = 255;
pub const VALUE_MAX: usize = 65536;
/// Attributes that a node has at most.
const MOST: usize = 255;

const TRUSTED: &[u8] = b"trusted.";
const SECURITY: &[u8] = b"security.";
const USER: &[u8] = b"user.";
/// Rights that a program gets with a file, which `execve` here doesn't give.
const CAPABILITY: &[u8] = b"security.capability";

struct Attribute {
    name: Box<[u8]>,
    value: Box<[u8]>,
    _charge: Charge,
}

/// The attributes of a node.
#[derive(Default)]
pub struct Attributes(SpinLock<Vec<Attribute>>);

impl Attributes {
    fn get(&self, name: &[u8], most: usize) -> Result<Vec<u8>> {
        loop {
            // Room is made without the lock.
            let len = self.with(name, |value| value.len())?;
            if most != 0 && len > most {
                return Err(ERANGE);
            }
            let mut copy = Vec::new();
            copy.room(len)?;
            let fits = self.with(name, |value| {
                let fits = value.len() <= copy.capacity();
                if fits {
                    copy.extend_from_slice(value);
                }
                fits
            })?;
            if fits {
                return Ok(copy);
            }
        }
    }

    fn with<T>(&self, name: &[u8], look: impl FnOnce(&[u8]) -> T) -> Result<T> {
        let all = self.0.lock();
        let found = all.iter().find(|one| *one.name == *name).ok_or(ENODATA)?;
        Ok(look(&found.value))
    }

    fn set(&self, name: &[u8], value: Vec<u8>, flags: u32, by: &Cred) -> Result<()> {
        let bytes = size_of::<Attribute>() + name.len() + value.len();
        let _charge = Charge::lasting(by.uid, bytes).map_err(|_| ENOSPC)?;
        let new = Attribute { name: name.into(), value: value.into_boxed_slice(), _charge };
        let mut all = self.0.lock();
        let at = all.iter().position(|one| *one.name == *name);
        let old = match at {
            Some(_) if flags & abi::XATTR_CREATE != 0 => return Err(EEXIST),
            None if flags & abi::XATTR_REPLACE != 0 => return Err(ENODATA),
            None if all.len() == MOST => return Err(ENOSPC),
            Some(at) => Some(core::mem::replace(&mut all[at], new)),
            None => {
                all.room(1)?;
                all.push(new);
                None
            }
        };
        drop(all);
        drop(old);
        Ok(())
    }

    fn remove(&self, name: &[u8]) -> Result<()> {
        let mut all = self.0.lock();
        let at = all.iter().position(|one| *one.name == *name).ok_or(ENODATA)?;
        let old = all.remove(at);
        drop(all);
        drop(old);
        Ok(())
    }

    /// All names that a process may see, each with a zero byte behind it.
    fn names(&self, by: &Cred) -> Result<Vec<u8>> {
        let sees_trusted = by.has(Caps::SYS_ADMIN);
        let is_seen = |one: &&Attribute| sees_trusted || !one.name.starts_with(TRUSTED);
        let mut names = Vec::new();
        loop {
            let len = self.0.lock().iter().filter(is_seen).map(|one| one.name.len() + 1).sum();
            names.room(len)?;
            let all = self.0.lock();
            let now: usize = all.iter().filter(is_seen).map(|one| one.name.len() + 1).sum();
            if now <= names.capacity() {
                for one in all.iter().filter(is_seen) {
                    names.extend_from_slice(&one.name);
                    names.push(0);
                }
                return Ok(names);
            }
        }
    }
}

/// Whether a process may read or change an attribute, whatever keeps it.
///
/// # Errors
/// `EPERM` for a change, `ENODATA` for a look; `EACCES`.
fn may(by: &Cred, node: &InodeRef, name: &[u8], changes: bool) -> Result<()> {
    let own = node.ownership();
    let hidden = if changes { EPERM } else { ENODATA };
    if changes && (own.marks.immutable || own.marks.append_only) {
        return Err(EPERM);
    }
    if name.starts_with(SECURITY) || name.starts_with(b"system.") {
        return Ok(());
    }
    if name.starts_with(TRUSTED) {
        return if by.has(Caps::SYS_ADMIN) { Ok(()) } else { Err(hidden) };
    }
    if name.starts_with(USER) && !matches!(node.kind(), Kind::File | Kind::Dir) {
        return Err(hidden);
    }
    node.permits(by, if changes { access::WRITE } else { access::READ })
}

/// Where a node keeps an attribute.
///
/// # Errors
/// `EOPNOTSUPP`; `EINVAL` for a space without a name.
fn kept<'a>(node: &'a InodeRef, name: &[u8]) -> Result<&'a Attributes> {
    let spaces = [TRUSTED, SECURITY];
    let rest = spaces.iter().find_map(|space| name.strip_prefix(*space)).ok_or(EOPNOTSUPP)?;
    let attributes = node.attributes().filter(|_| name != CAPABILITY).ok_or(EOPNOTSUPP)?;
    if rest.is_empty() {
        return Err(EINVAL);
    }
    Ok(attributes)
}

/// The value of an attribute of at most `most` bytes; with 0, however long it is.
///
/// # Errors
/// `ENODATA`, `ERANGE`, `EOPNOTSUPP`, `EACCES`, `ENOMEM`.
pub fn get(by: &Cred, node: &InodeRef, name: &[u8], most: usize) -> Result<Vec<u8>> {
    may(by, node, name, false)?;
    let Some(which) = list_named(name) else { return kept(node, name)?.get(name, most) };
    let list = node.access_list(which)?.ok_or(ENODATA)?.for_program()?;
    if most != 0 && list.len() > most {
        return Err(ERANGE);
    }
    Ok(list)
}

/// Gives a node an attribute.
///
/// # Errors
/// `EEXIST`, `ENODATA` by `flags`; `EPERM`, `EACCES`, `EOPNOTSUPP`, `ENOSPC`, `ENOMEM`. Nothing has
/// changed.
pub fn set(by: &Cred, node: &InodeRef, name: &[u8], value: Vec<u8>, flags: u32) -> Result<()> {
    may_change(by, node, name)?;
    if let Some(which) = list_named(name) {
        return set_list(by, node, which, Acl::of_program(&value)?);
    }
    kept(node, name)?.set(name, value, flags, by)
}

/// Gives a node an access list, or takes it away.
fn set_list(by: &Cred, node: &InodeRef, which: Which, list: Option<Acl>) -> Result<()> {
    node.access_list(which)?;
    if which == Which::Default && node.kind() != Kind::Dir {
        return if list.is_some() { Err(EACCES) } else { Ok(()) };
    }
    access::may_own(by, &node.ownership())?;
    list.as_ref().map_or(Ok(()), Acl::check)?;
    node.set_access_list(which, list, by)
}

/// Takes an attribute away.
///
/// # Errors
/// `ENODATA`; as [`set`].
pub fn remove(by: &Cred, node: &InodeRef, name: &[u8]) -> Result<()> {
    may_change(by, node, name)?;
    match list_named(name) {
        Some(which) => set_list(by, node, which, None),
        None => kept(node, name)?.remove(name),
    }
}

fn may_change(by: &Cred, node: &InodeRef, name: &[u8]) -> Result<()> {
    may(by, node, name, true)?;
    if name.starts_with(SECURITY) && name != CAPABILITY {
        by.need(Caps::SYS_ADMIN)?;
    }
    Ok(())
}

/// The names of a node's attributes, each with a zero byte behind it.
///
/// # Errors
/// `ENOMEM`.
pub fn names(by: &Cred, node: &InodeRef) -> Result<Vec<u8>> {
    let mut names = Vec::new();
    for (name, which) in LISTS {
        if matches!(node.access_list(which), Ok(Some(_))) {
            names.room(name.len() + 1)?;
            names.extend(name);
            names.push(0);
        }
    }
    if let Some(attributes) = node.attributes() {
        let others = attributes.names(by)?;
        names.room(others.len())?;
        names.extend(others);
    }
    Ok(names)
}

/// The names of access lists.
const LISTS: [(&[u8], Which); 2] =
    [(b"system.posix_acl_access", Which::Access), (b"system.posix_acl_default", Which::Default)];

fn list_named(name: &[u8]) -> Option<Which> {
    LISTS.iter().find(|(list, _)| *list == name).map(|&(_, which)| which)
}
