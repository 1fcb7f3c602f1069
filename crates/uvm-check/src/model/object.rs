//! What operations on an object mean.

use super::*;

impl Object {
    /// New contents, which can be had whatever became of the old.
    pub(super) fn store(&mut self, index: u64, contents: Contents) {
        self.fates.remove(&index);
        self.pages.insert(index, contents);
    }
}

impl Model {
    pub(super) fn new_object(&mut self, o: usize, kind: Kind, len: u64) -> Expect {
        if self.slots[o].is_some() {
            return Expect::Skip;
        }
        self.slots[o] = Some(self.objects.len());
        self.objects.push(Object { kind, len, pages: BTreeMap::new(), fates: BTreeMap::new() });
        Expect::Done
    }

    pub(super) fn truncate(&mut self, o: usize, len: u64) -> Expect {
        let Some(object) = self.slots[o] else { return Expect::Skip };
        let object = &mut self.objects[object];
        object.len = len;
        object.pages.split_off(&len);
        object.fates.split_off(&len);
        Expect::Done
    }

    pub(super) fn object_write(&mut self, o: usize, page: u64, word: usize) -> Expect {
        let Some(object) = self.slots[o] else { return Expect::Skip };
        match self.object_shows(object, page) {
            Err(refusal) => Expect::Refused(refusal),
            Ok(mut contents) => {
                self.stores += 1;
                contents[word] = self.stores;
                self.objects[object].store(page, contents);
                Expect::Done
            }
        }
    }

    /// The object's pages in the span show zeroes, and those past its end nothing, as before.
    pub(super) fn punch(&mut self, o: usize, span: Span) -> Expect {
        let Some(object) = self.slots[o] else { return Expect::Skip };
        let object = &mut self.objects[object];
        for index in span.0..span.pages().end.min(object.len) {
            object.store(index, [0; WORDS]);
        }
        Expect::Done
    }
}
