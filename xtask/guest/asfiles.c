// Timers and signals that are read like files, another process's memory, and where programs look for CPUs.
#include "check.h"
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <sys/uio.h>

static int ready(int fd) {
    struct pollfd one = {.fd = fd, .events = POLLIN};
    return poll(&one, 1, 0) == 1 && one.revents == POLLIN;
}

static struct itimerspec after(long ms, long interval_ms) {
    return (struct itimerspec){
        .it_value = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000},
        .it_interval = {.tv_sec = interval_ms / 1000, .tv_nsec = interval_ms % 1000 * 1000000},
    };
}

static void a_timer_is_read(void) {
    uint64_t count = 0;
    int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    NEED(fd >= 0);
    FAILS(read(fd, &count, 8), EAGAIN);
    CHECK(!ready(fd));
    struct itimerspec setting = after(50000, 0), left;
    CHECK(!timerfd_settime(fd, 0, &setting, 0));
    CHECK(!timerfd_gettime(fd, &left) && left.it_value.tv_sec > 0 && left.it_value.tv_sec < 50 && left.it_interval.tv_nsec == 0);
    CHECK(!ready(fd));
    setting = after(30, 0);
    CHECK(!timerfd_settime(fd, 0, &setting, 0));
    struct pollfd one = {.fd = fd, .events = POLLIN};
    CHECK(poll(&one, 1, 5000) == 1 && one.revents == POLLIN);
    FAILS(read(fd, &count, 7), EINVAL);
    CHECK(read(fd, &count, 8) == 8 && count == 1);
    FAILS(read(fd, &count, 8), EAGAIN);
    CHECK(!timerfd_gettime(fd, &left) && left.it_value.tv_sec == 0 && left.it_value.tv_nsec == 0);
    // One that is set anew forgets that it has run out.
    setting = after(1, 0);
    CHECK(!timerfd_settime(fd, 0, &setting, 0) && poll(&one, 1, 5000) == 1);
    setting = after(0, 0);
    CHECK(!timerfd_settime(fd, 0, &setting, 0) && !ready(fd));
    close(fd);
}

static void a_timer_repeats(void) {
    uint64_t count = 0, sum = 0;
    struct itimerspec setting = after(1, 5), old;
    int fd = timerfd_create(CLOCK_MONOTONIC, 0);
    NEED(fd >= 0 && !timerfd_settime(fd, 0, &setting, 0));
    usleep(60000);
    CHECK(read(fd, &count, 8) == 8 && count >= 10);
    while (sum < 5) {
        NEED(read(fd, &count, 8) == 8 && count > 0);
        sum += count;
    }
    setting = after(0, 0);
    CHECK(!timerfd_settime(fd, 0, &setting, &old) && old.it_interval.tv_nsec == 5000000);
    close(fd);
}

static void a_timer_at_a_time(void) {
    uint64_t count = 0;
    int clocks[] = {CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_BOOTTIME};
    for (int i = 0; i < 3; i++) {
        struct itimerspec setting = {0};
        int fd = timerfd_create(clocks[i], 0);
        NEED(fd >= 0 && !clock_gettime(clocks[i], &setting.it_value));
        setting.it_value.tv_sec++;
        CHECK(!timerfd_settime(fd, TFD_TIMER_ABSTIME, &setting, 0) && !ready(fd));
        CHECK(read(fd, &count, 8) == 8 && count == 1);
        struct timespec now;
        clock_gettime(clocks[i], &now);
        CHECK(now.tv_sec >= setting.it_value.tv_sec);
        // A time that is over.
        setting.it_value.tv_sec = 1;
        CHECK(!timerfd_settime(fd, TFD_TIMER_ABSTIME, &setting, 0) && read(fd, &count, 8) == 8 && count == 1);
        close(fd);
    }
}

static void timers_that_are_refused(void) {
    struct itimerspec setting = after(1, 0);
    FAILS(timerfd_create(CLOCK_THREAD_CPUTIME_ID, 0), EINVAL);
    FAILS(timerfd_create(CLOCK_MONOTONIC, 1), EINVAL);
    int fd = timerfd_create(CLOCK_MONOTONIC, 0);
    FAILS(timerfd_settime(0, 0, &setting, 0), EINVAL);
    FAILS(timerfd_settime(999, 0, &setting, 0), EBADF);
    FAILS(timerfd_settime(fd, 64, &setting, 0), EINVAL);
    FAILS(syscall(SYS_timerfd_settime, fd, 0, (void *)1, 0), EFAULT);
    setting.it_value.tv_nsec = 1000000000;
    FAILS(timerfd_settime(fd, 0, &setting, 0), EINVAL);
    FAILS(write(fd, &setting, 8), EINVAL);
    close(fd);
    // Timers that go with their files, at any moment.
    for (int i = 0; i < 300; i++) {
        setting = after(0, 1);
        setting.it_value.tv_nsec = 1 + i * 3000;
        fd = timerfd_create(CLOCK_MONOTONIC, 0);
        NEED(fd >= 0 && !timerfd_settime(fd, 0, &setting, 0));
        if (i % 3 == 0) usleep(200);
        close(fd);
    }
}

static void in_a_set_of_files(void) {
    sigset_t set;
    struct epoll_event event = {.events = EPOLLIN}, got[4];
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, 0);
    int timer = timerfd_create(CLOCK_MONOTONIC, 0), signals = signalfd(-1, &set, 0), all = epoll_create1(0);
    event.data.fd = timer;
    NEED(!epoll_ctl(all, EPOLL_CTL_ADD, timer, &event));
    event.data.fd = signals;
    NEED(!epoll_ctl(all, EPOLL_CTL_ADD, signals, &event));
    CHECK(epoll_wait(all, got, 4, 0) == 0);
    struct itimerspec setting = after(10, 0);
    timerfd_settime(timer, 0, &setting, 0);
    CHECK(epoll_wait(all, got, 4, 5000) == 1 && got[0].data.fd == timer);
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        usleep(20000);
        kill(parent, SIGUSR1);
        _exit(0);
    }
    uint64_t count;
    CHECK(read(timer, &count, 8) == 8);
    CHECK(epoll_wait(all, got, 4, 5000) == 1 && got[0].data.fd == signals);
    waitpid(child, 0, 0);
}

static void signals_are_read(void) {
    sigset_t set;
    struct signalfd_siginfo info[4];
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGRTMIN);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, 0);
    int fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    NEED(fd >= 0);
    FAILS(read(fd, info, sizeof info), EAGAIN);
    CHECK(!ready(fd));
    kill(getpid(), SIGUSR1);
    kill(getpid(), SIGUSR1);
    sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = 41});
    sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = 42});
    CHECK(ready(fd));
    FAILS(read(fd, info, sizeof info[0] - 1), EINVAL);
    CHECK(read(fd, info, sizeof info) == 3 * sizeof info[0]);
    CHECK(info[0].ssi_signo == SIGUSR1 && info[0].ssi_code == SI_USER && (pid_t)info[0].ssi_pid == getpid());
    CHECK(info[1].ssi_signo == (unsigned)SIGRTMIN && info[1].ssi_int == 41 && info[1].ssi_code == SI_QUEUE && info[2].ssi_int == 42);
    pid_t child = fork();
    if (child == 0) _exit(5);
    struct pollfd one = {.fd = fd, .events = POLLIN};
    CHECK(poll(&one, 1, 5000) == 1 && read(fd, info, sizeof info) == sizeof info[0]);
    CHECK(info[0].ssi_signo == SIGCHLD && info[0].ssi_code == CLD_EXITED && info[0].ssi_status == 5 && (pid_t)info[0].ssi_pid == child);
    waitpid(child, 0, 0);
    // For other signals from now on.
    sigdelset(&set, SIGUSR1);
    CHECK(signalfd(fd, &set, 0) == fd);
    kill(getpid(), SIGUSR1);
    FAILS(read(fd, info, sizeof info), EAGAIN);
    FAILS(signalfd(0, &set, 0), EINVAL);
    FAILS(signalfd(999, &set, 0), EBADF);
    FAILS(signalfd(-1, &set, 64), EINVAL);
}

static int its_fd;
static void *reads_a_signal(void *argument) {
    struct signalfd_siginfo info;
    return (void *)(long)(read(its_fd, &info, sizeof info) == sizeof info && info.ssi_int == (int)(long)argument);
}
static void a_thread_waits_for_a_signal(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 1);
    pthread_sigmask(SIG_BLOCK, &set, 0);
    its_fd = signalfd(-1, &set, 0);
    for (int i = 0; i < 50; i++) {
        pthread_t thread;
        void *well;
        NEED(!pthread_create(&thread, 0, reads_a_signal, (void *)(long)i));
        if (i & 1) usleep(2000);
        sigqueue(getpid(), SIGRTMIN + 1, (union sigval){.sival_int = i});
        CHECK(!pthread_join(thread, &well) && well);
    }
}

// --- another process's memory -----------------------------------------------------------------------------------

static char *far_memory;
static int to_parent[2], to_child[2];
static pid_t other(void) {
    far_memory = mmap(0, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 8 * PAGE; i++) far_memory[i] = (char)(i * 7 + (i >> 12));
    NEED(!pipe(to_parent) && !pipe(to_child));
    pid_t child = fork();
    if (child == 0) {
        char byte;
        mprotect(far_memory + 6 * PAGE, PAGE, PROT_READ);
        munmap(far_memory + 7 * PAGE, PAGE);
        far_memory[0] = 99;
        (void)!write(to_parent[1], "r", 1);
        (void)!read(to_child[0], &byte, 1);
        // What the parent wrote.
        _exit(memcmp(far_memory + PAGE - 3, "written", 7) != 0);
    }
    char byte;
    NEED(read(to_parent[0], &byte, 1) == 1);
    return child;
}

static void memory_of_another(void) {
    static char near[8 * PAGE];
    pid_t child = other();
    struct iovec here[2] = {{near, 100}, {near + 100, 3 * PAGE - 100}};
    struct iovec there[2] = {{far_memory, PAGE + 5}, {far_memory + 2 * PAGE + 1, 2 * PAGE - 5}};
    CHECK(process_vm_readv(child, here, 2, there, 2, 0) == 3 * PAGE);
    // The child's own byte, then what fork gave both.
    CHECK(near[0] == 99 && far_memory[0] == 0);
    CHECK(!memcmp(near + 1, far_memory + 1, PAGE + 4) && !memcmp(near + PAGE + 5, far_memory + 2 * PAGE + 1, 2 * PAGE - 5));
    memcpy(near, "written", 7);
    struct iovec word = {near, 7}, place = {far_memory + PAGE - 3, 7};
    CHECK(process_vm_writev(child, &word, 1, &place, 1, 0) == 7);
    CHECK(memcmp(far_memory + PAGE - 3, "written", 7));
    // Where it ends, and where it can't begin.
    struct iovec all = {near, 8 * PAGE}, tail = {far_memory + 5 * PAGE, 3 * PAGE};
    CHECK(process_vm_readv(child, &all, 1, &tail, 1, 0) == 2 * PAGE);
    tail.iov_base = far_memory + 7 * PAGE;
    FAILS(process_vm_readv(child, &all, 1, &tail, 1, 0), EFAULT);
    tail.iov_base = far_memory + 6 * PAGE;
    FAILS(process_vm_writev(child, &all, 1, &tail, 1, 0), EFAULT);
    tail.iov_base = (void *)-PAGE;
    FAILS(process_vm_readv(child, &all, 1, &tail, 1, 0), EFAULT);
    all.iov_base = (void *)8;
    tail.iov_base = far_memory;
    FAILS(process_vm_readv(child, &all, 1, &tail, 1, 0), EFAULT);
    FAILS(process_vm_writev(child, &all, 1, &tail, 1, 0), EFAULT);
    FAILS(process_vm_readv(child, &word, 1, &place, 1, 1), EINVAL);
    FAILS(process_vm_readv(child, &word, 2000, &place, 1, 0), EINVAL);
    FAILS(process_vm_readv(999999, &word, 1, &place, 1, 0), ESRCH);
    CHECK(process_vm_readv(child, &word, 0, &place, 1, 0) == 0);
    CHECK(process_vm_readv(getpid(), &word, 1, &place, 1, 0) == 7 && !memcmp(near, far_memory + PAGE - 3, 7));
    int status;
    CHECK(write(to_child[1], "g", 1) == 1 && waitpid(child, &status, 0) == child && status == 0);
}

static void memory_as_a_file(void) {
    static char near[8 * PAGE];
    char path[64];
    pid_t child = other();
    snprintf(path, sizeof path, "/proc/%d/mem", child);
    int fd = open(path, O_RDWR);
    NEED(fd >= 0);
    off_t there = (off_t)(uintptr_t)far_memory;
    CHECK(pread(fd, near, 3 * PAGE, there) == 3 * PAGE && near[0] == 99 && !memcmp(near + 1, far_memory + 1, 3 * PAGE - 1));
    CHECK(pwrite(fd, "written", 7, there + PAGE - 3) == 7 && memcmp(far_memory + PAGE - 3, "written", 7));
    // Up to a hole, and in it.
    CHECK(pread(fd, near, 8 * PAGE, there + 5 * PAGE) == 2 * PAGE);
    FAILS(pread(fd, near, 1, there + 7 * PAGE), EIO);
    FAILS(pwrite(fd, near, 1, there + 7 * PAGE), EIO);
    CHECK(lseek(fd, there, SEEK_SET) == there && read(fd, near, 1) == 1 && near[0] == 99);
    CHECK(read(fd, near, 1) == 1 && near[0] == far_memory[1]);
    int status;
    CHECK(write(to_child[1], "g", 1) == 1 && waitpid(child, &status, 0) == child && status == 0);
    // Of a process that has ended there is nothing left to read.
    CHECK(pread(fd, near, 1, there) <= 0);
    close(fd);
}

static void memory_of_a_stranger(void) {
    char byte;
    pid_t child = other();
    struct iovec here = {&byte, 1}, there = {far_memory, 1};
    if (geteuid() != 0) return;
    NEED(!setresgid(1000, 1000, 1000) && !setresuid(1000, 1000, 1000));
    FAILS(process_vm_readv(child, &here, 1, &there, 1, 0), EPERM);
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/mem", child);
    FAILS(open(path, O_RDONLY), EACCES);
    FAILS(process_vm_writev(child, &here, 1, &there, 1, 0), EPERM);
    CHECK(write(to_child[1], "g", 1) == 1);
}

// Written to from another CPU while the owner writes, forks and unmaps.
static void memory_of_one_who_works(void) {
    uint64_t *words = mmap(0, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pid_t child = fork();
    if (child == 0) {
        alarm(30);
        for (unsigned i = 0; !*(volatile uint64_t *)words; i++) {
            words[512 + i % 512] = i;
            if (i % 64 == 0) madvise(words + 1024, 8 * PAGE, MADV_DONTNEED);
            if (i % 128 == 0) {
                pid_t grandchild = fork();
                if (grandchild == 0) _exit(0);
                waitpid(grandchild, 0, 0);
            }
        }
        _exit(*words == 7 ? 0 : 1);
    }
    static uint64_t near[12 * PAGE / 8];
    for (int i = 0; i < 400; i++) {
        struct iovec here = {near, sizeof near}, there = {words + 512, sizeof near};
        if (i & 1) CHECK(process_vm_readv(child, &here, 1, &there, 1, 0) == sizeof near);
        else CHECK(process_vm_writev(child, &here, 1, &there, 1, 0) == sizeof near);
    }
    uint64_t seven = 7;
    struct iovec here = {&seven, 8}, there = {words, 8};
    int status;
    CHECK(process_vm_writev(child, &here, 1, &there, 1, 0) == 8);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static int text_of(const char *path, char *text, size_t room) {
    int fd = open(path, O_RDONLY);
    ssize_t got = fd < 0 ? -1 : read(fd, text, room - 1);
    if (fd >= 0) close(fd);
    text[got < 0 ? 0 : got] = 0;
    return got > 0;
}
static void cpus_are_listed(void) {
    char wanted[32], text[64], path[64];
    int count = (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (count == 1) snprintf(wanted, sizeof wanted, "0\n");
    else snprintf(wanted, sizeof wanted, "0-%d\n", count - 1);
    CHECK(text_of("/sys/devices/system/cpu/online", text, sizeof text) && !strcmp(text, wanted));
    CHECK(text_of("/sys/devices/system/cpu/present", text, sizeof text) && !strcmp(text, wanted));
    CHECK(text_of("/sys/devices/system/cpu/possible", text, sizeof text));
    for (int i = 0; i < count; i++) {
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d", i);
        struct stat about;
        CHECK(!stat(path, &about) && S_ISDIR(about.st_mode));
    }
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d", count);
    FAILS(open(path, O_RDONLY), ENOENT);
    CHECK(sysconf(_SC_NPROCESSORS_CONF) >= count);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"a_timer_is_read", a_timer_is_read},
        {"a_timer_repeats", a_timer_repeats},
        {"a_timer_at_a_time", a_timer_at_a_time},
        {"timers_that_are_refused", timers_that_are_refused},
        {"in_a_set_of_files", in_a_set_of_files},
        {"signals_are_read", signals_are_read},
        {"a_thread_waits_for_a_signal", a_thread_waits_for_a_signal},
        {"memory_of_another", memory_of_another},
        {"memory_as_a_file", memory_as_a_file},
        {"memory_of_a_stranger", memory_of_a_stranger},
        {"memory_of_one_who_works", memory_of_one_who_works},
        {"cpus_are_listed", cpus_are_listed},
    };
    return RUN(cases, argc, argv);
}
