//! Files in many pieces, which blocks are taken out of the middle of.

use crate::common::{complaints, make, mount, Disk};
use volume::New;

/// Makes a file of so many runs of three blocks, with a gap behind each, and takes the middle block out of each run; written or not.
fn perforate(block: u64, runs: u64, is_written: bool) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let image = folder.path().join("made.img");
    make(&image, 32, &["-b", &block.to_string(), "-J", "size=4"]);
    let disk = Disk::open(&image);
    let mut volume = mount(&disk);
    let root = volume.root();
    let ino = volume.create(root, b"file", New::File, 0o644, (0, 0)).expect("create").ino;
    let size = runs * 4 * block;
    volume.resize(ino, size).expect("resize");
    for at in (0..size).step_by(4 * block as usize) {
        match is_written {
            true => drop(volume.reserve(ino, size, at, 3 * block).expect("reserve")),
            false => volume.allocate(ino, at, 3 * block).expect("allocate"),
        }
    }
    for at in (0..size).step_by(4 * block as usize) {
        let done = volume.punch(ino, at + block, block);
        done.unwrap_or_else(|error| panic!("{block} {runs} {is_written}: punch at {at}: {error:?}"));
    }
    let kept: u64 = volume.extents(ino, 0, size).expect("extents").iter().map(|run| run.len).sum();
    assert_eq!(kept, runs * 2 * block);
    volume.unmount().expect("unmount");
    std::fs::write(&image, &disk.0.lock().unwrap().now).expect("room for an image");
    assert_eq!(complaints(&image), "", "{block} {runs} {is_written}");
}

#[test]
fn blocks_are_taken_out_of_full_nodes() {
    // An inode has room for 4 extents, a block of 1 KiB for 84.
    for runs in [1, 3, 4, 5, 60, 83, 84, 85, 400] {
        perforate(1024, runs, true);
        perforate(1024, runs, false);
    }
    for runs in [4, 340, 341] {
        perforate(4096, runs, true);
        perforate(4096, runs, false);
    }
}
