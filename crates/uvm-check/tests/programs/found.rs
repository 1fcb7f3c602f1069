//! Programs that no order explained once, each with the bug that it found. They run under many
//! schedules.

use uvm_check::op::{At::*, Back::*, Inh, Kind, Op, Op::*, Span, Way};

use crate::program::{Program, THREADS};
use crate::run;

/// Schedules of each kind for one program.
const SCHEDULES: usize = 3000;

/// A program over a space, an anonymous object 0 and a file 1.
fn program(then: &[Op], threads: [&[Op]; THREADS]) -> Program {
    let mut beginning = vec![
        SwapOn { d: 0 },
        Spawn { s: 0 },
        NewObject { o: 0, kind: Kind::Anon, len: 4 },
        NewObject { o: 1, kind: Kind::File, len: 4 },
    ];
    beginning.extend(then);
    Program { beginning, opens_locks: false, threads: threads.map(<[Op]>::to_vec) }
}

fn explain(program: &Program) {
    run(program, 1, SCHEDULES).unwrap_or_else(|why| panic!("{program:?}\n{why}"));
}

/// A clean page was dropped from memory while another CPU could still store to it: an unmapping had
/// taken its translation from the tables, and not flushed that CPU yet.
#[test]
fn a_page_is_dropped_as_it_is_unmapped() {
    let map = |first| Map {
        s: 0,
        at: Fixed(0),
        len: 2,
        back: Shared(1, first),
        rights: 3,
        inherit: None,
    };
    explain(&program(
        &[map(0), Read { s: 0, page: 1, cpu: 2 }],
        [&[Sync { o: 1 }], &[Write { s: 0, page: 1, cpu: 1, word: 0 }], &[map(1)]],
    ));
}

/// A page was cleaned while another CPU could still store to it by a translation that had left the
/// tables: nothing marked it as modified again, and the store was never written to the file.
#[test]
fn a_page_is_cleaned_as_it_is_unmapped() {
    let map =
        |s, rights| Map { s, at: Fixed(0), len: 4, back: Shared(1, 1), rights, inherit: None };
    explain(&program(
        &[map(0, 3), Spawn { s: 1 }, map(1, 1), Write { s: 0, page: 0, cpu: 1, word: 0 }],
        [
            &[Unmap { s: 0, span: Span(0, 1) }],
            &[Write { s: 0, page: 0, cpu: 1, word: 0 }],
            &[PageOutRange { s: 1, span: Span(0, 4) }],
        ],
    ));
}

/// A fork copied a wired page before it took the right to write from the other pages: the child had
/// a later store and not an earlier one.
#[test]
fn a_fork_of_wired_memory_is_one_moment() {
    let write = |page, word| Write { s: 0, page, cpu: 2, word };
    let map = Map { s: 0, at: Fixed(0), len: 4, back: Zero, rights: 7, inherit: None };
    explain(&program(
        &[map, Wire { s: 0, span: Span(2, 1) }, write(3, 3)],
        [&[], &[Fork { s: 0, child: 3 }], &[write(2, 3), write(3, 0)]],
    ));
}

/// A fault mapped a neighbour along, writable, whose page was loaned, transferred and shared by a
/// fork between the fault's look at the anon and the entry: the lender's later stores showed in two
/// other programs.
#[test]
fn a_neighbour_is_mapped_along_as_it_is_shared() {
    let write = |page| Write { s: 0, page, cpu: 2, word: 0 };
    let map = |s| Map { s, at: Fixed(0), len: 4, back: Zero, rights: 3, inherit: None };
    let program = program(
        &[map(0), write(0), write(1), Spawn { s: 1 }, map(1), Forget],
        [
            &[Read { s: 0, page: 0, cpu: 0 }, Write { s: 0, page: 1, cpu: 0, word: 0 }],
            &[
                Loan { l: 1, s: 0, span: Span(1, 1) },
                Transfer { l: 1, s: 1, page: 1 },
                Fork { s: 1, child: 3 },
            ],
            &[],
        ],
    );
    explain(&Program { opens_locks: true, ..program });
}

/// A fork gave its child a copy of a page that the parent rewrites, mapped, though the mapping
/// allowed no access by then.
#[test]
fn a_fork_copies_what_no_access_is_allowed_to() {
    let map = Map { s: 0, at: Fixed(0), len: 4, back: Zero, rights: 7, inherit: None };
    let write = Write { s: 0, page: 0, cpu: 0, word: 3 };
    explain(&program(
        &[
            map,
            write,
            Fork { s: 0, child: 2 },
            write,
            Protect { s: 0, span: Span(0, 2), rights: 0 },
        ],
        [&[Fork { s: 0, child: 3 }], &[], &[]],
    ));
}

/// A write-back took the mark of a leaf away while a CPU could still store to a page of it, by a
/// translation that had left the tables: later write-backs passed the store over.
#[test]
fn a_leaf_loses_its_mark_as_its_page_is_unmapped() {
    let map = |first| Map {
        s: 0,
        at: Fixed(1),
        len: 2,
        back: Shared(1, first),
        rights: 3,
        inherit: None,
    };
    explain(&program(
        &[map(0), Read { s: 0, page: 1, cpu: 1 }],
        [
            &[map(1)],
            &[Write { s: 0, page: 1, cpu: 1, word: 3 }],
            &[Clean { o: 1, span: Span(0, 4) }],
        ],
    ));
}

/// A child's discard left a page that its parent had unmapped by then: the parent's reference to
/// the amap was still there, and what is shared stays.
#[test]
fn a_child_discards_as_its_parent_unmaps() {
    let map = Map { s: 0, at: Fixed(0), len: 4, back: Zero, rights: 3, inherit: Some(Inh::Share) };
    let write = Write { s: 0, page: 0, cpu: 0, word: 3 };
    explain(&program(
        &[map, write, Fork { s: 0, child: 3 }],
        [&[write, Discard { s: 3, span: Span(0, 2) }], &[Unmap { s: 0, span: Span(0, 2) }], &[]],
    ));
}

/// A child's discard found its first page shared still, and its second one not any more: another
/// part of its map had the second, since the two are inherited otherwise, and its parent passed
/// other memory over both in between.
#[test]
fn a_child_discards_in_parts_as_its_parent_passes() {
    let map = Map { s: 0, at: Fixed(0), len: 4, back: Zero, rights: 3, inherit: Some(Inh::Share) };
    let write = |page| Write { s: 0, page, cpu: 0, word: 3 };
    let inherit = Inherit { s: 3, span: Span(1, 1), inherit: Inh::Copy };
    let pass = Pass { s: 0, span: Span(3, 2), to: 0, at: Fixed(0), way: Way::Share };
    explain(&program(
        &[map, Fork { s: 0, child: 3 }, write(1), write(0)],
        [&[inherit, pass], &[Discard { s: 3, span: Span(0, 2) }], &[]],
    ));
}

/// A store copied a file's page for a private mapping before other CPUs had forgotten it there:
/// another thread loaded a later store to the file, and the older copy afterwards.
#[test]
fn a_private_copy_is_older_than_what_was_loaded() {
    let map = |first, back| Map { s: 0, at: Fixed(first), len: 1, back, rights: 3, inherit: None };
    let write = |page, cpu, word| Write { s: 0, page, cpu, word };
    let read = Read { s: 0, page: 2, cpu: 2 };
    explain(&program(
        &[map(0, Shared(1, 0)), map(2, Private(1, 0)), write(0, 1, 0), read],
        [&[write(2, 0, 3)], &[write(0, 1, 0)], &[read]],
    ));
}

/// A loan of a file's page through a private mapping had a store to the file that was made after
/// the mapping's end: the lender's CPUs were flushed only when the map could change already.
#[test]
fn a_loan_has_no_store_that_follows_its_mapping() {
    let map =
        |len, first, back| Map { s: 0, at: Fixed(first), len, back, rights: 3, inherit: None };
    let write = Write { s: 0, page: 0, cpu: 2, word: 3 };
    explain(&program(
        &[map(2, 0, Shared(1, 0)), map(1, 3, Private(1, 0)), write],
        [&[], &[Loan { l: 1, s: 0, span: Span(3, 1) }], &[Unmap { s: 0, span: Span(3, 1) }, write]],
    ));
}

/// Like the test above, of pages that are given.
#[test]
fn a_gift_has_no_store_that_follows_its_mapping() {
    let map = |s, len, back| Map { s, at: Fixed(0), len, back, rights: 3, inherit: None };
    let write = Write { s: 0, page: 0, cpu: 2, word: 3 };
    explain(&program(
        &[map(0, 2, Shared(1, 0)), Spawn { s: 1 }, map(1, 2, Private(1, 0))],
        [&[], &[Give { l: 1, s: 1, span: Span(0, 1) }], &[write, map(1, 4, Zero), write]],
    ));
}

/// A hole was punched, and another thread saw its zeroes, while a third still stored to the page
/// that was there: its store was lost.
#[test]
fn a_hole_is_seen_as_it_is_punched() {
    let map = Map { s: 0, at: Fixed(0), len: 4, back: Shared(0, 1), rights: 7, inherit: None };
    let write = |word| Write { s: 0, page: 0, cpu: 0, word };
    explain(&program(
        &[map, write(3)],
        [
            &[write(0)],
            &[Give { l: 1, s: 0, span: Span(0, 1) }],
            &[Punch { o: 0, span: Span(1, 1) }],
        ],
    ));
}

/// A truncation returned while a CPU still loaded from a page that another thread's hole had taken
/// out of the object, and that CPU not flushed yet.
#[test]
fn an_object_is_cut_off_as_a_hole_is_punched() {
    let map = Map { s: 0, at: Fixed(0), len: 2, back: Private(0, 1), rights: 1, inherit: None };
    let read = Read { s: 0, page: 0, cpu: 2 };
    explain(&program(
        &[map, read],
        [&[Punch { o: 0, span: Span(1, 1) }], &[], &[Truncate { o: 0, len: 1 }, read]],
    ));
}

/// Two maps that shared an amap grew by one more mapping each at once: both took the slots behind
/// what they shared, and one's end would have given up the other's pages.
#[test]
fn maps_that_share_an_amap_grow_apart() {
    let map = |s, at, len| Map { s, at, len, back: Zero, rights: 3, inherit: Some(Inh::Share) };
    explain(&Program {
        opens_locks: true,
        ..program(
            &[map(0, Fixed(0), 2)],
            [&[Fork { s: 0, child: 2 }, map(2, Free(2), 4)], &[map(0, Free(2), 4)], &[]],
        )
    });
}

/// A mapping that moved was not locked in memory until its pages were there again: a transfer took
/// its place.
#[test]
fn a_locked_mapping_stays_locked_as_it_moves() {
    let map = Map { s: 0, at: Fixed(0), len: 4, back: Private(1, 1), rights: 3, inherit: None };
    explain(&program(
        &[map],
        [
            &[],
            &[LoanObject { l: 1, o: 1, span: Span(2, 1) }, Transfer { l: 1, s: 0, page: 2 }],
            &[Wire { s: 0, span: Span(0, 1) }, RemapKeep { s: 0, span: Span(0, 1), at: Fixed(2) }],
        ],
    ));
}

/// A read fault entered a loaned page read-only over a translation that a CPU could still store by,
/// and the port didn't count that; the lender found nothing left to lower, and its loan was there
/// before that CPU was flushed.
#[test]
fn a_page_is_loaned_as_it_is_first_touched() {
    let map = Map { s: 0, at: Fixed(0), len: 2, back: Zero, rights: 3, inherit: Some(Inh::Share) };
    let write = |cpu| Write { s: 0, page: 1, cpu, word: 0 };
    let read = |cpu| Read { s: 0, page: 1, cpu };
    let program = program(
        &[map, write(2)],
        [
            &[read(0), Loan { l: 0, s: 0, span: Span(1, 1) }, write(0)],
            &[read(1)],
            &[LoanObject { l: 2, o: 0, span: Span(3, 1) }, Transfer { l: 2, s: 0, page: 1 }],
        ],
    );
    explain(&Program { opens_locks: true, ..program });
}

/// A discard left a page whose other holder had just had the address passed something else: the
/// other's reference to the memory goes after the address.
#[test]
fn a_range_is_passed_as_it_is_discarded() {
    let map = Map {
        s: 0,
        at: Fixed(0),
        len: 4,
        back: Private(0, 1),
        rights: 7,
        inherit: Some(Inh::Share),
    };
    let write = |s, cpu| Write { s, page: 2, cpu, word: 3 };
    explain(&program(
        &[map, Fork { s: 0, child: 1 }],
        [
            &[Pass { s: 0, span: Span(0, 2), to: 1, at: Fixed(1), way: Way::Share }],
            &[write(0, 1)],
            &[write(1, 2), Discard { s: 0, span: Span(1, 2) }],
        ],
    ));
}

/// A fault found no entry, and so did a loan, while an unmapping had taken the entry and not the
/// translations yet: afterwards its thread could still read the page, and another write it.
#[test]
fn a_hole_is_seen_as_it_is_made() {
    let file = Map { s: 0, at: Fixed(0), len: 4, back: Shared(1, 0), rights: 1, inherit: None };
    explain(&program(
        &[file, Wire { s: 0, span: Span(0, 1) }],
        [
            &[Unmap { s: 0, span: Span(0, 2) }],
            &[],
            &[Write { s: 0, page: 0, cpu: 2, word: 0 }, Read { s: 0, page: 0, cpu: 2 }],
        ],
    ));
    let zeroes = Map { s: 0, at: Fixed(1), len: 2, back: Zero, rights: 7, inherit: None };
    explain(&program(
        &[zeroes, Wire { s: 0, span: Span(2, 1) }],
        [
            &[Loan { l: 0, s: 0, span: Span(2, 1) }],
            &[Write { s: 0, page: 2, cpu: 1, word: 3 }],
            &[Unmap { s: 0, span: Span(2, 2) }],
        ],
    ));
}
