//! Files in many pieces, which blocks are taken out of the middle of.

use crate::common::{complaints, make, mount, mount_with, Disk, LIMITS};
use volume::{Limits, New, Rename};

/// Makes a file of so many runs of three blocks, with a gap behind each, and takes the middle block
/// out of each run; written or not.
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
        done.unwrap_or_else(|error| {
            panic!("{block} {runs} {is_written}: punch at {at}: {error:?}")
        });
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

/// Makes a file of so many written blocks, no two beside each other on the disk.
fn scatter(volume: &mut volume::Volume<Disk>, block: u64, runs: u64) -> u32 {
    let root = volume.root();
    let ino = volume.create(root, b"file", New::File, 0o644, (0, 0)).expect("create").ino;
    for n in 0..runs {
        let at = n * 8 * block;
        volume.reserve(ino, at + 1, at, 1).expect("reserve");
    }
    volume.sync().expect("sync");
    ino
}

/// Makes a file of so many extents, does something to it, and looks at the volume and at the
/// extents that are left.
fn change_scattered(runs: u64, left: u64, change: impl Fn(&mut volume::Volume<Disk>, u32)) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let image = folder.path().join("made.img");
    make(&image, 64, &["-b", "1024"]);
    let disk = Disk::open(&image);
    let mut volume = mount(&disk);
    let free = volume.space().free;
    let ino = scatter(&mut volume, 1024, runs);
    change(&mut volume, ino);
    match left {
        0 => assert_eq!(volume.space().free, free, "{runs}"),
        _ => assert_eq!(
            volume.extents(ino, 0, runs * 8192).expect("extents").len() as u64,
            left,
            "{runs}"
        ),
    }
    volume.unmount().expect("unmount");
    std::fs::write(&image, &disk.0.lock().unwrap().now).expect("room for an image");
    assert_eq!(complaints(&image), "", "{runs}");
}

#[test]
fn a_file_of_more_extents_than_may_be_listed_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let image = folder.path().join("made.img");
    make(&image, 64, &["-b", "1024"]);
    let disk = Disk::open(&image);
    let mut volume = mount(&disk);
    let ino = scatter(&mut volume, 1024, 500);
    volume.unmount().expect("unmount");
    let with = |pieces| mount_with(&disk, Limits { pieces, ..LIMITS }).expect("the volume mounts");
    let mut volume = with(499);
    let all = 1 << 40;
    assert_eq!(volume.extents(ino, 0, all).unwrap_err(), volume::ErrorKind::NoMemory);
    assert_eq!(volume.extents(ino, 0, 1).expect("the first is asked for").len(), 1);
    volume.unmount().expect("unmount");
    let mut volume = with(500);
    assert_eq!(volume.extents(ino, 0, 1 << 40).expect("extents").len(), 500);
    volume.resize(ino, 0).expect("resize");
}

#[test]
fn a_crash_leaves_files_of_many_extents_to_be_deleted() {
    // Both with the journal to be replayed, which has the file's end, and without one.
    for options in [&["-b", "1024"][..], &["-b", "1024", "-O", "^has_journal"]] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let image = folder.path().join("made.img");
        make(&image, 64, options);
        let disk = Disk::open(&image);
        let mut volume = mount(&disk);
        let free = volume.space().free;
        let root = volume.root();
        let kept = scatter(&mut volume, 1024, 300);
        volume.rename(root, b"file", root, b"kept", Rename::Replace).expect("rename");
        scatter(&mut volume, 1024, 500);
        for name in [&b"file"[..], b"kept"] {
            assert!(volume.unlink(root, name).expect("unlink"));
        }
        volume.sync().expect("sync");
        // It isn't unmounted.
        drop(volume);
        let volume = mount_with(&disk, Limits { pieces: 4, ..LIMITS }).expect("it mounts");
        assert_eq!(volume.space().free, free, "{options:?}, {kept}");
    }
}

#[test]
fn a_file_of_many_extents_can_be_emptied() {
    for runs in [100, 170, 211, 300, 4000] {
        change_scattered(runs, 0, |volume, ino| volume.resize(ino, 0).expect("resize"));
    }
}

#[test]
fn a_file_of_many_extents_can_be_deleted() {
    for runs in [300, 2000] {
        change_scattered(runs, 0, |volume, ino| {
            let root = volume.root();
            assert!(volume.unlink(root, b"file").expect("unlink"));
            volume.reap(ino).expect("reap");
        });
    }
}

#[test]
fn any_part_of_a_file_of_many_extents_can_be_cut_off_or_out() {
    for runs in [300, 1000] {
        for kept in [1, 40, runs / 2, runs - 60] {
            let size = kept * 8192;
            change_scattered(runs, kept, |volume, ino| volume.resize(ino, size).expect("resize"));
            change_scattered(runs, kept, |volume, ino| {
                volume.punch(ino, 8192, (runs - kept) * 8192).expect("punch");
            });
        }
        change_scattered(runs, 0, |volume, ino| volume.punch(ino, 0, runs * 8192).expect("punch"));
    }
}
