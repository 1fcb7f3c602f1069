//! The modules' layers: which module names which, held against `xtask/layers.txt`.
//!
//! ```text
//!   [kernel/src]                       a folder, whose modules are its folders and files
//!   order syscall net fs ..            from top to bottom; each may name those behind it
//!   up fs -> net                       and this one, though it stands above
//!   root Uvm                           what the root has itself, and all modules may name
//!   only uvm vm mem/frames.rs          paths begin with `uvm::` in these modules and files alone
//! ```
//! A name that the root has from a module is that module's, however it is written; and so is a
//! method of what `root` names, where a variable of the same name has it or its own methods do.
//!
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
    /// What the root has itself, and all may name.
    root: BTreeSet<String>,
    /// By the first word of a path, the modules and files that may name it.
    only: BTreeMap<String, BTreeSet<String>>,
}

pub fn check() -> Result<Verdict> {
    let text = std::fs::read_to_string(build::root().join(LIST)).context(LIST)?;
    let mut wrong = Vec::new();
    for (folder, layers) in parse(&text)? {
        let path = build::root().join(&folder);
        let mut root = Root::read(&path)?;
        for own in &layers.root {
            root.find_methods(&path, None, own)?;
        }
        let mut arrows = BTreeMap::new();
        look_into(&path, None, &root, &mut arrows)?;
        let mut lines = judge(&layers, &root, &arrows);
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
        } else if let Some(names) = line.strip_prefix("root ") {
            layers.root.extend(names.split_whitespace().map(str::to_owned));
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

/// What a crate's root has.
#[derive(Default)]
struct Root {
    /// The module that a name is from.
    from: BTreeMap<String, String>,
    /// What is written there.
    own: BTreeSet<String>,
    /// Of each that all may name, the modules that its methods are in.
    methods: BTreeMap<String, BTreeMap<String, String>>,
}

impl Root {
    fn read(folder: &Path) -> Result<Root> {
        let file = ["lib.rs", "main.rs"].map(|name| folder.join(name));
        let file = file.iter().find(|file| file.exists());
        file.map_or(Ok(Root::default()), |file| Ok(Root::of(&std::fs::read_to_string(file)?)))
    }

    /// Finds the methods of a type of the root's, in whatever module.
    fn find_methods(&mut self, folder: &Path, module: Option<&str>, own: &str) -> Result<()> {
        let names = Regex::new(r"(?m)^ {4}(?:pub(?:\(\w+\))? )?fn (\w+)").expect("it is one");
        for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let module = module.unwrap_or(&stem);
            if path.is_dir() {
                self.find_methods(&path, Some(module), own)?;
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                for block in blocks(&code(&std::fs::read_to_string(&path)?), own) {
                    let methods = self.methods.entry(own.to_owned()).or_default();
                    let found = names.captures_iter(&block);
                    methods.extend(found.map(|name| (name[1].to_owned(), module.to_owned())));
                }
            }
        }
        Ok(())
    }

    /// The modules whose methods of the root's types a text calls.
    fn called(&self, text: &str) -> BTreeSet<String> {
        let code = code(text);
        let mut modules = BTreeSet::new();
        for (own, methods) in &self.methods {
            let variable = format!(r"\b{}\s*\.(\w+)\(", own.to_lowercase());
            let calls = |pattern: &str, text: &str| -> Vec<String> {
                let pattern = Regex::new(pattern).expect("it is one");
                pattern.captures_iter(text).map(|call| call[1].to_owned()).collect()
            };
            let mut all = calls(&variable, &code);
            all.extend(blocks(&code, own).iter().flat_map(|own| calls(r"\bself\s*\.(\w+)\(", own)));
            modules.extend(all.iter().filter_map(|name| methods.get(name).cloned()));
        }
        modules
    }

    fn of(text: &str) -> Root {
        let code = code(text);
        let uses = Regex::new(r"(?m)^(?:pub(?:\(crate\))? )?use (?:crate::)?(\w+)::([^;]*);");
        let items = Regex::new(r"(?m)^pub(?:\(crate\))? (?:struct|enum|trait|fn|type|const) (\w+)");
        let word = Regex::new(r"\w+").expect("it is one");
        let mut root = Root::default();
        for found in uses.expect("it is one").captures_iter(&code) {
            for name in word.find_iter(&found[2]) {
                root.from.insert(name.as_str().to_owned(), found[1].to_owned());
            }
        }
        let items = items.expect("it is one");
        root.own.extend(items.captures_iter(&code).map(|item| item[1].to_owned()));
        root
    }
}

/// Which module names which, with a file that does. `module` is that of all files in the folder;
/// none where each has its own.
fn look_into(
    folder: &Path,
    module: Option<&str>,
    root: &Root,
    arrows: &mut BTreeMap<Arrow, String>,
) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let module = module.unwrap_or(&stem);
        if path.is_dir() {
            look_into(&path, Some(module), root, arrows)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path)?;
            for named in names(&text).into_iter().chain(root.called(&text)) {
                let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let named = root.from.get(&named).cloned().unwrap_or(named);
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

/// What stands in a text's `impl`s of a type's own methods.
fn blocks(code: &str, own: &str) -> Vec<String> {
    let pattern = format!(r"(?ms)^impl(?:<[^\n]*>)? {own}(?:<\w+>)? \{{\n(.*?)^\}}");
    let pattern = Regex::new(&pattern).expect("it is one");
    pattern.captures_iter(code).map(|block| block[1].to_owned()).collect()
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
fn judge(layers: &Layers, root: &Root, arrows: &BTreeMap<Arrow, String>) -> Vec<String> {
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
    let own = |named: &&Arrow| root.own.contains(&named.1) && !layers.root.contains(&named.1);
    let own = arrows.keys().filter(own);
    let own = own.map(|(from, name)| format!("{from} may not name {name}, which is the root's"));
    let gone = layers.root.iter().filter(|name| !arrows.keys().any(|(_, to)| to == *name));
    let gone = gone.map(|name| format!("{LIST} needs no `root {name}`"));
    new.chain(needless).chain(unknown).chain(own).chain(gone).collect()
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
            judge(layers, &Root::default(), &arrows.into_iter().collect()),
            [
                "bottom may not name middle, which stands above it (x.rs)",
                "xtask/layers.txt needs no `up bottom -> top`",
                "new has no place in xtask/layers.txt",
            ]
        );
        assert!(parse("[a]\nwhat\n").is_err());
    }

    #[test]
    fn a_name_of_the_root_is_its_modules() {
        let root = Root::of("mod top;\npub use top::{inner::Thing, Other};\npub struct All;\n");
        assert_eq!((root.from["Thing"].as_str(), root.from["Other"].as_str()), ("top", "top"));
        let layers = &parse("[a/src]\norder top low\nroot All Gone\n").expect("it parses")["a/src"];
        let arrows = |to: &str| [(("low".to_owned(), to.to_owned()), "x.rs".to_owned())].into();
        assert_eq!(judge(layers, &root, &arrows("All")), ["xtask/layers.txt needs no `root Gone`"]);
        let none =
            Layers { root: BTreeSet::new(), order: layers.order.clone(), ..Layers::default() };
        assert_eq!(
            judge(&none, &root, &arrows("All")),
            ["low may not name All, which is the root's"]
        );
    }

    #[test]
    fn a_method_is_the_modules_that_has_it() {
        let code = "impl<M: Machine> All<M> {\n    pub fn high(&self) {}\n}\n";
        assert_eq!(blocks(code, "All"), ["    pub fn high(&self) {}\n"]);
        let methods = BTreeMap::from([("high".to_owned(), "top".to_owned())]);
        let methods = BTreeMap::from([("All".to_owned(), methods)]);
        let root = Root { methods, ..Root::default() };
        let calls = |text: &str| root.called(text).into_iter().collect::<Vec<_>>();
        assert_eq!(calls("fn f() { all.high() }"), ["top"]);
        assert_eq!(calls("impl All {\n    fn f(&self) { self.high() }\n}\n"), ["top"]);
        assert!(calls("impl Other {\n    fn f(&self) { self.high() }\n}\n").is_empty());
        assert!(calls("// all.high()").is_empty());
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
