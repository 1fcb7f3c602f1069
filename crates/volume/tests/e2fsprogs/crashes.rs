//! Power cuts: of what was not flushed any part may be missing, and e2fsck must still repair the
//! volume, with all that was synced before in it.

use std::collections::BTreeMap;
use std::path::Path;

use crate::common::{fsck, make, mount, mount_remembering, read, write_back, Disk, Random};
use volume::{ErrorKind, New, Rename};

/// What was there when the last sync ended: contents by name.
type Kept = BTreeMap<String, Vec<u8>>;

/// Names that have changed since then, which a crash may show in either way.
struct Run {
    now: Kept,
    kept: Kept,
    touched: Vec<String>,
}

/// Works on the volume until `steps` are done; the last sync is somewhere in the middle.
fn work(disk: &Disk, chance: &mut Random, steps: u64, lines: usize) -> Run {
    let mut volume = mount_remembering(disk, lines);
    let root = volume.root();
    let mut run = Run { now: Kept::new(), kept: Kept::new(), touched: Vec::new() };
    for n in 0..steps {
        let name = format!("file {}", chance.below(40));
        run.touched.push(name.clone());
        match chance.below(8) {
            0..=3 => {
                let data: Vec<u8> = (0..chance.below(200_000)).map(|i| (i * 7 + n) as u8).collect();
                let ino = match volume.lookup(root, name.as_bytes()) {
                    Ok(old) => old.ino,
                    Err(_) => {
                        volume
                            .create(root, name.as_bytes(), New::File, 0o600, (0, 0))
                            .expect("create")
                            .ino
                    }
                };
                volume.resize(ino, 0).expect("resize");
                if !data.is_empty() {
                    let len = data.len() as u64;
                    let runs = volume.reserve(ino, len, 0, len).expect("reserve");
                    write_back(disk, &runs, &data);
                }
                run.now.insert(name, data);
            }
            4 if run.now.remove(&name).is_some() => {
                let ino = volume.lookup(root, name.as_bytes()).expect("it is there").ino;
                if volume.unlink(root, name.as_bytes()).expect("unlink") {
                    volume.reap(ino).expect("reap");
                }
            }
            5 => {
                let to = format!("file {}", chance.below(40));
                if to != name
                    && let Some(data) = run.now.remove(&name)
                {
                    let moved =
                        volume.rename(root, name.as_bytes(), root, to.as_bytes(), Rename::Replace);
                    if let Some(gone) = moved.expect("rename") {
                        volume.reap(gone).expect("reap");
                    }
                    run.now.insert(to.clone(), data);
                    run.touched.push(to);
                }
            }
            _ if chance.below(3) == 0 => {
                volume.sync().expect("sync");
                run.kept = run.now.clone();
                run.touched.clear();
            }
            _ => {}
        }
    }
    run
}

fn judge(image: &Path, run: &Run, seed: u64) {
    let (code, text) = fsck(image, "-y");
    assert!(code <= 1, "seed {seed}: e2fsck gave up ({code})\n{text}");
    let (code, text) = fsck(image, "-n");
    assert_eq!(code, 0, "seed {seed}: e2fsck did not repair all\n{text}");
    let disk = Disk::open(image);
    let mut volume = mount(&disk);
    let root = volume.root();
    for (name, data) in run.kept.iter().filter(|(name, _)| !run.touched.contains(name)) {
        let found = volume.lookup(root, name.as_bytes());
        let found =
            found.unwrap_or_else(|e| panic!("seed {seed}: {name} was synced and is gone: {e:?}"));
        assert_eq!(found.size, data.len() as u64, "seed {seed}: {name}");
        assert!(
            read(&mut volume, &disk, found.ino, found.size) == *data,
            "seed {seed}: {name} differs"
        );
    }
}

fn crash(options: &[&str], seed: u64) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let image = folder.path().join("disk.img");
    make(&image, 32, options);
    let disk = Disk::open(&image);
    let mut chance = Random(seed);
    let steps = 20 + chance.below(200);
    // Few changes a transaction and writes that are soon too many to wait, or many of both.
    let lines = if seed.is_multiple_of(2) { 16 } else { 1024 };
    let run = work(&disk, &mut chance, steps, lines);
    std::fs::write(&image, disk.crash(&mut chance)).expect("room for an image");
    judge(&image, &run, seed);
}

#[test]
fn what_was_synced_survives_a_power_cut() {
    for seed in 1..=24 {
        crash(&["-b", "4096", "-J", "size=4"], seed);
    }
}

#[test]
fn what_was_synced_survives_a_power_cut_on_small_blocks() {
    for seed in 101..=112 {
        crash(&["-b", "1024", "-J", "size=1"], seed);
    }
}

/// Deletes files that have blocks behind their ends, blocks that were never written, or both, while
/// they are open; then the power goes. The next mount frees all of it.
fn deleted_while_open(options: &[&str]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let image = folder.path().join("disk.img");
    make(&image, 32, options);
    let disk = Disk::open(&image);
    let mut volume = mount(&disk);
    let (root, free) = (volume.root(), volume.space().free);
    let mut inos = Vec::new();
    // Bytes written, and where how many are set aside.
    for (n, (written, at, len)) in [
        (0, 0, 300_000),
        (5000, 0, 300_000),
        (100_000, 65_536, 1),
        (40_000, 1 << 20, 90_000),
        (0, 3 << 30, 1),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("file {n}");
        let ino =
            volume.create(root, name.as_bytes(), New::File, 0o600, (0, 0)).expect("create").ino;
        volume.allocate(ino, at, len).expect("allocate");
        if written > 0 {
            let runs = volume.reserve(ino, written, 0, written).expect("reserve");
            write_back(&disk, &runs, &vec![7; written as usize]);
        }
        if n % 2 == 0 {
            volume.resize(ino, at + len / 2).expect("resize");
        }
        inos.push((name, ino));
    }
    volume.sync().expect("sync");
    for (name, _) in &inos {
        assert!(volume.unlink(root, name.as_bytes()).expect("unlink"));
    }
    volume.sync().expect("sync");
    drop(volume);
    let stable = disk.0.lock().unwrap().stable.clone();
    std::fs::write(&image, stable).expect("room for an image");
    let disk = Disk::open(&image);
    let mut volume = mount(&disk);
    assert_eq!(volume.space().free, free, "blocks are lost");
    volume.unmount().expect("unmount");
    std::fs::write(&image, &disk.0.lock().unwrap().now).expect("room for an image");
    let (code, text) = fsck(&image, "-n");
    assert_eq!(code, 0, "{text}");
}

#[test]
fn what_was_set_aside_for_deleted_files_is_freed_after_a_power_cut() {
    deleted_while_open(&["-b", "4096", "-J", "size=4"]);
    deleted_while_open(&["-b", "1024", "-J", "size=4"]);
}

/// Without a journal a machine that goes off may leave a name whose inode was freed. A thread that
/// looks it up is told of the damage, and isn't given what the inode was.
fn killed_without_a_journal(options: &[&str], seed: u64) -> usize {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let image = folder.path().join("disk.img");
    make(&image, 8, options);
    let disk = Disk::open(&image);
    disk.0.lock().unwrap().has_long_memory = true;
    let mut chance = Random(seed);
    work(&disk, &mut chance, 60, 64);
    let (mut now, writes) = {
        let disk = disk.0.lock().unwrap();
        (disk.stable.clone(), disk.pending.clone())
    };
    let mut damaged = 0;
    for (n, (at, bytes)) in writes.iter().enumerate() {
        now[*at..at + bytes.len()].copy_from_slice(bytes);
        let mut volume = mount(&Disk::holding(now.clone()));
        let root = volume.root();
        for file in 0..40 {
            match volume.lookup(root, format!("file {file}").as_bytes()) {
                Ok(found) => assert!(
                    found.links > 0 && found.has_extents,
                    "seed {seed}, write {n}: file {file} is {found:?}"
                ),
                Err(ErrorKind::NotFound) => {}
                Err(ErrorKind::Corrupted) => damaged += 1,
                Err(error) => panic!("seed {seed}, write {n}: file {file}: {error:?}"),
            }
        }
    }
    damaged
}

#[test]
fn no_name_leads_to_a_freed_inode_without_a_journal() {
    let damaged = killed_without_a_journal(
        &["-b", "1024", "-O", "^has_journal,^metadata_csum,uninit_bg"],
        201,
    ) + killed_without_a_journal(&["-b", "4096", "-O", "^has_journal"], 202);
    assert!(damaged > 0, "no cut has left such a name: that tests nothing");
}
