//! What the library's errors say to a reader, in a sentence each; what they mean to a caller stands
//! at their definitions.
//!
//! Errors are exhaustive enums: a host gives each variant an error number in one `match`, which the
//! compiler keeps complete. So a new variant is a change that breaks hosts, and is meant to.

use core::error::Error;
use core::fmt;

use machine::NoMemory;

use crate::{
    AuditError, BadShare, FaultError, GetError, IoError, MapError, NotOurs, RangeError, Retry,
    SwapError, TransferError,
};

/// Makes each type an error, each of its values with the sentence behind it.
macro_rules! errors {
    ($($error:ident { $($value:pat => $sentence:expr,)* })*) => {$(
        impl Error for $error {}

        impl fmt::Display for $error {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $($value => $sentence,)*
                })
            }
        }
    )*};
}

errors! {
    FaultError {
        FaultError::NoMapping => "nothing is mapped at the address",
        FaultError::Protection => "the mapping does not allow the access",
        FaultError::Bus => "the page lies past the end of its object",
        FaultError::Io => "the page could not be read",
        FaultError::NoSpace => "the page's file system is full",
        FaultError::NoMemory => "no memory is left for the page",
        FaultError::TooOften => "the page is wired or pinned as often as it may be",
    }
    MapError {
        MapError::NoSpace => "no free addresses are wide enough",
        MapError::Exists => "something is mapped there already",
        MapError::NoMemory => "no memory is left for the mapping",
        MapError::TooMany => "the map has as many entries as it may have",
        MapError::Invalid => "a range, an offset or a protection is not valid for the mapping",
        MapError::NoMapping => "a part of the range is not mapped, or not reserved",
    }
    RangeError {
        RangeError::NoMapping => "a part of the range is not mapped",
        RangeError::Access => "the mapping's maximum protection forbids it",
        RangeError::NoMemory => "no memory is left for the change",
        RangeError::TooMany => "the map would have more entries than it may have",
        RangeError::Fault => "a page of the range could not be read, or lies past its object's end",
    }
    GetError {
        GetError::Wait(_) => "the page is on its way",
        GetError::Read(_) => "the page is to be read first",
        GetError::PastEnd => "the page lies past the end of its object",
        GetError::Io => "the page could not be read",
        GetError::NoSpace => "the page's file system is full",
        GetError::NoMemory => "no memory is left for the page",
    }
    IoError {
        IoError => "the file's data could not be written",
    }
    TransferError {
        TransferError::NoMapping => "nothing is mapped at a part of the range",
        TransferError::Protection => "a part of the range may not be written",
        TransferError::Unsuitable => "a part of the range can't take pages, only copies",
        TransferError::NoSpace => "no free addresses are wide enough, or an object may have no more pages",
        TransferError::NoMemory => "no memory is left for the transfer",
        TransferError::NotOurs => "the pages are on loan from another VM system",
    }
    Retry {
        Retry::Wait(_) => "a page or a part of the map is in use",
        Retry::Read(_) => "a page must be read first",
        Retry::Memory(_) => "no memory is left for now",
        Retry::Hole(_) => "the file needs room for the page first",
        Retry::Failed(_) => "the fault can't be resolved",
    }
    NotOurs {
        NotOurs => "a loan of another VM system",
    }
    SwapError {
        SwapError::Empty => "the device has no room for a page",
        SwapError::TooMuch => "more than ten times the memory can't be kept on swap",
        SwapError::TooMany => "sixteen swap devices are on already",
        SwapError::NotFound => "no such swap device is on",
        SwapError::Busy => "the device is being switched off already",
        SwapError::NoMemory => "what is on the device does not fit into memory and other devices",
        SwapError::Io => "a part of what is on the device could not be read",
    }
    BadShare {
        BadShare => "these shares of memory are not possible together",
    }
}

impl Error for AuditError {}

/// Has each of these say that memory is short.
macro_rules! from_no_memory {
    ($($error:ident)*) => {$(
        impl From<NoMemory> for $error {
            fn from(_: NoMemory) -> Self {
                $error::NoMemory
            }
        }
    )*};
}

from_no_memory! { FaultError GetError MapError RangeError SwapError TransferError }

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::boxed::Box;
    use alloc::string::ToString;

    #[test]
    fn an_error_is_a_sentence_that_a_program_can_print() {
        let errors: [Box<dyn Error>; 2] = [Box::new(FaultError::Bus), Box::new(MapError::Exists)];
        let said = errors.map(|error| error.to_string());
        assert_eq!(
            said,
            ["the page lies past the end of its object", "something is mapped there already"]
        );
    }
}
