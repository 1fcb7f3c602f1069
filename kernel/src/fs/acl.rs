//! Access lists: rights of users and groups by name, besides the owner's, the group's and the
//! others' (POSIX.1e, acl(5)), as ext4 keeps them. Lists that a disk has are heeded, kept up to
//! date by `chmod` and inherited by what is made in a directory with a default list; no call makes
//! or shows one.

use alloc::vec::Vec;

use linux_raw_sys::general as abi;

use super::inode::Ownership;
use crate::cred::Cred;

/// The first bytes of a list on the disk.
const VERSION: u32 = 1;
const HEADER: usize = 4;

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
}

impl Acl {
    /// A list as the disk has it. One that makes no sense gives no rights to any but the owner.
    pub fn parse(bytes: &[u8]) -> Acl {
        Acl { entries: entries(bytes).unwrap_or_default() }
    }

    /// A list that could not be read.
    pub fn unreadable() -> Acl {
        Acl { entries: Vec::new() }
    }

    /// The list as the disk has it.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::from(VERSION.to_le_bytes());
        for entry in &self.entries {
            bytes.extend((entry.tag as u16).to_le_bytes());
            bytes.extend(entry.perm.to_le_bytes());
            if matches!(entry.tag, Tag::User | Tag::NamedGroup) {
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
        Acl { entries: self.entries.iter().map(changed).collect() }
    }

    /// What is made with mode `perm` in a directory with this default list: its mode, and its list
    /// if that says more.
    pub fn inherited(&self, perm: u32) -> (u32, Option<Acl>) {
        let has_mask = self.perm_of(Tag::Mask).is_some();
        let limit = |tag, shift: u32| {
            u32::from(self.perm_of(tag).unwrap_or(0)) << shift & perm & 7 << shift
        };
        let group = if has_mask { Tag::Mask } else { Tag::Group };
        let rights = limit(Tag::Owner, 6) | limit(group, 3) | limit(Tag::Others, 0);
        let perm = perm & !0o777 | rights;
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
        let tag = match number(at, 2)? {
            1 => Tag::Owner,
            2 => Tag::User,
            4 => Tag::Group,
            8 => Tag::NamedGroup,
            16 => Tag::Mask,
            32 => Tag::Others,
            _ => return None,
        };
        let perm = number(at + 2, 2)? as u16;
        at += 4;
        let mut id = 0;
        if matches!(tag, Tag::User | Tag::NamedGroup) {
            id = number(at, 4)?;
            at += 4;
        }
        entries.push(Entry { tag, perm, id });
    }
    let count = |tag| entries.iter().filter(|entry| entry.tag == tag).count();
    let has_classes = [Tag::Owner, Tag::Group, Tag::Others].iter().all(|&tag| count(tag) == 1);
    let is_masked = count(Tag::Mask) == 1 || entries.len() == 3;
    (has_classes && is_masked && entries.iter().all(|entry| entry.perm & !7 == 0))
        .then_some(entries)
}

/// Whether a mode leaves a list anything to say: with no rights for the group's class, Linux does
/// not look at it.
pub fn is_asked(node: &Ownership) -> bool {
    node.perm & abi::S_IRWXG != 0
}
