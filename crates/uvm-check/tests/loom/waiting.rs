//! The kernel's wait queues: no task that goes to sleep as others look whether one does is left
//! asleep.

use std::sync::Arc;

use loom::thread;

use super::all_schedules;
use super::sync::{SpinLock, WaitQueue};

#[test]
fn who_goes_to_sleep_as_a_condition_changes_is_woken() {
    all_schedules(3, || {
        let world = Arc::new((WaitQueue::new(), SpinLock::new(false)));
        // Loom must know the atomics before a second thread starts.
        world.0.wake_all();
        assert!(!*world.1.lock());
        let sleeper = {
            let world = world.clone();
            thread::spawn(move || world.0.wait(|| world.1.lock().then_some(())))
        };
        *world.1.lock() = true;
        world.0.wake_any();
        sleeper.join().unwrap();
    });
}
