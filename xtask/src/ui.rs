//! What the user sees: one-line messages on standard error, progress for what takes long, colour only on a terminal.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Prints one line for the user on standard error.
pub fn say(message: &str) {
    // A closed standard error is no reason to fail.
    let _ = writeln!(std::io::stderr(), "uvm: {message}");
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

/// Runs `work`; says `what` once it has taken two seconds, so that fast things stay silent.
pub fn with_progress<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let (done, finished) = std::sync::mpsc::channel::<()>();
    let message = format!("{what} …");
    let teller = std::thread::spawn(move || {
        let timeout = finished.recv_timeout(Duration::from_secs(2));
        if timeout == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            say(&message);
        }
    });
    let result = work();
    drop(done);
    // The teller only prints; it can't fail in a way that matters here.
    let _ = teller.join();
    result
}

/// Seconds since `start`, for people.
pub fn seconds(start: Instant) -> String {
    format!("{:.1} s", start.elapsed().as_secs_f64())
}
