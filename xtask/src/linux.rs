//! Debian's Linux as the other kernel: fetched once, never installed, and spoken to in our own
//! kernel's protocol.
//!
//! A small static program (`guest/linux-init.c`) runs as its first process. It mounts what ours has
//! mounted from the start, runs the program, and reports on the control channel; so every test and
//! benchmark runs on both kernels unchanged.

use crate::image::Image;
use crate::{build, guest, ui};
use anyhow::{bail, Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// The mitigations and the address randomisation would cost Linux time that we don't pay either.
pub const COMMAND_LINE: &str =
    "console=ttyS0 quiet loglevel=3 panic=-1 nokaslr mitigations=off no_timer_check rdinit=/.uvm-init printk.devkmsg=off";

const META_PACKAGE: &str = "linux-image-cloud-amd64";

/// The drivers of virtio disks, which Debian builds as modules, in an order in which each finds
/// what it needs.
const DISK_DRIVERS: [&str; 7] = [
    "virtio/virtio_ring",
    "virtio/virtio",
    "virtio/virtio_pci_legacy_dev",
    "virtio/virtio_pci_modern_dev",
    "virtio/virtio_pci",
    "virtio/virtio_mmio",
    "block/virtio_blk",
];

/// Held while it is fetched: tests that run side by side all want it.
static ONE: Mutex<()> = Mutex::new(());

/// The kernel image, fetched into `target/linux` on first use.
pub fn kernel() -> Result<PathBuf> {
    let _one = ONE.lock();
    let folder = folder();
    if let Some(found) = image_in(&folder) {
        return Ok(found);
    }
    ui::with_progress("fetching Debian's Linux kernel for the comparison", || make(&folder))?;
    image_in(&folder).with_context(|| format!("no kernel image in {META_PACKAGE}'s package"))
}

fn folder() -> PathBuf {
    build::root().join("target/linux")
}

/// Makes the folder whole or not at all: under another name first, since another `./uvm` may make
/// it too.
fn make(folder: &Path) -> Result<()> {
    let partial = tempfile::tempdir_in(build::scratch("")?).context("can't make a folder")?;
    let made = partial.path().join("linux");
    std::fs::create_dir(&made)?;
    fetch(&made)?;
    match std::fs::rename(&made, folder) {
        Err(_) if image_in(folder).is_some() => Ok(()),
        renamed => {
            renamed.with_context(|| format!("can't make {}: please remove it", folder.display()))
        }
    }
}

fn image_in(folder: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder.join("boot")).ok()?;
    entries
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.to_string_lossy().contains("/vmlinuz-"))
}

/// Downloads the package that the meta package depends on, and unpacks it.
fn fetch(folder: &Path) -> Result<()> {
    let depends = Command::new("apt-cache").args(["depends", META_PACKAGE]).output();
    let depends =
        depends.context("no apt here: put a Linux image at target/linux/boot/vmlinuz-NAME")?;
    let listing = String::from_utf8_lossy(&depends.stdout).into_owned();
    let package = listing
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|name| name.starts_with("linux-image-"))
        .with_context(|| format!("apt knows no {META_PACKAGE}: run `apt-get update`"))?;
    let output =
        Command::new("apt-get").args(["download", package]).current_dir(folder).output()?;
    if !output.status.success() {
        bail!(
            "apt-get can't download {package}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let archive = std::fs::read_dir(folder)?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|end| end == "deb"))
        .context("apt-get downloaded nothing")?;
    let unpacked = Command::new("dpkg").arg("-x").args([&archive, folder]).status()?;
    if !unpacked.success() {
        bail!("dpkg can't unpack {}", archive.display());
    }
    keep_drivers(folder)?;
    std::fs::remove_dir_all(folder.join("lib")).context("can't remove the kernel's modules")?;
    Ok(std::fs::remove_file(archive)?)
}

/// Moves the drivers that we load out of the package's modules, under their number in the order.
fn keep_drivers(folder: &Path) -> Result<()> {
    let drivers = folder.join("drivers");
    std::fs::create_dir_all(&drivers)?;
    let version = std::fs::read_dir(folder.join("lib/modules"))?.flatten().next();
    let modules =
        version.context("the kernel's package has no modules")?.path().join("kernel/drivers");
    for (index, name) in DISK_DRIVERS.iter().enumerate() {
        let from = modules.join(format!("{name}.ko"));
        std::fs::rename(&from, drivers.join(format!("{index}.ko")))
            .with_context(|| format!("the kernel's package has no {}", from.display()))?;
    }
    Ok(())
}

/// Adds the first process.
pub fn add_init(image: &mut Image) -> Result<()> {
    image.program(&guest::compile("linux-init", guest::Libc::Musl)?, "/.uvm-init")
}

/// Adds what the first process loads for the machine's disks.
pub fn add_disk_drivers(image: &mut Image) -> Result<()> {
    let folder = folder().join("drivers");
    for index in 0..DISK_DRIVERS.len() {
        image.file(&folder.join(format!("{index}.ko")), &format!("/.uvm-drivers/{index}.ko"))?;
    }
    Ok(())
}
