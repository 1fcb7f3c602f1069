//! The kernel's heap: `talc`, which allocates, under `machine::promise`, which promises memory.

use machine::bare::Spin;
use machine::promise::PromisedHeap;
use spin::Mutex;
use talc::source::Claim;
use talc::TalcLock;

use crate::{hart, HARTS};

const BYTES: usize = 16 << 20;
static mut MEMORY: [u8; BYTES] = [0; BYTES];

/// A piece of one byte takes 32: a word of `talc`'s, in blocks of so many bytes.
#[global_allocator]
pub static HEAP: PromisedHeap<TalcLock<Mutex<()>, Claim>, Spin, HARTS, 32> = PromisedHeap::new(
    // SAFETY: the memory is this heap's alone.
    TalcLock::new(unsafe { Claim::array(&raw mut MEMORY) }),
    Spin::new(),
    hart,
);
