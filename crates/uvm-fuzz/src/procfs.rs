//! What programs write to the settings in `/proc/sys`, and numbers that they write elsewhere there.

use std::num::IntErrorKind;

use crate::errno::Result;
use crate::vm::{self, Class};

#[path = "../../../kernel/src/procfs/settings.rs"]
#[allow(dead_code, missing_docs)]
mod settings;

/// As the kernel's `/proc` has it.
struct Setting {
    show: fn() -> String,
    set: fn(&str) -> Result<()>,
}

/// What a setting takes, and shows then.
#[derive(Clone, Copy)]
enum Takes {
    /// Numbers up to this, and shows them.
    UpTo(u64),
    /// Numbers from one up to another, and shows them.
    Within(u64, u64),
    /// Bytes, `never` and `default`.
    Bytes,
    /// Percents that go with the other shares.
    Share,
    /// Kilobytes, of which it makes pages, up to a quarter of memory.
    Pages,
    /// 0 and 1.
    Switch,
    /// Numbers from 1 up to this, and shows nothing of them.
    Acts(u64),
}

/// All but two, each of which takes the other's place. Least shares before most, lest they can't be
/// lowered one after the other.
static SETTINGS: [(&Setting, Takes); 26] = [
    (&settings::SHMMAX, Takes::UpTo(u64::MAX)),
    (&settings::SHMALL, Takes::UpTo(u64::MAX)),
    (&settings::SHMMNI, Takes::UpTo(32768)),
    (&settings::RECEIVE, Takes::Bytes),
    (&settings::PIPE_LOAN, Takes::Bytes),
    (&settings::LOAN, Takes::Bytes),
    (&settings::OVERCOMMIT, Takes::UpTo(2)),
    (&settings::NR_OPEN, Takes::Within(64, 1 << 20)),
    (&settings::ADMIN_RESERVE, Takes::UpTo(u64::MAX)),
    (&settings::USER_RESERVE, Takes::UpTo(u64::MAX)),
    (&settings::LEASE_BREAK, Takes::UpTo(u32::MAX as u64)),
    (&settings::DROP_CACHES, Takes::Acts(3)),
    (&settings::FILE_MAX_OPEN, Takes::UpTo(u64::MAX)),
    (&settings::PIPE_SOFT, Takes::UpTo(u64::MAX)),
    (&settings::PIPE_HARD, Takes::UpTo(u64::MAX)),
    (&settings::MOST_MAPPINGS, Takes::UpTo(u64::MAX)),
    (&settings::MIN_FREE, Takes::Pages),
    (&settings::ANON_MIN, Takes::Share),
    (&settings::ANON_MAX, Takes::Share),
    (&settings::FILE_MIN, Takes::Share),
    (&settings::FILE_MAX, Takes::Share),
    (&settings::EXEC_MIN, Takes::Share),
    (&settings::EXEC_MAX, Takes::Share),
    (&settings::ZSWAP, Takes::UpTo(50)),
    (&settings::NEIGHBOURS, Takes::Switch),
    (&settings::NUMBERS, Takes::Within(301, 4 << 20)),
];

/// What texts are made of, beside any bytes.
const WORDS: &str =
    "0|1|2|3|4|5|6|7|8|9|10|50|95|100|255|256|1000|32768|4294967296|18446744073709551615|\
    \x20|\n|\t|\0|+|-|,|0x|never|default|kB|\u{a0}";

/// Writes, each of which says to which setting, how long it is, and whether it is of bytes or of
/// words: what is no setting changes nothing, and what is one changes that one alone, to what was
/// meant.
///
/// # Panics
/// If not.
pub fn settings(mut bytes: &[u8]) {
    let first = shown();
    let words: Vec<&str> = WORDS.split('|').collect();
    while let Some((&[which, len], rest)) = bytes.split_first_chunk() {
        let text = rest.split_at(rest.len().min(usize::from(len) & 127));
        bytes = text.1;
        if len < 128 {
            write(usize::from(which) % SETTINGS.len(), text.0);
        } else {
            let text: String =
                text.0.iter().map(|&byte| words[usize::from(byte) % words.len()]).collect();
            write(usize::from(which) % SETTINGS.len(), text.as_bytes());
        }
    }
    // What they showed at first can be written.
    for (setting, _) in &SETTINGS {
        let _ = (setting.set)("0");
    }
    for ((setting, _), text) in SETTINGS.iter().zip(&first).rev() {
        let _ = (setting.set)(text);
    }
    assert_eq!(shown(), first);
}

fn shown() -> Vec<String> {
    SETTINGS.iter().map(|(setting, _)| (setting.show)()).collect()
}

/// The number that a text is, or the nearest that there is.
fn number(text: &str) -> Option<i128> {
    match text.trim().parse() {
        Ok(number) => Some(number),
        Err(error) if *error.kind() == IntErrorKind::PosOverflow => Some(i128::MAX),
        Err(error) if *error.kind() == IntErrorKind::NegOverflow => Some(i128::MIN),
        Err(_) => None,
    }
}

fn write(which: usize, bytes: &[u8]) {
    let read = settings::text(bytes).ok();
    assert_eq!(read, str::from_utf8(bytes).ok().filter(|text| text.len() <= 128));
    let Some(text) = read else { return };
    let signed = number(text).and_then(|number| i32::try_from(number).ok());
    assert_eq!(settings::number(text).ok(), signed);
    let (setting, takes) = SETTINGS[which];
    let before = shown();
    let number =
        number(text).filter(|_| !text.trim().starts_with('-')).map(|number| number as u128);
    let up_to =
        |most: u64| number.filter(|&number| number <= u128::from(most)).map(|number| number as u64);
    let line = |number: u64| format!("{number}\n");
    let bytes_line =
        |bytes: u64| if bytes == u64::MAX { String::from("never\n") } else { line(bytes) };
    let meant = match (takes, text.trim()) {
        (Takes::UpTo(most), _) => up_to(most).map(line),
        (Takes::Within(least, most), _) => up_to(most).filter(|&number| number >= least).map(line),
        (Takes::Bytes, "default") => Some(line(65536)),
        (Takes::Bytes, "never") => Some(String::from("never\n")),
        (Takes::Bytes, _) => up_to(u64::MAX).map(bytes_line),
        (Takes::Share, _) => up_to(100).map(line),
        (Takes::Pages, _) => {
            up_to(vm::TOTAL / 4 * 4).map(|kilobytes| line(kilobytes.div_ceil(4) * 4))
        }
        (Takes::Switch, _) => up_to(1).map(line),
        (Takes::Acts(most), _) => {
            up_to(most).filter(|&number| number != 0).map(|_| before[which].clone())
        }
    };
    let is_taken = (setting.set)(text).is_ok();
    let mut after = before;
    if is_taken {
        after[which] = meant.expect("what is no setting is taken");
    } else {
        assert!(meant.is_none() || matches!(takes, Takes::Share), "{text:?} is refused");
    }
    assert_eq!(shown(), after);
    let shares = [Class::Anon, Class::File, Class::Exec].map(vm::shares);
    assert!(shares.iter().all(|(least, most)| least <= most && *most <= 100));
    assert!(shares.iter().map(|(least, _)| u32::from(*least)).sum::<u32>() <= 95);
}
