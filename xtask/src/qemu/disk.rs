//! The machine's disks: what each holds, how fast it is, and where it fails.

use std::path::PathBuf;

#[derive(Clone, Debug)]
pub struct Disk {
    /// A raw image of this machine.
    pub image: PathBuf,
    pub access: Access,
    /// What it can do at most; none: as fast as this machine.
    pub speed: Option<Speed>,
    /// Where it fails.
    pub faults: Vec<Fault>,
}

/// A sector of 512 bytes that can't be read, or not written: requests that touch it fail.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    Read(u64),
    Write(u64),
    /// Only the first write fails.
    WriteOnce(u64),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Access {
    ReadWrite,
    ReadOnly,
    /// What is written is forgotten when the machine ends.
    Snapshot,
}

/// A disk's limits, which QEMU keeps: they make a disk that is slower than memory, whatever this
/// machine has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    pub bytes_per_second: u64,
    pub requests_per_second: u64,
}

impl Disk {
    /// The value of `-drive`.
    pub(super) fn drive(&self, id: &str) -> String {
        // A comma in a value is written twice.
        let path = self.image.display().to_string().replace(',', ",,");
        let mut drive = format!("if=none,id={id},format=raw");
        if self.faults.is_empty() {
            drive.push_str(&format!(",file={path}"));
        } else {
            drive.push_str(&format!(
                ",file.driver=blkdebug,file.image.driver=file,file.image.filename={path}"
            ));
        }
        for (index, fault) in self.faults.iter().enumerate() {
            let (kind, sector, once) = match fault {
                Fault::Read(sector) => ("read", sector, "off"),
                Fault::Write(sector) => ("write", sector, "off"),
                Fault::WriteOnce(sector) => ("write", sector, "on"),
            };
            let inject = format!("file.inject-error.{index}");
            drive.push_str(&format!(
                ",{inject}.event=none,{inject}.iotype={kind},{inject}.sector={sector}"
            ));
            drive.push_str(&format!(",{inject}.once={once}"));
        }
        match self.access {
            // What a guest flushes is safe from its own crash, which is all that a machine in QEMU
            // can test.
            Access::ReadWrite => drive.push_str(",cache=unsafe"),
            Access::ReadOnly => drive.push_str(",readonly=on"),
            Access::Snapshot => drive.push_str(",snapshot=on,cache=unsafe"),
        }
        if let Some(speed) = self.speed {
            drive.push_str(&format!(
                ",throttling.bps-total={},throttling.iops-total={}",
                speed.bytes_per_second, speed.requests_per_second
            ));
        }
        drive
    }
}
