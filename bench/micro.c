// Instructions per operation: one static program, the same binary on every kernel. How it counts, and what it prints, stands in
// count.h.
//
// Between two readings of the clock is nothing but what is measured, since `./uvm profile` counts there.
// All memory is in 4 KiB pages on every kernel: large pages are switched off for the regions measured here.
// Usage: micro RUNS [PART OF A NAME]      (and, for itself: micro child)
#include "count.h"
#include "drain.h"
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { CHUNK = 65536, FILE_PAGES = 1024, ANON_PAGES = 1024 };

static const char *self;
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

// Downwards: a fault for each page. Upwards a kernel may see a run, and bring several pages at once.
static uint64_t anonymous_faults(size_t count) {
    volatile char *at = pages_of(count, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (!at) return 0;
    uint64_t start = ticks();
    for (size_t i = count; i-- > 0;) at[i * PAGE] = 1;
    uint64_t spent = ticks() - start;
    munmap((void *)at, count * PAGE);
    return spent;
}

static uint64_t touches_upwards(size_t count) {
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

static const struct row rows[] = {
    {"null system call", null_calls, 1000},
    {"anonymous fault", anonymous_faults, ANON_PAGES},
    {"first touch, upwards", touches_upwards, ANON_PAGES},
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

int main(int count, char **arguments) {
    if (count > 1 && !strcmp(arguments[1], "child")) return 0;
    if (count > 1 && !strcmp(arguments[1], "list")) {
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) puts(rows[i].name);
        return 0;
    }
    self = arguments[0];
    size_t runs = count > 1 ? strtoul(arguments[1], 0, 10) : 9;
    if (runs < 1 || runs > MAX_RUNS) return 2;
    const char *wanted = count > 2 ? arguments[2] : "";
    calibrate();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strstr(rows[i].name, wanted)) measure(&rows[i], runs);
    }
    puts("end");
    drain();
    return 0;
}
