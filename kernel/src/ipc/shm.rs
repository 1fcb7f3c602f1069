//! System V shared memory: segments by key and number.
//!
//! ```text
//!   TABLE  slot -> Shm { key, owner, mode, times,
//!                     segment: a handle, until it is removed
//!                     remnant: finds it as long as somebody has it attached }
//! ```
//! The VM system counts attachments: a mapping is a reference of the segment's object, whether it came by `shmat`,
//! by fork or by a split, and however it goes. So nothing here is told of exit, exec or unmapping, and the memory of
//! a removed segment is freed with its last mapping; its slot is found empty and reused later.
//!
//! I1: a slot's number is its index plus its sequence times `SLOTS`, so a reused slot has a new number.
//! I2: a removed segment has no key. I3: handles on memory are let go with `TABLE` unlocked.
//! Locks: `TABLE`, a leaf but for the VM system's object locks.
//!
//! Not as on Linux: the time and process of a detachment are those of the last `shmdt`; ends of processes leave them.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use crate::charge::{Charge, Count, Counted, User};
use crate::errno::*;
use crate::mem::fault;
use crate::proc::caps::Caps;
use crate::proc::cred::Cred;
use crate::proc::Pid;
use crate::sync::SpinLock;
use crate::vm::{Locked, Remnant, Segment};

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

/// Who owns a segment and who may use it.
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

/// What a segment costs besides its pages: itself and what its memory is known by.
const SEGMENT: usize = core::mem::size_of::<Shm>() + 512;

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
    _charge: Charge,
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
pub struct Sums {
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
    slots: Vec<Option<Shm>>,
    sequence: u16,
    limits: Limits,
}

static TABLE: SpinLock<Table> = SpinLock::new(Table {
    slots: Vec::new(),
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
}

/// Whether a segment may be, must be or must not be there already.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Create {
    Never,
    IfAbsent,
    Always,
}

fn seconds() -> u64 {
    crate::sched::wall() / 1_000_000_000
}

impl Shm {
    fn id(&self, slot: usize) -> i32 {
        (usize::from(self.sequence) * SLOTS + slot) as i32
    }

    fn is_removed(&self) -> bool {
        self.segment.is_none()
    }

    fn attachments(&self) -> u64 {
        let handle = u64::from(!self.is_removed());
        self.remnant.footprint().references.saturating_sub(handle)
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
    /// Empties the slots of segments that are gone.
    fn sweep(&mut self) {
        for slot in &mut self.slots {
            if slot.as_ref().is_some_and(Shm::is_gone) {
                *slot = None;
            }
        }
        if self.slots.iter().all(Option::is_none) {
            self.slots = Vec::new();
        }
    }

    fn slot_of(&self, id: i32) -> Result<usize> {
        let slot = usize::try_from(id).map_err(|_| EINVAL)? % SLOTS;
        let found = self.slots.get(slot).and_then(Option::as_ref).filter(|shm| !shm.is_gone());
        match found {
            Some(shm) if shm.id(slot) == id => Ok(slot),
            Some(_) => Err(EIDRM),
            None => Err(EINVAL),
        }
    }

    fn find(&mut self, id: i32) -> Result<(usize, &mut Shm)> {
        let slot = self.slot_of(id)?;
        let shm = self.slots[slot].as_mut().ok_or(EINVAL)?;
        Ok((slot, shm))
    }

    fn with_key(&self, key: i32) -> Option<(usize, &Shm)> {
        let used = self.slots.iter().enumerate().filter_map(|(slot, shm)| Some((slot, shm.as_ref()?)));
        used.into_iter().find(|(_, shm)| shm.key == key && !shm.is_removed())
    }

    fn pages(&self) -> u64 {
        self.slots.iter().flatten().map(|shm| shm.size.div_ceil(PAGE)).sum()
    }

    fn count(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// The segment with the request's key, if it is there and suits; `None` if one is to be made, for which there is room.
    fn existing(&mut self, request: &Request, cred: &Cred) -> Result<Option<i32>> {
        let shared = request.key != IPC_PRIVATE;
        let Some((slot, shm)) = shared.then(|| self.with_key(request.key)).flatten() else {
            if shared && request.create == Create::Never {
                return Err(ENOENT);
            }
            return self.check_room(request.size).map(|()| None);
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

    fn check_room(&mut self, size: u64) -> Result<()> {
        self.sweep();
        let limits = self.limits;
        if size == 0 || size > limits.max {
            return Err(EINVAL);
        }
        let pages = self.pages().checked_add(size.div_ceil(PAGE)).ok_or(ENOSPC)?;
        if pages > limits.all || self.count() as u64 >= limits.segments.min(SLOTS as u64) {
            return Err(ENOSPC);
        }
        if size > LARGEST {
            return Err(ENOMEM);
        }
        Ok(())
    }
}

/// `shmget`: the number of a segment, which is made if need be.
pub fn get(request: &Request, cred: &Cred, pid: Pid) -> Result<i32> {
    if let Some(found) = TABLE.lock().existing(request, cred)? {
        return Ok(found);
    }
    let charge = Charge::lasting(cred.uid, SEGMENT).map_err(|_| ENOSPC)?;
    let user = User::of(cred.uid);
    if !user.may_fill(request.size.div_ceil(PAGE)) {
        return Err(ENOSPC);
    }
    let segment = Segment::new(request.size, user.memory())?;
    let (remnant, object) = (segment.remnant(), segment.id());
    let mut table = TABLE.lock();
    // Another call may have made it meanwhile; the lock goes before the segment that is one too many.
    if let Some(found) = table.existing(request, cred)? {
        return Ok(found);
    }
    let free = table.slots.iter().position(Option::is_none);
    let slot = match free {
        Some(slot) => slot,
        None => {
            fault::attempt(|| table.slots.try_reserve(1)).map_err(|_| ENOMEM)?;
            table.slots.push(None);
            table.slots.len() - 1
        }
    };
    let sequence = table.sequence;
    table.sequence = (sequence + 1) % (i32::MAX as usize / SLOTS) as u16;
    let shm = Shm {
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
        _charge: charge,
    };
    let id = shm.id(slot);
    table.slots[slot] = Some(shm);
    Ok(id)
}

/// A segment to be mapped.
pub struct Attachment {
    pub segment: Segment,
    pub size: u64,
    pub key: i32,
}

/// `shmat`'s look-up: a handle on the memory, if the caller has the rights. The handle keeps it until it is mapped.
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
    if let Some(shm) = table.slots.iter_mut().flatten().find(|shm| shm.object == object) {
        shm.detached = seconds();
        shm.last = pid;
    }
    table.sweep();
}

/// The size of the segment whose memory is this object; `None` if it is none's.
pub fn size_of(object: u64) -> Option<u64> {
    TABLE.lock().slots.iter().flatten().find(|shm| shm.object == object).map(|shm| shm.size)
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
    let mut table = TABLE.lock();
    table.sweep();
    let slot = usize::try_from(slot).map_err(|_| EINVAL)?;
    let shm = table.slots.get(slot).and_then(Option::as_ref).ok_or(EINVAL)?;
    if let Some(cred) = cred {
        shm.owner.check(cred, READ)?;
    }
    Ok(shm.info(slot))
}

/// The first segment at or behind a place, and its place.
pub fn next(from: usize) -> Option<(usize, Info)> {
    let table = TABLE.lock();
    let mut used = table.slots.iter().enumerate().skip(from);
    used.find_map(|(slot, shm)| {
        let shm = shm.as_ref().filter(|shm| !shm.is_gone())?;
        Some((slot, shm.info(slot)))
    })
}

/// How many segments there are, and the pages that they have in memory and on swap.
pub fn sums() -> Sums {
    let mut table = TABLE.lock();
    table.sweep();
    let mut sums = Sums { count: table.count() as u64, pages: table.pages(), resident: 0, swapped: 0 };
    for shm in table.slots.iter().flatten() {
        let footprint = shm.remnant.footprint();
        sums.resident += footprint.resident;
        sums.swapped += footprint.swapped;
    }
    sums
}

/// The highest place in use; 0 if none is.
pub fn highest() -> i32 {
    let mut table = TABLE.lock();
    table.sweep();
    table.slots.iter().rposition(Option::is_some).unwrap_or(0) as i32
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
    let (segment, locked) = {
        let mut table = TABLE.lock();
        let (_, shm) = table.find(id)?;
        shm.owner.check_owner(cred)?;
        shm.key = IPC_PRIVATE;
        (shm.segment.take(), shm.locked.take())
    };
    if let (Some(segment), Some(locked)) = (&segment, &locked) {
        segment.unlock(locked);
    }
    drop(segment);
    TABLE.lock().sweep();
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
        let Some(segment) = shm.segment.as_ref().filter(|_| shm.locked.is_none()) else { return Ok(()) };
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
