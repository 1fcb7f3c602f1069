//! `./uvm bench smp`: what a second CPU brings, ours beside Linux on the same machine with two.
//!
//! Each run has a machine that has just booted; the kernels take turns, so that what else this machine does falls on both alike. A
//! row's second CPU is measured right after its first, and their ratio is taken run by run. How busy this machine was stands under
//! the table, and the first rows, in which no kernel takes part, say what it gave to two CPUs at best.

use super::load::Watch;
use super::samples::{Said, Samples};
use super::{about, bars, report, table, Document};
use crate::qemu::{Board, Clock, Display, Ending, Kernel, Machine};
use crate::run::{self, Root};
use crate::session::{self, Input};
use crate::{guest, ui};
use anyhow::{bail, Context, Result};
use clap::Args;
use std::time::Duration;

#[derive(Args)]
pub struct SmpArgs {
    /// Print one JSON document instead of the table.
    #[arg(long)]
    json: bool,
    /// How often each row is measured.
    #[arg(long, default_value_t = 7, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    runs: u64,
    /// Only the operations whose name contains this: `anonymous fault`, `resident file fault`, `mmap, touch, munmap`,
    /// `fork, exit, wait`, `a loop without the kernel`.
    filter: Option<String>,
}

const LIMIT: Duration = Duration::from_secs(300);
const SYSTEMS: [(Kernel, &str); 2] = [(Kernel::Uvm, "uvm"), (Kernel::Linux, "linux")];

/// What `bench/smp.c` calls its workers: one, and two.
pub const WORKERS: [(&str, &str); 2] = [("one process", "two processes"), ("one thread", "two threads")];
/// The operation that no kernel takes part in.
pub const NO_KERNEL: &str = "a loop without the kernel";

pub fn smp(args: &SmpArgs) -> Result<u8> {
    let (mut samples, mut complete, mut machine) = (Samples::default(), true, None);
    let mut watch = Watch::begin();
    ui::say(&format!("measuring two CPUs, {} times on each kernel", args.runs));
    for _ in 0..args.runs {
        for (kernel, system) in SYSTEMS {
            let (used, whole) = measure(kernel, system, args.filter.as_deref(), &mut samples)?;
            complete &= whole;
            machine = Some(used);
            watch.look();
        }
    }
    if samples.is_empty() {
        bail!(
            "nothing was measured (the name of no operation contains `{}`?)",
            args.filter.as_deref().unwrap_or("")
        );
    }
    let machine = about::machine(&machine.context("nothing was measured")?);
    let about = format!(
        "Each run on a machine that has just booted (bench/smp.c):\n{machine}\n{}\n{watch}",
        about::host()
    );
    let document = Document { about, rows: samples.rows() };
    let page = report::keep("smp", &document)?;
    if args.json {
        println!("{}", serde_json::to_string(&document)?);
    } else {
        print!("{}", table::render(&document, |name| bars::verdict(&document, name)));
        println!("{}\nAs a page: {}", document.about, page.display());
    }
    Ok(if complete { 0 } else { 1 })
}

/// Boots one kernel once; adds what it measured. Says whether it came to its end.
fn measure(
    kernel: Kernel,
    system: &'static str,
    filter: Option<&str>,
    samples: &mut Samples,
) -> Result<(Machine, bool)> {
    let folder = tempfile::tempdir().context("can't make a temporary folder")?;
    let mut image = crate::image::Image::minimal()?;
    image.program(&guest::compile("smp", guest::Libc::Musl)?, "/bin/smp")?;
    let mut machine = Machine {
        board: Board::Q35,
        clock: Clock::Wall,
        cpu: "qemu64",
        memory: "512".to_owned(),
        cpus: 2,
        kernel: run::kernel_path(kernel)?,
        initrd: folder.path().join("root.cpio"),
        command_line: String::new(),
        plugin: None,
        display: Display::Absent,
        disks: Vec::new(),
    };
    let mut command = vec!["/bin/smp".to_owned()];
    command.extend(filter.map(str::to_owned));
    run::prepare(&mut machine, kernel, Root { image, command }, &Input::Nothing.words())?;
    let finished = session::capture(&machine, Input::Nothing, LIMIT)?;
    let Said { failures, ended } = samples.gather(system, &finished.output);
    for failure in &failures {
        ui::say(&format!("{system} could not do: {failure}"));
    }
    if !ended || !matches!(finished.ending, Ending::Exited(0)) {
        run::explain(&finished.ending, &finished.report, &machine.kernel);
        ui::say(&format!("{system} stopped before the end ({:?})", finished.ending));
        return Ok((machine, false));
    }
    Ok((machine, failures.is_empty()))
}
