// Users who take all that a call gives them, each of one kind: the call refuses in time, with an error that it has on Linux, and
// root can still start programs and touch memory beside it. When a hog is ended, and what it left is removed, the next has as much.
#include "check.h"
#include "uvm.h"
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/sysinfo.h>
#include <sys/un.h>

enum { USER = 1000, HOGS = 3, MEGABYTE = 1 << 20 };

static int me;

static void in_own_folder(void) {
    char path[64];
    sprintf(path, "/tmp/hog%d", me);
    CHECK(mkdir(path, 0700) == 0 && chdir(path) == 0);
}

// A long name of its own for each number.
static const char *name_of(long number) {
    static char name[NAME_MAX + 1];
    memset(name, 'n', NAME_MAX);
    name[200 + sprintf(name + 200, "%ld", number)] = 0;
    return name;
}

static long links(void) {
    long n = 0;
    in_own_folder();
    close(open("x", O_CREAT | O_WRONLY, 0600));
    while (link("x", name_of(n)) == 0) n++;
    return n;
}

static long symlinks(void) {
    static char target[4095];
    long n = 0;
    in_own_folder();
    memset(target, 't', sizeof target - 1);
    while (symlink(target, name_of(n)) == 0) n++;
    return n;
}

static long files(void) {
    long n = 0;
    in_own_folder();
    for (int fd; (fd = open(name_of(n), O_CREAT | O_WRONLY, 0600)) >= 0; n++) close(fd);
    return n;
}

static long folders(void) {
    long n = 0;
    in_own_folder();
    while (mkdir(name_of(0), 0700) == 0 && chdir(name_of(0)) == 0) n++;
    return n;
}

static long locks(void) {
    long n = 0;
    for (int file = 0; file < 1000; file++) {
        char path[64];
        sprintf(path, "/tmp/lock%d.%d", me, file);
        int fd = open(path, O_CREAT | O_RDWR, 0600);
        if (fd < 0) return n;
        unlink(path);
        for (int i = 0; i < 4000; i++, n++) {
            struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 2 * i, .l_len = 1};
            if (fcntl(fd, F_SETLK, &lock)) return n;
        }
    }
    return n;
}

static long timers(void) {
    long n = 0;
    struct sigevent event = {.sigev_notify = SIGEV_NONE};
    for (timer_t timer; timer_create(CLOCK_MONOTONIC, &event, &timer) == 0;) n++;
    return n;
}

static long signals(void) {
    long n = 0;
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, 0);
    while (sigqueue(getpid(), SIGRTMIN, (union sigval){0}) == 0) n++;
    return n;
}

static long events(void) {
    long n = 0;
    int watched[1000], count = 0;
    while (count < 1000 && (watched[count] = eventfd(0, 0)) >= 0) count++;
    for (int set; (set = epoll_create1(0)) >= 0;)
        for (int i = 0; i < count; i++, n++) {
            struct epoll_event event = {.events = EPOLLIN};
            if (epoll_ctl(set, EPOLL_CTL_ADD, watched[i], &event)) return n;
        }
    return n;
}

static long pipes(void) {
    static char bytes[65536];
    long n = 0;
    for (int ends[2]; pipe2(ends, O_NONBLOCK) == 0;) {
        fcntl(ends[1], F_SETPIPE_SZ, MEGABYTE);
        while (write(ends[1], bytes, sizeof bytes) > 0) n++;
    }
    return n;
}

static long sockets_of(int kind, int size) {
    static char bytes[65536];
    long n = 0;
    for (int ends[2]; socketpair(AF_UNIX, kind, 0, ends) == 0;)
        while (send(ends[0], bytes, size, MSG_DONTWAIT) > 0) n++;
    return n;
}

static long streams(void) { return sockets_of(SOCK_STREAM, 65536); }
static long messages(void) { return sockets_of(SOCK_DGRAM, 1); }

static long connections(void) {
    long n = 0;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int server = socket(AF_INET, SOCK_STREAM, 0);
    // The others may have all by now: then this is what it is refused.
    if (server < 0) return 0;
    if (bind(server, (void *)&address, length) || listen(server, 4096)) return 0;
    getsockname(server, (void *)&address, &length);
    for (int client; (client = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)) >= 0; n++)
        if (connect(client, (void *)&address, length) && errno != EINPROGRESS) break;
    return n;
}

static long rights(void) {
    long n = 0;
    int files[200], ends[2];
    files[0] = open("/dev/null", O_RDONLY);
    for (int i = 1; i < 200; i++) files[i] = files[0];
    while (socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0)
        while (send_files(ends[0], files, 200, "x", 1, MSG_DONTWAIT) == 1) n++;
    return n;
}

static void *sleeps(void *none) {
    pause();
    return none;
}

static long threads(void) {
    long n = 0;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 16384);
    int error;
    for (pthread_t thread; !(error = pthread_create(&thread, &attributes, sleeps, 0));) n++;
    errno = error;
    return n;
}

static long processes(void) {
    long n = 0;
    for (pid_t child; (child = fork()) >= 0; n++)
        if (child == 0) for (;;) pause();
    return n;
}

// Each waits for many files, before the next one is made: the kernel keeps their list.
static long polls(void) {
    static struct pollfd wanted[1000];
    long n = 0;
    int count = 0;
    while (count < 1000 && (wanted[count].fd = eventfd(0, 0)) >= 0) wanted[count++].events = POLLIN;
    for (pid_t child; (child = fork()) >= 0; n++) {
        if (child == 0) {
            poll(wanted, count, -1);
            for (;;) pause();
        }
        usleep(3000);
    }
    return n;
}

static long tables(void) {
    long n = 0;
    int file = open("/dev/null", O_RDONLY);
    for (int fd = 64; fd < 4096; fd++) dup2(file, fd);
    for (pid_t child; (child = fork()) >= 0; n++)
        if (child == 0) for (;;) pause();
    return n;
}

static long segments(void) {
    long n = 0;
    while (shmget(IPC_PRIVATE, PAGE, IPC_CREAT | 0600) >= 0) n++;
    return n;
}

// Each is an object of its own.
static long mappings(void) {
    long n = 0;
    while (mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0) != MAP_FAILED) n++;
    return n;
}

struct hog {
    const char *name;
    long (*take)(void);
    // How it may be refused.
    int errors[3];
};

static const struct hog hogs[] = {
    {"links", links, {ENOSPC, ENOMEM, EMLINK}},
    {"symlinks", symlinks, {ENOSPC, ENOMEM}},
    {"files", files, {ENOSPC, ENOMEM}},
    {"folders", folders, {ENOSPC, ENOMEM}},
    {"locks", locks, {ENOLCK, EMFILE, 0}},
    {"timers", timers, {EAGAIN}},
    {"signals", signals, {EAGAIN}},
    {"events", events, {EMFILE, ENOSPC, ENFILE}},
    {"pipes", pipes, {EMFILE, ENFILE}},
    {"streams", streams, {EMFILE, ENFILE}},
    {"messages", messages, {EMFILE, ENFILE}},
    {"connections", connections, {EMFILE, ENFILE, EAGAIN}},
    {"rights", rights, {EMFILE, ENFILE}},
    {"threads", threads, {EAGAIN}},
    {"processes", processes, {EAGAIN, ENOMEM}},
    {"polls", polls, {EAGAIN, ENOMEM}},
    {"tables", tables, {EAGAIN, ENOMEM}},
    {"segments", segments, {ENOSPC, ENOMEM}},
    {"mappings", mappings, {ENOMEM}},
};

// Starts one; it says in `out` how much it got and by what it was refused, and keeps it.
static pid_t start(const struct hog *hog, int number, int out) {
    pid_t child = fork();
    if (child != 0) return child;
    me = number;
    struct rlimit most = {4096, 4096};
    setrlimit(RLIMIT_NOFILE, &most);
    setpgid(0, 0);
    if (setgid(USER) || setuid(USER)) _exit(1);
    errno = 0;
    long said[2] = {hog->take(), errno};
    if (write(out, said, sizeof said) != sizeof said) _exit(1);
    for (;;) pause();
}

// Whether root can start a program that needs some memory.
static void root_goes_on(void) {
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        char *some = mmap(0, 2 * MEGABYTE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (some == MAP_FAILED) _exit(1);
        for (int i = 0; i < 2 * MEGABYTE; i += PAGE) some[i] = 1;
        execl("/bin/busybox", "true", (char *)0);
        _exit(2);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void remove_segments(void) {
    struct shmid_ds info;
    for (int slot = 0; slot < 5000; slot++) {
        int id = shmctl(slot, SHM_STAT, &info);
        if (id >= 0) shmctl(id, IPC_RMID, 0);
    }
}

// What hogs left in the file system, and segments.
static void clean(void) {
    remove_segments();
    CHECK(umount2("/tmp", MNT_DETACH) == 0);
}

static int may_refuse(const struct hog *hog, long error) {
    for (int i = 0; i < 3; i++)
        if (error && hog->errors[i] == error) return 1;
    return 0;
}

// All that hogs of a kind get between them, or -1 if one was ended: nothing that they ask for is worth a process.
static long round_of(const struct hog *hog) {
    int said[2];
    pid_t pids[HOGS];
    NEED(pipe(said) == 0 && mount("tmpfs", "/tmp", "tmpfs", 0, "mode=1777") == 0);
    for (int i = 0; i < HOGS; i++) NEED((pids[i] = start(hog, i, said[1])) > 0);
    close(said[1]);
    long sum = 0;
    for (int i = 0; i < HOGS; i++) {
        long answer[2];
        if (read(said[0], answer, sizeof answer) != sizeof answer) {
            printf("  %s: %d were ended\n", hog->name, HOGS - i);
            sum = -1;
            break;
        }
        sum += answer[0];
        if (!CHECK(may_refuse(hog, answer[1]))) printf("  %s: %ld, then error %ld\n", hog->name, answer[0], answer[1]);
    }
    close(said[0]);
    root_goes_on();
    for (int i = 0; i < HOGS; i++) kill(-pids[i], SIGKILL);
    while (wait(0) > 0) {}
    clean();
    return sum;
}

// Where memory is, in KiB, for whoever reads of a failure.
static void show_memory(void) {
    static char text[4096];
    int fd = open("/proc/meminfo", O_RDONLY);
    NEED(fd >= 0 && read(fd, text, sizeof text - 1) > 0);
    close(fd);
    const char *names[] = {"MemFree:", "AnonPages:", "Shmem:", "Slab:", "KernelStack:", "PageTables:"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *line = strstr(text, names[i]);
        if (line) printf("  %s %ld", names[i], atol(line + strlen(names[i])));
    }
    printf("\n");
}

// All that was kept for the hogs has been given back: a process of their user is charged all that the user is.
static void nothing_is_left(void) {
    NEED(setgid(USER) == 0 && setuid(USER) == 0);
    CHECK(number_after("/proc/self/status", "KernelKept:") == number_after("/proc/self/status", "KernelKeptOfUser:"));
}

static void of_kind(const char *name) {
    mkdir("/tmp", 01777);
    // What hogs have started is to be collected here.
    NEED(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
    for (size_t i = 0; i < sizeof hogs / sizeof *hogs; i++) {
        if (strcmp(hogs[i].name, name)) continue;
        long first = round_of(&hogs[i]), second = round_of(&hogs[i]);
        printf("  %s: %ld, then %ld\n", name, first, second);
        CHECK(in_child(nothing_is_left) == 0);
        show_memory();
        CHECK(first > 0 && second >= first - first / 4);
    }
}

#define KIND(name) static void hogs_of_##name(void) { of_kind(#name); }
KIND(links) KIND(symlinks) KIND(files) KIND(folders) KIND(locks) KIND(timers) KIND(signals) KIND(events) KIND(pipes)
KIND(streams) KIND(messages) KIND(connections) KIND(rights) KIND(threads) KIND(processes) KIND(polls) KIND(tables)
KIND(segments) KIND(mappings)

static void *is_traced(void *none) {
    if (ptrace(PTRACE_TRACEME, 0, 0, 0)) _exit(1);
    return none;
}

// Sockets that wait for room at one that is full: their places are charged to who polls.
static void waiting_senders_are_charged(void) {
    enum { MANY = 1000, LEAST = 16 };
    static struct pollfd wanted[MANY];
    struct rlimit most = {MANY + 100, MANY + 100};
    struct sockaddr_un name = {AF_UNIX, "\0full"};
    socklen_t length = sizeof name.sun_family + 5;
    int full = socket(AF_UNIX, SOCK_DGRAM, 0);
    NEED(!setrlimit(RLIMIT_NOFILE, &most) && !bind(full, (struct sockaddr *)&name, length));
    for (int i = 0; i < MANY; i++) {
        wanted[i] = (struct pollfd){.fd = socket(AF_UNIX, SOCK_DGRAM, 0), .events = POLLOUT};
        NEED(wanted[i].fd >= 0 && !connect(wanted[i].fd, (struct sockaddr *)&name, length));
    }
    while (send(wanted[0].fd, &name, sizeof name, MSG_DONTWAIT) > 0) {}
    long before = number_after("/proc/self/status", "KernelKept:");
    CHECK(poll(wanted, MANY, 0) == 0);
    long kept = number_after("/proc/self/status", "KernelKept:") - before;
    if (!CHECK(kept * 1024 >= MANY * LEAST)) printf("  %d senders: %ld KiB\n", MANY, kept);
    // Each is woken when there is room, and has no place any more.
    while (recv(full, &name, sizeof name, MSG_DONTWAIT) > 0) {}
    CHECK(poll(wanted, MANY, 0) == MANY);
    CHECK(number_after("/proc/self/status", "KernelKept:") <= before + 1);
}

// Descriptors in messages: their places are charged to who sent them, until they are received or let go.
static void files_in_messages_are_charged(void) {
    enum { MANY = 900, AT_ONCE = 100, LEAST = 32 };
    int files[AT_ONCE], ends[2];
    files[0] = open("/dev/null", O_RDONLY);
    NEED(files[0] >= 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    for (int i = 1; i < AT_ONCE; i++) files[i] = files[0];
    long before = number_after("/proc/self/status", "KernelKept:");
    for (int sent = 0; sent < MANY; sent += AT_ONCE) NEED(send_files(ends[0], files, AT_ONCE, "x", 1, MSG_DONTWAIT) == 1);
    long kept = number_after("/proc/self/status", "KernelKept:") - before;
    if (!CHECK(kept * 1024 >= MANY * LEAST)) printf("  %d descriptors: %ld KiB\n", MANY, kept);
    char byte;
    CHECK(read(ends[1], &byte, 1) == 1);
    close(ends[0]);
    close(ends[1]);
    CHECK(number_after("/proc/self/status", "KernelKept:") <= before);
}

// Names of mapped files: one for all mappings of an open file, charged until the last of them has gone.
static void names_of_mappings_are_charged(void) {
    enum { MANY = 100, DEPTH = 12, PART = 200 };
    static char *maps[MANY];
    char part[PART + 1] = {0};
    memset(part, 'n', PART);
    NEED(!chdir("/tmp"));
    for (int depth = 0; depth < DEPTH; depth++) NEED((!mkdir(part, 0700) || errno == EEXIST) && !chdir(part));
    int fd = open("file", O_RDWR | O_CREAT, 0600);
    NEED(fd >= 0 && !ftruncate(fd, PAGE));
    long before = number_after("/proc/self/status", "KernelKept:"), kept;
    for (int i = 0; i < MANY; i++) NEED((maps[i] = mmap(0, PAGE, PROT_READ, MAP_SHARED, fd, 0)) != MAP_FAILED);
    kept = number_after("/proc/self/status", "KernelKept:") - before;
    if (!CHECK(kept * 1024 < MANY * PART * DEPTH / 2)) printf("  one open file: %ld KiB\n", kept);
    for (int i = 0; i < MANY; i++) munmap(maps[i], PAGE);
    for (int i = 0; i < MANY; i++) {
        int again = open("file", O_RDONLY);
        NEED(again >= 0 && (maps[i] = mmap(0, PAGE, PROT_READ, MAP_SHARED, again, 0)) != MAP_FAILED);
        close(again);
    }
    kept = number_after("/proc/self/status", "KernelKept:") - before;
    if (!CHECK(kept * 1024 >= MANY * PART * DEPTH)) printf("  open files: %ld KiB\n", kept);
    for (int i = 0; i < MANY; i++) munmap(maps[i], PAGE);
    close(fd);
    CHECK(number_after("/proc/self/status", "KernelKept:") <= before + 4);
}

// Texts of /proc that are read in part are kept for the next read, and charged.
static void texts_at_rest_are_charged(void) {
    enum { MANY = 500, LEAST = 1024 };
    static int opened[MANY];
    char byte, whole[16384];
    long before = number_after("/proc/self/status", "KernelKept:");
    for (int i = 0; i < MANY; i++) {
        opened[i] = open("/proc/vmstat", O_RDONLY);
        NEED(opened[i] >= 0 && read(opened[i], &byte, 1) == 1);
    }
    long kept = number_after("/proc/self/status", "KernelKept:") - before;
    if (!CHECK(kept * 1024 >= MANY * LEAST)) printf("  %d texts: %ld KiB\n", MANY, kept);
    for (int i = 0; i < MANY; i++) while (read(opened[i], whole, sizeof whole) > 0) {}
    long rest = number_after("/proc/self/status", "KernelKept:") - before;
    CHECK(rest * 1024 < MANY * LEAST);
    for (int i = 0; i < MANY; i++) close(opened[i]);
    CHECK(number_after("/proc/self/status", "KernelKept:") <= before + 32);
}

// What calls make the kernel keep: memory in use grows by no more than the pages that are made, and what is charged.
static void covered(const char *what, long pages, void (*make)(void)) {
    enum { SLACK = 192 };
    long free = number_after("/proc/meminfo", "MemFree:"), kept = number_after("/proc/self/status", "KernelKept:");
    make();
    free -= number_after("/proc/meminfo", "MemFree:");
    kept = number_after("/proc/self/status", "KernelKept:") - kept;
    if (!CHECK(free - 4 * pages <= kept + SLACK)) printf("  %s: %ld KiB of %ld\n", what, kept, free - 4 * pages);
}

enum { SOCKETS = 2000, APART = 4 * MEGABYTE, SPARSE = 2000, PLACES = 1000 };

static void make_named_sockets(void) {
    struct sockaddr_un name = {AF_UNIX, ""};
    for (int i = 0; i < SOCKETS; i++) {
        memset(name.sun_path + 1, 'n', 100);
        sprintf(name.sun_path + 90, "%d", i);
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        NEED(fd >= 0 && bind(fd, (struct sockaddr *)&name, sizeof name.sun_family + 101) == 0);
    }
}

static void make_optioned_sockets(void) {
    static const int options[] = {SO_KEEPALIVE, SO_BROADCAST, SO_OOBINLINE, SO_DONTROUTE, SO_TIMESTAMP, SO_TIMESTAMPNS};
    for (int i = 0, one = 1; i < SOCKETS; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        NEED(fd >= 0);
        for (int level = 0; level <= IPPROTO_TCP; level += IPPROTO_TCP)
            for (int option = 1; option < 40; option++) setsockopt(fd, level, option, &one, sizeof one);
        for (size_t n = 0; n < sizeof options / sizeof *options; n++) setsockopt(fd, SOL_SOCKET, options[n], &one, sizeof one);
    }
}

static void make_sparse_object(void) {
    int fd = memfd_create("sparse", 0);
    NEED(fd >= 0);
    for (off_t i = 0; i < SPARSE; i++) NEED(pwrite(fd, "x", 1, i * APART) == 1);
}

static void sockets_names_are_charged(void) {
    struct rlimit most = {SOCKETS + 100, SOCKETS + 100};
    NEED(!setrlimit(RLIMIT_NOFILE, &most));
    covered("names of sockets", 0, make_named_sockets);
}

static void sockets_options_are_charged(void) {
    struct rlimit most = {SOCKETS + 100, SOCKETS + 100};
    NEED(!setrlimit(RLIMIT_NOFILE, &most));
    covered("options of sockets", 0, make_optioned_sockets);
}

static void leaves_of_sparse_objects_are_charged(void) {
    long pages = number_after("/proc/self/status", "ObjectsMade:");
    covered("leaves of a sparse object", SPARSE, make_sparse_object);
    CHECK(number_after("/proc/self/status", "ObjectsMade:") - pages == 4 * SPARSE);
}

// A process whose pages lie far apart: its page tables are shown, and nothing else is in use.
static void page_tables_are_shown(void) {
    enum { SLACK = 512 };
    static const char *const shown[] = {"VmRSS:", "VmPTE:"};
    long all = 0, free = number_after("/proc/meminfo", "MemFree:");
    for (int i = 0; i < 2; i++) all -= number_after("/proc/self/status", shown[i]);
    char *at = mmap(0, PLACES * (size_t)APART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    NEED(at != MAP_FAILED);
    for (size_t i = 0; i < PLACES; i++) at[i * APART] = 1;
    for (int i = 0; i < 2; i++) all += number_after("/proc/self/status", shown[i]);
    free -= number_after("/proc/meminfo", "MemFree:");
    long heap = 0;
    char text[256] = "";
    int fd = open("/proc/self/uvm", O_RDONLY);
    NEED(fd >= 0 && read(fd, text, sizeof text - 1) > 0);
    char *place = strstr(text, "tables, ");
    if (CHECK(place)) heap = atol(place + 8) >> 10;
    CHECK(strstr(text, "\nkept: "));
    if (!CHECK(free <= all + heap + SLACK)) printf("  %ld KiB of %ld\n", all + heap, free);
}

// What is for the time of a lock, and a list of groups, is their user's.
static void small_lists_are_charged(void) {
    enum { GROUPS = 65536, PAGES = 2048 };
    static gid_t groups[GROUPS];
    long before = number_after("/proc/self/status", "KernelKeptOfUser:");
    for (int i = 0; i < GROUPS; i++) groups[i] = i;
    NEED(setgroups(GROUPS, groups) == 0);
    CHECK(number_after("/proc/self/status", "KernelKeptOfUser:") - before >= (long)sizeof groups >> 10);
    NEED(setgroups(0, groups) == 0);
    CHECK(number_after("/proc/self/status", "KernelKeptOfUser:") <= before + 1);
    int id = shmget(IPC_PRIVATE, PAGES * PAGE, IPC_CREAT | 0600);
    NEED(id >= 0);
    before = number_after("/proc/self/status", "KernelKeptOfUser:");
    CHECK(shmctl(id, SHM_LOCK, 0) == 0);
    CHECK(number_after("/proc/self/status", "KernelKeptOfUser:") - before >= PAGES * 4 >> 10);
    CHECK(shmctl(id, IPC_RMID, 0) == 0);
    CHECK(number_after("/proc/self/status", "KernelKeptOfUser:") <= before);
}

// A user who has all the locks on a file that one may have leaves others theirs.
static void locks_of_a_user_leave_others_theirs(void) {
    enum { MANY = 5000, FAR = 1 << 20 };
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    int file = open("/tmp/locked", O_CREAT | O_RDWR, 0600), ends[2], status = -1;
    char byte;
    NEED(file >= 0 && pipe(ends) == 0 && unlink("/tmp/locked") == 0);
    pid_t hog = fork();
    NEED(hog >= 0);
    if (hog == 0) {
        if (setgid(USER) || setuid(USER)) _exit(1);
        for (int i = 0; i < MANY; i++, lock.l_start += 2)
            if (fcntl(file, F_SETLK, &lock)) break;
        if (write(ends[1], "", 1) == 1) pause();
        _exit(1);
    }
    close(ends[1]);
    CHECK(read(ends[0], &byte, 1) == 1);
    pid_t other = fork();
    NEED(other >= 0);
    if (other == 0) {
        if (setgid(USER + 1) || setuid(USER + 1)) _exit(1);
        lock.l_start = FAR;
        if (fcntl(file, F_SETLK, &lock)) _exit(errno);
        lock.l_start = 2;
        _exit(fcntl(file, F_SETLK, &lock) == 0 || errno != EAGAIN);
    }
    CHECK(waitpid(other, &status, 0) == other && status == 0);
    kill(hog, SIGKILL);
    while (wait(0) > 0) {}
}

// How many of something a user gets, who keeps them until it is killed.
static long taken_by(int user, long (*take)(void), pid_t *holder) {
    long count = -1;
    int said[2];
    NEED(pipe(said) == 0);
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        struct rlimit most = {4096, 4096};
        NEED(!setrlimit(RLIMIT_NOFILE, &most) && !setgid(user) && !setuid(user) && !prctl(PR_SET_PDEATHSIG, SIGKILL));
        count = take();
        if (errno == ENOSPC && write(said[1], &count, sizeof count) == sizeof count) pause();
        _exit(1);
    }
    close(said[1]);
    CHECK(read(said[0], &count, sizeof count) == sizeof count);
    close(said[0]);
    *holder = child;
    return count;
}

// Of what all users share one may have a quarter, and all but root half.
static void shares_are_kept(long (*take)(void), long all) {
    pid_t holders[4];
    for (int i = 0; i < 3; i++) CHECK(taken_by(USER + i, take, holders + i) == (i < 2 ? all / 4 : 0));
    CHECK(taken_by(0, take, holders + 3) == all / 2);
    // Their files are closed before the next case counts files.
    for (int i = 0; i < 4; i++) NEED(!kill(holders[i], SIGKILL) && waitpid(holders[i], 0, 0) == holders[i]);
}

static void segments_are_left_to_others(void) {
    shares_are_kept(segments, 4096);
    remove_segments();
    // And what has been removed is free again.
    shares_are_kept(segments, 4096);
    remove_segments();
}

static int watched_file;

// Sets that watch one file.
static long watchers(void) {
    struct epoll_event event = {.events = EPOLLIN};
    for (long n = 0;; n++) {
        int set = epoll_create1(0);
        NEED(set >= 0);
        if (epoll_ctl(set, EPOLL_CTL_ADD, watched_file, &event)) return n;
    }
}

static void watchers_are_left_to_others(void) {
    watched_file = eventfd(0, 0);
    shares_are_kept(watchers, 1024);
}

// Each opens the pipe for itself.
static long openers(void) {
    watched_file = open("/tmp/shared", O_RDWR);
    NEED(watched_file >= 0);
    return watchers();
}

static void watchers_of_a_named_pipe_are_left_to_others(void) {
    mkdir("/tmp", 01777);
    umask(0);
    NEED(!mkfifo("/tmp/shared", 0666));
    shares_are_kept(openers, 1024);
    unlink("/tmp/shared");
}

// Threads of a child that end and that nobody waits for: what is known of them is charged to their tracer.
static void ended_tracees_are_charged(void) {
    enum { MANY = 300, LEAST = 32 };
    int ended[2];
    char byte;
    long before = number_after("/proc/self/status", "KernelKept:");
    NEED(pipe(ended) == 0);
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        pthread_t thread;
        for (int i = 0; i < MANY; i++)
            if (pthread_create(&thread, 0, is_traced, 0) || pthread_join(thread, 0)) _exit(2);
        if (write(ended[1], "", 1) == 1) pause();
        _exit(3);
    }
    close(ended[1]);
    CHECK(read(ended[0], &byte, 1) == 1);
    long kept = number_after("/proc/self/status", "KernelKept:") - before;
    if (!CHECK(kept * 1024 >= MANY * LEAST)) printf("  %d tracees: %ld KiB\n", MANY, kept);
    for (int i = 0; i < MANY; i++) CHECK(waitpid(-1, 0, __WALL) > 0);
    close(ended[0]);
    kill(child, SIGKILL);
    while (wait(0) > 0) {}
    CHECK(number_after("/proc/self/status", "KernelKept:") <= before + 1);
}

// Children that store where their parent has: each needs page tables and copies of its own, until
// memory has run out.
static void inherits(void) {
    enum { PLACES = 400 };
    size_t apart = 2 * MEGABYTE;
    int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char *memory = mmap(0, PLACES * apart, PROT_READ | PROT_WRITE, kind, -1, 0);
    if (memory == MAP_FAILED || setgid(USER) || setuid(USER)) _exit(1);
    for (int i = 0; i < PLACES; i++) {
        memory[i * apart] = 1;
        mprotect(memory + i * apart + PAGE, PAGE, PROT_READ);
    }
    for (pid_t child; (child = fork()) >= 0;)
        if (child == 0) {
            for (int i = 0; i < PLACES; i++) memory[i * apart] = 2;
            for (;;) pause();
        }
    // A fork may be refused while there is memory for all stores of the children.
    for (size_t at = 2 * PAGE; at < apart; at += PAGE)
        for (int i = 0; i < PLACES; i++) memory[i * apart + at] = 1;
    for (;;) pause();
}

// Who is to go is looked for while others run: counting what processes with many mappings have
// takes many turns. The first process starts others meanwhile and waits for them.
static void many_large_processes_are_judged(void) {
    long killed = vmstat("oom_kill");
    pid_t pids[2];
    NEED(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
    for (int i = 0; i < 2; i++) {
        NEED((pids[i] = fork()) >= 0);
        if (pids[i] == 0) {
            setpgid(0, 0);
            inherits();
        }
    }
    for (int i = 0; i < 500 && vmstat("oom_kill") < killed + 2; i++) {
        pid_t other = fork();
        if (other == 0) _exit(0);
        if (other > 0) waitpid(other, 0, 0);
        usleep(10000);
    }
    for (int i = 0; i < 2; i++) kill(-pids[i], SIGKILL);
    while (wait(0) > 0) {}
    CHECK(vmstat("oom_kill") > killed);
    root_goes_on();
    CHECK(in_child(nothing_is_left) == 0);
}

// A process of another user that stores to all its memory again and again, until `go` says not to.
static pid_t innocent(int megabytes, volatile int *go) {
    pid_t child = fork();
    NEED(child >= 0);
    if (child) return child;
    if (setgid(USER + 1) || setuid(USER + 1)) _exit(1);
    char *own = mmap(0, megabytes * MEGABYTE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (own == MAP_FAILED) _exit(1);
    for (*go = 2; *go; usleep(1000))
        for (int i = 0; i < megabytes * MEGABYTE; i += PAGE) own[i]++;
    _exit(0);
}

// Whether it has all its memory and is still there at the end.
static void innocent_lives(pid_t child, volatile int *go) {
    int status = -1;
    *go = 0;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static volatile int *shared_word(void) {
    volatile int *word = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(word != MAP_FAILED);
    return word;
}

// A user whose processes have little each goes before another's single process that has more than any of them.
static void users_are_judged_by_all_they_have(void) {
    enum { COMMON = 8 * MEGABYTE, OWN = 4 * MEGABYTE };
    long killed = vmstat("oom_kill");
    volatile int *go = shared_word();
    pid_t other = innocent(16, go), hog = fork();
    NEED(hog >= 0);
    if (hog == 0) {
        setpgid(0, 0);
        char *common = mmap(0, COMMON, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (common == MAP_FAILED || setgid(USER) || setuid(USER)) _exit(1);
        memset(common, 1, COMMON);
        for (;;) {
            if (fork() == 0) {
                char *own = mmap(0, OWN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                if (own == MAP_FAILED) _exit(1);
                for (int i = 0; i < OWN; i += PAGE) {
                    own[i] = 1;
                    if (i % (16 * PAGE) == 0) usleep(10000);
                }
                for (;;) pause();
            }
            usleep(10000);
        }
    }
    for (int i = 0; i < 2000 && vmstat("oom_kill") < killed + 5; i++) usleep(10000);
    kill(-hog, SIGKILL);
    CHECK(vmstat("oom_kill") >= killed + 5);
    innocent_lives(other, go);
    while (wait(0) > 0) {}
}

// A child that its parent waits for as after vfork, but which has memory of its own, is not spared.
static void a_child_with_its_own_memory_is_judged(void) {
    volatile int *go = shared_word();
    pid_t other = innocent(4, go), parent = fork();
    NEED(parent >= 0);
    if (parent == 0) {
        int status = -1;
        NEED(setgid(USER) == 0 && setuid(USER) == 0);
        pid_t hog = (pid_t)syscall(SYS_clone, CLONE_VFORK | SIGCHLD, 0, 0, 0, 0);
        if (hog == 0) {
            for (;;) {
                char *own = mmap(0, MEGABYTE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                if (own == MAP_FAILED) _exit(1);
                memset(own, 1, MEGABYTE);
            }
        }
        waitpid(hog, &status, 0);
        _exit(!(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
    }
    int status = -1;
    CHECK(waitpid(parent, &status, 0) == parent && status == 0);
    innocent_lives(other, go);
}

// A user whose children fill files without a name in their parent's table, and end: nobody has much, and the user has it all.
static void memory_of_the_dead_is_judged(void) {
    volatile int *go = shared_word();
    pid_t hog = fork();
    NEED(hog >= 0);
    if (hog == 0) {
        if (setgid(USER) || setuid(USER)) _exit(1);
        long child = syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
        if (child == 0) {
            static char chunk[MEGABYTE];
            int file = memfd_create("file", 0);
            while (write(file, chunk, sizeof chunk) > 0) {}
            _exit(0);
        }
        if (child < 0 || waitpid(child, 0, 0) != child) _exit(1);
        *go = 1;
        for (;;) pause();
    }
    while (!*go) usleep(10000);
    pid_t other = innocent(36, go);
    int status = 0;
    for (int i = 0; i < 1000 && waitpid(hog, &status, WNOHANG) == 0; i++) usleep(10000);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    innocent_lives(other, go);
}

static sigjmp_buf refused;

static void on_bus(int signal) {
    (void)signal;
    siglongjmp(refused, 1);
}

// Segments of a user, until a store is refused; how many mebibytes they have.
static int fill_segments(void) {
    volatile int count = 0;
    signal(SIGBUS, on_bus);
    if (sigsetjmp(refused, 1)) return count;
    for (; count < 1000; count++) {
        int id = shmget(IPC_PRIVATE, MEGABYTE, IPC_CREAT | 0600);
        char *at = shmat(id, 0, 0);
        if (id < 0 || at == (char *)-1) return -1;
        for (int i = 0; i < MEGABYTE; i += PAGE) at[i] = 1;
    }
    return -1;
}

// Half of memory is what a user's segments and memfds come to, and whoever else needs memory has what he needs.
static void shared_memory_has_a_bound(void) {
    long killed = vmstat("oom_kill"), all = number_after("/proc/meminfo", "MemTotal:") >> 10;
    volatile int *go = shared_word();
    pid_t hog = fork();
    NEED(hog >= 0);
    if (hog == 0) {
        static char bytes[MEGABYTE];
        NEED(setgid(USER) == 0 && setuid(USER) == 0);
        FAILS(shmget(IPC_PRIVATE, all * MEGABYTE, IPC_CREAT | 0600), ENOSPC);
        int file = memfd_create("hog", 0), segments;
        for (int i = 0; i < all / 4; i++) CHECK(write(file, bytes, sizeof bytes) == sizeof bytes);
        segments = fill_segments();
        if (!CHECK(segments > all / 8 && segments <= all / 4 + 8)) printf("  %d of %ld MiB\n", segments, all);
        CHECK(write(file, bytes, sizeof bytes) < (ssize_t)sizeof bytes);
        FAILS(write(file, bytes, sizeof bytes), ENOSPC);
        FAILS(fallocate(file, 0, 0, all * MEGABYTE), ENOSPC);
        *go = 1;
        if (failed_checks) _exit(1);
        for (;;) pause();
    }
    for (int i = 0; i < 1000 && *go == 0 && waitpid(hog, 0, WNOHANG) == 0; i++) usleep(10000);
    NEED(*go == 1);
    pid_t other = innocent(27, go);
    for (int i = 0; i < 100 && *go != 2; i++) usleep(10000);
    usleep(500000);
    innocent_lives(other, go);
    // It was refused as it ought to be, and is there yet.
    CHECK(waitpid(hog, 0, WNOHANG) == 0 && vmstat("oom_kill") == killed);
    kill(hog, SIGKILL);
    while (wait(0) > 0) {}
    struct shmid_ds info;
    for (int slot = 0; slot < 5000; slot++) {
        int id = shmctl(slot, SHM_STAT, &info);
        if (id >= 0) shmctl(id, IPC_RMID, 0);
    }
}

static long kept_kb(const char *name) { return number_after("/proc/self/status", name); }

// Memory behind exports that were made when nothing was there, and that is in no process any more: it is charged to who exported it.
static void exported_memory_has_a_bound(void) {
    enum { PART = 2 * MEGABYTE };
    long killed = vmstat("oom_kill"), free_mib = number_after("/proc/meminfo", "MemFree:") >> 10;
    volatile int *go = shared_word();
    pid_t hog = fork();
    NEED(hog >= 0);
    if (hog == 0) {
        NEED(setgid(USER) == 0 && setuid(USER) == 0);
        long before = kept_kb("KernelKept:"), mib = 0;
        for (int fd = 0; fd >= 0 && mib < free_mib; mib += 2) {
            char *own = mmap(0, PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (own == MAP_FAILED || (fd = uvm_export(own, PART, UVM_SHARE, PROT_READ | PROT_WRITE)) < 0) break;
            memset(own, 1, PART);
            munmap(own, PART);
        }
        long kept = kept_kb("KernelKept:") - before;
        if (!CHECK(mib >= 2 && mib <= free_mib / 3 && kept >= mib << 10)) printf("  %ld of %ld MiB, %ld kB kept\n", mib, free_mib, kept);
        *go = 1;
        if (failed_checks) _exit(1);
        for (;;) pause();
    }
    for (int i = 0; i < 1000 && *go == 0 && waitpid(hog, 0, WNOHANG) == 0; i++) usleep(10000);
    NEED(*go == 1);
    pid_t other = innocent(27, go);
    for (int i = 0; i < 100 && *go != 2; i++) usleep(10000);
    usleep(500000);
    innocent_lives(other, go);
    CHECK(waitpid(hog, 0, WNOHANG) == 0 && vmstat("oom_kill") == killed);
    kill(hog, SIGKILL);
    while (wait(0) > 0) {}
}

// Moves one byte of each of so many pages into queues, drops the rest, and says how many queues it took.
static int keep_slivers(int is_pipe, long pages) {
    enum { BATCH = 16 };
    static char bytes[BATCH * PAGE] __attribute__((aligned(PAGE)));
    int from[2], to[2] = {-1, -1}, null = open("/dev/null", O_WRONLY), queues = 0;
    NEED(null >= 0 && pipe2(from, O_NONBLOCK) == 0);
    for (long done = 0; done < pages; done += BATCH) {
        struct iovec all = {bytes, sizeof bytes};
        NEED(vmsplice(from[1], &all, 1, SPLICE_F_NONBLOCK) == sizeof bytes);
        // A new page for each.
        memset(bytes, (char)done, sizeof bytes);
        for (int i = 0; i < BATCH; i++) {
            if (to[1] < 0 || splice(from[0], 0, to[1], 0, 1, SPLICE_F_NONBLOCK) != 1) {
                NEED(is_pipe ? pipe2(to, O_NONBLOCK) == 0 : socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, to) == 0);
                NEED(splice(from[0], 0, to[1], 0, 1, SPLICE_F_NONBLOCK) == 1);
                queues++;
            }
            for (long left = PAGE - 1; left > 0;) {
                ssize_t dropped = splice(from[0], 0, null, 0, left, SPLICE_F_NONBLOCK);
                NEED(dropped > 0);
                left -= dropped;
            }
        }
    }
    return queues;
}

// A byte in a pipe or a socket keeps no page, and what is in there counts for who made it.
static void slivers_keep_no_pages(void) {
    for (int is_pipe = 0; is_pipe < 2; is_pipe++) {
        pid_t hog = fork();
        NEED(hog >= 0);
        if (hog == 0) {
            NEED(setgid(USER) == 0 && setuid(USER) == 0);
            long free_kb = number_after("/proc/meminfo", "MemFree:");
            int queues = keep_slivers(is_pipe, 6144);
            long gone = free_kb - number_after("/proc/meminfo", "MemFree:"), queued = kept_kb("KernelQueued:");
            if (!CHECK(gone < 4096 && queued > 0 && queued < 1024)) printf("  %ld kB in %d queues, %ld counted\n", gone, queues, queued);
            _exit(failed_checks != 0);
        }
        int status = -1;
        CHECK(waitpid(hog, &status, 0) == hog && status == 0);
    }
}

// Whole pages in queues count for their maker, until they are read.
static void queues_count_for_their_maker(void) {
    static char bytes[16 * PAGE];
    int ends[2][2];
    NEED(pipe(ends[0]) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, ends[1]) == 0);
    for (int i = 0; i < 2; i++) {
        long before = kept_kb("KernelQueued:");
        NEED(write(ends[i][1], bytes, sizeof bytes) == sizeof bytes);
        long full = kept_kb("KernelQueued:") - before;
        if (!CHECK(full >= 64 && full < 128)) printf("  %ld kB\n", full);
        for (size_t done = 0; done < sizeof bytes;) {
            ssize_t n = read(ends[i][0], bytes, sizeof bytes);
            NEED(n > 0);
            done += n;
        }
        if (i == 1) CHECK(kept_kb("KernelQueued:") == before);
        close(ends[i][0]), close(ends[i][1]);
        CHECK(kept_kb("KernelQueued:") <= before);
    }
}

// --- what is taken out leaves no room behind ---

// Each takes many of a kind and gives all but one of it back, which stays with the process.

static void drain_queue(int many) {
    int ends[2];
    char byte = 0;
    NEED(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0);
    for (int i = 0; i < many; i++) NEED(send(ends[0], &byte, 1, MSG_DONTWAIT) == 1);
    for (int i = 1; i < many; i++) NEED(recv(ends[1], &byte, 1, MSG_DONTWAIT) == 1);
}

static int lock_at(int file, short type, off_t start, off_t length) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length};
    return fcntl(file, F_SETLK, &lock);
}

static int new_file(void) {
    char path[] = "/tmp/drainedXXXXXX";
    int file = mkstemp(path);
    NEED(file >= 0 && unlink(path) == 0);
    return file;
}

static void drain_locks(int many) {
    int file = new_file();
    for (int i = 0; i < many; i++) NEED(lock_at(file, F_WRLCK, 2 * i, 1) == 0);
    NEED(lock_at(file, F_UNLCK, 0, 2 * many - 2) == 0);
}

static void drain_locks_by_exit(int many) {
    int file = new_file();
    NEED(lock_at(file, F_WRLCK, 2 * many, 1) == 0);
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        for (int i = 0; i < many; i++) NEED(lock_at(file, F_WRLCK, 2 * i, 1) == 0);
        _exit(0);
    }
    int status = -1;
    NEED(waitpid(child, &status, 0) == child && status == 0);
}

static void drain_watchers(int many) {
    struct epoll_event event = {.events = EPOLLIN};
    int first = -1, watched = eventfd(0, 0);
    NEED(watched >= 0);
    for (int i = 0; i < many; i++) {
        int set = epoll_create1(0);
        NEED(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, watched, &event) == 0);
        if (i == 0) first = set;
    }
    NEED(syscall(SYS_close_range, first + 1, first + many - 1, 0) == 0);
}

static void drain_port(int many) {
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof name;
    int first = -1;
    for (int i = 0, one = 1; i < many; i++) {
        int fd = socket(AF_INET, SOCK_DGRAM, 0);
        NEED(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one) == 0);
        NEED(bind(fd, (struct sockaddr *)&name, length) == 0 && getsockname(fd, (struct sockaddr *)&name, &length) == 0);
        if (i == 0) first = fd;
    }
    NEED(syscall(SYS_close_range, first + 1, first + many - 1, 0) == 0);
}

static void drain_signals(int many) {
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGRTMIN);
    NEED(sigprocmask(SIG_BLOCK, &one, 0) == 0);
    for (int i = 0; i < many; i++) NEED(sigqueue(getpid(), SIGRTMIN, (union sigval){0}) == 0);
    for (int i = 1; i < many; i++) NEED(sigtimedwait(&one, 0, &(struct timespec){0}) == SIGRTMIN);
}

static void drain_timers(int many) {
    enum { TIMERS = 256 };
    static timer_t made[TIMERS];
    struct sigevent event = {.sigev_notify = SIGEV_NONE};
    int count = 0;
    for (; count < many && timer_create(CLOCK_MONOTONIC, &event, &made[count]) == 0; count++)
        if (count == TIMERS - 1) break;
    for (int i = 0; i < count - 1; i++) NEED(timer_delete(made[i]) == 0);
}

static pthread_barrier_t together;

static void *is_traced_with_others(void *none) {
    is_traced(none);
    pthread_barrier_wait(&together);
    return none;
}

// A tracer, and a tracee that ends all its threads but one.
static void drain_tracees(int many) {
    int ended[2];
    char byte;
    NEED(pipe(ended) == 0);
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        pthread_t threads[many];
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        pthread_attr_setstacksize(&attributes, 16384);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        pthread_barrier_init(&together, 0, many);
        if (ptrace(PTRACE_TRACEME, 0, 0, 0)) _exit(2);
        for (int i = 0; i < many; i++)
            if (pthread_create(&threads[i], &attributes, is_traced_with_others, 0)) _exit(2);
        for (int i = 0; i < many; i++) pthread_join(threads[i], 0);
        if (write(ended[1], "", 1) == 1) pause();
        _exit(3);
    }
    close(ended[1]);
    NEED(read(ended[0], &byte, 1) == 1);
    close(ended[0]);
    for (int i = 0; i < many; i++) NEED(waitpid(-1, 0, __WALL) > 0);
}

enum { PART = 1400 };

// Parts of pages in a pipe, as many pieces.
static void fill_pipe(int to[2], int many) {
    static char bytes[PAGE] __attribute__((aligned(PAGE)));
    int from[2];
    NEED(pipe(from) == 0 && pipe(to) == 0 && fcntl(to[1], F_SETPIPE_SZ, MEGABYTE) == MEGABYTE);
    for (int i = 0; i < many; i++) {
        struct iovec part = {bytes, PART};
        NEED(vmsplice(from[1], &part, 1, 0) == PART && splice(from[0], 0, to[1], 0, PART, 0) == PART);
    }
    close(from[0]), close(from[1]);
}

// A byte stays.
static void drain_pipe(int many) {
    static char bytes[PART];
    int ends[2];
    fill_pipe(ends, many);
    for (int left = many * PART - 1; left > 0; left -= PART) NEED(read(ends[0], bytes, left < PART ? left : PART) > 0);
}

// Some bytes are moved on, and the pipe goes.
static void drain_pipe_to_socket(int many) {
    int ends[2], to[2];
    fill_pipe(ends, many);
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, to) == 0 && splice(ends[0], 0, to[0], 0, PART, 0) == PART);
    close(ends[0]), close(ends[1]);
}

enum { WAITED = 32 };
static struct pollfd waited[WAITED + 1];

static void *waits(void *count) {
    poll(waited, (nfds_t)(long)count, -1);
    return 0;
}

// Threads that wait for the same files; all but one are told to wait no more.
static void drain_waiters(int many) {
    pthread_t threads[many];
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 16384);
    for (int i = 0; i <= WAITED && !waited[WAITED].events; i++) {
        waited[i] = (struct pollfd){.fd = eventfd(0, 0), .events = POLLIN};
        NEED(waited[i].fd >= 0);
    }
    for (long i = 0; i < many; i++) NEED(pthread_create(&threads[i], &attributes, waits, (void *)(WAITED + (long)(i > 0))) == 0);
    usleep(200000);
    NEED(eventfd_write(waited[WAITED].fd, 1) == 0);
    for (int i = 1; i < many; i++) pthread_join(threads[i], 0);
    eventfd_t value;
    NEED(eventfd_read(waited[WAITED].fd, &value) == 0);
}

// Bytes of the blocks of the kernel's heap that are allocated.
static long heap_in_use(void) {
    static char text[4096];
    long sum = 0;
    int fd = open("/proc/inuse", O_RDONLY);
    NEED(fd >= 0 && read(fd, text, sizeof text - 1) > 0);
    close(fd);
    for (char *at = text; (at = strstr(at, "\nheap_"));)
        if (strncmp(++at, "heap_kept", 9)) sum += atol(strchr(at, ' '));
    return sum;
}

// Processes that have had many of something and keep one: the kernel keeps as little for them as for those that had few.
static void drained(const char *what, int many, void (*drain)(int)) {
    enum { PROCESSES = 16, MOST_KB = 8, FEW = 3, ROUNDS = 3 };
    const int rounds[ROUNDS] = {FEW, FEW, many};
    int said[2], go[PROCESSES][2];
    pid_t pids[PROCESSES];
    long heap[1 + ROUNDS];
    char byte = 0;
    struct rlimit most = {4096, 4096};
    NEED(setrlimit(RLIMIT_NOFILE, &most) == 0 && pipe(said) == 0);
    // One that ends, for what all have in common.
    if ((pids[0] = fork()) == 0) drain(many), _exit(0);
    NEED(pids[0] > 0 && waitpid(pids[0], 0, 0) == pids[0]);
    for (int i = 0; i < PROCESSES; i++) {
        NEED(pipe(go[i]) == 0 && (pids[i] = fork()) >= 0);
        if (pids[i]) continue;
        // A table of descriptors is charged as long as it is there.
        NEED(dup2(said[1], 2 * many) >= 0);
        for (int round = 0; round < ROUNDS; round++) {
            NEED(read(go[i][0], &byte, 1) == 1);
            drain(rounds[round]);
            NEED(write(said[1], &byte, 1) == 1);
        }
        for (;;) pause();
    }
    heap[0] = heap_in_use();
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < PROCESSES; i++) NEED(write(go[i][1], &byte, 1) == 1 && read(said[0], &byte, 1) == 1);
        heap[1 + round] = heap_in_use();
    }
    long left = (heap[3] - heap[2] - (heap[2] - heap[1])) / 1024;
    printf("  %s: %d processes that had %d of them, %ld KiB are left\n", what, PROCESSES, many, left);
    CHECK(left <= PROCESSES * MOST_KB);
    for (int i = 0; i < PROCESSES; i++) kill(pids[i], SIGKILL);
    while (wait(0) > 0) {}
}

#define DRAINED(name, many) static void drained_##name(void) { drained(#name, many, drain_##name); }
DRAINED(queue, 300) DRAINED(locks, 1000) DRAINED(locks_by_exit, 1000) DRAINED(watchers, 1000) DRAINED(port, 1000)
DRAINED(signals, 300) DRAINED(timers, 256) DRAINED(tracees, 500) DRAINED(pipe, 700) DRAINED(pipe_to_socket, 700) DRAINED(waiters, 300)

// A port that there is no memory for leaves no trace in the table of ports.
static void refused_ports(void) {
    enum { FIRST = 2000, LAST = 6000, MOST_POINTS = 20, MOST_BYTES = 4096 };
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_DGRAM, 0), fail_nth = open("/proc/thread-self/fail-nth", O_RDWR), point = 0, error = 0;
    char text[16];
    NEED(fd >= 0 && fail_nth >= 0);
    long before = heap_in_use();
    for (int port = FIRST; port < LAST; port++) {
        name.sin_port = htons(port);
        // Which allocation is the table's, the first port tells.
        do {
            int length = sprintf(text, "%d", point + (error != ENOBUFS));
            point += error != ENOBUFS;
            NEED(point < MOST_POINTS && pwrite(fail_nth, text, length, 0) == length);
            NEED(bind(fd, (struct sockaddr *)&name, sizeof name) < 0);
            error = errno;
        } while (error != ENOBUFS);
    }
    long left = heap_in_use() - before;
    printf("  %d ports without memory: %ld bytes are left\n", LAST - FIRST, left);
    CHECK(left < MOST_BYTES);
}

#define CASE(name) {"hogs_of_" #name, hogs_of_##name}
static void set_files(long number) {
    char text[32];
    int fd = open("/proc/sys/fs/file-max", O_WRONLY), length = sprintf(text, "%ld\n", number);
    NEED(fd >= 0 && write(fd, text, length) == length);
    close(fd);
}

static int opens(uid_t user, int most) {
    if (setgid(user) || setuid(user)) _exit(1);
    int opened = 0;
    while (opened < most && open("/dev/null", O_RDONLY) >= 0) opened++;
    return opened;
}

// A user who opens all files that one may have leaves others some.
static void files_are_left_for_others(void) {
    long before, open_now;
    int ready[2], fd = open("/proc/sys/fs/file-max", O_RDONLY);
    char text[32] = {0};
    NEED(read(fd, text, sizeof text - 1) > 0 && !pipe(ready));
    close(fd);
    before = atol(text);
    fd = open("/proc/sys/fs/file-nr", O_RDONLY);
    NEED(read(fd, text, sizeof text - 1) > 0);
    close(fd);
    open_now = atol(text);
    set_files(open_now + 800);
    pid_t hog = fork();
    if (hog == 0) {
        int opened = opens(USER, 900);
        NEED(write(ready[1], &opened, sizeof opened) == sizeof opened);
        for (;;) pause();
    }
    int opened, status;
    NEED(hog > 0 && read(ready[0], &opened, sizeof opened) == sizeof opened);
    pid_t other = fork();
    if (other == 0) _exit(opens(USER + 1, 100) != 100);
    CHECK(opened >= 500 && opened < 700);
    CHECK(waitpid(other, &status, 0) == other && status == 0);
    NEED(!kill(hog, SIGKILL) && waitpid(hog, 0, 0) == hog);
    set_files(before);
}

// Messages in the hands of threads that wait for room, who have unmapped what they sent.
static int few[2];
static char *volatile sent[24];
enum { MESSAGE = 200000 };

static void *sends(void *at) {
    char *own = mmap(0, MESSAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NEED(own != MAP_FAILED);
    memset(own, 7, MESSAGE);
    *(char *volatile *)at = own;
    send(few[0], own, MESSAGE, 0);
    return 0;
}

static void messages_in_hand_are_charged(void) {
    enum { MANY = sizeof sent / sizeof *sent };
    int room = 212992;
    pthread_t thread;
    NEED(!setresuid(USER, USER, USER) && !socketpair(AF_UNIX, SOCK_DGRAM, 0, few));
    NEED(!setsockopt(few[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof room));
    while (send(few[0], "x", 1, MSG_DONTWAIT) > 0) {}
    long before = number_after("/proc/self/status", "KernelKept:"), kept = 0;
    for (int i = 0; i < MANY; i++) NEED(!pthread_create(&thread, 0, sends, (void *)(sent + i)));
    // One or two find room; the last of the others waits soon.
    for (int i = 0; i < 300 && kept < (MANY - 2) * MESSAGE / 1024; i++, usleep(10000))
        kept = number_after("/proc/self/status", "KernelKept:") - before;
    for (int i = 0; i < MANY; i++) munmap(sent[i], MESSAGE);
    kept = number_after("/proc/self/status", "KernelKept:") - before;
    if (!CHECK(kept >= (MANY - 2) * MESSAGE / 1024)) printf("  %d messages: %ld KiB\n", MANY, kept);
}

// Pages far apart, donated: the tables that come along are charged too.
static void tables_of_exports_are_charged(void) {
    enum { PAGES = 40 };
    size_t apart = 1ul << 30;
    NEED(!setresuid(USER, USER, USER));
    char *at = mmap(0, PAGES * apart, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    NEED(at != MAP_FAILED);
    for (int i = 0; i < PAGES; i++) at[i * apart] = 1;
    long before = number_after("/proc/self/status", "KernelKept:");
    int fd = uvm_export(at, PAGES * apart, UVM_DONATE_ZERO, PROT_READ | PROT_WRITE);
    long kept = number_after("/proc/self/status", "KernelKept:") - before;
    if (!CHECK(fd >= 0 && kept >= 3 * PAGES * PAGE / 1024)) printf("  %d pages: %ld KiB\n", PAGES, kept);
}

// A file of a size that no machine has is refused, or its making ends with the process.
static void a_huge_file_ends_with_its_process(void) {
    int ready[2], status;
    NEED(!pipe(ready));
    pid_t child = fork();
    if (child == 0) {
        int fd = memfd_create("huge", 0);
        if (setresuid(USER, USER, USER) || write(ready[1], "x", 1) != 1) _exit(1);
        _exit(fallocate(fd, 0, 0, 1l << 50) == 0);
    }
    char byte;
    NEED(child > 0 && read(ready[0], &byte, 1) == 1);
    usleep(100000);
    kill(child, SIGKILL);
    CHECK(waitpid(child, &status, 0) == child && (status == 0 || status == SIGKILL));
}

static const struct test_case cases[] = {
    CASE(threads), CASE(processes), CASE(polls), CASE(tables), CASE(links), CASE(symlinks), CASE(files), CASE(folders), CASE(locks), CASE(timers), CASE(signals), CASE(events), CASE(pipes),
    CASE(streams), CASE(messages), CASE(connections), CASE(rights),
    CASE(segments), CASE(mappings), {"ended_tracees_are_charged", ended_tracees_are_charged},
    {"waiting_senders_are_charged", waiting_senders_are_charged},
    {"messages_in_hand_are_charged", messages_in_hand_are_charged},
    {"tables_of_exports_are_charged", tables_of_exports_are_charged},
    {"a_huge_file_ends_with_its_process", a_huge_file_ends_with_its_process},
    {"files_in_messages_are_charged", files_in_messages_are_charged},
        {"names_of_mappings_are_charged", names_of_mappings_are_charged},
    {"texts_at_rest_are_charged", texts_at_rest_are_charged},
    {"sockets_names_are_charged", sockets_names_are_charged},
    {"sockets_options_are_charged", sockets_options_are_charged},
    {"leaves_of_sparse_objects_are_charged", leaves_of_sparse_objects_are_charged},
    {"page_tables_are_shown", page_tables_are_shown},
    {"small_lists_are_charged", small_lists_are_charged},
    {"locks_of_a_user_leave_others_theirs", locks_of_a_user_leave_others_theirs},
    {"segments_are_left_to_others", segments_are_left_to_others},
    {"watchers_are_left_to_others", watchers_are_left_to_others},
    {"watchers_of_a_named_pipe_are_left_to_others", watchers_of_a_named_pipe_are_left_to_others},
    {"files_are_left_for_others", files_are_left_for_others},
};

// One who has most of memory and rests keeps nobody else from beginning something, and gets nothing new itself.
static void a_hog_that_rests_is_no_hindrance(void) {
    enum { LEFT = 256 << 10 };
    struct sysinfo now;
    int said[2], status, pair[2];
    NEED(!pipe(said));
    pid_t hog = fork();
    if (hog == 0) {
        if (setgid(USER) || setuid(USER)) _exit(1);
        char *much = mmap(0, 1l << 33, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        for (long i = 0; !sysinfo(&now) && now.freeram > LEFT; i++) much[i * PAGE] = 1;
        pid_t own = fork();
        if (own == 0) _exit(0);
        int is_refused = own < 0;
        if (write(said[1], &is_refused, sizeof is_refused) < 0) _exit(1);
        for (;;) pause();
    }
    int is_refused = 0;
    NEED(hog > 0 && read(said[0], &is_refused, sizeof is_refused) == sizeof is_refused);
    CHECK(is_refused);
    pid_t other = fork();
    if (other == 0) {
        if (setgid(USER + 1) || setuid(USER + 1)) _exit(1);
        _exit(pipe(pair) || socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    }
    CHECK(other > 0 && waitpid(other, &status, 0) == other && status == 0);
    kill(hog, SIGKILL);
    NEED(waitpid(hog, &status, 0) == hog);
}

#undef CASE
#define CASE(name) {#name, name}
static const struct test_case judged[] = {CASE(a_hog_that_rests_is_no_hindrance), CASE(many_large_processes_are_judged), CASE(users_are_judged_by_all_they_have),
                                         CASE(a_child_with_its_own_memory_is_judged), CASE(memory_of_the_dead_is_judged)};
static const struct test_case bounded[] = {CASE(shared_memory_has_a_bound), CASE(exported_memory_has_a_bound), CASE(slivers_keep_no_pages),
                                          CASE(queues_count_for_their_maker)};
static const struct test_case emptied[] = {CASE(drained_queue), CASE(drained_locks), CASE(drained_locks_by_exit), CASE(drained_watchers),
                                          CASE(drained_port), CASE(drained_signals), CASE(drained_timers), CASE(drained_tracees),
                                          CASE(drained_pipe), CASE(drained_pipe_to_socket), CASE(drained_waiters), CASE(refused_ports)};

// With a word, cases that take memory itself: until it has run out, or until they are refused.
int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "memory")) return RUN(judged, 1, argv);
    if (argc > 1 && !strcmp(argv[1], "shared")) return RUN(bounded, 1, argv);
    if (argc > 1 && !strcmp(argv[1], "drained")) return RUN(emptied, argc - 1, argv + 1);
    return RUN(cases, argc, argv);
}
