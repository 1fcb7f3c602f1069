//! Page tables (being landed).
use machine::order::{Before, Held, PageCache};
use machine::{NoMemory, PageNo, Pmap, Prot, Shootdown, Va, VaRange, Wiring};
pub struct X86Pmap;
pub struct Space;
impl X86Pmap {
    pub const fn new() -> Self {
        X86Pmap
    }
    pub fn activate(&self, _: &Space) {}
    pub fn deactivate(&self) {}
}
pub fn init(_pages: usize) -> Result<(), NoMemory> {
    Ok(())
}
impl Pmap for X86Pmap {
    type Space = Space;
    fn create<P: Before<PageCache>>(&self, _: &mut Held<'_, P>) -> Result<Space, NoMemory> {
        Err(NoMemory)
    }
    fn destroy<P: Before<PageCache>>(&self, _: &mut Held<'_, P>, _: Space) {}
    fn enter<P: Before<PageCache>>(
        &self,
        _: &mut Held<'_, P>,
        _: &Space,
        _: Va,
        _: PageNo,
        _: Prot,
        _: Prot,
        _: Wiring,
        _: &mut Shootdown,
    ) -> Result<(), NoMemory> {
        Err(NoMemory)
    }
    fn enter_ahead<P: Before<PageCache>>(
        &self,
        _: &mut Held<'_, P>,
        _: &Space,
        _: Va,
        _: &[Option<(PageNo, Prot)>],
    ) {
    }
    fn remove<P: Before<PageCache>>(&self, _: &mut Held<'_, P>, _: &Space, _: VaRange, _: &mut Shootdown) {}
    fn protect<P: Before<PageCache>>(
        &self,
        _: &mut Held<'_, P>,
        _: &Space,
        _: VaRange,
        _: Prot,
        _: &mut Shootdown,
    ) {
    }
    fn unwire(&self, _: &Space, _: Va) -> bool {
        false
    }
    fn extract(&self, _: &Space, _: Va) -> Option<(PageNo, Prot)> {
        None
    }
    fn resident(&self, _: &Space) -> usize {
        0
    }
    fn page_protect<P: Before<PageCache>>(
        &self,
        _: &mut Held<'_, P>,
        _: PageNo,
        _: Prot,
        _: &mut Shootdown,
    ) -> u32 {
        0
    }
    fn is_referenced(&self, _: PageNo) -> bool {
        false
    }
    fn clear_referenced(&self, _: PageNo) -> bool {
        false
    }
    fn is_modified(&self, _: PageNo) -> bool {
        false
    }
    fn clear_modified(&self, _: PageNo, _: &mut Shootdown) -> bool {
        false
    }
    fn flush(&self, _: &Shootdown) {}
}
