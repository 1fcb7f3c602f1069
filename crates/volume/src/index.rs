//! Names of large directories that have no index on the disk.
//!
//! A directory that was filled by `mke2fs -d` or `debugfs`, or on a volume without `dir_index`, is
//! a list: a look-up reads and checks half of its blocks, so that opening all files of such a
//! directory takes time by the square of their number. What is found by one walk is remembered
//! here, a piece of the walk at each look-up, so that no call needs much memory at once.
//!
//! I1: a name that is remembered leads to its inode on the volume too: [`crate::Volume`] says what
//! a name leads to after each change of it, and after each that failed. I2: when the walk of a
//! directory is over, a name that is not remembered is not there. I3: all directories together take
//! no more than `room` bytes: the one not used for longest goes first; one that is too large alone
//! keeps what fits, and says nothing of other names.
//!
//! The road not taken: to give the directory an index on the disk, as `e2fsck -D` does. That writes
//! the whole of it in one transaction, for a volume that may be mounted read-only.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;

use crate::{Cursor, Entry};

/// What a name takes beside its own bytes: its part of a node of the tree, and what the heap rounds
/// up.
const NAME: usize = 48;

/// What is known of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Known {
    Inode(u32),
    Absent,
    /// The directory itself must be asked.
    Unknown,
}

/// How far a directory has been walked.
enum Walk {
    At(Cursor),
    Over,
    /// There is no room for the rest.
    Stopped,
}

struct Directory {
    names: BTreeMap<Box<[u8]>, u32>,
    bytes: usize,
    walk: Walk,
    used: u64,
}

/// See the module.
pub(crate) struct Index {
    directories: BTreeMap<u32, Directory>,
    bytes: usize,
    room: usize,
    clock: u64,
}

impl Index {
    pub(crate) fn new(room: usize) -> Index {
        Index { directories: BTreeMap::new(), bytes: 0, room, clock: 0 }
    }

    pub(crate) fn has(&self, dir: u32) -> bool {
        self.directories.contains_key(&dir)
    }

    /// Begins to remember a directory's names.
    pub(crate) fn begin(&mut self, dir: u32) {
        let new =
            Directory { names: BTreeMap::new(), bytes: 0, walk: Walk::At(Cursor::Start), used: 0 };
        self.directories.insert(dir, new);
    }

    pub(crate) fn get(&mut self, dir: u32, name: &[u8]) -> Known {
        let Some(directory) = self.directories.get_mut(&dir) else { return Known::Unknown };
        self.clock += 1;
        directory.used = self.clock;
        match (directory.names.get(name), &directory.walk) {
            (Some(&ino), _) => Known::Inode(ino),
            (None, Walk::Over) => Known::Absent,
            _ => Known::Unknown,
        }
    }

    /// Where the walk of a directory goes on.
    pub(crate) fn next(&self, dir: u32) -> Option<Cursor> {
        match self.directories.get(&dir)?.walk {
            Walk::At(cursor) => Some(cursor),
            Walk::Over | Walk::Stopped => None,
        }
    }

    /// Takes over the next part of the walk; an empty one is its end.
    pub(crate) fn learn(&mut self, dir: u32, part: &[Entry]) {
        for entry in part {
            self.set(dir, &entry.name, Some(entry.ino));
        }
        let Some(directory) = self.directories.get_mut(&dir) else { return };
        if let Walk::At(cursor) = &mut directory.walk {
            match part.last().map(|last| last.next) {
                Some(next) if next != Cursor::End => *cursor = next,
                _ => directory.walk = Walk::Over,
            }
        }
    }

    /// The rest of a directory can't be learned.
    pub(crate) fn stop(&mut self, dir: u32) {
        if let Some(directory) = self.directories.get_mut(&dir) {
            directory.walk = Walk::Stopped;
        }
    }

    /// What the name leads to from now on.
    pub(crate) fn set(&mut self, dir: u32, name: &[u8], ino: Option<u32>) {
        match ino {
            Some(ino) if !is_dots(name) => self.put(dir, name, ino),
            _ => self.remove(dir, name),
        }
    }

    /// Forgets all directories.
    pub(crate) fn clear(&mut self) {
        *self = Index::new(self.room);
    }

    /// Forgets a directory, which may be none any more.
    pub(crate) fn forget(&mut self, dir: u32) {
        if let Some(gone) = self.directories.remove(&dir) {
            self.bytes -= gone.bytes;
        }
    }

    fn put(&mut self, dir: u32, name: &[u8], ino: u32) {
        let Some(directory) = self.directories.get_mut(&dir) else { return };
        if let Some(old) = directory.names.get_mut(name) {
            *old = ino;
            return;
        }
        let bytes = NAME + name.len();
        if !self.make_room(bytes, dir) {
            // A name that is left out is not remembered as absent either.
            self.stop(dir);
            return;
        }
        if let Some(directory) = self.directories.get_mut(&dir) {
            directory.names.insert(name.into(), ino);
            directory.bytes += bytes;
            self.bytes += bytes;
        }
    }

    fn remove(&mut self, dir: u32, name: &[u8]) {
        let Some(directory) = self.directories.get_mut(&dir) else { return };
        if directory.names.remove(name).is_some() {
            directory.bytes -= NAME + name.len();
            self.bytes -= NAME + name.len();
        }
    }

    /// Forgets other directories until there is room for so much; `false` if that isn't enough.
    fn make_room(&mut self, bytes: usize, dir: u32) -> bool {
        while self.bytes + bytes > self.room {
            let others = self.directories.iter().filter(|&(&ino, _)| ino != dir);
            let Some((&eldest, _)) = others.min_by_key(|(_, it)| it.used) else { return false };
            self.forget(eldest);
        }
        true
    }
}

/// `.` and `..`, which the crate knows without a walk and changes by itself.
pub(crate) fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::vec::Vec;

    use super::*;

    fn part(numbers: core::ops::Range<u32>) -> Vec<Entry> {
        let entry = |n| Entry {
            ino: 100 + n,
            file_type: 0,
            name: format!("{n:04}").into_bytes(),
            next: Cursor::Linear { offset: u64::from(n) + 1 },
        };
        numbers.map(entry).collect()
    }

    fn walked(index: &mut Index, dir: u32, count: u32) {
        index.begin(dir);
        index.learn(dir, &part(0..count));
        index.learn(dir, &[]);
    }

    #[test]
    fn a_name_is_absent_only_when_the_walk_is_over() {
        let mut index = Index::new(1 << 20);
        index.begin(2);
        index.learn(2, &part(0..10));
        assert_eq!(index.get(2, b"0003"), Known::Inode(103));
        assert_eq!(index.get(2, b"0011"), Known::Unknown);
        assert_eq!(index.next(2), Some(Cursor::Linear { offset: 10 }));
        index.learn(2, &part(10..12));
        index.learn(2, &[]);
        assert_eq!(index.get(2, b"0011"), Known::Inode(111));
        assert_eq!(index.get(2, b"0012"), Known::Absent);
        assert_eq!(index.next(2), None);
    }

    #[test]
    fn changes_beside_the_walk_are_remembered() {
        let mut index = Index::new(1 << 20);
        index.begin(2);
        index.learn(2, &part(0..4));
        index.set(2, b"0001", Some(7));
        index.set(2, b"0002", None);
        index.set(2, b"0009", Some(9));
        assert_eq!(index.get(2, b"0001"), Known::Inode(7));
        assert_eq!(index.get(2, b"0002"), Known::Unknown);
        index.learn(2, &[]);
        assert_eq!(index.get(2, b"0002"), Known::Absent);
        assert_eq!(index.get(2, b"0009"), Known::Inode(9));
    }

    #[test]
    fn the_directory_not_used_for_longest_makes_room() {
        let mut index = Index::new(25 * (NAME + 4));
        walked(&mut index, 2, 10);
        walked(&mut index, 3, 10);
        index.get(3, b"0000");
        index.get(2, b"0000");
        walked(&mut index, 4, 10);
        assert!(index.has(2) && !index.has(3) && index.has(4));
        assert_eq!(index.bytes, 20 * (NAME + 4));
    }

    #[test]
    fn a_directory_without_room_says_nothing_of_what_it_left_out() {
        let mut index = Index::new(5 * (NAME + 4));
        walked(&mut index, 2, 10);
        assert_eq!(index.get(2, b"0004"), Known::Inode(104));
        assert_eq!(index.get(2, b"0005"), Known::Unknown);
        assert_eq!(index.next(2), None);
        index.set(2, b"0004", None);
        assert_eq!(index.get(2, b"0004"), Known::Unknown);
    }

    #[test]
    fn a_new_name_that_finds_no_room_is_not_absent() {
        let mut index = Index::new(10 * (NAME + 4));
        walked(&mut index, 2, 10);
        assert_eq!(index.get(2, b"0010"), Known::Absent);
        index.set(2, b"0010", Some(110));
        assert_eq!(index.get(2, b"0010"), Known::Unknown);
    }
}
