use crate::arch::UserRegs;
use crate::vm::Access;
use crate::{println, sched};
pub struct Thread;
pub fn user_page_fault(_: &mut UserRegs, va: u64, _: Access) {
    panic!("user fault at {va:#x}")
}
pub fn kernel_page_fault(_va: u64, _: Access) -> Result<(), ()> {
    Err(())
}
pub fn user_exception(_: &mut UserRegs, vector: u64, _: u64, _: u64) {
    panic!("exception {vector}")
}
pub fn signal_pending() -> bool {
    false
}
pub fn return_to_user(_: &mut UserRegs) {}
pub fn activate_space(_: &Thread) {}
pub fn syscall(_regs: &mut UserRegs) {}
static Q: crate::sync::WaitQueue = crate::sync::WaitQueue::new();
static N: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);
fn a() -> ! {
    for i in 0..3 {
        println!("a {i} {}", sched::now());
        let _: Result<(), _> = Q.wait_intr(Some(sched::now() + 20_000_000), || None);
        N.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
        Q.wake_all();
    }
    sched::exit_current()
}
fn b() -> ! {
    for i in 0..3 {
        Q.wait(|| (N.load(core::sync::atomic::Ordering::Relaxed) > i).then_some(()));
        println!("b {i} {}", sched::now());
    }
    let mut v = alloc::vec::Vec::new();
    for i in 0..100000u64 {
        v.push(alloc::boxed::Box::new(i));
    }
    println!("{}", v.iter().map(|b| **b).sum::<u64>());
    drop(v);
    let t0 = crate::arch::io::rdtsc();
    for _ in 0..1000 {
        drop(alloc::boxed::Box::new(t0));
        core::hint::black_box(());
    }
    println!("alloc {}", (crate::arch::io::rdtsc() - t0) / 1000);
    let t0 = crate::arch::io::rdtsc();
    for _ in 0..1000 {
        sched::yield_now();
    }
    println!("yield {}", (crate::arch::io::rdtsc() - t0) / 1000);
    println!("wall {} heap {:?}", sched::wall(), crate::mem::heap::usage());
    sched::shut_down(0)
}
pub fn start_init(cmdline: &str) {
    println!("cmdline {cmdline}");
    sched::spawn_kernel("a", a).unwrap();
    sched::spawn_kernel("b", b).unwrap();
}
