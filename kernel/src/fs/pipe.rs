//! Pipes and fifos.
//!
//! Bytes are in one place (`contents`), user memory is copied straight into it and out of it, and
//! pages can be moved in and out as they are.
//!
//! A wake-up costs a switch of address spaces, so each side wakes the other only when the ring
//! stops being empty, and when it has room for a whole `PIPE_BUF` again.
//!
//! Invariants: I1: `len`, `packets` and `capacity` change only with `contents` locked; polls read
//! them without. I2: `contents` is a sleeping lock and is held over user copies: transfers of up to
//! `PIPE_BUF` are in one piece. I3: a byte leaves only once it was copied out whole. I4: a pipe
//! that no process has open holds nothing. I5: `over` is the turn of a writer that put more into
//! the pipe than it is to hold, and waits until that is so no longer; no other writes meanwhile.
//!
//! I5 is for pages that are loaned: they need no room, so a large write puts all of them where the
//! reader finds them at once, and still ends no sooner than if they had been copied in little by
//! little.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use linux_raw_sys::general as abi;

use crate::chain::contents::Contents;
pub use crate::chain::packets::Piece;
use crate::chain::Chain;
use crate::charge::{self, Charge, Count, Counted, Full, User};
use crate::cred::caps::Caps;
use crate::errno::*;
use crate::fs::file::File;
use crate::fs::inode::*;
use crate::fs::ops::*;
use crate::mem::fault::Room;
use crate::sync::{Mutex, SpinLock, WaitQueue, Woken};
use crate::uio::{outcome, Sink, Source};
use crate::upcalls;
use crate::vm::{self, Asks, Export, Space};

/// Lengths of pieces, and what they are.
pub type Pieces = Vec<(usize, Piece)>;

const PAGE: usize = 4096;
/// Writes of up to so many bytes are not mixed with others'.
const PIPE_BUF: usize = 4096;
const DEFAULT_CAPACITY: usize = 65536;
const MAX_CAPACITY: usize = 1 << 20;
/// The largest for those without privilege.
static LARGEST: AtomicUsize = AtomicUsize::new(MAX_CAPACITY);

/// The size that a pipe may be given without privilege.
pub fn largest() -> usize {
    LARGEST.load(Ordering::Relaxed)
}

/// Sets that, to the next size that a pipe may have.
///
/// # Errors
/// `EINVAL` for more than any pipe may have.
pub fn set_largest(size: usize) -> Result<()> {
    if size > MAX_CAPACITY {
        return Err(EINVAL);
    }
    LARGEST.store(size.max(PAGE).next_power_of_two(), Ordering::Relaxed);
    Ok(())
}
/// What a pipe gets when its user's pipes may hold much already.
const LEAST_CAPACITY: usize = 2 * PAGE;

/// Pages that all pipes of a user may hold: from the first on, new ones get little and none grows,
/// from the second on there are no new ones. 0 for no bound. `/proc/sys/fs/pipe-user-pages-soft`
/// and `-hard`.
pub static SOFT: AtomicUsize = AtomicUsize::new(16384);
pub static HARD: AtomicUsize = AtomicUsize::new(0);

/// How many pages one of these allows the running process's user.
fn user_pages(bound: &AtomicUsize) -> usize {
    match bound.load(Ordering::Relaxed) {
        0 => usize::MAX,
        _ if may_exceed() => usize::MAX,
        most => most,
    }
}

fn may_exceed() -> bool {
    let cred = upcalls::cred();
    cred.has(Caps::SYS_RESOURCE) || cred.has(Caps::SYS_ADMIN)
}

/// The shared middle of a pipe.
pub struct Pipe {
    contents: Mutex<Contents>,
    user: Arc<User>,
    /// The pages that it may hold.
    pages: SpinLock<Count>,
    _charge: Charge,
    len: AtomicUsize,
    packets: AtomicUsize,
    capacity: AtomicUsize,
    /// I5; 0 if there is no such writer. Changes with `contents` locked.
    over: AtomicU64,
    turns: AtomicU64,
    readers: Side,
    writers: Side,
}

/// One end: how many files have it open, and the threads that wait there.
struct Side {
    open: AtomicU32,
    /// Opens so far, so that an opener sees one that came and went meanwhile.
    opened: AtomicU32,
    wait: WaitQueue,
}

impl Side {
    const fn new() -> Side {
        Side { open: AtomicU32::new(0), opened: AtomicU32::new(0), wait: WaitQueue::new() }
    }

    fn enter(&self) {
        self.open.fetch_add(1, Ordering::SeqCst);
        self.opened.fetch_add(1, Ordering::SeqCst);
    }

    fn leave(&self) {
        self.open.fetch_sub(1, Ordering::SeqCst);
    }

    fn opened(&self) -> u32 {
        self.opened.load(Ordering::SeqCst)
    }

    fn is_open(&self) -> bool {
        self.open.load(Ordering::SeqCst) != 0
    }
}

impl Pipe {
    /// An empty one, which holds little from the moment on that the user's pipes may hold much.
    fn new(charge: Charge) -> Result<Arc<Pipe>> {
        let maker = charge::account();
        let user = maker.user().clone();
        let pages = |many| Count::of(user.clone(), Counted::PipePages, many, user_pages(&HARD));
        let is_much = user.count(Counted::PipePages) + DEFAULT_CAPACITY / PAGE > user_pages(&SOFT);
        let capacity = if is_much { LEAST_CAPACITY } else { DEFAULT_CAPACITY };
        let pages = pages(capacity / PAGE).map_err(|_| ENFILE)?;
        Ok(Arc::new(Pipe {
            contents: Mutex::new(Contents::new(maker)),
            user,
            pages: SpinLock::new(pages),
            _charge: charge,
            len: AtomicUsize::new(0),
            packets: AtomicUsize::new(0),
            capacity: AtomicUsize::new(capacity),
            over: AtomicU64::new(0),
            turns: AtomicU64::new(0),
            readers: Side::new(),
            writers: Side::new(),
        }))
    }

    /// The inside of a fifo that no process has open, which a user has made.
    ///
    /// # Errors
    /// `ENFILE`.
    pub fn fifo(uid: u32) -> Result<Arc<Pipe>> {
        Self::new(Charge::lasting(uid, size_of::<Pipe>()).map_err(|_| ENFILE)?)
    }

    /// An anonymous pipe: its reading and its writing end.
    ///
    /// Fails with `ENFILE` when memory is short.
    pub fn pair(flags: u32) -> Result<(Arc<File>, Arc<File>)> {
        vm::leave_memory(Asks::Process).map_err(|_| ENFILE)?;
        let charge = charge::take(size_of::<Pipe>()).map_err(|_| ENFILE)?;
        let inode = Arc::new(PipeInode::new(Self::new(charge)?));
        let end = |flags| {
            inode.pipe.enter(flags & abi::O_ACCMODE);
            File::anonymous(inode.clone(), flags)
        };
        let wait = flags & abi::O_NONBLOCK;
        Ok((end(wait | abi::O_RDONLY)?, end(wait | flags & abi::O_DIRECT | abi::O_WRONLY)?))
    }

    /// Opens a fifo, which waits for the other side as `open` has it; returns the node for the
    /// transfers.
    pub fn open_fifo(pipe: &Arc<Pipe>, flags: u32) -> Result<FileRef> {
        let access = flags & abi::O_ACCMODE;
        let nonblocking = flags & abi::O_NONBLOCK != 0;
        if access == abi::O_WRONLY && nonblocking && !pipe.readers.is_open() {
            return Err(ENXIO);
        }
        let before = (pipe.readers.opened(), pipe.writers.opened());
        pipe.enter(access);
        pipe.readers.wait.wake_all();
        pipe.writers.wait.wake_all();
        if access != abi::O_RDWR && !nonblocking {
            let reads = access == abi::O_RDONLY;
            let (here, there, before) = if reads {
                (&pipe.readers, &pipe.writers, before.1)
            } else {
                (&pipe.writers, &pipe.readers, before.0)
            };
            let met = here
                .wait
                .wait_intr(None, || (there.is_open() || there.opened() != before).then_some(()));
            if met.is_err() {
                pipe.leave(access);
                return Err(ERESTARTSYS);
            }
        }
        Ok(Arc::new(PipeInode::new(pipe.clone())))
    }

    fn enter(&self, access: u32) {
        if access != abi::O_WRONLY {
            self.readers.enter();
        }
        if access != abi::O_RDONLY {
            self.writers.enter();
        }
    }

    fn leave(&self, access: u32) {
        if access != abi::O_WRONLY {
            self.readers.leave();
            self.writers.wait.wake_all();
        }
        if access != abi::O_RDONLY {
            self.writers.leave();
            self.readers.wait.wake_all();
        }
        if self.len() > 0 && !self.readers.is_open() && !self.writers.is_open() {
            let mut contents = self.contents.lock();
            contents.clear();
            self.publish(&contents);
        }
    }

    /// Bytes that a read would find.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    pub fn capacity(&self) -> usize {
        self.capacity.load(Ordering::Relaxed)
    }

    /// How much a writer may fill the pipe to: a page, once the user's queues hold all that they
    /// may.
    fn limit(&self) -> usize {
        if self.user.is_full() {
            return PAGE;
        }
        self.capacity()
    }

    /// Keeps I1.
    #[inline(always)]
    fn publish(&self, contents: &Contents) {
        self.len.store(contents.len(), Ordering::Release);
        self.packets.store(contents.packets(), Ordering::Release);
    }

    /// Bytes that may come. There are no more packets than pages.
    fn room(&self) -> usize {
        let limit = self.limit();
        if self.packets.load(Ordering::Acquire) * PAGE >= limit {
            return 0;
        }
        limit.saturating_sub(self.len())
    }

    /// `F_SETPIPE_SZ`: returns the size it got.
    pub fn set_capacity(&self, size: usize) -> Result<usize> {
        if size > 1 << 31 {
            return Err(EINVAL);
        }
        if size > MAX_CAPACITY {
            return Err(if may_exceed() { ENOMEM } else { EPERM });
        }
        let size = size.max(PAGE).next_power_of_two();
        if size > largest() && size > self.capacity() && !may_exceed() {
            return Err(EPERM);
        }
        let mut contents = self.contents.lock();
        if size < contents.len().max(contents.packets() * PAGE) {
            return Err(EBUSY);
        }
        let most = if may_exceed() { usize::MAX } else { user_pages(&SOFT).min(user_pages(&HARD)) };
        if size < self.capacity() {
            contents.shrink(size)?;
        }
        self.pages.lock().resize(size / PAGE, most).map_err(|Full| EPERM)?;
        self.capacity.store(size, Ordering::Relaxed);
        self.over.store(0, Ordering::SeqCst);
        drop(contents);
        self.writers.wait.wake_all();
        Ok(size)
    }

    /// Reads what there is; waits while there is nothing and a writer is left.
    pub fn read(&self, blocking: Blocking, to: &mut Sink<'_>) -> Result<usize> {
        if to.left() == 0 {
            return Ok(0);
        }
        let start = to.done();
        let result = self.get(blocking, |contents| contents.drain(to));
        outcome(to.done() - start, result)
    }

    /// As a read of up to `most` bytes, which are moved out.
    pub fn take(&self, blocking: Blocking, most: usize) -> Result<Chain> {
        let mut chain = Chain::new();
        if most == 0 {
            return Ok(chain);
        }
        let result = self.get(blocking, |contents| contents.take(most, &mut chain));
        outcome(chain.len(), result).map(|_| chain)
    }

    /// As [`take`](Pipe::take), but what comes first may be memory that a program gave away as it
    /// was, which `map` takes.
    pub fn take_any(
        &self,
        blocking: Blocking,
        most: usize,
        map: impl FnOnce(&Export) -> Result<u64>,
    ) -> Result<Taken> {
        let (mut chain, mut range) = (Chain::new(), None);
        let result = self.get(blocking, |contents| {
            range = contents.take_range(most, map)?;
            if range.is_none() {
                contents.take(most, &mut chain)?;
            }
            Ok(())
        });
        match range {
            Some((at, len)) => Ok(Taken::Range(at, len)),
            None => outcome(chain.len(), result).map(|_| Taken::Bytes(chain)),
        }
    }

    /// Moves memory in that a program gives away as it is, once there is some room; that it needs
    /// none itself. Says whether it is such memory: else nothing has changed.
    ///
    /// # Errors
    /// As for a write; nothing has changed.
    pub fn give_range(
        &self,
        blocking: Blocking,
        space: &Space,
        addr: u64,
        pages: u64,
    ) -> Result<bool> {
        let (mut given, mut result) = (None, Ok(()));
        while given.is_none() && result.is_ok() {
            result = self.put(blocking, PIPE_BUF, |contents, _| {
                given = Some(contents.give_range(space, addr, pages)?);
                Ok(())
            });
        }
        told(result)?;
        Ok(given == Some(true))
    }

    /// As [`take`](Pipe::take), but no further than to the beginning or end of a packet.
    pub fn take_piece(&self, blocking: Blocking, most: usize) -> Result<(Chain, Piece)> {
        let (mut chain, mut kind) = (Chain::new(), Piece::Bytes);
        let result = self.get(blocking, |contents| {
            kind = contents.take_piece(most, &mut chain)?;
            Ok(())
        });
        outcome(chain.len(), result).map(|_| (chain, kind))
    }

    /// As [`give`](Pipe::give), of a piece that is a packet or isn't.
    pub fn give_piece(&self, blocking: Blocking, chain: &mut Chain, kind: Piece) -> Result<usize> {
        if kind == Piece::Bytes {
            return self.give(blocking, chain);
        }
        let whole = chain.len();
        let result = self.put(blocking, whole, |contents, limit| {
            contents.give_packet(self.most(blocking, limit), chain)
        });
        outcome(whole - chain.len(), told(result))
    }

    /// Puts back what was taken, in front of all else.
    pub fn unget(&self, chain: Chain) {
        self.unget_piece(chain, Piece::Bytes);
    }

    /// Puts back what was taken as a piece.
    pub fn unget_piece(&self, chain: Chain, kind: Piece) {
        let mut contents = self.contents.lock();
        match kind {
            Piece::Bytes => contents.unget(chain),
            Piece::Packet => contents.unget_packet(chain),
        }
        self.publish(&contents);
        drop(contents);
        self.readers.wait.wake_all();
    }

    /// The first `most` bytes on the same pages, which stay, and the pieces that they fall into;
    /// waits as a read does.
    pub fn look(&self, blocking: Blocking, most: usize) -> Result<(Chain, Pieces)> {
        let (mut chain, mut pieces) = (Chain::new(), Pieces::new());
        if most > 0 {
            self.get(blocking, |contents| {
                pieces.room(contents.packets() * 2 + 1)?;
                chain = contents.look(most)?;
                pieces.extend(contents.pieces(chain.len()));
                Ok(())
            })?;
        }
        Ok((chain, pieces))
    }

    /// Runs `get` once on what is in the pipe, when there is something; waits for that, and gives
    /// up at the end.
    #[inline(always)]
    fn get(&self, blocking: Blocking, get: impl FnOnce(&mut Contents) -> Result<()>) -> Result<()> {
        loop {
            let mut contents = self.contents.lock();
            if contents.len() > 0 {
                let before = contents.len();
                let result = get(&mut contents);
                let len = contents.len();
                contents.passed(before - len);
                self.publish(&contents);
                // With the pipe locked: the capacity may shrink to what is left then.
                let room = self.capacity().saturating_sub(len);
                let was_over = len <= self.capacity() && self.over.load(Ordering::Relaxed) != 0;
                if was_over {
                    self.over.store(0, Ordering::SeqCst);
                }
                drop(contents);
                if room >= PIPE_BUF || was_over {
                    self.writers.wait.wake_all();
                }
                return result;
            }
            drop(contents);
            if !self.writers.is_open() && self.len() == 0 {
                return Ok(());
            }
            if blocking == Blocking::No {
                return Err(EAGAIN);
            }
            let ready = || (self.len() > 0 || !self.writers.is_open()).then_some(());
            self.readers.wait.wait_intr(None, ready).map_err(interrupted)?;
        }
    }

    /// Writes all of `from`, waiting for room; raises `SIGPIPE` when no reader is left.
    pub fn write(&self, blocking: Blocking, from: &mut Source<'_>) -> Result<usize> {
        let start = from.done();
        let needed = if from.left() <= PIPE_BUF { from.left() } else { 1 };
        let mut result = Ok(());
        while from.left() > 0 && result.is_ok() {
            let mut over = None;
            result = self.put(blocking, needed, |contents, limit| {
                let result = contents.fill(limit, self.most(blocking, limit), from);
                over = (contents.len() > self.capacity()).then(|| self.turn());
                result
            });
            if let Some(turn) = over {
                result = result.and(self.wait_within_capacity(turn, from, start));
            }
        }
        outcome(from.done() - start, told(result))
    }

    /// As [`write`](Pipe::write), in packets of up to `PIPE_BUF` bytes, each of which a read takes
    /// for itself.
    pub fn write_packets(&self, blocking: Blocking, from: &mut Source<'_>) -> Result<usize> {
        let start = from.done();
        let mut result = Ok(());
        while from.left() > 0 && result.is_ok() {
            let len = from.left().min(PIPE_BUF);
            result =
                self.put(blocking, len, |contents, limit| contents.fill_packet(limit, len, from));
        }
        outcome(from.done() - start, told(result))
    }

    /// Begins I5, with `contents` locked.
    fn turn(&self) -> u64 {
        let turn = self.turns.fetch_add(1, Ordering::Relaxed) + 1;
        self.over.store(turn, Ordering::SeqCst);
        turn
    }

    /// Waits until the pipe holds no more than it is to. A writer that is interrupted has not
    /// written what is too much, of what is its own: it had written `start` bytes before. Others
    /// may have [put back](Self::unget) what they took.
    #[cold]
    fn wait_within_capacity(&self, turn: u64, from: &mut Source<'_>, start: usize) -> Result<()> {
        let is_over = || self.over.load(Ordering::SeqCst) == turn;
        let ready = || (!is_over() || !self.readers.is_open()).then_some(());
        let waited = self.writers.wait.wait_intr(None, ready).map_err(interrupted);
        if !is_over() {
            return Ok(());
        }
        let mut contents = self.contents.lock();
        if !is_over() {
            return Ok(());
        }
        let back = contents.len().saturating_sub(self.capacity()).min(from.done() - start);
        contents.trim_back(back);
        from.back(back);
        self.over.store(0, Ordering::SeqCst);
        self.publish(&contents);
        waited.and(Err(EPIPE))
    }

    /// As a write of all of `chain`, which is moved: what was not written stays in it. Pages of it
    /// need no room, so it doesn't wait until the pipe holds no more than it is to.
    pub fn give(&self, blocking: Blocking, chain: &mut Chain) -> Result<usize> {
        let whole = chain.len();
        let needed = if whole <= PIPE_BUF { whole } else { 1 };
        let mut result = Ok(());
        while !chain.is_empty() && result.is_ok() {
            result = self.put(blocking, needed, |contents, limit| {
                contents.give(self.most(blocking, limit), chain)
            });
        }
        outcome(whole - chain.len(), told(result))
    }

    /// How much the pipe may hold once pages have come as they are.
    fn most(&self, blocking: Blocking, limit: usize) -> usize {
        if blocking == Blocking::Yes && !self.user.is_full() {
            return MAX_CAPACITY.max(limit);
        }
        limit
    }

    /// Runs `put` once on what is in the pipe if there is room for `needed` bytes; else waits for
    /// some.
    #[inline(always)]
    fn put(
        &self,
        blocking: Blocking,
        needed: usize,
        put: impl FnOnce(&mut Contents, usize) -> Result<()>,
    ) -> Result<()> {
        if !self.readers.is_open() {
            return Err(EPIPE);
        }
        let mut contents = self.contents.lock();
        let before = contents.len();
        let limit = self.limit();
        if limit >= before + needed && limit > contents.packets() * PAGE {
            let result = put(&mut contents, limit);
            self.publish(&contents);
            drop(contents);
            if before == 0 || self.readers.wait.is_watched() {
                self.readers.wait.wake_all();
            }
            return result;
        }
        drop(contents);
        if blocking == Blocking::No {
            return Err(EAGAIN);
        }
        let ready = || (self.room() >= PIPE_BUF || !self.readers.is_open()).then_some(());
        self.writers.wait.wait_intr(None, ready).map_err(interrupted)
    }

    /// How many bytes have room; waits until some do, if it may. Raises `SIGPIPE` when no reader is
    /// left.
    pub fn wait_for_room(&self, blocking: Blocking) -> Result<usize> {
        loop {
            if !self.readers.is_open() {
                told(Err(EPIPE))?;
            }
            let room = self.room();
            if room > 0 {
                return Ok(room);
            }
            if blocking == Blocking::No {
                return Err(EAGAIN);
            }
            let ready = || (self.room() >= PIPE_BUF || !self.readers.is_open()).then_some(());
            self.writers.wait.wait_intr(None, ready).map_err(interrupted)?;
        }
    }

    /// Whether a read would have to wait.
    pub fn is_awaited(&self) -> bool {
        self.len() == 0 && self.writers.is_open()
    }

    /// The poll events of an end opened for `access`.
    pub fn poll(&self, access: u32) -> u32 {
        let mut events = 0;
        if access != abi::O_WRONLY {
            if self.len() > 0 {
                events |= abi::POLLIN | abi::POLLRDNORM;
            }
            let never_written = self.writers.opened() == 0;
            if !self.writers.is_open() && !never_written {
                events |= abi::POLLHUP;
            }
        }
        if access != abi::O_RDONLY {
            if self.room() >= PIPE_BUF {
                events |= abi::POLLOUT | abi::POLLWRNORM;
            }
            if !self.readers.is_open() {
                events |= abi::POLLERR;
            }
        }
        events
    }

    /// Where changes of [`Pipe::poll`]'s answer are announced.
    pub fn queues<'a>(&'a self, access: u32, out: &mut Vec<&'a WaitQueue>) {
        if access != abi::O_WRONLY {
            out.push(&self.readers.wait);
        }
        if access != abi::O_RDONLY {
            out.push(&self.writers.wait);
        }
    }
}

/// The result of a write, with the signal for the lack of a reader.
fn told(result: Result<()>) -> Result<()> {
    if result == Err(EPIPE) {
        upcalls::raise_sigpipe();
    }
    result
}

/// What was taken out of a pipe.
pub enum Taken {
    Bytes(Chain),
    /// Where memory is now that a program gave away as it was, and its length.
    Range(u64, usize),
}

/// Whether a transfer may wait.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Blocking {
    Yes,
    No,
}

impl Blocking {
    pub fn of(file: &File) -> Blocking {
        if file.is_nonblocking() {
            Blocking::No
        } else {
            Blocking::Yes
        }
    }
}

/// The error of a wait that was cut short.
pub fn interrupted(woken: Woken) -> Errno {
    match woken {
        Woken::Signal => ERESTARTSYS,
        Woken::Timeout => EAGAIN,
    }
}

/// The pipe behind an open file, if it is one.
pub fn of(file: &File) -> Option<&Arc<Pipe>> {
    downcast_file::<PipeInode>(file.io()).map(|node| &node.pipe)
}

/// What a descriptor of a pipe or an opened fifo refers to.
struct PipeInode {
    pipe: Arc<Pipe>,
    ino: u64,
    /// The process that made it.
    owner: (u32, u32),
}

impl PipeInode {
    fn new(pipe: Arc<Pipe>) -> PipeInode {
        let by = upcalls::cred();
        PipeInode { pipe, ino: crate::fs::new_ino(), owner: (by.fsuid, by.fsgid) }
    }
}

impl Inode for PipeInode {
    fn stat(&self) -> Stat {
        let (uid, gid) = self.owner;
        Stat { uid, gid, ..Stat::plain(crate::fs::PIPE_DEVICE, self.ino, Kind::Fifo, 0o600) }
    }

    fn kind(&self) -> Kind {
        Kind::Fifo
    }

    fn set_attr(&self, change: Decide<'_>) -> Result<()> {
        change(&self.ownership()).map(|_| ())
    }

    /// Only a descriptor's name in /proc leads here: the pipe has been open, so there is no opener
    /// of the other end to wait for.
    fn open(self: Arc<Self>, flags: u32) -> Result<FileRef> {
        self.pipe.enter(flags & abi::O_ACCMODE);
        Ok(self)
    }
}

impl FileOps for PipeInode {
    fn release(&self, file: &File) {
        self.pipe.leave(file.flags() & abi::O_ACCMODE);
    }

    fn read(&self, file: &File, _at: u64, to: &mut Sink<'_>) -> Result<usize> {
        self.pipe.read(Blocking::of(file), to)
    }

    fn write(&self, file: &File, _at: Position, from: &mut Source<'_>) -> Result<(usize, u64)> {
        let blocking = Blocking::of(file);
        let written = if file.flags() & abi::O_DIRECT != 0 {
            self.pipe.write_packets(blocking, from)
        } else {
            self.pipe.write(blocking, from)
        };
        written.map(|n| (n, 0))
    }

    fn ioctl(&self, _file: &File, request: u32, arg: u64) -> Result<u64> {
        if request == linux_raw_sys::ioctl::FIONREAD {
            crate::user::put(arg, &(self.pipe.len() as i32))?;
            return Ok(0);
        }
        Err(ENOTTY)
    }

    fn poll(&self, file: &File) -> u32 {
        self.pipe.poll(file.flags() & abi::O_ACCMODE)
    }

    fn queues<'a>(&'a self, file: &File, out: &mut Vec<&'a WaitQueue>) {
        self.pipe.queues(file.flags() & abi::O_ACCMODE, out);
    }

    fn movable(&self) -> Option<&dyn Movable> {
        Some(self)
    }
}

impl Movable for PipeInode {
    fn take(&self, file: &File, most: usize) -> Result<Chain> {
        self.pipe.take(Blocking::of(file), most)
    }

    fn give(&self, file: &File, chain: &mut Chain) -> Result<usize> {
        self.pipe.give(Blocking::of(file), chain)
    }

    fn unget(&self, _file: &File, chain: Chain) {
        self.pipe.unget(chain);
    }
}
