//! The software machine on loom's threads, with the kernel's lock and the kernel's channels.

use std::cell::Cell;

use machine::{Channel, Pa, Ticket};
use uvm_soft::{Config, Sleepers, SoftMachine, Threads};

use crate::sync::channels::Channels;
use crate::sync::RawSpin;

pub struct LoomThreads;

pub type Loom = SoftMachine<LoomThreads>;

loom::thread_local! {
    static CPU: Cell<usize> = Cell::new(0);
}

impl Threads for LoomThreads {
    type Lock = RawSpin;
    type Sleepers = KernelSleepers;

    fn cpu() -> usize {
        CPU.with(Cell::get)
    }

    fn set_cpu(cpu: usize) {
        CPU.with(|c| c.set(cpu));
    }
}

/// Boxed: a thread of loom's has a small stack.
#[derive(Default)]
pub struct KernelSleepers(Box<Channels>);

impl Sleepers for KernelSleepers {
    fn ticket(&self, channel: Channel) -> Ticket {
        self.0.ticket(channel)
    }

    fn wait(&self, ticket: Ticket, is_enough: &dyn Fn() -> bool) {
        self.0.wait(ticket, is_enough);
    }

    fn wake(&self, channel: Channel) {
        self.0.wake(channel);
    }

    fn wake_one(&self, channel: Channel) {
        self.0.wake_one(channel);
    }

    /// The kernel wakes a thread that it ends; no test here ends one.
    fn look_again(&self) {}
}

/// A machine of few frames and two CPUs.
pub fn machine(frames: u32) -> loom::sync::Arc<Loom> {
    let config = Config { segments: vec![(Pa(0x1000), frames)], cpus: 2, ..Config::default() };
    loom::sync::Arc::new(SoftMachine::with_threads(&config))
}
