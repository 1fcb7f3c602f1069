// A folder of the host, shown inside: what holds of it as of any other file system. Works in the folder that it is
// started in, and leaves files there for the host to look at.
#include "check.h"
#include <dirent.h>
#include <sys/statfs.h>

enum { RW = PROT_READ | PROT_WRITE, MIB = 1 << 20 };

static char block[MIB];

static int made(const char *name, const char *text) {
    int fd = open(name, O_RDWR | O_CREAT | O_EXCL, 0644);
    NEED(fd >= 0);
    NEED(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    return fd;
}

static int holds(const char *name, const char *text) {
    char found[256] = "";
    int fd = open(name, O_RDONLY);
    if (fd < 0) return 0;
    ssize_t length = read(fd, found, sizeof found - 1);
    close(fd);
    return length == (ssize_t)strlen(text) && !memcmp(found, text, length);
}

static void bytes_come_back(void) {
    int fd = made("bytes", "");
    // Sparse, across pages, and over what is there.
    CHECK(pwrite(fd, "end", 3, 3 * PAGE - 1) == 3 && pwrite(fd, "middle", 6, PAGE - 2) == 6 && pwrite(fd, "MI", 2, PAGE - 2) == 2);
    struct stat about;
    CHECK(!fstat(fd, &about) && about.st_size == 3 * PAGE + 2 && about.st_nlink == 1 && S_ISREG(about.st_mode));
    char found[3 * PAGE + 3];
    CHECK(pread(fd, found, sizeof found, 0) == 3 * PAGE + 2);
    CHECK(!memcmp(found + PAGE - 2, "MIddle", 6) && !memcmp(found + 3 * PAGE - 1, "end", 3) && !found[0] && !found[2 * PAGE]);
    CHECK(pread(fd, found, 8, 3 * PAGE + 2) == 0);
    CHECK(!ftruncate(fd, PAGE) && !ftruncate(fd, 2 * PAGE) && pread(fd, found, sizeof found, 0) == 2 * PAGE);
    CHECK(!memcmp(found + PAGE - 2, "MI", 2) && !found[PAGE] && !found[PAGE + 1]);
    CHECK(!fsync(fd) && !fdatasync(fd));
    FAILS(pwrite(fd, (void *)8, 8, 0), EFAULT);
    close(fd);
    CHECK(!truncate("bytes", 3) && !stat("bytes", &about) && about.st_size == 3);
}

static void appends_go_behind_the_end(void) {
    int one = made("appended", ""), other = open("appended", O_WRONLY | O_APPEND);
    NEED(other >= 0);
    CHECK(write(one, "a", 1) == 1 && write(other, "b", 1) == 1 && pwrite(one, "c", 1, 2) == 1 && write(other, "d", 1) == 1);
    CHECK(holds("appended", "abcd"));
    close(one);
    close(other);
}

static void stores_reach_the_file(void) {
    int fd = made("synced", "");
    CHECK(!ftruncate(fd, 2 * PAGE + 3));
    char *map = mmap(0, 3 * PAGE, RW, MAP_SHARED, fd, 0);
    NEED(map != MAP_FAILED);
    map[PAGE] = 'x';
    char found;
    CHECK(pread(fd, &found, 1, PAGE) == 1 && found == 'x');
    CHECK(pwrite(fd, "y", 1, 2 * PAGE) == 1 && map[2 * PAGE] == 'y');
    CHECK(!msync(map, 3 * PAGE, MS_SYNC));
    map[0] = 'z';
    CHECK(!munmap(map, 3 * PAGE) && !close(fd));
    // Closed before it is unmapped.
    fd = made("stored", "");
    CHECK(!ftruncate(fd, PAGE));
    map = mmap(0, PAGE, RW, MAP_SHARED, fd, 0);
    NEED(map != MAP_FAILED);
    close(fd);
    strcpy(map, "stored by a mapping");
    // The rest is the end's.
}

static void a_private_mapping_keeps_to_itself(void) {
    int fd = made("private", "mine");
    char *map = mmap(0, PAGE, RW, MAP_PRIVATE, fd, 0);
    NEED(map != MAP_FAILED);
    map[0] = 'M';
    CHECK(!close(fd) && !munmap(map, PAGE) && holds("private", "mine"));
}

static void a_file_outlives_its_name(void) {
    int fd = made("nameless", "0123456789");
    CHECK(!unlink("nameless"));
    struct stat about;
    CHECK(!fstat(fd, &about) && about.st_nlink == 0 && about.st_size == 10);
    CHECK(!ftruncate(fd, 4) && pwrite(fd, "x", 1, 9) == 1);
    char found[11];
    CHECK(pread(fd, found, sizeof found, 0) == 10 && !memcmp(found, "0123\0\0\0\0\0x", 10));
    char *map = mmap(0, PAGE, RW, MAP_SHARED, fd, 0);
    NEED(map != MAP_FAILED);
    CHECK(map[9] == 'x' && (map[0] = '!') && !fsync(fd));
    int again = made("nameless", "another");
    CHECK(!fstat(fd, &about) && about.st_nlink == 0 && about.st_size == 10 && map[0] == '!');
    close(fd);
    close(again);
    CHECK(map[9] == 'x' && !munmap(map, PAGE) && holds("nameless", "another") && !unlink("nameless"));
}

static void names_are_moved_and_taken(void) {
    close(made("one", "1"));
    close(made("two", "2"));
    struct stat one, two;
    CHECK(!stat("one", &one) && !rename("one", "two") && !stat("two", &two) && one.st_ino == two.st_ino && holds("two", "1"));
    FAILS(stat("one", &one), ENOENT);
    CHECK(!link("two", "three") && !stat("three", &two) && two.st_nlink == 2 && !unlink("two"));
    CHECK(holds("three", "1") && !stat("three", &two) && two.st_nlink == 1);
    CHECK(!mkdir("above", 0755) && !mkdir("above/below", 0755) && !rename("three", "above/below/three"));
    FAILS(rename("above", "above/below/above"), EINVAL);
    FAILS(rmdir("above"), ENOTEMPTY);
    FAILS(unlink("above"), EISDIR);
    FAILS(rmdir("above/below/three"), ENOTDIR);
    FAILS(mkdir("above", 0755), EEXIST);
    FAILS(open("above", O_WRONLY), EISDIR);
    FAILS(open("above/below/three/x", O_RDONLY), ENOTDIR);
    int dir = open("above/below", O_RDONLY | O_DIRECTORY);
    CHECK(dir >= 0 && !rename("above", "moved"));
    char path[64], whole[256], here[256];
    snprintf(path, sizeof path, "/proc/self/fd/%d", dir);
    ssize_t length = readlink(path, whole, sizeof whole - 1);
    NEED(length > 0 && getcwd(here, sizeof here));
    whole[length] = 0;
    CHECK(!strncmp(whole, here, strlen(here)) && !strcmp(whole + strlen(here), "/moved/below"));
    CHECK(!unlinkat(dir, "three", 0) && !rmdir("moved/below"));
    FAILS(openat(dir, "new", O_WRONLY | O_CREAT, 0644), ENOENT);
    CHECK(!close(dir) && !rmdir("moved"));
    CHECK(!symlink("no/where", "link") && readlink("link", whole, sizeof whole) == 8 && !memcmp(whole, "no/where", 8));
    FAILS(stat("link", &one), ENOENT);
    CHECK(!lstat("link", &one) && S_ISLNK(one.st_mode) && !unlink("link"));
}

static void long_names(void) {
    char name[258];
    memset(name, 'n', sizeof name);
    name[256] = 0;
    FAILS(open(name, O_WRONLY | O_CREAT, 0644), ENAMETOOLONG);
    name[255] = 0;
    close(made(name, "long"));
    CHECK(holds(name, "long") && !unlink(name));
    close(made("a\nb \xff", "odd"));
    CHECK(holds("a\nb \xff", "odd") && !unlink("a\nb \xff"));
    static char target[4096];
    memset(target, 't', sizeof target - 1);
    CHECK(!symlink(target, "far"));
    static char found[4096];
    CHECK(readlink("far", found, sizeof found) == 4095 && !memcmp(found, target, 4095) && !unlink("far"));
    // A path of the greatest length, and then a folder below what no path names.
    static char path[4200];
    int home = open(".", O_RDONLY), depth = 0;
    name[200] = 0;
    for (; depth < 22; depth++) NEED(!mkdir(name, 0755) && !chdir(name));
    CHECK(!getcwd(path, 4096) && errno == ENAMETOOLONG);
    close(made("deep", "deep"));
    NEED(!fchdir(home));
    char *end = path;
    for (int i = 0; i < 19; i++) end += sprintf(end, "%s/", name);
    *end = 0;
    CHECK(!access(path, F_OK));
    while (end < path + 4095) *end++ = '/';
    *end = 0;
    CHECK(!access(path, F_OK));
    *end++ = '/';
    *end = 0;
    FAILS(access(path, F_OK), ENAMETOOLONG);
    for (int i = 0; i < depth; i++) NEED(!chdir(name));
    CHECK(!unlink("deep"));
    for (; depth; depth--) NEED(!chdir("..") && !rmdir(name));
    close(home);
}

static void two_thousand_files(void) {
    enum { COUNT = 2000 };
    NEED(!mkdir("many", 0755) && !chdir("many"));
    char name[32];
    for (int i = 0; i < COUNT; i++) {
        snprintf(name, sizeof name, "f%d", i);
        close(made(name, name));
    }
    static char seen[COUNT];
    int others = 0, found = 0;
    DIR *dir = opendir(".");
    NEED(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_name[0] != 'f') {
            others++;
            continue;
        }
        int n = atoi(entry->d_name + 1);
        CHECK(entry->d_type == DT_REG && !seen[n]);
        seen[n] = 1;
        found++;
        // Each other one is taken away while the folder is read.
        if (n % 2) CHECK(!unlink(entry->d_name));
    }
    CHECK(found == COUNT && others == 2);
    closedir(dir);
    CHECK(holds("f1998", "f1998"));
    FAILS(open("f1999", O_RDONLY), ENOENT);
    NEED(!chdir(".."));
}

static void large_files(void) {
    enum { BLOCKS = 64 };
    int fd = made("large", "");
    for (int i = 0; i < BLOCKS; i++) {
        for (unsigned n = 0; n < sizeof block / 4; n++) ((unsigned *)block)[n] = (i * 262144 + n) * 2654435761u;
        NEED(write(fd, block, sizeof block) == sizeof block);
    }
    CHECK(!close(fd));
    int drop = open("/proc/sys/vm/drop_caches", O_WRONLY);
    if (drop >= 0) CHECK(write(drop, "3", 1) == 1 || errno == EACCES);
    close(drop);
    fd = open("large", O_RDONLY);
    NEED(fd >= 0);
    int wrong = 0;
    for (int i = 0; i < BLOCKS; i++) {
        NEED(read(fd, block, sizeof block) == sizeof block);
        for (unsigned n = 0; n < sizeof block / 4; n++) wrong += ((unsigned *)block)[n] != (i * 262144 + n) * 2654435761u;
    }
    CHECK(!wrong && read(fd, block, 1) == 0);
    close(fd);
}

static void many_at_once(void) {
    enum { PROCESSES = 8, FILES = 25 };
    for (int p = 0; p < PROCESSES; p++) {
        if (fork()) continue;
        for (int i = 0; i < FILES; i++) {
            char name[32];
            snprintf(name, sizeof name, "p%d-%d", p, i);
            int fd = made(name, name);
            int shared = open("together", O_WRONLY | O_CREAT | O_APPEND, 0644);
            NEED(shared >= 0 && write(shared, "x", 1) == 1);
            close(shared);
            CHECK(!close(fd) && holds(name, name) && !unlink(name));
        }
        _exit(failed_checks != 0);
    }
    int status, bad = 0;
    while (wait(&status) > 0) bad += status != 0;
    struct stat about;
    CHECK(!bad && !stat("together", &about) && about.st_size == PROCESSES * FILES);
}

static void owners_and_times(void) {
    close(made("owned", "own"));
    CHECK(!chmod("owned", 0640));
    struct timespec times[] = {{1000000000, 5}, {1100000000, 7}};
    CHECK(!utimensat(AT_FDCWD, "owned", times, 0));
    struct stat about;
    CHECK(!stat("owned", &about) && (about.st_mode & 07777) == 0640 && about.st_mtim.tv_sec == 1100000000 && about.st_mtim.tv_nsec == 7);
    struct statfs space;
    CHECK(!statfs(".", &space) && space.f_blocks && space.f_bsize);
    int fd = open("owned", O_RDONLY);
    CHECK(lseek(fd, 0, SEEK_DATA) == 0 && lseek(fd, 0, SEEK_HOLE) == 3);
    FAILS(lseek(fd, 3, SEEK_DATA), ENXIO);
    close(fd);
    CHECK(!chmod(".", 0755));
    if (fork() == 0) {
        NEED(!setgid(1000) && !setuid(1000));
        FAILS(open("owned", O_RDONLY), EACCES);
        FAILS(open("new", O_WRONLY | O_CREAT, 0644), EACCES);
        FAILS(unlink("owned"), EACCES);
        FAILS(chmod("owned", 0777), EPERM);
        _exit(failed_checks != 0);
    }
    int status;
    CHECK(wait(&status) > 0 && !status);
    // QEMU may refuse to make one.
    if (mkfifo("fifo", 0600)) {
        CHECK(errno == ENXIO);
        return;
    }
    CHECK(!stat("fifo", &about) && S_ISFIFO(about.st_mode));
    fd = open("fifo", O_RDWR);
    char byte;
    CHECK(fd >= 0 && write(fd, "f", 1) == 1 && read(fd, &byte, 1) == 1 && byte == 'f' && !unlink("fifo"));
    close(fd);
}

static void programs_run_from_it(void) {
    int from = open("/proc/self/exe", O_RDONLY), to = open("program", O_WRONLY | O_CREAT, 0755);
    NEED(from >= 0 && to >= 0);
    ssize_t n;
    while ((n = read(from, block, sizeof block)) > 0) NEED(write(to, block, n) == n);
    close(from);
    close(to);
    CHECK(!unlink("private") || errno == ENOENT);
    if (fork() == 0) {
        execl("./program", "program", "a_private_mapping_keeps_to_itself", (char *)0);
        _exit(99);
    }
    int status;
    CHECK(wait(&status) > 0 && !status && !unlink("program"));
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"bytes_come_back", bytes_come_back},
        {"appends_go_behind_the_end", appends_go_behind_the_end},
        {"stores_reach_the_file", stores_reach_the_file},
        {"a_private_mapping_keeps_to_itself", a_private_mapping_keeps_to_itself},
        {"a_file_outlives_its_name", a_file_outlives_its_name},
        {"names_are_moved_and_taken", names_are_moved_and_taken},
        {"long_names", long_names},
        {"two_thousand_files", two_thousand_files},
        {"large_files", large_files},
        {"many_at_once", many_at_once},
        {"owners_and_times", owners_and_times},
        {"programs_run_from_it", programs_run_from_it},
    };
    return RUN(cases, argc, argv);
}
