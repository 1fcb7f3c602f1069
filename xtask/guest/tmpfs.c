// File systems in memory: how large they may get, who is told when they are full, what gives room back.
#include "check.h"
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/statfs.h>
#include <sys/sysinfo.h>
#include <sys/sysmacros.h>

enum { MIB = 1 << 20, RW = PROT_READ | PROT_WRITE };

static volatile char sink;
static char block[MIB];

// Mounts one on a new folder, and goes there.
static void fresh(const char *options) {
    char path[64];
    snprintf(path, sizeof path, "/tmp/m.%d", getpid());
    NEED(!mkdir(path, 0755) && !mount("none", path, "tmpfs", 0, options) && !chdir(path));
}

static void end(void) {
    char path[64];
    NEED(getcwd(path, sizeof path) && !chdir("/"));
    CHECK(!umount(path) && !rmdir(path));
}

static long room(void) {
    struct statfs space;
    NEED(!statfs(".", &space) && space.f_bavail == space.f_bfree);
    return (long)(space.f_bfree * space.f_bsize);
}

static long size(void) {
    struct statfs space;
    NEED(!statfs(".", &space));
    return (long)(space.f_blocks * space.f_bsize);
}

// Writes until there is no room, and says how much was written.
static long fill(int fd) {
    long total = 0;
    ssize_t n;
    while ((n = write(fd, block, sizeof block)) > 0) total += n;
    CHECK(n == -1 && errno == ENOSPC);
    return total;
}

static void half_of_memory(void) {
    struct sysinfo info;
    NEED(!sysinfo(&info));
    long half = (long)(info.totalram * info.mem_unit / 2);
    fresh("");
    CHECK(size() <= half + half / 50 && size() >= half - half / 50 && room() == size());
    end();
    NEED(!chdir("/dev/shm"));
    CHECK(size() <= half + half / 50 && size() >= half - half / 50);
}

static void a_size_is_kept_to(void) {
    fresh("size=1m,mode=700");
    struct stat about;
    CHECK(!stat(".", &about) && (about.st_mode & 07777) == 0700);
    CHECK(size() == MIB && room() == MIB);
    int fd = open("a", O_RDWR | O_CREAT, 0600);
    CHECK(fill(fd) == MIB && room() == 0 && pwrite(fd, "x", 1, 5) == 1);
    FAILS(pwrite(fd, "x", 1, MIB), ENOSPC);
    CHECK(!fstat(fd, &about) && about.st_size == MIB);
    // Holes cost nothing; what is cut off, punched and removed comes back.
    CHECK(!ftruncate(fd, 10 * MIB) && room() == 0 && !ftruncate(fd, MIB / 2) && room() == MIB / 2);
    CHECK(!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, MIB / 4) && room() == MIB / 4 * 3);
    CHECK(!unlink("a") && room() == MIB / 4 * 3 && !close(fd) && room() == MIB);
    end();
}

static void a_store_beyond_it_is_a_bus_error(void) {
    catch_faults();
    fresh("size=64k");
    int fd = open("a", O_RDWR | O_CREAT, 0600);
    NEED(!ftruncate(fd, 32 * PAGE));
    char *at = mmap(0, 32 * PAGE, RW, MAP_SHARED, fd, 0);
    NEED(at != MAP_FAILED);
    for (int page = 0; page < 16; page++) at[page * PAGE] = 1;
    CHECK(room() == 0);
    RAISES(at[16 * PAGE + 3] = 1, SIGBUS, BUS_ADRERR, at + 16 * PAGE + 3);
    RAISES(sink = at[20 * PAGE], SIGBUS, BUS_ADRERR, at + 20 * PAGE);
    at[3 * PAGE] = 2; // what is there can be used
    CHECK(!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 3 * PAGE, PAGE));
    at[16 * PAGE + 3] = 1;
    RAISES(at[3 * PAGE] = 1, SIGBUS, BUS_ADRERR, at + 3 * PAGE);
    NEED(!munmap(at, 32 * PAGE) && !close(fd) && !unlink("a"));
    CHECK(room() == 64 << 10);
    end();
}

static void room_can_be_taken_beforehand(void) {
    catch_faults();
    fresh("size=64k");
    int fd = open("a", O_RDWR | O_CREAT, 0600), other = open("b", O_RDWR | O_CREAT, 0600);
    struct stat about;
    FAILS(fallocate(fd, 0, 0, 17 * PAGE), ENOSPC);
    CHECK(!fstat(fd, &about) && about.st_size == 0 && room() == 64 << 10);
    CHECK(!fallocate(fd, 0, PAGE, 9 * PAGE) && !fstat(fd, &about) && about.st_size == 10 * PAGE);
    CHECK(room() == 7 * PAGE && fill(other) == 7 * PAGE);
    char *at = mmap(0, 10 * PAGE, RW, MAP_SHARED, fd, 0);
    NEED(at != MAP_FAILED);
    for (int page = 1; page < 10; page++) at[page * PAGE] = 1;
    RAISES(at[0] = 1, SIGBUS, BUS_ADRERR, at);
    NEED(!munmap(at, 10 * PAGE) && !close(fd) && !close(other));
    end();
}

static void limits_can_be_changed(void) {
    fresh("size=64k,nr_inodes=3");
    char path[64];
    NEED(getcwd(path, sizeof path));
    int fd = open("a", O_RDWR | O_CREAT, 0600);
    CHECK(fill(fd) == 64 << 10);
    CHECK(!mkdir("b", 0700));
    FAILS(open("c", O_RDWR | O_CREAT, 0600), ENOSPC);
    CHECK(!rmdir("b") && !symlink("a", "c"));
    FAILS(mount("none", path, "tmpfs", MS_REMOUNT, "size=32k"), EINVAL);
    FAILS(mount("none", path, "tmpfs", MS_REMOUNT, "size=much"), EINVAL);
    CHECK(!mount("none", path, "tmpfs", MS_REMOUNT, "size=128k,nr_inodes=10"));
    CHECK(size() == 128 << 10 && fill(fd) == 64 << 10 && !mkdir("d", 0700));
    CHECK(!close(fd));
    FAILS(mount("none", path, "tmpfs", 0, "colour=blue"), EINVAL);
    end();
}

// More than the usual limit, through a mapping: who does it is told, and memory is left to all others.
static char *large;
static size_t length;
static void store_everywhere(void) {
    for (size_t at = 0; at < length; at += PAGE) large[at] = 1;
}
static void a_mapping_does_not_take_all_memory(void) {
    struct sysinfo info;
    NEED(!sysinfo(&info));
    length = info.totalram * info.mem_unit;
    fresh("");
    int fd = open("a", O_RDWR | O_CREAT, 0600);
    NEED(!ftruncate(fd, (off_t)length));
    large = mmap(0, length, RW, MAP_SHARED, fd, 0);
    NEED(large != MAP_FAILED);
    int status = in_child(store_everywhere);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS && room() == 0);
    CHECK(!munmap(large, length) && !ftruncate(fd, 0) && room() == size() && !close(fd));
    end();
}

// A folder that covers itself, by a bind mount or by way of another folder, can still be looked at.
static void mounts_that_go_round(void) {
    struct stat found;
    NEED(!mkdir("/tmp/x", 0755) && !mkdir("/tmp/y", 0755) && !chdir("/tmp/x"));
    int onto_itself = !mount("/tmp/x", "/tmp/x", 0, MS_BIND, 0);
    CHECK(onto_itself || errno == ELOOP);
    CHECK(!stat("/tmp/x", &found) && (!onto_itself || !umount("/tmp/x")));
    NEED(!mount("/tmp/y", "/tmp/x", 0, MS_BIND, 0));
    int round = !mount(".", "/tmp/y", 0, MS_BIND, 0);
    CHECK(round || errno == ELOOP);
    CHECK(!stat("/tmp/x", &found) && !stat("/tmp/y", &found));
    CHECK(!round || !umount("/tmp/y"));
    CHECK(!chdir("/") && !umount("/tmp/x") && !rmdir("/tmp/x") && !rmdir("/tmp/y"));
}

// What a program that is in the folder gives: its exit code, or 128 and the error of execve.
static int run(const char *path) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        execl(path, path, (char *)0);
        _exit(128 + errno);
    }
    int status;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int mounts_say(const char *options) {
    char path[64], line[512], *found = 0;
    NEED(getcwd(path, sizeof path));
    FILE *mounts = fopen("/proc/mounts", "r");
    NEED(mounts);
    while (!found && fgets(line, sizeof line, mounts)) if (strstr(line, path)) found = strstr(line, options);
    fclose(mounts);
    return found != 0;
}

static long flags(void) {
    struct statfs space;
    NEED(!statfs(".", &space));
    return space.f_flags & (MS_NODEV | MS_NOEXEC | MS_NOSUID);
}

static void change(unsigned long flags) {
    char path[64];
    NEED(getcwd(path, sizeof path));
    CHECK(!mount("", path, "", MS_REMOUNT | flags, ""));
}

// Programs can't be run or mapped as such, and device nodes not be opened, where a mount says so.
static void flags_of_mounts(void) {
    fresh("");
    static const char script[] = "#!/bin/sh\nexit 9\n";
    int fd = open("script", O_RDWR | O_CREAT, 0755);
    NEED(fd >= 0 && write(fd, script, sizeof script - 1) == sizeof script - 1 && !close(fd));
    NEED(!mknod("null", S_IFCHR | 0666, makedev(1, 3)));
    for (int round = 0; round < 2; round++) {
        CHECK(flags() == 0 && run("./script") == 9);
        fd = open("null", O_RDWR);
        CHECK(fd >= 0 && write(fd, "x", 1) == 1 && !close(fd));
        fd = open("script", O_RDONLY);
        NEED(fd >= 0);
        void *code = mmap(0, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
        CHECK(code != MAP_FAILED && !munmap(code, PAGE));
        change(MS_NODEV);
        CHECK(flags() == MS_NODEV && mounts_say("nodev") && run("./script") == 9);
        FAILS(open("null", O_RDWR), EACCES);
        int named = open("null", O_PATH);
        CHECK(named >= 0 && !close(named));
        change(MS_NOEXEC | MS_NOSUID);
        CHECK(flags() == (MS_NOEXEC | MS_NOSUID) && mounts_say("nosuid,noexec") && run("./script") == 128 + EACCES);
        CHECK(mmap(0, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) == MAP_FAILED && errno == EPERM);
        void *data = mmap(0, PAGE, PROT_READ, MAP_PRIVATE, fd, 0);
        NEED(data != MAP_FAILED);
        FAILS(mprotect(data, PAGE, PROT_READ | PROT_EXEC), EACCES);
        CHECK(!munmap(data, PAGE) && !close(fd));
        change(0);
    }
    // The first read after a change moves the access time, but with this flag or O_NOATIME.
    struct stat before, after;
    for (int way = 0; way < 3; way++) {
        char byte = 'x';
        change(way == 1 ? MS_NOATIME : MS_RELATIME);
        fd = open("times", O_RDWR | O_CREAT | (way == 2 ? O_NOATIME : 0), 0600);
        NEED(fd >= 0 && usleep(20000) == 0 && write(fd, &byte, 1) == 1 && !fstat(fd, &before));
        NEED(usleep(20000) == 0 && pread(fd, &byte, 1, 0) == 1 && !fstat(fd, &after) && !close(fd));
        int moved = before.st_atim.tv_nsec != after.st_atim.tv_nsec || before.st_atim.tv_sec != after.st_atim.tv_sec;
        CHECK(moved == (way == 0) && (way != 1 || mounts_say("noatime")));
    }
    // With this one each read moves it.
    change(MS_STRICTATIME);
    fd = open("times", O_RDONLY);
    for (int read = 0; read < 3; read++) {
        char byte;
        NEED(fd >= 0 && !fstat(fd, &before) && !usleep(20000) && pread(fd, &byte, 1, 0) == 1 && !fstat(fd, &after));
        CHECK(before.st_atim.tv_nsec != after.st_atim.tv_nsec && !mounts_say("relatime"));
    }
    close(fd);
    change(0);
    CHECK(!mounts_say("relatime"));
    change(MS_RELATIME);
    CHECK(mounts_say("relatime"));
    // All mounts are private, and so they stay.
    CHECK(!mount("", "/", "", MS_REC | MS_PRIVATE, "") && !mount("", "/", "", MS_SLAVE, ""));
    FAILS(mount("", "/", "", MS_PRIVATE | MS_NODEV, ""), EINVAL);
    FAILS(mount("", "/", "", MS_PRIVATE | MS_SLAVE, ""), EINVAL);
    NEED(!mkdir("plain", 0755));
    FAILS(mount("", "plain", "", MS_PRIVATE, ""), EINVAL);
    // A socket's name keeps its file system.
    struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "plain/socket"};
    int bound = socket(AF_UNIX, SOCK_STREAM, 0);
    NEED(bound >= 0 && !mount("none", "plain", "tmpfs", 0, "") && !bind(bound, (void *)&name, sizeof name));
    FAILS(umount("plain"), EBUSY);
    CHECK(!close(bound) && !umount("plain"));
    end();
    char path[64];
    snprintf(path, sizeof path, "/tmp/m.%d", getpid());
    NEED(!mkdir(path, 0755) && !mount("none", path, "tmpfs", MS_NODEV | MS_NOEXEC, "") && !chdir(path));
    CHECK(flags() == (MS_NODEV | MS_NOEXEC) && mounts_say("nodev,noexec"));
    // What Linux keeps and this kernel can't it refuses.
    if (!access("/proc/self/uvm", F_OK)) {
        FAILS(mount("", "/", "", MS_SHARED, ""), EINVAL);
        FAILS(mount("none", "/tmp", "tmpfs", MS_SYNCHRONOUS, ""), EINVAL);
        CHECK(flags() == (MS_NODEV | MS_NOEXEC));
    }
    end();
}

// `..` of a folder that is bound below a process's root leads nowhere outside, nor do names tell of what is there.
static void a_root_with_something_bound(void) {
    fresh("");
    char path[64], name[256];
    NEED(getcwd(path, sizeof path));
    NEED(!mkdir("srv", 0755) && !mkdir("srv/data", 0755) && !mkdir("srv/data/sub", 0755) && !mkdir("jail", 0755));
    NEED(!mkdir("jail/data", 0755) && !mkdir("jail/proc", 0755) && !mkdir("jail/own", 0755));
    NEED(!close(open("srv/outside", O_CREAT | O_RDWR, 0644)) && !mount("srv/data", "jail/data", 0, MS_BIND, 0));
    NEED(!mount("proc", "jail/proc", "proc", 0, 0));
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        failed_checks = 0;
        int outside = open("srv", O_RDONLY | O_DIRECTORY);
        NEED(outside >= 0 && !chroot("jail") && !chdir("/") && !setgid(1000) && !setuid(1000));
        FAILS(access("/data/../outside", F_OK), ENOENT);
        CHECK(!access("/data/../own", F_OK) && !access("/data/sub/../../own", F_OK) && !access("/../../data", F_OK));
        CHECK(!chdir("/data/sub") && getcwd(name, sizeof name) && !strcmp(name, "/data/sub"));
        CHECK(!chdir("../..") && getcwd(name, sizeof name) && !strcmp(name, "/"));
        CHECK(readlink("/proc/self/root", name, sizeof name) == 1 && name[0] == '/');
        CHECK(!chdir("/data") && readlink("/proc/self/cwd", name, sizeof name) == 5 && !memcmp(name, "/data", 5));
        static char text[8192];
        int fd = open("/proc/mounts", O_RDONLY);
        ssize_t length = read(fd, text, sizeof text - 1);
        CHECK(length > 0 && strstr(text, " /proc proc ") && strstr(text, " /data ") && !strstr(text, "jail"));
        // What was opened before leads on.
        FAILS(faccessat(outside, "data/../outside2", F_OK, 0), ENOENT);
        CHECK(!fchdir(outside));
        _exit(failed_checks != 0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(!umount("jail/proc") && !umount("jail/data"));
    end();
}

static int is_at(const char *want) {
    char path[64], name[512];
    snprintf(path, sizeof path, "/tmp/m.%d", getpid());
    return syscall(SYS_getcwd, name, sizeof name) > 0 && !strncmp(name, path, strlen(path)) && !strcmp(name + strlen(path), want);
}

// One folder in two places, of which each has a folder above, flags, and users of its own.
static void places_of_one_folder(void) {
    fresh("");
    char path[64], name[512];
    NEED(getcwd(path, sizeof path));
    for (const char **dir = (const char *[]){"srv", "srv/sub", "srv/on", "a", "a/one", "b", "b/two", "b/three", "moved", 0}; *dir; dir++) NEED(!mkdir(*dir, 0755));
    NEED(!mount("srv", "a/one", 0, MS_BIND, 0) && !mount("srv", "b/two", 0, MS_BIND, 0));
    CHECK(!chdir("a/one/sub") && is_at("/a/one/sub") && !chdir("../..") && is_at("/a"));
    CHECK(!chdir("../b/two/sub") && is_at("/b/two/sub") && !chdir("../..") && is_at("/b") && !chdir(path));
    // What is mounted on a folder is there in this place alone, unless the whole tree is bound.
    NEED(!mount("none", "srv/on", "tmpfs", 0, "") && !close(open("srv/on/file", O_CREAT | O_RDWR, 0600)));
    CHECK(!access("srv/on/file", F_OK) && access("a/one/on/file", F_OK) && access("b/two/on/file", F_OK));
    NEED(!mount("srv", "b/three", 0, MS_BIND | MS_REC, 0));
    CHECK(!access("b/three/on/file", F_OK));
    FAILS(umount("b/three"), EBUSY);
    FAILS(rmdir("b/three/on"), EBUSY);
    CHECK(!umount("b/three/on") && !umount("b/three") && !access("srv/on/file", F_OK));
    // Flags.
    struct statfs space;
    NEED(!mount("", "b/two", "", MS_REMOUNT | MS_BIND | MS_NOEXEC, ""));
    CHECK(!statfs("b/two", &space) && space.f_flags & MS_NOEXEC && !statfs("a/one", &space) && !(space.f_flags & MS_NOEXEC));
    int fd = open("srv/program", O_CREAT | O_WRONLY, 0755);
    NEED(fd >= 0 && write(fd, "#!/bin/sh\nexit 9\n", 17) == 17 && !close(fd));
    CHECK(run("b/two/program") == 128 + EACCES && run("a/one/program") == 9);
    // Names of one place are another's neighbours, not its own.
    FAILS(rename("a/one/program", "b/two/other"), EXDEV);
    FAILS(link("a/one/program", "srv/other"), EXDEV);
    CHECK(!rename("a/one/program", "a/one/other") && !unlink("b/two/other"));
    // Who is in one keeps that one.
    FAILS(umount("srv"), EINVAL);
    FAILS(umount2("a/one", 1 << 20), EINVAL);
    CHECK(!chdir("a/one"));
    FAILS(umount("../../a/one"), EBUSY);
    CHECK(!umount("../../b/two") && is_at("/a/one") && !access("sub", F_OK) && access("../../b/two/sub", F_OK));
    // Moved out of what is mounted here, it has nothing above.
    CHECK(!chdir("sub") && !rename("../../../srv/sub", "../../../moved/sub"));
    FAILS(chdir(".."), ENOENT);
    CHECK(!chdir(path) && !umount("a/one") && !umount("srv/on"));
    // In use, it stays, or goes out of sight and lives as long as it is.
    NEED(!mount("none", "a/one", "tmpfs", 0, "") && !mkdir("a/one/dir", 0755) && !chdir("a/one/dir"));
    fd = open("../file", O_CREAT | O_RDWR, 0600);
    NEED(fd >= 0 && write(fd, "text", 4) == 4);
    FAILS(umount("../../one"), EBUSY);
    CHECK(!umount2("../../one", MNT_DETACH) && !access("../file", F_OK) && pread(fd, name, 4, 0) == 4 && !memcmp(name, "text", 4));
    CHECK(syscall(SYS_getcwd, name, sizeof name) > 0 && !strcmp(name, "(unreachable)/dir"));
    CHECK(!chdir("../../..") && syscall(SYS_getcwd, name, sizeof name) > 0 && !strcmp(name, "(unreachable)/"));
    FAILS(umount("."), EINVAL);
    FAILS(mount("none", ".", "tmpfs", 0, ""), EINVAL);
    CHECK(!close(fd) && !chdir(path) && !mkdir("a/one/new", 0755) && access("a/one/file", F_OK));
    // A folder that is shown elsewhere may go from where it was.
    NEED(!mount("moved/sub", "a/one", 0, MS_BIND, 0));
    CHECK(!rmdir("moved/sub") && !access("a/one", F_OK) && mkdir("a/one/new", 0755) && !umount("a/one"));
    end();
}

static int mount_options(const char *options, const char *file) {
    char path[64], line[512], *found = 0;
    snprintf(path, sizeof path, "/tmp/m.%d", getpid());
    FILE *mounts = fopen(file, "r");
    NEED(mounts);
    while (!found && fgets(line, sizeof line, mounts)) if (strstr(line, path)) found = strstr(line, options);
    fclose(mounts);
    return found != 0;
}

// What is removed isn't mounted on, what is mounted on isn't removed, what was moved out has nothing above.
static void mount_points_that_go(void) {
    fresh("");
    char path[64], name[512];
    struct stat about;
    NEED(getcwd(path, sizeof path));
    for (const char **dir = (const char *[]){"gone", "srv", "srv/sub", "moved", "one", "with space", "jail", "jail/in", "jail/in/sub", "over", 0}; *dir; dir++) NEED(!mkdir(*dir, 0755));
    NEED(!chdir("gone") && !rmdir("../gone"));
    FAILS(mount("none", ".", "tmpfs", 0, ""), ENOENT);
    // The folder that was bound goes, and the bound place still ends where it did.
    NEED(!chdir(path) && !mount("srv", "one", 0, MS_BIND, 0) && !chdir("one/sub"));
    int top = open(path, O_RDONLY | O_DIRECTORY);
    CHECK(!renameat(top, "srv/sub", top, "moved/sub") && !unlinkat(top, "srv", AT_REMOVEDIR) && !close(top));
    FAILS(chdir(".."), ENOENT);
    CHECK(!chdir(path) && !umount("one"));
    // Under another mount the process's root is a root.
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        failed_checks = 0;
        NEED(!chroot("jail") && !chdir("/") && !mount("none", "/", "tmpfs", 0, "") && !mkdir("/../in2", 0755) && !mkdir("/../in2/sub", 0755));
        CHECK(!chdir("/../in2/sub") && !chdir("..") && !chdir("..") && syscall(SYS_getcwd, name, sizeof name) == 2 && !strcmp(name, "/"));
        CHECK(!access("in2", F_OK) && !chdir("..") && !access("in2", F_OK) && access("in", F_OK));
        CHECK(!umount2(".", MNT_DETACH));
        _exit(failed_checks != 0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    // Flags are told as the C library knows them.
    struct statfs space;
    NEED(!mount("none", "with space", "tmpfs", MS_NOEXEC | MS_NOSUID, "") && !close(open("with space/x", O_CREAT | O_RDWR, 0755)));
    CHECK(!statfs("with space", &space) && space.f_flags == (MS_NOEXEC | MS_NOSUID | 0x20 | 0x1000));
    CHECK(mount_options("with\\040space", "/proc/self/mounts") && mount_options("with\\040space nosuid,noexec,relatime", "/proc/self/mountinfo") + mount_options("with\\040space rw,nosuid,noexec,relatime", "/proc/self/mountinfo") == 1);
    FAILS(access("with space/x", X_OK), EACCES);
    CHECK(!access("with space", X_OK) && !umount("with space"));
    // What fails leaves the file as it was.
    int fd = open("full", O_CREAT | O_RDWR, 0600);
    NEED(fd >= 0 && write(fd, "text", 4) == 4 && !chmod("full", 06755) && !close(fd));
    FAILS(open("full", O_RDWR | O_TRUNC | O_DIRECTORY), ENOTDIR);
    CHECK((fd = open("full", O_WRONLY)) >= 0 && write(fd, "", 0) == 0 && !fstat(fd, &about) && about.st_mode == (S_IFREG | 06755) && about.st_size == 4 && !close(fd));
    end();
}

// Mounts on mounts, as many as there may be, and all gone at once.
static void mounts_on_mounts(void) {
    fresh("");
    int mounts;
    NEED(!mkdir("a", 0755));
    for (mounts = 0; mounts < 1000; mounts++) if (mount("none", "a", "tmpfs", 0, "size=1m")) break;
    CHECK(mounts == 1000 || (mounts > 200 && errno == ENOSPC));
    int stacked = open("a", O_RDONLY | O_DIRECTORY);
    NEED(stacked >= 0);
    // The lowest one of all takes the others with it.
    CHECK(!umount2(".", MNT_DETACH) && !close(stacked) && !chdir("/tmp"));
    char path[64];
    snprintf(path, sizeof path, "/tmp/m.%d", getpid());
    NEED(!rmdir(path));
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"half_of_memory", half_of_memory},
        {"a_size_is_kept_to", a_size_is_kept_to},
        {"a_store_beyond_it_is_a_bus_error", a_store_beyond_it_is_a_bus_error},
        {"room_can_be_taken_beforehand", room_can_be_taken_beforehand},
        {"limits_can_be_changed", limits_can_be_changed},
        {"a_mapping_does_not_take_all_memory", a_mapping_does_not_take_all_memory},
        {"mounts_that_go_round", mounts_that_go_round},
        {"flags_of_mounts", flags_of_mounts},
        {"a_root_with_something_bound", a_root_with_something_bound},
        {"places_of_one_folder", places_of_one_folder},
        {"mount_points_that_go", mount_points_that_go},
        {"mounts_on_mounts", mounts_on_mounts},
    };
    return RUN(cases, argc, argv);
}
