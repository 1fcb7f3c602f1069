// Half as much memory again as there is, kept compressed, with no disk: half of it private and half a System V segment.
// Every byte is checked, and what the tables say.
#include "check.h"
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/sysinfo.h>

enum { RW = PROT_READ | PROT_WRITE, ANON = MAP_PRIVATE | MAP_ANONYMOUS };

static const char KNOB[] = "/proc/sys/vm/compressed_percent";

// The number behind `field` in a file of `/proc`; -1 if there is none.
static long number(const char *path, const char *field) {
    static char text[16384];
    int fd = open(path, O_RDONLY);
    NEED(fd >= 0);
    ssize_t length = 0, got;
    while ((got = read(fd, text + length, sizeof text - 1 - length)) > 0) length += got;
    close(fd);
    text[length] = 0;
    char *line = strstr(text, field);
    return line ? atol(line + strlen(field)) : -1;
}

static int set(const char *percent) {
    int fd = open(KNOB, O_WRONLY);
    NEED(fd >= 0);
    int result = write(fd, percent, strlen(percent)) < 0 ? errno : 0;
    close(fd);
    return result;
}

// A page that LZ4 makes small, and no other page's.
static void page(long n, unsigned round, char *out) {
    memset(out, 0, 64);
    snprintf(out, 64, "page %10ld, round %3u, some text again", n, round);
    for (int i = 64; i < PAGE; i += 64) memcpy(out + i, out, 64);
}
static void fill(char *at, long pages, unsigned round) {
    for (long n = 0; n < pages; n++) page(n, round, at + n * PAGE);
}
static long wrong(const char *at, long pages, unsigned round) {
    static char wanted[PAGE];
    long count = 0;
    for (long n = 0; n < pages; n++) {
        page(n, round, wanted);
        count += memcmp(wanted, at + n * PAGE, PAGE) != 0;
    }
    return count;
}

// The last column of the only segment's line in /proc/sysvipc/shm, and the one before.
static void columns(long *resident, long *swapped) {
    FILE *file = fopen("/proc/sysvipc/shm", "r");
    NEED(file);
    char line[512];
    NEED(fgets(line, sizeof line, file) && fgets(line, sizeof line, file));
    fclose(file);
    char *last = strrchr(line, ' ');
    NEED(last);
    *swapped = atol(last);
    while (last > line && *last == ' ') *last-- = 0;
    last = strrchr(line, ' ');
    NEED(last);
    *resident = atol(last);
}

static void over_committed_without_a_disk(void) {
    struct sysinfo info;
    NEED(!sysinfo(&info));
    long total = info.totalram / PAGE, pages = total * 3 / 4;
    CHECK(set("51") == EINVAL && set("-1") == EINVAL && set("x") == EINVAL);
    CHECK(set("40") == 0 && number(KNOB, "") == 40);

    char *private = mmap(0, pages * PAGE, RW, ANON, -1, 0);
    NEED(private != MAP_FAILED);
    int id = shmget(IPC_PRIVATE, pages * PAGE, 0600);
    NEED(id >= 0);
    char *shared = shmat(id, 0, 0);
    NEED(shared != (char *)-1);
    fill(shared, pages, 1);
    fill(private, pages, 2);
    long resident, swapped;
    columns(&resident, &swapped);
    CHECK(swapped > 0 && resident >= 0 && resident + swapped == pages * PAGE);
    CHECK(wrong(shared, pages, 1) == 0);
    CHECK(wrong(private, pages, 2) == 0);
    // Zeroes cost nothing but a number.
    memset(private, 0, pages * PAGE);
    long small = number("/proc/meminfo", "Zswap:"), large = number("/proc/meminfo", "Zswapped:");
    CHECK(small > 0 && large > 2 * small && small <= total * 4 * 40 / 100);
    CHECK(number("/proc/vmstat", "zswpout ") > pages / 2 && number("/proc/vmstat", "zswpin ") > pages / 2);
    CHECK(number("/proc/vmstat", "pswpout ") == 0 && number("/proc/vmstat", "swap_errors ") == 0);
    CHECK(set("0") == ENOMEM && number(KNOB, "") == 40);
    CHECK(wrong(shared, pages, 1) == 0);

    CHECK(!munmap(private, pages * PAGE) && !shmdt(shared) && !shmctl(id, IPC_RMID, 0));
    CHECK(number("/proc/meminfo", "Zswapped:") < 4096);
    CHECK(set("0") == 0 && number("/proc/meminfo", "Zswap:") == 0);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {{"over_committed_without_a_disk", over_committed_without_a_disk}};
    return RUN(cases, argc, argv);
}
