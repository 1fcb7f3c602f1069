//! A ROM: the paper's case of a pager that chooses its pages itself.

use std::sync::Arc;

use machine::order::{Nothing, Object as ObjectLevel};
use machine::{Held, NoMemory, PageNo, Pages};
use uvm::page::Gather;
use uvm::page::Reserve;
use uvm::{Access, GetError, Object, ObjectBody, Pager, Removed, Uvm};
use uvm_soft::{host, SoftMachine};

use crate::desk::Desk;
use crate::model::file_contents;
use crate::op::CHIPS;
use crate::world::word_offset;

/// An object whose pages are there already and show again and again. They belong to no object's
/// table.
pub struct Rom<M: Desk = SoftMachine> {
    object: Object<M>,
    chips: [PageNo; CHIPS as usize],
}

impl<M: Desk> Rom<M> {
    /// The pages of all ROMs of a machine: on no queue, whatever space wires and unwires them.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn chips(
        uvm: &Uvm<M>,
        held: &mut Held<'_, Nothing>,
    ) -> Result<[PageNo; CHIPS as usize], NoMemory> {
        let mut chips = [PageNo(0); CHIPS as usize];
        for (n, chip) in chips.iter_mut().enumerate() {
            *chip = uvm.frames().alloc(uvm.machine(), held, Reserve::Kernel)?;
            uvm.frames().wire(*chip);
            print(uvm.machine(), *chip, n as u64);
        }
        Ok(chips)
    }

    /// An object that shows them.
    pub fn new(uvm: &Uvm<M>, chips: [PageNo; CHIPS as usize], len: Pages) -> Arc<Rom<M>> {
        let _host = host();
        Arc::new(Rom { object: Object::new(uvm, len), chips })
    }
}

/// Makes a page show what the model says of a device's or a ROM's.
pub fn print<M: Desk>(machine: &M, page: PageNo, index: u64) {
    for (word, value) in file_contents(index).into_iter().enumerate() {
        machine.write(page, word_offset(word), &value.to_le_bytes());
    }
}

impl<M: Desk> Pager<M> for Rom<M> {
    fn object(&self) -> &Object<M> {
        &self.object
    }

    fn kind(&self) -> &'static str {
        "rom"
    }

    fn get(
        &self,
        _: &Uvm<M>,
        body: &mut ObjectBody,
        _: &mut Held<'_, ObjectLevel>,
        index: Pages,
        _: Access,
    ) -> Result<PageNo, GetError> {
        if index >= body.length() {
            return Err(GetError::PastEnd);
        }
        Ok(self.chips[(index.0 % CHIPS) as usize])
    }

    /// The chips stay.
    fn last_reference(
        &self,
        _: &Uvm<M>,
        _: &mut ObjectBody,
        _: &mut Held<'_, ObjectLevel>,
        _: &mut Gather,
    ) -> Removed {
        Removed::All
    }
}
