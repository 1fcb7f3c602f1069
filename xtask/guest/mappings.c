// What mmap and its relatives promise: placement, splitting, copy-on-write, sharing, one view of file data, errors.
#include "check.h"
#include <sys/resource.h>
#include <sys/uio.h>

static volatile int sink;
enum { RW = PROT_READ | PROT_WRITE, ANON = MAP_PRIVATE | MAP_ANONYMOUS };

static char *map(size_t pages, int protection, int flags, int fd) {
    char *at = mmap(0, pages * PAGE, protection, flags, fd, 0);
    NEED(at != MAP_FAILED);
    return at;
}

static int file(size_t bytes, char fill) {
    int fd = open("/tmp", O_RDWR | O_TMPFILE, 0600);
    if (fd < 0) {
        fd = open("/tmp/mappings.data", O_RDWR | O_CREAT | O_TRUNC, 0600);
        unlink("/tmp/mappings.data");
    }
    NEED(fd >= 0);
    char block[PAGE];
    memset(block, fill, sizeof block);
    for (size_t done = 0; done < bytes;) {
        size_t part = bytes - done < sizeof block ? bytes - done : sizeof block;
        NEED(write(fd, block, part) == (ssize_t)part);
        done += part;
    }
    return fd;
}

static int mapped(char *at) {
    unsigned char resident;
    return !mincore(at, PAGE, &resident);
}

static void anonymous_memory_is_zero(void) {
    char *at = map(64, RW, ANON, -1);
    for (int i = 0; i < 64 * PAGE; i++) if (at[i]) NEED(!"zero");
    memset(at, 1, 64 * PAGE);
    CHECK(!munmap(at, 64 * PAGE));
    char *again = map(64, RW, ANON, -1);
    for (int i = 0; i < 64 * PAGE; i++) if (again[i]) NEED(!"zero again");
}

static void placement(void) {
    char *at = map(8, RW, ANON, -1);
    at[3 * PAGE] = 7;
    CHECK(mmap(at + 2 * PAGE, 2 * PAGE, RW, ANON | MAP_FIXED, -1, 0) == at + 2 * PAGE);
    CHECK(at[3 * PAGE] == 0);
    FAILS(mmap(at, PAGE, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0), EEXIST);
    munmap(at + PAGE, PAGE);
    CHECK(mmap(at + PAGE, PAGE, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0) == at + PAGE);
    munmap(at, PAGE);
    CHECK(mmap(at, PAGE, RW, ANON, -1, 0) == at); // a hint at a free place is taken
    char *elsewhere = mmap(at, PAGE, RW, ANON, -1, 0);
    CHECK(elsewhere != MAP_FAILED && elsewhere != at);
}

static void holes_and_splits(void) {
    char *at = map(9, RW, ANON, -1);
    memset(at, 5, 9 * PAGE);
    CHECK(!munmap(at + 3 * PAGE, 3 * PAGE));
    CHECK(mapped(at + 2 * PAGE) && !mapped(at + 3 * PAGE) && !mapped(at + 5 * PAGE) && mapped(at + 6 * PAGE));
    CHECK(at[2 * PAGE] == 5 && at[6 * PAGE] == 5);
    CHECK(!munmap(at, 9 * PAGE)); // holes are no error
    CHECK(!mapped(at) && !mapped(at + 8 * PAGE));
}

static void protection_splits(void) {
    catch_faults();
    char *at = map(4, RW, ANON, -1);
    memset(at, 5, 4 * PAGE);
    CHECK(!mprotect(at + PAGE, 2 * PAGE, PROT_READ));
    RAISES(at[PAGE] = 1, SIGSEGV, SEGV_ACCERR, at + PAGE);
    RAISES(at[3 * PAGE - 1] = 1, SIGSEGV, SEGV_ACCERR, at + 3 * PAGE - 1);
    at[0] = at[3 * PAGE] = 6;
    CHECK(!mprotect(at + 2 * PAGE, PAGE, RW));
    at[2 * PAGE] = 6;
    CHECK(at[PAGE] == 5 && at[2 * PAGE] == 6);
    munmap(at + PAGE, PAGE);
    FAILS(mprotect(at, 4 * PAGE, PROT_READ), ENOMEM);
}

static void private_file_mapping(void) {
    int fd = file(2 * PAGE, 'a');
    char *one = map(2, RW, MAP_PRIVATE, fd), *other = map(2, RW, MAP_PRIVATE, fd), byte;
    one[0] = 'b';
    CHECK(other[0] == 'a' && one[1] == 'a');
    CHECK(pread(fd, &byte, 1, 0) == 1 && byte == 'a');
    CHECK(pwrite(fd, "c", 1, PAGE) == 1);
    CHECK(one[PAGE] == 'c' && other[PAGE] == 'c');
    CHECK(pwrite(fd, "d", 1, 0) == 1);
    CHECK(one[0] == 'b' && other[0] == 'd');
}

static void one_view_of_a_shared_file(void) {
    int fd = file(3 * PAGE, 'a');
    char *at = map(3, RW, MAP_SHARED, fd), byte;
    CHECK(at[PAGE] == 'a');
    at[PAGE] = 'b';
    CHECK(pread(fd, &byte, 1, PAGE) == 1 && byte == 'b');
    CHECK(pwrite(fd, "c", 1, 2 * PAGE) == 1 && at[2 * PAGE] == 'c');
    char *second = mmap(0, PAGE, RW, MAP_SHARED, fd, PAGE);
    NEED(second != MAP_FAILED);
    second[1] = 'd';
    CHECK(at[PAGE + 1] == 'd');
    munmap(at, 3 * PAGE);
    munmap(second, PAGE);
    CHECK(pread(fd, &byte, 1, PAGE + 1) == 1 && byte == 'd');
    // write() from a mapping of the same file, onto the page it reads
    at = map(3, RW, MAP_SHARED, fd);
    CHECK(pwrite(fd, at, 2 * PAGE, PAGE) == 2 * PAGE);
    CHECK(at[PAGE] == 'a');
}

static void the_last_page_of_a_file(void) {
    int fd = file(PAGE + 10, 'a');
    char *at = map(2, RW, MAP_SHARED, fd);
    CHECK(at[PAGE + 9] == 'a' && at[PAGE + 10] == 0 && at[2 * PAGE - 1] == 0);
    at[PAGE + 100] = 'x'; // beyond the end: lost
    CHECK(!ftruncate(fd, 2 * PAGE));
    struct stat about;
    CHECK(!fstat(fd, &about) && about.st_size == 2 * PAGE);
    CHECK(!ftruncate(fd, PAGE + 5));
    CHECK(!ftruncate(fd, 2 * PAGE));
    CHECK(at[PAGE + 4] == 'a' && at[PAGE + 5] == 0 && at[PAGE + 9] == 0);
}

static char *shared, *private;
static void child_writes(void) {
    CHECK(shared[0] == 1 && private[0] == 1);
    shared[0] = 2, private[0] = 2;
    CHECK(private[0] == 2);
}
static void fork_copies_private_and_shares_shared(void) {
    shared = map(1, RW, MAP_SHARED | MAP_ANONYMOUS, -1);
    private = map(1, RW, ANON, -1);
    shared[0] = private[0] = 1;
    CHECK(in_child(child_writes) == 0);
    CHECK(shared[0] == 2 && private[0] == 1);
}

// A page is private to each of three generations, whatever the order of their writes.
static void generations(void) {
    enum { PAGES = 32 };
    int *at = (int *)map(PAGES, RW, ANON, -1);
    for (int i = 0; i < PAGES; i++) at[i * 1024] = 100 + i;
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < PAGES; i += 2) at[i * 1024] = 200 + i;
        pid_t grandchild = fork();
        if (grandchild == 0) {
            for (int i = 0; i < PAGES; i++) CHECK(at[i * 1024] == (i % 2 ? 100 : 200) + i);
            for (int i = 0; i < PAGES; i += 3) at[i * 1024] = 300 + i;
            for (int i = 0; i < PAGES; i++) CHECK(at[i * 1024] == (i % 3 == 0 ? 300 : i % 2 ? 100 : 200) + i);
            _exit(failed_checks);
        }
        for (int i = 1; i < PAGES; i += 2) at[i * 1024] = 400 + i;
        int status;
        CHECK(waitpid(grandchild, &status, 0) == grandchild && status == 0);
        for (int i = 0; i < PAGES; i++) CHECK(at[i * 1024] == (i % 2 ? 400 : 200) + i);
        _exit(failed_checks);
    }
    for (int i = 0; i < PAGES; i++) at[i * 1024] = 500 + i;
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    for (int i = 0; i < PAGES; i++) CHECK(at[i * 1024] == 500 + i);
}

static void growing_and_moving(void) {
    char *at = map(4, RW, ANON, -1);
    for (int i = 0; i < 4; i++) at[i * PAGE] = i + 1;
    char *moved = mremap(at, 4 * PAGE, 64 * PAGE, MREMAP_MAYMOVE);
    NEED(moved != MAP_FAILED);
    for (int i = 0; i < 4; i++) CHECK(moved[i * PAGE] == i + 1);
    CHECK(moved[63 * PAGE] == 0);
    moved[63 * PAGE] = 9;
    CHECK(mremap(moved, 64 * PAGE, 2 * PAGE, 0) == moved);
    CHECK(!mapped(moved + 2 * PAGE) && moved[PAGE] == 2);
    char *place = map(2, RW, ANON, -1);
    CHECK(mremap(moved, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place) == place);
    CHECK(place[0] == 1 && place[PAGE] == 2 && !mapped(moved));
    char *wall = map(3, RW, ANON, -1);
    FAILS(mremap(wall, PAGE, 2 * PAGE, 0), ENOMEM);
    FAILS(mremap(wall + 1, PAGE, 2 * PAGE, MREMAP_MAYMOVE), EINVAL);
    munmap(place, 2 * PAGE);
    FAILS(mremap(place, PAGE, PAGE, MREMAP_MAYMOVE), EFAULT);
}

// Ranges that fill page tables, moved to where they can go with their tables and to where they can't, while a child has copies.
static void moving_whole_tables(void) {
    const long TABLE = 512, many = 3 * TABLE + 20;
    char *room = map(8 * TABLE, PROT_NONE, ANON | MAP_NORESERVE, -1);
    char *even = (char *)(((long)room + TABLE * PAGE - 1) / (TABLE * PAGE) * (TABLE * PAGE));
    for (long skip = 0; skip < 3; skip++) {
        int *at = mmap(0, many * PAGE, RW, ANON, -1, 0);
        NEED(at != MAP_FAILED);
        for (long i = 0; i < many; i++) at[i * 1024] = i + skip;
        long offset = (long)at % (TABLE * PAGE);
        char *place = even + (offset + skip * 7 * PAGE) % (TABLE * PAGE);
        int ready[2];
        NEED(!pipe(ready));
        pid_t child = fork();
        if (!child) {
            char byte;
            close(ready[1]);
            NEED(read(ready[0], &byte, 1) == 0);
            for (long i = 0; i < many; i++) CHECK(at[i * 1024] == i + skip);
            _exit(failed_checks);
        }
        int *moved = mremap(at, many * PAGE, many * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place);
        NEED(moved == (int *)place);
        CHECK(!mapped((char *)at) && !mapped((char *)at + (many - 1) * PAGE));
        for (long i = 0; i < many; i += 2) moved[i * 1024] = -i;
        for (long i = 0; i < many; i++) CHECK(moved[i * 1024] == (i % 2 ? i + skip : -i));
        close(ready[0]), close(ready[1]);
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        // New memory where it was, then back, over that.
        int *old = mmap(at, many * PAGE, RW, ANON | MAP_FIXED, -1, 0);
        NEED(old == at);
        for (long i = 0; i < many; i++) CHECK(old[i * 1024] == 0);
        for (long i = 0; i < many; i += 3) old[i * 1024] = 77;
        NEED(mremap(moved, many * PAGE, many * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at) == at);
        for (long i = 0; i < many; i++) CHECK(at[i * 1024] == (i % 2 ? i + skip : -i));
        NEED(!munmap(at, many * PAGE));
        NEED(mmap(room, 8 * TABLE * PAGE, PROT_NONE, ANON | MAP_FIXED | MAP_NORESERVE, -1, 0) == room);
    }
    munmap(room, 8 * TABLE * PAGE);
}

// So large that an unmapping leaves the tables, and moved to where some are left and to where none are.
static void moving_very_large_memory(void) {
    const long size = 600l << 30, span = 2l << 20;
    char *room = mmap(0, 3 * size, PROT_NONE, ANON | MAP_NORESERVE, -1, 0);
    NEED(room != MAP_FAILED);
    char *from = (char *)(((long)room + span - 1) / span * span), *to = from + size + span;
    for (int round = 0; round < 3; round++) {
        NEED(mmap(from, size, RW, ANON | MAP_FIXED | MAP_NORESERVE, -1, 0) == from);
        NEED(mmap(to, size, RW, ANON | MAP_FIXED | MAP_NORESERVE, -1, 0) == to);
        for (long at = 0; at < size; at += size / 4) from[at] = 1, to[at] = 2, to[at + PAGE] = 3;
        NEED(mremap(from, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
        CHECK(!mapped(from) && !mapped(from + size - PAGE));
        // First where memory was used last, whose table the kernel remembers.
        for (long at = size / 4 * 3; at >= 0; at -= size / 4) CHECK(to[at] == 1 && to[at + PAGE] == 0 && !to[at + span / 2]);
        // By the kernel, which has to find what a fault made.
        int fd = open("/dev/zero", O_RDONLY);
        CHECK(read(fd, to + span / 2 + PAGE, 1) == 1 && read(fd, to, PAGE) == PAGE && to[0] == 0);
        close(fd);
        struct iovec bytes = {&(char){7}, 1}, there = {to + 3 * PAGE, 1};
        CHECK(process_vm_writev(getpid(), &bytes, 1, &there, 1, 0) == 1 && to[3 * PAGE] == 7);
        NEED(mmap(to, size, PROT_NONE, ANON | MAP_FIXED | MAP_NORESERVE, -1, 0) == to);
    }
    munmap(room, 3 * size);
}

// Within one space, to where an empty table is left on the way.
static void moving_beside_an_empty_table(void) {
    const long giga = 1l << 30, size = 600 * giga;
    char *room = mmap(0, 2 * size + 2 * giga, PROT_NONE, ANON | MAP_NORESERVE, -1, 0);
    NEED(room != MAP_FAILED);
    char *from = (char *)(((long)room + giga - 1) / giga * giga + giga / 2);
    NEED(mmap(from, 2 * size, RW, ANON | MAP_FIXED | MAP_NORESERVE, -1, 0) == from);
    from[0] = 1, from[100 * giga] = 2, from[size - PAGE] = 3, from[size + 100 * giga] = 4;
    char *to = from + size;
    NEED(mremap(from, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
    CHECK(to[0] == 1 && to[100 * giga] == 2 && to[size - PAGE] == 3);
    NEED(!munmap(room, 2 * size + 2 * giga));
}

static void advice(void) {
    char *at = map(4, RW, ANON, -1);
    memset(at, 5, 4 * PAGE);
    CHECK(!madvise(at + PAGE, 2 * PAGE, MADV_DONTNEED));
    CHECK(at[0] == 5 && at[PAGE] == 0 && at[2 * PAGE] == 0 && at[3 * PAGE] == 5);
    CHECK(!madvise(at, 4 * PAGE, MADV_SEQUENTIAL) && !madvise(at, 4 * PAGE, MADV_WILLNEED));
    FAILS(madvise(at + 1, PAGE, MADV_NORMAL), EINVAL);
    FAILS(madvise(at, PAGE, 12345), EINVAL);
    int fd = file(PAGE, 'a');
    char *changed = map(1, RW, MAP_PRIVATE, fd);
    changed[0] = 'b';
    CHECK(!madvise(changed, PAGE, MADV_DONTNEED));
    CHECK(changed[0] == 'a');
}

static void residency(void) {
    unsigned char vector[8];
    char *at = map(8, RW, ANON, -1);
    at[PAGE] = at[5 * PAGE] = 1;
    CHECK(!mincore(at, 8 * PAGE, vector));
    for (int i = 0; i < 8; i++) CHECK((vector[i] & 1) == (i == 1 || i == 5));
    munmap(at + 2 * PAGE, PAGE);
    FAILS(mincore(at, 8 * PAGE, vector), ENOMEM);
    CHECK(!mlock(at + 3 * PAGE, 2 * PAGE) && !mincore(at + 3 * PAGE, 2 * PAGE, vector) && vector[0] & 1 && vector[1] & 1);
    CHECK(!munlock(at + 3 * PAGE, 2 * PAGE));
}

static void heap_break(void) {
    char *start = (char *)syscall(SYS_brk, 0);
    CHECK((char *)syscall(SYS_brk, start + 10 * PAGE) == start + 10 * PAGE);
    memset(start, 3, 10 * PAGE);
    CHECK((char *)syscall(SYS_brk, start + PAGE) == start + PAGE);
    CHECK(start[0] == 3);
    CHECK((char *)syscall(SYS_brk, start + 10 * PAGE) == start + 10 * PAGE);
    CHECK(start[5 * PAGE] == 0);
    CHECK((char *)syscall(SYS_brk, 1) == start + 10 * PAGE); // an impossible break changes nothing
}

static void memory_files(void) {
    int fd = memfd_create("test", MFD_CLOEXEC);
    NEED(fd >= 0 && !ftruncate(fd, 3 * PAGE));
    char *at = map(3, RW, MAP_SHARED, fd);
    at[2 * PAGE] = 'm';
    char byte;
    CHECK(pread(fd, &byte, 1, 2 * PAGE) == 1 && byte == 'm');
    CHECK(!msync(at, 3 * PAGE, MS_SYNC) && !msync(at, PAGE, MS_ASYNC));
    close(fd);
    CHECK(at[2 * PAGE] == 'm');
    FAILS(msync(at + 1, PAGE, MS_SYNC), EINVAL);
    munmap(at, 3 * PAGE);
    FAILS(msync(at, PAGE, MS_SYNC), ENOMEM);
}

static void wrong_arguments(void) {
    int fd = file(PAGE, 'a'), folder = open("/tmp", O_RDONLY), ends[2];
    FAILS(mmap(0, 0, RW, ANON, -1, 0), EINVAL);
    FAILS(mmap((void *)1, PAGE, RW, ANON | MAP_FIXED, -1, 0), EINVAL);
    FAILS(mmap(0, PAGE, RW, MAP_PRIVATE, -1, 0), EBADF);
    FAILS(syscall(SYS_mmap, 0, PAGE, RW, MAP_PRIVATE, fd, 1), EINVAL);
    FAILS(mmap(0, PAGE, RW, MAP_ANONYMOUS, -1, 0), EINVAL);
    FAILS(syscall(SYS_mmap, 0, 1UL << 62, PROT_NONE, ANON, -1, 0), ENOMEM);
    FAILS(mmap((void *)(1UL << 56), PAGE, RW, ANON | MAP_FIXED, -1, 0), ENOMEM);
    FAILS(syscall(SYS_munmap, 1, PAGE), EINVAL);
    FAILS(syscall(SYS_munmap, PAGE, 0), EINVAL);
    FAILS(syscall(SYS_mprotect, 1, PAGE, PROT_READ), EINVAL);
    FAILS(mmap(0, PAGE, PROT_READ, MAP_SHARED, folder, 0), ENODEV);
    CHECK(!pipe(ends));
    FAILS(mmap(0, PAGE, PROT_READ, MAP_SHARED, ends[0], 0), ENODEV);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int read_only = open("/etc/passwd", O_RDONLY), write_only = open("/tmp/wo", O_WRONLY | O_CREAT, 0600);
    FAILS(mmap(0, PAGE, RW, MAP_SHARED, read_only, 0), EACCES);
    FAILS(mmap(0, PAGE, PROT_READ, MAP_PRIVATE, write_only, 0), EACCES);
    char *at = mmap(0, PAGE, PROT_READ, MAP_SHARED, read_only, 0);
    NEED(at != MAP_FAILED);
    FAILS(mprotect(at, PAGE, RW), EACCES);
    CHECK(mmap(0, PAGE, RW, MAP_PRIVATE, read_only, 0) != MAP_FAILED);
    unlink("/tmp/wo");
}

static void a_sparse_terabyte(void) {
    size_t length = 1UL << 40;
    char *at = mmap(0, length, RW, ANON | MAP_NORESERVE, -1, 0);
    NEED(at != MAP_FAILED);
    for (size_t offset = 0; offset < length; offset += length / 64) at[offset] = 1;
    CHECK(at[length / 2] == 1 && at[length / 2 + PAGE] == 0);
    pid_t child = fork();
    if (child == 0) _exit(at[length / 64 * 63] != 1);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(!munmap(at, length));
}

static void many_mappings(void) {
    enum { COUNT = 20000 };
    char *at = map(COUNT, RW, ANON, -1);
    for (int i = 0; i < COUNT; i += 2) NEED(!mprotect(at + (size_t)i * PAGE, PAGE, PROT_READ));
    at[PAGE] = 1;
    CHECK(at[(COUNT - 2) * (size_t)PAGE] == 0);
    for (int i = 0; i < COUNT; i += 2) NEED(!mprotect(at + (size_t)i * PAGE, PAGE, RW));
    memset(at, 1, 100 * PAGE);
    CHECK(!munmap(at, (size_t)COUNT * PAGE));
}

static void the_maps_file(void) {
    char *at = map(3, PROT_READ, ANON, -1), line[256], wanted[32];
    mprotect(at + PAGE, PAGE, RW);
    int found = 0, stack = 0, program = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    NEED(maps);
    snprintf(wanted, sizeof wanted, "%lx-%lx rw-p", (long)at + PAGE, (long)at + 2 * PAGE);
    while (fgets(line, sizeof line, maps)) {
        found |= !strncmp(line, wanted, strlen(wanted));
        stack |= !!strstr(line, "[stack]");
        program |= strstr(line, "mappings") && strstr(line, "r-xp");
    }
    fclose(maps);
    CHECK(found && stack && program);
}

static void faults_are_counted(void) {
    struct rusage before, after;
    char *at = map(100, RW, ANON, -1);
    CHECK(!getrusage(RUSAGE_SELF, &before));
    // Downwards: upwards a fault may bring several pages.
    for (int i = 99; i >= 0; i--) at[i * PAGE] = 1;
    CHECK(!getrusage(RUSAGE_SELF, &after));
    long faults = after.ru_minflt - before.ru_minflt;
    CHECK(faults >= 100 && faults <= 110);
}

static void running_out(void) {
    // A limit on the address space is kept, and memory can be used again afterwards.
    struct rlimit limit;
    CHECK(!getrlimit(RLIMIT_AS, &limit));
    limit.rlim_cur = 64 << 20;
    CHECK(!setrlimit(RLIMIT_AS, &limit));
    FAILS(mmap(0, 128 << 20, RW, ANON, -1, 0), ENOMEM);
    char *at = mmap(0, 8 << 20, RW, ANON, -1, 0);
    CHECK(at != MAP_FAILED);
    munmap(at, 8 << 20);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"anonymous_memory_is_zero", anonymous_memory_is_zero},
        {"placement", placement},
        {"holes_and_splits", holes_and_splits},
        {"protection_splits", protection_splits},
        {"private_file_mapping", private_file_mapping},
        {"one_view_of_a_shared_file", one_view_of_a_shared_file},
        {"the_last_page_of_a_file", the_last_page_of_a_file},
        {"fork_copies_private_and_shares_shared", fork_copies_private_and_shares_shared},
        {"generations", generations},
        {"growing_and_moving", growing_and_moving},
        {"moving_whole_tables", moving_whole_tables},
        {"moving_very_large_memory", moving_very_large_memory},
        {"moving_beside_an_empty_table", moving_beside_an_empty_table},
        {"advice", advice},
        {"residency", residency},
        {"heap_break", heap_break},
        {"memory_files", memory_files},
        {"wrong_arguments", wrong_arguments},
        {"a_sparse_terabyte", a_sparse_terabyte},
        {"many_mappings", many_mappings},
        {"the_maps_file", the_maps_file},
        {"faults_are_counted", faults_are_counted},
        {"running_out", running_out},
    };
    return RUN(cases, argc, argv);
}
