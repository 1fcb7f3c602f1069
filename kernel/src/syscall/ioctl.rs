//! `ioctl`: the few requests that all files share; the rest is the file's own business.

use linux_raw_sys::ioctl as abi;

use super::{calls, Calls};
use crate::cred::caps::Caps;
use crate::dev::tty;
use crate::errno::*;
use crate::fs::fdtable::OnExec;
use crate::proc::curproc;
use crate::user;

pub const CALLS: Calls = calls! { __NR_ioctl => ioctl[3], __NR_vhangup => vhangup[0] };

fn vhangup() -> Result<()> {
    curproc::cred().need(Caps::SYS_TTY_CONFIG)?;
    tty::hang_up_own();
    Ok(())
}

fn ioctl(fd: i32, request: u32, arg: u64) -> Result<u64> {
    let files = curproc::files()?;
    let file = files.get(fd)?;
    match request {
        abi::FIOCLEX => files.set_on_exec(fd, OnExec::Close)?,
        abi::FIONCLEX => files.set_on_exec(fd, OnExec::Keep)?,
        abi::FIONBIO => file.set_nonblocking(user::get(arg)?),
        abi::FIOASYNC => {}
        abi::FIONREAD if file.is_seekable() => {
            let left = file.with_position(|at| Ok(file.inode().stat().size.saturating_sub(*at)))?;
            user::put(arg, &(left.min(i32::MAX as u64) as i32))?;
        }
        _ => return file.io().ioctl(&file, request, arg),
    }
    Ok(0)
}
