//! The software machine.
