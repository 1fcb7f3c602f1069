//! Address spaces: a map and the translations that cache it.

use machine::lines::Ordering::Relaxed;
use machine::{Machine, NoMemory, PageRange, Pmap, Unlocked, Va, VaRange};

use crate::map::remap_history::RemapHistory;
use crate::map::Map;
use crate::owed::SpaceDuty;
use crate::Uvm;

/// One address space. Ended by [`Uvm::space_destroy`]; dropping this leaves all that is mapped, and
/// fails every [audit](Uvm::audit) of the instance from then on.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let other = uvm.space_create(held, bounds())?;
/// assert_eq!(other.bounds(), bounds());
/// uvm.space_destroy(held, other);
/// # Ok(()) });
/// ```
#[must_use = "a space stays until `space_destroy` gets this back"]
pub struct Space<M: Machine> {
    pub(crate) map: Map<M>,
    pub(crate) pmap: <M::Pmap as Pmap>::Space,
    pub(crate) remap_history: RemapHistory,
    /// The number of the space that it was forked from, and that from another, first of all; its
    /// own if it was created: see [`copiers`](crate::object::copiers).
    pub(crate) family: u64,
    duty: SpaceDuty,
}

impl<M: Machine> Space<M> {
    /// The machine's side: what a CPU loads to run in this space.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 1)?;
    /// assert_eq!(uvm.machine().pmap().resident(space.pmap()), 1);
    /// # let _ = range;
    /// # Ok(()) });
    /// ```
    pub fn pmap(&self) -> &<M::Pmap as Pmap>::Space {
        &self.pmap
    }

    /// The map.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// assert_eq!(space.map().entries(held), 0);
    /// # Ok(()) });
    /// ```
    pub fn map(&self) -> &Map<M> {
        &self.map
    }

    /// Keeps the addresses from `va` on for mappings whose place is said, as long as there is room
    /// below: what grows downwards finds them free. A child has that from its parent.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let top = space.bounds().start + Pages(16);
    /// space.choose_below(top);
    /// assert!(uvm.map(held, space, &MapRequest::zero(Pages(1)))? < top);
    /// # Ok(()) });
    /// ```
    pub fn choose_below(&self, va: Va) {
        self.map.choose_below(va);
    }

    /// Whether the space is this instance's.
    pub(crate) fn is_of(&self, uvm: &Uvm<M>) -> bool {
        self.duty.is_of(&uvm.dropped_spaces)
    }

    /// The addresses that mappings may have.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// assert!(uvm.first_in(held, space, space.bounds()).is_none());
    /// # Ok(()) });
    /// ```
    pub fn bounds(&self) -> PageRange {
        self.map.bounds.try_into().expect("bounds are whole pages")
    }
}

impl<M: Machine> Uvm<M> {
    /// An empty space whose mappings lie in `bounds`.
    ///
    /// # Errors
    /// [`NoMemory`] for the machine's tables.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let space = uvm.space_create(held, pages(Va(1 << 16), 1 << 20))?;
    /// uvm.space_destroy(held, space);
    /// # Ok(()) });
    /// ```
    pub fn space_create(
        &self,
        held: &mut Unlocked<'_>,
        bounds: PageRange,
    ) -> Result<Space<M>, NoMemory> {
        self.space_of(held, bounds.into(), self.next_family.fetch_add(1, Relaxed))
    }

    /// Like [`space_create`](Self::space_create), for a space of a family.
    pub(crate) fn space_of(
        &self,
        held: &mut Unlocked<'_>,
        bounds: VaRange,
        family: u64,
    ) -> Result<Space<M>, NoMemory> {
        Ok(Space {
            map: Map::new(bounds),
            pmap: self.mem().pmap().create(held)?,
            remap_history: RemapHistory::default(),
            family,
            duty: SpaceDuty::new(&self.dropped_spaces),
        })
    }

    /// Ends a space that no CPU runs in any more.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let other = uvm.space_create(held, bounds())?;
    /// memory(uvm, held, &other, 4)?;
    /// uvm.space_destroy(held, other);
    /// assert_eq!(uvm.anons(), 0);
    /// # Ok(()) });
    /// ```
    pub fn space_destroy(&self, held: &mut Unlocked<'_>, space: Space<M>) {
        self.space_clear(held, &space);
        space.duty.end();
        self.mem().pmap().destroy(held, space.pmap);
    }
}
