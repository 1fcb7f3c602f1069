//! Folders with Debian packages unpacked in them, for `--root`: programs as Debian ships them, not
//! as this machine has them.
//!
//! Packages are downloaded once and unpacked, never installed: no script of theirs runs. A folder
//! is made whole or not at all, since it is made under another name first.

use crate::{build, ui};
use anyhow::{bail, Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// Packages that others depend on for their installation alone.
const NOT_NEEDED: [&str; 8] =
    ["debconf", "dpkg", "gawk", "install-info", "libperl", "original-awk", "perl", "tar"];

/// What isn't read in there.
const NOT_READ: [&str; 4] =
    ["usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info"];

/// Folders of the root that are links since Debian keeps everything below /usr.
const MERGED: [&str; 3] = ["bin", "sbin", "lib"];

/// One folder is made at a time: tests that run side by side may want the same one.
static ONE: Mutex<()> = Mutex::new(());

/// A folder with `packages` and all that they depend on, made on first use.
pub fn root(packages: &[&str]) -> Result<PathBuf> {
    let _one = ONE.lock();
    let folder = build::scratch("debian")?.join(packages.join("+"));
    if !folder.exists() {
        let what = format!("fetching Debian's {}", packages.join(", "));
        ui::with_progress(&what, || {
            make(&folder, packages).or_else(|_| {
                // Package lists that are missing or old name what is not there. Where they can't be
                // fetched, the second try says what is wrong.
                let _ = Command::new("apt-get").arg("update").output();
                make(&folder, packages)
            })
        })?;
    }
    Ok(folder)
}

fn make(folder: &Path, packages: &[&str]) -> Result<()> {
    unpacked(folder, &closure(packages)?)
}

/// A folder with just these packages.
fn unpacked(folder: &Path, packages: &[String]) -> Result<()> {
    let partial = tempfile::tempdir_in(build::scratch("debian")?).context("can't make a folder")?;
    let archives = partial.path().join("archives");
    let root = partial.path().join("root");
    for made in [archives.clone(), root.join("usr"), root.join("lib64")] {
        std::fs::create_dir_all(made)?;
    }
    for name in MERGED {
        std::fs::create_dir(root.join("usr").join(name))?;
        std::os::unix::fs::symlink(format!("usr/{name}"), root.join(name))?;
    }
    checked(Command::new("apt-get").arg("download").args(packages).current_dir(&archives))?;
    for archive in std::fs::read_dir(&archives)?.flatten() {
        checked(Command::new("dpkg").arg("-x").arg(archive.path()).arg(&root))?;
    }
    for unread in NOT_READ {
        // Not every set of packages has it.
        let _ = std::fs::remove_dir_all(root.join(unread));
    }
    match std::fs::rename(&root, folder) {
        // Another `./uvm` has made it meanwhile.
        Err(_) if folder.exists() => Ok(()),
        renamed => Ok(renamed?),
    }
}

/// A folder with `packages`, and with what this machine lacks of all that they depend on: for
/// programs that run here and need not be installed.
///
/// # Errors
/// Where there is no apt, or it can't fetch them.
pub fn beside(packages: &[&str]) -> Result<PathBuf> {
    let _one = ONE.lock();
    let folder = build::scratch("debian")?.join(format!("beside+{}", packages.join("+")));
    if !folder.exists() {
        ui::with_progress(&format!("fetching Debian's {}", packages.join(", ")), || {
            unpacked(&folder, &lacking(packages)?)
        })?;
    }
    Ok(folder)
}

/// What apt would install here.
fn lacking(packages: &[&str]) -> Result<Vec<String>> {
    installed_for(packages, &["--reinstall"])
}

/// What apt would install where there is nothing yet.
fn closure(packages: &[&str]) -> Result<Vec<String>> {
    let mut names = installed_for(packages, &["--option", "Dir::State::status=/dev/null"])?;
    names.retain(|name| !NOT_NEEDED.iter().any(|start| name.starts_with(start)));
    Ok(names)
}

fn installed_for(packages: &[&str], options: &[&str]) -> Result<Vec<String>> {
    let output = Command::new("apt-get")
        .args(["install", "--simulate", "--no-install-recommends"])
        .args(options)
        .args(packages)
        .output()
        .context("no apt here, which Debian's programs come from")?;
    if !output.status.success() {
        bail!("apt does not know {}: run `apt-get update`", packages.join(", "));
    }
    let listing = String::from_utf8_lossy(&output.stdout).into_owned();
    let names = listing.lines().filter_map(|line| line.strip_prefix("Inst ")?.split(' ').next());
    Ok(names.map(str::to_owned).collect())
}

fn checked(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("can't run {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
