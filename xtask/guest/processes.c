// Processes: fork, vfork, exec of everything that may be one, waiting, groups, what is inherited and what is not.
#include "check.h"
#include <pthread.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>

static const char *self = "/proc/self/exe";

static int wait_for(pid_t child) {
    int status;
    return waitpid(child, &status, 0) == child ? status : -1;
}

// Runs a program in a child; returns its exit code, or -1.
static int run(const char *path, char *const *arguments, char *const *environment) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        execve(path, arguments, environment);
        _exit(errno == ENOEXEC ? 201 : errno == EACCES ? 202 : errno == ENOENT ? 203 : errno == E2BIG ? 204 : 200);
    }
    int status = wait_for(child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void put(const char *path, const void *data, size_t length, int mode) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0700);
    NEED(fd >= 0 && write(fd, data, length) == (ssize_t)length && !fchmod(fd, mode));
    close(fd);
}

static void exit_codes(void) {
    for (int code = 0; code < 256; code += 51) {
        pid_t child = fork();
        if (child == 0) _exit(code);
        int status = wait_for(child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == code);
    }
    pid_t child = fork();
    if (child == 0) _exit(256 + 3);
    CHECK(WEXITSTATUS(wait_for(child)) == 3);
    child = fork();
    if (child == 0) for (;;) pause();
    CHECK(!kill(child, SIGTERM));
    int status = wait_for(child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
}

static void waiting(void) {
    int status;
    FAILS(waitpid(-1, &status, 0), ECHILD);
    pid_t child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    CHECK(waitpid(child, &status, WNOHANG) == 0);
    kill(child, SIGSTOP);
    CHECK(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
    kill(child, SIGCONT);
    CHECK(waitpid(child, &status, WCONTINUED) == child && WIFCONTINUED(status));
    kill(child, SIGKILL);
    siginfo_t info = {0};
    CHECK(!waitid(P_PID, child, &info, WEXITED | WNOWAIT));
    CHECK(info.si_pid == child && info.si_code == CLD_KILLED && info.si_status == SIGKILL && info.si_signo == SIGCHLD);
    // A zombie has its name.
    char path[64], text[256], name[17] = {0}, expected[64];
    NEED(!prctl(PR_GET_NAME, name));
    snprintf(path, sizeof path, "/proc/%d/stat", child);
    snprintf(expected, sizeof expected, "%d (%s) Z ", child, name);
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0 && read(fd, text, sizeof text) > 0 && !strncmp(text, expected, strlen(expected)));
    close(fd);
    snprintf(path, sizeof path, "/proc/%d/status", child);
    snprintf(expected, sizeof expected, "Name:\t%s\n", name);
    fd = open(path, O_RDONLY);
    CHECK(fd >= 0 && read(fd, text, sizeof text) > 0 && !strncmp(text, expected, strlen(expected)));
    close(fd);
    CHECK(waitpid(child, &status, 0) == child);
    FAILS(waitpid(child, &status, 0), ECHILD);
    FAILS(waitid(P_PID, child, &info, 0), EINVAL);
}

static void a_hundred_children(void) {
    pid_t children[100];
    for (int i = 0; i < 100; i++) {
        children[i] = fork();
        if (children[i] == 0) _exit(i);
        NEED(children[i] > 0);
    }
    int seen[100] = {0}, status;
    for (int i = 0; i < 100; i++) {
        pid_t child = wait(&status);
        NEED(child > 0 && WIFEXITED(status) && WEXITSTATUS(status) < 100);
        CHECK(children[WEXITSTATUS(status)] == child && !seen[WEXITSTATUS(status)]++);
    }
}

// The numbers in a thread's list of children; -1 where there is no list.
static int children_of(pid_t process, pid_t thread, pid_t *children, int most) {
    char path[64];
    sprintf(path, "/proc/%d/task/%d/children", process, thread);
    FILE *list = fopen(path, "r");
    if (!list) return -1;
    int count = 0;
    while (count < most && fscanf(list, "%d", &children[count]) == 1) count++;
    fclose(list);
    return count;
}

static void children_are_listed(void) {
    pid_t children[300], listed[301];
    CHECK(children_of(getpid(), getpid(), listed, 301) == 0);
    for (int i = 0; i < 300; i++) {
        children[i] = fork();
        if (children[i] == 0) for (;;) pause();
        NEED(children[i] > 0);
    }
    CHECK(children_of(getpid(), getpid(), listed, 301) == 300 && !memcmp(children, listed, sizeof children));
    CHECK(children_of(children[7], children[7], listed, 301) == 0);
    for (int i = 0; i < 300; i++) CHECK(!kill(children[i], SIGKILL));
    siginfo_t info;
    CHECK(!waitid(P_PID, children[0], &info, WEXITED | WNOWAIT));
    CHECK(children_of(getpid(), getpid(), listed, 301) == 300);
    for (int i = 0; i < 300; i++) CHECK(waitpid(children[i], 0, 0) == children[i]);
    CHECK(children_of(getpid(), getpid(), listed, 301) == 0);
}

static void orphans_find_a_parent(void) {
    int ends[2];
    CHECK(!pipe(ends));
    pid_t middle = fork();
    if (middle == 0) {
        if (fork() == 0) {
            pid_t before = getppid(), now;
            while ((now = getppid()) == before && now != 1) usleep(1000);
            if (write(ends[1], &now, sizeof now) != sizeof now) _exit(1);
            _exit(0);
        }
        usleep(20000);
        _exit(0);
    }
    CHECK(wait_for(middle) == 0);
    pid_t adopted;
    CHECK(read(ends[0], &adopted, sizeof adopted) == sizeof adopted && adopted == 1);
}

static void may_be_numbered_below(long end) {
    char text[32];
    int fd = open("/proc/sys/kernel/pid_max", O_WRONLY), length = sprintf(text, "%ld", end);
    NEED(fd >= 0 && write(fd, text, length) == length && !close(fd));
}

enum { FIRST_AGAIN = 300, NUMBERS_END = 512 };

static pid_t pauses(void) {
    pid_t child = fork();
    if (child == 0) for (;;) pause();
    return child;
}

// The same, where a number that was let go may be free a little later.
static pid_t pauses_soon(void) {
    pid_t child = pauses();
    for (int i = 0; i < 1000 && child < 0; i++) {
        usleep(1000);
        child = pauses();
    }
    return child;
}

// Numbers start again, and none is given out that a process, or a group without its leader, bears.
static void numbers_come_round(void) {
    static char is_taken[NUMBERS_END];
    pid_t children[NUMBERS_END], member;
    int count = 0, ends[2];
    long before = number_after("/proc/sys/kernel/pid_max", "");
    NEED(!pipe(ends) && !prctl(PR_SET_CHILD_SUBREAPER, 1));
    int fd = open("/proc/sys/kernel/pid_max", O_WRONLY);
    NEED(fd >= 0);
    FAILS(write(fd, "300", 3), EINVAL);
    FAILS(write(fd, "4194305", 7), EINVAL);
    close(fd);
    may_be_numbered_below(NUMBERS_END);
    CHECK(number_after("/proc/sys/kernel/pid_max", "") == NUMBERS_END);
    pid_t leader = fork();
    if (leader == 0) {
        setpgid(0, 0);
        member = pauses();
        _exit(write(ends[1], &member, sizeof member) != sizeof member);
    }
    CHECK(wait_for(leader) == 0 && read(ends[0], &member, sizeof member) == sizeof member && member > 0);
    is_taken[leader] = is_taken[member] = 1;
    while (count < NUMBERS_END && (children[count] = pauses()) > 0) {
        pid_t child = children[count++];
        CHECK(child < NUMBERS_END && !is_taken[child]);
        is_taken[child % NUMBERS_END] = 1;
    }
    CHECK(errno == EAGAIN && count > 100);
    CHECK(!kill(children[50], SIGKILL) && wait_for(children[50]) == SIGKILL);
    CHECK(pauses_soon() == children[50]);
    FAILS(pauses(), EAGAIN);
    // Without its last member the group has no number.
    CHECK(!kill(member, SIGKILL) && wait_for(member) == SIGKILL);
    pid_t one = pauses_soon(), other = pauses_soon();
    CHECK((one == leader && other == member) || (one == member && other == leader));
    FAILS(pauses(), EAGAIN);
    may_be_numbered_below(before);
    for (int i = 0; i < count; i++) kill(children[i], SIGKILL);
    kill(one, SIGKILL), kill(other, SIGKILL);
    while (wait(0) > 0) continue;
    CHECK(number_after("/proc/sys/kernel/pid_max", "") == before);
    close(ends[0]), close(ends[1]);
}

// A stopped process and its parent are a group of a session of their own. The parent ends, and nobody is left to let the child go on.
static void a_stopped_group_hears_that_it_is_orphaned(void) {
    int ends[2];
    CHECK(!pipe(ends));
    pid_t shell = fork();
    if (shell == 0) {
        setsid();
        pid_t job = fork();
        if (job == 0) {
            setpgid(0, 0);
            pid_t stopped = fork();
            if (stopped == 0) for (;;) pause();
            int status;
            int is_stopped = !kill(stopped, SIGSTOP) && waitpid(stopped, &status, WUNTRACED) == stopped && WIFSTOPPED(status);
            _exit(is_stopped ? 0 : 1);
        }
        if (wait_for(job)) _exit(1);
        close(ends[1]);
        // Its end comes when the signal kills the one that was stopped.
        struct pollfd end = {.fd = ends[0], .events = POLLIN};
        _exit(poll(&end, 1, 5000) == 1 && end.revents == POLLHUP ? 0 : 2);
    }
    close(ends[1]);
    CHECK(wait_for(shell) == 0);
    close(ends[0]);
}

static volatile int *hung_up;

static void counts_a_hang_up(int signal) {
    (void)signal;
    __atomic_add_fetch(hung_up, 1, __ATOMIC_SEQ_CST);
}

// The same with a group of many, none of whose members is the parent that ends: all hear of it, once.
static void a_large_group_hears_that_it_is_orphaned(void) {
    enum { MEMBERS = 100 };
    hung_up = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(hung_up != MAP_FAILED);
    pid_t shell = fork();
    if (shell == 0) {
        setsid();
        signal(SIGHUP, counts_a_hang_up);
        pid_t parent = fork();
        if (parent == 0) {
            setpgid(0, 0);
            pid_t first = 0, member = 0;
            for (int i = 0; i < MEMBERS; i++) {
                if ((member = fork()) == 0) for (;;) pause();
                if (!first) first = member;
                if (member < 0 || setpgid(member, first)) _exit(1);
            }
            int status;
            int is_stopped = !kill(member, SIGSTOP) && waitpid(member, &status, WUNTRACED) == member && WIFSTOPPED(status);
            hung_up[1] = first;
            _exit(is_stopped && hung_up[0] == 0 ? 0 : 1);
        }
        if (wait_for(parent)) _exit(2);
        for (int i = 0; i < 500 && hung_up[0] < MEMBERS; i++) usleep(10000);
        usleep(100000);
        kill(-hung_up[1], SIGKILL);
        _exit(hung_up[0] == MEMBERS ? 0 : 3);
    }
    CHECK(wait_for(shell) == 0);
}

static void vfork_lends_its_memory(void) {
    volatile int seen = 0;
    pid_t child = vfork();
    if (child == 0) {
        seen = 42;
        _exit(7);
    }
    CHECK(seen == 42);
    CHECK(WEXITSTATUS(wait_for(child)) == 7);
}

// Whoever waits for a mutex gets it when its owner runs another program.
static void exec_releases_robust_mutexes(void) {
    pthread_mutexattr_t kind;
    pthread_mutex_t *mutex = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(mutex != MAP_FAILED && !pthread_mutexattr_init(&kind));
    NEED(!pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST));
    NEED(!pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED) && !pthread_mutex_init(mutex, &kind));
    int held[2];
    NEED(!pipe(held));
    pid_t child = fork();
    if (child == 0) {
        if (pthread_mutex_lock(mutex) || write(held[1], "x", 1) != 1) _exit(1);
        usleep(50000);
        execl("/bin/sh", "sh", "-c", "sleep 10", (char *)0);
        _exit(2);
    }
    char byte;
    NEED(child > 0 && read(held[0], &byte, 1) == 1);
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 5;
    CHECK(pthread_mutex_timedlock(mutex, &until) == EOWNERDEAD);
    kill(child, SIGKILL);
    wait_for(child);
}

// The word of set_tid_address is zeroed by an exec in memory that another process has too, and not in the child's own.
static void exec_zeroes_the_word_of_a_thread(void) {
    static volatile int word;
    char *arguments[] = {"sh", "-c", "exit 5", 0}, *none[] = {0};
    word = 7;
    pid_t child = vfork();
    if (child == 0) {
        syscall(SYS_set_tid_address, &word);
        execve("/bin/sh", arguments, none);
        _exit(2);
    }
    CHECK(word == 0);
    CHECK(WEXITSTATUS(wait_for(child)) == 5);
    volatile int *shared = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(shared != MAP_FAILED);
    *shared = 7;
    child = fork();
    if (child == 0) {
        syscall(SYS_set_tid_address, shared);
        execve("/bin/sh", arguments, none);
        _exit(2);
    }
    CHECK(WEXITSTATUS(wait_for(child)) == 5);
    CHECK(*shared == 7);
}

static void broken_programs(void) {
    char *arguments[] = {"x", 0}, *none[] = {0};
    static char image[8192];
    memcpy(image, "\177ELF\2\1\1", 7);
    put("/tmp/broken", image, sizeof image, 0755);
    CHECK(run("/tmp/broken", arguments, none) == 201);
    put("/tmp/broken", "\177ELF", 4, 0755);
    CHECK(run("/tmp/broken", arguments, none) == 201);
    put("/tmp/broken", "", 0, 0755);
    CHECK(run("/tmp/broken", arguments, none) == 201);
    put("/tmp/broken", "no program at all\n", 18, 0755);
    CHECK(run("/tmp/broken", arguments, none) == 201);
    CHECK(run("/tmp", arguments, none) == 202);
    put("/tmp/broken", "#!/bin/sh\nexit 0\n", 17, 0644);
    CHECK(run("/tmp/broken", arguments, none) == 202);
    CHECK(run("/no/such/program", arguments, none) == 203);
    put("/tmp/broken", "#!/no/such/interpreter\n", 23, 0755);
    CHECK(run("/tmp/broken", arguments, none) == 203);
    unlink("/tmp/broken");
}

// A good program with one byte wrong: an error or a death, never more.
static void corrupt_headers(void) {
    int fd = open(self, O_RDONLY);
    static char image[1 << 20];
    ssize_t length = read(fd, image, sizeof image);
    NEED(length > 4096);
    char *arguments[] = {"x", "child", 0}, *none[] = {0};
    unsigned random = 12345;
    for (int round = 0; round < 120; round++) {
        random = random * 1103515245 + 12345;
        size_t at = (random >> 8) % 512;
        char old = image[at];
        image[at] ^= 1 << (random & 7);
        put("/tmp/corrupt", image, length, 0755);
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            alarm(2);
            execve("/tmp/corrupt", arguments, none);
            _exit(200);
        }
        NEED(wait_for(child) != -1);
        image[at] = old;
    }
    unlink("/tmp/corrupt");
}

static void scripts(void) {
    char *arguments[] = {"script", "one", "two words", 0}, *environment[] = {"PATH=/bin", 0};
    const char *text = "#!/bin/sh -e\n[ \"$0\" = /tmp/script ] && [ \"$2\" = 'two words' ] && exit 9\nexit 1\n";
    put("/tmp/script", text, strlen(text), 0755);
    CHECK(run("/tmp/script", arguments, environment) == 9);
    text = "#! /tmp/script first\n";
    put("/tmp/outer", text, strlen(text), 0755);
    text = "#!/bin/sh\n[ \"$1\" = first ] && [ \"$2\" = /tmp/outer ] && [ \"$3\" = one ] && exit 8\nexit 1\n";
    put("/tmp/script", text, strlen(text), 0755);
    CHECK(run("/tmp/outer", arguments, environment) == 8);
    unlink("/tmp/script"), unlink("/tmp/outer");
}

static void arguments_arrive(void) {
    static char long_one[100000];
    memset(long_one, 'x', sizeof long_one - 1);
    char *arguments[] = {"a", "arguments", "", long_one, 0}, *environment[] = {"KEY=value", "EMPTY=", 0};
    CHECK(run(self, arguments, environment) == 11);
    static char huge[3 << 20];
    memset(huge, 'x', sizeof huge - 1);
    char *too_much[] = {"a", huge, 0};
    CHECK(run(self, too_much, environment) == 204);
}

static void what_exec_keeps(void) {
    int kept = open("/etc/passwd", O_RDONLY), closed = open("/etc/passwd", O_RDONLY | O_CLOEXEC);
    char kept_text[16], closed_text[16], pid_text[16];
    signal(SIGUSR1, SIG_IGN);
    signal(SIGUSR2, SIG_DFL);
    sigset_t set;
    sigemptyset(&set), sigaddset(&set, SIGHUP), sigprocmask(SIG_BLOCK, &set, 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGTERM, (void (*)(int))exit);
        snprintf(kept_text, 16, "%d", kept), snprintf(closed_text, 16, "%d", closed);
        snprintf(pid_text, 16, "%d", getpid());
        char *arguments[] = {"a", "kept", kept_text, closed_text, pid_text, 0}, *none[] = {0};
        execve(self, arguments, none);
        _exit(200);
    }
    CHECK(WEXITSTATUS(wait_for(child)) == 12);
}

static void groups_and_sessions(void) {
    CHECK(getpgid(0) == getpgrp() && getsid(0) > 0);
    pid_t child = fork();
    if (child == 0) {
        CHECK(!setpgid(0, 0) && getpgrp() == getpid());
        FAILS(setsid(), EPERM);
        pid_t grandchild = fork();
        if (grandchild == 0) {
            CHECK(setsid() == getpid() && getsid(0) == getpid() && getpgrp() == getpid());
            _exit(failed_checks);
        }
        CHECK(wait_for(grandchild) == 0);
        _exit(failed_checks);
    }
    CHECK(wait_for(child) == 0);
    FAILS(getpgid(999999), ESRCH);
    FAILS(kill(999999, 0), ESRCH);
    CHECK(!kill(getpid(), 0));
}

static void a_signal_to_a_group(void) {
    pid_t leader = fork();
    if (leader == 0) {
        setpgid(0, 0);
        for (;;) pause();
    }
    setpgid(leader, leader);
    pid_t second = fork();
    if (second == 0) {
        setpgid(0, leader);
        for (;;) pause();
    }
    setpgid(second, leader);
    CHECK(!kill(-leader, SIGTERM));
    CHECK(WTERMSIG(wait_for(leader)) == SIGTERM && WTERMSIG(wait_for(second)) == SIGTERM);
}

static void identity(void) {
    CHECK(getuid() == 0 && geteuid() == 0 && getgid() == 0 && getegid() == 0);
    pid_t child = fork();
    if (child == 0) {
        CHECK(!setgid(1000) && !setuid(1000) && getuid() == 1000 && geteuid() == 1000 && getgid() == 1000);
        FAILS(setuid(0), EPERM);
        FAILS(kill(1, SIGTERM), EPERM);
        _exit(failed_checks);
    }
    CHECK(wait_for(child) == 0);
    char name[16] = {0};
    CHECK(!prctl(PR_SET_NAME, "renamed") && !prctl(PR_GET_NAME, name) && !strcmp(name, "renamed"));
}

// Lines of a file that begin with a word.
static int lines_with(const char *path, const char *word) {
    char line[4096];
    int count = 0;
    FILE *file = fopen(path, "r");
    NEED(file);
    while (fgets(line, sizeof line, file)) count += !strncmp(line, word, strlen(word));
    fclose(file);
    return count;
}

// A program's names write no lines of tables that others read.
static void names_end_no_line(void) {
    CHECK(!prctl(PR_SET_NAME, "a\\b\nUid:\t0\n"));
    CHECK(lines_with("/proc/self/status", "Name:\ta\\\\b\\nUid:\t0\\n\n") == 1);
    CHECK(lines_with("/proc/self/status", "Uid:") == 1 && lines_with("/proc/self/comm", "Uid:\t0") == 1);
    const char *path = "/tmp/a\nffff0000-ffff1000 r-xp";
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    NEED(fd >= 0 && !ftruncate(fd, 4096));
    void *at = mmap(0, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
    NEED(at != MAP_FAILED);
    CHECK(!lines_with("/proc/self/maps", "ffff0000-") && !lines_with("/proc/self/smaps", "ffff0000-"));
    munmap(at, 4096);
    close(fd);
    unlink(path);
}

// Told by name to who asked for it; a program's own name says nothing else there.
static void a_call_that_is_not_there(void) {
    CHECK(!prctl(PR_SET_NAME, "\nexit 7\n\033[2J"));
    CHECK(syscall(SYS_kexec_load, 0, 0, 0, 1 << 30) == -1);
    FAILS(syscall(4000), ENOSYS);
}

static void descriptors_are_limited(void) {
    struct rlimit limit = {20, 20};
    CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
    int fd, last = -1;
    while ((fd = open("/dev/null", O_RDONLY)) >= 0) last = fd;
    CHECK(errno == EMFILE && last == 19);
    FAILS(dup2(0, 20), EBADF);
}

static int as_a_child(int argc, char **argv) {
    if (!strcmp(argv[1], "arguments")) {
        int good = argc == 4 && !strcmp(argv[0], "a") && !*argv[2] && strlen(argv[3]) == 99999;
        good &= getenv("KEY") && !strcmp(getenv("KEY"), "value") && getenv("EMPTY") && !*getenv("EMPTY");
        return good ? 11 : 1;
    }
    if (!strcmp(argv[1], "kept")) {
        int good = fcntl(atoi(argv[2]), F_GETFD) == 0 && fcntl(atoi(argv[3]), F_GETFD) == -1 && getpid() == atoi(argv[4]);
        struct sigaction action;
        good &= !sigaction(SIGUSR1, 0, &action) && action.sa_handler == SIG_IGN;
        good &= !sigaction(SIGTERM, 0, &action) && action.sa_handler == SIG_DFL;
        sigset_t set;
        good &= !sigprocmask(SIG_BLOCK, 0, &set) && sigismember(&set, SIGHUP);
        return good ? 12 : 1;
    }
    return 0;
}

// The most that was resident: of memory that a program has left by exec, and of threads that end at the same time.
static void *touches_nothing(void *nothing) { return nothing; }

static void most_resident(void) {
    enum { MUCH = 4 << 20 };
    for (int way = 0; way < 3; way++) {
        pid_t child = fork();
        NEED(child >= 0);
        if (child == 0) {
            char *at = mmap(0, MUCH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            NEED(at != MAP_FAILED);
            memset(at, 1, MUCH);
            pthread_t threads[8];
            if (way == 1) for (int i = 0; i < 8; i++) NEED(!pthread_create(&threads[i], 0, touches_nothing, 0));
            if (way == 2) execl(self, self, "child", (char *)0);
            _exit(0);
        }
        struct rusage used;
        NEED(wait4(child, 0, 0, &used) == child);
        // Linux counts by batches of each CPU.
        CHECK(used.ru_maxrss >= MUCH / 1024 / 8 * 7 && used.ru_maxrss < MUCH / 1024 * 4);
    }
}

// A process that shares its descriptors with another one closes those of its own copy alone, if it says so.
static void descriptors_are_unshared_as_they_are_closed(void) {
    enum { UNSHARE = 2 };
    int fd = open("/dev/null", O_RDONLY);
    NEED(fd >= 0);
    pid_t child = syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
    if (child == 0) _exit(syscall(SYS_close_range, fd, fd, UNSHARE) || fcntl(fd, F_GETFD) != -1);
    NEED(child > 0);
    CHECK(wait_for(child) == 0);
    CHECK(fcntl(fd, F_GETFD) >= 0 && !close(fd));
}

// Only words that lie where locks do are marked.
static void a_robust_word_that_is_not_aligned(void) {
    struct list { void *next; long offset; void *pending; };
    static const int places[] = {2, PAGE - 2, 0};
    char *at = mmap(0, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(at != MAP_FAILED);
    for (int i = 0; i < 3; i++) {
        memset(at, 0, 2 * PAGE);
        pid_t child = fork();
        if (!child) {
            static struct list list;
            static void *node[2];
            int tid = syscall(SYS_gettid);
            node[0] = &list;
            list = (struct list){node, at + places[i] - (char *)node, 0};
            memcpy(at + places[i], &tid, sizeof tid);
            syscall(SYS_set_robust_list, &list, sizeof list);
            _exit(0);
        }
        unsigned word;
        CHECK(waitpid(child, 0, 0) == child);
        memcpy(&word, at + places[i], sizeof word);
        CHECK((word == 0x40000000) == (places[i] == 0));
    }
}

static void what_the_dead_tell(void) {
    siginfo_t info;
    pid_t child = fork();
    if (!child) _exit(3);
    NEED(!waitid(P_PID, child, &info, WEXITED | WNOWAIT));
    FAILS(waitid(P_PID, child, &info, WSTOPPED), ECHILD);
    FAILS(waitid(P_ALL, 0, &info, WSTOPPED | WCONTINUED), ECHILD);
    FAILS(waitid(P_ALL, 0, &info, WSTOPPED | WNOHANG), ECHILD);
    CHECK(!waitid(P_PID, child, &info, WEXITED) && info.si_status == 3);
}

static void clocks_of_cpu_time(void) {
    timer_t timer;
    struct timespec time;
    pid_t child = fork();
    if (!child) _exit(pause());
    CHECK(!clock_gettime((~child << 3) | 2, &time));
    FAILS(clock_gettime((~child << 3) | 6, &time), EINVAL);
    CHECK(!syscall(SYS_timer_create, (~getpid() << 3) | 2, 0, &timer));
    CHECK(!syscall(SYS_timer_create, -6, 0, &timer) && !syscall(SYS_timer_create, -2, 0, &timer));
    FAILS(syscall(SYS_timer_create, CLOCK_MONOTONIC_RAW, 0, &timer), EOPNOTSUPP);
    FAILS(syscall(SYS_timer_create, 12, 0, &timer), EINVAL);
    kill(child, SIGKILL), waitpid(child, 0, 0);
}

// A call that changes no id leaves that of file accesses too.
static void ids_that_stay(void) {
    syscall(SYS_setfsuid, 5);
    CHECK(!syscall(SYS_setresuid, -1, -1, -1) && syscall(SYS_setfsuid, -1) == 5);
    CHECK(!syscall(SYS_setresuid, 0, -1, 0) && syscall(SYS_setfsuid, -1) == 5);
    CHECK(!syscall(SYS_setresuid, 0, 0, 0) && syscall(SYS_setfsuid, -1) == 0);
    syscall(SYS_setfsuid, 5);
    CHECK(!syscall(SYS_setreuid, -1, -1) && syscall(SYS_setfsuid, -1) == 0);
    syscall(SYS_setfsgid, 5);
    CHECK(!syscall(SYS_setresgid, -1, -1, -1) && syscall(SYS_setfsgid, -1) == 5);
    CHECK(!syscall(SYS_setresgid, -1, 0, -1) && syscall(SYS_setfsgid, -1) == 0);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"exit_codes", exit_codes},
        {"waiting", waiting},
        {"a_hundred_children", a_hundred_children},
        {"children_are_listed", children_are_listed},
        {"descriptors_are_unshared_as_they_are_closed", descriptors_are_unshared_as_they_are_closed},
        {"orphans_find_a_parent", orphans_find_a_parent},
        {"numbers_come_round", numbers_come_round},
        {"a_stopped_group_hears_that_it_is_orphaned", a_stopped_group_hears_that_it_is_orphaned},
        {"a_large_group_hears_that_it_is_orphaned", a_large_group_hears_that_it_is_orphaned},
        {"vfork_lends_its_memory", vfork_lends_its_memory},
        {"exec_releases_robust_mutexes", exec_releases_robust_mutexes},
        {"exec_zeroes_the_word_of_a_thread", exec_zeroes_the_word_of_a_thread},
        {"broken_programs", broken_programs},
        {"corrupt_headers", corrupt_headers},
        {"scripts", scripts},
        {"arguments_arrive", arguments_arrive},
        {"what_exec_keeps", what_exec_keeps},
        {"groups_and_sessions", groups_and_sessions},
        {"a_signal_to_a_group", a_signal_to_a_group},
        {"identity", identity},
        {"names_end_no_line", names_end_no_line},
        {"a_call_that_is_not_there", a_call_that_is_not_there},
        {"descriptors_are_limited", descriptors_are_limited},
        {"most_resident", most_resident},
        {"a_robust_word_that_is_not_aligned", a_robust_word_that_is_not_aligned},
        {"what_the_dead_tell", what_the_dead_tell},
        {"clocks_of_cpu_time", clocks_of_cpu_time},
        {"ids_that_stay", ids_that_stay},
    };
    if (argc > 1 && (!strcmp(argv[1], "child") || !strcmp(argv[1], "arguments") || !strcmp(argv[1], "kept"))) {
        return as_a_child(argc, argv);
    }
    return RUN(cases, argc, argv);
}
