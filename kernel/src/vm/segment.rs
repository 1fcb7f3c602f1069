//! A shared segment: anonymous memory that has a handle of its own beside its mappings.
//!
//! System V shared memory outlives the processes that map it, until a process removes it; from then
//! on it lives as long as its mappings. So a segment is held by a [`Segment`], and once removed
//! only known by a [`Remnant`], which keeps the object's head and none of its pages: the count of
//! references, which is how many mappings there are, decides alone.
//!
//! I1: a `Segment` is one reference of its object; a `Remnant` is none. I2: the head of an object
//! goes with the last `Remnant` at the latest, so to look at one frees nothing.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use machine::{Machine, PageNo, Pages, PAGE_SIZE};
use uvm::{Access, Advice, AnonObject, Attached, Intent, Pager, Quota};

use super::commit;
use super::system::with;
use crate::charge::{Charge, Count};
use crate::errno::{Result, ENOMEM};
use crate::mem::fault;
use crate::mem::frames::{KernelMachine, KERNEL};
use crate::sched;

type Anon = AnonObject<KernelMachine>;

/// A segment that is held.
pub struct Segment {
    pager: Arc<Anon>,
}

impl Drop for Segment {
    /// Mappings keep the memory as long as they need it.
    fn drop(&mut self) {
        with(|uvm, held| uvm.detach(held, &*self.pager));
    }
}

impl Clone for Segment {
    /// One more handle on the same memory.
    fn clone(&self) -> Segment {
        self.pager.object().attach();
        Segment { pager: self.pager.clone() }
    }
}

impl Segment {
    /// A segment of `len` bytes of zeroes, whose pages count by a quota, and which is promised.
    pub fn new(len: u64, quota: &Arc<Quota>, promise: Option<commit::Shared>) -> Result<Segment> {
        let promise = promise.map(|promise| Box::new(promise) as Box<dyn Attached>);
        let made = with(|uvm, held| {
            AnonObject::within(uvm, held, Pages::ceil(len), quota.clone(), promise)
        });
        let pager = made.map_err(|_| ENOMEM)?;
        Ok(Segment { pager })
    }

    /// What `/proc/PID/maps` and [`MapLine`](super::MapLine) call its object.
    pub fn id(&self) -> u64 {
        self.pager.object().id()
    }

    /// Something to know it by that keeps none of its pages.
    pub fn remnant(&self) -> Remnant {
        Remnant { pager: self.pager.clone() }
    }

    /// Makes every page of it resident and keeps it so until [`unlock`](Segment::unlock) gets what
    /// this returns, whose memory is charged to a user, and whose pages are counted.
    ///
    /// # Errors
    /// `ENOMEM`, also where the thread is being ended: nothing is locked.
    pub fn lock(&self, uid: u32, count: Arc<Count>) -> Result<Locked> {
        let pager: Arc<dyn Pager<KernelMachine>> = self.pager.clone();
        let len = with(|_, held| self.pager.object().len(held));
        let charge =
            Charge::lasting(uid, len.0 as usize * size_of::<PageNo>()).map_err(|_| ENOMEM)?;
        let mut locked = Locked { pages: Vec::new(), _charge: charge, _count: count };
        fault::attempt(|| locked.pages.try_reserve_exact(len.0 as usize)).map_err(|_| ENOMEM)?;
        for index in 0..len.0 {
            let Some(page) = Self::pin(&pager, index, len.0) else {
                self.unlock(&locked);
                return Err(ENOMEM);
            };
            locked.pages.push(page);
            sched::work_done(PAGE_SIZE);
        }
        Ok(locked)
    }

    /// Brings a page in and pins it; `None` if that fails, or the thread is being ended.
    fn pin(pager: &Arc<dyn Pager<KernelMachine>>, index: u64, pages: u64) -> Option<PageNo> {
        if KERNEL.has_fatal_signal() {
            return None;
        }
        let access =
            Access::Call(Advice::Sequential, (pages - index).min(u64::from(u32::MAX)) as u32);
        let page = with(|uvm, held| {
            uvm.with_page(held, pager, Pages(index), Intent::Write, access, |_, page| {
                uvm.frames().wire(page);
                page
            })
        });
        page.ok().flatten()
    }

    /// Lets the pages go.
    pub fn unlock(&self, locked: &Locked) {
        let pager: Arc<dyn Pager<KernelMachine>> = self.pager.clone();
        for &page in &locked.pages {
            with(|uvm, held| uvm.unpin(held, &pager, page, Intent::Read));
            sched::work_done(PAGE_SIZE / 8);
        }
    }

    pub(super) fn pager(&self) -> Arc<dyn Pager<KernelMachine>> {
        self.pager.clone()
    }
}

/// The pages of a segment that is locked in memory, each pinned once.
pub struct Locked {
    pages: Vec<PageNo>,
    _charge: Charge,
    _count: Arc<Count>,
}

/// A segment by name only.
pub struct Remnant {
    pager: Arc<Anon>,
}

/// What is known of a segment's memory at a moment.
#[derive(Clone, Copy)]
pub struct Footprint {
    /// Pages in memory.
    pub resident: u64,
    /// Pages on swap and not in memory.
    pub swapped: u64,
}

impl Remnant {
    /// A handle on the segment, if anything refers to it still.
    pub fn hold(&self) -> Option<Segment> {
        self.pager.object().attach_if_used().then(|| Segment { pager: self.pager.clone() })
    }

    /// References of its object: mappings and handles.
    pub fn references(&self) -> u64 {
        self.pager.object().references() as u64
    }

    /// How large it is at the moment; nothing if it has gone.
    pub fn footprint(&self) -> Footprint {
        with(|_, held| {
            let object = self.pager.object();
            let (resident, stored) = (object.resident(held), object.stored(held));
            Footprint { resident: resident as u64, swapped: stored.saturating_sub(resident) as u64 }
        })
    }
}
