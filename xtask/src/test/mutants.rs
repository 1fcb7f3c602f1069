//! Mutants: small changes to the code, one at a time, each of which some test must notice.
//!
//! cargo-mutants makes them in a copy of the tree. Each part of the code is held against the tests
//! that are meant for it, built with the profile `mutants`, so that one takes seconds. What
//! survives must stand in `xtask/mutants.txt`:
//! ```text
//! crates/uvm/src/amap/cover.rs: replace < with <= in join
//!     The reason why it may survive, indented.
//! 2x crates/uvm/src/amap/cover.rs: replace < with <= in join       two of them, in different places of one function
//! ```
//! Several lines one after the other share the reason below them. Places are left out, since every
//! change above them would move them. `#` begins a remark. `UVM_MUTANTS='in join' ./uvm test --long
//! host/mutants` makes those whose names the expression fits, and no others.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{bail, ensure, Context, Result};

use super::host::{output, tail, text};
use super::{failed, Verdict};
use crate::build;

/// Files, and the tests that hold them.
struct Part {
    files: &'static [&'static str],
    /// Which mutants of them, as an expression that their names fit: of functions that have been
    /// gone through.
    names: &'static str,
    /// Which of those not, as another; nothing for none.
    but: &'static str,
    /// What cargo builds: packages as `--test-package` has them, and the rest of its arguments.
    packages: &'static str,
    cargo: &'static [&'static str],
    /// Which of the tests run.
    tests: &'static [&'static str],
}

const PARTS: &[Part] = &[
    Part {
        files: &["crates/uvm/src/amap/cover.rs"],
        names: ".",
        but: "",
        packages: "uvm-vm",
        cargo: &["--lib"],
        tests: &["cover::"],
    },
    Part {
        files: &["crates/uvm/src/map/tree/*.rs"],
        names: ".",
        // Nothing but a bug in these files makes a tree that `check` refuses.
        but: r"(in|replace) (Tree|Node)<E>::check( |$)",
        packages: "uvm-vm",
        cargo: &["--lib"],
        // Those that count looks and levels of large trees take long, and call nothing of these
        // files that others don't.
        tests: &["map::tree::", "--", "--skip=no_order"],
    },
    Part {
        files: &["crates/uvm-page/src/*.rs"],
        names: ".",
        but: "",
        packages: "uvm-page",
        cargo: &["--test=page"],
        tests: &[],
    },
    Part {
        files: &["crates/machine/src/shared.rs"],
        names: ".",
        but: "",
        packages: "uvm-soft",
        cargo: &["--package=uvm-soft", "--test=shared"],
        tests: &[],
    },
    Part {
        files: &[
            "crates/uvm/src/loanout/give.rs",
            "crates/uvm/src/loanout/mod.rs",
            "crates/uvm/src/loan/list.rs",
            "crates/uvm/src/loan/mod.rs",
        ],
        names: ".",
        but: "",
        packages: "uvm-vm",
        cargo: &["--test=moving", "--test=lists", "--test=dropped"],
        tests: &[],
    },
];

/// Mutants by name, and how many there are of each.
type Mutants = BTreeMap<String, u64>;

const LIST: &str = "xtask/mutants.txt";

/// Seconds after which a mutant's tests count as having noticed it: they take two otherwise.
const TIMEOUT: &str = "--timeout=20";

pub fn check() -> Result<Verdict> {
    let listed = parse(&std::fs::read_to_string(build::root().join(LIST)).context(LIST)?)?;
    let Some(tool) = tool()? else {
        let reason =
            "cargo-mutants can't be installed here (`cargo install cargo-mutants --locked`)";
        return Ok(Verdict::Skipped(reason.to_owned()));
    };
    let some = std::env::var("UVM_MUTANTS").ok();
    let (mut survivors, mut late, mut caught) = (Mutants::new(), Mutants::new(), Mutants::new());
    for (at, part) in PARTS.iter().enumerate() {
        let folder = build::scratch("mutants-found")?.join(at.to_string());
        // What an earlier run found isn't this one's.
        let _ = std::fs::remove_dir_all(&folder);
        let output = output(&mut run(&tool, part, some.as_deref(), &folder)?)?;
        // 0: all noticed; 2: some missed; 3: some ran out of time, as endless loops do.
        if !matches!(output.status.code(), Some(0 | 2 | 3)) {
            return Ok(failed(format!("{:?}:\n{}", part.files, tail(&text(&output), 40))));
        }
        for (name, mutants) in [
            ("missed.txt", &mut survivors),
            ("timeout.txt", &mut late),
            ("caught.txt", &mut caught),
        ] {
            let names =
                std::fs::read_to_string(folder.join("mutants.out").join(name)).unwrap_or_default();
            names.lines().for_each(|name| *mutants.entry(without_place(name)).or_default() += 1);
        }
    }
    let tests = late.values().chain(caught.values()).sum();
    let mut wrong = unlisted(&survivors, &listed);
    if some.is_none() {
        wrong.extend(unneeded(&survivors, &late, &listed));
        if tests == 0 {
            wrong.push("cargo-mutants made no mutants".to_owned());
        }
    }
    Ok(match wrong.is_empty() {
        true => Verdict::Passed { tests },
        false => {
            Verdict::Failed { passed: tests, failed: wrong.len() as u64, details: wrong.join("\n") }
        }
    })
}

/// The program, installed under `target/` at need; none if it can't be.
fn tool() -> Result<Option<std::path::PathBuf>> {
    let tools = build::scratch("tools")?;
    let program = tools.join("bin/cargo-mutants");
    if !program.exists() {
        let mut install = Command::new("cargo");
        install.args(["install", "cargo-mutants", "--locked", "--debug", "--root"]).arg(&tools);
        if !output(&mut install)?.status.success() {
            return Ok(None);
        }
    }
    Ok(Some(program))
}

fn run(tool: &Path, part: &Part, some: Option<&str>, found: &Path) -> Result<Command> {
    let mut command = Command::new(tool);
    command
        .current_dir(build::root())
        .arg("mutants")
        .env("CARGO_TARGET_DIR", build::scratch("mutants")?);
    command.args(["--profile=mutants", "--colors=never", TIMEOUT, "--test-package", part.packages]);
    command.args(["--re", some.unwrap_or(part.names)]);
    if !part.but.is_empty() {
        command.args(["--exclude-re", part.but]);
    }
    for file in part.files {
        command.args(["--file", file]);
    }
    for argument in part.cargo {
        command.arg(format!("--cargo-arg={argument}"));
    }
    command.arg("--output").arg(found).arg("--").args(part.tests);
    Ok(command)
}

/// A mutant's name as the list has it.
fn without_place(mutant: &str) -> String {
    let mut pieces = mutant.splitn(4, ':');
    match (pieces.next(), pieces.next(), pieces.next(), pieces.next()) {
        (Some(file), Some(_line), Some(_column), Some(what)) => format!("{file}:{what}"),
        _ => mutant.to_owned(),
    }
}

/// Mutants that may survive, with how many of each.
fn parse(list: &str) -> Result<Mutants> {
    let mut listed = Mutants::new();
    let mut reasons = 1;
    for (line, text) in list.lines().enumerate().map(|(at, text)| (at + 1, text)) {
        if text.trim().is_empty() || text.starts_with('#') {
            ensure!(reasons > 0, "{LIST}:{line}: the mutant before has no reason");
            continue;
        }
        if text.starts_with(' ') {
            reasons += 1;
            continue;
        }
        let (count, name) = match text.split_once("x ") {
            Some((count, name)) if count.parse::<u64>().is_ok() => (count.parse()?, name),
            _ => (1, text),
        };
        if listed.insert(name.trim().to_owned(), count).is_some() {
            bail!("{LIST}:{line}: stands there twice; say `2x`");
        }
        reasons = 0;
    }
    ensure!(reasons > 0, "{LIST}: the last mutant has no reason");
    Ok(listed)
}

/// Sentences on those that survive and may not.
fn unlisted(survivors: &Mutants, listed: &Mutants) -> Vec<String> {
    let may = |mutant: &String| listed.get(mutant).copied().unwrap_or(0);
    survivors
        .iter()
        .filter(|&(mutant, &count)| count > may(mutant))
        .map(|(mutant, count)| {
            let may = may(mutant);
            format!("{mutant}: {count} survive, {may} may: add a test, or say in {LIST} why")
        })
        .collect()
}

/// Sentences on those that may survive and don't. One that was late on a busy host may be such a
/// one.
fn unneeded(survivors: &Mutants, late: &Mutants, listed: &Mutants) -> Vec<String> {
    let count =
        |mutant: &String| survivors.get(mutant).unwrap_or(&0) + late.get(mutant).unwrap_or(&0);
    listed
        .iter()
        .filter(|&(mutant, &may)| count(mutant) < may)
        .map(|(mutant, may)| format!("{mutant}: {may} may survive by {LIST}, {} do", count(mutant)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "src/a.rs: replace < with <= in f";

    fn times(count: u64) -> Mutants {
        Mutants::from([(without_place("src/a.rs:7:12: replace < with <= in f"), count)])
    }

    #[test]
    fn a_survivor_must_be_listed_as_often_as_it_survives() {
        let none = Mutants::new();
        let once = parse(&format!("# A remark.\n{NAME}\n    Equal.\n")).unwrap();
        assert!(
            unlisted(&times(1), &once).is_empty() && unneeded(&times(1), &none, &once).is_empty()
        );
        assert_eq!((unlisted(&times(1), &none).len(), unlisted(&times(2), &once).len()), (1, 1));
        let twice = parse(&format!("2x {NAME}\n    Equal.\n")).unwrap();
        assert!(unlisted(&times(2), &twice).is_empty());
        assert_eq!(unneeded(&times(1), &none, &twice).len(), 1, "a line that nothing needs");
        assert!(unneeded(&times(1), &times(1), &twice).is_empty(), "it was late");
    }

    #[test]
    fn a_mutant_needs_a_reason() {
        assert!(parse(&format!("{NAME}\n\nother\n    Equal.\n")).is_err());
        assert_eq!(
            parse(&format!("{NAME}\nother\n    Equal.\n")).unwrap().len(),
            2,
            "they share it"
        );
        assert!(parse(&format!("{NAME}\n")).is_err());
        assert!(parse(&format!("{NAME}\n    Equal.\n{NAME}\n    Equal.\n")).is_err());
    }
}
