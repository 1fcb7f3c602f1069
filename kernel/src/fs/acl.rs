//! Access lists: rights of users and groups by name, besides the owner's, the group's and the
//! others' (POSIX.1e, acl(5)). They are heeded, kept up to date by `chmod` and inherited by what is
//! made in a directory with a default list. Programs give and get those of files in memory as
//! attributes (`xattr`), in a form of their own; ext4 has another.

use alloc::vec::Vec;

use linux_raw_sys::general as abi;

use super::inode::Ownership;
use crate::charge::Charge;
use crate::cred::Cred;
use crate::errno::*;
use crate::mem::fault::Room;

/// The first bytes of a list on the disk.
const VERSION: u32 = 1;
const HEADER: usize = 4;

/// The same of a program's list.
const PROGRAM_VERSION: u32 = 2;
/// Bytes of an entry there, which has a number whether it means something or not.
const PROGRAM_ENTRY: usize = 8;
const NOBODY: u32 = u32::MAX;
/// Entries of a list that a program gives.
const MOST: usize = 512;

/// Which of the two lists that a node may have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Which {
    Access,
    /// Of a directory: what is made there begins with it.
    Default,
}

/// The kinds of subject that an entry is about, by their numbers on the disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tag {
    Owner = 1,
    User = 2,
    Group = 4,
    NamedGroup = 8,
    /// The most that any but the owner and the others get: what `chmod` and `stat` show as the
    /// group's.
    Mask = 16,
    Others = 32,
}

impl Tag {
    fn numbered(number: u32) -> Option<Tag> {
        Some(match number {
            1 => Tag::Owner,
            2 => Tag::User,
            4 => Tag::Group,
            8 => Tag::NamedGroup,
            16 => Tag::Mask,
            32 => Tag::Others,
            _ => return None,
        })
    }

    fn has_id(self) -> bool {
        matches!(self, Tag::User | Tag::NamedGroup)
    }
}

#[derive(Clone, Copy)]
struct Entry {
    tag: Tag,
    perm: u16,
    /// Of a user or group by name.
    id: u32,
}

/// A node's list.
pub struct Acl {
    /// None of a list that can't be read: it gives no rights.
    entries: Vec<Entry>,
    charge: Option<Charge>,
}

impl Acl {
    /// A list as a program gives it; none for one without entries. [`check`](Self::check) says
    /// whether it makes sense.
    ///
    /// # Errors
    /// `EINVAL`, `EOPNOTSUPP` for another form, `ENOSPC` for a very long one, `ENOMEM`.
    pub fn of_program(bytes: &[u8]) -> Result<Option<Acl>> {
        let (version, rest) = bytes.split_first_chunk().ok_or(EINVAL)?;
        if u32::from_le_bytes(*version) != PROGRAM_VERSION {
            return Err(EOPNOTSUPP);
        }
        let (parts, []) = rest.as_chunks::<PROGRAM_ENTRY>() else { return Err(EINVAL) };
        if parts.len() > MOST {
            return Err(ENOSPC);
        }
        let mut entries = Vec::new();
        entries.room(parts.len())?;
        for [t0, t1, p0, p1, id @ ..] in parts {
            let tag = Tag::numbered(u16::from_le_bytes([*t0, *t1]).into()).ok_or(EINVAL)?;
            let id = if tag.has_id() { u32::from_le_bytes(*id) } else { NOBODY };
            if tag.has_id() && id == NOBODY {
                return Err(EINVAL);
            }
            entries.push(Entry { tag, perm: u16::from_le_bytes([*p0, *p1]), id });
        }
        Ok((!entries.is_empty()).then_some(Acl { entries, charge: None }))
    }

    /// The list as programs get it.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn for_program(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        bytes.room(HEADER + self.entries.len() * PROGRAM_ENTRY)?;
        bytes.extend(PROGRAM_VERSION.to_le_bytes());
        for entry in &self.entries {
            let id = if entry.tag.has_id() { entry.id } else { NOBODY };
            bytes.extend((entry.tag as u16).to_le_bytes());
            bytes.extend(entry.perm.to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        Ok(bytes)
    }

    /// Whether it has what a list must have, in order.
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn check(&self) -> Result<()> {
        let is_sorted = self.entries.is_sorted_by_key(|entry| entry.tag as u16);
        if is_sorted && is_valid(&self.entries) {
            Ok(())
        } else {
            Err(EINVAL)
        }
    }

    /// Whether it says no more than a mode does.
    pub fn is_mode_alone(&self) -> bool {
        self.entries.len() == CLASSES.len()
    }

    /// The list, charged to a user.
    ///
    /// # Errors
    /// `ENOSPC`: the user has all that it may.
    pub fn charged(self, uid: u32) -> Result<Acl> {
        let bytes = size_of::<Acl>() + self.entries.len() * size_of::<Entry>();
        let charge = Charge::lasting(uid, bytes).map_err(|_| ENOSPC)?;
        Ok(Acl { charge: Some(charge), ..self })
    }

    /// The user that it is charged to.
    pub fn uid(&self) -> Option<u32> {
        self.charge.as_ref().map(Charge::uid)
    }

    /// The mode's bits that say the same, as far as they can.
    pub fn mode(&self) -> u32 {
        let has_mask = self.perm_of(Tag::Mask).is_some();
        let group = if has_mask { Tag::Mask } else { Tag::Group };
        let bits = |tag, shift: u32| u32::from(self.perm_of(tag).unwrap_or(0)) << shift;
        bits(Tag::Owner, 6) | bits(group, 3) | bits(Tag::Others, 0)
    }

    /// A list as the disk has it. One that makes no sense gives no rights to any but the owner.
    pub fn parse(bytes: &[u8]) -> Acl {
        Acl { entries: entries(bytes).unwrap_or_default(), charge: None }
    }

    /// A list that could not be read.
    pub fn unreadable() -> Acl {
        Acl { entries: Vec::new(), charge: None }
    }

    /// The list as the disk has it.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::from(VERSION.to_le_bytes());
        for entry in &self.entries {
            bytes.extend((entry.tag as u16).to_le_bytes());
            bytes.extend(entry.perm.to_le_bytes());
            if entry.tag.has_id() {
                bytes.extend(entry.id.to_le_bytes());
            }
        }
        bytes
    }

    /// Whether the list can be written back.
    pub fn is_readable(&self) -> bool {
        !self.entries.is_empty()
    }

    fn perm_of(&self, tag: Tag) -> Option<u16> {
        self.entries.iter().find(|entry| entry.tag == tag).map(|entry| entry.perm)
    }

    /// Whether a process that isn't the owner may use the node in all the ways of `mask`.
    pub fn permits(&self, by: &Cred, node: &Ownership, mask: u32) -> bool {
        let mask = (mask & 7) as u16;
        let most = self.perm_of(Tag::Mask).unwrap_or(7);
        let mut is_named = false;
        for entry in &self.entries {
            let is_meant = match entry.tag {
                Tag::User if entry.id == by.fsuid => return mask & !(entry.perm & most) == 0,
                Tag::Group => by.in_group(node.gid),
                Tag::NamedGroup => by.in_group(entry.id),
                _ => false,
            };
            is_named |= is_meant;
            if is_meant && mask & !entry.perm == 0 {
                return mask & !most == 0;
            }
        }
        !is_named && self.perm_of(Tag::Others).is_some_and(|perm| mask & !perm == 0)
    }

    /// The list after the node's mode has become `perm`.
    pub fn with_mode(&self, perm: u32) -> Acl {
        let has_mask = self.perm_of(Tag::Mask).is_some();
        let class = |shift: u32| (perm >> shift & 7) as u16;
        let changed = |entry: &Entry| {
            let perm = match entry.tag {
                Tag::Owner => class(6),
                Tag::Mask => class(3),
                Tag::Group if !has_mask => class(3),
                Tag::Others => class(0),
                _ => entry.perm,
            };
            Entry { perm, ..*entry }
        };
        Acl { entries: self.entries.iter().map(changed).collect(), charge: None }
    }

    /// What is made with mode `perm` in a directory with this default list: its mode, and its list
    /// if that says more.
    pub fn inherited(&self, perm: u32) -> (u32, Option<Acl>) {
        let has_mask = self.perm_of(Tag::Mask).is_some();
        let perm = perm & (!0o777 | self.mode());
        (perm, has_mask.then(|| self.with_mode(perm)))
    }
}

/// The entries, if they are such: an owner's, a group's and the others', a mask if there are more,
/// known tags alone.
fn entries(bytes: &[u8]) -> Option<Vec<Entry>> {
    let number = |at: usize, len: usize| {
        let mut word = [0; 4];
        word[..len].copy_from_slice(bytes.get(at..at + len)?);
        Some(u32::from_le_bytes(word))
    };
    if number(0, HEADER)? != VERSION {
        return None;
    }
    let mut entries = Vec::new();
    let mut at = HEADER;
    while at < bytes.len() {
        let tag = Tag::numbered(number(at, 2)?)?;
        let perm = number(at + 2, 2)? as u16;
        at += 4;
        let mut id = 0;
        if tag.has_id() {
            id = number(at, 4)?;
            at += 4;
        }
        entries.push(Entry { tag, perm, id });
    }
    is_valid(&entries).then_some(entries)
}

/// The tags that each list has once.
const CLASSES: [Tag; 3] = [Tag::Owner, Tag::Group, Tag::Others];

fn is_valid(entries: &[Entry]) -> bool {
    let count = |tag| entries.iter().filter(|entry| entry.tag == tag).count();
    let has_classes = CLASSES.iter().all(|&tag| count(tag) == 1);
    let is_masked = count(Tag::Mask) == 1 || entries.len() == CLASSES.len();
    has_classes && is_masked && entries.iter().all(|entry| entry.perm & !7 == 0)
}

/// Whether a mode leaves a list anything to say: with no rights for the group's class, Linux does
/// not look at it.
pub fn is_asked(node: &Ownership) -> bool {
    node.perm & abi::S_IRWXG != 0
}
