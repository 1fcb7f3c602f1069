//! The queue of threads that were refused memory: none is forgotten in it, one at a time asks the
//! host, and no thread is refused that the host has not ended.
//!
//! Programs take units of something through `with_room`, as a kernel takes its stacks. No page can
//! be taken from any program, so the thread that comes to the head of the queue asks the host,
//! which ends the program that has most, waits until it has gone, and says that it is worth to try
//! again. A wake-up of the queue wakes one sleeper and no more. A program that sleeps for ever is a
//! deadlock, which shuttle reports.

use std::sync::{Arc, Weak};

use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use shuttle::sync::Mutex;
use shuttle::thread::JoinHandle;

use machine::{Channel, Machine, NoMemory, ThreadCtx};
use uvm::pageout::Last;
use uvm_soft::IoBy;

use super::world::{check, spawn, World};

/// Woken when a program has gone.
const GONE: Channel = Channel(77);

/// What one program has, and what has become of it.
#[derive(Clone, Copy, Default)]
struct Program {
    units: usize,
    lives: bool,
    /// It was ended, or it asked and was itself the largest.
    has_to_go: bool,
}

struct Town {
    w: Arc<World>,
    state: Mutex<State>,
    /// A program asks the host.
    is_asked: AtomicBool,
    kills: AtomicUsize,
}

struct State {
    free: usize,
    programs: Vec<Program>,
}

impl Town {
    fn new(units: usize, programs: usize) -> Arc<Town> {
        let programs = vec![Program { lives: true, ..Program::default() }; programs];
        let town = Arc::new(Town {
            w: World::of(64, IoBy::Test, 5, None),
            state: Mutex::new(State { free: units, programs }),
            is_asked: AtomicBool::new(false),
            kills: AtomicUsize::new(0),
        });
        let host: Weak<Town> = Arc::downgrade(&town);
        town.w
            .uvm
            .machine()
            .when_run_out(move || host.upgrade().is_some_and(|town| town.make_room()));
        town
    }

    /// The host's answer to a thread that asks: whether to try again.
    fn make_room(&self) -> bool {
        let machine = self.w.uvm.machine();
        assert!(!self.is_asked.swap(true, SeqCst), "two ask the host at once");
        let victim = {
            let mut state = self.state.lock().unwrap();
            let all = 0..state.programs.len();
            let largest =
                all.filter(|&n| state.programs[n].lives).max_by_key(|&n| state.programs[n].units);
            let largest = largest.filter(|_| state.free == 0);
            largest.into_iter().for_each(|n| state.programs[n].has_to_go = true);
            largest
        };
        let tries_again = victim != Some(machine.cpu());
        if let (Some(victim), true) = (victim, tries_again) {
            self.kills.fetch_add(1, SeqCst);
            machine.end_thread(victim);
            loop {
                let ticket = machine.ticket(GONE);
                if !self.state.lock().unwrap().programs[victim].lives {
                    break;
                }
                machine.wait(&mut ThreadCtx::new().held(), ticket);
            }
        }
        self.is_asked.store(false, SeqCst);
        tries_again
    }

    fn take(&self, me: usize) -> Result<(), NoMemory> {
        let mut state = self.state.lock().unwrap();
        state.free = state.free.checked_sub(1).ok_or(NoMemory)?;
        state.programs[me].units += 1;
        Ok(())
    }

    /// A program that takes units one by one, and gives all back at its end.
    fn run(self: &Arc<Self>, me: usize, needs: usize) -> JoinHandle<()> {
        let town = self.clone();
        spawn(move || {
            town.w.uvm.machine().run_on(me);
            for _ in 0..needs {
                let mut ctx = ThreadCtx::new();
                if town.w.uvm.with_room(&mut ctx.held(), Last::AskHost, || town.take(me)).is_err() {
                    let has_to_go = town.state.lock().unwrap().programs[me].has_to_go;
                    assert!(has_to_go, "program {me} is refused, and was not ended");
                    break;
                }
            }
            let mut state = town.state.lock().unwrap();
            let units = std::mem::take(&mut state.programs[me].units);
            state.programs[me].lives = false;
            state.free += units;
            drop(state);
            town.w.uvm.machine().wake(GONE);
        })
    }

    /// A thread that is refused once and must get through then: room is there.
    fn refused_once(self: &Arc<Self>, cpu: usize) -> JoinHandle<()> {
        let town = self.clone();
        spawn(move || {
            town.w.uvm.machine().run_on(cpu);
            let mut is_first = true;
            let attempt = || if std::mem::take(&mut is_first) { Err(NoMemory) } else { Ok(()) };
            let mut ctx = ThreadCtx::new();
            assert_eq!(town.w.uvm.with_room(&mut ctx.held(), Last::AskHost, attempt), Ok(()));
        })
    }
}

/// Three programs need two of three units each. Afterwards the queue serves each program that
/// comes.
#[test]
fn whoever_is_refused_has_its_turn_or_is_ended() {
    check(|| {
        let town = Town::new(3, 3);
        let programs: Vec<_> = (0..3).map(|me| town.run(me, 2)).collect();
        programs.into_iter().for_each(|program| program.join().unwrap());
        assert!(town.kills.load(SeqCst) < 3, "everybody was ended");
        assert_eq!(town.state.lock().unwrap().free, 3);
        let late = [3, 4].map(|cpu| town.refused_once(cpu));
        late.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// Two come at the moment in which a third leaves: both find the turn taken, and a thread must tell
/// one of them.
#[test]
fn who_comes_to_the_line_as_another_leaves_is_not_forgotten() {
    check(|| {
        let town = Town::new(1, 0);
        let threads = [0, 1, 2].map(|cpu| town.refused_once(cpu));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// A thread that is ended while it waits may be the one whose turn has just come: the turn passes
/// on.
#[test]
fn who_is_ended_as_its_turn_comes_hands_it_on() {
    check(|| {
        let town = Town::new(1, 0);
        let mut threads = vec![town.refused_once(1), town.refused_once(2)];
        let other = town.clone();
        threads.push(spawn(move || {
            other.w.uvm.machine().run_on(0);
            let mut is_first = true;
            let attempt = || if std::mem::take(&mut is_first) { Err(NoMemory) } else { Ok(()) };
            let mut ctx = ThreadCtx::new();
            // It has been served before it was ended, or not at all.
            let _ = other.w.uvm.with_room(&mut ctx.held(), Last::AskHost, attempt);
        }));
        town.w.uvm.machine().end_thread(0);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// A wait may return early: a thread that wakes up while another has the turn waits on.
#[test]
fn who_wakes_up_early_takes_no_turn() {
    check(|| {
        let town = Town::new(3, 3);
        let programs: Vec<_> = (0..3).map(|me| town.run(me, 2)).collect();
        for _ in 0..3 {
            town.w.uvm.machine().wake(Channel::MEMORY_TURN);
            shuttle::thread::yield_now();
        }
        programs.into_iter().for_each(|program| program.join().unwrap());
        assert_eq!(town.state.lock().unwrap().free, 3);
    });
}
