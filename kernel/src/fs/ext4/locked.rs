//! A volume that is interrupted.
//!
//! The crate behind it knows of no other threads, and walks a folder or replays a journal in one
//! piece: so it is interrupted, and gives way wherever it is (`arch::preempt`). What it calls of
//! the kernel, besides the heap, is in `device`.
//!
//! The crate also allocates as it likes: a mount and its journal take pieces of up to 128 KiB that
//! can't fail. What an operation takes is announced (`Fs::volume_with_room`).
//!
//! It calls some 6 KiB deep at most, and the deepest call of it, under a page fault in a system
//! call, comes 9 KiB deep: it needs no stack of its own.

use alloc::vec::Vec;

use volume::{
    AccessList, Attributes, Change, Cursor, Entry, Limits, Mode, New, Rename, Result, Run, Space,
};

use super::device::{Metadata, Now};
use crate::arch::preempt;
use crate::mem::fault;

/// `volume::Volume`, with the same calls.
pub(super) struct Volume(volume::Volume<Metadata>);

macro_rules! calls {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        impl Volume {
            // Apart: what is inlined takes its stack for longer.
            $(#[inline(never)]
            pub(super) fn $name(&mut self, $($arg: $type),*) -> $result {
                fault::excused(|| preempt::open(|| self.0.$name($($arg),*)))
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
    #[inline(never)]
    pub(super) fn mount(
        device: Metadata,
        clock: Now,
        mode: Mode,
        limits: Limits,
    ) -> Result<Volume> {
        let mount = || volume::Volume::mount(device, clock, mode, limits);
        fault::excused(|| preempt::open(mount)).map(Volume)
    }

    pub(super) fn reserve_owner(&self) -> (u32, u32) {
        self.0.reserve_owner()
    }

    pub(super) fn space(&self) -> Space {
        self.0.space()
    }
}
