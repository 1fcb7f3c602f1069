//! `./uvm bench smp`: what a second CPU brings, ours beside Linux on the same machine with two.
//!
//! Each run has a machine that has just booted; the kernels take turns, so that what else this
//! machine does falls on both alike. A row's second CPU is measured right after its first, and
//! their ratio is taken run by run. How busy this machine was stands under the table, and the first
//! rows, in which no kernel takes part, say what it gave to two CPUs at best. Nor do two machines
//! with one process each share anything but the host: what they do together is what one machine
//! could do at best. And a program without a kernel takes exceptions as often as each kernel did
//! (`bare`): what QEMU lets two CPUs do that take so many.

use super::kept::{Bench, Extent};
use super::load::Watch;
use super::output::Output;
use super::samples::{Said, Samples};
use super::{about, bare, bars, names, Document, Row};
use crate::pack::Root;
use crate::qemu::{Ending, Kernel, Machine};
use crate::run;
use crate::session::{self, Finished, Input};
use crate::{guest, ui};
use anyhow::{anyhow, bail, Context, Result};
use clap::Args;
use std::time::Duration;

#[derive(Args)]
pub struct SmpArgs {
    #[command(flatten)]
    output: Output,
    /// How often each row is measured.
    #[arg(long, default_value_t = 7, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    runs: u64,
    /// Only the operations whose name contains this: `anonymous fault`, `first touch, upwards`,
    /// `resident file fault`, `mmap, touch, munmap`, `fork, exit, wait`, `a loop without the
    /// kernel`.
    filter: Option<String>,
}

const LIMIT: Duration = Duration::from_secs(300);
const SYSTEMS: [(Kernel, &str); 2] = [(Kernel::Uvm, "uvm"), (Kernel::Linux, "linux")];

/// What `bench/smp.c` calls its workers: one, and two.
pub const WORKERS: [(&str, &str); 2] =
    [("one process", "two processes"), ("one thread", "two threads")];
/// What it calls a machine that another one runs beside.
const ONE_MACHINE: &str = ": one machine of two";
/// How the rows end that say what two machines do at once, against one process.
pub const TWO_MACHINES: &str = ": two machines / one";
/// The operation that no kernel takes part in.
pub const NO_KERNEL: &str = "a loop without the kernel";

pub fn smp(args: &SmpArgs) -> Result<u8> {
    if let Some(code) =
        args.output.list_or_check(Bench::Smp, args.filter.as_deref(), &names::of("smp")?)
    {
        return Ok(code);
    }
    let (mut samples, mut complete, mut machine) = (Samples::default(), true, None);
    let mut watch = Watch::begin();
    ui::say(&format!("measuring two CPUs, {} times on each kernel", args.runs));
    for _ in 0..args.runs {
        for (kernel, system) in SYSTEMS {
            let filter = args.filter.as_deref().unwrap_or_default();
            let one = Guest::new(kernel, &[filter])?;
            let own = one.run(system)?;
            complete &= own.is_whole;
            samples.gather(system, &own.output);
            samples.gather(system, &bare::beside(&own.output)?);
            let pair =
                [Guest::new(kernel, &[filter, "alone"])?, Guest::new(kernel, &[filter, "alone"])?];
            let pair = run_both(&pair, system)?;
            complete &= pair.iter().all(|run| run.is_whole);
            samples.gather(system, &two_machines(system, &own, &pair));
            machine = Some(one.machine);
            watch.look();
        }
    }
    if samples.is_empty() {
        bail!("nothing was measured");
    }
    let machine = about::machine(&machine.context("nothing was measured")?);
    let about = format!(
        "Each run on a machine that has just booted (bench/smp.c):\n{machine}\n{}\n{watch}",
        about::host()
    );
    let document = Document { about, rows: samples.rows() };
    args.output.show(Bench::Smp, &document, Extent::of(args.filter.as_ref()), |name| {
        bars::verdict(&document, name)
    })?;
    Ok(if complete { 0 } else { 1 })
}

/// A machine that is about to boot, and the folder with its root file system.
struct Guest {
    machine: Machine,
    _folder: tempfile::TempDir,
}

/// What a machine printed.
struct Run {
    output: String,
    /// Whether it came to its end, with nothing that it could not do.
    is_whole: bool,
}

impl Guest {
    fn new(kernel: Kernel, arguments: &[&str]) -> Result<Guest> {
        let folder = tempfile::tempdir().context("can't make a temporary folder")?;
        let mut image = crate::image::Image::minimal()?;
        image.program(&guest::compile("smp", guest::Libc::Musl)?, "/bin/smp")?;
        let mut machine = Machine {
            cpu: "qemu64",
            memory: "512".to_owned(),
            cpus: 2,
            kernel: run::kernel_path(kernel)?,
            ..Machine::new(folder.path().join("root.cpio"))
        };
        let command = ["/bin/smp"].iter().chain(arguments).map(|&word| word.to_owned()).collect();
        run::prepare(&mut machine, kernel, Root { image, command }, &Input::Nothing.words())?;
        Ok(Guest { machine, _folder: folder })
    }

    /// Boots it once, each of its CPUs on one of the host's.
    fn run(&self, system: &str) -> Result<Run> {
        self.judge(system, session::capture_apart(&self.machine, LIMIT)?)
    }

    /// Boots it once beside another machine, wherever the host runs it.
    fn run_beside(&self, system: &str) -> Result<Run> {
        self.judge(system, session::capture(&self.machine, Input::Nothing, LIMIT)?)
    }

    fn judge(&self, system: &str, finished: Finished) -> Result<Run> {
        let Said { failures, ended } = Samples::default().gather("", &finished.output);
        for failure in &failures {
            ui::say(&format!("{system} could not do: {failure}"));
        }
        let at_end = ended && matches!(finished.ending, Ending::Exited(0));
        if !at_end {
            run::explain(&finished.ending, &finished.report, &self.machine.kernel);
            ui::say(&format!("{system} stopped before the end ({:?})", finished.ending));
        }
        Ok(Run { output: finished.output, is_whole: at_end && failures.is_empty() })
    }
}

/// Boots two machines at once.
fn run_both(pair: &[Guest; 2], system: &str) -> Result<[Run; 2]> {
    std::thread::scope(|scope| {
        let second = scope.spawn(|| pair[1].run_beside(system));
        let first = pair[0].run_beside(system)?;
        let second =
            second.join().map_err(|_| anyhow!("the thread of a machine has panicked"))??;
        Ok([first, second])
    })
}

/// What two machines with one process each did, as lines of a run: their sum, and that by what one
/// process did alone.
fn two_machines(system: &'static str, own: &Run, pair: &[Run; 2]) -> String {
    let rates = |run: &Run| {
        let mut samples = Samples::default();
        samples.gather(system, &run.output);
        samples.rows()
    };
    let (own, second) = (rates(own), rates(&pair[1]));
    let value =
        |rows: &[Row], name: &str| rows.iter().find(|row| row.name == name).map(|row| row.value);
    let mut lines = String::new();
    for first in rates(&pair[0]) {
        let Some(operation) = first.name.strip_suffix(ONE_MACHINE) else { continue };
        let one = value(&own, &format!("{operation}: one process"));
        if let (Some(second), Some(one)) = (value(&second, &first.name), one) {
            let both = first.value + second;
            lines += &format!("value|{operation}: two machines|/s|{both:.1}\n");
            lines += &format!("value|{operation}{TWO_MACHINES}|times|{:.4}\n", both / one);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_machines_do_the_sum_of_what_each_does() {
        let run = |output: &str| Run { output: output.to_owned(), is_whole: true };
        let own = run("value|a: one process|/s|10.0\nvalue|b: one process|/s|1.0\nend\n");
        let pair =
            [9.0, 10.0].map(|rate| run(&format!("value|a: one machine of two|/s|{rate}\nend\n")));
        let lines = two_machines("uvm", &own, &pair);
        assert_eq!(
            lines,
            "value|a: two machines|/s|19.0\nvalue|a: two machines / one|times|1.9000\n"
        );
    }
}
