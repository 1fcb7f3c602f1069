//! Disk images that xtask makes: swap areas, and what `--disk` and `--swap` mean.

use crate::qemu::{Access, Disk};
use anyhow::{bail, Context, Result};
use std::fs::File;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

const PAGE: u64 = 4096;

/// The disks of a machine beside the words that tell its kernel what they are for.
#[derive(Default)]
pub struct Disks {
    pub list: Vec<Disk>,
    /// `root=DEVICE[:ro]`, `mount=DEVICE:FOLDER[:ro]` and `swapon=DEVICE`.
    pub words: Vec<String>,
    /// How images are attached that are named without `:ro`; whether they keep what is written.
    pub keep: Keep,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Keep {
    #[default]
    Changes,
    /// The images stay as they are.
    Nothing,
}

impl Disks {
    /// A file system for /mnt (the next for /mnt2, and so on), as `--disk IMAGE[:ro]` names it.
    pub fn mount(&mut self, image: &str) -> Result<()> {
        let (path, access) = self.checked(image, "--disk")?;
        self.mount_image(path.into(), access);
        Ok(())
    }

    /// The root file system, as `--root IMAGE[:ro]` names it.
    pub fn root(&mut self, image: &str) -> Result<()> {
        let (path, access) = self.checked(image, "--root")?;
        let device = self.add(path.into(), access);
        let mode = if access == Access::ReadOnly { ":ro" } else { "" };
        self.words.push(format!("root={device}{mode}"));
        Ok(())
    }

    /// An image's path and how it is attached.
    fn checked<'a>(&self, image: &'a str, option: &str) -> Result<(&'a str, Access)> {
        let (path, access) = match (image.strip_suffix(":ro"), self.keep) {
            (Some(path), _) => (path, Access::ReadOnly),
            (None, Keep::Changes) => (image, Access::ReadWrite),
            (None, Keep::Nothing) => (image, Access::Snapshot),
        };
        check(Path::new(path), access, option)?;
        if !is_ext4(Path::new(path)) {
            bail!(
                "{path} has no ext4 file system: `mkfs.ext4 {path}` makes one, and what is in there is lost"
            );
        }
        Ok((path, access))
    }

    /// Like [`mount`](Self::mount), with an image that is known to be there.
    pub fn mount_image(&mut self, image: PathBuf, access: Access) {
        let before = self.words.iter().filter(|word| word.starts_with("mount=")).count();
        let folder = if before == 0 { "/mnt".to_owned() } else { format!("/mnt{}", before + 1) };
        let device = self.add(image, access);
        let mode = if access == Access::ReadOnly { ":ro" } else { "" };
        self.words.push(format!("mount={device}:{folder}{mode}"));
    }

    /// A disk to swap on, of `bytes` bytes, made at `path`.
    pub fn swap(&mut self, path: PathBuf, bytes: u64) -> Result<()> {
        make_swap(&path, bytes)?;
        let device = self.add(path, Access::ReadWrite);
        self.words.push(format!("swapon={device}"));
        Ok(())
    }

    /// Attaches an image; returns the guest's name for it.
    pub fn add(&mut self, image: PathBuf, access: Access) -> String {
        let letter = (b'a' + self.list.len() as u8) as char;
        self.list.push(Disk { image, access, speed: None, faults: Vec::new() });
        format!("/dev/vd{letter}")
    }
}

/// Says in a sentence why an image can't be used, if it can't.
fn check(image: &Path, access: Access, option: &str) -> Result<()> {
    let name = image.display();
    let Ok(about) = image.metadata() else {
        bail!(
            "there is no disk image {name}: `truncate -s 64M {name} && mkfs.ext4 {name}` makes one"
        )
    };
    if !about.is_file() && !about.file_type().is_block_device() {
        bail!("{name} is neither a file nor a disk");
    }
    let opened = File::options().read(true).write(access == Access::ReadWrite).open(image);
    match (opened, access) {
        (Ok(_), _) => Ok(()),
        (Err(error), Access::ReadWrite) => {
            bail!("can't write to {name} ({error}): `{option} {name}:ro` only reads it, and --snapshot forgets what is written")
        }
        (Err(error), Access::ReadOnly | Access::Snapshot) => bail!("can't read {name}: {error}"),
    }
}

/// Whether an image has the mark of ext4's superblock.
fn is_ext4(image: &Path) -> bool {
    let mut magic = [0; 2];
    let read = File::open(image).and_then(|file| file.read_exact_at(&mut magic, 1024 + 56));
    read.is_ok() && u16::from_le_bytes(magic) == 0xef53
}

/// Makes a sparse file of `bytes` bytes with a swap area's header.
pub fn make_swap(path: &Path, bytes: u64) -> Result<()> {
    let pages = u32::try_from(bytes / PAGE).ok().filter(|pages| *pages >= 10);
    let last = pages.context("a swap area has 40 KiB to 16 TiB")? - 1;
    let mut header = [0; PAGE as usize];
    header[1024..1028].copy_from_slice(&1_u32.to_le_bytes());
    header[1028..1032].copy_from_slice(&last.to_le_bytes());
    header[4086..].copy_from_slice(b"SWAPSPACE2");
    let file = File::create(path).with_context(|| format!("can't make {}", path.display()))?;
    file.set_len(bytes).with_context(|| format!("can't make {} that large", path.display()))?;
    Ok(file.write_all_at(&header, 0)?)
}

/// A size like `64M` in bytes; a number alone counts MiB, as for QEMU.
pub fn bytes(size: &str) -> Option<u64> {
    let (digits, unit) = match size.strip_suffix(['K', 'M', 'G']) {
        Some(digits) => (digits, &size[digits.len()..]),
        None => (size, "M"),
    };
    let shift = match unit {
        "K" => 10,
        "M" => 20,
        _ => 30,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(bytes("64M"), Some(64 << 20));
        assert_eq!(bytes("2"), Some(2 << 20));
        assert_eq!(bytes("1G"), Some(1 << 30));
        assert_eq!(bytes("x"), None);
    }

    /// What is taken for an image of ext4.
    fn image() -> tempfile::NamedTempFile {
        let mut superblock = vec![0; 2048];
        superblock[1080..1082].copy_from_slice(&[0x53, 0xef]);
        let image = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(image.path(), superblock).unwrap();
        image
    }

    #[test]
    fn disks_go_to_folders_of_their_own() {
        let image = image();
        let image = image.path();
        let mut disks = Disks::default();
        disks.mount(&image.display().to_string()).unwrap();
        disks.mount(&format!("{}:ro", image.display())).unwrap();
        assert_eq!(disks.words, ["mount=/dev/vda:/mnt", "mount=/dev/vdb:/mnt2:ro"]);
        assert_eq!(disks.list[1].access, Access::ReadOnly);
    }

    #[test]
    fn a_root_comes_first_and_may_stay_as_it_is() {
        let image = image();
        let image = image.path();
        let mut disks = Disks { keep: Keep::Nothing, ..Disks::default() };
        disks.root(&image.display().to_string()).unwrap();
        disks.mount(&format!("{}:ro", image.display())).unwrap();
        assert_eq!(disks.words, ["root=/dev/vda", "mount=/dev/vdb:/mnt:ro"]);
        let access: Vec<Access> = disks.list.iter().map(|disk| disk.access).collect();
        assert_eq!(access, [Access::Snapshot, Access::ReadOnly]);
    }

    #[test]
    fn what_is_wrong_with_an_image_is_said() {
        let mut disks = Disks::default();
        let said = |result: Result<()>| format!("{:#}", result.unwrap_err());
        assert!(
            said(disks.mount("/no/such/image")).contains("there is no disk image /no/such/image")
        );
        assert!(said(disks.mount("/tmp")).contains("neither a file nor a disk"));
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        std::fs::write(&image, [0; 2048]).unwrap();
        assert!(said(disks.mount(&image.display().to_string())).contains("has no ext4 file system"));
    }

    #[test]
    fn a_swap_area_says_how_many_pages_it_has() {
        let folder = tempfile::tempdir().unwrap();
        let mut disks = Disks::default();
        disks.swap(folder.path().join("swap"), 1 << 20).unwrap();
        let made = std::fs::read(folder.path().join("swap")).unwrap();
        assert_eq!(
            (made.len(), &made[1028..1032], &made[4086..4096]),
            (1 << 20, &[255, 0, 0, 0][..], &b"SWAPSPACE2"[..])
        );
        assert_eq!(disks.words, ["swapon=/dev/vda"]);
    }
}
