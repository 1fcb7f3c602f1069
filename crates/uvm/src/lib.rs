#![no_std]
//! UVM.
