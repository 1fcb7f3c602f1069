//! The null protocol: a sink for what is sent and a source of what is received, through the same
//! chains as everything else. For measurements: what a transfer between a program and the kernel
//! costs by itself (1998, 5.1, 5.2).
//!
//! The source has a stock of pages with noise in them, and loans them again and again, as a server
//! does with the pages of a file that everybody asks for.

use linux_raw_sys::general as abi;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use mbuf::{Pages, PAGE_SIZE};

use super::address::{Address, Ip, Kind};
use super::queue::Got;
use super::rights::Control;
use super::socket::{How, Phase, Received, Socket};
use super::transport::{Binding, Route, Rules, Transport};
use crate::chain::frame::Frame;
use crate::chain::zero_copy::{append, pour, LOAN};
use crate::chain::{append_loaned, loan_all_again, Chain, Clusters};
use crate::errno::*;
use crate::fs::pipe::Blocking;
use crate::mem::fault;
use crate::sync::Mutex;
use crate::uio::{outcome, Sink, Source};

pub struct Null;

impl Transport for Null {
    fn rules(&self) -> &'static Rules {
        &Rules {
            no_name: EISCONN,
            listens: EISCONN,
            not_connected: ENOTCONN,
            no_peer: ENOTCONN,
            most: None,
            is_lossy: false,
            connects_later: false,
            tells_of_end: false,
            shutdown_ends_listening: false,
            carries_rights: false,
        }
    }

    fn protocol(&self, _kind: Kind, asked: u32) -> Result<u32> {
        if asked == 0 {
            Ok(0)
        } else {
            Err(EPROTONOSUPPORT)
        }
    }

    fn first_phase(&self) -> Phase {
        Phase::Connected
    }

    fn bind(&self, _: &Socket, _: Option<&Address>) -> Result<(Address, Box<dyn Binding>)> {
        Err(EOPNOTSUPP)
    }

    fn bind_listener(&self, _: &Socket) -> Result<()> {
        Err(EOPNOTSUPP)
    }

    fn may_connect(&self) -> Result<()> {
        Err(EISCONN)
    }

    fn listener(&self, _: &Socket, _: &Address) -> Result<Arc<Socket>> {
        Err(EOPNOTSUPP)
    }

    fn names(&self, socket: &Socket, listener: &Socket, _: &Address) -> (Address, Address) {
        (socket.name(), listener.name())
    }

    fn peer(&self, _: &Socket, _: &Address) -> Result<(Option<Arc<Socket>>, Address)> {
        Err(EISCONN)
    }

    fn route(&self, _: &Socket, _: Option<&Address>, _: Option<Ip>) -> Result<Option<Route>> {
        Ok(None)
    }

    fn send(
        &self,
        _: &Socket,
        _: Option<&Address>,
        from: &mut Source<'_>,
        _: Option<Control>,
        _: Blocking,
    ) -> Result<usize> {
        send(from)
    }

    fn receive(&self, _: &Socket, to: &mut Sink<'_>, _: How, _: &mut Got) -> Result<Received> {
        receive(to)
    }

    fn take(&self, _: &Socket, most: usize, _: Blocking) -> Result<Chain> {
        take(most)
    }

    fn give(&self, _: &Socket, chain: &mut Chain, _: Blocking) -> Result<usize> {
        let len = chain.len();
        chain.clear(&Clusters);
        Ok(len)
    }

    fn poll(&self, _: &Socket) -> u32 {
        EVENTS
    }
}

/// What polls always see.
const EVENTS: u32 = abi::POLLIN | abi::POLLRDNORM | abi::POLLOUT | abi::POLLWRNORM;

/// The most that is in a chain at once.
const PART: usize = 2 << 20;
/// Pages of the stock.
const STOCK: usize = 16;

static PAGES: Mutex<Vec<Frame>> = Mutex::new(Vec::new());

/// Takes all of `from` into a chain, a buffer's worth at a time, and drops it.
fn send(from: &mut Source<'_>) -> Result<usize> {
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
fn receive(to: &mut Sink<'_>) -> Result<Received> {
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

/// A chain of up to `most` bytes.
///
/// # Errors
/// `ENOBUFS`.
fn take(most: usize) -> Result<Chain> {
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
    let frame = Clusters.alloc().map_err(|_| ENOBUFS)?;
    let mut state = 0x9e37_79b9_7f4a_7c15 ^ (seed as u64 + 1);
    for at in (0..PAGE_SIZE).step_by(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        frame.bytes().part(at, 8).copy_from(&state.to_le_bytes());
    }
    Ok(frame)
}
