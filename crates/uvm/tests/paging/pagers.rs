//! Pagers whose pages are not the allocator's, and pages pinned for a device.

use std::sync::Arc;

use crate::disk::{load, store, Answers, Desk, World};
use machine::order::{self, Held};
use machine::{Machine, Pa, PageNo, PageRange, Pages, Prot, ThreadCtx, Va};
use uvm::page::Gather;
use uvm::page::Owner;
use uvm::page::Place;
use uvm::{
    Access, Advice, Counter, DevicePager, FaultError, GetError, MapRequest, Object, ObjectBody,
    Pager, Removed, Sharing, Space, Uvm, CLUSTER,
};
use uvm_soft::{Config, SoftMachine};

fn space(uvm: &World) -> Space<SoftMachine> {
    let bounds = PageRange::new(Va(machine::PAGE_SIZE as u64), Va(1 << 40)).unwrap();
    uvm.space_create(&mut ThreadCtx::new().held(), bounds).unwrap()
}

fn map(
    uvm: &World,
    space: &Space<SoftMachine>,
    pager: &Arc<dyn Pager<SoftMachine>>,
    sharing: Sharing,
) -> Va {
    let len = pager.object().len(&mut ThreadCtx::new().held());
    let request = MapRequest::object(pager.clone(), Pages(0), len, sharing);
    uvm.map(&mut ThreadCtx::new().held(), space, &request).unwrap()
}

#[test]
fn a_device_is_mapped_by_many_and_never_freed() {
    let config = Config { devices: vec![(Pa(1 << 32), 32)], ..Config::default() };
    let (uvm, mut ctx) = (SoftMachine::new(config).into_uvm().unwrap(), ThreadCtx::new());
    let held = &mut ctx.held();
    let first = uvm.frames().page_at(Pa(1 << 32)).unwrap();
    assert_eq!((uvm.frames().total(), uvm.frames().numbers()), (1024, 1056));
    let pager: Arc<dyn Pager<SoftMachine>> =
        DevicePager::new(&uvm, held, first, Pages(32)).unwrap();
    let (a, b) = (space(&uvm), space(&uvm));
    let (at, bt) =
        (map(&uvm, &a, &pager, Sharing::Shared), map(&uvm, &b, &pager, Sharing::Private));
    for n in 0..32 {
        store(&uvm, &a, at + Pages(n), n as u8 + 1).unwrap();
        assert_eq!(load(&uvm, &b, bt + Pages(n)), Ok(n as u8 + 1));
        assert_eq!(uvm.frames().place(PageNo(first.0 + n as u32)), Place::Nowhere);
    }
    store(&uvm, &b, bt, 99).unwrap();
    assert_eq!((load(&uvm, &a, at), load(&uvm, &b, bt)), (Ok(1), Ok(99)));
    uvm.audit(held, &[&a, &b], std::slice::from_ref(&pager)).unwrap();
    let mut byte = [0];
    uvm.machine().read(PageNo(first.0 + 31), 0, &mut byte);
    assert_eq!(byte, [32], "the device itself was written");
    uvm.space_destroy(held, a);
    uvm.space_destroy(held, b);
    uvm.detach(held, &*pager);
    assert_eq!((uvm.frames().owner(first), uvm.frames().hold_count(first)), (Owner::Kernel, 0));
    uvm.frames().audit(held).unwrap();
    assert_eq!(uvm.frames().free(), uvm.frames().total());
    // What has been given back may be shown again.
    let again: Arc<dyn Pager<SoftMachine>> = DevicePager::new(&uvm, held, first, Pages(1)).unwrap();
    let c = space(&uvm);
    let ct = map(&uvm, &c, &again, Sharing::Shared);
    assert_eq!(
        (load(&uvm, &c, ct), load(&uvm, &c, ct + Pages(1))),
        (Ok(1), Err(FaultError::NoMapping))
    );
    uvm.space_destroy(held, c);
    uvm.detach(held, &*again);
}

/// A program that draws has a fault for each window of 16 pages, and for each 64 that come into the
/// object, in any order; what a private
/// mapping has copied, and what is on loan, is left as it is.
#[test]
fn a_device_is_mapped_by_the_run() {
    const LEN: u64 = 200;
    let config = Config { devices: vec![(Pa(1 << 32), LEN as u32)], ..Config::default() };
    let (uvm, mut ctx) = (SoftMachine::new(config).into_uvm().unwrap(), ThreadCtx::new());
    let held = &mut ctx.held();
    let first = uvm.frames().page_at(Pa(1 << 32)).unwrap();
    let pager: Arc<dyn Pager<SoftMachine>> =
        DevicePager::new(&uvm, held, first, Pages(LEN)).unwrap();
    let faults = || uvm.stat().get(Counter::FaultsObject);
    for order in [|n: u64| n, |n| LEN - 1 - n, |n| n * 77 % LEN] {
        let (a, before) = (space(&uvm), faults());
        let at = map(&uvm, &a, &pager, Sharing::Shared);
        for n in (0..LEN).map(order) {
            store(&uvm, &a, at + Pages(n), n as u8).unwrap();
        }
        let most = LEN.div_ceil(16) + 1 + LEN.div_ceil(64);
        assert!((1..=most).contains(&(faults() - before)), "{}", faults() - before);
        uvm.audit(held, &[&a], std::slice::from_ref(&pager)).unwrap();
        uvm.space_destroy(held, a);
    }
    let (a, b) = (space(&uvm), space(&uvm));
    let (at, bt) =
        (map(&uvm, &a, &pager, Sharing::Shared), map(&uvm, &b, &pager, Sharing::Private));
    store(&uvm, &b, bt + Pages(3), 99).unwrap();
    assert_eq!((load(&uvm, &b, bt + Pages(2)), load(&uvm, &b, bt + Pages(3))), (Ok(2), Ok(99)));
    // A page on loan isn't to be written through a mapping made along.
    assert_eq!(load(&uvm, &a, at + Pages(5)), Ok(5));
    let range = PageRange::new(at + Pages(5), at + Pages(6)).unwrap();
    let loan = uvm.loan_to_kernel(held, &a, range).unwrap();
    store(&uvm, &a, at + Pages(4), 44).unwrap();
    store(&uvm, &a, at + Pages(5), 55).unwrap();
    let mut byte = [0];
    uvm.machine().read(loan.pages()[0].page(), 0, &mut byte);
    assert_eq!(byte, [5], "a loan shows what was there when it was made");
    uvm.return_loan(held, loan).map_err(|(why, _)| why).unwrap();
    uvm.audit(held, &[&a, &b], std::slice::from_ref(&pager)).unwrap();
    uvm.space_destroy(held, a);
    uvm.space_destroy(held, b);
    uvm.detach(held, &*pager);
    uvm.frames().audit(held).unwrap();
}

/// The paper's case of a pager that chooses its own pages: a ROM, whose pages are there already and
/// show again and again: page 2 of the object is chip 0, page 3 is chip 1, page 4 chip 0 in turn.
struct Rom {
    object: Object<SoftMachine>,
    chips: Vec<PageNo>,
}

impl Pager<SoftMachine> for Rom {
    fn object(&self) -> &Object<SoftMachine> {
        &self.object
    }

    fn kind(&self) -> &'static str {
        "rom"
    }

    /// The page belongs to no table: the next fault asks again.
    fn get(
        &self,
        _: &Uvm<SoftMachine>,
        body: &mut ObjectBody,
        _: &mut Held<'_, order::Object>,
        index: Pages,
        _: Access,
    ) -> Result<PageNo, GetError> {
        if index >= body.length() {
            return Err(GetError::PastEnd);
        }
        Ok(self.chips[index.0 as usize % self.chips.len()])
    }

    fn last_reference(
        &self,
        _: &Uvm<SoftMachine>,
        _: &mut ObjectBody,
        _: &mut Held<'_, order::Object>,
        _: &mut Gather,
    ) -> Removed {
        Removed::All
    }
}

#[test]
fn a_pager_may_choose_its_pages_itself() {
    let (uvm, mut ctx) =
        (SoftMachine::new(Config::default()).into_uvm().unwrap(), ThreadCtx::new());
    let held = &mut ctx.held();
    let first = uvm.frames().alloc_run(uvm.machine(), held, 2).unwrap();
    let chips = vec![first, PageNo(first.0 + 1)];
    for &chip in &chips {
        uvm.machine().write(chip, 0, &[chip.0 as u8; 8]);
        // On no queue, whatever is wired and unwired.
        uvm.frames().wire(chip);
    }
    let rom: Arc<dyn Pager<SoftMachine>> =
        Arc::new(Rom { object: Object::new(&uvm, Pages(6)), chips: chips.clone() });
    let s = space(&uvm);
    let shared = map(&uvm, &s, &rom, Sharing::Shared);
    let private = map(&uvm, &s, &rom, Sharing::Private);
    assert!(
        uvm.pager(held, rom.object().name()).is_some(),
        "who takes a pin back finds the owner's lock"
    );
    let free = uvm.frames().free();
    for n in 0..6 {
        assert_eq!(load(&uvm, &s, shared + Pages(n)), Ok(chips[n as usize % 2].0 as u8));
        assert_eq!(load(&uvm, &s, private + Pages(n)), Ok(chips[n as usize % 2].0 as u8));
    }
    assert!(uvm.frames().free() + 2 >= free, "the ROM's pages were copied");
    store(&uvm, &s, private, 77).unwrap();
    assert_eq!(load(&uvm, &s, private), Ok(77));
    assert_eq!(load(&uvm, &s, shared), Ok(chips[0].0 as u8));
    uvm.wire(held, &s, PageRange::new(shared, shared + Pages(6)).unwrap()).unwrap();
    uvm.unwire(held, &s, PageRange::new(shared, shared + Pages(6)).unwrap()).unwrap();
    uvm.space_destroy(held, s);
    uvm.detach(held, &*rom);
    assert!(uvm.pager(held, rom.object().name()).is_none());
    for chip in chips {
        assert_eq!(uvm.frames().hold_count(chip), 1);
        uvm.frames().free_page(uvm.machine(), held, chip);
    }
    assert_eq!(uvm.frames().free(), uvm.frames().total());
}

#[test]
fn pinned_pages_stay_and_no_entry_is_split() {
    let (desk, mut ctx) = (Desk::new(Answers::Later, 64), ThreadCtx::new());
    let held = &mut ctx.held();
    let uvm = desk.uvm.clone();
    let s = desk.space(held);
    let file = map(&uvm, &s, &desk.pager, Sharing::Shared);
    let zero = uvm.map(held, &s, &MapRequest::zero(Pages(64))).unwrap();
    let entries = s.map().entries(held);
    let range =
        |va: Va, from: u64, to: u64| PageRange::new(va + Pages(from), va + Pages(to)).unwrap();
    // A device reads from the file's pages, and writes into anonymous ones.
    let out = uvm.wire_pages(held, &s, range(file, 3, 9), Prot::READ).unwrap();
    let into = uvm.wire_pages(held, &s, range(zero, 10, 20), Prot::WRITE).unwrap();
    assert_eq!(s.map().entries(held), entries, "an entry was split");
    assert_eq!((out.pages().len(), into.pages().len()), (6, 10));
    assert!(out.pages().iter().chain(into.pages()).all(|&page| uvm.frames().hold_count(page) == 1));
    for (n, &page) in into.pages().iter().enumerate() {
        uvm.machine().write(page, 0, &[n as u8 + 100]);
    }
    // Meanwhile half of both goes away: the pages are the device's until it is done.
    let used = uvm.frames().total() - uvm.frames().free();
    uvm.unmap(held, &s, range(zero, 10, 15)).unwrap();
    uvm.punch(held, &desk.pager, 3..5);
    assert_eq!(uvm.frames().total() - uvm.frames().free(), used, "a pinned page was freed");
    let gone = into.pages()[0];
    assert!(uvm.frames().owner(gone) == Owner::Kernel);
    uvm.unwire_pages(held, out).unwrap();
    uvm.unwire_pages(held, into).unwrap();
    assert_eq!(uvm.frames().total() - uvm.frames().free(), used - 7);
    for n in 15..20 {
        assert_eq!(load(&uvm, &s, zero + Pages(n)), Ok(n as u8 + 90));
    }
    desk.close(held, vec![s]);
}

#[test]
fn what_a_device_wrote_to_a_mapped_file_is_written_back() {
    let (desk, mut ctx) = (Desk::new(Answers::AtOnce, 8), ThreadCtx::new());
    let held = &mut ctx.held();
    let uvm = desk.uvm.clone();
    let s = desk.space(held);
    let va = map(&uvm, &s, &desk.pager, Sharing::Shared);
    let pinned =
        uvm.wire_pages(held, &s, PageRange::new(va, va + Pages(1)).unwrap(), Prot::WRITE).unwrap();
    // Written back before the device is done, and again after.
    desk.file.clean(&uvm, held, 0..8).unwrap();
    uvm.machine().write(pinned.pages()[0], 0, &[42]);
    uvm.unwire_pages(held, pinned).unwrap();
    desk.file.clean(&uvm, held, 0..8).unwrap();
    assert_eq!(desk.disk.state().written[&0], 42);
    desk.close(held, vec![s]);
}

#[test]
fn an_object_has_writers_as_long_as_a_device_may_write_to_it() {
    let (desk, mut ctx) = (Desk::new(Answers::AtOnce, 8), ThreadCtx::new());
    let held = &mut ctx.held();
    let (uvm, object) = (desk.uvm.clone(), desk.pager.object());
    let s = desk.space(held);
    let va = map(&uvm, &s, &desk.pager, Sharing::Shared);
    let all = PageRange::new(va, va + Pages(8)).unwrap();
    let reads = uvm.wire_pages(held, &s, all, Prot::READ).unwrap();
    let writes = uvm.wire_pages(held, &s, all, Prot::WRITE).unwrap();
    uvm.wire(held, &s, all).unwrap();
    let wired = uvm.wire_pages(held, &s, all, Prot::WRITE).unwrap();
    uvm.unmap(held, &s, all).unwrap();
    assert_eq!((object.writers(), object.pinned_writers()), (0, 16));
    uvm.unwire_pages(held, writes).unwrap();
    assert!(!object.deny_writers(), "a device may write to it");
    uvm.unwire_pages(held, wired).unwrap();
    assert_eq!(object.pinned_writers(), 0);
    assert!(object.deny_writers());
    uvm.unwire_pages(held, reads).unwrap();
    // Where stores copy the page, no device reaches the object.
    let va = map(&uvm, &s, &desk.pager, Sharing::Private);
    let copies =
        uvm.wire_pages(held, &s, PageRange::new(va, va + Pages(8)).unwrap(), Prot::WRITE).unwrap();
    assert_eq!(object.pinned_writers(), 0);
    uvm.unwire_pages(held, copies).unwrap();
    desk.close(held, vec![s]);
}

#[test]
fn pinning_fails_as_an_access_would_and_leaves_nothing_pinned() {
    let (desk, mut ctx) = (Desk::new(Answers::AtOnce, 200), ThreadCtx::new());
    let held = &mut ctx.held();
    let uvm = desk.uvm.clone();
    let s = desk.space(held);
    let request = MapRequest::object(desk.pager.clone(), Pages(0), Pages(200), Sharing::Shared);
    let request = MapRequest { advice: Advice::Random, ..request };
    let va = uvm.map(held, &s, &request.prot(Prot::READ)).unwrap();
    let range = |from, to| PageRange::new(va + Pages(from), va + Pages(to)).unwrap();
    let refused = |access, r| uvm.wire_pages(&mut ThreadCtx::new().held(), &s, r, access).err();
    assert_eq!(refused(Prot::WRITE, range(0, 4)), Some(FaultError::Protection));
    assert_eq!(refused(Prot::READ, range(198, 202)), Some(FaultError::NoMapping));
    desk.disk.state().bad.insert(6);
    assert_eq!(refused(Prot::READ, range(4, 8)), Some(FaultError::Io));
    let pages = |range: std::ops::Range<u32>| range.map(PageNo);
    assert!(pages(0..1024).all(|page| uvm.frames().hold_count(page) == 0));
    let pinned = uvm.wire_pages(held, &s, range(100, 200), Prot::READ).unwrap();
    assert_eq!(pinned.pages().len(), CLUSTER, "more than a cluster was pinned at once");
    uvm.unwire_pages(held, pinned).unwrap();
    desk.close(held, vec![s]);
}
