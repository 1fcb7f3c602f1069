//! Control messages (`struct cmsghdr`): what goes along with the bytes of a message.
//!
//! ```text
//!   len level kind | data | pad | len level kind | data
//!   '-------- len --------'     ^ at a multiple of 8 from the first
//! ```

use linux_raw_sys::net;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::errno::*;
use crate::user;

/// The most descriptors in one message.
pub const RIGHTS_MAX: usize = 253;
/// Bytes of a header, and what the next one is aligned to.
const HEADER: usize = size_of::<Header>();
const ALIGN: usize = 8;

/// `struct cmsghdr`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Header {
    len: u64,
    pub level: u32,
    pub kind: u32,
}

/// Takes the first of the control messages in `rest`: its header and its data; none behind the
/// last.
///
/// Fails with `EINVAL` if it is shorter than its header, or longer than what is there.
pub fn next<'a>(rest: &mut &'a [u8]) -> Result<Option<(Header, &'a [u8])>> {
    let bytes = *rest;
    let Ok((header, _)) = Header::read_from_prefix(bytes) else { return Ok(None) };
    let len = usize::try_from(header.len).unwrap_or(usize::MAX);
    let data = bytes.get(HEADER..len).ok_or(EINVAL)?;
    *rest = bytes.get(len.next_multiple_of(ALIGN)..).unwrap_or(&[]);
    Ok(Some((header, data)))
}

/// The descriptors in the data of `SCM_RIGHTS`, behind those of the control messages before it.
///
/// Fails with `EINVAL` if there are too many together.
pub fn descriptors(data: &[u8], before: usize) -> Result<impl Iterator<Item = i32> + '_> {
    let (numbers, _) = data.as_chunks();
    if before + numbers.len() > RIGHTS_MAX {
        return Err(EINVAL);
    }
    Ok(numbers.iter().map(|&number| i32::from_ne_bytes(number)))
}

/// Control messages on their way to a program.
pub struct PutControl {
    pub at: u64,
    pub left: u64,
    /// `MSG_CTRUNC` once something had no room.
    pub flags: u32,
}

impl PutControl {
    /// Bytes of data that have room behind a header; `None` if that has none, or the receiver no
    /// memory for it.
    pub fn room(&self) -> Option<usize> {
        (self.left as usize).checked_sub(HEADER).filter(|_| self.at != 0)
    }

    /// Puts a message, or as much of it as there is room for.
    pub fn put(&mut self, level: u32, kind: u32, data: &[u8]) -> Result<()> {
        let n = data.len().min(self.room().unwrap_or(0));
        if n < data.len() {
            self.flags |= net::MSG_CTRUNC;
        }
        if self.room().is_none() {
            return Ok(());
        }
        let len = (HEADER + n) as u64;
        user::put(self.at, &Header { len, level, kind })?;
        user::copy_out(self.at.wrapping_add(HEADER as u64), &data[..n])?;
        let step = len.next_multiple_of(ALIGN as u64).min(self.left);
        self.at = self.at.wrapping_add(step);
        self.left -= step;
        Ok(())
    }
}
