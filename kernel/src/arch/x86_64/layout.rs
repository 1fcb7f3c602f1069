//! The kernel's half of every address space.
//!
//! ```text
//!   0xffff_8000_0000_0000  DIRECT   all physical memory, large pages, no execution
//!   0xffff_c000_0000_0000  STACKS   kernel stacks with unmapped guard pages
//!   0xffff_d000_0000_0000  HEAP     the kernel heap, grown page by page
//!   0xffff_e000_0000_0000  WINDOWS  ephemeral mappings of single pages
//!   0xffff_ffff_8000_0000  IMAGE    the kernel image: text, read-only data, data
//! ```

use machine::PAGE_SIZE;

pub use super::tables::is_mapped;

/// The lowest address that a program may map without a capability for devices: a null pointer of
/// the kernel's must lead nowhere.
pub const MAP_LOWEST: u64 = 16 * 4096;
/// First address no program may map: the last page below the hole stays free, so that `sysret`
/// can't land in it.
pub const USER_END: u64 = 0x7fff_ffff_f000;
/// Where physical address zero is mapped.
pub const DIRECT: u64 = 0xffff_8000_0000_0000;
/// Area of kernel stacks.
pub const STACKS: u64 = 0xffff_c000_0000_0000;
/// Area of the heap.
pub const HEAP: u64 = 0xffff_d000_0000_0000;
/// Area of ephemeral mappings.
pub const WINDOWS: u64 = 0xffff_e000_0000_0000;
/// Where the image is linked, at its physical address plus this.
pub const IMAGE: u64 = 0xffff_ffff_8000_0000;

/// The direct mapping of a physical address.
#[inline]
pub const fn direct(pa: u64) -> u64 {
    pa + DIRECT
}

/// A run of physical addresses, in bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub start: u64,
    pub end: u64,
}

impl Range {
    /// The part of it that is whole pages; it may be empty, with its end before its start.
    pub fn whole_pages(&self) -> Range {
        Range {
            start: self.start.next_multiple_of(PAGE_SIZE as u64),
            end: self.end & !(PAGE_SIZE as u64 - 1),
        }
    }
}
