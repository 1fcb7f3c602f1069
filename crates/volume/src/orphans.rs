//! Inodes without a name that were not freed yet: a list on the volume, from the superblock by way
//! of the inodes, so that a mount after a crash frees them.
//!
//! I1: the list in memory is that on the volume, the last one first there.

use crate::inode::{self, Inode};
use crate::{Device, ErrorKind, Result, Timestamp, Volume};

impl<D: Device> Volume<D> {
    /// Adds an inode that has just lost its last name; the caller puts it.
    pub(crate) fn add_orphan(&mut self, inode: &mut Inode) {
        inode.set_deleted(self.counts.last_orphan);
        self.counts.last_orphan = inode.ino;
        self.lost.push(inode.ino);
    }

    /// Where the list has an inode: it is likely to be near the end.
    fn orphan_at(&self, ino: u32) -> Result<usize> {
        let at = self.orphans.iter().rposition(|&other| other == ino);
        at.ok_or(ErrorKind::InvalidInput)
    }

    /// Takes an inode out of the list on the volume.
    fn remove_orphan(&mut self, inode: &Inode) -> Result<()> {
        let at = self.orphan_at(inode.ino)?;
        match self.orphans.get(at + 1) {
            Some(&before) => {
                let mut before = self.inode(before)?;
                before.set_deleted(inode.deleted());
                self.put_inode(&before)?;
            }
            None => self.counts.last_orphan = inode.deleted(),
        }
        Ok(())
    }

    /// Frees blocks of an inode without names, and when it has none any more the inode; `true`: it
    /// is gone.
    fn reap_some(&mut self, ino: u32, now: Timestamp) -> Result<bool> {
        let mut inode = self.inode(ino)?;
        let has_map = match inode.kind() {
            inode::FILE | inode::DIR => true,
            inode::LINK => !self.is_short_link(&inode),
            _ => false,
        };
        let is_empty = match (has_map, inode.has(inode::EXTENTS)) {
            (false, _) => true,
            (_, true) => self.free_last(&mut inode, 0, crate::extents::MOST_BLOCKS + 1)?.is_none(),
            (_, false) => self.free_indirect(&mut inode)?,
        };
        if is_empty {
            self.drop_attributes(&mut inode)?;
            self.remove_orphan(&inode)?;
            inode.set_size(0);
            // Not to be taken for the number of an inode.
            let now = now.sec.clamp(0, u32::MAX.into()) as u32;
            inode.set_deleted(now.max(self.layout.inodes.saturating_add(1)));
            self.free_inode(ino, inode.is_dir())?;
        }
        self.put_inode(&inode)?;
        Ok(is_empty)
    }

    /// Frees an inode in steps that may be committed apart.
    pub(crate) fn reap_all(&mut self, ino: u32) -> Result<()> {
        let at = self.orphan_at(ino)?;
        let now = self.now();
        loop {
            match self.attempt(|volume| volume.reap_some(ino, now)) {
                Ok(true) => break,
                Ok(false) => {}
                Err(kind) => {
                    if !is_passing(kind) {
                        self.stuck.insert(ino);
                    }
                    return Err(kind);
                }
            }
        }
        self.orphans.remove(at);
        self.index.forget(ino);
        Ok(())
    }

    /// Frees what a crash has left of inodes without names; forgets a list that leads nowhere.
    pub(crate) fn reap_orphans(&mut self) -> Result<()> {
        let (mut list, mut next) = (alloc::vec::Vec::new(), self.counts.last_orphan);
        while next != 0 && list.len() < self.layout.inodes as usize {
            let Ok(inode) = self.inode(next) else { break };
            if next == self.root() || !self.may_have_name(next) || list.len() == MOST {
                break;
            }
            list.push(next);
            next = inode.deleted();
        }
        list.reverse();
        self.orphans = list;
        while let Some(&ino) = self.orphans.last() {
            let done = match self.inode(ino)?.links() {
                0 => self.reap_all(ino),
                _ => self.cut_orphan(ino),
            };
            match done {
                Err(kind) if !is_passing(kind) => break,
                done => done?,
            }
        }
        self.orphans.clear();
        self.stuck.clear();
        self.counts.last_orphan = 0;
        Ok(())
    }

    /// Ends the truncation of a file that has names, which a crash has interrupted.
    fn cut_orphan(&mut self, ino: u32) -> Result<()> {
        let size = self.inode(ino)?.size();
        if self.inode(ino)?.has(inode::EXTENTS) {
            self.free_behind(ino, size)?;
        }
        self.attempt(|volume| {
            let mut inode = volume.inode(ino)?;
            volume.remove_orphan(&inode)?;
            inode.set_deleted(0);
            volume.put_inode(&inode)
        })?;
        self.orphans.pop();
        Ok(())
    }
}

/// Whether a later attempt may do better: it isn't the volume that is damaged.
fn is_passing(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Io | ErrorKind::JournalAborted | ErrorKind::NoMemory | ErrorKind::ReadOnly
    )
}

/// Inodes that a mount looks at; more are left to `e2fsck`.
const MOST: usize = 1 << 20;
