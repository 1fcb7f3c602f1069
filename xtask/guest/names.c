// Names of a large folder on /mnt, which its disk may keep as a list without an index: processes make, move and delete names there
// side by side, and look for names that are there and that are not; in the end look-ups and listing agree, after a new mount too.
#include "check.h"
#include <dirent.h>
#include <sys/mount.h>

enum { MEN = 4, NAMES = 300, STEPS = 400 };

#define FOLDER "/mnt/large"

// What one process knows of its own names: 0 is absent, or the number in the file, plus one.
static int kept[NAMES];

static char *name(int man, int n) {
    static char names[4][80];
    static int next;
    char *to = names[next++ % 4];
    snprintf(to, sizeof names[0], FOLDER "/%d's file with the number %d", man, n);
    return to;
}

static void make(int man, int n) {
    int fd = open(name(man, n), O_CREAT | O_EXCL | O_WRONLY, 0600);
    CHECK(fd >= 0 && write(fd, &n, sizeof n) == sizeof n);
    close(fd);
    kept[n] = n + 1;
}

static int is_right(int man, int n) {
    int fd = open(name(man, n), O_RDONLY), number = -1;
    if (!kept[n]) return fd < 0 && errno == ENOENT;
    int right = fd >= 0 && read(fd, &number, sizeof number) == sizeof number && number == kept[n] - 1;
    close(fd);
    return right;
}

static unsigned below(unsigned n) {
    static unsigned state = 1;
    state = state * 1664525 + 1013904223 + getpid();
    return (state >> 8) % n;
}

static void work(int man) {
    for (int n = 0; n < NAMES; n += 2) make(man, n);
    for (int step = 0; step < STEPS; step++) {
        int a = below(NAMES), b = below(NAMES);
        struct stat about;
        if (!kept[a]) {
            make(man, a);
        } else if (step % 4 == 0) {
            CHECK(!unlink(name(man, a)));
            kept[a] = 0;
        } else if (step % 4 == 1 && a != b) {
            CHECK(!rename(name(man, a), name(man, b)));
            kept[b] = kept[a], kept[a] = 0;
        } else if (step % 4 == 2) {
            FAILS(open(name(man, a), O_CREAT | O_EXCL | O_WRONLY, 0600), EEXIST);
            FAILS(mkdir(name(man, a), 0700), EEXIST);
        } else if (!kept[b]) {
            CHECK(!link(name(man, a), name(man, b)) && !unlink(name(man, a)));
            kept[b] = kept[a], kept[a] = 0;
        }
        for (int i = 0; i < 4; i++) CHECK(is_right(man, below(NAMES)));
        // Another's name is there or not; what was never there isn't.
        stat(name((man + 1) % MEN, a), &about);
        FAILS(stat(name(man, NAMES + a), &about), ENOENT);
    }
}

static int listed(void) {
    DIR *folder = opendir(FOLDER);
    NEED(folder);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(folder)); count++) {
        struct stat about;
        if (entry->d_name[0] == '.') count--;
        CHECK(!fstatat(dirfd(folder), entry->d_name, &about, 0) && about.st_ino == entry->d_ino);
    }
    closedir(folder);
    return count;
}

static void side_by_side(void) {
    int pipes[MEN][2], back[MEN][2], all = 0;
    NEED(!mkdir(FOLDER, 0755));
    fflush(stdout);
    for (int man = 0; man < MEN; man++) {
        NEED(!pipe(pipes[man]) && !pipe(back[man]));
        if (fork()) continue;
        work(man);
        int count = 0;
        for (int n = 0; n < NAMES; n++) count += kept[n] != 0;
        // Once more after the new mount.
        NEED(write(back[man][1], &count, sizeof count) == sizeof count && read(pipes[man][0], &all, sizeof all) == sizeof all);
        for (int n = 0; n < NAMES; n++) CHECK(is_right(man, n));
        fflush(stdout);
        _exit(failed_checks != 0);
    }
    for (int man = 0, count; man < MEN; man++) {
        NEED(read(back[man][0], &count, sizeof count) == sizeof count);
        all += count;
    }
    CHECK(listed() == all);
    NEED(!umount("/mnt") && !mount("/dev/vda", "/mnt", "ext4", 0, ""));
    CHECK(listed() == all);
    for (int man = 0; man < MEN; man++) NEED(write(pipes[man][1], &all, sizeof all) == sizeof all);
    for (int man = 0, status; man < MEN; man++) CHECK(wait(&status) > 0 && status == 0);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"side_by_side", side_by_side},
    };
    return RUN(cases, argc, argv);
}
