//! The console as a terminal: line discipline, sessions and job control, and its `ioctl` calls.
//!
//! Bytes come in from the serial port's interrupt, go through [`line::Line`] and wait there for
//! readers; output goes to the port at once. There is one terminal.
//!
//! Invariants: I1: `line` and `job` are spin locks, taken with interrupts off, as [`input`] runs in
//! an interrupt; no user memory is touched under them. I2: input is taken out of `line` only after
//! it was copied to the reader, and `reading` keeps a second reader away meanwhile. I3: signals are
//! sent with neither lock held.

mod ioctl;
pub mod line;
pub mod termios;

use alloc::vec::Vec;

use linux_raw_sys::general as abi;

use crate::arch::serial;
use crate::errno::*;
use crate::fs::file::File;
use crate::fs::ops::*;
use crate::fs::pipe::{interrupted, Blocking};
use crate::proc::{self, signal};
use crate::sched::{self, Nanos};
use crate::sync::{Mutex, SpinLock, WaitQueue, Woken};
use crate::uio::{Sink, Source};
use line::Line;
use termios::WinSize;

/// Unit of VTIME: a tenth of a second.
const TENTH: Nanos = 100_000_000;

/// The session that the terminal belongs to; 0 is none.
struct Job {
    session: i32,
    foreground: i32,
}

struct Tty {
    line: SpinLock<Line>,
    job: SpinLock<Job>,
    size: SpinLock<WinSize>,
    reading: Mutex<()>,
    readers: WaitQueue,
    writers: WaitQueue,
}

static CONSOLE: Tty = Tty {
    line: SpinLock::new(Line::new()),
    job: SpinLock::new(Job { session: 0, foreground: 0 }),
    size: SpinLock::new(WinSize { rows: 24, cols: 80, xpixel: 0, ypixel: 0 }),
    reading: Mutex::new(()),
    readers: WaitQueue::new(),
    writers: WaitQueue::new(),
};

/// Starts taking input; the kernel's command line may say the size (`rows=N cols=N`), and that the
/// host has no terminal at one end or the other (`stdin=pipe`, `stdout=pipe`).
pub fn init(cmdline: &str) {
    let mut size = CONSOLE.size.lock();
    let mut line = CONSOLE.line.lock();
    for word in cmdline.split_ascii_whitespace().take_while(|&word| word != "--") {
        match word.split_once('=') {
            Some(("rows", rows)) => size.rows = rows.parse().unwrap_or(size.rows),
            Some(("cols", cols)) => size.cols = cols.parse().unwrap_or(size.cols),
            Some(("stdin", "pipe")) => {
                line.kind = line::Kind::Stream;
                line.termios.read_from_stream();
            }
            Some(("stdout", "pipe")) => line.termios.oflag = 0,
            _ => {}
        }
    }
    drop(line);
    drop(size);
    serial::set_receiver(serial::Receiver {
        take: input,
        has_room: || CONSOLE.line.lock().has_room(),
        told,
    });
}

/// A line of the control channel: `window ROWS COLUMNS` when the host's terminal has changed. Runs
/// in interrupt context.
fn told(line: &str) {
    let Some((rows, cols)) = line.strip_prefix("window ").and_then(|size| size.split_once(' '))
    else {
        return;
    };
    if let (Ok(rows), Ok(cols)) = (rows.parse(), cols.parse()) {
        ioctl::set_size(&CONSOLE, WinSize { rows, cols, xpixel: 0, ypixel: 0 });
    }
}

/// A byte from the port. Runs in interrupt context.
fn input(byte: u8) {
    let (signal, wake) = {
        let mut line = CONSOLE.line.lock();
        let post = line.termios.oflag;
        let signal = line.typed(byte, &mut |echo| put_processed(post, echo));
        (signal, line.has_input(1))
    };
    if let Some(signal) = signal {
        let group = CONSOLE.job.lock().foreground;
        signal_group(group, signal);
    }
    if wake {
        CONSOLE.readers.wake_all();
    }
    CONSOLE.writers.wake_all();
}

/// Makes the terminal the controlling one of the first process's session.
pub fn adopt(session: i32) {
    *CONSOLE.job.lock() = Job { session, foreground: session };
}

/// A session's leader has ended: the terminal is free, and what ran in the foreground is told.
pub fn session_ended(session: i32) {
    let foreground = {
        let mut job = CONSOLE.job.lock();
        if job.session != session {
            return;
        }
        core::mem::replace(&mut *job, Job { session: 0, foreground: 0 }).foreground
    };
    signal_group(foreground, abi::SIGHUP);
    signal_group(foreground, abi::SIGCONT);
}

/// Whether `session` has the terminal as its controlling one.
pub fn controls(session: i32) -> bool {
    CONSOLE.job.lock().session == session
}

/// The foreground group, for `/proc/PID/stat`; -1 for a session without the terminal.
pub fn foreground_of(session: i32) -> i32 {
    let job = CONSOLE.job.lock();
    if job.session == session {
        job.foreground
    } else {
        -1
    }
}

/// Whether a number is the foreground group's, though that may have ended: no other process gets
/// it, or it would get the terminal's signals.
pub fn is_foreground(group: i32) -> bool {
    CONSOLE.job.lock().foreground == group
}

fn signal_group(group: i32, number: u32) {
    if group > 0 {
        if let Ok(signal) = signal::Signal::new(number as i32) {
            proc::send_to_group(group, signal);
        }
    }
}

/// Prints with the output settings applied.
fn put_processed(oflag: u32, bytes: &[u8]) {
    if oflag & abi::OPOST == 0 || oflag & abi::ONLCR == 0 {
        serial::console(bytes);
        return;
    }
    for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
        match piece.strip_suffix(b"\n") {
            Some(text) => {
                serial::console(text);
                serial::console(b"\r\n");
            }
            None => serial::console(piece),
        }
    }
}

/// The node behind `/dev/console`, `/dev/tty` and `/dev/ttyS0`.
pub struct TtyInode;

/// Opens the console for a `/dev` node. `O_NOCTTY` not given, a session leader without a terminal
/// gets it.
pub fn open_console(flags: u32) -> Result<FileRef> {
    if flags & abi::O_NOCTTY == 0 {
        let process = proc::current_process();
        let mut job = CONSOLE.job.lock();
        if job.session == 0 && process.sid() == process.pid {
            *job = Job { session: process.sid(), foreground: process.pgid() };
        }
    }
    Ok(alloc::sync::Arc::new(TtyInode))
}

/// Opens `/dev/tty`: the controlling terminal.
pub fn open_controlling() -> Result<FileRef> {
    if !controls(proc::current_process().sid()) {
        return Err(ENXIO);
    }
    Ok(alloc::sync::Arc::new(TtyInode))
}

/// What a process in the background wants to do with the terminal.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Read,
    /// Writing or changing settings.
    Change,
}

/// Stops a process in the background that uses its terminal, as job control has it.
fn check_foreground(what: Use) -> Result<()> {
    let process = proc::current_process();
    let (session, foreground) = {
        let job = CONSOLE.job.lock();
        (job.session, job.foreground)
    };
    let group = process.pgid();
    if session == 0 || process.sid() != session || foreground == 0 || foreground == group {
        return Ok(());
    }
    let number = if what == Use::Read { abi::SIGTTIN } else { abi::SIGTTOU };
    let signal = signal::Signal::new(number as i32)?;
    let held = proc::current_thread().mask().has(signal);
    if held || process.group.lock().actions.ignores(signal) {
        return if what == Use::Read { Err(EIO) } else { Ok(()) };
    }
    if proc::table::is_orphaned_group(group) {
        return Err(EIO);
    }
    proc::send_to_group(group, signal);
    Err(ERESTARTSYS)
}

impl Tty {
    /// Forgets what was typed; the port need not wait any more.
    fn flush_input(&self) {
        self.line.lock().flush_input();
        serial::resume();
    }

    fn read(&self, blocking: Blocking, to: &mut Sink<'_>) -> Result<usize> {
        check_foreground(Use::Read)?;
        if to.left() == 0 {
            return Ok(0);
        }
        loop {
            self.await_input(blocking, to.left())?;
            let _reading = self.reading.lock();
            let mut buf = [0; 512];
            let start = to.done();
            loop {
                let (canonical, len, whole) = {
                    let line = self.line.lock();
                    let room = buf.len().min(to.left());
                    let len = line.peek(&mut buf[..room]);
                    (line.termios.is_canonical(), len, line.has_input(1))
                };
                if !whole {
                    break;
                }
                to.put(&buf[..len])?;
                let ended = {
                    let mut line = self.line.lock();
                    let ended = line.available() == len;
                    let was_full = !line.has_room();
                    line.take(len);
                    let resumes = was_full && line.has_room();
                    drop(line);
                    if resumes {
                        serial::resume();
                    }
                    ended
                };
                if canonical && ended {
                    return Ok(to.done() - start);
                }
                if to.left() == 0 {
                    break;
                }
            }
            if to.done() > start || self.times_out() {
                return Ok(to.done() - start);
            }
        }
    }

    /// Whether a read may return without anything (VMIN 0).
    fn times_out(&self) -> bool {
        let line = self.line.lock();
        !line.termios.is_canonical() && line.termios.cc[abi::VMIN as usize] == 0
    }

    /// Waits until a read has something to do, by the rules of canonical mode or VMIN and VTIME.
    fn await_input(&self, blocking: Blocking, room: usize) -> Result<()> {
        let (canonical, min, time) = {
            let line = self.line.lock();
            let cc = &line.termios.cc;
            (line.termios.is_canonical(), cc[abi::VMIN as usize] as usize, cc[abi::VTIME as usize])
        };
        let ready = |min| move || self.line.lock().has_input(min).then_some(());
        let timeout = Nanos::from(time) * TENTH;
        if ready(1)().is_none() && blocking == Blocking::No {
            return Err(EAGAIN);
        }
        if canonical || time == 0 && min > 0 {
            let min = if canonical || blocking == Blocking::No { 1 } else { min.min(room) };
            return self.readers.wait_intr(None, ready(min)).map_err(interrupted);
        }
        if min == 0 {
            if time == 0 {
                return Ok(());
            }
            return match self.readers.wait_intr(Some(sched::now() + timeout), ready(1)) {
                Err(Woken::Signal) => Err(ERESTARTSYS),
                _ => Ok(()),
            };
        }
        self.readers.wait_intr(None, ready(1)).map_err(interrupted)?;
        loop {
            let before = self.line.lock().available();
            if before >= min.min(room) {
                return Ok(());
            }
            let more = self.readers.wait_intr(Some(sched::now() + timeout), ready(before + 1));
            match more {
                Ok(()) => {}
                Err(Woken::Timeout) => return Ok(()),
                Err(Woken::Signal) => return Err(ERESTARTSYS),
            }
        }
    }

    fn write(&self, from: &mut Source<'_>) -> Result<usize> {
        let tostop = self.line.lock().termios.local(abi::TOSTOP);
        if tostop {
            check_foreground(Use::Change)?;
        }
        let start = from.done();
        let mut buf = [0; 512];
        while from.left() > 0 {
            let go = self.writers.wait_intr(None, || (!self.line.lock().stopped).then_some(()));
            let n = match go.map_err(interrupted).and_then(|()| from.get(&mut buf)) {
                Ok(n) => n,
                Err(errno) if from.done() == start => return Err(errno),
                Err(_) => break,
            };
            let oflag = self.line.lock().termios.oflag;
            put_processed(oflag, &buf[..n]);
        }
        Ok(from.done() - start)
    }
}

impl FileOps for TtyInode {
    fn read(&self, file: &File, _at: u64, to: &mut Sink<'_>) -> Result<usize> {
        CONSOLE.read(Blocking::of(file), to)
    }

    fn write(&self, _file: &File, _at: Position, from: &mut Source<'_>) -> Result<(usize, u64)> {
        CONSOLE.write(from).map(|n| (n, 0))
    }

    fn ioctl(&self, _file: &File, request: u32, arg: u64) -> Result<u64> {
        ioctl::ioctl(&CONSOLE, request, arg)
    }

    fn poll(&self, _file: &File) -> u32 {
        let line = CONSOLE.line.lock();
        let mut events = 0;
        let min = line.termios.cc[abi::VMIN as usize] as usize;
        let min = if line.termios.cc[abi::VTIME as usize] == 0 { min } else { 1 };
        if line.has_input(min) {
            events |= abi::POLLIN | abi::POLLRDNORM;
        }
        if !line.stopped {
            events |= abi::POLLOUT | abi::POLLWRNORM;
        }
        events
    }

    fn queues<'a>(&'a self, _file: &File, out: &mut Vec<&'a WaitQueue>) {
        out.push(&CONSOLE.readers);
        out.push(&CONSOLE.writers);
    }
}
