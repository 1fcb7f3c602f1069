// Locking in memory, advice, limits on memory: what is kept in, what is forgotten, what a child gets, and every refusal.
#include "check.h"
#include <sys/resource.h>
#ifndef MLOCK_ONFAULT
#define MLOCK_ONFAULT 1
#endif
#ifndef MCL_ONFAULT
#define MCL_ONFAULT 4
#endif
enum {
    RW = PROT_READ | PROT_WRITE, ANON = MAP_PRIVATE | MAP_ANONYMOUS, SHARED = MAP_SHARED | MAP_ANONYMOUS,
    COLD = 20, PAGE_OUT = 21, POPULATE_READ = 22, POPULATE_WRITE = 23, DONTNEED_LOCKED = 24, MLOCK2 = 325,
};

static char *map(size_t pages, int protection, int flags, int fd) {
    char *at = mmap(0, pages * PAGE, protection, flags, fd, 0);
    NEED(at != MAP_FAILED);
    return at;
}

// Without the C library's files, whose buffers would change what is asked about.
static long status_kb(const char *field) {
    static char text[8192];
    int fd = open("/proc/self/status", O_RDONLY);
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    NEED(length > 0);
    text[length] = 0;
    char *line = strstr(text, field);
    NEED(line);
    return atol(line + strlen(field) + 1);
}
static long locked_pages(void) { return status_kb("VmLck") / 4; }

static int resident_pages(char *at, int pages) {
    unsigned char vector[256];
    int count = 0;
    if (mincore(at, (size_t)pages * PAGE, vector)) return -1;
    for (int i = 0; i < pages; i++) count += vector[i] & 1;
    return count;
}

static void limit_to(int which, rlim_t soft) {
    struct rlimit limit;
    NEED(!getrlimit(which, &limit));
    limit.rlim_cur = soft;
    NEED(!setrlimit(which, &limit));
}

static void locks_and_unlocks(void) {
    char *at = map(16, RW, ANON, -1);
    CHECK(!mlock(at + 2 * PAGE + 5, 3 * PAGE));  // rounds outwards: four pages
    CHECK(locked_pages() == 4 && resident_pages(at, 16) == 4);
    CHECK(!mlock(at + 2 * PAGE, 4 * PAGE) && locked_pages() == 4);  // twice is once
    CHECK(!munlock(at + 3 * PAGE, PAGE) && locked_pages() == 3);
    CHECK(!munmap(at + 4 * PAGE, PAGE) && locked_pages() == 2);
    FAILS(mlock(at, 16 * PAGE), ENOMEM);
    CHECK(!munlock(at, 4 * PAGE) && !munlock(at + 5 * PAGE, 11 * PAGE) && locked_pages() == 0);
    FAILS(munlock(at, 16 * PAGE), ENOMEM);
    CHECK(!mlock(at, -1UL)); // so long that it is nothing again
    FAILS(mlock(at, -2UL * PAGE), EINVAL);
    CHECK(!mlock(at, 0));
    char *none = map(2, PROT_NONE, ANON, -1);
    FAILS(mlock(none, PAGE), ENOMEM);
}

static void locks_as_touched(void) {
    char *at = map(32, RW, ANON, -1);
    at[3 * PAGE] = 1;
    CHECK(!syscall(MLOCK2, at, 32 * PAGE, MLOCK_ONFAULT));
    CHECK(locked_pages() == 32 && resident_pages(at, 32) == 1 && at[3 * PAGE] == 1);
    at[7 * PAGE] = 2;
    CHECK(resident_pages(at, 32) == 2);
    FAILS(syscall(MLOCK2, at, PAGE, 2), EINVAL);
    CHECK(!syscall(MLOCK2, at, 32 * PAGE, 0) || errno == 0);
    CHECK(!munlock(at, 32 * PAGE) && locked_pages() == 0 && at[7 * PAGE] == 2);
}

static void locks_everything(void) {
    FAILS(mlockall(0), EINVAL);
    FAILS(mlockall(8), EINVAL);
    FAILS(mlockall(MCL_ONFAULT), EINVAL);
    char *before = map(4, RW, ANON, -1);
    CHECK(!mlockall(MCL_CURRENT) && locked_pages() > 4 && resident_pages(before, 4) == 4);
    char *after = map(4, RW, ANON, -1);
    CHECK(resident_pages(after, 4) == 0);
    CHECK(!mlockall(MCL_FUTURE));
    after = map(4, RW, ANON, -1);
    CHECK(resident_pages(after, 4) == 4);
    long locked = locked_pages();
    char *heap = sbrk(0);
    heap = (char *)(((uintptr_t)heap + PAGE - 1) & -PAGE);
    CHECK(!brk(heap + 4 * PAGE) || (char *)syscall(SYS_brk, heap + 4 * PAGE) == heap + 4 * PAGE);
    CHECK(resident_pages(heap, 4) == 4 && locked_pages() == locked + 4);
    // A mapping that grows brings its new pages in; a file's end is no error here.
    char *grown = mremap(after, 4 * PAGE, 12 * PAGE, MREMAP_MAYMOVE);
    NEED(grown != MAP_FAILED);
    CHECK(resident_pages(grown, 12) == 12 && locked_pages() == locked + 12);
    CHECK(!munmap(grown + 4 * PAGE, 8 * PAGE));
    int file = memfd_create("short", 0);
    NEED(file >= 0 && !ftruncate(file, PAGE));
    char *both = mmap(0, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    NEED(both != MAP_FAILED);
    CHECK(locked_pages() == locked + 7 && !munlock(both, 3 * PAGE) && !mlockall(MCL_CURRENT | MCL_FUTURE));
    CHECK(locked_pages() > locked + 7 && resident_pages(both, 3) == 1);
    CHECK(!munmap(both, 3 * PAGE) && !close(file));
    locked = locked_pages() - 4;
    CHECK(!mlockall(MCL_FUTURE | MCL_ONFAULT));
    after = map(4, RW, ANON, -1);
    CHECK(resident_pages(after, 4) == 0 && locked_pages() == locked + 8);
    pid_t child = fork();
    if (child == 0) _exit(locked_pages() != 0);  // a child inherits no locks
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(!munlockall() && locked_pages() == 0);
    CHECK(resident_pages(map(4, RW, ANON, -1), 4) == 0);
}

static void ordinary_user_locks(void) {
    limit_to(RLIMIT_MEMLOCK, 8 * PAGE);
    NEED(!setgid(4321) && !setuid(4321));
    char *at = map(32, RW, ANON, -1);
    FAILS(mlock(at, 9 * PAGE), ENOMEM);
    CHECK(!mlock(at, 6 * PAGE));
    CHECK(!mlock(at + 2 * PAGE, 6 * PAGE));  // what is locked already is not counted twice
    FAILS(mlock(at + 8 * PAGE, PAGE), ENOMEM);
    FAILS(mmap(0, PAGE, RW, ANON | MAP_LOCKED, -1, 0), EAGAIN);
    FAILS(mlockall(MCL_CURRENT), ENOMEM);
    CHECK(!munlock(at, 32 * PAGE));
    CHECK(mmap(0, 2 * PAGE, RW, ANON | MAP_LOCKED, -1, 0) != MAP_FAILED && locked_pages() == 2);
    CHECK(!mlockall(MCL_FUTURE));
    FAILS(mmap(0, 7 * PAGE, RW, ANON, -1, 0), EAGAIN);
    CHECK(!munlockall());
    limit_to(RLIMIT_MEMLOCK, 0);
    FAILS(mlock(at, PAGE), EPERM);
    FAILS(mlockall(MCL_CURRENT), EPERM);
    FAILS(syscall(SYS_mmap, 0, PAGE, RW, ANON | MAP_LOCKED, -1, 0), EPERM);
    CHECK(!munlock(at, PAGE));
}
static void limits_on_locking(void) { CHECK(in_child(ordinary_user_locks) == 0); }

// One page can be locked often, here a number of times that the README names. Then mlock says so, and nobody is kept from the page.
static void one_page_is_locked_often(void) {
    enum { OFTEN = 20000 };
    int fd = memfd_create("often", 0), most = 0;
    NEED(fd >= 0 && !ftruncate(fd, PAGE));
    while (most < OFTEN) {
        char *at = map(1, RW, MAP_SHARED, fd);
        if (mlock(at, PAGE)) break;
        at[0] = 1, most++;
    }
    CHECK(most == OFTEN || (most >= 1000 && errno == ENOMEM));
    NEED(!mlockall(MCL_FUTURE));
    char *at = mmap(0, PAGE, RW, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED && at[0] == 1 && (at[0] = 2));
    NEED(!munlockall() && !close(fd));
}

static void limits_on_locking_one_page(void) { CHECK(in_child(one_page_is_locked_often) == 0); }

static void what_advice_suits(void) {
    char *private = map(4, RW, ANON, -1), *shared = map(4, RW, SHARED, -1);
    int fd = memfd_create("data", 0);
    NEED(fd >= 0 && !ftruncate(fd, 4 * PAGE) && pwrite(fd, "data", 4, 0) == 4);
    char *file = map(4, RW, MAP_PRIVATE, fd);
    memset(private, 1, 4 * PAGE), memset(shared, 1, 4 * PAGE);
    CHECK(!madvise(private, 4 * PAGE, MADV_FREE));
    FAILS(madvise(shared, PAGE, MADV_FREE), EINVAL);
    FAILS(madvise(file, PAGE, MADV_FREE), EINVAL);
    CHECK(!madvise(private, PAGE, MADV_WIPEONFORK));
    FAILS(madvise(shared, PAGE, MADV_WIPEONFORK), EINVAL);
    FAILS(madvise(file, PAGE, MADV_WIPEONFORK), EINVAL);
    FAILS(madvise(private, PAGE, MADV_REMOVE), EINVAL);
    CHECK(!madvise(shared, PAGE, MADV_REMOVE) && shared[0] == 0 && shared[PAGE] == 1);
    FAILS(madvise(file, PAGE, MADV_REMOVE), EACCES);
    memset(private, 2, 4 * PAGE);
    CHECK(!mlock(private, PAGE));
    FAILS(madvise(private, PAGE, MADV_DONTNEED), EINVAL);
    FAILS(madvise(private, PAGE, MADV_FREE), EINVAL);
    FAILS(madvise(private, PAGE, COLD), EINVAL);
    FAILS(madvise(private, PAGE, PAGE_OUT), EINVAL);
    CHECK(private[0] == 2);
    CHECK(!munlock(private, PAGE) && !madvise(private, 4 * PAGE, COLD) && private[PAGE] == 2);
    CHECK(!madvise(private, 4 * PAGE, PAGE_OUT) && private[0] == 2 && private[3 * PAGE] == 2);
    CHECK(!madvise(file, 4 * PAGE, MADV_WILLNEED) && !madvise(private, 4 * PAGE, MADV_WILLNEED));
    FAILS(madvise(private, -1UL, MADV_NORMAL), EINVAL);
    FAILS(madvise((char *)-PAGE, 2 * PAGE, MADV_NORMAL), EINVAL);
    CHECK(!madvise((void *)(uintptr_t)(PAGE * 3), 0, MADV_NORMAL));
}

static void forgets_what_is_locked(void) {
    char *at = map(4, RW, ANON, -1);
    memset(at, 3, 4 * PAGE);
    CHECK(!mlock(at, 4 * PAGE));
    CHECK(!madvise(at + PAGE, 2 * PAGE, DONTNEED_LOCKED));
    CHECK(locked_pages() == 4);
    CHECK(at[0] == 3 && at[PAGE] == 0 && at[2 * PAGE] == 0 && at[3 * PAGE] == 3);
}

static void a_hole_is_told_last(void) {
    char *at = map(5, RW, ANON, -1);
    memset(at, 4, 5 * PAGE);
    munmap(at + 2 * PAGE, PAGE);
    FAILS(madvise(at, 5 * PAGE, MADV_DONTNEED), ENOMEM);
    CHECK(at[0] == 0 && at[3 * PAGE] == 0 && at[4 * PAGE] == 0);
}

static void populates(void) {
    char *at = map(8, RW, ANON, -1), *none = map(1, PROT_NONE, ANON, -1), *reads = map(1, PROT_READ, ANON, -1);
    CHECK(!madvise(at, 8 * PAGE, POPULATE_WRITE) && resident_pages(at, 8) == 8);
    CHECK(!madvise(reads, PAGE, POPULATE_READ));
    FAILS(madvise(none, PAGE, POPULATE_READ), EINVAL);
    FAILS(madvise(reads, PAGE, POPULATE_WRITE), EINVAL);
    munmap(at + 3 * PAGE, PAGE);
    FAILS(madvise(at, 8 * PAGE, POPULATE_READ), ENOMEM);
    int fd = memfd_create("short", 0);
    NEED(fd >= 0 && !ftruncate(fd, PAGE));
    char *beyond = map(2, RW, MAP_SHARED, fd);
    FAILS(madvise(beyond, 2 * PAGE, POPULATE_READ), EFAULT);
}

static char *cut, *wiped, *kept;
static void child_looks(void) {
    unsigned char vector;
    CHECK(mincore(cut, PAGE, &vector) == -1 && errno == ENOMEM);
    CHECK(wiped[0] == 0 && kept[0] == 5);
}
static void what_a_child_gets(void) {
    cut = map(1, RW, ANON, -1), wiped = map(1, RW, ANON, -1), kept = map(1, RW, ANON, -1);
    cut[0] = wiped[0] = kept[0] = 5;
    CHECK(!madvise(cut, PAGE, MADV_DONTFORK) && !madvise(wiped, PAGE, MADV_WIPEONFORK));
    CHECK(!madvise(kept, PAGE, MADV_WIPEONFORK) && !madvise(kept, PAGE, MADV_KEEPONFORK));
    CHECK(in_child(child_looks) == 0);
    CHECK(!madvise(cut, PAGE, MADV_DOFORK));
    pid_t child = fork();
    if (child == 0) _exit(cut[0] != 5);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void syncs(void) {
    int fd = memfd_create("sync", 0);
    NEED(fd >= 0 && !ftruncate(fd, 4 * PAGE));
    char *at = map(4, RW, MAP_SHARED, fd);
    CHECK(!msync(at, 4 * PAGE, MS_SYNC) && !msync(at, PAGE, MS_ASYNC | MS_INVALIDATE) && !msync(at, 0, MS_SYNC));
    FAILS(msync(at, PAGE, MS_SYNC | MS_ASYNC), EINVAL);
    FAILS(msync(at, PAGE, 64), EINVAL);
    FAILS(msync(at + 1, PAGE, MS_SYNC), EINVAL);
    CHECK(!mlock(at, PAGE));
    FAILS(msync(at, PAGE, MS_SYNC | MS_INVALIDATE), EBUSY);
    CHECK(!msync(at, PAGE, MS_SYNC));
    munmap(at + PAGE, PAGE);
    FAILS(msync(at, 4 * PAGE, MS_SYNC), ENOMEM);
}

static void asks_what_is_resident(void) {
    unsigned char vector[4];
    char *at = map(4, RW, ANON, -1);
    FAILS(mincore(at + 1, PAGE, vector), EINVAL);
    FAILS(mincore(at, PAGE, (unsigned char *)-1), EFAULT);
    FAILS(mincore(at, PAGE, (unsigned char *)8), EFAULT);
    CHECK(!mincore(at, 0, vector));
    FAILS(mincore(at, -1UL, vector), ENOMEM);
}

static void limits_on_space(void) {
    char *at = map(64, RW, ANON, -1);
    long mapped = status_kb("VmSize") * 1024;
    limit_to(RLIMIT_AS, mapped + 8 * PAGE);
    FAILS(mmap(0, 9 * PAGE, PROT_NONE, ANON, -1, 0), ENOMEM);
    // What a fixed mapping replaces does not count.
    CHECK(mmap(at, 64 * PAGE, RW, ANON | MAP_FIXED, -1, 0) == at);
    FAILS(mremap(at, 64 * PAGE, 128 * PAGE, MREMAP_MAYMOVE), ENOMEM);
    char *last = mmap(0, 8 * PAGE, RW, ANON, -1, 0);
    CHECK(last != MAP_FAILED);
    munmap(last, 8 * PAGE);
}
static void data_limited(void) {
    // So low that all there is already counts as too much.
    char *there = map(4, RW, ANON, -1), *reads = map(4, PROT_READ, ANON, -1);
    limit_to(RLIMIT_DATA, PAGE);
    FAILS(mmap(0, PAGE, RW, ANON, -1, 0), ENOMEM);
    CHECK(mmap(0, PAGE, PROT_READ, ANON, -1, 0) != MAP_FAILED);
    CHECK(mmap(0, PAGE, RW, SHARED, -1, 0) != MAP_FAILED);
    FAILS(mprotect(reads, PAGE, RW), ENOMEM);
    char *heap = (char *)syscall(SYS_brk, 0);
    CHECK((char *)syscall(SYS_brk, heap + (1 << 20)) == heap);
    there[0] = 1;
}
static void limits_on_data(void) { CHECK(in_child(data_limited) == 0); }

// What is locked stays locked where it moves to, and what is added is locked too, as far as the limit goes.
static void a_moved_range_is_locked(void) {
    enum { PAGES = 4096 };
    limit_to(RLIMIT_MEMLOCK, 16 * PAGE);
    NEED(!setgid(1000) && !setuid(1000));
    char *at = map(PAGES, RW, ANON, -1), *to = map(PAGES, PROT_NONE, ANON, -1);
    FAILS(mlock(at, PAGES * PAGE), ENOMEM);
    char *one = at + PAGES / 2 * PAGE;
    NEED(!mlock(one, PAGE));
    // One mapping is moved at a time.
    FAILS(mremap(at, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to), EFAULT);
    CHECK(locked_pages() == 1);
    CHECK(mremap(one, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to && locked_pages() == 1 && resident_pages(to, 1) == 1);
    FAILS(mremap(to, PAGE, 32 * PAGE, MREMAP_MAYMOVE), EAGAIN);
    CHECK(mremap(to, PAGE, 5 * PAGE, MREMAP_MAYMOVE) != MAP_FAILED && locked_pages() == 5);
}
static void a_moved_range_is_locked_as_it_was(void) { CHECK(in_child(a_moved_range_is_locked) == 0); }

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"locks_and_unlocks", locks_and_unlocks},
        {"locks_as_touched", locks_as_touched},
        {"locks_everything", locks_everything},
        {"limits_on_locking", limits_on_locking},
        {"limits_on_locking_one_page", limits_on_locking_one_page},
        {"what_advice_suits", what_advice_suits},
        {"forgets_what_is_locked", forgets_what_is_locked},
        {"a_hole_is_told_last", a_hole_is_told_last},
        {"populates", populates},
        {"what_a_child_gets", what_a_child_gets},
        {"syncs", syncs},
        {"asks_what_is_resident", asks_what_is_resident},
        {"limits_on_space", limits_on_space},
        {"limits_on_data", limits_on_data},
        {"a_moved_range_is_locked_as_it_was", a_moved_range_is_locked_as_it_was},
    };
    return RUN(cases, argc, argv);
}
