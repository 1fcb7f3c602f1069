//! The two serial ports: COM1 is the console, COM2 the control channel to whoever started QEMU.

use super::io::{in8, out8};

const COM1: u16 = 0x3f8;
const COM2: u16 = 0x2f8;

fn put(port: u16, byte: u8) {
    while in8(port + 5) & 0x20 == 0 {}
    out8(port, byte);
}

/// Prints on the console, polling.
pub fn early_print(s: &str) {
    s.bytes().for_each(|b| put(COM1, b));
}

/// Sends text on the control channel.
pub fn control(s: &str) {
    s.bytes().for_each(|b| put(COM2, b));
}
