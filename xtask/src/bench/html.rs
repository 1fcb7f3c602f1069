//! The report page: one bar for each row, as inline SVG; nothing is loaded from elsewhere.

use super::micro::target;
use super::table::number;
use super::Document;
use std::fmt::Write;

const ROW: usize = 30;
const LABEL: usize = 400;
const SCALE: usize = 420;
const WIDTH: usize = LABEL + SCALE + 330;

/// `about` is the command and the machine, as text.
pub fn page(document: &Document, about: &str) -> String {
    let names = document.names();
    let height = ROW * (names.len() + 1) + 10;
    let mut bars = String::new();
    for (index, name) in names.iter().enumerate() {
        bar(&mut bars, document, name, ROW * (index + 1));
    }
    let one = LABEL + SCALE;
    format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>UVM beside Linux, per operation</title>\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<style>{STYLE}</style>\n\
         <h1>UVM beside Linux, per operation</h1>\n\
         <p>Bars: our instructions over Linux's, median of the runs; shorter is better. The grey line is Linux itself, the \
         dark tick is the aim. Boot is wall time in microseconds.</p>\n\
         <svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"ratios of instructions\">\n\
         <line class=\"one\" x1=\"{one}\" x2=\"{one}\" y1=\"20\" y2=\"{height}\"/>\n\
         <text x=\"{one}\" y=\"14\" text-anchor=\"middle\">Linux = 1</text>\n{bars}</svg>\n<pre>{}</pre>\n</html>\n",
        escape(about)
    )
}

const STYLE: &str = "body{font:15px/1.4 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#1d2433;\
background:#fff}svg{width:100%;height:auto;font-size:13px}.one{stroke:#9aa3b2;stroke-dasharray:4 3}.met{fill:#2f7d5b}\
.missed{fill:#b4432f}.plain{fill:#6b7a99}.aim{stroke:#1d2433;stroke-width:2}text{fill:#1d2433}pre{white-space:pre-wrap;\
font-size:12px;color:#475069}@media(prefers-color-scheme:dark){body{background:#12161f;color:#dfe4ee}text{fill:#dfe4ee}\
.aim{stroke:#dfe4ee}pre{color:#9aa3b2}}";

fn bar(out: &mut String, document: &Document, name: &str, y: usize) {
    let middle = y + 15;
    let _ = writeln!(
        out,
        "<text x=\"{}\" y=\"{middle}\" text-anchor=\"end\">{}</text>",
        LABEL - 10,
        escape(name)
    );
    let Some(ratio) = document.ratio(name) else {
        let _ = writeln!(out, "<text x=\"{}\" y=\"{middle}\">not measured on both</text>", LABEL + 6);
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
        let _ =
            writeln!(out, "<line class=\"aim\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{y}\" y2=\"{}\"/>", y + 22);
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

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
