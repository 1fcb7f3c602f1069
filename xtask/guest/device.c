// A device's memory, mapped: the display card's. It is no copy, it is nobody's to page out, and it stays when processes go.
#include "check.h"
#include <sys/ioctl.h>
#include <sys/sysinfo.h>

enum { RW = PROT_READ | PROT_WRITE };
struct fixed { char id[16]; unsigned long start; uint32_t length, kind, rest[12]; };

static int display(void) {
    int fd = open("/dev/fb0", O_RDWR);
    NEED(fd >= 0);
    return fd;
}
static size_t length_of(int fd) {
    struct fixed fixed;
    NEED(!ioctl(fd, 0x4602, &fixed));
    CHECK(fixed.start >= 0xc0000000 && fixed.length >= 1 << 20);
    return fixed.length;
}
static uint32_t *map(int fd, size_t length, int flags) {
    uint32_t *at = mmap(0, length, RW, flags, fd, 0);
    NEED(at != MAP_FAILED);
    return at;
}
static uint32_t pixel(size_t i) { return (uint32_t)i * 2654435761u ^ 0x5a5a5a5a; }
static long free_pages(void) {
    struct sysinfo info;
    NEED(!sysinfo(&info));
    return (long)(info.freeram * info.mem_unit / PAGE);
}

static void all_of_it_is_there(void) {
    int fd = display();
    size_t length = length_of(fd), count = length / 4;
    long before = free_pages();
    uint32_t *at = map(fd, length, MAP_SHARED);
    for (size_t i = 0; i < count; i++) at[i] = pixel(i);
    for (size_t i = 0; i < count; i++) NEED(at[i] == pixel(i));
    // Its pages are the card's: what it takes of memory are tables.
    CHECK(before - free_pages() < (long)(length / PAGE / 16));
    CHECK(!munmap(at, length));
}

// The kernel reads the card's memory by its physical address, not through any mapping of ours.
static void views_agree(void) {
    int fd = display();
    size_t length = length_of(fd);
    uint32_t *at = map(fd, length, MAP_SHARED), word;
    for (size_t offset = 0; offset < length; offset += length / 16 + 4) {
        at[offset / 4] = pixel(offset);
        CHECK(pread(fd, &word, 4, offset & -4) == 4 && word == pixel(offset));
        word = ~word;
        CHECK(pwrite(fd, &word, 4, offset & -4) == 4 && at[offset / 4] == word);
    }
    CHECK(pread(fd, &word, 4, length) == 0);
    FAILS(pwrite(fd, &word, 4, length), ENOSPC);
}

static void draw(void) {
    int fd = display();
    uint32_t *at = map(fd, PAGE * 4, MAP_SHARED);
    for (int i = 0; i < PAGE; i++) at[i] = pixel(i + 77);
}
static void it_stays_when_processes_go(void) {
    CHECK(in_child(draw) == 0);
    uint32_t *at = map(display(), PAGE * 4, MAP_SHARED);
    for (int i = 0; i < PAGE; i++) NEED(at[i] == pixel(i + 77));
    // A child writes the same memory, and a discarded mapping finds it again.
    pid_t child = fork();
    if (child == 0) at[5] = 55, _exit(0);
    waitpid(child, 0, 0);
    CHECK(at[5] == 55 && !madvise(at, PAGE * 4, MADV_DONTNEED) && at[5] == 55);
    CHECK(!mlock(at, PAGE * 2) && at[6] == pixel(83) && !munlock(at, PAGE * 2));
    CHECK(!msync(at, PAGE, MS_SYNC));
}

static void a_private_view_is_a_copy(void) {
    int fd = display();
    uint32_t *shared = map(fd, PAGE, MAP_SHARED), *private = map(fd, PAGE, MAP_PRIVATE);
    shared[0] = 1;
    CHECK(private[0] == 1);
    private[0] = 2;
    CHECK(shared[0] == 1 && private[0] == 2);
}

static void its_end(void) {
    catch_faults();
    int fd = display();
    size_t length = length_of(fd);
    char *at = mmap(0, length + 2 * PAGE, RW, MAP_SHARED, fd, 0);
    NEED(at != MAP_FAILED);
    at[length - 1] = 1;
    RAISES(at[length] = 1, SIGBUS, BUS_ADRERR, at + length);
}

// Memory is short, and the device's memory is not what gives way.
static void it_is_not_paged_out(void) {
    int fd = display();
    uint32_t *at = map(fd, 1 << 20, MAP_SHARED);
    for (int i = 0; i < 1 << 18; i++) at[i] = pixel(i);
    pid_t child = fork();
    if (child == 0) for (;;) {
        char *more = mmap(0, 4 << 20, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (more == MAP_FAILED) _exit(3);
        memset(more, 1, 4 << 20);
    }
    int status;
    waitpid(child, &status, 0);
    for (int i = 0; i < 1 << 18; i++) NEED(at[i] == pixel(i));
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"all_of_it_is_there", all_of_it_is_there},
        {"views_agree", views_agree},
        {"it_stays_when_processes_go", it_stays_when_processes_go},
        {"a_private_view_is_a_copy", a_private_view_is_a_copy},
        {"its_end", its_end},
        {"it_is_not_paged_out", it_is_not_paged_out},
    };
    return RUN(cases, argc, argv);
}
