//! `./uvm run` as its user has it: command lines, with what they must print, the exit code, and
//! what is there afterwards; on both kernels, where both can.
//!
//! Each check makes a folder of its own and runs the command there.

use super::disks;
use super::host::tail;
use super::{failed, Verdict};
use crate::guest;
use crate::image::{self, Image};
use crate::EXIT_USAGE;
use anyhow::{Context, Result};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// A line is split at spaces; behind `-c` the rest is one word.
#[derive(Clone, Copy)]
struct Line {
    arguments: &'static str,
    /// What the output must contain, with that on standard error.
    says: &'static [&'static str],
    code: i32,
    kernels: &'static [&'static str],
}

const BOTH: &[&str] = &["uvm", "linux"];
const OURS: &[&str] = &["uvm"];
const LINUXS: &[&str] = &["linux"];

/// This program, though cargo has built it anew since it started: another check does so, and the
/// file of its name is then missing for a moment, or another.
fn this_program() -> String {
    format!("/proc/{}/exe", std::process::id())
}

/// Runs the lines in a folder; `after` says what is wrong there after one, if anything.
fn run(
    folder: &Path,
    lines: &[Line],
    after: impl Fn(&Line) -> Result<Option<String>>,
) -> Result<Verdict> {
    let (mut passed, mut complaints) = (0, Vec::new());
    for line in lines {
        for kernel in line.kernels {
            let (plain, script) = match line.arguments.split_once(" -c ") {
                Some((plain, script)) => (plain, Some(script)),
                None => (line.arguments, None),
            };
            let mut command = Command::new(this_program());
            command.args(["run", "--accel", "tcg", "--kernel", kernel]).args(plain.split(' '));
            command.args(script.iter().flat_map(|script| ["-c", script]));
            let output = command.current_dir(folder).stdin(std::process::Stdio::null()).output();
            let output = output.context("can't run this program again")?;
            let text = format!(
                "{}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
            let mut wrong: Vec<String> = line
                .says
                .iter()
                .filter(|said| !text.contains(**said))
                .map(|said| format!("it does not say {said:?}"))
                .collect();
            if output.status.code() != Some(line.code) {
                wrong.push(format!("it ended with {}, not with {}", output.status, line.code));
            }
            wrong.extend(after(line)?);
            if wrong.is_empty() {
                passed += 1;
            } else {
                let wrong = wrong.join("; ");
                complaints.push(format!(
                    "run --kernel {kernel} {}: {wrong}\n--- its output:\n{}",
                    line.arguments,
                    tail(&text, 10)
                ));
            }
        }
    }
    if complaints.is_empty() {
        return Ok(Verdict::Passed { tests: passed });
    }
    let failed = complaints.len() as u64;
    Ok(Verdict::Failed { passed, failed, details: complaints.join("\n") })
}

fn nothing_after(_: &Line) -> Result<Option<String>> {
    Ok(None)
}

/// An image of a disk, with a file system that has busybox and a note in it.
fn image_of_a_system(path: &Path) -> Result<()> {
    let folder = tempfile::tempdir().context("can't make a temporary folder")?;
    let mut image = Image::minimal()?;
    image.busybox()?;
    image.text("/etc/note", "kept on a disk\n")?;
    image.write_folder(folder.path())?;
    let tree = folder.path().to_str().context("a temporary folder's name is text")?;
    image_of(path, 32, &["-d", tree])
}

/// An image of a disk of so many MiB with a file system, made with these options.
fn image_of(path: &Path, mib: u64, options: &[&str]) -> Result<()> {
    std::fs::File::create(path)?.set_len(mib << 20)?;
    disks::tool("mkfs.ext4", &[&["-q", "-F"], options].concat(), path)
}

pub fn disk_as_root() -> Result<Verdict> {
    const LINES: &[Line] = &[
        Line {
            arguments: "--root sys.img --snapshot -- sh -c cat /etc/note; echo gone >/etc/note; grep ' / ext4 rw' /proc/mounts; ls /dev/null /proc/self/stat; cat /etc/note",
            says: &["kept on a disk", " / ext4 rw", "/dev/null", "/proc/self/stat", "gone"],
            code: 0,
            kernels: BOTH,
        },
        Line {
            arguments: "--root sys.img:ro -- sh -c cat /etc/note; touch /x && exit 3; exit 4",
            says: &["kept on a disk", "Read-only"],
            code: 4,
            kernels: BOTH,
        },
        Line {
            arguments: "--root sys.img --snapshot --disk other.img -- sh -c echo new >/mnt/new && cat /mnt/new /etc/note",
            says: &["new", "kept on a disk"],
            code: 0,
            kernels: BOTH,
        },
        Line { arguments: "--root sys.img --snapshot -- nosuch", says: &["can't run nosuch"], code: 127, kernels: BOTH },
        Line { arguments: "--root empty.img -- sh", says: &["can't run sh"], code: 127, kernels: OURS },
        Line { arguments: "--root zero.img -- sh", says: &["zero.img has no ext4 file system"], code: 69, kernels: OURS },
        Line { arguments: "--root missing.img -- sh", says: &["there is no missing.img"], code: 69, kernels: OURS },
        Line { arguments: "--root bad.img -- sh", says: &["can't be mounted", "so nothing is started"], code: 69, kernels: OURS },
        Line { arguments: "--root sys.img --add zero.img -- sh", says: &["--add copies into a root in memory", "sys.img is a disk", "--disk"], code: 69, kernels: OURS },
    ];
    let folder = tempfile::tempdir().context("can't make a temporary folder")?;
    let path = |name: &str| folder.path().join(name);
    image_of_a_system(&path("sys.img"))?;
    for name in ["empty.img", "other.img"] {
        image_of(&path(name), 8, &[])?;
    }
    std::fs::write(path("zero.img"), vec![0; 1 << 20])?;
    let mut bad = std::fs::read(path("empty.img"))?;
    // Its superblock names features that no kernel has.
    bad[1024 + 96..1024 + 100].fill(0xff);
    std::fs::write(path("bad.img"), bad)?;
    let before = std::fs::read(path("sys.img"))?;
    run(folder.path(), LINES, |line| {
        let stays = std::fs::read(path("sys.img"))? == before;
        Ok((!stays).then(|| format!("the image has changed ({})", line.arguments)))
    })
}

pub fn disk_as_root_keeps() -> Result<Verdict> {
    const LINES: &[Line] = &[
        Line {
            arguments: "--root sys.img -- sh -c echo more >>/etc/note && mkdir /made",
            says: &[],
            code: 0,
            kernels: BOTH,
        },
        Line {
            arguments: "--root sys.img -- sh -c rmdir /made && grep -c more /etc/note",
            says: &["1"],
            code: 0,
            kernels: OURS,
        },
    ];
    let folder = tempfile::tempdir().context("can't make a temporary folder")?;
    let image = folder.path().join("sys.img");
    let mut verdict = Ok(Verdict::Passed { tests: 0 });
    for kernel in [OURS, &BOTH[1..]] {
        image_of_a_system(&image)?;
        let lines = [Line { kernels: kernel, ..LINES[0] }, LINES[1]];
        verdict = run(folder.path(), &lines, |_| {
            let checked = Command::new("e2fsck").arg("-fn").arg(&image).output()?;
            let text = String::from_utf8_lossy(&checked.stdout).into_owned();
            Ok((!checked.status.success()).then_some(text))
        });
        if !matches!(verdict, Ok(Verdict::Passed { .. })) {
            break;
        }
    }
    verdict
}

pub fn what_is_missing() -> Result<Verdict> {
    const LINES: &[Line] = &[
        Line {
            arguments: "--mem 5M -- true",
            says: &["need --mem ", "not 5M"],
            code: 69,
            kernels: BOTH,
        },
        Line {
            arguments: "--mem 11M -- true",
            says: &["need --mem ", "not 11M"],
            code: 69,
            kernels: OURS,
        },
        Line {
            arguments: "--mem 64M --swap 256M -- sh -c echo fine",
            says: &["fine"],
            code: 0,
            kernels: OURS,
        },
        Line {
            arguments: "--disk no.img -- true",
            says: &["there is no disk image no.img"],
            code: 69,
            kernels: OURS,
        },
        Line {
            arguments: "--disk bad.img -- true",
            says: &["can't be ", "so nothing is started"],
            code: 69,
            kernels: BOTH,
        },
    ];
    let folder = tempfile::tempdir().context("can't make a temporary folder")?;
    let bad = folder.path().join("bad.img");
    let mut bytes = vec![0; 1 << 20];
    bytes[1080..1082].copy_from_slice(&[0x53, 0xef]);
    std::fs::write(&bad, bytes)?;
    run(folder.path(), LINES, nothing_after)
}

pub fn output_that_is_closed() -> Result<Verdict> {
    let mut command = Command::new("timeout");
    command.args(["100", "sh", "-c", "\"$0\" run --accel tcg -- yes </dev/null | head -1"]);
    let output = command.arg(this_program()).output().context("can't run timeout")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() && text == "y\n" {
        return Ok(Verdict::Passed { tests: 1 });
    }
    Ok(failed(format!("it ended with {}, and said {text:?}", output.status)))
}

pub fn disks_in_sys() -> Result<Verdict> {
    const LINES: &[Line] = &[Line {
        arguments: "--swap 64M --add /usr/bin/lsblk --mem 256M -- sh -c lsblk -b && cat /sys/block/vda/size && ls /sys/dev/block/254:0/queue && grep vda /proc/diskstats",
        says: &["vda", "254:0", "67108864", "disk", "131072", "logical_block_size"],
        code: 0,
        kernels: OURS,
    }];
    if !Path::new("/usr/bin/lsblk").exists() {
        return Ok(Verdict::Skipped("no lsblk here".to_owned()));
    }
    let folder = tempfile::tempdir().context("can't make a temporary folder")?;
    run(folder.path(), LINES, nothing_after)
}

/// What is wrong with a file of the host that the guest has made, if anything.
fn differs(path: &Path, holds: impl Fn(&[u8]) -> bool) -> Option<String> {
    match std::fs::read(path) {
        Ok(bytes) if holds(&bytes) => None,
        Ok(_) => Some(format!("{} holds something else", path.display())),
        Err(error) => Some(format!("can't read {}: {error}", path.display())),
    }
}

/// What `hostdir` has written, block by block.
fn is_large_file(bytes: &[u8]) -> bool {
    let words = bytes.chunks_exact(4).zip(0_u32..);
    bytes.len() == 64 << 20
        && words.into_iter().all(|(word, n)| word == n.wrapping_mul(2_654_435_761).to_le_bytes())
}

pub fn folder_of_the_host() -> Result<Verdict> {
    const LINES: &[Line] = &[
        Line {
            arguments: "--share out --add hostdir:/bin/hostdir -- sh -c cd /share && hostdir",
            says: &["12 of 12 cases hold"],
            code: 0,
            kernels: OURS,
        },
        Line {
            arguments: "--share out --cpus 4 --add hostdir:/bin/hostdir -- sh -c rm -rf /share/* && cd /share && hostdir",
            says: &["12 of 12 cases hold"],
            code: 0,
            kernels: OURS,
        },
        Line {
            arguments: "--share out --machine microvm --disk disk.img -- sh -c cp /share/stored /mnt && grep -o stored /mnt/stored && df /share | grep -c share0",
            says: &["stored", "1"],
            code: 0,
            kernels: OURS,
        },
        Line {
            arguments: "--share in:ro --share out:/deep/down -- sh -c cat /share/note; touch /share/new; rm -f /share/note; echo x >>/share/note; chmod 700 /share; cp /share/note /deep/down/copy; grep 9p /proc/mounts; exit 3",
            says: &["from outside", "touch: /share/new: Read-only", "rm: can't remove '/share/note': Read-only", "chmod: /share: Read-only", "share0 /share 9p ro,relatime", "share1 /deep/down 9p rw,"],
            code: 3,
            kernels: OURS,
        },
        Line {
            arguments: "--share out -- sh -c umount /share && mount -t 9p -o trans=virtio share0 /mnt; mkdir -p /mnt && mount -t 9p -o trans=virtio,version=9p2000.L share0 /mnt && ls /mnt/copy && chmod 4755 /mnt/copy; mknod /mnt/d c 1 3; umount /mnt && ls /share",
            says: &["/mnt/copy", "chmod: /mnt/copy: Operation not permitted", "mknod: /mnt/d: Operation not permitted"],
            code: 0,
            kernels: OURS,
        },
        Line {
            arguments: "--share missing -- true",
            says: &["can't share missing by --share"],
            code: 69,
            kernels: OURS,
        },
        Line {
            arguments: "--share in/note -- true",
            says: &["in/note is no folder"],
            code: 69,
            kernels: OURS,
        },
        Line {
            arguments: "--share in -- true",
            says: &["has no 9P"],
            code: EXIT_USAGE as i32,
            kernels: LINUXS,
        },
    ];
    let folder = tempfile::tempdir().context("can't make a temporary folder")?;
    let path = |name: &str| folder.path().join(name);
    std::fs::create_dir(path("in"))?;
    std::fs::create_dir(path("out"))?;
    std::fs::write(path("in/note"), "from outside\n")?;
    std::fs::copy(guest::compile("hostdir", guest::Libc::Musl)?, path("hostdir"))?;
    image_of(&path("disk.img"), 8, &[])?;
    run(folder.path(), LINES, |line| {
        let mut wrong: Vec<String> =
            differs(&path("in/note"), |bytes| bytes == b"from outside\n").into_iter().collect();
        if line.arguments.ends_with("hostdir") {
            let out = path("out");
            wrong.extend(differs(&out.join("stored"), |b| b.starts_with(b"stored by a mapping\0")));
            wrong.extend(differs(&out.join("synced"), |bytes| {
                bytes.len() == 2 * 4096 + 3
                    && (bytes[0], bytes[4096], bytes[8192]) == (b'z', b'x', b'y')
            }));
            wrong.extend(differs(&out.join("large"), is_large_file));
            wrong.extend(differs(&out.join("many/f1998"), |bytes| bytes == b"f1998"));
            let many = std::fs::read_dir(out.join("many")).map_or(0, |names| names.count());
            wrong
                .extend((many != 1000).then(|| format!("{many} of many files are left, not 1000")));
        }
        if line.arguments.contains("/deep/down/copy") {
            wrong.extend(differs(&path("out/copy"), |bytes| bytes == b"from outside\n"));
        }
        Ok((!wrong.is_empty()).then(|| wrong.join("; ")))
    })
}

/// The host changes a folder while a program inside looks at it.
pub fn folder_that_the_host_changes() -> Result<Verdict> {
    const LINE: &[Line] = &[Line {
        arguments: "--share . -- sh -c cd /share; cat one two; mkdir ready; until test -e go; do sleep 0.1; done; cat one two; ls | cat; echo more >>grown; cat grown",
        says: &["first\nsecond\nlonger than before\nfresh", "grown\nmoved\none\nready\ntwo", "outside\nmore"],
        code: 0,
        kernels: OURS,
    }];
    let folder = tempfile::tempdir().context("can't make a temporary folder")?;
    let path = folder.path().to_owned();
    std::fs::create_dir(path.join("dir"))?;
    for (name, text) in [("one", "first\n"), ("two", "second\n"), ("grown", "")] {
        std::fs::write(path.join(name), text)?;
    }
    let host = std::thread::spawn(move || -> std::io::Result<()> {
        const LOOKS: u32 = 3000;
        for _ in 0..LOOKS {
            if path.join("ready").exists() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        std::fs::write(path.join("one"), "longer than before\n")?;
        // Another file of this name.
        std::fs::write(path.join("new"), "fresh\n")?;
        std::fs::rename(path.join("new"), path.join("two"))?;
        std::fs::rename(path.join("dir"), path.join("moved"))?;
        std::fs::write(path.join("grown"), "outside\n")?;
        std::fs::write(path.join("go"), "")
    });
    let verdict = run(folder.path(), LINE, nothing_after);
    match host.join() {
        Ok(changed) => changed.context("can't change the folder")?,
        Err(_) => return Ok(failed("the thread that changes the folder has panicked".to_owned())),
    }
    verdict
}

/// What programs need that no header of theirs names comes along.
pub fn companions() -> Result<Verdict> {
    const LINES: &[(&str, Line)] = &[
        (
            "perl",
            Line {
                arguments: "--add script.pl:/script -- /script",
                says: &["sum 10 in 1970, {\"a\":1}"],
                code: 0,
                kernels: BOTH,
            },
        ),
        (
            "gcc",
            Line {
                arguments: "--mem 1G --add hello.c:/hello.c --add /usr/bin/gcc -- sh -c gcc -O1 -o /hello /hello.c -lm && gcc -static -o /still /hello.c -lm && /hello && /still",
                says: &["hello, 2.0"],
                code: 0,
                kernels: BOTH,
            },
        ),
        (
            "g++",
            Line {
                arguments: "--mem 1G --add hello.cc:/hello.cc --add /usr/bin/g++ -- sh -c g++ -o /hello /hello.cc && /hello",
                says: &["hello from C++"],
                code: 0,
                kernels: OURS,
            },
        ),
        (
            "java",
            Line {
                arguments: "--mem 2G -- java -Xint -XX:TieredStopAtLevel=1 -version",
                says: &["Runtime Environment"],
                code: 0,
                kernels: OURS,
            },
        ),
        (
            "go",
            Line {
                arguments: "--mem 3G -- go list -f {{.Dir}} fmt",
                says: &["/src/fmt"],
                code: 0,
                kernels: OURS,
            },
        ),
        (
            "python3",
            Line {
                arguments: "--add script.py:/script -- /script",
                says: &["[1, 2] 1.5"],
                code: 0,
                kernels: BOTH,
            },
        ),
    ];
    let folder = tempfile::tempdir().context("can't make a temporary folder")?;
    let perl = "#!/usr/bin/env perl\nuse strict;\nuse POSIX qw(strftime);\nuse List::Util qw(sum);\nuse JSON::PP;\nprintf \"sum %d in %s, %s\\n\", sum(1..4), strftime('%Y', gmtime 0), encode_json({a => 1});\n";
    let python = "#!/usr/bin/python3\nimport json, statistics\nprint(json.loads('[1, 2]'), statistics.mean([1, 2]))\n";
    let c = "#include <math.h>\n#include <stdio.h>\nint main(int argc, char **argv) { (void)argv; printf(\"hello, %.1f\\n\", sqrt(argc + 3)); }\n";
    let cpp = "#include <iostream>\nint main() { std::cout << \"hello from C++\\n\"; }\n";
    let files = [("script.pl", perl), ("script.py", python), ("hello.c", c), ("hello.cc", cpp)];
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::write(&path, text)?;
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755))?;
    }
    let there: Vec<Line> = LINES
        .iter()
        .filter(|(program, _)| image::find_program(program).is_some())
        .map(|(_, line)| *line)
        .collect();
    run(folder.path(), &there, nothing_after)
}
