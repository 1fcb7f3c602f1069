//! Trees against a sorted list, and orders in which an enemy would insert and remove.

use std::vec::Vec;

use super::*;

std::thread_local! {
    /// Nodes made from the heap.
    pub(super) static MADE: core::cell::Cell<usize> = const { core::cell::Cell::new(0) };
    static LOOKS: core::cell::Cell<u64> = const { core::cell::Cell::new(0) };
}

impl Span for VaRange {
    fn range(&self) -> VaRange {
        *self
    }

    fn move_to(&mut self, start: Va) {
        *self = VaRange::new(start, Va(start.0 + (self.end.0 - self.start.0)));
    }
}

fn r(start: u64, end: u64) -> VaRange {
    VaRange::new(Va(start), Va(end))
}

const ALL: VaRange = VaRange::new(Va(0), Va(u64::MAX));

/// `count` entries of five addresses, ten apart.
fn tens(count: u64) -> Tree<VaRange> {
    let mut t = Tree::new();
    (0..count).for_each(|i| t.insert(r(i * 10, i * 10 + 5)));
    t
}

fn contents(t: &Tree<VaRange>) -> Vec<VaRange> {
    let mut all = Vec::new();
    t.each(ALL, |e| all.push(*e));
    all
}

/// Nodes that the work makes from the heap.
fn made(work: impl FnOnce()) -> usize {
    let before = MADE.get();
    work();
    MADE.get() - before
}

/// Numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % limit
    }
}

#[test]
fn space_is_found_from_the_top() {
    let mut t = Tree::new();
    [r(10, 20), r(40, 60), r(75, 90)].into_iter().for_each(|e| t.insert(e));
    t.check().unwrap();
    assert_eq!(t.find_space(r(0, 100), 10), Some(Va(90)));
    assert_eq!(t.find_space(r(0, 100), 15), Some(Va(60)));
    assert_eq!(t.find_space(r(0, 100), 16), Some(Va(24)));
    assert_eq!(t.find_space(r(0, 100), 21), None);
    assert_eq!(t.find_space(r(30, 70), 10), Some(Va(60)));
    assert_eq!(t.find_space(r(15, 35), 10), Some(Va(25)));
}

#[test]
fn a_range_is_taken_and_put_back() {
    let mut t = tens(100);
    let taken = t.take(r(200, 300));
    t.check().unwrap();
    taken.more.check().unwrap();
    assert_eq!((t.len(), taken.len()), (90, 10));
    assert!(t.is_free(r(196, 300)) && !t.is_free(r(190, 300)) && !t.is_covered(r(0, 10)));
    t.put_back(taken);
    t.check().unwrap();
    assert_eq!(t.remove(Va(204)), Some(r(200, 205)));
    assert_eq!(t.before(Va(200)).copied(), Some(r(190, 195)));
    assert_eq!((t.get(Va(200)), t.get(Va(195)), t.get(Va(194))), (None, None, Some(&r(190, 195))));
}

#[test]
fn one_entry_none_and_all_are_taken_without_a_node() {
    let mut t = tens(1000);
    for i in 0..200 {
        // Inside a leaf, and between two.
        assert_eq!(made(|| assert!(t.take(r(i * 10 + 5, i * 10 + 10)).is_empty())), 0);
    }
    for i in (0..30).rev() {
        let mut taken = Taken::new();
        assert_eq!(made(|| taken = t.take(r(i * 10, i * 10 + 10))), 0);
        assert_eq!((taken.len(), taken.one), (1, Some(r(i * 10, i * 10 + 5))));
    }
    assert_eq!(made(|| assert_eq!(t.take(ALL).len(), 970)), 0);
    assert!(t.is_empty());
    let mut few = tens(2);
    assert_eq!(made(|| assert_eq!(few.take(r(0, 15)).len(), 2)), 0);
    few.check().unwrap();
}

#[test]
fn an_entry_that_comes_and_goes_needs_no_node() {
    // Two leaves: one is half full, the other has one entry more.
    let last = LEAF as u64;
    let mut t = tens(last + 1);
    let nodes = made(|| {
        for _ in 0..100 {
            assert_eq!(t.remove(Va(last * 10)), Some(r(last * 10, last * 10 + 5)));
            t.insert(r(last * 10, last * 10 + 5));
        }
    });
    assert_eq!(nodes, 0);
}

#[test]
fn entries_that_are_made_in_order_come_in() {
    for count in [0, 1, 2, 3, 100] {
        let mut made = Taken::from(tens(count)).map(|e| *e);
        let mut places = Vec::new();
        made.each_mut(|e| places.push(*e));
        assert_eq!((made.len() as u64, made.one.is_some()), (count, count == 1));
        assert_eq!(places, contents(&tens(count)));
        let mut t = Tree::new();
        t.put_back(made);
        t.check().unwrap();
        assert_eq!(contents(&t), places);
        assert_eq!(contents(&Taken::from(t).into_tree()), places);
    }
}

#[test]
fn entries_are_drained_the_last_first() {
    let mut t = tens(5000);
    for (range, count) in [(r(200, 210), 1), (r(300, 500), 20), (r(1000, 41000), 4000)] {
        let mut taken = t.take(range);
        let mut expected = Vec::new();
        taken.each(|e| expected.push(*e));
        assert_eq!(expected.len(), count);
        let mut drained = Vec::new();
        taken.drain(|some| drained.extend(some.iter().rev().copied()));
        drained.reverse();
        assert_eq!((taken.len(), taken.is_empty(), drained), (0, true, expected));
    }
}

#[test]
fn a_filtered_tree_has_the_same_places() {
    for count in [0, 1, 7, 8, 9, 100, 500, 5000] {
        let mut t = tens(count);
        let mut filtered = Tree::new();
        let all = r(0, u64::MAX);
        let nodes = made(|| filtered = t.filter_map(all, |e| (e.start.0 % 30 != 0).then_some(*e)));
        t.check().unwrap();
        filtered.check().unwrap();
        let expected: Vec<_> = contents(&t).into_iter().filter(|e| e.start.0 % 30 != 0).collect();
        assert_eq!(contents(&filtered), expected);
        assert!(
            nodes * node_bytes::<VaRange>() <= built_bytes::<VaRange>(expected.len()),
            "{nodes}"
        );
    }
}

#[test]
fn moved_entries_lie_where_they_were_moved() {
    let mut t = tens(300);
    let mut taken = t.take(r(1000, 2000));
    taken.shift(Va(1000), Va(50_000));
    t.put_back(taken);
    t.check().unwrap();
    assert_eq!((t.get(Va(1000)), t.get(Va(50_003)).copied()), (None, Some(r(50_000, 50_005))));
    let mut one = t.take(r(50_000, 50_010));
    one.shift(Va(50_000), Va(7));
    assert_eq!(one.one, Some(r(7, 12)));
}

/// Every operation on a tree and on a sorted list, in a space so small that most of it is used, and
/// one in which holes are rare. Nodes are counted against what would have been reserved.
#[test]
fn a_tree_does_what_a_sorted_list_does() {
    for (seed, places) in (0..24).zip([8, 40, 300, 3000].into_iter().cycle()) {
        let (mut t, mut list, mut random) = (Tree::new(), Vec::<VaRange>::new(), Random(seed));
        for step in 0..3000 {
            let start = random.below(places) * 10;
            let end = start + 10 * (1 + random.below(places / 4));
            let in_range = |e: &VaRange| e.start.0 >= start && e.start.0 < end;
            let (inserts, splices) = (t.insert_nodes(), t.splice_nodes());
            let nodes = match random.below(8) {
                0..4 => {
                    let new = r(start, start + 1 + random.below(10));
                    if !t.is_free(new) {
                        assert!(list.iter().any(|e| !e.intersect(new).is_empty()));
                        continue;
                    }
                    list.push(new);
                    list.sort_by_key(|e| e.start);
                    let nodes = made(|| t.insert(new));
                    assert!(nodes <= inserts, "{nodes} nodes");
                    0
                }
                4 => {
                    let removed = t.remove(Va(start));
                    assert_eq!(removed.is_some(), list.iter().any(|e| e.start == Va(start)));
                    list.retain(|e| e.start != Va(start));
                    0
                }
                5 if random.below(4) == 0 => {
                    let mut taken = Taken::new();
                    let nodes = made(|| taken = t.take(r(start, end)));
                    taken.more.check().unwrap();
                    let mut gone = Vec::new();
                    taken.each(|e| gone.push(*e));
                    assert_eq!(gone, list.extract_if(.., |e| in_range(e)).collect::<Vec<_>>());
                    nodes
                }
                6 => {
                    let mut taken = Taken::new();
                    let nodes = made(|| taken = t.take(r(start, end)));
                    assert!(nodes <= splices, "{nodes} nodes");
                    t.check().unwrap();
                    made(|| t.put_back(taken))
                }
                _ => {
                    // An entry loses all but one address, at either of its ends.
                    let at = Va(start + random.below(10));
                    let at_end = random.below(2) == 0;
                    let shrunk = |e: VaRange| {
                        if at_end {
                            r(e.start.0, e.start.0 + 1)
                        } else {
                            r(e.end.0 - 1, e.end.0)
                        }
                    };
                    let edited = t.edit(at, |e| {
                        *e = shrunk(*e);
                        *e
                    });
                    let mut there = list.iter_mut().filter(|e| e.contains(at));
                    assert_eq!(
                        edited,
                        there.next().map(|e| {
                            *e = shrunk(*e);
                            *e
                        })
                    );
                    0
                }
            };
            assert!(nodes <= splices, "{nodes} nodes, {splices} reserved");
            t.check().unwrap_or_else(|e| panic!("seed {seed}, step {step}: {e}"));
            let bounds = r(start, end);
            let bytes = 1 + random.below(25);
            assert_eq!(t.find_space(bounds, bytes), found(&list, bounds, bytes));
            compare(&mut t, &mut list, bounds, Va(start + random.below(10)));
        }
        assert_eq!(contents(&t), list);
    }
}

/// All that a tree is asked about a range and an address.
fn compare(t: &mut Tree<VaRange>, list: &mut [VaRange], bounds: VaRange, va: Va) {
    assert_eq!((t.len(), t.is_empty()), (list.len(), list.is_empty()));
    assert_eq!(t.get_mut(va), list.iter_mut().find(|e| e.contains(va)));
    assert_eq!(t.get(va), list.iter().find(|e| e.contains(va)));
    assert_eq!(t.before(va), list.iter().rfind(|e| e.start < va));
    let inside: Vec<_> = list.iter().filter(|e| !e.intersect(bounds).is_empty()).copied().collect();
    let (mut seen, mut changed) = (Vec::new(), Vec::new());
    t.each(bounds, |e| seen.push(*e));
    t.each_mut(bounds, |e| changed.push(*e));
    assert_eq!((&seen, &changed), (&inside, &inside));
    let empty = VaRange::new(va, va);
    t.each(empty, |e| panic!("{e:?} overlaps nothing"));
    t.each_mut(empty, |e| panic!("{e:?} overlaps nothing"));
    let first = t.try_each(bounds, &mut |e| Err(*e)).err();
    assert_eq!(first, inside.first().copied(), "it stops when told to");
    assert_eq!(t.is_free(bounds), inside.is_empty());
    let covered: u64 =
        inside.iter().map(|e| e.intersect(bounds)).map(|e| e.end.0 - e.start.0).sum();
    assert_eq!(t.is_covered(bounds), covered == bounds.end.0 - bounds.start.0);
    if inside.is_empty() {
        let after = list.iter().find(|e| e.start >= bounds.end);
        assert_eq!(t.beside(bounds), (list.iter().rfind(|e| e.end <= bounds.start), after));
    }
}

impl<E> Tree<E> {
    fn insert_nodes(&self) -> usize {
        insert_nodes(self.levels())
    }

    fn splice_nodes(&self) -> usize {
        splice_nodes(self.levels())
    }
}

fn found(list: &[VaRange], bounds: VaRange, bytes: u64) -> Option<Va> {
    (bounds.start.0..bounds.end.0)
        .rev()
        .find(|&at| {
            let wanted = r(at, at + bytes);
            at + bytes <= bounds.end.0 && list.iter().all(|e| e.intersect(wanted).is_empty())
        })
        .map(Va)
}

/// An entry that counts how often one is looked at.
struct Counted(VaRange);

impl Span for Counted {
    fn range(&self) -> VaRange {
        LOOKS.set(LOOKS.get() + 1);
        self.0
    }

    fn move_to(&mut self, start: Va) {
        self.0.move_to(start);
    }
}

/// Orders of `count` numbers that are bad for trees that don't balance: ascending, descending, from
/// both ends, from the middle, each after its double, scattered; and those of the treap that was
/// here before, with the priorities that it gave.
fn orders(count: u64) -> Vec<(&'static str, Vec<u64>)> {
    let up = || 0..count;
    let ends = up().map(|i| if i % 2 == 0 { i / 2 } else { count - 1 - i / 2 });
    let middle = up().map(|i| if i % 2 == 0 { count / 2 + i / 2 } else { count / 2 - 1 - i / 2 });
    let bits = 64 - (count - 1).leading_zeros();
    let reversed =
        (0..1u64 << bits).map(|i| i.reverse_bits() >> (64 - bits)).filter(|&i| i < count);
    let mut seed = 0x9e37_79b9u32;
    let mut by_priority: Vec<(u32, u64)> = up()
        .map(|i| {
            seed ^= seed << 13;
            seed ^= seed >> 17;
            seed ^= seed << 5;
            (seed, i)
        })
        .collect();
    by_priority.sort_unstable();
    let mut ranks = std::vec![0; count as usize];
    (0..).zip(&by_priority).for_each(|(rank, &(_, i))| ranks[i as usize] = rank);
    std::vec![
        ("ascending", up().collect()),
        ("descending", up().rev().collect()),
        ("from both ends", ends.collect()),
        ("from the middle", middle.collect()),
        ("halves of halves", reversed.collect()),
        ("by a treap's priorities", ranks),
    ]
}

/// Looks per call, at most, of each operation on a tree that was filled in some order, and thinned
/// out in a way that leaves nodes as empty as can be, over a few hundred places.
fn looks(order: &[u64]) -> [u64; 5] {
    let mut t = Tree::new();
    order.iter().for_each(|&i| t.insert(Counted(r(i * 10, i * 10 + 5))));
    let n = order.len() as u64;
    // Of each eight neighbours one stays, but for those that will be looked at.
    let stays = |i: u64| i.is_multiple_of(8) || i.is_multiple_of(n / 500);
    order.iter().filter(|&&i| !stays(i)).for_each(|&i| assert!(t.remove(Va(i * 10)).is_some()));
    t.check().unwrap();
    assert!(t.levels() <= most_levels(t.len() as u64));
    let counted = |work: &mut dyn FnMut()| {
        let before = LOOKS.get();
        work();
        LOOKS.get() - before
    };
    let mut most = [0; 5];
    for place in (0..500).map(|i| i * (n / 500) * 10) {
        let range = r(place, place + 5);
        let here = [
            counted(&mut || assert!(t.get(Va(place + 3)).is_some())),
            counted(&mut || assert!(!t.is_free(r(place, place + 10)))),
            counted(&mut || assert!(t.find_space(r(0, place + 40), 5).is_some())),
            counted(&mut || assert_eq!(t.take(range).len(), 1)),
            counted(&mut || t.insert(Counted(range))),
        ];
        most.iter_mut().zip(here).for_each(|(most, here)| *most = here.max(*most));
    }
    most
}

#[test]
fn no_order_makes_a_hundred_thousand_entries_dear() {
    for ((name, few), (_, many)) in orders(1000).into_iter().zip(orders(100_000)) {
        let (few, many) = (looks(&few), looks(&many));
        std::println!("{name}: get, is_free, find_space, take, insert: {few:?}, {many:?}");
        for (few, many) in few.into_iter().zip(many) {
            assert!(many <= 2 * few + 40, "{name}: {few} looks for a thousand, {many} for many");
        }
    }
}

#[test]
fn a_search_passes_by_where_no_gap_is_wide_enough() {
    let mut t = Tree::new();
    (0..5000).for_each(|i| t.insert(Counted(r(i * 10, i * 10 + 5))));
    let before = LOOKS.get();
    assert_eq!(t.find_space(r(3, 49_983), 6), None);
    let looks = LOOKS.get() - before;
    assert!(looks <= 100, "{looks} looks at 5,000 entries");
}

#[test]
fn no_order_makes_a_tree_deep() {
    for (name, order) in orders(200_000) {
        let mut t = Tree::new();
        order.iter().for_each(|&i| t.insert(r(i * 10, i * 10 + 5)));
        assert!(t.levels() <= most_levels(200_000), "{name}: {} levels", t.levels());
        assert_eq!(t.find_space(r(0, 2_000_000), 6), None);
        // Emptied from the front, so that each node in turn is the short one.
        order.iter().take(150_000).for_each(|&i| assert!(t.remove(Va(i * 10)).is_some()));
        t.check().unwrap();
        assert!(t.levels() <= most_levels(50_000), "{name}: {} levels", t.levels());
    }
}

/// A program keeps splitting one leaf and empties what was split off, so that a tree that only
/// removes empty nodes would gain a level for each few insertions.
#[test]
fn splitting_and_thinning_in_turns_makes_no_levels() {
    let mut t = Tree::new();
    let mut random = Random(1);
    for round in 0..20_000u64 {
        let at = round * 1000;
        (0..LEAF as u64 + 1).for_each(|i| t.insert(r(at + i * 10, at + i * 10 + 5)));
        (1..LEAF as u64 + 1).for_each(|i| assert!(t.remove(Va(at + i * 10)).is_some()));
        if t.len() > 64 {
            let victim = random.below(round) * 1000;
            t.remove(Va(victim));
            t.take(r(victim / 2, victim / 2 + 3000));
        }
    }
    t.check().unwrap();
    assert!(t.levels() <= most_levels(t.len() as u64), "{} levels of {}", t.levels(), t.len());
}

#[test]
fn half_a_node_is_enough() {
    let leaf =
        |count: usize| Node::Leaf((0..count as u64).map(|i| r(i * 10, i * 10 + 5)).collect());
    assert!(leaf(LEAF / 2 - 1).is_underfull() && !leaf(LEAF / 2).is_underfull());
    let inner = |count: usize| {
        Node::Inner((0..count).map(|_| node::Child::of(Box::new(leaf(1)))).collect())
    };
    assert!(inner(INNER / 2 - 1).is_underfull() && !inner(INNER / 2).is_underfull());
}

/// What an allocator is asked for, and what it may add.
const NODE: usize = size_of::<Node<VaRange>>() + 16;

#[test]
fn heap_is_reserved_for_a_node_on_each_level_and_a_root() {
    let mut t = tens(1);
    assert_eq!(
        (insert_bytes::<VaRange>(3), t.insert_bytes(3)),
        (3 * (5 + 1) * NODE, 3 * (5 + 1) * NODE)
    );
    assert_eq!((splice_bytes::<VaRange>(), t.splice_bytes()), (20 * NODE, 20 * NODE));
    (1..170_000).for_each(|i| t.insert(r(i * 10, i * 10 + 5)));
    let levels = t.levels();
    assert!(levels > 5);
    assert_eq!(t.insert_bytes(2), 2 * (levels + 1) * NODE);
    assert_eq!(t.splice_bytes(), (3 * (levels + 1) + 2) * NODE);
    // Full nodes: there is nothing that an insertion finds room in.
    let mut entries = (0..).map(|i| r(i * 10, i * 10 + 5));
    let len = LEAF * INNER * INNER;
    let mut full = Tree { root: Some(full(3, &mut entries)), len };
    full.check().unwrap();
    assert_eq!((full.levels(), made(|| full.insert(r(7, 8)))), (3, 4));
}

/// A node of so many levels that has all that it can have.
fn full(level: usize, entries: &mut impl Iterator<Item = VaRange>) -> Box<Node<VaRange>> {
    Box::new(match level {
        1 => Node::Leaf(entries.take(LEAF).collect()),
        _ => Node::Inner((0..INNER).map(|_| node::Child::of(full(level - 1, entries))).collect()),
    })
}

#[test]
fn an_entrys_share_is_that_of_a_leaf_three_quarters_full() {
    let leafs = entry_bytes::<VaRange>() * (LEAF * 3 / 4);
    assert!((NODE - LEAF..=NODE).contains(&leafs), "{leafs} bytes of {NODE}");
}

#[test]
fn levels_are_bounded_by_what_addresses_hold() {
    if LEAF == 8 {
        let of_pages = if machine::PAGE_SHIFT == 12 { 16 } else { 15 };
        assert_eq!((LEVELS, most_levels(65_530)), (of_pages, 5));
        assert_eq!(most_levels(8 * 11 * 11 - 1), 3);
        assert_eq!(most_levels(8 * 11 * 11), 4);
    }
    assert!(most_levels(1) == 1 && most_levels(LEAF as u64) == 2);
}

/// The figures of docs/decisions/page-out-and-swap.md; the kernel's lock is no larger than std's.
#[test]
fn a_map_entry_is_as_small_as_stated() {
    type Entry = crate::map::Entry<uvm_soft::SoftMachine>;
    assert_eq!(size_of::<Entry>(), 80);
    let node = size_of::<Node<Entry>>();
    assert!(LEAF != 8 || node == 752, "{node} bytes of a node");
}
