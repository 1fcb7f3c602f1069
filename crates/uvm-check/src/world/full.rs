//! When an operation may say that there is no memory: when there was none.
//!
//! What programs have is counted, not what the VM system does about it: anonymous pages wherever
//! they are, frames that nothing can take away, slots that work. Files cost nothing: their pages
//! can be written back and read again. The system's own number of anonymous pages is held against
//! the model's after each step, and its audit recounts it; so it can't hide a leak behind a
//! shortage.

use uvm::page::Class;
use uvm::LoanedPage;

use super::*;

/// What there is, and what it is used for, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Room {
    /// Frames that programs may have: memory has run out when no more than the low water mark can
    /// be free.
    frames: usize,
    /// Of these, such as can't be taken: wired, pinned, a ROM's.
    fixed: usize,
    /// Of these, such as hold no program's anonymous page.
    others: usize,
    /// Slots that work, on devices that will be on, but for the last few of many, which count as
    /// none.
    slots: usize,
    /// Pages that zram may hold, and frames of `frames` that this takes.
    zram: usize,
    zram_frames: usize,
    /// Anonymous pages in memory, in zram and on swap.
    anonymous: usize,
}

impl<M: Desk> World<M> {
    /// Says what is wrong with an operation that found no memory, if anything. Two excuses need no
    /// count: a failure that was injected into the operation itself, and writes that fail for good,
    /// since dirty pages then can't leave. A device that is switched off needs room even for what
    /// the operation itself doesn't.
    pub(super) fn excuse_shortage(&self, op: &Op) -> Result<(), String> {
        if self.is_injected || self.line.writes.lasts() {
            return Ok(());
        }
        let (needs, room) = (self.needs(op), self.room(op));
        let keeps = if let Op::SwapOff { .. } | Op::Zram { .. } = op { 1 } else { needs };
        // Zram's last frame goes after its last page has got another.
        let in_all = if let Op::Zram { .. } = op { 1 } else { needs };
        let frames = room.frames - room.zram_frames;
        if keeps != 0
            && (room.fixed + keeps > frames
                || room.anonymous + room.others + in_all > frames + room.slots + room.zram)
        {
            return Ok(());
        }
        Err(format!(
            "{op:?}: no memory is said to be left for {needs} pages, and there is: {room:?}"
        ))
    }

    /// Frames that an operation may need at once.
    fn needs(&self, op: &Op) -> usize {
        match *op {
            Op::Read { .. } | Op::Write { .. } | Op::Execute { .. } => 2,
            Op::ObjectRead { .. } | Op::ObjectWrite { .. } => 1,
            Op::Wire { span, .. } | Op::Pin { span, .. } => span.1 as usize + 1,
            Op::Inspect { span, .. } | Op::Patch { span, .. } => span.1 as usize + 1,
            Op::Pass { s, span, way: Way::Copy, .. }
            | Op::Extract { s, span, way: Way::Copy, .. } => {
                let wired = |&page: &u64| self.model.page(s, page).is_some_and(|at| at.wired);
                span.pages().filter(wired).count() + self.on_loan(s).min(span.1 as usize)
            }
            Op::Transfer { l, .. } | Op::TransferAnywhere { l, .. } => {
                self.model.loans[l].as_ref().map_or(0, |loan| loan.len() + 1)
            }
            Op::Loan { span, .. } | Op::Give { span, .. } | Op::LoanObject { span, .. } => {
                span.1 as usize + 1
            }
            // Copies of wired pages, and of what is on loan, are made at once.
            Op::Fork { s, .. } => {
                let pages = self.model.spaces[s].iter().flat_map(|space| space.values());
                pages.filter(|at| at.wired).count() + self.on_loan(s)
            }
            _ => 0,
        }
    }

    /// Pages that a space's slots have on loan.
    fn on_loan(&self, s: usize) -> usize {
        let mut sum = 0;
        self.uvm.describe(&mut ThreadCtx::new().held(), self.space(s), |entry| {
            sum += entry.layers.borrowed
        });
        sum
    }

    fn room(&self, op: &Op) -> Room {
        let mut ctx = ThreadCtx::new();
        let held = &mut ctx.held();
        let frames = self.machine().frames();
        let leaving = if let Op::SwapOff { d } = *op { self.on[d] } else { None };
        let devices = self.uvm.swap_info(held);
        let zram = self.zram.as_ref().map(|(_, id)| *id);
        let staying = devices.iter().filter(|d| Some(d.id) != leaving && Some(d.id) != zram);
        let slots: u32 = staying.map(|device| device.slots - device.bad - device.slots / 64).sum();
        let kept: Vec<PageNo> =
            self.loans.iter().flatten().flat_map(Loan::pages).map(LoanedPage::page).collect();
        // A slot's loan keeps no page of a program, nor one without owner: the page daemon gives
        // the slot an anon.
        let is_slots = |page: PageNo| {
            let is_loaned = frames.hold_count(page) == frames.loans(page) && !kept.contains(&page);
            is_loaned && (frames.is_disowned(page) || matches!(frames.owner(page), Owner::Anon(_)))
        };
        let is_fixed = |&page: &PageNo| frames.hold_count(page) != 0 && !is_slots(page);
        let fixed = || (0..frames.total() as u32).map(PageNo).filter(is_fixed);
        let is_owned = |page| matches!(frames.owner(page), Owner::Anon(_) | Owner::Object(_));
        let is_anonymous = |page| is_owned(page) && frames.class(page) == Class::Anon;
        let stored: usize = self
            .objects
            .iter()
            .filter(|pager| pager.kind() == "anonymous")
            .map(|pager| pager.object().resident(held) + pager.object().stored(held))
            .sum();
        let (zram, zram_frames) = match *op {
            Op::Zram { percent: 0 } => (0, 0),
            _ => self.room_in_zram(),
        };
        Room {
            frames: frames.total() - frames.low_water(),
            fixed: fixed().count(),
            others: fixed().filter(|&page| !is_anonymous(page)).count(),
            slots: slots as usize,
            zram,
            zram_frames,
            anonymous: self.uvm.anons() + stored,
        }
    }

    /// Pages that zram may hold, and the frames that it has then: those that it has now, and
    /// more where one makes room for several pages. All pages of a world get so small that sixteen
    /// share a frame.
    fn room_in_zram(&self) -> (usize, usize) {
        let (info, total) = (self.zram_info(), self.machine().frames().total());
        if info.percent == 0 {
            return (0, 0);
        }
        let (has, most) = (info.frames as usize, (total * usize::from(info.percent) / 100).max(1));
        let slots = 2 * total;
        let pages = |frames: usize| slots.min(CELLS * frames).max(info.pages as usize);
        let frames = (has..=has.max(most)).max_by_key(|&frames| pages(frames) + total - frames);
        frames.map_or((0, 0), |frames| (pages(frames), frames))
    }

    /// There are no more anonymous pages than the model has places for.
    pub(super) fn check_anons(&self) -> Result<(), String> {
        let (anons, most) = (self.uvm.anons(), self.model.cells());
        if anons > most {
            return Err(format!("{anons} pages of private memory are kept, and {most} are mapped"));
        }
        Ok(())
    }
}

/// Chunks of the smallest size in a frame of zram.
const CELLS: usize = 16;
