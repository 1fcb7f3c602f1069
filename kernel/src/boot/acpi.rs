//! The few things the kernel wants from ACPI: where the interrupt controllers are, and how to power off.
//!
//! A table walk of two tables (MADT, FADT) and a search for one package (`_S5_`) need no interpreter; a machine without ACPI tables
//! gets the PC's defaults. All addresses come from firmware, so each is checked to lie in the direct map before it is read.

use crate::arch::io;
use crate::mem::layout;

/// The I/O APIC that serves the ISA lines.
#[derive(Clone, Copy)]
pub struct IoApic {
    /// Physical address of its registers.
    pub address: u32,
    /// The first interrupt line it serves.
    pub first_gsi: u32,
}

/// How an ISA line is wired.
#[derive(Clone, Copy)]
pub struct Source {
    /// The line's number at the I/O APIC.
    pub gsi: u32,
    /// Level rather than edge.
    pub level: bool,
    /// Active low rather than high.
    pub active_low: bool,
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
    /// The I/O APIC, if there is one.
    pub io_apic: Option<IoApic>,
    /// The sixteen ISA lines.
    pub overrides: [Source; 16],
    power_off: Option<PowerOff>,
}

/// Reads the tables behind the root pointer, a physical address or zero.
pub fn read(rsdp: u64) -> Platform {
    let mut platform = Platform {
        io_apic: Some(IoApic { address: 0xfec0_0000, first_gsi: 0 }),
        overrides: core::array::from_fn(|n| Source { gsi: n as u32, level: false, active_low: false }),
        power_off: None,
    };
    let root = if rsdp != 0 { Some(rsdp) } else { find_root() };
    let Some(root) = root else { return platform };
    let (table, width) = if get::<u8>(root + 15) >= 2 && get::<u64>(root + 24) != 0 {
        (get::<u64>(root + 24), 8)
    } else {
        (u64::from(get::<u32>(root + 16)), 4)
    };
    let length = u64::from(get::<u32>(table + 4));
    for entry in (36..length).step_by(width) {
        let at = if width == 8 { get::<u64>(table + entry) } else { u64::from(get::<u32>(table + entry)) };
        match &get::<[u8; 4]>(at) {
            b"APIC" => read_madt(at, &mut platform),
            b"FACP" => platform.power_off = read_fadt(at),
            _ => {}
        }
    }
    platform
}

/// A value at a physical address below 4 GiB, or zeroes elsewhere.
fn get<T: Copy + zerocopy::FromBytes>(pa: u64) -> T {
    if pa >= 1 << 32 {
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
            1 => platform.io_apic = Some(IoApic { address: get(entry + 4), first_gsi: get(entry + 8) }),
            2 => {
                let flags = get::<u16>(entry + 8);
                if let Some(source) = platform.overrides.get_mut(usize::from(get::<u8>(entry + 3))) {
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

/// `_S5_` in the DSDT is a package whose first element is the sleep type to write; see ACPI 6.5, 7.4.2 and 4.8.3.2.
fn read_fadt(table: u64) -> Option<PowerOff> {
    let dsdt = u64::from(get::<u32>(table + 40));
    let length = u64::from(get::<u32>(dsdt + 4));
    let at = (36..length.saturating_sub(12)).find(|&n| &get::<[u8; 4]>(dsdt + n) == b"_S5_")? + dsdt + 4;
    // PackageOp, length (one to four bytes), element count, then the number with or without its byte prefix.
    let value = at + 2 + u64::from(get::<u8>(at + 1) >> 6) + 1;
    let sleep_type = if get::<u8>(value) == 0x0a { get::<u8>(value + 1) } else { get::<u8>(value) };
    if get::<u32>(table + 112) & 1 << 20 != 0 {
        return Some(PowerOff::Sleep { address: get(table + 248), value: sleep_type << 2 | 1 << 5 });
    }
    let port = get::<u32>(table + 64) as u16;
    (port != 0).then_some(PowerOff::Pm1 { port, value: u16::from(sleep_type) << 10 | 1 << 13 })
}

impl Platform {
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
