//! How memory is shared out among its kinds, and what else an administrator may choose.
//!
//! Each kind has a least and a most share of memory, in percent, after NetBSD's `vm.anonmin`,
//! `vm.filemax` and so on. They are no limits: a kind grows as far as memory goes. They say whose
//! pages go first when memory is short.
//!
//! A page that has not been used lately is kept all the same if its kind has no more than its least
//! share, or if its kind has no more than its most and another has. If that would keep everything,
//! it keeps nothing.

use machine::lines::{AtomicBool, AtomicU8, AtomicUsize, Ordering::Relaxed};

use crate::page::{Class, Frames};
use machine::Machine;

/// Percents that the least shares may add up to: something must be free to move.
const MOST_KEPT: u32 = 95;

/// See the module. Every change holds from the next pass on.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// uvm.knobs().set_fault_around(false);
/// let at = uvm.map(held, space, &MapRequest::zero(Pages(16)))?;
/// store(uvm, space, at, b"x")?;
/// assert_eq!(uvm.machine().pmap().resident(space.pmap()), 1);
/// # Ok(()) });
/// ```
pub struct Knobs {
    least: [AtomicU8; 3],
    most: [AtomicU8; 3],
    fault_around: AtomicBool,
    most_entries: AtomicUsize,
}

/// A share was refused: over 100, the least over the most, or the least shares over 95 together.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// assert_eq!(uvm.knobs().set_shares(Class::File, 60, 50), Err(BadShare));
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadShare;

const CLASSES: [Class; 3] = [Class::Anon, Class::File, Class::Exec];

impl Default for Knobs {
    /// Anonymous memory 10 to 80 percent, files 10 to 50, programs 5 to 30; neighbours are brought
    /// along.
    fn default() -> Knobs {
        Knobs {
            least: [10, 10, 5].map(AtomicU8::new),
            most: [80, 50, 30].map(AtomicU8::new),
            fault_around: AtomicBool::new(true),
            most_entries: AtomicUsize::new(usize::MAX),
        }
    }
}

impl Knobs {
    /// The least and the most share of a kind, in percent.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// assert_eq!(uvm.knobs().shares(Class::Anon), (10, 80));
    /// # Ok(()) });
    /// ```
    pub fn shares(&self, class: Class) -> (u8, u8) {
        (self.least[class as usize].load(Relaxed), self.most[class as usize].load(Relaxed))
    }

    /// Sets the shares of a kind.
    ///
    /// # Errors
    /// [`BadShare`]: nothing has changed.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// uvm.knobs().set_shares(Class::File, 20, 60)?;
    /// assert_eq!(uvm.knobs().shares(Class::File), (20, 60));
    /// # Ok(()) });
    /// ```
    pub fn set_shares(&self, class: Class, least: u8, most: u8) -> Result<(), BadShare> {
        let others = CLASSES.iter().filter(|&&c| c != class).map(|&c| u32::from(self.shares(c).0));
        if most > 100 || least > most || u32::from(least) + others.sum::<u32>() > MOST_KEPT {
            return Err(BadShare);
        }
        self.least[class as usize].store(least, Relaxed);
        self.most[class as usize].store(most, Relaxed);
        Ok(())
    }

    /// Whether a fault maps and brings in what lies around it.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// assert!(uvm.knobs().fault_around());
    /// # Ok(()) });
    /// ```
    #[inline]
    pub fn fault_around(&self) -> bool {
        self.fault_around.load(Relaxed)
    }

    /// Lets a fault bring in its own page alone, or what lies around it as well.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// uvm.knobs().set_fault_around(false);
    /// assert!(!uvm.knobs().fault_around());
    /// # Ok(()) });
    /// ```
    pub fn set_fault_around(&self, on: bool) {
        self.fault_around.store(on, Relaxed);
    }

    /// How many entries a map may have before what would add to them is refused; no bound at first.
    /// Where several CPUs map side by side, each may add as many as a 64th of that.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// assert_eq!(uvm.knobs().most_entries(), usize::MAX);
    /// # Ok(()) });
    /// ```
    #[inline]
    pub fn most_entries(&self) -> usize {
        self.most_entries.load(Relaxed)
    }

    /// Changes that; maps that have more stay as they are.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 4)?;
    /// uvm.knobs().set_most_entries(1);
    /// let cut = uvm.protect(held, space, pages(range.start, 1), Prot::READ);
    /// assert_eq!(cut, Err(RangeError::TooMany));
    /// # Ok(()) });
    /// ```
    pub fn set_most_entries(&self, most: usize) {
        self.most_entries.store(most, Relaxed);
    }

    /// Which kinds' pages are kept though they have not been used: for [`Class::Anon`], `File` and
    /// `Exec`. `anon_may_go` says whether swap has room.
    pub(crate) fn kept<M: Machine>(&self, frames: &Frames<M>, anon_may_go: bool) -> [bool; 3] {
        let total = frames.active() + frames.inactive() + frames.free();
        let is_over = |share: &[AtomicU8; 3], class: Class| {
            let percent = usize::from(share[class as usize].load(Relaxed));
            frames.of_class(class) * 100 > total * percent
        };
        let kept = CLASSES.map(|class| {
            let is_over_most = is_over(&self.most, class);
            let another_is = CLASSES.iter().any(|&c| c != class && is_over(&self.most, c));
            !is_over(&self.least, class) || (!is_over_most && another_is)
        });
        if kept[1] && kept[2] && (kept[0] || !anon_may_go) {
            return [false; 3];
        }
        kept
    }
}
