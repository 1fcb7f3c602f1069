//! Whether the host wants to be told more.

use core::sync::atomic::AtomicBool;

/// Whether calls that aren't there and programs' faults are told on the control channel: `./uvm run
/// --trace`.
pub static TRACE: AtomicBool = AtomicBool::new(false);
