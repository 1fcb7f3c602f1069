// Things in things in things, as deep as a program likes: nothing in the kernel may walk them, or let them go, by recursion.
#include "check.h"
#include <stddef.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/un.h>

enum { DEEP = 3000, SOCKETS = 300 };

static void name_folder(char *name, int n) { sprintf(name, "folder%d", n % 10); }

// Makes folders in each other and leaves the working directory in the last one.
static void descend(int depth) {
    char name[32];
    for (int n = 0; n < depth; n++) {
        name_folder(name, n);
        NEED(mkdir(name, 0755) == 0);
        if (n % 100 == 0) {
            int fd = open("file", O_CREAT | O_RDWR, 0644);
            NEED(fd >= 0 && write(fd, name, sizeof name) == sizeof name);
            close(fd);
        }
        NEED(chdir(name) == 0);
    }
}

// Goes up again and takes all away.
static void ascend(int depth) {
    char name[32];
    for (int n = depth - 1; n >= 0; n--) {
        name_folder(name, n);
        NEED(chdir("..") == 0);
        unlink("file");
        NEED(rmdir(name) == 0);
    }
}

static void mount_tmpfs(void) {
    mkdir("/depths", 0755);
    NEED(mount("none", "/depths", "tmpfs", 0, "") == 0);
    NEED(chdir("/depths") == 0);
}

static void folders_are_removed(void) {
    mount_tmpfs();
    descend(DEEP);
    ascend(DEEP);
    NEED(chdir("/") == 0);
    CHECK(umount("/depths") == 0);
}

static void a_deep_tree_is_unmounted(void) {
    for (int round = 0; round < 3; round++) {
        mount_tmpfs();
        descend(DEEP);
        NEED(chdir("/") == 0);
        CHECK(umount("/depths") == 0);
    }
}

// The tree's root goes while a process is deep in it: what is below that process's folder stays until it goes too.
static void a_deep_tree_goes_in_parts(void) {
    mount_tmpfs();
    descend(DEEP);
    NEED(chdir("/depths") == 0);
    int pipes[2];
    NEED(pipe(pipes) == 0);
    pid_t child = fork();
    if (child == 0) {
        char name[32];
        for (int n = 0; n < DEEP / 2; n++) {
            name_folder(name, n);
            if (chdir(name) != 0) _exit(1);
        }
        char byte;
        close(pipes[1]);
        _exit(read(pipes[0], &byte, 1) != 0);
    }
    usleep(200000);
    NEED(chdir("/") == 0);
    CHECK(umount2("/depths", MNT_DETACH) == 0);
    close(pipes[1]);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void names_of_deep_folders_are_refused(void) {
    mount_tmpfs();
    descend(DEEP);
    static char path[1 << 16];
    FAILS(syscall(SYS_getcwd, path, sizeof path), ENAMETOOLONG);
    struct stat stat_;
    CHECK(stat(".", &stat_) == 0);
    ascend(DEEP);
    NEED(chdir("/") == 0);
    CHECK(umount("/depths") == 0);
}

// Paths of exactly as many bytes as a call takes, through folders, upwards, and through links.
static void the_longest_paths_are_followed(void) {
    mount_tmpfs();
    static char path[5000];
    struct stat stat_;
    NEED(mkdir("a", 0755) == 0);
    NEED(symlink("a/../a", "l") == 0);
    for (int n = 0; n < 4090; n += 5) memcpy(path + n, "a/../", 6);
    strcpy(path + 4090, "a");
    CHECK(stat(path, &stat_) == 0);
    memset(path, '/', 4094);
    strcpy(path + 4094, "a");
    FAILS(stat(path, &stat_), ENOENT);
    memset(path, '.', 1);
    CHECK(stat(path, &stat_) == 0);
    strcpy(path + 4095, "a");
    path[4094] = '/';
    FAILS(stat(path, &stat_), ENAMETOOLONG);
    for (int n = 0; n < 40; n++) memcpy(path + n * 5, "l/../", 6);
    CHECK(stat(path, &stat_) == 0);
    for (int n = 0; n < 41; n++) memcpy(path + n * 5, "l/../", 6);
    FAILS(stat(path, &stat_), ELOOP);
    NEED(chdir("/") == 0);
    CHECK(umount("/depths") == 0);
}

static void threads_have_no_threads(void) {
    static char path[5000];
    struct stat stat_;
    int pid = getpid(), at = sprintf(path, "/proc/%d", pid);
    at += sprintf(path + at, "/task/%d", pid);
    CHECK(stat(path, &stat_) == 0);
    strcpy(path + at, "/status");
    CHECK(stat(path, &stat_) == 0);
    strcpy(path + at, "/task");
    FAILS(stat(path, &stat_), ENOENT);
    while (at < 4070) at += sprintf(path + at, "/task/%d", pid);
    FAILS(stat(path, &stat_), ENOENT);
    // A link of /proc begins anew: this is as long, and there.
    at = sprintf(path, "/proc/self/root");
    while (at < 4070) at += sprintf(path + at, "/proc");
    FAILS(stat(path, &stat_), ENOENT);
}

// Closes its descriptor of `carried` and puts it into a message to `through`, for `through`'s other end to hold.
static void put(int through, int carried) {
    NEED(send_files(through, &carried, 1, "", 1, 0) == 1);
    close(carried);
}

// Each socket is in a message in the queue of the next one; the last is closed.
static void sockets_hold_sockets(void) {
    struct rlimit limit = {SOCKETS * 4, SOCKETS * 4};
    setrlimit(RLIMIT_NOFILE, &limit);
    int inner = open("/dev/null", O_RDONLY);
    for (int n = 0; n < SOCKETS; n++) {
        int pair[2];
        NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
        put(pair[0], inner);
        close(pair[0]);
        inner = pair[1];
    }
    CHECK(close(inner) == 0);
    // The same in a ring: the last one is in its own queue.
    inner = open("/dev/null", O_RDONLY);
    for (int n = 0; n < SOCKETS; n++) {
        int pair[2];
        NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
        put(pair[0], inner);
        if (n == SOCKETS - 1) put(pair[0], dup(pair[1]));
        close(pair[0]);
        inner = pair[1];
    }
    CHECK(close(inner) == 0);
}

// Each datagram socket is connected to the next one, and nobody has a descriptor of any but the first.
static void sockets_point_to_sockets(void) {
    struct rlimit limit = {SOCKETS * 4, SOCKETS * 4};
    setrlimit(RLIMIT_NOFILE, &limit);
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int sockets[SOCKETS];
    for (int n = 0; n < SOCKETS; n++) {
        sockets[n] = socket(AF_UNIX, SOCK_DGRAM, 0);
        int length = sprintf(name.sun_path + 1, "depths %d", n);
        NEED(bind(sockets[n], (void *)&name, offsetof(struct sockaddr_un, sun_path) + 1 + length) == 0);
    }
    for (int n = 0; n + 1 < SOCKETS; n++) {
        int length = sprintf(name.sun_path + 1, "depths %d", n + 1);
        NEED(connect(sockets[n], (void *)&name, offsetof(struct sockaddr_un, sun_path) + 1 + length) == 0);
    }
    for (int n = SOCKETS - 1; n > 0; n--) close(sockets[n]);
    CHECK(close(sockets[0]) == 0);
}

// A chain of processes, each the child of the last: the first ends first.
static void children_have_children(void) {
    int pipes[2];
    NEED(pipe(pipes) == 0);
    pid_t first = fork();
    if (first == 0) {
        close(pipes[0]);
        for (int n = 0; n < 100; n++) {
            pid_t next = fork();
            if (next < 0) _exit(1);
            if (next != 0) {
                usleep(100000);
                _exit(0);
            }
        }
        _exit(0);
    }
    close(pipes[1]);
    char byte;
    CHECK(read(pipes[0], &byte, 1) == 0);
    int status;
    CHECK(waitpid(first, &status, 0) == first && status == 0);
}

// A file system on a folder of a file system, and so on; a child works in the innermost one, and all go.
static void mounts_cover_mounts(void) {
    mkdir("/depths", 0755);
    NEED(chdir("/depths") == 0);
    static char path[4000] = "/depths";
    enum { MOUNTS = 60 };
    for (int n = 0; n < MOUNTS; n++) {
        NEED(mount("none", path, "tmpfs", 0, "") == 0);
        strcat(path, "/m");
        NEED(mkdir(path, 0755) == 0);
    }
    struct stat stat_;
    CHECK(stat(path, &stat_) == 0);
    for (int n = 0; n < MOUNTS; n++) {
        path[strlen(path) - 2] = 0;
        NEED(chdir("/") == 0 && umount(path) == 0);
    }
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"folders_are_removed", folders_are_removed},
        {"a_deep_tree_is_unmounted", a_deep_tree_is_unmounted},
        {"a_deep_tree_goes_in_parts", a_deep_tree_goes_in_parts},
        {"names_of_deep_folders_are_refused", names_of_deep_folders_are_refused},
        {"the_longest_paths_are_followed", the_longest_paths_are_followed},
        {"threads_have_no_threads", threads_have_no_threads},
        {"sockets_hold_sockets", sockets_hold_sockets},
        {"sockets_point_to_sockets", sockets_point_to_sockets},
        {"children_have_children", children_have_children},
        {"mounts_cover_mounts", mounts_cover_mounts},
    };
    return RUN(cases, argc, argv);
}
