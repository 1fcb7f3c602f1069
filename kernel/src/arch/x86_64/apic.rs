//! Interrupt controllers: the CPU's local APIC with its timer and its messages to other CPUs, the
//! I/O APIC for device lines, and the old PIC, silenced.
//!
//! APICs are used as they are after reset, through memory: identifiers of up to 254 will do for 64
//! CPUs.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use super::{cpu, io, serial};
use crate::arch::acpi;
use crate::arch::layout;

/// Vector of the local timer.
pub const TIMER: u8 = 0x40;
/// Vector of the console's serial port.
pub const SERIAL: u8 = 0x41;
/// Vectors of requests by other CPUs, and of the end of a doze: of higher priority than all others.
pub const REQUEST: u8 = 0xf0;
pub const DOZE: u8 = 0xf1;
/// Vector that the local APIC reports for interrupts that went away.
pub const SPURIOUS: u8 = 0xff;

const ID: u64 = 0x20;
const EOI: u64 = 0xb0;
const SPURIOUS_VECTOR: u64 = 0xf0;
const COMMAND: u64 = 0x300;
const COMMAND_TARGET: u64 = 0x310;
const LVT_TIMER: u64 = 0x320;
const LVT_LINT0: u64 = 0x350;
const LVT_LINT1: u64 = 0x360;
const TIMER_INITIAL: u64 = 0x380;
const TIMER_CURRENT: u64 = 0x390;
const TIMER_DIVIDE: u64 = 0x3e0;

/// Bits of the command register: how a message is delivered, and that one is on its way.
const NMI: u32 = 4 << 8;
const INIT: u32 = 5 << 8;
const START_UP: u32 = 6 << 8;
const ASSERT: u32 = 1 << 14;
const BUSY: u32 = 1 << 12;

/// Virtual address of the local APIC's registers, the same on every CPU.
static LOCAL: AtomicU64 = AtomicU64::new(0);

/// Each CPU's APIC by the CPU's number.
static IDS: [AtomicU32; cpu::MAX_CPUS] = [const { AtomicU32::new(0) }; cpu::MAX_CPUS];

fn register(offset: u64) -> *mut u32 {
    (LOCAL.load(Relaxed) + offset) as *mut u32
}

fn read(offset: u64) -> u32 {
    // SAFETY: `LOCAL` is the uncached direct mapping of the APIC page; reads of the named registers
    // have no side effect.
    unsafe { register(offset).read_volatile() }
}

#[inline]
fn write(offset: u64, value: u32) {
    // SAFETY: as in `read`; this module owns the registers.
    unsafe { register(offset).write_volatile(value) }
}

/// Starts the first CPU's APIC and routes the serial ports' lines to it.
pub fn init(platform: &acpi::Platform) {
    // The two PICs: every line masked.
    io::out8(0x21, 0xff);
    io::out8(0xa1, 0xff);
    LOCAL.store(layout::direct(io::rdmsr(0x1b) & 0xf_ffff_f000), Relaxed);
    init_local();
    for line in serial::IRQS {
        route(platform, platform.overrides[usize::from(line)], SERIAL);
    }
}

/// Starts this CPU's APIC.
pub fn init_local() {
    // SAFETY: turns the APIC on, where it is.
    unsafe { io::wrmsr(0x1b, io::rdmsr(0x1b) | 1 << 11) };
    IDS[cpu::index()].store(id(), Relaxed);
    write(SPURIOUS_VECTOR, 0x100 | u32::from(SPURIOUS));
    write(LVT_LINT0, 1 << 16);
    write(LVT_LINT1, 1 << 16);
    write(TIMER_DIVIDE, 0b1011);
    write(LVT_TIMER, u32::from(TIMER));
    write(TIMER_INITIAL, 0);
}

/// This CPU's APIC.
pub fn id() -> u32 {
    read(ID) >> 24
}

/// Sends a message to the APIC `to`. The kernel runs with interrupts off, so nothing comes between
/// the two writes.
fn command(to: u32, what: u32) {
    while read(COMMAND) & BUSY != 0 {
        core::hint::spin_loop();
    }
    write(COMMAND_TARGET, to << 24);
    write(COMMAND, what | ASSERT);
}

/// Interrupts another CPU by `REQUEST`.
#[inline]
pub(super) fn interrupt(cpu: usize) {
    command(IDS[cpu].load(Relaxed), u32::from(REQUEST));
}

/// Interrupts another CPU though it has interrupts off.
pub(super) fn interrupt_urgently(cpu: usize) {
    command(IDS[cpu].load(Relaxed), NMI);
}

/// Resets a CPU.
///
/// # Safety
/// The CPU runs nothing of ours.
pub(super) unsafe fn reset(apic: u32) {
    command(apic, INIT);
}

/// Has a CPU that was reset begin at the page `page`, in real mode.
///
/// # Safety
/// Code for it lies there.
pub(super) unsafe fn start_up(apic: u32, page: u32) {
    command(apic, START_UP | page);
}

/// Sends a line to this CPU as `vector`. Start-up only.
pub(super) fn route(platform: &acpi::Platform, source: acpi::Source, vector: u8) {
    let before = platform.io_apics.iter().filter(|io_apic| io_apic.first_gsi <= source.gsi);
    let Some(io_apic) = before.max_by_key(|io_apic| io_apic.first_gsi) else { return };
    let entry = 0x10 + 2 * (source.gsi - io_apic.first_gsi);
    let base = layout::direct(u64::from(io_apic.address));
    let flags = u32::from(source.level) << 15 | u32::from(source.active_low) << 13;
    let put = |index: u32, value: u32| {
        // SAFETY: the I/O APIC's two registers, uncached in the direct map; start-up is the only
        // user.
        unsafe {
            (base as *mut u32).write_volatile(index);
            ((base + 0x10) as *mut u32).write_volatile(value);
        }
    };
    put(entry + 1, read(ID) & 0xff00_0000);
    put(entry, u32::from(vector) | flags);
}

/// What a device writes, and where, to interrupt a CPU that runs as `vector`.
pub(super) fn message(cpu: usize, vector: u8) -> (u64, u32) {
    (0xfee0_0000 | u64::from(IDS[cpu].load(Relaxed)) << 12, u32::from(vector))
}

/// Tells the APIC that the current interrupt has been dealt with.
#[inline]
pub fn end_of_interrupt() {
    write(EOI, 0);
}

/// Interrupts this CPU once, after `ticks` of the APIC's clock; zero stops the timer.
#[inline]
pub fn arm(ticks: u32) {
    write(TIMER_INITIAL, ticks);
}

/// Halts this CPU until another asks for something, or for at most so many ticks; other interrupts
/// stay pending, and what the timer was to do is forgotten.
pub(super) fn doze(ticks: u32) {
    /// Lets only vectors from 0xf0 on through.
    const HIGH: u64 = 14;
    write(LVT_TIMER, u32::from(DOZE));
    write(TIMER_INITIAL, ticks);
    io::write_cr8(HIGH);
    io::wait_for_interrupt();
    io::write_cr8(0);
    write(LVT_TIMER, u32::from(TIMER));
}

/// Ticks left of what `arm` started.
pub fn remaining() -> u32 {
    read(TIMER_CURRENT)
}
