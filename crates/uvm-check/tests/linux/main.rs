//! The model against Linux: the same lists on the host's mmap, munmap, mprotect, madvise, mremap,
//! mlock, msync, fork.
//!
//! The model run says that the library does what the model says; this one says that the model means
//! what POSIX programs expect. Each space is a process of its own (`process.rs`); two objects are
//! memfds, two are files on a disk's file system, and after each step what `read` says of them is
//! compared too. minherit, which Linux has not, is what it has of it: `MADV_DONTFORK`,
//! `MADV_WIPEONFORK`, and a fork's own ways.
//!
//! Where Linux differs on purpose the operation is left out: it changes part of a range before it
//! finds a hole (mprotect, madvise, mlock), or what is locked (MADV_DONTNEED), refuses to move
//! several mappings at once (mremap), and takes private copies behind a truncated file's end away.

#[allow(unsafe_code)]
mod process;

use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{fallocate, open, FallocateFlags, OFlag};
use nix::libc;
use nix::sys::memfd::{memfd_create, MFdFlags};
use nix::sys::stat::Mode;
use nix::sys::uio::{pread, pwrite};
use nix::unistd::{ftruncate, lseek, read, write, Whence};

use process::Processes;
use uvm_check::gen::random_list;
use uvm_check::model::{Contents, Expect, Model, Writes};
use uvm_check::op::{At, Back, Inh, Kind, Op, Span, OBJECTS, SPACES, WINDOW, WORDS};
use uvm_check::run::code;

const PAGE: u64 = 4096;
const LISTS: u64 = 50;
/// Operations in a list, before those that only one side has are left out.
const LIST: usize = 500;

/// The window's first address, where nothing else lies in any process.
const BASE: u64 = 0x1000_0000_0000;

struct Linux {
    processes: Processes,
    files: [Option<OwnedFd>; OBJECTS],
}

impl Linux {
    fn new() -> Linux {
        Linux { processes: Processes::new(), files: [None, None, None, None] }
    }

    /// A system call on a span of a space's window.
    fn on(&self, s: usize, call: i64, span: Span, argument: u64) -> Result<(), Errno> {
        self.processes.call(s, call, [address(span.0), span.1 * PAGE, argument, 0, 0, 0]).map(drop)
    }

    fn map(&self, s: usize, at: At, len: u64, back: Back, rights: u8) -> Result<u64, Errno> {
        let (page, place) = match at {
            At::Fixed(page) => (page, libc::MAP_FIXED),
            At::Free(page) => (page, libc::MAP_FIXED_NOREPLACE),
            At::Any | At::Hint(_) => unreachable!("the host has no such places"),
        };
        let file = |o: usize| {
            let file = self.files[o].as_ref().expect("the model has this object");
            self.processes.open(s, file.as_raw_fd())
        };
        let (flags, fd, offset) = match back {
            Back::Zero | Back::Nothing => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, u64::MAX, 0),
            Back::Private(o, n) => (libc::MAP_PRIVATE, file(o), n),
            Back::Shared(o, n) => (libc::MAP_SHARED, file(o), n),
        };
        let arguments = [
            address(page),
            len * PAGE,
            u64::from(rights),
            (place | flags) as u64,
            fd,
            offset * PAGE,
        ];
        let mapped = self.processes.call(s, libc::SYS_mmap, arguments);
        if fd != u64::MAX {
            self.processes.call(s, libc::SYS_close, [fd, 0, 0, 0, 0, 0]).expect("it was opened");
        }
        mapped.map(|at| (at - BASE) / PAGE)
    }

    fn remap(&self, s: usize, span: Span, new_len: u64, at: At) -> Result<u64, Errno> {
        let (flags, to) = match at {
            At::Fixed(page) | At::Free(page) => {
                (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, address(page))
            }
            At::Any | At::Hint(_) => (0, 0),
        };
        let arguments = [address(span.0), span.1 * PAGE, new_len * PAGE, flags as u64, to, 0];
        self.processes.call(s, libc::SYS_mremap, arguments).map(|at| (at - BASE) / PAGE)
    }

    /// What of minherit Linux has.
    fn inherit(&self, s: usize, span: Span, inherit: Inh) -> Result<(), Errno> {
        let advice: &[i32] = match inherit {
            Inh::None => &[libc::MADV_DONTFORK],
            Inh::Share | Inh::Copy => &[libc::MADV_DOFORK, libc::MADV_KEEPONFORK],
            Inh::Zero => &[libc::MADV_DOFORK, libc::MADV_WIPEONFORK],
        };
        advice.iter().try_for_each(|&advice| self.on(s, libc::SYS_madvise, span, advice as u64))
    }

    fn load(&self, s: usize, page: u64) -> Option<Contents> {
        let mut contents = [0; WORDS];
        for (word, value) in contents.iter_mut().enumerate() {
            let mut bytes = [0; 8];
            if !self.processes.read(s, address(page) + offset(word) as u64, &mut bytes) {
                return None;
            }
            *value = u64::from_le_bytes(bytes);
        }
        Some(contents)
    }

    fn store(&self, s: usize, page: u64, word: usize, value: u64) -> bool {
        self.processes.write(s, address(page) + offset(word) as u64, &value.to_le_bytes())
    }

    /// Runs an operation and compares its answer with the model's.
    fn check(&mut self, op: &Op, expect: &Expect, model: &Model, value: u64) -> Result<(), String> {
        let same = match *op {
            Op::NewObject { o, len, .. } => {
                let file = if o % 2 == 0 {
                    memfd_create("object", MFdFlags::empty()).expect("the host has memory")
                } else {
                    disk_file()
                };
                ftruncate(&file, (len * PAGE) as i64).expect("a file has any length");
                self.files[o] = Some(file);
                true
            }
            Op::Detach { o } => self.files[o].take().is_some(),
            Op::Truncate { o, len } => {
                let file = self.files[o].as_ref().expect("the model has this object");
                ftruncate(file, (len * PAGE) as i64).is_ok()
            }
            Op::ObjectRead { o, page } => self.object_read(o, page) == seen(expect),
            Op::ObjectWrite { o, page, word } => {
                let file = self.files[o].as_ref().expect("the model has this object");
                let at = (page * PAGE) as i64 + offset(word) as i64;
                *expect != Expect::Done || write_at(file, value, at) == Ok(8)
            }
            Op::Punch { o, span } => {
                let file = self.files[o].as_ref().expect("the model has this object");
                let how =
                    FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
                fallocate(file, how, (span.0 * PAGE) as i64, (span.1 * PAGE) as i64).is_ok()
            }
            Op::PageOutRange { s, span } => self.msync(model, s, span, value)?,
            Op::Cool { s, span } => {
                self.on(s, libc::SYS_madvise, span, libc::MADV_COLD as u64).is_ok()
            }
            Op::Spawn { s } => {
                self.processes.spawn(s);
                true
            }
            Op::Fork { s, child } => {
                self.processes.fork(s, child);
                true
            }
            Op::Exit { s } => {
                self.processes.exit(s);
                true
            }
            Op::Clear { s } => self.on(s, libc::SYS_munmap, Span(0, WINDOW), 0).is_ok(),
            Op::Map { s, at, len, back, rights, .. } => {
                agrees(self.map(s, at, len, back, rights), expect)
            }
            Op::Unmap { s, span } => self.on(s, libc::SYS_munmap, span, 0).is_ok(),
            Op::Protect { s, span, rights } => {
                self.on(s, libc::SYS_mprotect, span, u64::from(rights)).is_ok()
                    == (*expect == Expect::Done)
            }
            Op::Discard { s, span } => {
                let discarded = self.on(s, libc::SYS_madvise, span, libc::MADV_DONTNEED as u64);
                discarded.is_ok() == (*expect == Expect::Done)
            }
            Op::Advise { s, span, advice } => {
                self.on(s, libc::SYS_madvise, span, u64::from(advice % 3)).is_ok()
            }
            Op::Inherit { s, span, inherit } => self.inherit(s, span, inherit).is_ok(),
            Op::Wire { s, span } => self.on(s, libc::SYS_mlock, span, 0).is_ok(),
            Op::Unwire { s, span } => self.on(s, libc::SYS_munlock, span, 0).is_ok(),
            Op::Remap { s, span, new_len, at } => agrees(self.remap(s, span, new_len, at), expect),
            Op::Read { s, page, .. } => self.load(s, page) == seen(expect),
            Op::Write { s, page, word, .. } => {
                self.store(s, page, word, value) == (*expect == Expect::Done)
            }
            _ => true,
        };
        if same {
            Ok(())
        } else {
            Err(format!("{op:?}: the model says {expect:x?}"))
        }
    }

    fn object_read(&self, o: usize, page: u64) -> Option<Contents> {
        let file = self.files[o].as_ref().expect("the model has this object");
        let mut bytes = [0; PAGE as usize];
        let at = (page * PAGE) as i64;
        let read = if page.is_multiple_of(2) {
            pread(file, &mut bytes, at)
        } else {
            lseek(file, at, Whence::SeekSet).and_then(|_| read(file, &mut bytes))
        };
        (read == Ok(PAGE as usize)).then(|| {
            std::array::from_fn(|word| {
                u64::from_le_bytes(std::array::from_fn(|i| bytes[offset(word) + i]))
            })
        })
    }

    /// msync with flags by `choice`: what POSIX and Linux say to them, to holes and to locked
    /// memory. Data never changes.
    fn msync(&self, model: &Model, s: usize, span: Span, choice: u64) -> Result<bool, String> {
        let flags = MSYNC_FLAGS[choice as usize % MSYNC_FLAGS.len()];
        let pages = || span.pages().map(|page| model.page(s, page));
        let ought = if flags & !MSYNC_ALL != 0 || flags & MSYNC_EITHER == MSYNC_EITHER {
            Err(Errno::EINVAL)
        } else if flags & libc::MS_INVALIDATE != 0 && pages().flatten().any(|at| at.wired) {
            Err(Errno::EBUSY)
        } else if pages().any(|at| at.is_none()) {
            Err(Errno::ENOMEM)
        } else {
            Ok(())
        };
        let said = self.on(s, libc::SYS_msync, span, flags as u64);
        // A hole before the locked page, or behind it: which of the two Linux comes to first, it
        // says.
        let both = ought == Err(Errno::EBUSY)
            && said == Err(Errno::ENOMEM)
            && pages().any(|at| at.is_none());
        if said == ought || both {
            Ok(true)
        } else {
            Err(format!(
                "msync of {span:?} with flags {flags:#x} said {said:?}, ought to say {ought:?}"
            ))
        }
    }
}

const MSYNC_EITHER: i32 = libc::MS_ASYNC | libc::MS_SYNC;
const MSYNC_ALL: i32 = MSYNC_EITHER | libc::MS_INVALIDATE;
const MSYNC_FLAGS: [i32; 7] = [
    libc::MS_SYNC,
    libc::MS_ASYNC,
    0,
    libc::MS_SYNC | libc::MS_INVALIDATE,
    libc::MS_INVALIDATE,
    MSYNC_EITHER,
    libc::MS_SYNC | 8,
];

/// A file without a name on the disk that the target folder lies on.
fn disk_file() -> OwnedFd {
    let folder = env!("CARGO_TARGET_TMPDIR");
    let flags = OFlag::O_TMPFILE | OFlag::O_RDWR;
    open(folder, flags, Mode::S_IRUSR | Mode::S_IWUSR).expect("the target folder can be written")
}

/// Writes a word by `pwrite` or by `write`.
fn write_at(file: &OwnedFd, value: u64, at: i64) -> nix::Result<usize> {
    if value.is_multiple_of(2) {
        return pwrite(file, &value.to_le_bytes(), at);
    }
    lseek(file, at, Whence::SeekSet)?;
    write(file, &value.to_le_bytes())
}

fn address(page: u64) -> u64 {
    BASE + page * PAGE
}

fn offset(word: usize) -> usize {
    word * 1024 + word
}

fn seen(expect: &Expect) -> Option<Contents> {
    match expect {
        Expect::Sees(contents) => Some(*contents),
        _ => None,
    }
}

fn agrees(result: Result<u64, Errno>, expect: &Expect) -> bool {
    match (result, expect) {
        (Ok(page), Expect::Placed(ought)) => page == *ought,
        (Err(_), Expect::NoSpace | Expect::Invalid) => true,
        _ => false,
    }
}

/// An operation as this run has it: anonymous objects, places that both sides choose alike. `None`
/// where the two differ on purpose.
fn adapted(op: Op, model: &Model, linux: &Linux) -> Option<Op> {
    let op = match op {
        Op::Map { back: Back::Nothing, .. } => return None,
        Op::Map { s, at, len, back, rights, .. } => {
            let at = if matches!(at, At::Any | At::Hint(_)) { At::Free(len * 3) } else { at };
            Op::Map { s, at, len, back, rights, inherit: None }
        }
        Op::NewObject { o, len, .. } => Op::NewObject { o, kind: Kind::Anon, len },
        Op::Remap { at: At::Any, .. } | Op::RemapKeep { .. } => return None,
        Op::Truncate { o, len } if cuts_copies(model, o, len) => return None,
        Op::Inherit { s, span, inherit } if !has_way(model, s, span, inherit) => return None,
        Op::Wire { s, span }
            if span.pages().any(|p| model.page(s, p).is_some_and(|at| at.rights == 0)) =>
        {
            return None;
        }
        Op::Discard { s, span }
            if span.pages().any(|p| model.page(s, p).is_some_and(|at| at.wired)) =>
        {
            return None;
        }
        Op::Execute { .. } | Op::Sync { .. } | Op::Clean { .. } | Op::Attach { .. } => return None,
        Op::Pin { .. } | Op::Unpin { .. } | Op::WireTouched { .. } => return None,
        Op::Inspect { .. } | Op::Patch { .. } => return None,
        Op::Forget | Op::PageOut { .. } | Op::SwapOn { .. } | Op::SwapOff { .. } => return None,
        Op::Zram { .. } => return None,
        Op::Loan { .. } | Op::Give { .. } | Op::LoanObject { .. } => return None,
        Op::LoanAgain { .. } | Op::Return { .. } => return None,
        Op::Pass { .. } | Op::Extract { .. } | Op::AttachRange { .. } | Op::DropRange { .. } => {
            return None
        }
        Op::Limit { .. } | Op::TransferAnywhere { .. } | Op::Transfer { .. } => return None,
        Op::Cool { s, span }
            if span.pages().any(|p| model.page(s, p).is_none_or(|at| at.wired)) =>
        {
            return None
        }
        Op::CompleteIo { .. } | Op::FailIo { .. } => return None,
        _ => op,
    };
    let expect = model.clone().apply(&op);
    let alike = match op {
        Op::Protect { .. }
        | Op::Advise { .. }
        | Op::Inherit { .. }
        | Op::Wire { .. }
        | Op::Unwire { .. } => expect == Expect::Done,
        Op::Remap { s, span, .. } => {
            let (start, end) = (address(span.0), address(span.0 + span.1));
            matches!(expect, Expect::Placed(_)) && linux.processes.is_one_mapping(s, start, end)
        }
        Op::Map { .. } if expect == Expect::Invalid => false, // The window ends; the host's addresses go on.
        _ => expect != Expect::Skip,
    };
    alike.then_some(op)
}

/// Whether a truncation goes below private copies.
fn cuts_copies(model: &Model, o: usize, len: u64) -> bool {
    let Some(object) = model.slots[o] else { return false };
    let mut pages = model.spaces.iter().flatten().flat_map(|space| space.values());
    pages.any(|at| {
        at.writes == Writes::Cell && at.object.is_some_and(|(n, i)| n == object && i >= len)
    })
}

/// Whether Linux has this way of inheritance for all that lies in the span.
fn has_way(model: &Model, s: usize, span: Span, inherit: Inh) -> bool {
    span.pages().filter_map(|page| model.page(s, page)).all(|at| match (at.writes, inherit) {
        (_, Inh::None) => true,
        (Writes::Cell, Inh::Zero) => at.object.is_none(),
        (Writes::Cell, inherit) => inherit == Inh::Copy,
        (_, inherit) => inherit == Inh::Share,
    })
}

/// Runs one list on both and says how many operations it had, and how many of them were forks.
fn check_list(seed: u64) -> Result<(usize, usize), String> {
    let mut model = Model::default();
    let mut linux = Linux::new();
    let mut list = Vec::new();
    for op in random_list(seed, LIST) {
        let Some(op) = adapted(op, &model, &linux) else { continue };
        list.push(op);
        let value = model.next_store();
        let before = model.clone();
        let expect = model.apply(&op);
        // What msync is asked for changes with every step.
        let value = if let Op::PageOutRange { .. } = op { list.len() as u64 } else { value };
        let same =
            linux.check(&op, &expect, &before, value).and_then(|()| same_contents(&linux, &model));
        same.map_err(|why| format!("seed {seed}: {why}\n{}", code(&list)))?;
    }
    Ok((list.len(), list.iter().filter(|op| matches!(op, Op::Fork { .. })).count()))
}

fn same_contents(linux: &Linux, model: &Model) -> Result<(), String> {
    for s in (0..SPACES).filter(|&s| model.spaces[s].is_some()) {
        for page in 0..WINDOW {
            let (host, ought) = (linux.load(s, page), seen(&model.reads(s, page)));
            if host != ought {
                return Err(format!(
                    "space {s}, page {page} shows {host:x?}, the model {ought:x?}"
                ));
            }
        }
    }
    for o in (0..OBJECTS).filter(|&o| model.slots[o].is_some()) {
        let object = model.slots[o].expect("it is there");
        for page in 0..model.objects[object].len + 1 {
            let (host, ought) = (linux.object_read(o, page), model.object_shows(object, page).ok());
            if host != ought {
                return Err(format!(
                    "page {page} of object {o} reads as {host:x?}, the model says {ought:x?}"
                ));
            }
        }
    }
    Ok(())
}

#[test]
fn the_model_agrees_with_linux() {
    let (mut operations, mut forks) = (0, 0);
    for seed in 0..LISTS {
        match check_list(seed) {
            Ok((all, forked)) => (operations, forks) = (operations + all, forks + forked),
            Err(why) => panic!("{why}"),
        }
    }
    println!("{operations} operations in {LISTS} lists, {forks} of them forks");
    assert!(operations > 10_000 && forks > 200, "hardly anything was compared");
}
