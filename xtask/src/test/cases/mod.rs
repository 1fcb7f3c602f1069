//! The kernel's acceptance tests, as tables: what runs, what it gets to read, what must come of it.

mod ephemeral;
mod files;
mod machine;
mod memory;
mod processes;
mod programs;

use super::disks::TestDisk;
use super::prepare::{self, Preparation};
use crate::guest::Libc;
use crate::qemu::{Board, Clock, Display, Kernel};
use crate::session::Input;

pub struct Case {
    pub name: &'static str,
    pub command: &'static [&'static str],
    /// C programs of `xtask/guest`, put into /bin.
    pub guests: &'static [(&'static str, Libc)],
    /// As in `--add`.
    pub add: &'static [&'static str],
    pub prepare: Preparation,
    pub input: Input,
    /// For the kernel's command line.
    pub words: &'static [&'static str],
    /// /dev/vda, /dev/vdb, ...
    pub disks: &'static [TestDisk],
    pub display: Display,
    pub expect: &'static [Expect],
    /// The exit code that it must end with.
    pub code: u8,
    pub memory: &'static str,
    pub cpus: u32,
    /// What the guest's time counts: with instructions it is the same in each run, whatever the
    /// host does besides.
    pub clock: Clock,
    pub board: Board,
    /// It hangs if it runs several times longer than this.
    pub seconds: u64,
    /// Linux does not have what it tests.
    pub ours_only: bool,
    pub leftover: Leftover,
}

/// What of the memory in use may be left when a case's program has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Leftover {
    /// Nothing: it runs under `xtask/guest/leftover.c`, on our kernel.
    None,
    /// That isn't looked at: the program must be the first process, or says something about the
    /// machine from its start on.
    Unwatched,
}

pub enum Expect {
    /// The whole output.
    Exactly(&'static str),
    Contains(&'static str),
    Lacks(&'static str),
    /// A regular expression.
    Matches(&'static str),
    /// What the preparation found out on this machine.
    Prepared,
    /// A kernel panic with this message and a back-trace.
    Panic(&'static str),
    /// So many CPUs have said where they are, each with a back-trace.
    Stacks(usize),
    /// What this finds wrong with the whole output on that kernel.
    Judged(fn(Kernel, &str) -> Vec<String>),
    /// One line of what the kernel tells beside the output, as a regular expression.
    Told(&'static str),
}

use Expect::{Contains, Lacks};

/// All of them, by what they are about.
pub const ALL: [&[Case]; 6] = [
    programs::CASES,
    processes::CASES,
    memory::CASES,
    files::CASES,
    machine::CASES,
    ephemeral::CASES,
];

/// What most cases have in common.
pub const CASE: Case = Case {
    name: "",
    command: &[],
    guests: &[],
    add: &[],
    prepare: prepare::nothing,
    input: Input::Nothing,
    words: &[],
    disks: &[],
    display: Display::Absent,
    expect: &[],
    code: 0,
    memory: "512M",
    cpus: 1,
    clock: Clock::Wall,
    board: Board::Q35,
    seconds: 120,
    ours_only: false,
    leftover: Leftover::None,
};

impl Case {
    pub fn full_name(&self) -> String {
        format!("kernel/{}", self.name)
    }
}

/// A guest test program that judges itself, linked statically with musl.
pub const fn guest(
    name: &'static str,
    programs: &'static [(&'static str, Libc)],
    command: &'static [&'static str],
) -> Case {
    Case {
        name,
        guests: programs,
        command,
        expect: &[Lacks("FAILED"), Contains("cases hold")],
        ..CASE
    }
}

/// About the program that looks for memory left in use, which runs by itself here.
const fn left(name: &'static str, command: &'static [&'static str]) -> Case {
    Case {
        name,
        guests: &[("leftover", Libc::Musl)],
        command,
        ours_only: true,
        leftover: Leftover::Unwatched,
        ..CASE
    }
}

/// So many pairs of programs that move data, and are killed; twice, and the second time must leave
/// memory as it was.
pub const fn killed(name: &'static str, cpus: u32, command: &'static [&'static str]) -> Case {
    Case {
        name,
        guests: &[("kills", Libc::Musl), ("flat", Libc::Musl)],
        command,
        cpus,
        seconds: 600,
        expect: &[Contains(", 0 wrong"), Contains("memory is as before"), Lacks("FAILED")],
        ..CASE
    }
}
