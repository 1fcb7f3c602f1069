//! User mode: a program's registers, its faults, and the functions of `programs.s` that it runs.

use alloc::sync::Arc;
use alloc::vec;
use core::fmt;

use machine::order::{Held, Nothing};
use machine::{Machine, Pa, PageRange, Pages, Prot, Va, PAGE_SIZE};
use riscv::interrupt::{cause, Exception, Interrupt, Trap};
use riscv::register::stval;
use uvm::{DevicePager, MapRequest, Sharing, Space};
use uvm_conformance::{Programs, SharedWork};

use crate::host::{enter, frames, uvm, Virt};
use crate::{pmap, print, thread, HARTS};

/// Where a program's text begins.
const TEXT: Va = Va(4 << 30);
const WINDOW: PageRange = PageRange::new(pmap::WINDOW.start, pmap::WINDOW.end).unwrap();
/// The number of the register of the first argument, and of a result.
const A0: usize = 10;

core::arch::global_asm!(include_str!("programs.s"));

/// A function of `programs.s`.
type Function = unsafe extern "C" fn();
extern "C" {
    static user_begin: u8;
    static user_end: u8;
    fn hello();
    fn fill();
    fn check();
}

/// Where the programs' text lies, and its pages: in the kernel's image, so the allocator hasn't got
/// it.
pub fn text() -> (Pa, u32) {
    let begin = &raw const user_begin as usize;
    (Pa(begin as u64), ((&raw const user_end as usize - begin) / PAGE_SIZE) as u32)
}

/// Registers of a program that has trapped, by number; where it goes on; the kernel's.
#[repr(C)]
pub struct Registers {
    x: [u64; 32],
    pc: u64,
    kernel: [u64; 2],
}

impl Registers {
    pub fn new(pc: Va) -> Registers {
        Registers { x: [0; 32], pc: pc.0, kernel: [0; 2] }
    }
}

/// Runs a program in the space that is loaded until it traps, and says why it has.
pub fn run_user(registers: &mut Registers) -> Trap<Interrupt, Exception> {
    extern "C" {
        fn enter_user(registers: *mut Registers);
    }
    // SAFETY: a program reaches what its tables map for it, and no more.
    unsafe { enter_user(registers) };
    cause()
}

/// Runs a function with three arguments in a space to its end, which is a system call; says its
/// result.
fn call(
    held: &mut Held<'_, Nothing>, space: &Space<Virt>, function: Function, arguments: [u64; 3],
) -> u64 {
    let offset = function as *const () as u64 - text().0 .0;
    let mut registers = Registers::new(Va(TEXT.0 + offset));
    registers.x[A0..A0 + 3].copy_from_slice(&arguments);
    thread::run_in(Some(*space.pmap()));
    loop {
        let access = match run_user(&mut registers) {
            Trap::Exception(Exception::UserEnvCall) => break,
            Trap::Exception(Exception::InstructionPageFault) => Prot::EXECUTE,
            Trap::Exception(Exception::LoadPageFault) => Prot::READ,
            Trap::Exception(Exception::StorePageFault) => Prot::WRITE,
            // The clock, or another hart that has work.
            Trap::Interrupt(_) => {
                thread::give_way();
                continue;
            }
            Trap::Exception(other) => panic!("a program is ended by {other:?}"),
        };
        let va = Va(stval::read() as u64);
        let done = uvm().fault(held, space, va, access);
        done.unwrap_or_else(|error| panic!("{access:?} of {va:?}: {error:?}"));
    }
    thread::run_in(None);
    registers.x[A0]
}

/// This kernel's programs, for `uvm_conformance::workload`: all map this text.
pub struct User(Arc<DevicePager<Virt>>);

impl User {
    pub fn new(held: &mut Held<'_, Nothing>) -> User {
        let (begin, pages) = text();
        let first = frames().page_at(begin).expect("the machine was told of it");
        let pager = DevicePager::new(uvm(), held, first, Pages(pages.into()));
        User(pager.expect("there is memory"))
    }

    /// A program stores a greeting, which is printed from its page, on loan.
    pub fn greet(&self, held: &mut Held<'_, Nothing>) {
        let space = self.space(held);
        let at = uvm().map(held, &space, &MapRequest::zero(Pages(1))).expect("there is room");
        let mut text = vec![0; call(held, &space, hello, [at.0, 0, 0]) as usize];
        let page = PageRange::sized(at, Pages(1)).expect("it is mapped there");
        let loan = uvm().loan_to_kernel(held, &space, page).expect("it is mapped");
        uvm().machine().read(loan.pages()[0].page(), 0, &mut text);
        self.say(format_args!("{}", core::str::from_utf8(&text).unwrap_or("?")));
        uvm().return_loan(held, loan).expect("there is one VM system");
        uvm().space_destroy(held, space);
    }
}

impl Programs<Virt> for User {
    fn space(&self, held: &mut Held<'_, Nothing>) -> Space<Virt> {
        let size = Pages(text().1.into());
        let text = MapRequest::object(self.0.clone(), Pages(0), size, Sharing::Shared);
        let space = uvm().space_create(held, WINDOW).expect("there is memory");
        let mapped = uvm().map(held, &space, &text.prot(Prot::READ_EXECUTE).at(TEXT));
        mapped.expect("the space is empty");
        space
    }

    fn fill(
        &self, held: &mut Held<'_, Nothing>, space: &Space<Virt>, at: Va, pages: u64, number: u64,
    ) {
        call(held, space, fill, [at.0, pages, number]);
    }

    fn check(
        &self, held: &mut Held<'_, Nothing>, space: &Space<Virt>, at: Va, pages: u64, number: u64,
    ) -> bool {
        call(held, space, check, [at.0, pages, number]) == 1
    }

    fn at_once(&self, work: SharedWork<'_>) {
        thread::on_harts(HARTS, &|hart| enter(|held| work(hart, held)));
    }

    fn say(&self, line: fmt::Arguments<'_>) {
        print!("{line}\n");
    }
}
