//! The CPU's breakpoints and watchpoints (debug registers), which a program's debugger sets for one
//! of its threads.
//!
//! A task has its own; the registers are written at a switch only if the task that comes or the one
//! that was there last has any. They stay in force while the kernel works for the task; what its
//! copies to and from user memory meet is not told, as on Linux.
//!
//! I1: an address is one of user memory, so the kernel's own instructions and data are never met.
//! I2: HERE says what control word this CPU's registers hold.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::layout::USER_END;
use super::{cpu, io};

/// Four addresses.
const ADDRESSES: usize = 4;
/// The numbers of the registers that say what was met, and what is looked for.
const STATUS: usize = 6;
const CONTROL: usize = 7;

/// Bits of the control word: each address's enabling pair, then its kind and length.
const ENABLES: u64 = 0xff;
const KINDS: u64 = 0xffff_0000;
/// A bit of it that is always set, and those of the status that are.
const CONTROL_FIXED: u64 = 0x400;
const STATUS_FIXED: u64 = 0xffff_0ff0;
/// What the status says: addresses that were met, and a single step.
pub const MET: u64 = 0xf;
pub const STEP: u64 = 0x4000;

#[repr(align(64))]
struct Here(AtomicU64);
static HERE: [Here; cpu::MAX_CPUS] = [const { Here(AtomicU64::new(0)) }; cpu::MAX_CPUS];

/// A task's debug registers.
pub struct Watch {
    addresses: [AtomicU64; ADDRESSES],
    control: AtomicU64,
    status: AtomicU64,
}

/// Whether all that a control word enables is known.
fn is_known(control: u64) -> bool {
    (0..ADDRESSES).all(|n| {
        let is_enabled = control >> (2 * n) & 3 != 0;
        let (kind, length) = (control >> (16 + 4 * n) & 3, control >> (18 + 4 * n) & 3);
        // Instructions have no length; ports are not for programs.
        !is_enabled || kind != 2 && (kind != 0 || length == 0)
    })
}

impl Watch {
    /// None.
    pub const fn new() -> Watch {
        Watch {
            addresses: [const { AtomicU64::new(0) }; ADDRESSES],
            control: AtomicU64::new(0),
            status: AtomicU64::new(0),
        }
    }

    /// Register `n` of eight; 0 where there is none.
    pub fn get(&self, n: usize) -> u64 {
        match n {
            STATUS => self.status.load(Relaxed),
            CONTROL => self.control.load(Relaxed),
            n => self.addresses.get(n).map_or(0, |address| address.load(Relaxed)),
        }
    }

    /// Sets one of a task that doesn't run, or is to [`load`](Self::load) it. `None`, and nothing
    /// has changed, for an address outside of user memory (I1) and for what isn't known.
    pub fn set(&self, n: usize, value: u64) -> Option<()> {
        match n {
            STATUS => self.status.store(value & (MET | STEP), Relaxed),
            CONTROL if !is_known(value) => return None,
            CONTROL => self.control.store(value & (ENABLES | KINDS), Relaxed),
            n => {
                let address = self.addresses.get(n).filter(|_| value < USER_END)?;
                address.store(value, Relaxed);
            }
        }
        Some(())
    }

    /// Forgets all of them; the CPU that runs the task may not hear of it before the next switch.
    pub fn clear(&self) {
        self.control.store(0, Relaxed);
    }

    /// Makes them this CPU's, whose task they are.
    #[inline]
    pub fn load(&self) {
        let control =
            if self.control.load(Relaxed) & ENABLES == 0 { 0 } else { self.control.load(Relaxed) };
        if control | HERE[cpu::index()].0.load(Relaxed) != 0 {
            self.write(control);
        }
    }

    #[cold]
    fn write(&self, control: u64) {
        io::write_debug_control(CONTROL_FIXED);
        HERE[cpu::index()].0.store(control, Relaxed);
        if control != 0 {
            io::write_debug_addresses([0, 1, 2, 3].map(|n| self.addresses[n].load(Relaxed)));
            io::write_debug_control(control | CONTROL_FIXED);
        }
    }

    /// Whether an instruction is among what was met, which is yet to run.
    pub fn has_instruction(&self, met: u64) -> bool {
        let control = self.control.load(Relaxed);
        (0..ADDRESSES).any(|n| met >> n & 1 != 0 && control >> (16 + 4 * n) & 3 == 0)
    }

    /// What of a status is the task's to hear of: not what was cleared meanwhile. It is kept.
    pub fn met(&self, status: u64) -> u64 {
        let enabled = (0..ADDRESSES as u64)
            .filter(|n| self.control.load(Relaxed) >> (2 * n) & 3 != 0)
            .fold(0, |set, n| set | 1 << n);
        let met = status & (enabled | STEP);
        self.status.fetch_or(met, Relaxed);
        met
    }
}

/// What this CPU has met, which it forgets.
pub fn take_status() -> u64 {
    let status = io::read_debug_status();
    io::write_debug_status(STATUS_FIXED);
    status & (MET | STEP)
}
