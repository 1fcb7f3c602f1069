//! This machine as the VM system sees it: `impl Machine`.

use alloc::sync::Arc;
use core::arch::asm;

use machine::order::{Held, Nothing, PageQueues};
use machine::{Channel, Machine, NoMemory, Pa, PageNo, ThreadCtx, Ticket, PAGE_SIZE};
use uvm::page::Frames;

use super::bytes::PageBytes;
use super::pmap::{self, X86Pmap};
use crate::mem::{heap, layout};
use crate::sync::{assert_none_ordered, Channels, Once, RawSpin};

/// The machine; its state is in statics, so a reference to it costs nothing.
pub struct KernelMachine;

/// The one there is.
pub static KERNEL: KernelMachine = KernelMachine;

static FRAMES: Once<Arc<Frames<KernelMachine>>> = Once::new();
static PMAP: X86Pmap = X86Pmap;

/// Hands over all memory that start-up has left, and names the memory that devices have.
///
/// # Errors
/// [`NoMemory`].
pub fn init(
    segments: &[(Pa, u32)],
    loaded: &[(Pa, u32)],
    devices: &[(Pa, u32)],
) -> Result<(), NoMemory> {
    let frames = Frames::with(segments, loaded, devices, super::cpu::found())?;
    pmap::init(frames.numbers())?;
    FRAMES.call_once(|| Arc::new(frames));
    Ok(())
}

/// Physical memory, once it has been handed over.
#[inline]
pub fn frames() -> Option<&'static Arc<Frames<KernelMachine>>> {
    FRAMES.get()
}

/// Runs `call` with the token that says this thread holds no lock of the VM system. Builds with
/// debug assertions check that.
///
/// The token could come down from each system call's entry. But whoever drops a file or a page,
/// ends a transfer in an interrupt, or allocates needs one too, and destructors, handlers and
/// allocators have no parameter for it. So it is made where it is needed, in this place alone
/// (`clippy.toml`).
#[inline]
#[track_caller]
pub fn unlocked<T>(call: impl FnOnce(&mut Held<'_, Nothing>) -> T) -> T {
    assert_none_ordered();
    call(&mut thread().held())
}

/// Runs `call` with the token for the page allocator alone: the heap may grow with any other lock
/// of the VM system held. Whoever had one of the allocator's would wait for himself, which the lock
/// finds out.
pub fn at_allocator<T>(call: impl FnOnce(&mut Held<'_, PageQueues>) -> T) -> T {
    call(&mut thread().held().down_to())
}

#[inline]
#[expect(clippy::disallowed_methods, reason = "the one place")]
fn thread() -> ThreadCtx {
    ThreadCtx::new()
}

static CHANNELS: Channels = Channels::new();

impl KernelMachine {
    /// Physical memory.
    #[inline]
    pub fn frames(&self) -> &'static Frames<KernelMachine> {
        // SAFETY: memory is handed over in start-up before anything can reach the VM system.
        unsafe { FRAMES.get_unchecked() }
    }

    /// A page's bytes in the direct map.
    ///
    /// # Panics
    /// If the frame holds bytes for nobody.
    #[inline]
    pub fn address(&self, page: PageNo) -> u64 {
        layout::direct(self.frames().bytes_at(page).0)
    }

    /// A page's bytes.
    ///
    /// # Panics
    /// If the frame holds bytes for nobody.
    #[inline]
    pub fn bytes(&self, page: PageNo) -> PageBytes {
        PageBytes::of(page)
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
    fn cpu(&self) -> usize {
        super::cpu::index()
    }

    /// With 16-byte stores: half the instructions of 8-byte ones, and faster under TCG than any
    /// `rep`. The program's vector register is put back.
    #[inline]
    fn zero(&self, page: PageNo) {
        // SAFETY: `address` knows a frame that holds bytes and no Rust object, and the direct map
        // covers it; xmm0 holds a program's value and is restored.
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
        // SAFETY: `address` knows two frames that hold bytes and no Rust object, and the direct map
        // covers them.
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
        self.bytes(page).part(offset, buf.len()).copy_to(buf);
    }

    fn write(&self, page: PageNo, offset: usize, bytes: &[u8]) {
        self.bytes(page).part(offset, bytes.len()).copy_from(bytes);
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
        let for_memory = [Channel::MEMORY_TURN, Channel::MEMORY].contains(&ticket.channel);
        CHANNELS.wait(ticket, || for_memory && self.has_fatal_signal());
    }

    fn wake(&self, channel: Channel) {
        CHANNELS.wake(channel);
    }

    fn wake_one(&self, channel: Channel) {
        CHANNELS.wake_one(channel);
    }

    fn pause(&self, _held: &mut Held<'_, Nothing>) {
        crate::sched::give_way();
    }

    fn has_fatal_signal(&self) -> bool {
        crate::proc::is_leaving()
    }

    fn out_of_memory(&self, _held: &mut Held<'_, Nothing>) -> bool {
        crate::proc::oom::make_room()
    }
}
