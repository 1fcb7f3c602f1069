//! `/proc`: what the kernel knows about processes and itself, as text. And what there is of `/sys`:
//! the CPUs.
//!
//! ```text
//!   /proc  self -> PID   thread-self -> PID/task/TID   meminfo ... (system.rs)
//!     PID/   status maps ... (process.rs)   exe cwd root -> places   fd/N -> places   task/TID/
//!     sys/   kernel/ vm/ fs/                (system.rs)
//! ```
//!
//! Nodes are made when a path leads to them and hold only what they show, by number; nothing is
//! cached. A file's text is made as it is read (text.rs), by rights that are judged when it is
//! opened.

mod cpus;
mod maps;
mod memory;
mod net;
mod process;
mod settings;
mod system;
pub mod text;

use alloc::format;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use linux_raw_sys::general as abi;

use self::text::{ProcessRecords, Reader, Records, Set, SpaceRecords, Subject};
use crate::cred::caps::Caps;
use crate::cred::Cred;
use crate::errno::*;
use crate::fs::access;
use crate::fs::file::File;
use crate::fs::inode::*;
use crate::fs::mount::mount_at;
use crate::fs::ops::*;
use crate::fs::path::Place;
use crate::proc::access::By;
use crate::proc::curproc;
use crate::proc::mm::Mm;
use crate::proc::{self, foreign_memory, Pid, Process, Thread};
use crate::uio::{IoVec, Sink, Source};

/// A text of the whole system.
type SystemText = fn() -> String;
/// A text of one process.
type ProcessText = fn(&Process) -> Result<Vec<u8>>;
/// A text of one thread.
type ThreadText = fn(&Thread) -> Result<Vec<u8>>;

/// A text that takes what is written to it.
struct Setting {
    show: SystemText,
    set: fn(&str) -> Result<()>,
}

/// A text of one process that takes what is written to it.
struct ProcessSetting {
    show: ProcessText,
    set: fn(&Process, &str) -> Result<()>,
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
    /// A text of the whole system that grows with what programs do.
    Records(Records),
    /// Of the table of mounts: its changes can be waited for.
    Mounts(Records),
    Setting(&'static Setting),
    Process(Pid),
    /// One of its threads: as a process, without threads of its own, so that paths here have few
    /// components.
    Thread(Pid),
    /// The threads of a process.
    Tasks(Pid),
    Fds(Pid),
    FdInfos(Pid),
    Text(Pid, ProcessText),
    ThreadText(Pid, ThreadText),
    ProcessSetting(Pid, &'static ProcessSetting),
    /// A text of a process that grows with what it does.
    ProcessRecords(Pid, ProcessRecords),
    /// A text of the address space that a process has when it is opened.
    SpaceText(Pid, SpaceRecords),
    /// A process's memory, at its addresses.
    Memory(Pid),
    /// Which of a thread's next allocations is to fail.
    FailNth(Pid),
    /// A link to what descriptor of a process.
    Fd(Pid, i32),
    Exe(Pid),
    Cwd(Pid),
    RootLink(Pid),
    SelfLink,
    ThreadSelf,
    MountsLink,
    /// `/proc/audit`: what an audit of the VM system says.
    Audit,
    /// `/proc/inuse`: what memory is in use for.
    InUse,
    /// `drop_caches`: takes which caches are to be dropped.
    DropCaches,
    /// `/proc/sysrq-trigger`: takes the letter of a command.
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

const fn records(name: &'static str, records: Records) -> Member {
    Member { name, show: Show::Records(records) }
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

/// Mounts `/proc` and `/sys`.
pub fn init() -> Result<()> {
    mount_at("/proc", create(), "proc", "proc")?;
    mount_at("/sys", create_sys(), "sysfs", "sysfs")
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
    let plain =
        text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
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
            Show::Fixed(members) => {
                members.iter().map(|member| (member.name, member.show)).collect()
            }
            Show::Cpus => cpus::members(),
            Show::Process(pid) => process::members(pid),
            Show::Thread(pid) => process::members_of_thread(pid),
            Show::Tasks(_) | Show::Fds(_) | Show::FdInfos(_) => Vec::new(),
            _ => return None,
        })
    }

    /// The first numbered entry of a directory that isn't below `from`.
    fn next_number(&self, from: i32) -> Option<i32> {
        match self.show {
            Show::Root => proc::table::next_process(from),
            Show::Tasks(pid) => proc::table::next_thread_of(&process(pid).ok()?, from),
            Show::Fds(pid) | Show::FdInfos(pid) => {
                let files = process(pid).and_then(|process| process.files()).ok()?;
                files.next_used(from as usize).map(|fd| fd as i32)
            }
            _ => None,
        }
    }

    fn numbered(&self, number: i32) -> Option<Show> {
        match self.show {
            Show::Root => process(number).ok().map(|_| Show::Process(number)),
            Show::Tasks(pid) => {
                let process = process(pid).ok()?;
                let thread = proc::table::thread(number)?;
                Arc::ptr_eq(&thread.process, &process).then_some(Show::Thread(number))
            }
            Show::Fds(pid) => open_file(pid, number).ok().map(|_| Show::Fd(pid, number)),
            Show::FdInfos(pid) => {
                open_file(pid, number).ok().map(|_| Show::Text(pid, process::fdinfo))
            }
            _ => None,
        }
    }

    /// What the file's text is about; `None` if this is no file of text.
    fn subject(&self) -> Option<Result<Subject>> {
        Some(match self.show {
            Show::System(text) => Ok(Subject::System(text)),
            Show::Records(records) | Show::Mounts(records) => Ok(Subject::Records(records)),
            Show::Audit => Ok(Subject::System(system::audit)),
            Show::InUse => Ok(Subject::System(memory::in_use)),
            Show::DropCaches => Ok(Subject::System(settings::DROP_CACHES.show)),
            Show::Setting(setting) => Ok(Subject::System(setting.show)),
            Show::Text(pid, text) => {
                process(pid).map(|process| Subject::Process(Arc::downgrade(&process), text))
            }
            Show::ThreadText(tid, text) => {
                let thread = proc::table::thread(tid).ok_or(ENOENT);
                thread.map(|thread| Subject::Thread(Arc::downgrade(&thread), text))
            }
            Show::ProcessSetting(pid, setting) => {
                process(pid).map(|process| Subject::Process(Arc::downgrade(&process), setting.show))
            }
            Show::ProcessRecords(pid, records) => process(pid)
                .map(|process| Subject::ProcessRecords(Arc::downgrade(&process), records)),
            Show::SpaceText(pid, records) => memory_of(pid).map(|(process, mm)| {
                Subject::Space(Arc::downgrade(&process), mm.as_ref().map(Arc::downgrade), records)
            }),
            _ => return None,
        })
    }
}

/// A process, if the caller may look into it.
fn looked_into(pid: Pid) -> Result<Arc<Process>> {
    memory_of(pid).map(|(process, _)| process)
}

/// What `look` finds in a process, if the caller may look into it.
fn look_into<T>(pid: Pid, look: impl Fn(&Process) -> Result<T>) -> Result<T> {
    let process = process(pid)?;
    let found = proc::access::look_into(&process, By::Files, || look(&process));
    found.map_err(|error| if error == EPERM { EACCES } else { error })
}

/// A process and its memory, if the caller may look into that.
fn memory_of(pid: Pid) -> Result<(Arc<Process>, Option<Arc<Mm>>)> {
    let process = process(pid)?;
    let mm = proc::access::memory_of(&process, By::Files).map_err(|_| EACCES)?;
    Ok((process, mm))
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
    Some(match show {
        Show::Fd(pid, fd) => look_into(pid, |process| {
            let file = process.files()?.get_any(fd).map_err(|_| ENOENT)?;
            Ok(described(&file, fd))
        }),
        Show::Cwd(pid) => look_into(pid, |process| Ok(process.fs()?.cwd().into())),
        Show::RootLink(pid) => look_into(pid, |process| Ok(process.fs()?.root().into())),
        Show::Exe(pid) => {
            look_into(pid, |process| Ok(Place::clone(&*process.exe().ok_or(ENOENT)?)))
        }
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

impl ProcNode {
    fn name(&self) -> &[u8] {
        self.above.as_ref().map_or(b"", |(_, name)| name)
    }

    /// The process that it is about.
    fn about(&self) -> Option<Pid> {
        match self.show {
            Show::Process(pid)
            | Show::Thread(pid)
            | Show::Tasks(pid)
            | Show::Fds(pid)
            | Show::FdInfos(pid)
            | Show::Text(pid, _)
            | Show::ThreadText(pid, _)
            | Show::ProcessSetting(pid, _)
            | Show::ProcessRecords(pid, _)
            | Show::SpaceText(pid, _)
            | Show::Memory(pid)
            | Show::FailNth(pid)
            | Show::Fd(pid, _)
            | Show::Exe(pid)
            | Show::Cwd(pid)
            | Show::RootLink(pid) => Some(pid),
            _ => None,
        }
    }

    /// A process owns its files, but those that tell of memory which others must not see.
    fn owner(&self, perm: u32) -> (u32, u32) {
        let Some(process) = self.about().and_then(|pid| process(pid).ok()) else { return (0, 0) };
        let is_open = self.kind() == Kind::Dir && perm == 0o555;
        if !is_open && !process.mm().is_some_and(|mm| mm.is_dumpable()) {
            return (0, 0);
        }
        let cred = process.cred();
        (cred.euid, cred.egid)
    }

    /// `EACCES` for the text of a process that the caller may not look into, if it tells what is in
    /// there.
    fn check_secret(&self) -> Result<()> {
        let (Show::Text(pid, _) | Show::SpaceText(pid, _)) = self.show else { return Ok(()) };
        let of_descriptor = self
            .above
            .as_ref()
            .and_then(|(above, _)| downcast::<ProcNode>(above))
            .is_some_and(|above| matches!(above.show, Show::FdInfos(_)));
        if of_descriptor || process::is_secret(self.name()) {
            looked_into(pid)?;
        }
        Ok(())
    }
}

impl Inode for ProcNode {
    fn permits(&self, by: &Cred, mask: u32) -> Result<()> {
        let permitted = access::check(by, &self.ownership(), mask);
        match self.show {
            Show::FdInfos(pid) => looked_into(pid).and(permitted),
            // A process sees its own descriptors, whatever it has become.
            Show::Fds(pid)
                if process(pid).is_ok_and(|p| Arc::ptr_eq(&p, &proc::current_process())) =>
            {
                Ok(())
            }
            // The machine's settings are root's, whatever capabilities another one has.
            Show::Setting(_) | Show::DropCaches if mask & access::WRITE != 0 && by.euid != 0 => {
                Err(EACCES)
            }
            _ => permitted,
        }
    }

    fn stat(&self) -> Stat {
        let kind = self.kind();
        let perm = match kind {
            Kind::Dir => 0o555,
            Kind::Symlink => 0o777,
            _ if matches!(self.show, Show::Trigger | Show::DropCaches) => 0o200,
            // Reads of these stop all CPUs for a while.
            _ if matches!(self.show, Show::Audit | Show::InUse) => 0o400,
            _ if matches!(self.show, Show::Memory(_)) => 0o600,
            _ if matches!(
                self.show,
                Show::Setting(_) | Show::ProcessSetting(..) | Show::FailNth(_)
            ) =>
            {
                0o644
            }
            _ => 0o444,
        };
        let perm = match self.show {
            Show::Text(..) | Show::SpaceText(..) => perm & !process::hidden_bits(self.name()),
            Show::Fds(_) => 0o500,
            _ => perm,
        };
        let nlink = if kind == Kind::Dir { 2 } else { 1 };
        let (uid, gid) = self.owner(perm);
        Stat { nlink, uid, gid, ..Stat::plain(3, self.ino, kind, perm) }
    }

    fn kind(&self) -> Kind {
        match self.show {
            Show::System(_)
            | Show::Records(_)
            | Show::Mounts(_)
            | Show::Setting(_)
            | Show::Text(..)
            | Show::ThreadText(..)
            | Show::ProcessSetting(..)
            | Show::ProcessRecords(..)
            | Show::SpaceText(..)
            | Show::Memory(_)
            | Show::FailNth(_)
            | Show::Audit
            | Show::InUse
            | Show::DropCaches
            | Show::Trigger => Kind::File,
            Show::Fd(..) | Show::Exe(_) | Show::Cwd(_) | Show::RootLink(_) => Kind::Symlink,
            Show::SelfLink | Show::ThreadSelf | Show::MountsLink => Kind::Symlink,
            Show::Root
            | Show::Fixed(_)
            | Show::Cpus
            | Show::Process(_)
            | Show::Thread(_)
            | Show::Tasks(_)
            | Show::Fds(_)
            | Show::FdInfos(_) => Kind::Dir,
        }
    }

    fn fs_stat(&self) -> FsStat {
        FsStat::empty(u64::from(self.magic))
    }

    fn lookup(&self, name: &[u8]) -> Result<InodeRef> {
        let members = self.members().ok_or(ENOTDIR)?;
        let fixed =
            members.iter().find(|(fixed, _)| fixed.as_bytes() == name).map(|(_, show)| *show);
        let show = fixed.or_else(|| self.numbered(number(name)?)).ok_or(ENOENT)?;
        self.child(name, show)
    }

    fn list(&self, from: u64, each: &mut dyn FnMut(DirEntry<'_>) -> Flow) -> Result<()> {
        let members = self.members().ok_or(ENOTDIR)?;
        let names = [".", ".."].into_iter().chain(members.iter().map(|(name, _)| *name));
        let fixed = members.len() as u64 + 2;
        for (index, name) in names.enumerate().skip(from.min(fixed) as usize) {
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
        let mut first = i32::try_from(from.saturating_sub(fixed)).unwrap_or(i32::MAX);
        let kind = match self.show {
            Show::Fds(_) => Kind::Symlink,
            Show::FdInfos(_) => Kind::File,
            _ => Kind::Dir,
        };
        while let Some(number) = self.next_number(first) {
            let name = format!("{number}");
            let next = fixed + number as u64 + 1;
            let entry = DirEntry { ino: self.ino ^ next << 20, next, kind, name: name.as_bytes() };
            if each(entry) == Flow::Stop {
                return Ok(());
            }
            first = number + 1;
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
        let root = curproc::context()?.root();
        Ok(link_place(self.show).ok_or(EINVAL)??.path_from(Some(&root)))
    }

    fn jump(&self) -> Option<Result<Place>> {
        link_place(self.show)
    }

    fn open(self: Arc<Self>, flags: u32) -> Result<FileRef> {
        if let Show::Memory(pid) = self.show {
            let (_, mm) = memory_of(pid)?;
            return Ok(Arc::new(Memory { mm: mm.as_ref().map(Arc::downgrade) }));
        }
        if let Show::FailNth(tid) = self.show {
            let thread = proc::table::thread(tid).ok_or(ESRCH)?;
            return Ok(Arc::new(FailNth { thread: Arc::downgrade(&thread) }));
        }
        self.check_secret()?;
        if let Show::Mounts(records) = self.show {
            return Ok(Arc::new(Reader::of_mounts(records)));
        }
        let Some(subject) = self.subject() else { return Ok(self) };
        let writes = flags & abi::O_ACCMODE != abi::O_RDONLY;
        let set = match self.show {
            Show::Setting(setting) => Set::System(setting.set),
            Show::DropCaches => Set::System(settings::DROP_CACHES.set),
            Show::ProcessSetting(_, setting) => Set::Process(setting.set),
            _ => Set::System(|_: &str| Ok(())),
        };
        Ok(Arc::new(Reader::new(subject?, writes.then_some(set))))
    }

    fn truncate(&self, _len: u64) -> Result<()> {
        if self.kind() == Kind::File {
            return Ok(());
        }
        Err(EISDIR)
    }
}

impl FileOps for ProcNode {
    fn seekable(&self) -> bool {
        self.kind() == Kind::File
    }

    /// Every file is something else once it is open, but the trigger.
    fn read(&self, _file: &File, _at: u64, _to: &mut Sink<'_>) -> Result<usize> {
        Err(EISDIR)
    }

    fn write(&self, _file: &File, _at: Position, from: &mut Source<'_>) -> Result<(usize, u64)> {
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

    fn truncate(&self, len: u64) -> Result<()> {
        Inode::truncate(self, len)
    }
}

/// A process's memory, opened: what it had then. Of a process that runs another program since,
/// nothing is left in it.
struct Memory {
    mm: Option<Weak<Mm>>,
}

impl Memory {
    fn mm(&self) -> Option<Arc<Mm>> {
        self.mm.as_ref().and_then(Weak::upgrade).filter(|mm| !mm.is_left())
    }
}

impl FileOps for Memory {
    fn seekable(&self) -> bool {
        true
    }

    fn read(&self, _file: &File, at: u64, to: &mut Sink<'_>) -> Result<usize> {
        let Some(mm) = self.mm() else { return Ok(0) };
        let piece = IoVec { addr: at, len: to.left() };
        foreign_memory::read(&mm.space, foreign_memory::As::Debugger, &[piece], to).map_err(|_| EIO)
    }

    fn write(&self, _file: &File, at: Position, from: &mut Source<'_>) -> Result<(usize, u64)> {
        let Position::At(addr) = at else { return Err(EINVAL) };
        let Some(mm) = self.mm() else { return Ok((0, addr)) };
        let piece = IoVec { addr, len: from.left() };
        let done = foreign_memory::write(&mm.space, foreign_memory::As::Debugger, &[piece], from)
            .map_err(|_| EIO)?;
        Ok((done, addr + done as u64))
    }
}

/// `fail-nth` of a thread, opened: see `mem::fault`.
struct FailNth {
    thread: Weak<Thread>,
}

impl FileOps for FailNth {
    fn seekable(&self) -> bool {
        true
    }

    fn read(&self, _file: &File, at: u64, to: &mut Sink<'_>) -> Result<usize> {
        let nth = self
            .thread
            .upgrade()
            .and_then(|thread| thread.task())
            .ok_or(ESRCH)?
            .allocations
            .fail_nth
            .get();
        let text = format!("{nth}\n");
        to.put(text.as_bytes().get(at as usize..).unwrap_or(&[]))
    }

    /// For processes with CAP_SYS_RESOURCE: a failure that the kernel doesn't expect would be every
    /// process's.
    fn write(&self, _file: &File, _at: Position, from: &mut Source<'_>) -> Result<(usize, u64)> {
        curproc::cred().need(Caps::SYS_RESOURCE)?;
        let mut bytes = [0; settings::LONGEST + 1];
        let n = from.get(&mut bytes)?;
        let nth = settings::number(settings::text(&bytes[..n])?)?;
        self.thread
            .upgrade()
            .and_then(|thread| thread.task())
            .ok_or(ESRCH)?
            .allocations
            .fail_nth
            .set(nth);
        Ok((n, n as u64))
    }

    fn truncate(&self, _len: u64) -> Result<()> {
        Ok(())
    }
}
