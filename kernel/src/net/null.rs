//! The null protocol: a sink for what is sent and a source of what is received, through the same
//! chains as everything else. For measurements: what a transfer between a program and the kernel
//! costs by itself (1998, 5.1, 5.2).
//!
//! The source has a stock of pages with noise in them, and loans them again and again, as a server
//! does with the pages of a file that everybody asks for.

use linux_raw_sys::general as abi;

use alloc::vec::Vec;

use mbuf::{Pages, PAGE_SIZE};

use super::socket::Received;
use crate::chain::frame::Frame;
use crate::chain::zero_copy::{append, pour, LOAN};
use crate::chain::{append_loaned, loan_all_again, Chain, Clusters};
use crate::errno::*;
use crate::mem::fault;
use crate::sync::Mutex;
use crate::uio::{outcome, Sink, Source};

/// What polls always see.
pub const EVENTS: u32 = abi::POLLIN | abi::POLLRDNORM | abi::POLLOUT | abi::POLLWRNORM;

/// The most that is in a chain at once.
const PART: usize = 2 << 20;
/// Pages of the stock.
const STOCK: usize = 16;

static PAGES: Mutex<Vec<Frame>> = Mutex::new(Vec::new());

/// Takes all of `from` into a chain, a buffer's worth at a time, and drops it.
pub fn send(from: &mut Source<'_>) -> Result<usize> {
    let start = from.done();
    let mut result = Ok(());
    while from.left() > 0 && result.is_ok() {
        let mut chain = Chain::new();
        result = append(&mut chain, from, PART, LOAN.loans(from.left(), 0));
        chain.release(&Clusters);
    }
    outcome(from.done() - start, result)
}

/// Fills `to` from chains of the stock's pages.
pub fn receive(to: &mut Sink<'_>) -> Result<Received> {
    let start = to.done();
    let mut result = Ok(());
    while to.left() > 0 && result.is_ok() {
        let mut chain = take(to.left())?;
        result = pour(&mut chain, to);
        chain.release(&Clusters);
    }
    let copied = outcome(to.done() - start, result)?;
    Ok(Received { copied, whole: copied, from: None })
}

/// Drops what is in `chain`; returns how much that was.
pub fn give(chain: &mut Chain) -> usize {
    let len = chain.len();
    chain.clear(&Clusters);
    len
}

/// A chain of up to `most` bytes.
///
/// # Errors
/// `ENOBUFS`.
pub fn take(most: usize) -> Result<Chain> {
    let mut chain = Chain::new();
    let result = fill(&mut chain, most.min(PART));
    if result.is_err() {
        chain.clear(&Clusters);
    }
    result.map(|()| chain)
}

fn fill(chain: &mut Chain, len: usize) -> Result<()> {
    let mut stock = PAGES.lock();
    let missing = STOCK - stock.len();
    fault::attempt(|| stock.try_reserve_exact(missing)).map_err(|_| ENOBUFS)?;
    for seed in STOCK - missing..STOCK {
        stock.push(noise(seed)?);
    }
    let loan = loan_all_again(len.div_ceil(PAGE_SIZE), |index| stock[index % STOCK].page())
        .map_err(|_| ENOBUFS)?;
    append_loaned(chain, loan, 0..len)
}

fn noise(seed: usize) -> Result<Frame> {
    let mut frame = Clusters.alloc().map_err(|_| ENOBUFS)?;
    let mut state = 0x9e37_79b9_7f4a_7c15 ^ (seed as u64 + 1);
    for word in frame.bytes_mut().ok_or(ENOBUFS)?.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    Ok(frame)
}
