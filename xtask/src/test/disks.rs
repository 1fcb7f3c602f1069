//! Disks for the kernel's tests, made anew for each run.

use crate::disk::{self, Disks};
use crate::qemu::{Access, Fault};
use anyhow::{bail, Context, Result};
use std::path::Path;
use std::process::Command;

/// One disk of a case.
#[derive(Clone, Copy)]
pub struct TestDisk {
    holds: Holds,
    mib: u64,
    access: Access,
    faults: &'static [Fault],
    /// Bytes of an ext4 file system's block.
    block: u32,
    folders: Folders,
    /// MiB of an ext4 file system's journal; 0 for what is usual.
    journal: u32,
    /// Files with access lists, which no call makes.
    lists: bool,
}

/// How an ext4 file system's folders are kept.
#[derive(Clone, Copy)]
enum Folders {
    Indexed,
    Lists,
}

#[derive(Clone, Copy)]
enum Holds {
    /// Zeroes.
    Nothing,
    /// A swap area, in use from the start.
    Swap,
    /// A swap area, not in use.
    IdleSwap,
    /// An ext4 file system, mounted.
    Ext4,
}

const fn new(holds: Holds, mib: u64) -> TestDisk {
    TestDisk {
        holds,
        mib,
        access: Access::ReadWrite,
        faults: &[],
        block: 1024,
        folders: Folders::Indexed,
        journal: 0,
        lists: false,
    }
}

/// Zeroes.
pub const fn blank(mib: u64) -> TestDisk {
    new(Holds::Nothing, mib)
}

/// Swapped on from the start.
pub const fn swap(mib: u64) -> TestDisk {
    new(Holds::Swap, mib)
}

/// With a swap area that isn't used yet.
pub const fn idle_swap(mib: u64) -> TestDisk {
    new(Holds::IdleSwap, mib)
}

/// An empty ext4 file system on /mnt, the next on /mnt2; with blocks of 1 KiB, as `mkfs.ext4` makes
/// them on small disks.
pub const fn ext4(mib: u64) -> TestDisk {
    new(Holds::Ext4, mib)
}

impl TestDisk {
    /// That can't be written.
    pub const fn read_only(self) -> TestDisk {
        TestDisk { access: Access::ReadOnly, ..self }
    }

    /// With other blocks.
    pub const fn blocks(self, block: u32) -> TestDisk {
        TestDisk { block, ..self }
    }

    /// With files that have access lists.
    pub const fn lists(self) -> TestDisk {
        TestDisk { lists: true, ..self }
    }

    /// With a journal of so many MiB.
    pub const fn journal(self, mib: u32) -> TestDisk {
        TestDisk { journal: mib, ..self }
    }

    /// With folders that have no index.
    pub const fn without_indexes(self) -> TestDisk {
        TestDisk { folders: Folders::Lists, ..self }
    }

    /// That fails here and there.
    pub const fn faulty(self, faults: &'static [Fault]) -> TestDisk {
        TestDisk { faults, ..self }
    }
}

/// Makes a case's disks below `folder`.
pub fn make(wanted: &[TestDisk], folder: &Path) -> Result<Disks> {
    let mut disks = Disks::default();
    for (index, disk) in wanted.iter().enumerate() {
        let image = folder.join(format!("disk{index}"));
        let bytes = disk.mib << 20;
        let file = std::fs::File::create(&image).context("can't make a disk image")?;
        file.set_len(bytes)?;
        match disk.holds {
            Holds::Nothing => {
                disks.add(image, disk.access);
            }
            Holds::Swap => disks.swap(image, bytes)?,
            Holds::IdleSwap => {
                disk::make_swap(&image, bytes)?;
                disks.add(image, disk.access);
            }
            Holds::Ext4 => {
                format(&image, disk)?;
                disks.mount_image(image, disk.access);
            }
        }
        if let Some(last) = disks.list.last_mut() {
            last.faults = disk.faults.to_vec();
        }
    }
    Ok(disks)
}

/// What e2fsck finds on the file systems that a machine has left behind when it went off in order.
pub fn judge(wanted: &[TestDisk], folder: &Path) -> Vec<String> {
    let mut complaints = Vec::new();
    for (index, disk) in wanted.iter().enumerate() {
        if !matches!((disk.holds, disk.access), (Holds::Ext4, Access::ReadWrite)) {
            continue;
        }
        match Command::new("e2fsck").arg("-fn").arg(folder.join(format!("disk{index}"))).output() {
            Ok(output) if output.status.success() => {}
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stdout);
                complaints.push(format!("disk {index}: {}", text.trim()));
            }
            Err(error) => complaints.push(format!("can't run e2fsck (package e2fsprogs): {error}")),
        }
    }
    complaints
}

/// Runs a program of e2fsprogs on an image.
pub fn tool(name: &str, arguments: &[&str], image: &Path) -> Result<()> {
    let output = Command::new(name).args(arguments).arg(image).output();
    let output = output.with_context(|| format!("can't run {name} (package e2fsprogs)"))?;
    if !output.status.success() {
        let text = [output.stdout, output.stderr].concat();
        bail!("{name} failed: {}", String::from_utf8_lossy(&text).trim());
    }
    Ok(())
}

fn format(image: &Path, disk: &TestDisk) -> Result<()> {
    let features = match disk.folders {
        Folders::Indexed => "dir_index",
        Folders::Lists => "^dir_index",
    };
    let block = disk.block.to_string();
    let journal = format!("size={}", disk.journal);
    let mut arguments = vec!["-q", "-F", "-b", &block, "-O", features];
    if disk.journal > 0 {
        arguments.extend(["-J", &journal]);
    }
    tool("mkfs.ext4", &arguments, image)?;
    if disk.lists {
        add_lists(image)?;
    }
    Ok(())
}

/// Makes the files of `xtask/guest/lists.c`, which belong to root and to group 50.
fn add_lists(image: &Path) -> Result<()> {
    const ACCESS: &str = "system.posix_acl_access";
    const DEFAULT: &str = "system.posix_acl_default";
    /// Tags as in acl(5), rights and ids; as the system call has them.
    fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut bytes = 2u32.to_le_bytes().to_vec();
        for (tag, perm, id) in entries {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(perm.to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }
    const NONE: u32 = u32::MAX;
    let named =
        [(1, 6, NONE), (2, 6, 2000), (4, 4, NONE), (8, 6, 60), (16, 4, NONE), (32, 0, NONE)];
    let denied = [(1, 6, NONE), (2, 0, 2000), (4, 0, NONE), (16, 6, NONE), (32, 4, NONE)];
    let off = [(1, 6, NONE), (2, 6, 2000), (4, 6, NONE), (16, 0, NONE), (32, 4, NONE)];
    let inherited = [(1, 7, NONE), (2, 7, 2000), (4, 5, NONE), (16, 7, NONE), (32, 0, NONE)];
    let files: [(&str, &str, &str, &str, Vec<u8>); 6] = [
        ("named", "0100640", "", ACCESS, list(&named)),
        ("denied", "0100664", "", ACCESS, list(&denied)),
        ("off", "0100604", "", ACCESS, list(&off)),
        ("broken", "0100666", "-r", ACCESS, b"no list".to_vec()),
        ("made", "040777", "", DEFAULT, list(&inherited)),
        ("odd", "040777", "-r", DEFAULT, b"none".to_vec()),
    ];
    let folder = tempfile::tempdir()?;
    let mut commands = String::new();
    for (name, mode, raw, attribute, bytes) in files {
        let value = folder.path().join(name);
        std::fs::write(&value, bytes)?;
        let make = if mode.starts_with("04") { "mkdir" } else { "write /dev/null" };
        commands += &format!("{make} {name}\nsif {name} mode {mode}\nsif {name} gid 50\n");
        commands += &format!("ea_set {raw} -f {} {name} {attribute}\n", value.display());
    }
    let script = folder.path().join("commands");
    std::fs::write(&script, commands)?;
    let output = Command::new("debugfs").args(["-w", "-f"]).arg(&script).arg(image).output();
    let output = output.context("can't run debugfs (package e2fsprogs)")?;
    let said = String::from_utf8_lossy(&output.stderr);
    // After its greeting it says what failed.
    if !output.status.success() || said.lines().count() > 1 {
        bail!("debugfs failed: {}", said.trim());
    }
    Ok(())
}
