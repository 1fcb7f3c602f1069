// A host for the examples in the documentation, which take this file in; the crate has no such
// module. The README shows it whole.

pub use mbuf::{Bytes, Chain, NoMemory, Pages, Room, PAGE_SIZE};
pub use std::ops::Range;
pub use std::rc::Rc;

/// Pages of the heap.
pub struct Heap;

impl Pages for Heap {
    type Page = Rc<Vec<u8>>;
    type Run = Vec<Rc<Vec<u8>>>;

    fn alloc(&self) -> Result<Self::Page, NoMemory> {
        Ok(Rc::new(vec![0; PAGE_SIZE]))
    }
    fn share(&self, page: &Self::Page) -> Result<Self::Page, NoMemory> {
        Ok(page.clone())
    }
    fn release(&self, _: Self::Page) {}
    fn is_writable(&self, page: &Self::Page) -> bool {
        Rc::strong_count(page) == 1
    }
    fn copy(&self, from: Bytes<'_, Self>, to: Room<'_, Self>) {
        let from = match from {
            Bytes::Here(bytes) => bytes,
            Bytes::Page(page, range) => &page[range],
            Bytes::Run(run, page, range) => &run[page][range],
        };
        match to {
            Room::Here(to) => to.copy_from_slice(from),
            Room::Page(page, range) => Rc::make_mut(page)[range].copy_from_slice(from),
        }
    }
    fn share_run(&self, run: &Self::Run, pages: Range<usize>) -> Result<Self::Run, NoMemory> {
        Ok(run[pages].to_vec())
    }
    fn cut_run(&self, run: &mut Self::Run, at: usize, both: bool) -> Result<Self::Run, NoMemory> {
        let rest = run[at..].to_vec();
        run.truncate(at + usize::from(both));
        Ok(rest)
    }
    fn shrink_run(&self, run: &mut Self::Run, kept: Range<usize>) {
        *run = run[kept].to_vec();
    }
    fn release_run(&self, _: Self::Run) {}
}
