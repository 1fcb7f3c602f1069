//! Kernel threads: a table of some, which the harts run in turn.
//!
//! A hart runs a thread until that stops, and comes back to [`run`], on a stack of the hart's own.
//! Threads give way by themselves; a clock interrupts programs. One lock guards the table; it ranks
//! below every other, and is held across the change of stacks: the side that goes on unlocks it.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering::*};

use machine::{Channel, Ticket};
use riscv::register::{sip, time};
use sbi_rt::HartMask;
use spin::{Mutex, MutexGuard};

use crate::{hart, pmap, HARTS};

const THREADS: usize = 12;
const STACK: usize = 64 * 1024;
/// What channels share a count of wake-ups.
const CHANNELS: usize = 61;
/// How long a thread runs before others may, in ticks of the clock.
const SLICE: u64 = 100_000;

/// The harts' own, then the threads'.
#[repr(align(65536))]
struct Stacks(#[expect(dead_code, reason = "its address is used")] [[u8; STACK]; HARTS + THREADS]);
#[no_mangle]
static mut boot_stacks: Stacks = Stacks([[0; STACK]; HARTS + THREADS]);

#[derive(Clone, Copy, PartialEq)]
enum State {
    Free,
    Ready,
    Running,
    /// Until the ticket's channel has been woken.
    Asleep(Ticket),
}

struct Thread {
    state: State,
    /// Where its stack ends while it doesn't run.
    sp: usize,
    /// The only hart that may run it.
    pinned: Option<usize>,
    /// The space that is loaded when it runs; without one it runs in any.
    space: Option<u64>,
    start: Option<Box<dyn FnOnce() + Send>>,
}

struct Table {
    threads: [Thread; THREADS],
    /// By hart: the thread that runs or ran last, and where the hart's own stack ends meanwhile.
    running: [usize; HARTS],
    sp: [usize; HARTS],
    /// Harts that wait for an interrupt, a bit each.
    idle: usize,
    wakes: [u64; CHANNELS],
}

const NONE: Thread = Thread { state: State::Free, sp: 0, pinned: None, space: None, start: None };
static TABLE: Mutex<Table> = Mutex::new(Table {
    threads: [const { NONE }; THREADS],
    running: [0; HARTS],
    sp: [0; HARTS],
    idle: 0,
    wakes: [0; CHANNELS],
});

extern "C" {
    fn switch_stacks(from: *mut usize, to: usize);
}

fn row(channel: Channel) -> usize {
    (channel.0 ^ channel.0 >> 32) as usize % CHANNELS
}

impl Table {
    fn me(&mut self) -> &mut Thread {
        &mut self.threads[self.running[hart()]]
    }

    /// The next thread in turn that may run here.
    fn next(&self) -> Option<usize> {
        let may_run = |thread: &Thread| match thread.state {
            State::Ready => true,
            State::Asleep(ticket) => self.wakes[row(ticket.channel)] != ticket.sequence,
            State::Free | State::Running => false,
        };
        let is_for_us = |thread: &Thread| thread.pinned.is_none_or(|only| only == hart());
        let mut turn = (1..=THREADS).map(|n| (self.running[hart()] + n) % THREADS);
        turn.find(|n| may_run(&self.threads[*n]) && is_for_us(&self.threads[*n]))
    }

    /// There may be work for harts that have none.
    fn call_idle(&self) {
        if self.idle != 0 {
            sbi_rt::send_ipi(HartMask::from_mask_base(self.idle, 0));
        }
    }
}

fn change_stacks(table: MutexGuard<'_, Table>, from: *mut usize, to: usize) {
    core::mem::forget(table);
    // SAFETY: the table is locked, which guards `from`; `to` is the stack of a thread that has
    // stopped or begins, or of this hart. The other side has locked the table that we unlock.
    unsafe {
        switch_stacks(from, to);
        TABLE.force_unlock();
    }
}

/// What a hart does: it runs threads, and waits for an interrupt where there is none to run. One
/// that comes between the look and the wait is pending, and ends the wait.
pub fn run() -> ! {
    loop {
        let mut table = TABLE.lock();
        table.idle &= !(1 << hart());
        if let Some(next) = table.next() {
            table.running[hart()] = next;
            table.me().state = State::Running;
            table.me().space.into_iter().for_each(pmap::load);
            sbi_rt::set_timer(time::read64() + SLICE);
            let (from, to) = (&raw mut table.sp[hart()], table.me().sp);
            change_stacks(table, from, to);
        } else {
            table.idle |= 1 << hart();
            drop(table);
            sbi_rt::set_timer(u64::MAX);
            riscv::asm::wfi();
            take_back_interrupt();
        }
    }
}

/// The interrupt by which another hart called this one is pending no more.
fn take_back_interrupt() {
    // SAFETY: clears a pending bit.
    unsafe { sip::clear_ssoft() };
}

/// The running thread stops.
fn stop(mut table: MutexGuard<'_, Table>, state: State) {
    table.me().state = state;
    let (from, to) = (&raw mut table.me().sp, table.sp[hart()]);
    change_stacks(table, from, to);
}

/// A new thread begins: the table is locked.
extern "C" fn begin() -> ! {
    // SAFETY: as `change_stacks` says.
    unsafe { TABLE.force_unlock() };
    let start = TABLE.lock().me().start.take();
    start.expect("a thread begins once")();
    stop(TABLE.lock(), State::Free);
    unreachable!("a thread that has ended runs again")
}

/// Starts a thread, on a certain hart perhaps.
pub fn spawn(pinned: Option<usize>, run: impl FnOnce() + Send + 'static) {
    let start: Option<Box<dyn FnOnce() + Send>> = Some(Box::new(run));
    let mut table = TABLE.lock();
    let free = table.threads.iter().position(|thread| thread.state == State::Free);
    let slot = free.expect("there are threads enough");
    let sp = (&raw const boot_stacks) as usize + (HARTS + slot + 1) * STACK - 112;
    // SAFETY: a free slot's stack is no thread's; the first word is where its first `ret` goes.
    unsafe { *(sp as *mut usize) = begin as *const () as usize };
    table.threads[slot] = Thread { state: State::Ready, sp, pinned, space: None, start };
    table.call_idle();
}

/// Lets others run: after an interrupt, too.
pub fn give_way() {
    take_back_interrupt();
    stop(TABLE.lock(), State::Ready);
}

/// Says in which space the thread runs from now on.
pub fn run_in(space: Option<u64>) {
    TABLE.lock().me().space = space;
    space.into_iter().for_each(pmap::load);
}

pub fn ticket(channel: Channel) -> Ticket {
    Ticket { channel, sequence: TABLE.lock().wakes[row(channel)] }
}

pub fn sleep(ticket: Ticket) {
    stop(TABLE.lock(), State::Asleep(ticket));
}

pub fn wake(channel: Channel) {
    let mut table = TABLE.lock();
    table.wakes[row(channel)] += 1;
    table.call_idle();
}

/// Runs `work(hart)` on the first harts, in a thread of its own on each, and returns when all have
/// ended.
pub fn on_harts(harts: usize, work: &(dyn Fn(usize) + Sync)) {
    const ENDED: Channel = Channel(1 << 40);
    // SAFETY: no thread uses it after its end, for which this function waits.
    let work: &'static (dyn Fn(usize) + Sync) = unsafe { core::mem::transmute(work) };
    let ended = Arc::new(AtomicUsize::new(0));
    for hart in 0..harts {
        let ended = ended.clone();
        spawn(Some(hart), move || {
            work(hart);
            ended.fetch_add(1, AcqRel);
            wake(ENDED);
        });
    }
    loop {
        // Before the look: an end that comes between the two isn't missed.
        let ticket = ticket(ENDED);
        if ended.load(Acquire) == harts {
            return;
        }
        sleep(ticket);
    }
}
