//! Two page faults of one thread, side by side: while the disk reads for the one, the other goes
//! on.
//!
//! An executor polls each fault as a future. `Uvm::try_fault` makes an attempt and says what it
//! waits for; the future looks whether that has happened. Nothing sleeps but the executor, when no
//! future gets on: here it lets the disk end a transfer then, the youngest first, so that the
//! faults end in the other order than they began. `cargo run --example polled_faults`

use std::future::Future;
use std::pin::{pin, Pin};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Waker};

use machine::{Machine, PageNo, PageRange, Pages, Prot, ThreadCtx, Ticket, Va};
use uvm::{
    FaultError, MapRequest, Outcome, Retry, Sharing, Space, Transfer, Uvm, Vnode, VnodePager,
};
use uvm_soft::{Config, Fate, IoBy, SoftMachine};

/// A disk whose transfers are under way until the machine is told to complete them. Every page of
/// its file begins with the page's index.
struct Disk(OnceLock<Weak<Uvm<SoftMachine>>>);

impl Vnode<SoftMachine> for Disk {
    fn read(&self, machine: &SoftMachine, index: Pages, pages: &[PageNo]) -> Transfer {
        let (uvm, pages) = (self.0.get().and_then(Weak::upgrade), pages.to_vec());
        machine.begin(move |machine, _| {
            for (n, &page) in pages.iter().enumerate() {
                machine.write(page, 0, &(index.0 + n as u64).to_le_bytes());
            }
            if let Some(uvm) = uvm {
                uvm.read_done(&mut ThreadCtx::new().held(), &pages, Outcome::Done);
            }
        });
        Transfer::Started
    }

    fn write(&self, _: &SoftMachine, _: Pages, _: &[PageNo]) -> Transfer {
        Transfer::Failed
    }
}

/// A fault under way.
struct Fault<'a> {
    uvm: &'a Uvm<SoftMachine>,
    space: &'a Space<SoftMachine>,
    va: Va,
    /// What the last attempt said to wait for.
    ticket: Option<Ticket>,
}

impl Future for Fault<'_> {
    type Output = Result<(), FaultError>;

    /// An executor that sleeps would keep the waker by the ticket's channel, for `Machine::wake`
    /// to find; this one polls all its futures again.
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let (uvm, mut ctx) = (self.uvm, ThreadCtx::new());
        let held = &mut ctx.held();
        loop {
            if let Some(ticket) = self.ticket {
                if uvm.machine().ticket(ticket.channel) == ticket {
                    return Poll::Pending;
                }
            }
            match uvm.try_fault(held, self.space, self.va, Prot::READ) {
                Ok(ahead) => {
                    ahead.into_iter().for_each(|read| uvm.start_read(held, read));
                    return Poll::Ready(Ok(()));
                }
                Err(Retry::Read(read)) => uvm.start_read(held, read),
                Err(Retry::Wait(ticket) | Retry::Memory(ticket)) => self.ticket = Some(ticket),
                Err(Retry::Hole(hole)) => {
                    if let Err(e) = uvm.make_hole_room(held, hole) {
                        return Poll::Ready(Err(e));
                    }
                }
                Err(Retry::Failed(e)) => return Poll::Ready(Err(e)),
            }
        }
    }
}

/// Runs the example; a test does, too.
pub fn main() {
    let config = Config { io: IoBy::Test, ..Config::default() };
    let uvm = Arc::new(SoftMachine::new(config).into_uvm().expect("a new machine has memory"));
    let mut ctx = ThreadCtx::new();
    let h = &mut ctx.held();
    let disk = Box::new(Disk(OnceLock::new()));
    let _ = disk.0.set(Arc::downgrade(&uvm));
    let file = VnodePager::new(&uvm, h, disk, Pages(1000)).expect("there is memory");
    let bounds = PageRange::new(Va(1 << 16), Va(1 << 46)).expect("whole pages");
    let space = uvm.space_create(h, bounds).expect("there is memory");
    let request = MapRequest::object(file.clone(), Pages(0), Pages(1000), Sharing::Shared);
    let start = uvm.map(h, &space, &request).expect("there is room");

    let fault = |page| Fault { uvm: &uvm, space: &space, va: start + Pages(page), ticket: None };
    let mut faults = [pin!(fault(3)), pin!(fault(700))];
    let mut order = Vec::new();
    let mut context = Context::from_waker(Waker::noop());
    while order.len() < faults.len() {
        let before = order.len();
        for (n, fault) in faults.iter_mut().enumerate() {
            if order.contains(&n) {
                continue;
            }
            match fault.as_mut().poll(&mut context) {
                Poll::Ready(result) => {
                    result.expect("the page is there");
                    order.push(n);
                }
                Poll::Pending => println!("fault {n} waits"),
            }
        }
        if order.len() == before {
            println!("{} transfers under way: one ends", uvm.machine().under_way());
            assert!(uvm.machine().complete(usize::MAX, Fate::Works), "nothing would ever get on");
        }
    }
    println!("resolved in the order {order:?}");
    assert_eq!(order, [1, 0], "the second fault did not wait for the first");
    for (page, name) in [(3, "first"), (700, "second")] {
        let none = |va, access| panic!("{access:?} at {va:?} faults again");
        let word = uvm.machine().load_u64::<()>(0, space.pmap(), start + Pages(page), none);
        assert_eq!(word, Ok(page), "the {name} fault's page");
    }
    while uvm.machine().complete(0, Fate::Works) {}
    uvm.space_destroy(h, space);
    uvm.detach(h, &*file);
}
