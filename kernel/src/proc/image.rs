//! Laying a program out in a new address space.
//!
//! ```text
//!   0x0000_0000_0040_0000  a program with fixed addresses
//!   0x0000_5555_5555_4000  one without                          } then its heap
//!            ...           mappings
//!   0x0000_7fff_f7fd_5000  the interpreter, at the top of what mappings have
//!   0x0000_7fff_ffff_f000  the stack, which grows
//! ```
//!
//! [`map`] maps segments and stack and touches no user memory. [`clear_tails`] and [`write_stack`]
//! do, in the new space, which the caller has entered by then.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::elf::{Image, Placement, Right, Rights, Segment, StackRights};
use super::exec::Strings;
use crate::arch::abi;
use crate::arch::layout::MAP_LOWEST;
use crate::arch::layout::USER_END;
use crate::cred::Cred;
use crate::errno::{Result, E2BIG, ENOMEM};
use crate::fs::file::{File, MapAccess};
use crate::mem::fault;
use crate::vm::{self, Backing, MapArgs, Name, Place, Populate, Prot, Sharing, Space};
use crate::{sched, user};
use linux_raw_sys::auxvec;

const PAGE: u64 = 4096;
/// Where position independent programs go.
const PROGRAM_BASE: u64 = 0x5555_5555_4000;
/// The highest stack address. A page below the end, since nothing should lie next to the hole.
const STACK_TOP: u64 = USER_END;
/// What is mapped of the stack at first, as on Linux.
const STACK_FIRST: u64 = 132 << 10;
/// Bounds of the room for arguments and environment, whatever the stack's limit says.
const STACK_MIN: u64 = 128 << 10;
const STACK_MAX: u64 = 64 << 20;
/// Bounds of the room that is left for the stack to grow, whatever its limit says.
const ROOM_MIN: u64 = 128 << 20;
const ROOM_MAX: u64 = 64 << 30;
/// Bytes of the stack that are written at once.
const PART: usize = 1 << 16;
/// What looking at a string is, in bytes that are copied meanwhile.
pub const WORK: usize = 64;
/// Entries of the auxiliary vector.
const AUXV: usize = 20;

const PLATFORM: &[u8] = abi::MACHINE.as_bytes();

/// Where everything went.
#[derive(Clone, Copy)]
pub struct Loaded {
    /// Where the thread starts: in the interpreter, if there is one.
    pub entry: u64,
    program_entry: u64,
    headers: u64,
    header_count: u64,
    interpreter_base: u64,
    program_bias: u64,
    pub heap: u64,
    pub stack_top: u64,
    stack_room: u64,
}

/// A file and what was found in it.
type Part<'a> = (&'a File, &'a Image);

/// Maps a program, its interpreter and its stack into an empty space.
pub fn map(
    space: &Space,
    program: Part<'_>,
    interpreter: Option<Part<'_>>,
    stack_limit: u64,
) -> Result<Loaded> {
    let image = program.1;
    let bias = match image.placement {
        Placement::Fixed => 0,
        Placement::Anywhere => PROGRAM_BASE - image.span().0,
    };
    map_segments(space, program, bias)?;
    let program_entry = image.entry.wrapping_add(bias);
    let mut entry = program_entry;
    let mut interpreter_base = 0;
    let growth_room = stack_limit.clamp(ROOM_MIN, ROOM_MAX) & !(PAGE - 1);
    if let Some((file, image)) = interpreter {
        let (first, end) = image.span();
        let base = (STACK_TOP - growth_room).checked_sub(end - first).ok_or(ENOMEM)?;
        interpreter_base = base.wrapping_sub(first);
        map_segments(space, (file, image), interpreter_base)?;
        entry = image.entry.wrapping_add(interpreter_base);
    }
    let stack_room = stack_limit.clamp(STACK_MIN, STACK_MAX) & !(PAGE - 1);
    let executable = image.stack == StackRights::Executable;
    let prot = if executable { Prot::READ_WRITE | Prot::EXECUTE } else { Prot::READ_WRITE };
    vm::stack(space, STACK_TOP, STACK_FIRST, growth_room, prot)?;
    Ok(Loaded {
        entry,
        program_entry,
        headers: if image.headers_va == 0 { 0 } else { image.headers_va.wrapping_add(bias) },
        header_count: image.headers,
        interpreter_base,
        program_bias: bias,
        heap: image.span().1.wrapping_add(bias),
        stack_top: STACK_TOP,
        stack_room,
    })
}

fn prot_of(rights: Rights) -> Prot {
    let one = |right, prot| if right == Right::Yes { prot } else { Prot::NONE };
    one(rights.read, Prot::READ)
        | one(rights.write, Prot::WRITE)
        | one(rights.execute, Prot::EXECUTE)
}

fn map_segments(space: &Space, (file, image): Part<'_>, bias: u64) -> Result<()> {
    let object = file.mmap_object(MapAccess::Private)?;
    let name = file.mapping_name()?;
    for segment in &image.segments {
        let va = segment.va.wrapping_add(bias);
        let start = va & !(PAGE - 1);
        let file_end = if segment.file_len == 0 {
            start
        } else {
            (va + segment.file_len).next_multiple_of(PAGE)
        };
        let end = (va + segment.mem_len).next_multiple_of(PAGE);
        let prot = prot_of(segment.rights);
        if file_end > start {
            let offset = segment.offset & !(PAGE - 1);
            let backing = Backing::Object { object: object.clone(), offset };
            place(space, start, file_end, prot, backing, Some(name.clone()))?;
        }
        if end > file_end {
            place(space, file_end, end, prot, Backing::Anon, None)?;
        }
    }
    Ok(())
}

fn place(
    space: &Space,
    start: u64,
    end: u64,
    prot: Prot,
    backing: Backing,
    name: Option<Arc<dyn Name>>,
) -> Result<()> {
    if start < MAP_LOWEST {
        return Err(ENOMEM);
    }
    let args = MapArgs {
        addr: start,
        len: end - start,
        prot,
        max_prot: Prot::all(),
        sharing: Sharing::Private,
        place: Place::Fixed,
        backing,
        populate: Populate::OnTouch,
        locked: false,
        name,
    };
    vm::map(space, &args).map(|_| ())
}

/// Zeroes what a segment's last page holds of the file beyond the segment.
pub fn clear_tails(program: &Image, interpreter: Option<&Image>, loaded: &Loaded) -> Result<()> {
    let clear = |segment: &Segment, bias: u64| {
        let end = segment.va.wrapping_add(bias) + segment.file_len;
        let page_end = end.next_multiple_of(PAGE);
        let has_tail = segment.mem_len > segment.file_len && segment.file_len > 0 && page_end > end;
        if has_tail && segment.rights.write == Right::Yes {
            user::zero_out(end, (page_end - end) as usize)
        } else {
            Ok(())
        }
    };
    program.segments.iter().try_for_each(|segment| clear(segment, loaded.program_bias))?;
    let Some(interpreter) = interpreter else { return Ok(()) };
    interpreter.segments.iter().try_for_each(|segment| clear(segment, loaded.interpreter_base))
}

/// What a program finds on its stack.
pub struct Startup<'a> {
    /// The path it was started as.
    pub path: &'a [u8],
    pub argv: &'a Strings,
    pub envp: &'a Strings,
    pub cred: &'a Cred,
    /// The credentials that the program before had.
    pub before: &'a Cred,
}

/// What was written on a program's first stack.
pub struct Written {
    pub sp: u64,
    /// Where the strings are.
    pub arguments: (u64, u64),
    pub environment: (u64, u64),
    pub auxv: Arc<[u8]>,
}

/// Where the program's own code and data are: the segments that may be executed, and those that may
/// be written.
pub fn extents(image: &Image, loaded: &Loaded) -> ((u64, u64), (u64, u64)) {
    let bias = loaded.program_bias;
    let extent = |wanted: fn(&Rights) -> Right, length: fn(&Segment) -> u64| {
        let segments = image.segments.iter().filter(|one| wanted(&one.rights) == Right::Yes);
        let range =
            |one: &Segment| (one.va.wrapping_add(bias), one.va.wrapping_add(bias) + length(one));
        let join =
            |(first, end): (u64, u64), (start, stop): (u64, u64)| (first.min(start), end.max(stop));
        segments.map(range).reduce(join).unwrap_or_default()
    };
    let code = extent(|rights| rights.execute, |segment| segment.file_len);
    (code, extent(|rights| rights.write, |segment| segment.file_len))
}

/// Writes the first stack: counts, pointers, auxiliary vector, strings.
pub fn write_stack(loaded: &Loaded, startup: &Startup<'_>) -> Result<Written> {
    let mut random = [0; 16];
    crate::fs::random::fill(&mut random);
    let strings = startup.argv.bytes.len()
        + startup.envp.bytes.len()
        + startup.path.len()
        + 1
        + PLATFORM.len()
        + 1
        + random.len();
    // From the top: eight zero bytes, path, environment, arguments, platform, random.
    let strings_at = (loaded.stack_top - 8 - strings as u64) & !7;
    let argv_at = strings_at + (PLATFORM.len() + 1 + random.len()) as u64;
    let envp_at = argv_at + startup.argv.bytes.len() as u64;
    let path_at = envp_at + startup.envp.bytes.len() as u64;
    let random_at = strings_at + PLATFORM.len() as u64 + 1;
    let vector = auxiliary(loaded, startup, [strings_at, random_at, path_at]);
    let words = 1 + startup.argv.count + 1 + startup.envp.count + 1 + vector.len() * 2;
    let sp = strings_at.checked_sub(8 * words as u64).ok_or(E2BIG)? & !15;
    let total = (loaded.stack_top - sp) as usize;
    if total as u64 > loaded.stack_room - PAGE {
        return Err(E2BIG);
    }
    let mut image: Vec<u8> = Vec::new();
    fault::attempt(|| image.try_reserve_exact(total)).map_err(|_| ENOMEM)?;
    let mut auxv = [0; 16 * AUXV];
    for (entry, (key, value)) in auxv.chunks_exact_mut(16).zip(vector) {
        entry[..8].copy_from_slice(&u64::from(key).to_le_bytes());
        entry[8..].copy_from_slice(&value.to_le_bytes());
    }
    let mut word = |value: u64| image.extend_from_slice(&value.to_le_bytes());
    word(startup.argv.count as u64);
    pointers(startup.argv, argv_at, &mut word);
    pointers(startup.envp, envp_at, &mut word);
    image.extend_from_slice(&auxv);
    image.resize((strings_at - sp) as usize, 0);
    for part in
        [PLATFORM, &[0], &random, &startup.argv.bytes, &startup.envp.bytes, startup.path, &[0]]
    {
        image.extend_from_slice(part);
    }
    sched::give_way();
    for (at, part) in (sp..).step_by(PART).zip(image.chunks(PART)) {
        user::copy_out(at, part)?;
        sched::work_done(part.len());
    }
    let arguments = (argv_at, argv_at + startup.argv.bytes.len() as u64);
    let environment = (envp_at, envp_at + startup.envp.bytes.len() as u64);
    Ok(Written { sp, arguments, environment, auxv: Arc::from(auxv) })
}

/// Hands out the address of each string, which start at `at`, and a null at the end.
fn pointers(strings: &Strings, mut at: u64, word: &mut impl FnMut(u64)) {
    let mut rest: &[u8] = &strings.bytes;
    for _ in 0..strings.count {
        word(at);
        let length = rest.iter().position(|&byte| byte == 0).map_or(rest.len(), |end| end + 1);
        at += length as u64;
        rest = &rest[length..];
        sched::work_done(length + WORK);
    }
    word(0);
}

/// The auxiliary vector; the addresses are those of the platform's name, the random bytes and the
/// path.
fn auxiliary(
    loaded: &Loaded,
    startup: &Startup<'_>,
    [platform, random, path]: [u64; 3],
) -> [(u32, u64); AUXV] {
    let cred = startup.cred;
    [
        (auxvec::AT_HWCAP, u64::from(crate::arch::cpu::features())),
        (auxvec::AT_PAGESZ, PAGE),
        (auxvec::AT_CLKTCK, crate::time::CLOCK_TICKS),
        (auxvec::AT_PHDR, loaded.headers),
        (auxvec::AT_PHENT, 56),
        (auxvec::AT_PHNUM, loaded.header_count),
        (auxvec::AT_BASE, loaded.interpreter_base),
        (auxvec::AT_FLAGS, 0),
        (auxvec::AT_ENTRY, loaded.program_entry),
        (auxvec::AT_UID, u64::from(cred.uid)),
        (auxvec::AT_EUID, u64::from(cred.euid)),
        (auxvec::AT_GID, u64::from(cred.gid)),
        (auxvec::AT_EGID, u64::from(cred.egid)),
        (auxvec::AT_SECURE, u64::from(startup.before.has_other_ids())),
        (auxvec::AT_RANDOM, random),
        (auxvec::AT_HWCAP2, 0),
        (auxvec::AT_EXECFN, path),
        (auxvec::AT_PLATFORM, platform),
        (auxvec::AT_MINSIGSTKSZ, super::signal::frame::min_stack()),
        (auxvec::AT_NULL, 0),
    ]
}
