// An ext4 disk on /mnt with three bad sectors: one can't be written the first time, one never, and one never be read. They lie
// among the first blocks that are free on a new file system, so the first large file has them.
#include "check.h"
#include <sys/mount.h>

enum { SIZE = 8 << 20 };

static unsigned char byte_at(size_t at) { return (unsigned char)(at * 31 + (at >> 12) * 7 + 5); }

static unsigned long writes(void) {
    FILE *file = fopen("/proc/diskstats", "r");
    unsigned long count;
    NEED(file && fscanf(file, "%*d %*d %*s %*u %*u %*u %*u %lu", &count) == 1);
    fclose(file);
    return count;
}

static int holds(int fd) {
    static unsigned char bytes[SIZE];
    if (pread(fd, bytes, SIZE, 0) != SIZE) return 0;
    for (size_t i = 0; i < SIZE; i++)
        if (bytes[i] != byte_at(i)) return 0;
    return 1;
}

static void fill(int fd) {
    static unsigned char bytes[SIZE];
    for (size_t i = 0; i < SIZE; i++) bytes[i] = byte_at(i);
    NEED(pwrite(fd, bytes, SIZE, 0) == SIZE);
}

static void a_failed_write_is_told_once(void) {
    int fd = open("/mnt/a", O_CREAT | O_RDWR, 0600), other = open("/mnt/a", O_RDONLY), unrelated = open("/mnt/b", O_CREAT | O_RDWR, 0600);
    NEED(fd >= 0 && other >= 0 && unrelated >= 0);
    fill(fd);
    NEED(write(unrelated, "b", 1) == 1);
    int failed = fsync(fd) == -1 && errno == EIO;
    // The write that fails may have been the flusher's, before this; it is told all the same.
    CHECK(failed);
    CHECK(!fsync(fd) && !fdatasync(fd));
    FAILS(fsync(other), EIO);
    CHECK(!fsync(other) && !fsync(unrelated));
    // Nobody had it open when it happened, and others have been told.
    int late = open("/mnt/a", O_RDONLY);
    CHECK(!fsync(late));
    // What was written is there to be read, as long as it is in memory; nobody tries to write it again.
    CHECK(holds(fd));
    sync();
    unsigned long before = writes();
    sleep(7);
    CHECK(writes() - before <= 1);
    close(fd), close(other), close(unrelated), close(late);
}

static void an_error_that_nobody_was_told_of_is_for_the_next(void) {
    int fd = open("/mnt/a", O_RDWR), early = open("/mnt/a", O_RDONLY);
    NEED(fd >= 0 && early >= 0);
    fill(fd);
    close(fd);
    sync();
    int first = open("/mnt/a", O_RDONLY);
    FAILS(fsync(first), EIO);
    CHECK(!fsync(first));
    int second = open("/mnt/a", O_RDONLY);
    CHECK(!fsync(second));
    FAILS(fsync(early), EIO);
    close(first), close(second), close(early);
}

static void msync_tells_of_it_too(void) {
    int fd = open("/mnt/a", O_RDWR);
    NEED(fd >= 0);
    unsigned char *bytes = mmap(0, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    NEED(bytes != MAP_FAILED);
    for (size_t i = 0; i < SIZE; i += PAGE) bytes[i] = byte_at(i);
    FAILS(msync(bytes, SIZE, MS_SYNC), EIO);
    CHECK(!msync(bytes, SIZE, MS_SYNC));
    close(fd);
}

static const unsigned char *map;
static size_t where;
static void touch(void) { ((const volatile unsigned char *)map)[where]; }

static void what_cannot_be_read_is_an_error(void) {
    NEED(!umount("/mnt") && !mount("/dev/vda", "/mnt", "ext4", 0, ""));
    int fd = open("/mnt/a", O_RDONLY);
    NEED(fd >= 0);
    map = mmap(0, SIZE, PROT_READ, MAP_SHARED, fd, 0);
    NEED(map != MAP_FAILED);
    size_t bad = 0, wrong = 0;
    // The second half: the first has a page that never got there.
    for (size_t at = SIZE / 2; at < SIZE; at += PAGE) {
        unsigned char bytes[PAGE];
        ssize_t n = pread(fd, bytes, PAGE, at);
        // Pages that were asked for with the bad one are tried again by themselves.
        if (n == -1 && errno == EIO) n = pread(fd, bytes, PAGE, at);
        if (n == -1 && errno == EIO) {
            bad++, where = at;
            continue;
        }
        NEED(n == PAGE);
        for (size_t i = 0; i < PAGE; i++) wrong += bytes[i] != byte_at(at + i);
    }
    CHECK(bad == 1 && wrong == 0);
    int status = in_child(touch);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    // Others, and what is beside it, go on.
    CHECK(map[where - PAGE] == byte_at(where - PAGE) && map[where + PAGE] == byte_at(where + PAGE));
    int other = open("/mnt/c", O_CREAT | O_RDWR, 0600);
    CHECK(write(other, "fine", 4) == 4 && !fsync(other));
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"a_failed_write_is_told_once", a_failed_write_is_told_once},
        {"an_error_that_nobody_was_told_of_is_for_the_next", an_error_that_nobody_was_told_of_is_for_the_next},
        {"msync_tells_of_it_too", msync_tells_of_it_too},
        {"what_cannot_be_read_is_an_error", what_cannot_be_read_is_an_error},
    };
    return RUN(cases, argc, argv);
}
