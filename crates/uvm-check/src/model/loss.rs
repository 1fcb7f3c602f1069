//! What a device's failure to read may cost.
//!
//! The model doesn't know what is on a device, so it can't say whose contents a failed block held.
//! It knows what they were: whatever shows the same may be lost, and is *doubtful* until an access
//! tells. An access to doubtful contents may see them, and they are sure again; or it says `Io`,
//! and then it must say so for ever, as must all pages that were copied from it. A file's page is
//! read again by the next access: its doubt is good for one `Io`.
//!
//! So a failure that costs more than what was on the block is found, unless it hits equal contents.

use super::*;
use crate::host::Lost;

/// What an access is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Target {
    Cell(usize),
    Object(usize, u64),
}

impl Model {
    /// A block could not be read: what it held is in doubt, wherever it shows.
    pub fn doubt(&mut self, lost: &Lost) {
        if let Some(object) = lost.object {
            self.objects[object].doubt(lost.block);
            return;
        }
        for cell in &mut self.cells {
            if cell.own == Some(lost.contents) && cell.fate == Fate::Sure {
                cell.fate = Fate::Doubtful;
            }
        }
        for object in
            self.objects.iter_mut().filter(|o| matches!(o.kind, Kind::Anon | Kind::Within))
        {
            let same = object.pages.iter().filter(|(_, contents)| **contents == lost.contents);
            for index in same.map(|(&index, _)| index).collect::<Vec<_>>() {
                object.doubt(index);
            }
        }
    }

    /// Whether anything that the operation needs is in doubt.
    pub fn doubts(&self, op: &Op) -> bool {
        match *op {
            Op::Wire { s, span }
            | Op::Pin { s, span, .. }
            | Op::Loan { s, span, .. }
            | Op::Give { s, span, .. }
            | Op::Inspect { s, span }
            | Op::Patch { s, span, .. } => {
                span.pages().any(|page| self.is_doubtful(self.target(s, page)))
            }
            Op::LoanObject { o, span, .. } => span.pages().any(|page| {
                self.is_doubtful(self.slots[o].map(|object| Target::Object(object, page)))
            }),
            Op::Remap { s, .. } | Op::RemapKeep { s, .. } => {
                (0..WINDOW).any(|page| self.is_doubtful(self.target(s, page)))
            }
            _ => self.is_doubtful(self.target_of(op)),
        }
    }

    /// Whether anything at all is in doubt.
    pub fn doubts_anything(&self) -> bool {
        let mut objects = self.objects.iter().flat_map(|object| object.fates.values());
        self.cells.iter().any(|cell| cell.fate == Fate::Doubtful)
            || objects.any(|fate| *fate == Fate::Doubtful)
    }

    /// An access said `Io`: the model in which that is right, if what it is about was in doubt.
    #[must_use]
    pub fn after_loss(&self, op: &Op) -> Option<Model> {
        let target = self.target_of(op);
        let mut after = self.clone();
        match target {
            _ if !self.is_doubtful(target) => return None,
            None => return None,
            Some(Target::Cell(cell)) => after.cells[cell].fate = Fate::Lost,
            Some(Target::Object(object, index)) => {
                let object = &mut after.objects[object];
                match object.kind {
                    Kind::Anon | Kind::Within => object.fates.insert(index, Fate::Lost),
                    Kind::File | Kind::Device | Kind::Rom => object.fates.remove(&index),
                };
            }
        }
        Some(after)
    }

    /// An access saw its contents: they are sure.
    pub fn trust(&mut self, op: &Op) {
        match self.target_of(op) {
            Some(Target::Cell(cell)) if self.cells[cell].fate == Fate::Doubtful => {
                self.cells[cell].fate = Fate::Sure;
            }
            Some(Target::Object(object, index)) => {
                let fates = &mut self.objects[object].fates;
                if fates.get(&index) == Some(&Fate::Doubtful) {
                    fates.remove(&index);
                }
            }
            _ => {}
        }
    }

    fn is_doubtful(&self, target: Option<Target>) -> bool {
        match target {
            None => false,
            Some(Target::Cell(cell)) => self.cells[cell].fate == Fate::Doubtful,
            Some(Target::Object(object, index)) => {
                self.objects[object].fates.get(&index) == Some(&Fate::Doubtful)
            }
        }
    }

    fn target_of(&self, op: &Op) -> Option<Target> {
        match *op {
            Op::Read { s, page, .. } | Op::Write { s, page, .. } | Op::Execute { s, page, .. } => {
                self.target(s, page)
            }
            Op::ObjectRead { o, page } | Op::ObjectWrite { o, page, .. } => {
                Some(Target::Object(self.slots[o]?, page))
            }
            _ => None,
        }
    }

    fn target(&self, s: usize, page: u64) -> Option<Target> {
        let at = self.page(s, page)?;
        match (at.writes, at.object) {
            (Writes::Cell, None) => Some(Target::Cell(at.cell)),
            (Writes::Cell, Some(_)) if self.cells[at.cell].own.is_some() => {
                Some(Target::Cell(at.cell))
            }
            (_, Some((object, index))) => Some(Target::Object(object, index)),
            (Writes::Object, None) => None,
        }
    }
}

impl Object {
    fn doubt(&mut self, index: u64) {
        self.fates.entry(index).or_insert(Fate::Doubtful);
    }
}
