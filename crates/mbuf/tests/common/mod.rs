//! Pages that count: every page that goes out must come back, and the nth request may fail.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use mbuf::{Bytes, NoMemory, Pages, Room, PAGE_SIZE};

/// What a fresh page holds: bytes that no test sends.
pub const STALE: u8 = 0xee;

#[derive(Default)]
pub struct Counted {
    /// References that are out.
    pub out: Cell<usize>,
    /// Requests until one fails.
    pub fail_after: Cell<Option<usize>>,
    pub allocated: Cell<usize>,
    /// References given back, by page, for pages that were loaned.
    pub loaned_back: RefCell<usize>,
}

/// A page: a cluster, or one on loan.
pub struct Page {
    bytes: Rc<Vec<u8>>,
    loan: bool,
}

impl Counted {
    pub fn new() -> Self {
        Self::default()
    }

    fn request(&self) -> Result<(), NoMemory> {
        match self.fail_after.get() {
            Some(0) => return Err(NoMemory),
            Some(n) => self.fail_after.set(Some(n - 1)),
            None => {}
        }
        Ok(())
    }

    /// A page on loan.
    #[allow(dead_code)]
    pub fn loan(&self, bytes: &Rc<Vec<u8>>) -> Page {
        self.out.set(self.out.get() + 1);
        Page { bytes: bytes.clone(), loan: true }
    }

    /// A run of such pages.
    #[allow(dead_code)]
    pub fn loan_run(&self, bytes: &[Rc<Vec<u8>>]) -> Vec<Page> {
        bytes.iter().map(|bytes| self.loan(bytes)).collect()
    }
}

impl Pages for Counted {
    type Page = Page;
    type Run = Vec<Page>;

    fn alloc(&self) -> Result<Page, NoMemory> {
        self.request()?;
        self.out.set(self.out.get() + 1);
        self.allocated.set(self.allocated.get() + 1);
        Ok(Page { bytes: Rc::new(vec![STALE; PAGE_SIZE]), loan: false })
    }

    fn share(&self, page: &Page) -> Result<Page, NoMemory> {
        self.request()?;
        self.out.set(self.out.get() + 1);
        Ok(Page { bytes: page.bytes.clone(), loan: page.loan })
    }

    fn release(&self, page: Page) {
        self.out.set(self.out.get() - 1);
        *self.loaned_back.borrow_mut() += usize::from(page.loan);
    }

    fn is_writable(&self, page: &Page) -> bool {
        !page.loan && Rc::strong_count(&page.bytes) == 1
    }

    fn copy(&self, from: Bytes<'_, Self>, to: Room<'_, Self>) {
        let from = match from {
            Bytes::Here(bytes) => bytes,
            Bytes::Page(page, range) => &page.bytes[range],
            Bytes::Run(run, page, range) => &run[page].bytes[range],
        };
        match to {
            Room::Here(to) => to.copy_from_slice(from),
            Room::Page(page, range) => {
                assert!(self.is_writable(page), "a page that others have is written");
                Rc::get_mut(&mut page.bytes).unwrap()[range].copy_from_slice(from);
            }
        }
    }

    fn share_run(&self, run: &Vec<Page>, pages: Range<usize>) -> Result<Vec<Page>, NoMemory> {
        self.request()?;
        self.out.set(self.out.get() + pages.len());
        Ok(run[pages]
            .iter()
            .map(|page| Page { bytes: page.bytes.clone(), loan: page.loan })
            .collect())
    }

    fn cut_run(&self, run: &mut Vec<Page>, at: usize, both: bool) -> Result<Vec<Page>, NoMemory> {
        self.request()?;
        let rest = run.split_off(at);
        if both {
            self.out.set(self.out.get() + 1);
            run.push(Page { bytes: rest[0].bytes.clone(), loan: true });
        }
        Ok(rest)
    }

    fn shrink_run(&self, run: &mut Vec<Page>, kept: Range<usize>) {
        assert!(!kept.is_empty() && kept.end <= run.len());
        let rest = run.split_off(kept.end);
        rest.into_iter().chain(run.drain(..kept.start)).for_each(|page| self.release(page));
    }

    fn release_run(&self, run: Vec<Page>) {
        run.into_iter().for_each(|page| self.release(page));
    }
}
