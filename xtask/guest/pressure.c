// Files larger than memory, written and mapped, while anonymous memory is larger than memory too and small files come and go:
// everything competes for the same pages, and all of it must come back right. /mnt is a disk, and there is swap.
#include "check.h"

enum { MEBIBYTE = 1 << 20, FILE_SIZE = 48, HOG_SIZE = 80, SMALL = 200 };

static unsigned word(size_t i, unsigned seed) { return (unsigned)i * 7919 + seed; }

static void hog(void) {
    size_t words = (size_t)HOG_SIZE * MEBIBYTE / 4;
    unsigned *memory = mmap(0, words * 4, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NEED(memory != MAP_FAILED);
    size_t bad = 0;
    for (unsigned round = 0; round < 3; round++) {
        for (size_t i = 0; i < words; i += 512) memory[i] = word(i, round);
        for (size_t i = 0; i < words; i += 512) bad += memory[i] != word(i, round);
    }
    CHECK(bad == 0);
}

static void small_files(void) {
    unsigned char bytes[4096], got[4096];
    char name[64];
    size_t bad = 0;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < SMALL; i++) {
            snprintf(name, sizeof name, "/mnt/small%d", i);
            int fd = open(name, O_CREAT | O_RDWR | O_TRUNC, 0600);
            memset(bytes, i + round, sizeof bytes);
            NEED(fd >= 0 && write(fd, bytes, 100 + i * 10) == 100 + i * 10);
            close(fd);
        }
        for (int i = 0; i < SMALL; i++) {
            snprintf(name, sizeof name, "/mnt/small%d", i);
            int fd = open(name, O_RDONLY);
            memset(bytes, i + round, sizeof bytes);
            bad += read(fd, got, sizeof got) != 100 + i * 10 || memcmp(bytes, got, 100 + i * 10);
            close(fd);
            if (i % 2) unlink(name);
        }
    }
    CHECK(bad == 0);
}

static void a_large_file(void) {
    static unsigned block[MEBIBYTE / 4];
    enum { WORDS = MEBIBYTE / 4 };
    int fd = open("/mnt/large", O_CREAT | O_RDWR | O_TRUNC, 0600);
    for (size_t m = 0; m < FILE_SIZE; m++) {
        for (size_t i = 0; i < WORDS; i++) block[i] = word(m * WORDS + i, 1);
        NEED(write(fd, block, MEBIBYTE) == MEBIBYTE);
    }
    CHECK(!fsync(fd));
    unsigned *map = mmap(0, (size_t)FILE_SIZE * MEBIBYTE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    NEED(map != MAP_FAILED);
    size_t bad = 0;
    for (size_t i = 0; i < (size_t)FILE_SIZE * WORDS; i++) {
        bad += map[i] != word(i, 1);
        map[i] = word(i, 2);
    }
    CHECK(bad == 0);
    for (size_t m = 0; m < FILE_SIZE; m++) {
        NEED(pread(fd, block, MEBIBYTE, m * MEBIBYTE) == MEBIBYTE);
        for (size_t i = 0; i < WORDS; i++) bad += block[i] != word(m * WORDS + i, 2);
    }
    CHECK(bad == 0 && !msync(map, (size_t)FILE_SIZE * MEBIBYTE, MS_SYNC));
}

static void all_at_once(void) {
    void (*const jobs[])(void) = {hog, small_files, a_large_file};
    pid_t children[3];
    for (int i = 0; i < 3; i++) {
        children[i] = fork();
        if (!children[i]) {
            jobs[i]();
            fflush(stdout);
            _exit(failed_checks != 0);
        }
    }
    for (int i = 0; i < 3; i++) {
        int status;
        CHECK(waitpid(children[i], &status, 0) == children[i] && status == 0);
    }
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {{"all_at_once", all_at_once}};
    return RUN(cases, argc, argv);
}
