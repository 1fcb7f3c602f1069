// What the files of /proc say of processes and threads, and do when they are written: each value is true, each write does
// what it says or is refused.
#include "check.h"
#include <ctype.h>
#include <dirent.h>
#include <grp.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/signalfd.h>
#include <sys/sysinfo.h>
#include <sys/timerfd.h>
#include <sys/utsname.h>

static char text[1 << 18];

static int is_ours(void) { return access("/proc/self/uvm", F_OK) == 0; }

static ssize_t read_file(const char *path) {
    int fd = open(path, O_RDONLY | O_NONBLOCK);
    if (fd < 0) return -1;
    ssize_t length = 0, n;
    while ((n = read(fd, text + length, sizeof text - 1 - length)) > 0) length += n;
    int error = errno;
    close(fd);
    text[length] = 0;
    errno = error;
    return n < 0 ? -1 : length;
}

static int write_file(const char *path, const char *value) {
    int fd = open(path, O_WRONLY);
    if (fd < 0) return -1;
    ssize_t n = write(fd, value, strlen(value));
    int error = errno;
    close(fd);
    errno = error;
    return n == (ssize_t)strlen(value) ? 0 : -1;
}

static const char *of(const char *format, int a, int b) {
    static char paths[4][128];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof *paths, format, a, b);
    return path;
}

static const char *line_of(const char *path, const char *name) {
    if (read_file(path) < 0) return "(no file)";
    char *line = text, *end;
    for (; line && *line; line = end ? end + 1 : 0) {
        end = strchr(line, '\n');
        if (strncmp(line, name, strlen(name))) continue;
        if (end) *end = 0;
        line += strlen(name);
        while (*line == ' ' || *line == '\t') line++;
        return line;
    }
    return "(no line)";
}

static long value_of(const char *path, const char *name) { return strtol(line_of(path, name), 0, 10); }
static uint64_t bits_of(const char *path, const char *name) { return strtoull(line_of(path, name), 0, 16); }

// A field of stat, counted as in proc(5).
static long long field(const char *path, int number) {
    if (read_file(path) < 0) return -1;
    if (number == 1) return atoll(text);
    char *at = strrchr(text, ')') + 2;
    for (int n = 3; n < number; n++) at = strchr(at, ' ') + 1;
    return number == 3 ? *at : strtoll(at, 0, 10);
}

static pid_t own_tid(void) { return syscall(SYS_gettid); }

static volatile int stop_now;
static volatile pid_t tids[2];
static pthread_barrier_t barrier;
static volatile pid_t child_of_thread;
static int pipe_ends[2];

static void *sleeper(void *unused) {
    (void)unused;
    tids[0] = own_tid();
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &set, 0);
    child_of_thread = fork();
    if (child_of_thread == 0) {
        pause();
        _exit(0);
    }
    pthread_barrier_wait(&barrier);
    char byte;
    CHECK(read(pipe_ends[0], &byte, 1) == 0);
    return 0;
}

static void *spinner(void *unused) {
    (void)unused;
    tids[1] = own_tid();
    pthread_barrier_wait(&barrier);
    while (!stop_now) {}
    return 0;
}

static void a_thread_has_files_of_its_own(void) {
    NEED(pipe(pipe_ends) == 0);
    pthread_barrier_init(&barrier, 0, 3);
    pthread_t threads[2];
    NEED(pthread_create(&threads[0], 0, sleeper, 0) == 0 && pthread_create(&threads[1], 0, spinner, 0) == 0);
    pthread_barrier_wait(&barrier);
    usleep(400000);
    int pid = getpid(), sleeps = tids[0], spins = tids[1];
    const char *stat_sleeps = "/proc/self/task/%d/stat", *status = "/proc/self/task/%d/status";
    CHECK(field(of(stat_sleeps, sleeps, 0), 1) == sleeps && field(of(stat_sleeps, spins, 0), 1) == spins);
    CHECK(value_of(of(status, sleeps, 0), "Pid:") == sleeps && value_of(of(status, sleeps, 0), "Tgid:") == pid);
    CHECK(field(of(stat_sleeps, sleeps, 0), 3) == 'S' && field(of(stat_sleeps, spins, 0), 3) == 'R');
    CHECK(*line_of(of(status, sleeps, 0), "State:") == 'S' && *line_of(of(status, spins, 0), "State:") == 'R');
    // Times: 14 and 15, in hundredths; the process has all of them.
    long long slept = field(of(stat_sleeps, sleeps, 0), 14), spun = field(of(stat_sleeps, spins, 0), 14);
    CHECK(slept < 10 && spun >= 20);
    CHECK(field("/proc/self/stat", 14) >= spun && field("/proc/self/stat", 20) == 3);
    CHECK(bits_of(of(status, sleeps, 0), "SigBlk:") == 1ull << (SIGUSR2 - 1) && bits_of(of(status, spins, 0), "SigBlk:") == 0);
    CHECK(field(of(stat_sleeps, sleeps, 0), 32) == 1 << (SIGUSR2 - 1));
    // A pending signal of the thread, not of the process.
    syscall(SYS_tgkill, pid, sleeps, SIGUSR2);
    CHECK(bits_of(of(status, sleeps, 0), "SigPnd:") == 1ull << (SIGUSR2 - 1) && bits_of(of(status, spins, 0), "SigPnd:") == 0);
    CHECK(bits_of(of(status, sleeps, 0), "ShdPnd:") == 0);
    // Names: another thread of the process may give one, another process not.
    CHECK(write_file(of("/proc/self/task/%d/comm", sleeps, 0), "dozer") == 0);
    CHECK(!strcmp(line_of(of("/proc/self/task/%d/comm", sleeps, 0), ""), "dozer") && !strcmp(line_of(of(status, sleeps, 0), "Name:"), "dozer"));
    CHECK(strcmp(line_of("/proc/self/comm", ""), "dozer") && strcmp(line_of(of("/proc/self/task/%d/comm", spins, 0), ""), "dozer"));
    CHECK(write_file(of("/proc/self/task/%d/comm", sleeps, 0), "a name that is longer than it may be") == 0);
    CHECK(!strcmp(line_of(of("/proc/self/task/%d/comm", sleeps, 0), ""), "a name that is "));
    pid_t stranger = fork();
    if (stranger == 0) {
        FAILS(write_file(of("/proc/%d/comm", pid, 0), "mine"), EINVAL);
        FAILS(write_file(of("/proc/%d/task/%d/comm", pid, sleeps), "mine"), EINVAL);
        _exit(failed_checks);
    }
    int ended;
    CHECK(waitpid(stranger, &ended, 0) == stranger && ended == 0);
    // Children are those of the thread that made them.
    CHECK(atoi(line_of(of("/proc/self/task/%d/children", sleeps, 0), "")) == child_of_thread);
    CHECK(read_file(of("/proc/self/task/%d/children", spins, 0)) == 0);
    CHECK(read_file(of("/proc/self/task/%d/children", pid, 0)) == 0);
    // Waits and preemptions.
    CHECK(value_of(of(status, sleeps, 0), "voluntary_ctxt_switches:") >= 1);
    long before = value_of("/proc/self/status", "voluntary_ctxt_switches:");
    // On a busy host a sleep may be over before it begins.
    for (int n = 0; n < 5; n++) usleep(30000);
    CHECK(value_of("/proc/self/status", "voluntary_ctxt_switches:") >= before + 3);
    // With a CPU of its own it needn't have any.
    CHECK(sysconf(_SC_NPROCESSORS_ONLN) > 1 || value_of(of(status, spins, 0), "voluntary_ctxt_switches:") + value_of(of(status, spins, 0), "nonvoluntary_ctxt_switches:") > 0);
    // A thread's directory has no threads, and another process's thread is not among them.
    CHECK(access(of("/proc/self/task/%d/task", sleeps, 0), F_OK) < 0 && access("/proc/self/task/1", F_OK) < 0);
    int opened = open(of(stat_sleeps, sleeps, 0), O_RDONLY);
    kill(child_of_thread, SIGKILL);
    waitpid(child_of_thread, 0, 0);
    stop_now = 1;
    close(pipe_ends[1]);
    pthread_join(threads[0], 0), pthread_join(threads[1], 0);
    usleep(50000);
    char byte;
    FAILS(read(opened, &byte, 1), ESRCH);
    CHECK(access(of(stat_sleeps, sleeps, 0), F_OK) < 0);
}

static void descriptors_are_described(void) {
    int plain = open("/tmp/described", O_CREAT | O_RDWR | O_APPEND | O_CLOEXEC, 0600);
    struct stat st;
    NEED(plain >= 0 && write(plain, "0123456789", 10) == 10 && fstat(plain, &st) == 0);
    const char *info = of("/proc/self/fdinfo/%d", plain, 0);
    CHECK(value_of(info, "pos:") == 10 && strtol(line_of(info, "flags:"), 0, 8) == (0100000 | O_RDWR | O_APPEND | O_CLOEXEC));
    CHECK(lseek(plain, 3, SEEK_SET) == 3 && value_of(info, "pos:") == 3 && value_of(info, "mnt_id:") > 0);
    if (strcmp(line_of(info, "ino:"), "(no line)")) CHECK((ino_t)value_of(info, "ino:") == st.st_ino);
    CHECK(fcntl(plain, F_SETFD, 0) == 0 && strtol(line_of(info, "flags:"), 0, 8) == (0100000 | O_RDWR | O_APPEND));
    // A file that shows itself.
    int itself = open("/proc/self/fdinfo/0", O_RDONLY);
    char path[64], seen[256];
    sprintf(path, "/proc/self/fdinfo/%d", itself);
    int about = open(path, O_RDONLY);
    NEED(dup2(about, itself) == itself);
    ssize_t n = read(itself, seen, sizeof seen - 1);
    CHECK(n > 0 && !strncmp(seen, "pos:\t0\n", 7));
    int event = eventfd(0x1234, 0);
    CHECK(bits_of(of("/proc/self/fdinfo/%d", event, 0), "eventfd-count:") == 0x1234);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    int signals = signalfd(-1, &set, 0);
    CHECK(bits_of(of("/proc/self/fdinfo/%d", signals, 0), "sigmask:") == 1ull << (SIGUSR1 - 1));
    int timer = timerfd_create(CLOCK_MONOTONIC, 0);
    struct itimerspec when = {.it_value = {100, 5}, .it_interval = {7, 9}};
    NEED(timerfd_settime(timer, 0, &when, 0) == 0);
    info = of("/proc/self/fdinfo/%d", timer, 0);
    CHECK(value_of(info, "clockid:") == 1 && value_of(info, "ticks:") == 0 && !strcmp(line_of(info, "it_interval:"), "(7, 9)"));
    CHECK(!strncmp(line_of(info, "it_value:"), "(99, ", 5) || !strncmp(line_of(info, "it_value:"), "(100, ", 6));
    when = (struct itimerspec){.it_value = {0, 1000000}, .it_interval = {0, 1000000}};
    timerfd_settime(timer, 0, &when, 0);
    usleep(20000);
    CHECK(value_of(info, "ticks:") == 1);
    int set_fd = epoll_create1(0);
    enum { WATCHED = 40 };
    int watched[WATCHED];
    for (int i = 0; i < WATCHED; i++) {
        watched[i] = eventfd(0, 0);
        struct epoll_event wanted = {.events = EPOLLIN | EPOLLET, .data.u64 = 0xabc000 + i};
        NEED(watched[i] >= 0 && epoll_ctl(set_fd, EPOLL_CTL_ADD, watched[i], &wanted) == 0);
    }
    NEED(read_file(of("/proc/self/fdinfo/%d", set_fd, 0)) > 0);
    int lines = 0;
    for (char *at = text; (at = strstr(at, "tfd:")); at++) lines++;
    CHECK(lines == WATCHED);
    sprintf(path, "tfd: %8d events: %8x data: %16llx ", watched[7], EPOLLIN | EPOLLET, 0xabc007ull);
    // Linux adds what it always reports.
    int found = 0, fd;
    unsigned events;
    unsigned long long data;
    for (char *at = text; (at = strstr(at, "tfd:")); at++)
        if (sscanf(at, "tfd: %d events: %x data: %llx", &fd, &events, &data) == 3 && fd == watched[7])
            found = (events & (EPOLLIN | EPOLLET)) == (EPOLLIN | EPOLLET) && data == 0xabc007;
    CHECK(found);
    // Links say how a file is open.
    NEED(lstat(of("/proc/self/fd/%d", plain, 0), &st) == 0);
    CHECK((st.st_mode & 0777) == 0700);
    NEED((fd = open("/dev/null", O_RDONLY)) >= 0 && lstat(of("/proc/self/fd/%d", fd, 0), &st) == 0);
    CHECK((st.st_mode & 0777) == 0500);
    CHECK(value_of("/proc/self/status", "FDSize:") > watched[WATCHED - 1]);
}

static void reads_and_writes_are_counted(void) {
    int pair[2];
    char bytes[100] = {0};
    NEED(pipe(pair) == 0);
    long read_before = value_of("/proc/self/io", "rchar:"), written_before = value_of("/proc/self/io", "wchar:");
    long reads = value_of("/proc/self/io", "syscr:"), writes = value_of("/proc/self/io", "syscw:");
    for (int i = 0; i < 10; i++) CHECK(write(pair[1], bytes, 100) == 100 && read(pair[0], bytes, 100) == 100);
    CHECK(value_of("/proc/self/io", "wchar:") == written_before + 1000 && value_of("/proc/self/io", "syscw:") == writes + 10);
    long read_now = value_of("/proc/self/io", "rchar:"), reads_now = value_of("/proc/self/io", "syscr:");
    CHECK(read_now >= read_before + 1000 && read_now < read_before + 1000 + 4096 && reads_now >= reads + 10 && reads_now < reads + 40);
    // Children that were waited for are counted.
    pid_t child = fork();
    if (child == 0) _exit(write(pair[1], bytes, 77) != 77);
    waitpid(child, 0, 0);
    CHECK(value_of("/proc/self/io", "wchar:") == written_before + 1077);
    struct rusage usage;
    for (int i = 0; i < 5; i++) usleep(30000);
    CHECK(getrusage(RUSAGE_SELF, &usage) == 0 && usage.ru_nvcsw >= 3);
}

static void a_program_is_shown_as_it_is_started(void) {
    pid_t child = fork();
    if (child == 0) {
        execle("/proc/self/exe", "first word", "wait", "", "last", (char *)0, (char *[]){"ONE=1", "TWO=", 0});
        _exit(1);
    }
    usleep(200000);
    CHECK(read_file(of("/proc/%d/cmdline", child, 0)) == 22 && !memcmp(text, "first word\0wait\0\0last", 22));
    CHECK(read_file(of("/proc/%d/environ", child, 0)) == 11 && !memcmp(text, "ONE=1\0TWO=", 11));
    CHECK(read_file(of("/proc/%d/auxv", child, 0)) >= 16 * 10);
    int pages = 0;
    uint64_t *words = (void *)text;
    for (int i = 0; words[i]; i += 2) pages |= words[i] == 6 && words[i + 1] == 4096;
    CHECK(pages);
    long long start = field(of("/proc/%d/stat", child, 0), 48), end = field(of("/proc/%d/stat", child, 0), 49);
    CHECK(end - start == 22 && field(of("/proc/%d/stat", child, 0), 50) >= end);
    CHECK(field(of("/proc/%d/stat", child, 0), 26) > 1 && field(of("/proc/%d/stat", child, 0), 28) > start - (1 << 20));
    // Another user may look at the words and at nothing else.
    fflush(stdout);
    pid_t other = fork();
    if (other == 0) {
        NEED(setgroups(0, 0) == 0 && setgid(1000) == 0 && setuid(1000) == 0);
        CHECK(read_file(of("/proc/%d/cmdline", child, 0)) == 22);
        const char *hidden[] = {"environ", "auxv", "io", "maps", "smaps", "pagemap", "mem", "personality", "smaps_rollup"};
        for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++) {
            char path[64];
            sprintf(path, "/proc/%d/%s", child, hidden[i]);
            errno = 0;
            int fd = open(path, O_RDONLY);
            char byte;
            if (!CHECK(fd < 0 || read(fd, &byte, 1) < 0)) printf("  %s\n", path);
            CHECK(errno == EACCES || errno == EPERM);
        }
        CHECK(field(of("/proc/%d/stat", child, 0), 48) == 0 && field(of("/proc/%d/stat", child, 0), 26) == 1);
        FAILS(open(of("/proc/%d/fd", child, 0), O_RDONLY), EACCES);
        FAILS(open(of("/proc/%d/fdinfo/0", child, 0), O_RDONLY), EACCES);
        char link[10];
        FAILS(readlink(of("/proc/%d/exe", child, 0), link, sizeof link), EACCES);
        fflush(stdout);
        _exit(failed_checks);
    }
    int status;
    CHECK(waitpid(other, &status, 0) == other && status == 0);
    kill(child, SIGKILL);
    waitpid(child, 0, 0);
}

static char **own_arguments;

static void a_title_is_shown(void) {
    // Over the arguments, and over the zero behind the last.
    long long start = field("/proc/self/stat", 48), end = field("/proc/self/stat", 49);
    NEED(start > 0 && end > start && own_arguments[0] == (char *)start);
    memset((char *)start, 'x', end - start);
    CHECK(read_file("/proc/self/cmdline") >= end - start && !strncmp(text, "xxxx", 4));
    strcpy((char *)start, "my");
    CHECK(read_file("/proc/self/cmdline") >= 2 && !strcmp(text, "my"));
}

static void kills_can_be_weighed(void) {
    CHECK(value_of("/proc/self/oom_score_adj", "") == 0 && value_of("/proc/self/oom_adj", "") == 0);
    CHECK(write_file("/proc/self/oom_score_adj", "500\n") == 0 && value_of("/proc/self/oom_score_adj", "") == 500);
    CHECK(value_of("/proc/self/oom_adj", "") == 8 && value_of("/proc/self/oom_score", "") >= 500);
    FAILS(write_file("/proc/self/oom_score_adj", "1001"), EINVAL);
    FAILS(write_file("/proc/self/oom_score_adj", "-1001"), EINVAL);
    FAILS(write_file("/proc/self/oom_score_adj", "much"), EINVAL);
    FAILS(write_file("/proc/self/oom_adj", "16"), EINVAL);
    FAILS(write_file("/proc/self/oom_adj", "-18"), EINVAL);
    CHECK(write_file("/proc/self/oom_adj", "15") == 0 && value_of("/proc/self/oom_score_adj", "") == 1000);
    CHECK(write_file("/proc/self/oom_adj", "-17") == 0 && value_of("/proc/self/oom_score_adj", "") == -1000);
    CHECK(value_of("/proc/self/oom_score", "") == 0);
    CHECK(write_file("/proc/self/oom_score_adj", "-100") == 0);
    NEED(setgroups(0, 0) == 0 && setgid(1000) == 0 && setuid(1000) == 0 && prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0);
    CHECK(write_file("/proc/self/oom_score_adj", "300") == 0);
    CHECK(write_file("/proc/self/oom_score_adj", "-100") == 0);
    FAILS(write_file("/proc/self/oom_score_adj", "-101"), EACCES);
    FAILS(write_file("/proc/self/oom_adj", "-16"), EACCES);
    FAILS(write_file("/proc/1/oom_score_adj", "0"), EACCES);
    CHECK(value_of("/proc/self/oom_score_adj", "") == -100);
}

static void pages_are_shown(void) {
    enum { PAGES = 200 };
    char *at = mmap(0, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < PAGES; i += 3) at[i * PAGE] = 1;
    static uint64_t words[PAGES];
    int fd = open("/proc/self/pagemap", O_RDONLY);
    NEED(fd >= 0);
    CHECK(pread(fd, words, sizeof words, (uintptr_t)at / PAGE * 8) == sizeof words);
    int wrong = 0, frames = 0;
    for (int i = 0; i < PAGES; i++) {
        wrong += (words[i] >> 63) != (i % 3 == 0);
        frames += (words[i] & ((1ull << 55) - 1)) != 0;
    }
    CHECK(wrong == 0 && frames == (PAGES + 2) / 3);
    FAILS(pread(fd, words, 12, 0), EINVAL);
    FAILS(pread(fd, words, 8, 4), EINVAL);
    CHECK(pread(fd, words, 8, (1ull << 57) / PAGE * 8) == 0);
    close(fd);
    NEED(setgroups(0, 0) == 0 && setgid(1000) == 0 && setuid(1000) == 0 && prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0);
    NEED((fd = open("/proc/self/pagemap", O_RDONLY)) >= 0);
    CHECK(pread(fd, words, sizeof words, (uintptr_t)at / PAGE * 8) == sizeof words);
    for (int i = 0; i < PAGES; i++) {
        CHECK((words[i] >> 63) == (i % 3 == 0));
        CHECK((words[i] & ((1ull << 55) - 1)) == 0);
    }
}

static void mappings_add_up(void) {
    char *own = mmap(0, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(own, 1, 16 * PAGE);
    int fd = open("/tmp/mapped", O_CREAT | O_RDWR | O_TRUNC, 0600);
    struct stat st;
    NEED(fd >= 0 && ftruncate(fd, 8 * PAGE) == 0 && fstat(fd, &st) == 0);
    char *shared = mmap((void *)0x600000000000, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    memset(shared, 1, 8 * PAGE);
    NEED(read_file("/proc/self/maps") > 0);
    char *line = strstr(text, "600000000000-");
    NEED(line);
    unsigned major, minor;
    unsigned long ino;
    NEED(sscanf(line, "%*s %*s %*s %x:%x %lu", &major, &minor, &ino) == 3);
    CHECK(ino == st.st_ino && (major << 8 | minor) == st.st_dev);
    NEED(read_file("/proc/self/smaps") > 0);
    NEED((line = strstr(text, "600000000000-")) != 0);
    char *flags = strstr(line, "VmFlags:");
    CHECK(flags && !strncmp(flags, "VmFlags: rd wr sh mr mw me ms ", 30));
    char *alone = strstr(line, "Private_Dirty:");
    CHECK(alone && atoi(alone + 14) == 32);
    long rss = 0, parts = 0;
    for (char *at = text; at; at = strchr(at, '\n')) {
        at += *at == '\n';
        if (!strncmp(at, "Rss:", 4)) rss += atol(at + 4);
        if (!strncmp(at, "Shared_", 7) || !strncmp(at, "Private_C", 9) || !strncmp(at, "Private_D", 9)) parts += atol(strchr(at, ':') + 1);
    }
    CHECK(rss == parts && rss > 64);
    // Half of it is another's, too.
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        volatile char sum = 0;
        for (int i = 0; i < 8; i++) sum += shared[i * PAGE];
        pause();
    }
    usleep(100000);
    NEED(read_file("/proc/self/smaps") > 0 && (line = strstr(text, "600000000000-")) != 0);
    char *share = strstr(line, "Pss:"), *with = strstr(line, "Shared_Dirty:");
    CHECK(share && atoi(share + 4) == 16 && with && atoi(with + 13) == 32);
    kill(child, SIGKILL);
    waitpid(child, 0, 0);
    CHECK(value_of("/proc/self/status", "RssShmem:") + value_of("/proc/self/status", "RssFile:") >= 32 && (!is_ours() || value_of("/proc/self/status", "RssAnon:") >= 64));
}

static void a_changed_root_is_where_paths_begin(void) {
    NEED(mkdir("/tmp/root", 0755) == 0 || errno == EEXIST);
    mkdir("/tmp/root/proc", 0755), mkdir("/tmp/root/bin", 0755), mkdir("/tmp/root/work", 0755);
    NEED(mount("none", "/tmp/root/proc", "proc", 0, 0) == 0);
    int from = open("/proc/self/exe", O_RDONLY), to = open("/tmp/root/bin/me", O_CREAT | O_WRONLY | O_TRUNC, 0755);
    NEED(from >= 0 && to >= 0);
    ssize_t n;
    while ((n = read(from, text, sizeof text)) > 0) NEED(write(to, text, n) == n);
    close(from), close(to);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        NEED(chroot("/tmp/root") == 0 && chdir("/work") == 0);
        execl("/bin/me", "me", "rooted", (char *)0);
        _exit(9);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    umount("/tmp/root/proc");
}

static int rooted(void) {
    char link[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", link, sizeof link - 1);
    NEED(n > 0);
    link[n] = 0;
    if (!CHECK(!strcmp(link, "/bin/me"))) printf("  %s\n", link);
    CHECK((n = readlink("/proc/self/cwd", link, sizeof link)) == 5 && !memcmp(link, "/work", 5));
    CHECK((n = readlink("/proc/self/root", link, sizeof link)) == 1 && *link == '/');
    NEED(read_file("/proc/self/maps") > 0);
    CHECK(strstr(text, " /bin/me\n") && !strstr(text, "/tmp/root"));
    NEED(read_file("/proc/self/mounts") > 0);
    CHECK(strstr(text, " /proc proc ") && !strstr(text, "/tmp/root"));
    NEED(read_file("/proc/self/mountinfo") > 0);
    CHECK(strstr(text, " /proc ") && !strstr(text, "/tmp/root"));
    CHECK(access("/proc/self/exe", X_OK) == 0);
    return failed_checks;
}

static void names_of_the_machine_change(void) {
    struct utsname names;
    char old[65];
    NEED(uname(&names) == 0);
    strcpy(old, names.nodename);
    CHECK(sethostname("first", 5) == 0 && !strcmp(line_of("/proc/sys/kernel/hostname", ""), "first"));
    CHECK(write_file("/proc/sys/kernel/hostname", "second\n") == 0 && uname(&names) == 0 && !strcmp(names.nodename, "second"));
    CHECK(setdomainname("there", 5) == 0 && !strcmp(line_of("/proc/sys/kernel/domainname", ""), "there"));
    NEED(read_file("/proc/version") > 0);
    CHECK(strstr(text, names.release) && strstr(text, names.version));
    CHECK(!strcmp(line_of("/proc/sys/kernel/version", ""), names.version));
    sethostname(old, strlen(old));
    setdomainname("(none)", 6);
    char boot[64], once[64];
    strcpy(boot, line_of("/proc/sys/kernel/random/boot_id", "")), strcpy(once, line_of("/proc/sys/kernel/random/uuid", ""));
    CHECK(strlen(boot) == 36 && !strcmp(boot, line_of("/proc/sys/kernel/random/boot_id", "")));
    CHECK(strcmp(once, line_of("/proc/sys/kernel/random/uuid", "")) && strcmp(boot, "00000000-0000-4000-8000-000000000000"));
    FAILS(write_file("/proc/sys/kernel/random/boot_id", "x"), EACCES);
}

static void load_is_what_ran(void) {
    pid_t spins = fork();
    if (spins == 0) for (;;) {}
    double start, later;
    sscanf(line_of("/proc/loadavg", ""), "%lf", &start);
    sleep(16);
    int running, threads, last;
    CHECK(sscanf(line_of("/proc/loadavg", ""), "%lf %*f %*f %d/%d %d", &later, &running, &threads, &last) == 4);
    // After three looks a load of 1 is 1 - e^(-15/60) of the way.
    CHECK(later >= start * 0.7 + 0.19 && later <= start + 0.9 && running >= 1 && threads >= 2 && last >= spins);
    struct sysinfo info;
    CHECK(sysinfo(&info) == 0 && info.loads[0] / 65536.0 > later - 0.1 && info.loads[0] / 65536.0 < later + 0.1);
    CHECK(value_of("/proc/stat", "procs_running") >= 1);
    kill(spins, SIGKILL);
    waitpid(spins, 0, 0);
    long made = value_of("/proc/stat", "processes");
    for (int i = 0; i < 3; i++) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        waitpid(child, 0, 0);
    }
    CHECK(value_of("/proc/stat", "processes") == made + 3);
    if (is_ours()) {
        NEED(read_file("/proc/cpuinfo") > 0);
        CHECK(strstr(text, " sse2 ") && strstr(text, "model name\t: ") && !strstr(text, "QEMU Virtual CPU"));
    }
}

static void groups_are_all_shown(void) {
    enum { GROUPS = 3000 };
    static gid_t groups[GROUPS];
    for (int i = 0; i < GROUPS; i++) groups[i] = 5000 + i;
    NEED(setgroups(GROUPS, groups) == 0);
    NEED(read_file("/proc/self/status") > 0);
    char *at = strstr(text, "Groups:\t");
    NEED(at);
    at += 8;
    int wrong = 0;
    for (int i = 0; i < GROUPS; i++) wrong += strtol(at, &at, 10) != 5000 + i;
    CHECK(wrong == 0 && strstr(at, "\nThreads:\t1\n") && strstr(at, "\nMems_allowed_list:\t0\n"));
}

static void limits_are_heeded(void) {
    char old[64];
    strcpy(old, line_of("/proc/sys/fs/pipe-max-size", ""));
    CHECK(write_file("/proc/sys/fs/pipe-max-size", "100000") == 0 && value_of("/proc/sys/fs/pipe-max-size", "") == 131072);
    FAILS(write_file("/proc/sys/fs/pipe-max-size", "99999999999"), EINVAL);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        NEED(setgroups(0, 0) == 0 && setgid(1000) == 0 && setuid(1000) == 0);
        NEED(pipe(pipe_ends) == 0);
        CHECK(fcntl(pipe_ends[0], F_SETPIPE_SZ, 131072) == 131072);
        FAILS(fcntl(pipe_ends[0], F_SETPIPE_SZ, 262144), EPERM);
        FAILS(write_file("/proc/sys/fs/pipe-max-size", "4096"), EACCES);
        fflush(stdout);
        _exit(failed_checks);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(write_file("/proc/sys/fs/pipe-max-size", old) == 0);
    strcpy(old, line_of("/proc/sys/vm/max_map_count", ""));
    CHECK(write_file("/proc/sys/vm/max_map_count", "300") == 0);
    int made = 0;
    while (made < 1000 && mmap(0, PAGE, made & 1 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED) made++;
    CHECK(made < 310 && made > 200);
    CHECK(write_file("/proc/sys/vm/max_map_count", old) == 0);
    CHECK(write_file("/proc/sys/vm/drop_caches", "3") == 0);
    FAILS(write_file("/proc/sys/vm/drop_caches", "9"), EINVAL);
    CHECK(value_of("/proc/sys/kernel/randomize_va_space", "") == 0 || !is_ours());
}

enum { MANY = 3000 };

static void *rests(void *unused) {
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    return unused;
}

static void many_threads_are_shown(void) {
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 16384);
    static pthread_t threads[MANY];
    pthread_barrier_init(&barrier, 0, MANY + 1);
    int made = 0;
    while (made < MANY && pthread_create(&threads[made], &small, rests, 0) == 0) made++;
    if (made < MANY) {
        printf("  %d threads were made\n", made);
        _exit(made < 1000);
    }
    pthread_barrier_wait(&barrier);
    CHECK(field("/proc/self/stat", 20) == MANY + 1 && value_of("/proc/self/status", "Threads:") == MANY + 1);
    DIR *dir = opendir("/proc/self/task");
    int listed = 0;
    for (struct dirent *entry; (entry = readdir(dir));) listed += isdigit(*entry->d_name) != 0;
    CHECK(listed == MANY + 1);
    closedir(dir);
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < MANY; i++) pthread_join(threads[i], 0);
}

static void read_all_of(const char *path, int depth) {
    static char bytes[8192];
    DIR *dir = opendir(path);
    if (!dir) return;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (*entry->d_name == '.') continue;
        char below[512];
        snprintf(below, sizeof below, "%s/%s", path, entry->d_name);
        if (entry->d_type == DT_DIR && depth < 4) read_all_of(below, depth + 1);
        if (entry->d_type == DT_LNK && readlink(below, bytes, sizeof bytes) < 0) continue;
        if (entry->d_type != DT_REG) continue;
        int fd = open(below, O_RDONLY | O_NONBLOCK);
        if (fd < 0) continue;
        for (int n = 0; n < 8 && read(fd, bytes, sizeof bytes) > 0;) n++;
        if (read(fd, (char *)8, 64) < 0) {}
        close(fd);
    }
    closedir(dir);
}

static void *ends_soon(void *unused) {
    prctl(PR_SET_NAME, "ends\nsoon");
    return unused;
}

static void changes(int way) {
    for (;;) {
        pthread_t thread;
        pid_t child = way == 1 ? vfork() : fork();
        if (child == 0 && way == 0) {
            for (int i = 0; i < 8; i++)
                if (!pthread_create(&thread, 0, ends_soon, 0)) pthread_detach(thread);
            _exit(0);
        }
        if (child == 0 && way == 1) {
            execl("/proc/self/exe", "procfiles", "wait", (char *)0);
            _exit(1);
        }
        if (child == 0 && way == 2) {
            // The words that it was started with are gone, or are where a page of it will never be.
            long page = (long)*own_arguments & -PAGE;
            munmap((void *)page, PAGE);
            mmap((void *)page, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
            usleep(2000);
            _exit(0);
        }
        if (child == 0) {
            int set = epoll_create1(0), old = -1;
            for (int i = 0; i < 300; i++) {
                struct epoll_event wanted = {.events = EPOLLIN, .data.u64 = i};
                int fd = i & 1 ? eventfd(i, 0) : timerfd_create(CLOCK_REALTIME, 0);
                epoll_ctl(set, EPOLL_CTL_ADD, fd, &wanted);
                if (old >= 0 && i % 3) close(old);
                old = fd;
                char number[8];
                snprintf(number, sizeof number, "%d", i);
                write_file("/proc/self/oom_score_adj", number);
                write_file("/proc/thread-self/comm", number);
            }
            _exit(0);
        }
        if (way == 1) usleep(3000), kill(child, SIGKILL);
        waitpid(child, 0, 0);
    }
}

static void all_may_change_while_it_is_read(void) {
    enum { WAYS = 4, READERS = 3 };
    pid_t others[WAYS + READERS];
    for (int n = 0; n < WAYS + READERS; n++) {
        others[n] = fork();
        if (others[n] == 0 && n < WAYS) changes(n);
        if (others[n] == 0) {
            // As root, and as another user.
            if (n == WAYS) NEED(setgroups(0, 0) == 0 && setgid(1000) == 0 && setuid(1000) == 0);
            for (;;) {
                DIR *dir = opendir("/proc");
                for (struct dirent *entry; dir && (entry = readdir(dir));) {
                    char path[300];
                    snprintf(path, sizeof path, "/proc/%s", entry->d_name);
                    if (isdigit(*entry->d_name)) read_all_of(path, 0);
                }
                if (dir) closedir(dir);
            }
        }
    }
    sleep(10);
    for (int n = 0; n < WAYS + READERS; n++) kill(others[n], SIGKILL);
    for (int n = 0; n < WAYS + READERS; n++) CHECK(waitpid(others[n], 0, 0) == others[n]);
    audited();
}

// --- all files ---------------------------------------------------------------------------------------------------------

static int files_seen, writes_done, is_root;

// Write-only: an action, and no value.
static int is_action(const char *path) { return !strcmp(path, "/proc/sys/vm/drop_caches") || !strcmp(path, "/proc/sysrq-trigger"); }

static void trimmed(char *value) {
    for (size_t n = strlen(value); n && isspace((unsigned char)value[n - 1]); n--) value[n - 1] = 0;
}

// Whether a file says now what was written; the number may be in another form, and cut or rounded up.
static int says(const char *path, const char *written) {
    static char now[512];
    int fd = open(path, O_RDONLY);
    if (fd < 0) return -1;
    ssize_t n = read(fd, now, sizeof now - 1);
    close(fd);
    if (n < 0) return -1;
    now[n] = 0;
    trimmed(now);
    size_t length = strlen(now);
    if (!strcmp(now, written) || (length >= 15 && !strncmp(now, written, length))) return 1;
    long value = atol(now), wanted = atol(written);
    if (strstr(path, "/oom_adj")) {
        // The old scale is coarse: what was set is seen in the new one.
        char sibling[256];
        snprintf(sibling, sizeof sibling, "%.*s/oom_score_adj", (int)(strrchr(path, '/') - path), path);
        return value_of(sibling, "") == (wanted == 15 ? 1000 : wanted * 1000 / 17);
    }
    return isdigit(*now) && strstr(path, "pipe-max-size") && value >= wanted && (value < 2 * wanted || value == 4096);
}

static void try_write(const char *path, const char *value) {
    int fd = open(path, O_WRONLY | O_NONBLOCK);
    if (fd < 0) {
        if (!CHECK(errno == EACCES || errno == EPERM || errno == EROFS || errno == EINVAL || errno == ESRCH)) printf("  open %s\n", path);
        return;
    }
    ssize_t n = write(fd, value, strlen(value));
    int error = errno;
    close(fd);
    if (n < 0) {
        errno = error;
        if (!CHECK(error == EINVAL || error == EACCES || error == EPERM || error == EIO || error == ENOMEM || error == EBADF)) printf("  write %s\n", path);
        return;
    }
    writes_done++;
    if (is_action(path)) return;
    if (!CHECK(says(path, value) == 1)) printf("  %s took %s and did nothing\n", path, value);
}

static int is_written_on_linux(const char *path) {
    static const char *const names[] = {"/hostname", "/domainname", "/pid_max", "/shmmax", "/shmall", "/shmmni", "/max_map_count", "/comm",
        "/oom_score_adj", "/pipe-max-size", "/pipe-user-pages-soft", "/pipe-user-pages-hard", "/tainted-not"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(path) > strlen(names[i]) && !strcmp(path + strlen(path) - strlen(names[i]), names[i])) return 1;
    return 0;
}

static void look_at_file(const char *path) {
    files_seen++;
    // These wait for events.
    if (strstr(path, "kmsg") || strstr(path, "trace_pipe") || strstr(path, "/clear_refs")) return;
    static char old[4096], value[4200];
    *old = 0;
    int fd = open(path, O_RDONLY | O_NONBLOCK);
    if (fd < 0) {
        if (!CHECK(errno == EACCES || errno == EPERM || errno == ENOENT || errno == ESRCH || errno == ENODEV || !is_ours())) printf("  open %s\n", path);
    } else {
        ssize_t n = 0, all = 0;
        while (all < 1 << 20 && (n = read(fd, text, sizeof text)) > 0) {
            if (!all) memcpy(old, text, n < 4095 ? n : 4095), old[n < 4095 ? n : 4095] = 0;
            all += n;
        }
        if (n < 0 && is_ours() && !CHECK(errno == EIO || errno == ESRCH || errno == EACCES || errno == EINVAL)) printf("  read %s\n", path);
        close(fd);
    }
    trimmed(old);
    if (!is_ours() && !is_written_on_linux(path)) return;
    if (strstr(path, "/fail-nth")) {
        try_write(path, "0");
        return;
    }
    size_t length = strlen(path);
    if (length > 4 && !strcmp(path + length - 4, "/mem")) return;
    char name[32];
    const char *junk[] = {"junk", "-7", "99999999999999999999", "\n", name, "1 2", "0x1f", ""};
    // No two writes say the same.
    snprintf(name, sizeof name, "n%d", writes_done);
    long number = strtol(old, 0, 10);
    char *end;
    strtol(old, &end, 10);
    if (*old && !*end) {
        for (int by = -1; by <= 1; by++) {
            snprintf(value, sizeof value, "%ld", number + by);
            // Sizes are rounded.
            if (!strstr(path, "min_free_kbytes") || (number + by) % 4 == 0) try_write(path, value);
        }
        const char *numbers[] = {"0", "1", "2", "4096", "100000"};
        for (size_t i = 0; i < 5; i++) try_write(path, numbers[i]);
    }
    for (size_t i = 0; i < sizeof junk / sizeof *junk; i++) {
        int is_number = *old && !*end;
        fd = open(path, O_WRONLY | O_NONBLOCK);
        if (fd < 0) break;
        ssize_t n = write(fd, junk[i], strlen(junk[i]));
        close(fd);
        if (n <= 0) continue;
        static char line[64];
        snprintf(line, sizeof line, "%s", junk[i]);
        trimmed(line);
        if (is_number && i == 5) strcpy(line, "1");
        if (is_number && i == 6) strcpy(line, "31");
        if (!CHECK(is_action(path) || says(path, line) == 1)) printf("  %s took junk %zu and did nothing\n", path, i);
    }
    // As it was: in two steps, where one is refused between two bounds.
    if (*old) {
        if ((fd = open(path, O_WRONLY | O_NONBLOCK)) >= 0) {
            snprintf(value, sizeof value, "%s\n", old);
            if (write(fd, value, strlen(value)) < 0) {}
            close(fd);
        }
    }
}

static void look_at_folder(const char *path, int depth) {
    DIR *dir = opendir(path);
    if (!dir) {
        if (!CHECK(errno == EACCES || errno == EPERM || errno == ENOENT || errno == ESRCH)) printf("  folder %s\n", path);
        return;
    }
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        // Of processes this one and the first.
        if (!strcmp(path, "/proc") && isdigit(*entry->d_name) && atoi(entry->d_name) != 1 && atoi(entry->d_name) != getpid()) continue;
        char below[1024], target[256];
        snprintf(below, sizeof below, "%s/%s", strcmp(path, "/") ? path : "", entry->d_name);
        struct stat st;
        if (lstat(below, &st) < 0) continue;
        if (is_ours() && entry->d_type != DT_UNKNOWN && !CHECK((unsigned)entry->d_type << 12 == (st.st_mode & S_IFMT) && entry->d_ino == st.st_ino)) printf("  %s\n", below);
        if (S_ISDIR(st.st_mode) && depth < 8) look_at_folder(below, depth + 1);
        if (S_ISLNK(st.st_mode)) {
            if (readlink(below, target, sizeof target) < 0 && !CHECK(errno == EACCES || errno == ENOENT || errno == EPERM)) printf("  link %s\n", below);
        }
        if (S_ISREG(st.st_mode)) look_at_file(below);
    }
    closedir(dir);
}

static void walk_all(void) {
    files_seen = writes_done = 0;
    look_at_folder("/proc", 0);
    look_at_folder("/sys", is_ours() ? 0 : 6);
    printf("  %d files, %d writes did what they say\n", files_seen, writes_done);
    CHECK(files_seen > 60 && writes_done > 0);
}

static void no_write_by_root_is_without_effect(void) {
    is_root = 1;
    walk_all();
}

static void no_write_by_another_is_without_effect(void) {
    NEED(setgroups(0, 0) == 0 && setgid(1000) == 0 && setuid(1000) == 0 && prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0);
    walk_all();
    // Its own name and its own weight, and nothing of the machine's.
    FAILS(write_file("/proc/sys/kernel/hostname", "mine"), EACCES);
    FAILS(write_file("/proc/sys/vm/drop_caches", "1"), EACCES);
    FAILS(write_file("/proc/sysrq-trigger", "c"), EACCES);
}

static void what_has_no_writes_says_so(void) {
    FAILS(write_file("/proc/self/status", "x"), EINVAL);
    FAILS(write_file("/proc/uptime", "x"), EIO);
    FAILS(write_file("/proc/sys/kernel/ostype", "x"), EACCES);
    FAILS(write_file("/proc/self/limits", "x"), EINVAL);
    CHECK(open("/proc/sys/kernel/new", O_CREAT | O_WRONLY, 0600) < 0);
    CHECK(chmod("/proc/self/status", 0666) < 0 && mkdir("/proc/x", 0700) < 0);
    if (is_ours()) FAILS(write_file("/proc/sysrq-trigger", "?"), EINVAL);
}

// For ps and its kin: a process of three threads, of which one computes.
static void *named(void *name) {
    prctl(PR_SET_NAME, name);
    pthread_barrier_wait(&barrier);
    if (!strcmp(name, "worker")) while (!stop_now) {}
    pause();
    return 0;
}

static int has_threads(void) {
    pthread_t threads[2];
    pthread_barrier_init(&barrier, 0, 3);
    prctl(PR_SET_NAME, "leader");
    NEED(pthread_create(&threads[0], 0, named, "waiter") == 0 && pthread_create(&threads[1], 0, named, "worker") == 0);
    pthread_barrier_wait(&barrier);
    pause();
    return 0;
}

static const struct test_case cases[] = {
    {"a thread has files of its own", a_thread_has_files_of_its_own},
    {"descriptors are described", descriptors_are_described},
    {"reads and writes are counted", reads_and_writes_are_counted},
    {"a program is shown as it is started", a_program_is_shown_as_it_is_started},
    {"a title is shown", a_title_is_shown},
    {"kills can be weighed", kills_can_be_weighed},
    {"pages are shown", pages_are_shown},
    {"mappings add up", mappings_add_up},
    {"a changed root is where paths begin", a_changed_root_is_where_paths_begin},
    {"names of the machine change", names_of_the_machine_change},
    {"load is what ran", load_is_what_ran},
    {"groups are all shown", groups_are_all_shown},
    {"limits are heeded", limits_are_heeded},
    {"many threads are shown", many_threads_are_shown},
    {"what has no writes says so", what_has_no_writes_says_so},
    {"all may change while it is read", all_may_change_while_it_is_read},
    {"no write by another is without effect", no_write_by_another_is_without_effect},
    {"no write by root is without effect", no_write_by_root_is_without_effect},
};

int main(int argc, char **argv) {
    own_arguments = argv;
    if (argc > 1 && !strcmp(argv[1], "wait")) {
        pause();
        return 0;
    }
    if (argc > 1 && !strcmp(argv[1], "rooted")) return rooted();
    if (argc > 1 && !strcmp(argv[1], "threads")) return has_threads();
    return RUN(cases, argc, argv);
}
