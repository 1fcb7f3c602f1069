// A system call fuzzer: children without privileges make random calls with random and half-plausible arguments.
//
// They may get any error and may die of it; the kernel may not. The parent looks after them, and every now and then checks
// that the system still does its work. Usage: fuzz SECONDS [SEED]; the seed is printed, and the same seed makes the same calls.
#include "check.h"
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>

enum { CALLS_PER_CHILD = 400, LIFE_MILLISECONDS = 700 };

static uint64_t state;

static uint64_t next(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

static const char *const paths[] = {
    "/tmp/fuzz.a", "/tmp/fuzz.b", "/tmp/fuzz.d/c", "/tmp/fuzz.d", "/", ".", "..", "/proc/self/maps", "/proc/self/status",
    "/proc/self/fd/3", "/dev/null", "/dev/zero", "/dev/full", "/proc/meminfo", "/bin/busybox", "", "/tmp/fuzz.d/../fuzz.a",
};

static char *arena; // 16 pages: some writable, some not, some missing

static uint64_t argument(void) {
    static const uint64_t edges[] = {
        0, 1, 2, 3, 4, 7, 8, 255, 4095, 4096, 4097, 65536, 1ul << 31, 1ul << 32, 1ul << 47, 0x7ffffffff000,
        0xffff800000000000, 0xffffffff80000000, (uint64_t)-1, (uint64_t)-2, (uint64_t)-4096, 1ul << 62, 1ul << 63,
    };
    switch (next() % 8) {
    case 0: return next();
    case 1: return edges[next() % (sizeof edges / sizeof *edges)];
    case 2: return next() % 16;
    case 3: return (uint64_t)arena + next() % (16 * PAGE);
    case 4: return (uint64_t)arena + next() % 16 * PAGE;
    case 5: return (uint64_t)paths[next() % (sizeof paths / sizeof *paths)];
    case 6: return 1ul << next() % 64;
    default: return next() % 64 * PAGE;
    }
}

// Left out: what would end, stop or signal others, and what only sleeps for good.
static int is_left_out(long number) {
    switch (number) {
    case SYS_kill: case SYS_tkill: case SYS_tgkill: case SYS_rt_sigqueueinfo: case SYS_rt_tgsigqueueinfo:
    case SYS_fork: case SYS_vfork: case SYS_clone: case 435 /* clone3 */: case SYS_exit: case SYS_exit_group:
    case SYS_pause: case SYS_reboot: case SYS_rt_sigsuspend: case SYS_ptrace: case SYS_rt_sigreturn: case SYS_setpgid:
    case 424 /* pidfd_send_signal */: case SYS_vhangup: case SYS_process_vm_writev: case SYS_prlimit64: case SYS_setpriority:
        return 1;
    }
    return 0;
}

// Some that are connected, one that listens, some that are nothing yet; 4 and up, where small arguments lead.
static void make_sockets(void) {
    int ends[2];
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof at;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) || socketpair(AF_UNIX, SOCK_DGRAM, 0, ends)) _exit(1);
    int server = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(server, (void *)&at, len) || listen(server, 3) || getsockname(server, (void *)&at, &len)) _exit(1);
    if (connect(client, (void *)&at, len) || socket(AF_INET, SOCK_DGRAM, 0) < 0 || socket(AF_UNIX, SOCK_STREAM, 0) < 0) _exit(1);
}

static void make_calls(void) {
    struct rlimit processes = {64, 64}, size = {64 << 20, 64 << 20}, memory = {256 << 20, 256 << 20};
    setrlimit(RLIMIT_NPROC, &processes), setrlimit(RLIMIT_FSIZE, &size), setrlimit(RLIMIT_AS, &memory);
    signal(SIGXFSZ, SIG_IGN);
    arena = mmap(0, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 16 * PAGE; i += 8) *(uint64_t *)(arena + i) = next() % 3 ? next() % 32 : (uint64_t)arena + next() % (16 * PAGE);
    mprotect(arena + 6 * PAGE, 2 * PAGE, PROT_READ);
    mprotect(arena + 10 * PAGE, PAGE, PROT_NONE);
    munmap(arena + 13 * PAGE, PAGE);
    for (int i = 0; i < 3; i++) {
        close(i);
        open("/dev/null", O_RDWR);
    }
    if (open("/tmp/fuzz.a", O_RDWR | O_CREAT, 0666) < 0 || pipe((int[2]){0})) _exit(1);
    make_sockets();
    if (setgid(1000) || setuid(1000)) _exit(1);
    for (int i = 0; i < CALLS_PER_CHILD; i++) {
        long number = next() % 16 == 0 ? (long)(next() % 600) : (long)(next() % 335);
        uint64_t a = argument(), b = argument(), c = argument(), d = argument(), e = argument(), f = argument();
        if (!is_left_out(number)) syscall(number, a, b, c, d, e, f);
    }
    _exit(0);
}

static int still_works(void) {
    int ends[2], status;
    char byte = 0;
    if (pipe(ends)) return 0;
    pid_t child = fork();
    if (child == 0) {
        char *at = mmap(0, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED) _exit(1);
        for (int i = 0; i < 8; i++) {
            if (at[i * PAGE]) _exit(2);
            at[i * PAGE] = 1;
        }
        _exit(write(ends[1], "k", 1) != 1);
    }
    int works = child > 0 && read(ends[0], &byte, 1) == 1 && byte == 'k';
    works &= waitpid(child, &status, 0) == child && status == 0;
    close(ends[0]), close(ends[1]);
    int fd = open("/tmp/fuzz.check", O_RDWR | O_CREAT | O_TRUNC, 0600);
    works &= fd >= 0 && write(fd, "check", 5) == 5 && pread(fd, &byte, 1, 4) == 1 && byte == 'k';
    close(fd);
    return works;
}

static long long milliseconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000ll + time.tv_nsec / 1000000;
}

int main(int argc, char **argv) {
    int seconds = argc > 1 ? atoi(argv[1]) : 10;
    uint64_t seed = argc > 2 ? strtoull(argv[2], 0, 0) : 20260101;
    printf("seed %llu\n", (unsigned long long)seed);
    fflush(stdout);
    mkdir("/tmp/fuzz.d", 0777), chmod("/tmp/fuzz.d", 0777);
    long long end = milliseconds() + seconds * 1000ll;
    long children = 0, killed = 0, late = 0;
    while (milliseconds() < end) {
        pid_t child = fork();
        if (child == 0) {
            state = (seed + children) * 0x9e3779b97f4a7c15 | 1;
            for (int i = 0; i < 8; i++) next();
            make_calls();
        }
        if (child < 0) {
            printf("FAILED after child %ld: fork: %s\n", children, strerror(errno));
            return 1;
        }
        long long limit = milliseconds() + LIFE_MILLISECONDS;
        int status;
        while (waitpid(child, &status, WNOHANG) == 0) {
            if (milliseconds() > limit) {
                late++;
                kill(child, SIGKILL);
                if (waitpid(child, &status, 0) == child) break;
            }
            usleep(500);
        }
        killed += WIFSIGNALED(status) && milliseconds() <= limit;
        children++;
        if (children % 20 == 0 && !still_works()) {
            printf("FAILED after child %ld: the system does not work as before\n", children);
            return 1;
        }
    }
    printf("%ld children of at most %d calls; %ld died of a signal, %ld slept and were killed\n", children, CALLS_PER_CHILD, killed, late);
    puts("the kernel stands");
    return 0;
}
