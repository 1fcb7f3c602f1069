//! A volume on a stack of its own.
//!
//! The crate behind it copies inodes, superblocks and descriptors about and calls deeply; under a
//! page fault in a system call there is not that much left of a thread's stack. As one thread at a
//! time uses a volume, one large stack for each is enough.
//!
//! The crate knows of no other threads either, and lists a journal or builds a file's tree anew in
//! one piece: so it is interrupted, and gives way wherever it is (`arch::preempt`). What it calls
//! of the kernel, besides the heap, is in `device`.
//!
//! The crate also allocates as it likes: a mount and its journal take pieces of up to 128 KiB that
//! can't fail. What an operation takes is announced (`Ext4::volume_with_room`).

use alloc::vec::Vec;

use volume::{
    AccessList, Attributes, Change, Cursor, Entry, ErrorKind, Limits, Mode, New, Rename, Result,
    Run, Space,
};

use super::device::{Metadata, Now};
use crate::arch::preempt;
use crate::arch::switch::on_stack;
use crate::mem::fault;
use crate::mem::stack::{Large, Stack};

/// `volume::Volume`, with the same calls.
pub(super) struct Volume {
    inner: volume::Volume<Metadata>,
    stack: Large,
}

macro_rules! calls {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        impl Volume {
            $(pub(super) fn $name(&mut self, $($arg: $type),*) -> $result {
                let Volume { inner, stack } = self;
                fault::excused(|| on_stack(stack, || preempt::open(|| inner.$name($($arg),*))))
            })*
        }
    };
}

calls! {
    root() -> u32;
    extents(ino: u32, at: u64, len: u64) -> Result<Vec<Run>>;
    reserve(ino: u32, size: u64, at: u64, len: u64) -> Result<Vec<Run>>;
    allocate(ino: u32, at: u64, len: u64) -> Result<()>;
    resize(ino: u32, size: u64) -> Result<()>;
    punch(ino: u32, at: u64, len: u64) -> Result<()>;
    reap(ino: u32) -> Result<()>;
    sync() -> Result<()>;
    forget() -> ();
    unmount() -> Result<()>;
    attributes(ino: u32) -> Result<Attributes>;
    change(ino: u32, change: &Change) -> Result<Attributes>;
    lookup(dir: u32, name: &[u8]) -> Result<Attributes>;
    list(dir: u32, from: Cursor, max: usize) -> Result<Vec<Entry>>;
    create(dir: u32, name: &[u8], new: New<'_>, perm: u32, owner: (u32, u32)) -> Result<Attributes>;
    link(ino: u32, dir: u32, name: &[u8]) -> Result<Attributes>;
    unlink(dir: u32, name: &[u8]) -> Result<bool>;
    remove_dir(dir: u32, name: &[u8]) -> Result<()>;
    rename(dir: u32, name: &[u8], to_dir: u32, to: &[u8], how: Rename) -> Result<Option<u32>>;
    read_link(ino: u32) -> Result<Vec<u8>>;
    access_list(ino: u32, which: AccessList) -> Result<Option<Vec<u8>>>;
    set_access_list(ino: u32, which: AccessList, bytes: &[u8]) -> Result<()>;
}

impl Volume {
    pub(super) fn mount(
        device: Metadata,
        clock: Now,
        mode: Mode,
        limits: Limits,
    ) -> Result<Volume> {
        let mut stack = Stack::large().map_err(|_| ErrorKind::NoMemory)?;
        let mount = || volume::Volume::mount(device, clock, mode, limits);
        let inner = fault::excused(|| on_stack(&mut stack, || preempt::open(mount)))?;
        Ok(Volume { inner, stack })
    }

    pub(super) fn reserve_owner(&self) -> (u32, u32) {
        self.inner.reserve_owner()
    }

    pub(super) fn space(&self) -> Space {
        self.inner.space()
    }
}
