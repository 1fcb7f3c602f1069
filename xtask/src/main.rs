//! The engine behind `./uvm`: builds the kernel, packs programs into a root file system, boots it
//! in QEMU, tests, measures.
//!
//! Place: the one front door over every other part of the tree; nothing depends on it. Reading
//! order: [`run`] is the whole story in one function (build, pack, boot, report); [`pack`],
//! [`image`] and [`libs`] make the root file system, [`cpio`] writes it, [`command_line`] tells the
//! kernel what to do, [`accel`] and [`qemu`] start the machine, [`console`] carries the terminal,
//! [`control`] speaks with the kernel's second serial port, [`disk`] makes disks, [`symbols`] names
//! the frames of a panic. [`test`] and [`bench`] are tables on top.
//!
//! Exit codes: the guest program's own; or 1 when a check failed, 2 for a wrong command line, 69
//! when something needed is missing, 70 after a kernel panic, 71 when the machine stopped without a
//! word, 72 when it ran out of time, 141 when its output was closed.
#![forbid(unsafe_code)]

mod accel;
mod bench;
mod build;
mod command_line;
mod companions;
mod console;
mod control;
mod cpio;
mod debian;
mod desk;
mod disk;
mod fuzz;
mod guest;
mod hints;
mod image;
mod libs;
mod linux;
mod pack;
mod qemu;
mod recursion;
mod run;
mod session;
mod share;
mod symbols;
mod test;
mod ui;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// A wrong command line.
pub const EXIT_USAGE: u8 = 2;
/// Something needed is missing or could not be started.
pub const EXIT_UNAVAILABLE: u8 = 69;

#[derive(Parser)]
#[command(
    name = "uvm",
    bin_name = "./uvm",
    about = "Runs unmodified Linux programs on the UVM reference kernel, in QEMU.",
    after_help = EXAMPLES,
    version
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  ./uvm run                                     an interactive shell; Ctrl-A x stops the machine
  ./uvm run -- /bin/bash -c 'ls -lR /etc | wc'  a program of this machine, with the libraries it needs
  ./uvm run --add data.txt:/data.txt -- sort /data.txt
  ./uvm run --root some/folder -- /bin/sh       a whole folder as the root file system
  ./uvm run --root image.ext4 --snapshot        a disk as the root; what is written to it is forgotten
  ./uvm run --disk image.ext4 --swap 1G         a disk on /mnt (image.ext4:ro to read only), and swap
  ./uvm run --mem 64M --swap 256M -- sh         little memory, and a disk to swap on, made for this run
  ./uvm run --user 1000:1000 -- id              as a user who is not root
  ./uvm run --kernel linux -- /bin/ls           the same on Debian's Linux, for comparison
  ./uvm test                                    every check; ./uvm test pipe runs those with `pipe` in their name
  ./uvm test --failed                           the checks that failed when they ran last
  ./uvm bench micro                             instructions per operation, ours beside Linux
  ./uvm bench paging                            memory pressure, swap and mapped files, ours beside Linux
  ./uvm bench smp                               what a second CPU brings, ours beside Linux
  ./uvm bench move                              moving data with and without copies, ours beside Linux
  ./uvm profile 'anonymous fault'               where the instructions of one row go, by function and line
  ./uvm profile --of smp 'fork, exit, wait: two threads'
                                                which of them move cache lines between two CPUs
  ./uvm fuzz --minutes 120 --cpus 2             random system calls; what breaks the kernel goes to target/fuzz
  ./uvm fuzz --replay target/fuzz/found-1.txt   the programs that ran last before it broke
  ./uvm fuzz --desk library --minutes 10        the library, the volume or a parser, by libFuzzer

Exit codes: the program's own; 1 a check failed; 2 wrong command line; 69 something needed is missing;
70 kernel panic; 71 the machine stopped without a word; 72 out of time; 141 its output was closed.";

#[derive(Subcommand)]
enum Command {
    /// Boot the kernel and run a program (without one: an interactive busybox shell).
    Run(run::RunArgs),
    /// Run every check: format, lints, host tests, sanitizers, and the kernel tests in QEMU.
    Test(test::TestArgs),
    /// Measure.
    #[command(subcommand, after_help = bench::HELP)]
    Bench(bench::BenchCommand),
    /// Tell where the kernel's instructions go in one row of `bench micro`.
    Profile(bench::ProfileArgs),
    /// Search for system calls that break the kernel: random programs of two users, guided by what
    /// they reach.
    Fuzz(fuzz::FuzzArgs),
    /// Build the kernel and print where it is.
    Kernel,
}

/// Ends the command without a word when the reader of its output has gone, as `head` does.
fn end_with_the_reader() {
    /// What a shell says of a program that SIGPIPE ended.
    const SIGPIPE_ENDED: i32 = 128 + 13;
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str().is_some_and(|why| why.contains("Broken pipe")) {
            std::process::exit(SIGPIPE_ENDED);
        }
        report(panic);
    }));
}

fn main() -> ExitCode {
    end_with_the_reader();
    let result = match hints::parsed::<Cli>().command {
        Command::Run(args) => run::run(&args),
        Command::Test(args) => test::test(&args),
        Command::Bench(bench::BenchCommand::Micro(args)) => bench::micro(&args),
        Command::Bench(bench::BenchCommand::Paging(args)) => bench::paging(&args),
        Command::Bench(bench::BenchCommand::Smp(args)) => bench::smp(&args),
        Command::Bench(bench::BenchCommand::SfBuf(args)) => bench::sf_buf(&args),
        Command::Bench(bench::BenchCommand::Move(args)) => bench::moving(&args),
        Command::Profile(args) => bench::profile(&args),
        Command::Fuzz(args) => fuzz::fuzz(&args),
        Command::Kernel => build::kernel().map(|path| {
            println!("{}", path.display());
            0
        }),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            ui::say(&format!("{error:#}"));
            ExitCode::from(EXIT_UNAVAILABLE)
        }
    }
}
