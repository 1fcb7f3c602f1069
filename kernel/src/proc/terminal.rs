//! What processes ask of the terminal, which registers itself: it stands above them, since it sends
//! them signals.

use super::Pid;
use crate::sync::Once;

/// The one terminal.
pub struct Terminal {
    /// Becomes the controlling terminal of the first process's session.
    pub adopt: fn(session: Pid),
    /// The leader of a session has ended.
    pub session_ended: fn(session: Pid),
    /// Whether a number is that of the group in the foreground, though that may have ended.
    pub is_foreground: fn(group: Pid) -> bool,
}

static TERMINAL: Once<Terminal> = Once::new();

/// Makes the terminal known; before the first process.
pub fn register(terminal: Terminal) {
    TERMINAL.call_once(|| terminal);
}

pub(super) fn adopt(session: Pid) {
    if let Some(terminal) = TERMINAL.get() {
        (terminal.adopt)(session);
    }
}

pub(super) fn session_ended(session: Pid) {
    if let Some(terminal) = TERMINAL.get() {
        (terminal.session_ended)(session);
    }
}

pub(super) fn is_foreground(group: Pid) -> bool {
    TERMINAL.get().is_some_and(|terminal| (terminal.is_foreground)(group))
}
