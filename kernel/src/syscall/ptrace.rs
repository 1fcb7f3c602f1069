//! `ptrace`: stops, registers and memory of another process, for debuggers. What it doesn't do is
//! refused with `EIO`.

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::ptrace as request;
use zerocopy::IntoBytes;

use super::{calls, Calls};
use crate::arch::abi::ptrace::{
    self as abi, shown, Registers, ARCH_PRCTL, GETFPREGS, GETREGS, GET_THREAD_AREA, REGISTERS,
    SETFPREGS, SETREGS, SET_THREAD_AREA, SINGLEBLOCK, SYSEMU, SYSEMU_SINGLESTEP, THREAD_AREAS,
    USER_SIZE,
};
use crate::arch::abi::SegmentCall;
use crate::arch::fpu;
use crate::arch::layout::USER_END;
use crate::cred::caps::Caps;
use crate::errno::*;
use crate::mem::fault::Room;
use crate::proc::access;
use crate::proc::foreign_memory::{self, As};
use crate::proc::signal::{SigSet, Signal};
use crate::proc::trace::{self, Queue, Resume, Side, Why, Wishes};
use crate::proc::{current_process, Pid};
use crate::sched;
use crate::uio::{IoVec, Sink, Source};
use crate::user;
use crate::vm::Space;

pub const CALLS: Calls = calls! {
    __NR_ptrace => ptrace[4],
};

/// The register sets that `PTRACE_GETREGSET` knows.
const NT_PRSTATUS: u64 = 1;
const NT_PRFPREG: u64 = 2;
const NT_X86_XSTATE: u64 = 0x202;
/// Ports that a thread may use: none here.
const NT_386_IOPERM: u64 = 0x201;

/// Bytes of the vector state that each CPU has.
const LEGACY: usize = 512;

/// Results above are errors.
const ERRORS: u64 = -4096i64 as u64;

const WORD: u64 = 8;

fn ptrace(what: u64, pid: Pid, addr: u64, data: u64) -> Result<u64> {
    // A request beyond these is none, which is judged after the tracee.
    let what = u32::try_from(what).unwrap_or(u32::MAX);
    match what {
        request::PTRACE_TRACEME => return trace::begin_by_parent().map(|()| 0),
        request::PTRACE_ATTACH => {
            return trace::attach(pid, true, Wishes::empty()).map(|()| 0);
        }
        request::PTRACE_SEIZE => {
            trace::find(pid)?;
            return seize(pid, addr, data).map(|()| 0);
        }
        request::PTRACE_INTERRUPT => return trace::interrupt(pid).map(|()| 0),
        request::PTRACE_KILL => return trace::kill(pid).map(|()| 0),
        _ => trace::with_stopped(pid, |_, _| Ok(()))?,
    }
    match what {
        request::PTRACE_LISTEN => trace::listen(pid)?,
        request::PTRACE_PEEKTEXT | request::PTRACE_PEEKDATA => user::put(data, &peek(pid, addr)?)?,
        request::PTRACE_POKETEXT | request::PTRACE_POKEDATA => poke(pid, addr, data)?,
        request::PTRACE_PEEKUSR => user::put(data, &peek_user(pid, addr)?)?,
        request::PTRACE_POKEUSR => poke_user(pid, addr, data)?,
        GETREGS => {
            let registers = trace::with_stopped(pid, |_, stop| Ok(shown(&stop.regs)))?;
            user::copy_out(data, registers.as_bytes())?;
        }
        SETREGS => {
            let new: Registers = user::get(data)?;
            change(pid, |registers| *registers = new)?;
        }
        GETFPREGS => user::copy_out(data, &legacy_state(pid)?)?,
        SETFPREGS => {
            let new: [u8; LEGACY] = user::get(data)?;
            set_vector_state(pid, &new)?;
        }
        ARCH_PRCTL => segment_base(pid, data, addr)?,
        request::PTRACE_GETREGSET => get_set(pid, addr, data)?,
        request::PTRACE_SETREGSET => set_set(pid, addr, data)?,
        request::PTRACE_GETSIGINFO => {
            let info = trace::with_stopped(pid, |_, stop| stop.info.ok_or(EINVAL))?;
            user::copy_out(data, &info)?;
        }
        request::PTRACE_SETSIGINFO => {
            let new: [u8; 128] = user::get(data)?;
            trace::with_stopped(pid, |_, stop| {
                stop.info.as_mut().map(|info| *info = new).ok_or(EINVAL)
            })?;
        }
        request::PTRACE_PEEKSIGINFO => return peek_signals(pid, addr, data),
        request::PTRACE_GETSIGMASK | request::PTRACE_SETSIGMASK if addr != WORD => {
            return Err(EINVAL)
        }
        request::PTRACE_GETSIGMASK => {
            let mask = trace::with_stopped(pid, |thread, stop| {
                let own = || thread.saved_mask.lock().unwrap_or(thread.mask());
                Ok(stop.mask.unwrap_or_else(own))
            })?;
            user::put(data, &mask.0)?;
        }
        request::PTRACE_SETSIGMASK => {
            let mask = SigSet(user::get(data)?).without(SigSet::UNBLOCKABLE);
            trace::with_stopped(pid, |_, stop| {
                stop.mask = Some(mask);
                Ok(())
            })?;
        }
        request::PTRACE_GETEVENTMSG => {
            let message = trace::with_stopped(pid, |_, stop| Ok(stop.message))?;
            user::put(data, &message)?;
        }
        request::PTRACE_GET_SYSCALL_INFO => return call_info(pid, addr, data),
        // There are no restartable sequences: none is registered.
        request::PTRACE_GET_RSEQ_CONFIGURATION => {
            let mut configuration = [0; RSEQ];
            configuration[8] = RSEQ_AREA;
            user::copy_out(data, &configuration[..RSEQ.min(addr as usize)])?;
            return Ok(RSEQ as u64);
        }
        // Nor are there filters of system calls.
        request::PTRACE_SECCOMP_GET_FILTER | request::PTRACE_SECCOMP_GET_METADATA
            if !current_process().cred().has(Caps::SYS_ADMIN) =>
        {
            return Err(EACCES)
        }
        request::PTRACE_SECCOMP_GET_METADATA if addr >= WORD => {
            let _: u64 = user::get(data)?;
            return Err(EINVAL);
        }
        request::PTRACE_SECCOMP_GET_FILTER | request::PTRACE_SECCOMP_GET_METADATA => {
            return Err(EINVAL)
        }
        GET_THREAD_AREA if (addr as i32) >= 0 && !THREAD_AREAS.contains(&(addr as i32)) => {
            return Err(EINVAL)
        }
        SET_THREAD_AREA => {
            let _: [u64; 2] = user::get(data)?;
            return Err(EIO);
        }
        request::PTRACE_SETOPTIONS | OLDSETOPTIONS => trace::set_wishes(pid, trace::wishes(data)?)?,
        request::PTRACE_CONT => trace::resume(pid, Resume::On, signal(data)?)?,
        request::PTRACE_SYSCALL => trace::resume(pid, Resume::Calls, signal(data)?)?,
        request::PTRACE_SINGLESTEP => trace::resume(pid, Resume::Step, signal(data)?)?,
        SYSEMU => trace::resume(pid, Resume::Emulate, signal(data)?)?,
        SYSEMU_SINGLESTEP => trace::resume(pid, Resume::EmulatedStep, signal(data)?)?,
        SINGLEBLOCK => trace::resume(pid, Resume::Block, signal(data)?)?,
        // Linux takes half of the word.
        request::PTRACE_DETACH => {
            trace::resume(pid, Resume::Free, signal(u64::from(data as u32))?)?
        }
        _ => return Err(EIO),
    }
    Ok(0)
}

/// `PTRACE_SETOPTIONS` as it was numbered first.
const OLDSETOPTIONS: u32 = 21;

/// Bytes of `struct ptrace_rseq_configuration`, and what Linux says that sequences take.
const RSEQ: usize = 24;
const RSEQ_AREA: u8 = 32;

/// Another errno for unknown options than `PTRACE_SETOPTIONS`, as on Linux.
fn seize(pid: Pid, addr: u64, data: u64) -> Result<()> {
    if addr != 0 {
        return Err(EIO);
    }
    let wishes = trace::wishes(data).map_err(|errno| if errno == EINVAL { EIO } else { errno })?;
    trace::attach(pid, false, wishes)
}

/// Signals that a tracee has yet to take, as they came; how many there were.
fn peek_signals(pid: Pid, asked: u64, to: u64) -> Result<u64> {
    /// Bytes looked at for one.
    const LOOK: usize = 256;
    let [from, rest]: [u64; 2] = user::get(asked)?;
    let (flags, count) = (rest as u32, (rest >> 32) as i32);
    if flags > 1 || count < 0 {
        return Err(EINVAL);
    }
    let queue = if flags == 1 { Queue::Process } else { Queue::Thread };
    for n in 0..count as u64 {
        let at = from.checked_add(n).and_then(|at| usize::try_from(at).ok());
        let found = match at {
            Some(at) => trace::queued(pid, queue, at)?,
            None => None,
        };
        let Some(info) = found else { return Ok(n) };
        match user::copy_out(to.wrapping_add(128 * n), &info.to_bytes()) {
            Err(errno) if n == 0 => return Err(errno),
            Err(_) => return Ok(n),
            Ok(()) => {}
        }
        if sched::work_done(LOOK) && sched::is_leaving() {
            return Ok(n + 1);
        }
    }
    Ok(count as u64)
}

/// `arch_prctl` for a tracee; a base is told the tracer.
fn segment_base(pid: Pid, code: u64, value: u64) -> Result<()> {
    match SegmentCall::numbered(code) {
        Some(SegmentCall::Set(_)) if value >= USER_END => Err(EPERM),
        Some(SegmentCall::Set(which)) => trace::with_stopped(pid, |_, stop| {
            let mut bases = stop.regs.bases();
            bases[which] = value;
            stop.regs.set_bases(bases);
            Ok(())
        }),
        Some(SegmentCall::Get(which)) => {
            let base = trace::with_stopped(pid, |_, stop| Ok(stop.regs.bases()[which]))?;
            user::put(value, &base)
        }
        Some(SegmentCall::GetCpuid) | None => Err(EINVAL),
    }
}

/// A word of `struct user`.
fn peek_user(pid: Pid, offset: u64) -> Result<u64> {
    if let Some(n) = debug_register(offset) {
        return trace::with_stopped(pid, |thread, _| {
            Ok(thread.task().map_or(0, |task| task.watch.get(n)))
        });
    }
    let register = register(offset)?;
    trace::with_stopped(pid, |_, stop| Ok(register.map_or(0, |at| shown(&stop.regs)[at])))
}

fn poke_user(pid: Pid, offset: u64, word: u64) -> Result<()> {
    if let Some(n) = debug_register(offset) {
        // Registers 4 and 5 are none.
        let error = if matches!(n, 4 | 5) { EIO } else { EINVAL };
        return trace::with_stopped(pid, |thread, _| {
            thread.task().ok_or(ESRCH)?.watch.set(n, word).ok_or(error)
        });
    }
    let at = register(offset)?.ok_or(EIO)?;
    change(pid, |registers| registers[at] = word)
}

/// The debug register at an offset of `struct user`.
fn debug_register(offset: u64) -> Option<usize> {
    let at = offset.checked_sub(abi::DEBUG_REGISTERS).filter(|at| at.is_multiple_of(WORD))?;
    (offset < abi::DEBUG_REGISTERS_END).then_some((at / WORD) as usize)
}

/// A tracee's vector state, with the CPU's components where debuggers look for them.
fn vector_state(pid: Pid) -> Result<Vec<u8>> {
    let mut state = Vec::new();
    state.room(fpu::State::size())?;
    trace::with_stopped(pid, |_, stop| {
        state.extend_from_slice(&stop.fpu);
        Ok(())
    })?;
    fpu::State::tell_components(&mut state);
    Ok(state)
}

/// The part that each CPU has, without what the CPU leaves to programs.
fn legacy_state(pid: Pid) -> Result<[u8; LEGACY]> {
    const END: usize = 416;
    let mut bytes = [0; LEGACY];
    bytes[..END].copy_from_slice(&vector_state(pid)?[..END]);
    Ok(bytes)
}

/// Replaces a tracee's vector state, or its first bytes.
fn set_vector_state(pid: Pid, bytes: &[u8]) -> Result<()> {
    trace::with_stopped(pid, |_, stop| {
        let state = &mut stop.fpu;
        if bytes.len() > state.len() || !fpu::State::accepts(bytes) {
            return Err(EINVAL);
        }
        state[..bytes.len()].copy_from_slice(bytes);
        if bytes.len() == LEGACY {
            fpu::State::use_legacy(state);
        }
        stop.changes_fpu = true;
        Ok(())
    })
}

/// A register set, as far as there is room for it, in words.
fn get_set(pid: Pid, kind: u64, vector: u64) -> Result<()> {
    let [at, room]: [u64; 2] = user::get(vector)?;
    let (state, legacy, registers);
    // Linux takes half of the word.
    let kind = u64::from(kind as u32);
    let bytes = match kind {
        _ if !room.is_multiple_of(WORD) => return Err(EINVAL),
        NT_PRSTATUS => {
            registers = trace::with_stopped(pid, |_, stop| Ok(shown(&stop.regs)))?;
            registers.as_bytes()
        }
        NT_PRFPREG => {
            legacy = legacy_state(pid)?;
            &legacy[..]
        }
        NT_X86_XSTATE if !fpu::State::has_components() => return Err(ENODEV),
        NT_X86_XSTATE => {
            state = vector_state(pid)?;
            &state[..]
        }
        NT_386_IOPERM => return Err(ENXIO),
        _ => return Err(EINVAL),
    };
    let len = (room as usize).min(bytes.len());
    user::copy_out(at, &bytes[..len])?;
    user::put(vector.wrapping_add(WORD), &(len as u64))
}

fn set_set(pid: Pid, kind: u64, vector: u64) -> Result<()> {
    let [at, len]: [u64; 2] = user::get(vector)?;
    let kind = u64::from(kind as u32);
    let most = match kind {
        _ if !len.is_multiple_of(WORD) => return Err(EINVAL),
        NT_PRSTATUS => size_of::<Registers>(),
        NT_PRFPREG => LEGACY,
        NT_X86_XSTATE if !fpu::State::has_components() => return Err(ENODEV),
        NT_X86_XSTATE => fpu::State::size(),
        NT_386_IOPERM => return Err(EOPNOTSUPP),
        _ => return Err(EINVAL),
    };
    let len = most.min(len as usize);
    let mut new = Vec::new();
    new.room(len)?;
    new.resize(len, 0);
    match kind {
        NT_PRSTATUS => {
            user::copy_in(&mut new, at)?;
            change(pid, |registers| registers.as_mut_bytes()[..len].copy_from_slice(&new))?;
        }
        // The vector state is set as a whole.
        NT_PRFPREG if len != LEGACY => return Err(EINVAL),
        NT_X86_XSTATE if len != most => return Err(EFAULT),
        _ => {
            user::copy_in(&mut new, at)?;
            set_vector_state(pid, &new)?;
        }
    }
    user::put(vector.wrapping_add(WORD), &(len as u64))
}

/// `struct ptrace_syscall_info`: as much of it as there is room for. Returns how much there is.
fn call_info(pid: Pid, room: u64, to: u64) -> Result<u64> {
    const HEAD: usize = 24;
    let mut info = [0u8; 88];
    let len = trace::with_stopped(pid, |_, stop| {
        let regs = &stop.regs;
        let mut put = |at: usize, word: u64| {
            info[at..at + WORD as usize].copy_from_slice(&word.to_le_bytes());
        };
        put(0, u64::from(abi::AUDIT_ARCH) << 32);
        put(8, regs.instruction_pointer());
        put(16, regs.stack_pointer());
        let is_told = stop.code & 0x80 != 0;
        Ok(match stop.why {
            Why::Call(Side::Entry) if is_told => {
                put(HEAD, regs.call_number());
                (0..6).for_each(|n| put(HEAD + 8 + 8 * n, regs.argument(n)));
                info[0] = 1;
                HEAD + 56
            }
            Why::Call(Side::Exit) if is_told => {
                put(HEAD, regs.result());
                (info[0], info[HEAD + 8]) = (2, u8::from(regs.result() > ERRORS));
                HEAD + 9
            }
            _ => HEAD,
        })
    })?;
    user::copy_out(to, &info[..len.min(room as usize)])?;
    Ok(len as u64)
}

/// The signal of a request; 0 is none.
fn signal(data: u64) -> Result<Option<Signal>> {
    if data == 0 {
        return Ok(None);
    }
    let number = i32::try_from(data).map_err(|_| EIO)?;
    Signal::new(number).map(Some).map_err(|_| EIO)
}

/// The register at an offset of `struct user`; `None` for another word of it.
fn register(offset: u64) -> Result<Option<usize>> {
    if !offset.is_multiple_of(WORD) || offset >= USER_SIZE {
        return Err(EIO);
    }
    Ok(Some((offset / WORD) as usize).filter(|&at| at < REGISTERS))
}

/// A word of a tracee's memory.
fn peek(pid: Pid, addr: u64) -> Result<u64> {
    let space = space(pid)?;
    let mut word = [0; WORD as usize];
    let piece = IoVec { addr, len: word.len() };
    match foreign_memory::read(&space, As::Debugger, &[piece], &mut Sink::kernel(&mut word)) {
        Ok(n) if n == word.len() => Ok(u64::from_le_bytes(word)),
        Err(ENOMEM) => Err(ENOMEM),
        _ => Err(EIO),
    }
}

fn poke(pid: Pid, addr: u64, word: u64) -> Result<()> {
    let space = space(pid)?;
    let bytes = word.to_le_bytes();
    let piece = IoVec { addr, len: bytes.len() };
    match foreign_memory::write(&space, As::Debugger, &[piece], &mut Source::kernel(&bytes)) {
        Ok(n) if n == bytes.len() => Ok(()),
        Err(ENOMEM) => Err(ENOMEM),
        _ => Err(EIO),
    }
}

fn space(pid: Pid) -> Result<Arc<Space>> {
    let mm = trace::with_stopped(pid, |thread, _| thread.mm().ok_or(ESRCH))?;
    access::may_debug(&mm).map_err(|_| EIO)?;
    Ok(mm.space.clone())
}

/// Changes a tracee's registers, as far as a program could itself.
fn change(pid: Pid, f: impl FnOnce(&mut Registers)) -> Result<()> {
    trace::with_stopped(pid, |_, stop| {
        let mut new = shown(&stop.regs);
        f(&mut new);
        abi::change(&mut stop.regs, &new).ok_or(EIO)
    })
}
