//! The one network interface, for the requests that ask about interfaces.

use linux_raw_sys::ioctl as abi;

use crate::errno::*;
use crate::user;

pub const NAME: &[u8] = b"lo\0";
pub const INDEX: i32 = 1;
/// Up, loopback, running, and its lower layer is up.
pub const FLAGS: u32 = 1 | 8 | 64 | 0x10000;
/// `ARPHRD_LOOPBACK`.
pub const TYPE: u16 = 772;
pub const MTU: i32 = 65536;
/// [`TYPE`], and no address.
const HARDWARE: [u8; 16] = [4, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// `struct ifreq`: a name of 16 bytes and 24 of a value.
const REQUEST: usize = 40;
/// `127.0.0.1` as a `struct sockaddr_in` without its padding.
const ADDRESS: [u8; 8] = [2, 0, 0, 0, 127, 0, 0, 1];

/// Answers the requests of `netdevice(7)` that tell about `lo`; others are `ENOTTY`.
pub fn ioctl(request: u32, arg: u64) -> Result<u64> {
    match request {
        abi::SIOCGIFCONF => list(arg)?,
        abi::SIOCGIFNAME => {
            let index: i32 = user::get(arg.wrapping_add(16))?;
            if index != INDEX {
                return Err(ENODEV);
            }
            user::copy_out(arg, NAME)?;
        }
        abi::SIOCGIFINDEX => answer(arg, &INDEX.to_ne_bytes())?,
        abi::SIOCGIFFLAGS => answer(arg, &(FLAGS as u16).to_ne_bytes())?,
        abi::SIOCGIFMTU => answer(arg, &MTU.to_ne_bytes())?,
        abi::SIOCGIFHWADDR => answer(arg, &HARDWARE)?,
        abi::SIOCGIFADDR => answer(arg, &ADDRESS)?,
        abi::SIOCGIFNETMASK => answer(arg, &[2, 0, 0, 0, 255, 0, 0, 0])?,
        _ => return Err(ENOTTY),
    }
    Ok(0)
}

/// Writes the value behind the name that the program gave, if it is ours.
fn answer(arg: u64, value: &[u8]) -> Result<()> {
    let name: [u8; 16] = user::get(arg)?;
    if !name.starts_with(NAME) {
        return Err(ENODEV);
    }
    user::copy_out(arg.wrapping_add(16), value)
}

/// `SIOCGIFCONF`: a `struct ifconf` has the room in bytes and where it is.
fn list(arg: u64) -> Result<()> {
    let room: i32 = user::get(arg)?;
    let addr: u64 = user::get(arg.wrapping_add(8))?;
    if addr != 0 && room < REQUEST as i32 {
        return user::put(arg, &0i32);
    }
    if addr != 0 {
        let mut entry = [0; REQUEST];
        entry[..NAME.len()].copy_from_slice(NAME);
        entry[16..24].copy_from_slice(&ADDRESS);
        user::copy_out(addr, &entry)?;
    }
    user::put(arg, &(REQUEST as i32))
}
