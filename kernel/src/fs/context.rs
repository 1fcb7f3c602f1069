//! A process's root directory, working directory and umask.

use core::sync::atomic::{AtomicU32, Ordering};

use super::path::Dir;
use crate::sync::SpinLock;

/// The file system side of a process; threads share it.
pub struct FsContext {
    dirs: SpinLock<Dirs>,
    umask: AtomicU32,
}

#[derive(Clone)]
struct Dirs {
    root: Dir,
    cwd: Dir,
}

impl FsContext {
    /// The first process's: both directories at `root`.
    pub fn new(root: Dir) -> FsContext {
        FsContext {
            dirs: SpinLock::new(Dirs { cwd: root.clone(), root }),
            umask: AtomicU32::new(0o022),
        }
    }

    /// A copy for `fork`.
    pub fn fork(&self) -> FsContext {
        let dirs = self.dirs.lock().clone();
        FsContext { dirs: SpinLock::new(dirs), umask: AtomicU32::new(self.umask()) }
    }

    pub fn root(&self) -> Dir {
        self.dirs.lock().root.clone()
    }

    pub fn cwd(&self) -> Dir {
        self.dirs.lock().cwd.clone()
    }

    /// Changes the working directory. The old one is dropped after unlocking: this may be its last
    /// reference.
    pub fn set_cwd(&self, dir: Dir) {
        let _old = core::mem::replace(&mut self.dirs.lock().cwd, dir);
    }

    /// Changes the root directory; likewise.
    pub fn set_root(&self, dir: Dir) {
        let _old = core::mem::replace(&mut self.dirs.lock().root, dir);
    }

    pub fn umask(&self) -> u32 {
        self.umask.load(Ordering::Relaxed)
    }

    pub fn set_umask(&self, mask: u32) -> u32 {
        self.umask.swap(mask & 0o777, Ordering::Relaxed)
    }
}
