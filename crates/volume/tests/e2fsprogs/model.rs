//! Random operations on volumes made by `mke2fs`, against a model; `e2fsck` and `debugfs` judge the
//! results.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::common::{complaints, fsck, make, mount, read, write_back, Disk, Random};
use volume::{Change, Cursor, ErrorKind, New, Rename, Volume};

/// A file as it should be.
#[derive(Clone, Default)]
struct File {
    data: Vec<u8>,
    links: u32,
}

/// The volume and what it should hold: files by path, directories by path.
pub struct World {
    pub volume: Volume<Disk>,
    pub disk: Disk,
    pub chance: Random,
    files: BTreeMap<u32, File>,
    names: BTreeMap<String, u32>,
    dirs: BTreeMap<String, u32>,
    links: BTreeMap<String, Vec<u8>>,
    /// Files without names that are still open.
    open: Vec<u32>,
    /// The disk may be full.
    pub full: bool,
}

fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').expect("paths begin at the root")
}

impl World {
    pub fn new(disk: Disk, seed: u64) -> World {
        let volume = mount(&disk);
        let dirs = BTreeMap::from([(String::new(), volume.root())]);
        World {
            volume,
            disk,
            chance: Random(seed),
            files: BTreeMap::new(),
            names: BTreeMap::new(),
            dirs,
            links: BTreeMap::new(),
            open: Vec::new(),
            full: false,
        }
    }

    fn some_dir(&mut self) -> (String, u32) {
        let n = self.chance.below(self.dirs.len() as u64) as usize;
        let (path, &ino) = self.dirs.iter().nth(n).expect("there is the root");
        (path.clone(), ino)
    }

    fn some_name(&mut self) -> Option<(String, u32)> {
        let n = self.chance.below(self.names.len().max(1) as u64) as usize;
        self.names.iter().nth(n).map(|(path, &ino)| (path.clone(), ino))
    }

    fn fresh(&mut self) -> (String, u32, String) {
        let (dir, ino) = self.some_dir();
        let pad = "x".repeat(self.chance.below(60) as usize);
        let name = format!("{}{pad}", self.chance.below(400));
        (format!("{dir}/{name}"), ino, name)
    }

    fn is_free(&self, path: &str) -> bool {
        !self.names.contains_key(path)
            && !self.dirs.contains_key(path)
            && !self.links.contains_key(path)
    }

    /// `false`: the disk is full, and it may be.
    fn ok<T>(&mut self, result: volume::Result<T>, what: &str) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(ErrorKind::NoSpace) if self.full => None,
            Err(error) => panic!("{what}: {error:?}"),
        }
    }

    fn create(&mut self) {
        let (path, dir, name) = self.fresh();
        let made = self.volume.create(dir, name.as_bytes(), New::File, 0o644, (1, 70000));
        if !self.is_free(&path) {
            assert!(matches!(made, Err(ErrorKind::AlreadyExists)), "{path}: {made:?}");
        } else if let Some(made) = self.ok(made, "create") {
            assert!(made.has_extents && made.links == 1 && made.gid == 70000);
            self.files.insert(made.ino, File { links: 1, ..File::default() });
            self.names.insert(path, made.ino);
        }
    }

    fn mkdir(&mut self) {
        let (path, dir, name) = self.fresh();
        if self.is_free(&path) && path.len() < 200 && self.dirs.len() < 40 {
            let made = self.volume.create(dir, name.as_bytes(), New::Dir, 0o755, (0, 0));
            if let Some(made) = self.ok(made, "mkdir") {
                self.dirs.insert(path, made.ino);
            }
        }
    }

    fn symlink(&mut self) {
        let (path, dir, name) = self.fresh();
        if self.is_free(&path) {
            let target = "t/".repeat(1 + self.chance.below(90) as usize).into_bytes();
            let made =
                self.volume.create(dir, name.as_bytes(), New::Symlink(&target), 0o777, (0, 0));
            if self.ok(made, "symlink").is_some() {
                self.links.insert(path, target);
            }
        }
    }

    fn link(&mut self) {
        let (path, dir, name) = self.fresh();
        let Some((_, ino)) = self.some_name() else { return };
        if self.is_free(&path) {
            let made = self.volume.link(ino, dir, name.as_bytes());
            if self.ok(made, "link").is_some() {
                self.files.get_mut(&ino).expect("it has a name").links += 1;
                self.names.insert(path, ino);
            }
        }
    }

    /// Writes somewhere, also far behind the end, and carries it to the disk as a page cache would.
    fn write(&mut self) {
        let Some((_, ino)) = self.some_name() else { return };
        let size = self.files[&ino].data.len() as u64;
        let at = match self.chance.below(4) {
            0 => size,
            1 => size + self.chance.below(100_000),
            _ => self.chance.below(size + 1),
        };
        let len = 1 + match self.chance.below(3) {
            0 => self.chance.below(200),
            1 => self.chance.below(10_000),
            _ => self.chance.below(400_000),
        };
        let mut data = self.files[&ino].data.clone();
        data.resize(data.len().max((at + len) as usize), 0);
        for byte in &mut data[at as usize..(at + len) as usize] {
            *byte = self.chance.next() as u8;
        }
        let page = at / 4096 * 4096;
        let runs = self.volume.reserve(ino, data.len() as u64, page, at + len - page);
        if let Some(runs) = self.ok(runs, "reserve") {
            // The old last page, too: it was cleared behind the old end and so it is dirty.
            write_back(&self.disk, &runs, &data);
            let tail = size / 4096 * 4096;
            if tail < size {
                let runs = self
                    .volume
                    .extents(ino, tail, 4096.min(data.len() as u64 - tail))
                    .expect("extents");
                let runs: Vec<_> = runs.into_iter().filter(|run| !run.unwritten).collect();
                write_back(&self.disk, &runs, &data);
            }
            self.files.get_mut(&ino).expect("it has a name").data = data;
        } else {
            let now = self.volume.attributes(ino).expect("attributes").size;
            let file = self.files.get_mut(&ino).expect("it has a name");
            file.data.resize(now as usize, 0);
        }
    }

    fn truncate(&mut self) {
        let Some((_, ino)) = self.some_name() else { return };
        let size = self.files[&ino].data.len() as u64;
        let to = if self.chance.below(3) == 0 {
            size + self.chance.below(50_000)
        } else {
            self.chance.below(size + 1)
        };
        let done = self.volume.resize(ino, to);
        if self.ok(done, "resize").is_none() {
            return;
        }
        let file = self.files.get_mut(&ino).expect("it has a name");
        file.data.resize(to as usize, 0);
        let data = file.data.clone();
        let tail = to.min(size) / 4096 * 4096;
        if tail < to {
            let runs = self.volume.extents(ino, tail, 4096.min(to - tail)).expect("extents");
            let runs: Vec<_> = runs.into_iter().filter(|run| !run.unwritten).collect();
            write_back(&self.disk, &runs, &data);
        }
    }

    fn punch(&mut self) {
        let Some((_, ino)) = self.some_name() else { return };
        let size = self.files[&ino].data.len() as u64;
        let at = self.chance.below(size + 1);
        let len = self.chance.below(size - at + 1);
        let done = self.volume.punch(ino, at, len);
        if self.ok(done, "punch").is_some() {
            let block = self.volume.block_size();
            let (from, to) = (at.next_multiple_of(block), (at + len) / block * block);
            if from < to {
                self.files.get_mut(&ino).expect("it has a name").data[from as usize..to as usize]
                    .fill(0);
            }
        }
    }

    fn lost(&mut self, ino: u32) {
        let file = self.files.get_mut(&ino).expect("it had a name");
        file.links -= 1;
        if file.links == 0 {
            self.files.remove(&ino);
            self.open.push(ino);
        }
    }

    fn unlink(&mut self) {
        let Some((path, ino)) = self.some_name() else { return };
        let (dir, name) = split(&path);
        let last = self.volume.unlink(self.dirs[dir], name.as_bytes()).expect("unlink");
        assert_eq!(last, self.files[&ino].links == 1);
        self.names.remove(&path);
        self.lost(ino);
        if self.open.len() > 3 || self.chance.below(3) > 0 {
            for ino in std::mem::take(&mut self.open) {
                self.volume.reap(ino).expect("reap");
            }
        }
    }

    fn rmdir(&mut self) {
        let (path, ino) = self.some_dir();
        if path.is_empty() {
            return;
        }
        let (dir, name) = split(&path);
        let below = format!("{path}/");
        let holds = |path: &String| path.starts_with(&below);
        let is_empty = !(self.names.keys().any(holds)
            || self.links.keys().any(holds)
            || self.dirs.keys().any(holds));
        let gone = self.volume.remove_dir(self.dirs[dir], name.as_bytes());
        if is_empty {
            gone.expect("rmdir");
            self.volume.reap(ino).expect("reap of a directory");
            self.dirs.remove(&path);
        } else {
            assert_eq!(gone, Err(ErrorKind::NotEmpty));
        }
    }

    fn rename(&mut self) {
        let Some((path, ino)) = self.some_name() else { return };
        let (to, to_dir, to_name) = self.fresh();
        let (dir, name) = split(&path);
        if self.dirs.contains_key(&to) || self.links.contains_key(&to) || to == path {
            return;
        }
        let dir = self.dirs[dir];
        let moved =
            self.volume.rename(dir, name.as_bytes(), to_dir, to_name.as_bytes(), Rename::Replace);
        let Some(gone) = self.ok(moved, "rename") else { return };
        match self.names.get(&to).copied() {
            Some(other) if other == ino => assert_eq!(gone, None, "two names of one file"),
            Some(other) => {
                self.names.remove(&path);
                self.names.insert(to, ino);
                assert_eq!(gone.is_some(), self.files[&other].links == 1);
                self.lost(other);
            }
            None => {
                self.names.remove(&path);
                self.names.insert(to, ino);
            }
        }
    }

    fn rename_dir(&mut self) {
        let (path, _) = self.some_dir();
        let (to, to_dir, to_name) = self.fresh();
        if path.is_empty() || !self.is_free(&to) {
            return;
        }
        let (dir, name) = split(&path);
        let dir = self.dirs[dir];
        let moved =
            self.volume.rename(dir, name.as_bytes(), to_dir, to_name.as_bytes(), Rename::NoReplace);
        if to.starts_with(&format!("{path}/")) {
            assert_eq!(moved, Err(ErrorKind::InvalidInput));
            return;
        }
        if self.ok(moved, "rename of a directory").is_none() {
            return;
        }
        let below = format!("{path}/");
        let new = |old: &String| match old.strip_prefix(&below) {
            Some(rest) => format!("{to}/{rest}"),
            None if *old == path => to.clone(),
            None => old.clone(),
        };
        self.names = self.names.iter().map(|(path, &ino)| (new(path), ino)).collect();
        self.dirs = self.dirs.iter().map(|(path, &ino)| (new(path), ino)).collect();
        self.links = self.links.iter().map(|(path, text)| (new(path), text.clone())).collect();
    }

    pub fn step(&mut self) {
        match self.chance.below(28) {
            0..=5 => self.create(),
            6 => self.mkdir(),
            7 => self.symlink(),
            8 => self.link(),
            9..=15 => self.write(),
            16..=18 => self.truncate(),
            19 => self.punch(),
            20..=22 => self.unlink(),
            23 => self.rmdir(),
            24 | 25 => self.rename(),
            26 => self.rename_dir(),
            _ => self.volume.sync().expect("sync"),
        }
    }

    /// The volume gives what the model says.
    pub fn check(&mut self) {
        for (path, &ino) in &self.names {
            let (dir, name) = split(path);
            let found = self.volume.lookup(self.dirs[dir], name.as_bytes()).expect(path);
            let file = &self.files[&ino];
            assert_eq!(
                (found.ino, found.size, found.links),
                (ino, file.data.len() as u64, file.links),
                "{path}"
            );
            assert!(
                read(&mut self.volume, &self.disk, ino, found.size) == file.data,
                "{path} differs"
            );
        }
        for (path, target) in &self.links {
            let (dir, name) = split(path);
            let found = self.volume.lookup(self.dirs[dir], name.as_bytes()).expect(path);
            assert_eq!(&self.volume.read_link(found.ino).expect("read_link"), target);
        }
        for (path, &ino) in &self.dirs {
            let mut listed = Vec::new();
            let mut from = Cursor::Start;
            loop {
                let part = self.volume.list(ino, from, 7).expect("list");
                let Some(last) = part.last() else { break };
                from = last.next;
                listed.extend(
                    part.into_iter().map(|entry| String::from_utf8(entry.name).expect("our names")),
                );
            }
            listed.retain(|name| name != "." && name != ".." && name != "lost+found");
            listed.sort();
            let all = self
                .names
                .keys()
                .chain(self.dirs.keys().filter(|d| !d.is_empty()))
                .chain(self.links.keys());
            let mut wanted: Vec<String> =
                all.filter(|at| split(at).0 == path).map(|at| split(at).1.to_owned()).collect();
            wanted.sort();
            assert_eq!(listed, wanted, "{path}/");
        }
    }

    /// Unmounts; e2fsck must find nothing, and debugfs what the model says.
    pub fn judge(&mut self, folder: &Path) {
        for ino in std::mem::take(&mut self.open) {
            self.volume.reap(ino).expect("reap");
        }
        self.volume.unmount().expect("unmount");
        let image = folder.join("judged.img");
        std::fs::write(&image, &self.disk.0.lock().unwrap().now).expect("room for an image");
        assert_eq!(complaints(&image), "");
        let out = folder.join("dump");
        let _ = std::fs::remove_dir_all(&out);
        std::fs::create_dir(&out).expect("room for files");
        let dump = format!("rdump / {}", out.display());
        let run = Command::new("debugfs")
            .args(["-R", &dump])
            .arg(&image)
            .output()
            .expect("debugfs is installed");
        assert!(run.status.success());
        for (path, ino) in &self.names {
            let got = std::fs::read(format!("{}{path}", out.display())).expect(path);
            assert!(got == self.files[ino].data, "{path} differs in debugfs's eyes");
        }
        self.volume = mount(&self.disk);
    }
}

fn run(options: &[&str], mib: u64, seed: u64, rounds: u32) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let image = folder.path().join("made.img");
    make(&image, mib, options);
    let mut world = World::new(Disk::open(&image), seed);
    world.full = mib < 32;
    for _ in 0..rounds {
        for _ in 0..150 {
            world.step();
        }
        world.check();
        world.judge(folder.path());
        world.check();
    }
}

#[test]
fn operations_on_blocks_of_4_kib() {
    for seed in 1..=3 {
        run(&["-b", "4096"], 96, seed, 4);
    }
}

#[test]
fn operations_on_blocks_of_1_kib() {
    for seed in 11..=13 {
        run(&["-b", "1024"], 96, seed, 4);
    }
}

#[test]
fn operations_without_a_journal() {
    run(&["-b", "4096", "-O", "^has_journal"], 96, 21, 4);
}

#[test]
fn operations_on_a_disk_that_fills_up() {
    for seed in 31..=34 {
        run(&["-b", "4096", "-J", "size=4"], 16, seed, 5);
    }
}

#[test]
fn ten_thousand_files_in_a_directory() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let image = folder.path().join("made.img");
    make(&image, 128, &["-b", "4096", "-N", "20000"]);
    let disk = Disk::open(&image);
    let mut volume = mount(&disk);
    let root = volume.root();
    for n in 0..10_000 {
        volume
            .create(root, format!("file number {n}").as_bytes(), New::File, 0o644, (0, 0))
            .expect("create");
    }
    for n in (0..10_000).step_by(3) {
        let name = format!("file number {n}");
        let ino = volume.lookup(root, name.as_bytes()).expect("lookup").ino;
        assert!(volume.unlink(root, name.as_bytes()).expect("unlink"));
        volume.reap(ino).expect("reap");
    }
    volume.unmount().expect("unmount");
    std::fs::write(&image, &disk.0.lock().unwrap().now).expect("room for an image");
    let (code, text) = fsck(&image, "-n");
    assert_eq!(code, 0, "{text}");
}

#[test]
fn small_changes_fill_the_journal_again_and_again() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let image = folder.path().join("made.img");
    make(&image, 32, &["-b", "4096", "-J", "size=4"]);
    let disk = Disk::open(&image);
    let mut volume = mount(&disk);
    let root = volume.root();
    let mut files = Vec::new();
    for n in 0..200 {
        let made = volume
            .create(root, format!("{n}").as_bytes(), New::File, 0o644, (0, 0))
            .expect("create");
        files.push(made.ino);
    }
    for n in 0..1200_u32 {
        let change = Change { perm: Some(n & 0o777), ..Change::default() };
        volume.change(files[n as usize * 7 % 200], &change).expect("change");
        volume.resize(files[n as usize % 200], u64::from(n)).expect("resize");
        volume.sync().expect("sync");
        volume.lookup(root, format!("{}", n * 13 % 200).as_bytes()).expect("lookup");
    }
    volume.unmount().expect("unmount");
    std::fs::write(&image, &disk.0.lock().unwrap().now).expect("room for an image");
    let (code, text) = fsck(&image, "-n");
    assert_eq!(code, 0, "{text}");
}

/// The blocks of its own extent tree, and of its index, are counted for a directory.
#[test]
fn a_directory_in_many_pieces_has_its_blocks_counted() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let image = folder.path().join("made.img");
    for block in ["1024", "4096"] {
        make(&image, 64, &["-b", block]);
        let disk = Disk::open(&image);
        let mut volume = mount(&disk);
        let judge = |volume: &mut Volume<Disk>| {
            volume.unmount().expect("unmount");
            std::fs::write(&image, &disk.0.lock().unwrap().now).expect("room for an image");
            *volume = mount(&disk);
            complaints(&image)
        };
        let root = volume.root();
        let large = volume.create(root, b"large", New::File, 0o644, (0, 0)).expect("create").ino;
        let dir = volume.create(root, b"dir", New::Dir, 0o755, (0, 0)).expect("create").ino;
        let name = |n| format!("{n}{}", "x".repeat(100)).into_bytes();
        // Each block that the directory gets lies behind one that the file has got.
        for n in 0..500 {
            let at = n * volume.block_size();
            volume.reserve(large, at + 1, at, 1).expect("reserve");
            volume.create(dir, &name(n), New::File, 0o644, (0, 0)).expect("create");
        }
        assert_eq!(judge(&mut volume), "");
        for n in 0..500 {
            let ino = volume.lookup(dir, &name(n)).expect("lookup").ino;
            volume.unlink(dir, &name(n)).expect("unlink");
            volume.reap(ino).expect("reap");
        }
        assert_eq!(judge(&mut volume), "");
        // Its blocks are all free when it goes.
        volume.remove_dir(root, b"dir").expect("it is empty");
        volume.reap(dir).expect("reap");
        assert_eq!(judge(&mut volume), "");
    }
}
