// What two CPUs do at once: one static program, the same binary on every kernel.
//
// One or two workers, processes or threads of one process, each kept on a CPU of its own, do the same thing in rounds. All begin a
// round together, each reads the clock before and after its own part; what prepares a round and clears up after it is not
// timed. A row's value is the sum of the workers' rates.
//
// A process with threads has as many in either case, and one sleeps where one works: each thread is a stack more to fork, of which the
// C library's child writes a page. What a thread does in a process without a second one is printed too.
//
// Printed for a program to read (see xtask/src/bench/smp.rs):
//   value|NAME|UNIT|VALUE
//   fail|NAME|WHY           for what this kernel can't do
//   end
// Large pages are switched off for the regions measured here.
// Usage: smp [PART OF A NAME [alone | watched WORKERS]]
// With `alone` one process does each operation, time and again: one of two machines that do so at once. With `watched` those workers do
// it for one window, whose rounds stand between marks for a plugin of QEMU's (xtask/plugin/lines.c); printed is
//   watched|NAME|OPERATIONS
#define _GNU_SOURCE
#include "drain.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, WORKERS = 2, WINDOWS = 5, WINDOWS_ALONE = 9, ANON_PAGES = 8192, FILE_PAGES = 4096, FILE_MAPS = 8 };
// Measured time of a window, in nanoseconds. Short, since a host's CPUs are now fast, now slow: windows of one worker and of two take
// turns, and of their ratios the median counts.
static const uint64_t WINDOW = 100000000;

// How often something was asked of other CPUs, and page faults were taken.
struct asked {
    long rounds, interrupts, faults;
};

// What the workers of a row share, in memory that processes share too.
static struct team {
    atomic_int arrived, phase, failed, over;
    int size;
    uint64_t nanos[WORKERS], operations[WORKERS];
    struct asked asked;
    char why[128];
} *team;

struct worker {
    int index;
    volatile char *at[FILE_MAPS];
};

struct operation {
    const char *name;
    size_t count; // in a round
    void (*prepare)(struct worker *worker, size_t count);
    void (*run)(struct worker *worker, size_t count);
    void (*clear)(struct worker *worker, size_t count);
};

static uint64_t nanos(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void give_up(const char *why) {
    if (!atomic_exchange(&team->failed, 1)) snprintf(team->why, sizeof team->why, "%s: %s", why, strerror(errno));
}

// Returns when all workers have come. Who waits long sleeps, so that a busy host runs the one that is waited for; not sooner and not in
// short sleeps, since each has QEMU set a timer, take its lock and wake a thread of its own, all at the expense of the one that still works.
static void meet(void) {
    int phase = atomic_load(&team->phase);
    if (atomic_fetch_add(&team->arrived, 1) + 1 == team->size) {
        atomic_store(&team->arrived, 0);
        atomic_fetch_add(&team->phase, 1);
        return;
    }
    for (int looks = 0; atomic_load(&team->phase) == phase; looks++) {
        if (looks < 5000000) __asm__ volatile("" : : : "memory");
        else usleep(1000);
    }
}

// --- counters ---------------------------------------------------------------------------------------------------

static char text[65536];

static const char *contents(const char *path) {
    int fd = open(path, O_RDONLY);
    ssize_t length = 0, got;
    while (fd >= 0 && (got = read(fd, text + length, sizeof text - 1 - (size_t)length)) > 0) length += got;
    text[length] = 0;
    if (fd >= 0) close(fd);
    return text;
}

// Ours counts rounds and interrupts. Linux counts interrupts alone, for each CPU.
static struct asked asked_so_far(void) {
    struct asked sum = {0, 0, 0};
    const char *at = strstr(contents("/proc/vmstat"), "pgfault ");
    if (at) sum.faults = atol(at + strlen("pgfault "));
    at = strstr(text, "tlb_remote ");
    if (at) {
        sum.rounds = atol(at + strlen("tlb_remote "));
        at = strstr(at, "tlb_interrupts ");
        if (at) sum.interrupts = atol(at + strlen("tlb_interrupts "));
        return sum;
    }
    sum.rounds = -1;
    at = strstr(contents("/proc/interrupts"), "TLB:");
    if (!at) return sum;
    char *end = (char *)at + strlen("TLB:");
    for (int cpu = 0; cpu < WORKERS; cpu++) sum.interrupts += strtol(end, &end, 10);
    return sum;
}

// --- operations -------------------------------------------------------------------------------------------------

static volatile char *map(size_t pages, int protection, int flags, int fd) {
    char *at = mmap(0, pages * PAGE, protection, flags, fd, 0);
    if (at == MAP_FAILED) {
        give_up("mmap");
        return 0;
    }
    madvise(at, pages * PAGE, MADV_NOHUGEPAGE);
    return at;
}

static void nothing(struct worker *worker, size_t count) { (void)worker, (void)count; }

static void loop(struct worker *worker, size_t count) {
    (void)worker;
    __asm__ volatile("1: dec %0\n\tjnz 1b" : "+r"(count) : : "cc");
}

static void map_memory(struct worker *worker, size_t count) {
    worker->at[0] = map(count, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
}
static void touch_memory(struct worker *worker, size_t count) {
    for (size_t i = 0; i < count && worker->at[0]; i++) worker->at[0][i * PAGE] = 1;
}
// A fault for each page: upwards a kernel may see a run, and bring several pages at once.
static void touch_downwards(struct worker *worker, size_t count) {
    for (size_t i = count; i-- > 0 && worker->at[0];) worker->at[0][i * PAGE] = 1;
}
static void unmap_memory(struct worker *worker, size_t count) {
    if (worker->at[0]) munmap((void *)worker->at[0], count * PAGE);
}

static int file;

static void map_file(struct worker *worker, size_t count) {
    (void)count;
    for (int i = 0; i < FILE_MAPS; i++) worker->at[i] = map(FILE_PAGES, PROT_READ, MAP_SHARED, file);
}
static void touch_file(struct worker *worker, size_t count) {
    for (size_t i = 0; i < count; i++) {
        volatile char *at = worker->at[i / FILE_PAGES];
        if (at) (void)at[i % FILE_PAGES * PAGE];
    }
}
static void unmap_file(struct worker *worker, size_t count) {
    (void)count;
    for (int i = 0; i < FILE_MAPS; i++) {
        if (worker->at[i]) munmap((void *)worker->at[i], FILE_PAGES * PAGE);
    }
}

static void map_touch_unmap(struct worker *worker, size_t count) {
    (void)worker;
    for (size_t i = 0; i < count; i++) {
        volatile char *at = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED) return give_up("mmap");
        *at = 1;
        munmap((void *)at, PAGE);
    }
}

static void fork_exit_wait(struct worker *worker, size_t count) {
    (void)worker;
    for (size_t i = 0; i < count; i++) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        int status;
        if (child < 0) return give_up("fork");
        if (waitpid(child, &status, 0) != child || status) return give_up("wait");
    }
}

static const struct operation operations[] = {
    {"a loop without the kernel", 10000000, nothing, loop, nothing},
    {"anonymous fault", ANON_PAGES, map_memory, touch_downwards, unmap_memory},
    {"first touch, upwards", ANON_PAGES, map_memory, touch_memory, unmap_memory},
    {"resident file fault", FILE_MAPS * FILE_PAGES, map_file, touch_file, unmap_file},
    {"mmap, touch, munmap", 2048, nothing, map_touch_unmap, nothing},
    {"fork, exit, wait", 64, nothing, fork_exit_wait, nothing},
};

static void make_file(void) {
    static char block[PAGE];
    memset(block, 'x', sizeof block);
    file = open("/tmp/smp.data", O_RDWR | O_CREAT | O_TRUNC, 0600);
    for (int i = 0; i < FILE_PAGES; i++) {
        if (file < 0 || write(file, block, PAGE) != PAGE) {
            perror("/tmp/smp.data");
            exit(1);
        }
    }
}

// --- workers ----------------------------------------------------------------------------------------------------

static const struct operation *now;
static int is_watched;

// No-operations that the plugin knows.
static void begin_mark(void) { __asm__ volatile(".byte 0x0f, 0x1f, 0x80, 1, 0x6b, 0x72, 0x6d" ::: "memory"); }
static void end_mark(void) { __asm__ volatile(".byte 0x0f, 0x1f, 0x80, 2, 0x6b, 0x72, 0x6d" ::: "memory"); }

static void work(int index) {
    struct worker worker = {.index = index};
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((unsigned)index, &set);
    if (sched_setaffinity(0, sizeof set, &set)) give_up("sched_setaffinity");
    uint64_t began = 0;
    // The first round warms up.
    for (int round = 0; !atomic_load(&team->over); round++) {
        struct asked before = {0, 0, 0};
        now->prepare(&worker, now->count);
        if (index == 0 && round) before = asked_so_far();
        meet();
        int marks = is_watched && index == 0 && round;
        if (marks) begin_mark();
        uint64_t start = nanos();
        now->run(&worker, now->count);
        uint64_t spent = nanos() - start;
        meet();
        if (marks) end_mark();
        if (round) {
            team->nanos[index] += spent;
            team->operations[index] += now->count;
        } else {
            began = start;
        }
        if (index == 0 && round) {
            struct asked after = asked_so_far();
            team->asked.rounds = after.rounds < 0 ? -1 : team->asked.rounds + after.rounds - before.rounds;
            team->asked.interrupts += after.interrupts - before.interrupts;
            team->asked.faults += after.faults - before.faults;
            // Nor does it go on for ever where preparing takes long.
            int enough = team->nanos[0] >= WINDOW || nanos() - began > 8 * WINDOW;
            if (enough || atomic_load(&team->failed)) atomic_store(&team->over, 1);
        }
        meet();
        now->clear(&worker, now->count);
    }
}

static void *thread(void *index) {
    work((int)(long)index);
    return 0;
}

static sem_t is_over;
static void *sleeper(void *unused) {
    while (sem_wait(&is_over)) {}
    return unused;
}

static void start(pthread_t *made, void *(*what)(void *), int index) {
    // Those who wait for one that isn't there would wait for ever.
    if (pthread_create(made, 0, what, (void *)(long)index)) exit(1);
}

// Each returns whether all workers came to their end.
static int with_no_others(int size) {
    pthread_t threads[WORKERS];
    for (int i = 0; i < size; i++) start(&threads[i], thread, i);
    for (int i = 0; i < size; i++) pthread_join(threads[i], 0);
    return 1;
}

static int with_threads(int size) {
    pthread_t sleepers[WORKERS];
    for (int i = size; i < WORKERS; i++) start(&sleepers[i], sleeper, i);
    with_no_others(size);
    for (int i = size; i < WORKERS; i++) sem_post(&is_over);
    for (int i = size; i < WORKERS; i++) pthread_join(sleepers[i], 0);
    return 1;
}

static int with_processes(int size) {
    int well = 1;
    for (int i = 0; i < size; i++) {
        pid_t child = fork();
        if (child < 0) exit(1);
        if (child == 0) {
            work(i);
            _exit(0);
        }
    }
    for (int i = 0, status; i < size; i++) {
        if (wait(&status) < 0 || status) well = 0;
    }
    return well;
}

// The sum of all workers' rates, in operations a second; 0 if it could not be done.
static double measure(const struct operation *operation, int (*with)(int), int size) {
    memset(team, 0, sizeof *team);
    team->size = size;
    now = operation;
    if (!with(size) && !atomic_exchange(&team->failed, 1)) snprintf(team->why, sizeof team->why, "a worker died");
    double rate = 0;
    for (int i = 0; i < size && !team->failed; i++) rate += (double)team->operations[i] * 1e9 / (double)team->nanos[i];
    return rate;
}

static int by_value(const void *a, const void *b) {
    double difference = *(const double *)a - *(const double *)b;
    return (difference > 0) - (difference < 0);
}

static double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, by_value);
    return values[count / 2];
}

static void scale(const struct operation *operation, int (*with)(int), const char *one, const char *two) {
    const char *name = operation->name;
    double alone[WINDOWS], both[WINDOWS], ratio[WINDOWS], done = 0;
    struct asked asked = {0, 0, 0};
    for (int i = 0; i < WINDOWS; i++) {
        alone[i] = measure(operation, with, 1);
        both[i] = alone[i] > 0 ? measure(operation, with, 2) : 0;
        if (both[i] <= 0) {
            printf("fail|%s: %s|%s\n", name, two, team->why);
            return;
        }
        ratio[i] = both[i] / alone[i];
        done += (double)(team->operations[0] + team->operations[1]);
        asked.rounds = team->asked.rounds < 0 ? -1 : asked.rounds + team->asked.rounds;
        asked.interrupts += team->asked.interrupts;
        asked.faults += team->asked.faults;
    }
    printf("value|%s: %s|/s|%.1f\n", name, one, median(alone, WINDOWS));
    printf("value|%s: %s|/s|%.1f\n", name, two, median(both, WINDOWS));
    printf("value|%s: %s / one|times|%.4f\n", name, two, median(ratio, WINDOWS));
    if (operation->run == loop) return;
    if (asked.rounds >= 0) printf("value|%s: %s, rounds|each|%.4f\n", name, two, (double)asked.rounds / done);
    printf("value|%s: %s, interrupts|each|%.4f\n", name, two, (double)asked.interrupts / done);
    printf("value|%s: %s, page faults|each|%.4f\n", name, two, (double)asked.faults / done);
}

// One worker, in the median of some windows.
static void alone(const struct operation *operation, int (*with)(int), const char *who, int windows) {
    double rates[WINDOWS_ALONE];
    for (int i = 0; i < windows; i++) rates[i] = measure(operation, with, 1);
    double rate = median(rates, windows);
    if (rate > 0) printf("value|%s: %s|/s|%.1f\n", operation->name, who, rate);
    else printf("fail|%s: %s|%s\n", operation->name, who, team->why);
}

static const struct {
    const char *name;
    int (*with)(int);
    int size;
} teams[] = {
    {"one process", with_processes, 1},
    {"two processes", with_processes, 2},
    {"one thread", with_threads, 1},
    {"two threads", with_threads, 2},
    {"one thread, alone", with_no_others, 1},
};

static void watch(const struct operation *operation, const char *workers) {
    is_watched = 1;
    for (size_t i = 0; i < sizeof teams / sizeof *teams; i++) {
        if (strcmp(teams[i].name, workers)) continue;
        if (measure(operation, teams[i].with, teams[i].size) > 0) {
            printf("watched|%s: %s|%lu\n", operation->name, workers, team->operations[0] + team->operations[1]);
        } else {
            printf("fail|%s: %s|%s\n", operation->name, workers, team->why);
        }
    }
}

int main(int count, char **arguments) {
    const char *wanted = count > 1 ? arguments[1] : "", *how = count > 2 ? arguments[2] : "";
    if (!strcmp(wanted, "list")) {
        for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) puts(operations[i].name);
        return 0;
    }
    sem_init(&is_over, 0, 0);
    team = mmap(0, sizeof *team, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (team == MAP_FAILED) return 1;
    make_file();
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        if (!strstr(operations[i].name, wanted)) continue;
        if (!strcmp(how, "watched")) {
            watch(&operations[i], count > 3 ? arguments[3] : "");
            continue;
        }
        if (!strcmp(how, "alone")) {
            // Of many, since the other machine may begin and end a little earlier or later.
            alone(&operations[i], with_processes, "one machine of two", WINDOWS_ALONE);
            fflush(stdout);
            continue;
        }
        scale(&operations[i], with_processes, "one process", "two processes");
        fflush(stdout);
        scale(&operations[i], with_threads, "one thread", "two threads");
        if (operations[i].run != loop) alone(&operations[i], with_no_others, "one thread, alone", WINDOWS);
        fflush(stdout);
    }
    puts("end");
    drain();
    return 0;
}
