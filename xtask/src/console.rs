//! The host's side of the guest's console: raw mode while the machine runs, and a thread that
//! carries the input.
//!
//! Input starts once the guest runs user code, since a serial port that is being set up loses what
//! came before. From a terminal every byte goes through as it is (the guest's own terminal echoes,
//! edits, and makes ^C a signal); Ctrl-A x stops the machine, also while a program doesn't read
//! what was typed or pasted, and Ctrl-A Ctrl-A is a Ctrl-A. A window of another size is reported.
//! From a pipe or a file, bytes that the guest's terminal would take as its own commands are quoted
//! with ^V, and the end becomes ^D at the start of a line.

use crate::control::{FirstUser, Teller};
use rustix::termios::{self, OptionalActions, Termios};
use signal_hook::consts::SIGWINCH;
use signal_hook::iterator::Signals;
use std::io::{IsTerminal, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::Arc;

const CTRL_A: u8 = 0x01;
const CTRL_D: u8 = 0x04;
const CTRL_V: u8 = 0x16;

/// Bytes that a terminal in line mode takes as commands: end, kill, next-is-literal, erase word,
/// reprint, erase (two).
const EDITING: [u8; 7] = [CTRL_D, 0x15, CTRL_V, 0x17, 0x12, 0x7f, 0x08];

/// The terminal in raw mode; dropping it (also in a panic) brings the old mode back.
pub struct RawMode {
    before: Termios,
}

impl RawMode {
    /// None when standard input is no terminal.
    pub fn enter() -> Option<RawMode> {
        let before = termios::tcgetattr(std::io::stdin()).ok()?;
        let mut raw = before.clone();
        raw.make_raw();
        termios::tcsetattr(std::io::stdin(), OptionalActions::Now, &raw).ok()?;
        Some(RawMode { before })
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // Nothing can be done if the terminal is gone.
        let _ = termios::tcsetattr(std::io::stdin(), OptionalActions::Drain, &self.before);
    }
}

/// Rows and columns of the terminal on standard output, if it is one.
pub fn window() -> Option<(u16, u16)> {
    let size = termios::tcgetwinsize(std::io::stdout()).ok()?;
    (size.ws_row > 0 && size.ws_col > 0).then_some((size.ws_row, size.ws_col))
}

/// Whether a person types, and sees what comes.
pub fn is_interactive() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}

/// Words for the kernel's command line: which ends of the console are no terminal on the host.
pub fn words() -> Vec<String> {
    let mut words = Vec::new();
    if let Some((rows, columns)) = window() {
        words.push(format!("rows={rows} cols={columns}"));
    }
    if !std::io::stdin().is_terminal() {
        words.push("stdin=pipe".to_owned());
    }
    if !std::io::stdout().is_terminal() {
        words.push("stdout=pipe".to_owned());
    }
    words
}

/// Carries the guest's output to this process's standard output, from a thread that ends with the
/// output. Sets `unread` when standard output can't be written any more, as behind a pipe to
/// `head`.
pub fn carry_output(
    mut guest: impl Read + Send + 'static,
    unread: Arc<AtomicBool>,
) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = guest.read(&mut buffer) {
            let mut out = std::io::stdout().lock();
            if out.write_all(&buffer[..count]).and_then(|()| out.flush()).is_err() {
                unread.store(true, Ordering::Relaxed);
                // The machine's output is still taken, so that it can end.
                let _ = std::io::copy(&mut guest, &mut std::io::sink());
                return;
            }
        }
    })
}

/// Carries this process's standard input to the guest, from a thread; sets `stop` when the user
/// asks for it.
pub fn carry_stdin(
    mut guest: impl Write + Send + 'static,
    first_user: FirstUser,
    stop: Arc<AtomicBool>,
) {
    std::thread::spawn(move || {
        if !first_user.wait() {
            return;
        }
        // An error means that the machine has ended, and the thread with it.
        if std::io::stdin().is_terminal() {
            let _ = carry_keys(guest, &stop);
        } else {
            let _ = carry_stream(std::io::stdin().lock(), &mut guest);
            // The pipe stays open: its end would be no event that the guest can see.
            std::mem::forget(guest);
        }
    });
}

/// Tells the guest each new size of the terminal on standard output.
pub fn carry_window(teller: Teller) {
    let Ok(mut changes) = Signals::new([SIGWINCH]) else { return };
    std::thread::spawn(move || {
        for _ in &mut changes {
            if let Some(size) = window() {
                teller.window(size);
            }
        }
    });
}

fn carry_keys(mut guest: impl Write + Send + 'static, stop: &AtomicBool) -> std::io::Result<()> {
    let mut escaped = false;
    let mut keys = [0; 4096];
    // The guest takes no more than its programs read; what comes after that waits here, so that
    // Ctrl-A x is seen all the same.
    let (typed, waiting) = channel::<Vec<u8>>();
    std::thread::spawn(move || {
        for keys in waiting {
            if guest.write_all(&keys).and_then(|()| guest.flush()).is_err() {
                return;
            }
        }
        std::mem::forget(guest);
    });
    loop {
        let count = std::io::stdin().read(&mut keys)?;
        if count == 0 {
            return Ok(());
        }
        let mut pass = Vec::with_capacity(count);
        for &key in &keys[..count] {
            match (escaped, key) {
                (false, CTRL_A) => escaped = true,
                (true, b'x') => {
                    stop.store(true, Ordering::Relaxed);
                    return Ok(());
                }
                _ => {
                    escaped = false;
                    pass.push(key);
                }
            }
        }
        if typed.send(pass).is_err() {
            return Ok(());
        }
    }
}

/// Carries a byte stream through the guest's line discipline, and its end.
pub fn carry_stream(mut from: impl Read, guest: &mut impl Write) -> std::io::Result<()> {
    let mut buffer = [0; 4096];
    let mut at_line_start = true;
    loop {
        let count = from.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        let mut quoted = Vec::with_capacity(count + 16);
        for &byte in &buffer[..count] {
            if EDITING.contains(&byte) {
                quoted.push(CTRL_V);
            }
            quoted.push(byte);
        }
        at_line_start = buffer[count - 1] == b'\n';
        guest.write_all(&quoted)?;
        guest.flush()?;
    }
    // The first ^D after an unfinished line only hands that line over.
    guest.write_all(if at_line_start { &[CTRL_D] } else { &[CTRL_D, CTRL_D] })?;
    guest.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carried(input: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        carry_stream(input, &mut out).unwrap();
        out
    }

    #[test]
    fn the_end_is_one_end_of_file_at_a_line_start() {
        assert_eq!(carried(b""), [CTRL_D]);
        assert_eq!(carried(b"a\n"), [b'a', b'\n', CTRL_D]);
        assert_eq!(carried(b"a"), [b'a', CTRL_D, CTRL_D]);
    }

    #[test]
    fn bytes_that_the_terminal_would_take_are_quoted() {
        assert_eq!(carried(b"\x04\n"), [CTRL_V, CTRL_D, b'\n', CTRL_D]);
    }
}
