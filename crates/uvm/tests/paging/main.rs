//! Pagers, page-out and swap. On the software machine.

mod balance;
#[path = "../disk/mod.rs"]
mod disk;
mod files;
mod pageout;
mod pagers;
mod polled;
mod shared;
#[path = "../stores/mod.rs"]
mod stores;
mod threads;
mod zram;

#[global_allocator]
static HEAP: uvm_soft::ChargedHeap<true> = uvm_soft::ChargedHeap;
