//! Laws P1 and P3, and what each call does to the tables and leaves alone.
//!
//! Wired mappings serve as witnesses: they stay, so a call that takes one away that it wasn't asked
//! for is seen.

use alloc::format;
use alloc::vec::Vec;

use machine::{Machine, PageNo, Pages, Pmap, Prot, Run, Va, VaRange, Wiring};

use crate::lab::{Lab, Map, Space};
use crate::lowering::elsewhere;
use crate::{Access, Law};

pub(crate) fn check<M: Machine, A: Access<M>>(lab: &mut Lab<'_, M, A>) {
    lab.begins(Law::P1);
    forgets(lab);
    lab.begins(Law::P3);
    raises(lab);
    executes(lab);
    lab.begins(Law::Tables);
    replaces(lab);
    runs(lab);
    keeps_to_the_range(lab);
    ahead(lab);
    unwires(lab);
    parts(lab);
    passes(lab);
    forgets_one(lab);
    lab.begins(Law::Memory);
    without_memory(lab);
}

/// What is mapped at a place is this mapping or, if it is pageable, nothing.
fn is_right(map: Map, mapped: Option<(PageNo, Prot)>) -> bool {
    match mapped {
        None => map.wiring == Wiring::Pageable,
        Some((page, prot)) => page == map.page && prot == map.prot,
    }
}

fn expect_right<M: Machine, A: Access<M>>(
    lab: &mut Lab<'_, M, A>,
    law: Law,
    space: &Space<M>,
    map: Map,
    after: &str,
) {
    let mapped = lab.extract(space, map.va);
    lab.expect(law, is_right(map, mapped), || {
        let or = if map.wiring == Wiring::Pageable { " or forgotten" } else { "" };
        format!(
            "{:?} was entered at {:?} for {:?}, {:?}; {after}; it was expected to be there{or}: \
             the tables have {mapped:?}",
            map.page, map.va, map.prot, map.wiring
        )
    });
}

/// Mappings of several tables, one in three wired, while the pmap forgets what it may and works.
fn forgets<M: Machine, A: Access<M>>(lab: &mut Lab<'_, M, A>) {
    let space = lab.space();
    let maps: Vec<Map> = (0..12)
        .map(|n| {
            let (va, page) = (lab.va(n % 4 * 511 + n), lab.marked(n as usize).0);
            let map = Map::new(va, page, if n % 2 == 0 { Prot::READ } else { Prot::READ_WRITE });
            if n % 3 == 0 {
                Map { wiring: Wiring::Wired, ..map }
            } else {
                map
            }
        })
        .collect();
    for map in &maps {
        lab.enter(0, &space, *map, Prot::READ);
    }
    for round in 0..40 {
        lab.on(round % lab.cpus(), |held| lab.access.forget(held, &space.tables));
        for (n, map) in maps.iter().enumerate() {
            expect_right(lab, Law::P1, &space, *map, "the pmap was made to forget what it may");
            let cpu = (n + round) % lab.cpus();
            let (seen, ought) = (lab.load_through(cpu, &space, *map), lab.word(map.page));
            lab.expect(Law::P1, seen == Some(ought), || {
                format!(
                    "{:?} was entered at {:?}; cpu {cpu} loaded there: its word {ought:#x} was \
                     expected, it saw {seen:x?}",
                    map.page, map.va
                )
            });
        }
    }
    lab.end(space);
}

/// A raised right is had after some faults; `protect` raises none.
fn raises<M: Machine, A: Access<M>>(lab: &mut Lab<'_, M, A>) {
    for cpu in lab.some_cpus() {
        for by in lab.some_cpus() {
            let space = lab.space();
            let (page, mark) = lab.marked(0);
            let read = Map::new(lab.va(5), page, Prot::READ);
            lab.load_through(cpu, &space, read);
            lab.lower_on(by, &space, |pmap, held, tables, down| {
                pmap.protect(held, tables, read.range(), Prot::READ_WRITE, down);
            });
            let stored = lab.store(cpu, &space, read.va, mark ^ 1);
            lab.expect(Law::Tables, !stored, || {
                format!(
                    "{page:?} was entered for READ; cpu {by} called protect to READ | WRITE, which \
                     raises nothing; cpu {cpu} stored there: a fault was expected, the store worked"
                )
            });
            let write = Map { prot: Prot::READ_WRITE, ..read };
            lab.enter(by, &space, write, Prot::NONE);
            if lab.store_through(cpu, &space, write, mark) {
                let seen = lab.word(page);
                lab.expect(Law::P3, seen == mark, || {
                    format!(
                        "cpu {cpu} stored {mark:#x} to {page:?} after its right was raised; \
                        the page has {seen:#x}"
                    )
                });
            }
            lab.end(space);
        }
    }
}

/// A run maps each of its pages, over two tables, and one of them can be taken away alone.
fn runs<M: Machine, A: Access<M>>(lab: &mut Lab<'_, M, A>) {
    let mut frames = lab.pages.clone();
    frames.sort_unstable_by_key(|page| page.0);
    let follows = |two: &PageNo, next: &PageNo| two.0 + 1 == next.0;
    let Some(longest) = frames.chunk_by(follows).max_by_key(|run| run.len()) else { return };
    let (page, count) = (longest[0], longest.len() as u64);
    let space = lab.space();
    // Tables have a power of two of entries.
    let run = Run { va: lab.va(2048 - count / 2), page, pages: Pages(count) };
    let entered = lab.lower_on(0, &space, |pmap, held, space, down| {
        pmap.enter(held, space, run, Prot::READ, Prot::NONE, Wiring::Wired, down)
    });
    lab.expect(Law::Tables, entered.is_ok(), || format!("no memory for tables of {run:?}"));
    let alone = PageNo(page.0 + (count / 2) as u32);
    for is_whole in [true, false] {
        for (va, page) in run.iter() {
            let map = Map::wired(va, page, Prot::READ);
            if is_whole || page != alone {
                expect_right(lab, Law::Tables, &space, map, "it was entered with a run");
            } else {
                let mapped = lab.extract(&space, va);
                lab.expect(Law::P5, mapped.is_none(), || {
                    format!("{page:?} of {run:?} was removed; the tables have {mapped:?} there")
                });
            }
        }
        if is_whole {
            let wired = lab.lower_on(0, &space, |pmap, held, _, down| {
                pmap.page_protect(held, alone, Prot::NONE, down)
            });
            lab.expect(Law::P5, wired == 1, || {
                format!("{alone:?} of {run:?}, wired, was removed: 1 was expected, not {wired}")
            });
        }
    }
    lab.end(space);
}

/// What is mapped for execution can be fetched.
fn executes<M: Machine, A: Access<M>>(lab: &mut Lab<'_, M, A>) {
    let space = lab.space();
    let map = Map::new(lab.va(6), lab.pages[0], Prot::READ_EXECUTE);
    lab.set_word(map.page, lab.access.code());
    for cpu in lab.some_cpus() {
        let mut fetched = false;
        for _ in 0..64 {
            lab.enter(cpu, &space, map, Prot::EXECUTE);
            fetched = lab.fetch(cpu, &space, map.va);
            if fetched {
                break;
            }
        }
        lab.expect(Law::P3, fetched, || {
            format!(
                "{:?} was entered for READ | EXECUTE at {:?}, again after each of 64 faults; cpu \
                 {cpu} was expected to fetch there: it faults for ever",
                map.page, map.va
            )
        });
    }
    lab.end(space);
}

/// A mapping in another's place, and one whose rights are lowered: what the tables then have, and
/// how many there are.
fn replaces<M: Machine, A: Access<M>>(lab: &mut Lab<'_, M, A>) {
    let space = lab.space();
    let va = lab.va(7);
    let (a, b) = (lab.marked(0).0, lab.marked(1).0);
    let steps = [
        Map::wired(va, a, Prot::READ),
        Map::wired(va, b, Prot::READ_WRITE),
        Map::wired(va, b, Prot::READ),
        Map::wired(va, a, Prot::READ_WRITE),
        Map::new(va, a, Prot::READ_WRITE),
        Map::wired(va, b, Prot::READ_EXECUTE),
    ];
    for map in steps {
        lab.enter(0, &space, map, Prot::NONE);
        expect_right(lab, Law::Tables, &space, map, "other mappings were there before");
        let resident = lab.on(0, |_| lab.machine.pmap().resident(&space.tables));
        let ought = if map.wiring == Wiring::Wired { 1..=1 } else { 0..=1 };
        lab.expect(Law::Tables, ought.contains(&resident), || {
            format!(
                "one page is mapped ({:?}); resident was expected to say so: it says {resident}",
                map.wiring
            )
        });
    }
    let nowhere = lab.extract(&space, lab.va(8));
    lab.expect(Law::Tables, nowhere.is_none(), || {
        format!("nothing was mapped a page further; extract says {nowhere:?}")
    });
    lab.end(space);
}

/// `remove` and `protect` reach the first and the last page of their range, across tables, and not
/// the pages beside it.
fn keeps_to_the_range<M: Machine, A: Access<M>>(lab: &mut Lab<'_, M, A>) {
    let begin = lab.va(0);
    let around = |at: u64| Va(begin.0.next_multiple_of(at));
    for (edge, len) in [(around(2 << 20), 1), (around(2 << 20), 1030), (around(1 << 30), 6)] {
        for prot in [None, Some(Prot::NONE), Some(Prot::READ)] {
            let space = lab.space();
            let start = edge + Pages(1);
            let range = VaRange::new(start, start + Pages(len));
            let page = lab.marked(0).0;
            let [before, behind] =
                [edge, range.end].map(|va| Map::wired(va, page, Prot::READ_WRITE));
            let mut inside: Vec<Map> = [start, range.end - Pages(1), start + Pages(len / 2)]
                .map(|va| Map::wired(va, page, Prot::READ_WRITE))
                .into();
            inside.dedup_by_key(|map| map.va);
            for map in inside.iter().chain([&before, &behind]) {
                lab.enter(0, &space, *map, Prot::NONE);
            }
            lab.lower_on(0, &space, |pmap, held, tables, down| match prot {
                None => pmap.remove(held, tables, range, down),
                Some(prot) => pmap.protect(held, tables, range, prot, down),
            });
            let call = match prot {
                None => "remove",
                Some(Prot::NONE) => "protect to nothing",
                Some(_) => "protect to READ",
            };
            let left = prot.unwrap_or(Prot::NONE);
            for map in &inside {
                let mapped = lab.extract(&space, map.va);
                let ought = (!left.is_empty()).then_some((page, left));
                lab.expect(Law::Tables, mapped == ought, || {
                    format!(
                        "{call} of {range:?}: at {:?} {ought:?} was expected to be left, there is \
                         {mapped:?}",
                        map.va
                    )
                });
            }
            for map in [before, behind] {
                expect_right(lab, Law::Tables, &space, map, &format!("{call} of {range:?}"));
            }
            lab.lower_on(0, &space, |pmap, held, tables, down| {
                pmap.remove(held, tables, VaRange::new(range.end, range.end), down);
                pmap.protect(held, tables, VaRange::new(edge, edge), Prot::NONE, down);
            });
            for map in [before, behind] {
                expect_right(lab, Law::Tables, &space, map, "remove and protect of an empty range");
            }
            lab.end(space);
        }
    }
}

/// `enter_ahead` never lowers, never replaces, and asks.
fn ahead<M: Machine, A: Access<M>>(lab: &mut Lab<'_, M, A>) {
    let space = lab.space();
    let va = lab.va(16);
    let pages: Vec<PageNo> = (0..6).map(|n| lab.marked(n).0).collect();
    let there = [
        Map::wired(va, pages[0], Prot::READ_WRITE),
        Map::wired(va + Pages(1), pages[1], Prot::READ),
        Map::wired(va + Pages(2), pages[2], Prot::READ),
    ];
    for map in there {
        lab.enter(0, &space, map, Prot::NONE);
    }
    let read = |n: usize| Some((pages[n], Prot::READ));
    let run = [read(0), read(3), Some((pages[2], Prot::READ_WRITE)), read(4), None, read(5)];
    lab.on(0, |held| {
        lab.machine.pmap().enter_ahead(held, &space.tables, va, &run, |n| n != 5);
    });
    let names = [
        (there[0], "enter_ahead of the same page for READ, which lowers nothing"),
        (there[1], "enter_ahead of another page, which replaces nothing"),
    ];
    for (map, after) in names {
        expect_right(lab, Law::Tables, &space, map, after);
    }
    let seen = lab.extract(&space, va + Pages(2));
    let may = seen == Some((pages[2], Prot::READ)) || seen == Some((pages[2], Prot::READ_WRITE));
    lab.expect(Law::Tables, may, || {
        format!(
            "{:?} was wired for READ; enter_ahead of the same page for READ | WRITE was expected \
            to \
             raise it or leave it: there is {seen:?}",
            pages[2]
        )
    });
    for (n, ought) in [(3, Some((pages[4], Prot::READ))), (4, None), (5, None)] {
        let seen = lab.extract(&space, va + Pages(n));
        lab.expect(Law::Tables, seen.is_none() || seen == ought, || {
            let why = match n {
                3 => "page 3 of a run was to be mapped ahead",
                4 => "a run has no page 4",
                _ => "may(5) said that page 5 of a run must not be mapped",
            };
            format!("{why}: {ought:?} or nothing was expected, there is {seen:?}")
        });
    }
    let wired = lab.lower_on(0, &space, |pmap, held, _, down| {
        [pages[0], pages[1], pages[2]].map(|page| pmap.page_protect(held, page, Prot::NONE, down))
    });
    lab.expect(Law::Tables, wired == [1, 1, 1], || {
        format!(
            "three pages were wired, and a run mapped ahead over them; page_protect was expected \
            to \
             remove a wired mapping of each: it says {wired:?}"
        )
    });
    lab.end(space);
}

/// `unwire` finds the wired mappings of a range one by one, by address, and no other.
fn unwires<M: Machine, A: Access<M>>(lab: &mut Lab<'_, M, A>) {
    let space = lab.space();
    let page = lab.marked(0).0;
    let wired = [lab.va(1), lab.va(2), lab.va(600), lab.va(300_000)];
    for va in wired {
        lab.enter(0, &space, Map::wired(va, page, Prot::READ), Prot::NONE);
        lab.enter(0, &space, Map::new(va + Pages(7), page, Prot::READ), Prot::NONE);
    }
    let range = VaRange::new(lab.va(2), lab.va(300_000));
    let found = lab.on(0, |_| {
        core::array::from_fn::<_, 3, _>(|_| lab.machine.pmap().unwire(&space.tables, range))
    });
    let ought = [Some((wired[1], page)), Some((wired[2], page)), None];
    lab.expect(Law::Tables, found == ought, || {
        format!("unwire of {range:?}, three times: {ought:?} was expected, it said {found:?}")
    });
    let left = lab
        .lower_on(0, &space, |pmap, held, _, down| pmap.page_protect(held, page, Prot::NONE, down));
    lab.expect(Law::Tables, left == 2, || {
        format!(
            "four mappings were wired and two of them unwired; page_protect was expected to remove \
             two wired ones: it says {left}"
        )
    });
    lab.end(space);
}

/// `part` and `tables_part` go forward, in whole pages, to the end.
fn parts<M: Machine, A: Access<M>>(lab: &mut Lab<'_, M, A>) {
    let space = lab.space();
    let page = lab.marked(0).0;
    let range = VaRange::new(lab.va(0), lab.va(300_000));
    let ends = |lab: &Lab<'_, M, A>| {
        let pmap = lab.machine.pmap();
        lab.on(0, |_| {
            let part = |from| pmap.part(&space.tables, VaRange::new(from, range.end), 1);
            let tables = |from| pmap.tables_part(&space.tables, VaRange::new(from, range.end), 1);
            [walk(range, part), walk(range, tables)]
        })
    };
    for map in 0..=20 {
        let seen = ends(lab);
        for (name, seen) in ["part", "tables_part"].into_iter().zip(seen) {
            lab.expect(Law::Tables, seen.is_ok(), || {
                format!(
                    "{map} pages are mapped in {range:?}; {name} of the rest, again and again, was \
                     expected to go forward by whole pages to its end: it came to {:?}",
                    seen.unwrap_err()
                )
            });
        }
        let va = lab.va(map * 37 + map % 3 * 70_000);
        lab.enter(0, &space, Map::wired(va, page, Prot::READ), Prot::NONE);
    }
    lab.end(space);
}

/// Walks a range by its parts.
fn walk(range: VaRange, part: impl Fn(Va) -> Va) -> Result<(), Va> {
    // A part may be as small as one table.
    let most = range.pages().0 / 8;
    let mut at = range.start;
    for _ in 0..most {
        let next = part(at);
        if next == range.end {
            return Ok(());
        }
        if next <= at || next > range.end || next.page_offset() != 0 {
            return Err(next);
        }
        at = next;
    }
    Err(at)
}

/// `pass` leaves nothing where it was, and nothing wrong where it goes.
fn passes<M: Machine, A: Access<M>>(lab: &mut Lab<'_, M, A>) {
    let (from, to) = (lab.space(), lab.space());
    let start = Va(lab.va(0).0.next_multiple_of(2 << 20));
    let range = VaRange::new(start, start + Pages(1024));
    let maps: Vec<Map> = [0, 5, 511, 512, 1023]
        .iter()
        .enumerate()
        .map(|(n, at)| Map::new(start + Pages(*at), lab.marked(n).0, Prot::READ_WRITE))
        .collect();
    let beside = Map::wired(range.end, lab.marked(6).0, Prot::READ);
    lab.enter(0, &from, beside, Prot::NONE);
    let cpu = lab.cpus() - 1;
    for map in &maps {
        lab.load_through(cpu, &from, *map);
    }
    lab.lower_on(0, &from, |pmap, held, tables, down| {
        pmap.pass(held, tables, range, &to.tables, elsewhere(start), down);
    });
    for map in &maps {
        let there = elsewhere(map.va);
        let (old, new) = (lab.extract(&from, map.va), lab.extract(&to, there));
        let seen = lab.load(cpu, &from, map.va);
        lab.expect(Law::Tables, old.is_none() && seen.is_none(), || {
            format!(
                "{range:?} was passed to another space and flushed; at {:?} of the first nothing \
                 was expected: the tables have {old:?}, and cpu {cpu} loaded {seen:x?}",
                map.va
            )
        });
        let may = new.is_none_or(|(page, prot)| page == map.page && map.prot.contains(prot));
        lab.expect(Law::Tables, may, || {
            format!(
                "{range:?} was passed to another space; at {there:?} there {:?} or nothing was \
                 expected: the tables have {new:?}",
                map.page
            )
        });
        let moved = Map { va: there, ..*map };
        let (seen, ought) = (lab.load_through(cpu, &to, moved), lab.word(map.page));
        lab.expect(Law::Tables, seen == Some(ought), || {
            format!(
                "{:?} was passed to {there:?}, and entered there where it faults; cpu {cpu} was \
                 expected to load {ought:#x}: it saw {seen:x?}",
                map.page
            )
        });
    }
    expect_right(lab, Law::Tables, &from, beside, "the range before it was passed away");
    lab.end(from);
    lab.end(to);
}

/// `forget` removes one page and flushes by itself.
fn forgets_one<M: Machine, A: Access<M>>(lab: &mut Lab<'_, M, A>) {
    for by in lab.some_cpus() {
        for cpu in lab.some_cpus() {
            let space = lab.space();
            let map = Map::new(lab.va(70), lab.marked(0).0, Prot::READ_WRITE);
            let beside = Map::wired(lab.va(71), lab.marked(1).0, Prot::READ);
            lab.enter(by, &space, beside, Prot::NONE);
            lab.load_through(cpu, &space, map);
            let (needed, mut down) = lab.begin_on(by, &space, |pmap, held, tables, down| {
                pmap.forget(held, tables, map.va, down);
                down.is_needed()
            });
            lab.expect(Law::Tables, !needed, || {
                "forget flushes all of its shootdown; something is left in it".into()
            });
            let (seen, left) = (lab.load(cpu, &space, map.va), lab.extract(&space, map.va));
            lab.expect(Law::P2, seen.is_none() && left.is_none(), || {
                format!(
                    "cpu {cpu} had used {:?} at {:?}; cpu {by} called forget; cpu {cpu} loaded \
                     there: a fault was expected, it saw {seen:x?}, and the tables have {left:?}",
                    map.page, map.va
                )
            });
            lab.flush_on(by, &mut down);
            expect_right(lab, Law::Tables, &space, beside, "the page before it was forgotten");
            lab.end(space);
        }
    }
}

/// A mapping that can't be entered leaves what there was.
fn without_memory<M: Machine, A: Access<M>>(lab: &mut Lab<'_, M, A>) {
    let space = lab.space();
    let page = lab.marked(0).0;
    let there = Map::wired(lab.va(3), page, Prot::READ);
    lab.enter(0, &space, there, Prot::NONE);
    let (far, mut seen) = (lab.va(300_003), Vec::new());
    let can = lab.on(0, |held| {
        let pmap = lab.machine.pmap();
        let mut work = |held: &mut machine::Held<'_, machine::order::Nothing>| {
            let mut down = machine::Shootdown::new();
            for va in [far, there.va] {
                let (prot, wired) = (Prot::READ_WRITE, Wiring::Wired);
                let done = pmap.enter(
                    held,
                    &space.tables,
                    Run::one(va, page),
                    prot,
                    Prot::READ,
                    wired,
                    &mut down,
                );
                seen.push((va, done.is_ok(), pmap.extract(&space.tables, va)));
            }
            down.flush(pmap);
        };
        lab.access.without_tables(&mut work, held)
    });
    if !can {
        lab.report.leave_out(Law::Memory, "the port can't be without pages for tables");
    }
    for (va, done, mapped) in seen {
        let before = (va == there.va).then_some((page, Prot::READ));
        let ought = if done { Some((page, Prot::READ_WRITE)) } else { before };
        lab.expect(Law::Memory, mapped == ought, || {
            format!(
                "enter at {va:?} without a page for tables said {}; {ought:?} was expected there: \
                 the tables have {mapped:?}",
                if done { "that it worked" } else { "NoMemory" }
            )
        });
    }
    lab.end(space);
}

/// Spaces that come and go: a CPU never sees in one what it knew of another, whatever names the
/// port gives them.
pub(crate) fn check_names<M: Machine, A: Access<M>>(lab: &mut Lab<'_, M, A>) {
    lab.begins(Law::Tables);
    let map = Map::new(lab.va(9), lab.marked(0).0, Prot::READ_WRITE);
    let cpus = lab.some_cpus();
    for n in 0..lab.effort.spaces {
        let space = lab.space();
        for cpu in &cpus {
            let seen = lab.load(*cpu, &space, map.va);
            lab.expect(Law::P2, seen.is_none(), || {
                format!(
                    "{n} spaces were made, used and destroyed one after another; in a new one cpu \
                     {cpu} loaded where nothing is mapped: a fault was expected, it saw {seen:x?}"
                )
            });
        }
        if n % 2 == 0 {
            lab.load_through(cpus[n as usize / 2 % cpus.len()], &space, map);
        }
        let empty = lab.extract(&space, map.va).is_none() || n % 2 == 0;
        lab.expect(Law::Tables, empty, || "a new space has a mapping".into());
        lab.end(space);
        if !lab.report.is_sound() {
            // What is kept after a violation would be many spaces.
            break;
        }
    }
}
