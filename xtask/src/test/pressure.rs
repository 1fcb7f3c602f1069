//! The kernel with less memory than its programs use: contents are checked, and the program that
//! has to go goes.
//!
//! A short run of each stands in every `./uvm test`; `--long` has ten minutes of over-commitment.

use super::cases::{Case, Expect, Leftover, CASE};
use super::disks::{self, TestDisk};
use crate::guest::Libc;

const DISKS: &[TestDisk] = &[disks::ext4(192), disks::swap(256)];

/// A run of `overcommit` with 64 MiB, a file system and four times as much swap.
const fn overcommitted(name: &'static str, command: &'static [&'static str], seconds: u64) -> Case {
    Case {
        name,
        guests: &[("overcommit", Libc::Musl)],
        command,
        disks: DISKS,
        memory: "64M",
        expect: &[Expect::Contains("every page was right"), Expect::Lacks("FAILED")],
        seconds,
        ..CASE
    }
}

/// Nothing else could ever give it memory.
const ALONE: Case = Case {
    name: "the first process has all memory",
    command: &["/bin/busybox", "awk", "BEGIN { for (;; n++) a[n] = \"memory\" }"],
    expect: &[Expect::Told("out of memory: killed process 1 .*")],
    code: 137,
    memory: "64M",
    seconds: 60,
    ours_only: true,
    leftover: Leftover::Unwatched,
    ..CASE
};

pub const SHORT: &[Case] = &[
    overcommitted(
        "memory over-committed three times",
        &["/bin/overcommit", "30", "15", "/mnt"],
        240,
    ),
    ALONE,
];

pub const LONG: &[Case] = &[overcommitted(
    "memory over-committed three times, for ten minutes",
    &["/bin/overcommit", "30", "600", "/mnt"],
    1500,
)];
