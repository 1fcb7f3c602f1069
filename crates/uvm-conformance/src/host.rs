//! What a host supplies beside the MMU: bytes of frames, tickets, locks, reservations.

use alloc::format;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};

use machine::order::{FreeList, Ordered};
use machine::{Channel, Machine, PageNo, Prot, RawLock, Shared, PAGE_SIZE, UNRESERVED_BYTES};

use crate::lab::{Lab, Map};
use crate::{Access, Law};

pub(crate) fn check<M: Machine, A: Access<M>>(lab: &mut Lab<'_, M, A>) {
    lab.begins(Law::Bytes);
    bytes(lab);
    beyond(lab);
    coherent(lab);
    lab.begins(Law::Locks);
    numbers(lab);
    locks(lab);
    lab.begins(Law::Tickets);
    woken_before(lab);
    by_turns(lab);
    lab.begins(Law::Heap);
    heap(lab);
}

fn all_bytes<M: Machine>(machine: &M, page: PageNo) -> Vec<u8> {
    let mut bytes = vec![0; PAGE_SIZE];
    machine.read(page, 0, &mut bytes);
    bytes
}

/// A page full of bytes that no other page has.
fn pattern(n: usize) -> Vec<u8> {
    (0..PAGE_SIZE).map(|at| (at * 7 + at / 251 + n * 31 + 1) as u8).collect()
}

fn bytes<M: Machine, A: Access<M>>(lab: &mut Lab<'_, M, A>) {
    let pages: Vec<PageNo> = lab.pages[..4].to_vec();
    let mut ought: Vec<Vec<u8>> = (0..4).map(pattern).collect();
    for (page, bytes) in pages.iter().zip(&ought) {
        lab.machine.write(*page, 0, bytes);
    }
    compare(lab, &pages, &ought, "pages were written");
    lab.machine.zero(pages[0]);
    ought[0].fill(0);
    compare(lab, &pages, &ought, "the first of them was zeroed");
    lab.machine.copy(pages[1], pages[2]);
    ought[2] = ought[1].clone();
    compare(lab, &pages, &ought, "the second was copied to the third");
    let parts =
        [(0, 1), (1, 2), (7, 3), (4088, 8), (PAGE_SIZE - 1, 1), (13, 100), (PAGE_SIZE, 0), (0, 0)];
    for (offset, len) in parts {
        let part: Vec<u8> = (0..len).map(|n| 0xc0 ^ n as u8 ^ offset as u8).collect();
        lab.machine.write(pages[3], offset, &part);
        ought[3][offset..offset + len].copy_from_slice(&part);
        let mut back = vec![0; len];
        lab.machine.read(pages[3], offset, &mut back);
        lab.expect(Law::Bytes, back == part, || {
            format!(
                "{len} bytes were written at {offset} of {:?}, and read back: they differ",
                pages[3]
            )
        });
        compare(lab, &pages, &ought, "a part of the fourth was written");
    }
}

fn compare<M: Machine, A: Access<M>>(
    lab: &mut Lab<'_, M, A>,
    pages: &[PageNo],
    ought: &[Vec<u8>],
    after: &str,
) {
    for (n, (page, ought)) in pages.iter().zip(ought).enumerate() {
        let seen = all_bytes(lab.machine, *page);
        let differs = (0..PAGE_SIZE).find(|at| seen[*at] != ought[*at]);
        lab.expect(Law::Bytes, differs.is_none(), || {
            let at = differs.unwrap_or(0);
            format!(
                "{after}; byte {at} of page number {n} of four, {page:?}, was expected to be \
                {:#x}: \
                 it is {:#x}",
                ought[at], seen[at]
            )
        });
    }
}

/// Bytes beyond a page's end are a panic, and so is a frame that isn't there.
fn beyond<M: Machine, A: Access<M>>(lab: &mut Lab<'_, M, A>) {
    let (machine, page) = (lab.machine, lab.pages[0]);
    let none = PageNo(u32::MAX - 1);
    let panics = [
        (
            "a read of 2 bytes at a page's last",
            lab.access.panics(&mut || machine.read(page, PAGE_SIZE - 1, &mut [0; 2])),
        ),
        (
            "a write of 2 bytes at a page's last",
            lab.access.panics(&mut || machine.write(page, PAGE_SIZE - 1, &[0; 2])),
        ),
        (
            "a read at the largest offset",
            lab.access.panics(&mut || machine.read(page, usize::MAX, &mut [0; 2])),
        ),
        ("a read of no frame", lab.access.panics(&mut || machine.read(none, 0, &mut [0; 1]))),
        ("a write to no frame", lab.access.panics(&mut || machine.write(none, 0, &[0; 1]))),
        ("zero of no frame", lab.access.panics(&mut || machine.zero(none))),
        ("copy from no frame", lab.access.panics(&mut || machine.copy(none, page))),
        ("copy to no frame", lab.access.panics(&mut || machine.copy(page, none))),
    ];
    for (what, panicked) in panics {
        match panicked {
            Some(panicked) => lab.expect(Law::Bytes, panicked, || {
                format!("{what} was expected to panic: it returned")
            }),
            None => {
                return lab.report.leave_out(Law::Bytes, "panics end the port: bytes beyond a page")
            }
        }
    }
}

/// The machine and programs on every CPU see one page.
fn coherent<M: Machine, A: Access<M>>(lab: &mut Lab<'_, M, A>) {
    let space = lab.space();
    let map = Map::new(lab.va(1), lab.pages[0], Prot::READ_WRITE);
    for cpu in 0..lab.cpus() {
        let word = 0x0c0_4e12_0000 + cpu as u64;
        lab.set_word(map.page, word);
        let seen = lab.load_through(cpu, &space, map);
        lab.expect(Law::Bytes, seen == Some(word), || {
            format!(
                "the machine wrote {word:#x} to {:?}; cpu {cpu} loaded it: it saw {seen:x?}",
                map.page
            )
        });
        lab.store_through(cpu, &space, map, !word);
        let seen = lab.word(map.page);
        lab.expect(Law::Bytes, seen == !word, || {
            format!("cpu {cpu} stored {:#x} to {:?}; the machine read {seen:#x}", !word, map.page)
        });
    }
    lab.end(space);
}

/// CPUs have numbers below their count, to the machine and to its lock: the library's tables have a
/// row for each.
fn numbers<M: Machine, A: Access<M>>(lab: &mut Lab<'_, M, A>) {
    for cpu in 0..lab.cpus() {
        let (machine, lock) = lab.on(cpu, |_| (lab.machine.cpu(), <M::Lock as RawLock>::cpu()));
        let cpus = lab.cpus();
        lab.expect(Law::Locks, machine < cpus && lock < cpus, || {
            format!(
                "cpu {cpu} of {cpus} asked for its number, which was expected to be below {cpus}: \
                 Machine::cpu says {machine}, RawLock::cpu {lock}"
            )
        });
    }
}

/// Rounds of each CPU under a lock.
const TURNS: u64 = 500;

/// Two numbers that are only ever changed together.
#[derive(Default)]
struct Pair(u64, u64);

fn locks<M: Machine, A: Access<M>>(lab: &mut Lab<'_, M, A>) {
    let cpus = lab.cpus();
    let alone: Ordered<FreeList, M::Lock, Pair> = Ordered::new(Pair::default());
    let shared: Shared<FreeList, M::Lock, Pair> = Shared::new(Pair::default());
    let torn = AtomicU32::new(0);
    lab.access.at_once(cpus, &|cpu, held| {
        for turn in 0..TURNS {
            {
                let (mut pair, _h) = alone.lock(held);
                let was = pair.0;
                core::hint::black_box(&mut *pair).0 += 1;
                core::hint::spin_loop();
                core::hint::black_box(&mut *pair).1 += 1;
                torn.fetch_add(u32::from(pair.0 != was + 1 || pair.1 != pair.0), SeqCst);
            }
            if (turn + cpu as u64).is_multiple_of(4) {
                let (mut pair, _h) = shared.lock(held);
                core::hint::black_box(&mut *pair).0 += 1;
                core::hint::spin_loop();
                core::hint::black_box(&mut *pair).1 += 1;
            } else {
                let (pair, _h) = shared.read(held);
                torn.fetch_add(u32::from(pair.0 != pair.1), SeqCst);
            }
        }
    });
    let ought = cpus as u64 * TURNS;
    let seen = alone.into_inner();
    let torn = torn.into_inner();
    lab.expect(Law::Locks, torn == 0 && seen.0 == ought && seen.1 == ought, || {
        format!(
            "{cpus} CPUs added one to two numbers {TURNS} times each under a lock: {ought} was \
             expected, there are {} and {}, and {torn} times a CPU saw another in the midst of it",
            seen.0, seen.1
        )
    });
}

/// A channel that has no other use.
const MINE: Channel = Channel(0x7700_0000_0000_0001);

/// A channel is woken after a thread has read its ticket and before it waits.
fn woken_before<M: Machine, A: Access<M>>(lab: &mut Lab<'_, M, A>) {
    type Wake<M> = fn(&M, Channel);
    let ways: [(&str, Channel, Wake<M>); 2] =
        [("wake", MINE, M::wake), ("wake_one", Channel::MEMORY_TURN, M::wake_one)];
    for (name, channel, wake) in ways {
        let machine = lab.machine;
        if lab.cpus() == 1 {
            lab.on(0, |held| {
                let ticket = machine.ticket(channel);
                wake(machine, channel);
                machine.wait(held, ticket);
            });
            lab.expect(Law::Tickets, true, Default::default);
            continue;
        }
        let stage = AtomicU32::new(0);
        let lost = AtomicBool::new(false);
        lab.access.at_once(2, &|cpu, held| {
            if cpu == 1 {
                let ticket = machine.ticket(channel);
                stage.store(1, SeqCst);
                lab.access.wait(&mut || stage.load(SeqCst) == 2);
                machine.wait(held, ticket);
                stage.store(3, SeqCst);
                return;
            }
            lab.access.wait(&mut || stage.load(SeqCst) == 1);
            wake(machine, channel);
            stage.store(2, SeqCst);
            while !lab.access.wait(&mut || stage.load(SeqCst) == 3) {
                lost.store(true, SeqCst);
                machine.wake(channel);
            }
        });
        lab.expect(Law::Tickets, !lost.into_inner(), || {
            format!(
                "cpu 1 read a ticket; cpu 0 called {name} on its channel; then cpu 1 called wait, \
                 which was expected to return: it sleeps"
            )
        });
    }
}

/// Times that each CPU wakes the next.
const LAPS: u64 = 200;

/// The CPUs take turns; each sleeps until it is its own. CPU 0 sleeps never, and watches until the
/// others have ended: a machine that loses wakes may lose the last one too.
fn by_turns<M: Machine, A: Access<M>>(lab: &mut Lab<'_, M, A>) {
    let cpus = lab.cpus() as u64;
    if cpus == 1 {
        return;
    }
    let machine = lab.machine;
    let end = cpus * LAPS;
    let turn: Ordered<FreeList, M::Lock, u64> = Ordered::new(0);
    let (asleep, ended) = (AtomicBool::new(false), AtomicU64::new(1));
    lab.access.at_once(cpus as usize, &|cpu, held| loop {
        let ticket = {
            let (mut turn, _h) = turn.lock(held);
            if *turn >= end && cpu != 0 {
                ended.fetch_add(1, SeqCst);
                return;
            }
            if *turn < end && *turn % cpus == cpu as u64 {
                *turn += 1;
                machine.wake(MINE);
                continue;
            }
            machine.ticket(MINE)
        };
        if cpu != 0 {
            machine.wait(held, ticket);
            continue;
        }
        let mut goes_on = || {
            let (turn, _h) = turn.lock(held);
            if *turn < end {
                *turn % cpus == 0
            } else {
                ended.load(SeqCst) == cpus
            }
        };
        if !lab.access.wait(&mut goes_on) {
            asleep.store(true, SeqCst);
            *turn.lock(held).0 = end;
            machine.wake(MINE);
        } else if ended.load(SeqCst) == cpus {
            return;
        }
    });
    lab.expect(Law::Tickets, !asleep.into_inner(), || {
        format!(
            "{cpus} CPUs took turns, each read a ticket under the lock under which the one before \
             it ended its turn and called wake; one sleeps though it is its turn"
        )
    });
}

/// What was reserved can be allocated, in pieces of any size; and something after a refusal.
fn heap<M: Machine, A: Access<M>>(lab: &mut Lab<'_, M, A>) {
    const SIZES: [usize; 8] = [1, 8, 24, 100, 1000, 4096, 10_000, 16 * 1024];
    for pieces in [1, 2, 20] {
        for size in SIZES {
            let bytes = size * pieces;
            // The list itself is allocated before the promise.
            let mut lists: Vec<Vec<u8>> = Vec::with_capacity(UNRESERVED_BYTES / 512);
            let (mut is_promised, mut refused) = (false, false);
            let mut all = (pieces, size);
            let found = lab.access.allocating(&mut || {
                is_promised = lab.machine.reserve_heap(bytes).is_ok();
                if !is_promised {
                    all = (UNRESERVED_BYTES / 512, 512);
                }
                for _ in 0..all.0 {
                    let mut list = Vec::new();
                    refused |= list.try_reserve_exact(all.1).is_err();
                    lists.push(list);
                }
            });
            let (pieces, size) = all;
            let promised = if is_promised {
                format!("reserve_heap({bytes}) was granted")
            } else {
                format!("reserve_heap({bytes}) was refused, which leaves {UNRESERVED_BYTES}")
            };
            let said =
                format!("{promised}; {pieces} allocations of {size} bytes were expected to work");
            lab.expect(Law::Heap, !refused, || format!("{said}: one was refused"));
            lab.expect(Law::Heap, found.is_ok(), || {
                format!("{said}: {}", found.clone().unwrap_err())
            });
        }
    }
}
