// Instructions per operation: one static program, the same binary on every kernel.
//
// Under `qemu -icount shift=0` a tick of the time-stamp counter is one guest instruction, so a difference of two readings
// counts what the program and the kernel executed between them: exact, and free of the host's load. `calibrate` checks it.
//
// Each row is warmed up, then measured RUNS times; a run is a batch of operations and its value the mean per operation.
// Between the two readings is nothing but what is measured, since `./uvm profile` counts there.
// Printed for a program to read (see xtask/src/bench/micro.rs):
//   row|NAME|instructions|MEDIAN|MIN|MAX|RUNS     then, where /proc/vmstat moved, counter|COUNTER|DELTA
//   operations|N                                  how often the row above was done in all, between two readings of the clock
//   fail|NAME|WHY                                 for what this kernel can't do
// All memory is in 4 KiB pages on every kernel: large pages are switched off for the regions measured here.
// Usage: micro RUNS [PART OF A NAME]      (and, for itself: micro child)
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, WARM_UP = 2, MAX_RUNS = 1000, CHUNK = 65536, FILE_PAGES = 1024, ANON_PAGES = 1024 };

static const char *self;
static const char *failure; // why the operation in hand can't be measured

static inline uint64_t ticks(void) {
    uint32_t low, high;
    __asm__ volatile("lfence\n\trdtsc" : "=a"(low), "=d"(high) : : "memory");
    return (uint64_t)high << 32 | low;
}

static uint64_t give_up(const char *why) {
    static char text[128];
    snprintf(text, sizeof text, "%s: %s", why, strerror(errno));
    failure = text;
    return 0;
}

static inline long null_call(void) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"((long)SYS_getppid) : "rcx", "r11", "memory");
    return result;
}

// --- memory -----------------------------------------------------------------------------------------------------

static volatile char *pages_of(size_t count, int protection, int flags, int fd) {
    char *at = mmap(0, count * PAGE, protection, flags, fd, 0);
    if (at == MAP_FAILED) {
        give_up("mmap");
        return 0;
    }
    madvise(at, count * PAGE, MADV_NOHUGEPAGE);
    return at;
}

static void touch(volatile char *at, size_t count) {
    for (size_t i = 0; i < count; i++) at[i * PAGE] = 1;
}

static uint64_t write_each(volatile char *at, size_t count) {
    uint64_t start = ticks();
    touch(at, count);
    return ticks() - start;
}

static uint64_t read_each(volatile char *at, size_t count) {
    uint64_t start = ticks();
    for (size_t i = 0; i < count; i++) (void)at[i * PAGE];
    return ticks() - start;
}

static uint64_t null_calls(size_t count) {
    uint64_t start = ticks();
    for (size_t i = 0; i < count; i++) null_call();
    return ticks() - start;
}

static uint64_t anonymous_faults(size_t count) {
    volatile char *at = pages_of(count, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (!at) return 0;
    uint64_t spent = write_each(at, count);
    munmap((void *)at, count * PAGE);
    return spent;
}

static uint64_t touches_again(size_t count) {
    volatile char *at = pages_of(count, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (!at) return 0;
    touch(at, count);
    uint64_t spent = write_each(at, count);
    munmap((void *)at, count * PAGE);
    return spent;
}

static uint64_t map_touch_unmap(size_t count) {
    uint64_t start = ticks();
    for (size_t i = 0; i < count; i++) {
        volatile char *at = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED) return give_up("mmap");
        *at = 1;
        munmap((void *)at, PAGE);
    }
    return ticks() - start;
}

static int file_of_pages(void) {
    static int fd = -1;
    if (fd >= 0) return fd;
    static char block[CHUNK];
    memset(block, 'x', sizeof block);
    int made = open("/tmp/micro.data", O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (made < 0) return give_up("open /tmp/micro.data"), -1;
    for (size_t i = 0; i < FILE_PAGES * PAGE / sizeof block; i++) {
        if (write(made, block, sizeof block) != sizeof block) return give_up("write /tmp/micro.data"), close(made), -1;
    }
    return fd = made;
}

static uint64_t file_faults(size_t count, int protection, int sharing) {
    int fd = file_of_pages();
    if (fd < 0) return 0;
    volatile char *at = pages_of(count, protection, sharing, fd);
    if (!at) return 0;
    uint64_t spent = protection & PROT_WRITE ? write_each(at, count) : read_each(at, count);
    munmap((void *)at, count * PAGE);
    return spent;
}

static uint64_t file_read_shared(size_t count) { return file_faults(count, PROT_READ, MAP_SHARED); }
static uint64_t file_read_private(size_t count) { return file_faults(count, PROT_READ, MAP_PRIVATE); }
static uint64_t file_write_shared(size_t count) { return file_faults(count, PROT_READ | PROT_WRITE, MAP_SHARED); }
static uint64_t file_write_private(size_t count) { return file_faults(count, PROT_READ | PROT_WRITE, MAP_PRIVATE); }

// --- processes --------------------------------------------------------------------------------------------------

static volatile char child_page[2 * PAGE] = {1};

static uint64_t forks(size_t count, size_t touched, int child_writes) {
    volatile char *at = 0;
    if (touched) {
        at = pages_of(touched, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
        if (!at) return 0;
        touch(at, touched);
    }
    uint64_t spent = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t start = ticks();
        pid_t child = fork();
        if (child == 0) {
            if (child_writes) *(at ? at : child_page) = 2;
            _exit(0);
        }
        if (child < 0) return give_up("fork");
        int status;
        if (waitpid(child, &status, 0) != child || status) return give_up("wait");
        spent += ticks() - start;
    }
    if (at) munmap((void *)at, touched * PAGE);
    return spent;
}

static uint64_t fork_0(size_t count) { return forks(count, 0, 0); }
static uint64_t fork_1024(size_t count) { return forks(count, 1024, 0); }
static uint64_t fork_16384(size_t count) { return forks(count, 16384, 0); }
static uint64_t fork_0_write(size_t count) { return forks(count, 0, 1); }
static uint64_t fork_1024_write(size_t count) { return forks(count, 1024, 1); }
static uint64_t fork_16384_write(size_t count) { return forks(count, 16384, 1); }

static uint64_t fork_exec(size_t count) {
    char *arguments[] = {(char *)self, "child", 0}, *environment[] = {0};
    uint64_t start = ticks();
    for (size_t i = 0; i < count; i++) {
        pid_t child = fork();
        if (child == 0) {
            execve(self, arguments, environment);
            _exit(127);
        }
        if (child < 0) return give_up("fork");
        int status;
        if (waitpid(child, &status, 0) != child) return give_up("wait");
        if (status) return errno = ENOEXEC, give_up("execve");
    }
    return ticks() - start;
}

// --- pipes and switches -----------------------------------------------------------------------------------------

static int read_all(int fd, char *to, size_t length) {
    for (size_t done = 0; done < length;) {
        ssize_t got = read(fd, to + done, length - done);
        if (got <= 0) return -1;
        done += got;
    }
    return 0;
}

static uint64_t pipe_chunks(size_t count) {
    static char buffer[CHUNK];
    int data[2], go[2];
    if (pipe(data) || pipe(go)) return give_up("pipe");
    pid_t child = fork();
    if (child == 0) {
        char byte;
        if (read(go[0], &byte, 1) != 1) _exit(1);
        for (size_t i = 0; i < count; i++) {
            if (write(data[1], buffer, CHUNK) != CHUNK) _exit(1);
        }
        _exit(0);
    }
    close(data[1]);
    memset(buffer, 1, CHUNK);
    uint64_t start = ticks();
    int bad = write(go[1], "g", 1) != 1;
    for (size_t i = 0; i < count && !bad; i++) bad = read_all(data[0], buffer, CHUNK);
    uint64_t spent = ticks() - start;
    close(data[0]), close(go[0]), close(go[1]);
    waitpid(child, 0, 0);
    return bad ? give_up("pipe data") : spent;
}

static uint64_t ping_pongs(size_t count) {
    int there[2], back[2];
    char byte = 'p';
    if (pipe(there) || pipe(back)) return give_up("pipe");
    pid_t child = fork();
    if (child == 0) {
        close(there[1]);
        while (read(there[0], &byte, 1) == 1 && write(back[1], &byte, 1) == 1) {
        }
        _exit(0);
    }
    int bad = write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1;
    uint64_t start = ticks();
    for (size_t i = 0; i < count && !bad; i++) bad = write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1;
    uint64_t spent = ticks() - start;
    close(there[0]), close(there[1]), close(back[0]), close(back[1]);
    waitpid(child, 0, 0);
    return bad ? give_up("ping-pong") : spent;
}

// Two processes that hand a turn to and fro and yield; only real switches count.
static uint64_t switches(size_t count) {
    volatile size_t *turn = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (turn == MAP_FAILED) return give_up("mmap");
    *turn = 0;
    pid_t child = fork();
    if (child == 0) {
        while (*turn < count + 8) {
            if (*turn & 1) ++*turn;
            sched_yield();
        }
        _exit(0);
    }
    uint64_t start = 0;
    size_t spins = 0;
    while (*turn < count + 8 && ++spins < count * 100) {
        if (*turn == 8) start = ticks();
        if (!(*turn & 1)) ++*turn;
        sched_yield();
    }
    uint64_t spent = ticks() - start;
    *turn = count + 8;
    waitpid(child, 0, 0);
    munmap((void *)turn, PAGE);
    if (spins >= count * 100) return errno = EAGAIN, give_up("sched_yield does not switch");
    return spent;
}

// --- the table --------------------------------------------------------------------------------------------------

static const struct row {
    const char *name;
    uint64_t (*batch)(size_t count);
    size_t count;
} rows[] = {
    {"null system call", null_calls, 1000},
    {"anonymous fault", anonymous_faults, ANON_PAGES},
    {"re-touch", touches_again, ANON_PAGES},
    {"mmap, touch, munmap of one page", map_touch_unmap, 256},
    {"file read fault, shared", file_read_shared, FILE_PAGES},
    {"file read fault, private", file_read_private, FILE_PAGES},
    {"file write fault, shared", file_write_shared, FILE_PAGES},
    {"file write fault, private", file_write_private, FILE_PAGES},
    {"fork, exit, wait; 0 pages touched", fork_0, 16},
    {"fork, exit, wait; 1024 pages touched", fork_1024, 8},
    {"fork, exit, wait; 16384 pages touched", fork_16384, 2},
    {"fork, write one page, exit, wait; 0 pages touched", fork_0_write, 16},
    {"fork, write one page, exit, wait; 1024 pages touched", fork_1024_write, 8},
    {"fork, write one page, exit, wait; 16384 pages touched", fork_16384_write, 2},
    {"fork, execve, wait", fork_exec, 8},
    {"pipe, one 64 KiB chunk", pipe_chunks, 64},
    {"pipe ping-pong, round trip", ping_pongs, 200},
    {"context switch", switches, 400},
};

static char before[16384], after[16384];

static void read_counters(char *into, size_t room) {
    int fd = open("/proc/vmstat", O_RDONLY);
    ssize_t length = 0, got;
    while (fd >= 0 && (got = read(fd, into + length, room - 1 - length)) > 0) length += got;
    into[length] = 0;
    if (fd >= 0) close(fd);
}

static void print_counters(void) {
    char *save_after, *save_before;
    char *now = strtok_r(after, "\n", &save_after), *then = strtok_r(before, "\n", &save_before);
    while (now && then) {
        char *value = strchr(now, ' '), *old = strchr(then, ' ');
        if (value && old && value - now == old - then && !strncmp(now, then, value - now)) {
            long long delta = atoll(value) - atoll(old);
            if (delta) printf("counter|%.*s|%lld\n", (int)(value - now), now, delta);
        }
        now = strtok_r(0, "\n", &save_after), then = strtok_r(0, "\n", &save_before);
    }
}

static int ascending(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static void measure(const struct row *row, size_t runs) {
    static double values[MAX_RUNS];
    failure = 0;
    for (size_t i = 0; i < WARM_UP && !failure; i++) row->batch(row->count);
    read_counters(before, sizeof before);
    for (size_t i = 0; i < runs && !failure; i++) values[i] = (double)row->batch(row->count) / row->count;
    read_counters(after, sizeof after);
    if (failure) {
        printf("fail|%s|%s\n", row->name, failure);
    } else {
        qsort(values, runs, sizeof *values, ascending);
        double median = runs % 2 ? values[runs / 2] : (values[runs / 2 - 1] + values[runs / 2]) / 2;
        printf("row|%s|instructions|%.1f|%.1f|%.1f|%zu\n", row->name, median, values[0], values[runs - 1], runs);
        printf("operations|%zu\n", (runs + WARM_UP) * row->count);
        print_counters();
    }
    fflush(stdout);
}

// A loop of two million instructions must take two million ticks; the best of several, since the kernel may interrupt one.
static void calibrate(void) {
    double best = 1e9;
    for (int attempt = 0; attempt < 9; attempt++) {
        unsigned long left = 1000000;
        uint64_t start = ticks();
        __asm__ volatile("1: dec %0\n\tjnz 1b" : "+r"(left) : : "cc");
        double each = (double)(ticks() - start) / 2e6;
        if (each < best) best = each;
    }
    printf("calibration|%.4f\n", best);
}

int main(int count, char **arguments) {
    if (count > 1 && !strcmp(arguments[1], "child")) return 0;
    self = arguments[0];
    size_t runs = count > 1 ? strtoul(arguments[1], 0, 10) : 9;
    if (runs < 1 || runs > MAX_RUNS) return 2;
    const char *wanted = count > 2 ? arguments[2] : "";
    calibrate();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strstr(rows[i].name, wanted)) measure(&rows[i], runs);
    }
    puts("end");
    return 0;
}
