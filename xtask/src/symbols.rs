//! Names for the addresses of a kernel panic, from the kernel's own debug information.

use crate::control::Report;
use addr2line::Loader;
use std::path::Path;

/// What a report says about a panic, and about CPUs that hung, ready to be printed.
pub fn story(kernel: &Path, report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(panic) = &report.panic {
        lines.push(format!("kernel panic: {panic}"));
        lines.extend(describe(kernel, &report.frames).iter().map(|line| format!("  {line}")));
    }
    for stack in &report.stacks {
        lines.push(stack.name.clone());
        lines.extend(describe(kernel, &stack.frames).iter().map(|line| format!("  {line}")));
    }
    lines
}

/// One line for each frame, inlined functions included: `function at file:line`.
fn describe(kernel: &Path, frames: &[u64]) -> Vec<String> {
    let Ok(loader) = Loader::new(kernel) else {
        return frames.iter().map(|address| format!("{address:#x}")).collect();
    };
    frames.iter().enumerate().flat_map(|(depth, &address)| frame(&loader, depth, address)).collect()
}

fn frame(loader: &Loader, depth: usize, address: u64) -> Vec<String> {
    // A return address is one past its call: look just before it, except for the frame that stopped.
    let probe = if depth == 0 { address } else { address.saturating_sub(1) };
    let mut lines = Vec::new();
    if let Ok(mut frames) = loader.find_frames(probe) {
        while let Ok(Some(frame)) = frames.next() {
            let Some(name) =
                frame.function.and_then(|name| name.demangle().ok().map(|name| name.into_owned()))
            else {
                continue;
            };
            let place = frame.location.and_then(|place| {
                let file = place.file?;
                let short = file.rsplit_once("/kernel/").map_or(file, |(_, rest)| rest);
                Some(format!(" at {short}:{}", place.line.unwrap_or(0)))
            });
            lines.push(format!("{address:#x} {name}{}", place.unwrap_or_default()));
        }
    }
    if lines.is_empty() {
        let name = loader.find_symbol(probe).map(|name| format!("{:#}", rustc_demangle::demangle(name)));
        lines.push(format!("{address:#x} {}", name.unwrap_or_else(|| "?".to_owned())));
    }
    lines
}
