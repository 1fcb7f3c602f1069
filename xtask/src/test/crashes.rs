//! Machines that go off in the middle of writing to a disk.
//!
//! A guest works on the files of an ext4 image and says what it has synced; QEMU is killed at a
//! random moment; `e2fsck` must be able to repair the image, and `debugfs` must find there what was
//! synced. The next machine goes on with the same image.
//!
//! What QEMU had of the guest's writes by then is on the image, in the order in which the guest
//! made them: this finds data and metadata that were not written when the guest was told so. That
//! writes may also be lost that were not flushed is tested on the host
//! (`crates/volume/tests/e2fsprogs/crashes.rs`, and on volumes of all shapes in `geometries.rs`).
//!
//! Each run takes the next of a few shapes of file systems. Without a journal nothing is promised
//! but that the next machine mounts what is there without help, and that `e2fsck` can repair it.

use super::disks::tool;
use super::{failed, Verdict};
use crate::disk::Disks;
use crate::guest::{self, Libc};
use crate::qemu::{Access, Ending, Kernel, Machine};
use crate::session::{self, Input};
use crate::{pack, run};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// When the machine goes off at the earliest, and how much later at most. It needs the first to
/// start.
const EARLIEST: u64 = 1500;
const SPREAD: u64 = 3000;
const IMAGE_MIB: u64 = 64;

/// A kind of file system.
struct Shape {
    options: &'static [&'static str],
    journal: Journal,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Journal {
    Kept,
    None,
}

const SHAPES: [Shape; 4] = [
    Shape { options: &["-b", "4096", "-J", "size=4"], journal: Journal::Kept },
    Shape { options: &["-b", "4096", "-O", "^has_journal"], journal: Journal::None },
    // 88 inodes a group.
    Shape {
        options: &["-b", "1024", "-g", "2048", "-N", "2816", "-J", "size=4"],
        journal: Journal::Kept,
    },
    Shape {
        options: &["-b", "1024", "-O", "^has_journal,^metadata_csum,uninit_bg"],
        journal: Journal::None,
    },
];

/// What must be there: size and seed by name.
type Kept = BTreeMap<String, (usize, u8)>;

pub fn a_few() -> Result<Verdict> {
    crash(2 * SHAPES.len() as u64)
}

pub fn a_hundred() -> Result<Verdict> {
    crash(100)
}

fn crash(times: u64) -> Result<Verdict> {
    let folder = tempfile::tempdir().context("can't make a temporary folder")?;
    let images: Vec<_> =
        (0..SHAPES.len()).map(|n| folder.path().join(format!("disk{n}"))).collect();
    for (image, shape) in images.iter().zip(&SHAPES) {
        std::fs::File::create(image)?.set_len(IMAGE_MIB << 20)?;
        tool("mkfs.ext4", &[&["-q", "-F"], shape.options].concat(), image)?;
    }
    let kernel = run::kernel_path(Kernel::Uvm)?;
    let program = format!("{}:/bin/crash", guest::compile("crash", Libc::Musl)?.display());
    let mut seed = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() as u64 | 1;
    let mut kept = SHAPES.map(|_| Kept::new());
    let mut synced = 0;
    for round in 1..=times {
        let turn = round as usize % SHAPES.len();
        let (image, shape, kept) = (&images[turn], &SHAPES[turn], &mut kept[turn]);
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let moment = Duration::from_millis(EARLIEST + seed % SPREAD);
        let (output, ending) = one(&kernel, &program, image, folder.path(), seed, moment)?;
        synced += take_in(&output, kept);
        // Without a journal a machine that went off may have left damage, which the next one finds:
        // it says so, and goes no further.
        let is_cut = matches!(ending, Ending::Stopped(_));
        let complaints = match shape.journal {
            Journal::Kept if is_cut => judge(image, folder.path(), kept)?,
            Journal::None if is_cut => judge_a_copy(image, folder.path())?,
            Journal::None if has_found_damage(&output) => {
                judge(image, folder.path(), &Kept::new())?
            }
            _ => vec![format!("the guest ended by itself, with {ending:?}:\n{output}")],
        };
        if !complaints.is_empty() {
            let options = shape.options.join(" ");
            let mut details =
                format!("crash {round} of {times}, after {moment:?}, seed {seed}, {options}:");
            complaints.iter().take(20).for_each(|text| details.push_str(&format!("\n{text}")));
            return Ok(failed(details));
        }
    }
    if synced < times {
        return Ok(failed(format!(
            "only {synced} files were synced in {times} runs: that tests nothing"
        )));
    }
    Ok(Verdict::Passed { tests: times })
}

/// Runs a machine until it is killed; returns what the guest said, and how it ended.
fn one(
    kernel: &Path,
    program: &str,
    image: &Path,
    folder: &Path,
    seed: u64,
    moment: Duration,
) -> Result<(String, Ending)> {
    let mut disks = Disks::default();
    disks.mount_image(image.to_owned(), Access::ReadWrite);
    let mut machine = Machine {
        memory: "128M".to_owned(),
        kernel: kernel.to_owned(),
        disks: disks.list,
        ..Machine::new(folder.join("root.cpio"))
    };
    let command = ["/bin/crash".to_owned(), (seed >> 1).to_string()];
    let root = pack::pack(None, &[program.to_owned()], &command)?;
    let words = [Input::Nothing.words(), disks.words].concat();
    run::prepare(&mut machine, Kernel::Uvm, root, &words)?;
    let finished = session::capture(&machine, Input::Nothing, moment)?;
    Ok((finished.output, finished.ending))
}

/// Whether the guest ended by an error that a damaged file system gives.
fn has_found_damage(output: &str) -> bool {
    ["I/O error", "No such file or directory"]
        .iter()
        .any(|error| output.trim_end().ends_with(error))
}

/// Takes in what the guest has said; returns how many files it has synced. The last line may be
/// half a line.
fn take_in(output: &str, kept: &mut Kept) -> u64 {
    let mut synced = 0;
    let whole = output.rfind('\n').map_or("", |end| &output[..end]);
    for line in whole.lines() {
        let words: Vec<&str> = line.trim_end().split(' ').collect();
        match words[..] {
            ["touch", name] => {
                kept.remove(name);
            }
            ["synced", name, size, seed] => {
                if let (Ok(size), Ok(seed)) = (size.parse(), seed.parse()) {
                    kept.insert(name.to_owned(), (size, seed));
                    synced += 1;
                }
            }
            _ => {}
        }
    }
    // A half line may have begun to say that something changes.
    if let Some(name) = output[whole.len()..].trim().strip_prefix("touch ") {
        kept.retain(|kept, _| !kept.starts_with(name));
    }
    synced
}

/// What is wrong with an image beyond repair; it stays as it is for the next machine.
fn judge_a_copy(image: &Path, folder: &Path) -> Result<Vec<String>> {
    let copy = folder.join("copy");
    std::fs::copy(image, &copy)?;
    judge(&copy, folder, &Kept::new())
}

/// What is wrong with the image; it is repaired.
fn judge(image: &Path, folder: &Path, kept: &Kept) -> Result<Vec<String>> {
    let repaired =
        Command::new("e2fsck").args(["-fy"]).arg(image).output().context("can't run e2fsck")?;
    if repaired.status.code().is_none_or(|code| code > 1) {
        return Ok(vec![String::from_utf8_lossy(&repaired.stdout).into_owned()]);
    }
    if let Err(error) = tool("e2fsck", &["-fn"], image) {
        return Ok(vec![format!("e2fsck has not repaired all: {error:#}")]);
    }
    let dump = folder.join("dump");
    let _ = std::fs::remove_dir_all(&dump);
    std::fs::create_dir(&dump)?;
    tool("debugfs", &["-R", &format!("rdump / {}", dump.display())], image)?;
    let complain =
        |(name, &(size, seed)): (&String, &(usize, u8))| match std::fs::read(dump.join(name)) {
            Err(_) => Some(format!("{name} was synced and is not there")),
            Ok(got) if got.len() != size => {
                Some(format!("{name} was synced with {size} bytes and has {}", got.len()))
            }
            Ok(got) => {
                let wrong = got.iter().enumerate().find(|&(at, &byte)| byte != expected(at, seed));
                wrong.map(|(at, byte)| {
                    format!(
                        "{name}, {size} bytes, has {byte} at {at} and not {}",
                        expected(at, seed)
                    )
                })
            }
        };
    Ok(kept.iter().filter_map(complain).collect())
}

/// What `crash.c` writes.
fn expected(at: usize, seed: u8) -> u8 {
    (at as u32).wrapping_mul(31).wrapping_add((at >> 12) as u32 * 7).wrapping_add(u32::from(seed))
        as u8
}
