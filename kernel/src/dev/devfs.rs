//! Devices without hardware, and the table from device numbers to what is behind them.
//!
//! `/dev` itself is a tmpfs with device nodes in it; opening such a node ends here.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::{framebuffer, tty};
use crate::block;
use crate::cred::Cred;
use crate::devnum::{device_number, major_and_minor};
use crate::errno::*;
use crate::fs::file::File;
use crate::fs::inode::*;
use crate::fs::mount::mount_at;
use crate::fs::ops::*;
use crate::fs::{mount, random, tmpfs};
use crate::sync::WaitQueue;
use crate::uio::{Sink, Source};
use crate::vm;

const NULL: u64 = device_number(1, 3);
const ZERO: u64 = device_number(1, 5);
const FULL: u64 = device_number(1, 7);
const RANDOM: u64 = device_number(1, 8);
const URANDOM: u64 = device_number(1, 9);
const KMSG: u64 = device_number(1, 11);
/// A number that Linux leaves to local use.
#[cfg(feature = "coverage")]
const COVERAGE: u64 = device_number(10, 240);
const TTY: u64 = device_number(5, 0);
const CONSOLE: u64 = device_number(5, 1);
const TTY_S0: u64 = device_number(4, 64);
const PTMX: u64 = device_number(5, 2);
/// Of terminals that only their nodes in `/dev/pts` lead to.
const PTS_MAJOR: u64 = 136;

/// Opens the device with this number.
pub fn open(rdev: u64, flags: u32) -> Result<FileRef> {
    let what = match rdev {
        NULL => Memory::Null,
        ZERO => Memory::Zero,
        FULL => Memory::Full,
        RANDOM | URANDOM => Memory::Random,
        KMSG => Memory::Log,
        #[cfg(feature = "coverage")]
        COVERAGE => Memory::Coverage,
        TTY => return tty::open_controlling(flags),
        PTMX => return tty::open_master(),
        number if major_and_minor(number).0 == PTS_MAJOR => return Err(EIO),
        CONSOLE | TTY_S0 => return tty::open_console(flags),
        framebuffer::NUMBER if framebuffer::memory().is_some() => {
            return Ok(Arc::new(framebuffer::FrameBuffer))
        }
        _ => return Err(ENXIO),
    };
    Ok(Arc::new(MemoryDevice { what }))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Memory {
    Null,
    Zero,
    Full,
    Random,
    /// `/dev/kmsg`: writes go to the debug console.
    Log,
    /// `/dev/coverage`: a read of the first eight bytes says how many edges of the kernel were
    /// taken as often as never before; behind them stands a byte for each edge, not zero if it was.
    /// A write has all forgotten.
    #[cfg(feature = "coverage")]
    Coverage,
}

struct MemoryDevice {
    what: Memory,
}

impl FileOps for MemoryDevice {
    /// These seek to anywhere and stay where they are, so they count as having positions.
    fn seekable(&self) -> bool {
        self.what != Memory::Random
    }

    fn read(&self, _file: &File, _at: u64, to: &mut Sink<'_>) -> Result<usize> {
        match self.what {
            Memory::Null | Memory::Log => Ok(0),
            Memory::Zero | Memory::Full => to.zero(to.left()),
            Memory::Random => random::read(to),
            #[cfg(feature = "coverage")]
            Memory::Coverage => read_coverage(_at, to),
        }
    }

    fn write(&self, _file: &File, at: Position, from: &mut Source<'_>) -> Result<(usize, u64)> {
        let n = match self.what {
            Memory::Full => return Err(ENOSPC),
            Memory::Log => {
                let mut text = [0; 256];
                let n = from.get(&mut text)?;
                crate::arch::serial::console(&text[..n]);
                n
            }
            #[cfg(feature = "coverage")]
            Memory::Coverage => {
                crate::arch::coverage::forget();
                from.skip(from.left())
            }
            _ => from.skip(from.left()),
        };
        let at = if let Position::At(at) = at { at } else { 0 };
        Ok((n, at.saturating_add(n as u64)))
    }

    fn truncate(&self, _len: u64) -> Result<()> {
        Ok(())
    }

    /// The source of random numbers can be waited for, though it never makes a thread wait.
    fn queues<'a>(&'a self, _file: &File, out: &mut Vec<&'a WaitQueue>) {
        static ALWAYS_READY: WaitQueue = WaitQueue::new();
        if self.what == Memory::Random {
            out.push(&ALWAYS_READY);
        }
    }

    fn mappable(&self) -> Option<&dyn Mappable> {
        Some(self)
    }
}

impl Mappable for MemoryDevice {
    /// A mapping of `/dev/zero` is anonymous memory.
    fn object(&self) -> Option<vm::Object> {
        if self.what == Memory::Zero {
            vm::Object::shared(1 << 46).ok()
        } else {
            None
        }
    }
}

#[cfg(feature = "coverage")]
fn read_coverage(at: u64, to: &mut Sink<'_>) -> Result<usize> {
    use crate::arch::coverage;
    let Some(mut edge) = at.checked_sub(8) else { return to.put(&coverage::news().to_ne_bytes()) };
    let mut part = [0; 256];
    loop {
        let some = coverage::taken(edge as usize, &mut part);
        if some == 0 || to.put(&part[..some])? == 0 {
            return Ok(to.done());
        }
        edge += some as u64;
    }
}

/// Makes a `/dev` with the usual nodes, whose files count in the first file system; returns its
/// root.
pub fn create(first: &InodeRef) -> Result<InodeRef> {
    let root: InodeRef = tmpfs::TmpFs::create(first, 0o755)?;
    let by = &Cred::kernel();
    let nodes = [
        ("null", NULL, 0o666),
        ("zero", ZERO, 0o666),
        ("full", FULL, 0o666),
        ("random", RANDOM, 0o666),
        ("urandom", URANDOM, 0o666),
        ("kmsg", KMSG, 0o644),
        ("tty", TTY, 0o666),
        ("ptmx", PTMX, 0o666),
        ("console", CONSOLE, 0o600),
        ("ttyS0", TTY_S0, 0o620),
    ];
    #[cfg(feature = "coverage")]
    root.create(b"coverage", NewNode::Special(Kind::Char, COVERAGE), Asked::exactly(0o400), by)?;
    for (name, rdev, perm) in nodes {
        root.create(name.as_bytes(), NewNode::Special(Kind::Char, rdev), Asked::exactly(perm), by)?;
    }
    if framebuffer::memory().is_some() {
        root.create(
            b"fb0",
            NewNode::Special(Kind::Char, framebuffer::NUMBER),
            Asked::exactly(0o660),
            by,
        )?;
    }
    for disk in block::disks() {
        root.create(
            disk.name().as_bytes(),
            NewNode::Special(Kind::Block, disk.number()),
            Asked::exactly(0o660),
            by,
        )?;
    }
    let links = [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ];
    for (name, target) in links {
        root.create(
            name.as_bytes(),
            NewNode::Symlink(target.as_bytes()),
            Asked::exactly(0o777),
            by,
        )?;
    }
    root.create(b"shm", NewNode::Dir, Asked::exactly(0o1777), by)?;
    root.create(b"pts", NewNode::Dir, Asked::exactly(0o755), by)?;
    root.create(b"mqueue", NewNode::Dir, Asked::exactly(0o1777), by)?;
    Ok(root)
}

/// Mounts `/dev` on the first file system, on `/dev/shm` a place for shared memory, and `/dev/pts`.
pub fn init() -> Result<()> {
    let root = mount::in_memory().inode;
    mount_at("/dev", create(&root)?, "devtmpfs", "devtmpfs")?;
    mount_at("/dev/shm", tmpfs::TmpFs::create(&root, 0o1777)?, "tmpfs", "tmpfs")?;
    tty::devpts::init()
}
