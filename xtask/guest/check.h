// What the guest tests share: named cases, each in a process of its own, and checks that go on after a failure.
//
// A test program lists its cases and ends with `return run_cases(...)`. Run without arguments it forks for each case and
// prints `ok NAME` or `FAILED NAME`, then a closing line; it exits 0 only if all held. `PROGRAM NAME` runs one case without
// forking. The same binaries run on Linux (`./uvm run --kernel linux`), which is how a test is proved right.
#ifndef CHECK_H
#define CHECK_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, CASE_SECONDS = 400 };

static int failed_checks;

__attribute__((unused)) static int check_(int holds, const char *what, const char *file, int line) {
    if (!holds) {
        int error = errno;
        const char *name = strrchr(file, '/');
        printf("  %s:%d: not so: %s (errno %d, %s)\n", name ? name + 1 : file, line, what, error, strerror(error));
        fflush(stdout);
        failed_checks++;
    }
    return holds;
}

#define CHECK(condition) check_(!!(condition), #condition, __FILE__, __LINE__)
// The call must fail with exactly this error.
#define FAILS(call, error) (errno = 0, check_((long)(call) == -1 && errno == (error), #call " fails with " #error, __FILE__, __LINE__))
// Without this, going on makes no sense.
#define NEED(condition) do { if (!CHECK(condition)) exit(1); } while (0)

// The number behind a name in a file of /proc, which has it.
__attribute__((unused)) static long number_after(const char *path, const char *name) {
    // Room for all groups that a process may have.
    static char text[1 << 19];
    int fd = open(path, O_RDONLY);
    NEED(fd >= 0);
    ssize_t length = 0, n;
    while ((n = read(fd, text + length, sizeof text - 1 - length)) > 0) length += n;
    close(fd);
    NEED(length > 0);
    text[length] = 0;
    char *line = strstr(text, name);
    NEED(line);
    return atol(line + strlen(name));
}

// A line of /proc/vmstat; -1 where there is none like it.
__attribute__((unused)) static long vmstat(const char *name) {
    static char text[1 << 16];
    int fd = open("/proc/vmstat", O_RDONLY);
    NEED(fd >= 0);
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    NEED(length > 0);
    text[length] = 0;
    size_t whole = strlen(name);
    for (char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (!strncmp(line, name, whole) && line[whole] == ' ') return atol(line + whole);
    }
    return -1;
}

// The kernel counts all mappings again. Linux has no such file.
__attribute__((unused)) static void audited(void) {
    char said[256];
    int fd = open("/proc/audit", O_RDONLY);
    if (fd < 0) return;
    ssize_t length = read(fd, said, sizeof said - 1);
    said[length < 0 ? 0 : length] = 0;
    if (!CHECK(!strcmp(said, "clean\n"))) printf("  it said: %s\n", said);
    close(fd);
}

// Sends bytes over a local socket with so many files along. The library's own call has room for fewer.
__attribute__((unused)) static ssize_t send_files(int over, const int *files, int count, const void *bytes, size_t length, int flags) {
    union { char bytes[CMSG_SPACE(300 * sizeof(int))]; struct cmsghdr header; } control = {0};
    struct iovec part = {(void *)bytes, length};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_SPACE(count * sizeof(int))};
    control.header = (struct cmsghdr){.cmsg_len = CMSG_LEN(count * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.header), files, count * sizeof(int));
    return syscall(SYS_sendmsg, over, &message, flags);
}

struct test_case {
    const char *name;
    void (*body)(void);
};

// Runs `body` in a child; returns its wait status, or -1.
__attribute__((unused)) static int in_child(void (*body)(void)) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        failed_checks = 0;
        body();
        fflush(stdout);
        _exit(failed_checks != 0);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child) return -1;
    return status;
}

__attribute__((unused)) static void in_time(void) { alarm(CASE_SECONDS); }

static void (*case_body)(void);

static void timed_case(void) {
    in_time();
    case_body();
}

__attribute__((unused)) static int run_cases(const struct test_case *cases, size_t count, int argc, char **argv) {
    int bad = 0, ran = 0;
    for (size_t i = 0; i < count; i++) {
        if (argc > 1) {
            if (strcmp(argv[1], cases[i].name)) continue;
            cases[i].body();
            return failed_checks != 0;
        }
        case_body = cases[i].body;
        int status = in_child(timed_case);
        ran++;
        if (status == 0) {
            printf("ok %s\n", cases[i].name);
        } else {
            bad++;
            printf("FAILED %s", cases[i].name);
            if (status == -1) printf(" (could not fork or wait)");
            else if (WIFSIGNALED(status)) printf(" (killed by signal %d)", WTERMSIG(status));
            printf("\n");
        }
        fflush(stdout);
    }
    printf("%s: %d of %d cases hold\n", argv[0], ran - bad, ran);
    return bad != 0;
}
#define RUN(cases, argc, argv) run_cases(cases, sizeof(cases) / sizeof *(cases), argc, argv)

// --- catching a fault ---------------------------------------------------------------------------------------------

static sigjmp_buf caught_jump;
static volatile sig_atomic_t caught_signal;
static volatile int caught_code;
static void *volatile caught_address;

__attribute__((unused)) static void catch_handler(int signal, siginfo_t *info, void *context) {
    (void)context;
    caught_signal = signal;
    caught_code = info->si_code;
    caught_address = info->si_addr;
    siglongjmp(caught_jump, 1);
}

// Installs the handler on a stack of its own, for every signal that a fault can raise.
__attribute__((unused)) static void catch_faults(void) {
    static char alternate[64 * 1024];
    stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};
    sigaltstack(&stack, 0);
    struct sigaction action = {.sa_sigaction = catch_handler, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) sigaction(signals[i], &action, 0);
}

// Runs a statement; afterwards caught_signal is 0 or the signal that it raised.
#define CATCH(statement) do { caught_signal = 0; if (!sigsetjmp(caught_jump, 1)) { statement; } } while (0)
#define RAISES(statement, signal, code, address) do { \
    CATCH(statement); \
    check_(caught_signal == (signal), #statement " raises " #signal, __FILE__, __LINE__); \
    check_(caught_code == (code), #statement " has code " #code, __FILE__, __LINE__); \
    check_(caught_address == (void *)(address), #statement " tells the address", __FILE__, __LINE__); \
} while (0)

#endif
