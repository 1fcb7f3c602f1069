//! Processes that do what they are told: one for each space of a list.
//!
//! A process reads a system call from its socket, makes it, and writes the answer back. Told to
//! fork, its child goes on with the socket of another space; so all sockets are made before the
//! first process. The test itself reads and writes their memory by `process_vm_readv` and
//! `process_vm_writev`, which obey protections and turn a fault into an error.
//!
//! After a fork only system calls are made: the test's other threads may have held any lock.

use std::os::fd::RawFd;

use nix::errno::Errno;
use nix::libc::{self, c_long};
use nix::sys::uio::{process_vm_readv, process_vm_writev, RemoteIoVec};
use nix::unistd::Pid;
use std::io::{IoSlice, IoSliceMut};

use uvm_check::op::SPACES;

/// A system call's number and arguments.
type Call = [i64; 7];

/// Not a system call: fork, and let the child serve this space.
const FORK: i64 = -1;
/// Not a system call: end.
const EXIT: i64 = -2;

const CALL_BYTES: usize = size_of::<Call>();

/// Where a path stands in the memory of every process, since all are copies of this one.
static PATH: [std::sync::atomic::AtomicU8; 64] =
    [const { std::sync::atomic::AtomicU8::new(0) }; 64];

/// The processes of one list.
pub struct Processes {
    pids: [Option<Pid>; SPACES],
    /// Our end and theirs, by space.
    sockets: [(RawFd, RawFd); SPACES],
}

impl Processes {
    pub fn new() -> Processes {
        let socket = |_| {
            let mut ends = [0; 2];
            // SAFETY: `ends` has room for two descriptors.
            let made = unsafe {
                libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0, ends.as_mut_ptr())
            };
            assert_eq!(made, 0, "the host has descriptors");
            (ends[0], ends[1])
        };
        Processes { pids: [None; SPACES], sockets: std::array::from_fn(socket) }
    }

    pub fn pid(&self, s: usize) -> Pid {
        self.pids[s].expect("the model has this space")
    }

    /// A new process, whose window is empty as ours is.
    pub fn spawn(&mut self, s: usize) {
        // SAFETY: the child makes system calls only, see the module.
        match unsafe { libc::fork() } {
            0 => self.serve(s),
            pid => self.pids[s] = Some(Pid::from_raw(pid)),
        }
    }

    pub fn fork(&mut self, s: usize, child: usize) {
        let pid = self.ask(s, [FORK, child as i64, 0, 0, 0, 0, 0]).expect("the host has processes");
        self.pids[child] = Some(Pid::from_raw(pid as i32));
    }

    pub fn exit(&mut self, s: usize) {
        let Some(pid) = self.pids[s].take() else { return };
        // Its last answer: it leaves the socket to the next process of this space.
        self.ask(s, [EXIT, 0, 0, 0, 0, 0, 0]).expect("to end can't fail");
        // A child of ours; those of others go by themselves.
        let _ = nix::sys::wait::waitpid(pid, None);
    }

    /// Has a process make a system call.
    pub fn call(&self, s: usize, number: c_long, arguments: [u64; 6]) -> Result<u64, Errno> {
        let mut call = [number; 7];
        call[1..].iter_mut().zip(arguments).for_each(|(to, from)| *to = from as i64);
        self.ask(s, call).map(|answer| answer as u64)
    }

    /// Has a process open a file of this one.
    pub fn open(&self, s: usize, fd: RawFd) -> u64 {
        let path = format!("/proc/{}/fd/{fd}\0", Pid::this());
        let at = PATH.as_ptr().addr();
        assert!(self.write(s, at as u64, path.as_bytes()), "every process has a place for a path");
        let arguments = [libc::AT_FDCWD as u64, at as u64, libc::O_RDWR as u64, 0, 0, 0];
        self.call(s, libc::SYS_openat, arguments).expect("the file is open here")
    }

    pub fn read(&self, s: usize, at: u64, bytes: &mut [u8]) -> bool {
        let from = RemoteIoVec { base: at as usize, len: bytes.len() };
        let len = bytes.len();
        process_vm_readv(self.pid(s), &mut [IoSliceMut::new(bytes)], &[from]) == Ok(len)
    }

    pub fn write(&self, s: usize, at: u64, bytes: &[u8]) -> bool {
        let to = RemoteIoVec { base: at as usize, len: bytes.len() };
        process_vm_writev(self.pid(s), &[IoSlice::new(bytes)], &[to]) == Ok(bytes.len())
    }

    /// Whether the host has a range of a process in one mapping.
    pub fn is_one_mapping(&self, s: usize, start: u64, end: u64) -> bool {
        let maps =
            std::fs::read_to_string(format!("/proc/{}/maps", self.pid(s))).expect("it lives");
        maps.lines().any(|line| {
            let mut ends = line.split([' ', '-']).map(|n| u64::from_str_radix(n, 16).unwrap_or(0));
            let (low, high) = (ends.next().unwrap_or(0), ends.next().unwrap_or(0));
            low <= start && end <= high
        })
    }

    fn tell(&self, s: usize, call: Call) {
        let at = call.as_ptr().cast();
        // SAFETY: the socket takes as many bytes as a call has.
        let sent = unsafe { libc::send(self.sockets[s].0, at, CALL_BYTES, libc::MSG_NOSIGNAL) };
        assert_eq!(sent, CALL_BYTES as isize, "the process of space {s} is gone");
    }

    fn ask(&self, s: usize, call: Call) -> Result<i64, Errno> {
        self.tell(s, call);
        let mut answer = 0i64;
        // SAFETY: `answer` has room for as many bytes.
        let got = unsafe { libc::read(self.sockets[s].0, (&raw mut answer).cast(), 8) };
        assert_eq!(got, 8, "the process of space {s} does not answer");
        if answer < 0 && answer > -4096 {
            Err(Errno::from_raw(-answer as i32))
        } else {
            Ok(answer)
        }
    }

    /// A process's life.
    fn serve(&self, mut s: usize) -> ! {
        // SAFETY: children that end are not waited for; the call changes nothing else.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        loop {
            let mut call: Call = [0; 7];
            // SAFETY: `call` has room for as many bytes.
            let got =
                unsafe { libc::read(self.sockets[s].1, call.as_mut_ptr().cast(), CALL_BYTES) };
            if got != CALL_BYTES as isize || call[0] == EXIT {
                // SAFETY: answers, and ends this process without running anything.
                unsafe {
                    libc::write(self.sockets[s].1, [0u8; 8].as_ptr().cast(), 8);
                    libc::_exit(0)
                };
            }
            let answer = if call[0] == FORK {
                // SAFETY: a raw fork of a process with one thread; both go on here.
                let pid = unsafe { libc::syscall(libc::SYS_fork) };
                if pid == 0 {
                    s = call[1] as usize;
                    continue;
                }
                pid
            } else {
                let [number, a, b, c, d, e, f] = call;
                // SAFETY: the list's calls concern the window alone, or open and close a file.
                unsafe { libc::syscall(number, a, b, c, d, e, f) }
            };
            let answer = if answer == -1 { -i64::from(Errno::last_raw()) } else { answer };
            // SAFETY: as many bytes as `answer` has.
            unsafe { libc::write(self.sockets[s].1, (&raw const answer).cast(), 8) };
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        (0..SPACES).for_each(|s| self.exit(s));
        for (ours, theirs) in self.sockets {
            // SAFETY: both are ours, and are not used after this.
            unsafe {
                libc::close(ours);
                libc::close(theirs);
            }
        }
    }
}
