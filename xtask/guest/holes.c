// Holes: children that unmap every second page of what they have inherited, so that the kernel must count each page apart.
#include "check.h"

enum { PAGES = 60000, CHILDREN = 3, STEP = 16 };

static unsigned char *inherited;

// Of each `STEP` pages two have their numbers, an even and an odd one; the others are never touched.
static int is_touched(int i) { return i % STEP < 2; }

static int *number(int i) { return (int *)(inherited + (size_t)i * PAGE); }

static void make(void) {
    inherited = mmap(0, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    NEED(inherited != MAP_FAILED);
    for (int i = 0; i < PAGES; i++)
        if (is_touched(i)) *number(i) = i + 1;
}

static int is_whole(int from, int step) {
    for (int i = from; i < PAGES; i += step)
        if (is_touched(i) && *number(i) != i + 1) return 0;
    return 1;
}

// Unmaps every second page from `first` on; what lies between is as it was.
static void unmap_stripes(int first) {
    for (int i = first; i < PAGES; i += 2) NEED(!munmap(inherited + (size_t)i * PAGE, PAGE));
    CHECK(is_whole(1 - first, 2));
}

static void odd_pages(void) { unmap_stripes(1); }
static void even_pages(void) { unmap_stripes(0); }

static void a_child_unmaps_every_second_page(void) {
    make();
    CHECK(in_child(odd_pages) == 0);
    CHECK(is_whole(0, 1));
    CHECK(in_child(even_pages) == 0);
    for (int i = 0; i < PAGES; i++)
        if (is_touched(i)) *number(i) += 0;
    CHECK(is_whole(0, 1));
}

static void forget_stripes(void) {
    for (int i = 1; i < PAGES; i += 2) NEED(!munmap(inherited + (size_t)i * PAGE, PAGE));
    // Of a range full of holes one page is forgotten, then all.
    int one = PAGES / 2 & ~(STEP - 1);
    NEED(*number(one) == one + 1);
    NEED(!madvise(number(one), PAGE, MADV_DONTNEED));
    CHECK(*number(one) == 0 && *number(one + STEP) == one + STEP + 1);
    FAILS(madvise(inherited, (size_t)PAGES * PAGE, MADV_DONTNEED), ENOMEM);
    int sum = 0;
    for (int i = 0; i < PAGES; i += STEP) sum |= *number(i);
    CHECK(sum == 0);
    NEED(!munmap(inherited, (size_t)PAGES * PAGE));
}

static void what_lies_between_holes_is_forgotten(void) {
    make();
    CHECK(in_child(forget_stripes) == 0);
    CHECK(is_whole(0, 1));
}

// Children that live at the same time, each with holes of its own.
static void children_with_holes_of_their_own(void) {
    make();
    int pids[CHILDREN], ready[2];
    NEED(!pipe(ready));
    for (int n = 0; n < CHILDREN; n++) {
        fflush(stdout);
        NEED((pids[n] = fork()) >= 0);
        if (pids[n]) continue;
        for (int i = n; i < PAGES; i += 4) NEED(!munmap(inherited + (size_t)i * PAGE, PAGE));
        NEED(write(ready[1], "", 1) == 1);
        pause();
    }
    char byte;
    for (int n = 0; n < CHILDREN; n++) NEED(read(ready[0], &byte, 1) == 1);
    CHECK(is_whole(0, 1));
    for (int i = 0; i < PAGES; i += STEP) *number(i) += 0;
    for (int n = 0, status; n < CHILDREN; n++) {
        kill(pids[n], SIGKILL);
        CHECK(waitpid(pids[n], &status, 0) == pids[n] && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
    CHECK(is_whole(0, 1));
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"a_child_unmaps_every_second_page", a_child_unmaps_every_second_page},
        {"what_lies_between_holes_is_forgotten", what_lies_between_holes_is_forgotten},
        {"children_with_holes_of_their_own", children_with_holes_of_their_own},
    };
    return RUN(cases, argc, argv);
}
