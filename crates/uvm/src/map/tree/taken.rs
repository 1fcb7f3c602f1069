//! Entries that were taken out of a tree, or made to be put in.
//!
//! One is the common case, of an unmapping, and needs no node.

use machine::{Va, VaRange};

use super::build::Builder;
use super::{Span, Tree};

/// See the module. Either of both is empty.
pub(crate) struct Taken<E> {
    pub(super) one: Option<E>,
    pub(super) more: Tree<E>,
}

impl<E> Default for Taken<E> {
    fn default() -> Self {
        Taken::new()
    }
}

impl<E: Span> From<Tree<E>> for Taken<E> {
    fn from(mut more: Tree<E>) -> Self {
        let only = more.before(Va(u64::MAX)).filter(|_| more.len() == 1);
        let one = only.map(|e| e.range().start).and_then(|va| more.remove(va));
        Taken { one, more }
    }
}

impl<E> Taken<E> {
    pub(crate) const fn new() -> Self {
        Taken { one: None, more: Tree::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.one.is_none() && self.more.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        usize::from(self.one.is_some()) + self.more.len()
    }

    /// Takes all entries out, some at a time, the last first.
    pub(crate) fn drain(&mut self, mut some: impl FnMut(&[E])) {
        if let Some(one) = self.one.take() {
            return some(&[one]);
        }
        let Some(mut root) = core::mem::take(&mut self.more).root else { return };
        while let Some(entries) = root.pop_last() {
            some(&entries);
        }
    }
}

impl<E: Span> Taken<E> {
    /// As a tree; one entry needs heap for a node.
    #[cfg(test)]
    pub(crate) fn into_tree(self) -> Tree<E> {
        let Taken { one, mut more } = self;
        one.into_iter().for_each(|entry| more.insert(entry));
        more
    }

    /// Calls `each` on every entry, in order.
    pub(crate) fn each(&self, mut each: impl FnMut(&E)) {
        if let Some(one) = &self.one {
            return each(one);
        }
        self.more.each(ALL, each);
    }

    /// What `make` makes of each entry, in order, at the same places. [Heap](super::built_bytes)
    /// for it has been reserved.
    pub(crate) fn map(&self, mut make: impl FnMut(&E) -> E) -> Taken<E> {
        if let Some(one) = &self.one {
            return Taken { one: Some(make(one)), more: Tree::new() };
        }
        let mut more = Builder::new();
        self.more.each(ALL, |e| more.push(make(e)));
        Taken { one: None, more: more.finish() }
    }

    /// Calls `each` on every entry, in order, to change; ranges must stay.
    pub(crate) fn each_mut(&mut self, mut each: impl FnMut(&mut E)) {
        if let Some(one) = &mut self.one {
            return each(one);
        }
        self.more.each_mut(ALL, each);
    }

    /// Moves all entries by as many bytes as lie between two addresses.
    pub(crate) fn shift(&mut self, from: Va, to: Va) {
        self.one.iter_mut().for_each(|e| e.move_to(Va(e.range().start.0 - from.0 + to.0)));
        if let Some(root) = &mut self.more.root {
            root.shift(from, to);
        }
    }
}

/// All addresses.
const ALL: VaRange = VaRange::new(Va(0), Va(u64::MAX));
