//! Which functions may call themselves, and which values may drop their like.
//!
//! ```text
//!   the kernel's code --code.rs----> functions, by caller --cycles--> functions on a circle
//!   the source        --source.rs--> types, by owner      --cycles--> types that own their like
//!                                    compared with recursion.txt, which has a reason for each
//! ```
//! The kernel's stacks are small, and what a program chooses is no bound. The road not taken is to
//! find calls by names in the source: it sees through `dyn`, and finds circles everywhere, hundreds
//! of functions long.

mod code;
mod cycles;
mod list;
mod owners;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use list::List;

/// Folders whose code runs in the kernel: of each crate its `src`.
const CRATES: [&str; 8] = [
    "crates/machine/src",
    "crates/uvm-page/src",
    "crates/uvm/src",
    "crates/uvm-zram/src",
    "crates/mbuf/src",
    "crates/sf_buf/src",
    "crates/volume/src",
    "kernel/src",
];
const LIST: &str = "xtask/recursion.txt";

/// A set of functions, or of types, that reach each other.
type Circle = BTreeSet<String>;

/// Compares the kernel's code and the source with the list. Sentences on what differs; none if all
/// is well.
///
/// # Errors
/// A file can't be read or parsed.
pub fn check(root: &Path, kernel: &Path) -> Result<Vec<String>> {
    let mut all = source::Source::default();
    for folder in CRATES {
        let name = folder.split('/').rev().nth(1).unwrap_or(folder);
        for file in rust_files(&root.join(folder)) {
            let text =
                std::fs::read_to_string(&file).with_context(|| format!("can't read {file:?}"))?;
            let tree = syn::parse_file(&text).with_context(|| format!("can't parse {file:?}"))?;
            all.add(name, &file, tree);
        }
    }
    all.finish();
    let text =
        std::fs::read_to_string(root.join(LIST)).with_context(|| format!("can't read {LIST}"))?;
    let list = List::parse(&text)?;
    let calls = code::edges(kernel)?;
    let names: BTreeMap<&String, String> = calls
        .iter()
        .flat_map(|(from, to)| to.iter().chain([from]))
        .map(|symbol| (symbol, code::name(symbol)))
        .collect();
    let mut wrong =
        list.compare("calls", "never", &calls, |symbol| names[&symbol.to_owned()].clone());
    wrong.extend(list.compare("owns", "other", &owners::edges(&all), str::to_owned));
    Ok(wrong)
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut files = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && name != "tests" {
            files.extend(rust_files(&path));
        } else if name.ends_with(".rs") && !name.starts_with("tests") {
            files.push(path);
        }
    }
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    fn called(text: &str) -> cycles::Edges {
        code::parse(text.lines().map(str::to_owned))
    }

    fn owned(text: &str) -> cycles::Edges {
        let mut all = source::Source::default();
        all.add("k", Path::new("a.rs"), syn::parse_file(text).unwrap());
        all.finish();
        owners::edges(&all)
    }

    fn names(edges: &cycles::Edges) -> Vec<String> {
        let circles = cycles::of(edges);
        circles.iter().map(|circle| circle.iter().cloned().collect::<Vec<_>>().join(" ")).collect()
    }

    const CODE: &str = "\
ffffffff80000000 <down>:
ffffffff80000001:\tcall   ffffffff80000000 <down>
ffffffff80000010 <even>:
ffffffff80000011:\tcall   ffffffff80000020 <odd>
ffffffff80000012:\tcall   ffffffff80000030 <leaf>
ffffffff80000020 <odd>:
ffffffff80000021:\tcall   ffffffff80000010 <even>
ffffffff80000030 <leaf>:
ffffffff80000031:\tjmp    ffffffff80000030 <leaf>
";

    #[test]
    fn functions_that_come_back_to_themselves_are_found() {
        assert_eq!(names(&called(CODE)), ["down", "even odd"]);
    }

    #[test]
    fn a_circle_needs_an_entry_and_an_entry_a_circle() {
        let compare = |list: &str| {
            List::parse(list).unwrap().compare("calls", "never", &called(CODE), str::to_owned).len()
        };
        assert_eq!(compare(""), 2);
        assert_eq!(compare("calls odd\n    Halves.\n"), 1);
        assert_eq!(compare("calls od*\n    Halves.\nnever down -> down\n    Isn't.\n"), 0);
        assert_eq!(
            compare("calls odd\n    Halves.\ncalls down\n    Once.\ncalls leaf\n    Is none.\n"),
            1
        );
        assert!(List::parse("calls odd\ncalls down\n    Why.\n").is_err());
    }

    #[test]
    fn owners_of_their_like_are_found_and_borrowers_are_not() {
        let edges = owned(
            "struct Node { next: Option<Box<Node>> } struct Up { up: Weak<Up>, at: *const Up }
             trait File {} struct Pipe { passed: Vec<Arc<dyn File>> } impl File for Pipe {}",
        );
        assert_eq!(names(&edges), ["k::a::Node", "k::a::Pipe"]);
    }
}
