//! Memory objects as the kernel keeps them: anonymous memory with a size in bytes.
//!
//! A file of the in-memory file system, a memfd and shared anonymous memory each are one. What is mapped and what is
//! read or written is the same page: `object_io` pins it, lets the caller copy with no lock held (the other end may
//! be user memory, which may fault), and unpins it.
//!
//! I1: the object is as many pages long as `size` needs; bytes of the last page behind `size` are zero whenever
//! `size` changes.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use machine::{Machine, PageNo, Pages, Reserve, ThreadCtx, PAGE_SIZE};
use uvm::{Access, Advice, AnonObject, GetError, Intent, Pager};

use super::uvm::{entry, shared_pager, with, Space};
use crate::arch::machine::{KernelMachine, KERNEL};
use crate::errno::{Result, EINVAL, EIO, ENOMEM};
use crate::sync::Once;

const PAGE: u64 = PAGE_SIZE as u64;

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dir {
    /// Out of the object.
    Read,
    /// Into it.
    Write,
}

struct Inner {
    pager: Arc<AnonObject<KernelMachine>>,
    size: AtomicU64,
}

impl Drop for Inner {
    /// The last handle goes; mappings keep the memory as long as they need it.
    fn drop(&mut self) {
        with(|uvm, held| uvm.detach(held, &*self.pager));
    }
}

/// A handle on a memory object; clones are handles on the same one.
#[derive(Clone)]
pub struct Object {
    inner: Arc<Inner>,
}

impl Object {
    /// A new object of `len` bytes of zeroes.
    pub fn anon(len: u64) -> Result<Object> {
        let pager = with(|uvm, held| AnonObject::new(uvm, held, Pages::ceil(len))).map_err(|_| ENOMEM)?;
        Ok(Object { inner: Arc::new(Inner { pager, size: AtomicU64::new(len) }) })
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.inner.size.load(Relaxed)
    }

    /// Changes the size. A shorter one frees and unmaps what lies behind it.
    pub fn set_size(&self, size: u64) -> Result<()> {
        let old = self.inner.size.swap(size, Relaxed);
        let (pager, pages) = (self.pager(), Pages::ceil(size));
        if pages != Pages::ceil(old) {
            with(|uvm, held| uvm.truncate(held, &pager, pages));
        }
        self.clear_tail(old.min(size))
    }

    /// Zeroes the last page behind `size`, if it is there.
    fn clear_tail(&self, size: u64) -> Result<()> {
        let from = (size % PAGE) as usize;
        if from == 0 || !self.has_page(size) {
            return Ok(());
        }
        let pager = self.pager();
        with(|uvm, held| {
            uvm.with_page(held, &pager, Pages::floor(size), Intent::Write, Access::PAGE, |m, page| {
                m.with_bytes(page, |bytes| bytes[from..].fill(0));
            })
        })
        .map(|_| ())
        .map_err(|_| ENOMEM)
    }

    /// Pages that hold something.
    pub fn resident(&self) -> u64 {
        with(|_, held| self.inner.pager.object().resident(held) as u64)
    }

    /// Whether the page at byte `at` holds something.
    pub fn has_page(&self, at: u64) -> bool {
        with(|_, held| self.inner.pager.object().lock(held).0.page(Pages::floor(at)).is_some())
    }

    /// The first byte of the first page at or behind `at` that holds something.
    pub fn next_page(&self, at: u64) -> Option<u64> {
        with(|_, held| {
            let (body, _) = self.inner.pager.object().lock(held);
            let next = body.pages(Pages::floor(at).0..body.length().0).next();
            next.map(|(index, _)| index.bytes())
        })
    }

    /// Gives whole pages back: they read as zeroes.
    pub fn free_range(&self, at: u64, len: u64) -> Result<()> {
        let pager = self.pager();
        let range = Pages::ceil(at).0..Pages::floor(at + len).0;
        with(|uvm, held| uvm.punch(held, &pager, range));
        Ok(())
    }

    pub(super) fn pager(&self) -> Arc<dyn Pager<KernelMachine>> {
        self.inner.pager.clone()
    }
}

/// A page of zeroes, to read holes from.
fn zeroes() -> Result<PageNo> {
    static ZEROES: Once<PageNo> = Once::new();
    if let Some(&page) = ZEROES.get() {
        return Ok(page);
    }
    let mut thread = ThreadCtx::new();
    let page = KERNEL.frames().alloc(&KERNEL, &mut thread.held(), Reserve::Kernel).map_err(|_| ENOMEM)?;
    KERNEL.zero(page);
    Ok(*ZEROES.call_once(|| page))
}

/// Hands the object's bytes from `at` on to `each`, part by part, none across a page: `each` gets the part's offset
/// and its bytes, and says how many it used; fewer than all ends the walk. A walk that reads must not change them.
///
/// # Errors
/// What `each` says; `ENOMEM`, `EIO`; parts before were handed over.
pub fn object_io(
    object: &Object,
    at: u64,
    len: u64,
    dir: Dir,
    each: &mut dyn FnMut(u64, &mut [u8]) -> Result<usize>,
) -> Result<()> {
    let pager = object.pager();
    let intent = if dir == Dir::Read { Intent::Read } else { Intent::Write };
    let mut done = 0;
    while done < len {
        let offset = at + done;
        let from = (offset % PAGE) as usize;
        let part = (len - done).min(PAGE - from as u64) as usize;
        let access = Access::Call(Advice::Normal, Pages::ceil(from as u64 + len - done).0 as u32);
        let mut copy =
            |m: &KernelMachine, page| m.with_bytes(page, |bytes| each(offset, &mut bytes[from..from + part]));
        let used =
            with(|uvm, held| uvm.with_page(held, &pager, Pages::floor(offset), intent, access, &mut copy));
        let used = match used {
            Ok(Some(used)) => used?,
            Ok(None) => copy(&KERNEL, zeroes()?)?,
            Err(GetError::PastEnd) => return Ok(()),
            Err(GetError::Io) => return Err(EIO),
            Err(GetError::NoMemory | GetError::Wait(_) | GetError::Start(_)) => return Err(ENOMEM),
        };
        done += used as u64;
        if used < part {
            break;
        }
    }
    Ok(())
}

/// Punches a hole in the shared object that is mapped at a range.
pub(super) fn punch(space: &Space, addr: u64, len: u64) -> Result<()> {
    let (mut at, end) = (addr, addr + len);
    while at < end {
        let pager = shared_pager(space, at).ok_or(EINVAL)?;
        let info = entry(space, at).ok_or(ENOMEM)?;
        let Some((_, _, first)) = info.layers.object else { return Err(EINVAL) };
        let stop = info.range.end.0.min(end);
        let index = first.0 + (at - info.range.start.0) / PAGE;
        with(|uvm, held| uvm.punch(held, &pager, index..index + (stop - at) / PAGE));
        at = stop;
    }
    Ok(())
}
