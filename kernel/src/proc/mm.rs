//! An address space as processes know it: the VM's space, and what exec put where.
//!
//! `users` counts the threads that run in it. The last one to leave empties the space at once, so
//! that a zombie holds no memory; the space's own tables go when the last reference does.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use crate::arch::layout::USER_END;
use crate::errno::Result;
use crate::proc::exec::Running;
use crate::proc::{processes, Process};
use crate::sync::{Mutex, SpinLock};
use crate::vm::{self, commit, MappingStats, Populate, Space};

const PAGE: u64 = 4096;

/// What exec laid out; forked along.
#[derive(Clone)]
pub struct Layout {
    /// The heap: where it starts and where the break is.
    pub heap_start: u64,
    pub heap_end: u64,
    pub marks: Marks,
    /// The auxiliary vector.
    pub auxv: Arc<[u8]>,
    /// The program's file; the first process has none before its exec.
    pub exe: Option<Arc<Running>>,
}

/// Where exec put the parts of a program: first addresses and first addresses behind.
#[derive(Clone, Copy, Default)]
pub struct Marks {
    /// Of the program itself: what may be executed, and what may be written.
    pub code: (u64, u64),
    pub data: (u64, u64),
    /// The first stack pointer.
    pub stack: u64,
    /// Strings, each ended by a zero byte.
    pub arguments: (u64, u64),
    pub environment: (u64, u64),
}

/// Sets how much may be promised (`overcommit_memory`).
///
/// # Errors
/// `EINVAL`: there is no such mode.
pub fn set_overcommit(mode: u8) -> Result<()> {
    let was_strict = commit::is_strict();
    commit::set_mode(mode)?;
    if commit::is_strict() && !was_strict {
        // What changes from now on is counted by what changes it.
        for mm in processes().filter_map(|process| process.mm()) {
            let _growing = mm.growing.lock();
            if !mm.is_left() {
                commit::settle(&mm.space);
            }
        }
    }
    Ok(())
}

/// What `lock_future` says.
const NOT: u8 = 0;
const NOW: u8 = 1;
const ON_TOUCH: u8 = 2;

pub struct Mm {
    pub space: Arc<Space>,
    users: AtomicUsize,
    /// `mlockall(MCL_FUTURE)` is in force: one of the words below. Not in `layout`, as each new
    /// mapping looks at it.
    lock_future: AtomicU8,
    /// Whether memory was mapped with `MAP_NORESERVE`, for which nothing is promised.
    pub has_unpromised: AtomicBool,
    /// The private commands of `membarrier` that its threads have said they will use.
    pub asks_barriers: AtomicU8,
    /// Processes with the ids of this one may look into it.
    dumpable: AtomicBool,
    pub layout: SpinLock<Layout>,
    /// Held while the break moves, and from the check of a limit on the space's size until what the
    /// check allowed is mapped or locked: no other thread can use the same room.
    pub growing: Mutex<()>,
}

impl Mm {
    /// An address space with one user, that is dumpable.
    pub fn new(space: Arc<Space>, layout: Layout) -> Arc<Mm> {
        Arc::new(Mm {
            space,
            users: AtomicUsize::new(1),
            lock_future: AtomicU8::new(NOT),
            has_unpromised: AtomicBool::new(false),
            asks_barriers: AtomicU8::new(0),
            dumpable: AtomicBool::new(true),
            layout: SpinLock::new(layout),
            growing: Mutex::new(()),
        })
    }

    /// A copy for a new process, by fork's rules.
    pub fn fork(&self) -> Result<Arc<Mm>> {
        // The break that the child knows is that of its space.
        let _growing = self.growing.lock();
        let space = vm::space_fork(&self.space)?;
        if commit::is_strict() {
            // What the child holds is promised once more.
            commit::settle(&self.space);
            commit::take(&space, commit::count(&space) * PAGE, 0, commit::Asker::Other)?;
        }
        let layout = self.layout.lock().clone();
        let copy = Mm::new(space, layout);
        let unpromised = self.has_unpromised.load(Ordering::Relaxed);
        copy.has_unpromised.store(unpromised, Ordering::Relaxed);
        let asks = self.asks_barriers.load(Ordering::Relaxed);
        copy.asks_barriers.store(asks, Ordering::Relaxed);
        copy.set_dumpable(self.is_dumpable());
        Ok(copy)
    }

    /// Whether other processes may look into it if their ids allow it: see `proc::access`.
    pub fn is_dumpable(&self) -> bool {
        self.dumpable.load(Ordering::Acquire)
    }

    pub fn set_dumpable(&self, is: bool) {
        self.dumpable.store(is, Ordering::Release);
    }

    /// Whether no thread runs in it any more.
    pub fn is_left(&self) -> bool {
        self.users.load(Ordering::Acquire) == 0
    }

    /// Whether several threads run in it.
    pub fn is_shared(&self) -> bool {
        self.users.load(Ordering::Acquire) > 1
    }

    /// Whether new mappings are locked, and when their pages are brought in.
    pub fn lock_future(&self) -> Option<Populate> {
        match self.lock_future.load(Ordering::Relaxed) {
            NOW => Some(Populate::Now),
            ON_TOUCH => Some(Populate::OnTouch),
            _ => None,
        }
    }

    pub fn set_lock_future(&self, when: Option<Populate>) {
        let word = when.map_or(NOT, |when| if when == Populate::Now { NOW } else { ON_TOUCH });
        self.lock_future.store(word, Ordering::Relaxed);
    }

    /// One more thread runs in it.
    pub fn share(self: &Arc<Mm>) -> Arc<Mm> {
        self.users.fetch_add(1, Ordering::Relaxed);
        self.clone()
    }

    /// A thread of `process` leaves it; the last one notes how much was resident, by a walk over
    /// all tables, and empties it. The caller runs elsewhere already, or will never touch user
    /// memory again.
    pub fn leave(self: Arc<Mm>, process: &Process) {
        if self.users.fetch_sub(1, Ordering::AcqRel) == 1 {
            let resident = vm::resident_pages(&self.space);
            let mut usage = process.usage.lock();
            usage.max_resident = usage.max_resident.max(resident);
            drop(usage);
            vm::space_clear(&self.space);
        }
    }

    /// Counts what is promised to it: for a new program, which may be too large.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn promise(&self) -> Result<()> {
        if !commit::is_strict() {
            return Ok(());
        }
        commit::take(&self.space, commit::count(&self.space) * PAGE, 0, commit::Asker::Other)
    }

    /// Sums over all mappings.
    pub fn mapping_stats(&self) -> MappingStats {
        vm::mapping_stats(&self.space, 0, USER_END)
    }

    pub fn marks(&self) -> Marks {
        self.layout.lock().marks
    }

    pub fn exe(&self) -> Option<Arc<Running>> {
        self.layout.lock().exe.clone()
    }
}
