//! Data from file to file: sendfile, copy_file_range, splice, tee, vmsplice.
//!
//! ```text
//!   pipe, socket   take ---> chain ---> give   pipe, socket
//!   file           loan pages --^   `-> write  file, terminal, ...
//! ```
//! Between pipes and sockets pages move as they are. A file's pages are loaned to the chain, and
//! change no more until they have arrived (`uvm::loan`); what goes into a file is copied there.
//! What one side has given and the other doesn't take is put back.

use mbuf::{NoMemory, Pages, PAGE_SIZE};

use super::file::vector;
use super::path_args::only;
use super::{calls, Calls};
use crate::chain::zero_copy::{append, hold, Loans};
use crate::chain::{append_loaned, source, Chain, Clusters};
use crate::errno::*;
use crate::fs::file::{check_span, File};
use crate::fs::inode::{same, Kind};
use crate::fs::pipe::{self, Blocking, Pipe};
use crate::proc::curproc;
use crate::uio::{outcome, Sink, Source, MAX_TRANSFER};
use crate::{proc, sched, user, vm};
use alloc::sync::Arc;
use linux_raw_sys::general as abi;

pub const CALLS: Calls = calls! {
    __NR_sendfile => sendfile[4], __NR_copy_file_range => copy_file_range[6],
    __NR_splice => splice[6], __NR_tee => tee[4], __NR_vmsplice => vmsplice[4],
};

/// Bytes that are under way at a time.
const PART: usize = 1 << 20;

/// One side of a transfer: a file, and the position that the call takes from user memory, if it
/// does.
struct Side {
    file: Arc<File>,
    /// Where the position came from.
    addr: u64,
    at: Option<u64>,
}

impl Side {
    fn new(file: Arc<File>, addr: u64) -> Result<Side> {
        let at = if addr == 0 { None } else { Some(user::get::<i64>(addr)?) };
        let at = at.map(|at| u64::try_from(at).map_err(|_| EINVAL)).transpose()?;
        Ok(Side { file, addr, at })
    }

    /// The position that a transfer begins at.
    fn start(&self) -> Result<u64> {
        self.at.map_or_else(|| self.file.with_position(|at| Ok(*at)), Ok)
    }

    fn pipe(&self) -> Option<&Arc<Pipe>> {
        pipe::of(&self.file)
    }

    /// Whether so many bytes may be moved from or to the position.
    fn check_span(&self, len: usize) -> Result<()> {
        match self.at {
            Some(at) => check_span(at, len),
            None if self.is_channel() => Ok(()),
            None => self.file.with_position(|at| check_span(*at, len)),
        }
    }

    /// Whether bytes move in chains here, and not through a position.
    fn is_channel(&self) -> bool {
        self.pipe().is_some() || self.file.inode().kind() == Kind::Socket
    }

    /// Up to `most` bytes; none at the end.
    fn take(&mut self, most: usize) -> Result<Chain> {
        if self.is_channel() {
            return self.file.take(most);
        }
        let chain = match self.at {
            Some(at) => contents(&self.file, at, most)?,
            None => self.file.with_position(|at| {
                let chain = contents(&self.file, *at, most)?;
                *at += chain.len() as u64;
                Ok(chain)
            })?,
        };
        self.at = self.at.map(|at| at + chain.len() as u64);
        Ok(chain)
    }

    /// Puts back what was taken last and had no taker.
    fn unget(&mut self, chain: Chain) {
        if self.is_channel() {
            return self.file.unget(chain);
        }
        let len = chain.len() as u64;
        chain.release(&Clusters);
        match &mut self.at {
            Some(at) => *at -= len,
            // The file's position is in memory, so this can't fail.
            None => drop(self.file.with_position(|at| {
                *at = at.saturating_sub(len);
                Ok(())
            })),
        }
    }

    /// Moves a chain in, as far as it goes; the rest stays in it.
    fn give(&mut self, chain: &mut Chain) -> Result<usize> {
        if self.is_channel() {
            return self.file.give(chain);
        }
        let before = chain.len();
        let result = chain.consume(&Clusters, |bytes| {
            let mut from = source(bytes);
            match &mut self.at {
                None => self.file.write(&mut from),
                Some(at) => self.file.put_at(*at, &mut from).inspect(|&n| *at += n as u64),
            }
        });
        outcome(before - chain.len(), result)
    }

    fn finish(&self) -> Result<()> {
        match self.at {
            Some(at) => user::put(self.addr, &at),
            None => Ok(()),
        }
    }
}

/// Bytes of a file from `at` on: whole pages of a file that has an object are loaned, others are
/// read.
fn contents(file: &File, at: u64, most: usize) -> Result<Chain> {
    let mut chain = Chain::new();
    let result = collect(file, at, most, &mut chain);
    match result {
        Err(errno) if chain.is_empty() => Err(errno),
        _ => Ok(chain),
    }
}

fn collect(file: &File, at: u64, most: usize, chain: &mut Chain) -> Result<()> {
    if !file.is_readable() {
        return Err(EBADF);
    }
    let object = file.io().object().filter(|_| file.inode().kind() == Kind::File);
    let Some(object) = object else { return read_in(file, at, most.min(16 * PAGE_SIZE), chain) };
    let size = file.inode().stat().size;
    let len = (size.saturating_sub(at)).min(most as u64) as usize;
    let skipped = at as usize % PAGE_SIZE;
    if len == 0 {
        return Ok(());
    }
    let loan = vm::loan_object(&object, at - skipped as u64, (skipped + len).div_ceil(PAGE_SIZE))?;
    let end = (skipped + len).min(loan.len() * PAGE_SIZE);
    append_loaned(chain, loan, skipped.min(end)..end)
}

/// Reads into pages of the kernel's own.
fn read_in(file: &File, at: u64, most: usize, chain: &mut Chain) -> Result<()> {
    let mut done = 0;
    while done < most {
        let frame = Clusters.alloc().map_err(|_| ENOBUFS)?;
        let want = (most - done).min(PAGE_SIZE);
        let read = file.read_at(at + done as u64, &mut Sink::page(frame.bytes().part(0, want)));
        let n = *read.as_ref().unwrap_or(&0);
        if n == 0 {
            frame.free();
            return read.map(|_| ());
        }
        if let Err((_, frame)) = chain.append_page(frame, 0..n) {
            frame.free();
            return Err(ENOBUFS);
        }
        done += n;
        if n < want {
            break;
        }
    }
    Ok(())
}

/// Whether a call goes on until all is moved, or returns with what there was.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    All,
    Some,
}

fn transfer(from: &mut Side, to: &mut Side, len: usize, until: Until) -> Result<usize> {
    let mut done = 0;
    let result = loop {
        if done == len {
            break Ok(());
        }
        let mut chain = match from.take((len - done).min(PART)) {
            Ok(chain) => chain,
            Err(errno) => break Err(errno),
        };
        if chain.is_empty() {
            break Ok(());
        }
        let given = hold(&chain).and_then(|_charge| to.give(&mut chain));
        let is_rest = !chain.is_empty();
        if is_rest {
            from.unget(chain);
        }
        match given {
            Ok(n) => {
                done += n;
                sched::work_done(n);
            }
            Err(errno) => break Err(errno),
        }
        if is_rest || until == Until::Some || proc::signal_pending() {
            break Ok(());
        }
    };
    outcome(done, result)
}

fn sendfile(out: i32, input: i32, offset: u64, len: usize) -> Result<usize> {
    let (from, to) = (curproc::file(input)?, curproc::file(out)?);
    if !from.is_readable() || !to.is_writable() {
        return Err(EBADF);
    }
    if to.flags() & abi::O_APPEND != 0 {
        return Err(EINVAL);
    }
    if !from.is_seekable() {
        return Err(if offset == 0 || from.is_dir() { EINVAL } else { ESPIPE });
    }
    let (mut from, mut to) = (Side::new(from, offset)?, Side::new(to, 0)?);
    from.check_span(len)?;
    to.check_span(len)?;
    let done = transfer(&mut from, &mut to, len.min(MAX_TRANSFER), Until::All)?;
    from.finish()?;
    Ok(done)
}

fn copy_file_range(
    input: i32,
    in_offset: u64,
    out: i32,
    out_offset: u64,
    len: usize,
    flags: u32,
) -> Result<usize> {
    only(flags, 0)?;
    let (from, to) = (curproc::file(input)?, curproc::file(out)?);
    if from.is_dir() || to.is_dir() {
        return Err(EISDIR);
    }
    if from.inode().kind() != Kind::File || to.inode().kind() != Kind::File {
        return Err(EINVAL);
    }
    if !from.is_readable() || !to.is_writable() || to.flags() & abi::O_APPEND != 0 {
        return Err(EBADF);
    }
    for addr in [in_offset, out_offset].into_iter().filter(|&addr| addr != 0) {
        user::get::<u64>(addr)?.checked_add(len as u64).ok_or(EOVERFLOW)?;
    }
    let (mut from, mut to) = (Side::new(from, in_offset)?, Side::new(to, out_offset)?);
    if from.file.inode().stat().dev != to.file.inode().stat().dev {
        return Err(EXDEV);
    }
    if same(from.file.inode(), to.file.inode()) {
        let (read, written) = (from.start()?, to.start()?);
        let there = from.file.inode().stat().size.saturating_sub(read);
        let len = there.min(len as u64);
        if written < read.saturating_add(len) && read < written.saturating_add(len) {
            return Err(EINVAL);
        }
    }
    let done = transfer(&mut from, &mut to, len.min(MAX_TRANSFER), Until::All)?;
    from.finish()?;
    to.finish()?;
    Ok(done)
}

const KNOWN: u32 =
    abi::SPLICE_F_MOVE | abi::SPLICE_F_NONBLOCK | abi::SPLICE_F_MORE | abi::SPLICE_F_GIFT;

/// Whether a call waits at a pipe.
fn blocking(file: &File, flags: u32) -> Blocking {
    if flags & abi::SPLICE_F_NONBLOCK != 0 {
        return Blocking::No;
    }
    Blocking::of(file)
}

fn splice(
    input: i32,
    in_offset: u64,
    out: i32,
    out_offset: u64,
    len: usize,
    flags: u32,
) -> Result<usize> {
    if len == 0 {
        return Ok(0);
    }
    if flags & !KNOWN != 0 {
        return Err(EINVAL);
    }
    let (from, to) = (curproc::file(input)?, curproc::file(out)?);
    let pipes = (pipe::of(&from).cloned(), pipe::of(&to).cloned());
    if pipes.0.is_some() && in_offset != 0 || pipes.1.is_some() && out_offset != 0 {
        return Err(ESPIPE);
    }
    if !from.is_readable() || !to.is_writable() {
        return Err(EBADF);
    }
    if in_offset != 0 && !from.is_seekable() || out_offset != 0 && !to.is_seekable() {
        return Err(EINVAL);
    }
    match &pipes {
        (None, None) => return Err(EINVAL),
        (Some(one), Some(other)) if Arc::ptr_eq(one, other) => return Err(EINVAL),
        _ => {}
    }
    if to.flags() & abi::O_APPEND != 0 && pipes.1.is_none() {
        return Err(EINVAL);
    }
    let (mut from, mut to) = (Side::new(from, in_offset)?, Side::new(to, out_offset)?);
    let mut most = len.min(MAX_TRANSFER);
    from.check_span(most)?;
    to.check_span(most)?;
    // A pipe that has no room now is waited for, as flags have it; what has room is all that is
    // taken from the other side.
    if let Some(pipe) = &pipes.1 {
        most = most.min(pipe.wait_for_room(blocking(&to.file, flags))?);
    }
    if flags & abi::SPLICE_F_NONBLOCK != 0 && pipes.0.as_ref().is_some_and(|pipe| pipe.is_awaited())
    {
        return Err(EAGAIN);
    }
    let done = match &pipes {
        (Some(one), Some(other)) => {
            let waits = (Blocking::of(&from.file), blocking(&to.file, flags));
            between(one, other, waits, most)?
        }
        _ => transfer(&mut from, &mut to, most, Until::Some)?,
    };
    from.finish()?;
    to.finish()?;
    Ok(done)
}

/// Moves up to `most` bytes from pipe to pipe, waiting at either for the first of them. Packets
/// stay packets.
fn between(
    one: &Pipe,
    other: &Pipe,
    mut waits: (Blocking, Blocking),
    most: usize,
) -> Result<usize> {
    let mut done = 0;
    let result = loop {
        if done == most || done > 0 && (one.len() == 0 || proc::signal_pending()) {
            break Ok(());
        }
        let (mut chain, kind) = match one.take_piece(waits.0, most - done) {
            Ok(piece) => piece,
            Err(errno) => break Err(errno),
        };
        if chain.is_empty() {
            break Ok(());
        }
        let given = hold(&chain).and_then(|_charge| other.give_piece(waits.1, &mut chain, kind));
        let is_rest = !chain.is_empty();
        if is_rest {
            one.unget_piece(chain, kind);
        }
        match given {
            Ok(n) => {
                done += n;
                sched::work_done(n);
            }
            Err(errno) => break Err(errno),
        }
        if is_rest {
            break Ok(());
        }
        waits = (Blocking::No, Blocking::No);
    };
    outcome(done, result)
}

fn tee(input: i32, out: i32, len: usize, flags: u32) -> Result<usize> {
    if flags & !KNOWN != 0 {
        return Err(EINVAL);
    }
    if len == 0 {
        return Ok(0);
    }
    let (from, to) = (curproc::file(input)?, curproc::file(out)?);
    if !from.is_readable() || !to.is_writable() {
        return Err(EBADF);
    }
    let pipes = (pipe::of(&from).cloned(), pipe::of(&to).cloned());
    let (Some(source), Some(target)) = pipes else { return Err(EINVAL) };
    if Arc::ptr_eq(&source, &target) {
        return Err(EINVAL);
    }
    if flags & abi::SPLICE_F_NONBLOCK != 0 && source.is_awaited() {
        return Err(EAGAIN);
    }
    let room = target.wait_for_room(blocking(&to, flags))?;
    let (mut chain, pieces) = source.look(Blocking::of(&from), len.min(room))?;
    let (mut done, mut waits) = (0, Blocking::of(&to));
    let given = hold(&chain).and_then(|_charge| {
        for (len, kind) in pieces {
            let mut piece = Chain::new();
            piece.take_from(&Clusters, &mut chain, len).map_err(|NoMemory| ENOBUFS)?;
            let given = target.give_piece(waits, &mut piece, kind);
            piece.release(&Clusters);
            done += given?;
            waits = Blocking::No;
        }
        Ok(())
    });
    chain.release(&Clusters);
    outcome(done, given)
}

/// Moves the program's own pages into a pipe, once it has room, and copies what is in no whole
/// page.
fn loan_into(pipe: &Arc<Pipe>, blocking: Blocking, from: &mut Source<'_>) -> Result<usize> {
    let start = from.done();
    let room = pipe.wait_for_room(blocking)?;
    let most = if blocking == Blocking::Yes { PART } else { room };
    let mut chain = Chain::new();
    let mut result = append(&mut chain, from, most, Loans::Pages);
    if !chain.is_empty() {
        result = hold(&chain).and_then(|_charge| pipe.give(blocking, &mut chain)).map(|_| ());
    }
    from.back(chain.len());
    chain.release(&Clusters);
    outcome(from.done() - start, result)
}

fn vmsplice(fd: i32, pieces: u64, count: usize, flags: u32) -> Result<usize> {
    if flags & !KNOWN != 0 {
        return Err(EINVAL);
    }
    let file = curproc::file(fd)?;
    let vector = vector(pieces, count)?;
    if vector.iter().all(|piece| piece.len == 0) {
        return Ok(0);
    }
    let Some(pipe) = pipe::of(&file) else { return Err(EBADF) };
    let nonblocking = flags & abi::SPLICE_F_NONBLOCK != 0;
    if file.is_writable() {
        let mut from = Source::vector(&vector);
        return loan_into(pipe, blocking(&file, flags), &mut from);
    }
    let mut to = Sink::vector(&vector);
    if nonblocking && pipe.is_awaited() {
        return Err(EAGAIN);
    }
    file.read(&mut to)
}
