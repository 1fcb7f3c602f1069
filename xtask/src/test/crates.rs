//! What makes the library's crates fit for the registry: that they can be packaged, that they build
//! with the oldest compiler that they state, that their documentation holds together, and that
//! their public interface is the one that `docs/api` has.
//!
//! A change of the interface is written down by `UVM_UPDATE=1 ./uvm test host/public`, and seen in
//! review. Each public item has an example.

use super::host::{cargo, output, tail, text};
use super::{failed, Verdict};
use crate::build;
use anyhow::{bail, Context, Result};
use public_api::Builder;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{read_to_string, write};
use std::path::{Path, PathBuf};

/// The version of rustdoc's JSON that `public_api` reads: of the compiler that the tree names.
const FORMAT: u64 = 57;

/// What every crate states; cargo itself asks for a description and a licence alone.
const STATED: [&str; 7] =
    ["description", "license", "readme", "keywords", "categories", "documentation", "rust_version"];

/// A crate that the registry gets.
struct Published {
    package: String,
    version: String,
    /// Its name in Rust, which may be another: see `docs/crates.md`.
    library: String,
    rust: String,
    /// What it should state and does not.
    lacks: Vec<&'static str>,
}

/// All crates of the workspace that don't say `publish = false`.
fn published() -> Result<Vec<Published>> {
    let metadata = ["metadata", "--offline", "--no-deps", "--format-version", "1"];
    let metadata: Value = serde_json::from_slice(&output(&mut cargo(&metadata))?.stdout)
        .context("cargo metadata says no JSON")?;
    let packages = metadata["packages"].as_array().context("cargo metadata names no packages")?;
    let is_published = |package: &&Value| package["publish"].is_null();
    let crates: Vec<Published> = packages.iter().filter(is_published).map(of).collect();
    if crates.is_empty() {
        bail!("no crate of the workspace is to be published");
    }
    Ok(crates)
}

fn of(package: &Value) -> Published {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let is_empty = |value: &Value| match value {
        Value::Array(list) => list.is_empty(),
        value => value.as_str().is_none_or(str::is_empty),
    };
    let targets = package["targets"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_library = |target: &&Value| target["kind"].to_string().contains("lib");
    let manifest = word(&package["manifest_path"]);
    let mut lacks: Vec<_> = STATED.into_iter().filter(|field| is_empty(&package[*field])).collect();
    lacks.extend(
        ["LICENSE", "README.md"]
            .into_iter()
            .filter(|file| !Path::new(&manifest).with_file_name(file).is_file()),
    );
    Published {
        package: word(&package["name"]),
        version: word(&package["version"]),
        library: targets.iter().find(is_library).map(|it| word(&it["name"])).unwrap_or_default(),
        rust: word(&package["rust_version"]),
        lacks,
    }
}

/// `-p NAME` for each.
fn packages<'a>(crates: impl IntoIterator<Item = &'a Published>) -> Vec<&'a str> {
    crates.into_iter().flat_map(|it| ["-p", &it.package]).collect()
}

/// Packages each crate as the registry would get it, and builds it from that, with those of this
/// tree that it needs out of their packages too. Without a network: an upload's dry run asks the
/// registry.
pub fn packaged() -> Result<Verdict> {
    let crates = published()?;
    let lacks: Vec<String> = crates
        .iter()
        .filter(|it| !it.lacks.is_empty())
        .map(|it| format!("{} has no {}", it.package, it.lacks.join(", no ")))
        .collect();
    if !lacks.is_empty() {
        return Ok(failed(lacks.join("\n")));
    }
    forget_unpacked(&crates);
    // What was built of a package is taken for what it is now, as long as its version stays.
    let scratch = build::scratch("publish")?;
    let _ = std::fs::remove_dir_all(&scratch);
    let mut command = cargo(&["package", "--offline", "--quiet", "--allow-dirty"]);
    command.args(packages(&crates)).arg("--target-dir").arg(scratch);
    let done = output(&mut command)?;
    Ok(if done.status.success() {
        Verdict::Passed { tests: crates.len() as u64 }
    } else {
        failed(tail(&text(&done), 60))
    })
}

/// Cargo unpacks the packages that others need once for each version, into folders of registries
/// without a host, and doesn't see that a package of one version has changed.
fn forget_unpacked(crates: &[Published]) {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cargo")));
    let Some(sources) = home.map(|home| home.join("registry/src")) else { return };
    for folder in std::fs::read_dir(sources).into_iter().flatten().flatten() {
        if folder.file_name().to_string_lossy().starts_with('-') {
            for it in crates {
                // Mostly it isn't there.
                let unpacked = folder.path().join(format!("{}-{}", it.package, it.version));
                let _ = std::fs::remove_dir_all(unpacked);
            }
        }
    }
}

/// Builds each crate with the compiler that it states as the oldest.
pub fn oldest_compilers() -> Result<Verdict> {
    let crates = published()?;
    let versions: BTreeSet<&str> = crates.iter().map(|it| it.rust.as_str()).collect();
    let mut missing = Vec::new();
    let mut tests = 0;
    for version in versions {
        // In place of the compiler that runs this.
        let with = |arguments: &[&str]| {
            let mut command = cargo(&[&format!("+{version}")]);
            command.env_remove("CARGO").env_remove("RUSTC").env_remove("RUSTUP_TOOLCHAIN");
            command.args(arguments);
            command
        };
        if !output(&mut with(&["--version"]))?.status.success() {
            missing.push(version);
            continue;
        }
        let of_it: Vec<&Published> = crates.iter().filter(|it| it.rust == version).collect();
        let mut command = with(&["check", "--offline", "--quiet"]);
        command.args(packages(of_it.iter().copied()));
        let done = output(command.arg("--target-dir").arg(build::scratch("oldest")?))?;
        if !done.status.success() {
            return Ok(failed(format!("Rust {version}:\n{}", tail(&text(&done), 60))));
        }
        tests += of_it.len() as u64;
    }
    if tests == 0 {
        let missing = missing.join(" and ");
        return Ok(Verdict::Skipped(format!(
            "Rust {missing} is not installed (`rustup toolchain install`): the oldest compilers \
             that the library's crates state"
        )));
    }
    Ok(Verdict::Passed { tests })
}

/// Links in the documentation lead somewhere, in what is public and in what is not.
pub fn documentation() -> Result<Verdict> {
    let crates = published()?;
    for private in [false, true] {
        let mut command = cargo(&["doc", "--offline", "--quiet", "--no-deps"]);
        command.args(packages(&crates)).env("RUSTDOCFLAGS", "-D warnings");
        command.arg("--target-dir").arg(build::scratch("documentation")?);
        command.args(private.then_some("--document-private-items"));
        let done = output(&mut command)?;
        if !done.status.success() {
            return Ok(failed(tail(&text(&done), 60)));
        }
    }
    Ok(Verdict::Passed { tests: 2 * crates.len() as u64 })
}

/// The public interface is the one that `docs/api` has, and each item has an example.
pub fn interface() -> Result<Verdict> {
    let crates = published()?;
    // The same folder as for the documentation: what it needs of dependencies is there.
    let target = build::scratch("documentation")?;
    let mut command = cargo(&["doc", "--offline", "--quiet", "--no-deps"]);
    command.args(packages(&crates)).arg("--target-dir");
    // The compiler's format of this is unstable; it is read by a crate that knows its version.
    command.arg(&target).env("RUSTC_BOOTSTRAP", "1");
    command.env("RUSTDOCFLAGS", "-Zunstable-options --output-format json");
    let done = output(&mut command)?;
    if !done.status.success() {
        return Ok(failed(tail(&text(&done), 60)));
    }
    let texts = build::root().join("docs/api");
    let update = std::env::var_os("UVM_UPDATE").is_some();
    let (mut wrong, mut bare) = (String::new(), Vec::new());
    for it in &crates {
        let file = target.join("doc").join(&it.library).with_extension("json");
        let json: Value = serde_json::from_str(&read_to_string(&file)?)?;
        if json["format_version"] != FORMAT {
            return Ok(Verdict::Skipped(format!(
                "this compiler's description of interfaces has version {}, and {FORMAT} is read",
                json["format_version"]
            )));
        }
        let api = Builder::from_rustdoc_json(&file)
            .omit_blanket_impls(true)
            .omit_auto_trait_impls(true)
            .build()?;
        let now = without_known_functions(api.items().map(ToString::to_string));
        let before = texts.join(&it.package).with_extension("txt");
        if update {
            write(&before, &now)?;
        } else {
            wrong.push_str(&difference(&read_to_string(&before).unwrap_or_default(), &now));
        }
        bare.extend(without_example(&json));
    }
    if !wrong.is_empty() {
        wrong.push_str("UVM_UPDATE=1 ./uvm test host/public writes it down\n");
    }
    if !bare.is_empty() {
        wrong.push_str(&format!("public items that have no example:\n  {}", bare.join("\n  ")));
    }
    Ok(match wrong.as_str() {
        "" => Verdict::Passed { tests: crates.len() as u64 },
        _ => failed(wrong),
    })
}

/// The items in lines, without the functions of implementations: that a type implements a trait
/// says that it has them.
fn without_known_functions(items: impl Iterator<Item = String>) -> String {
    let (mut text, mut of_impl) = (String::new(), None);
    // What the compiler derives with `PartialEq` is no promise.
    for item in items.filter(|item| !item.contains("::StructuralPartialEq ")) {
        if item.starts_with("impl") {
            of_impl = item.split_once(" for ").map(|(_, of)| format!("{of}::"));
        } else if !item.starts_with("pub type")
            && of_impl.as_ref().is_some_and(|of_impl| item.contains(of_impl))
        {
            continue;
        }
        text.push_str(&item);
        text.push('\n');
    }
    text
}

/// Public functions and types whose documentation shows none of their use. A trait's functions are
/// shown at the trait.
fn without_example(json: &Value) -> Vec<String> {
    const KINDS: [&str; 5] = ["function", "struct", "enum", "trait", "macro"];
    let Some(index) = json["index"].as_object() else { return Vec::new() };
    // What a macro makes (`bitflags`) stands in one place, and has no documentation of ours.
    let mut places = BTreeMap::<String, u32>::new();
    index.values().for_each(|item| *places.entry(item["span"].to_string()).or_default() += 1);
    let mut names: Vec<String> = index
        .values()
        .filter(|item| places[&item["span"].to_string()] < 4)
        .filter(|item| item["crate_id"] == 0 && item["visibility"] == "public")
        .filter(|item| KINDS.iter().any(|kind| item["inner"].get(kind).is_some()))
        .filter(|item| !item["docs"].as_str().unwrap_or_default().contains("```"))
        .map(|item| {
            let (span, name) = (&item["span"], item["name"].as_str().unwrap_or_default());
            let file = span["filename"].as_str().unwrap_or_default();
            format!("{file}:{} {name}", span["begin"][0])
        })
        .collect();
    names.sort();
    names
}

/// Lines that are gone and lines that are new.
fn difference(before: &str, now: &str) -> String {
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let (before, now) = (lines(before), lines(now));
    let gone = before.difference(&now).map(|line| format!("- {line}\n"));
    gone.chain(now.difference(&before).map(|line| format!("+ {line}\n"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_has_what_went_and_what_came() {
        assert_eq!(difference("a\nb\n", "b\nc\n"), "- a\n+ c\n");
    }

    #[test]
    fn functions_of_implementations_are_left_out() {
        let items =
            ["pub fn a::A::b()", "impl core::clone::Clone for a::A", "pub fn a::A::clone()"];
        let kept = without_known_functions(items.into_iter().map(str::to_owned));
        assert_eq!(kept, "pub fn a::A::b()\nimpl core::clone::Clone for a::A\n");
    }

    #[test]
    fn what_has_no_example_is_public_and_shows_no_code() {
        let item = |name: &str, visibility: &str, docs: &str| {
            serde_json::json!({"crate_id": 0, "visibility": visibility, "docs": docs, "name": name,
                "inner": {"function": {}}, "span": {"filename": "a.rs", "begin": [7, 1]}})
        };
        let shown = item("shown", "public", "Does.\n```\nshown();\n```");
        let json = serde_json::json!({"index": {
            "1": item("bare", "public", "Does."), "2": shown, "3": item("inner", "crate", "")}});
        assert_eq!(without_example(&json), ["a.rs:7 bare"]);
    }
}
