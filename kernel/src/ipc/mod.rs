//! System V shared memory. Pipes are in `fs`, sockets in `net`.

pub mod shm;
