//! `target/report.html`: what the benchmarks said when each last ran, as one page that loads
//! nothing from elsewhere.
//!
//! The papers' figures and tables are drawn again from our measurements, beside Linux's and, where
//! they give numbers, their own: figures 2 and 5 and tables 1 and 2 of "The UVM Virtual Memory
//! System" here, those about moving data in `data_figures`.

use super::table::in_unit;
use super::workloads::{COMMANDS, FILES, SIZES};
use super::{bars, data_figures, figures, html, scaling, Document, Verdict};
use crate::build;
use anyhow::{Context, Result};
use figures::{Colour, Line, Point, Scale};
use std::fmt::Write;
use std::path::PathBuf;

/// Keeps what was measured, and writes the page from all that is kept; returns where it is.
pub fn keep(bench: &str, document: &Document) -> Result<PathBuf> {
    let folder = build::scratch("bench")?;
    std::fs::write(folder.join(format!("{bench}.json")), serde_json::to_string(document)?)
        .context("can't keep the measurements")?;
    let load = |bench: &str| -> Document {
        let text =
            std::fs::read_to_string(folder.join(format!("{bench}.json"))).unwrap_or_default();
        // One of an older version counts as none.
        serde_json::from_str(&text).unwrap_or_default()
    };
    let page = build::root().join("target/report.html");
    let kept = Kept {
        paging: load("paging"),
        moving: load("move"),
        micro: load("micro"),
        smp: load("smp"),
    };
    std::fs::write(&page, render(&kept)?).context("can't write the report")?;
    Ok(page)
}

const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#1d2433;\
background:#fff}h1{font-size:1.6rem}h2{margin-top:2.2rem;border-bottom:1px solid #d5dae3}h3{margin-bottom:.2rem}\
svg{width:100%;height:auto;font-size:13px}figure{margin:1rem 0;max-width:56rem}figcaption{color:#475069}\
table{border-collapse:collapse;margin:.6rem 0}th,td{padding:.2rem .8rem .2rem 0;text-align:right;font-variant-numeric:tabular-nums}\
th:first-child,td:first-child,td:has(span){text-align:left}th{border-bottom:1px solid #9aa3b2}td{border-bottom:1px solid #eceff4}\
.one{stroke:#9aa3b2;stroke-dasharray:4 3}.met{fill:#2f7d5b;color:#2f7d5b}.missed{fill:#b4432f;color:#b4432f}\
.plain{fill:#6b7a99}.aim{stroke:#1d2433;stroke-width:2}pre{white-space:pre-wrap;font-size:12px;color:#475069}";

/// What each benchmark said when it last ran.
#[derive(Default)]
struct Kept {
    paging: Document,
    moving: Document,
    micro: Document,
    smp: Document,
}

fn render(Kept { paging, moving, micro, smp }: &Kept) -> Result<String> {
    let mut body = String::new();
    if !moving.rows.is_empty() {
        body.push_str("<h2>Moving data</h2>\n");
        body.push_str(&barred(moving));
        body.push_str(&data_figures::figures(moving)?);
        body.push_str(
            "<h3>All rows</h3>\n<p>Medians of the runs, with the least and the most.</p>\n",
        );
        body.push_str(&all_rows(moving));
        let _ = writeln!(
            body,
            "<p>Made by <code>./uvm bench move</code>.</p><pre>{}</pre>",
            escape(&moving.about)
        );
    }
    if !paging.rows.is_empty() {
        body.push_str("<h2>Paging</h2>\n");
        body.push_str(&barred(paging));
        body.push_str(&figure_5(paging)?);
        body.push_str(&figure_2(paging)?);
        body.push_str(&table_1(paging));
        body.push_str(&table_2(paging));
        body.push_str(
            "<h3>All rows</h3>\n<p>Medians of the runs, with the least and the most.</p>\n",
        );
        body.push_str(&all_rows(paging));
        let _ = writeln!(
            body,
            "<p>Made by <code>./uvm bench paging</code>.</p><pre>{}</pre>",
            escape(&paging.about)
        );
    }
    if !micro.rows.is_empty() {
        body.push_str("<h2>Instructions per operation</h2>\n");
        body.push_str(&html::bars(micro));
        let _ = writeln!(
            body,
            "<p>Made by <code>./uvm bench micro</code>.</p><pre>{}</pre>",
            escape(&micro.about)
        );
    }
    if !smp.rows.is_empty() {
        body.push_str("<h2>Two CPUs</h2>\n");
        body.push_str(&scaling::table(smp));
        body.push_str(&barred(smp));
        body.push_str(
            "<h3>All rows</h3>\n<p>Medians of the runs, with the least and the most.</p>\n",
        );
        body.push_str(&all_rows(smp));
        let _ = writeln!(
            body,
            "<p>Made by <code>./uvm bench smp</code>.</p><pre>{}</pre>",
            escape(&smp.about)
        );
    }
    Ok(format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>UVM beside Linux</title>\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<style>{STYLE}</style>\n\
         <h1>UVM beside Linux</h1>\n{body}</html>\n"
    ))
}

/// The rows that have a bar, and how they stand.
fn barred(document: &Document) -> String {
    let mut rows = Vec::new();
    for name in document.names() {
        let (class, text) = match bars::verdict(document, name) {
            Verdict::NoBar => continue,
            Verdict::NotMeasured(bar) => ("", format!("{bar}: not measured")),
            Verdict::Met(bar) => ("met", format!("{bar}: met")),
            Verdict::Missed(bar) => ("missed", format!("{bar}: missed")),
        };
        let verdict = format!("<span class=\"{class}\">{}</span>", escape(&text));
        rows.push(vec![
            escape(name),
            cell(document, name, "uvm"),
            cell(document, name, "linux"),
            verdict,
        ]);
    }
    format!("<h3>What it should show</h3>\n{}", table(&["", "UVM", "Linux", "bar"], &rows))
}

fn all_rows(document: &Document) -> String {
    let spread = |name: &str, system: &str| {
        document.value(name, system).map_or(String::new(), |row| {
            format!("{} to {}", in_unit(row.min, &row.metric), in_unit(row.max, &row.metric))
        })
    };
    let rows: Vec<Vec<String>> = document
        .names()
        .into_iter()
        .map(|name| {
            let runs = document.rows.iter().find(|row| row.name == name).map_or(0, |row| row.runs);
            vec![
                escape(name),
                cell(document, name, "uvm"),
                spread(name, "uvm"),
                cell(document, name, "linux"),
                spread(name, "linux"),
                document.ratio(name).map_or("-".to_owned(), |ratio| format!("{ratio:.3}")),
                runs.to_string(),
            ]
        })
        .collect();
    table(&["", "UVM", "spread", "Linux", "spread", "ratio", "runs"], &rows)
}

/// A line of one kernel: x values beside the rows that they stand for, whose values are divided by
/// `unit`.
fn line(
    document: &Document,
    name: &'static str,
    colour: Colour,
    rows: &[(f64, String)],
    unit: f64,
) -> Line {
    let system = if matches!(colour, Colour::Ours | Colour::OursLight) { "uvm" } else { "linux" };
    let points = rows.iter().filter_map(|(x, row)| {
        let row = document.value(row, system)?;
        Some(Point { x: *x, y: row.value / unit, least: row.min / unit, most: row.max / unit })
    });
    Line { name, colour, points: points.collect() }
}

fn figure_5(document: &Document) -> Result<String> {
    let rows =
        SIZES.map(|times| (times.parse().unwrap_or(f64::NAN), format!("write {times}x of memory")));
    let lines = [
        line(document, "UVM", Colour::Ours, &rows, 1000.0),
        line(document, "Linux", Colour::Linux, &rows, 1000.0),
    ];
    let svg = figures::draw(
        &lines,
        Scale::Linear,
        "anonymous memory written / memory of the machine",
        "seconds",
    )?;
    Ok(figure(
        "Figure 5: anonymous memory allocation",
        &svg,
        "The time to write anonymous memory, once; vertical strokes are the spread.",
    ))
}

fn figure_2(document: &Document) -> Result<String> {
    let rows = |pass: &str| {
        FILES.map(|count| (count as f64, format!("{count} files, {pass} pass: time per file")))
    };
    let (first, second) = (rows("first"), rows("second"));
    let lines = [
        line(document, "UVM, first pass", Colour::Ours, &first, 1.0),
        line(document, "UVM, second pass", Colour::OursLight, &second, 1.0),
        line(document, "Linux, first pass", Colour::Linux, &first, 1.0),
        line(document, "Linux, second pass", Colour::LinuxLight, &second, 1.0),
    ];
    let svg = figures::draw(&lines, Scale::Logarithmic, "files", "microseconds per file")?;
    Ok(figure(
        "Figure 2: mapping and reading many files",
        &svg,
        "Each file is mapped and every byte read, twice, within memory. A cache of a hundred objects would show a cliff in \
         the second pass behind a hundred files.",
    ))
}

fn table_1(document: &Document) -> String {
    // The paper's operations, with BSD VM's entries and UVM's.
    const PAPER: [(&str, &str, &str, &str); 4] = [
        ("cat (static link)", "cat (static link)", "11", "6"),
        ("od (dynamic link)", "od (dynamic link)", "21", "12"),
        ("boot (the first program alone)", "single-user boot", "50", "26"),
        ("session of nine processes", "starting X11 (9 processes)", "275", "186"),
    ];
    let rows: Vec<Vec<String>> = PAPER
        .iter()
        .map(|(name, theirs, bsd, uvm)| {
            let mut row = vec![
                (*name).to_owned(),
                value(document, name, "uvm"),
                value(document, name, "linux"),
            ];
            row.extend([*theirs, *bsd, *uvm].map(str::to_owned));
            row
        })
        .collect();
    let head = ["", "UVM, here", "Linux, here", "in the paper", "BSD VM", "UVM"];
    format!(
        "<h3>Table 1: map entries</h3>\n{}<p>The paper's columns were counted in 1999 on an i386 with other programs, and \
         contain what the kernel maps for a process; ours maps nothing for one.</p>\n",
        table(&head, &rows)
    )
}

fn table_2(document: &Document) -> String {
    // Where the paper has the command.
    const PAPER: [(&str, &str, &str); 2] =
        [("ls /", "59", "33"), ("gcc on hello world", "1086", "590")];
    let rows: Vec<Vec<String>> = COMMANDS
        .iter()
        .map(|(name, _)| {
            let mut row = vec![(*name).to_owned()];
            for system in ["uvm", "linux"] {
                for state in ["off", "on"] {
                    row.push(value(document, &format!("{name}, neighbours {state}"), system));
                }
            }
            let paper = PAPER.iter().find(|(theirs, ..)| theirs == name);
            row.extend(paper.map_or(["".into(), "".into()], |(_, bsd, uvm)| {
                [bsd.to_string(), uvm.to_string()]
            }));
            row
        })
        .collect();
    let head = [
        "",
        "UVM, neighbours off",
        "UVM, on",
        "Linux, fault-around off",
        "Linux, on",
        "paper: BSD VM",
        "paper: UVM",
    ];
    format!("<h3>Table 2: page faults</h3>\n{}", table(&head, &rows))
}

/// A value without its unit.
fn value(document: &Document, name: &str, system: &str) -> String {
    document.value(name, system).map_or("-".to_owned(), |row| format!("{:.0}", row.value))
}

/// A value with its unit.
fn cell(document: &Document, name: &str, system: &str) -> String {
    let cell =
        |row: &super::Row| format!("{} {}", in_unit(row.value, &row.metric), escape(&row.metric));
    document.value(name, system).map_or("-".to_owned(), cell)
}

/// The cells are HTML.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let line = |kind: &str, cells: &mut dyn Iterator<Item = &str>| {
        let cells: String = cells.map(|cell| format!("<{kind}>{cell}</{kind}>")).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let head = line("th", &mut head.iter().copied());
    let rows: String =
        rows.iter().map(|row| line("td", &mut row.iter().map(String::as_str))).collect();
    format!("<table>\n{head}{rows}</table>\n")
}

pub fn figure(title: &str, svg: &str, caption: &str) -> String {
    format!("<h3>{title}</h3>\n<figure>{svg}<figcaption>{caption}</figcaption></figure>\n")
}

pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Row;

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
        let page = render(&Kept { paging: document, ..Kept::default() }).unwrap();
        for part in [
            "Figure 5",
            "Figure 2",
            "Table 1",
            "at most 0.7 of Linux: met",
            "<td>80</td>",
            "a &lt;machine&gt;",
        ] {
            assert!(page.contains(part), "no {part} in {page}");
        }
        assert!(!page.contains("Instructions per operation") && !page.contains("Two CPUs"));
    }
}
