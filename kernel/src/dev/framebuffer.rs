//! The memory of a display (QEMU's `-device bochs-display`), as `/dev/fb0`: device memory that
//! programs map.
//!
//! Nothing here sets a picture mode. What matters is whose the memory is: the card's, at an address
//! that the firmware chose, outside everything that the page allocator has. Its frames get numbers
//! when memory is handed over, before anything else runs, so it is looked for that early;
//! afterwards a device pager shows them.
//!
//! I1: the frames are shown by one pager for ever; descriptors and mappings share it.

use machine::{Pa, PAGE_SIZE};
use virtio_drivers::transport::pci::bus::{Command, PciRoot};

use crate::arch::pci::Ports;
use crate::devnum::device_number;
use crate::errno::*;
use crate::fs::file::File;
use crate::fs::ops::*;
use crate::sync::Once;
use crate::uio::{outcome, Sink, Source};
use crate::user;
use crate::vm::{self, Dir, Object};

/// The node's number, as on Linux.
pub const NUMBER: u64 = device_number(29, 0);

const VENDOR: u16 = 0x1234;
const DEVICE: u16 = 0x1111;
/// The region that is the memory; the next is registers.
const MEMORY_REGION: u8 = 0;

/// The memory's first byte and length.
static FOUND: Once<(Pa, u64)> = Once::new();
static OBJECT: Once<Object> = Once::new();

/// Looks for a display. Start-up only, before memory is handed over.
pub fn find() -> Option<(Pa, u32)> {
    let mut root = PciRoot::new(Ports);
    let mut displays = root
        .enumerate_bus(0)
        .filter(|(_, info)| (info.vendor_id, info.device_id) == (VENDOR, DEVICE));
    let (function, _) = displays.next()?;
    let (_, command) = root.get_status_command(function);
    root.set_command(function, command | Command::MEMORY_SPACE);
    let (start, size) = root.bar_info(function, MEMORY_REGION).ok()??.memory_address_size()?;
    if start == 0 || size == 0 {
        return None;
    }
    FOUND.call_once(|| (Pa(start), size));
    Some((Pa(start), (size / PAGE_SIZE as u64) as u32))
}

/// Maps what was found for the kernel and makes the object; once the VM system is there.
pub fn init() -> Result<()> {
    let Some(&(start, size)) = FOUND.get() else { return Ok(()) };
    crate::arch::tables::map_device(start.0, size)?;
    let object = Object::device(start, size)?;
    OBJECT.call_once(|| object);
    Ok(())
}

/// The memory, if the machine has a display.
pub fn memory() -> Option<&'static Object> {
    OBJECT.get()
}

/// `/dev/fb0`, opened.
pub struct FrameBuffer;

/// `struct fb_fix_screeninfo`.
#[derive(Clone, Copy, Default, zerocopy::IntoBytes, zerocopy::Immutable)]
#[repr(C)]
struct FixedInfo {
    id: [u8; 16],
    start: u64,
    len: u32,
    kind: u32,
    rest: [u32; 12],
}

impl FileOps for FrameBuffer {
    fn seekable(&self) -> bool {
        true
    }

    fn read(&self, _file: &File, at: u64, to: &mut Sink<'_>) -> Result<usize> {
        let object = memory().ok_or(ENODEV)?;
        let start = to.done();
        let len = object.size().saturating_sub(at).min(to.left() as u64);
        let result = vm::object_io(object, at, len, Dir::Read, &mut |_, bytes| to.put_page(bytes));
        outcome(to.done() - start, result)
    }

    fn write(&self, _file: &File, at: Position, from: &mut Source<'_>) -> Result<(usize, u64)> {
        let object = memory().ok_or(ENODEV)?;
        let Position::At(at) = at else { return Err(EINVAL) };
        let start = from.done();
        let len = object.size().saturating_sub(at).min(from.left() as u64);
        if len == 0 && from.left() != 0 {
            return Err(ENOSPC);
        }
        let result =
            vm::object_io(object, at, len, Dir::Write, &mut |_, bytes| from.get_page(bytes));
        let done = outcome(from.done() - start, result)?;
        Ok((done, at + done as u64))
    }

    fn ioctl(&self, _file: &File, request: u32, arg: u64) -> Result<u64> {
        const FBIOGET_FSCREENINFO: u32 = 0x4602;
        if request != FBIOGET_FSCREENINFO {
            return Err(ENOTTY);
        }
        let &(start, size) = FOUND.get().ok_or(ENODEV)?;
        let mut info = FixedInfo { start: start.0, len: size as u32, ..FixedInfo::default() };
        info.id[..5].copy_from_slice(b"bochs");
        user::put(arg, &info)?;
        Ok(0)
    }

    fn mappable(&self) -> Option<&dyn Mappable> {
        Some(self)
    }
}

impl Mappable for FrameBuffer {
    fn object(&self) -> Option<Object> {
        memory().cloned()
    }
}

const _: () = assert!(size_of::<FixedInfo>() == 80);
