//! The contract with the code that programs the MMU, in the manner of pmap(9).
//!
//! A pmap holds translations as a cache of what the VM system knows; the VM system can always make
//! them again.
//!
//! # Laws
//! * P1. *What may be forgotten*: any mapping entered with [`Wiring::Pageable`], at any time. A
//!   mapping entered with [`Wiring::Wired`] stays until it is removed.
//! * P2. *What must be exact*: after a call that removes or lowers has returned and its
//!   [`Shootdown`] has been performed, no CPU reads or writes through what was lowered. Until then
//!   a CPU may.
//! * P3. *What may be put off*: flushing other CPUs, until [`Pmap::flush`]. Raising a permission
//!   may stay unknown to a CPU: it faults once more, and the VM system answers with the same
//!   `enter`, which makes the CPU that runs it forget the address if its MMU would go on by what it
//!   knew.
//! * P4. *Referenced and modified*: a page's bits are the union over all its mappings, past and
//!   present, since they were cleared. A removed mapping's bits are kept with the page. They may be
//!   said too often, never too rarely.
//! * P5. A page's mappings are found from the page ([`Pmap::page_protect`]), at a cost of their
//!   number.
//! * P6. *What no call may overtake*: a mapping that has left the tables, or was lowered there, by
//!   `enter` too, may be used by a CPU until its shootdown is flushed, and a thread that looks into
//!   the tables meanwhile finds nothing to flush. A space's map and a page's owner have different
//!   locks. So a port counts the shootdowns that are not flushed ([`Shootdown::begin_count`]);
//!   while there are others, `remove` and `protect` note the whole range, `page_protect` all that
//!   CPUs know, and so does `clear_modified` where it clears a bit. Else an unmapping would return,
//!   or the page daemon free a page, while a CPU still reaches it; or a page would count as clean
//!   while a CPU whose translation says that it is modified already goes on storing to it. A port
//!   may leave out what no CPU but the lowering one holds, if nothing runs there before the flush
//!   that could use it.
//!
//! # Locks
//! A pmap's own locks rank below every VM lock but those of the page allocator, from which it takes
//! its tables. It never calls up.

use crate::order::{Before, Held, PageCache};
use crate::{NoMemory, PageNo, Pages, Shootdown, Va, VaRange};

bitflags::bitflags! {
    /// What an access may do, or does.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Prot: u8 {
        /// Load.
        const READ = 1;
        /// Store.
        const WRITE = 2;
        /// Fetch an instruction.
        const EXECUTE = 4;
    }
}

impl Prot {
    /// Nothing.
    pub const NONE: Prot = Prot::empty();
    /// Load and store.
    pub const READ_WRITE: Prot = Prot::READ.union(Prot::WRITE);
    /// Everything but store.
    pub const READ_EXECUTE: Prot = Prot::READ.union(Prot::EXECUTE);

    /// These rights without store.
    ///
    /// ```
    /// use machine::Prot;
    /// assert_eq!(Prot::READ_WRITE.without_write(), Prot::READ);
    /// ```
    #[must_use]
    pub const fn without_write(self) -> Prot {
        self.difference(Prot::WRITE)
    }
}

/// Whether a mapping may be forgotten.
///
/// ```
/// use machine::Wiring;
/// assert_ne!(Wiring::Wired, Wiring::Pageable);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wiring {
    /// May be forgotten at any time (law P1).
    Pageable,
    /// Stays until removed.
    Wired,
}

/// Frames that follow one another, at addresses that do.
///
/// ```
/// use machine::{PageNo, Pages, Run, Va};
/// let run = Run { va: Va(0), page: PageNo(7), pages: Pages(2) };
/// assert_eq!(run.iter().last(), Some((Va(0) + Pages(1), PageNo(8))));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The first page's address.
    pub va: Va,
    /// The first frame.
    pub page: PageNo,
    /// How many there are, at least one.
    pub pages: Pages,
}

impl Run {
    /// One page.
    ///
    /// ```
    /// use machine::{PageNo, Pages, Run, Va};
    /// assert_eq!(Run::one(Va(0), PageNo(7)).range().pages(), Pages(1));
    /// ```
    #[inline]
    #[must_use]
    pub const fn one(va: Va, page: PageNo) -> Run {
        Run { va, page, pages: Pages(1) }
    }

    /// The addresses.
    ///
    /// ```
    /// use machine::{PageNo, Run, Va};
    /// assert_eq!(Run::one(Va(0), PageNo(7)).range().start, Va(0));
    /// ```
    #[must_use]
    pub fn range(self) -> VaRange {
        VaRange::new(self.va, self.va + self.pages)
    }

    /// Each page's address and frame.
    ///
    /// ```
    /// use machine::{PageNo, Run, Va};
    /// assert_eq!(Run::one(Va(0), PageNo(7)).iter().count(), 1);
    /// ```
    pub fn iter(self) -> impl Iterator<Item = (Va, PageNo)> {
        (0..self.pages.0).map(move |n| (self.va + Pages(n), PageNo(self.page.0 + n as u32)))
    }
}

/// A machine's memory management unit.
///
/// ```
/// use machine::{order::Nothing, Held, Pmap, Shootdown, VaRange};
/// /// Takes a range from the tables, and tells the CPUs.
/// fn forget<P: Pmap>(pmap: &P, held: &mut Held<'_, Nothing>, space: &P::Space, range: VaRange) {
///     let mut down = Shootdown::new();
///     pmap.remove(held, space, range, &mut down);
///     down.flush(pmap);
/// }
/// # uvm_soft::example::run(|uvm, held, space| {
/// #     forget(uvm.machine().pmap(), held, space.pmap(), space.bounds().into());
/// #     Ok(())
/// # });
/// # use machine::Machine;
/// ```
pub trait Pmap: Send + Sync + Sized {
    /// One address space's tables.
    type Space: Send + Sync;

    /// New, empty tables.
    ///
    /// # Errors
    /// [`NoMemory`]; nothing has changed.
    fn create<P: Before<PageCache>>(&self, held: &mut Held<'_, P>)
        -> Result<Self::Space, NoMemory>;

    /// Frees the tables. The caller has removed all mappings and no CPU uses them.
    fn destroy<P: Before<PageCache>>(&self, held: &mut Held<'_, P>, space: Self::Space);

    /// Maps a run, replacing what was there. `access` is what the CPU is about to do: each page's
    /// referenced bit (and for a store the modified bit) counts as set. `access` is part of `prot`,
    /// or empty for a mapping made ahead of use, which leaves the bits alone. A port may map many
    /// pages by one entry, or one call, as long as each page's mapping can be lowered alone.
    ///
    /// Replacing another page, or lowering, is gathered into `down`.
    ///
    /// # Errors
    /// [`NoMemory`] for tables. What was at the address of one page is as it was; of a longer run
    /// the first pages may be mapped.
    #[allow(clippy::too_many_arguments)]
    fn enter<P: Before<PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        space: &Self::Space,
        run: Run,
        prot: Prot,
        access: Prot,
        wiring: Wiring,
        down: &mut Shootdown,
    ) -> Result<(), NoMemory>;

    /// Removes what is mapped at `va`, one page, and returns when no CPU uses it: nor what another
    /// CPU has removed there and hasn't flushed yet (P6). Flushes all of `down`.
    ///
    /// A port overrides it that sees in one look that nothing is mapped, as before most stores.
    fn forget<P: Before<PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        space: &Self::Space,
        va: Va,
        down: &mut Shootdown,
    ) {
        self.remove(held, space, VaRange::new(va, va + Pages(1)), down);
        down.flush(self);
    }

    /// Maps pages ahead of use: `pages[i]` at `va` plus `i` pages, with its protection, where
    /// nothing is mapped yet; where the same page is mapped already its protection is raised;
    /// another page's mapping stays. All are pageable, with bits clear. A hint: it may do less,
    /// allocates no tables, and never lowers. The run lies within 16 pages aligned to 16 (so in one
    /// table), of which one was just entered.
    ///
    /// The locks of the pages' owners may be gone by now. So `may(i)` is asked, under the lock that
    /// [`page_protect`](Self::page_protect) takes, right before page `i` is entered: a thread that
    /// takes a page away says so in its record first and calls `page_protect` then, and either
    /// finds the mapping or prevents it. The same holds for a thread that loans a page or gives its
    /// owner a second reference, which must not be written through a mapping made ahead.
    fn enter_ahead<P: Before<PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        space: &Self::Space,
        va: Va,
        pages: &[Option<(PageNo, Prot)>],
        may: impl Fn(usize) -> bool,
    );

    /// Removes all mappings in the range. Cost: by mappings and table pages that are there, not by
    /// span.
    fn remove<P: Before<PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        space: &Self::Space,
        range: VaRange,
        down: &mut Shootdown,
    );

    /// The memory at `range` of `from` becomes that at `at` of `to`, at the same offsets, with the
    /// same rights; nothing is mapped there. What was mapped in the range is mapped no more, and
    /// may be mapped at its new place. Both spaces' maps are locked; they may be one.
    ///
    /// This is the plain way: faults will map it again. A port that can move whole tables saves its
    /// programs that.
    fn pass<P: Before<PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        from: &Self::Space,
        range: VaRange,
        _to: &Self::Space,
        _at: Va,
        down: &mut Shootdown,
    ) {
        self.remove(held, from, range, down);
    }

    /// Lowers mappings in the range to at most `prot`; [`Prot::NONE`] removes them. Never raises.
    fn protect<P: Before<PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        space: &Self::Space,
        range: VaRange,
        prot: Prot,
        down: &mut Shootdown,
    );

    /// Makes the first wired mapping in the range pageable, and says where it is and what it maps.
    /// Cost: by mappings and table pages up to there, not by span.
    fn unwire(&self, space: &Self::Space, range: VaRange) -> Option<(Va, PageNo)>;

    /// The end of the first part of a range that takes about so much to remove, as many mappings
    /// would that share few tables; the range's end if all of it takes less. Cost: by table pages
    /// up to there.
    fn part(&self, space: &Self::Space, range: VaRange, mappings: usize) -> Va;

    /// The end of the first part of a range that so many tables serve, where [`pass`](Self::pass)
    /// moves tables; the range's end if all of it has fewer. Cost: by table pages up to there.
    fn tables_part(&self, _space: &Self::Space, range: VaRange, _tables: usize) -> Va {
        range.end
    }

    /// What is mapped at `va`, as tables say (a CPU's TLB may know less).
    fn extract(&self, space: &Self::Space, va: Va) -> Option<(PageNo, Prot)>;

    /// Mappings in the tables.
    fn resident(&self, space: &Self::Space) -> usize;

    /// Lowers every mapping of a page, in all spaces, to at most `prot`; [`Prot::NONE`] removes
    /// them, and the count of wired mappings that were removed is returned.
    fn page_protect<P: Before<PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        page: PageNo,
        prot: Prot,
        down: &mut Shootdown,
    ) -> u32;

    /// How many pages that are mapped once take as long as this one to take from all that map it,
    /// about.
    fn weight(&self, _page: PageNo) -> usize {
        1
    }

    /// Whether a CPU may reach the page through a mapping: a space has one in its tables, or one
    /// has left them and its shootdown isn't flushed (P6). A mapping that was forgotten (P1)
    /// doesn't count. May say so too often.
    fn is_mapped(&self, page: PageNo) -> bool;

    /// Whether the page has been read or written since the bit was cleared. This, and to clear the
    /// bit, may be asked of any frame's number: the page daemon looks at pages that it has no lock
    /// of, and which may be another's by then, or a table's.
    fn is_referenced(&self, page: PageNo) -> bool;

    /// Clears the referenced bit and says what it was. Stale TLB entries may hide later references:
    /// that only costs a page its second chance.
    fn clear_referenced(&self, page: PageNo) -> bool;

    /// Whether the page has been written since the bit was cleared.
    fn is_modified(&self, page: PageNo) -> bool;

    /// Clears the modified bit and says what it was. The next store sets it again, once `down` is
    /// performed.
    fn clear_modified(&self, page: PageNo, down: &mut Shootdown) -> bool;

    /// Clears the modified bit of a page that no CPU can reach: nothing maps it, and all that did
    /// has been flushed.
    fn forget_modified(&self, page: PageNo);

    /// Makes every CPU that may hold them forget the translations gathered in `down`. Returns when
    /// all have.
    fn flush(&self, down: &Shootdown);
}
