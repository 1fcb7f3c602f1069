//! Loans, page transfer and map entry passing. On the software machine.

#[path = "../disk/mod.rs"]
mod disk;
#[path = "../lending/mod.rs"]
mod lending;
mod lent;
mod lent_objects;
mod loans;
mod passing;
#[path = "../stores/mod.rs"]
mod stores;

#[global_allocator]
static HEAP: uvm_soft::ChargedHeap<true> = uvm_soft::ChargedHeap;
