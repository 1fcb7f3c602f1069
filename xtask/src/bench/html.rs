//! The report's part about `bench micro`: one bar for each row, as inline SVG.

use super::micro::target;
use super::report::escape;
use super::table::number;
use super::Document;
use std::fmt::Write;

const ROW: usize = 30;
const LABEL: usize = 400;
const SCALE: usize = 420;
const WIDTH: usize = LABEL + SCALE + 330;

/// A bar for each row of the document.
pub fn bars(document: &Document) -> String {
    let names = document.names();
    let height = ROW * (names.len() + 1) + 10;
    let mut bars = String::new();
    for (index, name) in names.iter().enumerate() {
        bar(&mut bars, document, name, ROW * (index + 1));
    }
    let one = LABEL + SCALE;
    format!(
        "<p>Bars: our instructions over Linux's, median of the runs; shorter is better. The grey line is Linux itself, the \
         dark tick is the aim. Boot is wall time in microseconds.</p>\n\
         <svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"ratios of instructions\">\n\
         <line class=\"one\" x1=\"{one}\" x2=\"{one}\" y1=\"20\" y2=\"{height}\"/>\n\
         <text x=\"{one}\" y=\"14\" text-anchor=\"middle\">Linux = 1</text>\n{bars}</svg>\n"
    )
}

fn bar(out: &mut String, document: &Document, name: &str, y: usize) {
    let middle = y + 15;
    let _ = writeln!(
        out,
        "<text x=\"{}\" y=\"{middle}\" text-anchor=\"end\">{}</text>",
        LABEL - 10,
        escape(name)
    );
    let Some(ratio) = document.ratio(name) else {
        let _ =
            writeln!(out, "<text x=\"{}\" y=\"{middle}\">not measured on both</text>", LABEL + 6);
        return;
    };
    // A bar past the page's edge is cut; its number still tells.
    let length = (ratio.min(1.15) * SCALE as f64).max(1.0);
    let aim = target(name);
    let class = match aim {
        Some(limit) if ratio <= limit => "met",
        Some(_) => "missed",
        None => "plain",
    };
    let _ = writeln!(
        out,
        "<rect class=\"{class}\" x=\"{LABEL}\" y=\"{}\" width=\"{length:.1}\" height=\"16\"/>",
        y + 3
    );
    if let Some(limit) = aim {
        let x = LABEL as f64 + limit * SCALE as f64;
        let _ = writeln!(
            out,
            "<line class=\"aim\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{y}\" y2=\"{}\"/>",
            y + 22
        );
    }
    let values = ["uvm", "linux"]
        .map(|system| document.value(name, system).map_or(String::new(), |row| number(row.value)));
    let _ = writeln!(
        out,
        "<text x=\"{}\" y=\"{middle}\">{ratio:.3} ({} / {})</text>",
        LABEL + SCALE + 80,
        values[0],
        values[1]
    );
}
