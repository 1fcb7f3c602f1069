//! The calls: one step to map, two phases to unmap, moves.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use machine::order::{self, Nothing};
use machine::{Held, PageNo, PageRange, Pages, Prot, ThreadCtx, Va};
use uvm::page::Gather;
use uvm::pager::Access;
use uvm::{
    Advice, AnonObject, Counter, FaultError, GetError, Inherit, MapError, MapRequest, Object,
    ObjectBody, Pager, Place, RangeError, RemapPlace, Removed, Sharing, Space, Transfer, Uvm,
    Vnode, VnodePager,
};

use crate::count::locks;
use crate::world::{audit, end, entries, load, part, space, store, world, zeroes, Soft, World};

#[test]
fn a_mapping_appears_at_once_with_all_its_attributes() {
    let (uvm, mut ctx) = (world(64), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    let request = MapRequest {
        place: Place::FixedNoReplace(Va(0x40_0000)),
        max_prot: Prot::READ_WRITE,
        inherit: Some(Inherit::Zero),
        advice: Advice::Random,
        name: Some(Arc::new("heap")),
        ..MapRequest::zero(Pages(8)).prot(Prot::READ)
    };
    let before = locks();
    let va = uvm.map(held, &s, &request).unwrap();
    assert_eq!(locks() - before, 1, "the map's lock, once: no thread sees the mapping half made");
    let e = uvm.entry_at(held, &s, va).unwrap();
    assert_eq!(
        (e.range, e.prot, e.max_prot),
        (PageRange::new(va, va + Pages(8)).unwrap(), Prot::READ, Prot::READ_WRITE)
    );
    assert_eq!((e.inherit, e.advice, e.sharing), (Inherit::Zero, Advice::Random, Sharing::Private));
    assert_eq!(e.name.as_ref().map(|name| name.text()), Some("heap"));
    // A shared object's mapping is counted there without the object's lock.
    let object: Arc<dyn Pager<Soft>> = AnonObject::new(&uvm, held, Pages(8)).unwrap();
    let before = locks();
    uvm.map(held, &s, &MapRequest::object(object.clone(), Pages(2), Pages(4), Sharing::Shared))
        .unwrap();
    assert_eq!(locks() - before, 1);
    audit(&uvm, held, &[&s], std::slice::from_ref(&object));
    uvm.space_destroy(held, s);
    uvm.detach(held, &*object);
}

#[test]
fn a_range_of_many_mappings_is_protected_whole_or_not_at_all() {
    const MANY: u64 = 300;
    let (uvm, mut ctx) = (world(64), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    let start = Va(0x40_0000);
    let at = |n: u64| start + Pages(n);
    // Names keep them apart; the last may not be written.
    for n in 0..MANY {
        let max_prot = if n == MANY - 1 { Prot::READ } else { Prot::READ_WRITE };
        let one = MapRequest {
            max_prot,
            name: Some(Arc::new(format!("{n}"))),
            ..MapRequest::zero(Pages(1)).prot(Prot::READ)
        };
        uvm.map(held, &s, &one.at(at(n))).unwrap();
    }
    let whole = PageRange::new(start, at(MANY)).unwrap();
    let prots = |held: &mut Held<'_, Nothing>| {
        (0..MANY).map(|n| uvm.entry_at(held, &s, at(n)).unwrap().prot).collect::<Vec<_>>()
    };
    assert_eq!(uvm.protect(held, &s, whole, Prot::READ_WRITE), Err(RangeError::Access));
    assert_eq!(
        uvm.protect(held, &s, PageRange::new(start, at(MANY + 1)).unwrap(), Prot::READ),
        Err(RangeError::NoMapping)
    );
    assert!(prots(held).iter().all(|&prot| prot == Prot::READ));
    let but_last = PageRange::new(start, at(MANY - 1)).unwrap();
    uvm.protect(held, &s, but_last, Prot::READ_WRITE).unwrap();
    (0..MANY - 1).step_by(20).for_each(|n| store(&uvm, &s, at(n), 1).unwrap());
    uvm.protect(held, &s, whole, Prot::READ).unwrap();
    assert!(prots(held).iter().all(|&prot| prot == Prot::READ));
    assert_eq!(store(&uvm, &s, start, 2), Err(FaultError::Protection));
    audit(&uvm, held, &[&s], &[]);
    end(&uvm, held, [s]);
}

/// More translations than a step forgets, close together and far apart.
#[test]
fn a_large_space_ends_in_steps() {
    const PAGES: u64 = 5000;
    for apart in [1, 1000] {
        let (uvm, mut ctx) = (world(16 * 1024), ThreadCtx::new());
        let held = &mut ctx.held();
        let s = space(&uvm, held);
        let start = zeroes(&uvm, held, &s, PAGES * apart).start;
        (0..PAGES).for_each(|n| store(&uvm, &s, start + Pages(n * apart), n as u8).unwrap());
        audit(&uvm, held, &[&s], &[]);
        end(&uvm, held, [s]);
    }
}

#[test]
fn a_full_map_refuses_what_cuts_and_stays_as_it_was() {
    let (uvm, mut ctx) = (world(64), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    let wide = zeroes(&uvm, held, &s, 8);
    let apart = |n: u64| MapRequest::zero(Pages(1)).at(Va(0x10_0000 + n * 0x1_0000));
    uvm.knobs().set_most_entries(3);
    (0..3).for_each(|n| assert_eq!(uvm.map(held, &s, &apart(n)), Ok(Va(0x10_0000 + n * 0x1_0000))));
    assert_eq!(uvm.map(held, &s, &apart(3)), Err(MapError::TooMany));
    let inner = part(wide, 2..4);
    assert_eq!(uvm.unmap(held, &s, inner), Err(RangeError::TooMany));
    assert_eq!(uvm.protect(held, &s, inner, Prot::READ), Err(RangeError::TooMany));
    assert_eq!(uvm.inherit(held, &s, inner, Inherit::None), Err(RangeError::TooMany));
    assert_eq!(uvm.advise(held, &s, inner, Advice::Random), Err(RangeError::TooMany));
    assert_eq!(uvm.wire_as_touched(held, &s, inner), Err(RangeError::TooMany));
    assert_eq!(uvm.remap(held, &s, inner, Pages(9), RemapPlace::MayMove), Err(MapError::TooMany));
    assert_eq!(entries(&uvm, held, &s).len(), 4);
    // What lies at an end goes, and what is whole changes.
    uvm.unmap(held, &s, part(wide, 6..8)).unwrap();
    uvm.protect(held, &s, part(wide, 0..6), Prot::READ).unwrap();
    uvm.unmap(held, &s, part(wide, 0..6)).unwrap();
    assert_eq!(uvm.map(held, &s, &apart(3)), Ok(Va(0x13_0000)));
    end(&uvm, held, [s]);
}

/// What runs while no thread may hold the map's lock: another thread uses the map, and must come
/// back.
type Probe = Box<dyn Fn() + Send + Sync>;

fn probe(uvm: &World, space: &Arc<Space<Soft>>) -> Probe {
    let (uvm, space) = (uvm.clone(), space.clone());
    Box::new(move || {
        let (uvm, space, (done, answer)) = (uvm.clone(), space.clone(), channel());
        let other = std::thread::spawn(move || {
            let mut ctx = ThreadCtx::new();
            let range = zeroes(&uvm, &mut ctx.held(), &space, 1);
            store(&uvm, &space, range.start, 1).unwrap();
            uvm.unmap(&mut ctx.held(), &space, range).unwrap();
            let _ = done.send(());
        });
        answer.recv_timeout(Duration::from_secs(300)).expect("the map is locked");
        other.join().unwrap();
    })
}

/// A pager that runs a probe when it is told that there is no reference to it any more.
struct LastWords {
    object: Object<Soft>,
    probe: Mutex<Option<Probe>>,
    ended: AtomicUsize,
}

impl Pager<Soft> for LastWords {
    fn object(&self) -> &Object<Soft> {
        &self.object
    }

    fn kind(&self) -> &'static str {
        "last words"
    }

    fn get(
        &self,
        _: &Uvm<Soft>,
        _: &mut ObjectBody,
        _: &mut Held<'_, order::Object>,
        _: Pages,
        _: Access,
    ) -> Result<PageNo, GetError> {
        Err(GetError::Io)
    }

    fn last_reference(
        &self,
        _: &Uvm<Soft>,
        _: &mut ObjectBody,
        _: &mut Held<'_, order::Object>,
        _: &mut Gather,
    ) -> Removed {
        if let Some(probe) = &*self.probe.lock().unwrap() {
            probe();
        }
        self.ended.fetch_add(1, Relaxed);
        Removed::All
    }
}

/// Maps a `LastWords` whose only reference is the mapping, at an address.
fn map_last_words(
    uvm: &World,
    held: &mut Held<'_, Nothing>,
    space: &Arc<Space<Soft>>,
    va: Va,
) -> Arc<LastWords> {
    let pager = Arc::new(LastWords {
        object: Object::new(uvm, Pages(4)),
        probe: Mutex::new(None),
        ended: AtomicUsize::new(0),
    });
    let request = MapRequest::object(pager.clone(), Pages(0), Pages(4), Sharing::Shared).at(va);
    uvm.map(held, space, &request).unwrap();
    uvm.detach(held, &*pager);
    *pager.probe.lock().unwrap() = Some(probe(uvm, space));
    pager
}

#[test]
fn the_last_reference_goes_after_the_maps_lock() {
    let (uvm, mut ctx) = (world(64), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = Arc::new(space(&uvm, held));
    let (low, high) = (Va(0x10_0000), Va(0x20_0000));
    let range = PageRange::new(low, low + Pages(4)).unwrap();
    type Call = fn(&World, &mut Held<'_, Nothing>, &Space<Soft>, PageRange, Va);
    let calls: [(&str, Call); 4] = [
        ("unmap", |uvm, held, s, range, _| uvm.unmap(held, s, range).unwrap()),
        ("a fixed mapping in its place", |uvm, held, s, range, _| {
            uvm.map(held, s, &MapRequest::zero(Pages(4)).at(range.start)).unwrap();
        }),
        ("a move into its place", |uvm, held, s, range, high| {
            uvm.map(held, s, &MapRequest::zero(Pages(4)).at(high)).unwrap();
            let old = PageRange::new(high, high + Pages(4)).unwrap();
            uvm.remap(held, s, old, Pages(4), RemapPlace::Fixed(range.start)).unwrap();
        }),
        ("exec and exit", |uvm, held, s, _, _| uvm.space_clear(held, s)),
    ];
    for (name, call) in calls {
        let pager = map_last_words(&uvm, held, &s, low);
        call(&uvm, held, &s, range, high);
        assert_eq!(pager.ended.load(Relaxed), 1, "{name}");
        *pager.probe.lock().unwrap() = None;
    }
    let s = Arc::into_inner(s).expect("the probes are gone");
    end(&uvm, held, [s]);
}

/// A file whose every transfer runs a probe.
struct Probed(Arc<Mutex<Option<Probe>>>, Arc<AtomicUsize>);

impl Probed {
    fn transfer(&self) -> Transfer {
        if let Some(probe) = &*self.0.lock().unwrap() {
            probe();
        }
        self.1.fetch_add(1, Relaxed);
        Transfer::Done
    }
}

impl Vnode<Soft> for Probed {
    fn read(&self, machine: &Soft, _: Pages, pages: &[PageNo]) -> Transfer {
        pages.iter().for_each(|&page| machine::Machine::zero(machine, page));
        self.transfer()
    }

    fn write(&self, _: &Soft, _: Pages, _: &[PageNo]) -> Transfer {
        self.transfer()
    }
}

#[test]
fn no_lock_is_held_over_a_files_transfers() {
    let (uvm, mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = Arc::new(space(&uvm, held));
    let (hook, transfers) = (Arc::new(Mutex::new(None)), Arc::new(AtomicUsize::new(0)));
    let vnode = Probed(hook.clone(), transfers.clone());
    let pager = VnodePager::new(&uvm, held, Box::new(vnode), Pages(8)).unwrap();
    let dynamic: Arc<dyn Pager<Soft>> = pager.clone();
    *hook.lock().unwrap() = Some(probe(&uvm, &s));
    let va = uvm
        .map(held, &s, &MapRequest::object(dynamic.clone(), Pages(0), Pages(8), Sharing::Shared))
        .unwrap();
    store(&uvm, &s, va, 7).unwrap();
    let read = transfers.load(Relaxed);
    assert!(read > 0, "the fault read the file");
    pager.clean(&uvm, held, 0..8).unwrap();
    assert!(transfers.load(Relaxed) > read, "msync wrote it");
    uvm.unmap(held, &s, PageRange::new(va, va + Pages(8)).unwrap()).unwrap();
    *hook.lock().unwrap() = None;
    let s = Arc::into_inner(s).expect("the probe is gone");
    uvm.space_destroy(held, s);
    uvm.detach(held, &*dynamic);
    assert_eq!(uvm.frames().free(), uvm.frames().total());
}

#[test]
fn a_move_copies_nothing_and_keeps_all_attributes() {
    let (uvm, mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    let range = zeroes(&uvm, held, &s, 16);
    range
        .iter_pages()
        .for_each(|va| store(&uvm, &s, va, (va.0 >> machine::PAGE_SHIFT) as u8).unwrap());
    uvm.inherit(held, &s, part(range, 4..8), Inherit::None).unwrap();
    uvm.protect(held, &s, part(range, 8..12), Prot::READ).unwrap();
    let (anons, copied) = (uvm.anons(), uvm.stat().get(Counter::FaultsAnonCopied));
    let to = Va(0x7000_0000_0000 - 0x100_0000);
    let new = uvm.remap(held, &s, range, Pages(20), RemapPlace::Fixed(to)).unwrap();
    assert_eq!((new, uvm.anons(), uvm.stat().get(Counter::FaultsAnonCopied)), (to, anons, copied));
    let moved = entries(&uvm, held, &s);
    let seen: Vec<_> = moved.iter().map(|e| (e.range.pages().0, e.prot, e.inherit)).collect();
    let rw = Prot::READ_WRITE;
    let copy = Inherit::Copy;
    assert_eq!(seen, [(4, rw, copy), (4, rw, Inherit::None), (4, Prot::READ, copy), (8, rw, copy)]);
    for (old, va) in range.iter_pages().zip((0..).map(|n| new + Pages(n))) {
        assert_eq!(load(&uvm, &s, va), Ok((old.0 >> machine::PAGE_SHIFT) as u8));
    }
    assert_eq!(
        (load(&uvm, &s, new + Pages(19)), load(&uvm, &s, range.start)),
        (Ok(0), Err(FaultError::NoMapping))
    );
    // A shrink frees at once what it cuts off.
    uvm.remap(held, &s, PageRange::new(new, new + Pages(20)).unwrap(), Pages(2), RemapPlace::Stay)
        .unwrap();
    assert_eq!(uvm.anons(), 2);
    audit(&uvm, held, &[&s], &[]);
    end(&uvm, held, [s]);
}

#[test]
fn a_mapping_that_moves_and_stays_leaves_what_it_shares_and_nothing_private() {
    let (uvm, mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    let range = zeroes(&uvm, held, &s, 4);
    range.iter_pages().for_each(|va| store(&uvm, &s, va, 7).unwrap());
    uvm.protect(held, &s, part(range, 2..4), Prot::READ).unwrap();
    uvm.wire(held, &s, part(range, 0..1)).unwrap();
    let shared: Arc<dyn Pager<Soft>> = AnonObject::new(&uvm, held, Pages(2)).unwrap();
    let old = PageRange::new(Va(range.start.0 - 2 * machine::PAGE_SIZE as u64), range.end).unwrap();
    let request =
        MapRequest::object(shared.clone(), Pages(0), Pages(2), Sharing::Shared).at(old.start);
    uvm.map(held, &s, &request).unwrap();
    store(&uvm, &s, old.start, 9).unwrap();
    let anons = uvm.anons();
    let new = uvm.remap_and_keep(held, &s, old, None).unwrap();
    assert_eq!(uvm.anons(), anons, "nothing is copied");
    for n in 2..6 {
        assert_eq!(
            (load(&uvm, &s, new + Pages(n)), load(&uvm, &s, old.start + Pages(n))),
            (Ok(7), Ok(0))
        );
    }
    let seen: Vec<_> = entries(&uvm, held, &s).iter().map(|e| (e.prot, e.wired)).collect();
    let (rw, r) = (Prot::READ_WRITE, Prot::READ);
    // Each part that is moved is wired as it was.
    let moved = [(rw, false), (rw, true), (rw, false), (r, false)];
    let kept = [(rw, false), (rw, false), (r, false)];
    assert_eq!(seen, [&moved[..], &kept[..]].concat());
    // What is shared is there twice, and a store by one way is seen by the other.
    let (by_new, by_old) = (new, old.start);
    assert_eq!((load(&uvm, &s, by_new), load(&uvm, &s, by_old)), (Ok(9), Ok(9)));
    store(&uvm, &s, by_old, 5).unwrap();
    assert_eq!(load(&uvm, &s, by_new), Ok(5));
    // Nothing has changed where it is refused.
    let inside = uvm.remap_and_keep(held, &s, old, Some(old.start + Pages(1)));
    let hole = PageRange::new(Va(new.0 - machine::PAGE_SIZE as u64), new + Pages(1)).unwrap();
    assert_eq!(inside, Err(MapError::Invalid));
    assert_eq!(uvm.remap_and_keep(held, &s, hole, Some(Va(0x10_0000))), Err(MapError::NoMapping));
    assert_eq!(load(&uvm, &s, by_old), Ok(5));
    audit(&uvm, held, &[&s], std::slice::from_ref(&shared));
    uvm.space_destroy(held, s);
    uvm.detach(held, &*shared);
}

#[test]
fn a_range_that_was_cut_grows_together_where_it_is_moved() {
    let (uvm, mut ctx) = (world(64), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    let range = zeroes(&uvm, held, &s, 8);
    store(&uvm, &s, range.start, 3).unwrap();
    // Away and back, in two halves: the halves meet again as one entry.
    let away = Va(0x10_0000);
    let high = part(range, 4..8);
    uvm.remap(held, &s, high, Pages(4), RemapPlace::Fixed(away)).unwrap();
    assert_eq!(entries(&uvm, held, &s).len(), 2);
    uvm.remap(
        held,
        &s,
        PageRange::new(away, away + Pages(4)).unwrap(),
        Pages(4),
        RemapPlace::Fixed(high.start),
    )
    .unwrap();
    assert_eq!(entries(&uvm, held, &s).len(), 1);
    assert_eq!(load(&uvm, &s, range.start), Ok(3));
    audit(&uvm, held, &[&s], &[]);
    end(&uvm, held, [s]);
}
