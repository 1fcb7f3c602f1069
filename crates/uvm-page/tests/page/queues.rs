//! Free lists and queues (`uvm::page`) of two CPUs, against plain lists of the same.

use std::collections::BTreeSet;

use machine::order::{Held, Nothing};
use machine::{NoMemory, Pa, PageNo, ThreadCtx};
use uvm::page::{Class, Gather, PageFlags, Place, Queue, SCAN};
use uvm::page::{Frames, Owner, Reserve, Slot, Unmapped};
use uvm_soft::{Config, Rng, SoftMachine};

/// Frames of each segment, and of the devices behind them.
const SEGMENTS: [u32; 2] = [150, 80];
const ALL: u32 = SEGMENTS[0] + SEGMENTS[1];

/// Pages that each reserve is kept from, of so many.
fn kept_from(reserve: Reserve) -> usize {
    match reserve {
        Reserve::User => 4,
        Reserve::Kernel => 2,
        Reserve::Pageout => 0,
    }
}

fn machine() -> SoftMachine {
    let segments = vec![(Pa(0x100_0000), SEGMENTS[0]), (Pa(0x10_0000), SEGMENTS[1])];
    SoftMachine::new(Config {
        segments,
        devices: vec![(Pa(0x800_0000), 3)],
        cpus: 2,
        ..Config::default()
    })
}

/// What has been taken from a machine's free pages, and where it is.
struct World<'m> {
    m: &'m SoftMachine,
    /// On no queue.
    idle: Vec<PageNo>,
    /// In a batch, or linked by now.
    pending: Vec<PageNo>,
    /// In order.
    active: Vec<PageNo>,
    inactive: Vec<PageNo>,
    random: Rng,
}

type Token<'a> = Held<'a, Nothing>;

impl World<'_> {
    fn frames(&self) -> &Frames<SoftMachine> {
        self.m.frames()
    }

    fn below(&mut self, n: usize) -> usize {
        self.random.below(n as u64) as usize
    }

    fn taken(&self) -> impl Iterator<Item = PageNo> + '_ {
        [&self.idle, &self.pending, &self.active, &self.inactive].into_iter().flatten().copied()
    }

    fn free(&self) -> usize {
        ALL as usize - self.taken().count()
    }

    fn forget(&mut self, page: PageNo) {
        [&mut self.idle, &mut self.pending, &mut self.active, &mut self.inactive]
            .into_iter()
            .for_each(|list| list.retain(|&p| p != page));
    }

    /// Some of the pages that were taken, each at most once.
    fn some(&mut self, most: usize) -> Vec<PageNo> {
        let mut all: Vec<_> = self.taken().collect();
        let count = self.below(most + 1).min(all.len());
        (0..count).map(|_| all.swap_remove(self.below(all.len()))).collect()
    }

    /// A page that was just taken: no other thread has it, and it knows of no earlier owner.
    fn takes(&mut self, page: PageNo) {
        let f = self.frames();
        assert!(page.0 < ALL && !self.taken().any(|p| p == page), "{page:?} is taken");
        assert_eq!((f.owner(page), f.place(page)), (Owner::Kernel, Place::Nowhere));
        assert_eq!(
            (f.flags(page), f.hold_count(page), f.slot(page)),
            (PageFlags::empty(), 0, None)
        );
        let class = *self.random.pick(&[PageFlags::empty(), PageFlags::FILE, PageFlags::EXEC]);
        self.frames().set_owner(page, Owner::Anon(page.0), 0);
        self.frames().set_slot(page, Slot::new(7));
        self.frames().set_flags(page, class | PageFlags::CLEAN);
        self.idle.push(page);
    }

    fn alloc(&mut self, h: &mut Token<'_>) {
        let reserve =
            *self.random.pick(&[Reserve::User, Reserve::User, Reserve::Kernel, Reserve::Pageout]);
        let count = *self.random.pick(&[1, 1, 5, 31, 32, 33, 90]);
        let (before, refusals) = (self.free(), self.frames().refusals());
        let mut got = Vec::new();
        let done = if count == 1 {
            self.frames().alloc(self.m, h, reserve).map(|page| got.push(page))
        } else {
            self.frames().alloc_many(self.m, h, reserve, count, |page| got.push(page))
        };
        let is_refused = done == Err(NoMemory);
        assert_eq!(got.len() == count, !is_refused);
        assert!(!is_refused || before - got.len() <= kept_from(reserve), "{before} were free");
        assert_eq!(self.frames().refusals(), refusals + usize::from(is_refused));
        got.into_iter().for_each(|page| self.takes(page));
    }

    /// A run is there if as many pages as the next power of two are free side by side, aligned.
    fn alloc_run(&mut self, h: &mut Token<'_>) {
        let count = self.below(90) as u32;
        let taken: BTreeSet<_> = self.taken().map(|page| page.0).collect();
        let size = count.next_power_of_two();
        let aligned = |no: u32| {
            let frame = (self.frames().pa(PageNo(no)).0 >> machine::PAGE_SHIFT) as u32;
            frame.is_multiple_of(size)
        };
        let any = [0..SEGMENTS[0], SEGMENTS[0]..ALL].into_iter().any(|segment| {
            (segment.start..(segment.end + 1).saturating_sub(size))
                .any(|first| aligned(first) && taken.range(first..first + size).next().is_none())
        });
        let is_there = count > 0 && self.free() >= count as usize + kept_from(Reserve::User);
        let refusals = self.frames().refusals();
        let found = self.frames().alloc_run(self.m, h, count);
        assert_eq!(found.is_ok(), any && is_there, "{count} of {taken:?}");
        assert_eq!(self.frames().refusals(), refusals + usize::from(found.is_err()));
        if let Ok(PageNo(first)) = found {
            assert!(aligned(first), "{count} from {first} on");
            (first..first + count).for_each(|no| self.takes(PageNo(no)));
        }
    }

    fn free_idle(&mut self, h: &mut Token<'_>) {
        for _ in 0..self.below(self.idle.len() + 1) {
            let at = self.below(self.idle.len());
            let page = self.idle.swap_remove(at);
            self.frames().free_page(self.m, h, page);
            assert_eq!(self.frames().owner(page), Owner::Free);
        }
    }

    fn release(&mut self, h: &mut Token<'_>) {
        let mut down = Gather::new();
        let pages = self.some(80);
        for &page in &pages {
            self.frames().release(h, Unmapped::by_ranges(page), &mut down);
            self.forget(page);
        }
        assert_eq!(self.frames().being_freed(), pages.len());
        down.perform(self.m.frames(), self.m, h);
    }

    /// Pages that leave their owners together, but for those that are in use in some way.
    fn release_all(&mut self, h: &mut Token<'_>) {
        let mut pages = self.some(60);
        self.frames().announce(pages.len());
        let announced = pages.len();
        for &page in &pages {
            match self.below(6) {
                0 => self.frames().set_flags(page, PageFlags::BUSY),
                1 => self.frames().wire(page),
                2 => assert!(self.frames().loan(page)),
                _ => {}
            }
        }
        let is_plain = |f: &Frames<_>, page| f.is_plain(page) && f.hold_count(page) == 0;
        pages.retain(|&page| {
            let (f, is_idle) = (self.frames(), is_plain(self.frames(), page));
            assert_eq!(f.leaves_owner(page), is_idle);
            assert_eq!(f.owner(page), if is_idle { Owner::Kernel } else { Owner::Anon(page.0) });
            if !is_idle {
                let holds = (f.hold_count(page), f.loans(page));
                f.clear_flags(page, PageFlags::BUSY);
                (holds.1 > 0).then(|| f.end_loan(page));
                (holds.0 > holds.1).then(|| f.unpin(page));
            }
            is_idle
        });
        assert_eq!(self.frames().being_freed(), announced);
        let mut down = Gather::new();
        self.frames().release_all(h, &pages, announced, &mut down);
        assert_eq!(self.frames().being_freed(), pages.len());
        pages.iter().for_each(|&page| self.forget(page));
        down.perform(self.m.frames(), self.m, h);
    }

    fn activate(&mut self, h: &mut Token<'_>) {
        let pages = self.some(40);
        let (f, was_idle) = (self.m.frames(), |w: &Self, page| w.idle.contains(&page));
        for page in pages {
            if self.below(8) == 0 {
                f.wire(page);
                f.activate(self.m, h, page);
                assert!(
                    !was_idle(self, page) || f.place(page) == Place::Nowhere,
                    "a wired one stays off"
                );
                f.unpin(page);
            }
            f.activate(self.m, h, page);
            if was_idle(self, page) {
                self.forget(page);
                self.pending.push(page);
                // A batch that was full has been linked, and maybe an earlier entry for this page
                // with it.
                assert!([Place::Pending, Place::Active].contains(&f.place(page)));
                self.see_linked(h);
            }
        }
    }

    /// The order of a queue: all of it, from the front, is put at its end.
    fn order(&self, h: &mut Token<'_>, queue: Queue) -> Vec<PageNo> {
        let f = self.frames();
        let mut left = if queue == Queue::Active { f.active() } else { f.inactive() };
        let mut all = Vec::new();
        while left > 0 {
            let some = f.rotate(h, queue, left);
            assert_eq!(some.len(), left.min(SCAN));
            left -= some.len();
            all.extend(some);
        }
        all
    }

    /// Those that came into use have been put on the active queue behind all others, or not yet.
    fn see_linked(&mut self, h: &mut Token<'_>) {
        let is_pending = |page: &PageNo| self.m.frames().place(*page) == Place::Pending;
        let linked: BTreeSet<_> =
            self.pending.iter().copied().filter(|page| !is_pending(page)).collect();
        if !linked.is_empty() {
            let order = self.order(h, Queue::Active);
            let (old, new) = order.split_at(self.active.len());
            assert_eq!((old, BTreeSet::from_iter(new.iter().copied())), (&self.active[..], linked));
            self.active = order;
            self.pending.retain(is_pending);
        }
    }

    fn move_between(&mut self, h: &mut Token<'_>) {
        let pages = self.some(40);
        let f = self.m.frames();
        match self.below(3) {
            0 => f.deactivate(h, &pages),
            1 => pages.iter().for_each(|&page| f.deactivate(h, &[page])),
            _ => {
                for page in pages {
                    f.reactivate(h, page);
                    if self.inactive.contains(&page) {
                        self.forget(page);
                        self.active.push(page);
                    }
                }
                return;
            }
        }
        for page in pages.into_iter().filter(|page| self.active.contains(page)).collect::<Vec<_>>()
        {
            self.forget(page);
            self.inactive.push(page);
        }
    }

    fn dequeue(&mut self, h: &mut Token<'_>) {
        for page in self.some(10) {
            let is_queued = [Place::Active, Place::Inactive].contains(&self.frames().place(page));
            if self.below(2) == 0 {
                assert_eq!(self.frames().leaves_batch(page), !is_queued);
            }
            self.frames().dequeue(h, page);
            self.forget(page);
            self.idle.push(page);
        }
    }

    fn rotate(&mut self, h: &mut Token<'_>) {
        let (queue, most) = (*self.random.pick(&[Queue::Active, Queue::Inactive]), self.below(40));
        let got = self.frames().rotate(h, queue, most);
        let list = if queue == Queue::Active { &mut self.active } else { &mut self.inactive };
        let count = most.min(list.len()).min(SCAN);
        assert_eq!(got[..], list[..count]);
        list.rotate_left(count);
    }

    fn step(&mut self, h: &mut Token<'_>) {
        self.m.run_on(self.below(2));
        match self.below(16) {
            0..3 => self.alloc(h),
            3 => self.alloc_run(h),
            4 => self.free_idle(h),
            5 => self.release(h),
            6 => self.release_all(h),
            7..10 => self.activate(h),
            10..12 => self.move_between(h),
            12 => self.dequeue(h),
            13 => self.rotate(h),
            14 => self.frames().drain_caches(h),
            _ => {
                self.frames().flush_pending(h);
                self.see_linked(h);
                assert!(self.pending.is_empty());
            }
        }
        self.see_linked(h);
    }

    fn check(&self, h: &mut Token<'_>) {
        let f = self.frames();
        f.audit(h).unwrap();
        assert_eq!((f.free(), f.being_freed()), (self.free(), 0));
        assert_eq!(f.for_users(), self.free().saturating_sub(kept_from(Reserve::User)));
        assert_eq!((f.active(), f.inactive()), (self.active.len(), self.inactive.len()));
        assert_eq!(f.oldest(h, Queue::Active), self.active.first().copied());
        assert_eq!(f.oldest(h, Queue::Inactive), self.inactive.first().copied());
        for class in [Class::Anon, Class::File, Class::Exec] {
            let queued = self.active.iter().chain(&self.inactive);
            assert_eq!(f.of_class(class), queued.filter(|&&page| f.class(page) == class).count());
        }
        for (list, place) in [
            (&self.idle, Place::Nowhere),
            (&self.pending, Place::Pending),
            (&self.active, Place::Active),
            (&self.inactive, Place::Inactive),
        ] {
            list.iter().for_each(|&page| assert_eq!(f.place(page), place, "{page:?}"));
        }
    }
}

#[test]
fn queues_and_free_lists_do_what_plain_lists_do() {
    for seed in 0..60 {
        let m = machine();
        let mut ctx = ThreadCtx::new();
        let h = &mut ctx.held();
        let mut world = World {
            m: &m,
            idle: Vec::new(),
            pending: Vec::new(),
            active: Vec::new(),
            inactive: Vec::new(),
            random: Rng::new(seed),
        };
        for _ in 0..300 {
            world.step(h);
            world.check(h);
        }
        for queue in [Queue::Active, Queue::Inactive] {
            let list = if queue == Queue::Active { &world.active } else { &world.inactive };
            assert_eq!(world.order(h, queue), *list);
        }
    }
}
