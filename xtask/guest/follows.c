// ptrace: stops at system calls, events, stops that the tracer asks for, register sets, watchpoints.
#include "check.h"
#include <elf.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>

#ifndef PTRACE_GET_SYSCALL_INFO
#define PTRACE_GET_SYSCALL_INFO 0x420e
#endif
#ifndef PTRACE_EVENT_STOP
#define PTRACE_EVENT_STOP 128
#endif

static int next(pid_t child) {
    int status = -1;
    NEED(waitpid(child, &status, __WALL) == child);
    return status;
}

static int stops(int status, int signal, int event) {
    int is = WIFSTOPPED(status) && status >> 8 == (signal | event << 8);
    if (!is) printf("  status %#x\n", status);
    return is;
}

// A child that wants to be traced, at its first stop.
static pid_t traced(void (*body)(void), long options) {
    fflush(stdout);
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, 0, 0)) _exit(99);
        kill(getpid(), SIGSTOP);
        body();
        _exit(0);
    }
    NEED(stops(next(child), SIGSTOP, 0));
    NEED(!ptrace(PTRACE_SETOPTIONS, child, 0, options));
    return child;
}

static void go(int request, pid_t child) { NEED(!ptrace(request, child, 0, 0)); }

static unsigned long message(pid_t child) {
    unsigned long is = -1;
    NEED(!ptrace(PTRACE_GETEVENTMSG, child, 0, &is));
    return is;
}

static void calls(void) {
    syscall(SYS_getppid);
    long pid = syscall(SYS_lseek, 77, 88, 99);
    if (pid != 1234) _exit(1);
    if (syscall(SYS_getuid) != 4321) _exit(2);
    _exit(3);
}

struct info {
    uint8_t op, pad[3];
    uint32_t arch;
    uint64_t ip, sp;
    union {
        struct { uint64_t nr, args[6]; } entry;
        struct { int64_t rval; uint8_t is_error; } exit;
    };
};

static void until_call(pid_t child, long number) {
    struct user_regs_struct regs;
    do {
        go(PTRACE_SYSCALL, child);
        NEED(stops(next(child), SIGTRAP | 0x80, 0) && !ptrace(PTRACE_GETREGS, child, 0, &regs));
        if ((long)regs.orig_rax == number) break;
        go(PTRACE_SYSCALL, child);
        NEED(stops(next(child), SIGTRAP | 0x80, 0));
    } while (1);
    CHECK((long)regs.rax == -ENOSYS);
}

static void calls_are_seen(void) {
    pid_t child = traced(calls, PTRACE_O_TRACESYSGOOD);
    struct user_regs_struct regs;
    struct info info;
    siginfo_t said;
    CHECK(ptrace(PTRACE_GET_SYSCALL_INFO, child, (void *)sizeof info, &info) == 24 && info.op == 0 && info.arch == 0xc000003e);
    until_call(child, SYS_getppid);
    CHECK(!ptrace(PTRACE_GETSIGINFO, child, 0, &said) && said.si_signo == SIGTRAP && said.si_code == (SIGTRAP | 0x80));
    CHECK(message(child) == 1);
    go(PTRACE_SYSCALL, child);
    NEED(stops(next(child), SIGTRAP | 0x80, 0));
    CHECK(message(child) == 2);
    CHECK(!ptrace(PTRACE_GETREGS, child, 0, &regs) && (pid_t)regs.rax == getpid() && regs.orig_rax == SYS_getppid);
    CHECK(ptrace(PTRACE_GET_SYSCALL_INFO, child, (void *)sizeof info, &info) == 33);
    CHECK(info.op == 2 && info.exit.rval == getpid() && !info.exit.is_error && info.ip == regs.rip && info.sp == regs.rsp);
    until_call(child, SYS_lseek);
    CHECK(ptrace(PTRACE_GET_SYSCALL_INFO, child, (void *)sizeof info, &info) == 80);
    CHECK(info.op == 1 && info.entry.nr == SYS_lseek && info.entry.args[0] == 77 && info.entry.args[2] == 99);
    // The tracer says what it returns.
    go(PTRACE_SYSCALL, child);
    NEED(stops(next(child), SIGTRAP | 0x80, 0));
    CHECK(ptrace(PTRACE_GET_SYSCALL_INFO, child, (void *)sizeof info, &info) == 33 && info.exit.rval == -EBADF && info.exit.is_error);
    NEED(!ptrace(PTRACE_POKEUSER, child, offsetof(struct user_regs_struct, rax), 1234));
    // And that another one isn't made.
    until_call(child, SYS_getuid);
    NEED(!ptrace(PTRACE_POKEUSER, child, offsetof(struct user_regs_struct, orig_rax), -1));
    go(PTRACE_SYSCALL, child);
    NEED(stops(next(child), SIGTRAP | 0x80, 0) && !ptrace(PTRACE_GETREGS, child, 0, &regs));
    CHECK((long)regs.rax == -ENOSYS);
    NEED(!ptrace(PTRACE_POKEUSER, child, offsetof(struct user_regs_struct, rax), 4321));
    go(PTRACE_CONT, child);
    CHECK(next(child) == 3 << 8);
}

static void forks(void) {
    pid_t child = fork();
    if (!child) _exit(5);
    int status;
    if (waitpid(child, &status, 0) != child || status != 5 << 8) _exit(1);
    child = vfork();
    if (!child) _exit(6);
    waitpid(child, &status, 0);
    execl("/proc/self/exe", "x", "exits", (char *)0);
    _exit(2);
}

static void children_are_followed(void) {
    pid_t child = traced(forks, PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACEVFORKDONE | PTRACE_O_TRACEEXEC | PTRACE_O_TRACEEXIT);
    for (int i = 0; i < 2; i++) {
        go(PTRACE_CONT, child);
        NEED(stops(next(child), SIGTRAP, i ? PTRACE_EVENT_VFORK : PTRACE_EVENT_FORK));
        pid_t grandchild = message(child);
        NEED(stops(next(grandchild), SIGSTOP, 0));
        go(PTRACE_CONT, child);
        go(PTRACE_CONT, grandchild);
        NEED(stops(next(grandchild), SIGTRAP, PTRACE_EVENT_EXIT));
        CHECK(message(grandchild) == (unsigned)(5 + i) << 8);
        go(PTRACE_CONT, grandchild);
        if (i) {
            NEED(stops(next(child), SIGTRAP, PTRACE_EVENT_VFORK_DONE));
            CHECK((pid_t)message(child) == grandchild);
            go(PTRACE_CONT, child);
        }
        CHECK(next(grandchild) == (5 + i) << 8);
        NEED(stops(next(child), SIGCHLD, 0));
    }
    go(PTRACE_CONT, child);
    NEED(stops(next(child), SIGTRAP, PTRACE_EVENT_EXEC));
    CHECK((pid_t)message(child) == child);
    siginfo_t said;
    CHECK(!ptrace(PTRACE_GETSIGINFO, child, 0, &said) && said.si_code == (SIGTRAP | PTRACE_EVENT_EXEC << 8));
    go(PTRACE_CONT, child);
    NEED(stops(next(child), SIGTRAP, PTRACE_EVENT_EXIT));
    CHECK(message(child) == 9 << 8);
    go(PTRACE_CONT, child);
    CHECK(next(child) == 9 << 8);
}

static void *ends(void *nothing) { return nothing; }

static void makes_threads(void) {
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        NEED(!pthread_create(&thread, 0, ends, 0) && !pthread_join(thread, 0));
    }
    _exit(4);
}

static void threads_are_followed(void) {
    pid_t child = traced(makes_threads, PTRACE_O_TRACECLONE);
    for (int i = 0; i < 3; i++) {
        if (!i) go(PTRACE_CONT, child);
        NEED(stops(next(child), SIGTRAP, PTRACE_EVENT_CLONE));
        pid_t thread = message(child);
        NEED(stops(next(thread), SIGSTOP, 0));
        go(PTRACE_CONT, i % 2 ? thread : child);
        usleep(10000);
        go(PTRACE_CONT, i % 2 ? child : thread);
        int status = next(thread);
        CHECK(status == 0 || (i == 2 && status == 4 << 8));
    }
    CHECK(next(child) == 4 << 8);
}

static void spins(void) { for (;;) pause(); }

static void seized_ones_are_stopped(void) {
    fflush(stdout);
    pid_t child = fork();
    if (!child) spins();
    FAILS(ptrace(PTRACE_INTERRUPT, child, 0, 0), ESRCH);
    FAILS(ptrace(PTRACE_SEIZE, child, 0, 0x40000000), EIO);
    NEED(!ptrace(PTRACE_SEIZE, child, 0, PTRACE_O_TRACESYSGOOD));
    usleep(20000);
    NEED(!ptrace(PTRACE_INTERRUPT, child, 0, 0));
    NEED(stops(next(child), SIGTRAP, PTRACE_EVENT_STOP));
    go(PTRACE_CONT, child);
    NEED(!kill(child, SIGSTOP));
    NEED(stops(next(child), SIGSTOP, 0));
    NEED(!ptrace(PTRACE_CONT, child, 0, SIGSTOP));
    NEED(stops(next(child), SIGSTOP, PTRACE_EVENT_STOP));
    NEED(!ptrace(PTRACE_LISTEN, child, 0, 0));
    FAILS(ptrace(PTRACE_CONT, child, 0, 0), ESRCH);
    int status;
    usleep(20000);
    CHECK(waitpid(child, &status, __WALL | WNOHANG) == 0);
    NEED(!kill(child, SIGCONT));
    NEED(stops(next(child), SIGTRAP, PTRACE_EVENT_STOP));
    go(PTRACE_CONT, child);
    NEED(stops(next(child), SIGCONT, 0));
    NEED(!ptrace(PTRACE_CONT, child, 0, SIGCONT));
    NEED(!ptrace(PTRACE_INTERRUPT, child, 0, 0));
    NEED(stops(next(child), SIGTRAP, PTRACE_EVENT_STOP));
    NEED(!ptrace(PTRACE_DETACH, child, 0, 0) && !kill(child, SIGKILL));
    CHECK(next(child) == SIGKILL);
}

static void group_stops_are_seen(void) {
    pid_t child = traced(spins, 0);
    siginfo_t said;
    go(PTRACE_CONT, child);
    NEED(!kill(child, SIGSTOP));
    NEED(stops(next(child), SIGSTOP, 0));
    CHECK(!ptrace(PTRACE_GETSIGINFO, child, 0, &said) && said.si_signo == SIGSTOP);
    NEED(!ptrace(PTRACE_CONT, child, 0, SIGSTOP));
    NEED(stops(next(child), SIGSTOP, 0));
    FAILS(ptrace(PTRACE_GETSIGINFO, child, 0, &said), EINVAL);
    FAILS(ptrace(PTRACE_LISTEN, child, 0, 0), EIO);
    // It goes on though its process is stopped.
    go(PTRACE_CONT, child);
    NEED(!kill(child, SIGUSR1));
    NEED(stops(next(child), SIGUSR1, 0));
    NEED(!ptrace(PTRACE_CONT, child, 0, SIGUSR1));
    CHECK(next(child) == SIGUSR1);
}

static void tells_xmm(void) {
    volatile double x = 1.5;
    __asm__ volatile("movsd %0, %%xmm7\n int3\n movsd %%xmm7, %0" : "+m"(x) : : "xmm7");
    _exit(x == 2.5 ? 8 : 7);
}

static void register_sets(void) {
    pid_t child = traced(tells_xmm, 0);
    go(PTRACE_CONT, child);
    NEED(stops(next(child), SIGTRAP, 0));
    struct user_fpregs_struct fp;
    struct user_regs_struct regs;
    static unsigned char state[8192];
    struct iovec piece = {&fp, sizeof fp};
    NEED(!ptrace(PTRACE_GETREGSET, child, NT_PRFPREG, &piece) && piece.iov_len == sizeof fp);
    double value;
    memcpy(&value, &fp.xmm_space[7 * 4], 8);
    CHECK(value == 1.5);
    struct user_fpregs_struct also;
    CHECK(!ptrace(PTRACE_GETFPREGS, child, 0, &also) && !memcmp(also.xmm_space, fp.xmm_space, sizeof fp.xmm_space));
    piece = (struct iovec){state, sizeof state};
    if (!ptrace(PTRACE_GETREGSET, child, NT_X86_XSTATE, &piece)) {
        CHECK(piece.iov_len >= 576 && (state[464] & 3) == 3 && !memcmp(state + 160, fp.xmm_space, 256));
        state[24] = state[25] = state[26] = state[27] = 0xff;
        FAILS(ptrace(PTRACE_SETREGSET, child, NT_X86_XSTATE, &piece), EINVAL);
    }
    value = 2.5;
    memcpy(&fp.xmm_space[7 * 4], &value, 8);
    piece = (struct iovec){&fp, sizeof fp};
    CHECK(!ptrace(PTRACE_SETREGSET, child, NT_PRFPREG, &piece));
    piece = (struct iovec){&regs, sizeof regs};
    CHECK(!ptrace(PTRACE_GETREGSET, child, NT_PRSTATUS, &piece) && piece.iov_len == sizeof regs);
    CHECK(!ptrace(PTRACE_SETREGSET, child, NT_PRSTATUS, &piece));
    FAILS(ptrace(PTRACE_GETREGSET, child, 0x999, &piece), EINVAL);
    go(PTRACE_CONT, child);
    CHECK(next(child) == 8 << 8);
}

static void masks_and_details(void) {
    pid_t child = traced(spins, 0);
    unsigned long mask = ~0UL, was = 1;
    siginfo_t said;
    CHECK(!ptrace(PTRACE_GETSIGMASK, child, 8, &was));
    FAILS(ptrace(PTRACE_GETSIGMASK, child, 4, &was), EINVAL);
    mask = 1UL << (SIGUSR1 - 1);
    CHECK(!ptrace(PTRACE_SETSIGMASK, child, 8, &mask) && !ptrace(PTRACE_GETSIGMASK, child, 8, &was) && was == mask);
    NEED(!kill(child, SIGUSR1));
    go(PTRACE_CONT, child);
    usleep(20000);
    int status;
    CHECK(waitpid(child, &status, WNOHANG) == 0);
    NEED(!kill(child, SIGUSR2) && stops(next(child), SIGUSR2, 0));
    NEED(!ptrace(PTRACE_GETSIGINFO, child, 0, &said));
    CHECK(said.si_pid == getpid());
    said.si_pid = 77;
    CHECK(!ptrace(PTRACE_SETSIGINFO, child, 0, &said) && !ptrace(PTRACE_GETSIGINFO, child, 0, &said) && said.si_pid == 77);
    mask = 0;
    CHECK(!ptrace(PTRACE_SETSIGMASK, child, 8, &mask));
    go(PTRACE_CONT, child);
    NEED(stops(next(child), SIGUSR1, 0));
    NEED(!ptrace(PTRACE_KILL, child, 0, 0));
    CHECK(next(child) == SIGKILL);
}

static void tracees_end_with_their_tracer(void) {
    int ends[2];
    NEED(!pipe(ends));
    fflush(stdout);
    pid_t tracer = fork();
    if (!tracer) {
        pid_t child = traced(spins, PTRACE_O_EXITKILL);
        go(PTRACE_CONT, child);
        _exit(0);
    }
    close(ends[1]);
    CHECK(next(tracer) == 0);
    char byte;
    CHECK(read(ends[0], &byte, 1) == 0);
}

// --- watchpoints ---

#define DEBUG(n) (offsetof(struct user, u_debugreg) + 8 * (n))

static volatile long watched, other;
static int ends_of_pipe[2];

static void writes(void) {
    other = 1;
    watched = 2;
    other = 3;
    char byte[8] = "12345678";
    NEED(write(ends_of_pipe[1], byte, 8) == 8);
    // Here it is the kernel that writes, which isn't told.
    NEED(read(ends_of_pipe[0], (void *)&watched, 8) == 8);
    other = watched;
    for (int i = 0; i < 3; i++) sched_yield();
    _exit(other == 0x3837363534333231 ? 6 : 5);
}

__attribute__((noinline)) static void *and_not_i(void *nothing) {
    watched = 77;
    return nothing;
}

static void also_by_a_thread(void) {
    pthread_t thread;
    watched = 1;
    NEED(!pthread_create(&thread, 0, and_not_i, 0) && !pthread_join(thread, 0));
    watched = 2;
    _exit(4);
}

static int is_met(pid_t child, int number) {
    siginfo_t said;
    if (!stops(next(child), SIGTRAP, 0) || ptrace(PTRACE_GETSIGINFO, child, 0, &said)) return 0;
    long status = ptrace(PTRACE_PEEKUSER, child, DEBUG(6), 0);
    if (said.si_code != 4 || (status & 0xf) != 1 << number) return printf("  code %d status %#lx\n", said.si_code, status), 0;
    return !ptrace(PTRACE_POKEUSER, child, DEBUG(6), 0);
}

static void watchpoints(void) {
    NEED(!pipe(ends_of_pipe));
    pid_t child = traced(writes, 0);
    FAILS(ptrace(PTRACE_POKEUSER, child, DEBUG(0), 0xffff800000000000), EINVAL);
    FAILS(ptrace(PTRACE_POKEUSER, child, DEBUG(0), 0xffffffff80000000), EINVAL);
    FAILS(ptrace(PTRACE_POKEUSER, child, DEBUG(4), 0), EIO);
    FAILS(ptrace(PTRACE_POKEUSER, child, DEBUG(7), 2 << 16 | 1), EINVAL);
    // Eight bytes, for writes, at the second address.
    NEED(!ptrace(PTRACE_POKEUSER, child, DEBUG(1), &watched));
    CHECK(ptrace(PTRACE_PEEKUSER, child, DEBUG(1), 0) == (long)&watched);
    NEED(!ptrace(PTRACE_POKEUSER, child, DEBUG(7), 9 << 20 | 1 << 2));
    go(PTRACE_CONT, child);
    CHECK(is_met(child, 1) && ptrace(PTRACE_PEEKDATA, child, &watched, 0) == 2 && ptrace(PTRACE_PEEKDATA, child, &other, 0) == 1);
    go(PTRACE_CONT, child);
    CHECK(next(child) == 6 << 8);
    // A watchpoint is one thread's.
    child = traced(also_by_a_thread, 0);
    NEED(!ptrace(PTRACE_POKEUSER, child, DEBUG(0), &watched));
    NEED(!ptrace(PTRACE_POKEUSER, child, DEBUG(7), 9 << 16 | 1));
    go(PTRACE_CONT, child);
    CHECK(is_met(child, 0) && ptrace(PTRACE_PEEKDATA, child, &watched, 0) == 1);
    go(PTRACE_CONT, child);
    CHECK(is_met(child, 0) && ptrace(PTRACE_PEEKDATA, child, &watched, 0) == 2);
    NEED(!ptrace(PTRACE_POKEUSER, child, DEBUG(7), 0));
    NEED(!ptrace(PTRACE_DETACH, child, 0, 0));
    CHECK(next(child) == 4 << 8);
}

static void runs_here(void) {
    and_not_i(0);
    and_not_i(0);
    _exit(watched == 77 ? 3 : 2);
}

static void breakpoints_of_the_cpu(void) {
    pid_t child = traced(runs_here, 0);
    NEED(!ptrace(PTRACE_POKEUSER, child, DEBUG(3), and_not_i));
    NEED(!ptrace(PTRACE_POKEUSER, child, DEBUG(7), 1 << 6));
    for (int i = 0; i < 2; i++) {
        go(PTRACE_CONT, child);
        CHECK(is_met(child, 3));
        CHECK(ptrace(PTRACE_PEEKUSER, child, offsetof(struct user_regs_struct, rip), 0) == (long)and_not_i);
    }
    go(PTRACE_CONT, child);
    int status = next(child);
    if (!CHECK(status == 3 << 8)) printf("  status %#x at %#lx\n", status, ptrace(PTRACE_PEEKUSER, child, offsetof(struct user_regs_struct, rip), 0));
}

// Its tracer ends while it runs, and it is met all the same.
static void breakpoints_outlive_the_tracer(void) {
    int ends[2];
    NEED(!pipe(ends));
    pid_t tracer = fork();
    if (!tracer) {
        pid_t child = fork();
        if (!child) {
            struct timespec start, now;
            if (ptrace(PTRACE_TRACEME, 0, 0, 0)) _exit(99);
            kill(getpid(), SIGSTOP);
            clock_gettime(CLOCK_MONOTONIC, &start);
            do clock_gettime(CLOCK_MONOTONIC, &now);
            while ((now.tv_sec - start.tv_sec) * 1000000000 + now.tv_nsec - start.tv_nsec < 300000000);
            and_not_i(0);
            write(ends[1], "x", 1);
            _exit(0);
        }
        NEED(stops(next(child), SIGSTOP, 0));
        NEED(!ptrace(PTRACE_POKEUSER, child, DEBUG(0), and_not_i) && !ptrace(PTRACE_POKEUSER, child, DEBUG(7), 1));
        go(PTRACE_CONT, child);
        usleep(50000);
        _exit(0);
    }
    char byte;
    close(ends[1]);
    CHECK(next(tracer) == 0 && read(ends[0], &byte, 1) == 0);
    close(ends[0]);
}

static volatile int trap_code;
static void traps(int signal, siginfo_t *info, void *context) {
    trap_code = info->si_code;
    if (signal == SIGILL) ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP]++, trap_code = TRAP_BRKPT;
}

static void icebp(void) {
    struct sigaction action = {.sa_sigaction = traps, .sa_flags = SA_SIGINFO}, before;
    NEED(!sigaction(SIGTRAP, &action, &before));
    // QEMU's own CPU doesn't know the instruction.
    NEED(!sigaction(SIGILL, &action, NULL));
    __asm__ volatile(".byte 0xf1");
    CHECK(trap_code == TRAP_BRKPT);
    NEED(!sigaction(SIGTRAP, &before, NULL) && !sigaction(SIGILL, &before, NULL));
}

// A trap that waits behind a load of the stack's selector comes upon the kernel's first instruction.
static void steps_into_the_kernel(void) {
    for (int i = 0; i < 100; i++) {
        pid_t child = fork();
        if (!child) {
            unsigned short ss;
            signal(SIGTRAP, SIG_IGN);
            __asm__ volatile("mov %%ss, %0" : "=m"(ss));
            __asm__ volatile("pushfq\n orq $0x100, (%%rsp)\n mov $39, %%eax\n popfq\n mov %0, %%ss\n syscall\n"
                             "mov $39, %%eax\n mov %0, %%ss\n int3\n mov %0, %%ss\n int $4"
                             : : "m"(ss) : "rax", "rcx", "r11", "memory");
            _exit(0);
        }
        int status;
        NEED(waitpid(child, &status, 0) == child);
    }
}

static void waits(void) { for (;;) pause(); }

// In every state.
static void tracees_are_killed(void) {
    for (int at = 0; at < 4; at++) {
        pid_t child = traced(waits, PTRACE_O_TRACESYSGOOD);
        int status;
        if (at > 0) go(at == 3 ? PTRACE_SYSCALL : PTRACE_CONT, child);
        if (at == 2) usleep(20000);
        if (at == 3) NEED(stops(next(child), SIGTRAP | 0x80, 0));
        CHECK(!ptrace(PTRACE_KILL, child, 0, 0));
        status = next(child);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        FAILS(ptrace(PTRACE_KILL, child, 0, 0), ESRCH);
    }
    FAILS(ptrace(PTRACE_KILL, 1, 0, 0), ESRCH);
}

static void makes_one(void) {
    if (!fork()) _exit(0);
    waits();
}

static void stops_beside_ends(void) {
    pid_t child = traced(makes_one, PTRACE_O_TRACEFORK);
    siginfo_t said;
    go(PTRACE_CONT, child);
    NEED(stops(next(child), SIGTRAP, PTRACE_EVENT_FORK));
    pid_t other = message(child);
    NEED(stops(next(other), SIGSTOP, 0));
    go(PTRACE_CONT, other);
    NEED(!waitid(P_PID, other, &said, WEXITED | WNOWAIT) && said.si_pid == other);
    NEED(!kill(child, SIGUSR1));
    go(PTRACE_CONT, child);
    usleep(100000);
    said.si_pid = 0;
    CHECK(!waitid(P_ALL, 0, &said, WSTOPPED | WNOHANG) && said.si_pid == child && said.si_code == CLD_TRAPPED);
    CHECK(next(other) == 0);
    go(PTRACE_KILL, child);
    next(child);
}

static volatile int told;
static void tells(int signal) { (void)signal, told++; }

static void stops_go_untold(void) {
    struct sigaction quiet = {.sa_handler = tells, .sa_flags = SA_NOCLDSTOP}, before;
    NEED(!sigaction(SIGCHLD, &quiet, &before));
    pid_t child = traced(waits, 0);
    CHECK(told == 0);
    go(PTRACE_KILL, child);
    next(child);
    CHECK(told == 1);
    NEED(!sigaction(SIGCHLD, &before, NULL));
}

static uint64_t capabilities(void) {
    struct { uint32_t version; int pid; } head = {0x20080522, 0};
    struct { uint32_t effective, permitted, inheritable; } sets[2];
    NEED(!syscall(SYS_capget, &head, sets));
    return sets[0].permitted | (uint64_t)sets[1].permitted << 32;
}

// What a tracee runs gains no more rights than the tracer had when it began, though it has gained
// some since.
static void tracers_that_gain(void) {
    struct { uint32_t version; int pid; } head = {0x20080522, 0};
    uint32_t none[6] = {0};
    int ready[2];
    char byte = 0;
    NEED(!pipe(ready));
    pid_t tracer = fork();
    if (!tracer) {
        NEED(!syscall(SYS_capset, &head, none));
        pid_t child = fork();
        if (!child) {
            NEED(read(ready[0], &byte, 1) == 1);
            execl("/proc/self/exe", "follows", "gained", NULL);
            _exit(99);
        }
        NEED(!ptrace(PTRACE_SEIZE, child, 0, 0));
        execl("/proc/self/exe", "follows", "tracer", NULL);
        _exit(98);
    }
    usleep(200000);
    NEED(write(ready[1], &byte, 1) == 1);
    int status = next(tracer);
    if (!CHECK(status == 20 << 8)) printf("  status %#x\n", status);
}

static const struct test_case cases[] = {
    {"calls_are_seen", calls_are_seen},
    {"children_are_followed", children_are_followed},
    {"threads_are_followed", threads_are_followed},
    {"seized_ones_are_stopped", seized_ones_are_stopped},
    {"group_stops_are_seen", group_stops_are_seen},
    {"register_sets", register_sets},
    {"masks_and_details", masks_and_details},
    {"tracees_end_with_their_tracer", tracees_end_with_their_tracer},
    {"watchpoints", watchpoints},
    {"breakpoints_of_the_cpu", breakpoints_of_the_cpu},
    {"breakpoints_outlive_the_tracer", breakpoints_outlive_the_tracer},
    {"icebp", icebp},
    {"steps_into_the_kernel", steps_into_the_kernel},
    {"tracers_that_gain", tracers_that_gain},
    {"stops_go_untold", stops_go_untold},
    {"stops_beside_ends", stops_beside_ends},
    {"tracees_are_killed", tracees_are_killed},
};

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "exits")) return 9;
    if (argc > 1 && !strcmp(argv[1], "gained")) return capabilities() ? 0 : 10;
    if (argc > 1 && !strcmp(argv[1], "tracer")) {
        // It has gained itself: 10 more.
        int status = -1;
        return wait(&status) > 0 && WIFEXITED(status) && capabilities() ? 10 + WEXITSTATUS(status) : 1;
    }
    return RUN(cases, argc, argv);
}
