//! A file in memory: each page has a byte of its own until it is written.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use machine::{Machine, PageNo, Pages, ThreadCtx, PAGE_SIZE};
use uvm::{Outcome, Transfer, Uvm, Vnode};
use uvm_soft::{Fate, SoftMachine};

use super::Mode;

#[derive(Default)]
struct State {
    data: BTreeMap<u64, Vec<u8>>,
    writes: usize,
}

#[derive(Clone)]
pub struct TestFile {
    mode: Mode,
    uvm: Weak<Uvm<SoftMachine>>,
    state: Arc<Mutex<State>>,
}

impl TestFile {
    pub fn new(uvm: &Arc<Uvm<SoftMachine>>, mode: Mode) -> TestFile {
        TestFile { mode, uvm: Arc::downgrade(uvm), state: Arc::default() }
    }

    /// What each byte of a page is before it is written.
    pub fn byte(index: u64) -> u8 {
        (index % 251) as u8
    }

    /// Writes that were asked for.
    pub fn writes(&self) -> usize {
        self.state.lock().unwrap().writes
    }

    fn ask(&self, machine: &SoftMachine, write: bool, index: Pages, pages: &[PageNo]) -> Transfer {
        self.state.lock().unwrap().writes += usize::from(write);
        if self.mode == Mode::AtOnce {
            self.transfer(machine, write, index, pages);
            return Transfer::Done;
        }
        let (file, pages) = (self.clone(), pages.to_vec());
        machine.begin(move |machine, fate| {
            let outcome = if fate == Fate::Works { Outcome::Done } else { Outcome::Failed };
            file.transfer(machine, write, index, &pages);
            let (uvm, mut ctx) = (file.uvm.upgrade().unwrap(), ThreadCtx::new());
            if write {
                uvm.write_done(&mut ctx.held(), &pages, outcome);
            } else {
                uvm.read_done(&mut ctx.held(), &pages, outcome);
            }
        });
        Transfer::Started
    }

    fn transfer(&self, machine: &SoftMachine, write: bool, index: Pages, pages: &[PageNo]) {
        let mut state = self.state.lock().unwrap();
        for (n, &page) in (index.0..).zip(pages) {
            let mut bytes = vec![TestFile::byte(n); PAGE_SIZE];
            if write {
                machine.read(page, 0, &mut bytes);
                state.data.insert(n, bytes);
            } else {
                machine.write(page, 0, state.data.get(&n).unwrap_or(&bytes));
            }
        }
    }
}

impl Vnode<SoftMachine> for TestFile {
    fn read(&self, machine: &SoftMachine, index: Pages, pages: &[PageNo]) -> Transfer {
        self.ask(machine, false, index, pages)
    }

    fn write(&self, machine: &SoftMachine, index: Pages, pages: &[PageNo]) -> Transfer {
        self.ask(machine, true, index, pages)
    }
}
