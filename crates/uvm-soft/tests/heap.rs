//! Operations held to what they have reserved.

use machine::{Machine, UNRESERVED_BYTES};
use uvm_soft::{charged, host, within_reservation, ChargedHeap, Config, SoftMachine, PIECE};

#[global_allocator]
static HEAP: ChargedHeap = ChargedHeap;

fn machine() -> SoftMachine {
    SoftMachine::new(Config::default())
}

/// Allocates a piece and frees it.
fn allocate(bytes: usize) {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(bytes)));
}

/// What is wrong with an operation that reserves so much and makes pieces of these sizes, each
/// freed at once.
fn fault(reserved: usize, pieces: &[usize]) -> Option<&'static str> {
    let machine = machine();
    charged(|| {
        machine.reserve_heap(reserved).expect("nothing fails");
        pieces.iter().for_each(|&bytes| allocate(bytes));
    })
    .1
}

#[test]
fn an_operation_may_use_what_it_has_reserved() {
    assert_eq!(fault(300, &[100, 200]), None);
    assert_eq!(fault(3 * PIECE, &[PIECE, PIECE, PIECE]), None);
}

#[test]
fn the_first_byte_too_much_is_found() {
    assert!(fault(0, &[1]).unwrap().starts_with("1 bytes allocated unreserved, 0 left"));
    assert!(fault(300, &[200, 101])
        .unwrap()
        .starts_with("101 bytes allocated unreserved, 100 left"));
}

#[test]
fn a_piece_too_large_is_found_though_it_is_reserved() {
    assert!(fault(4 * PIECE, &[PIECE + 1]).unwrap().contains("in one piece"));
}

#[test]
fn what_is_freed_is_not_given_back() {
    assert!(fault(300, &[200, 200]).is_some());
}

#[test]
fn a_reservation_ends_with_the_next_and_with_the_operation() {
    let machine = machine();
    let reserve = |bytes| machine.reserve_heap(bytes).expect("nothing fails");
    let again = charged(|| {
        reserve(1000);
        reserve(10);
        allocate(11);
    });
    assert!(again.1.is_some());
    within_reservation(|| reserve(1000));
    assert!(charged(|| allocate(1)).1.is_some());
}

#[test]
fn who_is_refused_may_use_the_cushion() {
    let machine = machine();
    for (bytes, is_allowed) in [(UNRESERVED_BYTES, true), (UNRESERVED_BYTES + 1, false)] {
        machine.heap.fail_nth(1);
        let (refused, fault) = charged(|| {
            let refused = machine.reserve_heap(1).is_err();
            allocate(bytes);
            refused
        });
        assert_eq!((refused, fault.is_none()), (true, is_allowed));
    }
}

#[test]
fn what_the_host_allocates_is_not_charged() {
    let fault = charged(|| {
        let _host = host();
        allocate(1);
        let inner = charged(|| allocate(2)).1;
        assert!(inner.is_some(), "an operation that the host begins is charged");
    })
    .1;
    assert_eq!(fault, None);
}

#[test]
fn a_panic_ends_the_operation() {
    let end = std::panic::catch_unwind(|| charged(|| std::panic::resume_unwind(Box::new(()))));
    assert!(end.is_err());
    assert_eq!(charged(|| ()).1, None, "a fault outlives its operation");
}
