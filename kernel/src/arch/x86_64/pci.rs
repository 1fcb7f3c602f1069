//! The PCI bus as far as virtio devices need it: configuration by the two old ports, and bus 0
//! alone, where QEMU puts `-device`s.
//!
//! The firmware has given every device its addresses. A machine without PCI reads ones from the
//! ports, which is no device.

use virtio_drivers::transport::pci::bus::{ConfigurationAccess, DeviceFunction};

use crate::arch::io;

const ADDRESS: u16 = 0xcf8;
const DATA: u16 = 0xcfc;

/// Configuration space through the ports; only start-up uses it, so no other access comes between
/// address and data.
pub struct Ports;

fn select(function: DeviceFunction, register: u8) {
    let place = u32::from(function.bus) << 16
        | u32::from(function.device) << 11
        | u32::from(function.function) << 8;
    io::out32(ADDRESS, 1 << 31 | place | u32::from(register & 0xfc));
}

impl ConfigurationAccess for Ports {
    fn read_word(&self, function: DeviceFunction, register: u8) -> u32 {
        select(function, register);
        io::in32(DATA)
    }

    fn write_word(&mut self, function: DeviceFunction, register: u8, data: u32) {
        select(function, register);
        io::out32(DATA, data);
    }

    unsafe fn unsafe_clone(&self) -> Ports {
        Ports
    }
}
