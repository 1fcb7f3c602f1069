//! System calls on System V shared memory: the structures that programs see, and how a segment is
//! mapped.

use super::mem;
use super::{calls, Calls};
use crate::arch::layout::USER_END;
use crate::errno::{Result, EEXIST, EINVAL, ENOMEM};
use crate::ipc::shm::{self, Create, Info, Owner};
use crate::proc::current_process;
use crate::proc::growth::Promise;
use crate::proc::limits::RLIMIT_MEMLOCK;
use crate::sched;
use crate::user;
use crate::vm::{self, commit, Backing, ChargedName, MapArgs, Place, Prot, Sharing};

pub const CALLS: Calls = calls! {
    __NR_shmget => shmget[3],
    __NR_shmat => shmat[3],
    __NR_shmdt => shmdt[1],
    __NR_shmctl => shmctl[3],
};

const PAGE: u64 = 4096;
const IPC_CREAT: u32 = 0o1000;
const IPC_EXCL: u32 = 0o2000;
const SHM_HUGETLB: u32 = 0o4000;
const SHM_NORESERVE: u32 = 0o10000;
const SHM_RDONLY: u32 = 0o10000;
const SHM_RND: u32 = 0o20000;
const SHM_REMAP: u32 = 0o40000;
const SHM_EXEC: u32 = 0o100000;

const IPC_RMID: u32 = 0;
const IPC_SET: u32 = 1;
const IPC_STAT: u32 = 2;
const IPC_INFO: u32 = 3;
const SHM_LOCK: u32 = 11;
const SHM_UNLOCK: u32 = 12;
const SHM_STAT: u32 = 13;
const SHM_INFO: u32 = 14;
const SHM_STAT_ANY: u32 = 15;
/// A flag of old programs that changes nothing on this machine.
const IPC_64: u32 = 0x100;

fn shmget(key: i32, size: u64, flags: u32) -> Result<i32> {
    let create = match (flags & IPC_CREAT != 0, flags & IPC_EXCL != 0) {
        (false, _) => Create::Never,
        (true, false) => Create::IfAbsent,
        (true, true) => Create::Always,
    };
    if flags & SHM_HUGETLB != 0 && (key == shm::IPC_PRIVATE || create != Create::Never) {
        // There are no huge pages to take.
        return Err(ENOMEM);
    }
    let process = current_process();
    let is_promised = flags & SHM_NORESERVE == 0 || commit::is_strict();
    let request = shm::Request { key, size, mode: flags & 0o777, create, is_promised };
    shm::get(&request, &process.cred(), process.pid)
}

/// Where `shmat` is asked to put a segment: the rules for alignment and replacement.
fn place(addr: u64, len: u64, flags: u32) -> Result<(u64, Place)> {
    let remap = flags & SHM_REMAP != 0;
    if addr == 0 {
        return if remap { Err(EINVAL) } else { Ok((0, Place::Anywhere)) };
    }
    let at = if flags & SHM_RND != 0 { addr & !(PAGE - 1) } else { addr };
    if !at.is_multiple_of(PAGE) || (at == 0 && remap) {
        return Err(EINVAL);
    }
    mem::check_low(at)?;
    let end = at.checked_add(len).ok_or(EINVAL)?;
    if end > USER_END {
        return Err(if remap { ENOMEM } else { EINVAL });
    }
    Ok((at, if remap { Place::Fixed } else { Place::FixedNoReplace }))
}

fn shmat(id: i32, addr: u64, flags: u32) -> Result<u64> {
    const READ: u32 = 0o444;
    const WRITE: u32 = 0o222;
    const EXECUTE: u32 = 0o111;
    if id < 0 {
        return Err(EINVAL);
    }
    let (mut prot, mut wanted) = (Prot::READ_WRITE, READ | WRITE);
    if flags & SHM_RDONLY != 0 {
        (prot, wanted) = (Prot::READ, READ);
    }
    if flags & SHM_EXEC != 0 {
        prot |= Prot::EXECUTE;
        wanted |= EXECUTE;
    }
    let process = current_process();
    // The alignment is looked at first, the segment next, and only then whether it fits where it
    // shall go.
    place(addr, 0, flags)?;
    let found = shm::attach(id, wanted, &process.cred())?;
    let len = found.size.next_multiple_of(PAGE);
    let (addr, place) = place(addr, len, flags)?;
    if place != Place::Anywhere {
        mem::check_low(addr)?;
    }
    let name = alloc::format!("/SYSV{:08x} (deleted)", found.key);
    let name = ChargedName::new(name, (0, id as u64))?;
    let max_prot = if flags & SHM_RDONLY != 0 { Prot::all().without_write() } else { Prot::all() };
    let args = MapArgs {
        addr,
        len,
        prot,
        max_prot,
        sharing: Sharing::Shared,
        place,
        backing: Backing::Segment(found.segment),
        name: Some(name),
        ..MapArgs::default()
    };
    let at = mem::map_new(&args, None, Promise::None).map_err(|errno| {
        if errno == EEXIST {
            EINVAL
        } else {
            errno
        }
    })?;
    shm::note_attached(id, process.pid);
    Ok(at)
}

/// Unmaps what is left of the attachment that started at `addr`: every mapping of the segment that
/// lies where that attachment put it. The first such mapping at or behind `addr` says which segment
/// it is.
fn shmdt(addr: u64) -> Result<()> {
    if !addr.is_multiple_of(PAGE) {
        return Err(EINVAL);
    }
    let mm = mem::current_mm()?;
    // The segment's object, and where the attachment ends. It starts at `addr`, unless its first
    // pages have been unmapped.
    let mut found = None;
    let mut at = addr;
    while at < found.map_or(USER_END, |(_, end)| end) {
        let mut part = None;
        let next = vm::line(&mm.space, at, &mut |line| {
            if line.start < addr || line.start - addr != line.offset {
                return;
            }
            let end_of = |size: u64| (line.object, addr + size.next_multiple_of(PAGE));
            found = found.or_else(|| shm::size_of(line.object).map(end_of));
            part = found
                .filter(|&(object, end)| line.object == object && line.start < end)
                .map(|_| (line.start, line.end - line.start));
        });
        let Some(next) = next else { break };
        if let Some((start, len)) = part {
            vm::unmap(&mm.space, start, len)?;
        }
        sched::work_done(PAGE as usize);
        at = next;
    }
    let (object, _) = found.ok_or(EINVAL)?;
    shm::note_detached(object, current_process().pid);
    Ok(())
}

/// `struct ipc64_perm` and `struct shmid64_ds`.
#[derive(Clone, Copy, Default, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
#[repr(C)]
struct Ds {
    key: i32,
    uid: u32,
    gid: u32,
    creator_uid: u32,
    creator_gid: u32,
    mode: u32,
    sequence: u16,
    pad: u16,
    pad2: u32,
    unused: [u64; 2],
    size: u64,
    attached: u64,
    detached: u64,
    changed: u64,
    creator: i32,
    last: i32,
    attachments: u64,
    unused2: [u64; 2],
}

impl Ds {
    fn of(info: &Info) -> Ds {
        let Owner { uid, gid, creator_uid, creator_gid, mode } = info.owner;
        Ds {
            key: info.key,
            uid,
            gid,
            creator_uid,
            creator_gid,
            mode,
            sequence: info.sequence,
            size: info.size,
            attached: info.attached,
            detached: info.detached,
            changed: info.changed,
            creator: info.creator,
            last: info.last,
            attachments: info.attachments,
            ..Ds::default()
        }
    }
}

/// `IPC_INFO`: `struct shminfo64`.
fn limits(at: u64) -> Result<i32> {
    let limits = shm::limits();
    let words = [limits.max, 1, limits.segments, limits.segments, limits.all, 0, 0, 0, 0];
    user::put(at, &words)?;
    Ok(shm::highest())
}

/// `SHM_INFO`: `struct shm_info`.
fn usage(at: u64) -> Result<i32> {
    let stats = shm::stats();
    let words = [stats.count, stats.pages, stats.resident, stats.swapped, 0, 0];
    user::put(at, &words)?;
    Ok(shm::highest())
}

fn shmctl(id: i32, command: u32, at: u64) -> Result<i32> {
    let process = current_process();
    let cred = process.cred();
    let command = command & !IPC_64;
    if id < 0 {
        return Err(EINVAL);
    }
    match command {
        IPC_INFO => limits(at),
        SHM_INFO => usage(at),
        IPC_STAT => user::put(at, &Ds::of(&shm::stat(id, &cred)?)).map(|()| 0),
        SHM_STAT | SHM_STAT_ANY => {
            let info = shm::stat_slot(id, (command == SHM_STAT).then_some(&*cred))?;
            user::put(at, &Ds::of(&info))?;
            Ok(info.id)
        }
        IPC_SET => {
            let new: Ds = user::get(at)?;
            shm::set_owner(id, &cred, new.uid, new.gid, new.mode).map(|()| 0)
        }
        IPC_RMID => shm::remove(id, &cred).map(|()| 0),
        SHM_LOCK => shm::lock(id, &cred, process.limit(RLIMIT_MEMLOCK)).map(|()| 0),
        SHM_UNLOCK => shm::unlock(id, &cred).map(|()| 0),
        _ => Err(EINVAL),
    }
}
