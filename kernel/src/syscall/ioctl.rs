//! `ioctl`: the few requests that all files share; the rest is the file's own business.

use linux_raw_sys::general::FASYNC;
use linux_raw_sys::ioctl as abi;

use super::{calls, fd, Calls};
use crate::cred::caps::Caps;
use crate::dev::tty;
use crate::errno::*;
use crate::fs::fdtable::OnExec;
use crate::fs::file::File;
use crate::fs::inode::Kind;
use crate::fs::signals;
use crate::proc::curproc;
use crate::user;

pub const CALLS: Calls = calls! { __NR_ioctl => ioctl[3], __NR_vhangup => vhangup[0] };

fn vhangup() -> Result<()> {
    curproc::cred().need(Caps::SYS_TTY_CONFIG)?;
    tty::hang_up_own();
    Ok(())
}

/// Of sockets: who is told of them.
const FIOSETOWN: u32 = 0x8901;
const SIOCSPGRP: u32 = 0x8902;
const FIOGETOWN: u32 = 0x8903;
const SIOCGPGRP: u32 = 0x8904;

/// Bytes of a block, of any file system.
const BLOCK: i32 = 4096;

fn is_socket(file: &File) -> bool {
    file.inode().kind() == Kind::Socket
}

fn ioctl(fd: i32, request: u32, arg: u64) -> Result<u64> {
    let files = curproc::files()?;
    let file = files.get(fd)?;
    match request {
        abi::FIOCLEX => files.set_on_exec(fd, OnExec::Close)?,
        abi::FIONCLEX => files.set_on_exec(fd, OnExec::Keep)?,
        abi::FIONBIO => file.set_nonblocking(user::get(arg)?),
        abi::FIOASYNC => {
            let on: i32 = user::get(arg)?;
            signals::set_async(&file, fd, on != 0)?;
            if on != 0 && file.flags() & FASYNC == 0 {
                return Err(ENOTTY);
            }
        }
        FIOSETOWN | SIOCSPGRP if is_socket(&file) => fd::set_owner(&file, user::get(arg)?)?,
        FIOGETOWN | SIOCGPGRP if is_socket(&file) => user::put(arg, &fd::owner(&file))?,
        abi::FIONREAD if file.inode().kind() == Kind::File && file.is_seekable() => {
            let left = file.with_position(|at| Ok(file.inode().stat().size.saturating_sub(*at)))?;
            user::put(arg, &(left.min(i32::MAX as u64) as i32))?;
        }
        abi::FIOQSIZE if matches!(file.inode().kind(), Kind::File | Kind::Dir) => {
            user::put(arg, &file.inode().stat().size)?;
        }
        abi::FIGETBSZ => user::put(arg, &BLOCK)?,
        _ => return file.io().ioctl(&file, request, arg),
    }
    Ok(0)
}
