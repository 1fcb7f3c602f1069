// A file system on a disk, mounted on /mnt: one cache for read, write and mmap, what a full disk says, what stays after an unmount.
#include "check.h"
#include <pthread.h>
#include <limits.h>
#include <dirent.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#ifndef FALLOC_FL_ZERO_RANGE
#define FALLOC_FL_ZERO_RANGE 0x10
#endif

// A folder of the case's own, on a disk that others have left empty.
static void fresh(void) {
    int status;
    pid_t cleaner = fork();
    if (!cleaner) execl("/bin/busybox", "sh", "-c", "rm -rf /mnt/t.*", NULL), _exit(1);
    NEED(waitpid(cleaner, &status, 0) == cleaner && status == 0);
    char path[64];
    snprintf(path, sizeof path, "/mnt/t.%d", getpid());
    NEED(!mkdir(path, 0755) && !chdir(path));
}

static int make(const char *name, size_t size, unsigned seed) {
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
    NEED(fd >= 0);
    unsigned char *bytes = malloc(size ? size : 1);
    for (size_t i = 0; i < size; i++) bytes[i] = (unsigned char)(i * 31 + (i >> 12) * 7 + seed);
    for (size_t done = 0; done < size;) {
        ssize_t n = write(fd, bytes + done, size - done);
        NEED(n > 0);
        done += n;
    }
    free(bytes);
    return fd;
}

static int is(const char *name, size_t size, unsigned seed) {
    int fd = open(name, O_RDONLY);
    if (fd < 0) return 0;
    struct stat about;
    if (fstat(fd, &about) || (size_t)about.st_size != size) return close(fd), 0;
    unsigned char bytes[8192];
    size_t at = 0;
    for (ssize_t n; (n = read(fd, bytes, sizeof bytes)) > 0; at += n)
        for (ssize_t i = 0; i < n; i++)
            if (bytes[i] != (unsigned char)((at + i) * 31 + ((at + i) >> 12) * 7 + seed)) return close(fd), 0;
    close(fd);
    return at == size;
}

// Reads, sectors read, writes and sectors written of the first disk.
static void disk(unsigned long counts[4]) {
    FILE *file = fopen("/proc/diskstats", "r");
    NEED(file);
    char name[32];
    NEED(fscanf(file, "%*d %*d %31s %lu %*u %lu %*u %lu %*u %lu", name, &counts[0], &counts[1], &counts[2], &counts[3]) == 5);
    fclose(file);
}

static void remount(void) {
    NEED(!chdir("/") && !umount("/mnt"));
    NEED(!mount("/dev/vda", "/mnt", "ext4", 0, ""));
}

static void one_cache(void) {
    fresh();
    int fd = make("a", 3 * PAGE + 100, 1);
    unsigned char *map = mmap(0, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    NEED(map != MAP_FAILED);
    CHECK(map[PAGE] == (unsigned char)(PAGE * 31 + 7 + 1));
    CHECK(pwrite(fd, "hello", 5, PAGE + 10) == 5 && !memcmp(map + PAGE + 10, "hello", 5));
    memcpy(map + 2 * PAGE, "there", 5);
    char got[6] = {0};
    CHECK(pread(fd, got, 5, 2 * PAGE) == 5 && !strcmp(got, "there"));
    unsigned char *private = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, PAGE);
    private[10] = 'J';
    CHECK(map[PAGE + 10] == 'h' && pread(fd, got, 5, PAGE + 10) == 5 && !strcmp(got, "hello"));
    CHECK(!msync(map, 4 * PAGE, MS_SYNC) && !msync(map, PAGE, MS_ASYNC));
    CHECK(map[3 * PAGE + 99] && !map[3 * PAGE + 100]);
    // From one part of the file to another, through its own mapping.
    CHECK(pwrite(fd, map, PAGE, 2 * PAGE) == PAGE && !memcmp(map, map + 2 * PAGE, PAGE));
}

static char *mapped;
static void touch_end(void) { ((volatile char *)mapped)[PAGE]; }

static void truncation_of_a_mapped_file(void) {
    fresh();
    int fd = make("a", 4 * PAGE, 3);
    mapped = mmap(0, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    memset(mapped, 'x', 4 * PAGE);
    CHECK(!ftruncate(fd, 100));
    CHECK(mapped[99] == 'x' && !mapped[100] && !mapped[PAGE - 1]);
    int status = in_child(touch_end);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    mapped[200] = 'y';
    CHECK(!ftruncate(fd, 2 * PAGE + 5));
    char got[PAGE];
    CHECK(pread(fd, got, PAGE, 0) == PAGE && got[99] == 'x' && !got[100] && !mapped[PAGE]);
    // Linux forgets stores behind the end only when it writes the page.
    CHECK(!got[200] || access("/proc/self/uvm", F_OK));
    CHECK(!ftruncate(fd, 0) && !ftruncate(fd, PAGE) && !mapped[0] && !mapped[99]);
    struct stat about;
    CHECK(!fstat(fd, &about) && about.st_size == PAGE);
}

static int kept[2];
static void child_of_copies(void) {
    int status = in_child(touch_end);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS && mapped[0] == 'x');
}
static void child_waits(void) {
    char byte;
    NEED(read(kept[0], &byte, 1) == 1);
    child_of_copies();
}

static void truncation_takes_private_copies(void) {
    fresh();
    int fd = make("a", 4 * PAGE, 3), other = open("a", O_RDWR);
    mapped = mmap(0, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    NEED(mapped != MAP_FAILED && !pipe(kept));
    memset(mapped, 'x', 4 * PAGE);
    CHECK(!mlock(mapped + 2 * PAGE, 2 * PAGE));
    fflush(stdout);
    pid_t child = fork();
    if (!child) failed_checks = 0, child_waits(), _exit(failed_checks != 0);
    CHECK(!ftruncate(other, 100));
    // The page that holds the end stays as it was copied; those behind it are gone, in every process.
    CHECK(mapped[99] == 'x' && mapped[PAGE - 1] == 'x');
    child_of_copies();
    int status;
    NEED(write(kept[1], "g", 1) == 1 && waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    // What comes again is the file's, and may be copied again.
    CHECK(!ftruncate(other, 4 * PAGE) && !mapped[PAGE] && !mapped[3 * PAGE]);
    mapped[PAGE] = 'z';
    char got;
    CHECK(pread(fd, &got, 1, PAGE) == 1 && !got && mapped[PAGE] == 'z');
    // A hole leaves copies alone.
    CHECK(!fallocate(other, 3, 0, 4 * PAGE) && mapped[0] == 'x' && mapped[PAGE] == 'z');
    close(fd), close(other), close(kept[0]), close(kept[1]);
}

static void holes(void) {
    fresh();
    int fd = open("a", O_RDWR | O_CREAT, 0644);
    CHECK(pwrite(fd, "end", 3, 5 << 20) == 3);
    char got[4] = {1, 1, 1, 0};
    CHECK(pread(fd, got, 3, 1 << 20) == 3 && !got[0] && !got[2]);
    CHECK(!fsync(fd));
    struct stat about;
    CHECK(!fstat(fd, &about) && about.st_size == (5 << 20) + 3 && about.st_blocks <= 64);
    CHECK(lseek(fd, 0, SEEK_HOLE) == 0);
    off_t data = lseek(fd, 0, SEEK_DATA);
    CHECK(data > (4 << 20) && data <= (5 << 20));
    FAILS(lseek(fd, (5 << 20) + 3, SEEK_DATA), ENXIO);
    close(fd);
    fd = make("b", 64 * PAGE, 5);
    CHECK(!fsync(fd) && !fstat(fd, &about) && about.st_blocks >= 64 * 8);
    CHECK(!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, PAGE + 10, 32 * PAGE));
    CHECK(!fsync(fd) && !fstat(fd, &about) && about.st_size == 64 * PAGE && about.st_blocks <= 40 * 8);
    CHECK(pread(fd, got, 3, PAGE + 9) == 3 && got[0] == (char)((PAGE + 9) * 31 + 7 + 5) && !got[1]);
    CHECK(pread(fd, got, 1, 20 * PAGE) == 1 && !got[0] && pread(fd, got, 1, 33 * PAGE + 10) == 1 && got[0]);
    CHECK(!fallocate(fd, 0, 64 * PAGE, 8 * PAGE) && !fstat(fd, &about) && about.st_size == 72 * PAGE);
    CHECK(pread(fd, got, 3, 70 * PAGE) == 3 && !got[0]);
    // Zeroes that have room, within the size and beyond.
    CHECK(!fallocate(fd, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, 34 * PAGE, 64 * PAGE) && !fsync(fd));
    CHECK(!fstat(fd, &about) && about.st_size == 72 * PAGE && about.st_blocks >= 66 * 8);
    CHECK(pread(fd, got, 1, 40 * PAGE) == 1 && !got[0]);
    CHECK(!fallocate(fd, FALLOC_FL_ZERO_RANGE, 60 * PAGE + 7, 64 * PAGE) && !fstat(fd, &about) && about.st_size == 124 * PAGE + 7);
    close(fd);
}

static void what_stays(void) {
    fresh();
    char folder[64];
    NEED(getcwd(folder, sizeof folder));
    close(make("a", 300000, 9));
    close(make("empty", 0, 0));
    int fd = make("grown", 5000, 4);
    CHECK(!ftruncate(fd, 1 << 20) && !ftruncate(fd, 5000));
    close(fd);
    fd = make("mapped", 10 * PAGE, 6);
    unsigned char *map = mmap(0, 10 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    for (size_t i = 0; i < 10 * PAGE; i++) map[i] = (unsigned char)(i * 31 + (i >> 12) * 7 + 8);
    munmap(map, 10 * PAGE);
    close(fd);
    char target[200];
    memset(target, 't', 199), target[199] = 0;
    CHECK(!symlink(target, "long") && !symlink("a", "short") && !link("a", "other") && !chmod("a", 0640));
    struct timespec times[2] = {{1000000000, 5}, {1100000000, 7}};
    CHECK(!utimensat(AT_FDCWD, "a", times, 0) && !chown("a", 12, 34567) && !mknod("pipe", S_IFIFO | 0600, 0));
    // Blocks are given out after all of this.
    fd = make("program", 50000, 3);
    CHECK(!fchmod(fd, 06755) && !futimens(fd, times));
    close(fd);
    remount();
    NEED(!chdir(folder));
    CHECK(is("a", 300000, 9) && is("other", 300000, 9) && is("short", 300000, 9) && is("empty", 0, 0));
    CHECK(is("grown", 5000, 4) && is("mapped", 10 * PAGE, 8));
    char got[300] = {0};
    CHECK(readlink("long", got, 300) == 199 && !strcmp(got, target));
    struct stat about;
    CHECK(!stat("a", &about) && about.st_nlink == 2 && (about.st_mode & 07777) == 0640);
    CHECK(about.st_mtime == 1100000000 && about.st_uid == 12 && about.st_gid == 34567);
    CHECK(!stat("program", &about) && (about.st_mode & 07777) == 06755 && is("program", 50000, 3));
    CHECK(about.st_atim.tv_nsec == 5 && about.st_mtim.tv_sec == 1100000000 && about.st_mtim.tv_nsec == 7);
    CHECK(!stat("pipe", &about) && S_ISFIFO(about.st_mode));
}

static void names_of_open_files(void) {
    fresh();
    int fd = make("a", 200000, 2), other = make("b", 100, 3);
    struct statfs before, after;
    CHECK(!unlink("a") && is("b", 100, 3));
    char got[2];
    CHECK(pread(fd, got, 1, 199999) == 1 && got[0] == (char)(199999 * 31 + (199999 >> 12) * 7 + 2));
    CHECK(!fsync(fd) && !statfs(".", &before));
    struct stat about;
    CHECK(!fstat(fd, &about) && about.st_nlink == 0);
    close(fd);
    for (int i = 0; i < 100; i++) {
        CHECK(!statfs(".", &after));
        if (after.f_bfree * after.f_bsize >= before.f_bfree * before.f_bsize + 190000) break;
        usleep(50000);
    }
    CHECK(after.f_bfree * after.f_bsize >= before.f_bfree * before.f_bsize + 190000);
    close(make("c", 10, 4));
    CHECK(!rename("c", "b") && is("b", 10, 4) && pread(other, got, 1, 99) == 1 && got[0] == (char)(99 * 31 + 3));
    CHECK(!mkdir("d", 0700) && !mkdir("d/e", 0700) && !rename("d/e", "e") && !rmdir("d"));
    FAILS(rename("e", "e/f"), EINVAL);
    FAILS(rmdir("b"), ENOTDIR);
    FAILS(unlink("e"), EISDIR);
    CHECK(!stat(".", &about) && about.st_nlink == 3);
    CHECK(!chdir("e") && !rmdir("../e"));
    FAILS(open("x", O_CREAT | O_RDWR, 0600), ENOENT);
}

static void a_large_folder(void) {
    fresh();
    char name[64];
    for (int i = 0; i < 2000; i++) {
        snprintf(name, sizeof name, "a file with the number %d", i);
        int fd = open(name, O_CREAT | O_EXCL | O_WRONLY, 0600);
        NEED(fd >= 0);
        close(fd);
    }
    // Removing while listing: each name is seen once.
    DIR *folder = opendir(".");
    int seen = 0;
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (entry->d_name[0] == '.') continue;
        seen++;
        CHECK(entry->d_type == DT_REG && !unlink(entry->d_name));
    }
    closedir(folder);
    CHECK(seen == 2000);
    char here[64];
    CHECK(getcwd(here, sizeof here) && !chdir("/") && !rmdir(here));
}

static void a_full_disk(void) {
    catch_faults();
    fresh();
    struct statfs space;
    NEED(!statfs(".", &space));
    int sparse = open("sparse", O_CREAT | O_RDWR, 0600), kept = open("kept", O_CREAT | O_RDWR, 0600);
    NEED(!ftruncate(sparse, 8 * PAGE) && !fallocate(kept, 0, 0, 4 * PAGE) && !fsync(kept));
    char *hole = mmap(0, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, sparse, 0);
    char *place = mmap(0, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, kept, 0);
    NEED(hole != MAP_FAILED && place != MAP_FAILED);
    hole[7 * PAGE] = 'a';
    int fd = open("big", O_CREAT | O_RDWR, 0600);
    static char bytes[1 << 16];
    memset(bytes, 'f', sizeof bytes);
    off_t total = 0;
    ssize_t n;
    while ((n = write(fd, bytes, sizeof bytes)) > 0) total += n;
    CHECK(n == -1 && errno == ENOSPC);
    CHECK(total > (off_t)(space.f_bavail * space.f_bsize) * 8 / 10);
    // What was accepted has its place.
    CHECK(!fsync(fd) && lseek(fd, 0, SEEK_END) == total);
    char last;
    CHECK(pread(fd, &last, 1, total - 1) == 1 && last == 'f');
    // A store to a hole is refused where it happens, reading one is not, and what has a place is as it was.
    CHECK(hole[PAGE] == 0);
    RAISES(hole[PAGE] = 'b', SIGBUS, BUS_ADRERR, hole + PAGE);
    RAISES(hole[2 * PAGE + 7] = 'b', SIGBUS, BUS_ADRERR, hole + 2 * PAGE + 7);
    hole[7 * PAGE + 1] = 'b';
    place[PAGE] = 'c';
    CHECK(!msync(hole, 8 * PAGE, MS_SYNC) && !fsync(sparse) && !msync(place, 4 * PAGE, MS_SYNC) && !fsync(kept));
    CHECK(!ftruncate(fd, 0) && !fsync(fd));
    hole[PAGE] = 'd';
    CHECK(!msync(hole, 8 * PAGE, MS_SYNC) && !fsync(sparse));
    CHECK(!ftruncate(fd, 0) && !fsync(fd) && write(fd, bytes, sizeof bytes) == sizeof bytes && !fsync(fd));
    close(fd);
    CHECK(!unlink("big"));
    close(make("after", 1 << 20, 7));
    sync();
    CHECK(is("after", 1 << 20, 7));
    char folder[64], got[2] = {0};
    NEED(getcwd(folder, sizeof folder) && !munmap(hole, 8 * PAGE) && !munmap(place, 4 * PAGE));
    close(sparse), close(kept);
    remount();
    NEED(!chdir(folder) && (sparse = open("sparse", O_RDONLY)) >= 0 && (kept = open("kept", O_RDONLY)) >= 0);
    CHECK(pread(sparse, got, 2, PAGE) == 2 && got[0] == 'd' && pread(sparse, got, 2, 7 * PAGE) == 2 && !memcmp(got, "ab", 2));
    CHECK(pread(sparse, got, 1, 2 * PAGE + 7) == 1 && got[0] == 0 && pread(kept, got, 1, PAGE) == 1 && got[0] == 'c');
    close(sparse), close(kept);
}

// Where blocks are smaller than pages, a file that ends inside a page and becomes longer has no room for the rest of it.
static void a_full_disk_behind_the_end(void) {
    catch_faults();
    fresh();
    int fd = open("short", O_CREAT | O_RDWR, 0600), read_only = open("seen", O_CREAT | O_RDWR, 0600);
    static char bytes[1 << 16];
    memset(bytes, 's', sizeof bytes);
    NEED(write(fd, bytes, 1000) == 1000 && !fsync(fd) && write(read_only, bytes, 1000) == 1000 && !fsync(read_only));
    struct stat about;
    NEED(!fstat(fd, &about));
    int parts = about.st_blocks < 8;
    char *at = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    char *seen = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, read_only, 0);
    NEED(at != MAP_FAILED && seen != MAP_FAILED);
    at[10] = 'a';
    CHECK(seen[10] == 's');
    int big = open("big", O_CREAT | O_RDWR, 0600);
    while (write(big, bytes, sizeof bytes) > 0);
    while (write(big, bytes, 512) > 0);
    CHECK(errno == ENOSPC && !fsync(big));
    CHECK(!ftruncate(fd, PAGE) && !ftruncate(read_only, PAGE));
    CHECK(at[999] == 's' && at[1000] == 0 && at[PAGE - 1] == 0);
    if (parts) {
        RAISES(at[2000] = 'b', SIGBUS, BUS_ADRERR, at + 2000);
        RAISES(seen[2000] = 'b', SIGBUS, BUS_ADRERR, seen + 2000);
    }
    // What has a place is written there.
    CHECK(pwrite(fd, "c", 1, 20) == 1 && !msync(at, PAGE, MS_SYNC) && !fsync(fd));
    CHECK(!ftruncate(big, 0) && !fsync(big));
    at[2000] = 'd', seen[PAGE - 1] = 'e';
    CHECK(!msync(at, PAGE, MS_SYNC) && !fsync(fd) && !fsync(read_only));
    char folder[64], got[PAGE];
    NEED(getcwd(folder, sizeof folder) && !munmap(at, PAGE) && !munmap(seen, PAGE));
    close(fd), close(read_only), close(big);
    CHECK(!unlink("big"));
    remount();
    NEED(!chdir(folder) && (fd = open("short", O_RDONLY)) >= 0 && (read_only = open("seen", O_RDONLY)) >= 0);
    CHECK(read(fd, got, PAGE) == PAGE && got[10] == 'a' && got[20] == 'c' && got[999] == 's' && got[1000] == 0 && got[2000] == 'd');
    CHECK(read(read_only, got, PAGE) == PAGE && got[999] == 's' && got[2000] == 0 && got[PAGE - 1] == 'e');
    close(fd), close(read_only);
}

// What a growing file got while it grew, by a child that stores behind the old end as soon as it sees the new one.
struct growth {
    volatile int wanted, seen, stored;
};

static int stored_while_growing(int fd, char *at, struct growth *growth, int rounds) {
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        struct stat about;
        for (int round = 1; round <= rounds; round++) {
            while (growth->wanted != round) sched_yield();
            do fstat(fd, &about);
            while (about.st_size != PAGE);
            CATCH(at[2000] = (char)(round | 1));
            growth->stored = caught_signal == 0;
            growth->seen = round;
        }
        _exit(0);
    }
    int stored = 0;
    for (int round = 1; round <= rounds; round++) {
        // Something behind the end, which does not count.
        at[10] = at[PAGE - 1] = 'a';
        growth->wanted = round;
        NEED(!ftruncate(fd, PAGE));
        while (growth->seen != round) sched_yield();
        stored += growth->stored;
        if (growth->stored) NEED(at[2000] == (char)(round | 1));
        NEED(!ftruncate(fd, 1000) && at[10] == 'a');
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    return stored;
}

static void stores_to_a_growing_file(void) {
    catch_faults();
    fresh();
    static char bytes[1 << 16];
    enum { ROUNDS = 1500 };
    int fd = open("short", O_CREAT | O_RDWR, 0600);
    NEED(write(fd, bytes, 1000) == 1000 && !fsync(fd));
    struct stat about;
    NEED(!fstat(fd, &about));
    int parts = about.st_blocks < 8;
    char *at = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    struct growth *growth = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(at != MAP_FAILED && growth != MAP_FAILED);
    // With room, every store stays.
    CHECK(stored_while_growing(fd, at, growth, ROUNDS) == ROUNDS);
    NEED(!ftruncate(fd, 1000) && !fsync(fd));
    growth->wanted = growth->seen = 0;
    // Without room for the rest of the page, each is refused where it happens.
    int big = open("big", O_CREAT | O_RDWR, 0600);
    while (write(big, bytes, sizeof bytes) > 0);
    while (write(big, bytes, 512) > 0);
    CHECK(errno == ENOSPC && !fsync(big));
    CHECK(stored_while_growing(fd, at, growth, ROUNDS) == (parts ? 0 : ROUNDS));
    CHECK(!msync(at, PAGE, MS_SYNC) && !fsync(fd));
    munmap(at, PAGE), close(fd), close(big);
    CHECK(!unlink("big"));
}

// A page of which some blocks are reserved and some are holes: what has a place can be written on a full disk, the rest can't.
static void a_page_with_room_in_parts(void) {
    catch_faults();
    fresh();
    int fd = open("parts", O_CREAT | O_RDWR, 0600);
    NEED(!ftruncate(fd, 3 * PAGE) && !fallocate(fd, FALLOC_FL_KEEP_SIZE, 1024, 1024) && !fsync(fd));
    static char bytes[1 << 16];
    memset(bytes, 'p', sizeof bytes);
    char *at = mmap(0, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    NEED(at != MAP_FAILED);
    int big = open("big", O_CREAT | O_RDWR, 0600);
    while (write(big, bytes, sizeof bytes) > 0);
    while (write(big, bytes, 512) > 0);
    CHECK(errno == ENOSPC && !fsync(big));
    struct stat about;
    NEED(!fstat(fd, &about));
    int parts = about.st_blocks < 8;
    CHECK(at[1500] == 0);
    CHECK(pwrite(fd, "abc", 3, 1500) == 3 && !memcmp(at + 1500, "abc", 3));
    if (parts) {
        FAILS(pwrite(fd, "x", 1, 100), ENOSPC);
        FAILS(pwrite(fd, bytes, 1024, 512), ENOSPC);
        FAILS(pwrite(fd, bytes, 1024, 1536), ENOSPC);
        // A mapping's page is one: none of it can be stored to.
        RAISES(at[3000] = 'b', SIGBUS, BUS_ADRERR, at + 3000);
        RAISES(at[1600] = 'b', SIGBUS, BUS_ADRERR, at + 1600);
    }
    FAILS(pwrite(fd, "x", 1, PAGE), ENOSPC);
    // Zeroes that are made so need no room.
    CHECK(!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, PAGE + 100, PAGE));
    CHECK(!msync(at, 3 * PAGE, MS_SYNC) && !fsync(fd));
    // Once written, it can be written again; with room, all of it.
    CHECK(pwrite(fd, "d", 1, 1024) == 1 && !fsync(fd));
    CHECK(!ftruncate(big, 0) && !fsync(big));
    at[3000] = 'e';
    CHECK(!msync(at, 3 * PAGE, MS_SYNC) && pwrite(fd, "f", 1, 100) == 1 && !fsync(fd));
    char folder[64], got[PAGE];
    NEED(getcwd(folder, sizeof folder) && !munmap(at, 3 * PAGE));
    close(fd), close(big);
    CHECK(!unlink("big"));
    remount();
    NEED(!chdir(folder) && (fd = open("parts", O_RDONLY)) >= 0);
    CHECK(read(fd, got, PAGE) == PAGE && got[100] == 'f' && got[1024] == 'd' && !memcmp(got + 1500, "abc", 4) && got[3000] == 'e');
    close(fd);
}

// A deleted file's room is there for who needs it next, what was only reserved too, though somebody else may be freeing it at this moment.
static void deleted_files_make_room(void) {
    fresh();
    struct statfs before, after;
    NEED(!statfs(".", &before));
    off_t most = (off_t)(before.f_bavail * before.f_bsize) / 4 * 3;
    int fails = 0;
    for (int i = 0; i < 6; i++) {
        int big = open("big", O_CREAT | O_RDWR, 0600);
        NEED(big >= 0);
        fails += fallocate(big, i % 3 ? 0 : FALLOC_FL_KEEP_SIZE, 0, most) != 0;
        if (i % 2) fails += write(big, "written", 7) != 7;
        NEED(!unlink("big") && !close(big));
    }
    sync();
    // Linux gives freed blocks out after the next commit, and doesn't always wait for it. It has no call of this number.
    int is_linux = syscall(502, 0L, 0L) && errno == ENOSYS;
    CHECK(fails == 0 || is_linux);
    CHECK(!statfs(".", &after) && after.f_bfree + 8 >= before.f_bfree);
}

// An open file that is deleted, or has another put in its place, keeps what was written where it had blocks set aside, in memory
// and on the disk, and can be stored to where it has none of it yet, though others take all the room there is.
static void reserved_in_deleted_files(void) {
    fresh();
    for (int replaced = 0; replaced < 2; replaced++) {
        static char bytes[1 << 16];
        memset(bytes, 'w', sizeof bytes);
        struct statfs before, after;
        NEED(!statfs(".", &before));
        int fd = open("gone", O_CREAT | O_RDWR, 0600), other = open("other", O_CREAT | O_RDWR, 0600);
        NEED(fd >= 0 && other >= 0 && !fallocate(fd, 0, 0, 64 * PAGE) && !fallocate(fd, FALLOC_FL_KEEP_SIZE, 64 * PAGE, 64 * PAGE));
        NEED(pwrite(fd, "on the disk", 11, 3 * PAGE) == 11 && !fsync(fd) && pwrite(fd, "in memory", 9, 5 * PAGE + 100) == 9);
        char *at = mmap(0, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        NEED(at != MAP_FAILED);
        at[7 * PAGE] = 'm';
        CHECK(at[9 * PAGE] == 0);
        CHECK(replaced ? !rename("other", "gone") : !unlink("gone"));
        sync();
        while (write(other, bytes, sizeof bytes) > 0) {}
        CHECK(errno == ENOSPC && !fsync(other));
        at[9 * PAGE] = 'n';
        at[11 * PAGE + 1] = 'o';
        CHECK(pwrite(fd, "late", 4, 20 * PAGE) == 4 && !msync(at, 64 * PAGE, MS_SYNC) && !fsync(fd));
        NEED(!munmap(at, 64 * PAGE) && !posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
        char got[16];
        CHECK(pread(fd, got, 11, 3 * PAGE) == 11 && !memcmp(got, "on the disk", 11));
        CHECK(pread(fd, got, 9, 5 * PAGE + 100) == 9 && !memcmp(got, "in memory", 9));
        CHECK(pread(fd, got, 2, 7 * PAGE) == 2 && got[0] == 'm' && got[1] == 0 && pread(fd, got, 1, 9 * PAGE) == 1 && got[0] == 'n');
        CHECK(pread(fd, got, 2, 11 * PAGE) == 2 && got[0] == 0 && got[1] == 'o' && pread(fd, got, 4, 20 * PAGE) == 4 && !memcmp(got, "late", 4));
        CHECK(pread(fd, got, 1, 30 * PAGE) == 1 && got[0] == 0 && lseek(fd, 0, SEEK_END) == 64 * PAGE);
        // Room can still be reserved.
        CHECK(!ftruncate(other, 0) && !fsync(other) && !fallocate(fd, 0, 200 * PAGE, 8 * PAGE) && pwrite(fd, "end", 3, 205 * PAGE) == 3);
        CHECK(!fsync(fd) && !posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) && pread(fd, got, 3, 205 * PAGE) == 3 && !memcmp(got, "end", 3));
        CHECK(lseek(fd, 0, SEEK_END) == 208 * PAGE);
        close(fd), close(other);
        CHECK(!unlink(replaced ? "gone" : "other"));
        sync();
        CHECK(!statfs(".", &after) && after.f_bfree + 8 >= before.f_bfree);
    }
}

// What was written and has no blocks yet keeps the room that it was promised, whatever others reserve.
static void reserving_beside_what_was_written(void) {
    fresh();
    enum { WRITTEN = 8 << 20 };
    struct statfs space;
    NEED(!statfs(".", &space));
    int fd = make("a", WRITTEN, 3), other = open("other", O_CREAT | O_RDWR, 0600);
    off_t room = space.f_bavail * space.f_bsize - WRITTEN / 2;
    FAILS(fallocate(other, 0, 0, room), ENOSPC);
    CHECK(!fsync(fd));
    close(fd), close(other);
    // What could be had may be kept.
    CHECK(!unlink("other"));
    remount();
}

static void synced_writes(void) {
    fresh();
    unsigned long before[4], after[4];
    int fd = open("a", O_CREAT | O_RDWR | O_DSYNC, 0600);
    disk(before);
    CHECK(write(fd, "now", 3) == 3);
    disk(after);
    CHECK(after[3] > before[3]);
    CHECK(!fdatasync(fd) && !fsync(fd) && !syncfs(fd));
    int folder = open(".", O_RDONLY | O_DIRECTORY);
    CHECK(!fsync(folder));
}

// Writes and flushes of the first disk.
static void requests(unsigned long counts[2]) {
    FILE *file = fopen("/proc/diskstats", "r");
    NEED(file);
    const char *line = "%*d %*d %*s %*u %*u %*u %*u %lu %*u %*u %*u %*u %*u %*u %*u %*u %*u %*u %lu";
    NEED(fscanf(file, line, &counts[0], &counts[1]) == 2);
    fclose(file);
}

// Calls that say that what they write is on the disk when they return: each writes, and has the disk keep it.
static void durable_writes(void) {
    enum { CALLS = 10, DSYNC = 2, SYNC = 4 };
    static char bytes[PAGE];
    fresh();
    unsigned long before[2], after[2];
    struct {
        int open_flags, call_flags;
    } ways[] = {{0, DSYNC}, {0, SYNC}, {O_DSYNC, 0}, {O_SYNC, 0}, {O_SYNC, DSYNC}, {O_APPEND, DSYNC}};
    for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
        int fd = open("a", O_CREAT | O_RDWR | ways[way].open_flags, 0600);
        NEED(fd >= 0 && write(fd, bytes, PAGE) == PAGE && !fsync(fd));
        requests(before);
        for (int n = 0; n < CALLS; n++) {
            memset(bytes, n + (int)way, PAGE);
            struct iovec part = {bytes, 1 + n * 300};
            long at = n % 2 ? 0 : -1;
            CHECK(syscall(SYS_pwritev2, fd, &part, 1, at, at, ways[way].call_flags) == (long)part.iov_len);
        }
        requests(after);
        if (!CHECK(after[0] >= before[0] + CALLS && after[1] >= before[1] + CALLS))
            printf("  way %zu: %lu writes, %lu flushes\n", way, after[0] - before[0], after[1] - before[1]);
        close(fd);
    }
}

// Sets a file's times to long ago.
static void age(int fd) {
    struct timespec times[2] = {{1000000000, 0}, {1000000000, 0}};
    NEED(!futimens(fd, times));
}

static int is_young(int fd) {
    struct stat about;
    NEED(!fstat(fd, &about));
    return about.st_mtime > 1100000000;
}

static void stores_move_times(void) {
    fresh();
    int fd = make("a", 20 * PAGE, 1);
    NEED(!fsync(fd));
    char *map = mmap(0, 20 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    NEED(map != MAP_FAILED);
    for (int round = 0; round < 4; round++) {
        age(fd);
        struct stat old, now;
        NEED(!fstat(fd, &old) && old.st_mtime == 1000000000);
        usleep(20000);
        map[3 * PAGE + round] = 1;
        CHECK(round % 2 ? !fsync(fd) : !msync(map, 20 * PAGE, MS_SYNC));
        NEED(!fstat(fd, &now));
        CHECK(now.st_mtime > 1100000000);
        CHECK(now.st_ctim.tv_sec * 1e9 + now.st_ctim.tv_nsec > old.st_ctim.tv_sec * 1e9 + old.st_ctim.tv_nsec + 1e6);
        // Nothing was stored since, and reading is no storing.
        age(fd);
        CHECK(map[3 * PAGE + round] == 1 && !msync(map, 20 * PAGE, MS_SYNC) && !fsync(fd) && !is_young(fd));
    }
    // Neither is storing to a private copy.
    char *private = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    NEED(private != MAP_FAILED);
    private[0] = 7;
    CHECK(!msync(private, PAGE, MS_SYNC) && !fsync(fd) && !is_young(fd));
    // What was stored before the mapping went is not forgotten.
    map[PAGE] = 9;
    NEED(!munmap(map, 20 * PAGE));
    CHECK(!fsync(fd) && is_young(fd));
}

static void reading_twice(void) {
    fresh();
    char folder[64], name[32];
    NEED(getcwd(folder, sizeof folder));
    for (int i = 0; i < 300; i++) {
        snprintf(name, sizeof name, "f%d", i);
        close(make(name, 3000 + i * 10, i));
    }
    remount();
    NEED(!chdir(folder));
    unsigned long counts[3][4];
    for (int pass = 0; pass < 2; pass++) {
        disk(counts[pass]);
        for (int i = 0; i < 300; i++) {
            snprintf(name, sizeof name, "f%d", i);
            int fd = open(name, O_RDONLY);
            unsigned char *map = mmap(0, PAGE, PROT_READ, MAP_SHARED, fd, 0);
            CHECK(map[100] == (unsigned char)(100 * 31 + i));
            munmap(map, PAGE);
            close(fd);
        }
    }
    disk(counts[2]);
    CHECK(counts[1][0] > counts[0][0] && counts[2][0] == counts[1][0]);
}

static void random_and_sequential_reading(void) {
    fresh();
    char folder[64];
    NEED(getcwd(folder, sizeof folder));
    close(make("a", 2048 * PAGE, 3));
    close(make("b", 2048 * PAGE, 4));
    remount();
    NEED(!chdir(folder));
    int fd = open("a", O_RDONLY);
    unsigned char *map = mmap(0, 2048 * PAGE, PROT_READ, MAP_SHARED, fd, 0);
    NEED(map != MAP_FAILED && !madvise(map, 2048 * PAGE, MADV_RANDOM));
    unsigned long before[4], after[4];
    disk(before);
    for (int i = 0; i < 100; i++) {
        size_t page = (size_t)i * 977 % 2048;
        CHECK(map[page * PAGE] == (unsigned char)(page * PAGE * 31 + page * 7 + 3));
    }
    disk(after);
    // A few sectors more are the file's extents.
    CHECK(after[1] - before[1] <= 100 * 8 + 64);
    map = mmap(0, 2048 * PAGE, PROT_READ, MAP_SHARED, open("b", O_RDONLY), 0);
    NEED(map != MAP_FAILED && !madvise(map, 2048 * PAGE, MADV_SEQUENTIAL));
    disk(before);
    for (size_t page = 0; page < 2048; page++) NEED(map[page * PAGE + 1] == (unsigned char)((page * PAGE + 1) * 31 + page * 7 + 4));
    disk(after);
    CHECK(after[0] - before[0] <= 2048 / 16);
}

// Files are written while others write them back without a pause: the writer gets its turn, and what was written after a page was
// taken to the disk gets there too.
static void writing_meets_syncing(void) {
    enum { FILES = 12, SIZE = 4 << 20 };
    fresh();
    char folder[64], name[16];
    NEED(getcwd(folder, sizeof folder));
    pid_t children[2];
    for (int i = 0; i < 2; i++) {
        children[i] = fork();
        NEED(children[i] >= 0);
        if (!children[i]) for (;;) sync();
    }
    for (int i = 0; i < FILES; i++) {
        snprintf(name, sizeof name, "s%d", i % 6);
        close(make(name, SIZE, i));
    }
    for (int i = 0; i < 2; i++) NEED(!kill(children[i], SIGKILL) && waitpid(children[i], 0, 0) == children[i]);
    remount();
    NEED(!chdir(folder));
    for (int i = FILES - 6; i < FILES; i++) {
        snprintf(name, sizeof name, "s%d", i % 6);
        CHECK(is(name, SIZE, i));
    }
}

// A folder of the disk that is shown elsewhere, also when the disk is shown there alone.
static void a_folder_elsewhere(void) {
    fresh();
    char folder[64];
    NEED(getcwd(folder, sizeof folder) && !mkdir("inner", 0755) && !mkdir("/tmp/inner", 0755));
    close(make("inner/a", 100, 1));
    NEED(!mount("inner", "/tmp/inner", 0, MS_BIND, 0));
    CHECK(!chdir("/tmp/inner") && is("a", 100, 1) && !chdir("/"));
    CHECK(!umount("/tmp/inner") && !mount(strcat(folder, "/inner"), "/tmp/inner", 0, MS_BIND, 0));
    CHECK(!umount("/mnt") && !chdir("/tmp/inner") && is("a", 100, 1));
    close(make("b", 100, 2));
    int fd = open("b", O_RDONLY);
    FAILS(umount("/tmp/inner"), EBUSY);
    CHECK(!close(fd) && !chdir("/"));
    CHECK(!umount("/tmp/inner") && !mount("/dev/vda", "/mnt", "ext4", 0, "") && !chdir(folder) && is("b", 100, 2));
    CHECK(!chdir("/") && !rmdir("/tmp/inner"));
}

static volatile int is_over;
static void *opens(void *path) {
    while (!is_over) {
        int fd = open(path, O_RDWR);
        if (fd >= 0) CHECK(write(fd, "x", 1) == 1 && !close(fd));
    }
    return 0;
}

// A disk is closed when nothing uses it any more, and then it can be mounted again.
static void a_disk_closes_once(void) {
    fresh();
    char folder[64], file[80];
    NEED(getcwd(folder, sizeof folder) && !mkdir("inner", 0755) && !mkdir("/tmp/inner", 0755) && !mkdir("on", 0755));
    close(make("a", 100, 1));
    // A mount that fails leaves the disk to others.
    NEED(!chdir("/") && !umount("/mnt"));
    FAILS(mount("/dev/vda", "/proc/self/fd/0", "ext4", 0, ""), ENOTDIR);
    CHECK(mount("/dev/vda", "/proc/self/task", "ext4", 0, "") || !umount("/proc/self/task"));
    NEED(!mount("/dev/vda", "/mnt", "ext4", 0, "") && !chdir(folder));
    // A folder that is covered in another place stays.
    NEED(!mount("none", "on", "tmpfs", 0, "") && !mount(folder, "/tmp/inner", 0, MS_BIND, 0));
    CHECK(rmdir("/tmp/inner/on") == -1 && !umount("/tmp/inner") && !umount("on"));
    // In use, it isn't put out of sight.
    NEED(!mount("inner", "/tmp/inner", 0, MS_BIND, 0));
    if (!access("/proc/self/uvm", F_OK)) {
        FAILS(umount2("/mnt", MNT_DETACH), EBUSY);
        FAILS(umount("/mnt"), EBUSY);
    }
    // The last place is a folder that has gone.
    NEED(!rmdir("inner") && !chdir("/") && !umount("/mnt"));
    CHECK(!umount("/tmp/inner") && !mount("/dev/vda", "/mnt", "ext4", 0, "") && !rmdir("/tmp/inner"));
    // Files are opened while it is unmounted.
    pthread_t opener;
    snprintf(file, sizeof file, "%s/a", folder);
    NEED(!pthread_create(&opener, 0, opens, file));
    int unmounted = 0;
    for (int i = 0; i < 200; i++) {
        if (umount("/mnt")) continue;
        unmounted++;
        CHECK(!mount("/dev/vda", "/mnt", "ext4", 0, ""));
    }
    is_over = 1;
    CHECK(!pthread_join(opener, 0) && unmounted > 0);
}

static void mounting(void) {
    fresh();
    char folder[64];
    NEED(getcwd(folder, sizeof folder));
    int fd = make("a", 100, 1);
    NEED(!chdir("/"));
    FAILS(umount("/mnt"), EBUSY);
    // Linux would mount it a second time the same way, but not in another.
    FAILS(mount("/dev/vda", "/tmp", "ext4", MS_RDONLY, ""), EBUSY);
    close(fd);
    NEED(!chdir("/mnt"));
    FAILS(umount("/mnt"), EBUSY);
    NEED(!chdir("/") && !umount("/mnt"));
    CHECK(access(folder, F_OK) == -1 && !mount("/dev/vda", "/mnt", "ext4", MS_RDONLY, ""));
    NEED(!chdir(folder));
    CHECK(is("a", 100, 1));
    FAILS(open("a", O_RDWR), EROFS);
    FAILS(open("b", O_CREAT | O_WRONLY, 0600), EROFS);
    FAILS(mkdir("d", 0700), EROFS);
    FAILS(unlink("a"), EROFS);
    FAILS(chmod("a", 0600), EROFS);
    struct statfs space;
    CHECK(!statfs(".", &space) && space.f_flags & 1);
    remount();
    NEED(!chdir(folder));
    CHECK(is("a", 100, 1) && !unlink("a"));
}

static void remounting(void) {
    fresh();
    int fd = make("a", 3 * PAGE, 1);
    char *map = mmap(0, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    NEED(map != MAP_FAILED);
    // Open for writing, then only mapped so.
    FAILS(mount("", "/mnt", "", MS_REMOUNT | MS_RDONLY, ""), EBUSY);
    close(fd);
    FAILS(mount("", "/mnt", "", MS_REMOUNT | MS_RDONLY, ""), EBUSY);
    map[PAGE] = 'x';
    munmap(map, 3 * PAGE);
    int reader = open("a", O_RDONLY);
    NEED(!mount("", "/mnt", "", MS_REMOUNT | MS_RDONLY, ""));
    struct statfs space;
    CHECK(!statfs(".", &space) && space.f_flags & 1);
    FAILS(open("a", O_RDWR), EROFS);
    FAILS(open("a", O_RDONLY | O_TRUNC), EROFS);
    FAILS(truncate("a", 5), EROFS);
    FAILS(open("b", O_CREAT | O_WRONLY, 0600), EROFS);
    FAILS(mkdir("d", 0700), EROFS);
    FAILS(unlink("a"), EROFS);
    // What was stored is there, in the cache and on the disk.
    char byte;
    struct stat about;
    CHECK(!fstat(reader, &about) && about.st_size == 3 * PAGE);
    CHECK(pread(reader, &byte, 1, PAGE) == 1 && byte == 'x');
    CHECK(!posix_fadvise(reader, 0, 0, POSIX_FADV_DONTNEED));
    CHECK(pread(reader, &byte, 1, PAGE) == 1 && byte == 'x');
    NEED(!mount("", "/mnt", "", MS_REMOUNT, ""));
    CHECK(!statfs(".", &space) && !(space.f_flags & 1));
    fd = open("a", O_RDWR);
    CHECK(fd >= 0 && pwrite(fd, "y", 1, PAGE) == 1 && !fsync(fd) && !mkdir("d", 0700));
    CHECK(pread(reader, &byte, 1, PAGE) == 1 && byte == 'y');
    close(fd), close(reader);
}

static unsigned resident(int fd, size_t size) {
    unsigned char pages[1024];
    void *map = mmap(0, size, PROT_READ, MAP_SHARED, fd, 0);
    NEED(map != MAP_FAILED && !mincore(map, size, pages));
    munmap(map, size);
    unsigned count = 0;
    for (size_t i = 0; i < size / PAGE; i++) count += pages[i] & 1;
    return count;
}

// Whether so many pages are there within some seconds: advice waits for nothing.
static int comes(int fd, size_t size, unsigned pages) {
    for (int i = 0; i < 500; i++, usleep(10000))
        if (resident(fd, size) >= pages) return 1;
    return 0;
}

// What is still under I/O can't be dropped: asks again for some time.
static int drops(int fd, off_t at, off_t len, size_t size, unsigned left) {
    for (int i = 0; i < 500; i++, usleep(10000))
        if (!posix_fadvise(fd, at, len, POSIX_FADV_DONTNEED) && resident(fd, size) == left) return 1;
    return 0;
}

static void advice_on_files(void) {
    fresh();
    enum { SIZE = 32 * PAGE };
    int fd = make("a", SIZE, 1), pipes[2];
    CHECK(!fsync(fd) && resident(fd, SIZE) == 32);
    CHECK(drops(fd, 0, 0, SIZE, 0));
    CHECK(!posix_fadvise(fd, 0, SIZE, POSIX_FADV_WILLNEED) && comes(fd, SIZE, 32));
    // Parts of pages stay, whole ones go.
    CHECK(drops(fd, 100, 3 * PAGE, SIZE, 30) && drops(fd, 0, 0, SIZE, 0));
    CHECK(!readahead(fd, 8 * PAGE, 8 * PAGE) && comes(fd, SIZE, 8) && resident(fd, SIZE) == 8);
    // What is mapped or dirty stays.
    char *map = mmap(0, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    NEED(map != MAP_FAILED && map[8 * PAGE]);
    CHECK(!posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) && resident(fd, SIZE) >= 1);
    CHECK(!madvise(map + 20 * PAGE, 8 * PAGE, MADV_WILLNEED) && comes(fd, SIZE, 9));
    munmap(map, SIZE);
    CHECK(pwrite(fd, "x", 1, 0) == 1 && !posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
    char byte;
    CHECK(pread(fd, &byte, 1, 0) == 1 && byte == 'x');
    // At random, a read brings what it asks for.
    NEED(!fsync(fd) && drops(fd, 0, 0, SIZE, 0) && !posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM));
    for (int page = 0; page < 6; page++) CHECK(pread(fd, &byte, 1, page * PAGE) == 1);
    CHECK(resident(fd, SIZE) == 6);
    NEED(!posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL));
    for (int page = 16; page < 20; page++) CHECK(pread(fd, &byte, 1, page * PAGE) == 1);
    CHECK(comes(fd, SIZE, 12));
    CHECK(!posix_fadvise(fd, 0, 0, POSIX_FADV_NORMAL));
    CHECK(posix_fadvise(fd, 0, 0, 77) == EINVAL && posix_fadvise(fd, 0, -1, POSIX_FADV_NORMAL) == EINVAL);
    NEED(!pipe(pipes));
    CHECK(posix_fadvise(pipes[0], 0, 0, POSIX_FADV_WILLNEED) == ESPIPE);
    FAILS(readahead(pipes[0], 0, 1), EINVAL);
    int writer = open("a", O_WRONLY);
    FAILS(readahead(writer, 0, 1), EBADF);
    close(fd), close(writer);
}

static void ranges_are_synced(void) {
    fresh();
    int fd = make("a", 64 * PAGE, 1), pipes[2];
    NEED(!fsync(fd) && !pipe(pipes));
    unsigned long before[4], after[4];
    static char bytes[8 * PAGE];
    enum { ALL = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER };
    // The eight pages, and no journal; but for the flusher, which may come by.
    int exact = 0;
    for (int tries = 0; tries < 3 && !exact; tries++) {
        NEED(pwrite(fd, bytes, sizeof bytes, 8 * PAGE) == sizeof bytes);
        disk(before);
        CHECK(!sync_file_range(fd, 8 * PAGE, sizeof bytes, ALL));
        disk(after);
        exact = after[3] - before[3] == 8 * PAGE / 512;
    }
    CHECK(exact);
    CHECK(!sync_file_range(fd, 0, 0, 0) && !sync_file_range(fd, 0, 0, ALL));
    FAILS(sync_file_range(fd, 0, 0, 8), EINVAL);
    FAILS(sync_file_range(fd, -1, 0, 0), EINVAL);
    FAILS(sync_file_range(pipes[0], 0, 0, 0), ESPIPE);
    close(fd);
}

static void programs_run_from_it(void) {
    fresh();
    pid_t copier = fork();
    if (!copier) execl("/bin/busybox", "cp", "/bin/ext4", "prog", NULL), _exit(1);
    int copied;
    CHECK(waitpid(copier, &copied, 0) == copier && copied == 0);
    char *argv[] = {"prog", "nothing", 0}, *none[] = {0};
    pid_t child = fork();
    if (!child) execve("./prog", argv, none), _exit(1);
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// As in linux/fs.h.
enum {
    FS_COMPR_FL = 4, FS_IMMUTABLE_FL = 0x10, FS_APPEND_FL = 0x20, FS_NODUMP_FL = 0x40, FS_EXTENT_FL = 0x80000,
};
#define FS_IOC_GETFLAGS _IOR('f', 1, long)
#define FS_IOC_SETFLAGS _IOW('f', 2, long)

// What `chattr` sets; the flags that lsattr shows besides stay.
static int mark(const char *name, int flags) {
    int fd = open(name, O_RDONLY | O_NONBLOCK), now, error;
    NEED(fd >= 0 && !ioctl(fd, FS_IOC_GETFLAGS, &now));
    now = (now & ~(FS_IMMUTABLE_FL | FS_APPEND_FL | FS_NODUMP_FL)) | flags;
    int done = ioctl(fd, FS_IOC_SETFLAGS, &now);
    error = errno;
    close(fd);
    errno = error;
    return done;
}

static void as_another(void) {
    NEED(!setgid(1000) && !setuid(1000));
    FAILS(mark("log", FS_NODUMP_FL), EPERM);
    FAILS(mark("mine", FS_IMMUTABLE_FL), EPERM);
    CHECK(!mark("mine", FS_NODUMP_FL));
    FAILS(mark("mine", FS_NODUMP_FL | FS_APPEND_FL), EPERM);
}

static void marked_files(void) {
    fresh();
    struct timespec long_ago[2] = {{1000, 0}, {1000, 0}};
    close(make("log", 100, 1)), close(make("fixed", 100, 2)), close(make("mine", 10, 3));
    NEED(!chown("mine", 1000, 1000) && !mkdir("names", 0755) && !mkdir("still", 0755));
    close(make("names/old", 10, 4)), close(make("still/old", 10, 5));
    int status = in_child(as_another);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);

    // Only written to behind its end.
    int before = open("log", O_RDWR);
    NEED(before >= 0 && !mark("log", FS_APPEND_FL));
    FAILS(open("log", O_WRONLY), EPERM);
    FAILS(open("log", O_WRONLY | O_APPEND | O_TRUNC), EPERM);
    FAILS(ftruncate(before, 10), EPERM);
    FAILS(truncate("log", 10), EPERM);
    FAILS(fallocate(before, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE), EPERM);
    CHECK(mmap(0, PAGE, PROT_READ, MAP_SHARED, before, 0) == MAP_FAILED && errno == EACCES);
    int fd = open("log", O_WRONLY | O_APPEND);
    CHECK(fd >= 0 && write(fd, "more", 4) == 4 && pwrite(fd, "end", 3, 0) == 3);
    FAILS(fcntl(fd, F_SETFL, 0), EPERM);
    CHECK(!fcntl(fd, F_SETFL, O_APPEND | O_NONBLOCK));
    close(fd), close(before);
    FAILS(unlink("log"), EPERM);
    FAILS(rename("log", "log2"), EPERM);
    FAILS(rename("fixed", "log"), EPERM);
    FAILS(link("log", "log2"), EPERM);
    FAILS(chmod("log", 0600), EPERM);
    FAILS(chown("log", 1, 1), EPERM);
    FAILS(utimensat(AT_FDCWD, "log", long_ago, 0), EPERM);
    CHECK(!utimensat(AT_FDCWD, "log", 0, 0));

    // Not changed at all, by who had it open before either.
    before = open("fixed", O_RDWR);
    NEED(before >= 0 && !mark("fixed", FS_IMMUTABLE_FL));
    FAILS(pwrite(before, "x", 1, 0), EPERM);
    FAILS(ftruncate(before, 10), EPERM);
    FAILS(fallocate(before, 0, 0, PAGE), EPERM);
    // Linux makes the mapping, and raises SIGBUS at the store.
    char *new = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, before, 0);
    CHECK(new == MAP_FAILED ? errno == EPERM : access("/proc/self/uvm", F_OK));
    if (new != MAP_FAILED) munmap(new, PAGE);
    close(before);
    FAILS(open("fixed", O_WRONLY | O_APPEND), EPERM);
    FAILS(access("fixed", W_OK), EPERM);
    CHECK(!access("fixed", R_OK));
    FAILS(truncate("fixed", 10), EPERM);
    FAILS(unlink("fixed"), EPERM);
    FAILS(rename("fixed", "moved"), EPERM);
    FAILS(link("fixed", "other"), EPERM);
    FAILS(chmod("fixed", 0600), EPERM);
    FAILS(utimensat(AT_FDCWD, "fixed", 0, 0), EPERM);

    // A folder that only gets names, and one that gets none.
    NEED(!mark("names", FS_APPEND_FL) && !mark("still", FS_IMMUTABLE_FL));
    CHECK(!mkdir("names/new", 0755));
    FAILS(unlink("names/old"), EPERM);
    FAILS(rmdir("names/new"), EPERM);
    FAILS(rename("names/old", "old"), EPERM);
    FAILS(mkdir("still/new", 0755), EPERM);
    FAILS(unlink("still/old"), EPERM);
    FAILS(link("mine", "still/mine"), EPERM);
    CHECK(!truncate("still/old", 5));

    // It stays on the disk.
    char folder[64];
    NEED(getcwd(folder, sizeof folder));
    remount();
    NEED(!chdir(folder));
    FAILS(unlink("fixed"), EPERM);
    FAILS(open("log", O_WRONLY), EPERM);
    CHECK(is("fixed", 100, 2) && !access("log", W_OK));
    struct stat about;
    CHECK(!stat("log", &about) && about.st_size == 107);
    CHECK(!mark("log", 0) && !mark("fixed", 0) && !mark("names", 0) && !mark("still", 0));
    CHECK(!unlink("log") && !unlink("fixed") && !unlink("names/old") && !unlink("still/old"));
    int now, file = open("mine", O_RDWR);
    CHECK(!ioctl(file, FS_IOC_GETFLAGS, &now) && now & FS_NODUMP_FL && now & FS_EXTENT_FL);
    now |= FS_COMPR_FL;
    // Linux has no effect in store for this one either, and doesn't say so.
    if (!access("/proc/self/uvm", F_OK)) FAILS(ioctl(file, FS_IOC_SETFLAGS, &now), EOPNOTSUPP);
    FAILS(ioctl(file, FS_IOC_SETFLAGS, 1), EFAULT);
    close(file);
}

static void fills(void) {
    NEED(!setgid(1000) && !setuid(1000));
    static char bytes[1 << 16];
    int fd = open("filling", O_RDWR | O_CREAT, 0600);
    NEED(fd >= 0);
    while (write(fd, bytes, sizeof bytes) > 0) {}
    CHECK(errno == ENOSPC);
    close(fd);
    char name[16];
    int made = 0;
    while (made < 4096 && snprintf(name, sizeof name, "d%d", made) && !mkdir(name, 0755)) made++;
    CHECK(made < 4096 && errno == ENOSPC);
}

// A twentieth of the disk is for root alone.
static void room_for_root(void) {
    static char bytes[1 << 20];
    fresh();
    struct statfs about;
    NEED(!statfs(".", &about) && !chmod(".", 0777));
    unsigned long kept = about.f_bfree - about.f_bavail;
    CHECK(kept * about.f_bsize >= 2 << 20);
    int status = in_child(fills);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    sync();
    NEED(!statfs(".", &about));
    CHECK(about.f_bfree >= kept && about.f_bavail * about.f_bsize < 1 << 20);
    int fd = open("of_root", O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0 && write(fd, bytes, sizeof bytes) == sizeof bytes && !fsync(fd) && !mkdir("another", 0755));
    close(fd);
    CHECK(!unlink("filling") && !unlink("of_root"));
}

static void nothing(void) {}

// A link's target lies in a block, with a zero behind it.
static void long_links(void) {
    fresh();
    static char target[PATH_MAX], got[PATH_MAX];
    struct statfs about;
    NEED(!statfs(".", &about));
    memset(target, 'x', sizeof target - 1);
    size_t most = about.f_bsize < PATH_MAX ? about.f_bsize : PATH_MAX;
    // The file system's own, which a page hides.
    int fd = open("/mnt", O_RDONLY);
    for (size_t length = sizeof target - 1; length > 50; length = length > 1100 ? length - 500 : length - 1) {
        target[length] = 0;
        char name[16];
        snprintf(name, sizeof name, "l%zu", length);
        if (symlink(target, name)) {
            CHECK(errno == ENAMETOOLONG && length >= 1024);
            continue;
        }
        CHECK(length < most && readlink(name, got, sizeof got) == (ssize_t)length && !unlink(name));
    }
    close(fd);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"nothing", nothing},
        {"one_cache", one_cache},
        {"truncation_of_a_mapped_file", truncation_of_a_mapped_file},
        {"truncation_takes_private_copies", truncation_takes_private_copies},
        {"holes", holes},
        {"what_stays", what_stays},
        {"names_of_open_files", names_of_open_files},
        {"a_large_folder", a_large_folder},
        {"synced_writes", synced_writes},
        {"durable_writes", durable_writes},
        {"stores_move_times", stores_move_times},
        {"reading_twice", reading_twice},
        {"random_and_sequential_reading", random_and_sequential_reading},
        {"writing_meets_syncing", writing_meets_syncing},
        {"mounting", mounting},
        {"a_folder_elsewhere", a_folder_elsewhere},
        {"a_disk_closes_once", a_disk_closes_once},
        {"remounting", remounting},
        {"advice_on_files", advice_on_files},
        {"ranges_are_synced", ranges_are_synced},
        {"programs_run_from_it", programs_run_from_it},
        {"a_full_disk", a_full_disk},
        {"a_full_disk_behind_the_end", a_full_disk_behind_the_end},
        {"stores_to_a_growing_file", stores_to_a_growing_file},
        {"a_page_with_room_in_parts", a_page_with_room_in_parts},
        {"reserving_beside_what_was_written", reserving_beside_what_was_written},
        {"deleted_files_make_room", deleted_files_make_room},
        {"reserved_in_deleted_files", reserved_in_deleted_files},
        {"marked_files", marked_files},
        {"room_for_root", room_for_root},
        {"long_links", long_links},
    };
    return RUN(cases, argc, argv);
}
