//! System calls on the machine: names, totals, and the odd switches of `prctl`.

use core::sync::atomic::{AtomicU64, Ordering};

use super::{calls, caps, Calls};
use crate::arch::abi::{self, SegmentCall};
use crate::arch::layout::USER_END;
use crate::arch::{cpu, ipi, UserRegs};
use crate::cred::caps::Caps;
use crate::errno::{Result, EINVAL, ENAMETOOLONG, ENODEV, ENOSYS, ENXIO, EPERM, ESRCH};
use crate::proc::signal::Signal;
use crate::proc::thread::TIMER_SLACK;
use crate::proc::{current_process, current_thread, table, uts};
use crate::sched::load;
use crate::{sched, user, vm};
use linux_raw_sys::prctl;

pub const CALLS: Calls = calls! {
    __NR_uname => uname[1],
    __NR_sethostname => sethostname[2],
    __NR_setdomainname => setdomainname[2],
    __NR_sysinfo => sysinfo[1],
    __NR_prctl => prctl[5],
    __NR_arch_prctl => arch_prctl[regs],
    __NR_membarrier => membarrier[3],
    __NR_getcpu => getcpu[2],
    __NR_personality => personality[1],
    __NR_rseq => absent[0],
};

/// Which numbers have been reported: one bit each.
static REPORTED: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];

/// One line for each call that isn't there, the first time it is made.
pub fn trace_unknown(number: u64) {
    let index = (number as usize).min(1023);
    let bit = 1 << (index % 64);
    let before = REPORTED[index / 64].fetch_or(bit, Ordering::Relaxed);
    if before & bit == 0 && crate::trace::TRACE.load(Ordering::Relaxed) {
        crate::control!("missing {number} {}", current_thread().comm());
    }
}

/// A call that programs probe for and do without.
fn absent() -> Result<()> {
    Err(ENOSYS)
}

fn uname(at: u64) -> Result<()> {
    const FIELD: usize = 65;
    let mut bytes = [0u8; 6 * FIELD];
    let mut field = |number: usize, text: &[u8]| {
        bytes[number * FIELD..number * FIELD + text.len()].copy_from_slice(text);
    };
    field(0, b"Linux");
    let (name, length) = uts::HOST.get();
    field(1, &name[..length]);
    field(2, crate::print::RELEASE.as_bytes());
    field(3, uts::VERSION.as_bytes());
    field(4, abi::MACHINE.as_bytes());
    let (name, length) = uts::DOMAIN.get();
    field(5, &name[..length]);
    user::copy_out(at, &bytes)
}

fn sethostname(at: u64, len: u32) -> Result<()> {
    set_name(&uts::HOST, at, len as usize)
}

fn setdomainname(at: u64, len: u32) -> Result<()> {
    set_name(&uts::DOMAIN, at, len as usize)
}

fn set_name(which: &uts::HostName, at: u64, len: usize) -> Result<()> {
    current_process().cred().need(Caps::SYS_ADMIN)?;
    let mut name = [0; uts::NAME_MAX];
    let name = name.get_mut(..len).ok_or(EINVAL)?;
    user::copy_in(name, at)?;
    which.set(name)
}

/// `struct sysinfo`.
#[derive(Clone, Copy, Default, zerocopy::IntoBytes, zerocopy::Immutable)]
#[repr(C)]
struct SysInfo {
    uptime: i64,
    loads: [u64; 3],
    total_ram: u64,
    free_ram: u64,
    shared_ram: u64,
    buffer_ram: u64,
    total_swap: u64,
    free_swap: u64,
    processes: u16,
    pad: u16,
    pad2: u32,
    total_high: u64,
    free_high: u64,
    unit: u32,
    pad3: u32,
}

fn sysinfo(at: u64) -> Result<()> {
    let stats = vm::stats();
    let info = SysInfo {
        uptime: (sched::now() / 1_000_000_000) as i64,
        total_ram: stats.total_pages * 4096,
        free_ram: stats.free_pages * 4096,
        total_swap: stats.swap_pages * 4096,
        free_swap: (stats.swap_pages - stats.swap_used) * 4096,
        loads: load::averages().map(|average| average * ((1 << 16) / load::SCALE)),
        processes: table::load().0.min(u16::MAX as usize) as u16,
        unit: 1,
        ..SysInfo::default()
    };
    user::put(at, &info)
}

fn prctl(option: u32, arg: u64, arg3: u64, arg4: u64, arg5: u64) -> Result<u64> {
    let thread = current_thread();
    let process = &thread.process;
    match option {
        prctl::PR_SET_NAME => {
            let mut name = [0u8; 16];
            let read = user::read_cstr(arg, 16).or_else(|errno| match errno {
                ENAMETOOLONG => user::copy_in(&mut name, arg).map(|()| name[..15].to_vec()),
                other => Err(other),
            })?;
            thread.set_comm(&read);
        }
        prctl::PR_GET_NAME => user::copy_out(arg, &thread.comm_bytes())?,
        prctl::PR_SET_PDEATHSIG => {
            if arg != 0 {
                Signal::new(i32::try_from(arg).map_err(|_| EINVAL)?)?;
            }
            thread.parent_death_signal.store(arg as i32, Ordering::Relaxed);
        }
        prctl::PR_GET_PDEATHSIG => {
            user::put(arg, &thread.parent_death_signal.load(Ordering::Relaxed))?
        }
        prctl::PR_SET_DUMPABLE if arg <= 1 => thread.mm().ok_or(ESRCH)?.set_dumpable(arg == 1),
        prctl::PR_GET_DUMPABLE => return Ok(u64::from(thread.mm().ok_or(ESRCH)?.is_dumpable())),
        prctl::PR_SET_CHILD_SUBREAPER => process.subreaper.store(arg != 0, Ordering::Relaxed),
        prctl::PR_GET_CHILD_SUBREAPER => {
            user::put(arg, &i32::from(process.subreaper.load(Ordering::Relaxed)))?;
        }
        prctl::PR_SET_NO_NEW_PRIVS if arg == 1 && (arg3 | arg4 | arg5) == 0 => {
            process.no_new_privileges.store(true, Ordering::Relaxed);
        }
        prctl::PR_GET_NO_NEW_PRIVS | prctl::PR_GET_THP_DISABLE if arg | arg3 | arg4 | arg5 != 0 => {
            return Err(EINVAL);
        }
        prctl::PR_GET_NO_NEW_PRIVS => {
            return Ok(u64::from(process.no_new_privileges.load(Ordering::Relaxed)))
        }
        prctl::PR_GET_SECCOMP | prctl::PR_GET_TIMING => return Ok(0),
        prctl::PR_SET_TIMING if arg == 0 => {}
        prctl::PR_GET_TIMERSLACK => return Ok(thread.timer_slack.load(Ordering::Relaxed)),
        prctl::PR_SET_TIMERSLACK => {
            // How late timers may be: they never are for it.
            let slack = if arg == 0 { TIMER_SLACK } else { arg };
            thread.timer_slack.store(slack, Ordering::Relaxed);
        }
        prctl::PR_GET_THP_DISABLE => {
            return Ok(u64::from(process.no_large_pages.load(Ordering::Relaxed)))
        }
        prctl::PR_SET_THP_DISABLE if arg3 | arg4 | arg5 == 0 => {
            process.no_large_pages.store(arg != 0, Ordering::Relaxed);
        }
        // Every program may read the time stamp counter.
        prctl::PR_GET_TSC => user::put(arg, &prctl::PR_TSC_ENABLE)?,
        prctl::PR_SET_TSC if arg == u64::from(prctl::PR_TSC_ENABLE) => {}
        // Counters of events there are none.
        prctl::PR_TASK_PERF_EVENTS_DISABLE | prctl::PR_TASK_PERF_EVENTS_ENABLE => {}
        // No memory error is ever told of.
        prctl::PR_MCE_KILL_GET if arg | arg3 | arg4 | arg5 == 0 => {
            return Ok(u64::from(prctl::PR_MCE_KILL_DEFAULT))
        }
        prctl::PR_MCE_KILL if arg | arg3 | arg4 | arg5 == 0 => {}
        prctl::PR_GET_TID_ADDRESS => {
            user::put(arg, &thread.clear_child_tid.load(Ordering::Relaxed))?;
        }
        // What a CPU guesses ahead isn't controlled.
        prctl::PR_GET_SPECULATION_CTRL if arg3 | arg4 | arg5 == 0 => match arg {
            0..=2 => return Ok(u64::from(prctl::PR_SPEC_ENABLE)),
            _ => return Err(ENODEV),
        },
        prctl::PR_SET_SPECULATION_CTRL if arg4 | arg5 == 0 => match arg {
            0..=2 => return Err(ENXIO),
            _ => return Err(ENODEV),
        },
        prctl::PR_SET_SYSCALL_USER_DISPATCH if arg | arg3 | arg4 | arg5 == 0 => {}
        _ => return caps::control(option, arg, arg3, arg4, arg5),
    }
    Ok(0)
}

fn arch_prctl(regs: &mut UserRegs) -> Result<()> {
    let (code, value) = (regs.argument(0), regs.argument(1));
    regs.store_bases();
    let mut bases = regs.bases();
    match SegmentCall::numbered(code) {
        Some(SegmentCall::Set(_)) if value >= USER_END => return Err(EPERM),
        Some(SegmentCall::Set(which)) => {
            bases[which] = value;
            regs.set_bases(bases);
        }
        Some(SegmentCall::Get(which)) => user::put(value, &bases[which])?,
        Some(SegmentCall::GetCpuid) => return Err(ENODEV),
        None => return Err(EINVAL),
    }
    Ok(())
}

/// Threads that don't run have passed through the kernel's own barriers when they do. Those that
/// run on other CPUs are interrupted: of this memory for the private commands, of all for the
/// global ones. The return from an interrupt also makes the CPU fetch its next instructions anew.
/// There are no restartable sequences to begin again.
fn membarrier(command: u32, flags: u32, _cpu: i32) -> Result<u64> {
    const GLOBAL: u32 = 1;
    const GLOBAL_EXPEDITED: u32 = 2;
    const REGISTER_GLOBAL_EXPEDITED: u32 = 4;
    const PRIVATE: u32 = 8;
    const CORE: u32 = 32;
    const SEQUENCES: u32 = 128;
    /// The number of what registers for a private command.
    const REGISTER: u32 = 1;
    const ALL: u32 = 511;
    const OF_A_CPU: u32 = 1;
    if flags != 0 && (command, flags) != (SEQUENCES, OF_A_CPU) {
        return Err(EINVAL);
    }
    let registered = |what: u32| {
        let asks = super::mem::current_mm()?.asks_barriers.load(Ordering::Relaxed);
        if u32::from(asks) & what == 0 {
            Err(EPERM)
        } else {
            Ok(())
        }
    };
    const CORE_REGISTER: u32 = CORE << REGISTER;
    const PRIVATE_REGISTER: u32 = PRIVATE << REGISTER;
    const SEQUENCES_REGISTER: u32 = SEQUENCES << REGISTER;
    match command {
        0 => return Ok(ALL.into()),
        GLOBAL | GLOBAL_EXPEDITED => ipi::barrier(sched::busy()),
        PRIVATE | SEQUENCES => {
            registered(command)?;
            core::sync::atomic::fence(Ordering::SeqCst);
            ipi::barrier(vm::cpus(&super::mem::current_mm()?.space));
        }
        CORE => {
            registered(command)?;
            // A CPU may come to run this memory with what it has fetched before.
            ipi::barrier(cpu::online());
            cpu::fetch_anew();
        }
        PRIVATE_REGISTER | CORE_REGISTER | SEQUENCES_REGISTER => {
            let asks = (command >> REGISTER) as u8;
            super::mem::current_mm()?.asks_barriers.fetch_or(asks, Ordering::Relaxed);
        }
        REGISTER_GLOBAL_EXPEDITED => {}
        _ => return Err(EINVAL),
    }
    Ok(0)
}

fn getcpu(number: u64, node: u64) -> Result<()> {
    if number != 0 {
        user::put(number, &(cpu::index() as u32))?;
    }
    if node != 0 {
        user::put(node, &0u32)?;
    }
    Ok(())
}

fn personality(wanted: u32) -> Result<u32> {
    let process = current_process();
    if wanted == u32::MAX {
        return Ok(process.personality.load(Ordering::Relaxed));
    }
    Ok(process.personality.swap(wanted, Ordering::Relaxed))
}
