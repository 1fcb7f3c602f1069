//! Folders of this machine that the guest has inside: what `--share` means.

use crate::image::Image;
use anyhow::{bail, Context, Result};
use std::path::{Path, PathBuf};

/// Folders beside the words that tell the kernel where they go.
#[derive(Default)]
pub struct Shares {
    pub list: Vec<Share>,
    /// `share=TAG:FOLDER[:ro]`.
    pub words: Vec<String>,
    /// The folders inside.
    places: Vec<String>,
}

/// A folder of this machine.
#[derive(Clone, Debug)]
pub struct Share {
    pub folder: PathBuf,
    pub read_only: bool,
}

impl Shares {
    /// A folder as `--share DIR[:GUEST][:ro]` names it; without GUEST the first goes to /share, the
    /// next to /share2.
    pub fn add(&mut self, share: &str) -> Result<()> {
        let (place, read_only) = match share.strip_suffix(":ro") {
            Some(place) => (place, true),
            None => (share, false),
        };
        // A folder's name may have a colon.
        let (folder, guest) = match place.rsplit_once(":/") {
            Some((folder, guest)) if !Path::new(place).is_dir() => (folder, format!("/{guest}")),
            _ => (place, self.usual_place()),
        };
        let about = std::fs::metadata(folder)
            .with_context(|| format!("can't share {folder} by --share"))?;
        if !about.is_dir() {
            bail!("{folder} is no folder, which --share takes: --add copies a file");
        }
        if guest.trim_matches('/').is_empty() {
            bail!("--share {share}: the whole of the guest's tree is --root's to name");
        }
        if guest.contains([':', ' ', '\n', '\t']) {
            bail!("--share {share}: the guest's folder has neither spaces nor colons in its path");
        }
        let tag = format!("share{}", self.list.len());
        let mode = if read_only { ":ro" } else { "" };
        self.words.push(format!("share={tag}:{guest}{mode}"));
        let folder = std::path::absolute(folder)?;
        self.list.push(Share { folder, read_only });
        self.places.push(guest);
        Ok(())
    }

    fn usual_place(&self) -> String {
        match self.list.len() {
            0 => "/share".to_owned(),
            before => format!("/share{}", before + 1),
        }
    }

    /// Makes the folders inside.
    pub fn make_places(&self, image: &mut Image) -> Result<()> {
        self.places.iter().try_for_each(|place| image.dir(place, 0o755))
    }
}

impl Share {
    /// The values of `-fsdev` and `-device`. Files that the guest makes are the user's whose QEMU
    /// it is.
    pub fn arguments(&self, index: usize, device: &str) -> [String; 2] {
        // A comma in a value is written twice.
        let path = self.folder.display().to_string().replace(',', ",,");
        let mode = if self.read_only { ",readonly=on" } else { "" };
        [
            format!("local,id=share{index},path={path},security_model=none,multidevs=remap{mode}"),
            format!("{device},fsdev=share{index},mount_tag=share{index}"),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_have_places_inside() {
        let mut shares = Shares::default();
        for share in ["/tmp", "/usr:ro", "/tmp:/in/side", "/:/host:ro"] {
            shares.add(share).unwrap();
        }
        assert_eq!(
            shares.words,
            [
                "share=share0:/share",
                "share=share1:/share2:ro",
                "share=share2:/in/side",
                "share=share3:/host:ro"
            ]
        );
        assert!(shares.list[1].read_only && !shares.list[2].read_only);
        assert_eq!(shares.list[3].folder, Path::new("/"));
    }

    #[test]
    fn what_is_wrong_with_a_share_is_said() {
        let said = |share: &str| format!("{:#}", Shares::default().add(share).unwrap_err());
        assert!(said("/no/such").contains("can't share /no/such"));
        assert!(said("/etc/passwd").contains("is no folder"));
        assert!(said("/tmp:/").contains("--root"));
        assert!(said("/tmp:/a b").contains("neither spaces"));
    }
}
