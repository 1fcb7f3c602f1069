//! Terminals: line discipline, sessions and job control, and their `ioctl` calls. One type serves
//! the console and the slaves of pseudo-terminals.
//!
//! ```text
//!   the serial port, in an interrupt --\                      /--> read
//!   a master's write (pty.rs) ----------+--> line: edit, ready
//!                                                 | echo
//!   the serial port <--------------------+--------+
//!   a master's read  <-- out (pty.rs) --/ <-- output <-- write
//! ```
//! Invariants: I1: `line` and `job` are spin locks, taken with interrupts off, as [`input`] runs in
//! an interrupt; no user memory is touched under them. I2: input is taken out of `line` only after
//! it was copied to the reader, and `reading` keeps a second reader and changes of the mode away
//! meanwhile. I3: signals are sent with neither lock held. I4: a file that was opened before the
//! last hang-up (`epoch`) reads nothing and writes nothing.
//!
//! Locks: `line`, then a pseudo-terminal's `out`.

pub mod devpts;
mod ioctl;
mod jobs;
mod line;
mod output;
mod pty;
mod termios;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use arrayvec::ArrayVec;
use linux_raw_sys::general as abi;

use crate::arch::serial;
use crate::cred::caps::Caps;
use crate::devnum::device_number;
use crate::errno::*;
use crate::fs::file::File;
use crate::fs::ops::*;
use crate::fs::pipe::{interrupted, Blocking};
use crate::proc::{self, curproc, Pid};
use crate::sched::{self, Nanos};
use crate::sync::{Mutex, Once, SpinLock, WaitQueue, Woken};
use crate::uio::{Sink, Source};
pub use jobs::{adopt, is_foreground, session_ended};
use jobs::{check, signal_group, Job, Use};
use line::{Line, Screen};
use output::{Output, WIDEST};
use pty::Pty;
use termios::{Termios, WinSize};

/// Unit of VTIME: a tenth of a second.
const TENTH: Nanos = 100_000_000;

/// Bytes of a transfer that are copied at once, and that a write's may become.
const CHUNK: usize = 512;
const PROCESSED: usize = 2 * CHUNK;

/// What echoing a byte is in bytes copied, and a signal to a group, however large: enough to let
/// others run.
const TYPED: usize = 128;
const SIGNALLED: usize = 1 << 16;

/// A terminal: the console, or what programs in a pseudo-terminal see.
pub struct Tty {
    line: SpinLock<Line>,
    job: SpinLock<Job>,
    size: SpinLock<WinSize>,
    reading: Mutex<()>,
    /// Held by a thread that types, between its look for room and the byte.
    typing: Mutex<()>,
    /// A write goes on, which others' bytes don't come into.
    is_writing: AtomicBool,
    readers: WaitQueue,
    writers: WaitQueue,
    /// How often it was hung up. Changes with a pseudo-terminal's `out` locked.
    epoch: AtomicU32,
    is_exclusive: AtomicBool,
    port: Port,
}

/// What stands at a terminal's other end.
enum Port {
    Console,
    Pty(Box<Pty>),
}

static CONSOLE: Once<Arc<Tty>> = Once::new();

fn console() -> Option<&'static Arc<Tty>> {
    CONSOLE.get()
}

/// Starts taking input; the kernel's command line may say the size (`rows=N cols=N`), and that the
/// host has no terminal at one end or the other (`stdin=pipe`, `stdout=pipe`).
///
/// # Errors
/// `ENOMEM`.
pub fn init(cmdline: &str) -> Result<()> {
    let mut size = WinSize { rows: 24, cols: 80, xpixel: 0, ypixel: 0 };
    let mut line = Line::new();
    line.reserve()?;
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
    CONSOLE.call_once(|| Arc::new(Tty::new(line, size, Port::Console)));
    serial::set_receiver(serial::Receiver {
        take: input,
        has_room: || console().is_some_and(|console| console.line.lock().room() > 0),
        told,
    });
    Ok(())
}

/// A line of the control channel: `window ROWS COLUMNS` when the host's terminal has changed. Runs
/// in interrupt context.
fn told(line: &str) {
    let Some((rows, cols)) = line.strip_prefix("window ").and_then(|size| size.split_once(' '))
    else {
        return;
    };
    if let (Ok(rows), Ok(cols), Some(console)) = (rows.parse(), cols.parse(), console()) {
        console.set_size(WinSize { rows, cols, xpixel: 0, ypixel: 0 });
    }
}

/// A byte from the port. Runs in interrupt context.
fn input(byte: u8) {
    if let Some(console) = console() {
        console.typed(byte);
        console.writers.wake_all();
    }
}

/// The terminal of a session, for `/proc/PID/stat`: its device number and the group in its
/// foreground.
pub fn shown(session: Pid) -> (u64, Pid) {
    jobs::controlling(session).map_or((0, -1), |tty| {
        let job = *tty.job.lock();
        let foreground = if job.session == session { job.foreground } else { -1 };
        (tty.number(), foreground)
    })
}

/// Opens the console for a `/dev` node. `O_NOCTTY` not given, a session leader without a terminal
/// gets it.
pub fn open_console(flags: u32) -> Result<FileRef> {
    console().ok_or(ENXIO)?.open_file(flags)
}

/// Opens `/dev/tty`: the controlling terminal.
pub fn open_controlling(flags: u32) -> Result<FileRef> {
    let tty = jobs::controlling(proc::current_process().sid()).ok_or(ENXIO)?;
    tty.open_file(flags | abi::O_NOCTTY)
}

/// Opens `/dev/ptmx`: the master of a new pseudo-terminal.
pub fn open_master() -> Result<FileRef> {
    pty::create()
}

/// Takes the running process's terminal from all that have it open (`vhangup`).
pub fn hang_up_own() {
    if let Some(tty) = jobs::controlling(proc::current_process().sid()) {
        tty.hang_up();
    }
}

/// Pseudo-terminals that there are, and that there may be.
pub fn ptys() -> (usize, usize) {
    pty::counts()
}

/// The console as a screen for echo, which waits for nothing.
struct ConsoleScreen;

impl Screen for ConsoleScreen {
    fn put(&mut self, bytes: &[u8]) {
        serial::console(bytes);
    }

    fn flush(&mut self) {}
}

impl Tty {
    fn new(line: Line, size: WinSize, port: Port) -> Tty {
        Tty {
            line: SpinLock::new(line),
            job: SpinLock::new(Job::default()),
            size: SpinLock::new(size),
            reading: Mutex::new(()),
            typing: Mutex::new(()),
            is_writing: AtomicBool::new(false),
            readers: WaitQueue::new(),
            writers: WaitQueue::new(),
            epoch: AtomicU32::new(0),
            is_exclusive: AtomicBool::new(false),
            port,
        }
    }

    fn pty(&self) -> Option<&Pty> {
        match &self.port {
            Port::Console => None,
            Port::Pty(pty) => Some(pty),
        }
    }

    fn number(&self) -> u64 {
        self.pty().map_or(device_number(5, 1), |pty| pty.number())
    }

    /// Opens the terminal as a program's.
    fn open_file(self: &Arc<Tty>, flags: u32) -> Result<FileRef> {
        if self.is_exclusive.load(Relaxed) && !curproc::cred().has(Caps::SYS_ADMIN) {
            return Err(EBUSY);
        }
        let epoch = match self.pty() {
            Some(pty) => pty.enter(self)?,
            None => self.epoch.load(Relaxed),
        };
        let reads = flags & abi::O_ACCMODE != abi::O_WRONLY;
        if flags & abi::O_NOCTTY == 0 && reads {
            jobs::opened(self);
        }
        Ok(Arc::new(TtyFile { tty: self.clone(), epoch }))
    }

    /// Takes a byte of input; wakes what waits for it, and sends the signal that it asks for.
    /// Returns how much work that was, in bytes copied.
    fn typed(&self, byte: u8) -> usize {
        let (signal, has_input, work) = {
            let mut line = self.line.lock();
            let before = line.editing();
            let was_stopped = line.is_stopped();
            let signal = match &self.port {
                Port::Console => line.typed(byte, &mut ConsoleScreen),
                Port::Pty(pty) => line.typed(byte, &mut pty.screen()),
            };
            if let Some(pty) = self.pty().filter(|_| was_stopped != line.is_stopped()) {
                pty.flow_changed(line.is_stopped());
            }
            // A byte that isn't just added may have the whole line looked through or echoed.
            let touched = if line.editing() > before { 1 } else { 1 + before };
            (signal, line.has_input(1), touched * TYPED)
        };
        if has_input {
            self.readers.wake_all();
        }
        let Some(signal) = signal else { return work };
        let group = self.job.lock().foreground;
        signal_group(group, signal);
        SIGNALLED
    }

    /// Forgets what was typed; the port need not wait any more.
    fn flush_input(&self) {
        self.line.lock().flush_input();
        self.took_input();
        if let Some(pty) = self.pty() {
            pty.status(abi::TIOCPKT_FLUSHREAD as u8, 0);
        }
    }

    /// There is more room for input.
    fn took_input(&self) {
        match &self.port {
            Port::Console => serial::resume(),
            Port::Pty(pty) => pty.writers.wake_all(),
        }
    }

    fn set_size(&self, size: WinSize) {
        {
            let mut now = self.size.lock();
            if *now == size {
                return;
            }
            *now = size;
        }
        let group = self.job.lock().foreground;
        signal_group(group, abi::SIGWINCH);
    }

    fn set_termios(&self, mut termios: Termios) {
        // No read is between looking and taking.
        let _reading = self.reading.lock();
        let mut line = self.line.lock();
        let had_flow_control = line.has_flow_control();
        let was_stopped = line.is_stopped();
        if self.pty().is_some() {
            termios.whole_bytes();
        }
        line.set_termios(termios);
        if let Some(pty) = self.pty() {
            pty.termios_changed(&line, had_flow_control);
            if was_stopped != line.is_stopped() {
                pty.flow_changed(line.is_stopped());
            }
        }
        drop(line);
        self.readers.wake_all();
        self.writers.wake_all();
        self.took_input();
    }

    /// Holds output back, or lets it go on (`TCXONC`).
    fn hold(&self, held: bool) {
        let mut line = self.line.lock();
        if line.held != held {
            line.held = held;
            line.stopped &= held;
            self.pty().into_iter().for_each(|pty| pty.flow_changed(line.is_stopped()));
        }
        drop(line);
        self.writers.wake_all();
    }

    /// Takes the terminal from all that have it open and from its session.
    fn hang_up(&self) {
        match self.pty() {
            Some(pty) => pty.leave_all(&self.epoch),
            None => _ = self.epoch.fetch_add(1, Relaxed),
        }
        jobs::hung_up(self);
        self.readers.wake_all();
        self.writers.wake_all();
    }

    /// Whether files of this epoch are of no use any more (I4).
    fn is_gone(&self, epoch: u32) -> bool {
        self.epoch.load(Relaxed) != epoch
    }

    fn read(&self, epoch: u32, blocking: Blocking, to: &mut Sink<'_>) -> Result<usize> {
        if self.is_gone(epoch) {
            return Ok(0);
        }
        check(self, Use::Read)?;
        if to.left() == 0 {
            return Ok(0);
        }
        loop {
            self.await_input(epoch, blocking, to.left())?;
            if self.is_gone(epoch) {
                let is_closed = self.pty().is_some_and(|pty| pty.is_closed());
                return if is_closed { Err(EIO) } else { Ok(0) };
            }
            let _reading = self.reading.lock();
            let mut buf = [0; CHUNK];
            let start = to.done();
            loop {
                let (canonical, looked, is_any) = {
                    let line = self.line.lock();
                    let room = buf.len().min(to.left());
                    let is_any = line.has_input(1);
                    (line.termios.is_canonical(), line.peek(&mut buf[..room]), is_any)
                };
                if !is_any {
                    break;
                }
                let copied = match to.put(&buf[..looked.bytes]) {
                    Err(errno) if to.done() == start => return Err(errno),
                    outcome => outcome.unwrap_or(0),
                };
                let is_cut = copied < looked.bytes;
                let looked = looked.first(copied);
                self.line.lock().take(looked);
                self.took_input();
                if canonical && looked.ends {
                    self.pty().into_iter().for_each(|pty| pty.was_read());
                    return Ok(to.done() - start);
                }
                if to.left() == 0 || is_cut {
                    break;
                }
            }
            if to.done() > start || self.times_out() {
                self.pty().into_iter().for_each(|pty| pty.was_read());
                return Ok(to.done() - start);
            }
        }
    }

    /// Whether a read may return without anything (VMIN 0).
    fn times_out(&self) -> bool {
        let line = self.line.lock();
        !line.termios.is_canonical() && line.termios.cc[abi::VMIN as usize] == 0
    }

    /// Waits until a read has something to do, by the rules of canonical mode or VMIN and VTIME, or
    /// the terminal is hung up.
    fn await_input(&self, epoch: u32, blocking: Blocking, room: usize) -> Result<()> {
        let (canonical, min, time) = {
            let line = self.line.lock();
            let cc = &line.termios.cc;
            (line.termios.is_canonical(), cc[abi::VMIN as usize] as usize, cc[abi::VTIME as usize])
        };
        let ready =
            |min| move || (self.is_gone(epoch) || self.line.lock().has_input(min)).then_some(());
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
            let before = self.line.lock().waiting();
            if before >= min.min(room) || self.is_gone(epoch) {
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

    fn write(&self, epoch: u32, blocking: Blocking, from: &mut Source<'_>) -> Result<usize> {
        if self.is_gone(epoch) {
            return Err(EIO);
        }
        let tostop = self.line.lock().termios.local(abi::TOSTOP);
        if tostop {
            check(self, Use::Change)?;
        }
        let begin = || (!self.is_writing.swap(true, Relaxed)).then_some(());
        self.when(blocking, begin)?;
        let start = from.done();
        let mut outcome = Ok(());
        while from.left() > 0 && outcome.is_ok() {
            outcome = self.write_some(epoch, blocking, from);
        }
        self.is_writing.store(false, Relaxed);
        self.writers.wake_all();
        match outcome {
            Err(errno) if from.done() == start => Err(errno),
            _ => Ok(from.done() - start),
        }
    }

    /// Waits for what a writer waits for.
    fn when(&self, blocking: Blocking, mut is: impl FnMut() -> Option<()>) -> Result<()> {
        match blocking {
            Blocking::No => is().ok_or(EAGAIN),
            Blocking::Yes => self.writers.wait_intr(None, is).map_err(interrupted),
        }
    }

    fn write_some(&self, epoch: u32, blocking: Blocking, from: &mut Source<'_>) -> Result<()> {
        let may_go = || (self.is_gone(epoch) || self.takes_output()).then_some(());
        self.when(blocking, may_go)?;
        if self.is_gone(epoch) {
            return Err(EIO);
        }
        let termios = self.line.lock().termios;
        let mut buf = [0; CHUNK];
        let room = self.room().min(PROCESSED) / Output::widest(&termios);
        let n = from.get(&mut buf[..room.min(CHUNK)])?;
        let mut out = ArrayVec::<u8, PROCESSED>::new();
        {
            let output = &mut self.line.lock().output;
            for &byte in &buf[..n] {
                // There is room by `widest`.
                output.process(&termios, byte, &mut |bytes| {
                    _ = out.try_extend_from_slice(bytes);
                });
            }
        }
        self.put(&out);
        Ok(())
    }

    /// Puts out bytes as they are.
    fn put(&self, bytes: &[u8]) {
        match &self.port {
            Port::Console => serial::console(bytes),
            Port::Pty(pty) => pty.put(bytes),
        }
    }

    /// Room for output.
    fn room(&self) -> usize {
        self.pty().map_or(PROCESSED, |pty| pty.room())
    }

    fn takes_output(&self) -> bool {
        !self.line.lock().is_stopped() && self.room() >= WIDEST
    }

    fn poll(&self, epoch: u32) -> u32 {
        const IN: u32 = abi::POLLIN | abi::POLLRDNORM;
        const OUT: u32 = abi::POLLOUT | abi::POLLWRNORM;
        if self.is_gone(epoch) {
            return IN | OUT | abi::POLLERR | abi::POLLHUP;
        }
        let takes_output = self.takes_output();
        let line = self.line.lock();
        let min = line.termios.cc[abi::VMIN as usize] as usize;
        let min = if line.termios.cc[abi::VTIME as usize] == 0 { min } else { 1 };
        (if line.has_input(min) { IN } else { 0 }) | if takes_output { OUT } else { 0 }
    }
}

/// An open terminal: `/dev/console`, `/dev/ttyS0`, `/dev/pts/N`, and what `/dev/tty` led to.
struct TtyFile {
    tty: Arc<Tty>,
    epoch: u32,
}

impl FileOps for TtyFile {
    fn release(&self, _file: &File) {
        if let Some(pty) = self.tty.pty() {
            pty.leave(&self.tty, self.epoch);
        }
    }

    fn read(&self, file: &File, _at: u64, to: &mut Sink<'_>) -> Result<usize> {
        self.tty.read(self.epoch, Blocking::of(file), to)
    }

    fn write(&self, file: &File, _at: Position, from: &mut Source<'_>) -> Result<(usize, u64)> {
        self.tty.write(self.epoch, Blocking::of(file), from).map(|n| (n, 0))
    }

    fn ioctl(&self, file: &File, request: u32, arg: u64) -> Result<u64> {
        if self.tty.is_gone(self.epoch) {
            let is_of_jobs = request == linux_raw_sys::ioctl::TIOCSPGRP;
            return Err(if is_of_jobs { ENOTTY } else { EIO });
        }
        ioctl::ioctl(&self.tty, ioctl::End::Program, file, request, arg)
    }

    fn poll(&self, _file: &File) -> u32 {
        self.tty.poll(self.epoch)
    }

    fn foreground(&self) -> Option<i32> {
        let foreground = self.tty.job.lock().foreground;
        (foreground > 0).then_some(foreground)
    }

    fn queues<'a>(&'a self, _file: &File, out: &mut Vec<&'a WaitQueue>) {
        out.push(&self.tty.readers);
        out.push(&self.tty.writers);
    }
}
