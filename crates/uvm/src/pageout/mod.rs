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
//! of them, it is known for certain who is dirty, and each is freed or written. Dirty anonymous
//! pages from anywhere get a run of new slots and leave in one write of up to a megabyte; what
//! slots they had before is free again (1999, section 6).
//!
//! A host's page daemon waits for [`Channel::PAGE_DAEMON`] and calls [`Uvm::pageout`] until enough
//! is free. A thread that finds no memory runs a pass itself ([`Uvm::make_room`]). Nothing here
//! allocates from the heap.
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
//! * *A second daemon:* one pass at a time; who comes meanwhile waits for its end.
//!
//! I1: a page is busy between the two steps for no longer than one flush, and then freed, under
//! I/O, or on a queue. I2: `in_flight` counts the pages that are being written in order to be
//! freed.

mod decision;
mod finish;
mod knobs;
mod loaned;
mod no_progress;
mod range;
mod reclaim;
mod swap_slots;
mod swapoff;
mod take;
mod waiters;

use machine::lines::Ordering::Relaxed;

use alloc::sync::Arc;

use arrayvec::ArrayVec;

use crate::page::Gather;
use crate::page::{Queue, SCAN};
use machine::{order, Channel, Held, Machine, PageNo, Pages, Pmap};

use crate::pager::Pager;
use crate::stat::Counter;
use crate::swap::WRITE_CLUSTER;
use crate::Uvm;
pub use knobs::{BadShare, Knobs};
pub(crate) use no_progress::PassLock;
pub use reclaim::Last;
pub(crate) use reclaim::Reclaim;
pub(crate) use waiters::Waiters;

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
    /// Pages whose write was started: they are freed when it ends, unless somebody wants them by
    /// then.
    pub started: usize,
    /// Dirty pages of files that their hosts will write in their own time.
    pub later: usize,
    /// Pages that were taken and kept, since somebody wanted them by then.
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

/// Pages that a pass notes for their pagers at once.
const PUTS: usize = 16;

/// One pass under way.
struct Pass<M: Machine> {
    priority: Priority,
    /// Free pages at which it ends.
    target: usize,
    /// Dirty anonymous pages that swap has room for yet.
    room: usize,
    /// By class: pages that are kept though nobody used them.
    kept: [bool; 3],
    /// Busy, on no queue, unmapped once `down` is performed.
    taken: ArrayVec<PageNo, WRITE_CLUSTER>,
    /// Pages taken at a time, at most.
    most: usize,
    down: Gather,
    /// Dirty pages that their pagers are to [put](Pager::put), which may sleep: once nothing is
    /// busy for this pass, and all CPUs are told.
    puts: ArrayVec<(Arc<dyn Pager<M>>, Pages), PUTS>,
    progress: Progress,
}

impl<M: Machine> Pass<M> {
    /// Pages that can be looked at before the pass must be [finished](Uvm::finish) with those that
    /// it has.
    fn room_for(&self) -> usize {
        (self.most - self.taken.len()).min(self.puts.remaining_capacity())
    }

    fn is_full(&self) -> bool {
        self.room_for() == 0
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
    pub fn pageout(&self, held: &mut Held<'_, order::Nothing>, target_free: usize) -> Progress {
        if !self.memory_state(held).is_worth_a_pass(self.frames().low_water()) {
            return Progress::default();
        }
        while !self.begin_pass(held) {}
        let progress = self.pass(held, target_free, Priority::Normal);
        self.end_pass();
        self.clear_left(held);
        progress
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

    /// What an administrator may choose.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// uvm.knobs().set_most_entries(65_530);
    /// # Ok(()) });
    /// ```
    pub fn knobs(&self) -> &Knobs {
        &self.knobs
    }

    fn new_pass(
        &self,
        held: &mut Held<'_, order::Nothing>,
        target: usize,
        priority: Priority,
    ) -> Pass<M> {
        let frames = self.frames();
        self.stat().add(self.mem().cpu(), Counter::Passes, 1);
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

    fn pass(
        &self,
        held: &mut Held<'_, order::Nothing>,
        target: usize,
        priority: Priority,
    ) -> Progress {
        let mut pass = self.new_pass(held, target, priority);
        self.settle_loaned(held, priority);
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
    fn refill_inactive(&self, held: &mut Held<'_, order::Nothing>, pass: &mut Pass<M>) {
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
                if frames.wire_count(page) == 0 {
                    self.mem().pmap().clear_referenced(page);
                    moved.push(page);
                } else {
                    pass.progress.wired += 1;
                }
            }
            short -= moved.len().min(short);
            self.stat().add(self.mem().cpu(), Counter::Deactivated, moved.len() as u64);
            frames.deactivate_all(held, &moved);
        }
    }

    fn scan_inactive(&self, held: &mut Held<'_, order::Nothing>, pass: &mut Pass<M>) {
        let frames = self.frames();
        let mut left = frames.inactive();
        while left != 0 && !self.is_enough(pass) {
            self.mem().pause(held);
            let oldest = frames.rotate(held, Queue::Inactive, left.min(pass.room_for()));
            if oldest.is_empty() {
                break;
            }
            left -= oldest.len().min(left);
            self.stat().add(self.mem().cpu(), Counter::Scanned, oldest.len() as u64);
            self.look_at(held, pass, &oldest);
            if pass.is_full() {
                self.finish(held, pass);
            }
        }
    }

    /// Whether the pass has reached its aim, when what is under way comes to its end.
    fn is_enough(&self, pass: &Pass<M>) -> bool {
        self.frames().free() + self.pages_in_flight() + pass.taken.len() >= pass.target
    }
}
