// What many processes, files, pipes and descriptors took of memory comes back when they are gone: the kernel's heap gives it back.
#include "check.h"
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>

static long most_used;

static void note(void) {
    long now = number_after("/proc/meminfo", "\nSlab:");
    if (now > most_used) most_used = now;
}

static void many_mappings(void) {
    enum { PIECES = 30000 };
    char *base = mmap(0, PIECES * 2ul * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    NEED(base != MAP_FAILED);
    for (long i = 0; i < PIECES; i++) NEED(mprotect(base + i * 2 * PAGE, PAGE, PROT_READ) == 0);
    note();
}

static void many_descriptors(void) {
    struct rlimit most = {20000, 20000};
    NEED(setrlimit(RLIMIT_NOFILE, &most) == 0);
    int count = 0, ends[2];
    for (; count < 5000 && pipe(ends) == 0; count++) {}
    for (int n = 0; n < 2000 && socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0; n++) count++;
    CHECK(count > 2500);
    note();
}

static void many_names(void) {
    char name[64];
    int made = 0;
    // As many as one user may have.
    for (; made < 20000; made++) {
        sprintf(name, "/tmp/name-%d", made);
        if (link("/tmp/named", name) != 0) break;
    }
    CHECK(made > 1000);
    note();
    for (int n = 0; n < made; n++) {
        sprintf(name, "/tmp/name-%d", n);
        NEED(unlink(name) == 0);
    }
}

static void many_processes(void) {
    int hold[2], count = 0;
    NEED(pipe(hold) == 0);
    static pid_t children[400];
    for (; count < 400; count++) {
        pid_t child = fork();
        if (child < 0) break;
        if (child == 0) {
            char byte;
            close(hold[1]);
            _exit(read(hold[0], &byte, 1) != 0);
        }
        children[count] = child;
    }
    note();
    close(hold[1]);
    for (int n = 0; n < count; n++) waitpid(children[n], 0, 0);
}

static void (*const loads[])(void) = {many_mappings, many_descriptors, many_names, many_processes};
static size_t load;

// The most that was seen is for the parent.
static void run_load(void) {
    loads[load]();
    int fd = open("/tmp/most", O_CREAT | O_TRUNC | O_WRONLY, 0644);
    NEED(write(fd, &most_used, sizeof most_used) == sizeof most_used);
    close(fd);
}

static void run_loads(void) {
    for (load = 0; load < sizeof loads / sizeof *loads; load++) {
        CHECK(in_child(run_load) == 0);
        int fd = open("/tmp/most", O_RDONLY);
        NEED(read(fd, &most_used, sizeof most_used) == sizeof most_used);
        close(fd);
    }
}

static int rounds = 3;

static void memory_comes_back(void) {
    close(open("/tmp/named", O_CREAT | O_RDWR, 0644));
    long before = number_after("/proc/meminfo", "\nSlab:"), free_before = number_after("/proc/meminfo", "MemFree:");
    for (int round = 0; round < rounds; round++) {
        run_loads();
        long after = 0;
        // The page daemon does it, beside others.
        for (int attempt = 0; attempt < 50; attempt++) {
            after = number_after("/proc/meminfo", "\nSlab:");
            if (after - before < 6144) break;
            usleep(100000);
        }
        printf("  heap: %ld KiB used, %ld free, %ld pages given back in %ld pieces\n", vmstat("heap_used") / 1024, vmstat("heap_free") / 1024,
            vmstat("heap_balloon_pages"), vmstat("heap_balloon_pieces"));
        printf("  the heap had %ld KiB, then up to %ld, then %ld; free were %ld KiB, now %ld\n", before, most_used, after, free_before, number_after("/proc/meminfo", "MemFree:"));
        CHECK(most_used - before > 8192);
        CHECK(after - before < 6144);
    }
}

// An audit has memory promised that its lists never take: half of them are empty.
static void promises_come_back(void) {
    long before = number_after("/proc/meminfo", "\nSlab:"), after = 0;
    audited();
    for (int attempt = 0; attempt < 50; attempt++) {
        after = number_after("/proc/meminfo", "\nSlab:");
        if (after - before < 8192) break;
        usleep(100000);
    }
    printf("  the heap had %ld KiB, and has %ld\n", before, after);
    CHECK(after - before < 8192);
}

// What the kernel keeps of mappings beyond a page's first: of 300 children that see a parent's pages, in an order of their own.
static void seen_by_many(void) {
    enum { SEEN = 2048, CHILDREN = 300 };
    char *at = mmap(0, SEEN * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NEED(at != MAP_FAILED);
    for (long i = 0; i < SEEN; i++) at[i * PAGE] = 1;
    int hold[2], seen[2];
    NEED(pipe(hold) == 0 && pipe(seen) == 0);
    for (int n = 0; n < CHILDREN; n++) {
        pid_t child = fork();
        NEED(child >= 0);
        if (child == 0) {
            char byte;
            close(hold[1]);
            for (long i = 0; i < SEEN; i++) NEED(at[(i * 7 + n) % SEEN * PAGE] == 1);
            NEED(write(seen[1], "", 1) == 1);
            _exit(read(hold[0], &byte, 1) != 0);
        }
    }
    char byte;
    for (int n = 0; n < CHILDREN; n++) NEED(read(seen[0], &byte, 1) == 1);
    close(hold[1]);
    while (wait(0) > 0) {}
}

static void mappings_leave_nothing(void) {
    long before = number_after("/proc/meminfo", "MemFree:"), after = 0;
    for (int round = 0; round < rounds; round++) CHECK(in_child(seen_by_many) == 0);
    for (int attempt = 0; attempt < 50; attempt++) {
        after = number_after("/proc/meminfo", "MemFree:");
        if (before - after < 4096) break;
        usleep(100000);
    }
    printf("  free were %ld KiB, now %ld\n", before, after);
    CHECK(before - after < 4096);
}

static const struct test_case cases[] = {
    {"memory comes back", memory_comes_back},
    {"mappings leave nothing", mappings_leave_nothing},
    {"promises come back", promises_come_back},
};

int main(int argc, char **argv) {
    if (argc > 1) rounds = atoi(argv[1]), argc = 1;
    return RUN(cases, argc, argv);
}
