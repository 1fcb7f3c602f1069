//! Code of a test that runs in the middle of an operation: what another thread may do there, done
//! there once, whatever the schedule.
//!
//! A hook is taken out before it runs, and runs with no lock of the machine's held. It may start a
//! thread and wait for its end: what the operation has locked, that thread must not want.

use std::sync::{Mutex, PoisonError};

use crate::heap::aside;

/// Where a hook can run.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let range = memory(uvm, held, space, 1)?;
/// uvm.machine().pmap().hooks.at_next(uvm_soft::Moment::Flushing, || println!("not told yet"));
/// uvm.protect(held, space, range, Prot::READ)?;
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Moment {
    /// Pages have been chosen to be mapped ahead of use; none is entered yet.
    MappingAhead,
    /// A page has been chosen to be mapped; it is not entered yet.
    Mapping,
    /// Translations have left the tables; no CPU has been flushed yet.
    Flushing,
    /// A CPU has found notes in its mailbox; it has not done yet as they say.
    Forgetting,
    /// A CPU is about to say that it uses its translations.
    Entering,
    /// A CPU has said that it uses its translations; it has not looked into its TLB yet.
    Using,
    /// A flush is about to wait for a CPU that uses its translations.
    Waiting,
}

type Hook = Box<dyn FnOnce() + Send>;

/// The hooks of a machine, of each moment one at most.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let range = memory(uvm, held, space, 1)?;
/// let hooks = &uvm.machine().pmap().hooks;
/// hooks.at_next(uvm_soft::Moment::Flushing, || println!("not told yet"));
/// uvm.protect(held, space, range, Prot::READ)?;
/// # Ok(()) });
/// ```
#[derive(Default)]
pub struct Hooks([Mutex<Option<Hook>>; 7]);

impl Hooks {
    /// Runs `hook` when the moment comes next.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let hooks = &uvm.machine().pmap().hooks;
    /// hooks.at_next(uvm_soft::Moment::Mapping, || println!("about to be mapped"));
    /// memory(uvm, held, space, 1)?;
    /// # Ok(()) });
    /// ```
    pub fn at_next(&self, moment: Moment, hook: impl FnOnce() + Send + 'static) {
        *self.of(moment).lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(hook));
    }

    /// The moment has come.
    pub(crate) fn come(&self, moment: Moment) {
        let hook = self.of(moment).lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(hook) = hook {
            aside(hook);
        }
    }

    fn of(&self, moment: Moment) -> &Mutex<Option<Hook>> {
        &self.0[moment as usize]
    }
}
