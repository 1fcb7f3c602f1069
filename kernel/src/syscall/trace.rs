//! `ptrace`: stops, registers and memory of another process, for debuggers. What it doesn't do is
//! refused with `EIO`.

use alloc::sync::Arc;

use linux_raw_sys::ptrace as request;
use zerocopy::IntoBytes;

use super::{calls, Calls};
use crate::arch::abi::ptrace::{
    self as abi, shown, Registers, GETREGS, REGISTERS, SETREGS, USER_SIZE,
};
use crate::errno::*;
use crate::proc::access;
use crate::proc::foreign_memory::{self, As};
use crate::proc::signal::{Signal, SIGKILL};
use crate::proc::trace::{self, Resume};
use crate::proc::Pid;
use crate::uio::{IoVec, Sink, Source};
use crate::user;
use crate::vm::Space;

pub const CALLS: Calls = calls! {
    __NR_ptrace => ptrace[4],
};

/// The register set that `PTRACE_GETREGSET` knows.
const NT_PRSTATUS: u64 = 1;

const WORD: u64 = 8;
fn ptrace(what: u64, pid: Pid, addr: u64, data: u64) -> Result<u64> {
    match what as u32 {
        request::PTRACE_TRACEME => trace::begin_by_parent()?,
        request::PTRACE_ATTACH => trace::attach(pid, true)?,
        request::PTRACE_SEIZE => trace::attach(pid, false)?,
        request::PTRACE_PEEKTEXT | request::PTRACE_PEEKDATA => user::put(data, &peek(pid, addr)?)?,
        request::PTRACE_POKETEXT | request::PTRACE_POKEDATA => poke(pid, addr, data)?,
        request::PTRACE_PEEKUSR => {
            let word = register(addr)?
                .map_or(Ok(0), |at| trace::with_stopped(pid, |_, s| Ok(shown(&s.regs)[at])))?;
            user::put(data, &word)?;
        }
        request::PTRACE_POKEUSR => {
            let at = register(addr)?.ok_or(EIO)?;
            change(pid, |registers| registers[at] = data)?;
        }
        GETREGS => {
            let registers = trace::with_stopped(pid, |_, stop| Ok(shown(&stop.regs)))?;
            user::copy_out(data, registers.as_bytes())?;
        }
        SETREGS => {
            let new: Registers = user::get(data)?;
            change(pid, |registers| *registers = new)?;
        }
        request::PTRACE_GETREGSET if addr == NT_PRSTATUS => {
            let [at, room]: [u64; 2] = user::get(data)?;
            let registers = trace::with_stopped(pid, |_, stop| Ok(shown(&stop.regs)))?;
            let len = (room as usize).min(size_of::<Registers>());
            user::copy_out(at, &registers.as_bytes()[..len])?;
            user::put(data + WORD, &(len as u64))?;
        }
        request::PTRACE_GETSIGINFO => {
            let info = trace::with_stopped(pid, |_, stop| Ok(stop.info))?;
            user::copy_out(data, &info.to_bytes())?;
        }
        // Options ask for stops that there are none of.
        request::PTRACE_SETOPTIONS if data == 0 => trace::with_stopped(pid, |_, _| Ok(()))?,
        request::PTRACE_SETOPTIONS => return Err(EINVAL),
        request::PTRACE_CONT => trace::resume(pid, Resume::On, signal(data)?)?,
        request::PTRACE_SINGLESTEP => trace::resume(pid, Resume::Step, signal(data)?)?,
        request::PTRACE_DETACH => trace::resume(pid, Resume::Free, signal(data)?)?,
        request::PTRACE_KILL => trace::resume(pid, Resume::On, Some(SIGKILL))?,
        _ => return Err(EIO),
    }
    Ok(0)
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
