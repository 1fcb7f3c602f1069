//! Error numbers, as system calls return them.
//!
//! Every fallible call of the kernel that can end up in front of a program returns [`Result`]. An
//! [`Errno`] is a positive Linux error number; `syscall::dispatch` negates it on the way out. The
//! numbers above 511 never leave the kernel: they say how a call that a signal cut short is to be
//! taken up again, and `proc::signal` turns them into `EINTR` or into another run of the call.

use linux_raw_sys::errno as raw;

/// A Linux error number (positive), or one of the kernel's private restart codes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

/// What fallible kernel calls return.
pub type Result<T, E = Errno> = core::result::Result<T, E>;

macro_rules! errno {
    ($($name:ident)*) => {
        $(#[allow(dead_code)] pub const $name: Errno = Errno(raw::$name as i32);)*

        /// Its name, or `error N`.
        impl core::fmt::Debug for Errno {
            fn fmt(&self, to: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match *self {
                    $($name => to.write_str(stringify!($name)),)*
                    Errno(number) => write!(to, "error {number}"),
                }
            }
        }
    };
}

errno! {
    EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT ENOTBLK EBUSY EEXIST
    EXDEV ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG ENOSPC ESPIPE EROFS EMLINK EPIPE
    EDOM ERANGE EDEADLK ENAMETOOLONG ENOSYS ENOTEMPTY ELOOP ENODATA ELIBBAD EOVERFLOW ENOTSOCK EOPNOTSUPP
    EAFNOSUPPORT ETIMEDOUT EALREADY EINPROGRESS ECANCELED ENOLCK EIDRM ENOMSG
    EADDRINUSE EADDRNOTAVAIL ECONNABORTED ECONNREFUSED ECONNRESET EDESTADDRREQ EISCONN EMSGSIZE ENETUNREACH ENOBUFS
    ENOPROTOOPT ENOTCONN EPROTONOSUPPORT EPROTOTYPE ESOCKTNOSUPPORT ETOOMANYREFS
}

/// A signal cut the call short: run it again if the handler has `SA_RESTART` (or there is none),
/// else `EINTR`.
pub const ERESTARTSYS: Errno = Errno(512);
/// Run the call again whatever the handler says.
pub const ERESTARTNOINTR: Errno = Errno(513);
/// Run the call again only when no handler ran, else `EINTR`.
pub const ERESTARTNOHAND: Errno = Errno(514);
/// As [`ERESTARTNOHAND`], but through `restart_syscall`, by what the thread left in its restart
/// slot.
pub const ERESTART_RESTARTBLOCK: Errno = Errno(516);

impl From<machine::NoMemory> for Errno {
    fn from(_: machine::NoMemory) -> Errno {
        ENOMEM
    }
}

impl Errno {
    /// Whether this is one of the private codes that only signal delivery may see.
    pub const fn is_restart(self) -> bool {
        self.0 >= ERESTARTSYS.0 && self.0 <= ERESTART_RESTARTBLOCK.0
    }
}
