//! What a host supplies: files and swap devices whose transfers are under the test's control, and a
//! ROM.

mod file;
mod rom;
mod store;
mod swap;

pub use file::File;
pub use rom::{print, Rom};
pub use store::{Line, Lost, Manner};
pub use swap::SwapDisk;
