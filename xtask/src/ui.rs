//! What the user sees: one-line messages on standard error, progress for what takes long, colour
//! only on a terminal.

use crate::hints::with_errno_names;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

/// Prints one line for the user on standard error; numbers of errors get their names.
pub fn say(message: &str) {
    // A closed standard error is no reason to fail.
    let _ = writeln!(std::io::stderr(), "uvm: {}", with_errno_names(message));
}

pub fn green(text: &str) -> String {
    paint("32", text)
}

pub fn red(text: &str) -> String {
    paint("31", text)
}

fn paint(code: &str, text: &str) -> String {
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    if !unwanted && std::io::stdout().is_terminal() {
        format!("\x1b[{code}m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}

/// Work that takes no longer than this is done silently.
const SILENCE: Duration = Duration::from_secs(2);
/// How often it is told that work goes on: on a terminal, in one line, and elsewhere, in a new one,
/// which for work that knows how far it is comes sooner.
const TURN: Duration = Duration::from_secs(1);
const TURN_OF_LINES: Duration = Duration::from_secs(60);
const TURN_OF_STEPS: Duration = Duration::from_secs(10);

/// How far work is, by itself: in words, from the time that it has taken so far and took last.
pub type Steps = Box<dyn Fn(Duration, Option<Duration>) -> String + Send>;

/// Runs `work`; says `what` once it has taken two seconds, goes on telling how much is left by the
/// last time, and says when it is done.
pub fn with_progress<T>(what: &str, work: impl FnOnce() -> T) -> T {
    done_after(what, || tell(what, TURN_OF_LINES, Box::new(left), work))
}

/// Runs `work` like [`with_progress`]; `steps` says how far it is.
pub fn with_steps<T>(what: &str, steps: Steps, work: impl FnOnce() -> T) -> T {
    done_after(what, || tell(what, TURN_OF_STEPS, steps, work))
}

fn done_after<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let result = work();
    if started.elapsed() > SILENCE {
        say(&format!("{what}: done after {} s", started.elapsed().as_secs()));
    }
    result
}

/// Runs `work` like [`with_progress`]; that it is done is said by what comes next.
pub fn with_progress_alone<T>(what: &str, work: impl FnOnce() -> T) -> T {
    tell(what, TURN_OF_LINES, Box::new(left), work)
}

fn tell<T>(what: &str, of_lines: Duration, steps: Steps, work: impl FnOnce() -> T) -> T {
    let (done, finished) = std::sync::mpsc::channel::<()>();
    let started = Instant::now();
    let times = Times::of(what);
    let last = times.last();
    let message = what.to_owned();
    let teller = std::thread::spawn(move || {
        let goes_on = |time| finished.recv_timeout(time) == Err(RecvTimeoutError::Timeout);
        let is_terminal = std::io::stderr().is_terminal();
        let turn = if is_terminal { TURN } else { of_lines };
        let mut next = SILENCE;
        while goes_on(next) {
            next = turn;
            let line = format!("{message} …{}", steps(started.elapsed(), last));
            if is_terminal {
                let _ = write!(std::io::stderr(), "\r\x1b[Kuvm: {line}");
            } else {
                say(&line);
            }
        }
        if is_terminal && next == turn {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    });
    let result = work();
    drop(done);
    // The teller only prints; it can't fail in a way that matters here.
    let _ = teller.join();
    if started.elapsed() > SILENCE {
        times.keep(started.elapsed());
    }
    result
}

/// Ends a line that tells of progress on a terminal: another line follows.
pub fn clear_progress() {
    if std::io::stderr().is_terminal() {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
}

/// What is left of work that takes about `last`, in words.
pub fn left(so_far: Duration, last: Option<Duration>) -> String {
    match last.map(|last| last.saturating_sub(so_far).as_secs()) {
        None => format!(" {} s so far", so_far.as_secs()),
        Some(0) => format!(" {} s so far, longer than last time", so_far.as_secs()),
        Some(left) => format!(" about {left} s left"),
    }
}

/// How long some work took last time, in a file of its own below `target/`.
pub struct Times(PathBuf);

impl Times {
    pub fn of(what: &str) -> Times {
        let name: String =
            what.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        Times(crate::build::root().join("target/times").join(name))
    }

    pub fn last(&self) -> Option<Duration> {
        std::fs::read_to_string(&self.0).ok()?.parse().ok().map(Duration::from_secs)
    }

    /// A time that can't be kept is no reason to fail.
    pub fn keep(&self, took: Duration) {
        let folder = self.0.parent().map_or(Ok(()), std::fs::create_dir_all);
        let _ = folder.and_then(|()| std::fs::write(&self.0, took.as_secs().to_string()));
    }
}

/// Seconds since `start`, for people.
pub fn seconds(start: Instant) -> String {
    format!("{:.1} s", start.elapsed().as_secs_f64())
}
