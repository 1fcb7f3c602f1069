//! A ring of bytes. Pure: it knows neither users nor waiting.
//!
//! ```text
//!   buf   [ .... | bytes ....... | .... ]      head: next byte to read, len: bytes held
//!                 ^head           ^head+len
//! ```
//!
//! A reader that empties it moves it back to the start: the next write is one piece again, in
//! memory that is still in the cache.
//!
//! Invariants: I1: `head < buf.len()`, or both are 0; `len <= buf.len()`.

use alloc::vec::Vec;

use machine::NoMemory;

use crate::mem::fault;

/// A queue of bytes in one buffer.
pub struct Ring {
    buf: Vec<u8>,
    head: usize,
    len: usize,
}

impl Ring {
    /// An empty ring without memory.
    pub const fn new() -> Ring {
        Ring { buf: Vec::new(), head: 0, len: 0 }
    }

    /// Bytes held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes that it has memory for.
    pub fn size(&self) -> usize {
        self.buf.len()
    }

    /// The readable bytes up to the end of the buffer.
    pub fn readable(&self) -> &[u8] {
        let end = (self.head + self.len).min(self.buf.len());
        &self.buf[self.head..end]
    }

    /// All readable bytes.
    pub fn pieces(&self) -> [&[u8]; 2] {
        let first = self.readable();
        [first, &self.buf[..self.len - first.len()]]
    }

    /// Drops the first `n` bytes.
    pub fn consume(&mut self, n: usize) {
        self.len -= n;
        self.head = if self.len == 0 { 0 } else { (self.head + n) % self.buf.len() };
    }

    /// The free bytes behind the held ones, up to the end of the buffer or the head.
    pub fn writable(&mut self) -> &mut [u8] {
        let size = self.buf.len();
        let tail = self.head + self.len;
        let (from, to) = if tail < size { (tail, size) } else { (tail - size, self.head) };
        &mut self.buf[from..to]
    }

    /// The first `n` writable bytes have been written.
    pub fn produced(&mut self, n: usize) {
        self.len += n;
    }

    /// Drops the last `n` bytes.
    pub fn trim_back(&mut self, n: usize) {
        self.len -= n;
    }

    /// Moves the contents into a buffer of `size` bytes, which must hold them.
    pub fn resize(&mut self, size: usize) -> Result<(), NoMemory> {
        let mut buf = Vec::new();
        fault::attempt(|| buf.try_reserve_exact(size))?;
        self.pieces().into_iter().for_each(|piece| buf.extend_from_slice(piece));
        buf.resize(size, 0);
        self.buf = buf;
        self.head = 0;
        Ok(())
    }
}
