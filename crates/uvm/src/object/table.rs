//! Which pager an object's name stands for.
//!
//! Page records and the starts of I/O name objects by number. A completion, the page daemon and
//! `swapoff` come from there and find the pager here.
//!
//! I1: an object is entered once it can do I/O, and taken out when its last reference goes. I2: of
//! two objects that are alive and have one name, names being the lower 32 bits of ids, the second
//! is not entered: no I/O and no page is ever taken for another's.
//!
//! Locks: the table by its own, which ranks below the objects'; nothing is called under it.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use machine::lines::Ordering::Relaxed;

use machine::order::{self, Before};
use machine::{Held, Machine, NoMemory, Ordered, Unlocked};

use super::{Pager, Removed};
use crate::page::Gather;
use crate::Uvm;

/// Heap bytes that entering an object may need: a split of every level of the ordered map.
pub(crate) const NEW_BYTES: usize = 4096;

/// By name.
pub(crate) type ObjectTable<M> =
    Ordered<order::ObjectTable, <M as Machine>::Lock, BTreeMap<u32, Weak<dyn Pager<M>>>>;

impl<M: Machine> Uvm<M> {
    /// The registered object with the lowest name from `id` on, and its name.
    pub(crate) fn next_pager<P: Before<order::ObjectTable>>(
        &self,
        held: &mut Held<'_, P>,
        id: u32,
    ) -> Option<(u32, Arc<dyn Pager<M>>)> {
        let (pagers, _) = self.object_table.lock(held);
        pagers.range(id..).find_map(|(&id, pager)| Some((id, pager.upgrade()?)))
    }

    /// A pager of the library's own, [registered](Self::register).
    pub(crate) fn new_pager<T: Pager<M> + 'static>(
        &self,
        held: &mut Unlocked<'_>,
        pager: T,
    ) -> Result<Arc<T>, NoMemory> {
        self.mem().reserve_heap(size_of::<T>() + 64)?;
        let pager = Arc::new(pager);
        let known: Arc<dyn Pager<M>> = pager.clone();
        self.register(held, &known)?;
        Ok(pager)
    }

    /// Makes a pager known by its object's name: what a pager that does I/O needs before its first
    /// page. The first mapping does so for all others. It is forgotten with its object's last
    /// reference.
    ///
    /// Where I/O ends the library may be the last to hold the pager: dropping one must not sleep.
    ///
    /// # Errors
    /// [`NoMemory`] if the heap has no room; or 2^32 objects have been made since one that is alive
    /// got the same name (I2): the next has another.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let object = AnonObject::new(uvm, held, Pages(1))? as Arc<dyn Pager<SoftMachine>>;
    /// uvm.register(held, &object)?;
    /// assert!(uvm.pager(held, object.object().name()).is_some());
    /// # Ok(()) });
    /// ```
    pub fn register(
        &self,
        held: &mut Unlocked<'_>,
        pager: &Arc<dyn Pager<M>>,
    ) -> Result<(), NoMemory> {
        if pager.object().known.load(Relaxed) {
            return Ok(());
        }
        self.mem().reserve_heap(NEW_BYTES)?;
        let (mut pagers, _) = self.object_table.lock(held);
        let name = pager.object().name();
        let has_another = |other: &Weak<dyn Pager<M>>| {
            other.strong_count() != 0 && !core::ptr::addr_eq(other.as_ptr(), Arc::as_ptr(pager))
        };
        if pagers.get(&name).is_some_and(has_another) {
            return Err(NoMemory);
        }
        pagers.insert(name, Arc::downgrade(pager));
        pager.object().known.store(true, Relaxed);
        Ok(())
    }

    /// Gives a handle on a pager's object back; with the last reference its pager frees what it
    /// will.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let object = AnonObject::new(uvm, held, Pages(4))?;
    /// let request = MapRequest::object(object.clone(), Pages(0), Pages(4), Sharing::Shared);
    /// let at = uvm.map(held, space, &request)?;
    /// uvm.detach(held, &*object);
    /// store(uvm, space, at, b"the mapping still has it")?;
    /// # Ok(()) });
    /// ```
    pub fn detach(&self, held: &mut Unlocked<'_>, pager: &dyn Pager<M>) {
        let mut down = Gather::new();
        self.detach_into(held, pager, &mut down);
        down.perform(self.frames(), self.mem(), held);
    }

    pub(crate) fn detach_into(
        &self,
        held: &mut Unlocked<'_>,
        pager: &dyn Pager<M>,
        down: &mut Gather,
    ) {
        let object = pager.object();
        if object.refs.detach_if_shared() {
            return;
        }
        let mut is_last = false;
        loop {
            {
                let (mut body, mut h) = object.lock(held);
                is_last = is_last || object.refs.detach();
                if !is_last {
                    return;
                }
                // It keeps its name while it has pages: the page daemon and I/O find it by that.
                if pager.last_reference(self, &mut body, &mut h, down) == Removed::All {
                    // One that was refused may have another's name.
                    if object.known.swap(false, Relaxed) {
                        // Dropped when the lock is free.
                        let gone = self.object_table.lock(&mut h).0.remove(&object.name());
                        drop(gone);
                    }
                    return;
                }
            }
            down.perform(self.frames(), self.mem(), held);
            self.mem().pause(held);
        }
    }

    /// The pager of the object with a name, if it is registered and alive.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let file = file(uvm, held, "text", 1)?;
    /// let name = file.object().name();
    /// assert_eq!(uvm.pager(held, name).map(|pager| pager.kind()), Some("vnode"));
    /// # Ok(()) });
    /// ```
    pub fn pager<P: Before<order::ObjectTable>>(
        &self,
        held: &mut Held<'_, P>,
        id: u32,
    ) -> Option<Arc<dyn Pager<M>>> {
        self.object_table.lock(held).0.get(&id)?.upgrade()
    }
}
