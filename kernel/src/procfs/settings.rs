//! The files of `/proc/sys` that change something when they are written, and how what is written is
//! read.

use alloc::format;
use alloc::string::String;
use core::str::FromStr;
use core::sync::atomic::Ordering::Relaxed;

use super::Setting;
use crate::chain::zero_copy::{self, Threshold};
use crate::errno::*;
use crate::fs::{self, file, lease, pipe};
use crate::ipc::shm;
use crate::mem::heap;
use crate::proc::uts::{self, HostName, NAME_MAX};
use crate::proc::{limits, mm, table};
use crate::sched;
use crate::vm::{self, commit, Class};

/// Bytes of the longest setting.
pub(super) const LONGEST: usize = 128;

/// What a program has written. Fails with `EINVAL` if it is longer than any setting, or no text.
pub(super) fn text(written: &[u8]) -> Result<&str> {
    match core::str::from_utf8(written) {
        Ok(text) if text.len() <= LONGEST => Ok(text),
        _ => Err(EINVAL),
    }
}

/// A number as a program writes it.
pub(super) fn number<N: FromStr>(text: &str) -> Result<N> {
    text.trim().parse().map_err(|_| EINVAL)
}

/// A name: the first line, as far as there is room.
fn show_name(name: &HostName) -> String {
    let (bytes, length) = name.get();
    format!("{}\n", String::from_utf8_lossy(&bytes[..length]))
}

fn set_name(name: &HostName, text: &str) -> Result<()> {
    let line = text.split('\n').next().unwrap_or_default().as_bytes();
    name.set(&line[..line.len().min(NAME_MAX)])
}

pub(super) static HOST_NAME: Setting =
    Setting { show: || show_name(&uts::HOST), set: |text| set_name(&uts::HOST, text) };

pub(super) static DOMAIN_NAME: Setting =
    Setting { show: || show_name(&uts::DOMAIN), set: |text| set_name(&uts::DOMAIN, text) };

/// Below which number processes and threads are.
pub(super) static NUMBERS: Setting = Setting {
    show: || format!("{}\n", table::numbers()),
    set: |text| table::set_numbers(number(text)?),
};

pub(super) static SHMMAX: Setting = Setting {
    show: || format!("{}\n", shm::limits().max),
    set: |text| number(text).map(|max| shm::set_limits(|limits| limits.max = max)),
};

pub(super) static SHMALL: Setting = Setting {
    show: || format!("{}\n", shm::limits().all),
    set: |text| number(text).map(|all| shm::set_limits(|limits| limits.all = all)),
};

/// Bytes from which on a read takes pages in place of copies.
pub(super) static RECEIVE: Setting = Setting {
    show: || show_threshold(&zero_copy::RECEIVE),
    set: |text| set_threshold(&zero_copy::RECEIVE, text),
};

/// Bytes from which on a write to a pipe loans whole pages.
pub(super) static PIPE_LOAN: Setting = Setting {
    show: || show_threshold(&zero_copy::PIPE_LOAN),
    set: |text| set_threshold(&zero_copy::PIPE_LOAN, text),
};

/// Bytes from which on a write to a socket loans whole pages.
pub(super) static LOAN: Setting = Setting {
    show: || show_threshold(&zero_copy::LOAN),
    set: |text| set_threshold(&zero_copy::LOAN, text),
};

/// Bytes, or `never`.
fn show_threshold(threshold: &Threshold) -> String {
    match threshold.from.load(Relaxed) {
        usize::MAX => String::from("never\n"),
        from => format!("{from}\n"),
    }
}

/// Takes bytes, `never` or `default`.
fn set_threshold(threshold: &Threshold, text: &str) -> Result<()> {
    let from = match text.trim() {
        "never" => usize::MAX,
        "default" => threshold.usual,
        bytes => number(bytes)?,
    };
    threshold.from.store(from, Relaxed);
    Ok(())
}

pub(super) static SHMMNI: Setting = Setting {
    show: || format!("{}\n", shm::limits().segments),
    set: |text| match number(text)? {
        segments @ 0..=32768 => {
            shm::set_limits(|limits| limits.segments = segments);
            Ok(())
        }
        _ => Err(EINVAL),
    },
};

/// How much memory is promised: by a guess, always, or never more than there is.
pub(super) static OVERCOMMIT: Setting = Setting {
    show: || format!("{}\n", commit::mode()),
    set: |text| mm::set_overcommit(number(text)?),
};

/// Of the limit for the last of these: percent of memory; none if the next one was set.
pub(super) static OVERCOMMIT_RATIO: Setting = Setting {
    show: || format!("{}\n", commit::RATIO.load(Relaxed)),
    set: |text| {
        commit::RATIO.store(number::<u32>(text)?.into(), Relaxed);
        commit::KBYTES.store(0, Relaxed);
        Ok(())
    },
};

/// In place of that: KiB.
pub(super) static OVERCOMMIT_KBYTES: Setting = Setting {
    show: || format!("{}\n", commit::KBYTES.load(Relaxed)),
    set: |text| {
        commit::KBYTES.store(number(text)?, Relaxed);
        commit::RATIO.store(0, Relaxed);
        Ok(())
    },
};

/// KiB that are kept from promises for root.
pub(super) static ADMIN_RESERVE: Setting = Setting {
    show: || format!("{}\n", commit::ADMIN_RESERVE.load(Relaxed)),
    set: |text| number(text).map(|kbytes| commit::ADMIN_RESERVE.store(kbytes, Relaxed)),
};

/// Likewise for a program's user.
pub(super) static USER_RESERVE: Setting = Setting {
    show: || format!("{}\n", commit::USER_RESERVE.load(Relaxed)),
    set: |text| number(text).map(|kbytes| commit::USER_RESERVE.store(kbytes, Relaxed)),
};

/// Descriptors of a process at most, whatever its limit.
pub(super) static NR_OPEN: Setting = Setting {
    show: || format!("{}\n", limits::NR_OPEN.load(Relaxed)),
    set: |text| limits::set_nr_open(number(text)?),
};

/// Seconds that the holder of a lease has to let go.
pub(super) static LEASE_BREAK: Setting = Setting {
    show: || format!("{}\n", lease::BREAK_SECONDS.load(Relaxed)),
    set: |text| number::<u32>(text).map(|s| lease::BREAK_SECONDS.store(s.into(), Relaxed)),
};

/// Files open at most, but for those of the privileged.
pub(super) static FILE_MAX_OPEN: Setting = Setting {
    show: || format!("{}\n", file::counts().1),
    set: |text| number(text).map(file::set_most),
};

/// The size that a pipe may be given without privilege.
pub(super) static PIPE_LARGEST: Setting = Setting {
    show: || format!("{}\n", pipe::largest()),
    set: |text| pipe::set_largest(number(text)?),
};

/// Pages that a user's pipes may hold: before they become small, and at most.
pub(super) static PIPE_SOFT: Setting = Setting {
    show: || format!("{}\n", pipe::SOFT.load(Relaxed)),
    set: |text| number(text).map(|most| pipe::SOFT.store(most, Relaxed)),
};

/// See [`PIPE_SOFT`].
pub(super) static PIPE_HARD: Setting = Setting {
    show: || format!("{}\n", pipe::HARD.load(Relaxed)),
    set: |text| number(text).map(|most| pipe::HARD.store(most, Relaxed)),
};

/// Mappings of a process at most.
pub(super) static MOST_MAPPINGS: Setting = Setting {
    show: || format!("{}\n", vm::most_mappings()),
    set: |text| number(text).map(vm::set_most_mappings),
};

/// The low water mark; the high one stays as far above it as it is.
pub(super) static MIN_FREE: Setting = Setting {
    show: || format!("{}\n", vm::stats().low_water * 4),
    set: |text| vm::set_low_water(number::<u64>(text)?.div_ceil(4)),
};

/// Which of a kind's two shares of memory.
#[derive(Clone, Copy)]
enum Share {
    Least,
    Most,
}

fn show_share(class: Class, share: Share) -> String {
    let (least, most) = vm::shares(class);
    format!("{}\n", if matches!(share, Share::Least) { least } else { most })
}

fn set_share(class: Class, share: Share, text: &str) -> Result<()> {
    let percent = number(text)?;
    let (least, most) = vm::shares(class);
    match share {
        Share::Least => vm::set_shares(class, percent, most),
        Share::Most => vm::set_shares(class, least, percent),
    }
}

/// Declares the settings of the page daemon's balance, after NetBSD's of the same names.
macro_rules! shares {
    ($($name:ident: $class:ident $share:ident),* $(,)?) => {
        $(pub(super) static $name: Setting = Setting {
            show: || show_share(Class::$class, Share::$share),
            set: |text| set_share(Class::$class, Share::$share, text),
        };)*
    };
}
shares! {
    ANON_MIN: Anon Least, ANON_MAX: Anon Most,
    FILE_MIN: File Least, FILE_MAX: File Most,
    EXEC_MIN: Exec Least, EXEC_MAX: Exec Most,
}

/// The share of memory, in percent, in which pages are kept compressed.
pub(super) static ZSWAP: Setting =
    Setting { show: || format!("{}\n", vm::zswap()), set: |text| vm::set_zswap(number(text)?) };

/// Drops what is kept for its next use and can be had again: 1 pages of files, 2 names, nodes and
/// the heap's free blocks, 3 both.
pub(super) static DROP_CACHES: Setting = Setting {
    show: || String::from("0\n"),
    set: |text| {
        let what @ 1..=3 = number(text)? else { return Err(EINVAL) };
        if what & 1 != 0 {
            fs::drop_pages();
        }
        if what & 2 != 0 {
            fs::drop_nodes();
            crate::net::rights::collect_now()?;
            sched::on_each_cpu(heap::drain);
            heap::give_back();
        }
        Ok(())
    },
};

/// Whether a fault brings in and maps what lies around its page.
pub(super) static NEIGHBOURS: Setting = Setting {
    show: || String::from(if vm::neighbours() { "1\n" } else { "0\n" }),
    set: |text| {
        let on @ 0..=1 = number::<u64>(text)? else { return Err(EINVAL) };
        vm::set_neighbours(on != 0);
        Ok(())
    },
};
