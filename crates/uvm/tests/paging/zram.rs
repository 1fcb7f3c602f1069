//! Zram: a swap device in memory, whose pages are small, with a disk behind it or none. On the
//! software machine.

use std::sync::Arc;

use crate::stores::{Mode, SwapDisk};
use machine::order::Nothing;
use machine::{Held, Machine, Pa, PageNo, PageRange, Pages, Prot, ThreadCtx, Va, PAGE_SIZE};
use uvm::page::Owner;
use uvm::{
    AnonObject, Backing, Counter, FaultError, MapRequest, Pager, Sharing, Space, SwapError, Uvm,
};
use uvm_soft::{Config, Denied, Fate, SoftMachine};
use uvm_zram::{Zram, ZramInfo, ZramOn, MOST_ZRAM};

const BOUNDS: PageRange = PageRange::new(Va(machine::PAGE_SIZE as u64), Va(1 << 40)).unwrap();

/// What a page is full of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fill {
    /// Zeroes, as a page that was written and is empty again.
    Zeroes,
    /// The page's number as text, over and over.
    Text,
    /// Noise.
    Noise,
}

impl Fill {
    fn bytes(self, n: u64) -> Vec<u8> {
        let mut seed = n + 1;
        let noise = |_| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed as u8
        };
        match self {
            Fill::Zeroes => vec![0; PAGE_SIZE],
            Fill::Text => format!("page {n:>8} and ").bytes().cycle().take(PAGE_SIZE).collect(),
            Fill::Noise => (0..PAGE_SIZE).map(noise).collect(),
        }
    }
}

/// A machine with zram, and one space.
struct World {
    zram: ZramOn<SoftMachine>,
    uvm: Arc<Uvm<SoftMachine>>,
    ctx: ThreadCtx,
    space: Option<Space<SoftMachine>>,
}

impl World {
    fn new(frames: u32, percent: u8) -> World {
        let config = Config { segments: vec![(Pa(0x10_0000), frames)], ..Config::default() };
        let uvm = Arc::new(SoftMachine::new(config).into_uvm().unwrap());
        let mut ctx = ThreadCtx::new();
        let mut zram = None;
        Zram::set_share(&uvm, &mut ctx.held(), &mut zram, percent).unwrap();
        let space = uvm.space_create(&mut ctx.held(), BOUNDS).unwrap();
        World { zram, uvm, ctx, space: Some(space) }
    }

    fn with_disk(self, slots: u32, mode: Mode) -> (World, Arc<SwapDisk>) {
        let disk = SwapDisk::new(&self.uvm, slots, mode);
        self.uvm.swap_on(&mut ThreadCtx::new().held(), disk.clone(), 0).unwrap();
        (self, disk)
    }

    fn space(&self) -> &Space<SoftMachine> {
        self.space.as_ref().unwrap()
    }

    fn held(&mut self) -> Held<'_, Nothing> {
        self.ctx.held()
    }

    fn map(&mut self, pages: u64) -> Va {
        self.uvm
            .map(
                &mut self.ctx.held(),
                self.space.as_ref().unwrap(),
                &MapRequest::zero(Pages(pages)),
            )
            .unwrap()
    }

    fn fault(&self, va: Va, access: Prot) -> Result<(), FaultError> {
        let (mut ctx, frames) = (ThreadCtx::new(), self.uvm.frames());
        if frames.free() < frames.low_water() && self.uvm.pages_in_flight() == 0 {
            self.uvm.pageout(&mut ctx.held(), frames.high_water());
        }
        self.uvm.fault(&mut ctx.held(), self.space(), va, access).map(|_| ())
    }

    fn store(&self, va: Va, bytes: &[u8]) -> Result<(), FaultError> {
        let fault = |va, access| self.fault(va, access);
        told(self.uvm.machine().store(0, self.space().pmap(), va, bytes, fault))
    }

    fn load(&self, va: Va) -> Result<Vec<u8>, FaultError> {
        let mut bytes = vec![0; PAGE_SIZE];
        let fault = |va, access| self.fault(va, access);
        told(self.uvm.machine().load(0, self.space().pmap(), va, &mut bytes, fault))?;
        Ok(bytes)
    }

    fn filled(&mut self, pages: u64, fill: Fill) -> Va {
        let va = self.map(pages);
        (0..pages).for_each(|n| self.store(va + Pages(n), &fill.bytes(n)).unwrap());
        va
    }

    fn check(&self, va: Va, pages: u64, fill: Fill) {
        (0..pages).for_each(|n| assert!(self.load(va + Pages(n)) == Ok(fill.bytes(n)), "page {n}"));
    }

    fn audit(&mut self) {
        let space = self.space.as_ref().unwrap();
        self.uvm.audit(&mut self.ctx.held(), &[space], &[]).unwrap();
        let device = self.zram.as_ref().map(|(device, _)| device);
        device.map_or(Ok(()), |device| device.audit(&mut self.ctx.held())).unwrap();
        self.uvm.machine().tlb_audit().unwrap();
    }

    fn info(&mut self) -> ZramInfo {
        let device = self.zram.as_ref().map(|(device, _)| device);
        device.map_or(ZramInfo::default(), |device| device.info(&mut self.ctx.held()))
    }

    fn set_zram(&mut self, percent: u8) -> Result<(), SwapError> {
        Zram::set_share(&self.uvm, &mut self.ctx.held(), &mut self.zram, percent)
    }

    fn count(&self, counter: Counter) -> u64 {
        self.uvm.stat().get(counter)
    }

    /// Takes all down: nothing stays behind, and zram's frames are free.
    fn end(mut self) {
        let space = self.space.take().unwrap();
        self.uvm.space_destroy(&mut self.ctx.held(), space);
        while self.uvm.machine().complete(0, Fate::Works) {}
        let ZramInfo { frames, pages, .. } = self.info();
        assert_eq!((self.uvm.anons(), self.uvm.swap_space().1, frames, pages), (0, 0, 0, 0));
        assert_eq!(self.uvm.frames().free(), self.uvm.frames().total());
    }
}

fn told(result: Result<(), Denied<FaultError>>) -> Result<(), FaultError> {
    result.map_err(|e| match e {
        Denied::Fault(e) => e,
        other => panic!("{other:?}"),
    })
}

#[test]
fn twice_the_memory_fits_without_a_device() {
    let mut w = World::new(256, 40);
    let va = w.filled(512, Fill::Text);
    w.audit();
    assert!(w.info().pages > 256 && w.info().frames <= 256 * 40 / 100, "{:?}", w.info());
    w.check(va, 512, Fill::Text);
    w.check(va, 512, Fill::Text);
    w.audit();
    assert!(w.info().read > 256);
    assert_eq!((w.count(Counter::SwapIns), w.count(Counter::SwapOuts)), (0, 0));
    w.end();
}

#[test]
fn zeroes_take_no_frame() {
    let mut w = World::new(256, 1);
    let va = w.filled(600, Fill::Zeroes);
    assert!(w.info().pages > 300, "{:?}", w.info());
    assert_eq!(w.info().frames, 0);
    w.check(va, 600, Fill::Zeroes);
    w.audit();
    w.end();
}

#[test]
fn what_does_not_get_small_goes_to_the_device() {
    let (mut w, disk) = World::new(256, 40).with_disk(1024, Mode::Later);
    let va = w.filled(512, Fill::Noise);
    assert_eq!((w.info().pages, w.info().frames), (0, 0));
    assert!(w.info().too_large > 200 && !disk.take_log().is_empty());
    w.check(va, 512, Fill::Noise);
    w.audit();
    w.end();
}

#[test]
fn noise_without_a_device_runs_out_of_memory_and_loses_nothing() {
    let mut w = World::new(256, 40);
    let va = w.map(512);
    let stored = (0..512)
        .take_while(|&n| w.store(va + Pages(n), &Fill::Noise.bytes(n)).is_ok())
        .count() as u64;
    assert!((200..256).contains(&stored), "{stored} pages were stored");
    w.audit();
    w.check(va, stored, Fill::Noise);
    w.end();
}

/// The first pages written are in zram, the last on the disk; and the disk's slots are used in long
/// runs, though pages come to zram one by one.
#[test]
fn a_full_zram_leaves_pages_to_the_device() {
    for mode in [Mode::AtOnce, Mode::Later] {
        let (mut w, _disk) = World::new(512, 5).with_disk(4096, mode);
        let va = w.filled(2048, Fill::Text);
        w.audit();
        let (info, outs) = (w.info(), w.count(Counter::SwapOuts));
        assert!(info.frames <= 25 && info.pages > 200, "{info:?}");
        assert!(outs > 500, "{outs} pages went to the disk");
        let writes = w.count(Counter::SwapWrites);
        assert!(outs >= 8 * writes, "{outs} pages left in {writes} writes");
        w.check(va, 2048, Fill::Text);
        w.audit();
        w.end();
    }
}

/// Of pages of both kinds, each goes where it can.
#[test]
fn pages_that_zram_refuses_leave_together() {
    let (mut w, _disk) = World::new(256, 40).with_disk(1024, Mode::AtOnce);
    let va = w.map(512);
    let fill = |n: u64| if n.is_multiple_of(2) { Fill::Text } else { Fill::Noise };
    (0..512).for_each(|n| w.store(va + Pages(n), &fill(n).bytes(n)).unwrap());
    w.audit();
    let (outs, writes) = (w.count(Counter::SwapOuts), w.count(Counter::SwapWrites));
    assert!(w.info().pages > 100 && outs > 100, "{:?}, {outs}", w.info());
    assert!(outs >= 4 * writes, "{outs} pages left in {writes} writes");
    (0..512).for_each(|n| assert!(w.load(va + Pages(n)) == Ok(fill(n).bytes(n)), "page {n}"));
    w.audit();
    w.end();
}

#[test]
fn what_has_been_read_leaves_zram_and_may_be_written() {
    let mut w = World::new(256, 50);
    let va = w.filled(400, Fill::Text);
    for n in (0..400).rev() {
        let before = w.info().pages;
        let ins = w.info().read;
        w.load(va + Pages(n)).unwrap();
        if w.info().read > ins && w.count(Counter::Passes) == 0 {
            assert_eq!(w.info().pages, before - 1);
        }
        w.store(va + Pages(n), &Fill::Text.bytes(n + 1000)).unwrap();
    }
    (0..400)
        .for_each(|n| assert!(w.load(va + Pages(n)) == Ok(Fill::Text.bytes(n + 1000)), "page {n}"));
    w.audit();
    w.end();
}

#[test]
fn switching_it_off_brings_all_home_or_says_that_there_is_no_room() {
    let mut w = World::new(512, 30);
    let va = w.filled(700, Fill::Text);
    assert_eq!(w.set_zram(0), Err(SwapError::NoMemory));
    assert_eq!(w.info().percent, 30);
    w.audit();
    w.check(va, 700, Fill::Text);
    let rest = PageRange::new(va + Pages(300), va + Pages(700)).unwrap();
    w.uvm.unmap(&mut ThreadCtx::new().held(), w.space(), rest).unwrap();
    w.set_zram(0).unwrap();
    assert_eq!(w.info(), ZramInfo::default());
    w.check(va, 300, Fill::Text);
    w.audit();
    assert_eq!(w.set_zram(0), Ok(()), "it is off already");
    w.set_zram(20).unwrap();
    w.end();
}

#[test]
fn switching_it_off_moves_its_pages_to_a_device() {
    let (mut w, _disk) = World::new(256, 50).with_disk(1024, Mode::Later);
    let va = w.filled(600, Fill::Text);
    assert!(w.info().pages > 300);
    w.set_zram(0).unwrap();
    assert!(w.uvm.swap_space().1 > 300);
    w.check(va, 600, Fill::Text);
    w.audit();
    w.end();
}

#[test]
fn its_share_is_a_limit_that_can_be_changed() {
    let mut w = World::new(256, 10);
    assert_eq!(w.set_zram(MOST_ZRAM + 1), Err(SwapError::TooMuch));
    let va = w.filled(300, Fill::Text);
    assert!(w.info().frames <= 25);
    w.set_zram(40).unwrap();
    assert_eq!(w.info().percent, 40);
    let more = w.filled(200, Fill::Text);
    w.check(va, 300, Fill::Text);
    w.check(more, 200, Fill::Text);
    w.audit();
    w.end();
}

/// A page whose bytes can't be unpacked is lost to its program, and no other notices. Switching
/// zram off goes on past it.
#[test]
fn what_can_not_be_unpacked_is_lost_alone() {
    let mut w = World::new(512, 30);
    let va = w.filled(700, Fill::Text);
    let frames = w.uvm.frames();
    let of_zram =
        |&page: &PageNo| frames.owner(page) == Owner::Kernel && frames.hold_count(page) == 0;
    let spoilt: Vec<PageNo> = (0..512).map(PageNo).filter(of_zram).step_by(9).collect();
    spoilt.iter().for_each(|&page| w.uvm.machine().write(page, 0, &[0xff; PAGE_SIZE]));
    let lost = |n: &u64| w.load(va + Pages(*n)) == Err(FaultError::Io);
    let lost: Vec<u64> = (0..700).filter(lost).collect();
    assert!(
        !lost.is_empty() && lost.len() <= 16 * spoilt.len(),
        "{} pages in {}",
        lost.len(),
        spoilt.len()
    );
    let kept = |w: &World| {
        (0..300).filter(|n| !lost.contains(n)).for_each(|n| {
            assert!(w.load(va + Pages(n)) == Ok(Fill::Text.bytes(n)), "page {n}");
        });
    };
    kept(&w);
    assert_eq!(w.store(va + Pages(lost[0]), &[1]), Err(FaultError::Io));
    w.audit();
    let rest = PageRange::new(va + Pages(300), va + Pages(700)).unwrap();
    w.uvm.unmap(&mut ThreadCtx::new().held(), w.space(), rest).unwrap();
    w.set_zram(0).unwrap();
    kept(&w);
    w.audit();
    w.end();
}

#[test]
fn shared_memory_goes_there_and_back() {
    let (mut w, _disk) = World::new(256, 10).with_disk(1024, Mode::AtOnce);
    let uvm = w.uvm.clone();
    let object = AnonObject::new(&uvm, &mut w.held(), Pages(800)).unwrap();
    let pager: Arc<dyn Pager<SoftMachine>> = object;
    let request = MapRequest {
        backing: Backing::Object { pager: pager.clone(), offset: Pages(0) },
        sharing: Sharing::Shared,
        ..MapRequest::zero(Pages(800))
    };
    let va = uvm.map(&mut ThreadCtx::new().held(), w.space(), &request).unwrap();
    (0..800).for_each(|n| w.store(va + Pages(n), &Fill::Text.bytes(n)).unwrap());
    let outs = w.count(Counter::SwapOuts);
    assert!(outs > 100 && w.info().pages > 0, "{outs} pages went to the disk, {:?}", w.info());
    w.check(va, 800, Fill::Text);
    let space = w.space.as_ref().unwrap();
    uvm.audit(&mut w.ctx.held(), &[space], std::slice::from_ref(&pager)).unwrap();
    uvm.detach(&mut w.ctx.held(), &*pager);
    w.end();
}
