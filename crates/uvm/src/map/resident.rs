//! Which pages of a range are in memory: mincore.

use machine::{order, Held, Machine, PageRange, Pages, Pmap, Unlocked, VaRange};

use crate::{Space, Uvm};

impl<M: Machine> Uvm<M> {
    /// Which pages of a range are in memory, as mincore reports: `each` gets every such page's
    /// place in the range. Says whether the range has no hole.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 3)?;
    /// let mut indices = Vec::new();
    /// assert!(uvm.resident(held, space, range, |index| indices.push(index.0)));
    /// assert_eq!(indices, [0, 1, 2]);
    /// # Ok(()) });
    /// ```
    pub fn resident(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        range: PageRange,
        mut each: impl FnMut(Pages),
    ) -> bool {
        let range = VaRange::from(range);
        let (tree, mut h) = space.map.lock(self.mem(), held, range);
        tree.each(range, |e| {
            for va in e.range.intersect(range).iter_pages() {
                let anon = e.amap.as_ref().and_then(|a| {
                    let (body, mut h) = a.amap.body.lock(&mut h);
                    let number = body.slots.get(e.slot(a, va))?;
                    self.holds(&mut h, number).map(|(is_resident, _)| is_resident)
                });
                let is_in_object = |h: &mut Held<'_, order::Map>| {
                    e.object.as_ref().is_some_and(|o| {
                        let (body, _) = o.pager.object().lock(h);
                        body.page(e.index(o, va)).is_some()
                    })
                };
                // Some pagers show pages of their own that are in no table.
                let is_shown = || self.mem().pmap().extract(&space.pmap, va).is_some();
                if anon.unwrap_or_else(|| is_in_object(&mut h) || is_shown()) {
                    each(va - range.start);
                }
            }
        });
        tree.is_covered(range)
    }
}
