//! A reader for cpio archives ("newc" format, as the Linux kernel takes them). Pure.
//!
//! The reader borrows the archive and copies nothing. Several archives may follow each other with
//! zeros between them. Hard links are entries with one inode number, of which the last has the
//! contents.

use crate::devnum::device_number;

const HEADER: usize = 110;
const TRAILER: &[u8] = b"TRAILER!!!";

/// One member of an archive.
#[derive(Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    pub ino: u32,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub mtime: u32,
    pub rdev: u64,
    pub name: &'a [u8],
    pub data: &'a [u8],
}

/// Iterates over the members; stops at the end or at the first thing that is none.
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(archive: &'a [u8]) -> Self {
        Reader { rest: archive }
    }

    /// What lies behind the last member.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    fn parse(&mut self) -> Option<Entry<'a>> {
        let header = self.rest.get(..HEADER)?;
        if &header[..6] != b"070701" && &header[..6] != b"070702" {
            return None;
        }
        let mut fields = [0u32; 13];
        for (index, field) in fields.iter_mut().enumerate() {
            *field = hex(&header[6 + index * 8..14 + index * 8])?;
        }
        let [ino, mode, uid, gid, nlink, mtime, size, _, _, major, minor, name_size, _] = fields;
        let name_end = HEADER.checked_add(name_size as usize)?;
        let name = self.rest.get(HEADER..name_end.checked_sub(1)?)?;
        let data_start = name_end.next_multiple_of(4);
        let data_end = data_start.checked_add(size as usize)?;
        let data = self.rest.get(data_start..data_end)?;
        self.rest = self.rest.get(data_end.next_multiple_of(4)..).unwrap_or(&[]);
        let rdev = device_number(major, minor);
        Some(Entry { ino, mode, uid, gid, nlink, mtime, rdev, name, data })
    }
}

impl<'a> Iterator for Reader<'a> {
    type Item = Entry<'a>;

    fn next(&mut self) -> Option<Entry<'a>> {
        loop {
            let zeros = self.rest.iter().take_while(|&&byte| byte == 0).count();
            self.rest = &self.rest[zeros..];
            let entry = self.parse()?;
            if entry.name != TRAILER {
                return Some(entry);
            }
        }
    }
}

fn hex(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0u32, |value, &digit| Some(value << 4 | (digit as char).to_digit(16)?))
}
