// Paging: what memory pressure, cold files and small tables cost. One static program, the same binary on every kernel.
//
// Each workload gets a machine that has just booted and prints, for xtask (see xtask/src/bench/paging.rs),
//   value|NAME|UNIT|NUMBER
//   fail|NAME|WHY                       for what this kernel can't do; the exit code says whether all was done.
// I/O is what /proc/diskstats counts for a disk. Every workload checks what it reads back.
// MIB is the machine's memory, or 0 where it does not matter; SWAP, SPARE and DISK are names like vda.
//   paging allocate MIB TIMES SWAP SPARE    write TIMES of memory
//   paging compressed MIB PERCENT text|noise SWAP   write and read 2x of memory, PERCENT of it for compressed pages
//   paging read MIB DISK                    /mnt/large, mapped, beside DISK read as it is
//   paging files MIB DISK COUNT             /mnt/COUNT/0.., mapped and read, twice
//   paging faults MIB NAME on|off COMMAND.. page faults of a command, with or without the neighbours of a page
//   paging entries MIB                      map entries of some programs
//   paging metadata MIB WHAT                bytes that the kernel spends on WHAT: anonymous, sparse, file, entries
//   paging room MIB                         memory that is left to programs
#define _GNU_SOURCE
#include "drain.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, CHUNK = 1 << 20 };

static char *aligned; // CHUNK bytes
static int failures;

static void value(const char *unit, double number, const char *name, ...) {
    va_list list;
    va_start(list, name);
    printf("value|");
    vprintf(name, list);
    printf("|%s|%.3f\n", unit, number);
    va_end(list);
    fflush(stdout);
}

static void fail(const char *name, const char *why) {
    printf("fail|%s|%s: %s\n", name, why, strerror(errno));
    failures++;
    fflush(stdout);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

// --- what the kernel counts -------------------------------------------------------------------------------------

struct disk {
    double reads, read_sectors, writes, write_sectors;
};

// Counts nothing for a disk that does not exist.
static struct disk disk(const char *name) {
    struct disk found = {0, 0, 0, 0};
    FILE *file = fopen("/proc/diskstats", "r");
    char line[512], device[64];
    while (file && fgets(line, sizeof line, file)) {
        struct disk at;
        if (sscanf(line, "%*d %*d %63s %lf %*f %lf %*f %lf %*f %lf", device, &at.reads, &at.read_sectors, &at.writes,
                   &at.write_sectors) == 5 &&
            !strcmp(device, name))
            found = at;
    }
    if (file) fclose(file);
    return found;
}

static struct disk since(const char *name, struct disk start) {
    struct disk end = disk(name);
    return (struct disk){end.reads - start.reads, end.read_sectors - start.read_sectors, end.writes - start.writes,
                         end.write_sectors - start.write_sectors};
}

// KiB of a line of /proc/meminfo.
static double meminfo(const char *name) {
    FILE *file = fopen("/proc/meminfo", "r");
    char line[256];
    double found = 0;
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, name, strlen(name)) && line[strlen(name)] == ':') found = atof(line + strlen(name) + 1);
    if (file) fclose(file);
    return found;
}

static int write_text(const char *path, const char *text) {
    int fd = open(path, O_WRONLY);
    if (fd < 0) return -1;
    ssize_t count = write(fd, text, strlen(text));
    close(fd);
    return count == (ssize_t)strlen(text) ? 0 : -1;
}

// --- figure 5: anonymous memory ---------------------------------------------------------------------------------

static uint64_t mark(size_t page) { return page * 0x9e3779b97f4a7c15u + 1; }

static void fill(uint64_t *at, size_t page) {
    for (size_t i = 0; i < PAGE / 8; i++) at[i] = mark(page) + i;
}

static int holds(const uint64_t *at, size_t page) {
    return at[0] == mark(page) && at[PAGE / 8 - 1] == mark(page) + PAGE / 8 - 1;
}

// A disk that had nothing to do may be faster than its limit for a moment: what is timed starts when that is over.
static void use_up_burst(const char *name) {
    char path[64];
    snprintf(path, sizeof path, "/dev/%s", name);
    int fd = open(path, O_RDONLY | O_DIRECT);
    for (int i = 0; fd >= 0 && i < 40; i++)
        if (read(fd, aligned, CHUNK) != CHUNK) break;
    if (fd >= 0) close(fd);
}

// MB/s of one writer that writes a disk from its start, a chunk at a time.
static double sequential_writer(const char *name, size_t bytes) {
    char path[64];
    snprintf(path, sizeof path, "/dev/%s", name);
    int fd = open(path, O_WRONLY | O_DIRECT);
    if (fd < 0) return fail("one sequential writer", path), 0;
    use_up_burst(name);
    memset(aligned, 'w', CHUNK);
    double start = now();
    for (size_t done = 0; done < bytes; done += CHUNK)
        if (write(fd, aligned, CHUNK) != CHUNK) return fail("one sequential writer", "write"), 0;
    fsync(fd);
    double spent = now() - start;
    close(fd);
    return bytes / 1e6 / spent;
}

// The memory of the machine, not what its kernel leaves of it: the same for every kernel.
static void allocate(double times, const char *swap, const char *spare, size_t memory) {
    size_t pages = times * memory / PAGE;
    char *at = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return fail("write", "mmap");
    // The last third is measured by itself: memory is full long before, each new page pushes one out.
    size_t steady = pages - pages / 3;
    struct disk start = disk(swap), middle = start;
    double began = now(), middle_time = began;
    for (size_t i = 0; i < pages; i++) {
        if (i == steady) middle = disk(swap), middle_time = now();
        fill((uint64_t *)(at + i * PAGE), i);
    }
    double ended = now();
    struct disk whole = since(swap, start), last = since(swap, middle);
    value("ms", (ended - began) * 1e3, "write %gx of memory", times);
    if (whole.writes > 0) {
        value("KiB", whole.write_sectors / 2 / whole.writes, "mean swap write, %gx", times);
        value("MiB", whole.write_sectors / 2048, "swapped out, %gx", times);
    }
    if (times >= 2) {
        double rate = last.write_sectors * 512 / 1e6 / (ended - middle_time);
        value("MB/s", rate, "page-out bandwidth, %gx", times);
        start = disk(swap);
        began = now();
        for (size_t i = 0; i < pages; i++)
            if (!holds((uint64_t *)(at + i * PAGE), i)) return fail("read back", "wrong contents");
        value("ms", (now() - began) * 1e3, "read %gx back, in order", times);
        struct disk reads = since(swap, start);
        if (reads.reads > 0) value("KiB", reads.read_sectors / 2 / reads.reads, "mean swap read, %gx", times);
    }
    munmap(at, pages * PAGE);
    if (times >= 3) value("MB/s", sequential_writer(spare, memory), "one sequential writer");
}

// --- compressed pages -------------------------------------------------------------------------------------------

// Text makes a small page; noise stays as large as it is.
static void fill_as(uint64_t *at, size_t page, int noise) {
    uint64_t state = mark(page) | 1;
    for (size_t i = 1; i < PAGE / 8; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        at[i] = noise ? state : mark(page % 16);
    }
    at[0] = mark(page);
}

static void compressed(const char *percent, const char *kind, const char *swap, size_t memory) {
    if (write_text("/proc/sys/vm/compressed_percent", percent)) return fail("compressed pages", "compressed_percent");
    size_t pages = 2 * memory / PAGE;
    char *at = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return fail("compressed pages", "mmap");
    use_up_burst(swap);
    struct disk start = disk(swap);
    double began = now();
    for (size_t i = 0; i < pages; i++) fill_as((uint64_t *)(at + i * PAGE), i, !strcmp(kind, "noise"));
    double written = now();
    for (size_t i = 0; i < pages; i++)
        if (*(uint64_t *)(at + i * PAGE) != mark(i)) return fail("compressed pages", "wrong contents");
    double ended = now();
    struct disk whole = since(swap, start);
    value("ms", (written - began) * 1e3, "write 2x of %s, %s %% for compressed pages", kind, percent);
    value("ms", (ended - written) * 1e3, "read 2x of %s back, %s %%", kind, percent);
    value("MiB", whole.write_sectors / 2048, "swapped out, 2x of %s, %s %%", kind, percent);
    munmap(at, pages * PAGE);
}

// --- mapped files -----------------------------------------------------------------------------------------------

static const char LARGE[] = "/mnt/large";

static double raw_read(const char *name, size_t bytes) {
    char path[64];
    snprintf(path, sizeof path, "/dev/%s", name);
    int fd = open(path, O_RDONLY | O_DIRECT);
    if (fd < 0) return fail("raw sequential read", path), 0;
    use_up_burst(name);
    double start = now();
    for (size_t done = 0; done < bytes; done += CHUNK)
        if (read(fd, aligned, CHUNK) != CHUNK) return fail("raw sequential read", "read"), 0;
    double spent = now() - start;
    close(fd);
    return bytes / 1e6 / spent;
}

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

// Touches pages of one half of the file in a random order, none twice.
static void random_pages(const char *at, size_t first, size_t pages, const char *name, const char *from) {
    enum { TOUCHES = 1000 };
    static unsigned char seen[1 << 20];
    uint64_t state = 88172645463325252u;
    struct disk start = disk(name);
    double began = now();
    for (size_t done = 0; done < TOUCHES;) {
        size_t page = first + next_random(&state) % pages;
        if (seen[page]) continue;
        seen[page] = 1;
        done++;
        if (*(volatile uint64_t *)(at + page * PAGE) != mark(page)) return fail(from, "wrong contents");
    }
    double spent = now() - began;
    struct disk io = since(name, start);
    value("us", spent * 1e6 / TOUCHES, "%s: time per page touched", from);
    value("requests", io.reads / TOUCHES, "%s: requests per page touched", from);
    value("pages", io.read_sectors / 8 / TOUCHES, "%s: pages read per page touched", from);
}

static void read_mapped(const char *name) {
    int fd = open(LARGE, O_RDONLY);
    struct stat about;
    if (fd < 0 || fstat(fd, &about)) return fail("mapped file", LARGE);
    size_t pages = about.st_size / PAGE, third = pages / 3;
    const char *at = mmap(0, about.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) return fail("mapped file", "mmap");
    madvise((void *)(at + 2 * third * PAGE), third * PAGE, MADV_RANDOM);
    random_pages(at, 2 * third, third, name, "random, advised");
    random_pages(at, third, third, name, "random, not advised");
    use_up_burst(name);
    struct disk start = disk(name);
    double began = now();
    for (size_t page = 0; page < third; page++) {
        const volatile uint64_t *word = (const volatile uint64_t *)(at + page * PAGE);
        if (word[0] != mark(page)) return fail("mapped file", "wrong contents");
        for (size_t i = 64; i < PAGE / 8; i += 64) (void)word[i];
    }
    double spent = now() - began;
    struct disk io = since(name, start);
    value("MB/s", third * PAGE / 1e6 / spent, "sequential read of a mapped file");
    if (io.reads > 0) value("KiB", io.read_sectors / 2 / io.reads, "mean read, sequential");
    value("MB/s", raw_read(name, third * PAGE / CHUNK * CHUNK), "raw sequential read");
}

// --- figure 2: many files ---------------------------------------------------------------------------------------

// Maps and reads a file as a web server would; returns whether it was what it should be.
static int serve(int count, int number) {
    char path[64];
    snprintf(path, sizeof path, "/mnt/%d/%d", count, number);
    int fd = open(path, O_RDONLY);
    struct stat about;
    if (fd < 0 || fstat(fd, &about)) return 0;
    const unsigned char *at = mmap(0, about.st_size, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (at == MAP_FAILED) return 0;
    uint64_t sum = 0;
    for (off_t i = 0; i < about.st_size; i += 8) sum += *(const uint64_t *)(at + i);
    uint64_t words = about.st_size / 8, expected = words * mark(number);
    munmap((void *)at, about.st_size);
    return sum == expected;
}

static void files(const char *name, int count) {
    for (int pass = 1; pass <= 2; pass++) {
        struct disk start = disk(name);
        double began = now();
        for (int i = 0; i < count; i++)
            if (!serve(count, i)) return fail("files", "a file is not what it was");
        double spent = now() - began;
        struct disk io = since(name, start);
        const char *which = pass == 1 ? "first" : "second";
        value("us", spent * 1e6 / count, "%d files, %s pass: time per file", count, which);
        value("requests", io.reads, "%d files, %s pass: disk reads", count, which);
    }
}

// --- table 2: page faults ---------------------------------------------------------------------------------------

// Ours has a knob, Linux the size of its fault-around window.
static int neighbours(int on) {
    if (!write_text("/proc/sys/vm/uvm_neighbours", on ? "1" : "0")) return 0;
    mkdir("/tmp/debug", 0700);
    mount("debugfs", "/tmp/debug", "debugfs", 0, 0);
    return write_text("/tmp/debug/fault_around_bytes", on ? "65536" : "4096");
}

static long faults_of(char **command) {
    pid_t child = fork();
    if (child == 0) {
        int null = open("/dev/null", O_RDWR);
        dup2(null, 0);
        dup2(null, 1);
        execvp(command[0], command);
        _exit(127);
    }
    int status;
    struct rusage usage;
    if (child < 0 || wait4(child, &status, 0, &usage) != child) return -1;
    if (!WIFEXITED(status) || WEXITSTATUS(status)) return errno = ECHILD, -1;
    return usage.ru_minflt + usage.ru_majflt;
}

static void faults(const char *name, int on, char **command) {
    if (neighbours(on)) return fail(name, "no switch for neighbours");
    // The first run brings the files into memory.
    long count = faults_of(command);
    if (count >= 0) count = faults_of(command);
    if (count < 0) return fail(name, "it failed");
    value("faults", count, "%s, neighbours %s", name, on ? "on" : "off");
}

// --- table 1: map entries ---------------------------------------------------------------------------------------

static int lines_of(const char *path) {
    FILE *file = fopen(path, "r");
    if (!file) return -1;
    int lines = 0;
    for (int c; (c = getc(file)) != EOF;) lines += c == '\n';
    fclose(file);
    return lines;
}

static int entries_of(pid_t pid) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    int lines = lines_of(path);
    if (lines < 0) return 0;
    // What is no entry of the map, but listed.
    char line[512];
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        if (strstr(line, "[vsyscall]")) lines--;
    if (file) fclose(file);
    return lines;
}

// Starts a program that reads from a pipe, and counts when it waits for more.
static pid_t waiting(char **command, int *feed) {
    int ends[2];
    if (pipe(ends)) return -1;
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[0], 0);
        int null = open("/dev/null", O_WRONLY);
        dup2(null, 1);
        close(ends[0]);
        close(ends[1]);
        execv(command[0], command);
        _exit(127);
    }
    close(ends[0]);
    *feed = ends[1];
    // A line that it has taken: it has started.
    if (write(ends[1], "a line\n", 7) != 7) return -1;
    usleep(300000);
    return child;
}

static void entries(void) {
    char *cat[] = {"/bin/busybox", "cat", 0};
    char *od[] = {"/usr/bin/od", 0};
    char *shell[] = {"/bin/bash", 0};
    int feed, nine[9], sum = 0;
    pid_t child = waiting(cat, &feed);
    value("entries", entries_of(child), "cat (static link)");
    close(feed);
    waitpid(child, 0, 0);
    child = waiting(od, &feed);
    value("entries", entries_of(child), "od (dynamic link)");
    close(feed);
    waitpid(child, 0, 0);
    value("entries", entries_of(getpid()), "boot (the first program alone)");
    for (int i = 0; i < 9; i++) sum += entries_of(waiting(i % 3 == 0 ? shell : i % 3 == 1 ? od : cat, &nine[i]));
    value("entries", sum, "session of nine processes");
    for (int i = 0; i < 9; i++) close(nine[i]);
    while (wait(0) > 0) {
    }
}

// --- what the tables cost ---------------------------------------------------------------------------------------

// Bytes that something took on a machine that did nothing before, page tables apart.
struct room {
    double free, tables;
};

static struct room room_now(void) {
    // Linux counts on each CPU for itself, until it is asked.
    write_text("/proc/sys/vm/stat_refresh", "1");
    return (struct room){meminfo("MemFree") * 1024, meminfo("PageTables") * 1024};
}

static double taken_since(struct room start) {
    struct room end = room_now();
    return start.free - end.free - (end.tables - start.tables);
}

enum { PAGES = 49152, ENTRIES = 32768, SPARSE = 1000 };

static double anonymous_pages(void) {
    size_t size = (size_t)PAGES * PAGE;
    struct room start = room_now();
    char *at = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return fail("anonymous pages", "mmap"), 0;
    madvise(at, size, MADV_NOHUGEPAGE);
    for (size_t i = 0; i < PAGES; i++) at[i * PAGE] = 1;
    double taken = taken_since(start);
    munmap(at, size);
    return taken / PAGES - PAGE;
}

static double sparse_pages(void) {
    size_t size = (size_t)1 << 40;
    struct room start = room_now();
    char *at = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return fail("sparse pages", "mmap"), 0;
    madvise(at, size, MADV_NOHUGEPAGE);
    for (size_t i = 0; i < SPARSE; i++) at[i << 30] = 1;
    double taken = taken_since(start);
    munmap(at, size);
    return taken / 1024 - SPARSE * PAGE / 1024;
}

static double file_pages(void) {
    int fd = open("/tmp/resident", O_RDWR | O_CREAT | O_TRUNC, 0600);
    memset(aligned, 'f', CHUNK);
    struct room start = room_now();
    for (size_t done = 0; done < (size_t)PAGES * PAGE; done += CHUNK)
        if (write(fd, aligned, CHUNK) != CHUNK) return fail("file pages", "write"), 0;
    double taken = taken_since(start);
    close(fd);
    unlink("/tmp/resident");
    return taken / PAGES - PAGE;
}

static double map_entries(void) {
    size_t size = (size_t)ENTRIES * PAGE;
    char *at = mmap(0, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return fail("map entries", "mmap"), 0;
    struct room start = room_now();
    for (size_t i = 0; i < ENTRIES; i += 2)
        if (mprotect(at + i * PAGE, PAGE, PROT_READ)) return fail("map entries", "mprotect"), 0;
    double taken = taken_since(start);
    munmap(at, size);
    return taken / ENTRIES;
}

static void metadata(const char *what) {
    if (!strcmp(what, "anonymous")) {
        value("bytes", anonymous_pages(), "for each anonymous page, beside the page and page tables");
    } else if (!strcmp(what, "sparse")) {
        value("KiB", sparse_pages(), "1,000 pages over 1 TiB, beside the pages and page tables");
    } else if (!strcmp(what, "file")) {
        value("bytes", file_pages(), "for each page of a file in memory, beside the page");
    } else {
        value("bytes", map_entries(), "for each map entry");
    }
}

static void room(size_t memory) {
    value("MiB", memory / 1048576.0 - meminfo("MemTotal") / 1024, "kept by the kernel from boot, of %zu MiB", memory >> 20);
    value("%", meminfo("MemAvailable") * 1024 * 100 / memory, "left to programs of %zu MiB", memory >> 20);
}

int main(int count, char **words) {
    aligned = mmap(0, CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (aligned == MAP_FAILED) return 1;
    const char *what = count > 2 ? words[1] : "";
    size_t memory = count > 2 ? (size_t)atol(words[2]) << 20 : 0;
    if (!strcmp(what, "allocate") && count == 6) {
        allocate(atof(words[3]), words[4], words[5], memory);
    } else if (!strcmp(what, "compressed") && count == 6) {
        compressed(words[3], words[4], words[5], memory);
    } else if (!strcmp(what, "read") && count == 4) {
        read_mapped(words[3]);
    } else if (!strcmp(what, "files") && count == 5) {
        files(words[3], atoi(words[4]));
    } else if (!strcmp(what, "faults") && count > 5) {
        faults(words[3], !strcmp(words[4], "on"), words + 5);
    } else if (!strcmp(what, "entries")) {
        entries();
    } else if (!strcmp(what, "metadata") && count == 4) {
        metadata(words[3]);
    } else if (!strcmp(what, "room")) {
        room(memory);
    } else {
        fprintf(stderr, "the head of paging.c says how it is called\n");
        return 2;
    }
    drain();
    return failures > 0;
}
