//! Kernel threads: a table of some, run by the harts in turn; they give way by themselves, and a
//! clock interrupts programs. One lock; it ranks below every other, and is held across the change
//! of stacks.

use core::sync::atomic::{AtomicUsize, Ordering::*};

use machine::{Channel, Ticket};
use spin::{Mutex, MutexGuard};

use crate::{hart, host, pmap, sbi, HARTS};

/// The first are the harts' own, which run when nothing else can.
const THREADS: usize = 12;
const STACK: usize = 64 * 1024;
/// What channels share a count of wake-ups.
const CHANNELS: usize = 61;

#[repr(align(65536))]
struct Stacks(#[expect(dead_code, reason = "its address is used")] [[u8; STACK]; THREADS]);
#[no_mangle]
static mut boot_stacks: Stacks = Stacks([[0; STACK]; THREADS]);

#[derive(Clone, Copy, PartialEq)]
enum State {
    Free,
    Ready,
    Running,
    Asleep(usize),
}

#[derive(Clone, Copy)]
struct Thread {
    state: State,
    /// Where its stack ends while it doesn't run.
    sp: usize,
    /// The only hart that may run it.
    pinned: Option<usize>,
    /// The space that is loaded when it runs; without one it runs in any.
    space: Option<u32>,
    start: (fn(usize), usize),
}

struct Table {
    threads: [Thread; THREADS],
    running: [usize; HARTS],
    /// Harts that wait for an interrupt.
    idle: u64,
    wakes: [u64; CHANNELS],
}

const NONE: Thread =
    Thread { state: State::Free, sp: 0, pinned: None, space: None, start: (|_| (), 0) };
static TABLE: Mutex<Table> =
    Mutex::new(Table { threads: [NONE; THREADS], running: [0, 1], idle: 0, wakes: [0; CHANNELS] });

extern "C" {
    fn switch_stacks(from: *mut usize, to: usize);
}

impl Table {
    fn me(&mut self) -> &mut Thread {
        &mut self.threads[self.running[hart()]]
    }

    /// The next thread in turn that may run here, or the hart's own.
    fn next(&self) -> usize {
        let turn = (1..=THREADS).map(|n| (self.running[hart()] + n) % THREADS);
        let may = |thread: &Thread| {
            thread.state == State::Ready && thread.pinned.is_none_or(|only| only == hart())
        };
        turn.filter(|n| *n >= HARTS).find(|n| may(&self.threads[*n])).unwrap_or(hart())
    }

    fn has_work(&self) -> bool {
        if self.idle & sbi::others() != 0 {
            sbi::interrupt(self.idle & sbi::others());
        }
        self.next() != hart()
    }
}

/// The running thread stops, and the next one runs. Tables are changed before another hart can
/// take the thread: it could destroy its space there while this hart still has that loaded.
fn stop(mut table: MutexGuard<'_, Table>, state: State) {
    table.me().state = state;
    let (me, next) = (table.running[hart()], table.next());
    table.threads[next].state = State::Running;
    if me == next {
        return;
    }
    if let Some(space) = table.threads[next].space {
        pmap::load(space);
    }
    table.running[hart()] = next;
    let (from, to) = (&raw mut table.threads[me].sp, table.threads[next].sp);
    core::mem::forget(table);
    // SAFETY: the lock is held, and each side of the change gives back what the other has taken.
    // `to` is the stack of a thread that has stopped, or begins; no other hart runs it.
    unsafe {
        switch_stacks(from, to);
        TABLE.force_unlock();
    }
}

/// A new thread begins: the lock is held.
extern "C" fn begin() -> ! {
    let start = {
        // SAFETY: as `stop` says.
        unsafe { TABLE.force_unlock() };
        TABLE.lock().me().start
    };
    start.0(start.1);
    stop(TABLE.lock(), State::Free);
    unreachable!("a thread that has ended runs again")
}

/// Starts a thread.
pub fn spawn(pinned: Option<usize>, run: fn(usize), arg: usize) {
    let mut table = TABLE.lock();
    let free = (HARTS..THREADS).find(|n| table.threads[*n].state == State::Free);
    let slot = free.expect("there are threads enough");
    let sp = (&raw const boot_stacks) as usize + (slot + 1) * STACK - 112;
    // SAFETY: a free slot's stack is no thread's; the first word is where its first `ret` goes.
    unsafe { *(sp as *mut usize) = begin as *const () as usize };
    table.threads[slot] =
        Thread { state: State::Ready, sp, pinned, space: None, start: (run, arg) };
    table.has_work();
}

/// Lets others run.
pub fn give_way() {
    let table = TABLE.lock();
    if table.has_work() {
        stop(table, State::Ready);
    }
}

/// Goes on on another hart, and stays there.
pub fn move_to(to: usize) {
    let mut table = TABLE.lock();
    table.me().pinned = Some(to);
    if to != hart() {
        table.me().state = State::Ready;
        table.has_work();
        stop(table, State::Ready);
    }
}

/// Says in which space the thread runs from now on.
pub fn run_in(space: Option<u32>) {
    TABLE.lock().me().space = space;
    space.into_iter().for_each(pmap::load);
}

fn row(channel: Channel) -> usize {
    (channel.0 ^ channel.0 >> 32) as usize % CHANNELS
}

pub fn sequence(channel: Channel) -> u64 {
    TABLE.lock().wakes[row(channel)]
}

pub fn sleep(ticket: Ticket) {
    let (table, row) = (TABLE.lock(), row(ticket.channel));
    if table.wakes[row] == ticket.sequence {
        stop(table, State::Asleep(row));
    }
}

pub fn wake(channel: Channel) {
    let (mut table, row) = (TABLE.lock(), row(channel));
    table.wakes[row] += 1;
    let asleep = table.threads.iter_mut().filter(|thread| thread.state == State::Asleep(row));
    let woken = asleep.map(|thread| thread.state = State::Ready).count();
    if woken != 0 {
        table.has_work();
    }
}

/// What a hart does when there is nothing to do: an interrupt that comes between the look and the
/// wait is pending, and ends the wait.
pub fn idle() -> ! {
    loop {
        let mut table = TABLE.lock();
        table.idle &= !(1 << hart());
        if table.next() != hart() {
            stop(table, State::Ready);
            continue;
        }
        table.idle |= 1 << hart();
        drop(table);
        sbi::set_timer(None);
        // SAFETY: waits until an interrupt is pending, which isn't taken.
        unsafe { core::arch::asm!("wfi") };
        crate::user::take_interrupt(Some(crate::user::SLICE));
    }
}

/// This hart's own thread runs.
pub fn begin_hart() {
    TABLE.lock().threads[hart()].state = State::Running;
}

struct Crowd<'a> {
    work: &'a (dyn Fn(usize) + Sync),
    left: AtomicUsize,
}

/// Runs `work(n)` for each `n` below `count` in a thread of its own, on hart `n`, and returns when
/// all have ended.
pub fn at_once(count: usize, work: &(dyn Fn(usize) + Sync)) {
    const ENDED: Channel = Channel(1 << 40);
    let crowd = Crowd { work, left: AtomicUsize::new(count) };
    let run: fn(usize) = |crowd| {
        // SAFETY: `at_once` returns, and `crowd` goes, after the last has counted itself off.
        let crowd = unsafe { &*(crowd as *const Crowd<'_>) };
        (crowd.work)(hart());
        crowd.left.fetch_sub(1, AcqRel);
        wake(ENDED);
    };
    (0..count).for_each(|n| spawn(Some(n), run, &raw const crowd as usize));
    loop {
        let sequence = sequence(ENDED);
        if crowd.left.load(Acquire) == 0 {
            return;
        }
        host::enter(|_| sleep(Ticket { channel: ENDED, sequence }));
    }
}
