//! The laws of the contract, checked on both harts.

use core::fmt;
use core::sync::atomic::Ordering::Relaxed;

use machine::order::{Held, Nothing};
use machine::{Va, VaRange};
use riscv::interrupt::{Exception, Trap as Cause};
use riscv::register::sstatus;
use uvm::page::Frames;
use uvm_conformance::{laws, Access, Effort, SharedWork, Trap, Work};

use crate::host::{enter, frames, uvm, Virt};
use crate::pmap::{self, EXHAUSTED};
use crate::user::{run_user, Registers};
use crate::{print, thread, HARTS};

struct Harts;

extern "C" {
    fn user_load(at: u64, word: *mut u64) -> bool;
    fn user_store(at: u64, word: u64) -> bool;
}

impl Access<Virt> for Harts {
    fn cpus(&self) -> usize {
        HARTS
    }

    fn at_once(&self, cpus: usize, work: SharedWork<'_>) {
        thread::on_harts(cpus, &|cpu| enter(|held| work(cpu, held)));
    }

    fn load(&self, _cpu: usize, space: &u64, va: Va) -> Result<u64, Trap> {
        pmap::load(*space);
        let mut word = 0;
        // SAFETY: an access to a program's address, whose trap is caught.
        let has_trapped = unsafe { user_load(va.0, &mut word) };
        (!has_trapped).then_some(word).ok_or(Trap::Fault)
    }

    fn store(&self, _cpu: usize, space: &u64, va: Va, word: u64) -> Result<(), Trap> {
        pmap::load(*space);
        // SAFETY: as above.
        let has_trapped = unsafe { user_store(va.0, word) };
        (!has_trapped).then_some(()).ok_or(Trap::Fault)
    }

    /// Runs what is there: `ecall` comes back at once.
    fn fetch(&self, _cpu: usize, space: &u64, va: Va) -> Result<(), Trap> {
        pmap::load(*space);
        loop {
            match run_user(&mut Registers::new(va)) {
                Cause::Exception(Exception::UserEnvCall) => return Ok(()),
                Cause::Exception(Exception::InstructionPageFault) => return Err(Trap::Fault),
                Cause::Interrupt(_) => thread::give_way(),
                cause => return Err(Trap::Broken(alloc::format!("a fetch trapped by {cause:?}"))),
            }
        }
    }

    fn code(&self) -> u64 {
        0x0000_0073_0000_0073
    }

    fn frames(&self) -> &Frames<Virt> {
        frames()
    }

    fn window(&self) -> VaRange {
        pmap::WINDOW
    }

    fn without_tables(&self, work: Work<'_>, held: &mut Held<'_, Nothing>) -> bool {
        EXHAUSTED.store(true, Relaxed);
        work(held);
        EXHAUSTED.store(false, Relaxed);
        true
    }

    fn say(&self, line: fmt::Arguments<'_>) {
        print!("{line}\n");
    }
}

/// Says whether all hold. Whether the kernel may use programs' pages changes here alone: some MMUs,
/// as QEMU's, forget all translations with it, and so would hide what is checked.
pub fn hold() -> bool {
    // SAFETY: nothing but `user_load` and `user_store` uses a program's address.
    thread::on_harts(HARTS, &|_| unsafe { sstatus::set_sum() });
    let report = laws(uvm().machine(), &Harts, Effort { rounds: 50, ..Effort::default() });
    // SAFETY: as above.
    thread::on_harts(HARTS, &|_| unsafe { sstatus::clear_sum() });
    print!("{report}");
    report.is_sound()
}
