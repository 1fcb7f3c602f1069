//! A disk in memory that can lose what was not flushed, e2fsck and debugfs, and a random source.

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use rsext4::{Clock, Ext4Result};
use volume::{Device, DeviceError, Mode, Run, Timestamp, Volume};

/// What a disk holds, and what it may still lose.
pub struct Platter {
    /// As reads see it.
    pub now: Vec<u8>,
    /// As of the last flush.
    pub stable: Vec<u8>,
    pub pending: Vec<(usize, Vec<u8>)>,
    pub flushes: usize,
    pub fails: bool,
}

#[derive(Clone)]
pub struct Disk(pub Arc<Mutex<Platter>>);

impl Disk {
    pub fn open(image: &Path) -> Disk {
        let now = std::fs::read(image).expect("an image that was just made");
        let stable = now.clone();
        Disk(Arc::new(Mutex::new(Platter { now, stable, pending: Vec::new(), flushes: 0, fails: false })))
    }

    pub fn write_at(&self, at: u64, bytes: &[u8]) {
        let mut disk = self.0.lock().unwrap();
        let at = at as usize;
        disk.now[at..at + bytes.len()].copy_from_slice(bytes);
        disk.pending.push((at, bytes.to_vec()));
    }

    pub fn read_at(&self, at: u64, to: &mut [u8]) {
        let at = at as usize;
        to.copy_from_slice(&self.0.lock().unwrap().now[at..at + to.len()]);
    }

    /// What is on the disk after a crash: all that was flushed, and of the rest what chance kept, sector by sector.
    pub fn crash(&self, chance: &mut Random) -> Vec<u8> {
        let disk = self.0.lock().unwrap();
        let mut image = disk.stable.clone();
        let keep_most = chance.below(2) == 0;
        for (at, bytes) in &disk.pending {
            for (n, sector) in bytes.chunks(512).enumerate() {
                if chance.below(8) < if keep_most { 7 } else { 3 } {
                    let at = at + n * 512;
                    image[at..at + sector.len()].copy_from_slice(sector);
                }
            }
        }
        image
    }
}

impl Device for Disk {
    fn bytes(&self) -> u64 {
        self.0.lock().unwrap().now.len() as u64
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read(&mut self, at: u64, to: &mut [u8]) -> Result<(), DeviceError> {
        self.read_at(at, to);
        Ok(())
    }

    fn write(&mut self, at: u64, from: &[u8]) -> Result<(), DeviceError> {
        if self.0.lock().unwrap().fails {
            return Err(DeviceError);
        }
        self.write_at(at, from);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        let mut disk = self.0.lock().unwrap();
        disk.flushes += 1;
        let Platter { stable, pending, .. } = &mut *disk;
        for (at, bytes) in pending.drain(..) {
            stable[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        Ok(())
    }
}

pub struct Now;

impl Clock for Now {
    fn now(&self) -> Ext4Result<Timestamp> {
        Ok(Timestamp::new(1_800_000_000, 5))
    }
}

pub fn mount(disk: &Disk) -> Volume<Disk> {
    mount_with(disk, 64)
}

/// With so many blocks of metadata remembered, and names in as much room.
pub fn mount_with(disk: &Disk, lines: usize) -> Volume<Disk> {
    Volume::mount(disk.clone(), Now, Mode::ReadWrite, lines).expect("the volume mounts")
}

/// Makes an image of `mib` MiB by `mke2fs` with these options.
pub fn make(image: &Path, mib: u64, options: &[&str]) {
    std::fs::File::create(image).and_then(|file| file.set_len(mib << 20)).expect("room for an image");
    let out = Command::new("mke2fs").args(["-q", "-F", "-t", "ext4"]).args(options).arg(image).output();
    let out = out.expect("mke2fs is installed");
    assert!(out.status.success(), "mke2fs: {}", String::from_utf8_lossy(&out.stderr));
}

/// Runs e2fsck; returns its exit code and all it said.
pub fn fsck(image: &Path, how: &str) -> (i32, String) {
    let out = Command::new("e2fsck").args(["-f", how]).arg(image).output().expect("e2fsck is installed");
    let text = [out.stdout, out.stderr].concat();
    (out.status.code().unwrap_or(-1), String::from_utf8_lossy(&text).into_owned())
}

/// Reads a file's data where the volume says that it lies.
pub fn read(volume: &mut Volume<Disk>, disk: &Disk, ino: u32, size: u64) -> Vec<u8> {
    let mut data = vec![0; size as usize];
    for run in volume.extents(ino, 0, size).expect("extents") {
        if run.unwritten {
            continue;
        }
        let len = run.len.min(size.next_multiple_of(4096) - run.at);
        let mut bytes = vec![0; len as usize];
        disk.read_at(run.disk, &mut bytes);
        let keep = (size - run.at).min(len) as usize;
        data[run.at as usize..run.at as usize + keep].copy_from_slice(&bytes[..keep]);
    }
    data
}

/// Writes part of a file as a page cache does: whole blocks, zeroes behind the end.
pub fn write_back(disk: &Disk, runs: &[Run], data: &[u8]) {
    for run in runs {
        let mut bytes = vec![0; run.len as usize];
        let have = (data.len() as u64).saturating_sub(run.at).min(run.len) as usize;
        bytes[..have].copy_from_slice(&data[run.at as usize..run.at as usize + have]);
        disk.write_at(run.disk, &bytes);
    }
}

/// xorshift64*.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 33) % n
    }
}
