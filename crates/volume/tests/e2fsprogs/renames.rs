//! Renames within one folder while its blocks split: the name that moves lies in a block that the
//! new name's room is made from.

use std::collections::BTreeMap;
use std::path::Path;

use crate::common::{complaints, make, mount, Disk, Random};
use volume::{New, Rename};

/// How long names are.
#[derive(Clone, Copy)]
enum Length {
    Fixed(usize),
    Random,
}

/// Makes each name as `name~` and renames it to `name`, as databases and editors write files;
/// `e2fsck` judges, and each name must lead to its own inode.
fn written_aside(image: &Path, options: &[&str], length: Length, new: New<'_>, names: u64) {
    make(image, 20, &[options, &["-N", "2000"]].concat());
    let disk = Disk::open(image);
    let mut volume = mount(&disk);
    let root = volume.root();
    let dir = volume.create(root, b"dir", New::Dir, 0o755, (0, 0)).expect("mkdir").ino;
    let mut chance = Random(names * 7919 + 1);
    let mut inos = BTreeMap::new();
    for n in 0..names {
        let len = match length {
            Length::Fixed(len) => len,
            Length::Random => 1 + chance.below(240) as usize,
        };
        let name = format!("{:03}{}", n * 7919 % 1000, "x".repeat(len));
        let aside = format!("{name}~");
        let made = volume.create(dir, aside.as_bytes(), new, 0o644, (0, 0)).expect("create");
        let moved = volume.rename(dir, aside.as_bytes(), dir, name.as_bytes(), Rename::Replace);
        moved.unwrap_or_else(|error| panic!("{options:?} {len}: rename {n}: {error:?}"));
        inos.insert(name, made.ino);
    }
    for (name, &ino) in &inos {
        assert_eq!(volume.lookup(dir, name.as_bytes()).expect(name).ino, ino, "{name}");
    }
    volume.unmount().expect("unmount");
    std::fs::write(image, &disk.0.lock().unwrap().now).expect("room for an image");
    assert_eq!(complaints(image), "", "{options:?}");
}

#[test]
fn names_written_aside_and_renamed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let image = folder.path().join("made.img");
    let lengths = [1, 20, 59, 120, 250].map(Length::Fixed).into_iter().chain([Length::Random]);
    for length in lengths {
        for block in ["1024", "2048", "4096"] {
            for features in ["dir_index", "^dir_index", "^has_journal", "^metadata_csum"] {
                for new in [New::File, New::Dir] {
                    let names = if matches!(new, New::Dir) { 120 } else { 400 };
                    written_aside(&image, &["-b", block, "-O", features], length, new, names);
                }
            }
        }
    }
}
