//! Machines that go off between any two requests to the disk. Of what was not flushed by then any
//! part may be missing. The volume is mounted again, by itself or after e2fsck: all that was synced
//! is there, e2fsck finds nothing, and no file shows what another has written.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::common::{
    complaints, fsck, make, mount_remembering, read, write_back, Disk, Event, Random,
};
use crate::geometries::try_seeds;
use volume::{New, Rename};

/// Where the superblock lies.
const SUPERBLOCK: usize = 1024;

/// The length of what is a symbolic link.
const LINK: u64 = u64::MAX;

/// Contents by name: which write of which length it was.
type Contents = BTreeMap<String, (u64, u64)>;

/// What was so at an event of the disk.
struct Step {
    at: usize,
    /// The name that the step began to change, before `at`.
    touched: Vec<String>,
    /// All that is there from `at` on, whatever happens.
    synced: Option<Contents>,
}

/// The bytes of a write. No other has a block like one of it, but where it ends.
fn bytes(write: u64, len: u64) -> Vec<u8> {
    (0..len).map(|n| ((write.to_le_bytes()[(n % 8) as usize]) ^ (n / 8) as u8) | 1).collect()
}

/// A link's target, whose block looks like one of a journal's own.
fn target(write: u64) -> Vec<u8> {
    let magic = [0xc0, 0x3b, 0x39, 0x98];
    [&magic, format!("{write:100}").as_bytes()].concat()
}

/// Works on a volume; returns what its disk held first, all that it was asked to do, and what was
/// so meanwhile.
fn work(
    disk: &Disk,
    chance: &mut Random,
    steps: u64,
    lines: usize,
) -> (Vec<u8>, Vec<Event>, Vec<Step>) {
    let mut volume = mount_remembering(disk, lines);
    let root = volume.root();
    let base = {
        let mut platter = disk.0.lock().unwrap();
        platter.history = Some(Vec::new());
        platter.now.clone()
    };
    let now = || disk.0.lock().unwrap().history.as_ref().unwrap().len();
    let mut contents = Contents::new();
    let mut log = vec![Step { at: 0, touched: Vec::new(), synced: Some(Contents::new()) }];
    for write in 1..=steps {
        let [name, other] = [(); 2].map(|()| format!("file {}", chance.below(30)));
        let at = now();
        let mut step = Step { at, touched: vec![name.clone()], synced: None };
        match chance.below(10) {
            0..=3 => {
                let ino = match volume.lookup(root, name.as_bytes()) {
                    Ok(old) => old.ino,
                    Err(_) => {
                        let made = volume.create(root, name.as_bytes(), New::File, 0o600, (0, 0));
                        made.expect("create").ino
                    }
                };
                let most = [5000, 60_000][chance.below(2) as usize];
                let len = chance.below(most);
                volume.resize(ino, 0).expect("resize");
                if len > 0 {
                    let runs = volume.reserve(ino, len, 0, len).expect("reserve");
                    write_back(disk, &runs, &bytes(write, len));
                }
                contents.insert(name, (write, len));
            }
            4 | 5 if contents.remove(&name).is_some() => {
                let ino = volume.lookup(root, name.as_bytes()).expect("it is there").ino;
                assert!(volume.unlink(root, name.as_bytes()).expect("unlink"));
                volume.reap(ino).expect("reap");
            }
            6 if name != other => {
                if let Some(data) = contents.remove(&name) {
                    let how = Rename::Replace;
                    let moved = volume.rename(root, name.as_bytes(), root, other.as_bytes(), how);
                    if let Some(gone) = moved.expect("rename") {
                        volume.reap(gone).expect("reap");
                    }
                    contents.insert(other.clone(), data);
                    step.touched.push(other);
                }
            }
            7 => {
                // A directory's blocks are metadata, and soon a file's.
                let made = volume.create(root, b"dir", New::Dir, 0o700, (0, 0));
                let dir = made.expect("mkdir").ino;
                for n in 0..chance.below(60) {
                    let name = format!("{n} with a name that is as long as many others {n:100}");
                    let made = volume.create(dir, name.as_bytes(), New::Fifo, 0o600, (0, 0));
                    let made = made.expect("mkfifo").ino;
                    if chance.below(30) == 0 {
                        volume.sync().expect("sync");
                    }
                    volume.unlink(dir, name.as_bytes()).expect("unlink");
                    volume.reap(made).expect("reap");
                }
                volume.remove_dir(root, b"dir").expect("rmdir");
                volume.reap(dir).expect("reap");
            }
            8 if chance.below(2) == 0 => {
                let name = format!("link {}", chance.below(4));
                if contents.remove(&name).is_some() {
                    let ino = volume.lookup(root, name.as_bytes()).expect("it is there").ino;
                    assert!(volume.unlink(root, name.as_bytes()).expect("unlink"));
                    volume.reap(ino).expect("reap");
                } else {
                    let new = target(write);
                    let made =
                        volume.create(root, name.as_bytes(), New::Symlink(&new), 0o777, (0, 0));
                    made.expect("symlink");
                    contents.insert(name.clone(), (write, LINK));
                }
                step.touched = vec![name];
            }
            8 => {
                volume.sync().expect("sync");
                step = Step { at: now(), touched: Vec::new(), synced: Some(contents.clone()) };
            }
            _ => continue,
        }
        log.push(step);
    }
    let history = disk.0.lock().unwrap().history.take();
    (base, history.expect("it was kept"), log)
}

/// What a disk may hold that had `stable` and was then asked to write. The superblock is whole:
/// half of one is more than ext4 stands, since the checksum in one sector is of both.
fn left(stable: &[u8], pending: &[(usize, Vec<u8>)], chance: &mut Random) -> Vec<u8> {
    let mut image = stable.to_vec();
    // All, few or most of it, in whole requests or by sectors.
    let eighths = [8, 7, 4, 1][chance.below(4) as usize];
    let is_torn = chance.below(2) == 0;
    for (at, bytes) in pending {
        let mut is_kept = chance.below(8) < eighths;
        for (n, sector) in bytes.chunks(512).enumerate() {
            let at = at + n * 512;
            if is_torn && at != SUPERBLOCK + 512 {
                is_kept = chance.below(8) < eighths;
            }
            if is_kept {
                image[at..at + sector.len()].copy_from_slice(sector);
            }
        }
    }
    image
}

/// Mounts what is left and looks at it. Returns what was done to the disk by that.
fn judge(
    image: &Path,
    left: Vec<u8>,
    contents: &Contents,
    touched: &BTreeSet<String>,
    chance: &mut Random,
) -> (Vec<u8>, Vec<Event>) {
    let mut left = left;
    if chance.below(4) == 0 {
        std::fs::write(image, &left).expect("room for an image");
        let (code, text) = fsck(image, "-y");
        assert!(code <= 1, "e2fsck gave up ({code})\n{text}");
        left = std::fs::read(image).expect("an image");
    }
    let disk = Disk::holding(left.clone());
    disk.0.lock().unwrap().history = Some(Vec::new());
    let mut volume = mount_remembering(&disk, 64);
    let root = volume.root();
    for (name, &(write, len)) in contents.iter().filter(|(name, _)| !touched.contains(*name)) {
        let found = volume.lookup(root, name.as_bytes());
        let found = found.unwrap_or_else(|e| panic!("{name} was synced and is gone: {e:?}"));
        if len == LINK {
            assert!(
                volume.read_link(found.ino).expect("a link") == target(write),
                "{name} differs"
            );
            continue;
        }
        assert_eq!(found.size, len, "{name}");
        assert!(read(&mut volume, &disk, found.ino, len) == bytes(write, len), "{name} differs");
    }
    for name in touched.iter().filter(|name| name.starts_with("file")) {
        let Ok(found) = volume.lookup(root, name.as_bytes()) else { continue };
        let data = read(&mut volume, &disk, found.ino, found.size);
        // Blocks of one write alone, or zeroes: the rest was not written yet.
        let writes: BTreeSet<[u8; 8]> = data
            .chunks(1024)
            .enumerate()
            .filter(|(_, block)| block.len() >= 8 && block.iter().any(|&byte| byte != 0))
            .map(|(n, block)| {
                core::array::from_fn(|at| (block[at] ^ ((n * 1024 + at) / 8) as u8) & !1)
            })
            .collect();
        assert!(writes.len() <= 1, "{name} has blocks of others: {writes:?}");
    }
    volume.unmount().expect("unmount");
    let mut platter = disk.0.lock().unwrap();
    std::fs::write(image, &platter.now).expect("room for an image");
    assert_eq!(complaints(image), "");
    (left, platter.history.take().expect("it was kept"))
}

/// What is left after the first so many events, and how it came to that.
fn cut_at(base: &[u8], events: &[Event], chance: &mut Random) -> Vec<u8> {
    let (mut stable, mut pending) = (base.to_vec(), Vec::new());
    for event in events {
        match event {
            Event::Write(at, bytes) => pending.push((*at, bytes.clone())),
            Event::Flush => {
                for (at, bytes) in pending.drain(..) {
                    stable[at..at + bytes.len()].copy_from_slice(&bytes);
                }
            }
        }
    }
    left(&stable, &pending, chance)
}

/// Whether a journal's superblock is written, maybe with more.
fn is_superblock(event: &Event) -> bool {
    matches!(event, Event::Write(_, bytes) if bytes.starts_with(&[0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 4]))
}

/// Kills machines that do the work of one seed.
fn kill(seed: u64) {
    const KILLS: u64 = 10;
    let folder =
        tempfile::tempdir_in(if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" });
    let folder = folder.expect("a temporary folder");
    let image = folder.path().join("disk.img");
    let mut chance = Random(seed);
    let shapes: [&[&str]; 4] = [
        &["-b", "4096", "-J", "size=4"],
        &["-b", "1024", "-J", "size=1"],
        &["-b", "1024", "-J", "size=1", "-O", "^metadata_csum,^64bit"],
        &["-b", "2048", "-J", "size=2", "-O", "^64bit"],
    ];
    make(&image, 12, shapes[chance.below(4) as usize]);
    let disk = Disk::open(&image);
    let (lines, steps) = ([16, 64, 1024][chance.below(3) as usize], 30 + chance.below(300));
    let (base, events, log) = work(&disk, &mut chance, steps, lines);
    drop(disk);
    for n in 0..KILLS {
        let mut cut = 1 + chance.below(events.len() as u64) as usize;
        let rest = events[cut..].iter();
        if let Some(next) = rest.clone().position(is_superblock).filter(|_| n % 2 == 0) {
            // Where the log begins or ends, or shortly behind.
            cut = (cut + next + 1 + chance.below(4) as usize).min(events.len());
        }
        let last = log.iter().rposition(|step| step.synced.is_some() && step.at <= cut);
        let last = last.expect("the first was synced");
        let touched =
            log[last + 1..].iter().filter(|step| step.at < cut || step.at == log[last].at);
        let touched = touched.flat_map(|step| step.touched.iter().cloned()).collect();
        let contents = log[last].synced.as_ref().expect("it was");
        let mut kills = 1;
        let found = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| {
            let left = cut_at(&base, &events[..cut], &mut chance);
            let (left, again) = judge(&image, left, contents, &touched, &mut chance);
            // The machine goes off once more as it recovers.
            if !again.is_empty() {
                kills += 1;
                let cut = chance.below(again.len() as u64 + 1) as usize;
                let left = cut_at(&left, &again[..cut], &mut chance);
                judge(&image, left, contents, &touched, &mut chance);
            }
        }));
        let count = events.len();
        assert!(
            found.is_ok(),
            "seed {seed}, kill {kills} after {cut} of {count} requests, {lines} lines"
        );
    }
}

/// Each of these is 10 kills, and 10 more during what comes after them.
#[test]
fn killed_machines_keep_what_was_synced() {
    try_seeds(12, 15_485_863, kill);
}
