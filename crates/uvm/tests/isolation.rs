//! What one program stores, another doesn't see: at the moments where a page is on its way from the
//! one to the other.
//!
//! A program of its own, and one test at a time: all machines of a process share the rows in which
//! threads say what they read, and a thread that finds no free place there takes the lock alone. In
//! the middle of a fault, that is a lock for which the other thread would wait for ever.

mod loaning;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use loaning::{audit, load, store, world, written, World};
use machine::{Machine, PageRange, Pages, Pmap, ThreadCtx, Va};
use uvm::{At, RemapPlace, Space};
use uvm_soft::{Moment, SoftMachine};

type S = Space<SoftMachine>;

#[global_allocator]
static HEAP: uvm_soft::ChargedHeap<true> = uvm_soft::ChargedHeap;

/// The right to run; see above.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn page(at: Va, n: u64) -> PageRange {
    PageRange::new(at + Pages(n), at + Pages(n + 1)).unwrap()
}

/// A space with four pages written and none of them mapped, whose locks are open to several
/// readers.
fn unmapped(uvm: &World) -> (Arc<S>, Va) {
    let mut ctx = ThreadCtx::new();
    let held = &mut ctx.held();
    let (space, range) = written(uvm, held, 4);
    // What moves keeps its anons and loses its translations.
    let at = uvm.remap(held, &space, range, Pages(4), RemapPlace::Fixed(Va(0x4000_0000))).unwrap();
    // Locks are opened to several readers by reads.
    for _ in 0..100 {
        let loan = uvm.loan_to_kernel(held, &space, page(at, 3)).unwrap();
        uvm.return_loan(held, loan).unwrap();
    }
    assert!(uvm.machine().pmap().extract(space.pmap(), at).is_none());
    (Arc::new(space), at)
}

/// Loans a page, moves it into another space and has that fork: the anon has a second reference,
/// and no loan.
fn share(uvm: &World, from: &S, to: &S, range: PageRange) -> (Va, S) {
    let mut ctx = ThreadCtx::new();
    let held = &mut ctx.held();
    let loan = uvm.loan_to_kernel(held, from, range).unwrap();
    let va = uvm.transfer(held, to, loan, At::Anywhere).map_err(|(e, _)| e).unwrap();
    (va, uvm.fork(held, to).unwrap())
}

/// Runs `meanwhile` on another thread when pages have been chosen to be mapped ahead.
fn as_pages_are_mapped_ahead<T: Send + 'static>(
    uvm: &Arc<World>,
    meanwhile: impl FnOnce() -> T + Send + 'static,
) -> Arc<Mutex<Option<T>>> {
    let got = Arc::new(Mutex::new(None));
    let (put, world) = (got.clone(), uvm.clone());
    let meanwhile = move || {
        world.machine().run_on(1);
        meanwhile()
    };
    uvm.machine().pmap().hooks.at_next(Moment::MappingAhead, move || {
        *put.lock().unwrap() = std::thread::spawn(meanwhile).join().ok();
    });
    got
}

#[test]
fn a_neighbour_mapped_ahead_is_not_writable_when_its_anon_is_shared() {
    let _turn = turn();
    let uvm = Arc::new(world(4096).0);
    let (a, at) = unmapped(&uvm);
    let b = Arc::new(written(&uvm, &mut ThreadCtx::new().held(), 1).0);
    let got = {
        let (world, a, b) = (uvm.clone(), a.clone(), b.clone());
        as_pages_are_mapped_ahead(&uvm, move || share(&world, &a, &b, page(at, 1)))
    };
    assert_eq!(load(&uvm, &a, at), 1);
    let (va, child) = got.lock().unwrap().take().expect("the page was shared meanwhile");
    assert_eq!(load(&uvm, &b, va), 2);
    store(&uvm, &a, at + Pages(1), 99);
    assert_eq!((load(&uvm, &b, va), load(&uvm, &child, va)), (2, 2), "sharers see the store");
    audit(&uvm, &mut ThreadCtx::new().held(), &[&a, &b, &child], &[]);
}

#[test]
fn a_neighbour_mapped_ahead_is_not_writable_when_it_is_loaned() {
    let _turn = turn();
    let uvm = Arc::new(world(4096).0);
    let (a, at) = unmapped(&uvm);
    let got = {
        let (world, a) = (uvm.clone(), a.clone());
        as_pages_are_mapped_ahead(&uvm, move || {
            world.loan_to_kernel(&mut ThreadCtx::new().held(), &a, page(at, 1)).unwrap()
        })
    };
    assert_eq!(load(&uvm, &a, at), 1);
    let loan = got.lock().unwrap().take().expect("the page was loaned meanwhile");
    store(&uvm, &a, at + Pages(1), 99);
    let mut byte = [0];
    uvm.machine().read(loan.pages()[0].page(), 0, &mut byte);
    assert_eq!(byte, [2], "the borrower sees the store");
    uvm.return_loan(&mut ThreadCtx::new().held(), loan).unwrap();
    audit(&uvm, &mut ThreadCtx::new().held(), &[&a], &[]);
}

/// The anon is alone again when its page is entered, but another's: a copy has taken its place.
#[test]
fn a_neighbour_mapped_ahead_is_not_what_its_slot_held_before() {
    let _turn = turn();
    let uvm = Arc::new(world(4096).0);
    let (a, at) = unmapped(&uvm);
    let b = Arc::new(written(&uvm, &mut ThreadCtx::new().held(), 1).0);
    let got = {
        let (world, a, b) = (uvm.clone(), a.clone(), b.clone());
        as_pages_are_mapped_ahead(&uvm, move || {
            let (va, child) = share(&world, &a, &b, page(at, 1));
            // The store copies the page for this space: the anon is the others' then.
            store(&world, &a, at + Pages(1), 55);
            let mut ctx = ThreadCtx::new();
            world.space_destroy(&mut ctx.held(), child);
            // A port may forget what is pageable.
            world.machine().pmap().forget_all();
            va
        })
    };
    assert_eq!(load(&uvm, &a, at), 1);
    let va = got.lock().unwrap().take().expect("the page was shared meanwhile");
    assert_eq!(load(&uvm, &a, at + Pages(1)), 55, "the space sees what it has stored");
    store(&uvm, &a, at + Pages(1), 99);
    assert_eq!(load(&uvm, &b, va), 2, "another sees the store");
    audit(&uvm, &mut ThreadCtx::new().held(), &[&a, &b], &[]);
}
