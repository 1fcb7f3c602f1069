//! Whether some order of the operations explains what was seen.
//!
//! The model runs the operations one after another, in every order that agrees with what is known:
//! a thread's own order, and that an operation which had ended came before one that had not begun.
//! An order explains a run if the model answers each operation as the system did, and shows in the
//! end what the system showed (linearizability).
//!
//! A store to a private page that shows an object's is two moments: its fault copies the page, then
//! the store is made. What is written to the object between them doesn't show in the copy, and a
//! fork between them copies the copy. Wiring is two moments too: a mark, which keeps others from
//! discarding the page, then a fault. A copy of memory that others write has each page as it was at
//! some moment, and is mapped at another.

use uvm::{FaultError, GetError, RangeError, TransferError};
use uvm_check::model::{Contents, Expect, Model, COPIES};
use uvm_check::op::{Op, Span, Way, WORDS};
use uvm_check::world::answer::{compare, Got};

use crate::program::THREADS;
use crate::world::{Answer, EndState, Event};

/// What was seen of a program.
#[derive(Debug)]
pub struct Seen {
    /// The beginning's operations, in order.
    pub beginning: Vec<Event>,
    /// Each thread's, in order.
    pub threads: [Vec<Event>; THREADS],
    /// The end.
    pub end: EndState,
    /// What the disk had of the file, in the end.
    pub stored: Vec<Contents>,
}

/// The object that is a file, by its number in the model.
const FILE: usize = 1;

impl Seen {
    /// Finds an order.
    ///
    /// # Errors
    /// What was seen, and how far the longest order got.
    pub fn explain(&self) -> Result<(), String> {
        let mut model = Model::default();
        for event in &self.beginning {
            model = step(&model, event, false)
                .ok_or_else(|| format!("the beginning has no explanation: {event:?}\n{self:#?}"))?;
        }
        let mut longest = 0;
        if self.search(&model, [Progress::default(); THREADS], &mut longest) {
            return Ok(());
        }
        Err(format!(
            "no order explains this; the longest explains {longest} operations\n{}",
            self.told()
        ))
    }

    /// Whether the operations that are left have an order that begins in this state of the world.
    fn search(&self, model: &Model, at: [Progress; THREADS], longest: &mut usize) -> bool {
        *longest = (*longest).max(at.iter().map(|at| at.done).sum());
        let left = |thread: usize| self.threads[thread].get(at[thread].done);
        // What ended first most likely came first.
        let mut next: Vec<usize> = (0..THREADS).filter(|&thread| left(thread).is_some()).collect();
        if next.is_empty() {
            return self.ends_as(model);
        }
        next.sort_by_key(|&thread| left(thread).map(|event| event.end));
        let comes_after =
            |event: &Event| next.iter().any(|&t| left(t).is_some_and(|e| e.end < event.begin));
        next.iter().filter_map(|&thread| Some((thread, left(thread)?))).any(|(thread, event)| {
            if comes_after(event) {
                return false;
            }
            let goes_on = |model: &Model, progress, longest: &mut usize| {
                let mut at = at;
                at[thread] = progress;
                self.search(model, at, longest)
            };
            let Progress { done, has_begun } = at[thread];
            let ended = Progress { done: done + 1, has_begun: false };
            let step = |model: &Model| match (has_begun, is_copy(&event.op)) {
                (true, true) => end_of_copy(model, event, thread),
                _ => step(model, event, has_begun),
            };
            if step(model).is_some_and(|after| goes_on(&after, ended, longest)) {
                return true;
            }
            let has_no_effect =
                self.is_refused_early(model, event) || self.is_unsuitable_for_a_while(event);
            if has_no_effect && goes_on(model, ended, longest) {
                return true;
            }
            if self.is_shared_for_a_while(model, event) {
                let mut in_part = discarded_in_part(model, event);
                if in_part.any(|after| goes_on(&after, ended, longest)) {
                    return true;
                }
            }
            let begun = match (has_begun, is_copy(&event.op)) {
                (_, true) => moments_of_copy(model, event, thread, has_begun),
                (false, false) => Vec::from_iter(first_moment(model, event)),
                (true, false) => Vec::new(),
            };
            let is_begun = Progress { done, has_begun: true };
            begun.iter().any(|after| goes_on(after, is_begun, longest))
        })
    }

    /// Whether an operation was refused since a truncation was under way. Faults find the object
    /// shorter before its pages have gone, and a CPU uses a translation until the truncation has
    /// ended: the truncation counts as made then.
    fn is_refused_early(&self, model: &Model, event: &Event) -> bool {
        let past_end = [
            Got::Refused(FaultError::Bus),
            Got::Object(GetError::PastEnd),
            Got::Range(RangeError::Fault),
        ];
        let is_past_end = matches!(&event.answer, Answer::Got(got) if past_end.contains(got));
        is_past_end
            && self.met_by(event, |other| {
                matches!(other.op, Op::Truncate { .. }) && {
                    let mut after = model.clone();
                    after.apply(&other.op);
                    step(&after, event, false).is_some()
                }
            })
    }

    /// Whether a transfer found a reference to the page that another operation was about to drop:
    /// references go after addresses, and a host that is told «unsuitable» copies.
    fn is_unsuitable_for_a_while(&self, event: &Event) -> bool {
        event.answer == Answer::Got(Got::Transfer(TransferError::Unsuitable))
            && self.met_by(event, |other| other.op != event.op)
    }

    /// Whether a discard, which says what it would say otherwise, found memory shared that another
    /// operation was about to let go of: a reference to an amap goes after its addresses, and
    /// shared memory stays.
    fn is_shared_for_a_while(&self, model: &Model, event: &Event) -> bool {
        let lets_go = |op: &Op| {
            matches!(
                op,
                Op::Unmap { .. } | Op::Map { .. } | Op::Remap { .. } | Op::RemapKeep { .. }
            ) || matches!(op, Op::Clear { .. } | Op::Exit { .. })
                || matches!(op, Op::AttachRange { .. } | Op::DropRange { .. })
                || matches!(op, Op::Pass { .. } | Op::Extract { .. })
        };
        matches!(event.op, Op::Discard { .. })
            && self.met_by(event, |other| lets_go(&other.op))
            && step(model, event, false).is_some()
    }

    /// Whether any operation that was under way at the same time is such a one.
    fn met_by(&self, event: &Event, is_such: impl Fn(&Event) -> bool) -> bool {
        self.threads.iter().flatten().any(|other| event.meets(other) && is_such(other))
    }

    fn ends_as(&self, model: &Model) -> bool {
        let pages = self.end.pages.iter().enumerate().all(|(s, pages)| {
            pages.iter().zip(0..).all(|(seen, page)| match seen {
                None => model.spaces[s].is_none(),
                Some(got) => compare(&model.reads(s, page), got).is_ok(),
            })
        });
        let object = &model.objects[FILE];
        let is_stored = |index: u64, on_disk: &Contents| {
            let ought = object.pages.get(&index).filter(|_| index < object.len);
            ought.is_none_or(|ought| ought == on_disk)
        };
        pages
            && self.end.loans == model.loans
            && (0..).zip(&self.stored).all(|(i, page)| is_stored(i, page))
    }

    /// What was seen, a line each.
    fn told(&self) -> String {
        let line = |event: &Event| {
            let Event { op, number, answer, begin, end } = event;
            format!("  [{begin:3}..{end:3}] {op:?} (number {number:#x}) -> {answer:x?}\n")
        };
        let mut text = String::from("beginning\n");
        text.extend(self.beginning.iter().map(line));
        for (n, thread) in self.threads.iter().enumerate() {
            text += &format!("thread {n}\n");
            text.extend(thread.iter().map(line));
        }
        for (s, pages) in self.end.pages.iter().enumerate() {
            for (page, seen) in
                pages.iter().enumerate().filter_map(|(page, seen)| Some((page, (*seen)?)))
            {
                if seen != Got::Refused(FaultError::NoMapping) {
                    text += &format!("end: space {s} page {page}: {seen:x?}\n");
                }
            }
        }
        text + &format!("end: loans {:x?}\nend: the disk has {:x?}", self.end.loans, self.stored)
    }
}

/// The worlds after a discard that found all pages or some of them shared: each entry's amap is
/// asked by itself.
fn discarded_in_part<'a>(model: &'a Model, event: &Event) -> impl Iterator<Item = Model> + 'a {
    let (s, span) = match event.op {
        Op::Discard { s, span } => (s, span),
        _ => (0, Span(0, 0)),
    };
    (0..(1u64 << span.1) - 1).map(move |chosen| {
        let mut after = model.clone();
        for page in span.pages().filter(|page| chosen >> (page - span.0) & 1 == 1) {
            after.apply(&Op::Discard { s, span: Span(page, 1) });
        }
        after
    })
}

/// How far a thread has come.
#[derive(Clone, Copy, Default)]
struct Progress {
    /// Operations that are explained.
    done: usize,
    /// The first moment of the next one is over.
    has_begun: bool,
}

/// The world after the first of two moments of an operation, if that changes anything.
fn first_moment(model: &Model, event: &Event) -> Option<Model> {
    let mut after = model.clone();
    match event.op {
        Op::Write { s, page, .. } => after.prepare_store(s, page),
        Op::Pin { s, span, access: 2, .. } => after.prepare_store(s, span.0),
        Op::Wire { s, span } => drop(after.apply(&Op::WireTouched { s, span })),
        _ => return None,
    }
    (after != *model).then_some(after)
}

fn is_copy(op: &Op) -> bool {
    matches!(op, Op::Fork { .. })
        || matches!(op, Op::Extract { way: Way::Copy, .. })
        || matches!(op, Op::Pass { way: Way::Copy | Way::Share, .. })
}

/// The worlds after the next moment of a copy of memory that others write.
fn moments_of_copy(model: &Model, event: &Event, thread: usize, has_begun: bool) -> Vec<Model> {
    let mut after = model.clone();
    if !has_begun {
        return if after.begin_copy(thread, &event.op) { vec![after] } else { Vec::new() };
    }
    let left = model.copies[thread].iter().flat_map(|copy| &copy.left);
    left.map(|&page| {
        let mut after = model.clone();
        after.copy_page(thread, page);
        after
    })
    .collect()
}

/// The world after the last moment of such a copy.
fn end_of_copy(model: &Model, event: &Event, thread: usize) -> Option<Model> {
    let mut after = model.clone();
    let expect = after.end_copy(thread, &event.op);
    matches!(&event.answer, Answer::Got(got) if compare(&expect, got).is_ok()).then_some(after)
}

/// The world after an operation, or after its second moment, if the model answers as the system
/// did.
fn step(model: &Model, event: &Event, has_begun: bool) -> Option<Model> {
    let mut after = model.clone();
    after.number_next_store(event.number);
    if let Op::Unpin { p, .. } = event.op {
        // A device of these programs only reads.
        after.pins[p].iter_mut().for_each(|pins| pins.access = 1);
    }
    if let (Op::Return { l }, Answer::Loan(bytes)) = (event.op, &event.answer) {
        if after.loans[l].as_ref() != Some(bytes) {
            return None;
        }
    }
    if let (Op::Wire { s, span }, true) = (event.op, has_begun) {
        // What can't be brought in isn't wired.
        match event.answer {
            Answer::Got(Got::Done) => after.prepare_store(s, span.0),
            _ => drop(after.apply(&Op::Unwire { s, span })),
        }
        return Some(after);
    }
    let op = match event.op {
        // Pages that are clean leave memory, which shows nowhere.
        Op::Sync { o } => Op::Clean { o, span: Span(0, 1) },
        Op::Give { l, s, span } if event.answer == Answer::LoanedInstead => Op::Loan { l, s, span },
        op => op,
    };
    let expect = after.apply(&op);
    let agrees = match (&event.answer, &expect) {
        (Answer::Skipped, Expect::Skip) => true,
        (_, Expect::Skip) => false,
        (Answer::Word(word, seen), Expect::Sees(contents)) => contents[*word] == *seen,
        (Answer::Fetched, Expect::Sees(_)) => true,
        (Answer::Loan(_) | Answer::LoanedInstead, Expect::Done) => true,
        (Answer::Got(got), expect) => compare(expect, got).is_ok(),
        _ => false,
    };
    agrees.then_some(after)
}

const _: () = assert!(THREADS <= COPIES, "each may copy");
const _: () = assert!(WORDS > 1, "a page has words that different CPUs look at");
