//! The page daemon, a device that ends transfers when it likes, and other threads that want the
//! pages.
//!
//! The device is a thread of its own; its storage (`uvm_check::host`) takes I/O on a page that a
//! CPU can reach, or that changes hands, for an error of its own.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use shuttle::sync::atomic::{AtomicBool, Ordering::SeqCst};
use shuttle::thread::JoinHandle;

use machine::{Machine, PageRange, Pages, Pmap, ThreadCtx};
use uvm::page::Owner;
use uvm::page::{PageFlags, Place, Queue};
use uvm::{
    AnonObject, At, Counter, FaultError, MapRequest, Pager, Sharing, Space, SwapError, SwapId,
};
use uvm_check::host::{File, Line, Manner, SwapDisk};
use uvm_soft::{Fate, IoBy, Moment};
use uvm_zram::{Zram, ZramInfo, ZramOn};

use super::world::{check_rounds, spawn, Soft, World, P, Q};

const ROUNDS: usize = 2500;
const BOTH: PageRange = PageRange::new(P, machine::Va(Q.0 + 0x1000)).unwrap();

/// A world with a swap device, and the thread that is its hardware.
pub struct Paged {
    pub w: Arc<World>,
    line: Arc<Line>,
    disk: Arc<SwapDisk<Soft>>,
    swap: SwapId,
    zram: Mutex<ZramOn<Soft>>,
    stop: Arc<AtomicBool>,
    device: Option<JoinHandle<()>>,
}

impl Paged {
    fn new(fate: Fate) -> Paged {
        Paged::of(World::with(64, IoBy::Test), fate)
    }

    /// In a world whose transfers a test ends.
    pub fn of(w: Arc<World>, fate: Fate) -> Paged {
        let line = Line::new(Manner::Later, 1);
        let disk: Arc<SwapDisk<Soft>> = SwapDisk::new(&w.uvm, &line, 64);
        let on = w.uvm.swap_on(&mut ThreadCtx::new().held(), disk.clone(), 0);
        let swap = on.expect("there is room for a device");
        let stop = Arc::new(AtomicBool::new(false));
        let device = {
            let (w, stop) = (w.clone(), stop.clone());
            spawn(move || {
                // The first transfer ends as the test wants it, the others well.
                let mut fate = fate;
                while !stop.load(SeqCst) {
                    match w.uvm.machine().complete(0, fate) {
                        true => fate = Fate::Works,
                        false => shuttle::thread::yield_now(),
                    }
                }
            })
        };
        Paged { w, line, disk, swap, zram: Mutex::new(None), stop, device: Some(device) }
    }

    /// Passes of the daemon that take whatever is not used at that moment. A fair one leaves so few
    /// pages as most tests have alone.
    fn daemon(&self, passes: usize) -> JoinHandle<()> {
        let w = self.w.clone();
        spawn(move || (0..passes).for_each(|_| take_unused(&w)))
    }

    /// Passes of the daemon that keep its balance.
    pub fn fair_daemon(&self, passes: usize) -> JoinHandle<()> {
        spawn(self.passes(passes))
    }

    fn passes(&self, passes: usize) -> impl FnOnce() + Send + 'static {
        let w = self.w.clone();
        move || {
            for _ in 0..passes {
                w.uvm.pageout(&mut ThreadCtx::new().held(), 64);
            }
        }
    }

    /// A space with two pages of zeroes, of which both have been written.
    fn written(&self) -> Arc<Space<Soft>> {
        let space = self.w.space();
        self.w.map(&space, MapRequest::zero(Pages(2)));
        self.w.store(0, &space, P, 1);
        self.w.store(0, &space, Q, 1);
        space
    }

    /// Two pages that are on swap, or on their way.
    fn swapped(&self) -> Arc<Space<Soft>> {
        let (space, before) = (self.written(), self.pages_out());
        take_unused(&self.w);
        assert_eq!(self.pages_out() - before, 2, "no other program uses the pages");
        space
    }

    /// Pages that have left memory or were on their way, those of files too that were written.
    fn pages_out(&self) -> u64 {
        let out = [Counter::SwapOuts, Counter::FreedClean, Counter::FilePagesWritten];
        let count = |&counter: &Counter| self.w.uvm.stat().get(counter);
        out.iter().map(count).sum::<u64>() + self.zram_info().stored
    }

    /// Gives zram a share of memory.
    fn set_zram(&self, percent: u8) -> Result<(), SwapError> {
        let (mut ctx, mut on) = (ThreadCtx::new(), self.zram.lock().unwrap());
        Zram::set_share(&self.w.uvm, &mut ctx.held(), &mut on, percent)
    }

    fn zram_info(&self) -> ZramInfo {
        let on = self.zram.lock().unwrap().clone();
        on.map_or_else(ZramInfo::default, |(device, _)| device.info(&mut ThreadCtx::new().held()))
    }

    /// Two pages in memory and on swap, which come next when it is short.
    fn clean(&self) -> Arc<Space<Soft>> {
        let space = self.written();
        self.w.uvm.pageout_range(&mut ThreadCtx::new().held(), &space, BOTH);
        assert_eq!((self.w.load(0, &space, P), self.w.load(0, &space, Q)), (1, 1));
        self.w.uvm.cool_range(&mut ThreadCtx::new().held(), &space, BOTH);
        space
    }

    fn stop(&mut self) {
        self.stop.store(true, SeqCst);
        self.device.take().into_iter().for_each(|device| device.join().unwrap());
        while self.w.uvm.machine().complete(0, Fate::Works) {}
        self.line.trouble().unwrap();
    }

    /// Stops the device, checks, takes everything down and counts what came back. Says whether any
    /// page has gone out.
    pub fn end(mut self, spaces: Vec<Arc<Space<Soft>>>, objects: &[Arc<dyn Pager<Soft>>]) -> bool {
        self.stop();
        let is_paged = self.pages_out() != 0;
        let open: Vec<&Space<Soft>> = spaces.iter().map(|space| &**space).collect();
        self.w.check(&open, objects);
        self.w.end(spaces);
        let mut ctx = ThreadCtx::new();
        for object in objects {
            self.w.uvm.truncate(&mut ctx.held(), object, Pages(0));
        }
        let used: u32 =
            self.w.uvm.swap_info(&mut ctx.held()).iter().map(|device| device.used).sum();
        assert_eq!(used, 0, "slots leaked");
        assert_eq!(self.w.uvm.frames().free(), self.w.uvm.frames().total(), "pages leaked");
        is_paged
    }
}

/// Takes all pages for unused, and runs a pass of the daemon, which takes those that no program
/// uses meanwhile.
fn take_unused(w: &World) {
    let (uvm, mut ctx) = (&w.uvm, ThreadCtx::new());
    let (frames, held) = (uvm.frames(), &mut ctx.held());
    frames.flush_pending(held);
    for page in frames.rotate(held, Queue::Active, frames.active()) {
        uvm.machine().pmap().clear_referenced(page);
        frames.deactivate(held, &[page]);
    }
    uvm.pageout(held, 64);
}

/// Runs a test under many schedules. It says whether pages went out: in many they do, else it tests
/// little.
fn check_paging(test: impl Fn() -> bool + Send + Sync + 'static) {
    let paged = Arc::new(AtomicUsize::new(0));
    let count = paged.clone();
    check_rounds(ROUNDS, move || _ = count.fetch_add(test().into(), Relaxed));
    let paged = paged.load(Relaxed);
    assert!(paged > ROUNDS / 5, "pages went out in {paged} rounds of {}", 2 * ROUNDS);
}

/// Two CPUs store to their pages while the page daemon takes them; both find what they stored last.
fn store_beside_the_daemon(p: Paged) -> bool {
    let space = p.written();
    let daemon = p.daemon(3);
    let other = {
        let (w, space) = (p.w.clone(), space.clone());
        spawn(move || {
            for n in 2..4 {
                w.store(1, &space, Q, n);
                assert_eq!(w.load(1, &space, Q), n);
            }
        })
    };
    for n in 2..4 {
        p.w.store(2, &space, P, n);
        assert_eq!(p.w.load(2, &space, P), n);
    }
    daemon.join().unwrap();
    other.join().unwrap();
    assert_eq!((p.w.load(0, &space, P), p.w.load(0, &space, Q)), (3, 3));
    p.end(vec![space], &[])
}

#[test]
fn a_store_is_not_lost_to_the_page_daemon() {
    check_paging(|| store_beside_the_daemon(Paged::new(Fate::Works)));
}

/// What is stored after pages were freed lazily stays, though the page daemon comes for them, and
/// another CPU knows the pages as modified.
#[test]
fn a_store_to_a_page_freed_lazily_is_not_lost() {
    check_paging(|| {
        let p = Paged::new(Fate::Works);
        let space = p.written();
        p.w.store(2, &space, P, 1);
        let daemon = p.daemon(2);
        for n in 2..4 {
            p.w.uvm.free_lazily(&mut ThreadCtx::new().held(), &space, BOTH);
            p.w.store(2, &space, P, n);
            assert_eq!(p.w.load(0, &space, P), n);
        }
        daemon.join().unwrap();
        let seen = (p.w.load(0, &space, P), p.w.load(0, &space, Q));
        assert!(seen == (3, 1) || seen == (3, 0), "{seen:?}");
        p.end(vec![space], &[])
    });
}

/// Pages change hands between the page daemon's look at a page and its look at whose it is.
#[test]
fn pages_change_owners_beside_the_page_daemon() {
    check_paging(|| {
        let p = Paged::new(Fate::Works);
        let space = p.written();
        let daemon = p.daemon(2);
        for n in 2..4 {
            p.w.uvm.discard(&mut ThreadCtx::new().held(), &space, BOTH).expect("it is mapped");
            p.w.store(0, &space, P, n);
            p.w.store(0, &space, Q, n);
        }
        daemon.join().unwrap();
        assert_eq!((p.w.load(0, &space, P), p.w.load(0, &space, Q)), (3, 3));
        p.end(vec![space], &[])
    });
}

/// A process lets its pages go just as the page daemon, which has seen whose they are, comes for
/// their owners' locks. No other thread runs, so that the few steps between the two are met often.
#[test]
fn a_page_is_let_go_as_the_page_daemon_comes_for_it() {
    check_paging(|| {
        let mut p = Paged::new(Fate::Works);
        let (space, other) = (p.written(), p.written());
        p.stop();
        let daemon = p.daemon(1);
        p.w.end(vec![space]);
        daemon.join().unwrap();
        p.end(vec![other], &[])
    });
}

/// A clean page is let go just as a fault beside it, which has found it, maps it ahead of use. A
/// pass that meets the fault's locks leaves the page, and ends.
#[test]
fn a_neighbour_is_let_go_as_it_is_mapped_ahead() {
    check_paging(|| {
        let mut p = Paged::new(Fate::Works);
        let space = p.clean();
        p.stop();
        let machine = p.w.uvm.machine();
        let (q, _) = machine.pmap().extract(space.pmap(), Q).expect("it was loaded");
        machine.pmap().forget_all();
        let daemon = Arc::new(Mutex::new(None));
        machine.pmap().hooks.at_next(Moment::MappingAhead, {
            let (w, daemon, pass) = (p.w.clone(), daemon.clone(), p.passes(1));
            move || {
                let is_over = Arc::new(AtomicBool::new(false));
                let over = is_over.clone();
                *daemon.lock().unwrap() = Some(spawn(move || {
                    pass();
                    over.store(true, SeqCst);
                }));
                // Until it is off its queue, and busy no more.
                let frames = w.uvm.frames();
                let is_busy = || frames.flags(q).contains(PageFlags::BUSY);
                while (frames.place(q) == Place::Inactive || is_busy()) && !is_over.load(SeqCst) {
                    shuttle::thread::yield_now();
                }
            }
        });
        assert_eq!(p.w.load(1, &space, P), 1);
        daemon.lock().unwrap().take().expect("pages are mapped ahead").join().unwrap();
        let is_gone = p.w.uvm.frames().owner(q) == Owner::Free;
        p.end(vec![space], &[]);
        is_gone
    });
}

/// The fewest frames with which every access must be served: the low water mark of so few, under
/// which memory has run out by definition, and the two that an access may need at once.
const FEWEST: u32 = 8 + 2;

/// Programs that together write far more than memory holds, and a page daemon, each taking what
/// others' passes have freed. With room on swap none is refused, and none waits for ever. Programs
/// with a child copy what they wrote, and their children let it go again.
fn crowd(frames: u32, programs: usize, pages: u64, children: bool) {
    let p = Paged::of(World::with(frames, IoBy::Test), Fate::Works);
    assert!(
        p.w.uvm.frames().low_water() + 2 <= frames as usize,
        "memory has run out by definition"
    );
    let daemon = p.fair_daemon(3);
    let programs: Vec<_> = (0..programs)
        .map(|cpu| {
            let (w, space) = (p.w.clone(), p.w.space());
            w.map(&space, MapRequest::zero(Pages(pages)));
            spawn(move || {
                let page = |n| P + Pages(n);
                (0..pages).for_each(|n| w.store(cpu, &space, page(n), n + 1));
                if children {
                    let child =
                        w.uvm.fork(&mut ThreadCtx::new().held(), &space).expect("there is heap");
                    (0..pages).for_each(|n| w.store(cpu, &child, page(n), n + 2));
                    w.uvm.space_destroy(&mut ThreadCtx::new().held(), child);
                }
                (0..pages).for_each(|n| assert_eq!(w.load(cpu, &space, page(n)), n + 1));
                space
            })
        })
        .collect();
    let spaces = programs.into_iter().map(|program| program.join().unwrap()).collect();
    daemon.join().unwrap();
    p.end(spaces, &[]);
}

fn check_crowds(rounds: usize) {
    for (frames, rounds) in [(FEWEST, 3 * rounds), (FEWEST + 2, rounds), (24, rounds)] {
        check_rounds(rounds, move || crowd(frames, 3, 8, false));
        check_rounds(rounds, move || crowd(frames, 2, 8, true));
    }
}

#[test]
fn nobody_is_refused_while_swap_has_room() {
    check_crowds(ROUNDS / 5);
}

#[test]
#[ignore = "many minutes"]
fn nobody_is_refused_in_many_schedules() {
    check_crowds(8 * ROUNDS);
}

/// A program that needs a page while another ends, and gives back all that programs may have, is
/// not refused it: pages whose shootdown is under way are neither free nor to be found.
#[test]
fn nobody_is_refused_what_is_being_given_back() {
    check_rounds(ROUNDS, || {
        let p = Paged::of(World::with(FEWEST, IoBy::Test), Fate::Works);
        let (ending, other) = (p.w.space(), p.w.space());
        p.w.map(&ending, MapRequest::zero(Pages(8)));
        p.w.map(&other, MapRequest::zero(Pages(1)));
        (0..6).for_each(|n| p.w.store(0, &ending, P + Pages(n), n));
        assert_eq!(p.w.uvm.frames().for_users(), 0);
        let program = {
            let (w, other) = (p.w.clone(), other.clone());
            spawn(move || w.store(1, &other, P, 1))
        };
        p.w.end(vec![ending]);
        program.join().unwrap();
        p.end(vec![other], &[]);
    });
}

/// Data that a write failed to bring out is still in memory; no program notices.
#[test]
fn a_failed_write_is_noticed_by_nobody() {
    check_paging(|| {
        let p = Paged::new(Fate::Fails);
        let space = p.written();
        let daemon = p.daemon(3);
        for n in 2..4 {
            p.w.store(2, &space, P, n);
        }
        assert_eq!((p.w.load(1, &space, P), p.w.load(1, &space, Q)), (3, 1));
        daemon.join().unwrap();
        assert_eq!((p.w.load(0, &space, P), p.w.load(0, &space, Q)), (3, 1));
        p.end(vec![space], &[])
    });
}

/// A fork while pages leave and come back copies one moment, and parent and child don't write to
/// each other.
#[test]
fn a_fork_meets_the_page_daemon() {
    check_paging(|| {
        let p = Paged::new(Fate::Works);
        let parent = p.written();
        let daemon = p.daemon(3);
        let writer = {
            let (w, parent) = (p.w.clone(), parent.clone());
            spawn(move || {
                for n in 2..4 {
                    w.store(1, &parent, P, n);
                    w.store(1, &parent, Q, n);
                }
            })
        };
        let child = p.w.uvm.fork(&mut ThreadCtx::new().held(), &parent).expect("there is memory");
        let child = Arc::new(child);
        let (b, a) = (p.w.load(2, &child, Q), p.w.load(2, &child, P));
        assert!(a == b || a == b + 1, "the child has P of store {a} and Q of store {b}");
        p.w.store(2, &child, P, 9);
        writer.join().unwrap();
        daemon.join().unwrap();
        assert_eq!((p.w.load(0, &child, P), p.w.load(0, &child, Q)), (9, b));
        assert_eq!((p.w.load(0, &parent, P), p.w.load(0, &parent, Q)), (3, 3));
        p.end(vec![parent, child], &[])
    });
}

/// Memory that is unmapped while it is on its way out or in goes, with its slots, as soon as the
/// device lets it.
#[test]
fn unmapping_meets_the_page_daemon() {
    check_paging(|| {
        let p = Paged::new(Fate::Works);
        let space = p.swapped();
        let daemon = p.daemon(2);
        let reader = {
            let (w, space) = (p.w.clone(), space.clone());
            spawn(move || {
                let seen = w.try_load(1, &space, P);
                assert!(matches!(seen, Ok(1) | Err(FaultError::NoMapping)), "{seen:?}");
            })
        };
        p.w.uvm.unmap(&mut ThreadCtx::new().held(), &space, BOTH).expect("there is heap");
        reader.join().unwrap();
        daemon.join().unwrap();
        p.end(vec![space], &[])
    });
}

#[test]
fn a_process_ends_while_its_pages_are_written_out() {
    check_paging(|| {
        let p = Paged::new(Fate::Works);
        let (space, other) = (p.written(), p.written());
        let daemon = p.daemon(3);
        p.w.end(vec![space]);
        assert_eq!(p.w.load(1, &other, P), 1);
        daemon.join().unwrap();
        p.end(vec![other], &[])
    });
}

#[test]
fn swap_is_switched_off_under_load() {
    check_paging(|| {
        let p = Paged::new(Fate::Works);
        let space = p.swapped();
        let daemon = p.daemon(2);
        let writer = {
            let (w, space) = (p.w.clone(), space.clone());
            spawn(move || (2..4).for_each(|n| w.store(1, &space, P, n)))
        };
        let off = p.w.uvm.swap_off(&mut ThreadCtx::new().held(), p.swap);
        assert!(matches!(off, Ok(()) | Err(SwapError::NoMemory)), "{off:?}");
        if off.is_ok() {
            p.disk.leave();
        }
        writer.join().unwrap();
        daemon.join().unwrap();
        assert_eq!((p.w.load(0, &space, P), p.w.load(0, &space, Q)), (3, 1));
        p.end(vec![space], &[])
    });
}

/// A store to a page that is being packed, is packed or is unpacked stays. Zram has one frame
/// and a disk beside it.
#[test]
fn a_store_is_not_lost_to_zram() {
    check_paging(|| {
        let p = Paged::new(Fate::Works);
        p.set_zram(1).expect("there is heap");
        store_beside_the_daemon(p)
    });
}

/// Zram is switched off and on again while pages go there, are asked for and go with a process,
/// and a device beside it is switched off too.
#[test]
fn zram_is_switched_off_under_load() {
    check_paging(|| {
        let p = Paged::new(Fate::Works);
        p.set_zram(20).expect("there is heap");
        let (space, other) = (p.swapped(), p.written());
        let daemon = p.daemon(2);
        let writer = {
            let (w, space) = (p.w.clone(), space.clone());
            spawn(move || (2..4).for_each(|n| w.store(1, &space, P, n)))
        };
        let swapper = {
            let (w, swap) = (p.w.clone(), p.swap);
            spawn(move || {
                let off = w.uvm.swap_off(&mut ThreadCtx::new().held(), swap);
                assert!(matches!(off, Ok(()) | Err(SwapError::NoMemory)), "{off:?}");
            })
        };
        assert_eq!(p.set_zram(0), Ok(()));
        assert_eq!(p.zram_info(), ZramInfo::default(), "it is on yet");
        assert_eq!(p.set_zram(5), Ok(()));
        p.w.end(vec![other]);
        [daemon, writer, swapper].into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!((p.w.load(0, &space, P), p.w.load(0, &space, Q)), (3, 1));
        assert_eq!(p.set_zram(0), Ok(()));
        p.end(vec![space], &[])
    });
}

/// A child has all of a range that is unmapped in its parent meanwhile, or nothing.
#[test]
fn a_fork_meets_an_unmapping() {
    check_rounds(ROUNDS, || {
        let p = Paged::new(Fate::Works);
        let parent = p.written();
        let forker = {
            let (w, parent) = (p.w.clone(), parent.clone());
            spawn(move || {
                let child =
                    w.uvm.fork(&mut ThreadCtx::new().held(), &parent).expect("there is memory");
                let seen = (w.try_load(1, &child, P), w.try_load(1, &child, Q));
                let none = (Err(FaultError::NoMapping), Err(FaultError::NoMapping));
                assert!(seen == (Ok(1), Ok(1)) || seen == none, "{seen:?}");
                Arc::new(child)
            })
        };
        p.w.uvm.unmap(&mut ThreadCtx::new().held(), &parent, BOTH).expect("there is heap");
        assert_eq!(p.w.try_load(0, &parent, P), Err(FaultError::NoMapping));
        let child = forker.join().unwrap();
        p.end(vec![parent, child], &[]);
    });
}

/// A third space maps a file's page that the daemon is about to take: it reads the file's bytes,
/// whatever comes first.
#[test]
fn an_eviction_meets_a_new_mapping_of_the_same_page() {
    check_paging(|| {
        let p = Paged::new(Fate::Works);
        let file = File::new(&p.w.uvm, &mut ThreadCtx::new().held(), &p.line, 0, Pages(2))
            .expect("there is heap");
        let pager: Arc<dyn Pager<Soft>> = file.pager().clone();
        let request = || MapRequest::object(pager.clone(), Pages(0), Pages(2), Sharing::Shared);
        let one = p.w.space();
        p.w.map(&one, request());
        let first = p.w.load(0, &one, P);
        let daemon = p.daemon(3);
        let two = p.w.space();
        p.w.map(&two, request());
        assert_eq!(p.w.load(1, &two, P), first);
        p.w.store(1, &two, P, 7);
        assert_eq!(p.w.load(2, &one, P), 7, "two mappings of one page disagree");
        daemon.join().unwrap();
        assert_eq!((p.w.load(0, &one, P), p.w.load(1, &two, P)), (7, 7));
        p.end(vec![one, two], &[pager])
    });
}

/// A file is cut while a fault waits for the page, the daemon looks at it, and the device reads or
/// writes it. One that is `there` was stored to before, and is on its way out.
fn truncate_beside_the_daemon(is_there: bool) -> bool {
    let p = Paged::new(Fate::Works);
    let file = File::new(&p.w.uvm, &mut ThreadCtx::new().held(), &p.line, 0, Pages(2))
        .expect("there is heap");
    let pager: Arc<dyn Pager<Soft>> = file.pager().clone();
    let space = p.w.space();
    p.w.map(&space, MapRequest::object(pager.clone(), Pages(0), Pages(2), Sharing::Shared));
    if is_there {
        p.w.store(0, &space, P, 4);
        take_unused(&p.w);
    }
    let writer = {
        let (w, space) = (p.w.clone(), space.clone());
        spawn(move || {
            let stored = [P, Q].map(|va| w.try_store(1, &space, va, 5));
            assert!(
                stored.iter().all(|s| matches!(s, Ok(()) | Err(FaultError::Bus))),
                "{stored:?}"
            );
        })
    };
    let daemon = p.daemon(2);
    p.w.uvm.truncate(&mut ThreadCtx::new().held(), &pager, Pages(0));
    assert_eq!(p.w.try_load(0, &space, P), Err(FaultError::Bus));
    writer.join().unwrap();
    daemon.join().unwrap();
    assert_eq!(p.w.try_load(2, &space, Q), Err(FaultError::Bus));
    p.end(vec![space], &[pager])
}

#[test]
fn a_truncation_meets_a_fault_and_the_page_daemon() {
    check_rounds(ROUNDS, || _ = truncate_beside_the_daemon(false));
    check_paging(|| truncate_beside_the_daemon(true));
}

/// Shared memory that two spaces write is paged like any other, and goes with its last reference.
#[test]
fn shared_memory_meets_the_page_daemon() {
    check_paging(|| {
        let p = Paged::new(Fate::Works);
        let mut ctx = ThreadCtx::new();
        let object = AnonObject::new(&p.w.uvm, &mut ctx.held(), Pages(2)).expect("there is heap");
        let pager: Arc<dyn Pager<Soft>> = object;
        let request = || MapRequest::object(pager.clone(), Pages(0), Pages(2), Sharing::Shared);
        let (one, two) = (p.w.space(), p.w.space());
        p.w.map(&one, request());
        p.w.map(&two, request());
        p.w.store(0, &one, P, 1);
        let daemon = p.daemon(3);
        let writer = {
            let (w, two) = (p.w.clone(), two.clone());
            spawn(move || {
                w.store(1, &two, Q, 4);
                assert_eq!(w.load(1, &two, P), 1);
            })
        };
        p.w.store(2, &one, machine::Va(P.0 + 8), 3);
        writer.join().unwrap();
        daemon.join().unwrap();
        assert_eq!((p.w.load(1, &two, machine::Va(P.0 + 8)), p.w.load(0, &one, Q)), (3, 4));
        p.w.uvm.detach(&mut ctx.held(), &*pager);
        p.end(vec![one, two], &[])
    });
}

/// Three pages on loan in a program's slots, another program's, a file's and one without owner, are
/// adopted by the page daemon while the program reads and writes them, and those whose they are
/// write theirs.
#[test]
fn pages_on_loan_to_a_program_meet_the_page_daemon() {
    check_paging(|| {
        let p = Paged::of(World::of(64, IoBy::Test, 4, None), Fate::Works);
        let held = &mut ThreadCtx::new();
        let file =
            File::new(&p.w.uvm, &mut held.held(), &p.line, 0, Pages(1)).expect("there is heap");
        let pager: Arc<dyn Pager<Soft>> = file.pager().clone();
        let (owner, mapper, borrower) = (p.w.space(), p.w.space(), p.w.space());
        p.w.map(&owner, MapRequest::zero(Pages(1)));
        p.w.map(&mapper, MapRequest::object(pager.clone(), Pages(0), Pages(1), Sharing::Shared));
        p.w.map(&borrower, MapRequest::zero(Pages(3)));
        p.w.store(3, &owner, P, 1);
        let of_file = p.w.load(3, &mapper, P);
        let uvm = &p.w.uvm;
        let mut loan = uvm
            .loan_to_kernel(&mut held.held(), &owner, PageRange::new(P, Q).unwrap())
            .expect("it is there");
        assert_eq!(uvm.loan_object(&mut held.held(), &pager, Pages(0), 1, &mut loan), Ok(1));
        uvm.new_pages(&mut held.held(), 1, &mut loan).expect("there is memory");
        uvm.machine().write(loan.pages()[2].page(), 0, &9u64.to_le_bytes());
        let put = uvm.transfer(&mut held.held(), &borrower, loan, At::Fixed(P));
        assert_eq!(put.map_err(|(e, _)| e), Ok(P));
        let (first, r) = ([1, of_file, 9], P + Pages(2));
        let daemon = p.daemon(3);
        let reader = {
            let (w, space) = (p.w.clone(), borrower.clone());
            spawn(move || {
                for _ in 0..2 {
                    let seen = [P, Q, r].map(|va| w.load(1, &space, va));
                    let is_right = |n: usize| seen[n] == first[n] || seen[n] == 20 + n as u64;
                    assert!((0..3).all(is_right), "loaned {first:?}, seen {seen:?}");
                }
            })
        };
        let writer = {
            let (w, space) = (p.w.clone(), borrower.clone());
            spawn(move || {
                w.store(2, &space, r, 22);
                w.store(2, &space, P, 20);
            })
        };
        p.w.store(3, &owner, P, 7);
        p.w.store(3, &mapper, P, 8);
        reader.join().unwrap();
        writer.join().unwrap();
        daemon.join().unwrap();
        assert_eq!([P, Q, r].map(|va| p.w.load(1, &borrower, va)), [20, of_file, 22]);
        assert_eq!((p.w.load(0, &owner, P), p.w.load(0, &mapper, P)), (7, 8));
        p.end(vec![owner, mapper, borrower], &[pager])
    });
}
