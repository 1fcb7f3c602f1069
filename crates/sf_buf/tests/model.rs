//! Random opens, closes and accesses on several CPUs: what is open shows its page on every CPU that
//! may use it, whatever the TLBs remember.

mod common;

use common::{Lock, Mmu, Plant};
use machine::{Pa, PAGE_SHIFT};
use sf_buf::{Kind, Place, Reach, SfBuf, SfBufs};
use uvm_soft::Rng;

const CPUS: usize = 3;
const PAGES: u64 = 12;

/// A run of random steps. `Err`: a CPU saw another page than the one that a mapping shows.
fn run(kind: Kind, plant: Option<Plant>, seed: u64) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let shared = 1 + rng.below(8) as u32;
    let bufs = SfBufs::<Lock>::new(kind, CPUS, shared).unwrap();
    let mut mmu = Mmu::new(CPUS, bufs.slots());
    mmu.plant = plant;
    let mut open: Vec<(SfBuf<'_, Lock, Mmu>, Option<usize>)> = Vec::new();
    let mut wrong = None;
    for _ in 0..300 {
        if wrong.is_some() {
            break;
        }
        mmu.cpu.set(rng.below(CPUS as u64) as usize);
        let cpu = mmu.cpu.get();
        match rng.below(8) {
            0..=2 => {
                let page = Pa(rng.below(PAGES) << PAGE_SHIFT);
                let here = rng.one_in(2);
                let reach = if here { Reach::ThisCpu } else { Reach::AnyCpu };
                let buf = bufs.open(&mmu, page, reach);
                let in_use = open.iter().filter(|(_, of)| of.is_none()).count();
                if buf.is_none() && !here && in_use == 0 && kind == Kind::Private {
                    wrong = Some("refused with all shared mappings free".into());
                }
                open.extend(buf.map(|buf| (buf, here.then_some(cpu))));
            }
            3 if !open.is_empty() => {
                let at = rng.below(open.len() as u64) as usize;
                if let Some(own) = open[at].1 {
                    mmu.cpu.set(own);
                }
                drop(open.swap_remove(at));
                bufs.audit();
            }
            4 => {
                // A CPU looks ahead, or a stray pointer is followed.
                if bufs.slots() > 0 {
                    mmu.access(cpu, Place::Slot(rng.below(u64::from(bufs.slots())) as u32));
                }
            }
            5 => {
                if bufs.slots() > 0 {
                    mmu.evict(cpu, rng.below(u64::from(bufs.slots())) as u32);
                }
            }
            _ => {
                for (buf, own) in &open {
                    if kind != Kind::Direct && own.is_none_or(|own| own == cpu) {
                        let seen = mmu.access(cpu, buf.place());
                        if seen != Some(buf.page()) {
                            wrong = Some(format!("CPU {cpu} sees {seen:?}, not {:?}", buf.page()));
                        }
                    }
                }
            }
        }
    }
    for (buf, own) in open {
        mmu.cpu.set(own.unwrap_or(0));
        drop(buf);
    }
    bufs.audit();
    wrong.map_or(Ok(()), Err)
}

#[test]
fn what_is_open_shows_its_page() {
    for (name, kind) in Kind::ALL {
        for seed in 0..2_000 {
            run(kind, None, seed).unwrap_or_else(|wrong| panic!("{name}, seed {seed}: {wrong}"));
        }
    }
}

/// The test above is able to fail: each law that a port breaks is seen.
#[test]
fn broken_laws_are_found() {
    let breaks = [
        (Kind::Cache, Plant::KeepLocal),
        (Kind::Cache, Plant::KeepRemote),
        (Kind::Cache, Plant::NeverAccessed),
        (Kind::Private, Plant::KeepLocal),
        (Kind::Private, Plant::KeepRemote),
        (Kind::Private, Plant::NeverAccessed),
        (Kind::Original, Plant::KeepLocal),
        (Kind::Original, Plant::KeepRemote),
    ];
    for (kind, plant) in breaks {
        let found = (0..2_000).any(|seed| run(kind, Some(plant), seed).is_err());
        assert!(found, "{kind:?} doesn't show {plant:?}");
    }
}
