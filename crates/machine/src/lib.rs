//! The machine layer: what every VM system in this tree stands on.
//!
//! The VM system (`uvm`) is generic over one [`Machine`], which a host supplies: a kernel for bare
//! metal, the software MMU for tests, a Linux process. This crate holds what they all share and
//! what knows no VM system:
//!
//! * [`addr`]: addresses, page numbers and page counts as types of their own;
//! * [`order`]: locks with a level each, and the token that makes a wrong order a type error;
//! * [`shared`]: locks of that order that several CPUs read at once, and share no line in doing so;
//! * [`pmap`]: the contract with the code that programs the MMU, in the manner of pmap(9);
//!   [`plain`]: an implementation of it over a port's tables; [`bare`]: a spin lock, and bytes of
//!   frames;
//! * [`promise`]: a heap that promises memory, over any allocator; [`pieces`]: long arrays in
//!   pieces that it can promise;
//! * [`shootdown`]: what an operation lowered, gathered, and flushed on the CPUs once; [`notes`]:
//!   how CPUs send each other shootdown requests;
//! * [`machine`](mod@machine): the trait a host implements, and how an operation waits without
//!   holding a lock.
//!
//! Read `order` first, then `machine`, `pmap` and `shootdown`; `docs/porting.md` leads through
//! writing a port.
//!
//! Unsafe code is in the lock cells of `order` and `shared`, in references to a running task
//! ([`current`]), in accesses to frames ([`bare`]), and in calls of an allocator ([`promise`]).
#![no_std]

extern crate alloc;

/// Atomics of what is tested under loom: page records, locks, requests. Loom's, in such a test.
#[doc(hidden)]
pub mod atomic {
    #[cfg(not(feature = "__loom"))]
    pub use crate::lines::{
        AtomicBool, AtomicU16, AtomicU32, AtomicU64, AtomicU8, AtomicUsize, Ordering,
    };
    #[cfg(feature = "__loom")]
    pub use loom::sync::atomic::{
        AtomicBool, AtomicU16, AtomicU32, AtomicU64, AtomicU8, AtomicUsize, Ordering,
    };
}

pub mod addr;
#[allow(unsafe_code)]
pub mod bare;
#[allow(unsafe_code)]
pub mod current;
pub mod lines;
pub mod machine;
pub mod notes;
#[allow(unsafe_code)]
pub mod order;
pub mod pieces;
pub mod plain;
pub mod pmap;
#[allow(unsafe_code)]
pub mod promise;
#[allow(unsafe_code)]
pub mod shared;
pub mod shootdown;
pub mod unfinished;

pub use addr::{NotPages, Pa, PageNo, PageRange, Pages, Va, VaRange, PAGE_SHIFT, PAGE_SIZE};
pub use current::Current;
pub use machine::{Channel, Machine, NoMemory, Ticket, UNRESERVED_BYTES};
pub use notes::Notes;
pub use order::{Before, Held, Level, Ordered, RawLock, ThreadCtx, Unlocked};
pub use pieces::Pieces;
pub use pmap::{Pmap, Prot, Run, Wiring};
pub use shared::Shared;
pub use shootdown::{CpuSet, Shootdown, MAX_CPUS};

/// The example of the crate's README, tested.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
