//! A file for the file pager: its pages on a "disk" in memory, read at once, later, or not at all.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use machine::order::Nothing;
use machine::{Held, Machine, NoMemory, PageNo, Pages, ThreadCtx, PAGE_SIZE};
use uvm::{Outcome, Transfer, Vnode, VnodePager};

use crate::model::{file_contents, Contents, BAD_PAGE};
use crate::world::{word_offset, Soft, System};

type Disk = Mutex<BTreeMap<u64, Box<[u8; PAGE_SIZE]>>>;

/// A file and its pager.
pub(crate) struct File {
    disk: Arc<Disk>,
    pager: Arc<VnodePager<Soft>>,
}

struct Node {
    disk: Arc<Disk>,
    /// Whom to tell of a read that arrives later.
    uvm: Weak<System>,
}

impl File {
    pub(crate) fn new(uvm: &Arc<System>, held: &mut Held<'_, Nothing>, len: Pages) -> Result<File, NoMemory> {
        let disk = Arc::new(Disk::default());
        let node = Node { disk: disk.clone(), uvm: Arc::downgrade(uvm) };
        let pager = VnodePager::new(uvm, held, Box::new(node), len)?;
        Ok(File { disk, pager })
    }

    pub(crate) fn pager(&self) -> &Arc<VnodePager<Soft>> {
        &self.pager
    }

    /// Drops what the disk has from a page on.
    pub(crate) fn cut(&self, len: u64) {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner).split_off(&len);
    }

    /// Makes the disk's pages in a range zero.
    pub(crate) fn punch(&self, range: std::ops::Range<u64>) {
        let mut disk = self.disk.lock().unwrap_or_else(PoisonError::into_inner);
        range.for_each(|index| {
            disk.insert(index, Box::new([0; PAGE_SIZE]));
        });
    }

    /// What the disk has of a page.
    pub(crate) fn stored(&self, index: u64) -> Contents {
        let bytes = stored(&self.disk, index);
        std::array::from_fn(|word| {
            let at = word_offset(word);
            u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
        })
    }
}

impl Node {
    fn is_stored(&self, index: u64) -> bool {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&index)
    }
}

fn stored(disk: &Disk, index: u64) -> Box<[u8; PAGE_SIZE]> {
    if let Some(bytes) = disk.lock().unwrap_or_else(PoisonError::into_inner).get(&index) {
        return bytes.clone();
    }
    let mut bytes = Box::new([0; PAGE_SIZE]);
    for (word, value) in file_contents(index).into_iter().enumerate() {
        let at = word_offset(word);
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

impl Vnode<Soft> for Node {
    fn read(&self, machine: &Soft, index: Pages, pages: &[PageNo]) -> Transfer {
        let list: Vec<(u64, PageNo)> = (index.0..).zip(pages.iter().copied()).collect();
        let bad = list.iter().any(|&(n, _)| n == BAD_PAGE && !self.is_stored(n));
        if index.0.is_multiple_of(2) && !bad {
            fill(machine, &self.disk, &list);
            return Transfer::Done;
        }
        let (disk, uvm) = (self.disk.clone(), self.uvm.clone());
        machine.defer(move |machine| {
            let Some(uvm) = uvm.upgrade() else { return };
            fill(machine, &disk, &list);
            let outcome = if bad { Outcome::Failed } else { Outcome::Done };
            let pages: Vec<PageNo> = list.iter().map(|&(_, page)| page).collect();
            uvm.read_done(&mut ThreadCtx::new().held(), &pages, outcome);
        });
        Transfer::Started
    }

    fn write(&self, machine: &Soft, index: Pages, pages: &[PageNo]) -> Transfer {
        for (n, &page) in (index.0..).zip(pages) {
            let mut bytes = Box::new([0; PAGE_SIZE]);
            machine.read(page, 0, &mut bytes[..]);
            self.disk.lock().unwrap_or_else(PoisonError::into_inner).insert(n, bytes);
        }
        Transfer::Done
    }
}

fn fill(machine: &Soft, disk: &Disk, list: &[(u64, PageNo)]) {
    for &(index, page) in list {
        machine.write(page, 0, &stored(disk, index)[..]);
    }
}
