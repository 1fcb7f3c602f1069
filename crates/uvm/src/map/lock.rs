//! A map's lock: short changes, faults beside them, and claims for long changes.
//!
//! ```text
//!   fault:  read the tree -> pin the entry, for the pages around the address
//!           -> resolve, with a copy of the entry
//!   unmap:  lock -> wait for pins of the range -> take its entries -> pin the range, unlock
//!           -> take its translations
//!   mmap:   lock -> choose a range -> wait for pins of it -> put an entry there -> unlock
//!   fork:   lock -> wait for all pins -> claim -> unlock ... step, step ... lock, unclaim
//! ```
//! A fault reads the tree no longer than it takes to find its entry. It pins the entry for the
//! window of pages that it may map, and goes on with a copy, so that other threads map and unmap
//! elsewhere meanwhile ([`machine::shared`]).
//!
//! I1: a change that faults must not miss, or that drops an amap or an object of an entry, waits
//! for the pins of all pages that it concerns: [`Map::lock`] does for the range that it is given,
//! [`Map::exclude`] for more. Not such changes: an entry that is added or extended, or merged with
//! one that has the same amap; one that is clipped outside of the pin's window. A copy of an entry
//! stays right through them: each page of the window has the slot and the object's page that it
//! had. A merge that gives an entry an amap is one: it waits for the pins of that entry.
//!
//! What was mapped in a range may be reached until its translations are gone. An unmapping pins the
//! range for that time, and gives the lock back. I2: whatever puts an entry where none was waits
//! for the pins of its range; and so does whatever found no entry before it says so
//! ([`Map::confirm_hole`]): a thread that has heard so must not read the page afterwards.
//!
//! A thread that changes all of a map, and takes long, *claims* it: it gives the lock back between
//! its steps, and all others that want the map wait for its end. I3: a thread that has claimed a
//! map waits for nothing; it gives way. While a map is claimed nothing of it is pinned. An attempt
//! that has heap reserved doesn't wait under way, which would cost it that: it ends with
//! [`Stop::Wait`] (`lock_now` and its like).

use core::mem::MaybeUninit;
use core::ops::Range;
use core::ptr::NonNull;

use machine::lines::Ordering::Relaxed;
use machine::order::Guard;
use machine::shared::{self, Access};
use machine::{order, Channel, Held, Machine, Pages, Ticket, Unlocked, Va, VaRange, PAGE_SHIFT};

use super::steps::Lock;
use super::tree::Tree;
use super::{Entry, Map};
use crate::Stop;

type Entries<M> = Tree<Entry<M>>;
/// Access to a map's entries.
pub(crate) type TreeGuard<'a, M> = Guard<'a, <M as Machine>::Lock, Entries<M>>;
type Locked<'a, M> = (TreeGuard<'a, M>, Held<'a, order::Map>);
type TreeAccess<'a, M> = Access<'a, <M as Machine>::Lock, Entries<M>>;
type Read<'a, M> = (TreeAccess<'a, M>, Held<'a, order::Map>);
/// An entry that a fault has pinned.
pub(crate) type Pinned<'a, M> = shared::Pinned<'a, <M as Machine>::Lock, Entries<M>, Entry<M>>;
/// The token of a thread that didn't get the lock since the map is claimed, and what to wait with.
type Refused<'a, 'h> = (&'a mut Unlocked<'h>, Ticket);

/// A range whose pages no fault has pinned, as long as the map's lock is held, or its claim.
#[derive(Clone, Copy)]
pub(crate) struct Unpinned(VaRange);

impl Unpinned {
    pub(crate) fn contains(self, range: VaRange) -> bool {
        self.0.start <= range.start && range.end <= self.0.end
    }
}

/// Pages of the aligned window that a fault may map, and that it pins.
pub(crate) const WINDOW: usize = 16;

impl<M: Machine> Map<M> {
    /// Takes the lock to change the entries in a range, which no fault has pinned then. Waits while
    /// the map is claimed.
    #[inline]
    pub(crate) fn lock<'a>(
        &'a self,
        machine: &M,
        held: &'a mut Unlocked<'_>,
        range: VaRange,
    ) -> Locked<'a, M> {
        let mut held = held;
        loop {
            match self.try_lock(machine, held, range) {
                Ok(locked) => return locked,
                Err((token, ticket)) => {
                    machine.wait(token, ticket);
                    held = token;
                }
            }
        }
    }

    /// Like [`lock`](Self::lock), for an attempt, which doesn't wait.
    ///
    /// # Errors
    /// [`Stop::Wait`], if the map is claimed.
    #[inline]
    pub(crate) fn lock_now<'a, E>(
        &'a self,
        machine: &M,
        held: &'a mut Unlocked<'_>,
        range: VaRange,
    ) -> Result<Locked<'a, M>, Stop<E>> {
        self.try_lock(machine, held, range).map_err(|(_, ticket)| Stop::Wait(ticket))
    }

    #[inline]
    fn try_lock<'a, 'h>(
        &'a self,
        machine: &M,
        held: &'a mut Unlocked<'h>,
        range: VaRange,
    ) -> Result<Locked<'a, M>, Refused<'a, 'h>> {
        let mut refused = None;
        let locked = self.tree.lock_if(held, || {
            refused = self.refuses(machine);
            refused.is_none()
        });
        match (locked, refused) {
            (Ok((tree, h)), _) => {
                self.exclude(&tree, range);
                Ok((tree, h))
            }
            (Err(held), ticket) => {
                Err((held, ticket.unwrap_or_else(|| machine.ticket(self.channel()))))
            }
        }
    }

    /// Waits for the faults that have pinned pages of a range (I1).
    #[inline]
    pub(crate) fn exclude(&self, tree: &TreeGuard<'_, M>, range: VaRange) -> Unpinned {
        self.tree.exclude(tree, pages(range));
        Unpinned(range)
    }

    /// Gives the lock back but for a range, whose entries the caller has taken out (I2).
    #[inline]
    pub(crate) fn pin_range<'a>(
        &'a self,
        tree: TreeGuard<'a, M>,
        range: VaRange,
    ) -> shared::PinnedPages<'a, M::Lock, Entries<M>> {
        self.tree.pin_pages(tree, pages(range))
    }

    /// Waits, where a reader has found no entry, until what was mapped there can't be reached (I2).
    ///
    /// # Errors
    /// [`Stop::Wait`], if the map is claimed.
    #[cold]
    pub(crate) fn confirm_hole<E>(
        &self,
        machine: &M,
        held: &mut Unlocked<'_>,
        va: Va,
    ) -> Result<(), Stop<E>> {
        // Whatever the page, there may be no address behind it.
        let page = VaRange::new(va, va + Pages(u64::from(self.bounds.contains(va))));
        self.lock_now(machine, held, page).map(drop)
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
    /// back.
    pub(crate) fn claim(&self, tree: &TreeGuard<'_, M>) {
        debug_assert!(!self.is_claimed.load(Relaxed));
        self.exclude(tree, self.bounds);
        self.is_claimed.store(true, Relaxed);
    }

    /// Takes the lock of a map that the caller has claimed.
    pub(crate) fn lock_claimed<'a>(&'a self, held: &'a mut Unlocked<'_>) -> Locked<'a, M> {
        debug_assert!(self.is_claimed.load(Relaxed));
        self.tree.lock(held)
    }

    /// Takes the lock of a map that the caller has claimed, which ends the claim.
    pub(crate) fn lock_and_unclaim<'a>(
        &'a self,
        machine: &M,
        held: &'a mut Unlocked<'_>,
    ) -> Locked<'a, M> {
        let (tree, h) = self.tree.lock(held);
        self.end_claim(machine, &tree);
        (tree, h)
    }

    /// Takes the lock for the last step of a change, which ends a claim of the caller's.
    ///
    /// # Errors
    /// [`Stop::Wait`], if another thread has claimed the map.
    pub(crate) fn lock_as<'a, E>(
        &'a self,
        lock: Lock,
        machine: &M,
        held: &'a mut Unlocked<'_>,
        range: VaRange,
    ) -> Result<Locked<'a, M>, Stop<E>> {
        match lock {
            Lock::Unclaimed => self.lock_now(machine, held, range),
            Lock::Claimed => Ok(self.lock_and_unclaim(machine, held)),
        }
    }

    /// Ends a claim, with the map's lock held.
    pub(crate) fn end_claim(&self, machine: &M, _all: &TreeGuard<'_, M>) {
        self.is_claimed.store(false, Relaxed);
        machine.wake(self.channel());
    }

    /// Ends a claim.
    pub(crate) fn unclaim(&self, machine: &M, held: &mut Unlocked<'_>) {
        drop(self.lock_and_unclaim(machine, held));
    }

    /// Takes the lock to read, for an attempt, beside others if no change was made for long.
    ///
    /// # Errors
    /// [`Stop::Wait`], if the map is claimed.
    #[inline(always)]
    #[cfg_attr(feature = "__lines", track_caller)]
    pub(crate) fn read_now<'a, E>(
        &'a self,
        machine: &M,
        held: &'a mut Unlocked<'_>,
    ) -> Result<Read<'a, M>, Stop<E>> {
        let mut refused = None;
        let read = self.tree.read_if(held, || {
            refused = self.refuses(machine);
            refused.is_none()
        });
        let ticket = || refused.unwrap_or_else(|| machine.ticket(self.channel()));
        read.map_err(|_| Stop::Wait(ticket()))
    }

    /// Looks at the entry at an address, and ends a fault's access to the tree but for that entry,
    /// which it pins for the [`WINDOW`] around the address, if the look says so; else gives the
    /// access back. The copy lies in `copy`.
    ///
    /// # Errors
    /// What the look fails with.
    #[inline(always)]
    pub(crate) fn pin_if<'a, 'c, E>(
        &'a self,
        tree: TreeAccess<'a, M>,
        va: Va,
        copy: &'c mut MaybeUninit<Entry<M>>,
        look: impl FnOnce(Option<&Entry<M>>) -> Result<bool, E>,
    ) -> Result<Result<Pinned<'c, M>, TreeAccess<'a, M>>, E>
    where
        'a: 'c,
    {
        let entry = tree.get(va);
        let is_wanted = look(entry)?;
        let Some(entry) = entry.filter(|_| is_wanted).map(NonNull::from) else {
            return Ok(Err(tree));
        };
        // SAFETY: it has just been found, and the access goes on.
        let own = pages(unsafe { entry.as_ref() }.range);
        let start = (va.0 >> PAGE_SHIFT) & !(WINDOW as u64 - 1);
        let window = start.max(own.start)..(start + WINDOW as u64).min(own.end);
        // SAFETY: the entry lies in the tree, and changes of the tree keep to I1.
        Ok(Ok(unsafe { tree.pin(&self.tree, entry, window, copy) }))
    }
}

fn pages(range: VaRange) -> Range<u64> {
    range.start.0 >> PAGE_SHIFT..range.end.0 >> PAGE_SHIFT
}
