//! Operations on a range of one space: plain calls, the same on every kind of threads.

use super::*;

/// The space that an operation on a range is about.
pub fn subject(op: &Op) -> usize {
    match *op {
        Op::Unmap { s, .. }
        | Op::Protect { s, .. }
        | Op::Inherit { s, .. }
        | Op::Advise { s, .. } => s,
        Op::RemapKeep { s, .. }
        | Op::Discard { s, .. }
        | Op::Remap { s, .. }
        | Op::Clear { s }
        | Op::Wire { s, .. } => s,
        Op::WireTouched { s, .. } | Op::Unwire { s, .. } | Op::PageOutRange { s, .. } => s,
        Op::Cool { s, .. } => s,
        _ => unreachable!("{op:?} concerns no range"),
    }
}

/// Runs an operation on a range.
pub fn on_range<M: Desk>(
    uvm: &Uvm<M>,
    held: &mut Held<'_, Nothing>,
    space: &Space<M>,
    op: &Op,
) -> Got {
    match *op {
        Op::Remap { span, new_len, at, .. } => {
            let place = match at {
                At::Any => RemapPlace::MayMove,
                At::Hint(_) => RemapPlace::Stay,
                At::Fixed(page) | At::Free(page) => RemapPlace::Fixed(va(page)),
            };
            placed(uvm.remap(held, space, range(span), Pages(new_len), place))
        }
        Op::RemapKeep { span, at, .. } => {
            let to = match at {
                At::Any | At::Hint(_) => None,
                At::Fixed(page) | At::Free(page) => Some(va(page)),
            };
            placed(uvm.remap_and_keep(held, space, range(span), to))
        }
        Op::Unmap { span, .. } => ranged(uvm.unmap(held, space, range(span))),
        Op::Protect { span, rights, .. } => {
            ranged(uvm.protect(held, space, range(span), prot(rights)))
        }
        Op::Inherit { span, inherit, .. } => {
            ranged(uvm.inherit(held, space, range(span), inheritance(inherit)))
        }
        Op::Advise { span, advice: number, .. } => {
            ranged(uvm.advise(held, space, range(span), advice(number)))
        }
        Op::Discard { span, .. } => ranged(uvm.discard(held, space, range(span))),
        Op::Wire { span, .. } => ranged(uvm.wire(held, space, range(span))),
        Op::WireTouched { span, .. } => ranged(uvm.wire_as_touched(held, space, range(span))),
        Op::Unwire { span, .. } => ranged(uvm.unwire(held, space, range(span))),
        Op::Clear { .. } => {
            uvm.space_clear(held, space);
            Got::Done
        }
        Op::PageOutRange { span, .. } => {
            uvm.pageout_range(held, space, range(span));
            Got::Done
        }
        Op::Cool { span, .. } => {
            uvm.cool_range(held, space, range(span));
            Got::Done
        }
        _ => unreachable!("{op:?} concerns no range"),
    }
}

/// Gives pages to the kernel, as a host does: those that can't go at once are loaned and then
/// discarded.
///
/// # Errors
/// The loan's.
pub fn give<M: Desk>(
    uvm: &Uvm<M>,
    held: &mut Held<'_, Nothing>,
    space: &Space<M>,
    span: Span,
) -> Result<Loan, FaultError> {
    if let Some(loan) = uvm.give_to_kernel(held, space, range(span))? {
        return Ok(loan);
    }
    let loan = uvm.loan_to_kernel(held, space, range(span))?;
    if uvm.discard(held, space, range(span)) == Err(RangeError::NoMemory) {
        uvm.return_loan(held, loan).unwrap();
        return Err(FaultError::NoMemory);
    }
    Ok(loan)
}

/// What a mapping is asked to be. `object` finds the object of a number.
pub fn request<M: Desk>(
    object: impl Fn(usize) -> Arc<dyn Pager<M>>,
    at: At,
    len: u64,
    back: Back,
    rights: u8,
    inherit: Option<Inh>,
) -> MapRequest<M> {
    let place = place(at);
    let (o, first, sharing) = match back {
        Back::Nothing => {
            let (prot, inherit) = (Prot::NONE, Some(Inherit::None));
            return MapRequest {
                place,
                prot,
                max_prot: prot,
                inherit,
                ..MapRequest::zero(Pages(len))
            };
        }
        Back::Zero => {
            let zero = MapRequest::zero(Pages(len));
            return MapRequest {
                place,
                prot: prot(rights),
                inherit: inherit.map(inheritance),
                ..zero
            };
        }
        Back::Private(o, first) => (o, first, Sharing::Private),
        Back::Shared(o, first) => (o, first, Sharing::Shared),
    };
    let pager = object(o);
    let is_rom = sharing == Sharing::Shared && pager.kind() == "rom";
    MapRequest {
        place,
        prot: prot(rights),
        max_prot: if is_rom { Prot::READ | Prot::EXECUTE } else { Prot::all() },
        inherit: inherit.map(inheritance),
        ..MapRequest::object(pager, Pages(first), Pages(len), sharing)
    }
}
