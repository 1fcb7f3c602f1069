//! Floating-point and vector state. The kernel is built without it, so the registers always hold
//! some program's values.
//!
//! A task's state is saved when it is switched away from and loaded when it is switched to, unless
//! the registers still hold it.

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
    /// The bits of MXCSR that the CPU has.
    control: u32,
}

/// Where states have MXCSR, and the CPU's word on which of its bits there are.
const MXCSR: usize = 24;
const MXCSR_MASK: usize = 28;
/// The header behind the part that every CPU has: components, and what must be zero.
const HEADER: usize = 512;
const HEADER_END: usize = 576;
/// The bytes of the header, behind the components, that the CPU asks to be zero.
const HEADER_ZERO: core::ops::Range<usize> = HEADER + 8..HEADER + 24;
/// The components that are in the part that every CPU has: of the x87 and of SSE.
const LEGACY_COMPONENTS: u64 = 3;
/// The bits of MXCSR where the CPU's word is 0.
const FIRST_CONTROL: u32 = 0xffbf;

/// The bits of MXCSR that this CPU has.
fn control_bits() -> u32 {
    #[repr(C, align(16))]
    struct Area([u8; 512]);
    let mut area = Area([0; 512]);
    // SAFETY: the area has the size and alignment that `fxsave` asks for.
    unsafe {
        asm!("fxsave64 [{}]", in(reg) area.0.as_mut_ptr(), options(nostack, preserves_flags))
    };
    match word(&area.0, MXCSR_MASK) {
        0 => FIRST_CONTROL,
        bits => bits,
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(core::array::from_fn(|i| bytes[at + i]))
}

/// The components that a state with a header has.
fn components(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(core::array::from_fn(|i| bytes[HEADER + i]))
}

static FORMAT: spin::Once<Format> = spin::Once::new();

/// Finds out what the first CPU has; the others have the same.
pub fn init() {
    FORMAT.call_once(|| {
        let (size, mask) =
            cpu::xsave_size().map_or((HEADER, 0), |(size, mask)| (size.next_multiple_of(64), mask));
        Format { size, mask, control: control_bits() }
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
        let Some(memory) = NonNull::new(unsafe { alloc_zeroed(layout) }) else {
            handle_alloc_error(layout)
        };
        let mut state = State(memory);
        state.reset();
        state
    }

    /// A copy of another state.
    pub fn copy_of(other: &State) -> State {
        let layout = State::layout();
        // SAFETY: the size is not zero.
        let Some(memory) = NonNull::new(unsafe { alloc_zeroed(layout) }) else {
            handle_alloc_error(layout)
        };
        let mut state = State(memory);
        state.bytes_mut().copy_from_slice(other.bytes());
        state
    }

    /// Back to what a program starts with: all exceptions masked, nothing in use.
    pub fn reset(&mut self) {
        let bytes = self.bytes_mut();
        bytes.fill(0);
        bytes[0..2].copy_from_slice(&0x037fu16.to_le_bytes());
        bytes[MXCSR..MXCSR + 4].copy_from_slice(&0x1f80u32.to_le_bytes());
    }

    /// Whether the CPU loads such bytes: the first ones of a state, or all of one.
    pub fn accepts(bytes: &[u8]) -> bool {
        let format = format();
        let fits = word(bytes, MXCSR) & !format.control == 0;
        let has_header = bytes.len() >= HEADER_END;
        let zeroes = || bytes[HEADER_ZERO].iter().all(|&byte| byte == 0);
        fits && (!has_header || components(bytes) & !format.mask == 0 && zeroes())
    }

    /// Whether the CPU has components beyond those that every CPU has room for.
    pub fn has_components() -> bool {
        format().mask != 0
    }

    /// Bytes of a state.
    pub fn size() -> usize {
        format().size
    }

    /// Writes which components there may be where Linux leaves room for that.
    pub fn tell_components(bytes: &mut [u8]) {
        /// In the part of the legacy area that the CPU leaves to programs.
        const COMPONENTS: usize = 464;
        let mask = if format().mask == 0 { LEGACY_COMPONENTS } else { format().mask };
        bytes[COMPONENTS..COMPONENTS + 8].copy_from_slice(&mask.to_le_bytes());
    }

    /// Has the CPU load what every CPU has from bytes of a state: they aren't a fresh one's.
    pub fn use_legacy(bytes: &mut [u8]) {
        if bytes.len() >= HEADER_END {
            bytes[HEADER] |= LEGACY_COMPONENTS as u8;
        }
    }

    /// The state as the CPU lays it out: what a signal frame holds.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the memory has this size and is initialised.
        unsafe { core::slice::from_raw_parts(self.0.as_ptr(), format().size) }
    }

    /// The state, to be changed; follow by [`sanitize`](Self::sanitize) if a program chose the
    /// bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, exclusively borrowed.
        unsafe { core::slice::from_raw_parts_mut(self.0.as_ptr(), format().size) }
    }

    /// Clears what the CPU would refuse to load: reserved MXCSR bits, unknown components, header
    /// padding.
    pub fn sanitize(&mut self) {
        let format = format();
        let bytes = self.bytes_mut();
        let control = word(bytes, MXCSR) & format.control;
        bytes[MXCSR..MXCSR + 4].copy_from_slice(&control.to_le_bytes());
        if bytes.len() >= HEADER_END {
            let used = components(bytes) & format.mask;
            bytes[HEADER..HEADER + 8].copy_from_slice(&used.to_le_bytes());
            bytes[HEADER + 8..HEADER_END].fill(0);
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
