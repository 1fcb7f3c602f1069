//! The names that the machine goes by: what `uname` and `/proc/sys/kernel` say.

use crate::errno::{Result, EINVAL};
use crate::sync::SpinLock;

/// The kernel's version, beside `print::RELEASE`.
pub const VERSION: &str = "#1 SMP UVM reference kernel";

/// The longest name.
pub const NAME_MAX: usize = 64;

/// A name that root may change.
pub struct HostName(SpinLock<([u8; NAME_MAX], usize)>);

pub static HOST: HostName = HostName::new(b"uvm");
pub static DOMAIN: HostName = HostName::new(b"(none)");

impl HostName {
    const fn new(text: &[u8]) -> HostName {
        let mut name = [0; NAME_MAX];
        let mut at = 0;
        while at < text.len() {
            name[at] = text[at];
            at += 1;
        }
        HostName(SpinLock::new((name, text.len())))
    }

    /// The name's bytes, and how many there are.
    pub fn get(&self) -> ([u8; NAME_MAX], usize) {
        *self.0.lock()
    }

    /// Changes it.
    ///
    /// # Errors
    /// `EINVAL` for one that is too long.
    pub fn set(&self, text: &[u8]) -> Result<()> {
        let mut name = [0; NAME_MAX];
        name.get_mut(..text.len()).ok_or(EINVAL)?.copy_from_slice(text);
        *self.0.lock() = (name, text.len());
        Ok(())
    }
}
