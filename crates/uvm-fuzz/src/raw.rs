//! The library's calls with numbers that no caller has looked at: addresses, sizes, offsets, counts
//! and rights as bytes say them, unaligned, backwards, at the ends of 64 bits.
//!
//! `library` asks whether sensible operations do what the model says; here nothing is known of an
//! operation but that it must come back, answer, and leave what all audits accept. Two bytes choose
//! the machine, then each sixteen are a call: which, on what, and three numbers of four bytes,
//! which say one of 64 bits near a place that matters or far from all.

use std::sync::Arc;

use machine::order::Nothing;
use machine::{Held, Pa, PageRange, Pages, Prot, ThreadCtx, Va, PAGE_SIZE};
use uvm::page::Class;
use uvm::{
    Access, Advice, AnonObject, At, Backing, Detached, Inherit, Intent, Loan, MapRequest, Pager,
    Pass, Pinned, Place, Quota, RemapPlace, Sharing, Space, SwapId, Uvm,
};
use uvm_check::host::{Line, Manner, SwapDisk};
use uvm_soft::{host, Config, Fate, SoftMachine};
use uvm_zram::{Zram, ZramOn};

/// Bytes before the first call.
const HEADER: usize = 2;
/// Bytes of a call.
const RECORD: usize = 16;
/// Calls of a list, at most.
const CALLS: usize = 60;
/// How many of each there are.
const EACH: usize = 3;
const PAGE: u64 = PAGE_SIZE as u64;
/// Pages of addresses that may be mapped where all is looked at, and that are locked in memory at
/// once.
const AUDITED: u64 = 1 << 14;
/// What the numbers gather around.
const BASE: u64 = 0x20_0000;
/// Where the spaces end: low, at the top of what programs have on x86-64, and where addresses end.
const ENDS: [u64; 3] = [1 << 30, 0x7fff_ffff_f000, 0u64.wrapping_sub(PAGE)];

type Soft = SoftMachine;

struct World {
    uvm: Arc<Uvm<Soft>>,
    spaces: Vec<Space<Soft>>,
    objects: Vec<Arc<dyn Pager<Soft>>>,
    loans: Vec<Loan>,
    pins: Vec<Pinned<Soft>>,
    ranges: Vec<Detached<Soft>>,
    swap: Option<SwapId>,
    zram: ZramOn<Soft>,
    disk: Arc<SwapDisk>,
    free: usize,
    end: u64,
}

/// Makes the calls.
///
/// # Panics
/// If one does, or an audit finds something wrong, or memory is missing at the end.
pub fn target(bytes: &[u8]) {
    let Some((header, records)) = bytes.split_first_chunk::<HEADER>() else { return };
    let mut ctx = ThreadCtx::new();
    let held = &mut ctx.held();
    let mut world = World::new(held, *header);
    for (at, record) in records.chunks_exact(RECORD).take(CALLS).enumerate() {
        world.uvm.machine().stir();
        if std::env::var_os("UVM_TELL").is_some() {
            eprintln!("call {at}: {record:x?}, {:x?}", Numbers(&record[4..], world.end));
        }
        world.call(held, record);
        if let Err(why) = world.audit(held) {
            world.leave();
            panic!("after call {at}, {record:x?}: {why}");
        }
    }
    world.finish(held);
}

/// Four bytes a number.
struct Numbers<'a>(&'a [u8], u64);

impl std::fmt::LowerHex for Numbers<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut numbers = Numbers(self.0, self.1);
        write!(f, "{:x} {:x} {:x}", numbers.next(), numbers.next(), numbers.next())
    }
}

impl std::fmt::Debug for Numbers<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::LowerHex::fmt(self, f)
    }
}

impl Numbers<'_> {
    fn next(&mut self) -> u64 {
        let Some((&[how, a, b, c], rest)) = self.0.split_first_chunk::<4>() else { return 0 };
        self.0 = rest;
        let (a, b, c) = (u64::from(a), u64::from(b), u64::from(c));
        match how % 12 {
            0..=2 => BASE + a % 48 * PAGE,
            3 => BASE + a % 48 * PAGE + (b << 8 | c),
            4 => a % 64,
            5 => a | b << 8 | c << 16,
            6 => (1 << (a % 64)) + b,
            7 => (1u64 << (a % 64)).wrapping_sub(b),
            8 => 0u64.wrapping_sub(a | b << 8),
            9 => 0u64.wrapping_sub(a % 48 * PAGE),
            10 => self.1.wrapping_add((a % 48).wrapping_sub(b % 48).wrapping_mul(PAGE)),
            _ => (a | b << 8 | c << 16).wrapping_mul(0x9e37_79b9_7f4a_7c15),
        }
    }

    /// A range, mostly of some pages, but of any that there are.
    fn range(&mut self) -> PageRange {
        let (start, end) = (self.next(), self.next());
        // A small number is a length.
        let end = if end < 64 { start.wrapping_add(end * PAGE) } else { end };
        let (start, end) = (Va(start.min(end)).page_floor(), Va(start.max(end)).page_floor());
        PageRange::new(start, end).expect("both are pages' addresses, in their order")
    }
}

impl World {
    fn new(held: &mut Held<'_, Nothing>, [machine, end]: [u8; HEADER]) -> World {
        let config = Config {
            segments: vec![(Pa(0x10_0000), 24 + u32::from(machine & 63))],
            ..Config::default()
        };
        let uvm = Arc::new(SoftMachine::new(config).into_uvm().expect("a new machine has memory"));
        let zero = uvm.zero_page(held).expect("a new machine has memory");
        uvm.return_page(held, zero).unwrap();
        let disk = SwapDisk::new(&uvm, &Line::new(Manner::Either, u64::from(machine)), 40);
        let (free, end) = (uvm.frames().free(), ENDS[usize::from(end) % ENDS.len()]);
        let none = (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (spaces, objects, loans, pins, ranges) = none;
        let mut world = World {
            uvm,
            spaces,
            objects,
            loans,
            pins,
            ranges,
            swap: None,
            zram: None,
            disk,
            free,
            end,
        };
        world.new_space(held);
        world
    }

    fn new_space(&mut self, held: &mut Held<'_, Nothing>) {
        if let Ok(space) =
            self.uvm.space_create(held, PageRange::new(Va(PAGE), Va(self.end)).unwrap())
        {
            self.spaces.push(space);
        }
    }

    fn space(&self, which: u8) -> &Space<Soft> {
        &self.spaces[usize::from(which) % self.spaces.len()]
    }

    fn object(&self, which: u8) -> Option<Arc<dyn Pager<Soft>>> {
        self.objects.get(usize::from(which) % self.objects.len().max(1)).cloned()
    }

    fn take<T>(list: &mut Vec<T>, which: u8) -> Option<T> {
        let at = usize::from(which) % list.len().max(1);
        (at < list.len()).then(|| list.swap_remove(at))
    }

    fn call(&mut self, held: &mut Held<'_, Nothing>, record: &[u8]) {
        let [what, who, other, how] = record[..4] else { return };
        let mut n = Numbers(&record[4..], self.end);
        let uvm = self.uvm.clone();
        match what % 44 {
            0 if self.spaces.len() < EACH => self.new_space(held),
            0 => self.drop_space(held, who),
            1 if self.objects.len() < EACH => self.new_object(held, how, n.next()),
            1 => {
                if let Some(object) = Self::take(&mut self.objects, who) {
                    uvm.detach(held, &*object);
                }
            }
            2..=8 => self.map(held, who, other, how, &mut n),
            9 => _ = uvm.unmap(held, self.space(who), n.range()),
            10 => _ = uvm.protect(held, self.space(who), n.range(), rights(how)),
            11 => _ = uvm.inherit(held, self.space(who), n.range(), inheritance(how)),
            12 => _ = uvm.advise(held, self.space(who), n.range(), advice(how)),
            13 => _ = uvm.discard(held, self.space(who), n.range()),
            14 => {
                let (range, len) = (n.range(), Pages(n.next()));
                let place = match how % 4 {
                    0 => RemapPlace::Stay,
                    1 => RemapPlace::MayMove,
                    _ => RemapPlace::Fixed(Va(u64::from(how) * PAGE + BASE)),
                };
                // A length that a number of bytes would be is tried too.
                let len = if how & 0x80 == 0 { Pages(len.0 % 64) } else { len };
                let is_wired = uvm
                    .entry_at(held, self.space(who), range.start)
                    .is_some_and(|entry| entry.wired);
                if !is_wired || len.0 < AUDITED {
                    _ = uvm.remap(held, self.space(who), range, len, place);
                }
            }
            15 => {
                let (range, to) = (n.range(), Va(n.next()));
                _ = uvm.remap_and_keep(held, self.space(who), range, (how & 1 != 0).then_some(to));
            }
            16 if self.spaces.len() < EACH => {
                if let Ok(child) = uvm.fork(held, self.space(who)) {
                    self.spaces.push(child);
                }
            }
            16 => uvm.space_clear(held, self.space(who)),
            17 | 18 => self.wire(held, who, what % 44 == 17, n.range()),
            19 => _ = uvm.unwire(held, self.space(who), n.range()),
            20 if self.pins.len() < EACH => {
                let pinned = match how & 1 {
                    0 => uvm.wire_pages(held, self.space(who), n.range(), one_right(other)),
                    _ => uvm.reference_pages(held, self.space(who), n.range(), one_right(other)),
                };
                self.pins.extend(pinned.ok());
            }
            20 => {
                if let Some(pinned) = Self::take(&mut self.pins, who) {
                    uvm.unwire_pages(held, pinned).unwrap();
                }
            }
            21..=25 => self.loan(held, what % 44 - 21, [who, other, how], &mut n),
            26 if self.ranges.len() < EACH => {
                self.ranges.extend(uvm.extract(held, self.space(who), n.range(), pass(how)).ok());
            }
            26 => {
                if let Some(range) = Self::take(&mut self.ranges, who) {
                    uvm.drop_detached(held, range);
                }
            }
            27 => {
                if let Some(range) = Self::take(&mut self.ranges, other) {
                    let to = place(how, n.next());
                    if let Err((_, range)) = uvm.attach_range(held, self.space(who), range, to) {
                        self.ranges.push(range);
                    }
                }
            }
            28 => {
                let (range, at) = (n.range(), n.next());
                let (from, to) = (self.space(who), self.space(other));
                _ = uvm.pass_range(held, from, range, to, place(how, at), pass(how >> 4));
            }
            29 => {
                if let Some(range) = self.ranges.first() {
                    uvm.limit(held, range, rights(how));
                }
            }
            30..=34 => self.touch(what % 44 - 30, [who, how], &mut n),
            35 => self.use_object(held, other, how, &mut n),
            36 => {
                let target = n.next() as usize;
                uvm.pageout(
                    held,
                    if how & 1 == 0 { target } else { self.uvm.frames().free() + target % 64 },
                );
            }
            37 => _ = uvm.pageout_range(held, self.space(who), n.range()),
            38 => uvm.cool_range(held, self.space(who), n.range()),
            39 => self.describe(held, who, &mut n),
            40 => self.set_knobs(held, other, how, &mut n),
            41 => {
                if let Ok(space) = uvm.space_create(held, n.range()) {
                    let range = space.bounds();
                    _ = uvm.map(held, &space, &MapRequest::zero(Pages(n.next())).at(range.start));
                    uvm.space_destroy(held, space);
                }
            }
            42 => match self.swap.take() {
                None => self.swap = uvm.swap_on(held, self.disk.clone(), n.next() as i16).ok(),
                Some(id) if uvm.swap_off(held, id).is_err() => self.swap = Some(id),
                Some(_) => {}
            },
            _ => _ = uvm.fault(held, self.space(who), Va(n.next()), one_right(how)),
        }
    }

    fn new_object(&mut self, held: &mut Held<'_, Nothing>, how: u8, len: u64) {
        let len = Pages(if how & 1 == 0 { len } else { len % 64 });
        let made = match how & 2 {
            0 => AnonObject::new(&self.uvm, held, len),
            _ => AnonObject::within(
                &self.uvm,
                held,
                len,
                Arc::new(Quota::new(usize::from(how >> 2))),
                None,
            ),
        };
        if let Ok(object) = made {
            self.objects.push(object);
        }
    }

    fn map(
        &mut self,
        held: &mut Held<'_, Nothing>,
        who: u8,
        other: u8,
        how: u8,
        n: &mut Numbers<'_>,
    ) {
        let (at, len, offset) = (n.next(), n.next(), n.next());
        let len = Pages(if other & 1 == 0 { len % 64 } else { len });
        let zero = MapRequest::zero(len);
        let backing = match self.object(other >> 4) {
            Some(pager) if other & 2 != 0 => Backing::Object { pager, offset: Pages(offset) },
            _ => Backing::Zero,
        };
        let sharing = match backing {
            Backing::Object { .. } if other & 4 != 0 => Sharing::Shared,
            _ => Sharing::Private,
        };
        let request = MapRequest {
            place: place(how, at),
            prot: if how & 0x80 == 0 { Prot::READ_WRITE } else { rights(how >> 4) },
            max_prot: if other & 8 == 0 { Prot::all() } else { rights(how >> 5) },
            inherit: (how & 0x40 != 0).then(|| inheritance(other)),
            sharing,
            backing,
            wired: how & 0x78 == 0x78 && len.0 < AUDITED,
            ..zero
        };
        _ = self.uvm.map(held, self.space(who), &request);
    }

    /// What is wired costs by addresses: a host bounds it.
    fn wire(&self, held: &mut Held<'_, Nothing>, who: u8, at_once: bool, range: PageRange) {
        if range.is_empty() || range.pages().0 < AUDITED {
            _ = match at_once {
                true => self.uvm.wire(held, self.space(who), range),
                false => self.uvm.wire_as_touched(held, self.space(who), range),
            };
        }
    }

    /// Loans, and what becomes of them.
    fn loan(
        &mut self,
        held: &mut Held<'_, Nothing>,
        what: u8,
        bytes: [u8; 3],
        n: &mut Numbers<'_>,
    ) {
        let ([who, other, how], uvm) = (bytes, self.uvm.clone());
        let has_room = self.loans.len() < EACH;
        match what {
            0 if has_room => {
                let loan = match how & 3 {
                    0 => uvm.give_to_kernel(held, self.space(who), n.range()).ok().flatten(),
                    _ => uvm.loan_to_kernel(held, self.space(who), n.range()).ok(),
                };
                self.loans.extend(loan);
            }
            1 if has_room => {
                let mut loan = Loan::new();
                match (self.object(other), how & 1) {
                    (Some(object), 0) => {
                        let (from, pages) = (Pages(n.next()), n.next() as usize);
                        _ = uvm.loan_object(held, &object, from, pages, &mut loan);
                    }
                    _ => _ = uvm.new_pages(held, n.next() as usize, &mut loan),
                }
                self.loans.push(loan);
            }
            2 => {
                let Some(loan) = Self::take(&mut self.loans, other) else { return };
                let at = if how & 1 == 0 { At::Anywhere } else { At::Fixed(Va(n.next())) };
                if let Err((_, loan)) = uvm.transfer(held, self.space(who), loan, at) {
                    self.loans.push(loan);
                }
            }
            _ => {
                if let Some(loan) = Self::take(&mut self.loans, other) {
                    uvm.return_loan(held, loan).unwrap();
                }
            }
        }
    }

    /// A program's own accesses.
    fn touch(&self, what: u8, [who, how]: [u8; 2], n: &mut Numbers<'_>) {
        let space = self.space(who);
        let soft = self.uvm.machine();
        let fault = |va, access| {
            self.uvm.fault(&mut ThreadCtx::new().held(), space, va, access).map(|_| ())
        };
        let (va, cpu) = (Va(n.next()), usize::from(how) % soft.cpus());
        // What crosses the end of all addresses no program can ask for.
        if va.0 > u64::MAX - 8 {
            return;
        }
        match what {
            0 | 1 => _ = soft.load(cpu, space.pmap(), va, &mut [0; 2], fault),
            _ => _ = soft.store(cpu, space.pmap(), va, &[how, 1], fault),
        }
    }

    fn use_object(&self, held: &mut Held<'_, Nothing>, which: u8, how: u8, n: &mut Numbers<'_>) {
        let (Some(object), uvm) = (self.object(which), &self.uvm) else { return };
        match how % 6 {
            0 => uvm.truncate(held, &object, Pages(n.next())),
            1 => uvm.truncate(held, &object, Pages(n.next() % 64)),
            2 => uvm.punch(held, &object, n.next()..n.next()),
            3 => _ = uvm.forget_copies(held, self.space(how >> 3), &*object, Pages(n.next())),
            _ => {
                let intent = if how % 6 == 4 { Intent::Read } else { Intent::Write };
                let nothing = |_: &Soft, _| ();
                _ = uvm.with_page(held, &object, Pages(n.next()), intent, Access::PAGE, nothing);
            }
        }
    }

    fn describe(&self, held: &mut Held<'_, Nothing>, who: u8, n: &mut Numbers<'_>) {
        let (uvm, space, range, va) = (&self.uvm, self.space(who), n.range(), Va(n.next()));
        uvm.outline(held, space, range, |_| ());
        _ = uvm.first_in(held, space, range);
        uvm.describe(held, space, |_| ());
        _ = uvm.entry_at(held, space, va);
        _ = uvm.object_at(held, space, va);
        _ = uvm.is_mapped(held, space, range);
        _ = uvm.range_stats(held, space, range);
        // By addresses: a host bounds it.
        if range.end.0.wrapping_sub(range.start.0) < 1 << 24 {
            _ = uvm.resident(held, space, range, |_| ());
        }
    }

    fn set_knobs(&mut self, held: &mut Held<'_, Nothing>, other: u8, how: u8, n: &mut Numbers<'_>) {
        let uvm = self.uvm.clone();
        let knobs = uvm.knobs();
        match how % 4 {
            0 => _ = Zram::set_share(&uvm, held, &mut self.zram, other),
            1 => {
                let class = [Class::Anon, Class::File, Class::Exec][usize::from(other) % 3];
                _ = knobs.set_shares(class, n.next() as u8, n.next() as u8);
            }
            2 => knobs.set_most_entries(n.next() as usize),
            _ => knobs.set_fault_around(other & 1 == 0),
        }
    }

    fn drop_space(&mut self, held: &mut Held<'_, Nothing>, who: u8) {
        // The others' numbers stay.
        let last = self.spaces.len() - 1;
        if usize::from(who) % EACH == last && last > 0 {
            self.uvm.space_destroy(held, self.spaces.remove(last));
        }
    }

    fn audit(&self, held: &mut Held<'_, Nothing>) -> Result<(), String> {
        let _host = host();
        let spaces: Vec<_> =
            self.spaces.iter().chain(self.ranges.iter().map(Detached::space)).collect();
        self.uvm.machine().tlb_audit()?;
        let mut pages = 0u64;
        for space in &spaces {
            self.uvm.outline(held, space, space.bounds(), |entry| {
                pages = pages.saturating_add(entry.range.pages().0)
            });
        }
        // The audit looks at each address.
        if pages > AUDITED {
            return Ok(());
        }
        self.uvm.audit(held, &spaces, &self.objects).map_err(|e| e.0)?;
        let loan = self.loans.iter().flat_map(Loan::pages);
        self.uvm.audit_loans(held, &spaces, loan).map_err(|e| e.0)
    }

    /// What is wrong is said; that this is dropped isn't to be said too.
    fn leave(&mut self) {
        std::mem::forget(std::mem::take(&mut self.loans));
        std::mem::forget(std::mem::take(&mut self.pins));
        std::mem::forget(std::mem::take(&mut self.ranges));
    }

    fn finish(mut self, held: &mut Held<'_, Nothing>) {
        let uvm = self.uvm.clone();
        self.pins.drain(..).for_each(|pinned| uvm.unwire_pages(held, pinned).unwrap());
        self.loans.drain(..).for_each(|loan| uvm.return_loan(held, loan).unwrap());
        self.ranges.drain(..).for_each(|range| uvm.drop_detached(held, range));
        self.spaces.drain(..).for_each(|space| uvm.space_destroy(held, space));
        self.objects.drain(..).for_each(|object| uvm.detach(held, &*object));
        _ = Zram::set_share(&uvm, held, &mut self.zram, 0);
        // What is being written is freed when that ends.
        while uvm.machine().complete(0, Fate::Works) {}
        assert_eq!(
            (uvm.frames().free(), uvm.anons()),
            (self.free, 0),
            "frames free, and anons, at the end"
        );
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.leave();
    }
}

fn place(how: u8, at: u64) -> Place {
    match how % 8 {
        0 | 1 => Place::Fixed(Va(at)),
        2 => Place::Hint(Va(at)),
        3 => Place::FixedNoReplace(Va(at)),
        4..=6 => Place::Anywhere,
        _ => Place::Fixed(Va(at & !(PAGE - 1))),
    }
}

fn rights(bits: u8) -> Prot {
    Prot::from_bits_truncate(bits)
}

/// An access has one right.
fn one_right(bits: u8) -> Prot {
    [Prot::READ, Prot::WRITE, Prot::EXECUTE][usize::from(bits) % 3]
}

fn inheritance(byte: u8) -> Inherit {
    [Inherit::None, Inherit::Share, Inherit::Copy, Inherit::Zero][usize::from(byte) % 4]
}

fn advice(byte: u8) -> Advice {
    [Advice::Normal, Advice::Random, Advice::Sequential][usize::from(byte) % 3]
}

fn pass(byte: u8) -> Pass {
    [Pass::Share, Pass::Copy, Pass::Donate, Pass::DonateZero][usize::from(byte) % 4]
}
