// O_DIRECT on files: bytes go between the disk and the program's pages, agree with what the cache shows, and leave its map as it was.
#include "check.h"
#include <sched.h>
#include <sys/mount.h>
#include <sys/uio.h>

enum { PAGES = 96, RW = PROT_READ | PROT_WRITE, ANON = MAP_PRIVATE | MAP_ANONYMOUS };

static char *pages(int count) {
    char *at = mmap(0, count * PAGE, RW, ANON, -1, 0);
    NEED(at != MAP_FAILED);
    return at;
}

static int create(const char *name, int flags) {
    char path[64];
    snprintf(path, sizeof path, "/mnt/%s.%d", name, getpid());
    int fd = open(path, O_CREAT | O_RDWR | flags, 0600);
    NEED(fd >= 0);
    return fd;
}

static int again(const char *name, int flags) {
    char path[64];
    snprintf(path, sizeof path, "/mnt/%s.%d", name, getpid());
    int fd = open(path, O_RDWR | flags);
    NEED(fd >= 0);
    return fd;
}

static void fill(char *at, size_t len, unsigned seed) {
    for (size_t i = 0; i < len; i++) at[i] = (char)(i * 31 + (i >> 12) * 7 + seed);
}

static int map_lines(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    int lines = 0;
    for (int c; (c = fgetc(maps)) != EOF;) lines += c == '\n';
    fclose(maps);
    return lines;
}

// Pages of the file that are in the cache.
static int cached(int fd, int count) {
    unsigned char in[PAGES];
    char *at = mmap(0, count * PAGE, PROT_READ, MAP_SHARED, fd, 0);
    NEED(at != MAP_FAILED && !mincore(at, count * PAGE, in));
    int sum = 0;
    for (int i = 0; i < count; i++) sum += in[i] & 1;
    munmap(at, count * PAGE);
    return sum;
}

static unsigned long sectors(int which) {
    FILE *file = fopen("/proc/diskstats", "r");
    NEED(file);
    unsigned long read, written;
    NEED(fscanf(file, "%*d %*d %*s %*u %*u %lu %*u %*u %*u %lu", &read, &written) == 2);
    fclose(file);
    return which ? written : read;
}

static void bytes_pass_the_cache(void) {
    // What one CPU maps doesn't continue what another has mapped: on one, the map stays as it is but for what it should show.
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(0, &one);
    NEED(!sched_setaffinity(0, sizeof one, &one));
    char *out = pages(PAGES), *in = pages(PAGES);
    int fd = create("pass", O_DIRECT);
    map_lines(), sectors(0);
    int lines = map_lines();
    fill(out, PAGES * PAGE, 1);
    unsigned long before = sectors(1);
    CHECK(pwrite(fd, out, PAGES * PAGE, 0) == PAGES * PAGE);
    CHECK(sectors(1) - before >= PAGES * 8 && cached(fd, PAGES) == 0);
    before = sectors(0);
    CHECK(pread(fd, in, PAGES * PAGE, 0) == PAGES * PAGE && !memcmp(in, out, PAGES * PAGE));
    CHECK(sectors(0) - before >= PAGES * 8 && cached(fd, PAGES) == 0);
    // Again and again: the disk is asked each time.
    CHECK(pread(fd, in, 8 * PAGE, 8 * PAGE) == 8 * PAGE && sectors(0) - before >= (PAGES + 8) * 8);
    // From the middle of a page of the file, and of an iovec.
    CHECK(pread(fd, in, 4 * PAGE, 512) == 4 * PAGE && !memcmp(in, out + 512, 4 * PAGE));
    struct iovec pieces[2] = {{in, 2 * PAGE}, {in + 8 * PAGE, 3 * PAGE}};
    CHECK(preadv(fd, pieces, 2, PAGE) == 5 * PAGE && !memcmp(in, out + PAGE, 2 * PAGE) && !memcmp(in + 8 * PAGE, out + 3 * PAGE, 3 * PAGE));
    // Nothing of it is in the map.
    CHECK(map_lines() == lines);
    close(fd);
}

static void cache_and_disk_agree(void) {
    char *out = pages(16), *in = pages(16);
    int direct = create("agree", O_DIRECT), plain = again("agree", 0);
    fill(out, 16 * PAGE, 2);
    // What the cache has changed is read from the disk at once.
    CHECK(pwrite(plain, out, 16 * PAGE, 0) == 16 * PAGE);
    CHECK(pread(direct, in, 16 * PAGE, 0) == 16 * PAGE && !memcmp(in, out, 16 * PAGE));
    // What is written to the disk is seen by the cache, and by a mapping.
    char *map = mmap(0, 16 * PAGE, RW, MAP_SHARED, plain, 0);
    NEED(map != MAP_FAILED);
    CHECK(!memcmp(map, out, 16 * PAGE));
    fill(out + 4 * PAGE, 4 * PAGE, 77);
    CHECK(pwrite(direct, out + 4 * PAGE, 4 * PAGE, 4 * PAGE) == 4 * PAGE && !memcmp(map, out, 16 * PAGE));
    CHECK(pread(plain, in, 16 * PAGE, 0) == 16 * PAGE && !memcmp(in, out, 16 * PAGE));
    // A store through the mapping is read from the disk; pages that are locked in memory agree, too.
    map[5 * PAGE + 3] = out[5 * PAGE + 3] = 'x';
    CHECK(pread(direct, in, 16 * PAGE, 0) == 16 * PAGE && !memcmp(in, out, 16 * PAGE));
    CHECK(!mlock(map + 8 * PAGE, 2 * PAGE));
    fill(out + 7 * PAGE, 4 * PAGE, 9);
    CHECK(pwrite(direct, out + 7 * PAGE, 4 * PAGE, 7 * PAGE) == 4 * PAGE && !memcmp(map, out, 16 * PAGE));
    CHECK(pread(direct, in, 16 * PAGE, 0) == 16 * PAGE && !memcmp(in, out, 16 * PAGE));
    CHECK(!munlock(map + 8 * PAGE, 2 * PAGE));
    // From and to a mapping of the very file.
    CHECK(pwrite(direct, map + 2 * PAGE, PAGE, 12 * PAGE) == PAGE && !memcmp(map + 12 * PAGE, out + 2 * PAGE, PAGE));
    CHECK(pread(direct, map, PAGE, 6 * PAGE) == PAGE && !memcmp(map, out + 6 * PAGE, PAGE));
    memcpy(out + 12 * PAGE, out + 2 * PAGE, PAGE), memcpy(out, out + 6 * PAGE, PAGE);
    CHECK(!msync(map, 16 * PAGE, MS_SYNC) && pread(direct, in, 16 * PAGE, 0) == 16 * PAGE && !memcmp(in, out, 16 * PAGE));
    // A private copy stays.
    char *private = mmap(0, PAGE, RW, MAP_PRIVATE, plain, 0);
    private[0] = 'p';
    fill(out, PAGE, 3);
    CHECK(pwrite(direct, out, PAGE, 0) == PAGE && private[0] == 'p' && !memcmp(map, out, PAGE));
    munmap(map, 16 * PAGE), munmap(private, PAGE), close(direct), close(plain);
}

static void what_does_not_fit(void) {
    char *at = pages(8);
    int fd = create("fit", O_DIRECT);
    fill(at, 8 * PAGE, 5);
    CHECK(pwrite(fd, at, 8 * PAGE, 0) == 8 * PAGE);
    FAILS(pread(fd, at + 1, PAGE, 0), EINVAL);
    FAILS(pread(fd, at, 100, 0), EINVAL);
    FAILS(pread(fd, at, PAGE, 100), EINVAL);
    FAILS(pwrite(fd, at + 1, PAGE, 0), EINVAL);
    FAILS(pwrite(fd, at, 100, 0), EINVAL);
    FAILS(pwrite(fd, at, PAGE, 100), EINVAL);
    // Sectors that are no pages, in memory and in the file.
    char *to = pages(8);
    CHECK(pread(fd, to + 512, 1024, 1536) == 1024 && !memcmp(to + 512, at + 1536, 1024));
    CHECK(pwrite(fd, to + 512, 1024, 512) == 1024);
    memcpy(at + 512, to + 512, 1024);
    CHECK(pread(fd, to, 8 * PAGE, 0) == 8 * PAGE && !memcmp(to, at, 8 * PAGE));
    // Bad memory, and none behind the good.
    FAILS(pread(fd, (void *)PAGE, PAGE, 0), EFAULT);
    CHECK(!munmap(to + 4 * PAGE, 4 * PAGE));
    ssize_t n = pread(fd, to, 8 * PAGE, 0);
    CHECK((n == -1 && errno == EFAULT) || n == 4 * PAGE);
    close(fd);
}

static void ends_and_holes(void) {
    char *at = pages(8), *to = pages(8), zeroes[PAGE] = {0};
    int fd = create("ends", O_DIRECT), plain = again("ends", 0);
    fill(at, 8 * PAGE, 6);
    CHECK(pwrite(plain, at, 2 * PAGE + 100, 0) == 2 * PAGE + 100);
    CHECK(pread(fd, to, 8 * PAGE, 0) == 2 * PAGE + 100 && !memcmp(to, at, 2 * PAGE + 100));
    CHECK(pread(fd, to, PAGE, 3 * PAGE) == 0 && pread(fd, to, PAGE, 2 * PAGE) == 100);
    // A hole, and what is behind it.
    CHECK(pwrite(fd, at, 2 * PAGE, 40 * PAGE) == 2 * PAGE && lseek(fd, 0, SEEK_END) == 42 * PAGE);
    memset(to, 1, 8 * PAGE);
    CHECK(pread(fd, to, 4 * PAGE, 38 * PAGE) == 4 * PAGE);
    CHECK(!memcmp(to, zeroes, PAGE) && !memcmp(to + PAGE, zeroes, PAGE) && !memcmp(to + 2 * PAGE, at, 2 * PAGE));
    CHECK(pread(fd, to, PAGE, 2 * PAGE) == PAGE && !memcmp(to, at + 2 * PAGE, 100) && !memcmp(to + 100, zeroes, PAGE - 100));
    // Into the hole, and over what was reserved.
    CHECK(pwrite(fd, at + PAGE, PAGE, 20 * PAGE) == PAGE && pread(plain, to, 2 * PAGE, 20 * PAGE) == 2 * PAGE);
    CHECK(!memcmp(to, at + PAGE, PAGE) && !memcmp(to + PAGE, zeroes, PAGE));
    CHECK(!fallocate(fd, 0, 60 * PAGE, 4 * PAGE) && pwrite(fd, at, PAGE, 61 * PAGE) == PAGE);
    CHECK(pread(fd, to, 4 * PAGE, 60 * PAGE) == 4 * PAGE && !memcmp(to, zeroes, PAGE) && !memcmp(to + PAGE, at, PAGE) && !memcmp(to + 2 * PAGE, zeroes, PAGE));
    int append = again("ends", O_DIRECT | O_APPEND);
    CHECK(write(append, at, PAGE) == PAGE && lseek(fd, 0, SEEK_END) == 65 * PAGE);
    close(fd), close(plain), close(append);
}

static void both_ways_for_a_while(void) {
    char *shadow = pages(32), *buffer = pages(32);
    int direct = create("while", O_DIRECT), plain = again("while", 0);
    char *map = mmap(0, 32 * PAGE, RW, MAP_SHARED, plain, 0);
    NEED(map != MAP_FAILED && !ftruncate(plain, 32 * PAGE));
    unsigned random = 12345;
    for (int round = 0; round < 1500; round++) {
        random = random * 1664525 + 1013904223;
        int first = random >> 8 & 31, count = 1 + (random >> 16 & 7);
        if (first + count > 32) count = 32 - first;
        size_t at = first * PAGE, len = count * PAGE;
        fill(buffer, len, round);
        switch (random >> 24 & 3) {
        case 0: NEED(pwrite(direct, buffer, len, at) == (ssize_t)len); memcpy(shadow + at, buffer, len); break;
        case 1: NEED(pwrite(plain, buffer, len - 7, at + 3) == (ssize_t)len - 7); memcpy(shadow + at + 3, buffer, len - 7); break;
        case 2: map[at + 5] = shadow[at + 5] = round; break;
        default: NEED(pread(direct, buffer, len, at) == (ssize_t)len && !memcmp(buffer, shadow + at, len));
        }
    }
    NEED(!memcmp(map, shadow, 32 * PAGE) && !fsync(plain));
    munmap(map, 32 * PAGE), close(direct), close(plain);
    NEED(!chdir("/") && !umount("/mnt") && !mount("/dev/vda", "/mnt", "ext4", 0, ""));
    plain = again("while", 0);
    CHECK(pread(plain, buffer, 32 * PAGE, 0) == 32 * PAGE && !memcmp(buffer, shadow, 32 * PAGE));
    close(plain);
}

// One process writes past the cache what another reads by it, which brings pages in all the time: the last bytes are seen by both.
static void side_by_side(void) {
    int direct = create("side", O_DIRECT), plain = again("side", 0);
    char *page = pages(4);
    CHECK(pwrite(direct, page, 4 * PAGE, 0) == 4 * PAGE);
    int child = fork();
    if (!child) {
        for (int i = 1; i <= 400; i++) {
            memset(page, i, 4 * PAGE);
            if (pwrite(direct, page, 4 * PAGE, 0) != 4 * PAGE) _exit(1);
        }
        _exit(0);
    }
    int status;
    do {
        char got[PAGE];
        CHECK(pread(plain, got, PAGE, (rand() & 3) * PAGE) == PAGE);
        usleep(100);
    } while (waitpid(child, &status, WNOHANG) == 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    char last = (char)400;
    CHECK(pread(plain, page, 4 * PAGE, 0) == 4 * PAGE && page[0] == last && page[4 * PAGE - 1] == last);
    close(direct), close(plain);
}

static unsigned long under_way(void) {
    FILE *file = fopen("/proc/diskstats", "r");
    NEED(file);
    unsigned long count;
    NEED(fscanf(file, "%*d %*d %*s %*u %*u %*u %*u %*u %*u %*u %*u %lu", &count) == 1);
    fclose(file);
    return count;
}

// Readers of one file have requests at the disk at the same time; a writer comes to its turn among them.
static void readers_side_by_side(void) {
    enum { READERS = 4 };
    int fd = create("readers", O_DIRECT), plain = again("readers", 0);
    char *page = pages(PAGES);
    fill(page, PAGES * PAGE, 4);
    NEED(pwrite(fd, page, PAGES * PAGE, 0) == PAGES * PAGE);
    volatile int *stop = mmap(0, PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int reader = 0; reader < READERS; reader++) {
        if (fork()) continue;
        char *to = pages(PAGES);
        while (!*stop)
            if (pread(fd, to, PAGES * PAGE, 0) != PAGES * PAGE || memcmp(to + PAGE, page + PAGE, (PAGES - 1) * PAGE)) _exit(1);
        _exit(0);
    }
    unsigned long most = 0;
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    do {
        unsigned long count = under_way();
        most = count > most ? count : most;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (most < 2 && now.tv_sec - start.tv_sec < 10);
    CHECK(most >= 2);
    for (int round = 0; round < 20; round++) {
        memset(page, round, PAGE);
        CHECK(pwrite(round & 1 ? fd : plain, page, PAGE, 0) == PAGE);
    }
    CHECK(!ftruncate(fd, PAGE) && !ftruncate(fd, 0) && pwrite(fd, page, PAGES * PAGE, 0) == PAGES * PAGE);
    *stop = 1;
    // A reader may have met the file while it was short.
    for (int reader = 0; reader < READERS; reader++) CHECK(wait(0) > 0);
    close(fd), close(plain);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"bytes_pass_the_cache", bytes_pass_the_cache},
        {"cache_and_disk_agree", cache_and_disk_agree},
        {"what_does_not_fit", what_does_not_fit},
        {"ends_and_holes", ends_and_holes},
        {"both_ways_for_a_while", both_ways_for_a_while},
        {"side_by_side", side_by_side},
        {"readers_side_by_side", readers_side_by_side},
    };
    return RUN(cases, argc, argv);
}
