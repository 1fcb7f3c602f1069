//! The system call table and the way through it.
//!
//! The trap code calls [`dispatch`] with the user's registers; it looks the number up in [`TABLE`],
//! an array of plain functions, and stores what comes back there, as the result. Each module below
//! owns a group of calls and lists them in a constant `CALLS` made by [`calls!`]; the table is put
//! together at compile time.
//!
//! A call is an ordinary function on integers: `fn read(fd: i32, buf: u64, len: usize) ->
//! Result<usize>`. Arguments are truncated to its parameter types, as Linux does. Calls that edit
//! the registers themselves (fork, execve, sigreturn) take `&mut UserRegs` instead.
//!
//! Invariants: I1: a handler runs with no lock held and may sleep. I2: user memory is only touched
//! through `crate::user`. I3: a restart code never reaches the program: the slow return path
//! rewrites it.

use crate::arch::UserRegs;
use crate::errno::{Errno, Result, ENOMEM, ENOSYS};
use crate::mem::{fault, heap};
use crate::proc::current_thread;
use crate::proc::signal::deliver::signal_pending;
use crate::proc::signal::{code, send, SigInfo, SIGTRAP};
use crate::proc::trace::{self, AtCalls, Side};

mod caps;
pub mod dir;
pub mod extensions;
pub mod fd;
pub mod file;
pub mod ioctl;
pub mod madvise;
pub mod mem;
pub mod message;
pub mod mlock;
mod mount;
mod path_args;
mod pidfd;
pub mod poll;
pub mod proc;
mod process_vm;
mod ptrace;
pub mod sched;
pub mod shm;
pub mod signal;
pub mod socket;
mod splice;
pub mod stat;
pub mod swap;
pub mod sys;
pub mod time;
mod xattr;

/// One system call: reads its arguments from the registers, returns the word that is the result.
pub type Handler = fn(&mut UserRegs) -> u64;

/// A module's part of the table: call number and handler.
pub type Calls = &'static [(u32, Handler)];

/// What a system call may return: turned into the word that programs see.
pub trait Outcome {
    fn into_word(self) -> u64;
}

macro_rules! outcome {
    ($($t:ty)*) => { $(impl Outcome for Result<$t> {
        #[inline]
        fn into_word(self) -> u64 {
            match self { Ok(value) => value as i64 as u64, Err(Errno(number)) => -i64::from(number) as u64 }
        }
    })* };
}
outcome! { usize u64 i64 i32 u32 }

impl Outcome for Result<()> {
    #[inline]
    fn into_word(self) -> u64 {
        self.map(|()| 0u64).into_word()
    }
}

/// Builds a `Calls` list: `calls! { __NR_read => read[3], __NR_fork => fork[regs] }`; the number in
/// brackets says how many arguments the function takes, `regs` that it takes the registers.
macro_rules! calls {
    ($($nr:ident => $f:path [$kind:tt]),* $(,)?) => {
        &[$(($crate::arch::abi::calls::$nr, $crate::syscall::handler!($f, $kind))),*]
    };
}

macro_rules! handler {
    ($f:path, regs) => {
        |r| $crate::syscall::Outcome::into_word($f(r))
    };
    ($f:path, 0) => {
        |_| $crate::syscall::Outcome::into_word($f())
    };
    ($f:path, 1) => {
        |r| $crate::syscall::Outcome::into_word($f(r.argument(0) as _))
    };
    ($f:path, 2) => {
        |r| $crate::syscall::Outcome::into_word($f(r.argument(0) as _, r.argument(1) as _))
    };
    ($f:path, 3) => {
        |r| {
            $crate::syscall::Outcome::into_word($f(
                r.argument(0) as _,
                r.argument(1) as _,
                r.argument(2) as _,
            ))
        }
    };
    ($f:path, 4) => {
        |r| {
            $crate::syscall::Outcome::into_word($f(
                r.argument(0) as _,
                r.argument(1) as _,
                r.argument(2) as _,
                r.argument(3) as _,
            ))
        }
    };
    ($f:path, 5) => {
        |r| {
            $crate::syscall::Outcome::into_word($f(
                r.argument(0) as _,
                r.argument(1) as _,
                r.argument(2) as _,
                r.argument(3) as _,
                r.argument(4) as _,
            ))
        }
    };
    ($f:path, 6) => {
        |r| {
            $crate::syscall::Outcome::into_word($f(
                r.argument(0) as _,
                r.argument(1) as _,
                r.argument(2) as _,
                r.argument(3) as _,
                r.argument(4) as _,
                r.argument(5) as _,
            ))
        }
    };
}
pub(crate) use {calls, handler};

/// One more than the highest call number in the table.
const SIZE: usize = 512;

/// Every module that has calls; a number given twice stops the build.
const MODULES: &[Calls] = &[
    mem::CALLS,
    mlock::CALLS,
    madvise::CALLS,
    madvise::OWN_CALLS,
    extensions::CALLS,
    shm::CALLS,
    proc::CALLS,
    signal::CALLS,
    pidfd::CALLS,
    sched::CALLS,
    sys::CALLS,
    caps::CALLS,
    time::CALLS,
    file::CALLS,
    fd::CALLS,
    dir::CALLS,
    mount::CALLS,
    stat::CALLS,
    poll::CALLS,
    ioctl::CALLS,
    socket::CALLS,
    splice::CALLS,
    message::CALLS,
    swap::CALLS,
    process_vm::CALLS,
    ptrace::CALLS,
    xattr::CALLS,
];

static TABLE: [Handler; SIZE] = build();

const fn build() -> [Handler; SIZE] {
    let mut table = [unknown as Handler; SIZE];
    let mut taken = [false; SIZE];
    let mut module = 0;
    while module < MODULES.len() {
        let calls = MODULES[module];
        let mut i = 0;
        while i < calls.len() {
            let number = calls[i].0 as usize;
            assert!(!taken[number], "a system call is listed twice");
            taken[number] = true;
            table[number] = calls[i].1;
            i += 1;
        }
        module += 1;
    }
    table
}

/// Runs the system call that the registers ask for and leaves its result there.
pub fn dispatch(regs: &mut UserRegs) {
    // If the kernel lives on its last memory, a process has to go before another call takes more.
    if heap::wants_attention() && attend_to_heap().is_err() {
        regs.set_result(Err::<u64, _>(ENOMEM).into_word());
        return;
    }
    let at_calls = trace::at_calls();
    if !at_calls.is_empty() {
        return traced(regs, at_calls);
    }
    run(regs);
    finish(regs);
    // It may have begun to be traced at an event of this call's.
    let at_calls = trace::at_calls();
    if !at_calls.is_empty() {
        traced_exit(regs, at_calls);
    }
}

/// Runs a system call whose tracer has a look at its ends. The tracer may make it another one, or
/// none.
#[cold]
fn traced(regs: &mut UserRegs, at_entry: AtCalls) {
    let emulates = at_entry.contains(AtCalls::EMULATES);
    if at_entry.intersects(AtCalls::STOPS | AtCalls::EMULATES) {
        regs.set_result(trace::NO_RESULT);
        trace::call(regs, Side::Entry);
        if current_thread().is_dying() {
            return;
        }
    }
    if regs.is_in_call() && !emulates {
        run(regs);
        finish(regs);
    }
    traced_exit(regs, trace::at_calls());
}

/// The end of a system call that a tracer may have a look at.
#[cold]
fn traced_exit(regs: &mut UserRegs, at_exit: AtCalls) {
    if at_exit == AtCalls::STEPS {
        let here = regs.instruction_pointer();
        send::force(SigInfo::fault(SIGTRAP, code::TRAP_BRKPT, here));
    } else if at_exit.contains(AtCalls::STOPS) {
        let was_restart = is_restart(regs.result());
        trace::call(regs, Side::Exit);
        // A result that only looks like one of a call that was cut short.
        if is_restart(regs.result()) && !was_restart && !signal_pending() {
            regs.forget_call();
        }
    }
}

#[inline(always)]
fn run(regs: &mut UserRegs) {
    let number = regs.call_number() as u32 as usize;
    if cfg!(debug_assertions) {
        fault::call_begins();
    }
    let result = if number < SIZE { TABLE[number](regs) } else { unknown(regs) };
    if cfg!(debug_assertions) {
        fault::call_ends(number as u64);
    }
    regs.set_result(result);
}

#[inline(always)]
fn finish(regs: &UserRegs) {
    if is_restart(regs.result()) {
        crate::proc::request_return_work();
    }
}

#[cold]
fn attend_to_heap() -> Result<(), machine::NoMemory> {
    heap::wake_daemon();
    if heap::is_low() {
        crate::vm::with_room_at_any_cost(heap::restock)?;
    }
    Ok(())
}

/// Whether a result is one of the private restart codes.
#[inline]
fn is_restart(result: u64) -> bool {
    result.wrapping_add(516) <= 4
}

/// A call that is not there: `ENOSYS`, and one line for each number when tracing is on.
#[cold]
fn unknown(regs: &mut UserRegs) -> u64 {
    sys::trace_unknown(regs.call_number());
    Err::<u64, _>(ENOSYS).into_word()
}
