//! What stands under every table: the machine that was measured, so that a reader can make the
//! numbers again.

use crate::qemu::Machine;
use std::process::Command;

/// QEMU's command line, with stand-ins for what differs between the kernels and from run to run.
pub fn machine(machine: &Machine) -> String {
    let mut arguments = machine.arguments("CONTROL".as_ref());
    for (option, stand_in) in [("-kernel", "KERNEL"), ("-initrd", "ROOT"), ("-append", "SETTINGS")]
    {
        if let Some(at) = arguments.iter().position(|argument| argument == option) {
            arguments[at + 1] = stand_in.to_owned();
        }
    }
    for disk in &machine.disks {
        let path = disk.image.display().to_string();
        arguments.iter_mut().for_each(|argument| *argument = argument.replace(&path, "IMAGE"));
    }
    format!("qemu-system-x86_64 {}", arguments.join(" "))
}

/// Linux's version and settings, the host's CPUs, QEMU's version.
pub fn host() -> String {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        cpus.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown CPU");
    let model = model.trim_start_matches([' ', '\t', ':']);
    let count = cpus.lines().filter(|line| line.starts_with("processor")).count();
    let version = Command::new("qemu-system-x86_64").arg("--version").output();
    let version = version
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        .unwrap_or_default();
    let linux = crate::linux::kernel().ok();
    let linux = linux
        .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
        .unwrap_or_default();
    format!(
        "Linux is {linux}, started with `{}`.\nHost: {count} x {model}; {}",
        crate::linux::COMMAND_LINE,
        version.lines().next().unwrap_or("")
    )
}
