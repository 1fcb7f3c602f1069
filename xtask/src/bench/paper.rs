//! The report's part about `bench paging`: figures 2 and 5 and tables 1 and 2 of "The UVM Virtual
//! Memory System", drawn from our measurements beside Linux's and the paper's own numbers.

use super::figures::{self, Colour, Line, Point, Scale};
use super::html::{bars, figure, Bar};
use super::report::not_measured;
use super::workloads::{COMMANDS, FILES, SIZES};
use super::Document;
use anyhow::Result;

const COMMAND: &str = "./uvm bench paging";
/// The paper's columns of tables.
const BSD: &str = "the paper, BSD VM";
const UVM: &str = "the paper, UVM";

pub fn figures(document: &Document) -> Result<String> {
    let drawn = [
        ("Figure 5: anonymous memory allocation", figure_5(document)?),
        ("Figure 2: mapping and reading many files", figure_2(document)?),
        ("Table 1: map entries", table_1(document)),
        ("Table 2: page faults", table_2(document)),
    ];
    let missing: Vec<&str> =
        drawn.iter().filter(|(_, picture)| picture.is_none()).map(|(title, _)| *title).collect();
    let shown: String = drawn
        .iter()
        .filter_map(|(title, picture)| {
            picture.as_ref().map(|(svg, about)| figure(title, svg, about))
        })
        .collect();
    Ok(format!("<div class=\"pictures\">{shown}</div>\n{}", not_measured(&missing, COMMAND)))
}

/// The rows that are drawn.
pub fn names() -> Vec<String> {
    let written = SIZES.iter().map(|times| format!("write {times}x of memory"));
    let mapped = FILES.iter().flat_map(|count| {
        ["first", "second"].map(|pass| format!("{count} files, {pass} pass: time per file"))
    });
    let entries = ENTRIES.iter().map(|(name, _)| (*name).to_owned());
    let faults = COMMANDS
        .iter()
        .flat_map(|(name, _)| ["on", "off"].map(|state| format!("{name}, neighbours {state}")));
    written.chain(mapped).chain(entries).chain(faults).collect()
}

/// A picture and what is to be known about it.
type Picture = Option<(String, &'static str)>;

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

fn figure_5(document: &Document) -> Result<Picture> {
    let rows =
        SIZES.map(|times| (times.parse().unwrap_or(f64::NAN), format!("write {times}x of memory")));
    let lines = [
        line(document, "UVM", Colour::Ours, &rows, 1000.0),
        line(document, "Linux", Colour::Linux, &rows, 1000.0),
    ];
    let svg = figures::draw(&lines, Scale::Linear, "written / memory of the machine", "seconds")?;
    let about = "The time to write anonymous memory once, less is better; strokes are the spread. In the paper's, on 32 MB, \
                 UVM's line stays far below BSD VM's once memory is full, since it writes pages in large groups.";
    Ok(svg.map(|svg| (svg, about)))
}

fn figure_2(document: &Document) -> Result<Picture> {
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
    let about = "Each file is mapped and every byte read, twice, within memory; less is better. BSD VM's cache of a hundred \
                 objects made a cliff in the paper's second pass, at a hundred files.";
    Ok(svg.map(|svg| (svg, about)))
}

/// A group of bars: some of our rows on both kernels, and the paper's numbers.
fn group(
    document: &Document,
    title: &str,
    rows: &[(&str, String)],
    paper: Option<[u32; 2]>,
) -> String {
    let measured = rows.iter().flat_map(|(note, row)| {
        let bar = move |system, class, kernel: &str| {
            let value = document.value(row, system)?.value;
            let name = format!("{kernel}{note}");
            Some(Bar { name, class, value, aim: None, number: format!("{value:.0}") })
        };
        [bar("uvm", "ours", "UVM"), bar("linux", "linux", "Linux")]
    });
    let mut all: Vec<Bar> = measured.flatten().collect();
    if all.is_empty() {
        return String::new();
    }
    for (name, value) in [BSD, UVM].into_iter().zip(paper.into_iter().flatten()) {
        let (name, number) = (name.to_owned(), value.to_string());
        all.push(Bar { name, class: "other", value: f64::from(value), aim: None, number });
    }
    format!("<h4>{title}</h4>{}", bars(&all, None, None))
}

/// The paper's operations, with BSD VM's entries and UVM's.
const ENTRIES: [(&str, [u32; 2]); 4] = [
    ("cat (static link)", [11, 6]),
    ("od (dynamic link)", [21, 12]),
    ("boot (the first program alone)", [50, 26]),
    ("session of nine processes", [275, 186]),
];

fn table_1(document: &Document) -> Picture {
    let groups: String = ENTRIES
        .iter()
        .map(|(name, paper)| group(document, name, &[("", (*name).to_owned())], Some(*paper)))
        .collect();
    let about = "Less is better. The paper counted in 1999 on an i386 with other programs (the session was X11), and what the \
                 kernel maps for a process; ours maps nothing for one.";
    (!groups.is_empty()).then_some((groups, about))
}

fn table_2(document: &Document) -> Picture {
    // Where the paper has the command.
    const PAPER: [(&str, [u32; 2]); 2] = [("ls /", [59, 33]), ("gcc on hello world", [1086, 590])];
    let groups: String = COMMANDS
        .iter()
        .map(|(name, _)| {
            let paper = PAPER.iter().find(|(theirs, _)| theirs == name).map(|(_, faults)| *faults);
            let rows = [(", neighbours mapped", "on"), (", without", "off")]
                .map(|(note, state)| (note, format!("{name}, neighbours {state}")));
            group(document, name, &rows, paper)
        })
        .collect();
    let about = "Less is better. Neighbours that are in memory are mapped with the page that is touched; Linux calls it \
                 fault-around.";
    (!groups.is_empty()).then_some((groups, about))
}
