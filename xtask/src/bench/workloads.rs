//! The workloads of `bench paging`: what machine each gets, and what it runs (see bench/paging.c).

use crate::disk::Disks;
use crate::qemu::{Access, Speed};
use crate::{build, debian, ui};
use anyhow::{bail, Context, Result};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A modest SSD. A disk without a limit would be as fast as this machine's memory, which no disk
/// is; and what it takes would depend on what else runs on this machine.
pub const SPEED: Speed = Speed { bytes_per_second: 250_000_000, requests_per_second: 10_000 };

pub struct Workload {
    pub name: String,
    /// Of the machine, in MiB.
    pub memory: u32,
    pub disks: Wanted,
    pub root: Root,
    /// For `/bin/busybox sh -c`.
    pub script: String,
    pub repeat: Repeat,
    pub systems: Systems,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Systems {
    Both,
    /// Debian's Linux does not boot on this machine, or has nothing to compare.
    OursAlone,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Wanted {
    Nothing,
    /// Four times the memory to swap on, and a spare disk.
    Swap,
    /// The file system with one large file.
    Large,
    /// The file system with many small files.
    Small,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Root {
    Busybox,
    /// Debian's compiler, Python, bash and ls.
    Debian,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Repeat {
    /// A time: measured as often as asked.
    Timed,
    /// A count, which comes out the same each time.
    Once,
}

/// How many files figure 2 maps.
pub const FILES: [usize; 7] = [10, 30, 100, 300, 1000, 3000, 10_000];
/// How much of memory figure 5 writes.
pub const SIZES: [&str; 4] = ["1", "1.5", "2", "3"];
/// The commands of table 2.
pub const COMMANDS: [(&str, &str); 4] = [
    ("ls /", "ls /"),
    ("gcc on hello world", "gcc -o /tmp/hello /root/hello.c"),
    ("python3 -c pass", "python3 -c pass"),
    ("bash start-up", "bash -c :"),
];

pub const PACKAGES: [&str; 5] = ["bash", "coreutils", "gcc", "libc6-dev", "python3"];

const MEMORY: u32 = 256;
const LARGE_PAGES: u64 = 96 * 1024;
const SMALL_BYTES: usize = 8192;

pub fn all() -> Vec<Workload> {
    let plain = |name: String, memory, disks, script| Workload {
        name,
        memory,
        disks,
        root: Root::Busybox,
        script,
        repeat: Repeat::Timed,
        systems: Systems::Both,
    };
    let mut list: Vec<Workload> = SIZES
        .iter()
        .map(|times| {
            let script = format!("exec paging allocate {MEMORY} {times} vda vdb");
            plain(format!("write {times}x of memory"), MEMORY, Wanted::Swap, script)
        })
        .collect();
    for (kind, percent) in [("text", 0), ("text", 20), ("noise", 0), ("noise", 20)] {
        let script = format!("exec paging compressed {MEMORY} {percent} {kind} vda");
        let name = format!("compressed pages, {kind}, {percent} %");
        list.push(Workload {
            systems: Systems::OursAlone,
            ..plain(name, MEMORY, Wanted::Swap, script)
        });
    }
    list.push(plain(
        "read mapped files".to_owned(),
        MEMORY,
        Wanted::Large,
        format!("exec paging read {MEMORY} vda"),
    ));
    for count in FILES {
        let script = format!("exec paging files 512 vda {count}");
        list.push(plain(format!("map {count} files"), 512, Wanted::Small, script));
    }
    let counted = |workload| Workload { repeat: Repeat::Once, ..workload };
    let faults = COMMANDS.map(|(name, command)| {
        format!("paging faults 0 '{name}' on {command} || r=1; paging faults 0 '{name}' off {command} || r=1")
    });
    list.push(counted(Workload {
        root: Root::Debian,
        ..plain(
            "page faults".to_owned(),
            1536,
            Wanted::Nothing,
            format!("r=0; {}; exit $r", faults.join("; ")),
        )
    }));
    list.push(counted(Workload {
        root: Root::Debian,
        ..plain("map entries".to_owned(), 1536, Wanted::Nothing, "exec paging entries 0".to_owned())
    }));
    for what in ["anonymous", "sparse", "file", "entries"] {
        let script = format!("exec paging metadata 512 {what}");
        list.push(counted(plain(format!("metadata, {what}"), 512, Wanted::Nothing, script)));
    }
    let room = |memory: u32| {
        let script = format!("exec paging room {memory}");
        counted(plain(format!("room in {memory} MiB"), memory, Wanted::Nothing, script))
    };
    list.push(room(512));
    list.push(Workload { systems: Systems::OursAlone, ..room(64) });
    list
}

/// The disks of a machine; what has to be made anew goes below `folder`.
pub fn disks(workload: &Workload, folder: &Path) -> Result<Disks> {
    let mut disks = Disks::default();
    match workload.disks {
        Wanted::Nothing => {}
        Wanted::Swap => {
            disks.swap(folder.join("swap"), u64::from(workload.memory) << 22)?;
            let spare = folder.join("spare");
            std::fs::File::create(&spare)?.set_len(u64::from(workload.memory) << 20)?;
            disks.add(spare, Access::ReadWrite);
        }
        Wanted::Large => disks.mount(&image("large", 448, large)?)?,
        Wanted::Small => disks.mount(&image("small", 320, small)?)?,
    }
    for disk in &mut disks.list {
        disk.speed = Some(SPEED);
    }
    Ok(disks)
}

/// The folder with Debian's programs and a file for the compiler.
pub fn debian_root() -> Result<PathBuf> {
    let root = debian::root(&PACKAGES)?;
    let source = "#include <stdio.h>\nint main(void) { printf(\"hello, world\\n\"); return 0; }\n";
    std::fs::create_dir_all(root.join("root"))?;
    std::fs::write(root.join("root/hello.c"), source)?;
    Ok(root)
}

/// A file system of `mebibytes`, to read only, with what `fill` puts into it; made on first use.
fn image(name: &str, mebibytes: u32, fill: fn(&Path) -> Result<()>) -> Result<String> {
    let path = build::scratch("bench")?.join(format!("{name}.ext4"));
    if !path.exists() {
        ui::with_progress("making a file system to measure", || {
            make_image(&path, mebibytes, fill)
        })?;
    }
    // In this machine's memory, so that what is measured is the limit that QEMU keeps, not this
    // machine's disk.
    std::io::copy(&mut std::fs::File::open(&path)?, &mut std::io::sink())?;
    Ok(format!("{}:ro", path.display()))
}

fn make_image(path: &Path, mebibytes: u32, fill: fn(&Path) -> Result<()>) -> Result<()> {
    let folder = tempfile::tempdir().context("can't make a temporary folder")?;
    fill(folder.path())?;
    let partial = path.with_extension("partial");
    let output = Command::new("mke2fs")
        .args(["-q", "-F", "-t", "ext4", "-b", "4096", "-N", "20000", "-d"])
        .args([folder.path(), &partial])
        .arg(format!("{mebibytes}M"))
        .output()
        .context("can't run mke2fs (package e2fsprogs)")?;
    if !output.status.success() {
        bail!("mke2fs: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(std::fs::rename(&partial, path)?)
}

/// As in bench/paging.c.
fn mark(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1)
}

/// A file whose pages each say which they are.
fn large(folder: &Path) -> Result<()> {
    let mut file = std::io::BufWriter::new(std::fs::File::create(folder.join("large"))?);
    for page in 0..LARGE_PAGES {
        for word in 0..512 {
            file.write_all(&(mark(page) + word).to_le_bytes())?;
        }
    }
    Ok(file.flush()?)
}

/// A folder for each number of files.
fn small(folder: &Path) -> Result<()> {
    for count in FILES {
        let inside = folder.join(count.to_string());
        std::fs::create_dir(&inside)?;
        for number in 0..count {
            let words = mark(number as u64).to_le_bytes().repeat(SMALL_BYTES / 8);
            std::fs::write(inside.join(number.to_string()), words)?;
        }
    }
    Ok(())
}
