//! How a datagram has come, as its receiver asks to be told by control messages: when, where to,
//! through how many hops, with which traffic class (RFC 3542 for IP version 6).

use linux_raw_sys::net;
use zerocopy::IntoBytes;

use super::address::{Family, Ip};
use super::control::{Header, PutControl};
use super::interface;
use super::options::{Options, IPPROTO_IP, IPPROTO_IPV6, SOL_SOCKET};
use crate::errno::*;
use crate::sched::{self, Nanos};

/// The options that ask for it: level and name; a socket's mask has a bit for each.
const TOLD: [(u32, u32); 8] = [
    (SOL_SOCKET, net::SO_TIMESTAMP),
    (SOL_SOCKET, net::SO_TIMESTAMPNS),
    (IPPROTO_IP, net::IP_PKTINFO),
    (IPPROTO_IP, net::IP_RECVTTL),
    (IPPROTO_IP, net::IP_RECVTOS),
    (IPPROTO_IPV6, net::IPV6_RECVPKTINFO),
    (IPPROTO_IPV6, net::IPV6_RECVHOPLIMIT),
    (IPPROTO_IPV6, net::IPV6_RECVTCLASS),
];

/// The bit of an option in a socket's mask; 0 for options that ask for something else.
pub fn bit(level: u32, name: u32) -> u8 {
    TOLD.iter().position(|&told| told == (level, name)).map_or(0, |at| 1 << at)
}

/// The bits that setting an option clears: a time is told once.
pub fn excludes(bit: u8) -> u8 {
    if bit & 0b11 != 0 {
        !bit & 0b11
    } else {
        0
    }
}

/// What a sender says of one datagram, besides its options.
#[derive(Clone, Copy, Default)]
pub struct PacketOptions {
    /// The address that it is sent from.
    pub source: Option<Ip>,
    hops: Option<u8>,
    class: Option<u8>,
}

impl PacketOptions {
    /// Takes a control message of a sender.
    ///
    /// # Errors
    /// `EINVAL` for a value that there isn't, or a message that isn't of the socket's protocol's.
    pub fn take(&mut self, family: Family, header: &Header, data: &[u8]) -> Result<()> {
        match (header.level, header.kind) {
            (SOL_SOCKET, net::SCM_RIGHTS | net::SCM_CREDENTIALS) => {}
            (IPPROTO_IP, net::IP_TTL) if family == Family::Inet4 => {
                self.hops = Some(byte(data, 1)?.ok_or(EINVAL)?);
            }
            (IPPROTO_IP, net::IP_TOS) if family == Family::Inet4 => {
                self.class = Some(match *data {
                    [class] => class,
                    _ => byte(data, 0)?.ok_or(EINVAL)?,
                });
            }
            (IPPROTO_IP, net::IP_PKTINFO) if family == Family::Inet4 => {
                let &[index, source, _] = words(data)? else { return Err(EINVAL) };
                check_interface(index)?;
                self.take_source(Ip::v4(u32::from_be_bytes(source)))?;
            }
            (IPPROTO_IPV6, net::IPV6_HOPLIMIT) if family == Family::Inet6 => {
                self.hops = byte(data, -1)?.or(self.hops);
            }
            (IPPROTO_IPV6, net::IPV6_TCLASS) if family == Family::Inet6 => {
                self.class = byte(data, -1)?.or(self.class);
            }
            (IPPROTO_IPV6, net::IPV6_PKTINFO) if family == Family::Inet6 => {
                let Some((source, _)) = data.split_first_chunk().filter(|_| data.len() == 20)
                else {
                    return Err(EINVAL);
                };
                let (_, index) = data.split_last_chunk().ok_or(EINVAL)?;
                check_interface(*index)?;
                self.take_source(Ip(u128::from_be_bytes(*source)))?;
            }
            (SOL_SOCKET, _) => return Err(EINVAL),
            (IPPROTO_IP, _) if family == Family::Inet4 => return Err(EINVAL),
            (IPPROTO_IPV6, _) if family == Family::Inet6 => return Err(EINVAL),
            _ => {}
        }
        Ok(())
    }

    fn take_source(&mut self, ip: Ip) -> Result<()> {
        if ip.is_any() {
            return Ok(());
        }
        if !ip.is_local() {
            return Err(EINVAL);
        }
        self.source = Some(ip);
        Ok(())
    }
}

/// Whether a sender names no interface, or the one there is.
fn check_interface(index: [u8; 4]) -> Result<()> {
    if (0..=interface::INDEX).contains(&i32::from_ne_bytes(index)) {
        Ok(())
    } else {
        Err(ENODEV)
    }
}

fn words(data: &[u8]) -> Result<&[[u8; 4]]> {
    match data.as_chunks() {
        (words, []) => Ok(words),
        _ => Err(EINVAL),
    }
}

/// An `int` of `least` to 255; none for -1.
fn byte(data: &[u8], least: i32) -> Result<Option<u8>> {
    let &[word] = words(data)? else { return Err(EINVAL) };
    match i32::from_ne_bytes(word) {
        value if value < least => Err(EINVAL),
        -1 => Ok(None),
        value => u8::try_from(value).map(Some).map_err(|_| EINVAL),
    }
}

/// How a datagram has come.
#[derive(Clone, Copy)]
pub struct Arrival {
    to: Ip,
    hops: u8,
    class: u8,
    /// By `CLOCK_REALTIME`.
    at: Nanos,
}

impl Arrival {
    /// A datagram comes now; `sender` and `packet` are of the socket that sends it.
    pub fn new(sender: &Options, family: Family, packet: PacketOptions, to: Ip) -> Arrival {
        let is_v6 = family == Family::Inet6 && !to.is_v4();
        let [hops, class] = if is_v6 {
            [(IPPROTO_IPV6, net::IPV6_UNICAST_HOPS), (IPPROTO_IPV6, net::IPV6_TCLASS)]
        } else {
            [(IPPROTO_IP, net::IP_TTL), (IPPROTO_IP, net::IP_TOS)]
        };
        let option =
            |(level, name)| sender.kept(level, name).and_then(|value| value.try_into().ok());
        Arrival {
            to,
            hops: packet.hops.or_else(|| option(hops)).unwrap_or(64),
            class: packet.class.or_else(|| option(class)).unwrap_or(0),
            at: sched::wall(),
        }
    }

    /// Tells a receiver what its mask asks for, in the order in which Linux does.
    pub fn put(&self, mask: u8, control: &mut PutControl) -> Result<()> {
        let asks = |level, name| mask & bit(level, name) != 0;
        let time = |unit| [self.at / 1_000_000_000, self.at % 1_000_000_000 / unit];
        if asks(SOL_SOCKET, net::SO_TIMESTAMP) {
            control.put(SOL_SOCKET, net::SO_TIMESTAMP, time(1000).as_bytes())?;
        }
        if asks(SOL_SOCKET, net::SO_TIMESTAMPNS) {
            control.put(SOL_SOCKET, net::SO_TIMESTAMPNS, time(1).as_bytes())?;
        }
        let index = interface::INDEX.to_ne_bytes();
        if asks(IPPROTO_IPV6, net::IPV6_RECVPKTINFO) {
            let info = [&self.to.0.to_be_bytes()[..], &index].concat();
            control.put(IPPROTO_IPV6, net::IPV6_PKTINFO, &info)?;
        }
        if self.to.is_v4() {
            self.put_version_4(asks, index, control)
        } else {
            self.put_version_6(asks, control)
        }
    }

    fn put_version_4(
        &self,
        asks: impl Fn(u32, u32) -> bool,
        index: [u8; 4],
        control: &mut PutControl,
    ) -> Result<()> {
        if asks(IPPROTO_IP, net::IP_PKTINFO) {
            let to = (self.to.0 as u32).to_be_bytes();
            control.put(IPPROTO_IP, net::IP_PKTINFO, [index, to, to].as_flattened())?;
        }
        if asks(IPPROTO_IP, net::IP_RECVTTL) {
            control.put(IPPROTO_IP, net::IP_TTL, &i32::from(self.hops).to_ne_bytes())?;
        }
        if asks(IPPROTO_IP, net::IP_RECVTOS) {
            control.put(IPPROTO_IP, net::IP_TOS, &[self.class])?;
        }
        Ok(())
    }

    fn put_version_6(
        &self,
        asks: impl Fn(u32, u32) -> bool,
        control: &mut PutControl,
    ) -> Result<()> {
        if asks(IPPROTO_IPV6, net::IPV6_RECVHOPLIMIT) {
            let hops = i32::from(self.hops).to_ne_bytes();
            control.put(IPPROTO_IPV6, net::IPV6_HOPLIMIT, &hops)?;
        }
        if asks(IPPROTO_IPV6, net::IPV6_RECVTCLASS) {
            let class = i32::from(self.class).to_ne_bytes();
            control.put(IPPROTO_IPV6, net::IPV6_TCLASS, &class)?;
        }
        Ok(())
    }
}
