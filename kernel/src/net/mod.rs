//! Sockets: between processes of this machine, by name, by pair, and over the loopback addresses.
//!
//! ```text
//!   syscall/{socket,message}     the calls, with addresses (address) and control messages (control)
//!         |
//!      Socket (socket)           a node with a descriptor: phase, names, options
//!       |       \
//!       |        Transport       local, loopback, null: where names lead, what is sent (transport)
//!       |        unix, inet      which socket is bound where
//!       |        rights          descriptors on their way, and the rings that they may form
//!   Incoming (queue)             what was sent to this socket and not yet received
//!         |
//!   Chain of pages (mbuf, pages)
//! ```
//!
//! Every socket has one queue, its own incoming one; sending puts bytes into the peer's. There is
//! no protocol in between: a TCP connection over loopback is a pair of queues like any other, with
//! TCP's rules for names, errors and ends. What goes in by a page comes out by a page, and bytes
//! are copied in and out once each.
//!
//! Locks: a queue's lock sleeps and is held over user copies; everything else is a spin lock held
//! for a few instructions. No thread holds two sockets' locks at once.

pub mod address;
pub mod arrival;
mod close;
mod connect;
pub mod control;
mod garbage;
pub mod inet;
pub mod interface;
mod local;
mod loopback;
pub mod named;
mod netlink;
mod null;
pub mod options;
mod packet;
pub mod queue;
pub mod rights;
pub mod socket;
mod stream;
pub mod transport;
pub mod unix;
