// minherit(2), which Linux does not have: what a child gets of parts of a range (1999, section 5.4). NetBSD's numbers.
#include "check.h"

enum { RW = PROT_READ | PROT_WRITE, ANON = MAP_PRIVATE | MAP_ANONYMOUS, SHARE = 0, COPY = 1, NONE = 2, ZERO = 4 };

static int minherit_(void *at, size_t len, int how) {
    return (int)syscall(510, at, len, how);
}

static char *filled(int pages) {
    char *at = mmap(0, pages * PAGE, RW, ANON, -1, 0);
    NEED(at != MAP_FAILED);
    for (int i = 0; i < pages; i++) at[i * PAGE] = 10 + i;
    return at;
}

static int is_mapped(void *at) {
    unsigned char vector;
    return !mincore(at, PAGE, &vector);
}

// Waits for a child whose checks must all have held.
static void ends_well(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void done(void) {
    fflush(stdout);
    _exit(failed_checks);
}

static void parts_of_a_range_go_four_ways(void) {
    char *at = filled(8);
    CHECK(!minherit_(at, 2 * PAGE, SHARE) && !minherit_(at + 4 * PAGE, 2 * PAGE, ZERO) && !minherit_(at + 6 * PAGE, 2 * PAGE, NONE));
    pid_t child = fork();
    if (child == 0) {
        CHECK(at[0] == 10 && at[3 * PAGE] == 13 && at[4 * PAGE] == 0 && at[5 * PAGE] == 0);
        CHECK(!is_mapped(at + 6 * PAGE) && !is_mapped(at + 7 * PAGE));
        at[0] = at[2 * PAGE] = at[4 * PAGE] = 99;
        done();
    }
    ends_well(child);
    CHECK(at[0] == 99 && at[2 * PAGE] == 12 && at[4 * PAGE] == 14 && at[7 * PAGE] == 17);
}

static void shared_memory_outlives_the_one_that_shared_it(void) {
    char *at = filled(2);
    volatile char *seen = at;
    CHECK(!minherit_(at, PAGE, SHARE));
    pid_t child = fork();
    if (child == 0) {
        pid_t grandchild = fork();
        if (grandchild == 0) {
            while (seen[0] != 50) usleep(1000);
            seen[0] = 60;
            seen[PAGE] = 61;
            done();
        }
        done(); // the grandchild goes on alone
    }
    ends_well(child);
    seen[0] = 50;
    for (int i = 0; i < 5000 && seen[0] != 60; i++) usleep(1000);
    CHECK(seen[0] == 60 && seen[PAGE] == 11);
}

static void a_copy_can_be_shared_and_a_share_copied(void) {
    char *at = filled(2);
    pid_t child = fork();
    if (child == 0) {
        CHECK(!minherit_(at, 2 * PAGE, SHARE)); // of what it has only copied on write so far
        pid_t grandchild = fork();
        if (grandchild == 0) {
            at[0] = 70;
            CHECK(!minherit_(at, PAGE, COPY));
            pid_t last = fork();
            if (last == 0) {
                at[0] = 80;
                at[PAGE] = 81;
                done();
            }
            ends_well(last);
            CHECK(at[0] == 70 && at[PAGE] == 81);
            done();
        }
        ends_well(grandchild);
        CHECK(at[0] == 70 && at[PAGE] == 81);
        done();
    }
    ends_well(child);
    CHECK(at[0] == 10 && at[PAGE] == 11);
}

static void a_shared_mapping_can_be_copied_or_left_out(void) {
    char *at = mmap(0, 3 * PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(at != MAP_FAILED);
    memset(at, 5, 3 * PAGE);
    CHECK(!minherit_(at, PAGE, COPY) && !minherit_(at + PAGE, PAGE, NONE));
    pid_t child = fork();
    if (child == 0) {
        CHECK(at[0] == 5 && !is_mapped(at + PAGE));
        at[0] = at[2 * PAGE] = 6;
        done();
    }
    ends_well(child);
    CHECK(at[0] == 5 && at[PAGE] == 5 && at[2 * PAGE] == 6);
}

static void wrong_calls_change_nothing(void) {
    char *at = filled(4);
    FAILS(minherit_(at, PAGE, 3), EINVAL);
    FAILS(minherit_(at + 1, PAGE, NONE), EINVAL);
    CHECK(!minherit_(at, 0, NONE));
    NEED(!munmap(at + 2 * PAGE, PAGE));
    CHECK(minherit_(at, 4 * PAGE, NONE) == -1);
    pid_t child = fork();
    if (child == 0) {
        CHECK(at[0] == 10 && at[3 * PAGE] == 13);
        done();
    }
    ends_well(child);
}

static const struct test_case cases[] = {
    {"parts of a range go four ways", parts_of_a_range_go_four_ways},
    {"shared memory outlives the one that shared it", shared_memory_outlives_the_one_that_shared_it},
    {"a copy can be shared and a share copied", a_copy_can_be_shared_and_a_share_copied},
    {"a shared mapping can be copied or left out", a_shared_mapping_can_be_copied_or_left_out},
    {"wrong calls change nothing", wrong_calls_change_nothing},
};

int main(int argc, char **argv) {
    return run_cases(cases, sizeof cases / sizeof *cases, argc, argv);
}
