//! The contents of a tmpfs file: a VM object of anonymous memory, and a size in bytes.
//!
//! There is no buffer beside it. A mapping of the file and a read or write of it touch the same
//! pages, so they always agree. Pages that were never written are holes and read as zeros.
//!
//! Invariants: I1: the object's size is the file's, and bytes of the last page beyond it are zero.
//! I2: size changes and writes hold `writer`, so an append is one step and a truncation doesn't
//! meet a write. I3: where a seal forbids stores through new mappings the object denies them.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};

use linux_raw_sys::general as abi;

use crate::errno::*;
use crate::fs::ops::{Allocate, Position, Seek};
use crate::sched;
use crate::sync::Mutex;
use crate::uio::{outcome, Sink, Source};
use crate::upcalls;
use crate::vm::{self, Asks, Dir, Object, Quota};

/// The work of looking for a page, in bytes that are copied in that time.
const LOOK: usize = 256;
const PAGE: u64 = 4096;
/// The largest file.
const MAX_SIZE: u64 = i64::MAX as u64;

pub(super) struct Data {
    object: Object,
    /// What counts its pages, with those of the whole file system.
    quota: Option<Arc<Quota>>,
    writer: Mutex<()>,
    seals: AtomicU32,
}

impl Data {
    pub(super) fn new(seals: u32, quota: Option<&Arc<Quota>>) -> Result<Data> {
        let object =
            quota.map_or_else(|| Object::anon(0), |quota| Object::anon_within(0, quota))?;
        let quota = quota.cloned();
        Ok(Data { object, quota, writer: Mutex::new(()), seals: AtomicU32::new(seals) })
    }

    pub(super) fn object(&self) -> &Object {
        &self.object
    }

    pub(super) fn size(&self) -> u64 {
        self.object.size()
    }

    pub(super) fn resident_pages(&self) -> u64 {
        self.object.resident()
    }

    pub(super) fn read(&self, at: u64, to: &mut Sink<'_>) -> Result<usize> {
        let start = to.done();
        let len = self.size().saturating_sub(at).min(to.left() as u64);
        if len == 0 {
            return Ok(0);
        }
        let result =
            vm::object_io(&self.object, at, len, Dir::Read, &mut |_, bytes| to.put_page(bytes));
        outcome(to.done() - start, result)
    }

    /// Returns the count and the position after it.
    pub(super) fn write(&self, at: Position, from: &mut Source<'_>) -> Result<(usize, u64)> {
        let _writer = self.writer.lock();
        let size = self.size();
        let at = match at {
            Position::At(at) => at,
            Position::Append => size,
        };
        if from.left() == 0 {
            return Ok((0, at));
        }
        if at >= MAX_SIZE {
            return Err(EFBIG);
        }
        let len = upcalls::file_room(at, (from.left() as u64).min(MAX_SIZE - at))?;
        let seals = self.seals();
        if seals & (abi::F_SEAL_WRITE | abi::F_SEAL_FUTURE_WRITE) != 0 {
            return Err(EPERM);
        }
        if at + len > size {
            if seals & abi::F_SEAL_GROW != 0 {
                return Err(EPERM);
            }
            // The bytes may come from a mapping of this very file: growing must not bring them into
            // being.
            from.probe()?;
            self.object.set_size(at + len)?;
        }
        let start = from.done();
        let result = vm::object_io(&self.object, at, len, Dir::Write, &mut |_, bytes| {
            vm::leave_memory(Asks::File)?;
            from.get_page(bytes)
        });
        // Memory is this file system's disk.
        let result = result.map_err(|errno| if errno == ENOMEM { ENOSPC } else { errno });
        let done = (from.done() - start) as u64;
        if done < len && at + len > size {
            self.object.set_size(size.max(at + done))?;
        }
        Ok((outcome(done as usize, result)?, at + done))
    }

    /// Appends kernel memory, whole pages at a time.
    pub(super) fn fill(&self, bytes: &[u8]) -> Result<()> {
        let mut from = Source::kernel(bytes);
        while from.left() > 0 {
            self.write(Position::Append, &mut from)?;
        }
        Ok(())
    }

    pub(super) fn truncate(&self, len: u64) -> Result<()> {
        if len > MAX_SIZE {
            return Err(EFBIG);
        }
        let _writer = self.writer.lock();
        let size = self.size();
        let seals = self.seals();
        if len < size && seals & abi::F_SEAL_SHRINK != 0
            || len > size && seals & abi::F_SEAL_GROW != 0
        {
            return Err(EPERM);
        }
        if len > size {
            upcalls::file_may_grow_to(len)?;
        }
        self.object.set_size(len)
    }

    pub(super) fn allocate(&self, how: Allocate, at: u64, len: u64) -> Result<()> {
        let end = at.checked_add(len).filter(|&end| end <= MAX_SIZE).ok_or(EFBIG)?;
        let _writer = self.writer.lock();
        let size = self.size();
        let seals = self.seals();
        let clears = match how {
            Allocate::Extend | Allocate::KeepSize => false,
            Allocate::PunchHole => true,
            Allocate::ZeroRange | Allocate::ZeroRangeKeepSize => return Err(EOPNOTSUPP),
        };
        if clears && seals & (abi::F_SEAL_WRITE | abi::F_SEAL_FUTURE_WRITE) != 0 {
            return Err(EPERM);
        }
        if clears {
            self.clear(at.min(size), end.min(size))?;
        }
        if end > size && how == Allocate::Extend {
            if seals & abi::F_SEAL_GROW != 0 {
                return Err(EPERM);
            }
            upcalls::file_may_grow_to(end)?;
            self.object.set_size(end)?;
        }
        if clears {
            return Ok(());
        }
        let filled = self.fill_holes(at, end.min(self.size()));
        if filled.is_err() && self.size() != size {
            self.object.set_size(size)?;
        }
        filled
    }

    /// Gives a range pages where it has none. What it got before it failed it keeps.
    fn fill_holes(&self, from: u64, to: u64) -> Result<()> {
        if let Some(quota) = &self.quota {
            let mut room = quota.room();
            self.each_hole(from, to, |_| {
                room = room.checked_sub(1).ok_or(ENOSPC)?;
                Ok(())
            })?;
        }
        self.each_hole(from, to, |at| {
            sched::work_done(PAGE as usize);
            vm::leave_memory(Asks::File).map_err(|_| ENOSPC)?;
            let touched =
                vm::object_io(&self.object, at, 1, Dir::Write, &mut |_, bytes| Ok(bytes.len()));
            touched.map_err(|errno| if errno == ENOMEM { ENOSPC } else { errno })
        })
    }

    /// Calls `each` with every page of a range that isn't there, as far as it goes well.
    ///
    /// # Errors
    /// `EINTR`: the process is being ended.
    fn each_hole(&self, from: u64, to: u64, mut each: impl FnMut(u64) -> Result<()>) -> Result<()> {
        for at in (from & !(PAGE - 1)..to).step_by(PAGE as usize) {
            if sched::work_done(LOOK) && sched::is_leaving() {
                return Err(EINTR);
            }
            if !self.object.has_page(at) {
                each(at)?;
            }
        }
        Ok(())
    }

    /// Makes a range read as zeros: whole pages go back, parts of pages are overwritten.
    fn clear(&self, from: u64, to: u64) -> Result<()> {
        let first = from.next_multiple_of(PAGE).min(to);
        let last = (to & !(PAGE - 1)).max(first);
        self.wipe(from, first)?;
        self.wipe(last, to)?;
        if last > first {
            self.object.free_range(first, last - first)?;
        }
        Ok(())
    }

    fn wipe(&self, from: u64, to: u64) -> Result<()> {
        if from >= to || self.object.is_zero(from, to)? {
            return Ok(());
        }
        vm::object_io(&self.object, from, to - from, Dir::Write, &mut |_, bytes| {
            bytes.zero();
            Ok(bytes.len())
        })
    }

    pub(super) fn seek(&self, from: u64, what: Seek) -> Result<u64> {
        let size = self.size();
        if from >= size {
            return Err(ENXIO);
        }
        let mut at = from;
        while at < size {
            sched::work_done(LOOK);
            let has_data = self.object.has_page(at);
            if has_data == (what == Seek::Data) {
                return Ok(at);
            }
            at = (at & !(PAGE - 1)) + PAGE;
            if what == Seek::Data {
                at = self.object.next_page(at).unwrap_or(size);
            }
        }
        if what == Seek::Hole {
            Ok(size)
        } else {
            Err(ENXIO)
        }
    }

    pub(super) fn seals(&self) -> u32 {
        self.seals.load(Ordering::Relaxed)
    }

    /// Adds seals; `seal_mode` adds the one of the mode, and says what that is. A file that can be
    /// run and stays so is sealed against all changes of what is run. Sleeps while it is written.
    pub(super) fn add_seals(
        &self,
        mut seals: u32,
        seal_mode: impl FnOnce(&AtomicU32) -> u32,
    ) -> Result<()> {
        const CONTENTS: u32 =
            abi::F_SEAL_SHRINK | abi::F_SEAL_GROW | abi::F_SEAL_WRITE | abi::F_SEAL_FUTURE_WRITE;
        const KNOWN: u32 = abi::F_SEAL_EXEC
            | abi::F_SEAL_SEAL
            | abi::F_SEAL_SHRINK
            | abi::F_SEAL_GROW
            | abi::F_SEAL_WRITE
            | abi::F_SEAL_FUTURE_WRITE;
        if seals & !KNOWN != 0 {
            return Err(EINVAL);
        }
        let _writer = self.writer.lock();
        let before = self.seals();
        if before & abi::F_SEAL_SEAL != 0 {
            return Err(EPERM);
        }
        if seals & abi::F_SEAL_EXEC != 0 && seal_mode(&self.seals) & 0o111 != 0 {
            seals |= CONTENTS;
        }
        if seals & abi::F_SEAL_WRITE != 0 && !self.object.deny_writers() {
            self.seals.store(before, Ordering::Relaxed);
            return Err(EBUSY);
        }
        if seals & abi::F_SEAL_FUTURE_WRITE != 0 {
            self.object.deny_new_writers();
        }
        self.seals.fetch_or(seals, Ordering::Relaxed);
        Ok(())
    }
}
