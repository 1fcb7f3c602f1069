//! The whole of a directory, as file systems keep it between two calls that list it.
//!
//! Entries stand in the order of their names' hashes: a position is a hash, so names that stay are
//! listed once, whatever happens to others between two calls, and though the listing is read anew.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::hash::Hasher;

use siphasher::sip::SipHasher13;

use super::inode::{DirEntry, Flow, Kind};
use super::random;
use crate::charge::Charge;
use crate::errno::*;
use crate::mem::fault::Room;
use crate::sched;

/// The first position behind `.` and `..`.
const FIRST: u64 = 2;

/// The names of a directory, charged to the user who reads them.
pub(super) struct Listing {
    entries: Vec<Listed>,
    /// The entries' names, as many in one piece as came at once: to free them one by one would take
    /// long.
    names: Vec<Box<[u8]>>,
    charge: Charge,
}

struct Listed {
    position: u64,
    ino: u64,
    /// Where its name lies: in which piece, and where in that.
    piece: u32,
    at: u16,
    len: u8,
    kind: Kind,
}

impl Listing {
    /// A listing without entries yet.
    pub fn new(charge: Charge) -> Listing {
        Listing { entries: Vec::new(), names: Vec::new(), charge }
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds entries, whose names are less than 64 KiB together and less than 256 bytes each. Room
    /// for the names on the heap is the caller's to have reserved.
    ///
    /// # Errors
    /// `ENOMEM`: the user has all that it may.
    pub fn add<'a>(
        &mut self,
        part: impl Iterator<Item = (&'a [u8], u64, Kind)> + Clone,
    ) -> Result<()> {
        let (count, bytes) =
            part.clone().fold((0, 0), |(n, bytes), (name, ..)| (n + 1, bytes + name.len()));
        self.entries.room(count)?;
        self.names.room(1)?;
        let taken = bytes + size_of::<Box<[u8]>>() + count * size_of::<Listed>();
        self.charge.grow(taken).map_err(|_| ENOMEM)?;
        let mut piece = Vec::with_capacity(bytes);
        for (name, ino, kind) in part {
            self.entries.push(Listed {
                position: position(name),
                ino,
                piece: self.names.len() as u32,
                at: piece.len() as u16,
                len: name.len() as u8,
                kind,
            });
            piece.extend_from_slice(name);
        }
        self.names.push(piece.into_boxed_slice());
        Ok(())
    }

    /// Brings the entries into their order: all are there.
    pub fn sort(&mut self) {
        self.entries.sort_unstable_by_key(|entry| {
            sched::work_done(size_of::<Listed>());
            entry.position
        });
    }

    /// Hands out the entries from position `from` on, behind those of the directory itself and the
    /// one above: see [`dots`].
    pub fn each(&self, from: u64, each: &mut dyn FnMut(DirEntry<'_>) -> Flow) {
        let first = self.entries.partition_point(|entry| entry.position < from);
        for entry in &self.entries[first..] {
            let at = usize::from(entry.at);
            let name = &self.names[entry.piece as usize][at..at + usize::from(entry.len)];
            let (next, kind) = (entry.position + 1, entry.kind);
            if each(DirEntry { ino: entry.ino, next, kind, name }) == Flow::Stop {
                break;
            }
        }
    }
}

/// Hands out `.` and `..`, with these numbers, from position `from` on.
pub(super) fn dots(
    from: u64,
    (this, above): (u64, u64),
    each: &mut dyn FnMut(DirEntry<'_>) -> Flow,
) -> Flow {
    for (at, name, ino) in [(0, b".".as_slice(), this), (1, b"..", above)] {
        let entry = DirEntry { ino, next: at + 1, kind: Kind::Dir, name };
        if from <= at && each(entry) == Flow::Stop {
            return Flow::Stop;
        }
    }
    Flow::More
}

fn position(name: &[u8]) -> u64 {
    // One key: positions mean the same for as long as the machine runs. A secret one: no program
    // makes names of one position.
    static KEY: spin::Lazy<[u8; 16]> = spin::Lazy::new(|| {
        let mut key = [0; 16];
        random::fill(&mut key);
        key
    });
    let mut hasher = SipHasher13::new_with_key(&KEY);
    hasher.write(name);
    // Positions are signed in the interface.
    (hasher.finish() >> 1).max(FIRST)
}
