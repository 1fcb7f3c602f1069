//! Reading ELF files: what a program or interpreter wants mapped where.
//!
//! Everything is checked here, before exec gives anything up: a file that passes can be mapped as
//! it says, but for lack of memory. Field access is the `elf` crate's.

use alloc::vec::Vec;

use crate::arch::abi::ELF_MACHINE;
use crate::arch::layout::USER_END;
use crate::errno::{Errno, Result, EINVAL, ENOEXEC};
use crate::fs::file::File;
use crate::mem::fault::Room;
use elf::abi;
use elf::endian::LittleEndian;
use elf::file::{Class, FileHeader};
use elf::segment::{ProgramHeader, SegmentTable};

const PAGE: u64 = 4096;
const HEADER_SIZE: usize = 64;
const ENTRY_SIZE: usize = 56;
/// More program headers than any linker makes.
const ENTRIES_MAX: usize = 128;

/// How a segment may be used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Rights {
    pub read: Right,
    pub write: Right,
    pub execute: Right,
}

/// One right.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Right {
    No,
    Yes,
}

impl Rights {
    fn of(flags: u32) -> Rights {
        let right = |bit| if flags & bit != 0 { Right::Yes } else { Right::No };
        Rights { read: right(abi::PF_R), write: right(abi::PF_W), execute: right(abi::PF_X) }
    }
}

/// One stretch of memory, not page aligned.
#[derive(Clone, Copy)]
pub struct Segment {
    pub va: u64,
    pub offset: u64,
    pub file_len: u64,
    pub mem_len: u64,
    pub rights: Rights,
}

/// Whether a file has its addresses fixed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    Fixed,
    Anywhere,
}

/// Whether the stack may be executed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum StackRights {
    Data,
    Executable,
}

/// A checked ELF file.
pub struct Image {
    pub placement: Placement,
    pub entry: u64,
    pub segments: Vec<Segment>,
    /// Where the program headers will lie in memory, unrelocated; 0 if no segment holds them.
    pub headers_va: u64,
    pub headers: u64,
    pub interpreter: Option<Vec<u8>>,
    pub stack: StackRights,
}

impl Image {
    /// First and last address that the segments cover, in whole pages.
    pub fn span(&self) -> (u64, u64) {
        let first = self.segments.first().map_or(0, |segment| segment.va & !(PAGE - 1));
        let end =
            self.segments.iter().map(|segment| segment.va + segment.mem_len).max().unwrap_or(0);
        (first, end.next_multiple_of(PAGE))
    }
}

fn bad<E>(_: E) -> Errno {
    ENOEXEC
}

/// Reads and checks an ELF file whose first bytes are `start` and whose length is `size`.
pub fn read(file: &File, start: &[u8], size: u64) -> Result<Image> {
    let ident = start.get(..16).ok_or(ENOEXEC)?;
    let ident = elf::file::parse_ident::<LittleEndian>(ident).map_err(bad)?;
    let tail = start.get(16..HEADER_SIZE).ok_or(ENOEXEC)?;
    if ident.1 != Class::ELF64 {
        return Err(ENOEXEC);
    }
    let header = FileHeader::parse_tail(ident, tail).map_err(bad)?;
    let placement = match header.e_type {
        abi::ET_EXEC => Placement::Fixed,
        abi::ET_DYN => Placement::Anywhere,
        _ => return Err(ENOEXEC),
    };
    let count = usize::from(header.e_phnum);
    let fits = usize::from(header.e_phentsize) == ENTRY_SIZE && (1..=ENTRIES_MAX).contains(&count);
    if header.e_machine != ELF_MACHINE || !fits {
        return Err(ENOEXEC);
    }
    let table = read_range(file, start, header.e_phoff, count * ENTRY_SIZE)?;
    let table = SegmentTable::new(LittleEndian, Class::ELF64, &table);
    let mut image = Image {
        placement,
        entry: header.e_entry,
        segments: Vec::new(),
        headers_va: 0,
        headers: count as u64,
        interpreter: None,
        stack: StackRights::Executable,
    };
    for entry in table.iter() {
        take(&mut image, file, start, size, &entry)?;
    }
    finish(image, header.e_phoff)
}

fn take(
    image: &mut Image,
    file: &File,
    start: &[u8],
    size: u64,
    entry: &ProgramHeader,
) -> Result<()> {
    match entry.p_type {
        abi::PT_LOAD if entry.p_memsz > 0 => image.segments.push(segment(entry, size)?),
        abi::PT_INTERP if image.interpreter.is_none() => {
            if !(2..=4096).contains(&entry.p_filesz) {
                return Err(ENOEXEC);
            }
            let mut path = read_range(file, start, entry.p_offset, entry.p_filesz as usize)?;
            if path.pop() != Some(0) || path.contains(&0) {
                return Err(ENOEXEC);
            }
            image.interpreter = Some(path);
        }
        abi::PT_GNU_STACK => {
            let executable = entry.p_flags & abi::PF_X != 0;
            image.stack = if executable { StackRights::Executable } else { StackRights::Data };
        }
        _ => {}
    }
    Ok(())
}

fn segment(entry: &ProgramHeader, size: u64) -> Result<Segment> {
    let end = entry.p_vaddr.checked_add(entry.p_memsz).ok_or(ENOEXEC)?;
    let file_end = entry.p_offset.checked_add(entry.p_filesz).ok_or(ENOEXEC)?;
    let congruent = entry.p_vaddr % PAGE == entry.p_offset % PAGE;
    if end > USER_END - PAGE || file_end > size || entry.p_filesz > entry.p_memsz || !congruent {
        return Err(ENOEXEC);
    }
    Ok(Segment {
        va: entry.p_vaddr,
        offset: entry.p_offset,
        file_len: entry.p_filesz,
        mem_len: entry.p_memsz,
        rights: Rights::of(entry.p_flags),
    })
}

/// What can be said once all headers are read: order, entry, and where the headers themselves lie.
fn finish(mut image: Image, headers_at: u64) -> Result<Image> {
    let ordered = image.segments.windows(2).all(|pair| pair[0].va + pair[0].mem_len <= pair[1].va);
    let holds_entry = |s: &Segment| (s.va..s.va + s.mem_len).contains(&image.entry);
    let lowest = image.segments.first().ok_or(ENOEXEC)?.va;
    if !ordered || !image.segments.iter().any(holds_entry) {
        return Err(ENOEXEC);
    }
    if image.placement == Placement::Fixed && lowest < PAGE * 16 {
        return Err(EINVAL);
    }
    let length = image.headers * ENTRY_SIZE as u64;
    let holds =
        |s: &&Segment| headers_at >= s.offset && headers_at - s.offset + length <= s.file_len;
    image.headers_va =
        image.segments.iter().find(holds).map_or(0, |s| s.va + (headers_at - s.offset));
    Ok(image)
}

/// Bytes of the file, from what has been read already if they are there.
fn read_range(file: &File, start: &[u8], offset: u64, len: usize) -> Result<Vec<u8>> {
    let at = usize::try_from(offset).map_err(bad)?;
    let end = at.checked_add(len).ok_or(ENOEXEC)?;
    let mut bytes = Vec::new();
    bytes.room(len)?;
    if let Some(there) = start.get(at..end) {
        bytes.extend_from_slice(there);
        return Ok(bytes);
    }
    bytes.resize(len, 0);
    if file.read_kernel(offset, &mut bytes)? != len {
        return Err(ENOEXEC);
    }
    Ok(bytes)
}
