//! What each user's sockets and pipes hold of memory.
//!
//! Bytes in queues are pages that can't be paged out, lent ones among them. A queue counts for the user who made it. From an
//! eighth of memory on, sends to his sockets fail with `ENOBUFS` until something is received, and his pipes take no more than a
//! page each.
//!
//! I1: an account's sum is that of the queues that refer to it: it changes where a queue's does, and goes with the last of them.

use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use hashbrown::HashMap;
use machine::PAGE_SIZE;

use crate::arch::machine::frames;
use crate::sync::SpinLock;

/// The part of memory that one user's queues may hold.
const PART: usize = 8;

/// One user's.
pub struct Account {
    used: AtomicUsize,
    most: usize,
}

static USERS: SpinLock<Option<HashMap<u32, Weak<Account>>>> = SpinLock::new(None);

impl Account {
    /// The account of a user.
    pub fn of(user: u32) -> Arc<Account> {
        let mut users = USERS.lock();
        let users = users.get_or_insert_with(HashMap::new);
        if let Some(account) = users.get(&user).and_then(Weak::upgrade) {
            return account;
        }
        let pages = frames().map_or(0, |frames| frames.total());
        let account = Arc::new(Account { used: AtomicUsize::new(0), most: pages / PART * PAGE_SIZE });
        users.retain(|_, account| account.strong_count() > 0);
        users.insert(user, Arc::downgrade(&account));
        account
    }

    /// A queue has changed from one size to another.
    pub fn changed(&self, from: usize, to: usize) {
        if to > from {
            self.used.fetch_add(to - from, Relaxed);
        } else if to < from {
            self.used.fetch_sub(from - to, Relaxed);
        }
    }

    /// Whether the user has all that he may.
    pub fn is_full(&self) -> bool {
        self.used.load(Relaxed) >= self.most
    }
}
