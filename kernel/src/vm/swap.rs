//! What the kernel asks of the library about swap: compressed pages, errors. Areas on disks are in
//! `fs::swap`.

use uvm::{SwapDevice, SwapError};
use uvm_zram::{Zram, ZramInfo, ZramOn};

use super::system::{system, with};
use crate::errno::{Errno, Result, EBUSY, EINVAL, EIO, ENOMEM, EPERM};
use crate::mem::frames::KernelMachine;
use crate::sync::{Mutex, SpinLock};

/// The device of compressed pages while it is on, and the lock under which that changes.
static ZRAM: SpinLock<ZramOn<KernelMachine>> = SpinLock::new(None);
static ZRAM_CHANGES: Mutex<()> = Mutex::new(());

/// What the device of compressed pages holds.
pub(super) fn zram() -> ZramInfo {
    let on = ZRAM.lock().clone();
    on.map_or_else(ZramInfo::default, |(device, _)| with(|_, held| device.info(held)))
}

/// Slots of all areas, and slots in use: those of compressed pages, which are memory, don't count.
pub(super) fn space() -> (u32, u32) {
    let (slots, used) = system().swap_space();
    let zram = ZRAM.lock().as_ref().map_or(0, |(device, _)| device.slots());
    (slots.saturating_sub(zram), used.saturating_sub(self::zram().pages))
}

/// Gives compressed pages a share of memory, in percent.
pub(super) fn set_zram(percent: u8) -> Result<()> {
    let _alone = ZRAM_CHANGES.lock();
    let mut on = ZRAM.lock().clone();
    let result = with(|uvm, held| Zram::set_share(uvm, held, &mut on, percent));
    let old = core::mem::replace(&mut *ZRAM.lock(), on);
    drop(old);
    result.map_err(errno)
}

/// As swapon(2) and swapoff(2) say it.
pub(super) fn errno(error: SwapError) -> Errno {
    match error {
        SwapError::Empty | SwapError::NotFound => EINVAL,
        SwapError::TooMuch | SwapError::NoMemory => ENOMEM,
        SwapError::TooMany => EPERM,
        SwapError::Busy => EBUSY,
        SwapError::Io => EIO,
    }
}
