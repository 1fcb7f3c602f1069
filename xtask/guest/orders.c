// Mappings that are made and unmade in orders which an enemy would choose: whatever keeps them may not become deep, or lose any.
#include "check.h"

enum { COUNT = 4000, STRIDE = 2 * PAGE, RW = PROT_READ | PROT_WRITE, ANON = MAP_PRIVATE | MAP_ANONYMOUS };
static char *const BASE = (char *)0x10000000000;
static unsigned short order[COUNT];

static char *place(int n) { return BASE + (size_t)n * STRIDE; }

static void map_at(int n) {
    NEED(mmap(place(n), PAGE, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0) == place(n));
}

static void use_some(int step) {
    for (int n = 0; n < COUNT; n += step) *(volatile int *)place(n) = n + 1;
}

static void some_are_as_left(int step) {
    for (int n = 0; n < COUNT; n += step) if (*(volatile int *)place(n) != n + 1) NEED(!"as it was left");
}

static void a_child_has_them(void) {
    some_are_as_left(101);
    NEED(!munmap(place(COUNT / 4), (size_t)COUNT / 2 * STRIDE));
    *(volatile int *)place(0) = 0;
}

// Which places are taken, asked for one by one without changing any.
static int is_mapped(int n) {
    unsigned char resident;
    return !mincore(place(n), PAGE, &resident);
}

static int all_are(int first, int end, int mapped) {
    for (int n = first; n < end; n++) if (is_mapped(n) != mapped) return 0;
    return 1;
}

// Maps in `order`, has a child inherit all, and unmaps in the opposite order, in the same one, by halves, and at once.
static void made_and_unmade(void) {
    for (int n = 0; n < COUNT; n++) map_at(order[n]);
    CHECK(all_are(0, COUNT, 1));
    FAILS(mmap(place(order[7]), PAGE, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0), EEXIST);
    use_some(101);
    CHECK(in_child(a_child_has_them) == 0);
    some_are_as_left(101);
    for (int n = COUNT - 1; n >= COUNT / 2; n--) NEED(!munmap(place(order[n]), PAGE));
    for (int n = COUNT / 2; n < COUNT; n++) if (is_mapped(order[n])) NEED(!"unmapped");
    for (int n = 0; n < COUNT / 2; n++) if (!is_mapped(order[n])) NEED(!"still mapped");
    for (int n = COUNT / 2; n < COUNT; n++) map_at(order[n]);
    for (int n = 0; n < COUNT / 2; n++) NEED(!munmap(place(order[n]), PAGE));
    for (int n = 0; n < COUNT / 2; n++) map_at(order[n]);
    NEED(!munmap(place(COUNT / 3), (size_t)COUNT / 3 * STRIDE));
    CHECK(all_are(0, COUNT / 3, 1) && all_are(COUNT / 3, COUNT / 3 * 2, 0) && all_are(COUNT / 3 * 2, COUNT, 1));
    // One mapping in place of all, which is cut by protections and grows together again.
    NEED(mmap(BASE, (size_t)COUNT * STRIDE, RW, ANON | MAP_FIXED, -1, 0) == BASE);
    use_some(101);
    for (int n = 0; n < COUNT; n++) NEED(!mprotect(place(order[n]), PAGE, PROT_READ));
    some_are_as_left(101);
    CHECK(!mprotect(BASE, (size_t)COUNT * STRIDE, RW));
    use_some(1);
    CHECK(!munmap(BASE, (size_t)COUNT * STRIDE) && all_are(0, COUNT, 0));
}

static void upwards(void) {
    for (int n = 0; n < COUNT; n++) order[n] = n;
    made_and_unmade();
}

static void downwards(void) {
    for (int n = 0; n < COUNT; n++) order[n] = COUNT - 1 - n;
    made_and_unmade();
}

static void from_both_ends(void) {
    for (int n = 0; n < COUNT; n++) order[n] = n % 2 ? COUNT - 1 - n / 2 : n / 2;
    made_and_unmade();
}

static void from_the_middle(void) {
    for (int n = 0; n < COUNT; n++) order[n] = n % 2 ? COUNT / 2 - 1 - n / 2 : COUNT / 2 + n / 2;
    made_and_unmade();
}

static void halves_of_halves(void) {
    int next = 0;
    for (int n = 0; n < 4096; n++) {
        int turned = 0;
        for (int bit = 0; bit < 12; bit++) turned |= (n >> bit & 1) << (11 - bit);
        if (turned < COUNT) order[next++] = turned;
    }
    made_and_unmade();
}

static unsigned priority[COUNT];

static int by_priority(const void *a, const void *b) {
    unsigned x = priority[*(const unsigned short *)a], y = priority[*(const unsigned short *)b];
    return (x > y) - (x < y);
}

// A binary tree whose balance is a generator's numbers is a list to whoever knows the generator, and how often it was asked.
static void by_known_numbers(void) {
    static unsigned short sorted[COUNT];
    for (int asked = 0; asked < 40; asked += asked < 24 ? 1 : 4) {
        unsigned seed = 0x9e3779b9;
        for (int n = -asked; n < COUNT; n++) {
            seed ^= seed << 13, seed ^= seed >> 17, seed ^= seed << 5;
            if (n >= 0) priority[n] = seed, sorted[n] = n;
        }
        qsort(sorted, COUNT, sizeof *sorted, by_priority);
        for (int n = 0; n < COUNT; n++) order[sorted[n]] = n;
        for (int n = 0; n < COUNT; n++) map_at(order[n]);
        use_some(101);
        CHECK(in_child(a_child_has_them) == 0);
        NEED(!munmap(BASE, (size_t)COUNT * STRIDE));
    }
}

// Fills one place over and over and thins it out behind: a tree that only lets go of what is empty grows by it.
static void filled_and_thinned_out(void) {
    char *at = BASE;
    for (int round = 0; round < 400; round++, at += 32 * STRIDE) {
        for (int n = 0; n < 24; n++) {
            char *here = at + n * STRIDE;
            NEED(mmap(here, PAGE, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0) == here);
        }
        for (int n = 1; n < 24; n++) NEED(!munmap(at + n * STRIDE, PAGE));
        *(volatile int *)at = round;
    }
    at = BASE;
    for (int round = 0; round < 400; round++, at += 32 * STRIDE) if (*(volatile int *)at != round) NEED(!"as it was left");
    NEED(!munmap(BASE, (size_t)(at - BASE)));
}

// Moves one of many among the others, longer each time.
static void moved_among_others(void) {
    for (int n = 0; n < COUNT; n += 4) map_at(n);
    char *from = place(COUNT / 2);
    *(volatile int *)from = 7;
    for (int n = 1; n < COUNT / 2 - 4; n += 4) {
        char *to = place(n % 8 == 1 ? n : COUNT - n);
        NEED(mremap(from, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
        if (*(volatile int *)to != 7) NEED(!"moved");
        from = to;
    }
    char *grown = mremap(from, PAGE, 8 * PAGE, MREMAP_MAYMOVE);
    CHECK(grown != MAP_FAILED && *(volatile int *)grown == 7);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"upwards", upwards},
        {"downwards", downwards},
        {"from_both_ends", from_both_ends},
        {"from_the_middle", from_the_middle},
        {"halves_of_halves", halves_of_halves},
        {"by_known_numbers", by_known_numbers},
        {"filled_and_thinned_out", filled_and_thinned_out},
        {"moved_among_others", moved_among_others},
    };
    return RUN(cases, argc, argv);
}
