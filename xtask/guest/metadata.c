// Work on a file system's metadata until it is on the first disk, and the requests that this makes there: 1.2 times those
// that Linux 6.1 makes at most, which are said with each kind of work. Prints a line for each; the same program runs on Linux.

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { FILES = 1000, LARGE = 3, MEGABYTES = 8, COMMITS = 200 };

static char data[1 << 20];

struct counts {
    uint64_t reads, writes, sectors_read, sectors_written, nanos, cpu;
};

static struct counts now(void) {
    struct counts here = {0};
    FILE *file = fopen("/proc/diskstats", "r");
    char line[512], name[32];
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "%*u %*u %31s %lu %*u %lu %*u %lu %*u %lu", name, &here.reads, &here.sectors_read, &here.writes,
                   &here.sectors_written) == 5 && strcmp(name, "vda") == 0)
            break;
    if (file != NULL) fclose(file);
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    here.nanos = (uint64_t)time.tv_sec * 1000000000 + time.tv_nsec;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    here.cpu = (uint64_t)time.tv_sec * 1000000000 + time.tv_nsec;
    return here;
}

static struct counts before;

static void begin(void) { before = now(); }

static int failed, ran;

// The work that `begin` began; Linux makes so many requests for it, or a bound stands for them.
static void end(const char *what, uint64_t linux_makes) {
    struct counts after = now();
    int is_within = 5 * (after.reads - before.reads + after.writes - before.writes) <= 6 * linux_makes;
    failed += !is_within;
    ran++;
    printf("%s %s: %lu reads, %lu writes; %lu sectors read, %lu written; %lu us, %lu of the CPU\n", is_within ? "ok" : "FAILED", what, after.reads - before.reads,
           after.writes - before.writes, after.sectors_read - before.sectors_read,
           after.sectors_written - before.sectors_written, (after.nanos - before.nanos) / 1000, (after.cpu - before.cpu) / 1000);
}

static void must(int is_right, const char *what) {
    if (is_right) return;
    perror(what);
    exit(1);
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
    end("200 small transactions", 1185);
    close(db);
}

int main(int argc, char **argv) {
    must(chdir(argc > 1 ? argv[1] : "/mnt") == 0, "chdir");
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
    end("create 1000 files", 51);
    begin();
    copy_all();
    sync();
    end("copy 1000 files", 49);
    begin();
    remove_all("files");
    sync();
    end("remove 1000 files", 6);
    begin();
    remove_all("copy");
    sync();
    end("remove 1000 files again", 8);
    begin();
    for (int n = 0; n < LARGE; n++) {
        snprintf(name, sizeof name, "large%d", n);
        put(name, (size_t)MEGABYTES << 20);
    }
    sync();
    end("write 3 files of 8 MiB", 30);
    begin();
    for (int n = 0; n < LARGE; n++) {
        snprintf(name, sizeof name, "large%d", n);
        must(unlink(name) == 0, name);
    }
    sync();
    end("remove them", 7);
    commits();
    printf("/bin/metadata: %d of %d cases hold\n", ran - failed, ran);
    return failed != 0;
}
