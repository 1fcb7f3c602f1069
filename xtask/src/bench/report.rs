//! `target/report.html`: what the benchmarks said when each row was last measured, as one page that
//! loads nothing from elsewhere, light or dark as the reader has it, on a phone too.
//!
//! Pictures come first, ours beside Linux's and the papers': those about paging are drawn by
//! [`paper`], about moving data by [`data_figures`], about two CPUs by [`scaling`]. Tables are
//! folded. What was never measured is a sentence, not an empty picture.

use super::html::{bars as picture, escape, figure, folded, table, Bar};
use super::kept::{self, date, Bench};
use super::table::{in_unit, number};
use super::{
    bars, data_figures, ephemeral, micro, names, paper, scaling, Better, Document, Row, Verdict,
};
use anyhow::Result;
use std::fmt::Write;

const STYLE: &str = include_str!("report.css");

/// The page of all benchmarks.
pub fn render(kept: &[(Bench, Document)]) -> Result<String> {
    let mut body = String::new();
    for (bench, document) in kept {
        body.push_str(&section(*bench, document)?);
    }
    Ok(format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>UVM beside Linux</title>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<style>{STYLE}</style>\n\
         <h1>UVM beside Linux</h1>\n<p>Both kernels ran the same programs in the same QEMU. An emulated CPU has no caches \
         and no clock worth the name: instructions and counts repeat exactly, times only compare.</p>\n{body}</html>\n"
    ))
}

fn section(bench: Bench, document: &Document) -> Result<String> {
    let title = match bench {
        Bench::Move => "Moving data",
        Bench::Paging => "Paging",
        Bench::Smp => "Two CPUs",
        Bench::SfBuf => "Ephemeral mappings",
        Bench::Micro => "Instructions per operation",
    };
    let command = format!("<code>./uvm bench {}</code>", bench.name());
    if document.rows.is_empty() {
        return Ok(format!(
            "<h2>{title}</h2>\n<p class=\"when\">Not measured yet: {command} does it.</p>\n"
        ));
    }
    let pictures = match bench {
        Bench::Move => data_figures::figures(document)?,
        Bench::Paging => paper::figures(document)?,
        Bench::Smp => scaling::figures(document),
        Bench::SfBuf => ephemeral::figures(document),
        Bench::Micro => ratios(document),
    };
    let about = format!("<pre>{}</pre>\n", escape(&document.about));
    // Its rows stand beside each other, not beside Linux's.
    let tables = match bench {
        Bench::SfBuf => String::new(),
        _ => barred(bench, document) + &folded("All rows", &all_rows(document)),
    };
    Ok(format!(
        "<h2>{title}</h2>\n<p class=\"when\">{} {command}</p>\n{pictures}{tables}{}",
        when(document),
        folded("The machine", &about)
    ))
}

/// When the rows were measured.
fn when(document: &Document) -> String {
    let times = || document.rows.iter().map(|row| row.measured);
    let (first, last) = (times().min().unwrap_or(0), times().max().unwrap_or(0));
    let old = if first == 0 { "an older version".to_owned() } else { date(first) };
    match (first == last, last) {
        (true, 0) => "Measured by an older version of".to_owned(),
        (true, _) => format!("Measured {} by", date(last)),
        (false, _) => format!("Measured {} by the last run, other rows since {old}:", date(last)),
    }
}

/// Our instructions over Linux's, a bar for each row.
fn ratios(document: &Document) -> String {
    let bar = |name: &&str| {
        let ratio = document.ratio(name)?;
        let aim = micro::target(name);
        let values = ["uvm", "linux"].map(|system| {
            document.value(name, system).map_or(String::new(), |row| number(row.value))
        });
        Some(Bar {
            name: (*name).to_owned(),
            class: match aim {
                Some(limit) if ratio <= limit => "met",
                Some(_) => "missed",
                None => "other",
            },
            value: ratio,
            aim,
            number: format!("{ratio:.3} ({} / {})", values[0], values[1]),
        })
    };
    let all: Vec<Bar> = document.names().iter().filter_map(bar).collect();
    let caption = "Shorter is better; the thin line is Linux, the dark tick our aim. Boot is wall time in microseconds.";
    figure("Our instructions over Linux's", &picture(&all, Some(1.2), Some(1.0)), caption)
}

/// The rows that have a bar, and how they stand.
fn barred(bench: Bench, document: &Document) -> String {
    let (mut rows, mut met) = (Vec::new(), 0);
    for name in document.names() {
        let verdict = match bench {
            Bench::Micro => micro::verdict(document, name),
            _ => bars::verdict(document, name),
        };
        let (class, text) = match verdict {
            Verdict::NoBar => continue,
            Verdict::NotMeasured(bar) => ("", format!("{bar}: not measured")),
            Verdict::Met(bar) => ("met", format!("{bar}: met")),
            Verdict::Missed(bar) => ("missed", format!("{bar}: missed")),
        };
        met += usize::from(class == "met");
        let verdict = format!("<span class=\"{class}\">{}</span>", escape(&text));
        rows.push(vec![
            escape(name),
            cell(document, name, "uvm"),
            cell(document, name, "linux"),
            verdict,
        ]);
    }
    let title = format!("What it should show: {met} of {} met", rows.len());
    folded(&title, &table(&["", "UVM", "Linux", "<span>bar</span>"], &rows))
}

fn all_rows(document: &Document) -> String {
    let spread = |name: &str, system: &str| {
        document.value(name, system).map_or(String::new(), |row| {
            format!("{} to {}", in_unit(row.min, &row.metric), in_unit(row.max, &row.metric))
        })
    };
    let value = |name: &str, system: &str| {
        document.value(name, system).map_or("-".to_owned(), |row| in_unit(row.value, &row.metric))
    };
    let rows: Vec<Vec<String>> = document
        .names()
        .into_iter()
        .map(|name| {
            let row = document.rows.iter().find(|row| row.name == name);
            let (runs, measured) = row.map_or((0, 0), |row| (row.runs, row.measured));
            let metric = document.metric(name);
            vec![
                escape(name),
                format!("<span>{}</span>", escape(metric)),
                format!("<span>{}</span>", Better::of(name, metric).word()),
                value(name, "uvm"),
                spread(name, "uvm"),
                value(name, "linux"),
                spread(name, "linux"),
                document.ratio(name).map_or("-".to_owned(), |ratio| format!("{ratio:.3}")),
                runs.to_string(),
                if measured == 0 { "-".to_owned() } else { date(measured) },
            ]
        })
        .collect();
    let head = [
        "",
        "<span>unit</span>",
        "<span>better</span>",
        "UVM",
        "spread",
        "Linux",
        "spread",
        "ratio",
        "runs",
        "measured",
    ];
    format!(
        "<p>Medians of the runs, with the least and the most; ratio is UVM / Linux.</p>\n{}",
        table(&head, &rows)
    )
}

/// A value with its unit.
fn cell(document: &Document, name: &str, system: &str) -> String {
    let cell =
        |row: &super::Row| format!("{} {}", in_unit(row.value, &row.metric), escape(&row.metric));
    document.value(name, system).map_or("-".to_owned(), cell)
}

/// A sentence about pictures that can't be drawn yet.
pub fn not_measured(titles: &[&str], command: &str) -> String {
    let mut text = String::new();
    if !titles.is_empty() {
        let _ = writeln!(
            text,
            "<p class=\"when\">Not measured yet, by <code>{command}</code>: {}.</p>",
            titles.join("; ")
        );
    }
    text
}

/// A page on which everything is measured, though not here, and one on which nothing is: what a
/// browser is to be tried with.
///
/// # Errors
/// When the programs can't be asked for the names of their rows.
pub fn samples() -> Result<[String; 2]> {
    let mut kept = Vec::new();
    for bench in kept::ALL {
        let names = match bench {
            Bench::Move => [names::of("move")?, data_figures::gain_names()].concat(),
            Bench::Paging => paper::names(),
            Bench::Smp => scaling::names(&names::of("smp")?),
            Bench::SfBuf => names::of("micro")?,
            Bench::Micro => names::of("micro")?,
        };
        let rows = names.iter().enumerate().flat_map(|(n, name)| {
            let value = |system: usize| (n * 7 + system * 3) as f64 % 20.0 + 0.123;
            [
                Row::of(name, "uvm", "instructions", &[value(0)]),
                Row::of(name, "linux", "instructions", &[value(1)]),
            ]
        });
        kept.push((bench, Document { about: "qemu ".repeat(50), rows: rows.collect() }));
    }
    let full = render(&kept)?;
    kept.iter_mut().for_each(|(_, document)| document.rows.clear());
    Ok([full, render(&kept)?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::kept::ALL;

    fn page(measured: Bench, document: &Document) -> String {
        let kept = ALL.map(|bench| {
            (bench, if bench == measured { document.clone() } else { Document::default() })
        });
        render(&kept).unwrap()
    }

    #[test]
    fn the_page_has_figures_tables_and_verdicts() {
        let rows = [
            ("write 2x of memory", 5.0),
            ("write 3x of memory", 9.0),
            ("ls /, neighbours on", 40.0),
        ];
        let rows = rows.iter().flat_map(|(name, value)| {
            [Row::of(name, "uvm", "ms", &[*value]), Row::of(name, "linux", "ms", &[value * 2.0])]
        });
        let document = Document { about: "a <machine>".to_owned(), rows: rows.collect() };
        let page = page(Bench::Paging, &document);
        for part in [
            "Figure 5",
            "at most 0.7 of Linux: met",
            "Table 2: page faults",
            "a &lt;machine&gt;",
            "Not measured yet: <code>./uvm bench micro</code>",
            "Not measured yet, by <code>./uvm bench paging</code>: Figure 2",
        ] {
            assert!(page.contains(part), "no {part} in {page}");
        }
    }

    #[test]
    fn a_page_without_measurements_says_how_to_make_them() {
        let page = page(Bench::Micro, &Document::default());
        assert_eq!(page.matches("Not measured yet").count(), ALL.len());
    }
}
