//! Text for the host: the control channel, line by line, and the console before a terminal exists.

/// The kernel's release as programs see it: the Linux whose calls it has.
pub const RELEASE: &str = "6.1.0-uvm";

/// Sends a line on the control channel: `exit`, `panic`, `bt`, `user` or `trace` and what belongs
/// to it.
#[macro_export]
macro_rules! control {
    ($($arg:tt)*) => {{
        $crate::arch::serial::control(format_args!($($arg)*));
    }};
}

/// Prints on the console, past the terminal.
#[macro_export]
macro_rules! print {
    ($($arg:tt)*) => {{
        use core::fmt::Write as _;
        let _ = write!($crate::arch::serial::Console, $($arg)*);
    }};
}

/// Prints a line on the console, past the terminal.
#[macro_export]
macro_rules! println {
    ($($arg:tt)*) => {{
        use core::fmt::Write as _;
        let _ = writeln!($crate::arch::serial::Console, $($arg)*);
    }};
}
