//! Chains against plain vectors: all short sequences of operations, and random long ones.

mod common;

use std::rc::Rc;

use common::Counted;
use mbuf::{Bytes, Chain, Pages, INLINE, PAGE_SIZE};

/// Two chains and what they should hold.
struct World {
    pages: Counted,
    lender: Rc<Vec<u8>>,
    /// Pages that are loaned together.
    row: Vec<Rc<Vec<u8>>>,
    chains: Vec<(Chain<Counted>, Vec<u8>)>,
    next: u8,
}

impl World {
    fn new() -> World {
        let lender = Rc::new((0..PAGE_SIZE).map(|i| (i % 199) as u8).collect());
        let chains = vec![(Chain::new(), Vec::new()), (Chain::new(), Vec::new())];
        let page =
            |seed: usize| Rc::new((0..PAGE_SIZE).map(|i| ((i + seed) % 191) as u8).collect());
        World { pages: Counted::new(), lender, row: (1..=20).map(page).collect(), chains, next: 0 }
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        // Never `STALE`, so that a byte that was never written is seen.
        let mut fresh = || {
            self.next = (self.next + 1) % 200;
            self.next
        };
        (0..len).map(|_| fresh()).collect()
    }

    /// One operation; `size` is 0 to 7 and picks an amount, `which` a chain.
    fn step(&mut self, op: usize, size: usize, which: usize) {
        const SIZES: [usize; 8] =
            [1, INLINE - 1, INLINE, INLINE + 1, 1000, PAGE_SIZE - 1, PAGE_SIZE, 2 * PAGE_SIZE + 5];
        let amount = SIZES[size];
        match op {
            0 => {
                let bytes = self.bytes(amount);
                let (chain, model) = &mut self.chains[which];
                chain.append(&self.pages, &bytes).unwrap();
                model.extend_from_slice(&bytes);
            }
            1 => {
                let bytes = self.bytes(amount);
                let (chain, model) = &mut self.chains[which];
                chain.prepend(&self.pages, &bytes).unwrap();
                model.splice(..0, bytes);
            }
            2 => {
                let (chain, model) = &mut self.chains[which];
                chain.trim_front(&self.pages, amount);
                model.drain(..amount.min(model.len()));
            }
            3 => {
                let (chain, model) = &mut self.chains[which];
                chain.trim_back(&self.pages, amount);
                model.truncate(model.len() - amount.min(model.len()));
            }
            4 => {
                // The tail goes to the other chain.
                let (chain, model) = &mut self.chains[which];
                let at = amount.min(model.len());
                let tail = chain.split_at(&self.pages, at).unwrap();
                let rest = model.split_off(at);
                let (other, model) = &mut self.chains[1 - which];
                assert!(other.join(tail).is_ok());
                model.extend_from_slice(&rest);
            }
            5 => {
                let page = self.pages.loan(&self.lender);
                let start = PAGE_SIZE - amount.min(PAGE_SIZE);
                let (chain, model) = &mut self.chains[which];
                assert!(chain.append_page(page, start..PAGE_SIZE).is_ok());
                model.extend_from_slice(&self.lender[start..]);
            }
            6 => {
                let (chain, model) = &mut self.chains[which];
                if let Some(page) = chain.take_page() {
                    let whole: Vec<u8> = model.drain(..PAGE_SIZE).collect();
                    assert_eq!(Bytes::Page(&page, 0..PAGE_SIZE).to_vec(&self.pages), whole);
                    self.pages.release(page);
                }
            }
            7 => {
                // The front goes to the other chain's end.
                let (mut chain, mut model) = std::mem::take(&mut self.chains[which]);
                let (other, other_model) = &mut self.chains[1 - which];
                other.take_from(&self.pages, &mut chain, amount).unwrap();
                other_model.extend(model.drain(..amount.min(model.len())));
                self.chains[which] = (chain, model);
            }
            8 => {
                // The other chain gets the same bytes again.
                let (chain, model) = &self.chains[which];
                let len = amount.min(model.len());
                let copy = chain.refer(&self.pages, len).unwrap();
                let bytes = model[..len].to_vec();
                let (other, model) = &mut self.chains[1 - which];
                assert!(other.join(copy).is_ok());
                model.extend_from_slice(&bytes);
            }
            9 => {
                // A run of a few pages, or of many, without some bytes at both ends.
                let count = [1, 2, 3, 20][size % 4];
                let (start, end) = (size / 4 * 100, count * PAGE_SIZE - size / 2 * 7);
                let run = self.pages.loan_run(&self.row[..count]);
                let (chain, model) = &mut self.chains[which];
                assert!(chain.append_run(run, start..end).is_ok());
                let all: Vec<u8> =
                    self.row[..count].iter().flat_map(|page| page.iter().copied()).collect();
                model.extend_from_slice(&all[start..end]);
            }
            10 => {
                let (chain, model) = &mut self.chains[which];
                let len = chain.first_run();
                let run = chain.take_run(&self.pages).unwrap();
                assert_eq!(run.as_ref().map_or(0, |run| run.len() * PAGE_SIZE), len);
                if let Some(run) = run {
                    let whole: Vec<u8> = model.drain(..len).collect();
                    let page = |n| Bytes::Run(&run, n, 0..PAGE_SIZE).to_vec(&self.pages);
                    assert!((0..run.len()).flat_map(page).eq(whole));
                    self.pages.release_run(run);
                }
            }
            11 => {
                // A reader has room for so much, and fails when it has it.
                let (chain, model) = &mut self.chains[which];
                let mut got = Vec::new();
                let result =
                    chain.consume(&self.pages, |bytes| match bytes.len().min(amount - got.len()) {
                        0 => Err("no room"),
                        n => {
                            got.extend(bytes.part(0..n).to_vec(&self.pages));
                            Ok(n)
                        }
                    });
                assert!(result.is_ok() || got.len() == amount);
                let all: Vec<u8> = model.drain(..amount.min(model.len())).collect();
                assert!(got == all);
            }
            _ => {
                let bytes = self.bytes(amount);
                let (chain, model) = &mut self.chains[which];
                let room = chain.room(&self.pages, amount).unwrap();
                let n = room.len().min(amount) / 2;
                self.pages.copy(Bytes::Here(&bytes[..n]), room.part(0..n));
                chain.wrote(&self.pages, n);
                model.extend_from_slice(&bytes[..n]);
            }
        }
    }

    fn check(&self) {
        for (chain, model) in &self.chains {
            chain.audit();
            assert_eq!(chain.len(), model.len());
            let mut left = &model[..];
            for piece in chain.pieces() {
                let piece = piece.to_vec(&self.pages);
                assert!(!piece.is_empty() && left.starts_with(&piece), "the bytes");
                left = &left[piece.len()..];
            }
            assert!(left.is_empty());
            assert!(model.starts_with(&chain.first().to_vec(&self.pages)));
            for at in [0, 1, INLINE, PAGE_SIZE - 1, PAGE_SIZE + 1] {
                let mut out = [0; 100];
                let n = chain.copy_out(&self.pages, at, &mut out);
                let expected = &model[at.min(model.len())..];
                assert_eq!(&out[..n], &expected[..expected.len().min(100)]);
            }
        }
    }

    fn end(mut self) {
        for (chain, _) in self.chains.drain(..) {
            chain.release(&self.pages);
        }
        assert_eq!(self.pages.out.get(), 0, "every page is back");
    }
}

const OPS: usize = 13;

/// All sequences of three operations with every other size on one chain (the other takes what is
/// split off).
#[test]
fn all_short_sequences_hold() {
    let steps = OPS * 4;
    for first in 0..steps {
        for second in 0..steps {
            for third in 0..steps {
                let mut world = World::new();
                for step in [first, second, third] {
                    world.step(step / 4, step % 4 * 2, 0);
                }
                world.check();
                world.end();
            }
        }
    }
}

/// A generator that needs no crate: xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

#[test]
fn random_sequences_hold() {
    for seed in 1..=100u64 {
        let mut random = Random(0x9e37_79b9_7f4a_7c15u64.wrapping_mul(seed));
        let mut world = World::new();
        for _ in 0..200 {
            let (op, size, which) = (random.below(OPS), random.below(8), random.below(2));
            world.step(op, size, which);
            world.check();
            // Keep it short enough to compare often.
            let which = random.below(2);
            if world.chains[which].1.len() > 40 * PAGE_SIZE {
                let (chain, model) = &mut world.chains[which];
                let half = model.len() / 2;
                chain.trim_front(&world.pages, half);
                model.drain(..half);
            }
        }
        world.end();
    }
}

#[test]
fn a_million_bytes_one_by_one_cost_little_more_than_themselves() {
    let pages = Counted::new();
    let mut chain = Chain::new();
    for i in 0..1_000_000u32 {
        chain.append(&pages, &[i as u8]).unwrap();
    }
    assert_eq!(chain.len(), 1_000_000);
    assert!(pages.allocated.get() <= 1_000_000 / PAGE_SIZE + 1, "{} pages", pages.allocated.get());
    assert!(chain.memory() < 1_100_000, "{} bytes", chain.memory());
    let mut out = [0];
    for i in 0..1_000_000u32 {
        assert_eq!((chain.copy_out(&pages, 0, &mut out), out[0]), (1, i as u8));
        chain.trim_front(&pages, 1);
    }
    assert!(chain.is_empty());
    assert_eq!(pages.out.get(), 0, "no page is kept for nothing");
}

#[test]
fn a_run_that_is_read_bit_by_bit_goes_back_in_parts() {
    let pages = Counted::new();
    let row: Vec<_> = (0..64).map(|i| Rc::new(vec![i; PAGE_SIZE])).collect();
    let mut chain = Chain::new();
    assert!(chain.append_run(pages.loan_run(&row), 0..64 * PAGE_SIZE).is_ok());
    assert!(chain.memory() < 65 * PAGE_SIZE);
    for left in (0..64).rev() {
        chain.trim_front(&pages, PAGE_SIZE);
        assert!(pages.out.get() <= left + 16, "{} pages are kept for {left}", pages.out.get());
        assert_eq!(
            chain.first().to_vec(&pages).first().copied(),
            (left > 0).then(|| 64 - left as u8)
        );
    }
    assert_eq!(pages.out.get(), 0);
}

#[test]
fn slivers_keep_no_pages() {
    let pages = Counted::new();
    let mut kept = Chain::new();
    for i in 0..1000 {
        let row: Vec<_> = (0..4).map(|_| Rc::new(vec![i as u8; PAGE_SIZE])).collect();
        let mut from = Chain::new();
        assert!(from.append_run(pages.loan_run(&row), 0..4 * PAGE_SIZE).is_ok());
        // Over the end of a page, behind pages that have been read.
        from.trim_front(&pages, 3 * PAGE_SIZE - 1);
        let mut between = Chain::new();
        between.take_from(&pages, &mut from, 2).unwrap();
        kept.take_from(&pages, &mut between, 2).unwrap();
        between.release(&pages);
        from.release(&pages);
    }
    kept.audit();
    assert_eq!((kept.len(), pages.out.get()), (2000, 1));
    assert!(kept.memory() < 2 * PAGE_SIZE);
    assert!(kept.bytes(&pages).into_iter().enumerate().all(|(at, byte)| byte == (at / 2) as u8));
    // A larger part goes as it is, without what was before it.
    let row: Vec<_> = (0..4).map(|i| Rc::new(vec![i; PAGE_SIZE])).collect();
    let mut from = Chain::new();
    assert!(from.append_run(pages.loan_run(&row), 0..4 * PAGE_SIZE).is_ok());
    from.trim_front(&pages, 2 * PAGE_SIZE + 1000);
    kept.take_from(&pages, &mut from, 1500).unwrap();
    from.release(&pages);
    assert_eq!(pages.out.get(), 2);
    kept.audit();
    kept.release(&pages);
    assert_eq!(pages.out.get(), 0);
}

#[test]
fn a_split_page_is_not_written_by_either_half() {
    let pages = Counted::new();
    let mut front = Chain::new();
    front.append(&pages, &[7; 1000]).unwrap();
    let mut back = front.split_at(&pages, 500).unwrap();
    front.append(&pages, &[8; 600]).unwrap();
    back.prepend(&pages, &[9; 600]).unwrap();
    back.append(&pages, &[10; 600]).unwrap();
    let bytes = |chain: &Chain<Counted>| chain.bytes(&pages);
    assert_eq!(bytes(&front), [vec![7; 500], vec![8; 600]].concat());
    assert_eq!(bytes(&back), [vec![9; 600], vec![7; 500], vec![10; 600]].concat());
    front.release(&pages);
    back.release(&pages);
    assert_eq!(pages.out.get(), 0);
}

#[test]
fn loaned_pages_are_given_back_once_each_and_never_written() {
    let pages = Counted::new();
    let lender = Rc::new(vec![1; PAGE_SIZE]);
    let mut chain = Chain::new();
    for _ in 0..10 {
        assert!(chain.append_page(pages.loan(&lender), 0..100).is_ok());
        chain.append(&pages, b"between").unwrap();
    }
    assert!(lender.iter().all(|&byte| byte == 1));
    let tail = chain.split_at(&pages, 50).unwrap();
    chain.release(&pages);
    tail.release(&pages);
    // One more than loaned: the cut one had two references.
    assert_eq!(
        (*pages.loaned_back.borrow(), pages.out.get(), Rc::strong_count(&lender)),
        (11, 0, 1)
    );
}
