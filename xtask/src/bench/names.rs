//! Which rows a benchmark has, and a filter that means none of them.

use crate::{guest, ui, EXIT_USAGE};
use anyhow::{bail, Context, Result};
use std::process::Command;

/// The names that a program of `bench/` knows: it is asked on this machine, where it measures
/// nothing.
///
/// # Errors
/// When the program can't be compiled or run.
pub fn of(program: &str) -> Result<Vec<String>> {
    let path = guest::compile(program, guest::Libc::Musl)?;
    let output = Command::new(&path)
        .arg("list")
        .output()
        .with_context(|| format!("can't run {}", path.display()))?;
    if !output.status.success() {
        bail!("{} list: {}", path.display(), output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

/// What is left to do before anything is measured: nothing (the code to exit with), where only the
/// names were asked for or no name has the filter in it.
pub fn list_or_check(
    bench: &str,
    list: bool,
    filter: Option<&str>,
    names: &[String],
) -> Option<u8> {
    if list {
        names.iter().for_each(|name| println!("{name}"));
        return Some(0);
    }
    let filter = filter?;
    if names.iter().any(|name| name.contains(filter)) {
        return None;
    }
    ui::say(&format!(
        "bench {bench} has no `{filter}` in any name; ./uvm bench {bench} --list tells its names"
    ));
    Some(EXIT_USAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_means_nothing_is_a_wrong_command_line() {
        let names = ["anonymous fault".to_owned(), "fork, execve, wait".to_owned()];
        assert_eq!(list_or_check("micro", false, Some("fault"), &names), None);
        assert_eq!(list_or_check("micro", false, None, &names), None);
        assert_eq!(list_or_check("micro", false, Some("anonymuos"), &names), Some(EXIT_USAGE));
        assert_eq!(list_or_check("micro", true, Some("fault"), &names), Some(0));
    }
}
