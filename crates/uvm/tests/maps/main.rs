//! Map calls, inheritance and what both cost, on the software machine.
//!
//! Costs are counted, not timed: locks that a thread takes, heap bytes that it holds, entries,
//! pages copied. So a cost that grows fails here on any machine.

mod calls;
mod costs;
#[allow(unsafe_code)]
mod count;

mod inheritance;
mod leaks;
mod merging;
mod world;
