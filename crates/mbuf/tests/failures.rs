//! Every request for a page fails once: the operation changes nothing, and works when there are
//! pages again.

mod common;

use std::rc::Rc;

use common::Counted;
use mbuf::{Chain, NoMemory, Pages, PAGE_SIZE};

type Operation = fn(&mut Chain<Counted>, &Counted) -> Result<(), NoMemory>;

const LONG: [u8; 3 * PAGE_SIZE + 100] = [3; 3 * PAGE_SIZE + 100];

const OPERATIONS: [(&str, Operation); 9] = [
    ("append", |chain, pages| chain.append(pages, &LONG)),
    ("prepend", |chain, pages| chain.prepend(pages, &LONG)),
    ("room", |chain, pages| {
        chain.room(pages, PAGE_SIZE).map(|_| ()).map(|()| chain.wrote(pages, 0))
    }),
    ("append little by little", |chain, pages| {
        let before = chain.len();
        for part in LONG.chunks(100) {
            if chain.append(pages, part).is_err() {
                chain.trim_back(pages, chain.len() - before);
                return Err(NoMemory);
            }
        }
        Ok(())
    }),
    ("split within a page", |chain, pages| {
        let rest = chain.split_at(pages, 100)?;
        assert!(chain.join(rest).is_ok());
        Ok(())
    }),
    ("split within a run", |chain, pages| {
        let rest = chain.split_at(pages, RUN + PAGE_SIZE + 10)?;
        assert!(chain.join(rest).is_ok());
        Ok(())
    }),
    ("refer to a part of a run", |chain, pages| {
        chain.refer(pages, RUN + PAGE_SIZE + 10).map(|copy| copy.release(pages))
    }),
    ("take a run", |chain, pages| {
        let mut run = chain.split_at(pages, RUN)?;
        let taken = run.take_run(pages);
        let done = taken.map(|run| pages.release_run(run.expect("the run's whole pages")));
        if done.is_ok() {
            run.release(pages);
        } else {
            assert!(chain.join(run).is_ok());
        }
        done
    }),
    ("refer", |chain, pages| chain.refer(pages, PAGE_SIZE).map(|copy| copy.release(pages))),
];

/// Where the run begins.
const RUN: usize = 40 + PAGE_SIZE + 8;

fn start(pages: &Counted) -> Chain<Counted> {
    let mut chain = Chain::new();
    chain.append(pages, &[1; 40]).unwrap();
    chain.append(pages, &[2; PAGE_SIZE + 8]).unwrap();
    let row =
        [Rc::new(vec![4; PAGE_SIZE]), Rc::new(vec![5; PAGE_SIZE]), Rc::new(vec![6; PAGE_SIZE])];
    assert!(chain.append_run(pages.loan_run(&row), 0..2 * PAGE_SIZE + 100).is_ok());
    chain
}

fn bytes(chain: &Chain<Counted>, pages: &Counted) -> Vec<u8> {
    chain.bytes(pages)
}

#[test]
fn a_refused_page_leaves_the_chain_as_it_was() {
    for (name, operation) in OPERATIONS {
        let mut failed = 0;
        for nth in 0.. {
            let pages = Counted::new();
            let mut chain = start(&pages);
            let (before, out) = (bytes(&chain, &pages), pages.out.get());
            pages.fail_after.set(Some(nth));
            let result = operation(&mut chain, &pages);
            pages.fail_after.set(None);
            chain.audit();
            if result.is_ok() {
                chain.release(&pages);
                assert_eq!(pages.out.get(), 0, "{name}");
                break;
            }
            failed += 1;
            assert_eq!(bytes(&chain, &pages), before, "{name}, request {nth}");
            assert_eq!(pages.out.get(), out, "{name}, request {nth}: pages");
            operation(&mut chain, &pages).unwrap();
            chain.release(&pages);
            assert_eq!(pages.out.get(), 0, "{name}");
        }
        assert!(failed > 0, "{name} asks for pages");
    }
}
