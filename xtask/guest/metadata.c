// Work on a file system's metadata until it is on the first disk, and what this takes: requests to the disk, and time of the CPU.
// 1.2 times of what Linux 6.1 takes at most, which is said with each kind of work. Prints a line for each; the same program runs on
// Linux. With "time", where the clock counts instructions: a program that only computes has the CPU whenever nothing else wants it, so
// the time it doesn't get is what the work took, by whichever thread of the kernel. Without, requests alone are counted.

#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { FILES = 1000, LARGE = 3, MEGABYTES = 8, COMMITS = 200 };

static char data[1 << 20];

struct counts {
    uint64_t reads, writes, sectors_read, sectors_written, busy;
};

// The program that computes; 0: there is none.
static pid_t idler;

static uint64_t nanos(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void must(int is_right, const char *what) {
    if (is_right) return;
    perror(what);
    if (idler > 0) kill(idler, SIGKILL);
    exit(1);
}

static struct counts now(void) {
    struct counts here = {0};
    FILE *file = fopen("/proc/diskstats", "r");
    char line[512], name[32];
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "%*u %*u %31s %lu %*u %lu %*u %lu %*u %lu", name, &here.reads, &here.sectors_read, &here.writes,
                   &here.sectors_written) == 5 && strcmp(name, "vda") == 0)
            break;
    if (file != NULL) fclose(file);
    clockid_t idle;
    if (idler > 0) {
        must(clock_getcpuclockid(idler, &idle) == 0, "clock_getcpuclockid");
        here.busy = nanos(CLOCK_MONOTONIC) - nanos(idle);
    }
    return here;
}

static struct counts before;

static void begin(void) { before = now(); }

static int failed, ran;

// The work that `begin` began; Linux makes so many requests for it, or a bound stands for them, and takes so many microseconds.
static void end(const char *what, uint64_t linux_makes, uint64_t linux_takes) {
    struct counts after = now();
    uint64_t requests = after.reads - before.reads + after.writes - before.writes, micros = (after.busy - before.busy) / 1000;
    int is_within = 5 * requests <= 6 * linux_makes && (idler == 0 || 5 * micros <= 6 * linux_takes);
    failed += !is_within;
    ran++;
    printf("%-6s %-24s %5lu requests, Linux %5lu; %7lu us, Linux %7lu; %lu reads of %lu sectors, %lu writes of %lu\n", is_within ? "ok" : "FAILED",
           what, requests, linux_makes, micros, linux_takes, after.reads - before.reads, after.sectors_read - before.sectors_read,
           after.writes - before.writes, after.sectors_written - before.sectors_written);
}

static void put(const char *name, size_t bytes) {
    int fd = open(name, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    must(fd >= 0, name);
    for (size_t done = 0; done < bytes; done += sizeof data) {
        size_t part = bytes - done < sizeof data ? bytes - done : sizeof data;
        must(write(fd, data, part) == (ssize_t)part, "write");
    }
    close(fd);
}

static void copy_all(void) {
    char from[64], to[64];
    must(mkdir("copy", 0700) == 0, "mkdir");
    for (int n = 0; n < FILES; n++) {
        snprintf(from, sizeof from, "files/%d", n);
        snprintf(to, sizeof to, "copy/%d", n);
        char bytes[4096];
        int fd = open(from, O_RDONLY), made = open(to, O_CREAT | O_EXCL | O_WRONLY, 0600);
        ssize_t len = read(fd, bytes, sizeof bytes);
        must(fd >= 0 && made >= 0 && write(made, bytes, len) == len, to);
        close(fd);
        close(made);
    }
}

static void remove_all(const char *folder) {
    char name[64];
    for (int n = 0; n < FILES; n++) {
        snprintf(name, sizeof name, "%s/%d", folder, n);
        must(unlink(name) == 0, name);
    }
    must(rmdir(folder) == 0, folder);
}

// What sqlite does for a small transaction: a journal is written and synced, then the file, then the journal goes.
static void commits(void) {
    char bytes[4096] = {1};
    int db = open("db", O_CREAT | O_RDWR, 0600);
    must(db >= 0 && pwrite(db, data, 64 << 10, 0) == 64 << 10 && fsync(db) == 0, "db");
    begin();
    for (int n = 0; n < COMMITS; n++) {
        int journal = open("db-journal", O_CREAT | O_RDWR, 0600);
        must(journal >= 0 && write(journal, bytes, 512) == 512 && write(journal, bytes, sizeof bytes) == sizeof bytes, "journal");
        must(fsync(journal) == 0, "fsync");
        must(pwrite(db, bytes, sizeof bytes, n % 16 * 4096) == sizeof bytes && fsync(db) == 0, "db");
        close(journal);
        must(unlink("db-journal") == 0, "unlink");
    }
    end("200 small transactions", 1185, 101100);
    close(db);
}

int main(int argc, char **argv) {
    must(chdir("/mnt") == 0, "chdir");
    if (argc > 1 && strcmp(argv[1], "time") == 0) {
        must((idler = fork()) >= 0, "fork");
        if (idler == 0) {
            must(syscall(SYS_sched_setscheduler, 0, SCHED_IDLE, &(struct sched_param){0}) == 0, "sched_setscheduler");
            for (;;) continue;
        }
    }
    memset(data, 5, sizeof data);
    setvbuf(stdout, NULL, _IONBF, 0);
    char name[64];
    begin();
    must(mkdir("files", 0700) == 0, "mkdir");
    for (int n = 0; n < FILES; n++) {
        snprintf(name, sizeof name, "files/%d", n);
        put(name, 1000);
    }
    sync();
    end("create 1000 files", 51, 208900);
    begin();
    copy_all();
    sync();
    end("copy 1000 files", 49, 223700);
    begin();
    remove_all("files");
    sync();
    end("remove 1000 files", 6, 109400);
    begin();
    remove_all("copy");
    sync();
    end("remove 1000 files again", 8, 109800);
    begin();
    for (int n = 0; n < LARGE; n++) {
        snprintf(name, sizeof name, "large%d", n);
        put(name, (size_t)MEGABYTES << 20);
    }
    sync();
    end("write 3 files of 8 MiB", 30, 75250);
    begin();
    for (int n = 0; n < LARGE; n++) {
        snprintf(name, sizeof name, "large%d", n);
        must(unlink(name) == 0, name);
    }
    sync();
    end("remove them", 7, 14100);
    commits();
    if (idler > 0) kill(idler, SIGKILL), waitpid(idler, NULL, 0);
    printf("/bin/metadata: %d of %d cases hold\n", ran - failed, ran);
    return failed != 0;
}
