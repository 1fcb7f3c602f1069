//! Map a file, fork the space, write on both sides, and print what was copied and why.
//!
//! The library runs on a desk here: `SoftMachine` is the MMU, the memory and the CPUs. `cargo run
//! --example fork_cow`

use std::sync::Arc;

use machine::{Machine, PageNo, PageRange, Pages, Prot, ThreadCtx, Va, PAGE_SIZE};
use uvm::{Counter, MapRequest, Pager, Sharing, Space, Transfer, Uvm, Vnode, VnodePager};
use uvm_soft::{Config, SoftMachine};

/// A file of text, kept by the host.
struct Text(&'static [u8]);

impl Vnode<SoftMachine> for Text {
    fn read(&self, machine: &SoftMachine, index: Pages, pages: &[PageNo]) -> Transfer {
        for (&page, n) in pages.iter().zip(index.0..) {
            machine.zero(page);
            let rest = self.0.get(Pages(n).bytes() as usize..).unwrap_or(&[]);
            machine.write(page, 0, &rest[..rest.len().min(PAGE_SIZE)]);
        }
        Transfer::Done
    }

    fn write(&self, _: &SoftMachine, _: Pages, _: &[PageNo]) -> Transfer {
        Transfer::Failed // This file can't be changed, and no program maps it shared.
    }
}

type System = Uvm<SoftMachine>;

fn load(uvm: &System, space: &Space<SoftMachine>, va: Va) -> String {
    let mut bytes = [0; 12];
    let fault = |va, access| uvm.fault(&mut ThreadCtx::new().held(), space, va, access).map(drop);
    uvm.machine()
        .load(0, space.pmap(), va, &mut bytes, fault)
        .expect("the address is mapped to read");
    String::from_utf8_lossy(&bytes).into_owned()
}

fn store(uvm: &System, space: &Space<SoftMachine>, va: Va, text: &str) {
    let fault = |va, access| uvm.fault(&mut ThreadCtx::new().held(), space, va, access).map(drop);
    uvm.machine()
        .store(0, space.pmap(), va, text.as_bytes(), fault)
        .expect("the address is mapped to write");
}

/// Prints what the last step copied.
fn report(uvm: &System, before: &mut [u64; 3], step: &str) {
    let counters = [Counter::FaultsPromoted, Counter::FaultsAnonCopied, Counter::AmapCopies];
    let now = counters.map(|c| uvm.stat().get(c));
    let [file, anon, amap] = std::array::from_fn(|i| now[i] - before[i]);
    println!(
        "{step:40}pages copied: {file} from the file, {anon} from a sharer; amaps copied: {amap}"
    );
    *before = now;
}

/// Runs the example; a test does, too.
pub fn main() {
    let uvm = SoftMachine::new(Config::default()).into_uvm().expect("a new machine has memory");
    let mut ctx = ThreadCtx::new();
    let h = &mut ctx.held();
    let file = VnodePager::new(&uvm, h, Box::new(Text(b"first words")), Pages(1))
        .expect("there is memory");
    let pager: Arc<dyn Pager<SoftMachine>> = file;
    let parent = uvm
        .space_create(h, PageRange::new(Va(1 << 16), Va(1 << 30)).unwrap())
        .expect("there is memory");
    let request = MapRequest::object(pager.clone(), Pages(0), Pages(1), Sharing::Private);
    let at = uvm.map(h, &parent, &request.prot(Prot::READ_WRITE)).expect("there is room");

    let mut seen = [0; 3];
    assert_eq!(load(&uvm, &parent, at), "first words\0");
    report(&uvm, &mut seen, "parent reads: the file's own page");
    store(&uvm, &parent, at, "PARENT");
    report(&uvm, &mut seen, "parent writes: private, so a copy");
    let child = uvm.fork(h, &parent).expect("there is memory");
    report(&uvm, &mut seen, "fork: nothing yet");
    store(&uvm, &child, at, "child ");
    report(&uvm, &mut seen, "child writes: the page has two owners");
    store(&uvm, &parent, at, "Parent");
    report(&uvm, &mut seen, "parent writes: it is the only one left");
    println!("parent {:?}, child {:?}", load(&uvm, &parent, at), load(&uvm, &child, at));
    assert_eq!(
        (load(&uvm, &parent, at), load(&uvm, &child, at)),
        ("Parentwords\0".into(), "child words\0".into())
    );

    uvm.audit(h, &[&parent, &child], std::slice::from_ref(&pager)).expect("every count is right");
    uvm.space_destroy(h, child);
    uvm.space_destroy(h, parent);
    uvm.truncate(h, &pager, Pages(0));
    uvm.detach(h, &*pager);
    assert_eq!(uvm.frames().free(), uvm.frames().total(), "every page came back");
}
