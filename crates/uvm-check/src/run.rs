//! Running a list so that nothing it does can hide: panics are caught, a failing list is shrunk and
//! printed as code.

use std::cell::{Cell, RefCell};
use std::fmt::{self, Write};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use uvm_soft::SoftMachine;

use crate::desk::Desk;
use crate::op::Op;
use crate::world::{Setup, World};

/// A list that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed it came from, if any.
    pub seed: Option<u64>,
    /// The step that failed; the list's length if it was the end.
    pub step: usize,
    /// What was wrong.
    pub why: String,
    /// The operations.
    pub list: Vec<Op>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "step {} of {}: {}", self.step, self.list.len(), self.why)?;
        if let Some(seed) = self.seed {
            writeln!(f, "replay: UVM_SEED={seed} before the command that ran this test")?;
        }
        f.write_str(&code(&self.list))
    }
}

/// The list as Rust code, for a test.
pub fn code(list: &[Op]) -> String {
    let mut out = String::from(
        "use uvm_check::op::{At::*, Back::*, Inh, Kind, Op::*, Span, Way};\nlet list = [\n",
    );
    for op in list {
        let _ = writeln!(out, "    {},", qualified(op));
    }
    out + "];\n"
}

/// The debug form, with the names that two enums share made clear.
fn qualified(op: &Op) -> String {
    let mut text = format!("{op:?}");
    for (field, owner) in [("inherit: ", "Inh::"), ("kind: ", "Kind::"), ("way: ", "Way::")] {
        for name in [
            "None",
            "Share",
            "Copy",
            "DonateZero",
            "Donate",
            "Zero",
            "Anon",
            "Within",
            "File",
            "Device",
            "Rom",
        ] {
            if name != "None" || !text.starts_with("Map") {
                text = text.replace(&format!("{field}{name}"), &format!("{field}{owner}{name}"));
            }
            text =
                text.replace(&format!("{field}Some({name}"), &format!("{field}Some({owner}{name}"));
        }
    }
    text
}

/// Runs a list in a new world, to the end.
///
/// # Errors
/// [`Failure`].
pub fn run(list: &[Op], setup: &Setup) -> Result<(), Failure> {
    run_on::<SoftMachine>(list, setup)
}

/// Runs a list in a new world on any machine that runs in a process, to the end.
///
/// # Errors
/// [`Failure`].
pub fn run_on<M: Desk>(list: &[Op], setup: &Setup) -> Result<(), Failure> {
    let step = Cell::new(0);
    let result = quietly(|| {
        let mut world = World::<M>::on(setup);
        for (n, op) in list.iter().enumerate() {
            step.set(n);
            world.step(op)?;
            if world.is_over() {
                break;
            }
        }
        step.set(list.len());
        world.finish()
    });
    result.map_err(|why| Failure { seed: None, step: step.get(), why, list: list.to_vec() })
}

/// Runs a list and, if it fails, finds a shorter one that fails too.
///
/// # Errors
/// [`Failure`] of the short list.
pub fn run_and_shrink(list: &[Op], setup: &Setup) -> Result<(), Failure> {
    run_and_shrink_on::<SoftMachine>(list, setup)
}

/// Like [`run_and_shrink`], on any machine that runs in a process.
///
/// # Errors
/// [`Failure`] of the short list.
pub fn run_and_shrink_on<M: Desk>(list: &[Op], setup: &Setup) -> Result<(), Failure> {
    run_on::<M>(list, setup).map_err(|failure| shrink::<M>(failure, setup))
}

/// Operations to spend on one shrinking.
const PATIENCE: usize = 1_000_000;

fn shrink<M: Desk>(mut best: Failure, setup: &Setup) -> Failure {
    best.list.truncate(best.step + 1);
    let mut left = PATIENCE;
    let mut chunk = best.list.len().div_ceil(2);
    while chunk != 0 && left != 0 {
        let mut at = 0;
        let before = best.list.len();
        while at < best.list.len() && left != 0 {
            let mut list = best.list.clone();
            list.drain(at..(at + chunk).min(list.len()));
            left = left.saturating_sub(list.len() + 1);
            match run_on::<M>(&list, setup) {
                Err(failure) => best = failure,
                Ok(()) => at += chunk,
            }
        }
        if chunk > 1 || best.list.len() == before {
            chunk /= 2;
        }
    }
    best
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs `work` and makes its panic an error with its message, printing nothing.
pub fn quietly(work: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if QUIET.get() {
                SAID.with_borrow_mut(|said| *said = info.to_string());
            } else {
                before(info);
            }
        }));
    });
    QUIET.set(true);
    let result = panic::catch_unwind(AssertUnwindSafe(work));
    QUIET.set(false);
    result.unwrap_or_else(|_| Err(SAID.with_borrow(|said| format!("panic: {said}"))))
}
