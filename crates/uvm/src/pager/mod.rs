//! The library's pagers: memory without a file, files, devices. What a [`Pager`] is,
//! `object/pager.rs` says.

mod access;
mod anon_object;
mod device;
mod vnode;
mod write_back;

pub use crate::object::{Access, GetError, IoError, Launder, Pager, Put};
pub use access::Intent;
pub use anon_object::{AnonObject, Attached};
pub use device::DevicePager;
pub use vnode::{Vnode, VnodePager};
