//! How many requests the volume makes of a disk.

use crate::common::{complaints, make, mount_remembering, Disk};
use volume::{Device, New, Volume};

const FILES: u32 = 1000;
/// Three files of so many bytes.
const LARGE: u64 = 8 << 20;

/// Reads and writes that `work` makes, and how often it flushes.
fn requests(disk: &Disk, work: impl FnOnce()) -> [usize; 3] {
    let count = || {
        let disk = disk.0.lock().unwrap();
        [disk.requests[0], disk.requests[1], disk.flushes]
    };
    let before = count();
    work();
    let after = count();
    [0, 1, 2].map(|n| after[n] - before[n])
}

fn remove<D: Device>(volume: &mut Volume<D>, name: &str) {
    let root = volume.root();
    let ino = volume.lookup(root, name.as_bytes()).expect("it is there").ino;
    assert!(volume.unlink(root, name.as_bytes()).expect("unlink"));
    volume.reap(ino).expect("reap");
}

/// The bounds are what it takes now and some more.
#[test]
fn metadata_goes_to_the_disk_in_few_requests() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let image = folder.path().join("disk.img");
    make(&image, 128, &["-b", "4096"]);
    let disk = Disk::open(&image);
    let mut volume = mount_remembering(&disk, 1024);
    let root = volume.root();
    let created = requests(&disk, || {
        for n in 0..FILES {
            let name = format!("file {n}");
            let made = volume.create(root, name.as_bytes(), New::File, 0o600, (0, 0));
            volume.reserve(made.expect("create").ino, 1000, 0, 1000).expect("reserve");
        }
        volume.sync().expect("sync");
    });
    let removed = requests(&disk, || {
        (0..FILES).for_each(|n| remove(&mut volume, &format!("file {n}")));
        volume.sync().expect("sync");
    });
    let written = requests(&disk, || {
        for n in 0..3 {
            let name = format!("large {n}");
            let made = volume.create(root, name.as_bytes(), New::File, 0o600, (0, 0));
            let ino = made.expect("create").ino;
            for at in (0..LARGE).step_by(1 << 20) {
                volume.reserve(ino, at + (1 << 20), at, 1 << 20).expect("reserve");
            }
        }
        volume.sync().expect("sync");
    });
    let freed = requests(&disk, || {
        (0..3).for_each(|n| remove(&mut volume, &format!("large {n}")));
        volume.sync().expect("sync");
    });
    let synced = requests(&disk, || {
        for n in 0..100 {
            let name = format!("small {n}");
            volume.create(root, name.as_bytes(), New::File, 0o600, (0, 0)).expect("create");
            volume.sync().expect("sync");
        }
    });
    let ended = requests(&disk, || volume.unmount().expect("unmount"));
    println!("{created:?} {removed:?} {written:?} {freed:?} {synced:?} {ended:?}");
    let ways = [
        ("created", created, [12, 8]),
        ("removed", removed, [2, 6]),
        ("written", written, [2, 4]),
        ("freed", freed, [2, 4]),
        ("synced", synced, [4, 205]),
        ("ended", ended, [4, 18]),
    ];
    for (what, [reads, writes, _], most) in ways {
        assert!(reads <= most[0] && writes <= most[1], "{what}: {reads} reads, {writes} writes");
    }
    std::fs::write(&image, &disk.0.lock().unwrap().now).expect("room for an image");
    assert_eq!(complaints(&image), "");
}
