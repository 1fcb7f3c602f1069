//! Virtio devices on the PCI bus, with message-signalled interrupts (MSI-X): a vector of its own
//! for each, no line that is shared and no register to read in the handler.

use arrayvec::ArrayVec;
use virtio_drivers::transport::pci::bus::{Command, DeviceFunction, PciRoot};
use virtio_drivers::transport::pci::{virtio_device_type, PciTransport};

use super::{attach, Found, Interrupt, KernelHal};
use crate::arch::irq::Vector;
use crate::arch::layout;
use crate::arch::pci::Ports;
use crate::arch::tables;
use crate::println;
use crate::sync::SpinLock;

const CAPABILITY_VENDOR: u8 = 0x09;
const CAPABILITY_MSIX: u8 = 0x11;
/// The virtio capability that names the common configuration.
const COMMON: u8 = 1;
/// In the common configuration: which queue is meant, and its message's number.
const QUEUE_SELECT: u64 = 22;
const QUEUE_MESSAGE: u64 = 26;
/// Bytes of the common configuration that are used here, and of one message's table entry.
const COMMON_LENGTH: u64 = 64;
const ENTRY: u64 = 16;

/// Finds all virtio devices of bus 0.
pub fn probe() {
    let mut root = PciRoot::new(Ports);
    for (function, info) in root.enumerate_bus(0) {
        let Some(kind) = virtio_device_type(&info) else { continue };
        let (_, command) = root.get_status_command(function);
        root.set_command(function, command | Command::MEMORY_SPACE | Command::BUS_MASTER);
        let transport = PciTransport::new::<KernelHal, _>(&mut root, function);
        match (transport, Messages::find(&mut root, function)) {
            (Ok(transport), Some(messages)) => {
                attach(
                    kind,
                    Found { transport: transport.into(), interrupt: Interrupt::Pci(messages) },
                );
            }
            (Err(error), _) => println!("virtio: {function} can't be used: {error}"),
            (_, None) => println!("virtio: {function} has no MSI-X, which this kernel needs"),
        }
    }
}

/// Registers of a device, in the direct map.
#[derive(Clone, Copy)]
struct Registers {
    at: u64,
    length: u64,
}

impl Registers {
    /// Writes one of them, `place` bytes behind the first.
    fn write<T>(self, place: u64, value: T) {
        let end = place + size_of::<T>() as u64;
        assert!(
            end <= self.length && place.is_multiple_of(size_of::<T>() as u64),
            "no register at {place}"
        );
        // SAFETY: mapped by `registers`, which has made this, and never unmapped; they are no
        // memory.
        unsafe { ((self.at + place) as *mut T).write_volatile(value) };
    }
}

/// Where a device keeps what has to be written for its first message to arrive.
pub struct Messages {
    function: DeviceFunction,
    /// The capability, in configuration space.
    control: u8,
    /// The first entry of the table of messages.
    entry: Registers,
    /// The common configuration.
    common: Registers,
}

impl Messages {
    fn find(root: &mut PciRoot<Ports>, function: DeviceFunction) -> Option<Messages> {
        let (mut control, mut common) = (None, None);
        for capability in root.capabilities(function) {
            match capability.id {
                CAPABILITY_MSIX => control = Some(capability.offset),
                CAPABILITY_VENDOR if (capability.private_header >> 8) as u8 == COMMON => {
                    common = common.or(Some(capability.offset));
                }
                _ => {}
            }
        }
        let (control, common) = (control?, common?);
        let table = read(function, control + 4);
        let bar = read(function, common + 4) as u8;
        let offset = read(function, common + 8);
        Some(Messages {
            function,
            control,
            entry: registers(root, function, (table & 7) as u8, u64::from(table & !7), ENTRY)?,
            common: registers(root, function, bar, u64::from(offset), COMMON_LENGTH)?,
        })
    }

    /// See [`Interrupt::connect`].
    pub fn connect(&mut self, vector: Vector) {
        point(self.entry, vector);
        // The transport is not in use during this call.
        for place in [QUEUE_SELECT, QUEUE_MESSAGE] {
            self.common.write(place, 0u16);
        }
        // Messages on, none masked.
        let control = read(self.function, self.control);
        write(self.function, self.control, control & !(1 << 30) | 1 << 31);
        // One too many for the list stays with the first CPU.
        let _ = CONNECTED.lock().try_push((self.entry, vector));
    }
}

/// Entries of devices' tables of messages, and the vectors that they lead to.
static CONNECTED: SpinLock<ArrayVec<(Registers, Vector), 32>> =
    SpinLock::new(ArrayVec::new_const());

/// Points the devices at all CPUs that run by now, in turn: until then they interrupt the first.
/// Start-up only.
pub fn spread() {
    CONNECTED.lock().iter().for_each(|&(entry, vector)| point(entry, vector));
}

/// Writes an entry of a table of messages. It is masked meanwhile: what comes then is sent
/// afterwards.
fn point(entry: Registers, vector: Vector) {
    const MASKED: u32 = 1;
    let (address, word) = vector.message();
    for (place, value) in
        [(12, MASKED), (0, address as u32), (4, (address >> 32) as u32), (8, word), (12, 0)]
    {
        entry.write(place, value);
    }
}

fn read(function: DeviceFunction, register: u8) -> u32 {
    use virtio_drivers::transport::pci::bus::ConfigurationAccess;
    Ports.read_word(function, register)
}

fn write(function: DeviceFunction, register: u8, value: u32) {
    use virtio_drivers::transport::pci::bus::ConfigurationAccess;
    Ports.write_word(function, register, value);
}

/// Maps `length` bytes of registers at `offset` of one of the device's regions.
fn registers(
    root: &mut PciRoot<Ports>,
    function: DeviceFunction,
    bar: u8,
    offset: u64,
    length: u64,
) -> Option<Registers> {
    let (start, size) = root.bar_info(function, bar).ok()??.memory_address_size()?;
    if start == 0 || offset.checked_add(length).is_none_or(|end| end > size) {
        return None;
    }
    tables::map_device(start + offset, length).ok()?;
    Some(Registers { at: layout::direct(start + offset), length })
}
