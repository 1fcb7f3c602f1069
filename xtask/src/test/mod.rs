//! `./uvm test`.
use anyhow::Result;
use clap::Args;

#[derive(Args)]
pub struct TestArgs {
    /// Only the checks whose name contains this.
    filter: Option<String>,
}

pub fn test(args: &TestArgs) -> Result<u8> {
    let _ = &args.filter;
    Ok(0)
}
