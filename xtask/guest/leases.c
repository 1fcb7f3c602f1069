// Leases (F_SETLEASE): who may have one, what breaks it and how its holder is told; and locks of files: what F_GETLK answers, what
// neighbours become, what stands in /proc/locks.
#include "check.h"
#include <poll.h>
#include <pthread.h>
#include <sys/file.h>

static const char *path = "/leased";
static volatile sig_atomic_t count, signal_fd, signal_code;

static void note(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    count++, signal_fd = info->si_fd, signal_code = info->si_code;
}

static void catch(int signal) {
    struct sigaction action = {.sa_sigaction = note, .sa_flags = SA_SIGINFO | SA_RESTART};
    NEED(!sigaction(signal, &action, 0));
}

static int opened(int flags) {
    int fd = open(path, flags, 0600);
    NEED(fd >= 0);
    return fd;
}

static int fresh(int flags) {
    unlink(path);
    close(opened(O_CREAT | O_RDWR));
    return opened(flags);
}

static void set_break_time(int seconds) {
    char text[16];
    int fd = open("/proc/sys/fs/lease-break-time", O_WRONLY), length = sprintf(text, "%d\n", seconds);
    NEED(fd >= 0 && write(fd, text, length) == length);
    close(fd);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

// Whether another process can open the file so at once; else why not.
static int opens(int flags) {
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) _exit(open(path, flags | O_NONBLOCK) >= 0 ? 0 : errno);
    int status = -1;
    NEED(waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void leases_are_given(void) {
    int unnamed = memfd_create("unnamed", 0);
    NEED(unnamed >= 0);
    FAILS(fcntl(unnamed, F_SETLEASE, F_RDLCK), EAGAIN);
    close(unnamed);
    int fd = fresh(O_RDONLY);
    CHECK(fcntl(fd, F_GETLEASE) == F_UNLCK);
    FAILS(fcntl(fd, F_SETLEASE, F_UNLCK), EAGAIN);
    FAILS(fcntl(fd, F_SETLEASE, 17), EINVAL);
    CHECK(!fcntl(fd, F_SETLEASE, F_RDLCK) && fcntl(fd, F_GETLEASE) == F_RDLCK && fcntl(fd, F_GETOWN) == getpid());
    // Alone it may write.
    CHECK(!fcntl(fd, F_SETLEASE, F_WRLCK) && fcntl(fd, F_GETLEASE) == F_WRLCK);
    CHECK(!fcntl(fd, F_SETLEASE, F_RDLCK) && !fcntl(fd, F_SETLEASE, F_UNLCK) && fcntl(fd, F_GETLEASE) == F_UNLCK);
    int other = opened(O_RDONLY);
    FAILS(fcntl(fd, F_SETLEASE, F_WRLCK), EAGAIN);
    CHECK(!fcntl(fd, F_SETLEASE, F_RDLCK) && !fcntl(other, F_SETLEASE, F_RDLCK));
    FAILS(fcntl(fd, F_SETLEASE, F_WRLCK), EAGAIN);
    close(other), close(fd);
    // A file that is open for writing bears no reader's lease, its own either.
    fd = opened(O_RDWR);
    FAILS(fcntl(fd, F_SETLEASE, F_RDLCK), EAGAIN);
    CHECK(!fcntl(fd, F_SETLEASE, F_WRLCK));
    int dir = open("/", O_RDONLY), place = open(path, O_PATH), ends[2];
    NEED(!pipe(ends));
    FAILS(fcntl(dir, F_SETLEASE, F_RDLCK), EINVAL);
    FAILS(fcntl(ends[0], F_SETLEASE, F_RDLCK), EINVAL);
    FAILS(fcntl(place, F_SETLEASE, F_RDLCK), EBADF);
    close(fd);
    // Another user has no say.
    fd = opened(O_RDONLY);
    chmod(path, 0666);
    pid_t child = fork();
    if (child == 0) {
        NEED(!setgid(4711) && !setuid(4711));
        FAILS(fcntl(fd, F_SETLEASE, F_RDLCK), EACCES);
        FAILS(fcntl(fd, F_SETLEASE, F_UNLCK), EACCES);
        _exit(failed_checks != 0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void opens_break_leases(void) {
    catch(SIGIO);
    int fd = fresh(O_RDONLY);
    NEED(!fcntl(fd, F_SETLEASE, F_RDLCK));
    CHECK(opens(O_RDONLY) == 0 && count == 0 && opens(O_PATH) == 0);
    CHECK(opens(O_WRONLY) == EWOULDBLOCK && count == 1 && fcntl(fd, F_GETLEASE) == F_UNLCK);
    // It was told once.
    CHECK(opens(O_RDWR) == EWOULDBLOCK && count == 1);
    // No new reader's lease while another waits to write.
    int other = opened(O_RDONLY);
    FAILS(fcntl(other, F_SETLEASE, F_RDLCK), EAGAIN);
    close(other);
    CHECK(!fcntl(fd, F_SETLEASE, F_UNLCK) && opens(O_WRONLY) == 0);
    // A writer's lease becomes a reader's one, or goes.
    catch(SIGRTMIN);
    NEED(!fcntl(fd, F_SETSIG, SIGRTMIN) && !fcntl(fd, F_SETLEASE, F_WRLCK));
    count = 0;
    CHECK(opens(O_RDONLY) == EWOULDBLOCK && count == 1 && signal_fd == fd && signal_code == POLL_MSG);
    CHECK(fcntl(fd, F_GETLEASE) == F_RDLCK && opens(O_RDONLY) == EWOULDBLOCK && count == 1);
    CHECK(opens(O_WRONLY) == EWOULDBLOCK && count == 2 && fcntl(fd, F_GETLEASE) == F_UNLCK);
    CHECK(!fcntl(fd, F_SETLEASE, F_RDLCK) && opens(O_RDONLY) == 0 && opens(O_WRONLY) == EWOULDBLOCK);
    // The signal's number is forgotten with the lease, and the file's end is the lease's.
    CHECK(!fcntl(fd, F_SETLEASE, F_UNLCK) && fcntl(fd, F_GETSIG) == 0);
    NEED(!fcntl(fd, F_SETLEASE, F_RDLCK));
    int again = dup(fd);
    close(fd);
    CHECK(opens(O_WRONLY) == EWOULDBLOCK);
    close(again);
    CHECK(opens(O_WRONLY) == 0);
}

static void *lets_go(void *fd) {
    while (!count) usleep(1000);
    usleep(50000);
    CHECK(!fcntl((int)(long)fd, F_SETLEASE, F_UNLCK));
    return 0;
}

static void opens_wait(void) {
    catch(SIGIO);
    int fd = fresh(O_RDONLY);
    NEED(!fcntl(fd, F_SETLEASE, F_RDLCK));
    pthread_t thread;
    NEED(!pthread_create(&thread, 0, lets_go, (void *)(long)fd));
    double start = now();
    int writer = opened(O_WRONLY);
    CHECK(writer >= 0 && now() - start >= 0.04 && now() - start < 20);
    pthread_join(thread, 0);
    close(writer);
    // The holder that does nothing loses it after its time.
    set_break_time(1);
    NEED(!fcntl(fd, F_SETLEASE, F_WRLCK));
    start = now();
    int reader = opened(O_RDONLY);
    CHECK(now() - start >= 0.9 && now() - start < 20 && fcntl(fd, F_GETLEASE) == F_RDLCK);
    start = now();
    writer = opened(O_WRONLY);
    CHECK(now() - start >= 0.9 && fcntl(fd, F_GETLEASE) == F_UNLCK);
    close(reader), close(writer);
    // Names may change, and a truncation waits.
    NEED(!fcntl(fd, F_SETLEASE, F_RDLCK));
    count = 0;
    CHECK(!link(path, "/leased2") && !rename("/leased2", "/leased3") && !unlink("/leased3") && !chmod(path, 0640) && count == 0);
    start = now();
    CHECK(!truncate(path, 10) && count == 1 && now() - start >= 0.9 && fcntl(fd, F_GETLEASE) == F_UNLCK);
    // A signal ends the wait.
    NEED(!fcntl(fd, F_SETLEASE, F_RDLCK));
    set_break_time(45);
    pid_t child = fork();
    if (child == 0) {
        struct sigaction action = {.sa_sigaction = note, .sa_flags = SA_SIGINFO};
        sigaction(SIGALRM, &action, 0);
        ualarm(100000, 0);
        FAILS(open(path, O_WRONLY), EINTR);
        _exit(failed_checks != 0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(!fcntl(fd, F_SETLEASE, F_UNLCK));
    // What was refused does not count as open.
    CHECK(!fcntl(fd, F_SETLEASE, F_WRLCK));
}

static int raced_over, taken;

static void *takes_leases(void *unused) {
    while (!raced_over) {
        int fd = open(path, O_RDONLY | O_NONBLOCK);
        if (fd < 0) continue;
        if (!fcntl(fd, F_SETLEASE, taken % 2 ? F_WRLCK : F_RDLCK)) __atomic_add_fetch(&taken, 1, __ATOMIC_SEQ_CST);
        if (taken % 3) fcntl(fd, F_SETLEASE, F_UNLCK);
        close(fd);
    }
    return unused;
}

static void *opens_often(void *unused) {
    for (int i = 0; i < 3000; i++) {
        int fd = open(path, (i % 2 ? O_RDWR : O_RDONLY) | (i % 4 ? O_NONBLOCK : 0));
        if (fd >= 0) close(fd);
    }
    return unused;
}

static void leases_race_with_opens(void) {
    signal(SIGIO, SIG_IGN);
    close(fresh(O_RDONLY));
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) NEED(!pthread_create(&threads[i], 0, i < 2 ? takes_leases : opens_often, 0));
    for (int i = 2; i < 4; i++) pthread_join(threads[i], 0);
    raced_over = 1;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
    CHECK(taken > 0);
    int fd = opened(O_RDONLY);
    CHECK(!fcntl(fd, F_SETLEASE, F_WRLCK));
}

static struct flock lock(int kind, long start, long length) {
    return (struct flock){.l_type = kind, .l_whence = SEEK_SET, .l_start = start, .l_len = length};
}

static int set(int fd, int kind, long start, long length) {
    struct flock wanted = lock(kind, start, length);
    return fcntl(fd, F_SETLK, &wanted);
}

static int set_of_file(int fd, int kind, long start, long length) {
    struct flock wanted = lock(kind, start, length);
    return fcntl(fd, F_OFD_SETLK, &wanted);
}

// What stands in the way of a lock of all bytes, in order, as another process sees it.
static void in_the_way(int fd, const long (*wanted)[2], int ranges) {
    pid_t parent = getpid(), child = fork();
    NEED(child >= 0);
    if (child == 0) {
        long from = 0;
        for (int i = 0; i < ranges; i++) {
            struct flock found = lock(F_WRLCK, from, 0);
            CHECK(!fcntl(fd, F_GETLK, &found) && found.l_type != F_UNLCK && found.l_pid == parent);
            if (!CHECK(found.l_start == wanted[i][0] && found.l_len == wanted[i][1])) printf("  %ld, %ld\n", (long)found.l_start, (long)found.l_len);
            from = found.l_start + found.l_len;
        }
        struct flock found = lock(F_WRLCK, from, 0);
        CHECK(!fcntl(fd, F_GETLK, &found) && found.l_type == F_UNLCK);
        _exit(failed_checks != 0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void locks_are_found_in_order(void) {
    int fd = fresh(O_RDWR);
    NEED(!set(fd, F_WRLCK, 50, 10) && !set(fd, F_WRLCK, 10, 10) && !set(fd, F_WRLCK, 30, 10));
    in_the_way(fd, (const long[][2]){{10, 10}, {30, 10}, {50, 10}}, 3);
    // Neighbours are one, and what lies inside cuts.
    NEED(!set(fd, F_WRLCK, 20, 10));
    in_the_way(fd, (const long[][2]){{10, 30}, {50, 10}}, 2);
    NEED(!set(fd, F_RDLCK, 15, 5) && !set(fd, F_UNLCK, 25, 5));
    in_the_way(fd, (const long[][2]){{10, 5}, {15, 5}, {20, 5}, {30, 10}, {50, 10}}, 5);
    NEED(!set(fd, F_WRLCK, 0, 60));
    in_the_way(fd, (const long[][2]){{0, 60}}, 1);
    // Any close of the file by the process gives all up.
    close(opened(O_RDONLY));
    in_the_way(fd, 0, 0);
}

static void locks_of_open_files_stay(void) {
    int fd = fresh(O_RDWR), other = opened(O_RDWR);
    struct flock found = lock(F_WRLCK, 0, 0);
    NEED(!set_of_file(fd, F_WRLCK, 0, 10));
    FAILS(set_of_file(other, F_RDLCK, 5, 1), EAGAIN);
    FAILS(set(fd, F_RDLCK, 5, 1), EAGAIN);
    CHECK(!fcntl(other, F_OFD_GETLK, &found) && found.l_type == F_WRLCK && found.l_pid == -1 && found.l_len == 10);
    found.l_pid = 1;
    FAILS(fcntl(other, F_OFD_GETLK, &found), EINVAL);
    // It is a child's too, and outlives other closes.
    pid_t child = fork();
    if (child == 0) _exit(set_of_file(fd, F_RDLCK, 0, 5) != 0);
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0 && !set_of_file(other, F_RDLCK, 0, 5));
    close(opened(O_RDONLY));
    FAILS(set_of_file(other, F_RDLCK, 7, 1), EAGAIN);
    // flock is beside them.
    CHECK(!flock(fd, LOCK_EX | LOCK_NB));
    FAILS(flock(other, LOCK_SH | LOCK_NB), EWOULDBLOCK);
    close(fd);
    CHECK(!set_of_file(other, F_WRLCK, 0, 0) && !flock(other, LOCK_EX | LOCK_NB));
}

// The lines of /proc/locks about the file without their numbers, ordered.
static int compare(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static void shown(const char *wanted) {
    static char text[65536], all[4096];
    char *lines[64], place[64];
    int count = 0;
    struct stat stat;
    NEED(!lstat(path, &stat));
    sprintf(place, ":%ld ", (long)stat.st_ino);
    FILE *file = fopen("/proc/locks", "r");
    NEED(file);
    for (char *at = text; count < 64 && fgets(at, 256, file); at += strlen(at) + 1) {
        char *body = strchr(at, ' '), *inode = strstr(at, place);
        if (!inode || !body) continue;
        // Neither the device nor the processes are the same everywhere.
        char *device = inode;
        while (device[-1] != ' ') device--;
        char *pid = device - 1;
        while (pid[-1] != ' ') pid--;
        memmove(pid, atol(pid) == getpid() ? "me " : "-1 ", 3);
        memmove(pid + 3, inode + strlen(place), strlen(inode + strlen(place)) + 1);
        lines[count++] = body + 1;
    }
    fclose(file);
    qsort(lines, count, sizeof *lines, compare);
    all[0] = 0;
    for (int i = 0; i < count; i++) strcat(all, lines[i]);
    if (!CHECK(!strcmp(all, wanted))) printf("  --- shown:\n%s  --- wanted:\n%s", all, wanted);
}

static void *wants_it(void *fd) {
    flock((int)(long)fd, LOCK_EX);
    return 0;
}

static void locks_are_shown(void) {
    int fd = fresh(O_RDONLY);
    close(fd), fd = opened(O_RDWR);
    shown("");
    NEED(!set(fd, F_WRLCK, 10, 10) && !set(fd, F_RDLCK, 100, 0) && !flock(fd, LOCK_EX) && !set_of_file(fd, F_RDLCK, 50, 1));
    shown("FLOCK  ADVISORY  WRITE me 0 EOF\nOFDLCK ADVISORY  READ -1 50 50\n"
        "POSIX  ADVISORY  READ me 100 EOF\nPOSIX  ADVISORY  WRITE me 10 19\n");
    NEED(!set(fd, F_UNLCK, 0, 0) && !set_of_file(fd, F_UNLCK, 0, 0));
    pthread_t thread;
    int other = opened(O_RDWR);
    NEED(!pthread_create(&thread, 0, wants_it, (void *)(long)other));
    usleep(100000);
    shown("-> FLOCK  ADVISORY  WRITE me 0 EOF\nFLOCK  ADVISORY  WRITE me 0 EOF\n");
    NEED(!flock(fd, LOCK_UN));
    pthread_join(thread, 0);
    close(fd), close(other);
    signal(SIGIO, SIG_IGN);
    fd = opened(O_RDONLY);
    NEED(!fcntl(fd, F_SETLEASE, F_WRLCK));
    shown("LEASE  ACTIVE    WRITE me 0 EOF\n");
    CHECK(opens(O_RDONLY) == EWOULDBLOCK);
    shown("LEASE  BREAKING  READ me 0 EOF\n");
    CHECK(opens(O_WRONLY) == EWOULDBLOCK);
    shown("LEASE  BREAKING  UNLCK me 0 EOF\n");
    close(fd);
    shown("");
}

static void many_locks_are_shown(void) {
    enum { MANY = 2000 };
    int fd = fresh(O_RDWR), lines = 0;
    for (int i = 0; i < MANY; i++) NEED(!set(fd, F_WRLCK, 2 * i, 1));
    static char line[256];
    FILE *file = fopen("/proc/locks", "r");
    NEED(file);
    while (fgets(line, sizeof line, file)) lines++;
    fclose(file);
    CHECK(lines == MANY);
    NEED(!set(fd, F_UNLCK, 0, 0));
}

#define CASE(name) {#name, name}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        CASE(leases_are_given), CASE(opens_break_leases), CASE(opens_wait), CASE(leases_race_with_opens),
        CASE(locks_are_found_in_order), CASE(locks_of_open_files_stay), CASE(locks_are_shown), CASE(many_locks_are_shown),
    };
    return RUN(cases, argc, argv);
}
