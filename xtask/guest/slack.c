// Users who have the kernel make much on its heap and keep so little of it, one thing on each page, that what they have seems small
// while none of the pages can be given back: when memory runs out they go, and nobody else. At their end the heap is what it was.
#include "check.h"
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>

enum { USER = 1000, MEGABYTE = 1 << 20, INNOCENT = 27, FILL = 24 };

static long heap_kb(void) { return number_after("/proc/meminfo", "\nSlab:"); }

// Made before anybody forks.
static struct {
    volatile int ready, go;
    volatile long made, kept;
} *common;

static void become(uid_t user) {
    if (setgid(user) || setuid(user)) _exit(1);
}

static pid_t hog(void (*takes)(void)) {
    pid_t child = fork();
    NEED(child >= 0);
    if (child) return child;
    setpgid(0, 0);
    become(USER);
    takes();
    __sync_fetch_and_add(&common->ready, 1);
    for (;;) pause();
}

// Has memory of its own, which it stores to again and again.
static pid_t innocent(void) {
    pid_t child = fork();
    NEED(child >= 0);
    if (child) return child;
    become(USER + 1);
    char *own = mmap(0, INNOCENT * MEGABYTE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (own == MAP_FAILED) _exit(1);
    for (common->go = 2; common->go; usleep(1000))
        for (int i = 0; i < INNOCENT * MEGABYTE; i += PAGE) own[i]++;
    _exit(0);
}

// Takes memory as root until somebody has had to go, or nobody has to.
static void fill(long killed) {
    for (int i = 0; i < FILL && vmstat("oom_kill") == killed; i++) {
        char *own = mmap(0, MEGABYTE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (own == MAP_FAILED) _exit(1);
        memset(own, 1, MEGABYTE);
        usleep(20000);
    }
}

static long killed_before;
static void fill_memory(void) { fill(killed_before); }

// The first hog takes in a way of its own.
static void many_hogs(int count, void (*first)(void), void (*takes)(void)) {
    long before = heap_kb(), free_before = number_after("/proc/meminfo", "MemFree:"), after = 0, most = before;
    common = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(common != MAP_FAILED && prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
    pid_t hogs[8];
    for (int i = 0; i < count; i++) hogs[i] = hog(i ? takes : first);
    for (int i = 0; i < 2000 && common->ready < count; i++) {
        long now = heap_kb();
        if (now > most) most = now;
        usleep(50000);
    }
    CHECK(common->ready == count);
    printf("  the heap had %ld KiB, then up to %ld, then %ld; of %ld things %ld are kept\n", before, most, heap_kb(),
        common->made, common->kept);
    pid_t other = innocent();
    killed_before = vmstat("oom_kill");
    in_child(fill_memory);
    usleep(200000);
    printf("  %ld were killed; free are %ld KiB, the heap has %ld\n", vmstat("oom_kill") - killed_before,
        number_after("/proc/meminfo", "MemFree:"), heap_kb());
    int status = -1;
    common->go = 0;
    CHECK(waitpid(other, &status, 0) == other && status == 0);
    for (int i = 0; i < count; i++) kill(-hogs[i], SIGKILL);
    while (wait(0) > 0) {}
    umount2("/tmp", MNT_DETACH);
    // The page daemon gives it back, beside others.
    for (int attempt = 0; attempt < 50; attempt++) {
        after = heap_kb();
        if (after - before < 6144) break;
        usleep(100000);
    }
    long free_after = number_after("/proc/meminfo", "MemFree:");
    printf("  then the heap has %ld KiB, %ld used, %ld free, %ld pages given back in %ld pieces; free were %ld, now %ld\n", after,
        vmstat("heap_used") / 1024, vmstat("heap_free") / 1024, vmstat("heap_balloon_pages"), vmstat("heap_balloon_pieces"), free_before, free_after);
    CHECK(after - before < 6144);
    CHECK(free_after > free_before - 8192);
}

// Tells apart as many pages of a mapping as there may be, and then unmaps all but one of so many.
static void makes_sparse_entries(void) {
    enum { ENTRIES = 60000, KEPT = 16 };
    char *base = mmap(0, ENTRIES * (size_t)PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) _exit(1);
    for (long i = 0; i < ENTRIES; i += 2)
        if (mprotect(base + i * PAGE, PAGE, PROT_READ)) _exit(2);
    for (long i = 0; i < ENTRIES; i += KEPT) munmap(base + (i + 1) * PAGE, (KEPT - 1) * PAGE);
    __sync_fetch_and_add(&common->made, ENTRIES);
    __sync_fetch_and_add(&common->kept, ENTRIES / KEPT);
}

static void entries_are_judged_by_the_pages_that_they_keep(void) { many_hogs(6, makes_sparse_entries, makes_sparse_entries); }

static void makes_sparse_watchers(void) {
    enum { FILES = 600, SETS = 200, KEPT = 16 };
    struct rlimit most = {4096, 4096};
    setrlimit(RLIMIT_NOFILE, &most);
    int watched[FILES], sets[SETS];
    for (int i = 0; i < FILES; i++) watched[i] = eventfd(0, 0);
    long made = 0;
    int count = 0;
    for (int refused = 0; count < SETS && !refused; count++) {
        if ((sets[count] = epoll_create1(0)) < 0) break;
        for (int i = 0; i < FILES && !refused; i++) {
            struct epoll_event event = {.events = EPOLLIN};
            refused = epoll_ctl(sets[count], EPOLL_CTL_ADD, watched[i], &event) != 0;
            made += !refused;
        }
    }
    long n = 0;
    for (int set = 0; set < count; set++)
        for (int i = 0; i < FILES && n < made; i++, n++)
            if (n % KEPT) epoll_ctl(sets[set], EPOLL_CTL_DEL, watched[i], 0);
    __sync_fetch_and_add(&common->made, made);
    __sync_fetch_and_add(&common->kept, made / KEPT);
}

// Links whose targets are of so many bytes, as many as may be, of which one of each `kept` stays.
static void makes_sparse_links(int length, long kept) {
    char target[2048], name[64];
    memset(target, 't', length);
    target[length] = 0;
    long made = 0;
    for (;; made++) {
        sprintf(name, "/tmp/%d-%ld", length, made);
        if (symlink(target, name)) break;
    }
    for (long i = 0; i < made; i++) {
        if (i % kept == 0) continue;
        sprintf(name, "/tmp/%d-%ld", length, i);
        unlink(name);
    }
    common->made += made;
    common->kept += made / kept;
}

static void makes_sparse_things(void) {
    makes_sparse_watchers();
    printf("  watchers: the heap has %ld KiB\n", heap_kb());
    static const int lengths[] = {1300, 2000, 1000, 740, 480, 300, 240, 180};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        makes_sparse_links(lengths[i], lengths[i] > 1500 ? 8 : lengths[i] > 700 ? 6 : 4000 / lengths[i]);
        const char *status = "/proc/self/status";
        printf("  links of %d: the heap has %ld KiB, %ld for its user, who is charged %ld\n", lengths[i], heap_kb(),
            number_after(status, "HeapOfUser:"), number_after(status, "KernelKeptOfUser:"));
    }
    fflush(stdout);
}

static void things_are_judged_by_the_pages_that_they_keep(void) {
    mkdir("/tmp", 01777);
    NEED(mount("tmpfs", "/tmp", "tmpfs", 0, "mode=1777") == 0);
    many_hogs(1, makes_sparse_things, 0);
}

// What is charged, and what is not.
static void a_user_is_judged_by_both(void) { many_hogs(4, makes_sparse_watchers, makes_sparse_entries); }

#define CASE(name) {#name, name}
static const struct test_case cases[] = {CASE(entries_are_judged_by_the_pages_that_they_keep),
                                         CASE(a_user_is_judged_by_both), CASE(things_are_judged_by_the_pages_that_they_keep)};

int main(int argc, char **argv) { return RUN(cases, argc, argv); }
