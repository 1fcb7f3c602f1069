//! Virtio devices: where they are on this machine, and what the `virtio-drivers` crate needs to
//! talk to them.
//!
//! ```text
//!   block::Disk ----> blk::Queue ----> VirtQueue, Transport (virtio-drivers)
//!   fs::v9fs -------> p9::Channel ----------^
//!        ^                |                   |
//!        |  interrupt     v                   v
//!   arch::irq <------ pci: MSI-X      KernelHal: frames that lie together, physical addresses
//!                     mmio: I/O APIC
//! ```
//! q35 has them on its PCI bus ([`pci`]), microvm at fixed addresses that ACPI lists ([`mmio`]).

pub mod blk;
mod mmio;
pub mod p9;
mod pci;
pub mod segments;

use core::ptr::NonNull;

use machine::{Machine, Pa, PageNo, PAGE_SHIFT};
use virtio_drivers::transport::{DeviceType, SomeTransport};
use virtio_drivers::{BufferDirection, Hal, PhysAddr};

use crate::arch::irq::Vector;
use crate::arch::layout;
use crate::arch::tables;
use crate::mem::direct;
use crate::mem::frames::{unlocked, KERNEL};
use crate::println;

/// Finds the machine's devices and hands each to its driver. Start-up only.
pub fn init() {
    pci::probe();
    mmio::probe();
}

/// All CPUs run: devices with messages interrupt them in turn from now on. Start-up only.
pub fn spread() {
    pci::spread();
}

/// A device that was found: how to talk to it, and how to point its interrupt at a vector once it
/// has been reset.
pub struct Found {
    pub transport: SomeTransport<'static>,
    pub interrupt: Interrupt,
}

/// Where a device's interrupts come from.
pub enum Interrupt {
    /// Messages.
    Pci(pci::Messages),
    /// A line; it has nothing to be told.
    Line(crate::arch::acpi::Source),
}

impl Interrupt {
    /// Points the interrupt of the device's first queue at `vector`; after its reset, before its
    /// queue is set up.
    pub fn connect(&mut self, vector: Vector) {
        match self {
            Interrupt::Pci(messages) => messages.connect(vector),
            Interrupt::Line(source) => {
                if let Some(platform) = crate::arch::acpi::platform() {
                    vector.route(platform, *source);
                }
            }
        }
    }
}

/// Hands a device to its driver, by what it is.
fn attach(kind: DeviceType, found: Found) {
    match kind {
        DeviceType::Block => super::attach(found),
        DeviceType::_9P => p9::attach(found),
        _ => println!("virtio: a {kind:?} device has no driver here"),
    }
}

/// What the crate needs of this kernel.
pub struct KernelHal;

// SAFETY: memory comes from the frame allocator, whole, zeroed and for no other use, through the
// direct map, which never moves.
unsafe impl Hal for KernelHal {
    fn dma_alloc(pages: usize, _direction: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        let frames = KERNEL.frames();
        let Ok(first) = unlocked(|held| frames.alloc_run(&KERNEL, held, pages as u32)) else {
            return (0, NonNull::dangling());
        };
        for page in (first.0..first.0 + pages as u32).map(PageNo) {
            KERNEL.zero(page);
            direct::keep(page);
        }
        let pa = frames.pa(first).0;
        match NonNull::new(layout::direct(pa) as *mut u8) {
            Some(at) => (pa, at),
            None => (0, NonNull::dangling()),
        }
    }

    unsafe fn dma_dealloc(pa: PhysAddr, _va: NonNull<u8>, pages: usize) -> i32 {
        for n in 0..pages as u64 {
            if let Some(page) = KERNEL.frames().page_at(Pa(pa + (n << PAGE_SHIFT))) {
                // SAFETY: `dma_alloc` gave it, and the crate and its device have done with it.
                unlocked(|held| unsafe { direct::give(held, page) });
            }
        }
        0
    }

    unsafe fn mmio_phys_to_virt(pa: PhysAddr, size: usize) -> NonNull<u8> {
        tables::map_device(pa, size as u64)
            .expect("enough memory for a device's registers at start-up");
        NonNull::new(layout::direct(pa) as *mut u8).expect("the direct map is not at zero")
    }

    unsafe fn share(buffer: NonNull<[u8]>, _direction: BufferDirection) -> PhysAddr {
        // The crate's own lie in the direct map, and `Segment::at` makes others as if they did.
        buffer.as_ptr().cast::<u8>() as u64 - layout::DIRECT
    }

    unsafe fn unshare(_pa: PhysAddr, _buffer: NonNull<[u8]>, _direction: BufferDirection) {}
}
