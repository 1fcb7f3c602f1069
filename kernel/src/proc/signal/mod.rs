//! Signals: what they are. Sending is in `send`, acting on them in `deliver`, the frame on the
//! user's stack in `frame`.
//!
//! ```text
//!   kill, tty, faults, timers --> send: Group.pending or Thread.pending, then poke one thread
//!                                                    |
//!        return to user  -->  deliver: take the lowest unblocked signal: ignore, stop, die, or frame
//! ```
//!
//! Invariants: S1: a pending standard signal has at most one entry in a queue. S2: `SIGKILL` and
//! `SIGSTOP` are never in a mask and their action is always the default. S3: a thread's `signalled`
//! flag is set whenever it has something to do before it goes back to user mode; it may be set when
//! there is nothing. Locks: `Group` (one for each process) before a thread's own `pending`; both
//! may be taken in interrupts.

pub mod deliver;
pub mod file_owner;
pub mod frame;
pub mod send;
pub mod signalfd;

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::limits::RLIMIT_SIGPENDING;
use super::process::Process;
use crate::charge::{Count, Counted};
use crate::errno::{Result, EAGAIN, EINVAL};
use crate::mem::fault;

/// A signal number, 1 to 64.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Signal(u8);

macro_rules! signals {
    ($($name:ident $number:literal)*) => { $(#[allow(dead_code)] pub const $name: Signal = Signal($number);)* };
}

signals! {
    SIGHUP 1 SIGINT 2 SIGQUIT 3 SIGILL 4 SIGTRAP 5 SIGABRT 6 SIGBUS 7 SIGFPE 8 SIGKILL 9 SIGUSR1 10 SIGSEGV 11
    SIGUSR2 12 SIGPIPE 13 SIGALRM 14 SIGTERM 15 SIGCHLD 17 SIGCONT 18 SIGSTOP 19 SIGTSTP 20 SIGTTIN 21
    SIGTTOU 22 SIGURG 23 SIGXCPU 24 SIGXFSZ 25 SIGVTALRM 26 SIGPROF 27 SIGWINCH 28 SIGIO 29 SIGSYS 31
}

/// The first real-time signal: those queue, the others do not.
const FIRST_RT: u8 = 32;

impl Signal {
    /// The signal with this number, `EINVAL` outside 1 to 64.
    pub fn new(number: i32) -> Result<Signal> {
        if (1..=64).contains(&number) {
            Ok(Signal(number as u8))
        } else {
            Err(EINVAL)
        }
    }

    pub fn number(self) -> i32 {
        i32::from(self.0)
    }

    /// The place of this signal in tables of 64.
    pub fn index(self) -> usize {
        usize::from(self.0) - 1
    }

    fn is_realtime(self) -> bool {
        self.0 >= FIRST_RT
    }

    /// What the signal does when its action is `SIG_DFL`.
    pub fn default_action(self) -> DefaultAction {
        match self {
            SIGCHLD | SIGURG | SIGWINCH => DefaultAction::Ignore,
            SIGCONT => DefaultAction::Continue,
            SIGSTOP | SIGTSTP | SIGTTIN | SIGTTOU => DefaultAction::Stop,
            _ => DefaultAction::Terminate,
        }
    }
}

/// What becomes of a process that left a signal alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DefaultAction {
    Ignore,
    Continue,
    Stop,
    Terminate,
}

/// A set of signals, bit n-1 for signal n, as user memory holds it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SigSet(pub u64);

impl SigSet {
    pub const EMPTY: SigSet = SigSet(0);
    /// The signals that can be neither blocked nor caught.
    pub const UNBLOCKABLE: SigSet = SigSet::of(&[SIGKILL, SIGSTOP]);
    /// Signals that stop a process by default.
    pub const STOPS: SigSet = SigSet::of(&[SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU]);
    /// Signals that a fault raises: taken before all others, so that their frame shows the fault.
    pub const FAULTS: SigSet = SigSet::of(&[SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE, SIGSYS]);

    pub const fn of(signals: &[Signal]) -> SigSet {
        let mut bits = 0;
        let mut i = 0;
        while i < signals.len() {
            bits |= 1 << (signals[i].0 - 1);
            i += 1;
        }
        SigSet(bits)
    }

    pub fn has(self, signal: Signal) -> bool {
        self.0 & 1 << signal.index() != 0
    }

    pub const fn with(self, other: SigSet) -> SigSet {
        SigSet(self.0 | other.0)
    }

    pub fn without(self, other: SigSet) -> SigSet {
        SigSet(self.0 & !other.0)
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The next one to take: faults first, then the lowest number.
    fn first(self) -> Option<Signal> {
        let faults = self.0 & SigSet::FAULTS.0;
        let bits = if faults != 0 { faults } else { self.0 };
        (bits != 0).then(|| Signal(bits.trailing_zeros() as u8 + 1))
    }
}

/// `si_code` values, the ABI's whole set.
#[allow(dead_code)]
pub mod code {
    pub const SI_USER: i32 = 0;
    pub const SI_KERNEL: i32 = 0x80;
    pub const SI_QUEUE: i32 = -1;
    pub const SI_TIMER: i32 = -2;
    pub const SI_SIGIO: i32 = -5;
    pub const SI_TKILL: i32 = -6;
    pub const SEGV_MAPERR: i32 = 1;
    pub const SEGV_ACCERR: i32 = 2;
    pub const BUS_ADRALN: i32 = 1;
    pub const BUS_ADRERR: i32 = 2;
    pub const FPE_INTDIV: i32 = 1;
    pub const FPE_FLTINV: i32 = 7;
    pub const ILL_ILLOPN: i32 = 2;
    pub const TRAP_BRKPT: i32 = 1;
    pub const TRAP_TRACE: i32 = 2;
    pub const TRAP_HWBKPT: i32 = 4;
    pub const CLD_EXITED: i32 = 1;
    pub const CLD_KILLED: i32 = 2;
    pub const CLD_DUMPED: i32 = 3;
    pub const CLD_TRAPPED: i32 = 4;
    pub const CLD_STOPPED: i32 = 5;
    pub const CLD_CONTINUED: i32 = 6;
}

/// Why a signal came.
#[derive(Clone, Copy, Debug)]
pub struct SigInfo {
    pub signal: Signal,
    pub code: i32,
    pub detail: Detail,
}

/// The part of a `siginfo_t` that differs from kind to kind.
#[derive(Clone, Copy, Debug)]
pub enum Detail {
    None,
    /// Sent by a process: `kill`, `tkill`; with a value by `sigqueue`.
    Sender {
        pid: i32,
        uid: u32,
        value: u64,
    },
    /// A child changed state; times in clock ticks.
    Child {
        pid: i32,
        uid: u32,
        status: i32,
        utime: u64,
        stime: u64,
    },
    /// A fault at this address.
    Fault {
        address: u64,
    },
    /// A POSIX timer ran out.
    Timer {
        id: i32,
        overrun: i32,
        value: u64,
    },
    /// Something has happened to a file: the poll events, and its descriptor.
    File {
        band: u64,
        fd: i32,
    },
}

impl SigInfo {
    /// A signal that the kernel sends for reasons of its own.
    pub fn kernel(signal: Signal) -> SigInfo {
        SigInfo { signal, code: code::SI_KERNEL, detail: Detail::None }
    }

    /// A fault of the program itself.
    pub fn fault(signal: Signal, code: i32, address: u64) -> SigInfo {
        SigInfo { signal, code, detail: Detail::Fault { address } }
    }

    /// The `siginfo_t` that programs see.
    pub fn to_bytes(self) -> [u8; 128] {
        let mut bytes = [0; 128];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &self.signal.number().to_le_bytes());
        put(8, &self.code.to_le_bytes());
        match self.detail {
            Detail::None => {}
            Detail::Sender { pid, uid, value } => {
                put(16, &pid.to_le_bytes());
                put(20, &uid.to_le_bytes());
                put(24, &value.to_le_bytes());
            }
            Detail::Child { pid, uid, status, utime, stime } => {
                put(16, &pid.to_le_bytes());
                put(20, &uid.to_le_bytes());
                put(24, &status.to_le_bytes());
                put(32, &utime.to_le_bytes());
                put(40, &stime.to_le_bytes());
            }
            Detail::Fault { address } => put(16, &address.to_le_bytes()),
            Detail::Timer { id, overrun, value } => {
                put(16, &id.to_le_bytes());
                put(20, &overrun.to_le_bytes());
                put(24, &value.to_le_bytes());
            }
            Detail::File { band, fd } => {
                put(16, &band.to_le_bytes());
                put(24, &fd.to_le_bytes());
            }
        }
        bytes
    }
}

impl SigInfo {
    /// What a `siginfo_t` says.
    ///
    /// # Errors
    /// `EINVAL`: it names no signal.
    pub fn from_bytes(bytes: &[u8; 128]) -> Result<SigInfo> {
        let int = |at: usize| i32::from_le_bytes(core::array::from_fn(|i| bytes[at + i]));
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|i| bytes[at + i]));
        let (signal, code) = (Signal::new(int(0))?, int(8));
        let detail = if code == code::SI_TIMER {
            Detail::Timer { id: int(16), overrun: int(20), value: word(24) }
        } else if code > 0 && signal == SIGCHLD {
            let (pid, uid, status) = (int(16), int(20) as u32, int(24));
            Detail::Child { pid, uid, status, utime: word(32), stime: word(40) }
        } else if code > 0 && SigSet::FAULTS.has(signal) {
            Detail::Fault { address: word(16) }
        } else {
            Detail::Sender { pid: int(16), uid: int(20) as u32, value: word(24) }
        };
        Ok(SigInfo { signal, code, detail })
    }

    /// The `signalfd_siginfo` that programs read.
    pub fn to_file_bytes(self) -> [u8; 128] {
        let mut bytes = [0; 128];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &self.signal.number().to_le_bytes());
        put(8, &self.code.to_le_bytes());
        match self.detail {
            Detail::None => {}
            Detail::Sender { pid, uid, value } => {
                put(12, &pid.to_le_bytes());
                put(16, &uid.to_le_bytes());
                put(44, &(value as u32).to_le_bytes());
                put(48, &value.to_le_bytes());
            }
            Detail::Child { pid, uid, status, utime, stime } => {
                put(12, &pid.to_le_bytes());
                put(16, &uid.to_le_bytes());
                put(40, &status.to_le_bytes());
                put(56, &utime.to_le_bytes());
                put(64, &stime.to_le_bytes());
            }
            Detail::Fault { address } => put(72, &address.to_le_bytes()),
            Detail::Timer { id, overrun, value } => {
                put(24, &id.to_le_bytes());
                put(32, &overrun.to_le_bytes());
                put(44, &(value as u32).to_le_bytes());
                put(48, &value.to_le_bytes());
            }
            Detail::File { band, fd } => {
                put(20, &fd.to_le_bytes());
                put(28, &(band as u32).to_le_bytes());
            }
        }
        bytes
    }
}

/// What has become of a signal that was sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// The signal is pending with its detail, or was already.
    Queued,
    /// The signal is pending without its detail: there was no room.
    Bare,
    /// The signal is ignored, or the process has ended.
    Ignored,
}

/// Signals of one queue at most, whatever limits say.
const QUEUE_MAX: usize = 1 << 16;

/// Signals that have come and wait to be taken.
#[derive(Default)]
pub struct Pending {
    set: SigSet,
    queue: Vec<Queued>,
}

/// A signal in a queue, with what counts it among the pending signals of its user: a count of its
/// own, or that of the timer that sent it, which may be gone meanwhile.
struct Queued {
    info: SigInfo,
    _count: Option<Count>,
    _timer: Option<Arc<Count>>,
}

impl Pending {
    pub const fn new() -> Pending {
        Pending { set: SigSet::EMPTY, queue: Vec::new() }
    }

    pub fn set(&self) -> SigSet {
        self.set
    }

    /// Adds a signal for a process; a standard signal that is pending already is merged. A
    /// real-time signal is refused with `EAGAIN` if the queues of the process's user have as many
    /// as `RLIMIT_SIGPENDING` allows, unless it came by `kill`, which loses its detail then; so
    /// does a standard signal without room. The signal of a timer has its place since the timer was
    /// made, `timer`, and is merged with another of that timer alone.
    pub fn push(
        &mut self,
        info: SigInfo,
        process: &Process,
        timer: Option<Arc<Count>>,
    ) -> Result<Sent> {
        let signal = info.signal;
        let merges = match info.detail {
            Detail::Timer { id, .. } => self.has_of_timer(id, signal),
            _ => !signal.is_realtime() && self.set.has(signal),
        };
        if merges {
            return Ok(Sent::Queued);
        }
        let count = match &timer {
            Some(_) => Ok(None),
            None => Pending::count(process, signal.is_realtime()).map(Some),
        };
        let room =
            self.queue.len() < QUEUE_MAX && fault::attempt(|| self.queue.try_reserve(1)).is_ok();
        let queued = match count {
            Ok(count) if room => {
                self.queue.push(Queued { info, _count: count, _timer: timer });
                Sent::Queued
            }
            _ if signal.is_realtime() && info.code != code::SI_USER => return Err(EAGAIN),
            _ => Sent::Bare,
        };
        self.set = self.set.with(SigSet::of(&[signal]));
        Ok(queued)
    }

    /// Counts one more pending signal of a process's user: within `RLIMIT_SIGPENDING` if `limited`.
    pub fn count(process: &Process, limited: bool) -> Result<Count> {
        let most = if limited { process.limit(RLIMIT_SIGPENDING) as usize } else { usize::MAX };
        Count::of(process.account().user().clone(), Counted::Signals, 1, most).map_err(|_| EAGAIN)
    }

    /// A timer that has gone may have had the same number, and another signal.
    fn has_of_timer(&self, id: i32, signal: Signal) -> bool {
        let is_its =
            |detail: &Detail| matches!(detail, Detail::Timer { id: other, .. } if *other == id);
        self.queue.iter().any(|Queued { info, .. }| info.signal == signal && is_its(&info.detail))
    }

    /// Takes the next signal that is in `wanted`.
    pub fn take(&mut self, wanted: SigSet) -> Option<SigInfo> {
        let signal = SigSet(self.set.0 & wanted.0).first()?;
        let found = self.queue.iter().position(|queued| queued.info.signal == signal);
        let info = match found {
            Some(at) => {
                let info = self.queue.remove(at).info;
                fault::shrink(&mut self.queue);
                info
            }
            None => SigInfo { signal, code: code::SI_USER, detail: Detail::None },
        };
        if !self.queue.iter().any(|other| other.info.signal == signal) {
            self.set = self.set.without(SigSet::of(&[signal]));
        }
        Some(info)
    }

    /// The details of the signal at a place in the queue.
    pub fn queued(&self, at: usize) -> Option<SigInfo> {
        self.queue.get(at).map(|queued| queued.info)
    }

    /// Forgets every pending signal in `which`.
    pub fn discard(&mut self, which: SigSet) {
        if self.set.0 & which.0 != 0 {
            self.set = self.set.without(which);
            self.queue.retain(|queued| !which.has(queued.info.signal));
            fault::shrink(&mut self.queue);
        }
    }
}

/// `sa_handler` values with a meaning of their own.
pub const SIG_DFL: u64 = 0;
pub const SIG_IGN: u64 = 1;

/// `sa_flags` bits.
pub mod flag {
    pub const NOCLDSTOP: u64 = 1;
    pub const NOCLDWAIT: u64 = 2;
    pub const SIGINFO: u64 = 4;
    pub const RESTORER: u64 = 0x0400_0000;
    pub const ONSTACK: u64 = 0x0800_0000;
    pub const RESTART: u64 = 0x1000_0000;
    pub const NODEFER: u64 = 0x4000_0000;
    pub const RESETHAND: u64 = 0x8000_0000;
    pub const KNOWN: u64 =
        NOCLDSTOP | NOCLDWAIT | SIGINFO | RESTORER | ONSTACK | RESTART | NODEFER | RESETHAND;
}

/// What a process wants done about a signal; the layout is the kernel's `struct sigaction`.
#[derive(Clone, Copy, Default, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
#[repr(C)]
pub struct SigAction {
    pub handler: u64,
    pub flags: u64,
    pub restorer: u64,
    pub mask: u64,
}

/// The actions of a process, shared by fork until one side changes them.
#[derive(Clone)]
pub struct Actions([SigAction; 64]);

impl Actions {
    pub fn new() -> Arc<Actions> {
        Arc::new(Actions([SigAction::default(); 64]))
    }

    pub fn get(&self, signal: Signal) -> SigAction {
        self.0[signal.index()]
    }

    pub fn set(&mut self, signal: Signal, action: SigAction) {
        self.0[signal.index()] = action;
    }

    /// Whether a signal that is not blocked would have no effect at all.
    pub fn ignores(&self, signal: Signal) -> bool {
        match self.get(signal).handler {
            SIG_IGN => true,
            SIG_DFL => signal.default_action() == DefaultAction::Ignore,
            _ => false,
        }
    }

    /// Whether anything is caught, that is, whether exec has something to reset.
    pub fn any_caught(&self) -> bool {
        self.0.iter().any(|action| action.handler > SIG_IGN || action.flags != 0)
    }

    /// As exec leaves them: caught signals go back to their default, ignored ones stay ignored.
    pub fn reset_caught(&mut self) {
        for action in &mut self.0 {
            let handler = if action.handler == SIG_IGN { SIG_IGN } else { SIG_DFL };
            *action = SigAction { handler, ..SigAction::default() };
        }
    }

    /// The sets of ignored and of caught signals, for /proc/PID/status.
    pub fn sets(&self) -> (SigSet, SigSet) {
        let mut sets = (SigSet::EMPTY, SigSet::EMPTY);
        for (bit, action) in self.0.iter().enumerate() {
            match action.handler {
                SIG_DFL => {}
                SIG_IGN => sets.0 .0 |= 1 << bit,
                _ => sets.1 .0 |= 1 << bit,
            }
        }
        sets
    }
}

/// The alternate stack of a thread; `size` 0 when there is none.
#[derive(Clone, Copy, Default)]
pub struct AltStack {
    pub base: u64,
    pub size: u64,
    /// `SS_AUTODISARM` as given.
    pub flags: u32,
}

impl AltStack {
    /// Whether a stack pointer lies on this stack.
    pub fn holds(&self, sp: u64) -> bool {
        self.size != 0 && sp > self.base && sp - self.base <= self.size
    }
}
