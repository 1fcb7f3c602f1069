//! Images with one lie each, put where it is believed: in a group's counts, in a node of an extent
//! tree that is a directory's block too, in a list of inodes without names. And what a volume must
//! leave alone.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::common::{
    complaints, debugfs, fsck, make, mount, mount_with, read, write_back, Disk, Now, LIMITS,
};
use volume::{Change, Cursor, ErrorKind, Mode, New, Timestamp, Volume};

/// Features of images of which any byte can be changed.
const PLAIN: &str = "^metadata_csum,^uninit_bg,^resize_inode";
const BLOCK: usize = 1024;

/// An image of blocks of 1 KiB, and where it lies.
fn image(mib: u64, options: &[&str]) -> (tempfile::TempDir, std::path::PathBuf, Disk) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("made.img");
    make(&path, mib, &[&["-b", "1024", "-J", "size=1"], options].concat());
    let disk = Disk::open(&path);
    (folder, path, disk)
}

/// Changes bytes of the image.
fn put(disk: &Disk, at: usize, bytes: &[u8]) {
    disk.0.lock().unwrap().now[at..at + bytes.len()].copy_from_slice(bytes);
}

fn get32(disk: &Disk, at: usize) -> u32 {
    let bytes = &disk.0.lock().unwrap().now[at..at + 4];
    u32::from_le_bytes(bytes.try_into().expect("four bytes"))
}

fn save(disk: &Disk, path: &Path) {
    std::fs::write(path, &disk.0.lock().unwrap().now).expect("room for an image");
}

/// Where an inode of an image lies.
fn inode_at(path: &Path, ino: u32) -> usize {
    let text = debugfs(path, &format!("imap <{ino}>"));
    let number = |behind: &str| {
        let rest = text.split(behind).nth(1).expect("debugfs says where");
        let word = rest.split([',', ' ', '\n']).find(|word| !word.is_empty());
        let word = word.expect("a number");
        match word.strip_prefix("0x") {
            Some(hex) => usize::from_str_radix(hex, 16),
            None => word.parse(),
        }
        .expect("a number")
    };
    number("located at block ") * BLOCK + number("offset ")
}

fn make_file(volume: &mut Volume<Disk>, name: &str) -> u32 {
    let made = volume.create(volume.root(), name.as_bytes(), New::File, 0o644, (0, 0));
    made.expect("create").ino
}

fn list(volume: &mut Volume<Disk>, dir: u32) -> volume::Result<BTreeMap<Vec<u8>, u32>> {
    let (mut all, mut from) = (BTreeMap::new(), Cursor::Start);
    loop {
        let part = volume.list(dir, from, 100)?;
        let Some(last) = part.last() else { return Ok(all) };
        from = last.next;
        all.extend(part.into_iter().map(|entry| (entry.name, entry.ino)));
    }
}

#[test]
fn counts_of_a_group_that_are_as_large_as_can_be() {
    let (_folder, _, disk) = image(20, &["-O", &format!("{PLAIN},64bit")]);
    let groups = 3;
    for group in 0..groups {
        let descriptor = 2 * BLOCK + group * 64;
        // Free blocks, free inodes, directories.
        for at in [0x0c, 0x0e, 0x10, 0x2c, 0x2e, 0x30] {
            put(&disk, descriptor + at, &[0xff; 2]);
        }
    }
    let mut volume = mount(&disk);
    let root = volume.root();
    let dir = volume.create(root, b"dir", New::Dir, 0o755, (0, 0)).expect("create").ino;
    volume.remove_dir(root, b"dir").expect("remove");
    volume.reap(dir).expect("reap");
    let file = make_file(&mut volume, "file");
    volume.reserve(file, 5000, 0, 5000).expect("reserve");
    volume.unlink(root, b"file").expect("unlink");
    volume.reap(file).expect("reap");
    volume.unmount().expect("unmount");
}

#[test]
fn looking_for_room_changes_no_group() {
    let options = ["-O", "^metadata_csum,uninit_bg,^flex_bg,^resize_inode", "-g", "512"];
    let (_folder, path, disk) = image(20, &options);
    let untouched = |path: &Path| {
        let out = Command::new("dumpe2fs").arg(path).output().expect("dumpe2fs is installed");
        String::from_utf8_lossy(&out.stdout).matches("BLOCK_UNINIT").count()
    };
    let before = untouched(&path);
    assert!(before > 20, "{before} groups");
    let mut volume = mount(&disk);
    let file = make_file(&mut volume, "file");
    // More than any group has, but not more than two have.
    volume.reserve(file, 600 << 10, 0, 600 << 10).expect("reserve");
    volume.unmount().expect("unmount");
    save(&disk, &path);
    assert_eq!(complaints(&path), "");
    let after = untouched(&path);
    assert!(before - after <= 3, "{before} groups were untouched, {after} are");
}

#[test]
fn a_group_with_a_damaged_bitmap_is_left_alone() {
    let (_folder, path, disk) = image(20, &["-O", &format!("{PLAIN},^flex_bg")]);
    let map = get32(&disk, 2 * BLOCK) as usize;
    put(&disk, map * BLOCK, &[0; BLOCK]);
    let mut volume = mount(&disk);
    let file = make_file(&mut volume, "file");
    let runs = volume.reserve(file, 5000, 0, 5000).expect("reserve");
    assert!(runs.iter().all(|run| run.disk >= 8193 * 1024), "{runs:?}");
    volume.unmount().expect("unmount");
    assert_eq!(fsck_code(&disk, &path), 1, "e2fsck mends it");
}

fn fsck_code(disk: &Disk, path: &Path) -> i32 {
    save(disk, path);
    fsck(path, "-y").0
}

#[test]
fn a_log_is_as_long_as_transactions_need() {
    let (_folder, path, disk) = image(8, &["-O", PLAIN]);
    let text = debugfs(&path, "blocks <8>");
    let first: usize = text.split_whitespace().next().expect("blocks").parse().expect("a number");
    assert_eq!(disk.0.lock().unwrap().now[first * BLOCK..][..4], [0xc0, 0x3b, 0x39, 0x98]);
    put(&disk, first * BLOCK + 0x10, &300_u32.to_be_bytes());
    assert!(mount_with(&disk, LIMITS).is_err());
}

/// A file with a node of extents that is a block of a directory too, in which a name is made.
#[test]
fn a_node_that_is_a_directorys_block_too() {
    let (_folder, path, disk) = image(8, &["-O", PLAIN, "-I", "256"]);
    let mut volume = mount(&disk);
    let root = volume.root();
    let file = make_file(&mut volume, "file");
    for n in 0..7 {
        volume.reserve(file, 1 << 20, n * 8192, 1).expect("reserve");
    }
    let dir = volume.create(root, b"dir", New::Dir, 0o755, (0, 0)).expect("create").ino;
    volume.unmount().expect("unmount");
    save(&disk, &path);
    let node = get32(&disk, inode_at(&path, file) + 40 + 12 + 4);
    // The directory's only extent: block 0, one block, there.
    put(&disk, inode_at(&path, dir) + 40 + 12 + 8, &node.to_le_bytes());
    // As entries: one of 84 bytes, since that is how many extents the node may have; the next
    // begins in the seventh extent, whose length is that of the entry.
    let seventh = node as usize * BLOCK + 12 + 6 * 12;
    put(&disk, seventh + 4, &(BLOCK as u16 - 84).to_le_bytes());
    put(&disk, seventh + 8, &4000_u32.to_le_bytes());
    let mut volume = mount(&disk);
    assert_eq!(volume.extents(file, 0, 1 << 20).expect("it seems right").len(), 7);
    volume.create(dir, &[0x77; 60], New::Fifo, 0o600, (0, 0)).expect("there is room");
    volume.resize(file, 1 << 41).expect("resize");
    let bytes = disk.0.lock().unwrap().now.len() as u64;
    let runs = volume.extents(file, 0, u64::MAX).unwrap_or_default();
    assert!(runs.iter().all(|run| run.disk + run.len <= bytes), "{runs:?}");
}

#[test]
fn an_index_without_the_feature() {
    let (_folder, path, disk) = image(8, &["-O", "^metadata_csum"]);
    let mut volume = mount(&disk);
    let root = volume.root();
    let dir = volume.create(root, b"dir", New::Dir, 0o755, (0, 0)).expect("create").ino;
    let name = |n: u32| format!("a name that takes some room {n}").into_bytes();
    let make = |volume: &mut Volume<Disk>, n| {
        volume.create(dir, &name(n), New::Fifo, 0o600, (0, 0)).expect("create");
    };
    (0..200).for_each(|n| make(&mut volume, n));
    volume.unmount().expect("unmount");
    save(&disk, &path);
    let out = Command::new("tune2fs").args(["-O", "^dir_index"]).arg(&path).output();
    assert!(out.expect("tune2fs is installed").status.success());
    let disk = Disk::open(&path);
    let mut volume = mount(&disk);
    (200..260).for_each(|n| make(&mut volume, n));
    for n in 0..260 {
        volume.lookup(dir, &name(n)).unwrap_or_else(|error| panic!("{n}: {error:?}"));
    }
    assert_eq!(list(&mut volume, dir).expect("a list").len(), 262);
    for n in 0..260 {
        volume.unlink(dir, &name(n)).expect("unlink");
    }
    volume.remove_dir(root, b"dir").expect("it is empty");
}

/// Entries of an index that all lead to one node, and its entries to one block.
#[test]
fn an_index_that_leads_to_the_same_again_and_again() {
    let (_folder, path, disk) = image(16, &["-O", PLAIN, "-N", "8000"]);
    let mut volume = mount(&disk);
    let root = volume.root();
    let dir = volume.create(root, b"dir", New::Dir, 0o755, (0, 0)).expect("create").ino;
    for n in 0..2500 {
        let name = format!("a name {n:0100}").into_bytes();
        volume.create(dir, &name, New::Fifo, 0o600, (0, 0)).expect("create");
    }
    volume.unmount().expect("unmount");
    save(&disk, &path);
    let text = debugfs(&path, "blocks /dir");
    let blocks: Vec<usize> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let entries = |start: usize| -> (usize, usize) {
        let head = get32(&disk, start);
        ((head & 0xffff) as usize, (head >> 16) as usize)
    };
    let start = blocks[0] * BLOCK + 0x20;
    let (_, count) = entries(start);
    let node = get32(&disk, start + 4);
    assert!(disk.0.lock().unwrap().now[blocks[0] * BLOCK + 0x1e] == 1 && count > 1);
    for n in 0..123 {
        put(&disk, start + n * 8 + 4, &node.to_le_bytes());
        if n > 0 {
            put(&disk, start + n * 8, &(n as u32 * 0x1000).to_le_bytes());
        }
    }
    put(&disk, start + 2, &123_u16.to_le_bytes());
    let start = blocks[node as usize] * BLOCK + 8;
    let leaf = get32(&disk, start + 4);
    for n in 1..126 {
        put(&disk, start + n * 8, &(n as u32 * 2).to_le_bytes());
        put(&disk, start + n * 8 + 4, &leaf.to_le_bytes());
    }
    put(&disk, start + 2, &126_u16.to_le_bytes());
    put(&disk, blocks[leaf as usize] * BLOCK, &[0; BLOCK]);
    put(&disk, blocks[leaf as usize] * BLOCK + 4, &1024_u16.to_le_bytes());
    let mut volume = mount(&disk);
    assert_eq!(list(&mut volume, dir).err(), Some(ErrorKind::Corrupted));
}

#[test]
fn names_of_what_no_name_leads_to() {
    let (_folder, path, disk) = image(8, &["-O", PLAIN]);
    let mut volume = mount(&disk);
    for name in ["file beyond", "file journal", "file table", "file a?b", "file nul"] {
        make_file(&mut volume, name);
    }
    let root = volume.root();
    volume.unmount().expect("unmount");
    save(&disk, &path);
    let at = |name: &str| {
        let disk = disk.0.lock().unwrap();
        let found = disk.now.windows(name.len()).position(|part| part == name.as_bytes());
        found.expect("its entry") - 8
    };
    for (name, ino) in [("file beyond", u32::MAX), ("file journal", 8), ("file table", 7)] {
        put(&disk, at(name), &ino.to_le_bytes());
    }
    let mut volume = mount(&disk);
    for name in ["file beyond", "file journal", "file table"] {
        let found = volume.lookup(root, name.as_bytes()).map(|found| found.ino);
        assert_eq!(found, Err(ErrorKind::Corrupted), "{name}");
        assert_eq!(volume.unlink(root, name.as_bytes()), Err(ErrorKind::Corrupted), "{name}");
    }
    assert!(list(&mut volume, root).is_ok());
    for (name, byte) in [("file a?b", b'/'), ("file nul", 0)] {
        let at = at(name) + 8 + 6;
        let old = disk.0.lock().unwrap().now[at];
        put(&disk, at, &[byte]);
        let mut volume = Volume::mount(disk.clone(), Now, Mode::ReadOnly, LIMITS).expect("mount");
        assert_eq!(list(&mut volume, root).err(), Some(ErrorKind::Corrupted), "{name}");
        put(&disk, at, &[old]);
    }
}

#[test]
fn a_list_of_lost_inodes_that_leads_to_a_directory() {
    let (_folder, _, disk) = image(8, &["-O", PLAIN]);
    let mut volume = mount(&disk);
    let root = volume.root();
    let dir = volume.create(root, b"dir", New::Dir, 0o755, (0, 0)).expect("create").ino;
    volume.unmount().expect("unmount");
    put(&disk, 1024 + 0xe8, &dir.to_le_bytes());
    let mut volume = mount(&disk);
    assert_eq!(volume.lookup(root, b"dir").expect("it is there").ino, dir);
    volume.unmount().expect("unmount");
}

/// A file that can't be freed, since a block of it is free already, keeps no volume in use.
#[test]
fn a_damaged_file_that_has_no_name() {
    let (_folder, path, disk) = image(8, &["-O", PLAIN]);
    let mut volume = mount(&disk);
    let root = volume.root();
    let file = make_file(&mut volume, "file");
    let runs = volume.reserve(file, 5000, 0, 5000).expect("reserve");
    volume.unmount().expect("unmount");
    let bit = (runs[0].disk / BLOCK as u64 - 1) as usize;
    let map = get32(&disk, 2 * BLOCK) as usize * BLOCK + bit / 8;
    let old = disk.0.lock().unwrap().now[map];
    put(&disk, map, &[old & !(1 << (bit % 8))]);
    let mut volume = mount(&disk);
    volume.unlink(root, b"file").expect("unlink");
    assert_eq!(volume.unmount(), Err(ErrorKind::Busy), "it may be open");
    assert_eq!(volume.reap(file), Err(ErrorKind::Corrupted));
    volume.unmount().expect("unmount");
    mount(&disk).unmount().expect("unmount");
    assert_eq!(fsck_code(&disk, &path), 1, "e2fsck mends it");
}

/// Without a journal a commit may be tried again.
#[test]
fn what_a_failed_commit_has_left_is_in_the_next() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("made.img");
    make(&path, 8, &["-O", &format!("{PLAIN},^has_journal")]);
    let disk = Disk::open(&path);
    let mut volume = mount(&disk);
    let root = volume.root();
    let file = make_file(&mut volume, "file");
    disk.0.lock().unwrap().fails = true;
    assert_eq!(volume.sync(), Err(ErrorKind::Io));
    disk.0.lock().unwrap().fails = false;
    volume.sync().expect("sync");
    let stable = disk.0.lock().unwrap().stable.clone();
    let mut volume = mount(&Disk::holding(stable));
    assert_eq!(volume.lookup(root, b"file").map(|found| found.ino), Ok(file));
}

/// Blocks are given out when a kernel writes back, long after the program has written.
#[test]
fn giving_blocks_out_leaves_rights_alone() {
    let (_folder, _, disk) = image(8, &[]);
    let mut volume = mount(&disk);
    let file = make_file(&mut volume, "file");
    let change = Change { perm: Some(0o6755), ..Change::default() };
    volume.change(file, &change).expect("change");
    let runs = volume.reserve(file, 5000, 0, 5000).expect("reserve");
    write_back(&disk, &runs, &[7; 5000]);
    assert_eq!(read(&mut volume, &disk, file, 5000), [7; 5000]);
    assert_eq!(volume.attributes(file).expect("attributes").mode, 0o106_755);
}

#[test]
fn times_are_kept_whole() {
    for (inode, seconds, is_whole) in [
        ("256", 1_800_000_000, true),
        ("256", 4_102_444_800, true),
        ("256", 15_000_000_000, true),
        ("256", -5, true),
        ("128", 1_800_000_000, false),
        ("128", -5, false),
    ] {
        let (_folder, path, disk) = image(8, &["-I", inode]);
        let mut volume = mount(&disk);
        let file = make_file(&mut volume, "file");
        let (atime, mtime) =
            (Timestamp::new(seconds, 999_999_999), Timestamp::new(seconds + 1, 123_456_789));
        let change = Change { atime: Some(atime), mtime: Some(mtime), ..Change::default() };
        volume.change(file, &change).expect("change");
        volume.unmount().expect("unmount");
        save(&disk, &path);
        assert_eq!(complaints(&path), "");
        let found = mount(&disk).attributes(file).expect("attributes");
        let cut = |time: Timestamp| if is_whole { time } else { Timestamp::new(time.sec, 0) };
        assert_eq!((found.atime, found.mtime), (cut(atime), cut(mtime)), "{inode} {seconds}");
        assert_eq!(found.ctime, cut(Timestamp::new(1_800_000_000, 5)));
    }
}
