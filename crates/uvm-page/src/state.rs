//! What a page's record says of it: whose it is, what is going on with it, and where it is linked.

/// Whose a page is.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let page = uvm.new_page(held)?;
/// assert_eq!(uvm.frames().owner(page.page()), Owner::Kernel);
/// uvm.return_page(held, page).map_err(|(why, _)| why)?;
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Owner {
    /// No owner.
    Free,
    /// The host's, or a pmap's.
    Kernel,
    /// An anon's; the number is the VM system's.
    Anon(u32),
    /// A memory object's; the number is the VM system's.
    Object(u32),
    /// No owner's any more, but I/O has the page: it is freed when that ends.
    Orphan,
}

/// How deep into the last pages an allocation may reach.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let (frames, machine) = (uvm.frames(), uvm.machine());
/// let table = frames.alloc(machine, held, Reserve::Kernel)?;
/// frames.free_page(machine, held, table);
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reserve {
    /// User memory: leaves both reserves below alone, but that a thread which is being ended may
    /// take of the kernel's what it needs for that.
    User,
    /// Tables and kernel structures: leaves the page daemon's reserve.
    Kernel,
    /// What frees memory: takes the last page.
    Pageout,
}

bitflags::bitflags! {
    /// What is going on with a page; written under the owner's lock.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct PageFlags: u16 {
        /// I/O or a copy is under way: contents and identity are the I/O's.
        const BUSY = 1;
        /// A thread waits for the page to stop being busy.
        const WANTED = 2;
        /// Backing store holds the same bytes, but for what the pmap's modified bit says.
        const CLEAN = 4;
        /// The last read of the page failed: its bytes mean nothing, and a thread that finds it
        /// takes it out.
        const ERROR = 8;
        /// The page daemon writes the page: unless a thread wants it by then, it is freed.
        const PAGEOUT = 16;
        /// The page holds a file's bytes. Set before the page comes on a queue, for as long as it
        /// has this owner.
        const FILE = 32;
        /// The page holds a file's bytes that programs run; `FILE` is not set then.
        const EXEC = 64;
        /// A thread that comes to the page has the ones behind it read.
        const AHEAD = 128;
        /// The host has read or written the page itself since the page daemon looked: the pmap
        /// doesn't know.
        const TOUCHED = 256;
        /// The last write of the page to its file failed, and nothing was stored in it since, but
        /// for what the pmap's modified bit says. The next write is this page's alone.
        const UNWRITTEN = 512;
        /// The page's file has no room of its own yet for what would be stored in it: a program
        /// that means to asks the file first.
        const HOLE = 1024;
    }
}

/// Where a page is linked. Pages from `Free` on hold no bytes of use.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let (frames, machine) = (uvm.frames(), uvm.machine());
/// let page = frames.alloc(machine, held, Reserve::User)?;
/// assert_eq!(frames.place(page), uvm::page::Place::Nowhere);
/// frames.free_page(machine, held, page);
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Place {
    /// On no list.
    Nowhere,
    /// On its way to the active queue, in some CPU's batch.
    Pending,
    /// On the active queue.
    Active,
    /// On the inactive queue.
    Inactive,
    /// On the free list.
    Free,
    /// In a CPU's cache of free pages.
    Cached,
    /// On no list: the host's tables, heap or stacks are in it.
    Own,
}

pub(crate) const PLACES: [Place; 7] = [
    Place::Nowhere,
    Place::Pending,
    Place::Active,
    Place::Inactive,
    Place::Free,
    Place::Cached,
    Place::Own,
];
