// Signals that tell of open files: O_ASYNC for pipes, sockets and terminals, who is told (F_SETOWN and its like), by which signal
// (F_SETSIG), and by what right.
#include "check.h"
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>

static volatile sig_atomic_t count;
static volatile siginfo_t last;

static void note(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    count++;
    last = *info;
}

static void catch(int signal) {
    struct sigaction action = {.sa_sigaction = note, .sa_flags = SA_SIGINFO | SA_RESTART};
    NEED(!sigaction(signal, &action, 0));
}

static void async(int fd, int on) {
    int flags = fcntl(fd, F_GETFL);
    NEED(!fcntl(fd, F_SETFL, on ? flags | O_ASYNC : flags & ~O_ASYNC));
}

static void put(int fd) { NEED(write(fd, "x", 1) == 1); }
static void take(int fd) {
    char byte;
    NEED(read(fd, &byte, 1) == 1);
}

static void pipes_tell(void) {
    int ends[2];
    NEED(!pipe(ends));
    catch(SIGIO);
    CHECK(fcntl(ends[0], F_GETOWN) == 0 && fcntl(ends[0], F_GETSIG) == 0);
    async(ends[0], 1);
    CHECK(fcntl(ends[0], F_GETFL) & O_ASYNC);
    // No process was named.
    put(ends[1]);
    CHECK(count == 0);
    CHECK(!fcntl(ends[0], F_SETOWN, getpid()) && fcntl(ends[0], F_GETOWN) == getpid());
    put(ends[1]);
    CHECK(count == 1 && last.si_signo == SIGIO && last.si_code == SI_KERNEL);
    // Each write, though nobody has read.
    put(ends[1]);
    CHECK(count == 2);
    async(ends[0], 0);
    CHECK(!(fcntl(ends[0], F_GETFL) & O_ASYNC));
    put(ends[1]);
    CHECK(count == 2);
    int on = 1;
    CHECK(!ioctl(ends[0], FIOASYNC, &on));
    put(ends[1]);
    CHECK(count == 3);
    // The end of the writers is told.
    close(ends[1]);
    CHECK(count == 4);
    // A descriptor more is the same file, and the file's end is that of its signals.
    int again[2];
    NEED(!pipe(again) && !fcntl(again[0], F_SETOWN, getpid()));
    async(again[0], 1);
    int other = dup(again[0]);
    close(again[0]);
    put(again[1]);
    CHECK(count == 5 && (fcntl(other, F_GETFL) & O_ASYNC));
    close(other);
    CHECK(count == 5);
}

static void writers_are_told_of_room(void) {
    int ends[2];
    static char many[65536];
    NEED(!pipe2(ends, O_NONBLOCK) && !fcntl(ends[1], F_SETOWN, getpid()));
    NEED(write(ends[1], many, sizeof many) == sizeof many);
    catch(SIGRTMIN);
    CHECK(!fcntl(ends[1], F_SETSIG, SIGRTMIN) && fcntl(ends[1], F_GETSIG) == SIGRTMIN);
    async(ends[1], 1);
    CHECK(count == 0);
    NEED(read(ends[0], many, sizeof many) == sizeof many);
    CHECK(count == 1 && last.si_code == POLL_OUT && last.si_fd == ends[1] && last.si_band == (POLLOUT | POLLWRNORM | POLLWRBAND));
}

static void signals_carry_what_happened(void) {
    int pair[2];
    NEED(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    FAILS(fcntl(pair[0], F_SETSIG, 65), EINVAL);
    FAILS(fcntl(pair[0], F_SETSIG, -1), EINVAL);
    NEED(!fcntl(pair[0], F_SETSIG, SIGRTMIN + 1) && !fcntl(pair[0], F_SETOWN, getpid()));
    sigset_t set;
    sigemptyset(&set), sigaddset(&set, SIGRTMIN + 1), sigprocmask(SIG_BLOCK, &set, 0);
    async(pair[0], 1);
    for (int i = 0; i < 3; i++) put(pair[1]);
    struct timespec now = {0};
    siginfo_t info;
    for (int i = 0; i < 3; i++) {
        CHECK(sigtimedwait(&set, &info, &now) == SIGRTMIN + 1);
        CHECK(info.si_code == POLL_IN && info.si_fd == pair[0] && info.si_band == (POLLIN | POLLRDNORM));
    }
    FAILS(sigtimedwait(&set, &info, &now), EAGAIN);
    // The same in a signalfd.
    int fd = signalfd(-1, &set, SFD_NONBLOCK);
    struct signalfd_siginfo got;
    put(pair[1]);
    CHECK(read(fd, &got, sizeof got) == sizeof got && got.ssi_code == POLL_IN && got.ssi_fd == pair[0] && got.ssi_band == (POLLIN | POLLRDNORM));
    // A signal whose codes mean something else has one that says so.
    catch(SIGCHLD);
    NEED(!fcntl(pair[0], F_SETSIG, SIGCHLD));
    put(pair[1]);
    CHECK(count == 1 && last.si_code == -5 /* SI_SIGIO */);
    // Back to SIGIO without more.
    catch(SIGIO);
    NEED(!fcntl(pair[0], F_SETSIG, 0));
    put(pair[1]);
    CHECK(count == 2 && last.si_signo == SIGIO && last.si_code == SI_KERNEL);
}

static void listeners_tell_of_connections(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0), who = getpid(), got = 0;
    struct { char name[16]; short flags; char rest[22]; } loopback = {"lo", 1 | 64, ""};
    ioctl(listener, 0x8914 /* SIOCSIFFLAGS */, &loopback);
    NEED(!bind(listener, (void *)&address, length) && !listen(listener, 4) && !getsockname(listener, (void *)&address, &length));
    catch(SIGIO);
    CHECK(!ioctl(listener, FIOSETOWN, &who) && !ioctl(listener, SIOCGPGRP, &got) && got == who);
    async(listener, 1);
    NEED(!connect(client, (void *)&address, length));
    for (int i = 0; i < 100 && !count; i++) usleep(10000);
    CHECK(count >= 1);
    int one = accept(listener, 0, 0), before = count;
    CHECK(one >= 0 && !(fcntl(one, F_GETFL) & O_ASYNC));
    put(client);
    CHECK(count == before);
}

// What is typed at a terminal is told to the group in the foreground, if none was named.
static void terminals_tell(void) {
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    NEED(master >= 0 && !grantpt(master) && !unlockpt(master));
    char name[64];
    NEED(!ptsname_r(master, name, sizeof name));
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        NEED(setsid() > 0);
        int slave = open(name, O_RDWR);
        NEED(slave >= 0);
        catch(SIGIO);
        async(slave, 1);
        CHECK(fcntl(slave, F_GETOWN) == -getpid());
        CHECK(write(master, "line\n", 5) == 5);
        for (int i = 0; i < 100 && !count; i++) usleep(10000);
        CHECK(count == 1);
        // What is written there is told at the other end.
        int other = fcntl(master, F_SETFL, O_ASYNC | O_RDWR);
        CHECK(!other && !fcntl(master, F_SETOWN, getpid()));
        count = 0;
        CHECK(write(slave, "x", 1) == 1);
        for (int i = 0; i < 100 && !count; i++) usleep(10000);
        CHECK(count >= 1);
        _exit(failed_checks != 0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void owners_are_named(void) {
    int ends[2];
    struct f_owner_ex owner = {F_OWNER_TID, getpid()}, got;
    NEED(!pipe(ends));
    FAILS(fcntl(ends[0], F_SETOWN, 999999), ESRCH);
    FAILS(fcntl(ends[0], F_SETOWN, -999999), ESRCH);
    FAILS(fcntl(ends[0], F_SETOWN, (int)0x80000000), EINVAL);
    CHECK(fcntl(ends[0], F_GETOWN) == 0);
    CHECK(!fcntl(ends[0], F_SETOWN_EX, &owner) && !fcntl(ends[0], F_GETOWN_EX, &got) && got.type == F_OWNER_TID && got.pid == getpid());
    owner = (struct f_owner_ex){F_OWNER_PGRP, getpgrp()};
    CHECK(!fcntl(ends[0], F_SETOWN_EX, &owner) && fcntl(ends[0], F_GETOWN) == -getpgrp());
    owner.type = 7;
    FAILS(fcntl(ends[0], F_SETOWN_EX, &owner), EINVAL);
    FAILS(fcntl(ends[0], F_SETOWN_EX, 8), EFAULT);
    CHECK(!fcntl(ends[0], F_GETOWN_EX, &got) && got.type == F_OWNER_PGRP && got.pid == getpgrp());
    CHECK(!fcntl(ends[0], F_SETOWN, 0) && fcntl(ends[0], F_GETOWN) == 0);
    // One that has ended is none, and hears nothing.
    pid_t child = fork();
    if (child == 0) pause();
    CHECK(!fcntl(ends[0], F_SETOWN, child) && fcntl(ends[0], F_GETOWN) == child);
    kill(child, SIGKILL), waitpid(child, 0, 0);
    CHECK(fcntl(ends[0], F_GETOWN) == 0);
    async(ends[0], 1);
    put(ends[1]);
    // Files of other kinds have owners, and tell nothing.
    int plain = open("/owned", O_CREAT | O_RDWR, 0600), number = eventfd(0, 0), path = open("/owned", O_PATH);
    CHECK(!fcntl(plain, F_SETOWN, getpid()) && fcntl(plain, F_GETOWN) == getpid());
    async(plain, 1), async(number, 1);
    CHECK(!(fcntl(plain, F_GETFL) & O_ASYNC) && !(fcntl(number, F_GETFL) & O_ASYNC));
    int on = 1;
    FAILS(ioctl(number, FIOASYNC, &on), ENOTTY);
    FAILS(fcntl(path, F_SETOWN, getpid()), EBADF);
    FAILS(fcntl(path, F_SETSIG, SIGIO), EBADF);
    unlink("/owned");
}

static int told[2];
static volatile int thread_id, heard_by;

static void note_thread(int signal) { (void)signal, heard_by = syscall(SYS_gettid); }

static void *waits_for_signals(void *unused) {
    sigset_t none;
    sigemptyset(&none);
    thread_id = syscall(SYS_gettid);
    for (int i = 0; i < 100 && !heard_by; i++) usleep(10000);
    return unused;
}

static void a_thread_or_a_group_is_told(void) {
    NEED(!pipe(told));
    signal(SIGIO, note_thread);
    pthread_t thread;
    NEED(!pthread_create(&thread, 0, waits_for_signals, 0));
    while (!thread_id) usleep(1000);
    struct f_owner_ex owner = {F_OWNER_TID, thread_id};
    NEED(!fcntl(told[0], F_SETOWN_EX, &owner));
    async(told[0], 1);
    put(told[1]);
    pthread_join(thread, 0);
    CHECK(heard_by == thread_id);
    // All of a group.
    NEED(!setpgid(0, 0));
    int answers[2];
    NEED(!pipe(answers));
    catch(SIGIO);
    for (int i = 0; i < 3; i++) {
        pid_t child = fork();
        NEED(child >= 0);
        if (child == 0) {
            count = 0;
            put(answers[1]);
            for (int n = 0; n < 500 && !count; n++) usleep(10000);
            _exit(count == 1 ? 0 : 1);
        }
    }
    for (int i = 0; i < 3; i++) take(answers[0]);
    NEED(!fcntl(told[0], F_SETOWN, -getpgrp()));
    count = 0;
    put(told[1]);
    CHECK(count == 1);
    for (int i = 0; i < 3; i++) {
        int status = -1;
        CHECK(wait(&status) > 0 && status == 0);
    }
}

// The ids of the process that named the other one count, whatever writes.
static void rights_are_the_setters(void) {
    int ends[2], go[2];
    NEED(!pipe(ends) && !pipe(go));
    pid_t target = fork();
    NEED(target >= 0);
    if (target == 0) {
        catch(SIGIO);
        put(go[1]);
        for (int n = 0; n < 20; n++) usleep(10000);
        _exit(count ? 9 : 0);
    }
    take(go[0]);
    // Another user may name root's process, which hears nothing even if root writes.
    pid_t other = fork();
    NEED(other >= 0);
    if (other == 0) {
        NEED(!setgid(4711) && !setuid(4711));
        NEED(!fcntl(ends[0], F_SETOWN, target) && !fcntl(ends[0], F_SETSIG, SIGKILL));
        async(ends[0], 1);
        put(ends[1]);
        _exit(failed_checks != 0);
    }
    int status = -1;
    CHECK(waitpid(other, &status, 0) == other && status == 0);
    put(ends[1]);
    CHECK(waitpid(target, &status, 0) == target && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    // Root's word holds on after root has become another.
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        catch(SIGIO);
        put(go[1]);
        for (int n = 0; n < 500 && !count; n++) usleep(10000);
        _exit(count == 1 ? 0 : 9);
    }
    take(go[0]);
    NEED(!fcntl(ends[0], F_SETOWN, child) && !fcntl(ends[0], F_SETSIG, 0));
    pid_t writer = fork();
    if (writer == 0) {
        NEED(!setgid(4711) && !setuid(4711));
        put(ends[1]);
        _exit(0);
    }
    CHECK(waitpid(writer, 0, 0) == writer && waitpid(child, &status, 0) == child && status == 0);
}

// A queue of real-time signals that is full: SIGIO says so.
static void full_queues_are_told(void) {
    int ends[2];
    NEED(!setgid(4712) && !setuid(4712) && !pipe(ends));
    struct rlimit { long soft, hard; } most = {3, 3};
    NEED(!syscall(SYS_setrlimit, 11 /* RLIMIT_SIGPENDING */, &most));
    sigset_t set;
    sigemptyset(&set), sigaddset(&set, SIGRTMIN), sigaddset(&set, SIGIO), sigprocmask(SIG_BLOCK, &set, 0);
    NEED(!fcntl(ends[0], F_SETOWN, getpid()) && !fcntl(ends[0], F_SETSIG, SIGRTMIN));
    async(ends[0], 1);
    for (int i = 0; i < 10; i++) put(ends[1]);
    struct timespec now = {0};
    int plain = 0, with = 0;
    for (int got; (got = sigtimedwait(&set, 0, &now)) > 0;) got == SIGIO ? plain++ : with++;
    CHECK(plain == 1 && with == 3);
}

enum { ROUNDS = 3000 };
static int raced[2];
static volatile int over;

static void *switches(void *unused) {
    for (int i = 0; i < ROUNDS; i++) {
        fcntl(raced[0], F_SETFL, i % 2 ? O_ASYNC | O_NONBLOCK : O_NONBLOCK);
        fcntl(raced[0], F_SETOWN, i % 3 ? getpid() : 0);
        fcntl(raced[0], F_SETSIG, i % 5 ? SIGRTMIN : 0);
    }
    return unused;
}

static void *writes_and_reads(void *unused) {
    char byte;
    while (!over) {
        if (write(raced[1], "x", 1) < 0) {}
        if (read(raced[0], &byte, 1) < 0) {}
    }
    return unused;
}

static void switches_race_with_writes(void) {
    pthread_t threads[4];
    catch(SIGIO), catch(SIGRTMIN);
    NEED(!pipe2(raced, O_NONBLOCK));
    for (int i = 0; i < 4; i++) NEED(!pthread_create(&threads[i], 0, i < 2 ? switches : writes_and_reads, 0));
    for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
    over = 1;
    for (int i = 2; i < 4; i++) pthread_join(threads[i], 0);
    NEED(!fcntl(raced[0], F_SETFL, O_NONBLOCK) && !fcntl(raced[0], F_SETSIG, 0) && !fcntl(raced[0], F_SETOWN, getpid()));
    count = 0;
    put(raced[1]);
    CHECK(count == 0);
    async(raced[0], 1);
    put(raced[1]);
    CHECK(count == 1);
}

// One pipe, opened many times: few of one user's are told, and the rest are refused.
static void few_of_one_user_are_told(void) {
    int ends[2], refused = 0;
    char path[64];
    NEED(!pipe(ends));
    sprintf(path, "/proc/self/fd/%d", ends[0]);
    for (int i = 0; i < 100; i++) {
        int one = open(path, O_RDONLY | O_NONBLOCK);
        NEED(one >= 0 && !fcntl(one, F_SETOWN, getpid()));
        refused += fcntl(one, F_SETFL, O_ASYNC | O_NONBLOCK) != 0;
    }
    signal(SIGIO, SIG_IGN);
    put(ends[1]);
    CHECK(access("/proc/audit", F_OK) || refused == 100 - 8);
}

#define CASE(name) {#name, name}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        CASE(pipes_tell), CASE(writers_are_told_of_room), CASE(signals_carry_what_happened), CASE(listeners_tell_of_connections), CASE(terminals_tell),
        CASE(owners_are_named), CASE(a_thread_or_a_group_is_told), CASE(rights_are_the_setters), CASE(full_queues_are_told),
        CASE(switches_race_with_writes), CASE(few_of_one_user_are_told),
    };
    return RUN(cases, argc, argv);
}
