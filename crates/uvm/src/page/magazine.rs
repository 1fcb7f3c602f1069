//! Free numbers, of pages or of what else a table holds, that one CPU has at hand.
//!
//! ```text
//!   take, give <-> Magazine of this CPU <-- HALF at once --> depot of all CPUs, a list through the table itself
//! ```
//! An array, so that taking a number reads nothing but the array; and it is exchanged with the
//! depot by halves, so that who takes and gives in turn comes there once in [`HALF`] calls at most.
//!
//! Source: Bonwick and Adams, Magazines and Vmem (USENIX ATC 2001), with a list in the depot in
//! place of their full and empty magazines: giving back must not need memory.

/// Numbers that a magazine holds.
pub const FULL: usize = 64;
/// Numbers that come from the depot, or go back, at once.
pub const HALF: usize = FULL / 2;

/// See the module.
///
/// ```
/// use uvm::page::magazine::{Magazine, FULL};
/// let mut magazine = Magazine::new();
/// (0..FULL as u32).for_each(|number| magazine.push(number));
/// assert!(magazine.is_full());
/// assert_eq!(magazine.pop(), Some(FULL as u32 - 1));
/// ```
pub struct Magazine {
    numbers: [u32; FULL],
    len: usize,
}

impl Magazine {
    /// Nothing in it.
    #[allow(clippy::new_without_default)]
    #[must_use]
    pub const fn new() -> Magazine {
        Magazine { numbers: [0; FULL], len: 0 }
    }

    /// Numbers in it.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is in it.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether nothing more goes in.
    #[inline]
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.len >= FULL
    }

    /// The numbers in it.
    #[must_use]
    pub fn numbers(&self) -> &[u32] {
        &self.numbers[..self.len]
    }

    /// Takes the number that was put in last.
    ///
    /// ```
    /// use uvm::page::magazine::Magazine;
    /// let mut magazine = Magazine::new();
    /// magazine.push(7);
    /// assert_eq!((magazine.pop(), magazine.pop()), (Some(7), None));
    /// ```
    #[inline]
    pub fn pop(&mut self) -> Option<u32> {
        let at = self.len.wrapping_sub(1);
        let number = *self.numbers.get(at)?;
        self.len = at;
        Some(number)
    }

    /// Puts a number in. There must be room.
    ///
    /// ```
    /// use uvm::page::magazine::Magazine;
    /// let mut magazine = Magazine::new();
    /// magazine.push(7);
    /// assert_eq!(magazine.numbers(), [7]);
    /// ```
    #[inline]
    pub fn push(&mut self, number: u32) {
        self.numbers[self.len] = number;
        self.len += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_in_last_comes_out_first_until_nothing_is_left() {
        let mut magazine = Magazine::new();
        (1..=FULL as u32).for_each(|n| magazine.push(n));
        assert!(magazine.is_full() && magazine.numbers().len() == FULL);
        (1..=FULL as u32).rev().for_each(|n| assert_eq!(magazine.pop(), Some(n)));
        assert!(magazine.is_empty() && magazine.pop().is_none());
    }
}
