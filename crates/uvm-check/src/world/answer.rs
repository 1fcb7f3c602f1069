//! What the system answers, in the model's words, and the model's arguments in the system's.

use super::*;

/// What the system answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Got {
    /// It worked.
    Done,
    /// It worked, and chose this address.
    Placed(Va),
    /// A mapping's error.
    Map(MapError),
    /// A range's error.
    Range(RangeError),
    /// An access saw these bytes.
    Sees(Contents),
    /// An access, loan or pin was refused.
    Refused(FaultError),
    /// An object's error.
    Object(GetError),
    /// A swap device's error.
    Swap(SwapError),
    /// A transfer's error.
    Transfer(TransferError),
    /// Making a space, an object or a range found no memory.
    NoMemory,
}

impl Got {
    /// Whether a device's failure is what it says.
    pub fn is_io(self) -> bool {
        matches!(
            self,
            Got::Refused(FaultError::Io)
                | Got::Object(GetError::Io)
                | Got::Range(RangeError::Fault)
                | Got::Swap(SwapError::Io)
        )
    }

    /// Whether it says that there is no memory.
    pub fn is_no_memory(self) -> bool {
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

/// Says whether an answer is the one that the model expects.
///
/// # Errors
/// A sentence with both.
pub fn compare(expect: &Expect, got: &Got) -> Result<(), String> {
    let same = match (*expect, *got) {
        (Expect::Done, Got::Done) => true,
        (Expect::Placed(page), Got::Placed(at)) => va(page) == at,
        (Expect::NoSpace, Got::Map(MapError::NoSpace | MapError::Exists)) => true,
        (Expect::NoMapping, Got::Map(MapError::NoMapping) | Got::Range(RangeError::NoMapping)) => {
            true
        }
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
        (Expect::Refused(Refusal::NoSpace), Got::Transfer(TransferError::NoSpace)) => true,
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

/// A mapping's answer.
pub fn placed(result: Result<Va, MapError>) -> Got {
    result.map_or_else(Got::Map, Got::Placed)
}

/// A range operation's answer.
pub fn ranged(result: Result<(), RangeError>) -> Got {
    result.map_or_else(Got::Range, |()| Got::Done)
}

/// An access's answer.
///
/// # Errors
/// What the machine says of a translation that no CPU may have.
pub fn accessed(result: Result<(), Denied<FaultError>>) -> Result<Got, String> {
    match result {
        Ok(()) => Ok(Got::Done),
        Err(Denied::Fault(e)) => Ok(Got::Refused(e)),
        Err(Denied::Broken(why)) => Err(why),
    }
}

/// The address of a page of the window.
pub fn va(page: u64) -> Va {
    BASE + Pages(page)
}

/// The addresses of some pages.
pub fn range(span: Span) -> PageRange {
    PageRange::new(va(span.0), va(span.0 + span.1)).unwrap()
}

/// Rights.
pub fn prot(rights: u8) -> Prot {
    Prot::from_bits_truncate(rights)
}

/// Where a mapping goes.
pub fn place(at: At) -> Place {
    match at {
        At::Any => Place::Anywhere,
        At::Hint(page) => Place::Hint(va(page)),
        At::Fixed(page) => Place::Fixed(va(page)),
        At::Free(page) => Place::FixedNoReplace(va(page)),
    }
}

/// How memory is passed.
pub fn pass(way: Way) -> Pass {
    match way {
        Way::Share => Pass::Share,
        Way::Copy => Pass::Copy,
        Way::Donate => Pass::Donate,
        Way::DonateZero => Pass::DonateZero,
    }
}

/// What a child gets.
pub fn inheritance(inherit: Inh) -> Inherit {
    match inherit {
        Inh::None => Inherit::None,
        Inh::Share => Inherit::Share,
        Inh::Copy => Inherit::Copy,
        Inh::Zero => Inherit::Zero,
    }
}

/// Where a compared word lies in its page: over all of it, the last word included.
pub fn word_offset(word: usize) -> usize {
    (word * (PAGE_SIZE - 8) / (WORDS - 1)) & !7
}

/// The advice of a number below three.
pub fn advice(number: u8) -> Advice {
    [Advice::Normal, Advice::Random, Advice::Sequential][usize::from(number)]
}
