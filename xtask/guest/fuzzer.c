// Looks for system calls that break the kernel: programs are made by the grammar, changed at random, and kept where they
// reach parts of the kernel that none has reached before.
//
//     fuzzer explore SECONDS SEED WORKERS     prints each program before it runs
//     fuzzer replay PATH ROUNDS WORKERS       runs the programs of a file, a line each, or of a folder's files
//     fuzzer measure PATH                     prints those that reach an edge which none before them has reached; then all edges
//
// Workers run beside each other, each as two users in turns. A program is up to 12 calls, in one process or by two threads
// of it. A line is `p USER THREADS CALL ARGUMENT... ; CALL ...`; an argument is a letter and a hexadecimal number: n a number,
// r what call number N returned, a the arena's offset, m the int at that offset.
#include "check.h"
#include "grammar.h"
#include <dirent.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>

enum { CALLS = 12, CORPUS = 4096, LINE = 4096, EDGES = 1 << 18 };

static char *const arena = (char *)0x10000000;

struct argument {
    char how; // n, r, a, m
    uint64_t value;
};

struct call {
    uint8_t index;
    struct argument arguments[6];
};

struct program {
    uint8_t user, threads, length;
    struct call calls[CALLS];
};

static struct program corpus[CORPUS];
static int kept, worker;
static uint64_t state;
// How long a program may run, in milliseconds.
static int life = 1500;

static uint64_t next(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state * 0x2545f4914f6cdd1d >> 8;
}

static uint64_t below(uint64_t n) { return next() % n; }

static const char *const paths[] = {
    "a", "b", "d", "d/c", "d/e", ".", "..", "/", "l", "d/..", "/proc/self/maps", "/proc/self/smaps", "/proc/self/mem",
    "/proc/self/fd/3", "/proc/1/maps", "/proc/self/status", "/proc/self/task", "/dev/null", "/dev/zero", "/dev/urandom",
    "/bin/busybox", "/proc/meminfo", "/dev/ptmx", "/proc/self/pagemap", "/proc/self/uvm", "/mnt/a", "/dev/shm/a", "",
    "/proc/self/oom_score_adj", "/proc/thread-self/status", "/proc/self/fdinfo/3", "/proc/self/fail-nth", "/proc/sysvipc/shm",
    "/proc/self/exe", "/proc/self/limits", "/proc/self/stat", "/proc/sys/vm/drop_caches", "/proc/self/environ",
};
enum { PATHS = sizeof paths / sizeof *paths, PATH_STEP = 48 };

static uint64_t edge(void) {
    static const uint64_t edges[] = {
        0, 1, 2, 7, 8, 255, 4095, 4096, 4097, 65535, 65536, 1 << 20, 1ul << 31, 1ul << 32, 1ul << 46, 0x7ffffffff000,
        0x800000000000, 0xffff800000000000, 0xffffffff80000000, -1ul, -2ul, -4096ul, 1ul << 62, 1ul << 63,
    };
    return edges[below(sizeof edges / sizeof *edges)];
}

static uint64_t one_of(int count, ...) {
    va_list list;
    va_start(list, count);
    uint64_t chosen = 0;
    for (int i = 0, at = below(count); i <= at; i++) chosen = va_arg(list, uint64_t);
    va_end(list);
    return chosen;
}

static struct argument number(uint64_t value) { return (struct argument){'n', value}; }
static struct argument place(uint64_t offset) { return (struct argument){'a', offset}; }

// The result of an earlier call that makes such a thing, if there is one and the dice want it.
static int earlier(const struct program *p, int at, int kind, struct argument *out) {
    if (at == 0 || below(8) == 0) return 0;
    int from = below(at);
    for (int i = 0; i < at; i++) {
        int k = (from + i) % at;
        const struct description *d = &grammar[p->calls[k].index];
        if (d->makes == kind) return *out = (struct argument){'r', k}, 1;
        if (kind == FD && (d->arguments[0] == PAIR || d->arguments[3] == PAIR))
            return *out = (struct argument){'m', AT_PAIRS + 8 * below(4) + 4 * below(2)}, 1;
    }
    return 0;
}

static struct argument argument(const struct program *p, int at, int kind) {
    struct argument found;
    if (below(24) == 0) return number(edge());
    switch (kind) {
    case FD: return earlier(p, at, FD, &found) ? found : number(below(12) ? below(14) : -100ul);
    case SEGMENT: return earlier(p, at, SEGMENT, &found) ? found : number(below(8));
    case PLACE:
        if (below(2) && earlier(p, at, PLACE, &found)) return found;
        return below(3) ? number(0x20000000 + below(64) * PAGE) : below(4) ? place(below(16) * PAGE) : number(0);
    case NEW_FD: return number(below(24));
    case PATH: return place(AT_PATHS + below(PATHS) * PATH_STEP);
    case DATA: return place(below(6) ? AT_DATA + below(9 * PAGE) : below(ARENA_BYTES));
    case SIZE: return number(one_of(6, below(64), below(4096), 8ul, below(40) * PAGE, below(1 << 20), 0x40000ul));
    case OFFSET: return number(one_of(4, 0ul, below(16) * PAGE, below(1 << 20), 1ul << 40));
    case SPAN: return number(one_of(4, PAGE + 0ul, (1 + below(16)) * PAGE, (1 + below(512)) * PAGE, below(1 << 16)));
    case RIGHTS: return number(below(8));
    case MAP_KIND: return number(one_of(8, 0x22ul, 0x22ul, 0x21ul, 1ul, 2ul, 0x32ul, 0x31ul, 0x12ul) | (below(8) ? 0 : 1ul << (8 + below(14))));
    case OPEN_FLAGS: return number(one_of(4, 0ul, 2ul, 0102ul, 1ul) | (below(3) ? 0 : 1ul << below(22)));
    case MODE: return number(one_of(5, 0777ul, 0644ul, 01777ul, 06755ul, 0100644ul) | (below(6) ? 0 : 01000));
    case PID: return earlier(p, at, PID, &found) ? found : number(one_of(5, 0ul, 1ul, -1ul, below(64), 2ul));
    case SIGNAL: return number(one_of(4, 0ul, below(34), 10ul, 17ul));
    case USER: return number(one_of(5, 0ul, 1000ul, 1001ul, -1ul, 65534ul));
    case IOV: return place(AT_IOV + 16 * below(8));
    case COUNT: return number(below(6) ? below(9) : below(1100));
    case ADDRESS: return place(AT_ADDRESSES + 128 * below(6));
    case ADDRESS_SIZE: return number(one_of(4, 16ul, 110ul, 8ul, below(130)));
    case TIME: return below(4) ? place(AT_TIMES + 32 * below(8)) : number(0);
    case SIGNALS: return place(AT_SIGNALS + 8 * below(4));
    case POLL: return place(AT_POLL);
    case EVENTS: return place(AT_EVENTS + 12 * below(8));
    case MESSAGE: return place(AT_MESSAGES + 64 * below(3));
    case STRINGS: return place(AT_STRINGS);
    case NUMBER: return below(3) ? place(AT_NUMBERS + 8 * below(8)) : number(0);
    case PAIR: return place(AT_PAIRS + 8 * below(4));
    case ADVICE: return number(below(5) ? below(26) : 100 + below(4));
    case KEY: return number(one_of(3, 0ul, 77ul, 78ul));
    case FAMILY: return number(one_of(5, 1ul, 1ul, 2ul, 10ul, below(64)));
    case TYPE: return number((1 + below(5)) | (below(3) ? 0 : 04000));
    case COMMAND: return number(below(3) ? below(17) : 1024 + below(16));
    case ACTION: return place(AT_SIGNALS + 256 + 32 * below(3));
    case LIMIT: return number(below(17));
    case CLOCK: return number(below(12));
    case REMAP: return number(one_of(4, 1ul, 3ul, 5ul, 7ul));
    case SPLICE: return number(below(16));
    case TREE: return number(one_of(4, 0ul, 0x100ul, 0x1000ul, 0x200ul));
    case WORD: return number(one_of(5, below(16), below(256), edge(), 1ul << below(32), next()));
    case SMALL: return number(below(12));
    case LEVEL: return number(one_of(6, 1ul, 1ul, 1ul, 0ul, 6ul, below(64)));
    case OPTION: return number(below(8) ? below(50) : below(100));
    case CONTROL_LENGTH: return number(one_of(5, 24ul, 20ul, 16 + below(16), CONTROL_STEP * below(CONTROLS + 1), below(300)));
    case CONTROL_TYPE: return number(below(6) ? 1 + below(2) : below(50));
    case NAME: return number(one_of(4, 'a' + below(4), below(4) << 8, 0x0100007f0000 | (0xa0 + 256 * (15 + below(3))) << 8, next()));
    default: return number(0);
    }
}

static struct call random_call(const struct program *p, int at) {
    struct call call = {.index = below(DESCRIPTIONS)};
    for (int i = 0; i < 6; i++) call.arguments[i] = argument(p, at, grammar[call.index].arguments[i]);
    return call;
}

// A new program, or a kept one with some changes.
static struct program make(void) {
    struct program p = {.user = below(2), .threads = 1 + (below(3) == 0)};
    if (kept == 0 || below(5) == 0) {
        for (int n = 2 + below(CALLS - 2); p.length < n; p.length++) p.calls[p.length] = random_call(&p, p.length);
        return p;
    }
    struct program one = corpus[below(kept)];
    one.user = p.user, one.threads = p.threads;
    for (int changes = 1 + below(4); changes; changes--) {
        int at = below(one.length ? one.length : 1);
        switch (below(5)) {
        case 0:
            if (one.length < CALLS) {
                memmove(one.calls + at + 1, one.calls + at, (one.length - at) * sizeof *one.calls), one.length++;
                one.calls[at] = random_call(&one, at);
            }
            break;
        case 1:
            if (one.length > 1) memmove(one.calls + at, one.calls + at + 1, (--one.length - at) * sizeof *one.calls);
            break;
        case 2: {
            const struct program *other = &corpus[below(kept)];
            for (int i = 0; i < other->length && one.length < CALLS; i++) one.calls[one.length++] = other->calls[i];
            break;
        }
        default: {
            struct call *call = &one.calls[at];
            int i = below(6);
            call->arguments[i] = argument(&one, at, grammar[call->index].arguments[i]);
        }
        }
    }
    return one;
}

static int write_line(char *line, const struct program *p) {
    int n = sprintf(line, "p %d %d", p->user, p->threads);
    for (int i = 0; i < p->length; i++) {
        const struct description *d = &grammar[p->calls[i].index];
        n += sprintf(line + n, "%s %s", i ? " ;" : "", d->name);
        for (int a = 0; a < 6; a++)
            if (d->arguments[a] != NONE)
                n += sprintf(line + n, " %c%llx", p->calls[i].arguments[a].how, (unsigned long long)p->calls[i].arguments[a].value);
    }
    return n + sprintf(line + n, "\n");
}

static int read_line(char *line, struct program *p) {
    char *word = strtok(line, " \n");
    if (!word || strcmp(word, "p")) return 0;
    *p = (struct program){.user = atoi(strtok(0, " ")), .threads = atoi(strtok(0, " "))};
    while (p->length < CALLS && (word = strtok(0, " \n"))) {
        struct call *call = &p->calls[p->length++];
        int index = 0, a = 0;
        while (index < DESCRIPTIONS && strcmp(grammar[index].name, word)) index++;
        if (index == DESCRIPTIONS) return fprintf(stderr, "there is no call %s\n", word), 0;
        call->index = index;
        while ((word = strtok(0, " \n")) && strcmp(word, ";")) {
            while (a < 6 && grammar[index].arguments[a] == NONE) a++;
            if (a < 6) call->arguments[a++] = (struct argument){word[0], strtoull(word + 1, 0, 16)};
        }
    }
    return p->length > 0;
}

static void make_message(const uint64_t v[6]) {
    *(struct msghdr *)(arena + AT_MESSAGES + 64 * (v[0] % 3)) = (struct msghdr){
        .msg_name = (void *)v[1], .msg_namelen = v[2], .msg_iov = (struct iovec *)(arena + AT_IOV), .msg_iovlen = v[3],
        .msg_control = v[4] ? arena + AT_CONTROL : 0, .msg_controllen = v[4]};
}

// Its length may reach into the next one, or be none.
static void make_control(const uint64_t v[6]) {
    struct cmsghdr *control = (struct cmsghdr *)(arena + AT_CONTROL + CONTROL_STEP * (v[0] % CONTROLS));
    *control = (struct cmsghdr){.cmsg_len = v[1], .cmsg_level = v[2], .cmsg_type = v[3]};
    memcpy(CMSG_DATA(control), (int[2]){v[4], v[5]}, 8);
}

static void make_address(const uint64_t v[6]) {
    char *address = arena + AT_ADDRESSES + 128 * (v[0] % 6);
    memset(address, v[4], 128);
    memcpy(address, &(uint16_t){v[1]}, 2), memcpy(address + 2, &v[2], 8), memcpy(address + 10, &v[3], 8);
}

static long write_text(const uint64_t v[6]) {
    static const char *const forms[] = {
        "%llu", "%lld", "%llu\n", "  %llu \n", "-%llu", "+%llu", "0x%llx", "%llu %llu\n", "%llu.0", "\n", "%08191llu", "\xff%llu",
    };
    static char text[8200];
    int length = sprintf(text, forms[v[1] % 12], (unsigned long long)v[2], (unsigned long long)v[1]);
    return syscall(SYS_write, v[0], text, length + v[1] % 2);
}

// What structures there are in the arena.
static void furnish(void) {
    if (mmap(arena, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != arena) _exit(1);
    for (int i = 0; i < PATHS; i++) strcpy(arena + AT_PATHS + i * PATH_STEP, paths[i]);
    for (int i = 0; i < 16; i++)
        ((struct iovec *)(arena + AT_IOV))[i] = (struct iovec){arena + AT_DATA + i * 777, i % 5 == 4 ? 3 * PAGE : 100u * i};
    struct sockaddr_un local = {.sun_family = AF_UNIX, .sun_path = "s"}, abstract = {.sun_family = AF_UNIX, .sun_path = "\0t"};
    struct sockaddr_in port = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_port = htons(4000 + worker)};
    memcpy(arena + AT_ADDRESSES, &local, sizeof local), memcpy(arena + AT_ADDRESSES + 128, &abstract, sizeof abstract);
    memcpy(arena + AT_ADDRESSES + 256, &port, sizeof port);
    for (int i = 0; i < 8; i++)
        ((struct itimerspec *)(arena + AT_TIMES))[i] = (struct itimerspec){{0, i * 100000}, {i == 7, i * 1000000 % 1000000000}};
    uint64_t *masks = (uint64_t *)(arena + AT_SIGNALS);
    masks[0] = 0, masks[1] = 1ul << 9, masks[2] = 1ul << 16 | 1ul << 13, masks[3] = -1ul;
    uint64_t *actions = (uint64_t *)(arena + AT_SIGNALS + 256);
    actions[0] = 1, actions[4] = 0, actions[8] = 0x800000000000; // ignored, default, an address that can't be
    for (int i = 0; i < 64; i++) ((int *)(arena + AT_POLL))[2 * i] = i % 16, ((short *)(arena + AT_POLL))[4 * i + 2] = 7;
    for (int i = 0; i < 16; i++) *(uint32_t *)(arena + AT_EVENTS + 12 * i) = 1u << i | 5 | (i % 3 == 0) << 31;
    for (int i = 0; i < 3; i++) make_message((uint64_t[6]){i, 0, 0, 2 + i, CONTROL_STEP * i});
    for (int i = 0; i < CONTROLS; i++) make_control((uint64_t[6]){i, CMSG_LEN(8), SOL_SOCKET, SCM_RIGHTS, 3, 4});
    char **strings = (char **)(arena + AT_STRINGS);
    strings[0] = arena + AT_PATHS, strings[1] = arena + AT_PATHS + PATH_STEP, strings[2] = 0;
    munmap(arena + AT_GONE, PAGE);
    mprotect(arena + AT_READ_ONLY, PAGE, PROT_READ);
    mprotect(arena + AT_FORBIDDEN, PAGE, PROT_NONE);
}

static int coverage = -1;
static const struct program *running;
static volatile long results[CALLS];

static uint64_t value_of(const struct argument *a) {
    switch (a->how) {
    case 'r': return results[a->value % CALLS];
    case 'a': return (uint64_t)arena + a->value % ARENA_BYTES;
    case 'm': return *(int *)(arena + (AT_PAIRS + (a->value & 0x3c)));
    default: return a->value;
    }
}

static void do_call(int at) {
    const struct call *call = &running->calls[at];
    const struct description *d = &grammar[call->index];
    uint64_t v[6];
    for (int i = 0; i < 6; i++) v[i] = value_of(&call->arguments[i]);
    if (d->number == POKE) {
        uint64_t offset = (v[0] - (uint64_t)arena) % ARENA_BYTES & ~7ul;
        if (offset < AT_GONE) *(volatile uint64_t *)(arena + offset) = v[1];
    } else if (d->number == TOUCH) {
        // A store that may fault: the kernel makes it, so that the program goes on.
        for (uint64_t n = 0; n < v[1] && n < 64 * PAGE; n += PAGE)
            syscall(SYS_getrandom, v[0] + n, 1, 0);
    } else if (d->number == MAKE_ADDRESS) {
        make_address(v);
    } else if (d->number == MAKE_CONTROL) {
        make_control(v);
    } else if (d->number == MAKE_MESSAGE) {
        make_message(v);
    } else if (d->number == TEXT) {
        results[at] = write_text(v);
    } else {
        results[at] = syscall(d->number, v[0], v[1], v[2], v[3], v[4], v[5]);
    }
}

static void *other_half(void *unused) {
    (void)unused;
    for (int i = 1; i < running->length; i += 2) do_call(i);
    return 0;
}

static void be_a_user(int user) {
    struct rlimit processes = {24, 24}, size = {8 << 20, 8 << 20}, memory = {64 << 20, 64 << 20}, core = {0, 0};
    setrlimit(RLIMIT_NPROC, &processes), setrlimit(RLIMIT_FSIZE, &size), setrlimit(RLIMIT_AS, &memory), setrlimit(RLIMIT_CORE, &core);
    signal(SIGXFSZ, SIG_IGN), signal(SIGPIPE, SIG_IGN);
    gid_t group = 1000 + user;
    if (setgroups(1, &group) || setresgid(group, group, group) || setresuid(group, group, group)) _exit(1);
    // Its own files in /proc are its own, as after execve.
    prctl(PR_SET_DUMPABLE, 1);
}

static void run_in_child(const struct program *p) {
    setpgid(0, 0);
    be_a_user(p->user);
    furnish();
    int null = open("/dev/null", O_RDWR);
    for (int i = 0; i < 3; i++) dup2(null, i);
    if (coverage >= 0) dup2(null, coverage);
    open("a", O_RDWR | O_CREAT, 0666), memfd_create("m", 0), pipe((int[2]){0});
    socketpair(AF_UNIX, SOCK_STREAM, 0, (int[2]){0});
    running = p;
    pthread_t thread;
    int halves = p->threads > 1 && pthread_create(&thread, 0, other_half, 0) == 0;
    for (int i = 0; i < p->length; i += 1 + halves) do_call(i);
    if (halves) pthread_join(thread, 0);
    _exit(0);
}

static void empty(const char *folder) {
    DIR *dir = opendir(folder);
    if (!dir) return;
    for (struct dirent *entry; (entry = readdir(dir));) {
        char path[4200];
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (unlink(path) && errno == EISDIR) chmod(path, 0700), empty(path), rmdir(path);
    }
    closedir(dir);
}

static void drop_segments(void) {
    struct shmid_ds info;
    for (int i = 0; i < 64; i++) {
        int id = shmctl(i, SHM_STAT, &info);
        if (id >= 0) shmctl(id, IPC_RMID, 0);
    }
}

static long long milliseconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000ll + time.tv_nsec / 1000000;
}

static void each_child(void (*act)(int pid)) {
    char list[64];
    sprintf(list, "/proc/self/task/%d/children", getpid());
    FILE *children = fopen(list, "r");
    for (int pid; children && fscanf(children, "%d", &pid) == 1;) act(pid);
    if (children) fclose(children);
}

static void end(int pid) { kill(pid, SIGKILL); }

// Says what a process does.
static void tell(int pid) {
    char path[64], line[256];
    sprintf(path, "/proc/%d/stat", pid);
    FILE *stat = fopen(path, "r");
    if (stat && fgets(line, sizeof line, stat)) printf("stuck: %s", line);
    if (stat) fclose(stat);
}

// Runs a program in a folder of its own, to its end or for a while.
static void run(const struct program *p) {
    char folder[32];
    sprintf(folder, "/tmp/fuzz%d", worker);
    mkdir(folder, 0777), chmod(folder, 0777), chdir(folder), mkdir("d", 0777), chmod("d", 0777);
    pid_t child = fork();
    if (child == 0) run_in_child(p);
    if (child < 0) printf("FAILED: fork: %s\n", strerror(errno)), fflush(stdout), exit(1);
    long long limit = milliseconds() + life;
    while (waitpid(child, 0, WNOHANG) != child) {
        if (milliseconds() > limit) {
            kill(child, SIGKILL), kill(-child, SIGKILL);
            waitpid(child, 0, 0);
            break;
        }
        usleep(300);
    }
    kill(-child, SIGKILL);
    // Children of children come here, since the worker is a subreaper.
    for (pid_t orphan; (orphan = waitpid(-1, 0, WNOHANG)) >= 0;) {
        if (orphan == 0) {
            each_child(end);
            usleep(300);
        }
        // So long that a busy host is no reason.
        if (milliseconds() > limit + 60 * 1000) {
            printf("FAILED: a killed process does not end\n");
            each_child(tell);
            fflush(stdout), exit(1);
        }
    }
    chdir("/tmp"), empty(folder), empty("/dev/shm");
}

// Parts of the kernel that were reached for the first time since the last call.
static long news(void) {
    uint64_t count = 0;
    return coverage >= 0 && pread(coverage, &count, 8, 0) == 8 ? (long)count : 0;
}

static void explore(int seconds, int workers) {
    char line[LINE];
    long long end = milliseconds() + seconds * 1000ll, told = 0;
    long programs = 0, reached = 0;
    // What the corpus reaches is not new.
    for (int i = worker; i < kept && milliseconds() < end; i += workers) run(&corpus[i]);
    news();
    while (milliseconds() < end) {
        struct program p = make();
        int n = write_line(line, &p);
        printf("%d%.*s", worker, n, line), fflush(stdout);
        run(&p);
        programs++;
        long new = news();
        reached += new;
        if (new > 0) {
            if (kept < CORPUS) corpus[kept++] = p;
            else corpus[below(CORPUS)] = p;
            printf("k%.*s", n, line), fflush(stdout);
        }
        if (programs % 64 == 0) drop_segments();
        if (milliseconds() - told > 5000) {
            told = milliseconds();
            printf("s %d %ld programs %d kept %ld reached\n", worker, programs, kept, reached), fflush(stdout);
        }
    }
}

static void become_worker(int n, uint64_t seed) {
    worker = n;
    state = (seed + n) * 0x9e3779b97f4a7c15 | 1;
    for (int i = 0; i < 8; i++) next();
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    coverage = open("/dev/coverage", O_RDWR | O_CLOEXEC);
    // A kernel without counters has something else there, so that descriptors have the same numbers.
    if (coverage < 0) coverage = open("/dev/null", O_RDWR | O_CLOEXEC);
}

static void read_corpus(const char *path) {
    char line[LINE];
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        if (entry->d_name[0] == '.') continue;
        snprintf(line, sizeof line, "%s/%s", path, entry->d_name);
        read_corpus(line);
    }
    if (folder) return (void)closedir(folder);
    FILE *file = fopen(path, "r");
    while (file && kept < CORPUS && fgets(line, sizeof line, file))
        if (read_line(line, &corpus[kept])) kept++;
    if (file) fclose(file);
}

// Edges that a program takes each of two times: what a timer does in between is not its own.
static long edges_of(const struct program *p, char *edges) {
    static char again[EDGES];
    long count = 0;
    memset(edges, 0, EDGES), memset(again, 0, EDGES);
    for (int i = 0; i < 2; i++) {
        if (write(coverage, "", 1) != 1) return 0;
        run(p), news();
        count = pread(coverage, i ? again : edges, EDGES, 8);
    }
    for (long i = 0; i < count; i++) edges[i] = edges[i] && again[i];
    return count;
}

// The edges are printed as hexadecimal digits, four a digit, 128 digits a line.
static int measure(const char *path) {
    static char edges[EDGES], all[EDGES];
    char line[LINE];
    long count = 0, wide = 0;
    life = 300;
    become_worker(0, 1);
    read_corpus(path);
    for (int i = 0; i < kept; i++) {
        long new = 0;
        count = edges_of(&corpus[i], edges);
        for (long e = 0; e < count; e++) new += edges[e] && !all[e], all[e] |= edges[e];
        wide += new;
        int n = write_line(line, &corpus[i]);
        if (new) printf("k%.*s", n, line), fflush(stdout);
        if (i % 64 == 0) drop_segments();
    }
    for (long e = 0; e < count; e += 4) {
        if (e % 512 == 0) printf(e ? "\ne" : "e");
        int digit = 0;
        for (int bit = 0; bit < 4; bit++) digit |= (all[e + bit] != 0) << bit;
        printf("%x", digit);
    }
    printf("\n%d programs reach %ld of %ld edges\n", kept, wide, count);
    return count == 0;
}

// Of the programs each worker runs its own.
static void replay(int rounds, int workers) {
    for (int round = 0; round < rounds; round++) {
        for (int i = worker; i < kept; i += workers) run(&corpus[i]);
    }
}

static long free_kilobytes(void) {
    char line[128];
    long kilobytes = 0;
    FILE *file = fopen("/proc/meminfo", "r");
    while (file && fgets(line, sizeof line, file)) sscanf(line, "MemAvailable: %ld", &kilobytes);
    if (file) fclose(file);
    return kilobytes;
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "measure")) return measure(argv[2]);
    int replays = argc == 5 && !strcmp(argv[1], "replay");
    if (argc != 5 || (!replays && strcmp(argv[1], "explore"))) {
        fputs("fuzzer explore SECONDS SEED WORKERS\nfuzzer replay PATH ROUNDS WORKERS\nfuzzer measure PATH\n", stderr);
        return 2;
    }
    int workers = atoi(argv[4]), failed = 0;
    read_corpus(replays ? argv[2] : "/fuzz/corpus");
    if (replays && kept == 0) return puts("there is no program"), 1;
    long before = free_kilobytes();
    for (int n = 0; n < workers; n++) {
        if (fork() == 0) {
            become_worker(n, strtoull(argv[3], 0, 0));
            if (replays) replay(atoi(argv[3]), workers);
            else explore(atoi(argv[2]), workers);
            exit(0);
        }
    }
    for (int status; wait(&status) > 0;) failed |= status != 0;
    if (replays) printf("%d programs ran %s times\n", kept, argv[3]);
    drop_segments();
    sleep(1);
    printf("memory %ld kB available before, %ld after\n", before, free_kilobytes());
    puts(failed ? "a worker failed" : "the kernel stands");
    return failed;
}
