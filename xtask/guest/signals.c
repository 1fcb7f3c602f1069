// Signals: delivery, masks, what a handler sees and may do, interrupted and restarted calls, timers.
#include "check.h"
#include <poll.h>
#include <sys/time.h>
#include <ucontext.h>

static volatile sig_atomic_t count, last, nested;
static volatile int code, sender, value;

static void counting(int signal) { count++, last = signal; }

static void handle(int signal, void (*handler)(int), int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    NEED(!sigaction(signal, &action, 0));
}

static void mask(int how, int signal) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    NEED(!sigprocmask(how, &set, 0));
}

static void delivery(void) {
    handle(SIGUSR1, counting, 0);
    CHECK(!raise(SIGUSR1) && count == 1 && last == SIGUSR1);
    CHECK(!kill(getpid(), SIGUSR1) && count == 2);
    signal(SIGUSR1, SIG_IGN);
    CHECK(!raise(SIGUSR1) && count == 2);
    FAILS(sigaction(SIGKILL, &(struct sigaction){.sa_handler = counting}, 0), EINVAL);
    FAILS(kill(getpid(), 65), EINVAL);
}

static void masks(void) {
    handle(SIGUSR1, counting, 0);
    mask(SIG_BLOCK, SIGUSR1);
    raise(SIGUSR1), raise(SIGUSR1);
    sigset_t pending;
    CHECK(count == 0 && !sigpending(&pending) && sigismember(&pending, SIGUSR1));
    mask(SIG_UNBLOCK, SIGUSR1);
    CHECK(count == 1); // an ordinary signal is pending once
    sigset_t set;
    sigfillset(&set);
    CHECK(!sigprocmask(SIG_SETMASK, &set, 0) && !sigprocmask(SIG_SETMASK, 0, &set));
    CHECK(sigismember(&set, SIGTERM) && !sigismember(&set, SIGKILL) && !sigismember(&set, SIGSTOP));
}

static void informed(int signal, siginfo_t *info, void *context) {
    ucontext_t *machine = context;
    last = signal, code = info->si_code, sender = info->si_pid, value = info->si_value.sival_int;
    CHECK(machine->uc_mcontext.gregs[REG_RIP] != 0);
}
static void information(void) {
    struct sigaction action = {.sa_sigaction = informed, .sa_flags = SA_SIGINFO};
    NEED(!sigaction(SIGUSR1, &action, 0));
    kill(getpid(), SIGUSR1);
    CHECK(code == SI_USER && sender == getpid());
    sigqueue(getpid(), SIGUSR1, (union sigval){.sival_int = 77});
    CHECK(code == SI_QUEUE && value == 77);
    NEED(!sigaction(SIGCHLD, &action, 0));
    pid_t child = fork();
    if (child == 0) _exit(5);
    int status;
    while (waitpid(child, &status, 0) == -1) CHECK(errno == EINTR);
    CHECK(last == SIGCHLD && code == CLD_EXITED && sender == child);
}

static void nesting(int signal) {
    count++;
    if (signal == SIGUSR1 && !nested) {
        nested = 1;
        raise(SIGUSR1); // blocked while its handler runs
        CHECK(count == 1);
        raise(SIGUSR2);
        CHECK(count == 2);
    }
}
static void nested_handlers(void) {
    handle(SIGUSR1, nesting, 0), handle(SIGUSR2, nesting, 0);
    raise(SIGUSR1);
    CHECK(count == 3);
}

static void handler_flags(void) {
    handle(SIGUSR1, counting, SA_RESETHAND);
    raise(SIGUSR1);
    struct sigaction now;
    CHECK(!sigaction(SIGUSR1, 0, &now) && now.sa_handler == SIG_DFL);
}

static char *alternate;
static volatile int on_alternate;
static void where(int signal) {
    char here;
    stack_t stack;
    (void)signal;
    CHECK(!sigaltstack(0, &stack) && stack.ss_flags & SS_ONSTACK);
    on_alternate = &here >= alternate && &here < alternate + 65536;
}
static void alternate_stack(void) {
    alternate = malloc(65536);
    stack_t stack = {.ss_sp = alternate, .ss_size = 65536};
    CHECK(!sigaltstack(&stack, 0));
    handle(SIGUSR1, where, SA_ONSTACK);
    raise(SIGUSR1);
    CHECK(on_alternate);
    stack.ss_size = 100;
    FAILS(sigaltstack(&stack, 0), ENOMEM);
}

// Every register that a program can see survives a handler that ruins them all.
static void ruin(int signal) {
    (void)signal;
    count++;
    __asm__ volatile("pxor %%xmm0, %%xmm0; pxor %%xmm7, %%xmm7; xor %%r12, %%r12; xor %%r9, %%r9; std; cld" ::: "xmm0", "xmm7", "r9", "r12");
}
static void registers_survive(void) {
    handle(SIGALRM, ruin, 0);
    struct itimerval often = {{0, 1000}, {0, 1000}};
    setitimer(ITIMER_REAL, &often, 0);
    double sum = 0;
    unsigned long checksum = 1;
    for (long i = 1; count < 20; i++) {
        double each = 0;
        for (int k = 1; k <= 1000; k++) each += k * 0.5, checksum = checksum * 6364136223846793005ul + 1;
        sum = each;
        if (sum != 250250.0) break;
    }
    CHECK(sum == 250250.0 && count >= 20 && checksum);
    memset(&often, 0, sizeof often), setitimer(ITIMER_REAL, &often, 0);
}

static void interrupted_calls(void) {
    int ends[2];
    char byte;
    NEED(!pipe(ends));
    handle(SIGALRM, counting, 0);
    // Again and again: the host may let the first go by before the call begins.
    struct itimerval soon = {{0, 20000}, {0, 20000}};
    setitimer(ITIMER_REAL, &soon, 0);
    FAILS(read(ends[0], &byte, 1), EINTR);
    setitimer(ITIMER_REAL, &soon, 0);
    FAILS(poll(&(struct pollfd){ends[0], POLLIN, 0}, 1, 5000), EINTR);
    setitimer(ITIMER_REAL, &soon, 0);
    struct timespec rest, five = {5, 0};
    FAILS(nanosleep(&five, &rest), EINTR);
    CHECK(rest.tv_sec == 4);
    setitimer(ITIMER_REAL, &soon, 0);
    FAILS(pause(), EINTR);
    memset(&soon, 0, sizeof soon), setitimer(ITIMER_REAL, &soon, 0);
    CHECK(count >= 4);
}

static void restarted_calls(void) {
    int ends[2];
    char byte;
    NEED(!pipe(ends));
    handle(SIGALRM, counting, SA_RESTART);
    struct itimerval soon = {{0, 0}, {0, 20000}};
    pid_t child = fork();
    if (child == 0) {
        usleep(100000);
        _exit(write(ends[1], "r", 1) != 1);
    }
    setitimer(ITIMER_REAL, &soon, 0);
    CHECK(read(ends[0], &byte, 1) == 1 && byte == 'r' && count == 1);
    setitimer(ITIMER_REAL, &soon, 0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void waiting_for_signals(void) {
    handle(SIGUSR1, counting, 0);
    mask(SIG_BLOCK, SIGUSR1);
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        usleep(20000);
        _exit(kill(parent, SIGUSR1));
    }
    sigset_t none, set;
    sigemptyset(&none);
    FAILS(sigsuspend(&none), EINTR);
    CHECK(count == 1);
    waitpid(child, 0, 0);
    sigemptyset(&set), sigaddset(&set, SIGUSR1);
    raise(SIGUSR1);
    siginfo_t info;
    CHECK(sigwaitinfo(&set, &info) == SIGUSR1 && info.si_signo == SIGUSR1 && count == 1);
    FAILS(sigtimedwait(&set, &info, &(struct timespec){0, 10000000}), EAGAIN);
}

static sigjmp_buf jump;
static void leave(int signal) { siglongjmp(jump, signal); }
static void jumping_out(void) {
    handle(SIGUSR1, leave, 0);
    for (volatile int i = 0; i < 100; i++) {
        if (sigsetjmp(jump, 1) == 0) {
            raise(SIGUSR1);
            CHECK(!"not reached");
        }
    }
    sigset_t set;
    CHECK(!sigprocmask(SIG_BLOCK, 0, &set) && !sigismember(&set, SIGUSR1));
}

static void broken_pipe_body(void) {
    int ends[2];
    NEED(!pipe(ends));
    close(ends[0]);
    if (write(ends[1], "x", 1) == 1) exit(1);
}
static void broken_pipe(void) {
    int status = in_child(broken_pipe_body);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGPIPE);
}

static void timers(void) {
    handle(SIGALRM, counting, 0);
    struct itimerval timer = {{0, 10000}, {0, 10000}}, left;
    CHECK(!setitimer(ITIMER_REAL, &timer, 0));
    while (count < 5) pause();
    CHECK(!getitimer(ITIMER_REAL, &left) && left.it_interval.tv_usec == 10000);
    memset(&timer, 0, sizeof timer);
    CHECK(!setitimer(ITIMER_REAL, &timer, 0));
    CHECK(alarm(10) == 0 && alarm(0) == 10);
}

static void return_with_nonsense(void) {
    // A forged frame: the kernel must not restore what only it may hold.
    static char frame[4096];
    memset(frame, 0xff, sizeof frame);
    __asm__ volatile("lea 2048(%0), %%rsp\n\tmov $15, %%eax\n\tsyscall" : : "r"(frame) : "memory");
}
static void a_forged_frame(void) {
    int status = in_child(return_with_nonsense);
    CHECK(WIFSIGNALED(status));
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"delivery", delivery},
        {"masks", masks},
        {"information", information},
        {"nested_handlers", nested_handlers},
        {"handler_flags", handler_flags},
        {"alternate_stack", alternate_stack},
        {"registers_survive", registers_survive},
        {"interrupted_calls", interrupted_calls},
        {"restarted_calls", restarted_calls},
        {"waiting_for_signals", waiting_for_signals},
        {"jumping_out", jumping_out},
        {"broken_pipe", broken_pipe},
        {"timers", timers},
        {"a_forged_frame", a_forged_frame},
    };
    return RUN(cases, argc, argv);
}
