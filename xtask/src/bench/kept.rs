//! What each benchmark said when each of its rows was last measured, below `target/bench`: a run of
//! some rows leaves the others as they were.

use super::{report, Document};
use crate::build;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The benchmarks, in the order of the page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bench {
    Move,
    Paging,
    Smp,
    SfBuf,
    Micro,
}

pub const ALL: [Bench; 5] = [Bench::Move, Bench::Paging, Bench::Smp, Bench::SfBuf, Bench::Micro];

/// How much of a benchmark was run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Extent {
    Whole,
    Part,
}

impl Extent {
    pub fn of(filter: Option<&String>) -> Extent {
        filter.map_or(Extent::Whole, |_| Extent::Part)
    }
}

impl Bench {
    pub fn name(self) -> &'static str {
        match self {
            Bench::Move => "move",
            Bench::Paging => "paging",
            Bench::Smp => "smp",
            Bench::SfBuf => "sf_buf",
            Bench::Micro => "micro",
        }
    }
}

/// Keeps what was measured, and writes the page from all that is kept; returns where it is.
pub fn keep(bench: Bench, document: &Document, extent: Extent) -> Result<PathBuf> {
    let folder = build::scratch("bench")?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let mut new = document.clone();
    new.rows.iter_mut().for_each(|row| row.measured = now);
    if extent == Extent::Part {
        new = merged(load(&folder, bench), new);
    }
    std::fs::write(file(&folder, bench), serde_json::to_string(&new)?)
        .context("can't keep the measurements")?;
    let page = build::root().join("target/report.html");
    let kept = ALL.map(|bench| (bench, load(&folder, bench)));
    std::fs::write(&page, report::render(&kept)?).context("can't write the report")?;
    Ok(page)
}

fn file(folder: &Path, bench: Bench) -> PathBuf {
    folder.join(format!("{}.json", bench.name()))
}

fn load(folder: &Path, bench: Bench) -> Document {
    let text = std::fs::read_to_string(file(folder, bench)).unwrap_or_default();
    // One of an older version counts as none.
    serde_json::from_str(&text).unwrap_or_default()
}

/// The old rows, those that were measured again anew.
fn merged(old: Document, new: Document) -> Document {
    let mut rows = old.rows;
    for row in new.rows {
        match rows.iter_mut().find(|old| (&old.name, &old.system) == (&row.name, &row.system)) {
            Some(old) => *old = row,
            None => rows.push(row),
        }
    }
    Document { about: new.about, rows }
}

/// A time in seconds since 1970 as a date of UTC.
pub fn date(seconds: u64) -> String {
    let (mut days, seconds) = (seconds / 86_400, seconds % 86_400);
    let is_leap =
        |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let months = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= months[month] {
        days -= months[month];
        month += 1;
    }
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    format!("{year}-{:02}-{:02} {hours:02}:{minutes:02} UTC", month + 1, days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Row;

    #[test]
    fn a_run_of_some_rows_leaves_the_others() {
        let document = |about: &str, rows: &[(&str, f64)]| Document {
            about: about.to_owned(),
            rows: rows.iter().map(|(name, value)| Row::of(name, "uvm", "us", &[*value])).collect(),
        };
        let all = merged(
            document("old", &[("a", 1.0), ("b", 2.0)]),
            document("new", &[("b", 3.0), ("c", 4.0)]),
        );
        let values: Vec<_> = all.rows.iter().map(|row| (row.name.as_str(), row.value)).collect();
        assert_eq!((all.about.as_str(), values), ("new", vec![("a", 1.0), ("b", 3.0), ("c", 4.0)]));
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_827_696), "2000-02-29 12:34 UTC");
        assert_eq!(date(1_798_761_599), "2026-12-31 23:59 UTC");
    }
}
