//! The guest's root file system: gathered here as a tree of names, written as one cpio archive.
//!
//! Files keep the path that they have on this machine, so that programs find what they were built
//! to look for. Symbolic links on the way are mirrored (`/bin -> usr/bin`), unless the tree has
//! something at that name already.
//!
//! I1: every key of `nodes` is a path without a leading slash whose parents are `Dir` nodes: no key
//! passes through a link. The map's order puts parents before children, which is the order that an
//! unpacker needs.

use crate::cpio;
use crate::libs::{self, Kind};
use anyhow::{bail, Context, Result};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A guest path is followed through symbolic links at most this often, as in the kernels.
const MAX_LINKS: u32 = 40;

enum Node {
    Dir(u32),
    Link(String),
    File(Source, u32),
    Device { mode: u32, number: (u32, u32) },
}

enum Source {
    Host(PathBuf),
    Bytes(Vec<u8>),
}

/// Whether a name that is missing in the tree takes after the host's symbolic link of the same
/// name.
#[derive(Clone, Copy, PartialEq)]
enum Mirror {
    WholePath,
    ParentsOnly,
}

#[derive(Default)]
pub struct Image {
    nodes: BTreeMap<String, Node>,
}

impl Image {
    /// The few files and folders without which common programs stumble.
    pub fn minimal() -> Result<Image> {
        let mut image = Image::default();
        for folder in ["dev", "proc", "sys", "etc", "root", "bin", "sbin", "usr", "var"] {
            image.dir(&format!("/{folder}"), 0o755)?;
        }
        for folder in ["tmp", "var/tmp", "dev/shm"] {
            image.dir(&format!("/{folder}"), 0o1777)?;
        }
        image.text(
            "/etc/passwd",
            "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
        )?;
        image.text("/etc/group", "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n")?;
        image.text("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n")?;
        image.text("/etc/hosts", "127.0.0.1 localhost\n")?;
        image.device("/dev/console", 0o600, (5, 1))?;
        image.device("/dev/null", 0o666, (1, 3))?;
        Ok(image)
    }

    /// Whether the tree itself has something at `guest` (the host is not asked).
    pub fn has(&self, guest: &str) -> bool {
        let mut at = String::new();
        let mut pending: Vec<String> = reversed_parts(guest);
        let mut links = 0;
        while let Some(part) = pending.pop() {
            at = if part == ".." { parent(&at).to_owned() } else { join(&at, &part) };
            match self.nodes.get(&at) {
                None if at.is_empty() => {}
                None => return false,
                Some(Node::Link(target)) => {
                    links += 1;
                    if links > MAX_LINKS {
                        return false;
                    }
                    at = if target.starts_with('/') {
                        String::new()
                    } else {
                        parent(&at).to_owned()
                    };
                    pending.extend(reversed_parts(target));
                }
                Some(_) => {}
            }
        }
        true
    }

    pub fn dir(&mut self, guest: &str, mode: u32) -> Result<()> {
        let key = self.walk(guest, Mirror::WholePath)?;
        if !key.is_empty() {
            self.nodes.insert(key, Node::Dir(mode));
        }
        Ok(())
    }

    pub fn text(&mut self, guest: &str, text: &str) -> Result<()> {
        let key = self.walk(guest, Mirror::ParentsOnly)?;
        self.nodes.insert(key, Node::File(Source::Bytes(text.as_bytes().to_vec()), 0o644));
        Ok(())
    }

    pub fn link(&mut self, guest: &str, target: &str) -> Result<()> {
        let (folder, name) = guest.rsplit_once('/').context("a link needs an absolute path")?;
        let folder = self.walk(folder, Mirror::WholePath)?;
        self.nodes.entry(join(&folder, name)).or_insert_with(|| Node::Link(target.to_owned()));
        Ok(())
    }

    fn device(&mut self, guest: &str, mode: u32, number: (u32, u32)) -> Result<()> {
        let key = self.walk(guest, Mirror::ParentsOnly)?;
        self.nodes.insert(key, Node::Device { mode, number });
        Ok(())
    }

    /// Adds one file of this machine at `guest`, and nothing of what it needs.
    pub fn file(&mut self, host: &Path, guest: &str) -> Result<()> {
        let same = Path::new(guest) == host;
        let key = self.walk(guest, if same { Mirror::WholePath } else { Mirror::ParentsOnly })?;
        if matches!(self.nodes.get(&key), Some(Node::Dir(_))) {
            bail!("{guest} is a folder in the guest's tree");
        }
        let about = host.metadata().with_context(|| format!("can't read {}", host.display()))?;
        self.nodes.insert(key, Node::File(Source::Host(host.to_owned()), about.mode() & 0o7777));
        Ok(())
    }

    /// Adds a file with the libraries or the interpreter that it needs.
    pub fn program(&mut self, host: &Path, guest: &str) -> Result<()> {
        self.file(host, guest)?;
        self.needs_of(host, |missing| bail!(missing))
    }

    fn needs_of(
        &mut self,
        host: &Path,
        missing: impl Fn(String) -> Result<()> + Copy,
    ) -> Result<()> {
        match libs::inspect(host)? {
            Kind::Elf(needs) => {
                for path in libs::closure(host, needs, missing)? {
                    self.same_path(&path)?;
                }
            }
            Kind::Script { .. } => {
                for path in libs::interpreters(host)? {
                    if !self.has(&path.to_string_lossy()) {
                        self.same_path(&path)?;
                        self.needs_of(&path, missing)?;
                    }
                }
            }
            Kind::Other => {}
        }
        Ok(())
    }

    fn same_path(&mut self, host: &Path) -> Result<()> {
        let guest = host.to_str().with_context(|| format!("{} is not UTF-8", host.display()))?;
        if self.has(guest) {
            return Ok(());
        }
        self.file(host, guest)
    }

    /// Adds a folder and all that is below it; with `Libraries::Packed`, also what its ELF files
    /// need.
    pub fn tree(&mut self, host: &Path, guest: &str, libraries: Libraries) -> Result<()> {
        self.dir(guest, host.metadata()?.mode() & 0o7777)?;
        let mut names: Vec<_> = std::fs::read_dir(host)?.collect::<std::io::Result<_>>()?;
        names.sort_by_key(|entry| entry.file_name());
        names.iter().try_for_each(|entry| self.entry(entry, guest, libraries))
    }

    /// Adds an entry of a folder of this machine to the folder `guest`.
    pub fn entry(
        &mut self,
        entry: &std::fs::DirEntry,
        guest: &str,
        libraries: Libraries,
    ) -> Result<()> {
        let path = entry.path();
        let name = entry.file_name().into_string().ok().context("a file name is not UTF-8")?;
        let inside = format!("{}/{name}", guest.trim_end_matches('/'));
        let kind = entry.file_type()?;
        if kind.is_symlink() {
            let target = std::fs::read_link(&path)?;
            self.link(&inside, target.to_str().context("a link's target is not UTF-8")?)?;
        } else if kind.is_dir() {
            self.tree(&path, &inside, libraries)?;
        } else if kind.is_file() {
            match libraries {
                Libraries::Packed => self.program(&path, &inside)?,
                Libraries::AsTheyAre => self.file(&path, &inside)?,
                Libraries::AsFound => {
                    self.file(&path, &inside)?;
                    self.needs_of(&path, |_| Ok(()))?;
                }
            }
        }
        Ok(())
    }

    /// Puts the host's static busybox at /bin/busybox, and a link for each applet whose name is not
    /// taken.
    pub fn busybox(&mut self) -> Result<()> {
        let host =
            find_program("busybox").context("busybox is not installed (package busybox-static)")?;
        self.program(Path::new(&host), "/bin/busybox")?;
        let output = Command::new(&host).arg("--list").output().context("can't run busybox")?;
        for applet in String::from_utf8_lossy(&output.stdout).lines() {
            let taken = ["/bin", "/sbin", "/usr/bin", "/usr/sbin"]
                .iter()
                .any(|folder| self.has(&format!("{folder}/{applet}")));
            if !taken {
                self.link(&format!("/bin/{applet}"), "/bin/busybox")?;
            }
        }
        Ok(())
    }

    /// Follows `guest` to the key where it is or will be, making the folders on the way.
    fn walk(&mut self, guest: &str, mirror: Mirror) -> Result<String> {
        let mut at = String::new();
        let mut pending = reversed_parts(guest);
        let mut links = 0;
        while let Some(part) = pending.pop() {
            if part == ".." {
                at = parent(&at).to_owned();
                continue;
            }
            let next = join(&at, &part);
            if !self.nodes.contains_key(&next) {
                let host = PathBuf::from(format!("/{next}"));
                match std::fs::read_link(&host) {
                    Ok(target) if mirror == Mirror::WholePath || !pending.is_empty() => {
                        self.nodes.insert(
                            next.clone(),
                            Node::Link(target.to_string_lossy().into_owned()),
                        );
                    }
                    _ if pending.is_empty() => return Ok(next),
                    _ => {
                        self.nodes.insert(next.clone(), Node::Dir(0o755));
                    }
                }
            }
            match self.nodes.get(&next) {
                Some(Node::Link(target)) => {
                    links += 1;
                    if links > MAX_LINKS {
                        bail!("{guest} goes through too many symbolic links");
                    }
                    if target.starts_with('/') {
                        at.clear();
                    }
                    pending.extend(reversed_parts(target));
                }
                Some(Node::Dir(_)) => at = next,
                _ if pending.is_empty() => at = next,
                _ => bail!("{guest} passes through /{next}, which is not a folder"),
            }
        }
        Ok(at)
    }

    /// Writes the tree into a folder of this machine (without device nodes), for a later `--root`.
    pub fn write_folder(&self, folder: &Path) -> Result<()> {
        for (name, node) in &self.nodes {
            let path = folder.join(name);
            match node {
                Node::Dir(_) => std::fs::create_dir_all(&path)?,
                Node::Link(target) => std::os::unix::fs::symlink(target, &path)?,
                Node::File(Source::Bytes(bytes), _) => std::fs::write(&path, bytes)?,
                Node::File(Source::Host(host), _) => {
                    std::fs::copy(host, &path)
                        .with_context(|| format!("can't copy {}", host.display()))?;
                }
                Node::Device { .. } => {}
            }
        }
        Ok(())
    }

    /// Writes the archive.
    pub fn write(&self, path: &Path) -> Result<()> {
        let file = std::fs::File::create(path)
            .with_context(|| format!("can't write {}", path.display()))?;
        let mut archive = cpio::Writer::new(std::io::BufWriter::with_capacity(1 << 20, file));
        for (name, node) in &self.nodes {
            let mut data = Vec::new();
            let mut mtime = 0;
            let mut device = (0, 0);
            let mode = match node {
                Node::Dir(mode) => 0o040000 | mode,
                Node::Link(target) => {
                    data = target.clone().into_bytes();
                    0o120777
                }
                Node::File(Source::Bytes(bytes), mode) => {
                    data.clone_from(bytes);
                    0o100000 | mode
                }
                Node::File(Source::Host(host), mode) => {
                    data = std::fs::read(host)
                        .with_context(|| format!("can't read {}", host.display()))?;
                    mtime = host.metadata()?.mtime().clamp(0, i64::from(u32::MAX)) as u32;
                    0o100000 | mode
                }
                Node::Device { mode, number } => {
                    device = *number;
                    0o020000 | mode
                }
            };
            archive.add(&cpio::Entry {
                path: name,
                mode,
                uid: 0,
                gid: 0,
                mtime,
                device,
                data: &data,
            })?;
        }
        Ok(archive.finish()?)
    }
}

/// Whether the files of a folder bring the libraries that they need.
#[derive(Clone, Copy)]
pub enum Libraries {
    Packed,
    /// As far as they are on this machine: a program that has them brings the others.
    AsFound,
    AsTheyAre,
}

/// Looks a command name up in the usual folders of this machine, then in `PATH`.
pub fn find_program(name: &str) -> Option<String> {
    const USUAL: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let path = std::env::var("PATH").unwrap_or_default();
    USUAL.split(':').chain(path.split(':')).map(|folder| format!("{folder}/{name}")).find(
        |candidate| {
            std::fs::metadata(candidate)
                .is_ok_and(|about| about.is_file() && about.mode() & 0o111 != 0)
        },
    )
}

fn reversed_parts(path: &str) -> Vec<String> {
    path.split('/')
        .rev()
        .filter(|part| !part.is_empty() && *part != ".")
        .map(str::to_owned)
        .collect()
}

fn join(folder: &str, name: &str) -> String {
    if folder.is_empty() {
        name.to_owned()
    } else {
        format!("{folder}/{name}")
    }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_the_tree_are_followed() {
        let mut image = Image::default();
        image.dir("/real", 0o755).unwrap();
        image.link("/alias", "real").unwrap();
        image.text("/alias/note", "x").unwrap();
        assert!(image.nodes.contains_key("real/note"));
        assert!(image.has("/alias/note"));
        assert!(!image.has("/alias/other"));
    }

    #[test]
    fn a_circle_of_links_is_an_error() {
        let mut image = Image::default();
        image.link("/one", "two").unwrap();
        image.link("/two", "one").unwrap();
        assert!(image.text("/one/x", "").is_err());
        assert!(!image.has("/one/x"));
    }

    #[test]
    fn parents_come_before_children() {
        let mut image = Image::default();
        image.text("/nowhere-on-host/b/c", "x").unwrap();
        let keys: Vec<_> = image.nodes.keys().collect();
        assert_eq!(keys, ["nowhere-on-host", "nowhere-on-host/b", "nowhere-on-host/b/c"]);
    }
}
