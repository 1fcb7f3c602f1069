// Throws random system calls (fork and kill among them; `fuzz.c` is the orderly one) at the kernel from an unprivileged user's processes. The kernel has to stay up.
//
// A round forks some children that drop to uid 1000 and call whatever comes, each with a seed of its own that is printed
// first, so `storm SECONDS SEED` replays a run. What calls do to the child is no concern: it may be killed, hang or fork. At
// the end of a round everything of uid 1000 is killed. Exit 0 when the time is over: whoever prints that has survived.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CHILDREN = 4, ROUND_MS = 400, UID = 1000, CALLS = 460, SCRATCH = 1 << 16 };

static uint64_t state;

static uint64_t next(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state * 0x2545f4914f6cdd1dull;
}

static char *scratch;   // readable and writable
static char *read_only; // one page
static char *nothing;   // one page without access

static uint64_t interesting(void) {
    static const uint64_t values[] = {
        0, 1, 2, 3, 7, 8, 16, 64, 127, 128, 255, 256, 4095, 4096, 4097, 65535, 65536, 1 << 20, 0x7fffffff, 0x80000000,
        0xffffffff, 0x100000000, 0x7ffffffff000, 0x7fffffffe000, 0x800000000000, 0xffff800000000000, 0xffffffff80000000,
        0x7fffffffffffffff, 0x8000000000000000, -1ull, -4096ull, -2ull,
    };
    return values[next() % (sizeof values / sizeof *values)];
}

static uint64_t argument(void) {
    switch (next() % 12) {
    case 0: return interesting();
    case 1: return next() % 8;                                       // a descriptor
    case 2: return next() % 64;
    case 3: return (uint64_t)scratch + next() % SCRATCH;
    case 4: return (uint64_t)scratch + (next() % (SCRATCH / 4096)) * 4096;
    case 5: return (uint64_t)read_only + next() % 4096;
    case 6: return (uint64_t)nothing + next() % 4096;
    case 7: return (uint64_t)scratch + SCRATCH - next() % 16;        // runs over the end
    case 8: return 1ull << (next() % 64);                            // a flag
    case 9: return next() & next();
    case 10: return next();
    default: return interesting() + next() % 3 - 1;
    }
}

static void fill(void) {
    for (int i = 0; i < 64; i++) {
        ((uint64_t *)scratch)[next() % (SCRATCH / 8)] = next() % 3 ? argument() : interesting();
    }
    static const char *const paths[] = {"/tmp/a", "/proc/self/maps", "/dev/null", "/dev/zero", "/tmp", "/", "..", "/proc/self/fd/0"};
    char *at = scratch + (next() % (SCRATCH / 4096)) * 4096;
    strcpy(at, paths[next() % (sizeof paths / sizeof *paths)]);
}

// Calls that would only make the test wait, or end it in a way that tells nothing.
static int skipped(long number) {
    switch (number) {
    case SYS_reboot: case SYS_exit: case SYS_exit_group: case SYS_pause: case SYS_vfork: case SYS_rt_sigsuspend:
        return 1;
    default:
        return 0;
    }
}

static void limit(int which, rlim_t value) {
    struct rlimit limit = {value, value};
    setrlimit(which, &limit);
}

static void child(uint64_t seed) {
    state = seed | 1;
    limit(RLIMIT_NPROC, 32);
    limit(RLIMIT_AS, 256 << 20);
    setgroups(0, 0);
    if (setgid(UID) || setuid(UID)) _exit(9);
    scratch = mmap(0, SCRATCH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    read_only = mmap(0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    nothing = mmap(0, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    chdir("/tmp");
    for (;;) {
        if (next() % 16 == 0) fill();
        long number = next() % CALLS;
        if (next() % 4 == 0) number = next() % 40; // files and memory more often
        if (skipped(number)) continue;
        uint64_t a = argument(), b = argument(), c = argument(), d = argument(), e = argument(), f = argument();
        if (number == SYS_kill && (int)a == -1) continue;
        syscall(number, a, b, c, d, e, f);
    }
}

static void kill_all(void) {
    pid_t killer = fork();
    if (killer == 0) {
        if (setgid(UID) || setuid(UID)) _exit(9);
        kill(-1, SIGKILL);
        _exit(0);
    }
    if (killer > 0) waitpid(killer, 0, 0);
    while (waitpid(-1, 0, WNOHANG) > 0) {
    }
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? atof(argv[1]) : 10;
    uint64_t seed = argc > 2 ? strtoull(argv[2], 0, 0) : 1;
    int null = open("/dev/null", O_RDWR);
    double end = now() + seconds;
    int rounds = 0;
    for (; now() < end; rounds++) {
        printf("round %d seed %llu\n", rounds, (unsigned long long)seed);
        fflush(stdout);
        for (int i = 0; i < CHILDREN; i++) {
            uint64_t own = seed * 1000003 + i * 7919 + 12345;
            if (fork() == 0) {
                setsid();
                for (int fd = 0; fd < 3; fd++) dup2(null, fd);
                child(own);
            }
        }
        struct timespec pause = {ROUND_MS / 1000, ROUND_MS % 1000 * 1000000L};
        nanosleep(&pause, 0);
        kill_all();
        seed++;
    }
    for (int i = 0; i < 50; i++) {
        kill_all();
        usleep(10000);
    }
    printf("survived %d rounds\n", rounds);
    return 0;
}
