//! The frame table: the library's, which allocates every page frame once memory has been handed
//! over, and the instance of the machine that its methods take.
//!
//! What the library asks of the machine is above, in `vm::machine`; here is what everything needs
//! that has a frame of its own: stacks, heap, page tables, drivers.

use alloc::sync::Arc;

use machine::order::{Held, Nothing, PageQueues};
use machine::{NoMemory, Pa, PageNo, ThreadCtx};
use page::Frames;

pub use page::{Owner, Place, Quota, Reserve};

use crate::arch::bytes::PageBytes;
use crate::arch::{cpu, pmap};
use crate::lock::{assert_none_ordered, Once};

/// The machine; its state is in statics, so a reference to it costs nothing.
pub struct KernelMachine;

/// The one there is.
pub static KERNEL: KernelMachine = KernelMachine;

static FRAMES: Once<Arc<Frames<KernelMachine>>> = Once::new();

/// Hands over all memory that start-up has left, and names the memory that devices have.
///
/// # Errors
/// [`NoMemory`].
pub fn init(
    segments: &[(Pa, u32)],
    loaded: &[(Pa, u32)],
    devices: &[(Pa, u32)],
) -> Result<(), NoMemory> {
    let frames = Frames::with(segments, loaded, devices, cpu::found())?;
    pmap::init(frames.numbers())?;
    FRAMES.call_once(|| Arc::new(frames));
    Ok(())
}

/// Physical memory, once it has been handed over.
#[inline]
pub fn table() -> Option<&'static Arc<Frames<KernelMachine>>> {
    FRAMES.get()
}

/// Runs `call` with the token that says this thread holds no lock of the VM system. Builds with
/// debug assertions check that.
///
/// The token could come down from each system call's entry. But a thread that drops a file or a
/// page, ends a transfer in an interrupt, or allocates needs one too, and destructors, handlers and
/// allocators have no parameter for it. So it is made where it is needed, in this place alone
/// (`clippy.toml`).
#[inline]
#[track_caller]
pub fn unlocked<T>(call: impl FnOnce(&mut Held<'_, Nothing>) -> T) -> T {
    assert_none_ordered();
    call(&mut thread().held())
}

/// Runs `call` with the token for the page allocator alone: the heap may grow with any other lock
/// of the VM system held. A thread that had one of the allocator's would wait for itself, which the
/// lock finds out.
pub fn at_allocator<T>(call: impl FnOnce(&mut Held<'_, PageQueues>) -> T) -> T {
    call(&mut thread().held().down_to())
}

#[inline]
#[expect(clippy::disallowed_methods, reason = "the one place")]
fn thread() -> ThreadCtx {
    ThreadCtx::new()
}

impl KernelMachine {
    /// Physical memory.
    #[inline]
    pub fn frames(&self) -> &'static Frames<KernelMachine> {
        // SAFETY: memory is handed over in start-up before anything can reach the VM system.
        unsafe { FRAMES.get_unchecked() }
    }

    /// A page's bytes.
    ///
    /// # Panics
    /// If the frame holds no bytes of use.
    #[inline]
    pub fn bytes(&self, page: PageNo) -> PageBytes {
        PageBytes::of(page)
    }
}
