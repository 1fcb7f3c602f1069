//! The line discipline: from bytes that were typed to bytes that a program reads.
//!
//! Pure: it knows no hardware, process or lock. Echo goes to a callback, a signal to be sent is
//! returned.
//!
//! ```text
//!   typed --> [ edit: the line being typed ] --newline, ^D--> [ ready: whole lines ] --> read
//!             raw mode: straight to -----------------------------^
//! ```
//!
//! Nothing is lost, not of a large paste either: the port waits while [`Line::has_room`] says no,
//! and a line longer than [`MAX_INPUT`] is handed over in pieces. The host may have a pipe or a
//! file where a terminal would be ([`Kind::Stream`]): there the end stays the end.
//!
//! Invariants: I1: `ends` holds the lengths of the lines in `ready`, oldest first; in raw mode it
//! is empty. I2: `edit` and `ready` are bounded, also by a port that does not wait: then bytes are
//! lost.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use linux_raw_sys::general as abi;

use super::termios::Termios;

/// The longest line, and half of the bytes that may wait to be read.
pub const MAX_INPUT: usize = 4096;

/// What stands at the host's end of the input.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A person who types.
    Keyboard,
    /// A pipe or a file, with the bytes that edit a line quoted.
    Stream,
}

/// Terminal input on its way to a program.
pub struct Line {
    pub kind: Kind,
    pub termios: Termios,
    edit: Vec<u8>,
    ready: VecDeque<u8>,
    ends: VecDeque<usize>,
    literal_next: bool,
    /// Output is held back by ^S.
    pub stopped: bool,
}

/// Where echo goes.
pub type Echo<'a> = &'a mut dyn FnMut(&[u8]);

impl Line {
    pub const fn new() -> Line {
        Line {
            kind: Kind::Keyboard,
            termios: Termios::new(),
            edit: Vec::new(),
            ready: VecDeque::new(),
            ends: VecDeque::new(),
            literal_next: false,
            stopped: false,
        }
    }

    /// Whether another byte may come without any getting lost.
    pub fn has_room(&self) -> bool {
        self.ready.len() + self.edit.len() < 2 * MAX_INPUT
    }

    /// Takes a typed byte. Returns the signal that it asks for, if any.
    pub fn typed(&mut self, byte: u8, echo: Echo<'_>) -> Option<u32> {
        let termios = self.termios;
        if self.literal_next {
            self.literal_next = false;
            self.insert(byte, echo);
            return None;
        }
        let byte = match byte {
            b'\r' if termios.input(abi::IGNCR) => return None,
            b'\r' if termios.input(abi::ICRNL) => b'\n',
            b'\n' if termios.input(abi::INLCR) => b'\r',
            other => other,
        };
        if termios.input(abi::IXON) && self.flow(byte) {
            return None;
        }
        if termios.local(abi::ISIG) {
            if let Some(signal) = signal_of(&termios, byte) {
                if !termios.local(abi::NOFLSH) {
                    self.flush_input();
                }
                self.echo_byte(byte, echo);
                return Some(signal);
            }
        }
        if !termios.is_canonical() {
            self.insert(byte, echo);
            return None;
        }
        self.edited(byte, echo);
        None
    }

    /// A byte in canonical mode.
    fn edited(&mut self, byte: u8, echo: Echo<'_>) {
        let termios = self.termios;
        if termios.is(byte, abi::VERASE) || byte == 0x08 && termios.cc[abi::VERASE as usize] == 0x7f
        {
            self.erase(echo);
        } else if termios.is(byte, abi::VKILL) {
            while self.erase(echo) {}
        } else if termios.is(byte, abi::VWERASE) && termios.local(abi::IEXTEN) {
            while self.edit.last().is_some_and(|&last| is_blank(last)) && self.erase(echo) {}
            while self.edit.last().is_some_and(|&last| !is_blank(last)) && self.erase(echo) {}
        } else if termios.is(byte, abi::VEOF) {
            self.finish();
        } else if termios.is(byte, abi::VLNEXT) && termios.local(abi::IEXTEN) {
            self.literal_next = true;
        } else if termios.is(byte, abi::VREPRINT) && termios.local(abi::IEXTEN) {
            self.echo_byte(byte, echo);
            echo(b"\n");
            for index in 0..self.edit.len() {
                self.echo_byte(self.edit[index], echo);
            }
        } else if byte == b'\n' {
            if termios.local(abi::ECHO) || termios.local(abi::ECHONL) {
                echo(b"\n");
            }
            self.edit.push(byte);
            self.finish();
        } else if termios.is(byte, abi::VEOL) || termios.is(byte, abi::VEOL2) {
            self.echo_byte(byte, echo);
            self.edit.push(byte);
            self.finish();
        } else {
            self.insert(byte, echo);
        }
    }

    fn insert(&mut self, byte: u8, echo: Echo<'_>) {
        self.echo_byte(byte, echo);
        if self.termios.is_canonical() {
            self.edit.push(byte);
            if self.edit.len() == MAX_INPUT {
                self.finish();
            }
        } else if self.has_room() {
            self.ready.push_back(byte);
        }
    }

    /// Takes back the last character; `false` if there is none.
    fn erase(&mut self, echo: Echo<'_>) -> bool {
        let Some(mut last) = self.edit.pop() else { return false };
        while self.termios.input(abi::IUTF8) && last & 0xc0 == 0x80 {
            match self.edit.pop() {
                Some(byte) => last = byte,
                None => break,
            }
        }
        if self.termios.local(abi::ECHO) && self.termios.local(abi::ECHOE) {
            let wide = last < 0x20 && last != b'\t' && self.termios.local(abi::ECHOCTL);
            echo(if wide { b"\x08 \x08\x08 \x08" } else { b"\x08 \x08" });
        }
        true
    }

    /// Hands the line over to readers.
    fn finish(&mut self) {
        if self.ready.len() + self.edit.len() > 4 * MAX_INPUT {
            self.edit.clear();
            return;
        }
        self.ends.push_back(self.edit.len());
        self.ready.extend(self.edit.drain(..));
    }

    fn flow(&mut self, byte: u8) -> bool {
        if self.termios.is(byte, abi::VSTOP) {
            self.stopped = true;
        } else if self.termios.is(byte, abi::VSTART) {
            self.stopped = false;
        } else {
            return false;
        }
        true
    }

    fn echo_byte(&self, byte: u8, echo: Echo<'_>) {
        if !self.termios.local(abi::ECHO) {
            return;
        }
        let control = byte < 0x20 && byte != b'\n' && byte != b'\t' || byte == 0x7f;
        if control && self.termios.local(abi::ECHOCTL) {
            echo(&[b'^', byte ^ 0x40]);
        } else {
            echo(&[byte]);
        }
    }

    /// Whether a read would find something: a line, or `min` bytes in raw mode.
    pub fn has_input(&self, min: usize) -> bool {
        if self.termios.is_canonical() {
            !self.ends.is_empty()
        } else {
            self.ready.len() >= min.max(1)
        }
    }

    /// Bytes that a read could take now.
    pub fn available(&self) -> usize {
        if self.termios.is_canonical() {
            self.ends.front().copied().unwrap_or(0)
        } else {
            self.ready.len()
        }
    }

    /// Copies what a read of `to` would get, without taking it.
    pub fn peek(&self, to: &mut [u8]) -> usize {
        let len = self.available().min(to.len());
        for (to, from) in to.iter_mut().zip(self.ready.iter().take(len)) {
            *to = *from;
        }
        len
    }

    /// Takes `len` bytes that were peeked at. At the end of a line the line goes, too.
    pub fn take(&mut self, len: usize) {
        let len = len.min(self.ready.len());
        self.ready.drain(..len);
        if let Some(end) = self.ends.front_mut() {
            let is_end_of_file = *end == 0;
            *end -= len.min(*end);
            if *end == 0 && !(is_end_of_file && self.kind == Kind::Stream) {
                self.ends.pop_front();
            }
        }
    }

    pub fn flush_input(&mut self) {
        self.edit.clear();
        self.ready.clear();
        self.ends.clear();
    }

    /// New settings; input that waits is kept when the mode changes.
    pub fn set_termios(&mut self, termios: Termios) {
        let was = self.termios.is_canonical();
        self.termios = termios;
        if was && !termios.is_canonical() {
            self.ready.extend(self.edit.drain(..));
            self.ends.clear();
        } else if !was && termios.is_canonical() && !self.ready.is_empty() {
            self.ends.clear();
            self.ends.push_back(self.ready.len());
        }
        if !termios.input(abi::IXON) {
            self.stopped = false;
        }
    }
}

fn signal_of(termios: &Termios, byte: u8) -> Option<u32> {
    [(abi::VINTR, abi::SIGINT), (abi::VQUIT, abi::SIGQUIT), (abi::VSUSP, abi::SIGTSTP)]
        .into_iter()
        .find(|&(index, _)| termios.is(byte, index))
        .map(|(_, signal)| signal)
}

fn is_blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}
