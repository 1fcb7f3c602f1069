//! The library and its reference model on lists of operations: random ones, all short ones, such as
//! were found, on little memory and without any. One program: each has the whole library in it, and
//! to optimize that takes longer than most of them run.

mod exhaustive;
mod paging;
mod random;
mod regressions;
mod scarcity;
