//! The pages of chains: clusters of the kernel's own, pages that programs lend, pages of files.

use alloc::vec::Vec;
use core::ops::Range;

use mbuf::{NoMemory, Pages};

use crate::arch::frame::{lent_bytes, Frame};
use crate::errno::{Result, ENOBUFS};
use crate::vm::{self, Lent};
use uvm::LentPage;

/// A chain as the kernel has it.
pub type Chain = mbuf::Chain<Clusters>;

/// Where chains get their pages.
pub struct Clusters;

impl Pages for Clusters {
    type Page = Frame;
    type Run = Lent;

    /// Makes room if memory is short, and so may sleep.
    fn alloc(&self) -> core::result::Result<Frame, NoMemory> {
        Frame::new().or_else(|_| vm::with_room(Frame::new))
    }

    #[inline]
    fn share(&self, page: &Frame) -> core::result::Result<Frame, NoMemory> {
        page.share()
    }

    #[inline]
    fn release(&self, page: Frame) {
        page.free();
    }

    #[inline]
    fn bytes<'a>(&self, page: &'a Frame) -> &'a [u8] {
        page.bytes()
    }

    #[inline]
    fn bytes_mut<'a>(&self, page: &'a mut Frame) -> Option<&'a mut [u8]> {
        page.bytes_mut()
    }

    #[inline]
    fn run_bytes<'a>(&self, run: &'a Lent, page: usize) -> &'a [u8] {
        lent_bytes(&run.pages()[page])
    }

    fn share_run(&self, run: &Lent, pages: Range<usize>) -> core::result::Result<Lent, NoMemory> {
        lend_all_again(pages.len(), |index| &run.pages()[pages.start + index])
    }

    fn cut_run(&self, run: &mut Lent, at: usize, both: bool) -> core::result::Result<Lent, NoMemory> {
        let rest = run.try_split_off(at)?;
        if both {
            match rest.pages().first().and_then(vm::lend_again) {
                Some(page) => run.push(page),
                None => {
                    run.append(rest);
                    return Err(NoMemory);
                }
            }
        }
        Ok(rest)
    }

    fn shrink_run(&self, run: &mut Lent, kept: Range<usize>) {
        vm::give_back_others(run, kept);
    }

    fn release_run(&self, run: Lent) {
        vm::give_back(run);
    }
}

/// One more loan of each of `count` pages.
///
/// # Errors
/// [`NoMemory`], also where one is lent too often.
pub fn lend_all_again<'a>(
    count: usize,
    page: impl Fn(usize) -> &'a LentPage,
) -> core::result::Result<Lent, NoMemory> {
    let mut pages = Vec::new();
    pages.try_reserve_exact(count).map_err(|_| NoMemory)?;
    pages.extend((0..count).map_while(|index| vm::lend_again(page(index))));
    let lent = Lent::from(pages);
    if lent.len() < count {
        vm::give_back(lent);
        return Err(NoMemory);
    }
    Ok(lent)
}

/// Puts `range` of the bytes of pages on loan, which are just those, behind what a chain has; gives them back if it can't.
///
/// # Errors
/// `ENOBUFS`.
pub fn append_lent(chain: &mut Chain, lent: Lent, range: Range<usize>) -> Result<()> {
    if range.is_empty() {
        vm::give_back(lent);
        return Ok(());
    }
    chain.append_run(lent, range).map_err(|(NoMemory, lent)| {
        vm::give_back(lent);
        ENOBUFS
    })
}
