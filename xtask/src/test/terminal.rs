//! `./uvm run` as a person uses it: on a terminal of its own, which changes its size and from which
//! much is pasted at once. The other interactive cases talk to QEMU through pipes and can't see
//! what becomes of a terminal.

use super::{failed, Verdict};
use crate::build;
use anyhow::{bail, Context, Result};
use rustix::pty::{self, OpenptFlags};
use rustix::termios::{self, Winsize};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{channel, Receiver};
use std::time::{Duration, Instant};

/// Long enough to build the kernel on a busy machine.
const PATIENCE: Duration = Duration::from_secs(600);

/// Lines that are pasted: some 30 KB.
const PASTED: u32 = 6_200;
const CODE: i32 = 6;

pub fn check() -> Result<Verdict> {
    if Command::new("setsid").arg("--version").output().is_err() {
        return Ok(Verdict::Skipped("no `setsid` program to give a terminal with".to_owned()));
    }
    let dialogues: [fn(&mut Terminal) -> Result<()>; 2] = [shell, left_while_nothing_is_read];
    for dialogue in dialogues {
        let mut terminal = Terminal::open()?;
        if let Err(error) = dialogue(&mut terminal) {
            let seen = &terminal.seen;
            return Ok(failed(format!("{error:#}; the screen shows {seen:?}")));
        }
    }
    Ok(match unread()? {
        Verdict::Passed { tests } => Verdict::Passed { tests: tests + dialogues.len() as u64 },
        other => other,
    })
}

/// A shell that is told how to leave, whose window has a size and gets another, into which much is
/// pasted, and that ends with a code.
fn shell(terminal: &mut Terminal) -> Result<()> {
    terminal.wait("Ctrl-A x")?;
    terminal.wait("# ")?;
    terminal.write("stty size\r")?;
    terminal.wait("33 101\r\n")?;
    terminal.wait("# ")?;
    terminal.resize(44, 120)?;
    // The word of it goes another way than what is typed.
    terminal.write("until stty size | grep '^44 120'; do sleep 0.1; done\r")?;
    terminal.wait("\n44 120\r\n")?;
    terminal.wait("# ")?;
    let mut text = String::new();
    for line in 1..=PASTED {
        let _ = write!(text, "{line}\r");
    }
    terminal.write(&format!("cat >/tmp/f\r{text}\x04"))?;
    terminal.wait(&format!("\n{PASTED}\r\n"))?;
    terminal.write(&format!("seq {PASTED} | cmp - /tmp/f && echo all $((40 + 2))\r"))?;
    terminal.wait("all 42\r\n")?;
    terminal.write(&format!("exit {CODE}\r"))?;
    terminal.ends_with(CODE)
}

/// Ctrl-A x is seen behind more than the guest takes.
fn left_while_nothing_is_read(terminal: &mut Terminal) -> Result<()> {
    terminal.wait("# ")?;
    terminal.write("echo $((40 + 2)); sleep 1000\r")?;
    terminal.wait("\n42\r\n")?;
    terminal.write(&"much\r".repeat(10_000))?;
    terminal.write("\x01x")?;
    terminal.ends_with(130)
}

/// `./uvm run` on a terminal of its own.
struct Terminal {
    keyboard: File,
    screen: Receiver<String>,
    /// What the screen shows and nothing has waited for yet.
    seen: String,
    child: Child,
    deadline: Instant,
}

impl Terminal {
    fn open() -> Result<Terminal> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let keyboard = pty::openpt(flags).context("can't open a terminal")?;
        pty::grantpt(&keyboard)?;
        pty::unlockpt(&keyboard)?;
        let name = pty::ptsname(&keyboard, Vec::new())?;
        let name = std::ffi::OsStr::from_bytes(name.to_bytes());
        let end = File::options().read(true).write(true).open(name)?;
        let keyboard: File = keyboard.into();
        set_size(&keyboard, 33, 101)?;
        let child = Command::new("setsid")
            .args(["--ctty", "./uvm", "run"])
            .current_dir(build::root())
            .stdin(end.try_clone()?)
            .stdout(end.try_clone()?)
            .stderr(end)
            .spawn()
            .context("can't start `setsid`")?;
        let screen = listen(keyboard.try_clone()?);
        let deadline = Instant::now() + PATIENCE;
        Ok(Terminal { keyboard, screen, seen: String::new(), child, deadline })
    }

    fn resize(&mut self, rows: u16, columns: u16) -> Result<()> {
        set_size(&self.keyboard, rows, columns)
    }

    fn write(&mut self, text: &str) -> Result<()> {
        self.keyboard.write_all(text.as_bytes()).context("can't type")
    }

    fn wait(&mut self, wanted: &str) -> Result<()> {
        while !self.seen.contains(wanted) {
            match self.screen.recv_timeout(self.deadline.saturating_duration_since(Instant::now()))
            {
                Ok(text) => self.seen.push_str(&text),
                Err(_) => bail!("waited for {wanted:?}"),
            }
        }
        self.seen.drain(..self.seen.find(wanted).map_or(0, |at| at + wanted.len()));
        Ok(())
    }

    fn ends_with(&mut self, wanted: i32) -> Result<()> {
        while let Ok(text) =
            self.screen.recv_timeout(self.deadline.saturating_duration_since(Instant::now()))
        {
            self.seen.push_str(&text);
        }
        let code = ended(&mut self.child, self.deadline)?;
        if code != Some(wanted) {
            bail!("./uvm ended with {code:?}, not {wanted}");
        }
        Ok(())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Already ended is the usual case.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn set_size(terminal: &File, rows: u16, columns: u16) -> Result<()> {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    termios::tcsetwinsize(terminal, size).context("can't give the terminal a size")
}

/// The code that a process ends with; none if it doesn't in time.
fn ended(child: &mut Child, deadline: Instant) -> Result<Option<i32>> {
    loop {
        match child.try_wait()? {
            None if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
            status => return Ok(status.and_then(|status| status.code())),
        }
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
    let code = ended(&mut child, Instant::now() + PATIENCE)?;
    let _ = child.kill();
    match code {
        Some(141) if line.trim_end() == "y" => Ok(Verdict::Passed { tests: 1 }),
        code => Ok(failed(format!(
            "`yes` said {line:?}, and after its output was closed ./uvm ended with {code:?}"
        ))),
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
