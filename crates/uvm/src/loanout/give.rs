//! Giving pages to the kernel: what a program loans and doesn't want back leaves it in the same
//! step.
//!
//! ```text
//!   loaned, then given up   protect, flush CPUs; loan;   remove, flush CPUs; empty the slots
//!   given                   remove, flush CPUs;          loan; empty the slots
//! ```
//! No thread can store to a page from when its translation has gone, with the map locked, until
//! its slot is empty: so nothing is protected, and CPUs are flushed once. It takes all pages
//! resident at the same time. The borrower can put back what it has no use for by a
//! [transfer](Uvm::transfer) to where it was.
//!
//! Source: 1998, sections 4.1 and 4.3, of which this is the first with the second's donation. The
//! road not taken is map entry passing into a range of the kernel's, which cuts entries for what
//! may be a page.

use crate::page::Gather;
use machine::{Machine, PageRange, Pages, Prot, Unlocked, VaRange};

use super::LoanOut;
use crate::fault::FaultError;
use crate::loan::Loan;
use crate::{Space, Stop, Uvm};

/// Pages that are brought in for one call.
const MISSES: usize = 2;

/// What has come of an attempt.
enum Given {
    All,
    /// The range's page of this number isn't resident.
    Missing(u64),
    /// They can't be given at once.
    Never,
}

impl<M: Machine> Uvm<M> {
    /// Loans the pages of a range to the kernel as [`loan_to_kernel`](Self::loan_to_kernel) does,
    /// at most [`Loan::MOST`] from its start, and [discards](Self::discard) what the program has
    /// there, which shows zeroes or its object then. `None`, with nothing changed, unless all of it
    /// is private memory that may be read and written, not locked, and can be had in memory at
    /// once: loan that, and discard it.
    ///
    /// Cost: as a loan, but that nothing is protected; one round of interrupts at most, to CPUs
    /// that run in the space.
    ///
    /// # Errors
    /// [`FaultError::NoMemory`]; nothing is loaned or discarded then.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 2)?;
    /// if let Some(loan) = uvm.give_to_kernel(held, space, range)? {
    ///     assert_eq!(loan.len(), 2, "the program reads zeroes there from now on");
    ///     uvm.return_loan(held, loan).map_err(|(why, _)| why)?;
    /// }
    /// # Ok(()) });
    /// ```
    pub fn give_to_kernel(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        range: PageRange,
    ) -> Result<Option<Loan>, FaultError> {
        let mut loan = Loan::new();
        let start = range.start;
        let range = VaRange::new(start, start + range.pages().min(Pages(loan.room() as u64)));
        self.make_loaned_room(&mut loan, range.pages().0 as usize)?;
        for _ in 0..=MISSES {
            match self.give_at_once(held, space, range, &mut loan)? {
                Given::All => return Ok(Some(loan)),
                // A loan of what is left says why it can't be had, and gets what lies before it.
                Given::Missing(page)
                    if self.fault(held, space, range.start + Pages(page), Prot::READ).is_ok() => {}
                Given::Missing(_) | Given::Never => break,
            }
        }
        Ok(None)
    }

    fn give_at_once(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        range: VaRange,
        loan: &mut Loan,
    ) -> Result<Given, FaultError> {
        let mut down = Gather::new();
        let given = self.attempt(held, 0, |held, reserved| {
            let (mut tree, mut h) = space.map.lock_now(self.mem(), held, range)?;
            let is_plain = tree.try_each(range, &mut |e| {
                let is_private = e.is_private(&mut h, e.range.intersect(range));
                if is_private && e.prot.contains(Prot::READ_WRITE) {
                    Ok(())
                } else {
                    Err(())
                }
            });
            let is_plain = is_plain.is_ok() && tree.is_covered(range);
            let need = space.locked(self, &mut tree, &mut h).bytes_to_empty(range);
            let Some(need) = need.filter(|_| is_plain) else { return Ok(Given::Never) };
            Stop::ensure(need, reserved)?;
            self.forget_range(&mut h, space, range, &mut down);
            let mut out = LoanOut::new(self, loan, &mut down);
            let result = tree.try_each(range, &mut |entry| {
                let part = entry.range.intersect(range);
                let due = (part.end - range.start).0 as usize;
                match out.loan_part(&mut h, space, entry, part) {
                    Err(e) => Err(Stop::Fail(e.into())),
                    Ok(()) if out.loan.len() < due => Err(Stop::Fail(FaultError::NoMapping)),
                    Ok(()) => Ok(()),
                }
            });
            let is_long = out.is_over();
            out.count();
            if loan.len() as u64 == range.pages().0 {
                space.locked(self, &mut tree, &mut h).empty(range, &mut down);
                // Pages of an object may be stored to elsewhere: not after another mapping is here.
                down.flush(self.mem().pmap());
                return Ok(Given::All);
            }
            let found = loan.len() as u64;
            self.return_pages(&mut h, loan.pages.drain(..));
            match result {
                _ if is_long => Ok(Given::Never),
                Err(Stop::Fail(FaultError::NoMemory)) => Err(Stop::Fail(FaultError::NoMemory)),
                _ => Ok(Given::Missing(found)),
            }
        });
        down.perform(self.frames(), self.mem(), held);
        given
    }
}
