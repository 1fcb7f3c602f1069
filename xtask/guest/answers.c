// What calls about files, descriptors, clocks and threads answer, a line each, the same on every kernel: the answers in the tree come
// from Linux.
#include "callers.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/statfs.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <time.h>

static void text(const char *name, const char *text) {
    printf("%s: %s\n", name, text ? text : error_name(errno));
    fflush(stdout);
}
static long ok(long result) { return result < 0 ? -1 : 0; }
static int make(const char *path, const char *content) {
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    MUST(fd >= 0 && write(fd, content, strlen(content)) == (long)strlen(content));
    return fd;
}
static void make_only(const char *path) { close(make(path, "x")); }

struct how { uint64_t flags, mode, resolve; };
enum { NO_XDEV = 1, NO_MAGIC = 2, NO_LINKS = 4, BENEATH = 8, IN_ROOT = 16, CACHED = 32 };
static long open_how(int at, const char *path, uint64_t flags, uint64_t resolve) {
    struct how how = {flags, 0, resolve};
    return ok(syscall(437, at, path, &how, sizeof how));
}
static void resolving(void) {
    MUST(!mkdir("t", 0755) && !mkdir("t/in", 0755) && !symlink("/etc", "t/out") && !symlink("in", "t/link") && !symlink("../..", "t/in/up"));
    MUST(!symlink("/in", "t/absolute") && !symlink("/proc/self/exe", "t/magic"));
    make_only("t/in/file");
    int at = open("t", O_RDONLY | O_DIRECTORY);
    static const struct { const char *name; uint64_t resolve; } rules[] = {{"free", 0}, {"no mounts", NO_XDEV}, {"no magic", NO_MAGIC},
        {"no links", NO_LINKS}, {"beneath", BENEATH}, {"in root", IN_ROOT}, {"both", BENEATH | IN_ROOT}, {"unknown", 64}};
    static const char *const paths[] = {"in/file", "link/file", "out", "in/up", "..", "/in/file", "/etc", "absolute/file", "magic", "in/../in/file",
        "in/../../x", ".", "none", "/proc/self/exe", "/proc/self/fd/0", "/dev/null", "/proc"};
    for (size_t r = 0; r < sizeof rules / sizeof *rules; r++)
        for (size_t p = 0; p < sizeof paths / sizeof *paths; p++) {
            char name[64];
            snprintf(name, sizeof name, "%s, %s", rules[r].name, paths[p]);
            say(name, open_how(at, paths[p], O_RDONLY | O_NONBLOCK, rules[r].resolve));
        }
    struct how how = {O_RDONLY, 0, 0};
    say("too small", ok(syscall(437, at, "in", &how, 8)));
    struct { struct how how; uint64_t more; } large = {{O_RDONLY, 0, 0}, 0};
    say("larger", ok(syscall(437, at, "in", &large, sizeof large)));
    large.more = 1;
    say("larger, not zero", ok(syscall(437, at, "in", &large, sizeof large)));
    how.mode = 0644;
    say("a mode for nothing", ok(syscall(437, at, "in", &how, sizeof how)));
    how = (struct how){O_CREAT | O_RDWR, 010000, 0};
    say("an odd mode", ok(syscall(437, at, "new", &how, sizeof how)));
    how = (struct how){1UL << 40, 0, 0};
    say("an unknown flag", ok(syscall(437, at, "in", &how, sizeof how)));
    how = (struct how){O_CREAT | O_RDWR | O_TRUNC, 0644, CACHED};
    say("create what is cached", ok(syscall(437, at, "new", &how, sizeof how)));
    how = (struct how){O_PATH | O_RDWR, 0, 0};
    say("O_PATH and O_RDWR", ok(syscall(437, at, "in/file", &how, sizeof how)));
    how = (struct how){O_TMPFILE | O_RDONLY, 0600, 0};
    say("O_TMPFILE to read", ok(syscall(437, at, "in", &how, sizeof how)));
}

static int special(int kind) {
    int ends[2];
    sigset_t none;
    sigemptyset(&none);
    switch (kind) {
        case 0: return epoll_create1(0);
        case 1: return eventfd(0, EFD_NONBLOCK);
        case 2: return timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
        case 3: return signalfd(-1, &none, SFD_NONBLOCK);
        case 4: return socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
        case 5: return socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        case 6: MUST(!pipe2(ends, O_NONBLOCK)); return ends[0];
        case 7: return open("/dev/null", O_RDWR);
        case 8: return open("/tmp", O_RDONLY);
        case 9: return open("/dev/zero", O_RDWR);
        default: return memfd_create("m", 0);
    }
}
static const char *const specials[] = {"epoll", "event", "timer", "signal", "unix", "inet", "pipe", "null", "folder", "zero", "memfd"};
static void special_files(void) {
    static char buffer[64];
    signal(SIGPIPE, SIG_IGN);
    for (int kind = 0; kind < 11; kind++) {
        int fd = special(kind);
        MUST(fd >= 0);
        printf("%s:", specials[kind]);
#define TELL(call) do { long r = (call); if (r < 0) printf(" %s", error_name(errno)); else printf(" %ld", r); } while (0)
        TELL(lseek(fd, 0, SEEK_CUR)); TELL(lseek(fd, 5, SEEK_SET)); TELL(lseek(fd, 0, SEEK_END) < 0 ? -1 : 0); TELL(lseek(fd, 0, SEEK_DATA)); TELL(lseek(fd, 0, 77));
        lseek(fd, 0, SEEK_SET);
        printf(" |");
        TELL(ok(read(fd, buffer, 0))); TELL(ok(write(fd, buffer, 0))); TELL(ok(pread(fd, buffer, 1, 0))); TELL(ok(pwrite(fd, buffer, 1, 0)));
        printf(" |");
        TELL(fsync(fd)); TELL(fdatasync(fd)); TELL(syscall(SYS_sync_file_range, fd, 0, 0, 0)); TELL(posix_fadvise(fd, 0, 0, 0)); TELL(flock(fd, LOCK_SH | LOCK_NB));
        printf(" |");
        struct stat st;
        struct statfs fs;
        struct flock lock = {F_RDLCK, SEEK_SET, 0, 0, 0};
        TELL(fstat(fd, &st)); TELL((long)(st.st_mode & S_IFMT) >> 12); TELL((long)(st.st_mode & 0777)); TELL(st.st_size * (kind != 8)); TELL(fstatfs(fd, &fs)); TELL(kind == 8 ? 0 : (long)fs.f_type); TELL(fcntl(fd, F_SETLK, &lock));
        printf(" |");
        TELL(ok(syscall(SYS_getdents64, fd, buffer, 64))); TELL(fchdir(fd)); TELL(ok(openat(fd, "x", O_RDONLY)));
        int n = 0;
        TELL(ioctl(fd, FIONBIO, &n)); TELL(ioctl(fd, FIONREAD, &n) < 0 ? -1 : 0); TELL(ioctl(fd, FIOCLEX)); TELL(ioctl(fd, TIOCGWINSZ, buffer)); TELL(ioctl(fd, 0x5499, buffer)); TELL(ioctl(fd, FIOASYNC, &n)); TELL(ioctl(fd, FIOQSIZE, buffer) < 0 ? -1 : 0); TELL(ioctl(fd, 2 /* FIGETBSZ */, &n)); TELL(ioctl(fd, 0x80086601 /* FS_IOC_GETFLAGS */, &n));
        MUST(!chdir("/answers"));
        printf(" |");
        struct epoll_event event = {EPOLLIN, {0}};
        int set = epoll_create1(0);
        TELL(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event)); close(set);
        TELL(fcntl(fd, F_GETFL)); TELL(fcntl(fd, F_SETFL, O_APPEND)); TELL(fcntl(fd, F_GETFL) & ~O_LARGEFILE); TELL(fcntl(fd, F_GETPIPE_SZ)); TELL(fcntl(fd, F_GETLEASE)); TELL(fcntl(fd, F_SETOWN, 0)); TELL(fcntl(fd, F_ADD_SEALS, 0)); TELL(fcntl(fd, F_GET_SEALS));
        printf("\n");
        fflush(stdout);
        close(fd);
    }
}

static void names(void) {
    char buffer[4200];
    make_only("file");
    MUST(!mkdir("dir", 0755) && !symlink("file", "to-file") && !symlink("dir", "to-dir") && !symlink("none", "dangling") && !symlink("loop", "loop"));
    say("open file/", ok(open("file/", O_RDONLY)));
    say("open file/ to create", ok(open("file/", O_RDWR | O_CREAT, 0600)));
    say("open none/ to create", ok(open("none/", O_RDWR | O_CREAT, 0600)));
    say("open dir/ to create", ok(open("dir/", O_RDONLY | O_CREAT, 0600)));
    say("open dir to create", ok(open("dir", O_RDONLY | O_CREAT, 0600)));
    say("open dir to write", ok(open("dir", O_WRONLY)));
    say("open dangling to create alone", ok(open("dangling", O_RDWR | O_CREAT | O_EXCL, 0600)));
    say("open dangling", ok(open("dangling", O_RDWR)));
    say("open to-file without links", ok(open("to-file", O_RDWR | O_NOFOLLOW)));
    say("open to-dir as a folder without links", ok(open("to-dir", O_RDONLY | O_NOFOLLOW | O_DIRECTORY)));
    say("open to-dir/ without links", ok(open("to-dir/", O_RDONLY | O_NOFOLLOW)));
    say("open loop", ok(open("loop", O_RDONLY)));
    say("open file as a folder", ok(open("file", O_RDONLY | O_DIRECTORY)));
    say("create a folder", ok(open("dir2", O_RDONLY | O_DIRECTORY | O_CREAT, 0600)));
    unlink("dir2"), rmdir("dir2");
    say("open with mode 3", ok(open("file", 3)));
    say("truncate to read", ok(open("file", O_RDONLY | O_TRUNC)));
    say("the empty name", ok(open("", O_RDONLY)));
    say("file/x", ok(open("file/x", O_RDONLY)));
    say("file/.", ok(open("file/.", O_RDONLY)));
    say("file/..", ok(open("file/..", O_RDONLY)));
    memset(buffer, 'a', 300), buffer[256] = 0;
    say("a long name", ok(open(buffer, O_RDONLY)));
    for (int i = 0; i < 4196; i += 2) buffer[i] = '.', buffer[i + 1] = '/';
    buffer[4096] = 0;
    say("a long path", ok(open(buffer, O_RDONLY)));
    say("mkdir file", mkdir("file", 0755));
    say("mkdir dir/", mkdir("dir/", 0755));
    say("mkdir new/", mkdir("new/", 0755));
    say("mkdir dangling", mkdir("dangling", 0755));
    say("mkdir dangling/", mkdir("dangling/", 0755));
    say("mkdir .", mkdir(".", 0755));
    say("mkdir dir/..", mkdir("dir/..", 0755));
    say("mkdir none/x", mkdir("none/x", 0755));
    say("rmdir .", rmdir("."));
    say("rmdir dir/.", rmdir("dir/."));
    say("rmdir dir/..", rmdir("dir/.."));
    say("rmdir file", rmdir("file"));
    say("rmdir to-dir", rmdir("to-dir"));
    say("rmdir to-dir/", rmdir("to-dir/"));
    say("rmdir new/", rmdir("new/"));
    say("rmdir /", rmdir("/"));
    say("unlink dir", unlink("dir"));
    say("unlink dir/", unlink("dir/"));
    say("unlink file/", unlink("file/"));
    say("unlink to-file/", unlink("to-file/"));
    say("unlink none/", unlink("none/"));
    say("unlink .", unlink("."));
    say("link dir", link("dir", "dir-2"));
    say("link to-file", link("to-file", "linked"));
    struct stat st;
    say("it is a link", !lstat("linked", &st) && S_ISLNK(st.st_mode));
    say("link followed", linkat(AT_FDCWD, "to-file", AT_FDCWD, "followed", AT_SYMLINK_FOLLOW));
    say("it is a link", !lstat("followed", &st) && S_ISLNK(st.st_mode));
    say("link to what is there", link("file", "dir"));
    say("link to new/", link("file", "new/"));
    say("link file/", link("file/", "x"));
    say("link an unknown flag", linkat(AT_FDCWD, "file", AT_FDCWD, "x", 1));
    say("symlink to what is there", symlink("x", "file"));
    say("symlink of nothing", symlink("", "x"));
    say("symlink at x/", symlink("a", "x/"));
    say("rename file dir", rename("file", "dir"));
    say("rename dir file", rename("dir", "file"));
    say("rename dir dir/x", rename("dir", "dir/x"));
    say("rename file file", rename("file", "file"));
    say("rename file/ x", rename("file/", "x"));
    say("rename file x/", rename("file", "x/"));
    say("rename dir x/", rename("dir", "x/"));
    say("rename x/ dir/", rename("x/", "dir/"));
    say("rename . x", rename(".", "x"));
    say("rename dir/. x", rename("dir/.", "x"));
    say("rename dir ..", rename("dir", ".."));
    say("rename to-dir/ x", rename("to-dir/", "x"));
    say("exchange file dir", syscall(SYS_renameat2, AT_FDCWD, "file", AT_FDCWD, "dir", 2));
    say("and back", syscall(SYS_renameat2, AT_FDCWD, "file", AT_FDCWD, "dir", 2));
    say("exchange with none", syscall(SYS_renameat2, AT_FDCWD, "file", AT_FDCWD, "none", 2));
    say("rename alone", syscall(SYS_renameat2, AT_FDCWD, "file", AT_FDCWD, "dir", 1));
    say("both", syscall(SYS_renameat2, AT_FDCWD, "file", AT_FDCWD, "dir", 3));
    say("an unknown flag", syscall(SYS_renameat2, AT_FDCWD, "file", AT_FDCWD, "dir", 64));
    say("readlink file", ok(readlink("file", buffer, 10)));
    say("readlink none", ok(readlink("none", buffer, 10)));
    say("readlink of no length", ok(readlink("to-file", buffer, 0)));
    say("readlink short", readlink("to-file", buffer, 2));
    say("readlinkat of an opened link", ok(readlinkat(open("to-file", O_PATH | O_NOFOLLOW), "", buffer, 10)));
    say("readlinkat of an opened file", ok(readlinkat(open("file", O_RDONLY), "", buffer, 10)));
    say("access of an unknown mode", access("file", 8));
    say("faccessat2 of an unknown flag", syscall(439, AT_FDCWD, "file", 0, 0x10));
    say("faccessat2 of a descriptor", syscall(439, open("file", O_RDONLY), "", 0, AT_EMPTY_PATH));
    say("access to-file/", access("to-file/", 0));
    say("chmod dangling", chmod("dangling", 0600));
    say("fchmodat without links", fchmodat(AT_FDCWD, "to-file", 0600, AT_SYMLINK_NOFOLLOW));
    say("lchown dangling", lchown("dangling", 0, 0));
    say("chown dangling", chown("dangling", 0, 0));
    say("truncate dir", truncate("dir", 0));
    say("truncate below", truncate("file", -1));
    say("truncate none", truncate("none", 0));
    say("mknod of a folder", mknod("n1", S_IFDIR | 0755, 0));
    say("mknod of a file", mknod("n2", S_IFREG | 0644, 0));
    say("mknod of no kind", mknod("n3", 0644, 0));
    say("mknod of a link", mknod("n4", S_IFLNK | 0644, 0));
    say("mknod of an unknown kind", mknod("n5", 0110644, 0));
    say("mknod of a pipe", mknod("n6", S_IFIFO | 0644, 0));
    say("mknod of a socket", mknod("n7", S_IFSOCK | 0644, 0));
    say("open a socket", ok(open("n7", O_RDWR)));
    say("open a pipe to write", ok(open("n6", O_WRONLY | O_NONBLOCK)));
    say("mknod at x/", mknod("x/", S_IFREG | 0644, 0));
    say("mkfifo of what is there", mkfifo("file", 0644));
    say("chdir file", chdir("file"));
    say("chdir none", chdir("none"));
    say("chroot file", chroot("file"));
    say("statfs none", statfs("none", (struct statfs *)buffer));
    // Where a folder has gone, or can't be named.
    MUST(!mkdir("gone", 0755) && !chdir("gone") && !rmdir("../gone"));
    say("getcwd of what has gone", syscall(SYS_getcwd, buffer, sizeof buffer));
    say("open .. there", ok(open("..", O_RDONLY)));
    say("open . there", ok(open(".", O_RDONLY)));
    say("create there", ok(open("x", O_RDWR | O_CREAT, 0600)));
    say("mkdir there", mkdir("x", 0700));
    say("stat . there", stat(".", &st));
    say("links", st.st_nlink);
    MUST(!chdir("/answers"));
    say("getcwd short", syscall(SYS_getcwd, buffer, 5));
    say("getcwd of no length", syscall(SYS_getcwd, buffer, 0));
    pid_t child = fork();
    if (!child) {
        MUST(!mkdir("root", 0755) && !mkdir("root/a", 0755) && !chdir("/tmp"));
        int outside = open("/answers", O_RDONLY), moved = open("root/a", O_RDONLY);
        (void)moved;
        MUST(!chroot("/answers/root"));
        long length = syscall(SYS_getcwd, buffer, sizeof buffer);
        text("getcwd outside the root", length < 0 ? 0 : buffer);
        char link[64], *end = link;
        snprintf(link, sizeof link, "/proc/self/fd/%d", outside);
        (void)end;
        say("readlink of what is outside", ok(readlink(link, buffer, sizeof buffer)));
        say(".. of the root", !chdir("/") && !chdir("..") && !stat(".", &st) && !access("a", F_OK));
        fflush(stdout);
        _exit(0);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child && !status);
    int fd = open("dir", O_RDONLY);
    MUST(!rename("dir", "renamed") && !fchdir(fd) && getcwd(buffer, sizeof buffer));
    text("getcwd of what is renamed", buffer);
    MUST(!chdir("/answers"));
}

static void mounts(void) {
    MUST(!mkdir("m", 0755) && !mkdir("m2", 0755));
    say("mount of an unknown kind", mount("none", "m", "nonsense", 0, 0));
    say("mount of no kind", mount("none", "m", 0, 0, 0));
    say("mount at nothing", mount("none", "missing", "tmpfs", 0, 0));
    say("mount an unknown kind at nothing", mount("none", "missing", "nonsense", 0, 0));
    make_only("mf");
    say("mount at a file", mount("none", "mf", "tmpfs", 0, 0));
    say("mount tmpfs", mount("none", "m", "tmpfs", 0, 0));
    say("again", mount("none", "m", "tmpfs", 0, 0));
    say("umount", umount("m"));
    say("odd options", mount("none", "m", "tmpfs", 0, "nonsense=1"));
    say("a bad size", mount("none", "m", "tmpfs", 0, "size=zzz"));
    say("a mode", mount("none", "m2", "tmpfs", 0, "mode=0700,size=1m"));
    struct stat st;
    say("it has it", !stat("m2", &st) ? (long)(st.st_mode & 0777) : -1);
    int fd = open("m2/f", O_RDWR | O_CREAT, 0600);
    say("umount of what is used", umount("m2"));
    say("umount with an unknown flag", umount2("m2", 64));
    close(fd);
    say("link across", link("mf", "m2/x"));
    say("rename across", rename("mf", "m2/x"));
    say("umount a folder", umount("m"));
    say("umount nothing", umount("missing"));
    say("rmdir of a mount", rmdir("m2"));
    say("rename of a mount", rename("m2", "m3"));
    say("detach", umount2("m2", MNT_DETACH));
    say("bind", mount("m", "m2", 0, MS_BIND, 0));
    say("bind at nothing", mount("m", "missing", 0, MS_BIND, 0));
    say("bind nothing", mount("missing", "m2", 0, MS_BIND, 0));
    say("bind a file to a folder", mount("mf", "m2", 0, MS_BIND, 0));
    say("remount what isn't one", mount(0, "/answers", 0, MS_REMOUNT, 0));
    umount2("m", MNT_DETACH), umount2("m2", MNT_DETACH);
}

static long nanos(const struct timespec *a) { return a->tv_sec * 1000000000L + a->tv_nsec; }
static void clocks(void) {
    struct timespec now = {0, 0}, bad[2] = {{0, -5}, {0, 0}};
    int fd = make("times", "x");
    say("odd times", futimens(fd, bad));
    struct timespec omit[2] = {{77, UTIME_OMIT}, {77, UTIME_OMIT}}, both[2] = {{0, UTIME_NOW}, {0, UTIME_OMIT}};
    say("omit both of nothing", utimensat(AT_FDCWD, "missing", omit, 0));
    say("now and omit", futimens(fd, both));
    say("utimensat of a descriptor", syscall(SYS_utimensat, fd, 0, 0, 0));
    say("utimensat of the working folder", syscall(SYS_utimensat, AT_FDCWD, 0, 0, 0));
    say("an unknown flag", utimensat(AT_FDCWD, "times", omit, 1));
    struct timeval micro[2] = {{0, 1000000}, {0, 0}};
    say("odd microseconds", syscall(SYS_utimes, "times", micro));
    static const int clocks[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 16, -1, -2, -6, -7};
    for (size_t i = 0; i < sizeof clocks / sizeof *clocks; i++) {
        struct timespec zero = {0, 0};
        timer_t timer;
        printf("clock %d:", clocks[i]);
        TELL(syscall(SYS_clock_gettime, clocks[i], &now)); TELL(syscall(SYS_clock_getres, clocks[i], &now)); TELL(syscall(SYS_clock_settime, clocks[i], &bad[0])); TELL(syscall(SYS_clock_nanosleep, clocks[i], 0, &zero, 0)); TELL(syscall(SYS_clock_nanosleep, clocks[i], 0, &bad[0], 0));
        struct sigevent none = {.sigev_notify = SIGEV_NONE};
        TELL(syscall(SYS_timer_create, clocks[i], &none, &timer)); TELL(ok(timerfd_create(clocks[i], 0)));
        printf("\n");
    }
    struct sigevent odd = {.sigev_notify = 77};
    timer_t timer;
    say("an odd notification", syscall(SYS_timer_create, 0, &odd, &timer));
    odd = (struct sigevent){.sigev_notify = SIGEV_SIGNAL, .sigev_signo = 99};
    say("an odd signal", syscall(SYS_timer_create, 0, &odd, &timer));
    say("a timer that isn't", syscall(SYS_timer_delete, 999));
    struct itimerspec once = {{0, 0}, {0, 1000000000}};
    odd = (struct sigevent){.sigev_notify = SIGEV_NONE};
    int id = 0;
    MUST(!syscall(SYS_timer_create, 0, &odd, &id));
    say("odd nanoseconds", syscall(SYS_timer_settime, id, 0, &once, 0));
    once.it_value.tv_nsec = 0, once.it_value.tv_sec = 100;
    say("a hundred seconds", syscall(SYS_timer_settime, id, 0, &once, 0));
    MUST(!syscall(SYS_timer_gettime, id, &once));
    say("left", nanos(&once.it_value) > 99000000000L);
    struct itimerval interval = {{0, 0}, {0, 1000000}};
    say("setitimer odd", setitimer(ITIMER_REAL, &interval, 0));
    say("setitimer of an unknown", setitimer(7, &interval, 0));
    say("nanosleep odd", nanosleep(&bad[0], 0));
    say("alarm", alarm(100)), say("left", alarm(0));
    int tfd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    long expired;
    say("read before", read(tfd, &expired, 8)), say("read short", read(tfd, &expired, 4));
    say("timerfd odd", timerfd_settime(tfd, 0, &(struct itimerspec){{0, 0}, {0, -1}}, 0));
    say("timerfd with an unknown flag", timerfd_settime(tfd, 64, &once, 0));
    say("timerfd of a file", timerfd_settime(fd, 0, &once, 0));
    int efd = eventfd(0, EFD_NONBLOCK);
    long most = -1, one = 1;
    say("eventfd read of zero", read(efd, &expired, 8)), say("write all ones", write(efd, &most, 8)), say("write short", write(efd, &one, 4)), say("write", write(efd, &one, 8)), say("read", read(efd, &expired, 16));
}

static void futexes(void) {
    int word = 5, other = 6;
    struct timespec zero = {0, 0}, bad = {0, -1};
#define FUTEX(op, value, time, second, third) syscall(SYS_futex, &word, op, value, time, second, third)
    say("wait for another value", FUTEX(0, 4, 0, 0, 0));
    say("wait for no time", FUTEX(0, 5, &zero, 0, 0));
    say("wait for an odd time", FUTEX(0, 5, &bad, 0, 0));
    say("wake none", FUTEX(1, 0, 0, 0, 0));
    say("wake one", FUTEX(1, 1, 0, 0, 0));
    say("an odd address", syscall(SYS_futex, (char *)&word + 1, 1, 1, 0, 0, 0));
    say("an unmapped address", syscall(SYS_futex, 4096, 0, 0, &zero, 0, 0));
    say("an unknown call", FUTEX(99, 0, 0, 0, 0));
    say("wait without bits", FUTEX(9, 5, &zero, 0, 0));
    say("wake without bits", FUTEX(10, 1, 0, 0, 0));
    say("requeue", FUTEX(3, 1, (void *)1, &other, 0));
    say("requeue of another value", FUTEX(4, 1, (void *)1, &other, 4));
    say("requeue below", FUTEX(3, -1, (void *)1, &other, 0));
    say("wake with an operation", FUTEX(5, 1, (void *)1, &other, 0x10001));
    say("robust list of an odd size", syscall(SYS_set_robust_list, &word, 8));
}

enum { LOCK_PI = 6, UNLOCK_PI = 7, TRYLOCK_PI = 8, LOCK_PI2 = 13, CLOCK_FLAG = 256, OWNED = 0x3fffffff };

static long pi(volatile unsigned *word, int op, const struct timespec *until) { return syscall(SYS_futex, word, op, 0, until, 0, 0); }

static void spin(long ms) {
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    do clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000 < ms);
}

// A child that owns word[0] once word[1] is set: it keeps it for so long, and gives it back or ends.
static pid_t owner(volatile unsigned *word, long ms, int ends) {
    word[1] = 0;
    pid_t child = fork();
    MUST(child >= 0);
    if (child) {
        while (!word[1]) sched_yield();
        return child;
    }
    MUST(!pi(word, LOCK_PI, 0));
    word[1] = 1, usleep(ms * 1000), spin(5);
    if (!ends) MUST(!pi(word, UNLOCK_PI, 0));
    _exit(0);
}

// Mutexes whose owners inherit the priority of those that wait.
static void inheriting(void) {
    volatile unsigned *word = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    unsigned tid = getpid();
    struct timespec past = {1, 0}, bad = {0, -1};
    say("take", pi(word, LOCK_PI, 0)), say("is mine", word[0] == tid), say("again", pi(word, LOCK_PI, 0)), say("try again", pi(word, TRYLOCK_PI, 0)), say("give back", pi(word, UNLOCK_PI, 0)), say("is free", word[0]), say("once more", pi(word, UNLOCK_PI, 0));
    say("try", pi(word, TRYLOCK_PI, 0)), say("is mine", word[0] == tid), say("give back", pi(word, UNLOCK_PI, 0)), say("another way", pi(word, LOCK_PI2, 0)), say("give back", pi(word, UNLOCK_PI, 0));
    word[0] = 0x40000000, say("of one that died", pi(word, LOCK_PI, 0)), say("says so", word[0] == (tid | 0x40000000)), say("give back", pi(word, UNLOCK_PI, 0)), say("is free", word[0]);
    word[0] = 1 << 29, say("of no thread", pi(word, LOCK_PI, 0)), say("try", pi(word, TRYLOCK_PI, 0)), say("give back another's", pi(word, UNLOCK_PI, 0)), word[0] = 0;
    say("odd", pi((void *)((char *)word + 1), LOCK_PI, 0)), say("nowhere", pi((void *)4096, LOCK_PI, 0)), say("give back nowhere", pi((void *)4096, UNLOCK_PI, 0)), say("a bad time", pi(word, LOCK_PI, &bad)), say("a clock", pi(word, LOCK_PI | CLOCK_FLAG, 0)), say("a clock that may be", pi(word, LOCK_PI2 | CLOCK_FLAG, 0)), say("of this process alone", pi(word + 8, LOCK_PI | 128, 0)), say("give back", pi(word + 8, UNLOCK_PI | 128, 0)), word[0] = 0;
    pid_t child = owner(word, 1000, 0);
    say("try another's", pi(word, TRYLOCK_PI, 0)), say("until a time past", pi(word, LOCK_PI, &past)), say("is awaited", word[0] >> 31), say("until it is given", pi(word, LOCK_PI, 0)), say("is mine", (word[0] & OWNED) == tid), say("give back", pi(word, UNLOCK_PI, 0)), say("is free", word[0]), waitpid(child, 0, 0);
    child = owner(word, 50, 1), say("until the owner ends", pi(word, LOCK_PI, 0)), say("is mine", (word[0] & OWNED) == tid), say("its owner died", word[0] >> 30 & 1), say("give back", pi(word, UNLOCK_PI, 0)), waitpid(child, 0, 0), word[0] = 0;
    // A thread of high priority waits for one of none; one between computes until that has ended, 20 s at most.
    child = owner(word, 200, 0);
    pid_t between = fork();
    int high = 10, middle = 5;
    if (!between) {
        usleep(10000), word[2] = 1;
        for (int i = 0; i < 20000 && !word[5]; i++) spin(1);
        word[2] = 2;
        _exit(0);
    }
    say("priorities", syscall(SYS_sched_setscheduler, 0, SCHED_FIFO, &high)), say("between", syscall(SYS_sched_setscheduler, between, SCHED_FIFO, &middle));
    while (!word[2]) usleep(1000);
    say("take", pi(word, LOCK_PI, 0)), say("the one between computes still", word[2]), word[5] = 1, say("give back", pi(word, UNLOCK_PI, 0)), waitpid(child, 0, 0), waitpid(between, 0, 0);
    // Two that wait for each other.
    word[3] = 0, child = owner(word, 1000, 0);
    pid_t second = fork();
    if (!second) {
        MUST(!pi(word + 4, LOCK_PI, 0));
        word[3] = 1;
        long waited = pi(word, LOCK_PI, 0);
        _exit(waited ? errno : 0);
    }
    while (!word[3]) usleep(1000);
    int status;
    say("a row of owners", pi(word + 4, LOCK_PI, &(struct timespec){1, 0})), waitpid(child, 0, 0), waitpid(second, &status, 0), say("the second", WEXITSTATUS(status)), say("left by it", pi(word + 4, LOCK_PI, 0));
}

static void vectors(void) {
    int fd = make("v", "0123456789");
    char buffer[16];
    struct iovec part = {buffer, 4};
    lseek(fd, 2, SEEK_SET);
    say("preadv2 here", syscall(SYS_preadv2, fd, &part, 1, -1, -1, 0)), say("moved", lseek(fd, 0, SEEK_CUR));
    say("preadv2 without waiting", syscall(SYS_preadv2, fd, &part, 1, 0, 0, 8));
    say("preadv2 of high priority", syscall(SYS_preadv2, fd, &part, 1, 0, 0, 1));
    say("pwritev2 to append", syscall(SYS_pwritev2, fd, &part, 1, 0, 0, 16));
    struct stat st;
    say("length", !fstat(fd, &st) ? st.st_size : -1);
    say("pwritev2 to append here", syscall(SYS_pwritev2, fd, &part, 1, -1, -1, 16)), say("moved", lseek(fd, 0, SEEK_CUR));
    say("pwritev2 synced", syscall(SYS_pwritev2, fd, &part, 1, 0, 0, 4)), say("data synced", syscall(SYS_pwritev2, fd, &part, 1, 0, 0, 2));
    say("an unknown flag", syscall(SYS_pwritev2, fd, &part, 1, 0, 0, 0x1000));
    say("preadv2 to append", syscall(SYS_preadv2, fd, &part, 1, 0, 0, 16));
    say("too many parts", syscall(SYS_readv, fd, &part, 1025)), say("parts below", syscall(SYS_readv, fd, &part, -1));
    int ends[2];
    say("pipe2 of an unknown flag", pipe2(ends, O_APPEND));
    say("an open file with O_DIRECT", ok(open("v", O_RDONLY | O_DIRECT)));
    say("O_DIRECT set", fcntl(fd, F_SETFL, O_DIRECT));
    say("of /dev/zero", ok(open("/dev/zero", O_RDONLY | O_DIRECT))), say("of /proc", ok(open("/proc/self/stat", O_RDONLY | O_DIRECT)));
    say("seek to data", lseek(fd, 0, SEEK_DATA)), say("to a hole", lseek(fd, 0, SEEK_HOLE)), say("to data behind", lseek(fd, 100, SEEK_DATA)), say("to a hole behind", lseek(fd, 100, SEEK_HOLE)), say("to data below", lseek(fd, -1, SEEK_DATA));
    say("copy onto itself", syscall(SYS_copy_file_range, fd, &(long){0}, fd, &(long){1}, 4, 0)), say("behind", syscall(SYS_copy_file_range, fd, &(long){0}, fd, &(long){10}, 4, 0)), say("flags", syscall(SYS_copy_file_range, fd, 0, fd, 0, 4, 1));
    int append = open("v", O_WRONLY | O_APPEND), read_only = open("v", O_RDONLY), folder = open(".", O_RDONLY), null = open("/dev/null", O_RDWR);
    say("copy to append", syscall(SYS_copy_file_range, fd, &(long){0}, append, 0, 4, 0)), say("copy to read", syscall(SYS_copy_file_range, fd, &(long){0}, read_only, 0, 4, 0)), say("copy a folder", syscall(SYS_copy_file_range, folder, 0, fd, 0, 4, 0)), say("copy to a device", syscall(SYS_copy_file_range, fd, 0, null, 0, 4, 0));
    say("sendfile to append", ok(sendfile(append, fd, &(long){0}, 4))), say("sendfile to itself", ok(sendfile(fd, fd, &(long){0}, 4)));
    say("dup2 of itself", dup2(fd, fd) == fd), say("dup3 of itself", syscall(SYS_dup3, fd, fd, 0)), say("dup2 far", dup2(fd, 1 << 30)), say("dup3 with an unknown flag", syscall(SYS_dup3, fd, 50, 1)), say("dup below", dup(-1)), say("F_DUPFD below", fcntl(fd, F_DUPFD, -1)), say("F_DUPFD far", fcntl(fd, F_DUPFD, 1 << 30));
    say("close_range backwards", syscall(436, 50, 40, 0)), say("close_range of an unknown flag", syscall(436, 500, 510, 64)), say("close_range", syscall(436, 500, 510, 0));
    say("an unknown fcntl", fcntl(fd, 9999)), say("F_SETFD", fcntl(fd, F_SETFD, 0xff)), say("F_GETFD", fcntl(fd, F_GETFD));
    say("select of too many", select(-1, 0, 0, 0, 0)), say("poll of too many", syscall(SYS_poll, 0, 1 << 30, 0));
    say("getrandom of an unknown flag", syscall(SYS_getrandom, buffer, 4, 64)), say("random and insecure", syscall(SYS_getrandom, buffer, 4, 6));
    say("memfd with an unknown flag", memfd_create("x", 64)), memset(buffer, 'a', 15);
    char name[300];
    memset(name, 'a', 299), name[250] = 0;
    say("memfd of a long name", memfd_create(name, 0)), name[249] = 0, say("memfd of a shorter name", ok(memfd_create(name, 0)));
}

static int readable(int fd) {
    struct pollfd poll_in = {fd, POLLIN, 0};
    return poll(&poll_in, 1, 0);
}

// Pipes with O_DIRECT: what is written in one piece is read in one.
static void packets(void) {
    int ends[2];
    char buffer[16384] = "0123456789";
    say("a pipe of packets", pipe2(ends, O_DIRECT | O_NONBLOCK)), say("flags", fcntl(ends[0], F_GETFL)), say("of the other end", fcntl(ends[1], F_GETFL));
    write(ends[1], buffer, 3), write(ends[1], buffer, 5);
    say("the first", read(ends[0], buffer, 100)), say("the second", read(ends[0], buffer, 100)), say("no more", read(ends[0], buffer, 100));
    write(ends[1], buffer, 5), write(ends[1], buffer, 2);
    say("too small a buffer", read(ends[0], buffer, 3)), say("the next packet", read(ends[0], buffer, 100)), say("an empty one", write(ends[1], buffer, 0)), say("is none", readable(ends[0]));
    say("a large write", write(ends[1], buffer, 10000)), say("first part", read(ends[0], buffer, sizeof buffer)), say("second part", read(ends[0], buffer, sizeof buffer)), say("last part", read(ends[0], buffer, sizeof buffer));
    long many = 0, held = 0;
    while (write(ends[1], buffer, 1) == 1) many++;
    say("when it is full", -1), say("packets", many), say("a smaller pipe", fcntl(ends[1], F_SETPIPE_SZ, 4096)), say("one is read", read(ends[0], buffer, 10)), say("one goes", write(ends[1], buffer, 1)), say("no other", write(ends[1], buffer, 1));
    while (read(ends[0], buffer, 10) > 0) held++;
    say("all read", held);
    struct iovec parts[] = {{buffer, 2}, {buffer, 3}};
    say("a vector", writev(ends[1], parts, 2)), say("in one piece", read(ends[0], buffer, 100));
    write(ends[1], buffer, 6), say("read into a vector", readv(ends[0], parts, 2)), say("the rest is gone", readable(ends[0]));
    say("unreadable", write(ends[1], (void *)1, 10));
    close(ends[0]), close(ends[1]);
    MUST(!pipe2(ends, O_DIRECT | O_NONBLOCK));
    say("no packets any more", fcntl(ends[1], F_SETFL, O_NONBLOCK)), write(ends[1], buffer, 3), write(ends[1], buffer, 5), say("both in one", read(ends[0], buffer, 100));
    say("packets again", fcntl(ends[1], F_SETFL, O_DIRECT | O_NONBLOCK));
    write(ends[1], buffer, 5), fcntl(ends[1], F_SETFL, O_NONBLOCK), write(ends[1], buffer, 3), say("a packet before bytes", read(ends[0], buffer, 100)), say("bytes", read(ends[0], buffer, 100));
    say("a FIFO", mkfifo("f", 0600)), say("opened with O_DIRECT", ok(open("f", O_RDWR | O_DIRECT)));
    int fifo = open("f", O_RDWR | O_NONBLOCK);
    say("set on it", fcntl(fifo, F_SETFL, O_DIRECT | O_NONBLOCK)), write(fifo, buffer, 2), write(fifo, buffer, 3), say("its packet", read(fifo, buffer, 100));
}

static long opened(const char *path, int flags) {
    int fd = open(path, flags, 0600);
    return fd < 0 ? -1 : close(fd);
}

static void read_only(void) {
    struct statfs figures;
    MUST(!mkdir("r", 0755) && !mkdir("b", 0755) && !mkdir("o", 0755));
    say("mount", mount("none", "r", "tmpfs", 0, 0)), close(make("r/f", "text"));
    MUST(!mkdir("r/d", 0755) && !symlink("f", "r/l"));
    int writer = open("r/f", O_RDWR), reader = open("r/f", O_RDONLY);
    say("while it is written", mount(0, "r", 0, MS_REMOUNT | MS_RDONLY, 0)), close(writer), say("for reading", mount(0, "r", 0, MS_REMOUNT | MS_RDONLY, 0));
    say("open to write", opened("r/f", O_WRONLY)), say("open to read", opened("r/f", O_RDONLY)), say("truncating", opened("r/f", O_RDONLY | O_TRUNC)), say("a new file", opened("r/g", O_RDWR | O_CREAT)), say("one that is there", opened("r/f", O_RDONLY | O_CREAT)), say("without a name", opened("r", O_RDWR | O_TMPFILE));
    say("mkdir", mkdir("r/e", 0755)), say("mkdir of what is there", mkdir("r/d", 0755)), say("rmdir", rmdir("r/d")), say("unlink", unlink("r/f")), say("unlink nothing", unlink("r/none")), say("unlink a folder", unlink("r/d")), say("rename", rename("r/f", "r/g")), say("rename nothing", rename("r/none", "r/g")), say("link", link("r/f", "r/g")), say("symlink", symlink("f", "r/g")), say("mknod", mknod("r/g", S_IFIFO | 0600, 0));
    say("chmod", chmod("r/f", 0600)), say("fchmod", fchmod(reader, 0600)), say("chown", chown("r/f", 1, 1)), say("lchown", lchown("r/l", 1, 1)), say("utimes", utimes("r/f", 0)), say("futimens", futimens(reader, 0)), say("truncate", truncate("r/f", 0)), say("truncate a folder", truncate("r/d", 0)), say("access", access("r/f", W_OK)), say("access to read", access("r/f", R_OK)), say("access of nothing", access("r/none", W_OK));
    say("statfs", statfs("r/f", &figures)), say("says", figures.f_flags & ST_RDONLY);
    close(reader), say("for writing", mount(0, "r", 0, MS_REMOUNT, 0)), say("a new file", opened("r/g", O_RDWR | O_CREAT));
    say("bind", mount("r", "b", 0, MS_BIND, 0)), say("for reading there", mount(0, "b", 0, MS_REMOUNT | MS_BIND | MS_RDONLY, 0)), say("there", opened("b/f", O_WRONLY)), say("here", opened("r/f", O_WRONLY)), say("across", link("r/f", "b/h")), say("unlink there", unlink("b/g")), say("unlink here", unlink("r/g"));
    say("statfs there", statfs("b", &figures)), say("says", figures.f_flags & ST_RDONLY), say("statfs here", statfs("r", &figures)), say("says", figures.f_flags & ST_RDONLY);
    say("all for reading", mount(0, "r", 0, MS_REMOUNT | MS_RDONLY, 0)), say("for writing there", mount(0, "b", 0, MS_REMOUNT | MS_BIND, 0)), say("not yet", opened("b/f", O_WRONLY)), say("all for writing", mount(0, "b", 0, MS_REMOUNT, 0)), say("now", opened("b/f", O_WRONLY));
    say("umount", umount("b")), say("new for reading", mount("none", "b", "tmpfs", MS_RDONLY, 0)), say("mkdir", mkdir("b/d", 0755)), say("proc for reading", mount("none", "o", "proc", MS_RDONLY, 0)), say("a name", opened("o/self/comm", O_WRONLY));
    say("move", mount("b", "r", 0, MS_MOVE, 0)), say("mkdir where it was", mkdir("b/d", 0755)), say("mkdir where it is", mkdir("r/e", 0755)), say("below", access("r/f", F_OK)), say("umount", umount("r")), say("what was covered", access("r/f", F_OK));
    say("move a folder", mount("r/d", "b", 0, MS_MOVE, 0)), say("move into itself", mount("r", "r/d", 0, MS_MOVE, 0)), say("move to nothing", mount("r", "none", 0, MS_MOVE, 0)), say("move to a file", mount("r", "r/f", 0, MS_MOVE, 0)), say("move nothing", mount("none", "b", 0, MS_MOVE, 0)), say("move the root", mount("/", "b", 0, MS_MOVE, 0));
    MUST(!mount("none", "r/d", "tmpfs", 0, 0));
    close(make("r/d/x", "x"));
    say("move a tree", mount("r", "b", 0, MS_MOVE, 0)), say("with what is on it", access("b/d/x", F_OK)), say("umount what is on it", umount("b/d")), say("umount", umount("b")), say("what is left", rmdir("b/d"));
    say("umount proc", umount("o"));
}

// rtnetlink(7), whose headers musl lacks.
enum { REQUEST = 1, MULTI = 2, ACK = 4, DUMP = 0x300, NOOP = 1, NEWLINK = 16, GETLINK = 18, GETADDR = 22 };
struct message {
    unsigned len;
    unsigned short type, flags;
    unsigned sequence, port;
};
struct link {
    unsigned char family, pad;
    unsigned short type;
    int index;
    unsigned flags, change;
};
struct port {
    unsigned short family, pad;
    unsigned port, groups;
};

// What a request to the kernel about interfaces brings: the types of its messages, or the error.
static void ask(const char *name, int fd, int type, int flags, const void *body, unsigned len) {
    struct {
        struct message header;
        char body[64];
    } request = {{sizeof request.header + len, type, flags, 7, 0}, {0}};
    char buffer[8192];
    memcpy(request.body, body, len);
    say(name, send(fd, &request, (request.header.len + 3) & ~3u, 0) > 0 ? 0 : -1);
    for (ssize_t got; (got = recv(fd, buffer, sizeof buffer, MSG_DONTWAIT)) > 0;)
        for (struct message *one = (void *)buffer; got >= 16 && one->len >= 16 && got >= one->len; got -= (one->len + 3) & ~3u, one = (void *)((char *)one + ((one->len + 3) & ~3u))) {
            printf(" type %d, multi %d, sequence %d", one->type, one->flags & MULTI, one->sequence);
            if (one->type == 2) printf(", %d bytes", one->len);
            if (one->type == 2) printf(", %s", error_name(-*(int *)(one + 1)));
            printf("\n");
        }
}

static void interfaces(void) {
    struct ifreq loopback = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    ioctl(socket(AF_INET, SOCK_DGRAM, 0), SIOCSIFFLAGS, &loopback);
    struct ifaddrs *all = 0;
    say("getifaddrs", getifaddrs(&all));
    for (struct ifaddrs *one = all; one; one = one->ifa_next) {
        char address[64] = "";
        int family = one->ifa_addr ? one->ifa_addr->sa_family : 0;
        if (family == AF_INET) inet_ntop(family, &((struct sockaddr_in *)one->ifa_addr)->sin_addr, address, sizeof address);
        if (family == AF_INET6) inet_ntop(family, &((struct sockaddr_in6 *)one->ifa_addr)->sin6_addr, address, sizeof address);
        if (!strcmp(one->ifa_name, "lo")) printf("%s, flags %x, family %d %s\n", one->ifa_name, one->ifa_flags, family, address);
    }
    struct if_nameindex *names = if_nameindex();
    if (names) printf("%d %s\n", names->if_index, names->if_name);
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, 0), second = socket(AF_NETLINK, SOCK_DGRAM, 0);
    struct port name = {.family = AF_NETLINK};
    socklen_t len = sizeof name;
    say("another protocol", ok(socket(AF_NETLINK, SOCK_RAW, 30))), say("a stream", ok(socket(AF_NETLINK, SOCK_STREAM, 0)));
    say("name", getsockname(fd, (void *)&name, &len)), say("length", len), say("port", name.port), say("bind", bind(fd, (void *)&name, len)), getsockname(fd, (void *)&name, &len), say("the process's port", name.port == (unsigned)getpid());
    say("bind the second there", bind(second, (void *)&name, len)), name.port = 0, say("bind it", bind(second, (void *)&name, len)), getsockname(second, (void *)&name, &len), say("another port", name.port != 0 && name.port != (unsigned)getpid());
    say("a short name", bind(fd, (void *)&name, 8)), name.port = 12345678, say("to another program", ok(sendto(fd, "", 1, 0, (void *)&name, len))), say("nothing", send(fd, "", 0, 0));
    struct message two[3] = {{17, NOOP, REQUEST | ACK, 1, 0}, {0}, {0}};
    memcpy((char *)two + 20, &(struct message){17, NOOP, REQUEST | ACK, 2, 0}, 16), say("two at once", send(fd, two, 40, 0)), say("the first", recv(fd, two, sizeof two, MSG_DONTWAIT)), say("the second", recv(fd, two, sizeof two, MSG_DONTWAIT));
    struct link link = {0}, none = {.index = 77}, one = {.index = 1};
    ask("links", fd, GETLINK, REQUEST | DUMP, &link, sizeof link), ask("by one byte", fd, GETLINK, REQUEST | DUMP, "", 1);
    ask("addresses of 4", fd, GETADDR, REQUEST | DUMP, (char[]){AF_INET}, 1), ask("addresses of 6", fd, GETADDR, REQUEST | DUMP, (char[]){AF_INET6}, 1);
    ask("one link", fd, GETLINK, REQUEST, &one, sizeof one), ask("one that isn't there", fd, GETLINK, REQUEST, &none, sizeof none), ask("none named", fd, GETLINK, REQUEST, &link, sizeof link);
    ask("no request", fd, GETLINK, 0, &one, sizeof one), ask("an unknown type", fd, 500, REQUEST, &one, sizeof one), ask("nothing behind", fd, GETLINK, REQUEST, "", 0), ask("with an acknowledgement", fd, NOOP, REQUEST | ACK, "", 0);
    one.flags = IFF_UP, one.change = IFF_UP, ask("up", fd, NEWLINK, REQUEST | ACK, &one, sizeof one), ask("none up", fd, NEWLINK, REQUEST | ACK, &none, sizeof none);
    MUST(!setuid(1000));
    ask("up, by another user", fd, NEWLINK, REQUEST | ACK, &one, sizeof one);
    ask("looked at by another user", fd, GETADDR, REQUEST | DUMP, (char[]){AF_INET}, 1);
}

static void attributes(void) {
    int fd = make("x", "x");
    char buffer[70000], name[300];
    say("get none", getxattr("x", "user.none", buffer, 10)), say("get of no space", getxattr("x", "none", buffer, 10)), say("get of an unknown space", getxattr("x", "odd.none", buffer, 10)), say("get an empty name", getxattr("x", "", buffer, 10)), say("get of the space alone", getxattr("x", "user.", buffer, 10));
    memset(name, 'a', 299), memcpy(name, "user.", 5), name[256] = 0;
    say("get a long name", getxattr("x", name, buffer, 10));
    say("set of an unknown space", setxattr("x", "odd.a", "b", 1, 0)), say("set of no space", setxattr("x", "a", "b", 1, 0)), say("set a long name", setxattr("x", name, "b", 1, 0)), say("set with an unknown flag", setxattr("x", "user.a", "b", 1, 4)), say("replace none", setxattr("x", "user.a", "b", 1, 2)), say("set too much", setxattr("x", "user.a", buffer, 65537, 0));
    say("set a trusted one", setxattr("x", "trusted.a", "value", 5, 0)), say("created again", setxattr("x", "trusted.a", "b", 1, XATTR_CREATE)), say("replaced", setxattr("x", "trusted.a", "longer", 6, XATTR_REPLACE)), say("no other", setxattr("x", "trusted.b", "b", 1, XATTR_REPLACE)), say("its length", getxattr("x", "trusted.a", 0, 0)), say("too little room", getxattr("x", "trusted.a", buffer, 3)), say("its value", fgetxattr(fd, "trusted.a", buffer, 100)), printf("%.6s\n", buffer);
    say("a second", fsetxattr(fd, "security.b", "", 0, 0)), say("of no length", getxattr("x", "security.b", buffer, 100)), say("names", listxattr("x", 0, 0)), say("in too little room", listxattr("x", buffer, 5)), say("all", listxattr("x", buffer, 100)), say("none of a space alone", setxattr("x", "trusted.", "b", 1, 0)), say("unreadable", setxattr("x", "trusted.c", (void *)1, 5, 0));
    MUST(!symlink("x", "xl") && !mkfifo("xf", 0600));
    say("of a link", lsetxattr("xl", "trusted.l", "b", 1, 0)), say("by a link", getxattr("xl", "trusted.a", buffer, 100)), say("of the link", lgetxattr("xl", "trusted.l", buffer, 100)), say("a user's, of a link", lsetxattr("xl", "user.l", "b", 1, 0)), say("of a FIFO", setxattr("xf", "user.l", "b", 1, 0)), say("got of a FIFO", getxattr("xf", "user.l", buffer, 1));
    MUST(!seteuid(1000));
    say("by another user", setxattr("x", "trusted.a", "b", 1, 0)), say("got by another user", getxattr("x", "trusted.a", buffer, 100)), say("names for another user", listxattr("x", buffer, 100)), say("got", getxattr("x", "security.b", buffer, 100)), say("removed by another user", removexattr("x", "trusted.a"));
    MUST(!seteuid(0));
    say("remove", removexattr("x", "trusted.a")), say("again", removexattr("x", "trusted.a")), say("remove the other", fremovexattr(fd, "security.b")), say("no names", listxattr("x", buffer, 100)), say("names of a bad descriptor", flistxattr(99, buffer, 1)), say("of nothing", getxattr("none", "trusted.a", buffer, 1));
    close(fd);
    int64_t st[32] = {0};
    say("statx of an unknown flag", syscall(332, AT_FDCWD, "x", 1, 0x7ff, st)), say("statx of a reserved mask", syscall(332, AT_FDCWD, "x", 0, 0x80000000, st)), say("statx both ways", syscall(332, AT_FDCWD, "x", 0x6000, 0xfff, st)), say("statx", syscall(332, AT_FDCWD, "x", 0, 0xfff, st)), say("with its birth", (long)st[0] >> 11 & 1), say("born lately", st[10] > 1700000000), say("knows", (long)st[7] & 0x3070);
    unsigned flags = 0;
    say("flags", ioctl(fd = open("x", O_RDWR), 0x80086601, &flags)), say("are", flags), flags = 0x10, say("immutable", ioctl(fd, 0x40086602, &flags)), say("write", write(fd, "x", 1)), say("open to write", ok(open("x", O_WRONLY))), say("unlink", unlink("x")), say("link", link("x", "y")), say("chmod", chmod("x", 0600)), say("allocate", fallocate(fd, 0, 0, 100)), say("truncate", truncate("x", 0)), flags = 0x20, say("append-only", ioctl(fd, 0x40086602, &flags)), say("truncate", ftruncate(fd, 0)), say("punch", fallocate(fd, 3, 0, 1)), say("allocate", fallocate(fd, 0, 0, 10)), say("to append", ok(open("x", O_WRONLY | O_APPEND))), say("to write", ok(open("x", O_WRONLY))), flags = 0, say("mutable", ioctl(fd, 0x40086602, &flags));
    say("a version", ioctl(fd, 0x80087601, &flags) < 0 ? -1 : 0), say("a size of blocks", ioctl(fd, 2, &flags)), say("is", flags), say("a label", ioctl(fd, 0x81009431, buffer));
}

static void in_a_folder(void) {
    MUST(!system("rm -rf /answers; mkdir /answers") && !chdir("/answers"));
    alarm(60);
}

int main(void) {
    static const struct part parts[] = {{"resolving", resolving}, {"special files", special_files}, {"names", names},
        {"mounts", mounts}, {"clocks", clocks}, {"futexes", futexes}, {"inheriting", inheriting}, {"vectors", vectors}, {"packets", packets}, {"read-only", read_only}, {"interfaces", interfaces}, {"attributes", attributes}};
    umask(022);
    run_parts(parts, sizeof parts / sizeof *parts, in_a_folder);
    return 0;
}
