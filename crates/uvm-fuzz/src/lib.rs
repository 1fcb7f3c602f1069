//! What a fuzzer runs on the desk: functions of bytes that panic when something is wrong, and no
//! fuzzer.
//!
//! ```text
//!   corpus/TARGET/*  --->  tests/replay.rs: each file, and random bytes by seed (cargo test)
//!         ^      |
//!         |      +------>  search/: libFuzzer, a workspace of its own (./uvm fuzz --desk TARGET)
//!         +------ what reaches something new ---+
//! ```
//!
//! The kernel's files are taken in by their paths, as `xtask/tests/kernel_parts.rs` does; what they
//! name of the kernel stands below.
#![forbid(unsafe_code)]

extern crate alloc;

pub mod ext4;
pub mod library;
pub mod parsers;
pub mod procfs;
pub mod raw;

#[path = "../../../kernel/src/net/address.rs"]
#[allow(dead_code, missing_docs)]
mod address;
#[path = "../../../kernel/src/net/control.rs"]
#[allow(missing_docs)]
mod control;
#[path = "../../../kernel/src/fs/cpio.rs"]
#[allow(dead_code, missing_docs)]
mod cpio;
#[path = "../../../kernel/src/devnum.rs"]
#[allow(dead_code, missing_docs)]
mod devnum;
#[path = "../../../kernel/src/proc/elf.rs"]
#[allow(dead_code, missing_docs)]
mod elf;
#[path = "../../../kernel/src/errno.rs"]
#[allow(dead_code, missing_docs)]
mod errno;
#[path = "../../../kernel/src/fs/swap/header.rs"]
#[allow(missing_docs)]
mod header;
#[path = "../../../kernel/src/dev/tty"]
#[allow(dead_code, missing_docs)]
mod tty {
    pub mod line;
    pub mod output;
    pub mod termios;
}
use tty::termios;

/// What they name of the kernel's files: bytes, and how many may be open.
mod fs {
    pub fn drop_pages() {}
    pub fn drop_nodes() {}

    pub mod lease {
        use std::sync::atomic::AtomicU64;

        pub static BREAK_SECONDS: AtomicU64 = AtomicU64::new(45);
    }

    pub mod pipe {
        use std::sync::atomic::AtomicUsize;

        use crate::errno::Result;

        pub static SOFT: AtomicUsize = AtomicUsize::new(16384);
        pub static HARD: AtomicUsize = AtomicUsize::new(0);

        pub fn largest() -> usize {
            1 << 20
        }

        pub fn set_largest(_size: usize) -> Result<()> {
            Ok(())
        }
    }

    pub mod file {
        use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

        use crate::errno::Result;

        static MOST: AtomicUsize = AtomicUsize::new(usize::MAX);

        pub fn counts() -> (usize, usize) {
            (0, MOST.load(Relaxed))
        }

        pub fn set_most(most: usize) {
            MOST.store(most, Relaxed);
        }

        pub struct File(pub Vec<u8>);

        impl File {
            pub fn read_kernel(&self, offset: u64, to: &mut [u8]) -> Result<usize> {
                let from =
                    usize::try_from(offset).ok().and_then(|at| self.0.get(at..)).unwrap_or(&[]);
                let n = from.len().min(to.len());
                to[..n].copy_from_slice(&from[..n]);
                Ok(n)
            }
        }
    }
}

/// What they name of programs' memory: bytes from address 0 on, by thread.
mod user {
    use std::cell::RefCell;

    use zerocopy::{FromBytes, Immutable, IntoBytes};

    use crate::errno::{Result, EFAULT};

    thread_local! {
        pub static MEMORY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }

    fn range(start: u64, len: usize) -> std::ops::Range<usize> {
        let start = usize::try_from(start).unwrap_or(usize::MAX);
        start..start.saturating_add(len)
    }

    pub fn copy_in(to: &mut [u8], from: u64) -> Result<()> {
        MEMORY.with_borrow(|memory| {
            to.copy_from_slice(memory.get(range(from, to.len())).ok_or(EFAULT)?);
            Ok(())
        })
    }

    pub fn copy_out(to: u64, from: &[u8]) -> Result<()> {
        MEMORY.with_borrow_mut(|memory| {
            memory.get_mut(range(to, from.len())).ok_or(EFAULT)?.copy_from_slice(from);
            Ok(())
        })
    }

    pub fn get<T: FromBytes + IntoBytes>(from: u64) -> Result<T> {
        let mut value = T::new_zeroed();
        copy_in(value.as_mut_bytes(), from)?;
        Ok(value)
    }

    pub fn put<T: IntoBytes + Immutable>(to: u64, value: &T) -> Result<()> {
        copy_out(to, value.as_bytes())
    }
}

/// What they name of the kernel's memory: allocations that can fail, of which none does on purpose
/// here.
mod mem {
    pub mod heap {
        pub fn drain() {}
        pub fn give_back() -> bool {
            false
        }
    }

    pub mod fault {
        use std::collections::VecDeque;

        use machine::NoMemory;

        pub trait Room {
            fn room(&mut self, more: usize) -> Result<(), NoMemory>;
        }

        impl<T> Room for Vec<T> {
            fn room(&mut self, more: usize) -> Result<(), NoMemory> {
                self.try_reserve(more).map_err(|_| NoMemory)
            }
        }

        impl<T> Room for VecDeque<T> {
            fn room(&mut self, more: usize) -> Result<(), NoMemory> {
                self.try_reserve(more).map_err(|_| NoMemory)
            }
        }
    }
}

/// What they name of the machine.
mod arch {
    pub mod abi {
        pub const ELF_MACHINE: u16 = elf::abi::EM_X86_64;
    }

    pub mod layout {
        pub const USER_END: u64 = 0x7fff_ffff_f000;
    }
}

/// What they name of the scheduler: there is one CPU.
mod sched {
    pub fn on_each_cpu(mut f: impl FnMut()) {
        f();
    }
}

/// What they name of its locks.
mod sync {
    use std::sync::{Mutex, MutexGuard};

    pub struct SpinLock<T>(Mutex<T>);

    impl<T> SpinLock<T> {
        pub const fn new(value: T) -> Self {
            SpinLock(Mutex::new(value))
        }

        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }
    }
}

#[path = "../../../kernel/src/proc/uts.rs"]
#[allow(dead_code, missing_docs)]
mod uts;

/// What settings set.
mod ipc {
    pub mod shm {
        use std::sync::Mutex;

        #[derive(Clone, Copy)]
        pub struct Limits {
            pub max: u64,
            pub all: u64,
            pub segments: u64,
        }

        static LIMITS: Mutex<Limits> =
            Mutex::new(Limits { max: u64::MAX, all: u64::MAX, segments: 4096 });

        pub fn limits() -> Limits {
            *LIMITS.lock().unwrap()
        }

        pub fn set_limits(change: impl FnOnce(&mut Limits)) {
            change(&mut LIMITS.lock().unwrap());
        }
    }
}

/// See [`ipc`].
mod proc {
    pub(crate) use crate::uts;

    pub mod limits {
        use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

        use crate::errno::{Result, EINVAL};

        pub static NR_OPEN: AtomicU64 = AtomicU64::new(1 << 20);

        pub fn set_nr_open(most: u64) -> Result<()> {
            let is_fine = (64..=1 << 20).contains(&most);
            is_fine.then(|| NR_OPEN.store(most, Relaxed)).ok_or(EINVAL)
        }
    }

    pub mod mm {
        use crate::errno::Result;

        pub fn set_overcommit(mode: u8) -> Result<()> {
            crate::vm::commit::set_mode(mode)
        }
    }

    pub mod table {
        use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

        use crate::errno::{Result, EINVAL};

        static END: AtomicI32 = AtomicI32::new(32768);

        pub fn numbers() -> i32 {
            END.load(Relaxed)
        }

        pub fn set_numbers(end: i32) -> Result<()> {
            let is_fine = (301..=4 << 20).contains(&end);
            is_fine.then(|| END.store(end, Relaxed)).ok_or(EINVAL)
        }
    }
}

/// See [`ipc`].
mod chain {
    pub mod zero_copy {
        use std::sync::atomic::AtomicUsize;

        pub struct Threshold {
            pub from: AtomicUsize,
            pub usual: usize,
        }

        const fn usual() -> Threshold {
            Threshold { from: AtomicUsize::new(65536), usual: 65536 }
        }

        pub static LOAN: Threshold = usual();
        pub static PIPE_LOAN: Threshold = usual();
        pub static RECEIVE: Threshold = usual();
    }
}

/// See [`ipc`].
mod net {
    pub mod rights {
        pub fn collect_now() -> crate::errno::Result<()> {
            Ok(())
        }
    }
}

/// See [`ipc`]: the library's knobs, and numbers in the place of a machine's.
mod vm {
    use std::sync::atomic::{AtomicU64, AtomicU8, Ordering::Relaxed};
    use std::sync::LazyLock;

    pub use uvm::page::Class;
    use uvm::Knobs;

    use crate::errno::{Result, EINVAL};

    pub mod commit {
        use std::sync::atomic::{AtomicU64, AtomicU8, Ordering::Relaxed};

        use crate::errno::{Result, EINVAL};

        static MODE: AtomicU8 = AtomicU8::new(0);
        pub static RATIO: AtomicU64 = AtomicU64::new(50);
        pub static KBYTES: AtomicU64 = AtomicU64::new(0);
        pub static ADMIN_RESERVE: AtomicU64 = AtomicU64::new(8192);
        pub static USER_RESERVE: AtomicU64 = AtomicU64::new(131_072);

        pub fn mode() -> u8 {
            MODE.load(Relaxed)
        }

        pub fn set_mode(mode: u8) -> Result<()> {
            (mode <= 2).then(|| MODE.store(mode, Relaxed)).ok_or(EINVAL)
        }
    }

    /// Pages of the machine.
    pub const TOTAL: u64 = 10_000;
    static KNOBS: LazyLock<Knobs> = LazyLock::new(Knobs::default);
    static LOW: AtomicU64 = AtomicU64::new(100);
    static ZSWAP: AtomicU8 = AtomicU8::new(0);

    pub struct Stats {
        pub low_water: u64,
    }

    pub fn stats() -> Stats {
        Stats { low_water: LOW.load(Relaxed) }
    }

    pub fn set_low_water(pages: u64) -> Result<()> {
        let is_fine = pages <= TOTAL / 4;
        is_fine.then(|| LOW.store(pages, Relaxed)).ok_or(EINVAL)
    }

    pub fn zswap() -> u8 {
        ZSWAP.load(Relaxed)
    }

    pub fn set_zswap(percent: u8) -> Result<()> {
        let is_fine = percent <= uvm_zram::MOST_ZRAM;
        is_fine.then(|| ZSWAP.store(percent, Relaxed)).ok_or(EINVAL)
    }

    pub fn shares(class: Class) -> (u8, u8) {
        KNOBS.shares(class)
    }

    pub fn set_shares(class: Class, least: u8, most: u8) -> Result<()> {
        KNOBS.set_shares(class, least, most).map_err(|_| EINVAL)
    }

    pub fn neighbours() -> bool {
        KNOBS.fault_around()
    }

    pub fn set_neighbours(on: bool) {
        KNOBS.set_fault_around(on);
    }

    pub fn most_mappings() -> usize {
        KNOBS.most_entries()
    }

    pub fn set_most_mappings(most: usize) {
        KNOBS.set_most_entries(most);
    }
}

/// A function to be tried on all kinds of bytes.
pub struct Target {
    /// Its name, and that of its folder in `corpus/`.
    pub name: &'static str,
    /// Panics when something is wrong.
    pub run: fn(&[u8]),
    /// Bytes that make sense, at most.
    pub longest: usize,
    /// Random inputs that a replay tries.
    pub random: u64,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target { name: "library", run: library::target, longest: 1000, random: 1000 },
    Target { name: "raw", run: raw::target, longest: 900, random: 3000 },
    Target { name: "ext4", run: ext4::target, longest: 200, random: 200 },
    Target { name: "elf", run: parsers::elf, longest: 2000, random: 3000 },
    Target { name: "cpio", run: parsers::cpio, longest: 1000, random: 3000 },
    Target { name: "swap", run: parsers::swap, longest: 300, random: 3000 },
    Target { name: "address", run: parsers::address, longest: 200, random: 3000 },
    Target { name: "tty", run: parsers::tty, longest: 6000, random: 3000 },
    Target { name: "settings", run: procfs::settings, longest: 600, random: 3000 },
    Target { name: "control", run: parsers::control, longest: 5000, random: 3000 },
];

/// The one of this name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
