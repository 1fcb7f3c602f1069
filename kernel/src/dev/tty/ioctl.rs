//! The terminals' `ioctl` calls.

use alloc::sync::Arc;

use linux_raw_sys::general;
use linux_raw_sys::ioctl as abi;

use super::jobs::{self, check, own, set_foreground, signal_group, Use};
use super::pty::Pty;
use super::termios::{Termio, Termios, Termios2};
use super::{devpts, Tty};
use crate::cred::caps::Caps;
use crate::errno::*;
use crate::fs::fdtable::OnExec;
use crate::fs::file::File;
use crate::proc::{self, curproc};
use crate::user;

/// Which end of a terminal a program has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Program,
    Master,
}

/// Requests for `struct termios2`.
const TCSETS2: u32 = 0x402c_542b;
const TCSETSW2: u32 = 0x402c_542c;
const TCSETSF2: u32 = 0x402c_542d;

pub(super) fn ioctl(tty: &Arc<Tty>, end: End, file: &File, request: u32, arg: u64) -> Result<u64> {
    match request {
        abi::TCGETS => {
            let termios = tty.line.lock().termios;
            user::put(arg, &termios)?;
        }
        abi::TCGETS2 => {
            let termios = tty.line.lock().termios;
            user::put(arg, &Termios2::of(&termios))?;
        }
        abi::TCSETS | abi::TCSETSW | abi::TCSETSF => {
            set_termios(tty, user::get(arg)?, request == abi::TCSETSF)?;
        }
        TCSETS2 | TCSETSW2 | TCSETSF2 => {
            let Termios2 { termios, .. } = user::get(arg)?;
            // Speeds that have no name can't be kept.
            if termios.cflag & general::CBAUD == general::BOTHER {
                return Err(EINVAL);
            }
            set_termios(tty, termios, request == TCSETSF2)?;
        }
        abi::TCGETA => {
            let termios = tty.line.lock().termios;
            user::put(arg, &Termio::of(&termios))?;
        }
        abi::TCSETA | abi::TCSETAW | abi::TCSETAF => {
            let termio: Termio = user::get(arg)?;
            let rest = tty.line.lock().termios;
            set_termios(tty, termio.with(&rest), request == abi::TCSETAF)?;
        }
        abi::TIOCGLCKTRMIOS => {
            let locked = tty.line.lock().locked;
            user::put(arg, &locked)?;
        }
        abi::TIOCSLCKTRMIOS => {
            curproc::cred().need(Caps::SYS_ADMIN)?;
            let locked = user::get(arg)?;
            tty.line.lock().locked = locked;
        }
        abi::TIOCGWINSZ => {
            let size = *tty.size.lock();
            user::put(arg, &size)?;
        }
        abi::TIOCSWINSZ => tty.set_size(user::get(arg)?),
        // The master's program need not be in the session.
        abi::TIOCGPGRP => {
            let job = if end == End::Master { *tty.job.lock() } else { own(tty)? };
            user::put(arg, &job.foreground)?;
        }
        abi::TIOCSPGRP => set_foreground(tty, user::get(arg)?)?,
        abi::TIOCGSID => {
            let job = if end == End::Master { *tty.job.lock() } else { own(tty)? };
            if job.session == 0 {
                return Err(ENOTTY);
            }
            user::put(arg, &job.session)?;
        }
        abi::TIOCSCTTY => jobs::take(tty, arg == 1, file.is_readable())?,
        abi::TIOCNOTTY => {
            let process = proc::current_process();
            own(tty)?;
            if process.sid() == process.pid {
                jobs::give_up(tty, process.sid());
            }
        }
        abi::FIONREAD => {
            let available = match tty.pty().filter(|_| end == End::Master) {
                Some(pty) => pty.available(),
                None => tty.line.lock().available(),
            };
            user::put(arg, &(available as i32))?;
        }
        abi::TIOCOUTQ => user::put(arg, &0i32)?,
        abi::TCFLSH => flush(tty, end, arg)?,
        abi::TCSBRK | abi::TCSBRKP => check(tty, Use::Change)?,
        abi::TCXONC => flow(tty, arg)?,
        abi::TIOCEXCL => tty.is_exclusive.store(true, core::sync::atomic::Ordering::Relaxed),
        abi::TIOCNXCL => tty.is_exclusive.store(false, core::sync::atomic::Ordering::Relaxed),
        abi::TIOCGEXCL => {
            let is = tty.is_exclusive.load(core::sync::atomic::Ordering::Relaxed);
            user::put(arg, &i32::from(is))?;
        }
        abi::TIOCGETD => user::put(arg, &0i32)?,
        abi::TIOCSETD => {
            if user::get::<i32>(arg)? != 0 {
                return Err(EINVAL);
            }
        }
        abi::TIOCGDEV => user::put(arg, &(tty.number() as u32))?,
        abi::TIOCSTI => simulate(tty, user::get(arg)?)?,
        abi::TIOCVHANGUP => {
            curproc::cred().need(Caps::SYS_ADMIN)?;
            tty.hang_up();
        }
        _ => match tty.pty().filter(|_| end == End::Master) {
            Some(pty) => return of_master(tty, pty, request, arg),
            None => return Err(ENOTTY),
        },
    }
    Ok(0)
}

fn of_master(tty: &Arc<Tty>, pty: &Pty, request: u32, arg: u64) -> Result<u64> {
    match request {
        abi::TIOCGPTN => user::put(arg, &pty.index())?,
        abi::TIOCSPTLCK => pty.set_locked(user::get::<i32>(arg)? != 0),
        abi::TIOCGPTLCK => user::put(arg, &i32::from(pty.is_locked()))?,
        abi::TIOCPKT => pty.set_packets(user::get::<i32>(arg)? != 0),
        abi::TIOCGPKT => user::put(arg, &i32::from(pty.has_packets()))?,
        abi::TIOCSIG => {
            let number = arg as u32;
            if ![general::SIGINT, general::SIGQUIT, general::SIGTSTP].contains(&number) {
                return Err(EINVAL);
            }
            let group = tty.job.lock().foreground;
            signal_group(group, number);
        }
        abi::TIOCGPTPEER => return open_peer(tty, arg as u32),
        _ => return Err(ENOTTY),
    }
    Ok(0)
}

/// Opens the terminal of a master, whatever name leads to it.
fn open_peer(tty: &Arc<Tty>, flags: u32) -> Result<u64> {
    const KNOWN: u32 =
        general::O_ACCMODE | general::O_NONBLOCK | general::O_NOCTTY | general::O_CLOEXEC;
    let (place, flags) = (devpts::place(tty), flags & KNOWN);
    let file = File::open(place, flags)?;
    let fd = curproc::files()?.insert(file, OnExec::from_flags(flags))?;
    Ok(fd as u64)
}

fn set_termios(tty: &Tty, termios: Termios, flushes: bool) -> Result<()> {
    check(tty, Use::Change)?;
    if flushes {
        tty.flush_input();
    }
    tty.set_termios(termios);
    Ok(())
}

/// What was read is lost by a master's flush of its input: that is the terminal's output.
fn flush(tty: &Tty, end: End, what: u64) -> Result<()> {
    check(tty, Use::Change)?;
    if what > 2 {
        return Err(EINVAL);
    }
    let (typed, written) = match end {
        End::Program => (what != 1, what != 0),
        End::Master => (what != 0, what != 1),
    };
    if typed {
        tty.flush_input();
    }
    if let Some(pty) = tty.pty().filter(|_| written) {
        pty.flush_output();
        tty.writers.wake_all();
    }
    Ok(())
}

/// `tcflow`: holds output back or lets it go on, or types what does that at the other end.
fn flow(tty: &Tty, what: u64) -> Result<()> {
    check(tty, Use::Change)?;
    let key = match what {
        0 | 1 => {
            tty.hold(what == 0);
            return Ok(());
        }
        2 => general::VSTOP,
        3 => general::VSTART,
        _ => return Err(EINVAL),
    };
    let byte = tty.line.lock().termios.cc[key as usize];
    if byte != 0 {
        tty.put(&[byte]);
    }
    Ok(())
}

/// Has a byte typed, at one's own terminal.
fn simulate(tty: &Arc<Tty>, byte: u8) -> Result<()> {
    if own(tty).is_err() && !curproc::cred().has(Caps::SYS_ADMIN) {
        return Err(EPERM);
    }
    let _typing = tty.typing.lock();
    // One place is left to a byte that comes from the port meanwhile.
    if tty.line.lock().room() < 2 {
        return Err(EAGAIN);
    }
    tty.typed(byte);
    if let Some(pty) = tty.pty() {
        pty.echoed();
    }
    Ok(())
}
