//! A machine without a person at it: its output is captured, its input comes from a script. Tests
//! and benchmarks run so.

use crate::console;
use crate::control::{Report, Traces};
use crate::qemu::{self, Ending, Machine, Running};
use anyhow::{Context, Result};
use std::io::{Read, Write};
use std::process::Stdio;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// What the guest gets to read.
#[derive(Clone, Copy, Debug)]
pub enum Input {
    /// End of file at once.
    Nothing,
    /// These bytes, then end of file.
    Stream(&'static [u8]),
    /// A person at a terminal: waits for output, presses keys.
    Keys(&'static [Step]),
}

#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// Wait until this text stands in the output that came since the last match.
    Expect(&'static str),
    /// Type this.
    Type(&'static str),
}

impl Input {
    /// Words for the kernel's command line that fit this input.
    pub fn words(self) -> Vec<String> {
        match self {
            Input::Nothing | Input::Stream(_) => {
                vec!["stdin=pipe".to_owned(), "stdout=pipe".to_owned()]
            }
            Input::Keys(_) => vec!["rows=24 cols=80".to_owned()],
        }
    }
}

pub struct Finished {
    pub ending: Ending,
    pub report: Report,
    pub output: String,
}

/// Boots `machine`, feeds it `input`, and waits for its end, at most for `limit`.
pub fn capture(machine: &Machine, input: Input, limit: Duration) -> Result<Finished> {
    follow(machine.start(Stdio::piped(), Traces::Kept)?, input, limit)
}

/// Like [`capture`], with no input, and each CPU on one of its own.
pub fn capture_apart(machine: &Machine, limit: Duration) -> Result<Finished> {
    let running = machine.start(Stdio::piped(), Traces::Kept)?;
    qemu::keep_cpus_apart(running.child.id(), machine.cpus);
    follow(running, Input::Nothing, limit)
}

fn follow(mut running: Running, input: Input, limit: Duration) -> Result<Finished> {
    let output = running.child.stdout.take().context("QEMU has no standard output")?;
    let mut guest = running.child.stdin.take().context("QEMU has no standard input")?;
    let heard = Arc::new(Heard::default());
    let reader = {
        let heard = heard.clone();
        std::thread::spawn(move || heard.listen(output))
    };
    let first_user = running.control.first_user();
    let theirs = heard.clone();
    std::thread::spawn(move || {
        if first_user.wait() {
            // A failed write means that the machine has ended, which the caller sees for itself.
            let _ = match input {
                Input::Nothing => console::carry_stream(&b""[..], &mut guest),
                Input::Stream(bytes) => console::carry_stream(bytes, &mut guest),
                Input::Keys(steps) => play(steps, &theirs, &mut guest),
            };
            theirs.wait_for_end();
        }
    });
    let (ending, report) = running.wait(Some(limit), || false)?;
    // The reader ends with QEMU's output; its panic would only lose text.
    let _ = reader.join();
    let output =
        String::from_utf8_lossy(&heard.state.lock().expect("no reader panics").bytes).into_owned();
    Ok(Finished { ending, report, output })
}

fn play(steps: &[Step], heard: &Heard, guest: &mut impl Write) -> std::io::Result<()> {
    let mut from = 0;
    for step in steps {
        match step {
            Step::Expect(text) => match heard.wait_for(text, from) {
                Some(end) => from = end,
                None => return Ok(()),
            },
            Step::Type(text) => {
                guest.write_all(text.as_bytes())?;
                guest.flush()?;
            }
        }
    }
    Ok(())
}

/// The output so far, shared between its reader and the script.
#[derive(Default)]
struct Heard {
    state: Mutex<Output>,
    more: Condvar,
}

#[derive(Default)]
struct Output {
    bytes: Vec<u8>,
    ended: bool,
}

impl Heard {
    fn listen(&self, mut output: impl Read) {
        let mut buffer = [0; 4096];
        loop {
            let count = output.read(&mut buffer).unwrap_or(0);
            let mut state = self.state.lock().expect("no reader panics");
            state.bytes.extend_from_slice(&buffer[..count]);
            state.ended = count == 0;
            self.more.notify_all();
            if count == 0 {
                return;
            }
        }
    }

    /// Waits for `text` at or after `from`; returns where it ends, or nothing when the output ends
    /// without it.
    fn wait_for(&self, text: &str, from: usize) -> Option<usize> {
        let find = |bytes: &[u8]| {
            let rest = bytes.get(from..)?;
            let at = rest.windows(text.len()).position(|window| window == text.as_bytes())?;
            Some(from + at + text.len())
        };
        let guard = self.state.lock().expect("no reader panics");
        let guard =
            self.more.wait_while(guard, |state| !state.ended && find(&state.bytes).is_none());
        find(&guard.expect("no reader panics").bytes)
    }

    fn wait_for_end(&self) {
        let guard = self.state.lock().expect("no reader panics");
        drop(self.more.wait_while(guard, |state| !state.ended));
    }
}
