// Process descriptors: what tells of the end of a process, whatever its number is used for since.
#include "check.h"
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>

enum { OPEN = SYS_pidfd_open, SEND = SYS_pidfd_send_signal, GETFD = SYS_pidfd_getfd };
static const idtype_t PIDFD = 3;

static int descriptor(pid_t pid, int flags) { return syscall(OPEN, pid, flags); }
static int sends(int fd, int number) { return syscall(SEND, fd, number, 0, 0); }

static pid_t pauses(void) {
    pid_t child = fork();
    if (child == 0) for (;;) pause();
    return child;
}

static int has_ended(int fd, int milliseconds) {
    struct pollfd one = {.fd = fd, .events = POLLIN | POLLOUT};
    int count = poll(&one, 1, milliseconds);
    CHECK(count == (one.revents != 0) && !(one.revents & ~POLLIN));
    return count;
}

static long number_in(int fd) {
    char path[64];
    sprintf(path, "/proc/self/fdinfo/%d", fd);
    return number_after(path, "\nPid:");
}

static void the_end_is_told(void) {
    siginfo_t info;
    pid_t child = pauses();
    int fd = descriptor(child, 0), set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET}, got;
    NEED(fd >= 0 && !epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC && fcntl(fd, F_GETFL) == O_RDWR && number_in(fd) == child);
    CHECK(!has_ended(fd, 0) && epoll_wait(set, &got, 1, 0) == 0);
    FAILS(read(fd, &info, 8), EINVAL);
    FAILS(write(fd, "x", 1), EINVAL);
    CHECK(!waitid(PIDFD, fd, &info, WEXITED | WNOHANG) && info.si_pid == 0);
    CHECK(!sends(fd, 0) && !sends(fd, SIGSTOP));
    CHECK(!waitid(PIDFD, fd, &info, WSTOPPED) && info.si_pid == child && info.si_status == SIGSTOP);
    CHECK(!has_ended(fd, 0));
    CHECK(!sends(fd, SIGKILL) && has_ended(fd, 10000) && epoll_wait(set, &got, 1, 10000) == 1);
    // It is there until it is collected.
    CHECK(number_in(fd) == child && !sends(fd, SIGTERM));
    int again = descriptor(child, 0);
    CHECK(again >= 0 && has_ended(again, 0));
    CHECK(!waitid(PIDFD, again, &info, WEXITED | WNOWAIT) && info.si_pid == child);
    CHECK(!waitid(PIDFD, fd, &info, WEXITED) && info.si_pid == child && info.si_status == SIGKILL);
    CHECK(has_ended(fd, 0) && has_ended(again, 0) && number_in(fd) == -1);
    FAILS(sends(fd, 0), ESRCH);
    FAILS(sends(again, SIGKILL), ESRCH);
    FAILS(waitid(PIDFD, fd, &info, WEXITED), ECHILD);
    FAILS(descriptor(child, 0), ESRCH);
    FAILS(syscall(GETFD, fd, 0, 0), ESRCH);
    close(fd), close(again), close(set);
}

static void *waits_for_it(void *fd) {
    siginfo_t info = {0};
    return (void *)(long)(!waitid(PIDFD, *(int *)fd, &info, WEXITED) ? info.si_pid : -errno);
}

// One that sleeps in poll, and one that sleeps in waitid, hear of it; so does one of a child that no process collects.
static void sleepers_hear_of_it(void) {
    for (int i = 0; i < 200; i++) {
        pid_t child = pauses();
        int fd = descriptor(child, 0);
        void *found;
        pthread_t thread;
        NEED(fd >= 0 && !pthread_create(&thread, 0, waits_for_it, &fd));
        pid_t killer = fork();
        if (killer == 0) {
            usleep(i * 37 % 2000);
            _exit(sends(fd, SIGKILL) != 0);
        }
        CHECK(has_ended(fd, 10000) && !pthread_join(thread, &found) && (long)found == child);
        int status;
        CHECK(waitpid(killer, &status, 0) == killer && status == 0);
        close(fd);
    }
    signal(SIGCHLD, SIG_IGN);
    pid_t child = pauses();
    int fd = descriptor(child, 0);
    CHECK(!sends(fd, SIGKILL) && has_ended(fd, 10000));
    signal(SIGCHLD, SIG_DFL);
    close(fd);
}

static void one_that_does_not_wait(void) {
    siginfo_t info;
    pid_t child = pauses();
    int fd = descriptor(child, O_NONBLOCK);
    NEED(fd >= 0);
    CHECK(fcntl(fd, F_GETFL) == (O_RDWR | O_NONBLOCK));
    FAILS(waitid(PIDFD, fd, &info, WEXITED), EAGAIN);
    CHECK(!waitid(PIDFD, fd, &info, WEXITED | WNOHANG));
    CHECK(!kill(child, SIGKILL) && has_ended(fd, 10000));
    CHECK(!waitid(PIDFD, fd, &info, WEXITED) && info.si_pid == child);
    close(fd);
}

static volatile int thread_id, thread_ends;

static void *another(void *nothing) {
    thread_id = syscall(SYS_gettid);
    while (!thread_ends) usleep(1000);
    return nothing;
}

static void what_is_refused(void) {
    siginfo_t info = {.si_signo = SIGUSR1, .si_code = SI_QUEUE};
    int pipes[2], own = descriptor(getpid(), 0);
    pthread_t thread;
    NEED(!pipe(pipes) && own >= 0 && !pthread_create(&thread, 0, another, 0));
    while (!thread_id) usleep(1000);
    FAILS(descriptor(thread_id, 0), EINVAL);
    thread_ends = 1;
    pthread_join(thread, 0);
    FAILS(descriptor(0, 0), EINVAL);
    FAILS(descriptor(-1, 0), EINVAL);
    FAILS(descriptor(4194303, 0), ESRCH);
    FAILS(descriptor(getpid(), O_CLOEXEC), EINVAL);
    FAILS(sends(-1, 0), EBADF);
    FAILS(sends(pipes[0], 0), EBADF);
    FAILS(sends(own, 65), EINVAL);
    FAILS(syscall(SEND, own, 0, 0, 1), EINVAL);
    FAILS(syscall(SEND, own, SIGUSR2, &info, 0), EINVAL);
    FAILS(syscall(SEND, own, SIGUSR1, (void *)8, 0), EFAULT);
    FAILS(waitid(PIDFD, pipes[0], &info, WEXITED), EBADF);
    FAILS(waitid(PIDFD, 99, &info, WEXITED), EBADF);
    FAILS(waitid(PIDFD, -1, &info, WEXITED), EINVAL);
    FAILS(waitid(PIDFD, own, &info, WEXITED), ECHILD);
    FAILS(syscall(GETFD, own, 99, 0), EBADF);
    FAILS(syscall(GETFD, own, 0, 1), EINVAL);
    FAILS(syscall(GETFD, pipes[0], 0, 0), EBADF);
    close(pipes[0]), close(pipes[1]), close(own);
}

static volatile siginfo_t heard;
static void hears(int number, siginfo_t *info, void *context) { (void)number, (void)context, heard = *info; }

static void signals_say_what_kill_says(void) {
    struct sigaction action = {.sa_sigaction = hears, .sa_flags = SA_SIGINFO};
    siginfo_t info = {.si_signo = SIGUSR1, .si_code = SI_QUEUE};
    int own = descriptor(getpid(), 0), folder = open("/proc/self", O_RDONLY | O_DIRECTORY);
    int system = open("/proc", O_RDONLY | O_DIRECTORY), threads = open("/proc/self/task", O_RDONLY | O_DIRECTORY);
    info.si_value.sival_int = 42;
    NEED(own >= 0 && folder >= 0 && !sigaction(SIGUSR1, &action, 0));
    CHECK(!sends(own, SIGUSR1) && heard.si_code == SI_USER && heard.si_pid == getpid() && heard.si_uid == getuid());
    CHECK(!syscall(SEND, own, SIGUSR1, &info, 0) && heard.si_code == SI_QUEUE && heard.si_value.sival_int == 42);
    heard.si_code = 99;
    CHECK(!sends(folder, SIGUSR1) && heard.si_code == SI_USER);
    FAILS(sends(system, 0), EBADF);
    FAILS(sends(threads, 0), EBADF);
    FAILS(waitid(PIDFD, folder, &info, WEXITED), EBADF);
    pid_t child = pauses();
    int other = descriptor(child, 0);
    info = (siginfo_t){.si_signo = SIGUSR1, .si_code = SI_USER};
    FAILS(syscall(SEND, other, SIGUSR1, &info, 0), EPERM);
    char path[32];
    sprintf(path, "/proc/%d", child);
    int of_child = open(path, O_RDONLY | O_DIRECTORY);
    CHECK(of_child >= 0 && !sends(of_child, SIGKILL) && waitpid(child, 0, 0) == child);
    FAILS(sends(of_child, SIGKILL), ESRCH);
    close(own), close(folder), close(system), close(threads), close(other), close(of_child);
}

struct asked { uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls; };

static pid_t clone3(uint64_t flags, void *pidfd, void *tid) {
    struct asked asked = {.flags = flags, .pidfd = (uint64_t)pidfd, .parent_tid = (uint64_t)tid, .exit_signal = SIGCHLD};
    pid_t child = syscall(SYS_clone3, &asked, sizeof asked);
    if (child == 0) _exit(fcntl(*(int *)pidfd, F_GETFD) == -1 && errno == EBADF ? 7 : 8);
    return child;
}

static void clone_gives_one(void) {
    siginfo_t info;
    int fd = -1, lowest = dup(0);
    close(lowest);
    pid_t child = clone3(CLONE_PIDFD, &fd, 0);
    NEED(child > 0 && fd == lowest);
    CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC && has_ended(fd, 10000) && number_in(fd) == child);
    CHECK(!waitid(PIDFD, fd, &info, WEXITED) && info.si_pid == child && info.si_status == 7);
    close(fd);
    child = syscall(SYS_clone, CLONE_PIDFD | SIGCHLD, 0, &fd, 0, 0);
    if (child == 0) _exit(9);
    CHECK(child > 0 && fd == lowest && !waitid(PIDFD, fd, &info, WEXITED) && info.si_status == 9);
    close(fd);
    child = syscall(SYS_clone, CLONE_PIDFD | CLONE_VFORK | SIGCHLD, 0, &fd, 0, 0);
    if (child == 0) _exit(10);
    CHECK(child > 0 && has_ended(fd, 10000) && !waitid(PIDFD, fd, &info, WEXITED) && info.si_status == 10);
    close(fd);
    FAILS(syscall(SYS_clone, CLONE_PIDFD | CLONE_PARENT_SETTID | SIGCHLD, 0, &fd, 0, 0), EINVAL);
    FAILS(syscall(SYS_clone, CLONE_PIDFD | CLONE_DETACHED | SIGCHLD, 0, &fd, 0, 0), EINVAL);
    FAILS(clone3(CLONE_PIDFD | CLONE_PARENT_SETTID, &fd, &fd), EINVAL);
    FAILS(clone3(CLONE_PIDFD | CLONE_THREAD | CLONE_SIGHAND | CLONE_VM, &fd, 0), EINVAL);
    FAILS(clone3(CLONE_PIDFD, (void *)8, 0), EFAULT);
    // No child was made, and its number is free.
    FAILS(wait(0), ECHILD);
    CHECK(dup(0) == lowest && !close(lowest));
}

// The child's number is open when the child begins.
static void a_child_finds_its_own(void) {
    volatile int *fd = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(fd != MAP_FAILED);
    for (int i = 0; i < 300; i++) {
        *fd = -1;
        pid_t child = syscall(SYS_clone, CLONE_PIDFD | CLONE_FILES | SIGCHLD, 0, fd, 0, 0);
        if (child == 0) _exit(*fd < 0 || fcntl(*fd, F_GETFD) != FD_CLOEXEC);
        int status;
        NEED(child > 0 && waitpid(child, &status, 0) == child);
        CHECK(!status);
        close(*fd);
    }
}

static void descriptors_of_others(void) {
    int pipes[2], go[2];
    char byte;
    NEED(!pipe(pipes) && !pipe(go));
    pid_t child = fork();
    if (child == 0) {
        close(pipes[0]);
        write(pipes[1], "a", 1);
        for (;;) pause();
    }
    close(pipes[1]);
    CHECK(read(pipes[0], &byte, 1) == 1);
    int fd = descriptor(child, 0), theirs = syscall(GETFD, fd, pipes[1], 0);
    CHECK(theirs >= 0 && fcntl(theirs, F_GETFD) == FD_CLOEXEC && write(theirs, "b", 1) == 1 && read(pipes[0], &byte, 1) == 1 && byte == 'b');
    pid_t stranger = fork();
    if (stranger == 0) {
        NEED(!setgid(1000) && !setuid(1000));
        FAILS(sends(fd, 0), EPERM);
        FAILS(sends(fd, SIGKILL), EPERM);
        FAILS(syscall(GETFD, fd, pipes[0], 0), EPERM);
        siginfo_t info;
        FAILS(waitid(PIDFD, fd, &info, WEXITED), ECHILD);
        CHECK(descriptor(1, 0) >= 0 && !has_ended(fd, 0));
        _exit(failed_checks != 0);
    }
    int status;
    CHECK(waitpid(stranger, &status, 0) == stranger && status == 0);
    CHECK(!sends(fd, SIGKILL) && waitpid(child, 0, 0) == child);
    close(fd), close(theirs), close(pipes[0]), close(go[0]), close(go[1]);
}

static void may_be_numbered_below(long end) {
    char text[32];
    int fd = open("/proc/sys/kernel/pid_max", O_WRONLY), length = sprintf(text, "%ld", end);
    NEED(fd >= 0 && write(fd, text, length) == length && !close(fd));
}

// The number becomes another process's: the descriptor doesn't lead there.
static void a_number_comes_round(void) {
    siginfo_t info;
    long before = number_after("/proc/sys/kernel/pid_max", "");
    may_be_numbered_below(512);
    pid_t first = pauses(), child = 0;
    int fd = descriptor(first, 0);
    CHECK(!sends(fd, SIGKILL) && waitpid(first, 0, 0) == first);
    for (int i = 0; i < 2000 && child != first; i++) {
        if (child > 0) kill(child, SIGKILL), waitpid(child, 0, 0);
        child = pauses();
    }
    NEED(child == first);
    int own = descriptor(child, 0);
    FAILS(sends(fd, SIGKILL), ESRCH);
    FAILS(waitid(PIDFD, fd, &info, WEXITED | WNOHANG), ECHILD);
    CHECK(has_ended(fd, 0) && !has_ended(own, 0) && number_in(fd) == -1 && number_in(own) == child);
    CHECK(!sends(own, SIGKILL) && !waitid(PIDFD, own, &info, WEXITED) && info.si_pid == child);
    may_be_numbered_below(before);
    close(fd), close(own);
}

#define CASE(name) {#name, name}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        CASE(the_end_is_told), CASE(sleepers_hear_of_it), CASE(one_that_does_not_wait), CASE(what_is_refused),
        CASE(signals_say_what_kill_says), CASE(clone_gives_one), CASE(a_child_finds_its_own), CASE(descriptors_of_others), CASE(a_number_comes_round),
    };
    return RUN(cases, argc, argv);
}
