//! `/sys/block`: which disks there are, where `lsblk` and its like look.
//!
//! ```text
//!   /sys/block/vda, /sys/class/block/vda, /sys/dev/block/254:0 -> /sys/devices/virtual/block/vda/
//! ```

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::Show;
use crate::block::{self, disks, Disk, SECTOR};
use crate::devnum::major_and_minor;
use crate::errno::{Result, ENOENT};
use crate::fs::inode::Kind;

static NAMES: [&str; block::DISKS] = [
    "vda", "vdb", "vdc", "vdd", "vde", "vdf", "vdg", "vdh", "vdi", "vdj", "vdk", "vdl", "vdm",
    "vdn", "vdo", "vdp", "vdq", "vdr", "vds", "vdt", "vdu", "vdv", "vdw", "vdx", "vdy", "vdz",
];

static NUMBERS: [&str; block::DISKS] = [
    "254:0", "254:16", "254:32", "254:48", "254:64", "254:80", "254:96", "254:112", "254:128",
    "254:144", "254:160", "254:176", "254:192", "254:208", "254:224", "254:240", "254:256",
    "254:272", "254:288", "254:304", "254:320", "254:336", "254:352", "254:368", "254:384",
    "254:400",
];

/// A part of a disk's folder; the disk is given by its place in the order of names.
#[derive(Clone, Copy)]
pub(super) enum Part {
    /// The folder of all disks' folders.
    All,
    /// A folder of links to them, by name or by number, and the way from there to the top.
    Links(&'static [&'static str; block::DISKS], &'static str),
    Link(usize, &'static str),
    Folder(usize),
    Queue(usize),
    Text(usize, DiskText),
}

type DiskText = fn(&Disk) -> String;

pub(super) const BY_NAME: Show = Show::Disk(Part::Links(&NAMES, ".."));
pub(super) const BY_CLASS: Show = Show::Disk(Part::Links(&NAMES, "../.."));
pub(super) const BY_NUMBER: Show = Show::Disk(Part::Links(&NUMBERS, "../.."));

static TEXTS: [(&str, DiskText); 8] = [
    ("dev", |disk| {
        let (major, minor) = major_and_minor(disk.number());
        format!("{major}:{minor}\n")
    }),
    ("size", |disk| format!("{}\n", disk.sectors())),
    ("ro", |disk| format!("{}\n", u32::from(disk.is_read_only()))),
    ("removable", |_| String::from("0\n")),
    ("hidden", |_| String::from("0\n")),
    ("range", |_| format!("{}\n", block::MINORS)),
    ("stat", block::stat),
    ("uevent", |disk| {
        let (major, minor) = major_and_minor(disk.number());
        let name = disk.name();
        format!("MAJOR={major}\nMINOR={minor}\nDEVNAME={name}\nDEVTYPE=disk\n")
    }),
];

static QUEUE: [(&str, DiskText); 9] = [
    ("logical_block_size", |_| format!("{SECTOR}\n")),
    ("physical_block_size", |_| format!("{SECTOR}\n")),
    ("hw_sector_size", |_| format!("{SECTOR}\n")),
    ("minimum_io_size", |_| format!("{SECTOR}\n")),
    ("optimal_io_size", |_| String::from("0\n")),
    ("discard_granularity", |_| String::from("0\n")),
    ("discard_max_bytes", |_| String::from("0\n")),
    // As Linux says of these disks.
    ("rotational", |_| String::from("1\n")),
    ("scheduler", |_| String::from("[none]\n")),
];

impl Part {
    /// What a folder holds; `None` if it is none.
    pub(super) fn members(self) -> Option<Vec<(&'static str, Show)>> {
        let there = disks().count();
        let texts = |texts: &'static [(&'static str, DiskText)], index| {
            texts.iter().map(move |&(name, text)| (name, Show::Disk(Part::Text(index, text))))
        };
        Some(match self {
            Part::All => (0..there).map(|n| (NAMES[n], Show::Disk(Part::Folder(n)))).collect(),
            Part::Links(names, top) => {
                (0..there).map(|n| (names[n], Show::Disk(Part::Link(n, top)))).collect()
            }
            Part::Folder(n) => texts(&TEXTS, n)
                .chain([
                    ("queue", Show::Disk(Part::Queue(n))),
                    ("holders", Show::Fixed(&[])),
                    ("slaves", Show::Fixed(&[])),
                ])
                .collect(),
            Part::Queue(n) => texts(&QUEUE, n).collect(),
            Part::Link(..) | Part::Text(..) => return None,
        })
    }

    pub(super) fn kind(self) -> Kind {
        match self {
            Part::Link(..) => Kind::Symlink,
            Part::Text(..) => Kind::File,
            _ => Kind::Dir,
        }
    }

    /// Where a link leads.
    pub(super) fn link(self) -> Option<String> {
        let Part::Link(n, top) = self else { return None };
        Some(format!("{top}/devices/virtual/block/{}", NAMES[n]))
    }
}

/// A disk's text.
pub(super) fn text(index: usize, text: DiskText) -> Result<String> {
    let disk: &Arc<Disk> = disks().nth(index).ok_or(ENOENT)?;
    Ok(text(disk))
}
