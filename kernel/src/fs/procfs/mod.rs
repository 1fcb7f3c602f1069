//! `/proc`: what the kernel knows about processes and itself, as text. And what there is of `/sys`: the CPUs.
//!
//! ```text
//!   /proc  self -> PID   thread-self -> PID/task/TID   meminfo ... (system.rs)
//!     PID/   status maps ... (process.rs)   exe cwd root -> places   fd/N -> places   task/TID/
//!     sys/   kernel/ vm/ fs/                (system.rs)
//! ```
//!
//! Nodes are made when a path leads to them and hold only what they show, by number; nothing is cached. A
//! file's text is made when it is opened, so that a reader sees one moment.

mod cpus;
mod maps;
mod memory;
mod process;
mod settings;
mod system;

use alloc::format;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use linux_raw_sys::general as abi;

use super::file::File;
use super::inode::*;
use super::io::{IoVec, Sink, Source};
use super::path::Place;
use crate::errno::*;
use crate::proc::{self, remote, Pid, Process};

/// A text of the whole system.
type SystemText = fn() -> String;
/// A text of one process.
type ProcessText = fn(&Process) -> Result<Vec<u8>>;

/// A text that takes what is written to it.
struct Setting {
    show: SystemText,
    set: fn(&str) -> Result<()>,
}

/// What a node shows.
#[derive(Clone, Copy)]
enum Show {
    Root,
    /// A fixed directory.
    Fixed(&'static [Member]),
    /// The directory of all CPUs.
    Cpus,
    System(SystemText),
    Setting(&'static Setting),
    Process(Pid),
    /// The threads of a process.
    Tasks(Pid),
    Fds(Pid),
    FdInfos(Pid),
    Text(Pid, ProcessText),
    /// A process's memory, at its addresses.
    Memory(Pid),
    /// A link to what descriptor of a process.
    Fd(Pid, i32),
    Exe(Pid),
    Cwd(Pid),
    RootLink(Pid),
    SelfLink,
    ThreadSelf,
    MountsLink,
    /// What an audit of the VM system says.
    Audit,
    /// Takes a letter that stands for a drastic act.
    Trigger,
}

/// A fixed entry of a directory.
struct Member {
    name: &'static str,
    show: Show,
}

const fn dir(name: &'static str, members: &'static [Member]) -> Member {
    Member { name, show: Show::Fixed(members) }
}

const fn text(name: &'static str, text: SystemText) -> Member {
    Member { name, show: Show::System(text) }
}

const fn setting(name: &'static str, setting: &'static Setting) -> Member {
    Member { name, show: Show::Setting(setting) }
}

const fn link(name: &'static str, show: Show) -> Member {
    Member { name, show }
}

struct ProcNode {
    show: Show,
    ino: u64,
    /// What `statfs` says the file system is.
    magic: u32,
    above: Option<(InodeRef, Vec<u8>)>,
    me: Weak<ProcNode>,
}

/// A new `/proc`; returns its root.
pub fn create() -> InodeRef {
    root(Show::Root, abi::PROC_SUPER_MAGIC)
}

/// A new `/sys`; returns its root.
pub fn create_sys() -> InodeRef {
    static DEVICES: &[Member] = &[dir("system", &[Member { name: "cpu", show: Show::Cpus }])];
    static ROOT: &[Member] = &[dir("devices", DEVICES)];
    root(Show::Fixed(ROOT), abi::SYSFS_MAGIC)
}

fn root(show: Show, magic: u32) -> InodeRef {
    Arc::new_cyclic(|me| ProcNode { show, ino: 1, magic, above: None, me: me.clone() })
}

fn process(pid: Pid) -> Result<Arc<Process>> {
    match proc::table::process(pid) {
        Some(process) => Ok(process),
        None => Ok(proc::table::thread(pid).ok_or(ENOENT)?.process.clone()),
    }
}

/// A number without leading zeros or signs.
fn number(name: &[u8]) -> Option<i32> {
    let text = core::str::from_utf8(name).ok()?;
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| plain)
}

impl ProcNode {
    fn child(&self, name: &[u8], show: Show) -> Result<InodeRef> {
        let above: InodeRef = self.me.upgrade().ok_or(ENOENT)?;
        let hash = |sum: u64, &byte: &u8| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        let ino = name.iter().fold(self.ino ^ 0xcbf2_9ce4_8422_2325, hash) & 0xffff_ffff_ffff;
        let (magic, above) = (self.magic, Some((above, name.to_vec())));
        Ok(Arc::new_cyclic(|me| ProcNode { show, ino, magic, above, me: me.clone() }))
    }

    /// The fixed entries of a directory; `None` if this is none.
    fn members(&self) -> Option<Vec<(&'static str, Show)>> {
        Some(match self.show {
            Show::Root => system::ROOT.iter().map(|member| (member.name, member.show)).collect(),
            Show::Fixed(members) => members.iter().map(|member| (member.name, member.show)).collect(),
            Show::Cpus => cpus::members(),
            Show::Process(pid) => process::members(pid),
            Show::Tasks(_) | Show::Fds(_) | Show::FdInfos(_) => Vec::new(),
            _ => return None,
        })
    }

    /// The numbered entries of a directory.
    fn numbers(&self) -> Vec<i32> {
        match self.show {
            Show::Root => proc::processes().iter().map(|process| process.pid).collect(),
            Show::Tasks(pid) => process(pid).map_or_else(
                |_| Vec::new(),
                |process| process.threads().iter().map(|thread| thread.tid()).collect(),
            ),
            Show::Fds(pid) | Show::FdInfos(pid) => {
                let files = process(pid).and_then(|process| process.files());
                files.map_or_else(
                    |_| Vec::new(),
                    |files| files.used_from(0, usize::MAX).iter().map(|&fd| fd as i32).collect(),
                )
            }
            _ => Vec::new(),
        }
    }

    fn numbered(&self, number: i32) -> Option<Show> {
        match self.show {
            Show::Root => process(number).ok().map(|_| Show::Process(number)),
            Show::Tasks(pid) => {
                let process = process(pid).ok()?;
                let found = process.threads().iter().any(|thread| thread.tid() == number);
                found.then_some(Show::Process(number))
            }
            Show::Fds(pid) => open_file(pid, number).ok().map(|_| Show::Fd(pid, number)),
            Show::FdInfos(pid) => open_file(pid, number).ok().map(|_| Show::Text(pid, process::fdinfo)),
            _ => None,
        }
    }

    fn text(&self) -> Option<Result<Vec<u8>>> {
        match self.show {
            Show::System(text) => Some(Ok(text().into_bytes())),
            Show::Audit => Some(Ok(system::audit().into_bytes())),
            Show::Setting(setting) => Some(Ok((setting.show)().into_bytes())),
            Show::Text(pid, text) => Some(process(pid).and_then(|process| text(&process))),
            _ => None,
        }
    }
}

/// The memory behind `mem`, if the caller may look into it.
fn memory_of(pid: Pid) -> Result<Arc<crate::vm::Space>> {
    remote::space_of(process(pid)?.pid).map_err(|errno| if errno == EPERM { EACCES } else { errno })
}

fn open_file(pid: Pid, fd: i32) -> Result<Arc<File>> {
    process(pid)?.files()?.get_any(fd).map_err(|_| ENOENT)
}

/// The text behind a link, where it isn't a place.
fn link_text(show: Show) -> Option<String> {
    let thread = proc::current_thread();
    Some(match show {
        Show::SelfLink => format!("{}", thread.process.pid),
        Show::ThreadSelf => format!("{}/task/{}", thread.process.pid, thread.tid()),
        Show::MountsLink => String::from("self/mounts"),
        _ => return None,
    })
}

/// The place that a link leads to.
fn link_place(show: Show) -> Option<Result<Place>> {
    let dir = |node: InodeRef| Place { inode: node, parent: None, name: Default::default() };
    Some(match show {
        Show::Fd(pid, fd) => open_file(pid, fd).map(|file| described(&file, fd)),
        Show::Cwd(pid) => process(pid).and_then(|process| process.fs()).map(|fs| dir(fs.cwd())),
        Show::RootLink(pid) => process(pid).and_then(|process| process.fs()).map(|fs| dir(fs.root())),
        Show::Exe(pid) => process(pid).and_then(|process| {
            let path = process.exe().ok_or(ENOENT)?;
            super::path::resolve(&super::root_start(), path.as_bytes(), super::path::Follow::Yes)
        }),
        _ => return None,
    })
}

/// A file's place, with a description if it has no path.
fn described(file: &File, fd: i32) -> Place {
    let mut place = file.place().clone();
    if place.parent.is_none() && place.name.is_empty() && place.inode.kind() != Kind::Dir {
        let ino = place.inode.stat().ino;
        let name = match place.inode.kind() {
            Kind::Fifo => format!("pipe:[{ino}]"),
            Kind::Socket => format!("socket:[{ino}]"),
            _ => format!("anon_inode:[{fd}]"),
        };
        place.name = name.into_bytes().into_boxed_slice();
    }
    place
}

impl Inode for ProcNode {
    fn stat(&self) -> Stat {
        let kind = self.kind();
        let perm = match kind {
            Kind::Dir => 0o555,
            Kind::Symlink => 0o777,
            _ if matches!(self.show, Show::Trigger) => 0o200,
            // It stops all CPUs for a while.
            _ if matches!(self.show, Show::Audit) => 0o400,
            _ if matches!(self.show, Show::Memory(_)) => 0o600,
            _ if matches!(self.show, Show::Setting(_)) => 0o644,
            _ => 0o444,
        };
        Stat { nlink: if kind == Kind::Dir { 2 } else { 1 }, ..Stat::plain(3, self.ino, kind, perm) }
    }

    fn kind(&self) -> Kind {
        match self.show {
            Show::System(_)
            | Show::Setting(_)
            | Show::Text(..)
            | Show::Memory(_)
            | Show::Audit
            | Show::Trigger => Kind::File,
            Show::Fd(..) | Show::Exe(_) | Show::Cwd(_) | Show::RootLink(_) => Kind::Symlink,
            Show::SelfLink | Show::ThreadSelf | Show::MountsLink => Kind::Symlink,
            _ => Kind::Dir,
        }
    }

    fn fs_stat(&self) -> FsStat {
        FsStat::empty(u64::from(self.magic))
    }

    fn lookup(&self, name: &[u8]) -> Result<InodeRef> {
        let members = self.members().ok_or(ENOTDIR)?;
        let fixed = members.iter().find(|(fixed, _)| fixed.as_bytes() == name).map(|(_, show)| *show);
        let show = fixed.or_else(|| self.numbered(number(name)?)).ok_or(ENOENT)?;
        self.child(name, show)
    }

    fn list(&self, from: u64, each: &mut dyn FnMut(DirEntry<'_>) -> Flow) -> Result<()> {
        let members = self.members().ok_or(ENOTDIR)?;
        let mut names: Vec<String> = [".", ".."].map(String::from).into();
        names.extend(members.iter().map(|(name, _)| String::from(*name)));
        let fixed = names.len() as u64;
        for (index, name) in names.iter().enumerate().skip(from.min(fixed) as usize) {
            let kind = if index < 2 {
                Kind::Dir
            } else {
                self.lookup(name.as_bytes()).map_or(Kind::File, |node| node.kind())
            };
            let entry = DirEntry {
                ino: self.ino + index as u64,
                next: index as u64 + 1,
                kind,
                name: name.as_bytes(),
            };
            if each(entry) == Flow::Stop {
                return Ok(());
            }
        }
        let mut numbers = self.numbers();
        numbers.sort_unstable();
        let first = from.saturating_sub(fixed);
        let kind = match self.show {
            Show::Fds(_) => Kind::Symlink,
            Show::FdInfos(_) => Kind::File,
            _ => Kind::Dir,
        };
        for number in numbers.into_iter().filter(|&number| number as u64 >= first) {
            let name = format!("{number}");
            let next = fixed + number as u64 + 1;
            let entry = DirEntry { ino: self.ino ^ next << 20, next, kind, name: name.as_bytes() };
            if each(entry) == Flow::Stop {
                return Ok(());
            }
        }
        Ok(())
    }

    fn parent(&self) -> Option<(InodeRef, Vec<u8>)> {
        self.above.clone()
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        if let Some(text) = link_text(self.show) {
            return Ok(text.into_bytes());
        }
        Ok(link_place(self.show).ok_or(EINVAL)??.path())
    }

    fn jump(&self) -> Option<Result<Place>> {
        link_place(self.show)
    }

    fn open(&self, flags: u32) -> Result<Option<InodeRef>> {
        if let Show::Memory(pid) = self.show {
            memory_of(pid)?;
        }
        match self.text() {
            None => Ok(None),
            Some(text) => {
                let writes = flags & abi::O_ACCMODE != abi::O_RDONLY;
                let set = match self.show {
                    Show::Setting(setting) => setting.set,
                    _ => |_: &str| Ok(()),
                };
                let set = writes.then_some(set);
                Ok(Some(Arc::new(Snapshot { text: text?, stat: self.stat(), set })))
            }
        }
    }

    /// Only memory is read as it stands; every other file is a [`Snapshot`] once it is open.
    fn read(&self, _file: &File, at: u64, to: &mut Sink<'_>) -> Result<usize> {
        let Show::Memory(pid) = self.show else { return Err(EISDIR) };
        let piece = IoVec { addr: at, len: to.left() };
        remote::read(&*memory_of(pid)?, remote::As::Debugger, &[piece], to).map_err(|_| EIO)
    }

    /// Memory and the trigger are written to as they stand.
    fn write(&self, _file: &File, at: Position, from: &mut Source<'_>) -> Result<(usize, u64)> {
        if let Show::Memory(pid) = self.show {
            let Position::At(addr) = at else { return Err(EINVAL) };
            let piece = IoVec { addr, len: from.left() };
            let done =
                remote::write(&*memory_of(pid)?, remote::As::Debugger, &[piece], from).map_err(|_| EIO)?;
            return Ok((done, addr + done as u64));
        }
        let mut letter = [0];
        let n = from.get(&mut letter)?;
        if n == 1 && letter == *b"c" {
            panic!("a crash was asked for through /proc/sysrq-trigger");
        }
        if n == 1 && letter == *b"l" {
            crate::arch::ipi::show_all();
        }
        if n == 1 && letter == *b"h" {
            crate::sched::clock::hang();
        }
        Ok((n + from.skip(from.left()), 0))
    }

    fn truncate(&self, _len: u64) -> Result<()> {
        if self.kind() == Kind::File {
            return Ok(());
        }
        Err(EISDIR)
    }
}

/// The longest setting.
const SETTING_MAX: usize = 128;

/// The text of an opened file. Some settings do what is written to them; the others accept it and stay as they are.
struct Snapshot {
    text: Vec<u8>,
    stat: Stat,
    /// What takes writes; `None` if it was opened for reading.
    set: Option<fn(&str) -> Result<()>>,
}

impl Inode for Snapshot {
    fn stat(&self) -> Stat {
        self.stat
    }

    fn read(&self, _file: &File, at: u64, to: &mut Sink<'_>) -> Result<usize> {
        let from = usize::try_from(at).unwrap_or(usize::MAX).min(self.text.len());
        to.put(&self.text[from..])
    }

    fn write(&self, _file: &File, at: Position, from: &mut Source<'_>) -> Result<(usize, u64)> {
        let set = self.set.ok_or(EBADF)?;
        let at = if let Position::At(at) = at { at } else { 0 };
        let mut bytes = [0; SETTING_MAX];
        let n = from.get(&mut bytes)?;
        set(core::str::from_utf8(&bytes[..n]).map_err(|_| EINVAL)?)?;
        let n = n + from.skip(from.left());
        Ok((n, at.saturating_add(n as u64)))
    }

    fn truncate(&self, _len: u64) -> Result<()> {
        Ok(())
    }
}
