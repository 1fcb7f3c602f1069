//! What a run has found: laws, violations, and what could not be checked.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// A law of the contract, as `docs/porting.md` has them.
///
/// ```
/// use uvm_conformance::Law;
/// println!("{}", Law::P2);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Law {
    /// A pageable mapping may be forgotten and is right where it is not; a wired one stays.
    P1,
    /// What was lowered and flushed is used by no CPU.
    P2,
    /// A raised right is had by the same `enter` again.
    P3,
    /// No referenced or modified bit is lost.
    P4,
    /// From a page to all its mappings.
    P5,
    /// What another CPU has lowered and not flushed yet is flushed by a CPU that relies on it.
    P6,
    /// `extract`, `resident`, `unwire`, `part`, `enter_ahead`, `pass`, `destroy`: what each says it
    /// does, where it says, and nowhere else.
    Tables,
    /// `enter` without memory for tables changes nothing.
    Memory,
    /// `zero`, `copy`, `read` and `write` reach the bytes that programs see.
    Bytes,
    /// No wake-up is lost between `ticket` and `wait`.
    Tickets,
    /// The lock excludes.
    Locks,
    /// What was reserved can be allocated.
    Heap,
}

impl fmt::Display for Law {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Law::P1 => "P1, what may be forgotten",
            Law::P2 => "P2, what must be exact",
            Law::P3 => "P3, what may be put off",
            Law::P4 => "P4, referenced and modified",
            Law::P5 => "P5, from a page to its mappings",
            Law::P6 => "P6, what no call may overtake",
            Law::Tables => "tables",
            Law::Memory => "no memory for tables",
            Law::Bytes => "bytes of frames",
            Law::Tickets => "tickets",
            Law::Locks => "locks",
            Law::Heap => "reservation of heap",
        })
    }
}

/// A law that was seen broken.
///
/// ```
/// use uvm_conformance::{Law, Violation};
/// fn is_of_the_tlb(violation: &Violation) -> bool {
///     violation.law == Law::P2
/// }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Violation {
    /// Which.
    pub law: Law,
    /// What was done, what was expected, what was seen.
    pub sentence: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.law, self.sentence)
    }
}

impl core::error::Error for Violation {}

/// Violations of one law that are kept; more are only counted.
const KEPT: usize = 6;

/// What a run has found.
///
/// ```
/// use uvm_conformance::Report;
/// fn summary(report: &Report) -> String {
///     let (broken, open) = (report.violations().len(), report.left_out().len());
///     format!("{broken} laws broken, {open} not checked")
/// }
/// assert_eq!(summary(&Report::default()), "0 laws broken, 0 not checked");
/// ```
#[derive(Clone, Default, Debug)]
pub struct Report {
    checked: Vec<(Law, u64)>,
    violations: Vec<Violation>,
    more: u64,
    left_out: Vec<(Law, &'static str)>,
}

impl Report {
    /// Whether no law was seen broken.
    ///
    /// ```
    /// assert!(uvm_conformance::Report::default().is_sound());
    /// ```
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.violations.is_empty()
    }

    /// The violations in the order in which they were found, some of each law.
    ///
    /// ```
    /// for violation in uvm_conformance::Report::default().violations() {
    ///     println!("{violation}");
    /// }
    /// ```
    #[must_use]
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// Laws that were checked, with the number of observations.
    ///
    /// ```
    /// for (law, times) in uvm_conformance::Report::default().checked() {
    ///     println!("{law}: {times} checks");
    /// }
    /// ```
    #[must_use]
    pub fn checked(&self) -> &[(Law, u64)] {
        &self.checked
    }

    /// What could not be checked on this port, and why.
    ///
    /// ```
    /// for (law, why) in uvm_conformance::Report::default().left_out() {
    ///     println!("{law} is open: {why}");
    /// }
    /// ```
    #[must_use]
    pub fn left_out(&self) -> &[(Law, &'static str)] {
        &self.left_out
    }

    pub(crate) fn count(&mut self, law: Law, observations: u64) {
        match self.checked.iter_mut().find(|(of, _)| *of == law) {
            Some((_, n)) => *n += observations,
            None => self.checked.push((law, observations)),
        }
    }

    /// Keeps a violation, and says whether it is among the first of its law.
    pub(crate) fn add(&mut self, violation: Violation) -> bool {
        let is_first = self.violations.iter().filter(|v| v.law == violation.law).count() < KEPT;
        if is_first {
            self.violations.push(violation);
        } else {
            self.more += 1;
        }
        is_first
    }

    /// Violations in all.
    pub(crate) fn found(&self) -> u64 {
        self.violations.len() as u64 + self.more
    }

    pub(crate) fn leave_out(&mut self, law: Law, why: &'static str) {
        self.left_out.push((law, why));
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (law, observations) in &self.checked {
            let broken = self.violations.iter().any(|v| v.law == *law);
            let word = if broken { "BROKEN" } else { "holds" };
            writeln!(f, "{word:>6}  {law} ({observations} observations)")?;
        }
        for (law, why) in &self.left_out {
            writeln!(f, "  open  {law}: {why}")?;
        }
        for violation in &self.violations {
            writeln!(f, "{violation}")?;
        }
        if self.more != 0 {
            writeln!(f, "and {} more", self.more)?;
        }
        Ok(())
    }
}
