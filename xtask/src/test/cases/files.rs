//! Files, disks, pipes and sockets.

use super::super::disks::{self, TestDisk};
use super::Expect::{Contains, Lacks, Matches};
use super::{guest, Case, CASE};
use crate::guest::Libc;
use crate::qemu::{Board, Clock, Fault};

pub const CASES: &[Case] = &[
    Case {
        disks: &[disks::ext4(96)],
        memory: "48M",
        ours_only: true,
        seconds: 300,
        ..guest("nodes of a disk", &[("nodes", Libc::Musl)], &["/bin/nodes"])
    },
    guest("data that is spliced and sent", &[("splices", Libc::Musl)], &["/bin/splices"]),
    guest("timers, signals and memory as files", &[("asfiles", Libc::Musl)], &["/bin/asfiles"]),
    Case {
        cpus: 4,
        ..guest("timers, signals and memory as files, several CPUs", &[("asfiles", Libc::Host)], &["/bin/asfiles"])
    },
    guest("sets of files", &[("polls", Libc::Musl)], &["/bin/polls"]),
    guest("signals about files", &[("asyncs", Libc::Musl)], &["/bin/asyncs"]),
    Case { cpus: 2, ..guest("signals about files, two CPUs", &[("asyncs", Libc::Musl)], &["/bin/asyncs"]) },
    guest("leases and locks", &[("leases", Libc::Musl)], &["/bin/leases"]),
    Case { cpus: 2, ..guest("leases and locks, two CPUs", &[("leases", Libc::Musl)], &["/bin/leases"]) },
    Case { cpus: 4, ..guest("sets of files, several CPUs", &[("polls", Libc::Musl)], &["/bin/polls"]) },
    Case {
        expect: &[super::Expect::Exactly(include_str!("../../../guest/halves.linux"))],
        ..guest("buffers of which a part is bad", &[("halves", Libc::Musl)], &["/bin/halves"])
    },
    guest("pipes and polling", &[("pipes", Libc::Musl)], &["/bin/pipes"]),
    Case {
        name: "sockets leave nothing behind",
        guests: &[("flat", Libc::Musl), ("sockets", Libc::Musl)],
        command: &["/bin/flat", "2048", "/bin/sockets"],
        expect: &[Lacks("FAILED"), Contains("memory is as before")],
        cpus: 2,
        seconds: 300,
        ours_only: true,
        ..CASE
    },
    guest("sockets", &[("sockets", Libc::Musl)], &["/bin/sockets"]),
    guest("files", &[("files", Libc::Musl)], &["/bin/files"]),
    guest("things in things", &[("depths", Libc::Musl)], &["/bin/depths"]),
    Case {
        disks: &[disks::ext4(64)],
        seconds: 300,
        ..guest("files on a disk", &[("ext4", Libc::Musl)], &["/bin/ext4"])
    },
    Case {
        disks: &[disks::ext4(32).lists()],
        ..guest("access lists of files on a disk", &[("lists", Libc::Musl)], &["/bin/lists"])
    },
    Case {
        disks: &[disks::ext4(64).blocks(4096)],
        seconds: 300,
        ..guest("files on a disk with blocks of a page", &[("ext4", Libc::Musl)], &["/bin/ext4"])
    },
    Case {
        disks: &[disks::ext4(256).blocks(4096)],
        seconds: 300,
        ..guest("requests for metadata", &[("metadata", Libc::Musl)], &["/bin/metadata"])
    },
    Case {
        disks: &[disks::ext4(256).blocks(4096)],
        clock: Clock::Instructions,
        seconds: 300,
        ..guest("requests and time for metadata", &[("metadata", Libc::Musl)], &["/bin/metadata", "time"])
    },
    Case {
        disks: &[disks::ext4(64).without_indexes()],
        cpus: 4,
        seconds: 300,
        ..guest("names in a large folder without an index", &[("names", Libc::Musl)], &["/bin/names"])
    },
    Case {
        disks: &[disks::ext4(64)],
        cpus: 4,
        seconds: 300,
        ..guest("names in a large folder", &[("names", Libc::Musl)], &["/bin/names"])
    },
    Case {
        disks: &[disks::ext4(256)],
        clock: Clock::Instructions,
        ..guest("fsync of a byte", &[("fsyncs", Libc::Musl)], &["/bin/fsyncs"])
    },
    Case {
        disks: &[disks::ext4(64)],
        seconds: 300,
        ..guest("files past the cache", &[("direct", Libc::Musl)], &["/bin/direct"])
    },
    Case {
        disks: &[disks::ext4(64).blocks(4096)],
        cpus: 4,
        seconds: 300,
        ..guest("files past the cache, blocks of a page, several CPUs", &[("direct", Libc::Musl)], &["/bin/direct"])
    },
    Case {
        disks: &[disks::ext4(64)],
        cpus: 4,
        seconds: 300,
        ..guest("files on a disk, several CPUs", &[("ext4", Libc::Musl)], &["/bin/ext4"])
    },
    Case {
        disks: &[disks::ext4(32).faulty(&[Fault::WriteOnce(10_000), Fault::Write(10_800), Fault::Read(20_000)])],
        // Linux puts files elsewhere, and none on the bad sectors.
        ours_only: true,
        ..guest("files on a disk with faults", &[("faulty", Libc::Musl)], &["/bin/faulty"])
    },
    Case {
        disks: &[disks::ext4(32)],
        ..guest("the same calls on a disk", &[("files", Libc::Musl)], &["/bin/busybox", "env", "FILES_AT=/mnt", "/bin/files"])
    },
    Case { disks: DISKS, ..guest("disks", &[("disks", Libc::Musl)], &["/bin/disks"]) },
    Case {
        name: "disks interrupt all CPUs",
        cpus: 2,
        disks: DISKS,
        ours_only: true,
        command: &[
            "/bin/busybox",
            "sh",
            "-c",
            "for disk in vda vdb; do dd if=/dev/$disk of=/dev/null bs=4k count=64 2>/dev/null; done; cat /proc/interrupts",
        ],
        expect: &[Matches(r"(?s)CPU0 +CPU1\n.*: +[1-9]\d* +\d+  vda\n.*: +\d+ +[1-9]\d*  vdb\n")],
        ..CASE
    },
    Case {
        disks: DISKS,
        board: Board::Microvm,
        ours_only: true,
        ..guest("disks of a microvm", &[("disks", Libc::Musl)], &["/bin/disks"])
    },
];

/// What `disks.c` expects: one to write, one to read, one with a sector that can't be read and one
/// that can't be written.
const DISKS: &[TestDisk] = &[
    disks::blank(8),
    disks::blank(1).read_only(),
    disks::blank(4).faulty(&[Fault::Read(2001), Fault::Write(4003)]),
];
