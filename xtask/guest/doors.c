// The ways into the kernel and out of it: registers that a program, or its debugger, chooses so that the way back would fault in the
// kernel's name, and segment registers that it loads without a call.
#include "check.h"
#include <sched.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/time.h>
#include <sys/user.h>
#include <ucontext.h>

enum { SET_GS = 0x1001, SET_FS = 0x1002, GET_FS = 0x1003 };

// Not canonical; half of the kernel. The last two are addresses of programs where tables have five levels, as Linux's do here.
static const unsigned long bad[] = {0x8000000000000000, 0xffff7fffffffffff, 0xffff800000000000, -1ul, 0x800000000000, 0x7ffffffff000};
enum { BAD = sizeof bad / sizeof *bad, BAD_FOR_ALL = BAD - 2 };

static long call(long number, long a, long b, long c, long d, long e) {
    register long r10 asm("r10") = d, r8 asm("r8") = e;
    long result;
    asm volatile("syscall" : "=a"(result) : "0"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8) : "rcx", "r11", "memory");
    return result;
}

static void bases_are_addresses_of_programs(void) {
    enum { SETTLS = 0x80000 };
    for (int i = 0; i < BAD_FOR_ALL; i++) {
        long child = call(SYS_clone, SETTLS | SIGCHLD, 0, 0, 0, bad[i]);
        if (child == 0) call(SYS_exit_group, 0, 0, 0, 0, 0);
        CHECK(child == -EPERM);
        CHECK(call(SYS_arch_prctl, SET_FS, bad[i], 0, 0, 0) == -EPERM);
        CHECK(call(SYS_arch_prctl, SET_GS, bad[i], 0, 0, 0) == -EPERM);
    }
    long child = call(SYS_clone, SETTLS | SIGCHLD, 0, 0, 0, 0x7fffffffefff);
    if (child == 0) call(SYS_exit_group, 7, 0, 0, 0, 0);
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 7 << 8);
}

static int dies_of(int status, int signal) { return status != -1 && WIFSIGNALED(status) && WTERMSIG(status) == signal; }

static unsigned long chosen;

static void handle_at(int signal) {
    struct sigaction action = {.sa_handler = (void (*)(int))chosen};
    sigaction(signal, &action, 0);
}

static void fault_with_bad_handler(void) {
    handle_at(SIGSEGV);
    static int *volatile nowhere = (int *)8;
    *nowhere = 1;
}

static void raise_with_bad_handler(void) {
    handle_at(SIGUSR1);
    raise(SIGUSR1);
}

static void tick_with_bad_handler(void) {
    handle_at(SIGALRM);
    struct itimerval soon = {.it_value = {.tv_usec = 20000}};
    setitimer(ITIMER_REAL, &soon, 0);
    for (;;) asm volatile("");
}

static void handlers_may_lie_anywhere(void) {
    for (int i = 0; i < BAD; i++) {
        chosen = bad[i];
        CHECK(dies_of(in_child(fault_with_bad_handler), SIGSEGV));
        CHECK(dies_of(in_child(raise_with_bad_handler), SIGSEGV));
        CHECK(dies_of(in_child(tick_with_bad_handler), SIGSEGV));
    }
}

static int register_chosen;

static void change_registers(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    ((ucontext_t *)context)->uc_mcontext.gregs[register_chosen] = chosen;
}

static void return_badly(void) {
    struct sigaction action = {.sa_sigaction = change_registers, .sa_flags = SA_SIGINFO};
    sigaction(SIGUSR1, &action, 0);
    raise(SIGUSR1);
    // A stack pointer is bad once it is used.
    asm volatile("push %rax");
}

static void handlers_may_return_anywhere(void) {
    for (int i = 0; i < BAD; i++) {
        chosen = bad[i];
        register_chosen = REG_RIP;
        CHECK(dies_of(in_child(return_badly), SIGSEGV));
        register_chosen = REG_RSP;
        int status = in_child(return_badly);
        CHECK(dies_of(status, SIGSEGV) || dies_of(status, SIGBUS));
    }
}

static void signal_on_bad_stack(void) {
    stack_t stack = {.ss_sp = (void *)chosen, .ss_size = 1 << 16};
    if (sigaltstack(&stack, 0) != 0) _exit(3);
    struct sigaction action = {.sa_sigaction = change_registers, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigaction(SIGUSR1, &action, 0);
    raise(SIGUSR1);
}

static void stacks_of_signals_may_lie_anywhere(void) {
    for (int i = 0; i < BAD; i++) {
        chosen = bad[i];
        CHECK(dies_of(in_child(signal_on_bad_stack), SIGSEGV));
    }
}

static void a_debugger_may_choose_any_registers(void) {
    for (int i = 0; i < BAD_FOR_ALL; i++) {
        pid_t child = fork();
        if (child == 0) {
            ptrace(PTRACE_TRACEME, 0, 0, 0);
            raise(SIGSTOP);
            _exit(0);
        }
        int status;
        NEED(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
        struct user_regs_struct registers, other;
        NEED(ptrace(PTRACE_GETREGS, child, 0, &registers) == 0);
        other = registers;
        other.fs_base = bad[i];
        FAILS(ptrace(PTRACE_SETREGS, child, 0, &other), EIO);
        other = registers;
        other.gs_base = bad[i];
        FAILS(ptrace(PTRACE_SETREGS, child, 0, &other), EIO);
        other = registers;
        other.rip = bad[i];
        NEED(ptrace(PTRACE_SETREGS, child, 0, &other) == 0);
        NEED(ptrace(PTRACE_CONT, child, 0, 0) == 0);
        CHECK(waitpid(child, &status, 0) == child && WIFSTOPPED(status) && WSTOPSIG(status) == SIGSEGV);
        kill(child, SIGKILL);
        waitpid(child, 0, 0);
    }
}

static __thread volatile long own = 4711;

// A child that loads selectors all the time takes nobody's bases away.
static void selectors_are_ones_own(void) {
    for (int which = 0; which < 3; which++) {
        pid_t child = fork();
        if (child == 0) {
            for (;;) {
                if (which == 0) asm volatile("mov %0, %%fs" ::"r"(0));
                if (which == 1) asm volatile("mov %0, %%fs" ::"r"(0x2b));
                if (which == 2) asm volatile("mov %0, %%gs" ::"r"(0));
                call(SYS_sched_yield, 0, 0, 0, 0, 0);
            }
        }
        NEED(child > 0);
        long area[2] = {1, 4712}, seen;
        NEED(call(SYS_arch_prctl, SET_GS, (long)area, 0, 0, 0) == 0);
        for (int n = 0; n < 3000; n++) {
            NEED(own == 4711);
            asm volatile("mov %%gs:8, %0" : "=r"(seen));
            NEED(seen == 4712);
            sched_yield();
        }
        kill(child, SIGKILL);
        int status;
        CHECK(waitpid(child, &status, 0) == child && dies_of(status, SIGKILL));
    }
}

// Nothing between the first load and the last call may use what FS is for.
static void a_base_that_was_lost_is_set_again(void) {
    static long area[2] = {1, 4713};
    long own_base = 0, seen = 0, result;
    NEED(call(SYS_arch_prctl, GET_FS, (long)&own_base, 0, 0, 0) == 0);
    CHECK(call(SYS_arch_prctl, SET_FS, (long)area, 0, 0, 0) == 0);
    asm volatile("mov %0, %%fs" ::"r"(0));
    result = call(SYS_arch_prctl, SET_FS, (long)area, 0, 0, 0);
    asm volatile("mov %%fs:8, %0" : "=r"(seen));
    asm volatile("mov %0, %%fs" ::"r"(0));
    long child = call(SYS_fork, 0, 0, 0, 0, 0);
    if (child == 0) {
        call(SYS_arch_prctl, SET_FS, own_base, 0, 0, 0);
        call(SYS_exit_group, own == 4711 ? 0 : 1, 0, 0, 0, 0);
    }
    call(SYS_arch_prctl, SET_FS, own_base, 0, 0, 0);
    CHECK(result == 0 && seen == 4713 && own == 4711);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static const struct test_case cases[] = {
    {"bases are addresses of programs", bases_are_addresses_of_programs},
    {"handlers may lie anywhere", handlers_may_lie_anywhere},
    {"handlers may return anywhere", handlers_may_return_anywhere},
    {"stacks of signals may lie anywhere", stacks_of_signals_may_lie_anywhere},
    {"a debugger may choose any registers", a_debugger_may_choose_any_registers},
    {"selectors are one's own", selectors_are_ones_own},
    {"a base that was lost is set again", a_base_that_was_lost_is_set_again},
};

int main(int argc, char **argv) { return RUN(cases, argc, argv); }
