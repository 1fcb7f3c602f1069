// Work on a file system's metadata, and the requests that it makes of the first disk, which have a bound. Prints a line for
// each kind of work; the same program runs on Linux.

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
    uint64_t reads, writes, sectors_read, sectors_written, nanos;
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
    return here;
}

static struct counts before;

static void begin(void) { before = now(); }

static int failed, ran;

// The work that `begin` began made at most so many reads and writes.
static void end(const char *what, uint64_t reads, uint64_t writes) {
    struct counts after = now();
    int is_within = after.reads - before.reads <= reads && after.writes - before.writes <= writes;
    failed += !is_within;
    ran++;
    printf("%s %s: %lu reads, %lu writes; %lu sectors read, %lu written; %lu us\n", is_within ? "ok" : "FAILED", what, after.reads - before.reads,
           after.writes - before.writes, after.sectors_read - before.sectors_read,
           after.sectors_written - before.sectors_written, (after.nanos - before.nanos) / 1000);
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

static void sync_all(uint64_t writes) {
    begin();
    sync();
    end("sync", 2, writes);
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
    end("200 small transactions", 4, 2200);
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
    end("create 1000 files", 10, 60);
    sync_all(180);
    begin();
    copy_all();
    end("copy 1000 files", 10, 60);
    sync_all(180);
    begin();
    remove_all("files");
    end("remove 1000 files", 10, 150);
    sync_all(20);
    begin();
    remove_all("copy");
    end("remove 1000 files again", 10, 150);
    sync_all(20);
    begin();
    for (int n = 0; n < LARGE; n++) {
        snprintf(name, sizeof name, "large%d", n);
        put(name, (size_t)MEGABYTES << 20);
    }
    end("write 3 files of 8 MiB", 4, 60);
    sync_all(80);
    begin();
    for (int n = 0; n < LARGE; n++) {
        snprintf(name, sizeof name, "large%d", n);
        must(unlink(name) == 0, name);
    }
    end("remove them", 4, 20);
    sync_all(20);
    commits();
    printf("/bin/metadata: %d of %d cases hold\n", ran - failed, ran);
    return failed != 0;
}
