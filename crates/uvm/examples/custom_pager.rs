//! A pager of one's own: memory whose pages are computed when they are first touched.
//!
//! Here it is a table of squares as long as a terabyte; only the pages that a program looks at are
//! ever made. `cargo run --example custom_pager`

use std::sync::Arc;

use machine::order::{self, Held};
use machine::{Machine, PageNo, PageRange, Pages, Prot, ThreadCtx, Va, PAGE_SIZE};
use uvm::page::Gather;
use uvm::page::Reserve;
use uvm::{Access, GetError, MapRequest, Object, ObjectBody, Pager, Removed, Sharing, Uvm};
use uvm_soft::{Config, SoftMachine};

/// Squares of 0, 1, 2, ... as 64-bit words.
struct Squares {
    object: Object<SoftMachine>,
}

const WORDS: u64 = PAGE_SIZE as u64 / 8;

impl Pager<SoftMachine> for Squares {
    fn object(&self) -> &Object<SoftMachine> {
        &self.object
    }

    fn kind(&self) -> &'static str {
        "squares"
    }

    fn get(
        &self,
        uvm: &Uvm<SoftMachine>,
        body: &mut ObjectBody,
        held: &mut Held<'_, order::Object>,
        index: Pages,
        _: Access,
    ) -> Result<PageNo, GetError> {
        if index >= body.length() {
            return Err(GetError::PastEnd);
        }
        let machine = uvm.machine();
        let page = uvm.frames().alloc(machine, held, Reserve::User)?;
        for word in 0..WORDS {
            let n = index.0 * WORDS + word;
            machine.write(page, word as usize * 8, &n.wrapping_mul(n).to_le_bytes());
        }
        println!("page {:#x} computed", index.0);
        self.object.insert(uvm, body, held, index, page);
        Ok(page)
    }

    /// No program can see the pages any more: they can be computed again.
    fn last_reference(
        &self,
        uvm: &Uvm<SoftMachine>,
        body: &mut ObjectBody,
        held: &mut Held<'_, order::Object>,
        down: &mut Gather,
    ) -> Removed {
        body.remove_some(uvm, held, down)
    }
}

/// Runs the example; a test does, too.
pub fn main() {
    let uvm = SoftMachine::new(Config::default()).into_uvm().expect("a new machine has memory");
    let mut ctx = ThreadCtx::new();
    let h = &mut ctx.held();
    let terabyte = Pages::floor(1 << 40);
    let pager: Arc<dyn Pager<SoftMachine>> =
        Arc::new(Squares { object: Object::new(&uvm, terabyte) });
    let space = uvm
        .space_create(h, PageRange::new(Va(1 << 16), Va(1 << 46)).unwrap())
        .expect("there is memory");
    let request = MapRequest::object(pager.clone(), Pages(0), terabyte, Sharing::Shared);
    let table = uvm.map(h, &space, &request.prot(Prot::READ)).expect("there is room");

    for n in [3, 100_000, 100_001, 4_000_000_000] {
        let fault =
            |va, access| uvm.fault(&mut ThreadCtx::new().held(), &space, va, access).map(drop);
        let square = uvm
            .machine()
            .load_u64(0, space.pmap(), Va(table.0 + n * 8), fault)
            .expect("it is mapped");
        println!("{n} squared is {square}");
        assert_eq!(square, n * n);
    }
    assert_eq!(pager.object().resident(h), 3, "two of the words share a page");

    uvm.space_destroy(h, space);
    uvm.detach(h, &*pager);
    assert_eq!(uvm.frames().free(), uvm.frames().total(), "every page came back");
}
