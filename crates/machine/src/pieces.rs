//! Arrays of a length that is set by the machine or its devices, in pieces of 16 KiB, the most that
//! a host promises.
//!
//! ```text
//!   rows -> row of 512 pieces -> piece of 16 KiB of items
//! ```
//! The road not taken is one allocation: a host can't promise it of its heap, once that has been in
//! use for long.

use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

use crate::NoMemory;

/// Bytes of a piece, at most.
const PIECE: usize = 16 << 10;
/// Pieces of a row.
const ROW: usize = 512;

/// See the module.
///
/// ```
/// use machine::Pieces;
/// let mut slots = Pieces::new(100_000, &0u64)?;
/// slots[99_999] = 7;
/// assert_eq!((slots[0], slots[99_999]), (0, 7));
/// # Ok::<(), machine::NoMemory>(())
/// ```
pub struct Pieces<T> {
    rows: Vec<Vec<Vec<T>>>,
}

impl<T: Clone> Pieces<T> {
    /// Items of a piece.
    const ITEMS: usize = PIECE / size_of::<T>();

    /// `len` copies of an item.
    ///
    /// # Errors
    /// [`NoMemory`]: it is that long, or the heap that short.
    ///
    /// ```
    /// assert!(machine::Pieces::new(usize::MAX / 64, &0u64).is_err());
    /// ```
    pub fn new(len: usize, item: &T) -> Result<Self, NoMemory> {
        let (pieces, mut rows) = (len.div_ceil(Self::ITEMS), Vec::new());
        if pieces.div_ceil(ROW) * size_of::<Vec<Vec<T>>>() > PIECE {
            return Err(NoMemory);
        }
        reserve(&mut rows, pieces.div_ceil(ROW))?;
        for first in (0..pieces).step_by(ROW) {
            let mut row = Vec::new();
            reserve(&mut row, ROW.min(pieces - first))?;
            for at in first..pieces.min(first + ROW) {
                let (mut piece, items) = (Vec::new(), Self::ITEMS.min(len - at * Self::ITEMS));
                reserve(&mut piece, items)?;
                piece.resize(items, item.clone());
                row.push(piece);
            }
            rows.push(row);
        }
        Ok(Pieces { rows })
    }

    /// Heap bytes of so many items: what a caller reserves before it makes them.
    ///
    /// ```
    /// assert!(machine::Pieces::<u64>::bytes(1000) >= 8000);
    /// ```
    #[must_use]
    pub const fn bytes(len: usize) -> usize {
        let pieces = len.div_ceil(Self::ITEMS);
        let rows = pieces.div_ceil(ROW);
        len * size_of::<T>() + (pieces + rows) * (size_of::<Vec<T>>() + 16) + 16
    }

    /// The items, in order.
    ///
    /// ```
    /// let pieces = machine::Pieces::new(3000, &1u64)?;
    /// assert_eq!(pieces.iter().sum::<u64>(), 3000);
    /// # Ok::<(), machine::NoMemory>(())
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = &T> + Clone {
        self.rows.iter().flatten().flatten()
    }
}

fn reserve<T>(items: &mut Vec<T>, count: usize) -> Result<(), NoMemory> {
    items.try_reserve_exact(count).map_err(|_| NoMemory)
}

impl<T: Clone> Index<usize> for Pieces<T> {
    type Output = T;
    #[inline]
    fn index(&self, at: usize) -> &T {
        let piece = at / Self::ITEMS;
        &self.rows[piece / ROW][piece % ROW][at % Self::ITEMS]
    }
}

impl<T: Clone> IndexMut<usize> for Pieces<T> {
    #[inline]
    fn index_mut(&mut self, at: usize) -> &mut T {
        let piece = at / Self::ITEMS;
        &mut self.rows[piece / ROW][piece % ROW][at % Self::ITEMS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_lie_in_pieces_that_a_host_promises() {
        for len in [0, 1, 2047, 2048, 2049, 2048 * 512 + 1] {
            let mut p = Pieces::new(len, &0u64).unwrap();
            (0..len).for_each(|at| p[at] = at as u64);
            assert!(p.iter().copied().eq(0..len as u64));
            let pieces = p.rows.iter().flatten();
            assert!(pieces.clone().all(|piece| piece.capacity() * size_of::<u64>() <= PIECE));
        }
        assert!(Pieces::new(usize::MAX / 64, &0u64).is_err());
    }
}
