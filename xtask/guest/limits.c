// The limits on what a process and a user may have: each refuses as Linux does, and leaves everything as it was.
#include "check.h"
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sendfile.h>

static void *waits(void *none) {
    pause();
    return none;
}

static void become_nobody(void) {
    NEED(setgid(65534) == 0 && setuid(65534) == 0);
}

static void limit(int resource, rlim_t most) {
    struct rlimit both = {most, most};
    NEED(setrlimit(resource, &both) == 0);
}

static long number_in(const char *path) {
    char text[64] = {0};
    int fd = open(path, O_RDONLY);
    NEED(fd >= 0 && read(fd, text, sizeof text - 1) > 0);
    close(fd);
    return atol(text);
}

static int lines_of_maps(void) {
    static char text[1 << 16];
    int fd = open("/proc/self/maps", O_RDONLY), lines = 0;
    NEED(fd >= 0);
    for (ssize_t n; (n = read(fd, text, sizeof text)) > 0;)
        for (ssize_t i = 0; i < n; i++) lines += text[i] == '\n';
    close(fd);
    return lines;
}

enum { ROOM = 1 << 16 };

// As many mappings as there may be, each of the first page of one file of memory.
static int fill_map(int fd, char **last) {
    int count = 0;
    for (;;) {
        char *at = mmap(0, PAGE, PROT_READ, MAP_SHARED, fd, 0);
        if (at == MAP_FAILED) break;
        *last = at;
        count++;
        NEED(count < 2 * ROOM);
    }
    return count;
}

static void mappings_end_with_enomem(void) {
    become_nobody();
    CHECK(number_in("/proc/sys/vm/max_map_count") == 65530);
    int fd = memfd_create("page", 0);
    NEED(fd >= 0 && ftruncate(fd, 2 * PAGE) == 0);
    char *wide = mmap(0, 5 * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *last = 0;
    NEED(wide != MAP_FAILED);
    int count = fill_map(fd, &last);
    CHECK(errno == ENOMEM);
    CHECK(count > 65400 && count < 65532);
    // What would cut a mapping in parts is refused, and changes nothing.
    FAILS(munmap(wide + PAGE, PAGE), ENOMEM);
    FAILS(mprotect(wide + PAGE, PAGE, PROT_READ | PROT_WRITE), ENOMEM);
    FAILS(madvise(wide + PAGE, PAGE, MADV_RANDOM), EAGAIN);
    FAILS(mlock(wide + PAGE, PAGE), ENOMEM);
    FAILS((long)mremap(wide + PAGE, PAGE, 2 * PAGE, MREMAP_MAYMOVE), ENOMEM);
    CHECK(*(volatile char *)(wide + PAGE) == 0);
    // What makes fewer or leaves as many goes.
    CHECK(mprotect(wide, 5 * PAGE, PROT_READ | PROT_WRITE) == 0);
    CHECK(munmap(last, PAGE) == 0);
    CHECK(munmap(wide, 5 * PAGE) == 0);
    CHECK(mmap(0, PAGE, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED);
    CHECK(lines_of_maps() > 65000);
}

static void a_child_has_as_many_mappings(void) {
    int fd = memfd_create("page", 0);
    NEED(fd >= 0 && ftruncate(fd, PAGE) == 0);
    char *last = 0;
    fill_map(fd, &last);
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) _exit(mmap(0, PAGE, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED || errno != ENOMEM);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

// How many more processes or threads, all of which wait, and by what the next was refused.
static int more_tasks(int threads) {
    int count = 0;
    static pthread_t made[64];
    for (; count < 64; count++) {
        if (threads) {
            errno = pthread_create(&made[count], 0, waits, 0);
            if (errno) break;
        } else {
            pid_t child = fork();
            if (child < 0) break;
            if (child == 0) for (;;) pause();
        }
    }
    return count;
}

static void tasks_of_one_user(void) {
    enum { USER = 4711, MOST = 10 };
    NEED(setgid(USER) == 0);
    limit(RLIMIT_NPROC, MOST);
    NEED(setuid(USER) == 0);
    setpgid(0, 0);
    // Processes and threads count alike, this one too.
    CHECK(more_tasks(0) == MOST - 1 && errno == EAGAIN);
    pthread_t thread;
    CHECK(pthread_create(&thread, 0, waits, 0) == EAGAIN);
    signal(SIGTERM, SIG_IGN);
    kill(0, SIGTERM);
    for (int i = 0; i < 3; i++) CHECK(wait(0) > 0);
    while (wait(0) > 0) {}
    CHECK(more_tasks(1) == MOST - 1 && errno == EAGAIN);
    FAILS(fork(), EAGAIN);
}

// A refused fork takes no number: else a user could have numbers come round, to one that a timer or a debugger has kept.
static void refused_forks_take_no_numbers(void) {
    pid_t before = fork();
    if (before == 0) _exit(0);
    NEED(before > 0 && waitpid(before, 0, 0) == before);
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        NEED(setgid(4713) == 0);
        limit(RLIMIT_NPROC, 1);
        NEED(setuid(4713) == 0);
        for (int i = 0; i < 1000; i++) FAILS(fork(), EAGAIN);
        _exit(failed_checks != 0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    pid_t after = fork();
    if (after == 0) _exit(0);
    NEED(after > 0 && waitpid(after, 0, 0) == after);
    CHECK(after - before < 100);
}

static void too_many_to_become(void) {
    enum { USER = 4712 };
    pid_t others[2];
    for (int i = 0; i < 2; i++) {
        NEED((others[i] = fork()) >= 0);
        if (others[i] == 0) {
            if (setgid(USER) || setuid(USER)) _exit(1);
            for (;;) pause();
        }
    }
    usleep(100000);
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        limit(RLIMIT_NPROC, 1);
        if (setgid(USER) || setuid(USER)) _exit(1);
        execl("/bin/busybox", "true", (char *)0);
        _exit(errno == EAGAIN ? 7 : 2);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    for (int i = 0; i < 2; i++) kill(others[i], SIGKILL), waitpid(others[i], 0, 0);
}

static volatile sig_atomic_t too_large;
static void note_too_large(int signal) { (void)signal, too_large++; }

static void sizes_of_files(void) {
    char bytes[8192] = {0};
    int fd = open("/limited", O_CREAT | O_TRUNC | O_RDWR, 0600), other = open("/other", O_CREAT | O_TRUNC | O_RDWR, 0600);
    NEED(fd >= 0 && other >= 0 && write(other, bytes, sizeof bytes) == sizeof bytes);
    signal(SIGXFSZ, note_too_large);
    limit(RLIMIT_FSIZE, 5000);
    CHECK(pwrite(fd, bytes, sizeof bytes, 0) == 5000 && too_large == 0);
    FAILS(pwrite(fd, bytes, 1, 5000), EFBIG);
    CHECK(too_large == 1 && lseek(fd, 0, SEEK_END) == 5000);
    FAILS(write(fd, bytes, 1), EFBIG);
    FAILS(ftruncate(fd, 5001), EFBIG);
    FAILS(fallocate(fd, 0, 0, 6000), EFBIG);
    CHECK(too_large == 4 && ftruncate(fd, 4999) == 0 && ftruncate(fd, 5000) == 0 && fallocate(fd, 0, 0, 5000) == 0);
    CHECK(pwrite(fd, bytes, 0, 9000) == 0);
    // What is longer already may be written to where it is short, and cut.
    CHECK(pwrite(other, bytes, 100, 4000) == 100 && ftruncate(other, 8000) == 0);
    FAILS(pwrite(other, bytes, 100, 6000), EFBIG);
    // By whatever way the bytes come.
    off_t from = 0;
    CHECK(ftruncate(fd, 0) == 0 && lseek(fd, 4990, SEEK_SET) == 4990);
    CHECK(sendfile(fd, other, &from, 100) == 10);
    too_large = 0;
    FAILS(sendfile(fd, other, &from, 100), EFBIG);
    int ends[2];
    NEED(pipe(ends) == 0 && write(ends[1], bytes, 100) == 100);
    FAILS(splice(ends[0], 0, fd, 0, 100, 0), EFBIG);
    loff_t in = 0, out = 4995;
    CHECK(copy_file_range(other, &in, fd, &out, 100, 0) == 5);
    CHECK(too_large == 2);
    close(fd), close(other), unlink("/limited"), unlink("/other");
}

static double cpu_seconds(void) {
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return used.tv_sec + used.tv_nsec / 1e9;
}

static void cpu_limit(rlim_t soft, rlim_t hard) {
    struct rlimit both = {soft, hard};
    NEED(setrlimit(RLIMIT_CPU, &both) == 0);
}

static void *computes(void *none) {
    for (;;) {}
    return none;
}

static void computes_for(double seconds) {
    for (double end = cpu_seconds() + seconds; cpu_seconds() < end;) {}
}

static volatile sig_atomic_t over_time;
static void note_over_time(int signal) { (void)signal, over_time++; }

// Each second of CPU time from the soft limit on, which moves along.
static void a_signal_comes_each_second_of_cpu_time(void) {
    struct rlimit now;
    signal(SIGXCPU, note_over_time);
    cpu_limit(1, 20);
    while (over_time < 1) NEED(cpu_seconds() < 10);
    double first = cpu_seconds();
    CHECK(first >= 0.9 && getrlimit(RLIMIT_CPU, &now) == 0 && now.rlim_cur == 2 && now.rlim_max == 20);
    while (over_time < 2) NEED(cpu_seconds() < 10);
    CHECK(cpu_seconds() >= 1.9 && getrlimit(RLIMIT_CPU, &now) == 0 && now.rlim_cur == 3);
    // Without a limit none comes any more.
    cpu_limit(RLIM_INFINITY, RLIM_INFINITY);
    computes_for(1.5);
    CHECK(over_time == 2);
    // What has been used already counts.
    cpu_limit(1, 20);
    while (over_time < 3) NEED(cpu_seconds() < 10);
}

// Starts a child; it has come to its end by a signal, after so many seconds of CPU time at least.
static void ends_after(void (*body)(void), int by, double least) {
    struct rusage used;
    int status = 0;
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) body(), _exit(1);
    CHECK(wait4(child, &status, 0, &used) == child && WIFSIGNALED(status) && WTERMSIG(status) == by);
    double all = used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
    if (!CHECK(all >= least - 0.1)) printf("  ended after %.2f s\n", all);
}

static void computes_in_two_threads(void) {
    pthread_t other;
    signal(SIGXCPU, SIG_IGN);
    cpu_limit(1, 2);
    NEED(!pthread_create(&other, 0, computes, 0));
    // Half a limit each.
    struct timespec used = {0};
    while (used.tv_nsec < 950000000 && !used.tv_sec) clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    for (;;) pause();
}

static void computes_behind_fork_and_exec(void) {
    cpu_limit(1, 2);
    computes_for(0.7);
    pid_t child = fork();
    if (child == 0) {
        // Its time begins at 0, and goes on over exec.
        computes_for(0.7);
        execl("/bin/busybox", "sh", "-c", "while :; do :; done", (char *)0);
        _exit(1);
    }
    struct rusage used;
    int status = 0;
    NEED(child > 0 && wait4(child, &status, 0, &used) == child);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGXCPU || used.ru_utime.tv_sec + used.ru_stime.tv_sec > 5) _exit(2);
    computes(0);
}

static void cpu_time_ends_with_its_limit(void) {
    ends_after(computes_in_two_threads, SIGKILL, 2);
    ends_after(computes_behind_fork_and_exec, SIGXCPU, 1);
    // From outside, beside the program's own work.
    int status = 0;
    struct rlimit most = {1, 5};
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) computes(0);
    CHECK(prlimit(child, RLIMIT_CPU, &most, 0) == 0);
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU);
}

static void signals_in_queues(void) {
    enum { MOST = 5 };
    NEED(setgid(4713) == 0 && setuid(4713) == 0);
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, 0);
    limit(RLIMIT_SIGPENDING, MOST);
    union sigval value = {0};
    for (int i = 0; i < MOST; i++) CHECK(sigqueue(getpid(), SIGRTMIN + i % 2, value) == 0);
    FAILS(sigqueue(getpid(), SIGRTMIN, value), EAGAIN);
    // Those of one user count, wherever they wait.
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) _exit(sigqueue(getpid(), SIGRTMIN, value) != -1 || errno != EAGAIN);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    // By kill they come without their detail, and once.
    CHECK(kill(getpid(), SIGRTMIN + 3) == 0 && kill(getpid(), SIGUSR1) == 0);
    struct timespec now = {0};
    int taken = 0;
    while (sigtimedwait(&all, 0, &now) > 0) taken++;
    CHECK(taken == MOST + 2 + 1 /* SIGCHLD */);
    CHECK(sigqueue(getpid(), SIGRTMIN, value) == 0);
}

static void set_number(const char *path, long number) {
    char text[32];
    int fd = open(path, O_WRONLY), length = sprintf(text, "%ld\n", number);
    NEED(fd >= 0 && write(fd, text, length) == length);
    close(fd);
}

static void files_of_all(void) {
    long before = number_in("/proc/sys/fs/file-max");
    CHECK(before > 1000 && number_in("/proc/sys/fs/file-nr") >= 0);
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        become_nobody();
        while (number_in("/proc/sys/fs/file-max") == before) usleep(1000);
        int error = 0;
        for (int i = 0; i < 900 && !error; i++)
            if (open("/dev/null", O_RDONLY) < 0) error = errno;
        _exit(error == ENFILE ? 7 : 1);
    }
    set_number("/proc/sys/fs/file-max", number_in("/proc/sys/fs/file-nr") + 200);
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    // Root goes on.
    set_number("/proc/sys/fs/file-max", 1);
    int fd = open("/dev/null", O_RDONLY);
    CHECK(fd >= 0);
    close(fd);
    set_number("/proc/sys/fs/file-max", before);
}

static void pages_of_pipes(void) {
    int ends[2];
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        NEED(setgid(4714) == 0 && setuid(4714) == 0);
        CHECK(number_in("/proc/sys/fs/pipe-user-pages-soft") == 16384);
        // Up to so many pages, and then two each; none grows any more.
        int pipes = 0, error = 0;
        for (; pipes < 100 && !error; pipes++) {
            NEED(pipe(ends) == 0);
            if (fcntl(ends[1], F_SETPIPE_SZ, 1 << 20) < 0) error = errno;
        }
        CHECK(error == EPERM && pipes >= 64 && pipes <= 66);
        int sizes[2] = {0};
        for (int i = 0; i < 20; i++) {
            NEED(pipe(ends) == 0);
            sizes[fcntl(ends[1], F_GETPIPE_SZ) == 2 * PAGE]++;
        }
        CHECK(sizes[1] > 0);
        _exit(failed_checks != 0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    NEED(pipe(ends) == 0);
    CHECK(fcntl(ends[1], F_GETPIPE_SZ) == 65536 && fcntl(ends[1], F_SETPIPE_SZ, 1 << 20) == 1 << 20);
}

static long adjustment(pid_t pid) {
    char path[64];
    sprintf(path, "/proc/%d/oom_score_adj", pid);
    return number_in(path);
}

static int adjust(const char *text) {
    int fd = open("/proc/self/oom_score_adj", O_WRONLY);
    NEED(fd >= 0);
    int done = write(fd, text, strlen(text)), error = errno;
    close(fd);
    errno = error;
    return done > 0 ? 0 : -1;
}

// What /proc/sys says is what holds.
static void bounds_that_are_told(void) {
    rlim_t most = number_after("/proc/sys/fs/nr_open", "");
    struct rlimit files = {most, most}, more = {most + 1, most + 1};
    CHECK(!setrlimit(RLIMIT_NOFILE, &files));
    FAILS(setrlimit(RLIMIT_NOFILE, &more), EPERM);
    CHECK(number_after("/proc/sys/kernel/pid_max", "") > getpid());
    CHECK(number_after("/proc/sys/kernel/threads-max", "") > 0);
}

// As many descriptors as the limit and nr_open allow, and no more; a child has them too.
static void descriptors_to_the_last(void) {
    enum { LAST = (1 << 20) - 1, MANY = 200000 };
    CHECK(number_in("/proc/sys/fs/nr_open") == 1 << 20);
    struct rlimit files = {1 << 20, 1 << 20}, some = {MANY, 1 << 20};
    NEED(!setrlimit(RLIMIT_NOFILE, &files));
    int fd = open("/dev/null", O_RDONLY);
    CHECK(dup2(fd, LAST) == LAST && fcntl(LAST, F_GETFD) == 0 && fcntl(LAST - 1, F_GETFD) == -1);
    FAILS(dup2(fd, LAST + 1), EBADF);
    FAILS(fcntl(fd, F_DUPFD, LAST), EMFILE);
    FAILS(fcntl(fd, F_DUPFD, LAST + 1), EINVAL);
    CHECK(fcntl(fd, F_DUPFD, 500) == 500 && fcntl(fd, F_DUPFD, 500) == 501 && !close(500) && fcntl(fd, F_DUPFD, 500) == 500);
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) _exit(fcntl(LAST, F_GETFD) != 0 || fcntl(501, F_GETFD) != 0 || dup(fd) != fd + 1);
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(!syscall(SYS_close_range, fd + 1, ~0u, 0));
    FAILS(fcntl(LAST, F_GETFD), EBADF);
    NEED(!setrlimit(RLIMIT_NOFILE, &some));
    int last = fd;
    for (int one; (one = dup(fd)) >= 0; last = one) {}
    CHECK(errno == EMFILE && last == MANY - 1);
    CHECK(!close(100000) && dup(fd) == 100000 && !close(255) && !close(256) && dup(fd) == 255 && dup(fd) == 256);
    CHECK(!syscall(SYS_close_range, 3, ~0u, 4u /* CLOSE_RANGE_CLOEXEC */) && fcntl(MANY - 1, F_GETFD) == FD_CLOEXEC && fcntl(2, F_GETFD) == 0);
    child = fork();
    NEED(child >= 0);
    if (child == 0) {
        execl("/bin/busybox", "sh", "-c", "test -e /proc/self/fd/2 -a ! -e /proc/self/fd/199999", (char *)0);
        _exit(1);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(!syscall(SYS_close_range, 3, ~0u, 0) && dup(2) == 3);
    // Less than a limit that was given before.
    long before = number_in("/proc/sys/fs/nr_open");
    set_number("/proc/sys/fs/nr_open", 1024);
    FAILS(setrlimit(RLIMIT_NOFILE, &files), EPERM);
    child = fork();
    NEED(child >= 0);
    if (child == 0) {
        FAILS(fcntl(2, F_DUPFD, 1024), EMFILE);
        FAILS(dup2(2, 1024), EBADF);
        CHECK(fcntl(2, F_DUPFD, 1023) == 1023);
        _exit(failed_checks != 0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    int setting = open("/proc/sys/fs/nr_open", O_WRONLY);
    FAILS(write(setting, "1\n", 2), EINVAL);
    set_number("/proc/sys/fs/nr_open", before);
}

static void who_goes_first(void) {
    CHECK(adjustment(getpid()) == 0);
    CHECK(adjust("300\n") == 0 && adjustment(getpid()) == 300);
    FAILS(adjust("1001"), EINVAL);
    FAILS(adjust("-1001"), EINVAL);
    FAILS(adjust("much"), EINVAL);
    CHECK(adjustment(getpid()) == 300);
    CHECK(number_in("/proc/self/oom_score") > 800 && number_in("/proc/self/oom_score") < 1000);
    CHECK(adjust("-1000") == 0 && number_in("/proc/self/oom_score") == 0);
    CHECK(adjust("200") == 0);
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        CHECK(adjustment(getpid()) == 200);
        become_nobody();
        // A program that has given up its rights is its user's to adjust once it has been started anew.
        NEED(prctl(PR_SET_DUMPABLE, 1) == 0);
        FAILS(adjust("100"), EACCES);
        CHECK(adjust("250") == 0 && adjust("200") == 0 && adjustment(getpid()) == 200);
        _exit(failed_checks != 0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static const struct test_case cases[] = {
    {"mappings_end_with_enomem", mappings_end_with_enomem},
    {"a_child_has_as_many_mappings", a_child_has_as_many_mappings},
    {"refused_forks_take_no_numbers", refused_forks_take_no_numbers},
    {"tasks_of_one_user", tasks_of_one_user},
    {"too_many_to_become", too_many_to_become},
    {"sizes_of_files", sizes_of_files},
    {"a_signal_comes_each_second_of_cpu_time", a_signal_comes_each_second_of_cpu_time},
    {"cpu_time_ends_with_its_limit", cpu_time_ends_with_its_limit},
    {"signals_in_queues", signals_in_queues},
    {"files_of_all", files_of_all},
    {"pages_of_pipes", pages_of_pipes},
    {"bounds_that_are_told", bounds_that_are_told},
    {"descriptors_to_the_last", descriptors_to_the_last},
    {"who_goes_first", who_goes_first},
};

int main(int argc, char **argv) {
    return RUN(cases, argc, argv);
}
