//! Four times as much memory as there is: pages go to swap and come back, while a page daemon keeps
//! some free.
//!
//! What a host adds to maps and faults for that: a [`SwapDevice`], here an array; and a thread that
//! waits until free pages fall under the low water mark and then makes passes. `cargo run --example
//! paging`

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use machine::order::Nothing;
use machine::{Channel, Held, Machine, Pa, PageNo, PageRange, Pages, ThreadCtx, Va, PAGE_SIZE};
use uvm::{Counter, MapRequest, SwapDevice, Transfer, Uvm};
use uvm_soft::{Config, SoftMachine, Stage};

const FRAMES: u32 = 256;
const PAGES: u64 = 4 * FRAMES as u64;

/// A disk that is an array: its transfers are over when they return. One that has only begun them
/// would answer `Started`, and its interrupt handler would call `Uvm::read_done` and
/// `Uvm::write_done`.
struct Disk(Mutex<Vec<u8>>);

impl Disk {
    fn each(
        &self,
        slot: u32,
        pages: &[PageNo],
        mut transfer: impl FnMut(PageNo, &mut [u8]),
    ) -> Transfer {
        let mut bytes = self.0.lock().expect("no transfer panics");
        let places = bytes.chunks_exact_mut(PAGE_SIZE).skip(slot as usize);
        pages.iter().zip(places).for_each(|(&page, place)| transfer(page, place));
        Transfer::Done
    }
}

impl SwapDevice<SoftMachine> for Disk {
    fn slots(&self) -> u32 {
        (self.0.lock().expect("no transfer panics").len() / PAGE_SIZE) as u32
    }

    fn read(
        &self,
        machine: &SoftMachine,
        _: &mut Held<'_, Nothing>,
        slot: u32,
        pages: &[PageNo],
    ) -> Transfer {
        self.each(slot, pages, |page, place| machine.write(page, 0, place))
    }

    fn write(
        &self,
        machine: &SoftMachine,
        _: &mut Held<'_, Nothing>,
        slot: u32,
        pages: &[PageNo],
    ) -> Transfer {
        self.each(slot, pages, |page, place| machine.read(page, 0, place))
    }
}

/// The page daemon: sleeps until memory is short, then frees pages until enough are free or on
/// their way out.
fn daemon(uvm: &Uvm<SoftMachine>, stop: &AtomicBool) {
    let mut ctx = ThreadCtx::new();
    let h = &mut ctx.held();
    let (machine, frames) = (uvm.machine(), uvm.frames());
    loop {
        // Read before the look at what is free, so that a wake-up between the two isn't lost.
        let ticket = machine.ticket(Channel::PAGE_DAEMON);
        if stop.load(Relaxed) {
            return;
        }
        if frames.free() < frames.low_water() {
            while frames.free() + uvm.pages_in_flight() < frames.high_water() {
                let progress = uvm.pageout(h, frames.high_water());
                if progress.freed + progress.started == 0 {
                    break; // Who needs memory now is told that there is none.
                }
            }
        }
        machine.wait(h, ticket);
    }
}

/// Runs the example; a test does, too.
pub fn main() {
    let segments = vec![(Pa(0x10_0000), FRAMES)];
    let config = Config { segments, stage: Stage::Concurrent, ..Config::default() };
    let uvm = Arc::new(SoftMachine::new(config).into_uvm().expect("a new machine has memory"));
    let mut ctx = ThreadCtx::new();
    let h = &mut ctx.held();
    let disk = Arc::new(Disk(Mutex::new(vec![0; 2 * PAGES as usize * PAGE_SIZE])));
    let swap = uvm.swap_on(h, disk, 0).expect("the disk has room");
    let stop = Arc::new(AtomicBool::new(false));
    let pagedaemon = {
        let (uvm, stop) = (uvm.clone(), stop.clone());
        std::thread::spawn(move || daemon(&uvm, &stop))
    };

    let space = uvm
        .space_create(h, PageRange::new(Va(1 << 16), Va(1 << 46)).unwrap())
        .expect("there is memory");
    let start = uvm.map(h, &space, &MapRequest::zero(Pages(PAGES))).expect("there is room");
    let fault = |va, access| uvm.fault(&mut ThreadCtx::new().held(), &space, va, access).map(drop);
    let machine = uvm.machine();
    for n in 0..PAGES {
        machine
            .store(0, space.pmap(), start + Pages(n), &n.to_le_bytes(), fault)
            .expect("swap has room");
    }
    for n in 0..PAGES {
        assert_eq!(
            machine.load_u64(0, space.pmap(), start + Pages(n), fault).expect("it comes back"),
            n
        );
    }
    let of = |counter| uvm.stat().get(counter);
    let (slots, used) = uvm.swap_space();
    println!("{PAGES} pages written and read in {FRAMES} frames; {used} of {slots} slots of swap are taken");
    println!("out: {} pages in {} writes", of(Counter::SwapOuts), of(Counter::SwapWrites));
    println!("in: {} pages in {} reads", of(Counter::SwapIns), of(Counter::SwapReads));
    assert!(of(Counter::SwapWrites) * 8 < of(Counter::SwapOuts), "pages leave many at a time");

    // Half of the memory goes, and with it what it had on swap; then the rest fits nearly, but not
    // quite.
    uvm.unmap(h, &space, PageRange::new(start, start + Pages(PAGES / 2)).unwrap())
        .expect("there is heap");
    assert!(
        uvm.swap_off(h, swap).is_err(),
        "swapoff needs room for all that is there, or changes nothing"
    );
    uvm.space_destroy(h, space);
    assert_eq!(uvm.swap_space().1, 0, "no slot stays taken");
    uvm.swap_off(h, swap).expect("nothing is on it");
    stop.store(true, Relaxed);
    machine.wake(Channel::PAGE_DAEMON);
    pagedaemon.join().expect("the daemon ended");
    assert_eq!(uvm.frames().free(), uvm.frames().total(), "every page came back");
}
