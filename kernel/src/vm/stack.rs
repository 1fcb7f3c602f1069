//! Stacks: mappings that a store below makes longer, as `MAP_GROWSDOWN` asks for, and the first
//! thread's.
//!
//! ```text
//!   [ other )          gap of GUARD          [ stack )top
//!                            ^ fault: pages are added from here up to the stack, which stays one entry
//! ```
//! Such a mapping's name says so. What grows is asked for by the fault that finds no mapping
//! (`proc::growth`), which knows the limits; the library sees a mapping that continues another.

use alloc::sync::Arc;

use machine::{Pages, Prot, Va};
use uvm::{MapRequest, Name, Outline};

use super::space::{map, map_errno, range, Space};
use super::system::with;
use super::{advice, MapArgs, Place};
use crate::arch::layout::USER_END;
use crate::errno::Result;
use crate::mem::frames::KernelMachine;

/// Bytes that stay free between a stack and an accessible mapping below it, so that no large frame
/// reaches from one into the other.
const GUARD: u64 = 256 << 12;

/// What a stack is called: the first thread's `[stack]`, any other nothing.
struct StackName(&'static str);

impl Name for StackName {
    fn text(&self) -> &str {
        self.0
    }

    fn grows_down(&self) -> bool {
        true
    }
}

/// The name of a stack that isn't the first thread's.
pub fn stack_name() -> Arc<dyn Name> {
    Arc::new(StackName(""))
}

pub(super) fn grows_down(name: Option<&Arc<dyn Name>>) -> bool {
    name.is_some_and(|name| name.grows_down())
}

/// Maps the first thread's stack, of `len` bytes that end at `top`. Mappings for which any place
/// will do keep out of the `room` bytes below `top`.
pub fn stack(space: &Space, top: u64, len: u64, room: u64, prot: Prot) -> Result<()> {
    let args = MapArgs {
        addr: top - len,
        len,
        prot,
        place: Place::FixedNoReplace,
        name: Some(Arc::new(StackName("[stack]"))),
        ..MapArgs::default()
    };
    map(space, &args)?;
    space.get().choose_below(Va(top - room));
    Ok(())
}

/// A stack above an address where nothing is.
pub struct StackAbove {
    outline: Outline,
    name: Option<Arc<dyn Name>>,
}

impl StackAbove {
    /// The last of its first addresses.
    pub fn start(&self) -> u64 {
        self.outline.range.start.0
    }

    /// The first address behind it.
    pub fn end(&self) -> u64 {
        self.outline.range.end.0
    }

    /// Whether it is locked in memory.
    pub fn is_locked(&self) -> bool {
        self.outline.wired
    }
}

/// The next mapping above an address where nothing is mapped, if it is a stack.
pub fn stack_above(space: &Space, at: u64) -> Option<StackAbove> {
    let above = range(at, USER_END.checked_sub(at)?).ok()?;
    let (outline, name) = with(|uvm, held| uvm.first_in(held, space.get(), above))?;
    (outline.range.start.0 > at && grows_down(name.as_ref()))
        .then_some(StackAbove { outline, name })
}

/// Makes a stack longer, down to `at`, which is a page's first byte; says whether it has grown. It
/// hasn't where an accessible mapping is close below.
///
/// # Errors
/// `ENOMEM`.
pub fn grow_stack(space: &Space, stack: &StackAbove, at: u64) -> Result<bool> {
    let start = stack.outline.range.start.0;
    let guard = range(at.saturating_sub(GUARD), start - at.saturating_sub(GUARD))?;
    // The last mapping there, of as many as there are pages at most.
    let mut below = None;
    let _ = advice::each_part(space, guard, |part| {
        below = Some(*part);
        Ok(())
    });
    if let Some(below) = below.filter(|below| below.prot != Prot::NONE) {
        let there = range(below.range.end.0 - 4096, 4096)?;
        let found = with(|uvm, held| uvm.first_in(held, space.get(), there));
        if found.is_some_and(|(_, name)| !grows_down(name.as_ref())) {
            return Ok(false);
        }
    }
    let request = MapRequest::<KernelMachine> {
        place: uvm::Place::FixedNoReplace(Va(at)),
        prot: stack.outline.prot,
        max_prot: stack.outline.max_prot,
        inherit: Some(stack.outline.inherit),
        advice: stack.outline.advice,
        wired: stack.outline.wired,
        name: stack.name.clone(),
        ..MapRequest::zero(Pages::floor(start - at))
    };
    with(|uvm, held| uvm.map(held, space.get(), &request)).map_err(map_errno)?;
    Ok(true)
}
