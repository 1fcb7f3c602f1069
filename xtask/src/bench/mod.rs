//! `./uvm bench`: measurements, each as a table for people, one JSON document for programs, and a page to look at.

mod html;
mod micro;
mod profile;
mod table;

pub use micro::{micro, MicroArgs};
pub use profile::{profile, ProfileArgs};

use clap::Subcommand;
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Subcommand)]
pub enum BenchCommand {
    /// Instructions per operation, ours beside Linux, under the same QEMU flags.
    Micro(MicroArgs),
}

/// One measured value. The names of the fields are those of the JSON document.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub name: String,
    pub system: &'static str,
    pub metric: &'static str,
    pub value: f64,
    pub min: f64,
    pub max: f64,
    pub runs: u64,
    /// How often the operation was done in all, where the program says so.
    #[serde(skip)]
    pub operations: Option<u64>,
    /// What our kernel's own counters did during the runs.
    pub counters: BTreeMap<String, i64>,
}

#[derive(Serialize)]
pub struct Document {
    pub rows: Vec<Row>,
}

impl Document {
    /// The value of `name` on `system`, if it was measured there.
    pub fn value(&self, name: &str, system: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name && row.system == system)
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
