//! What the system says about its maps, compared with the model: `describe` (proc/maps) and
//! `resident` (mincore).

use super::*;

impl<M: Desk> World<M> {
    /// Every entry says what the model says of its pages; resident is whatever a translation or a
    /// lock proves to be.
    pub(super) fn check_maps(&self) -> Result<(), String> {
        for s in 0..SPACES {
            if self.spaces[s].is_some() {
                self.check_entries(s).map_err(|e| format!("space {s} {e}"))?;
                self.check_resident(s).map_err(|e| format!("space {s} {e}"))?;
            }
        }
        Ok(())
    }

    fn check_entries(&self, s: usize) -> Result<(), String> {
        let mut result = Ok(0);
        self.uvm.describe(&mut ThreadCtx::new().held(), self.space(s), |entry| {
            if let Ok(pages) = result {
                result =
                    self.check_entry(s, entry).map(|()| pages + entry.range.pages().0 as usize);
            }
        });
        let (described, mapped) =
            (result?, self.model.spaces[s].as_ref().map_or(0, |space| space.len()));
        if described == mapped {
            Ok(())
        } else {
            Err(format!("is described with {described} pages of {mapped}"))
        }
    }

    fn check_entry(&self, s: usize, entry: &EntryInfo) -> Result<(), String> {
        for (n, at) in entry.range.iter_pages().enumerate() {
            let page = (at.0 - BASE.0) >> PAGE_SHIFT;
            let Some(model) = self.model.page(s, page) else {
                return Err(format!("page {page} is described but not mapped"));
            };
            let object = model.object.map(|(o, index)| (self.objects[o].object().id(), index));
            let ought = (
                prot(model.rights),
                if model.writes == Writes::Object { Sharing::Shared } else { Sharing::Private },
                inheritance(model.inherit),
                advice(model.advice),
                model.wired,
                object,
            );
            let below =
                entry.layers.object.as_ref().map(|&(_, id, first)| (id, first.0 + n as u64));
            let said = (entry.prot, entry.sharing, entry.inherit, entry.advice, entry.wired, below);
            if said != ought {
                return Err(format!("page {page} is described as {said:?}, ought to be {ought:?}"));
            }
        }
        let anons = entry.layers.amap.map_or(0, |(_, anons, _)| anons) + entry.layers.borrowed;
        if anons > entry.range.pages().0 as usize {
            return Err(format!("has an entry with {anons} anons in {:?}", entry.range));
        }
        Ok(())
    }

    fn check_resident(&self, s: usize) -> Result<(), String> {
        let mut resident = Vec::new();
        let (window, space) = (range(Span(0, WINDOW)), self.space(s));
        let covered = self
            .uvm
            .resident(&mut ThreadCtx::new().held(), space, window, |at| resident.push(at.0));
        if covered
            != (self.model.spaces[s].as_ref().map_or(0, |space| space.len()) == WINDOW as usize)
        {
            return Err(format!("is said to be mapped without a hole: {covered}"));
        }
        if let Some(page) = resident.iter().find(|&&page| self.model.page(s, page).is_none()) {
            return Err(format!("page {page} is said to be resident and isn't mapped"));
        }
        let translated = self.machine().mappings(space.pmap());
        for page in translated.iter().map(|m| (m.va.0 - BASE.0) >> PAGE_SHIFT) {
            if !resident.contains(&page) {
                return Err(format!("page {page} is translated and said not to be resident"));
            }
        }
        Ok(())
    }
}
