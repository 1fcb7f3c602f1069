//! Pages out of the direct map: what works with all memory in sight works by windows, however they
//! are made, and what isn't in a window is out of reach.

use super::{guest, Case, CASE};
use crate::guest::Libc;
use crate::test::cases::Expect::{self, Contains, Exactly, Lacks};
use crate::test::disks;

/// Checks an open, a copy and a close between two looks at the counts of windows.
const COUNTS: &str =
    "one() { grep ^windows_$1 /proc/vmstat | cut -d' ' -f2; }; before=$(one opened); \
    cat /bin/busybox >/dev/null; test $(one opened) -gt $before && echo opened; \
    test $(one remote) = 0 && echo no other CPU was told";

pub const CASES: &[Case] = &[
    Case {
        words: &["ephemeral=private"],
        cpus: 2,
        memory: "64M",
        disks: &[disks::ext4(128), disks::swap(256)],
        ours_only: true,
        seconds: 300,
        ..guest(
            "files and memory beyond memory, by windows",
            &[("pressure", Libc::Musl)],
            &["/bin/pressure"],
        )
    },
    Case {
        words: &["ephemeral=cache:8"],
        cpus: 2,
        memory: "64M",
        disks: &[disks::ext4(128), disks::swap(256)],
        ours_only: true,
        seconds: 300,
        ..guest(
            "files and memory beyond memory, by eight windows that are kept",
            &[("pressure", Libc::Musl)],
            &["/bin/pressure"],
        )
    },
    Case {
        words: &["ephemeral=private"],
        cpus: 4,
        ours_only: true,
        seconds: 300,
        ..guest("memory that moves, by windows", &[("moving", Libc::Musl)], &["/bin/moving"])
    },
    Case {
        words: &["ephemeral=cache:8"],
        cpus: 4,
        ours_only: true,
        seconds: 300,
        ..guest(
            "memory that moves, by eight windows that are kept",
            &[("moving", Libc::Musl)],
            &["/bin/moving"],
        )
    },
    Case {
        words: &["ephemeral=private"],
        ours_only: true,
        seconds: 300,
        ..guest("sockets, by windows", &[("sockets", Libc::Musl)], &["/bin/sockets"])
    },
    Case {
        words: &["ephemeral=original"],
        cpus: 2,
        ours_only: true,
        seconds: 300,
        ..guest(
            "data that is spliced and sent, by windows that all CPUs forget",
            &[("splices", Libc::Musl)],
            &["/bin/splices"],
        )
    },
    Case {
        words: &["ephemeral=private"],
        cpus: 2,
        ours_only: true,
        seconds: 300,
        expect: &[Exactly(include_str!("../../../guest/edges.linux"))],
        ..guest("numbers at the edges, by windows", &[("edges", Libc::Musl)], &["/bin/edges"])
    },
    Case {
        words: &["ephemeral=private"],
        ours_only: true,
        expect: &[Exactly(include_str!("../../../guest/halves.linux"))],
        ..guest(
            "buffers of which a part is bad, by windows",
            &[("halves", Libc::Musl)],
            &["/bin/halves"],
        )
    },
    Case {
        name: "windows are counted",
        words: &["ephemeral=private"],
        command: &["/bin/busybox", "sh", "-c", COUNTS],
        expect: &[Exactly("opened\nno other CPU was told\n")],
        cpus: 2,
        ours_only: true,
        ..CASE
    },
    Case {
        name: "a stray read finds a page in the direct map",
        command: &[
            "/bin/busybox",
            "sh",
            "-c",
            "echo before; echo r >/proc/sysrq-trigger; echo after",
        ],
        expect: &[Exactly("before\nafter\n")],
        ours_only: true,
        ..CASE
    },
    Case {
        name: "a stray read finds no page by windows that end",
        words: &["ephemeral=private"],
        command: &[
            "/bin/busybox",
            "sh",
            "-c",
            "echo before; echo r >/proc/sysrq-trigger; echo after",
        ],
        expect: &[Contains("before"), Lacks("after"), Expect::Panic("page fault in the kernel")],
        code: 70,
        ours_only: true,
        ..CASE
    },
    Case {
        name: "a stray read finds no page by windows that are kept",
        words: &["ephemeral=cache:64"],
        command: &[
            "/bin/busybox",
            "sh",
            "-c",
            "echo before; echo r >/proc/sysrq-trigger; echo after",
        ],
        expect: &[Contains("before"), Lacks("after"), Expect::Panic("page fault in the kernel")],
        code: 70,
        ours_only: true,
        ..CASE
    },
];
