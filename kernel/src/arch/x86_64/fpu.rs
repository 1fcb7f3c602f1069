//! Floating-point and vector state. The kernel is built without it, so the registers always hold some program's values.
//!
//! A task's state is saved when it is switched away from and loaded when it is switched to, unless the registers still hold it.

use alloc::alloc::{alloc_zeroed, dealloc, handle_alloc_error};
use core::alloc::Layout;
use core::arch::asm;
use core::ptr::NonNull;

use super::cpu;

/// How states are saved, and what a fresh one is.
struct Format {
    size: usize,
    /// What `xsave` saves; zero where only `fxsave` exists.
    mask: u64,
}

static FORMAT: spin::Once<Format> = spin::Once::new();

/// Finds out what the first CPU has; the others have the same.
pub fn init() {
    FORMAT.call_once(|| match cpu::xsave_size() {
        Some((size, mask)) => Format { size: size.next_multiple_of(64), mask },
        None => Format { size: 512, mask: 0 },
    });
}

/// Lets another CPU use what `init` has found.
pub fn init_local() {
    let mask = format().mask;
    if mask != 0 {
        // SAFETY: all CPUs have what the first one offers.
        unsafe { cpu::enable_xsave(mask) };
    }
}

fn format() -> &'static Format {
    FORMAT.get().expect("fpu::init has run")
}

/// One task's state.
pub struct State(NonNull<u8>);

// SAFETY: the memory belongs to the `State` alone.
unsafe impl Send for State {}
// SAFETY: shared references only read it.
unsafe impl Sync for State {}

impl State {
    fn layout() -> Layout {
        Layout::from_size_align(format().size, 64).expect("sizes come from CPUID")
    }

    /// The state a program starts with.
    pub fn fresh() -> State {
        let layout = State::layout();
        // SAFETY: the size is not zero.
        let Some(memory) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        let mut state = State(memory);
        state.reset();
        state
    }

    /// A copy of another state.
    pub fn copy_of(other: &State) -> State {
        let layout = State::layout();
        // SAFETY: the size is not zero.
        let Some(memory) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        let mut state = State(memory);
        state.bytes_mut().copy_from_slice(other.bytes());
        state
    }

    /// Back to what a program starts with: all exceptions masked, nothing in use.
    pub fn reset(&mut self) {
        let bytes = self.bytes_mut();
        bytes.fill(0);
        bytes[0..2].copy_from_slice(&0x037fu16.to_le_bytes());
        bytes[24..28].copy_from_slice(&0x1f80u32.to_le_bytes());
    }

    /// The state as the CPU lays it out: what a signal frame holds.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the memory has this size and is initialised.
        unsafe { core::slice::from_raw_parts(self.0.as_ptr(), format().size) }
    }

    /// The state, to be changed; follow by [`sanitize`](Self::sanitize) if a program chose the bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, exclusively borrowed.
        unsafe { core::slice::from_raw_parts_mut(self.0.as_ptr(), format().size) }
    }

    /// Clears what the CPU would refuse to load: reserved MXCSR bits, unknown components, header padding.
    pub fn sanitize(&mut self) {
        let mask = format().mask;
        let bytes = self.bytes_mut();
        let allowed = match u32::from_le_bytes([bytes[28], bytes[29], bytes[30], bytes[31]]) {
            0 => 0xffbf,
            mask => mask & 0xffff,
        };
        let csr = u32::from_le_bytes([bytes[24], bytes[25], bytes[26], bytes[27]]) & allowed;
        bytes[24..28].copy_from_slice(&csr.to_le_bytes());
        if bytes.len() > 512 {
            let mut used = [0; 8];
            used.copy_from_slice(&bytes[512..520]);
            let used = u64::from_le_bytes(used) & mask;
            bytes[512..520].copy_from_slice(&used.to_le_bytes());
            bytes[520..576].fill(0);
        }
    }

    /// Stores the registers here.
    #[inline]
    pub fn save(&mut self) {
        let (at, mask) = (self.0.as_ptr(), format().mask);
        // SAFETY: the area has the size and alignment that CPUID asks for.
        unsafe {
            if mask == 0 {
                asm!("fxsave64 [{}]", in(reg) at, options(nostack, preserves_flags));
            } else {
                asm!("xsave64 [{}]", in(reg) at, in("eax") mask as u32, in("edx") 0, options(nostack, preserves_flags));
            }
        }
    }

    /// Loads the registers from here.
    #[inline]
    pub fn load(&self) {
        let (at, mask) = (self.0.as_ptr(), format().mask);
        // SAFETY: the area was written by `save`, `reset` or `sanitize`: the CPU accepts it.
        unsafe {
            if mask == 0 {
                asm!("fxrstor64 [{}]", in(reg) at, options(nostack, preserves_flags));
            } else {
                asm!("xrstor64 [{}]", in(reg) at, in("eax") mask as u32, in("edx") 0, options(nostack, preserves_flags));
            }
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.0.as_ptr(), State::layout()) }
    }
}
