// Files and folders, of the in-memory file system or at FILES_AT, and the devices: what the calls promise, and their errors.
#include "check.h"
#include <sys/eventfd.h>
#include <sched.h>
#include <sys/time.h>
#include <dirent.h>
#include <sys/mount.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>

#ifndef RENAME_EXCHANGE
enum { RENAME_NOREPLACE = 1, RENAME_EXCHANGE = 2 };
#endif

static void fresh(void) {
    char path[64];
    const char *at = getenv("FILES_AT");
    snprintf(path, sizeof path, "%s/files.%d", at ? at : "/tmp", getpid());
    NEED(!mkdir(path, 0755) && !chdir(path));
}

static int make(const char *name, const char *text) {
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
    NEED(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    return fd;
}

static int holds(const char *name, const char *text) {
    char bytes[256] = {0};
    int fd = open(name, O_RDONLY);
    ssize_t got = fd < 0 ? -1 : read(fd, bytes, sizeof bytes - 1);
    if (fd >= 0) close(fd);
    return got == (ssize_t)strlen(text) && !strcmp(bytes, text);
}

static void opening(void) {
    fresh();
    FAILS(open("none", O_RDONLY), ENOENT);
    FAILS(open("none/none", O_RDWR | O_CREAT, 0600), ENOENT);
    close(make("a", "text"));
    FAILS(open("a", O_CREAT | O_EXCL | O_RDWR, 0600), EEXIST);
    FAILS(open("a/b", O_RDONLY), ENOTDIR);
    FAILS(open("a", O_RDONLY | O_DIRECTORY), ENOTDIR);
    FAILS(open(".", O_WRONLY), EISDIR);
    FAILS(open("", O_RDONLY), ENOENT);
    char longest[300];
    memset(longest, 'n', sizeof longest - 1), longest[299] = 0;
    FAILS(open(longest, O_CREAT | O_RDWR, 0600), ENAMETOOLONG);
    int fd = open("a", O_RDONLY);
    FAILS(write(fd, "x", 1), EBADF);
    close(open("a", O_WRONLY | O_TRUNC));
    CHECK(holds("a", ""));
    fd = open("a", O_WRONLY | O_APPEND);
    CHECK(write(fd, "one", 3) == 3 && lseek(fd, 0, SEEK_SET) == 0 && write(fd, "two", 3) == 3 && holds("a", "onetwo"));
    int folder = open(".", O_RDONLY | O_DIRECTORY);
    CHECK((fd = openat(folder, "a", O_RDONLY)) >= 0);
    FAILS(read(folder, longest, 10), EISDIR);
}

static void reading_and_writing(void) {
    fresh();
    char bytes[32] = {0};
    int fd = make("a", "0123456789");
    CHECK(lseek(fd, 0, SEEK_CUR) == 10 && read(fd, bytes, 10) == 0);
    CHECK(lseek(fd, -4, SEEK_END) == 6 && read(fd, bytes, 10) == 4 && !memcmp(bytes, "6789", 4));
    CHECK(pread(fd, bytes, 3, 2) == 3 && !memcmp(bytes, "234", 3) && pwrite(fd, "XY", 2, 4) == 2);
    CHECK(holds("a", "0123XY6789"));
    FAILS(lseek(fd, -1, SEEK_SET), EINVAL);
    FAILS(pread(fd, bytes, 1, -1), EINVAL);
    // A hole reads as zeros and ends where it should.
    CHECK(pwrite(fd, "end", 3, 100000) == 3 && pread(fd, bytes, 5, 50000) == 5 && !memcmp(bytes, "\0\0\0\0", 5));
    struct stat about;
    CHECK(!fstat(fd, &about) && about.st_size == 100003);
    CHECK(!ftruncate(fd, 5) && lseek(fd, 0, SEEK_END) == 5 && !ftruncate(fd, 8));
    CHECK(pread(fd, bytes, 10, 0) == 8 && !memcmp(bytes, "0123X\0\0\0", 8));
    struct iovec parts[] = {{bytes, 2}, {bytes + 10, 3}};
    CHECK(preadv(fd, parts, 2, 1) == 5 && !memcmp(bytes, "12", 2) && !memcmp(bytes + 10, "3X\0", 3));
    CHECK(!posix_fallocate(fd, 0, 5000) && !fstat(fd, &about) && about.st_size == 5000);
    CHECK(!fsync(fd) && !fdatasync(fd));
    int copy = dup(fd);
    CHECK(lseek(fd, 3, SEEK_SET) == 3 && lseek(copy, 0, SEEK_CUR) == 3); // one offset
}

static void a_big_file(void) {
    fresh();
    int fd = open("big", O_RDWR | O_CREAT, 0600);
    static unsigned block[16384];
    for (unsigned part = 0; part < 128; part++) {
        for (int i = 0; i < 16384; i++) block[i] = part * 16384 + i;
        NEED(write(fd, block, sizeof block) == sizeof block);
    }
    for (unsigned at = 7; at < 128 * 16384; at += 99991) {
        unsigned value;
        CHECK(pread(fd, &value, 4, at * 4l) == 4 && value == at);
    }
    CHECK(!unlink("big"));
    struct stat about;
    CHECK(!fstat(fd, &about) && about.st_size == 8 << 20 && about.st_nlink == 0);
    CHECK(pread(fd, block, 4, 40) == 4 && block[0] == 10); // it lives as long as it is open
}

static void about_files(void) {
    fresh();
    struct stat about, again;
    int fd = make("a", "12345");
    CHECK(!stat("a", &about) && S_ISREG(about.st_mode) && (about.st_mode & 0777) == 0644 && about.st_size == 5);
    CHECK(about.st_nlink == 1 && about.st_uid == 0 && about.st_blksize >= 512 && about.st_ino);
    CHECK(!fstat(fd, &again) && again.st_ino == about.st_ino && again.st_dev == about.st_dev);
    CHECK(!chmod("a", 0600) && !stat("a", &about) && (about.st_mode & 0777) == 0600);
    CHECK(!chown("a", 12, 34) && !stat("a", &about) && about.st_uid == 12 && about.st_gid == 34);
    struct timespec times[2] = {{1000, 5}, {2000, 6}};
    CHECK(!utimensat(AT_FDCWD, "a", times, 0) && !stat("a", &about) && about.st_atime == 1000 && about.st_mtime == 2000);
    CHECK(write(fd, "x", 1) == 1 && !stat("a", &about) && about.st_mtime > 1000000);
    CHECK(umask(077) == 022);
    close(make("b", ""));
    CHECK(!stat("b", &about) && (about.st_mode & 0777) == 0600);
    CHECK(!access("a", R_OK) && !access("a", F_OK));
    FAILS(access("none", F_OK), ENOENT);
    CHECK(!stat("/dev/null", &about) && S_ISCHR(about.st_mode) && !stat(".", &about) && S_ISDIR(about.st_mode));
}

static void names(void) {
    fresh();
    close(make("a", "A")), close(make("b", "B"));
    struct stat before, after;
    stat("a", &before);
    CHECK(!rename("a", "c") && holds("c", "A") && !stat("c", &after) && before.st_ino == after.st_ino);
    FAILS(access("a", F_OK), ENOENT);
    CHECK(!rename("c", "b") && holds("b", "A"));
    CHECK(!mkdir("d", 0755) && !mkdir("d/e", 0755) && !rename("b", "d/e/f") && holds("d/e/f", "A"));
    FAILS(rename("d", "d/e/g"), EINVAL);
    FAILS(rename("none", "x"), ENOENT);
    close(make("a", "A"));
    FAILS(rename("a", "d"), EISDIR);
    FAILS(rename("d", "a"), ENOTDIR);
    CHECK(!mkdir("empty", 0755) && !rename("d", "empty") && holds("empty/e/f", "A"));
    CHECK(!link("a", "hard") && !stat("hard", &after) && after.st_nlink == 2 && !unlink("a") && holds("hard", "A"));
    FAILS(unlink("empty"), EISDIR);
    FAILS(unlink("none"), ENOENT);
}

static void folders(void) {
    fresh();
    char path[256];
    CHECK(!mkdir("d", 0755));
    FAILS(mkdir("d", 0755), EEXIST);
    FAILS(mkdir("x/y", 0755), ENOENT);
    close(make("d/file", ""));
    FAILS(rmdir("d"), ENOTEMPTY);
    FAILS(rmdir("d/file"), ENOTDIR);
    CHECK(!chdir("d") && getcwd(path, sizeof path) && !strcmp(path + strlen(path) - 2, "/d"));
    CHECK(!unlink("file") && !chdir("..") && !rmdir("d"));
    FAILS(chdir("d"), ENOENT);
    FAILS(syscall(SYS_getcwd, path, 3), ERANGE);
    CHECK(!chdir("/../..") && getcwd(path, sizeof path) && !strcmp(path, "/"));
    FAILS(rmdir("/tmp/."), EINVAL);
}

static void listing(void) {
    fresh();
    char name[32];
    enum { COUNT = 1000 };
    for (int i = 0; i < COUNT; i++) {
        snprintf(name, sizeof name, "entry-%d", i);
        int fd = open(name, O_CREAT | O_WRONLY, 0600);
        NEED(fd >= 0);
        close(fd);
    }
    static char seen[COUNT];
    int dots = 0, others = 0;
    DIR *folder = opendir(".");
    NEED(folder);
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (entry->d_name[0] == '.') dots++;
        else if (entry->d_type == DT_REG && !seen[atoi(entry->d_name + 6)]) seen[atoi(entry->d_name + 6)] = 1, others++;
    }
    CHECK(dots == 2 && others == COUNT);
    // Removing while listing misses nothing.
    rewinddir(folder);
    for (struct dirent *entry; (entry = readdir(folder));) if (entry->d_name[0] != '.') CHECK(!unlink(entry->d_name));
    closedir(folder);
    folder = opendir(".");
    int left = 0;
    while (readdir(folder)) left++;
    CHECK(left == 2);
}

static void symbolic_links(void) {
    fresh();
    char target[64] = {0};
    struct stat about;
    close(make("file", "data"));
    CHECK(!symlink("file", "link") && holds("link", "data") && readlink("link", target, 64) == 4 && !strcmp(target, "file"));
    CHECK(!lstat("link", &about) && S_ISLNK(about.st_mode) && about.st_size == 4 && !stat("link", &about) && S_ISREG(about.st_mode));
    CHECK(!symlink("loop", "loop"));
    FAILS(open("loop", O_RDONLY), ELOOP);
    FAILS(open("link", O_RDONLY | O_NOFOLLOW), ELOOP);
    CHECK(!symlink("none", "dangling"));
    FAILS(open("dangling", O_RDONLY), ENOENT);
    close(make("dangling", "made"));
    CHECK(holds("none", "made"));
    CHECK(!mkdir("d", 0755) && !symlink("../file", "d/up") && holds("d/up", "data"));
    CHECK(!unlink("link") && holds("file", "data"));
    FAILS(readlink("file", target, 64), EINVAL);
    FAILS(symlink("x", "file"), EEXIST);
}

static void devices(void) {
    char bytes[64];
    int null = open("/dev/null", O_RDWR), zero = open("/dev/zero", O_RDWR), full = open("/dev/full", O_RDWR);
    CHECK(write(null, "x", 1) == 1 && read(null, bytes, 1) == 0);
    memset(bytes, 1, 64);
    CHECK(read(zero, bytes, 64) == 64 && !bytes[0] && !bytes[63]);
    FAILS(write(full, "x", 1), ENOSPC);
    int random = open("/dev/urandom", O_RDONLY);
    char other[64];
    CHECK(read(random, bytes, 64) == 64 && read(random, other, 64) == 64 && memcmp(bytes, other, 64));
    char *at = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, zero, 0);
    CHECK(at != MAP_FAILED && at[5] == 0);
    CHECK(open("/dev/tty", O_RDWR) >= 0 || errno == ENXIO);
}

// A name exchanged with itself, or with another of the same file, stays one name.
static void exchanges_of_one_file(void) {
    fresh();
    NEED(!mkdir("x", 0755) && !close(make("x/a", "A")) && !link("x/a", "x/b"));
    CHECK(!syscall(SYS_renameat2, AT_FDCWD, "x/a", AT_FDCWD, "x/a", RENAME_EXCHANGE));
    CHECK(!syscall(SYS_renameat2, AT_FDCWD, "x/a", AT_FDCWD, "x/b", RENAME_EXCHANGE));
    FAILS(syscall(SYS_renameat2, AT_FDCWD, "x/a", AT_FDCWD, "x/a", RENAME_NOREPLACE), EEXIST);
    CHECK(holds("x/a", "A") && holds("x/b", "A"));
    CHECK(!unlink("x/a") && !unlink("x/b") && !rmdir("x"));
}

// What stands where the running program stood is not the program.
static void replaced_program(void) {
    struct stat program, running;
    int fd;
    NEED(!rename("run", "ran") && !symlink("/etc/hostname", "run") && !stat("ran", &program));
    CHECK((fd = open("/proc/self/exe", O_RDONLY)) >= 0 && !fstat(fd, &running));
    CHECK(running.st_ino == program.st_ino && running.st_dev == program.st_dev);
    CHECK(!unlink("run") && !unlink("ran"));
}

static void a_running_program_is_not_replaced(void) {
    fresh();
    static char bytes[1 << 20];
    int from = open("/proc/self/exe", O_RDONLY), to = open("run", O_CREAT | O_WRONLY, 0755);
    ssize_t length = read(from, bytes, sizeof bytes);
    NEED(length > 0 && write(to, bytes, length) == length && !close(to) && !close(from));
    int status;
    pid_t child = fork();
    if (!child) execl("./run", "run", "replaced", (char *)0), _exit(9);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
}

static void proc_files(void) {
    char text[4096], wanted[64];
    int fd = open("/proc/self/status", O_RDONLY);
    ssize_t got = read(fd, text, sizeof text - 1);
    NEED(got > 0);
    text[got] = 0;
    snprintf(wanted, sizeof wanted, "Pid:\t%d\n", getpid());
    CHECK(strstr(text, wanted) && strstr(text, "VmRSS:"));
    fd = open("/proc/self/cmdline", O_RDONLY);
    CHECK(read(fd, text, sizeof text) > 0 && strstr(text, "files"));
    got = readlink("/proc/self/exe", text, sizeof text - 1);
    text[got > 0 ? got : 0] = 0;
    CHECK(strstr(text, "/bin/files"));
    snprintf(wanted, sizeof wanted, "/proc/%d", getpid());
    CHECK(!access(wanted, F_OK));
    got = readlink("/proc/self", text, sizeof text - 1);
    text[got > 0 ? got : 0] = 0;
    CHECK(atoi(text) == getpid());
}

// --- who waits for a lock --------------------------------------------------------------------------------------------------

static int locked_file, told_by[2];

static int lock(int command, short type, off_t start, off_t length) {
    struct flock range = {.l_type = type, .l_start = start, .l_len = length};
    return fcntl(locked_file, command, &range);
}

// A process that gets a lock as soon as it can, says so, and has it until it is killed.
static pid_t gets_lock(char name, short type, off_t start, off_t length) {
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        if (lock(F_SETLKW, type, start, length) || write(told_by[1], &name, 1) != 1) _exit(1);
        for (;;) pause();
    }
    usleep(30000);
    return child;
}

// Who has got one since, by name.
static void got(const char *names) {
    char said[16];
    usleep(50000);
    ssize_t count = read(told_by[0], said, sizeof said);
    if (count < 0) count = 0;
    int is_so = count == (ssize_t)strlen(names);
    for (int i = 0; i < count; i++) is_so &= strchr(names, said[i]) != 0;
    if (!CHECK(is_so)) printf("  not %s but %.*s\n", names, (int)count, said);
}

static void ends(pid_t child) {
    NEED(!kill(child, SIGKILL) && waitpid(child, 0, 0) == child);
}

static void locks_go_to_who_waits(void) {
    locked_file = open("/tmp/locked", O_CREAT | O_RDWR, 0600);
    NEED(locked_file >= 0 && !pipe2(told_by, O_NONBLOCK));
    pid_t a = gets_lock('a', F_WRLCK, 0, 10), b = gets_lock('b', F_WRLCK, 50, 10);
    got("ab");
    // The first that waits still can't have all that it wants: those behind it aren't kept waiting.
    pid_t c = gets_lock('c', F_WRLCK, 0, 100), d = gets_lock('d', F_WRLCK, 0, 10);
    pid_t e = gets_lock('e', F_RDLCK, 5, 5), f = gets_lock('f', F_RDLCK, 8, 50);
    got("");
    ends(a);
    got("d");
    ends(d);
    got("e");
    ends(b);
    got("f");
    ends(e);
    got("");
    ends(f);
    got("c");
    // All that share it get it at once, beside those who don't.
    a = gets_lock('A', F_RDLCK, 0, 0), b = gets_lock('B', F_WRLCK, 0, 0);
    d = gets_lock('D', F_RDLCK, 1, 1), e = gets_lock('E', F_RDLCK, 0, 0);
    got("");
    ends(c);
    got("ADE");
    // One that gives up isn't missed.
    ends(b), ends(a), ends(d);
    b = gets_lock('b', F_WRLCK, 0, 0), c = gets_lock('c', F_WRLCK, 0, 0);
    ends(b);
    ends(e);
    got("c");
    ends(c);
    // An exclusive lock becomes a shared one, or is given back in part.
    NEED(!lock(F_SETLK, F_WRLCK, 0, 100));
    a = gets_lock('a', F_RDLCK, 10, 10), b = gets_lock('b', F_WRLCK, 90, 5);
    got("");
    NEED(!lock(F_SETLK, F_RDLCK, 0, 100));
    got("a");
    NEED(!lock(F_SETLK, F_UNLCK, 80, 100));
    got("b");
    ends(a), ends(b);
    close(told_by[0]), close(told_by[1]), close(locked_file);
    NEED(!unlink("/tmp/locked"));
}

enum { LOCKERS = 24, LOCK_ROUNDS = 150, LOCK_BYTES = 32 };

static void interrupts(int signal) { (void)signal; }

// Takes any range again and again; sometimes a timer cuts the wait short.
static void locks_at_random(unsigned seed, int *holders) {
    NEED(!sigaction(SIGALRM, &(struct sigaction){.sa_handler = interrupts}, 0));
    for (int round = 0; round < LOCK_ROUNDS; round++) {
        int start = rand_r(&seed) % LOCK_BYTES, length = 1 + rand_r(&seed) % (LOCK_BYTES - start);
        int is_exclusive = rand_r(&seed) % 2, mine = is_exclusive ? 1000 : 1;
        struct itimerval soon = {.it_value.tv_usec = rand_r(&seed) % 4 ? 0 : 1 + rand_r(&seed) % 3000};
        setitimer(ITIMER_REAL, &soon, 0);
        if (lock(F_SETLKW, is_exclusive ? F_WRLCK : F_RDLCK, start, length)) {
            CHECK(errno == EINTR);
            continue;
        }
        for (int i = start; i < start + length; i++) {
            int others = __atomic_fetch_add(&holders[i], mine, __ATOMIC_SEQ_CST);
            CHECK(is_exclusive ? others == 0 : others < 1000);
        }
        if (rand_r(&seed) % 2) sched_yield();
        for (int i = start; i < start + length; i++) __atomic_fetch_sub(&holders[i], mine, __ATOMIC_SEQ_CST);
        NEED(!lock(F_SETLK, F_UNLCK, start, length));
    }
}

static void many_lock_at_random(void) {
    int *holders = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    locked_file = open("/tmp/locked", O_CREAT | O_RDWR, 0600);
    NEED(holders != MAP_FAILED && locked_file >= 0);
    for (int i = 0; i < LOCKERS; i++) {
        pid_t child = fork();
        NEED(child >= 0);
        if (child == 0) {
            locks_at_random(i + 1, holders);
            fflush(stdout);
            _exit(failed_checks != 0);
        }
    }
    int status;
    for (int i = 0; i < LOCKERS; i++) CHECK(wait(&status) > 0 && status == 0);
    for (int i = 0; i < LOCK_BYTES; i++) CHECK(holders[i] == 0);
    close(locked_file), munmap(holders, PAGE);
    NEED(!unlink("/tmp/locked"));
}

static int raced, closed_first;
static void *closes(void *go) {
    char byte;
    NEED(read(*(int *)go, &byte, 1) == 1);
    usleep(20000);
    close(raced);
    closed_first = 1;
    return 0;
}

// A lock that is waited for, of a descriptor that another thread closes meanwhile, is not had.
static void locks_beside_a_close(void) {
    fresh();
    int start[2], end[2], go[2], status;
    NEED(!pipe(start) && !pipe(end) && !pipe(go));
    char byte;
    int fd = open("locked", O_RDWR | O_CREAT, 0600);
    NEED(fd >= 0);
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    pid_t holder = fork();
    if (!holder) {
        NEED(!fcntl(fd, F_SETLK, &whole) && write(start[1], "c", 1) == 1);
        _exit(read(end[0], &byte, 1) != 1);
    }
    NEED(read(start[0], &byte, 1) == 1 && (raced = dup(fd)) >= 0);
    pid_t ender = fork();
    if (!ender) {
        usleep(100000);
        _exit(write(end[1], "e", 1) != 1);
    }
    pthread_t thread;
    NEED(!pthread_create(&thread, 0, closes, &go[0]) && write(go[1], "g", 1) == 1);
    FAILS(fcntl(raced, F_SETLKW, &whole), EBADF);
    CHECK(waitpid(holder, &status, 0) == holder && status == 0 && waitpid(ender, &status, 0) == ender && status == 0);
    CHECK(!pthread_join(thread, 0) && closed_first);
    pid_t other = fork();
    if (!other) _exit(fcntl(fd, F_SETLK, &whole) != 0);
    CHECK(waitpid(other, &status, 0) == other && status == 0);
    close(fd);
}

static volatile int stops;
static int written_to;
static void *writes_much(void *from) {
    while (!stops) if (pwrite(written_to, from, 8 << 20, 0) < 0) break;
    return 0;
}

// Sealing waits for writers, and nobody for the one who seals.
static void sealing_beside_writes(void) {
    pthread_t writers[2];
    struct stat about;
    char *from = mmap(0, 8 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    written_to = memfd_create("written", MFD_ALLOW_SEALING);
    NEED(from != MAP_FAILED && written_to >= 0);
    for (int i = 0; i < 2; i++) NEED(!pthread_create(&writers[i], 0, writes_much, from));
    for (int i = 0; i < 200; i++) CHECK(!fcntl(written_to, F_ADD_SEALS, 0) && !fstat(written_to, &about));
    CHECK(!fcntl(written_to, F_ADD_SEALS, F_SEAL_WRITE));
    stops = 1;
    for (int i = 0; i < 2; i++) CHECK(!pthread_join(writers[i], 0));
    close(written_to);
}

enum { NOEXEC_SEAL = 8, SEAL_FUTURE_WRITE = 16, SEAL_EXEC = 32 };

// A file in memory that never runs, and one that always may and so never changes.
static void sealed_against_running(void) {
    int fd = memfd_create("data", NOEXEC_SEAL);
    // Linux has it since 6.3.
    if (fd < 0 && errno == EINVAL && access("/proc/self/uvm", F_OK)) return;
    struct stat about;
    NEED(fd >= 0 && !fstat(fd, &about));
    CHECK((about.st_mode & 07777) == 0666 && fcntl(fd, F_GET_SEALS) == SEAL_EXEC);
    FAILS(fchmod(fd, 0777), EPERM);
    CHECK(!fchmod(fd, 0600) && write(fd, "x", 1) == 1);
    close(fd);
    fd = memfd_create("code", MFD_ALLOW_SEALING);
    NEED(fd >= 0 && write(fd, "code", 4) == 4);
    CHECK(!fcntl(fd, F_ADD_SEALS, SEAL_EXEC));
    CHECK(fcntl(fd, F_GET_SEALS) == (SEAL_EXEC | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | SEAL_FUTURE_WRITE));
    FAILS(fchmod(fd, 0600), EPERM);
    FAILS(write(fd, "x", 1), EPERM);
    CHECK(!fchmod(fd, 0733));
    close(fd);
}

// Calls that are about a name don't go through a link that has it, though a slash follows.
static void a_slash_behind_a_link(void) {
    fresh();
    NEED(!mkdir("empty", 0755) && !mkdir("full", 0755) && !mkdir("full/x", 0755) && !close(open("file", O_CREAT | O_RDWR, 0644)));
    NEED(!symlink("empty", "e") && !symlink("full", "f") && !symlink("made", "m") && !symlink("file", "l"));
    FAILS(rename("f/", "taken"), ENOTDIR);
    FAILS(rename("full", "e/"), ENOTDIR);
    FAILS(rmdir("e/"), ENOTDIR);
    FAILS(mkdir("m/", 0700), EEXIST);
    FAILS(unlink("l/"), ENOTDIR);
    FAILS(mknod("m/", S_IFIFO | 0600, 0), EEXIST);
    FAILS(symlink("x", "m/"), EEXIST);
    FAILS(link("file", "m/"), EEXIST);
    CHECK(!access("full/x", F_OK) && !access("empty", F_OK) && access("made", F_OK) == -1 && !access("file", F_OK));
    // Those that are about what it leads to do.
    struct stat about;
    CHECK(!lstat("e/", &about) && S_ISDIR(about.st_mode) && !lstat("e", &about) && S_ISLNK(about.st_mode));
    int fd = open("f/", O_RDONLY | O_DIRECTORY);
    CHECK(fd >= 0 && !close(fd));
    CHECK(!rename("f", "taken") && !unlink("taken"));
}

static void unusual_ways_to_open(void) {
    fresh();
    char path[64], byte = 'x';
    struct stat about;
    int fd = open("file", O_CREAT | O_RDWR, 0644);
    NEED(fd >= 0 && write(fd, "text", 4) == 4);
    // With neither right, for ioctl.
    int neither = open("file", O_ACCMODE);
    NEED(neither >= 0);
    FAILS(read(neither, &byte, 1), EBADF);
    FAILS(write(neither, &byte, 1), EBADF);
    CHECK(!fstat(neither, &about) && about.st_size == 4 && !close(neither));
    snprintf(path, sizeof path, "/proc/self/fd/%d/", fd);
    FAILS(open(path, O_RDONLY), ENOTDIR);
    close(fd);
    fd = open("file", O_RDONLY | O_TRUNC);
    CHECK(fd >= 0 && !fstat(fd, &about) && about.st_size == 0 && !close(fd));
    FAILS(open("new", O_CREAT | O_DIRECTORY | O_RDWR, 0644), EINVAL);
    FAILS(open(".", O_RDONLY | O_TRUNC), EISDIR);
    CHECK(access("new", F_OK) == -1);
    // A link that was named is not what it leads to.
    NEED(!symlink("file", "link") && (fd = open("link", O_PATH | O_NOFOLLOW)) >= 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    FAILS(open(path, O_RDWR), ELOOP);
    close(fd);
    fd = eventfd(0, 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    NEED(fd >= 0);
    FAILS(open(path, O_RDWR), ENXIO);
    close(fd);
    // What is not known is refused, by the call that says so.
    unsigned long how[4] = {O_RDONLY | 1 << 30, 0, 0, 0};
    FAILS(syscall(437, AT_FDCWD, "file", how, 24), EINVAL);
    how[0] = O_RDONLY;
    CHECK((fd = syscall(437, AT_FDCWD, "file", how, 32)) >= 0 && !close(fd));
    how[3] = 1;
    FAILS(syscall(437, AT_FDCWD, "file", how, 32), E2BIG);
    how[1] = 0600;
    FAILS(syscall(437, AT_FDCWD, "file", how, 24), EINVAL);
    how[0] = O_PATH | O_TRUNC, how[1] = 0;
    FAILS(syscall(437, AT_FDCWD, "file", how, 24), EINVAL);
    // A file without a name is made in one way.
    FAILS(open(".", O_TMPFILE | O_CREAT | O_RDWR, 0600), EINVAL);
    FAILS(open(".", (O_TMPFILE & ~O_DIRECTORY) | O_RDWR, 0600), EINVAL);
    FAILS(open(".", O_TMPFILE | O_RDONLY, 0600), EINVAL);
    CHECK((fd = open(".", O_TMPFILE | O_RDWR, 0600)) >= 0 ? !close(fd) : errno == EOPNOTSUPP);
}

static int lock_bytes(int fd, int command, int type, off_t start, off_t length) {
    struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length};
    return fcntl(fd, command, &range);
}

// The last of several processes that would wait for each other in a ring is told.
static void processes_that_wait_for_each_other(void) {
    enum { RING = 4 };
    fresh();
    int fd = open("ring", O_RDWR | O_CREAT, 0600), ready[2], status;
    NEED(fd >= 0 && !pipe(ready));
    pid_t others[RING];
    for (int i = 1; i < RING; i++) {
        others[i] = fork();
        if (!others[i]) {
            NEED(!lock_bytes(fd, F_SETLK, F_WRLCK, i, 1) && write(ready[1], "r", 1) == 1);
            usleep(200000);
            _exit(lock_bytes(fd, F_SETLKW, F_WRLCK, i - 1, 1) != 0);
        }
    }
    NEED(!lock_bytes(fd, F_SETLK, F_WRLCK, 0, 1));
    char byte;
    for (int i = 1; i < RING; i++) NEED(read(ready[0], &byte, 1) == 1);
    usleep(600000);
    FAILS(lock_bytes(fd, F_SETLKW, F_WRLCK, RING - 1, 1), EDEADLK);
    // What was had is had still, and the others go on when it is given back.
    NEED(!lock_bytes(fd, F_SETLK, F_UNLCK, 0, 1));
    for (int i = 1; i < RING; i++) CHECK(waitpid(others[i], &status, 0) == others[i] && status == 0);
    close(fd);
}

static void locks_at_the_last_byte(void) {
    enum { BYTES = 6000 };
    const off_t LAST = 0x7fffffffffffffff;
    fresh();
    int fd = open("long", O_RDWR | O_CREAT, 0600), status;
    NEED(fd >= 0);
    CHECK(!lock_bytes(fd, F_SETLK, F_WRLCK, LAST, 1) && !lock_bytes(fd, F_SETLK, F_WRLCK, LAST - 1, 2));
    CHECK(!lock_bytes(fd, F_SETLK, F_WRLCK, LAST, 0) && !lock_bytes(fd, F_SETLK, F_WRLCK, 1, LAST));
    FAILS(lock_bytes(fd, F_SETLK, F_WRLCK, 2, LAST), EOVERFLOW);
    pid_t child = fork();
    if (!child) {
        struct flock found = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LAST, .l_len = 1};
        NEED(!fcntl(fd, F_GETLK, &found));
        _exit(!CHECK(found.l_type == F_WRLCK && found.l_start == 1 && found.l_len == 0 && found.l_pid == getppid()));
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    NEED(!lock_bytes(fd, F_SETLK, F_UNLCK, 0, 0));
    // Neighbours become one.
    int had = 0;
    while (had < BYTES && !lock_bytes(fd, F_SETLK, F_WRLCK, had, 1)) had++;
    CHECK(had == BYTES);
    close(fd);
}

static void copy_file(const char *from, const char *to) {
    static char block[1 << 16];
    int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0755);
    NEED(in >= 0 && out >= 0);
    for (ssize_t n; (n = read(in, block, sizeof block)) > 0;) NEED(write(out, block, n) == n);
    close(in), close(out);
}

// What runs isn't written to, and what is open for writing doesn't run.
static void programs_that_are_busy(void) {
    char *const none[] = {"busy", "-none", 0};
    int ready[2];
    char byte;
    fresh();
    copy_file("/proc/self/exe", "busy");
    int writer = open("busy", O_WRONLY);
    FAILS(execv("busy", none), ETXTBSY);
    close(writer);
    FAILS(truncate("/proc/self/exe", 0), ETXTBSY);
    FAILS(open("/proc/self/exe", O_RDWR), ETXTBSY);
    NEED(!pipe2(ready, O_CLOEXEC));
    pid_t child = fork();
    if (!child) {
        char *const sleeps[] = {"busy", "--sleep", 0};
        execv("busy", sleeps);
        _exit(1);
    }
    close(ready[1]);
    NEED(read(ready[0], &byte, 1) == 0);
    FAILS(open("busy", O_WRONLY), ETXTBSY);
    FAILS(open("busy", O_RDWR | O_CREAT, 0600), ETXTBSY);
    FAILS(truncate("busy", 0), ETXTBSY);
    FAILS(open("busy", O_RDONLY | O_TRUNC), ETXTBSY);
    int reader = open("busy", O_RDONLY);
    CHECK(reader >= 0);
    CHECK(!rename("busy", "busier") && !chmod("busier", 0700));
    kill(child, SIGKILL), waitpid(child, 0, 0);
    CHECK((writer = open("busier", O_WRONLY)) >= 0);
    close(writer);
    // A script is written before it runs, too.
    NEED((writer = open("script", O_WRONLY | O_CREAT | O_TRUNC, 0700)) >= 0 && write(writer, "#!/bin/sh\n", 10) == 10);
    FAILS(execv("script", none), ETXTBSY);
    close(writer);
    NEED(!mkfifo("busy-fifo", 0777));
    FAILS(execv("busy-fifo", none), EACCES);
    unlink("busier"), unlink("script"), unlink("busy-fifo");
    // Memory may be run while it is open for writing.
    static const char script[] = "#!/bin/busybox true\n";
    int memory = memfd_create("script", 0), status;
    NEED(memory >= 0 && write(memory, script, sizeof script - 1) == sizeof script - 1);
    if (!(child = fork())) {
        fexecve(memory, none, none);
        _exit(1);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    close(memory);
}

static void mistakes_of_renames(void) {
    fresh();
    NEED(!mkdir("on", 0755) && !mkdir("full", 0755));
    close(open("file", O_CREAT | O_WRONLY, 0600)), close(open("full/file", O_CREAT | O_WRONLY, 0600));
    NEED(!mount("none", "on", "tmpfs", 0, 0));
    close(open("on/file", O_CREAT | O_WRONLY, 0600));
    FAILS(rename("on", "off"), EBUSY);
    FAILS(rename("full", "on"), EBUSY);
    FAILS(rename("on/file", "other"), EXDEV);
    FAILS(rename("missing", "on/file"), EXDEV);
    FAILS(rename("on/.", "other"), EXDEV);
    FAILS(rename("missing", "."), EBUSY);
    FAILS(rename("missing", "on"), ENOENT);
    FAILS(rename("file", "on"), EISDIR);
    FAILS(rename("file", "missing/"), ENOTDIR);
    FAILS(syscall(SYS_renameat2, AT_FDCWD, "file", AT_FDCWD, "on", 1), EEXIST);
    FAILS(syscall(SYS_renameat2, AT_FDCWD, "file", AT_FDCWD, ".", 1), EEXIST);
    FAILS(syscall(SYS_renameat2, AT_FDCWD, "file", AT_FDCWD, "missing/", 2), ENOENT);
    FAILS(syscall(SYS_renameat2, AT_FDCWD, "full", AT_FDCWD, "file/", 2), ENOTDIR);
    FAILS(syscall(SYS_renameat2, AT_FDCWD, "full", AT_FDCWD, "on", 2), EBUSY);
    NEED(!umount("on"));
    CHECK(!syscall(SYS_renameat2, AT_FDCWD, "file", AT_FDCWD, "full/", 2));
    CHECK(!rename("on", "off"));
    char target[8];
    FAILS(readlink("", target, 8), ENOENT);
    FAILS(readlink("off", target, 8), EINVAL);
}

static void small_mistakes(void) {
    char bytes[16] = "";
    struct iovec piece = {bytes, 16};
    loff_t at = 0;
    int ends[2], folder;
    fresh();
    int file = make("file", "0123456789abcdefghij");
    NEED(!pipe(ends) && (folder = open(".", O_RDONLY)) >= 0);
    CHECK(syscall(SYS_preadv2, file, &piece, 1, 0l, 0l, 16) == 16);
    FAILS(syscall(SYS_preadv2, file, &piece, 1, 0l, 0l, 64), EOPNOTSUPP);
    FAILS(syscall(SYS_preadv2, ends[0], &piece, 1, 0l, 0l, 64), ESPIPE);
    FAILS(syscall(SYS_preadv2, folder, &piece, 1, 0l, 0l, 2), EOPNOTSUPP);
    FAILS(syscall(SYS_preadv2, folder, &piece, 1, 0l, 0l, 1), EISDIR);
    FAILS(syscall(SYS_pwritev2, folder, &piece, 1, 0l, 0l, 64), EBADF);
    FAILS(syscall(SYS_pwritev2, ends[1], &piece, 1, 0l, 0l, 64), ESPIPE);
    FAILS(fcntl(ends[0], F_SETPIPE_SZ, -1l), EINVAL);
    FAILS(fcntl(ends[0], F_SETPIPE_SZ, 1l << 31), ENOMEM);
    // A file is copied into itself where the two parts don't meet, and only between plain files.
    CHECK(lseek(file, 10, SEEK_SET) == 10 && syscall(SYS_copy_file_range, file, &at, file, 0, 4, 0) == 4 && at == 4);
    FAILS(syscall(SYS_copy_file_range, file, &at, file, 0, 40, 0), EINVAL);
    FAILS(syscall(SYS_copy_file_range, file, &at, ends[1], 0, 4, 0), EINVAL);
    FAILS(syscall(SYS_copy_file_range, ends[1], 0, file, 0, 4, 0), EINVAL);
    FAILS(syscall(SYS_copy_file_range, file, &at, folder, 0, 4, 0), EISDIR);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"opening", opening},
        {"reading_and_writing", reading_and_writing},
        {"a_big_file", a_big_file},
        {"about_files", about_files},
        {"names", names},
        {"folders", folders},
        {"listing", listing},
        {"symbolic_links", symbolic_links},
        {"devices", devices},
        {"exchanges_of_one_file", exchanges_of_one_file},
        {"a_running_program_is_not_replaced", a_running_program_is_not_replaced},
        {"proc_files", proc_files},
        {"locks_go_to_who_waits", locks_go_to_who_waits},
        {"many_lock_at_random", many_lock_at_random},
        {"locks_beside_a_close", locks_beside_a_close},
        {"sealed_against_running", sealed_against_running},
        {"sealing_beside_writes", sealing_beside_writes},
        {"a_slash_behind_a_link", a_slash_behind_a_link},
        {"unusual_ways_to_open", unusual_ways_to_open},
        {"processes_that_wait_for_each_other", processes_that_wait_for_each_other},
        {"locks_at_the_last_byte", locks_at_the_last_byte},
        {"programs_that_are_busy", programs_that_are_busy},
        {"mistakes_of_renames", mistakes_of_renames},
        {"small_mistakes", small_mistakes},
    };
    if (argc > 1 && !strcmp(argv[1], "--sleep")) return pause();
    if (argc > 1 && !strcmp(argv[1], "replaced")) {
        replaced_program();
        return failed_checks != 0;
    }
    return RUN(cases, argc, argv);
}
