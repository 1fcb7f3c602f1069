#![no_std]
//! What every VM system here stands on.
