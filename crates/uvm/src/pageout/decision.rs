//! The out-of-memory decision: what the thread whose turn it is does after a pass. It tries again,
//! waits, or is refused.
//!
//! It compares counts before the pass and after it ([`MemoryState`]) with what its passes have come
//! to so far ([`Past`]). No lock is held and nothing is scanned: each comparison costs as much as
//! reading some counters. With swap full memory has run out when all frames that are free, that
//! will be when transfers end, and that a pass could take yet are fewer than the low water mark:
//! programs would take each other's last pages in turn for ever. With room on swap what little
//! there is may be enough; that it isn't is believed after [`POOR`] passes in a row, with nothing
//! under way. Before that the thread pauses: pages that other threads' accesses have just taken are
//! on no queue yet, where a pass would find them, and will be once those threads have run.
//!
//! V1: a refused thread could not have had more by waiting: nothing is under way, or with swap full
//! all of it is too little. V2: a waiting thread is woken: something was under way after the ticket
//! was read. V3: a thread that tries again has a reason that comes to an end: pages were freed, a
//! transfer has ended or failed, or other threads freed memory, or are about to; and an operation's
//! passes are counted.

use super::Progress;

/// Passes of one operation that may lead to nothing but writes that fail.
const VAIN: u32 = 32;

/// Passes of one operation that may free pages without an end to it.
const CIRCLE: u32 = 100;

/// Poor passes of one operation in a row after which it is refused.
const POOR: u32 = 8;

/// Pauses of one operation for threads that are freeing pages. Each is done in a few; but a thread
/// may sleep before it frees a page or two that it has, and on the only CPU it doesn't run again
/// before the operation is over.
const PAUSES: u32 = 1000;

/// Counts of one moment, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct MemoryState {
    /// Free frames, and those that are being freed.
    pub(super) free: usize,
    /// Frames that other threads are freeing, without sleeping.
    pub(super) being_freed: usize,
    /// Being written so that they can be freed.
    pub(super) leaving: usize,
    /// Being read: when that has ended they can be taken.
    pub(super) coming: usize,
    /// Free slots of swap.
    pub(super) free_slots: usize,
    /// What a pass could take at most; `usize::MAX`, if nothing is known.
    pub(super) fresh: usize,
    /// Freed by passes, and by writes that these have started, since the system was made.
    pub(super) freed: u64,
    /// Failed transfers since then.
    pub(super) errors: u64,
}

/// What to do now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Decision {
    /// Try the operation again.
    TryAgain,
    /// Try it again after a pause.
    Pause,
    /// Try it again once a transfer has ended.
    Wait,
    /// Memory has run out; or the operation lacks something else.
    Refuse,
}

/// What the passes of one operation have come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Past {
    /// Passes in all.
    passes: u32,
    /// Passes since a page was last freed of which writes failed.
    in_vain: u32,
    pauses: u32,
    /// Passes in a row that could not bring free pages up to the low water mark, with nothing under
    /// way.
    poor: u32,
}

impl MemoryState {
    pub(super) fn under_way(&self) -> usize {
        self.leaving + self.coming
    }

    /// Frames that can be free at most once everything under way has ended.
    fn most(&self) -> usize {
        (self.free + self.under_way()).saturating_add(self.fresh)
    }

    /// Whether a pass may bring free pages up to the `low` water mark, or beyond it by a page.
    pub(super) fn is_worth_a_pass(&self, low: usize) -> bool {
        self.fresh != 0 && (self.free + self.leaving).saturating_add(self.fresh) >= low
    }
}

impl Past {
    /// Judges a pass by what was there `before` it and is `after` it; none, if it would have been
    /// in vain.
    pub(super) fn judge(
        &mut self,
        low: usize,
        before: &MemoryState,
        pass: Option<Progress>,
        after: &MemoryState,
    ) -> Decision {
        let got = pass.unwrap_or_default();
        let freed = (after.freed - before.freed) as usize;
        let under_way = after.under_way() + got.later;
        let has_failed = after.errors != before.errors;
        // Free pages, had others used none of them: those that are gone can be taken from them
        // again.
        let would_be_free = before.free
            + before.leaving
            + before.coming.max(after.coming)
            + got.freed
            + got.started
            + got.later;
        self.count(pass, freed, has_failed);
        if self.in_vain == VAIN || self.passes == CIRCLE {
            return Decision::Refuse;
        }
        if after.free > before.free + freed {
            // More than passes have freed: others gave memory back meanwhile.
            return Decision::TryAgain;
        }
        if !has_failed && after.free_slots == 0 && after.most().saturating_add(got.later) < low {
            return Decision::Refuse;
        }
        let is_poor = would_be_free < low && under_way == 0 && !has_failed;
        self.poor = if is_poor { self.poor + 1 } else { 0 };
        let has_swap = after.free_slots != 0;
        match self.poor {
            0 | 1 => {}
            2..POOR if has_swap => return Decision::Pause,
            _ => return Decision::Refuse,
        }
        // What the first pass has freed is tried at once. An operation that needs two pages may
        // take one and lack the other, pass after pass; then it waits for what is under way.
        if freed != 0 && (self.passes <= 1 || after.free >= low) {
            return Decision::TryAgain;
        }
        if under_way != 0 {
            return Decision::Wait;
        }
        // What the pass wrote itself may have ended, too: a file's pages are clean then, and there
        // for the next.
        if freed != 0 || has_failed || before.under_way() + got.started != 0 {
            return Decision::TryAgain;
        }
        if before.being_freed + after.being_freed != 0 && self.pauses < PAUSES {
            self.pauses += 1;
            return Decision::Pause;
        }
        match is_poor && has_swap {
            true => Decision::Pause,
            false => Decision::Refuse,
        }
    }

    fn count(&mut self, pass: Option<Progress>, freed: usize, has_failed: bool) {
        self.passes += u32::from(pass.is_some());
        self.in_vain = match freed {
            0 => self.in_vain + u32::from(has_failed),
            _ => 0,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOW: usize = 10;

    /// So many free frames, and nothing else.
    const fn free(free: usize) -> MemoryState {
        MemoryState {
            free,
            being_freed: 0,
            leaving: 0,
            coming: 0,
            free_slots: 0,
            fresh: 0,
            freed: 0,
            errors: 0,
        }
    }

    fn got(freed: usize, started: usize) -> Option<Progress> {
        Some(Progress { freed, started, ..Progress::default() })
    }

    /// The first pass of an operation.
    fn first(before: MemoryState, pass: Option<Progress>, after: MemoryState) -> Decision {
        Past::default().judge(LOW, &before, pass, &after)
    }

    #[test]
    fn a_pass_is_made_where_it_could_bring_free_pages_up_to_the_mark() {
        let table = [
            // Nothing can be taken, whatever is free.
            (free(3), false),
            (free(12), false),
            (MemoryState { fresh: 7, ..free(3) }, true),
            (MemoryState { fresh: 6, ..free(3) }, false),
            (MemoryState { fresh: 4, leaving: 3, ..free(3) }, true),
            // What is being read can't be taken now.
            (MemoryState { fresh: 4, coming: 3, ..free(3) }, false),
            (MemoryState { fresh: usize::MAX, ..free(0) }, true),
        ];
        for (state, helps) in table {
            assert_eq!(state.is_worth_a_pass(LOW), helps, "{state:?}");
        }
    }

    #[test]
    fn memory_has_run_out_when_all_that_could_be_free_is_under_the_mark() {
        let table = [
            (free(0), Decision::Refuse),
            (MemoryState { fresh: 9, ..free(0) }, Decision::Refuse),
            // With what ends there are enough: it waits.
            (MemoryState { leaving: 10, ..free(0) }, Decision::Wait),
            (MemoryState { coming: 10, ..free(0) }, Decision::Wait),
            (MemoryState { fresh: 5, coming: 5, ..free(0) }, Decision::Wait),
            // Without it there are not, so it need not wait.
            (MemoryState { leaving: 3, coming: 3, fresh: 3, ..free(0) }, Decision::Refuse),
            // Pages are free that it could not use.
            (free(30), Decision::Refuse),
            // Pages are not free yet, though they are counted so.
            (MemoryState { being_freed: 6, ..free(10) }, Decision::Pause),
            (MemoryState { being_freed: 6, ..free(9) }, Decision::Refuse),
        ];
        for (state, decision) in table {
            assert_eq!(first(state, None, state), decision, "{state:?}");
        }
    }

    #[test]
    fn what_a_pass_brings_is_tried_at_once_or_waited_for() {
        let unknown = MemoryState { fresh: usize::MAX, ..free(0) };
        let freed = MemoryState { free: 12, freed: 12, ..unknown };
        let started = MemoryState { leaving: 12, ..unknown };
        let used_by_others = MemoryState { freed: 12, ..unknown };
        let ended = MemoryState { leaving: 4, ..unknown };
        let table = [
            (unknown, got(12, 0), freed, Decision::TryAgain),
            (unknown, got(0, 12), started, Decision::Wait),
            (unknown, got(12, 0), used_by_others, Decision::TryAgain),
            // What was under way has ended and is in use again: the next pass finds it.
            (ended, got(0, 0), unknown, Decision::TryAgain),
            // So is what it has written itself: a file's pages, which stay.
            (unknown, got(0, 12), unknown, Decision::TryAgain),
            // Pages of files that the host writes in its own time.
            (unknown, Some(Progress { later: 1, ..Progress::default() }), unknown, Decision::Wait),
        ];
        for (before, pass, after, decision) in table {
            assert_eq!(first(before, pass, after), decision, "{before:?} {pass:?} {after:?}");
        }
    }

    /// With swap full what passes free is read back at once; that others give memory back is
    /// another matter.
    #[test]
    fn little_that_was_freed_is_no_reason_to_go_on_and_what_others_give_back_is() {
        let before = MemoryState { fresh: usize::MAX, ..free(1) };
        let freed = MemoryState { free: 4, freed: 3, ..free(0) };
        assert_eq!(first(before, got(3, 0), freed), Decision::Refuse);
        assert_eq!(first(before, got(3, 0), MemoryState { free: 5, ..freed }), Decision::TryAgain);
    }

    #[test]
    fn with_room_on_swap_poor_passes_are_believed_after_some_in_a_row() {
        let before = MemoryState { free_slots: 20, ..free(0) };
        let after = |freed| MemoryState { freed, ..before };
        let poor = |past: &mut Past, n| past.judge(LOW, &after(n), got(1, 0), &after(n + 1));
        let mut past = Past::default();
        assert_eq!(poor(&mut past, 0), Decision::TryAgain);
        assert!((2..POOR).all(|n| poor(&mut past, n.into()) == Decision::Pause));
        assert_eq!(poor(&mut past, POOR.into()), Decision::Refuse);
        // One that is not poor has found what other threads' accesses had.
        let mut past = Past::default();
        (1..POOR).for_each(|n| _ = poor(&mut past, n.into()));
        let good = MemoryState { free: 12, freed: 112, ..before };
        assert_eq!(past.judge(LOW, &after(100), got(12, 0), &good), Decision::TryAgain);
        assert_eq!(poor(&mut past, 200), Decision::TryAgain);
        // Pages that accesses have just taken are on no queue: a pass finds nothing, or none is
        // made.
        for pass in [got(0, 0), None] {
            let mut past = Past::default();
            let mut judge = || past.judge(LOW, &before, pass, &before);
            assert!((1..POOR).all(|_| judge() == Decision::Pause));
            assert_eq!(judge(), Decision::Refuse);
        }
    }

    #[test]
    fn a_second_pass_that_frees_little_waits_for_what_is_under_way() {
        let mut past = Past::default();
        let before = MemoryState { leaving: 20, fresh: usize::MAX, ..free(0) };
        let after = |freed| MemoryState { free: 1, freed, ..before };
        assert_eq!(past.judge(LOW, &before, got(1, 0), &after(1)), Decision::TryAgain);
        assert_eq!(past.judge(LOW, &after(1), got(1, 0), &after(2)), Decision::Wait);
    }

    #[test]
    fn writes_that_fail_end_an_operation_after_many_in_a_row() {
        let mut past = Past::default();
        let at = |errors, freed| MemoryState { errors, freed, ..free(0) };
        for n in 1..u64::from(VAIN) {
            assert_eq!(
                past.judge(LOW, &at(n - 1, 0), got(0, 0), &at(n, 0)),
                Decision::TryAgain,
                "{n}"
            );
        }
        let mut other = past;
        assert_eq!(past.judge(LOW, &at(0, 0), got(0, 0), &at(1, 0)), Decision::Refuse);
        // A page that was freed shows that some writes work.
        assert_eq!(other.judge(LOW, &at(0, 0), got(1, 0), &at(1, 1)), Decision::TryAgain);
        assert_eq!(other.in_vain, 0);
    }

    #[test]
    fn who_never_gives_back_is_not_waited_for() {
        let (mut past, held) = (Past::default(), MemoryState { being_freed: 1, ..free(20) });
        assert!((0..PAUSES).all(|_| past.judge(LOW, &held, None, &held) == Decision::Pause));
        assert_eq!(past.judge(LOW, &held, None, &held), Decision::Refuse);
    }

    #[test]
    fn passes_that_free_pages_without_an_end_end() {
        let mut past = Past::default();
        let at = |freed| MemoryState { fresh: usize::MAX, freed, ..free(0) };
        let tries = (1..).take_while(|&n| {
            past.judge(LOW, &at(20 * (n - 1)), got(20, 0), &at(20 * n)) == Decision::TryAgain
        });
        assert_eq!(tries.count() as u32, CIRCLE - 1);
        // Waits without a pass count for none.
        let (mut past, under_way) = (Past::default(), MemoryState { coming: 20, ..free(0) });
        assert!((0..2 * CIRCLE)
            .all(|_| past.judge(LOW, &under_way, None, &under_way) == Decision::Wait));
    }
}
