//! Memory objects as the kernel keeps them: anonymous memory or a file's pages, with a size in
//! bytes.
//!
//! A file, on disk or in memory, a memfd and shared anonymous memory each are one. What is mapped
//! and what is read or written is the same page: `object_io` pins it, lets the caller copy with no
//! lock held (the other end may be user memory, which may fault), and unpins it.
//!
//! I1: the object is as many pages long as `size` needs; bytes of the last page behind `size` are
//! zero whenever `size` changes.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};

use crate::mem::frames::Reserve;
use machine::{Machine, Pa, PageNo, PageRange, Pages, Prot, PAGE_SIZE};
use uvm::{
    Access, Advice as Usage, AnonObject, Attached, DevicePager, GetError, Intent, Outcome, Pager,
    Quota, Sharing, Vnode, VnodePager,
};

use super::commit;
use super::space::Space;
use super::system::{above, with};
use crate::arch::bytes::PageBytes;
use crate::charge::{self, Charge};
use crate::errno::{Errno, Result, EACCES, EIO, ENODEV, ENOMEM, ENOSPC, EOPNOTSUPP, EPERM};
use crate::mem::frames::{unlocked, KernelMachine, KERNEL};
use crate::sched;
use crate::sync::Once;

const PAGE: u64 = PAGE_SIZE as u64;

/// What an object without a name is charged: its record, its place among all, the table of its
/// first pages, what a mapping calls it.
const OBJECT: usize = 512;
/// The work of finding a process and its space: that of copying so many bytes.
const PROCESS: usize = 512;

impl Attached for Charge {}

/// What memory that is promised is charged and counted with.
struct Promised {
    _charge: Charge,
    _promise: commit::Shared,
}

impl Attached for Promised {}

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dir {
    /// Out of the object.
    Read,
    /// Into the object.
    Write,
}

/// Whose pages they are.
enum Kind {
    Anon(Arc<AnonObject<KernelMachine>>),
    File(Arc<VnodePager<KernelMachine>>),
    Device(Arc<DevicePager<KernelMachine>>),
}

struct Inner {
    kind: Kind,
    size: AtomicU64,
}

impl Inner {
    fn pager(&self) -> &dyn Pager<KernelMachine> {
        match &self.kind {
            Kind::Anon(pager) => &**pager,
            Kind::File(pager) => &**pager,
            Kind::Device(pager) => &**pager,
        }
    }
}

impl Drop for Inner {
    /// The last handle goes; mappings keep the memory as long as they need it.
    fn drop(&mut self) {
        with(|uvm, held| uvm.detach(held, self.pager()));
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
        let pager =
            with(|uvm, held| AnonObject::new(uvm, held, Pages::ceil(len))).map_err(|_| ENOMEM)?;
        Ok(Object { inner: Arc::new(Inner { kind: Kind::Anon(pager), size: AtomicU64::new(len) }) })
    }

    /// A new object of `len` bytes of zeroes, whose pages count in a quota: `ENOSPC` for a new page
    /// where the quota is used up.
    pub fn anon_within(len: u64, quota: &Arc<Quota>) -> Result<Object> {
        Object::attached(len, quota, None)
    }

    /// Memory that the running process shares with others without a name: the process is charged
    /// for the object as long as there is a handle or a mapping, and its pages count as made by it.
    ///
    /// # Errors
    /// `ENOMEM`: the user has all that it may.
    pub fn shared(len: u64) -> Result<Object> {
        let charge = charge::take(OBJECT).map_err(|_| ENOMEM)?;
        Object::attached(len, charge::account().memory(), Some(Box::new(charge)))
    }

    /// As [`shared`](Object::shared), of memory that is promised.
    ///
    /// # Errors
    /// `ENOMEM`: the user has all that it may.
    pub fn promised(len: u64, promise: commit::Shared) -> Result<Object> {
        let charge = charge::take(OBJECT).map_err(|_| ENOMEM)?;
        Object::attached(
            len,
            charge::account().memory(),
            Some(Box::new(Promised { _charge: charge, _promise: promise })),
        )
    }

    fn attached(
        len: u64,
        quota: &Arc<Quota>,
        attached: Option<Box<dyn Attached>>,
    ) -> Result<Object> {
        let made = with(|uvm, held| {
            AnonObject::within(uvm, held, Pages::ceil(len), quota.clone(), attached)
        });
        let pager = made.map_err(|_| ENOMEM)?;
        Ok(Object { inner: Arc::new(Inner { kind: Kind::Anon(pager), size: AtomicU64::new(len) }) })
    }

    /// The pages of a file of `len` bytes, which `vnode` reads and writes. With the last handle and
    /// the last mapping they go, dirty or not.
    pub fn file(vnode: Box<dyn Vnode<KernelMachine>>, len: u64) -> Result<Object> {
        let pager = with(|uvm, held| VnodePager::new(uvm, held, vnode, Pages::ceil(len)))
            .map_err(|_| ENOMEM)?;
        Ok(Object { inner: Arc::new(Inner { kind: Kind::File(pager), size: AtomicU64::new(len) }) })
    }

    /// A device's memory of `len` bytes at a physical address that was named when memory was handed
    /// over.
    pub fn device(start: Pa, len: u64) -> Result<Object> {
        let first = KERNEL.frames().page_at(start).ok_or(ENODEV)?;
        let pager = with(|uvm, held| DevicePager::new(uvm, held, first, Pages::floor(len)))
            .map_err(|_| ENOMEM)?;
        Ok(Object {
            inner: Arc::new(Inner { kind: Kind::Device(pager), size: AtomicU64::new(len) }),
        })
    }

    /// Its number, which no other object ever has.
    pub fn id(&self) -> u64 {
        self.inner.pager().object().id()
    }

    /// Whether a program has it mapped.
    pub fn is_mapped(&self) -> bool {
        self.inner.pager().object().references() > 1
    }

    /// Whether a program has it mapped so that stores come through, or may be allowed to, or an
    /// export has, or a call is about to.
    pub fn has_writers(&self) -> bool {
        self.inner.pager().object().writers() > 0
    }

    /// Counts the caller as a writer, before it judges whether it may map the object so; `None`
    /// where new ones are denied.
    pub fn writing(&self) -> Option<Writing> {
        self.inner.pager().object().admit_writer().then(|| Writing(self.clone()))
    }

    /// Denies all such mappings for ever, if there is none; says whether.
    pub fn deny_writers(&self) -> bool {
        self.inner.pager().object().deny_writers()
    }

    /// Denies new ones beside those that there are.
    pub fn deny_new_writers(&self) {
        self.inner.pager().object().deny_new_writers();
    }

    /// Writes a file's dirty pages back and waits for them; other objects have nowhere to go.
    ///
    /// # Errors
    /// `EIO`: some could not be written, and were given up: they are counted as errors, and are
    /// clean.
    pub fn clean(&self) -> Result<()> {
        let Kind::File(pager) = &self.inner.kind else { return Ok(()) };
        with(|uvm, held| {
            let cleaned = pager.clean(uvm, held, 0..u64::MAX);
            cleaned.inspect_err(|_| pager.give_up(uvm, held, 0..u64::MAX))
        })
        .map_err(|_| EIO)
    }

    /// How many pages write-backs have found changed through mappings: see
    /// [`VnodePager::stored_to`](uvm::VnodePager::stored_to).
    pub fn stored_to(&self) -> u64 {
        let Kind::File(pager) = &self.inner.kind else { return 0 };
        with(|_, held| pager.stored_to(held))
    }

    /// Writes a file's dirty pages that a range of bytes touches back and waits for them.
    ///
    /// # Errors
    /// As [`clean`](Self::clean).
    pub fn clean_range(&self, at: u64, len: u64) -> Result<()> {
        let Kind::File(pager) = &self.inner.kind else { return Ok(()) };
        let range = touched(at, len);
        with(|uvm, held| {
            let cleaned = pager.clean(uvm, held, range.clone());
            cleaned.inspect_err(|_| pager.give_up(uvm, held, range.clone()))
        })
        .map_err(|_| EIO)
    }

    /// Writes the pages that a range of bytes touches back and frees them; says whether none is
    /// left, since none is in use.
    ///
    /// # Errors
    /// As [`clean`](Self::clean).
    pub fn invalidate(&self, at: u64, len: u64) -> Result<bool> {
        self.clean_range(at, len)?;
        let Kind::File(pager) = &self.inner.kind else { return Ok(false) };
        Ok(with(|uvm, held| pager.invalidate(uvm, held, touched(at, len))))
    }

    /// Takes the page of a file at byte `at`, if it is there, for a hole: a store through a mapping
    /// asks for room first.
    pub fn mark_hole(&self, at: u64) {
        if let Kind::File(pager) = &self.inner.kind {
            with(|uvm, held| pager.mark_hole(uvm, held, Pages::floor(at)));
        }
    }

    /// Starts writing a file's dirty pages back in a range of bytes; what fails is left to
    /// [`clean`](Self::clean).
    pub fn start_cleaning(&self, at: u64, len: u64) {
        if let Kind::File(pager) = &self.inner.kind {
            with(|uvm, held| pager.start_cleaning(uvm, held, touched(at, len)));
        }
    }

    /// Waits for writes under way in a range of bytes of a file.
    pub fn wait_cleaned(&self, at: u64, len: u64) {
        if let Kind::File(pager) = &self.inner.kind {
            with(|uvm, held| pager.wait_cleaned(uvm, held, touched(at, len)));
        }
    }

    /// Starts reading what is missing of a range of bytes, as far as there is free memory.
    pub fn read_ahead(&self, at: u64, len: u64) {
        let pager = self.pager();
        with(|uvm, held| uvm.read_ahead(held, &pager, touched(at, len)));
    }

    /// Frees whole pages in a range of bytes of a file that are clean and in no use.
    pub fn drop_clean(&self, at: u64, len: u64) {
        if let Kind::File(pager) = &self.inner.kind {
            let end = at.saturating_add(len);
            // The last page of a file counts as whole.
            let end = if end >= self.size() { Pages::ceil(self.size()) } else { Pages::floor(end) };
            with(|uvm, held| pager.drop_clean(uvm, held, Pages::ceil(at).0..end.0));
        }
    }

    /// How many pages of a file could not be written so far.
    pub fn write_errors(&self) -> u64 {
        match &self.inner.kind {
            Kind::Anon(_) | Kind::Device(_) => 0,
            Kind::File(pager) => with(|_, held| pager.write_errors(held)),
        }
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.inner.size.load(Acquire)
    }

    /// Changes the size. A shorter one frees and unmaps what lies behind it, private copies of it
    /// too. A longer one is seen only when all is there that it promises: what is stored behind the
    /// old end from then on stays.
    ///
    /// # Errors
    /// `EIO`, `ENOMEM` of the page that the file ended in; a longer size has not come to be then.
    pub fn set_size(&self, size: u64) -> Result<()> {
        let old = self.size();
        let (pager, before, now) = (self.pager(), Pages::ceil(old), Pages::ceil(size));
        if size > old {
            self.clear_tail(old, size)?;
            if now != before {
                with(|uvm, held| uvm.truncate(held, &pager, now));
            }
            self.inner.size.store(size, Release);
            return Ok(());
        }
        self.inner.size.store(size, Release);
        if now != before {
            with(|uvm, held| uvm.truncate(held, &pager, now));
            self.forget_copies(now);
        }
        self.clear_tail(size, u64::MAX)
    }

    /// Forgets private copies of pages from `from` on in every process. No object knows its
    /// mappings, so the entries are looked at of all processes that may have such copies, which is
    /// rare. Without memory for it they stay.
    fn forget_copies(&self, from: Pages) {
        let pager = self.pager();
        if !with(|_, held| pager.object().may_have_copies(held)) {
            return;
        }
        (above().each_space)(&mut |space| {
            let _ = with(|uvm, held| uvm.forget_copies(held, space.get(), &*pager, from));
            sched::work_done(PROCESS);
        });
    }

    /// Zeroes the page that the object ends in behind `size`, up to `end`, if it is there: what
    /// lies behind a longer size is that one's own tail.
    fn clear_tail(&self, size: u64, end: u64) -> Result<()> {
        let from = (size % PAGE) as usize;
        let end = end.min(size.next_multiple_of(PAGE));
        // What is zero already stays as it is: a hole has no room in its file for more.
        if from == 0 || self.is_zero(size, end)? {
            return Ok(());
        }
        let zero = |bytes: PageBytes| bytes.part(from, (end - size) as usize).zero();
        self.in_page(size, Intent::Write, zero).map(|_| ())
    }

    /// Whether bytes of one page are all zero.
    pub fn is_zero(&self, from: u64, to: u64) -> Result<bool> {
        let (start, len) = ((from % PAGE) as usize, (to - from) as usize);
        let is_zero =
            self.in_page(from, Intent::Read, |bytes| bytes.part(start, len).are_zero())?;
        Ok(is_zero.unwrap_or(true))
    }

    /// Calls `work` with the bytes of the page at byte `at`; `None` if it is a hole that no program
    /// has to see.
    fn in_page<T>(
        &self,
        at: u64,
        intent: Intent,
        work: impl FnOnce(PageBytes) -> T,
    ) -> Result<Option<T>> {
        let (pager, index) = (self.pager(), Pages::floor(at));
        with(|uvm, held| {
            let work = |m: &KernelMachine, page| work(m.bytes(page));
            uvm.with_page(held, &pager, index, intent, Access::PAGE, work)
        })
        .map_err(errno)
    }

    /// Pages that hold something.
    pub fn resident(&self) -> u64 {
        with(|_, held| self.inner.pager().object().stored(held) as u64)
    }

    /// Whether the page at byte `at` holds something.
    pub fn has_page(&self, at: u64) -> bool {
        with(|_, held| {
            self.inner.pager().object().lock(held).0.next_stored(Pages::floor(at))
                == Some(Pages::floor(at))
        })
    }

    /// The first byte of the first page at or behind `at` that holds something.
    pub fn next_page(&self, at: u64) -> Option<u64> {
        with(|_, held| {
            let (body, _) = self.inner.pager().object().lock(held);
            body.next_stored(Pages::floor(at)).map(|index| index.bytes())
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
        match &self.inner.kind {
            Kind::Anon(pager) => pager.clone(),
            Kind::File(pager) => pager.clone(),
            Kind::Device(pager) => pager.clone(),
        }
    }
}

/// A call that is about to map an object so that stores come through, as [`Object::has_writers`]
/// counts.
pub struct Writing(Object);

impl Drop for Writing {
    fn drop(&mut self) {
        self.0.inner.pager().object().leave_writer();
    }
}

/// Says how a read of pages ended that a [`Vnode`] had started. From interrupts, too.
pub fn pages_read(pages: &[PageNo], ok: bool) {
    with(|uvm, held| uvm.read_done(held, pages, outcome(ok)));
}

/// Says that pages have been read that are zeroes where their file has no room for them yet.
pub fn holes_read(pages: &[PageNo]) {
    with(|uvm, held| uvm.read_done(held, pages, Outcome::Hole));
}

/// Says how a write ended.
pub fn pages_written(pages: &[PageNo], ok: bool) {
    with(|uvm, held| uvm.write_done(held, pages, outcome(ok)));
}

fn outcome(ok: bool) -> Outcome {
    if ok {
        Outcome::Done
    } else {
        Outcome::Failed
    }
}

/// What programs are told of a page that can't be had.
fn errno(error: GetError) -> Errno {
    match error {
        GetError::Io => EIO,
        GetError::NoSpace => ENOSPC,
        GetError::PastEnd | GetError::NoMemory | GetError::Wait(_) | GetError::Read(_) => ENOMEM,
    }
}

/// The pages that a range of bytes touches, as far as there are any.
fn touched(at: u64, len: u64) -> core::ops::Range<u64> {
    let end = at.saturating_add(len).min(i64::MAX as u64);
    Pages::floor(at).0..Pages::ceil(end).0
}

/// A page of zeroes, to read holes from.
fn zeroes() -> Result<PageNo> {
    static ZEROES: Once<PageNo> = Once::new();
    if let Some(&page) = ZEROES.get() {
        return Ok(page);
    }
    let page = unlocked(|held| KERNEL.frames().alloc(&KERNEL, held, Reserve::Kernel))
        .map_err(|_| ENOMEM)?;
    KERNEL.zero(page);
    Ok(*ZEROES.call_once(|| page))
}

/// Hands the object's bytes from `at` on to `each`, part by part, none across a page: `each` gets
/// the part's offset and its bytes, and says how many it used; fewer than all ends the walk. A walk
/// that reads must not change them.
///
/// # Errors
/// What `each` says; `ENOMEM`, `ENOSPC`, `EIO`; parts before were handed over.
pub fn object_io(
    object: &Object,
    at: u64,
    len: u64,
    dir: Dir,
    each: &mut dyn FnMut(u64, PageBytes) -> Result<usize>,
) -> Result<()> {
    object_io_as(object, at, len, dir, Usage::Normal, each)
}

/// Copies as [`object_io`] does, for a caller that has said by `usage` how it goes through the
/// object.
///
/// # Errors
/// As [`object_io`].
pub fn object_io_as(
    object: &Object,
    at: u64,
    len: u64,
    dir: Dir,
    usage: Usage,
    each: &mut dyn FnMut(u64, PageBytes) -> Result<usize>,
) -> Result<()> {
    let pager = object.pager();
    let intent = if dir == Dir::Read { Intent::Read } else { Intent::Write };
    let mut done = 0;
    while done < len {
        let offset = at + done;
        let from = (offset % PAGE) as usize;
        let part = (len - done).min(PAGE - from as u64) as usize;
        let access = Access::Call(usage, Pages::ceil(from as u64 + len - done).0 as u32);
        let mut copy = |m: &KernelMachine, page| each(offset, m.bytes(page).part(from, part));
        sched::work_done(part);
        let used = with(|uvm, held| {
            uvm.with_page(held, &pager, Pages::floor(offset), intent, access, &mut copy)
        });
        let used = match used {
            Ok(Some(used)) => used?,
            Ok(None) => copy(&KERNEL, zeroes()?)?,
            Err(GetError::PastEnd) => return Ok(()),
            Err(error) => return Err(errno(error)),
        };
        done += used as u64;
        if used < part {
            break;
        }
    }
    Ok(())
}

/// Punches a hole in the shared objects that are mapped at a range, as far as stores may reach
/// them: the range was judged at an earlier look, and may show a file by now that may only be read.
pub(super) fn punch(space: &Space, mut range: PageRange) -> Result<()> {
    while !range.is_empty() {
        let found = with(|uvm, held| uvm.object_at(held, space.get(), range.start));
        let (shown, pager, first) = found.ok_or(EACCES)?;
        if shown.sharing != Sharing::Shared || !shown.max_prot.contains(Prot::WRITE) {
            return Err(EACCES);
        }
        let part = shown.range.intersect(range);
        let pages = first.0..(first + part.pages()).0;
        range = range.skip_to(part.end);
        // A file on a disk has blocks behind its pages, which only its file system takes away.
        if pager.kind() == "vnode" {
            return Err(EOPNOTSUPP);
        }
        // As for a hole that is asked of the file: none in what is sealed, nor beside a thread that
        // seals it.
        if !pager.object().admit_writer() {
            return Err(EPERM);
        }
        with(|uvm, held| uvm.punch(held, &pager, pages));
        pager.object().leave_writer();
    }
    Ok(())
}
