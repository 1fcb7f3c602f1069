//! What a program asks of its map: mappings are made, moved, protected, wired and removed.
//!
//! What is locked is wired by faults, a change that is refused wires again what it has unwired
//! ahead, and what will be needed is read as faults read it: so these lie above
//! [`fault`](crate::fault), and `map` below it.

mod attributes;
mod insert;
mod remap;
mod unmap;
mod will_need;
mod wire;

pub use remap::RemapPlace;
