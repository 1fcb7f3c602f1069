//! Waiting for several files at once: `poll`, `select`, `epoll`.
//!
//! One wait enters the queues of all files and then looks at each after every wake-up; the files
//! keep no state for it.

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general as abi;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::path_args::only;
use super::{calls, Calls};
use crate::charge;
use crate::errno::*;
use crate::fs::epoll::{Control, Epoll};
use crate::fs::fdtable::{OnExec, MAX_FDS};
use crate::fs::file::File;
use crate::fs::ops::QUEUES;
use crate::mem::fault::{self, Room};
use crate::proc;
use crate::proc::curproc;
use crate::proc::signal::SigSet;
use crate::sched::{self, Nanos};
use crate::sync::{wait_any, Woken};
use crate::user;

pub const CALLS: Calls = calls! {
    __NR_poll => poll[3], __NR_ppoll => ppoll[5], __NR_select => select[5], __NR_pselect6 => pselect6[6],
    __NR_epoll_create => epoll_create[1], __NR_epoll_create1 => epoll_create1[1],
    __NR_epoll_ctl => epoll_ctl[4], __NR_epoll_wait => epoll_wait[4],
    __NR_epoll_pwait => epoll_pwait[6], __NR_epoll_pwait2 => epoll_pwait2[6],
};

const MILLISECOND: Nanos = 1_000_000;
const SECOND: Nanos = 1_000_000_000;

/// What a descriptor costs while it is waited for: itself, its file, its queues and a place in
/// them.
const POLLED: usize = 192;

/// `struct pollfd`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct PollFd {
    fd: i32,
    events: i16,
    revents: i16,
}

/// A file that is waited for, and the events that end the wait.
struct Wanted {
    /// `None`: the descriptor is closed, and that is its event.
    file: Option<Arc<File>>,
    events: u32,
    got: u32,
}

impl Wanted {
    fn look(&mut self) -> bool {
        if sched::work_done(LOOK) && sched::is_leaving() {
            // No thread will hear of it.
            self.got = 0;
            return false;
        }
        self.got = match &self.file {
            Some(file) => file.poll() & (self.events | abi::POLLERR | abi::POLLHUP),
            None => abi::POLLNVAL,
        };
        self.got != 0
    }
}

/// What it takes to look at a descriptor: the work of copying so many bytes.
const LOOK: usize = 128;

/// Waits until one has an event; returns how many have. 0 after the deadline.
fn wait_for(wanted: &mut [Wanted], deadline: Option<Nanos>) -> Result<usize> {
    let files = fault::gather(wanted.iter().map(|wanted| wanted.file.clone()))?;
    let process = proc::current_process();
    let mut queues = Vec::new();
    for file in files.iter().flatten() {
        sched::work_done(LOOK);
        queues.room(QUEUES)?;
        file.queues(&mut queues);
    }
    if files.iter().flatten().any(|file| file.io().depends_on_caller()) {
        queues.room(1)?;
        queues.push(&process.signal_readers);
    }
    let result = wait_any(&queues, deadline, || {
        let count = wanted.iter_mut().filter_map(|wanted| wanted.look().then_some(())).count();
        (count > 0).then_some(count)
    });
    match result {
        Ok(count) => Ok(count),
        Err(Woken::Timeout) => Ok(0),
        Err(Woken::Signal) => Err(ERESTARTNOHAND),
    }
}

/// The moment that a wait ends; none for a negative time.
fn after_ms(ms: i32) -> Option<Nanos> {
    u64::try_from(ms).ok().map(|ms| sched::now() + ms * MILLISECOND)
}

/// The end of a wait of the `struct timespec` at `addr`; none without one.
fn after_timespec(addr: u64) -> Result<Option<Nanos>> {
    if addr == 0 {
        return Ok(None);
    }
    let [seconds, nanos]: [i64; 2] = user::get(addr)?;
    if seconds < 0 || !(0..SECOND as i64).contains(&nanos) {
        return Err(EINVAL);
    }
    let wait = (seconds as u64).saturating_mul(SECOND).saturating_add(nanos as u64);
    Ok(Some(sched::now().saturating_add(wait)))
}

/// Runs a wait with another signal mask. If a signal cuts it short, its handler runs under that
/// mask, and the old one comes back after it.
fn masked<T>(mask: u64, size: usize, wait: impl FnOnce() -> Result<T>) -> Result<T> {
    if mask == 0 {
        return wait();
    }
    if size != size_of::<u64>() {
        return Err(EINVAL);
    }
    let mask = SigSet(user::get(mask)?);
    let thread = proc::current_thread();
    let before = thread.mask();
    proc::signal::send::set_mask(mask);
    let result = wait();
    if matches!(result, Err(ERESTARTNOHAND | EINTR)) {
        *thread.saved_mask.lock() = Some(before);
    } else {
        proc::signal::send::set_mask(before);
    }
    result
}

fn poll(fds: u64, count: u32, ms: i32) -> Result<usize> {
    poll_until(fds, count, after_ms(ms))
}

fn ppoll(fds: u64, count: u32, timeout: u64, mask: u64, size: usize) -> Result<usize> {
    let deadline = after_timespec(timeout)?;
    masked(mask, size, || poll_until(fds, count, deadline))
}

fn poll_until(fds: u64, count: u32, deadline: Option<Nanos>) -> Result<usize> {
    let count = count as usize;
    if count > curproc::fd_limit().min(MAX_FDS) {
        return Err(EINVAL);
    }
    let _charge = charge::take(count * POLLED).map_err(|_| ENOMEM)?;
    let files = curproc::files()?;
    let (mut polled, mut wanted) = (Vec::new(), Vec::new());
    polled.room(count)?;
    wanted.room(count)?;
    for index in 0..count as u64 {
        sched::work_done(LOOK);
        let entry: PollFd = user::get(fds.wrapping_add(index * 8))?;
        polled.push(entry);
        if entry.fd >= 0 {
            wanted.push(Wanted {
                file: files.get(entry.fd).ok(),
                events: entry.events as u16 as u32,
                got: 0,
            });
        }
    }
    let ready = wait_for(&mut wanted, deadline)?;
    let mut got = wanted.iter().map(|wanted| wanted.got);
    for entry in &mut polled {
        entry.revents = if entry.fd >= 0 { got.next().unwrap_or(0) as i16 } else { 0 };
    }
    user::copy_out(fds, polled.as_slice().as_bytes())?;
    Ok(ready)
}

/// Descriptors that `select` looks at, at most: those above are left out.
const SELECTED: usize = 65536;

const READ_EVENTS: u32 =
    abi::POLLIN | abi::POLLRDNORM | abi::POLLRDBAND | abi::POLLHUP | abi::POLLERR;
const WRITE_EVENTS: u32 = abi::POLLOUT | abi::POLLWRNORM | abi::POLLWRBAND | abi::POLLERR;
const EXCEPT_EVENTS: u32 = abi::POLLPRI;

/// The three sets of `select`: where they are in user memory, and the events that each stands for.
struct Sets {
    addrs: [u64; 3],
    words: usize,
    bits: [Vec<u64>; 3],
}

const SET_EVENTS: [u32; 3] = [READ_EVENTS, WRITE_EVENTS, EXCEPT_EVENTS];

impl Sets {
    fn read(count: i32, addrs: [u64; 3]) -> Result<Sets> {
        let count = usize::try_from(count).map_err(|_| EINVAL)?.min(SELECTED);
        let words = count.div_ceil(64);
        let mut bits = [const { Vec::new() }; 3];
        for (bits, &addr) in bits.iter_mut().zip(&addrs) {
            bits.resize(words, 0u64);
            if addr != 0 {
                user::copy_in(bits.as_mut_slice().as_mut_bytes(), addr)?;
            }
            if count % 64 != 0 {
                bits[words - 1] &= (1 << (count % 64)) - 1;
            }
        }
        Ok(Sets { addrs, words, bits })
    }

    fn events(&self, fd: usize) -> u32 {
        let has = |set: usize| self.bits[set][fd / 64] >> (fd % 64) & 1 != 0;
        (0..3).filter(|&set| has(set)).fold(0, |events, set| events | SET_EVENTS[set])
    }

    fn has(&self, set: usize, fd: usize) -> bool {
        self.bits[set][fd / 64] >> (fd % 64) & 1 != 0
    }

    fn write(&self) -> Result<()> {
        for (bits, &addr) in self.bits.iter().zip(&self.addrs) {
            if addr != 0 {
                user::copy_out(addr, bits.as_slice().as_bytes())?;
            }
        }
        Ok(())
    }
}

fn select_until(count: i32, addrs: [u64; 3], deadline: Option<Nanos>) -> Result<usize> {
    let mut sets = Sets::read(count, addrs)?;
    let many: u32 = sets.bits.iter().flatten().map(|word| word.count_ones()).sum();
    let _charge = charge::take(many as usize * POLLED + sets.words * 48).map_err(|_| ENOMEM)?;
    let files = curproc::files()?;
    let mut fds = Vec::new();
    let mut wanted = Vec::new();
    for fd in 0..sets.words * 64 {
        sched::work_done(LOOK);
        let events = sets.events(fd);
        if events != 0 {
            fds.room(1)?;
            wanted.room(1)?;
            fds.push(fd);
            wanted.push(Wanted { file: Some(files.get(fd as i32)?), events, got: 0 });
        }
    }
    wait_for(&mut wanted, deadline)?;
    let mut result = [const { Vec::new() }; 3];
    result.iter_mut().for_each(|bits: &mut Vec<u64>| bits.resize(sets.words, 0));
    let mut ready = 0;
    for (&fd, wanted) in fds.iter().zip(&wanted) {
        for (set, bits) in result.iter_mut().enumerate() {
            if sets.has(set, fd) && wanted.got & SET_EVENTS[set] != 0 {
                bits[fd / 64] |= 1 << (fd % 64);
                ready += 1;
            }
        }
    }
    sets.bits = result;
    sets.write()?;
    Ok(ready)
}

/// Tells a `select` caller how much of its time is left, as Linux does.
fn put_left(addr: u64, deadline: Option<Nanos>, unit: Nanos) -> Result<()> {
    let Some(deadline) = deadline else { return Ok(()) };
    let left = deadline.saturating_sub(sched::now());
    user::put(addr, &[left / SECOND, left % SECOND / unit])
}

fn select(count: i32, read: u64, write: u64, except: u64, timeout: u64) -> Result<usize> {
    let deadline = if timeout == 0 {
        None
    } else {
        let [seconds, micros]: [i64; 2] = user::get(timeout)?;
        if seconds < 0 || micros < 0 {
            return Err(EINVAL);
        }
        let wait = (seconds as u64)
            .saturating_mul(SECOND)
            .saturating_add((micros as u64).saturating_mul(1000));
        Some(sched::now().saturating_add(wait))
    };
    let ready = select_until(count, [read, write, except], deadline)?;
    put_left(timeout, deadline, 1000)?;
    Ok(ready)
}

fn pselect6(
    count: i32,
    read: u64,
    write: u64,
    except: u64,
    timeout: u64,
    mask: u64,
) -> Result<usize> {
    let deadline = after_timespec(timeout)?;
    let [mask, size]: [u64; 2] = if mask == 0 { [0; 2] } else { user::get(mask)? };
    let ready =
        masked(mask, size as usize, || select_until(count, [read, write, except], deadline))?;
    put_left(timeout, deadline, 1)?;
    Ok(ready)
}

fn epoll_create(size: i32) -> Result<i32> {
    if size <= 0 {
        return Err(EINVAL);
    }
    epoll_create1(0)
}

fn epoll_create1(flags: u32) -> Result<i32> {
    only(flags, abi::O_CLOEXEC)?;
    curproc::files()?.insert(Epoll::create()?, OnExec::from_flags(flags))
}

/// `struct epoll_event`: packed on this machine.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct EpollEvent {
    events: [u8; 4],
    data: [u8; 8],
}

fn epoll_ctl(epoll: i32, operation: u32, fd: i32, event: u64) -> Result<()> {
    let change = if operation == abi::EPOLL_CTL_DEL {
        Control::Remove
    } else {
        let event: EpollEvent = user::get(event)?;
        let (events, data) = (u32::from_ne_bytes(event.events), u64::from_ne_bytes(event.data));
        match operation {
            abi::EPOLL_CTL_ADD => Control::Add { events, data },
            abi::EPOLL_CTL_MOD => Control::Modify { events, data },
            _ => Control::Unknown,
        }
    };
    let epoll = curproc::file(epoll)?;
    Epoll::control(&epoll, fd, &curproc::file(fd)?, change)
}

fn epoll_until(epoll: i32, out: u64, max: i32, deadline: Option<Nanos>) -> Result<usize> {
    let max = usize::try_from(max).ok().filter(|&max| max > 0).ok_or(EINVAL)?.min(4096);
    let file = curproc::file(epoll)?;
    let epoll = Epoll::of(&file)?;
    let ready = epoll.wait(max, deadline)?;
    for (index, event) in ready.iter().enumerate() {
        let told =
            EpollEvent { events: event.events.to_ne_bytes(), data: event.data.to_ne_bytes() };
        let at = out.wrapping_add(index as u64 * size_of::<EpollEvent>() as u64);
        if let Err(errno) = user::put(at, &told) {
            epoll.take_back(&ready[index..]);
            return if index == 0 { Err(errno) } else { Ok(index) };
        }
    }
    Ok(ready.len())
}

fn epoll_wait(epoll: i32, out: u64, max: i32, ms: i32) -> Result<usize> {
    epoll_until(epoll, out, max, after_ms(ms))
}

fn epoll_pwait(epoll: i32, out: u64, max: i32, ms: i32, mask: u64, size: usize) -> Result<usize> {
    masked(mask, size, || epoll_until(epoll, out, max, after_ms(ms)))
}

fn epoll_pwait2(
    epoll: i32,
    out: u64,
    max: i32,
    timeout: u64,
    mask: u64,
    size: usize,
) -> Result<usize> {
    let deadline = after_timespec(timeout)?;
    masked(mask, size, || epoll_until(epoll, out, max, deadline))
}
