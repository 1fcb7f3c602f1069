//! The initramfs: unpacks an archive into a file system at boot.

use alloc::string::String;
use alloc::vec::Vec;

use hashbrown::HashMap;

use super::cpio::{Entry, Reader};
use super::inode::{downcast, Asked, InodeRef, Kind, NewNode, SetAttr};
use super::path::{walk, Dir, Follow, Start};
use super::tmpfs::TmpNode;
use crate::errno::*;
use crate::mem::Initramfs;
use crate::println;

/// Unpacks `archive` below `root`, and frees its memory on the way; members that can't be made are
/// left out and counted, and so is what is no member. Says what became of the first of them.
pub fn unpack(mut archive: Initramfs, root: Dir) -> usize {
    let start = Start::kernel(root);
    let mut links: HashMap<u32, InodeRef> = HashMap::new();
    let mut failed = 0;
    loop {
        let rest = archive.rest();
        let mut reader = Reader::new(rest);
        let Some(entry) = reader.next() else {
            if !reader.rest().is_empty() {
                println!("uvm: the archive with the root file system is damaged, or was cut off");
                failed += 1;
            }
            return failed;
        };
        if let Err(errno) = place(&start, &entry, &mut links) {
            if failed == 0 {
                say(entry.name, errno);
            }
            failed += 1;
        }
        let used = rest.len() - reader.rest().len();
        archive.free(used);
    }
}

fn say(name: &[u8], errno: Errno) {
    let name = String::from_utf8_lossy(name);
    let why = if matches!(errno, ENOMEM | ENOSPC) { ": there is too little memory" } else { "" };
    println!("uvm: /{name} can't be unpacked{why} ({errno:?})");
}

fn place(start: &Start, entry: &Entry<'_>, links: &mut HashMap<u32, InodeRef>) -> Result<()> {
    let kind = Kind::from_mode(entry.mode).ok_or(EINVAL)?;
    let found = match walk(start, entry.name, Follow::No) {
        Err(ENOENT) => {
            make_parents(start, entry.name)?;
            walk(start, entry.name, Follow::No)?
        }
        found => found?,
    };
    let linked = if entry.nlink > 1 && kind != Kind::Dir { links.get(&entry.ino) } else { None };
    let inode = match (&found.inode, &found.name, linked) {
        (Some(inode), ..) if kind == Kind::Dir && inode.kind() == Kind::Dir => inode.clone(),
        (Some(_), ..) => return Err(EEXIST),
        (None, Some(name), Some(first)) => {
            found.dir.inode.link(name, first, &start.by)?;
            first.clone()
        }
        (None, Some(name), None) => {
            let new = match kind {
                Kind::File => NewNode::File,
                Kind::Dir => NewNode::Dir,
                Kind::Symlink => NewNode::Symlink(entry.data),
                special => NewNode::Special(special, entry.rdev),
            };
            found.dir.inode.create(name, new, Asked::exactly(entry.mode), &start.by)?
        }
        (None, None, _) => return Err(EINVAL),
    };
    if entry.nlink > 1 && kind != Kind::Dir {
        links.insert(entry.ino, inode.clone());
    }
    if kind == Kind::File && !entry.data.is_empty() {
        downcast::<TmpNode>(&inode).ok_or(EINVAL)?.fill(entry.data)?;
    }
    let time = u64::from(entry.mtime) * 1_000_000_000;
    inode.set_attr(&|_| {
        Ok(SetAttr {
            perm: Some(entry.mode & 0o7777),
            uid: Some(entry.uid),
            gid: Some(entry.gid),
            atime: Some(time),
            mtime: Some(time),
        })
    })
}

/// Makes the directories that lead to `name`, for archives that don't list them.
fn make_parents(start: &Start, name: &[u8]) -> Result<()> {
    let slashes: Vec<usize> =
        name.iter().enumerate().filter(|(_, &b)| b == b'/').map(|(at, _)| at).collect();
    for at in slashes {
        if at == 0 {
            continue;
        }
        let found = walk(start, &name[..at], Follow::Yes)?;
        if let (None, Some(name)) = (&found.inode, &found.name) {
            found.dir.inode.create(name, NewNode::Dir, Asked::exactly(0o755), &start.by)?;
        }
    }
    Ok(())
}
