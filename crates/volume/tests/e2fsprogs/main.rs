//! The volume against the tools that know ext4 best: images made by `mke2fs`, judged by `e2fsck`
//! and `debugfs`.

mod common;
mod crafted;
mod crashes;
mod extents;
mod geometries;
#[allow(unsafe_code)]
mod hostile;
mod kills;
mod lists;
mod model;
mod renames;
mod requests;
