//! Names for the addresses of a kernel panic, from the kernel's own debug information.

use crate::control::Report;
use addr2line::Loader;
use anyhow::{bail, Context, Result};
use object::{Object, ObjectSection, ObjectSymbol};
use std::collections::BTreeMap;
use std::path::Path;

/// What a report says about a panic, and about CPUs that hung, ready to be printed.
pub fn story(kernel: &Path, report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(panic) = &report.panic {
        lines.push(format!("kernel panic: {panic}"));
        lines.extend(shown(kernel, &report.frames));
    }
    for stack in &report.stacks {
        lines.push(stack.name.clone());
        lines.extend(shown(kernel, &stack.frames));
    }
    lines
}

fn shown(kernel: &Path, frames: &[u64]) -> Vec<String> {
    folded(&describe(kernel, frames)).into_iter().map(|line| format!("  {line}")).collect()
}

/// Lines that repeat, as those of a recursion, are folded up to this many together.
const LONGEST_PERIOD: usize = 16;

/// The lines with repetitions folded: what repeats once, and how often it comes again.
fn folded(lines: &[String]) -> Vec<String> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let rest = &lines[at..];
        // How many lines from here on repeat those that stand `period` before them.
        let repeated = |period: usize| {
            rest.iter().zip(rest.iter().skip(period)).take_while(|(one, next)| one == next).count()
                / period
        };
        let fold = (1..=LONGEST_PERIOD).map(|period| (period, repeated(period)));
        match fold.into_iter().find(|(period, times)| period * times >= 2) {
            Some((period, times)) => {
                out.extend_from_slice(&rest[..period]);
                let what = if period == 1 { "this one" } else { &format!("these {period},") };
                out.push(format!("… {what} {times} more times"));
                at += period * (times + 1);
            }
            None => {
                out.push(lines[at].clone());
                at += 1;
            }
        }
    }
    out
}

/// One line for each frame, inlined functions included: `function at file:line`.
fn describe(kernel: &Path, frames: &[u64]) -> Vec<String> {
    let Ok(loader) = Loader::new(kernel) else {
        return frames.iter().map(|address| format!("{address:#x}")).collect();
    };
    frames.iter().enumerate().flat_map(|(depth, &address)| frame(&loader, depth, address)).collect()
}

fn frame(loader: &Loader, depth: usize, address: u64) -> Vec<String> {
    // A return address is one past its call: look just before it, except for the frame that
    // stopped.
    let probe = if depth == 0 { address } else { address.saturating_sub(1) };
    let mut lines = Vec::new();
    if let Ok(mut frames) = loader.find_frames(probe) {
        while let Ok(Some(frame)) = frames.next() {
            let Some(name) =
                frame.function.and_then(|name| name.demangle().ok().map(|name| name.into_owned()))
            else {
                continue;
            };
            let place = frame.location.and_then(|place| {
                let file = place.file?;
                let short = file.rsplit_once("/kernel/").map_or(file, |(_, rest)| rest);
                Some(format!(" at {short}:{}", place.line.unwrap_or(0)))
            });
            lines.push(format!("{address:#x} {name}{}", place.unwrap_or_default()));
        }
    }
    if lines.is_empty() {
        let name =
            loader.find_symbol(probe).map(|name| format!("{:#}", rustc_demangle::demangle(name)));
        lines.push(format!("{address:#x} {}", name.unwrap_or_else(|| "?".to_owned())));
    }
    lines
}

/// Which edges of a kernel with counters were taken, by the table of addresses in its file.
pub struct Reached {
    /// Edges of each line of each file, and how many of them were taken.
    lines: BTreeMap<(String, u32), (usize, usize)>,
}

impl Reached {
    /// `bits` says which edges, in hexadecimal digits, the first edge in a digit's lowest bit.
    pub fn new(kernel: &Path, bits: &str) -> Result<Reached> {
        let bytes = std::fs::read(kernel)?;
        let file = object::File::parse(&*bytes)?;
        let symbol = |name: &str| {
            let symbol = file.symbols().find(|symbol| symbol.name() == Ok(name));
            symbol
                .map(|symbol| symbol.address())
                .with_context(|| format!("the kernel has no {name}"))
        };
        let (start, end) = (symbol("__start___sancov_pcs")?, symbol("__stop___sancov_pcs")?);
        let table = file
            .sections()
            .find_map(|section| section.data_range(start, end - start).ok().flatten());
        let table = table.context("the kernel has no table of edges")?;
        let Ok(loader) = Loader::new(kernel) else { bail!("the kernel has no debug information") };
        let mut lines = BTreeMap::new();
        // A record is an address and flags.
        for (edge, record) in table.chunks_exact(16).enumerate() {
            let address = u64::from_le_bytes(std::array::from_fn(|at| record[at]));
            let digit =
                bits.get(edge / 4..=edge / 4).and_then(|digit| u8::from_str_radix(digit, 16).ok());
            let taken = digit.unwrap_or(0) >> (edge % 4) & 1 != 0;
            let Ok(Some(place)) = loader.find_location(address) else { continue };
            let name = place.file.unwrap_or("?");
            let short = ["/kernel/src/", "/crates/"]
                .iter()
                .find_map(|part| name.find(part))
                .map(|at| &name[at + 1..]);
            let of = lines
                .entry((short.unwrap_or("others").to_owned(), place.line.unwrap_or(0)))
                .or_insert((0, 0));
            of.0 += 1;
            of.1 += usize::from(taken);
        }
        Ok(Reached { lines })
    }

    /// A line for each line of code: edges taken, edges, place.
    pub fn lines(&self) -> String {
        let line = |((file, line), (edges, taken)): (&(String, u32), &(usize, usize))| {
            format!("{taken}/{edges} {file}:{line}\n")
        };
        self.lines.iter().map(line).collect()
    }

    /// A line for each file: the share of its edges taken, edges taken, edges, place.
    pub fn files(&self) -> String {
        let mut files: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for ((file, _), (edges, taken)) in &self.lines {
            let of = files.entry(file).or_default();
            *of = (of.0 + edges, of.1 + taken);
        }
        files
            .iter()
            .map(|(file, (edges, taken))| {
                format!(
                    "{:5.1} % {taken:5} of {edges:5} {file}\n",
                    *taken as f64 * 100.0 / *edges as f64
                )
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recursion_is_told_once() {
        let lines = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let deep = lines("a b b b b c d c d c d e");
        assert_eq!(
            folded(&deep),
            ["a", "b", "… this one 3 more times", "c", "d", "… these 2, 2 more times", "e"]
        );
        assert_eq!(folded(&lines("a b a c c")), ["a", "b", "a", "c", "c"]);
    }
}
