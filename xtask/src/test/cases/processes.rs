//! Processes: rights, signals, threads, several CPUs, waits, and random system calls.

use super::super::disks;
use super::super::prepare;
use super::Expect::{Contains, Exactly, Lacks, Matches};
use super::{guest, killed, Case, CASE};
use crate::guest::Libc;
use crate::qemu::Clock;

pub const CASES: &[Case] = &[
    Case {
        seconds: 300,
        expect: &[Contains("the kernel stands"), Lacks("FAILED")],
        ..guest("system call fuzzer", &[("fuzz", Libc::Musl)], &["/bin/fuzz", "60"])
    },
    Case {
        seconds: 60,
        prepare: prepare::kept_programs,
        memory: "128M",
        expect: &[
            Matches(r"[1-9]\d+ programs ran"),
            Contains("the kernel stands"),
            Lacks("FAILED"),
        ],
        ..guest(
            "the fuzzer's corpus",
            &[("fuzzer", Libc::Musl)],
            &["/bin/fuzzer", "replay", "/fuzz/corpus", "1", "8"],
        )
    },
    Case {
        name: "system calls from many processes at once",
        guests: &[("storm", Libc::Musl)],
        command: &["/bin/storm", "30"],
        expect: &[Matches(r"survived \d+ rounds")],
        seconds: 300,
        ..CASE
    },
    Case {
        expect: &[Exactly(include_str!("../../../guest/rights.linux"))],
        seconds: 300,
        ..guest("rights to files", &[("rights", Libc::Musl)], &["/bin/rights"])
    },
    Case {
        expect: &[Exactly(include_str!("../../../guest/trust.linux"))],
        seconds: 300,
        ..guest("rights to processes", &[("trust", Libc::Musl)], &["/bin/trust"])
    },
    Case {
        expect: &[Exactly(include_str!("../../../guest/asks.linux"))],
        seconds: 300,
        ..guest("capabilities that calls ask for", &[("asks", Libc::Musl)], &["/bin/asks"])
    },
    Case {
        expect: &[Exactly(include_str!("../../../guest/edges.linux"))],
        ..guest("numbers at the edges", &[("edges", Libc::Musl)], &["/bin/edges"])
    },
    Case {
        expect: &[Exactly(include_str!("../../../guest/answers.linux"))],
        ..guest(
            "calls about files, clocks and futexes",
            &[("answers", Libc::Musl)],
            &["/bin/answers"],
        )
    },
    Case {
        expect: &[Exactly(include_str!("../../../guest/details.linux"))],
        clock: Clock::Instructions,
        seconds: 300,
        ..guest("calls about details", &[("details", Libc::Musl)], &["/bin/details"])
    },
    Case {
        expect: &[Exactly(include_str!("../../../guest/addresses.linux"))],
        memory: "512M",
        seconds: 300,
        ..guest("calls about mappings", &[("addresses", Libc::Musl)], &["/bin/addresses"])
    },
    Case {
        expect: &[Exactly(include_str!("../../../guest/sweeps.linux"))],
        memory: "1G",
        seconds: 300,
        ..guest("sweeps of edges through all calls", &[("sweeps", Libc::Musl)], &["/bin/sweeps"])
    },
    Case {
        expect: &[Exactly(include_str!("../../../guest/ids.linux"))],
        seconds: 300,
        ..guest("ids and capabilities", &[("ids", Libc::Musl)], &["/bin/ids"])
    },
    Case {
        memory: "128M",
        ..guest("texts of /proc", &[("proctext", Libc::Musl)], &["/bin/proctext"])
    },
    Case {
        seconds: 300,
        ..guest("files of /proc", &[("procfiles", Libc::Musl)], &["/bin/procfiles"])
    },
    Case {
        cpus: 4,
        seconds: 300,
        ..guest("files of /proc, several CPUs", &[("procfiles", Libc::Musl)], &["/bin/procfiles"])
    },
    guest("ways into the kernel and back", &[("doors", Libc::Musl)], &["/bin/doors"]),
    Case {
        cpus: 4,
        ..guest(
            "ways into the kernel and back, several CPUs",
            &[("doors", Libc::Musl)],
            &["/bin/doors"],
        )
    },
    guest("processes", &[("processes", Libc::Musl)], &["/bin/processes"]),
    guest("process descriptors", &[("pidfds", Libc::Musl)], &["/bin/pidfds"]),
    Case {
        cpus: 4,
        ..guest("process descriptors on several CPUs", &[("pidfds", Libc::Musl)], &["/bin/pidfds"])
    },
    guest("limits", &[("limits", Libc::Musl)], &["/bin/limits"]),
    guest("signals", &[("signals", Libc::Musl)], &["/bin/signals"]),
    guest("threads", &[("threads", Libc::Musl)], &["/bin/threads"]),
    guest("a debugger's calls", &[("traces", Libc::Musl)], &["/bin/traces"]),
    Case {
        cpus: 4,
        ..guest("a debugger's calls, several CPUs", &[("traces", Libc::Musl)], &["/bin/traces"])
    },
    Case {
        expect: &[Exactly(include_str!("../../../guest/tracees.linux"))],
        clock: Clock::Instructions,
        seconds: 300,
        ..guest("calls about tracees", &[("tracees", Libc::Musl)], &["/bin/tracees"])
    },
    guest("a debugger follows", &[("follows", Libc::Musl)], &["/bin/follows"]),
    Case {
        cpus: 4,
        ..guest("a debugger follows, several CPUs", &[("follows", Libc::Musl)], &["/bin/follows"])
    },
    killed("senders and receivers that are killed", 1, &["/bin/flat", "1024", "/bin/kills", "300"]),
    killed(
        "senders and receivers that are killed, several CPUs",
        4,
        &["/bin/flat", "4096", "/bin/kills", "300"],
    ),
    Case { cpus: 4, ..guest("several CPUs", &[("cpus", Libc::Musl)], &["/bin/cpus"]) },
    Case {
        cpus: 4,
        // Linux's CPUs spin for each other's answers: on a busy host that takes longer than a case
        // may.
        ours_only: true,
        ..guest("threads on several CPUs", &[("threads", Libc::Musl)], &["/bin/threads"])
    },
    Case {
        cpus: 4,
        ..guest("signals on several CPUs", &[("signals", Libc::Musl)], &["/bin/signals"])
    },
    Case {
        cpus: 4,
        ..guest("processes on several CPUs", &[("processes", Libc::Musl)], &["/bin/processes"])
    },
    Case {
        cpus: 4,
        seconds: 300,
        ours_only: true,
        ..guest("shootdowns", &[("shootdowns", Libc::Musl)], &["/bin/shootdowns"])
    },
    Case {
        cpus: 2,
        seconds: 300,
        ..guest("spies on programs that may not be read", &[("spies", Libc::Musl)], &["/bin/spies"])
    },
    Case { cpus: 3, seconds: 300, ..guest("races", &[("races", Libc::Musl)], &["/bin/races"]) },
    Case {
        clock: Clock::Instructions,
        memory: "1G",
        seconds: 300,
        ours_only: true,
        ..guest("latency beside long calls", &[("latency", Libc::Musl)], &["/bin/latency"])
    },
    Case {
        clock: Clock::Instructions,
        seconds: 300,
        ours_only: true,
        ..guest("latency beside crowds", &[("latency", Libc::Musl)], &["/bin/latency", "crowds"])
    },
    Case {
        clock: Clock::Instructions,
        cpus: 2,
        seconds: 300,
        ours_only: true,
        ..guest(
            "latency beside crowds, two CPUs",
            &[("latency", Libc::Musl)],
            &["/bin/latency", "crowds"],
        )
    },
    Case {
        disks: &[disks::ext4(128), disks::idle_swap(96), disks::ext4(256).journal(64)],
        clock: Clock::Instructions,
        memory: "384M",
        seconds: 300,
        ours_only: true,
        ..guest(
            "latency beside calls on disks",
            &[("latency", Libc::Musl)],
            &["/bin/latency", "disks"],
        )
    },
    Case {
        clock: Clock::Instructions,
        seconds: 300,
        ours_only: true,
        ..guest("shares of the CPU", &[("shares", Libc::Musl)], &["/bin/shares"])
    },
    Case {
        cpus: 2,
        ours_only: true,
        ..guest("shares of two CPUs", &[("shares", Libc::Musl)], &["/bin/shares", "several"])
    },
    Case {
        clock: Clock::Instructions,
        seconds: 300,
        ours_only: true,
        ..guest("crowds", &[("crowds", Libc::Musl)], &["/bin/crowds"])
    },
    Case {
        name: "allocations that fail",
        guests: &[("flat", Libc::Musl), ("failnth", Libc::Musl)],
        command: &["/bin/flat", "512", "/bin/failnth"],
        disks: &[disks::ext4(64), disks::idle_swap(32)],
        expect: &[Lacks("FAILED"), Contains("cases hold"), Contains("memory is as before")],
        seconds: 300,
        ours_only: true,
        ..CASE
    },
    Case {
        clock: Clock::Instructions,
        ..guest("timers of a nanosecond", &[("timers", Libc::Musl)], &["/bin/timers"])
    },
    guest("clocks and limits", &[("clocks", Libc::Musl)], &["/bin/clocks"]),
    guest("signals on the host's libc", &[("signals", Libc::Host)], &["/bin/signals"]),
    Case {
        cpus: 4,
        ..guest("several CPUs on the host's libc", &[("cpus", Libc::Host)], &["/bin/cpus"])
    },
    guest("threads on the host's libc", &[("threads", Libc::Host)], &["/bin/threads"]),
];
