//! All schedules of the small pieces, under loom: locks, tickets, page queues, counted leaves.
//!
//! ```text
//!   order.rs       Ordered over the kernel's spin lock      does a guard exclude, and order
//!                                                           what its holders did?
//!   shared.rs      Shared over that spin lock               does a writer exclude readers by rows?
//!   tickets.rs     the kernel's channels, wait queues       is a wake-up between unlock and sleep
//!                                                           lost?
//!   queues.rs      Frames: batches, queues, flags, wirings  is a page linked twice, a flag lost,
//!                                                           a free page mapped?
//!   notes.rs       Notes                                    is a translation used after it was
//!                                                           taken away?
//!   unfinished.rs  Unfinished                               does a CPU that takes a page away
//!                                                           overtake another?
//!   refs.rs        Refs                                     is something given up while in use,
//!                                                           or twice?
//!   counted.rs     the leaves of slots                      is the only holder really alone?
//! ```
//! Shuttle tries many schedules of the whole library, loom all schedules of little code, and loads
//! that see old values besides. So the code here is the real code: the kernel's files and the
//! library's are taken in by their paths, over loom's atomics. Each law has a twin that breaks it
//! on purpose and must be caught, which shows that the test can fail.
//!
//! The unsafe code here implements what loom has no counterpart for; see `counted.rs`.
#![allow(unsafe_code, missing_docs)]

extern crate alloc;

mod counted;
mod host;
mod notes;
mod order;
mod queues;
mod refs;
mod sched;
mod shared;
mod slots_test;
mod tickets;
mod unfinished;
mod waiting;
pub mod word;

/// The kernel's locks that spin.
#[path = "../../../../kernel/src/lock"]
#[allow(dead_code)]
mod lock {
    /// Times are no matter here.
    pub mod lock_times {
        pub fn begin() -> u64 {
            0
        }
        pub fn waited(_begun: u64, _address: u64) {}
        pub fn taken(_depth: usize) {}
        pub fn given_back(_depth: usize) {}
    }
    pub mod spin_lock;

    pub use super::word;
}

/// The kernel's channels and wait queues.
#[path = "../../../../kernel/src/sync"]
#[allow(dead_code)]
mod sync {
    pub mod channels;
    pub mod wait;

    pub use super::lock::spin_lock::{RawSpin, SpinLock};
    pub use super::word;
    pub use wait::WaitQueue;
}

/// What they name of the kernel's memory: there is always some.
mod mem {
    pub mod fault {
        use std::collections::VecDeque;

        use machine::NoMemory;

        pub const SMALL: usize = 16 * 1024;

        pub trait Room {
            fn room(&mut self, more: usize) -> Result<(), NoMemory>;
            fn right_size(&self) -> Option<usize>;
        }

        macro_rules! room {
            ($($list:ident),*) => {$(
                impl<T> Room for $list<T> {
                    fn room(&mut self, more: usize) -> Result<(), NoMemory> {
                        self.try_reserve(more).map_err(|_| NoMemory)
                    }

                    /// Sooner than the kernel, for few waiters.
                    fn right_size(&self) -> Option<usize> {
                        (self.capacity() > 2 * self.len()).then(|| self.len())
                    }
                }
            )*};
        }
        room! { Vec, VecDeque }
    }
}

/// Each user may have all watchers.
mod share {
    pub fn has_place(_uid: u32, holders: impl ExactSizeIterator<Item = u32>, most: usize) -> bool {
        holders.len() < most
    }
}

/// What the spin lock asks of the machine: that there is another CPU to wait for, and where it
/// counts what is held.
mod arch {
    pub fn return_address() -> u64 {
        0
    }

    pub mod cpu {
        pub const MAX_CPUS: usize = 2;

        pub fn count() -> usize {
            MAX_CPUS
        }

        pub fn index() -> usize {
            0
        }

        pub fn rows() -> &'static [machine::shared::Row] {
            &[]
        }
    }
}

mod io {
    pub use uvm::CLUSTER;
}

/// The library's slots.
#[path = "../../../uvm/src/amap/slots/mod.rs"]
#[allow(dead_code)]
mod slots;

/// Runs a test under every schedule with at most so many preemptions: few find nearly all that many
/// do.
fn all_schedules(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    builder.check(test);
}
