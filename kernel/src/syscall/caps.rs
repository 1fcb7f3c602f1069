//! System calls on capabilities: `capget`, `capset`, and the part of `prctl` that is about them.

use super::{calls, Calls};
use crate::cred::caps::{Caps, Secure};
use crate::errno::{Result, EFAULT, EINVAL, EPERM, ESRCH};
use crate::proc::access::change_cred;
use crate::proc::{current_process, current_thread, table, Pid};
use crate::user;
use linux_raw_sys::prctl;

pub const CALLS: Calls = calls! {
    __NR_capget => capget[2],
    __NR_capset => capset[2],
};

const VERSION_1: u32 = 0x1998_0330;
const VERSION_2: u32 = 0x2007_1026;
const VERSION_3: u32 = 0x2008_0522;

/// Effective, permitted and inheritable: 32 capabilities of each.
type Word = [u32; 3];

/// The number of 32-bit sets in the version that a header names; unknown ones are told the right
/// version.
fn words(header: u64) -> Result<usize> {
    match user::get(header)? {
        VERSION_1 => Ok(1),
        VERSION_2 | VERSION_3 => Ok(2),
        _ => {
            user::put(header, &VERSION_3)?;
            Err(EINVAL)
        }
    }
}

fn capget(header: u64, data: u64) -> Result<()> {
    let words = match words(header) {
        Err(EINVAL) if data == 0 => return Ok(()),
        other => other?,
    };
    let pid: Pid = user::get(header.wrapping_add(4))?;
    let process = match pid {
        0 => current_process().clone(),
        1.. => table::thread(pid).ok_or(ESRCH)?.process.clone(),
        _ => return Err(EINVAL),
    };
    if data == 0 {
        return Ok(());
    }
    let caps = process.cred().caps;
    let sets = [caps.effective, caps.permitted, caps.inheritable].map(|set| set.bits());
    for word in 0..words {
        let part: Word = sets.map(|set| (set >> (32 * word)) as u32);
        user::put(data.wrapping_add(12 * word as u64), &part)?;
    }
    Ok(())
}

fn capset(header: u64, data: u64) -> Result<()> {
    let words = words(header)?;
    let pid: Pid = user::get(header.wrapping_add(4))?;
    if pid != 0 && pid != current_thread().tid() {
        return Err(EPERM);
    }
    if data == 0 {
        return Err(EFAULT);
    }
    let mut sets = [0u64; 3];
    for word in 0..words {
        let part: Word = user::get(data.wrapping_add(12 * word as u64))?;
        for (set, bits) in sets.iter_mut().zip(part) {
            *set |= u64::from(bits) << (32 * word);
        }
    }
    let [effective, permitted, inheritable] = sets.map(Caps::from_bits_truncate);
    change_cred(|cred| cred.set_caps(effective, permitted, inheritable))
}

/// The options of `prctl` about capabilities.
///
/// # Errors
/// `EINVAL` for any other; `EPERM`.
pub(super) fn control(option: u32, arg: u64, arg3: u64, arg4: u64, arg5: u64) -> Result<u64> {
    let cred = current_process().cred();
    match option {
        prctl::PR_CAPBSET_READ => {
            return Ok(u64::from(cred.caps.bounding.contains(Caps::numbered(arg)?)));
        }
        // The right is looked at before the number.
        prctl::PR_CAPBSET_DROP => change_cred(|cred| {
            cred.need(Caps::SETPCAP)?;
            cred.drop_bound(Caps::numbered(arg)?)
        })?,
        prctl::PR_GET_SECUREBITS => return Ok(u64::from(cred.secure.bits())),
        prctl::PR_SET_SECUREBITS => change_cred(|cred| cred.set_secure(arg))?,
        prctl::PR_GET_KEEPCAPS => return Ok(u64::from(cred.secure.contains(Secure::KEEP_CAPS))),
        prctl::PR_SET_KEEPCAPS if arg <= 1 => change_cred(|cred| cred.keep_caps(arg))?,
        prctl::PR_CAP_AMBIENT => return ambient(arg, arg3, arg4 | arg5),
        _ => return Err(EINVAL),
    }
    Ok(0)
}

fn ambient(what: u64, number: u64, rest: u64) -> Result<u64> {
    if what == u64::from(prctl::PR_CAP_AMBIENT_CLEAR_ALL) {
        if number | rest != 0 {
            return Err(EINVAL);
        }
        change_cred(|cred| {
            cred.caps.ambient = Caps::empty();
            Ok(())
        })?;
        return Ok(0);
    }
    let cap = Caps::numbered(number)?;
    if rest != 0 {
        return Err(EINVAL);
    }
    match u32::try_from(what).map_err(|_| EINVAL)? {
        prctl::PR_CAP_AMBIENT_IS_SET => {
            return Ok(u64::from(current_process().cred().caps.ambient.contains(cap)));
        }
        prctl::PR_CAP_AMBIENT_RAISE => change_cred(|cred| cred.raise_ambient(cap))?,
        prctl::PR_CAP_AMBIENT_LOWER => change_cred(|cred| {
            cred.caps.ambient.remove(cap);
            Ok(())
        })?,
        _ => return Err(EINVAL),
    }
    Ok(0)
}
