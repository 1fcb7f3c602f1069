// Disks as files: /dev/vda to write (8 MiB of zeroes), /dev/vdb read-only (1 MiB), /dev/vdc with bad sectors (4 MiB).
#include "check.h"
#include <sys/ioctl.h>
#include <sys/sysmacros.h>

// As in <linux/fs.h>, which musl's headers don't have.
enum { BLKROGET = 0x125e, BLKGETSIZE = 0x1260, BLKFLSBUF = 0x1261, BLKSSZGET = 0x1268 };
#define BLKGETSIZE64 0x80081272ul

enum { SECTOR = 512, VDA = 8 << 20, BAD_READ = 2001, BAD_WRITE = 4003 };

static int open_disk(const char *name, int flags) {
    int fd = open(name, flags);
    NEED(fd >= 0);
    return fd;
}

static void *aligned(size_t length) {
    void *at = mmap(0, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NEED(at != MAP_FAILED);
    return at;
}

static uint32_t state = 12345;
static uint32_t below(uint32_t limit) {
    state = state * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)state * limit) >> 32);
}

static void fill(unsigned char *at, size_t length) {
    for (size_t i = 0; i < length; i++) at[i] = (unsigned char)below(256);
}

static void a_disk_tells_its_size(void) {
    int fd = open_disk("/dev/vda", O_RDONLY);
    unsigned long long bytes = 0;
    unsigned long sectors = 0;
    int unit = 0, read_only = -1;
    CHECK(!ioctl(fd, BLKGETSIZE64, &bytes) && bytes == VDA);
    CHECK(!ioctl(fd, BLKGETSIZE, &sectors) && sectors == VDA / SECTOR);
    CHECK(!ioctl(fd, BLKSSZGET, &unit) && unit == SECTOR);
    CHECK(!ioctl(fd, BLKROGET, &read_only) && read_only == 0);
    CHECK(lseek(fd, 0, SEEK_END) == VDA);
    CHECK(lseek(fd, -5, SEEK_CUR) == VDA - 5);
    FAILS(ioctl(fd, BLKGETSIZE64, (void *)8), EFAULT);
    FAILS(ioctl(fd, 0x5413, &bytes), ENOTTY);
    struct stat about;
    CHECK(!fstat(fd, &about) && S_ISBLK(about.st_mode) && minor(about.st_rdev) == 0 && about.st_size == 0);
    CHECK(!stat("/dev/vdb", &about) && S_ISBLK(about.st_mode) && minor(about.st_rdev) == 16);
    close(fd);
}

static void bytes_stay_where_they_are_put(void) {
    unsigned char *model = aligned(VDA), *seen = aligned(VDA);
    int fd = open_disk("/dev/vda", O_RDWR);
    CHECK(pread(fd, model, VDA, 0) == VDA);
    for (int round = 0; round < 200; round++) {
        uint32_t at = below(VDA), length = below(round % 4 ? 5000 : 900000);
        if (length > VDA - at) length = VDA - at;
        if (round % 2) {
            fill(model + at, length);
            CHECK(pwrite(fd, model + at, length, at) == length);
        } else {
            CHECK(pread(fd, seen, length, at) == length && !memcmp(seen, model + at, length));
        }
    }
    CHECK(!fsync(fd) && !fdatasync(fd));
    CHECK(!ioctl(fd, BLKFLSBUF, 0));
    close(fd);
    fd = open_disk("/dev/vda", O_RDONLY | O_DIRECT);
    CHECK(pread(fd, seen, VDA, 0) == VDA && !memcmp(seen, model, VDA));
    close(fd);
}

static void a_disk_ends(void) {
    char bytes[3000] = {1};
    int fd = open_disk("/dev/vda", O_RDWR);
    CHECK(pread(fd, bytes, sizeof bytes, VDA - 1000) == 1000);
    CHECK(pread(fd, bytes, sizeof bytes, VDA) == 0);
    CHECK(pread(fd, bytes, sizeof bytes, (off_t)VDA * 1000) == 0);
    CHECK(pwrite(fd, bytes, sizeof bytes, VDA - 1000) == 1000);
    FAILS(pwrite(fd, bytes, sizeof bytes, VDA), ENOSPC);
    CHECK(pwrite(fd, bytes, 0, VDA) == 0);
    close(fd);
}

static void bad_pointers_are_errors(void) {
    int fd = open_disk("/dev/vda", O_RDWR);
    FAILS(pread(fd, (void *)16, 5000, 0), EFAULT);
    FAILS(pwrite(fd, (void *)16, 5000, 0), EFAULT);
    // Half of it is there: what was read or written is told.
    char *at = aligned(2 * PAGE);
    NEED(!munmap(at + PAGE, PAGE));
    ssize_t count = pread(fd, at, 2 * PAGE, 0);
    CHECK(count > 0 && count <= PAGE);
    count = pwrite(fd, at, 2 * PAGE, 0);
    CHECK(count > 0 && count <= PAGE);
    close(fd);
}

static void a_read_only_disk_is_not_written(void) {
    char bytes[SECTOR] = {0};
    int yes = 0;
    int fd = open_disk("/dev/vdb", O_RDONLY);
    CHECK(!ioctl(fd, BLKROGET, &yes) && yes == 1);
    CHECK(read(fd, bytes, sizeof bytes) == sizeof bytes);
    FAILS(write(fd, bytes, sizeof bytes), EBADF);
    close(fd);
    fd = open_disk("/dev/vdb", O_RDWR);
    FAILS(write(fd, bytes, sizeof bytes), EPERM);
    close(fd);
}

static void a_bad_sector_fails_alone(void) {
    char *bytes = aligned(16 * SECTOR);
    int fd = open_disk("/dev/vdc", O_RDWR | O_DIRECT);
    FAILS(pread(fd, bytes, SECTOR, (off_t)BAD_READ * SECTOR), EIO);
    CHECK(pread(fd, bytes, SECTOR, (off_t)(BAD_READ - 1) * SECTOR) == SECTOR);
    CHECK(pread(fd, bytes, SECTOR, (off_t)(BAD_READ + 1) * SECTOR) == SECTOR);
    FAILS(pwrite(fd, bytes, SECTOR, (off_t)BAD_WRITE * SECTOR), EIO);
    CHECK(pwrite(fd, bytes, SECTOR, (off_t)(BAD_WRITE - 1) * SECTOR) == SECTOR);
    CHECK(pread(fd, bytes, SECTOR, (off_t)BAD_WRITE * SECTOR) == SECTOR);
    FAILS(pread(fd, bytes, 16 * SECTOR, (off_t)(BAD_READ - 8) * SECTOR), EIO);
    close(fd);
}

// Reads and writes a part of the disk that is its own, and finds there what it wrote.
static void work_on(int part, int parts) {
    size_t span = VDA / parts, length = 64 << 10;
    unsigned char *mine = aligned(length), *seen = aligned(length);
    state = 77 * (part + 1);
    int fd = open_disk("/dev/vda", O_RDWR | O_DIRECT);
    for (int round = 0; round < 40; round++) {
        off_t at = part * span + (off_t)below((span - length) / SECTOR) * SECTOR;
        fill(mine, length);
        if (pwrite(fd, mine, length, at) != (ssize_t)length) _exit(1);
        if (pread(fd, seen, length, at) != (ssize_t)length || memcmp(mine, seen, length)) _exit(2);
    }
    _exit(0);
}

static void many_processes_share_a_disk(void) {
    enum { PARTS = 8 };
    for (int part = 0; part < PARTS; part++) {
        pid_t child = fork();
        NEED(child >= 0);
        if (child == 0) work_on(part, PARTS);
    }
    for (int part = 0; part < PARTS; part++) {
        int status;
        CHECK(wait(&status) > 0 && status == 0);
    }
}

static void counts(const char *disk, unsigned long out[8]) {
    FILE *file = fopen("/proc/diskstats", "r");
    NEED(file);
    char line[256], name[32];
    while (fgets(line, sizeof line, file)) {
        int got = sscanf(line, "%*u %*u %31s %lu %lu %lu %lu %lu %lu %lu %lu", name, &out[0], &out[1], &out[2], &out[3],
                         &out[4], &out[5], &out[6], &out[7]);
        if (got == 9 && !strcmp(name, disk)) {
            fclose(file);
            return;
        }
    }
    NEED(!"the disk is listed");
}

static void transfers_are_counted(void) {
    unsigned long before[8], after[8];
    char *bytes = aligned(1 << 20);
    int fd = open_disk("/dev/vda", O_RDWR | O_DIRECT);
    counts("vda", before);
    CHECK(pread(fd, bytes, 1 << 20, 0) == 1 << 20);
    CHECK(pwrite(fd, bytes, 1 << 18, 1 << 20) == 1 << 18);
    counts("vda", after);
    CHECK(after[2] - before[2] == 2048 && after[6] - before[6] == 512);
    CHECK(after[0] - before[0] >= 1 && after[0] - before[0] <= 16);
    CHECK(after[4] - before[4] >= 1 && after[4] - before[4] <= 4);
    close(fd);
}

static void disks_are_listed(void) {
    FILE *file = fopen("/proc/partitions", "r");
    NEED(file);
    char line[256], name[32];
    unsigned long blocks = 0, found = 0;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "%*u %*u %lu %31s", &blocks, name) == 2)
            found += (!strcmp(name, "vda") && blocks == 8192) || (!strcmp(name, "vdb") && blocks == 1024);
    CHECK(found == 2);
    fclose(file);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"a disk tells its size", a_disk_tells_its_size},
        {"bytes stay where they are put", bytes_stay_where_they_are_put},
        {"a disk ends", a_disk_ends},
        {"bad pointers are errors", bad_pointers_are_errors},
        {"a read-only disk is not written", a_read_only_disk_is_not_written},
        {"a bad sector fails alone", a_bad_sector_fails_alone},
        {"many processes share a disk", many_processes_share_a_disk},
        {"transfers are counted", transfers_are_counted},
        {"disks are listed", disks_are_listed},
    };
    return RUN(cases, argc, argv);
}
