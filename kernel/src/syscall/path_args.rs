//! Arguments that name files: paths, directory descriptors and the `AT_*` flags.

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general as abi;

use crate::cred::Cred;
use crate::errno::*;
use crate::fs::inode::InodeRef;
use crate::fs::path::{resolve, walk, Follow, Found, Place, Rules, Start, PATH_MAX};
use crate::proc::curproc;
use crate::user;

/// `AT_FDCWD` as the calls get it.
pub const CWD: i32 = abi::AT_FDCWD;

/// Copies a path in; `ENAMETOOLONG` if it is longer than a path may be.
pub fn path(addr: u64) -> Result<Vec<u8>> {
    user::read_cstr(addr, PATH_MAX)
}

/// Where a walk of `path` relative to `dir` starts.
pub fn start(dir: i32, path: &[u8]) -> Result<Start> {
    let context = curproc::context()?;
    if dir == CWD || path.first() == Some(&b'/') {
        return Ok(Start::cwd(&context));
    }
    let dir = curproc::files()?.get_any(dir)?.place().dir()?;
    Ok(Start { root: context.root(), dir, by: curproc::cred(), rules: Rules::default() })
}

/// Walks the path at `addr` up to its last component.
pub fn find(dir: i32, addr: u64, follow: Follow) -> Result<Found> {
    let path = path(addr)?;
    walk(&start(dir, &path)?, &path, follow)
}

/// The place that the path at `addr` leads to.
pub fn place(dir: i32, addr: u64, follow: Follow) -> Result<Place> {
    let path = path(addr)?;
    resolve(&start(dir, &path)?, &path, follow)
}

/// The place that a path leads to, or with `AT_EMPTY_PATH` and an empty path, that of the
/// descriptor.
pub fn place_at(by: &Arc<Cred>, dir: i32, addr: u64, flags: u32) -> Result<Place> {
    if flags & abi::AT_EMPTY_PATH != 0 && (addr == 0 || path(addr)?.is_empty()) {
        if dir == CWD {
            return Ok(curproc::context()?.cwd().into());
        }
        return Ok(curproc::files()?.get_any(dir)?.place().clone());
    }
    let path = path(addr)?;
    let start = Start { by: by.clone(), ..start(dir, &path)? };
    resolve(&start, &path, follow_of(flags))
}

/// As [`place_at`], the node alone.
pub fn node(dir: i32, addr: u64, flags: u32) -> Result<InodeRef> {
    node_by(&curproc::cred(), dir, addr, flags)
}

/// As [`node`], with other credentials.
pub fn node_by(by: &Arc<Cred>, dir: i32, addr: u64, flags: u32) -> Result<InodeRef> {
    Ok(place_at(by, dir, addr, flags)?.inode)
}

/// The meaning of `AT_SYMLINK_NOFOLLOW`.
pub fn follow_of(flags: u32) -> Follow {
    if flags & abi::AT_SYMLINK_NOFOLLOW != 0 {
        Follow::No
    } else {
        Follow::Yes
    }
}

/// `EINVAL` for flags that a call doesn't know.
pub fn only(flags: u32, known: u32) -> Result<()> {
    if flags & !known != 0 {
        return Err(EINVAL);
    }
    Ok(())
}
