// What others do doesn't slow a program: forks, ends and reaping beside many processes; locks, signals, segments, files and limits
// beside many that are of no concern to it. Time is virtual: run with instructions for a clock, on one CPU.
#include "check.h"
#include <pthread.h>
#include <sched.h>
#include <sys/ipc.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/signalfd.h>

enum { FEW = 10, MANY = 800, TIMES = 20, SEGMENTS = 2000, THREADS = 2000, ENTRIES = 2000 };

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static pid_t crowd[MANY];
static int there;

static void sleeps(void) {
    for (;;) pause();
}

// Children that wait for something, so many in all. Each has run when this returns: what is measured afterwards doesn't pay for its
// start.
static void grow(int count, void (*wait_for_it)(void)) {
    int started[2];
    NEED(pipe(started) == 0);
    for (; there < count; there++) {
        crowd[there] = fork();
        NEED(crowd[there] >= 0);
        if (crowd[there] == 0) {
            if (write(started[1], "", 1) != 1) _exit(1);
            wait_for_it();
            _exit(1);
        }
        char byte;
        NEED(read(started[0], &byte, 1) == 1);
    }
    close(started[0]);
    close(started[1]);
}

static int64_t forks(void) {
    int64_t begun = now();
    for (int i = 0; i < TIMES; i++) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        NEED(waitpid(child, 0, 0) == child);
    }
    return (now() - begun) / TIMES;
}

// Of children that have all ended, by number or whichever comes.
static int64_t reaps(int whichever) {
    for (int i = 0; i < there; i++) kill(crowd[i], SIGKILL);
    usleep(300000);
    int64_t begun = now();
    for (int i = 0; i < there; i++) NEED(waitpid(whichever ? -1 : crowd[i], 0, 0) > 0);
    int64_t each = (now() - begun) / there;
    there = 0;
    return each;
}

static void beside_many_processes(void) {
    grow(FEW, sleeps);
    forks();
    int64_t few = forks();
    grow(MANY, sleeps);
    int64_t many = forks();
    int64_t any = reaps(1);
    grow(MANY, sleeps);
    int64_t own = reaps(0);
    printf("fork and end: %lld ns beside %d, %lld beside %d; reaped in %lld, by number in %lld\n", (long long)few, FEW, (long long)many,
           MANY, (long long)any, (long long)own);
    CHECK(many < 3 * few);
    CHECK(any < 20000);
    CHECK(own < 20000);
}

// What a call takes, with the turn of those that it wakes.
static int64_t takes(void (*call)(void)) {
    call();
    int64_t begun = now();
    for (int i = 0; i < TIMES; i++) {
        call();
        sched_yield();
    }
    return (now() - begun) / TIMES;
}

// A call takes what it takes alone, beside many that wait for what it doesn't touch.
static void is_as_before(const char *what, int64_t alone, int64_t beside) {
    printf("%s: %lld ns alone, %lld beside many\n", what, (long long)alone, (long long)beside);
    CHECK(beside < 3 * alone);
}

static void beside_many(const char *what, int count, void (*call)(void), void (*wait_for_it)(void)) {
    int64_t alone = takes(call);
    grow(count, wait_for_it);
    usleep(1000000);
    int64_t beside = takes(call);
    reaps(1);
    is_as_before(what, alone, beside);
}

static int own_file, other_file;

static void lock_all(int fd, int type, int how) {
    struct flock lock = {.l_type = type};
    NEED(!fcntl(fd, how, &lock));
}

static void locks_and_unlocks(void) {
    lock_all(own_file, F_WRLCK, F_SETLK);
    lock_all(own_file, F_UNLCK, F_SETLK);
}

static void waits_for_a_lock(void) {
    lock_all(other_file, F_WRLCK, F_SETLKW);
}

static void beside_many_who_wait_for_locks(void) {
    NEED((own_file = memfd_create("own", 0)) >= 0 && (other_file = memfd_create("other", 0)) >= 0);
    lock_all(other_file, F_WRLCK, F_SETLK);
    beside_many("a lock and its end", MANY, locks_and_unlocks, waits_for_a_lock);
}

static sigset_t usr1;

static void sends_and_takes(void) {
    NEED(!kill(getpid(), SIGUSR1) && sigwaitinfo(&usr1, 0) == SIGUSR1);
}

static void reads_signals(void) {
    struct signalfd_siginfo info;
    if (read(signalfd(-1, &usr1, 0), &info, sizeof info) < 0) _exit(1);
}

static void beside_many_who_read_signals(void) {
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    NEED(!sigprocmask(SIG_BLOCK, &usr1, 0));
    beside_many("a blocked signal", MANY, sends_and_takes, reads_signals);
}

static void makes_a_segment(void) {
    NEED(!shmctl(shmget(IPC_PRIVATE, PAGE, IPC_CREAT | 0600), IPC_RMID, 0));
}

// Removed ones are there as long as somebody has them attached.
static void beside_many_removed_segments(void) {
    int64_t alone = takes(makes_a_segment);
    for (int i = 0; i < SEGMENTS; i++) {
        int id = shmget(IPC_PRIVATE, PAGE, IPC_CREAT | 0600);
        NEED(shmat(id, 0, 0) != (void *)-1 && !shmctl(id, IPC_RMID, 0));
    }
    is_as_before("a segment", alone, takes(makes_a_segment));
}

static void becomes_a_stranger(void) {
    execl("/proc/self/exe", "crowds", "stranger", (char *)0);
}

// One with many mappings, of none of which anybody else knows.
static int stranger(void) {
    char *at = mmap(0, 2 * (size_t)ENTRIES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (size_t i = 0; i < ENTRIES; i++) if (mprotect(at + 2 * i * PAGE, PAGE, PROT_READ)) return 1;
    sleeps();
    return 0;
}

static void cuts(void) {
    NEED(!ftruncate(own_file, PAGE) && !ftruncate(own_file, 2 * PAGE));
}

// Private copies of what is cut off go, wherever they are.
static void cuts_beside_many_entries(void) {
    NEED((own_file = memfd_create("own", 0)) >= 0 && !ftruncate(own_file, 2 * PAGE));
    char *at = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, own_file, 0);
    NEED(at != MAP_FAILED);
    *at = 1;
    beside_many("a cut of a file", FEW, cuts, becomes_a_stranger);
    CHECK(*at == 1);
}

static void *sleeps_as_a_thread(void *nothing) {
    sleeps();
    return nothing;
}

static int64_t computes(void) {
    int64_t begun = now();
    for (volatile int i = 0; i < 20000000; i++) {}
    return now() - begun;
}

// Time that is limited is counted at each tick, whatever threads there are.
static void limited_beside_many_threads(void) {
    pthread_attr_t small;
    pthread_t thread;
    pthread_attr_init(&small), pthread_attr_setstacksize(&small, 16384);
    for (int i = 0; i < THREADS; i++) NEED(!pthread_create(&thread, &small, sleeps_as_a_thread, 0));
    usleep(100000);
    int64_t free = computes();
    NEED(!setrlimit(RLIMIT_CPU, &(struct rlimit){1000, 1000}));
    int64_t limited = computes();
    printf("computing: %lld us, %lld under a limit\n", (long long)free / 1000, (long long)limited / 1000);
    CHECK(limited < free + free / 100);
}

static const struct test_case cases[] = {
    {"beside_many_processes", beside_many_processes},
    {"beside_many_who_wait_for_locks", beside_many_who_wait_for_locks},
    {"beside_many_who_read_signals", beside_many_who_read_signals},
    {"beside_many_removed_segments", beside_many_removed_segments},
    {"cuts_beside_many_entries", cuts_beside_many_entries},
    {"limited_beside_many_threads", limited_beside_many_threads},
};

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "stranger")) return stranger();
    return RUN(cases, argc, argv);
}
