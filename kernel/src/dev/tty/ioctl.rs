//! The terminal's `ioctl` calls.

use linux_raw_sys::ioctl as abi;

use super::termios::{Termios, WinSize};
use super::{check_foreground, signal_group, Job, Tty, Use};
use crate::errno::*;
use crate::proc;
use crate::user;

pub(super) fn ioctl(tty: &Tty, request: u32, arg: u64) -> Result<u64> {
    match request {
        abi::TCGETS => {
            let termios = tty.line.lock().termios;
            user::put(arg, &termios)?;
        }
        abi::TCSETS | abi::TCSETSW | abi::TCSETSF => {
            let termios: Termios = user::get(arg)?;
            check_foreground(Use::Change)?;
            if request == abi::TCSETSF {
                tty.flush_input();
            }
            tty.line.lock().set_termios(termios);
            tty.readers.wake_all();
            tty.writers.wake_all();
        }
        abi::TIOCGWINSZ => {
            let size = *tty.size.lock();
            user::put(arg, &size)?;
        }
        abi::TIOCSWINSZ => set_size(tty, user::get(arg)?),
        abi::TIOCGPGRP => {
            let foreground = owned_job(tty, |job| job.foreground)?;
            user::put(arg, &foreground)?;
        }
        abi::TIOCSPGRP => set_foreground(tty, user::get(arg)?)?,
        abi::TIOCGSID => {
            let session = owned_job(tty, |job| job.session)?;
            user::put(arg, &session)?;
        }
        abi::TIOCSCTTY => set_controlling(tty)?,
        abi::TIOCNOTTY => {
            let process = proc::current_process();
            owned_job(tty, |_| ())?;
            if process.sid() == process.pid {
                super::session_ended(process.sid());
            }
        }
        abi::FIONREAD => {
            let available = tty.line.lock().available() as i32;
            user::put(arg, &available)?;
        }
        abi::TIOCOUTQ => user::put(arg, &0i32)?,
        abi::TCFLSH => {
            if arg == 0 || arg == 2 {
                tty.flush_input();
            } else if arg != 1 {
                return Err(EINVAL);
            }
        }
        abi::TCSBRK | abi::TCSBRKP | abi::TCXONC | abi::TIOCEXCL | abi::TIOCNXCL => {}
        abi::TIOCGETD => user::put(arg, &0i32)?,
        _ => return Err(ENOTTY),
    }
    Ok(0)
}

/// Something done with the job of the caller's controlling terminal; `ENOTTY` if this isn't it.
fn owned_job<T>(tty: &Tty, act: impl FnOnce(&mut Job) -> T) -> Result<T> {
    let mut job = tty.job.lock();
    if job.session == 0 || job.session != proc::current_process().sid() {
        return Err(ENOTTY);
    }
    Ok(act(&mut job))
}

pub(super) fn set_size(tty: &Tty, size: WinSize) {
    let group = {
        let mut now = tty.size.lock();
        if (now.rows, now.cols) == (size.rows, size.cols) {
            return;
        }
        *now = size;
        drop(now);
        tty.job.lock().foreground
    };
    signal_group(group, linux_raw_sys::general::SIGWINCH);
}

fn set_foreground(tty: &Tty, group: i32) -> Result<()> {
    owned_job(tty, |_| ())?;
    check_foreground(Use::Change)?;
    if group < 0 {
        return Err(EINVAL);
    }
    let own = proc::current_process().sid();
    // With the table locked the group's number stays its own.
    proc::table::with(|table| match table.group_session(group) {
        None => Err(ESRCH),
        Some(session) if session != own => Err(EPERM),
        Some(_) => owned_job(tty, |job| job.foreground = group),
    })
}

/// Only the leader of a session without a terminal gets one.
fn set_controlling(tty: &Tty) -> Result<()> {
    let process = proc::current_process();
    let mut job = tty.job.lock();
    if job.session == process.sid() {
        return Ok(());
    }
    if process.sid() != process.pid || job.session != 0 {
        return Err(EPERM);
    }
    *job = Job { session: process.sid(), foreground: process.pgid() };
    Ok(())
}
