// What fsync of one changed byte costs beside pages that are clean: it goes by what changed. The clock
// counts instructions.
#include "check.h"
#include <limits.h>

enum { ROUNDS = 20, TURNS = 16 };
static const long MIB = 1 << 20, SECOND = 1000000000;
static char block[1 << 20];

static long nanos(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec * SECOND + now.tv_nsec;
}

static int with_pages(const char *path, off_t size) {
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    NEED(fd >= 0);
    for (off_t at = 0; at < size; at += MIB) NEED(pwrite(fd, block, MIB, at) == MIB);
    NEED(!fsync(fd));
    return fd;
}

// CPU time of one round, on average.
static long cost(int fd, off_t size) {
    long start = nanos();
    for (int i = 0; i < ROUNDS; i++) NEED(pwrite(fd, "x", 1, size / 2) == 1 && !fsync(fd));
    return (nanos() - start) / ROUNDS;
}

static void a_byte_costs_by_what_changed(void) {
    // While the only thread waits for the disk, this clock jumps to the next timer: an alarm would come at once.
    alarm(0);
    int few = with_pages("/mnt/few", MIB), fd = with_pages("/mnt/fsyncs", 160 * MIB);
    long small = LONG_MAX, large = LONG_MAX;
    // The least of some, by turns: how long the disk takes is the host's.
    for (int i = 0; i < TURNS; i++) {
        long one = cost(few, MIB), other = cost(fd, 160 * MIB);
        if (one < small) small = one;
        if (other < large) large = other;
    }
    close(few);
    printf("  %ld ns with 1 MiB in memory, %ld ns with 160 MiB\n", small, large);
    CHECK(large * 10 <= small * 12);
    // What is mapped and stored to is written as ever.
    char *at = mmap(0, 160 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    NEED(at != MAP_FAILED);
    char byte = 0;
    for (int i = 0; i < 100; i++) {
        long where = i * (MIB + PAGE);
        at[where] = i + 1;
        CHECK(!fsync(fd));
        // Past the cache: what the disk has.
        int disk = open("/mnt/fsyncs", O_RDONLY | O_DIRECT);
        static char page[PAGE] __attribute__((aligned(4096)));
        NEED(disk >= 0 && pread(disk, page, PAGE, where & ~(long)(PAGE - 1)) == PAGE);
        byte = page[where % PAGE];
        close(disk);
        if (!CHECK(byte == (char)(i + 1))) break;
    }
    munmap(at, 160 * MIB);
    close(fd);
    unlink("/mnt/fsyncs");
}

// CPU time of writing a stored byte back, on average: by msync, or by fsync of the file, which has to find none.
static long write_back_cost(char *at, int fd) {
    long start = nanos();
    for (int i = 0; i < ROUNDS; i++) {
        *at = i;
        NEED(fd < 0 ? !msync(at, PAGE, MS_SYNC) : !fsync(fd));
    }
    return (nanos() - start) / ROUNDS;
}

static void msync_finds_its_file_at_once(void) {
    enum { FILES = 3000 };
    char name[40];
    alarm(0);
    for (int i = 0; i < FILES; i++) {
        snprintf(name, sizeof name, "/mnt/other%d", i);
        int other = open(name, O_RDWR | O_CREAT, 0600);
        NEED(other >= 0 && write(other, "x", 1) == 1);
        close(other);
    }
    // The last one made has the last place among those in memory.
    int fd = open("/mnt/mapped", O_RDWR | O_CREAT | O_TRUNC, 0600);
    NEED(fd >= 0 && !ftruncate(fd, PAGE));
    char *at = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    NEED(at != MAP_FAILED);
    sync();
    write_back_cost(at, fd);
    long by_fsync = LONG_MAX, by_msync = LONG_MAX;
    for (int i = 0; i < 4; i++) {
        long one = write_back_cost(at, fd), other = write_back_cost(at, -1);
        if (one < by_fsync) by_fsync = one;
        if (other < by_msync) by_msync = other;
    }
    printf("  beside %d files in memory %ld ns by fsync, %ld ns by msync\n", FILES, by_fsync, by_msync);
    CHECK(by_msync * 10 <= by_fsync * 14);
}

static const struct test_case cases[] = {
    {"a byte costs by what changed", a_byte_costs_by_what_changed},
    {"msync finds its file at once", msync_finds_its_file_at_once},
};

int main(int argc, char **argv) { return RUN(cases, argc, argv); }
