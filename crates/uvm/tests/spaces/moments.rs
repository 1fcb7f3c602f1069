//! What another thread does in the middle of an operation on a file's pages.

use std::sync::{Arc, Mutex};

use crate::disk::{Answers, Desk};
use machine::{Machine, Pa, PageNo, PageRange, Pages, Pmap, Prot, ThreadCtx, Va};
use uvm::page::PageFlags;
use uvm::page::{Owner, Reserve};
use uvm::{Advice, MapRequest, Sharing, Space};
use uvm_soft::{Config, Denied, Moment, SoftMachine};

fn mapped(desk: &Desk, pages: u64, advice: Advice) -> (Arc<Space<SoftMachine>>, Va) {
    let mut ctx = ThreadCtx::new();
    let space = desk.space(&mut ctx.held());
    let request = MapRequest::object(desk.pager.clone(), Pages(0), Pages(pages), Sharing::Shared);
    let va = desk.uvm.map(&mut ctx.held(), &space, &MapRequest { advice, ..request }).unwrap();
    (Arc::new(space), va)
}

/// A file's pages are dropped from the cache while an unmapping has taken a translation from the
/// tables and told no CPU yet: the page isn't free before it is out of every CPU's reach, and can
/// be dropped then.
#[test]
fn a_dropped_page_is_out_of_every_cpus_reach() {
    let desk = Desk::new(Answers::AtOnce, 16);
    let (space, va) = mapped(&desk, 16, Advice::Random);
    desk.load(&space, va).unwrap();
    let page = desk.uvm.machine().pmap().extract(space.pmap(), va).unwrap().0;
    let seen = Arc::new(Mutex::new(None));
    let meanwhile = {
        let (uvm, file, space, seen) =
            (desk.uvm.clone(), desk.file.clone(), space.clone(), seen.clone());
        move || {
            let mut ctx = ThreadCtx::new();
            let held = &mut ctx.held();
            file.drop_clean(&uvm, held, 0..16);
            let is_free = uvm.frames().owner(page) == Owner::Free;
            // Another program gets the frame and writes a secret.
            while let Ok(next) = uvm.frames().alloc(uvm.machine(), held, Reserve::Kernel) {
                if next == page {
                    uvm.machine().write(page, 0, &[0x42]);
                    break;
                }
            }
            // The CPU that has not been told yet. The machine says so itself where a stale
            // translation is used.
            let no = |_, _: Prot| Err::<(), ()>(());
            let looked = uvm.machine().load(0, space.pmap(), va, &mut [0], no);
            *seen.lock().unwrap() = Some((is_free, !matches!(looked, Err(Denied::Fault(())))));
        }
    };
    desk.uvm.machine().pmap().hooks.at_next(Moment::Flushing, move || {
        std::thread::spawn(meanwhile).join().unwrap();
    });
    let mut ctx = ThreadCtx::new();
    let held = &mut ctx.held();
    desk.uvm.unmap(held, &space, PageRange::new(va, va + Pages(16)).unwrap()).unwrap();
    let (was_free, was_read) = seen.lock().unwrap().take().expect("the unmapping flushes");
    assert!(!was_free || !was_read, "free, and read through a translation that is stale");
    desk.file.drop_clean(&desk.uvm, held, 0..16);
    assert_eq!(desk.uvm.frames().owner(page), Owner::Free);
}

/// A store to a hole with a mark to read on, into whose file another finds room while that read
/// begins.
#[test]
fn a_pin_of_a_hole_that_another_fills_is_one_pin() {
    let desk = Desk::new(Answers::AtOnce, 400);
    let (space, va) = mapped(&desk, 400, Advice::Normal);
    desk.disk.state().holes.extend(0..400);
    let mut ctx = ThreadCtx::new();
    let held = &mut ctx.held();
    let marked = (0..400)
        .find_map(|at| {
            desk.load(&space, va + Pages(at)).unwrap();
            let (body, _) = desk.pager.object().lock(held);
            let both = PageFlags::AHEAD | PageFlags::HOLE;
            let is_marked = |n: &u64| {
                body.page(Pages(*n))
                    .is_some_and(|page| desk.uvm.frames().flags(page).contains(both))
            };
            (at + 1..400).find(is_marked)
        })
        .expect("sequential loads leave a mark ahead");
    *desk.disk.on_read.lock().unwrap() = Some({
        let (uvm, pager) = (desk.uvm.clone(), desk.pager.clone());
        Box::new(move || {
            pager.fill_hole(&uvm, &mut ThreadCtx::new().held(), Pages(marked)).unwrap()
        })
    });
    let range = PageRange::new(va + Pages(marked), va + Pages(marked + 1)).unwrap();
    let pinned = desk.uvm.wire_pages(held, &space, range, Prot::WRITE).unwrap();
    let page = pinned.pages()[0];
    let during = desk.uvm.frames().hold_count(page);
    desk.uvm.unwire_pages(held, pinned).unwrap();
    assert_eq!((during, desk.uvm.frames().hold_count(page)), (1, 0));
}

/// A pass takes clean pages, and meets dirty ones of a file, which their host writes at once and
/// may sleep meanwhile.
#[test]
fn a_pass_writes_a_file_with_nothing_busy_and_no_cpu_to_tell() {
    let config = Config { segments: vec![(Pa(0), 256)], ..Config::default() };
    let desk = Desk::on(config, Answers::AtOnce, 64);
    let (space, va) = mapped(&desk, 64, Advice::Random);
    for n in 0..44 {
        match n {
            20..24 => desk.store(&space, va + Pages(n), 1).unwrap(),
            _ => assert!(desk.load(&space, va + Pages(n)).is_ok()),
        }
    }
    let seen = Arc::new(Mutex::new(Vec::new()));
    *desk.disk.on_write.lock().unwrap() = Some({
        let seen = seen.clone();
        Box::new(move |machine| {
            let busy = |n: &u32| machine.frames().flags(PageNo(*n)).contains(PageFlags::BUSY);
            seen.lock().unwrap().push((machine.pmap().unflushed(), (0..256).filter(busy).count()));
        })
    });
    let mut ctx = ThreadCtx::new();
    for _ in 0..4 {
        desk.uvm.pageout(&mut ctx.held(), 10_000);
    }
    // The four are the write's own.
    assert_eq!(
        *seen.lock().unwrap(),
        [(0, 4)],
        "shootdowns that are open, and busy pages, at each write"
    );
}

#[test]
fn page_out_on_request_leaves_what_others_use() {
    let desk = Desk::new(Answers::AtOnce, 16);
    let (space, va) = mapped(&desk, 16, Advice::Random);
    (0..16).for_each(|n| assert!(desk.load(&space, va + Pages(n)).is_ok()));
    let mut ctx = ThreadCtx::new();
    let held = &mut ctx.held();
    let range = PageRange::new(va, va + Pages(16)).unwrap();
    let other = desk.uvm.fork(held, &space).unwrap();
    assert_eq!(desk.uvm.pageout_range(held, &space, range).freed, 0, "another maps the file");
    desk.uvm.space_destroy(held, other);
    assert_eq!(desk.uvm.pageout_range(held, &space, range).freed, 16);
    // A private mapping's file is not the caller's to write.
    let request = MapRequest::object(desk.pager.clone(), Pages(0), Pages(16), Sharing::Private);
    desk.uvm.unmap(held, &space, range).unwrap();
    let va = desk.uvm.map(held, &space, &MapRequest { advice: Advice::Random, ..request }).unwrap();
    let range = PageRange::new(va, va + Pages(16)).unwrap();
    (0..16).for_each(|n| assert!(desk.load(&space, va + Pages(n)).is_ok()));
    assert_eq!(
        desk.uvm.pageout_range(held, &space, range).freed,
        0,
        "a file that the caller can't write"
    );
}
