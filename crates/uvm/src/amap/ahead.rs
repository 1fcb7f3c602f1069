//! Where the next read from swap begins, as far as the reads before it tell: what an amap remembers
//! for `fault/swapped.rs`.

/// How an amap has been read from swap lately.
#[derive(Clone, Copy, Default)]
pub(crate) struct ReadAhead {
    /// A fault in `mark .. mark + span` starts the next read.
    pub(crate) mark: u64,
    pub(crate) span: u8,
    /// The size of the last window, 0 before the first.
    pub(crate) size: u8,
    /// The slot behind the last window.
    pub(crate) next: u64,
}

impl ReadAhead {
    /// Whether a fault at a slot finds what the last read brought, and should start another.
    #[inline]
    pub(crate) fn is_due(&self, slot: u64) -> bool {
        slot.wrapping_sub(self.mark) < u64::from(self.span)
    }
}
