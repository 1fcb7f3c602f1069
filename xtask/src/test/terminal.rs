//! `./uvm run` as a person uses it: on a terminal of its own, which `script` makes. The other
//! interactive cases talk to QEMU through pipes and can't see what becomes of a terminal.

use super::{failed, Verdict};
use crate::build;
use anyhow::{Context, Result};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{channel, Receiver};
use std::time::{Duration, Instant};

/// Long enough to build the kernel on a busy machine.
const PATIENCE: Duration = Duration::from_secs(600);

/// What is waited for, and then typed.
const DIALOGUE: [(&str, &str); 3] =
    [("# ", "echo typed $((40 + 2))\r"), ("typed 42\r\n", ""), ("# ", "exit 6\r")];
const CODE: i32 = 6;

pub fn check() -> Result<Verdict> {
    if Command::new("script").arg("--version").output().is_err() {
        return Ok(Verdict::Skipped("no `script` program to make a terminal with".to_owned()));
    }
    let mut child = Command::new("script")
        .args(["-qec", "./uvm run", "/dev/null"])
        .current_dir(build::root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("can't start `script`")?;
    let verdict = talk(&mut child);
    let _ = child.kill();
    let _ = child.wait();
    match verdict? {
        Verdict::Passed { tests } => Ok(match unread()? {
            Verdict::Passed { tests: more } => Verdict::Passed { tests: tests + more },
            other => other,
        }),
        other => Ok(other),
    }
}

/// A program that never ends writes to a pipe, of which one line is read: the machine stops.
fn unread() -> Result<Verdict> {
    let mut child = Command::new("./uvm")
        .args(["run", "--", "/bin/busybox", "yes"])
        .current_dir(build::root())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("can't start ./uvm")?;
    let mut line = String::new();
    let mut output = BufReader::new(child.stdout.take().context("no output")?);
    output.read_line(&mut line)?;
    drop(output);
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        match child.try_wait()? {
            None if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
            status => break status,
        }
    };
    let _ = child.kill();
    match status.and_then(|status| status.code()) {
        Some(141) if line.trim_end() == "y" => Ok(Verdict::Passed { tests: 1 }),
        code => Ok(failed(format!(
            "`yes` said {line:?}, and after its output was closed ./uvm ended with {code:?}"
        ))),
    }
}

fn talk(child: &mut Child) -> Result<Verdict> {
    let mut keyboard = child.stdin.take().context("no keyboard")?;
    let screen = listen(child.stdout.take().context("no screen")?);
    let deadline = Instant::now() + PATIENCE;
    let mut seen = String::new();
    for (wanted, typed) in DIALOGUE {
        while !seen.contains(wanted) {
            match screen.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(text) => seen.push_str(&text),
                Err(_) => {
                    return Ok(failed(format!("waited for {wanted:?}, the screen shows {seen:?}")))
                }
            }
        }
        seen.drain(..seen.find(wanted).map_or(0, |at| at + wanted.len()));
        keyboard.write_all(typed.as_bytes())?;
        keyboard.flush()?;
    }
    while screen.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_ok() {}
    let code = child.wait()?.code();
    if code == Some(CODE) {
        Ok(Verdict::Passed { tests: 1 })
    } else {
        Ok(failed(format!("the shell ended with {code:?}, not {CODE}")))
    }
}

fn listen(mut from: impl Read + Send + 'static) -> Receiver<String> {
    let (heard, screen) = channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            if heard.send(String::from_utf8_lossy(&buffer[..count]).into_owned()).is_err() {
                return;
            }
        }
    });
    screen
}
