//! The control channel: what the guest tells the host on its second serial port, one line each.
//!
//! `user <tsc>` at the first user instruction, `exit <code>`, `panic <message>`, `bt <hex address>`
//! for each frame of a panic, `trace <text>` for the debug console, `missing <number> <program>`
//! for a system call that is not there; `stack <name>` and `at <hex address>` for each frame when a
//! CPU hangs and all say where they are. The host tells one thing: `window <rows> <columns>` when
//! its terminal has another size.
//!
//! The names of calls are those of the crate `syscalls`, which is made from the kernel's tables.

use crate::ui;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use syscalls::Sysno;

/// What has been heard.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub exit: Option<u8>,
    pub panic: Option<String>,
    pub frames: Vec<u64>,
    /// When the first user instruction ran, after the start of QEMU.
    pub first_user: Option<Duration>,
    pub trace: Vec<String>,
    /// System calls that were made and are not there.
    pub missing: usize,
    /// Where CPUs were when one hung.
    pub stacks: Vec<Stack>,
    closed: bool,
}

/// Where a CPU is.
#[derive(Clone, Debug)]
pub struct Stack {
    pub name: String,
    pub frames: Vec<u64>,
}

fn address(text: &str) -> Option<u64> {
    u64::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()
}

/// A system call by its number in decimals: its name, where there is one.
fn call(number: &str) -> String {
    let known = number.parse().ok().and_then(Sysno::new);
    known.map_or_else(|| number.to_owned(), |call| format!("{} ({number})", call.name()))
}

/// What becomes of the debug console's lines.
#[derive(Clone, Copy, PartialEq)]
pub enum Traces {
    /// The user sees them at once.
    Shown,
    /// They only stand in the report.
    Kept,
}

struct Shared {
    traces: Traces,
    report: Mutex<Report>,
    changed: Condvar,
    /// For what the host tells.
    stream: Mutex<Option<UnixStream>>,
}

pub struct Control {
    shared: Arc<Shared>,
}

impl Control {
    /// Takes the guest's connection from `listener` and reads it to the end in a thread of its own.
    pub fn listen(listener: UnixListener, traces: Traces) -> Control {
        let shared = Arc::new(Shared {
            traces,
            report: Mutex::default(),
            changed: Condvar::new(),
            stream: Mutex::default(),
        });
        let theirs = shared.clone();
        let started = Instant::now();
        std::thread::spawn(move || {
            if let Ok((stream, _)) = listener.accept() {
                *theirs.stream.lock().expect("no reader panics") = stream.try_clone().ok();
                for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
                    theirs.hear(&String::from_utf8_lossy(&line), started.elapsed());
                }
            }
            theirs.update(|report| report.closed = true);
        });
        Control { shared }
    }

    /// A handle that can wait for the guest's first user instruction.
    pub fn first_user(&self) -> FirstUser {
        FirstUser { shared: self.shared.clone() }
    }

    /// A handle that can tell the guest what has changed.
    pub fn teller(&self) -> Teller {
        Teller { shared: self.shared.clone() }
    }

    /// What was heard by the end. QEMU has ended, so the stream ends too; a guest that never
    /// connected is given up soon.
    pub fn finish(&self) -> Report {
        let guard = self.shared.report.lock().expect("no reader panics");
        let wait =
            self.shared
                .changed
                .wait_timeout_while(guard, Duration::from_secs(2), |report| !report.closed);
        wait.expect("no reader panics").0.clone()
    }
}

pub struct Teller {
    shared: Arc<Shared>,
}

impl Teller {
    /// The terminal has another size. A machine that has ended needs no word.
    pub fn window(&self, (rows, columns): (u16, u16)) {
        if let Some(stream) = &mut *self.shared.stream.lock().expect("no reader panics") {
            let _ = stream.write_all(format!("window {rows} {columns}\n").as_bytes());
        }
    }
}

pub struct FirstUser {
    shared: Arc<Shared>,
}

impl FirstUser {
    /// Blocks until user code runs (true) or the channel has closed (false).
    pub fn wait(&self) -> bool {
        let guard = self.shared.report.lock().expect("no reader panics");
        let waiting = |report: &mut Report| report.first_user.is_none() && !report.closed;
        let guard = self.shared.changed.wait_while(guard, waiting).expect("no reader panics");
        guard.first_user.is_some()
    }
}

impl Shared {
    fn hear(&self, line: &str, at: Duration) {
        let line = line.trim_end_matches('\r');
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        match verb {
            "exit" => self.update(|report| {
                report.exit = rest.trim().parse::<i64>().ok().map(|code| code as u8)
            }),
            "panic" => self.update(|report| report.panic = Some(rest.to_owned())),
            "bt" => {
                if let Some(address) = address(rest) {
                    self.update(|report| report.frames.push(address));
                }
            }
            "stack" => self.update(|report| {
                report.stacks.push(Stack { name: rest.to_owned(), frames: Vec::new() })
            }),
            "at" => {
                if let Some(address) = address(rest) {
                    self.update(|report| {
                        report
                            .stacks
                            .iter_mut()
                            .last()
                            .into_iter()
                            .for_each(|s| s.frames.push(address));
                    });
                }
            }
            "user" => self.update(|report| report.first_user = Some(at)),
            "trace" => self.trace(rest.to_owned()),
            "missing" => {
                let (number, program) = rest.split_once(' ').unwrap_or((rest, ""));
                self.update(|report| report.missing += 1);
                self.trace(format!("system call {} is not there ({program})", call(number)));
            }
            _ => {}
        }
    }

    fn trace(&self, line: String) {
        if self.traces == Traces::Shown {
            ui::say(&line);
        }
        self.update(|report| report.trace.push(line));
    }

    fn update(&self, change: impl FnOnce(&mut Report)) {
        change(&mut self.report.lock().expect("no reader panics"));
        self.changed.notify_all();
    }
}
