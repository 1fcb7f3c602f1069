//! System calls on process descriptors.

use linux_raw_sys::general as abi;

use super::path_args::only;
use super::signal::{check_code, optional, read_info};
use super::{calls, Calls};
use crate::errno::{Result, EBADF, EINVAL, ESRCH};
use crate::fs::fdtable::OnExec;
use crate::proc::access::{self, By};
use crate::proc::pidfd::PidFd;
use crate::proc::signal::{send, SIGKILL};
use crate::proc::{curproc, table, Pid};
use crate::{procfs, user};

pub const CALLS: Calls = calls! {
    __NR_pidfd_open => pidfd_open[2],
    __NR_pidfd_send_signal => pidfd_send_signal[4],
    __NR_pidfd_getfd => pidfd_getfd[3],
};

fn pidfd_open(pid: Pid, flags: u32) -> Result<i32> {
    only(flags, abi::O_NONBLOCK)?;
    if pid <= 0 {
        return Err(EINVAL);
    }
    // A thread that stands for no process has no descriptor.
    let error = || if table::thread(pid).is_some() { EINVAL } else { ESRCH };
    let process = table::process(pid).ok_or_else(error)?;
    curproc::files()?.insert(PidFd::of(&process).file(flags)?, OnExec::Close)
}

/// A process is also named by its folder in `/proc`.
fn pidfd_send_signal(fd: i32, number: i32, info: u64, flags: u32) -> Result<()> {
    only(flags, 0)?;
    let file = curproc::file(fd)?;
    let pidfd = PidFd::of_file(&file).or_else(|| procfs::pidfd_of_folder(&file)).ok_or(EBADF)?;
    let given = match info {
        0 => None,
        at => {
            let info = read_info(optional(number).ok().flatten().unwrap_or(SIGKILL), at)?;
            if user::get::<i32>(at)? != number {
                return Err(EINVAL);
            }
            check_code(&info, pidfd.pid())?;
            Some(info)
        }
    };
    let process = pidfd.process()?;
    let signal = optional(number)?;
    let info = signal.map(|signal| given.unwrap_or_else(|| send::by_user(signal)));
    access::may_signal(&process, signal)?;
    info.map_or(Ok(()), |info| send::send_to_process(&process, info))
}

fn pidfd_getfd(fd: i32, target: i32, flags: u32) -> Result<i32> {
    only(flags, 0)?;
    let own = curproc::file(fd)?;
    let process = PidFd::of_file(&own).ok_or(EBADF)?.process()?;
    let file = access::look_into(&process, By::Real, || process.files()?.get_any(target))?;
    curproc::files()?.insert(file, OnExec::Close)
}
