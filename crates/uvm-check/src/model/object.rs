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
        if self.slots[o].is_some() || (kind == Kind::Device && self.devices() == RUNS) {
            return Expect::Skip;
        }
        let len = if kind == Kind::Device { len.min(RUN) } else { len };
        self.slots[o] = Some(self.objects.len());
        self.objects.push(Object {
            kind,
            len,
            pages: BTreeMap::new(),
            fates: BTreeMap::new(),
            holes: BTreeSet::new(),
            made: BTreeSet::new(),
        });
        Expect::Done
    }

    /// Devices that a mapping or a slot refers to.
    fn devices(&self) -> usize {
        let alive = self.alive(&Space::new());
        alive.into_iter().filter(|&object| self.objects[object].kind == Kind::Device).count()
    }

    /// The object that a slot names, if a host changes the length of such and frees their pages.
    pub(super) fn changeable(&self, o: usize) -> Option<usize> {
        self.slots[o]
            .filter(|&n| matches!(self.objects[n].kind, Kind::Anon | Kind::Within | Kind::File))
    }

    pub(super) fn truncate(&mut self, o: usize, len: u64) -> Expect {
        let Some(number) = self.changeable(o) else { return Expect::Skip };
        self.lose_pins(
            |is| matches!(is, Identity::Object(n, index) if n == number && index >= len),
        );
        let object = &mut self.objects[number];
        object.len = len;
        object.pages.split_off(&len);
        object.fates.split_off(&len);
        object.holes.split_off(&len);
        object.made.split_off(&len);
        Expect::Done
    }

    pub(super) fn object_write(&mut self, o: usize, page: u64, word: usize) -> Expect {
        let Some(object) = self.slots[o].filter(|&n| self.objects[n].kind != Kind::Rom) else {
            return Expect::Skip;
        };
        match self.object_shows(object, page) {
            Err(refusal) => Expect::Refused(refusal),
            Ok(_) if !self.has_room(object, page) => Expect::Refused(Refusal::NoSpace),
            Ok(_) if !self.make(&Space::new(), object, page) => Expect::Refused(Refusal::NoSpace),
            Ok(mut contents) => {
                self.fill_hole(object, page);
                self.stores += 1;
                contents[word] = self.stores;
                self.objects[object].store(page, contents);
                Expect::Done
            }
        }
    }

    /// Whether a page of an object may be stored to: it is no hole, or the disk has room for it.
    pub(super) fn has_room(&self, object: usize, index: u64) -> bool {
        self.room != 0 || !self.objects[object].holes.contains(&index)
    }

    /// Takes room for a page from the disk, if it is a hole. A host may have done so for a store
    /// that was refused for another reason then.
    pub fn fill_hole(&mut self, object: usize, index: u64) {
        if self.objects[object].holes.remove(&index) {
            self.room -= 1;
        }
    }

    /// Has an object get a page of its own, which its first use makes; says whether the quota
    /// allows that. `space` is one that an operation has in its hands.
    pub(super) fn make(&mut self, space: &Space, object: usize, index: u64) -> bool {
        let o = &self.objects[object];
        if o.kind != Kind::Within || o.made.contains(&index) {
            return true;
        }
        let fits = self.made(space) < self.quota;
        if fits {
            self.objects[object].made.insert(index);
        }
        fits
    }

    /// Pages that objects within the quota have, as far as a mapping or a slot refers to the
    /// object.
    pub fn made(&self, space: &Space) -> u64 {
        self.alive(space).into_iter().map(|object| self.objects[object].made.len() as u64).sum()
    }

    /// Objects that a mapping or a slot refers to. `space` as for [`make`](Self::make).
    pub fn alive(&self, space: &Space) -> BTreeSet<usize> {
        let pages = self.all_pages().chain(space.values()).filter_map(|at| at.object);
        pages.map(|(object, _)| object).chain(self.slots.iter().flatten().copied()).collect()
    }

    /// The object's pages in the span show zeroes, and those past its end nothing, as before.
    pub(super) fn punch(&mut self, o: usize, span: Span) -> Expect {
        let Some(number) = self.changeable(o) else { return Expect::Skip };
        self.lose_pins(
            |is| matches!(is, Identity::Object(n, i) if n == number && span.pages().contains(&i)),
        );
        let object = &mut self.objects[number];
        object.made.retain(|index| !span.pages().contains(index));
        for index in span.0..span.pages().end.min(object.len) {
            object.store(index, [0; WORDS]);
            if object.kind == Kind::File {
                object.holes.insert(index);
            }
        }
        Expect::Done
    }
}
