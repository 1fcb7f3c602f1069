//! Addresses and counts, each unit a type of its own, so that a byte is never added to a page.
//!
//! The page size is a constant of the port, chosen when everything is built: 4 KiB, the base page
//! of x86-64, aarch64 and riscv64, or with `--cfg uvm_page_shift="14"` in `RUSTFLAGS` 16 KiB, which
//! aarch64 has too. A port whose hardware has smaller pages than that gathers several in its pmap,
//! as the VAX did under BSD. The road not taken is a page size per machine, known to types: every
//! count of pages would have a machine's parameter.

use core::fmt;
use core::ops::{Add, AddAssign, Deref, Sub, SubAssign};

/// Binary logarithm of [`PAGE_SIZE`]: the port's, see the module.
pub const PAGE_SHIFT: u32 = if cfg!(uvm_page_shift = "14") { 14 } else { 12 };
/// Bytes in a page.
pub const PAGE_SIZE: usize = 1 << PAGE_SHIFT;
const OFFSET_MASK: u64 = PAGE_SIZE as u64 - 1;

/// A virtual address, in bytes.
///
/// ```
/// use machine::{Pages, Va};
/// let va = Va(0x1234);
/// assert_eq!((va.page_floor(), va + Pages(1)), (Va(0x1000), Va(0x2234)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Va(pub u64);

/// A physical address, in bytes.
///
/// ```
/// use machine::Pa;
/// assert!(Pa(0x1000) < Pa(0x2000));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Pa(pub u64);

/// A page frame: the index of its record in the frame table, dense over all memory
/// segments.
///
/// A mere number: to have one proves nothing. What reaches a frame's bytes by number asks
/// the frame table's `bytes_at` first whether the frame holds bytes of use.
///
/// ```
/// use machine::{Channel, PageNo};
/// let page = PageNo(7);
/// let _ = Channel::from(page); // What waits for this page.
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageNo(pub u32);

/// A count of pages, or an offset counted in pages.
///
/// ```
/// use machine::Pages;
/// assert_eq!((Pages(2) + Pages(1), Pages(3).bytes()), (Pages(3), 3 * 4096));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Pages(pub u64);

impl Va {
    /// The start of the page that holds this address.
    ///
    /// ```
    /// use machine::Va;
    /// assert_eq!(Va(0x1fff).page_floor(), Va(0x1000));
    /// ```
    #[must_use]
    pub const fn page_floor(self) -> Va {
        Va(self.0 & !OFFSET_MASK)
    }

    /// The first page boundary at or after this address; `None` past the end of the address space.
    ///
    /// ```
    /// use machine::Va;
    /// assert_eq!((Va(0x1001).page_ceil(), Va(u64::MAX).page_ceil()), (Some(Va(0x2000)), None));
    /// ```
    #[must_use]
    pub const fn page_ceil(self) -> Option<Va> {
        match self.0.checked_add(OFFSET_MASK) {
            Some(v) => Some(Va(v & !OFFSET_MASK)),
            None => None,
        }
    }

    /// Bytes from the start of the page.
    ///
    /// ```
    /// use machine::Va;
    /// assert_eq!(Va(0x1fff).page_offset(), 0xfff);
    /// ```
    #[must_use]
    pub const fn page_offset(self) -> usize {
        (self.0 & OFFSET_MASK) as usize
    }

    /// Whether this is a page boundary.
    ///
    /// ```
    /// use machine::Va;
    /// assert!(Va(0x1000).is_page_aligned() && !Va(0x1001).is_page_aligned());
    /// ```
    #[must_use]
    pub const fn is_page_aligned(self) -> bool {
        self.0 & OFFSET_MASK == 0
    }
}

impl Pages {
    /// Bytes in so many pages.
    ///
    /// ```
    /// use machine::Pages;
    /// assert_eq!(Pages(2).bytes(), 8192);
    /// ```
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0 << PAGE_SHIFT
    }

    /// Whole pages in so many bytes, rounded down.
    ///
    /// ```
    /// use machine::Pages;
    /// assert_eq!(Pages::floor(8191), Pages(1));
    /// ```
    #[must_use]
    pub const fn floor(bytes: u64) -> Pages {
        Pages(bytes >> PAGE_SHIFT)
    }

    /// Pages needed for so many bytes.
    ///
    /// ```
    /// use machine::Pages;
    /// assert_eq!(Pages::ceil(4097), Pages(2));
    /// ```
    #[must_use]
    pub const fn ceil(bytes: u64) -> Pages {
        Pages((bytes >> PAGE_SHIFT) + (bytes & OFFSET_MASK != 0) as u64)
    }
}

impl Add<Pages> for Va {
    type Output = Va;
    fn add(self, n: Pages) -> Va {
        Va(self.0 + n.bytes())
    }
}

impl Sub<Pages> for Va {
    type Output = Va;
    fn sub(self, n: Pages) -> Va {
        Va(self.0 - n.bytes())
    }
}

impl Sub<Va> for Va {
    type Output = Pages;
    /// Whole pages between two page boundaries.
    fn sub(self, other: Va) -> Pages {
        Pages((self.0 - other.0) >> PAGE_SHIFT)
    }
}

impl Add for Pages {
    type Output = Pages;
    fn add(self, n: Pages) -> Pages {
        Pages(self.0 + n.0)
    }
}

impl AddAssign for Pages {
    fn add_assign(&mut self, n: Pages) {
        self.0 += n.0;
    }
}

impl Sub for Pages {
    type Output = Pages;
    fn sub(self, n: Pages) -> Pages {
        Pages(self.0 - n.0)
    }
}

impl SubAssign for Pages {
    fn sub_assign(&mut self, n: Pages) {
        self.0 -= n.0;
    }
}

/// Addresses from `start` up to but not including `end`; empty where `start >= end`.
///
/// ```
/// use machine::{Pages, Va, VaRange};
/// let range = VaRange::new(Va(0x1000), Va(0x3000));
/// assert_eq!((range.pages(), range.contains(Va(0x2fff))), (Pages(2), true));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct VaRange {
    /// First address.
    pub start: Va,
    /// First address behind.
    pub end: Va,
}

impl VaRange {
    /// The range from `start` to `end`.
    ///
    /// ```
    /// use machine::{Va, VaRange};
    /// assert!(VaRange::new(Va(0x1000), Va(0x1000)).is_empty());
    /// ```
    #[must_use]
    pub const fn new(start: Va, end: Va) -> VaRange {
        VaRange { start, end }
    }

    /// `len` pages from `start`; `None` past the end of the address space.
    ///
    /// ```
    /// use machine::{Pages, Va, VaRange};
    /// assert_eq!(VaRange::sized(Va(0), Pages(1)), Some(VaRange::new(Va(0), Va(0x1000))));
    /// assert_eq!(VaRange::sized(Va(0x1000), Pages(1 << 52)), None);
    /// ```
    #[must_use]
    pub fn sized(start: Va, len: Pages) -> Option<VaRange> {
        let bytes = len.0.checked_mul(PAGE_SIZE as u64)?;
        Some(VaRange { start, end: Va(start.0.checked_add(bytes)?) })
    }

    /// Whole pages in the range.
    ///
    /// ```
    /// use machine::{Pages, Va, VaRange};
    /// assert_eq!(VaRange::new(Va(0x1000), Va(0x3000)).pages(), Pages(2));
    /// ```
    #[must_use]
    pub fn pages(self) -> Pages {
        if self.is_empty() {
            Pages(0)
        } else {
            self.end - self.start
        }
    }

    /// Whether no address lies in the range.
    ///
    /// ```
    /// use machine::VaRange;
    /// assert!(VaRange::default().is_empty());
    /// ```
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.start >= self.end
    }

    /// Whether `va` lies in the range.
    ///
    /// ```
    /// use machine::{Va, VaRange};
    /// let range = VaRange::new(Va(0x1000), Va(0x3000));
    /// assert!(range.contains(Va(0x1000)) && !range.contains(Va(0x3000)));
    /// ```
    #[must_use]
    pub fn contains(self, va: Va) -> bool {
        self.start <= va && va < self.end
    }

    /// What both ranges hold; empty if nothing.
    ///
    /// ```
    /// use machine::{Va, VaRange};
    /// let range = |start, end| VaRange::new(Va(start), Va(end));
    /// assert_eq!(range(0x1000, 0x4000).intersect(range(0x3000, 0x9000)), range(0x3000, 0x4000));
    /// ```
    #[must_use]
    pub fn intersect(self, other: VaRange) -> VaRange {
        VaRange { start: self.start.max(other.start), end: self.end.min(other.end) }
    }

    /// The start of each page.
    ///
    /// ```
    /// use machine::{Va, VaRange};
    /// let pages: Vec<Va> = VaRange::new(Va(0x1000), Va(0x3000)).iter_pages().collect();
    /// assert_eq!(pages, [Va(0x1000), Va(0x2000)]);
    /// ```
    pub fn iter_pages(self) -> impl Iterator<Item = Va> {
        (self.start.0..self.end.0).step_by(PAGE_SIZE).map(Va)
    }
}

/// Whole pages of addresses: both ends are page aligned, and `start <= end`. Empty if they are
/// equal.
///
/// What is done to a range of pages takes one, so that it can't be asked to cut a page in two.
/// Reads as a [`VaRange`].
///
/// ```
/// use machine::{PageRange, Pages, Va, VaRange};
/// let range = PageRange::new(Va(0x1000), Va(0x3000)).unwrap();
/// assert_eq!((range.pages(), range.start), (Pages(2), Va(0x1000)));
/// assert!(PageRange::try_from(VaRange::new(Va(0x1000), Va(0x1800))).is_err());
/// assert!(PageRange::new(Va(0x3000), Va(0x1000)).is_none());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PageRange(VaRange);

/// A range that isn't one of whole pages is no [`PageRange`]: an end is not page aligned, or lies
/// before the start.
///
/// ```
/// use machine::{NotPages, PageRange, Va, VaRange};
/// assert_eq!(PageRange::try_from(VaRange::new(Va(1), Va(0x1000))), Err(NotPages));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotPages;

impl PageRange {
    /// The pages from `start` up to but not including `end`; `None` if an end is not page aligned,
    /// or lies before the start.
    ///
    /// ```
    /// use machine::{PageRange, Va};
    /// assert!(PageRange::new(Va(0x1000), Va(0x3000)).is_some());
    /// assert!(PageRange::new(Va(0x1001), Va(0x3000)).is_none());
    /// ```
    #[must_use]
    #[inline]
    pub const fn new(start: Va, end: Va) -> Option<PageRange> {
        if start.is_page_aligned() && end.is_page_aligned() && start.0 <= end.0 {
            Some(PageRange(VaRange { start, end }))
        } else {
            None
        }
    }

    /// `len` pages from `start`; `None` if that is not page aligned, or past the end of the address
    /// space.
    ///
    /// ```
    /// use machine::{PageRange, Pages, Va};
    /// let range = PageRange::sized(Va(0x1000), Pages(2)).expect("whole pages");
    /// assert_eq!(range.end, Va(0x3000));
    /// ```
    #[must_use]
    #[inline]
    pub const fn sized(start: Va, len: Pages) -> Option<PageRange> {
        if len.0 > u64::MAX >> PAGE_SHIFT {
            return None;
        }
        match start.0.checked_add(len.bytes()) {
            Some(end) => PageRange::new(start, Va(end)),
            None => None,
        }
    }

    /// What both ranges hold; an empty one if nothing.
    ///
    /// ```
    /// use machine::{PageRange, Pages, Va};
    /// let range = |start, pages| PageRange::sized(Va(start), Pages(pages)).expect("whole pages");
    /// assert_eq!(range(0x1000, 3).intersect(range(0x3000, 9)), range(0x3000, 1));
    /// ```
    #[must_use]
    #[inline]
    pub fn intersect(self, other: PageRange) -> PageRange {
        let both = self.0.intersect(other.0);
        PageRange(VaRange { start: both.start, end: both.end.max(both.start) })
    }

    /// What of the range lies from `va`'s page on: all of it, a part, or an empty range at its end.
    ///
    /// ```
    /// use machine::{PageRange, Pages, Va};
    /// let range = PageRange::sized(Va(0x1000), Pages(3)).expect("whole pages");
    /// assert_eq!(range.skip_to(Va(0x2000)).pages(), Pages(2));
    /// ```
    #[must_use]
    #[inline]
    pub fn skip_to(self, va: Va) -> PageRange {
        let start = va.page_floor().max(self.0.start).min(self.0.end);
        PageRange(VaRange { start, end: self.0.end })
    }
}

impl Deref for PageRange {
    type Target = VaRange;
    #[inline]
    fn deref(&self) -> &VaRange {
        &self.0
    }
}

impl From<PageRange> for VaRange {
    #[inline]
    fn from(range: PageRange) -> VaRange {
        range.0
    }
}

impl TryFrom<VaRange> for PageRange {
    type Error = NotPages;
    #[inline]
    fn try_from(range: VaRange) -> Result<PageRange, NotPages> {
        PageRange::new(range.start, range.end).ok_or(NotPages)
    }
}

impl fmt::Display for NotPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a range of whole pages")
    }
}

impl core::error::Error for NotPages {}

impl fmt::Debug for PageRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Va {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for Pa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pa {:#x}", self.0)
    }
}

impl fmt::Debug for PageNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {}", self.0)
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pages", self.0)
    }
}

impl fmt::Debug for VaRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{:#x}, {:#x})", self.start.0, self.end.0)
    }
}
