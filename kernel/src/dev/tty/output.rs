//! What becomes of a byte that a program writes to a terminal, by its `c_oflag`.

use linux_raw_sys::general as abi;

use super::termios::Termios;

/// A byte may become so many.
pub const WIDEST: usize = 8;

/// Where the next byte will stand.
#[derive(Clone, Copy)]
pub struct Output {
    column: u32,
}

impl Output {
    /// At the start of a line.
    pub const fn new() -> Output {
        Output { column: 0 }
    }

    pub fn column(&self) -> u32 {
        self.column
    }

    /// How many bytes one may become at most.
    pub fn widest(termios: &Termios) -> usize {
        match termios.oflag {
            flags if flags & abi::OPOST == 0 => 1,
            flags if flags & abi::TABDLY == abi::XTABS => WIDEST,
            _ => 2,
        }
    }

    /// Puts out what a byte becomes.
    pub fn process(&mut self, termios: &Termios, byte: u8, put: &mut dyn FnMut(&[u8])) {
        let has = |flag: u32| termios.oflag & flag != 0;
        if !has(abi::OPOST) {
            return put(&[byte]);
        }
        match byte {
            b'\n' => {
                if has(abi::ONLRET) || has(abi::ONLCR) {
                    self.column = 0;
                }
                put(if has(abi::ONLCR) { b"\r\n" } else { b"\n" });
            }
            b'\r' if has(abi::ONOCR) && self.column == 0 => {}
            b'\r' => {
                if !has(abi::OCRNL) || has(abi::ONLRET) {
                    self.column = 0;
                }
                put(if has(abi::OCRNL) { b"\n" } else { b"\r" });
            }
            b'\t' => {
                let spaces = WIDEST - (self.column as usize & 7);
                self.column = (self.column + spaces as u32) & 0xffff;
                let expands = termios.oflag & abi::TABDLY == abi::XTABS;
                put(if expands { &b"        "[..spaces] } else { b"\t" });
            }
            b'\x08' => {
                self.column = self.column.saturating_sub(1);
                put(&[byte]);
            }
            byte => {
                let byte = if has(abi::OLCUC) { byte.to_ascii_uppercase() } else { byte };
                let is_part = termios.input(abi::IUTF8) && byte & 0xc0 == 0x80;
                if byte >= 0x20 && byte != 0x7f && !is_part {
                    self.column = self.column.saturating_add(1) & 0xffff;
                }
                put(&[byte]);
            }
        }
    }
}
