//! Interrupts of devices: a vector for each, and the function that answers it.
//!
//! A driver registers its function and gets a [`Vector`], then points its device at it: by a
//! message (`Vector::message`, MSI-X), or by a line of the I/O APIC (`Vector::route`). Functions
//! run with interrupts off and nothing held; see `sync`. Lines lead to the CPU that routes them,
//! the first. Messages lead to the CPUs in turn, those that run when the device is told.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use alloc::format;
use alloc::string::String;

use super::{apic, cpu};

pub use super::apic::init;
use crate::arch::acpi;
use crate::lock::Once;

/// Vectors that devices can have.
pub(super) const FIRST: u8 = 0x50;
pub(super) const LAST: u8 = FIRST + COUNT as u8 - 1;
const COUNT: usize = 32;

struct Handler {
    call: fn(usize),
    argument: usize,
    name: String,
    /// By CPU.
    taken: [AtomicU64; cpu::MAX_CPUS],
}

static HANDLERS: [Once<Handler>; COUNT] = [const { Once::new() }; COUNT];
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// A vector that a driver owns, for good.
#[derive(Clone, Copy)]
pub struct Vector(u8);

/// Calls `call(argument)` for each interrupt of a new vector; `name` is for `/proc/interrupts`.
/// `None` when no vector is left.
pub fn register(name: String, call: fn(usize), argument: usize) -> Option<Vector> {
    let index = NEXT.fetch_add(1, Relaxed);
    let taken = [const { AtomicU64::new(0) }; cpu::MAX_CPUS];
    HANDLERS.get(index)?.call_once(|| Handler { call, argument, name, taken });
    Some(Vector(FIRST + index as u8))
}

impl Vector {
    /// The address and the word that a message-signalled interrupt writes, to come to the CPU whose
    /// turn it is.
    pub fn message(self) -> (u64, u32) {
        apic::message(usize::from(self.0 - FIRST) % cpu::count(), self.0)
    }

    /// Sends an interrupt line here. Start-up only.
    pub fn route(self, platform: &acpi::Platform, source: acpi::Source) {
        apic::route(platform, source, self.0);
    }
}

/// Answers an interrupt.
pub(super) fn dispatch(vector: u8) {
    if let Some(handler) = HANDLERS[usize::from(vector - FIRST)].get() {
        handler.taken[cpu::index()].fetch_add(1, Relaxed);
        (handler.call)(handler.argument);
    }
}

/// Calls `each` with every vector in use, how often each CPU has taken it, and its name; then with
/// the CPUs' own.
pub fn list(mut each: impl FnMut(&str, &[u64], &str)) {
    for (index, handler) in HANDLERS.iter().enumerate() {
        if let Some(handler) = handler.get() {
            let taken = handler.taken.each_ref().map(|taken| taken.load(Relaxed));
            each(&format!("{}", FIRST + index as u8), &taken[..cpu::count()], &handler.name);
        }
    }
    for (own, (label, name)) in NAMES.iter().enumerate() {
        let taken = TAKEN.each_ref().map(|cpu| cpu.0[own].load(Relaxed));
        each(label, &taken[..cpu::count()], name);
    }
}

/// Interrupts that no device sends.
#[derive(Clone, Copy)]
pub(super) enum Own {
    Timer,
    Request,
}

/// As Linux names them, in the order of [`Own`].
const NAMES: [(&str, &str); 2] =
    [("LOC", "Local timer interrupts"), ("CAL", "Function call interrupts")];

#[repr(align(64))]
struct Taken([AtomicU64; NAMES.len()]);

static TAKEN: [Taken; cpu::MAX_CPUS] =
    [const { Taken([const { AtomicU64::new(0) }; NAMES.len()]) }; cpu::MAX_CPUS];

/// Counts an interrupt on this CPU.
pub(super) fn count(own: Own) {
    TAKEN[cpu::index()].0[own as usize].fetch_add(1, Relaxed);
}
