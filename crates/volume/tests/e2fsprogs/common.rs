//! A disk in memory that can lose what was not flushed, e2fsck and debugfs, and a random source.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use volume::{Clock, Device, DeviceError, Limits, Mode, Run, Timestamp, Volume};

/// What a disk was asked to do.
#[derive(Clone)]
pub enum Event {
    Write(usize, Vec<u8>),
    Flush,
}

/// What a disk holds, and what it may still lose.
pub struct Platter {
    /// As reads see it.
    pub now: Vec<u8>,
    /// As of the last flush.
    pub stable: Vec<u8>,
    pub pending: Vec<(usize, Vec<u8>)>,
    /// All writes and flushes, if they are kept.
    pub history: Option<Vec<Event>>,
    pub flushes: usize,
    /// Reads and writes that the volume asked for.
    pub requests: [usize; 2],
    pub fails: bool,
    /// All writes stay pending, so that a cut may be anywhere.
    pub has_long_memory: bool,
    /// The sectors that were read and written since this was put here.
    pub touched: Option<BTreeSet<u64>>,
}

#[derive(Clone)]
pub struct Disk(pub Arc<Mutex<Platter>>);

impl Disk {
    pub fn open(image: &Path) -> Disk {
        Disk::holding(std::fs::read(image).expect("an image that was just made"))
    }

    pub fn holding(now: Vec<u8>) -> Disk {
        let (stable, pending) = (now.clone(), Vec::new());
        let disk = Platter {
            now,
            stable,
            pending,
            history: None,
            flushes: 0,
            requests: [0; 2],
            fails: false,
            has_long_memory: false,
            touched: None,
        };
        Disk(Arc::new(Mutex::new(disk)))
    }

    /// Notes that the volume has read or written there.
    fn touch(&self, at: u64, len: usize) {
        if let Some(touched) = &mut self.0.lock().unwrap().touched {
            touched.extend(at / 512..(at + len as u64).div_ceil(512));
        }
    }

    pub fn write_at(&self, at: u64, bytes: &[u8]) {
        let mut disk = self.0.lock().unwrap();
        let at = at as usize;
        disk.now[at..at + bytes.len()].copy_from_slice(bytes);
        disk.pending.push((at, bytes.to_vec()));
        if let Some(history) = &mut disk.history {
            history.push(Event::Write(at, bytes.to_vec()));
        }
    }

    pub fn read_at(&self, at: u64, to: &mut [u8]) {
        let at = at as usize;
        to.copy_from_slice(&self.0.lock().unwrap().now[at..at + to.len()]);
    }

    /// What is on the disk after a crash: all that was flushed, and of the rest what chance kept,
    /// sector by sector.
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

impl Disk {
    /// What is on the disk when the machine is killed: all that was written before some moment
    /// since the last flush.
    pub fn cut(&self, chance: &mut Random) -> Vec<u8> {
        let disk = self.0.lock().unwrap();
        let mut image = disk.stable.clone();
        for (at, bytes) in &disk.pending[..chance.below(disk.pending.len() as u64 + 1) as usize] {
            image[*at..at + bytes.len()].copy_from_slice(bytes);
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
        self.0.lock().unwrap().requests[0] += 1;
        self.touch(at, to.len());
        self.read_at(at, to);
        Ok(())
    }

    fn write(&mut self, at: u64, from: &[u8]) -> Result<(), DeviceError> {
        if self.0.lock().unwrap().fails {
            return Err(DeviceError);
        }
        self.0.lock().unwrap().requests[1] += 1;
        self.touch(at, from.len());
        self.write_at(at, from);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        let mut disk = self.0.lock().unwrap();
        disk.flushes += 1;
        if let Some(history) = &mut disk.history {
            history.push(Event::Flush);
        }
        if disk.has_long_memory {
            return Ok(());
        }
        let Platter { stable, pending, .. } = &mut *disk;
        for (at, bytes) in pending.drain(..) {
            stable[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        Ok(())
    }
}

#[derive(Clone)]
pub struct Now;

impl Clock for Now {
    fn now(&self) -> Timestamp {
        Timestamp::new(1_800_000_000, 5)
    }
}

pub fn mount(disk: &Disk) -> Volume<Disk> {
    mount_with(disk, LIMITS).expect("the volume mounts")
}

pub const LIMITS: Limits = Limits { cache_lines: 64, pieces: usize::MAX };

/// With so many blocks of metadata remembered, and names in as much room.
pub fn mount_remembering(disk: &Disk, cache_lines: usize) -> Volume<Disk> {
    mount_with(disk, Limits { cache_lines, ..LIMITS }).expect("the volume mounts")
}

pub fn mount_with(disk: &Disk, limits: Limits) -> volume::Result<Volume<Disk>> {
    Volume::mount(disk.clone(), Now, Mode::ReadWrite, limits)
}

/// Makes an image of `mib` MiB by `mke2fs` with these options.
pub fn make(image: &Path, mib: u64, options: &[&str]) {
    let refused = try_make(image, mib, options);
    assert_eq!(refused, None, "mke2fs");
}

/// The same; returns what `mke2fs` has to say against it.
pub fn try_make(image: &Path, mib: u64, options: &[&str]) -> Option<String> {
    std::fs::File::create(image)
        .and_then(|file| file.set_len(mib << 20))
        .expect("room for an image");
    let out =
        Command::new("mke2fs").args(["-q", "-F", "-t", "ext4"]).args(options).arg(image).output();
    let out = out.expect("mke2fs is installed");
    (!out.status.success()).then(|| String::from_utf8_lossy(&out.stderr).into_owned())
}

/// Runs e2fsck; returns its exit code and all it said.
pub fn fsck(image: &Path, how: &str) -> (i32, String) {
    let out =
        Command::new("e2fsck").args(["-f", how]).arg(image).output().expect("e2fsck is installed");
    let text = [out.stdout, out.stderr].concat();
    (out.status.code().unwrap_or(-1), String::from_utf8_lossy(&text).into_owned())
}

/// What `e2fsck -fn` asks about. Empty: the volume is right.
pub fn complaints(image: &Path) -> String {
    let (code, text) = fsck(image, "-n");
    if code == 0 {
        String::new()
    } else {
        text
    }
}

/// What debugfs says to a request.
pub fn debugfs(image: &Path, request: &str) -> String {
    let out = Command::new("debugfs").args(["-R", request]).arg(image).output();
    String::from_utf8_lossy(&out.expect("debugfs is installed").stdout).into_owned()
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
