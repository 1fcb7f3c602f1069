// ptrace: stops at signals, registers, memory that the program itself can't write, and what becomes of both sides.
#include "check.h"
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <stddef.h>
#include <sys/user.h>

static volatile long told = 7;

static long peek(pid_t pid, const void *at) {
    errno = 0;
    return ptrace(PTRACE_PEEKDATA, pid, at, 0);
}

// A child that wants to be traced, at its first stop.
static pid_t traced(void (*body)(void)) {
    fflush(stdout);
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, 0, 0)) _exit(99);
        raise(SIGSTOP);
        body();
        _exit(0);
    }
    int status;
    NEED(waitpid(child, &status, 0) == child && WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
    return child;
}

// What the next wait for it says.
static int next(pid_t child) {
    int status = -1;
    NEED(waitpid(child, &status, 0) == child);
    return status;
}

static void tells(void) {
    _exit(told == 8 ? 5 : 6);
}

static void memory_is_read_and_written(void) {
    pid_t child = traced(tells);
    CHECK(peek(child, (void *)&told) == 7);
    CHECK(!ptrace(PTRACE_POKEDATA, child, &told, 8) && peek(child, (void *)&told) == 8 && told == 7);
    FAILS(ptrace(PTRACE_PEEKDATA, child, 8, 0), EIO);
    FAILS(ptrace(PTRACE_POKEDATA, child, 8, 0), EIO);
    CHECK(!ptrace(PTRACE_CONT, child, 0, 0));
    FAILS(ptrace(PTRACE_PEEKDATA, child, &told, 0), ESRCH); // it runs
    CHECK(next(child) == 5 << 8);
    FAILS(ptrace(PTRACE_PEEKDATA, child, &told, 0), ESRCH);
}

// nop; mov $3, %eax; ret
extern const char breakpoint_here[];
__asm__(".pushsection .text\nbreakpoint_here: nop\n mov $3, %eax\n ret\n.popsection");

static void hits(void) {
    int (*volatile function)(void) = (int (*)(void))breakpoint_here;
    _exit(function());
}

static void breakpoints_are_hit(void) {
    pid_t child = traced(hits);
    long before = peek(child, breakpoint_here);
    // The program's text can't be written by the program.
    CHECK(!ptrace(PTRACE_POKETEXT, child, breakpoint_here, (before & ~0xffL) | 0xcc));
    CHECK(!ptrace(PTRACE_CONT, child, 0, 0));
    int status = next(child);
    CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP);
    struct user_regs_struct registers;
    CHECK(!ptrace(PTRACE_GETREGS, child, 0, &registers));
    CHECK(registers.rip == (unsigned long)breakpoint_here + 1);
    // Here it is as it was.
    CHECK(*(volatile unsigned char *)breakpoint_here != 0xcc);
    CHECK(!ptrace(PTRACE_POKETEXT, child, breakpoint_here, before));
    registers.rip--;
    CHECK(!ptrace(PTRACE_SETREGS, child, 0, &registers));
    // One instruction at a time.
    for (int i = 1; i <= 2; i++) {
        CHECK(!ptrace(PTRACE_SINGLESTEP, child, 0, 0));
        status = next(child);
        CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP);
        CHECK(!ptrace(PTRACE_GETREGS, child, 0, &registers));
        CHECK(registers.rip == (unsigned long)breakpoint_here + (i == 1 ? 1 : 6));
    }
    CHECK((unsigned)registers.rax == 3);
    registers.rax = 4;
    CHECK(!ptrace(PTRACE_SETREGS, child, 0, &registers));
    struct user_regs_struct again;
    struct iovec room = {&again, sizeof again};
    CHECK(!ptrace(PTRACE_GETREGSET, child, 1, &room) && room.iov_len == sizeof again && again.rax == 4);
    errno = 0;
    CHECK(ptrace(PTRACE_PEEKUSER, child, offsetof(struct user_regs_struct, rax), 0) == 4 && !errno);
    CHECK(!ptrace(PTRACE_POKEUSER, child, offsetof(struct user_regs_struct, rax), 9));
    FAILS(ptrace(PTRACE_PEEKUSER, child, 3, 0), EIO);
    CHECK(!ptrace(PTRACE_CONT, child, 0, 0) && next(child) == 9 << 8);
}

static volatile sig_atomic_t caught;

static void catch(int signal) {
    caught = signal;
}

static void raises(void) {
    signal(SIGUSR1, catch), signal(SIGUSR2, SIG_IGN);
    raise(SIGUSR1); // which the tracer takes away
    if (caught) _exit(1);
    raise(SIGUSR1); // which it lets through
    if (caught != SIGUSR1) _exit(2);
    caught = 0;
    raise(SIGUSR2); // for which it gives another
    _exit(caught == SIGUSR1 ? 3 : 4);
}

static void signals_are_seen_first(void) {
    pid_t child = traced(raises);
    CHECK(!ptrace(PTRACE_CONT, child, 0, 0));
    int status = next(child);
    CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == SIGUSR1);
    siginfo_t info;
    CHECK(!ptrace(PTRACE_GETSIGINFO, child, 0, &info) && info.si_signo == SIGUSR1 && info.si_pid == child);
    CHECK(!ptrace(PTRACE_CONT, child, 0, 0));
    status = next(child);
    CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == SIGUSR1);
    CHECK(!ptrace(PTRACE_CONT, child, 0, SIGUSR1));
    status = next(child);
    CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == SIGUSR2);
    FAILS(ptrace(PTRACE_CONT, child, 0, 100), EIO);
    CHECK(!ptrace(PTRACE_CONT, child, 0, SIGUSR1));
    CHECK(next(child) == 3 << 8);
}

static volatile char *volatile nowhere = (volatile char *)8;

static void dies(void) {
    *nowhere = 1;
}

static void deaths_are_seen_first(void) {
    pid_t child = traced(dies);
    CHECK(!ptrace(PTRACE_CONT, child, 0, 0));
    int status = next(child);
    CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSEGV);
    siginfo_t info;
    CHECK(!ptrace(PTRACE_GETSIGINFO, child, 0, &info) && info.si_addr == (void *)8);
    CHECK(!ptrace(PTRACE_CONT, child, 0, SIGSEGV));
    status = next(child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    // One at rest can be ended.
    child = traced(dies);
    CHECK(!kill(child, SIGKILL));
    status = next(child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void tell(int pipe) { NEED(write(pipe, "x", 1) == 1); }
static void hear(int pipe) { char byte; NEED(read(pipe, &byte, 1) == 1); }

static void programs_are_seen(void) {
    fflush(stdout);
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, 0, 0)) _exit(99);
        execl("/bin/true", "true", (char *)0);
        _exit(98);
    }
    int status = next(child);
    CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP);
    CHECK(!ptrace(PTRACE_CONT, child, 0, 0) && next(child) == 0);
}

// Whoever seizes doesn't hear of new programs.
static void programs_of_the_seized_run_on(void) {
    int go[2];
    NEED(!pipe(go));
    fflush(stdout);
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        hear(go[0]);
        execl("/bin/true", "true", (char *)0);
        _exit(98);
    }
    CHECK(!ptrace(PTRACE_SEIZE, child, 0, 0));
    tell(go[1]);
    CHECK(next(child) == 0);
    close(go[0]), close(go[1]);
}

static volatile long counter;

static int tracer_of(pid_t pid) {
    char name[64], line[256];
    snprintf(name, sizeof name, "/proc/%d/status", pid);
    FILE *file = fopen(name, "r");
    int tracer = -1;
    while (file && fgets(line, sizeof line, file)) sscanf(line, "TracerPid: %d", &tracer);
    if (file) fclose(file);
    return tracer;
}

static void others_are_attached_to(void) {
    fflush(stdout);
    int ready[2];
    NEED(!pipe(ready));
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        NEED(write(ready[1], "r", 1) == 1);
        for (;;) counter++;
    }
    char byte;
    NEED(read(ready[0], &byte, 1) == 1);
    FAILS(ptrace(PTRACE_ATTACH, getpid(), 0, 0), EPERM);
    FAILS(ptrace(PTRACE_CONT, child, 0, 0), ESRCH);
    FAILS(ptrace(PTRACE_ATTACH, 1 << 22, 0, 0), ESRCH);
    CHECK(!ptrace(PTRACE_ATTACH, child, 0, 0) && tracer_of(child) == getpid());
    int status = next(child);
    CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
    FAILS(ptrace(PTRACE_ATTACH, child, 0, 0), EPERM);
    long seen = peek(child, (void *)&counter);
    struct timespec pause = {0, 20000000};
    nanosleep(&pause, 0);
    CHECK(peek(child, (void *)&counter) == seen);
    CHECK(!ptrace(PTRACE_DETACH, child, 0, 0) && tracer_of(child) == 0);
    nanosleep(&pause, 0);
    CHECK(waitpid(child, &status, WNOHANG) == 0);
    // A tracer that ends lets go: a grandchild attaches, and ends.
    pid_t tracer = fork();
    NEED(tracer >= 0);
    if (tracer == 0) {
        if (ptrace(PTRACE_ATTACH, child, 0, 0)) _exit(1);
        _exit(waitpid(child, &status, 0) != child || !WIFSTOPPED(status));
    }
    CHECK(next(tracer) == 0 && tracer_of(child) == 0);
    // A tracer that isn't the parent hears of the end, and so does the parent.
    tracer = fork();
    NEED(tracer >= 0);
    if (tracer == 0) {
        if (ptrace(PTRACE_ATTACH, child, 0, 0) || waitpid(child, &status, 0) != child) _exit(1);
        if (ptrace(PTRACE_CONT, child, 0, 0) || kill(child, SIGTERM)) _exit(2);
        if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status) || WSTOPSIG(status) != SIGTERM) _exit(3);
        if (ptrace(PTRACE_CONT, child, 0, SIGTERM) || waitpid(child, &status, 0) != child) _exit(4);
        _exit(!WIFSIGNALED(status));
    }
    CHECK(next(tracer) == 0);
    CHECK(WTERMSIG(next(child)) == SIGTERM);
    close(ready[0]), close(ready[1]);
}

// What /proc/PID/mem may do is what ptrace may.
static void memory_files_reach_as_far(void) {
    char *none = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *shared = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(none != MAP_FAILED && shared != MAP_FAILED);
    memcpy(none, "none", 4), memcpy(shared, "shared", 6);
    NEED(!mprotect(none, PAGE, PROT_NONE) && !mprotect(shared, PAGE, PROT_READ));
    int file = open("/proc/self/mem", O_RDWR);
    char text[8] = {0};
    NEED(file >= 0);
    CHECK(pread(file, text, 4, (off_t)none) == 4 && !memcmp(text, "none", 4));
    CHECK(pwrite(file, "some", 4, (off_t)none) == 4);
    CHECK(pread(file, text, 4, (off_t)none) == 4 && !memcmp(text, "some", 4));
    FAILS(pwrite(file, "writes", 6, (off_t)shared), EIO);
    // Constants are changed here, and in the program's file they aren't.
    static const char constant[] __attribute__((aligned(64))) = "constant";
    CHECK(pwrite(file, "CONSTANT", 8, (off_t)constant) == 8);
    const char *volatile seen = constant;
    CHECK(!memcmp(seen, "CONSTANT", 8));
    NEED(!mprotect(none, PAGE, PROT_READ));
    CHECK(!memcmp(none, "some", 4) && !memcmp(shared, "shared", 6));
    close(file), munmap(none, PAGE), munmap(shared, PAGE);
}

// A program that may be run and not read is not read through a debugger either: whoever traces the
// process before has no right to what it becomes.
static void programs_that_may_not_be_read_are_not_read(void) {
    static char bytes[1 << 16];
    int from = open("/proc/self/exe", O_RDONLY), to = open("/unreadable", O_CREAT | O_WRONLY, 0711);
    NEED(from >= 0 && to >= 0);
    for (ssize_t n; (n = read(from, bytes, sizeof bytes)) > 0;) NEED(write(to, bytes, n) == n);
    close(from), close(to);
    NEED(!setresgid(1000, 1000, 1000) && !setresuid(1000, 1000, 1000));
    FAILS(open("/unreadable", O_RDONLY), EACCES);
    fflush(stdout);
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, 0, 0)) _exit(99);
        execl("/unreadable", "unreadable", "none", (char *)0);
        _exit(98);
    }
    int status = next(child);
    NEED(WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP);
    struct user_regs_struct registers;
    CHECK(!ptrace(PTRACE_GETREGS, child, 0, &registers));
    FAILS(ptrace(PTRACE_PEEKDATA, child, registers.rip, 0), EIO);
    FAILS(ptrace(PTRACE_POKEDATA, child, registers.rsp & ~7UL, 0), EIO);
    struct iovec here = {bytes, 8}, there = {(void *)registers.rip, 8};
    FAILS(process_vm_readv(child, &here, 1, &there, 1, 0), EPERM);
    char name[64];
    snprintf(name, sizeof name, "/proc/%d/mem", child);
    FAILS(open(name, O_RDONLY), EACCES);
    snprintf(name, sizeof name, "/proc/%d/maps", child);
    FAILS(open(name, O_RDONLY), EACCES);
    kill(child, SIGKILL);
    CHECK(WTERMSIG(next(child)) == SIGKILL);
}

static void unreadable_programs(void) {
    CHECK(in_child(programs_that_may_not_be_read_are_not_read) == 0);
    unlink("/unreadable");
}

// The effective capabilities of the running process, of the first 32.
static unsigned capabilities(void) {
    unsigned header[2] = {0x20080522, 0}, sets[6];
    NEED(!syscall(SYS_capget, header, sets));
    return sets[0];
}

static void lose_capabilities(void) {
    unsigned header[2] = {0x20080522, 0}, sets[6] = {0};
    NEED(!syscall(SYS_capset, header, sets));
}

// The superuser's id brings capabilities at exec; not to a program that one without them traces.
static void gain_by_exec(int traced) {
    lose_capabilities();
    fflush(stdout);
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        if (traced && ptrace(PTRACE_TRACEME, 0, 0, 0)) _exit(99);
        execl("/proc/self/exe", "traces", "capabilities", (char *)0);
        _exit(98);
    }
    int status = next(child);
    if (traced) {
        NEED(WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP && !ptrace(PTRACE_CONT, child, 0, 0));
        status = next(child);
    }
    CHECK(status == (traced ? 0 : 1 << 8));
}
static void gain_alone(void) { gain_by_exec(0); }
static void gain_traced(void) { gain_by_exec(1); }

// Nobody has himself traced by a parent that may do less.
static void offer_to_a_lesser_parent(void) {
    int ready[2];
    char byte;
    NEED(!pipe(ready));
    fflush(stdout);
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        if (read(ready[0], &byte, 1) != 1) _exit(99);
        _exit(ptrace(PTRACE_TRACEME, 0, 0, 0) == 0 ? 1 : errno == EPERM ? 0 : 2);
    }
    lose_capabilities();
    NEED(write(ready[1], "x", 1) == 1);
    CHECK(next(child) == 0);
}

static void tracing_brings_no_rights(void) {
    CHECK(in_child(gain_alone) == 0);
    CHECK(in_child(gain_traced) == 0);
    CHECK(in_child(offer_to_a_lesser_parent) == 0);
}

// What two processes tell each other: a thread that is to be traced, how many there were, and what is next.
static volatile struct { pid_t thread; int made, step; } *shared;

static void until(int step) {
    while (shared->step != step) sched_yield();
}

static void *is_seized(void *nothing) {
    shared->thread = gettid();
    while (shared->thread) sched_yield();
    return nothing;
}

static int makes_a_thread(void) {
    pthread_t thread;
    errno = pthread_create(&thread, 0, is_seized, 0);
    return errno ? 0 : !pthread_join(thread, 0);
}

static void makes_all_it_may(void) {
    NEED(!setrlimit(RLIMIT_NPROC, &(struct rlimit){8, 8}) && !setuid(1000));
    while (shared->made < 16 && makes_a_thread()) shared->made++;
    CHECK(errno == EAGAIN);
    shared->step = 1;
    until(2);
    for (int i = 0; i < 1000 && !makes_a_thread(); i++) usleep(1000);
    shared->step = 3;
}

// A thread that has ended counts as its user's until its tracer has waited for it.
static void ended_tracees_count(void) {
    shared = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(shared != MAP_FAILED);
    fflush(stdout);
    pid_t child = fork(), last = 0;
    NEED(child >= 0);
    if (child == 0) {
        makes_all_it_may();
        fflush(stdout);
        _exit(failed_checks != 0);
    }
    while (shared->step != 3) {
        pid_t thread = shared->thread;
        if (thread) {
            CHECK(!ptrace(PTRACE_SEIZE, thread, 0, 0));
            last = thread;
            shared->thread = 0;
        }
        if (shared->step == 1) {
            CHECK(shared->made == 7);
            CHECK(waitpid(last, 0, __WALL) == last);
            last = 0;
            shared->step = 2;
        }
        sched_yield();
    }
    CHECK(last != 0);
    // Linux tells of a process when all its traced threads have been waited for.
    int status = -1;
    pid_t ended;
    while ((ended = waitpid(-1, &status, __WALL)) != child) NEED(ended > 0);
    CHECK(status == 0);
}

// The state letter of a process; 0 for none.
static char state_of(pid_t pid) {
    char name[64], line[512] = "";
    snprintf(name, sizeof name, "/proc/%d/stat", pid);
    FILE *file = fopen(name, "r");
    if (file && !fgets(line, sizeof line, file)) *line = 0;
    if (file) fclose(file);
    char *end = strrchr(line, ')');
    return end ? end[2] : 0;
}

static void until_it_is(pid_t pid, char state) {
    for (int i = 0; i < 2000 && state_of(pid) != state; i++) usleep(1000);
    NEED(state_of(pid) == state);
}


static volatile sig_atomic_t told_of;
static void is_told(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    told_of = info->si_pid;
}

static void hears_of_ends(void) {
    told_of = 0;
    NEED(!sigaction(SIGCHLD, &(struct sigaction){.sa_sigaction = is_told, .sa_flags = SA_SIGINFO}, 0));
}

// A tracer that isn't the parent collects the end first; the parent is told when it has, or when it has ended too.
static void ends_while_another_traces(int waits) {
    int is_traced[2], may_wait[2], status = -1;
    NEED(!pipe(is_traced) && !pipe(may_wait));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) for (;;) pause();
    NEED(child > 0);
    pid_t tracer = fork();
    NEED(tracer >= 0);
    if (tracer == 0) {
        hears_of_ends();
        NEED(!ptrace(PTRACE_SEIZE, child, 0, 0));
        tell(is_traced[1]);
        while (told_of != child) pause();
        siginfo_t info = {0};
        CHECK(!waitid(P_PID, child, &info, WEXITED | WNOWAIT) && info.si_pid == child);
        hear(may_wait[0]);
        if (waits) {
            CHECK(waitpid(child, &status, 0) == child && status == SIGKILL);
            FAILS(waitpid(child, &status, 0), ECHILD);
        }
        fflush(stdout);
        _exit(failed_checks != 0);
    }
    hear(is_traced[0]);
    hears_of_ends();
    NEED(!kill(child, SIGKILL));
    until_it_is(child, 'Z');
    usleep(20000);
    siginfo_t info = {0};
    CHECK(told_of == 0);
    CHECK(waitpid(child, &status, WNOHANG) == 0);
    CHECK(waitpid(-1, &status, WNOHANG) == 0);
    CHECK(!waitid(P_PID, child, &info, WEXITED | WNOWAIT | WNOHANG) && info.si_pid == 0);
    tell(may_wait[1]);
    while (waitpid(child, &status, 0) < 0) CHECK(errno == EINTR);
    CHECK(status == SIGKILL && told_of != 0);
    while (waitpid(tracer, &status, 0) < 0) CHECK(errno == EINTR);
    CHECK(status == 0);
    FAILS(waitpid(-1, &status, 0), ECHILD);
}

static void tracers_collect_before_parents(void) {
    ends_while_another_traces(1);
    ends_while_another_traces(0);
}

static int leader_goes[2], thread_goes[2];

static void *outlives_its_leader(void *nothing) {
    hear(thread_goes[0]);
    syscall(SYS_exit, 6);
    return nothing;
}

// A first thread that ends before others is told of when the last one has ended, as that one did.
static void leaders_that_go_first(void) {
    int status = -1, may_wait[2];
    NEED(!pipe(leader_goes) && !pipe(thread_goes) && !pipe(may_wait));
    fflush(stdout);
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        pthread_t thread;
        NEED(!pthread_create(&thread, 0, outlives_its_leader, 0));
        hear(leader_goes[0]);
        syscall(SYS_exit, 5);
    }
    pid_t tracer = fork();
    NEED(tracer >= 0);
    if (tracer == 0) {
        NEED(!ptrace(PTRACE_SEIZE, child, 0, 0));
        tell(leader_goes[1]);
        usleep(50000);
        CHECK(waitpid(child, &status, __WALL | WNOHANG) == 0);
        CHECK(waitpid(-1, &status, __WALL | WNOHANG) == 0);
        tell(thread_goes[1]);
        CHECK(waitpid(-child, &status, __WALL | WNOHANG) == -1 && errno == ECHILD);
        CHECK(waitpid(0, &status, __WALL) == child && status == 6 << 8);
        tell(may_wait[1]);
        FAILS(waitpid(-1, &status, __WALL), ECHILD);
        fflush(stdout);
        _exit(failed_checks != 0);
    }
    usleep(20000);
    CHECK(waitpid(child, &status, WNOHANG) == 0);
    hear(may_wait[0]);
    CHECK(next(child) == 6 << 8);
    CHECK(next(tracer) == 0);
}

enum { SAYS = 100, HEARS = 101 };

static void *runs_itself(void *times) {
    pid_t thread = gettid();
    NEED(write(SAYS, &thread, sizeof thread) == sizeof thread);
    hear(HEARS);
    execl("/proc/self/exe", "traces", "execs", times, (char *)0);
    exit(1);
}

// A program whose second thread runs it again.
static int execs(int times) {
    pthread_t thread;
    char left[16];
    pid_t none = 0;
    if (times == 0) {
        NEED(write(SAYS, &none, sizeof none) == sizeof none);
        for (;;) pause();
    }
    sprintf(left, "%d", times - 1);
    NEED(!pthread_create(&thread, 0, runs_itself, left));
    for (;;) pause();
}

static void stop_and_go(pid_t thread) {
    int status;
    NEED(!ptrace(PTRACE_ATTACH, thread, 0, 0));
    NEED(waitpid(thread, &status, __WALL) == thread && WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
    NEED(!ptrace(PTRACE_CONT, thread, 0, 0));
}

static void follow(pid_t child, int said, int go, int times) {
    pid_t thread, found;
    int status = 0;
    for (int i = 0; i < times; i++) {
        NEED(read(said, &thread, sizeof thread) == sizeof thread && thread > 0);
        if (i == 0) stop_and_go(child);
        stop_and_go(thread);
        tell(go);
        // The first thread is gone and the other one bears its number: nobody has ended.
        found = waitpid(child, &status, __WALL);
        CHECK(found == child && WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP);
        FAILS(waitpid(thread, &status, __WALL | WNOHANG), ECHILD);
        CHECK(waitpid(-1, &status, __WALL | WNOHANG) == 0);
        CHECK(tracer_of(child) == getpid());
        NEED(!ptrace(PTRACE_CONT, child, 0, 0));
    }
    NEED(read(said, &thread, sizeof thread) == sizeof thread && thread == 0);
    CHECK(waitpid(-1, &status, __WALL | WNOHANG) == 0);
    CHECK(!kill(child, SIGKILL));
    CHECK(waitpid(child, &status, __WALL) == child && status == SIGKILL);
    FAILS(waitpid(-1, &status, __WALL), ECHILD);
}

static void is_run_by_its_threads(int by_parent) {
    int says[2], hears[2];
    NEED(!pipe(says) && !pipe(hears));
    fflush(stdout);
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        NEED(dup2(says[1], SAYS) == SAYS && dup2(hears[0], HEARS) == HEARS);
        execl("/proc/self/exe", "traces", "execs", "3", (char *)0);
        _exit(98);
    }
    if (by_parent) {
        follow(child, says[0], hears[1], 3);
    } else {
        pid_t tracer = fork();
        NEED(tracer >= 0);
        if (tracer == 0) {
            follow(child, says[0], hears[1], 3);
            fflush(stdout);
            _exit(failed_checks != 0);
        }
        CHECK(next(tracer) == 0);
        CHECK(next(child) == SIGKILL);
    }
    close(says[0]), close(says[1]), close(hears[0]), close(hears[1]);
}

// A thread that runs a program takes the number of its process, which the tracer of the first thread knows.
static void threads_that_run_programs(void) {
    is_run_by_its_threads(1);
    is_run_by_its_threads(0);
}

static void *comes_and_goes(void *again) {
    for (int i = 0; i < 20; i++) getppid();
    if (again) syscall(SYS_exit, 3);
    return 0;
}

// Threads that come and go, and one that runs the program again or ends all.
static void is_busy(unsigned seed) {
    for (int i = 0; i < 6; i++) {
        pthread_t thread;
        if (!pthread_create(&thread, 0, comes_and_goes, (void *)(long)(rand_r(&seed) & 1)) && rand_r(&seed) & 1) pthread_join(thread, 0);
        if (rand_r(&seed) % 4 == 0 && !fork()) _exit(4);
    }
    if (rand_r(&seed) & 1) execl("/bin/true", "true", (char *)0);
    if (rand_r(&seed) & 1) raise(SIGTERM);
    _exit(5);
}

// One turn: a busy child whose threads a tracer stops, steps, lets go and kills, as chance will have it.
static void trace_at_random(unsigned seed) {
    int go[2], status;
    NEED(!pipe(go));
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        hear(go[0]);
        is_busy(seed);
    }
    long options = PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC | PTRACE_O_TRACEFORK | (rand_r(&seed) & 1 ? PTRACE_O_TRACEEXIT : 0) |
        (rand_r(&seed) & 1 ? PTRACE_O_EXITKILL : 0);
    NEED(!ptrace(PTRACE_SEIZE, child, 0, options));
    tell(go[1]);
    close(go[0]), close(go[1]);
    for (int i = 0; i < 200; i++) {
        pid_t found = waitpid(-1, &status, __WALL | WNOHANG);
        if (found < 0) return;
        if (found == 0) {
            if (rand_r(&seed) % 8 == 0) ptrace(PTRACE_INTERRUPT, child, 0, 0);
            if (rand_r(&seed) % 64 == 0) kill(child, SIGKILL);
            sched_yield();
            continue;
        }
        if (!WIFSTOPPED(status)) continue;
        static const int requests[] = {PTRACE_CONT, PTRACE_CONT, PTRACE_CONT, PTRACE_SYSCALL, PTRACE_SINGLESTEP, 31, 32, 33, PTRACE_LISTEN};
        struct user_regs_struct registers;
        long word = rand_r(&seed);
        if (rand_r(&seed) % 4 == 0 && !ptrace(PTRACE_GETREGS, found, 0, &registers)) {
            if (rand_r(&seed) & 1) registers.orig_rax = -1;
            ptrace(PTRACE_SETREGS, found, 0, &registers);
            ptrace(PTRACE_POKEUSER, found, offsetof(struct user, u_debugreg) + 8 * (word & 7), word & ~7L);
        }
        int signal = WSTOPSIG(status) == SIGTRAP || rand_r(&seed) & 1 ? 0 : WSTOPSIG(status) & 0x7f;
        if (rand_r(&seed) % 32 == 0) ptrace(PTRACE_DETACH, found, 0, signal);
        else if (ptrace(requests[rand_r(&seed) % 9], found, 0, signal)) ptrace(PTRACE_CONT, found, 0, 0);
    }
    // What isn't killed is let go by the tracer's end.
    if (rand_r(&seed) & 1) kill(child, SIGKILL);
}

static void tracers_race(void) {
    NEED(!prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0));
    fflush(stdout);
    for (unsigned turn = 0; turn < 60; turn += 3) {
        for (unsigned i = 0; i < 3; i++)
            if (!fork()) trace_at_random(turn + i + 1), _exit(0);
        // Whatever was left by its tracer is killed, and ends.
        pid_t found;
        for (int i = 0; (found = waitpid(-1, 0, __WALL | WNOHANG)) >= 0 && i < 10000; i++) {
            if (found == 0) usleep(1000);
            if (i % 64 != 63) continue;
            char name[64], text[4096] = "";
            snprintf(name, sizeof name, "/proc/self/task/%d/children", getpid());
            int file = open(name, O_RDONLY);
            if (file >= 0 && read(file, text, sizeof text - 1) > 0 && i > 300)
                for (char *at = text; *at;) kill(strtol(at, &at, 10), SIGKILL), at += strspn(at, " ");
            close(file);
        }
        if (!CHECK(found < 0 && errno == ECHILD)) break;
    }
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "capabilities")) return capabilities() != 0;
    if (argc > 2 && !strcmp(argv[1], "execs")) return execs(atoi(argv[2]));
    static const struct test_case tests[] = {
        {"memory_is_read_and_written", memory_is_read_and_written},
        {"breakpoints_are_hit", breakpoints_are_hit},
        {"signals_are_seen_first", signals_are_seen_first},
        {"deaths_are_seen_first", deaths_are_seen_first},
        {"programs_are_seen", programs_are_seen},
        {"programs_of_the_seized_run_on", programs_of_the_seized_run_on},
        {"others_are_attached_to", others_are_attached_to},
        {"memory_files_reach_as_far", memory_files_reach_as_far},
        {"unreadable_programs", unreadable_programs},
        {"tracing_brings_no_rights", tracing_brings_no_rights},
        {"ended_tracees_count", ended_tracees_count},
        {"tracers_collect_before_parents", tracers_collect_before_parents},
        {"leaders_that_go_first", leaders_that_go_first},
        {"threads_that_run_programs", threads_that_run_programs},
        {"tracers_race", tracers_race},
    };
    return RUN(tests, argc, argv);
}
