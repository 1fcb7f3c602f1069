//! Bugs planted in the library: each must be found by the model run, or the run proves nothing
//! about what it guards.
//!
//! A plant is a change of its text, made in a copy of the crates under `target/plants`, which is
//! built and tested there: the library itself carries no hook. A plant whose text is no longer
//! found fails here, in every run of the tests, so that the list follows the code.
//!
//! `cargo test -p uvm-check --test plants -- --ignored` (ten minutes; `./uvm test --long` runs it).
//! `UVM_PLANT=words` runs those plants alone whose description has the words.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

struct Plant {
    /// What is broken.
    what: &'static str,
    /// Under `crates/`.
    file: &'static str,
    /// Texts that stand there once, and what takes their place.
    changes: &'static [(&'static str, &'static str)],
    /// The tests that must find it: arguments for `cargo test`, of `uvm-check` unless they name
    /// another package.
    found_by: &'static [&'static str],
}

const RANDOM: &[&str] = &["--test", "model", "random"];
const PAGING: &[&str] = &["--test", "model", "most_pages"];
const FORK_COPIES: &[&str] = &["-p", "uvm-vm", "--test", "maps", "a_fork_copies_few_pages"];
const FORK_AGAIN: &[&str] = &["-p", "uvm-vm", "--test", "paging", "a_fork_of_wired_memory"];
const COMES_FOR_IT: &[&str] =
    &["--features", "shuttle", "--test", "schedules", "let_go_as_the_page_daemon_comes_for_it"];
const LET_GO_BESIDE: &[&str] = &[
    "--features",
    "shuttle",
    "--test",
    "schedules",
    "a_neighbour_is_let_go_as_it_is_mapped_ahead",
];
const RENEWED: &[&str] = &["-p", "uvm-vm", "--test", "paging", "a_new_page_is_not_taken"];
const FORGETTING: &[&str] = &["-p", "uvm-soft", "--test", "mmu", "what_a_cpu_is_about_to_forget"];
const LINE: &[&str] =
    &["--features", "shuttle", "--test", "schedules", "who_comes_to_the_line_as_another_leaves"];
const LINE_ENDED: &[&str] =
    &["--features", "shuttle", "--test", "schedules", "who_is_ended_as_its_turn_comes_hands_it_on"];
const LINE_EARLY: &[&str] =
    &["--features", "shuttle", "--test", "schedules", "who_wakes_up_early_takes_no_turn"];
const FREED_LAZILY: &[&str] = &["-p", "uvm-vm", "--test", "paging", "freed_lazily"];
const LARGE: &[&str] = &["-p", "uvm-vm", "--test", "spaces", "many_"];
const MOVING: &[&str] = &["-p", "uvm-vm", "--test", "moving"];
const GIVEN_BACK: &[&str] = &["-p", "uvm-vm", "--test", "paging", "what_was_given_back_before"];
const CLAIMS: &[&str] = &["--features", "shuttle", "--test", "schedules", "claims"];
const DECISION: &[&str] = &["-p", "uvm-vm", "--lib", "decision"];
const FULL: &[&str] = &["-p", "uvm-vm", "--test", "paging", "a_full_machine_refuses"];
const FEW: &[&str] = &["-p", "uvm-vm", "--test", "paging", "a_few_frames"];
const LET_GO: &[&str] = &["-p", "uvm-vm", "--test", "paging", "pages_that_are_let_go"];
const TRANSFERRED: &[&str] = &["-p", "uvm-vm", "--test", "paging", "what_was_transferred_leaves"];
const RETURNED: &[&str] = &["-p", "uvm-vm", "--test", "paging", "pages_that_are_returned"];
const READ_BACK: &[&str] = &["-p", "uvm-vm", "--test", "paging", "what_was_read_back"];
const WRITTEN_LAST: &[&str] =
    &["-p", "uvm-vm", "--test", "paging", "that_the_last_pass_has_written"];
const RESERVE: &[&str] = &["-p", "uvm-vm", "--test", "paging", "the_reserve_is_filled"];
const MERGES: &[&str] =
    &["--features", "shuttle", "--test", "schedules", "an_entry_merges_with_one_that_has_an_amap"];
const DEVICE: &[&str] =
    &["--features", "shuttle", "--test", "schedules", "a_device_is_unmapped_beside_a_fault_in_it"];
const FREE_PAGES: &[&str] = &["-p", "uvm-page", "--test", "page"];
const HOLES: &[&str] = &["-p", "uvm-vm", "--test", "paging", "a_store_to_a_hole"];
const REFUSED: &[&str] =
    &["--features", "shuttle", "--test", "schedules", "nobody_is_refused_while_swap_has_room"];
const BEING_FREED: &[&str] =
    &["--features", "shuttle", "--test", "schedules", "nobody_is_refused_what_is_being_given_back"];
const NO_FRAME: &[&str] = &["--test", "model", "a_missing_frame_changes_nothing"];
const QUOTA: &[&str] = &["-p", "uvm-vm", "--test", "paging", "objects_with_one_quota"];
const UNREAD: &[&str] = &["-p", "uvm-vm", "--test", "paging", "pages_that_could_not_be_read"];
const TRUNCATION: &[&str] = &[
    "--features",
    "shuttle",
    "--test",
    "schedules",
    "a_truncation_meets_a_fault_and_the_page_daemon",
];
const EVICTION: &[&str] = &[
    "--features",
    "shuttle",
    "--test",
    "schedules",
    "an_eviction_meets_a_new_mapping_of_the_same_page",
];
const LEAVES: &[&str] = &["-p", "uvm-vm", "--test", "paging", "a_device_is_not_left"];
const EXIT: &[&str] = &[
    "--features",
    "shuttle",
    "--test",
    "schedules",
    "a_process_ends_while_its_pages_are_written_out",
];
const ZRAM: &[&str] =
    &["--features", "shuttle", "--test", "schedules", "zram_is_switched_off_under_load"];
const ADVICE: &[&str] = &["-p", "uvm-vm", "--test", "paging", "what_will_be_needed"];
const WRITES: &[&str] = &["-p", "uvm-vm", "--test", "paging", "writes_that_fail_at_once"];
const PR_56535: &[&str] =
    &["--features", "shuttle", "--test", "schedules", "a_copied_page_is_seen_by_every_cpu_at_once"];
const FORK: &[&str] =
    &["--features", "shuttle", "--test", "schedules", "no_store_is_lost_while_a_fork_is_under_way"];
const REUSE: &[&str] =
    &["--features", "shuttle", "--test", "schedules", "an_address_that_is_free_leads_nowhere"];

const BESIDE: &[&str] =
    &["--features", "shuttle", "--test", "schedules", "pages_that_are_copied_beside_readers"];

const NEIGHBOUR: &[&str] =
    &["--features", "shuttle", "--test", "schedules", "a_neighbour_that_is_being_copied"];

const PROGRAMS: &[&str] = &["--features", "shuttle", "--test", "programs", "found"];
const PUT: &[&str] = &["-p", "uvm-vm", "--test", "spaces", "a_pass_writes_a_file"];

const ON_REQUEST: &[&str] = &["-p", "uvm-vm", "--test", "spaces", "page_out_on_request"];

const DROPPED: &[&str] = &["-p", "uvm-vm", "--test", "spaces", "a_dropped_page"];

const PINNED: &[&str] = &["-p", "uvm-vm", "--test", "spaces", "a_pin_of_a_hole"];

const AHEAD: &[&str] = &["-p", "uvm-vm", "--test", "isolation", "mapped_ahead"];

const PINS: &[&str] = &["--features", "shuttle", "--test", "schedules", "pins::"];

const NOTES: &[&str] = &["-p", "uvm-machine", "--lib", "notes"];

const UNFINISHED: &[&str] = &["--features", "loom", "--test", "loom", "unfinished"];

const LOANS: &[&str] = &["--features", "shuttle", "--test", "schedules", "loans"];

const PIECES: &[&str] = &["-p", "uvm-vm", "--test", "maps", "unreserved_or_in_large_pieces"];

const PLANTS: &[Plant] = &[
    Plant {
        what: "claims: nobody is refused a map that is claimed",
        file: "uvm/src/map/lock.rs",
        changes: &[("if self.is_claimed.load(Relaxed) {\n            Some(", "if false {\n            Some(")],
        found_by: CLAIMS,
    },
    Plant {
        what: "fork in steps: private memory stays writable",
        file: "uvm/src/fork/steps.rs",
        changes: &[("e.prot.without_write()", "e.prot")],
        found_by: CLAIMS,
    },
    Plant {
        what: "fork in steps: who waited isn't woken",
        file: "uvm/src/map/lock.rs",
        changes: &[("        machine.wake(self.channel());\n", "")],
        found_by: CLAIMS,
    },
    Plant {
        what: "free lazily: what a child has too",
        file: "uvm/src/pageout/range.rs",
        changes: &[("if is_own && anon.refs() == 1 {", "if anon.refs() != 0 {")],
        found_by: FREED_LAZILY,
    },
    Plant {
        what: "free lazily: an object's copies",
        file: "uvm/src/pageout/range.rs",
        changes: &[("e.object.is_some() || e.wired", "e.wired")],
        found_by: FREED_LAZILY,
    },
    Plant {
        what: "free lazily: pages that are wired or on loan",
        file: "uvm/src/pageout/range.rs",
        changes: &[("        if !self.mem().can_go(page) {\n            return None;\n        }\n        PageOwner", "        PageOwner")],
        found_by: FREED_LAZILY,
    },
    Plant {
        what: "free lazily: a page that was stored to counts as modified for ever",
        file: "uvm/src/pageout/range.rs",
        changes: &[("        self.mem().pmap().clear_modified(page, down);\n", "")],
        found_by: FREED_LAZILY,
    },
    Plant {
        what: "heap: the bits of a swap device are not reserved",
        file: "uvm/src/swap/mod.rs",
        changes: &[("        self.mem().reserve_heap(Bits::bytes(slots))?;\n", "")],
        found_by: PAGING,
    },
    Plant {
        what: "heap: the tables of swap lie in pieces that no host promises",
        file: "machine/src/pieces.rs",
        changes: &[("const PIECE: usize = 16 << 10;", "const PIECE: usize = 32 << 10;")],
        found_by: PIECES,
    },
    Plant {
        what: "debugger: a store reaches what others see too",
        file: "uvm/src/fault/mod.rs",
        changes: &[("self.access != Prot::WRITE || entry.writes != Writes::Shared;", "true;")],
        found_by: RANDOM,
    },
    Plant {
        what: "debugger: a store to private memory that can't be written shows in the file",
        file: "uvm/src/fault/resolve.rs",
        changes: &[(
            "if private && self.access == Prot::WRITE {",
            "if private && self.access == Prot::WRITE && entry.prot.contains(Prot::WRITE) {",
        )],
        found_by: RANDOM,
    },
    Plant {
        what: "debugger: a reference reaches what the mapping could never allow",
        file: "uvm/src/fault/mod.rs",
        changes: &[("is_own && entry.max_prot.contains(self.access)", "is_own")],
        found_by: RANDOM,
    },
    Plant {
        what: "debugger: the program may do from then on what only the debugger might",
        file: "uvm/src/fault/enter.rs",
        changes: &[("let is_programs = prot.contains(self.access);", "let is_programs = true; let prot = prot | self.access;")],
        found_by: RANDOM,
    },
    Plant {
        what: "truncate, punch: CPUs are told once others see that the pages have left the object",
        file: "uvm/src/pager/access.rs",
        changes: &[("down.flush(self.mem().pmap());\n                done", "done")],
        found_by: PROGRAMS,
    },
    Plant {
        what: "loan: CPUs are not told that the lender can store no more",
        file: "uvm/src/loanout/mod.rs",
        changes: &[("            self.down.flush(self.uvm.mem().pmap());\n", "")],
        found_by: PROGRAMS,
    },
    Plant {
        what: "gift: CPUs are told once another mapping may be there",
        file: "uvm/src/loanout/give.rs",
        changes: &[("                down.flush(self.mem().pmap());\n", "")],
        found_by: PROGRAMS,
    },
    Plant {
        what: "fault, 2B: a file's page is copied while other CPUs may load it where the copy goes",
        file: "uvm/src/fault/resolve.rs",
        changes: &[(
            "self.forget_here(&mut held.deeper());\n        let copy = machine.copied_page(held, page)?;",
            "let copy = machine.copied_page(held, page)?;\n        self.forget_here(&mut held.deeper());",
        )],
        found_by: PROGRAMS,
    },
    Plant {
        what: "pmap: a page is cleaned while a CPU may store by a translation that has left the tables",
        file: "uvm-soft/src/pmap.rs",
        changes: &[("            state.overtake_nobody_by_page(down);\n        }\n        was", "        }\n        was")],
        found_by: PROGRAMS,
    },
    Plant {
        what: "pmap: a CPU has taken its notes out and not done yet as they say when all TLBs are looked at",
        file: "uvm-soft/src/pmap.rs",
        changes: &[(
            "begin_use_by(|_| {\n            self.hooks.come(Moment::Forgetting);\n            self.take_notes(cpu, &mut self.lock());",
            "begin_use(|what| {\n            self.hooks.come(Moment::Forgetting);\n            self.lock().forget_noted(cpu, what);",
        )],
        found_by: FORGETTING,
    },
    Plant {
        what: "pins: a change doesn't wait for faults that have pinned its pages",
        file: "uvm/src/map/lock.rs",
        changes: &[("                self.exclude(&tree, range);\n", "")],
        found_by: PINS,
    },
    Plant {
        what: "pins: an entry gets an amap beside faults that have found it without",
        file: "uvm/src/fault/resolve.rs",
        changes: &[("map.exclude(&tree, range);", "map.exclude(&tree, NOWHERE);")],
        found_by: PINS,
    },
    Plant {
        what: "pins: a discard replaces an amap beside faults in the rest of its entry",
        file: "uvm/src/map/mod.rs",
        changes: &[("Some(self.exclude(VaRange::new(start, end)))", "let _whole = VaRange::new(start, end);\n        Some(self.exclude(range))")],
        found_by: RANDOM,
    },
    Plant {
        what: "beside: who finds an anon doesn't look again whether it is still there",
        file: "uvm/src/fault/resolve.rs",
        changes: &[("anon.page().filter(|_| found.number() == Some(no.number()))?;", "anon.page().filter(|_| true)?;")],
        found_by: BESIDE,
    },
    Plant {
        what: "beside: who finds a neighbour doesn't look again whether it is still there",
        file: "uvm/src/fault/around.rs",
        changes: &[("hold == Hold::Exclusive || slots.has(first + i as u64, numbers[i])", "true || hold == Hold::Exclusive || slots.has(first + i as u64, numbers[i])")],
        found_by: NEIGHBOUR,
    },
    Plant {
        what: "isolation: a neighbour is mapped ahead whose slot holds a copy by now",
        file: "uvm/src/fault/around.rs",
        changes: &[("hold == Hold::Exclusive || slots.has(first + i as u64, numbers[i])", "true || hold == Hold::Exclusive || slots.has(first + i as u64, numbers[i])")],
        found_by: AHEAD,
    },
    Plant {
        what: "isolation: a neighbour is mapped ahead to be written though its anon is shared",
        file: "uvm-page/src/record.rs",
        changes: &[("record.owner.load(Acquire) & WHO == pack(Owner::Anon(anon))", "record.owner.load(Acquire) & WHO & !SHARED == pack(Owner::Anon(anon))")],
        found_by: AHEAD,
    },
    Plant {
        what: "isolation: a page is dropped that a CPU may still reach",
        file: "uvm/src/pager/vnode.rs",
        changes: &[(
            "    let unmapped = down.unmap(uvm.frames(), uvm.mem(), held, page);\n    // A CPU",
            "    let unmapped = crate::page::Unmapped::by_ranges(page);\n    // A CPU",
        )],
        found_by: DROPPED,
    },
    Plant {
        what: "isolation: what an attempt was refused for outlives it",
        file: "uvm/src/fault/mod.rs",
        changes: &[
            ("        let (result, waited) = self.attempt_counted(", "        let mut kept = None;\n        let (result, waited) = self.attempt_counted("),
            ("Err(stop) => Err(self", "Err(Stop::Fail(Refused::Hole(hole))) => { kept = Some(hole); Err(self.stop_fault(held, Stop::Fail(Refused::Hole(hole)), effects)) }\n Err(stop) => Err(self"),
            ("        if let Some(start) = ahead {", "        if let Some(hole) = kept { return (Err(Refused::Hole(hole)), waited); }\n        if let Some(start) = ahead {"),
        ],
        found_by: PINNED,
    },
    Plant {
        what: "isolation: a pager writes while the pass has pages busy",
        file: "uvm/src/pageout/mod.rs",
        changes: &[("            pass.puts.push((pager, index));\n", "            let _ = pager.put(self, held, index);\n")],
        found_by: PUT,
    },
    Plant {
        what: "isolation: page-out on request takes what others map",
        file: "uvm/src/pageout/range.rs",
        changes: &[("        if is_others || e.writes_to().is_none() {", "        if e.writes_to().is_none() {")],
        found_by: ON_REQUEST,
    },
    Plant {
        what: "isolation: page-out on request takes files that the caller can't write",
        file: "uvm/src/pageout/range.rs",
        changes: &[("        if is_others || e.writes_to().is_none() {", "        if is_others {")],
        found_by: ON_REQUEST,
    },
    Plant {
        what: "isolation: a second reference is not marked in the page's record",
        file: "uvm/src/anon/mod.rs",
        changes: &[("            frames.mark_shared(page);\n        }\n        self.refs += 1;", "            let _ = (frames, page);\n        }\n        self.refs += 1;")],
        found_by: AHEAD,
    },
    Plant {
        what: "isolation: a neighbour is mapped ahead to be written though it is loaned",
        file: "uvm-page/src/record.rs",
        changes: &[("        self.loans(page) == 0\n            && record.flags", "        record.flags")],
        found_by: AHEAD,
    },
    Plant {
        what: "beside: the copy is in its place before every CPU has forgotten the original",
        file: "uvm/src/fault/resolve.rs",
        changes: &[(
            "self.forget_here(h);\n            machine.copy(from, to);",
            "let range = machine::VaRange::new(self.va, self.va + machine::Pages(1));\n            machine.pmap().remove(h, &self.space.pmap, range, self.effects.down);\n            machine.copy(from, to);",
        )],
        found_by: BESIDE,
    },
    Plant {
        what: "beside: the original stays where this CPU's space shows it",
        file: "uvm/src/fault/resolve.rs",
        changes: &[("            self.forget_here(h);\n            machine.copy(from, to);", "            machine.copy(from, to);")],
        found_by: BESIDE,
    },
    Plant {
        what: "loan: loaning leaves private pages writable",
        file: "uvm/src/loanout/mod.rs",
        changes: &[("pmap.protect(held, space, range, entry.prot.without_write(), self.down);", "let _ = (pmap, space, range);")],
        found_by: RANDOM,
    },
    Plant {
        what: "loan: a store reaches a page that is loaned",
        file: "uvm/src/fault/resolve.rs",
        changes: &[("let is_loaned = frames.loans(page) != 0;", "let is_loaned = false;")],
        found_by: RANDOM,
    },
    Plant {
        what: "loan: a store reaches an object's page that is loaned",
        file: "uvm/src/fault/resolve.rs",
        changes: &[("entry.writes == Writes::Shared\n            && self.uvm.frames().loans(page) != 0", "entry.writes == Writes::Shared\n            && false")],
        found_by: RANDOM,
    },
    Plant {
        what: "loan: a host writes to an object's page that is loaned",
        file: "uvm/src/pager/access.rs",
        changes: &[("if intent == Intent::Write && self.frames().loans(page) != 0 {", "if false {")],
        found_by: RANDOM,
    },
    Plant {
        what: "loan: a page is copied for its lender while another CPU still stores to it",
        file: "uvm/src/fault/resolve.rs",
        changes: &[("                uvm.break_loan(h, from, self.effects.down);\n", "")],
        found_by: LOANS,
    },
    Plant {
        what: "loan: what a device may write to is loaned as it is",
        file: "uvm-page/src/record.rs",
        changes: &[("holds & WIRINGS != 0 || holds & LOANS >= MOST_LOANS", "holds & LOANS >= MOST_LOANS")],
        found_by: &["-p", "uvm-vm", "--test", "moving", "what_a_device"],
    },
    Plant {
        what: "loan: an owner that goes frees what is loaned",
        file: "uvm-page/src/record.rs",
        changes: &[("(holds & WIRINGS) + (holds & LOANS) / LOAN", "(holds & WIRINGS)")],
        found_by: RANDOM,
    },
    Plant {
        what: "loan: who gives a page back last forgets to free it",
        file: "uvm-page/src/record.rs",
        changes: &[("        before == DISOWNED | LOAN\n", "        before == DISOWNED | LOAN && false\n")],
        found_by: RANDOM,
    },
    Plant {
        what: "fork: what others write stays writable by them",
        file: "uvm/src/fork/mod.rs",
        changes: &[(
            "copy.amap.is_unprotected.store(true, Relaxed);",
            "",
        )],
        found_by: RANDOM,
    },
    Plant {
        what: "passing: donated memory keeps its translations",
        file: "machine/src/pmap.rs",
        changes: &[("        self.remove(held, from, range, down);\n    }\n\n    /// Lowers", "        let _ = (held, from, range, down);\n    }\n\n    /// Lowers")],
        found_by: RANDOM,
    },
    Plant {
        what: "transfer: a loaned page is the receiver's to write",
        file: "uvm/src/map/adopt.rs",
        changes: &[("                    anon.add_reference(frames);\n", "                    let _ = &mut anon;\n")],
        found_by: RANDOM,
    },
    Plant {
        what: "borrowed: slots that a fork shares get no anons",
        file: "uvm/src/fork/mod.rs",
        changes: &[("            self.uvm.adopt_entry(held, self.parent, entry, aref)?;\n", "            let _ = aref;\n")],
        found_by: RANDOM,
    },
    Plant {
        what: "borrowed: the span of pages on loan does not grow",
        file: "uvm/src/amap/borrowed.rs",
        changes: &[("all.start.min(range.start)..all.end.max(range.end)", "all.start..all.end")],
        found_by: RANDOM,
    },
    Plant {
        what: "borrowed: a page that is taken over stays on loan",
        file: "uvm/src/map/adopt.rs",
        changes: &[("        if taken == Taken::Among {\n            self.return_pages(held, [self.loaned(own)]);\n        }\n", "")],
        found_by: MOVING,
    },
    Plant {
        what: "borrowed: what is discarded stays on loan",
        file: "uvm/src/amap/mod.rs",
        changes: &[("                if frames.end_loan(page) {\n                    last.push(page);\n                }\n", "                let _ = (frames, page, &mut last);\n")],
        found_by: RANDOM,
    },
    Plant {
        what: "borrowed: a page that is loaned from a slot is not counted",
        file: "uvm/src/loanout/mod.rs",
        changes: &[("let loaned = match self.uvm.frames().loan(page) {", "let loaned = match page.0 != u32::MAX {")],
        found_by: RANDOM,
    },
    Plant {
        what: "borrowed: a page on loan is mapped to be written",
        file: "uvm/src/fault/resolve.rs",
        changes: &[("self.enter(&mut held.deeper(), page, self.entry.prot.without_write())?;", "self.enter(&mut held.deeper(), page, self.entry.prot)?;")],
        found_by: RANDOM,
    },
    Plant {
        what: "borrowed: what is copied stays mapped where it was read",
        file: "uvm/src/map/adopt.rs",
        changes: &[("            machine.pmap().remove(held, &space.pmap, shown, &mut copied.down);\n", "            let _ = (space, shown);\n")],
        found_by: MOVING,
    },
    Plant {
        what: "borrowed: a loan ends before every CPU has forgotten the page",
        file: "uvm/src/map/adopt.rs",
        changes: &[("                copied.down.flush(self.mem().pmap());\n                self.return_pages(held, copied.pages);\n", "                self.return_pages(held, copied.pages);\n                copied.down.flush(self.mem().pmap());\n")],
        found_by: LOANS,
    },
    Plant {
        what: "borrowed: when memory is short, what is on loan stays",
        file: "uvm/src/pageout/mod.rs",
        changes: &[("        self.adopt_loaned(held, priority);\n", "")],
        found_by: TRANSFERRED,
    },
    Plant {
        what: "borrowed: a file keeps what it should leave to its borrowers",
        file: "uvm/src/pageout/loaned.rs",
        changes: &[("            let unmapped = down.unmap(frames, machine, h, page);\n", "            return false;\n            #[allow(unreachable_code)]\n            let unmapped = down.unmap(frames, machine, h, page);\n")],
        found_by: TRANSFERRED,
    },
    Plant {
        what: "borrowed: a dirty page is left to its borrowers",
        file: "uvm/src/pageout/loaned.rs",
        changes: &[(" || !owner.is_stored(self, page) {", " {")],
        found_by: TRANSFERRED,
    },
    Plant {
        what: "borrowed: who maps a file sees the page that it has let go",
        file: "uvm/src/pageout/loaned.rs",
        changes: &[("            let unmapped = down.unmap(frames, machine, h, page);\n", "            let unmapped = crate::page::Unmapped::by_ranges(page);\n")],
        found_by: TRANSFERRED,
    },
    Plant {
        what: "borrowed: an amap is forgotten while it has pages on loan",
        file: "uvm/src/amap/mod.rs",
        changes: &[(
            "        if body.cover.is_empty() {\n            uvm.borrowers.leave(&mut h, &mut body);\n        }\n        (rest",
            "        uvm.borrowers.leave(&mut h, &mut body);\n        (rest",
        )],
        found_by: RANDOM,
    },
    Plant {
        what: "giving: what was given can still be written",
        file: "uvm/src/loanout/give.rs",
        changes: &[("            self.forget_range(&mut h, space, range, &mut down);\n", "")],
        found_by: LOANS,
    },
    Plant {
        what: "giving: what was given is there yet",
        file: "uvm/src/loanout/give.rs",
        changes: &[("                space.locked(self, &mut tree, &mut h).empty(range, &mut down);\n", "")],
        found_by: RANDOM,
    },
    Plant {
        what: "transfer: what was there is still seen",
        file: "uvm/src/transfer.rs",
        changes: &[("            self.forget_range(&mut h, space, range, &mut down);\n", "")],
        found_by: RANDOM,
    },
    Plant {
        what: "a copy on write leaves the old page to those who share the slot",
        file: "uvm/src/fault/resolve.rs",
        changes: &[("self.forget_everywhere(h, from);", "")],
        found_by: RANDOM,
    },
    Plant {
        what: "a promotion leaves the object's page to those who share the slot",
        file: "uvm/src/fault/resolve.rs",
        changes: &[("self.forget_everywhere(&mut held.deeper(), page);", "")],
        found_by: RANDOM,
    },
    Plant {
        what: "memory shared by inheritance is forgotten for all who share it",
        file: "uvm/src/amap/mod.rs",
        changes: &[("if count == 1 && !part.is_empty() {", "if count != 0 && !part.is_empty() {")],
        found_by: RANDOM,
    },
    Plant {
        what: "the page daemon writes before the CPUs have forgotten",
        file: "uvm/src/pageout/mod.rs",
        changes: &[("        pass.down.flush(self.mem().pmap());\n", "")],
        found_by: PAGING,
    },
    Plant {
        what: "the page daemon frees a page that is mapped",
        file: "uvm/src/pageout/mod.rs",
        changes: &[(
            "machine.pmap().page_protect(held, page, Prot::NONE, &mut pass.down);",
            "{ let _ = (machine, Prot::NONE); 0 };",
        )],
        found_by: PAGING,
    },
    Plant {
        what: "a slot is free while its page is written there",
        file: "uvm/src/pageout/mod.rs",
        changes: &[(
            "            owner.set_slot(self, h, page, slot);\n",
            "            owner.set_slot(self, h, page, slot);\n            slot.into_iter().for_each(|slot| self.swap().free(self.mem(), h, slot));\n",
        )],
        found_by: PAGING,
    },
    Plant {
        what: "a dirty page is dropped as clean",
        file: "uvm/src/owner.rs",
        changes: &[("has_place && uvm.mem().is_clean(page)", "has_place")],
        found_by: PAGING,
    },
    Plant {
        what: "an old copy on swap is taken for the page",
        file: "uvm/src/memory.rs",
        changes: &[(
            "self.frames.flags(page).contains(PageFlags::CLEAN) && !self.pmap().is_modified(page)",
            "self.frames.flags(page).contains(PageFlags::CLEAN)",
        )],
        found_by: PAGING,
    },
    Plant {
        what: "a fault uses a page that I/O has",
        file: "uvm/src/fault/resolve.rs",
        changes: &[("        if frames.flags(page).contains(PageFlags::BUSY) {\n            return None;\n        }\n", "")],
        found_by: PAGING,
    },
    Plant {
        what: "the page daemon does not look again whose a page is",
        file: "uvm/src/owner.rs",
        changes: &[("frames.owner(page) == Owner::Anon(no.get()) && body.page() == Some(page)", "true || frames.owner(page) == Owner::Anon(no.get()) && body.page() == Some(page)")],
        found_by: COMES_FOR_IT,
    },
    Plant {
        what: "the page daemon takes a new page that is about to be mapped",
        file: "uvm/src/memory.rs",
        changes: &[("is_idle && frames.place(page) != Place::Nowhere", "is_idle")],
        found_by: RENEWED,
    },
    Plant {
        what: "the page daemon says that a page is busy no more before it has no owner",
        file: "uvm/src/owner.rs",
        changes: &[(
            "        match self {\n            PageOwner::Anon { body, .. } => {\n                body.swap = place;\n",
            "        unbusy(uvm.machine(), page);\n        uvm.machine().pmap().is_modified(page);\n        match self {\n            PageOwner::Anon { body, .. } => {\n                body.swap = place;\n",
        )],
        found_by: LET_GO_BESIDE,
    },
    Plant {
        what: "an unmapping lets the lock go before the CPUs have forgotten",
        file: "uvm/src/map/remove.rs",
        changes: &[("        down.flush(self.mem().pmap());\n", "")],
        found_by: REUSE,
    },
    Plant {
        what: "a copy on write is shown before every CPU has forgotten the original (NetBSD PR 56535)",
        file: "machine/src/pmap.rs",
        changes: &[("down);\n        down.flush(self);\n    }", "down);\n    }")],
        found_by: PR_56535,
    },
    Plant {
        what: "a fork lets the parent copy while a CPU still stores to the original",
        file: "uvm/src/fork/mod.rs",
        changes: &[("        self.down.flush(uvm.mem().pmap());\n        let result", "        let result")],
        found_by: FORK,
    },
    Plant {
        what: "large amaps: a copy has the first leaves alone",
        file: "uvm/src/map/copy.rs",
        changes: &[("            Ok(part.end)\n", "            Ok(rest.end)\n")],
        found_by: LARGE,
    },
    Plant {
        what: "large amaps: a reference is counted in the first runs alone",
        file: "uvm/src/map/copy.rs",
        changes: &[(
            "at = aref.amap.body.lock(held).0.cover.add_some(at..all.end, RUNS_AT_ONCE);",
            "aref.amap.body.lock(held).0.cover.add_some(at..all.end, RUNS_AT_ONCE);\n                at = all.end;",
        )],
        found_by: LARGE,
    },
    Plant {
        what: "large amaps: an entry that has its own keeps its reference to the old one",
        file: "uvm/src/map/copy.rs",
        changes: &[("        self.release_at_once(held, aref, range.pages());\n", "")],
        found_by: RANDOM,
    },
    Plant {
        what: "large amaps: a copy of what others write lets them go on",
        file: "uvm/src/fork/steps.rs",
        changes: &[("            self.state.others_can_write = true;\n", "")],
        found_by: RANDOM,
    },
    Plant {
        what: "large amaps: a copy lowers what another space has locked",
        file: "uvm/src/fork/steps.rs",
        changes: &[("copied == Copied::All || frames.wire_count(page) != 0", "copied == Copied::All")],
        found_by: MOVING,
    },
    Plant {
        what: "memory: a fork that is tried again keeps the copies that it has given up",
        file: "uvm/src/fork/steps.rs",
        changes: &[(
            "        self.release_entries(held, &mut half, down);",
            "        let mut undo = Gather::new();\n        self.release_entries(held, &mut half, &mut undo);\n        undo.perform(self.frames(), self.mem(), held);",
        )],
        found_by: FORK_AGAIN,
    },
    Plant {
        what: "memory: pages that could not be read are never taken",
        file: "uvm/src/memory.rs",
        changes: &[(
            "!frames.flags(page).contains(PageFlags::BUSY) && frames",
            "!frames.flags(page).intersects(PageFlags::BUSY | PageFlags::ERROR) && frames",
        )],
        found_by: UNREAD,
    },
    Plant {
        what: "memory: one write that fails at once ends an operation",
        file: "uvm/src/pageout/decision.rs",
        changes: &[
            ("if !has_failed && after.free_slots == 0", "if after.free_slots == 0"),
            ("under_way == 0 && !has_failed;", "under_way == 0;"),
            ("freed != 0 || has_failed || before", "freed != 0 || before"),
        ],
        found_by: WRITES,
    },
    Plant {
        what: "memory: who was refused a frame does not look whether there is one by now",
        file: "uvm/src/pageout/reclaim.rs",
        changes: &[("frames.refusals() != self.refusals;", "frames.refusals() < self.refusals;")],
        found_by: GIVEN_BACK,
    },
    Plant {
        what: "memory: what others give back during a pass does not count",
        file: "uvm/src/pageout/decision.rs",
        changes: &[("if after.free > before.free + freed {", "if after.free == usize::MAX {")],
        found_by: DECISION,
    },
    Plant {
        what: "memory: with room on swap the last frames are refused",
        file: "uvm/src/pageout/decision.rs",
        changes: &[("!has_failed && after.free_slots == 0 && after", "!has_failed && after")],
        found_by: FEW,
    },
    Plant {
        what: "run: what was there before is not cleared",
        file: "uvm/src/memory.rs",
        changes: &[("        self.machine.zero(page);\n", "")],
        found_by: RANDOM,
    },
    Plant {
        what: "fork: the parent goes on writing what was copied at once",
        file: "uvm/src/fork/mod.rs",
        changes: &[(
            "} else if !is_write_protected {",
            "} else if false {",
        )],
        found_by: RANDOM,
    },
    Plant {
        what: "fork: the parent goes on writing what is about to be copied",
        file: "uvm/src/fork/eager.rs",
        changes: &[("                self.uvm.write_protect(held, self.parent, entry, self.down);\n", "")],
        found_by: RANDOM,
    },
    Plant {
        what: "fork: a page that another child has too is the parent's to write again",
        file: "uvm/src/fork/eager.rs",
        changes: &[("anon.refs() == 1 && !is_shared", "true")],
        found_by: FORK_COPIES,
    },
    Plant {
        what: "fork: a child's copy of a page stays empty",
        file: "uvm/src/fork/eager.rs",
        changes: &[("            machine.copy(from, to);\n", "")],
        found_by: RANDOM,
    },
    Plant {
        what: "fork: an amap that a child has too is copied as if it were the parent's alone",
        file: "uvm/src/amap/mod.rs",
        changes: &[("Writes::NeedsCopy => is_any && is_exclusive,", "Writes::NeedsCopy => is_any,")],
        found_by: RANDOM,
    },
    Plant {
        what: "fork: what can't be copied is shared and not counted",
        file: "uvm/src/fork/eager.rs",
        changes: &[("                uvm.anons.get(original).lock(&mut h).0.add_reference(uvm.frames());\n", "")],
        found_by: FORK_COPIES,
    },
    Plant {
        what: "memory: what is being given back is not looked for",
        file: "uvm/src/pageout/reclaim.rs",
        changes: &[("= self.frames().being_freed();", "= 0;")],
        found_by: BEING_FREED,
    },
    Plant {
        what: "memory: what is being read is not waited for",
        file: "uvm/src/pageout/decision.rs",
        changes: &[("        self.leaving + self.coming", "        self.leaving")],
        found_by: DECISION,
    },
    Plant {
        what: "memory: each refusal of a full machine looks at all of memory",
        file: "uvm/src/pageout/decision.rs",
        changes: &[("self.fresh != 0 && (self", "self.fresh != 1 || (self")],
        found_by: FULL,
    },
    Plant {
        what: "memory: pages that are let go are not found",
        file: "uvm/src/pageout/reclaim.rs",
        changes: &[("last.loosened == loosened", "last.loosened <= loosened")],
        found_by: LET_GO,
    },
    Plant {
        what: "memory: pages that come back from a loan are not found",
        file: "uvm/src/loan/mod.rs",
        changes: &[(
            "                self.frames().free_page(self.mem(), held, page);\n            }\n        }\n        self.mem().pages_may_go();",
            "                self.frames().free_page(self.mem(), held, page);\n            }\n        }",
        )],
        found_by: RETURNED,
    },
    Plant {
        what: "memory: pages that were read back are not found",
        file: "uvm/src/pageout/reclaim.rs",
        changes: &[("last.left + made + free_slots", "last.left + 0 * made + free_slots")],
        found_by: READ_BACK,
    },
    Plant {
        what: "memory: pages that came on a queue during the last pass are not found",
        file: "uvm/src/pageout/reclaim.rs",
        changes: &[("_ => on_queues.saturating_sub(pass.wired),", "_ => pass.wanted,")],
        found_by: REFUSED,
    },
    Plant {
        what: "memory: pages of files that the last pass has written are not found",
        file: "uvm/src/pageout/reclaim.rs",
        changes: &[("self.pages_in_flight() + (made - made_before) as usize;", "self.pages_in_flight() + 0 * (made - made_before) as usize;")],
        found_by: WRITTEN_LAST,
    },
    Plant {
        what: "pins: an entry gets its neighbour's amap beside faults that have pinned it",
        file: "uvm/src/map/merge.rs",
        changes: &[("if let Some(range) = has_no_amap {", "if let Some(range) = has_no_amap.filter(|range| range.is_empty()) {")],
        found_by: MERGES,
    },
    Plant {
        what: "pins: a fault maps a device's pages beyond those that it has pinned",
        file: "uvm/src/fault/enter.rs",
        changes: &[("(w.fault as u64, (w.len - w.fault) as u64);", "(w.fault as u64, 20);")],
        found_by: DEVICE,
    },
    Plant {
        what: "memory: a free block merges with a buddy of another CPU's",
        file: "uvm-page/src/buddy.rs",
        changes: &[("&& page.index.load(Relaxed) == cpu as u64;", "&& cpu < self.lists.len();")],
        found_by: FREE_PAGES,
    },
    Plant {
        what: "memory: a free block merges with a part of its buddy",
        file: "uvm-page/src/buddy.rs",
        changes: &[("u32::from(page.order.load(Relaxed)) == order", "u32::from(page.order.load(Relaxed)) <= order")],
        found_by: FREE_PAGES,
    },
    Plant {
        what: "memory: what a pass has freed is taken before the reserve is filled",
        file: "uvm-page/src/free.rs",
        changes: &[("if self.global.free_list_len.load(Relaxed) < self.reserve_kernel {", "if false {")],
        found_by: RESERVE,
    },
    Plant {
        what: "full: a hole is mapped along so that it can be written",
        file: "uvm/src/fault/around.rs",
        changes: &[("if is_to_ask(frames, page, flags) { prot.without_write() } else { prot }", "prot")],
        found_by: HOLES,
    },
    Plant {
        what: "full: a hole is shown so that it can be written",
        file: "uvm/src/fault/resolve.rs",
        changes: &[("let own = if is_to_ask(uvm.frames(), page, uvm.frames().flags(page)) {", "let own = if false {")],
        found_by: RANDOM,
    },
    Plant {
        what: "full: a page that was read where the file has a hole counts as one with room",
        file: "uvm/src/owner.rs",
        changes: &[("(Outcome::Hole, None, _) => frames.set_flags(page, PageFlags::HOLE),", "(Outcome::Hole, None, _) => {}")],
        found_by: RANDOM,
    },
    Plant {
        what: "full: room that was found before the hole was punched again counts",
        file: "uvm/src/pager/vnode.rs",
        changes: &[(".filter(|_| body.cuts == cuts)", ".filter(|_| body.cuts >= cuts)")],
        found_by: HOLES,
    },
    Plant {
        what: "full: a store reaches a hole that is loaned",
        file: "uvm/src/fault/resolve.rs",
        changes: &[(
            "if stores && uvm.frames().flags(page).contains(PageFlags::HOLE) {",
            "if stores && uvm.frames().flags(page).contains(PageFlags::HOLE) && uvm.frames().loans(page) == 0 {",
        )],
        found_by: HOLES,
    },
    Plant {
        what: "full: where the host has written a store asks for no room",
        file: "uvm/src/pager/access.rs",
        changes: &[(
            "self.frames().clear_flags(page, PageFlags::CLEAN | PageFlags::UNWRITTEN);\n        }\n        Ok(Some(page))",
            "self.frames().clear_flags(page, PageFlags::CLEAN | PageFlags::UNWRITTEN | PageFlags::HOLE);\n        }\n        Ok(Some(page))",
        )],
        found_by: HOLES,
    },
    Plant {
        what: "full: a page that could not be had counts",
        file: "uvm/src/pager/anon_object.rs",
        changes: &[("made.inspect_err(|_| body.give_quota_back(1))?", "made?")],
        found_by: NO_FRAME,
    },
    Plant {
        what: "full: the last page of a quota can not be had",
        file: "uvm-page/src/quota.rs",
        changes: &[("filter(|&sum| sum <= quota.most())", "filter(|&sum| sum < quota.most())")],
        found_by: RANDOM,
    },
    Plant {
        what: "full: a page that leaves its object still counts",
        file: "uvm/src/object/body.rs",
        changes: &[("            self.stored -= 1;\n            self.give_quota_back(1);", "            self.stored -= 1;")],
        found_by: QUOTA,
    },
    Plant {
        what: "full: what a space has left behind without heap is shown to another",
        file: "uvm/src/amap/mod.rs",
        changes: &[("self.cover.is_unused(range.clone()) && self.slots.range(range.clone()).next().is_none()", "self.cover.is_unused(range.clone())")],
        found_by: &["--test", "model", "left_behind"],
    },
    Plant {
        what: "full: what a space has left behind without heap is forgotten",
        file: "uvm/src/amap/mod.rs",
        changes: &[("                self.note_left(held, &aref.amap);\n", "")],
        found_by: &["-p", "uvm-vm", "--test", "maps", "what_ends_without_heap"],
    },
    Plant {
        what: "line: a turn is handed over where nobody waits",
        file: "uvm/src/pageout/reclaim.rs",
        changes: &[("if self.has_waiters() { TurnState::Handed } else { TurnState::Free }", "TurnState::Handed")],
        found_by: LINE,
    },
    Plant {
        what: "line: who gives up keeps the turn that was meant for it",
        file: "uvm/src/pageout/reclaim.rs",
        changes: &[("if *turn == TurnState::Handed {", "if false {")],
        found_by: LINE_ENDED,
    },
    Plant {
        what: "line: who has been woken takes a turn that another has",
        file: "uvm/src/pageout/reclaim.rs",
        changes: &[("!has_fatal_signal && *turn == TurnState::Taken", "false")],
        found_by: LINE_EARLY,
    },
    Plant {
        what: "race: a truncation takes a page that I/O has",
        file: "uvm/src/object/body.rs",
        changes: &[("busy_check(machine, page)?;\n                    let page = down", "let page = down")],
        found_by: TRUNCATION,
    },
    Plant {
        what: "race: a file's page is mapped while it is being evicted",
        file: "uvm/src/fault/resolve.rs",
        changes: &[("        let plain = plain.filter(|&page| !frames.flags(page).intersects(SPECIAL));\n", "")],
        found_by: EVICTION,
    },
    Plant {
        what: "race: swapoff takes the slot of a page that is being written there",
        file: "uvm/src/pageout/swap.rs",
        changes: &[("match busy_check(machine, page) {", "match busy_check(machine, page).or(Ok::<_, Ticket>(())) {")],
        found_by: LEAVES,
    },
    Plant {
        what: "race: an exit frees a page that is being written",
        file: "uvm/src/anon/mod.rs",
        changes: &[(
            "Some(page) if machine.frames().flags(page).contains(PageFlags::BUSY) => {",
            "Some(page) if machine.frames().flags(page).contains(PageFlags::ERROR) => {",
        )],
        found_by: EXIT,
    },
    Plant {
        what: "race: zram takes pages while it is switched off",
        file: "uvm/src/swap/mod.rs",
        changes: &[("            true => 0,\n", "            true => self.bits.free_slots(),\n")],
        found_by: ZRAM,
    },
    Plant {
        what: "advice leaves a page on swap after each read",
        file: "uvm/src/fault/swapped.rs",
        changes: &[("Pages(last + 1 - slots.start)", "Pages(last + 2 - slots.start)")],
        found_by: ADVICE,
    },
    Plant {
        what: "notes: a second note is not left in a box that has one",
        file: "machine/src/notes.rs",
        changes: &[("|| self.waiting.compare_exchange(0, word, SeqCst, Relaxed).is_err() {", "|| self.waiting.compare_exchange(0, word, SeqCst, Relaxed).is_err() && false {")],
        found_by: NOTES,
    },
    Plant {
        what: "notes: more notes take the place of the first",
        file: "machine/src/notes.rs",
        changes: &[("                (true, _) => now,", "                (true, _) => MORE,")],
        found_by: NOTES,
    },
    Plant {
        what: "notes: what does not fit is left out where there are notes already",
        file: "machine/src/notes.rs",
        changes: &[("                (false, _) => EVERYTHING,", "                (false, 0) => EVERYTHING,\n                (false, _) => now,")],
        found_by: NOTES,
    },
    Plant {
        what: "notes: a note that fits takes back that everything is to be forgotten",
        file: "machine/src/notes.rs",
        changes: &[("                (true, 0) => MORE,", "                (true, 0 | EVERYTHING) => MORE,")],
        found_by: NOTES,
    },
    Plant {
        what: "notes: a range that is too long for a word is cut",
        file: "machine/src/notes.rs",
        changes: &[("    if (1..=LONGEST).contains(&pages) {\n        range.start.0 >> PAGE_SHIFT << LENGTH | pages", "    if pages != 0 {\n        range.start.0 >> PAGE_SHIFT << LENGTH | pages.min(LONGEST)")],
        found_by: NOTES,
    },
    Plant {
        what: "notes: who goes through the box leaves the first range unread",
        file: "machine/src/notes.rs",
        changes: &[("            len = 1;", "            len = 0;")],
        found_by: NOTES,
    },
    Plant {
        what: "notes: a box is not emptied",
        file: "machine/src/notes.rs",
        changes: &[("unpack(word.swap(0, AcqRel))", "unpack(word.load(Acquire))")],
        found_by: NOTES,
    },
    Plant {
        what: "notes: a pass that has ended is not told",
        file: "machine/src/notes.rs",
        changes: &[("self.passes.store(passes + 2, Release);", "self.passes.store(passes, Release);")],
        found_by: NOTES,
    },
    Plant {
        what: "unfinished: who asks looks at its own CPU's line alone",
        file: "machine/src/unfinished.rs",
        changes: &[("self.0[..cpus].iter()", "self.0[..cpus / 2].iter()")],
        found_by: UNFINISHED,
    },
    Plant {
        what: "unfinished: the end of one orders nothing",
        file: "machine/src/unfinished.rs",
        changes: &[("own.store(own.load(Relaxed) - 1, Release);", "own.store(own.load(Relaxed) - 1, Relaxed);")],
        found_by: UNFINISHED,
    },
    Plant {
        what: "unfinished: who finds one over has not seen what it did",
        file: "machine/src/unfinished.rs",
        changes: &[(".map(|one| one.load(Acquire))", ".map(|one| one.load(Relaxed))")],
        found_by: UNFINISHED,
    },
];

fn root() -> PathBuf {
    Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"))
        .join("../..")
        .canonicalize()
        .expect("the workspace is there")
}

/// Makes a folder the copy of another. What is the same already is left alone, so that a build is
/// not thrown away.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("the target folder can be written");
    for old in fs::read_dir(to).expect("the target folder can be read").flatten() {
        let (here, there) = (old.path(), from.join(old.file_name()));
        if here.is_dir() && !there.is_dir() {
            fs::remove_dir_all(here).expect("the target folder can be written");
        } else if here.is_file() && !there.is_file() {
            fs::remove_file(here).expect("the target folder can be written");
        }
    }
    for entry in fs::read_dir(from).expect("the sources can be read").flatten() {
        let (path, to) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &to);
        } else {
            replace(&to, fs::read(&path).expect("the sources can be read"));
        }
    }
}

/// Writes a file if that changes it, so that cargo builds no more than it must.
fn replace(path: &Path, text: impl AsRef<[u8]>) {
    if fs::read(path).is_ok_and(|old| old == text.as_ref()) {
        return;
    }
    fs::write(path, text).expect("the target folder can be written");
}

/// The library, its tests and what they need, without the tools.
fn workspace() -> PathBuf {
    let (root, to) = (root(), root().join("target/plants"));
    copy(&root.join("crates"), &to.join("crates"));
    // Loom's tests take these in.
    for folder in ["kernel/src/lock", "kernel/src/sync"] {
        copy(&root.join(folder), &to.join(folder));
    }
    let manifest =
        fs::read_to_string(root.join("Cargo.toml")).expect("the workspace has a manifest");
    replace(&to.join("Cargo.toml"), manifest.replace(", \"xtask\"", ""));
    replace(
        &to.join("Cargo.lock"),
        fs::read_to_string(root.join("Cargo.lock")).expect("it is locked"),
    );
    to
}

/// Runs tests in a workspace: whether they passed, and what they printed.
fn run(workspace: &Path, tests: &[&str]) -> (bool, String) {
    let package: &[&str] = if tests.contains(&"-p") { &[] } else { &["-p", "uvm-check"] };
    let output = Command::new(env!("CARGO"))
        .args(["test", "--offline"])
        .args(package)
        .args(tests)
        .current_dir(workspace)
        .env("CARGO_TARGET_DIR", workspace.join("target"))
        .output()
        .expect("cargo runs");
    let text = [output.stdout, output.stderr]
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .concat();
    (output.status.success(), text)
}

/// A file's text with a plant in it; else the text that does not stand there once.
fn planted(plant: &Plant, sound: &str) -> Result<String, &'static str> {
    plant.changes.iter().try_fold(sound.to_owned(), |text, (from, to)| {
        match text.matches(from).count() {
            1 => Ok(text.replace(from, to)),
            _ => Err(*from),
        }
    })
}

#[test]
fn every_plant_has_its_text() {
    let crates = root().join("crates");
    let stale: Vec<_> = PLANTS
        .iter()
        .filter_map(|plant| {
            let sound = fs::read_to_string(crates.join(plant.file)).unwrap_or_default();
            let from = planted(plant, &sound).err()?;
            Some(format!("{}: not once in {}: {from}", plant.what, plant.file))
        })
        .collect();
    assert!(stale.is_empty(), "{} plants have no text:\n{}", stale.len(), stale.join("\n"));
}

/// A package's folder: some are published by a longer name (`docs/crates.md`).
fn folder(package: &str) -> &str {
    match package {
        "uvm-vm" => "uvm",
        "uvm-machine" => "machine",
        same => same,
    }
}

/// Whether tests that a plant names are there: `cargo test` passes where it has none to run.
fn has_tests(found_by: &[&str]) -> bool {
    let behind = |flag| Some(found_by[found_by.iter().position(|word| *word == flag)? + 1]);
    let package = root().join("crates").join(folder(behind("-p").unwrap_or("uvm-check")));
    let (tests, filter) = match (behind("--test"), found_by.last()) {
        (Some(target), Some(filter)) => {
            let file = package.join("tests").join(target).with_extension("rs");
            (if file.exists() { file } else { package.join("tests").join(target) }, filter)
        }
        (None, Some(filter)) => (package.join("src"), filter),
        (_, None) => return false,
    };
    // Without a filter all of the target's are run.
    let filter = if behind("--test") == Some(filter) { "" } else { filter.trim_end_matches("::") };
    let mut left = vec![tests];
    while let Some(path) = left.pop() {
        if let Ok(entries) = fs::read_dir(&path) {
            left.extend(entries.flatten().map(|entry| entry.path()));
            continue;
        }
        let is_module = path.file_stem().is_some_and(|stem| stem == filter);
        let text = fs::read_to_string(&path).unwrap_or_default();
        let is_test = |line: &str| line.contains("fn ") && line.contains(filter);
        if text.contains("#[test]") && (is_module || text.lines().any(is_test)) {
            return true;
        }
    }
    false
}

#[test]
fn every_plant_names_a_test() {
    let lost: Vec<_> = PLANTS
        .iter()
        .filter(|plant| !has_tests(plant.found_by))
        .map(|plant| format!("{}: {}", plant.what, plant.found_by.join(" ")))
        .collect();
    assert!(lost.is_empty(), "{} plants name no test:\n{}", lost.len(), lost.join("\n"));
}

#[test]
#[ignore = "builds the library once for each plant"]
fn every_planted_bug_is_found() {
    let workspace = workspace();
    let mut missed = Vec::new();
    let only = std::env::var("UVM_PLANT").unwrap_or_default();
    for plant in PLANTS.iter().filter(|plant| plant.what.contains(&only)) {
        let path = workspace.join("crates").join(plant.file);
        let sound = fs::read_to_string(&path).expect("the file is there");
        let text = planted(plant, &sound);
        replace(
            &path,
            text.unwrap_or_else(|from| panic!("{}: {from} is not there once", plant.what)),
        );
        let (passed, said) = run(&workspace, plant.found_by);
        replace(&path, &sound);
        assert!(said.contains("\nrunning "), "{}: no test was run: {said}", plant.what);
        let why = |word: &str| said.lines().find(|line| line.contains(word)).map(str::trim);
        let why =
            if passed { Some("NOT FOUND") } else { why("step ").or_else(|| why("panicked at")) };
        println!("{}: {}", plant.what, why.unwrap_or("killed"));
        if passed {
            missed.push(plant.what);
        }
    }
    assert!(missed.is_empty(), "nobody noticed: {missed:?}");
}
