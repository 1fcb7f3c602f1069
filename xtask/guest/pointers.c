// Bad pointers in system calls: EFAULT, nothing else, whatever the call, and never a kernel that falls over them.
#include "check.h"
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sysinfo.h>
#include <sys/time.h>
#include <sys/times.h>
#include <sys/uio.h>
#include <sys/utsname.h>

static int fd, ends[2];

// Every pointer that no call may follow: null, small, unmapped, the kernel's, no address at all.
static uintptr_t bad[] = {0, 8, 0, 0x7ffffffff000, 0xffff800000000000, 0xffffffff80000000, 0x8000000000000000, (uintptr_t)-1};
enum { BAD = sizeof bad / sizeof *bad };

static void set_up(void) {
    fd = open("/tmp/pointers", O_RDWR | O_CREAT | O_TRUNC, 0600);
    NEED(fd >= 0 && write(fd, "0123456789", 10) == 10 && !pipe(ends) && write(ends[1], "0123456789", 10) == 10);
    void *gone = mmap(0, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(gone, PAGE);
    bad[2] = (uintptr_t)gone;
}

static void all(const char *what, long (*call)(uintptr_t at)) {
    for (int i = 0; i < BAD; i++) {
        errno = 0;
        if (call(bad[i]) != -1 || errno != EFAULT) {
            printf("  %s at %#lx: errno %d\n", what, (long)bad[i], errno);
            failed_checks++;
        }
    }
}

#define EACH(name, call) static long name(uintptr_t at) { return call; }

EACH(reads, syscall(SYS_pread64, fd, at, 5, 0))
EACH(writes, syscall(SYS_pwrite64, fd, at, 5, 0))
EACH(pipe_reads, syscall(SYS_read, ends[0], at, 5))
EACH(pipe_writes, syscall(SYS_write, ends[1], at, 5))
EACH(opens, syscall(SYS_openat, AT_FDCWD, at, O_RDONLY, 0))
EACH(stats, syscall(SYS_newfstatat, AT_FDCWD, at, 0, 0))
EACH(stat_results, syscall(SYS_fstat, fd, at))
EACH(pipes, syscall(SYS_pipe2, at, 0))
EACH(names, syscall(SYS_uname, at))
EACH(folders, syscall(SYS_getcwd, at, 100))
EACH(changes, syscall(SYS_chdir, at))
EACH(unlinks, syscall(SYS_unlink, at))
EACH(renames, syscall(SYS_rename, "/tmp/pointers", at))
EACH(links, syscall(SYS_readlinkat, AT_FDCWD, "/proc/self/exe", at, 100))
EACH(vectors, syscall(SYS_readv, fd, at, 1))
EACH(vector_writes, syscall(SYS_writev, fd, at, 1))
EACH(clocks, syscall(SYS_clock_gettime, CLOCK_MONOTONIC, at))
EACH(sleeps, syscall(SYS_nanosleep, at, 0))
EACH(infos, syscall(SYS_sysinfo, at))
EACH(usages, syscall(SYS_getrusage, RUSAGE_SELF, at))
EACH(limits, syscall(SYS_prlimit64, 0, RLIMIT_STACK, 0, at))
EACH(windows, syscall(SYS_ioctl, 0, TIOCGWINSZ, at))
EACH(modes, syscall(SYS_ioctl, 0, TCGETS, at))
EACH(execs, syscall(SYS_execve, at, 0, 0))
EACH(entries, syscall(SYS_getdents64, open("/", O_RDONLY | O_DIRECTORY), at, 1000))
EACH(randoms, syscall(SYS_getrandom, at, 16, 0))
EACH(polls, syscall(SYS_poll, at, 1, 0))
EACH(truncates, syscall(SYS_truncate, at, 0))

static void input_and_output(void) {
    set_up();
    all("pread", reads), all("pwrite", writes), all("pipe read", pipe_reads), all("pipe write", pipe_writes);
    all("readv", vectors), all("writev", vector_writes), all("getdents", entries), all("getrandom", randoms);
    char byte;
    CHECK(read(ends[0], &byte, 1) == 1 && byte == '0'); // failed reads consume nothing
}

static void paths(void) {
    set_up();
    all("open", opens), all("stat", stats), all("chdir", changes), all("unlink", unlinks), all("rename", renames);
    all("readlink", links), all("execve", execs), all("truncate", truncates);
}

static void results(void) {
    set_up();
    all("fstat", stat_results), all("pipe", pipes), all("uname", names), all("getcwd", folders);
    all("nanosleep", sleeps), all("poll", polls);
    for (int i = 0; i < BAD; i++) {
        if (!bad[i]) continue; // null means "not wanted" or is handled by the C library's caller
        errno = 0, CHECK(clocks(bad[i]) == -1 && errno == EFAULT);
        errno = 0, CHECK(limits(bad[i]) == -1 && errno == EFAULT);
        errno = 0, CHECK(infos(bad[i]) == -1 && errno == EFAULT);
        errno = 0, CHECK(usages(bad[i]) == -1 && errno == EFAULT);
    }
}

static void terminals(void) {
    set_up();
    if (!isatty(0)) return;
    all("TIOCGWINSZ", windows), all("TCGETS", modes);
}

// Signals and waiting: null is allowed there, the others aren't.
static void signals_and_waiting(void) {
    set_up();
    sigset_t before;
    for (int i = 0; i < BAD; i++) {
        if (!bad[i]) continue;
        FAILS(syscall(SYS_rt_sigaction, SIGUSR1, bad[i], 0, 8), EFAULT);
        FAILS(syscall(SYS_rt_sigaction, SIGUSR1, 0, bad[i], 8), EFAULT);
        FAILS(syscall(SYS_rt_sigprocmask, SIG_BLOCK, bad[i], 0, 8), EFAULT);
        FAILS(syscall(SYS_rt_sigprocmask, SIG_BLOCK, 0, bad[i], 8), EFAULT);
        FAILS(syscall(SYS_sigaltstack, bad[i], 0), EFAULT);
        FAILS(syscall(SYS_setitimer, ITIMER_REAL, bad[i], 0), EFAULT);
        FAILS(syscall(SYS_futex, bad[i] & ~3UL, 0 /* wait */, 0, 0, 0, 0), EFAULT);
        pid_t child = fork();
        if (child == 0) _exit(3);
        FAILS(syscall(SYS_wait4, child, bad[i], 0, 0), EFAULT);
    }
    CHECK(!sigprocmask(SIG_BLOCK, 0, &before));
}

static void execution(void) {
    set_up();
    for (int i = 1; i < BAD; i++) {
        char *arguments[] = {"true", (char *)bad[i], 0};
        FAILS(syscall(SYS_execve, "/bin/busybox", arguments, 0), EFAULT);
        FAILS(syscall(SYS_execve, "/bin/busybox", bad[i], 0), EFAULT);
    }
}

// The first part of a buffer is good, the rest isn't: what could be moved was moved, or nothing, but no lie.
static void half_good_buffers(void) {
    set_up();
    char *two = mmap(0, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(two + PAGE, PAGE);
    memset(two, 'x', PAGE);
    errno = 0;
    ssize_t got = pwrite(fd, two + PAGE - 3, 6, 0);
    CHECK(got == 3 || (got == -1 && errno == EFAULT));
    errno = 0;
    got = pread(fd, two + PAGE - 3, 6, 0);
    CHECK(got == 3 || (got == -1 && errno == EFAULT));
    // A name that runs into nothing, and one that just fits.
    memcpy(two + PAGE - 4, "/tmp", 4);
    FAILS(open(two + PAGE - 4, O_RDONLY), EFAULT);
    memcpy(two + PAGE - 5, "/tmp", 5);
    CHECK(open(two + PAGE - 5, O_RDONLY) >= 0);
    FAILS(syscall(SYS_fstat, fd, two + PAGE - 8), EFAULT);
    struct iovec parts[2] = {{"ab", 2}, {two + PAGE, 2}};
    errno = 0;
    got = pwritev(fd, parts, 2, 0);
    CHECK(got == 2 || (got == -1 && errno == EFAULT));
    parts[1].iov_len = (size_t)-1;
    FAILS(writev(fd, parts, 2), EINVAL);
    FAILS(writev(fd, parts, -1), EINVAL);
}

// Results into read-only memory.
static void read_only_results(void) {
    set_up();
    char *at = mmap(0, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    FAILS(pread(fd, at, 5, 0), EFAULT);
    FAILS(syscall(SYS_fstat, fd, at), EFAULT);
    FAILS(syscall(SYS_pipe2, at, 0), EFAULT);
    FAILS(syscall(SYS_uname, at), EFAULT);
    CHECK(at[0] == 0);
    // Reading into memory that was never touched works, also copy-on-write after fork.
    char *fresh = mmap(0, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pread(fd, fresh + 4 * PAGE - 5, 10, 0) == 10 && !memcmp(fresh + 4 * PAGE - 5, "0123456789", 10));
    pid_t child = fork();
    if (child == 0) _exit(pread(fd, fresh + 4 * PAGE - 5, 3, 5) != 3);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0 && !memcmp(fresh + 4 * PAGE - 5, "0123456789", 10));
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"input_and_output", input_and_output},
        {"paths", paths},
        {"results", results},
        {"terminals", terminals},
        {"signals_and_waiting", signals_and_waiting},
        {"execution", execution},
        {"half_good_buffers", half_good_buffers},
        {"read_only_results", read_only_results},
    };
    return RUN(cases, argc, argv);
}
