//! The reverse map, counted again.

use core::sync::atomic::Ordering::Relaxed;

use machine::PageNo;

use super::{page_of, reverse, space, PRESENT};
use crate::mem::frames::KERNEL;

/// Checks that each table counts the entries that are present in it, that each of these is named
/// once by its page, and that nothing else is named. All other CPUs stand still. Cost: by entries,
/// times the mappings of their pages.
///
/// # Errors
/// What is wrong.
pub fn audit() -> Result<(), &'static str> {
    for table in (0..KERNEL.frames().total() as u32).map(PageNo) {
        let Some(last) = space::lock_if_table(table) else { continue };
        let entries = || last.entries.iter().map(|slot| slot.load(Relaxed)).enumerate();
        let present = || entries().filter(|(_, entry)| entry & PRESENT != 0);
        if present().count() != last.count() as usize {
            return Err("a table of pages counts its entries wrong");
        }
        for (at, entry) in present() {
            let (page, mut named) = (page_of(entry), 0);
            let lock = reverse::lock_page(page);
            reverse::each(page, &lock, |mapping| {
                named += u32::from(mapping.table == table && mapping.at == at);
            });
            if named != 1 {
                return Err("a mapping isn't named once by its page");
            }
        }
    }
    reverse::audit()
}
