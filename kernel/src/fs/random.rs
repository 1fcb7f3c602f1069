//! Random bytes for `getrandom`, `/dev/urandom` and `AT_RANDOM`: ChaCha20, keyed at boot from the
//! CPU's generator where it has one, and from the clock and cycle counter.

use rand_chacha::rand_core::{RngCore, SeedableRng};
use rand_chacha::ChaCha20Rng;

use crate::arch::cpu;
use crate::errno::Result;
use crate::sched;
use crate::sync::SpinLock;
use crate::uio::Sink;

static STATE: SpinLock<Option<ChaCha20Rng>> = SpinLock::new(None);

/// Fills `buf`.
pub fn fill(buf: &mut [u8]) {
    for piece in buf.chunks_mut(256) {
        STATE.lock().get_or_insert_with(seeded).fill_bytes(piece);
    }
}

fn seeded() -> ChaCha20Rng {
    let mut seed = [0; 32];
    for (index, word) in seed.chunks_mut(8).enumerate() {
        let clock =
            sched::wall().wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(index as u32 * 16);
        word.copy_from_slice(&(cpu::entropy() ^ clock).to_le_bytes());
    }
    ChaCha20Rng::from_seed(seed)
}

/// Fills the sink.
pub fn read(to: &mut Sink<'_>) -> Result<usize> {
    let mut buf = [0; 256];
    let start = to.done();
    while to.left() > 0 {
        let n = buf.len().min(to.left());
        fill(&mut buf[..n]);
        // A random byte takes as long as so many that are copied.
        crate::sched::work_done(32 * n);
        match to.put_part(&buf[..n]) {
            Ok(put) if put < n => break,
            Ok(_) => {}
            Err(errno) if to.done() == start => return Err(errno),
            Err(_) => break,
        }
        if to.left() > 0 && sched::signal_pending() {
            break;
        }
    }
    Ok(to.done() - start)
}
