// What programs have in common that count the instructions of an operation.
//
// Under `qemu -icount shift=0` a tick of the time-stamp counter is one guest instruction, so a difference of two readings
// counts what the program and the kernel executed between them: exact, and free of the host's load. `calibrate` checks it.
//
// Each row is warmed up, then measured a number of times; a run is a batch of operations and its value the mean per operation.
// Printed for a program to read (see xtask/src/bench/counted.rs):
//   row|NAME|instructions|MEDIAN|MIN|MAX|RUNS     then, where /proc/vmstat moved, counter|COUNTER|DELTA
//   operations|N                                  how often the row above was done in all, between two readings of the clock
//   fail|NAME|WHY                                 for what this kernel can't do
#ifndef COUNT_H
#define COUNT_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PAGE = 4096, WARM_UP = 2, MAX_RUNS = 1000 };

struct row {
    const char *name;
    uint64_t (*batch)(size_t count);
    size_t count;
};

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

static int read_all(int fd, char *to, size_t length) {
    for (size_t done = 0; done < length;) {
        ssize_t got = read(fd, to + done, length - done);
        if (got <= 0) return -1;
        done += got;
    }
    return 0;
}

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

#endif
