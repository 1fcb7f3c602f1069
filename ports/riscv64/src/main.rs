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
mod sbi;
mod thread;
mod user;

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt::Write;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};

use machine::order::{Held, Nothing};
use machine::{Channel, Machine, Pa, PageNo, Pages, Prot, PAGE_SIZE};
use spin::{Mutex, Once};
use uvm::page::Frames;
use uvm::{Counter, MapRequest, Pager, Sharing, SwapDevice, Transfer, Uvm, Vnode, VnodePager};

use host::{enter, frames, uvm, Virt};
use user::Process;

/// This kernel is for two, numbered 0 and 1.
pub const HARTS: usize = 2;
/// Frames of memory, behind the kernel's image.
const PAGES: u32 = 2048;
/// Pages of the disk in memory.
const SLOTS: usize = 6144;

core::arch::global_asm!(include_str!("entry.s"));
core::arch::global_asm!(include_str!("programs.s"));

extern "C" {
    static image_end: u8;
    static user_begin: u8;
    static user_end: u8;
    fn _start();
    fn hello();
    fn forks();
    fn loans();
    fn sends();
    fn receives();
    fn presses();
}

#[macro_export]
macro_rules! print {
    ($($arg:tt)*) => { $crate::print_all(format_args!($($arg)*)) };
}

/// Lines of harts don't mix.
pub fn print_all(text: core::fmt::Arguments<'_>) {
    static CONSOLE: Mutex<sbi::Console> = Mutex::new(sbi::Console);
    let _ = CONSOLE.lock().write_fmt(text);
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
    pmap::begin_hart();
    // SAFETY: the clock's and other harts' interrupts; they come in while programs run.
    unsafe { core::arch::asm!("csrw sie, {}", in(reg) 0x22) };
    thread::begin_hart();
    if !IS_BOOTED.swap(true, AcqRel) {
        print!("hart {me}: booted\n");
        thread::spawn(None, main, 0);
        sbi::start_hart(1 - me, _start as *const () as usize);
    } else {
        print!("hart {me}: joined\n");
    }
    thread::idle()
}

#[no_mangle]
extern "C" fn kernel_bug() -> ! {
    let at: usize;
    // SAFETY: reads a register.
    unsafe { core::arch::asm!("csrr {}, sepc", out(reg) at) };
    panic!("a trap in the kernel at {at:#x}: {:x?}", user::trap());
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    let _ = writeln!(sbi::Console, "hart {}: {info}", hart());
    sbi::exit(1)
}

/// The programs' text, as a file.
struct Image;

static TEXT: Once<Arc<dyn Pager<Virt>>> = Once::new();

impl Vnode<Virt> for Image {
    fn read(&self, machine: &Virt, index: Pages, pages: &[PageNo]) -> Transfer {
        for (&page, n) in pages.iter().zip(index.0 as usize..) {
            // SAFETY: the image has whole pages of text, as many as the pager was told.
            let bytes = unsafe {
                let at = (&raw const user_begin).add(n * PAGE_SIZE);
                core::slice::from_raw_parts(at, PAGE_SIZE)
            };
            machine.write(page, 0, bytes);
        }
        Transfer::Done
    }

    fn write(&self, _: &Virt, _: Pages, _: &[PageNo]) -> Transfer {
        Transfer::Failed
    }
}

fn text_pages() -> Pages {
    Pages::floor(&raw const user_end as u64 - &raw const user_begin as u64)
}

/// A mapping of the programs' text.
pub fn text() -> MapRequest<Virt> {
    let pager = TEXT.get().expect("programs come later").clone();
    MapRequest::object(pager, Pages(0), text_pages(), Sharing::Private).prot(Prot::READ_EXECUTE)
}

/// A disk in memory, whose transfers are over when they return.
struct Disk;
static STORE: Mutex<[[u8; PAGE_SIZE]; SLOTS]> = Mutex::new([[0; PAGE_SIZE]; SLOTS]);

impl SwapDevice<Virt> for Disk {
    fn slots(&self) -> u32 {
        SLOTS as u32
    }

    fn read(
        &self, machine: &Virt, _: &mut Held<'_, Nothing>, slot: u32, pages: &[PageNo],
    ) -> Transfer {
        let store = STORE.lock();
        pages
            .iter()
            .zip(&store[slot as usize..])
            .for_each(|(&page, at)| machine.write(page, 0, at));
        Transfer::Done
    }

    fn write(
        &self, machine: &Virt, _: &mut Held<'_, Nothing>, slot: u32, pages: &[PageNo],
    ) -> Transfer {
        let mut store = STORE.lock();
        let places = store[slot as usize..].iter_mut();
        pages.iter().zip(places).for_each(|(&page, at)| machine.read(page, 0, at));
        Transfer::Done
    }
}

/// The page daemon.
fn daemon(_: usize) {
    loop {
        let ticket = Virt.ticket(Channel::PAGE_DAEMON);
        while frames().free() + uvm().pages_in_flight() < frames().high_water() {
            let progress = enter(|held| uvm().pageout(held, frames().high_water()));
            if progress.freed + progress.started == 0 {
                break;
            }
        }
        enter(|held| Virt.wait(held, ticket));
    }
}

/// Runs a program to its end; it must say that all was as it should be.
fn run(name: &str, program: unsafe extern "C" fn(), pages: u64, number: u64) {
    let start = program as *const () as usize - &raw const user_begin as usize;
    let mut process = Process::new(start, pages, number);
    let code = process.run();
    process.end();
    assert!(code == 0, "{name} ended with {code}");
}

fn main(_: usize) {
    let first = Pa(&raw const image_end as u64);
    let all = Frames::new(&[(first, PAGES)], HARTS).expect("the heap is empty");
    host::FRAMES.call_once(|| Arc::new(all));
    host::PMAP.call_once(pmap::Sv39::new);
    let shared = host::FRAMES.get().expect("just made").clone();
    host::UVM.call_once(|| Uvm::new(Virt, shared).expect("there is heap"));
    print!("memory: {PAGES} frames\n");

    if !laws::hold() {
        print!("a law is broken\n");
        sbi::exit(1);
    }
    thread::at_once(HARTS, &|_| pmap::leave());
    enter(pmap::bury);
    assert!(frames().free() == PAGES as usize, "every frame came back");
    print!("laws: they hold on {HARTS} harts\n");

    let text = enter(|held| VnodePager::new(uvm(), held, Box::new(Image), text_pages()));
    TEXT.call_once(|| text.expect("there is memory"));
    enter(|held| uvm().swap_on(held, Arc::new(Disk), 0)).expect("it has room");
    thread::spawn(None, daemon, 0);
    show();
    let object = TEXT.get().expect("made above");
    enter(|held| uvm().audit(held, &[], core::slice::from_ref(object)))
        .expect("all counts are right");
    thread::at_once(HARTS, &|_| pmap::leave());
    enter(pmap::bury);
    let left = (frames().total() - frames().free()) as u64;
    assert!(left == text_pages().0, "only the text is in memory still, and not {left} pages");
    print!("frames: every one came back\nall right\n");
    sbi::exit(0)
}

fn count(counter: Counter) -> u64 {
    uvm().stat().get(counter)
}

fn show() {
    run("hello", hello, 1, 0);
    print!("user mode: a program ran, and faulted in its text and memory\n");

    let before = count(Counter::FaultsAnonCopied);
    run("forks", forks, 16, 1000);
    let copied = count(Counter::FaultsAnonCopied) - before;
    print!("fork: parent and child wrote 16 pages each; {copied} were copied\n");
    assert!((16..32).contains(&copied), "one of the two copies");

    run("loans", loans, 8, 2000);
    print!("loan: the kernel saw 8 pages as they were loaned; the program wrote on, in copies\n");

    thread::at_once(2, &|hart| match hart {
        0 => run("sends", sends, 8, 3000),
        _ => run("receives", receives, 8, 3000),
    });

    let (pages, begun) = (2400, AtomicUsize::new(0));
    thread::at_once(2, &|hart| {
        begun.fetch_add(1, AcqRel);
        while begun.load(Acquire) != HARTS {
            core::hint::spin_loop();
        }
        run("presses", presses, pages, hart as u64 * 100_000);
    });
    let (out, back) = (count(Counter::SwapOuts), count(Counter::SwapIns));
    print!("page-out: 2 programs of {pages} pages, one on each hart, in {PAGES} frames: ");
    print!("{out} pages went out and {back} came back as they were\n");
    assert!(out > pages && back > pages, "memory was short");
}
