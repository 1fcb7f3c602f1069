//! The modules' layers: which module names which, held against `xtask/layers.txt`.
//!
//! ```text
//!   [kernel/src]                       a folder, whose modules are its folders and files
//!   order syscall net fs ..            from top to bottom; each may name those behind it
//!   up fs -> net                       and this one, though it stands above
//!   only uvm vm mem/frames.rs          paths begin with `uvm::` in these modules and files alone
//! ```
//! An arrow up that isn't listed fails, and so does a line that nothing needs any more: the list
//! only shrinks.

use super::{failed, Verdict};
use crate::build;
use anyhow::{bail, Context, Result};
use regex::Regex;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const LIST: &str = "xtask/layers.txt";

/// A module that names another.
type Arrow = (String, String);

/// What is said of a folder.
#[derive(Default)]
struct Layers {
    order: Vec<String>,
    up: BTreeSet<Arrow>,
    /// By the first word of a path, the modules and files that may name it.
    only: BTreeMap<String, BTreeSet<String>>,
}

pub fn check() -> Result<Verdict> {
    let text = std::fs::read_to_string(build::root().join(LIST)).context(LIST)?;
    let mut wrong = Vec::new();
    for (folder, layers) in parse(&text)? {
        let mut arrows = BTreeMap::new();
        look_into(&build::root().join(&folder), None, &mut arrows)?;
        let mut lines = judge(&layers, &arrows);
        for (word, places) in &layers.only {
            let mut found = BTreeSet::new();
            let path = Regex::new(&format!(r"(?:^|[^:\w])(?:::)?{word}::"))?;
            find(&build::root().join(&folder), Path::new(""), &path, &mut found)?;
            lines.extend(judge_places(word, places, &found));
        }
        wrong.extend(lines.into_iter().map(|line| format!("{folder}: {line}")));
    }
    Ok(if wrong.is_empty() { Verdict::Passed { tests: 1 } } else { failed(wrong.join("\n")) })
}

fn parse(text: &str) -> Result<BTreeMap<String, Layers>> {
    let mut all = BTreeMap::<String, Layers>::new();
    let mut folder = String::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let layers = all.entry(folder.clone()).or_default();
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            folder = name.to_owned();
        } else if let Some(order) = line.strip_prefix("order ") {
            layers.order.extend(order.split_whitespace().map(str::to_owned));
        } else if let Some((from, to)) = line.strip_prefix("up ").and_then(|l| l.split_once(" -> "))
        {
            layers.up.insert((from.to_owned(), to.to_owned()));
        } else if let Some((word, places)) =
            line.strip_prefix("only ").and_then(|line| line.split_once(' '))
        {
            let places = places.split_whitespace().map(str::to_owned);
            layers.only.entry(word.to_owned()).or_default().extend(places);
        } else {
            bail!("{LIST}: `{line}`");
        }
    }
    all.remove("");
    Ok(all)
}

/// Which module names which, with a file that does. `module` is that of all files in the folder;
/// none where each has its own.
fn look_into(
    folder: &Path,
    module: Option<&str>,
    arrows: &mut BTreeMap<Arrow, String>,
) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let module = module.unwrap_or(&stem);
        if path.is_dir() {
            look_into(&path, Some(module), arrows)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            for named in names(&std::fs::read_to_string(&path)?) {
                let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                arrows.entry((module.to_owned(), named)).or_insert(file);
            }
        }
    }
    Ok(())
}

/// The files under `root`, as paths from there, whose code has such a path.
fn find(root: &Path, inner: &Path, path: &Regex, found: &mut BTreeSet<String>) -> Result<()> {
    let folder = root.join(inner);
    for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let file = inner.join(entry?.file_name());
        if root.join(&file).is_dir() {
            find(root, &file, path, found)?;
        } else if file.extension().is_some_and(|extension| extension == "rs")
            && path.is_match(&code(&std::fs::read_to_string(root.join(&file))?))
        {
            found.insert(file.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

/// What is wrong with the files where a word was `found` that only some places may name.
fn judge_places(word: &str, places: &BTreeSet<String>, found: &BTreeSet<String>) -> Vec<String> {
    let is_in = |file: &String, place: &String| {
        file == place || file.strip_prefix(place.as_str()).is_some_and(|rest| rest.starts_with('/'))
    };
    let strays = found.iter().filter(|file| !places.iter().any(|place| is_in(file, place)));
    let strays = strays.map(|file| format!("{file} may not name {word}::"));
    let needless = places.iter().filter(|place| !found.iter().any(|file| is_in(file, place)));
    strays.chain(needless.map(|place| format!("{LIST} needs no `only {word} {place}`"))).collect()
}

/// A text without its comments.
fn code(text: &str) -> String {
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// The modules that a text names by their paths from the crate.
fn names(text: &str) -> BTreeSet<String> {
    let code = code(text);
    let path = Regex::new(r"\bcrate::(?:(\w+)|\{([^;]*)\})").expect("it is one");
    let first = Regex::new(r"(?:^|,)\s*(\w+)").expect("it is one");
    let mut names = BTreeSet::new();
    for found in path.captures_iter(&code) {
        if let Some(name) = found.get(1) {
            names.insert(name.as_str().to_owned());
        } else if let Some(group) = found.get(2) {
            names.extend(first.captures_iter(group.as_str()).map(|name| name[1].to_owned()));
        }
    }
    names
}

/// What is wrong with the arrows between modules of the order.
fn judge(layers: &Layers, arrows: &BTreeMap<Arrow, String>) -> Vec<String> {
    let place = |module: &String| layers.order.iter().position(|other| other == module);
    let goes_up =
        |(from, to): &Arrow| place(from).zip(place(to)).is_some_and(|(from, to)| from > to);
    let new = arrows.iter().filter(|(arrow, _)| goes_up(arrow) && !layers.up.contains(*arrow));
    let new = new.map(|((from, to), file)| {
        format!("{from} may not name {to}, which stands above it ({file})")
    });
    let needless = layers.up.iter().filter(|arrow| !goes_up(arrow) || !arrows.contains_key(*arrow));
    let needless = needless.map(|(from, to)| format!("{LIST} needs no `up {from} -> {to}`"));
    let unknown = arrows.keys().map(|(from, _)| from).filter(|from| place(from).is_none());
    let unknown: BTreeSet<String> = unknown
        .filter(|from| !["lib", "main"].contains(&from.as_str()))
        .map(|from| format!("{from} has no place in {LIST}"))
        .collect();
    new.chain(needless).chain(unknown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrows_up_are_found_and_so_are_lines_that_nothing_needs() {
        let list =
            "# of a test\n[a/src]\norder top middle bottom\nup middle -> top\nup bottom -> top\n";
        let layers = &parse(list).expect("it parses")["a/src"];
        let code = "use crate::{bottom::X, top};\n// crate::other\nfn f() { crate::middle::g() }\n";
        assert_eq!(names(code).into_iter().collect::<Vec<_>>(), ["bottom", "middle", "top"]);
        let arrow = |from: &str, to: &str| ((from.to_owned(), to.to_owned()), "x.rs".to_owned());
        let arrows = [
            arrow("top", "bottom"),
            arrow("middle", "top"),
            arrow("bottom", "middle"),
            arrow("new", "top"),
        ];
        assert_eq!(
            judge(layers, &arrows.into_iter().collect()),
            [
                "bottom may not name middle, which stands above it (x.rs)",
                "xtask/layers.txt needs no `up bottom -> top`",
                "new has no place in xtask/layers.txt",
            ]
        );
        assert!(parse("[a]\nwhat\n").is_err());
    }

    #[test]
    fn a_word_is_named_by_its_places_alone() {
        let layers = &parse("[a/src]\nonly lib top low/one.rs gone\n").expect("it parses")["a/src"];
        let found = ["top/a.rs", "low/one.rs", "low/other.rs", "topmost.rs"].map(str::to_owned);
        assert_eq!(
            judge_places("lib", &layers.only["lib"], &found.into_iter().collect()),
            [
                "low/other.rs may not name lib::",
                "topmost.rs may not name lib::",
                "xtask/layers.txt needs no `only lib gone`",
            ]
        );
    }
}
