//! What the system answers, in the model's words.

use super::*;

/// What the system answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Got {
    Done,
    Placed(Va),
    Map(MapError),
    Range(RangeError),
    Sees(Contents),
    Refused(FaultError),
    Object(GetError),
    Swap(SwapError),
    Transfer(TransferError),
    NoMemory,
}

impl Got {
    /// Whether a device's failure is what it says.
    pub(super) fn is_io(self) -> bool {
        matches!(
            self,
            Got::Refused(FaultError::Io)
                | Got::Object(GetError::Io)
                | Got::Range(RangeError::Fault)
                | Got::Swap(SwapError::Io)
        )
    }

    pub(super) fn is_no_memory(self) -> bool {
        matches!(
            self,
            Got::NoMemory
                | Got::Swap(SwapError::NoMemory)
                | Got::Transfer(TransferError::NoMemory)
                | Got::Map(MapError::NoMemory)
                | Got::Range(RangeError::NoMemory)
                | Got::Refused(FaultError::NoMemory)
                | Got::Object(GetError::NoMemory)
        )
    }
}

pub(super) fn compare(expect: &Expect, got: &Got) -> Result<(), String> {
    let same = match (*expect, *got) {
        (Expect::Done, Got::Done) => true,
        (Expect::Placed(page), Got::Placed(at)) => va(page) == at,
        (Expect::NoSpace, Got::Map(MapError::NoSpace | MapError::Exists)) => true,
        (Expect::NoMapping, Got::Map(MapError::NoMapping) | Got::Range(RangeError::NoMapping)) => true,
        (Expect::NoMapping, Got::Transfer(TransferError::NoMapping)) => true,
        (Expect::NoSpace, Got::Transfer(TransferError::NoSpace)) => true,
        (Expect::Access, Got::Transfer(TransferError::Protection)) => true,
        (Expect::Unsuitable, Got::Transfer(TransferError::Unsuitable)) => true,
        (Expect::Invalid, Got::Map(MapError::Invalid)) => true,
        (Expect::Access, Got::Range(RangeError::Access)) => true,
        (Expect::Fault, Got::Range(RangeError::Fault)) => true,
        (Expect::Sees(ought), Got::Sees(seen)) => ought == seen,
        (Expect::Refused(why), Got::Refused(said)) => matches!(
            (why, said),
            (Refusal::NoMapping, FaultError::NoMapping)
                | (Refusal::Protection, FaultError::Protection)
                | (Refusal::Bus, FaultError::Bus)
                | (Refusal::Io, FaultError::Io)
                | (Refusal::NoSpace, FaultError::NoSpace)
        ),
        (Expect::Refused(Refusal::Bus), Got::Object(GetError::PastEnd)) => true,
        (Expect::Refused(Refusal::Io), Got::Object(GetError::Io)) => true,
        (Expect::Refused(Refusal::NoSpace), Got::Object(GetError::NoSpace)) => true,
        _ => false,
    };
    if same {
        Ok(())
    } else {
        Err(format!("expected {expect:x?}, got {got:x?}"))
    }
}

pub(super) fn placed(result: Result<Va, MapError>) -> Got {
    result.map_or_else(Got::Map, Got::Placed)
}

pub(super) fn ranged(result: Result<(), RangeError>) -> Got {
    result.map_or_else(Got::Range, |()| Got::Done)
}

pub(super) fn accessed(result: Result<(), Denied<FaultError>>) -> Result<Got, String> {
    match result {
        Ok(()) => Ok(Got::Done),
        Err(Denied::Fault(e)) => Ok(Got::Refused(e)),
        Err(Denied::Broken(why)) => Err(why),
    }
}

pub(super) fn va(page: u64) -> Va {
    BASE + Pages(page)
}

pub(super) fn range(span: Span) -> VaRange {
    VaRange::new(va(span.0), va(span.0 + span.1))
}

pub(super) fn prot(rights: u8) -> Prot {
    Prot::from_bits_truncate(rights)
}

pub(super) fn place(at: At) -> Place {
    match at {
        At::Any => Place::Anywhere,
        At::Hint(page) => Place::Hint(va(page)),
        At::Fixed(page) => Place::Fixed(va(page)),
        At::Free(page) => Place::FixedNoReplace(va(page)),
        At::Reserved(page) => Place::Reserved(va(page)),
    }
}

pub(super) fn pass(way: Way) -> Pass {
    match way {
        Way::Share => Pass::Share,
        Way::Copy => Pass::Copy,
        Way::Donate => Pass::Donate,
        Way::DonateZero => Pass::DonateZero,
    }
}

pub(super) fn inheritance(inherit: Inh) -> Inherit {
    match inherit {
        Inh::None => Inherit::None,
        Inh::Share => Inherit::Share,
        Inh::Copy => Inherit::Copy,
        Inh::Zero => Inherit::Zero,
    }
}

/// Where a compared word lies in its page: over all of it, the last word included.
pub(crate) fn word_offset(word: usize) -> usize {
    (word * (PAGE_SIZE - 8) / (WORDS - 1)) & !7
}

pub(super) fn advice(number: u8) -> Advice {
    [Advice::Normal, Advice::Random, Advice::Sequential][usize::from(number)]
}
