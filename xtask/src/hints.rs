//! What a refusal adds to itself: what was probably meant.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, Parser};
use syscalls::Errno;

/// The command line; a refusal says how to write a program that stands in it without `--`, and
/// which command has nearly the name that was given.
pub fn parsed<C: Parser + CommandFactory>() -> C {
    C::try_parse().unwrap_or_else(|mut error| {
        let words: Vec<String> = std::env::args().skip(1).collect();
        let hint = match (error.kind(), named(&error)) {
            (ErrorKind::UnknownArgument, Some(unknown)) => with_dashes(&words, &unknown)
                .map(|written| format!("a program comes after `--`: {written}")),
            (ErrorKind::InvalidSubcommand, Some(unknown)) => near(&C::command(), &words, &unknown)
                .map(|known| format!("did you mean `{known}`?")),
            _ => None,
        };
        if let Some(hint) = hint {
            error.remove(ContextKind::SuggestedSubcommand);
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
        }
        error.exit()
    })
}

/// The word that an error is about.
fn named(error: &clap::Error) -> Option<String> {
    let word = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.clone()),
        _ => None,
    };
    word(ContextKind::InvalidArg).or_else(|| word(ContextKind::InvalidSubcommand))
}

/// How a command line that runs a program is written, where `unknown` in it is the program.
fn with_dashes(words: &[String], unknown: &str) -> Option<String> {
    let at = words.iter().position(|word| word == unknown)?;
    let quoted =
        |words: &[String]| words.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" ");
    (words[0] == "run" && !unknown.starts_with('-'))
        .then(|| format!("./uvm {} -- {}", quoted(&words[..at]), quoted(&words[at..])))
}

/// A word as a shell takes it for one.
fn quote(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_./:=,+@-".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The command whose name differs least from `unknown`, by half of its letters at most.
fn near(top: &Command, words: &[String], unknown: &str) -> Option<String> {
    let at = words.iter().position(|word| word == unknown)?;
    let above = words[..at]
        .iter()
        .fold(top, |command, word| command.find_subcommand(word).unwrap_or(command));
    let names = above.get_subcommands().map(Command::get_name);
    let near = names.map(|name| (distance(name, unknown), name)).min()?;
    (near.0 * 2 <= near.1.len().max(2)).then(|| near.1.to_owned())
}

/// Letters to add, drop, change, or swap with the next, between two words.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut rows = vec![vec![0; other.len() + 1]; one.len() + 1];
    for i in 0..=one.len() {
        for j in 0..=other.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let changed = rows[i - 1][j - 1] + usize::from(one[i - 1] != other[j - 1]);
                let best = changed.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                let crossed =
                    i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1];
                if crossed {
                    best.min(rows[i - 2][j - 2] + 1)
                } else {
                    best
                }
            };
        }
    }
    rows[one.len()][other.len()]
}

/// A message with the names of its error numbers: Rust's own has `(os error 2)` for `(ENOENT)`.
pub fn with_errno_names(message: &str) -> String {
    const START: &str = "(os error ";
    let mut parts = message.split(START);
    let mut named = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let number =
            part.split_once(')').and_then(|(number, rest)| Some((number.parse().ok()?, rest)));
        match number.and_then(|(number, rest)| Some((Errno::new(number).name()?, rest))) {
            Some((name, rest)) => named.extend(["(", name, ")", rest]),
            None => named.extend([START, part]),
        }
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn a_program_without_dashes_is_written_with_them() {
        let written = |line: &str, unknown| with_dashes(&words(line), unknown);
        assert_eq!(written("run --mem 1G ls -l /", "ls").unwrap(), "./uvm run --mem 1G -- ls -l /");
        assert_eq!(written("run --foo", "--foo"), None);
        assert_eq!(written("test ls", "ls"), None);
        let script = ["run", "sh", "-c", "echo it's"].map(str::to_owned);
        assert_eq!(with_dashes(&script, "sh").unwrap(), r"./uvm run -- sh -c 'echo it'\''s'");
    }

    #[test]
    fn a_misspelled_command_is_recognised() {
        let top = Command::new("uvm")
            .subcommands(["run", "test", "fuzz", "kernel"].map(Command::new))
            .subcommand(Command::new("bench").subcommands(["micro", "paging"].map(Command::new)));
        let meant = |line: &str, unknown| near(&top, &words(line), unknown);
        assert_eq!(meant("rnu", "rnu").as_deref(), Some("run"));
        assert_eq!(meant("tests", "tests").as_deref(), Some("test"));
        assert_eq!(meant("bench mirco x", "mirco").as_deref(), Some("micro"));
        assert_eq!(meant("frobnicate", "frobnicate"), None);
    }

    #[test]
    fn error_numbers_have_names() {
        let message = "can't read x: No such file or directory (os error 2), again";
        let named = "can't read x: No such file or directory (ENOENT), again";
        assert_eq!(with_errno_names(message), named);
        assert_eq!(
            with_errno_names("odd (os error 99999) (os error x"),
            "odd (os error 99999) (os error x"
        );
    }
}
