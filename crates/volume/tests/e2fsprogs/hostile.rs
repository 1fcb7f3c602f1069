//! Images that an enemy has written: whatever they hold, calls end, with an error or without, in
//! bounded time and memory.
//!
//! Volumes that were worked on get bytes changed where the volume itself had written metadata, or
//! read it, most of them without checksums, which would find all of it. A seed names the change.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use volume::{Change, Cursor, Mode, New, Rename, Volume};

use crate::common::{debugfs, try_make, Disk, Now, Random, LIMITS};
use crate::model::World;

/// Bytes that a thread has allocated at a time, at most, since it began to be counted.
struct Counting;

thread_local! {
    static HELD: Cell<i64> = const { Cell::new(0) };
    static MOST: Cell<i64> = const { Cell::new(0) };
}

impl Counting {
    fn count(bytes: i64) {
        let _ = HELD.try_with(|held| {
            held.set(held.get() + bytes);
            let _ = MOST.try_with(|most| most.set(most.get().max(held.get())));
        });
    }
}

// SAFETY: the system's allocator does all the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() as i64 > 100 * MOST_MEMORY {
            panic!("huge {}", layout.size());
        }
        Counting::count(layout.size() as i64);
        // SAFETY: as the caller of this says.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        Counting::count(-(layout.size() as i64));
        // SAFETY: as the caller of this says.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What one image may have a volume hold at a time; it has 12 MiB itself.
const MOST_MEMORY: i64 = 16 << 20;
/// How long one image may keep a test busy.
const PATIENCE: Duration = Duration::from_secs(300);

/// An image and where its metadata lies.
struct Base {
    image: Vec<u8>,
    metadata: Vec<u64>,
}

fn base(options: &[&str], seed: u64) -> Base {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("made.img");
    assert_eq!(try_make(&path, 12, options), None);
    let mut world = World::new(Disk::open(&path), seed);
    world.full = true;
    for _ in 0..250 {
        world.step();
    }
    world.disk.0.lock().unwrap().touched = Some(BTreeSet::new());
    world.judge(folder.path());
    use_all(&mut world.volume);
    let mut disk = world.disk.0.lock().unwrap();
    let metadata = disk.touched.take().expect("it was put there").into_iter().collect();
    assert!(debugfs(&path, "stat <2>").contains("directory"));
    Base { image: disk.now.clone(), metadata }
}

/// Changes bytes as an enemy would: fields become nothing, all ones, a little more or less, or
/// anything.
fn damage(image: &mut [u8], metadata: &[u64], chance: &mut Random) {
    for _ in 0..1 + chance.below(8) {
        let sector = match chance.below(8) {
            // The superblock and the first descriptors.
            0 => 2 + chance.below(2),
            1 => 4 + chance.below(12),
            _ => metadata[chance.below(metadata.len() as u64) as usize],
        };
        let width = [1, 2, 4][chance.below(3) as usize];
        let at = (sector * 512 + chance.below(512) / width * width) as usize;
        let field = &mut image[at..at + width as usize];
        match chance.below(5) {
            0 => field.fill(0),
            1 => field.fill(0xff),
            2 => field[0] ^= 1 << chance.below(8),
            3 => field[0] = field[0].wrapping_add(1),
            _ => field.iter_mut().for_each(|byte| *byte = chance.next() as u8),
        }
    }
}

/// Directories and other things, by number, and names with their directories.
type Seen = (Vec<u32>, Vec<u32>, Vec<(u32, Vec<u8>)>);

/// Asks for all that the volume holds, as far as it goes; returns what it has seen.
fn use_all(volume: &mut Volume<Disk>) -> Seen {
    let (mut dirs, mut others, mut names) = (vec![volume.root()], Vec::new(), Vec::new());
    let mut next = 0;
    while next < dirs.len().min(200) {
        let dir = dirs[next];
        next += 1;
        let mut from = Cursor::Start;
        for _ in 0..100 {
            let Ok(part) = volume.list(dir, from, 50) else { break };
            let Some(last) = part.last() else { break };
            from = last.next;
            for entry in part {
                if let Ok(found) = volume.lookup(dir, &entry.name) {
                    let _ = volume.extents(found.ino, 0, i64::MAX as u64);
                    let _ = volume.read_link(found.ino);
                    let is_new =
                        entry.name != b"." && entry.name != b".." && !dirs.contains(&found.ino);
                    match found.mode & 0o170000 {
                        0o040000 if is_new => dirs.push(found.ino),
                        0o040000 => {}
                        _ => others.push(found.ino),
                    }
                }
                names.push((dir, entry.name));
            }
        }
    }
    (dirs, others, names)
}

/// Changes the volume here and there.
fn change_all(volume: &mut Volume<Disk>, chance: &mut Random) {
    let (dirs, others, names) = use_all(volume);
    let any = |from: &[u32], chance: &mut Random| {
        from.get(chance.below(from.len().max(1) as u64) as usize).copied().unwrap_or(2)
    };
    for n in 0..40 {
        let (dir, ino) = (any(&dirs, chance), any(&others, chance));
        let new = format!("new {n}{}", "y".repeat(chance.below(100) as usize));
        let (at, old) = match names.get(chance.below(names.len().max(1) as u64) as usize) {
            Some((at, old)) => (*at, old.clone()),
            None => (2, b"nothing".to_vec()),
        };
        match chance.below(11) {
            0 => drop(volume.create(dir, new.as_bytes(), New::File, 0o644, (0, 0))),
            1 => drop(volume.create(dir, new.as_bytes(), New::Dir, 0o755, (0, 0))),
            2 => {
                let link = New::Symlink(&[b'a'; 200]);
                let _ = volume.create(dir, new.as_bytes(), link, 0o777, (0, 0));
            }
            3 => drop(volume.rename(at, &old, dir, new.as_bytes(), Rename::Replace)),
            4 => {
                if volume.unlink(at, &old) == Ok(true) {
                    let _ = volume.reap(ino);
                }
            }
            5 => drop(volume.remove_dir(at, &old)),
            6 => drop(volume.link(ino, dir, new.as_bytes())),
            7 => drop(volume.reserve(ino, 100_000, 4096, 50_000)),
            8 => drop(volume.resize(ino, chance.below(300_000))),
            9 => drop(volume.punch(ino, chance.below(90_000), 40_000)),
            _ => drop(volume.change(ino, &Change { perm: Some(0o600), ..Change::default() })),
        }
    }
    let _ = volume.sync();
    let _ = volume.unmount();
}

fn mount_and_use(image: Vec<u8>, seed: u64) {
    let mut chance = Random(seed);
    for mode in [Mode::ReadOnly, Mode::ReadWrite] {
        let disk = Disk::holding(image.clone());
        HELD.set(0);
        MOST.set(0);
        if let Ok(mut volume) = Volume::mount(disk, Now, mode, LIMITS) {
            change_all(&mut volume, &mut chance);
        }
        // The disk in memory keeps copies of what is written to it.
        assert!(MOST.get() < MOST_MEMORY + image.len() as i64, "{} bytes of memory", MOST.get());
    }
}

/// The seed that is tried, for the thread that watches that it ends.
static CURRENT: AtomicU64 = AtomicU64::new(0);

fn watch() {
    std::thread::spawn(|| loop {
        let seed = CURRENT.load(Ordering::Relaxed);
        std::thread::sleep(PATIENCE);
        if seed != 0 && CURRENT.load(Ordering::Relaxed) == seed {
            eprintln!("VOLUME_SEED={seed} VOLUME_RUNS=1 does not end");
            std::process::abort();
        }
    });
}

#[test]
fn changed_bytes_do_no_harm() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let plain = "^metadata_csum,^uninit_bg";
    let bases: Vec<Base> = [
        ["-b", "1024", "-O", plain, "-J", "size=1"],
        ["-b", "1024", "-O", "^metadata_csum,^uninit_bg,^has_journal", "-g", "1024"],
        ["-b", "4096", "-O", plain, "-J", "size=4"],
        ["-b", "1024", "-O", "metadata_csum", "-J", "size=1"],
    ]
    .iter()
    .zip(1..)
    .map(|(options, seed)| base(options, seed))
    .collect();
    watch();
    let first = number("VOLUME_SEED").unwrap_or(1);
    let mut failed = Vec::new();
    for seed in first..first + number("VOLUME_RUNS").unwrap_or(1000) {
        CURRENT.store(seed, Ordering::Relaxed);
        let mut chance = Random(seed * 7919);
        let base = &bases[(seed % 4) as usize];
        let mut image = base.image.clone();
        damage(&mut image, &base.metadata, &mut chance);
        if catch_unwind(AssertUnwindSafe(|| mount_and_use(image, seed))).is_err() {
            failed.push(seed);
        }
    }
    CURRENT.store(0, Ordering::Relaxed);
    assert!(failed.is_empty(), "VOLUME_SEED is one of {failed:?}, VOLUME_RUNS 1");
}
