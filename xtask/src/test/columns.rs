//! Comments and documents have a hundred columns; code is rustfmt's.

use super::{failed, Verdict};
use crate::build;
use anyhow::Result;
use std::path::Path;

const COLUMNS: usize = 100;
const FOLDERS: [&str; 7] = ["bench", "crates", "docs", "kernel", "ports", "xtask", "."];

pub fn check() -> Result<Verdict> {
    let mut wide = Vec::new();
    for folder in FOLDERS {
        look_into(&build::root().join(folder), folder != ".", &mut wide)?;
    }
    Ok(if wide.is_empty() { Verdict::Passed { tests: 1 } } else { failed(wide.join("\n")) })
}

/// Adds the wide lines of a folder's files, and of those in its folders if `is_deep` says so.
fn look_into(folder: &Path, is_deep: bool, wide: &mut Vec<String>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() && is_deep && name != "target" {
            look_into(&path, is_deep, wide)?;
        }
        let find = match path.extension().and_then(|extension| extension.to_str()) {
            Some("rs") => wide_comments,
            Some("md") => wide_text,
            _ => continue,
        };
        let text = std::fs::read_to_string(&path)?;
        wide.extend(find(&text).into_iter().map(|line| format!("{}:{line}", path.display())));
    }
    Ok(())
}

fn is_wide(line: &str) -> bool {
    line.chars().count() > COLUMNS
}

/// Lines of Rust that are comments and too wide, by number. Pictures are not looked at.
fn wide_comments(text: &str) -> Vec<usize> {
    let mut is_picture = false;
    let mut wide = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let Some(comment) = line.trim_start().strip_prefix("//") else {
            is_picture = false;
            continue;
        };
        if comment.trim_start_matches(['/', '!', ' ']).starts_with("```") {
            is_picture = !is_picture;
        } else if !is_picture && is_wide(line) {
            wide.push(n + 1);
        }
    }
    wide
}

/// Lines of Markdown that are text and too wide, by number: pictures and tables are not looked at.
fn wide_text(text: &str) -> Vec<usize> {
    let mut is_picture = false;
    let mut wide = Vec::new();
    for (n, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_picture = !is_picture;
        } else if !is_picture && !line.starts_with('|') && is_wide(line) {
            wide.push(n + 1);
        }
    }
    wide
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_lines_are_found_where_they_are_text() {
        let long = "word ".repeat(21);
        let rust = format!(
            "// {long}\nlet a = 1; // {long}\n/// ```\n/// {long}\n/// ```\n    //! {long}\n"
        );
        assert_eq!(wide_comments(&rust), [1, 6]);
        let text = format!("{long}\n| {long} |\n```\n{long}\n```\n* {long}\n{}\n", "µ".repeat(100));
        assert_eq!(wide_text(&text), [1, 6]);
    }
}
