//! Four times as much memory as there is: pages go to swap and come back, while a page daemon keeps
//! some free.
//!
//! What a host adds to maps and faults for that is a `SwapDevice`, here an array (`common`), and a
//! thread for the page daemon. `cargo run --example paging`

#[path = "common/mod.rs"]
mod common;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Arc;

use common::Disk;
use machine::{Channel, Machine, Pa, PageRange, Pages, ThreadCtx, Va};
use uvm::{Counter, MapRequest};
use uvm_soft::{Config, SoftMachine, Stage};

const FRAMES: u32 = 256;
const PAGES: u64 = 4 * FRAMES as u64;

/// Runs the example; a test does, too.
pub fn main() {
    let segments = vec![(Pa(0x10_0000), FRAMES)];
    let config = Config { segments, stage: Stage::Concurrent, ..Config::default() };
    let uvm = Arc::new(SoftMachine::new(config).into_uvm().expect("a new machine has memory"));
    let mut ctx = ThreadCtx::new();
    let h = &mut ctx.held();
    let disk = Arc::new(Disk::new(2 * PAGES as usize));
    let swap = uvm.swap_on(h, disk, 0).expect("the disk has room");
    let stop = Arc::new(AtomicBool::new(false));
    let pagedaemon = {
        let (uvm, stop) = (uvm.clone(), stop.clone());
        let daemon = move || uvm.page_daemon(&mut ThreadCtx::new().held(), || stop.load(Relaxed));
        std::thread::spawn(daemon)
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
