//! What a program needs at run time: the shared libraries and the loader of an ELF file, the
//! interpreter of a script.
//!
//! Libraries are found the way the loader would: the file's own run path, the host's loader cache,
//! the usual folders (and musl's, for a program of musl's loader). `dlopen` can't be seen from
//! outside; such files come by `--add`.

use crate::image::find_program;
use anyhow::{Context, Result};
use object::elf::{FileHeader64, DT_NEEDED, DT_RPATH, DT_RUNPATH, DT_STRTAB, PT_LOAD};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::Endianness;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// What the first bytes of a file make of it.
pub enum Kind {
    Elf(Needs),
    /// A `#!` line: the interpreter's path and its one argument.
    Script {
        interpreter: String,
        argument: Option<String>,
    },
    Other,
}

#[derive(Default)]
pub struct Needs {
    interpreter: Option<PathBuf>,
    libraries: Vec<String>,
    run_path: Vec<PathBuf>,
}

/// Reads the head of `path` and says what it needs.
pub fn inspect(path: &Path) -> Result<Kind> {
    let mut head = [0; 256];
    let length = {
        use std::io::Read;
        let mut file =
            std::fs::File::open(path).with_context(|| format!("can't read {}", path.display()))?;
        file.read(&mut head)?
    };
    let head = &head[..length];
    if head.starts_with(b"#!") {
        let line = String::from_utf8_lossy(&head[2..]);
        let mut words = line.lines().next().unwrap_or("").trim().splitn(2, char::is_whitespace);
        let interpreter = words.next().unwrap_or("").to_owned();
        return Ok(Kind::Script {
            interpreter,
            argument: words.next().map(|rest| rest.trim().to_owned()),
        });
    }
    if !head.starts_with(b"\x7fELF") {
        return Ok(Kind::Other);
    }
    let data = std::fs::read(path)?;
    // A broken or foreign ELF file is packed as it is: what to say about it is the kernel's to
    // decide.
    Ok(parse(&data, path).map_or(Kind::Other, Kind::Elf))
}

fn parse(data: &[u8], path: &Path) -> object::Result<Needs> {
    let header = FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let segments = header.program_headers(endian, data)?;
    let mut needs = Needs::default();
    for segment in segments {
        if let Some(name) = segment.interpreter(endian, data)? {
            needs.interpreter = Some(PathBuf::from(String::from_utf8_lossy(name).into_owned()));
        }
    }
    let Some(dynamic) =
        segments.iter().find_map(|segment| segment.dynamic(endian, data).transpose())
    else {
        return Ok(needs);
    };
    let dynamic = dynamic?;
    let Some(strings) = dynamic.iter().find(|entry| entry.tag32(endian) == Some(DT_STRTAB)) else {
        return Ok(needs);
    };
    let address = strings.d_val(endian);
    let string = |offset: u64| -> Option<String> {
        let load = segments.iter().find(|segment| {
            let start = segment.p_vaddr(endian);
            segment.p_type(endian) == PT_LOAD
                && (start..start + segment.p_filesz(endian)).contains(&address)
        })?;
        let from = (address - load.p_vaddr(endian) + load.p_offset(endian) + offset) as usize;
        let bytes = data.get(from..)?;
        let end = bytes.iter().position(|&byte| byte == 0)?;
        Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
    };
    // Of a program, where it is; of a library, where it was found: as the loader takes it.
    let real = std::fs::canonicalize(path).ok().filter(|_| needs.interpreter.is_some());
    let origin = real.as_deref().unwrap_or(path).parent().unwrap_or(Path::new("/"));
    let origin = origin.to_string_lossy().into_owned();
    for entry in dynamic {
        let value = string(entry.d_val(endian));
        match (entry.tag32(endian), value) {
            (Some(DT_NEEDED), Some(name)) => needs.libraries.push(name),
            (Some(DT_RPATH | DT_RUNPATH), Some(list)) => {
                let list = list.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin);
                needs
                    .run_path
                    .extend(list.split(':').filter(|part| !part.is_empty()).map(PathBuf::from));
            }
            _ => {}
        }
    }
    Ok(needs)
}

/// The programs that the script at `path` is run by, as far as they are on this machine: that of
/// its first line, and the one that `env` looks up.
pub fn interpreters(path: &Path) -> Result<Vec<PathBuf>> {
    let Kind::Script { interpreter, argument } = inspect(path)? else { return Ok(Vec::new()) };
    let mut wanted = vec![PathBuf::from(&interpreter)];
    if wanted[0].file_name().is_some_and(|name| name == "env") {
        let named = argument.iter().filter_map(|name| find_program(name));
        wanted.extend(named.map(PathBuf::from));
    }
    wanted.retain(|path| path.is_file());
    Ok(wanted)
}

/// Everything that the ELF file at `path` needs, and what that needs in turn: absolute paths on
/// this machine. What is missing here is said to `missing`, which may refuse it.
pub fn closure(
    path: &Path,
    needs: Needs,
    mut missing: impl FnMut(String) -> Result<()>,
) -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    let musl =
        needs.interpreter.as_ref().is_some_and(|name| name.to_string_lossy().contains("ld-musl"));
    let mut pending = vec![(path.to_owned(), needs)];
    while let Some((user, needs)) = pending.pop() {
        let libraries = needs
            .libraries
            .iter()
            .map(|name| locate(name, &needs.run_path, musl).ok_or_else(|| PathBuf::from(name)));
        let loader = needs.interpreter.iter().cloned().map(Ok);
        for library in loader.chain(libraries) {
            let there = library.and_then(|path| if path.exists() { Ok(path) } else { Err(path) });
            let library = match there {
                Ok(library) => library,
                Err(name) => {
                    missing(format!(
                        "{} needs {}, which is not on this machine",
                        user.display(),
                        name.display()
                    ))?;
                    continue;
                }
            };
            if found.insert(library.clone()) {
                if let Kind::Elf(more) = inspect(&library)? {
                    pending.push((library, more));
                }
            }
        }
    }
    Ok(found)
}

fn locate(name: &str, run_path: &[PathBuf], musl: bool) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name));
    }
    const USUAL: [&str; 5] =
        ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/lib", "/usr/lib"];
    const MUSL: [&str; 4] = ["/usr/lib/x86_64-linux-musl", "/lib", "/usr/local/lib", "/usr/lib"];
    let in_folders = |folders: &[&str]| {
        folders
            .iter()
            .map(|folder| Path::new(folder).join(name))
            .find(|candidate| candidate.exists())
    };
    let own = run_path.iter().map(|folder| folder.join(name)).find(|candidate| candidate.exists());
    let rest = || {
        if musl {
            in_folders(&MUSL)
        } else {
            loader_cache().get(name).cloned().or_else(|| in_folders(&USUAL))
        }
    };
    own.or_else(rest)
}

/// The host loader's cache, by library name; empty where there is no `ldconfig`.
fn loader_cache() -> &'static BTreeMap<String, PathBuf> {
    static CACHE: OnceLock<BTreeMap<String, PathBuf>> = OnceLock::new();
    CACHE.get_or_init(|| {
        let run = |program: &str| Command::new(program).arg("-p").output().ok();
        let Some(output) = run("ldconfig").or_else(|| run("/sbin/ldconfig")) else {
            return BTreeMap::new();
        };
        let mut cache = BTreeMap::new();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            if let Some((left, path)) = line.split_once(" => ") {
                let (name, about) = left.trim().split_once(' ').unwrap_or((left.trim(), ""));
                if about.contains("x86-64") {
                    cache.entry(name.to_owned()).or_insert_with(|| PathBuf::from(path));
                }
            }
        }
        cache
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_finds_libraries_beside_what_its_link_leads_to() {
        let top = tempfile::tempdir().unwrap();
        let at = |name: &str| top.path().join(name);
        for folder in ["home/bin", "home/lib", "bin"] {
            std::fs::create_dir_all(at(folder)).unwrap();
        }
        std::fs::write(at("own.c"), "int own(void) { return 3; }").unwrap();
        std::fs::write(at("main.c"), "int own(void); int main(void) { return own(); }").unwrap();
        let gcc = |arguments: &[&str]| {
            Command::new("gcc")
                .args(arguments)
                .current_dir(top.path())
                .status()
                .is_ok_and(|s| s.success())
        };
        if find_program("gcc").is_none() {
            return;
        }
        assert!(gcc(&["-shared", "-fPIC", "-o", "home/lib/libown-here.so", "own.c"]));
        let path = "-Wl,-rpath,$ORIGIN/../lib";
        assert!(gcc(&["-o", "home/bin/main", "main.c", "-Lhome/lib", "-lown-here", path]));
        std::os::unix::fs::symlink("../home/bin/main", at("bin/main")).unwrap();
        let Kind::Elf(needs) = inspect(&at("bin/main")).unwrap() else {
            panic!("it is no program")
        };
        let found = closure(&at("bin/main"), needs, |what| anyhow::bail!(what)).unwrap();
        let real = std::fs::canonicalize(at("home/lib/libown-here.so")).unwrap();
        let is_it = |path: &PathBuf| std::fs::canonicalize(path).is_ok_and(|path| path == real);
        assert!(found.iter().any(is_it), "{found:?}");
    }
}
