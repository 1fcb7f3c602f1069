// Swapping on disks: /dev/vda has a swap area of 64 MiB, /dev/vdb 32 MiB of zeroes, /dev/vdc is read-only, and
// /mnt is an ext4 file system. The machine has little memory.
#include "check.h"
#include <sys/swap.h>
#include <sys/sysinfo.h>

enum { MIB = 1 << 20, VDA_PAGES = (64 * MIB) / PAGE - 1, VDB_PAGES = (32 * MIB) / PAGE - 1 };

struct line {
    char kind[32];
    long size, used, priority;
};

// What /proc/swaps says of a device; 0 if it isn't listed.
static int listed(const char *name, struct line *line) {
    FILE *file = fopen("/proc/swaps", "r");
    NEED(file);
    char text[256], seen[128];
    int found = 0;
    while (fgets(text, sizeof text, file)) {
        struct line now;
        if (sscanf(text, "%127s %31s %ld %ld %ld", seen, now.kind, &now.size, &now.used, &now.priority) == 5 &&
            !strcmp(seen, name)) {
            *line = now;
            found = 1;
        }
    }
    fclose(file);
    return found;
}

static long swapped_out(void) {
    struct line a = {0}, b = {0};
    listed("/dev/vda", &a);
    listed("/dev/vdb", &b);
    return (a.used + b.used) * 1024 / PAGE;
}

// The first page of an area, as mkswap writes it, with one word changed.
static void write_header(const char *device, uint32_t version, uint32_t last, uint32_t bad, const char *magic) {
    static uint32_t page[PAGE / 4];
    memset(page, 0, sizeof page);
    page[256] = version;
    page[257] = last;
    page[258] = bad;
    page[384] = 7;
    memcpy((char *)page + PAGE - 10, magic, 10);
    int fd = open(device, O_WRONLY);
    NEED(fd >= 0 && write(fd, page, PAGE) == PAGE && !fsync(fd));
    close(fd);
}

static void mkswap_makes_what_swapon_takes(void) {
    NEED(system("/bin/busybox mkswap /dev/vdb >/dev/null") == 0);
    CHECK(!swapon("/dev/vdb", 0));
    struct line line;
    NEED(listed("/dev/vdb", &line));
    CHECK(!strcmp(line.kind, "partition") && line.size == VDB_PAGES * (PAGE / 1024) && line.used == 0);
    struct sysinfo info;
    CHECK(!sysinfo(&info) && info.totalswap * info.mem_unit == (unsigned long)VDB_PAGES * PAGE);
    CHECK(!swapoff("/dev/vdb"));
    CHECK(!listed("/dev/vdb", &line));
    CHECK(!sysinfo(&info) && info.totalswap == 0 && info.freeswap == 0);
}

static void what_is_no_area_is_refused(void) {
    write_header("/dev/vdb", 1, VDB_PAGES, 0, "SWAPSPACE3");
    FAILS(swapon("/dev/vdb", 0), EINVAL);
    write_header("/dev/vdb", 2, VDB_PAGES, 0, "SWAPSPACE2");
    FAILS(swapon("/dev/vdb", 0), EINVAL);
    write_header("/dev/vdb", 1, 0, 0, "SWAPSPACE2");
    FAILS(swapon("/dev/vdb", 0), EINVAL);
    write_header("/dev/vdb", 1, VDB_PAGES + 1, 0, "SWAPSPACE2"); // longer than the disk
    FAILS(swapon("/dev/vdb", 0), EINVAL);
    write_header("/dev/vdb", 1, VDB_PAGES, 5000, "SWAPSPACE2"); // more bad pages than can be listed
    FAILS(swapon("/dev/vdb", 0), EINVAL);
    write_header("/dev/vdb", 1, VDB_PAGES, 1, "SWAPSPACE2"); // page 7 is bad
    CHECK(!swapon("/dev/vdb", 0));
    struct line line;
    CHECK(listed("/dev/vdb", &line) && line.size == (VDB_PAGES - 1) * (PAGE / 1024));
    CHECK(!swapoff("/dev/vdb"));
    write_header("/dev/vdb", 1, 1000, 0, "SWAPSPACE2"); // shorter than the disk
    CHECK(!swapon("/dev/vdb", 0));
    CHECK(listed("/dev/vdb", &line) && line.size == 1000 * (PAGE / 1024));
    CHECK(!swapoff("/dev/vdb"));
}

static void errors_are_those_of_linux(void) {
    FAILS(swapon("/dev/vda", 0x100000), EINVAL);
    FAILS(swapon("/no/such", 0), ENOENT);
    FAILS(swapon((char *)16, 0), EFAULT);
    FAILS(swapon("/dev/null", 0), EINVAL);
    FAILS(swapon("/tmp", 0), EISDIR);
    FAILS(swapoff("/dev/vda"), EINVAL);
    FAILS(swapoff("/no/such"), ENOENT);
    CHECK(!swapon("/dev/vda", 0));
    FAILS(swapon("/dev/vda", 0), EBUSY);
    int fd = open("/dev/vda", O_RDWR | O_EXCL);
    CHECK(fd == -1 && errno == EBUSY);
    CHECK(!swapoff("/dev/vda"));
    FAILS(swapoff("/dev/vda"), EINVAL);
    NEED(!setuid(1000));
    FAILS(swapon("/dev/vda", 0), EPERM);
    FAILS(swapoff("/dev/vda"), EPERM);
}

static void priorities_are_kept(void) {
    struct line line;
    NEED(system("/bin/busybox mkswap /dev/vdb >/dev/null") == 0);
    CHECK(!swapon("/dev/vda", SWAP_FLAG_PREFER | 5) && listed("/dev/vda", &line) && line.priority == 5);
    CHECK(!swapon("/dev/vdb", SWAP_FLAG_PREFER | 32767) && listed("/dev/vdb", &line) && line.priority == 32767);
    CHECK(!swapoff("/dev/vda") && !swapoff("/dev/vdb"));
    CHECK(!swapon("/dev/vda", 0) && listed("/dev/vda", &line) && line.priority < 0);
    long first = line.priority;
    CHECK(!swapon("/dev/vdb", 0) && listed("/dev/vdb", &line) && line.priority == first - 1);
    CHECK(!swapoff("/dev/vda") && !swapoff("/dev/vdb"));
}

// --- with data ------------------------------------------------------------------------------------------------------

// What a program can have without swapping, more or less.
static long memory_pages(void) {
    struct sysinfo info;
    NEED(!sysinfo(&info));
    return (long)(info.freeram * info.mem_unit / PAGE);
}

// A case before may have ended early.
static void nothing_is_on(void) {
    swapoff("/dev/vda");
    swapoff("/dev/vdb");
}

static uint64_t *take(long pages) {
    uint64_t *at = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    NEED(at != MAP_FAILED);
    return at;
}

static void fill(uint64_t *at, long from, long to, uint64_t seed) {
    for (long page = from; page < to; page++)
        for (int word = 0; word < PAGE / 8; word += 64) at[page * (PAGE / 8) + word] = seed + page * 1000 + word;
}

static long wrong(const uint64_t *at, long from, long to, uint64_t seed) {
    long count = 0;
    for (long page = from; page < to; page++)
        for (int word = 0; word < PAGE / 8; word += 64) count += at[page * (PAGE / 8) + word] != seed + page * 1000 + word;
    return count;
}

static void more_than_memory_is_kept(void) {
    nothing_is_on();
    long pages = memory_pages() + VDA_PAGES / 2;
    NEED(!swapon("/dev/vda", 0));
    uint64_t *at = take(pages);
    for (int round = 0; round < 3; round++) {
        fill(at, 0, pages, round);
        CHECK(swapped_out() > 0);
        CHECK(wrong(at, 0, pages, round) == 0);
    }
    NEED(!munmap(at, pages * PAGE));
    CHECK(swapped_out() < 1000); // what was freed takes no room on swap; others may have some
    CHECK(!swapoff("/dev/vda"));
}

static void swapoff_brings_everything_home(void) {
    nothing_is_on();
    long pages = memory_pages() + VDA_PAGES / 2, kept = memory_pages() / 4;
    NEED(!swapon("/dev/vda", 0));
    uint64_t *at = take(pages);
    fill(at, 0, pages, 9);
    // The oldest pages are out; they stay, the others go.
    NEED(!munmap(at + kept * (PAGE / 8), (pages - kept) * PAGE));
    CHECK(swapped_out() > 0);
    CHECK(!swapoff("/dev/vda"));
    CHECK(wrong(at, 0, kept, 9) == 0);
}

static void switch_off(void) { _exit(swapoff("/dev/vda") == -1 && errno == ENOMEM ? 3 : 1); }

static void swapoff_fails_when_memory_is_short(void) {
    nothing_is_on();
    long pages = memory_pages() + VDA_PAGES / 2;
    struct line line;
    NEED(!swapon("/dev/vda", 0));
    uint64_t *at = take(pages);
    fill(at, 0, pages, 5);
    // Linux may kill who asks for it; nobody else.
    int status = in_child(switch_off);
    CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 3) || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
    CHECK(listed("/dev/vda", &line));
    CHECK(wrong(at, 0, pages, 5) == 0);
    fill(at, 0, pages, 6);
    CHECK(wrong(at, 0, pages, 6) == 0);
    NEED(!munmap(at, pages * PAGE));
    CHECK(!swapoff("/dev/vda"));
}

static void copies_of_swapped_pages_differ(void) {
    nothing_is_on();
    long pages = memory_pages() / 2;
    NEED(!swapon("/dev/vda", 0));
    uint64_t *at = take(pages);
    fill(at, 0, pages, 1);
    uint64_t *other = take(pages);
    fill(other, 0, pages, 2); // drives the first out
    NEED(!munmap(other, pages * PAGE));
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        long bad = wrong(at, 0, pages, 1);
        fill(at, 0, pages / 3, 3);
        bad += wrong(at, 0, pages / 3, 3) + wrong(at, pages / 3, pages, 1);
        _exit(bad != 0);
    }
    CHECK(wrong(at, 0, pages, 1) == 0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(wrong(at, 0, pages, 1) == 0);
    CHECK(!swapoff("/dev/vda"));
    CHECK(wrong(at, 0, pages, 1) == 0);
}

static void the_higher_priority_fills_first(void) {
    nothing_is_on();
    long pages = memory_pages() + VDB_PAGES / 4;
    struct line high, low;
    NEED(system("/bin/busybox mkswap /dev/vdb >/dev/null") == 0);
    NEED(!swapon("/dev/vda", SWAP_FLAG_PREFER | 1) && !swapon("/dev/vdb", SWAP_FLAG_PREFER | 2));
    uint64_t *at = take(pages);
    fill(at, 0, pages, 4);
    NEED(listed("/dev/vda", &low) && listed("/dev/vdb", &high));
    CHECK(high.used > 0 && (low.used == 0 || high.used * 10 > high.size * 9));
    CHECK(wrong(at, 0, pages, 4) == 0);
    NEED(!munmap(at, pages * PAGE));
    CHECK(!swapoff("/dev/vda") && !swapoff("/dev/vdb"));
}

// --- while others work ----------------------------------------------------------------------------------------------

static long working_pages;

// Writes all its pages over and over, and finds what it wrote.
static void work(uint64_t seed) {
    uint64_t *at = take(working_pages);
    for (uint64_t round = 0;; round++) {
        fill(at, 0, working_pages, seed + round);
        if (wrong(at, 0, working_pages, seed + round)) _exit(1);
    }
}

static pid_t start_work(uint64_t seed) {
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) work(seed);
    return child;
}

// It must have been at work until now.
static void stop_work(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, WNOHANG) == 0);
    CHECK(!kill(child, SIGKILL));
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void areas_come_and_go_under_load(void) {
    enum { WORKERS = 3, ROUNDS = 12 };
    pid_t workers[WORKERS];
    nothing_is_on();
    NEED(system("/bin/busybox mkswap /dev/vdb >/dev/null") == 0);
    NEED(!swapon("/dev/vda", 0));
    working_pages = (memory_pages() + VDB_PAGES / 2) / WORKERS;
    for (int i = 0; i < WORKERS; i++) workers[i] = start_work(i * 1000000);
    int moved = 0;
    for (int round = 0; round < ROUNDS; round++) {
        const char *to = round % 2 ? "/dev/vda" : "/dev/vdb", *from = round % 2 ? "/dev/vdb" : "/dev/vda";
        usleep(100000);
        CHECK(!swapon(to, 0) || errno == EBUSY);
        usleep(100000);
        if (!swapoff(from)) moved++;
        else CHECK(errno == ENOMEM);
    }
    CHECK(moved > 0);
    for (int i = 0; i < WORKERS; i++) stop_work(workers[i]);
    CHECK(swapped_out() < 1000);
    nothing_is_on();
}

static void death_leaves_nothing_behind(void) {
    nothing_is_on();
    NEED(!swapon("/dev/vda", 0));
    long before = memory_pages();
    working_pages = before + VDA_PAGES / 3;
    for (int round = 0; round < 25; round++) {
        pid_t child = start_work(round);
        usleep(5000 + round * 23000); // at some moment of its first round, with writes under way
        stop_work(child);
    }
    CHECK(swapped_out() < 1000);
    CHECK(!swapoff("/dev/vda"));
    CHECK(memory_pages() > before - 1000);
}

// --- files ----------------------------------------------------------------------------------------------------------

enum { FILE_PAGES = (24 * MIB) / PAGE };

static void make_file(const char *name, long pages) {
    static char block[16 * PAGE];
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    NEED(fd >= 0);
    for (long page = 0; page < pages; page += 16) NEED(write(fd, block, 16 * PAGE) == 16 * PAGE);
    // Cached pages would be taken before any are swapped.
    NEED(!fsync(fd));
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

static void a_file_can_be_swapped_on(void) {
    nothing_is_on();
    make_file("/mnt/swap", FILE_PAGES);
    NEED(system("/bin/busybox mkswap /mnt/swap >/dev/null") == 0);
    CHECK(!swapon("/mnt/swap", 0));
    FAILS(swapon("/mnt/swap", 0), EBUSY);
    struct line line;
    CHECK(listed("/mnt/swap", &line) && !strcmp(line.kind, "file") && line.size <= (FILE_PAGES - 1) * (PAGE / 1024));
    CHECK(line.size > (FILE_PAGES - 20) * (PAGE / 1024)); // a page that lies in two places is left out
    FAILS(truncate("/mnt/swap", PAGE), ETXTBSY);
    FAILS(unlink("/mnt/swap"), EPERM);
    FAILS(rename("/mnt/swap", "/mnt/other"), EPERM);
    long pages = memory_pages() + FILE_PAGES * 2 / 3;
    uint64_t *at = take(pages);
    for (int round = 0; round < 2; round++) {
        fill(at, 0, pages, round);
        CHECK(wrong(at, 0, pages, round) == 0);
    }
    CHECK(listed("/mnt/swap", &line) && line.used > 0);
    NEED(!munmap(at, pages * PAGE));
    CHECK(!swapoff("/mnt/swap"));
    CHECK(!unlink("/mnt/swap"));
}

static void files_that_cannot_be_swapped_on(void) {
    make_file("/tmp/swap", 64);
    NEED(system("/bin/busybox mkswap /tmp/swap >/dev/null") == 0);
    FAILS(swapon("/tmp/swap", 0), EINVAL); // in memory
    unlink("/tmp/swap");
    make_file("/mnt/holes", 64);
    NEED(!truncate("/mnt/holes", 256 * PAGE));
    NEED(system("/bin/busybox mkswap /mnt/holes >/dev/null") == 0);
    FAILS(swapon("/mnt/holes", 0), EINVAL);
    NEED(!unlink("/mnt/holes"));
    FAILS(swapon("/dev/vdd", 0), EBUSY); // mounted
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"mkswap makes what swapon takes", mkswap_makes_what_swapon_takes},
        {"what is no area is refused", what_is_no_area_is_refused},
        {"errors are those of Linux", errors_are_those_of_linux},
        {"priorities are kept", priorities_are_kept},
        {"more than memory is kept", more_than_memory_is_kept},
        {"swapoff brings everything home", swapoff_brings_everything_home},
        {"swapoff fails when memory is short", swapoff_fails_when_memory_is_short},
        {"copies of swapped pages differ", copies_of_swapped_pages_differ},
        {"the higher priority fills first", the_higher_priority_fills_first},
        {"areas come and go under load", areas_come_and_go_under_load},
        {"death leaves nothing behind", death_leaves_nothing_behind},
        {"a file can be swapped on", a_file_can_be_swapped_on},
        {"files that cannot be swapped on", files_that_cannot_be_swapped_on},
    };
    return RUN(cases, argc, argv);
}
