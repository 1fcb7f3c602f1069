//! Checksums: CRC32C of metadata, as ext4 uses it, without the inversions at both ends; and the
//! CRC16 of group descriptors on volumes that have no other.

use crate::bytes::get32;

/// What a checksum begins with.
pub(crate) const START: u32 = !0;

/// What each of eight bytes adds to a checksum, by how many bytes lie behind it.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let mut all = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut sum = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            sum = (sum >> 1) ^ if sum & 1 == 1 { POLYNOMIAL } else { 0 };
            bit += 1;
        }
        all[0][byte] = sum;
        byte += 1;
    }
    let mut behind = 1;
    while behind < 8 {
        let mut byte = 0;
        while byte < 256 {
            let sum = all[behind - 1][byte];
            all[behind][byte] = (sum >> 8) ^ all[0][(sum & 0xff) as usize];
            byte += 1;
        }
        behind += 1;
    }
    all
}

/// Goes on with a checksum.
pub(crate) fn crc32c(sum: u32, bytes: &[u8]) -> u32 {
    let table = |n: usize, word: u32, shift: u32| TABLES[n][(word >> shift & 0xff) as usize];
    let mut words = bytes.chunks_exact(8);
    let mut sum = sum;
    for part in &mut words {
        let (low, high) = (get32(part, 0) ^ sum, get32(part, 4));
        sum = table(7, low, 0)
            ^ table(6, low, 8)
            ^ table(5, low, 16)
            ^ table(4, low, 24)
            ^ table(3, high, 0)
            ^ table(2, high, 8)
            ^ table(1, high, 16)
            ^ table(0, high, 24);
    }
    words.remainder().iter().fold(sum, |sum, &byte| (sum >> 8) ^ table(0, sum ^ u32::from(byte), 0))
}

/// Goes on with a checksum of 16 bits.
pub(crate) fn crc16(sum: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(sum, |sum, &byte| {
        (0..8).fold(sum ^ u16::from(byte), |sum, _| {
            (sum >> 1) ^ if sum & 1 == 1 { 0xa001 } else { 0 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_standards() {
        assert_eq!(!crc32c(START, b"123456789"), 0xe306_9283);
        let text = b"The quick brown fox jumps over the lazy dog";
        let parts = text.chunks(5).fold(START, crc32c);
        assert_eq!(parts, crc32c(START, text));
        assert_eq!(crc16(0xffff, b"123456789"), 0x4b37);
    }
}
