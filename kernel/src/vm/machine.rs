//! This machine as the library sees it: `impl Machine`.

use machine::order::{Held, Nothing};
use machine::{Channel, Machine, NoMemory, PageNo, Ticket};

use super::system::above;
use crate::arch::cpu;
use crate::arch::pmap::{self, NativePmap};
use crate::mem::frames::KernelMachine;
use crate::mem::heap;
use crate::sched;
use crate::sync::{Channels, RawSpin};

static PMAP: NativePmap = NativePmap;
static CHANNELS: Channels = Channels::new();

impl Machine for KernelMachine {
    type Lock = RawSpin;
    type Pmap = NativePmap;

    #[inline]
    fn pmap(&self) -> &NativePmap {
        &PMAP
    }

    #[inline]
    fn cpu(&self) -> usize {
        cpu::index()
    }

    #[inline]
    fn zero(&self, page: PageNo) {
        self.bytes(page).zero_page();
    }

    #[inline]
    fn copy(&self, from: PageNo, to: PageNo) {
        self.bytes(to).copy_page(self.bytes(from));
    }

    fn read(&self, page: PageNo, offset: usize, buf: &mut [u8]) {
        self.bytes(page).part(offset, buf.len()).copy_to(buf);
    }

    fn write(&self, page: PageNo, offset: usize, bytes: &[u8]) {
        self.bytes(page).part(offset, bytes.len()).copy_from(bytes);
    }

    #[inline]
    fn reserve_heap(&self, bytes: usize) -> Result<(), NoMemory> {
        heap::reserve(bytes)
    }

    fn ticket(&self, channel: Channel) -> Ticket {
        CHANNELS.ticket(channel)
    }

    fn wait(&self, _held: &mut Held<'_, Nothing>, ticket: Ticket) {
        pmap::assert_all_told();
        let for_memory = [Channel::MEMORY_TURN, Channel::MEMORY].contains(&ticket.channel);
        CHANNELS.wait(ticket, || for_memory && self.has_fatal_signal());
    }

    fn wake(&self, channel: Channel) {
        CHANNELS.wake(channel);
    }

    fn wake_one(&self, channel: Channel) {
        CHANNELS.wake_one(channel);
    }

    fn pause(&self, _held: &mut Held<'_, Nothing>) {
        pmap::assert_all_told();
        sched::give_way();
    }

    fn has_fatal_signal(&self) -> bool {
        sched::is_leaving()
    }

    fn out_of_memory(&self, _held: &mut Held<'_, Nothing>) -> bool {
        (above().out_of_memory)()
    }
}
