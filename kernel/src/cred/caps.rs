//! Capabilities: the parts that the superuser's power falls into, the five sets of a process, and
//! what becomes of them when its ids change and when it runs another program. The rules are those
//! of capabilities(7), for programs whose files carry none.

use super::Cred;
use crate::errno::{Result, EINVAL, EPERM};
use bitflags::bitflags;

bitflags! {
    /// A set of capabilities; those that nothing here asks for are kept for programs that look.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Caps: u64 {
        const CHOWN = 1 << 0;
        const DAC_OVERRIDE = 1 << 1;
        const DAC_READ_SEARCH = 1 << 2;
        const FOWNER = 1 << 3;
        const FSETID = 1 << 4;
        const KILL = 1 << 5;
        const SETGID = 1 << 6;
        const SETUID = 1 << 7;
        const SETPCAP = 1 << 8;
        const LINUX_IMMUTABLE = 1 << 9;
        const NET_BIND_SERVICE = 1 << 10;
        const NET_ADMIN = 1 << 12;
        const NET_RAW = 1 << 13;
        const IPC_LOCK = 1 << 14;
        const IPC_OWNER = 1 << 15;
        const SYS_RAWIO = 1 << 17;
        const SYS_CHROOT = 1 << 18;
        const SYS_PTRACE = 1 << 19;
        const SYS_ADMIN = 1 << 21;
        const SYS_NICE = 1 << 23;
        const SYS_RESOURCE = 1 << 24;
        const SYS_TTY_CONFIG = 1 << 26;
        const MKNOD = 1 << 27;
        const LEASE = 1 << 28;
        const MAC_OVERRIDE = 1 << 32;
        const WAKE_ALARM = 1 << 35;
        const ALL = (1 << COUNT) - 1;
    }
}

/// One more than the highest capability.
pub const COUNT: u32 = 41;

impl Caps {
    /// The capability with a number.
    ///
    /// # Errors
    /// `EINVAL` if there is none.
    pub fn numbered(number: u64) -> Result<Caps> {
        if number >= u64::from(COUNT) {
            return Err(EINVAL);
        }
        Ok(Caps::from_bits_retain(1 << number))
    }

    /// What follows the user id of files.
    fn of_files() -> Caps {
        Caps::CHOWN
            | Caps::DAC_OVERRIDE
            | Caps::DAC_READ_SEARCH
            | Caps::FOWNER
            | Caps::FSETID
            | Caps::LINUX_IMMUTABLE
            | Caps::MKNOD
            | Caps::MAC_OVERRIDE
    }
}

bitflags! {
    /// How much the superuser's id counts; each bit has another above it that locks it.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Secure: u32 {
        /// An id of zero brings no capabilities at exec.
        const NO_ROOT = 1 << 0;
        /// Changes of ids leave the sets alone.
        const NO_FIXUP = 1 << 2;
        /// The permitted set stays when the last zero leaves the ids.
        const KEEP_CAPS = 1 << 4;
        const KEEP_CAPS_LOCKED = 1 << 5;
        const NO_AMBIENT_RAISE = 1 << 6;
        const KNOWN = 0xff;
        const LOCKS = 0xaa;
        const UNLOCKED = 0x55;
    }
}

/// Whether a program may get more than the one before it had: not once `PR_SET_NO_NEW_PRIVS` is
/// set.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Gains {
    Allowed,
    Refused,
}

/// The sets of a process. Invariants: `effective` lies in `permitted`, and `ambient` in both
/// `permitted` and `inheritable`.
#[derive(Clone, Copy)]
pub struct Sets {
    pub effective: Caps,
    pub permitted: Caps,
    pub inheritable: Caps,
    pub bounding: Caps,
    pub ambient: Caps,
}

impl Sets {
    /// The superuser's.
    pub const FULL: Sets = Sets {
        effective: Caps::ALL,
        permitted: Caps::ALL,
        inheritable: Caps::empty(),
        bounding: Caps::ALL,
        ambient: Caps::empty(),
    };
}

impl Cred {
    /// After a change of the user ids: what an id of zero brings comes and goes with it.
    pub fn follow_ids(&mut self, before: &Cred) {
        if self.secure.contains(Secure::NO_FIXUP) {
            return;
        }
        let zero = |cred: &Cred| [cred.uid, cred.euid, cred.suid].contains(&0);
        if zero(before) && !zero(self) {
            if !self.secure.contains(Secure::KEEP_CAPS) {
                self.caps.permitted = Caps::empty();
                self.caps.effective = Caps::empty();
            }
            self.caps.ambient = Caps::empty();
        }
        match (before.euid == 0, self.euid == 0) {
            (true, false) => self.caps.effective = Caps::empty(),
            (false, true) => self.caps.effective = self.caps.permitted,
            _ => {}
        }
    }

    /// After a change of the user id of files alone.
    pub fn follow_fsuid(&mut self, before: &Cred) {
        if self.secure.contains(Secure::NO_FIXUP) {
            return;
        }
        match (before.fsuid == 0, self.fsuid == 0) {
            (true, false) => self.caps.effective.remove(Caps::of_files()),
            (false, true) => self.caps.effective |= Caps::of_files() & self.caps.permitted,
            _ => {}
        }
    }

    /// These credentials with the real ids for the effective ones: what `access` goes by.
    pub fn as_real(&self) -> Cred {
        let mut cred = self.clone();
        (cred.fsuid, cred.fsgid) = (cred.uid, cred.gid);
        if !cred.secure.contains(Secure::NO_FIXUP) {
            cred.caps.effective = if cred.uid == 0 { cred.caps.permitted } else { Caps::empty() };
        }
        cred
    }

    /// The credentials with which a process goes on in another program.
    pub fn after_exec(&self, gains: Gains) -> Cred {
        let mut new = self.clone();
        let counts = !self.secure.contains(Secure::NO_ROOT);
        let root = counts && (self.uid == 0 || self.euid == 0);
        if self.has_other_ids() {
            new.caps.ambient = Caps::empty();
        }
        let by_id = if root { self.caps.bounding | self.caps.inheritable } else { Caps::empty() };
        new.caps.permitted = by_id | new.caps.ambient;
        new.caps.effective =
            if counts && self.euid == 0 { new.caps.permitted } else { new.caps.ambient };
        let more = self.has_other_ids() || !self.caps.permitted.contains(new.caps.permitted);
        if more && gains == Gains::Refused {
            (new.euid, new.egid) = (new.uid, new.gid);
            new.caps.permitted &= self.caps.permitted;
            new.caps.effective &= new.caps.permitted;
        }
        (new.suid, new.fsuid) = (new.euid, new.euid);
        (new.sgid, new.fsgid) = (new.egid, new.egid);
        new.secure.remove(Secure::KEEP_CAPS);
        new
    }

    /// Whether the effective ids are others than the real ones: a program that is started then has
    /// more rights than its user.
    pub fn has_other_ids(&self) -> bool {
        self.uid != self.euid || self.gid != self.egid
    }

    /// Whether memory that `before` could be asked for must be kept from other processes under
    /// these: an id that counts has changed, or there is more to be had.
    pub fn hides_from(&self, before: &Cred) -> bool {
        let ids = |cred: &Cred| [cred.euid, cred.egid, cred.fsuid, cred.fsgid];
        ids(self) != ids(before) || !before.caps.permitted.contains(self.caps.permitted)
    }

    /// `capset`.
    ///
    /// # Errors
    /// `EPERM` for what the process may not give itself.
    pub fn set_caps(&mut self, effective: Caps, permitted: Caps, inheritable: Caps) -> Result<()> {
        let old = self.caps;
        let free =
            self.has(Caps::SETPCAP) || (old.inheritable | old.permitted).contains(inheritable);
        let bounded = (old.inheritable | old.bounding).contains(inheritable);
        if !free || !bounded || !old.permitted.contains(permitted) || !permitted.contains(effective)
        {
            return Err(EPERM);
        }
        let ambient = old.ambient & permitted & inheritable;
        self.caps = Sets { effective, permitted, inheritable, ambient, ..old };
        Ok(())
    }

    /// Takes a capability out of what programs can ever get.
    ///
    /// # Errors
    /// `EPERM`.
    pub fn drop_bound(&mut self, cap: Caps) -> Result<()> {
        if !self.has(Caps::SETPCAP) {
            return Err(EPERM);
        }
        self.caps.bounding.remove(cap);
        Ok(())
    }

    /// Lets programs that are started have a capability without more ado.
    ///
    /// # Errors
    /// `EPERM`.
    pub fn raise_ambient(&mut self, cap: Caps) -> Result<()> {
        let has = self.caps.permitted.contains(cap) && self.caps.inheritable.contains(cap);
        if !has || self.secure.contains(Secure::NO_AMBIENT_RAISE) {
            return Err(EPERM);
        }
        self.caps.ambient |= cap;
        Ok(())
    }

    /// Changes the secure bits.
    ///
    /// # Errors
    /// `EPERM`: without the capability, for bits that there aren't, for what is locked, and to take
    /// a lock away.
    pub fn set_secure(&mut self, bits: u64) -> Result<()> {
        let new = u32::try_from(bits).ok().and_then(Secure::from_bits).ok_or(EPERM)?;
        let locked = Secure::from_bits_retain((self.secure & Secure::LOCKS).bits() >> 1);
        let moved = (self.secure ^ new) & Secure::UNLOCKED;
        let unlocks = !new.contains(self.secure & Secure::LOCKS);
        if moved.intersects(locked) || unlocks || !self.has(Caps::SETPCAP) {
            return Err(EPERM);
        }
        self.secure = new;
        Ok(())
    }

    /// `PR_SET_KEEPCAPS`.
    ///
    /// # Errors
    /// `EPERM` if it is locked.
    pub fn keep_caps(&mut self, keeps: u64) -> Result<()> {
        if self.secure.contains(Secure::KEEP_CAPS_LOCKED) {
            return Err(EPERM);
        }
        self.secure.set(Secure::KEEP_CAPS, keeps != 0);
        Ok(())
    }
}
