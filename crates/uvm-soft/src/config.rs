//! What a software machine is made of, and which law it breaks on purpose.

use machine::Pa;

/// How a machine is built. `Config::default()` is 1,024 frames, four CPUs, nothing forgotten, no
/// plant.
///
/// ```
/// use machine::Pa;
/// use uvm_soft::{Config, SoftMachine};
/// let config = Config { segments: vec![(Pa(0), 64)], cpus: 2, seed: 7, ..Config::default() };
/// let machine = SoftMachine::new(config);
/// assert_eq!((machine.frames().total(), machine.cpus()), (64, 2));
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    /// Physical memory: address and frames of each segment.
    pub segments: Vec<(Pa, u32)>,
    /// Memory of devices, behind it: address and frames of each.
    pub devices: Vec<(Pa, u32)>,
    /// Simulated CPUs, at most 64.
    pub cpus: usize,
    /// Seed of all that happens at random.
    pub seed: u64,
    /// One call of the pmap in so many forgets a pageable mapping (law P1); zero never does.
    pub forget_one_in: u64,
    /// A law to break.
    pub plant: Option<Plant>,
    /// Whether other threads may be inside the VM system while a CPU accesses memory.
    pub stage: Stage,
    /// What ends transfers that are under way.
    pub io: IoBy,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            segments: vec![(Pa(0x10_0000), 1024)],
            devices: Vec::new(),
            cpus: 4,
            seed: 0,
            forget_one_in: 0,
            plant: None,
            stage: Stage::Sequential,
            io: IoBy::Waiters,
        }
    }
}

/// What a stale TLB entry proves.
///
/// ```
/// use uvm_soft::{Config, SoftMachine, Stage};
/// let machine = SoftMachine::new(Config { stage: Stage::Concurrent, ..Config::default() });
/// assert_eq!(machine.under_way(), 0);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// No operation is under way when memory is accessed: any use of a stale entry is an error.
    Sequential,
    /// An operation on another thread may yet perform its shootdown: a stale entry may be used as
    /// long as its page has not been freed.
    Concurrent,
}

/// What ends a device's transfers.
///
/// ```
/// use uvm_soft::{Config, Fate, IoBy, SoftMachine};
/// let machine = SoftMachine::new(Config { io: IoBy::Test, ..Config::default() });
/// machine.begin(|_, fate| assert_eq!(fate, Fate::Works));
/// assert!(machine.complete(0, Fate::Works));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoBy {
    /// A thread that waits for something ends one; and the test, when it likes.
    Waiters,
    /// Only the test: a thread of its own.
    Test,
}

/// A broken law: what a port may get wrong. A test plants one and expects to see it found.
///
/// ```
/// # use uvm_soft::example::*;
/// use uvm_soft::Plant;
/// let config = Config { plant: Some(Plant::SkipFlush), ..Config::default() };
/// let uvm = SoftMachine::new(config).into_uvm()?;
/// let mut thread = ThreadCtx::new();
/// let held = &mut thread.held();
/// let space = uvm.space_create(held, bounds())?;
/// let range = memory(&uvm, held, &space, 1)?;
/// uvm.protect(held, &space, range, Prot::READ)?;
/// assert!(uvm.machine().tlb_audit().is_err(), "a CPU may still store there");
/// # std::mem::forget(space); // Its end would find the stale translation as well.
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plant {
    /// `protect` does nothing, as if fork forgot to write-protect.
    IgnoreProtect,
    /// `page_protect` does nothing.
    IgnorePageProtect,
    /// `remove` does nothing.
    IgnoreRemove,
    /// `flush` reaches no CPU.
    SkipFlush,
    /// `flush` reaches only the calling CPU.
    SkipRemoteFlush,
    /// `flush` doesn't wait for CPUs that are using what was lowered.
    SkipWait,
    /// A CPU looks for what it is to forget before it says that it uses translations.
    LateUse,
    /// A wired mapping is forgotten like any other.
    ForgetWired,
    /// `page_protect` misses all mappings but the newest.
    LoseReverse,
    /// A reservation of heap is good for half of it.
    HalfHeap,
    /// Shootdowns that are not flushed yet are not counted: each call flushes what it finds.
    OvertakeOthers,
    /// An `enter` that replaces a mapping is not counted among the unflushed.
    UncountedEnter,
    /// An `enter` that replaces or lowers a mapping flushes no CPU.
    ReplaceUntold,
    /// An `enter` of the same page with more rights keeps the old ones.
    KeepRights,
    /// `protect` gives what it is asked for, also where that is more.
    ProtectRaises,
    /// `remove` and `protect` miss the last page of a range of several.
    MissLast,
    /// A page's bits go with the mapping that they were set through.
    LoseBits,
    /// `clear_modified` flushes no CPU.
    CleanUntold,
    /// `page_protect` says of no mapping that it was wired.
    MiscountWired,
    /// `enter` maps a run's first page alone.
    FirstOfRun,
    /// `enter_ahead` replaces what is there.
    AheadReplaces,
    /// `enter_ahead` doesn't ask whether it may.
    AheadUnasked,
    /// To remove a whole space flushes no CPU, and the next space gets its name.
    ReuseNames,
    /// A wake-up that finds no thread asleep is lost.
    LoseWake,
    /// `zero` leaves a page's last word.
    ShortZero,
}

impl Plant {
    /// All.
    pub const ALL: [Plant; 25] = [
        Plant::IgnoreProtect,
        Plant::IgnorePageProtect,
        Plant::IgnoreRemove,
        Plant::SkipFlush,
        Plant::SkipRemoteFlush,
        Plant::SkipWait,
        Plant::LateUse,
        Plant::ForgetWired,
        Plant::LoseReverse,
        Plant::HalfHeap,
        Plant::OvertakeOthers,
        Plant::UncountedEnter,
        Plant::ReplaceUntold,
        Plant::KeepRights,
        Plant::ProtectRaises,
        Plant::MissLast,
        Plant::LoseBits,
        Plant::CleanUntold,
        Plant::MiscountWired,
        Plant::FirstOfRun,
        Plant::AheadReplaces,
        Plant::AheadUnasked,
        Plant::ReuseNames,
        Plant::LoseWake,
        Plant::ShortZero,
    ];

    /// Those that one thread can find.
    pub const SEQUENTIAL: [Plant; 8] = [
        Plant::IgnoreProtect,
        Plant::IgnorePageProtect,
        Plant::IgnoreRemove,
        Plant::SkipFlush,
        Plant::SkipRemoteFlush,
        Plant::ForgetWired,
        Plant::LoseReverse,
        Plant::HalfHeap,
    ];
}
