//! Devices as files: the terminal, disks, a display's memory, and those without hardware; `devfs`
//! is the tree of them. The drivers of disks are in `block`.

pub mod devfs;
mod disk;
pub mod framebuffer;
pub mod tty;

use crate::errno::{Result, ENXIO};
use crate::fs::inode::Kind;
use crate::fs::ops::FileRef;

/// Opens the device behind a special node of this kind and number.
///
/// # Errors
/// `ENXIO` where there is none, and what opening it says.
pub fn open(kind: Kind, number: u64, flags: u32) -> Result<FileRef> {
    match kind {
        Kind::Char => devfs::open(number, flags),
        Kind::Block => disk::open(number, flags),
        _ => Err(ENXIO),
    }
}
