//! A volume that an enemy has written: images with bytes changed as the input says, mounted, walked
//! and changed.
//!
//! The images are in `images/`: their blocks that aren't nothing, each behind its number. Two have
//! no checksums, one of them a journal; the third has both; two more have many groups, of one most
//! were never used, and a folder with an index. An input is records of four bytes: most change a
//! byte of one of these blocks, the others are calls.

use std::sync::{Arc, Mutex, OnceLock};

use volume::{
    AccessList, Change, Clock, Cursor, Device, DeviceError, Limits, Mode, New, Rename, Timestamp,
    Volume,
};

const BLOCK: usize = 1024;
/// First bytes from here on make a record a call.
const CALLS: u8 = 224;
/// Directories that are read, and pieces of each.
const DIRS: usize = 50;
const PIECES: usize = 20;

/// Blocks and what they hold; the length of the image in blocks.
struct Image {
    blocks: Vec<(usize, &'static [u8])>,
    len: usize,
}

/// An image of `images/`: its length in blocks, then blocks with their numbers.
fn read(file: &'static [u8]) -> Image {
    let number =
        |bytes: &[u8]| bytes.iter().rev().fold(0, |sum, &byte| sum << 8 | usize::from(byte));
    let (len, blocks) = file.split_at(4);
    let blocks = blocks.chunks_exact(4 + BLOCK).map(|block| (number(&block[..4]), &block[4..]));
    Image { blocks: blocks.collect(), len: number(len) }
}

fn images() -> &'static [Image] {
    static IMAGES: OnceLock<Vec<Image>> = OnceLock::new();
    IMAGES.get_or_init(|| {
        vec![
            read(include_bytes!("../images/plain")),
            read(include_bytes!("../images/journal")),
            read(include_bytes!("../images/checksums")),
            read(include_bytes!("../images/groups")),
            read(include_bytes!("../images/unused")),
        ]
    })
}

/// A disk in memory.
#[derive(Clone)]
struct Disk(Arc<Mutex<Vec<u8>>>);

impl Device for Disk {
    fn bytes(&self) -> u64 {
        self.0.lock().unwrap().len() as u64
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read(&mut self, at: u64, to: &mut [u8]) -> Result<(), DeviceError> {
        let disk = self.0.lock().unwrap();
        to.copy_from_slice(&disk[at as usize..at as usize + to.len()]);
        Ok(())
    }

    fn write(&mut self, at: u64, from: &[u8]) -> Result<(), DeviceError> {
        self.0.lock().unwrap()[at as usize..at as usize + from.len()].copy_from_slice(from);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }
}

#[derive(Clone)]
struct Now;

impl Clock for Now {
    fn now(&self) -> Timestamp {
        Timestamp::new(1_800_000_000, 5)
    }
}

/// Mounts what the input has made of an image, and uses it: with an error or without, it ends.
///
/// # Panics
/// If the volume does, or reads behind the disk's end.
pub fn target(bytes: &[u8]) {
    let Some((&how, records)) = bytes.split_first() else { return };
    let image = match how & 0x40 {
        0 => &images()[usize::from(how) % 3],
        _ => &images()[3 + usize::from(how) % 2],
    };
    let mut disk = vec![0; image.len * BLOCK];
    for (number, block) in &image.blocks {
        disk[number * BLOCK..][..BLOCK].copy_from_slice(block);
    }
    let (calls, changes): (Vec<&[u8]>, Vec<&[u8]>) =
        records.chunks_exact(4).partition(|record| record[0] >= CALLS);
    for change in changes {
        let (number, _) = image.blocks[usize::from(change[0]) % image.blocks.len()];
        let at = usize::from(change[1]) | usize::from(change[2]) << 8;
        disk[number * BLOCK + at % BLOCK] = change[3];
    }
    let mode = if how & 0x80 == 0 { Mode::ReadWrite } else { Mode::ReadOnly };
    let limits = Limits { cache_lines: 64, pieces: usize::MAX };
    let Ok(mut volume) = Volume::mount(Disk(Arc::new(Mutex::new(disk))), Now, mode, limits) else {
        return;
    };
    let mut seen = walk(&mut volume);
    for call in calls {
        change(&mut volume, &mut seen, call);
    }
    let _ = volume.sync();
    walk(&mut volume);
    let _ = volume.unmount();
}

/// What a walk has found: directories and other things, by number, and names with their
/// directories.
#[derive(Default)]
struct Seen {
    dirs: Vec<u32>,
    others: Vec<u32>,
    names: Vec<(u32, Vec<u8>)>,
}

/// Asks for all that the volume holds, as far as it goes.
fn walk(volume: &mut Volume<Disk>) -> Seen {
    let mut seen = Seen { dirs: vec![volume.root()], ..Seen::default() };
    let mut next = 0;
    while next < seen.dirs.len().min(DIRS) {
        let dir = seen.dirs[next];
        next += 1;
        let mut from = Cursor::Start;
        for _ in 0..PIECES {
            let Ok(part) = volume.list(dir, from, 50) else { break };
            let Some(last) = part.last() else { break };
            from = last.next;
            for entry in part {
                meet(volume, &mut seen, dir, &entry.name);
                seen.names.push((dir, entry.name));
            }
        }
    }
    seen
}

fn meet(volume: &mut Volume<Disk>, seen: &mut Seen, dir: u32, name: &[u8]) {
    let Ok(found) = volume.lookup(dir, name) else { return };
    let _ = volume.extents(found.ino, 0, i64::MAX as u64);
    let _ = volume.read_link(found.ino);
    if found.mode & 0o170_000 != 0o040_000 {
        seen.others.push(found.ino);
    } else if name != b"." && name != b".." && !seen.dirs.contains(&found.ino) {
        seen.dirs.push(found.ino);
    }
}

/// One call: what it is, and three numbers that choose among what a walk has seen.
fn change(volume: &mut Volume<Disk>, seen: &mut Seen, call: &[u8]) {
    let [a, b, c] = [1, 2, 3].map(|n| usize::from(call[n]));
    let dir = seen.dirs[a % seen.dirs.len()];
    let ino = seen.others.get(b % seen.others.len().max(1)).copied().unwrap_or(2);
    let new = format!("new {c}{}", "y".repeat(c / 2));
    let nothing = (2, b"nothing".to_vec());
    let (at, old) = seen.names.get(b % seen.names.len().max(1)).cloned().unwrap_or(nothing);
    let size = (c as u64) << (b % 40);
    match (call[0] - CALLS) % 19 {
        0 => {
            if let Ok(made) = volume.create(dir, new.as_bytes(), New::File, 0o644, (0, 0)) {
                seen.others.push(made.ino);
                seen.names.push((dir, new.into_bytes()));
            }
        }
        1 => drop(volume.create(dir, new.as_bytes(), New::Dir, 0o755, (0, 0))),
        2 => drop(volume.create(
            dir,
            new.as_bytes(),
            New::Symlink(&[b'a'; 200][..c % 200]),
            0o777,
            (0, 0),
        )),
        3 => drop(volume.rename(at, &old, dir, new.as_bytes(), Rename::Replace)),
        4 => {
            if volume.unlink(at, &old) == Ok(true) {
                let _ = volume.reap(ino);
            }
        }
        5 => drop(volume.remove_dir(at, &old)),
        6 => drop(volume.link(ino, dir, new.as_bytes())),
        7 => drop(volume.reserve(ino, (a as u64) << 10, 4096, size)),
        8 => drop(volume.resize(ino, size)),
        9 => drop(volume.punch(ino, (a as u64) << 10, size)),
        10 => drop(volume.sync()),
        11 => drop(volume.extents(ino, size, u64::MAX - size)),
        12 => drop(volume.reap(ino)),
        14 => drop(volume.rename(at, &old, dir, new.as_bytes(), Rename::NoReplace)),
        15 => {
            if let Some((other, name)) = seen.names.get(a % seen.names.len().max(1)) {
                let _ = volume.rename(at, &old, *other, name, Rename::Exchange);
            }
        }
        16 => drop(volume.allocate(ino, (a as u64) << 10, size)),
        17 => {
            let value = vec![b'v'; 4 * (a + c)];
            let _ = volume.set_access_list(ino, AccessList::Own, &value);
            let _ = volume.access_list(ino, AccessList::Default);
        }
        18 => volume.forget(),
        _ => drop(volume.change(ino, &Change { perm: Some(c as u32), ..Change::default() })),
    }
}
