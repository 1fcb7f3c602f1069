// Runs a program as the first process would, and says what memory is in use after it that was not before.
//
// `leftover PROGRAM WORD ...` ends with the program's exit code (128 and the number of the signal that killed it), or with 99 after
// lines `LEFT name: before, after`. Before and after, caches are dropped. After, all other processes are killed, and what the program
// left behind by name is removed: files in memory, mounts, System V segments; with `-k` that stays, and so it is found. Our kernel alone.
//
// What is compared is in /proc/inuse, with ext4 unmounted. Pages count exactly, by kinds: where they may be in memory or on swap, as one
// kind, less what files in memory have by the count of their file systems. The heap counts by the bytes of blocks that are allocated; what
// is free in it is not in use, and a little more may be (docs/decisions/kernel-memory.md). A process that is being taken apart, or a write under way,
// may last: a difference counts when it stays for seconds.
#include "check.h"
#include <ftw.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/sendfile.h>
#include <sys/shm.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <termios.h>

enum { MOST = 40, DISKS = 8, LEAK = 99 };
// Bytes of the heap that may be more, in pieces of up to 2 KiB and in larger ones.
enum { SMALL_SLACK = 8 << 10, LARGE_SLACK = 256 << 10 };
static const long TMPFS = 0x01021994;

struct count {
    char name[24];
    long value;
};
struct counts {
    int count;
    struct count all[MOST];
};

static char text[1 << 16];

static void read_text(const char *path) {
    int fd = open(path, O_RDONLY);
    size_t length = 0;
    ssize_t n;
    while (fd >= 0 && length < sizeof text - 1 && (n = read(fd, text + length, sizeof text - 1 - length)) > 0) length += n;
    if (fd >= 0) close(fd);
    text[length] = 0;
}

static void write_text(const char *path, const char *what) {
    int fd = open(path, O_WRONLY);
    if (fd < 0 || write(fd, what, strlen(what)) < 0) dprintf(2, "leftover: %s: %s\n", path, strerror(errno));
    close(fd);
}

// Mounted file systems, and pages that those in memory have.
static int mounts(long *pages) {
    int count = 0;
    read_text("/proc/mounts");
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1, count++) {
        char path[512], type[32];
        struct statfs fs;
        *end = 0;
        if (sscanf(line, "%*s %511s %31s", path, type) != 2 || statfs(path, &fs) || fs.f_type != TMPFS) continue;
        *pages += fs.f_blocks - fs.f_bfree;
    }
    return count;
}

static struct count *named(struct counts *counts, const char *name) {
    for (int i = 0; i < counts->count; i++)
        if (!strcmp(counts->all[i].name, name)) return &counts->all[i];
    return 0;
}

// What is in use now. Kinds between which page-out moves pages become one.
static void look(struct counts *now) {
    long files = 0;
    write_text("/proc/sys/vm/drop_caches", "3");
    mounts(&files);
    read_text("/proc/inuse");
    now->count = 0;
    for (char *line = text, *end; (end = strchr(line, '\n')) && now->count < MOST; line = end + 1) {
        struct count *to = &now->all[now->count];
        if (sscanf(line, "%23s %ld", to->name, &to->value) == 2) now->count++;
    }
    struct count *anon = named(now, "anon"), *shmem = named(now, "shmem"), *swapped = named(now, "swapped");
    if (!anon || !shmem || !swapped) return;
    snprintf(anon->name, sizeof anon->name, "anon+shmem+swap-files");
    anon->value += shmem->value + swapped->value - files;
    snprintf(shmem->name, sizeof shmem->name, "(shmem)");
    snprintf(swapped->name, sizeof swapped->name, "(swapped)");
    named(now, "free")->name[0] = '(';
    // It only grows.
    named(now, "heap_kept")->name[0] = '(';
}

static int starts(const char *name, const char *with) {
    return !strncmp(name, with, strlen(with));
}

// How many kinds there are more of; told if `out` isn't negative.
static int compare(const struct counts *before, const struct counts *now, int out) {
    int more = before->count != now->count || !now->count;
    long small = 0;
    for (int i = 0; i < now->count; i++) {
        const struct count *was = &before->all[i], *is = &now->all[i];
        long grown = is->value - was->value;
        if (starts(is->name, "heap_large")) more += grown > LARGE_SLACK;
        else if (starts(is->name, "heap_")) small += grown;
        else more += !starts(is->name, "(") && grown > 0;
        if (out >= 0 && grown) dprintf(out, "LEFT %s: %ld, %ld\n", is->name, was->value, is->value);
    }
    return more + (small > SMALL_SLACK);
}

// Disks as they were mounted at first.
static struct disk {
    char source[64], path[256], options[64];
} disks[DISKS];
static int disk_count;

static void find_disks(void) {
    read_text("/proc/mounts");
    for (char *line = text, *end; (end = strchr(line, '\n')) && disk_count < DISKS; line = end + 1) {
        struct disk *disk = &disks[disk_count];
        char type[32];
        if (sscanf(line, "%63s %255s %31s %63s", disk->source, disk->path, type, disk->options) == 4)
            disk_count += !strcmp(type, "ext4");
    }
}

// The program may have unmounted them, or mounted them elsewhere, which is gone.
static void unmount_disks(void) {
    for (int i = disk_count; i-- > 0;)
        if (umount(disks[i].path) && errno != EINVAL) dprintf(1, "LEFT mount %s: %s\n", disks[i].path, strerror(errno));
}

static void mount_disks(void) {
    for (int i = 0; i < disk_count; i++)
        if (mount(disks[i].source, disks[i].path, "ext4", starts(disks[i].options, "ro") ? MS_RDONLY : 0, 0))
            dprintf(1, "LEFT can't mount %s: %s\n", disks[i].source, strerror(errno));
}

// Waits until what is in use stays the same.
static void settle(struct counts *now) {
    static struct counts last;
    for (int i = 0; i < 50; i++) {
        look(now);
        if (!memcmp(&last, now, sizeof last)) return;
        last = *now;
        usleep(20000);
    }
}

static ino_t newest;

static int remove_new(const char *path, const struct stat *stat, int type, struct FTW *at) {
    (void)at;
    if (stat->st_ino <= newest) return 0;
    if (type == FTW_DP ? rmdir(path) : unlink(path)) dprintf(2, "leftover: %s: %s\n", path, strerror(errno));
    return 0;
}

// Removes what there is by name and was not before.
static void remove_names(int mounts_before) {
    long pages;
    for (int tries = 0; mounts(&pages) > mounts_before && tries < 100; tries++) {
        // The last line names what was mounted last; mounts() has cut the lines apart.
        char *last = text, path[512];
        for (char *line = text; *line; line += strlen(line) + 1) last = line;
        if (sscanf(last, "%*s %511s", path) == 1) umount2(path, MNT_DETACH);
    }
    const char *folders[] = {"/", "/tmp", "/dev/shm", "/run", "/var"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        struct statfs fs;
        if (!statfs(folders[i], &fs) && fs.f_type == TMPFS) nftw(folders[i], remove_new, 50, FTW_PHYS | FTW_DEPTH | FTW_MOUNT);
    }
    struct shmid_ds segment;
    int highest = shmctl(0, SHM_INFO, &segment);
    for (int i = 0; i <= highest; i++) {
        int id = shmctl(i, SHM_STAT, &segment);
        if (id >= 0) shmctl(id, IPC_RMID, 0);
    }
}

static void *do_nothing(void *unused) {
    return unused;
}

static void warm_sockets(void) {
    int pair[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    send_files(pair[0], &pair[1], 1, "", 1, 0);
    struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "\0leftover"};
    bind(socket(AF_UNIX, SOCK_DGRAM, 0), (struct sockaddr *)&name, sizeof name);
    struct sockaddr_in port = {.sin_family = AF_INET};
    listen(socket(AF_INET, SOCK_STREAM, 0), 1);
    bind(socket(AF_INET, SOCK_DGRAM, 0), (struct sockaddr *)&port, sizeof port);
}

static void warm_files(void) {
    int fd = open("/tmp/leftover", O_RDWR | O_CREAT, 0600), pipes[2], pair[2];
    ftruncate(fd, 2 << 20);
    char *file = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    memset(file, 1, 1 << 20);
    pipe(pipes);
    loff_t hole = 1 << 20;
    splice(fd, &hole, pipes[1], 0, PAGE, 0);
    pread(fd, pair, sizeof pair, hole);
    off_t from = hole;
    sendfile(pipes[1], fd, &from, PAGE);
    struct flock lock = {.l_type = F_WRLCK};
    fcntl(fd, F_SETLK, &lock);
    memfd_create("leftover", 0);
    epoll_create1(0);
}

// Memory and processes, on one CPU.
static void warm_cpu(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set)) return;
    char *at = mmap(0, 64 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(at, 1, 1 << 20);
    for (int i = 0; i < 4; i++) {
        if (fork() == 0) {
            at[0] = 2;
            usleep(1000);
            _exit(0);
        }
    }
    pthread_t thread;
    pthread_create(&thread, 0, do_nothing, 0);
    pthread_join(thread, 0);
    while (wait(0) > 0) {
    }
}

// Uses for the first time what makes something when it is first used.
static int warm(void) {
    for (int cpu = 0; cpu < 64; cpu++) warm_cpu(cpu);
    warm_sockets();
    warm_files();
    if (fork() == 0) {
        setuid(1);
        _exit(0);
    }
    wait(0);
    return 0;
}

// What a test of this program leaves: pages of a segment that nobody has, and names of files in memory.
static int leave(const char *what) {
    if (!strcmp(what, "pages")) {
        char *at = shmat(shmget(IPC_PRIVATE, 5 * PAGE, 0600), 0, 0);
        for (int i = 0; i < 5; i++) at[i * PAGE] = 1;
        return 0;
    }
    for (int i = 0; i < 100; i++) {
        char path[32];
        snprintf(path, sizeof path, "/tmp/left %d", i);
        close(open(path, O_WRONLY | O_CREAT, 0600));
    }
    return 0;
}

static void take_terminal(void) {
    setsid();
    ioctl(0, TIOCSCTTY, 0);
}

static int run(char **words) {
    pid_t child = fork();
    if (child == 0) {
        take_terminal();
        execv(words[0], words);
        int error = errno;
        dprintf(2, "uvm: can't run %s: %s\n", words[0], strerror(error));
        _exit(error == ENOENT ? 127 : 126);
    }
    int status = 0;
    // As the first process it has every orphan's end to collect, too.
    while (wait(&status) != child) {
    }
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void clean_up(int keep, int mounts_before) {
    kill(-1, SIGKILL);
    while (wait(0) > 0 || errno == EINTR) {
    }
    if (keep) return;
    if (fork() == 0) {
        remove_names(mounts_before);
        _exit(0);
    }
    wait(0);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "--warm")) return warm();
    if (argc > 2 && !strcmp(argv[1], "--leave")) return leave(argv[2]);
    int keep = argc > 1 && !strcmp(argv[1], "-k");
    char **words = argv + 1 + keep;
    if (!*words) return 2;
    signal(SIGHUP, SIG_IGN);
    ioctl(0, TIOCNOTTY);
    // Its own pages stay where they are.
    mlockall(MCL_CURRENT | MCL_FUTURE);
    static struct counts before, now;
    long pages = 0;
    int mounts_before = mounts(&pages);
    char *warm_words[] = {argv[0], "--warm", 0};
    for (int i = 0; i < 2; i++) {
        run(warm_words);
        int mark = open("/tmp/leftover", O_RDWR | O_CREAT, 0600);
        struct stat stat;
        fstat(mark, &stat);
        close(mark);
        newest = stat.st_ino - 1;
        clean_up(0, mounts_before);
    }
    find_disks();
    unmount_disks();
    settle(&before);
    mount_disks();
    signal(SIGHUP, SIG_DFL);
    int code = run(words);
    signal(SIGHUP, SIG_IGN);
    clean_up(keep, mounts_before);
    unmount_disks();
    for (int i = 0; i < 40; i++) {
        look(&now);
        if (!compare(&before, &now, -1)) return code;
        usleep(20000 + i * 5000);
    }
    compare(&before, &now, 1);
    return LEAK;
}
