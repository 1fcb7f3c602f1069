// Which mappings show a file's pages: wherever a file is mapped, and by however many, what happens to a page happens in all of them.
#include "check.h"
#include <sched.h>

enum { RW = PROT_READ | PROT_WRITE, ANON = MAP_PRIVATE | MAP_ANONYMOUS, PAGES = 48, MAPPINGS = 24, WORKERS = 4, STEPS = 2500 };

static int file(void) {
    int fd = open("/tmp", O_RDWR | O_TMPFILE, 0600);
    NEED(fd >= 0 && !ftruncate(fd, PAGES * PAGE));
    return fd;
}

static void ends_well(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

// Whether there is a page to be read, without a fault in this program.
static int is_there(int ends[2], const volatile char *at) {
    char byte;
    return write(ends[1], (const void *)at, 1) == 1 && read(ends[0], &byte, 1) == 1;
}

// A window of sixteen pages of the file lies at each distance from a window of sixteen addresses.
static void a_page_is_seen_at_every_distance(void) {
    enum { DISTANCES = 18 };
    int fd = file(), ends[2];
    NEED(!pipe(ends));
    for (int i = 0; i < PAGES; i++) NEED(pwrite(fd, &i, sizeof i, i * PAGE) == sizeof i);
    volatile char *at[DISTANCES];
    char *room = mmap(0, DISTANCES * 128 * PAGE, PROT_NONE, ANON, -1, 0);
    NEED(room != MAP_FAILED);
    room = (char *)(((uintptr_t)room + 64 * PAGE) & -(uintptr_t)(64 * PAGE));
    for (int d = 0; d < DISTANCES; d++) {
        char *here = room + (d * 80 + d) * PAGE;
        NEED(mmap(here, PAGES * PAGE, RW, MAP_SHARED | MAP_FIXED, fd, 0) == here);
        at[d] = here;
        for (int i = 0; i < PAGES; i += 1 + d % 3) CHECK(*(volatile int *)(here + i * PAGE) == i);
    }
    audited();
    at[3][20 * PAGE] = 99;
    for (int d = 0; d < DISTANCES; d++) CHECK(at[d][20 * PAGE] == 99);
    NEED(!ftruncate(fd, 17 * PAGE));
    for (int d = 0; d < DISTANCES; d++) {
        CHECK(is_there(ends, at[d] + 16 * PAGE) && !is_there(ends, at[d] + 17 * PAGE) && !is_there(ends, at[d] + 20 * PAGE));
    }
    audited();
    NEED(!ftruncate(fd, PAGES * PAGE));
    for (int d = 0; d < DISTANCES; d++) CHECK(at[d][20 * PAGE] == 0 && at[d][16 * PAGE] == 16);
    audited();
}

static void mappers_end_in_any_order(void) {
    enum { CHILDREN = 40 };
    int fd = file(), go[CHILDREN][2], ready[2];
    pid_t children[CHILDREN];
    NEED(!pipe(ready));
    volatile char *at = mmap(0, PAGES * PAGE, RW, MAP_SHARED, fd, 0);
    NEED(at != MAP_FAILED);
    for (int i = 0; i < PAGES; i++) at[i * PAGE] = (char)i;
    for (int c = 0; c < CHILDREN; c++) {
        NEED(!pipe(go[c]));
        NEED((children[c] = fork()) >= 0);
        if (children[c] == 0) {
            char byte;
            volatile char *own = mmap(0, PAGES * PAGE, PROT_READ, MAP_PRIVATE, fd, 0);
            for (int i = 0; i < PAGES; i++) CHECK(at[i * PAGE] == i && own[i * PAGE] == i);
            // Holes in what a fault has mapped at once.
            for (int i = c % 3; i < PAGES; i += 3) NEED(!munmap((char *)own + i * PAGE, PAGE));
            NEED(write(ready[1], "r", 1) == 1 && read(go[c][0], &byte, 1) == 1);
            for (int i = 0; i < PAGES; i++) CHECK((i % 3 == c % 3 || own[i * PAGE] == i) && at[i * PAGE] == i);
            fflush(stdout);
            _exit(failed_checks);
        }
    }
    char byte;
    for (int c = 0; c < CHILDREN; c++) NEED(read(ready[0], &byte, 1) == 1);
    audited();
    for (int c = 0; c < CHILDREN; c++) {
        // Every seventh, modulo 40: from the middle, from both ends.
        int next = c * 7 % CHILDREN;
        NEED(write(go[next][1], "g", 1) == 1);
        ends_well(children[next]);
        if (c % 10 == 9) audited();
    }
    for (int i = 0; i < PAGES; i++) CHECK(at[i * PAGE] == i);
}

// --- a program that does what comes ---------------------------------------------------------------------------------

static uint64_t state;
static unsigned below(unsigned end) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (unsigned)((state * 0x2545f4914f6cdd1dull >> 33) % end);
}

static struct mapping {
    char *at;
    int first, pages, protection, is_shared;
    char is_there[PAGES];
} mappings[MAPPINGS];
static int contents[PAGES], length = PAGES, fd;

// Of all pages that the file has.
static void look(struct mapping *m, int all) {
    if (!m->at) return;
    for (int i = all ? 0 : (int)below((unsigned)m->pages); i < m->pages; i += all ? 1 : PAGES) {
        int page = m->first + i;
        if (!m->is_there[i] || page >= length) continue;
        int seen = *(volatile int *)(m->at + i * PAGE);
        if (seen != contents[page]) {
            printf("  page %d is %d, not %d\n", page, seen, contents[page]);
            NEED(!"what the file has is seen");
        }
    }
}

static void map_some(struct mapping *m) {
    m->first = (int)below(PAGES), m->pages = 1 + (int)below((unsigned)(PAGES - m->first));
    m->is_shared = (int)below(2), m->protection = m->is_shared && below(2) ? RW : PROT_READ;
    memset(m->is_there, 1, sizeof m->is_there);
    // At any distance from a window's start.
    char *room = mmap(0, (PAGES + 16) * PAGE, PROT_NONE, ANON, -1, 0);
    NEED(room != MAP_FAILED);
    m->at = room + below(16) * PAGE;
    NEED(mmap(m->at, (size_t)m->pages * PAGE, m->protection, (m->is_shared ? MAP_SHARED : MAP_PRIVATE) | MAP_FIXED, fd, m->first * PAGE) == m->at);
    if (m->at > room) NEED(!munmap(room, (size_t)(m->at - room)));
    char *end = m->at + m->pages * PAGE;
    NEED(!munmap(end, (size_t)(room + (PAGES + 16) * PAGE - end)));
}

static void unmap(struct mapping *m) {
    for (int i = 0; i < m->pages; i++) if (m->is_there[i]) NEED(!munmap(m->at + i * PAGE, PAGE));
    m->at = 0;
}

static void change_length(void) {
    int next = (int)below(PAGES + 1);
    NEED(!ftruncate(fd, next * PAGE));
    for (int i = next; i < length; i++) contents[i] = 0;
    length = next;
}

// Frames that were the file's a moment ago are nobody else's now.
static void use_memory(void) {
    enum { MUCH = 64 };
    char *at = mmap(0, MUCH * PAGE, RW, ANON, -1, 0);
    NEED(at != MAP_FAILED);
    for (int i = 0; i < MUCH; i++) if (*(volatile int *)(at + i * PAGE)) NEED(!"new memory is zero");
    for (int i = 0; i < MUCH; i++) *(volatile int *)(at + i * PAGE) = i + 1;
    for (int i = 0; i < MAPPINGS; i++) look(&mappings[i], 0);
    for (int i = 0; i < MUCH; i++) if (*(volatile int *)(at + i * PAGE) != i + 1) NEED(!"memory keeps what is stored");
    NEED(!munmap(at, MUCH * PAGE));
}

static void step(void) {
    struct mapping *m = &mappings[below(MAPPINGS)];
    if (!m->at) return map_some(m);
    int i = (int)below((unsigned)m->pages), count = 1 + (int)below((unsigned)(m->pages - i)), page = m->first + i;
    char *at = m->at + i * PAGE;
    // Another mapping may lie in the hole.
    if (memchr(m->is_there + i, 0, (size_t)count)) return unmap(m);
    switch (below(12)) {
    case 0: return unmap(m);
    case 1:
        NEED(!munmap(at, (size_t)count * PAGE));
        memset(m->is_there + i, 0, (size_t)count);
        return;
    case 2:
        if (page < length && m->protection == RW) *(volatile int *)at = contents[page] = (int)below(1 << 30);
        return;
    case 3: return look(m, 1);
    case 4: madvise(at, (size_t)count * PAGE, MADV_DONTNEED); return look(m, 0);
    case 5: mprotect(at, PAGE, PROT_READ), mprotect(at, PAGE, m->protection); return look(m, 0);
    case 6: {
        if (memchr(m->is_there, 0, (size_t)m->pages)) return unmap(m);
        void *moved = mremap(m->at, (size_t)m->pages * PAGE, (size_t)m->pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED,
                             mmap(0, (size_t)m->pages * PAGE, PROT_NONE, ANON, -1, 0));
        NEED(moved != MAP_FAILED);
        m->at = moved;
        return look(m, 1);
    }
    case 7:
        if (below(4)) return;
        return change_length();
    case 8: return use_memory();
    case 9: {
        if (below(4)) return;
        pid_t child = fork();
        NEED(child >= 0);
        if (child == 0) {
            for (int other = 0; other < MAPPINGS; other++) {
                look(&mappings[other], 1);
                if (mappings[other].at && below(2)) unmap(&mappings[other]);
            }
            _exit(failed_checks);
        }
        if (below(2)) look(m, 1);
        return ends_well(child);
    }
    case 10: {
        int value = (int)below(1 << 30);
        if (page >= length) return;
        NEED(pwrite(fd, &value, sizeof value, page * PAGE) == sizeof value);
        contents[page] = value;
        return look(m, 0);
    }
    default: return look(m, 0);
    }
}

static void programs_that_do_what_comes(void) {
    pid_t workers[WORKERS];
    for (int w = 0; w < WORKERS; w++) {
        NEED((workers[w] = fork()) >= 0);
        if (workers[w]) continue;
        state = 0x9e3779b97f4a7c15ull * (uint64_t)(w + 1);
        fd = file();
        for (int n = 0; n < STEPS; n++) {
            step();
            if (n % 500 == 499) audited();
        }
        fflush(stdout);
        _exit(failed_checks);
    }
    for (int w = 0; w < WORKERS; w++) ends_well(workers[w]);
}

// All fault on the same pages at once, and one cuts the file under them.
static void many_see_one_file_cut(void) {
    fd = file();
    int ends[2];
    pid_t workers[WORKERS];
    volatile int *over = mmap(0, PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(over != MAP_FAILED && !pipe(ends));
    for (int w = 0; w < WORKERS; w++) {
        NEED((workers[w] = fork()) >= 0);
        if (workers[w]) continue;
        state = 0x9e3779b97f4a7c15ull * (uint64_t)(w + 7);
        NEED(!pipe(ends));
        while (!*over) {
            struct mapping *m = &mappings[below(4)];
            if (m->at) unmap(m);
            else map_some(m);
            for (int i = 0; m->at && i < m->pages; i++) is_there(ends, m->at + i * PAGE);
        }
        fflush(stdout);
        _exit(failed_checks);
    }
    for (int n = 0; n < 300; n++) {
        NEED(!ftruncate(fd, (n * 13 % PAGES) * PAGE) && !ftruncate(fd, PAGES * PAGE));
        for (int i = 0; i < PAGES; i += 5) NEED(pwrite(fd, &i, sizeof i, i * PAGE) == sizeof i);
        if (n % 100 == 99) audited();
    }
    *over = 1;
    for (int w = 0; w < WORKERS; w++) ends_well(workers[w]);
    audited();
}

static const struct test_case cases[] = {
    {"a_page_is_seen_at_every_distance", a_page_is_seen_at_every_distance},
    {"mappers_end_in_any_order", mappers_end_in_any_order},
    {"programs_that_do_what_comes", programs_that_do_what_comes},
    {"many_see_one_file_cut", many_see_one_file_cut},
};

int main(int argc, char **argv) { return RUN(cases, argc, argv); }
