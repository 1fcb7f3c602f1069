//! The model against Linux: the same lists on the host's mmap, munmap, mprotect, madvise, mremap.
//!
//! The model run says that the library does what the model says; this one says that the model means what POSIX
//! programs expect. One space, since a test can't fork a process and go on. Memory is read and written by
//! `process_vm_readv` and `process_vm_writev`, which obey protections and turn a fault into an error.
//!
//! Where Linux differs on purpose the operation is left out: it changes part of a range before it finds a hole
//! (mprotect), refuses to move several mappings at once (mremap), and takes private copies behind a truncated file's
//! end away.

use std::ffi::c_void;
use std::io::{IoSlice, IoSliceMut};
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::sys::memfd::{memfd_create, MFdFlags};
use nix::sys::mman::{self, MRemapFlags, MapFlags, MmapAdvise, ProtFlags};
use nix::sys::uio::{pread, process_vm_readv, process_vm_writev, pwrite, RemoteIoVec};
use nix::unistd::{ftruncate, Pid};

use uvm_check::gen::random_list;
use uvm_check::model::{Contents, Expect, Model, Writes};
use uvm_check::op::{At, Back, Kind, Op, Span, OBJECTS, WINDOW, WORDS};
use uvm_check::run::code;

const PAGE: u64 = 4096;
const LISTS: u64 = 400;
/// Operations in a list, before those that only one side has are left out.
const LIST: usize = 500;

/// One window of this process's addresses, where nothing else lies.
struct Linux {
    base: u64,
    files: [Option<OwnedFd>; OBJECTS],
}

impl Linux {
    fn new(list: u64) -> Linux {
        Linux { base: 0x1000_0000_0000 + list * 0x100_0000, files: [None, None, None, None] }
    }

    fn address(&self, page: u64) -> u64 {
        self.base + page * PAGE
    }

    fn pointer(&self, page: u64) -> NonNull<c_void> {
        NonNull::new(std::ptr::without_provenance_mut(self.address(page) as usize))
            .expect("the window is not at 0")
    }

    fn map(&self, at: At, len: u64, back: Back, rights: u8) -> Result<u64, Errno> {
        let (page, place) = match at {
            At::Fixed(page) => (page, MapFlags::MAP_FIXED),
            At::Free(page) => (page, MapFlags::MAP_FIXED_NOREPLACE),
            At::Any | At::Hint(_) => unreachable!("the host chooses other places"),
        };
        let address = NonZeroUsize::new(self.address(page) as usize);
        let len = NonZeroUsize::new((len * PAGE) as usize).expect("no list maps nothing");
        let prot = ProtFlags::from_bits_truncate(i32::from(rights));
        let file = |o: usize| self.files[o].as_ref().expect("the model has this object");
        // SAFETY: the window is this test's alone; no reference to it is ever made.
        let mapped = unsafe {
            match back {
                Back::Zero => mman::mmap_anonymous(address, len, prot, place | MapFlags::MAP_PRIVATE),
                Back::Private(o, n) => {
                    mman::mmap(address, len, prot, place | MapFlags::MAP_PRIVATE, file(o), (n * PAGE) as i64)
                }
                Back::Shared(o, n) => {
                    mman::mmap(address, len, prot, place | MapFlags::MAP_SHARED, file(o), (n * PAGE) as i64)
                }
            }
        }?;
        Ok((mapped.as_ptr().addr() as u64 - self.base) / PAGE)
    }

    fn unmap(&self, span: Span) {
        // SAFETY: as in `map`.
        unsafe { mman::munmap(self.pointer(span.0), (span.1 * PAGE) as usize) }.expect("holes are no error");
    }

    fn protect(&self, span: Span, rights: u8) -> Result<(), Errno> {
        let prot = ProtFlags::from_bits_truncate(i32::from(rights));
        // SAFETY: as in `map`.
        unsafe { mman::mprotect(self.pointer(span.0), (span.1 * PAGE) as usize, prot) }
    }

    fn discard(&self, span: Span) -> Result<(), Errno> {
        // SAFETY: as in `map`.
        unsafe { mman::madvise(self.pointer(span.0), (span.1 * PAGE) as usize, MmapAdvise::MADV_DONTNEED) }
    }

    fn remap(&self, span: Span, new_len: u64, at: At) -> Result<u64, Errno> {
        let (flags, to) = match at {
            At::Fixed(page) | At::Free(page) => {
                (MRemapFlags::MREMAP_MAYMOVE | MRemapFlags::MREMAP_FIXED, Some(self.pointer(page)))
            }
            At::Any | At::Hint(_) => (MRemapFlags::empty(), None),
        };
        let (old, new) = ((span.1 * PAGE) as usize, (new_len * PAGE) as usize);
        // SAFETY: as in `map`.
        let moved = unsafe { mman::mremap(self.pointer(span.0), old, new, flags, to) }?;
        Ok((moved.as_ptr().addr() as u64 - self.base) / PAGE)
    }

    fn load(&self, page: u64) -> Option<Contents> {
        let mut contents = [0; WORDS];
        for (word, value) in contents.iter_mut().enumerate() {
            let mut bytes = [0; 8];
            let from = RemoteIoVec { base: self.address(page) as usize + offset(word), len: 8 };
            let read = process_vm_readv(Pid::this(), &mut [IoSliceMut::new(&mut bytes)], &[from]);
            if read != Ok(8) {
                return None;
            }
            *value = u64::from_le_bytes(bytes);
        }
        Some(contents)
    }

    fn store(&self, page: u64, word: usize, value: u64) -> bool {
        let to = RemoteIoVec { base: self.address(page) as usize + offset(word), len: 8 };
        process_vm_writev(Pid::this(), &[IoSlice::new(&value.to_le_bytes())], &[to]) == Ok(8)
    }

    /// Runs an operation and compares its answer with the model's.
    fn check(&mut self, op: &Op, expect: &Expect, value: u64) -> Result<(), String> {
        let same = match *op {
            Op::NewObject { o, len, .. } => {
                let file = memfd_create("object", MFdFlags::empty()).expect("the host has memory");
                ftruncate(&file, (len * PAGE) as i64).expect("a memfd has any length");
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
                *expect != Expect::Done || pwrite(file, &value.to_le_bytes(), at) == Ok(8)
            }
            Op::Map { at, len, back, rights, .. } => agrees(self.map(at, len, back, rights), expect),
            Op::Unmap { span, .. } => {
                self.unmap(span);
                true
            }
            Op::Clear { .. } | Op::Exit { .. } => {
                self.unmap(Span(0, WINDOW));
                true
            }
            Op::Protect { span, rights, .. } => {
                self.protect(span, rights).is_ok() == (*expect == Expect::Done)
            }
            Op::Discard { span, .. } => self.discard(span).is_ok() == (*expect == Expect::Done),
            Op::Remap { span, new_len, at, .. } => agrees(self.remap(span, new_len, at), expect),
            Op::Read { page, .. } => self.load(page) == seen(expect),
            Op::Write { page, word, .. } => self.store(page, word, value) == (*expect == Expect::Done),
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
        let mut contents = [0; WORDS];
        for (word, value) in contents.iter_mut().enumerate() {
            let mut bytes = [0; 8];
            if pread(file, &mut bytes, (page * PAGE) as i64 + offset(word) as i64) != Ok(8) {
                return None;
            }
            *value = u64::from_le_bytes(bytes);
        }
        Some(contents)
    }
}

impl Drop for Linux {
    fn drop(&mut self) {
        self.unmap(Span(0, WINDOW));
    }
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

/// An operation as this run has it: one space, anonymous objects, places that both sides choose alike. `None` where
/// the two differ on purpose.
fn adapted(op: Op, model: &Model) -> Option<Op> {
    let at = |at, page: u64| if matches!(at, At::Any | At::Hint(_)) { At::Free(page) } else { at };
    let op = match op {
        Op::Map { s: 0, at: place, len, back, rights, .. } => {
            Op::Map { s: 0, at: at(place, len * 3), len, back, rights, inherit: None }
        }
        Op::NewObject { o, len, .. } => Op::NewObject { o, kind: Kind::Anon, len },
        Op::Remap { s: 0, at: At::Any, .. } => return None,
        Op::Truncate { o, len } => {
            let object = model.slots[o]?;
            let pages = model.spaces[0].iter().flat_map(|space| space.values());
            let mut private = pages.filter(|at| at.writes == Writes::Cell);
            if private.any(|at| at.object.is_some_and(|(n, index)| n == object && index >= len)) {
                return None;
            }
            op
        }
        Op::Unmap { s: 0, .. }
        | Op::Protect { s: 0, .. }
        | Op::Discard { s: 0, .. }
        | Op::Remap { s: 0, .. } => op,
        Op::Read { s: 0, .. } | Op::Write { s: 0, .. } | Op::Clear { s: 0 } | Op::Spawn { s: 0 } => op,
        Op::ObjectRead { .. } | Op::ObjectWrite { .. } | Op::Detach { .. } => op,
        _ => return None,
    };
    let expect = model.clone().apply(&op);
    let alike = match op {
        Op::Protect { .. } => expect == Expect::Done,
        Op::Remap { span, .. } => matches!(expect, Expect::Placed(_)) && is_one_mapping(model, span),
        Op::Map { .. } if expect == Expect::Invalid => false, // The window ends; the host's addresses go on.
        _ => expect != Expect::Skip,
    };
    alike.then_some(op)
}

/// Whether Linux too sees the span as one mapping: pages that were mapped by one call and are alike since.
fn is_one_mapping(model: &Model, span: Span) -> bool {
    let pages: Vec<_> = span.pages().filter_map(|page| model.page(0, page)).collect();
    pages.windows(2).all(|two| {
        let next = two[0].object.map(|(o, index)| (o, index + 1));
        two[0].cell + 1 == two[1].cell && next == two[1].object && two[0].rights == two[1].rights
    })
}

/// Runs one list on both and says how many operations it had.
fn check_list(seed: u64) -> Result<usize, String> {
    let mut model = Model::default();
    let mut linux = Linux::new(seed);
    let mut list = Vec::new();
    for op in random_list(seed, LIST) {
        let Some(op) = adapted(op, &model) else { continue };
        list.push(op);
        let value = model.next_store();
        let expect = model.apply(&op);
        let same = linux.check(&op, &expect, value).and_then(|()| same_contents(&linux, &model));
        same.map_err(|why| format!("seed {seed}: {why}\n{}", code(&list)))?;
    }
    Ok(list.len())
}

fn same_contents(linux: &Linux, model: &Model) -> Result<(), String> {
    for page in 0..WINDOW {
        let (host, ought) = (linux.load(page), seen(&model.reads(0, page)));
        if host != ought {
            return Err(format!("page {page} shows {host:x?}, the model {ought:x?}"));
        }
    }
    Ok(())
}

#[test]
fn the_model_agrees_with_linux() {
    let mut operations = 0;
    for seed in 0..LISTS {
        match check_list(seed) {
            Ok(done) => operations += done,
            Err(why) => panic!("{why}"),
        }
    }
    println!("{operations} operations in {LISTS} lists");
    assert!(operations > 20_000, "hardly anything was compared");
}
