//! The null protocol: a sink for what is sent and a source of what is received, through the same chains as everything
//! else. For measurements: what a transfer between a program and the kernel costs by itself (the paper, 5.1, 5.2).

use linux_raw_sys::general as abi;

use super::pages::{Chain, Clusters};
use super::queue::{append, pour};
use super::socket::Received;
use crate::errno::*;
use crate::fs::io::{outcome, Sink, Source};

/// What polls always see.
pub const EVENTS: u32 = abi::POLLIN | abi::POLLRDNORM | abi::POLLOUT | abi::POLLWRNORM;

static ZEROES: [u8; 4096] = [0; 4096];

/// The most that is in a chain at once: a stream socket's buffer.
const PART: usize = 64 * 1024;

/// Takes all of `from` into a chain, a buffer's worth at a time, and drops it.
pub fn send(from: &mut Source<'_>) -> Result<usize> {
    let start = from.done();
    let mut result = Ok(());
    while from.left() > 0 && result.is_ok() {
        let mut chain = Chain::new();
        result = append(&mut chain, from, PART);
        chain.release(&Clusters);
    }
    outcome(from.done() - start, result)
}

/// Fills `to` from chains of zeroes.
pub fn receive(to: &mut Sink<'_>) -> Result<Received> {
    let start = to.done();
    let mut result = Ok(());
    while to.left() > 0 && result.is_ok() {
        let mut chain = Chain::new();
        let wanted = to.left().min(PART);
        result = fill(&mut chain, wanted, &ZEROES).and_then(|()| pour(&mut chain, to));
        chain.release(&Clusters);
    }
    let copied = outcome(to.done() - start, result)?;
    Ok(Received { copied, whole: copied, from: None })
}

/// Up to `most` bytes of zeroes, a buffer's worth at most.
pub fn take(most: usize) -> Result<Chain> {
    let mut chain = Chain::new();
    match fill(&mut chain, most.min(PART), &ZEROES) {
        Err(errno) if chain.is_empty() => Err(errno),
        _ => Ok(chain),
    }
}

/// Drops what is in `chain`; returns how much that was.
pub fn give(chain: &mut Chain) -> usize {
    let len = chain.len();
    chain.clear(&Clusters);
    len
}

fn fill(chain: &mut Chain, wanted: usize, bytes: &[u8]) -> Result<()> {
    while chain.len() < wanted {
        let n = bytes.len().min(wanted - chain.len());
        append(chain, &mut Source::kernel(&bytes[..n]), n)?;
    }
    Ok(())
}
