//! The first page of a swap area, as `mkswap` writes it.
//!
//! ```text
//!   byte 1024: version (1), last page, count of bad pages; 1536: bad pages; 4086: SWAPSPACE2
//! ```

use alloc::vec::Vec;
use core::ops::Range;

const PAGE: usize = 4096;
const MAGIC: &[u8; 10] = b"SWAPSPACE2";
const VERSION: usize = 1024;
const LAST_PAGE: usize = 1028;
const BAD_COUNT: usize = 1032;
const BAD_PAGES: usize = 1536;
/// Bad pages that there is room for.
const BAD_MOST: usize = (PAGE - MAGIC.len() - BAD_PAGES) / 4;

/// What the page says.
#[derive(Debug, PartialEq, Eq)]
pub struct Header {
    pub last_page: u64,
    /// In order.
    pub bad: Vec<u64>,
}

fn word(page: &[u8], at: usize) -> u32 {
    page.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes)
}

impl Header {
    /// Reads the page; `None` if it isn't one, or says what can't be.
    pub fn parse(page: &[u8]) -> Option<Header> {
        if page.get(PAGE - MAGIC.len()..PAGE)? != MAGIC || word(page, VERSION) != 1 {
            return None;
        }
        let last_page = u64::from(word(page, LAST_PAGE));
        let count = word(page, BAD_COUNT) as usize;
        if last_page == 0 || count > BAD_MOST {
            return None;
        }
        let mut bad: Vec<u64> =
            (0..count).map(|n| u64::from(word(page, BAD_PAGES + 4 * n))).collect();
        bad.sort_unstable();
        bad.dedup();
        let inside = bad.iter().all(|&page| page > 0 && page <= last_page);
        inside.then_some(Header { last_page, bad })
    }

    /// The pages of `part` that may hold data: not the first of the area, none that is bad, none
    /// behind the last.
    pub fn good(&self, part: Range<u64>, mut each: impl FnMut(Range<u64>)) {
        let end = part.end.min(self.last_page + 1);
        let mut page = part.start.max(1);
        for &bad in self.bad.iter().filter(|&&bad| part.contains(&bad)) {
            if page < bad.min(end) {
                each(page..bad.min(end));
            }
            page = bad + 1;
        }
        if page < end {
            each(page..end);
        }
    }
}
