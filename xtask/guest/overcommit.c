// More memory than there is, with contents that are checked: `overcommit TENTHS SECONDS [FOLDER]` has several processes
// use TENTHS/10 of the machine's memory in every way there is, read and write it back in random order for SECONDS, and
// prints what they found. FOLDER is where the mapped files go; without it they go to /tmp, which is memory too.
//
// A page's words are a function of the seed of its region, its number in it and how often it was rewritten; the counts
// lie in pages that are checked as well. So a page that is lost, stale, torn or another's shows.
#include "check.h"
#include <sys/ipc.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/sysinfo.h>

enum { RW = PROT_READ | PROT_WRITE, WORKERS = 4, WORDS = PAGE / 8, KINDS = 5 };

struct region {
    const char *kind;
    uint64_t seed;
    uint64_t *at;
    uint32_t *generations; // NULL: never rewritten
    long pages;
    int fd;
};

static uint64_t state;
static uint64_t random_word(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

static uint64_t mix(uint64_t x) {
    x ^= x >> 33, x *= 0xff51afd7ed558ccdULL, x ^= x >> 33, x *= 0xc4ceb9fe1a85ec53ULL;
    return x ^ x >> 33;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static uint64_t first_word(const struct region *region, long page) {
    return mix(region->seed ^ (uint64_t)page << 20 ^ (region->generations ? region->generations[page] : 0));
}

static void fill(struct region *region, long page) {
    uint64_t word = first_word(region, page), *at = region->at + page * WORDS;
    for (int i = 0; i < WORDS; i++) at[i] = word + (uint64_t)i * 0x9e3779b97f4a7c15ULL;
}

// The bytes of `page`, which lie at `at`, are right.
static int right(const struct region *region, long page, const uint64_t *at) {
    uint64_t word = first_word(region, page);
    for (int i = 0; i < WORDS; i++) {
        uint64_t wanted = word + (uint64_t)i * 0x9e3779b97f4a7c15ULL;
        if (at[i] != wanted) {
            printf("  FAILED: %s page %ld of %ld, word %d: %016lx, not %016lx (pid %d)\n", region->kind, page, region->pages,
                i, (long)at[i], (long)wanted, getpid());
            fflush(stdout);
            failed_checks++;
            return 0;
        }
    }
    return 1;
}

static void *anonymous(size_t bytes, int flags) {
    void *at = mmap(0, bytes, RW, flags | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    NEED(at != MAP_FAILED);
    return at;
}

static struct region make(int kind, int worker, long pages, const char *folder) {
    struct region region = {.seed = mix(worker * 64 + kind + 1), .pages = pages, .fd = -1};
    char path[128];
    size_t bytes = (size_t)pages * PAGE;
    region.generations = anonymous(pages * sizeof(uint32_t), MAP_PRIVATE);
    switch (kind) {
    case 0:
        region.kind = "private";
        region.at = anonymous(bytes, MAP_PRIVATE);
        break;
    case 1:
        region.kind = "shared anonymous";
        region.at = anonymous(bytes, MAP_SHARED);
        break;
    case 2: {
        region.kind = "System V segment";
        int id = shmget(IPC_PRIVATE, bytes, IPC_CREAT | 0600);
        NEED(id >= 0);
        region.at = shmat(id, 0, 0);
        shmctl(id, IPC_RMID, 0);
        NEED(region.at != (void *)-1);
        break;
    }
    default:
        region.kind = kind == 3 ? "shared file" : "private over file";
        snprintf(path, sizeof path, "%s/overcommit.%d.%d", folder, worker, kind);
        region.fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
        NEED(region.fd >= 0 && !ftruncate(region.fd, bytes));
        unlink(path);
        if (kind == 4) {
            // Every page comes from the file until it is rewritten.
            region.at = mmap(0, bytes, RW, MAP_SHARED, region.fd, 0);
            NEED(region.at != MAP_FAILED);
            for (long page = 0; page < pages; page++) fill(&region, page);
            munmap(region.at, bytes);
        }
        region.at = mmap(0, bytes, RW, kind == 3 ? MAP_SHARED : MAP_PRIVATE, region.fd, 0);
        NEED(region.at != MAP_FAILED);
    }
    if (kind != 4)
        for (long page = 0; page < pages; page++) fill(&region, page);
    return region;
}

// A child has the private memory as it was at the fork, may change it, and its parent sees nothing of that.
static void fork_and_check(struct region *regions, int steps) {
    fflush(stdout);
    pid_t child = fork();
    if (child < 0) {
        CHECK(errno == ENOMEM || errno == EAGAIN);
        return;
    }
    if (child == 0) {
        failed_checks = 0;
        struct region *private = &regions[0];
        for (int i = 0; i < steps; i++) {
            long page = random_word() % private->pages;
            right(private, page, private->at + page * WORDS);
            if (i % 2) private->generations[page] += 1000, fill(private, page);
        }
        for (int i = 0; i < steps; i++) {
            struct region *region = &regions[1 + random_word() % 3]; // shared with the parent, which waits
            long page = random_word() % region->pages;
            right(region, page, region->at + page * WORDS);
        }
        fflush(stdout);
        _exit(failed_checks != 0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

struct counts {
    long checked, rewritten, forks;
};

static void step(struct region *region, struct counts *counts) {
    static uint64_t copy[WORDS];
    long page = random_word() % region->pages;
    uint64_t *at = region->at + page * WORDS;
    if (region->fd >= 0 && region->kind[0] == 's' && random_word() % 4 == 0) {
        // read() and the mapping agree.
        CHECK(pread(region->fd, copy, PAGE, page * (off_t)PAGE) == PAGE);
        right(region, page, copy);
    } else {
        right(region, page, at);
    }
    counts->checked++;
    uint64_t what = random_word() % 64;
    if (what < 20) {
        region->generations[page]++;
        fill(region, page);
        counts->rewritten++;
    } else if (what == 20 && !madvise(at, PAGE, 21 /* MADV_PAGEOUT */)) {
        right(region, page, at);
    }
}

static int work(int worker, long pages, double seconds, const char *folder) {
    struct region regions[KINDS];
    struct counts counts = {0};
    state = mix(worker + 77) | 1;
    for (int kind = 0; kind < KINDS; kind++) regions[kind] = make(kind, worker, pages / KINDS, folder);
    double end = now() + seconds, next_fork = now() + seconds / 8;
    while (now() < end && failed_checks < 10) {
        for (int i = 0; i < 16; i++) step(&regions[random_word() % KINDS], &counts);
        if (now() > next_fork) {
            fork_and_check(regions, 200);
            next_fork = now() + seconds / 8;
            counts.forks++;
        }
    }
    // And once in order, every page.
    for (int kind = 0; kind < KINDS; kind++)
        for (long page = 0; page < regions[kind].pages && failed_checks < 10; page++)
            counts.checked += right(&regions[kind], page, regions[kind].at + page * WORDS);
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("worker %d: %ld pages checked, %ld rewritten, %ld forks, %ld major faults, %d wrong\n", worker, counts.checked,
        counts.rewritten, counts.forks, usage.ru_majflt, failed_checks);
    fflush(stdout);
    return failed_checks != 0;
}

int main(int argc, char **argv) {
    NEED(argc >= 3);
    const char *folder = argc > 3 ? argv[3] : "/tmp";
    struct sysinfo info;
    NEED(!sysinfo(&info));
    long all = (long)((double)info.totalram * info.mem_unit / PAGE * atoi(argv[1]) / 10);
    printf("%ld pages of memory, %ld of swap, %ld to be used\n", (long)(info.totalram * info.mem_unit / PAGE),
        (long)(info.totalswap * info.mem_unit / PAGE), all);
    fflush(stdout);
    pid_t workers[WORKERS];
    for (int i = 0; i < WORKERS; i++) {
        workers[i] = fork();
        NEED(workers[i] >= 0);
        if (workers[i] == 0) _exit(work(i, all / WORKERS, atof(argv[2]), folder));
    }
    int bad = 0;
    for (int i = 0; i < WORKERS; i++) {
        int status = -1;
        CHECK(waitpid(workers[i], &status, 0) == workers[i]);
        if (status) printf("FAILED: worker %d ended with status %x\n", i, status);
        bad += status != 0;
    }
    NEED(!sysinfo(&info));
    printf("%ld pages of swap in use at the end\n", (long)((info.totalswap - info.freeswap) * info.mem_unit / PAGE));
    printf(bad ? "FAILED\n" : "every page was right\n");
    return bad != 0;
}
