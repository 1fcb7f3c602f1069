//! Numbers as ext4 keeps them: little-endian, at any place of a block. What lies outside of the
//! bytes reads as 0 and isn't written, so that no offset from a disk can do harm.

pub(crate) fn get16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |it| u16::from_le_bytes(*it))
}

pub(crate) fn get32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |it| u32::from_le_bytes(*it))
}

pub(crate) fn put16(bytes: &mut [u8], at: usize, value: u16) {
    put(bytes, at, &value.to_le_bytes());
}

pub(crate) fn put32(bytes: &mut [u8], at: usize, value: u32) {
    put(bytes, at, &value.to_le_bytes());
}

pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + value.len()) {
        place.copy_from_slice(value);
    }
}
