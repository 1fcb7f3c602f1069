//! Lists that once failed, as they were shrunk, and their neighbours.

use uvm_check::op::{At::*, Back::*, Inh, Kind, Op, Op::*, Span};
use uvm_check::run::run;
use uvm_check::world::{Memory, Setup, Watch};
use uvm_soft::Config;

fn check(list: &[Op]) {
    for watch in [Watch::Peek, Watch::Look] {
        if let Err(failure) = run(list, &Setup::new(Config::default(), watch)) {
            panic!("{failure}");
        }
    }
}

const PAGE: Span = Span(0, 1);

#[test]
fn a_remap_to_the_same_length_in_the_middle_of_a_mapping_stays() {
    check(&[
        Spawn { s: 1 },
        Map { s: 1, at: Fixed(35), len: 6, back: Zero, rights: 3, inherit: None },
        Remap { s: 1, span: Span(38, 1), new_len: 1, at: Hint(46) },
    ]);
}

#[test]
fn a_sharer_sees_the_first_store_to_an_objects_page() {
    check(&[
        Spawn { s: 2 },
        NewObject { o: 0, kind: Kind::Anon, len: 4 },
        Map {
            s: 2,
            at: Fixed(0),
            len: 4,
            back: Private(0, 0),
            rights: 3,
            inherit: Some(Inh::Share),
        },
        Fork { s: 2, child: 1 },
        Read { s: 2, page: 0, cpu: 0 },
        Write { s: 1, page: 0, cpu: 1, word: 1 },
    ]);
}

#[test]
fn a_sharer_sees_a_store_to_a_page_that_was_copied_for_a_third() {
    check(&[
        Spawn { s: 0 },
        Map { s: 0, at: Fixed(0), len: 1, back: Zero, rights: 3, inherit: Some(Inh::Share) },
        Write { s: 0, page: 0, cpu: 0, word: 0 },
        Fork { s: 0, child: 1 },
        Inherit { s: 1, span: PAGE, inherit: Inh::Copy },
        Fork { s: 1, child: 2 },
        Read { s: 0, page: 0, cpu: 0 },
        Write { s: 1, page: 0, cpu: 1, word: 1 },
    ]);
}

#[test]
fn wired_memory_without_access_is_wired_again_when_it_is_touched() {
    check(&[
        Spawn { s: 1 },
        Map { s: 1, at: Fixed(32), len: 3, back: Zero, rights: 0, inherit: None },
        Wire { s: 1, span: Span(32, 1) },
        Protect { s: 1, span: Span(32, 2), rights: 3 },
        Write { s: 1, page: 32, cpu: 0, word: 0 },
        Protect { s: 1, span: Span(32, 2), rights: 0 },
        Unwire { s: 1, span: Span(32, 1) },
    ]);
}

/// Like [`check`], with this many page frames and some swap.
fn check_small(frames: u32, list: &[Op]) {
    for watch in [Watch::Peek, Watch::Look] {
        let machine =
            Config { segments: vec![(machine::Pa(0x10_0000), frames)], ..Config::default() };
        let setup =
            Setup { swaps: [120, 40], memory: Memory::MayRunOut, ..Setup::new(machine, watch) };
        if let Err(failure) = run(list, &setup) {
            panic!("{frames} frames: {failure}");
        }
    }
}

#[test]
fn a_fork_that_finds_no_memory_begins_anew() {
    for frames in 16..32 {
        check_small(
            frames,
            &[
                Spawn { s: 0 },
                Map { s: 0, at: Any, len: 8, back: Zero, rights: 3, inherit: Some(Inh::Copy) },
                Wire { s: 0, span: Span(44, 3) },
                Map {
                    s: 0,
                    at: Fixed(3),
                    len: 3,
                    back: Zero,
                    rights: 3,
                    inherit: Some(Inh::Share),
                },
                Fork { s: 0, child: 1 },
                Fork { s: 1, child: 2 },
            ],
        );
    }
}

/// The page to be copied took the last frame but the copy's; the pass that made room for the copy
/// took it again.
#[test]
fn a_read_and_its_copy_do_not_chase_each_other() {
    for frames in 16..32 {
        check_small(
            frames,
            &[
                Spawn { s: 0 },
                Map { s: 0, at: Any, len: 6, back: Zero, rights: 3, inherit: Some(Inh::Copy) },
                Remap { s: 0, span: Span(47, 1), new_len: 8, at: Fixed(2) },
                NewObject { o: 1, kind: Kind::File, len: 12 },
                Map { s: 0, at: Fixed(12), len: 6, back: Zero, rights: 3, inherit: None },
                Wire { s: 0, span: Span(2, 4) },
                SwapOff { d: 0 },
                Map { s: 0, at: Fixed(20), len: 7, back: Private(1, 0), rights: 3, inherit: None },
                Write { s: 0, page: 20, cpu: 2, word: 0 },
                Write { s: 0, page: 21, cpu: 2, word: 0 },
            ],
        );
    }
}

/// A device that is being switched off takes no page. That it could not be emptied is no reason to
/// believe, once it is on again, that no page can leave memory.
#[test]
fn a_refused_swapoff_does_not_use_memory_up() {
    for frames in 18..28 {
        let mut list = vec![
            Spawn { s: 0 },
            Map { s: 0, at: Fixed(0), len: 24, back: Zero, rights: 3, inherit: None },
        ];
        let writes = |word| (0..24).map(move |page| Write { s: 0, page, cpu: 0, word });
        list.extend(writes(0));
        list.push(SwapOff { d: 0 });
        list.extend(writes(1));
        check_small(frames, &list);
    }
}

/// A device's frame that was pinned when its pager went has no owner then, and no free memory when
/// the pin goes.
#[test]
fn a_pinned_frame_of_a_device_outlives_its_pager() {
    check(&[
        Spawn { s: 0 },
        NewObject { o: 0, kind: Kind::Device, len: 4 },
        Map { s: 0, at: Fixed(0), len: 4, back: Shared(0, 0), rights: 3, inherit: None },
        Pin { p: 0, s: 0, span: Span(0, 2), access: 2 },
        Unmap { s: 0, span: Span(0, 4) },
        Detach { o: 0 },
        Unpin { p: 0, word: 0 },
        NewObject { o: 0, kind: Kind::Device, len: 4 },
        Map { s: 0, at: Fixed(0), len: 4, back: Shared(0, 0), rights: 3, inherit: None },
        Write { s: 0, page: 0, cpu: 0, word: 0 },
    ]);
}
