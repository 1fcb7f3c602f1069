//! Who a process acts for: its ids and capabilities. What they allow is judged in `proc::access`
//! for processes and in `fs::access` for files; nothing else compares ids.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::caps::{Caps, Secure, Sets};
use crate::errno::{Result, EPERM};

/// The largest number of supplementary groups.
pub const GROUPS_MAX: usize = 65536;

/// The ids and capabilities of a process; replaced as a whole when one changes.
#[derive(Clone)]
pub struct Cred {
    pub uid: u32,
    pub euid: u32,
    pub suid: u32,
    pub fsuid: u32,
    pub gid: u32,
    pub egid: u32,
    pub sgid: u32,
    pub fsgid: u32,
    /// Sorted.
    pub groups: Arc<Vec<u32>>,
    pub caps: Sets,
    pub secure: Secure,
}

impl Cred {
    /// The superuser's, and the kernel's own.
    pub fn root() -> Cred {
        Cred {
            uid: 0,
            euid: 0,
            suid: 0,
            fsuid: 0,
            gid: 0,
            egid: 0,
            sgid: 0,
            fsgid: 0,
            groups: Arc::default(),
            caps: Sets::FULL,
            secure: Secure::empty(),
        }
    }

    /// The kernel's, for what it does to files on its own.
    pub fn kernel() -> Arc<Cred> {
        static KERNEL: spin::Once<Arc<Cred>> = spin::Once::new();
        KERNEL.call_once(|| Arc::new(Cred::root())).clone()
    }

    /// Whether all of these capabilities are in effect.
    #[inline]
    pub fn has(&self, caps: Caps) -> bool {
        self.caps.effective.contains(caps)
    }

    /// `EPERM` without the capability.
    pub fn need(&self, cap: Caps) -> Result<()> {
        if self.has(cap) {
            Ok(())
        } else {
            Err(EPERM)
        }
    }

    /// Whether files and folders of the group are its group's.
    pub fn in_group(&self, gid: u32) -> bool {
        gid == self.fsgid || self.groups.binary_search(&gid).is_ok()
    }

    /// Whether shared objects of the group are its group's: these go by the effective id.
    pub fn in_effective_group(&self, gid: u32) -> bool {
        gid == self.egid || self.groups.binary_search(&gid).is_ok()
    }
}
