//! Devices with more to them than a page of code: the terminal.

pub mod tty;
