// An ext4 disk on /mnt, one of whose sectors can't be written the first time, and one never be read. Both lie among the first blocks
// that are free on a new file system, so the first large file has them.
#include "check.h"
#include <sys/mount.h>

enum { SIZE = 8 << 20 };

static unsigned char byte_at(size_t at) { return (unsigned char)(at * 31 + (at >> 12) * 7 + 5); }

static void a_failed_write_is_told_once(void) {
    static unsigned char bytes[SIZE];
    for (size_t i = 0; i < SIZE; i++) bytes[i] = byte_at(i);
    int fd = open("/mnt/a", O_CREAT | O_RDWR, 0600), other = open("/mnt/a", O_RDONLY), unrelated = open("/mnt/b", O_CREAT | O_RDWR, 0600);
    NEED(fd >= 0 && other >= 0 && unrelated >= 0);
    NEED(write(fd, bytes, SIZE) == SIZE && write(unrelated, "b", 1) == 1);
    int failed = fsync(fd) == -1 && errno == EIO;
    // The write that fails may have been the flusher's, before this; it is told all the same.
    CHECK(failed);
    CHECK(!fsync(fd) && !fdatasync(fd));
    FAILS(fsync(other), EIO);
    CHECK(!fsync(other) && !fsync(unrelated));
    // Nobody had it open when it happened.
    int late = open("/mnt/a", O_RDONLY);
    CHECK(!fsync(late));
    // The second attempt has written it all.
    close(fd), close(other), close(unrelated), close(late);
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
    for (size_t at = 0; at < SIZE; at += PAGE) {
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
        {"what_cannot_be_read_is_an_error", what_cannot_be_read_is_an_error},
    };
    return RUN(cases, argc, argv);
}
