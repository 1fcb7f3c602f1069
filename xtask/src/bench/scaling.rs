//! The report's part about `bench smp`: what the second CPU brings, by operation and workers.

use super::html::{bars, figure, folded, table as html_table, Bar};
use super::smp::{NO_KERNEL, WORKERS};
use super::table::number;
use super::{html::escape, Document};

/// What two CPUs do, by what one does.
pub fn figures(document: &Document) -> String {
    let mut pictures = String::new();
    for (_, workers) in WORKERS {
        let all: Vec<Bar> = operations(document)
            .filter(|(operation, two)| *two == workers && *operation != NO_KERNEL)
            .flat_map(|(operation, two)| {
                [("uvm", "UVM", "ours"), ("linux", "Linux", "linux")].map(
                    |(system, kernel, class)| {
                        let row = document.value(&format!("{operation}: {two} / one"), system)?;
                        Some(Bar {
                            name: format!("{operation}, {kernel}"),
                            class,
                            value: row.value,
                            aim: None,
                            number: format!("{:.3}", row.value),
                        })
                    },
                )
            })
            .flatten()
            .collect();
        if !all.is_empty() {
            let title = format!("What {workers} do, by what one does");
            let caption = "Longer is better: at the thin line the second CPU brings all of itself.";
            pictures += &figure(&title, &bars(&all, Some(2.2), Some(2.0)), caption);
        }
    }
    format!(
        "<div class=\"pictures\">{pictures}</div>\n{}",
        folded("Operations a second, one and two", &table(document))
    )
}

/// The rows of these operations.
pub fn names(operations: &[String]) -> Vec<String> {
    let rows = operations.iter().flat_map(|operation| {
        WORKERS.iter().flat_map(move |(one, two)| {
            [one.to_string(), two.to_string(), format!("{two} / one")]
                .map(|workers| format!("{operation}: {workers}"))
        })
    });
    rows.collect()
}

/// Operations, each with what two workers are called.
fn operations(document: &Document) -> impl Iterator<Item = (&str, &str)> {
    let names = document.names().into_iter().filter_map(|name| name.split_once(": "));
    names.filter(|(_, two)| WORKERS.iter().any(|(_, both)| both == two))
}

fn table(document: &Document) -> String {
    let value = |name: &str, system: &str| document.value(name, system).map(|row| row.value);
    let rate = |name: &str, system: &str| value(name, system).map_or("-".to_owned(), number);
    let small = |name: &str, system: &str| {
        value(name, system).map_or("-".to_owned(), |value| format!("{value:.3}"))
    };
    let mut rows = Vec::new();
    for (operation, two) in operations(document) {
        let Some((one, _)) = WORKERS.iter().find(|(_, both)| *both == two) else { continue };
        let (one, name) = (format!("{operation}: {one}"), format!("{operation}: {two}"));
        rows.push(vec![
            escape(&name),
            rate(&one, "uvm"),
            rate(&name, "uvm"),
            small(&format!("{name} / one"), "uvm"),
            rate(&one, "linux"),
            rate(&name, "linux"),
            small(&format!("{name} / one"), "linux"),
            document.ratio(&name).map_or("-".to_owned(), |ratio| format!("{ratio:.2}")),
            small(&format!("{name}, rounds"), "uvm"),
            small(&format!("{name}, interrupts"), "uvm"),
            small(&format!("{name}, interrupts"), "linux"),
        ]);
    }
    let head = [
        "operations a second (more is better)",
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
        let page = figures(&Document { about: String::new(), rows });
        for part in
            ["<td>a: two threads</td><td>5</td><td>9</td><td>1.800</td><td>-</td>", "a, UVM"]
        {
            assert!(page.contains(part), "no {part} in {page}");
        }
    }
}
