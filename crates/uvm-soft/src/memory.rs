//! The bytes of every frame, each page behind its own lock, boxed when first written.
//!
//! A page that was never written reads as garbage that is not zero, so that a page handed out
//! unzeroed is seen.

use machine::{PageNo, PAGE_SIZE};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::heap::Own;

/// What a page holds before it is written.
const GARBAGE: u8 = 0xa5;

type Bytes = Option<Box<[u8; PAGE_SIZE]>>;

pub(crate) struct Memory {
    pages: Vec<Mutex<Bytes>>,
}

impl Memory {
    pub(crate) fn new(pages: usize) -> Memory {
        Memory { pages: (0..pages).map(|_| Mutex::new(None)).collect() }
    }

    pub(crate) fn zero(&self, page: PageNo) {
        self.lock(page).get_or_insert_with(garbage).fill(0);
    }

    pub(crate) fn copy(&self, from: PageNo, to: PageNo) {
        let copy = self.lock(from).clone();
        *self.lock(to) = copy;
    }

    pub(crate) fn read(&self, page: PageNo, offset: usize, buf: &mut [u8]) {
        assert!(
            buf.len() <= PAGE_SIZE && offset <= PAGE_SIZE - buf.len(),
            "bytes beyond a page's end"
        );
        match &*self.lock(page) {
            Some(bytes) => buf.copy_from_slice(&bytes[offset..offset + buf.len()]),
            None => buf.fill(GARBAGE),
        }
    }

    pub(crate) fn write(&self, page: PageNo, offset: usize, bytes: &[u8]) {
        self.lock(page).get_or_insert_with(garbage)[offset..offset + bytes.len()]
            .copy_from_slice(bytes);
    }

    fn lock(&self, page: PageNo) -> Own<MutexGuard<'_, Bytes>> {
        Own::new(|| self.pages[page.0 as usize].lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn garbage() -> Box<[u8; PAGE_SIZE]> {
    Box::new([GARBAGE; PAGE_SIZE])
}
