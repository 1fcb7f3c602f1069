//! The instance of the library that manages the machine's memory, and how it is called.

use machine::order::Nothing;
use machine::Held;

use crate::arch::machine::{frames, unlocked, KernelMachine};
use crate::mem::fault;
use crate::sync::Once;

/// Mappings of a space at most, until a program writes another number: Linux's.
const MAPPINGS: usize = 65530;

static SYSTEM: Once<uvm::Uvm<KernelMachine>> = Once::new();

/// The instance. It exists before the first process.
#[inline]
pub(super) fn system() -> &'static uvm::Uvm<KernelMachine> {
    match SYSTEM.get() {
        Some(system) => system,
        None => unreachable!("the VM system is used before vm::init"),
    }
}

/// Runs `call` with the token that says this thread holds no VM lock: true of all code outside
/// the library.
#[inline]
pub(super) fn with<T>(
    call: impl FnOnce(&'static uvm::Uvm<KernelMachine>, &mut Held<'_, Nothing>) -> T,
) -> T {
    let call = || unlocked(|held| call(system(), held));
    if cfg!(debug_assertions) {
        // The library's large pieces can fail, which `uvm-soft` checks.
        return fault::excused(call);
    }
    call()
}

/// Takes over the machine's memory; once, before anything else here.
pub fn init() {
    let frames = frames().expect("memory is handed over first").clone();
    match uvm::Uvm::new(KernelMachine, frames) {
        Ok(system) => {
            system.knobs().set_most_entries(MAPPINGS);
            SYSTEM.call_once(|| system);
        }
        Err(e) => panic!("the VM system's tables do not fit: {e}"),
    }
}
