// What CPUs must forget, and whom it costs an interrupt: nobody for a process with one thread, whatever CPUs it ran on;
// one round for a system call of one with many. And nobody ever uses what was taken away.
#include "check.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

// WRITTEN: pages of stacks and data, at most, that all threads write while a fork is measured.
enum { MAX = 64, MANY = 400, WRITTEN = 16, MILLIS = 700, AUDITS = 30 };

static int cpus(void) {
    int count = (int)sysconf(_SC_NPROCESSORS_ONLN);
    return count < MAX ? count : MAX;
}

static int pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    return sched_setaffinity(0, sizeof set, &set);
}

static int64_t millis(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static long counter(const char *name) {
    long value = vmstat(name);
    NEED(value >= 0);
    return value;
}

static char *map(size_t pages) {
    char *at = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NEED(at != MAP_FAILED);
    return at;
}

static void touch(char *at, size_t pages, char value) {
    for (size_t i = 0; i < pages; i++) at[i * PAGE] = value;
}

// --- one thread ---------------------------------------------------------------------------------------------------

// All that lowers something, once.
static void lower_everything(void) {
    char *at = map(MANY);
    touch(at, MANY, 1);
    CHECK(!mprotect(at, MANY * PAGE, PROT_READ));
    CHECK(!mprotect(at, MANY * PAGE, PROT_READ | PROT_WRITE));
    touch(at, MANY, 2);
    CHECK(!madvise(at, MANY / 2 * PAGE, MADV_DONTNEED));
    touch(at, MANY, 3);
    pid_t child = fork();
    NEED(child >= 0);
    if (!child) {
        touch(at, MANY, 4);
        char *argv[] = {"/bin/shootdowns", "nothing", 0};
        execv(argv[0], argv);
        _exit(1);
    }
    // Write faults while the child still has the pages.
    touch(at, MANY, 5);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    char *moved = mremap(at, MANY * PAGE, 2 * MANY * PAGE, MREMAP_MAYMOVE);
    NEED(moved != MAP_FAILED);
    CHECK(moved[0] == 5);
    // A whole table goes, too.
    char *large = map(2048);
    for (int i = 0; i < 2048; i += 64) large[i * PAGE] = 1;
    CHECK(!munmap(large, 2048 * PAGE));
    CHECK(!munmap(moved, 2 * MANY * PAGE));
}

static void one_thread_interrupts_nobody(void) {
    int count = cpus();
    NEED(count > 1);
    // The others forget the test that ran before.
    usleep(10000);
    long interrupts = counter("tlb_interrupts"), local = counter("tlb_local");
    for (int i = 0; i < 3 * count; i++) {
        NEED(!pin(i % count));
        lower_everything();
    }
    CHECK(counter("tlb_local") > local + 3 * count);
    CHECK(counter("tlb_interrupts") == interrupts);
}

// --- many threads -------------------------------------------------------------------------------------------------

static atomic_int rounds[MAX + 1], stop;
static char *_Atomic shared;

// Reads all of the shared pages again and again; what it reads once they are gone is a fault, so it is told before.
static void *reading(void *argument) {
    volatile char sum = 0;
    pin((int)(long)argument);
    while (!atomic_load(&stop)) {
        char *at = atomic_load(&shared);
        if (at) for (size_t i = 0; i < MANY; i++) sum += at[i * PAGE];
        atomic_fetch_add(&rounds[(long)argument], 1);
    }
    return 0;
}

static int start(pthread_t *threads, void *(*body)(void *)) {
    int others = cpus() - 1;
    NEED(others > 0);
    NEED(!pin(0));
    atomic_store(&stop, 0);
    for (long i = 0; i < others; i++) NEED(!pthread_create(&threads[i], 0, body, (void *)(i + 1)));
    return others;
}

static void end(pthread_t *threads, int others) {
    atomic_store(&stop, 1);
    for (int i = 0; i < others; i++) CHECK(!pthread_join(threads[i], 0));
}

static void read_by_all(int others) {
    // Each of them by itself: one that its host doesn't run may be in the midst of a round while others make many.
    for (int i = 1; i <= others; i++) {
        int before = atomic_load(&rounds[i]);
        while (atomic_load(&rounds[i]) - before < 2) sched_yield();
    }
}

// Runs a statement that tells the others in at most so many rounds. Rounds are read first and last: one that another thread begins
// between the readings must not count as interrupts without a round.
#define IN_ROUNDS(most, statement) do { \
    long rounds_ = counter("tlb_remote"), sent_ = counter("tlb_interrupts"); \
    statement; \
    sent_ = counter("tlb_interrupts") - sent_; \
    rounds_ = counter("tlb_remote") - rounds_; \
    if (rounds_ > (most)) printf("  %ld rounds, %ld interrupts:\n", rounds_, sent_); \
    check_(rounds_ <= (most) && sent_ <= rounds_ * others, #statement " interrupts once", __FILE__, __LINE__); \
    total += rounds_; \
} while (0)

static void many_threads_are_told_once_a_call(void) {
    pthread_t threads[MAX];
    int others = start(threads, reading);
    long total = 0, calls = 0;
    for (int i = 0; i < 10; i++) {
        char *at = map(MANY);
        touch(at, MANY, 1);
        atomic_store(&shared, at);
        read_by_all(others);
        IN_ROUNDS(1, CHECK(!mprotect(at, MANY * PAGE, PROT_READ)));
        read_by_all(others);
        CHECK(!mprotect(at, MANY * PAGE, PROT_READ | PROT_WRITE));
        touch(at, MANY, 2);
        pid_t child;
        // One for all that is lowered; then each page that one of us writes is copied, and the others hear of that.
        IN_ROUNDS(1 + WRITTEN, child = fork(); if (!child) _exit(0));
        CHECK(waitpid(child, 0, 0) == child);
        touch(at, MANY, 3);
        read_by_all(others);
        atomic_store(&shared, 0);
        // Nobody is in the loop over the pages any more.
        read_by_all(others);
        IN_ROUNDS(1, CHECK(!munmap(at, MANY * PAGE)));
        calls += 3;
    }
    // On a busy host a reader may have no CPU now and then, but not always.
    CHECK(total > calls / 2);
    end(threads, others);
}

// --- what was taken away isn't used ----------------------------------------------------------------------------------

struct cell { _Atomic long value, told; };
static struct cell *cell, *flag;
static atomic_long wrong;

// Whoever has seen what was announced must see what was written before: by way of the page that is mapped now, not of the one before.
static void *comparing(void *argument) {
    pin((int)(long)argument);
    while (!atomic_load(&stop)) {
        long told = atomic_load(&flag->told), value = atomic_load(&cell->value);
        if (value < told) atomic_fetch_add(&wrong, 1);
    }
    return 0;
}

static void nobody_reads_a_copied_page_through_a_stale_entry(void) {
    pthread_t threads[MAX];
    cell = (struct cell *)map(1);
    flag = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(flag != MAP_FAILED);
    int others = start(threads, comparing);
    int64_t until = millis() + MILLIS;
    for (long i = 1; millis() < until; i++) {
        int ends[2];
        char byte;
        NEED(!pipe(ends));
        pid_t child = fork();
        if (!child) {
            // Keeps the page shared until the parent has written.
            close(ends[1]);
            if (read(ends[0], &byte, 1)) {}
            _exit(atomic_load(&cell->value) != i - 1);
        }
        NEED(child > 0);
        atomic_store(&cell->value, i);
        atomic_store(&flag->told, i);
        close(ends[0]);
        close(ends[1]);
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    end(threads, others);
    CHECK(atomic_load(&wrong) == 0);
}

static __thread sigjmp_buf refused;
static void on_fault(int signal) {
    (void)signal;
    siglongjmp(refused, 1);
}

// Writes whenever it may.
static void *writing(void *argument) {
    pin((int)(long)argument);
    while (!atomic_load(&stop)) {
        if (sigsetjmp(refused, 1)) sched_yield();
        while (!atomic_load(&stop)) atomic_fetch_add(&cell->value, 1);
    }
    return 0;
}

static void nobody_writes_what_was_protected(void) {
    pthread_t threads[MAX];
    struct sigaction action = {.sa_handler = on_fault, .sa_flags = SA_NODEFER};
    NEED(!sigaction(SIGSEGV, &action, 0));
    cell = (struct cell *)map(1);
    int others = start(threads, writing);
    int64_t until = millis() + MILLIS;
    long seen = 0;
    for (int i = 0; millis() < until || seen == 0; i++) {
        CHECK(!mprotect(cell, PAGE, PROT_READ));
        long value = atomic_load(&cell->value);
        for (int spin = 0; spin < 2000; spin++) CHECK(atomic_load(&cell->value) == value);
        seen = value;
        CHECK(!mprotect(cell, PAGE, PROT_READ | PROT_WRITE));
        usleep(500);
    }
    end(threads, others);
}

static void fork_under_write_load_is_a_snapshot(void) {
    pthread_t threads[MAX];
    struct sigaction action = {.sa_handler = on_fault, .sa_flags = SA_NODEFER};
    NEED(!sigaction(SIGSEGV, &action, 0));
    cell = (struct cell *)map(1);
    int others = start(threads, writing);
    int64_t until = millis() + MILLIS;
    while (millis() < until || atomic_load(&cell->value) == 0) {
        pid_t child = fork();
        if (!child) {
            long value = atomic_load(&cell->value);
            for (int spin = 0; spin < 2000; spin++) if (atomic_load(&cell->value) != value) _exit(1);
            _exit(0);
        }
        NEED(child > 0);
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    end(threads, others);
}

// Maps, fills, checks and unmaps pages beside those of the others: one table serves them all.
static void *remapping(void *argument) {
    long me = (long)argument;
    pin((int)me);
    char *at = (char *)cell + me * 16 * PAGE;
    while (!atomic_load(&stop)) {
        if (mmap(at, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != at) _exit(2);
        for (int i = 0; i < 8; i++) {
            if (at[i * PAGE] != 0) atomic_fetch_add(&wrong, 1);
            at[i * PAGE] = (char)me;
        }
        for (int i = 0; i < 8; i++) if (at[i * PAGE] != (char)me) atomic_fetch_add(&wrong, 1);
        if (munmap(at, 8 * PAGE)) atomic_fetch_add(&wrong, 1);
    }
    return 0;
}

static void unmapping_against_faults(void) {
    pthread_t threads[MAX];
    cell = (struct cell *)map((MAX + 1) * 16);
    int others = start(threads, remapping);
    int64_t until = millis() + MILLIS;
    while (millis() < until) {
        char *at = map(64);
        touch(at, 64, 7);
        pid_t child = fork();
        if (!child) _exit(at[0] != 7);
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        for (int i = 0; i < 64; i++) if (at[i * PAGE] != 7) atomic_fetch_add(&wrong, 1);
        CHECK(!munmap(at, 64 * PAGE));
    }
    end(threads, others);
    CHECK(atomic_load(&wrong) == 0);
}

// --- threads that map side by side ------------------------------------------------------------------------------------

// Maps wherever there is room, as all others do.
static void *mapping_anywhere(void *argument) {
    long me = (long)argument;
    pin((int)me);
    while (!atomic_load(&stop)) {
        char *at = map(2);
        if (at[0] != 0 || at[PAGE] != 0) atomic_fetch_add(&wrong, 1);
        touch(at, 2, (char)me);
        if (at[0] != (char)me || munmap(at, 2 * PAGE)) atomic_fetch_add(&wrong, 1);
        atomic_fetch_add(&rounds[me], 1);
    }
    return 0;
}

static void wait_for_rounds(int others, int most) {
    for (int i = 1; i <= others; i++) while (atomic_load(&rounds[i]) < most) usleep(100);
}

static void side_by_side(int most) {
    pthread_t threads[MAX];
    memset(rounds, 0, sizeof rounds);
    atomic_store(&wrong, 0);
    int others = start(threads, mapping_anywhere);
    wait_for_rounds(others, most);
    end(threads, others);
    CHECK(atomic_load(&wrong) == 0);
}

static void threads_that_map_side_by_side(void) { side_by_side(1000); }

static void map_side_by_side_and_end(void) { side_by_side(20); }

static void many_whose_threads_map_side_by_side_end(void) {
    for (int i = 0; i < 100; i++) CHECK(in_child(map_side_by_side_and_end) == 0);
}

// The first keeps putting a page with a higher number where the last was, among what it maps anywhere; the others compare.
static void *putting_anew(void *argument) {
    pin((int)(long)argument);
    for (int i = 0; i < 200; i++) munmap(map(2), 2 * PAGE);
    cell = (struct cell *)map(1);
    atomic_store(&shared, (char *)cell);
    for (long i = 1; !atomic_load(&stop); i++) {
        struct cell *next = (struct cell *)map(1);
        atomic_store(&next->value, i);
        if (mremap(next, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, cell) != cell) atomic_fetch_add(&wrong, 1);
        atomic_store(&flag->told, i);
        atomic_fetch_add(&rounds[(long)argument], 1);
    }
    return 0;
}

static void *comparing_elsewhere(void *argument) {
    if ((long)argument == 1) return putting_anew(argument);
    pin((int)(long)argument);
    while (!atomic_load(&shared)) munmap(map(2), 2 * PAGE);
    while (!atomic_load(&stop)) {
        // It is gone for a moment.
        if (sigsetjmp(refused, 1)) continue;
        long told = atomic_load(&flag->told), value = atomic_load(&cell->value);
        if (value < told) atomic_fetch_add(&wrong, 1);
        atomic_fetch_add(&rounds[(long)argument], 1);
    }
    return 0;
}

static void who_looks_into_anothers_mappings_is_told(void) {
    pthread_t threads[MAX];
    struct sigaction action = {.sa_handler = on_fault, .sa_flags = SA_NODEFER};
    NEED(!sigaction(SIGSEGV, &action, 0));
    flag = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(flag != MAP_FAILED);
    int others = start(threads, comparing_elsewhere);
    int64_t until = millis() + MILLIS;
    for (int i = 1; i <= others; i++) while (millis() < until || atomic_load(&rounds[i]) < 10) usleep(1000);
    end(threads, others);
    CHECK(atomic_load(&wrong) == 0);
}

// --- standing still -----------------------------------------------------------------------------------------------------

// membarrier's commands.
enum { PRIVATE_EXPEDITED = 8, REGISTER_PRIVATE_EXPEDITED = 16 };

// Has whoever reads a thread's pages forget them, and waits until all have.
static void *telling(void *argument) {
    long me = (long)argument;
    char *at = atomic_load(&shared) + me * MANY * PAGE;
    pin((int)me);
    while (!atomic_load(&stop)) {
        if (mprotect(at, MANY * PAGE, PROT_READ) || mprotect(at, MANY * PAGE, PROT_READ | PROT_WRITE)) atomic_fetch_add(&wrong, 1);
        touch(at, MANY, (char)me);
        if (syscall(SYS_membarrier, PRIVATE_EXPEDITED, 0, 0)) atomic_fetch_add(&wrong, 1);
    }
    return 0;
}

// An audit has all other CPUs stand still: it answers those that are not there yet.
static void an_audit_answers_who_waits(void) {
    pthread_t threads[MAX];
    NEED(!syscall(SYS_membarrier, REGISTER_PRIVATE_EXPEDITED, 0, 0));
    size_t pages = (size_t)cpus() * MANY;
    volatile char *at = map(pages), sum = 0;
    atomic_store(&shared, (char *)at);
    int others = start(threads, telling);
    for (int i = 0; i < AUDITS; i++) {
        for (size_t page = 0; page < pages; page++) sum += at[page * PAGE];
        audited();
    }
    end(threads, others);
    CHECK(atomic_load(&wrong) == 0);
}

static void *computing(void *argument) {
    pin((int)(long)argument);
    while (!atomic_load(&stop)) {
        for (volatile int i = 0; i < 100000; i++) continue;
        atomic_fetch_add(&rounds[(long)argument], 1);
    }
    return 0;
}

// It doesn't wait for programs that never do.
static void an_audit_beside_programs_that_compute(void) {
    pthread_t threads[MAX];
    int others = start(threads, computing);
    for (int i = 1; i <= others; i++) while (!atomic_load(&rounds[i])) sched_yield();
    for (int i = 0; i < AUDITS; i++) audited();
    end(threads, others);
}

static const struct test_case cases[] = {
    {"one_thread_interrupts_nobody", one_thread_interrupts_nobody},
    {"many_threads_are_told_once_a_call", many_threads_are_told_once_a_call},
    {"nobody_reads_a_copied_page_through_a_stale_entry", nobody_reads_a_copied_page_through_a_stale_entry},
    {"nobody_writes_what_was_protected", nobody_writes_what_was_protected},
    {"fork_under_write_load_is_a_snapshot", fork_under_write_load_is_a_snapshot},
    {"unmapping_against_faults", unmapping_against_faults},
    {"threads_that_map_side_by_side", threads_that_map_side_by_side},
    {"many_whose_threads_map_side_by_side_end", many_whose_threads_map_side_by_side_end},
    {"who_looks_into_anothers_mappings_is_told", who_looks_into_anothers_mappings_is_told},
    {"an_audit_answers_who_waits", an_audit_answers_who_waits},
    {"an_audit_beside_programs_that_compute", an_audit_beside_programs_that_compute},
};

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "nothing")) return 0;
    return RUN(cases, argc, argv);
}
