//! Devices with more to them than a page of code: the terminal, disks, a display's memory.
//!
//! `virtio` finds devices and drives their queues, `block` is what the rest of the kernel knows of
//! disks.

pub mod block;
pub mod framebuffer;
mod pci;
pub mod tty;
pub mod virtio;
