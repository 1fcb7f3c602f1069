// Access lists of files on a disk, which `test/disks.rs` has made there: who may read and write, what chmod does to a list,
// and what is inherited from a folder.
#include "check.h"
#include <grp.h>
#include <sys/mount.h>

enum { R = 4, W = 2 };

// The rights that a process has to a file, by opening it.
static int rights(uid_t uid, gid_t gid, gid_t another, const char *name) {
    pid_t child = fork();
    if (!child) {
        NEED(!setgroups(1, &another) && !setgid(gid) && !setuid(uid));
        int has = 0;
        const int ways[2][2] = {{R, O_RDONLY}, {W, O_WRONLY}};
        for (int i = 0; i < 2; i++) {
            int fd = open(name, ways[i][1]), asked = access(name, ways[i][0]);
            if ((fd >= 0) != !asked) _exit(100);
            if (fd >= 0) has |= ways[i][0];
            else if (errno != EACCES) _exit(101);
        }
        _exit(has);
    }
    int status;
    NEED(waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

static unsigned mode(const char *name) {
    struct stat about;
    NEED(!stat(name, &about));
    return about.st_mode & 07777;
}

static void remount(void) {
    NEED(!chdir("/") && !umount("/mnt") && !mount("/dev/vda", "/mnt", "ext4", 0, "") && !chdir("/mnt"));
}

static void who_may(void) {
    NEED(!chdir("/mnt"));
    // By name as far as the mask goes, by one of several groups, and nobody else.
    CHECK(mode("named") == 0640);
    CHECK(rights(2000, 1, 1, "named") == R && rights(3000, 1, 1, "named") == 0);
    CHECK(rights(3000, 50, 1, "named") == R && rights(3000, 1, 60, "named") == R && rights(3000, 50, 60, "named") == R);
    CHECK(rights(0, 0, 0, "named") == (R | W));
    // Less than the others may.
    CHECK(rights(2000, 1, 1, "denied") == 0 && rights(2000, 50, 1, "denied") == 0);
    CHECK(rights(3000, 50, 1, "denied") == 0 && rights(3000, 1, 1, "denied") == R);
    // A mask of nothing: the list isn't asked.
    CHECK(rights(2000, 1, 1, "off") == R && rights(3000, 50, 1, "off") == 0 && rights(3000, 1, 1, "off") == R);
}

static void a_mode_changes_the_mask(void) {
    NEED(!chdir("/mnt") && !chmod("named", 0664));
    for (int round = 0; round < 2; round++) {
        CHECK(mode("named") == 0664);
        CHECK(rights(2000, 1, 1, "named") == (R | W) && rights(3000, 50, 1, "named") == R);
        CHECK(rights(3000, 1, 60, "named") == (R | W) && rights(3000, 1, 1, "named") == R);
        remount();
    }
    CHECK(!chmod("named", 0600) && rights(2000, 1, 1, "named") == 0 && rights(3000, 1, 60, "named") == 0);
    CHECK(!chmod("named", 0640) && rights(2000, 1, 1, "named") == R && rights(3000, 1, 1, "named") == 0);
}

static void what_is_inherited(void) {
    NEED(!chdir("/mnt"));
    umask(0);
    int fd = open("made/file", O_RDWR | O_CREAT, 0666);
    NEED(fd >= 0 && !close(fd) && !mkdir("made/below", 0777) && !symlink("file", "made/link"));
    fd = open("made/below/file", O_RDWR | O_CREAT, 0644);
    NEED(fd >= 0 && !close(fd));
    for (int round = 0; round < 2; round++) {
        CHECK(mode("made/file") == 0660 && mode("made/below") == 0770 && mode("made/below/file") == 0640);
        CHECK(rights(2000, 1, 1, "made/file") == (R | W) && rights(3000, 1, 1, "made/file") == 0);
        CHECK(rights(3000, 0, 1, "made/file") == R && rights(2000, 1, 1, "made/link") == (R | W));
        CHECK(rights(2000, 1, 1, "made/below/file") == R && rights(3000, 1, 1, "made/below/file") == 0);
        remount();
    }
    CHECK(!unlink("made/file") && !unlink("made/link") && !unlink("made/below/file") && !rmdir("made/below"));
}

// Linux says EINVAL or EIO of these.
static void lists_that_make_no_sense(void) {
    if (access("/proc/self/uvm", F_OK)) return;
    NEED(!chdir("/mnt"));
    CHECK(rights(2000, 1, 1, "broken") == 0 && rights(0, 0, 0, "broken") == (R | W));
    int fd = open("odd/file", O_RDWR | O_CREAT, 0666);
    CHECK(fd >= 0 && !close(fd) && mode("odd/file") == 0600 && !unlink("odd/file"));
    CHECK(!chmod("broken", 0644) && rights(2000, 1, 1, "broken") == 0);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"who_may", who_may},
        {"a_mode_changes_the_mask", a_mode_changes_the_mask},
        {"what_is_inherited", what_is_inherited},
        {"lists_that_make_no_sense", lists_that_make_no_sense},
    };
    return RUN(cases, argc, argv);
}
