//! A volume of 4 MiB in memory, which `mke2fs` makes, for the examples in this crate's
//! documentation.

extern crate std;

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::process::Command;
use std::sync::Mutex;

use crate::{Clock, Device, DeviceError, Limits, Mode, Timestamp, Volume};

/// A disk in memory.
#[derive(Clone)]
pub struct Disk(Arc<Mutex<Vec<u8>>>);

impl Device for Disk {
    fn bytes(&self) -> u64 {
        self.0.lock().unwrap().len() as u64
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read(&mut self, at: u64, to: &mut [u8]) -> core::result::Result<(), DeviceError> {
        to.copy_from_slice(&self.0.lock().unwrap()[at as usize..][..to.len()]);
        Ok(())
    }

    fn write(&mut self, at: u64, from: &[u8]) -> core::result::Result<(), DeviceError> {
        self.0.lock().unwrap()[at as usize..][..from.len()].copy_from_slice(from);
        Ok(())
    }

    fn flush(&mut self) -> core::result::Result<(), DeviceError> {
        Ok(())
    }
}

/// A clock that stands still.
#[derive(Clone)]
pub struct Now;

impl Clock for Now {
    fn now(&self) -> Timestamp {
        Timestamp::new(1_800_000_000, 5)
    }
}

/// What the examples' volumes may take of memory.
pub const LIMITS: Limits = Limits { cache_lines: 64, pieces: 64 };

/// A disk with an empty volume.
pub fn disk() -> Disk {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("volume-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
    let image = std::env::temp_dir().join(name);
    std::fs::File::create(&image).unwrap().set_len(4 << 20).unwrap();
    let made = Command::new("mke2fs").args(["-q", "-F", "-t", "ext4"]).arg(&image).status();
    assert!(made.expect("mke2fs is installed").success());
    let bytes = std::fs::read(&image).unwrap();
    std::fs::remove_file(image).unwrap();
    Disk(Arc::new(Mutex::new(bytes)))
}

/// Runs an example on a volume, which is right after it.
pub fn run(example: impl FnOnce(&mut Volume<Disk>) -> crate::Result<()>) {
    let mut volume = Volume::mount(disk(), Now, Mode::ReadWrite, LIMITS).unwrap();
    example(&mut volume).unwrap();
    volume.sync().unwrap();
}
