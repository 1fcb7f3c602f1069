//! Scheduling policies, numbered as `sched_setscheduler` does.
//!
//! `SCHED_FIFO` and `SCHED_RR` run before all other programs, by priority, up to 95 % of a CPU
//! while others wait (`queue`); `SCHED_BATCH` is never due; `SCHED_IDLE` has 3/1024 of a program's
//! weight. `SCHED_DEADLINE` isn't there.

/// A thread's policy, its priority, and whether its children begin with `SCHED_OTHER`.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Policy {
    kind: u8,
    priority: u8,
    pub resets_at_fork: bool,
}

pub const OTHER: u8 = 0;
pub const FIFO: u8 = 1;
pub const ROUND_ROBIN: u8 = 2;
pub const BATCH: u8 = 3;
pub const IDLE: u8 = 5;

impl Policy {
    /// Of a kind and a priority; `None` if there is no such kind, or if the priority isn't one of
    /// its.
    pub fn new(kind: i32, priority: u32, resets_at_fork: bool) -> Option<Policy> {
        let kind = u8::try_from(kind).ok()?;
        let priorities = Policy::priorities(kind)?;
        let priority = u8::try_from(priority).ok().filter(|p| priorities.contains(p))?;
        Some(Policy { kind, priority, resets_at_fork })
    }

    /// The priorities of a kind; `None` if there is no such kind.
    pub fn priorities(kind: u8) -> Option<core::ops::RangeInclusive<u8>> {
        match kind {
            OTHER | BATCH | IDLE => Some(0..=0),
            FIFO | ROUND_ROBIN => Some(1..=99),
            _ => None,
        }
    }

    pub fn kind(self) -> u8 {
        self.kind
    }

    /// From 1 to 99 for a real-time policy, 0 for others.
    pub fn priority(self) -> u8 {
        self.priority
    }

    /// What a child has of it.
    pub fn of_child(self) -> Policy {
        if self.resets_at_fork {
            Policy::default()
        } else {
            self
        }
    }

    pub fn bits(self) -> u32 {
        u32::from_le_bytes([self.kind, self.priority, u8::from(self.resets_at_fork), 0])
    }

    /// Of what [`bits`](Self::bits) gave.
    pub fn from_bits(bits: u32) -> Policy {
        let [kind, priority, resets, _] = bits.to_le_bytes();
        Policy { kind, priority, resets_at_fork: resets != 0 }
    }
}
