//! Law P2: once a call that removes or lowers was flushed, no CPU uses what it took away. And law
//! P5: from a page, all its mappings are lowered.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use machine::order::{Held, Nothing};
use machine::{Machine, PageNo, Pmap, Prot, Run, Shootdown, Va, VaRange, Wiring};

use crate::lab::{one, Lab, Map, Space};
use crate::{Access, Law};

/// A word that a program stores where it may not.
const INTRUDER: u64 = 0x1217_0de5_1217_0de5;

/// A call that takes something away from the mapping of one page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lower {
    Remove,
    RemoveAround,
    ProtectNone,
    ProtectRead,
    PageProtectNone,
    PageProtectRead,
    EnterAnother,
    EnterForRead,
    Pass,
}

/// What a call has left of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Left {
    Nothing,
    Reading,
    /// Another page is mapped in its place.
    Another,
}

impl Lower {
    pub(crate) const ALL: [Lower; 9] = [
        Lower::Remove,
        Lower::RemoveAround,
        Lower::ProtectNone,
        Lower::ProtectRead,
        Lower::PageProtectNone,
        Lower::PageProtectRead,
        Lower::EnterAnother,
        Lower::EnterForRead,
        Lower::Pass,
    ];

    pub(crate) fn leaves(self) -> Left {
        match self {
            Lower::ProtectRead | Lower::PageProtectRead | Lower::EnterForRead => Left::Reading,
            Lower::EnterAnother => Left::Another,
            _ => Left::Nothing,
        }
    }

    /// The call as sentences name it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Lower::Remove => "remove",
            Lower::RemoveAround => "remove of 1 GiB around it",
            Lower::ProtectNone => "protect to nothing",
            Lower::ProtectRead => "protect to READ",
            Lower::PageProtectNone => "page_protect to nothing",
            Lower::PageProtectRead => "page_protect to READ",
            Lower::EnterAnother => "enter of another page in its place",
            Lower::EnterForRead => "enter of the same page for READ alone",
            Lower::Pass => "pass to another place",
        }
    }

    /// Makes the call. It may say that there is no memory, where it needs none: not lowered.
    pub(crate) fn call<P: Pmap>(
        self,
        pmap: &P,
        held: &mut Held<'_, Nothing>,
        space: &P::Space,
        target: Target,
        down: &mut Shootdown,
    ) {
        let Target { va, page, another } = target;
        let enter = |held: &mut Held<'_, Nothing>, page, prot, down: &mut Shootdown| {
            let pageable = Wiring::Pageable;
            // What can't be entered is what the laws of memory are about: nothing has changed then.
            let _ = pmap.enter(held, space, Run::one(va, page), prot, Prot::NONE, pageable, down);
        };
        match self {
            Lower::Remove => pmap.remove(held, space, one(va), down),
            Lower::RemoveAround => {
                const GIB: u64 = 1 << 30;
                let start = Va(va.0 / GIB * GIB);
                pmap.remove(held, space, VaRange::new(start, Va(start.0 + GIB)), down);
            }
            Lower::ProtectNone => pmap.protect(held, space, one(va), Prot::NONE, down),
            Lower::ProtectRead => pmap.protect(held, space, one(va), Prot::READ, down),
            Lower::PageProtectNone => {
                pmap.page_protect(held, page, Prot::NONE, down);
            }
            Lower::PageProtectRead => {
                pmap.page_protect(held, page, Prot::READ, down);
            }
            Lower::EnterAnother => enter(held, another, Prot::READ_WRITE, down),
            Lower::EnterForRead => enter(held, page, Prot::READ, down),
            Lower::Pass => pmap.pass(held, space, one(va), space, elsewhere(va), down),
        }
    }
}

/// Where [`Lower::Pass`] passes a page: at the same offset of other tables.
pub(crate) fn elsewhere(va: Va) -> Va {
    Va(va.0 + (1 << 30))
}

/// What is lowered.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub(crate) va: Va,
    pub(crate) page: PageNo,
    pub(crate) another: PageNo,
}

impl Target {
    pub(crate) fn writable(self) -> Map {
        Map::new(self.va, self.page, Prot::READ_WRITE)
    }
}

pub(crate) fn check<M: Machine, A: Access<M>>(lab: &mut Lab<'_, M, A>) {
    lab.begins(Law::P2);
    for how in Lower::ALL {
        for by in lab.some_cpus() {
            for holder in lab.some_cpus() {
                one_holder(lab, how, by, &[holder]);
            }
        }
        let all: Vec<usize> = (0..lab.cpus()).collect();
        one_holder(lab, how, lab.cpus() - 1, &all);
        one_holder(lab, how, 0, &all);
    }
    many_ranges(lab);
    two_spaces(lab);
    lab.begins(Law::P5);
    every_mapping(lab);
}

/// Some CPUs have a translation, one lowers, and then none has more than is left. Three times, as a
/// port that tracks which CPUs have a translation may lose count.
fn one_holder<M: Machine, A: Access<M>>(
    lab: &mut Lab<'_, M, A>,
    how: Lower,
    by: usize,
    holders: &[usize],
) {
    let space = lab.space();
    for time in 1..=3 {
        let (page, mark) = lab.marked(0);
        let (another, other_mark) = lab.marked(1);
        let target = Target { va: lab.va(520), page, another };
        for holder in holders {
            lab.load_through(*holder, &space, target.writable());
            lab.store_through(*holder, &space, target.writable(), mark);
        }
        let what = lab.lower_on(by, &space, |pmap, held, tables, down| {
            how.call(pmap, held, tables, target, down);
            match pmap.extract(tables, target.va) {
                Some(mapped) if !may_be_mapped(how, target, mapped) => Some(mapped),
                _ => None,
            }
        });
        lab.expect(Law::P2, what.is_none(), || {
            format!(
                "cpu {by} called {} for {page:?} at {:?} (time {time}); the tables were expected \
                 to have {}, and have {what:?}",
                how.name(),
                target.va,
                ought(how),
            )
        });
        for holder in holders {
            let said = || {
                format!(
                    "cpu {holder} had used {page:?} at {:?}; cpu {by} called {} and flushed (time \
                 {time}); then cpu {holder}",
                    target.va,
                    how.name(),
                )
            };
            use_lowered(lab, *holder, &space, how, (target, mark, other_mark), said);
        }
        // Where `pass` goes, nothing is mapped.
        let all = lab.access.window();
        lab.lower_on(0, &space, |pmap, held, tables, down| pmap.remove(held, tables, all, down));
    }
    lab.end(space);
}

fn may_be_mapped(how: Lower, target: Target, (page, prot): (PageNo, Prot)) -> bool {
    match how.leaves() {
        Left::Nothing => false,
        Left::Reading => page == target.page && !prot.contains(Prot::WRITE),
        Left::Another => page == target.another,
    }
}

fn ought(how: Lower) -> &'static str {
    match how.leaves() {
        Left::Nothing => "nothing there",
        Left::Reading => "at most a read-only mapping",
        Left::Another => "the other page or nothing",
    }
}

/// A CPU tries to use what it has lost.
fn use_lowered<M: Machine, A: Access<M>>(
    lab: &mut Lab<'_, M, A>,
    holder: usize,
    space: &Space<M>,
    how: Lower,
    (target, mark, other_mark): (Target, u64, u64),
    said: impl Fn() -> String,
) {
    let seen = lab.load(holder, space, target.va);
    let (may, expected) = match how.leaves() {
        Left::Nothing => (seen.is_none(), "a fault"),
        Left::Reading => (seen.is_none() || seen == Some(mark), "the page's word or a fault"),
        Left::Another => {
            (seen.is_none() || seen == Some(other_mark), "the other page's word or a fault")
        }
    };
    lab.expect(Law::P2, may, || {
        format!("{} loaded there: {expected} was expected, it saw {seen:x?}", said())
    });
    let stored = lab.store(holder, space, target.va, INTRUDER);
    let reached = lab.word(target.page) == INTRUDER;
    let may = !reached && (!stored || how.leaves() == Left::Another);
    lab.expect(Law::P2, may, || {
        let arrived = if reached { "arrived in the page" } else { "worked" };
        format!("{} stored there: a fault was expected, the store {arrived}", said())
    });
    lab.set_word(target.page, mark);
    lab.set_word(target.another, other_mark);
}

/// One shootdown of more ranges than it keeps apart, in tables far from each other, and in two
/// spaces.
fn many_ranges<M: Machine, A: Access<M>>(lab: &mut Lab<'_, M, A>) {
    let spaces = [lab.space(), lab.space()];
    let holder = lab.cpus() - 1;
    for count in [1, 5, 20] {
        let maps: Vec<Map> = (0..count)
            .map(|n| {
                let (page, _) = lab.marked(n as usize);
                Map::new(lab.va(n * 3 + n % 4 * 513), page, Prot::READ_WRITE)
            })
            .collect();
        for space in &spaces {
            for map in &maps {
                lab.load_through(holder, space, *map);
            }
        }
        lab.on(0, |held| {
            let (pmap, mut down) = (lab.machine.pmap(), Shootdown::new());
            for map in &maps {
                for space in &spaces {
                    pmap.remove(held, &space.tables, map.range(), &mut down);
                }
            }
            down.flush(pmap);
        });
        for (n, space) in spaces.iter().enumerate() {
            for map in &maps {
                let seen = lab.load(holder, space, map.va);
                lab.expect(Law::P2, seen.is_none(), || {
                    format!(
                        "cpu 0 removed {count} pages of each of two spaces by one shootdown and \
                         flushed; then cpu {holder} loaded at {:?} of space {n}: a fault was \
                         expected, it saw {seen:x?}",
                        map.va
                    )
                });
            }
        }
    }
    spaces.into_iter().for_each(|space| lab.end(space));
}

/// One address in two spaces, which a CPU uses by turns: it must not mix them up, and forget what
/// is lowered in the one while it runs in the other.
fn two_spaces<M: Machine, A: Access<M>>(lab: &mut Lab<'_, M, A>) {
    for holder in lab.some_cpus() {
        for how in Lower::ALL {
            let (mine, other) = (lab.space(), lab.space());
            let (page, mark) = lab.marked(0);
            let (another, other_mark) = lab.marked(1);
            let target = Target { va: lab.va(8), page, another };
            let there = Map::new(target.va, lab.marked(2).0, Prot::READ_WRITE);
            for _ in 0..2 {
                let seen = lab.load_through(holder, &mine, target.writable());
                lab.expect(Law::P2, seen == Some(mark), || {
                    format!(
                        "cpu {holder} loaded the word of {page:?}, {mark:#x}, in a space; it \
                        saw {seen:x?}"
                    )
                });
                let seen = lab.load_through(holder, &other, there);
                let ought = lab.word(there.page);
                lab.expect(Law::P2, seen == Some(ought), || {
                    format!(
                        "cpu {holder} loaded at the same address of another space the word of \
                         {:?}, {ought:#x}; it saw {seen:x?}",
                        there.page
                    )
                });
            }
            lab.lower_on(0, &mine, |pmap, held, tables, down| {
                how.call(pmap, held, tables, target, down);
            });
            let said = || {
                format!(
                "cpu {holder} had used {page:?} at {:?} and gone to another space; cpu 0 called {} \
                 and flushed; then cpu {holder} came back and",
                target.va,
                how.name(),
            )
            };
            use_lowered(lab, holder, &mine, how, (target, mark, other_mark), said);
            lab.end(mine);
            lab.end(other);
        }
    }
}

/// `page_protect` reaches every mapping, says how many wired ones it has removed, and `is_mapped`
/// knows of them before.
fn every_mapping<M: Machine, A: Access<M>>(lab: &mut Lab<'_, M, A>) {
    for wired in [0, 1, 4] {
        let spaces = [lab.space(), lab.space(), lab.space()];
        let (page, mark) = lab.marked(0);
        let places: [Va; 3] = [lab.va(0), lab.va(511), lab.va(300_000)];
        let mut maps = Vec::new();
        for (n, space) in spaces.iter().enumerate() {
            for (at, va) in places.iter().enumerate() {
                let map = Map::new(*va, page, Prot::READ_WRITE);
                let is_wired = n * places.len() + at < wired;
                let map = if is_wired { Map { wiring: Wiring::Wired, ..map } } else { map };
                maps.push((space, map));
            }
        }
        for (n, (space, map)) in maps.iter().enumerate() {
            let cpu = n % lab.cpus();
            lab.enter(cpu, space, *map, Prot::WRITE);
            lab.store_through(cpu, space, *map, mark);
        }
        let last = maps.last().expect("there are nine");
        lab.load_through(0, last.0, last.1);
        let is_mapped = lab.on(0, |_| {
            let pmap = lab.machine.pmap();
            pmap.is_mapped(page) || pmap.extract(&last.0.tables, last.1.va).is_none()
        });
        lab.expect(Law::P5, is_mapped, || {
            format!(
                "{page:?} is mapped nine times in three spaces, and is_mapped was expected \
                to say so: it said no"
            )
        });
        for prot in [Prot::READ, Prot::NONE] {
            let removed = lab.lower_on(0, &spaces[0], |pmap, held, _, down| {
                pmap.page_protect(held, page, prot, down)
            });
            let ought = if prot == Prot::NONE { wired as u32 } else { 0 };
            lab.expect(Law::P5, removed == ought, || {
                format!(
                    "{page:?} was mapped nine times, {wired} of them wired; page_protect to \
                     {prot:?} was expected to say that it removed {ought} wired mappings: it \
                     said {removed}"
                )
            });
            for (n, (space, map)) in maps.iter().enumerate() {
                let cpu = n % lab.cpus();
                let left = lab.extract(space, map.va);
                let may = left.is_none_or(|(at, rights)| at == page && prot.contains(rights));
                let said = || {
                    format!(
                        "{page:?} was mapped nine times in three spaces; page_protect to {prot:?} \
                         was called for it and flushed"
                    )
                };
                lab.expect(Law::P5, may, || {
                    format!(
                        "{}; at {:?} of space {} the tables have {left:?}",
                        said(),
                        map.va,
                        n / 3
                    )
                });
                let stored = lab.store(cpu, space, map.va, INTRUDER);
                lab.expect(Law::P5, !stored && lab.word(page) == mark, || {
                    format!(
                        "{}; then cpu {cpu} stored at {:?} of space {}: a fault was expected, the \
                         store worked",
                        said(),
                        map.va,
                        n / 3
                    )
                });
                lab.set_word(page, mark);
            }
        }
        spaces.into_iter().for_each(|space| lab.end(space));
    }
}
