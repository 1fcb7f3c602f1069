//! Disks with file systems that were damaged on purpose: a machine mounts one after the
//! other, asks for all that is there, writes, deletes, and unmounts. What it is told does not
//! matter, as long as it is told, and the machine lives.
//!
//! The host tests the volume alone with far more images
//! (`crates/volume/tests/e2fsprogs/hostile.rs`); this tests what the kernel makes of the answers.
//! `UVM_SEED` repeats a run.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{ensure, Context, Result};

use super::disks;
use super::{failed, Verdict};
use crate::disk::Disks;
use crate::qemu::{Access, Ending, Kernel, Machine};
use crate::session::{self, Input};
use crate::{pack, run};

const BOOTS: u64 = 3;
const DISKS: usize = 8;
const LIMIT: Duration = Duration::from_secs(150);

/// Folders that lie in themselves keep programs busy for ever; each gets a few seconds.
const SCRIPT: &str = "mkdir -p /m
for d in a b c d e f g h; do
    mount -t ext4 /dev/vd$d /m 2>/dev/null || { echo refused; continue; }
    for what in 'ls -lR /m' 'cat /m/f1 /m/f2 /m/f3' 'cat /m/d1/* /m/d2/* /m/d3/*' 'stat -f /m' 'mkdir /m/new' \
        'echo text >/m/new/file' 'cp -r /m/d1 /m/new' 'mv /m/d2 /m/d3/d' 'ln /m/f1 /m/new/f' 'echo more >>/m/f2' sync \
        'rm -rf /m/d1' 'rm -rf /m/new' ': >/m/f3' sync; do
        timeout -s KILL 5 sh -c \"$what\" >/dev/null 2>&1
    done
    umount /m 2>/dev/null || echo stays
    echo tried
done
echo all were tried";

pub fn check() -> Result<Verdict> {
    let folder = tempfile::tempdir().context("can't make a temporary folder")?;
    let seed = std::env::var("UVM_SEED").ok().and_then(|text| text.parse().ok());
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() as u64;
    let (mut seed, mut tried) = (seed.unwrap_or(now) | 1, 0);
    let bases = [base(folder.path(), "has_journal")?, base(folder.path(), "^has_journal")?];
    for _ in 0..BOOTS {
        let first = seed;
        let mut disks = Disks::default();
        for n in 0..DISKS {
            let mut image = bases[n % bases.len()].clone();
            damage(&mut image, &mut seed);
            let path = folder.path().join(format!("disk{n}"));
            std::fs::write(&path, image)?;
            disks.add(path, Access::ReadWrite);
        }
        let output = match one(disks, folder.path())? {
            (Ending::Exited(0), output) if output.contains("all were tried") => output,
            (ending, output) => {
                return Ok(failed(format!(
                    "UVM_SEED={first}: {ending:?}\n{}",
                    super::host::tail(&output, 40)
                )))
            }
        };
        tried += output.matches("\ntried").count();
    }
    // An enemy who is always refused at the door tests nothing.
    ensure!(tried > DISKS, "only {tried} of {} disks could be mounted", BOOTS as usize * DISKS);
    Ok(Verdict::Passed { tests: BOOTS * DISKS as u64 })
}

/// An image with folders, files and links, without checksums.
fn base(folder: &Path, journal: &str) -> Result<Vec<u8>> {
    let (tree, image) = (folder.join("tree"), folder.join("base"));
    for dir in 1..4 {
        let at = tree.join(format!("d{dir}"));
        std::fs::create_dir_all(&at)?;
        for file in 0..40 {
            let name = format!("file {file} {}", "x".repeat(file * 3));
            std::fs::write(at.join(name), vec![b'a'; file * 500])?;
        }
        std::fs::write(tree.join(format!("f{dir}")), vec![b'b'; dir * 70_000])?;
        let _ = std::os::unix::fs::symlink("../f1/".repeat(dir * 15), at.join("link"));
    }
    std::fs::File::create(&image)?.set_len(8 << 20)?;
    let features = format!("^metadata_csum,^uninit_bg,{journal}");
    let tree = tree.to_str().context("a temporary folder's name is text")?;
    disks::tool("mkfs.ext4", &["-q", "-F", "-b", "1024", "-O", &features, "-d", tree], &image)?;
    std::fs::read(&image).context("can't read an image")
}

/// Changes some bytes, most of them where the metadata lies; the superblock seldom, since most of
/// its damages are found at once.
fn damage(image: &mut [u8], seed: &mut u64) {
    let mut below = |n: usize| {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        (*seed >> 11) as usize % n
    };
    for _ in 0..1 + below(30) {
        let (from, len) = [(1024, 1024), (2048, 4096), (4096, 600 << 10), (0, image.len())]
            [[0, 1, 2, 2, 2, 3][below(6)]];
        if from == 1024 && below(4) > 0 {
            continue;
        }
        let at = (from + below(len)).min(image.len() - 4) & !3;
        match below(4) {
            0 => image[at..at + 4].fill(0xff),
            1 => image[at..at + 4].fill(0),
            2 => image[at + below(4)] ^= 1 << below(8),
            _ => image[at + below(4)] = below(256) as u8,
        }
    }
}

fn one(disks: Disks, folder: &Path) -> Result<(Ending, String)> {
    let mut machine = Machine {
        memory: "128M".to_owned(),
        kernel: run::kernel_path(Kernel::Uvm)?,
        disks: disks.list,
        ..Machine::new(folder.join("root.cpio"))
    };
    let command = ["/bin/busybox", "sh", "-c", SCRIPT].map(String::from);
    let root = pack::pack(None, &[], &command)?;
    run::prepare(&mut machine, Kernel::Uvm, root, &[Input::Nothing.words(), disks.words].concat())?;
    let finished = session::capture(&machine, Input::Nothing, LIMIT)?;
    Ok((finished.ending, finished.output))
}
