//! `./uvm bench`: measurements, each as a table for people, one JSON document for programs, and a
//! page to look at.

mod about;
mod bare;
mod bars;
mod counted;
mod data_figures;
mod ephemeral;
mod figures;
mod html;
mod kept;
mod load;
mod micro;
mod moving;
mod names;
mod output;
mod paging;
mod paper;
mod profile;
mod report;
mod samples;
mod scaling;
mod smp;
mod table;
mod workloads;

pub use ephemeral::{sf_buf, SfBufArgs};
pub use micro::{micro, MicroArgs};
pub use moving::{moving, MoveArgs};
pub use paging::{paging, PagingArgs};
pub use profile::{profile, ProfileArgs};
pub use report::samples as sample_pages;
pub use smp::{smp, SmpArgs};

use clap::Subcommand;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What `./uvm bench --help` ends with.
pub const HELP: &str = "\
Each runs the same program on this kernel and on Debian's Linux (fetched once), and writes
target/report.html. A FILTER measures only the rows with that in their name; --list names them.
It takes about as many minutes for each of the --runs as stand behind, and the kernel is built first:
  micro   instructions of system calls, page faults, mmap, fork, exec, pipes   20 rows, 9 runs of 1 min
          exact: they repeat, whatever else this machine does
  move    instructions and time to send and receive 1 KiB to 2 MiB, copied,    495 rows, 5 runs of 2 min
          loaned and passed, by pipes, sockets and files (--quick: this kernel's instructions alone, 0.5 min)
  paging  seconds to write more than memory, compressed swap, mapped files;    24 workloads, 5 runs of 0.2 to 2 min each
          counts of page faults, map entries and the kernel's own memory
  sf_buf  instructions and TLB invalidations with no program's page in the     23 rows by 4 ways, 1 run of 2 min
          kernel's sight
  smp     how often two CPUs fault, map and fork at once, against one          6 operations, 7 runs of 3 min

Examples:
  ./uvm bench micro --runs 1 'anonymous fault'   one row, exactly
  ./uvm bench micro --runs 1 fork                all rows of forks
  ./uvm bench move --quick 'pipe, loaned'        what a change does to one way, on this kernel alone
  ./uvm bench paging --runs 1 'map entries'      a count, by programs of Debian's
  ./uvm bench smp --runs 1 'fork, exit, wait'    one operation by two processes and by two threads
  ./uvm bench micro --list                       the names of rows";

#[derive(Subcommand)]
pub enum BenchCommand {
    /// Instructions per operation, ours beside Linux, under the same QEMU flags.
    Micro(MicroArgs),
    /// Memory pressure, swap, mapped files, page faults and tables, ours beside Linux, with the
    /// same disks.
    Paging(PagingArgs),
    /// Moving data, copied and not: sinks, sources, pipes, passed memory; ours beside Linux.
    Move(MoveArgs),
    /// What a second CPU brings: faults, mapping and forks of one and two workers, ours beside
    /// Linux.
    Smp(SmpArgs),
    /// What it costs to have no page of a program in the kernel's sight, by each kind of ephemeral
    /// mappings: instructions and TLB invalidations.
    #[command(name = "sf_buf")]
    SfBuf(SfBufArgs),
}

/// One measured value. The names of the fields are those of the JSON document.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    pub name: String,
    pub system: String,
    pub metric: String,
    /// The median of the runs.
    pub value: f64,
    pub min: f64,
    pub max: f64,
    pub runs: u64,
    /// When, in seconds since 1970; 0 for rows of an older version.
    #[serde(default)]
    pub measured: u64,
    /// How often the operation was done in all, where the program says so.
    #[serde(skip)]
    pub operations: Option<u64>,
    /// What our kernel's own counters did during the runs.
    pub counters: BTreeMap<String, i64>,
}

#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Document {
    /// The machine and the command, as text.
    #[serde(default)]
    pub about: String,
    pub rows: Vec<Row>,
}

/// Which of two values of a row is better.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Better {
    Less,
    More,
}

impl Better {
    /// By a row's name and unit: less of what an operation costs, more of what comes of one.
    pub fn of(name: &str, metric: &str) -> Better {
        let is_more = match metric {
            "/s" | "MB/s" | "%" => true,
            // Large requests are good; a factor says how often another row's cost is saved.
            "KiB" => name.starts_with("mean"),
            "times" => !name.ends_with("/ copied, at the worst size"),
            _ => false,
        };
        if is_more {
            Better::More
        } else {
            Better::Less
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            Better::Less => "less",
            Better::More => "more",
        }
    }
}

/// How a row stands against what it should be.
pub enum Verdict {
    NoBar,
    NotMeasured(String),
    Met(String),
    Missed(String),
}

impl Row {
    /// A row of several runs' values, of which there is at least one.
    pub fn of(name: &str, system: &str, metric: &str, values: &[f64]) -> Row {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len() - 1;
        Row {
            name: name.to_owned(),
            system: system.to_owned(),
            metric: metric.to_owned(),
            value: (sorted[last / 2] + sorted[last.div_ceil(2)]) / 2.0,
            min: sorted[0],
            max: sorted[last],
            runs: sorted.len() as u64,
            measured: 0,
            operations: None,
            counters: BTreeMap::new(),
        }
    }
}

impl Document {
    /// The value of `name` on `system`, if it was measured there.
    pub fn value(&self, name: &str, system: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name && row.system == system)
    }

    /// The unit of a row.
    pub fn metric(&self, name: &str) -> &str {
        self.rows.iter().find(|row| row.name == name).map_or("", |row| &row.metric)
    }

    /// Row names in the order of their first appearance.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for row in &self.rows {
            if !names.contains(&row.name.as_str()) {
                names.push(&row.name);
            }
        }
        names
    }

    /// Ours over Linux, where both were measured.
    pub fn ratio(&self, name: &str) -> Option<f64> {
        let linux = self.value(name, "linux")?.value;
        (linux > 0.0).then_some(self.value(name, "uvm")?.value / linux)
    }
}
