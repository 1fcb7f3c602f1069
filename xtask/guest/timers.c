// Timers that run out faster than anybody can handle: what they count, and what they leave a program of its CPU.
//
// The machine's clock counts instructions, so the CPU's share is the same in each run.
#include "check.h"
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/timerfd.h>

enum { TIMERS = 32 };
static const long MS = 1000000, SECOND = 1000000000;

static long nanos(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * SECOND + now.tv_nsec;
}

// How far a computation comes in a while.
static long computed(long span) {
    long end = nanos() + span, count = 0;
    volatile long sink = 0;
    for (; nanos() < end; count++)
        for (int i = 0; i < 1000; i++) sink += i;
    return count;
}

static volatile long handled;
static void handler(int signal) {
    (void)signal;
    handled++;
}

static timer_t timer(int signal, long first, long interval) {
    timer_t id;
    struct sigevent event = {.sigev_notify = signal ? SIGEV_SIGNAL : SIGEV_NONE, .sigev_signo = signal};
    struct itimerspec setting = {{interval / SECOND, interval % SECOND}, {first / SECOND, first % SECOND}};
    NEED(!timer_create(CLOCK_MONOTONIC, &event, &id));
    NEED(!timer_settime(id, 0, &setting, 0));
    return id;
}

// Percent of its CPU that a program has beside what `start` sets going.
static long share(const char *what, void (*start)(void)) {
    long alone = computed(200 * MS);
    start();
    long beside = computed(400 * MS) / 2;
    printf("  %s: %ld %% of the CPU are left, %ld signals handled\n", what, beside * 100 / alone, handled);
    fflush(stdout);
    return beside * 100 / alone;
}

static void block(int signal) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    sigprocmask(SIG_BLOCK, &set, 0);
}

static void start_all(void) {
    for (int i = 0; i < TIMERS; i++) timer(SIGUSR1, 1, 1);
}

static void start_ignored(void) {
    signal(SIGUSR1, SIG_IGN);
    start_all();
}
static void ignored_timers_leave_the_cpu(void) { CHECK(share("ignored", start_ignored) >= 58); }

static void start_blocked(void) {
    block(SIGUSR1);
    start_all();
}
static void blocked_timers_leave_the_cpu(void) { CHECK(share("blocked", start_blocked) >= 95); }

static void start_discarded(void) {
    start_blocked();
    // What is pending is thrown away by this.
    signal(SIGUSR1, SIG_IGN);
    signal(SIGUSR1, handler);
}
static void discarded_timers_leave_the_cpu(void) { CHECK(share("discarded", start_discarded) >= 58); }

static void start_files(void) {
    for (int i = 0; i < TIMERS; i++) {
        struct itimerspec setting = {{0, 1}, {0, 1}};
        int fd = timerfd_create(CLOCK_MONOTONIC, 0);
        NEED(fd >= 0 && !timerfd_settime(fd, 0, &setting, 0));
    }
}
static void timers_as_files_leave_the_cpu(void) { CHECK(share("files", start_files) >= 95); }

static void start_itimers(void) {
    struct itimerval setting = {{0, 1}, {0, 1}};
    signal(SIGALRM, SIG_IGN);
    signal(SIGVTALRM, SIG_IGN);
    signal(SIGPROF, SIG_IGN);
    setitimer(ITIMER_REAL, &setting, 0);
    setitimer(ITIMER_VIRTUAL, &setting, 0);
    setitimer(ITIMER_PROF, &setting, 0);
}
static void interval_timers_leave_the_cpu(void) { CHECK(share("setitimer", start_itimers) >= 58); }

static void start_cpu_time(void) {
    signal(SIGUSR1, SIG_IGN);
    for (int i = 0; i < TIMERS; i++) {
        timer_t id;
        struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
        struct itimerspec setting = {{0, 1}, {0, 1}};
        NEED(!timer_create(CLOCK_PROCESS_CPUTIME_ID, &event, &id) && !timer_settime(id, 0, &setting, 0));
    }
}
static void timers_on_cpu_time_leave_the_cpu(void) { CHECK(share("CPU time", start_cpu_time) >= 58); }

static int take(int number, siginfo_t *info) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, number);
    struct timespec now = {0, 0};
    return sigtimedwait(&set, info, &now);
}

static const int PROCESSES = 30;

// A user's processes that wait, each with as many timers of a nanosecond as it is given.
static void start_processes(clockid_t clock, int blocked) {
    int ready[2], made;
    long all = 0;
    NEED(!pipe(ready));
    for (int i = 0; i < PROCESSES; i++) {
        pid_t pid = fork();
        NEED(pid >= 0);
        if (pid) continue;
        struct itimerspec setting = {{0, 1}, {0, 1}};
        struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN};
        timer_t id;
        NEED(!setgid(1000) && !setuid(1000) && !prctl(PR_SET_PDEATHSIG, SIGKILL));
        if (blocked) block(SIGRTMIN);
        else signal(SIGRTMIN, SIG_IGN);
        for (made = 0; !timer_create(clock, &event, &id); made++) timer_settime(id, 0, &setting, 0);
        CHECK(errno == EAGAIN);
        NEED(write(ready[1], &made, sizeof made) == sizeof made);
        for (;;) pause();
    }
    for (int i = 0; i < PROCESSES; i++, all += made) NEED(read(ready[0], &made, sizeof made) == sizeof made);
    struct rlimit limit;
    NEED(!getrlimit(RLIMIT_SIGPENDING, &limit));
    printf("  %ld timers of %d processes\n", all, PROCESSES);
    CHECK(all == (long)limit.rlim_cur);
}
static void start_blocked_processes(void) { start_processes(CLOCK_MONOTONIC, 1); }
static void start_ignored_processes(void) { start_processes(CLOCK_MONOTONIC, 0); }
static void start_processes_of_cpu_time(void) { start_processes(CLOCK_PROCESS_CPUTIME_ID, 0); }
static void a_users_timers_leave_the_cpu(void) {
    CHECK(share("blocked in many processes", start_blocked_processes) >= 95);
}
static void a_users_ignored_timers_leave_the_cpu(void) {
    CHECK(share("ignored in many processes", start_ignored_processes) >= 58);
}
static void a_users_timers_on_cpu_time_leave_the_cpu(void) {
    CHECK(share("on CPU time in many processes", start_processes_of_cpu_time) >= 58);
}

// The places are `RLIMIT_SIGPENDING`'s, which signals of `sigqueue` take as well; a timer has its own until it is
// deleted and its last signal is taken.
static void timers_have_places_among_pending_signals(void) {
    enum { PLACES = 10 };
    struct rlimit limit = {PLACES, PLACES};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN};
    struct itimerspec stop = {{0, 0}, {0, 0}};
    union sigval value = {0};
    siginfo_t info;
    timer_t ids[PLACES], more;
    NEED(!setrlimit(RLIMIT_SIGPENDING, &limit));
    block(SIGRTMIN);
    for (int i = 0; i < PLACES; i++) ids[i] = timer(SIGRTMIN, 1, 1);
    FAILS(timer_create(CLOCK_MONOTONIC, &event, &more), EAGAIN);
    FAILS(sigqueue(getpid(), SIGRTMIN + 1, value), EAGAIN);
    usleep(1000);
    for (int i = 0; i < PLACES; i++) NEED(!timer_settime(ids[i], 0, &stop, 0));
    NEED(!timer_delete(ids[0]));
    FAILS(timer_create(CLOCK_MONOTONIC, &event, &more), EAGAIN);
    for (int i = 0; i < PLACES; i++) CHECK(take(SIGRTMIN, &info) == SIGRTMIN);
    CHECK(take(SIGRTMIN, &info) == -1);
    CHECK(!timer_create(CLOCK_MONOTONIC, &event, &more));
    event.sigev_notify = SIGEV_NONE;
    FAILS(timer_create(CLOCK_MONOTONIC, &event, &more), EAGAIN);
}

// --- what is counted ----------------------------------------------------------------------------------------------

static void overruns_are_counted_when_the_signal_is_taken(void) {
    siginfo_t info;
    block(SIGUSR1);
    block(SIGRTMIN);
    long start = nanos();
    timer_t plain = timer(SIGUSR1, MS, MS), other = timer(SIGUSR1, MS, MS), real = timer(SIGRTMIN, 2 * MS, 2 * MS);
    while (nanos() < start + 50 * MS) {
    }
    // Two timers with one signal: each has its own.
    int seen = 0;
    for (int i = 0; i < 2; i++) {
        NEED(take(SIGUSR1, &info) == SIGUSR1);
        long passed = (nanos() - start) / MS;
        CHECK(info.si_code == SI_TIMER && info.si_overrun >= 40 && info.si_overrun <= passed);
        CHECK(info.si_overrun == timer_getoverrun(info.si_timerid == (int)(long)plain ? plain : other));
        seen |= info.si_timerid == (int)(long)plain ? 1 : 2;
    }
    CHECK(seen == 3);
    NEED(take(SIGRTMIN, &info) == SIGRTMIN);
    CHECK(info.si_overrun >= 20 && info.si_overrun <= (nanos() - start) / (2 * MS) && timer_getoverrun(real) == info.si_overrun);
    // They go on, and what was counted once isn't again.
    while (take(SIGRTMIN, &info) != SIGRTMIN) {
    }
    CHECK(info.si_overrun <= 3);
    CHECK(!timer_delete(plain) && !timer_delete(other) && !timer_delete(real));
}

// What is pending isn't sent anew because the program sets a handler.
static void a_new_handler_loses_no_overruns(void) {
    siginfo_t info;
    block(SIGUSR1);
    timer_t id = timer(SIGUSR1, MS, MS);
    long start = nanos();
    while (nanos() < start + 50 * MS) {
    }
    signal(SIGUSR1, handler);
    NEED(take(SIGUSR1, &info) == SIGUSR1);
    CHECK(info.si_overrun >= 40 && info.si_overrun == timer_getoverrun(id));
}

static void overruns_have_a_most(void) {
    siginfo_t info;
    block(SIGUSR1);
    timer_t id = timer(SIGUSR1, 1, 1);
    long start = nanos();
    while (nanos() < start + 3 * SECOND) {
    }
    NEED(take(SIGUSR1, &info) == SIGUSR1);
    CHECK(timer_getoverrun(id) == 0x7fffffff);
}

static void a_fired_timer_says_what_is_left(void) {
    struct itimerspec now;
    block(SIGUSR1);
    timer_t fired = timer(SIGUSR1, MS, 50 * MS), none = timer(0, MS, 50 * MS), once = timer(0, MS, 0);
    long start = nanos();
    while (nanos() < start + 70 * MS) {
    }
    CHECK(!timer_gettime(fired, &now) && now.it_value.tv_nsec > 0 && now.it_value.tv_nsec <= 50 * MS);
    CHECK(!timer_gettime(none, &now) && now.it_value.tv_nsec > 0 && now.it_value.tv_nsec <= 50 * MS);
    CHECK(!timer_gettime(once, &now) && now.it_value.tv_nsec == 0 && now.it_value.tv_sec == 0);
}

static void a_file_counts_when_it_is_read(void) {
    struct itimerspec setting = {{0, MS}, {0, MS}};
    uint64_t count = 0;
    int fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    NEED(fd >= 0 && !timerfd_settime(fd, 0, &setting, 0));
    long start = nanos();
    FAILS(read(fd, &count, sizeof count), EAGAIN);
    while (nanos() < start + 50 * MS) {
    }
    struct pollfd poll_it = {.fd = fd, .events = POLLIN};
    CHECK(poll(&poll_it, 1, 0) == 1);
    CHECK(read(fd, &count, sizeof count) == sizeof count);
    CHECK(count >= 40 && count <= (uint64_t)(nanos() - start) / MS + 1);
    CHECK(poll(&poll_it, 1, 1000) == 1);
    CHECK(read(fd, &count, sizeof count) == sizeof count && count <= 3);
    CHECK(!timerfd_gettime(fd, &setting) && setting.it_value.tv_nsec > 0 && setting.it_value.tv_nsec <= MS);
    setting = (struct itimerspec){{0, 0}, {0, MS}};
    CHECK(!timerfd_settime(fd, 0, &setting, 0) && poll(&poll_it, 1, 1000) == 1);
    CHECK(!timerfd_gettime(fd, &setting) && setting.it_value.tv_nsec == 0);
    CHECK(read(fd, &count, sizeof count) == sizeof count && count == 1);
    FAILS(read(fd, &count, sizeof count), EAGAIN);
}

static void an_interval_timer_goes_on_when_its_signal_is_taken(void) {
    struct itimerval setting = {{0, 2000}, {0, 2000}};
    signal(SIGALRM, handler);
    setitimer(ITIMER_REAL, &setting, 0);
    long start = nanos();
    while (nanos() < start + 100 * MS) {
    }
    CHECK(handled >= 25 && handled <= 51);
    // One that somebody else sends meanwhile doesn't stop it.
    block(SIGALRM);
    raise(SIGALRM);
    start = nanos();
    while (nanos() < start + 10 * MS) {
    }
    siginfo_t info;
    CHECK(take(SIGALRM, &info) == SIGALRM);
    start = nanos();
    while (nanos() < start + 10 * MS) {
    }
    CHECK(take(SIGALRM, &info) == SIGALRM);
}

static const struct test_case cases[] = {
    {"ignored timers leave the CPU", ignored_timers_leave_the_cpu},
    {"blocked timers leave the CPU", blocked_timers_leave_the_cpu},
    {"discarded timers leave the CPU", discarded_timers_leave_the_cpu},
    {"timers as files leave the CPU", timers_as_files_leave_the_cpu},
    {"interval timers leave the CPU", interval_timers_leave_the_cpu},
    {"timers on CPU time leave the CPU", timers_on_cpu_time_leave_the_cpu},
    {"a user's timers leave the CPU", a_users_timers_leave_the_cpu},
    {"a user's ignored timers leave the CPU", a_users_ignored_timers_leave_the_cpu},
    {"a user's timers on CPU time leave the CPU", a_users_timers_on_cpu_time_leave_the_cpu},
    {"timers have places among pending signals", timers_have_places_among_pending_signals},
    {"overruns are counted when the signal is taken", overruns_are_counted_when_the_signal_is_taken},
    {"a new handler loses no overruns", a_new_handler_loses_no_overruns},
    {"overruns have a most", overruns_have_a_most},
    {"a fired timer says what is left", a_fired_timer_says_what_is_left},
    {"a file counts when it is read", a_file_counts_when_it_is_read},
    {"an interval timer goes on when its signal is taken", an_interval_timer_goes_on_when_its_signal_is_taken},
};

int main(int argc, char **argv) { return RUN(cases, argc, argv); }
