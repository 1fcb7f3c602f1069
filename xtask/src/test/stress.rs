//! The kernel under stress by Debian's stress-ng, whose stressors check what they do.
//!
//! A short selection stands in every run; `--long` gives each stressor a machine and a minute, all
//! of them together ten on one, two and four CPUs, and runs Python's own tests of threads,
//! processes and mappings there. Those run twice, and the second time must leave the kernel's
//! memory as it was (`xtask/guest/flat.c`).

use super::cases::Expect::{self, Contains, Lacks};
use super::cases::{self, Case, CASE};
use super::disks::{self, TestDisk};
use super::prepare::{self, Prepared};
use crate::guest::Libc;
use anyhow::Result;
use std::process::Command;

const SWAP: &[TestDisk] = &[disks::swap(1024)];
const MEMORY: &str = "256M";

/// What a stressor says on its way is no failure: some, cut off at the end of their time, complain
/// on Linux as well.
const STRESSED: &[Expect] = &[Contains("all have run"), Lacks("unsuccessful")];

fn stress_ng() -> Result<Result<Prepared, String>> {
    prepare::debian_programs(&["stress-ng"])
}

/// Python with its own tests, which Debian has in a package that bears the version in its name.
fn python_tests() -> Result<Result<Prepared, String>> {
    let listing = Command::new("apt-cache")
        .args(["search", "--names-only", "^libpython3.*-testsuite$"])
        .output();
    let Ok(listing) = listing else {
        return Ok(Err("no apt to fetch Python's tests with".to_owned()));
    };
    let text = String::from_utf8_lossy(&listing.stdout).into_owned();
    let Some(package) = text.lines().last().and_then(|line| line.split(' ').next()) else {
        return Ok(Err("apt knows no libpython3-testsuite: run `apt-get update`".to_owned()));
    };
    prepare::debian_programs(&[package, "netbase"])
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
const BOUND: &str = "8192";

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

const PYTHON: &str = "cd /tmp && exec /bin/flat $0 /usr/bin/python3.* -m test -v test_threading test_multiprocessing_fork test_mmap test_pty";

const fn python(name: &'static str, cpus: u32) -> Case {
    Case {
        name,
        command: &["/bin/busybox", "sh", "-c", PYTHON, BOUND],
        guests: &[("flat", Libc::Musl)],
        prepare: python_tests,
        cpus,
        memory: "1G",
        expect: &[Contains("Tests result: SUCCESS"), Contains("memory is as before")],
        seconds: 3000,
        ..CASE
    }
}

/// What programs ask of a system, asked by Python's own tests. `F_NOTIFY`, which one of them uses,
/// is not there.
const SYSTEM: &str =
    "cd /tmp && exec /usr/bin/python3.* -m test --timeout 1500 -i test_fcntl_64_bit \
    test_os test_posix test_select test_selectors test_epoll test_poll test_asyncio test_signal \
    test_mmap test_threading test_subprocess test_multiprocessing_main_handling \
    test_multiprocessing_fork test_multiprocessing_forkserver test_multiprocessing_spawn \
    test_fcntl test_pty test_resource test_time";

const SYSTEM_TESTS: Case = Case {
    name: "Python's tests of the system",
    command: &["/bin/busybox", "sh", "-c", SYSTEM],
    prepare: python_tests,
    memory: "1G",
    expect: &[Contains("Tests result: SUCCESS")],
    seconds: 3000,
    ..CASE
};

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
    SYSTEM_TESTS,
    python("Python's tests", 1),
    python("Python's tests on two CPUs", 2),
    python("Python's tests on four CPUs", 4),
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
