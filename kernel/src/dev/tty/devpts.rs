//! `/dev/pts`: a directory with a node for each pseudo-terminal whose master is open.
//!
//! There is one of it, however often it is mounted: pseudo-terminals have one set of numbers.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::{pty, Tty};
use crate::cred::Cred;
use crate::devnum::device_number;
use crate::errno::*;
use crate::fs::file::File;
use crate::fs::inode::*;
use crate::fs::mount::{self, mount_at};
use crate::fs::ops::*;
use crate::fs::path::{resolve, Follow, Place, Start};
use crate::sync::Once;

const MAGIC: u64 = 0x1cd1;

/// The group of those that may write to others' terminals.
const TTY_GROUP: u32 = 5;

/// What mounts' options say of new nodes.
static GROUP: AtomicU32 = AtomicU32::new(TTY_GROUP);
static MODE: AtomicU32 = AtomicU32::new(0o620);
static MASTER_MODE: AtomicU32 = AtomicU32::new(0o666);

fn device() -> u64 {
    static DEVICE: Once<u64> = Once::new();
    *DEVICE.call_once(crate::fs::new_device)
}

/// The directory.
struct Root {
    cover: Cover,
    master: Arc<MasterNode>,
}

/// `/dev/pts/ptmx`, which makes a pseudo-terminal as `/dev/ptmx` does.
struct MasterNode;

/// The root of the file system.
pub fn root() -> InodeRef {
    static ROOT: Once<Arc<Root>> = Once::new();
    ROOT.call_once(|| Arc::new(Root { cover: Cover::new(), master: Arc::new(MasterNode) })).clone()
}

/// Mounts it on `/dev/pts`.
pub fn init() -> Result<()> {
    mount_at("/dev/pts", root(), "devpts", "devpts")
}

/// What a mount's options change.
#[derive(Default)]
pub struct Options {
    group: Option<u32>,
    mode: Option<u32>,
    master_mode: Option<u32>,
}

/// Reads a mount's options, which [`Options::apply`] puts in force.
///
/// # Errors
/// `EINVAL`.
pub fn options(options: &[u8]) -> Result<Options> {
    let text = core::str::from_utf8(options).map_err(|_| EINVAL)?;
    let octal = |value| u32::from_str_radix(value, 8).map_err(|_| EINVAL);
    let mut new = Options::default();
    for option in text.split(',').filter(|option| !option.is_empty()) {
        match option.split_once('=') {
            Some(("gid", value)) => new.group = Some(value.parse().map_err(|_| EINVAL)?),
            Some(("mode", value)) => new.mode = Some(octal(value)? & 0o777),
            Some(("ptmxmode", value)) => new.master_mode = Some(octal(value)? & 0o777),
            None if option == "newinstance" => {}
            _ => return Err(EINVAL),
        }
    }
    Ok(new)
}

impl Options {
    /// Of a mount that is there: what isn't given stays, since there is one file system.
    pub fn apply(self) {
        let settings = [(&GROUP, self.group), (&MODE, self.mode), (&MASTER_MODE, self.master_mode)];
        for (setting, new) in settings {
            new.into_iter().for_each(|new| setting.store(new, Relaxed));
        }
    }
}

/// What `/proc/mounts` adds.
fn shown_options() -> String {
    let group = GROUP.load(Relaxed);
    let (mode, master) = (MODE.load(Relaxed), MASTER_MODE.load(Relaxed));
    format!(",gid={group},mode={mode:03o},ptmxmode={master:03o}")
}

/// Group and mode of a new terminal's node.
pub(super) fn new_node() -> (u32, u32) {
    (GROUP.load(Relaxed), MODE.load(Relaxed))
}

/// The place of a terminal's node: its name below `/dev/pts`, if that leads there.
pub(super) fn place(tty: &Arc<Tty>) -> Place {
    let number = tty.pty().map_or(0, |pty| pty.index());
    let path = format!("/dev/pts/{number}");
    let node: InodeRef = tty.clone();
    resolve(&Start::kernel(mount::root()), path.as_bytes(), Follow::No)
        .ok()
        .filter(|place| same(&place.inode, &node))
        .unwrap_or_else(|| Place::described(node.clone(), path.into()))
}

fn number(name: &[u8]) -> Option<u32> {
    let text = core::str::from_utf8(name).ok()?;
    let number: u32 = text.parse().ok()?;
    (format!("{number}") == text).then_some(number)
}

impl Inode for Root {
    fn stat(&self) -> Stat {
        Stat { nlink: 2, ..Stat::plain(device(), 1, Kind::Dir, 0o755) }
    }

    fn fs_stat(&self) -> FsStat {
        FsStat::empty(MAGIC)
    }

    fn lookup(&self, name: &[u8]) -> Result<InodeRef> {
        if name == b"ptmx" {
            return Ok(self.master.clone());
        }
        Ok(number(name).and_then(pty::find).ok_or(ENOENT)?)
    }

    fn create(
        &self,
        _name: &[u8],
        _new: NewNode<'_>,
        _perm: Asked,
        _by: &Cred,
    ) -> Result<InodeRef> {
        Err(EACCES)
    }

    fn list(&self, from: u64, each: &mut dyn FnMut(DirEntry<'_>) -> Flow) -> Result<()> {
        let fixed = [(".", 1, Kind::Dir), ("..", 1, Kind::Dir), ("ptmx", 2, Kind::Char)];
        for (at, (name, ino, kind)) in fixed.into_iter().enumerate().skip(from.min(3) as usize) {
            let entry = DirEntry { ino, next: at as u64 + 1, kind, name: name.as_bytes() };
            if each(entry) == Flow::Stop {
                return Ok(());
            }
        }
        let mut first = u32::try_from(from.saturating_sub(3)).unwrap_or(u32::MAX);
        while let Some(number) = pty::next(first) {
            let name = format!("{number}");
            let (ino, next) = (u64::from(number) + 3, u64::from(number) + 4);
            let entry = DirEntry { ino, next, kind: Kind::Char, name: name.as_bytes() };
            if each(entry) == Flow::Stop {
                return Ok(());
            }
            first = number + 1;
        }
        Ok(())
    }

    fn shown_options(&self) -> String {
        shown_options()
    }

    fn cover(&self) -> Option<&Cover> {
        Some(&self.cover)
    }

    fn open(self: Arc<Self>, _flags: u32) -> Result<FileRef> {
        Ok(self)
    }
}

impl FileOps for Root {
    fn read(&self, _file: &File, _at: u64, _to: &mut crate::uio::Sink<'_>) -> Result<usize> {
        Err(EISDIR)
    }
}

impl Inode for MasterNode {
    fn stat(&self) -> Stat {
        let node = Stat::plain(device(), 2, Kind::Char, MASTER_MODE.load(Relaxed));
        Stat { rdev: device_number(5, 2), ..node }
    }

    fn fs_stat(&self) -> FsStat {
        FsStat::empty(MAGIC)
    }

    fn open(self: Arc<Self>, _flags: u32) -> Result<FileRef> {
        super::open_master()
    }
}

fn stat_of(pty: &pty::Pty, node: &pty::Node) -> Stat {
    Stat {
        uid: node.uid,
        gid: node.gid,
        rdev: pty.number(),
        atime: node.atime,
        mtime: node.mtime,
        ctime: node.ctime,
        ..Stat::plain(device(), u64::from(pty.index()) + 3, Kind::Char, node.perm)
    }
}

/// The node of a pseudo-terminal's slave; the console has one elsewhere.
impl Inode for Tty {
    fn stat(&self) -> Stat {
        match self.pty() {
            Some(pty) => stat_of(pty, &pty.node()),
            None => Stat::plain(device(), 0, Kind::Char, 0),
        }
    }

    fn set_attr(&self, change: Decide<'_>) -> Result<()> {
        let pty = self.pty().ok_or(EPERM)?;
        pty.change_node(|node| change(&stat_of(pty, node).ownership()))
    }

    fn fs_stat(&self) -> FsStat {
        FsStat::empty(MAGIC)
    }

    fn open(self: Arc<Self>, flags: u32) -> Result<FileRef> {
        self.open_file(flags)
    }
}
