//! The files of `/proc/sys` that change something when they are written.

use alloc::format;
use alloc::string::String;
use core::fmt::Write;

use super::{text, Member, Setting};
use crate::errno::*;
use crate::ipc::shm;

/// A number as a program writes it.
fn number(text: &str) -> Result<u64> {
    text.trim().parse().map_err(|_| EINVAL)
}

pub(super) static SHMMAX: Setting = Setting {
    show: || format!("{}\n", shm::limits().max),
    set: |text| number(text).map(|max| shm::set_limits(|limits| limits.max = max)),
};

pub(super) static SHMALL: Setting = Setting {
    show: || format!("{}\n", shm::limits().all),
    set: |text| number(text).map(|all| shm::set_limits(|limits| limits.all = all)),
};

pub(super) static SHMMNI: Setting = Setting {
    show: || format!("{}\n", shm::limits().segments),
    set: |text| match number(text)? {
        segments @ 0..=32768 => {
            shm::set_limits(|limits| limits.segments = segments);
            Ok(())
        }
        _ => Err(EINVAL),
    },
};

/// `/proc/sysvipc`.
pub(super) static SYSVIPC: &[Member] = &[text("shm", segments)];

fn segments() -> String {
    let mut out = String::from(
        "       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      \
         atime      dtime      ctime                   rss                  swap\n",
    );
    for info in shm::list() {
        let owner = &info.owner;
        let _ = writeln!(
            out,
            "{:10} {:10}  {:4o} {:21} {:5} {:5}  {:5} {:5} {:5} {:5} {:5} {:10} {:10} {:10} {:21} {:21}",
            info.key,
            info.id,
            owner.mode,
            info.size,
            info.creator,
            info.last,
            info.attachments,
            owner.uid,
            owner.gid,
            owner.creator_uid,
            owner.creator_gid,
            info.attached,
            info.detached,
            info.changed,
            info.resident * 4096,
            info.swapped * 4096,
        );
    }
    out
}
