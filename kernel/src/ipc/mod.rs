//! Between processes: pipes and fifos, System V shared memory. Sockets are in `net`.

mod contents;
pub mod pipe;
mod ring;
pub mod shm;

use crate::proc;
use crate::proc::signal::{SigInfo, SIGPIPE};

/// Tells the running thread that nobody reads what it writes.
pub fn raise_sigpipe() {
    let _ = proc::send_to_thread(&proc::current_thread(), SigInfo::kernel(SIGPIPE));
}
