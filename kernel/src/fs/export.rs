//! The node behind a descriptor of exported memory.

use alloc::sync::Arc;

use super::inode::*;
use crate::fs::ops::*;
use crate::sync::Once;
use crate::vm::Export;

/// Exported memory; none before it is filled.
pub struct ExportNode {
    export: Once<Arc<Export>>,
    ino: u64,
}

impl ExportNode {
    /// A node for an export that is still to be made.
    pub fn empty() -> Arc<ExportNode> {
        Arc::new(ExportNode { export: Once::new(), ino: super::new_ino() })
    }

    /// Puts the export in, once.
    pub fn fill(&self, export: Arc<Export>) {
        self.export.call_once(|| export);
    }

    /// What is exported.
    pub fn export(&self) -> Option<&Arc<Export>> {
        self.export.get()
    }
}

impl Inode for ExportNode {
    fn stat(&self) -> Stat {
        let pages = self.export.get().map_or(0, |export| export.pages());
        let size = pages * machine::PAGE_SIZE as u64;
        Stat { size, ..Stat::plain(super::PIPE_DEVICE, self.ino, Kind::File, 0o600) }
    }

    fn open(self: Arc<Self>, _flags: u32) -> crate::errno::Result<FileRef> {
        Err(crate::errno::ENXIO)
    }
}

impl FileOps for ExportNode {}
