//! Page frames, their queues and their records (`uvm::page`), on a software machine.

mod frames;
mod queues;
mod records;
