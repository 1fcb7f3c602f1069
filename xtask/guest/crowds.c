// What others do doesn't slow a program: forks, ends and reaping beside many processes. Time is virtual: run with instructions for a
// clock, on one CPU.
#include "check.h"

enum { FEW = 10, MANY = 800, TIMES = 20 };

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static pid_t crowd[MANY];
static int there;

// Sleeping children, so many in all. Each has run when this returns: what is measured afterwards doesn't pay for its start.
static void grow(int count) {
    int started[2];
    NEED(pipe(started) == 0);
    for (; there < count; there++) {
        crowd[there] = fork();
        NEED(crowd[there] >= 0);
        if (crowd[there] == 0) {
            if (write(started[1], "", 1) != 1) _exit(1);
            for (;;) pause();
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
    grow(FEW);
    forks();
    int64_t few = forks();
    grow(MANY);
    int64_t many = forks();
    int64_t any = reaps(1);
    grow(MANY);
    int64_t own = reaps(0);
    printf("fork and end: %lld ns beside %d, %lld beside %d; reaped in %lld, by number in %lld\n", (long long)few, FEW, (long long)many,
           MANY, (long long)any, (long long)own);
    CHECK(many < 3 * few);
    CHECK(any < 20000);
    CHECK(own < 20000);
}

static const struct test_case cases[] = {
    {"beside_many_processes", beside_many_processes},
};

int main(int argc, char **argv) { return RUN(cases, argc, argv); }
