//! How large a file system in memory may get, and the options of `mount` that say so.
//!
//! As on Linux: half of memory in pages of files, and as many nodes, unless `size=` (bytes with k,
//! m or g behind them, or a percentage of memory), `nr_blocks=` (pages) or `nr_inodes=` say
//! otherwise; 0 is no limit. Pages count wherever they are, in memory or on swap, until they are
//! cut off or their file goes.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::errno::*;
use crate::vm::{self, Quota};

const PAGE: u64 = 4096;

/// What `mount` was told.
#[derive(Clone, Copy, Default)]
pub struct Options {
    /// In pages; `u64::MAX` for no limit.
    pub pages: Option<u64>,
    pub nodes: Option<u64>,
    /// Of the root directory.
    pub perm: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
}

impl Options {
    /// No limits.
    pub const UNLIMITED: Options =
        Options { pages: Some(u64::MAX), nodes: Some(u64::MAX), perm: None, uid: None, gid: None };

    /// Reads the words of a mount's data.
    ///
    /// # Errors
    /// `EINVAL` for an unknown option or value.
    pub fn parse(text: &[u8]) -> Result<Options> {
        let text = core::str::from_utf8(text).map_err(|_| EINVAL)?;
        let mut options = Options::default();
        for word in text.split(',').filter(|word| !word.is_empty()) {
            let (name, value) = word.split_once('=').ok_or(EINVAL)?;
            let id = || value.parse().map(Some).map_err(|_| EINVAL);
            match name {
                "size" => options.pages = Some(no_limit_if_none(pages(value)?)),
                "nr_blocks" => options.pages = Some(no_limit_if_none(number(value)?)),
                "nr_inodes" => options.nodes = Some(no_limit_if_none(number(value)?)),
                "mode" => {
                    options.perm = Some(u32::from_str_radix(value, 8).map_err(|_| EINVAL)? & 0o7777)
                }
                "uid" => options.uid = id()?,
                "gid" => options.gid = id()?,
                _ => return Err(EINVAL),
            }
        }
        Ok(options)
    }
}

fn no_limit_if_none(number: u64) -> u64 {
    if number == 0 {
        u64::MAX
    } else {
        number
    }
}

/// Pages of a size in bytes, rounded up, or of a percentage of memory.
fn pages(value: &str) -> Result<u64> {
    match value.strip_suffix('%') {
        Some(percent) => {
            let percent: u64 = percent.parse().map_err(|_| EINVAL)?;
            Ok(vm::stats().total_pages.checked_mul(percent).ok_or(EINVAL)? / 100)
        }
        None => Ok(number(value)?.div_ceil(PAGE)),
    }
}

/// A number, with a letter behind it for a power of 1024.
fn number(value: &str) -> Result<u64> {
    let (digits, shift) = match value.as_bytes().last().ok_or(EINVAL)?.to_ascii_lowercase() {
        b'k' => (&value[..value.len() - 1], 10),
        b'm' => (&value[..value.len() - 1], 20),
        b'g' => (&value[..value.len() - 1], 30),
        _ => (value, 0),
    };
    let number: u64 = digits.parse().map_err(|_| EINVAL)?;
    number.checked_mul(1 << shift).ok_or(EINVAL)
}

/// The limits of one file system.
pub(super) struct Limits {
    quota: Arc<Quota>,
    nodes: AtomicU64,
    most_nodes: AtomicU64,
}

impl Limits {
    /// The limits of a file system whose pages count in another, too.
    pub(super) fn within(outer: &Limits, options: &Options) -> Limits {
        let (limits, quota) = (Limits::new(options), Quota::within(outer.quota.clone()));
        quota.set_most(limits.quota.most());
        Limits { quota: Arc::new(quota), ..limits }
    }

    pub(super) fn new(options: &Options) -> Limits {
        let half = vm::stats().total_pages / 2;
        Limits {
            quota: Arc::new(Quota::new(options.pages.unwrap_or(half) as usize)),
            nodes: AtomicU64::new(0),
            most_nodes: AtomicU64::new(options.nodes.unwrap_or(half)),
        }
    }

    /// What files' pages are counted by.
    pub(super) fn quota(&self) -> &Arc<Quota> {
        &self.quota
    }

    /// Pages that there may be; `None` without a limit.
    pub(super) fn most_pages(&self) -> Option<u64> {
        Some(self.quota.most() as u64).filter(|&most| most != u64::MAX)
    }

    /// Pages that there may be yet.
    pub(super) fn free_pages(&self) -> u64 {
        self.quota.room() as u64
    }

    /// Nodes that there are, and that there may be yet.
    pub(super) fn nodes(&self) -> (u64, u64) {
        let nodes = self.nodes.load(Relaxed);
        (nodes, self.most_nodes.load(Relaxed).saturating_sub(nodes))
    }

    /// Counts one more node, or one more name of a node.
    ///
    /// # Errors
    /// `ENOSPC`: there are as many as there may be.
    pub(super) fn add_node(&self) -> Result<()> {
        let most = self.most_nodes.load(Relaxed);
        let more = |nodes: u64| (nodes < most).then_some(nodes + 1);
        self.nodes.fetch_update(Relaxed, Relaxed, more).map(|_| ()).map_err(|_| ENOSPC)
    }

    pub(super) fn remove_node(&self) {
        self.nodes.fetch_sub(1, Relaxed);
    }

    /// Changes what is said in `options`.
    ///
    /// # Errors
    /// `EINVAL`: there is more already; nothing has changed.
    pub(super) fn change(&self, options: &Options) -> Result<()> {
        let pages = options.pages.unwrap_or(u64::MAX);
        if pages < self.quota.used() as u64 || options.nodes.unwrap_or(u64::MAX) < self.nodes().0 {
            return Err(EINVAL);
        }
        if let Some(pages) = options.pages {
            self.quota.set_most(pages as usize);
        }
        if let Some(nodes) = options.nodes {
            self.most_nodes.store(nodes, Relaxed);
        }
        Ok(())
    }

    /// Half of what memory is left may be used, beside what is there: for the root, into which the
    /// initramfs was unpacked.
    pub(super) fn begin(&self) {
        let (used, total) = (self.quota.used() as u64, vm::stats().total_pages);
        self.quota.set_most((used + total.saturating_sub(used) / 2) as usize);
        self.most_nodes.store(self.nodes().0 + total / 2, Relaxed);
    }

    /// As `/proc/mounts` shows them.
    pub(super) fn show(&self) -> String {
        self.most_pages()
            .map_or_else(String::new, |pages| format!(",size={}k", pages * (PAGE / 1024)))
    }
}
