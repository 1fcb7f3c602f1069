//! Writes a cpio archive in the `newc` form, which is what both kernels unpack as their first root
//! file system.
//!
//! One record: a header of 110 ASCII bytes, the name with its zero, padding to 4, the data, padding
//! to 4.

use std::io::{Result, Write};

/// One archive member. `path` has no leading slash.
pub struct Entry<'a> {
    pub path: &'a str,
    /// File type and permission bits, as in `st_mode`.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Seconds since 1970.
    pub mtime: u32,
    /// Device number of a device node: major, minor.
    pub device: (u32, u32),
    pub data: &'a [u8],
}

/// Writes members one after the other; `finish` must be last.
pub struct Writer<W: Write> {
    out: W,
    next_inode: u32,
}

impl<W: Write> Writer<W> {
    pub fn new(out: W) -> Self {
        Writer { out, next_inode: 1 }
    }

    pub fn add(&mut self, entry: &Entry) -> Result<()> {
        let inode = self.next_inode;
        self.next_inode += 1;
        let links = if entry.mode & 0o170000 == 0o040000 { 2 } else { 1 };
        let fields = [
            inode,
            entry.mode,
            entry.uid,
            entry.gid,
            links,
            entry.mtime,
            u32::try_from(entry.data.len())
                .map_err(|_| std::io::Error::other("a file is over 4 GiB"))?,
            0,
            0,
            entry.device.0,
            entry.device.1,
            entry.path.len() as u32 + 1,
            0,
        ];
        write!(self.out, "070701")?;
        for field in fields {
            write!(self.out, "{field:08x}")?;
        }
        self.out.write_all(entry.path.as_bytes())?;
        self.out.write_all(&[0])?;
        self.pad(110 + entry.path.len() + 1)?;
        self.out.write_all(entry.data)?;
        self.pad(entry.data.len())
    }

    pub fn finish(mut self) -> Result<()> {
        let end = Entry {
            path: "TRAILER!!!",
            mode: 0,
            uid: 0,
            gid: 0,
            mtime: 0,
            device: (0, 0),
            data: &[],
        };
        self.add(&end)?;
        self.out.flush()
    }

    fn pad(&mut self, written: usize) -> Result<()> {
        self.out.write_all(&[0; 3][..written.wrapping_neg() % 4])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_padded_to_four_bytes() {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes);
        let entry = Entry {
            path: "a",
            mode: 0o100644,
            uid: 0,
            gid: 0,
            mtime: 0,
            device: (0, 0),
            data: b"hello",
        };
        writer.add(&entry).unwrap();
        writer.finish().unwrap();
        assert!(bytes.starts_with(b"070701"));
        assert_eq!(&bytes[110..112], b"a\0");
        assert_eq!(&bytes[112..117], b"hello");
        assert_eq!(&bytes[120..126], b"070701");
        assert_eq!(bytes.len() % 4, 0);
    }
}
