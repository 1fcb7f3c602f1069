//! `./uvm bench`.
use anyhow::Result;
use clap::{Args, Subcommand};

#[derive(Subcommand)]
pub enum BenchCommand {
    /// Instructions per operation, ours beside Linux, under the same QEMU flags.
    Micro(MicroArgs),
}

#[derive(Args)]
pub struct MicroArgs {}

pub fn micro(_args: &MicroArgs) -> Result<u8> {
    Ok(0)
}
