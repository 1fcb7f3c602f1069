//! Loans, page transfer and map entry passing. On the software machine.

#[path = "../disk/mod.rs"]
mod disk;
mod loaned;
mod loaned_objects;
#[path = "../loaning/mod.rs"]
mod loaning;
mod loans;
mod passing;
#[path = "../stores/mod.rs"]
mod stores;

#[global_allocator]
static HEAP: uvm_soft::ChargedHeap<true> = uvm_soft::ChargedHeap;
