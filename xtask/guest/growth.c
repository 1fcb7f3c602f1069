// What mappings, forks and page tables leave behind: one mapping where one will do, and no memory that nobody can reach.
#include "check.h"

enum { RW = PROT_READ | PROT_WRITE, ANON = MAP_PRIVATE | MAP_ANONYMOUS };

// A whole file of /proc, without a byte of heap: some cases move the break, which malloc takes for its own.
static const char *contents(const char *path) {
    static char text[1 << 16];
    int fd = open(path, O_RDONLY);
    NEED(fd >= 0);
    size_t len = 0;
    for (ssize_t got; len < sizeof text - 1 && (got = read(fd, text + len, sizeof text - 1 - len)) > 0;) len += got;
    close(fd);
    text[len] = 0;
    return text;
}

// How often a word stands in /proc/self/maps: once for each mapping, if the word is the end of a line.
static int mappings(const char *word) {
    int count = 0;
    for (const char *at = contents("/proc/self/maps"); (at = strstr(at, word)); at++) count++;
    return count;
}

static long meminfo(const char *name) {
    const char *at = strstr(contents("/proc/meminfo"), name);
    NEED(at && (at = strchr(at, ':')));
    return strtol(at + 1, 0, 10);
}

// A child that lives until told.
static pid_t idle_child(int *tell) {
    int ends[2];
    NEED(!pipe(ends));
    pid_t child = fork();
    if (child == 0) {
        char byte;
        close(ends[1]);
        _exit(read(ends[0], &byte, 1) == 1);
    }
    close(ends[0]);
    *tell = ends[1];
    return child;
}

static void a_heap_that_grows_by_pages_is_one_mapping(void) {
    char *start = (char *)syscall(SYS_brk, 0), *end = start;
    int before = mappings("\n"), tell = -1;
    pid_t child = -1;
    for (int i = 0; i < 600; i++) {
        NEED((char *)syscall(SYS_brk, end + PAGE) == end + PAGE);
        *(int *)end = i;
        end += PAGE;
        if (i == 200) child = idle_child(&tell);
        if (i == 400) {
            close(tell);
            waitpid(child, 0, 0);
        }
    }
    CHECK(mappings("\n") <= before + 1 && mappings("[heap]\n") == 1);
    for (int i = 0; i < 600; i++) CHECK(*(int *)(start + i * PAGE) == i);
    CHECK((char *)syscall(SYS_brk, start) == start);
}

static void mappings_beside_one_another_are_one(void) {
    char *room = mmap(0, 64 * PAGE, PROT_NONE, ANON, -1, 0);
    NEED(room != MAP_FAILED);
    int before = mappings("\n");
    // From the top down, then from the bottom up, until they meet.
    for (int i = 0; i < 16; i++) {
        char *high = room + (47 - i) * PAGE, *low = room + (16 + i) * PAGE;
        NEED(mmap(high, PAGE, RW, ANON | MAP_FIXED, -1, 0) == high && mmap(low, PAGE, RW, ANON | MAP_FIXED, -1, 0) == low);
        *high = *low = i;
    }
    // What lies on both sides of them, and the two that have met: who joins two that have both been written, needn't.
    CHECK(mappings("\n") <= before + 3);
    for (int i = 0; i < 16; i++) CHECK(room[(47 - i) * PAGE] == i && room[(16 + i) * PAGE] == i);
}

static int deep(int levels) {
    volatile char frame[PAGE];
    frame[0] = levels;
    return levels == 0 ? 0 : deep(levels - 1) + (frame[0] == (char)levels);
}

static void a_deep_stack_is_one_mapping(void) {
    CHECK(deep(1000) == 1000);
    CHECK(mappings("[stack]\n") == 1);
}

static void a_mapping_that_is_resized_in_place_stays_one(void) {
    char *room = mmap(0, 128 * PAGE, PROT_NONE, ANON, -1, 0);
    NEED(room != MAP_FAILED && !munmap(room + PAGE, 127 * PAGE) && !mprotect(room, PAGE, RW));
    int before = mappings("\n");
    for (int n = 1; n < 100; n++) {
        NEED(mremap(room, n * PAGE, (n + 1) * PAGE, 0) == room);
        room[n * PAGE] = n;
    }
    CHECK(mappings("\n") == before);
    for (int n = 1; n < 100; n++) CHECK(room[n * PAGE] == n);
}

static void children_get_what_advice_leaves_them(void) {
    char *at = mmap(0, 8 * PAGE, RW, ANON, -1, 0);
    NEED(at != MAP_FAILED);
    memset(at, 7, 8 * PAGE);
    CHECK(!madvise(at + 2 * PAGE, 2 * PAGE, MADV_WIPEONFORK) && !madvise(at + 4 * PAGE, 2 * PAGE, MADV_DONTFORK));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        CHECK(at[0] == 7 && at[PAGE] == 7 && at[2 * PAGE] == 0 && at[3 * PAGE] == 0 && at[6 * PAGE] == 7);
        unsigned char vector[8];
        FAILS(mincore(at + 4 * PAGE, 2 * PAGE, vector), ENOMEM);
        // What a child writes where it was wiped is wiped again for its own child; the hole stays one.
        at[2 * PAGE] = 9;
        at[6 * PAGE] = 9;
        fflush(stdout);
        pid_t grandchild = fork();
        if (grandchild == 0) {
            CHECK(at[2 * PAGE] == 0 && at[6 * PAGE] == 9);
            FAILS(mincore(at + 4 * PAGE, 2 * PAGE, vector), ENOMEM);
            fflush(stdout);
            _exit(failed_checks);
        }
        int status;
        CHECK(waitpid(grandchild, &status, 0) == grandchild && status == 0 && at[2 * PAGE] == 9);
        fflush(stdout);
        _exit(failed_checks);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    for (int i = 0; i < 8; i++) CHECK(at[i * PAGE] == 7);
}

// Figure 3's life, and the chain: the child writes, forks and outlives its parent.
static void round_of_forks(char *at, int pages, int n) {
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < pages; i += 2) at[i * PAGE] = n;
        munmap(at + 4 * PAGE, 2 * PAGE);
        pid_t grandchild = fork();
        if (grandchild == 0) {
            for (int i = 6; i < pages; i += 3) at[i * PAGE] = n + 1;
            _exit(at[6 * PAGE] != (char)(n + 1));
        }
        int status;
        _exit(waitpid(grandchild, &status, 0) != grandchild || status);
    }
    for (int i = 1; i < pages; i += 2) at[i * PAGE] = n + 2;
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void forks_for_a_while_leave_no_memory_behind(void) {
    enum { PAGES = 64, ROUNDS = 400 };
    char *at = mmap(0, PAGES * PAGE, RW, ANON, -1, 0);
    NEED(at != MAP_FAILED);
    memset(at, 1, PAGES * PAGE);
    for (int n = 0; n < 20; n++) round_of_forks(at, PAGES, n);
    long before = meminfo("MemFree");
    for (int n = 0; n < ROUNDS; n++) round_of_forks(at, PAGES, n);
    // A page left behind by each round would be 1,600 KiB.
    long lost = before - meminfo("MemFree");
    printf("  %ld KiB fewer after %d rounds\n", lost, ROUNDS);
    CHECK(lost < 1000);
}

static void touches_a_sparse_terabyte(void) {
    enum { TOUCHED = 1000 };
    const unsigned long GIB = 1UL << 30;
    long before = meminfo("MemFree");
    char *at = mmap(0, 1024 * GIB, RW, ANON | MAP_NORESERVE, -1, 0);
    NEED(at != MAP_FAILED);
    CHECK(!madvise(at, 1024 * GIB, MADV_RANDOM));
    for (int i = 0; i < TOUCHED; i++) at[i * GIB + i * PAGE] = i;
    // Each page lies in a gibibyte of its own, and the hardware wants two pages of tables for it.
    long used = before - meminfo("MemFree"), pages = TOUCHED * 4, tables = TOUCHED * 8;
    printf("  %ld KiB beside pages and their tables\n", used - pages - tables);
    CHECK(used - pages - tables < 1024);
    for (int i = 0; i < TOUCHED; i++) CHECK(at[i * GIB + i * PAGE] == (char)i);
    CHECK(!munmap(at, 1024 * GIB));
    used = before - meminfo("MemFree") - tables;
    printf("  %ld KiB when it is unmapped\n", used);
    CHECK(used < 1024);
}

static void a_sparse_terabyte_costs_by_what_is_touched(void) {
    CHECK(in_child(touches_a_sparse_terabyte) == 0);
    // A second finds what the first left behind.
    long before = meminfo("MemFree");
    CHECK(in_child(touches_a_sparse_terabyte) == 0);
    long lost = before - meminfo("MemFree");
    printf("  %ld KiB fewer when the second is gone\n", lost);
    CHECK(lost < 512);
}

static const struct test_case cases[] = {
    {"a heap that grows by pages is one mapping", a_heap_that_grows_by_pages_is_one_mapping},
    {"mappings beside one another are one", mappings_beside_one_another_are_one},
    {"a deep stack is one mapping", a_deep_stack_is_one_mapping},
    {"a mapping that is resized in place stays one", a_mapping_that_is_resized_in_place_stays_one},
    {"children get what advice leaves them", children_get_what_advice_leaves_them},
    {"forks for a while leave no memory behind", forks_for_a_while_leave_no_memory_behind},
    {"a sparse terabyte costs by what is touched", a_sparse_terabyte_costs_by_what_is_touched},
};

int main(int argc, char **argv) {
    return run_cases(cases, sizeof cases / sizeof *cases, argc, argv);
}
