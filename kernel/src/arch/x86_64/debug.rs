//! The CPU's breakpoints and watchpoints (debug registers), which a program's debugger sets for one
//! of its threads.
//!
//! A task has its own; the registers are written at a switch only if the task that comes or the one
//! that was there last has any. They stay in force while the kernel works for the task; what its
//! copies to and from user memory meet is not told, as on Linux.
//!
//! I1: an address is one of user memory, so the kernel's own instructions and data are never met.
//! I2: HERE says what control word this CPU's registers hold, and whether the CPU steps to the next
//! jump.

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
/// What is kept besides: a single step goes on to the next jump (`DEBUGCTL.BTF`).
const BLOCK: u64 = 1 << 32;
/// A bit of it that is always set, and those of the status that are.
const CONTROL_FIXED: u64 = 0x400;
const STATUS_FIXED: u64 = 0xffff_0ff0;
/// What the status says: addresses that were met, and a single step.
pub const MET: u64 = 0xf;
pub const STEP: u64 = 0x4000;

const MSR_DEBUG_CONTROL: u32 = 0x1d9;
const BRANCHES: u64 = 2;

#[repr(align(64))]
struct Here(AtomicU64);
static HERE: [Here; cpu::MAX_CPUS] = [const { Here(AtomicU64::new(0)) }; cpu::MAX_CPUS];

/// A task's debug registers.
pub struct Watch {
    addresses: [AtomicU64; ADDRESSES],
    /// What the CPU is to look for; 0 for nothing.
    control: AtomicU64,
    /// The control word as a debugger wrote it.
    written: AtomicU64,
    status: AtomicU64,
}

/// Whether a control word looks for something at its address `n` that a CPU can: instructions have
/// no length, ports are not for programs, data is aligned.
fn is_known(control: u64, n: usize, address: u64) -> bool {
    let (kind, length) = (control >> (16 + 4 * n) & 3, control >> (18 + 4 * n) & 3);
    let less_one = [0, 1, 7, 3][length as usize];
    kind != 2 && (kind != 0 || length == 0) && address & less_one == 0
}

fn is_enabled(control: u64, n: usize) -> bool {
    control >> (2 * n) & 3 != 0
}

impl Watch {
    /// None.
    pub const fn new() -> Watch {
        Watch {
            addresses: [const { AtomicU64::new(0) }; ADDRESSES],
            control: AtomicU64::new(0),
            written: AtomicU64::new(0),
            status: AtomicU64::new(0),
        }
    }

    /// Register `n` of eight; 0 where there is none.
    pub fn get(&self, n: usize) -> u64 {
        match n {
            STATUS => self.status.load(Relaxed) ^ STATUS_FIXED,
            CONTROL => self.written.load(Relaxed),
            n => self.addresses.get(n).map_or(0, |address| address.load(Relaxed)),
        }
    }

    /// Sets one of a task that doesn't run, or is to [`load`](Self::load) it. `None`, and nothing
    /// has changed, for an address outside of user memory (I1) and for what isn't known.
    pub fn set(&self, n: usize, value: u64) -> Option<()> {
        match n {
            STATUS => self.status.store(value ^ STATUS_FIXED, Relaxed),
            CONTROL => {
                // One that isn't enabled is judged if it has an address, as on Linux.
                let is_good = |n: usize| {
                    let address = self.get(n);
                    is_known(value, n, address) || address == 0 && !is_enabled(value, n)
                };
                if !(0..ADDRESSES).all(is_good) {
                    return None;
                }
                self.written.store(value, Relaxed);
                let is_any = value & ENABLES != 0;
                self.control.store(if is_any { value & (ENABLES | KINDS) } else { 0 }, Relaxed);
            }
            n => {
                let address = self.addresses.get(n).filter(|_| value < USER_END)?;
                if !is_known(self.get(CONTROL), n, value) {
                    return None;
                }
                address.store(value, Relaxed);
            }
        }
        Some(())
    }

    /// Whether single steps of a task that doesn't run go on to the next jump.
    pub fn set_block(&self, is_wanted: bool) {
        if is_wanted {
            self.control.fetch_or(BLOCK, Relaxed);
        } else {
            self.control.fetch_and(!BLOCK, Relaxed);
        }
    }

    /// Forgets all of them; the CPU that runs the task may not hear of it before the next switch.
    pub fn clear(&self) {
        self.control.store(0, Relaxed);
        self.written.store(0, Relaxed);
        self.addresses.iter().for_each(|address| address.store(0, Relaxed));
        self.status.store(0, Relaxed);
    }

    /// Makes them this CPU's, whose task they are.
    #[inline]
    pub fn load(&self) {
        let control = self.control.load(Relaxed);
        if control | HERE[cpu::index()].0.load(Relaxed) != 0 {
            self.write(control);
        }
    }

    #[cold]
    fn write(&self, control: u64) {
        io::write_debug_control(CONTROL_FIXED);
        let before = HERE[cpu::index()].0.swap(control, Relaxed);
        if (before ^ control) & BLOCK != 0 {
            // SAFETY: the bit changes after which instructions a program's single steps trap.
            unsafe {
                io::wrmsr(MSR_DEBUG_CONTROL, if control & BLOCK != 0 { BRANCHES } else { 0 })
            };
        }
        if control & ENABLES != 0 {
            io::write_debug_addresses([0, 1, 2, 3].map(|n| self.addresses[n].load(Relaxed)));
            io::write_debug_control(control & !BLOCK | CONTROL_FIXED);
        }
    }

    /// Whether an instruction is among what was met, which is yet to run.
    pub fn has_instruction(&self, met: u64) -> bool {
        let control = self.control.load(Relaxed);
        (0..ADDRESSES).any(|n| met >> n & 1 != 0 && control >> (16 + 4 * n) & 3 == 0)
    }

    /// What of a status is the task's to hear of: not what was cleared meanwhile. It is kept, and a
    /// step to the next jump is over.
    pub fn met(&self, status: u64) -> u64 {
        self.set_block(false);
        let control = self.control.load(Relaxed);
        let enabled =
            (0..ADDRESSES).filter(|&n| is_enabled(control, n)).fold(0, |set, n| set | 1 << n);
        let met = status & (enabled | STEP);
        self.status.store(met, Relaxed);
        met
    }
}

/// What this CPU has met, which it forgets; the CPU no longer steps to the next jump.
pub fn take_status() -> u64 {
    HERE[cpu::index()].0.fetch_and(!BLOCK, Relaxed);
    let status = io::read_debug_status();
    io::write_debug_status(STATUS_FIXED);
    status & (MET | STEP)
}
