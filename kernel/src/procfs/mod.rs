//! `/proc`: what the kernel knows about processes and itself, as text. And what there is of `/sys`:
//! the CPUs and the disks.
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
mod disks;
mod maps;
mod memory;
mod memory_files;
mod net;
mod process;
mod settings;
mod system;
mod target;
pub mod text;

use alloc::format;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use linux_raw_sys::general as abi;

use self::memory_files::{Arguments, AuxiliaryVector, Environment, FailNth, Held, Memory, PageMap};
use self::process::{Part, PartOf};
use self::target::{Scope, Who};
use self::text::{Reader, Records, Set, Subject};
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
use crate::proc::pidfd::PidFd;
use crate::proc::{self, Pid, Process};
use crate::uio::{Sink, Source};

/// A text of the whole system.
type SystemText = fn() -> String;

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
    Disk(disks::Part),
    System(SystemText),
    /// A text of the whole system that grows with what programs do.
    Records(Records),
    Setting(&'static Setting),
    /// A process's directory, or a thread's: as a process's, without threads of its own, so that
    /// paths here have few components.
    Target(Who),
    /// What is there.
    Part(Who, &'static PartOf),
    /// A link to what a descriptor of a process is for, and what is known of that.
    Fd(Pid, i32),
    FdInfo(Pid, i32),
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
    static SYSTEM: &[Member] = &[Member { name: "cpu", show: Show::Cpus }];
    static VIRTUAL: &[Member] = &[Member { name: "block", show: Show::Disk(disks::Part::All) }];
    static DEVICES: &[Member] = &[dir("system", SYSTEM), dir("virtual", VIRTUAL)];
    static ROOT: &[Member] = &[
        Member { name: "block", show: disks::BY_NAME },
        dir("class", &[Member { name: "block", show: disks::BY_CLASS }]),
        dir("dev", &[Member { name: "block", show: disks::BY_NUMBER }]),
        dir("devices", DEVICES),
    ];
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
    Ok(Who { pid, scope: Scope::Process }.find()?.process)
}

/// `/proc/PID` as an open file.
struct ProcessFolder(Arc<PidFd>);

impl FileOps for ProcessFolder {
    fn read(&self, _file: &File, _at: u64, _to: &mut Sink<'_>) -> Result<usize> {
        Err(EISDIR)
    }
}

/// The process that an open `/proc/PID` is about; `None` for another file.
pub fn pidfd_of_folder(file: &File) -> Option<&PidFd> {
    downcast_file::<ProcessFolder>(file.io()).map(|folder| &*folder.0)
}

/// A number without leading zeros or signs.
fn number(name: &[u8]) -> Option<i32> {
    let text = core::str::from_utf8(name).ok()?;
    let plain =
        text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| plain)
}

impl ProcNode {
    /// The number of the node that an entry of this directory leads to.
    fn ino_of(&self, name: &[u8]) -> u64 {
        let hash = |sum: u64, &byte: &u8| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        name.iter().fold(self.ino ^ 0xcbf2_9ce4_8422_2325, hash) & 0xffff_ffff_ffff
    }

    fn child(&self, name: &[u8], show: Show) -> Result<InodeRef> {
        let above: InodeRef = self.me.upgrade().ok_or(ENOENT)?;
        let ino = self.ino_of(name);
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
            Show::Disk(part) => return part.members(),
            Show::Target(who) => {
                process::parts(who.scope).map(|part| (part.name, Show::Part(who, part))).collect()
            }
            Show::Part(_, part) if part.kind() == Kind::Dir => Vec::new(),
            _ => return None,
        })
    }

    /// The first numbered entry of a directory that isn't below `from`.
    fn next_number(&self, from: i32) -> Option<i32> {
        match self.show {
            Show::Root => proc::table::next_process(from),
            Show::Part(who, PartOf { part: Part::Tasks, .. }) => {
                proc::table::next_thread_of(&process(who.pid).ok()?, from)
            }
            Show::Part(who, _) => {
                let files = process(who.pid).and_then(|process| process.files()).ok()?;
                files.next_used(from as usize).map(|fd| fd as i32)
            }
            _ => None,
        }
    }

    fn numbered(&self, number: i32) -> Option<Show> {
        match self.show {
            Show::Root => {
                let who = Who { pid: number, scope: Scope::Process };
                who.find().ok().map(|_| Show::Target(who))
            }
            Show::Part(who, part) => match part.part {
                Part::Tasks => {
                    let process = process(who.pid).ok()?;
                    let own = Who { pid: number, scope: Scope::Thread };
                    let is_own = Arc::ptr_eq(&own.find().ok()?.process, &process);
                    is_own.then_some(Show::Target(own))
                }
                Part::Fds => open_file(who.pid, number).ok().map(|_| Show::Fd(who.pid, number)),
                Part::FdInfos => {
                    open_file(who.pid, number).ok().map(|_| Show::FdInfo(who.pid, number))
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// What the file's text is about; `None` if this is no file of text.
    fn subject(&self) -> Option<Result<Subject>> {
        Some(match self.show {
            Show::System(text) => Ok(Subject::System(text)),
            Show::Records(records) => Ok(Subject::Records(records)),
            Show::Disk(disks::Part::Text(index, text)) => Ok(Subject::Disk(index, text)),
            Show::Audit => Ok(Subject::System(system::audit)),
            Show::InUse => Ok(Subject::System(memory::in_use)),
            Show::DropCaches => Ok(Subject::System(settings::DROP_CACHES.show)),
            Show::Setting(setting) => Ok(Subject::System(setting.show)),
            Show::FdInfo(pid, fd) => {
                looked_into(pid).map(|process| Subject::Descriptor(Arc::downgrade(&process), fd))
            }
            Show::Part(who, part) => {
                let target = || who.find().map(|target| target.open());
                match part.part {
                    Part::Text(text) => target().map(|target| Subject::Text(target, text)),
                    Part::Setting(setting) => {
                        target().map(|target| Subject::Text(target, setting.show))
                    }
                    Part::Records(records) | Part::Mounts(records) => {
                        target().map(|target| Subject::TargetRecords(target, records))
                    }
                    Part::Space(records) => memory_of(who.pid).map(|(process, mm)| {
                        let mm = mm.as_ref().map(Arc::downgrade);
                        Subject::Space(Arc::downgrade(&process), mm, records)
                    }),
                    _ => return None,
                }
            }
            _ => return None,
        })
    }

    /// What becomes of what is written to the file's text.
    fn set(&self) -> Set {
        match self.show {
            Show::Setting(setting) => Set::System(setting.set),
            Show::DropCaches => Set::System(settings::DROP_CACHES.set),
            Show::Part(_, PartOf { part: Part::Setting(setting), .. }) => Set::Target(setting.set),
            Show::Part(..) | Show::FdInfo(..) => Set::Refused(EINVAL),
            _ => Set::Refused(EIO),
        }
    }
}

/// A process, if the caller may look into it.
fn looked_into(pid: Pid) -> Result<Arc<Process>> {
    memory_of(pid).map(|(process, _)| process)
}

/// What `look` finds in a process, if the caller may look into it.
fn look_into<T>(process: &Process, look: impl Fn(&Process) -> Result<T>) -> Result<T> {
    let found = proc::access::look_into(process, By::Files, || look(process));
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
        Show::Disk(part) => return part.link(),
        _ => return None,
    })
}

/// The place that a link leads to, where it is one of a process.
fn link_place(show: Show) -> Option<Result<Place>> {
    let pid = match show {
        Show::Fd(pid, _) => pid,
        Show::Part(who, part) if part.kind() == Kind::Symlink => who.pid,
        _ => return None,
    };
    let look = |process: &Process| match show {
        Show::Fd(_, fd) => {
            let file = process.files()?.get_any(fd).map_err(|_| ENOENT)?;
            Ok(described(&file, fd))
        }
        Show::Part(_, PartOf { part: Part::Cwd, .. }) => Ok(process.fs()?.cwd().into()),
        Show::Part(_, PartOf { part: Part::Root, .. }) => Ok(process.fs()?.root().into()),
        _ => Ok(process.exe().ok_or(ENOENT)?.place.clone()),
    };
    Some(process(pid).and_then(|process| look_into(&process, look)))
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
    /// The process that it is about.
    fn about(&self) -> Option<Pid> {
        match self.show {
            Show::Target(who) | Show::Part(who, _) => Some(who.pid),
            Show::Fd(pid, _) | Show::FdInfo(pid, _) => Some(pid),
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

    /// Whether it is below `/proc/sys`, or in `/sys`.
    fn is_in_sys(&self) -> bool {
        /// The most directories above one that is.
        const DEEPEST: usize = 4;
        if self.magic == abi::SYSFS_MAGIC {
            return true;
        }
        let Some((above, name)) = &self.above else { return false };
        let (mut above, mut name) = (above.clone(), name.clone());
        for _ in 0..DEEPEST {
            let Some((higher, its_name)) = above.parent() else { return name == b"sys" };
            (above, name) = (higher, its_name);
        }
        false
    }

    /// What may be done with one there: root's are the machine's settings, whatever capabilities
    /// another one has, and what can't be set root can't set.
    fn permits_in_sys(&self, by: &Cred, mask: u32) -> Result<()> {
        let bits = self.stat().perm;
        let bits = if by.euid == 0 { bits >> 6 } else { bits };
        if mask & !bits & 7 == 0 {
            Ok(())
        } else {
            Err(EACCES)
        }
    }
}

impl Inode for ProcNode {
    fn permits(&self, by: &Cred, mask: u32) -> Result<()> {
        if self.is_in_sys() {
            return self.permits_in_sys(by, mask);
        }
        let permitted = access::check(by, &self.ownership(), mask);
        let Show::Part(who, part) = self.show else { return permitted };
        let is_own = || process(who.pid).is_ok_and(|p| Arc::ptr_eq(&p, &proc::current_process()));
        match part.part {
            Part::FdInfos => looked_into(who.pid).and(permitted),
            // A process sees its own descriptors, and names its own threads, whatever it has
            // become.
            Part::Fds if is_own() => Ok(()),
            _ if part.is_own_threads() && mask & access::EXECUTE == 0 && is_own() => Ok(()),
            _ => permitted,
        }
    }

    fn stat(&self) -> Stat {
        let kind = self.kind();
        let perm = match self.show {
            Show::Part(_, part) => part.perm,
            Show::Fd(pid, fd) => open_file(pid, fd).map_or(0o777, |file| {
                let bit = |is, bits| if is { bits } else { 0 };
                bit(file.is_readable(), 0o500) | bit(file.is_writable(), 0o300)
            }),
            Show::Trigger | Show::DropCaches => 0o200,
            // Reads of these stop all CPUs for a while.
            Show::Audit | Show::InUse => 0o400,
            Show::Setting(_) => 0o644,
            _ => match kind {
                Kind::Dir => 0o555,
                Kind::Symlink => 0o777,
                _ => 0o444,
            },
        };
        let nlink = if kind == Kind::Dir { 2 } else { 1 };
        let (uid, gid) = self.owner(perm);
        Stat { nlink, uid, gid, ..Stat::plain(3, self.ino, kind, perm) }
    }

    fn kind(&self) -> Kind {
        self.show.kind()
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
            let (kind, ino) = match index.checked_sub(2).and_then(|index| members.get(index)) {
                Some((_, show)) => (show.kind(), self.ino_of(name.as_bytes())),
                None => (Kind::Dir, self.ino),
            };
            let entry = DirEntry { ino, next: index as u64 + 1, kind, name: name.as_bytes() };
            if each(entry) == Flow::Stop {
                return Ok(());
            }
        }
        let mut first = i32::try_from(from.saturating_sub(fixed)).unwrap_or(i32::MAX);
        let kind = match self.show {
            Show::Part(_, PartOf { part: Part::Fds, .. }) => Kind::Symlink,
            Show::Part(_, PartOf { part: Part::FdInfos, .. }) => Kind::File,
            _ => Kind::Dir,
        };
        while let Some(number) = self.next_number(first) {
            let name = format!("{number}");
            let next = fixed + number as u64 + 1;
            let (ino, name) = (self.ino_of(name.as_bytes()), name.as_bytes());
            let entry = DirEntry { ino, next, kind, name };
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
        if let Show::Target(who @ Who { scope: Scope::Process, .. }) = self.show {
            let process = process(who.pid)?;
            return Ok(Arc::new(ProcessFolder(PidFd::of(&process).clone())));
        }
        if let Show::Part(who, part) = self.show {
            let held = || memory_of(who.pid).map(|(_, mm)| Held::new(&mm));
            let opened: FileRef = match part.part {
                Part::Memory => Arc::new(Memory(held()?)),
                Part::Environment => Arc::new(Environment(held()?)),
                Part::AuxiliaryVector => Arc::new(AuxiliaryVector(held()?)),
                Part::PageMap => Arc::new(PageMap::new(held()?)),
                Part::Arguments => Arc::new(Arguments(Arc::downgrade(&process(who.pid)?))),
                Part::FailNth => {
                    let thread = proc::table::thread(who.pid).ok_or(ESRCH)?;
                    Arc::new(FailNth(Arc::downgrade(&thread)))
                }
                _ => return self.open_text(flags),
            };
            return Ok(opened);
        }
        self.open_text(flags)
    }

    fn truncate(&self, _len: u64) -> Result<()> {
        if self.kind() == Kind::File {
            return Ok(());
        }
        Err(EISDIR)
    }
}

impl ProcNode {
    fn open_text(self: Arc<Self>, flags: u32) -> Result<FileRef> {
        if let Show::Part(who, PartOf { is_secret: true, .. }) = self.show {
            looked_into(who.pid)?;
        }
        let Some(subject) = self.subject() else { return Ok(self) };
        let writes = flags & abi::O_ACCMODE != abi::O_RDONLY;
        let reader = Reader::new(subject?, writes.then(|| self.set()));
        Ok(Arc::new(match self.show {
            Show::Part(_, PartOf { part: Part::Mounts(_), .. }) => reader.of_mounts(),
            _ => reader,
        }))
    }
}

impl Show {
    fn kind(self) -> Kind {
        match self {
            Show::Part(_, part) => part.kind(),
            Show::Disk(part) => part.kind(),
            Show::System(_)
            | Show::Records(_)
            | Show::Setting(_)
            | Show::FdInfo(..)
            | Show::Audit
            | Show::InUse
            | Show::DropCaches
            | Show::Trigger => Kind::File,
            Show::Fd(..) | Show::SelfLink | Show::ThreadSelf | Show::MountsLink => Kind::Symlink,
            Show::Root | Show::Fixed(_) | Show::Cpus | Show::Target(_) => Kind::Dir,
        }
    }
}

impl FileOps for ProcNode {
    fn seekable(&self) -> bool {
        self.kind() == Kind::File
    }

    /// Every file is something else once it is open, but the trigger.
    fn read(&self, _file: &File, _at: u64, _to: &mut Sink<'_>) -> Result<usize> {
        Err(if self.kind() == Kind::File { EIO } else { EISDIR })
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
        if n == 1 && letter == *b"r" {
            let page = crate::vm::new_page().map_err(|_| ENOMEM)?;
            crate::mem::direct::read_astray(page.page());
            crate::vm::give_back_page(page);
        }
        if n == 1 && !b"clhr".contains(&letter[0]) {
            return Err(EINVAL);
        }
        Ok((n + from.skip(from.left()), 0))
    }

    fn truncate(&self, len: u64) -> Result<()> {
        Inode::truncate(self, len)
    }
}
