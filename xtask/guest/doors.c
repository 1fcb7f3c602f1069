// The ways into the kernel and out of it: registers that a program, or its debugger, chooses so that the way back would fault in the
// kernel's name, and segment registers that it loads without a call.
#include "check.h"
#include <sched.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/time.h>
#include <sys/user.h>
#include <sys/utsname.h>
#include <stddef.h>
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

// The number of a child that can't be told to its parent is no reason to have none.
static void a_number_goes_nowhere(void) {
    enum { PARENT_SETTID = 0x100000 };
    long child = call(SYS_clone, PARENT_SETTID | SIGCHLD, 0, 8, 0, 0);
    if (child == 0) call(SYS_exit_group, 7, 0, 0, 0, 0);
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 7 << 8);
}

static int dies_of(int status, int signal) { return status != -1 && WIFSIGNALED(status) && WTERMSIG(status) == signal; }

static unsigned long chosen;

static const char *kernel_name(void) {
    static struct utsname name;
    uname(&name);
    return strstr(name.version, "uvm") || strstr(name.release, "uvm") ? "uvm" : name.sysname;
}

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

// What a frame holds beside the registers: selectors, the vector state.
enum { FRAME_CS, FRAME_SS, FRAME_MXCSR, FRAME_COMPONENTS, FRAME_FORM, FRAME_RESERVED, FRAME_MASK, FRAME_NOWHERE, FRAME_PARTS };
static int part;

static void change_frame(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    mcontext_t *frame = &((ucontext_t *)context)->uc_mcontext;
    unsigned short *selectors = (unsigned short *)&frame->gregs[REG_CSGSFS];
    char *state = (char *)frame->fpregs;
    switch (part) {
    case FRAME_CS: selectors[0] = chosen; break;
    case FRAME_SS: selectors[3] = chosen; break;
    case FRAME_MXCSR: memcpy(state + 24, &chosen, 4); break;
    case FRAME_COMPONENTS: memcpy(state + 512, &chosen, 8); break;
    case FRAME_FORM: memcpy(state + 520, &chosen, 8); break;
    case FRAME_RESERVED: memcpy(state + 528, &chosen, 8); break;
    case FRAME_MASK: memcpy(state + 24, &(unsigned[]){chosen, -1u}, 8); break;
    case FRAME_NOWHERE: frame->fpregs = (void *)chosen; break;
    }
}

static void return_changed(void) {
    struct sigaction action = {.sa_sigaction = change_frame, .sa_flags = SA_SIGINFO};
    sigaction(SIGUSR1, &action, 0);
    raise(SIGUSR1);
    unsigned control;
    asm volatile("stmxcsr %0" : "=m"(control));
    // The vector state still works, and has no bits that there aren't.
    volatile double two = 2;
    _exit(two * two == 4 && !(control >> 16) ? 7 : 8);
}

static int is_extended(void) {
    unsigned a = 1, b, c = 0, d;
    asm volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    return c >> 27 & 1;
}

static void frames_may_hold_anything(void) {
    static const unsigned long selectors[] = {0, 3, 8, 0x0b, 0x10, 0x13, 0x18, 0x1b, 0x38, 0x3b, 0x40, 0x43, 0x7, 0xfff8, 0xfffb, 0xffff};
    int is_wrong = 0;
    for (part = FRAME_CS; part <= FRAME_SS; part++)
        for (size_t i = 0; i < sizeof selectors / sizeof *selectors; i++) {
            chosen = selectors[i];
            is_wrong |= !dies_of(in_child(return_changed), SIGSEGV);
        }
    CHECK(!is_wrong);
    // The machine that QEMU makes up loads any control word; others refuse what they have no bits for.
    for (part = FRAME_MXCSR; part <= FRAME_MASK; part += FRAME_MASK - FRAME_MXCSR)
        for (int bit = 16; bit < 32; bit += 5) {
            chosen = 0x1f80 | 1ul << bit;
            int status = in_child(return_changed);
            CHECK(dies_of(status, SIGSEGV) || !strcmp(kernel_name(), "Linux"));
        }
    part = FRAME_NOWHERE;
    for (int i = 0; i < BAD_FOR_ALL; i++) {
        chosen = bad[i];
        CHECK(dies_of(in_child(return_changed), SIGSEGV));
    }
    if (!is_extended()) return;
    for (part = FRAME_COMPONENTS; part <= FRAME_FORM; part++)
        for (int bit = 8; bit < 64; bit += 11) {
            chosen = 1ul << bit;
            CHECK(dies_of(in_child(return_changed), SIGSEGV));
        }
    part = FRAME_RESERVED, chosen = 1;
    int status = in_child(return_changed);
    CHECK(dies_of(status, SIGSEGV) || status == 7 << 8);
}

// A way into the kernel that no register of the kernel's names is no way in: 32-bit code, gates, selectors of the kernel's.
static void *low_code;

static void go_far(void) {
    // Not a far return: QEMU reads a program's stack for it as the kernel, which its SMAP refuses.
    struct { unsigned offset; unsigned short selector; } __attribute__((packed)) to = {(uintptr_t)low_code, chosen};
    asm volatile("ljmpl *%0" ::"m"(to) : "memory");
}

static void load_stack_segment(void) { asm volatile("mov %0, %%ss" ::"r"((unsigned)chosen)); }
static void load_data_segment(void) { asm volatile("mov %0, %%ds" ::"r"((unsigned)chosen)); _exit(7); }

static void other_segments_lead_nowhere(void) {
    unsigned char *code = mmap((void *)0x10000000, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    NEED(code != MAP_FAILED);
    static const unsigned char calls[][4] = {{0x0f, 0x05, 0x0f, 0x0b}, {0x0f, 0x34, 0x0f, 0x0b}, {0xcd, 0x80, 0x0f, 0x0b}, {0x0f, 0x0b}};
    for (size_t c = 0; c < sizeof calls / sizeof *calls; c++) {
        memcpy(code, calls[c], 4);
        low_code = code;
        for (chosen = 0; chosen < 0x90; chosen++) {
            if ((chosen | 3) == 0x33) continue; // the program's own
            int status = in_child(go_far);
            // Linux runs 32-bit code, which then does what it says.
            CHECK(WIFSIGNALED(status) || !strcmp(kernel_name(), "Linux"));
        }
    }
    for (chosen = 0; chosen < 0x90; chosen++) {
        in_child(load_stack_segment);
        in_child(load_data_segment);
    }
}

// Every interrupt that a program can name.
static unsigned char *interrupt;
static void interrupts(void) { ((void (*)(void))interrupt)(); _exit(7); }

static void interrupts_are_the_kernels(void) {
    interrupt = mmap(0, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NEED(interrupt != MAP_FAILED);
    for (int n = 0; n < 256; n++) {
        memcpy(interrupt, (unsigned char[]){0xcd, n, 0xc3}, 3);
        int status = in_child(interrupts);
        CHECK(dies_of(status, n == 3 ? SIGTRAP : SIGSEGV) || n == 0x80);
    }
}

// Flags that a program sets before it calls, or that a frame sets: nested task, alignment, direction, single step.
static void call_with_flags(void) {
    long result;
    asm volatile("pushfq\n orq %1, (%%rsp)\n popfq\n syscall\n pushfq\n andq $~0x44500, (%%rsp)\n popfq"
                 : "=a"(result) : "r"(chosen), "0"(SYS_getppid) : "rcx", "r11", "memory", "cc");
    _exit(result > 0 ? 7 : 8);
}

static void fault_with_flags(void) {
    asm volatile("pushfq\n orq %0, (%%rsp)\n popfq\n ud2" ::"r"(chosen) : "memory", "cc");
}

static void flags_are_the_programs_own(void) {
    static const unsigned long flags[] = {0x4000, 0x40000, 0x400, 0x100, 0x200000, 0x3000, 0x44500, 0x10000, 0x180000};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        chosen = flags[i];
        int status = in_child(call_with_flags);
        CHECK(status == 7 << 8 || (flags[i] & 0x100 && dies_of(status, SIGTRAP)) || dies_of(status, SIGBUS));
        status = in_child(fault_with_flags);
        CHECK(dies_of(status, SIGILL) || dies_of(status, SIGTRAP) || dies_of(status, SIGBUS));
        part = -1, register_chosen = REG_EFL, chosen |= 0x202;
        in_child(return_badly);
    }
}

static void a_debugger_chooses_no_selectors(void) {
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        _exit(5);
    }
    int status;
    NEED(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
    static const size_t places[] = {offsetof(struct user_regs_struct, cs), offsetof(struct user_regs_struct, ss)};
    for (int p = 0; p < 2; p++) {
        FAILS(ptrace(PTRACE_POKEUSER, child, places[p], 0), EIO);
        FAILS(ptrace(PTRACE_POKEUSER, child, places[p], 8), EIO);
        FAILS(ptrace(PTRACE_POKEUSER, child, places[p], 0x10), EIO);
    }
    struct user_regs_struct registers;
    NEED(ptrace(PTRACE_GETREGS, child, 0, &registers) == 0);
    CHECK(registers.cs == 0x33 && registers.ss == 0x2b);
    registers.cs = 8;
    FAILS(ptrace(PTRACE_SETREGS, child, 0, &registers), EIO);
    registers.cs = 0x33, registers.eflags = -1ul;
    CHECK(ptrace(PTRACE_SETREGS, child, 0, &registers) == 0 && ptrace(PTRACE_GETREGS, child, 0, &registers) == 0);
    // Nested task, which is a program's own on Linux, is for the way back to bear.
    CHECK(!(registers.eflags & 0x1da3000) && registers.eflags & 0x200);
    registers.eflags = 0x202;
    CHECK(ptrace(PTRACE_SETREGS, child, 0, &registers) == 0 && ptrace(PTRACE_CONT, child, 0, 0) == 0);
    CHECK(waitpid(child, &status, 0) == child && status == 5 << 8);
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
    {"a number goes nowhere", a_number_goes_nowhere},
    {"handlers may lie anywhere", handlers_may_lie_anywhere},
    {"handlers may return anywhere", handlers_may_return_anywhere},
    {"stacks of signals may lie anywhere", stacks_of_signals_may_lie_anywhere},
    {"a debugger may choose any registers", a_debugger_may_choose_any_registers},
    {"frames may hold anything", frames_may_hold_anything},
    {"other segments lead nowhere", other_segments_lead_nowhere},
    {"interrupts are the kernel's", interrupts_are_the_kernels},
    {"flags are the program's own", flags_are_the_programs_own},
    {"a debugger chooses no selectors", a_debugger_chooses_no_selectors},
    {"selectors are one's own", selectors_are_ones_own},
    {"a base that was lost is set again", a_base_that_was_lost_is_set_again},
};

int main(int argc, char **argv) { return RUN(cases, argc, argv); }
