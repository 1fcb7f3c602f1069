//! The atomics of the kernel's locks and channels, as loom has them.
//!
//! The kernel's are made in constants and loom's can't be, so each is made when it is first used.
//! That is no point at which loom switches, but it must come before a second thread starts: loom
//! takes the making for a store that nothing orders.

use std::sync::OnceLock;

pub use loom::sync::atomic::Ordering;

/// Between two loads of a taken lock others run: a load without that only repeats the one before.
pub struct Wait;

impl Wait {
    pub fn new() -> Wait {
        Wait
    }

    pub fn pause(&mut self) {
        loom::thread::yield_now();
    }
}

macro_rules! atomic {
    ($name:ident, $value:ty) => {
        pub struct $name(OnceLock<loom::sync::atomic::$name>, $value);

        impl $name {
            pub const fn new(value: $value) -> $name {
                $name(OnceLock::new(), value)
            }

            fn get(&self) -> &loom::sync::atomic::$name {
                self.0.get_or_init(|| loom::sync::atomic::$name::new(self.1))
            }

            pub fn load(&self, order: Ordering) -> $value {
                self.get().load(order)
            }
        }
    };
}

atomic!(AtomicBool, bool);
atomic!(AtomicU64, u64);

impl AtomicBool {
    pub fn store(&self, value: bool, order: Ordering) {
        self.get().store(value, order);
    }

    /// Storing what is there already is left out: loom orders two stores of which neither has seen
    /// the other at will, even if one of them belongs to an exchange that must come first.
    pub fn swap(&self, value: bool, order: Ordering) -> bool {
        match self.get().compare_exchange(!value, value, order, order) {
            Ok(old) | Err(old) => old,
        }
    }
}

impl AtomicU64 {
    pub fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.get().fetch_add(value, order)
    }
}
