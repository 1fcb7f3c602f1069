//! System V shared memory: segments by key and number.
//!
//! ```text
//!   TABLE  slot -> Shm { key, owner, mode, times,
//!                     segment: a handle, until it is removed
//!                     remnant: finds it as long as a process has it attached }
//! ```
//! The VM system counts attachments: a mapping is a reference of the segment's object, whether it
//! came by `shmat`, by fork or by a split, and however it goes. So nothing here is told of exit,
//! exec or unmapping, and the memory of a removed segment is freed with its last mapping. Its slot
//! is found empty later: a call that makes a segment looks at [`AT_ONCE`] removed ones, each in its
//! turn, and at all of them only before it is refused.
//!
//! I1: a slot's number is its index plus its sequence times `SLOTS`, so a reused slot has a new
//! number. I2: a removed segment has no key. I3: handles on memory and what is known of it are let
//! go with `TABLE` unlocked. I4: no more than one segment is looked at while `TABLE` is locked.
//! Locks: `TABLE`, a leaf but for the VM system's object locks.
//!
//! Not as on Linux: the time and process of a detachment are those of the last `shmdt`; ends of
//! processes leave them.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::{Arc, Weak};

use crate::charge::{Charge, Count, Counted, User};
use crate::cred::caps::Caps;
use crate::cred::Cred;
use crate::errno::*;
use crate::proc::Pid;
use crate::sched;
use crate::share;
use crate::sync::SpinLock;
use crate::vm::{commit, Locked, Remnant, Segment};

/// The key that no two segments share.
pub const IPC_PRIVATE: i32 = 0;
/// Slots at most, as on Linux.
const SLOTS: usize = 32768;
const PAGE: u64 = 4096;
/// The largest segment: what an address space can hold.
const LARGEST: u64 = 1 << 46;
/// `PERMISSION` bits of a mode.
const PERMISSIONS: u32 = 0o777;
/// Shown in a mode: removed, or locked in memory.
const MODE_DEST: u32 = 0o1000;
const MODE_LOCKED: u32 = 0o2000;

/// A segment's owner, its creator and its mode.
#[derive(Clone, Copy)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
    pub creator_uid: u32,
    pub creator_gid: u32,
    pub mode: u32,
}

impl Owner {
    fn new(cred: &Cred, mode: u32) -> Owner {
        let (uid, gid) = (cred.euid, cred.egid);
        Owner { uid, gid, creator_uid: uid, creator_gid: gid, mode: mode & PERMISSIONS }
    }

    /// `wanted` has permission bits wherever they are, as in a mode.
    fn check(&self, cred: &Cred, wanted: u32) -> Result<()> {
        let wanted = (wanted >> 6 | wanted >> 3 | wanted) & 7;
        let granted = if cred.euid == self.uid || cred.euid == self.creator_uid {
            self.mode >> 6
        } else if [self.gid, self.creator_gid].iter().any(|&g| cred.in_effective_group(g)) {
            self.mode >> 3
        } else {
            self.mode
        };
        if wanted & !granted == 0 || cred.has(Caps::IPC_OWNER) {
            Ok(())
        } else {
            Err(EACCES)
        }
    }

    /// Whether the caller may lock the segment in memory, and let it go again.
    fn check_lock(&self, cred: &Cred) -> Result<()> {
        if cred.has(Caps::IPC_LOCK) || [self.uid, self.creator_uid].contains(&cred.euid) {
            Ok(())
        } else {
            Err(EPERM)
        }
    }

    fn check_owner(&self, cred: &Cred) -> Result<()> {
        if cred.has(Caps::SYS_ADMIN) || cred.euid == self.uid || cred.euid == self.creator_uid {
            Ok(())
        } else {
            Err(EPERM)
        }
    }
}

/// What a segment costs besides its pages: itself, in tree nodes that may be half empty, and what
/// its memory is known by.
const SEGMENT: usize = 2 * core::mem::size_of::<Shm>() + 640;
/// What it takes to look at a segment: the work of copying so many bytes.
const LOOK: usize = 256;
/// Removed segments that the making of one looks at: more than one, so that they don't become more
/// and more.
const AT_ONCE: usize = 2;

struct Shm {
    key: i32,
    sequence: u16,
    owner: Owner,
    size: u64,
    creator: Pid,
    last: Pid,
    attached: u64,
    detached: u64,
    changed: u64,
    /// `None` once it is removed.
    segment: Option<Segment>,
    remnant: Remnant,
    /// The object's name in the VM system.
    object: u64,
    locked: Option<Locked>,
    /// Its pages for the user who has locked it, or is about to.
    counted: Weak<Count>,
    charge: Charge,
}

/// A segment as `IPC_STAT` and `/proc/sysvipc/shm` show it; times in seconds since 1970.
pub struct Info {
    pub id: i32,
    pub key: i32,
    pub sequence: u16,
    pub owner: Owner,
    pub size: u64,
    pub creator: Pid,
    pub last: Pid,
    pub attachments: u64,
    pub attached: u64,
    pub detached: u64,
    pub changed: u64,
    /// Pages in memory.
    pub resident: u64,
    /// Pages on swap and not in memory.
    pub swapped: u64,
}

/// What all segments come to.
#[derive(Default)]
pub struct SegmentStats {
    /// How many there are.
    pub count: u64,
    /// Pages that they may have.
    pub pages: u64,
    /// Pages in memory.
    pub resident: u64,
    /// Pages on swap and not in memory.
    pub swapped: u64,
}

/// The limits of `/proc/sys/kernel`.
#[derive(Clone, Copy)]
pub struct Limits {
    /// Bytes of a segment.
    pub max: u64,
    /// Pages of all segments.
    pub all: u64,
    /// Segments.
    pub segments: u64,
}

struct Table {
    slots: BTreeMap<usize, Shm>,
    /// Empty ones: with those in `slots` they are all from 0 to some number.
    free: BTreeSet<usize>,
    /// Slots of segments that have a key, by it.
    keys: BTreeMap<i32, usize>,
    /// Slots by the segments' objects.
    objects: BTreeMap<u64, usize>,
    /// Slots of removed segments: these may be gone.
    removed: BTreeSet<usize>,
    /// Where the next look at those begins.
    hand: usize,
    /// How many segments each user has, for users that have any.
    users: BTreeMap<u32, usize>,
    /// Pages that all may have.
    pages: u64,
    sequence: u16,
    limits: Limits,
}

static TABLE: SpinLock<Table> = SpinLock::new(Table {
    slots: BTreeMap::new(),
    free: BTreeSet::new(),
    keys: BTreeMap::new(),
    objects: BTreeMap::new(),
    removed: BTreeSet::new(),
    hand: 0,
    users: BTreeMap::new(),
    pages: 0,
    sequence: 0,
    limits: Limits { max: u64::MAX - (1 << 24), all: u64::MAX - (1 << 24), segments: 4096 },
});

/// What `shmget` is asked for.
pub struct Request {
    pub key: i32,
    pub size: u64,
    pub mode: u32,
    /// `IPC_CREAT` and `IPC_EXCL`.
    pub create: Create,
    /// It counts among the memory that is promised.
    pub is_promised: bool,
}

/// Whether a segment may be, must be or must not be there already.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Create {
    Never,
    IfAbsent,
    Always,
}

fn seconds() -> u64 {
    sched::wall() / 1_000_000_000
}

impl Shm {
    fn id(&self, slot: usize) -> i32 {
        (usize::from(self.sequence) * SLOTS + slot) as i32
    }

    fn is_removed(&self) -> bool {
        self.segment.is_none()
    }

    fn pages(&self) -> u64 {
        self.size.div_ceil(PAGE)
    }

    fn attachments(&self) -> u64 {
        let handle = u64::from(!self.is_removed());
        self.remnant.references().saturating_sub(handle)
    }

    /// Whether nothing is left of it but its place in the table.
    fn is_gone(&self) -> bool {
        self.is_removed() && self.attachments() == 0
    }

    fn info(&self, slot: usize) -> Info {
        let footprint = self.remnant.footprint();
        let mut owner = self.owner;
        owner.mode |= if self.is_removed() { MODE_DEST } else { 0 };
        owner.mode |= if self.locked.is_some() { MODE_LOCKED } else { 0 };
        Info {
            id: self.id(slot),
            key: self.key,
            sequence: self.sequence,
            owner,
            size: self.size,
            creator: self.creator,
            last: self.last,
            attachments: self.attachments(),
            attached: self.attached,
            detached: self.detached,
            changed: self.changed,
            resident: footprint.resident,
            swapped: footprint.swapped,
        }
    }
}

impl Table {
    /// Enters a segment in an empty slot. Returns its number.
    fn insert(&mut self, shm: Shm) -> i32 {
        let slot = self.free.pop_first().unwrap_or(self.slots.len());
        if shm.key != IPC_PRIVATE {
            self.keys.insert(shm.key, slot);
        }
        self.objects.insert(shm.object, slot);
        self.pages += shm.pages();
        *self.users.entry(shm.charge.uid()).or_default() += 1;
        let id = shm.id(slot);
        self.slots.insert(slot, shm);
        id
    }

    /// Empties a slot if its segment is gone, of which the rest is returned.
    #[must_use]
    fn sweep(&mut self, slot: usize) -> Option<Shm> {
        if !self.removed.contains(&slot) || !self.slots.get(&slot).is_some_and(Shm::is_gone) {
            return None;
        }
        let shm = self.slots.remove(&slot)?;
        self.removed.remove(&slot);
        self.objects.remove(&shm.object);
        self.pages -= shm.pages();
        let uid = shm.charge.uid();
        let count = self.users.entry(uid).or_default();
        *count -= 1;
        if *count == 0 {
            self.users.remove(&uid);
        }
        self.free.insert(slot);
        if self.slots.is_empty() {
            self.free.clear();
        }
        Some(shm)
    }

    fn find(&mut self, id: i32) -> Result<(usize, &mut Shm)> {
        let slot = usize::try_from(id).map_err(|_| EINVAL)? % SLOTS;
        let shm = self.slots.get_mut(&slot).filter(|shm| !shm.is_gone()).ok_or(EINVAL)?;
        if shm.id(slot) != id {
            return Err(EIDRM);
        }
        Ok((slot, shm))
    }

    /// The segment with the request's key, if it is there and suits; `None` if one is to be made.
    fn existing(&self, request: &Request, cred: &Cred) -> Result<Option<i32>> {
        let slot = self.keys.get(&request.key);
        let Some((slot, shm)) = slot.and_then(|slot| Some((*slot, self.slots.get(slot)?))) else {
            if request.key != IPC_PRIVATE && request.create == Create::Never {
                return Err(ENOENT);
            }
            return Ok(None);
        };
        if request.create == Create::Always {
            return Err(EEXIST);
        }
        if request.size > shm.size {
            return Err(EINVAL);
        }
        shm.owner.check(cred, request.mode)?;
        Ok(Some(shm.id(slot)))
    }

    fn check_room(&self, size: u64, uid: u32) -> Result<()> {
        let limits = self.limits;
        if size == 0 || size > limits.max {
            return Err(EINVAL);
        }
        let pages = self.pages.checked_add(size.div_ceil(PAGE)).ok_or(ENOSPC)?;
        let (most, taken) = (limits.segments.min(SLOTS as u64) as usize, self.slots.len());
        let count = |uid| self.users.get(&uid).copied().unwrap_or(0);
        let is_free =
            taken < most && share::may_take_place(uid, count(uid), taken - count(0), most);
        if pages > limits.all || !is_free {
            return Err(ENOSPC);
        }
        if size > LARGEST {
            return Err(ENOMEM);
        }
        Ok(())
    }
}

/// Looks at so many removed segments, each in its turn, and empties the slots of those that are
/// gone.
fn sweep(count: usize) {
    for _ in 0..count {
        let mut table = TABLE.lock();
        let next = table.removed.range(table.hand..).next().or_else(|| table.removed.first());
        let Some(&slot) = next else { return };
        table.hand = slot + 1;
        let gone = table.sweep(slot);
        drop(table);
        drop(gone);
        sched::work_done(LOOK);
    }
}

fn sweep_all() {
    let count = TABLE.lock().removed.len();
    sweep(count);
}

/// `shmget`: the number of a segment, which is made if need be.
pub fn get(request: &Request, cred: &Cred, pid: Pid) -> Result<i32> {
    if let Some(found) = TABLE.lock().existing(request, cred)? {
        return Ok(found);
    }
    sweep(AT_ONCE);
    let room = || {
        TABLE.lock().check_room(request.size, cred.uid)?;
        Charge::lasting(cred.uid, SEGMENT).map_err(|_| ENOSPC)
    };
    let charge = room().or_else(|_| {
        sweep_all();
        room()
    })?;
    let user = User::of(cred.uid);
    if !user.may_fill(request.size.div_ceil(PAGE)) {
        return Err(ENOSPC);
    }
    let may_all = cred.has(Caps::SYS_ADMIN);
    let asker = if may_all { commit::Asker::Admin } else { commit::Asker::Other };
    let promise = match request.is_promised {
        true => Some(commit::Shared::take(request.size, 0, asker)?),
        false => None,
    };
    let segment = Segment::new(request.size, user.memory(), promise)?;
    let (remnant, object) = (segment.remnant(), segment.id());
    let mut table = TABLE.lock();
    // Another call may have made it meanwhile; the lock goes before the segment that is one too
    // many.
    if let Some(found) = table.existing(request, cred)? {
        return Ok(found);
    }
    table.check_room(request.size, cred.uid)?;
    let sequence = table.sequence;
    table.sequence = (sequence + 1) % (i32::MAX as usize / SLOTS) as u16;
    Ok(table.insert(Shm {
        key: request.key,
        sequence,
        owner: Owner::new(cred, request.mode),
        size: request.size,
        creator: pid,
        last: 0,
        attached: 0,
        detached: 0,
        changed: seconds(),
        segment: Some(segment),
        remnant,
        object,
        locked: None,
        counted: Weak::new(),
        charge,
    }))
}

/// A segment to be mapped.
pub struct Attachment {
    pub segment: Segment,
    pub size: u64,
    pub key: i32,
}

/// `shmat`'s look-up: a handle on the memory, if the caller has the rights. The handle keeps it
/// until it is mapped.
pub fn attach(id: i32, wanted: u32, cred: &Cred) -> Result<Attachment> {
    let mut table = TABLE.lock();
    let (_, shm) = table.find(id)?;
    shm.owner.check(cred, wanted)?;
    let segment = shm.remnant.hold().ok_or(EIDRM)?;
    Ok(Attachment { segment, size: shm.size, key: shm.key })
}

/// Notes that a process has mapped a segment.
pub fn note_attached(id: i32, pid: Pid) {
    if let Ok((_, shm)) = TABLE.lock().find(id) {
        shm.attached = seconds();
        shm.last = pid;
    }
}

/// Notes that a process has unmapped the segment whose memory is this object.
pub fn note_detached(object: u64, pid: Pid) {
    let mut table = TABLE.lock();
    let Some(&slot) = table.objects.get(&object) else { return };
    if let Some(shm) = table.slots.get_mut(&slot) {
        shm.detached = seconds();
        shm.last = pid;
    }
    let gone = table.sweep(slot);
    drop(table);
    drop(gone);
}

/// The size of the segment whose memory is this object; `None` if it is none's.
pub fn size_of(object: u64) -> Option<u64> {
    let table = TABLE.lock();
    table.objects.get(&object).and_then(|slot| table.slots.get(slot)).map(|shm| shm.size)
}

/// `IPC_STAT`.
pub fn stat(id: i32, cred: &Cred) -> Result<Info> {
    const READ: u32 = 0o444;
    let mut table = TABLE.lock();
    let (slot, shm) = table.find(id)?;
    shm.owner.check(cred, READ)?;
    Ok(shm.info(slot))
}

/// `SHM_STAT` (with permission to read) and `SHM_STAT_ANY`: by place in the table.
pub fn stat_slot(slot: i32, cred: Option<&Cred>) -> Result<Info> {
    const READ: u32 = 0o444;
    let table = TABLE.lock();
    let slot = usize::try_from(slot).map_err(|_| EINVAL)?;
    let shm = table.slots.get(&slot).filter(|shm| !shm.is_gone()).ok_or(EINVAL)?;
    if let Some(cred) = cred {
        shm.owner.check(cred, READ)?;
    }
    Ok(shm.info(slot))
}

/// The first segment at or behind a place, and its place.
pub fn next(mut from: usize) -> Option<(usize, Info)> {
    loop {
        let table = TABLE.lock();
        let (&slot, shm) = table.slots.range(from..).next()?;
        if !shm.is_gone() {
            return Some((slot, shm.info(slot)));
        }
        from = slot + 1;
    }
}

/// How many segments there are, and the pages that they have in memory and on swap.
pub fn stats() -> SegmentStats {
    let (mut stats, mut from) = (SegmentStats::default(), 0);
    while let Some((slot, info)) = next(from) {
        stats.count += 1;
        stats.pages += info.size.div_ceil(PAGE);
        stats.resident += info.resident;
        stats.swapped += info.swapped;
        from = slot + 1;
        sched::work_done(LOOK);
    }
    stats
}

/// The highest place in use; 0 if none is.
pub fn highest() -> i32 {
    sweep_all();
    TABLE.lock().slots.last_key_value().map_or(0, |(&slot, _)| slot as i32)
}

/// `IPC_SET`.
pub fn set_owner(id: i32, cred: &Cred, uid: u32, gid: u32, mode: u32) -> Result<()> {
    let mut table = TABLE.lock();
    let (_, shm) = table.find(id)?;
    shm.owner.check_owner(cred)?;
    shm.owner = Owner { uid, gid, mode: mode & PERMISSIONS, ..shm.owner };
    shm.changed = seconds();
    Ok(())
}

/// `IPC_RMID`: the segment goes with its last attachment, or at once. A lock on it ends here.
pub fn remove(id: i32, cred: &Cred) -> Result<()> {
    let (slot, segment, locked) = {
        let mut table = TABLE.lock();
        let (slot, shm) = table.find(id)?;
        shm.owner.check_owner(cred)?;
        let key = core::mem::replace(&mut shm.key, IPC_PRIVATE);
        let taken = (slot, shm.segment.take(), shm.locked.take());
        table.keys.remove(&key);
        table.removed.insert(slot);
        taken
    };
    if let (Some(segment), Some(locked)) = (&segment, &locked) {
        segment.unlock(locked);
    }
    drop(segment);
    let gone = TABLE.lock().sweep(slot);
    drop(gone);
    Ok(())
}

/// `SHM_LOCK`. `limit` is how many bytes of segments an ordinary user may have locked.
pub fn lock(id: i32, cred: &Cred, limit: u64) -> Result<()> {
    let most = if cred.has(Caps::IPC_LOCK) { u64::MAX } else { limit };
    let user = User::of(cred.uid);
    let (segment, count) = {
        let mut table = TABLE.lock();
        let (_, shm) = table.find(id)?;
        shm.owner.check_lock(cred)?;
        if most == 0 {
            return Err(EPERM);
        }
        let Some(segment) = shm.segment.as_ref().filter(|_| shm.locked.is_none()) else {
            return Ok(());
        };
        // Threads that lock it at once count it once.
        let count = shm.counted.upgrade().map_or_else(
            || {
                let pages = shm.size.div_ceil(PAGE) as usize;
                Count::of(user, Counted::LockedPages, pages, (most / PAGE) as usize).map(Arc::new)
            },
            Ok,
        );
        let count = count.map_err(|_| ENOMEM)?;
        shm.counted = Arc::downgrade(&count);
        (segment.clone(), count)
    };
    let locked = segment.lock(cred.uid, count)?;
    let surplus = {
        let mut table = TABLE.lock();
        match table.find(id) {
            // Another thread may have locked or removed it meanwhile.
            Ok((_, shm)) if shm.locked.is_none() && !shm.is_removed() => {
                shm.locked = Some(locked);
                None
            }
            _ => Some(locked),
        }
    };
    if let Some(locked) = surplus {
        segment.unlock(&locked);
    }
    Ok(())
}

/// `SHM_UNLOCK`.
pub fn unlock(id: i32, cred: &Cred) -> Result<()> {
    let (segment, locked) = {
        let mut table = TABLE.lock();
        let (_, shm) = table.find(id)?;
        shm.owner.check_lock(cred)?;
        let Some(segment) = &shm.segment else { return Ok(()) };
        let Some(locked) = shm.locked.take() else { return Ok(()) };
        (segment.clone(), locked)
    };
    segment.unlock(&locked);
    Ok(())
}

pub fn limits() -> Limits {
    TABLE.lock().limits
}

/// Changes the limits; what is there already stays.
pub fn set_limits(change: impl FnOnce(&mut Limits)) {
    change(&mut TABLE.lock().limits);
}
