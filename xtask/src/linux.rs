//! Debian's Linux as the other kernel: fetched once, never installed, and spoken to in our own kernel's protocol.
//!
//! A small static program (`guest/linux-init.c`) runs as its first process. It mounts what ours has mounted from the start,
//! runs the program, and reports on the control channel; so every test and benchmark runs on both kernels unchanged.

use crate::image::Image;
use crate::{build, guest, ui};
use anyhow::{bail, Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The mitigations and the address randomisation would cost Linux time that we don't pay either.
pub const COMMAND_LINE: &str =
    "console=ttyS0 quiet loglevel=3 panic=-1 nokaslr mitigations=off rdinit=/.uvm-init printk.devkmsg=off";

const META_PACKAGE: &str = "linux-image-cloud-amd64";

/// The kernel image, fetched into `target/linux` on first use.
pub fn kernel() -> Result<PathBuf> {
    let folder = build::scratch("linux")?;
    if let Some(found) = image_in(&folder) {
        return Ok(found);
    }
    ui::with_progress("fetching Debian's Linux kernel for the comparison", || fetch(&folder))?;
    image_in(&folder).with_context(|| format!("no kernel image in {META_PACKAGE}'s package"))
}

fn image_in(folder: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder.join("boot")).ok()?;
    entries.flatten().map(|entry| entry.path()).find(|path| path.to_string_lossy().contains("/vmlinuz-"))
}

/// Downloads the package that the meta package depends on, and unpacks it.
fn fetch(folder: &Path) -> Result<()> {
    let depends = Command::new("apt-cache").args(["depends", META_PACKAGE]).output();
    let depends = depends.context("no apt here: put a Linux image at target/linux/boot/vmlinuz-NAME")?;
    let listing = String::from_utf8_lossy(&depends.stdout).into_owned();
    let package = listing
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|name| name.starts_with("linux-image-"))
        .with_context(|| format!("apt knows no {META_PACKAGE}: run `apt-get update`"))?;
    let output = Command::new("apt-get").args(["download", package]).current_dir(folder).output()?;
    if !output.status.success() {
        bail!("apt-get can't download {package}: {}", String::from_utf8_lossy(&output.stderr).trim());
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
    std::fs::remove_dir_all(folder.join("lib")).context("can't remove the kernel's modules")?;
    Ok(std::fs::remove_file(archive)?)
}

/// Adds the first process.
pub fn add_init(image: &mut Image) -> Result<()> {
    image.program(&guest::compile("linux-init", guest::Libc::Musl)?, "/.uvm-init")
}
