//! A process's credentials: its ids and capabilities. What they allow is judged in `proc::access`
//! for processes and in `fs::access` for files; nothing else compares ids.

pub mod caps;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Deref;

use crate::charge::Charge;
use crate::errno::{Result, ENOMEM, EPERM};
use crate::mem::fault;
use caps::{Caps, Secure, Sets};

/// The largest number of supplementary groups.
pub const GROUPS_MAX: usize = 65536;

/// Supplementary groups, sorted, and what they are charged; processes share what they inherit.
#[derive(Default)]
pub struct Groups {
    list: Vec<u32>,
    _charge: Option<Charge>,
}

impl Groups {
    /// Room for so many groups, to be filled by `each`; they are charged to the user that sets
    /// them, which need not be the user of the last process that has them.
    ///
    /// # Errors
    /// `ENOMEM`, or what `each` says.
    pub fn read(uid: u32, count: usize, each: impl FnMut(usize) -> Result<u32>) -> Result<Groups> {
        let charge = Charge::lasting(uid, count * size_of::<u32>()).map_err(|_| ENOMEM)?;
        let mut list = Vec::new();
        fault::attempt(|| list.try_reserve_exact(count)).map_err(|_| ENOMEM)?;
        (0..count).map(each).try_for_each(|group| group.map(|group| list.push(group)))?;
        list.sort_unstable();
        Ok(Groups { list, _charge: Some(charge) })
    }
}

impl Deref for Groups {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        &self.list
    }
}

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
    pub groups: Arc<Groups>,
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
