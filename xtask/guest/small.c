// A machine with 64 MiB: what is left to programs, and a full file system that is memory.
#include "check.h"
#include <sys/mount.h>
#include <sys/sysinfo.h>

enum { RW = PROT_READ | PROT_WRITE, ANON = MAP_PRIVATE | MAP_ANONYMOUS, MIB = 1 << 20, MACHINE = 64 * MIB };

// Three quarters of what the machine has, at once, without swap.
static void use_three_quarters(void) {
    size_t length = (size_t)MACHINE / 4 * 3;
    long *at = mmap(0, length, RW, ANON, -1, 0);
    NEED(at != MAP_FAILED);
    for (size_t i = 0; i < length / sizeof *at; i++) at[i] = (long)(i * 2654435761u);
    for (size_t i = 0; i < length / sizeof *at; i++) NEED(at[i] == (long)(i * 2654435761u));
}
static void three_quarters_for_programs(void) {
    struct sysinfo info;
    NEED(!sysinfo(&info));
    printf("  of %d KiB a program may have %lu\n", MACHINE / 1024, info.freeram * info.mem_unit / 1024);
    CHECK(in_child(use_three_quarters) == 0);
}

static long fill(const char *path) {
    static char block[MIB];
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    NEED(fd >= 0);
    long bytes = 0;
    for (int i = 0; i < 4096; i++) {
        memset(block, i, sizeof block);
        ssize_t wrote = write(fd, block, sizeof block);
        if (wrote < 0) {
            CHECK(errno == ENOSPC);
            close(fd);
            return bytes;
        }
        bytes += wrote;
    }
    CHECK(!"the file system is full");
    return bytes;
}
static void a_full_file_system(void) {
    char *kept = mmap(0, MIB, RW, ANON, -1, 0);
    NEED(kept != MAP_FAILED);
    memset(kept, 7, MIB);
    // Without the limit that there usually is.
    NEED(!mkdir("/full", 0700) && !mount("none", "/full", "tmpfs", 0, "size=0"));
    long bytes = fill("/full/full");
    printf("  %ld KiB fit into memory\n", bytes / 1024);
    CHECK(bytes > MACHINE / 2);
    int fd = open("/full/full", O_RDWR);
    struct stat about;
    CHECK(fd >= 0 && !fstat(fd, &about) && about.st_size == bytes);
    char byte;
    for (long at = 0; at < bytes; at += MIB) CHECK(pread(fd, &byte, 1, at) == 1 && byte == (char)(at / MIB));
    FAILS(pwrite(fd, kept, MIB, bytes), ENOSPC);
    // Everything else goes on: processes come and go, memory that is there is used.
    for (int i = 0; i < 10; i++) {
        pid_t child = fork();
        if (child == 0) _exit(kept[MIB - 1] != 7);
        int status;
        CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    }
    for (int i = 0; i < MIB; i += PAGE) CHECK(kept[i] == 7);
    close(fd);
    CHECK(!unlink("/full/full"));
    CHECK(fill("/full/again") > bytes / 10 * 9);
    CHECK(!umount("/full"));
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"three_quarters_for_programs", three_quarters_for_programs},
        {"a_full_file_system", a_full_file_system},
    };
    return RUN(cases, argc, argv);
}
