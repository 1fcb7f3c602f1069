//! The page daemon's work: which pages leave memory, and how.
//!
//! ```text
//!   active --(oldest; referenced bit cleared)--> inactive --(oldest; not referenced since)--> taken
//!      ^                                             |                                          |
//!      +------------- referenced, or kept -----------+                 one flush for all taken  |
//!                                                                                               v
//!   clean (file, or valid copy on swap): freed      dirty, anonymous: slots in a row, one write      dirty, file: put
//! ```
//! A pass takes pages in two steps. First, page by page under its owner's lock: the page is marked
//! busy, taken off its queue, and its translations are removed. Then, after one shootdown for all
//! of them, it is known for certain which are dirty, and each is freed or written. Dirty anonymous
//! pages from anywhere get a run of new slots and leave in one write of up to a megabyte; what
//! slots they had before is free again (1999, section 6).
//!
//! A host's page daemon waits for [`Channel::PAGE_DAEMON`] and calls [`Uvm::pageout`] until enough
//! is free: [`Uvm::page_daemon`], or by rules of the host's own. A thread that finds no memory runs
//! a pass itself ([`Uvm::make_room`]). Nothing here allocates from the heap.
//!
//! # Against the others
//! * *A fault finds the page before it is busy:* it holds the owner's lock while it enters it, so
//!   the removal of translations comes after. *While it is busy:* it waits, and says so (`WANTED`):
//!   a wanted page is kept.
//! * *A page entered ahead, without its owner's lock*: the pmap asks under its own lock whether the
//!   page is still its owner's and idle (`Frames::is_alone`); busy was set before the removal that
//!   takes the same lock, and lasts until the page has no owner.
//! * *A new page, not yet entered:* is on no queue (`anon` I3), and isn't taken though a scan may
//!   have found its number on one.
//! * *A store through a stale translation* lands before the flush ends, and the modified bit is
//!   looked at after it.
//! * *Exit, unmap* of a busy page's owner: the page is left to us as an orphan; the second step
//!   frees it, or the completion of its write does.
//! * *Fork* raises an anon's count or shares its leaf: neither looks at the page. *Copy-on-write*
//!   copies under the original anon's lock, from a page that is not busy.
//! * *Wiring* counts under the owner's lock and waits for a busy page; a wired page isn't taken.
//! * *A second daemon:* one pass at a time; a thread that comes meanwhile waits for its end.
//!
//! I1: a page is busy between the two steps for no longer than one flush, and then freed, under
//! I/O, or on a queue. I2: `in_flight` counts the pages that are being written in order to be
//! freed.

mod decision;
mod loaned;
mod range;
mod reclaim;
mod swap;

use alloc::sync::Arc;

use arrayvec::ArrayVec;
use machine::lines::Ordering::Relaxed;
use machine::{order, Channel, Held, Machine, PageNo, Pages, Pmap, Prot, Unlocked};

use crate::io::{Direction, Transfer};
use crate::object::{Launder, Pager, Put};
use crate::owner::PageOwner;
use crate::page::{Gather, PageFlags, Queue, SCAN};
use crate::stat::Counter;
use crate::swap::{Run, Slot, WRITE_CLUSTER};
use crate::Uvm;
pub use reclaim::Last;
pub(crate) use reclaim::{LastPass, Reclaim, Waiters};

/// What a pass has achieved.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// uvm.swap_on(held, disk(64), 0)?;
/// let range = memory(uvm, held, space, 8)?;
/// let Progress { freed, started, .. } = uvm.pageout_range(held, space, range);
/// assert_eq!(freed + started, 8);
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Progress {
    /// Pages that are free now.
    pub freed: usize,
    /// Pages whose write was started: they are freed when it ends, unless a thread wants them by
    /// then.
    pub started: usize,
    /// Dirty pages of files that their hosts will write in their own time.
    pub later: usize,
    /// Pages that were taken and kept, since a thread wanted them by then.
    pub wanted: usize,
    /// Pages that were met and are wired.
    pub wired: usize,
}

impl Progress {
    /// What two passes have achieved together.
    fn and(self, other: Progress) -> Progress {
        Progress {
            freed: self.freed + other.freed,
            started: self.started + other.started,
            later: self.later + other.later,
            wanted: self.wanted + other.wanted,
            wired: self.wired + other.wired,
        }
    }
}

/// How hard a pass tries: the reclaim priority.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Priority {
    /// Pages that were used lately get their second chance, and the balance is kept.
    Normal,
    /// Whatever can be taken is.
    Desperate,
}

/// Pages that a pass collects for their pagers.
const PUTS: usize = 16;

/// Pages that a pass has taken.
type Taken = ArrayVec<PageNo, WRITE_CLUSTER>;

/// One pass under way.
struct Pass<M: Machine> {
    priority: Priority,
    /// Free pages at which it ends.
    target: usize,
    /// Dirty anonymous pages that swap has room for yet.
    room: usize,
    /// By class: pages that are kept though no program used them.
    kept: [bool; 3],
    /// Busy, on no queue, unmapped once `down` is performed.
    taken: Taken,
    /// Pages taken at a time, at most.
    most: usize,
    down: Gather,
    /// Dirty pages that their pagers are to [put](Pager::put), which may sleep: once nothing is
    /// busy for this pass, and all CPUs are flushed.
    puts: ArrayVec<(Arc<dyn Pager<M>>, Pages), PUTS>,
    progress: Progress,
}

impl<M: Machine> Pass<M> {
    /// Pages that can be looked at before the pass must be [finished](Uvm::finish) with those that
    /// it has.
    fn room_for(&self) -> usize {
        (self.most - self.taken.len()).min(self.puts.remaining_capacity())
    }
}

impl<M: Machine> Uvm<M> {
    /// One pass of the page daemon: frees pages, or starts the writes after which they will be,
    /// until `target_free` are or will be free, or all inactive pages have been looked at. Waits if
    /// another thread is at it.
    ///
    /// The caller must not be one that a swap device's or a file's writes depend on.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// uvm.swap_on(held, disk(64), 0)?;
    /// memory(uvm, held, space, 8)?;
    /// for _ in 0..3 {
    ///     uvm.pageout(held, uvm.frames().total()); // The first pass only makes them inactive.
    /// }
    /// assert!(uvm.stat().get(Counter::SwapOuts) > 0);
    /// # Ok(()) });
    /// ```
    pub fn pageout(&self, held: &mut Unlocked<'_>, target_free: usize) -> Progress {
        if !self.memory_state(held).is_worth_a_pass(self.frames().low_water()) {
            return Progress::default();
        }
        while !self.begin_pass(held) {}
        let progress = self.pass(held, target_free, Priority::Normal);
        self.end_pass();
        self.clear_left(held);
        progress
    }

    /// A page daemon, for a host that has no rules of its own: sleeps until memory is short, then
    /// makes passes until the high water mark is free or on its way. It ends when it is woken, by
    /// [`Channel::PAGE_DAEMON`], and `has_ended` says so.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, _| {
    /// uvm.page_daemon(held, || true); // For ever, in a kernel: `|| false`.
    /// # Ok(()) });
    /// ```
    pub fn page_daemon(&self, held: &mut Unlocked<'_>, has_ended: impl Fn() -> bool) {
        let frames = self.frames();
        loop {
            // Read before the look at what is free, so that a wake-up between the two isn't lost.
            let ticket = self.machine().ticket(Channel::PAGE_DAEMON);
            if has_ended() {
                return;
            }
            let mut is_short = frames.free() < frames.low_water();
            while is_short && frames.free() + self.pages_in_flight() < frames.high_water() {
                let progress = self.pageout(held, frames.high_water());
                // A pass in vain: a thread that needs memory now learns that there is none.
                is_short = progress.freed + progress.started != 0;
            }
            self.machine().wait(held, ticket);
        }
    }

    /// Pages that are being written so that they can be freed.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// assert_eq!(uvm.pages_in_flight(), 0);
    /// # Ok(()) });
    /// ```
    pub fn pages_in_flight(&self) -> usize {
        self.in_flight.load(Relaxed)
    }

    /// Pages that were made busy to be read, and whose read has not ended.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// assert_eq!(uvm.pages_coming_in(), 0);
    /// # Ok(()) });
    /// ```
    pub fn pages_coming_in(&self) -> usize {
        self.coming_in.load(Relaxed)
    }

    fn new_pass(&self, held: &mut Unlocked<'_>, target: usize, priority: Priority) -> Pass<M> {
        let frames = self.frames();
        self.count(Counter::Passes, 1);
        frames.flush_pending(held);
        let room = self.make_slots_free(held, priority);
        Pass {
            priority,
            target,
            room,
            kept: match priority {
                Priority::Normal => self.knobs.kept(frames, room > 0),
                Priority::Desperate => [false; 3],
            },
            taken: ArrayVec::new(),
            most: (frames.total() / 64).clamp(16, WRITE_CLUSTER),
            down: Gather::new(),
            puts: ArrayVec::new(),
            progress: Progress::default(),
        }
    }

    fn pass(&self, held: &mut Unlocked<'_>, target: usize, priority: Priority) -> Progress {
        let mut pass = self.new_pass(held, target, priority);
        self.adopt_loaned(held, priority);
        self.refill_inactive(held, &mut pass);
        self.scan_inactive(held, &mut pass);
        self.finish(held, &mut pass);
        if pass.progress.freed != 0 {
            self.mem().wake(Channel::MEMORY);
        }
        pass.progress
    }

    /// Moves active pages to the inactive queue until that holds a third of all; all of them, if
    /// need be.
    fn refill_inactive(&self, held: &mut Unlocked<'_>, pass: &mut Pass<M>) {
        let frames = self.frames();
        let (active, inactive) = (frames.active(), frames.inactive());
        let mut short = match pass.priority {
            Priority::Normal => ((active + inactive) / 3).saturating_sub(inactive),
            Priority::Desperate => active,
        };
        let mut left = active;
        while short != 0 && left != 0 {
            self.mem().pause(held);
            let oldest = frames.rotate(held, Queue::Active, short.min(left));
            if oldest.is_empty() {
                break;
            }
            left -= oldest.len().min(left);
            let mut moved = ArrayVec::<PageNo, SCAN>::new();
            for page in oldest {
                if frames.hold_count(page) == 0 {
                    self.mem().pmap().clear_referenced(page);
                    moved.push(page);
                } else {
                    pass.progress.wired += 1;
                }
            }
            short -= moved.len().min(short);
            self.count(Counter::Deactivated, moved.len() as u64);
            frames.deactivate(held, &moved);
        }
    }

    fn scan_inactive(&self, held: &mut Unlocked<'_>, pass: &mut Pass<M>) {
        let frames = self.frames();
        let mut left = frames.inactive();
        while left != 0 && !self.is_enough(pass) {
            self.mem().pause(held);
            let oldest = frames.rotate(held, Queue::Inactive, left.min(pass.room_for()));
            if oldest.is_empty() {
                break;
            }
            left -= oldest.len().min(left);
            self.count(Counter::Scanned, oldest.len() as u64);
            self.look_at(held, pass, &oldest);
            if pass.room_for() == 0 {
                self.finish(held, pass);
            }
        }
    }

    /// Whether the pass has reached its aim, when what is under way comes to its end.
    fn is_enough(&self, pass: &Pass<M>) -> bool {
        self.frames().free() + self.pages_in_flight() + pass.taken.len() >= pass.target
    }

    /// Takes pages off the inactive queue's front, or gives them another chance, and has the CPUs
    /// forget those that it took: the pass lets other threads run after it.
    fn look_at(&self, held: &mut Unlocked<'_>, pass: &mut Pass<M>, pages: &[PageNo]) {
        pages.iter().for_each(|&page| self.look_at_one(held, pass, page));
        pass.down.flush(self.mem().pmap());
    }

    /// Takes a page, or gives it another chance. Nothing is known of it but its number.
    fn look_at_one(&self, held: &mut Unlocked<'_>, pass: &mut Pass<M>, page: PageNo) {
        let frames = self.frames();
        let used = self.mem().pmap().clear_referenced(page);
        let kept = pass.kept[frames.class(page) as usize];
        let is_wired = frames.hold_count(page) != 0;
        pass.progress.wired += usize::from(is_wired);
        if is_wired || (pass.priority == Priority::Normal && (used || kept)) {
            frames.reactivate(held, page);
            self.count(Counter::Reactivated, 1);
            return;
        }
        let put = self.with_owner(held, page, |owner, h| {
            if !self.mem().can_go(page) {
                return None;
            }
            // The host's own use, which the pmap doesn't see; flags are written under the owner's
            // lock.
            let flags = frames.clear_flags(page, PageFlags::TOUCHED);
            if flags.contains(PageFlags::TOUCHED) && pass.priority == Priority::Normal {
                frames.reactivate(h, page);
                self.count(Counter::Reactivated, 1);
                return None;
            }
            // A page with a stale slot can always be written: to that one, if there is no other.
            let swaps = owner.launder() == Launder::Swap;
            let has_place = owner.slot(frames, page).is_some_and(Slot::is_place);
            let is_new = swaps && !has_place && !owner.is_stored(self, page);
            if swaps || self.mem().is_clean(page) {
                if !is_new || pass.room != 0 {
                    pass.room -= usize::from(is_new);
                    self.take(h, pass, page);
                }
                return None;
            }
            match owner {
                PageOwner::Object { pager, .. } if pager.launder() == Launder::Put => {
                    Some(((*pager).clone(), Pages(frames.index(page))))
                }
                _ => None,
            }
        });
        if let Some((pager, index)) = put.flatten() {
            pass.puts.push((pager, index));
        }
    }

    /// Makes a page busy and takes it from its queue and its users, under its owner's lock.
    fn take(&self, held: &mut Held<'_, order::Anon>, pass: &mut Pass<M>, page: PageNo) {
        let (machine, frames) = (self.mem(), self.frames());
        frames.set_flags(page, PageFlags::BUSY);
        frames.dequeue(held, page);
        let wired = machine.pmap().page_protect(held, page, Prot::NONE, &mut pass.down);
        debug_assert_eq!(wired, 0, "{page:?} is mapped wired and not wired");
        pass.taken.push(page);
    }
}

/// The second step: what was taken is freed, written, or kept.
impl<M: Machine> Uvm<M> {
    /// Finishes with all that has been taken.
    fn finish(&self, held: &mut Unlocked<'_>, pass: &mut Pass<M>) {
        let (taken, freed_before) = (core::mem::take(&mut pass.taken), pass.progress.freed);
        let dirty = taken.into_iter().filter(|&page| self.must_be_written(held, pass, page));
        let dirty = dirty.collect();
        let freed = (pass.progress.freed - freed_before) as u64;
        self.count(Counter::PagesFreed, freed);
        self.count(Counter::FreedClean, freed);
        self.write_out(held, pass, dirty);
        self.frames().refill_reserves(held);
        self.put_all(held, pass);
    }

    /// Has pagers write what the pass has met. They may sleep: this pass has nothing busy, and each
    /// CPU knows what it has lowered.
    fn put_all(&self, held: &mut Unlocked<'_>, pass: &mut Pass<M>) {
        debug_assert!(
            pass.taken.is_empty() && !pass.down.is_needed(),
            "a pass sleeps with pages busy"
        );
        for (pager, index) in core::mem::take(&mut pass.puts) {
            match pager.put(self, held, index) {
                Put::Started(pages) => pass.progress.started += pages,
                Put::Later => pass.progress.later += 1,
                Put::Nothing => {}
            }
        }
    }

    /// Whether a page must be written, and is still busy. Else it is free; or on a queue again, if
    /// a thread wants it, or it can't go.
    fn must_be_written(&self, held: &mut Unlocked<'_>, pass: &mut Pass<M>, page: PageNo) -> bool {
        let is_free = self.with_owner_of_busy(held, page, |owner, h| {
            let is_wanted = self.frames().flags(page).contains(PageFlags::WANTED);
            let is_stored = owner.is_stored(self, page);
            if !is_wanted && !is_stored && owner.launder() == Launder::Swap {
                return None;
            }
            let goes = !is_wanted && is_stored || matches!(owner, PageOwner::Orphan);
            match goes {
                true => owner.evict(self, h, page),
                false => owner.keep(self, h, page),
            }
            Some(goes)
        });
        pass.progress.freed += usize::from(is_free == Some(true));
        pass.progress.wanted += usize::from(is_free == Some(false));
        is_free.is_none()
    }

    /// Writes dirty anonymous pages to swap devices, each run of slots in one transfer. Pages that
    /// devices in memory have no room for go together to devices of lower priority, round by round.
    fn write_out(&self, held: &mut Unlocked<'_>, pass: &mut Pass<M>, mut dirty: Taken) {
        let mut below = None;
        while !dirty.is_empty() {
            let (mut rest, mut refused, mut highest) = (&dirty[..], Taken::new(), None);
            while let Some(run) = self.run_for(held, rest, below) {
                let (now, later) = rest.split_at(run.len as usize);
                rest = later;
                if !self.write_run(held, pass, run, now) {
                    highest = highest.max(Some(run.priority));
                    refused.extend(now.iter().copied());
                }
            }
            for &page in rest {
                self.with_owner_of_busy(held, page, |owner, h| owner.keep(self, h, page));
            }
            debug_assert!(below.is_none() || highest < below, "a round asks the same devices");
            (dirty, below) = (refused, highest);
        }
    }

    /// Slots for pages from the first on, on devices of lower priority than `below`; where these
    /// are full, slots that the pages themselves no longer need.
    fn run_for(
        &self,
        held: &mut Unlocked<'_>,
        dirty: &[PageNo],
        below: Option<i16>,
    ) -> Option<Run> {
        let most = dirty.len() as u32;
        self.swap().alloc(held, most, below).or_else(|| {
            for &page in dirty {
                self.assign(held, page, None);
            }
            self.swap().alloc(held, most, below)
        })
    }

    /// Gives pages their slots and starts their write; says no if a device in memory has no room
    /// for them: they are as they were.
    fn write_run(
        &self,
        held: &mut Unlocked<'_>,
        pass: &mut Pass<M>,
        run: Run,
        pages: &[PageNo],
    ) -> bool {
        for (i, &page) in pages.iter().enumerate() {
            self.assign(held, page, Some(run.first.behind(i as u32)));
        }
        self.pageout_started(pages.len());
        let transfer = match self.swap().device(held, run.first) {
            Some((device, at)) => device.write(self.mem(), held, at, pages),
            None => Transfer::Failed,
        };
        if transfer == Transfer::Failed && run.is_memory {
            pages.iter().for_each(|&page| self.assign(held, page, None));
            self.pageout_ended(pages.len());
            return false;
        }
        self.transferred(held, Direction::Write, pages, transfer);
        if !run.is_memory {
            self.count(Counter::SwapOuts, pages.len() as u64);
            self.count(Counter::SwapWrites, 1);
        }
        pass.progress.started += pages.len();
        true
    }

    /// Makes `slot` the place of a taken page, which is about to be written there, and frees the
    /// one that it had; or none, for a page that isn't written now. An orphan is written all the
    /// same, so that the run stays one, and freed with its slot in the end.
    fn assign(&self, held: &mut Unlocked<'_>, page: PageNo, slot: Option<Slot>) {
        let on_its_way = PageFlags::PAGEOUT | PageFlags::CLEAN;
        self.with_owner_of_busy(held, page, |owner, h| {
            owner.set_slot(self, h, page, slot);
            if slot.is_some() {
                // Clean, unless something says otherwise before the write has ended.
                self.mem().pmap().forget_modified(page);
                self.frames().set_flags(page, on_its_way);
            } else {
                self.frames().clear_flags(page, on_its_way);
            }
        });
    }
}
