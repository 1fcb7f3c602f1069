//! Which function calls which in the kernel's own code, dependencies and the compiler's drops
//! included.
//!
//! A function that the compiler has put into its caller isn't seen, nor a call that has become a
//! jump: neither takes stack of its own each time round. A call through a `dyn` isn't seen either:
//! for drops, where such circles lie, `owners.rs` looks at types.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::cycles::Edges;

/// An edge from each function of an ELF file to those that it calls, by symbols.
///
/// # Errors
/// `objdump` can't be run.
pub fn edges(elf: &Path) -> Result<Edges> {
    let mut objdump = Command::new("objdump")
        .args(["-d", "--no-show-raw-insn"])
        .arg(elf)
        .stdout(Stdio::piped())
        .spawn()
        .context("can't run objdump (package binutils)")?;
    let output = objdump.stdout.take().context("objdump has an output")?;
    let edges = parse(BufReader::new(output).lines().map_while(Result::ok));
    objdump.wait()?;
    Ok(edges)
}

/// `ffffffff80012345 <symbol>:` begins a function, `... call ffffffff80012345 <symbol>` is a call.
pub fn parse(lines: impl Iterator<Item = String>) -> Edges {
    let mut edges = Edges::new();
    let mut here = String::new();
    for line in lines {
        if let Some((_, name)) = line.strip_suffix(">:").and_then(|line| line.split_once(" <")) {
            here = name.to_owned();
            edges.entry(here.clone()).or_default();
            continue;
        }
        let called =
            line.split_once("\tcall ").and_then(|(_, to)| to.strip_suffix('>')?.split_once('<'));
        if let Some((_, name)) = called {
            edges.entry(here.clone()).or_default().insert(name.to_owned());
        }
    }
    edges
}

/// A symbol as the source has it, without the compiler's hash.
pub fn name(symbol: &str) -> String {
    format!("{:#}", rustc_demangle::demangle(symbol))
}
