//! A file for the file pager: its pages on a "disk" in memory, read at once, later, or not at all.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use machine::{Machine, NoMemory, PageNo, Pages, ThreadCtx, PAGE_SIZE};
use uvm::{Read, Vnode, VnodePager};

use crate::model::{file_contents, Contents, BAD_PAGE};
use crate::world::{word_offset, Soft, System};

type Disk = Mutex<BTreeMap<u64, Box<[u8; PAGE_SIZE]>>>;

/// A file and its pager.
pub(crate) struct File {
    disk: Arc<Disk>,
    pager: Arc<VnodePager<Soft>>,
}

/// What a read that arrives later needs to say so.
struct Arrival {
    uvm: Weak<System>,
    pager: OnceLock<Weak<VnodePager<Soft>>>,
}

struct Node {
    disk: Arc<Disk>,
    arrival: Arc<Arrival>,
}

impl File {
    pub(crate) fn new(uvm: &Arc<System>, len: Pages) -> Result<File, NoMemory> {
        let disk = Arc::new(Disk::default());
        let arrival = Arc::new(Arrival { uvm: Arc::downgrade(uvm), pager: OnceLock::new() });
        let node = Node { disk: disk.clone(), arrival: arrival.clone() };
        let pager = VnodePager::new(uvm, Box::new(node), len)?;
        arrival.pager.get_or_init(|| Arc::downgrade(&pager));
        Ok(File { disk, pager })
    }

    pub(crate) fn pager(&self) -> &Arc<VnodePager<Soft>> {
        &self.pager
    }

    /// Drops what the disk has from a page on.
    pub(crate) fn cut(&self, len: u64) {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner).split_off(&len);
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
    fn read(&self, machine: &Soft, index: Pages, page: PageNo) -> Read {
        let bad = index.0 == BAD_PAGE;
        if index.0.is_multiple_of(2) {
            machine.write(page, 0, &stored(&self.disk, index.0)[..]);
            return Read::Done;
        }
        let (disk, arrival) = (self.disk.clone(), self.arrival.clone());
        machine.defer(move |machine| {
            let (Some(uvm), Some(pager)) =
                (arrival.uvm.upgrade(), arrival.pager.get().and_then(Weak::upgrade))
            else {
                return;
            };
            machine.write(page, 0, &stored(&disk, index.0)[..]);
            let outcome = if bad { Read::Failed } else { Read::Done };
            pager.read_done(&uvm, &mut ThreadCtx::new().held(), index, outcome);
        });
        Read::Started
    }

    fn write(&self, machine: &Soft, index: Pages, page: PageNo) -> Result<(), ()> {
        let mut bytes = Box::new([0; PAGE_SIZE]);
        machine.read(page, 0, &mut bytes[..]);
        self.disk.lock().unwrap_or_else(PoisonError::into_inner).insert(index.0, bytes);
        Ok(())
    }
}
