//! This machine as the VM system sees it: `impl Machine`.

use core::arch::asm;

use machine::order::{Held, Nothing};
use machine::{Channel, Frames, Machine, NoMemory, Pa, PageNo, Ticket, PAGE_SIZE};

use super::pmap::{self, X86Pmap};
use crate::mem::{heap, layout};
use crate::sync::{Channels, Once, RawSpin};

/// The machine; its state is in statics, so a reference to it costs nothing.
pub struct KernelMachine;

/// The one there is.
pub static KERNEL: KernelMachine = KernelMachine;

static FRAMES: Once<Frames<KernelMachine>> = Once::new();
static PMAP: X86Pmap = X86Pmap;

/// Hands over all memory that start-up has left, and names the memory that devices have.
///
/// # Errors
/// [`NoMemory`].
pub fn init(segments: &[(Pa, u32)], loaded: &[(Pa, u32)], devices: &[(Pa, u32)]) -> Result<(), NoMemory> {
    let frames = Frames::with(segments, loaded, devices, super::cpu::found())?;
    pmap::init(frames.numbers())?;
    FRAMES.call_once(|| frames);
    Ok(())
}

/// Physical memory, once it has been handed over.
#[inline]
pub fn frames() -> Option<&'static Frames<KernelMachine>> {
    FRAMES.get()
}

static CHANNELS: Channels = Channels::new();

impl KernelMachine {
    /// A page in the direct map.
    #[inline]
    pub fn address(&self, page: PageNo) -> u64 {
        layout::direct(self.frames().pa(page).0)
    }

    /// A page's bytes.
    ///
    /// # Safety
    /// For as long as the slice lives, nobody else writes the page but programs through mappings they share, whose writes the caller
    /// takes as they come.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn bytes(&self, page: PageNo) -> &mut [u8] {
        // SAFETY: the direct map covers the page; exclusion is the caller's promise.
        unsafe { core::slice::from_raw_parts_mut(self.address(page) as *mut u8, PAGE_SIZE) }
    }

    /// Calls `work` with a page's bytes. The page is pinned by the caller; programs that have it mapped may write it
    /// meanwhile, and the work takes either byte.
    pub fn with_bytes<T>(&self, page: PageNo, work: impl FnOnce(&mut [u8]) -> T) -> T {
        // SAFETY: the slice ends with the call; the kernel has one such use of a page at a time, as callers hold the
        // object's writer lock or only read.
        work(unsafe { self.bytes(page) })
    }
}

impl Machine for KernelMachine {
    type Lock = RawSpin;
    type Pmap = X86Pmap;

    #[inline]
    fn pmap(&self) -> &X86Pmap {
        &PMAP
    }

    #[inline]
    fn frames(&self) -> &Frames<Self> {
        // SAFETY: memory is handed over in start-up before anything can reach the VM system.
        unsafe { FRAMES.get_unchecked() }
    }

    #[inline]
    fn cpu(&self) -> usize {
        super::cpu::index()
    }

    /// With 16-byte stores: half the instructions of 8-byte ones, and faster under TCG than any `rep`. The program's vector register
    /// is put back.
    #[inline]
    fn zero(&self, page: PageNo) {
        // SAFETY: the caller owns the frame; the direct map covers it; xmm0 holds a program's value and is restored.
        unsafe {
            asm!(
                "sub rsp, 16",
                "movups [rsp], xmm0",
                "pxor xmm0, xmm0",
                "2:",
                ".set zeroed, 0",
                ".rept 64",
                "movaps [{at} + zeroed], xmm0",
                ".set zeroed, zeroed + 16",
                ".endr",
                "add {at}, 1024",
                "test {at}, 0xfff",
                "jnz 2b",
                "movups xmm0, [rsp]",
                "add rsp, 16",
                at = inout(reg) self.address(page) => _,
            );
        }
    }

    #[inline]
    fn copy(&self, from: PageNo, to: PageNo) {
        // SAFETY: the caller owns `to`, and the direct map covers both.
        unsafe {
            asm!(
                "rep movsq",
                inout("rsi") self.address(from) => _,
                inout("rdi") self.address(to) => _,
                inout("rcx") PAGE_SIZE / 8 => _,
                options(nostack, preserves_flags)
            );
        }
    }

    fn read(&self, page: PageNo, offset: usize, buf: &mut [u8]) {
        // SAFETY: the slice lives for this copy only; programs may write meanwhile, and either byte will do.
        let bytes = unsafe { self.bytes(page) };
        buf.copy_from_slice(&bytes[offset..offset + buf.len()]);
    }

    fn write(&self, page: PageNo, offset: usize, bytes: &[u8]) {
        // SAFETY: as in `read`.
        let page = unsafe { self.bytes(page) };
        page[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    #[inline]
    fn reserve_heap(&self, bytes: usize) -> Result<(), NoMemory> {
        heap::reserve(bytes)
    }

    fn ticket(&self, channel: Channel) -> Ticket {
        CHANNELS.ticket(channel)
    }

    fn wait(&self, _held: &mut Held<'_, Nothing>, ticket: Ticket) {
        pmap::assert_all_told();
        let for_memory = [Channel::LINE, Channel::MEMORY].contains(&ticket.channel);
        CHANNELS.wait(ticket, || for_memory && self.gives_up());
    }

    fn wake(&self, channel: Channel) {
        CHANNELS.wake(channel);
    }

    fn wake_one(&self, channel: Channel) {
        CHANNELS.wake_one(channel);
    }

    fn pause(&self, _held: &mut Held<'_, Nothing>) {
        super::io::interrupt_window();
    }

    fn gives_up(&self) -> bool {
        crate::proc::is_leaving()
    }

    fn run_out(&self, _held: &mut Held<'_, Nothing>) -> bool {
        crate::proc::oom::make_room()
    }
}
