//! A swap device in memory, whose transfers end at once or when the machine waits, and fail as
//! told; and a file.
// Each test binary uses a part.
#![allow(dead_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, Weak};

use machine::order::Nothing;
use machine::{Held, Machine, PageNo, ThreadCtx, PAGE_SIZE};
use uvm::{Outcome, SwapDevice, Transfer, Uvm, CLUSTER};
use uvm_soft::{Fate, SoftMachine};

pub mod file;

/// When transfers end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Within the call.
    AtOnce,
    /// When a thread waits, or at `complete`.
    Later,
}

/// One transfer that was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    pub write: bool,
    pub slot: u32,
    pub pages: Vec<PageNo>,
}

#[derive(Default)]
struct State {
    data: BTreeMap<u32, Vec<u8>>,
    bad: BTreeSet<u32>,
    log: Vec<Request>,
}

pub struct SwapDisk {
    slots: u32,
    mode: Mode,
    uvm: Weak<Uvm<SoftMachine>>,
    state: Arc<Mutex<State>>,
}

impl SwapDisk {
    pub fn new(uvm: &Arc<Uvm<SoftMachine>>, slots: u32, mode: Mode) -> Arc<SwapDisk> {
        Arc::new(SwapDisk { slots, mode, uvm: Arc::downgrade(uvm), state: Arc::default() })
    }

    /// Makes slots fail whatever transfer they are part of.
    pub fn spoil(&self, slots: impl IntoIterator<Item = u32>) {
        self.state.lock().unwrap().bad.extend(slots);
    }

    /// Whether a slot has ever been written.
    pub fn has(&self, slot: u32) -> bool {
        self.state.lock().unwrap().data.contains_key(&slot)
    }

    /// Every transfer since the last call.
    pub fn take_log(&self) -> Vec<Request> {
        std::mem::take(&mut self.state.lock().unwrap().log)
    }

    fn ask(&self, machine: &SoftMachine, request: Request) -> Transfer {
        let _host = uvm_soft::host();
        let end = request.slot + request.pages.len() as u32;
        assert!(
            end <= self.slots && !request.pages.is_empty(),
            "{request:?} of {} slots",
            self.slots
        );
        self.state.lock().unwrap().log.push(request.clone());
        if self.mode == Mode::AtOnce {
            return match transfer(machine, &self.state, &request) {
                Outcome::Done | Outcome::Hole => Transfer::Done,
                Outcome::Failed => Transfer::Failed,
            };
        }
        let (state, uvm) = (self.state.clone(), self.uvm.clone());
        machine.begin(move |machine, fate| {
            let works = fate == Fate::Works;
            let outcome = if works { transfer(machine, &state, &request) } else { Outcome::Failed };
            let (uvm, mut ctx) = (uvm.upgrade().unwrap(), ThreadCtx::new());
            if request.write {
                uvm.write_done(&mut ctx.held(), &request.pages, outcome);
            } else {
                uvm.read_done(&mut ctx.held(), &request.pages, outcome);
            }
        });
        Transfer::Started
    }
}

fn transfer(machine: &SoftMachine, state: &Mutex<State>, request: &Request) -> Outcome {
    let mut state = state.lock().unwrap();
    if state.bad.range(request.slot..request.slot + request.pages.len() as u32).next().is_some() {
        return Outcome::Failed;
    }
    for (slot, &page) in (request.slot..).zip(&request.pages) {
        if request.write {
            let mut bytes = vec![0; PAGE_SIZE];
            machine.read(page, 0, &mut bytes);
            state.data.insert(slot, bytes);
        } else {
            machine.write(
                page,
                0,
                state.data.get(&slot).expect("a slot is read that was never written"),
            );
        }
    }
    Outcome::Done
}

impl SwapDevice<SoftMachine> for SwapDisk {
    fn slots(&self) -> u32 {
        self.slots
    }

    fn read(
        &self,
        machine: &SoftMachine,
        _: &mut Held<'_, Nothing>,
        slot: u32,
        pages: &[PageNo],
    ) -> Transfer {
        assert!(pages.len() <= CLUSTER);
        self.ask(machine, Request { write: false, slot, pages: pages.to_vec() })
    }

    fn write(
        &self,
        machine: &SoftMachine,
        _: &mut Held<'_, Nothing>,
        slot: u32,
        pages: &[PageNo],
    ) -> Transfer {
        assert!(pages.len() <= uvm::swap::WRITE_CLUSTER);
        self.ask(machine, Request { write: true, slot, pages: pages.to_vec() })
    }
}
