//! The atomics of the VM system's structures; with the feature `lines`, atomics that count cache
//! lines.
//!
//! What limits a machine of many CPUs is lines that several of them write: each write takes the
//! line from all other CPUs. An emulator has no caches to show it, so the feature simulates what
//! there is to know: which line each access to an atomic and each lock touches, from which CPU, and
//! whether the line was there already (MESI's states, caches without bounds). What is not atomic is
//! guarded by a lock, whose line moves first; what is read under a [`Shared`](crate::Shared) lock
//! isn't written.

#[cfg(not(feature = "__lines"))]
pub use core::sync::atomic::{
    AtomicBool, AtomicU16, AtomicU32, AtomicU64, AtomicU8, AtomicUsize, Ordering,
};

#[cfg(feature = "__lines")]
pub use counted::{
    begin, empty, end, touch, AtomicBool, AtomicU16, AtomicU32, AtomicU64, AtomicU8, AtomicUsize,
    Ordering,
};

#[cfg(feature = "__lines")]
mod counted {
    extern crate std;

    use core::panic::Location;
    pub use core::sync::atomic::Ordering;
    use std::collections::BTreeMap;
    use std::sync::{Mutex, MutexGuard, PoisonError};
    use std::vec::Vec;

    struct Caches {
        cpu: fn() -> usize,
        /// The CPUs that have a line.
        lines: BTreeMap<usize, u64>,
        /// Times that a line had to come from or be taken from another CPU, by place in the source.
        moved: BTreeMap<(&'static str, u32), u64>,
    }

    static CACHES: Mutex<Option<Caches>> = Mutex::new(None);

    fn caches() -> MutexGuard<'static, Option<Caches>> {
        CACHES.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to count all threads' accesses, each as of the CPU that `cpu` names on that thread.
    /// Caches keep what they have from the last count.
    pub fn begin(cpu: fn() -> usize) {
        let mut caches = caches();
        let lines = caches.take().map_or_else(BTreeMap::new, |caches| caches.lines);
        *caches = Some(Caches { cpu, lines, moved: BTreeMap::new() });
    }

    /// Empties the caches: for a new machine, whose structures may lie where another's lay.
    pub fn empty() {
        *caches() = None;
    }

    /// What has moved between CPUs since [`begin`]: file, line of the source, times; most first.
    #[must_use]
    pub fn end() -> Vec<(&'static str, u32, u64)> {
        let mut moved: Vec<_> = match &*caches() {
            Some(caches) => {
                caches.moved.iter().map(|(&(file, at), &times)| (file, at, times)).collect()
            }
            None => Vec::new(),
        };
        moved.sort_by_key(|&(.., times)| core::cmp::Reverse(times));
        moved
    }

    /// An access to what lies at an address. A line counts as moved if another CPU has it and this
    /// access, or the last change, is a write.
    #[track_caller]
    pub fn touch<T>(what: &T, writes: bool) {
        let place = Location::caller();
        let line = core::ptr::from_ref(what).addr() / 64;
        let mut caches = caches();
        let Some(caches) = &mut *caches else { return };
        let me = 1u64 << (caches.cpu)();
        let holders = caches.lines.entry(line).or_insert(0);
        let (had, others) = (*holders & me != 0, *holders & !me != 0);
        let moves = if writes { others } else { others && !had };
        *holders = if writes { me } else { *holders | me };
        if moves {
            *caches.moved.entry((place.file(), place.line())).or_insert(0) += 1;
        }
    }

    macro_rules! counted {
        ($($name:ident $value:ty),*) => {$(
            /// The atomic of this name, counted.
            #[derive(Default)]
            #[repr(transparent)]
            pub struct $name(core::sync::atomic::$name);

            #[allow(missing_docs)]
            impl $name {
                pub const fn new(value: $value) -> Self {
                    $name(core::sync::atomic::$name::new(value))
                }
                #[track_caller]
                pub fn load(&self, order: Ordering) -> $value {
                    touch(self, false);
                    self.0.load(order)
                }
                #[track_caller]
                pub fn store(&self, value: $value, order: Ordering) {
                    touch(self, true);
                    self.0.store(value, order);
                }
                #[track_caller]
                pub fn swap(&self, value: $value, order: Ordering) -> $value {
                    touch(self, true);
                    self.0.swap(value, order)
                }
                #[track_caller]
                pub fn compare_exchange(
                    &self,
                    old: $value,
                    new: $value,
                    yes: Ordering,
                    no: Ordering,
                ) -> Result<$value, $value> {
                    touch(self, true);
                    self.0.compare_exchange(old, new, yes, no)
                }
                #[track_caller]
                pub fn fetch_update(
                    &self,
                    yes: Ordering,
                    no: Ordering,
                    to: impl FnMut($value) -> Option<$value>,
                ) -> Result<$value, $value> {
                    touch(self, true);
                    self.0.fetch_update(yes, no, to)
                }
            }
        )*};
    }

    macro_rules! numbers {
        ($($name:ident $value:ty),*) => {$(
            #[allow(missing_docs)]
            impl $name {
                #[track_caller]
                pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                    touch(self, true);
                    self.0.fetch_add(value, order)
                }
                #[track_caller]
                pub fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                    touch(self, true);
                    self.0.fetch_sub(value, order)
                }
                #[track_caller]
                pub fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                    touch(self, true);
                    self.0.fetch_or(value, order)
                }
                #[track_caller]
                pub fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                    touch(self, true);
                    self.0.fetch_and(value, order)
                }
                #[track_caller]
                pub fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                    touch(self, true);
                    self.0.fetch_max(value, order)
                }
            }
        )*};
    }

    counted!(AtomicBool bool, AtomicU8 u8, AtomicU16 u16, AtomicU32 u32, AtomicU64 u64, AtomicUsize usize);
    numbers!(AtomicU8 u8, AtomicU16 u16, AtomicU32 u32, AtomicU64 u64, AtomicUsize usize);
}
