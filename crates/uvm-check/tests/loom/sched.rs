//! What the kernel's wait queues ask of a scheduler: note wake-ups, and sleep unless there was one.

use std::sync::Arc;

use loom::sync::{Condvar, Mutex};

pub type Nanos = u64;

/// A thread that may sleep.
#[derive(Default)]
pub struct Task {
    was_woken: Mutex<bool>,
    woken: Condvar,
}

pub struct Alarm;

loom::thread_local! {
    static CURRENT: Arc<Task> = Arc::default();
}

pub fn current_owned() -> Arc<Task> {
    CURRENT.with(Arc::clone)
}

pub fn listen(task: &Task) {
    *task.was_woken.lock().unwrap() = false;
}

pub fn look_again(task: &Task) {
    *task.was_woken.lock().unwrap() = true;
}

pub fn block(task: &Task) {
    let mut was_woken = task.was_woken.lock().unwrap();
    while !*was_woken {
        was_woken = task.woken.wait(was_woken).unwrap();
    }
}

/// Nothing here writes to disks.
pub fn flush_plug(_task: &Task) {}

pub fn block_uninterruptible(task: &Task) {
    block(task);
}

pub fn wake(task: &Arc<Task>) {
    *task.was_woken.lock().unwrap() = true;
    task.woken.notify_all();
}

pub fn signal_pending() -> bool {
    false
}

/// Others run anyway.
pub fn work_done(_bytes: usize) -> bool {
    false
}

pub fn now() -> Nanos {
    0
}

pub fn wake_at(_deadline: Nanos, _task: &Arc<Task>) -> Alarm {
    Alarm
}

pub fn timer_cancel(_alarm: Alarm) {}
