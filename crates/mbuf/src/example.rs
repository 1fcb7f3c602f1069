// A host for the examples in the documentation, which take this file in; the crate has no such
// module. The README shows it whole.

pub use mbuf::{Chain, NoMemory, Pages, PAGE_SIZE};
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
    fn bytes<'a>(&self, page: &'a Self::Page) -> &'a [u8] {
        page
    }
    fn bytes_mut<'a>(&self, page: &'a mut Self::Page) -> Option<&'a mut [u8]> {
        Rc::get_mut(page).map(Vec::as_mut_slice)
    }
    fn run_bytes<'a>(&self, run: &'a Self::Run, page: usize) -> &'a [u8] {
        &run[page]
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
