//! Files of a process that are read where they lie: its memory, its arguments and environment, and
//! what its pages are.

use alloc::format;
use alloc::sync::{Arc, Weak};

use super::settings;
use crate::arch::layout::USER_END;
use crate::cred::caps::Caps;
use crate::errno::*;
use crate::fs::file::File;
use crate::fs::ops::*;
use crate::proc::mm::Mm;
use crate::proc::{curproc, foreign_memory, Process, Thread};
use crate::sched;
use crate::uio::{outcome, IoVec, Sink, Source};
use crate::vm;

const PAGE: u64 = 4096;

/// The memory that a process had when a file was opened. Of a process that runs another program
/// since, nothing is left in it.
pub(super) struct Held(Option<Weak<Mm>>);

impl Held {
    pub fn new(mm: &Option<Arc<Mm>>) -> Held {
        Held(mm.as_ref().map(Arc::downgrade))
    }

    fn mm(&self) -> Option<Arc<Mm>> {
        self.0.as_ref().and_then(Weak::upgrade).filter(|mm| !mm.is_left())
    }
}

/// Reads what lies at `at` of `range`.
fn read_range(mm: &Mm, range: (u64, u64), at: u64, to: &mut Sink<'_>) -> Result<usize> {
    let Some(addr) = range.0.checked_add(at).filter(|&addr| addr < range.1) else { return Ok(0) };
    let len = to.left().min((range.1 - addr) as usize);
    let piece = IoVec { addr, len };
    foreign_memory::read(&mm.space, foreign_memory::As::Debugger, &[piece], to).map_err(|_| EIO)
}

/// A process's memory.
pub(super) struct Memory(pub Held);

impl FileOps for Memory {
    fn seekable(&self) -> bool {
        true
    }

    fn read(&self, _file: &File, at: u64, to: &mut Sink<'_>) -> Result<usize> {
        let Some(mm) = self.0.mm() else { return Ok(0) };
        let piece = IoVec { addr: at, len: to.left() };
        foreign_memory::read(&mm.space, foreign_memory::As::Debugger, &[piece], to).map_err(|_| EIO)
    }

    fn write(&self, _file: &File, at: Position, from: &mut Source<'_>) -> Result<(usize, u64)> {
        let Position::At(addr) = at else { return Err(EINVAL) };
        let Some(mm) = self.0.mm() else { return Ok((0, addr)) };
        let piece = IoVec { addr, len: from.left() };
        let done = foreign_memory::write(&mm.space, foreign_memory::As::Debugger, &[piece], from)
            .map_err(|_| EIO)?;
        Ok((done, addr + done as u64))
    }
}

/// The environment that a program was started with, as it is in its memory now.
pub(super) struct Environment(pub Held);

impl FileOps for Environment {
    fn seekable(&self) -> bool {
        true
    }

    fn read(&self, _file: &File, at: u64, to: &mut Sink<'_>) -> Result<usize> {
        let Some(mm) = self.0.mm() else { return Ok(0) };
        read_range(&mm, mm.marks().environment, at, to)
    }
}

/// A program's auxiliary vector.
pub(super) struct AuxiliaryVector(pub Held);

impl FileOps for AuxiliaryVector {
    fn seekable(&self) -> bool {
        true
    }

    fn read(&self, _file: &File, at: u64, to: &mut Sink<'_>) -> Result<usize> {
        let Some(mm) = self.0.mm() else { return Ok(0) };
        let vector = mm.layout.lock().auxv.clone();
        to.put(usize::try_from(at).ok().and_then(|at| vector.get(at..)).unwrap_or_default())
    }
}

/// A program's arguments, as they are in its memory now.
pub(super) struct Arguments(pub Weak<Process>);

impl FileOps for Arguments {
    fn seekable(&self) -> bool {
        true
    }

    /// A program that has overwritten the zero byte behind its last argument has put a title there,
    /// which may reach into the environment.
    fn read(&self, _file: &File, at: u64, to: &mut Sink<'_>) -> Result<usize> {
        const TITLE_MAX: u64 = PAGE;
        let process = self.0.upgrade().ok_or(ESRCH)?;
        let Some(mm) = process.mm() else { return Ok(0) };
        let marks = mm.marks();
        let (start, end) = marks.arguments;
        if start >= end {
            return Ok(0);
        }
        let mut last = [0];
        let is_there = read_range(&mm, (end - 1, end), 0, &mut Sink::kernel(&mut last)).is_ok();
        if !is_there || last == [0] {
            return read_range(&mm, marks.arguments, at, to);
        }
        let mut title = [0; TITLE_MAX as usize];
        let stop = marks.environment.1.max(end).min(start + TITLE_MAX);
        let got = read_range(&mm, (start, stop), 0, &mut Sink::kernel(&mut title))?;
        let title = &title[..got];
        let zero = title.iter().position(|&byte| byte == 0);
        let title = &title[..zero.map_or(got, |zero| zero + 1)];
        to.put(usize::try_from(at).ok().and_then(|at| title.get(at..)).unwrap_or_default())
    }
}

/// A word for each page of a process's addresses.
pub(super) struct PageMap {
    held: Held,
    frames: Frames,
}

/// Whether a reader is told which frames pages are in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Frames {
    Hidden,
    Shown,
}

/// The word's bits.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_OBJECT: u64 = 1 << 61;
const ALONE: u64 = 1 << 56;

impl PageMap {
    /// For the running process, which has opened it.
    pub fn new(held: Held) -> PageMap {
        let is_admin = curproc::cred().has(Caps::SYS_ADMIN);
        PageMap { held, frames: if is_admin { Frames::Shown } else { Frames::Hidden } }
    }

    fn word(&self, page: vm::PageState) -> u64 {
        let (mut word, frame) = match page {
            vm::PageState::Swapped => (SWAPPED, 0),
            vm::PageState::Anonymous { frame, is_alone } => {
                (PRESENT | if is_alone { ALONE } else { 0 }, frame)
            }
            vm::PageState::OfObject { frame } => (PRESENT | OF_OBJECT, frame),
        };
        if self.frames == Frames::Shown {
            word |= frame;
        }
        word
    }
}

impl FileOps for PageMap {
    fn seekable(&self) -> bool {
        true
    }

    fn read(&self, _file: &File, at: u64, to: &mut Sink<'_>) -> Result<usize> {
        const WORD: u64 = 8;
        /// Pages that are looked at together.
        const AT_ONCE: usize = 64;
        if !at.is_multiple_of(WORD) || !(to.left() as u64).is_multiple_of(WORD) {
            return Err(EINVAL);
        }
        let Some(mm) = self.held.mm() else { return Ok(0) };
        let before = to.done();
        let mut put = || {
            let mut page = at / WORD;
            while to.left() != 0 && page < USER_END / PAGE {
                let count = (to.left() / 8).min(AT_ONCE).min((USER_END / PAGE - page) as usize);
                let mut words = [[0; 8]; AT_ONCE];
                vm::page_states(&mm.space, page * PAGE, count as u64, |index, state| {
                    if let Some(word) = words.get_mut(index) {
                        *word = self.word(state).to_ne_bytes();
                    }
                });
                to.put(words[..count].as_flattened())?;
                page += count as u64;
                sched::give_way();
                if sched::is_leaving() {
                    return Err(EINTR);
                }
            }
            Ok(())
        };
        let result = put();
        outcome(to.done() - before, result)
    }
}

/// `fail-nth` of a thread: see `mem::fault`.
pub(super) struct FailNth(pub Weak<Thread>);

impl FileOps for FailNth {
    fn seekable(&self) -> bool {
        true
    }

    fn read(&self, _file: &File, at: u64, to: &mut Sink<'_>) -> Result<usize> {
        let task = self.0.upgrade().and_then(|thread| thread.task()).ok_or(ESRCH)?;
        let text = format!("{}\n", task.allocations.fail_nth.get());
        to.put(text.as_bytes().get(at as usize..).unwrap_or(&[]))
    }

    /// For processes with CAP_SYS_RESOURCE: a failure that the kernel doesn't expect would be every
    /// process's.
    fn write(&self, _file: &File, _at: Position, from: &mut Source<'_>) -> Result<(usize, u64)> {
        curproc::cred().need(Caps::SYS_RESOURCE)?;
        let mut bytes = [0; settings::LONGEST + 1];
        let n = from.get(&mut bytes)?;
        let nth = settings::number(settings::text(&bytes[..n])?)?;
        let task = self.0.upgrade().and_then(|thread| thread.task()).ok_or(ESRCH)?;
        task.allocations.fail_nth.set(nth);
        Ok((n, n as u64))
    }

    fn truncate(&self, _len: u64) -> Result<()> {
        Ok(())
    }
}
