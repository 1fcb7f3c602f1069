//! What programs of this machine need besides libraries, and no header of theirs names: the modules
//! of an interpreter, the passes of a compiler, the root of a language. A program is asked where
//! these are, as far as it can tell.

use crate::image::{self, Image, Libraries};
use anyhow::Result;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Adds what a program needs, which is at this path.
type Companions = fn(&mut Image, &Path) -> Result<()>;

/// Programs by the beginning of their names, which a version may follow, and what adds the rest.
const KNOWN: &[(&[&str], Companions)] = &[
    (&["python3"], python),
    (&["perl"], perl),
    (&["gcc", "g++", "cc", "c++"], gcc),
    (&["go", "gofmt"], go),
    (&["java", "javac", "jar", "jshell", "keytool"], java),
    (&["node", "nodejs"], node),
];

/// In the names of compilers for this machine: `x86_64-linux-gnu-gcc-12`.
const TARGET: &str = "x86_64-linux-gnu-";

/// Adds what the program at `host` needs, which is in the tree, or will be.
pub fn add(image: &mut Image, host: &Path) -> Result<()> {
    match of(host) {
        Some(companions) => companions(image, host),
        None => Ok(()),
    }
}

fn of(host: &Path) -> Option<Companions> {
    // Also what a link leads to: /usr/bin/cc is one of several compilers.
    let real = std::fs::canonicalize(host).unwrap_or_default();
    let names = [host, &real].map(|path| path.file_name().unwrap_or_default().to_string_lossy());
    let is_version = |rest: &str| {
        let number = rest.strip_prefix('-').unwrap_or(rest);
        let is_number = number.chars().all(|c| c.is_ascii_digit() || c == '.');
        // Not the 1 of cc1.
        is_number && (number.len() < rest.len() || rest.contains('.') || rest.is_empty())
    };
    let is = |name: &str, start: &str| {
        let name = name.strip_prefix(TARGET).unwrap_or(name);
        name.strip_prefix(start).is_some_and(is_version)
    };
    let found = KNOWN
        .iter()
        .find(|(starts, _)| starts.iter().any(|start| names.iter().any(|name| is(name, start))));
    found.map(|(_, companions)| *companions)
}

/// What a program says to some arguments, line by line; nothing if it can't be run.
fn ask(program: &Path, arguments: &[&str]) -> Vec<String> {
    let Ok(output) = Command::new(program).args(arguments).output() else { return Vec::new() };
    String::from_utf8_lossy(&output.stdout).lines().map(|line| line.trim().to_owned()).collect()
}

/// Adds folders at the same paths, where they are there, but for some names in them.
fn folders<'a>(
    image: &mut Image,
    paths: impl IntoIterator<Item = &'a Path>,
    but: &[&str],
) -> Result<()> {
    for path in paths.into_iter().filter(|path| path.is_absolute() && path.is_dir()) {
        let guest = path.to_string_lossy().into_owned();
        if image.has(&guest) && but.is_empty() {
            continue;
        }
        image.dir(&guest, 0o755)?;
        let entries = std::fs::read_dir(path)?.collect::<std::io::Result<Vec<_>>>()?;
        for entry in entries {
            let name = entry.file_name().to_string_lossy().into_owned();
            if !but.contains(&name.as_str()) {
                image.entry(&entry, &guest, Libraries::AsFound)?;
            }
        }
        outside(image, path, but)?;
    }
    Ok(())
}

/// Adds what links in a folder lead to outside of it.
fn outside(image: &mut Image, folder: &Path, but: &[&str]) -> Result<()> {
    for target in targets(folder, but)? {
        let guest = target.to_string_lossy().into_owned();
        if image.has(&guest) {
            continue;
        }
        if target.is_dir() {
            image.tree(&target, &guest, Libraries::AsTheyAre)?;
        } else if target.is_file() {
            image.program(&target, &guest)?;
        }
    }
    Ok(())
}

fn targets(folder: &Path, but: &[&str]) -> Result<BTreeSet<PathBuf>> {
    let (mut found, mut pending) = (BTreeSet::new(), vec![folder.to_owned()]);
    let real = std::fs::canonicalize(folder)?;
    while let Some(folder) = pending.pop() {
        for entry in std::fs::read_dir(&folder)?.flatten() {
            let kind = entry.file_type()?;
            let path = entry.path();
            if but.iter().any(|name| entry.file_name().to_str() == Some(name)) {
                continue;
            }
            if kind.is_dir() {
                pending.push(path);
            } else if kind.is_symlink() {
                // One that leads nowhere leads nowhere inside.
                let target = std::fs::canonicalize(&path).ok();
                found.extend(target.filter(|target| !target.starts_with(&real)));
            }
        }
    }
    Ok(found)
}

/// The modules that come with it, and those that were installed.
fn python(image: &mut Image, host: &Path) -> Result<()> {
    const WHERE: &str = "import sys, sysconfig\nfor kind in 'stdlib', 'platstdlib', 'purelib', 'platlib': print(sysconfig.get_path(kind))\nfor path in sys.path: print(path)";
    // Not what its user has set up.
    let found = ask(host, &["-I", "-c", WHERE]);
    folders(image, found.iter().map(Path::new), &[])
}

/// All that `@INC` names.
fn perl(image: &mut Image, host: &Path) -> Result<()> {
    let found = ask(host, &["-e", "print \"$_\\n\" for @INC"]);
    folders(image, found.iter().map(Path::new), &[])
}

/// The compiler's passes, assembler and linker, start files, libraries and headers; those of C++
/// for a compiler of that. Other packages' headers come by `--add`.
fn gcc(image: &mut Image, host: &Path) -> Result<()> {
    let one = |question: String| ask(host, &[&question]).into_iter().next().unwrap_or_default();
    let is_cpp = host.to_string_lossy().contains("++");
    let passes: &[&str] = if is_cpp { &["cc1", "cc1plus"] } else { &["cc1"] };
    for tool in passes.iter().chain(&["collect2", "as", "ld", "lto-wrapper"]) {
        let said = one(format!("-print-prog-name={tool}"));
        // A name alone is looked up in PATH.
        let path = if said.contains('/') { Some(said) } else { image::find_program(&said) };
        if let Some(path) = path.filter(|path| Path::new(path).is_file()) {
            let path = std::path::absolute(path)?;
            image.program(&path, &path.to_string_lossy())?;
        }
    }
    let c = [
        "liblto_plugin.so",
        "crt1.o",
        "Scrt1.o",
        "rcrt1.o",
        "crti.o",
        "crtn.o",
        "crtbegin.o",
        "crtbeginS.o",
        "crtbeginT.o",
        "crtend.o",
        "crtendS.o",
        "libc.so",
        "libc.a",
        "libc_nonshared.a",
        "libc.so.6",
        "libm.so",
        "libm.a",
        "libm.so.6",
        "libmvec.so.1",
        "libmvec.a",
        "libpthread.a",
        "libgcc.a",
        "libgcc_eh.a",
        "libgcc_s.so",
        "libgcc_s.so.1",
    ];
    let cpp = ["libstdc++.so", "libstdc++.so.6", "libstdc++.a"];
    for file in c.iter().chain(cpp.iter().filter(|_| is_cpp)) {
        let said = one(format!("-print-file-name={file}"));
        if Path::new(&said).is_absolute() && Path::new(&said).is_file() {
            // Without the `..` in it, and by the name that the linker looks for.
            let (folder, name) = said.rsplit_once('/').unwrap_or_default();
            let path = std::fs::canonicalize(folder)?.join(name);
            image.file(&path, &path.to_string_lossy())?;
        }
    }
    // What the text of `libm.a` names has glibc's version in its own name.
    let archive = PathBuf::from(one("-print-file-name=libm.a".to_owned()));
    for entry in std::fs::read_dir(archive.parent().unwrap_or(&archive)).into_iter().flatten() {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libm-")) {
            image.file(&path, &path.to_string_lossy())?;
        }
    }
    let library = one("-print-libgcc-file-name".to_owned());
    let own = Path::new(&library).parent().unwrap_or(Path::new("")).join("include");
    let include = Path::new("/usr/include");
    let system = ["x86_64-linux-gnu", "linux", "asm-generic"].map(|name| include.join(name));
    folders(image, system.iter().chain([&own]).map(PathBuf::as_path), &[])?;
    folders(image, is_cpp.then(|| include.join("c++")).as_deref(), &[])?;
    for entry in std::fs::read_dir(include).into_iter().flatten().flatten() {
        if entry.file_type()?.is_file() {
            image.entry(&entry, "/usr/include", Libraries::AsTheyAre)?;
        }
    }
    Ok(())
}

/// The root of the language with its packages and tools; not its own tests and texts.
fn go(image: &mut Image, host: &Path) -> Result<()> {
    let found = ask(host, &["env", "GOROOT"]);
    folders(image, found.iter().map(Path::new), &["test", "api", "doc", "misc"])
}

/// The runtime that the program belongs to; not what only makes other runtimes, and no texts.
fn java(image: &mut Image, host: &Path) -> Result<()> {
    let real = std::fs::canonicalize(host)?;
    let home = real.parent().and_then(Path::parent).filter(|home| home.join("lib").is_dir());
    folders(image, home, &["jmods", "legal", "man", "docs", "demo", "sample", "src.zip"])
}

/// Debian's keeps parts of its own library there.
fn node(image: &mut Image, _: &Path) -> Result<()> {
    folders(image, [Path::new("/usr/share/nodejs")], &[])
}

/// Locales, where a program is told to use one that isn't built in.
pub fn locales(image: &mut Image, words: &[String]) -> Result<()> {
    let is_asked = |word: &String| match word.split_once('=') {
        Some((name, value)) if name == "LANG" || name.starts_with("LC_") => {
            !matches!(value, "" | "C" | "POSIX" | "C.UTF-8" | "C.utf8")
        }
        _ => false,
    };
    if words.iter().any(is_asked) {
        folders(image, [Path::new("/usr/lib/locale")], &[])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_targets_may_stand_in_a_name() {
        let is_known = |name: &str| of(&Path::new("/no/such").join(name)).is_some();
        for name in ["perl", "perl5.36", "python3", "python3.11", "gcc", "gcc-12", "go", "java"] {
            assert!(is_known(name), "{name}");
        }
        assert!(is_known("x86_64-linux-gnu-gcc-12"));
        for name in ["perldoc", "gcc-ar-12", "ccache", "goat", "cc1", "javadoc", "python3-config"] {
            assert!(!is_known(name), "{name}");
        }
    }

    #[test]
    fn links_lead_out_of_a_folder() {
        let top = tempfile::tempdir().unwrap();
        let at = |name: &str| top.path().join(name);
        std::fs::create_dir_all(at("home/lib/skipped")).unwrap();
        std::fs::create_dir_all(at("etc")).unwrap();
        std::fs::write(at("etc/settings"), "x").unwrap();
        std::fs::write(at("home/lib/own"), "x").unwrap();
        for (link, target) in [
            ("home/settings", "../etc/settings"),
            ("home/lib/alias", "own"),
            ("home/lib/nowhere", "/no/such/file"),
            ("home/lib/skipped/settings", "../../../etc"),
        ] {
            std::os::unix::fs::symlink(target, at(link)).unwrap();
        }
        let found = targets(&at("home"), &["skipped"]).unwrap();
        assert_eq!(Vec::from_iter(found), [std::fs::canonicalize(at("etc/settings")).unwrap()]);
    }

    #[test]
    fn locales_come_for_those_who_ask() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let mut image = Image::default();
        locales(&mut image, &words("env LANG=C.UTF-8 LC_ALL= sort")).unwrap();
        assert!(!image.has("/usr/lib/locale"));
        locales(&mut image, &words("env LC_ALL=de_DE.UTF-8 sort")).unwrap();
        assert_eq!(image.has("/usr/lib/locale"), Path::new("/usr/lib/locale").is_dir());
    }
}
