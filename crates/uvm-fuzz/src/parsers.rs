//! The kernel's readers of what comes from outside, on any bytes: none panics, and what one lets
//! through is what its users rely on.

use std::ops::Range;

use linux_raw_sys::net;

use crate::address::{Address, Family, ADDRESS_MAX};
use crate::fs::file::File;
use crate::{arch, control, cpio, elf, header, termios, tty, user};

const PAGE: u64 = 4096;

/// A program: a file that passes can be mapped as it says.
///
/// # Panics
/// If it can't.
pub fn elf(bytes: &[u8]) {
    // The kernel has the first page when it asks, and reads the rest.
    let start = &bytes[..bytes.len().min(512)];
    let Ok(image) = elf::read(&File(bytes.to_vec()), start, bytes.len() as u64) else { return };
    let mut last = 0;
    for segment in &image.segments {
        assert!(last <= segment.va && segment.file_len <= segment.mem_len);
        last = segment.va + segment.mem_len;
        assert!(
            last <= arch::layout::USER_END - PAGE && segment.va % PAGE == segment.offset % PAGE
        );
        assert!(segment.offset + segment.file_len <= bytes.len() as u64);
    }
    let (first, end) = image.span();
    assert!(first <= image.entry && image.entry < end && end <= arch::layout::USER_END);
    assert!(image.headers_va == 0 || (first..end).contains(&image.headers_va));
    assert!(image.interpreter.is_none_or(|path| !path.is_empty() && !path.contains(&0)));
}

/// A socket's address in a program's memory, as its first bytes say where and how long: what is
/// taken is given back as it was meant, no further than there is room.
///
/// # Panics
/// If it isn't.
pub fn address(bytes: &[u8]) {
    const ROOM: usize = 160;
    let Some((&[family, at, len, room], rest)) = bytes.split_first_chunk::<4>() else { return };
    let family =
        [Family::Unix, Family::Inet4, Family::Inet6, Family::Null][usize::from(family) % 4];
    // Most lengths are those of what is there; 255 and the like are those of enemies.
    let len = match len {
        0..=140 => u32::from(len),
        141..=200 => rest.len() as u32,
        _ => u32::from(len).rotate_right(u32::from(room) & 31),
    };
    user::MEMORY.set(rest.to_vec());
    let Ok(Some(address)) = Address::get(family, u64::from(at) / 16, len) else { return };
    assert!(
        len as usize <= ADDRESS_MAX && u64::from(at) / 16 + u64::from(len) <= rest.len() as u64
    );
    let told = address.encode(family);
    assert!(told.len() <= ADDRESS_MAX);
    user::MEMORY.set(told.clone());
    let again = Address::get(family, 0, told.len() as u32).ok().flatten();
    assert!(again.is_some_and(|again| again == address), "{told:?} is read as something else");
    // Where it is written, with the room that there is said behind.
    let signed = i32::from(room as i8);
    let mut memory = vec![0xee; ROOM + 4];
    memory[ROOM..].copy_from_slice(&signed.to_ne_bytes());
    user::MEMORY.set(memory);
    let put = address.put(family, 0, ROOM as u64);
    let memory = user::MEMORY.take();
    let room = usize::try_from(signed).unwrap_or(0).min(told.len());
    assert_eq!((put.is_ok(), &memory[..room]), (signed >= 0, &told[..room]));
    assert!(memory[room..ROOM].iter().all(|&byte| byte == 0xee), "more than there is room for");
    let said = i32::from_ne_bytes(std::array::from_fn(|n| memory[ROOM + n]));
    assert_eq!(said, if put.is_ok() { told.len() as i32 } else { signed });
}

/// Control messages, in a sender's bytes or made of numbers, and a receiver's room for them: they
/// are found where `CMSG_NXTHDR` finds them, and those that have room are received as they were
/// sent.
///
/// # Panics
/// If not.
pub fn control(bytes: &[u8]) {
    let Some((&[how, at, room, more], rest)) = bytes.split_first_chunk::<4>() else { return };
    let sent = if how & 1 == 0 { rest.to_vec() } else { control_bytes(rest) };
    let (meant, is_whole) = control_messages(&sent);
    let (mut unread, mut before, mut messages) = (sent.as_slice(), 0, Vec::new());
    for (level, kind, range) in meant {
        let (header, data) = control::next(&mut unread).ok().flatten().expect("a message is there");
        assert_eq!((header.level, header.kind), (level, kind));
        assert_eq!(data.as_ptr_range(), sent[range].as_ptr_range());
        messages.push((kind, data));
        if kind == net::SCM_RIGHTS {
            let (count, most) = (data.len() / 4, control::RIGHTS_MAX);
            let found =
                control::descriptors(data, before).map(|found| found.flat_map(i32::to_ne_bytes));
            let found = found.map(Vec::from_iter).ok();
            assert_eq!(found, (before + count <= most).then(|| data[..count * 4].to_vec()));
            before += found.map_or(0, |_| count);
        }
    }
    let end = control::next(&mut unread).map(|message| message.is_some());
    assert_eq!(end.ok(), is_whole.then_some(false));
    let room = usize::from(room) + usize::from(more) % 16 * 256;
    receive_control(&messages, usize::from(at), room, how & 6 == 6);
}

/// Control messages made of four bytes each, most of which are as they should be.
fn control_bytes(numbers: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for &[kind, count, wrong, fill] in numbers.as_chunks().0 {
        let count = if count > 200 { usize::from(count) * 4 } else { usize::from(count) };
        let off = if wrong < 250 { 0 } else { i64::from(wrong.wrapping_mul(87) as i8) };
        let level = if kind < 240 { net::SOL_SOCKET } else { u32::from(kind) };
        bytes.extend((16 + count as i64 + off).to_ne_bytes());
        bytes.extend([level, u32::from(kind) % 4].iter().flat_map(|word| word.to_ne_bytes()));
        bytes.extend((0..count).map(|n| fill.wrapping_add(n as u8)));
        bytes.resize(bytes.len().next_multiple_of(if wrong == 249 { 1 } else { 8 }), 0);
    }
    bytes
}

/// Level, kind and place of the data of each control message, by the macros' arithmetic, and
/// whether all are as they should be.
fn control_messages(bytes: &[u8]) -> (Vec<(u32, u32, Range<usize>)>, bool) {
    let mut messages = Vec::new();
    let mut at = 0;
    while let Some(header) = bytes.get(at..at + 16) {
        let [low, high, level, kind] =
            std::array::from_fn(|n| u32::from_ne_bytes(std::array::from_fn(|m| header[n * 4 + m])));
        let len = low as usize;
        if high != 0 || len < 16 || len > bytes.len() - at {
            return (messages, false);
        }
        messages.push((level, kind, at + 16..at + len));
        at += len.div_ceil(8) * 8;
    }
    (messages, true)
}

/// Receives control messages at `at` in memory with so much room; none at 0. If the receiver
/// `lies`, it says that there is more.
fn receive_control(messages: &[(u32, &[u8])], at: usize, room: usize, lies: bool) {
    const UNTOUCHED: u8 = 0xee;
    let says = if lies { u64::MAX - room as u64 } else { room as u64 };
    user::MEMORY.set(vec![UNTOUCHED; at + room + if lies { 0 } else { 64 }]);
    let mut put = control::PutControl { at: at as u64, left: says, flags: 0 };
    let (mut had_room, mut is_cut, mut failed) = (Vec::new(), false, false);
    for &(kind, data) in messages {
        // Numbers of descriptors are not cut: a receiver without room for one gets no file.
        let room = put.room().unwrap_or(0);
        let data =
            if kind == net::SCM_RIGHTS { &data[..data.len().min(room) / 4 * 4] } else { data };
        if data.is_empty() {
            continue;
        }
        let (left, n) = (put.left, data.len().min(room));
        let has_header = at != 0 && left >= 16;
        failed = put.put(net::SOL_SOCKET, kind, data).is_err();
        if failed {
            assert!(lies && put.left == left, "an error where there is memory");
            break;
        }
        is_cut |= n < data.len();
        had_room.extend(has_header.then_some((kind, &data[..n])));
    }
    assert_eq!(put.flags, if is_cut { net::MSG_CTRUNC } else { 0 });
    assert!(!is_cut || at == 0 || put.left < 16, "cut where there is room");
    let memory = user::MEMORY.take();
    // Behind the last one's data there may be no memory for what it is aligned to.
    let end = memory.len().min(at + (says - put.left) as usize);
    let mut written = vec![UNTOUCHED; memory.len()];
    let mut unread = &memory[at..end];
    for (kind, data) in had_room {
        let (header, read) = control::next(&mut unread).ok().flatten().expect("a message was put");
        assert_eq!((header.level, header.kind, read), (net::SOL_SOCKET, kind, data));
        let from = read.as_ptr().addr() - memory.as_ptr().addr();
        let message = from - 16..from + read.len();
        written[message.clone()].copy_from_slice(&memory[message]);
    }
    assert!(unread.is_empty(), "more than was put");
    let end = if failed { end } else { memory.len() };
    assert_eq!(memory[..end], written[..end], "bytes beside the messages");
}

/// An archive: members lie in it one behind the other.
///
/// # Panics
/// If they don't.
pub fn cpio(bytes: &[u8]) {
    let mut reader = cpio::Reader::new(bytes);
    let mut left = bytes.len();
    while let Some(entry) = reader.next() {
        let now = reader.rest().len();
        assert!(now + entry.name.len() + entry.data.len() < left, "a member takes room");
        left = now;
    }
}

/// The first page of a swap area: what is good lies in the area, in order.
///
/// # Panics
/// If it doesn't.
pub fn swap(bytes: &[u8]) {
    // The magic is at the end of the page; what comes before it is mostly nothing.
    let mut page = vec![0; PAGE as usize];
    let (front, bad) = bytes.split_at(bytes.len().min(12));
    page[1024..1024 + front.len()].copy_from_slice(front);
    let bad = &bad[..bad.len().min(4086 - 1536)];
    page[1536..1536 + bad.len()].copy_from_slice(bad);
    page[4086..].copy_from_slice(b"SWAPSPACE2");
    let Some(header) = header::Header::parse(&page) else { return };
    for part in [0..10, 5..1 << 20, 0..u64::from(u32::MAX) + 2] {
        let mut last = part.start.max(1);
        header.good(part.clone(), |range| {
            assert!(last <= range.start && range.start < range.end && range.end <= part.end);
            last = range.end;
        });
    }
}

/// A screen that shows nothing.
struct Blank;

impl tty::line::Screen for Blank {
    fn put(&mut self, _bytes: &[u8]) {}

    fn flush(&mut self) {}
}

/// A terminal's line: settings, typed bytes and reads in any order.
///
/// # Panics
/// If the line gives more than it has.
pub fn tty(bytes: &[u8]) {
    let mut line = tty::line::Line::new();
    let mut typed = 0;
    for piece in bytes.chunks(3) {
        match *piece {
            [0xf0, flags, more] => {
                let mut termios: termios::Termios = line.termios;
                termios.lflag = u32::from(flags) | u32::from(more) << 8;
                line.set_termios(termios);
            }
            [0xf1, at, value] => {
                let mut termios: termios::Termios = line.termios;
                let at = usize::from(at) % termios.cc.len();
                termios.cc[at] = value;
                line.set_termios(termios);
            }
            [0xf2, len, ..] => {
                let mut buffer = vec![0; usize::from(len)];
                let looked = line.peek(&mut buffer);
                assert!(looked.bytes <= buffer.len() && looked.bytes <= typed);
                line.take(looked);
            }
            _ => {
                for &byte in piece {
                    typed += 1;
                    line.typed(byte, &mut Blank);
                }
            }
        }
    }
}
