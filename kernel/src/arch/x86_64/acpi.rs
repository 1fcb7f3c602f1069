//! The few things the kernel wants from ACPI: where CPUs, interrupt controllers and virtio devices
//! are, and how to power off.
//!
//! A table walk of two tables (MADT, FADT), a search for one package (`_S5_`) and one for a
//! device's name (`LNRO0005`, QEMU's virtio-mmio) need no interpreter; a machine without ACPI
//! tables gets the PC's defaults. All addresses come from firmware, so each is checked to lie in
//! the direct map before it is read.

use arrayvec::ArrayVec;

use super::{io, layout};
use crate::lock::Once;

/// CPUs, I/O APICs and virtio-mmio devices at most; microvm has two I/O APICs and 24 places.
const CPUS: usize = super::cpu::MAX_CPUS;
const IO_APICS: usize = 4;
const VIRTIO_DEVICES: usize = 32;

/// An I/O APIC.
#[derive(Clone, Copy)]
pub struct IoApic {
    /// Physical address of its registers.
    pub address: u32,
    /// The first interrupt line it serves.
    pub first_gsi: u32,
}

/// How an interrupt line is wired.
#[derive(Clone, Copy)]
pub struct Source {
    /// The line's number over all I/O APICs.
    pub gsi: u32,
    /// Level rather than edge.
    pub level: bool,
    /// Active low rather than high.
    pub active_low: bool,
}

/// A place for a virtio device in memory; it may be empty.
#[derive(Clone, Copy)]
pub struct VirtioMmio {
    /// Physical address of its registers.
    pub address: u32,
    /// How many bytes of them there are.
    pub length: u32,
    /// Its interrupt.
    pub source: Source,
}

/// How to turn the power off.
#[derive(Clone, Copy)]
enum PowerOff {
    /// Write the value to the PM1a control port.
    Pm1 { port: u16, value: u16 },
    /// Write the value to the sleep control register at this physical address.
    Sleep { address: u64, value: u8 },
}

/// What the tables say.
pub struct Platform {
    /// The local APIC of each CPU that can be used; none where no table says.
    pub cpus: ArrayVec<u32, CPUS>,
    /// CPUs that can't be used: more than `CPUS`, or with APICs that only x2APIC reaches.
    pub unused_cpus: usize,
    /// The I/O APICs.
    pub io_apics: ArrayVec<IoApic, IO_APICS>,
    /// The sixteen ISA lines.
    pub overrides: [Source; 16],
    /// Places of virtio devices, in order of their addresses.
    pub virtio: ArrayVec<VirtioMmio, VIRTIO_DEVICES>,
    power_off: Option<PowerOff>,
}

static PLATFORM: Once<Platform> = Once::new();

/// Reads what the tables behind the root pointer say, a physical address or zero; once.
pub fn init(rsdp: u64) -> &'static Platform {
    PLATFORM.call_once(|| read(rsdp))
}

/// What the tables say, once they have been read.
pub fn platform() -> Option<&'static Platform> {
    PLATFORM.get()
}

/// Reads the tables behind the root pointer, a physical address or zero.
fn read(rsdp: u64) -> Platform {
    let mut platform = Platform {
        cpus: ArrayVec::new(),
        unused_cpus: 0,
        io_apics: ArrayVec::new(),
        overrides: core::array::from_fn(|n| Source {
            gsi: n as u32,
            level: false,
            active_low: false,
        }),
        virtio: ArrayVec::new(),
        power_off: None,
    };
    read_tables(rsdp, &mut platform);
    if platform.io_apics.is_empty() {
        platform.io_apics.push(IoApic { address: 0xfec0_0000, first_gsi: 0 });
    }
    platform.virtio.sort_unstable_by_key(|device| device.address);
    platform
}

fn read_tables(rsdp: u64, platform: &mut Platform) {
    let root = if rsdp != 0 { Some(rsdp) } else { find_root() };
    let Some(root) = root else { return };
    let (table, width) = if get::<u8>(root + 15) >= 2 && get::<u64>(root + 24) != 0 {
        (get::<u64>(root + 24), 8)
    } else {
        (u64::from(get::<u32>(root + 16)), 4)
    };
    let length = u64::from(get::<u32>(table + 4));
    for entry in (36..length).step_by(width) {
        let at = if width == 8 {
            get::<u64>(table + entry)
        } else {
            u64::from(get::<u32>(table + entry))
        };
        match &get::<[u8; 4]>(at) {
            b"APIC" => read_madt(at, platform),
            b"FACP" => {
                platform.power_off = read_fadt(at);
                find_virtio(u64::from(get::<u32>(at + 40)), platform);
            }
            _ => {}
        }
    }
}

/// A value at a physical address below 4 GiB, or zeroes elsewhere.
fn get<T: Copy + zerocopy::FromBytes>(pa: u64) -> T {
    if pa > (1 << 32) - size_of::<T>() as u64 {
        return T::new_zeroed();
    }
    // SAFETY: the direct map covers the first 4 GiB, and any bytes are a valid `T`.
    unsafe { (layout::direct(pa) as *const T).read_unaligned() }
}

fn find_root() -> Option<u64> {
    (0xe_0000..0x10_0000).step_by(16).find(|&pa| &get::<[u8; 8]>(pa) == b"RSD PTR ")
}

fn read_madt(table: u64, platform: &mut Platform) {
    let length = u64::from(get::<u32>(table + 4));
    let mut at = 44;
    while at + 2 <= length {
        let entry = table + at;
        match get::<u8>(entry) {
            // A CPU is enabled or not; a place for one that can be plugged in is not.
            0 if get::<u32>(entry + 4) & 1 != 0 => {
                platform.add_cpu(u32::from(get::<u8>(entry + 3)))
            }
            9 if get::<u32>(entry + 8) & 1 != 0 => platform.add_cpu(get(entry + 4)),
            1 => {
                let _ = platform
                    .io_apics
                    .try_push(IoApic { address: get(entry + 4), first_gsi: get(entry + 8) });
            }
            2 => {
                let flags = get::<u16>(entry + 8);
                if let Some(source) = platform.overrides.get_mut(usize::from(get::<u8>(entry + 3)))
                {
                    *source = Source {
                        gsi: get(entry + 4),
                        level: flags >> 2 & 3 == 3,
                        active_low: flags & 3 == 3,
                    };
                }
            }
            _ => {}
        }
        at += u64::from(get::<u8>(entry + 1)).max(2);
    }
}

/// `_S5_` in the DSDT is a package whose first element is the sleep type to write; see ACPI 6.5,
/// 7.4.2 and 4.8.3.2.
fn read_fadt(table: u64) -> Option<PowerOff> {
    let dsdt = u64::from(get::<u32>(table + 40));
    let length = u64::from(get::<u32>(dsdt + 4));
    let at =
        (36..length.saturating_sub(12)).find(|&n| &get::<[u8; 4]>(dsdt + n) == b"_S5_")? + dsdt + 4;
    // PackageOp, length (one to four bytes), element count, then the number with or without its
    // byte prefix.
    let value = at + 2 + u64::from(get::<u8>(at + 1) >> 6) + 1;
    let sleep_type = if get::<u8>(value) == 0x0a { get::<u8>(value + 1) } else { get::<u8>(value) };
    if get::<u32>(table + 112) & 1 << 20 != 0 {
        return Some(PowerOff::Sleep {
            address: get(table + 248),
            value: sleep_type << 2 | 1 << 5,
        });
    }
    let port = get::<u32>(table + 64) as u16;
    (port != 0).then_some(PowerOff::Pm1 { port, value: u16::from(sleep_type) << 10 | 1 << 13 })
}

/// Each virtio-mmio device of the DSDT is its name, then a resource template with one range of
/// memory and one interrupt; see ACPI 6.5, 6.4.3.4 and 6.4.3.6.
fn find_virtio(dsdt: u64, platform: &mut Platform) {
    /// A 32-bit fixed memory range, and an extended interrupt with one number: tag and length of
    /// each.
    const MEMORY: [u8; 3] = [0x86, 9, 0];
    const INTERRUPT: [u8; 3] = [0x89, 6, 0];
    /// Bytes behind the name in which the template lies.
    const NEAR: u64 = 128;
    let length = u64::from(get::<u32>(dsdt + 4));
    let find = |from: u64, tag: [u8; 3]| {
        (from..(from + NEAR).min(length.saturating_sub(12)))
            .find(|&n| get::<[u8; 3]>(dsdt + n) == tag)
    };
    let mut at = 36;
    while at + 8 <= length {
        at += 1;
        if &get::<[u8; 8]>(dsdt + at) != b"LNRO0005" {
            continue;
        }
        let (Some(memory), Some(interrupt)) = (find(at, MEMORY), find(at, INTERRUPT)) else {
            continue;
        };
        let (memory, interrupt) = (dsdt + memory, dsdt + interrupt);
        let flags: u8 = get(interrupt + 3);
        let source =
            Source { gsi: get(interrupt + 5), level: flags & 2 == 0, active_low: flags & 4 != 0 };
        let device = VirtioMmio { address: get(memory + 4), length: get(memory + 8), source };
        if platform.virtio.try_push(device).is_err() {
            return;
        }
    }
}

impl Platform {
    fn add_cpu(&mut self, apic: u32) {
        /// The last identifier that a message of an APIC in its first mode can name.
        const LAST: u32 = 254;
        if apic > LAST || self.cpus.try_push(apic).is_err() {
            self.unused_cpus += 1;
        }
    }

    /// Turns the power off; returns if that has no effect.
    pub fn power_off(&self) {
        match self.power_off {
            Some(PowerOff::Pm1 { port, value }) => io::out16(port, value),
            Some(PowerOff::Sleep { address, value }) if address < 1 << 32 => {
                // SAFETY: the sleep control register, which nothing else uses.
                unsafe { (layout::direct(address) as *mut u8).write_volatile(value) }
            }
            _ => {}
        }
    }
}
