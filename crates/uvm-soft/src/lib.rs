//! The software machine: a [`Machine`](machine::Machine) and its MMU on a desk, for tests and
//! examples.
//!
//! ```text
//!   test or program
//!     | load / store / access (cpu, space, va)      | calls of the VM system
//!     v                                             v
//!   SoftMachine --- Memory: bytes of every frame    Pmap contract
//!     |                                             |
//!     +-- SoftPmap: tables, reverse map, bits  <----+
//!           +-- one TLB per simulated CPU, stale until a flush names the entry
//! ```
//!
//! It is an adversary that keeps to the letter of the contract (`machine::pmap`):
//!
//! * a TLB keeps what an access put there until [`Pmap::flush`](machine::Pmap::flush) names it; an
//!   access through an entry that the tables no longer imply is a [`Trap::Stale`], and
//!   [`SoftMachine::tlb_audit`] finds such entries before they are used;
//! * pageable mappings are forgotten at random (law P1), by seed; pages hold garbage until they are
//!   written;
//! * transfers end in any order, when a thread waits or a test says so, and fail when it says that;
//! * frames, tables and heap reservations fail at the Nth call, when asked to ([`Injector`]);
//! * what an operation allocates beyond its reservation is found by a [`ChargedHeap`];
//! * a [`Plant`] breaks one law on purpose, to prove that a test would see it.
//!
//! Read `pmap` for the tables, `tlb` for the caches, `access` for what a CPU does with both,
//! `threads` for locks. This crate knows no VM system: an access that misses calls a fault handler
//! that the caller passes.

mod access;
mod config;
#[doc(hidden)]
pub mod example;
#[allow(unsafe_code)]
mod heap;
mod hooks;
mod inject;
mod memory;
mod pmap;
mod rng;
mod soft;
mod tables;
#[allow(unsafe_code)]
mod threads;
mod tlb;

pub use access::{Denied, Trap};
pub use config::{Config, IoBy, Plant, Stage};
pub use heap::{charged, host, longest_hold, within_reservation, ChargedHeap, Host, PIECE};
pub use hooks::{Hooks, Moment};
pub use inject::Injector;
pub use pmap::{Counters, Mapping, SoftPmap, SoftSpace};
pub use rng::Rng;
pub use soft::{Fate, SoftMachine};
#[cfg(feature = "shuttle")]
pub use threads::shuttle_threads::ShuttleThreads;
pub use threads::{wait_until, Sleepers, StdThreads, Threads};

/// The example of the crate's README, tested.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
