//! Socket addresses, and their form in user memory.

use alloc::boxed::Box;
use alloc::vec::Vec;

use linux_raw_sys::{general as abi, net};

use crate::errno::*;
use crate::user;

/// The longest address of any family (`struct sockaddr_storage`).
pub const ADDRESS_MAX: usize = 128;
/// The most of a local name (`sun_path`).
const NAME_MAX: usize = 108;

/// Which names a socket has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// Paths and abstract names.
    Unix,
    Inet4,
    Inet6,
    /// Ports of sockets that ask the kernel.
    Netlink,
    /// A sink and a source, for measurements.
    Null,
}

/// The family number of the null protocol: behind all that Linux has, where it says `EAFNOSUPPORT`.
pub const AF_NULL: u32 = 63;

impl Family {
    pub fn from_number(number: u32) -> Result<Family> {
        Ok(match number {
            net::AF_UNIX => Family::Unix,
            net::AF_INET => Family::Inet4,
            net::AF_INET6 => Family::Inet6,
            net::AF_NETLINK => Family::Netlink,
            AF_NULL => Family::Null,
            _ => return Err(EAFNOSUPPORT),
        })
    }

    pub fn number(self) -> u32 {
        match self {
            Family::Unix => net::AF_UNIX,
            Family::Inet4 => net::AF_INET,
            Family::Inet6 => net::AF_INET6,
            Family::Netlink => net::AF_NETLINK,
            Family::Null => AF_NULL,
        }
    }

    pub fn is_inet(self) -> bool {
        matches!(self, Family::Inet4 | Family::Inet6)
    }
}

/// An internet address: version 6's form, in which version 4's have their place (RFC 4291,
/// 2.5.5.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ip(pub u128);

const MAPPED: u128 = 0xffff << 32;

impl Ip {
    pub const ANY4: Ip = Ip(MAPPED);
    pub const ANY6: Ip = Ip(0);
    pub const LOOPBACK4: Ip = Ip(MAPPED | 0x7f00_0001);
    pub const LOOPBACK6: Ip = Ip(1);

    pub fn v4(address: u32) -> Ip {
        Ip(MAPPED | u128::from(address))
    }

    pub fn is_v4(self) -> bool {
        self.0 >> 32 == 0xffff
    }

    pub fn is_any(self) -> bool {
        self == Ip::ANY4 || self == Ip::ANY6
    }

    /// Whether the address is one of this machine's: there is no interface but the loopback.
    pub fn is_local(self) -> bool {
        self == Ip::LOOPBACK6 || self.is_v4() && (self.0 as u32) >> 24 == 127
    }
}

/// A socket's name.
#[derive(Clone, PartialEq, Eq)]
pub enum Address {
    /// None.
    Unnamed,
    /// A path, as it was given.
    Path(Box<[u8]>),
    /// A name without a file.
    Abstract(Box<[u8]>),
    Inet {
        ip: Ip,
        port: u16,
    },
    /// A socket's own number, 0 for the kernel's, and groups that it is a member of.
    Netlink {
        port: u32,
        groups: u32,
    },
}

impl Address {
    /// Reads the address of `len` bytes at `addr` for a socket of `family`. `None`: it is of no
    /// family (`AF_UNSPEC`).
    ///
    /// Fails with `EINVAL` for a wrong length, `EAFNOSUPPORT` for another family.
    pub fn get(family: Family, addr: u64, len: u32) -> Result<Option<Address>> {
        RawName::read(addr, len)?.decode(family)
    }

    fn decode(family: Family, bytes: &[u8]) -> Result<Option<Address>> {
        let Some((number, rest)) = bytes.split_first_chunk::<2>() else { return Err(EINVAL) };
        let number = u32::from(u16::from_ne_bytes(*number));
        if number == 0 && family != Family::Unix {
            return Ok(None);
        }
        match family {
            Family::Unix if number == 0 && rest.is_empty() => Ok(None),
            Family::Unix if number == net::AF_UNIX => local(rest).map(Some),
            Family::Unix => Err(EINVAL),
            Family::Netlink if bytes.len() < 12 || number != net::AF_NETLINK => Err(EINVAL),
            Family::Netlink => {
                Ok(Some(Address::Netlink { port: word(bytes, 4), groups: word(bytes, 8) }))
            }
            Family::Inet4 if bytes.len() < 16 => Err(EINVAL),
            Family::Inet6 if bytes.len() < 24 => Err(EINVAL),
            Family::Inet4 if number == net::AF_INET => {
                let port = u16::from_be_bytes([rest[0], rest[1]]);
                let ip = Ip::v4(u32::from_be_bytes([rest[2], rest[3], rest[4], rest[5]]));
                Ok(Some(Address::Inet { ip, port }))
            }
            Family::Inet6 if number == net::AF_INET6 => {
                let port = u16::from_be_bytes([rest[0], rest[1]]);
                let mut ip = [0; 16];
                ip.copy_from_slice(&rest[6..22]);
                Ok(Some(Address::Inet { ip: Ip(u128::from_be_bytes(ip)), port }))
            }
            _ => Err(EAFNOSUPPORT),
        }
    }

    /// Its form for a program, with the family in front.
    pub fn encode(&self, family: Family) -> Vec<u8> {
        let mut out = Vec::with_capacity(ADDRESS_MAX);
        out.extend_from_slice(&(family.number() as u16).to_ne_bytes());
        match self {
            Address::Path(path) => {
                out.extend_from_slice(path);
                if path.len() < NAME_MAX {
                    out.push(0);
                }
            }
            Address::Abstract(name) => {
                out.push(0);
                out.extend_from_slice(name);
            }
            Address::Inet { ip, port } if family == Family::Inet4 => {
                out.extend_from_slice(&port.to_be_bytes());
                out.extend_from_slice(&(ip.0 as u32).to_be_bytes());
                out.extend_from_slice(&[0; 8]);
            }
            Address::Inet { ip, port } => {
                out.extend_from_slice(&port.to_be_bytes());
                out.extend_from_slice(&[0; 4]);
                out.extend_from_slice(&ip.0.to_be_bytes());
                out.extend_from_slice(&[0; 4]);
            }
            Address::Netlink { port, groups } => {
                out.extend_from_slice(&[0; 2]);
                out.extend_from_slice(&port.to_ne_bytes());
                out.extend_from_slice(&groups.to_ne_bytes());
            }
            Address::Unnamed if family == Family::Netlink => {
                return Address::Netlink { port: 0, groups: 0 }.encode(family);
            }
            Address::Unnamed if family.is_inet() => {
                let any = if family == Family::Inet4 { Ip::ANY4 } else { Ip::ANY6 };
                return Address::Inet { ip: any, port: 0 }.encode(family);
            }
            Address::Unnamed => {}
        }
        out
    }

    /// Writes the address to `addr`, as much as the length at `len_addr` allows, and its whole
    /// length there.
    pub fn put(&self, family: Family, addr: u64, len_addr: u64) -> Result<()> {
        let room: i32 = user::get(len_addr)?;
        let room = usize::try_from(room).map_err(|_| EINVAL)?;
        let bytes = self.encode(family);
        user::copy_out(addr, &bytes[..bytes.len().min(room)])?;
        user::put(len_addr, &(bytes.len() as u32))
    }
}

/// Four bytes of a message as a number.
pub fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([0, 1, 2, 3].map(|i| bytes[at + i]))
}

/// A name as a program has given it, whatever its family.
pub struct RawName {
    bytes: [u8; ADDRESS_MAX],
    len: usize,
}

impl RawName {
    /// Reads the `len` bytes at `addr`.
    ///
    /// # Errors
    /// `EINVAL` for a wrong length, `EFAULT`.
    pub fn read(addr: u64, len: u32) -> Result<RawName> {
        let (mut bytes, len) = ([0; ADDRESS_MAX], len as usize);
        user::copy_in(bytes.get_mut(..len).ok_or(EINVAL)?, addr)?;
        Ok(RawName { bytes, len })
    }

    /// Whether it says a family; none is `AF_UNSPEC`.
    pub fn has_family(&self) -> bool {
        self.len >= 2 && self.bytes[..2] != [0, 0]
    }

    /// Whether it says that it is of no family.
    pub fn is_unspecified(&self) -> bool {
        self.len >= 2 && !self.has_family()
    }

    /// As the name of a socket of `family`; see [`Address::get`].
    pub fn decode(&self, family: Family) -> Result<Option<Address>> {
        Address::decode(family, &self.bytes[..self.len])
    }

    /// Any address of version 4, with its port: what `bind` takes without a family.
    pub fn any_v4(&self) -> Option<Address> {
        let is_any = self.is_unspecified() && self.len >= 16 && self.bytes[4..8] == [0; 4];
        let port = u16::from_be_bytes([self.bytes[2], self.bytes[3]]);
        is_any.then_some(Address::Inet { ip: Ip::ANY4, port })
    }
}

/// A local name from `sun_path`.
fn local(path: &[u8]) -> Result<Address> {
    if path.len() > NAME_MAX {
        return Err(EINVAL);
    }
    Ok(match path.split_first() {
        None => Address::Unnamed,
        Some((0, name)) => Address::Abstract(name.into()),
        Some(_) => {
            let end = path.iter().position(|&byte| byte == 0).unwrap_or(path.len());
            Address::Path(path[..end].into())
        }
    })
}

/// What a socket carries its bytes as.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// Connected, without boundaries.
    Stream,
    /// Connected, with boundaries.
    Seqpacket,
    /// Not connected, with boundaries.
    Datagram,
}

impl Kind {
    /// From the type argument of `socket`, without its flags.
    pub fn from_number(number: u32) -> Result<Kind> {
        match number {
            net::SOCK_STREAM => Ok(Kind::Stream),
            net::SOCK_SEQPACKET => Ok(Kind::Seqpacket),
            net::SOCK_DGRAM => Ok(Kind::Datagram),
            n if n <= 10 => Err(ESOCKTNOSUPPORT),
            _ => Err(EINVAL),
        }
    }

    pub fn number(self) -> u32 {
        match self {
            Kind::Stream => net::SOCK_STREAM,
            Kind::Seqpacket => net::SOCK_SEQPACKET,
            Kind::Datagram => net::SOCK_DGRAM,
        }
    }
}

/// The bits of a type argument that are flags of the new descriptor.
pub const TYPE_FLAGS: u32 = abi::O_NONBLOCK | abi::O_CLOEXEC;
