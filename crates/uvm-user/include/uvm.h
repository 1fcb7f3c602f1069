// The system calls by which a program on a UVM kernel moves memory without copying it, for C.
//
// Elsewhere each of them fails with ENOSYS: a program that asks can fall back on read, write and memcpy. What each does, and how it
// fails, stands in docs/calls.md; crates/uvm-user is the same for Rust.
#ifndef UVM_H
#define UVM_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <unistd.h>

#define UVM_NR_TRANSFER_READ 501
#define UVM_NR_ANFLUSH 502
#define UVM_NR_DONATE_WRITE 503
#define UVM_NR_EXPORT 504
#define UVM_NR_IMPORT 505
#define UVM_NR_MINHERIT 510

// Bytes that came by a transfer: `length` of them, from `start` on.
struct uvm_piece {
    void *start;
    size_t length;
};

// What an export gives to those who import it.
enum uvm_export {
    UVM_SHARE = 1,       // the same memory
    UVM_COPY = 2,        // what it holds now
    UVM_DONATE = 3,      // it leaves the giver, and nothing stays there
    UVM_DONATE_ZERO = 4, // it leaves the giver, and zeroes take its place
};

// Import at the given address, in place of what is there.
#define UVM_FIXED 1

// What a child gets of a range.
enum uvm_inherit { UVM_INHERIT_SHARE = 0, UVM_INHERIT_COPY = 1, UVM_INHERIT_NONE = 2, UVM_INHERIT_ZERO = 4 };

// Takes up to `most` bytes out of `fd` in pages that are mapped where the kernel likes; returns the number of pieces, 0 at the end.
static inline ssize_t uvm_transfer_read(int fd, struct uvm_piece *pieces, unsigned count, size_t most) {
    return syscall(UVM_NR_TRANSFER_READ, fd, pieces, count, most);
}

// Gives up the memory of a range: pages that came by a transfer are gone, other private pages read as zeroes again.
static inline int uvm_anflush(void *start, size_t length) {
    return (int)syscall(UVM_NR_ANFLUSH, start, length);
}

// Writes bytes whose pages leave the caller, where zeroes take their place; returns how many bytes went.
static inline ssize_t uvm_donate_write(int fd, void *start, size_t length) {
    return syscall(UVM_NR_DONATE_WRITE, fd, start, length);
}

// Makes a range fit to be imported, by whoever has the descriptor that this returns.
static inline int uvm_export(void *start, size_t length, enum uvm_export mode, int protection) {
    return (int)syscall(UVM_NR_EXPORT, start, length, mode, protection);
}

// Maps what was exported; returns where, or (void *)-1.
static inline void *uvm_import(int fd, void *start, int flags) {
    return (void *)syscall(UVM_NR_IMPORT, fd, start, flags);
}

// Says what children get of a range.
static inline int uvm_minherit(void *start, size_t length, enum uvm_inherit inherit) {
    return (int)syscall(UVM_NR_MINHERIT, start, length, inherit);
}

#endif
