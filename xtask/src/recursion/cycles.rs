//! Circles in a graph: its strongly connected parts of more than one node, or of one that reaches
//! itself (Tarjan 1972), in a loop of our own.

use std::collections::{BTreeMap, BTreeSet};

use super::Circle;

pub type Edges = BTreeMap<String, BTreeSet<String>>;

#[derive(Clone, Copy, Default)]
struct Mark {
    order: usize,
    low: usize,
    open: bool,
}

/// The circles, by their first names.
pub fn of(edges: &Edges) -> Vec<Circle> {
    let mut marks: BTreeMap<&str, Mark> = BTreeMap::new();
    let (mut open, mut circles): (Vec<&str>, Vec<Circle>) = (Vec::new(), Vec::new());
    for root in edges.keys() {
        let mut path: Vec<(&str, Vec<&str>)> = Vec::new();
        let mut next = (!marks.contains_key(root.as_str())).then_some(root.as_str());
        loop {
            if let Some(node) = next.take() {
                let order = marks.len() + 1;
                marks.insert(node, Mark { order, low: order, open: true });
                open.push(node);
                path.push((
                    node,
                    edges.get(node).into_iter().flatten().map(String::as_str).collect(),
                ));
            }
            let Some((node, left)) = path.last_mut() else { break };
            let node = *node;
            if let Some(to) = left.pop() {
                match marks.get(to).copied() {
                    None => next = Some(to),
                    Some(mark) if mark.open => lower(&mut marks, node, mark.order),
                    Some(_) => (),
                }
                continue;
            }
            path.pop();
            let mark = marks[node];
            if let Some((above, _)) = path.last() {
                lower(&mut marks, above, mark.low);
            }
            if mark.low == mark.order {
                let at = open.iter().rposition(|&other| other == node).unwrap_or(0);
                let part = open.split_off(at);
                part.iter().for_each(|member| marks.entry(member).or_default().open = false);
                if part.len() > 1 || edges.get(node).is_some_and(|to| to.contains(node)) {
                    circles.push(part.into_iter().map(str::to_owned).collect());
                }
            }
        }
    }
    circles.sort();
    circles
}

fn lower<'a>(marks: &mut BTreeMap<&'a str, Mark>, node: &'a str, low: usize) {
    let mark = marks.entry(node).or_default();
    mark.low = mark.low.min(low);
}
