//! The kernel booted over and over on four CPUs, each time with another second's work
//! (`xtask/guest/boots.c`).
//!
//! Starting CPUs, and what they do to each other in their first moments, depends on when the host
//! runs which; only many starts tell. `UVM_BOOTS` says how many instead, and `UVM_SEED` from which
//! seed on, so that a long run can be made in parts.

use super::host::tail;
use super::Verdict;
use crate::guest::{self, Libc};
use crate::pack::Root;
use crate::qemu::{Ending, Kernel, Machine};
use crate::run;
use crate::session::{self, Input};
use crate::symbols;
use anyhow::{Context, Result};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const CPUS: u32 = 4;
const LANES: usize = 2;
/// A boot takes a second or two; one that hangs says so before, by the kernel's watchdog.
const LIMIT: Duration = Duration::from_secs(90);
/// Failures that are told in full.
const SHOWN: usize = 3;

pub fn fifty() -> Result<Verdict> {
    boot(50)
}

pub fn ten_thousand() -> Result<Verdict> {
    boot(10_000)
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn boot(times: u64) -> Result<Verdict> {
    let times = number("UVM_BOOTS").unwrap_or(times);
    let start =
        || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() << 16);
    let first = number("UVM_SEED").unwrap_or_else(start);
    let kernel = run::kernel_path(Kernel::Uvm)?;
    let next = AtomicU64::new(0);
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= times {
                    return;
                }
                let seed = first + index;
                let complaint =
                    one(&kernel, seed).unwrap_or_else(|error| Some(format!("{error:#}")));
                if let Some(complaint) = complaint {
                    let text = format!("UVM_BOOTS=1 UVM_SEED={seed}: {complaint}");
                    failures.lock().expect("no lane panics").push(text);
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no lane panics");
    if failures.is_empty() {
        return Ok(Verdict::Passed { tests: times });
    }
    let failed = failures.len() as u64;
    let details = failures.into_iter().take(SHOWN).collect::<Vec<_>>().join("\n");
    Ok(Verdict::Failed { passed: times - failed, failed, details })
}

/// Boots once; what was wrong with it, if anything.
fn one(kernel: &Path, seed: u64) -> Result<Option<String>> {
    let folder = tempfile::tempdir().context("can't make a temporary folder")?;
    let mut image = crate::image::Image::minimal()?;
    image.program(&guest::compile("boots", Libc::Musl)?, "/bin/boots")?;
    let mut machine = Machine {
        memory: "128M".to_owned(),
        cpus: CPUS,
        kernel: kernel.to_owned(),
        ..Machine::new(folder.path().join("root.cpio"))
    };
    let root = Root { image, command: vec!["/bin/boots".to_owned(), seed.to_string()] };
    run::prepare(&mut machine, Kernel::Uvm, root, &Input::Nothing.words())?;
    let finished = session::capture(&machine, Input::Nothing, LIMIT)?;
    // The watchdog's word counts too: nothing here keeps a CPU busy for long.
    let quiet = finished.output == "all was right\n" && finished.report.stacks.is_empty();
    if matches!(finished.ending, Ending::Exited(0)) && quiet {
        return Ok(None);
    }
    let mut text = format!("it ended with {:?}", finished.ending);
    for line in symbols::story(kernel, &finished.report) {
        text.push_str(&format!("\n{line}"));
    }
    text.push_str(&format!("\n--- its output:\n{}", tail(&finished.output, 20)));
    Ok(Some(text))
}
