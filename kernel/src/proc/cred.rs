//! Who a process acts for. Ids are recorded, inherited and reported; files check them against their modes.

use alloc::sync::Arc;
use alloc::vec::Vec;

/// The largest number of supplementary groups.
pub const GROUPS_MAX: usize = 65536;

/// The ids of a process; replaced as a whole when one changes.
#[derive(Clone, Default)]
pub struct Cred {
    pub uid: u32,
    pub euid: u32,
    pub suid: u32,
    pub fsuid: u32,
    pub gid: u32,
    pub egid: u32,
    pub sgid: u32,
    pub fsgid: u32,
    pub groups: Arc<Vec<u32>>,
}

impl Cred {
    /// Whether the process may do what only root may.
    pub fn is_root(&self) -> bool {
        self.euid == 0
    }

    /// Whether a process with these ids may read and write the memory of one with those.
    pub fn may_look_into(&self, target: &Cred) -> bool {
        let same_user = [target.uid, target.euid, target.suid].iter().all(|&uid| uid == self.uid);
        self.is_root()
            || same_user && [target.gid, target.egid, target.sgid].iter().all(|&gid| gid == self.gid)
    }

    /// Whether a process with these ids may send signals to one with those.
    pub fn may_signal(&self, target: &Cred) -> bool {
        self.is_root() || [target.uid, target.suid].iter().any(|&uid| uid == self.euid || uid == self.uid)
    }
}
