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
//! Nothing is lost, not of a large paste either: the port or the writer waits while [`Line::room`]
//! says 0, and a line longer than [`MAX_INPUT`] is handed over in pieces. The host may have a pipe
//! or a file where a terminal would be ([`Kind::Stream`]): there the end stays the end.
//!
//! Invariants: I1: `lines` counts the entries of `ready` that end a line; in raw mode there are
//! none. I2: `edit` and `ready` are bounded, also by a port that does not wait: then bytes are
//! lost; after [`Line::reserve`] neither allocates.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use arrayvec::ArrayVec;
use linux_raw_sys::general as abi;
use machine::NoMemory;

use super::output::{Output, WIDEST};
use super::termios::Termios;
use crate::mem::fault::Room;

/// The longest line; twice as many bytes may wait to be read.
const MAX_INPUT: usize = 4096;
const MOST_READY: usize = 2 * MAX_INPUT;

/// An entry of `ready`: a byte, the end of a line behind it, or that end alone.
const END: u16 = 0x100;
const END_ALONE: u16 = 0x300;

/// What a terminal's input holds at most, in bytes of memory.
pub const MEMORY: usize = (MOST_READY + MAX_INPUT) * size_of::<u16>() + MAX_INPUT;

/// What stands at the host's end of the input.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A person who types.
    Keyboard,
    /// A pipe or a file, with the bytes that edit a line quoted.
    Stream,
    /// A program, at a pseudo-terminal's other end.
    Program,
}

/// Terminal input on its way to a program.
pub struct Line {
    pub kind: Kind,
    pub termios: Termios,
    /// What of them a program can't change (`TIOCSLCKTRMIOS`).
    pub locked: Termios,
    pub output: Output,
    edit: Vec<u8>,
    ready: VecDeque<u16>,
    lines: usize,
    literal_next: bool,
    /// The column where the echo of `edit` begins.
    margin: u32,
    /// Output is held back by ^S.
    pub stopped: bool,
    /// Output is held back by `TCXONC`.
    pub held: bool,
    /// How often input was thrown away.
    flushes: u32,
}

/// Where echo goes.
pub trait Screen {
    fn put(&mut self, bytes: &[u8]);

    /// Forgets output that waits, since input was thrown away at a signal.
    fn flush(&mut self);
}

pub type Echo<'a> = &'a mut dyn Screen;

/// What a read has looked at.
#[derive(Clone, Copy)]
pub struct Looked {
    /// Bytes that were copied.
    pub bytes: usize,
    /// The line ends with them.
    pub ends: bool,
    entries: usize,
    flushes: u32,
}

impl Looked {
    /// The first bytes of it alone, if there are fewer.
    pub fn first(self, bytes: usize) -> Looked {
        match bytes < self.bytes {
            true => Looked { bytes, ends: false, entries: bytes, ..self },
            false => self,
        }
    }
}

impl Line {
    /// An empty one.
    pub const fn new() -> Line {
        Line {
            kind: Kind::Keyboard,
            termios: Termios::new(),
            locked: Termios::NONE,
            output: Output::new(),
            edit: Vec::new(),
            ready: VecDeque::new(),
            lines: 0,
            literal_next: false,
            margin: 0,
            stopped: false,
            held: false,
            flushes: 0,
        }
    }

    /// Gets the memory for all that there may be.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn reserve(&mut self) -> Result<(), NoMemory> {
        self.edit.room(MAX_INPUT)?;
        self.ready.room(MOST_READY + MAX_INPUT)
    }

    /// How many bytes may come without any getting lost.
    pub fn room(&self) -> usize {
        MOST_READY.saturating_sub(self.ready.len() + self.edit.len())
    }

    /// How much is being typed.
    pub fn editing(&self) -> usize {
        self.edit.len()
    }

    /// Whether output waits for a program or a person to let it go on.
    pub fn is_stopped(&self) -> bool {
        self.stopped || self.held
    }

    /// Whether ^S and ^Q hold output back and let it go.
    pub fn has_flow_control(&self) -> bool {
        let keys = [(abi::VSTOP, 0x13), (abi::VSTART, 0x11)];
        self.termios.input(abi::IXON) && keys.iter().all(|&(at, key)| self.termios.is(key, at))
    }

    /// Takes a typed byte. Returns the signal that it asks for, if any.
    pub fn typed(&mut self, byte: u8, echo: Echo<'_>) -> Option<u32> {
        let termios = self.termios;
        if termios.local(abi::EXTPROC) {
            self.queue(byte);
            return None;
        }
        if self.literal_next {
            self.literal_next = false;
            self.insert(byte, echo);
            return None;
        }
        let byte = if termios.input(abi::ISTRIP) { byte & 0x7f } else { byte };
        let lowers = termios.input(abi::IUCLC) && termios.local(abi::IEXTEN);
        let byte = if lowers { byte.to_ascii_lowercase() } else { byte };
        if termios.input(abi::IXON) && self.flow(byte) {
            return None;
        }
        if termios.local(abi::ISIG) {
            if let Some(number) = signal_of(&termios, byte) {
                if !termios.local(abi::NOFLSH) {
                    self.flush_input();
                    echo.flush();
                }
                self.stopped &= !termios.input(abi::IXON);
                self.echo_byte(byte, echo);
                return Some(number);
            }
        }
        if termios.input(abi::IXON) && termios.input(abi::IXANY) {
            self.stopped = false;
        }
        let byte = match byte {
            b'\r' if termios.input(abi::IGNCR) => return None,
            b'\r' if termios.input(abi::ICRNL) => b'\n',
            b'\n' if termios.input(abi::INLCR) => b'\r',
            other => other,
        };
        if termios.local(abi::ICANON) {
            self.edited(byte, echo);
        } else {
            self.insert(byte, echo);
        }
        None
    }

    /// A byte in canonical mode.
    fn edited(&mut self, byte: u8, echo: Echo<'_>) {
        let termios = self.termios;
        let extends = termios.local(abi::IEXTEN);
        // A person's key may send either.
        let is_other_key = byte == 0x08 && termios.cc[abi::VERASE as usize] == 0x7f;
        if termios.is(byte, abi::VERASE) || is_other_key && self.kind != Kind::Program {
            self.erase(byte, echo);
        } else if termios.is(byte, abi::VKILL) {
            self.kill(byte, echo);
        } else if termios.is(byte, abi::VWERASE) && extends {
            let in_word = |last: &u8| last.is_ascii_alphanumeric() || *last == b'_' || *last > 0x7f;
            while self.edit.last().is_some_and(|last| !in_word(last)) && self.erase(byte, echo) {}
            while self.edit.last().is_some_and(in_word) && self.erase(byte, echo) {}
        } else if termios.is(byte, abi::VEOF) {
            self.finish();
        } else if termios.is(byte, abi::VLNEXT) && extends {
            self.literal_next = true;
            if termios.local(abi::ECHO) && termios.local(abi::ECHOCTL) {
                self.raw_echo(b"^\x08", echo);
            }
        } else if termios.is(byte, abi::VREPRINT) && extends && termios.local(abi::ECHO) {
            self.echo_byte(byte, echo);
            self.raw_echo(b"\n", echo);
            self.margin = self.output.column();
            for index in 0..self.edit.len() {
                self.echo_byte(self.edit[index], echo);
            }
        } else if byte == b'\n' {
            if termios.local(abi::ECHO) || termios.local(abi::ECHONL) {
                self.raw_echo(b"\n", echo);
            }
            self.edit.push(byte);
            self.finish();
        } else if termios.is(byte, abi::VEOL) || termios.is(byte, abi::VEOL2) && extends {
            self.echo_byte(byte, echo);
            self.edit.push(byte);
            self.finish();
        } else {
            self.insert(byte, echo);
        }
    }

    fn insert(&mut self, byte: u8, echo: Echo<'_>) {
        if !self.termios.local(abi::ICANON) {
            self.echo_byte(byte, echo);
            self.queue(byte);
            return;
        }
        if self.edit.is_empty() {
            self.margin = self.output.column();
        }
        self.echo_byte(byte, echo);
        self.edit.push(byte);
        if self.edit.len() == MAX_INPUT {
            self.finish();
        }
    }

    fn queue(&mut self, byte: u8) {
        if self.room() > 0 {
            self.ready.push_back(u16::from(byte));
        }
    }

    /// Takes back the last character; `false` if there is none.
    fn erase(&mut self, by: u8, echo: Echo<'_>) -> bool {
        let Some(mut last) = self.edit.pop() else { return false };
        while self.termios.input(abi::IUTF8) && last & 0xc0 == 0x80 {
            match self.edit.pop() {
                Some(byte) => last = byte,
                None => break,
            }
        }
        if !self.termios.local(abi::ECHO) {
            return true;
        }
        if !self.termios.local(abi::ECHOE) {
            self.echo_byte(by, echo);
            return true;
        }
        match last {
            b'\t' => {
                // What was typed since the tab before says where this one began.
                let tab = self.edit.iter().rposition(|&byte| byte == b'\t');
                let (from, start) = tab.map_or((0, self.margin), |tab| (tab + 1, 0));
                let column = self.edit[from..].iter().map(|&byte| self.width(byte)).sum::<u32>();
                let back = 8 - ((start + column) & 7) as usize;
                self.raw_echo(&[8; 8][..back], echo);
            }
            last => (0..self.width(last)).for_each(|_| self.raw_echo(b"\x08 \x08", echo)),
        }
        true
    }

    /// Columns that the echo of a byte takes, which is no tab.
    fn width(&self, byte: u8) -> u32 {
        match byte {
            byte if is_control(byte) && self.termios.local(abi::ECHOCTL) => 2,
            byte if is_control(byte) => 0,
            byte if self.termios.input(abi::IUTF8) && byte & 0xc0 == 0x80 => 0,
            _ => 1,
        }
    }

    fn kill(&mut self, byte: u8, echo: Echo<'_>) {
        let termios = self.termios;
        let erases = [abi::ECHOK, abi::ECHOKE, abi::ECHOE].iter().all(|&flag| termios.local(flag));
        if termios.local(abi::ECHO) && erases {
            while self.erase(byte, echo) {}
            return;
        }
        self.edit.clear();
        self.echo_byte(byte, echo);
        if termios.local(abi::ECHO) && termios.local(abi::ECHOK) {
            self.raw_echo(b"\n", echo);
        }
    }

    /// Hands the line over to readers.
    fn finish(&mut self) {
        if self.ready.len() + self.edit.len() >= MOST_READY + MAX_INPUT {
            self.edit.clear();
            return;
        }
        match self.edit.pop() {
            Some(last) => {
                self.ready.extend(self.edit.drain(..).map(u16::from));
                self.ready.push_back(u16::from(last) | END);
            }
            None => self.ready.push_back(END_ALONE),
        }
        self.lines += 1;
    }

    fn flow(&mut self, byte: u8) -> bool {
        if self.termios.is(byte, abi::VSTART) {
            self.stopped = false;
        } else if self.termios.is(byte, abi::VSTOP) {
            self.stopped = true;
        } else {
            return false;
        }
        true
    }

    fn echo_byte(&mut self, byte: u8, echo: Echo<'_>) {
        if !self.termios.local(abi::ECHO) {
            return;
        }
        if is_control(byte) && byte != b'\n' && byte != b'\t' && self.termios.local(abi::ECHOCTL) {
            self.raw_echo(&[b'^', byte ^ 0x40], echo);
        } else {
            self.raw_echo(&[byte], echo);
        }
    }

    /// Echoes up to [`WIDEST`] bytes.
    fn raw_echo(&mut self, bytes: &[u8], echo: Echo<'_>) {
        let mut out = ArrayVec::<u8, { WIDEST * WIDEST }>::new();
        for &byte in bytes {
            // There is room for all that so many become.
            self.output.process(&self.termios, byte, &mut |bytes| {
                _ = out.try_extend_from_slice(bytes);
            });
        }
        echo.put(&out);
    }

    /// Whether a read would find something: a line, or `min` bytes in raw mode.
    pub fn has_input(&self, min: usize) -> bool {
        if self.termios.is_canonical() {
            self.lines > 0
        } else {
            self.ready.len() >= min.max(1)
        }
    }

    /// Bytes that wait, as `FIONREAD` has them.
    pub fn available(&self) -> usize {
        match self.termios.is_canonical() && self.lines == 0 {
            true => 0,
            false => self.ready.iter().filter(|&&entry| entry != END_ALONE).count(),
        }
    }

    /// Entries that wait.
    pub fn waiting(&self) -> usize {
        self.ready.len()
    }

    /// Copies what a read of `to` would get, without taking it.
    pub fn peek(&self, to: &mut [u8]) -> Looked {
        let mut looked = Looked { bytes: 0, ends: false, entries: 0, flushes: self.flushes };
        for &entry in &self.ready {
            if entry == END_ALONE {
                looked.entries += usize::from(self.kind != Kind::Stream);
                looked.ends = true;
                break;
            }
            let Some(place) = to.get_mut(looked.bytes) else { break };
            *place = entry as u8;
            looked.bytes += 1;
            looked.entries += 1;
            if entry & END != 0 {
                looked.ends = true;
                break;
            }
        }
        looked
    }

    /// Takes what was looked at, unless it was thrown away meanwhile.
    pub fn take(&mut self, looked: Looked) {
        if looked.flushes == self.flushes {
            let taken = self.ready.drain(..looked.entries.min(self.ready.len()));
            self.lines -= taken.filter(|&entry| entry & END != 0).count();
        }
    }

    /// Throws away what was typed and not read.
    pub fn flush_input(&mut self) {
        self.flushes = self.flushes.wrapping_add(1);
        self.edit.clear();
        self.ready.clear();
        self.lines = 0;
    }

    /// New settings; input that waits is kept when the mode changes. No read has looked at it.
    pub fn set_termios(&mut self, termios: Termios) {
        let was = self.termios.is_canonical();
        let termios = termios.kept_by(&self.locked, &self.termios);
        self.termios = termios;
        if was && !termios.is_canonical() {
            self.ready.retain(|&entry| entry != END_ALONE);
            self.ready.iter_mut().for_each(|entry| *entry &= !END);
            self.ready.extend(self.edit.drain(..).map(u16::from));
            self.lines = 0;
        } else if !was && termios.is_canonical() {
            if let Some(last) = self.ready.back_mut() {
                *last |= END;
                self.lines = 1;
            }
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

fn is_control(byte: u8) -> bool {
    byte < 0x20 || byte == 0x7f
}
