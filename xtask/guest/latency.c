// A program that sleeps a millisecond at a time runs on, whatever one call of another program has to do, and beside crowds of programs that
// compute, or wake each other. Time is virtual: run with instructions for a clock, on one CPU or two.
#include "check.h"
#include "uvm.h"
#include <limits.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/un.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/ipc.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/shm.h>
#include <sys/swap.h>
#include <sys/timerfd.h>
#include <sys/uio.h>

enum { ON_DISK = 12 << 20, ON_DISK_HOLES = 400, ON_DISK_NAMES = 10000, ON_DISK_PIECES = 4000, NAMELESS = 200, MEGA = 1 << 20, MUCH = 48 * MEGA, LOCKED = 128 * MEGA, LARGE = 256 * MEGA, PAGES = MUCH / PAGE, ENTRIES = 20000, SENDERS = 4000, MAPPINGS = 60000, MANY = 1500, THREADS = 1000, TRACEES = 30000, MANY_WORDS = 100000, RW = PROT_READ | PROT_WRITE };
static const int64_t MILLI = 1000000, MOST = 3 * 1000000;

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

// --- the sleeper --------------------------------------------------------------------------------------------------------

static volatile int64_t *worst;
static pid_t sleeper;

static void sleeps(void) {
    for (;;) {
        int64_t due = now() + MILLI;
        nanosleep(&(struct timespec){.tv_nsec = MILLI}, 0);
        int64_t late = now() - due;
        if (late > *worst) *worst = late;
    }
}

// One for all cases, which has nothing of what they make: what they let go they let go for the last time.
static void start(void) {
    worst = mmap(0, PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(worst != MAP_FAILED && (sleeper = fork()) >= 0);
    if (sleeper == 0) sleeps();
}

static void begin(void) {
    usleep(5000);
    *worst = 0;
}

static void end(const char *what) {
    usleep(4000);
    int64_t late = *worst;
    if (!CHECK(late <= MOST)) printf("  beside %s a sleep of 1 ms ended %lld us late\n", what, (long long)late / 1000);
}

#define BESIDE(what, call) do { begin(); int64_t begun_ = now(); call; begun_ = now() - begun_; end(what); \
    if (getenv("TIMES")) printf("  %-40s took %lld us, a sleep was %lld us late\n", what, (long long)begun_ / 1000, (long long)*worst / 1000); } while (0)

// --- what calls work on -------------------------------------------------------------------------------------------------

static char *memory_of(size_t size) {
    char *at = mmap(0, size, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NEED(at != MAP_FAILED);
    for (size_t i = 0; i < size; i += PAGE) at[i] = 1;
    return at;
}

static char *memory(void) {
    return memory_of(MUCH);
}

static char *large(void) {
    return memory_of(LARGE);
}

// Entries that can't be one: every second page may not be written.
static char *entries(void) {
    char *at = mmap(0, (size_t)MAPPINGS * PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    NEED(at != MAP_FAILED);
    for (int i = 0; i < MAPPINGS; i += 2) NEED(!mprotect(at + (size_t)i * PAGE, PAGE, PROT_READ));
    return at;
}

static int file(size_t size) {
    int fd = memfd_create("file", 0);
    NEED(fd >= 0);
    static char chunk[MEGA] = {1};
    for (size_t at = 0; at < size; at += MEGA) NEED(pwrite(fd, chunk, MEGA, at) == MEGA);
    return fd;
}

static void is_there(void) {
    for (;;) pause();
}

// A child that has run `before`, and sleeps.
static pid_t child(char *(*before)(void)) {
    int ready[2];
    char byte;
    NEED(!pipe(ready));
    pid_t it = fork();
    NEED(it >= 0);
    if (it == 0) {
        before();
        if (write(ready[1], "", 1) == 1) is_there();
        _exit(1);
    }
    NEED(read(ready[0], &byte, 1) == 1);
    close(ready[0]);
    close(ready[1]);
    return it;
}

static void forked(void) {
    pid_t it = fork();
    if (it == 0) _exit(0);
    CHECK(it > 0 && waitpid(it, 0, 0) == it);
}

// --- data ---------------------------------------------------------------------------------------------------------------

static void data_is_copied(void) {
    char *at = memory();
    int from = file(MUCH), to = file(0), zero = open("/dev/zero", O_RDONLY), null = open("/dev/null", O_WRONLY);
    NEED(zero >= 0 && null >= 0);
    BESIDE("read of a file", CHECK(pread(from, at, MUCH, 0) == MUCH));
    BESIDE("write of a file", CHECK(pwrite(to, at, MUCH, 0) == MUCH));
    BESIDE("read of /dev/zero", CHECK(read(zero, at, MUCH) == MUCH));
    BESIDE("write to /dev/null", CHECK(write(null, at, MUCH) == MUCH));
    struct iovec parts[MANY / 2];
    for (int i = 0; i < MANY / 2; i++) parts[i] = (struct iovec){at + (size_t)i * 16 * PAGE, 16 * PAGE};
    BESIDE("preadv", CHECK(preadv(from, parts, MANY / 2, 0) == (ssize_t)(MANY / 2) * 16 * PAGE));
    NEED(!ftruncate(to, 0) && !lseek(from, 0, SEEK_SET) && !lseek(to, 0, SEEK_SET));
    BESIDE("sendfile", CHECK(sendfile(to, from, 0, MUCH) == MUCH));
    NEED(!ftruncate(to, 0) && !lseek(from, 0, SEEK_SET) && !lseek(to, 0, SEEK_SET));
    BESIDE("copy_file_range", CHECK(syscall(SYS_copy_file_range, from, 0, to, 0, (size_t)MUCH, 0) == MUCH));
    BESIDE("sendfile of /dev/zero to /dev/null", CHECK(sendfile(null, zero, 0, 16 * MUCH) == 16 * MUCH));
    BESIDE("lseek to a hole", CHECK(lseek(from, 0, SEEK_HOLE) == MUCH));
    struct iovec whole = {at, MUCH}, there = {memory(), MUCH};
    BESIDE("process_vm_readv", CHECK(process_vm_readv(getpid(), &whole, 1, &there, 1, 0) == MUCH));
    BESIDE("process_vm_writev", CHECK(process_vm_writev(getpid(), &whole, 1, &there, 1, 0) == MUCH));
}

static void random_bytes(void) {
    char *at = memory();
    int random = open("/dev/urandom", O_RDONLY);
    NEED(random >= 0);
    BESIDE("read of /dev/urandom", CHECK(read(random, at, 8 * MEGA) == 8 * MEGA));
    BESIDE("getrandom", CHECK(getentropy(at, 256) == 0 && syscall(SYS_getrandom, at, 8 * MEGA, 0) > 0));
}

static void data_through_pipes_and_sockets(void) {
    char *at = memory();
    int ends[2];
    NEED(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    int size = 4 * MEGA;
    setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    BESIDE("send", CHECK(send(ends[0], at, MEGA, MSG_DONTWAIT) > 0));
    BESIDE("close of a socket with data", CHECK(!close(ends[1]) && !close(ends[0])));
}

// --- memory -------------------------------------------------------------------------------------------------------------

static void memory_is_unmapped(void) {
    char *at = memory();
    BESIDE("madvise(MADV_DONTNEED)", CHECK(!madvise(at, MUCH, MADV_DONTNEED)));
    NEED(!munmap(at, MUCH));
    at = memory();
    BESIDE("munmap", CHECK(!munmap(at, MUCH)));
    at = memory();
    BESIDE("mmap(MAP_FIXED) over memory", CHECK(mmap(at, MUCH, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at));
    NEED(!munmap(at, MUCH));
    at = memory();
    BESIDE("mremap to a smaller size", CHECK(mremap(at, MUCH, PAGE, 0) == at));
    char *top = (char *)syscall(SYS_brk, 0);
    NEED(syscall(SYS_brk, top + MUCH) == (long)(top + MUCH));
    for (size_t i = 0; i < MUCH; i += PAGE) top[i] = 1;
    BESIDE("brk", CHECK(syscall(SYS_brk, top) == (long)top));
}

static void memory_is_changed(void) {
    char *at = memory();
    BESIDE("mprotect(PROT_READ)", CHECK(!mprotect(at, MUCH, PROT_READ)));
    BESIDE("mprotect(PROT_READ | PROT_WRITE)", CHECK(!mprotect(at, MUCH, RW)));
    char *to = mmap(0, MUCH, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    BESIDE("mremap to another place", CHECK(mremap(at, MUCH, MUCH, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to));
    BESIDE("madvise(MADV_COLD)", CHECK(!madvise(to, MUCH, MADV_COLD)));
    BESIDE("madvise(MADV_FREE)", CHECK(!madvise(to, MUCH, MADV_FREE)));
    unsigned char *is_there = malloc(PAGES);
    NEED(is_there);
    BESIDE("mincore", CHECK(!mincore(to, MUCH, is_there)));
    BESIDE("msync", CHECK(!msync(to, MUCH, MS_SYNC)));
}

static void memory_is_made(void) {
    char *at;
    BESIDE("mmap(MAP_POPULATE)", at = mmap(0, MUCH, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
    NEED(at != MAP_FAILED && !munmap(at, MUCH));
    at = mmap(0, MUCH, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
    NEED(at != MAP_FAILED && !setrlimit(RLIMIT_MEMLOCK, &all));
    BESIDE("mlock", CHECK(!mlock(at, MUCH)));
    BESIDE("munlock", CHECK(!munlock(at, MUCH)));
    BESIDE("mlockall", CHECK(!mlockall(MCL_CURRENT)));
    BESIDE("munlockall", CHECK(!munlockall()));
    NEED(!munmap(at, MUCH));
    at = mmap(0, MUCH, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    BESIDE("madvise(MADV_POPULATE_WRITE)", CHECK(!madvise(at, MUCH, 23)));
}

static char *is_there_at_once(void) {
    return 0;
}

static void large_memory_is_changed(void) {
    char *at = large();
    pid_t it;
    BESIDE("mprotect of 256 MiB", CHECK(!mprotect(at, LARGE, PROT_READ)));
    NEED(!mprotect(at, LARGE, RW));
    for (size_t i = 0; i < LARGE; i += PAGE) at[i] = 1;
    char *to = mmap(0, LARGE + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    BESIDE("mremap of 256 MiB", CHECK(mremap(at, LARGE, LARGE, MREMAP_MAYMOVE | MREMAP_FIXED, to + PAGE) == to + PAGE));
    at = to + PAGE;
    for (size_t i = 0; i < LARGE; i += PAGE) at[i] = 1;
    BESIDE("madvise(MADV_COLD) of 256 MiB", CHECK(!madvise(at, LARGE, MADV_COLD)));
    BESIDE("fork of 256 MiB", forked());
    it = child(is_there_at_once);
    BESIDE("madvise(MADV_COLD) of what a child has too", CHECK(!madvise(at, LARGE, MADV_COLD)));
    NEED(!kill(it, SIGKILL) && waitpid(it, 0, 0) == it);
    BESIDE("madvise(MADV_FREE) of 256 MiB", CHECK(!madvise(at, LARGE, MADV_FREE)));
    for (size_t i = 0; i < LARGE; i += PAGE) at[i] = 1;
    BESIDE("madvise(MADV_DONTNEED) of 256 MiB", CHECK(!madvise(at, LARGE, MADV_DONTNEED)));
    for (size_t i = 0; i < LARGE; i += PAGE) at[i] = 1;
    int copy = -1;
    BESIDE("uvm_export of a copy of 256 MiB", CHECK((copy = uvm_export(at, LARGE, UVM_COPY, RW)) >= 0));
    NEED(!close(copy));
    for (size_t i = 0; i < LARGE; i += PAGE) at[i] = 1;
    BESIDE("munmap of 256 MiB", CHECK(!munmap(at, LARGE)));
    it = child(large);
    BESIDE("the end of a process of 256 MiB", CHECK(!kill(it, SIGKILL) && waitpid(it, 0, 0) == it));
}

static char *volatile touched;
static volatile int ends;

static void *touches_all(void *unused) {
    while (!ends)
        for (size_t i = 0; i < MUCH && !ends; i += 8 * PAGE) (void)*(volatile char *)(touched + i);
    return unused;
}

// What a call takes away is there again when it comes to the last step.
static void memory_that_threads_touch(void) {
    enum { TOUCHING = 3 };
    pthread_t threads[TOUCHING];
    int given = -1, fd = file(MUCH);
    char *at = mmap(0, MUCH, RW, MAP_SHARED | MAP_POPULATE, fd, 0), *to;
    char *other = mmap(0, MUCH, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    NEED(at != MAP_FAILED && other != MAP_FAILED);
    touched = at;
    for (int i = 0; i < TOUCHING; i++) NEED(!pthread_create(&threads[i], 0, touches_all, 0));
    BESIDE("mmap in place of what threads touch", CHECK(mmap(at, MUCH, RW, MAP_SHARED | MAP_FIXED, fd, 0) == at));
    usleep(100000);
    to = mmap(0, MUCH + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    BESIDE("mremap of what threads touch", CHECK(mremap(at, MUCH, MUCH, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to + PAGE) == to + PAGE));
    usleep(100000);
    BESIDE("uvm_export of what threads touch", CHECK((given = uvm_export(at, MUCH, UVM_DONATE_ZERO, RW)) >= 0));
    NEED(!close(given) && (given = uvm_export(other, MUCH, UVM_DONATE, RW)) >= 0);
    usleep(100000);
    BESIDE("uvm_import in place of what threads touch", CHECK(uvm_import(given, at, UVM_FIXED) == at));
    ends = 1;
    for (int i = 0; i < TOUCHING; i++) NEED(!pthread_join(threads[i], 0));
    NEED(!munmap(at, MUCH) && !munmap(to, MUCH + PAGE) && !close(given) && !close(fd));
}

static char *locked(void) {
    struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
    char *at = mmap(0, LOCKED, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NEED(at != MAP_FAILED && !setrlimit(RLIMIT_MEMLOCK, &all) && !mlock(at, LOCKED));
    return at;
}

static void memory_is_locked(void) {
    char *at = locked();
    BESIDE("munlock of much", CHECK(!munlock(at, LOCKED)));
    NEED(!mlock(at, LOCKED));
    BESIDE("mprotect(PROT_NONE) of locked memory", CHECK(!mprotect(at, LOCKED, PROT_NONE)));
    NEED(!mprotect(at, LOCKED, RW));
    for (size_t i = 0; i < LOCKED; i += PAGE) at[i] = 1;
    int copy = -1;
    BESIDE("uvm_export of a copy of locked memory", CHECK((copy = uvm_export(at, LOCKED, UVM_COPY, RW)) >= 0));
    BESIDE("the end of a copy of locked memory", CHECK(!close(copy)));
    BESIDE("fork of locked memory", forked());
    char *to = mmap(0, LOCKED, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    BESIDE("mremap of locked memory", CHECK(mremap(at, LOCKED, LOCKED, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to));
    BESIDE("mmap(MAP_FIXED) over locked memory", CHECK(mmap(to, LOCKED, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == to));
    NEED(!munmap(to, LOCKED));
    at = locked();
    BESIDE("munmap of locked memory", CHECK(!munmap(at, LOCKED)));
    pid_t it = child(locked);
    BESIDE("the end of a process with locked memory", CHECK(!kill(it, SIGKILL) && waitpid(it, 0, 0) == it));
    // Wired as it is touched, which it isn't.
    size_t span = 1ul << 36;
    at = mmap(0, span, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    BESIDE("mlock2 of a large span", CHECK(at != MAP_FAILED && !syscall(SYS_mlock2, at, span, 1)));
    BESIDE("munmap of a large locked span", CHECK(!munmap(at, span)));
    // Locked as it is touched, and all but one page are there without a translation.
    at = locked();
    NEED(!munlock(at, LOCKED) && !mprotect(at, LOCKED, PROT_NONE) && !mprotect(at, LOCKED, RW));
    NEED(!syscall(SYS_mlock2, at, LOCKED, 1));
    at[0] = 1;
    BESIDE("fork of memory locked as it is touched", forked());
    BESIDE("uvm_export of such a copy", CHECK((copy = uvm_export(at, LOCKED, UVM_COPY, RW)) >= 0));
    NEED(!close(copy) && !munmap(at, LOCKED));
}

// What a child has too, and waits to be copied: by leaves of 64 pages, and by runs of pages that as many refer to.
static void stores_after_forks(void) {
    enum { LEAVES = 60000, HOLED = 120000 };
    int said[2];
    char byte, *at = mmap(0, LEAVES * 64ul * PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    NEED(at != MAP_FAILED && !pipe(said));
    for (size_t i = 0; i < LEAVES; i++) at[i * 64 * PAGE] = 1;
    pid_t it = fork();
    if (it == 0) for (;;) pause();
    NEED(it > 0);
    BESIDE("a store to sparse memory that a child has", at[LEAVES / 2 * 64ul * PAGE] = 2);
    BESIDE("fork of sparse memory that a child has", forked());
    BESIDE("the end of a child with sparse memory", CHECK(!kill(it, SIGKILL) && waitpid(it, 0, 0) == it));
    NEED(!munmap(at, LEAVES * 64ul * PAGE));
    at = mmap(0, HOLED * (size_t)PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    NEED(at != MAP_FAILED);
    at[PAGE] = 1;
    it = fork();
    if (it == 0) {
        for (size_t i = 0; i < HOLED; i += 2) NEED(!munmap(at + i * PAGE, PAGE));
        NEED(write(said[1], "x", 1) == 1);
        for (;;) pause();
    }
    NEED(it > 0 && read(said[0], &byte, 1) == 1);
    BESIDE("a store to memory that a child left holes in", at[PAGE] = 2);
    pid_t other = -1;
    BESIDE("fork of memory that a child left holes in", if (!(other = fork())) for (;;) pause());
    BESIDE("the end of its child", CHECK(!kill(other, SIGKILL) && waitpid(other, 0, 0) == other));
    BESIDE("the end of a child that left holes", CHECK(!kill(it, SIGKILL) && waitpid(it, 0, 0) == it));
    NEED(!munmap(at, HOLED * (size_t)PAGE) && !close(said[0]) && !close(said[1]));
}

// Half a terabyte of which nothing is there.
static void spans_are_looked_at(void) {
    size_t span = 1ul << 36;
    char *at = mmap(0, span, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    unsigned char *is_there = mmap(0, span / PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    NEED(at != MAP_FAILED && is_there != MAP_FAILED);
    for (size_t i = 0; i < 512; i++) (void)*(volatile char *)(at + i * (span / 512));
    BESIDE("mincore of a large span", CHECK(!mincore(at, span, is_there)));
    BESIDE("mprotect of a large span", CHECK(!mprotect(at, span, PROT_NONE)));
    BESIDE("munmap of a large span", CHECK(!munmap(at, span)));
}

static void read_folder(const char *path, int least) {
    static char names[4 * MEGA];
    int fd = open(path, O_RDONLY | O_DIRECTORY);
    long n, bytes = 0;
    while ((n = syscall(SYS_getdents64, fd, names, sizeof names)) > 0) bytes += n;
    CHECK(n == 0 && bytes > 24l * least);
    close(fd);
}

// --- entries ------------------------------------------------------------------------------------------------------------

static void read_whole(const char *path) {
    static char text[64 * 1024];
    int fd = open(path, O_RDONLY);
    NEED(fd >= 0);
    while (read(fd, text, sizeof text) > 0) continue;
    close(fd);
}

static void read_pagemap(char *from, size_t size) {
    static char words[64 * 1024];
    int fd = open("/proc/self/pagemap", O_RDONLY);
    NEED(fd >= 0);
    off_t at = (uintptr_t)from / PAGE * 8, end = at + size / PAGE * 8;
    for (ssize_t n; at < end && (n = pread(fd, words, sizeof words, at)) > 0;) at += n;
    CHECK(at >= end);
    close(fd);
}

// Pages so far apart that each has a table of its own, and all else that lies over a range.
static char *far_apart(size_t distance) {
    static char *at;
    if (!at) at = mmap(0, ENTRIES * distance, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    NEED(at != MAP_FAILED);
    for (size_t i = 0; i < ENTRIES; i++) at[i * distance] = 1;
    return at;
}

static void sparse_memory_of(size_t distance) {
    char *at = far_apart(distance), *to;
    size_t size = ENTRIES * distance;
    BESIDE("reading status of sparse memory", read_whole("/proc/self/status"));
    BESIDE("reading smaps_rollup of sparse memory", read_whole("/proc/self/smaps_rollup"));
    BESIDE("madvise(MADV_COLD) of sparse memory", CHECK(!madvise(at, size, MADV_COLD)));
    BESIDE("madvise(MADV_PAGEOUT) of sparse memory", CHECK(!madvise(at, size, MADV_PAGEOUT)));
    BESIDE("madvise(MADV_WILLNEED) of sparse memory", CHECK(!madvise(at, size, MADV_WILLNEED)));
    BESIDE("msync of sparse memory", CHECK(!msync(at, size, MS_SYNC)));
    BESIDE("fork of sparse memory", forked());
    BESIDE("mprotect of sparse memory", CHECK(!mprotect(at, size, PROT_READ)));
    NEED(!mprotect(at, size, RW));
    far_apart(distance);
    BESIDE("madvise(MADV_FREE) of sparse memory", CHECK(!madvise(at, size, MADV_FREE)));
    far_apart(distance);
    BESIDE("madvise(MADV_DONTNEED) of sparse memory", CHECK(!madvise(at, size, MADV_DONTNEED)));
    far_apart(distance);
    BESIDE("mprotect(PROT_NONE) of sparse memory", CHECK(!mprotect(at, size, PROT_NONE)));
    NEED(!mprotect(at, size, RW));
    BESIDE("madvise(MADV_DONTNEED) of sparse memory without translations", CHECK(!madvise(at, size, MADV_DONTNEED)));
    far_apart(distance);
    BESIDE("mremap of sparse memory", CHECK((to = mremap(at, size, size + PAGE, MREMAP_MAYMOVE)) != MAP_FAILED));
    NEED(mremap(to, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, at) == at);
    far_apart(distance);
    NEED((to = mmap(0, size + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) != MAP_FAILED);
    BESIDE("mremap of sparse memory to another place", CHECK(mremap(at, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, to + PAGE) == to + PAGE));
    BESIDE("munmap of sparse memory", CHECK(!munmap(to, size + 2 * PAGE)));
}

static void sparse_memory(void) {
    sparse_memory_of(2 * MEGA);
}

static void very_sparse_memory(void) {
    sparse_memory_of(1024ul * MEGA);
}

static void sparse_memory_is_passed(size_t distance) {
    char *at = far_apart(distance), *there;
    size_t size = ENTRIES * distance;
    // What is shared is charged by its addresses: nobody may have the kernel keep so many.
    int fd = -1;
    BESIDE("uvm_export of sparse memory to share", CHECK(uvm_export(at, size, UVM_SHARE, RW) == -1 && errno == ENOMEM));
    for (enum uvm_export mode = UVM_COPY; mode <= UVM_DONATE_ZERO; mode++) {
        BESIDE("uvm_export of sparse memory", CHECK((fd = uvm_export(at, size, mode, RW)) >= 0));
        BESIDE("uvm_import of sparse memory", CHECK((there = uvm_import(fd, 0, 0)) != (void *)-1));
        BESIDE("munmap of imported sparse memory", CHECK(!munmap(there, size)));
        BESIDE("close of exported sparse memory", CHECK(!close(fd)));
        if (mode == UVM_DONATE) NEED(mmap(at, size, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == at);
        far_apart(distance);
    }
}

static void sparse_memory_moves(void) {
    sparse_memory_is_passed(2 * MEGA);
}

static void very_sparse_memory_moves(void) {
    sparse_memory_is_passed(1024ul * MEGA);
}

// What is in the first tables hides what is behind them.
static void sparse_memory_behind_dense_of(size_t distance, size_t tables) {
    enum { FIRST = 256, PAGES_OF_ONE = 64 };
    size_t size = tables * distance, table = 2 * MEGA;
    char *at = mmap(0, size, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char *room = mmap(0, size + table, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    NEED(at != MAP_FAILED && room != MAP_FAILED);
    char *to = room + (((uintptr_t)at - (uintptr_t)room) & (table - 1));
    for (size_t i = 0; i < tables; i++)
        for (size_t j = 0; j < (i < FIRST ? PAGES_OF_ONE : 1); j++) at[i * distance + j * PAGE] = 1;
    BESIDE("mremap of sparse memory behind dense", CHECK(mremap(at, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to));
    for (size_t i = 0; i < tables; i++)
        for (size_t j = 0; j < (i < FIRST ? PAGES_OF_ONE : 1); j++) to[i * distance + j * PAGE] = 1;
    BESIDE("mremap(MREMAP_DONTUNMAP) of sparse memory behind dense", CHECK((at = mremap(to, size, size, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0)) != MAP_FAILED));
    NEED(!munmap(at, size) && !munmap(room, size + table));
}

static void sparse_memory_behind_dense(void) {
    sparse_memory_behind_dense_of(2 * MEGA, ENTRIES);
    // As many as may be moved in one piece, and too far from each other for that.
    sparse_memory_behind_dense_of(64 * MEGA, 2000);
    sparse_memory_behind_dense_of(1024ul * MEGA, 2000);
}

static void shared_memory_is_given(void) {
    enum { MAPPED = 200 };
    size_t part = 8 * MEGA, size = MAPPED * part;
    int given = -1, fd = file(part);
    char *at = mmap(0, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    NEED(at != MAP_FAILED);
    for (size_t i = 0; i < size; i += part)
        NEED(mmap(at + i, part, RW, MAP_SHARED | MAP_FIXED | MAP_POPULATE, fd, 0) == at + i);
    BESIDE("uvm_export of shared memory to be read", CHECK((given = uvm_export(at, size, UVM_DONATE, PROT_READ)) >= 0));
    BESIDE("close of exported shared memory", CHECK(!close(given)));
    close(fd);
}

// Half of them with a page.
static char *entries_with_pages(void) {
    char *at = entries();
    for (size_t i = PAGE; i < (size_t)MAPPINGS * PAGE; i += 2 * PAGE) at[i] = 1;
    return at;
}

static char *locked_entries(void) {
    struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
    char *at = entries_with_pages();
    NEED(!setrlimit(RLIMIT_MEMLOCK, &all) && !mlock(at, (size_t)MAPPINGS * PAGE));
    return at;
}

static void many_entries_are_passed(void) {
    size_t size = (size_t)MAPPINGS * PAGE;
    char *old = entries();
    BESIDE("uvm_minherit of many mappings", CHECK(!uvm_minherit(old, size, UVM_INHERIT_NONE)));
    NEED(!munmap(old, size));
    for (enum uvm_export mode = UVM_SHARE; mode <= UVM_DONATE_ZERO; mode++) {
        char *at = entries_with_pages(), *there;
        int fd = -1;
        BESIDE("uvm_export of many mappings", fd = uvm_export(at, size, mode, PROT_READ));
        if (fd < 0) CHECK(errno == E2BIG);
        if (fd >= 0) {
            BESIDE("uvm_import of many mappings", CHECK((there = uvm_import(fd, 0, 0)) != (void *)-1));
            if (there != (void *)-1) BESIDE("munmap of many imported mappings", CHECK(!munmap(there, size)));
            BESIDE("close of many exported mappings", CHECK(!close(fd)));
        }
        NEED(!munmap(at, size));
    }
}

static void many_entries(void) {
    char *at = entries();
    size_t size = (size_t)MAPPINGS * PAGE;
    for (size_t i = PAGE; i < size; i += 2 * PAGE) at[i] = 1;
    BESIDE("reading maps", read_whole("/proc/self/maps"));
    BESIDE("reading smaps", read_whole("/proc/self/smaps"));
    BESIDE("reading smaps_rollup", read_whole("/proc/self/smaps_rollup"));
    BESIDE("reading status", read_whole("/proc/self/status"));
    BESIDE("reading stat", read_whole("/proc/self/stat"));
    BESIDE("reading statm", read_whole("/proc/self/statm"));
    if (!access("/proc/self/pagemap", F_OK)) BESIDE("reading pagemap", read_pagemap(at, size));
    BESIDE("madvise of many mappings", CHECK(!madvise(at, size, MADV_RANDOM)));
    struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
    NEED(!setrlimit(RLIMIT_MEMLOCK, &all));
    BESIDE("mlock of many mappings", CHECK(!mlock(at, size)));
    BESIDE("munlock of many mappings", CHECK(!munlock(at, size)));
    BESIDE("mprotect of many mappings", CHECK(!mprotect(at, size, PROT_READ)));
    BESIDE("mprotect of one mapping that was many", CHECK(!mprotect(at, size, RW)));
    NEED(!munmap(at, size));
    at = entries();
    BESIDE("munmap of many mappings", CHECK(!munmap(at, size)));
    at = locked_entries();
    BESIDE("munmap of many locked mappings", CHECK(!munmap(at, size)));
    at = locked_entries();
    BESIDE("mmap(MAP_FIXED) over many locked mappings", CHECK(mmap(at, size, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at));
    NEED(!munmap(at, size));
    at = entries();
    BESIDE("mremap of many mappings", CHECK(mremap(at, PAGE, PAGE, MREMAP_MAYMOVE) == at));
}

static void segments(void) {
    size_t size = (size_t)MAPPINGS * PAGE;
    int id = shmget(IPC_PRIVATE, size, IPC_CREAT | 0600);
    char *at = shmat(id, 0, 0);
    NEED(id >= 0 && at != (char *)-1);
    for (size_t i = 0; i < size; i += 2 * PAGE) NEED(!mprotect(at + i, PAGE, PROT_READ));
    enum { SEGMENTS = 4000 };
    static int others[SEGMENTS];
    for (int i = 0; i < SEGMENTS; i++) NEED((others[i] = shmget(IPC_PRIVATE, PAGE, IPC_CREAT | 0600)) >= 0);
    BESIDE("shmdt of many mappings", CHECK(!shmdt(at)));
    unsigned char there;
    FAILS(mincore(at, PAGE, &there), ENOMEM);
    CHECK(!shmctl(id, IPC_RMID, 0));
    // Mappings that lie as those of a segment do, and are none's.
    int fd = memfd_create("none", 0);
    NEED(fd >= 0 && !ftruncate(fd, size) && (at = mmap(0, size, RW, MAP_SHARED, fd, 0)) != MAP_FAILED);
    for (size_t i = 0; i < size; i += 2 * PAGE) NEED(!mprotect(at + i, PAGE, PROT_READ));
    BESIDE("shmdt that finds no segment", FAILS(shmdt(at), EINVAL));
    BESIDE("shmget beside many segments", CHECK(shmget(0x5e9, PAGE, IPC_CREAT | 0600) >= 0));
    NEED(!munmap(at, size) && !close(fd) && !shmctl(shmget(0x5e9, PAGE, 0), IPC_RMID, 0));
    // All are removed, and gone or still attached.
    for (int i = 0; i < SEGMENTS; i++) NEED((i % 2 || shmat(others[i], 0, 0) != (void *)-1) && !shmctl(others[i], IPC_RMID, 0));
    struct shmid_ds info;
    BESIDE("SHM_INFO beside many removed segments", CHECK(shmctl(0, SHM_INFO, &info) > 0));
    BESIDE("shmget beside many removed segments", CHECK((id = shmget(IPC_PRIVATE, PAGE, IPC_CREAT | 0600)) >= 0));
    CHECK(!shmctl(id, IPC_RMID, 0));
    NEED((id = shmget(IPC_PRIVATE, MUCH, IPC_CREAT | 0600)) >= 0);
    BESIDE("SHM_LOCK", CHECK(!shmctl(id, SHM_LOCK, 0)));
    BESIDE("SHM_UNLOCK", CHECK(!shmctl(id, SHM_UNLOCK, 0)));
    CHECK(!shmctl(id, IPC_RMID, 0));
}

// --- processes ----------------------------------------------------------------------------------------------------------

static void processes_end(void) {
    pid_t it = child(memory);
    BESIDE("the end of a large process", CHECK(!kill(it, SIGKILL) && waitpid(it, 0, 0) == it));
    it = child(entries);
    BESIDE("the end of a process with many mappings", CHECK(!kill(it, SIGKILL) && waitpid(it, 0, 0) == it));
    it = child(locked_entries);
    BESIDE("the end of a process with many locked mappings", CHECK(!kill(it, SIGKILL) && waitpid(it, 0, 0) == it));
}

// Each in a group of its own, which has its link to the session by the parent.
static char *groups(void) {
    for (int i = 0; i < MANY; i++) {
        pid_t it = fork();
        NEED(it >= 0);
        if (it == 0) is_there();
        NEED(!setpgid(it, it));
    }
    return 0;
}

static void parents_end(void) {
    pid_t it = child(groups);
    usleep(200000);
    BESIDE("the end of a parent of many groups", CHECK(!kill(it, SIGKILL) && waitpid(it, 0, 0) == it));
}

static void *waits(void *word) {
    syscall(SYS_futex, word, 0, 0, 0, 0, 0);
    return 0;
}

static void many_waiters(void) {
    int words[2] = {0};
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 16384);
    for (int i = 0; i < MANY; i++) {
        pthread_t thread;
        NEED(!pthread_create(&thread, &attributes, waits, &words[0]));
    }
    usleep(300000);
    BESIDE("moving many waiters", CHECK(syscall(SYS_futex, &words[0], 3, 0, MANY, &words[1], 0) == MANY));
    CHECK(syscall(SYS_futex, &words[1], 3, MANY / 2, MANY, &words[0], 0) == MANY);
    CHECK(syscall(SYS_futex, &words[1], 1, INT_MAX, 0, 0, 0) == 0);
    BESIDE("waking many waiters, who end", CHECK(syscall(SYS_futex, &words[0], 1, INT_MAX, 0, 0, 0) == MANY - MANY / 2); usleep(100000));
}

static void processes_fork(void) {
    memory();
    BESIDE("fork of a large process", forked());
    locked();
    BESIDE("fork of a process with locked memory", forked());
}

static void many_mappings_fork(void) {
    char *at = entries();
    BESIDE("fork of many mappings", forked());
    for (size_t i = PAGE; i < (size_t)MAPPINGS * PAGE; i += 2 * PAGE) at[i] = 1;
    BESIDE("fork of many mappings with pages", forked());
}

static char *descriptors(void) {
    struct rlimit most = {ENTRIES + 100, ENTRIES + 100};
    NEED(!setrlimit(RLIMIT_NOFILE, &most));
    int fd = open("/dev/null", O_RDONLY);
    for (int i = 0; i < ENTRIES; i++) NEED(dup(fd) >= 0);
    return 0;
}

static void many_descriptors(void) {
    pid_t it = child(descriptors);
    BESIDE("the end of a process with many descriptors", CHECK(!kill(it, SIGKILL) && waitpid(it, 0, 0) == it));
    descriptors();
    struct pollfd *wanted = calloc(ENTRIES, sizeof *wanted);
    for (int i = 0; i < ENTRIES; i++) wanted[i] = (struct pollfd){.fd = 10 + i, .events = POLLPRI};
    BESIDE("poll of many descriptors", CHECK(poll(wanted, ENTRIES, 0) >= 0));
    BESIDE("fork with many descriptors", forked());
    BESIDE("close_range", CHECK(!syscall(SYS_close_range, 10, ~0u, 0)));
}

// Each waits for room in one queue, which all of them have to be told of.
static void many_senders(void) {
    struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "\0senders"};
    int server = socket(AF_UNIX, SOCK_DGRAM, 0);
    struct rlimit most = {SENDERS + 100, SENDERS + 100};
    NEED(server >= 0 && !bind(server, (void *)&name, sizeof name) && !setrlimit(RLIMIT_NOFILE, &most));
    struct pollfd *wanted = calloc(SENDERS, sizeof *wanted);
    for (int i = 0; i < SENDERS; i++) {
        int sender = socket(AF_UNIX, SOCK_DGRAM, 0);
        NEED(sender >= 0 && !connect(sender, (void *)&name, sizeof name));
        wanted[i] = (struct pollfd){.fd = sender, .events = POLLOUT};
    }
    static char bytes[4096];
    while (send(wanted[0].fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0) continue;
    BESIDE("poll of many senders", CHECK(poll(wanted, SENDERS, 0) >= 0));
    BESIDE("poll of many senders that wait", CHECK(poll(wanted, SENDERS, 1) >= 0));
    while (recv(server, bytes, sizeof bytes, MSG_DONTWAIT) > 0) continue;
    for (int i = 0; i < SENDERS; i++) close(wanted[i].fd);
    close(server), free(wanted);
}

// Each of them in the next one's queue.
static void sockets_in_sockets(void) {
    int before = -1;
    struct rlimit most = {ENTRIES + 100, ENTRIES + 100};
    NEED(!setrlimit(RLIMIT_NOFILE, &most));
    for (int i = 0; i < MANY; i++) {
        int ends[2];
        NEED(!socketpair(AF_UNIX, SOCK_DGRAM, 0, ends));
        if (before >= 0) {
            if (send_files(ends[0], &before, 1, "", 1, MSG_DONTWAIT) != 1) break;
            close(before);
        }
        close(ends[0]);
        before = ends[1];
    }
    BESIDE("close of a chain of sockets", CHECK(!close(before)));
}

enum { AT_ONCE = 250 };

static void send_socket(int to, int what) {
    int files[AT_ONCE];
    for (int i = 0; i < AT_ONCE; i++) files[i] = what;
    NEED(send_files(to, files, AT_ONCE, "", 1, 0) == 1);
}

// A message's files are taken out without a search among all that are on their way.
static void sockets_in_many_messages(void) {
    int many[2], one[2];
    struct rlimit most = {ENTRIES + 100, ENTRIES + 100};
    NEED(!setrlimit(RLIMIT_NOFILE, &most));
    NEED(!socketpair(AF_UNIX, SOCK_STREAM, 0, many) && !socketpair(AF_UNIX, SOCK_STREAM, 0, one));
    for (int i = 0; i < ENTRIES / AT_ONCE - 1; i++) send_socket(many[0], many[0]);
    send_socket(one[0], one[0]);
    char byte;
    BESIDE("receiving of sockets beside many on their way", CHECK(read(one[1], &byte, 1) == 1));
    close(many[0]);
    close(one[0]);
    BESIDE("close of a socket with many in its queue", CHECK(!close(many[1])));
    close(one[1]);
}

enum { OF_A_USER = 4096, USERS = 5, REFUSED = 20 };

// Puts as many sockets on their way as a user may.
static char *sends_all_it_may(void) {
    static int ends[2], files[AT_ONCE];
    struct rlimit most = {OF_A_USER, OF_A_USER};
    NEED(!setrlimit(RLIMIT_NOFILE, &most) && !socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    for (int i = 0; i < AT_ONCE; i += 2) NEED(!socketpair(AF_UNIX, SOCK_STREAM, 0, files + i));
    for (int left = OF_A_USER; left; ) {
        int count = left < AT_ONCE ? left : AT_ONCE;
        NEED(send_files(ends[0], files, count, "", 1, 0) == 1);
        left -= count;
    }
    return (char *)ends;
}

static uid_t next_user = 2000;

static char *another_sends_all_it_may(void) {
    NEED(!setuid(next_user));
    return sends_all_it_may();
}

// Nobody looks at all sockets that are on their way in one piece, or as often as a program likes.
static void sockets_of_many_users(void) {
    pid_t users[USERS - 1];
    for (int i = 0; i < USERS - 1; i++, next_user++) users[i] = child(another_sends_all_it_may);
    int *ends = (int *)sends_all_it_may();
    BESIDE("messages that are refused", for (int i = 0; i < REFUSED; i++) FAILS(send_files(ends[0], ends, 1, "", 1, 0), ETOOMANYREFS));
    BESIDE("closes beside sockets on their way", for (int i = 0; i < 3 * USERS * OF_A_USER / 16; i++) CHECK(!close(dup(0))));
    for (int i = 0; i < USERS - 1; i++) NEED(!kill(users[i], SIGKILL) && waitpid(users[i], 0, 0) == users[i]);
}

enum { MESSAGES = 1024, SHARING = 1024, FEW_BYTES = 15 };

// Messages of a few bytes, each byte somewhere else.
static struct mmsghdr *messages(struct sockaddr_in *to) {
    static char byte;
    static struct iovec pieces[FEW_BYTES];
    struct mmsghdr *all = calloc(MESSAGES, sizeof *all);
    NEED(all);
    for (int i = 0; i < FEW_BYTES; i++) pieces[i] = (struct iovec){&byte, 1};
    for (int i = 0; i < MESSAGES; i++) {
        struct msghdr *it = &all[i].msg_hdr;
        it->msg_iov = pieces, it->msg_iovlen = FEW_BYTES;
        it->msg_name = to, it->msg_namelen = to ? sizeof *to : 0;
    }
    return all;
}

static struct sockaddr_in shared_port(void) {
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(7777)};
}

// Sockets that share a port.
static void share_a_port(void) {
    struct rlimit most = {ENTRIES, ENTRIES};
    struct sockaddr_in at = shared_port();
    int one = 1;
    NEED(!setrlimit(RLIMIT_NOFILE, &most));
    for (int i = 0; i < SHARING; i++) {
        int it = socket(AF_INET, SOCK_DGRAM, 0);
        NEED(it >= 0 && !setsockopt(it, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one) && !bind(it, (void *)&at, sizeof at));
    }
}

// The library's own call sends them one by one.
static int send_all(int over, struct mmsghdr *all) { return syscall(SYS_sendmmsg, over, all, MESSAGES, 0); }

static void many_messages(void) {
    struct sockaddr_in at = shared_port();
    int ends[2], sender = socket(AF_INET, SOCK_DGRAM, 0);
    NEED(sender >= 0 && !socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    share_a_port();
    BESIDE("sendmmsg to a port that many share", CHECK(send_all(sender, messages(&at)) == MESSAGES));
    struct mmsghdr *all = messages(0);
    BESIDE("sendmmsg", CHECK(send_all(ends[0], all) == MESSAGES));
    BESIDE("recvmmsg", CHECK(recvmmsg(ends[1], all, MESSAGES, 0, 0) == MESSAGES));
    for (int i = 0; i < SHARING; i++) {
        struct epoll_event wanted = {.events = EPOLLIN | EPOLLET};
        int set = epoll_create1(0);
        NEED(set >= 0 && !epoll_ctl(set, EPOLL_CTL_ADD, ends[1], &wanted));
    }
    BESIDE("sendmmsg to a socket in many poll sets", CHECK(send_all(ends[0], all) == MESSAGES));
    static char bytes[4 << 20];
    int most = sizeof bytes;
    NEED(!setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &most, sizeof most));
    BESIDE("a write to a socket in many poll sets", CHECK(send(ends[0], bytes, sizeof bytes, MSG_DONTWAIT) > 0));
}

enum { FUTEX_WAIT, FUTEX_WAKE, FUTEX_REQUEUE = 3 };

static void *waits_for_turn(void *for_what) {
    syscall(SYS_futex, for_what, FUTEX_WAIT, 0, 0, 0, 0);
    is_there();
    return 0;
}

static int futex;

static char *threads(void) {
    pthread_attr_t small;
    NEED(!pthread_attr_init(&small) && !pthread_attr_setstacksize(&small, 4 * PAGE));
    pthread_t one;
    for (int i = 0; i < THREADS; i++) NEED(!pthread_create(&one, &small, waits_for_turn, &futex));
    return 0;
}

static void exec_all(char *const *words) {
    pid_t it = fork();
    if (it == 0) {
        execve("/proc/self/exe", words, environ);
        _exit(1);
    }
    int status;
    CHECK(it > 0 && waitpid(it, &status, 0) == it && status == 0);
}

// A list of robust locks: an entry on each page, and its word on a page that isn't there yet.
static void *ends_with_locks(void *at) {
    enum { LOCKS = 2047 };
    struct list { void *first; long offset; void *pending; } *list = at;
    char *first = (char *)at + PAGE;
    *list = (struct list){first, (long)(LOCKS + 1) * PAGE, 0};
    for (int i = 0; i < LOCKS; i++) *(void **)(first + (size_t)i * PAGE) = i + 1 < LOCKS ? first + (size_t)(i + 1) * PAGE : at;
    NEED(!syscall(SYS_set_robust_list, list, sizeof *list));
    usleep(20000);
    syscall(SYS_exit, 0);
    return 0;
}

static void robust_locks(void) {
    pthread_t thread;
    void *at = mmap(0, (size_t)4096 * PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(at != MAP_FAILED);
    BESIDE("the end of a thread with many robust locks", NEED(!pthread_create(&thread, 0, ends_with_locks, at)); usleep(200000));
}

static char *much_memory(void) {
    return mmap(0, 4 * MUCH, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
}

static char *much_in_a_file(void) {
    int fd = memfd_create("much", 0);
    return fd < 0 || fallocate(fd, 0, 0, 4 * MUCH) ? 0 : (char *)1;
}

// Who is killed gets no more memory, however much it has asked for: the whole takes some 250 ms, the rest of a turn and the end 100 at most.
static void killed_while_memory_is_made(void) {
    static char *(*const ways[])(void) = {much_memory, much_in_a_file};
    for (int way = 0; way < 2; way++) {
        pid_t it = fork();
        NEED(it >= 0);
        if (it == 0) _exit(ways[way]() ? 1 : 2);
        usleep(20000);
        int status;
        int64_t killed = now();
        NEED(!kill(it, SIGKILL) && waitpid(it, &status, 0) == it);
        CHECK(WIFSIGNALED(status));
        if (!CHECK(now() - killed < 100 * MILLI)) printf("  way %d: it ended %lld us after it was killed\n", way, (long long)(now() - killed) / 1000);
    }
}

static void many_threads(void) {
    pid_t it = child(threads);
    BESIDE("the end of a process with many threads", CHECK(!kill(it, SIGKILL) && waitpid(it, 0, 0) == it));
    threads();
    usleep(100000);
    BESIDE("futex requeue", CHECK(syscall(SYS_futex, &futex, FUTEX_REQUEUE, 1, 100000, &failed_checks, 0) >= THREADS - 1));
    BESIDE("futex wake", CHECK(syscall(SYS_futex, &failed_checks, FUTEX_WAKE, 100000, 0, 0, 0) >= THREADS - 1));
    BESIDE("getdents of /proc/self/task", read_folder("/proc/self/task", THREADS));
    BESIDE("reading stat of many threads", read_whole("/proc/self/stat"));
    BESIDE("reading status of many threads", read_whole("/proc/self/status"));
    BESIDE("reading io of many threads", read_whole("/proc/self/io"));
    BESIDE("fork of a process with many threads", forked());
}

// Each sleeps until the next of moments that are the same for all.
enum { BETWEEN_MOMENTS = 50 };

static void *sleeps_until_the_next(void *nothing) {
    for (;;) {
        int64_t next = (now() / (BETWEEN_MOMENTS * MILLI) + 1) * BETWEEN_MOMENTS * MILLI;
        struct timespec until = {next / 1000000000, next % 1000000000};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, 0);
    }
    return nothing;
}

static char *sleepers_until_one_moment(void) {
    pthread_attr_t small;
    NEED(!pthread_attr_init(&small) && !pthread_attr_setstacksize(&small, 4 * PAGE));
    pthread_t one;
    for (int i = 0; i < 3 * THREADS; i++) NEED(!pthread_create(&one, &small, sleeps_until_the_next, 0));
    return 0;
}

static void many_sleep_until_one_moment(void) {
    pid_t it = child(sleepers_until_one_moment);
    usleep(2 * BETWEEN_MOMENTS * 1000);
    BESIDE("threads that sleep until one moment", usleep(8 * BETWEEN_MOMENTS * 1000));
    NEED(!kill(it, SIGKILL) && waitpid(it, 0, 0) == it);
}

static volatile pid_t *to_seize;

static void *is_seized(void *nothing) {
    *to_seize = gettid();
    while (*to_seize) sched_yield();
    return nothing;
}

// Threads of another process that ended, as many as there may be, and that it doesn't wait for.
static char *tracees(void) {
    to_seize = mmap(0, PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(to_seize != MAP_FAILED);
    pid_t it = fork();
    NEED(it >= 0);
    if (it == 0) {
        pthread_t thread;
        for (int i = 0; i < TRACEES && !pthread_create(&thread, 0, is_seized, 0); i++) pthread_join(thread, 0);
        *to_seize = -1;
        _exit(0);
    }
    for (pid_t thread; (thread = *to_seize) >= 0; sched_yield()) {
        if (thread == 0) continue;
        NEED(!ptrace(PTRACE_SEIZE, thread, 0, 0));
        *to_seize = 0;
    }
    return 0;
}

static void may_be_numbered_below(long end) {
    char text[32];
    int fd = open("/proc/sys/kernel/pid_max", O_WRONLY), length = sprintf(text, "%ld", end);
    NEED(fd >= 0 && write(fd, text, length) == length && !close(fd));
}

static void many_tracees(void) {
    long before = number_after("/proc/sys/kernel/pid_max", "");
    // Numbers begin again, and then nearly all are taken.
    may_be_numbered_below(301);
    pid_t last = fork();
    if (last == 0) _exit(0);
    if (last > 0) NEED(waitpid(last, 0, 0) == last);
    may_be_numbered_below(before);
    pid_t it = child(tracees);
    last = fork();
    if (last == 0) _exit(0);
    NEED(last > 0 && waitpid(last, 0, 0) == last);
    may_be_numbered_below(last + 4);
    BESIDE("forks while most numbers are taken", for (int i = 0; i < 10; i++) forked());
    may_be_numbered_below(before);
    BESIDE("the end of a tracer", CHECK(!kill(it, SIGKILL) && waitpid(it, 0, 0) == it));
}

static pid_t seized[THREADS];

static char *seizes(void) {
    for (int i = 0; i < THREADS; i++) NEED(!ptrace(PTRACE_SEIZE, seized[i], 0, 0));
    return 0;
}

// They end for their parent when their tracer has.
static void many_processes_that_are_traced(void) {
    int waited = 0;
    for (int i = 0; i < THREADS; i++) {
        NEED((seized[i] = fork()) >= 0);
        if (seized[i] == 0) is_there();
    }
    pid_t it = child(seizes);
    for (int i = 0; i < THREADS; i++) NEED(!kill(seized[i], SIGKILL));
    usleep(1000000);
    NEED(waitpid(-1, 0, WNOHANG) == 0);
    BESIDE("the end of a tracer of many processes", CHECK(!kill(it, SIGKILL)); while (waited <= THREADS && wait(0) > 0) waited++);
    CHECK(waited == THREADS + 1);
}

static void many_arguments(void) {
    static char *words[MANY_WORDS + 4] = {"latency", "nothing"};
    for (int i = 2; i < MANY_WORDS; i++) words[i] = "";
    BESIDE("exec with many arguments", exec_all(words));
    static char long_word[120000];
    memset(long_word, 'x', sizeof long_word - 1);
    for (int i = 2; i < MANY_WORDS; i++) words[i] = i < 16 ? long_word : 0;
    BESIDE("exec with long arguments", exec_all(words));
}

static char *children(void) {
    NEED(!setpgid(0, 0));
    for (int i = 0; i < THREADS; i++) {
        pid_t it = fork();
        NEED(it >= 0);
        if (it == 0) is_there();
    }
    return 0;
}

static void many_processes(void) {
    pid_t it = child(children);
    BESIDE("getdents of /proc", read_folder("/proc", THREADS));
    BESIDE("kill of a group with no signal", CHECK(!kill(-it, 0)));
    BESIDE("fork beside many", forked());
    NEED(!kill(-it, SIGTERM) && waitpid(it, 0, 0) == it);
    NEED(!prctl(PR_SET_CHILD_SUBREAPER, 1));
    it = child(children);
    BESIDE("the end of a process with many children", CHECK(!kill(it, SIGKILL) && waitpid(it, 0, 0) == it));
    BESIDE("many processes killed at once", NEED(!kill(-it, SIGKILL)); while (waitpid(-it, 0, 0) > 0) continue);
}

static char *timers(void) {
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN};
    struct itimerspec later = {.it_value.tv_sec = 1000};
    sigset_t all;
    sigfillset(&all);
    NEED(!sigprocmask(SIG_BLOCK, &all, 0));
    for (int i = 0; i < ENTRIES; i++) {
        int timer;
        if (syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &timer)) break;
        NEED(!syscall(SYS_timer_settime, timer, 0, &later, 0));
    }
    return 0;
}

static void many_timers(void) {
    pid_t it = child(timers);
    BESIDE("the end of a process with many timers", CHECK(!kill(it, SIGKILL) && waitpid(it, 0, 0) == it));
}

// Timers that go off at one moment, or shortly after one another, each in as many sets as may be.
static void timers_in_many_sets(void) {
    enum { TIMERS = 150, SETS = 250 };
    int timers[TIMERS], sets[SETS];
    struct epoll_event event = {.events = EPOLLIN | EPOLLET}, all[TIMERS];
    for (int i = 0; i < TIMERS; i++) NEED((timers[i] = timerfd_create(CLOCK_MONOTONIC, 0)) >= 0);
    for (int set = 0; set < SETS; set++) {
        NEED((sets[set] = epoll_create1(0)) >= 0);
        for (int i = 0; i < TIMERS; i++) NEED(!epoll_ctl(sets[set], EPOLL_CTL_ADD, timers[i], &event));
        NEED(epoll_wait(sets[set], all, TIMERS, 0) == 0);
    }
    for (int apart = 0; apart <= 50; apart += 50) {
        int64_t next = now() + 20 * MILLI;
        for (int i = 0; i < TIMERS; i++, next += apart * 1000) {
            struct itimerspec at = {.it_value = {next / 1000000000, next % 1000000000}};
            NEED(!timerfd_settime(timers[i], TFD_TIMER_ABSTIME, &at, 0));
        }
        BESIDE(apart ? "timers in many sets, one by one" : "timers in many sets", usleep(60000));
        for (int set = 0; set < SETS; set++) CHECK(epoll_wait(sets[set], all, TIMERS, 0) == TIMERS);
    }
    for (int set = 0; set < SETS; set++) close(sets[set]);
    for (int i = 0; i < TIMERS; i++) close(timers[i]);
}

static char *signals(void) {
    sigset_t all;
    sigfillset(&all);
    NEED(!sigprocmask(SIG_BLOCK, &all, 0));
    int n = 0;
    while (n < 100000 && !sigqueue(getpid(), SIGRTMIN + n % 2, (union sigval){.sival_int = n})) n++;
    CHECK(n > 1000);
    return 0;
}

static void many_signals(void) {
    pid_t it = child(signals);
    BESIDE("the end of a process with many signals", CHECK(!kill(it, SIGKILL) && waitpid(it, 0, 0) == it));
    signals();
    sigset_t last;
    sigemptyset(&last);
    sigaddset(&last, SIGRTMIN + 1);
    siginfo_t about;
    BESIDE("taking a signal of many", CHECK(sigtimedwait(&last, &about, &(struct timespec){0}) == SIGRTMIN + 1));
    BESIDE("ignoring a signal of many", signal(SIGRTMIN, SIG_IGN));
}

static int file_with_locks;

static char *locks(void) {
    for (int i = 0; i < ENTRIES; i++) {
        struct flock lock = {.l_type = i % 2 ? F_RDLCK : F_WRLCK, .l_start = i, .l_len = 1};
        if (fcntl(file_with_locks, F_SETLK, &lock)) break;
    }
    return 0;
}

static void many_locks(void) {
    file_with_locks = file(MEGA);
    struct flock whole = {.l_type = F_WRLCK}, last = {.l_type = F_WRLCK, .l_start = ENTRIES - 1, .l_len = 1};
    pid_t it = child(locks);
    BESIDE("asking for a lock beside many", CHECK(!fcntl(file_with_locks, F_GETLK, &last)));
    BESIDE("the end of a process with many locks", CHECK(!kill(it, SIGKILL) && waitpid(it, 0, 0) == it));
    locks();
    last.l_type = F_WRLCK;
    BESIDE("making one of many locks", fcntl(file_with_locks, F_SETLK, &last));
    BESIDE("reading of locks", { int fd = open("/proc/locks", O_RDONLY); if (fd >= 0) { close(fd); read_whole("/proc/locks"); } });
    BESIDE("one lock in place of many", CHECK(!fcntl(file_with_locks, F_SETLK, &whole)));
    whole.l_type = F_UNLCK;
    NEED(!fcntl(file_with_locks, F_SETLK, &whole));
    locks();
    BESIDE("close of a file with many locks", CHECK(!close(file_with_locks)));
}

static volatile int *had_it;

// With an open file of its own, so that it is an owner of its own. Others run while it has the lock.
static void *waits_for_the_lock(void *nothing) {
    int fd = open("/locked", O_RDWR);
    NEED(fd >= 0 && !flock(fd, LOCK_EX));
    sched_yield();
    __atomic_fetch_add(had_it, 1, __ATOMIC_SEQ_CST);
    NEED(!flock(fd, LOCK_UN));
    is_there();
    return nothing;
}

static char *wait_for_the_lock(void) {
    struct rlimit most = {ENTRIES, ENTRIES};
    pthread_attr_t small;
    NEED(!setrlimit(RLIMIT_NOFILE, &most) && !pthread_attr_init(&small) && !pthread_attr_setstacksize(&small, 4 * PAGE));
    pthread_t one;
    for (int i = 0; i < 3 * THREADS; i++) NEED(!pthread_create(&one, &small, waits_for_the_lock, 0));
    return 0;
}

static void many_wait_for_one_lock(void) {
    int fd = open("/locked", O_CREAT | O_RDWR, 0600);
    had_it = mmap(0, PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(fd >= 0 && had_it != MAP_FAILED && !flock(fd, LOCK_EX));
    pid_t it = child(wait_for_the_lock);
    usleep(200000);
    NEED(*had_it == 0);
    int64_t begun = now();
    BESIDE("a lock that goes round many", CHECK(!flock(fd, LOCK_UN)); while (*had_it < 3 * THREADS) usleep(1000));
    begun = now() - begun;
    if (!CHECK(begun < 200 * MILLI)) printf("  it went round in %lld us\n", (long long)begun / 1000);
    NEED(!kill(it, SIGKILL) && waitpid(it, 0, 0) == it && !close(fd) && !unlink("/locked"));
}

static char *locks_of_many_files(void) {
    struct rlimit most = {ENTRIES + 100, ENTRIES + 100};
    NEED(!setrlimit(RLIMIT_NOFILE, &most));
    for (int i = 0; i < 2 * MANY; i++) {
        int fd = file(0);
        for (int at = 0; at < 200; at += 2) {
            struct flock one = {.l_type = F_WRLCK, .l_start = at, .l_len = 1};
            NEED(!fcntl(fd, F_SETLK, &one));
        }
    }
    return 0;
}

// A process that ends looks for its locks among those of all files, which takes no other's time; one that has none doesn't look.
static void many_files_with_locks(void) {
    int fd = file(PAGE);
    pid_t it = child(locks_of_many_files), other = fork();
    NEED(other >= 0);
    if (other == 0) {
        struct flock one = {.l_type = F_WRLCK, .l_len = 1};
        NEED(!fcntl(fd, F_SETLK, &one));
        is_there();
    }
    usleep(5000);
    BESIDE("the end of a process with a lock", CHECK(!kill(other, SIGKILL) && waitpid(other, 0, 0) == other));
    pid_t none = fork();
    if (none == 0) is_there();
    NEED(none > 0);
    usleep(5000);
    BESIDE("the end of a process without one", CHECK(!kill(none, SIGKILL) && waitpid(none, 0, 0) == none));
    BESIDE("the end of a process with locks of many files", CHECK(!kill(it, SIGKILL) && waitpid(it, 0, 0) == it));
}

// --- files --------------------------------------------------------------------------------------------------------------

static void files_are_cut(void) {
    int fd = file(MUCH);
    BESIDE("ftruncate", CHECK(!ftruncate(fd, 0)));
    close(fd);
    fd = file(MUCH);
    char *at = mmap(0, MUCH, RW, MAP_SHARED, fd, 0);
    NEED(at != MAP_FAILED);
    for (size_t i = 0; i < MUCH; i += PAGE) at[i] = 1;
    BESIDE("ftruncate of a mapped file", CHECK(!ftruncate(fd, PAGE)));
    NEED(!ftruncate(fd, MUCH));
    for (size_t i = 0; i < MUCH; i += PAGE) at[i] = 1;
    BESIDE("fallocate of a hole", CHECK(!fallocate(fd, 3, 0, MUCH)));
    for (size_t i = 0; i < MUCH; i += PAGE) at[i] = 1;
    BESIDE("munmap of a shared file", CHECK(!munmap(at, MUCH)));
    NEED((at = mmap(0, MUCH, RW, MAP_PRIVATE, fd, 0)) != MAP_FAILED && !ftruncate(fd, 0) && !ftruncate(fd, MUCH));
    for (size_t i = 0; i < MUCH; i += PAGE) at[i] = 1;
    BESIDE("ftruncate of a file with private copies", CHECK(!ftruncate(fd, 0)));
    NEED(!munmap(at, MUCH) && !close(fd));
    fd = file(MUCH);
    BESIDE("close of a large file", CHECK(!close(fd)));
    fd = file(0);
    BESIDE("fallocate", CHECK(!fallocate(fd, 0, 0, MUCH)));
    int segment = shmget(IPC_PRIVATE, MUCH, 0600);
    NEED(segment >= 0 && (at = shmat(segment, 0, 0)) != (void *)-1);
    for (size_t i = 0; i < MUCH; i += PAGE) at[i] = 1;
    NEED(!shmctl(segment, IPC_RMID, 0));
    BESIDE("shmdt of the last reference", CHECK(!shmdt(at)));
}

// One page of a file, mapped so often that no list of its mappings can be walked in one piece. Some are locked.
enum { OFTEN = 40000, OFTEN_LOCKED = 1500 };
static int often;

static char *maps_a_page_often(void) {
    volatile char *first = 0, *last = 0;
    for (int i = 0; i < OFTEN; i++) {
        NEED((last = mmap(0, PAGE, RW, MAP_SHARED, often, 0)) != MAP_FAILED);
        if (!first) first = last;
        if (i % (OFTEN / OFTEN_LOCKED) == 0) NEED(!mlock((void *)last, PAGE));
        NEED(*last == 1 && (*last = 1));
    }
    NEED(*first == 1);
    return 0;
}

static void a_page_is_mapped_often(int pages) {
    often = memfd_create("often", 0);
    NEED(often >= 0 && !ftruncate(often, pages * PAGE));
    for (int i = 0; i < pages; i++) NEED(pwrite(often, "\1", 1, i * PAGE) == 1);
    pid_t one = child(maps_a_page_often), other = child(maps_a_page_often);
    char *at = mmap(0, pages * PAGE, RW, MAP_SHARED, often, 0);
    NEED(at != MAP_FAILED && at[0] == 1);
    NEED(!kill(one, SIGKILL));
    BESIDE("the end of a process that maps a page often", CHECK(waitpid(one, 0, 0) == one));
    BESIDE("msync of a page that is mapped often", CHECK(!msync(at, PAGE, MS_SYNC)));
    BESIDE("a hole where a page is mapped often", CHECK(!fallocate(often, 3, 0, PAGE)));
    CHECK(at[0] == 0 && (at[0] = 1));
    BESIDE("cutting a file off whose page is mapped often", CHECK(!ftruncate(often, 0)));
    NEED(!kill(other, SIGKILL) && waitpid(other, 0, 0) == other && !munmap(at, pages * PAGE) && !close(often));
}

static void a_page_is_mapped_often_alone(void) {
    a_page_is_mapped_often(1);
}

static void a_page_is_mapped_often_among_others(void) {
    a_page_is_mapped_often(16);
}

// Memory and a file that 520 children have mapped as their parent has: of each page's mappings one is looked for among all.
enum { SEEN_BY = 520, SEEN = 8 * MEGA };
static char *seen, *seen_file;

static char *sees_all(void) {
    for (size_t i = 0; i < SEEN; i += PAGE) NEED(seen[i] == 1 && seen_file[i] == 1);
    return 0;
}

// Takes whatever comes by a socket and a pipe.
static void reads_all(int socket, int pipe, int other, int other_end) {
    static char bytes[MEGA];
    close(other);
    close(other_end);
    for (;;) {
        struct pollfd ready[] = {{.fd = socket, .events = POLLIN}, {.fd = pipe, .events = POLLIN}};
        NEED(poll(ready, 2, -1) > 0);
        for (int i = 0; i < 2; i++)
            if (ready[i].revents & POLLIN) NEED(read(ready[i].fd, bytes, sizeof bytes) > 0);
    }
}

static void memory_of_many(void) {
    static pid_t all[SEEN_BY];
    int fd = file(SEEN);
    seen = memory_of(SEEN);
    seen_file = mmap(0, SEEN, RW, MAP_SHARED, fd, 0);
    NEED(seen_file != MAP_FAILED);
    for (size_t i = 0; i < SEEN; i += PAGE) seen_file[i] = 1;
    for (int i = 0; i < SEEN_BY; i++) all[i] = child(sees_all);
    int to[2], pipe_to[2];
    NEED(!socketpair(AF_UNIX, SOCK_STREAM, 0, to) && !pipe(pipe_to));
    pid_t reader = fork();
    NEED(reader >= 0);
    if (reader == 0) reads_all(to[0], pipe_to[0], to[1], pipe_to[1]);
    BESIDE("write to a socket of what many have mapped", CHECK(write(to[1], seen_file, SEEN) == SEEN));
    BESIDE("write to a pipe of what many have mapped", CHECK(write(pipe_to[1], seen_file, SEEN) == SEEN));
    BESIDE("sendfile of a file that many have mapped", CHECK(sendfile(to[1], fd, &(off_t){0}, SEEN) == SEEN));
    NEED(!kill(reader, SIGKILL) && waitpid(reader, 0, 0) == reader && !close(to[0]) && !close(to[1]) && !close(pipe_to[0]) && !close(pipe_to[1]));
    NEED(!kill(all[SEEN_BY / 2], SIGKILL));
    BESIDE("the end of one of many that have the same memory", CHECK(waitpid(all[SEEN_BY / 2], 0, 0) == all[SEEN_BY / 2]));
    BESIDE("madvise(MADV_DONTNEED) of what many have", CHECK(!madvise(seen, 2 * MEGA, MADV_DONTNEED)));
    BESIDE("mprotect(PROT_NONE) of what many have", CHECK(!mprotect(seen + 2 * MEGA, 2 * MEGA, PROT_NONE)));
    BESIDE("munmap of what many have", CHECK(!munmap(seen, SEEN)));
    BESIDE("a hole in what many have mapped", CHECK(!fallocate(fd, 3, 0, SEEN / 2)));
    BESIDE("cutting off a file that many have mapped", CHECK(!ftruncate(fd, 0)));
    for (int i = 0; i < SEEN_BY; i++) kill(all[i], SIGKILL);
    for (int i = 0; i < SEEN_BY; i++) waitpid(all[i], 0, 0);
    NEED(!munmap(seen_file, SEEN) && !close(fd));
}

static char *given_on;

static char *writes_all(void) {
    for (size_t i = 0; i < SEEN; i += PAGE) given_on[i] = 2;
    return 0;
}

// Memory that 520 children write to, too: whoever has a copy of it must not see what they write then.
static void copies_of_what_many_write(void) {
    static pid_t all[SEEN_BY];
    char *there = 0;
    int given = -1, shared = -1;
    pid_t copy = 0;
    given_on = memory_of(SEEN);
    NEED(!uvm_minherit(given_on, SEEN, UVM_INHERIT_SHARE));
    for (int i = 0; i < SEEN_BY; i++) all[i] = child(writes_all);
    for (size_t i = 0; i < SEEN; i += PAGE) NEED(given_on[i] == 2);
    NEED(!uvm_minherit(given_on, SEEN, UVM_INHERIT_COPY));
    BESIDE("a fork that copies what many write", if (!(copy = fork())) is_there());
    BESIDE("uvm_export of a copy of what many write", CHECK((given = uvm_export(given_on, SEEN, UVM_COPY, RW)) >= 0));
    BESIDE("uvm_import of a copy of what many write", CHECK((there = uvm_import(given, 0, 0)) != (void *)-1));
    NEED((shared = uvm_export(given_on, SEEN, UVM_SHARE, RW)) >= 0);
    for (size_t i = 0; i < SEEN; i += PAGE) given_on[i] = 3;
    for (size_t i = 0; i < SEEN; i += PAGE) NEED(there[i] == 2);
    BESIDE("close of a copy of what many write", CHECK(!close(given)));
    BESIDE("close of what many write", CHECK(!close(shared)));
    BESIDE("munmap of a copy of what many write", CHECK(!munmap(there, SEEN)));
    for (int i = 0; i < SEEN_BY; i++) kill(all[i], SIGKILL);
    for (int i = 0; i < SEEN_BY; i++) waitpid(all[i], 0, 0);
    NEED(!kill(copy, SIGKILL) && waitpid(copy, 0, 0) == copy && !munmap(given_on, SEEN));
}

static const char *numbered(const char *folder, int n) {
    static char name[64];
    snprintf(name, sizeof name, "%s/%d", folder, n);
    return name;
}

// A folder with files, of which each may be a name of one.
static void folder(const char *path, int files) {
    NEED(!mkdir(path, 0700));
    for (int i = 0; i < files; i++) {
        int fd = open(numbered(path, i), O_CREAT | O_WRONLY, 0600);
        NEED(fd >= 0);
        close(fd);
    }
}

static void calls_in_a_folder(const char *path, const char *other, int files) {
    BESIDE("getdents", read_folder(path, files));
    BESIDE("rename in a large folder", CHECK(!rename(numbered(path, files / 2), other)));
    BESIDE("rename to a large folder", CHECK(!rename(other, numbered(path, files / 2))));
    BESIDE("unlink in a large folder", CHECK(!unlink(numbered(path, files - 1))));
    BESIDE("open in a large folder", CHECK(open(numbered(path, files - 1), O_CREAT | O_RDWR, 0600) >= 0));
    BESIDE("rename of a large folder", CHECK(!rename(path, other)));
    NEED(!rename(other, path));
    for (int i = 0; i < files; i++) NEED(!unlink(numbered(path, i)));
    BESIDE("rmdir of a folder that was large", CHECK(!rmdir(path)));
}

static void folders(void) {
    folder("/tmp/many", ENTRIES);
    calls_in_a_folder("/tmp/many", "/tmp/other", ENTRIES);
    NEED(!mkdir("/tmp/at", 0700) && !mount("none", "/tmp/at", "tmpfs", 0, ""));
    folder("/tmp/at/many", ENTRIES);
    BESIDE("umount of many files", CHECK(!umount("/tmp/at")));
    NEED(!rmdir("/tmp/at"));
}

// Links that lead to links, each by a path of as many components as there may be.
static void long_paths(void) {
    enum { LINKS = 38, AROUND = 810 };
    static char text[4096], name[16];
    struct stat stat_;
    NEED(!mkdir("/tmp/links", 0700) && !chdir("/tmp/links") && !mkdir("d", 0700));
    for (int i = 0; i < AROUND; i++) memcpy(text + 5 * i, "d/../", 5);
    for (int i = 0; i < LINKS; i++) {
        snprintf(text + 5 * AROUND, 16, i + 1 < LINKS ? "l%d" : "d", i + 1);
        snprintf(name, sizeof name, "l%d", i);
        NEED(!symlink(text, name));
    }
    BESIDE("a path through long links", CHECK(!stat("l0", &stat_) && S_ISDIR(stat_.st_mode)));
}

static void all_memory_is_counted(void) {
    BESIDE("reading vmstat", read_whole("/proc/vmstat"));
    BESIDE("reading meminfo", read_whole("/proc/meminfo"));
}

// --- disks --------------------------------------------------------------------------------------------------------------

static int file_on_disk(size_t size) {
    int fd = open("/mnt/large", O_CREAT | O_TRUNC | O_RDWR, 0600);
    NEED(fd >= 0);
    static char chunk[MEGA] = {1};
    for (size_t at = 0; at < size; at += MEGA) NEED(pwrite(fd, chunk, MEGA, at) == MEGA);
    return fd;
}

// Every second block of it.
static int file_of_holes(int blocks) {
    int fd = open("/mnt/large", O_CREAT | O_TRUNC | O_RDWR, 0600);
    for (int i = 0; i < blocks; i++) NEED(pwrite(fd, "", 1, (off_t)i * 2 * PAGE) == 1);
    NEED(!fsync(fd));
    return fd;
}

static void files_on_a_disk(void) {
    int fd = file_on_disk(ON_DISK);
    BESIDE("fsync of a large file", CHECK(!fsync(fd)));
    BESIDE("ftruncate of a large file on a disk", CHECK(!ftruncate(fd, 0)));
    close(fd);
    fd = file_on_disk(ON_DISK);
    BESIDE("ftruncate of a dirty file", CHECK(!ftruncate(fd, 0)));
    BESIDE("fallocate on a disk", CHECK(!fallocate(fd, 0, 0, ON_DISK)));
    BESIDE("a hole on a disk", fallocate(fd, 3, 0, ON_DISK));
    close(fd);
    fd = file_on_disk(ON_DISK);
    BESIDE("unlink of a large dirty file", CHECK(!close(fd) && !unlink("/mnt/large")));
    fd = file_on_disk(ON_DISK);
    BESIDE("sync", sync());
    NEED(!close(fd));
    BESIDE("unlink of a large file", CHECK(!unlink("/mnt/large")));
    fd = file_of_holes(ON_DISK_HOLES);
    BESIDE("lseek over many holes", lseek(fd, 0, SEEK_HOLE));
    BESIDE("fallocate of many holes", CHECK(!fallocate(fd, 0, 0, (off_t)ON_DISK_HOLES * 2 * PAGE)));
    BESIDE("ftruncate of many blocks", CHECK(!ftruncate(fd, 0)));
    NEED(!close(fd));
    fd = file_of_holes(ON_DISK_HOLES);
    NEED(!close(fd));
    BESIDE("unlink of a file of many holes", CHECK(!unlink("/mnt/large")));
}

static void room_is_asked_for(void) {
    int fd = file_on_disk(0);
    BESIDE("fallocate of more than a disk has", CHECK(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 100ll << 30) < 0 && errno == ENOSPC));
    NEED(!unlink("/mnt/large"));
    BESIDE("the same for a file without a name", CHECK(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 4000ll << 30) < 0 && errno == ENOSPC));
    for (off_t i = 0; i < ON_DISK_PIECES; i++) NEED(!fallocate(fd, FALLOC_FL_KEEP_SIZE, i * 2 * PAGE, PAGE));
    BESIDE("fallocate between many pieces", CHECK(!fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)ON_DISK_PIECES * 2 * PAGE)));
    BESIDE("the end of a file without a name", { close(fd); sync(); });
}

static void files_without_names(void) {
    int files[NAMELESS];
    for (int i = 0; i < NAMELESS; i++) {
        NEED((files[i] = open("/mnt/nameless", O_CREAT | O_RDWR, 0600)) >= 0 && write(files[i], "", 1) == 1);
        NEED(!unlink("/mnt/nameless"));
    }
    BESIDE("close of one file without a name", CHECK(!close(files[NAMELESS / 2])));
    BESIDE("close of all files without names", { for (int i = 0; i < NAMELESS; i++) close(files[i]); });
    BESIDE("sync of closed files without names", sync());
}

static void memory_of_a_disk(void) {
    int fd = file_on_disk(ON_DISK);
    char *at = mmap(0, ON_DISK, RW, MAP_SHARED, fd, 0);
    NEED(at != MAP_FAILED);
    for (size_t i = 0; i < ON_DISK; i += PAGE) at[i] = 2;
    BESIDE("msync of a large file", CHECK(!msync(at, ON_DISK, MS_SYNC)));
    for (size_t i = 0; i < ON_DISK; i += PAGE) at[i] = 3;
    BESIDE("munmap of a large file on a disk", CHECK(!munmap(at, ON_DISK)));
    at = memory();
    BESIDE("read of a large file on a disk", CHECK(pread(fd, at, ON_DISK, 0) == ON_DISK));
    NEED(!close(fd) && !umount("/mnt") && !mount("/dev/vda", "/mnt", "ext4", 0, ""));
    fd = open("/mnt/large", O_RDONLY);
    BESIDE("read of a file that is not in memory", CHECK(pread(fd, at, ON_DISK, 0) == ON_DISK));
    BESIDE("direct read", { int d = open("/mnt/large", O_RDONLY | O_DIRECT); CHECK(d < 0 || pread(d, at, ON_DISK, 0) == ON_DISK); close(d); });
    NEED(!close(fd) && !unlink("/mnt/large"));
}

static void folders_on_a_disk(void) {
    // With nobody else to run, the clock would go on to some distant time at each wait for the disk.
    BESIDE("making files on a disk", folder("/mnt/many", ON_DISK_NAMES));
    BESIDE("sync of many files", sync());
    BESIDE("making, syncing and removing files on a disk", {
        for (int round = 0; round < 5; round++) {
            folder("/mnt/some", ON_DISK_NAMES / 5);
            sync();
            for (int i = 0; i < ON_DISK_NAMES / 5; i++) NEED(!unlink(numbered("/mnt/some", i)));
            NEED(!rmdir("/mnt/some"));
            sync();
        }
    });
    BESIDE("umount of many files on a disk", CHECK(!umount("/mnt")));
    BESIDE("mount of a disk", CHECK(!mount("/dev/vda", "/mnt", "ext4", 0, "")));
    // Of 64 MiB, in blocks of 1 KiB.
    NEED(!umount("/mnt2"));
    BESIDE("mount of a disk with a large journal", CHECK(!mount("/dev/vdc", "/mnt2", "ext4", 0, "")));
    BESIDE("getdents on a disk", read_folder("/mnt/many", ON_DISK_NAMES));
    BESIDE("rename in a folder on a disk", CHECK(!rename(numbered("/mnt/many", 7), "/mnt/many/other")));
    BESIDE("unlink in a folder on a disk", CHECK(!unlink("/mnt/many/other")));
    BESIDE("open in a folder on a disk", CHECK(!close(open(numbered("/mnt/many", 7), O_CREAT | O_RDWR, 0600))));
}

static void memory_on_swap(void) {
    CHECK(!swapon("/dev/vdb", 0));
    char *at = memory();
    BESIDE("madvise(MADV_PAGEOUT)", CHECK(!madvise(at, MUCH, MADV_PAGEOUT)));
    usleep(1000000);
    BESIDE("swapoff", CHECK(!swapoff("/dev/vdb")));
    BESIDE("swapon", CHECK(!swapon("/dev/vdb", 0)));
    NEED(!madvise(at, MUCH, MADV_PAGEOUT));
    usleep(1000000);
    BESIDE("munmap of memory on swap", CHECK(!munmap(at, MUCH)));
    BESIDE("swapoff of a device with nothing on it", CHECK(!swapoff("/dev/vdb")));
}

// --- crowds -------------------------------------------------------------------------------------------------------------

enum { FEW = 60, CROWD = 200, SLEEPERS = 6, KINDS = 3 };
static pid_t sleepers[2 * SLEEPERS], crowd_group;
static int pairs[CROWD][2];
static uint32_t *words;

static int cpus(void) {
    return sysconf(_SC_NPROCESSORS_ONLN);
}

static void pin(int cpu) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu % cpus(), &one);
    NEED(!sched_setaffinity(0, sizeof one, &one));
}

// A process of the crowd, which goes with its parent.
static pid_t member(pid_t *group) {
    pid_t it = fork();
    NEED(it >= 0);
    if (it == 0 && prctl(PR_SET_PDEATHSIG, SIGKILL)) _exit(1);
    if (it == 0) return 0;
    if (!*group) *group = it;
    NEED(!setpgid(it, *group));
    return it;
}

// Sleeps a millisecond at a time and then wakes another, who notes how late that one is.
static void wakes(int to) {
    for (;;) {
        nanosleep(&(struct timespec){.tv_nsec = MILLI}, 0);
        int64_t at = now();
        if (write(to, &at, sizeof at) != sizeof at) _exit(1);
    }
}

static void is_woken(int by, volatile int64_t *late) {
    int64_t at;
    while (read(by, &at, sizeof at) == sizeof at)
        if (now() - at > *late) *late = now() - at;
}

// On each CPU alone, and on whichever: one who sleeps, and two of whom one wakes the other.
static void start_sleepers(void) {
    worst = mmap(0, PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(worst != MAP_FAILED);
    volatile int64_t *all = worst;
    pid_t group = 0;
    for (int i = 0; i < KINDS; i++) {
        int ends[2];
        NEED(!pipe(ends));
        for (int role = 0; role < 3; role++) {
            if ((sleepers[KINDS * role + i] = member(&group))) continue;
            if (i) pin(i - 1);
            worst = all + i;
            if (role == 0) sleeps();
            if (role == 1) wakes(ends[1]);
            is_woken(ends[0], all + KINDS + i);
        }
        close(ends[0]);
        close(ends[1]);
    }
}

static void crowd(const char *what, int count, void (*body)(int), int64_t most_woken) {
    int gate[2];
    char byte;
    start_sleepers();
    NEED(!pipe(gate));
    crowd_group = 0;
    for (int i = 0; i < count; i++) {
        if (member(&crowd_group)) continue;
        close(gate[1]);
        if (read(gate[0], &byte, 1)) _exit(1);
        body(i);
    }
    close(gate[0]);
    close(gate[1]);
    usleep(100000);
    for (int i = 0; i < SLEEPERS; i++) worst[i] = 0;
    usleep(300000);
    int64_t late[SLEEPERS];
    for (int i = 0; i < SLEEPERS; i++) late[i] = worst[i];
    NEED(!kill(-crowd_group, SIGKILL) && !kill(-sleepers[0], SIGKILL));
    while (wait(0) > 0) continue;
    for (int i = 0; i < SLEEPERS; i++) {
        const char *where = i % KINDS == 0 ? "any CPU" : i % KINDS == 1 ? "the first CPU" : "the last CPU", *who = i < KINDS ? "a sleep of 1 ms ended" : "who was woken ran";
        int holds = CHECK(late[i] <= (i < KINDS ? MOST : most_woken));
        if (!holds || getenv("TIMES")) printf("  beside %s %s %lld us late on %s\n", what, who, (long long)late[i] / 1000, where);
    }
}

static void spins(int i) {
    (void)i;
    for (;;) continue;
}

static void spins_pinned(int i) {
    pin(i % 3 == 0);
    spins(i);
}

static void moves(int i) {
    for (;;) pin(i++);
}

static void yields(int i) {
    (void)i;
    for (;;) sched_yield();
}

static void sleeps_shortly(int i) {
    (void)i;
    for (;;) nanosleep(&(struct timespec){.tv_nsec = 1}, 0);
}

static void computes_and_sleeps(int i) {
    for (;;) {
        for (int64_t begun = now(); now() - begun < MILLI * 9 / 10;) continue;
        nanosleep(&(struct timespec){.tv_nsec = i + 1}, 0);
    }
}

static void plays_by_pipe(int i) {
    char byte = 0;
    for (int first = i % 2; ; first = 0)
        if ((!first && write(pairs[i ^ 1][1], &byte, 1) != 1) || read(pairs[i][0], &byte, 1) != 1) _exit(1);
}

static void plays_by_futex(int i) {
    uint32_t *word = words + 16 * (i / 2), me = i % 2;
    for (;;) {
        while (__atomic_load_n(word, __ATOMIC_ACQUIRE) != me) syscall(SYS_futex, word, FUTEX_WAIT, !me, 0, 0, 0);
        __atomic_store_n(word, !me, __ATOMIC_RELEASE);
        syscall(SYS_futex, word, FUTEX_WAKE, 1, 0, 0, 0);
    }
}

static void crowds_that_compute(void) {
    crowd("programs that compute, pinned", FEW, spins_pinned, MOST);
    crowd("many programs that compute", CROWD, spins, MOST);
}

static void crowds_that_move(void) {
    crowd("programs that change CPUs", FEW, moves, MOST);
    crowd("programs that yield", FEW, yields, MOST);
}

static void crowds_that_sleep(void) {
    crowd("programs that sleep a nanosecond", FEW, sleeps_shortly, MOST);
    crowd("programs that compute and sleep", FEW, computes_and_sleeps, MOST);
}

static void crowds_that_wake_each_other(void) {
    struct rlimit most = {ENTRIES, ENTRIES};
    NEED(!setrlimit(RLIMIT_NOFILE, &most));
    for (int i = 0; i < CROWD; i++) NEED(!pipe(pairs[i]));
    words = mmap(0, PAGE * 4, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    crowd("pairs that wake each other by pipes", FEW, plays_by_pipe, MOST);
    crowd("pairs that wake each other by futexes", FEW, plays_by_futex, MOST);
}

// --- signals ------------------------------------------------------------------------------------------------------------

static void reads_random_bytes(void) {
    char *at = memory();
    int random = open("/dev/urandom", O_RDONLY);
    for (;;) if (read(random, at, MUCH) < 0) _exit(1);
}

static void looks_at_a_span(void) {
    size_t span = 1ul << 36;
    char *at = mmap(0, span, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    unsigned char *is_there = mmap(0, span / PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (;;) if (mincore(at, span, is_there)) _exit(1);
}

static void sends_to_many(void) {
    struct sockaddr_in at = shared_port();
    int sender = socket(AF_INET, SOCK_DGRAM, 0);
    share_a_port();
    for (struct mmsghdr *all = messages(&at);;) if (send_all(sender, all) < 0) _exit(1);
}

// A fatal signal ends a call that would go on for long.
static void calls_are_cut_short(void) {
    void (*calls[])(void) = {reads_random_bytes, looks_at_a_span, sends_to_many};
    for (int i = 0; i < 3; i++) {
        pid_t it = fork();
        if (it == 0) calls[i]();
        int status;
        usleep(200000);
        int64_t begun = now();
        NEED(it > 0 && !kill(it, SIGKILL) && waitpid(it, &status, 0) == it);
        CHECK(WIFSIGNALED(status) && now() - begun < 4 * MOST);
    }
}

static const struct test_case cases[] = {
    {"data_is_copied", data_is_copied},
    {"random_bytes", random_bytes},
    {"data_through_pipes_and_sockets", data_through_pipes_and_sockets},
    {"memory_is_unmapped", memory_is_unmapped},
    {"memory_is_changed", memory_is_changed},
    {"memory_is_made", memory_is_made},
    {"memory_is_locked", memory_is_locked},
    {"stores_after_forks", stores_after_forks},
    {"large_memory_is_changed", large_memory_is_changed},
    {"memory_that_threads_touch", memory_that_threads_touch},
    {"spans_are_looked_at", spans_are_looked_at},
    {"many_entries", many_entries},
    {"segments", segments},
    {"many_entries_are_passed", many_entries_are_passed},
    {"sparse_memory", sparse_memory},
    {"very_sparse_memory", very_sparse_memory},
    {"sparse_memory_moves", sparse_memory_moves},
    {"very_sparse_memory_moves", very_sparse_memory_moves},
    {"sparse_memory_behind_dense", sparse_memory_behind_dense},
    {"shared_memory_is_given", shared_memory_is_given},
    {"processes_end", processes_end},
    {"parents_end", parents_end},
    {"many_waiters", many_waiters},
    {"processes_fork", processes_fork},
    {"many_mappings_fork", many_mappings_fork},
    {"many_descriptors", many_descriptors},
    {"many_senders", many_senders},
    {"sockets_in_sockets", sockets_in_sockets},
    {"sockets_in_many_messages", sockets_in_many_messages},
    {"sockets_of_many_users", sockets_of_many_users},
    {"many_messages", many_messages},
    {"files_are_cut", files_are_cut},
    {"memory_of_many", memory_of_many},
    {"copies_of_what_many_write", copies_of_what_many_write},
    {"a_page_is_mapped_often_alone", a_page_is_mapped_often_alone},
    {"a_page_is_mapped_often_among_others", a_page_is_mapped_often_among_others},
    {"folders", folders},
    {"long_paths", long_paths},
    {"all_memory_is_counted", all_memory_is_counted},
    {"calls_are_cut_short", calls_are_cut_short},
    {"many_threads", many_threads},
    {"many_sleep_until_one_moment", many_sleep_until_one_moment},
    {"robust_locks", robust_locks},
    {"killed_while_memory_is_made", killed_while_memory_is_made},
    {"many_tracees", many_tracees},
    {"many_processes_that_are_traced", many_processes_that_are_traced},
    {"many_arguments", many_arguments},
    {"many_processes", many_processes},
    {"many_timers", many_timers},
    {"timers_in_many_sets", timers_in_many_sets},
    {"many_signals", many_signals},
    {"many_locks", many_locks},
    {"many_files_with_locks", many_files_with_locks},
    {"many_wait_for_one_lock", many_wait_for_one_lock},
};

// On one CPU and on two.
static const struct test_case crowds[] = {
    {"crowds_that_compute", crowds_that_compute},
    {"crowds_that_move", crowds_that_move},
    {"crowds_that_sleep", crowds_that_sleep},
    {"crowds_that_wake_each_other", crowds_that_wake_each_other},
};
// QEMU doesn't run the second CPU at all while the first one sets its alarm all the time, or alone has work.
enum { ON_TWO = 3 };

// With /mnt on the first disk, the second to swap on, and /mnt2 on the third.
static const struct test_case on_disks[] = {
    {"files_on_a_disk", files_on_a_disk},
    {"room_is_asked_for", room_is_asked_for},
    {"files_without_names", files_without_names},
    {"memory_of_a_disk", memory_of_a_disk},
    {"folders_on_a_disk", folders_on_a_disk},
    {"memory_on_swap", memory_on_swap},
};

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "nothing")) return 0;
    if (argc > 1 && !strcmp(argv[1], "crowds")) return run_cases(crowds, cpus() > 1 ? ON_TWO : sizeof crowds / sizeof *crowds, argc - 1, argv + 1);
    start();
    int failed = argc > 1 && !strcmp(argv[1], "disks") ? RUN(on_disks, argc - 1, argv + 1) : RUN(cases, argc, argv);
    NEED(!kill(sleeper, SIGKILL) && waitpid(sleeper, 0, 0) == sleeper);
    return failed;
}
