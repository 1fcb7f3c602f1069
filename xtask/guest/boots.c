// A second's work on all CPUs, another with each seed: `boots SEED` forks, starts threads, maps, faults, unmaps, runs programs, and
// checks what it finds. Exit 0 when all was right.
#include "check.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { PROCESSES = 4, THREADS = 3, STEPS = 12, MOST_PAGES = 64 };

static const char *self;
static char *shared; // by the threads of a process

struct worker {
    uint64_t state;
    int bad;
};

static uint64_t next(struct worker *worker) {
    uint64_t x = worker->state;
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    worker->state = x;
    return x * 0x2545f4914f6cdd1dull;
}

static void want(struct worker *worker, int holds, const char *what) {
    if (holds) return;
    printf("FAILED %s (errno %d)\n", what, errno);
    fflush(stdout);
    worker->bad = 1;
}

// Maps some pages, writes them, loses some, writes them again.
static void memory(struct worker *worker) {
    size_t pages = 1 + next(worker) % MOST_PAGES, from = next(worker) % pages, count = 1 + next(worker) % (pages - from);
    uint64_t *at = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    want(worker, at != MAP_FAILED, "mmap");
    if (at == MAP_FAILED) return;
    uint64_t mark = next(worker);
    for (size_t i = 0; i < pages; i++) at[i * PAGE / 8] = mark + i;
    uint64_t *hole = at + from * PAGE / 8;
    if (mark & 1) {
        want(worker, !madvise(hole, count * PAGE, MADV_DONTNEED), "madvise");
    } else {
        want(worker, !munmap(hole, count * PAGE), "munmap of a part");
        // Another thread's mapping may have come there.
        void *back = mmap(hole, count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        if (back != hole) {
            if (back != MAP_FAILED) munmap(back, count * PAGE);
            want(worker, !munmap(at, from * PAGE) || !from, "munmap before a hole");
            size_t rest = pages - from - count;
            want(worker, !rest || !munmap(hole + count * PAGE / 8, rest * PAGE), "munmap after a hole");
            return;
        }
    }
    int right = 1;
    for (size_t i = 0; i < pages; i++) {
        uint64_t wanted = i >= from && i < from + count ? 0 : mark + i;
        right &= at[i * PAGE / 8] == wanted;
    }
    want(worker, right, "what was written is there, and what was lost isn't");
    want(worker, !mprotect(at, pages * PAGE, PROT_READ), "mprotect");
    want(worker, !munmap(at, pages * PAGE), "munmap");
}

// A child that writes what it shares with its parent: only its own changes.
static void child(struct worker *worker) {
    size_t page = next(worker) % MOST_PAGES;
    volatile char *byte = shared + page * PAGE + next(worker) % PAGE;
    int code = (int)(next(worker) % 100);
    pid_t pid = fork();
    if (pid == 0) {
        *byte = 1;
        if (code < 30) {
            char number[8];
            snprintf(number, sizeof number, "%d", code);
            execl(self, self, "exit", number, (char *)0);
            _exit(101);
        }
        _exit(*byte == 1 ? code : 102);
    }
    int status = -1;
    want(worker, pid > 0 && waitpid(pid, &status, 0) == pid, "fork and wait");
    want(worker, WIFEXITED(status) && WEXITSTATUS(status) == code, "a child's code");
    want(worker, *byte == 0, "a child's write is its own");
}

static void *do_nothing(void *argument) { return argument; }
static void thread(struct worker *worker) {
    pthread_t made;
    void *result = 0, *word = (void *)(next(worker) | 1);
    want(worker, !pthread_create(&made, 0, do_nothing, word) && !pthread_join(made, &result) && result == word, "a thread");
}

static void pipe_through(struct worker *worker) {
    int ends[2];
    char byte = (char)next(worker), got = (char)(byte + 1);
    if (pipe(ends)) return want(worker, 0, "pipe");
    want(worker, write(ends[1], &byte, 1) == 1 && read(ends[0], &got, 1) == 1 && got == byte, "a pipe");
    close(ends[0]), close(ends[1]);
}

static void move(struct worker *worker) {
    uint64_t mask = 1ull << next(worker) % (uint64_t)sysconf(_SC_NPROCESSORS_ONLN), all = ~0ull;
    want(worker, !syscall(SYS_sched_setaffinity, 0, sizeof mask, &mask), "sched_setaffinity");
    if (next(worker) & 1) syscall(SYS_sched_setaffinity, 0, sizeof all, &all);
}

static void *work(void *argument) {
    static void (*const steps[])(struct worker *) = {memory, memory, memory, child, child, thread, pipe_through, move};
    struct worker *worker = argument;
    for (int i = 0; i < STEPS; i++) steps[next(worker) % (sizeof steps / sizeof *steps)](worker);
    return 0;
}

static int process(uint64_t seed) {
    struct worker workers[THREADS];
    pthread_t threads[THREADS];
    int bad = 0;
    shared = mmap(0, MOST_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 1;
    for (int i = 0; i < MOST_PAGES; i += 2) shared[i * PAGE] = 0;
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.state = (seed + (uint64_t)i + 1) * 0x9e3779b97f4a7c15ull | 1};
        if (pthread_create(&threads[i], 0, work, &workers[i])) return 1;
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], 0);
        bad |= workers[i].bad;
    }
    return bad;
}

int main(int argc, char **argv) {
    self = argv[0];
    if (argc > 2 && !strcmp(argv[1], "exit")) return atoi(argv[2]);
    uint64_t seed = argc > 1 ? strtoull(argv[1], 0, 0) : 1;
    int bad = 0;
    fflush(stdout);
    for (int i = 0; i < PROCESSES; i++) {
        pid_t pid = fork();
        if (pid == 0) _exit(process(seed * 16 + (uint64_t)i * THREADS));
        bad |= pid < 0;
    }
    for (int status; wait(&status) > 0;) bad |= status != 0;
    puts(bad ? "FAILED" : "all was right");
    return bad;
}
