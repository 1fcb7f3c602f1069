//! What goes into the guest's root file system: a folder, single files, the program and what it
//! needs of this machine, busybox.

use crate::companions;
use crate::image::{self, Image, Libraries};
use crate::libs;
use anyhow::{bail, Context, Result};
use std::path::{Path, PathBuf};

/// The root file system and the program to start in it.
pub struct Root {
    pub image: Image,
    pub command: Vec<String>,
}

/// Gathers the root file system for `program` (empty: an interactive shell).
pub fn pack(folder: Option<&Path>, add: &[String], program: &[String]) -> Result<Root> {
    let mut image = Image::minimal()?;
    if let Some(folder) = folder {
        image.tree(folder, "/", Libraries::AsTheyAre)?;
    }
    for file in add {
        let (host, guest) = match file.split_once(':') {
            Some((host, guest)) => (PathBuf::from(host), guest.to_owned()),
            None => {
                let host = std::path::absolute(file)?;
                let guest = host.to_str().context("a path is not UTF-8")?.to_owned();
                (host, guest)
            }
        };
        if !guest.starts_with('/') {
            bail!("the guest path in --add {file} must start with a slash");
        }
        if host.is_dir() {
            image.tree(&host, &guest, Libraries::Packed)?;
        } else {
            whole_program(&mut image, &host, &guest)?;
        }
    }
    let command = add_program(&mut image, program)?;
    if folder.is_none() || !image.has("/bin/sh") {
        image.busybox()?;
    }
    Ok(Root { image, command })
}

/// Nothing but what a kernel starts with: the root file system is a disk, which has the program.
pub fn for_disk(program: &[String]) -> Result<Root> {
    Ok(Root { image: Image::minimal()?, command: program.to_vec() })
}

/// Adds a program with all that it needs, and that its interpreter does.
fn whole_program(image: &mut Image, host: &Path, guest: &str) -> Result<()> {
    image.program(host, guest)?;
    companions::add(image, host)?;
    for interpreter in libs::interpreters(host)? {
        companions::add(image, &interpreter)?;
    }
    Ok(())
}

fn add_program(image: &mut Image, program: &[String]) -> Result<Vec<String>> {
    let Some((name, arguments)) = program.split_first() else {
        return Ok(vec!["/bin/busybox".to_owned(), "sh".to_owned()]);
    };
    let mut command = vec![locate(image, name)?];
    command.extend_from_slice(arguments);
    companions::locales(image, program)?;
    Ok(command)
}

/// Where `name` is in the guest; packs it from this machine unless the tree has it.
fn locate(image: &mut Image, name: &str) -> Result<String> {
    const APPLET_FOLDERS: [&str; 4] = ["/bin", "/usr/bin", "/sbin", "/usr/sbin"];
    if name.starts_with('/') && image.has(name) {
        return Ok(name.to_owned());
    }
    if !name.contains('/') {
        if let Some(folder) =
            APPLET_FOLDERS.iter().find(|folder| image.has(&format!("{folder}/{name}")))
        {
            return Ok(format!("{folder}/{name}"));
        }
    }
    let host = if name.contains('/') {
        let path = std::path::absolute(name)?;
        path.exists().then(|| path.to_string_lossy().into_owned())
    } else {
        image::find_program(name)
    };
    match host {
        Some(host) if name == "busybox" || name == "/bin/busybox" => {
            let _ = host;
            Ok("/bin/busybox".to_owned())
        }
        Some(host) => {
            whole_program(image, Path::new(&host), &host)?;
            Ok(host)
        }
        None if is_applet(name) => Ok(format!("/bin/{}", name.trim_start_matches("/bin/"))),
        None => bail!("there is no program {name} on this machine"),
    }
}

fn is_applet(name: &str) -> bool {
    let name = name.strip_prefix("/bin/").unwrap_or(name);
    let Some(busybox) = image::find_program("busybox") else { return false };
    let Ok(output) = std::process::Command::new(busybox).arg("--list").output() else {
        return false;
    };
    String::from_utf8_lossy(&output.stdout).lines().any(|applet| applet == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named() {
        let error = pack(None, &[], &["/no/such/program".to_owned()]).err().unwrap();
        assert!(format!("{error:#}").contains("/no/such/program"));
    }
}
