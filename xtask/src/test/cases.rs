//! The kernel's acceptance tests, as a table: what runs, what it gets to read, what must come of
//! it.
//!
//! Long cases stand first, since two machines take them from the front.

use super::disks::{self, TestDisk};
use super::prepare::{self, Preparation};
use crate::guest::Libc;
use crate::qemu::{Board, Clock, Display, Fault};
use crate::session::{Input, Step};

pub struct Case {
    pub name: &'static str,
    pub command: &'static [&'static str],
    /// C programs of `xtask/guest`, put into /bin.
    pub guests: &'static [(&'static str, Libc)],
    /// As in `--add`.
    pub add: &'static [&'static str],
    pub prepare: Preparation,
    pub input: Input,
    /// For the kernel's command line.
    pub words: &'static [&'static str],
    /// /dev/vda, /dev/vdb, ...
    pub disks: &'static [TestDisk],
    pub display: Display,
    pub expect: &'static [Expect],
    /// The exit code that it must end with.
    pub code: u8,
    pub memory: &'static str,
    pub cpus: u32,
    /// What the guest's time counts: with instructions it is the same in each run, whatever the
    /// host does besides.
    pub clock: Clock,
    pub board: Board,
    /// It hangs if it runs several times longer than this.
    pub seconds: u64,
    /// Linux does not have what it tests.
    pub ours_only: bool,
    pub leftover: Leftover,
}

/// What of the memory in use may be left when a case's program has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Leftover {
    /// Nothing: it runs under `xtask/guest/leftover.c`, on our kernel.
    None,
    /// That isn't looked at: the program must be the first process, or says something about the
    /// machine from its start on.
    Unwatched,
}

pub enum Expect {
    /// The whole output.
    Exactly(&'static str),
    Contains(&'static str),
    Lacks(&'static str),
    /// A regular expression.
    Matches(&'static str),
    /// What the preparation found out on this machine.
    Prepared,
    /// A kernel panic with this message and a back-trace.
    Panic(&'static str),
    /// So many CPUs have said where they are, each with a back-trace.
    Stacks(usize),
    /// One line of what the kernel tells beside the output, as a regular expression.
    Told(&'static str),
}

use Expect::{Contains, Exactly, Lacks, Matches};
use Step::{Expect as Wait, Type};

/// What most cases have in common.
pub const CASE: Case = Case {
    name: "",
    command: &[],
    guests: &[],
    add: &[],
    prepare: prepare::nothing,
    input: Input::Nothing,
    words: &[],
    disks: &[],
    display: Display::Absent,
    expect: &[],
    code: 0,
    memory: "512M",
    cpus: 1,
    clock: Clock::Wall,
    board: Board::Q35,
    seconds: 120,
    ours_only: false,
    leftover: Leftover::None,
};

impl Case {
    pub fn full_name(&self) -> String {
        format!("kernel/{}", self.name)
    }
}

/// A guest test program that judges itself, linked statically with musl.
pub const fn guest(
    name: &'static str,
    programs: &'static [(&'static str, Libc)],
    command: &'static [&'static str],
) -> Case {
    Case {
        name,
        guests: programs,
        command,
        expect: &[Lacks("FAILED"), Contains("cases hold")],
        ..CASE
    }
}

/// About the program that looks for memory left in use, which runs by itself here.
const fn left(name: &'static str, command: &'static [&'static str]) -> Case {
    Case {
        name,
        guests: &[("leftover", Libc::Musl)],
        command,
        ours_only: true,
        leftover: Leftover::Unwatched,
        ..CASE
    }
}

/// So many pairs of programs that move data, and are killed; twice, and the second time must leave
/// memory as it was.
pub const fn killed(name: &'static str, cpus: u32, command: &'static [&'static str]) -> Case {
    Case {
        name,
        guests: &[("kills", Libc::Musl), ("flat", Libc::Musl)],
        command,
        cpus,
        seconds: 600,
        expect: &[Contains(", 0 wrong"), Contains("memory is as before"), Lacks("FAILED")],
        ..CASE
    }
}

pub const CASES: &[Case] = &[
    Case {
        name: "gcc compiles and runs hello world",
        command: &["/bin/busybox", "sh", "-c", "cd /root && gcc -O2 -o hello hello.c && ./hello"],
        prepare: prepare::compiler,
        expect: &[Exactly("hello, world\n")],
        code: 42,
        memory: "1G",
        seconds: 300,
        ..CASE
    },
    Case {
        seconds: 300,
        expect: &[Contains("the kernel stands"), Lacks("FAILED")],
        ..guest("system call fuzzer", &[("fuzz", Libc::Musl)], &["/bin/fuzz", "60"])
    },
    Case {
        seconds: 60,
        prepare: prepare::kept_programs,
        memory: "128M",
        expect: &[Matches(r"[1-9]\d+ programs ran"), Contains("the kernel stands"), Lacks("FAILED")],
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
        name: "python with multiprocessing",
        command: &["python3", "-c", PYTHON_PROCESSES],
        expect: &[Exactly("[0, 1, 4, 9, 16, 25, 36, 49]\n[('child', 7)]\n")],
        seconds: 300,
        ..CASE
    },
    Case {
        name: "python with sockets",
        command: &["python3", "-c", PYTHON_SOCKETS],
        expect: &[Exactly("{'a': 1}\nhello over http\n[(4, b'udp')]\n")],
        seconds: 300,
        ours_only: true,
        ..CASE
    },
    Case {
        name: "python with threads",
        command: &["python3", "-c", PYTHON_THREADS],
        expect: &[Exactly("8000 [0, 1, 2, 3, 4, 5, 6, 7]\n{\"ok\": 499500}\nhello\n")],
        code: 6,
        seconds: 300,
        ..CASE
    },
    Case {
        name: "sort of ten million bytes",
        command: &["/bin/bash", "-c", "LC_ALL=C sort /data/unsorted.txt >/tmp/sorted && cksum </tmp/sorted"],
        add: &["/usr/bin/sort", "/usr/bin/cksum"],
        prepare: prepare::data_to_sort,
        expect: &[Expect::Prepared],
        seconds: 300,
        ..CASE
    },
    Case {
        name: "example: a secret kept from children",
        guests: &[("secret", Libc::Musl)],
        command: &["/bin/secret"],
        expect: &[Exactly("the child counted to 1 and did not see the secret\n")],
        ..CASE
    },
    Case {
        name: "example: pages donated through a pipe",
        guests: &[("donate", Libc::Musl)],
        command: &["/bin/donate"],
        expect: &[Exactly("4 images came, 0 bytes of them wrong\n")],
        ..CASE
    },
    Case {
        name: "example: a table passed to a child",
        guests: &[("pass", Libc::Musl)],
        command: &["/bin/pass"],
        expect: &[Exactly("1048576 rows came, 0 of them wrong\n")],
        ..CASE
    },
    Case {
        expect: &[Exactly(include_str!("../../guest/rights.linux"))],
        seconds: 300,
        ..guest("rights to files", &[("rights", Libc::Musl)], &["/bin/rights"])
    },
    Case {
        expect: &[Exactly(include_str!("../../guest/trust.linux"))],
        seconds: 300,
        ..guest("rights to processes", &[("trust", Libc::Musl)], &["/bin/trust"])
    },
    Case {
        expect: &[Exactly(include_str!("../../guest/asks.linux"))],
        seconds: 300,
        ..guest("capabilities that calls ask for", &[("asks", Libc::Musl)], &["/bin/asks"])
    },
    Case {
        expect: &[Exactly(include_str!("../../guest/edges.linux"))],
        ..guest("numbers at the edges", &[("edges", Libc::Musl)], &["/bin/edges"])
    },
    Case {
        expect: &[Exactly(include_str!("../../guest/ids.linux"))],
        seconds: 300,
        ..guest("ids and capabilities", &[("ids", Libc::Musl)], &["/bin/ids"])
    },
    Case { memory: "128M", ..guest("texts of /proc", &[("proctext", Libc::Musl)], &["/bin/proctext"]) },
    guest("ways into the kernel and back", &[("doors", Libc::Musl)], &["/bin/doors"]),
    Case { cpus: 4, ..guest("ways into the kernel and back, several CPUs", &[("doors", Libc::Musl)], &["/bin/doors"]) },
    guest("faults", &[("faults", Libc::Musl)], &["/bin/faults"]),
    guest("mappings", &[("mappings", Libc::Musl)], &["/bin/mappings"]),
    Case { seconds: 300, ..guest("orders of mappings", &[("orders", Libc::Musl)], &["/bin/orders"]) },
    guest("growth of mappings", &[("growth", Libc::Musl)], &["/bin/growth"]),
    Case { ours_only: true, ..guest("inheritance", &[("inherit", Libc::Musl)], &["/bin/inherit"]) },
    guest("pointers", &[("pointers", Libc::Musl)], &["/bin/pointers"]),
    guest("processes", &[("processes", Libc::Musl)], &["/bin/processes"]),
    guest("limits", &[("limits", Libc::Musl)], &["/bin/limits"]),
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
    Case {
        disks: &[disks::ext4(96)],
        memory: "48M",
        ours_only: true,
        seconds: 300,
        ..guest("nodes of a disk", &[("nodes", Libc::Musl)], &["/bin/nodes"])
    },
    guest("signals", &[("signals", Libc::Musl)], &["/bin/signals"]),
    guest("threads", &[("threads", Libc::Musl)], &["/bin/threads"]),
    guest("a debugger's calls", &[("traces", Libc::Musl)], &["/bin/traces"]),
    Case { cpus: 4, ..guest("a debugger's calls, several CPUs", &[("traces", Libc::Musl)], &["/bin/traces"]) },
    guest("data that is spliced and sent", &[("splices", Libc::Musl)], &["/bin/splices"]),
    guest("memory that moves", &[("moving", Libc::Musl)], &["/bin/moving"]),
    Case {
        memory: "64M",
        disks: &[disks::swap(128)],
        ours_only: true,
        ..guest("memory that moves, and is short", &[("moving", Libc::Musl)], &["/bin/moving"])
    },
    killed("senders and receivers that are killed", 1, &["/bin/flat", "1024", "/bin/kills", "300"]),
    killed("senders and receivers that are killed, several CPUs", 4, &["/bin/flat", "4096", "/bin/kills", "300"]),
    Case { cpus: 4, ..guest("memory that moves, several CPUs", &[("moving", Libc::Musl)], &["/bin/moving"]) },
    guest("timers, signals and memory as files", &[("asfiles", Libc::Musl)], &["/bin/asfiles"]),
    Case {
        cpus: 4,
        ..guest("timers, signals and memory as files, several CPUs", &[("asfiles", Libc::Host)], &["/bin/asfiles"])
    },
    guest("sets of files", &[("polls", Libc::Musl)], &["/bin/polls"]),
    Case { cpus: 4, ..guest("sets of files, several CPUs", &[("polls", Libc::Musl)], &["/bin/polls"]) },
    Case { cpus: 4, ..guest("several CPUs", &[("cpus", Libc::Musl)], &["/bin/cpus"]) },
    Case {
        cpus: 4,
        // Linux's CPUs spin for each other's answers: on a busy host that takes longer than a case
        // may.
        ours_only: true,
        ..guest("threads on several CPUs", &[("threads", Libc::Musl)], &["/bin/threads"])
    },
    Case { cpus: 4, ..guest("signals on several CPUs", &[("signals", Libc::Musl)], &["/bin/signals"]) },
    Case { cpus: 4, ..guest("processes on several CPUs", &[("processes", Libc::Musl)], &["/bin/processes"]) },
    Case {
        cpus: 4,
        seconds: 300,
        ours_only: true,
        ..guest("shootdowns", &[("shootdowns", Libc::Musl)], &["/bin/shootdowns"])
    },
    Case { cpus: 4, ..guest("windows of mappings", &[("windows", Libc::Musl)], &["/bin/windows"]) },
    Case {
        cpus: 2,
        seconds: 300,
        ..guest("spies on programs that may not be read", &[("spies", Libc::Musl)], &["/bin/spies"])
    },
    Case { cpus: 3, seconds: 300, ..guest("races", &[("races", Libc::Musl)], &["/bin/races"]) },
    Case {
        cpus: 2,
        memory: "64M",
        ..guest("pages that become tables", &[("races", Libc::Musl)], &["/bin/races", "little"])
    },
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
        ..guest("latency beside crowds, two CPUs", &[("latency", Libc::Musl)], &["/bin/latency", "crowds"])
    },
    Case {
        disks: &[disks::ext4(128), disks::idle_swap(96), disks::ext4(256).journal(64)],
        clock: Clock::Instructions,
        memory: "384M",
        seconds: 300,
        ours_only: true,
        ..guest("latency beside calls on disks", &[("latency", Libc::Musl)], &["/bin/latency", "disks"])
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
        name: "threads that map apart leave nothing behind",
        guests: &[("flat", Libc::Musl), ("shootdowns", Libc::Musl)],
        command: &["/bin/flat", "1024", "/bin/shootdowns", "many_whose_threads_map_apart_end"],
        expect: &[Lacks("FAILED"), Contains("memory is as before")],
        cpus: 4,
        seconds: 300,
        ours_only: true,
        ..CASE
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
    guest("files in memory", &[("tmpfs", Libc::Musl)], &["/bin/tmpfs"]),
    Case {
        expect: &[Matches(r"LEFT anon\+shmem\+swap-files: (\d+), \d+\n")],
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
    Case { clock: Clock::Instructions, ..guest("timers of a nanosecond", &[("timers", Libc::Musl)], &["/bin/timers"]) },
    guest("clocks and limits", &[("clocks", Libc::Musl)], &["/bin/clocks"]),
    Case {
        add: &["/usr/bin/od", "/bin/bash"],
        disks: &[disks::blank(8)],
        ours_only: true,
        ..guest("map entries", &[("entries", Libc::Musl)], &["/bin/entries", "/bin/busybox", "/usr/bin/od", "/bin/bash"])
    },
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
        disks: &[disks::ext4(64)],
        seconds: 300,
        ..guest("files on a disk", &[("ext4", Libc::Musl)], &["/bin/ext4"])
    },
    Case {
        expect: &[Lacks("FAILED"), Contains("the terminal holds")],
        ..guest("sessions and the terminal", &[("sessions", Libc::Musl)], &["/bin/sessions"])
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
        disks: &[disks::ext4(128), disks::swap(256)],
        memory: "64M",
        ..guest("files and memory beyond memory", &[("pressure", Libc::Musl)], &["/bin/pressure"])
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
    guest("signals on the host's libc", &[("signals", Libc::Host)], &["/bin/signals"]),
    Case { cpus: 4, ..guest("several CPUs on the host's libc", &[("cpus", Libc::Host)], &["/bin/cpus"]) },
    guest("threads on the host's libc", &[("threads", Libc::Host)], &["/bin/threads"]),
    Case {
        name: "empty words",
        command: &["/bin/busybox", "sh", "-c", "echo $# [$0] [$1] [$2] [$3]", "", "", "a b", ""],
        expect: &[Exactly("3 [] [] [a b] []\n")],
        ..CASE
    },
    Case {
        name: "a shell ends with its exit code",
        command: &["/bin/busybox", "sh", "-c", "echo hi; ls /; exit 3"],
        expect: &[Matches(r"(?s)^hi\nbin\s.*proc\s.*tmp\s")],
        code: 3,
        ..CASE
    },
    Case {
        name: "a death by signal is told",
        command: &["/bin/busybox", "sh", "-c", "kill -SEGV $$"],
        code: 139,
        ..CASE
    },
    Case {
        name: "shell pipes",
        command: &["/bin/busybox", "sh", "-c", "echo b a c | tr ' ' '\\n' | sort | cat -n | tail -n 2; seq 1 20000 | wc -l; yes | head -n 1"],
        expect: &[Exactly("     2\tb\n     3\tc\n20000\ny\n")],
        ..CASE
    },
    Case {
        name: "shell redirections",
        command: &["/bin/busybox", "sh", "-c", REDIRECTIONS],
        expect: &[Exactly("one\ntwo\n2\nabsent\nby number\nhere 7\n0\n")],
        ..CASE
    },
    Case {
        name: "shell background jobs",
        // The shell says "Terminated" only if the job still lives when it begins to wait: no test
        // of the kernel.
        command: &["/bin/busybox", "sh", "-c", "exec 2>&-; (sleep 0.3; echo late) & echo early; wait; sleep 50 & kill $!; wait $!; echo $?"],
        expect: &[Exactly("early\nlate\n143\n")],
        ..CASE
    },
    Case {
        name: "interactive shell, ^C",
        input: Input::Keys(&[
            Wait("# "),
            Type("echo go; sleep 100\r"),
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
        name: "bash",
        command: &["/bin/bash", "-c", BASH],
        expect: &[Exactly("0 1 4\nz\ndiffer\nHELLO\n3\n")],
        code: 5,
        ..CASE
    },
    Case {
        name: "ls -lR",
        command: &["ls", "-lR", "/etc", "/usr", "/dev"],
        expect: &[Matches(r"(?m)^-rw-r--r-- +1 root root +\d+ .* passwd\r?$"), Matches(r"(?m)^crw.* 1, +3 .* null\r?$")],
        ..CASE
    },
    Case {
        name: "grep",
        command: &["/bin/bash", "-c", "grep -n root /etc/passwd; grep -rl nogroup /etc; grep -c '^[0-9]*7$' <(seq 1000); grep -q nothing /etc/passwd"],
        add: &["/bin/grep", "/usr/bin/seq"],
        expect: &[Exactly("1:root:x:0:0:root:/root:/bin/sh\n/etc/group\n100\n")],
        code: 1,
        ..CASE
    },
    Case {
        name: "tar and gzip",
        command: &["/bin/bash", "-c", TAR],
        add: &["/bin/tar", "/bin/gzip"],
        expect: &[Exactly("same\nintact\n")],
        seconds: 300,
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
    Case {
        name: "more swap than memory can have",
        command: &["/bin/busybox", "sh", "-c", "free | tail -n 1; swapoff /dev/vda && echo off"],
        disks: &[disks::swap(1024)],
        memory: "64M",
        expect: &[
            Matches(r"^uvm: \d+ KiB of 1048572 KiB are swapped on, all that this memory can keep track of\r?\n"),
            Matches(r"Swap: +4\d{5} +0 +4\d{5}\noff\n$"),
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
        name: "locks have no times where nobody asked",
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

/// What `disks.c` expects: one to write, one to read, one with a sector that can't be read and one
/// that can't be written.
const DISKS: &[TestDisk] = &[
    disks::blank(8),
    disks::blank(1).read_only(),
    disks::blank(4).faulty(&[Fault::Read(2001), Fault::Write(4003)]),
];

const REDIRECTIONS: &str =
    "cd /tmp; echo one >f; echo two >>f; cat <f; wc -l <f; ls /nope 2>/dev/null || echo absent; \
exec 3>g; echo by number >&3; exec 3>&-; cat g; x=7; cat <<END
here $x
END
ls /nope >h 2>&1; wc -l </dev/null; test -s h";

const BASH: &str = "for ((i = 0; i < 3; i++)); do printf '%s ' $((i * i)); done | sed 's/ $/\\n/'; a=(x y z); echo ${a[@]: -1}; \
diff <(echo a) <(echo b) >/dev/null || echo differ; s=hello; echo ${s^^}; wc -l <<<$'1\\n2\\n3'; (exit 5)";

const TAR: &str = "cd /tmp && mkdir in out && for i in $(seq 1 60); do seq $i 4000 >in/$i; done && ln -s 1 in/link && chmod 600 in/2 \
&& tar -czf a.tgz in && tar -xzf a.tgz -C out && diff -r in out/in && echo same && gzip -t a.tgz && [ -L out/in/link ] \
&& [ $(stat -c %a out/in/2) = 600 ] && echo intact";

const PROC: &str = "cat /proc/self/maps /proc/self/status /proc/meminfo /proc/vmstat; tr '\\0' ' ' </proc/self/cmdline; ls /proc/1";

const PYTHON_THREADS: &str = "
import threading, queue, json, subprocess, sys
total, lock, q = 0, threading.Lock(), queue.Queue()
def work(n):
    global total
    for _ in range(1000):
        with lock: total += 1
    q.put(n)
threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
print(total, sorted(q.get() for _ in threads))
print(json.dumps({'ok': sum(range(1000))}), flush=True)
subprocess.run(['/bin/busybox', 'echo', 'hello'], check=True)
sys.exit(6)";

/// A server behind a local name, one behind `localhost`, and datagrams. Linux comes up here without
/// its loopback.
const PYTHON_SOCKETS: &str = "
import multiprocessing as mp, threading, http.server, urllib.request, socket
mp.set_start_method('fork')
with mp.Manager() as manager:
    d = manager.dict(); p = mp.Process(target=d.update, args=({'a': 1},)); p.start(); p.join(); print(dict(d))
class Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b'hello over http')
    def log_message(self, *args): pass
server = http.server.ThreadingHTTPServer(('localhost', 0), Hello)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(urllib.request.urlopen('http://localhost:%d/' % server.server_port).read().decode())
a, b = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
a.bind(('localhost', 0)); b.sendto(b'udp', a.getsockname()); data, _ = a.recvfrom(9)
print([(a.family + 2, data)])";

const PYTHON_PROCESSES: &str = "
import multiprocessing as mp
def square(x): return x * x
def child(q): q.put(('child', 7))
mp.set_start_method('fork')
with mp.Pool(4) as pool: print(pool.map(square, range(8)))
q = mp.Queue(); p = mp.Process(target=child, args=(q,)); p.start()
print([q.get()]); p.join()";
