//! Running another program in a process.
//!
//! Order matters: the new program is found, checked, and built in an address space of its own,
//! stack and all; only when nothing can fail any more do the other threads go, and only then does
//! the old space. Whatever goes wrong before leaves the caller as it was.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Deref;
use core::sync::atomic::Ordering;

use super::clone::Flags;
use super::curproc;
use super::elf::{self, Image, Placement};
use super::image::{self, Loaded, Startup, WORK};
use super::limits::{RLIMIT_NPROC, RLIMIT_STACK};
use super::mm::{Layout, Marks, Mm};
use super::process::Process;
use super::signal::{AltStack, SIGCHLD};
use super::thread::Thread;
use super::{access, current_thread, exit, futex_pi, table, timer, trace};
use crate::arch::UserRegs;
use crate::charge::{self, Charge, Counted};
use crate::cred::caps::Gains;
use crate::errno::{
    Result, E2BIG, EACCES, EAGAIN, EFAULT, EINTR, EINVAL, ELIBBAD, ELOOP, ENAMETOOLONG, ENOEXEC,
    ENOMEM, ERESTARTNOINTR,
};
use crate::fs;
use crate::fs::fdtable::FdTable;
use crate::fs::file::File;
use crate::fs::inode::Kind;
use crate::fs::lease::Unwritten;
use crate::fs::path::{resolve, Follow, Place, Start};
use crate::mem::fault::Room;
use crate::{sched, user, vm};

/// The longest single argument, with its zero byte.
const STRING_MAX: usize = 128 << 10;
/// Room for arguments that every program has, and that none can exceed.
const TOTAL_MIN: u64 = 128 << 10;
const TOTAL_MAX: u64 = 6 << 20;
/// How many scripts may run scripts.
const SCRIPT_DEPTH: usize = 5;
/// How much of a file is read to find out what it is.
const HEAD: usize = 512;
/// How much of a script's first line counts.
const LINE_MAX: usize = 256;

/// A list of strings, each ended by a zero byte.
#[derive(Default)]
pub struct Strings {
    pub bytes: Vec<u8>,
    pub count: usize,
    /// Of the process that gives them, as long as they are on their way.
    charge: Option<Charge>,
}

impl Strings {
    /// Adds a string; its end is added too.
    pub fn push(&mut self, string: &[u8]) -> Result<()> {
        self.reserve(string.len() + 1)?;
        self.bytes.extend_from_slice(string);
        self.bytes.push(0);
        self.count += 1;
        Ok(())
    }

    fn reserve(&mut self, more: usize) -> Result<()> {
        if self.bytes.capacity() - self.bytes.len() >= more {
            return Ok(());
        }
        let grown =
            (2 * self.bytes.capacity()).max(self.bytes.len() + more) - self.bytes.capacity();
        match &mut self.charge {
            Some(charge) => charge.grow(grown).map_err(|_| ENOMEM)?,
            None => self.charge = Some(charge::take(grown).map_err(|_| ENOMEM)?),
        }
        Ok(self.bytes.room(more)?)
    }

    /// What they cost on the new stack: the bytes and a pointer each.
    fn cost(&self) -> u64 {
        (self.bytes.len() + 8 * (self.count + 1)) as u64
    }

    /// Puts `first` in the place of the first string.
    fn replace_first(&mut self, first: Strings) -> Result<()> {
        let rest = self.bytes.iter().position(|&byte| byte == 0).map_or(0, |at| at + 1);
        let mut all = first;
        all.reserve(self.bytes.len() - rest)?;
        all.bytes.extend_from_slice(&self.bytes[rest..]);
        all.count += self.count.saturating_sub(1);
        *self = all;
        Ok(())
    }
}

/// What a program is started with.
pub struct Arguments {
    pub argv: Strings,
    pub envp: Strings,
}

/// Reads the two lists that `execve` names.
pub fn read_arguments(argv: u64, envp: u64) -> Result<Arguments> {
    let limit = (current_thread().process.limit(RLIMIT_STACK) / 4).clamp(TOTAL_MIN, TOTAL_MAX);
    let mut argv = read_strings(argv, limit)?;
    if argv.count == 0 {
        argv.push(b"")?;
    }
    let envp = read_strings(envp, limit - argv.cost().min(limit))?;
    Ok(Arguments { argv, envp })
}

fn read_strings(mut list: u64, limit: u64) -> Result<Strings> {
    let mut strings = Strings::default();
    if list == 0 {
        return Ok(strings);
    }
    loop {
        let pointer: u64 = user::get(list)?;
        if pointer == 0 {
            return Ok(strings);
        }
        let string = user::read_cstr(pointer, STRING_MAX).map_err(|errno| match errno {
            ENAMETOOLONG => E2BIG,
            other => other,
        })?;
        strings.push(&string)?;
        if sched::work_done(string.len() + WORK) && sched::is_leaving() {
            return Err(EINTR);
        }
        if strings.cost() > limit {
            return Err(E2BIG);
        }
        list = list.checked_add(8).ok_or(EFAULT)?;
    }
}

/// A program that has been found and checked.
struct Program {
    file: Executable,
    image: Image,
    interpreter: Option<(Executable, Image)>,
}

/// A program's file, which nothing writes to.
pub struct Executable {
    file: Arc<File>,
    unwritten: Option<Unwritten>,
}

impl Deref for Executable {
    type Target = Arc<File>;

    fn deref(&self) -> &Arc<File> {
        &self.file
    }
}

/// The file that an address space runs.
pub struct Running {
    pub place: Place,
    _unwritten: Option<Unwritten>,
}

/// Whether others may look into a new program's memory, if their ids allow it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Openness {
    Dumpable,
    /// A program that may be run and not read, or one that runs with other ids.
    Hidden,
}

/// Runs `file` in the running process. `path` is what the program is told it was started as. On
/// success the registers are those of the new program; on failure nothing has changed.
pub fn exec(
    regs: &mut UserRegs,
    file: Executable,
    path: &[u8],
    mut arguments: Arguments,
) -> Result<()> {
    let own = super::current_process();
    if own.exceeds_nproc.swap(false, Ordering::Relaxed) {
        let tasks = own.account().user().count(Counted::Tasks) as u64;
        if tasks > own.limit(RLIMIT_NPROC) {
            return Err(EAGAIN);
        }
    }
    let mut name = path.to_vec();
    let mut program = find(file, &mut name, &mut arguments)?;
    let thread = &current_thread();
    let tid = thread.tid();
    let (mm, openness, loaded, sp) = build(thread, &mut program, path, &arguments)?;
    let files = match own_files(thread) {
        Ok(files) => files,
        Err(errno) => {
            switch_back(thread, Some(mm));
            return Err(errno);
        }
    };
    if let Err(errno) = detach_threads(thread) {
        switch_back(thread, Some(mm));
        return Err(errno);
    }
    let old = thread.pending_mm.lock().take();
    if let Some(old) = &old {
        release_words(thread, old, &mm);
        futex_pi::release_all(thread, false);
    }
    commit(thread, &name, files, (&mm, openness));
    if let Some(old) = old {
        old.leave(&thread.process);
    }
    let call = regs.call_number();
    *regs = UserRegs::new(loaded.entry, sp);
    regs.set_call(call);
    regs.load_bases();
    sched::fpu_reset();
    let watch = &sched::current().watch;
    watch.clear();
    watch.load();
    trace::execed(thread, regs, tid);
    Ok(())
}

/// Opens the program that a path names, relative to the running process.
pub fn open(path: &[u8]) -> Result<Executable> {
    open_from(&Start::cwd(&*curproc::context()?), path, Follow::Yes)
}

/// Opens the program that a path from a given folder names.
pub fn open_from(start: &Start, path: &[u8], follow: Follow) -> Result<Executable> {
    open_program(resolve(start, path, follow)?)
}

/// Opens a program. It is judged before: to open a fifo or a terminal does something to it.
///
/// # Errors
/// `EACCES` for what isn't a plain file or that the running process may not execute; `ETXTBSY` for
/// what is open for writing.
pub fn open_program(place: Place) -> Result<Executable> {
    let is_forbidden = place.mount_flags() & linux_raw_sys::general::MS_NOEXEC != 0;
    if place.inode.kind() != Kind::File || is_forbidden {
        return Err(EACCES);
    }
    place.inode.permits(&curproc::cred(), fs::access::EXECUTE)?;
    let unwritten = Unwritten::new(&place.inode)?;
    Ok(Executable { file: File::open(place, 0)?, unwritten })
}

fn size(file: &File) -> Result<u64> {
    Ok(file.inode().stat().size)
}

/// Follows scripts to an ELF file, rewriting the arguments on the way.
fn find(mut file: Executable, name: &mut Vec<u8>, arguments: &mut Arguments) -> Result<Program> {
    for _ in 0..SCRIPT_DEPTH {
        let mut head = [0; HEAD];
        let length = file.read_kernel(0, &mut head)?;
        let head = &head[..length];
        if !head.starts_with(b"#!") {
            return program(file, head);
        }
        let (interpreter, argument) = parse_script(head)?;
        let mut first = Strings::default();
        first.push(interpreter)?;
        if let Some(argument) = argument {
            first.push(argument)?;
        }
        first.push(name)?;
        arguments.argv.replace_first(first)?;
        *name = interpreter.to_vec();
        file = open(interpreter)?;
    }
    Err(ELOOP)
}

/// Without the blanks and tabs around it.
fn trim_blanks(text: &[u8]) -> &[u8] {
    let is_text = |&byte: &u8| byte != b' ' && byte != b'\t';
    let first = text.iter().position(is_text).unwrap_or(text.len());
    let end = text.iter().rposition(is_text).map_or(first, |last| last + 1);
    &text[first..end]
}

/// The interpreter of a script and its one argument.
fn parse_script(head: &[u8]) -> Result<(&[u8], Option<&[u8]>)> {
    let line = &head[2..head.len().min(LINE_MAX)];
    let line = match line.iter().position(|&byte| byte == b'\n') {
        Some(end) => &line[..end],
        None if head.len() < LINE_MAX => line,
        None => line
            .iter()
            .rposition(|&byte| byte == b' ' || byte == b'\t')
            .map(|end| &line[..end])
            .ok_or(ENOEXEC)?,
    };
    let line = trim_blanks(line);
    let end = line.iter().position(|&byte| byte == b' ' || byte == b'\t').unwrap_or(line.len());
    let (interpreter, rest) = line.split_at(end);
    if interpreter.is_empty() || interpreter.contains(&0) {
        return Err(ENOEXEC);
    }
    let rest = trim_blanks(rest);
    Ok((interpreter, (!rest.is_empty()).then_some(rest)))
}

fn program(file: Executable, head: &[u8]) -> Result<Program> {
    let image = elf::read(&file, head, size(&file)?)?;
    let interpreter = match &image.interpreter {
        None => None,
        Some(path) => {
            let file = open(path)?;
            let mut head = [0; HEAD];
            let length = file.read_kernel(0, &mut head)?;
            let image =
                elf::read(&file, &head[..length], size(&file)?).map_err(|errno| match errno {
                    ENOEXEC => ELIBBAD,
                    other => other,
                })?;
            if image.placement == Placement::Fixed {
                return Err(ELIBBAD);
            }
            Some((file, image))
        }
    };
    Ok(Program { file, image, interpreter })
}

/// Builds the new address space and moves the thread into it; the old one waits in `pending_mm`.
fn build(
    thread: &Thread,
    program: &mut Program,
    path: &[u8],
    arguments: &Arguments,
) -> Result<(Arc<Mm>, Openness, Loaded, u64)> {
    let space = vm::space_new()?;
    let stack_limit = thread.process.limit(RLIMIT_STACK);
    let unwritten = program.file.unwritten.take();
    let interpreter = program.interpreter.as_ref().map(|(file, image)| (&***file, image));
    let loaded = image::map(&space, (&*program.file, &program.image), interpreter, stack_limit)?;
    let layout = Layout {
        heap_start: loaded.heap,
        heap_end: loaded.heap,
        marks: Marks::default(),
        auxv: [].into(),
        exe: Some(Arc::new(Running { place: program.file.place().clone(), _unwritten: unwritten })),
    };
    let before = thread.process.cred();
    let cred = before.after_exec(gains(thread));
    let mm = Mm::new(space, layout);
    mm.promise()?;
    // A debugger would show all that is mapped.
    let may_read = |file: &Arc<File>| {
        fs::access::check(&cred, &file.inode().ownership(), fs::access::READ).is_ok()
    };
    let readable = may_read(&program.file)
        && program.interpreter.as_ref().is_none_or(|(file, _)| may_read(file));
    // Not while descriptors are open that the old program's end closes.
    mm.set_dumpable(false);
    let openness =
        if readable && !before.has_other_ids() { Openness::Dumpable } else { Openness::Hidden };
    let old = thread.replace_mm(Some(mm.clone()));
    vm::activate(&mm.space);
    *thread.pending_mm.lock() = old;
    let startup = Startup {
        path,
        argv: &arguments.argv,
        envp: &arguments.envp,
        cred: &cred,
        before: &before,
    };
    let written = image::clear_tails(&program.image, interpreter.map(|(_, image)| image), &loaded)
        .and_then(|()| image::write_stack(&loaded, &startup));
    match written {
        Ok(written) => {
            let (code, data) = image::extents(&program.image, &loaded);
            let image::Written { sp: stack, arguments, environment, auxv } = written;
            let mut layout = mm.layout.lock();
            layout.marks = Marks { code, data, stack, arguments, environment };
            let old = core::mem::replace(&mut layout.auxv, auxv);
            drop(layout);
            drop(old);
            Ok((mm, openness, loaded, stack))
        }
        Err(errno) => {
            switch_back(thread, Some(mm));
            Err(errno)
        }
    }
}

/// Returns the thread to the space it had.
fn switch_back(thread: &Thread, new: Option<Arc<Mm>>) {
    let old = thread.pending_mm.lock().take();
    match &old {
        Some(mm) => vm::activate(&mm.space),
        None => vm::deactivate(),
    }
    drop(thread.replace_mm(old));
    if let Some(mm) = new {
        mm.leave(&thread.process);
    }
}

/// Sends the other threads of the process away, waits until they are gone, and takes the number of
/// the process.
fn detach_threads(thread: &Arc<Thread>) -> Result<()> {
    let process = &thread.process;
    {
        let mut group = process.group.lock();
        if group.exiting.is_some() || group.exec.is_some() {
            return Err(ERESTARTNOINTR);
        }
        if group.threads.len() == 1 && thread.tid() == process.pid {
            return Ok(());
        }
        group.exec = Some(thread.tid());
        group
            .threads
            .iter()
            .filter(|other| !Arc::ptr_eq(other, thread))
            .for_each(|other| other.kill());
    }
    let alone = || (process.group.lock().threads.len() == 1).then_some(());
    let outcome =
        super::signal::deliver::killable(thread, || process.thread_gone.wait_intr(None, alone));
    process.group.lock().exec = None;
    if outcome.is_err() {
        return Err(EAGAIN);
    }
    if thread.tid() != process.pid {
        table::with(|tree| {
            tree.remove_thread(thread.tid());
            thread.set_tid(process.pid);
            tree.insert_thread(thread.clone());
        });
        // Only now: a tracer that waits for the process finds the old leader or the new one.
        trace::leader_replaced(process);
    }
    Ok(())
}

fn gains(thread: &Thread) -> Gains {
    let is_refused = thread.process.no_new_privileges.load(Ordering::Relaxed);
    if is_refused || trace::keeps_from_gains(thread) {
        Gains::Refused
    } else {
        Gains::Allowed
    }
}

/// The descriptors of the process, or a copy if it shares them with another one; `None` if it is
/// past its end.
fn own_files(thread: &Thread) -> Result<Option<Arc<FdTable>>> {
    let Ok(files) = thread.process.files() else { return Ok(None) };
    // The process's reference and this one.
    let is_shared = Arc::strong_count(&files) > 2;
    Ok(Some(if is_shared { Arc::new(files.fork(&thread.process.account())?) } else { files }))
}

fn has_other_threads(process: &Process) -> bool {
    process.group.lock().threads.len() != 1
}

/// `unshare`: gives a process what it shares with another one for itself. Namespaces there are
/// none, and a process's threads share all.
///
/// # Errors
/// `EINVAL` for what can't be, or what other threads would go on sharing; `ENOMEM`.
pub fn unshare(thread: &Thread, what: Flags) -> Result<()> {
    let process = &thread.process;
    // The adjustments of System V semaphores, of which there are none.
    const SEMAPHORES: Flags = Flags::from_bits_retain(0x4_0000);
    let alone = Flags::THREAD | Flags::SIGHAND | Flags::VM;
    let known = alone | Flags::FS | Flags::FILES | SEMAPHORES;
    if !known.contains(what) || what.intersects(alone) && has_other_threads(process) {
        return Err(EINVAL);
    }
    if what.contains(Flags::VM) && thread.mm().is_some_and(|mm| mm.is_shared()) {
        return Err(EINVAL);
    }
    // What can fail goes first.
    if what.contains(Flags::FILES) {
        unshare_files(thread)?;
    }
    if what.contains(Flags::FS) {
        unshare_fs(process)?;
    }
    Ok(())
}

/// Gives a process directories and a mask of its own, if it shares them with another one.
fn unshare_fs(process: &Process) -> Result<()> {
    if has_other_threads(process) {
        return Err(EINVAL);
    }
    let fs = process.fs()?;
    // The process's reference and this one.
    if Arc::strong_count(&fs) > 2 {
        let old = process.fs.lock().replace(Arc::new(fs.fork()));
        drop(old);
    }
    Ok(())
}

/// Gives a process descriptors of its own, if it shares them with another one.
///
/// # Errors
/// `EINVAL` if it has other threads: these would go on sharing them; `ENOMEM`.
pub fn unshare_files(thread: &Thread) -> Result<()> {
    let process = &thread.process;
    if has_other_threads(process) {
        return Err(EINVAL);
    }
    if let Some(own) = own_files(thread)? {
        let old = process.files.lock().replace(own);
        drop(old);
    }
    Ok(())
}

/// Releases in the old program's memory what others may wait for: mutexes that the thread holds,
/// and the word of `set_tid_address`, if other threads have that memory too.
fn release_words(thread: &Thread, old: &Arc<Mm>, new: &Arc<Mm>) {
    if !old.is_shared() {
        thread.clear_child_tid.store(0, Ordering::Relaxed);
    }
    let words = [&thread.robust_list, &thread.clear_child_tid];
    if words.iter().all(|word| word.load(Ordering::Relaxed) == 0) {
        return;
    }
    thread.replace_mm(Some(old.clone()));
    vm::activate(&old.space);
    exit::release_words(thread);
    thread.replace_mm(Some(new.clone()));
    vm::activate(&new.space);
}

/// Everything that a new program finds fresh.
fn commit(
    thread: &Thread,
    name: &[u8],
    files: Option<Arc<FdTable>>,
    (mm, openness): (&Mm, Openness),
) {
    let process = &thread.process;
    exit::finish_vfork(thread);
    {
        let mut group = process.group.lock();
        if group.actions.any_caught() {
            Arc::make_mut(&mut group.actions).reset_caught();
        }
    }
    let before = process.cred();
    // The memory is the new program's already.
    let change = || {
        let gains = gains(thread);
        let _ = access::change_cred(|cred| {
            *cred = before.after_exec(gains);
            Ok(())
        });
    };
    change();
    // A tracer that came meanwhile has seen the rights that there are now, or is seen here.
    change();
    *thread.altstack.lock() = AltStack::default();
    let base = name.rsplit(|&byte| byte == b'/').next().unwrap_or(name);
    thread.set_comm(base);
    timer::exec(process);
    if let Some(own) = files {
        own.close_on_exec();
        let old = process.files.lock().replace(own);
        drop(old);
    }
    if openness == Openness::Dumpable && !process.cred().hides_from(&before) {
        mm.set_dumpable(true);
    }
    process.exit_signal.store(SIGCHLD.number(), Ordering::Relaxed);
    process.has_execed.store(true, Ordering::Relaxed);
}
