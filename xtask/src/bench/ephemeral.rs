//! `./uvm bench sf_buf`: what it costs to have no page of a program in the kernel's sight, by each
//! way to make ephemeral mappings: instructions of the rows of `bench micro`, beside those with all
//! memory in the direct map; and the invalidations that were issued, the measure of the sf_buf
//! paper.

use super::html::{bars as picture, escape, figure, folded, table, Bar};
use super::kept::{Bench, Extent};
use super::output::Output;
use super::table::number;
use super::{about, counted, names, Document, Row};
use crate::qemu::Clock;
use crate::ui;
use anyhow::{Context, Result};
use clap::Args;
use std::fmt::Write;

#[derive(Args)]
pub struct SfBufArgs {
    #[command(flatten)]
    output: Output,
    /// How often each row is measured.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    runs: u64,
    /// Only the rows whose name contains this.
    filter: Option<String>,
}

/// The ways, and what each may cost of what the first does.
const KINDS: [(&str, Option<f64>); 4] =
    [("direct", None), ("private", Some(1.05)), ("cache", Some(1.10)), ("original", None)];

/// Rows that two CPUs measure, too.
const TWO: &str = "pipe";
const SUFFIX: &str = ", two CPUs";

/// What is counted: by the name of the counter, and what the table calls it.
const COUNTS: [(&str, &str); 4] = [
    ("windows_opened", "windows"),
    ("windows_hits", "hits"),
    ("windows_local", "local"),
    ("windows_remote", "remote"),
];

pub fn sf_buf(args: &SfBufArgs) -> Result<u8> {
    let mut all = names::of("micro")?;
    all.extend(all.clone().iter().filter(|name| is_for_two(name)).map(|name| two(name)));
    if let Some(code) = args.output.list_or_check(Bench::SfBuf, args.filter.as_deref(), &all) {
        return Ok(code);
    }
    let (mut document, mut complete, mut command) = (Document::default(), true, None);
    for (kind, _) in KINDS {
        ui::say(&format!("measuring {kind}: {} runs of each row", args.runs));
        for cpus in [1, 2] {
            let Some(words) = words(args, cpus) else { continue };
            let (rows, machine, whole) = counted::measure_set(
                &[format!("ephemeral={kind}")],
                kind,
                Clock::Instructions,
                cpus,
                "micro",
                &words,
            )?;
            complete &= whole;
            document.rows.extend(rows.into_iter().map(|row| of(row, cpus)));
            command.get_or_insert(machine);
        }
    }
    let machine = command.context("nothing was measured")?;
    document.about = format!("{}\n{}", about::machine(&machine), about::host());
    args.output.show_as(
        Bench::SfBuf,
        &document,
        Extent::of(args.filter.as_ref()),
        render(&document),
    )?;
    Ok(if complete { 0 } else { 1 })
}

fn is_for_two(name: &str) -> bool {
    name.contains(TWO)
}

fn two(name: &str) -> String {
    format!("{name}{SUFFIX}")
}

/// The words of the program on so many CPUs; none if no row is wanted there.
fn words(args: &SfBufArgs, cpus: u32) -> Option<Vec<String>> {
    let filter = args.filter.as_deref().map(|filter| filter.trim_end_matches(SUFFIX));
    let filter = match (cpus, filter) {
        (1, filter) => filter,
        (_, None) => Some(TWO),
        (_, Some(filter)) => Some(filter.contains(TWO).then_some(filter)?),
    };
    let mut words = vec![args.runs.to_string()];
    words.extend(filter.map(str::to_owned));
    Some(words)
}

/// A row of so many CPUs, with its counts for each operation in thousandths.
fn of(mut row: Row, cpus: u32) -> Row {
    if cpus == 2 {
        row.name = two(&row.name);
    }
    // The counters are read after the runs that warm up.
    let all = row.operations.unwrap_or(1) * row.runs / (row.runs + counted::WARM_UP);
    let operations = all.max(1) as i64;
    row.counters.retain(|name, _| COUNTS.iter().any(|(counter, _)| counter == name));
    row.counters.values_mut().for_each(|count| *count = *count * 1000 / operations);
    row
}

/// A count for each operation.
fn each(row: &Row, counter: &str) -> f64 {
    row.counters.get(counter).map_or(0.0, |&thousandths| thousandths as f64 / 1000.0)
}

/// The instructions of a way over those of the direct map.
fn ratio(document: &Document, name: &str, kind: &str) -> Option<f64> {
    let direct = document.value(name, "direct")?.value;
    (direct > 0.0).then_some(document.value(name, kind)?.value / direct)
}

fn render(document: &Document) -> String {
    let mut out = String::new();
    let names = document.names();
    let width = names.iter().map(|name| name.len()).max().unwrap_or(0);
    let _ = writeln!(
        out,
        "{:width$}  {:9} {:>12}  {:>7}  {:>9} {:>9} {:>9} {:>9}  bar",
        "each", "way", "instructions", "ratio", "windows", "hits", "local", "remote"
    );
    for name in names {
        for (kind, bar) in KINDS {
            let Some(row) = document.value(name, kind) else { continue };
            let ratio = ratio(document, name, kind);
            let _ = write!(
                out,
                "{name:width$}  {kind:9} {:>12}  {:>7}",
                number(row.value),
                ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.3}"))
            );
            for (counter, _) in COUNTS {
                let _ = write!(out, " {:>9.3}", each(row, counter));
            }
            let verdict = match (bar, ratio) {
                (Some(bar), Some(ratio)) if ratio <= bar => ui::green(&format!("{bar}: met")),
                (Some(bar), Some(_)) => ui::red(&format!("{bar}: missed")),
                _ => "none".to_owned(),
            };
            let _ = writeln!(out, "  {verdict}");
        }
    }
    let _ = writeln!(
        out,
        "\nRatio: to the direct map. Windows, hits, and invalidations on this CPU and on others: for each operation."
    );
    out
}

/// For the page: what having no page in sight costs each row.
pub fn figures(document: &Document) -> String {
    let bar = |name: &&str, kind: &str, aim: Option<f64>| {
        let ratio = ratio(document, name, kind)?;
        Some(Bar {
            name: format!("{name}: {kind}"),
            class: match aim {
                Some(aim) if ratio <= aim => "met",
                Some(_) => "missed",
                None => "other",
            },
            value: ratio,
            aim,
            number: format!("{ratio:.3}"),
        })
    };
    let bars: Vec<Bar> = document
        .names()
        .iter()
        .flat_map(|name| KINDS[1..].iter().filter_map(|(kind, aim)| bar(name, kind, *aim)))
        .collect();
    let caption = "Shorter is better; the thin line is the direct map, the dark tick our aim.";
    let picture = picture(&bars, Some(2.0), Some(1.0));
    let mut rows = Vec::new();
    for name in document.names() {
        for (kind, _) in KINDS {
            let Some(row) = document.value(name, kind) else { continue };
            let mut cells = vec![escape(name), kind.to_owned(), number(row.value)];
            cells.extend(COUNTS.iter().map(|(counter, _)| format!("{:.3}", each(row, counter))));
            rows.push(cells);
        }
    }
    let head = ["", "<span>way</span>", "instructions", "windows", "hits", "local", "remote"];
    format!(
        "{}{}",
        figure("Instructions with no page of a program in the kernel's sight", &picture, caption),
        folded("Invalidations for each operation", &table(&head, &rows))
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn document() -> Document {
        let row = |system: &str, value: f64| Row {
            operations: Some(12),
            counters: BTreeMap::from([("windows_opened".into(), 6), ("faults".into(), 1)]),
            ..Row::of("pipe", system, "instructions", &[value])
        };
        let rows = vec![of(row("direct", 100.0), 1), of(row("private", 106.0), 1)];
        Document { about: String::new(), rows }
    }

    #[test]
    fn counts_are_for_each_operation() {
        let document = document();
        assert_eq!(each(&document.rows[0], "windows_opened"), 1.5);
        assert_eq!(document.rows[0].counters.len(), 1, "others are left out");
    }

    #[test]
    fn a_way_stands_against_the_direct_map() {
        let text = render(&document());
        assert!(text.contains("1.060") && text.contains("missed"), "{text}");
        assert!(figures(&document()).contains("missed"));
    }
}
