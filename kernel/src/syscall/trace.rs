//! `ptrace`: stops, registers and memory of another process, for debuggers. What it doesn't do is
//! refused with `EIO`.

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::ptrace as request;
use zerocopy::IntoBytes;

use super::{calls, Calls};
use crate::arch::abi::ptrace::{
    self as abi, shown, Registers, GETFPREGS, GETREGS, REGISTERS, SETFPREGS, SETREGS, USER_SIZE,
};
use crate::arch::fpu;
use crate::errno::*;
use crate::mem::fault::Room;
use crate::proc::access;
use crate::proc::foreign_memory::{self, As};
use crate::proc::signal::{SigInfo, SigSet, Signal};
use crate::proc::trace::{self, Resume, Side, Why, Wishes};
use crate::proc::Pid;
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

/// Bytes of the vector state that each CPU has.
const LEGACY: usize = 512;

/// Results above are errors.
const ERRORS: u64 = -4096i64 as u64;

const WORD: u64 = 8;

fn ptrace(what: u64, pid: Pid, addr: u64, data: u64) -> Result<u64> {
    match what as u32 {
        request::PTRACE_TRACEME => trace::begin_by_parent()?,
        request::PTRACE_ATTACH => trace::attach(pid, true, Wishes::empty())?,
        request::PTRACE_SEIZE if addr != 0 => return Err(EIO),
        request::PTRACE_SEIZE => {
            trace::attach(pid, false, trace::wishes(data).map_err(|_| EIO)?)?;
        }
        request::PTRACE_INTERRUPT => trace::interrupt(pid)?,
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
        GETFPREGS => user::copy_out(data, &vector_state(pid)?[..LEGACY])?,
        SETFPREGS => {
            let new: [u8; LEGACY] = user::get(data)?;
            set_vector_state(pid, &new)?;
        }
        request::PTRACE_GETREGSET => get_set(pid, addr, data)?,
        request::PTRACE_SETREGSET => set_set(pid, addr, data)?,
        request::PTRACE_GETSIGINFO => {
            let info = trace::with_stopped(pid, |_, stop| stop.info.ok_or(EINVAL))?;
            user::copy_out(data, &info.to_bytes())?;
        }
        request::PTRACE_SETSIGINFO => {
            let bytes: [u8; 128] = user::get(data)?;
            let new = SigInfo::from_bytes(&bytes)?;
            trace::with_stopped(pid, |_, stop| {
                stop.info.as_mut().map(|info| *info = new).ok_or(EINVAL)
            })?;
        }
        request::PTRACE_GETSIGMASK | request::PTRACE_SETSIGMASK if addr != WORD => {
            return Err(EINVAL)
        }
        request::PTRACE_GETSIGMASK => {
            let mask =
                trace::with_stopped(pid, |thread, stop| Ok(stop.mask.unwrap_or(thread.mask())))?;
            user::put(data, &mask.0)?;
        }
        request::PTRACE_SETSIGMASK => {
            let mask = SigSet(user::get(data)?);
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
        request::PTRACE_SETOPTIONS => trace::set_wishes(pid, trace::wishes(data)?)?,
        request::PTRACE_CONT => trace::resume(pid, Resume::On, signal(data)?)?,
        request::PTRACE_SYSCALL => trace::resume(pid, Resume::Calls, signal(data)?)?,
        request::PTRACE_SINGLESTEP => trace::resume(pid, Resume::Step, signal(data)?)?,
        request::PTRACE_DETACH => trace::resume(pid, Resume::Free, signal(data)?)?,
        request::PTRACE_KILL => trace::kill(pid)?,
        _ => return Err(EIO),
    }
    Ok(0)
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
    (offset < USER_SIZE).then_some((at / WORD) as usize)
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

/// A register set, as far as there is room for it.
fn get_set(pid: Pid, kind: u64, vector: u64) -> Result<()> {
    let [at, room]: [u64; 2] = user::get(vector)?;
    let state;
    let registers;
    let bytes = match kind {
        NT_PRSTATUS => {
            registers = trace::with_stopped(pid, |_, stop| Ok(shown(&stop.regs)))?;
            registers.as_bytes()
        }
        NT_PRFPREG | NT_X86_XSTATE => {
            state = vector_state(pid)?;
            if kind == NT_PRFPREG {
                &state[..LEGACY]
            } else {
                &state[..]
            }
        }
        _ => return Err(EINVAL),
    };
    let len = (room as usize).min(bytes.len());
    user::copy_out(at, &bytes[..len])?;
    user::put(vector.wrapping_add(WORD), &(len as u64))
}

fn set_set(pid: Pid, kind: u64, vector: u64) -> Result<()> {
    let [at, len]: [u64; 2] = user::get(vector)?;
    let len = len as usize;
    match kind {
        NT_PRSTATUS => {
            let len = len.min(size_of::<Registers>());
            if !(len as u64).is_multiple_of(WORD) {
                return Err(EINVAL);
            }
            let mut new = [0u8; size_of::<Registers>()];
            user::copy_in(&mut new[..len], at)?;
            change(pid, |registers| registers.as_mut_bytes()[..len].copy_from_slice(&new[..len]))?;
        }
        NT_PRFPREG if len == LEGACY => {
            let new: [u8; LEGACY] = user::get(at)?;
            set_vector_state(pid, &new)?;
        }
        NT_X86_XSTATE if len == fpu::State::size() => {
            let mut new = Vec::new();
            new.room(len)?;
            new.resize(len, 0);
            user::copy_in(&mut new, at)?;
            set_vector_state(pid, &new)?;
        }
        _ => return Err(EINVAL),
    }
    Ok(())
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
    Signal::new(data as i32).map(Some).map_err(|_| EIO)
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
