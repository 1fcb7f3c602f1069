//! Process 1: how it starts and what happens when it ends.
//!
//! Process 1 starts as a thread with an empty address space whose first act, in its own context, is
//! to exec the program that the command line names. When it ends the machine goes off with its exit
//! code.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use super::access;
use super::curproc;
use super::exec::{self, Arguments, Strings};
use super::exit;
use super::limits::Limits;
use super::mm::{Layout, Marks, Mm};
use super::process::{ExitStatus, Holding, Inherited, Process};
use super::signal::{Actions, SigSet, SIGCHLD};
use super::table;
use super::thread::Thread;
use crate::arch::UserRegs;
use crate::charge::{self, Account, User};
use crate::cred::Cred;
use crate::errno::{Result, EACCES, ENOENT, ENOEXEC, ENOMEM};
use crate::fs;
use crate::fs::context::FsContext;
use crate::fs::fdtable::{FdTable, OnExec};
use crate::fs::file;
use crate::fs::path::{resolve, Follow, Start};
use crate::trace::TRACE;
use crate::{sched, vm};
use linux_raw_sys::general::O_RDWR;
use machine::PAGE_SIZE;

/// What the command line asks for; `None` before the start.
static REQUEST: spin::Once<Request> = spin::Once::new();

/// Whether the VM system is audited before the machine goes off; a `panic` tells what is wrong.
static AUDIT: AtomicBool = AtomicBool::new(false);

/// The exit code of a machine that lacks something it was told to start with, as `./uvm` has it.
pub const NOT_STARTED: i32 = 69;

/// Programs that are looked for if none is named.
const USUAL: [&[u8]; 5] = [b"/init", b"/sbin/init", b"/etc/init", b"/bin/init", b"/bin/sh"];

struct Request {
    cmdline: String,
    argv: Vec<Vec<u8>>,
    env: Vec<Vec<u8>>,
    cwd: Option<Vec<u8>>,
    /// User and group that the program runs as; none: the superuser.
    user: Option<(u32, u32)>,
}

/// Memory for each thread that may exist: what the kernel itself needs for one takes up no more
/// than a part of memory.
const PAGES_PER_THREAD: u64 = 32;

/// The kernel's command line.
pub fn command_line() -> &'static str {
    REQUEST.get().map_or("", |request| &request.cmdline)
}

/// Starts process 1 by the kernel's command line. File systems are mounted and devices are there.
pub fn start_init(cmdline: &str) -> Result<()> {
    REQUEST.call_once(|| parse(cmdline));
    let limit = (vm::stats().total_pages / PAGES_PER_THREAD).max(128);
    table::set_limit(limit as usize);
    let pid = table::allocate(table::Asker::Root)?;
    let fs = FsContext::new(fs::mount::root());
    let files = Arc::new(FdTable::new());
    let free = vm::stats().free_pages as usize * PAGE_SIZE;
    charge::begin(free);
    // As on Linux: one for each 10 KiB.
    file::set_most(free / 10240);
    let account = Account::new(User::of(0));
    let from = Inherited {
        holding: Holding::new(&account, 0, usize::MAX)?,
        account,
        files,
        fs: Arc::new(fs),
        cred: Arc::new(Cred::root()),
        limits: Limits::initial(limit / 2),
        actions: Actions::new(),
    };
    let process = Arc::new(Process::new(pid, SIGCHLD.number(), from));
    let layout =
        Layout { heap_start: 0, heap_end: 0, marks: Marks::default(), auxv: [].into(), exe: None };
    let mm = Mm::new(vm::space_new()?, layout);
    let thread = Arc::new(Thread::new(
        pid,
        process.clone(),
        mm,
        SigSet::EMPTY,
        *b"init\0\0\0\0\0\0\0\0\0\0\0\0",
        None,
    ));
    thread.is_init.store(true, Ordering::Relaxed);
    process.group.lock().threads.push(thread.clone());
    table::insert(process, thread.clone(), 0, None);
    let task = sched::new_user(thread.clone(), &UserRegs::new(0, 0))?;
    thread.set_task(&task);
    thread.poke();
    sched::start(&task);
    Ok(())
}

/// The first act of process 1: console, folder, program. Failure ends it with the exit code a shell
/// would give.
pub fn exec_first(regs: &mut UserRegs) {
    let Some(request) = REQUEST.get() else { return };
    if mount_all(request).is_err() {
        return exit::exit_group_later(ExitStatus::Code(NOT_STARTED as u8));
    }
    let mut argv = request.argv.clone();
    if argv.is_empty() {
        let there = USUAL.iter().find(|name| exec::open(name).is_ok());
        argv.push(there.unwrap_or(&USUAL[0]).to_vec());
    }
    if let Err(errno) = try_exec(regs, request, &argv) {
        let name = String::from_utf8_lossy(&argv[0]);
        let why = match errno {
            ENOENT => ": no such file",
            EACCES => ": permission denied",
            ENOEXEC => ": no program for this machine",
            ENOMEM => ": not enough memory",
            _ => "",
        };
        crate::println!("uvm: can't run {name}{why} ({errno:?})");
        let code = if errno == ENOENT { 127 } else { 126 };
        exit::exit_group_later(ExitStatus::Code(code));
    }
}

/// The console as standard input, output and error, and as the terminal of the first session.
fn open_console() -> Result<()> {
    let console = fs::open_kernel("/dev/console", O_RDWR)?;
    let files = curproc::files()?;
    for _ in 0..3 {
        files.insert(console.clone(), OnExec::Keep)?;
    }
    super::terminal::adopt(curproc::pid());
    Ok(())
}

/// File systems and swap areas that the command line names; what can't be had is said.
fn mount_all(request: &Request) -> Result<()> {
    fs::mount_named(&request.cmdline)?;
    let context = curproc::context()?;
    context.set_root(fs::mount::root());
    context.set_cwd(fs::mount::root());
    fs::swap::on_named(&request.cmdline)
}

fn try_exec(regs: &mut UserRegs, request: &Request, argv: &[Vec<u8>]) -> Result<()> {
    open_console()?;
    if let Some(cwd) = &request.cwd {
        let context = curproc::context()?;
        match resolve(&Start::cwd(&context), cwd, Follow::Yes).and_then(|place| place.dir()) {
            Ok(dir) => context.set_cwd(dir),
            // A disk need not have it.
            Err(ENOENT) => {}
            Err(errno) => return Err(errno),
        }
    }
    let path = find_program(&argv[0], &request.env)?;
    let file = exec::open(&path)?;
    let mut arguments = Arguments { argv: Strings::default(), envp: Strings::default() };
    argv.iter().try_for_each(|word| arguments.argv.push(word))?;
    request.env.iter().try_for_each(|word| arguments.envp.push(word))?;
    if let Some((uid, gid)) = request.user {
        access::change_cred(|cred| {
            let before = cred.clone();
            (cred.uid, cred.euid, cred.suid, cred.fsuid) = (uid, uid, uid, uid);
            (cred.gid, cred.egid, cred.sgid, cred.fsgid) = (gid, gid, gid, gid);
            cred.follow_ids(&before);
            Ok(())
        })?;
    }
    exec::exec(regs, file, &path, arguments)
}

/// Looks a program without a slash up in PATH.
fn find_program(name: &[u8], env: &[Vec<u8>]) -> Result<Vec<u8>> {
    if name.contains(&b'/') {
        return Ok(name.to_vec());
    }
    let path = env
        .iter()
        .find_map(|word| word.strip_prefix(b"PATH="))
        .unwrap_or(b"/usr/bin:/bin:/sbin:/usr/sbin");
    for folder in path.split(|&byte| byte == b':') {
        let candidate = [folder, b"/", name].concat();
        if exec::open(&candidate).is_ok() {
            return Ok(candidate);
        }
    }
    Err(ENOENT)
}

/// Process 1 has ended: its exit code is the machine's.
pub fn finish(status: ExitStatus) -> ! {
    let code = match status {
        ExitStatus::Code(code) => i32::from(code),
        ExitStatus::Killed(signal) => 128 + signal.number(),
    };
    if AUDIT.load(Ordering::Relaxed) {
        if let Err(wrong) = crate::vm::audit() {
            panic!("audit: {wrong}");
        }
    }
    fs::shut_down();
    sched::shut_down(code)
}

fn parse(cmdline: &str) -> Request {
    let mut words = cmdline.split_ascii_whitespace();
    let mut request = Request {
        cmdline: cmdline.into(),
        argv: Vec::new(),
        env: Vec::new(),
        cwd: None,
        user: None,
    };
    for word in words.by_ref() {
        if word == "--" {
            break;
        }
        if let Some(value) = word.strip_prefix("env=") {
            request.env.push(decode(value));
        } else if let Some(value) = word.strip_prefix("cwd=") {
            request.cwd = Some(decode(value));
        } else if let Some(value) = word.strip_prefix("user=") {
            let ids = value.split_once(':');
            request.user = ids.and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
        } else if word == "trace" {
            TRACE.store(true, Ordering::Relaxed);
        } else if word == "audit" {
            AUDIT.store(true, Ordering::Relaxed);
        }
    }
    request.argv = words.map(decode).collect();
    if request.env.is_empty() {
        request.env = [
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME=/",
            "TERM=linux",
        ]
        .map(|word| word.as_bytes().to_vec())
        .into();
    }
    request
}

/// Undoes percent-encoding; a bad escape is taken as it stands. No word has a zero byte: one is how
/// an empty word is given.
fn decode(word: &str) -> Vec<u8> {
    let bytes = word.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let escape = bytes.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
        let value = escape
            .and_then(|hex| core::str::from_utf8(hex).ok())
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match value {
            Some(value) => {
                out.extend((value != 0).then_some(value));
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    out
}
