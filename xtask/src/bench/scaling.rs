//! The report's part about `bench smp`: what the second CPU brings, one line for each operation and
//! kind of worker.

use super::report::{escape, table as html_table};
use super::smp::WORKERS;
use super::table::number;
use super::Document;

pub fn table(document: &Document) -> String {
    let value = |name: &str, system: &str| document.value(name, system).map(|row| row.value);
    let rate = |name: &str, system: &str| value(name, system).map_or("-".to_owned(), number);
    let small = |name: &str, system: &str| {
        value(name, system).map_or("-".to_owned(), |value| format!("{value:.3}"))
    };
    let mut rows = Vec::new();
    for name in document.names() {
        let Some((operation, two)) = name.split_once(": ") else { continue };
        let Some((one, _)) = WORKERS.iter().find(|(_, both)| *both == two) else { continue };
        let one = format!("{operation}: {one}");
        rows.push(vec![
            escape(name),
            rate(&one, "uvm"),
            rate(name, "uvm"),
            small(&format!("{name} / one"), "uvm"),
            rate(&one, "linux"),
            rate(name, "linux"),
            small(&format!("{name} / one"), "linux"),
            document.ratio(name).map_or("-".to_owned(), |ratio| format!("{ratio:.2}")),
            small(&format!("{name}, rounds"), "uvm"),
            small(&format!("{name}, interrupts"), "uvm"),
            small(&format!("{name}, interrupts"), "linux"),
        ]);
    }
    let head = [
        "operations a second",
        "UVM: one",
        "two",
        "two / one",
        "Linux: one",
        "two",
        "two / one",
        "UVM / Linux at two",
        "rounds each",
        "interrupts each, UVM",
        "Linux",
    ];
    format!(
        "{}<p>Each worker has a CPU of its own. Rounds are shootdowns that had to ask another CPU.</p>\n",
        html_table(&head, &rows)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Row;

    #[test]
    fn a_line_holds_what_belongs_together() {
        let rows = [("a: one thread", 5.0), ("a: two threads", 9.0), ("a: two threads / one", 1.8)];
        let rows = rows.iter().map(|(name, value)| Row::of(name, "uvm", "/s", &[*value])).collect();
        let page = table(&Document { about: String::new(), rows });
        assert!(
            page.contains("<td>a: two threads</td><td>5</td><td>9</td><td>1.800</td><td>-</td>"),
            "{page}"
        );
    }
}
