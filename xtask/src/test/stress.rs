//! The kernel under stress by Debian's stress-ng, whose stressors check what they do.
//!
//! A short selection stands in every run; `--long` gives each stressor a machine and a minute.

use super::cases::Expect::{self, Contains, Lacks};
use super::cases::{Case, CASE};
use super::disks::{self, TestDisk};
use super::prepare::Prepared;
use crate::debian;
use anyhow::Result;

const SWAP: &[TestDisk] = &[disks::swap(1024)];
const MEMORY: &str = "256M";

/// A stressor that fails says `fail:`; one whose processes were killed may succeed all the same.
const STRESSED: &[Expect] = &[Contains("all have run"), Lacks("fail:"), Lacks("unsuccessful")];

fn stress_ng() -> Result<Result<Prepared, String>> {
    let root = debian::root(&["stress-ng"])?;
    Ok(Ok(Prepared { root: Some(root), add: Vec::new(), expected: String::new() }))
}

/// Runs the stressors that the words after the seconds name.
const SCRIPT: &str =
    "seconds=$0; for s; do echo \"$s:\"; stress-ng --verify --$s 2 --timeout $seconds || exit 1; done; echo all have run";

const fn stressors(name: &'static str, seconds: u64, command: &'static [&'static str]) -> Case {
    Case { name, command, prepare: stress_ng, expect: STRESSED, disks: SWAP, memory: MEMORY, seconds, ..CASE }
}

macro_rules! stress {
    ($seconds:literal, $($stressor:literal),+) => {
        &["/bin/busybox", "sh", "-c", SCRIPT, $seconds, $($stressor),+]
    };
}

pub const SHORT: &[Case] = &[stressors(
    "stress-ng, a little of each",
    300,
    stress!(
        "2", "vm", "mmap", "mremap", "madvise", "mlock", "msync", "shm", "fork", "brk", "stack", "bigheap"
    ),
)];

pub const LONG: &[Case] = &[
    stressors("stress-ng vm", 600, stress!("60", "vm")),
    stressors("stress-ng mmap", 600, stress!("60", "mmap")),
    stressors("stress-ng mremap", 600, stress!("60", "mremap")),
    stressors("stress-ng madvise", 600, stress!("60", "madvise")),
    stressors("stress-ng mlock", 600, stress!("60", "mlock")),
    stressors("stress-ng msync", 600, stress!("60", "msync")),
    stressors("stress-ng shm", 600, stress!("60", "shm")),
    stressors("stress-ng fork", 600, stress!("60", "fork")),
    stressors("stress-ng brk", 600, stress!("60", "brk")),
    stressors("stress-ng stack", 600, stress!("60", "stack")),
    stressors("stress-ng bigheap", 600, stress!("60", "bigheap")),
];
