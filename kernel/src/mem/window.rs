//! Windows: where the kernel sees bytes of page frames, for a moment.
//!
//! A page that programs have, of a file, a pipe or a socket, has no address that the kernel may
//! keep. Who copies, compares or zeroes its bytes opens a window, which ends with the value. How
//! windows are made is chosen at start-up by `ephemeral=direct|cache|private|original`, with the
//! number of shared ones behind a colon: `ephemeral=cache:6144`. Without it all memory is in the
//! direct map, and a window is an addition.
//!
//! I1: the kernel runs with interrupts off but at named places; a window is open at none of them,
//! nor while its thread sleeps or a fault is answered. So it is private to its CPU.
//!
//! Source: the sf_buf paper, section 4; the crate `sf_buf`.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use machine::{NoMemory, Pa, PAGE_SIZE};
use sf_buf::{Counts, Kind, Place, SfBufs, Slot};

use crate::arch::windows::{self, WindowTables};
use crate::arch::{cpu, layout};
use crate::lock::{Once, RawSpin};

/// Shared mappings, unless the command line says how many.
const SHARED: u32 = 16 * 1024;
/// And at most: 256 MiB of addresses.
const MOST: u32 = 64 * 1024;

/// Mappings that are made and end.
struct Made {
    bufs: SfBufs<RawSpin>,
    tables: WindowTables,
}

static MADE: Once<Made> = Once::new();
/// Whether there are any, or will be.
static IS_MADE: AtomicBool = AtomicBool::new(false);

/// Addresses at which bytes of one page are seen, until it is dropped.
pub struct Window {
    at: u64,
    slot: Slot,
}

/// Chooses how windows are made, by the command line, before any is: the kind, and how many
/// mappings are shared.
///
/// # Panics
/// If the command line names no way that there is.
pub fn choose(cmdline: &str) -> (Kind, u32) {
    let words = cmdline.split_ascii_whitespace().take_while(|&word| word != "--");
    let Some(said) = words.filter_map(|word| word.strip_prefix("ephemeral=")).last() else {
        return (Kind::Direct, 0);
    };
    let (name, count) = said.split_once(':').unwrap_or((said, ""));
    let count = if count.is_empty() { Ok(SHARED) } else { count.parse() };
    let (Some(kind), Ok(count @ 1..=MOST)) = (Kind::parse(name), count) else {
        panic!("ephemeral={said}: direct, cache, private or original, and up to {MOST} mappings")
    };
    IS_MADE.store(kind != Kind::Direct, Relaxed);
    (kind, count)
}

/// Makes what the choice needs.
///
/// # Errors
/// [`NoMemory`].
pub fn init((kind, count): (Kind, u32)) -> Result<(), NoMemory> {
    if kind == Kind::Direct {
        return Ok(());
    }
    // Of mappings for any CPU there is no use here.
    let shared = if kind == Kind::Private { 0 } else { count };
    let bufs = SfBufs::new(kind, cpu::found().min(cpu::MAX_CPUS), shared)?;
    let tables = WindowTables::new(bufs.slots())?;
    MADE.call_once(|| Made { bufs, tables });
    Ok(())
}

/// Whether windows are mappings that end, none of which may be open while a fault is answered.
#[inline]
pub fn are_ephemeral() -> bool {
    IS_MADE.load(Relaxed)
}

/// For `/proc/vmstat`: what windows have cost since start-up. A window of the direct map costs
/// nothing and isn't counted.
pub fn counters() -> [(&'static str, u64); 5] {
    let counts = MADE.get().map_or_else(Counts::default, |made| made.bufs.counts());
    [
        ("windows_opened", counts.opened),
        ("windows_hits", counts.hits),
        ("windows_local", counts.local),
        ("windows_remote", counts.remote),
        ("windows_rounds", counts.rounds),
    ]
}

impl Window {
    /// A window onto the page of physical address `pa`, which the caller keeps from being freed.
    ///
    /// # Panics
    /// If this CPU has too many open.
    #[inline]
    pub fn open(pa: u64) -> Window {
        if are_ephemeral() {
            return Window::make(pa);
        }
        Window { at: layout::direct(pa), slot: Slot::DIRECT }
    }

    #[cold]
    #[inline(never)]
    fn make(pa: u64) -> Window {
        let Some(made) = MADE.get() else { unreachable!("it is there since `init`") };
        let within = pa % PAGE_SIZE as u64;
        let slot = made.bufs.take(&made.tables, Pa(pa - within));
        let Place::Slot(number) = slot.place() else { unreachable!("nothing is mapped for good") };
        Window { at: windows::address(number) + within, slot }
    }

    #[cold]
    #[inline(never)]
    fn end(slot: Slot) {
        if let Some(made) = MADE.get() {
            made.bufs.end(&made.tables, slot);
        }
    }

    /// Where that physical address is seen, and what follows it in its page.
    #[inline]
    pub fn at(&self) -> *mut u8 {
        self.at as *mut u8
    }
}

impl Drop for Window {
    #[inline]
    fn drop(&mut self) {
        if self.slot.place() != Place::Direct {
            Window::end(core::mem::replace(&mut self.slot, Slot::DIRECT));
        }
    }
}
