//! The kernel under stress by Debian's stress-ng, whose stressors check what they do.
//!
//! A short selection stands in every run; `--long` gives each stressor a machine and a minute.

use super::cases::Expect::{self, Contains, Lacks};
use super::cases::{Case, CASE};
use super::disks::{self, TestDisk};
use super::prepare::Prepared;
use crate::{debian, image};
use anyhow::Result;

const SWAP: &[TestDisk] = &[disks::swap(1024)];
const MEMORY: &str = "256M";

/// What a stressor says on its way is no failure: some, cut off at the end of their time, complain on Linux as well.
const STRESSED: &[Expect] = &[Contains("all have run"), Lacks("unsuccessful")];

fn stress_ng() -> Result<Result<Prepared, String>> {
    if image::find_program("apt-get").is_none() {
        return Ok(Err("no apt to fetch stress-ng with".to_owned()));
    }
    let root = debian::root(&["stress-ng"])?;
    Ok(Ok(Prepared { root: Some(root), add: Vec::new(), expected: String::new() }))
}

/// Runs so many of each stressor, for so many seconds.
const SCRIPT: &str =
    "seconds=$0 many=$1; shift; for s; do echo \"$s:\"; stress-ng --verify --$s $many --timeout $seconds || exit 1; done; \
     echo all have run";

const fn stressors(name: &'static str, seconds: u64, command: &'static [&'static str]) -> Case {
    Case { name, command, prepare: stress_ng, expect: STRESSED, disks: SWAP, memory: MEMORY, seconds, ..CASE }
}

macro_rules! stress {
    ($seconds:literal, $many:literal, $($stressor:literal),+) => {
        &["/bin/busybox", "sh", "-c", SCRIPT, $seconds, $many, $($stressor),+]
    };
}

pub const SHORT: &[Case] = &[stressors(
    "stress-ng, a little of each",
    300,
    stress!(
        "1", "1", "vm", "mmap", "mremap", "madvise", "mlock", "msync", "shm", "fork", "brk", "stack",
        "bigheap"
    ),
)];

pub const LONG: &[Case] = &[
    stressors("stress-ng vm", 600, stress!("60", "2", "vm")),
    stressors("stress-ng mmap", 600, stress!("60", "2", "mmap")),
    stressors("stress-ng mremap", 600, stress!("60", "2", "mremap")),
    stressors("stress-ng madvise", 600, stress!("60", "2", "madvise")),
    stressors("stress-ng mlock", 600, stress!("60", "2", "mlock")),
    stressors("stress-ng msync", 600, stress!("60", "2", "msync")),
    stressors("stress-ng shm", 600, stress!("60", "2", "shm")),
    stressors("stress-ng fork", 600, stress!("60", "2", "fork")),
    stressors("stress-ng brk", 600, stress!("60", "2", "brk")),
    stressors("stress-ng stack", 600, stress!("60", "2", "stack")),
    stressors("stress-ng bigheap", 600, stress!("60", "2", "bigheap")),
];
