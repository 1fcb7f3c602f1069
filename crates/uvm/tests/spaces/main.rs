//! Maps and faults, on the software machine: what programs see, and what no other thread or space
//! does.

mod behaviour;
#[path = "../disk/mod.rs"]
mod disk;
mod holds;
#[path = "../loaning/mod.rs"]
mod loaning;
mod moments;

#[global_allocator]
static HEAP: uvm_soft::ChargedHeap<true> = uvm_soft::ChargedHeap;
