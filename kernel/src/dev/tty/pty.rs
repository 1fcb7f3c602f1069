//! Pseudo-terminals: pairs of a master, which a program such as a terminal emulator has, and a
//! terminal (the slave), which the programs in it see.
//!
//! ```text
//!   master: write --> typed() --> Tty.line --> read        :slave
//!           read  <-- out <---- echo, output <--- write
//! ```
//! What is typed and not read waits in the line, whose room makes the master's writes wait or
//! short. Output waits in `out`, whose room makes the slave's writes wait; echo may take some more,
//! and is lost beyond that, as on Linux.
//!
//! Invariants: P1: `out.bytes` holds at most OUTPUT + ECHO + PROCESSED bytes, for all of which it
//! has room from the start: nothing allocates under a lock. P2: `slaves` counts the open files of
//! the present epoch. P3: a number is another pseudo-terminal's only when no file of either end is
//! left. P4: `draining` and `Tty::typing` are held over copies from and to user memory, never while
//! a thread waits for room or bytes.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

use linux_raw_sys::general as abi;

use super::line::{self, Kind, Line, Screen};
use super::termios::{Termios, WinSize};
use super::{ioctl, Port, Tty, CHUNK, PROCESSED};
use crate::charge::{self, Charge, Count, Counted};
use crate::devnum::device_number;
use crate::errno::*;
use crate::fs::file::File;
use crate::fs::inode::SetAttr;
use crate::fs::ops::*;
use crate::fs::pipe::{interrupted, Blocking};
use crate::mem::fault::Room;
use crate::proc::{self, curproc};
use crate::sched::{self, Nanos};
use crate::share;
use crate::sync::{Mutex, SpinLock, WaitQueue};
use crate::uio::{Sink, Source};

/// Output that waits for the master, and echo beyond that.
const OUTPUT: usize = 16384;
const ECHO: usize = 4096;
const MOST_OUT: usize = OUTPUT + ECHO + PROCESSED;

/// Pseudo-terminals of all users.
const MOST: usize = 4096;
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// What one costs: itself, its queues, and its places in lists.
const COST: usize = size_of::<Tty>() + line::MEMORY + MOST_OUT + 256;

/// Those with an open master, by number.
static ALL: SpinLock<BTreeMap<u32, Weak<Tty>>> = SpinLock::new(BTreeMap::new());

/// The numbers that are borne, a bit each.
static NUMBERS: [AtomicU64; MOST / 64] = [const { AtomicU64::new(0) }; MOST / 64];

/// How exactly the times of a terminal's node are kept, in which programs look for idle users.
const TIMES: Nanos = 8_000_000_000;

/// A number that no other pseudo-terminal bears.
struct Number(u32);

impl Number {
    /// The lowest free one.
    fn new() -> Option<Number> {
        COUNT.fetch_update(Relaxed, Relaxed, |count| (count < MOST).then_some(count + 1)).ok()?;
        for (at, word) in NUMBERS.iter().enumerate() {
            let lowest = |word: u64| (word != u64::MAX).then_some(word | (word + 1));
            if let Ok(old) = word.fetch_update(Relaxed, Relaxed, lowest) {
                return Some(Number(at as u32 * 64 + old.trailing_ones()));
            }
        }
        COUNT.fetch_sub(1, Relaxed);
        None
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        NUMBERS[self.0 as usize / 64].fetch_and(!(1 << (self.0 % 64)), Relaxed);
        COUNT.fetch_sub(1, Relaxed);
    }
}

pub(super) fn counts() -> (usize, usize) {
    (COUNT.load(Relaxed), MOST)
}

/// The pseudo-terminal with a number, if its master is open.
pub(super) fn find(number: u32) -> Option<Arc<Tty>> {
    ALL.lock().get(&number).and_then(Weak::upgrade)
}

/// The lowest number of one with an open master that isn't below `from`.
pub(super) fn next(from: u32) -> Option<u32> {
    ALL.lock().range(from..).next().map(|(&number, _)| number)
}

/// Owner, mode and times of the node in `/dev/pts`.
#[derive(Clone, Copy)]
pub(super) struct Node {
    pub uid: u32,
    pub gid: u32,
    pub perm: u32,
    pub atime: Nanos,
    pub mtime: Nanos,
    pub ctime: Nanos,
}

/// The way from the slave to the master, and what both ends know of each other.
struct Out {
    bytes: VecDeque<u8>,
    flushes: u32,
    /// Reads of the master begin with a byte that says what they are about.
    packets: bool,
    status: u8,
    is_locked: bool,
    slaves: usize,
    /// The last slave was closed, and none was opened since.
    is_left: bool,
    /// The master is closed.
    is_closed: bool,
}

/// What a pseudo-terminal has beside the terminal.
pub(super) struct Pty {
    number: Number,
    node: SpinLock<Node>,
    out: SpinLock<Out>,
    draining: Mutex<()>,
    /// Threads at the master.
    readers: WaitQueue,
    pub writers: WaitQueue,
    _charge: Charge,
    _count: Count,
}

/// A new pseudo-terminal: its master.
pub(super) fn create() -> Result<FileRef> {
    let charge = charge::take(COST).map_err(|_| ENOSPC)?;
    let user = charge::account().user().clone();
    let most = if user.uid() == 0 { MOST } else { share::share_of(MOST) };
    let count = Count::of(user, Counted::Terminals, 1, most).map_err(|_| ENOSPC)?;
    let mut line = Line::new();
    line.reserve()?;
    line.kind = Kind::Program;
    line.termios = Termios::of_pty();
    let mut bytes = VecDeque::new();
    bytes.room(MOST_OUT)?;
    let (cred, now) = (curproc::cred(), sched::wall());
    let (gid, perm) = super::devpts::new_node();
    let node = Node { uid: cred.fsuid, gid, perm, atime: now, mtime: now, ctime: now };
    let number = Number::new().ok_or(ENOSPC)?;
    let pty = Pty {
        number,
        node: SpinLock::new(node),
        out: SpinLock::new(Out {
            bytes,
            flushes: 0,
            packets: false,
            status: 0,
            is_locked: true,
            slaves: 0,
            is_left: false,
            is_closed: false,
        }),
        draining: Mutex::new(()),
        readers: WaitQueue::new(),
        writers: WaitQueue::new(),
        _charge: charge,
        _count: count,
    };
    let size = WinSize { rows: 0, cols: 0, xpixel: 0, ypixel: 0 };
    let tty = Arc::new(Tty::new(line, size, Port::Pty(Box::new(pty))));
    let master = Arc::new(Master { tty });
    ALL.lock().insert(master.pty().number.0, Arc::downgrade(&master.tty));
    Ok(master)
}

impl Out {
    fn set_status(&mut self, set: u8, clear: u8) {
        if self.packets {
            self.status = self.status & !clear | set;
        }
    }

    fn has_status(&self) -> bool {
        self.packets && self.status != 0
    }

    fn flush(&mut self) {
        self.bytes.clear();
        self.flushes = self.flushes.wrapping_add(1);
        self.set_status(abi::TIOCPKT_FLUSHWRITE as u8, 0);
    }
}

/// Echo on its way to the master.
pub(super) struct PtyScreen<'a>(&'a Pty);

impl Screen for PtyScreen<'_> {
    fn put(&mut self, bytes: &[u8]) {
        let mut out = self.0.out.lock();
        if out.bytes.len() + bytes.len() <= OUTPUT + ECHO {
            out.bytes.extend(bytes);
        }
    }

    fn flush(&mut self) {
        let mut out = self.0.out.lock();
        out.flush();
        out.set_status(abi::TIOCPKT_FLUSHREAD as u8, 0);
    }
}

impl Pty {
    /// The device number.
    pub fn number(&self) -> u64 {
        device_number(136, self.number.0)
    }

    pub fn index(&self) -> u32 {
        self.number.0
    }

    pub fn node(&self) -> Node {
        *self.node.lock()
    }

    pub fn change_node(&self, change: impl FnOnce(&Node) -> Result<SetAttr>) -> Result<()> {
        let now = sched::wall();
        let mut node = self.node.lock();
        let change = change(&node)?;
        node.perm = change.perm.map_or(node.perm, |perm| perm & 0o7777);
        node.uid = change.uid.unwrap_or(node.uid);
        node.gid = change.gid.unwrap_or(node.gid);
        node.atime = change.atime.unwrap_or(node.atime);
        node.mtime = change.mtime.unwrap_or(node.mtime);
        node.ctime = now;
        Ok(())
    }

    pub fn was_read(&self) {
        let now = sched::wall() / TIMES * TIMES;
        let mut node = self.node.lock();
        node.atime = node.atime.max(now);
    }

    pub fn screen(&self) -> PtyScreen<'_> {
        PtyScreen(self)
    }

    /// A file of the slave's is opened; the epoch that it belongs to.
    pub fn enter(&self, tty: &Tty) -> Result<u32> {
        let mut out = self.out.lock();
        if out.is_closed || out.is_locked {
            return Err(EIO);
        }
        out.slaves += 1;
        out.is_left = false;
        Ok(tty.epoch.load(Relaxed))
    }

    /// A file of the slave's is closed.
    pub fn leave(&self, tty: &Tty, epoch: u32) {
        let mut out = self.out.lock();
        if tty.is_gone(epoch) {
            return;
        }
        out.slaves -= 1;
        out.is_left = out.slaves == 0;
        drop(out);
        self.wake();
    }

    /// All files of the slave's are of an epoch that is over.
    pub fn leave_all(&self, epoch: &AtomicU32) {
        let mut out = self.out.lock();
        epoch.fetch_add(1, Relaxed);
        out.is_left |= out.slaves != 0;
        out.slaves = 0;
        drop(out);
        self.wake();
    }

    fn wake(&self) {
        self.readers.wake_all();
        self.writers.wake_all();
    }

    /// Whether the master is closed.
    pub fn is_closed(&self) -> bool {
        self.out.lock().is_closed
    }

    /// Room for the slave's output.
    pub fn room(&self) -> usize {
        OUTPUT.saturating_sub(self.out.lock().bytes.len())
    }

    /// Takes output of the slave's for which there was room.
    pub fn put(&self, bytes: &[u8]) {
        let mut out = self.out.lock();
        // Echo may have come meanwhile, for which more is kept (P1).
        let room = MOST_OUT - out.bytes.len();
        out.bytes.extend(&bytes[..bytes.len().min(room)]);
        drop(out);
        self.readers.wake_all();
        let now = sched::wall() / TIMES * TIMES;
        let mut node = self.node.lock();
        node.mtime = node.mtime.max(now);
    }

    /// There may be echo.
    pub fn echoed(&self) {
        self.readers.wake_all();
    }

    /// Forgets output that waits.
    pub fn flush_output(&self) {
        self.out.lock().flush();
        self.readers.wake_all();
    }

    /// Something that a master in packet mode is told.
    pub fn status(&self, set: u8, clear: u8) {
        self.out.lock().set_status(set, clear);
        self.readers.wake_all();
    }

    /// Output is held back, or goes on.
    pub fn flow_changed(&self, is_stopped: bool) {
        let (stop, start) = (abi::TIOCPKT_STOP as u8, abi::TIOCPKT_START as u8);
        let (set, clear) = if is_stopped { (stop, start) } else { (start, stop) };
        self.status(set, clear);
    }

    pub fn termios_changed(&self, line: &Line, had_flow_control: bool) {
        let (no, does) = (abi::TIOCPKT_NOSTOP as u8, abi::TIOCPKT_DOSTOP as u8);
        let has = line.has_flow_control();
        if has != had_flow_control {
            let (set, clear) = if has { (does, no) } else { (no, does) };
            self.status(set, clear);
        }
        if line.termios.local(abi::EXTPROC) {
            self.status(abi::TIOCPKT_IOCTL as u8, 0);
        }
    }

    /// Keeps programs from opening the slave, or lets them.
    pub fn set_locked(&self, is_locked: bool) {
        self.out.lock().is_locked = is_locked;
    }

    pub fn is_locked(&self) -> bool {
        self.out.lock().is_locked
    }

    pub fn set_packets(&self, packets: bool) {
        let mut out = self.out.lock();
        if packets != out.packets {
            out.packets = packets;
            out.status = 0;
        }
    }

    pub fn has_packets(&self) -> bool {
        self.out.lock().packets
    }

    /// Bytes that wait for the master.
    pub fn available(&self) -> usize {
        self.out.lock().bytes.len()
    }
}

/// An open master.
struct Master {
    tty: Arc<Tty>,
}

impl Master {
    fn pty(&self) -> &Pty {
        match &self.tty.port {
            Port::Pty(pty) => pty,
            Port::Console => unreachable!("a master is made with a pseudo-terminal"),
        }
    }

    /// Copies what waits; nothing if another reader was faster.
    fn drain(&self, to: &mut Sink<'_>) -> Result<usize> {
        let pty = self.pty();
        let _draining = pty.draining.lock();
        let start = to.done();
        let mut is_first = true;
        while to.left() > 0 {
            let mut buf = [0; CHUNK];
            let (n, flushes, packets) = {
                let mut out = pty.out.lock();
                if is_first && out.has_status() {
                    let status = core::mem::take(&mut out.status);
                    drop(out);
                    return to.put(&[status]);
                }
                let n = out.bytes.len().min(buf.len());
                buf.iter_mut().zip(&out.bytes).for_each(|(to, from)| *to = *from);
                (n, out.flushes, out.packets)
            };
            if n == 0 {
                break;
            }
            if is_first && packets {
                to.put(&[abi::TIOCPKT_DATA as u8])?;
            }
            is_first = false;
            let outcome = to.put(&buf[..n]);
            let taken = *outcome.as_ref().unwrap_or(&0);
            let mut out = pty.out.lock();
            if out.flushes == flushes {
                out.bytes.drain(..taken);
            }
            drop(out);
            if to.done() == start {
                outcome?;
            }
            if taken < n {
                break;
            }
        }
        self.tty.writers.wake_all();
        Ok(to.done() - start)
    }
}

impl FileOps for Master {
    fn release(&self, _file: &File) {
        let pty = self.pty();
        ALL.lock().remove(&pty.number.0);
        pty.out.lock().is_closed = true;
        self.tty.hang_up();
    }

    fn read(&self, file: &File, _at: u64, to: &mut Sink<'_>) -> Result<usize> {
        let pty = self.pty();
        if to.left() == 0 {
            return Ok(0);
        }
        let ready = || {
            let out = pty.out.lock();
            let is_any = out.has_status() || !out.bytes.is_empty();
            (is_any || out.is_left).then_some(is_any)
        };
        loop {
            let is_any = match Blocking::of(file) {
                Blocking::No => ready().ok_or(EAGAIN)?,
                Blocking::Yes => pty.readers.wait_intr(None, ready).map_err(interrupted)?,
            };
            if !is_any {
                return Err(EIO);
            }
            let n = self.drain(to)?;
            if n > 0 {
                return Ok(n);
            }
        }
    }

    fn write(&self, file: &File, _at: Position, from: &mut Source<'_>) -> Result<(usize, u64)> {
        let (pty, tty) = (self.pty(), &self.tty);
        let start = from.done();
        let mut outcome = Ok(());
        while from.left() > 0 && outcome.is_ok() {
            let has_room = || (tty.line.lock().room() > 0).then_some(());
            let waited = match Blocking::of(file) {
                Blocking::No => has_room().ok_or(EAGAIN),
                Blocking::Yes => pty.writers.wait_intr(None, has_room).map_err(interrupted),
            };
            outcome = waited.and_then(|()| {
                let _typing = tty.typing.lock();
                let mut buf = [0; CHUNK];
                let room = tty.line.lock().room().min(CHUNK);
                let n = from.get(&mut buf[..room])?;
                for &byte in &buf[..n] {
                    // A line as long as may be is echoed again by each byte that asks for that.
                    if sched::work_done(tty.typed(byte)) && proc::current_thread().is_dying() {
                        return Err(EINTR);
                    }
                }
                Ok(())
            });
            pty.readers.wake_all();
            tty.writers.wake_all();
        }
        match outcome {
            Err(errno) if from.done() == start => Err(errno),
            _ => Ok((from.done() - start, 0)),
        }
    }

    fn ioctl(&self, file: &File, request: u32, arg: u64) -> Result<u64> {
        ioctl::ioctl(&self.tty, ioctl::End::Master, file, request, arg)
    }

    fn poll(&self, _file: &File) -> u32 {
        let mut events = 0;
        if self.tty.line.lock().room() > 0 {
            events |= abi::POLLOUT | abi::POLLWRNORM;
        }
        let out = self.pty().out.lock();
        if out.has_status() {
            events |= abi::POLLPRI;
        }
        if out.has_status() || !out.bytes.is_empty() {
            events |= abi::POLLIN | abi::POLLRDNORM;
        }
        if out.is_left {
            events |= abi::POLLHUP;
        }
        events
    }

    fn queues<'a>(&'a self, _file: &File, out: &mut Vec<&'a WaitQueue>) {
        out.push(&self.pty().readers);
        out.push(&self.pty().writers);
    }
}
