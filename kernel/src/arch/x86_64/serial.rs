//! The two serial ports: COM1 is the console, COM2 the control channel to the program that started
//! QEMU.
//!
//! Output polls: QEMU takes a byte at once unless its own output is blocked. Input arrives by
//! interrupt and goes to the receiver that the terminal has registered, the console's byte by byte,
//! the control channel's by lines; what comes before that stays in the port.

use arrayvec::ArrayVec;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::io::{in8, out8};
use crate::lock::SpinLock;

const COM1: u16 = 0x3f8;
const COM2: u16 = 0x2f8;
/// ISA interrupt lines of both ports.
pub const IRQS: [u8; 2] = [4, 3];
/// Bytes of the longest line that the host tells; of a longer one only the start is heard.
const MAX_TOLD: usize = 32;

static CONTROL_PRESENT: AtomicBool = AtomicBool::new(false);
static RECEIVER: SpinLock<Option<Receiver>> = SpinLock::new(None);
static TOLD: SpinLock<ArrayVec<u8, MAX_TOLD>> = SpinLock::new(ArrayVec::new_const());

/// The receiver of input, called in interrupt context.
#[derive(Clone, Copy)]
pub struct Receiver {
    pub take: fn(u8),
    /// While this says no, input stays in the port, and its sender waits; [`resume`] must follow.
    pub has_room: fn() -> bool,
    /// Takes a line that the host has sent on the control channel.
    pub told: fn(&str),
}

/// Sets both ports up: 8N1, FIFOs, no interrupts yet.
pub fn init() {
    for port in [COM1, COM2] {
        out8(port + 1, 0);
        out8(port + 3, 0x80);
        out8(port, 1);
        out8(port + 1, 0);
        out8(port + 3, 3);
        // Interrupt at 14 waiting bytes or a pause: QEMU hands over as many at a time.
        out8(port + 2, 0xc7);
        out8(port + 4, 0x0b);
    }
    out8(COM2 + 7, 0x5a);
    CONTROL_PRESENT.store(in8(COM2 + 7) == 0x5a, Relaxed);
}

/// Sends console input to `receiver` from now on.
pub fn set_receiver(receiver: Receiver) {
    *RECEIVER.lock() = Some(receiver);
    resume();
    if CONTROL_PRESENT.load(Relaxed) {
        out8(COM2 + 1, 1);
    }
    interrupt();
}

/// The receiver has room again.
pub fn resume() {
    out8(COM1 + 1, 1);
}

/// Takes what the ports have received.
pub fn interrupt() {
    let receiver = *RECEIVER.lock();
    let Some(receiver) = receiver else { return };
    if CONTROL_PRESENT.load(Relaxed) {
        take_told(&receiver);
    }
    take_console(&receiver);
}

fn take_told(receiver: &Receiver) {
    while in8(COM2 + 5) & 1 != 0 {
        let byte = in8(COM2);
        let mut line = TOLD.lock();
        if byte != b'\n' {
            let _ = line.try_push(byte);
            continue;
        }
        let whole = core::mem::take(&mut *line);
        drop(line);
        core::str::from_utf8(&whole).into_iter().for_each(receiver.told);
    }
}

fn take_console(receiver: &Receiver) {
    loop {
        if !(receiver.has_room)() {
            out8(COM1 + 1, 0);
            // Room that was made just before that has no resume() to come.
            if !(receiver.has_room)() {
                return;
            }
            resume();
        }
        if in8(COM1 + 5) & 1 == 0 {
            return;
        }
        (receiver.take)(in8(COM1));
    }
}

fn put(port: u16, byte: u8) {
    while in8(port + 5) & 0x20 == 0 {
        core::hint::spin_loop();
    }
    out8(port, byte);
}

/// Kept while a piece of text goes to the console, and while a line goes to the control channel.
static CONSOLE: SpinLock<()> = SpinLock::new(());
static CONTROL: SpinLock<()> = SpinLock::new(());

/// Prints on the console.
pub fn console(bytes: &[u8]) {
    let _turn = CONSOLE.lock();
    bytes.iter().for_each(|&b| put(COM1, b));
}

/// Sends a line on the control channel.
pub fn control(line: fmt::Arguments<'_>) {
    let _turn = CONTROL.lock();
    control_at_once(line);
}

/// Sends a line on the control channel without a lock, whatever else is written there: for the end.
pub fn control_at_once(line: fmt::Arguments<'_>) {
    // The port takes everything.
    let _ = fmt::Write::write_fmt(&mut Control, line);
    put_control(b"\n");
}

/// A line of the control channel, of a panic's several lines one. Programs choose names that stand
/// in it: what would speak to a terminal becomes a question mark.
struct Control;

fn put_control(bytes: &[u8]) {
    if CONTROL_PRESENT.load(Relaxed) {
        bytes.iter().for_each(|&b| put(COM2, b));
    }
}

impl fmt::Write for Control {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        s.bytes().for_each(|b| match b {
            b'\n' => put_control(b" "),
            b if b.is_ascii_control() => put_control(b"?"),
            b => put_control(&[b]),
        });
        Ok(())
    }
}

/// The console as a destination for `write!`, each line ended as a raw terminal needs.
pub struct Console;

impl fmt::Write for Console {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let _turn = CONSOLE.lock();
        for b in s.bytes() {
            if b == b'\n' {
                put(COM1, b'\r');
            }
            put(COM1, b);
        }
        Ok(())
    }
}
