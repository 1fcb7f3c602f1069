//! `/proc/net`: the sockets that have names.

use alloc::string::String;
use alloc::sync::Arc;
use core::fmt::Write;

use super::text::{Spot, Text};
use crate::errno::Result;
use crate::net::address::{Address, Family, Ip, Kind};
use crate::net::socket::{Phase, Socket};
use crate::net::{inet, unix};

/// Of the internet protocol.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Version {
    Four,
    Six,
}

/// `/proc/net/unix`: a header, then the sockets in order of their numbers.
pub fn unix(spot: Spot, out: &mut Text) -> Result<Option<u64>> {
    if spot.line == 0 {
        out.write_str("Num       RefCount Protocol Flags    Type St Inode Path\n")?;
        return Ok(Some(0));
    }
    let Some((number, socket)) = unix::NAMED.next(spot.key) else { return Ok(None) };
    let Some(socket) = socket else { return Ok(Some(number + 1)) };
    let flags = if socket.is_listening() { 0x10000 } else { 0 };
    let state = if socket.is_connected() { 3 } else { 1 };
    let kind = socket.kind.number();
    write!(out, "{:016x}: 00000002 00000000 {flags:08x} {kind:04x} {state:02x} {number:5} ", 0)?;
    match socket.name() {
        Address::Path(path) => out.put(&path)?,
        Address::Abstract(name) => {
            out.write_char('@')?;
            out.put(&name)?;
        }
        _ => {}
    }
    out.write_char('\n')?;
    Ok(Some(number + 1))
}

/// `/proc/net/tcp`, `tcp6`, `udp`, `udp6`: a header, then the sockets in order of their numbers.
pub fn inet(kind: Kind, version: Version, spot: Spot, out: &mut Text) -> Result<Option<u64>> {
    if spot.line == 0 {
        out.write_str(
            "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n",
        )?;
        return Ok(Some(0));
    }
    let Some((number, socket)) = inet::BOUND.next(spot.key) else { return Ok(None) };
    let is_v4 = version == Version::Four;
    let wanted =
        |socket: &Arc<Socket>| socket.kind == kind && (socket.family == Family::Inet4) == is_v4;
    let Some(socket) = socket.filter(wanted) else { return Ok(Some(number + 1)) };
    let state = match socket.ends.lock().phase {
        Phase::Listening(_) => 0x0a,
        Phase::Connected => 0x01,
        Phase::Connecting => 0x02,
        _ => 0x07,
    };
    let nobody = Address::Inet { ip: if is_v4 { Ip::ANY4 } else { Ip::ANY6 }, port: 0 };
    let peer = socket.peer_name().unwrap_or(nobody);
    let (own, peer) = (end(&socket.name(), is_v4), end(&peer, is_v4));
    let (sent, waiting) =
        (socket.peer().map_or(0, |peer| peer.incoming.used()), socket.incoming.used());
    let uid = socket.cred.lock().uid;
    let line = spot.line - 1;
    writeln!(
        out,
        "{line:4}: {own} {peer} {state:02X} {sent:08X}:{waiting:08X} 00:00000000 00000000 {uid:5}        0 {number}"
    )?;
    Ok(Some(number + 1))
}

/// An address and port as Linux writes them: words of the machine's byte order.
fn end(name: &Address, is_v4: bool) -> String {
    let Address::Inet { ip, port } = name else { return String::new() };
    let mut out = String::new();
    let bytes = ip.0.to_be_bytes();
    let words = if is_v4 { &bytes[12..] } else { &bytes[..] };
    for word in words.chunks_exact(4) {
        let _ = write!(out, "{:08X}", u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
    }
    let _ = write!(out, ":{port:04X}");
    out
}
