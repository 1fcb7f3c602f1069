//! Virtio devices at fixed addresses, with lines of the I/O APIC: QEMU's microvm.

use core::ptr::NonNull;

use virtio_drivers::transport::mmio::{MmioTransport, VirtIOHeader};
use virtio_drivers::transport::Transport;

use super::{attach, Found, Interrupt};
use crate::arch::layout;
use crate::arch::tables;

/// Looks into every place that ACPI lists; empty ones have device type 0, which the transport
/// refuses.
pub fn probe() {
    let Some(platform) = crate::arch::acpi::platform() else { return };
    for place in &platform.virtio {
        let (at, length) = (u64::from(place.address), place.length as usize);
        if tables::map_device(at, length as u64).is_err() {
            return;
        }
        let Some(header) = NonNull::new(layout::direct(at) as *mut VirtIOHeader) else { continue };
        // SAFETY: ACPI says that registers of this kind lie here; they were mapped just now and
        // stay, and each place is visited once.
        let transport = unsafe { MmioTransport::new(header, length) };
        if let Ok(transport) = transport {
            let kind = transport.device_type();
            attach(
                kind,
                Found { transport: transport.into(), interrupt: Interrupt::Line(place.source) },
            );
        }
    }
}
