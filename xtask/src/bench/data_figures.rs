//! The report's part about `bench move`: the figures 5 to 9 of "Zero-Copy Data Movement Mechanisms
//! for UVM", drawn from our numbers.
//!
//! Where the paper has bandwidth there are bytes per instruction: the emulator has no caches and no
//! clock worth the name. So a line of copies is level at all sizes where the paper's falls behind
//! the caches. What the paper measured stands under each figure: on a Pentium Pro of 200 MHz with
//! 256 KiB of cache, whose memory copies 50 MB in a second.

use super::figures::{self, Colour, Line, Point, Scale};
use super::html::{bars, figure, Bar};
use super::moving::{at, SIZES};
use super::report::not_measured;
use super::Document;
use anyhow::Result;

/// A figure: its number in the paper, what it shows, and its lines with the rows and the kernel
/// that they stand for.
struct Figure {
    title: &'static str,
    /// What the paper's has at large sizes.
    paper: &'static str,
    lines: &'static [(&'static str, Colour, &'static str, &'static str)],
}

const FIGURES: [Figure; 7] = [
    Figure {
        title: "Figure 5: writing to a sink",
        paper: "The paper: copied 172 MB/s at most, loaned 560 at 32 KiB and 750 from 512 KiB on.",
        lines: &[
            ("loaned", Colour::Ours, "null write, loaned", "uvm"),
            ("copied", Colour::OursLight, "null write, copied", "uvm"),
            ("unchanged", Colour::Linux, "null write, unchanged", "uvm"),
        ],
    },
    Figure {
        title: "Figure 6: reading from a source",
        paper:
            "The paper: copied 315 MB/s at 4 KiB and 50 beyond the caches, transferred 190 and 730.",
        lines: &[
            ("transferred", Colour::Ours, "null read, transferred", "uvm"),
            ("copied", Colour::OursLight, "null read, copied", "uvm"),
        ],
    },
    Figure {
        title: "Figure 7: a pipe between two processes",
        paper: "The paper, large: copied 26 MB/s, loaned or transferred 43, both 400.",
        lines: &[
            ("loaned and transferred", Colour::Ours, "pipe, loaned and transferred", "uvm"),
            ("loaned", Colour::OursLight, "pipe, loaned", "uvm"),
            ("transferred", Colour::LinuxLight, "pipe, transferred", "uvm"),
            ("copied", Colour::Linux, "pipe, copied", "uvm"),
        ],
    },
    Figure {
        title: "Figure 7, for programs that change nothing",
        paper: "The paper has no such line.",
        lines: &[
            ("UVM", Colour::Ours, "pipe, unchanged", "uvm"),
            (
                "UVM, the buffer refilled each time",
                Colour::OursLight,
                "pipe, unchanged, refilled",
                "uvm",
            ),
            ("Linux", Colour::Linux, "pipe, unchanged", "linux"),
            (
                "Linux, vmsplice and splice",
                Colour::LinuxLight,
                "pipe, vmsplice and splice",
                "linux",
            ),
        ],
    },
    Figure {
        title: "Figure 8: memory passed between two processes, untouched",
        paper: "The paper, large: by socket 18 MB/s, entries passed 18,500.",
        lines: &[
            ("entries passed", Colour::Ours, "entries passed, untouched", "uvm"),
            ("socket", Colour::OursLight, "socket, to and fro, untouched", "uvm"),
            ("Linux, socket", Colour::Linux, "socket, to and fro, untouched", "linux"),
        ],
    },
    Figure {
        title: "Figure 8: the same, each page touched by its receiver",
        paper: "The paper, large: by socket 12 MB/s, entries passed 34 (96 at 64 KiB).",
        lines: &[
            ("entries passed", Colour::Ours, "entries passed, touched", "uvm"),
            ("socket", Colour::OursLight, "socket, to and fro, touched", "uvm"),
            ("Linux, socket", Colour::Linux, "socket, to and fro, touched", "linux"),
            ("Linux, memfd", Colour::LinuxLight, "memfd passed", "linux"),
        ],
    },
    Figure {
        title: "Figure 9: a pipeline of three processes",
        paper: "The paper, large: copied 11 MB/s, passed and loaned 26 (40 at 64 KiB).",
        lines: &[
            ("passed and loaned", Colour::Ours, "pipeline, passed and loaned", "uvm"),
            ("copied", Colour::OursLight, "pipeline, copied", "uvm"),
        ],
    },
];

/// What not copying gains: a factor that `bench move` tells, and the paper's rates at large sizes,
/// copied and not, in MB/s.
const GAINS: [(&str, &str, f64, f64); 5] = [
    ("written to a sink: loaned", "null write, copied / loaned, 1 MiB", 172.0, 750.0),
    ("read from a source: transferred", "null read, copied / transferred, 1 MiB", 50.0, 730.0),
    ("a pipe: loaned", "pipe, copied / loaned, 1 MiB", 26.0, 43.0),
    ("a pipe: loaned and transferred", "pipe, copied / both, 1 MiB", 26.0, 400.0),
    ("a pipeline: passed and loaned", "pipeline, copied / passed and loaned, 1 MiB", 11.0, 26.0),
];
const GAINS_TITLE: &str = "Times as cheap as copying, at 1 MiB";

pub fn gain_names() -> Vec<String> {
    GAINS.iter().map(|(_, row, ..)| (*row).to_owned()).collect()
}

fn gains(document: &Document) -> Option<String> {
    let mut all = Vec::new();
    for (name, row, copied, moved) in GAINS {
        let Some(row) = document.value(row, "uvm") else { continue };
        for (whose, class, value) in
            [("UVM", "ours", row.value), ("the paper", "other", moved / copied)]
        {
            let (name, number) = (format!("{name}, {whose}"), format!("{value:.1}"));
            all.push(Bar { name, class, value, aim: None, number });
        }
    }
    let about = "Longer is better. Ours are instructions, without caches; the paper's are its bandwidths, with them.";
    (!all.is_empty()).then(|| figure(GAINS_TITLE, &bars(&all, None, Some(1.0)), about))
}

pub fn figures(document: &Document) -> Result<String> {
    let (mut page, mut missing) = (String::new(), Vec::new());
    match gains(document) {
        Some(picture) => page.push_str(&picture),
        None => missing.push(GAINS_TITLE),
    }
    for Figure { title, paper, lines } in &FIGURES {
        let lines: Vec<Line> = lines
            .iter()
            .map(|(name, colour, row, system)| line(document, name, *colour, row, system))
            .collect();
        match figures::draw(&lines, Scale::Logarithmic, "KiB a call", "bytes per instruction")? {
            Some(svg) => page.push_str(&figure(title, &svg, paper)),
            None => missing.push(title),
        }
    }
    let caption = "<p>Bytes moved for each instruction that sender, receiver and kernel execute; more is better.</p>";
    let missing = not_measured(&missing, "./uvm bench move");
    Ok(format!("{caption}<div class=\"pictures\">{page}</div>\n{missing}"))
}

fn line(document: &Document, name: &'static str, colour: Colour, row: &str, system: &str) -> Line {
    let points = SIZES.into_iter().filter_map(|kib| {
        let row = document.value(&at(row, kib), system)?;
        let rate = |instructions: f64| f64::from(kib) * 1024.0 / instructions;
        Some(Point {
            x: f64::from(kib),
            y: rate(row.value),
            least: rate(row.max),
            most: rate(row.min),
        })
    });
    Line { name, colour, points: points.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Row;

    #[test]
    fn a_point_is_bytes_for_an_instruction() {
        let rows = vec![Row::of("pipe, copied, 4 KiB", "uvm", "instructions", &[1024.0])];
        let document = Document { about: String::new(), rows };
        let line = line(&document, "copied", Colour::Ours, "pipe, copied", "uvm");
        assert_eq!(
            line.points.iter().map(|point| (point.x, point.y)).collect::<Vec<_>>(),
            [(4.0, 4.0)]
        );
        let page = figures(&document).unwrap();
        assert_eq!(
            (page.matches("<svg").count(), page.matches("; Figure").count()),
            (1, FIGURES.len() - 1)
        );
    }
}
