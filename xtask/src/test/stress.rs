//! The kernel under stress by Debian's stress-ng, whose stressors check what they do.
//!
//! A short selection stands in every run; `--long` gives each stressor a machine and a minute, and
//! all of them together ten on one, two and four CPUs. Those run twice, and the second time must
//! leave the kernel's memory as it was (`xtask/guest/flat.c`). Python's own tests, which are a
//! stress of another kind, are in `python`.

use super::cases::Expect::{self, Contains, Lacks};
use super::cases::{self, Case, CASE};
use super::disks::{self, TestDisk};
use super::prepare::{self, Prepared};
use crate::guest::Libc;
use anyhow::Result;

const SWAP: &[TestDisk] = &[disks::swap(1024)];
const MEMORY: &str = "256M";

/// What a stressor says on its way is no failure: some, cut off at the end of their time, complain
/// on Linux as well.
const STRESSED: &[Expect] = &[Contains("all have run"), Lacks("unsuccessful")];

fn stress_ng() -> Result<Result<Prepared, String>> {
    prepare::debian_programs(&["stress-ng"])
}

/// Runs so many of each stressor, for so many seconds.
const SCRIPT: &str =
    "seconds=$0 many=$1; shift; for s; do echo \"$s:\"; stress-ng --verify --$s $many --timeout $seconds || exit 1; done; \
     echo all have run";

const fn stressors(name: &'static str, seconds: u64, command: &'static [&'static str]) -> Case {
    Case {
        name,
        command,
        prepare: stress_ng,
        expect: STRESSED,
        disks: SWAP,
        memory: MEMORY,
        seconds,
        ..CASE
    }
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
        "1", "1", "vm", "mmap", "mremap", "madvise", "mlock", "msync", "shm", "fork", "brk",
        "stack", "bigheap"
    ),
)];

/// Twice five minutes of all that share memory and CPUs.
const TOGETHER: &[&str] = &[
    "/bin/flat",
    BOUND,
    "stress-ng",
    "--verify",
    "--timeout",
    "300",
    "--vm",
    "2",
    "--vm-bytes",
    "96M",
    "--mmap",
    "2",
    "--mmap-bytes",
    "64M",
    "--fork",
    "2",
    "--pthread",
    "2",
    "--futex",
    "2",
];

/// What may be missing at the end, in KiB: the CPUs' lists of free blocks and pages, as full as
/// they ever were.
pub const BOUND: &str = "8192";

const fn together(name: &'static str, cpus: u32) -> Case {
    Case {
        name,
        command: TOGETHER,
        guests: &[("flat", Libc::Musl)],
        cpus,
        expect: &[
            Contains("successful run completed"),
            Contains("memory is as before"),
            Lacks("unsuccessful"),
            Lacks("stress-ng: fail"),
            Lacks("stress-ng: warn"),
        ],
        ..stressors(name, 1500, TOGETHER)
    }
}

/// Compilers find their own files by `/proc/self/exe`, which is relative to a process's root.
const CHROOT: &str = r#"
mkdir -p /jail && mount --bind / /jail && mount -t proc proc /jail/proc && mount -t tmpfs none /jail/tmp
chroot /jail /bin/env RUSTFLAGS="-C linker=gcc" /bin/bash -c '
cd /tmp
cargo new --vcs none hello >/dev/null 2>&1 && cargo run --quiet --offline --manifest-path hello/Cargo.toml
echo "public class J { public static void main(String[] a) { System.out.println(\"from Java\"); } }" > J.java
/usr/lib/jvm/java-17-openjdk-amd64/bin/javac J.java && /usr/lib/jvm/java-17-openjdk-amd64/bin/java -cp . J
readlink /proc/self/exe'
"#;

const COMPILERS: Case = Case {
    name: "compilers in another root",
    command: &["/bin/bash", "-c", CHROOT],
    prepare: prepare::compilers,
    memory: "3G",
    expect: &[Contains("Hello, world!"), Contains("from Java"), Contains("\n/usr/bin/readlink\n")],
    seconds: 1200,
    ..CASE
};

pub const LONG: &[Case] = &[
    COMPILERS,
    cases::killed(
        "ten thousand kills of senders and receivers",
        2,
        &["/bin/flat", "4096", "/bin/kills", "10000"],
    ),
    together("stress-ng, all together", 1),
    together("stress-ng, all together on two CPUs", 2),
    together("stress-ng, all together on four CPUs", 4),
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
