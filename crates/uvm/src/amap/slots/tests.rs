//! What a table has, of what leaves it is made, and who holds them.

use super::*;
use std::collections::BTreeMap;
use std::vec::Vec;

#[derive(Default)]
struct Counts(BTreeMap<NonZeroU32, i32>);

impl Holders for Counts {
    fn reference(&mut self, number: NonZeroU32) {
        *self.0.entry(number).or_insert(1) += 1;
    }
    fn release_many(&mut self, numbers: impl Iterator<Item = NonZeroU32>) {
        numbers.for_each(|number| *self.0.entry(number).or_insert(1) -= 1);
    }
}

fn n(v: u32) -> NonZeroU32 {
    NonZeroU32::new(v).unwrap()
}

fn indices(s: &Slots) -> Vec<u64> {
    s.range(0..1 << 40).map(|(i, _)| i).collect()
}

#[test]
fn numbers_come_back_in_order_and_leaves_go_when_empty() {
    let (mut s, mut c) = (Slots::new(), Counts::default());
    for i in [5u64, 1 << 30, 64, 63] {
        assert_eq!(s.set(i, n(i as u32 + 1)), None);
    }
    assert_eq!(s.set(5, n(9)), Some(n(6)));
    assert_eq!(indices(&s), [5, 63, 64, 1 << 30]);
    assert_eq!(s.take_range(6..(1 << 30), Heap::Reserved, &mut c), Emptied::All);
    assert_eq!((indices(&s), s.leaves.range(0..1 << 40).count()), (std::vec![5, 1 << 30], 2));
    assert_eq!((c.0[&n(64)], c.0[&n(65)]), (0, 0));
    assert_eq!((s.clear(5), s.clear(5), s.leaves.range(0..1 << 40).count()), (Some(n(9)), None, 1));
}

#[test]
fn a_copy_shares_leaves_until_one_changes() {
    let (mut a, mut c) = (Slots::new(), Counts::default());
    (0..200).for_each(|i| assert_eq!(a.set(i, n(i as u32 + 1)), None));
    let mut b = Slots::new();
    a.share_into(&mut b, 10..200, [].into_iter(), &mut c);
    assert_eq!((indices(&b).len(), b.get(9), b.get(10), c.0.len()), (190, None, Some(n(11)), 54));
    assert!(a.is_shared(64) && !a.is_shared(10) && b.is_shared(199));
    b.unshare(64, &mut c);
    assert_eq!((c.0[&n(65)], a.is_shared(64)), (2, false));
    b.set(64, n(999));
    assert_eq!((a.get(64), b.get(64)), (Some(n(65)), Some(n(999))));
    // A shared leaf that goes as a whole takes no numbers along; the last holder does.
    assert_eq!(b.take_range(128..192, Heap::Reserved, &mut c), Emptied::All);
    assert!(!c.0.contains_key(&n(130)));
    assert_eq!(a.take_range(128..192, Heap::Reserved, &mut c), Emptied::All);
    assert_eq!(c.0[&n(130)], 0);
    // Part of a shared leaf is taken out of a copy.
    assert_eq!(b.take_range(196..200, Heap::Unreserved, &mut c), Emptied::NotAll);
    assert_eq!(b.get(196), Some(n(197)));
    assert_eq!(b.take_range(196..200, Heap::Reserved, &mut c), Emptied::All);
    assert_eq!((b.get(196), a.get(196), c.0[&n(197)]), (None, Some(n(197)), 1));
    a.take_all(&mut c);
    b.take_all(&mut c);
    c.0.remove(&n(65));
    assert!(c.0.values().all(|&count| count == 0), "{:?}", c.0);
}

#[test]
fn marked_leaves_alone_are_visited() {
    let (mut s, mut c) = (Slots::new(), Counts::default());
    // 160 MiB.
    (0..40_960).for_each(|i| assert_eq!(s.set(i, n(i as u32 + 1)), None));
    assert_eq!(s.marked(0..1 << 40).count(), 0);
    [70, 5, 20_000].into_iter().for_each(|i| s.mark(i));
    let visited: Vec<u64> = s.marked(66..1 << 40).map(|(i, _)| i).collect();
    assert_eq!(visited, (66..128).chain(19_968..20_032).collect::<Vec<_>>());
    // A leaf that isn't all in the range keeps its mark, and so does one with a number that
    // isn't as asked for.
    s.unmark_if(1..1 << 40, |number| number != n(20_001));
    assert_eq!((s.is_marked(0), s.is_marked(64), s.is_marked(20_031)), (true, false, true));
    // A leaf that goes takes its mark along.
    assert_eq!(s.take_range(0..64, Heap::Reserved, &mut c), Emptied::All);
    s.set(7, n(8));
    assert!(!s.is_marked(7));
    s.unmark_if(0..1 << 40, |_| true);
    assert_eq!(s.marked(0..1 << 40).count(), 0);
}

#[test]
fn a_sparse_terabyte_costs_by_its_used_slots() {
    let mut s = Slots::new();
    for i in 0..1000u64 {
        s.set(i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 36, n(1));
    }
    let bytes: usize = s.shares(0..u64::MAX).map(|(_, _, bytes)| bytes).sum();
    assert!(bytes < 600 << 10, "{bytes}");
}
