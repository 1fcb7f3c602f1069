//! Whose pages go first: second chances, and the shares of anonymous memory, files and programs. On
//! the software machine.

use std::sync::Arc;

use crate::stores::file::TestFile;
use crate::stores::{Mode, SwapDisk};
use machine::order::Nothing;
use machine::{Channel, Held, Machine, Pa, PageRange, Pages, Prot, ThreadCtx, Va};
use uvm::page::{Class, Reserve};
use uvm::{BadShare, MapRequest, Pager, Sharing, Space, Uvm, VnodePager};
use uvm_soft::{Config, SoftMachine};

const PAGES: u64 = 80;

/// A machine of 256 frames with swap, and a space.
struct Desk {
    uvm: Arc<Uvm<SoftMachine>>,
    space: Space<SoftMachine>,
}

impl Desk {
    fn new(held: &mut Held<'_, Nothing>) -> Desk {
        let config = Config { segments: vec![(Pa(0x10_0000), 256)], ..Config::default() };
        let uvm = Arc::new(SoftMachine::new(config).into_uvm().unwrap());
        uvm.swap_on(held, SwapDisk::new(&uvm, 1024, Mode::AtOnce), 0).unwrap();
        let space = uvm
            .space_create(held, PageRange::new(Va(machine::PAGE_SIZE as u64), Va(1 << 40)).unwrap())
            .unwrap();
        Desk { uvm, space }
    }

    /// As many pages of anonymous memory, written one after the other.
    fn anonymous(&self, held: &mut Held<'_, Nothing>) -> Va {
        let va = self.uvm.map(held, &self.space, &MapRequest::zero(Pages(PAGES))).unwrap();
        (0..PAGES).for_each(|n| self.touch(0, va + Pages(n), Prot::WRITE));
        va
    }

    /// As many pages of a file, or of a program, which have been read.
    fn file(&self, held: &mut Held<'_, Nothing>, prot: Prot) -> (Va, Arc<dyn Pager<SoftMachine>>) {
        let node = Box::new(TestFile::new(&self.uvm, Mode::AtOnce));
        let pager = VnodePager::new(&self.uvm, held, node, Pages(PAGES)).unwrap();
        let request = MapRequest::object(pager.clone(), Pages(0), Pages(PAGES), Sharing::Shared);
        let va = self.uvm.map(held, &self.space, &MapRequest { prot, ..request }).unwrap();
        (0..PAGES).for_each(|n| self.touch(0, va + Pages(n), Prot::READ));
        (va, pager)
    }

    fn touch(&self, cpu: usize, va: Va, access: Prot) {
        let fault = |va, access| {
            self.uvm.fault(&mut ThreadCtx::new().held(), &self.space, va, access).map(drop)
        };
        let (machine, pmap) = (self.uvm.machine(), self.space.pmap());
        match access {
            Prot::WRITE => machine.store(cpu, pmap, va, &[1], fault).unwrap(),
            _ => machine.load(cpu, pmap, va, &mut [0], fault).unwrap(),
        }
    }

    /// Has so many pages freed, in batches of 16, as a page daemon does it.
    fn free(&self, held: &mut Held<'_, Nothing>, pages: usize) {
        let target = self.uvm.frames().free() + pages;
        while self.uvm.frames().free() < target {
            self.uvm.pageout(held, target);
        }
    }

    /// The pages of a mapping that have gone.
    fn gone(&self, held: &mut Held<'_, Nothing>, va: Va) -> Vec<u64> {
        let mut gone: Vec<u64> = (0..PAGES).collect();
        let range = PageRange::new(va, va + Pages(PAGES)).unwrap();
        self.uvm.resident(held, &self.space, range, |at| gone.retain(|n| Pages(*n) != at));
        gone
    }

    fn set(&self, class: Class, least: u8, most: u8) {
        self.uvm.knobs().set_shares(class, least, most).unwrap();
    }
}

#[test]
fn the_oldest_pages_go_first_and_what_was_used_again_has_a_second_chance() {
    let mut ctx = ThreadCtx::new();
    let held = &mut ctx.held();
    let desk = Desk::new(held);
    let va = desk.anonymous(held);
    desk.free(held, 16);
    assert_eq!(desk.gone(held, va), Vec::from_iter(0..16));
    // These are next; half of them are used meanwhile, by a CPU that has to look them up.
    let used = || (16..24).step_by(2);
    used().for_each(|n| desk.touch(1, va + Pages(n), Prot::READ));
    desk.free(held, 4);
    let gone = desk.gone(held, va);
    assert!(
        (17..24).step_by(2).all(|n| gone.contains(&n)) && used().all(|n| !gone.contains(&n)),
        "{gone:?}"
    );
}

/// Of 256 frames 80 are a third: more than each kind's least share, and less than its most, at
/// first.
#[test]
fn a_kind_under_its_least_share_is_kept() {
    let mut ctx = ThreadCtx::new();
    let held = &mut ctx.held();
    let desk = Desk::new(held);
    let (file, _pager) = desk.file(held, Prot::READ);
    let anonymous = desk.anonymous(held);
    desk.free(held, 16);
    assert_eq!(
        (desk.gone(held, file).len(), desk.gone(held, anonymous).len()),
        (16, 0),
        "it is older"
    );
    desk.set(Class::File, 40, 50);
    desk.free(held, 16);
    assert_eq!((desk.gone(held, file).len(), desk.gone(held, anonymous).len()), (16, 16));
    // What would keep everything keeps nothing.
    desk.set(Class::Anon, 40, 80);
    desk.free(held, 16);
    assert_eq!(desk.gone(held, file).len() + desk.gone(held, anonymous).len(), 48);
}

#[test]
fn a_kind_over_its_most_share_goes_before_all_others() {
    let mut ctx = ThreadCtx::new();
    let held = &mut ctx.held();
    let desk = Desk::new(held);
    let anonymous = desk.anonymous(held);
    let (file, _pager) = desk.file(held, Prot::READ);
    desk.set(Class::File, 10, 20);
    desk.free(held, 16);
    assert_eq!((desk.gone(held, file).len(), desk.gone(held, anonymous).len()), (16, 0));
}

#[test]
fn what_programs_run_is_a_kind_of_its_own() {
    for (least, gone) in [(5, (16, 0)), (40, (0, 16))] {
        let mut ctx = ThreadCtx::new();
        let held = &mut ctx.held();
        let desk = Desk::new(held);
        let (program, _one) = desk.file(held, Prot::READ | Prot::EXECUTE);
        let (file, _other) = desk.file(held, Prot::READ);
        desk.set(Class::Exec, least, 50);
        desk.free(held, 16);
        assert_eq!((desk.gone(held, program).len(), desk.gone(held, file).len()), gone);
    }
}

#[test]
fn shares_that_cannot_be_are_refused() {
    let mut ctx = ThreadCtx::new();
    let desk = Desk::new(&mut ctx.held());
    let knobs = desk.uvm.knobs();
    let before = knobs.shares(Class::File);
    for (least, most) in [(10, 101), (30, 20), (81, 90)] {
        assert_eq!(knobs.set_shares(Class::File, least, most), Err(BadShare), "{least} {most}");
    }
    assert_eq!(knobs.shares(Class::File), before);
    assert_eq!(knobs.set_shares(Class::File, 80, 100), Ok(()));
}

/// The host's page daemon sleeps until free pages fall under the low water mark, wherever that is
/// set.
#[test]
fn the_page_daemon_is_woken_at_the_low_water_mark() {
    for low in [20, 50] {
        let mut ctx = ThreadCtx::new();
        let held = &mut ctx.held();
        let desk = Desk::new(held);
        let (machine, frames) = (desk.uvm.machine(), desk.uvm.frames());
        frames.set_water_marks(low, low + 30);
        let sleeps = machine.ticket(Channel::PAGE_DAEMON);
        // A CPU takes frames from the list in batches.
        while frames.free() > low + 32 {
            frames.alloc(machine, held, Reserve::User).unwrap();
        }
        assert!(sleeps == machine.ticket(Channel::PAGE_DAEMON), "{} are free", frames.free());
        while frames.free() >= low {
            frames.alloc(machine, held, Reserve::User).unwrap();
        }
        frames.alloc(machine, held, Reserve::User).unwrap();
        assert!(sleeps != machine.ticket(Channel::PAGE_DAEMON), "{} are free", frames.free());
    }
}
