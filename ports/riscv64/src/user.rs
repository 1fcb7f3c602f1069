//! Programs: their registers, their calls, their faults.

use alloc::boxed::Box;
use alloc::vec;
use core::sync::atomic::{AtomicI64, Ordering::*};

use machine::{Channel, Machine, PageRange, Pages, Pmap, Prot, Ticket, Va, PAGE_SIZE};
use spin::Mutex;
use uvm::{At, Loan, MapRequest, Space};

use crate::host::{enter, uvm, Virt};
use crate::{pmap, print, sbi, thread};

/// How long a program runs before others may, in ticks.
pub const SLICE: u64 = 100_000;
/// Where a program's text and its memory begin.
pub const TEXT: Va = Va(4 << 30);
const DATA: Va = Va(8 << 30);
const WINDOW: PageRange = PageRange::new(pmap::WINDOW.start, pmap::WINDOW.end).unwrap();
const RUNS: i64 = i64::MIN;

/// Registers of a program that has trapped, by number; where it goes on; the kernel's.
#[repr(C)]
#[derive(Clone)]
pub struct Frame {
    pub x: [u64; 32],
    pub pc: u64,
    kernel: [u64; 2],
}

impl Frame {
    pub fn new(pc: Va) -> Frame {
        Frame { x: [0; 32], pc: pc.0, kernel: [0; 2] }
    }
}

extern "C" {
    pub fn run_user(frame: *mut Frame);
}

/// A program that runs or has run.
pub struct Process {
    pub space: Space<Virt>,
    frame: Frame,
    child: Option<&'static Child>,
    loan: Option<Loan>,
}

struct Child {
    process: Mutex<Option<Process>>,
    code: AtomicI64,
}

/// What has been sent and not yet received.
static MAIL: Mutex<Option<Loan>> = Mutex::new(None);

impl Process {
    /// A program that begins at `start` of the text, with so many pages of memory.
    pub fn new(start: usize, pages: u64, number: u64) -> Process {
        let (space, data) = enter(|held| {
            let space = uvm().space_create(held, WINDOW).expect("there is memory");
            uvm().map(held, &space, &crate::text().at(TEXT)).expect("the space is empty");
            let zero = MapRequest::zero(Pages(pages)).prot(Prot::READ_WRITE);
            let data = uvm().map(held, &space, &zero.at(DATA)).expect("the space is empty");
            (space, data)
        });
        let mut frame = Frame::new(Va(TEXT.0 + start as u64));
        frame.x[10..13].copy_from_slice(&[data.0, pages, number]);
        Process { space, frame, child: None, loan: None }
    }

    /// Runs it to its end, and says its exit code.
    pub fn run(&mut self) -> i64 {
        thread::run_in(Some(self.space.pmap().0));
        let code = loop {
            // SAFETY: the space is loaded; a program reaches what its tables map for it.
            unsafe { run_user(&mut self.frame) };
            let (cause, va) = trap();
            let access = match cause {
                8 => match self.call() {
                    Some(code) => break code,
                    None => continue,
                },
                12 => Prot::EXECUTE,
                13 => Prot::READ,
                15 => Prot::WRITE,
                // An interrupt: the clock, or another hart that has work.
                _ if cause >> 63 == 1 => {
                    take_interrupt(Some(SLICE));
                    thread::give_way();
                    continue;
                }
                _ => break -(cause as i64),
            };
            let done = enter(|held| uvm().fault(held, &self.space, Va(va), access));
            if let Err(error) = done {
                print!(
                    "a program is ended at {:#x}: {access:?} of {va:#x}, {error:?}\n",
                    self.frame.pc
                );
                break -1;
            }
        };
        thread::run_in(None);
        code
    }

    /// Ends it.
    pub fn end(self) {
        enter(|held| uvm().space_destroy(held, self.space));
    }

    /// Does what the program asks for; its exit code if that is to end.
    fn call(&mut self) -> Option<i64> {
        let [a, b] = [10, 11].map(|n| self.frame.x[n]);
        self.frame.pc += 4;
        self.frame.x[10] = match self.frame.x[17] {
            0 => return Some(a as i64),
            1 => self.print(Va(a), b as usize),
            2 => self.fork(),
            3 => self.wait() as u64,
            4 => {
                self.loan = self.take(Va(a), b);
                u64::from(self.loan.is_none())
            }
            5 => self.give_back(),
            6 => {
                *MAIL.lock() = self.take(Va(a), b);
                thread::wake(Channel(1 << 41));
                0
            }
            7 => self.receive(),
            _ => return Some(-2),
        };
        None
    }

    /// Has a program's pages on loan.
    fn take(&self, at: Va, pages: u64) -> Option<Loan> {
        let range = PageRange::sized(at, Pages(pages))?;
        enter(|held| uvm().loan_to_kernel(held, &self.space, range)).ok()
    }

    /// Prints what the program has in memory, without a copy: its pages are loaned meanwhile.
    fn print(&self, at: Va, len: usize) -> u64 {
        let Some(loan) = self.take(at.page_floor(), 1) else { return 1 };
        let mut bytes = vec![0; len.min(PAGE_SIZE - at.page_offset())];
        uvm().machine().read(loan.pages()[0].page(), at.page_offset(), &mut bytes);
        print!("{}", core::str::from_utf8(&bytes).unwrap_or("?\n"));
        enter(|held| uvm().return_loan(held, loan)).expect("there is one VM system");
        0
    }

    /// Forks: the parent's call returns 1 and the child's 0.
    fn fork(&mut self) -> u64 {
        let Ok(space) = enter(|held| uvm().fork(held, &self.space)) else { return u64::MAX };
        let mut frame = self.frame.clone();
        frame.x[10] = 0;
        let process = Process { space, frame, child: None, loan: None };
        let child = Child { process: Mutex::new(Some(process)), code: AtomicI64::new(RUNS) };
        let child: &'static Child = Box::leak(Box::new(child));
        self.child = Some(child);
        let run: fn(usize) = |child| {
            // SAFETY: it was leaked.
            let child = unsafe { &*(child as *const Child) };
            let mut process = child.process.lock().take().expect("a child runs once");
            let code = process.run();
            process.end();
            child.code.store(code, Release);
            thread::wake(Channel(1 << 42));
        };
        thread::spawn(None, run, &raw const *child as usize);
        1
    }

    fn wait(&mut self) -> i64 {
        let Some(child) = self.child.take() else { return -1 };
        until(Channel(1 << 42), || Some(child.code.load(Acquire)).filter(|code| *code != RUNS))
    }

    /// The kernel has seen, all the time, what was there when it was loaned: 0.
    fn give_back(&mut self) -> u64 {
        let Some(loan) = self.loan.take() else { return 1 };
        let first = self.frame.x[12] - 100;
        let words = (0..loan.len()).map(|n| first + (loan.len() - n) as u64);
        let is_old = loan.pages().iter().zip(words).all(|(page, word)| {
            let mut bytes = [0; 8];
            uvm().machine().read(page.page(), 0, &mut bytes);
            u64::from_le_bytes(bytes) == word
        });
        enter(|held| uvm().return_loan(held, loan)).expect("there is one VM system");
        u64::from(!is_old)
    }

    /// Pages that were sent become this program's memory: the very frames.
    fn receive(&mut self) -> u64 {
        let loan = until(Channel(1 << 41), || MAIL.lock().take());
        let first = loan.pages()[0].page();
        match enter(|held| uvm().transfer(held, &self.space, loan, At::Anywhere)) {
            Ok(va) => {
                let _ = enter(|held| uvm().fault(held, &self.space, va, Prot::READ));
                let there = uvm().machine().pmap().extract(self.space.pmap(), va);
                print!("page transfer: {first:?} was sent, {there:?} is mapped\n");
                va.0
            }
            Err((_, loan)) => {
                enter(|held| uvm().return_loan(held, loan)).expect("there is one VM system");
                0
            }
        }
    }
}

fn until<T>(channel: Channel, mut what: impl FnMut() -> Option<T>) -> T {
    loop {
        let sequence = thread::sequence(channel);
        match what() {
            Some(done) => return done,
            None => thread::sleep(Ticket { channel, sequence }),
        }
    }
}

/// Takes an interrupt back that was pending, and says when the clock's comes next.
pub fn take_interrupt(next: Option<u64>) {
    // SAFETY: clears a pending bit.
    unsafe { core::arch::asm!("csrci sip, 2") };
    sbi::set_timer(next);
}

/// Why a program has trapped, and at which address.
pub fn trap() -> (u64, u64) {
    let (cause, value): (u64, u64);
    // SAFETY: reads two registers.
    unsafe {
        core::arch::asm!("csrr {}, scause", "csrr {}, stval", out(reg) cause, out(reg) value)
    };
    (cause, value)
}
