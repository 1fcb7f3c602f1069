//! `swapon` and `swapoff`.

use alloc::sync::Arc;

use linux_raw_sys::general as abi;

use super::path_args::{place, CWD};
use super::{calls, Calls};
use crate::cred::caps::Caps;
use crate::errno::*;
use crate::fs::access;
use crate::fs::inode::Kind;
use crate::fs::path::Follow;
use crate::fs::{swap, File};
use crate::proc::current_process;

pub const CALLS: Calls = calls! { __NR_swapon => swapon[2], __NR_swapoff => swapoff[1] };

const PREFER: u32 = 0x8000;
const PRIORITY: u32 = 0x7fff;
/// That a disk be told of pages which hold nothing any more: these here aren't.
const DISCARD: u32 = 0x7_0000;

fn swapon(path: u64, flags: u32) -> Result<()> {
    if flags & !(PREFER | PRIORITY | DISCARD) != 0 {
        return Err(EINVAL);
    }
    let priority = (flags & PREFER != 0).then_some((flags & PRIORITY) as i16);
    swap::on(open(path)?, priority)
}

fn swapoff(path: u64) -> Result<()> {
    let file = open(path)?;
    swap::off(&file)
}

/// Opens what a privileged caller names, if it could be swapped on.
fn open(path: u64) -> Result<Arc<File>> {
    current_process().cred().need(Caps::SYS_ADMIN)?;
    let place = place(CWD, path, Follow::Yes)?;
    match place.inode.kind() {
        Kind::Dir => Err(EISDIR),
        Kind::File | Kind::Block => {
            place.inode.permits(&current_process().cred(), access::READ | access::WRITE)?;
            File::open(place, abi::O_RDWR | abi::O_LARGEFILE)
        }
        _ => Err(EINVAL),
    }
}
