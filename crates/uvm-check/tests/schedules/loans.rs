//! Loans, transfers and passed entries beside stores, forks and ends.

use super::*;
use uvm::{At, Loan, LoanedPage, Pass};

fn words(w: &World, loan: &Loan) -> Vec<u64> {
    let word = |page: &LoanedPage| {
        let mut bytes = [0; 8];
        w.uvm.machine().read(page.page(), 0, &mut bytes);
        u64::from_le_bytes(bytes)
    };
    loan.pages().iter().map(word).collect()
}

fn loan(w: &World, space: &uvm::Space<Soft>, pages: u64) -> Loan {
    let range = PageRange::new(P, P + Pages(pages)).unwrap();
    w.uvm.loan_to_kernel(&mut ThreadCtx::new().held(), space, range).expect("it can be read")
}

fn give_back(w: &World, loan: Loan) {
    w.uvm.return_loan(&mut ThreadCtx::new().held(), loan).unwrap();
}

/// Two threads store while a third loans: the borrower's bytes stay as they were when it got them,
/// and no store is lost.
#[test]
fn a_borrower_sees_no_store_and_no_store_is_lost() {
    check(|| {
        let w = World::new();
        let space = w.space();
        w.map(&space, MapRequest::zero(Pages(2)));
        w.store(1, &space, P, 1);
        w.store(2, &space, Q, 1);
        let threads = [(1, P), (2, Va(P.0 + 8))].map(|(cpu, va)| {
            let (w, space) = (w.clone(), space.clone());
            spawn(move || (2..4).for_each(|n| w.store(cpu, &space, va, n)))
        });
        let loan = loan(&w, &space, 2);
        let seen = words(&w, &loan);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(words(&w, &loan), seen, "the borrower has seen a store");
        assert_eq!(
            (w.load(0, &space, P), w.load(0, &space, Va(P.0 + 8))),
            (3, 3),
            "a store was lost"
        );
        w.check(&[&space], &[]);
        give_back(&w, loan);
        w.check(&[&space], &[]);
        w.end(vec![space]);
    });
}

/// Two threads store while a third gives the pages away: what is given changes no more, and each
/// store is in what was given or in what took its place.
#[test]
fn what_is_given_away_sees_no_store() {
    check(|| {
        let w = World::new();
        let space = w.space();
        w.map(&space, MapRequest::zero(Pages(2)));
        w.store(1, &space, P, 1);
        w.store(2, &space, Q, 1);
        let threads = [(1, P), (2, Q)].map(|(cpu, va)| {
            let (w, space) = (w.clone(), space.clone());
            spawn(move || (2..4).for_each(|n| w.store(cpu, &space, va, n)))
        });
        let range = PageRange::new(P, P + Pages(2)).unwrap();
        let given = w.uvm.give_to_kernel(&mut ThreadCtx::new().held(), &space, range);
        let given = given.expect("there is memory").expect("it is the program's own");
        let seen = words(&w, &given);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(words(&w, &given), seen, "the borrower has seen a store");
        for (va, seen) in [P, Q].into_iter().zip(seen) {
            let left = if seen == 3 { 0 } else { 3 };
            assert_eq!(w.load(0, &space, va), left, "{seen} was given");
        }
        w.check(&[&space], &[]);
        give_back(&w, given);
        w.end(vec![space]);
    });
}

/// An object's page that two spaces map is loaned while one stores to it.
#[test]
fn a_borrower_of_an_objects_page_sees_no_store() {
    check(|| {
        let w = World::new();
        let object = AnonObject::new(&w.uvm, &mut ThreadCtx::new().held(), Pages(1))
            .expect("there is memory");
        let pager: Arc<dyn Pager<Soft>> = object;
        let spaces = [w.space(), w.space()];
        for space in &spaces {
            w.map(space, MapRequest::object(pager.clone(), Pages(0), Pages(1), Sharing::Shared));
        }
        w.store(1, &spaces[1], P, 1);
        let writer = {
            let (w, space) = (w.clone(), spaces[1].clone());
            spawn(move || (2..4).for_each(|n| w.store(1, &space, P, n)))
        };
        let host = {
            let (w, pager) = (w.clone(), pager.clone());
            spawn(move || {
                let write = |m: &Soft, page: PageNo| m.write(page, 16, &7u64.to_le_bytes());
                let held = &mut ThreadCtx::new();
                w.uvm
                    .with_page(
                        &mut held.held(),
                        &pager,
                        Pages(0),
                        Intent::Write,
                        Access::PAGE,
                        write,
                    )
                    .expect("it is there");
            })
        };
        let loan = loan(&w, &spaces[0], 1);
        let seen = words(&w, &loan);
        writer.join().unwrap();
        host.join().unwrap();
        assert_eq!(words(&w, &loan), seen, "the borrower has seen a store");
        assert_eq!((w.load(0, &spaces[0], P), w.load(0, &spaces[0], Va(P.0 + 16))), (3, 7));
        w.check(&[&spaces[0], &spaces[1]], std::slice::from_ref(&pager));
        give_back(&w, loan);
        w.end(spaces.into());
        w.uvm.detach(&mut ThreadCtx::new().held(), &*pager);
    });
}

/// A page's owner goes while its last borrower gives it back: one of them frees it.
#[test]
fn one_of_owner_and_borrower_frees_the_page() {
    check(|| {
        let w = World::new();
        let space = w.space();
        w.map(&space, MapRequest::zero(Pages(2)));
        (0..2).for_each(|n| w.store(0, &space, P + Pages(n), 1));
        let loan = loan(&w, &space, 2);
        let again =
            loan.pages().iter().map(|page| w.uvm.loan_again(page).expect("it is loaned once"));
        let again: Loan = again.collect();
        let first = {
            let w = w.clone();
            spawn(move || give_back(&w, loan))
        };
        let second = {
            let w = w.clone();
            spawn(move || give_back(&w, again))
        };
        w.end(vec![space]);
        first.join().unwrap();
        second.join().unwrap();
        assert_eq!(w.uvm.frames().free(), w.uvm.frames().total());
    });
}

/// A lender writes and ends while what it loaned is transferred to another.
#[test]
fn what_is_transferred_is_what_was_loaned() {
    check(|| {
        let w = World::new();
        let (a, b) = (w.space(), w.space());
        w.map(&a, MapRequest::zero(Pages(1)));
        w.map(&b, MapRequest::zero(Pages(1)));
        w.store(1, &a, P, 1);
        let loan = loan(&w, &a, 1);
        let lender = {
            let (w, a) = (w.clone(), a);
            spawn(move || {
                w.store(1, &a, P, 2);
                assert_eq!(w.load(1, &a, P), 2);
                w.end(vec![a]);
            })
        };
        let put = w.uvm.transfer(&mut ThreadCtx::new().held(), &b, loan, At::Fixed(P));
        assert_eq!(put.map_err(|(e, _)| e), Ok(P));
        assert_eq!(w.load(0, &b, P), 1, "not what was loaned");
        w.store(0, &b, P, 3);
        lender.join().unwrap();
        assert_eq!(w.load(0, &b, P), 3);
        w.check(&[&b], &[]);
        w.end(vec![b]);
        assert_eq!(w.uvm.frames().free(), w.uvm.frames().total());
    });
}

/// Memory goes from one space to another and back while threads of both use their addresses: it is
/// in one of them.
#[test]
fn donated_memory_is_in_one_place() {
    check(|| {
        let w = World::new();
        let (a, b) = (w.space(), w.space());
        w.map(&a, MapRequest::zero(Pages(2)));
        w.store(1, &a, P, 1);
        w.store(1, &a, Q, 1);
        let user = |cpu: usize, space: &Arc<uvm::Space<Soft>>| {
            let (w, space) = (w.clone(), space.clone());
            spawn(move || {
                for n in 2..4 {
                    // Where the memory is elsewhere at this moment, nothing is mapped.
                    let stored = w.try_store(cpu, &space, P, n);
                    assert!(matches!(stored, Ok(()) | Err(FaultError::NoMapping)), "{stored:?}");
                    let loaded = w.try_load(cpu, &space, Q);
                    assert!(matches!(loaded, Ok(1) | Err(FaultError::NoMapping)), "{loaded:?}");
                }
            })
        };
        let users = [user(1, &a), user(2, &b)];
        let range = PageRange::new(P, P + Pages(2)).unwrap();
        let held = &mut ThreadCtx::new();
        let pass = |from: &uvm::Space<Soft>, to: &uvm::Space<Soft>, held: &mut ThreadCtx| {
            let place = Place::FixedNoReplace(P);
            w.uvm
                .pass_range(&mut held.held(), from, range, to, place, Pass::Donate)
                .expect("it is free");
        };
        pass(&a, &b, held);
        assert_eq!(w.try_load(0, &a, P), Err(FaultError::NoMapping));
        pass(&b, &a, held);
        users.into_iter().for_each(|user| user.join().unwrap());
        assert_eq!(w.load(0, &a, Q), 1);
        w.check(&[&a, &b], &[]);
        w.end(vec![a, b]);
        assert_eq!(w.uvm.frames().free(), w.uvm.frames().total());
    });
}

/// A program has an object's page on loan and reads it, another thread of it stores to the page,
/// and the object's owner writes it as soon as it may: the reader sees what was loaned, or the
/// store, and never the owner's bytes.
#[test]
fn who_reads_a_page_on_loan_sees_no_later_write() {
    check(|| {
        let w = World::of(64, IoBy::Waiters, 4, None);
        let object = AnonObject::new(&w.uvm, &mut ThreadCtx::new().held(), Pages(1))
            .expect("there is memory");
        let pager: Arc<dyn Pager<Soft>> = object;
        let owner = w.space();
        w.map(&owner, MapRequest::object(pager.clone(), Pages(0), Pages(1), Sharing::Shared));
        w.store(3, &owner, P, 1);
        let borrower = w.space();
        w.map(&borrower, MapRequest::zero(Pages(1)));
        let loan = loan(&w, &owner, 1);
        let put = w.uvm.transfer(&mut ThreadCtx::new().held(), &borrower, loan, At::Fixed(P));
        assert_eq!(put.map_err(|(e, _)| e), Ok(P));
        let reader = {
            let (w, space) = (w.clone(), borrower.clone());
            spawn(move || (0..4).map(|_| w.load(1, &space, P)).collect::<Vec<_>>())
        };
        let writer = {
            let (w, space) = (w.clone(), borrower.clone());
            spawn(move || {
                w.store(2, &space, P, 2);
                assert_eq!(w.load(2, &space, P), 2);
            })
        };
        (0..2).for_each(|n| w.store(3, &owner, P, 7 + n));
        let seen = reader.join().unwrap();
        writer.join().unwrap();
        assert!(
            seen.iter().all(|&n| n == 1 || n == 2) && seen.is_sorted(),
            "the reader saw {seen:?}"
        );
        assert_eq!((w.load(1, &borrower, P), w.load(3, &owner, P)), (2, 8));
        w.check(&[&owner, &borrower], std::slice::from_ref(&pager));
        w.end(vec![owner, borrower]);
        w.uvm.detach(&mut ThreadCtx::new().held(), &*pager);
    });
}

/// Like the test above, where the program forks, gives the page back, or gets another in its place.
#[test]
fn what_was_on_loan_is_forgotten_before_its_owner_writes_it() {
    for way in 0..3usize {
        check(move || {
            let w = World::of(64, IoBy::Waiters, 4, None);
            let (owner, borrower) = (w.space(), w.space());
            w.map(&owner, MapRequest::zero(Pages(2)));
            w.map(&borrower, MapRequest::zero(Pages(2)));
            (0..2).for_each(|n| w.store(3, &owner, P + Pages(n), 1 + n));
            let mut loan = loan(&w, &owner, 2);
            let other = loan.try_split_off(1).unwrap();
            let put =
                |loan| w.uvm.transfer(&mut ThreadCtx::new().held(), &borrower, loan, At::Fixed(P));
            assert_eq!(put(loan).map_err(|(e, _)| e), Ok(P));
            let reader = {
                let (w, space) = (w.clone(), borrower.clone());
                spawn(move || (0..3).map(|_| w.load(1, &space, P)).collect::<Vec<_>>())
            };
            let lender = {
                let (w, owner) = (w.clone(), owner.clone());
                spawn(move || (0..2).for_each(|n| w.store(3, &owner, P, 7 + n)))
            };
            let held = &mut ThreadCtx::new();
            let (mut child, mut other) = (None, Some(other));
            match way {
                0 => {
                    child = Some(w.uvm.fork(&mut held.held(), &borrower).expect("there is memory"))
                }
                1 => w
                    .uvm
                    .discard(&mut held.held(), &borrower, PageRange::new(P, Q).unwrap())
                    .expect("it is mapped"),
                _ => assert!(put(other.take().unwrap()).is_ok()),
            }
            let seen = reader.join().unwrap();
            lender.join().unwrap();
            let after = [1, 0, 2][way];
            assert!(seen.iter().all(|&n| n == 1 || n == after), "the reader saw {seen:?}");
            assert_eq!((w.load(1, &borrower, P), w.load(3, &owner, P)), (after, 8));
            if let Some(child) = child.map(Arc::new) {
                assert_eq!(w.load(2, &child, P), 1);
                w.check(&[&owner, &borrower, &child], &[]);
                w.end(vec![child]);
            }
            other.into_iter().for_each(|loan| give_back(&w, loan));
            w.check(&[&owner, &borrower], &[]);
            w.end(vec![owner, borrower]);
        });
    }
}

/// A range is taken out of a program that uses it, limited to loads, and put into another: no
/// thread stores through a translation that the giver had of it, and the receiver can't store at
/// all.
#[test]
fn what_is_passed_with_a_limit_is_not_written() {
    check(|| {
        let w = World::new();
        let (a, b) = (w.space(), w.space());
        w.map(&a, MapRequest::zero(Pages(2)));
        w.store(1, &a, P, 1);
        w.store(1, &a, Q, 1);
        let giver = {
            let (w, a) = (w.clone(), a.clone());
            spawn(move || {
                let mut last = 1;
                for n in 2..5 {
                    match w.try_store(1, &a, P, n) {
                        Ok(()) => last = n,
                        Err(e) => assert_eq!(e, FaultError::NoMapping),
                    }
                }
                last
            })
        };
        let receiver = {
            let (w, b) = (w.clone(), b.clone());
            spawn(move || {
                let stored = w.try_store(2, &b, P, 9);
                assert!(
                    matches!(stored, Err(FaultError::NoMapping | FaultError::Protection)),
                    "{stored:?}"
                );
                let loaded = w.try_load(2, &b, Q);
                assert!(matches!(loaded, Ok(1) | Err(FaultError::NoMapping)), "{loaded:?}");
            })
        };
        let held = &mut ThreadCtx::new();
        let range = PageRange::new(P, P + Pages(2)).unwrap();
        let detached =
            w.uvm.extract(&mut held.held(), &a, range, Pass::Donate).expect("it is mapped");
        w.uvm.limit(&mut held.held(), &detached, Prot::READ);
        let place = Place::FixedNoReplace(P);
        let at = w.uvm.attach_range(&mut held.held(), &b, detached, place);
        assert_eq!(at.map_err(|(e, _)| e), Ok(P));
        let seen = w.load(0, &b, P);
        let last = giver.join().unwrap();
        receiver.join().unwrap();
        assert_eq!((w.load(0, &b, P), seen), (last, last), "a store came after the range had gone");
        w.check(&[&a, &b], &[]);
        w.end(vec![a, b]);
        assert_eq!(w.uvm.frames().free(), w.uvm.frames().total());
    });
}
