//! Storage in memory, behind files and swap devices, that watches what is done to it.
//!
//! A transfer is made at once or put under way, as the [`Line`] says; then the machine ends it when
//! a thread waits or a test says so, in any order. While it is under way the storage is an
//! adversary: a page to be filled holds garbage until the end; of the pages to be written every
//! second is looked at when the write starts, the others when it ends; the pages of one transfer
//! end in several parts; a block whose write failed holds garbage.
//!
//! What may never happen is noted as *trouble*, which the world asks for after each step: I/O on a
//! page that isn't busy or that changes hands meanwhile; swap I/O on a page that a CPU can still
//! reach; two transfers on one block at once; a swapped page read from where nothing was written; a
//! transfer on a device that has been switched off; a file's page written where the file has a
//! hole, for which the disk was not asked for room.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use machine::{PageNo, ThreadCtx, PAGE_SIZE};
use uvm::page::Owner;
use uvm::page::PageFlags;
use uvm::{GetError, Outcome, Transfer, Uvm};
use uvm_soft::{host, Fate, Injector, Rng, SoftMachine};

use crate::desk::Desk;
use crate::model::Contents;
use crate::world::word_offset;

type Block = Box<[u8; PAGE_SIZE]>;

/// What a page holds while it is read, and a block after a write that failed.
const GARBAGE: u8 = 0x5e;

/// When transfers end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Manner {
    /// Before the call returns.
    AtOnce,
    /// When the machine ends them.
    Later,
    /// One or the other, by seed.
    Either,
}

/// What all storage of a world has in common.
pub struct Line {
    /// Fails a transfer that reads.
    pub reads: Injector,
    /// Fails a transfer that writes.
    pub writes: Injector,
    manner: Manner,
    state: Mutex<LineState>,
}

struct LineState {
    rng: Rng,
    trouble: Option<String>,
    lost: Vec<Lost>,
    unwritten: Vec<(usize, u64)>,
    /// Pages that the disk under all files has room for.
    room: u64,
    filled: Vec<(usize, u64)>,
}

/// A block that could not be read, and what it holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lost {
    /// Whose it is, if that is an object; swap belongs to none.
    pub object: Option<usize>,
    /// Its place.
    pub block: u64,
    /// What it would have shown.
    pub contents: Contents,
}

impl Line {
    /// Storage that behaves as the seed says.
    pub fn new(manner: Manner, seed: u64) -> Arc<Line> {
        let state = LineState {
            rng: Rng::new(seed),
            trouble: None,
            lost: Vec::new(),
            unwritten: Vec::new(),
            room: crate::model::ROOM,
            filled: Vec::new(),
        };
        Arc::new(Line {
            reads: Injector::default(),
            writes: Injector::default(),
            manner,
            state: Mutex::new(state),
        })
    }

    /// What has gone wrong, if anything.
    ///
    /// # Errors
    /// The first trouble, as a sentence.
    pub fn trouble(&self) -> Result<(), String> {
        self.lock().trouble.clone().map_or(Ok(()), Err)
    }

    /// The blocks that could not be read since the last call.
    pub fn take_lost(&self) -> Vec<Lost> {
        std::mem::take(&mut self.lock().lost)
    }

    /// The files' blocks, by object, that could not be written since the last call, and have not
    /// been since.
    pub fn take_unwritten(&self) -> Vec<(usize, u64)> {
        std::mem::take(&mut self.lock().unwritten)
    }

    /// Says how many pages the disk under all files has room for, beside those that it holds.
    pub fn set_room(&self, pages: u64) {
        self.lock().room = pages;
    }

    /// The holes of files, by object, that room was found for since the last call.
    pub fn take_filled(&self) -> Vec<(usize, u64)> {
        std::mem::take(&mut self.lock().filled)
    }

    fn note(&self, trouble: String) {
        self.lock().trouble.get_or_insert(trouble);
    }

    fn one_in(&self, n: u64) -> bool {
        self.lock().rng.one_in(n)
    }

    fn is_later(&self) -> bool {
        match self.manner {
            Manner::AtOnce => false,
            Manner::Later => true,
            Manner::Either => self.one_in(2),
        }
    }

    fn lock(&self) -> MutexGuard<'_, LineState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    Read,
    Write,
}

/// What a store keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Keeps {
    /// The file of this object; before it is written a block holds what `file_contents` says.
    File(usize),
    /// Swapped pages.
    Swap,
}

pub(super) struct Store<M: Desk = SoftMachine> {
    keeps: Keeps,
    line: Arc<Line>,
    uvm: OnceLock<Weak<Uvm<M>>>,
    state: Mutex<State>,
}

impl State {
    /// A file's block is bad until something is stored there, a device's for ever.
    fn is_bad(&self, keeps: Keeps, block: u64) -> bool {
        self.bad.contains(&block) && (keeps == Keeps::Swap || !self.blocks.contains_key(&block))
    }
}

#[derive(Default)]
struct State {
    blocks: BTreeMap<u64, Block>,
    /// A file's blocks that it has no room for.
    holes: BTreeSet<u64>,
    /// Swap blocks that were written since the device was switched on.
    written: BTreeSet<u64>,
    /// Blocks that fail for good.
    bad: BTreeSet<u64>,
    /// Blocks with a transfer under way.
    busy: BTreeMap<u64, Way>,
}

/// One page of a transfer.
#[derive(Clone)]
struct Piece {
    block: u64,
    page: PageNo,
    owner: Owner,
    /// What is to be written, if that was looked at when the write started.
    early: Option<Block>,
}

impl<M: Desk> Store<M> {
    pub(super) fn new(keeps: Keeps, line: &Arc<Line>, uvm: &Arc<Uvm<M>>) -> Arc<Store<M>> {
        let _host = host();
        let known = OnceLock::new();
        known.get_or_init(|| Arc::downgrade(uvm));
        Arc::new(Store { keeps, line: line.clone(), uvm: known, state: Mutex::default() })
    }

    /// Makes a block fail for good.
    pub(super) fn spoil(&self, block: u64) {
        let _host = host();
        self.lock().bad.insert(block);
    }

    /// Takes what the blocks hold for free from now on; they hold it still.
    pub(super) fn age(&self) {
        self.lock().written.clear();
    }

    /// Notes that the storage may not be used any more: it is trouble if a transfer is under way.
    pub(super) fn leave(&self) {
        let busy = self.lock().busy.iter().next().map(|(&block, &way)| (block, way));
        if let Some((block, way)) = busy {
            self.line.note(format!(
                "{:?} is switched off while block {block} is under {way:?}",
                self.keeps
            ));
        }
    }

    /// Gives blocks up: they show zeroes, and nothing can be written there before room has been
    /// found.
    pub(super) fn punch(&self, blocks: std::ops::Range<u64>) {
        let _host = host();
        let mut state = self.lock();
        for block in blocks {
            state.blocks.insert(block, Box::new([0; PAGE_SIZE]));
            state.holes.insert(block);
        }
    }

    /// Finds room for a block, if it was given up.
    ///
    /// # Errors
    /// [`GetError::NoSpace`], [`GetError::Io`]: it is as it was.
    pub(super) fn fill_hole(&self, block: u64) -> Result<(), GetError> {
        let _host = host();
        let mut state = self.lock();
        if !state.holes.contains(&block) {
            return Ok(());
        }
        let mut line = self.line.lock();
        line.room = line.room.checked_sub(1).ok_or(GetError::NoSpace)?;
        if let Keeps::File(object) = self.keeps {
            line.filled.push((object, block));
        }
        state.holes.remove(&block);
        Ok(())
    }

    /// Forgets the blocks from this one on.
    pub(super) fn cut(&self, from: u64) {
        let _host = host();
        let mut state = self.lock();
        state.blocks.split_off(&from);
        state.holes.split_off(&from);
    }

    /// What a block shows.
    pub(super) fn stored(&self, block: u64) -> Contents {
        words(&self.block(block))
    }

    fn block(&self, block: u64) -> Block {
        let _host = host();
        if let Some(bytes) = self.lock().blocks.get(&block) {
            return bytes.clone();
        }
        let mut bytes = Box::new([0; PAGE_SIZE]);
        if let Keeps::File(_) = self.keeps {
            for (word, value) in crate::model::file_contents(block).into_iter().enumerate() {
                let at = word_offset(word);
                bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
            }
        }
        bytes
    }

    /// Moves pages to or from consecutive blocks, now or later.
    pub(super) fn transfer(
        self: &Arc<Self>,
        machine: &M,
        way: Way,
        first: u64,
        pages: &[PageNo],
    ) -> Transfer {
        let _host = host();
        let owner = |page| machine.frames().owner(page);
        let mut pieces: Vec<Piece> = (first..)
            .zip(pages)
            .map(|(block, &page)| Piece { block, page, owner: owner(page), early: None })
            .collect();
        for piece in &pieces {
            self.inspect(machine, way, piece);
            if let Some(other) = self.lock().busy.get(&piece.block) {
                self.line
                    .note(format!("{way:?} of block {} while it is under {other:?}", piece.block));
            }
        }
        let fails = match way {
            Way::Read => self.line.reads.fails(),
            Way::Write => self.line.writes.fails(),
        };
        let fate = if fails { Fate::Fails } else { Fate::Works };
        let first = self.outcome(&pieces[0], way, fate);
        let alike = pieces.iter().all(|piece| self.outcome(piece, way, fate) == first);
        let is_later = self.line.is_later();
        if alike && first != Outcome::Hole && !is_later {
            pieces.iter().for_each(|piece| self.move_piece(machine, way, piece, fate));
            return if first == Outcome::Done { Transfer::Done } else { Transfer::Failed };
        }
        self.prepare(machine, way, &mut pieces);
        if !is_later && !self.line.one_in(2) {
            // It has ended before the call returns, though not with one word.
            self.finish(machine, way, &pieces, fate);
            return Transfer::Started;
        }
        let store = self.clone();
        machine.begin(move |machine, end| {
            store.finish(machine, way, &pieces, if fails { Fate::Fails } else { end });
        });
        Transfer::Started
    }

    /// Whether a page's part of a transfer fails. Zeroes never do: too many pages hold them to say
    /// whose were lost.
    fn fails(&self, piece: &Piece, way: Way, fate: Fate) -> bool {
        let bad = fate == Fate::Fails || self.lock().is_bad(self.keeps, piece.block);
        let zeroes =
            self.keeps == Keeps::Swap && way == Way::Read && self.stored(piece.block) == [0; 4];
        bad && !zeroes
    }

    /// How a page's part of a transfer ends.
    fn outcome(&self, piece: &Piece, way: Way, fate: Fate) -> Outcome {
        if self.fails(piece, way, fate) {
            return Outcome::Failed;
        }
        let is_hole = way == Way::Read && self.lock().holes.contains(&piece.block);
        if is_hole {
            Outcome::Hole
        } else {
            Outcome::Done
        }
    }

    /// Garbage into pages to be filled; an early look at some that are written.
    fn prepare(&self, machine: &M, way: Way, pieces: &mut [Piece]) {
        for piece in pieces {
            self.lock().busy.insert(piece.block, way);
            match way {
                Way::Read => machine.write(piece.page, 0, &[GARBAGE; PAGE_SIZE]),
                Way::Write if self.line.one_in(2) => {
                    piece.early = Some(bytes_of(machine, piece.page))
                }
                Way::Write => {}
            }
        }
    }

    /// Ends a transfer, in parts that end alike and at random within them.
    fn finish(&self, machine: &M, way: Way, pieces: &[Piece], fate: Fate) {
        let Some(uvm) = self.uvm.get().and_then(Weak::upgrade) else { return };
        let mut rest = pieces;
        while !rest.is_empty() {
            let outcome = self.outcome(&rest[0], way, fate);
            let alike = rest.iter().take_while(|piece| self.outcome(piece, way, fate) == outcome);
            let len = alike
                .take_while(|piece| piece.page == rest[0].page || !self.line.one_in(4))
                .count();
            let (part, others) = rest.split_at(len.max(1));
            rest = others;
            for piece in part {
                self.inspect(machine, way, piece);
                self.lock().busy.remove(&piece.block);
                let fate = if outcome == Outcome::Failed { Fate::Fails } else { Fate::Works };
                self.move_piece(machine, way, piece, fate);
            }
            let pages: Vec<PageNo> = part.iter().map(|piece| piece.page).collect();
            let mut ctx = ThreadCtx::new();
            // What ends I/O may have interrupted anything: it has no reservation.
            let (_, fault) = M::charged(|| match way {
                Way::Read => uvm.read_done(&mut ctx.held(), &pages, outcome),
                Way::Write => uvm.write_done(&mut ctx.held(), &pages, outcome),
            });
            fault.into_iter().for_each(|fault| self.line.note(fault.into()));
        }
    }

    /// The bytes of one page; on a failure garbage at the other end.
    fn move_piece(&self, machine: &M, way: Way, piece: &Piece, fate: Fate) {
        let works = !self.fails(piece, way, fate);
        match way {
            Way::Read if works => machine.write(piece.page, 0, &self.block(piece.block)[..]),
            Way::Read => {
                machine.write(piece.page, 0, &[GARBAGE; PAGE_SIZE]);
                let object = if let Keeps::File(object) = self.keeps { Some(object) } else { None };
                let lost = Lost { object, block: piece.block, contents: self.stored(piece.block) };
                self.line.lock().lost.push(lost);
            }
            Way::Write => {
                if let Keeps::File(object) = self.keeps {
                    // What failed among others may work alone.
                    let unwritten = &mut self.line.lock().unwritten;
                    unwritten.retain(|&at| at != (object, piece.block));
                    unwritten.extend((!works).then_some((object, piece.block)));
                }
                let bytes = match &piece.early {
                    _ if !works => Box::new([GARBAGE; PAGE_SIZE]),
                    Some(bytes) => bytes.clone(),
                    None => bytes_of(machine, piece.page),
                };
                let mut state = self.lock();
                if state.holes.contains(&piece.block) {
                    let (block, keeps) = (piece.block, self.keeps);
                    self.line.note(format!("block {block} of {keeps:?} is written, and is a hole"));
                }
                state.blocks.insert(piece.block, bytes);
                state.written.insert(piece.block);
            }
        }
    }

    /// Looks for trouble, at the start of a transfer and at its end.
    fn inspect(&self, machine: &M, way: Way, piece: &Piece) {
        let Piece { block, page, owner, .. } = *piece;
        let now = machine.frames().owner(page);
        let what = if !machine.frames().flags(page).contains(PageFlags::BUSY) {
            "a page that isn't busy".into()
        } else if now != owner && now != Owner::Orphan {
            format!("a page of {owner:?} that is {now:?}'s now")
        } else if self.keeps != Keeps::Swap && way == Way::Write {
            // A program may store to a file's page while it is written; the page is dirty again
            // then.
            return;
        } else if let Some(how) = machine.reach(page) {
            format!("a page in reach: {how}")
        } else if self.keeps == Keeps::Swap
            && way == Way::Read
            && !self.lock().written.contains(&block)
        {
            "a block that was never written".into()
        } else {
            return;
        };
        self.line.note(format!("{way:?} of {page:?} at block {block} of {:?}: {what}", self.keeps));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn bytes_of<M: Desk>(machine: &M, page: PageNo) -> Block {
    let mut bytes = Box::new([0; PAGE_SIZE]);
    machine.read(page, 0, &mut bytes[..]);
    bytes
}

fn words(bytes: &[u8; PAGE_SIZE]) -> Contents {
    std::array::from_fn(|word| {
        let at = word_offset(word);
        u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
    })
}
