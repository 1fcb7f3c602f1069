//! The reference model, and the runs that compare it with the VM system: the acceptance test of
//! every operation.
//!
//! ```text
//!   gen: a list of operations  --->  model: what ought to be seen      \
//!     (by seed, or all of length 4)  world: the VM system on a          > compared after every step
//!                                    machine in this process           /
//!   run: catches what fails, shrinks the list, prints the seed and the list as code
//! ```
//!
//! After every step: the operation's own answer, every translation of every space (its rights, its
//! bytes, and that no two addresses share a writable page unless the model says they are one), the
//! machine's TLBs, the VM system's own audit. At the end every page of every space is read as a
//! program would, and all memory must come back.
//!
//! The machine is the software machine, or any other that implements [`desk::Desk`].
//!
//! Read `op` for the operations, `model` for their meaning, `world` for the comparison.
//! `UVM_SEED=n cargo test -p uvm-check` replays the random run from one seed.
#![forbid(unsafe_code)]

pub mod desk;
pub mod gen;
pub mod host;
pub mod model;
pub mod op;
pub mod run;
pub mod world;

/// What an operation allocates beyond its reservation fails the test.
#[global_allocator]
static HEAP: uvm_soft::ChargedHeap = uvm_soft::ChargedHeap;
