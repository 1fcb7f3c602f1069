//! `process_vm_readv` and `process_vm_writev`: bytes from and to another process's memory.

use alloc::sync::Arc;

use super::file::{foreign_vector, vector, Vector};
use super::{calls, Calls};
use crate::errno::*;
use crate::proc::foreign_memory::{self, As};
use crate::proc::Pid;
use crate::uio::{Sink, Source};
use crate::vm::Space;

pub const CALLS: Calls = calls! {
    __NR_process_vm_readv => process_vm_readv[6],
    __NR_process_vm_writev => process_vm_writev[6],
};

/// A pointer to a vector, and its length.
type Named = (u64, u64);

/// What a call works with: the vectors, and the other's memory. Linux looks at the vectors first.
fn operands(
    pid: Pid,
    local: Named,
    there: Named,
    flags: u64,
) -> Result<(Vector, Vector, Arc<Space>)> {
    if flags != 0 {
        return Err(EINVAL);
    }
    let local = vector(local.0, local.1 as usize)?;
    let there = foreign_vector(there.0, there.1 as usize)?;
    Ok((local, there, foreign_memory::space_of(pid)?))
}

fn process_vm_readv(
    pid: Pid,
    to: u64,
    to_len: u64,
    there: u64,
    there_len: u64,
    flags: u64,
) -> Result<usize> {
    let (to, there, space) = operands(pid, (to, to_len), (there, there_len), flags)?;
    foreign_memory::read(&space, As::Itself, &there, &mut Sink::vector(&to))
}

fn process_vm_writev(
    pid: Pid,
    from: u64,
    from_len: u64,
    there: u64,
    there_len: u64,
    flags: u64,
) -> Result<usize> {
    let (from, there, space) = operands(pid, (from, from_len), (there, there_len), flags)?;
    foreign_memory::write(&space, As::Itself, &there, &mut Source::vector(&from))
}
