//! What the head of the line makes of a pass: it tries again, waits, or believes that memory has
//! run out.
//!
//! It looks before the pass and after it ([`Sight`]), and judges both with what its passes have
//! come to so far ([`Past`]). No lock is held and nothing is looked for: each look costs as much as
//! reading some counters. With swap full memory has run out when all frames that are free, that
//! will be when transfers end, and that a pass could take yet are fewer than the low water mark:
//! programs would take each other's last pages in turn for ever. With room on swap what little
//! there is may be enough; that it isn't is believed the second time, with nothing under way.
//!
//! V1: who is refused could not have had more by waiting: nothing is under way, or with swap full
//! all of it is too little. V2: who waits is woken: something was under way after the ticket was
//! read. V3: who tries again has a reason that comes to an end: pages were freed, a transfer has
//! ended or failed, or others gave memory back, or are about to; and an operation's passes are
//! counted.

use super::Progress;

/// Passes of one operation that may lead to nothing but writes that fail.
const VAIN: u32 = 32;

/// Passes of one operation that may free pages without an end to it.
const CIRCLE: u32 = 100;

/// Moments that one operation gives those who are giving pages back. Each is done in a few; but who
/// gives back may sleep first for something else, with a page or two in hand, and on the only CPU
/// it doesn't run again before the operation is over.
const PAUSES: u32 = 1000;

/// What there was at a moment, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Sight {
    /// Free frames, those that are being given back among them.
    pub(super) free: usize,
    /// Those: others free them in a moment, without sleeping.
    pub(super) given_back: usize,
    /// Being written so that they can be freed.
    pub(super) leaving: usize,
    /// Being read: when that has ended they can be taken.
    pub(super) coming: usize,
    /// Free slots of swap.
    pub(super) places: usize,
    /// What a pass could take at most; without bound, if nothing is known.
    pub(super) fresh: usize,
    /// Freed by passes, and by writes that these have started, since the system was made.
    pub(super) freed: u64,
    /// Whose transfer has failed since then.
    pub(super) errors: u64,
}

/// What to do now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Try the operation again.
    TryAgain,
    /// The same, after others have had a moment.
    Pause,
    /// The same, once a transfer has ended.
    Wait,
    /// Memory has run out; or it is no memory that the operation lacks.
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
    /// A pass could not bring free pages up to the low water mark, with nothing under way.
    was_poor: bool,
}

impl Sight {
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
        before: &Sight,
        pass: Option<Progress>,
        after: &Sight,
    ) -> Verdict {
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
            return Verdict::Refuse;
        }
        if after.free > before.free + freed {
            // More than passes have freed: others gave memory back meanwhile.
            return Verdict::TryAgain;
        }
        if !has_failed && after.places == 0 && after.most().saturating_add(got.later) < low {
            return Verdict::Refuse;
        }
        let is_poor = would_be_free < low && under_way == 0 && !has_failed;
        if is_poor && core::mem::replace(&mut self.was_poor, true) {
            return Verdict::Refuse;
        }
        // What the first pass has freed is tried at once. An operation that needs two pages may
        // take one and lack the other, pass after pass; then it waits for what is under way.
        if freed != 0 && (self.passes <= 1 || after.free >= low) {
            return Verdict::TryAgain;
        }
        if under_way != 0 {
            return Verdict::Wait;
        }
        // What the pass wrote itself may have ended, too: a file's pages are clean then, and there
        // for the next.
        if freed != 0 || has_failed || before.under_way() + got.started != 0 {
            return Verdict::TryAgain;
        }
        if before.given_back + after.given_back != 0 && self.pauses < PAUSES {
            self.pauses += 1;
            return Verdict::Pause;
        }
        Verdict::Refuse
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
    const fn free(free: usize) -> Sight {
        Sight {
            free,
            given_back: 0,
            leaving: 0,
            coming: 0,
            places: 0,
            fresh: 0,
            freed: 0,
            errors: 0,
        }
    }

    fn got(freed: usize, started: usize) -> Option<Progress> {
        Some(Progress { freed, started, ..Progress::default() })
    }

    /// The first pass of an operation.
    fn first(before: Sight, pass: Option<Progress>, after: Sight) -> Verdict {
        Past::default().judge(LOW, &before, pass, &after)
    }

    #[test]
    fn a_pass_is_made_where_it_could_bring_free_pages_up_to_the_mark() {
        let table = [
            // Nothing can be taken, whatever is free.
            (free(3), false),
            (free(12), false),
            (Sight { fresh: 7, ..free(3) }, true),
            (Sight { fresh: 6, ..free(3) }, false),
            (Sight { fresh: 4, leaving: 3, ..free(3) }, true),
            // What is being read can't be taken now.
            (Sight { fresh: 4, coming: 3, ..free(3) }, false),
            (Sight { fresh: usize::MAX, ..free(0) }, true),
        ];
        for (sight, helps) in table {
            assert_eq!(sight.is_worth_a_pass(LOW), helps, "{sight:?}");
        }
    }

    #[test]
    fn memory_has_run_out_when_all_that_could_be_free_is_under_the_mark() {
        let table = [
            (free(0), Verdict::Refuse),
            (Sight { fresh: 9, ..free(0) }, Verdict::Refuse),
            // With what ends there are enough: it waits.
            (Sight { leaving: 10, ..free(0) }, Verdict::Wait),
            (Sight { coming: 10, ..free(0) }, Verdict::Wait),
            (Sight { fresh: 5, coming: 5, ..free(0) }, Verdict::Wait),
            // Without it there are not, so it need not wait.
            (Sight { leaving: 3, coming: 3, fresh: 3, ..free(0) }, Verdict::Refuse),
            // Pages are free that it could not use.
            (free(30), Verdict::Refuse),
            // Pages are not free yet, though they are counted so.
            (Sight { given_back: 6, ..free(10) }, Verdict::Pause),
            (Sight { given_back: 6, ..free(9) }, Verdict::Refuse),
        ];
        for (sight, verdict) in table {
            assert_eq!(first(sight, None, sight), verdict, "{sight:?}");
        }
    }

    #[test]
    fn what_a_pass_brings_is_tried_at_once_or_waited_for() {
        let unknown = Sight { fresh: usize::MAX, ..free(0) };
        let freed = Sight { free: 12, freed: 12, ..unknown };
        let started = Sight { leaving: 12, ..unknown };
        let used_by_others = Sight { freed: 12, ..unknown };
        let ended = Sight { leaving: 4, ..unknown };
        let table = [
            (unknown, got(12, 0), freed, Verdict::TryAgain),
            (unknown, got(0, 12), started, Verdict::Wait),
            (unknown, got(12, 0), used_by_others, Verdict::TryAgain),
            // What was under way has ended and is in use again: the next pass finds it.
            (ended, got(0, 0), unknown, Verdict::TryAgain),
            // The same of what it has written itself: a file's pages, which stay.
            (unknown, got(0, 12), unknown, Verdict::TryAgain),
            // Pages of files that the host writes in its own time.
            (unknown, Some(Progress { later: 1, ..Progress::default() }), unknown, Verdict::Wait),
        ];
        for (before, pass, after, verdict) in table {
            assert_eq!(first(before, pass, after), verdict, "{before:?} {pass:?} {after:?}");
        }
    }

    /// With swap full what passes free is read back at once; that others give memory back is
    /// another matter.
    #[test]
    fn little_that_was_freed_is_no_reason_to_go_on_and_what_others_give_back_is() {
        let before = Sight { fresh: usize::MAX, ..free(1) };
        let freed = Sight { free: 4, freed: 3, ..free(0) };
        assert_eq!(first(before, got(3, 0), freed), Verdict::Refuse);
        assert_eq!(first(before, got(3, 0), Sight { free: 5, ..freed }), Verdict::TryAgain);
    }

    #[test]
    fn with_room_on_swap_a_poor_pass_is_believed_the_second_time() {
        let mut past = Past::default();
        let before = Sight { places: 20, ..free(0) };
        let after = |freed| Sight { freed, ..before };
        assert_eq!(past.judge(LOW, &before, got(1, 0), &after(1)), Verdict::TryAgain);
        assert_eq!(past.judge(LOW, &after(1), got(1, 0), &after(2)), Verdict::Refuse);
    }

    #[test]
    fn a_second_pass_that_frees_little_waits_for_what_is_under_way() {
        let mut past = Past::default();
        let before = Sight { leaving: 20, fresh: usize::MAX, ..free(0) };
        let after = |freed| Sight { free: 1, freed, ..before };
        assert_eq!(past.judge(LOW, &before, got(1, 0), &after(1)), Verdict::TryAgain);
        assert_eq!(past.judge(LOW, &after(1), got(1, 0), &after(2)), Verdict::Wait);
    }

    #[test]
    fn writes_that_fail_end_an_operation_after_many_in_a_row() {
        let mut past = Past::default();
        let at = |errors, freed| Sight { errors, freed, ..free(0) };
        for n in 1..u64::from(VAIN) {
            assert_eq!(
                past.judge(LOW, &at(n - 1, 0), got(0, 0), &at(n, 0)),
                Verdict::TryAgain,
                "{n}"
            );
        }
        let mut other = past;
        assert_eq!(past.judge(LOW, &at(0, 0), got(0, 0), &at(1, 0)), Verdict::Refuse);
        // A page that was freed shows that some writes work.
        assert_eq!(other.judge(LOW, &at(0, 0), got(1, 0), &at(1, 1)), Verdict::TryAgain);
        assert_eq!(other.in_vain, 0);
    }

    #[test]
    fn who_never_gives_back_is_not_waited_for() {
        let (mut past, held) = (Past::default(), Sight { given_back: 1, ..free(20) });
        assert!((0..PAUSES).all(|_| past.judge(LOW, &held, None, &held) == Verdict::Pause));
        assert_eq!(past.judge(LOW, &held, None, &held), Verdict::Refuse);
    }

    #[test]
    fn passes_that_free_pages_without_an_end_end() {
        let mut past = Past::default();
        let at = |freed| Sight { fresh: usize::MAX, freed, ..free(0) };
        let tries = (1..).take_while(|&n| {
            past.judge(LOW, &at(20 * (n - 1)), got(20, 0), &at(20 * n)) == Verdict::TryAgain
        });
        assert_eq!(tries.count() as u32, CIRCLE - 1);
        // Waits without a pass count for none.
        let (mut past, under_way) = (Past::default(), Sight { coming: 20, ..free(0) });
        assert!(
            (0..2 * CIRCLE).all(|_| past.judge(LOW, &under_way, None, &under_way) == Verdict::Wait)
        );
    }
}
