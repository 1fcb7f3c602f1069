//! The kernel's readers of what comes from outside, on any bytes: none panics, and what one lets
//! through is what its users rely on.

use crate::address::{Address, Family, ADDRESS_MAX};
use crate::fs::file::File;
use crate::{cpio, elf, header, mem, termios, tty, user};

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
        assert!(last <= mem::layout::USER_END - PAGE && segment.va % PAGE == segment.offset % PAGE);
        assert!(segment.offset + segment.file_len <= bytes.len() as u64);
    }
    let (first, end) = image.span();
    assert!(first <= image.entry && image.entry < end && end <= mem::layout::USER_END);
    assert!(image.headers_va == 0 || (first..end).contains(&image.headers_va));
    assert!(image.interpreter.is_none_or(|path| !path.is_empty() && !path.contains(&0)));
}

/// A socket's address in a program's memory, as its first bytes say where and how long: what is taken is given back as it
/// was meant, no further than there is room.
///
/// # Panics
/// If it isn't.
pub fn address(bytes: &[u8]) {
    const ROOM: usize = 160;
    let Some((&[family, at, len, room], rest)) = bytes.split_first_chunk::<4>() else { return };
    let family = [Family::Unix, Family::Inet4, Family::Inet6, Family::Null][usize::from(family) % 4];
    // Most lengths are those of what is there; 255 and the like are those of enemies.
    let len = match len {
        0..=140 => u32::from(len),
        141..=200 => rest.len() as u32,
        _ => u32::from(len).rotate_right(u32::from(room) & 31),
    };
    user::MEMORY.set(rest.to_vec());
    let Ok(Some(address)) = Address::get(family, u64::from(at) / 16, len) else { return };
    assert!(len as usize <= ADDRESS_MAX && u64::from(at) / 16 + u64::from(len) <= rest.len() as u64);
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
                let n = line.peek(&mut buffer);
                assert!(n <= buffer.len() && n <= typed);
                line.take(n);
            }
            _ => {
                for &byte in piece {
                    typed += 1;
                    line.typed(byte, &mut |_| ());
                }
            }
        }
    }
}
