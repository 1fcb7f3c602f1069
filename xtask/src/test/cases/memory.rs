//! Memory: faults, mappings, moving, running out of it, swap.

use super::super::disks;
use super::Expect::{Contains, Exactly, Lacks, Matches};
use super::{guest, left, Case, Expect, CASE};
use crate::guest::Libc;
use crate::qemu::Fault;

pub const CASES: &[Case] = &[
    guest("faults", &[("faults", Libc::Musl)], &["/bin/faults"]),
    guest("mappings", &[("mappings", Libc::Musl)], &["/bin/mappings"]),
    Case { seconds: 300, ..guest("orders of mappings", &[("orders", Libc::Musl)], &["/bin/orders"]) },
    guest("growth of mappings", &[("growth", Libc::Musl)], &["/bin/growth"]),
    Case { ours_only: true, ..guest("inheritance", &[("inherit", Libc::Musl)], &["/bin/inherit"]) },
    guest("pointers", &[("pointers", Libc::Musl)], &["/bin/pointers"]),
    Case {
        memory: "64M",
        ours_only: true,
        seconds: 300,
        ..guest("users who take all they get", &[("hogs", Libc::Musl)], &["/bin/hogs"])
    },
    Case {
        memory: "64M",
        ours_only: true,
        ..guest("large processes are judged", &[("hogs", Libc::Musl)], &["/bin/hogs", "memory"])
    },
    Case {
        memory: "128M",
        ours_only: true,
        ..guest("shared memory of users has a bound", &[("hogs", Libc::Musl)], &["/bin/hogs", "shared"])
    },
    Case {
        memory: "128M",
        ours_only: true,
        ..guest("what is taken out leaves no room behind", &[("hogs", Libc::Musl)], &["/bin/hogs", "drained"])
    },
    Case {
        memory: "128M",
        ours_only: true,
        ..guest("who keeps pages of the heap is judged by them", &[("slack", Libc::Musl)], &["/bin/slack"])
    },
    guest("memory that moves", &[("moving", Libc::Musl)], &["/bin/moving"]),
    Case {
        memory: "64M",
        disks: &[disks::swap(128)],
        ours_only: true,
        ..guest("memory that moves, and is short", &[("moving", Libc::Musl)], &["/bin/moving"])
    },
    Case { cpus: 4, ..guest("memory that moves, several CPUs", &[("moving", Libc::Musl)], &["/bin/moving"]) },
    Case { cpus: 4, ..guest("windows of mappings", &[("windows", Libc::Musl)], &["/bin/windows"]) },
    Case {
        cpus: 2,
        memory: "64M",
        ..guest("pages that become tables", &[("races", Libc::Musl)], &["/bin/races", "little"])
    },
    Case { ours_only: true, ..guest("crowds without memory", &[("failnth", Libc::Musl)], &["/bin/failnth", "crowds"]) },
    Case { memory: "128M", ours_only: true, ..guest("the heap gives memory back", &[("givesback", Libc::Musl)], &["/bin/givesback"]) },
    Case {
        ours_only: true,
        ..guest("promised memory comes back", &[("givesback", Libc::Musl)], &["/bin/givesback", "1"])
    },
    Case {
        memory: "128M",
        cpus: 4,
        ours_only: true,
        ..guest("the heap gives memory back, several CPUs", &[("givesback", Libc::Musl)], &["/bin/givesback"])
    },
    Case {
        name: "threads that map side by side leave nothing behind",
        guests: &[("flat", Libc::Musl), ("shootdowns", Libc::Musl)],
        command: &["/bin/flat", "1024", "/bin/shootdowns", "many_whose_threads_map_side_by_side_end"],
        expect: &[Lacks("FAILED"), Contains("memory is as before")],
        cpus: 4,
        seconds: 300,
        ours_only: true,
        ..CASE
    },
    guest("files in memory", &[("tmpfs", Libc::Musl)], &["/bin/tmpfs"]),
    Case {
        expect: &[Matches(r"LEFT anon\+shmem\+swap-files: -?\d+, -?\d+\n")],
        code: 99,
        ..left("left pages are found", &["/bin/leftover", "-k", "/bin/leftover", "--leave", "pages"])
    },
    Case {
        expect: &[Matches(r"LEFT heap_\d+: \d+, \d+\n")],
        code: 99,
        ..left("left blocks of the heap are found", &["/bin/leftover", "-k", "/bin/leftover", "--leave", "names"])
    },
    Case {
        expect: &[Exactly("")],
        ..left("what is left by name is removed", &["/bin/leftover", "/bin/leftover", "--leave", "names"])
    },
    Case {
        add: &["/usr/bin/od", "/bin/bash"],
        disks: &[disks::blank(8)],
        ours_only: true,
        ..guest("map entries", &[("entries", Libc::Musl)], &["/bin/entries", "/bin/busybox", "/usr/bin/od", "/bin/bash"])
    },
    guest("promises of memory", &[("promises", Libc::Musl)], &["/bin/promises"]),
    Case { cpus: 2, ..guest("promises of memory, two CPUs", &[("promises", Libc::Musl)], &["/bin/promises"]) },
    guest("locking, advice and limits", &[("locking", Libc::Musl)], &["/bin/locking"]),
    guest("System V and POSIX shared memory", &[("sysv", Libc::Musl)], &["/bin/sysv"]),
    guest("out of memory", &[("memory", Libc::Musl)], &["/bin/memory"]),
    Case {
        memory: "96M",
        ..guest("holes in inherited memory", &[("holes", Libc::Musl)], &["/bin/holes"])
    },
    Case {
        disks: &[disks::swap(48)],
        memory: "96M",
        seconds: 600,
        // Linux, too, kills what must go, but as many as it likes.
        ours_only: true,
        expect: &[
            Lacks("FAILED"),
            Contains("2 of 2 cases hold"),
            Contains("the shell goes on"),
            Expect::Told(r"^out of memory: killed process \d+ \(bomb\), \d+ KiB in memory, \d+ KiB on swap"),
        ],
        ..guest("out of memory and swap", &[("bomb", Libc::Musl)], &["/bin/busybox", "sh", "-c", "/bin/bomb; echo the shell goes on"])
    },
    Case {
        disks: &[disks::ext4(128), disks::swap(256)],
        memory: "64M",
        ..guest("files and memory beyond memory", &[("pressure", Libc::Musl)], &["/bin/pressure"])
    },
    Case {
        disks: &[disks::idle_swap(64), disks::blank(32), disks::blank(1).read_only(), disks::ext4(64)],
        memory: "160M",
        seconds: 600,
        ..guest("swap", &[("swap", Libc::Musl)], &["/bin/swap"])
    },
    Case {
        disks: &[
            disks::idle_swap(64).faulty(&[Fault::Read(801), Fault::Read(2002), Fault::Read(2008), Fault::Read(4805)]),
            disks::idle_swap(64).faulty(&[Fault::Write(801), Fault::Write(2002), Fault::Write(2008), Fault::Write(4805)]),
        ],
        memory: "160M",
        seconds: 300,
        ours_only: true,
        ..guest("swap on disks that fail", &[("badswap", Libc::Musl)], &["/bin/badswap"])
    },
    guest("mappings on the host's libc", &[("mappings", Libc::Host)], &["/bin/mappings"]),
    Case {
        disks: &[disks::ext4(32), disks::swap(64)],
        ours_only: true,
        ..guest("page-out on request", &[("pageout", Libc::Musl)], &["/bin/pageout"])
    },
    Case {
        memory: "48M",
        ours_only: true,
        ..guest("memory over-committed without a disk", &[("compressed", Libc::Musl)], &["/bin/compressed"])
    },
    Case {
        // Written in one go: swap takes it as fast as it comes.
        name: "a file in memory that swap has room for",
        command: &[
            "/bin/busybox",
            "sh",
            "-c",
            "mkdir /tmp/m && mount -t tmpfs -o size=200m none /tmp/m && cd /tmp/m && \
             dd if=/dev/zero of=f bs=64k count=2400 2>&1 && ls -s f && rm f && cd / && umount /tmp/m && rmdir /tmp/m",
        ],
        disks: &[disks::swap(256)],
        memory: "64M",
        expect: &[Contains("153600 f")],
        ours_only: true,
        ..CASE
    },
];
