//! The table that `./uvm bench` prints.

use super::{Better, Document, Row, Verdict};
use crate::ui;
use std::fmt::Write;

pub fn render(document: &Document, verdict: impl Fn(&str) -> Verdict) -> String {
    let mut out = String::new();
    let names = document.names();
    let width = names.iter().map(|name| name.len()).max().unwrap_or(0).max(4);
    let units = document.rows.iter().map(|row| row.metric.len()).max().unwrap_or(0);
    let _ = writeln!(
        out,
        "{:width$}  {:units$} better  {:>12} {:>19}  {:>12} {:>19}  {:>7}  bar",
        "each", "unit", "uvm", "min..max", "linux", "min..max", "ratio"
    );
    for name in names {
        let metric = document.metric(name);
        let better = Better::of(name, metric).word();
        let _ = write!(out, "{name:width$}  {metric:units$} {better:6}");
        for system in ["uvm", "linux"] {
            let (value, spread) =
                document.value(name, system).map_or(("-".to_owned(), String::new()), cells);
            let _ = write!(out, "  {value:>12} {spread:>19}");
        }
        let ratio = document.ratio(name).map_or("-".to_owned(), |ratio| format!("{ratio:.3}"));
        let _ = writeln!(out, "  {ratio:>7}  {}", words(verdict(name)));
    }
    let _ = writeln!(out, "\nMedians of the runs; ratio is uvm / linux.");
    out
}

fn words(verdict: Verdict) -> String {
    match verdict {
        Verdict::NoBar => "none".to_owned(),
        Verdict::NotMeasured(bar) => format!("{bar}: not measured"),
        Verdict::Met(bar) => ui::green(&format!("{bar}: met")),
        Verdict::Missed(bar) => ui::red(&format!("{bar}: missed")),
    }
}

fn cells(row: &Row) -> (String, String) {
    let [value, min, max] = [row.value, row.min, row.max].map(|value| in_unit(value, &row.metric));
    (value, format!("{min}..{max}"))
}

/// A value as exact as its unit asks for.
pub fn in_unit(value: f64, unit: &str) -> String {
    match unit {
        "times" | "each" => format!("{value:.3}"),
        _ => number(value),
    }
}

/// `12,345`, or one decimal below a hundred where it is not whole.
pub fn number(value: f64) -> String {
    if value.abs() < 100.0 && value.fract() != 0.0 {
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

#[cfg(test)]
mod tests {
    use super::{in_unit, number};

    #[test]
    fn thousands_are_parted() {
        assert_eq!(number(4.04), "4.0");
        assert_eq!(in_unit(1.7986, "times"), "1.799");
        assert_eq!(number(4.0), "4");
        assert_eq!(number(326.0), "326");
        assert_eq!(number(6_675_094.0), "6,675,094");
    }
}
