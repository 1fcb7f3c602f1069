//! Which amaps have loaned pages in their slots, so that the page daemon finds those slots.
//!
//! A page's record names its owner, and a slot that holds the loaned page isn't it. So an amap that
//! gets such a page comes into a table, by a name of its own, and stays there until no entry refers
//! to its slots.
//!
//! I1: an amap with a loaned page in a slot is in the table.
//!
//! Locks: the table by its own, of the object table's level; nothing is called under it. Not taken:
//! a walk over all spaces, which the library doesn't know; the slot's place in the record, which
//! has no room for it, and of which there may be thousands.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use machine::lines::{AtomicU64, Ordering::Relaxed};

use machine::order::{self, Before};
use machine::{Held, Machine, Ordered};

use crate::amap::{Amap, AmapBody};

/// Heap bytes that entering an amap may need: a split of every level of the ordered map.
pub(crate) const ENTER_BYTES: usize = 4096;

/// An amap's name in the table; 0 if it isn't there.
pub(crate) type Name = u64;

type Table<M> = BTreeMap<Name, Weak<Amap<M>>>;

pub(crate) struct Borrowers<M: Machine> {
    table: Ordered<order::ObjectTable, M::Lock, Table<M>>,
    last: AtomicU64,
}

impl<M: Machine> Borrowers<M> {
    pub(crate) fn new() -> Self {
        Borrowers { table: Ordered::new(BTreeMap::new()), last: AtomicU64::new(0) }
    }

    /// Enters an amap whose body is locked, if it isn't there. The heap has been reserved.
    #[inline]
    pub(crate) fn enter(
        &self,
        held: &mut Held<'_, order::Amap>,
        amap: &Arc<Amap<M>>,
        body: &mut AmapBody<M>,
    ) {
        if body.borrower == 0 {
            body.borrower = self.last.fetch_add(1, Relaxed) + 1;
            self.table.lock(held).0.insert(body.borrower, Arc::downgrade(amap));
        }
    }

    /// Takes an amap out, if it is there.
    #[inline]
    pub(crate) fn leave(&self, held: &mut Held<'_, order::Amap>, body: &mut AmapBody<M>) {
        let name = core::mem::take(&mut body.borrower);
        if name != 0 {
            let gone = self.table.lock(held).0.remove(&name);
            drop(gone);
        }
    }

    /// The highest name so far.
    pub(crate) fn last(&self) -> Name {
        self.last.load(Relaxed)
    }

    /// The amap with the lowest name from `name` on, and its name.
    pub(crate) fn next<P: Before<order::ObjectTable>>(
        &self,
        held: &mut Held<'_, P>,
        name: Name,
    ) -> Option<(Name, Arc<Amap<M>>)> {
        let (table, _) = self.table.lock(held);
        table.range(name..).find_map(|(&name, amap)| Some((name, amap.upgrade()?)))
    }
}
