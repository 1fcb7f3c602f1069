//! What a host supplies for paging: files and swap devices whose transfers are under the test's control.

mod file;
mod store;
mod swap;

pub use file::File;
pub use store::{Line, Lost, Manner};
pub use swap::SwapDisk;
