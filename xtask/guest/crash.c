// Works on files of /mnt until it is killed with its machine, and says what must be there afterwards:
//   touch NAME           what the file holds is uncertain from now on
//   synced NAME SIZE SEED  all of it is on the disk: byte i is i * 31 + (i >> 12) * 7 + SEED
// The arguments are a seed and the folder.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { NAMES = 30, LARGEST = 300000 };

static unsigned long state;
static unsigned below(unsigned n) {
    state = state * 6364136223846793005ul + 1442695040888963407ul;
    return (unsigned)(state >> 33) % n;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

static unsigned char bytes[LARGEST] __attribute__((aligned(4096)));
static void fill(unsigned size, unsigned seed) {
    for (unsigned i = 0; i < size; i++) bytes[i] = (unsigned char)(i * 31 + (i >> 12) * 7 + seed);
}

// Past the cache, from an aligned place on: what is no whole sector is left.
static unsigned put_past(int fd, unsigned size) {
    if (fcntl(fd, F_SETFL, O_DIRECT)) die("fcntl");
    unsigned done = 0;
    while (size - done >= 512) {
        unsigned part = (below(120) + 1) * 512;
        if (part > (size - done) / 512 * 512) part = (size - done) / 512 * 512;
        ssize_t n = write(fd, bytes + done, part);
        if (n <= 0) die("write past the cache");
        done += n;
    }
    if (fcntl(fd, F_SETFL, 0)) die("fcntl");
    return done;
}

// By write, with or without the cache, or through a mapping.
static void put(int fd, unsigned size) {
    if (size && below(3) == 0) {
        if (ftruncate(fd, size)) die("ftruncate");
        unsigned char *map = mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED) die("mmap");
        memcpy(map, bytes, size);
        if (below(2) && msync(map, size, MS_SYNC)) die("msync");
        munmap(map, size);
        return;
    }
    unsigned first = lseek(fd, 0, SEEK_CUR) == 0 && below(3) == 0 ? put_past(fd, size) : 0;
    for (unsigned done = first; done < size;) {
        unsigned part = below(60000) + 1;
        ssize_t n = write(fd, bytes + done, part < size - done ? part : size - done);
        if (n <= 0) die("write");
        done += n;
    }
}

int main(int argc, char **argv) {
    state = argc > 1 ? strtoul(argv[1], 0, 10) : 1;
    if (chdir(argc > 2 ? argv[2] : "/mnt")) die("chdir");
    int folder = open(".", O_RDONLY | O_DIRECTORY);
    printf("begins\n");
    for (;;) {
        char name[32], other[32];
        snprintf(name, sizeof name, "f%u", below(NAMES));
        unsigned what = below(10), size = below(4) ? below(20000) : below(LARGEST), seed = below(256);
        fill(size, seed);
        if (what < 4) {
            printf("touch %s\n", name), fflush(stdout);
            int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
            if (fd < 0) die("open");
            put(fd, size);
            if (fsync(fd) || fsync(folder)) die("fsync");
            close(fd);
            printf("synced %s %u %u\n", name, size, seed);
        } else if (what < 6) {
            int fd = open("new", O_RDWR | O_CREAT | O_TRUNC, 0600);
            if (fd < 0) die("open");
            put(fd, size);
            if (fsync(fd)) die("fsync");
            close(fd);
            printf("touch %s\n", name), fflush(stdout);
            if (rename("new", name) || fsync(folder)) die("rename");
            printf("synced %s %u %u\n", name, size, seed);
        } else if (what == 6) {
            printf("touch %s\n", name), fflush(stdout);
            unlink(name);
        } else if (what < 9) {
            snprintf(other, sizeof other, "unsynced%u", below(10));
            if (below(3) == 0) {
                unlink(other);
            } else {
                int fd = open(other, O_RDWR | O_CREAT, 0600);
                if (fd < 0) die("open");
                lseek(fd, below(LARGEST), SEEK_SET);
                put(fd, size);
                if (below(2) && ftruncate(fd, below(LARGEST))) die("ftruncate");
                close(fd);
            }
        } else {
            sync();
        }
        fflush(stdout);
    }
}
