//! The report's part about `bench move`: the figures 5 to 9 of "Zero-Copy Data Movement Mechanisms
//! for UVM", drawn from our numbers.
//!
//! Where the paper has bandwidth there are bytes per instruction: the emulator has no caches and no
//! clock worth the name. So a line of copies is level at all sizes where the paper's falls behind
//! the caches.

use super::figures::{self, Colour, Line, Point, Scale};
use super::moving::{at, SIZES};
use super::report::figure;
use super::Document;
use anyhow::Result;

/// A figure: its number in the paper, what it shows, and its lines with the rows and the kernel
/// that they stand for.
struct Figure {
    title: &'static str,
    lines: &'static [(&'static str, Colour, &'static str, &'static str)],
}

const FIGURES: [Figure; 7] = [
    Figure {
        title: "Figure 5: writing to a sink",
        lines: &[
            ("loaned", Colour::Ours, "null write, loaned", "uvm"),
            ("copied", Colour::OursLight, "null write, copied", "uvm"),
            ("unchanged", Colour::Linux, "null write, unchanged", "uvm"),
        ],
    },
    Figure {
        title: "Figure 6: reading from a source",
        lines: &[
            ("transferred", Colour::Ours, "null read, transferred", "uvm"),
            ("copied", Colour::OursLight, "null read, copied", "uvm"),
        ],
    },
    Figure {
        title: "Figure 7: a pipe between two processes",
        lines: &[
            ("loaned and transferred", Colour::Ours, "pipe, loaned and transferred", "uvm"),
            ("loaned", Colour::OursLight, "pipe, loaned", "uvm"),
            ("transferred", Colour::LinuxLight, "pipe, transferred", "uvm"),
            ("copied", Colour::Linux, "pipe, copied", "uvm"),
        ],
    },
    Figure {
        title: "Figure 7, for programs that change nothing",
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
        lines: &[
            ("entries passed", Colour::Ours, "entries passed, untouched", "uvm"),
            ("socket", Colour::OursLight, "socket, to and fro, untouched", "uvm"),
            ("Linux, socket", Colour::Linux, "socket, to and fro, untouched", "linux"),
        ],
    },
    Figure {
        title: "Figure 8: the same, each page touched by whoever gets it",
        lines: &[
            ("entries passed", Colour::Ours, "entries passed, touched", "uvm"),
            ("socket", Colour::OursLight, "socket, to and fro, touched", "uvm"),
            ("Linux, socket", Colour::Linux, "socket, to and fro, touched", "linux"),
            ("Linux, memfd", Colour::LinuxLight, "memfd passed", "linux"),
        ],
    },
    Figure {
        title: "Figure 9: a pipeline of three processes",
        lines: &[
            ("passed and loaned", Colour::Ours, "pipeline, passed and loaned", "uvm"),
            ("copied", Colour::OursLight, "pipeline, copied", "uvm"),
        ],
    },
];

pub fn figures(document: &Document) -> Result<String> {
    let mut page = String::new();
    for Figure { title, lines } in &FIGURES {
        let lines: Vec<Line> = lines
            .iter()
            .map(|(name, colour, row, system)| line(document, name, *colour, row, system))
            .collect();
        let svg = figures::draw(&lines, Scale::Logarithmic, "KiB a call", "bytes per instruction")?;
        page.push_str(&figure(
            title,
            &svg,
            "Bytes moved for each instruction that sender, receiver and kernel execute.",
        ));
    }
    Ok(page)
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
            (page.matches("<svg").count(), page.matches("Not measured").count()),
            (1, FIGURES.len() - 1)
        );
    }
}
