//! `/proc/net`: the sockets that have names.

use alloc::format;
use alloc::string::String;
use core::fmt::Write;

use super::address::{Address, Family, Ip, Kind};
use super::socket::{Phase, Socket};
use super::{inet, unix};

/// Of the internet protocol.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Version {
    Four,
    Six,
}

/// `/proc/net/unix`.
pub fn unix() -> String {
    let mut out = String::from("Num       RefCount Protocol Flags    Type St Inode Path\n");
    for socket in unix::all() {
        let (listens, connected) = (socket.is_listening(), socket.is_connected());
        let name = match socket.name() {
            Address::Path(path) => String::from_utf8_lossy(&path).into_owned(),
            Address::Abstract(name) => format!("@{}", String::from_utf8_lossy(&name)),
            _ => String::new(),
        };
        let flags = if listens { 0x10000 } else { 0 };
        let state = if connected { 3 } else { 1 };
        let (kind, ino) = (socket.kind.number(), socket.number());
        let _ =
            writeln!(out, "{:016x}: 00000002 00000000 {flags:08x} {kind:04x} {state:02x} {ino:5} {name}", 0);
    }
    out
}

/// `/proc/net/tcp`, `tcp6`, `udp`, `udp6`.
pub fn inet(kind: Kind, version: Version) -> String {
    let is_v4 = version == Version::Four;
    let mut out = String::from(
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n",
    );
    let wanted = |socket: &Socket| socket.kind == kind && (socket.family == Family::Inet4) == is_v4;
    for (n, socket) in inet::all().into_iter().filter(|socket| wanted(socket)).enumerate() {
        let state = match socket.ends.lock().phase {
            Phase::Listening(_) => 0x0a,
            Phase::Connected => 0x01,
            Phase::Connecting => 0x02,
            _ => 0x07,
        };
        let nobody = Address::Inet { ip: if is_v4 { Ip::ANY4 } else { Ip::ANY6 }, port: 0 };
        let peer = socket.peer_name().unwrap_or(nobody);
        let (own, peer) = (end(&socket.name(), is_v4), end(&peer, is_v4));
        let (sent, waiting) = (socket.peer().map_or(0, |peer| peer.incoming.used()), socket.incoming.used());
        let uid = socket.cred.lock().uid;
        let _ = writeln!(
            out,
            "{n:4}: {own} {peer} {state:02X} {sent:08X}:{waiting:08X} 00:00000000 00000000 {uid:5}        0 {}",
            socket.number()
        );
    }
    out
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
