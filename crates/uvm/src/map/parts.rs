//! Parts of a map that have locks of their own, one for each CPU that maps beside others.
//!
//! ```text
//!   bounds   |........................|  0  |  1  |  2  |  ...  | 63  |.......................|
//!                                     \____ area: PARTS slices ______/
//!   map.tree      entries here           --     A     --      --            and here           (level Whole)
//!   part 1        its slice's entries           ^ open                                         (level Map)
//! ```
//! Threads that map and unmap side by side would take turns at the map's lock. So once several CPUs
//! have made mappings in turns, each gets a slice of the addresses: what it maps anywhere lies
//! there, in a tree with its own lock, and in page tables of its own. Where something lies is known
//! from its address, so whoever has an address takes the one lock that covers it. Who is after more
//! than one slice, as fork is, takes the map's own lock and gathers what is open in the way: trees
//! are cut and joined by levels, with nodes that an open part keeps for that. A part that was
//! gathered opens again when its CPU's turn comes.
//!
//! I1: while a part is open its tree has the entries of its slice, and the map's tree has none
//! there; else its tree is empty. I2: it opens and closes with both locks held; so who holds either
//! knows. I3: what the map's own tree chooses for a mapping that may lie anywhere is not in the
//! area. I4: no entry reaches over the ends of an open part's slice.
//!
//! A thread that changes all of a map, and takes long, *claims* it: it gives the lock back between
//! its steps, and all others that want the map wait for its end ([`Map::claim`]). I5: who has
//! claimed a map waits for nothing; it gives way. While a map is claimed no part is open. An
//! attempt that has heap reserved doesn't wait under way, which would cost it that: it ends with
//! [`Stop::Wait`](crate::Stop) (`lock_now` and its like).
//!
//! Roads not taken: a lock for each range that is being changed, which all must look up and enter
//! in one structure, whose line moves as the lock's does; short sections that prepare outside of
//! the lock, which take it twice (docs/decisions/faults-and-maps.md).

use alloc::boxed::Box;

use machine::lines::{AtomicU32, AtomicU64, Ordering::Relaxed};
use machine::order::Guard;
use machine::shared::{Access, CachePadded};
use machine::{
    order, Channel, CpuSet, Held, Machine, Pages, Pmap, RawLock, Shared, Ticket, Va, VaRange,
    PAGE_SIZE,
};

use super::tree::{most_levels, split_off_bytes, Tree};
use super::{Entry, Map};

/// Parts of a map; one for each CPU.
const PARTS: usize = 64;
/// Slices in all of a map's bounds: the area is a small part of it.
const SLICES: u64 = 4096;
/// Pages of the smallest slice.
const LEAST: Pages = Pages(16);
/// A mapping is at most this part of a slice.
const SHARE: u64 = 8;
/// Turns after which CPUs get parts: one that maps after another counts for several, one that maps
/// again takes one back.
const MANY: u32 = 32;
const ANOTHER: u32 = 4;

type Entries<M> = Tree<Entry<M>>;
type PartTree<M> = Shared<order::Map, <M as Machine>::Lock, Entries<M>>;
type Locked<'a, M> = (Guard<'a, <M as Machine>::Lock, Entries<M>>, Held<'a, order::Map>);
type TreeAccess<'a, M> = Access<'a, <M as Machine>::Lock, Entries<M>>;
type Read<'a, M> = (TreeAccess<'a, M>, Held<'a, order::Map>);
/// The token of who didn't get a lock since the map is claimed, and what to wait with.
type Refused<'a, 'h> = (&'a mut Held<'h, order::Nothing>, Ticket);

/// A map's parts.
pub(super) struct Parts<M: Machine> {
    area: VaRange,
    /// Bytes of a slice.
    slice: u64,
    /// Those that are open, a bit each.
    open: AtomicU64,
    trees: [CachePadded<PartTree<M>>; PARTS],
}

/// A part that was open a moment ago.
struct Part<'a, M: Machine> {
    parts: &'a Parts<M>,
    index: usize,
}

impl<'a, M: Machine> Part<'a, M> {
    fn tree(&self) -> &'a PartTree<M> {
        &self.parts.trees[self.index]
    }

    fn is_open(&self) -> bool {
        self.parts.is_open(self.index)
    }
}

/// Who has mapped lately; written with the map's lock held.
pub(super) struct Turns {
    last: AtomicU32,
    count: AtomicU32,
}

impl Turns {
    pub(super) fn new() -> Turns {
        Turns { last: AtomicU32::new(0), count: AtomicU32::new(0) }
    }

    fn note(&self, cpu: u32) {
        let count = self.count.load(Relaxed);
        let is_same = self.last.load(Relaxed) == cpu;
        self.last.store(cpu, Relaxed);
        self.count.store(
            if is_same { count.saturating_sub(1) } else { (count + ANOTHER).min(2 * MANY) },
            Relaxed,
        );
    }

    /// Parts have been closed, or can't be opened: one more turn opens them, not the same CPU's
    /// next mapping.
    fn forget(&self) {
        self.count.store(self.count.load(Relaxed).min(MANY - ANOTHER), Relaxed);
    }

    fn are_many(&self) -> bool {
        self.count.load(Relaxed) >= MANY
    }
}

impl<M: Machine> Parts<M> {
    fn new(area: VaRange, slice: u64) -> Parts<M> {
        let trees = core::array::from_fn(|_| CachePadded(Shared::new(Tree::new())));
        Parts { area, slice, open: AtomicU64::new(0), trees }
    }

    fn range(&self, index: usize) -> VaRange {
        let start = self.area.start.0 + index as u64 * self.slice;
        VaRange::new(Va(start), Va(start + self.slice))
    }

    fn is_open(&self, index: usize) -> bool {
        self.open.load(Relaxed) >> index & 1 == 1
    }

    fn open_part(&self, index: usize) -> Option<Part<'_, M>> {
        self.is_open(index).then_some(Part { parts: self, index })
    }

    /// The slice that all of a range lies in.
    fn index(&self, range: VaRange) -> Option<usize> {
        if range.is_empty() || range.intersect(self.area) != range {
            return None;
        }
        let index = |va: u64| ((va - self.area.start.0) / self.slice) as usize;
        let (first, last) = (index(range.start.0), index(range.end.0 - 1));
        (first == last).then_some(first)
    }

    /// Puts back what open parts have of a range, with the map's lock held.
    fn gather(
        &self,
        tree: &mut Entries<M>,
        held: &mut Held<'_, order::Whole>,
        range: VaRange,
        turns: &Turns,
    ) {
        if range.intersect(self.area).is_empty() {
            return;
        }
        for index in CpuSet(self.open.load(Relaxed)).iter() {
            if !self.range(index).intersect(range).is_empty() {
                let (mut own, _) = self.trees[index].lock(held);
                tree.join_in(core::mem::take(&mut *own));
                self.open.fetch_and(!(1 << index), Relaxed);
                turns.forget();
            }
        }
    }
}

impl<M: Machine> Map<M> {
    /// Parts of a map.
    pub(super) const PARTS: usize = PARTS;

    /// Heap bytes for opening a part of a map whose trees have so many levels at most, and for its
    /// parts.
    pub(super) const fn part_bytes(levels: usize) -> usize {
        size_of::<Parts<M>>() + 64 + split_off_bytes::<Entry<M>>(levels)
    }

    /// Levels that no tree of the map exceeds, on a machine of so many page frames, which its
    /// entries lie in.
    pub(super) fn most_levels(&self, frames: usize) -> usize {
        let entries = frames * PAGE_SIZE / size_of::<Entry<M>>();
        most_levels(self.bounds.pages().0.min(entries as u64))
    }

    /// The open part that has all of a range.
    #[inline]
    fn part(&self, range: VaRange) -> Option<Part<'_, M>> {
        let parts = self.parts.get()?;
        parts.open_part(parts.index(range)?)
    }

    #[inline]
    fn part_at(&self, va: Va) -> Option<Part<'_, M>> {
        self.part(VaRange::new(va, Va(va.0.saturating_add(1))))
    }

    /// Takes the lock of the entries in a range, to change them: a part's, where one has all of it,
    /// else the map's own. Waits while the map is claimed.
    #[inline]
    pub(crate) fn lock<'a>(
        &'a self,
        machine: &M,
        held: &'a mut Held<'_, order::Nothing>,
        range: VaRange,
    ) -> Locked<'a, M> {
        let mut held = held;
        loop {
            match self.try_lock(machine, held, range) {
                Ok(locked) => return locked,
                Err((token, ticket)) => held = waited(machine, token, ticket),
            }
        }
    }

    /// The same for an attempt, which doesn't wait.
    ///
    /// # Errors
    /// What to wait with, if the map is claimed.
    #[inline]
    pub(crate) fn lock_now<'a>(
        &'a self,
        machine: &M,
        held: &'a mut Held<'_, order::Nothing>,
        range: VaRange,
    ) -> Result<Locked<'a, M>, Ticket> {
        self.try_lock(machine, held, range).map_err(|(_, ticket)| ticket)
    }

    #[inline]
    fn try_lock<'a, 'h>(
        &'a self,
        machine: &M,
        held: &'a mut Held<'h, order::Nothing>,
        range: VaRange,
    ) -> Result<Locked<'a, M>, Refused<'a, 'h>> {
        let held = match self.part(range) {
            None => held,
            Some(part) => match part.tree().lock_if(held, || part.is_open()) {
                Ok(locked) => return Ok(locked),
                Err(held) => held,
            },
        };
        self.try_lock_whole(machine, held, range)
    }

    /// Goes on reading what [`lock`](Self::lock) gave for the entry at an address.
    #[inline]
    pub(crate) fn read_on<'a>(
        &'a self,
        tree: Guard<'a, M::Lock, Entries<M>>,
        va: Va,
    ) -> TreeAccess<'a, M> {
        // Nobody opens or closes it meanwhile (I2).
        match self.part_at(va) {
            Some(part) => part.tree().read_on(tree),
            None => self.tree.read_on(tree),
        }
    }

    /// Takes the map's own lock, with all entries of a range under it. An empty range is where no
    /// part may be. Waits while the map is claimed.
    #[inline]
    pub(crate) fn lock_whole<'a>(
        &'a self,
        machine: &M,
        held: &'a mut Held<'_, order::Nothing>,
        range: VaRange,
    ) -> Locked<'a, M> {
        let mut held = held;
        loop {
            match self.try_lock_whole(machine, held, range) {
                Ok(locked) => return locked,
                Err((token, ticket)) => held = waited(machine, token, ticket),
            }
        }
    }

    /// The same for an attempt, which doesn't wait.
    ///
    /// # Errors
    /// What to wait with, if the map is claimed.
    #[inline]
    pub(crate) fn lock_whole_now<'a>(
        &'a self,
        machine: &M,
        held: &'a mut Held<'_, order::Nothing>,
        range: VaRange,
    ) -> Result<Locked<'a, M>, Ticket> {
        self.try_lock_whole(machine, held, range).map_err(|(_, ticket)| ticket)
    }

    #[inline]
    fn try_lock_whole<'a, 'h>(
        &'a self,
        machine: &M,
        held: &'a mut Held<'h, order::Nothing>,
        range: VaRange,
    ) -> Result<Locked<'a, M>, Refused<'a, 'h>> {
        let mut refused = None;
        let locked = self.tree.lock_if(held, || {
            refused = self.refuses(machine);
            refused.is_none()
        });
        match (locked, refused) {
            (Ok((mut tree, mut h)), _) => {
                self.gather(&mut tree, &mut h, range);
                Ok((tree, h.down_to()))
            }
            (Err(held), ticket) => {
                Err((held, ticket.unwrap_or_else(|| machine.ticket(self.channel()))))
            }
        }
    }

    /// What to wait with, if the map is claimed; its lock is held.
    #[inline(always)]
    pub(crate) fn refuses(&self, machine: &M) -> Option<Ticket> {
        if self.is_claimed.load(Relaxed) {
            Some(machine.ticket(self.channel()))
        } else {
            None
        }
    }

    /// By its address, which nothing else is named by.
    fn channel(&self) -> Channel {
        Channel(core::ptr::from_ref(self).addr() as u64)
    }

    /// Has all others wait for the map until [`unclaim`](Self::unclaim), though its lock is given
    /// back. All of it [is locked](Self::lock_whole).
    pub(crate) fn claim(&self, _all: &Guard<'_, M::Lock, Entries<M>>) {
        debug_assert!(!self.is_claimed.load(Relaxed));
        self.is_claimed.store(true, Relaxed);
    }

    /// Takes the lock of a map that the caller has claimed.
    pub(crate) fn lock_claimed<'a>(
        &'a self,
        held: &'a mut Held<'_, order::Nothing>,
    ) -> Locked<'a, M> {
        debug_assert!(self.is_claimed.load(Relaxed));
        let (tree, h) = self.tree.lock(held);
        (tree, h.down_to())
    }

    /// Takes the lock of a map that the caller has claimed, which ends the claim.
    pub(crate) fn lock_and_unclaim<'a>(
        &'a self,
        machine: &M,
        held: &'a mut Held<'_, order::Nothing>,
    ) -> Locked<'a, M> {
        let (tree, h) = self.tree.lock(held);
        self.end_claim(machine, &tree);
        (tree, h.down_to())
    }

    /// Ends a claim, with the map's lock held.
    pub(crate) fn end_claim(&self, machine: &M, _all: &Guard<'_, M::Lock, Entries<M>>) {
        self.is_claimed.store(false, Relaxed);
        machine.wake(self.channel());
    }

    /// Ends a claim.
    pub(crate) fn unclaim(&self, machine: &M, held: &mut Held<'_, order::Nothing>) {
        drop(self.lock_and_unclaim(machine, held));
    }

    /// Puts all entries of a range under the map's own lock, which is held.
    #[inline]
    pub(crate) fn gather(
        &self,
        tree: &mut Entries<M>,
        held: &mut Held<'_, order::Whole>,
        range: VaRange,
    ) {
        if let Some(parts) = self.parts.get() {
            parts.gather(tree, held, range, &self.turns);
        }
    }

    /// Takes the lock of the entry at an address to read it, among others if it was quiet for long.
    /// Waits while the map is claimed.
    pub(crate) fn read<'a>(
        &'a self,
        machine: &M,
        held: &'a mut Held<'_, order::Nothing>,
        va: Va,
    ) -> Read<'a, M> {
        let mut held = held;
        loop {
            match self.try_read(machine, held, va) {
                Ok(read) => return read,
                Err((token, ticket)) => held = waited(machine, token, ticket),
            }
        }
    }

    /// The same for an attempt, which doesn't wait.
    ///
    /// # Errors
    /// What to wait with, if the map is claimed.
    #[inline(always)]
    #[cfg_attr(feature = "lines", track_caller)]
    pub(crate) fn read_now<'a>(
        &'a self,
        machine: &M,
        held: &'a mut Held<'_, order::Nothing>,
        va: Va,
    ) -> Result<Read<'a, M>, Ticket> {
        self.try_read(machine, held, va).map_err(|(_, ticket)| ticket)
    }

    #[inline(always)]
    #[cfg_attr(feature = "lines", track_caller)]
    fn try_read<'a, 'h>(
        &'a self,
        machine: &M,
        held: &'a mut Held<'h, order::Nothing>,
        va: Va,
    ) -> Result<Read<'a, M>, Refused<'a, 'h>> {
        let mut held = held;
        loop {
            if let Some(part) = self.part_at(va) {
                match part.tree().read_if(held, || part.is_open()) {
                    Ok(read) => return Ok(read),
                    Err(token) => held = token,
                }
            }
            let mut refused = None;
            let read = self.tree.read_if(held, || {
                refused = self.refuses(machine);
                refused.is_none() && self.part_at(va).is_none()
            });
            match (read, refused) {
                (Ok((tree, h)), _) => return Ok((tree, h.down_to())),
                (Err(token), Some(ticket)) => return Err((token, ticket)),
                (Err(token), None) => held = token,
            }
        }
    }

    /// The same for who reads for long: see [`Shared::read_beside_if`].
    ///
    /// # Errors
    /// As [`read_now`](Self::read_now).
    #[inline(always)]
    #[cfg_attr(feature = "lines", track_caller)]
    pub(crate) fn read_beside_now<'a>(
        &'a self,
        machine: &M,
        held: &'a mut Held<'_, order::Nothing>,
        va: Va,
    ) -> Result<Read<'a, M>, Ticket> {
        self.try_read_beside(machine, held, va).map_err(|(_, ticket)| ticket)
    }

    #[inline(always)]
    #[cfg_attr(feature = "lines", track_caller)]
    fn try_read_beside<'a, 'h>(
        &'a self,
        machine: &M,
        held: &'a mut Held<'h, order::Nothing>,
        va: Va,
    ) -> Result<Read<'a, M>, Refused<'a, 'h>> {
        let mut held = held;
        loop {
            if let Some(part) = self.part_at(va) {
                match part.tree().read_beside_if(held, || part.is_open()) {
                    Ok(read) => return Ok(read),
                    Err(token) => held = token,
                }
            }
            let mut refused = None;
            let read = self.tree.read_beside_if(held, || {
                refused = self.refuses(machine);
                refused.is_none() && self.part_at(va).is_none()
            });
            match (read, refused) {
                (Ok((tree, h)), _) => return Ok((tree, h.down_to())),
                (Err(token), Some(ticket)) => return Err((token, ticket)),
                (Err(token), None) => held = token,
            }
        }
    }

    /// Whether a CPU that maps something anywhere should be [given](Self::open) a part first.
    #[inline]
    pub(super) fn wants_part(&self, cpu: usize) -> bool {
        M::Lock::has_several_rows()
            && self.turns.are_many()
            && self.parts.get().is_none_or(|parts| !parts.is_open(cpu % PARTS))
    }

    /// Takes the lock of a CPU's own part to map something there, if it has one that may have room;
    /// and says where the part lies.
    #[inline]
    pub(super) fn lock_own<'a>(
        &'a self,
        held: &'a mut Held<'_, order::Nothing>,
        cpu: usize,
        len: Pages,
    ) -> Option<(Locked<'a, M>, VaRange)> {
        let parts = self.parts.get()?;
        let part = parts.open_part(cpu % PARTS).filter(|_| len.bytes() <= parts.slice / SHARE)?;
        let locked = part.tree().lock_if(held, || part.is_open()).ok()?;
        Some((locked, parts.range(part.index)))
    }

    /// Counts a mapping that was made anywhere under the map's own lock.
    #[inline]
    pub(super) fn note_turn(&self, cpu: usize) {
        if M::Lock::has_several_rows() {
            self.turns.note(cpu as u32);
        }
    }

    /// Gives a CPU's part what the map's own tree has of its slice. [Heap](Self::part_bytes) for as
    /// many levels has been reserved.
    #[cold]
    #[inline(never)]
    pub(super) fn open(&self, held: &mut Held<'_, order::Nothing>, cpu: usize, levels: usize) {
        let index = cpu % PARTS;
        let (mut tree, mut h) = self.tree.lock(held);
        if self.is_claimed.load(Relaxed) {
            return self.turns.forget();
        }
        if self.parts.get().is_none() {
            self.make_parts(&mut tree);
        }
        let Some(parts) = self.parts.get().filter(|parts| tree.elsewhere() == parts.area) else {
            return self.turns.forget();
        };
        let range = parts.range(index);
        let reaches_over = |at: Va| tree.get(at).is_some_and(|entry| entry.range.start < at);
        if parts.is_open(index) || reaches_over(range.start) || reaches_over(range.end) {
            return self.turns.forget();
        }
        let (mut own, _) = parts.trees[index].lock(&mut h);
        *own = tree.split_off(range, levels);
        parts.open.fetch_or(1 << index, Relaxed);
    }

    /// Makes the parts, all closed, where nothing is mapped. Nothing happens if there is no place.
    fn make_parts(&self, tree: &mut Entries<M>) {
        let bytes = self.bounds.end.0 - self.bounds.start.0;
        let least = 1 << (bytes / SLICES).max(1).ilog2();
        if least < LEAST.bytes() {
            return;
        }
        // As large as CPUs are kept from knowing each other's, if there is so much room.
        let places =
            [least.max(<M::Pmap as Pmap>::APART), least].map(|slice| (slice, PARTS as u64 * slice));
        let found = places.into_iter().find_map(|(slice, len)| {
            Some((slice, len, tree.find_space(self.bounds, len.checked_add(slice)?)?))
        });
        let Some((slice, len, wide)) = found else { return };
        let start = wide.0.next_multiple_of(slice);
        let area = VaRange::new(Va(start), Va(start + len));
        self.parts.call_once(|| Box::new(Parts::new(area, slice)));
        tree.pass_over(area);
    }
}

/// Waits for a map that is claimed.
#[cold]
fn waited<'a, 'h, M: Machine>(
    machine: &M,
    held: &'a mut Held<'h, order::Nothing>,
    ticket: Ticket,
) -> &'a mut Held<'h, order::Nothing> {
    machine.wait(held, ticket);
    held
}
