//! Every target over every file of its corpus, and over random bytes.
//!
//! `UVM_INPUT=file cargo test -p uvm-fuzz --test replay TARGET` runs one file of anybody's;
//! `UVM_SEED=n` one of the random inputs.

use std::path::Path;
use std::time::Instant;

use uvm_fuzz::{target, Target};
use uvm_soft::Rng;

fn number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// Names the input if the target panics.
struct Named(String);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("with {}", self.0);
        }
    }
}

fn run_file(target: &Target, file: &Path) {
    let bytes =
        std::fs::read(file).unwrap_or_else(|e| panic!("can't read {}: {e}", file.display()));
    let _named = Named(format!("UVM_INPUT={}", file.display()));
    (target.run)(&bytes);
}

fn run_seed(target: &Target, seed: u64) {
    let mut rng = Rng::new(seed);
    let len = rng.below(target.longest as u64 + 1);
    // Most bytes are small or all ones: counts, orders, flags.
    let habit = rng.below(3);
    let byte = |rng: &mut Rng| match rng.below(4) {
        0 if habit == 1 => 0,
        1 if habit == 1 => 0xff,
        2 if habit == 1 => rng.below(8) as u8,
        _ => rng.next_u64() as u8,
    };
    let bytes: Vec<u8> = (0..len).map(|_| byte(&mut rng)).collect();
    let _named = Named(format!("UVM_SEED={seed}"));
    (target.run)(&bytes);
}

fn replay(name: &str) {
    let target = target(name).expect("the target has this name");
    if let Some(file) = std::env::var_os("UVM_INPUT") {
        return run_file(target, Path::new(&file));
    }
    if let Some(seed) = number("UVM_SEED") {
        return run_seed(target, seed);
    }
    let started = Instant::now();
    let folder = Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"))
        .join("corpus")
        .join(name);
    let entries =
        std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("no {}: {e}", folder.display()));
    let mut files: Vec<_> =
        entries.map(|entry| entry.expect("the folder can be read").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    files.iter().for_each(|file| run_file(target, file));
    (0..target.random).for_each(|seed| run_seed(target, seed));
    println!("{} files, {} random inputs, {:?}", files.len(), target.random, started.elapsed());
}

#[test]
fn library() {
    replay("library");
}

#[test]
fn raw() {
    replay("raw");
}

#[test]
fn ext4() {
    replay("ext4");
}

#[test]
fn elf() {
    replay("elf");
}

#[test]
fn cpio() {
    replay("cpio");
}

#[test]
fn swap() {
    replay("swap");
}

#[test]
fn address() {
    replay("address");
}

#[test]
fn tty() {
    replay("tty");
}

#[test]
fn settings() {
    replay("settings");
}

#[test]
fn control() {
    replay("control");
}
