//! The laws of the contract, checked on both harts.

use core::arch::asm;
use core::sync::atomic::Ordering::Relaxed;

use machine::order::{Held, Nothing};
use machine::{Machine, PageNo, Va, VaRange};
use uvm::page::Reserve;
use uvm_conformance::{laws, Access, Effort, Law, SharedWork, Trap, Violation, Work};

use crate::host::{enter, frames, uvm, Virt};
use crate::pmap::{self, Space};
use crate::user::{run_user, trap, Frame};
use crate::{print, thread, user, HARTS};

struct Harts;

extern "C" {
    fn user_load(at: u64, word: *mut u64) -> usize;
    fn user_store(at: u64, word: u64) -> usize;
}

impl Access<Virt> for Harts {
    fn cpus(&self) -> usize {
        HARTS
    }

    fn on(&self, cpu: usize, work: Work<'_>) {
        thread::move_to(cpu);
        enter(work);
    }

    fn at_once(&self, cpus: usize, work: SharedWork<'_>) {
        thread::at_once(cpus, &|cpu| enter(|held| work(cpu, held)));
    }

    fn load(&self, _cpu: usize, space: &Space, va: Va) -> Result<u64, Trap> {
        pmap::load(space.0);
        let mut word = 0;
        // SAFETY: an access to a program's address, whose trap is caught.
        let failed = unsafe { user_load(va.0, &mut word) };
        if failed == 0 {
            Ok(word)
        } else {
            Err(Trap::Fault)
        }
    }

    fn store(&self, _cpu: usize, space: &Space, va: Va, word: u64) -> Result<(), Trap> {
        pmap::load(space.0);
        // SAFETY: as above.
        let failed = unsafe { user_store(va.0, word) };
        if failed == 0 {
            Ok(())
        } else {
            Err(Trap::Fault)
        }
    }

    /// Runs what is there: `ecall` comes back at once.
    fn fetch(&self, _cpu: usize, space: &Space, va: Va) -> Result<(), Trap> {
        pmap::load(space.0);
        let mut frame = Frame::new(va);
        loop {
            // SAFETY: as for any program.
            unsafe { run_user(&mut frame) };
            match trap().0 {
                8 => return Ok(()),
                12 => return Err(Trap::Fault),
                cause if cause >> 63 == 1 => user::take_interrupt(None),
                cause => return Err(Trap::Broken(alloc::format!("a fetch trapped by {cause}"))),
            }
        }
    }

    fn code(&self) -> u64 {
        0x0000_0073_0000_0073
    }

    fn page(&self, held: &mut Held<'_, Nothing>) -> Option<PageNo> {
        frames().alloc(&Virt, held, Reserve::User).ok()
    }

    fn free(&self, held: &mut Held<'_, Nothing>, page: PageNo) {
        frames().free_page(&Virt, held, page);
    }

    fn window(&self) -> VaRange {
        pmap::WINDOW
    }

    fn without_tables(&self, work: Work<'_>, held: &mut Held<'_, Nothing>) -> bool {
        let exhausted = &uvm().machine().pmap().exhausted;
        exhausted.store(true, Relaxed);
        work(held);
        exhausted.store(false, Relaxed);
        true
    }

    fn begins(&self, law: Law) {
        print!("checking {law}\n");
    }

    fn found(&self, violation: &Violation) {
        print!("BROKEN {violation}\n");
    }
}

/// Whether the kernel may use programs' pages. It changes here alone: some MMUs, as QEMU's, forget
/// all translations with it, and so would hide what is checked.
fn use_programs_pages(may: bool) {
    thread::at_once(HARTS, &|_| {
        let sum = 1 << 18;
        // SAFETY: nothing but `user_load` and `user_store` uses a program's address.
        unsafe {
            match may {
                true => asm!("csrs sstatus, {}", in(reg) sum),
                false => asm!("csrc sstatus, {}", in(reg) sum),
            }
        }
    });
}

/// Says whether all hold.
pub fn hold() -> bool {
    use_programs_pages(true);
    let report = laws(uvm().machine(), &Harts, Effort { rounds: 50, ..Effort::default() });
    use_programs_pages(false);
    print!("{report}");
    report.is_sound()
}
