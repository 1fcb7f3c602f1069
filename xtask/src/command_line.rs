//! The kernel's command line: what both kernels are told, ours by `kernel/src/proc/init.rs` and
//! `kernel/src/dev/tty`, Linux by `xtask/guest/linux-init.c`.

use crate::linux;
use crate::qemu::Kernel;
use std::fmt::Write;

/// Where programs of other users than root start: they may write there.
const HOME_OF_USERS: &str = "/tmp";

/// Has each machine that runs our kernel make ephemeral mappings so, in tests and benchmarks too.
const EPHEMERAL: &str = "UVM_EPHEMERAL";

/// The kernel's command line: settings, then the program's words, percent-encoded.
pub fn of(kernel: Kernel, words: &[String], command: &[String]) -> String {
    let term = std::env::var("TERM").unwrap_or_else(|_| "linux".to_owned());
    let mut line = match kernel {
        Kernel::Uvm => String::new(),
        Kernel::Linux => format!("{} ", linux::COMMAND_LINE),
    };
    for word in words {
        line.push_str(word);
        line.push(' ');
    }
    if let (Kernel::Uvm, Ok(how)) = (kernel, std::env::var(EPHEMERAL)) {
        let _ = write!(line, "ephemeral={how} ");
    }
    let user = words.iter().find_map(|word| word.strip_prefix("user="));
    let (home, name) = match user.and_then(|ids| ids.split(':').next()) {
        Some(user) => (HOME_OF_USERS, user),
        None => ("/root", "root"),
    };
    let _ = write!(line, "cwd={home}");
    for variable in [
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        &format!("HOME={home}"),
        &format!("USER={name}"),
        "LANG=C.UTF-8",
        &format!("TERM={term}"),
    ] {
        let _ = write!(line, " env={}", encode(variable));
    }
    line.push_str(" --");
    for word in command {
        let _ = write!(line, " {}", encode(word));
    }
    line
}

/// Percent-encodes all but plain characters, so that a word stays one word on a command line.
fn encode(word: &str) -> String {
    if word.is_empty() {
        // A string that ends at once is the empty one.
        return "%00".to_owned();
    }
    let mut out = String::new();
    for byte in word.bytes() {
        if byte.is_ascii_alphanumeric() || b"_./:=,+@-".contains(&byte) {
            out.push(byte as char);
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_with_spaces_stay_one_word() {
        assert_eq!(encode("echo hi; ls /"), "echo%20hi%3B%20ls%20/");
        assert_eq!(encode("100%"), "100%25");
    }
}
