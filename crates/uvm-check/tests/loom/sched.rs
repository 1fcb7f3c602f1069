//! What the kernel's wait queues ask of a scheduler: announce a sleep, sleep, take a sleep back.

use std::sync::Arc;

use loom::sync::{Condvar, Mutex};

pub type Nanos = u64;

/// A thread that may sleep.
#[derive(Default)]
pub struct Task {
    blocked: Mutex<bool>,
    woken: Condvar,
}

pub struct Alarm;

loom::thread_local! {
    static CURRENT: Arc<Task> = Arc::default();
}

pub fn current_owned() -> Arc<Task> {
    CURRENT.with(Arc::clone)
}

pub fn prepare_to_block(task: &Task) {
    *task.blocked.lock().unwrap() = true;
}

pub fn cancel_block(task: &Task) {
    *task.blocked.lock().unwrap() = false;
}

pub fn block() {
    let task = current_owned();
    let mut blocked = task.blocked.lock().unwrap();
    while *blocked {
        blocked = task.woken.wait(blocked).unwrap();
    }
}

pub fn wake(task: &Arc<Task>) {
    *task.blocked.lock().unwrap() = false;
    task.woken.notify_all();
}

pub fn signal_pending() -> bool {
    false
}

pub fn now() -> Nanos {
    0
}

pub fn wake_at(_deadline: Nanos, _task: &Arc<Task>) -> Alarm {
    Alarm
}

pub fn timer_cancel(_alarm: Alarm) {}
