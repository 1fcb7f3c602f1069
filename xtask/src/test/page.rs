//! The benchmarks' page in a browser: Debian's chromium lays it out for a desk and for a phone,
//! light and dark, and nothing may be wider than the window, nor any script complain.
//!
//! A window of chromium is 500 pixels wide at least, so that the pages stand in frames of a page
//! that measures them. What was measured in this tree is looked at, too.

use super::{failed, Verdict};
use crate::{bench, build, debian, image};
use anyhow::{Context, Result};
use std::path::Path;
use std::process::Command;

/// Pixels of a phone and of a desk.
const WIDTHS: [u32; 2] = [390, 1280];
/// Chromium's numbers for what a reader prefers.
const SCHEMES: [(&str, bool); 2] = [("0", true), ("1", false)];
const PACKAGES: [&str; 2] = ["chromium", "fonts-dejavu-core"];

/// Opens all folded parts of each page, and tells what is too wide, or has other colours than the
/// reader asked for; parts that scroll by themselves may be as wide as they like.
const SCRIPT: &str = "
const said = [];
addEventListener('load', () => {
  for (const frame of document.querySelectorAll('iframe')) {
    const page = frame.contentDocument, width = frame.clientWidth;
    page.querySelectorAll('details').forEach(part => part.open = true);
    const wide = page.documentElement.scrollWidth;
    if (wide > width) said.push(`${frame.title}: ${wide} pixels of ${width}`);
    for (const part of page.querySelectorAll('body *')) {
      const box = part.getBoundingClientRect();
      if (box.right > width + 1 && !part.closest('.wide')) said.push(`${frame.title}: ${part.outerHTML.slice(0, 80)}`);
    }
    const [red, green, blue] = getComputedStyle(page.body).backgroundColor.match(/[0-9]+/g).map(Number);
    if (red + green + blue < 380 !== DARK) said.push(`${frame.title}: its colours`);
    if (page.querySelectorAll('h2').length < 4) said.push(`${frame.title}: it is empty`);
  }
  document.title = 'looked at ' + document.querySelectorAll('iframe').length + ': ' + said.slice(0, 9).join('; ');
});";

pub fn check() -> Result<Verdict> {
    if image::find_program("apt-get").is_none() {
        return Ok(Verdict::Skipped("no apt to fetch chromium with".to_owned()));
    }
    let folder = match debian::beside(&PACKAGES) {
        Ok(folder) => folder,
        Err(error) => return Ok(Verdict::Skipped(format!("chromium can't be had: {error:#}"))),
    };
    let [full, empty] = bench::sample_pages()?;
    let mut pages = vec![("a full page", full), ("an empty page", empty)];
    if let Ok(own) = std::fs::read_to_string(build::root().join("target/report.html")) {
        pages.push(("target/report.html", own));
    }
    let work = tempfile::tempdir().context("can't make a temporary folder")?;
    for (scheme, is_dark) in SCHEMES {
        let path = work.path().join(format!("{scheme}.html"));
        std::fs::write(&path, framed(&pages, is_dark))?;
        let complaints = look(&folder, work.path(), scheme, &path, pages.len() * WIDTHS.len())?;
        if !complaints.is_empty() {
            let scheme = if is_dark { "dark" } else { "light" };
            return Ok(failed(format!("{scheme}: {complaints}")));
        }
    }
    Ok(Verdict::Passed { tests: (pages.len() * WIDTHS.len() * SCHEMES.len()) as u64 })
}

/// A page with each of the pages at each width.
fn framed(pages: &[(&str, String)], is_dark: bool) -> String {
    let mut text = format!("<!doctype html><script>const DARK = {is_dark};{SCRIPT}</script>\n");
    for (name, page) in pages {
        let page = page.replace('&', "&amp;").replace('"', "&quot;");
        for width in WIDTHS {
            text += &format!("<iframe title=\"{name}\" width={width} height=800 style=\"border:0\" srcdoc=\"{page}\"></iframe>\n");
        }
    }
    text
}

/// What chromium has to complain of.
fn look(root: &Path, work: &Path, scheme: &str, page: &Path, frames: usize) -> Result<String> {
    let libraries = root.join("usr/lib/x86_64-linux-gnu");
    let output = Command::new(root.join("usr/lib/chromium/chromium"))
        .env(
            "LD_LIBRARY_PATH",
            std::env::join_paths([libraries.clone(), libraries.join("pulseaudio")])?,
        )
        .env("HOME", work)
        .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        .args(["--enable-logging=stderr", "--window-size=1400,900", "--dump-dom"])
        .arg(format!("--user-data-dir={}", work.join("profile").display()))
        .arg(format!("--blink-settings=preferredColorScheme={scheme}"))
        .arg(format!("file://{}", page.display()))
        .output()
        .context("can't run chromium")?;
    let page = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if let Some(line) = errors.lines().find(|line| line.contains(":CONSOLE")) {
        return Ok(format!("a script: {line}"));
    }
    let title =
        page.split_once("<title>looked at ").and_then(|(_, rest)| rest.split_once("</title>"));
    Ok(match title.and_then(|(title, _)| title.split_once(": ").or(title.split_once(':'))) {
        Some((count, said)) if count == frames.to_string() => said.trim().to_owned(),
        _ => {
            format!("chromium has not looked at {frames} pages: {}", super::host::tail(&errors, 5))
        }
    })
}
