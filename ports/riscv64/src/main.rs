//! A small kernel for QEMU's `virt` machine with two harts, from boot to page-out: what a port of
//! the library to another architecture takes. `docs/porting.md` leads through it.
//!
//! Read `host` and `pmap` first, which are the contract; then `heap` (promises), `thread` (sleep),
//! `user` (programs) and this file, which shows one thing after another. `laws` checks the
//! contract's laws on both harts.
#![no_std]
#![no_main]

extern crate alloc;

mod heap;
mod host;
mod laws;
mod pmap;
mod thread;
mod user;

use alloc::sync::Arc;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, Ordering::AcqRel};

use machine::plain::PlainPmap;
use machine::Pa;
use riscv::register::{scause, sepc, sie, stval};
use spin::Mutex;
use uvm::page::Frames;
use uvm::Uvm;
use uvm_conformance::workload;
use uvm_zram::Zram;

use host::{enter, frames, uvm, Virt};
use user::User;

/// This kernel is for two, numbered 0 and 1.
pub const HARTS: usize = 2;
/// Frames of memory, behind the kernel's image.
const PAGES: u32 = 2048;

core::arch::global_asm!(include_str!("entry.s"));

extern "C" {
    static image_end: u8;
    fn _start();
}

#[macro_export]
macro_rules! print {
    ($($arg:tt)*) => { $crate::print_all(format_args!($($arg)*)) };
}

/// The first serial port, which takes bytes as fast as they come.
struct Console;

impl fmt::Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // SAFETY: the device's register for what it sends; all page tables map it (`pmap::ROOTS`).
        text.bytes().for_each(|byte| unsafe { (0x1000_0000 as *mut u8).write_volatile(byte) });
        Ok(())
    }
}

/// Lines of harts don't mix.
pub fn print_all(text: fmt::Arguments<'_>) {
    static CONSOLE: Mutex<Console> = Mutex::new(Console);
    let _ = CONSOLE.lock().write_fmt(text);
}

/// Ends the machine by QEMU's test device: the firmware's call for it has no exit code.
fn exit(code: u32) -> ! {
    let how = if code == 0 { 0x5555 } else { code << 16 | 0x3333 };
    // SAFETY: the device's only register, as above.
    unsafe { (0x10_0000 as *mut u32).write_volatile(how) };
    loop {
        core::hint::spin_loop();
    }
}

/// The number of the hart that runs this: the kernel leaves it in `tp`.
pub fn hart() -> usize {
    let hart;
    // SAFETY: reads a register.
    unsafe { core::arch::asm!("mv {}, tp", out(reg) hart) };
    hart
}

/// Where each hart comes to from `_start`.
#[no_mangle]
extern "C" fn start(me: usize) -> ! {
    static IS_BOOTED: AtomicBool = AtomicBool::new(false);
    pmap::set_root(0);
    // SAFETY: the clock's and other harts' interrupts; they come in while programs run.
    unsafe {
        sie::set_stimer();
        sie::set_ssoft();
    }
    if !IS_BOOTED.swap(true, AcqRel) {
        print!("hart {me}: booted\n");
        thread::spawn(None, main);
        let started = sbi_rt::hart_start(1 - me, _start as *const () as usize, 0);
        assert!(started.is_ok(), "the other hart doesn't start");
    } else {
        print!("hart {me}: joined\n");
    }
    thread::run()
}

#[no_mangle]
extern "C" fn kernel_bug() -> ! {
    let (at, why, of) = (sepc::read(), scause::read().cause(), stval::read());
    panic!("a trap in the kernel at {at:#x}: {why:?} of {of:#x}");
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    let _ = writeln!(Console, "hart {}: {info}", hart());
    exit(1)
}

fn main() {
    let first = Pa(&raw const image_end as u64);
    let all = Frames::with(&[(first, PAGES)], &[], &[user::text()], HARTS);
    let all = Arc::new(all.expect("the heap is empty"));
    let machine = Virt(PlainPmap::new(pmap::Sv39::default(), all.numbers()));
    host::UVM.call_once(|| Uvm::new(machine, all).expect("there is heap"));
    print!("memory: {PAGES} frames\n");

    if !laws::hold() {
        print!("a law is broken\n");
        exit(1);
    }
    assert!(frames().free() == PAGES as usize, "every frame came back");
    print!("laws: they hold on {HARTS} harts\n");

    // Pages go out to other memory, compressed.
    let mut zram = None;
    thread::spawn(None, || enter(|held| uvm().page_daemon(held, || false)));
    enter(|held| {
        Zram::set_share(uvm(), held, &mut zram, 20).expect("there is memory");
        let user = User::new(held);
        user.greet(held);
        print!("user mode: a program ran, and faulted in its text and memory\n");
        workload(uvm(), held, &user);
        Zram::set_share(uvm(), held, &mut zram, 0).expect("nothing is left there");
    });
    assert!(frames().free() == PAGES as usize, "every frame came back");
    print!("frames: every one came back\nall right\n");
    exit(0)
}
