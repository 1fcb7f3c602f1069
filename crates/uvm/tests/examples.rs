//! The examples run, and their own assertions hold. Each has what they share, as it has in a
//! program of its own.
#![allow(clippy::duplicate_mod)]

#[path = "../examples/custom_pager.rs"]
mod custom_pager;
#[path = "../examples/fork_cow.rs"]
mod fork_cow;
#[path = "../examples/hosted.rs"]
mod hosted;
#[path = "../examples/paging.rs"]
mod paging;
#[path = "../examples/polled_faults.rs"]
mod polled_faults;

#[test]
fn fork_cow_says_what_it_copies() {
    fork_cow::main();
}

#[test]
fn custom_pager_makes_only_what_is_read() {
    custom_pager::main();
}

#[test]
fn hosted_serves_plain_pointers() {
    hosted::main();
}

#[test]
fn paging_brings_back_what_did_not_fit() {
    paging::main();
}

#[test]
fn polled_faults_do_not_wait_for_each_other() {
    polled_faults::main();
}
