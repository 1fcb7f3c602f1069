//! A file for the file pager.

use std::sync::Arc;

use machine::order::Nothing;
use machine::{Held, NoMemory, PageNo, Pages};
use uvm::{GetError, Transfer, Uvm, Vnode, VnodePager};
use uvm_soft::{host, SoftMachine};

use super::store::{Keeps, Line, Store, Way};
use crate::desk::Desk;
use crate::model::{Contents, BAD_PAGE};

/// A file and its pager. One page can't be read ([`BAD_PAGE`]) until something else has been stored
/// there.
pub struct File<M: Desk = SoftMachine> {
    store: Arc<Store<M>>,
    pager: Arc<VnodePager<M>>,
}

struct Node<M: Desk>(Arc<Store<M>>);

impl<M: Desk> File<M> {
    /// A file of `len` pages, of the object with this number in the model.
    ///
    /// # Errors
    /// [`NoMemory`] from the pager.
    pub fn new(
        uvm: &Arc<Uvm<M>>,
        held: &mut Held<'_, Nothing>,
        line: &Arc<Line>,
        object: usize,
        len: Pages,
    ) -> Result<File<M>, NoMemory> {
        let store = Store::new(Keeps::File(object), line, uvm);
        store.spoil(BAD_PAGE);
        let node = {
            let _host = host();
            Box::new(Node(store.clone()))
        };
        let pager = VnodePager::new(uvm, held, node, len)?;
        Ok(File { store, pager })
    }

    /// Its pager.
    pub fn pager(&self) -> &Arc<VnodePager<M>> {
        &self.pager
    }

    /// Drops what the disk has from a page on.
    pub fn cut(&self, len: u64) {
        self.store.cut(len);
    }

    /// Gives the disk's pages in a range up: they are holes, and show zeroes.
    pub fn punch(&self, range: std::ops::Range<u64>) {
        self.store.punch(range);
    }

    /// Takes room on the disk for a page, if it is a hole.
    ///
    /// # Errors
    /// [`GetError::NoSpace`] if the disk is full.
    pub fn fill_hole(&self, index: u64) -> Result<(), GetError> {
        self.store.fill_hole(index)
    }

    /// What the disk has of a page.
    pub fn stored(&self, index: u64) -> Contents {
        self.store.stored(index)
    }
}

impl<M: Desk> Vnode<M> for Node<M> {
    fn read(&self, machine: &M, index: Pages, pages: &[PageNo]) -> Transfer {
        self.0.transfer(machine, Way::Read, index.0, pages)
    }

    fn write(&self, machine: &M, index: Pages, pages: &[PageNo]) -> Transfer {
        self.0.transfer(machine, Way::Write, index.0, pages)
    }

    fn fill_hole(&self, _: &M, index: Pages) -> Result<(), GetError> {
        self.0.fill_hole(index.0)
    }
}
