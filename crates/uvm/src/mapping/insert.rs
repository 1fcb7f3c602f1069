//! Making a mapping: one call, one hold of the lock, every attribute.
//!
//! BSD VM made a mapping with default attributes and changed them after, in the open (1999, section
//! 3.1). Here the mapping appears with all of them. One that continues a neighbour becomes part of
//! it (`map::merge`).

use crate::page::Gather;
use machine::{Machine, Unlocked, Va, VaRange};

use crate::amap::cover::CHANGE_BYTES;
use crate::map::tree::Taken;
use crate::map::{
    choose_place, within, Backing, Change, Entry, Inherit, LockedMap, Map, MapError, MapRequest,
    ORef, Place, Sharing, Writes, NOWHERE,
};
use crate::{Space, Stop, Uvm};

impl<M: Machine> Uvm<M> {
    /// Makes a mapping and says where it lies. A fixed one replaces what was there in one step.
    /// Cost: O(log n).
    ///
    /// Shared zeroes are asked for as an object. Source: UVM's `uvm_map`; 1999, section 3.1.
    ///
    /// # Errors
    /// See [`MapError`].
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let file = file(uvm, held, "text", 1)?;
    /// let shared = MapRequest::object(file, Pages(0), Pages(1), Sharing::Shared);
    /// let text = uvm.map(held, space, &shared.prot(Prot::READ))?;
    /// let memory = uvm.map(held, space, &MapRequest::zero(Pages(4)))?;
    /// assert_eq!((&load(uvm, space, text)?, load(uvm, space, memory)?), (b"text", [0; 4]));
    /// # Ok(()) });
    /// ```
    pub fn map(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        request: &MapRequest<M>,
    ) -> Result<Va, MapError> {
        self.check_request(&space.map, request)?;
        if let Backing::Object { pager, .. } = &request.backing {
            self.register(held, pager)?;
        }
        if request.wired {
            self.note_wired(space);
        }
        let mut down = Gather::new();
        let mut old = Taken::new();
        let replaced = match request.place {
            Place::Fixed(va) => request.range_at(va, &space.map),
            _ => NOWHERE,
        };
        let mut ahead = [self.forget_ahead(held, space, replaced)];
        let reserve = Change::REPLACE.bytes::<M>() + CHANGE_BYTES;
        let made = self.attempt_ahead(held, &mut ahead, reserve, |held, reserved, lock, ahead| {
            let place = request.place.fixed();
            let concerned = place.map_or(NOWHERE, |va| request.range_at(va, &space.map));
            let (mut tree, mut h) = space.map.lock_as(lock, self.mem(), held, concerned)?;
            let map = &mut space.locked(self, &mut tree, &mut h);
            if map.is_refilled(lock, ahead) {
                return Ok(None);
            }
            let start = choose_place(map.tree, &space.map, request.len, request.place)?;
            // As on Linux, one more than may be had by cutting.
            if !map.has_room(0) {
                return Err(Stop::Fail(MapError::TooMany));
            }
            let range = VaRange::new(start, start + request.len);
            map.exclude(range);
            if matches!(request.place, Place::Fixed(_)) && !map.tree.is_free(range) {
                Change::REPLACE.ensure(map.tree, CHANGE_BYTES, reserved)?;
                map.take_out(range, &mut old, &mut down);
            } else {
                Change::ADD.ensure(map.tree, CHANGE_BYTES, reserved)?;
            }
            map.place_entry(range, request);
            Ok(Some(start))
        });
        self.release_entries(held, &mut old, &mut down);
        down.perform(self.frames(), self.mem(), held);
        if made.is_err() {
            self.wire_ahead_again(held, &ahead);
        }
        made
    }

    fn check_request(&self, map: &Map<M>, request: &MapRequest<M>) -> Result<(), MapError> {
        let (first, zero) = match &request.backing {
            Backing::Zero => (0, true),
            Backing::Object { offset, .. } => (offset.0, false),
        };
        let indices = request
            .len
            .0
            .checked_add(first)
            .is_some_and(|end| end <= u64::MAX >> machine::PAGE_SHIFT);
        let at = request.place.fixed();
        let placed = at.is_none_or(|va| within(map.bounds, va, request.len).is_some());
        let shared_zero = zero && request.sharing == Sharing::Shared;
        if request.len.0 == 0
            || !indices
            || !placed
            || shared_zero
            || !request.max_prot.contains(request.prot)
        {
            return Err(MapError::Invalid);
        }
        if request.len > map.bounds.pages() {
            return Err(MapError::NoSpace);
        }
        Ok(())
    }
}

impl<M: Machine> LockedMap<'_, '_, M> {
    /// Adds the mapping, as part of the entry before it where that is the same kind of memory.
    fn place_entry(&mut self, range: VaRange, request: &MapRequest<M>) {
        let inherit = request.inherit.unwrap_or(match request.sharing {
            Sharing::Private => Inherit::Copy,
            Sharing::Shared => Inherit::Share,
        });
        let object = match &request.backing {
            Backing::Zero => None,
            Backing::Object { pager, offset } => {
                Some(ORef { pager: pager.clone(), offset: *offset })
            }
        };
        let writes = match request.sharing {
            Sharing::Private => Writes::NeedsCopy,
            Sharing::Shared => Writes::Shared,
        };
        let entry = Entry {
            object,
            prot: request.prot,
            max_prot: request.max_prot,
            inherit,
            advice: request.advice,
            writes,
            wired: request.wired,
            cpu: self.uvm.mem().cpu() as u8,
            ..Entry::zeroes(range, request.name.clone())
        };
        let is_anywhere = request.place.fixed().is_none();
        self.add(entry, is_anywhere);
    }
}
