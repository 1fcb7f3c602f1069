// Swapping on disks that fail: four pages of /dev/vda can't be read, four of /dev/vdb can't be written.
//
// Who needs a page that can't be read gets SIGBUS, each time; nobody else notices, and the place isn't used again. A page that can't
// be written stays in memory and goes elsewhere the next time: nothing is lost.
#include "check.h"
#include <sys/swap.h>
#include <sys/sysinfo.h>

enum { BAD = 4, WORDS = PAGE / 8 };

static long free_pages(void) {
    struct sysinfo info;
    NEED(!sysinfo(&info));
    return (long)(info.freeram * info.mem_unit / PAGE);
}

static volatile uint64_t *take(long pages) {
    void *at = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    NEED(at != MAP_FAILED);
    return at;
}

static void give(volatile uint64_t *at, long pages) { NEED(!munmap((void *)at, pages * PAGE)); }

static void fill(volatile uint64_t *at, long pages, uint64_t seed) {
    for (long page = 0; page < pages; page++) at[page * WORDS] = at[page * WORDS + WORDS - 1] = seed + page;
}

// Reads all pages; counts those that raise SIGBUS. Every other must hold what was written.
static long count_lost(volatile uint64_t *at, long pages, uint64_t seed) {
    volatile long lost = 0, wrong = 0;
    for (volatile long page = 0; page < pages; page++) {
        volatile uint64_t first = 0, last = 0;
        CATCH(first = at[page * WORDS]; last = at[page * WORDS + WORDS - 1]);
        if (caught_signal) {
            lost++;
            CHECK(caught_signal == SIGBUS && caught_address == (void *)&at[page * WORDS]);
            RAISES(first = at[page * WORDS], SIGBUS, caught_code, &at[page * WORDS]); // and again
        } else {
            wrong += first != seed + page || last != seed + page;
        }
    }
    CHECK(wrong == 0);
    return lost;
}

static void unreadable_pages_are_lost_alone(void) {
    catch_faults();
    NEED(!swapon("/dev/vda", 0));
    long pages = free_pages() + 8000, lost = 0;
    for (int round = 0; round < 4; round++) {
        volatile uint64_t *at = take(pages);
        fill(at, pages, round);
        long now = count_lost(at, pages, round);
        if (round == 0) CHECK(now >= 1);
        lost += now;
        give(at, pages);
    }
    CHECK(lost <= BAD); // a place that has failed is not used again
    CHECK(!swapoff("/dev/vda"));
}

static volatile uint64_t *victim;
static long victim_pages;

static void read_all(void) {
    signal(SIGBUS, SIG_DFL);
    uint64_t sum = 0;
    for (long page = 0; page < victim_pages; page++) sum += victim[page * WORDS];
    _exit(sum == 0);
}

static void succeed(void) { _exit(0); }

static void only_who_needs_it_dies(void) {
    NEED(!swapon("/dev/vda", 0));
    victim_pages = free_pages() / 2;
    victim = take(victim_pages);
    fill(victim, victim_pages, 1);
    volatile uint64_t *mine = take(free_pages() + 8000); // drives the victim's pages out
    long pages = 1000;
    fill(mine + 0, pages, 2);
    fill(mine + pages * WORDS, free_pages() + 6000, 3);
    int status = in_child(read_all);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    // This process and its parent go on.
    char *fresh = mmap(0, 4 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NEED(fresh != MAP_FAILED);
    memset(fresh, 1, 4 << 20);
    CHECK(in_child(succeed) == 0);
}

static void unwritable_pages_stay(void) {
    catch_faults();
    swapoff("/dev/vda");
    NEED(!swapon("/dev/vdb", 0));
    long pages = free_pages() + 8000;
    volatile uint64_t *at = take(pages);
    for (int round = 0; round < 4; round++) {
        fill(at, pages, round);
        CHECK(count_lost(at, pages, round) == 0);
    }
    give(at, pages);
    CHECK(!swapoff("/dev/vdb"));
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"unreadable pages are lost alone", unreadable_pages_are_lost_alone},
        {"unwritable pages stay", unwritable_pages_stay},
        {"only who needs it dies", only_who_needs_it_dies},
    };
    return RUN(cases, argc, argv);
}
