//! The table that `./uvm bench` prints.

use super::micro::target;
use super::{Document, Row};
use crate::ui;
use std::fmt::Write;

pub fn render(document: &Document) -> String {
    let mut out = String::new();
    let names = document.names();
    let width = names.iter().map(|name| name.len()).max().unwrap_or(0).max(4);
    let _ = writeln!(
        out,
        "{:width$}  {:>11} {:>19}  {:>11} {:>19}  {:>6}  target",
        "each", "uvm", "min..max", "linux", "min..max", "ratio"
    );
    for name in names {
        let _ = write!(out, "{name:width$}");
        for system in ["uvm", "linux"] {
            let (value, spread) = document.value(name, system).map_or(("-".to_owned(), String::new()), cells);
            let _ = write!(out, "  {value:>11} {spread:>19}");
        }
        let ratio = document.ratio(name);
        let shown = ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.3}"));
        let _ = writeln!(out, "  {shown:>6}  {}", verdict(name, ratio));
    }
    let _ = writeln!(
        out,
        "\nInstructions per operation (median of the runs), unless a unit is named; ratio is uvm / linux."
    );
    out
}

fn cells(row: &Row) -> (String, String) {
    let unit = if row.metric == "instructions" { String::new() } else { format!(" {}", row.metric) };
    (format!("{}{unit}", number(row.value)), format!("{}..{}", number(row.min), number(row.max)))
}

/// `12,345`, or one decimal below a hundred.
pub fn number(value: f64) -> String {
    if value.abs() < 100.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{:.0}", value.abs());
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

fn verdict(name: &str, ratio: Option<f64>) -> String {
    match (target(name), ratio) {
        (None, _) => "none".to_owned(),
        (Some(limit), None) => format!("{limit} not measured"),
        (Some(limit), Some(ratio)) if ratio <= limit => ui::green(&format!("{limit} met")),
        (Some(limit), Some(_)) => ui::red(&format!("{limit} missed")),
    }
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn thousands_are_parted() {
        assert_eq!(number(4.04), "4.0");
        assert_eq!(number(326.0), "326");
        assert_eq!(number(6_675_094.0), "6,675,094");
    }
}
