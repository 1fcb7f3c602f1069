//! The instance of the library that manages the machine's memory, and how it is called.

use alloc::sync::Arc;

use machine::order::Nothing;
use machine::Held;

use super::Space;
use crate::mem::fault;
use crate::mem::frames::{self, unlocked, KernelMachine};
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

/// What the VM system asks of those above it, which start-up (`main`) hands to it. All of it is
/// rare.
pub struct Above {
    /// Calls `each` with the address space of every process.
    pub each_space: fn(each: &mut dyn FnMut(Arc<Space>)),
    /// Has a process killed, as memory and swap are full; whether memory may come of it.
    pub out_of_memory: fn() -> bool,
    /// Asks file systems to forget what is unused. Doesn't sleep.
    pub memory_is_short: fn(),
}

static ABOVE: Once<Above> = Once::new();

pub(super) fn above() -> &'static Above {
    ABOVE.get().expect("handed over by `init`")
}

/// Takes over the machine's memory; once, before anything else here.
pub fn init(above: Above) {
    ABOVE.call_once(|| above);
    let frames = frames::table().expect("memory is handed over first").clone();
    match uvm::Uvm::new(KernelMachine, frames) {
        Ok(system) => {
            system.knobs().set_most_entries(MAPPINGS);
            SYSTEM.call_once(|| system);
        }
        Err(e) => panic!("the VM system's tables do not fit: {e}"),
    }
}
