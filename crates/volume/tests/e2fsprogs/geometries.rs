//! Volumes of all shapes that `mke2fs` makes, random operations on them, and machines that go off
//! in the middle.
//!
//! A shape is chosen by a seed, which a failure names. What is left behind in order must be right
//! in `e2fsck`'s eyes. What a power cut leaves must mount again without help, with a journal be
//! right then, and without one be what `e2fsck -fy` repairs.

use std::path::Path;

use volume::{Cursor, ErrorKind, Mode, Volume};

use crate::common::{complaints, debugfs, fsck, try_make, Disk, Now, Random, LIMITS};
use crate::model::World;

/// What is passed to `mke2fs`, and what the tests ask about it.
struct Shape {
    mib: u64,
    options: Vec<String>,
    has_journal: bool,
}

fn shape(chance: &mut Random) -> Shape {
    let block = 1024 << chance.below(3);
    let has_journal = chance.below(3) > 0;
    let mib = [4, 8, 16, 40, 72][chance.below(5) as usize] + chance.below(5);
    let mut features = vec![if has_journal { "has_journal" } else { "^has_journal" }];
    features.push(
        ["metadata_csum", "^metadata_csum,uninit_bg", "^metadata_csum,^uninit_bg"]
            [chance.below(3) as usize],
    );
    for pair in [
        ["flex_bg", "^flex_bg"],
        ["dir_index", "^dir_index"],
        ["64bit", "^64bit"],
        ["resize_inode", "^resize_inode"],
        ["huge_file", "^huge_file"],
        ["sparse_super", "^sparse_super,^resize_inode"],
    ] {
        features.push(pair[usize::from(chance.below(3) == 0)]);
    }
    let features = features.join(",");
    let mut options: Vec<String> =
        ["-b", &block.to_string(), "-O", &features].map(String::from).into_iter().collect();
    let mut option = |name: &str, value: String| options.extend([name.to_owned(), value]);
    option("-I", [128, 256, 256, 512][chance.below(4) as usize].to_string());
    // Small groups make many of them; 88 inodes a group are no multiple of what a bitmap's word
    // holds.
    let group = [256, 1024, 2048, 8192][chance.below(4) as usize] * block / 1024;
    let group = group.min(block * 8).max(256);
    let groups = ((mib << 20) / block).div_ceil(group);
    option("-g", group.to_string());
    match chance.below(3) {
        0 => option("-N", (88 * groups).to_string()),
        1 => option("-N", (groups * (40 + chance.below(400))).to_string()),
        _ => option("-i", (2048 << chance.below(4)).to_string()),
    }
    option("-E", format!("lazy_itable_init={0},nodiscard", chance.below(2)));
    if has_journal {
        let least = block.div_ceil(1024);
        option("-J", format!("size={}", least.max(if mib > 30 { 4 } else { 1 })));
    }
    Shape { mib, options, has_journal }
}

/// A volume that `mke2fs` can make and that can be mounted. Many small groups have `mke2fs` add
/// `meta_bg`, which is refused.
fn made(image: &Path, chance: &mut Random) -> (Shape, Disk) {
    loop {
        let mut shape = shape(chance);
        let options: Vec<&str> = shape.options.iter().map(String::as_str).collect();
        if try_make(image, shape.mib, &options).is_some() {
            continue;
        }
        let disk = Disk::open(image);
        let features = debugfs(image, "features");
        // Small volumes get none.
        shape.has_journal = features.contains("has_journal");
        if features.contains("meta_bg") {
            let mounted = Volume::mount(disk, Now, Mode::ReadWrite, LIMITS);
            assert!(matches!(mounted, Err(ErrorKind::UnsupportedFeature)));
            continue;
        }
        return (shape, disk);
    }
}

fn save(image: &Path, disk: &Disk) {
    std::fs::write(image, &disk.0.lock().unwrap().now).expect("room for an image");
}

/// Asks for all that the volume holds; returns how many names it has.
fn walk(volume: &mut Volume<Disk>) -> volume::Result<usize> {
    let (mut dirs, mut names) = (vec![volume.root()], 0);
    while let Some(dir) = dirs.pop() {
        let mut from = Cursor::Start;
        while from != Cursor::End {
            let part = volume.list(dir, from, 50)?;
            let Some(last) = part.last() else { break };
            from = last.next;
            for entry in part.iter().filter(|entry| entry.name != b"." && entry.name != b"..") {
                let found = volume.lookup(dir, &entry.name)?;
                match found.mode & 0o170000 {
                    0o040000 => dirs.push(found.ino),
                    0o100000 => drop(volume.extents(found.ino, 0, i64::MAX as u64)?),
                    _ => {}
                }
                names += 1;
            }
        }
    }
    Ok(names)
}

fn in_order(seed: u64) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let image = folder.path().join("made.img");
    let mut chance = Random(seed);
    let (shape, disk) = made(&image, &mut chance);
    println!("seed {seed}: {} MiB, {:?}", shape.mib, shape.options);
    let mut world = World::new(disk, seed);
    world.full = true;
    for _ in 0..2 {
        for _ in 0..120 {
            world.step();
        }
        world.check();
        world.judge(folder.path());
        world.check();
    }
}

fn power_cut(seed: u64) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let image = folder.path().join("cut.img");
    let mut chance = Random(seed);
    let (shape, disk) = made(&image, &mut chance);
    println!("seed {seed}: {} MiB, {:?}", shape.mib, shape.options);
    let mut world = World::new(disk, seed);
    world.full = true;
    for _ in 0..20 + chance.below(150) {
        world.step();
    }
    // A machine that is switched off loses sectors of what the disk was not told to keep; a journal
    // is there for that. One that is killed only loses what it had not written yet.
    let left = match shape.has_journal && chance.below(2) == 0 {
        true => world.disk.crash(&mut chance),
        false => world.disk.cut(&mut chance),
    };
    drop(world);
    std::fs::write(&image, left).expect("room for an image");
    let disk = Disk::open(&image);
    let mounted = Volume::mount(disk.clone(), Now, Mode::ReadWrite, LIMITS);
    let mut volume = mounted.unwrap_or_else(|error| {
        panic!("seed {seed}: no mount after a cut: {error:?}\n{}", fsck(&image, "-n").1)
    });
    let walked = walk(&mut volume);
    if shape.has_journal {
        walked.expect("what was committed is whole");
        volume.unmount().expect("unmount");
        save(&image, &disk);
        assert_eq!(complaints(&image), "", "seed {seed}");
    } else {
        let _ = volume.unmount();
        save(&image, &disk);
        let (code, text) = fsck(&image, "-y");
        assert!(code <= 1, "seed {seed}: e2fsck gave up ({code})\n{text}");
        assert_eq!(complaints(&image), "", "seed {seed}: e2fsck did not repair all");
    }
    assert!(debugfs(&image, "stat <2>").contains("Type: directory"));
}

/// Tries seeds, as many as usual or as the environment says, and names all that fail.
pub fn try_seeds(usual: u64, factor: u64, attempt: fn(u64)) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("VOLUME_SEED").unwrap_or(1);
    let seeds = first..first + number("VOLUME_RUNS").unwrap_or(usual);
    let fails = |seed: &u64| std::panic::catch_unwind(|| attempt(seed * factor)).is_err();
    let failed: Vec<u64> = seeds.filter(fails).collect();
    assert!(failed.is_empty(), "VOLUME_SEED is one of {failed:?}, VOLUME_RUNS 1");
}

#[test]
fn operations_on_volumes_of_all_shapes() {
    try_seeds(40, 7919, in_order);
}

#[test]
fn power_cuts_on_volumes_of_all_shapes() {
    try_seeds(40, 104_729, power_cut);
}
