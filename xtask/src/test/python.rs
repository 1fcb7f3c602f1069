//! Python's own tests of what programs ask of a system, with what Debian's Linux 6.1 makes of them
//! in the same machine as the reference.
//!
//! Each test that fails is to be in the list of those that fail on Linux ([`ON_LINUX`]), or, on our
//! kernel, in that of differences that are meant ([`ON_OURS`]); both have reasons. A test that
//! fails is run once more, alone, before it counts: many measure time, which a host that is busy
//! takes. What runs within three minutes stands in every run ([`SHORT`]); `--long` has the rest,
//! and some of them twice on several CPUs, where the second time must leave memory as it was.
//!
//! With Python 3.11.2 these are 4,840 tests. 321 of them are skipped on Linux: they are for other
//! systems, or want a package or a resource that isn't there.

use super::cases::Expect::{self, Contains, Judged, Lacks};
use super::cases::{Case, CASE};
use super::prepare::{self, Prepared};
use super::stress::BOUND;
use crate::guest::Libc;
use crate::qemu::Kernel;
use anyhow::Result;
use regex::Regex;
use std::process::Command;

/// A test, and why it fails.
type Known = (&'static str, &'static str);

const ON_LINUX: &[Known] = &[(
    "test.test_os.TermsizeTests.test_stty_match",
    "its console has a window of no rows and columns, of which stty says nothing",
)];

/// What fails on our kernel alone. Skipped there alone is `test_monotonic_settime` of `test_time`:
/// the clock is the machine's, and no program sets it.
const ON_OURS: &[Known] = &[(
    "test.test_fcntl.TestFcntl.test_fcntl_64_bit",
    "F_NOTIFY: no program is told of changes in a folder, by dnotify or otherwise",
)];

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

/// What stands before the second run of tests that failed.
const AGAIN: &str = "Re-running failed tests";

/// Which tests fail that should not, by Python's own report, a whole one.
fn judge(kernel: Kernel, output: &str) -> Vec<String> {
    let known: Vec<&str> = ON_LINUX
        .iter()
        .chain(if kernel == Kernel::Uvm { ON_OURS } else { &[] })
        .map(|(test, _)| *test)
        .collect();
    let report = output.rsplit(AGAIN).next().unwrap_or(output);
    let failure = Regex::new(r"(?m)^(?:FAIL|ERROR): \S+ \((\S+?)\)").expect("it is right");
    let failed: Vec<&str> = failure
        .captures_iter(report)
        .filter_map(|found| found.get(1))
        .map(|test| test.as_str())
        .collect();
    let mut complaints: Vec<String> = failed
        .iter()
        .filter(|test| !known.contains(test))
        .map(|test| format!("{test} fails"))
        .collect();
    let all_are_well =
        report.lines().any(|line| line.starts_with("Tests result: ") && line.ends_with("SUCCESS"));
    if failed.is_empty() && !all_are_well {
        complaints.push("a failure that is no test's".to_owned());
    }
    complaints
}

/// The exit code says that some test fails, which the judge knows better.
macro_rules! tests {
    ($tests:literal) => {
        &[
            "/bin/busybox",
            "sh",
            "-c",
            concat!(
                "cd /tmp; /usr/bin/python3.* -m test -w --timeout 1500 ",
                $tests,
                "; echo ended with $?"
            ),
        ]
    };
}

const JUDGED: &[Expect] =
    &[Contains("Total duration"), Lacks(" crashed -- "), Lacks("(env changed)"), Judged(judge)];

const fn python(name: &'static str, command: &'static [&'static str]) -> Case {
    Case {
        name,
        command,
        prepare: python_tests,
        memory: "1G",
        expect: JUDGED,
        seconds: 1500,
        ..CASE
    }
}

pub const SHORT: &[Case] = &[python(
    "Python's tests",
    tests!(
        "test_os test_posix test_select test_selectors test_epoll test_poll test_signal test_mmap \
        test_threading test_subprocess test_fcntl test_pty test_resource test_time"
    ),
)];

const TWICE: &str = "cd /tmp && exec /bin/flat $0 /usr/bin/python3.* -m test -w test_threading \
    test_multiprocessing_fork test_mmap test_pty";

const fn twice(name: &'static str, cpus: u32) -> Case {
    Case {
        guests: &[("flat", Libc::Musl)],
        cpus,
        expect: &[Contains("SUCCESS"), Contains("memory is as before")],
        seconds: 3000,
        ..python(name, &["/bin/busybox", "sh", "-c", TWICE, BOUND])
    }
}

pub const LONG: &[Case] = &[
    python("Python's tests of asyncio", tests!("test_asyncio")),
    python(
        "Python's tests of processes",
        tests!(
            "test_multiprocessing_main_handling test_multiprocessing_fork \
            test_multiprocessing_forkserver test_multiprocessing_spawn"
        ),
    ),
    twice("Python's tests twice", 1),
    twice("Python's tests twice on two CPUs", 2),
    twice("Python's tests twice on four CPUs", 4),
];

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "FAIL: test_a (test.test_os.A.test_a)\nTests result: FAILURE\n";

    #[test]
    fn a_failure_counts_if_it_comes_again() {
        let judged = |output: &str| judge(Kernel::Uvm, output);
        assert_eq!(judged(FIRST), ["test.test_os.A.test_a fails"]);
        let well = format!("{FIRST}{AGAIN} in verbose mode\nTests result: FAILURE then SUCCESS\n");
        assert!(judged(&well).is_empty());
        let again = format!("{FIRST}{AGAIN} in verbose mode\n{FIRST}");
        assert_eq!(judged(&again), ["test.test_os.A.test_a fails"]);
        assert_eq!(judged("Tests result: INTERRUPTED"), ["a failure that is no test's"]);
    }

    #[test]
    fn what_is_meant_to_fail_may() {
        let (test, _) = ON_OURS[0];
        let output = format!("ERROR: x ({test})\nTests result: FAILURE\n");
        assert!(judge(Kernel::Uvm, &output).is_empty());
        assert_eq!(judge(Kernel::Linux, &output).len(), 1);
    }
}
