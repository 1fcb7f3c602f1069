//! Every list of four operations over small alphabets: what chance might miss.

use uvm_check::gen::all_lists;
use uvm_check::host::Manner;
use uvm_check::op::{At::*, Back::*, Inh, Kind, Op, Op::*, Span};
use uvm_check::run::run_and_shrink;
use uvm_check::world::{Memory, Setup, Watch};
use uvm_soft::Config;

fn check_all(beginning: &[Op], alphabet: &[Op], watch: Watch) {
    let machine =
        Config { segments: vec![(machine::Pa(0x10_0000), 96)], cpus: 2, ..Config::default() };
    check_all_in(&Setup::new(machine, watch), beginning, alphabet);
}

/// 20 page frames, a device of few slots, and transfers that end when an operation says so or
/// a thread waits.
fn check_all_paging(beginning: &[Op], alphabet: &[Op]) {
    let machine =
        Config { segments: vec![(machine::Pa(0x10_0000), 20)], cpus: 2, ..Config::default() };
    let memory = Memory::MayRunOut;
    let setup =
        Setup { swaps: [12, 0], manner: Manner::Later, memory, ..Setup::new(machine, Watch::Peek) };
    check_all_in(&setup, beginning, alphabet);
}

fn check_all_in(setup: &Setup, beginning: &[Op], alphabet: &[Op]) {
    let mut lists = 0;
    for list in all_lists(beginning, alphabet, 4) {
        lists += 1;
        if let Err(failure) = run_and_shrink(&list, setup) {
            panic!("{failure}");
        }
    }
    println!("{lists} lists over {} operations", alphabet.len());
}

const PAIR: Span = Span(0, 2);

/// Private zeroes, one page of two written.
#[test]
fn all_lists_over_private_memory() {
    let beginning = [
        Spawn { s: 0 },
        Map { s: 0, at: Fixed(0), len: 2, back: Zero, rights: 3, inherit: None },
        Write { s: 0, page: 0, cpu: 0, word: 0 },
    ];
    let alphabet = [
        Fork { s: 0, child: 1 },
        Fork { s: 1, child: 2 },
        Exit { s: 0 },
        Exit { s: 1 },
        Write { s: 0, page: 0, cpu: 0, word: 1 },
        Write { s: 0, page: 1, cpu: 1, word: 1 },
        Write { s: 1, page: 0, cpu: 1, word: 2 },
        Write { s: 2, page: 0, cpu: 1, word: 2 },
        Read { s: 0, page: 0, cpu: 1 },
        Read { s: 1, page: 0, cpu: 0 },
        Unmap { s: 0, span: Span(1, 1) },
        Map { s: 0, at: Fixed(1), len: 2, back: Zero, rights: 3, inherit: None },
        Protect { s: 0, span: PAIR, rights: 1 },
        Protect { s: 0, span: Span(0, 1), rights: 3 },
        Inherit { s: 0, span: Span(0, 1), inherit: Inh::Share },
        Inherit { s: 0, span: PAIR, inherit: Inh::Zero },
        Inherit { s: 1, span: PAIR, inherit: Inh::Copy },
        Discard { s: 0, span: PAIR },
        Remap { s: 0, span: Span(0, 1), new_len: 2, at: Fixed(4) },
        Wire { s: 0, span: PAIR },
        Unwire { s: 0, span: Span(0, 1) },
        Write { s: 1, page: 1, cpu: 0, word: 3 },
        Unmap { s: 1, span: Span(0, 1) },
        Inherit { s: 1, span: PAIR, inherit: Inh::Share },
        Discard { s: 1, span: PAIR },
        Advise { s: 0, span: PAIR, advice: 1 },
        Execute { s: 0, page: 0, cpu: 0 },
        Clear { s: 0 },
        Forget,
    ];
    check_all(&beginning, &alphabet, Watch::Peek);
}

/// A file: pages that come later, that can't be read, that are written back and dropped.
#[test]
fn all_lists_over_a_file() {
    let beginning = [
        Spawn { s: 0 },
        NewObject { o: 0, kind: Kind::File, len: 6 },
        Map { s: 0, at: Fixed(0), len: 4, back: Private(0, 3), rights: 3, inherit: None },
        Map { s: 0, at: Fixed(4), len: 4, back: Shared(0, 3), rights: 3, inherit: None },
    ];
    let alphabet = [
        Fork { s: 0, child: 1 },
        Read { s: 0, page: 0, cpu: 0 },
        Read { s: 0, page: 2, cpu: 0 },
        Read { s: 1, page: 4, cpu: 1 },
        Write { s: 0, page: 0, cpu: 0, word: 0 },
        Write { s: 0, page: 2, cpu: 0, word: 0 },
        Write { s: 0, page: 4, cpu: 1, word: 1 },
        Write { s: 0, page: 5, cpu: 1, word: 1 },
        Write { s: 1, page: 4, cpu: 1, word: 1 },
        Write { s: 1, page: 1, cpu: 1, word: 1 },
        Sync { o: 0 },
        Truncate { o: 0, len: 4 },
        Truncate { o: 0, len: 6 },
        ObjectWrite { o: 0, page: 3, word: 2 },
        ObjectRead { o: 0, page: 5 },
        Wire { s: 0, span: Span(4, 2) },
        Wire { s: 0, span: Span(4, 3) },
        Unwire { s: 0, span: Span(4, 2) },
        Protect { s: 0, span: Span(4, 2), rights: 1 },
        Unmap { s: 0, span: Span(5, 1) },
        Discard { s: 0, span: Span(0, 3) },
        Detach { o: 0 },
        Inherit { s: 0, span: Span(4, 2), inherit: Inh::Copy },
        Exit { s: 0 },
    ];
    check_all(&beginning, &alphabet, Watch::Peek);
}

/// An object mapped private at page 0 and shared at page 4.
#[test]
fn all_lists_over_an_object() {
    let beginning = [
        Spawn { s: 0 },
        NewObject { o: 0, kind: Kind::Anon, len: 2 },
        Map { s: 0, at: Fixed(0), len: 2, back: Private(0, 0), rights: 3, inherit: None },
        Map { s: 0, at: Fixed(4), len: 2, back: Shared(0, 0), rights: 3, inherit: None },
    ];
    let alphabet = [
        Fork { s: 0, child: 1 },
        Exit { s: 0 },
        Write { s: 0, page: 0, cpu: 0, word: 0 },
        Write { s: 0, page: 4, cpu: 0, word: 1 },
        Write { s: 1, page: 0, cpu: 1, word: 2 },
        Write { s: 1, page: 4, cpu: 1, word: 3 },
        Read { s: 0, page: 0, cpu: 1 },
        Read { s: 1, page: 1, cpu: 0 },
        Read { s: 1, page: 5, cpu: 0 },
        ObjectWrite { o: 0, page: 0, word: 0 },
        Truncate { o: 0, len: 0 },
        Truncate { o: 0, len: 2 },
        Detach { o: 0 },
        Unmap { s: 0, span: Span(5, 1) },
        Protect { s: 0, span: Span(4, 2), rights: 1 },
        Inherit { s: 0, span: PAIR, inherit: Inh::Share },
        Inherit { s: 0, span: Span(4, 2), inherit: Inh::Copy },
        Discard { s: 0, span: PAIR },
        Remap { s: 0, span: Span(4, 1), new_len: 3, at: Any },
        Wire { s: 0, span: Span(4, 2) },
        Fork { s: 1, child: 2 },
        Write { s: 2, page: 0, cpu: 1, word: 2 },
        Write { s: 0, page: 1, cpu: 1, word: 2 },
        Discard { s: 1, span: PAIR },
        Inherit { s: 1, span: PAIR, inherit: Inh::Share },
        Inherit { s: 0, span: PAIR, inherit: Inh::Zero },
        ObjectRead { o: 0, page: 1 },
        Exit { s: 1 },
        Forget,
    ];
    check_all(&beginning, &alphabet, Watch::Peek);
}

/// Two pages that go out and come in.
#[test]
fn all_lists_over_pages_on_swap() {
    let beginning = [
        Spawn { s: 0 },
        Map { s: 0, at: Fixed(0), len: 2, back: Zero, rights: 3, inherit: None },
        Write { s: 0, page: 0, cpu: 0, word: 0 },
        Write { s: 0, page: 1, cpu: 0, word: 0 },
        PageOut { n: 16 },
    ];
    let alphabet = [
        PageOut { n: 16 },
        CompleteIo { k: 0 },
        FailIo { k: 0 },
        SwapOff { d: 0 },
        Read { s: 0, page: 0, cpu: 0 },
        Write { s: 0, page: 0, cpu: 1, word: 1 },
        Write { s: 0, page: 1, cpu: 0, word: 1 },
        Fork { s: 0, child: 1 },
        Write { s: 1, page: 0, cpu: 1, word: 2 },
        Read { s: 1, page: 1, cpu: 0 },
        Unmap { s: 0, span: Span(1, 1) },
        Discard { s: 0, span: Span(0, 1) },
        Wire { s: 0, span: Span(0, 1) },
        Exit { s: 0 },
        Exit { s: 1 },
    ];
    check_all_paging(&beginning, &alphabet);
}

/// Two pages go into zram, out of it and on to a device, while it comes, goes and
/// has little room.
#[test]
fn all_lists_over_pages_in_zram() {
    let beginning = [
        Zram { percent: 1 },
        Spawn { s: 0 },
        Map { s: 0, at: Fixed(0), len: 2, back: Zero, rights: 3, inherit: None },
        Write { s: 0, page: 0, cpu: 0, word: 0 },
        PageOut { n: 16 },
        Write { s: 0, page: 1, cpu: 0, word: 0 },
    ];
    let alphabet = [
        PageOut { n: 16 },
        CompleteIo { k: 0 },
        FailIo { k: 0 },
        Zram { percent: 0 },
        Zram { percent: 50 },
        SwapOff { d: 0 },
        Read { s: 0, page: 0, cpu: 0 },
        Write { s: 0, page: 0, cpu: 1, word: 1 },
        Write { s: 0, page: 1, cpu: 0, word: 1 },
        Fork { s: 0, child: 1 },
        Write { s: 1, page: 0, cpu: 1, word: 2 },
        Discard { s: 0, span: Span(0, 1) },
        Wire { s: 0, span: Span(0, 1) },
        Exit { s: 0 },
        Exit { s: 1 },
    ];
    check_all_paging(&beginning, &alphabet);
}

/// A file's pages and a private copy go out and come in, and the file is cut and written meanwhile.
#[test]
fn all_lists_over_a_file_whose_pages_go() {
    let beginning = [
        Spawn { s: 0 },
        NewObject { o: 0, kind: Kind::File, len: 3 },
        Map { s: 0, at: Fixed(0), len: 2, back: Shared(0, 0), rights: 3, inherit: None },
        Map { s: 0, at: Fixed(4), len: 2, back: Private(0, 0), rights: 3, inherit: None },
        Write { s: 0, page: 0, cpu: 0, word: 0 },
        Write { s: 0, page: 5, cpu: 0, word: 0 },
        PageOut { n: 16 },
    ];
    let alphabet = [
        PageOut { n: 16 },
        CompleteIo { k: 0 },
        FailIo { k: 0 },
        Read { s: 0, page: 0, cpu: 0 },
        Read { s: 0, page: 5, cpu: 0 },
        Write { s: 0, page: 0, cpu: 1, word: 1 },
        Write { s: 0, page: 4, cpu: 1, word: 1 },
        Clean { o: 0, span: Span(0, 2) },
        Punch { o: 0, span: Span(0, 1) },
        Truncate { o: 0, len: 0 },
        Truncate { o: 0, len: 3 },
        ObjectWrite { o: 0, page: 1, word: 2 },
        Unmap { s: 0, span: Span(0, 1) },
        Fork { s: 0, child: 1 },
        Write { s: 1, page: 0, cpu: 1, word: 2 },
        Exit { s: 0 },
    ];
    check_all_paging(&beginning, &alphabet);
}

/// Holes of a file on a disk that is full, or has room for a page: which stores find room, and what
/// becomes of them.
#[test]
fn all_lists_over_a_file_with_holes() {
    let beginning = [
        Spawn { s: 0 },
        NewObject { o: 0, kind: Kind::File, len: 3 },
        Map { s: 0, at: Fixed(0), len: 2, back: Shared(0, 0), rights: 3, inherit: None },
        Map { s: 0, at: Fixed(4), len: 2, back: Private(0, 0), rights: 3, inherit: None },
        Punch { o: 0, span: Span(0, 2) },
        Room { n: 1 },
    ];
    let alphabet = [
        PageOut { n: 16 },
        CompleteIo { k: 0 },
        FailIo { k: 0 },
        Read { s: 0, page: 0, cpu: 0 },
        Write { s: 0, page: 0, cpu: 1, word: 1 },
        Write { s: 0, page: 1, cpu: 1, word: 1 },
        Write { s: 0, page: 4, cpu: 1, word: 1 },
        Wire { s: 0, span: Span(0, 2) },
        Pin { p: 0, s: 0, span: Span(0, 2), access: 2 },
        Loan { l: 0, s: 0, span: Span(0, 1) },
        Clean { o: 0, span: Span(0, 2) },
        Punch { o: 0, span: Span(0, 1) },
        Room { n: 0 },
        ObjectWrite { o: 0, page: 1, word: 2 },
    ];
    check_all_paging(&beginning, &alphabet);
}

/// Objects in memory that share a quota, of which pages are left for some only: which stores may
/// make one, what gives one back, and that none is lost or counted twice while pages come and go.
#[test]
fn all_lists_over_objects_within_a_quota() {
    let beginning = [
        Spawn { s: 0 },
        NewObject { o: 0, kind: Kind::Within, len: 3 },
        NewObject { o: 1, kind: Kind::Within, len: 2 },
        Map { s: 0, at: Fixed(0), len: 3, back: Shared(0, 0), rights: 3, inherit: None },
        Map { s: 0, at: Fixed(4), len: 2, back: Private(1, 0), rights: 3, inherit: None },
        Quota { n: 2 },
    ];
    let alphabet = [
        PageOut { n: 16 },
        CompleteIo { k: 0 },
        FailIo { k: 0 },
        Read { s: 0, page: 0, cpu: 0 },
        Write { s: 0, page: 1, cpu: 1, word: 1 },
        Write { s: 0, page: 4, cpu: 1, word: 1 },
        Wire { s: 0, span: Span(0, 3) },
        Pin { p: 0, s: 0, span: Span(0, 2), access: 2 },
        Loan { l: 0, s: 0, span: Span(0, 1) },
        ObjectWrite { o: 1, page: 1, word: 2 },
        Punch { o: 0, span: Span(0, 2) },
        Truncate { o: 0, len: 1 },
        Quota { n: 1 },
        Detach { o: 1 },
        Unmap { s: 0, span: Span(4, 2) },
        Exit { s: 0 },
    ];
    check_all_paging(&beginning, &alphabet);
}

/// Pages of a device and a private one that a device transfers to: each may go, be copied or be
/// written meanwhile.
#[test]
fn all_lists_over_pinned_pages() {
    let beginning = [
        Spawn { s: 0 },
        NewObject { o: 0, kind: Kind::Device, len: 2 },
        Map { s: 0, at: Fixed(0), len: 2, back: Shared(0, 0), rights: 3, inherit: None },
        Map { s: 0, at: Fixed(2), len: 2, back: Zero, rights: 3, inherit: None },
        Detach { o: 0 },
    ];
    let alphabet = [
        Pin { p: 0, s: 0, span: Span(1, 2), access: 2 },
        Pin { p: 1, s: 0, span: PAIR, access: 1 },
        Unpin { p: 0, word: 1 },
        Unpin { p: 1, word: 1 },
        Unmap { s: 0, span: Span(0, 3) },
        Exit { s: 0 },
        Fork { s: 0, child: 1 },
        Write { s: 0, page: 1, cpu: 0, word: 0 },
        Write { s: 0, page: 2, cpu: 1, word: 0 },
        Write { s: 1, page: 2, cpu: 1, word: 0 },
        Wire { s: 0, span: Span(1, 2) },
        WireTouched { s: 0, span: Span(1, 2) },
        Unwire { s: 0, span: Span(1, 2) },
        Discard { s: 0, span: Span(2, 1) },
        Protect { s: 0, span: Span(1, 2), rights: 1 },
        NewObject { o: 1, kind: Kind::Device, len: 2 },
        Map { s: 0, at: Fixed(1), len: 1, back: Nothing, rights: 0, inherit: None },
        Map { s: 0, at: Fixed(1), len: 1, back: Shared(1, 0), rights: 3, inherit: None },
        Remap { s: 0, span: Span(2, 1), new_len: 1, at: Fixed(4) },
        Forget,
    ];
    check_all(&beginning, &alphabet, Watch::Peek);
}

/// A debugger looks into and changes a file's page that is mapped private at page 0 and shared at
/// page 1, and a page of zeroes at page 2, none of which the program may write.
#[test]
fn all_lists_over_a_debugger() {
    let beginning = [
        Spawn { s: 0 },
        NewObject { o: 0, kind: Kind::File, len: 2 },
        Map { s: 0, at: Fixed(0), len: 1, back: Private(0, 0), rights: 1, inherit: None },
        Map { s: 0, at: Fixed(1), len: 1, back: Shared(0, 0), rights: 1, inherit: None },
        Map { s: 0, at: Fixed(2), len: 1, back: Zero, rights: 0, inherit: None },
    ];
    let alphabet = [
        Inspect { s: 0, span: Span(0, 3) },
        Inspect { s: 1, span: Span(2, 1) },
        Patch { s: 0, span: Span(0, 1), word: 0 },
        Patch { s: 0, span: PAIR, word: 1 },
        Patch { s: 0, span: Span(2, 1), word: 2 },
        Patch { s: 1, span: Span(0, 1), word: 3 },
        Patch { s: 1, span: Span(2, 1), word: 3 },
        Read { s: 0, page: 0, cpu: 1 },
        Write { s: 0, page: 1, cpu: 1, word: 0 },
        ObjectWrite { o: 0, page: 0, word: 2 },
        Protect { s: 0, span: Span(0, 3), rights: 3 },
        Protect { s: 0, span: Span(0, 3), rights: 1 },
        Inherit { s: 0, span: Span(0, 3), inherit: Inh::Share },
        Fork { s: 0, child: 1 },
        Exit { s: 0 },
        Wire { s: 0, span: Span(0, 3) },
        Loan { l: 0, s: 0, span: Span(0, 1) },
        Pin { p: 0, s: 0, span: Span(0, 1), access: 1 },
        Unpin { p: 0, word: 3 },
        Clean { o: 0, span: PAIR },
        Discard { s: 0, span: Span(0, 3) },
        Truncate { o: 0, len: 0 },
        Map { s: 0, at: Fixed(1), len: 1, back: Nothing, rights: 0, inherit: None },
    ];
    check_all(&beginning, &alphabet, Watch::Peek);
}

/// Loans of private and shared pages, while lenders write, fork, share and go.
#[test]
fn all_lists_over_loaned_pages() {
    let beginning = [
        Spawn { s: 0 },
        NewObject { o: 0, kind: Kind::Anon, len: 2 },
        Map { s: 0, at: Fixed(0), len: 1, back: Zero, rights: 3, inherit: None },
        Map { s: 0, at: Fixed(1), len: 1, back: Shared(0, 0), rights: 3, inherit: None },
        Write { s: 0, page: 0, cpu: 0, word: 0 },
        Write { s: 0, page: 1, cpu: 0, word: 0 },
    ];
    let alphabet = [
        Loan { l: 0, s: 0, span: PAIR },
        Loan { l: 1, s: 0, span: Span(0, 1) },
        Give { l: 1, s: 0, span: PAIR },
        Loan { l: 1, s: 1, span: PAIR },
        LoanObject { l: 1, o: 0, span: PAIR },
        LoanAgain { l: 0, to: 2 },
        Return { l: 0 },
        Return { l: 1 },
        Write { s: 0, page: 0, cpu: 0, word: 1 },
        Write { s: 0, page: 1, cpu: 1, word: 1 },
        Write { s: 1, page: 0, cpu: 1, word: 2 },
        Write { s: 1, page: 1, cpu: 0, word: 2 },
        Read { s: 0, page: 0, cpu: 1 },
        Read { s: 0, page: 1, cpu: 0 },
        ObjectWrite { o: 0, page: 0, word: 3 },
        Truncate { o: 0, len: 0 },
        Fork { s: 0, child: 1 },
        Inherit { s: 0, span: PAIR, inherit: Inh::Share },
        Exit { s: 0 },
        Unmap { s: 0, span: Span(0, 1) },
        Discard { s: 0, span: PAIR },
        Wire { s: 0, span: PAIR },
        Pin { p: 0, s: 0, span: PAIR, access: 2 },
        Unpin { p: 0, word: 3 },
        Protect { s: 0, span: PAIR, rights: 1 },
        Map { s: 0, at: Fixed(0), len: 1, back: Private(0, 0), rights: 3, inherit: None },
        Detach { o: 0 },
        Forget,
    ];
    check_all(&beginning, &alphabet, Watch::Look);
}

/// Like the test above, where pages leave memory.
#[test]
fn all_lists_over_loaned_pages_that_were_on_swap() {
    let beginning = [
        Spawn { s: 0 },
        Map { s: 0, at: Fixed(0), len: 2, back: Zero, rights: 3, inherit: None },
        Write { s: 0, page: 0, cpu: 0, word: 0 },
        Write { s: 0, page: 1, cpu: 0, word: 0 },
        PageOut { n: 2 },
    ];
    let alphabet = [
        Loan { l: 0, s: 0, span: PAIR },
        Loan { l: 1, s: 1, span: Span(0, 1) },
        Give { l: 1, s: 0, span: PAIR },
        LoanAgain { l: 0, to: 2 },
        Return { l: 0 },
        PageOut { n: 1 },
        PageOut { n: 2 },
        CompleteIo { k: 0 },
        Write { s: 0, page: 0, cpu: 0, word: 1 },
        Write { s: 1, page: 0, cpu: 1, word: 2 },
        Read { s: 0, page: 1, cpu: 0 },
        Fork { s: 0, child: 1 },
        Exit { s: 0 },
        Discard { s: 0, span: Span(0, 1) },
        Wire { s: 0, span: Span(0, 1) },
        SwapOff { d: 0 },
        SwapOn { d: 0 },
        Forget,
    ];
    check_all_paging(&beginning, &alphabet);
}
