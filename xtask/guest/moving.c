// Memory that moves: what programs see of it that change nothing, and of the calls for those that ask (docs/calls.md). The first part
// runs on every kernel; the second holds nothing where the calls are not there.
#include "check.h"
#include "uvm.h"
#include <pthread.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>

enum { MOST = 2 << 20, RW = PROT_READ | PROT_WRITE, ANON = MAP_PRIVATE | MAP_ANONYMOUS };

static char *memory(size_t length) {
    char *at = mmap(0, length, RW, ANON, -1, 0);
    NEED(at != MAP_FAILED);
    return at;
}

static char byte_at(size_t at, unsigned seed) {
    return (char)(at * 13 + (at >> 12) * 7 + seed);
}

static void fill(char *at, size_t length, unsigned seed) {
    for (size_t i = 0; i < length; i++) at[i] = byte_at(i, seed);
}

static int is(const char *at, size_t length, unsigned seed, size_t from) {
    for (size_t i = 0; i < length; i++) {
        if (at[i] != byte_at(from + i, seed)) return 0;
    }
    return 1;
}

static void all_of(int fd, char *to, size_t length) {
    for (size_t done = 0; done < length;) {
        ssize_t got = read(fd, to + done, length - done);
        NEED(got > 0);
        done += got;
    }
}

static void make_channel(int kind, int ends[2]) {
    if (kind == 0) NEED(!pipe(ends));
    else NEED(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
}

static int calls_are_here(void) {
    return uvm_anflush(0, 0) == 0 || errno != ENOSYS;
}

// --- programs that change nothing -------------------------------------------------------------------------------

// What was written stays what it was, whatever the writer does to its memory afterwards.
static void writers_change_their_memory(void) {
    for (int kind = 0; kind < 2; kind++) {
        for (size_t size = 1000; size <= MOST; size *= 3) {
            int ends[2];
            make_channel(kind, ends);
            pid_t child = fork();
            NEED(child >= 0);
            if (child == 0) {
                char *from = memory(MOST);
                for (unsigned round = 0; round < 6; round++) {
                    fill(from, size, round);
                    for (size_t done = 0; done < size;) {
                        ssize_t put = write(ends[1], from + done, size - done);
                        if (put <= 0) _exit(1);
                        done += put;
                    }
                    // Overwritten, given back, or mapped anew.
                    if (round % 3 == 0) memset(from, 0xee, size);
                    if (round % 3 == 1) madvise(from, MOST, MADV_DONTNEED);
                    if (round % 3 == 2) munmap(from, MOST), from = memory(MOST);
                }
                _exit(0);
            }
            close(ends[1]);
            char *to = memory(MOST);
            for (unsigned round = 0; round < 6; round++) {
                all_of(ends[0], to, size);
                CHECK(is(to, size, round, 0));
                // What was read is the reader's own.
                memset(to, 0x55, size);
            }
            int status;
            CHECK(waitpid(child, &status, 0) == child && status == 0);
            munmap(to, MOST), close(ends[0]);
        }
    }
}

// Nobody reads while the writer's memory goes through fork, protection, and its own end.
static void writers_go_their_ways(void) {
    int ends[2];
    NEED(!pipe(ends));
    char *from = memory(16 * PAGE), *to = memory(16 * PAGE);
    fill(from, 16 * PAGE, 1);
    NEED(write(ends[1], from, 8 * PAGE) == 8 * PAGE);
    pid_t child = fork();
    if (child == 0) {
        // The child writes to what was lent before it was made.
        memset(from, 9, 16 * PAGE);
        _exit(from[0] != 9);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0 && is(from, 16 * PAGE, 1, 0));
    NEED(!mprotect(from, 4 * PAGE, PROT_NONE) && !mprotect(from, 4 * PAGE, RW));
    CHECK(is(from, 16 * PAGE, 1, 0));
    memset(from, 7, 4 * PAGE);
    all_of(ends[0], to, 8 * PAGE);
    CHECK(is(to, 8 * PAGE, 1, 0));
    // The writer is gone when it is read.
    child = fork();
    if (child == 0) {
        fill(from, 8 * PAGE, 2);
        _exit(write(ends[1], from, 8 * PAGE) != 8 * PAGE);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    all_of(ends[0], to, 8 * PAGE);
    CHECK(is(to, 8 * PAGE, 2, 0));
    close(ends[0]), close(ends[1]);
}

// Files, memory of files and memory never touched, in one write.
static void all_kinds_of_memory(void) {
    int fd = open("/tmp/kinds", O_RDWR | O_CREAT | O_TRUNC, 0600), ends[2];
    char *from = memory(16 * PAGE), *to = memory(16 * PAGE);
    fill(to, 4 * PAGE, 3);
    NEED(fd >= 0 && write(fd, to, 4 * PAGE) == 4 * PAGE && !pipe(ends));
    NEED(mmap(from, 4 * PAGE, RW, MAP_SHARED | MAP_FIXED, fd, 0) == from);
    NEED(mmap(from + 4 * PAGE, 4 * PAGE, RW, MAP_PRIVATE | MAP_FIXED, fd, 0) == from + 4 * PAGE);
    from[5 * PAGE] = 'p';
    fill(from + 8 * PAGE, 2 * PAGE, 4);
    CHECK(write(ends[1], from, 12 * PAGE) == 12 * PAGE);
    // Each of them changes before it is read.
    char *file = memory(4 * PAGE);
    memset(file, 1, 4 * PAGE);
    CHECK(pwrite(fd, file, PAGE, 0) == PAGE);
    from[PAGE] = 2;
    NEED(!ftruncate(fd, 2 * PAGE));
    memset(from + 8 * PAGE, 5, 4 * PAGE);
    memset(to, 0x77, 16 * PAGE);
    all_of(ends[0], to, 12 * PAGE);
    CHECK(is(to, 4 * PAGE, 3, 0));
    CHECK(is(to + 4 * PAGE, PAGE, 3, 0) && to[5 * PAGE] == 'p' && is(to + 6 * PAGE, 2 * PAGE, 3, 2 * PAGE));
    CHECK(is(to + 8 * PAGE, 2 * PAGE, 4, 0) && !to[10 * PAGE] && !to[12 * PAGE - 1]);
    close(fd), close(ends[0]), close(ends[1]);
}

// Reads into memory that is shared, locked, protected or a file's put the bytes where all can see them.
static void readers_of_all_kinds(void) {
    int fd = open("/tmp/kinds", O_RDWR | O_CREAT | O_TRUNC, 0600), ends[2];
    NEED(fd >= 0 && !ftruncate(fd, 16 * PAGE) && !pipe(ends));
    char *from = memory(16 * PAGE), *back = memory(16 * PAGE);
    fill(from, 16 * PAGE, 5);
    char *file = mmap(0, 16 * PAGE, RW, MAP_SHARED, fd, 0), *shared = mmap(0, 16 * PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(file != MAP_FAILED && shared != MAP_FAILED);
    NEED(write(ends[1], from, 12 * PAGE) == 12 * PAGE);
    all_of(ends[0], file, 12 * PAGE);
    CHECK(pread(fd, back, 12 * PAGE, 0) == 12 * PAGE && is(back, 12 * PAGE, 5, 0));
    pid_t child = fork();
    if (child == 0) {
        if (write(ends[1], from, 12 * PAGE) != 12 * PAGE) _exit(1);
        all_of(ends[0], shared, 12 * PAGE);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0 && is(shared, 12 * PAGE, 5, 0));
    NEED(!mlock(back, 12 * PAGE) && write(ends[1], from, 12 * PAGE) == 12 * PAGE);
    memset(back, 0, 12 * PAGE);
    all_of(ends[0], back, 12 * PAGE);
    CHECK(is(back, 12 * PAGE, 5, 0) && !munlock(back, 12 * PAGE));
    // Into memory that can't be written: nothing is lost.
    NEED(write(ends[1], from, 12 * PAGE) == 12 * PAGE && !mprotect(back, 12 * PAGE, PROT_READ));
    FAILS(read(ends[0], back, 12 * PAGE), EFAULT);
    NEED(!mprotect(back, 12 * PAGE, RW));
    all_of(ends[0], back, 12 * PAGE);
    CHECK(is(back, 12 * PAGE, 5, 0));
    close(fd), close(ends[0]), close(ends[1]);
}

// Memory in the pipe is paged out with everything else, or kept; it comes out right.
static void memory_is_short(void) {
    enum { PIPES = 24 };
    int ends[PIPES][2];
    char *from = memory(16 * PAGE);
    for (int i = 0; i < PIPES; i++) {
        NEED(!pipe(ends[i]));
        fill(from, 15 * PAGE, i);
        CHECK(write(ends[i][1], from, 15 * PAGE) == 15 * PAGE);
    }
    madvise(from, 16 * PAGE, MADV_PAGEOUT);
    for (int i = 0; i < PIPES; i++) {
        all_of(ends[i][0], from, 15 * PAGE);
        CHECK(is(from, 15 * PAGE, i, 0));
        close(ends[i][0]), close(ends[i][1]);
    }
}

// --- programs that ask ------------------------------------------------------------------------------------------

// Takes bytes by transfer, checks and changes them, and gives the pages up.
static size_t transferred(int fd, size_t length, unsigned seed) {
    struct uvm_piece pieces[8];
    size_t done = 0;
    while (done < length) {
        ssize_t count = uvm_transfer_read(fd, pieces, 8, length - done);
        if (count <= 0) break;
        for (ssize_t i = 0; i < count; i++) {
            char *at = pieces[i].start;
            CHECK(is(at, pieces[i].length, seed, done));
            // The rest of the pages holds nothing.
            for (char *p = (char *)((uintptr_t)at & -PAGE); p < at; p++) CHECK(!*p);
            for (char *p = at + pieces[i].length; (uintptr_t)p % PAGE; p++) CHECK(!*p);
            memset(at, 0xcc, pieces[i].length);
            done += pieces[i].length;
            CHECK(!uvm_anflush(at, pieces[i].length));
        }
    }
    return done;
}

static void bytes_are_transferred(void) {
    if (!calls_are_here()) return;
    static const size_t sizes[] = {1, 100, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE, 5 * PAGE + 17, 15 * PAGE};
    for (int kind = 0; kind < 2; kind++) {
        int ends[2];
        make_channel(kind, ends);
        char *from = memory(16 * PAGE);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            for (size_t offset = 0; offset < 2 * PAGE; offset += 1365) {
                if (offset + sizes[i] > 16 * PAGE) continue;
                fill(from + offset, sizes[i], i);
                NEED(write(ends[1], from + offset, sizes[i]) == (ssize_t)sizes[i]);
                CHECK(transferred(ends[0], sizes[i], i) == sizes[i]);
                CHECK(is(from + offset, sizes[i], i, 0));
            }
        }
        close(ends[1]);
        struct uvm_piece piece;
        CHECK(uvm_transfer_read(ends[0], &piece, 1, PAGE) == 0);
        close(ends[0]);
    }
}

static size_t mapped_pages(void) {
    char text[64];
    int fd = open("/proc/self/statm", O_RDONLY);
    NEED(fd >= 0);
    ssize_t n = read(fd, text, sizeof text - 1);
    NEED(n > 0);
    text[n] = 0;
    close(fd);
    return strtoul(text, 0, 10);
}

// Pages that come by transfer are memory of the receiver's, and within its limit.
// What is told of the pieces makes a stack grow, while a limit holds for what is mapped.
static void pieces_are_told_on_a_stack(void) {
    if (!calls_are_here()) return;
    struct rlimit old, much = {1UL << 40, RLIM_INFINITY};
    int ends[2];
    char *top = mmap((void *)(1UL << 44), PAGE, RW, ANON | MAP_GROWSDOWN | MAP_FIXED, -1, 0), *from = memory(2 * PAGE);
    NEED(top != MAP_FAILED && !pipe(ends) && write(ends[1], from, 2 * PAGE) == 2 * PAGE);
    NEED(!getrlimit(RLIMIT_AS, &old));
    much.rlim_max = old.rlim_max;
    NEED(!setrlimit(RLIMIT_AS, &much));
    struct uvm_piece *pieces = (struct uvm_piece *)(top - PAGE);
    CHECK(uvm_transfer_read(ends[0], pieces, 8, 2 * PAGE) > 0);
    NEED(!setrlimit(RLIMIT_AS, &old) && !munmap(top - PAGE, 2 * PAGE));
    close(ends[0]), close(ends[1]);
}

static void transfers_keep_to_limits(void) {
    for (int pages = 1; pages <= 32; pages += 31) {
        int ends[2];
        struct uvm_piece piece;
        struct rlimit old, none;
        char *from = memory(32 * PAGE);
        fill(from, pages * PAGE, 31);
        NEED(!pipe(ends) && uvm_donate_write(ends[1], from, pages * PAGE) == pages * PAGE);
        NEED(!getrlimit(RLIMIT_AS, &old));
        none = (struct rlimit){mapped_pages() * PAGE, old.rlim_max};
        NEED(!setrlimit(RLIMIT_AS, &none));
        FAILS(uvm_transfer_read(ends[0], &piece, 1, 32 * PAGE), ENOMEM);
        NEED(!setrlimit(RLIMIT_AS, &old));
        CHECK(transferred(ends[0], pages * PAGE, 31) == (size_t)pages * PAGE);
        close(ends[0]), close(ends[1]);
    }
}

static void pages_are_donated(void) {
    if (!calls_are_here()) return;
    for (int kind = 0; kind < 2; kind++) {
        for (int by_transfer = 0; by_transfer < 2; by_transfer++) {
            int ends[2];
            make_channel(kind, ends);
            char *from = memory(16 * PAGE), *to = memory(16 * PAGE);
            fill(from, 16 * PAGE, 6);
            size_t length = 9 * PAGE + 100;
            ssize_t put = uvm_donate_write(ends[1], from, length);
            CHECK(put == (ssize_t)length);
            for (int i = 0; i < 10; i++) CHECK(!from[i * PAGE] && !from[i * PAGE + 2000]);
            CHECK(is(from + 10 * PAGE, 6 * PAGE, 6, 10 * PAGE));
            fill(from, 16 * PAGE, 7);
            if (by_transfer) {
                CHECK(transferred(ends[0], length, 6) == length);
            } else {
                all_of(ends[0], to, length);
                CHECK(is(to, length, 6, 0));
            }
            CHECK(is(from, 16 * PAGE, 7, 0));
            munmap(from, 16 * PAGE), munmap(to, 16 * PAGE), close(ends[0]), close(ends[1]);
        }
    }
}

static void more_than_has_room_is_donated(void) {
    if (!calls_are_here()) return;
    int ends[2];
    NEED(!pipe2(ends, O_NONBLOCK));
    char *from = memory(64 * PAGE), *to = memory(64 * PAGE);
    fill(from, 64 * PAGE, 8);
    ssize_t put = uvm_donate_write(ends[1], from, 64 * PAGE - 1); // not whole pages, which need no room
    CHECK(put > 0 && put < 64 * PAGE && put % PAGE == 0);
    CHECK(!from[0] && !from[put - 1] && is(from + put, 64 * PAGE - put, 8, put));
    FAILS(uvm_donate_write(ends[1], from + put, 64 * PAGE - put), EAGAIN);
    CHECK(is(from + put, 64 * PAGE - put, 8, put));
    all_of(ends[0], to, put);
    CHECK(is(to, put, 8, 0));
    close(ends[0]);
    signal(SIGPIPE, SIG_IGN);
    FAILS(uvm_donate_write(ends[1], from + put, PAGE), EPIPE);
    CHECK(is(from + put, 64 * PAGE - put, 8, put));
    close(ends[1]);
}

// A socket takes what it has room for, and ends in the middle of a page.
static void a_part_of_a_page_is_donated(void) {
    if (!calls_are_here()) return;
    int ends[2], room = 10000;
    NEED(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends));
    NEED(!setsockopt(ends[1], SOL_SOCKET, SO_SNDBUF, &room, sizeof room));
    char *from = memory(64 * PAGE), *to = memory(64 * PAGE);
    NEED(!mprotect(from + 60 * PAGE, PAGE, PROT_READ)); // what lies behind is nobody's business
    fill(from, 60 * PAGE, 12);
    size_t done = 0;
    while (done < 60 * PAGE) {
        size_t page = done / PAGE * PAGE;
        // What has gone of a page that is the program's yet, goes as bytes.
        ssize_t put = done > page ? write(ends[1], from + done, PAGE - (done - page))
                                  : uvm_donate_write(ends[1], from + page, 60 * PAGE - page);
        if (put > 0) {
            size_t gone = done > page ? page : (done + put) / PAGE * PAGE;
            for (size_t at = page; at < gone; at += PAGE) CHECK(!from[at] && !from[at + PAGE - 1]);
            CHECK(is(from + gone, 60 * PAGE - gone, 12, gone));
            done += put;
        } else {
            NEED(errno == EAGAIN);
            CHECK(is(from + page, 60 * PAGE - page, 12, page));
        }
        ssize_t got;
        static size_t read_so_far;
        while ((got = read(ends[0], to + read_so_far, 64 * PAGE - read_so_far)) > 0) read_so_far += got;
    }
    CHECK(is(to, 60 * PAGE, 12, 0));
    // Nobody reads: all of it is the program's again.
    close(ends[0]);
    signal(SIGPIPE, SIG_IGN);
    fill(from, 16 * PAGE, 13);
    FAILS(uvm_donate_write(ends[1], from, 16 * PAGE), EPIPE);
    CHECK(is(from, 16 * PAGE, 13, 0));
    close(ends[1]), munmap(from, 64 * PAGE), munmap(to, 64 * PAGE);
}

static void odd_memory_is_donated(void) {
    if (!calls_are_here()) return;
    int fd = open("/tmp/kinds", O_RDWR | O_CREAT | O_TRUNC, 0600), ends[2];
    char *from = memory(8 * PAGE), *to = memory(8 * PAGE);
    fill(to, 2 * PAGE, 9);
    NEED(fd >= 0 && write(fd, to, 2 * PAGE) == 2 * PAGE && !pipe(ends));
    NEED(mmap(from, 2 * PAGE, RW, MAP_SHARED | MAP_FIXED, fd, 0) == from);
    NEED(mmap(from + 2 * PAGE, 2 * PAGE, RW, MAP_PRIVATE | MAP_FIXED, fd, 0) == from + 2 * PAGE);
    fill(from + 6 * PAGE, PAGE, 10);
    ssize_t put = uvm_donate_write(ends[1], from, 8 * PAGE);
    CHECK(put == 8 * PAGE);
    all_of(ends[0], to, 8 * PAGE);
    CHECK(is(to, 2 * PAGE, 9, 0) && is(to + 2 * PAGE, 2 * PAGE, 9, 0) && !to[4 * PAGE] && is(to + 6 * PAGE, PAGE, 10, 0));
    // Behind the file's end is nothing: what lies before it goes.
    char *past = mmap(0, 4 * PAGE, RW, MAP_PRIVATE, fd, 0);
    NEED(past != MAP_FAILED);
    CHECK(uvm_donate_write(ends[1], past, 4 * PAGE) == 2 * PAGE);
    all_of(ends[0], to, 2 * PAGE);
    CHECK(is(to, 2 * PAGE, 9, 0) && !munmap(past, 4 * PAGE));
    // The file keeps its bytes.
    CHECK(pread(fd, to, 2 * PAGE, 0) == 2 * PAGE && is(to, 2 * PAGE, 9, 0));
    close(fd), close(ends[0]), close(ends[1]);
}

static void calls_are_refused(void) {
    if (!calls_are_here()) return;
    int ends[2], file = open("/tmp/kinds", O_RDWR | O_CREAT, 0600);
    NEED(!pipe(ends) && file >= 0);
    char *at = memory(4 * PAGE);
    fill(at, 4 * PAGE, 11);
    struct uvm_piece piece;
    FAILS(uvm_donate_write(ends[1], at + 1, PAGE), EINVAL);
    FAILS(uvm_donate_write(ends[1], (void *)(uintptr_t)(1ull << 50), PAGE), EFAULT);
    FAILS(uvm_donate_write(ends[1], 0, PAGE), EFAULT);
    FAILS(uvm_donate_write(file, at, PAGE), EINVAL);
    FAILS(uvm_donate_write(ends[0], at, PAGE), EBADF);
    FAILS(uvm_donate_write(-1, at, PAGE), EBADF);
    CHECK(uvm_donate_write(ends[1], at, 0) == 0);
    CHECK(is(at, 4 * PAGE, 11, 0));
    FAILS(uvm_transfer_read(file, &piece, 1, PAGE), EINVAL);
    FAILS(uvm_transfer_read(ends[1], &piece, 1, PAGE), EBADF);
    NEED(write(ends[1], at, 100) == 100);
    FAILS(uvm_transfer_read(ends[0], &piece, 0, PAGE), EINVAL);
    FAILS(uvm_transfer_read(ends[0], (struct uvm_piece *)8, 1, PAGE), EFAULT);
    CHECK(uvm_transfer_read(ends[0], &piece, 1, 0) == 0);
    CHECK(transferred(ends[0], 100, 11) == 100);
    FAILS(uvm_anflush((void *)(uintptr_t)(1ull << 50), PAGE), EINVAL);
    close(file), close(ends[0]), close(ends[1]);
}

static void anflush_gives_up(void) {
    if (!calls_are_here()) return;
    char *at = memory(4 * PAGE);
    fill(at, 4 * PAGE, 12);
    CHECK(!uvm_anflush(at + PAGE, 2 * PAGE) && !at[PAGE] && !at[3 * PAGE - 1]);
    CHECK(is(at, PAGE, 12, 0) && is(at + 3 * PAGE, PAGE, 12, 3 * PAGE));
    munmap(at + PAGE, PAGE);
    FAILS(uvm_anflush(at, 4 * PAGE), ENOMEM);
    CHECK(!at[0] && !at[3 * PAGE]);
}

// --- exports ----------------------------------------------------------------------------------------------------

static void exports_copy(void) {
    if (!calls_are_here()) return;
    char *at = memory(8 * PAGE);
    fill(at, 8 * PAGE, 13);
    int fd = uvm_export(at, 8 * PAGE, UVM_COPY, RW);
    NEED(fd >= 0);
    struct stat about;
    CHECK(!fstat(fd, &about) && about.st_size == 8 * PAGE);
    memset(at, 1, PAGE);
    char *one = uvm_import(fd, 0, 0), *two = uvm_import(fd, 0, 0);
    NEED(one != (void *)-1 && two != (void *)-1 && one != two);
    CHECK(is(one, 8 * PAGE, 13, 0) && is(two, 8 * PAGE, 13, 0));
    memset(one, 2, 8 * PAGE);
    CHECK(is(two, 8 * PAGE, 13, 0) && at[0] == 1 && is(at + PAGE, 7 * PAGE, 13, PAGE));
    close(fd);
    CHECK(is(two, 8 * PAGE, 13, 0));
}

static void exports_share(void) {
    if (!calls_are_here()) return;
    char *at = memory(8 * PAGE);
    fill(at, 4 * PAGE, 14);
    int fd = uvm_export(at, 8 * PAGE, UVM_SHARE, RW);
    NEED(fd >= 0);
    pid_t child = fork();
    if (child == 0) {
        char *here = uvm_import(fd, 0, 0);
        if (here == (void *)-1 || !is(here, 4 * PAGE, 14, 0)) _exit(1);
        here[0] = 'a', here[7 * PAGE] = 'b';
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0 && at[0] == 'a' && at[7 * PAGE] == 'b');
    char *here = uvm_import(fd, 0, 0);
    NEED(here != (void *)-1);
    at[5 * PAGE] = 'c';
    CHECK(here[0] == 'a' && here[5 * PAGE] == 'c');
    close(fd);
    here[1] = 'd';
    CHECK(at[1] == 'd');
}

static void exports_donate(void) {
    if (!calls_are_here()) return;
    for (int zero = 0; zero < 2; zero++) {
        // Several entries and a hole.
        char *at = memory(16 * PAGE);
        fill(at, 16 * PAGE, 15);
        NEED(!mprotect(at + 4 * PAGE, 2 * PAGE, PROT_READ) && !munmap(at + 8 * PAGE, 2 * PAGE));
        int fd = uvm_export(at + PAGE, 14 * PAGE, zero ? UVM_DONATE_ZERO : UVM_DONATE, RW);
        NEED(fd >= 0);
        unsigned char vector;
        CHECK(is(at, PAGE, 15, 0) && is(at + 15 * PAGE, PAGE, 15, 15 * PAGE));
        if (zero) CHECK(!at[PAGE] && !at[14 * PAGE]);
        else FAILS(mincore(at + PAGE, PAGE, &vector), ENOMEM);
        char *there = uvm_import(fd, 0, 0);
        NEED(there != (void *)-1);
        CHECK(is(there, 7 * PAGE, 15, PAGE) && is(there + 9 * PAGE, 5 * PAGE, 15, 10 * PAGE));
        FAILS(mincore(there + 7 * PAGE, PAGE, &vector), ENOMEM);
        there[0] = 3;
        catch_faults();
        CATCH(there[3 * PAGE] = 1);
        CHECK(caught_signal == SIGSEGV);
        FAILS(uvm_import(fd, 0, 0) == (void *)-1 ? -1 : 0, ENODATA);
        close(fd);
        CHECK(there[0] == 3 && is(there + PAGE, 6 * PAGE, 15, 2 * PAGE));
    }
}

// What others may fill yet of memory that they share is charged, and no user can take all users' room by it.
static void exports_of_much_shared_memory(void) {
    if (!calls_are_here()) return;
    const size_t size = 1ul << 46;
    int ready[2];
    NEED(!pipe(ready));
    pid_t exporter = fork();
    if (exporter == 0) {
        NEED(!setgid(1000) && !setuid(1000));
        char *at = mmap(0, size, RW, ANON | MAP_NORESERVE, -1, 0);
        NEED(at != MAP_FAILED && !syscall(510, at, size, 0) && (*at = 1));
        pid_t other = fork();
        if (other == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (;;) pause();
        }
        FAILS(uvm_export(at, size, UVM_DONATE, RW), ENOMEM);
        CHECK(*at == 1);
        FAILS(uvm_export(at, size, UVM_SHARE, RW), ENOMEM);
        int fd = uvm_export(at, 4 * PAGE, UVM_DONATE, RW);
        CHECK(fd >= 0 && write(ready[1], "", 1) == 1);
        pause();
        _exit(0);
    }
    char byte;
    close(ready[1]);
    CHECK(read(ready[0], &byte, 1) == 1);
    pid_t innocent = fork();
    if (innocent == 0) {
        int ends[2];
        NEED(!setgid(1001) && !setuid(1001));
        _exit(pipe(ends) != 0);
    }
    int status;
    CHECK(waitpid(innocent, &status, 0) == innocent && status == 0);
    kill(exporter, SIGKILL);
    NEED(waitpid(exporter, 0, 0) == exporter);
    close(ready[0]);
}

static void exports_are_refused(void) {
    if (!calls_are_here()) return;
    char *at = memory(4 * PAGE);
    fill(at, 4 * PAGE, 16);
    FAILS(uvm_export(at + 1, PAGE, UVM_COPY, RW), EINVAL);
    FAILS(uvm_export(at, 0, UVM_COPY, RW), EINVAL);
    FAILS(uvm_export(at, PAGE, 9, RW), EINVAL);
    FAILS(uvm_export(at, PAGE, UVM_COPY, 64), EINVAL);
    char *none = memory(4 * PAGE);
    munmap(none, 4 * PAGE);
    FAILS(uvm_export(none, 4 * PAGE, UVM_COPY, RW), ENOMEM);
    int file = open("/bin/moving", O_RDONLY);
    NEED(file >= 0);
    char *map = mmap(0, PAGE, PROT_READ, MAP_SHARED, file, 0);
    NEED(map != MAP_FAILED);
    FAILS(uvm_export(map, PAGE, UVM_SHARE, RW), EACCES);
    // Later stores would be seen in what is no copy of shared memory, or of a file.
    char *shared = mmap(0, PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char *private = mmap(0, PAGE, PROT_READ, MAP_PRIVATE, file, 0);
    NEED(shared != MAP_FAILED && private != MAP_FAILED);
    FAILS(uvm_export(shared, PAGE, UVM_COPY, RW), EINVAL);
    FAILS(uvm_export(private, PAGE, UVM_COPY, PROT_READ), EINVAL);
    FAILS(uvm_import(file, 0, 0) == (void *)-1 ? -1 : 0, EBADF);
    int fd = uvm_export(at, 4 * PAGE, UVM_COPY, PROT_READ);
    NEED(fd >= 0);
    FAILS(uvm_import(fd, at + 1, UVM_FIXED) == (void *)-1 ? -1 : 0, EINVAL);
    FAILS(uvm_import(fd, 0, 2) == (void *)-1 ? -1 : 0, EINVAL);
    char *there = uvm_import(fd, at, UVM_FIXED);
    CHECK(there == at && is(at, 4 * PAGE, 16, 0));
    FAILS(mprotect(at, PAGE, RW), EACCES);
    close(fd), close(file);
}

// Nothing is left of what nobody imported.
static void exports_are_dropped(void) {
    if (!calls_are_here()) return;
    for (int i = 0; i < 200; i++) {
        char *at = memory(1 << 20);
        memset(at, i + 1, 1 << 20);
        int fd = uvm_export(at, 1 << 20, 1 + i % 4, RW);
        NEED(fd >= 0);
        if (i % 3 == 0) {
            char *there = uvm_import(fd, 0, 0);
            NEED(there != (void *)-1);
            CHECK(there[4 * PAGE] == (char)(i + 1));
            munmap(there, 1 << 20);
        }
        close(fd);
        if (i % 4 != 2) munmap(at, 1 << 20);
    }
}

static int sealed_file(char **at) {
    int fd = memfd_create("sealed", MFD_ALLOW_SEALING);
    NEED(fd >= 0 && ftruncate(fd, PAGE) == 0);
    if (at) NEED((*at = mmap(0, PAGE, RW, MAP_SHARED, fd, 0)) != MAP_FAILED);
    return fd;
}

static int seal(int fd, int seals) { return fcntl(fd, F_ADD_SEALS, seals); }

// A file can't be sealed against stores as long as an export has a mapping that they could go through.
static void exports_of_sealed_files(void) {
    if (!calls_are_here()) return;
    static const int modes[] = {UVM_SHARE, UVM_DONATE};
    for (int i = 0; i < 2; i++) {
        char *at;
        int fd = sealed_file(&at), export = uvm_export(at, PAGE, modes[i], RW);
        NEED(export >= 0);
        munmap(at, PAGE);
        FAILS(seal(fd, F_SEAL_WRITE), EBUSY);
        char *there = uvm_import(export, 0, 0);
        NEED(there != (void *)-1);
        close(export);
        FAILS(seal(fd, F_SEAL_WRITE), EBUSY);
        munmap(there, PAGE);
        CHECK(!seal(fd, F_SEAL_WRITE));
        close(fd);
    }
    // An export that may only be read is none, and what is there goes on in parts, children, other places.
    char *at;
    int fd = sealed_file(&at), export = uvm_export(at, PAGE, UVM_SHARE, PROT_READ);
    NEED(export >= 0);
    char *moved = mremap(at, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, memory(PAGE));
    NEED(moved != MAP_FAILED);
    CHECK(!mprotect(moved, PAGE, PROT_READ));
    int ends[2];
    NEED(!pipe(ends));
    pid_t child = fork();
    if (child == 0) _exit(read(ends[0], ends, 1) != 1);
    munmap(moved, PAGE);
    FAILS(seal(fd, F_SEAL_WRITE), EBUSY);
    int status = -1;
    CHECK(write(ends[1], "", 1) == 1 && waitpid(child, &status, 0) == child && status == 0);
    CHECK(!seal(fd, F_SEAL_WRITE));
    close(fd), close(export), close(ends[0]), close(ends[1]);
}

// No hole comes into a file that is sealed against stores to come by a mapping from before.
static void sealed_files_get_no_holes(void) {
    char *at;
    int fd = sealed_file(&at);
    at[0] = 'a';
    CHECK(!seal(fd, F_SEAL_FUTURE_WRITE));
    FAILS(madvise(at, PAGE, MADV_REMOVE), EPERM);
    at[1] = 'b';
    CHECK(at[0] == 'a' && at[1] == 'b');
    FAILS(mmap(0, PAGE, RW, MAP_SHARED, fd, 0), EPERM);
    FAILS(seal(fd, F_SEAL_WRITE), EBUSY);
    munmap(at, PAGE);
    CHECK(!seal(fd, F_SEAL_WRITE));
    at = mmap(0, PAGE, PROT_READ, MAP_SHARED, fd, 0);
    NEED(at != MAP_FAILED);
    CHECK(at[0] == 'a');
    FAILS(mprotect(at, PAGE, RW), EACCES);
    munmap(at, PAGE), close(fd);
}

static struct {
    volatile int go;
    int fd;
    char *at;
} mapper;

static void *maps(void *none) {
    (void)none;
    for (;;) {
        while (!mapper.go) sched_yield();
        if (mapper.go < 0) return 0;
        mapper.at = mmap(0, PAGE, RW, MAP_SHARED, mapper.fd, 0);
        __atomic_store_n(&mapper.go, 0, __ATOMIC_SEQ_CST);
    }
}

// A file is sealed, or mapped for stores beside that, and not both.
static void sealing_beside_mappers(void) {
    pthread_t thread;
    int both = 0;
    NEED(!pthread_create(&thread, 0, maps, 0));
    for (int i = 0; i < 2000; i++) {
        mapper.fd = sealed_file(0);
        __atomic_store_n(&mapper.go, 1, __ATOMIC_SEQ_CST);
        for (volatile int n = 0; n < i * 37 % 3000; n++) {}
        int is_sealed = !seal(mapper.fd, F_SEAL_WRITE);
        while (__atomic_load_n(&mapper.go, __ATOMIC_SEQ_CST)) sched_yield();
        both += is_sealed && mapper.at != MAP_FAILED;
        if (mapper.at != MAP_FAILED) munmap(mapper.at, PAGE);
        close(mapper.fd);
    }
    mapper.go = -1;
    pthread_join(thread, 0);
    if (!CHECK(both == 0)) printf("  %d were both\n", both);
}

// Memory that is given to a pipe as it is goes round and round, and is read in any way.
static void ranges_are_donated(void) {
    if (!calls_are_here()) return;
    enum { SIZE = 32 * PAGE };
    int ends[2];
    NEED(!pipe(ends) && fcntl(ends[1], F_SETPIPE_SZ, 1 << 20) == 1 << 20);
    char *at = memory(SIZE), *to = memory(SIZE);
    fill(at, SIZE, 20);
    for (int round = 0; round < 300; round++) {
        CHECK(uvm_donate_write(ends[1], at, SIZE) == SIZE);
        if (round == 0) CHECK(!at[0] && !at[SIZE - 1]);
        struct uvm_piece piece = {0, 0};
        NEED(uvm_transfer_read(ends[0], &piece, 1, SIZE) == 1 && piece.length == SIZE);
        at = piece.start;
        CHECK(is(at, SIZE, 20, 0));
        at[round * 100] ^= 1, at[round * 100] ^= 1;
    }
    // What came by a donation is gone when it is given up.
    CHECK(!uvm_anflush(at, SIZE));
    FAILS(madvise(at, SIZE, MADV_WILLNEED), ENOMEM);
    // Read in pieces, looked at, and cut.
    for (int way = 0; way < 4; way++) {
        char *from = memory(SIZE);
        fill(from, SIZE, 21 + way);
        CHECK(write(ends[1], "x", 1) == 1);
        CHECK(uvm_donate_write(ends[1], from, SIZE) == SIZE);
        CHECK(uvm_donate_write(ends[1], from, 8 * PAGE) == 8 * PAGE);
        CHECK(read(ends[0], to, 1) == 1 && *to == 'x');
        int copy[2], left;
        NEED(!pipe(copy) && !ioctl(ends[0], FIONREAD, &left));
        CHECK(left == SIZE + 8 * PAGE);
        if (way == 1) {
            CHECK(tee(ends[0], copy[1], 1000, 0) == 1000);
            all_of(copy[0], to, 1000);
            CHECK(is(to, 1000, 22, 0));
        }
        if (way == 2) {
            struct uvm_piece piece;
            CHECK(uvm_transfer_read(ends[0], &piece, 1, PAGE) == 1 && piece.length == PAGE);
            CHECK(is(piece.start, PAGE, 23, 0));
            all_of(ends[0], to, SIZE - PAGE);
            CHECK(is(to, SIZE - PAGE, 23, PAGE));
        } else if (way == 3) {
            struct uvm_piece piece;
            CHECK(uvm_transfer_read(ends[0], &piece, 1, 2 * SIZE) == 1 && piece.length == SIZE);
            CHECK(is(piece.start, SIZE, 24, 0));
            CHECK(uvm_donate_write(ends[1], piece.start, 16 * PAGE) == 16 * PAGE);
            CHECK(is((char *)piece.start + 16 * PAGE, 16 * PAGE, 24, 16 * PAGE));
            CHECK(!uvm_anflush(piece.start, SIZE));
            all_of(ends[0], to, 8 * PAGE);
            CHECK(!to[0] && !to[8 * PAGE - 1]);
            all_of(ends[0], to, 16 * PAGE);
            CHECK(is(to, 16 * PAGE, 24, 0));
        } else {
            all_of(ends[0], to, 100);
            all_of(ends[0], to + 100, SIZE - 100);
            CHECK(is(to, SIZE, 21 + way, 0));
        }
        if (way != 3) all_of(ends[0], to, 8 * PAGE);
        if (way != 3) CHECK(!to[0] && !to[8 * PAGE - 1]);
        CHECK(!ioctl(ends[0], FIONREAD, &left) && left == 0);
        close(copy[0]), close(copy[1]), munmap(from, SIZE);
    }
    // Nobody takes it.
    char *from = memory(SIZE);
    fill(from, SIZE, 30);
    CHECK(uvm_donate_write(ends[1], from, SIZE) == SIZE);
    close(ends[0]);
    fill(from, SIZE, 31);
    signal(SIGPIPE, SIG_IGN);
    FAILS(uvm_donate_write(ends[1], from, SIZE), EPIPE);
    CHECK(is(from, SIZE, 31, 0));
    close(ends[1]);
}

// Loans are seen in the picture of a map, as long as they last.
static size_t in_picture(const char *key) {
    static char text[1 << 16];
    int fd = open("/proc/self/uvm", O_RDONLY);
    NEED(fd >= 0);
    size_t length = 0, sum = 0;
    for (ssize_t got; (got = read(fd, text + length, sizeof text - 1 - length)) > 0;) length += got;
    text[length] = 0;
    close(fd);
    for (char *at = text; (at = strstr(at, key)); at++) sum += strtoul(at + strlen(key), 0, 10);
    return sum;
}

static size_t pages_on_loan(void) {
    return in_picture("loaned=");
}

static void loans_are_seen(void) {
    if (!calls_are_here()) return;
    int ends[2];
    NEED(!pipe(ends));
    char *from = memory(8 * PAGE), to[4 * PAGE];
    fill(from, 8 * PAGE, 50);
    CHECK(pages_on_loan() == 0);
    struct iovec vector = {from + PAGE, 4 * PAGE};
    CHECK(vmsplice(ends[1], &vector, 1, 0) == 4 * PAGE);
    CHECK(pages_on_loan() == 4);
    from[PAGE] ^= 1; // a copy from now on, which isn't lent
    CHECK(pages_on_loan() == 3);
    all_of(ends[0], to, 4 * PAGE);
    CHECK(is(to, 4 * PAGE, 50, PAGE) && pages_on_loan() == 0);
    // What comes by a transfer is on loan itself, however often it is read, until somebody writes it.
    struct uvm_piece piece;
    CHECK(vmsplice(ends[1], &vector, 1, 0) == 4 * PAGE && uvm_transfer_read(ends[0], &piece, 1, 4 * PAGE) == 1);
    CHECK(in_picture("borrowed=") == 4 && pages_on_loan() == 4);
    CHECK(!memcmp(piece.start, from + PAGE, 4 * PAGE));
    CHECK(in_picture("borrowed=") == 4 && pages_on_loan() == 4);
    *(char *)piece.start ^= 1;
    CHECK(in_picture("borrowed=") == 3 && pages_on_loan() == 3);
    uvm_anflush(piece.start, piece.length);
    CHECK(in_picture("borrowed=") == 0 && pages_on_loan() == 0);
    munmap(from, 8 * PAGE), close(ends[0]), close(ends[1]);
}

static void nothing(int number) {
    (void)number;
}

// A large write is in the pipe at once, but ends as if it were not, and leaves nothing behind that it doesn't tell of.
static void large_writes_are_interrupted(void) {
    int ends[2];
    NEED(!pipe(ends));
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        struct sigaction action = {.sa_handler = nothing};
        sigaction(SIGALRM, &action, 0);
        struct itimerval soon = {.it_value = {0, 100000}};
        setitimer(ITIMER_REAL, &soon, 0);
        char *from = memory(256 * PAGE);
        fill(from, 256 * PAGE, 40);
        ssize_t put = write(ends[1], from, 256 * PAGE);
        int left;
        _exit(!(put == 65536 && !ioctl(ends[1], FIONREAD, &left) && left == 65536));
    }
    int status, left;
    NEED(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    char *to = memory(16 * PAGE);
    CHECK(!ioctl(ends[0], FIONREAD, &left) && left == 65536);
    all_of(ends[0], to, 65536);
    CHECK(is(to, 65536, 40, 0));
    CHECK(!ioctl(ends[0], FIONREAD, &left) && left == 0);
    close(ends[0]), close(ends[1]);
}

// What another thread had taken out and puts back is no part of what a writer takes back.
static void a_splice_beside_a_large_write_is_interrupted(void) {
    enum { SIZE = 256 * PAGE };
    int ends[2], full[2];
    static char much[1 << 16];
    NEED(!pipe(ends) && !socketpair(AF_UNIX, SOCK_STREAM, 0, full));
    while (send(full[1], much, sizeof much, MSG_DONTWAIT) > 0) continue;
    while (send(full[1], much, 1, MSG_DONTWAIT) > 0) continue;
    NEED(write(ends[1], much, sizeof much) == sizeof much);
    signal(SIGALRM, SIG_DFL);
    pid_t taker = fork();
    if (taker == 0) {
        sigaction(SIGALRM, &(struct sigaction){.sa_handler = nothing}, 0);
        setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {0, 200000}}, 0);
        ssize_t put = splice(ends[0], 0, full[1], 0, sizeof much, 0);
        _exit(put >= 0);
    }
    usleep(100000);
    pid_t writer = fork();
    if (writer == 0) {
        sigaction(SIGALRM, &(struct sigaction){.sa_handler = nothing}, 0);
        setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {0, 200000}}, 0);
        char *from = memory(SIZE);
        fill(from, SIZE, 41);
        fcntl(ends[1], F_SETPIPE_SZ, PAGE);
        ssize_t put = write(ends[1], from, SIZE);
        _exit(!(put < 0 ? errno == EINTR : put <= SIZE));
    }
    int status;
    NEED(waitpid(taker, &status, 0) == taker);
    NEED(waitpid(writer, &status, 0) == writer);
    CHECK(status == 0);
    close(ends[0]), close(ends[1]), close(full[0]), close(full[1]);
}

// Several writers of much more than there is room for, one of them small: all arrives once, in the order of each.
static void large_writers_share_a_pipe(void) {
    enum { WRITERS = 3, ROUNDS = 8, SIZE = 96 * PAGE };
    int ends[2];
    NEED(!pipe(ends));
    for (int writer = 0; writer < WRITERS; writer++) {
        if (fork()) continue;
        unsigned *from = (unsigned *)memory(SIZE);
        for (unsigned round = 0; round < ROUNDS; round++) {
            size_t length = writer == 2 ? 4096 : SIZE;
            for (size_t i = 0; i < length / 4; i++) from[i] = writer << 28 | (round * (SIZE / 4) + i);
            for (size_t done = 0; done < length;) {
                ssize_t put = write(ends[1], (char *)from + done, length - done);
                if (put <= 0) _exit(1);
                done += put;
            }
        }
        _exit(0);
    }
    close(ends[1]);
    unsigned next[WRITERS] = {0, 0, 0}, words[4096];
    size_t had = 0, all = 0;
    for (ssize_t got; (got = read(ends[0], (char *)words + had, sizeof words - had)) > 0;) {
        had += got, all += got;
        for (size_t i = 0; i < had / 4; i++) {
            unsigned writer = words[i] >> 28, value = words[i] & 0xfffffff;
            NEED(writer < WRITERS);
            if (writer == 2 && value % (SIZE / 4) == 0) next[2] = value;
            CHECK(value == next[writer]);
            next[writer]++;
        }
        memmove(words, (char *)words + had / 4 * 4, had % 4);
        had %= 4;
    }
    CHECK(all == (2 * SIZE + 4096) * ROUNDS);
    for (int writer = 0; writer < WRITERS; writer++) {
        int status;
        CHECK(wait(&status) > 0 && status == 0);
    }
    close(ends[0]);
}

// A user whose queues hold all that they may still writes and reads, a little at a time.
static void writers_wait_for_their_share(void) {
    enum { PIPES = 200, LENGTH = 8000 };
    static int full[PIPES][2];
    char *lent = memory(MOST / 2);
    memset(lent, 1, MOST / 2);
    int pipes = 0;
    for (; pipes < PIPES && !pipe(full[pipes]); pipes++) {
        fcntl(full[pipes][1], F_SETPIPE_SZ, MOST / 2);
        struct iovec part = {lent, MOST / 2};
        if (vmsplice(full[pipes][1], &part, 1, SPLICE_F_NONBLOCK) < MOST / 2) break;
    }
    int ends[2];
    NEED(!pipe(ends));
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        char *from = memory(2 + LENGTH);
        fill(from, 2 + LENGTH, 41);
        _exit(!(write(ends[1], from, 2) == 2 && write(ends[1], from + 2, LENGTH) == LENGTH));
    }
    usleep(100000);
    char *to = memory(2 + LENGTH);
    all_of(ends[0], to, 2 + LENGTH);
    CHECK(is(to, 2 + LENGTH, 41, 0));
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    close(ends[0]), close(ends[1]);
    for (int i = 0; i <= pipes && i < PIPES; i++) close(full[i][0]), close(full[i][1]);
}

int main(int argc, char **argv) {
    static const struct test_case tests[] = {
        {"writers_change_their_memory", writers_change_their_memory},
        {"writers_go_their_ways", writers_go_their_ways},
        {"all_kinds_of_memory", all_kinds_of_memory},
        {"readers_of_all_kinds", readers_of_all_kinds},
        {"memory_is_short", memory_is_short},
        {"bytes_are_transferred", bytes_are_transferred},
        {"transfers_keep_to_limits", transfers_keep_to_limits},
        {"pieces_are_told_on_a_stack", pieces_are_told_on_a_stack},
        {"pages_are_donated", pages_are_donated},
        {"more_than_has_room_is_donated", more_than_has_room_is_donated},
        {"a_part_of_a_page_is_donated", a_part_of_a_page_is_donated},
        {"odd_memory_is_donated", odd_memory_is_donated},
        {"calls_are_refused", calls_are_refused},
        {"anflush_gives_up", anflush_gives_up},
        {"exports_copy", exports_copy},
        {"exports_share", exports_share},
        {"exports_donate", exports_donate},
        {"exports_of_much_shared_memory", exports_of_much_shared_memory},
        {"exports_are_refused", exports_are_refused},
        {"exports_are_dropped", exports_are_dropped},
        {"exports_of_sealed_files", exports_of_sealed_files},
        {"sealed_files_get_no_holes", sealed_files_get_no_holes},
        {"sealing_beside_mappers", sealing_beside_mappers},
        {"ranges_are_donated", ranges_are_donated},
        {"loans_are_seen", loans_are_seen},
        {"large_writes_are_interrupted", large_writes_are_interrupted},
        {"a_splice_beside_a_large_write_is_interrupted", a_splice_beside_a_large_write_is_interrupted},
        {"large_writers_share_a_pipe", large_writers_share_a_pipe},
        {"writers_wait_for_their_share", writers_wait_for_their_share},
    };
    return RUN(tests, argc, argv);
}
