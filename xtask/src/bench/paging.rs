//! `./uvm bench paging`: what paging costs, ours beside Linux on the same machine with the same
//! disks.
//!
//! Each run of a workload has a machine that has just booted; the kernels take turns, so that what
//! else this machine does falls on both alike. Times are wall time: disks know no instructions.

use super::kept::{Bench, Extent};
use super::output::Output;
use super::samples::Samples;
use super::workloads::{self, Repeat, Systems, Workload};
use super::{about, bars, Document};
use crate::qemu::{Ending, Kernel, Machine};
use crate::session::{self, Input};
use crate::{guest, ui};
use crate::{pack, run};
use anyhow::{Context, Result};
use clap::Args;
use std::time::Duration;

#[derive(Args)]
pub struct PagingArgs {
    #[command(flatten)]
    output: Output,
    /// How often what takes time is measured (what is counted comes out the same each time).
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    runs: u64,
    /// Only the workloads whose name contains this: `write 2x of memory`, `compressed pages`, `read
    /// mapped files`, `map 100 files`, `page faults`, `map entries`, `metadata`, `room in 64 MiB`.
    filter: Option<String>,
}

const LIMIT: Duration = Duration::from_secs(600);
const SYSTEMS: [(Kernel, &str); 2] = [(Kernel::Uvm, "uvm"), (Kernel::Linux, "linux")];

pub fn paging(args: &PagingArgs) -> Result<u8> {
    let wanted = |workload: &&Workload| {
        args.filter.as_ref().is_none_or(|filter| workload.name.contains(filter.as_str()))
    };
    let all = workloads::all();
    let all_names: Vec<String> = all.iter().map(|workload| workload.name.clone()).collect();
    if let Some(code) = args.output.list_or_check(Bench::Paging, args.filter.as_deref(), &all_names)
    {
        return Ok(code);
    }
    let chosen: Vec<&Workload> = all.iter().filter(wanted).collect();
    let (mut samples, mut complete, mut machine) = (Samples::default(), true, None);
    for workload in chosen {
        let runs = if workload.repeat == Repeat::Once { 1 } else { args.runs };
        ui::say(&format!("measuring: {}, {runs} times on each kernel", workload.name));
        for _ in 0..runs {
            let systems =
                if workload.systems == Systems::Both { &SYSTEMS[..] } else { &SYSTEMS[..1] };
            for (kernel, system) in systems.iter().copied() {
                let (used, whole) = measure(workload, kernel, system, &mut samples)?;
                complete &= whole;
                // One with disks tells more.
                if machine.as_ref().is_none_or(|old: &Machine| old.disks.len() < used.disks.len()) {
                    machine = Some(used);
                }
            }
        }
    }
    let machine = about::machine(&machine.context("nothing was measured")?);
    let about = format!(
        "Each run on a machine that has just booted, with memory and disks as the workload needs them (bench/paging.c, \
         xtask/src/bench/workloads.rs), for example:\n{machine}\n{}",
        about::host()
    );
    let document = Document { about, rows: samples.rows() };
    args.output.show(Bench::Paging, &document, Extent::of(args.filter.as_ref()), |name| {
        bars::verdict(&document, name)
    })?;
    Ok(if complete { 0 } else { 1 })
}

/// Boots one kernel with one workload; adds what it measured. Says whether it came to its end.
fn measure(
    workload: &Workload,
    kernel: Kernel,
    system: &'static str,
    samples: &mut Samples,
) -> Result<(Machine, bool)> {
    let folder = tempfile::tempdir().context("can't make a temporary folder")?;
    let disks = workloads::disks(workload, folder.path())?;
    let mut machine = Machine {
        cpu: "qemu64",
        memory: workload.memory.to_string(),
        kernel: run::kernel_path(kernel)?,
        disks: disks.list,
        ..Machine::new(folder.path().join("root.cpio"))
    };
    let program = format!("{}:/bin/paging", guest::compile("paging", guest::Libc::Musl)?.display());
    let tree = match workload.root {
        workloads::Root::Busybox => None,
        workloads::Root::Debian => Some(workloads::debian_root()?),
    };
    let command = ["/bin/busybox", "sh", "-c", &workload.script].map(str::to_owned);
    let root = pack::pack(tree.as_deref(), &[program], &command)?;
    let mut words = Input::Nothing.words();
    words.extend(disks.words);
    run::prepare(&mut machine, kernel, root, &words)?;
    let finished = session::capture(&machine, Input::Nothing, LIMIT)?;
    let failures = samples.gather(system, &finished.output).failures;
    for failure in &failures {
        ui::say(&format!("{system} could not do: {failure}"));
    }
    let ended = matches!(finished.ending, Ending::Exited(0));
    if !ended && failures.is_empty() {
        run::explain(&finished.ending, &finished.report, &machine.kernel);
        let last: Vec<&str> = finished.output.lines().rev().take(3).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        ui::say(&format!(
            "{system} stopped before the end ({:?}): {}",
            finished.ending,
            last.join(" / ")
        ));
    }
    Ok((machine, ended && failures.is_empty()))
}
