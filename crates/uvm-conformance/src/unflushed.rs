//! Law P6: what has left the tables and is not flushed may be used by a CPU still, and another call
//! that finds nothing there flushes it all the same.
//!
//! ```text
//!   cpu a   lower .............................................. flush
//!   cpu b           lower the same, which finds nothing; flush
//!   cpu c   (has a translation)                          load, store: must not reach the page
//! ```
//! The order is forced: a `Shootdown` is kept until its CPU is told to flush it. The lowering CPU's
//! own translations are left out, as a port may.

use alloc::format;
use alloc::vec::Vec;

use machine::{Machine, Pmap, Shootdown};

use crate::lab::Lab;
use crate::lowering::{Left, Lower, Target};
use crate::{Access, Law};

const LATE: u64 = 0x1a7e_1a7e_1a7e_1a7e;

pub(crate) fn check<M: Machine, A: Access<M>>(lab: &mut Lab<'_, M, A>) {
    if lab.cpus() == 1 {
        lab.report.leave_out(Law::P6, "one CPU has no other to overtake");
        return;
    }
    lab.begins(Law::P6);
    let last = lab.cpus() - 1;
    let mut roles: Vec<[usize; 3]> = Vec::new();
    for role in [[0, 1, 1], [0, 1, last], [last, 0, 0], [1, 0, last.max(2) - 1]] {
        // The CPU that lowers first has none of the translations.
        if role[0] != role[2] && role[0] != role[1] && !roles.contains(&role) {
            roles.push(role);
        }
    }
    for cpus in roles {
        for first in Lower::ALL {
            for second in Lower::ALL {
                overtake(lab, cpus, first, second);
            }
            still_mapped(lab, cpus, first);
            cleaned(lab, cpus, first);
        }
    }
}

/// Whether the contract has the second call flush what the first has lowered.
fn tells(second: Lower) -> bool {
    !matches!(second, Lower::EnterAnother | Lower::EnterForRead | Lower::Pass)
}

fn overtake<M: Machine, A: Access<M>>(
    lab: &mut Lab<'_, M, A>,
    [a, b, c]: [usize; 3],
    first: Lower,
    second: Lower,
) {
    if !tells(second) {
        return;
    }
    let space = lab.space();
    let (page, mark) = lab.marked(0);
    let (another, other_mark) = lab.marked(1);
    let target = Target { va: lab.va(60), page, another };
    lab.store_through(c, &space, target.writable(), mark);
    let ((), mut down) = lab.begin_on(a, &space, |pmap, held, tables, down| {
        first.call(pmap, held, tables, target, down);
    });
    lab.lower_on(b, &space, |pmap, held, tables, down| {
        second.call(pmap, held, tables, target, down);
    });
    let said = || {
        format!(
            "cpu {c} had used {page:?} at {:?}; cpu {a} called {} and did not flush yet; cpu {b} \
             called {} and flushed; then cpu {c}",
            target.va,
            first.name(),
            second.name()
        )
    };
    let seen = lab.load(c, &space, target.va);
    if second.leaves() == Left::Nothing {
        lab.expect(Law::P6, seen != Some(mark), || {
            format!(
                "{} loaded there: the page was not expected to be reached, it saw its word \
                {mark:#x}",
                said()
            )
        });
    }
    lab.store(c, &space, target.va, LATE);
    let reached = lab.word(page) == LATE;
    lab.expect(Law::P6, !reached, || {
        format!(
            "{} stored there: the page was not expected to be reached, the store arrived in it",
            said()
        )
    });
    lab.set_word(page, mark);
    lab.set_word(another, other_mark);
    lab.flush_on(a, &mut down);
    lab.end(space);
}

/// A page that a CPU can reach though no table maps it counts as mapped.
fn still_mapped<M: Machine, A: Access<M>>(
    lab: &mut Lab<'_, M, A>,
    [a, b, c]: [usize; 3],
    how: Lower,
) {
    if how.leaves() == Left::Reading {
        return;
    }
    let space = lab.space();
    let (page, mark) = lab.marked(0);
    let target = Target { va: lab.va(61), page, another: lab.marked(1).0 };
    lab.store_through(c, &space, target.writable(), mark);
    let ((), mut down) = lab.begin_on(a, &space, |pmap, held, tables, down| {
        how.call(pmap, held, tables, target, down);
    });
    let said = lab.on(b, |_| lab.machine.pmap().is_mapped(page));
    let reached = lab.load(c, &space, target.va) == Some(mark);
    lab.expect(Law::P6, said || !reached, || {
        format!(
            "cpu {c} had used {page:?} at {:?}; cpu {a} called {} and did not flush yet; cpu {b} \
             asked is_mapped, which said no; then cpu {c} loaded the page's word {mark:#x} there",
            target.va,
            how.name()
        )
    });
    lab.flush_on(a, &mut down);
    lab.end(space);
}

/// A page that was cleaned meanwhile doesn't change without its bit.
fn cleaned<M: Machine, A: Access<M>>(lab: &mut Lab<'_, M, A>, [a, b, c]: [usize; 3], how: Lower) {
    let space = lab.space();
    let (page, mark) = lab.marked(0);
    let target = Target { va: lab.va(62), page, another: lab.marked(1).0 };
    lab.store_through(c, &space, target.writable(), mark);
    let ((), mut down) = lab.begin_on(a, &space, |pmap, held, tables, down| {
        how.call(pmap, held, tables, target, down);
    });
    let was = lab.on(b, |_| {
        let (pmap, mut down) = (lab.machine.pmap(), Shootdown::new());
        let was = pmap.clear_modified(page, &mut down);
        down.flush(pmap);
        was
    });
    lab.expect(Law::P4, was, || {
        format!(
            "cpu {c} had stored to {page:?}; cpu {a} called {} for it; cpu {b} called \
             clear_modified, which was expected to say that the page was modified: it said no",
            how.name()
        )
    });
    lab.store(c, &space, target.va, LATE);
    let reached = lab.word(page) == LATE;
    let modified = lab.on(b, |_| lab.machine.pmap().is_modified(page));
    lab.expect(Law::P6, !reached || modified, || {
        format!(
            "cpu {c} had stored to {page:?} at {:?}; cpu {a} called {} and did not flush yet; cpu \
             {b} called clear_modified, which cleared the bit, and flushed; then a store of cpu \
             {c} arrived in the page, and is_modified says no",
            target.va,
            how.name()
        )
    });
    lab.flush_on(a, &mut down);
    lab.end(space);
}
