//! What some cases need from this machine before they can run: data files, a compiler's files in a
//! folder of their own.

use crate::image::{self, Image};
use crate::{build, companions, debian, fuzz};
use anyhow::{Context, Result};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A case's surroundings. The preparation is `Ok(Err(reason))` when this machine lacks something
/// that nothing can install.
#[derive(Default)]
pub struct Prepared {
    /// As in `--root`.
    pub root: Option<PathBuf>,
    /// As in `--add`.
    pub add: Vec<String>,
    /// What the output must contain.
    pub expected: String,
}

pub type Preparation = fn() -> Result<Result<Prepared, String>>;

pub fn nothing() -> Result<Result<Prepared, String>> {
    Ok(Ok(Prepared::default()))
}

/// Programs of system calls that reached different parts of the kernel.
pub fn kept_programs() -> Result<Result<Prepared, String>> {
    let add = vec![format!("{}:/fuzz/corpus", fuzz::tree_corpus().display())];
    Ok(Ok(Prepared { add, ..Prepared::default() }))
}

/// Ten million bytes of random words, and what sorting them here gives.
pub fn data_to_sort() -> Result<Result<Prepared, String>> {
    const BYTES: usize = 10_000_000;
    let path = build::scratch("tests")?.join("unsorted.txt");
    let mut text = String::with_capacity(BYTES + 64);
    let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
    while text.len() < BYTES {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        text.push_str(&format!("{:x} {}\n", state, state % 1000));
    }
    std::fs::write(&path, &text)?;
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    let mut sorted = lines.join("\n");
    sorted.push('\n');
    let expected = checksum(sorted.as_bytes())?;
    Ok(Ok(Prepared {
        root: None,
        add: vec![format!("{}:/data/unsorted.txt", path.display())],
        expected,
    }))
}

/// Forty files of a mebibyte, and what they give one after the other.
pub fn many_megabytes() -> Result<Result<Prepared, String>> {
    let folder = build::scratch("tests")?.join("megabytes");
    std::fs::create_dir_all(&folder)?;
    let mut all = Vec::new();
    for n in 10..50u8 {
        let bytes: Vec<u8> =
            (0..1 << 20u32).map(|at: u32| n ^ (at >> 12) as u8 ^ at as u8).collect();
        std::fs::write(folder.join(n.to_string()), &bytes)?;
        all.extend(bytes);
    }
    let expected = checksum(&all)?;
    Ok(Ok(Prepared { root: None, add: vec![format!("{}:/data", folder.display())], expected }))
}

/// `cksum`'s words for some bytes, from this machine's own program.
fn checksum(bytes: &[u8]) -> Result<String> {
    let path = build::scratch("tests")?.join("sorted.txt");
    std::fs::write(&path, bytes)?;
    let output = Command::new("cksum")
        .stdin(std::fs::File::open(&path)?)
        .output()
        .context("can't run cksum")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Debian's programs that make terminals for others, and those that look at them.
pub fn terminal_programs() -> Result<Result<Prepared, String>> {
    debian_programs(&[
        "bash",
        "bsdutils",
        "coreutils",
        "expect",
        "libc-bin",
        "ncurses-base",
        "procps",
        "python3",
        "screen",
        "tmux",
    ])
}

/// Debian's debuggers.
pub fn debuggers() -> Result<Result<Prepared, String>> {
    debian_programs(&["bash", "coreutils", "gdb", "gdbserver", "ltrace", "ncurses-base", "strace"])
}

/// The same, and a program with threads for them to look at.
pub fn debugged() -> Result<Result<Prepared, String>> {
    const WATCHED: &str = "#include <pthread.h>
#include <stdio.h>
volatile long watched;
static void *work(void *arg) {
    for (long i = 0; i < 3; i++) watched += (long)arg;
    return 0;
}
int main(void) {
    pthread_t one, two;
    pthread_create(&one, 0, work, (void *)1);
    pthread_join(one, 0);
    pthread_create(&two, 0, work, (void *)10);
    pthread_join(two, 0);
    printf(\"watched is %ld\\n\", watched);
    return 3;
}
";
    with_program("watched", WATCHED, debuggers()?)
}

/// Debian's valgrind and gdb, and a program that loses memory and reads where there is none.
pub fn valgrind() -> Result<Result<Prepared, String>> {
    const LEAKY: &str = "#include <stdio.h>
#include <stdlib.h>
char *lost;
static int look(const char *at) { return at[40]; }
int main(void) {
    char *block = malloc(40);
    lost = malloc(123);
    lost = 0;
    int found = look(block);
    free(block);
    printf(\"found %d\\n\", found != 1000);
    return 3;
}
";
    let programs = debian_programs(&["bash", "coreutils", "gdb", "libc6-dbg", "valgrind"])?;
    with_program("leaky", LEAKY, programs)
}

/// What is prepared, and a C program in `/bin`.
fn with_program(
    name: &str,
    text: &str,
    prepared: Result<Prepared, String>,
) -> Result<Result<Prepared, String>> {
    let Some(gcc) = image::find_program("gcc") else {
        return Ok(Err("gcc is not installed".to_owned()));
    };
    let folder = build::scratch("tests")?;
    let (source, program) = (folder.join(format!("{name}.c")), folder.join(name));
    std::fs::write(&source, text)?;
    let made = Command::new(gcc)
        .args(["-g", "-O0", "-fPIE", "-pie", "-pthread", "-o"])
        .args([&program, &source])
        .status()?;
    if !made.success() {
        anyhow::bail!("gcc can't compile {}", source.display());
    }
    Ok(prepared.map(|prepared| Prepared {
        add: vec![format!("{}:/bin/{name}", program.display())],
        ..prepared
    }))
}

/// Debian's MariaDB: the server, what makes its first tables, and the client.
pub fn mariadb() -> Result<Result<Prepared, String>> {
    debian_programs(&[
        "bash",
        "coreutils",
        "hostname",
        "mariadb-client-core",
        "mariadb-server",
        "mariadb-server-core",
        "sed",
    ])
}

/// Debian's compilers of Rust and Java, to be run where the root is another one.
pub fn compilers() -> Result<Result<Prepared, String>> {
    debian_programs(&[
        "bash",
        "cargo",
        "coreutils",
        "gcc",
        "libc6-dev",
        "mount",
        "openjdk-17-jdk-headless",
        "rustc",
    ])
}

/// Programs that look at processes.
pub fn process_viewers() -> Result<Result<Prepared, String>> {
    debian_programs(&["bash", "coreutils", "htop", "ncurses-base", "procps", "bsdutils"])
}

/// A server in Go that echoes, and a client of it that then has nothing to say.
pub fn go_echo() -> Result<Result<Prepared, String>> {
    let Some(go) = image::find_program("go") else {
        return Ok(Err("go is not installed".to_owned()));
    };
    let source = build::root().join("xtask/guest/echo.go");
    let program = build::scratch("tests")?.join("echo");
    let made = Command::new(go)
        .args(["build", "-o"])
        .args([&program, &source])
        .env("CGO_ENABLED", "0")
        .env("GOFLAGS", "-mod=mod")
        .status()?;
    if !made.success() {
        anyhow::bail!("go can't compile {}", source.display());
    }
    let add = vec![format!("{}:/bin/echo-go", program.display())];
    Ok(Ok(Prepared { add, ..Prepared::default() }))
}

/// As [`go_echo`], in Rust on tokio's threads.
pub fn tokio_echo() -> Result<Result<Prepared, String>> {
    let built = build::scratch("tests")?.join("echo-tokio");
    let made = Command::new("cargo")
        .args(["build", "--quiet", "--locked", "--release", "--manifest-path"])
        .arg(build::root().join("xtask/guest/echo-tokio/Cargo.toml"))
        .arg("--target-dir")
        .arg(&built)
        .output()?;
    if !made.status.success() {
        let said = String::from_utf8_lossy(&made.stderr).into_owned();
        // What can't be fetched is no fault of the program's.
        return match said.contains("error[E") {
            true => Err(anyhow::anyhow!(said)),
            false => Ok(Err(format!("cargo can't fetch tokio: {}", said.trim()))),
        };
    }
    let add = vec![format!("{}:/bin/echo-tokio", built.join("release/echo-tokio").display())];
    Ok(Ok(Prepared { add, ..Prepared::default() }))
}

/// These packages of Debian, and what they need.
pub fn debian_programs(packages: &[&str]) -> Result<Result<Prepared, String>> {
    if image::find_program("apt-get").is_none() {
        return Ok(Err("no apt to fetch Debian's programs with".to_owned()));
    }
    let root = debian::root(packages)?;
    Ok(Ok(Prepared { root: Some(root), ..Prepared::default() }))
}

/// A folder with this machine's gcc in it: driver, compiler, assembler, linker, headers, start
/// files, libraries.
pub fn compiler() -> Result<Result<Prepared, String>> {
    let Some(gcc) = image::find_program("gcc") else {
        return Ok(Err("gcc is not installed".to_owned()));
    };
    let folder = build::scratch("tests")?.join("gcc-root");
    let done = folder.join("complete");
    if !done.exists() {
        // A half-made folder of an earlier run is made again.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder)?;
        compiler_files(&gcc)?.write_folder(&folder)?;
        std::fs::File::create(&done)?.write_all(b"yes\n")?;
    }
    Ok(Ok(Prepared { root: Some(folder), add: Vec::new(), expected: String::new() }))
}

fn compiler_files(gcc: &str) -> Result<Image> {
    let mut image = Image::default();
    image.program(Path::new(gcc), gcc)?;
    companions::add(&mut image, Path::new(gcc))?;
    let loader = Path::new("/lib64/ld-linux-x86-64.so.2");
    if loader.exists() && !image.has("/lib64/ld-linux-x86-64.so.2") {
        image.program(loader, "/lib64/ld-linux-x86-64.so.2")?;
    }
    let source = "#include <stdio.h>\nint main(void) { printf(\"hello, world\\n\"); return 42; }\n";
    image.text("/root/hello.c", source)?;
    Ok(image)
}
