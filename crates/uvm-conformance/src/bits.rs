//! Law P4: a page's referenced and modified bits are the union over all its mappings, past and
//! present, and never said too rarely.

use alloc::format;

use machine::{Machine, Pmap, Prot, Shootdown};

use crate::lab::{Lab, Map, Space};
use crate::lowering::{Lower, Target};
use crate::{Access, Law};

pub(crate) fn check<M: Machine, A: Access<M>>(lab: &mut Lab<'_, M, A>) {
    lab.begins(Law::P4);
    for cpu in lab.some_cpus() {
        for how in Lower::ALL {
            outlive(lab, how, cpu);
        }
        forgotten(lab, cpu);
        set_again(lab, cpu);
        referenced_again(lab, cpu);
    }
    said_by_enter(lab);
}

/// Bits of a page.
fn bits<M: Machine, A: Access<M>>(lab: &Lab<'_, M, A>, page: machine::PageNo) -> (bool, bool) {
    let pmap = lab.machine.pmap();
    lab.on(0, |_| (pmap.is_referenced(page), pmap.is_modified(page)))
}

/// Clears both bits, with the flush that makes that true; says whether the page was modified.
fn clear<M: Machine, A: Access<M>>(lab: &Lab<'_, M, A>, by: usize, page: machine::PageNo) -> bool {
    lab.on(by, |_| {
        let (pmap, mut down) = (lab.machine.pmap(), Shootdown::new());
        pmap.clear_referenced(page);
        let was = pmap.clear_modified(page, &mut down);
        down.flush(pmap);
        was
    })
}

/// A CPU stores through a mapping that was made without an access, so that only the CPU can have
/// set the bits, where its MMU does.
fn store<M: Machine, A: Access<M>>(
    lab: &mut Lab<'_, M, A>,
    cpu: usize,
    space: &Space<M>,
    map: Map,
) {
    lab.enter(cpu, space, map, Prot::NONE);
    let word = lab.word(map.page);
    lab.store_through(cpu, space, map, word);
}

/// A mapping that was stored through is lowered; the page is modified.
fn outlive<M: Machine, A: Access<M>>(lab: &mut Lab<'_, M, A>, how: Lower, cpu: usize) {
    let space = lab.space();
    let (page, another) = (lab.marked(0).0, lab.marked(1).0);
    let target = Target { va: lab.va(40), page, another };
    clear(lab, 0, page);
    store(lab, cpu, &space, target.writable());
    let by = (cpu + 1) % lab.cpus();
    lab.lower_on(by, &space, |pmap, held, tables, down| how.call(pmap, held, tables, target, down));
    let seen = bits(lab, page);
    lab.expect(Law::P4, seen == (true, true), || {
        format!(
            "cpu {cpu} stored to {page:?} through a mapping; cpu {by} called {} for it and \
             flushed; the page was expected to be referenced and modified: it is {}",
            how.name(),
            name(seen)
        )
    });
    lab.end(space);
}

fn name((referenced, modified): (bool, bool)) -> &'static str {
    match (referenced, modified) {
        (true, true) => "both",
        (true, false) => "only referenced",
        (false, true) => "only modified",
        (false, false) => "neither",
    }
}

/// The mapping is forgotten as law P1 allows; the bits are not.
fn forgotten<M: Machine, A: Access<M>>(lab: &mut Lab<'_, M, A>, cpu: usize) {
    let space = lab.space();
    let map = Map::new(lab.va(41), lab.marked(0).0, Prot::READ_WRITE);
    clear(lab, 0, map.page);
    store(lab, cpu, &space, map);
    lab.on(0, |held| lab.access.forget(held, &space.tables));
    let seen = bits(lab, map.page);
    lab.expect(Law::P4, seen == (true, true), || {
        format!(
            "cpu {cpu} stored to {:?} through a mapping that was then forgotten; the page was \
             expected to be referenced and modified: it is {}",
            map.page,
            name(seen)
        )
    });
    lab.end(space);
}

/// A CPU whose translation says that the page is modified stores again after the bit was cleared.
fn set_again<M: Machine, A: Access<M>>(lab: &mut Lab<'_, M, A>, cpu: usize) {
    for by in lab.some_cpus() {
        let space = lab.space();
        let map = Map::new(lab.va(42), lab.marked(0).0, Prot::READ_WRITE);
        for time in 1..=3 {
            store(lab, cpu, &space, map);
            let was = clear(lab, by, map.page);
            lab.expect(Law::P4, was, || {
                format!(
                    "cpu {cpu} stored to {:?}; cpu {by} called clear_modified, which was expected \
                     to say that the page was modified: it said no",
                    map.page
                )
            });
            let word = lab.word(map.page);
            if lab.store(cpu, &space, map.va, word) {
                let seen = bits(lab, map.page);
                lab.expect(Law::P4, seen.1, || {
                    format!(
                        "cpu {cpu} had stored to {:?}; cpu {by} called clear_modified and flushed; \
                         cpu {cpu} stored again without a fault (time {time}); the page was \
                         expected to be modified: it is {}",
                        map.page,
                        name(seen)
                    )
                });
            }
        }
        lab.end(space);
    }
}

/// A reference through a translation that is newer than the clearing is seen.
fn referenced_again<M: Machine, A: Access<M>>(lab: &mut Lab<'_, M, A>, cpu: usize) {
    let space = lab.space();
    let map = Map::new(lab.va(43), lab.marked(0).0, Prot::READ);
    lab.load_through(cpu, &space, map);
    clear(lab, 0, map.page);
    lab.lower_on(0, &space, |pmap, held, tables, down| {
        pmap.remove(held, tables, map.range(), down);
    });
    clear(lab, 0, map.page);
    lab.enter(cpu, &space, map, Prot::NONE);
    lab.load_through(cpu, &space, map);
    let seen = bits(lab, map.page);
    lab.expect(Law::P4, seen.0, || {
        format!(
            "the bits of {:?} were cleared and its mapping removed; it was mapped again and cpu \
             {cpu} loaded from it; it was expected to be referenced: it is {}",
            map.page,
            name(seen)
        )
    });
    lab.end(space);
}

/// `enter` for an access says at once that it has happened.
fn said_by_enter<M: Machine, A: Access<M>>(lab: &mut Lab<'_, M, A>) {
    let space = lab.space();
    let map = Map::new(lab.va(44), lab.marked(0).0, Prot::READ_WRITE);
    for (access, ought) in [(Prot::READ, (true, false)), (Prot::WRITE, (true, true))] {
        clear(lab, 0, map.page);
        lab.enter(0, &space, map, access);
        let seen = bits(lab, map.page);
        lab.expect(Law::P4, seen.0 >= ought.0 && seen.1 >= ought.1, || {
            format!(
                "{:?} was entered for an access {access:?}; it was expected to be {} at once: it \
                 is {}",
                map.page,
                name(ought),
                name(seen)
            )
        });
    }
    lab.end(space);
}
