//! The list of what is bounded, and why.
//!
//! Each entry is a line, and lines with the reason behind it, indented. `#` begins a remark; `*` at
//! a name's end stands for any rest.
//! ```text
//! calls NAME        all circles of calls through this function are bounded
//! never A -> B      a call that is in the code and can't be reached from a circle
//! owns NAME         values of this type own their like, and are dropped within a bound
//! other A -> B      A's field has a type of B's name, which isn't B
//! ```

use std::collections::BTreeSet;

use anyhow::{bail, ensure, Result};

use super::cycles::{self, Edges};
use super::Circle;

struct Entry {
    kind: &'static str,
    names: Vec<String>,
    line: usize,
}

pub struct List {
    entries: Vec<Entry>,
}

const KINDS: [&str; 4] = ["calls", "never", "owns", "other"];

impl List {
    pub fn parse(text: &str) -> Result<List> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut reasons = 1;
        for (line, text) in text.lines().enumerate().map(|(at, text)| (at + 1, text)) {
            if text.trim().is_empty() || text.starts_with('#') {
                continue;
            }
            if text.starts_with(' ') {
                reasons += 1;
                continue;
            }
            ensure!(reasons > 0, "recursion.txt:{line}: the entry before has no reason");
            let (kind, rest) = text.split_once(' ').unwrap_or((text, ""));
            let Some(kind) = KINDS.into_iter().find(|known| *known == kind) else {
                bail!("recursion.txt:{line}: begins with none of {KINDS:?}");
            };
            let names: Vec<String> =
                rest.split(" -> ").map(|name| name.trim().to_owned()).collect();
            let ends = if ["never", "other"].contains(&kind) { 2 } else { 1 };
            ensure!(names.len() == ends, "recursion.txt:{line}: {ends} names are wanted");
            entries.push(Entry { kind, names, line });
            reasons = 0;
        }
        ensure!(reasons > 0, "recursion.txt: the last entry has no reason");
        Ok(List { entries })
    }

    /// Compares a graph with the entries for it: `node` allows nodes, `edge` says which edges are
    /// none. `name` is a node's name in the list. Returns sentences on what differs.
    pub fn compare(
        &self,
        node: &str,
        edge: &str,
        edges: &Edges,
        name: impl Fn(&str) -> String,
    ) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut left = edges.clone();
        for entry in self.entries.iter().filter(|entry| entry.kind == edge) {
            let mut any = false;
            for (from, to) in left.iter_mut().filter(|(from, _)| fits(&entry.names[0], &name(from)))
            {
                let _ = from;
                let before = to.len();
                to.retain(|to| !fits(&entry.names[1], &name(to)));
                any |= to.len() != before;
            }
            if !any {
                wrong.push(format!("recursion.txt:{}: no such edge any more", entry.line));
            }
        }
        let circles = cycles::of(&left);
        let on_circles: BTreeSet<String> =
            circles.iter().flatten().map(|symbol| name(symbol)).collect();
        for entry in self.entries.iter().filter(|entry| entry.kind == node) {
            if !on_circles.iter().any(|name| fits(&entry.names[0], name)) {
                wrong.push(format!(
                    "recursion.txt:{}: {} is on no circle any more",
                    entry.line, entry.names[0]
                ));
            }
        }
        let is_listed = |symbol: &String| {
            let name = name(symbol);
            self.entries.iter().any(|entry| entry.kind == node && fits(&entry.names[0], &name))
        };
        left.retain(|symbol, _| !is_listed(symbol));
        left.values_mut().for_each(|to| to.retain(|symbol| !is_listed(symbol)));
        let mut seen = BTreeSet::new();
        for circle in cycles::of(&left) {
            let text = describe(node, &circle, &left, &name);
            // Instances of one generic function look alike.
            if seen.insert(text.clone()) {
                wrong.push(text);
            }
        }
        wrong
    }
}

/// A circle that the list lacks, with its edges.
fn describe(node: &str, circle: &Circle, edges: &Edges, name: &impl Fn(&str) -> String) -> String {
    let mut text = format!(
        "{node}: a circle that recursion.txt has no bound for: make it a loop, or say its bound"
    );
    for symbol in circle {
        let to: BTreeSet<String> =
            edges[symbol].intersection(circle).map(|symbol| name(symbol)).collect();
        let to = to.into_iter().collect::<Vec<_>>().join(", ");
        text.push_str(&format!("\n    {} -> {to}", name(symbol)));
    }
    text
}

fn fits(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == pattern,
    }
}
