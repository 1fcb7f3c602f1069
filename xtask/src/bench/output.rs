//! What every benchmark does with what it has measured: keeps it, and shows it as a table or as one
//! JSON document.

use super::kept::{self, Bench, Extent};
use super::{names, table, Document, Verdict};
use anyhow::{Context, Result};
use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
pub struct Output {
    /// Write one JSON document to this file; `-` prints it instead of the table.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Print the names, and measure nothing.
    #[arg(long)]
    list: bool,
}

impl Output {
    /// What is left to do before anything is measured: see [`names::list_or_check`].
    pub fn list_or_check(
        &self,
        bench: Bench,
        filter: Option<&str>,
        names: &[String],
    ) -> Option<u8> {
        names::list_or_check(bench.name(), self.list, filter, names)
    }

    /// Keeps a document that holds all of a benchmark's rows or some, and shows it.
    pub fn show(
        &self,
        bench: Bench,
        document: &Document,
        extent: Extent,
        verdict: impl Fn(&str) -> Verdict,
    ) -> Result<()> {
        self.show_as(bench, document, extent, table::render(document, verdict))
    }

    /// As [`show`](Output::show), with a table of its own.
    pub fn show_as(
        &self,
        bench: Bench,
        document: &Document,
        extent: Extent,
        table: String,
    ) -> Result<()> {
        let page = kept::keep(bench, document, extent)?;
        let json = serde_json::to_string(document)?;
        match &self.json {
            Some(file) if file.as_os_str() == "-" => {
                println!("{json}");
                return Ok(());
            }
            Some(file) => std::fs::write(file, json + "\n")
                .with_context(|| format!("can't write {}", file.display()))?,
            None => {}
        }
        print!("{table}");
        println!(
            "{}\nWith all that was measured before, as a page: {}",
            document.about,
            page.display()
        );
        Ok(())
    }
}
