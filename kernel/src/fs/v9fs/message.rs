//! Messages of 9P2000.L as bytes: numbers with the lowest byte first, strings behind their length.
//!
//! I1: what the host says is looked at before it is used: a length that leads outside of its
//! message, or a count that was not asked for, is `EIO`.

use alloc::vec::Vec;

use crate::block::p9::MESSAGE;
use crate::errno::*;

/// A message that is written; one that would be too long is refused when it is sent.
pub(super) struct Writer<'a> {
    bytes: &'a mut Vec<u8>,
    is_too_long: bool,
}

impl<'a> Writer<'a> {
    pub fn new(bytes: &'a mut Vec<u8>) -> Writer<'a> {
        Writer { bytes, is_too_long: false }
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        if self.bytes.len() + bytes.len() > MESSAGE {
            self.is_too_long = true;
        } else {
            self.bytes.extend_from_slice(bytes);
        }
        self
    }

    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes(&[value])
    }

    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub fn string(&mut self, text: &[u8]) -> &mut Self {
        self.is_too_long |= text.len() > usize::from(u16::MAX);
        self.u16(text.len() as u16).bytes(text)
    }

    /// Puts the length in front, with that of what is sent behind it.
    ///
    /// # Errors
    /// `ENAMETOOLONG`: it doesn't fit.
    pub fn finish(&mut self, behind: usize) -> Result<()> {
        let length = self.bytes.len() + behind;
        match self.bytes.first_chunk_mut() {
            Some(first) if !self.is_too_long => *first = (length as u32).to_le_bytes(),
            _ => return Err(ENAMETOOLONG),
        }
        Ok(())
    }
}

/// What is left to read of a message.
#[derive(Clone)]
pub(super) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, left) = self.0.split_at_checked(count).ok_or(EIO)?;
        self.0 = left;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (taken, left) = self.0.split_first_chunk().ok_or(EIO)?;
        self.0 = left;
        Ok(*taken)
    }

    pub fn u8(&mut self) -> Result<u8> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub fn string(&mut self) -> Result<&'a [u8]> {
        let length = self.u16()?;
        self.bytes(usize::from(length))
    }
}
