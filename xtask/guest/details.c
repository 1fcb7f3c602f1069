// What calls answer in cases that few programs meet, a line each, the same on every kernel: the answers in the tree come from Linux.
#include "callers.h"
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <time.h>

#define PAGE 4096L
// As MUST, where an expression is wanted.
#define NEED(condition) ((condition) ? (void)0 : failed(__LINE__, #condition))
static void failed(int line, const char *what) {
    printf("%d: %s: %s\n", line, what, strerror(errno));
    exit(1);
}
static long ok(long result) { return result < 0 ? -1 : 0; }
static int make(const char *path, const char *content) {
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    NEED(fd >= 0 && write(fd, content, strlen(content)) == (long)strlen(content));
    return fd;
}
static char *shown(int fd, int protection, int flags) {
    char *at = mmap(0, 2 * PAGE, protection, flags, fd, 0);
    NEED(at != MAP_FAILED);
    return at;
}
static long closes(const char *path) { return mount(0, path, 0, MS_REMOUNT | MS_RDONLY, 0); }
static long opens(const char *path) { return mount(0, path, 0, MS_REMOUNT, 0); }

// What keeps a mount from being for reading only, and from being unmounted.
static void mapped_mounts(void) {
    enum { RW = PROT_READ | PROT_WRITE };
    NEED(!mkdir("m", 0755) && !mkdir("b", 0755) && !mount("none", "m", "tmpfs", 0, 0));
    int fd = make("m/f", "text");
    NEED(!ftruncate(fd, 2 * PAGE));
    char *at = shown(fd, RW, MAP_SHARED);
    close(fd), say("mapped to be written", closes("m")), munmap(at, PAGE), say("half of it", closes("m")), mprotect(at + PAGE, PAGE, PROT_READ), say("that isn't written any more", closes("m")), say("umount", umount("m"));
    char *moved = mremap(at + PAGE, PAGE, 4 * PAGE, MREMAP_MAYMOVE);
    NEED(moved != MAP_FAILED);
    say("moved", closes("m"));
    pid_t child = fork();
    if (!child) pause(), _exit(0);
    munmap(moved, 4 * PAGE), say("a child's", closes("m")), say("umount", umount("m")), kill(child, SIGKILL), waitpid(child, 0, 0), say("nobody's", closes("m")), say("and back", opens("m"));
    fd = open("m/f", O_RDWR), at = shown(fd, PROT_READ, MAP_SHARED), close(fd), say("mapped to be read, by one that may write", closes("m")), munmap(at, 2 * PAGE);
    fd = open("m/f", O_RDWR), at = shown(fd, RW, MAP_PRIVATE), close(fd), say("copied, by one that may write", closes("m")), munmap(at, 2 * PAGE);
    fd = open("m/f", O_RDONLY), at = shown(fd, PROT_READ, MAP_SHARED), close(fd), say("mapped to be read", closes("m")), say("umount", umount("m")), munmap(at, 2 * PAGE), opens("m");
    fd = open("m/f", O_RDONLY), at = shown(fd, RW, MAP_PRIVATE), close(fd), say("copied", closes("m")), say("umount", umount("m")), munmap(at, 2 * PAGE), opens("m");
    // In one of two places.
    NEED(!mount("m", "b", 0, MS_BIND, 0));
    fd = open("b/f", O_RDWR), at = shown(fd, RW, MAP_SHARED), close(fd);
    say("here", mount(0, "m", 0, MS_REMOUNT | MS_BIND | MS_RDONLY, 0)), say("there", mount(0, "b", 0, MS_REMOUNT | MS_BIND | MS_RDONLY, 0)), say("everywhere", closes("m")), say("umount there", umount("b")), munmap(at, 2 * PAGE), say("umount there", umount("b")), say("umount here", umount("m"));
}

enum { WAIT = 0, WAKE = 1, REQUEUE = 3, CMP_REQUEUE = 4, LOCK_PI = 6, UNLOCK_PI = 7, TRYLOCK_PI = 8, WAKE_BITSET = 10, WAIT_REQUEUE_PI = 11, CMP_REQUEUE_PI = 12, CLOCK_FLAG = 256, OWNED = 0x3fffffff };
static long futex(void *at, int what, unsigned value, void *time, void *second, unsigned third) { return syscall(SYS_futex, at, what, value, time, second, third); }
static long requeue(unsigned *from, unsigned *to, int wake, long move, unsigned expected) { return futex(from, CMP_REQUEUE_PI, wake, (void *)move, to, expected); }
static unsigned *words;
// A child that waits to be moved to the second word, and says how that ended: its error, or 100 where it owns that and has given it back.
static pid_t waits(unsigned *from, unsigned *to, long millis, long holds) {
    struct timespec end;
    pid_t child = fork();
    if (child) {
        usleep(30000);
        return child;
    }
    clock_gettime(CLOCK_MONOTONIC, &end), end.tv_nsec += millis * 1000000, end.tv_sec += end.tv_nsec / 1000000000, end.tv_nsec %= 1000000000;
    if (futex(from, WAIT_REQUEUE_PI, 0, millis ? &end : 0, to, 0)) _exit(errno);
    if ((to[0] & OWNED) != (unsigned)getpid()) _exit(99);
    words[15]++, usleep(holds * 1000);
    _exit(futex(to, UNLOCK_PI, 0, 0, 0, 0) ? 98 : 100);
}
static void ended(const char *name, pid_t child) {
    int status;
    NEED(waitpid(child, &status, 0) == child);
    say(name, WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status);
}
static void nothing(int signal) { (void)signal; }
static void moved_waits(void) {
    words = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    unsigned *a = words, *b = words + 1, *c = words + 2, tid = getpid();
    struct timespec past = {0, 0}, bad = {0, -1};
    pid_t first, second, third;
    say("to itself", futex(a, WAIT_REQUEUE_PI, 0, 0, a, 0)), say("another value", futex(a, WAIT_REQUEUE_PI, 1, 0, b, 0)), say("a time past", futex(a, WAIT_REQUEUE_PI, 0, &past, b, 0)), say("of the other clock", futex(a, WAIT_REQUEUE_PI | CLOCK_FLAG, 0, &past, b, 0)), say("a bad time", futex(a, WAIT_REQUEUE_PI, 0, &bad, b, 0)), say("an odd word", futex((char *)a + 1, WAIT_REQUEUE_PI, 0, &past, b, 0)), say("an odd second", futex(a, WAIT_REQUEUE_PI, 0, &past, (char *)b + 1, 0)), say("nowhere", futex((void *)4096, WAIT_REQUEUE_PI, 0, &past, b, 0)), say("a second nowhere", futex(a, WAIT_REQUEUE_PI, 0, &past, (void *)4096, 0));
    say("move to itself", requeue(a, a, 1, 1, 0)), say("move with two woken", requeue(a, b, 2, 1, 0)), say("with none woken", requeue(a, b, 0, 1, 0)), say("below", requeue(a, b, -1, 1, 0)), say("move below", requeue(a, b, 1, -1, 0)), say("another value", requeue(a, b, 1, 1, 5)), say("nobody", requeue(a, b, 1, 1, 0)), say("a clock", futex(a, CMP_REQUEUE_PI | CLOCK_FLAG, 1, (void *)1, b, 0)), say("nowhere", requeue((void *)4096, b, 1, 1, 0)), say("to nowhere", requeue(a, (void *)4096, 1, 1, 0)), say("odd", requeue((void *)((char *)a + 2), b, 1, 1, 0));
    // A mutex that is free: the first gets it.
    first = waits(a, b, 0, 0), say("one, to a free mutex", requeue(a, b, 1, 0, 0)), ended("it", first), say("is free", b[0]);
    first = waits(a, b, 0, 100), second = waits(a, b, 0, 0), third = waits(a, b, 0, 0);
    say("three, to a free mutex", requeue(a, b, 1, 1000, 0)), usleep(20000), say("got it", words[15]), say("is awaited", b[0] >> 31), say("by the first", (b[0] & OWNED) == (unsigned)first), ended("the first", first), ended("the second", second), ended("the third", third), say("is free", b[0]);
    // One that is owned.
    NEED(!futex(b, LOCK_PI, 0, 0, 0, 0));
    first = waits(a, b, 0, 0), second = waits(a, b, 0, 0), say("one of two, to mine", requeue(a, b, 1, 0, 0)), say("is awaited", b[0] >> 31), say("the other", requeue(a, b, 1, 0, 0)), say("no more", requeue(a, b, 1, 0, 0)), say("give it back", futex(b, UNLOCK_PI, 0, 0, 0, 0)), ended("the first", first), ended("the second", second), say("is free", b[0]);
    // Ends of waits.
    first = waits(a, b, 100, 0), ended("none came", first);
    NEED(!futex(b, LOCK_PI, 0, 0, 0, 0));
    first = waits(a, b, 100, 0), say("moved", requeue(a, b, 1, 0, 0)), ended("none gave it back", first), say("give it back", futex(b, UNLOCK_PI, 0, 0, 0, 0)), say("is free", b[0]);
    struct sigaction action = {.sa_handler = nothing};
    sigaction(SIGUSR1, &action, 0);
    NEED(!futex(b, LOCK_PI, 0, 0, 0, 0));
    first = waits(a, b, 300, 0), kill(first, SIGUSR1), usleep(30000), say("a signal before", requeue(a, b, 1, 0, 0)), kill(first, SIGUSR1), ended("and after", first), say("give it back", futex(b, UNLOCK_PI, 0, 0, 0, 0));
    NEED(!futex(b, LOCK_PI, 0, 0, 0, 0));
    first = waits(a, b, 0, 0), say("moved", requeue(a, b, 1, 0, 0)), kill(first, SIGKILL), ended("killed", first), say("give it back", futex(b, UNLOCK_PI, 0, 0, 0, 0)), say("is free", b[0]);
    // By other calls.
    first = waits(a, b, 200, 0), say("woken", futex(a, WAKE, 1, 0, 0, 0)), say("by bits", futex(a, WAKE_BITSET, 1, 0, 0, 1)), say("moved as others", futex(a, CMP_REQUEUE, 1, (void *)1, b, 0)), say("to another", requeue(a, c, 1, 0, 0)), say("and more", requeue(a, c, 1, 5, 0)), ended("it", first);
    first = fork();
    if (!first) {
        struct timespec end = {0, 200000000};
        _exit(futex(a, WAIT, 0, &end, 0, 0) ? errno : 0);
    }
    usleep(30000), say("a plain wait moved", requeue(a, b, 1, 5, 0)), ended("it", first);
    // The owner.
    b[0] = tid, say("nobody, to mine", requeue(a, b, 1, 1, 0)), b[0] = 0x3ffffff, first = waits(a, b, 150, 0), say("to one of nobody", requeue(a, b, 1, 1, 0)), ended("it", first), b[0] = 0;
    first = waits(a, b, 150, 0), b[0] = first, say("to its own", requeue(a, b, 1, 1, 0)), ended("it", first), b[0] = 0;
    first = fork();
    if (!first) NEED(!futex(b, LOCK_PI, 0, 0, 0, 0)), usleep(150000), _exit(0);
    usleep(30000), second = waits(a, b, 0, 0), say("to one that ends", requeue(a, b, 1, 1, 0)), ended("it", first), ended("the one that waits", second), say("says so", b[0]), b[0] = 0;
    // Threads of this process alone: keys differ.
    first = waits(a, b, 100, 0), say("private", futex(a, CMP_REQUEUE_PI | 128, 1, (void *)1, b, 0)), ended("it", first);
    // What waits plainly for the mutex is served by priority, then in order.
    NEED(!futex(b, LOCK_PI, 0, 0, 0, 0));
    first = waits(a, b, 0, 50), second = fork();
    if (!second) NEED(!futex(b, LOCK_PI, 0, 0, 0, 0)), _exit((b[0] & OWNED) == (unsigned)getpid() && !futex(b, UNLOCK_PI, 0, 0, 0, 0) ? 101 : 0);
    usleep(30000), say("behind one that waits", requeue(a, b, 1, 0, 0)), say("give it back", futex(b, UNLOCK_PI, 0, 0, 0, 0)), ended("the plain one", second), ended("the other", first), say("is free", b[0]);
}

// More waits than are looked at in one go, of two kinds that alternate.
static void *waits_in_a_crowd(void *kind) {
    return (void *)(futex(words, 9, 0, 0, 0, (long)kind) ? errno : 0L);
}
static void crowds(void) {
    enum { CROWD = 300 };
    pthread_t threads[CROWD];
    pthread_attr_t small;
    words = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_attr_init(&small), pthread_attr_setstacksize(&small, 16384);
    for (long i = 0; i < CROWD; i++) NEED(!pthread_create(threads + i, &small, waits_in_a_crowd, (void *)(1 + i % 2)));
    usleep(300000);
    say("those of one kind", futex(words, WAKE_BITSET, 100, 0, 0, 2)), say("the rest of them", futex(words, WAKE_BITSET, 100, 0, 0, 2)), say("no more", futex(words, WAKE_BITSET, 100, 0, 0, 2)), say("some moved", futex(words, REQUEUE, 10, (void *)70L, words + 1, 0)), say("woken there", futex(words + 1, WAKE, 20, 0, 0, 0)), say("moved back", futex(words + 1, CMP_REQUEUE, 0, (void *)5L, words, 0)), say("moved where they are", futex(words, CMP_REQUEUE, 3, (void *)7L, words, 0)), say("all there", futex(words + 1, WAKE, 1000, 0, 0, 0)), say("a hundred", futex(words, REQUEUE, 1, (void *)1000L, words + 2, 0)), say("all", futex(words + 2, WAKE, 0x7fffffff, 0, 0, 0));
    long wrong = 0;
    for (long i = 0; i < CROWD; i++) {
        void *result;
        pthread_join(threads[i], &result), wrong += result != 0;
    }
    say("wrong", wrong);
}

static void hints(void) {
    enum { GET = 1035, SET = 1036, GET_FILE = 1037, SET_FILE = 1038, NOTIFY = 1026 };
    int fd = make("h", "x"), other = open("h", O_RDONLY), ends[2];
    uint64_t hint = 77;
    NEED(!pipe(ends));
    say("get", fcntl(fd, GET, &hint)), say("is", hint), hint = 3, say("set", fcntl(fd, SET, &hint)), hint = 77, say("get", fcntl(other, GET, &hint)), say("is", hint), say("get of a file", fcntl(fd, GET_FILE, &hint)), hint = 2, say("set of a file", fcntl(fd, SET_FILE, &hint)), hint = 6, say("too much", fcntl(fd, SET, &hint)), hint = 5, say("the most", fcntl(fd, SET, &hint)), hint = 1UL << 40, say("far too much", fcntl(fd, SET, &hint)), say("unreadable", fcntl(fd, SET, 1)), say("unwritable", fcntl(fd, GET, 1)), hint = 77, say("of a pipe", fcntl(ends[0], GET, &hint)), say("is", hint), hint = 2, say("of one to read", fcntl(other, SET, &hint)), hint = 0, say("none", fcntl(fd, SET, &hint)), say("get", fcntl(fd, GET, &hint)), say("is", hint), say("of a path", fcntl(open("h", O_PATH), GET, &hint)), say("of a folder", fcntl(open(".", O_RDONLY), GET, &hint));
    close(other), other = open("h", O_RDONLY), hint = 4, fcntl(fd, SET, &hint), close(fd), hint = 9, say("kept", fcntl(other, GET, &hint)), say("is", hint);
}

// Lists of access, as programs give them: a version, and entries of tag, rights and id.
struct entry { uint16_t tag, rights; uint32_t id; };
enum { OWNER = 1, USER = 2, GROUP = 4, NAMED = 8, MASK = 16, OTHERS = 32, NOBODY = -1 };
static size_t list(char *to, const struct entry *entries, size_t count) {
    uint32_t version = 2;
    memcpy(to, &version, 4), memcpy(to + 4, entries, count * sizeof *entries);
    return 4 + count * sizeof *entries;
}
#define ACCESS "system.posix_acl_access"
#define DEFAULT "system.posix_acl_default"
static long set_list(const char *path, const char *name, const struct entry *entries, size_t count) {
    char bytes[1024];
    return setxattr(path, name, bytes, list(bytes, entries, count), 0);
}
#define SET_LIST(path, name, ...) set_list(path, name, (struct entry[]){__VA_ARGS__}, sizeof(struct entry[]){__VA_ARGS__} / sizeof(struct entry))
static void show_list(const char *what, const char *path, const char *name) {
    char bytes[1024];
    struct stat st;
    long got = getxattr(path, name, bytes, sizeof bytes);
    if (got < 0) say(what, -1);
    else {
        printf("%s:", what);
        for (long at = 4; at + 8 <= got; at += 8) {
            struct entry one;
            memcpy(&one, bytes + at, 8), printf(" %d:%o:%d", one.tag, one.rights, (int)one.id);
        }
        printf("\n");
    }
    say("mode", stat(path, &st) ? -1 : (long)(st.st_mode & 07777));
}
static void as(const char *name, uid_t uid, gid_t gid, const char *path) {
    pid_t child = fork();
    if (!child) {
        NEED(!setgroups(0, 0) && !setresgid(gid, gid, gid) && !setresuid(uid, uid, uid));
        int fd;
        printf("%s: %s", name, access(path, R_OK) ? error_name(errno) : "."), printf(" %s", access(path, W_OK) ? error_name(errno) : "."), printf(" %s", access(path, X_OK) ? error_name(errno) : "."), printf(" %s", (fd = open(path, O_RDONLY)) < 0 ? error_name(errno) : "."), printf(" %s\n", (fd = open(path, O_WRONLY)) < 0 ? error_name(errno) : "."), fflush(stdout);
        (void)fd;
        _exit(0);
    }
    waitpid(child, 0, 0);
}
static void lists_of_access(void) {
    static const struct entry common[] = {{OWNER, 6, NOBODY}, {USER, 7, 1000}, {USER, 2, 1001}, {GROUP, 4, NOBODY}, {NAMED, 3, 2000}, {MASK, 6, NOBODY}, {OTHERS, 1, NOBODY}};
    char bytes[1024], names[256];
    struct stat st;
    close(make("a", "x")), NEED(!mkdir("d", 0755) && !chmod(".", 0755));
    say("none", getxattr("a", ACCESS, bytes, sizeof bytes)), say("remove none", removexattr("a", ACCESS)), say("remove no default", removexattr("d", DEFAULT)), say("set", set_list("a", ACCESS, common, 7)), show_list("is", "a", ACCESS), say("length", getxattr("a", ACCESS, 0, 0)), say("too little room", getxattr("a", ACCESS, bytes, 10)), say("names", listxattr("a", names, sizeof names)), printf("%s\n", names);
    as("owner", 0, 5, "a"), as("named", 1000, 5, "a"), as("the other named", 1001, 5, "a"), as("group", 5, 0, "a"), as("named group", 5, 2000, "a"), as("others", 5, 5, "a");
    NEED(!chown("a", 1234, 4321));
    as("a named owner", 1234, 5, "a"), as("group", 5, 4321, "a");
    say("chmod", chmod("a", 0741)), show_list("is", "a", ACCESS), as("named", 1000, 5, "a"), say("chmod", chmod("a", 0601)), show_list("is", "a", ACCESS), as("named", 1000, 5, "a"), as("named group", 5, 2000, "a"), as("others", 5, 5, "a"), say("created", setxattr("a", ACCESS, bytes, list(bytes, common, 7), XATTR_CREATE)), say("replaced", setxattr("a", ACCESS, bytes, list(bytes, common, 7), XATTR_REPLACE));
    say("the mode alone", SET_LIST("a", ACCESS, {OWNER, 7, NOBODY}, {GROUP, 5, NOBODY}, {OTHERS, 0, NOBODY})), show_list("is", "a", ACCESS), say("names", listxattr("a", names, sizeof names)), say("with a mask", SET_LIST("a", ACCESS, {OWNER, 7, NOBODY}, {GROUP, 5, NOBODY}, {MASK, 1, NOBODY}, {OTHERS, 0, NOBODY})), show_list("is", "a", ACCESS);
    say("removed", removexattr("a", ACCESS)), show_list("is", "a", ACCESS), say("again", removexattr("a", ACCESS));
    say("of no bytes", setxattr("a", ACCESS, bytes, 0, 0)), say("of three", setxattr("a", ACCESS, "\2\0\0", 3, 0)), say("of a version", setxattr("a", ACCESS, "\2\0\0\0", 4, 0)), say("of another", setxattr("a", ACCESS, "\1\0\0\0", 4, 0)), say("of five", setxattr("a", ACCESS, "\2\0\0\0\1", 5, 0));
    say("without others", SET_LIST("a", ACCESS, {OWNER, 7, NOBODY}, {GROUP, 5, NOBODY})), say("without a mask", SET_LIST("a", ACCESS, {OWNER, 7, NOBODY}, {USER, 5, 1}, {GROUP, 5, NOBODY}, {OTHERS, 5, NOBODY})), say("out of order", SET_LIST("a", ACCESS, {GROUP, 5, NOBODY}, {OWNER, 7, NOBODY}, {OTHERS, 5, NOBODY})), say("two owners", SET_LIST("a", ACCESS, {OWNER, 7, NOBODY}, {OWNER, 7, NOBODY}, {GROUP, 5, NOBODY}, {OTHERS, 5, NOBODY})), say("odd rights", SET_LIST("a", ACCESS, {OWNER, 15, NOBODY}, {GROUP, 5, NOBODY}, {OTHERS, 5, NOBODY})), say("an odd tag", SET_LIST("a", ACCESS, {OWNER, 7, NOBODY}, {3, 5, NOBODY}, {OTHERS, 5, NOBODY})), say("an odd id", SET_LIST("a", ACCESS, {OWNER, 7, NOBODY}, {USER, 5, NOBODY}, {GROUP, 5, NOBODY}, {MASK, 5, NOBODY}, {OTHERS, 5, NOBODY}));
    say("the same user twice", SET_LIST("a", ACCESS, {OWNER, 7, NOBODY}, {USER, 5, 1}, {USER, 4, 1}, {GROUP, 5, NOBODY}, {MASK, 5, NOBODY}, {OTHERS, 5, NOBODY})), say("users out of order", SET_LIST("a", ACCESS, {OWNER, 7, NOBODY}, {USER, 5, 9}, {USER, 4, 1}, {GROUP, 5, NOBODY}, {MASK, 5, NOBODY}, {OTHERS, 5, NOBODY})), show_list("is", "a", ACCESS), say("an owner with an id", SET_LIST("a", ACCESS, {OWNER, 6, 5}, {GROUP, 5, 7}, {OTHERS, 5, 8})), show_list("is", "a", ACCESS);
    say("a default of a file", set_list("a", DEFAULT, common, 7)), say("got", getxattr("a", DEFAULT, bytes, sizeof bytes)), say("removed", removexattr("a", DEFAULT)), say("a default", set_list("d", DEFAULT, common, 7)), show_list("is", "d", DEFAULT), show_list("of access", "d", ACCESS), say("names", listxattr("d", names, sizeof names));
    umask(077), close(make("d/f", "x")), show_list("a file there", "d/f", ACCESS), NEED(!mkdir("d/e", 0777)), show_list("a folder there", "d/e", ACCESS), show_list("its default", "d/e", DEFAULT), NEED(!mkfifo("d/p", 0666)), show_list("a pipe there", "d/p", ACCESS), NEED(!symlink("x", "d/l")), say("of a link", lsetxattr("d/l", ACCESS, bytes, list(bytes, common, 7), 0)), say("got", lgetxattr("d/l", ACCESS, bytes, 100)), umask(022);
    say("no default any more", removexattr("d", DEFAULT)), close(make("d/g", "x")), show_list("a file there", "d/g", ACCESS), say("a plain default", SET_LIST("d", DEFAULT, {OWNER, 7, NOBODY}, {GROUP, 1, NOBODY}, {OTHERS, 0, NOBODY})), close(make("d/h", "x")), show_list("a file there", "d/h", ACCESS), say("an empty default", setxattr("d", DEFAULT, "\2\0\0\0", 4, 0)), show_list("is", "d", DEFAULT);
    NEED(!set_list("a", ACCESS, common, 7) && !chmod("a", 0755));
    NEED(!seteuid(1000));
    say("by another", set_list("a", ACCESS, common, 7)), say("got by another", ok(getxattr("a", ACCESS, bytes, sizeof bytes))), say("removed by another", removexattr("a", ACCESS)), say("a user's", setxattr("a", "user.x", "y", 1, 0));
    NEED(!seteuid(0));
    say("set-group-id", chmod("a", 02755) || chown("a", 1000, 77)), say("kept", SET_LIST("a", ACCESS, {OWNER, 7, NOBODY}, {GROUP, 7, NOBODY}, {OTHERS, 5, NOBODY})), chmod("a", 02777);
    NEED(!seteuid(1000));
    say("by its owner, of another group", SET_LIST("a", ACCESS, {OWNER, 7, NOBODY}, {GROUP, 7, NOBODY}, {OTHERS, 5, NOBODY})), say("mode", stat("a", &st) ? -1 : (long)(st.st_mode & 07777));
    NEED(!seteuid(0));
    say("a user's attribute", setxattr("a", "user.x", "value", 5, 0)), say("got", getxattr("a", "user.x", bytes, 100)), say("of a folder", setxattr("d", "user.x", "value", 5, 0)), say("names", listxattr("a", names, sizeof names)), say("removed", removexattr("a", "user.x")), say("again", removexattr("a", "user.x"));
}

static sigjmp_buf back;
static void on_fault(int signal) { (void)signal, siglongjmp(back, 1); }
static int peek(volatile char *at) { return sigsetjmp(back, 1) ? -2 : *at; }
static int poke(volatile char *at) { return sigsetjmp(back, 1) ? -2 : (*at = 1); }
static void only_written(void) {
    int fd = make("w", "abcd");
    struct sigaction action = {.sa_handler = on_fault, .sa_flags = SA_NODEFER};
    sigaction(SIGSEGV, &action, 0), sigaction(SIGBUS, &action, 0);
    char *at = mmap(0, PAGE, PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *shared = mmap(0, PAGE, PROT_WRITE, MAP_SHARED, fd, 0);
    say("load", peek(at)), say("store", poke(at)), say("load", peek(at)), say("load of a file", peek(shared)), say("store", poke(shared)), say("load", peek(shared));
    say("a call writes there", read(open("/dev/zero", O_RDONLY), at, 1)), say("a call reads there", write(fd, at, 1));
    char *other = mmap(0, PAGE, PROT_WRITE, MAP_PRIVATE, fd, 0), *changed = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *new = mmap(0, 4 * PAGE, PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    say("load of a copy", peek(other)), say("store", poke(other)), say("load", peek(other)), poke(changed), mprotect(changed, PAGE, PROT_WRITE), say("load what was protected", peek(changed)), say("store", poke(changed)), mprotect(changed, PAGE, PROT_NONE), say("not at all", peek(changed)), mprotect(changed, PAGE, PROT_WRITE), say("again", peek(changed)), say("a call reads what wasn't touched", write(fd, new, 1)), say("a call reads more", write(fd, new + PAGE, 2 * PAGE));
    pid_t child = fork();
    if (!child) printf("a child's: load %d\n", peek(at)), fflush(stdout), _exit(0);
    waitpid(child, 0, 0);
}

static void barriers(void) {
    static const struct { const char *name; int command, flags; } asks[] = {{"what there is", 0, 0}, {"global", 1, 0}, {"expedited before", 2, 0}, {"register", 4, 0}, {"expedited", 2, 0}, {"private before", 8, 0}, {"register", 16, 0}, {"private", 8, 0}, {"core before", 32, 0}, {"register", 64, 0}, {"core", 32, 0}, {"rseq before", 128, 0}, {"register", 256, 0}, {"rseq", 128, 0}, {"rseq of a CPU", 128, 1}, {"of a CPU", 8, 1}, {"registrations", 512, 0}, {"unknown", 1024, 0}, {"a flag", 0, 2}, {"two", 3, 0}};
    for (size_t i = 0; i < sizeof asks / sizeof *asks; i++) say(asks[i].name, syscall(324, asks[i].command, asks[i].flags, 0));
    say("rseq of CPU 0", syscall(324, 128, 1, 0)), say("of CPU 7000", syscall(324, 128, 1, 7000)), say("of CPU -1", syscall(324, 128, 1, -1));
}

struct how { uint64_t flags, mode, resolve; };
static void cached(void) {
    NEED(!mkdir("c", 0755));
    close(make("c/f", "x"));
    static const struct { const char *path; int flags; } asks[] = {{"c/f", O_RDONLY}, {"c/none", O_RDONLY}, {"c/none", O_RDONLY}, {"c", O_RDONLY | O_DIRECTORY}, {"c/f", O_RDWR}, {"c/f", O_RDWR | O_CREAT}, {"c/f", O_RDWR | O_TRUNC}, {"c", O_RDWR | O_TMPFILE}, {"c/../c/f", O_RDONLY}, {"c/f", O_PATH}, {"/proc/self/stat", O_RDONLY}, {"/proc/self/stat", O_RDONLY}, {"/dev/null", O_RDWR}};
    for (size_t i = 0; i < sizeof asks / sizeof *asks; i++) {
        struct how how = {asks[i].flags, asks[i].flags & (O_CREAT | O_TMPFILE) & ~O_DIRECTORY ? 0600 : 0, 32};
        say(asks[i].path, ok(syscall(437, AT_FDCWD, asks[i].path, &how, sizeof how)));
    }
}

// Calls on processes that have ended, groups of which some have, and descriptors of processes.
static void ended_processes(void) {
    siginfo_t info = {0};
    int fds[2], status;
    pid_t living = fork();
    if (!living) pause(), _exit(0);
    pid_t dead = fork();
    if (!dead) _exit(0);
    siginfo_t seen;
    waitid(P_PID, dead, &seen, WEXITED | WNOWAIT), fds[0] = syscall(434, living, 0), fds[1] = syscall(434, dead, 0);
    for (int of = 0; of < 3; of++) {
        if (of == 2) NEED(waitpid(dead, &status, 0) == dead);
        static const char *const kinds[] = {"living", "dead", "waited for"};
        static const int numbers[] = {0, SIGURG, 64, 65, -1, 0x7fffffff};
        for (size_t n = 0; n < sizeof numbers / sizeof *numbers; n++) {
            char name[64];
            snprintf(name, sizeof name, "%s, %d", kinds[of], numbers[n]);
            say(name, syscall(424, fds[of > 0], numbers[n], 0, 0)), info.si_signo = numbers[n], info.si_code = SI_QUEUE, say(" with this", syscall(424, fds[of > 0], numbers[n], &info, 0)), info.si_signo = SIGUSR2, say(" with another", syscall(424, fds[of > 0], numbers[n], &info, 0)), info.si_signo = numbers[n], info.si_code = SI_USER, say(" of another kind", syscall(424, fds[of > 0], numbers[n], &info, 0));
        }
        say(" unreadable", syscall(424, fds[of > 0], SIGURG, 8, 0)), say(" a flag", syscall(424, fds[of > 0], SIGURG, 0, 1));
    }
    say("of no descriptor", syscall(424, 99, SIGURG, 0, 0)), say("of another kind", syscall(424, 1, SIGURG, 0, 0)), say("of an unknown signal", syscall(424, 1, 99, 0, 0));
    kill(living, SIGKILL), waitpid(living, &status, 0);
    // A group whose members have ended, and one with a member that hasn't.
    pid_t first = fork();
    if (!first) setpgid(0, 0), setpriority(PRIO_PROCESS, 0, 7), _exit(0);
    waitid(P_PID, first, &seen, WEXITED | WNOWAIT);
    say("of those that ended", syscall(SYS_getpriority, PRIO_PGRP, first)), say("make them nicer", setpriority(PRIO_PGRP, first, 9)), say("are", syscall(SYS_getpriority, PRIO_PGRP, first)), say("of the one", syscall(SYS_getpriority, PRIO_PROCESS, first)), say("the one nicer", setpriority(PRIO_PROCESS, first, 11)), say("is", syscall(SYS_getpriority, PRIO_PROCESS, first));
    pid_t second = fork();
    if (!second) setpgid(0, first), setpriority(PRIO_PROCESS, 0, 12), pause(), _exit(0);
    setpgid(second, first), usleep(50000);
    say("of both", syscall(SYS_getpriority, PRIO_PGRP, first)), kill(second, SIGKILL), waitpid(second, &status, 0), waitpid(first, &status, 0), say("of none", syscall(SYS_getpriority, PRIO_PGRP, first)), say("nicer", setpriority(PRIO_PGRP, first, 1));
    pid_t users = fork();
    if (!users) NEED(!setpriority(PRIO_PROCESS, 0, 5) && !setuid(7777)), _exit(0);
    waitid(P_PID, users, &seen, WEXITED | WNOWAIT), say("of a user whose processes ended", syscall(SYS_getpriority, PRIO_USER, 7777)), say("nicer", setpriority(PRIO_USER, 7777, 8)), say("are", syscall(SYS_getpriority, PRIO_USER, 7777)), waitpid(users, &status, 0), say("none", syscall(SYS_getpriority, PRIO_USER, 7777));
}

// Which error comes first where several would.
static void as_user(const char *name, const char *path) {
    pid_t child = fork();
    if (!child) {
        NEED(!setgroups(0, 0) && !setgid(1000) && !setuid(1000));
        printf("%s: access", name), printf(" %s", access(path, W_OK) ? error_name(errno) : "."), printf(" %s", access(path, R_OK | W_OK) ? error_name(errno) : "."), printf(" %s, open", access(path, X_OK | W_OK) ? error_name(errno) : "."), printf(" %s", open(path, O_WRONLY) < 0 ? error_name(errno) : "."), printf(" %s", open(path, O_RDONLY | O_TRUNC) < 0 ? error_name(errno) : "."), printf(" %s, truncate", open(path, O_RDWR | O_CREAT, 0600) < 0 ? error_name(errno) : "."), printf(" %s", truncate(path, 0) ? error_name(errno) : "."), printf(" %s\n", utimensat(AT_FDCWD, path, 0, 0) ? error_name(errno) : "."), fflush(stdout);
        _exit(0);
    }
    waitpid(child, 0, 0);
}
static void first_errors(void) {
    NEED(!chmod(".", 0755) && !mkdir("s", 0755) && !mkdir("b", 0755) && !mount("none", "s", "tmpfs", 0, 0) && !chmod("s", 0777));
    close(make("s/open", "x")), close(make("s/shut", "x")), NEED(!mkdir("s/folder", 0755) && !mkfifo("s/pipe", 0600) && !mknod("s/device", S_IFCHR | 0600, 0x103) && !chmod("s/open", 0666) && !chmod("s/shut", 0600) && !mount("s", "b", 0, MS_BIND, 0) && !mount(0, "b", 0, MS_REMOUNT | MS_BIND | MS_RDONLY, 0));
    static const char *const names[] = {"open", "shut", "folder", "device"};
    for (int pass = 0; pass < 2; pass++) {
        if (pass) closes("s");
        for (int in = pass ? 0 : 1; in < 2; in++)
            for (size_t i = 0; i < 4; i++) {
                char path[64], name[64];
                snprintf(path, sizeof path, "%s/%s", in ? "b" : "s", names[i]), snprintf(name, sizeof name, "%s in %s", names[i], !pass ? "a closed place" : in ? "a closed place of one" : "a closed system"), as_user(name, path);
            }
    }
    NEED(!umount("b") && !umount("s"));
}

static void moved_packets(void) {
    int from[2], to[2], plain[2];
    char buffer[64];
    NEED(!pipe2(from, O_DIRECT | O_NONBLOCK) && !pipe2(to, O_DIRECT | O_NONBLOCK) && !pipe2(plain, O_NONBLOCK));
    write(from[1], "abc", 3), write(from[1], "defgh", 5), say("to a pipe of bytes", splice(from[0], 0, plain[1], 0, 100, 0)), say("read", read(plain[0], buffer, 64)), say("and more", read(plain[0], buffer, 64));
    write(from[1], "abc", 3), write(from[1], "defgh", 5), say("to one of packets", splice(from[0], 0, to[1], 0, 100, 0)), say("read", read(to[0], buffer, 64)), say("and more", read(to[0], buffer, 64));
    write(from[1], "abcdef", 6), write(from[1], "gh", 2), say("some of a packet", splice(from[0], 0, to[1], 0, 4, 0)), say("read", read(to[0], buffer, 64)), say("the rest", read(from[0], buffer, 64)), say("the next", read(from[0], buffer, 64));
    write(plain[1], "ab", 2), write(plain[1], "cd", 2), say("bytes to packets", splice(plain[0], 0, to[1], 0, 100, 0)), write(to[1], "ef", 2), say("read", read(to[0], buffer, 64)), say("and more", read(to[0], buffer, 64));
    write(from[1], "abc", 3), write(from[1], "defgh", 5), say("tee", tee(from[0], plain[1], 100, 0)), say("read", read(plain[0], buffer, 64)), say("and more", read(plain[0], buffer, 64)), say("is there", read(from[0], buffer, 64)), say("and this", read(from[0], buffer, 64));
    int fd = make("p", "0123456789");
    say("of a file", splice(fd, &(long){0}, to[1], 0, 4, 0)), say("again", splice(fd, &(long){4}, to[1], 0, 4, 0)), say("read", read(to[0], buffer, 64)), say("and more", read(to[0], buffer, 64));
    write(from[1], "abc", 3), write(from[1], "defgh", 5), say("to a file", splice(from[0], 0, fd, &(long){0}, 100, 0)), say("more", read(from[0], buffer, 64)), say("vmsplice", vmsplice(to[1], &(struct iovec){buffer, 3}, 1, 0)), say("again", vmsplice(to[1], &(struct iovec){buffer, 4}, 1, 0)), say("read", read(to[0], buffer, 64)), say("and more", read(to[0], buffer, 64));
    write(from[1], "abc", 3), write(from[1], "defgh", 5), write(plain[1], "xy", 2), say("behind bytes", splice(from[0], 0, plain[1], 0, 100, 0)), write(plain[1], "z", 1), say("read", read(plain[0], buffer, 64)), say("and more", read(plain[0], buffer, 64)), say("and more", read(plain[0], buffer, 64)), say("and more", read(plain[0], buffer, 64));
}

// Urgent bytes, and how many it takes to wake a reader.
static int ready(int fd) {
    struct pollfd one = {fd, POLLIN | POLLPRI | POLLRDBAND | POLLOUT, 0};
    return poll(&one, 1, 0) < 0 ? -1 : one.revents;
}
static int urgent_heard;
static void on_urgent(int signal) { (void)signal, urgent_heard++; }
static void connected(int ends[2], int family) {
    if (family == AF_UNIX) {
        NEED(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
        return;
    }
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof name;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    NEED(!bind(listener, (void *)&name, len) && !listen(listener, 1) && !getsockname(listener, (void *)&name, &len));
    NEED((ends[0] = socket(AF_INET, SOCK_STREAM, 0)) >= 0 && !connect(ends[0], (void *)&name, len) && (ends[1] = accept(listener, 0, 0)) >= 0), close(listener);
    int on = 1;
    setsockopt(ends[0], IPPROTO_TCP, 1, &on, sizeof on);
}
static void text_of(const char *name, int fd, long most, int flags) {
    char buffer[64] = "";
    long got = recv(fd, buffer, most, flags | MSG_DONTWAIT);
    if (got < 0) say(name, -1);
    else printf("%s: %ld %.*s\n", name, got, (int)got, buffer), fflush(stdout);
}
static long mark(int fd) {
    int at = 7;
    return ioctl(fd, 0x8905 /* SIOCATMARK */, &at) ? -1 : at;
}
static void urgent_of(int family) {
    int ends[2], on = 1, n = 0;
    char many[64];
    struct msghdr message = {.msg_iov = &(struct iovec){many, 64}, .msg_iovlen = 1};
    connected(ends, family), signal(SIGURG, on_urgent), urgent_heard = 0, fcntl(ends[1], F_SETOWN, getpid());
    say("no urgent byte", recv(ends[1], many, 1, MSG_OOB | MSG_DONTWAIT)), say("the mark", mark(ends[1])), say("send nothing", send(ends[0], "", 0, MSG_OOB)), say("send", send(ends[0], "abc", 3, 0)), say("send an urgent one", send(ends[0], "X", 1, MSG_OOB)), say("and more", send(ends[0], "def", 3, 0)), usleep(20000), say("heard", urgent_heard), say("ready", ready(ends[1])), say("the mark", mark(ends[1])), say("bytes", ioctl(ends[1], FIONREAD, &n) ? -1 : n);
    text_of("up to it", ends[1], 60, 0), say("the mark", mark(ends[1])), say("ready", ready(ends[1])), say("bytes", ioctl(ends[1], FIONREAD, &n) ? -1 : n), text_of("peeked", ends[1], 1, MSG_OOB | MSG_PEEK), text_of("it", ends[1], 10, MSG_OOB), text_of("again", ends[1], 10, MSG_OOB), say("ready", ready(ends[1])), say("the mark", mark(ends[1])), family == AF_UNIX ? (void)(recv(ends[1], many, 60, MSG_DONTWAIT), recv(ends[1], many, 60, MSG_DONTWAIT)) : text_of("behind it", ends[1], 60, 0), say("the mark", mark(ends[1])), text_of("no more", ends[1], 60, 0), say("ready", ready(ends[1]));
    say("the last of three", send(ends[0], "ghi", 3, MSG_OOB)), usleep(20000), text_of("before it", ends[1], 60, 0), text_of("none read it", ends[1], 60, 0), text_of("it", ends[1], 10, MSG_OOB), say("two", send(ends[0], "J", 1, MSG_OOB)), say("at once", send(ends[0], "K", 1, MSG_OOB)), usleep(20000), say("heard", urgent_heard), text_of("the second", ends[1], 1, MSG_OOB), text_of("the first", ends[1], 60, 0), text_of("no more", ends[1], 60, 0);
    say("one that nobody takes", send(ends[0], "L", 1, MSG_OOB)), send(ends[0], "mno", 3, 0), usleep(20000), text_of("passed by", ends[1], 60, 0), text_of("is it there", ends[1], 1, MSG_OOB), text_of("more", ends[1], 60, 0);
    say("inline", setsockopt(ends[1], SOL_SOCKET, SO_OOBINLINE, &on, sizeof on)), send(ends[0], "pq", 2, 0), send(ends[0], "R", 1, MSG_OOB), send(ends[0], "st", 2, 0), usleep(20000), say("ready", ready(ends[1])), text_of("by itself", ends[1], 1, MSG_OOB), text_of("up to it", ends[1], 60, 0), say("the mark", mark(ends[1])), text_of("with it", ends[1], 60, 0), say("the mark", mark(ends[1])), on = 0, setsockopt(ends[1], SOL_SOCKET, SO_OOBINLINE, &on, sizeof on);
    send(ends[0], "uv", 2, 0), send(ends[0], "W", 1, MSG_OOB), usleep(20000), text_of("peeked", ends[1], 60, MSG_PEEK), text_of("one byte", ends[1], 1, 0), say("the mark", mark(ends[1])), text_of("the rest", ends[1], 60, 0), say("the mark", mark(ends[1])), say("by a message", recvmsg(ends[1], &message, MSG_OOB | MSG_DONTWAIT)), say("says", message.msg_flags), say("to one that is shut", shutdown(ends[1], SHUT_RD)), say("sent", send(ends[0], "Y", 1, MSG_OOB | MSG_NOSIGNAL));
    close(ends[0]), text_of("after the end", ends[1], 1, MSG_OOB), say("the mark", mark(ends[1])), close(ends[1]);
}
static void urgent(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), ends[2], n;
    say("unconnected", recv(fd, &n, 1, MSG_OOB)), say("the mark", mark(fd)), say("send", send(fd, "x", 1, MSG_OOB | MSG_NOSIGNAL)), fd = socket(AF_INET, SOCK_DGRAM, 0), say("of datagrams", recv(fd, &n, 1, MSG_OOB | MSG_DONTWAIT)), say("the mark", mark(fd)), fd = socket(AF_UNIX, SOCK_STREAM, 0), say("local", recv(fd, &n, 1, MSG_OOB | MSG_DONTWAIT)), say("the mark", mark(fd)), fd = socket(AF_UNIX, SOCK_DGRAM, 0), say("local datagrams", recv(fd, &n, 1, MSG_OOB | MSG_DONTWAIT)), say("the mark", mark(fd)), NEED(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends)), say("packets", send(ends[0], "x", 1, MSG_OOB)), say("received", recv(ends[1], &n, 1, MSG_OOB | MSG_DONTWAIT)), NEED(!socketpair(AF_UNIX, SOCK_DGRAM, 0, ends)), say("datagrams", send(ends[0], "x", 1, MSG_OOB)), say("of a pipe", pipe(ends) ? -1 : mark(ends[0]));
    urgent_of(AF_INET);
}
static void urgent_here(void) { urgent_of(AF_UNIX); }
static void low_water_of(int family) {
    int ends[2], low = 5, n;
    socklen_t len = sizeof n;
    struct timeval soon = {0, 50000};
    connected(ends, family);
    say("set", setsockopt(ends[1], SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low)), say("get", getsockopt(ends[1], SOL_SOCKET, SO_RCVLOWAT, &n, &len)), say("is", n), send(ends[0], "abc", 3, 0), usleep(20000), say("ready", ready(ends[1]) & POLLIN), text_of("at once", ends[1], 10, 0), setsockopt(ends[1], SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon), send(ends[0], "abc", 3, 0), say("waits for more", recv(ends[1], &n, 2, 0)), say("all of it", recv(ends[1], (char[8]){0}, 8, 0)), send(ends[0], "abcde", 5, 0), usleep(20000), say("ready", ready(ends[1]) & POLLIN), send(ends[0], "fgh", 3, 0), usleep(20000), text_of("all", ends[1], 20, 0), send(ends[0], "i", 1, 0), close(ends[0]), usleep(20000), say("the end is ready", ready(ends[1]) & POLLIN), say("none", (low = 0, setsockopt(ends[1], SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low))), getsockopt(ends[1], SOL_SOCKET, SO_RCVLOWAT, &n, &len), say("is", n);
}
static void low_water(void) {
    int fd = socket(AF_INET, SOCK_DGRAM, 0), low = 100;
    low_water_of(AF_INET), low_water_of(AF_UNIX);
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof name;
    NEED(!bind(fd, (void *)&name, len) && !getsockname(fd, (void *)&name, &len)), say("of datagrams", setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low)), sendto(fd, "x", 1, 0, (void *)&name, len), usleep(20000), say("ready", ready(fd) & POLLIN);
}

// Control messages that name interfaces.
static void from_interfaces(void) {
    struct ifreq loopback = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    ioctl(socket(AF_INET, SOCK_DGRAM, 0), SIOCSIFFLAGS, &loopback);
    for (int six = 0; six < 2; six++) {
        int fd = socket(six ? AF_INET6 : AF_INET, SOCK_DGRAM, 0);
        struct sockaddr_in6 name6 = {.sin6_family = AF_INET6, .sin6_addr = {{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}}}};
        struct sockaddr_in name4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        void *name = six ? (void *)&name6 : (void *)&name4;
        socklen_t len = six ? sizeof name6 : sizeof name4;
        NEED(!bind(fd, name, len) && !getsockname(fd, name, &len));
        for (int with = 0; with < 2; with++)
            for (int index = -1; index < 4; index++) {
                char control[64] = {0}, text[64];
                struct msghdr message = {.msg_name = name, .msg_namelen = len, .msg_iov = &(struct iovec){"x", 1}, .msg_iovlen = 1, .msg_control = control};
                struct cmsghdr *head = (void *)control;
                head->cmsg_level = six ? IPPROTO_IPV6 : IPPROTO_IP, head->cmsg_type = six ? 50 : 8, head->cmsg_len = sizeof *head + (six ? 20 : 12), message.msg_controllen = (head->cmsg_len + 7) & ~7UL;
                if (six) memcpy(control + sizeof *head + 16, &index, 4);
                else memcpy(control + sizeof *head, &index, 4);
                if (with && six) control[sizeof *head + 15] = 1;
                if (with && !six) memcpy(control + sizeof *head + 4, &name4.sin_addr, 4);
                snprintf(text, sizeof text, "version %d, %s, interface %d", six ? 6 : 4, with ? "an address" : "no address", index), say(text, sendmsg(fd, &message, MSG_DONTWAIT));
            }
        for (int index = -1; six && index < 4; index++) {
            char text[64];
            name6.sin6_scope_id = index, snprintf(text, sizeof text, "to a scope of %d", index), say(text, sendto(fd, "x", 1, 0, name, len));
        }
    }
}

struct port { unsigned short family, pad; unsigned port, groups; };
static void bound_again(void) {
    int fd = socket(AF_NETLINK, SOCK_RAW, 0), other = socket(AF_NETLINK, SOCK_RAW, 0);
    struct port name = {.family = AF_NETLINK, .groups = 1};
    socklen_t len = sizeof name;
    say("a group", bind(fd, (void *)&name, len)), getsockname(fd, (void *)&name, &len), say("is", name.groups), name.groups = 0x11, say("more", bind(fd, (void *)&name, len)), name.groups = 0, getsockname(fd, (void *)&name, &len), say("are", name.groups), name.groups = 0, say("none", bind(fd, (void *)&name, len)), getsockname(fd, (void *)&name, &len), say("are", name.groups), name.port = 0, name.groups = 1, say("of port 0", bind(fd, (void *)&name, len)), name.port = 4711, say("of another port", bind(fd, (void *)&name, len)), name.port = getpid(), say("the second's", bind(other, (void *)&name, len)), name.port = 0, name.groups = 0x80000000, say("the last group", bind(other, (void *)&name, len)), name.groups = 0, getsockname(other, (void *)&name, &len), say("are", name.groups);
    int group = 5, left = 0;
    say("joined", setsockopt(other, 270, 1, &group, sizeof group)), getsockname(other, (void *)&name, &len), say("are", name.groups), group = 40, say("a high one", setsockopt(other, 270, 1, &group, sizeof group)), group = 0, say("none", setsockopt(other, 270, 1, &group, sizeof group)), group = 1000, say("too high", setsockopt(other, 270, 1, &group, sizeof group)), group = 5, say("left", setsockopt(other, 270, 2, &group, sizeof group)), getsockname(other, (void *)&name, &len), say("are", name.groups), (void)left;
    NEED(!setuid(1000));
    fd = socket(AF_NETLINK, SOCK_RAW, 0), name.port = 0, name.groups = 1, say("by a user", bind(fd, (void *)&name, len)), group = 2, say("joined", setsockopt(fd, 270, 1, &group, sizeof group));
}

static void whole(const char *path, const char *drop) {
    char buffer[4096], *line;
    int fd = open(path, O_RDONLY);
    long got = fd < 0 ? -1 : read(fd, buffer, sizeof buffer - 1);
    close(fd);
    if (got < 0) {
        say(path, -1);
        return;
    }
    buffer[got] = 0;
    for (line = strtok(buffer, "\n"); line; line = strtok(0, "\n")) {
        if (drop && strncmp(line, drop, strlen(drop))) continue;
        // The process's number and the file's device and node are replaced.
        char shown[256], *colons;
        unsigned major, minor, node;
        int number, taken;
        snprintf(shown, sizeof shown, "%s", line);
        if (sscanf(shown, "lock:\t%d: ", &number) == 1 || sscanf(shown, "%d: ", &number) == 1)
            for (char *word = shown; *word; word++)
                if (sscanf(word, "%x:%x:%u %n", &major, &minor, &node, &taken) == 3 && word > shown && word[-1] == ' ') {
                    memmove(word + 4, word + taken - 1, strlen(word + taken - 1) + 1), memcpy(word, "NODE", 4);
                    colons = word;
                    while (colons > shown && colons[-2] != ' ') colons--;
                    if (atoi(colons - 1) > 0) colons[-1] = atoi(colons - 1) == getpid() ? 'P' : 'C', memmove(colons, word - 1, strlen(word - 1) + 1);
                    break;
                }
        printf(" %s\n", shown), fflush(stdout);
    }
}
static void shown_locks(void) {
    int fd = make("l", "0123456789"), other = open("l", O_RDWR);
    char info[64];
    struct flock lock = {F_WRLCK, SEEK_SET, 2, 3, 0};
    NEED(!fcntl(fd, F_SETLK, &lock));
    lock = (struct flock){F_RDLCK, SEEK_SET, 7, 0, 0}, NEED(!fcntl(fd, F_SETLK, &lock));
    lock = (struct flock){F_RDLCK, SEEK_SET, 0, 1, 0}, NEED(!fcntl(other, 37 /* F_OFD_SETLK */, &lock));
    NEED(!flock(fd, LOCK_SH) && !flock(other, LOCK_SH));
    printf("locks\n"), whole("/proc/locks", 0), snprintf(info, sizeof info, "/proc/self/fdinfo/%d", fd), printf("of the first\n"), whole(info, "lock:"), snprintf(info, sizeof info, "/proc/self/fdinfo/%d", other), printf("of the second\n"), whole(info, "lock:");
    pid_t child = fork();
    if (!child) {
        printf("of a child\n"), whole(info, "lock:"), fflush(stdout);
        lock = (struct flock){F_WRLCK, SEEK_SET, 3, 1, 0}, fcntl(fd, F_SETLKW, &lock), _exit(0);
    }
    usleep(100000), printf("with one that waits\n"), whole("/proc/locks", 0), kill(child, SIGKILL), waitpid(child, 0, 0);
    lock = (struct flock){F_UNLCK, SEEK_SET, 0, 0, 0}, NEED(!fcntl(fd, F_SETLK, &lock)), close(other), printf("less\n"), whole("/proc/locks", 0), flock(fd, LOCK_UN), printf("none\n"), whole("/proc/locks", 0), close(fd);
    fd = open("l", O_RDONLY), fcntl(fd, F_SETLEASE, F_RDLCK), printf("a lease\n"), whole("/proc/locks", 0), snprintf(info, sizeof info, "/proc/self/fdinfo/%d", fd), whole(info, "lock:");
}

static void in_a_folder(void) {
    NEED(!system("rm -rf /details; mkdir /details") && !chdir("/details"));
    alarm(60);
}

int main(void) {
    static const struct part parts[] = {{"mounts of mappings", mapped_mounts}, {"waits that are moved", moved_waits}, {"crowds of waits", crowds}, {"hints", hints}, {"lists of access", lists_of_access}, {"only written", only_written}, {"barriers", barriers}, {"cached", cached}, {"ended processes", ended_processes}, {"first errors", first_errors}, {"moved packets", moved_packets}, {"urgent", urgent}, {"urgent here", urgent_here}, {"low water", low_water}, {"from interfaces", from_interfaces}, {"bound again", bound_again}, {"shown locks", shown_locks}};
    umask(022);
    run_parts(parts, sizeof parts / sizeof *parts, in_a_folder);
    return 0;
}
