// Page-out on request, and what the tables say of it: MADV_PAGEOUT, MADV_COLD, mincore, VmSwap, smaps, fault counts.
#include "check.h"
#include <sys/resource.h>
#include <sys/sysinfo.h>

enum { RW = PROT_READ | PROT_WRITE, ANON = MAP_PRIVATE | MAP_ANONYMOUS, COLD = 20, PAGE_OUT = 21, PAGES = 1024 };

static char *map(size_t pages, int flags, int fd) {
    char *at = mmap(0, pages * PAGE, RW, flags, fd, 0);
    NEED(at != MAP_FAILED);
    return at;
}
static long word(long page) { return page * 0x9e3779b97f4a7c15l + 12345; }
static void fill(char *at, int pages) {
    for (int i = 0; i < pages; i++) for (int k = 0; k < PAGE; k += 512) *(long *)(at + (size_t)i * PAGE + k) = word(i) + k;
}
static int wrong(const char *at, int pages) {
    int count = 0;
    for (int i = 0; i < pages; i++)
        for (int k = 0; k < PAGE; k += 512) count += *(const long *)(at + (size_t)i * PAGE + k) != word(i) + k;
    return count;
}
static int resident(char *at, int pages) {
    static unsigned char vector[PAGES];
    int count = 0;
    NEED(!mincore(at, (size_t)pages * PAGE, vector));
    for (int i = 0; i < pages; i++) count += vector[i] & 1;
    return count;
}
static long status_kb(const char *field) {
    static char text[8192];
    int fd = open("/proc/self/status", O_RDONLY);
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    NEED(length > 0);
    text[length] = 0;
    char *line = strstr(text, field);
    NEED(line);
    return atol(line + strlen(field) + 1);
}
static long major_faults(void) {
    struct rusage usage;
    NEED(!getrusage(RUSAGE_SELF, &usage));
    return usage.ru_majflt;
}
static long swap_used(void) {
    struct sysinfo info;
    NEED(!sysinfo(&info));
    return (long)((info.totalswap - info.freeswap) * info.mem_unit / PAGE);
}
// Asks for page-out until nearly nothing is left, since a page that is just being written stays until that is done.
static int out(char *at, int pages) {
    for (int i = 0; i < 100 && resident(at, pages) > pages / 50; i++) {
        NEED(!madvise(at, (size_t)pages * PAGE, PAGE_OUT));
        usleep(20000);
    }
    return resident(at, pages);
}

static void private_memory(void) {
    char *at = map(PAGES, ANON, -1);
    fill(at, PAGES);
    long used = swap_used();
    CHECK(resident(at, PAGES) == PAGES && status_kb("VmSwap:") == 0);
    CHECK(out(at, PAGES) <= PAGES / 50);
    CHECK(swap_used() - used >= PAGES / 10 * 9 && status_kb("VmSwap:") >= PAGES * 4 / 10 * 9);
    long before = major_faults();
    CHECK(wrong(at, PAGES) == 0 && major_faults() > before && major_faults() - before <= PAGES);
    CHECK(resident(at, PAGES) == PAGES && status_kb("VmSwap:") < 100);
    // Out again, without having been changed, and then changed in part.
    CHECK(out(at, PAGES) <= PAGES / 50 && wrong(at, PAGES) == 0);
    for (int i = 0; i < PAGES; i += 3) *(long *)(at + (size_t)i * PAGE) = i;
    CHECK(out(at, PAGES) <= PAGES / 50);
    for (int i = 0; i < PAGES; i++) CHECK(*(long *)(at + (size_t)i * PAGE) == (i % 3 ? word(i) : i));
    CHECK(!munmap(at, (size_t)PAGES * PAGE));
    for (int i = 0; i < 100 && swap_used() > used + 50; i++) usleep(10000);
    CHECK(swap_used() <= used + 50); // what was swapped is given back with the mapping
}

static void after_a_fork(void) {
    char *at = map(256, ANON, -1);
    fill(at, 256);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        usleep(300000);
        int bad = wrong(at, 256);
        memset(at, 9, 128 * PAGE);
        usleep(300000);
        for (int i = 0; i < 128 * PAGE; i++) bad += at[i] != 9;
        _exit(bad != 0);
    }
    for (int i = 0; i < 10; i++) madvise(at, 256 * PAGE, PAGE_OUT), usleep(60000);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(wrong(at, 256) == 0);
}

static void cold_memory_stays(void) {
    char *at = map(64, ANON, -1);
    fill(at, 64);
    CHECK(!madvise(at, 64 * PAGE, COLD) && wrong(at, 64) == 0);
}

static void locked_memory_stays(void) {
    char *at = map(64, ANON, -1);
    fill(at, 64);
    CHECK(!mlock(at + 16 * PAGE, 16 * PAGE));
    FAILS(madvise(at, 64 * PAGE, PAGE_OUT), EINVAL);
    CHECK(!madvise(at + 32 * PAGE, 32 * PAGE, PAGE_OUT));
    CHECK(resident(at + 16 * PAGE, 16) == 16 && wrong(at, 64) == 0);
}

static void a_mapped_file(void) {
    int fd = open("/mnt/pageout.data", O_RDWR | O_CREAT | O_TRUNC, 0600);
    NEED(fd >= 0 && !ftruncate(fd, 512 * PAGE));
    char *at = map(512, MAP_SHARED, fd);
    fill(at, 512);
    CHECK(!msync(at, 512 * PAGE, MS_SYNC));
    CHECK(out(at, 512) <= 512 / 50);
    long before = major_faults();
    CHECK(wrong(at, 512) == 0 && major_faults() > before);
    // Dirty pages go by way of the disk.
    *(long *)(at + 100 * PAGE) = 77;
    CHECK(out(at, 512) <= 512 / 50 && *(long *)(at + 100 * PAGE) == 77);
    unlink("/mnt/pageout.data");
}

static void shared_memory(void) {
    char *at = map(512, MAP_SHARED | MAP_ANONYMOUS, -1);
    fill(at, 512);
    pid_t child = fork();
    if (child == 0) _exit(wrong(at, 512) != 0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    // What others map stays.
    CHECK(out(at, 512) <= 512 / 50);
    CHECK(wrong(at, 512) == 0);
}

static long knob(const char *name, long value) {
    char path[64], text[32] = "";
    snprintf(path, sizeof path, "/proc/sys/vm/%s", name);
    int fd = open(path, O_RDWR);
    NEED(fd >= 0);
    if (value >= 0) {
        int length = snprintf(text, sizeof text, "%ld\n", value);
        ssize_t n = write(fd, text, length);
        close(fd);
        return n == length ? 0 : -errno;
    }
    NEED(read(fd, text, sizeof text - 1) > 0);
    close(fd);
    return atol(text);
}

static void knobs_are_kept_and_checked(void) {
    static const char *names[] = {"anonmin", "anonmax", "filemin", "filemax", "execmin", "execmax"};
    static const long at_start[] = {10, 80, 10, 50, 5, 30};
    for (int i = 0; i < 6; i++) CHECK(knob(names[i], -1) == at_start[i]);
    CHECK(knob("filemin", 40) == 0 && knob("filemin", -1) == 40);
    // Over the most; over all together; over a hundred.
    CHECK(knob("filemin", 51) == -EINVAL && knob("anonmin", 60) == -EINVAL && knob("execmax", 101) == -EINVAL);
    CHECK(knob("filemin", -1) == 40 && knob("anonmin", -1) == 10);
    CHECK(knob("filemin", 10) == 0);
    // The page daemon keeps as much free as it is told to.
    long low = knob("min_free_kbytes", -1), more = low + 8192;
    CHECK(low > 0 && knob("min_free_kbytes", more) == 0 && knob("min_free_kbytes", -1) == more);
    struct sysinfo info;
    NEED(!sysinfo(&info));
    size_t pages = info.freeram / PAGE;
    char *at = map(pages, ANON | MAP_NORESERVE, -1);
    for (size_t i = 0; i < pages; i++) at[i * PAGE] = 1;
    for (int tries = 0; tries < 1000 && (sysinfo(&info), info.freeram / 1024 < (unsigned long)more); tries++) usleep(20000);
    CHECK(info.freeram / 1024 >= (unsigned long)more);
    CHECK(knob("min_free_kbytes", low) == 0 && knob("min_free_kbytes", -1) == low);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"private_memory", private_memory},
        {"after_a_fork", after_a_fork},
        {"cold_memory_stays", cold_memory_stays},
        {"locked_memory_stays", locked_memory_stays},
        {"a_mapped_file", a_mapped_file},
        {"shared_memory", shared_memory},
        {"knobs_are_kept_and_checked", knobs_are_kept_and_checked},
    };
    return RUN(cases, argc, argv);
}
