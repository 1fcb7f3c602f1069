//! The machine: its boards, terminal, CPUs, what it starts with, and how it ends.

use super::super::disks;
use super::super::prepare;
use super::Expect::{Contains, Exactly, Lacks, Matches};
use super::{guest, Case, Expect, Leftover, CASE};
use crate::guest::Libc;
use crate::qemu::{Board, Display};
use crate::session::Input;
use crate::session::Step::{Expect as Wait, Type};

pub const CASES: &[Case] = &[
    Case {
        expect: &[Lacks("FAILED"), Contains("the terminal holds")],
        ..guest("sessions and the terminal", &[("sessions", Libc::Musl)], &["/bin/sessions"])
    },
    guest("pseudo-terminals", &[("ptys", Libc::Musl)], &["/bin/ptys"]),
    Case {
        cpus: 4,
        ..guest("pseudo-terminals, several CPUs", &[("ptys", Libc::Musl)], &["/bin/ptys"])
    },
    Case {
        name: "interactive shell, ^C",
        input: Input::Keys(&[
            Wait("# "),
            Type("sh -c 'echo go; exec sleep 100'\r"),
            Wait("\ngo"),
            Type("\x03"),
            Wait("# "),
            Type("echo code $?\r"),
            Wait("code 130"),
            Wait("# "),
            Type("exit 4\r"),
        ]),
        code: 4,
        ..CASE
    },
    Case {
        name: "interactive shell, ^Z and job control",
        input: Input::Keys(&[
            Wait("# "),
            Type("sh -c 'echo go; exec sleep 100'\r"),
            Wait("\ngo"),
            Type("\x1a"),
            Wait("Stopped"),
            Wait("# "),
            Type("jobs\r"),
            Wait("Stopped"),
            Wait("# "),
            Type("bg; kill %1; wait; echo all done\r"),
            Wait("\nall done"),
            Wait("# "),
            Type("exit 5\r"),
        ]),
        code: 5,
        ..CASE
    },
    Case {
        name: "terminal erases, kills and ends",
        command: &["/bin/busybox", "sh", "-c", "stty -a | head -n 1; cat; echo after"],
        input: Input::Keys(&[
            Wait("24"),
            Type("abx\x7fc\r"),
            Wait("abc\r\n"),
            Type("gone\x15kept\r"),
            Wait("\nkept\r\n"),
            Type("\x04"),
            Wait("after"),
        ]),
        expect: &[Contains("80")],
        ..CASE
    },
    Case {
        name: "a stream on standard input",
        command: &["/bin/busybox", "sh", "-c", "md5sum; echo end"],
        input: Input::Stream(b"line\n\x03\x04 \x16 tab\t\x7f\x15 and no end of line"),
        expect: &[Exactly("001f1606d6ae6ddf8def20e37e1ed14b  -\nend\n")],
        ..CASE
    },
    Case {
        name: "the end of standard input stays",
        command: &["/bin/busybox", "sh", "-c", "cat; cat; wc -c; echo end"],
        input: Input::Stream(b"once\n"),
        expect: &[Exactly("once\n0\nend\n")],
        ours_only: true,
        ..CASE
    },
    Case {
        name: "proc files",
        command: &["/bin/busybox", "sh", "-c", PROC],
        expect: &[Contains("[stack]"), Contains("VmRSS:"), Contains("MemTotal:"), Contains("pgfault"), Lacks("can't open")],
        ..CASE
    },
    Case {
        name: "the address space as uvm sees it",
        command: &["/bin/busybox", "sh", "-c", "cat /proc/self/uvm"],
        expect: &[Matches(r"(?s)[0-9a-f]{6,}.*\n.*\n")],
        ours_only: true,
        ..CASE
    },
    Case {
        name: "microvm",
        command: &["/bin/busybox", "sh", "-c", "echo from microvm; date +%Y; sleep 0.2; exit 9"],
        expect: &[Matches(r"^from microvm\n20\d\d\n$")],
        board: Board::Microvm,
        code: 9,
        ours_only: true,
        ..CASE
    },
    Case {
        name: "the console of a microvm is heard",
        command: &["/bin/busybox", "sh", "-c", "md5sum; echo end"],
        input: Input::Stream(b"a line\n"),
        expect: &[Exactly("bdd6a92cd10ae454d62ed203abe3fe92  -\nend\n")],
        board: Board::Microvm,
        ours_only: true,
        ..CASE
    },
    Case {
        name: "swap from the start",
        command: &["/bin/busybox", "sh", "-c", "cat /proc/swaps; free | tail -n 1; swapoff /dev/vda; cat /proc/swaps"],
        disks: &[disks::swap(32)],
        expect: &[Exactly(
            "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
             /dev/vda                                partition\t32764\t\t0\t\t-2\n\
             Swap:         32764           0       32764\n\
             Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n",
        )],
        ..CASE
    },
    Case {
        display: Display::Bochs,
        ours_only: true,
        // The screen's object lives as long as the machine, with a table of those of its pages that
        // were shown.
        leftover: Leftover::Unwatched,
        ..guest("device memory", &[("device", Libc::Musl)], &["/bin/device"])
    },
    Case {
        memory: "64M",
        ours_only: true,
        // A program is to get three quarters of what a fresh machine has free.
        leftover: Leftover::Unwatched,
        ..guest("sixty-four megabytes", &[("small", Libc::Musl)], &["/bin/small"])
    },
    // It is in memory once, however large it is.
    Case {
        name: "an initramfs of two thirds of memory",
        command: &["/bin/busybox", "sh", "-c", "cat /data/* | cksum; free -m | awk '/Mem/ { print ($2 > 56) }'"],
        add: &["/usr/bin/cksum"],
        prepare: prepare::many_megabytes,
        memory: "64M",
        expect: &[Expect::Prepared, Contains("\n1\n")],
        ours_only: true,
        // So little is free that nothing beside it may be.
        leftover: Leftover::Unwatched,
        ..CASE
    },
    Case {
        name: "more swap than memory can have",
        command: &["/bin/busybox", "sh", "-c", "free | tail -n 1; swapoff /dev/vda && echo off"],
        disks: &[disks::swap(1024)],
        memory: "64M",
        expect: &[
            Matches(r"^uvm: \d+ KiB of 1048572 KiB are swapped on, all that this memory can keep track of\r?\n"),
            Matches(r"Swap: +5\d{5} +0 +5\d{5}\noff\n$"),
        ],
        ours_only: true,
        ..CASE
    },
    Case {
        name: "a small machine",
        command: &["/bin/busybox", "sh", "-c", "free | head -n 2; dd if=/dev/zero of=/tmp/big bs=1M count=200 2>/dev/null; rm /tmp/big; echo alive"],
        expect: &[Contains("Mem:"), Contains("alive")],
        memory: "64M",
        ours_only: true,
        ..CASE
    },
    Case {
        name: "several CPUs are seen",
        command: &["/bin/busybox", "sh", "-c", SEES_CPUS],
        expect: &[Exactly("4\n4\n4\n")],
        cpus: 4,
        ..CASE
    },
    Case {
        words: &["trace"],
        expect: &[
            Expect::Told(r"^system call kexec_load \(246\) is not there \( exit 7 \?\[2J\)$"),
            Expect::Told(r"^system call 4000 is not there \( exit 7 \?\[2J\)$"),
        ],
        ours_only: true,
        ..guest(
            "system calls that are not there",
            &[("processes", Libc::Musl)],
            &["/bin/processes", "a_call_that_is_not_there"],
        )
    },
    Case {
        name: "waits for locks are counted where asked for",
        guests: &[("cpus", Libc::Musl)],
        command: &["/bin/busybox", "sh", "-c", "/bin/cpus many_fork_at_once && grep ^lock_ /proc/vmstat"],
        words: &["trace"],
        expect: &[
            Matches(r"(?m)^lock_waits [1-9]\d*\r?$"),
            Matches(r"(?m)^lock_wait_most_ns [1-9]\d*\r?$"),
            Matches(r"(?m)^lock_waits_at_ffffffff[0-9a-f]{8} [1-9]\d*\r?$"),
        ],
        cpus: 4,
        ours_only: true,
        ..CASE
    },
    Case {
        name: "locks have no times where none were asked for",
        command: &["/bin/busybox", "grep", "^lock_", "/proc/vmstat"],
        expect: &[Exactly("")],
        code: 1,
        ours_only: true,
        ..CASE
    },
    Case {
        name: "two CPUs of a microvm",
        command: &["/bin/busybox", "nproc"],
        expect: &[Exactly("2\n")],
        board: Board::Microvm,
        cpus: 2,
        ..CASE
    },
    Case {
        name: "as many CPUs as there can be",
        command: &["/bin/busybox", "sh", "-c", "nproc; seq 100 | xargs -P 32 -n 1 true && echo done"],
        expect: &[Exactly("64\ndone\n")],
        memory: "1G",
        cpus: 64,
        seconds: 300,
        ours_only: true,
        ..CASE
    },
    Case {
        name: "all CPUs say where they are",
        command: &["/bin/busybox", "sh", "-c", "while :; do :; done & echo l >/proc/sysrq-trigger; kill $!; echo on"],
        expect: &[Exactly("on\n"), Expect::Stacks(4)],
        cpus: 4,
        ours_only: true,
        ..CASE
    },
    // One that works takes ticks, and so notices.
    Case {
        name: "a CPU that hangs is noticed",
        command: &["/bin/busybox", "sh", "-c", "while :; do :; done & echo h >/proc/sysrq-trigger; kill $!; echo on"],
        expect: &[Exactly("on\n"), Expect::Stacks(4)],
        cpus: 4,
        ours_only: true,
        ..CASE
    },
    Case {
        name: "a panic stops all CPUs",
        command: &["/bin/busybox", "sh", "-c", BUSY_PANIC],
        expect: &[Contains("before"), Lacks("after"), Expect::Panic("sysrq-trigger")],
        code: 70,
        cpus: 4,
        ours_only: true,
        ..CASE
    },
    Case {
        name: "a panic tells where",
        command: &["/bin/busybox", "sh", "-c", "echo before; echo c >/proc/sysrq-trigger; echo after"],
        expect: &[Contains("before"), Lacks("after"), Expect::Panic("sysrq-trigger")],
        code: 70,
        ours_only: true,
        ..CASE
    },
];

const SEES_CPUS: &str = "nproc; grep -c ^processor /proc/cpuinfo; grep -c '^cpu[0-9]' /proc/stat";

const BUSY_PANIC: &str =
    "while :; do :; done & while :; do cat /proc/stat; done >/dev/null & echo before; echo c >/proc/sysrq-trigger; echo after";

const PROC: &str = "cat /proc/self/maps /proc/self/status /proc/meminfo /proc/vmstat; tr '\\0' ' ' </proc/self/cmdline; ls /proc/1";
