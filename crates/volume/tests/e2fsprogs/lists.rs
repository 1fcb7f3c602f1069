//! Large directories, without an index on the disk, as `mke2fs -d` makes them, and with one: random
//! changes of names against a model, `debugfs` and `e2fsck`; and what a look-up costs.

use rustix::time::{clock_gettime, ClockId};
use std::collections::btree_map::Entry;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::common::{complaints, make, mount_remembering, Disk, Random};
use volume::{Cursor, ErrorKind, New, Rename, Volume};

/// Names that a test uses.
const NAMES: u64 = 1200;
/// Those that are there from the beginning.
const FILES: u64 = 800;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    File,
    Dir,
}

type Names = BTreeMap<String, (u32, Kind)>;

/// Two directories and what they should hold.
struct World {
    volume: Volume<Disk>,
    dirs: [u32; 2],
    names: [Names; 2],
    chance: Random,
}

/// An image with directories of so many empty files each.
fn filled(folder: &Path, counts: &[(&str, u64)], options: &[&str]) -> Disk {
    let source = folder.join("source");
    for (dir, count) in counts {
        let dir = source.join(dir);
        std::fs::create_dir_all(&dir).expect("room for folders");
        for n in 0..*count {
            std::fs::File::create(dir.join(name(n))).expect("room for files");
        }
    }
    let image = folder.join("made.img");
    let source = source.to_str().expect("a path in letters");
    make(&image, 32, &[&["-N", "16000", "-J", "size=4", "-d", source], options].concat());
    Disk::open(&image)
}

/// Of different lengths.
fn name(n: u64) -> String {
    format!("{n}{}", "-".repeat((n * 7 % 40) as usize))
}

/// What a listing says.
fn list(volume: &mut Volume<Disk>, dir: u32) -> BTreeMap<String, u32> {
    let mut all = BTreeMap::new();
    let mut from = Cursor::Start;
    loop {
        let part = volume.list(dir, from, 100).expect("list");
        let Some(last) = part.last() else { break };
        from = last.next;
        all.extend(
            part.into_iter()
                .map(|entry| (String::from_utf8(entry.name).expect("letters"), entry.ino)),
        );
    }
    all.retain(|name, _| name != "." && name != "..");
    all
}

/// What `debugfs` finds in a directory.
fn listed_by_debugfs(image: &Path, dir: &str) -> BTreeMap<String, u32> {
    let out = Command::new("debugfs").args(["-R", &format!("ls -p {dir}")]).arg(image).output();
    let out = out.expect("debugfs is installed");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let entry = |line: &str| {
        let mut words = line.split('/');
        let ino = words.nth(1)?.parse().ok()?;
        Some((words.nth(3)?.to_owned(), ino))
    };
    let mut all: BTreeMap<String, u32> = text.lines().filter_map(entry).collect();
    // An unused part of a block has the number 0.
    all.retain(|name, &mut ino| name != "." && name != ".." && ino != 0);
    all
}

impl World {
    fn new(disk: &Disk, lines: usize, seed: u64) -> World {
        let mut volume = mount_remembering(disk, lines);
        let root = volume.root();
        let dirs =
            ["one", "two"].map(|dir| volume.lookup(root, dir.as_bytes()).expect("it was made").ino);
        let names = dirs.map(|dir| {
            list(&mut volume, dir)
                .into_iter()
                .map(|(name, ino)| (name, (ino, Kind::File)))
                .collect()
        });
        World { volume, dirs, names, chance: Random(seed) }
    }

    fn some(&mut self) -> (usize, String) {
        (self.chance.below(2) as usize, name(self.chance.below(NAMES)))
    }

    fn is_linked(&self, ino: u32) -> bool {
        self.names.iter().any(|names| names.values().any(|&(other, _)| other == ino))
    }

    fn create(&mut self) {
        let (dir, name) = self.some();
        let (new, kind) =
            if self.chance.below(8) == 0 { (New::Dir, Kind::Dir) } else { (New::File, Kind::File) };
        let made = self.volume.create(self.dirs[dir], name.as_bytes(), new, 0o700, (0, 0));
        match self.names[dir].entry(name) {
            Entry::Occupied(_) => assert_eq!(made.err(), Some(ErrorKind::AlreadyExists)),
            Entry::Vacant(free) => _ = free.insert((made.expect("create").ino, kind)),
        }
    }

    fn link(&mut self) {
        let ((from, old), (to, new)) = (self.some(), self.some());
        let Some(&(ino, Kind::File)) = self.names[from].get(&old) else { return };
        let linked = self.volume.link(ino, self.dirs[to], new.as_bytes());
        match self.names[to].entry(new) {
            Entry::Occupied(_) => assert_eq!(linked.err(), Some(ErrorKind::AlreadyExists)),
            Entry::Vacant(free) => {
                assert_eq!(linked.expect("link").ino, ino);
                free.insert((ino, Kind::File));
            }
        }
    }

    fn remove(&mut self) {
        let (dir, name) = self.some();
        let text = name.as_bytes();
        match self.names[dir].remove(&name) {
            None => assert_eq!(self.volume.unlink(self.dirs[dir], text), Err(ErrorKind::NotFound)),
            Some((ino, Kind::Dir)) => {
                self.volume.remove_dir(self.dirs[dir], text).expect("remove_dir");
                self.volume.reap(ino).expect("reap");
            }
            Some((ino, Kind::File)) => {
                let was_last = self.volume.unlink(self.dirs[dir], text).expect("unlink");
                assert_eq!(was_last, !self.is_linked(ino));
                if was_last {
                    self.volume.reap(ino).expect("reap");
                }
            }
        }
    }

    fn rename(&mut self) {
        let ((from, old), (to, new)) = (self.some(), self.some());
        let how =
            [Rename::Replace, Rename::NoReplace, Rename::Exchange][self.chance.below(3) as usize];
        let (source, target) =
            (self.names[from].get(&old).copied(), self.names[to].get(&new).copied());
        if (from, &old) == (to, &new) || source.zip(target).is_some_and(|(a, b)| a.1 != b.1) {
            return;
        }
        let moved =
            self.volume.rename(self.dirs[from], old.as_bytes(), self.dirs[to], new.as_bytes(), how);
        match (source, target, how) {
            (None, ..) => assert_eq!(moved, Err(ErrorKind::NotFound)),
            (_, Some(_), Rename::NoReplace) => assert_eq!(moved, Err(ErrorKind::AlreadyExists)),
            (_, None, Rename::Exchange) => assert_eq!(moved, Err(ErrorKind::NotFound)),
            (Some(a), Some(b), Rename::Exchange) => {
                moved.expect("exchange");
                self.names[from].insert(old, b);
                self.names[to].insert(new, a);
            }
            // Two names of one file stay.
            (Some(a), Some(b), _) if a.0 == b.0 => assert_eq!(moved, Ok(None)),
            (Some(a), b, _) => {
                let gone = moved.expect("rename");
                self.names[from].remove(&old);
                self.names[to].insert(new, a);
                assert_eq!(gone, b.map(|(ino, _)| ino).filter(|&ino| !self.is_linked(ino)));
                if let Some(gone) = gone {
                    self.volume.reap(gone).expect("reap");
                }
            }
        }
    }

    fn look_up(&mut self) {
        let (dir, name) = self.some();
        let found = self.volume.lookup(self.dirs[dir], name.as_bytes()).map(|found| found.ino);
        let wanted = self.names[dir].get(&name).map(|&(ino, _)| ino);
        assert_eq!(found, wanted.ok_or(ErrorKind::NotFound), "{name}");
    }

    fn step(&mut self) {
        match self.chance.below(8) {
            0..=2 => self.create(),
            3 => self.link(),
            4 | 5 => self.remove(),
            _ => self.rename(),
        }
        for _ in 0..6 {
            self.look_up();
        }
    }
}

/// Works on names in directories with so many files, with so many cache lines' room for them, then
/// asks everybody.
fn run(options: &[&str], files: u64, lines: usize, seed: u64) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let disk = filled(folder.path(), &[("one", files), ("two", files)], options);
    let mut world = World::new(&disk, lines, seed);
    for _ in 0..1000 {
        world.step();
    }
    world.volume.unmount().expect("unmount");
    let image = folder.path().join("judged.img");
    std::fs::write(&image, &disk.0.lock().unwrap().now).expect("room for an image");
    assert_eq!(complaints(&image), "");
    let mut fresh = mount_remembering(&Disk::open(&image), 0);
    for (n, dir) in ["/one", "/two"].into_iter().enumerate() {
        let wanted: BTreeMap<String, u32> =
            world.names[n].iter().map(|(name, &(ino, _))| (name.clone(), ino)).collect();
        assert!(listed_by_debugfs(&image, dir) == wanted, "debugfs finds something else in {dir}");
        assert!(
            list(&mut fresh, world.dirs[n]) == wanted,
            "a fresh mount finds something else in {dir}"
        );
    }
}

#[test]
fn names_of_large_lists_with_room_for_all() {
    (1..=4).for_each(|seed| run(&["-b", "4096"], FILES, 1024, seed));
}

#[test]
fn names_of_large_lists_with_room_for_one() {
    (11..=14).for_each(|seed| run(&["-b", "1024"], FILES, 24, seed));
}

#[test]
fn names_of_large_lists_with_room_for_a_part() {
    (21..=24).for_each(|seed| run(&["-b", "1024", "-O", "^has_journal"], FILES, 6, seed));
}

/// Directories that grow from nothing get indexes, whose blocks are split.
#[test]
fn names_of_directories_with_an_index() {
    (31..=60).for_each(|seed| run(&["-b", "1024"], 0, 64, seed));
}

/// What this thread has had of a CPU so far: what else runs on this machine does not count.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// What a look-up in a directory costs on average, the best of three times for each of its names.
fn cost(volume: &mut Volume<Disk>, dir: &str, count: u64) -> Duration {
    let root = volume.root();
    let dir = volume.lookup(root, dir.as_bytes()).expect("it was made").ino;
    let pass = |volume: &mut Volume<Disk>| {
        let start = cpu_time();
        for n in 0..count {
            volume.lookup(dir, name(n).as_bytes()).expect("lookup");
        }
        (cpu_time() - start) / count as u32
    };
    (0..3).map(|_| pass(volume)).min().expect("three times")
}

#[test]
fn a_look_up_in_a_large_list_costs_about_what_it_does_in_a_small_one() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let disk = filled(folder.path(), &[("small", 100), ("large", 10_000)], &["-b", "4096"]);
    let mut volume = mount_remembering(&disk, 1024);
    // More than twenty times as much if it is walked, each time; a host that is busy may stretch
    // one or the other.
    let mut costs = || (cost(&mut volume, "small", 100), cost(&mut volume, "large", 10_000));
    let cheap = (0..20).map(|_| costs()).find(|&(small, large)| large < small * 8);
    assert!(cheap.is_some(), "a look-up in a large list costs eight times as much each time");
}
