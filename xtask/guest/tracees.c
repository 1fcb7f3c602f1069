// What ptrace answers, and what tracees then do; a line each, the same on every kernel: the answers in the tree come from Linux.
#include "callers.h"
#include <pthread.h>
#include <stddef.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <time.h>

enum {
    GETREGS = 12, SETREGS = 13, GETFPREGS = 14, SETFPREGS = 15, OLDSETOPTIONS = 21, GET_THREAD_AREA = 25, ARCH_PRCTL = 30,
    SYSEMU = 31, SYSEMU_STEP = 32, BLOCK = 33, PEEKSIGINFO = 0x4209, GET_FILTER = 0x420c, GET_CALL = 0x420e, GET_RSEQ = 0x420f,
    GOOD = 1, FORK = 2, VFORK = 4, CLONE = 8, EXEC = 0x10, VFORK_DONE = 0x20, EXIT = 0x40, EXITKILL = 0x100000, SUSPEND = 0x200000,
    NOTHREAD = 0x20000000,
};
#define REG(name) offsetof(struct user_regs_struct, name)
#define DEBUG(n) (offsetof(struct user, u_debugreg) + 8 * (n))

static long pt(long request, pid_t pid, unsigned long addr, unsigned long data) {
    return syscall(SYS_ptrace, request, (long)pid, addr, data);
}
static void hex(const char *name, unsigned long word) { printf("%s: %#lx\n", name, word), fflush(stdout); }
static void put(const char *name, long word) { printf("%s: %ld\n", name, word), fflush(stdout); }
static void pause_for(long milliseconds) {
    struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    while (nanosleep(&time, &time)) {}
}
// A status of the next wait, with patience; -1 for none.
static int next_with(pid_t pid, int options) {
    int status = -1;
    for (int i = 0; i < 300; i++) {
        pid_t found = waitpid(pid, &status, options | WNOHANG);
        if (found > 0) return status;
        if (found < 0) return -2;
        pause_for(2);
    }
    return -1;
}
static int next(pid_t pid) { return next_with(pid, __WALL); }
static void status_of(const char *name, int status) {
    if (status == -1) printf("%s: nothing\n", name);
    else if (status == -2) printf("%s: %s\n", name, error_name(errno));
    else if (WIFEXITED(status)) printf("%s: exited %d\n", name, WEXITSTATUS(status));
    else if (WIFSIGNALED(status)) printf("%s: killed %d\n", name, WTERMSIG(status));
    else printf("%s: stopped %d, event %d\n", name, WSTOPSIG(status), status >> 16);
    fflush(stdout);
}
static void waited(const char *name, pid_t pid) { status_of(name, next(pid)); }
static unsigned long reg(pid_t pid, unsigned long offset) {
    unsigned long word = -1;
    pt(PTRACE_PEEKUSER, pid, offset, (long)&word);
    return word;
}
static unsigned long message(pid_t pid) {
    unsigned long is = -1;
    pt(PTRACE_GETEVENTMSG, pid, 0, (long)&is);
    return is;
}
// The registers of a call; a number of a process is no constant, and above 200 (`main`).
static void write_call(char *to, size_t room, pid_t child) {
    long result = reg(child, REG(rax)), number = reg(child, REG(orig_rax));
    int is_process = result > 200 && result < 20000 && number != SYS_restart_syscall && result != number;
    if (is_process) snprintf(to, room, "rax a process, orig_rax %ld", number);
    else snprintf(to, room, "rax %ld, orig_rax %ld", result, number);
}
static void shown(const char *name, pid_t child) {
    char call[64];
    write_call(call, sizeof call, child);
    printf("%s: %s\n", name, call);
    fflush(stdout);
}
// Signal, code and whose number it is.
static void info(const char *name, pid_t pid) {
    siginfo_t is;
    memset(&is, 0, sizeof is);
    if (pt(PTRACE_GETSIGINFO, pid, 0, (long)&is)) printf("%s: %s\n", name, error_name(errno));
    else printf("%s: signal %d, code %d, from %s\n", name, is.si_signo, is.si_code,
        is.si_pid == 0 ? "none" : is.si_pid == pid ? "itself" : is.si_pid == getpid() ? "its tracer" : "another");
    fflush(stdout);
}
static void call_info(const char *name, pid_t pid) {
    unsigned char bytes[128];
    memset(bytes, 0xaa, sizeof bytes);
    long size = pt(GET_CALL, pid, sizeof bytes, (long)bytes);
    long words[16];
    memcpy(words, bytes, sizeof words);
    if (size < 0) printf("%s: %s\n", name, error_name(errno));
    else if (bytes[0] == 1) printf("%s: %ld bytes, entry of %ld(%ld)\n", name, size, words[3], words[4]);
    else if (bytes[0] == 2) printf("%s: %ld bytes, exit with %ld, error %d\n", name, size, words[3] > 200 && words[3] < 20000 ? 90 : words[3], bytes[32]);
    else printf("%s: %ld bytes, kind %d, arch %#x\n", name, size, bytes[0], (unsigned)(words[0] >> 32));
    fflush(stdout);
}
static void forced(const char *name, int status) {
    if (status != (SIGSTOP << 8 | 0x7f)) status_of(name, status), exit(1);
}
// A child that asks to be traced, at its first stop.
static pid_t traced(void (*body)(void), long options) {
    fflush(stdout);
    pid_t child = fork();
    MUST(child >= 0);
    if (!child) {
        if (pt(PTRACE_TRACEME, 0, 0, 0)) _exit(99);
        kill(getpid(), SIGSTOP);
        body();
        _exit(0);
    }
    forced("first stop", next(child));
    MUST(!pt(PTRACE_SETOPTIONS, child, 0, options));
    return child;
}
static pid_t seized(void (*body)(void), long options) {
    int go[2];
    char byte;
    fflush(stdout);
    MUST(!pipe(go));
    pid_t child = fork();
    MUST(child >= 0);
    if (!child) {
        MUST(read(go[0], &byte, 1) == 1);
        close(go[0]), close(go[1]);
        body();
        _exit(0);
    }
    MUST(!pt(PTRACE_SEIZE, child, 0, options));
    MUST(write(go[1], "x", 1) == 1);
    close(go[0]), close(go[1]);
    return child;
}
static void end(pid_t child) {
    int status;
    kill(child, SIGKILL);
    // An end may have a stop of its own.
    for (int i = 0; i < 20 && waitpid(child, &status, __WALL) == child && WIFSTOPPED(status); i++) pt(PTRACE_CONT, child, 0, 0);
}
static void waits(void) { for (;;) pause(); }
static void spins(void) { for (;;) {} }
static void ends(void) { _exit(3); }
static void asks_again(void) { _exit(pt(PTRACE_TRACEME, 0, 0, 0) == -1 ? errno : 0); }

// Requests that let a tracee go on, or that change what follows.
static int goes_on(int request) {
    static const int those[] = {PTRACE_TRACEME, PTRACE_CONT, PTRACE_KILL, PTRACE_SINGLESTEP, PTRACE_ATTACH, PTRACE_DETACH, PTRACE_SYSCALL, SYSEMU,
        SYSEMU_STEP, BLOCK, PTRACE_SEIZE};
    for (size_t i = 0; i < sizeof those / sizeof *those; i++) if (those[i] == request) return 1;
    return 0;
}
static void requests(void) {
    pid_t plain = fork();
    if (!plain) waits();
    pid_t runs = traced(waits, 0), rests = traced(waits, 0);
    MUST(!pt(PTRACE_CONT, runs, 0, 0));
    for (int i = 0; i < 62; i++) {
        int request = i < 40 ? i : 0x4200 - 2 + i - 40;
        char name[64];
        if (request == PTRACE_TRACEME) continue;
        snprintf(name, sizeof name, "request %#x of no process", request);
        say(name, pt(request, 1 << 22, 0, 0));
        if (request != PTRACE_ATTACH && request != PTRACE_SEIZE) {
            snprintf(name, sizeof name, "request %#x of no tracee", request);
            say(name, pt(request, plain, 0, 0));
        }
        if (request != PTRACE_KILL) {
            snprintf(name, sizeof name, "request %#x of one that runs", request);
            say(name, pt(request, runs, 0, 0));
        }
        if (!goes_on(request)) {
            snprintf(name, sizeof name, "request %#x of one at rest", request);
            say(name, pt(request, rests, 0, 0));
            snprintf(name, sizeof name, "request %#x of one at rest, bad pointers", request);
            say(name, pt(request, rests, 8, 8));
        }
        if (request == PTRACE_CONT || request == PTRACE_SINGLESTEP || request == PTRACE_SYSCALL || request == PTRACE_DETACH || request == SYSEMU ||
            request == SYSEMU_STEP || request == BLOCK) {
            snprintf(name, sizeof name, "request %#x with signal 65", request);
            say(name, pt(request, rests, 0, 65));
            snprintf(name, sizeof name, "request %#x with signal -1", request);
            say(name, pt(request, rests, 0, -1));
            snprintf(name, sizeof name, "request %#x with a high bit", request);
            if (request != PTRACE_DETACH) say(name, pt(request, rests, 0, 1L << 32));
        }
    }
    say("a high bit of a request", pt(1L << 32 | PTRACE_GETEVENTMSG, rests, 0, 8));
    say("seize with an address", pt(PTRACE_SEIZE, plain, 1, 0));
    say("seize with an unknown option", pt(PTRACE_SEIZE, plain, 0, 0x100));
    say("seize with a high option", pt(PTRACE_SEIZE, plain, 0, 1L << 40));
    say("seize one that is traced", pt(PTRACE_SEIZE, rests, 0, 0));
    say("attach to one that is traced", pt(PTRACE_ATTACH, rests, 0, 0));
    say("attach to oneself", pt(PTRACE_ATTACH, getpid(), 0, 0));
    say("seize oneself", pt(PTRACE_SEIZE, getpid(), 0, 0));
    say("attach to 0", pt(PTRACE_ATTACH, 0, 0, 0));
    say("attach to -1", pt(PTRACE_ATTACH, -1, 0, 0));
    for (int bit = 0; bit < 34; bit++) {
        char name[32];
        snprintf(name, sizeof name, "option %d", bit);
        say(name, pt(PTRACE_SETOPTIONS, rests, 0, 1UL << bit));
    }
    pid_t child = traced(asks_again, 0);
    pt(PTRACE_CONT, child, 0, 0);
    waited("asks to be traced again", child);
    say("old options", pt(OLDSETOPTIONS, rests, 0, 0));
    say("old options, unknown", pt(OLDSETOPTIONS, rests, 0, 0x100));
    say("detach with a high bit", pt(PTRACE_DETACH, rests, 0, 1L << 32));
    say("seize what was attached to", pt(PTRACE_SEIZE, plain, 0, 0));
    end(plain), end(runs), end(rests);
}

static void registers(void) {
    pid_t child = traced(waits, 0);
    static const char *const names[] = {"r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi",
        "orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs"};
    static const unsigned long values[] = {0x1234567890, -1, 0x7fffffffeff0, 0x7ffffffff000, 0x800000000000, 1};
    for (int i = 0; i < 27; i++) {
        // Selectors of other segments are loaded by Linux.
        if (!strcmp(names[i], "cs") || !strcmp(names[i], "ss") || i >= 23) continue;
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            char name[64];
            snprintf(name, sizeof name, "%s = %#lx", names[i], values[v]);
            say(name, pt(PTRACE_POKEUSER, child, 8 * i, values[v]));
            hex("is", reg(child, 8 * i) & ~(i == 18 ? 0x202UL : 0));
        }
    }
    say("rip again", pt(PTRACE_POKEUSER, child, REG(rip), 0));
    hex("cs", reg(child, REG(cs))), hex("ss", reg(child, REG(ss)));
    for (int i = 23; i < 27; i++) hex(names[i], reg(child, 8 * i));
    static const unsigned long selectors[] = {0, 1, 2, 0x10, 0x33, 0x2b, 0x10033};
    for (size_t v = 0; v < 4; v++) {
        char name[64];
        snprintf(name, sizeof name, "cs = %#lx", selectors[v]);
        say(name, pt(PTRACE_POKEUSER, child, REG(cs), selectors[v]));
        snprintf(name, sizeof name, "ss = %#lx", selectors[v]);
        say(name, pt(PTRACE_POKEUSER, child, REG(ss), selectors[v]));
    }
    say("cs as it is", pt(PTRACE_POKEUSER, child, REG(cs), 0x33));
    say("ss as it is", pt(PTRACE_POKEUSER, child, REG(ss), 0x2b));
    for (int bit = 0; bit < 22; bit++) {
        if (bit == 16) continue;
        say("eflags of 0", pt(PTRACE_POKEUSER, child, REG(eflags), 0));
        unsigned long before = reg(child, REG(eflags));
        pt(PTRACE_POKEUSER, child, REG(eflags), 1UL << bit);
        char name[32];
        snprintf(name, sizeof name, "bit %d of eflags", bit);
        hex(name, before ^ reg(child, REG(eflags)));
    }
    static const unsigned long offsets[] = {1, 4, 212, 216, 224, 728, 736, 840, 848, 872, 880, 888, 896, 904, 912, 920, 928, 936, 1000, -8};
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
        char name[64];
        unsigned long word = 0x55;
        snprintf(name, sizeof name, "peek at %ld", (long)offsets[i]);
        say(name, pt(PTRACE_PEEKUSER, child, offsets[i], (long)&word));
        hex("is", word);
        if (offsets[i] < 848 || offsets[i] > 911) {
            snprintf(name, sizeof name, "poke at %ld", (long)offsets[i]);
            say(name, pt(PTRACE_POKEUSER, child, offsets[i], 0));
        }
    }
    end(child);
}

static const long somewhere[4] __attribute__((aligned(32)));
static void debug_registers(void) {
    pid_t child = traced(waits, 0);
    static const unsigned long addresses[] = {0, 1, 0x7fffffffeff8, 0x7fffffffefff, 0x7ffffffff000, 0x800000000000, 0xffff800000000000, 0xffffffff81000000, -1};
    for (int n = 0; n < 8; n++)
        for (size_t i = 0; i < sizeof addresses / sizeof *addresses; i++) {
            if (n == 7) continue;
            char name[64];
            snprintf(name, sizeof name, "register %d = %#lx", n, addresses[i]);
            say(name, pt(PTRACE_POKEUSER, child, DEBUG(n), addresses[i]));
            hex("is", reg(child, DEBUG(n)));
        }
    for (int n = 0; n < 4; n++) say("an address", pt(PTRACE_POKEUSER, child, DEBUG(n), (long)somewhere));
    static const unsigned long controls[] = {0, 1, 2, 3, 0x100, 0x200, 0x400, 0x401, 0x1000, 0x2000, 1L << 32, -1, 0x10001, 0x20001, 0x30001, 0x40001, 0x50001, 0x80001, 0x90001, 0xd0001,
        0xf0001, 0xd0000, 0x20000, 0x55, 0x11110055, 0xdddd0055, 0xaaaa00ff, 0x99990055};
    for (size_t i = 0; i < sizeof controls / sizeof *controls; i++) {
        char name[64];
        snprintf(name, sizeof name, "control %#lx", controls[i]);
        say(name, pt(PTRACE_POKEUSER, child, DEBUG(7), controls[i]));
        hex("is", reg(child, DEBUG(7)));
    }
    say("none", pt(PTRACE_POKEUSER, child, DEBUG(7), 0));
    for (int kind = 1; kind < 16; kind += 2)
        for (int odd = 0; odd < 8; odd++) {
            if ((kind & 3) == 2) continue;
            pt(PTRACE_POKEUSER, child, DEBUG(7), 0);
            pt(PTRACE_POKEUSER, child, DEBUG(0), (long)somewhere + odd);
            char name[64];
            snprintf(name, sizeof name, "kind and length %d, %d bytes off", kind, odd);
            say(name, pt(PTRACE_POKEUSER, child, DEBUG(7), kind << 16 | 1));
        }
    pt(PTRACE_POKEUSER, child, DEBUG(7), 0);
    pt(PTRACE_POKEUSER, child, DEBUG(0), (long)somewhere);
    say("four bytes", pt(PTRACE_POKEUSER, child, DEBUG(7), 13 << 16 | 1));
    say("moved by one", pt(PTRACE_POKEUSER, child, DEBUG(0), (long)somewhere + 1));
    say("moved by four", pt(PTRACE_POKEUSER, child, DEBUG(0), (long)somewhere + 4));
    hex("control", reg(child, DEBUG(7)));
    end(child);
    child = traced(waits, 0);
    for (int n = 0; n < 8; n++) hex("a new one's", reg(child, DEBUG(n)));
    end(child);
}

static void register_sets(void) {
    pid_t child = traced(waits, 0);
    static unsigned char bytes[8192];
    static const struct { const char *name; unsigned long type; } types[] = {{"PRSTATUS", 1}, {"PRFPREG", 2}, {"PRPSINFO", 3}, {"TASKSTRUCT", 4}, {"AUXV", 6},
        {"386_TLS", 0x200}, {"386_IOPERM", 0x201}, {"X86_XSTATE", 0x202}, {"type 0", 0}, {"SIGINFO", 0x53494749}, {"PRXFPREG", 0x46e62b7f}, {"a high bit", 1L << 32 | 1}};
    static const unsigned long sizes[] = {0, 1, 4, 8, 16, 100, 216, 224, 504, 512, 520, 576, 4096, 8192};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            struct iovec room = {bytes, sizes[s]};
            char name[64];
            memset(bytes, 0x5a, sizeof bytes);
            snprintf(name, sizeof name, "%s, %lu bytes", types[t].name, sizes[s]);
            long result = pt(PTRACE_GETREGSET, child, types[t].type, (long)&room);
            say(name, result);
            // How large the vector state is says the machine.
            int is_state = types[t].type == 0x202;
            if (!is_state || room.iov_len <= 576) put("got", room.iov_len);
            if (result == 0 && room.iov_len && room.iov_len < sizeof bytes) put("untouched behind", bytes[room.iov_len] == 0x5a);
            size_t whole = room.iov_len;
            room = (struct iovec){bytes, sizes[s] == 8192 && is_state ? whole : sizes[s]};
            if (types[t].type == 1 && room.iov_len > 64) continue;
            snprintf(name, sizeof name, "set %s, %lu bytes", types[t].name, sizes[s]);
            say(name, pt(PTRACE_SETREGSET, child, types[t].type, (long)&room));
            if (!is_state || room.iov_len <= 576) put("took", room.iov_len);
        }
    struct iovec nowhere = {0, 216};
    say("registers to nowhere", pt(PTRACE_GETREGSET, child, 1, (long)&nowhere));
    say("registers from nowhere", pt(PTRACE_SETREGSET, child, 1, (long)&nowhere));
    nowhere.iov_len = 512;
    say("floats to nowhere", pt(PTRACE_GETREGSET, child, 2, (long)&nowhere));
    say("floats from nowhere", pt(PTRACE_SETREGSET, child, 2, (long)&nowhere));
    struct iovec room = {bytes, 512};
    MUST(!pt(PTRACE_GETREGSET, child, 2, (long)&room));
    hex("control of floats", bytes[0] | bytes[1] << 8);
    hex("control of vectors", *(unsigned *)(bytes + 24));
    hex("what Linux leaves there", bytes[464]);
    *(unsigned *)(bytes + 24) = 0x1f80 | 1 << 16;
    say("a bit of control that isn't there", pt(PTRACE_SETREGSET, child, 2, (long)&room));
    *(unsigned *)(bytes + 24) = 0x1f80;
    memset(bytes + 160, 0x77, 16);
    say("a vector", pt(PTRACE_SETREGSET, child, 2, (long)&room));
    memset(bytes, 0, sizeof bytes);
    say("all floats", pt(GETFPREGS, child, 0, (long)bytes));
    put("shown", bytes[160] == 0x77 && bytes[175] == 0x77 && bytes[176] != 0x77);
    room.iov_len = sizeof bytes;
    say("all of the state", pt(PTRACE_GETREGSET, child, 0x202, (long)&room));
    put("shown", bytes[160] == 0x77);
    hex("in use", bytes[512] & 2);
    hex("what there is", bytes[464] & 3);
    bytes[520] = 1;
    say("a reserved byte", pt(PTRACE_SETREGSET, child, 0x202, (long)&room));
    bytes[520] = 0, bytes[512 + 7] = 0x80;
    say("an unknown component", pt(PTRACE_SETREGSET, child, 0x202, (long)&room));
    bytes[512 + 7] = 0;
    room.iov_len -= 8;
    say("too short", pt(PTRACE_SETREGSET, child, 0x202, (long)&room));
    room.iov_len = sizeof bytes;
    say("too long", pt(PTRACE_SETREGSET, child, 0x202, (long)&room));
    struct user_regs_struct registers;
    say("all registers", pt(GETREGS, child, 0, (long)&registers));
    say("all registers back", pt(SETREGS, child, 0, (long)&registers));
    registers.fs_base = -1;
    say("a bad base", pt(SETREGS, child, 0, (long)&registers));
    end(child);
}

static void others(void) {
    pid_t child = traced(waits, 0);
    unsigned long words[16];
    memset(words, 0x5a, sizeof words);
    for (unsigned size = 0; size <= 32; size += 8) {
        say("restartable sequences", pt(GET_RSEQ, child, size, (long)words));
        if (size == 24) hex("pointer", words[0]), hex("size and signature", words[1]), hex("flags", words[2]);
    }
    say("to nowhere", pt(GET_RSEQ, child, 24, 8));
    say("a filter", pt(GET_FILTER, child, 0, (long)words));
    say("a filter's length", pt(GET_FILTER, child, 0, 0));
    say("a filter's data", pt(0x420d, child, sizeof words, (long)words));
    static const unsigned long codes[] = {0, 0x1001, 0x1002, 0x1003, 0x1004, 0x1011, 0x1012, 0x1021, 0x3001};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        char name[64];
        snprintf(name, sizeof name, "arch_prctl %#lx", codes[i]);
        words[0] = 0x1234;
        say(name, pt(ARCH_PRCTL, child, codes[i] == 0x1003 || codes[i] == 0x1004 ? (long)words : 0x5000, codes[i]));
        if (codes[i] == 0x1003 || codes[i] == 0x1004) hex("is", words[0]);
    }
    say("a base beyond", pt(ARCH_PRCTL, child, 0x7ffffffff000, 0x1002));
    say("a base in the kernel", pt(ARCH_PRCTL, child, -4096, 0x1001));
    say("a base to nowhere", pt(ARCH_PRCTL, child, 8, 0x1003));
    static const unsigned long mask_sizes[] = {0, 4, 7, 8, 9, 16, 128, 1L << 32 | 8};
    for (size_t i = 0; i < sizeof mask_sizes / sizeof *mask_sizes; i++) {
        char name[64];
        snprintf(name, sizeof name, "mask of %#lx bytes", mask_sizes[i]);
        words[0] = 0x1234;
        say(name, pt(PTRACE_GETSIGMASK, child, mask_sizes[i], (long)words));
        hex("is", words[0]);
        snprintf(name, sizeof name, "set mask of %#lx bytes", mask_sizes[i]);
        words[0] = 1L << (i + 20);
        say(name, pt(PTRACE_SETSIGMASK, child, mask_sizes[i], (long)words));
    }
    words[0] = -1;
    say("all signals", pt(PTRACE_SETSIGMASK, child, 8, (long)words));
    say("the mask", pt(PTRACE_GETSIGMASK, child, 8, (long)words));
    hex("is", words[0]);
    say("the mask to nowhere", pt(PTRACE_GETSIGMASK, child, 8, 8));
    say("the mask from nowhere", pt(PTRACE_SETSIGMASK, child, 8, 8));
    call_info("a signal", child);
    static const unsigned long sizes[] = {0, 1, 8, 23, 24, 25, 1000, 1L << 40};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        memset(words, 0x5a, sizeof words);
        say("info of a call", pt(GET_CALL, child, sizes[i], (long)words));
        put("untouched", ((char *)words)[sizes[i] < 24 ? sizes[i] : 24] == 0x5a);
    }
    say("info of a call to nowhere", pt(GET_CALL, child, 24, 8));
    say("listen", pt(PTRACE_LISTEN, child, 0, 0));
    say("interrupt", pt(PTRACE_INTERRUPT, child, 0, 0));
    say("thread area -1", pt(GET_THREAD_AREA, child, -1, (long)words));
    say("thread area 0", pt(GET_THREAD_AREA, child, 0, (long)words));
    say("thread area 11", pt(GET_THREAD_AREA, child, 11, (long)words));
    say("thread area 15", pt(GET_THREAD_AREA, child, 15, (long)words));
    end(child);
}

struct peek { uint64_t from; uint32_t flags; int32_t count; };
static long peek_signals(pid_t pid, uint64_t from, uint32_t flags, int32_t count, siginfo_t *to) {
    struct peek peek = {from, flags, count};
    return pt(PEEKSIGINFO, pid, (long)&peek, (long)to);
}
static void collects(void) {
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, 0);
    for (int i = 0; i < 3; i++) {
        union sigval value = {.sival_int = 10 + i};
        sigqueue(getpid(), SIGRTMIN + 1, value);
    }
    kill(getpid(), SIGUSR1);
    kill(getpid(), SIGUSR1);
    syscall(SYS_tkill, gettid(), SIGUSR2);
    syscall(SYS_tkill, gettid(), SIGHUP);
    kill(getpid(), SIGSTOP);
}
static void pending_signals(void) {
    pid_t child = traced(collects, 0);
    siginfo_t found[10];
    memset(found, 0, sizeof found);
    say("go", pt(PTRACE_CONT, child, 0, 0));
    waited("stops", child);
    long count = peek_signals(child, 0, 1, 10, found);
    say("of the process", count);
    for (int i = 0; i < count; i++) printf("signal %d, code %d, value %d, from %s\n", found[i].si_signo, found[i].si_code, found[i].si_value.sival_int * (found[i].si_code < 0), found[i].si_pid == child ? "itself" : "another");
    count = peek_signals(child, 0, 0, 10, found);
    say("of the thread", count);
    for (int i = 0; i < count; i++) printf("signal %d, code %d\n", found[i].si_signo, found[i].si_code);
    say("from the second on", peek_signals(child, 1, 1, 10, found));
    put("signal", found[0].si_signo);
    say("two", peek_signals(child, 0, 1, 2, found));
    say("none", peek_signals(child, 0, 1, 0, found));
    say("fewer than none", peek_signals(child, 0, 1, -1, found));
    say("behind the last", peek_signals(child, 4, 1, 5, found));
    say("far behind", peek_signals(child, -1, 1, 5, found));
    say("an unknown flag", peek_signals(child, 0, 2, 5, found));
    say("an unknown flag and a known one", peek_signals(child, 0, 3, 5, found));
    say("to nowhere", peek_signals(child, 0, 1, 5, (void *)8));
    say("none to nowhere", peek_signals(child, 0, 1, 0, (void *)8));
    say("said nowhere", pt(PEEKSIGINFO, child, 8, (long)found));
    say("they stay", peek_signals(child, 0, 1, 10, found));
    end(child);
}

// Calls by hand, with what the registers have after them.
static long call_of(long number, long first) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(first), "S"(0), "d"(0) : "rcx", "r11", "memory");
    return result;
}
static void asks_twice(void) {
    long first = call_of(SYS_getppid, 1), second = call_of(SYS_getuid, 2);
    _exit((first == 77) | (second == 88) << 1 | (first == -ENOSYS) << 2 | (second == -ENOSYS) << 3 | (second == 0) << 4 | (first == getppid()) << 5);
}
static void at_calls(void) {
    pid_t child = traced(asks_twice, GOOD);
    shown("at a signal", child);
    call_info("at a signal", child);
    put("message", message(child));
    info("info", child);
    say("to the call", pt(PTRACE_SYSCALL, child, 0, 0));
    waited("enters", child);
    shown("entry", child);
    call_info("entry", child);
    put("message", message(child));
    info("info", child);
    say("no call", pt(PTRACE_POKEUSER, child, REG(orig_rax), -1));
    say("rax", pt(PTRACE_POKEUSER, child, REG(rax), 77));
    say("to its exit", pt(PTRACE_SYSCALL, child, 0, 0));
    waited("leaves", child);
    shown("exit", child);
    call_info("exit", child);
    say("to the next", pt(PTRACE_SYSCALL, child, 0, 0));
    waited("enters", child);
    shown("entry", child);
    say("to its exit", pt(PTRACE_SYSCALL, child, 0, 0));
    waited("leaves", child);
    say("rax", pt(PTRACE_POKEUSER, child, REG(rax), 88));
    call_info("exit", child);
    say("on", pt(PTRACE_CONT, child, 0, 0));
    waited("ends", child);
    static const long numbers[] = {-1, 0xffffffff, 1L << 32 | SYS_getuid, 511, 100000, -2, SYS_getuid};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        child = traced(asks_twice, GOOD);
        pt(PTRACE_SYSCALL, child, 0, 0), next(child);
        printf("number %ld: ", numbers[i]);
        say("made another", pt(PTRACE_POKEUSER, child, REG(orig_rax), numbers[i]));
        shown("entry", child);
        pt(PTRACE_SYSCALL, child, 0, 0), next(child);
        shown("exit", child);
        call_info("exit", child);
        say("on", pt(PTRACE_CONT, child, 0, 0));
        waited("ends", child);
    }
    // Results that look like calls to be made again.
    for (int code = 511; code <= 517; code++) {
        child = traced(asks_twice, GOOD);
        pt(PTRACE_SYSCALL, child, 0, 0), next(child);
        pt(PTRACE_POKEUSER, child, REG(orig_rax), code & 1 ? -1 : SYS_getppid);
        pt(PTRACE_SYSCALL, child, 0, 0), next(child);
        printf("result -%d: ", code);
        say("set", pt(PTRACE_POKEUSER, child, REG(rax), -code));
        shown("exit", child);
        call_info("exit", child);
        pt(PTRACE_SYSCALL, child, 0, 0), waited("then", child);
        shown("there", child);
        end(child);
    }
    // Without the option, and a signal that the tracer gives.
    child = traced(asks_twice, 0);
    pt(PTRACE_SYSCALL, child, 0, 0);
    waited("without the option", child);
    info("info", child);
    call_info("exit", child);
    say("with a signal", pt(PTRACE_SYSCALL, child, 0, SIGUSR1));
    waited("comes", child);
    info("info", child);
    put("message", message(child));
    end(child);
}

static void emulated(void) {
    pid_t child = traced(asks_twice, GOOD);
    say("emulate", pt(SYSEMU, child, 0, 0));
    waited("enters", child);
    shown("entry", child);
    call_info("entry", child);
    put("message", message(child));
    info("info", child);
    pt(PTRACE_POKEUSER, child, REG(rax), 77);
    say("emulate", pt(SYSEMU, child, 0, 0));
    waited("enters the next", child);
    shown("entry", child);
    say("makes it", pt(PTRACE_CONT, child, 0, 0));
    waited("ends", child);
    child = traced(asks_twice, GOOD);
    pt(SYSEMU, child, 0, 0), next(child);
    pt(PTRACE_POKEUSER, child, REG(rax), 77);
    say("to its exit", pt(PTRACE_SYSCALL, child, 0, 0));
    waited("stops", child);
    shown("exit", child);
    call_info("exit", child);
    say("to the next", pt(PTRACE_SYSCALL, child, 0, 0));
    waited("enters", child);
    shown("entry", child);
    say("emulate", pt(SYSEMU, child, 0, 0));
    waited("enters the one behind", child);
    shown("entry", child);
    end(child);
    child = traced(asks_twice, 0);
    say("without the option", pt(SYSEMU, child, 0, 0));
    waited("enters", child);
    call_info("entry", child);
    say("with a signal", pt(SYSEMU, child, 0, SIGUSR1));
    waited("comes", child);
    info("info", child);
    end(child);
}

// Instructions whose places are known.
extern const char stepped[], stepped_call[], stepped_end[];
__asm__(".pushsection .text\n.globl stepped, stepped_call, stepped_end\n"
    "stepped: nop\n mov $39, %eax\n nop\nstepped_call: syscall\n nop\n jmp 1f\n nop\n1: nop\n pushf\n pop %rcx\n nop\n nop\n ret\nstepped_end:\n.popsection");
static void runs_it(void) { ((void (*)(void))stepped)(); _exit(4); }
static void at(const char *name, pid_t child) {
    unsigned long rip = reg(child, REG(rip));
    if (rip >= (unsigned long)stepped && rip < (unsigned long)stepped_end) printf("%s: at %ld, trap flag %lu\n", name, (long)(rip - (unsigned long)stepped), reg(child, REG(eflags)) >> 8 & 1);
    else printf("%s: elsewhere\n", name);
    fflush(stdout);
}
static pid_t at_stepped(long options) {
    pid_t child = traced(runs_it, options);
    struct user_regs_struct registers;
    MUST(!pt(PTRACE_POKEUSER, child, DEBUG(0), (long)stepped) && !pt(PTRACE_POKEUSER, child, DEBUG(7), 1) && !pt(PTRACE_CONT, child, 0, 0));
    next(child);
    MUST(!pt(GETREGS, child, 0, (long)&registers) && registers.rip == (unsigned long)stepped);
    MUST(!pt(PTRACE_POKEUSER, child, DEBUG(7), 0));
    return child;
}
static void stepping(void) {
    static const struct { const char *name; int request; } kinds[] = {{"step", PTRACE_SINGLESTEP}, {"block", BLOCK}, {"emulated step", SYSEMU_STEP}};
    for (int k = 0; k < 3; k++) {
        pid_t child = at_stepped(GOOD);
        printf("- %s\n", kinds[k].name);
        info("breakpoint", child);
        hex("status", reg(child, DEBUG(6)));
        for (int i = 0; i < 14; i++) {
            say("go", pt(kinds[k].request, child, 0, 0));
            int status = next(child);
            status_of("stops", status);
            if (!WIFSTOPPED(status)) break;
            at("now", child);
            if (i < 5) info("info", child), shown("registers", child), call_info("call", child), hex("status", reg(child, DEBUG(6)) & 0x4000);
        }
        say("on", pt(PTRACE_CONT, child, 0, 0));
        waited("ends", child);
    }
    // The program sees no trap flag, and one that the tracer sets is its own.
    pid_t child = at_stepped(0);
    say("trap flag", pt(PTRACE_POKEUSER, child, REG(eflags), reg(child, REG(eflags)) | 0x100));
    at("set", child);
    say("on", pt(PTRACE_CONT, child, 0, 0));
    waited("stops", child);
    at("now", child);
    info("info", child);
    say("step", pt(PTRACE_SINGLESTEP, child, 0, 0));
    waited("stops", child);
    at("now", child);
    say("on", pt(PTRACE_CONT, child, 0, 0));
    waited("stops", child);
    at("now", child);
    say("no trap flag", pt(PTRACE_POKEUSER, child, REG(eflags), reg(child, REG(eflags)) & ~0x100));
    say("on", pt(PTRACE_CONT, child, 0, 0));
    waited("ends", child);
}

static volatile sig_atomic_t handled;
static unsigned long flags_then;
static void handles(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    flags_then = ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL];
    handled++;
}
static void handler(int signal) {
    struct sigaction action = {.sa_sigaction = handles, .sa_flags = SA_SIGINFO};
    MUST(!sigaction(signal, &action, 0));
}
static void raises(void) {
    handler(SIGUSR1);
    raise(SIGUSR1);
    _exit(handled | (flags_then & 0x100 ? 2 : 0));
}
static void steps_into_handlers(void) {
    pid_t child = traced(raises, GOOD);
    say("go", pt(PTRACE_CONT, child, 0, 0));
    waited("signal", child);
    info("info", child);
    say("step into it", pt(PTRACE_SINGLESTEP, child, 0, SIGUSR1));
    waited("stops", child);
    put("at the handler", reg(child, REG(rip)) == (unsigned long)handles);
    info("info", child);
    shown("registers", child);
    put("trap flag", reg(child, REG(eflags)) >> 8 & 1);
    call_info("call", child);
    say("step", pt(PTRACE_SINGLESTEP, child, 0, 0));
    waited("stops", child);
    info("info", child);
    say("on", pt(PTRACE_CONT, child, 0, 0));
    waited("ends", child);
    child = traced(raises, GOOD);
    pt(PTRACE_CONT, child, 0, 0), next(child);
    say("step without it", pt(PTRACE_SINGLESTEP, child, 0, 0));
    waited("stops", child);
    info("info", child);
    say("on", pt(PTRACE_CONT, child, 0, 0));
    waited("ends", child);
}

static int ends_of_pipe[2];
static void reads(void) {
    char byte;
    handler(SIGUSR1);
    errno = 0;
    long got = read(ends_of_pipe[0], &byte, 1);
    _exit(got == 1 ? 10 + handled : errno == EINTR ? 20 + handled : got == 0 ? 40 : 30);
}
static void sleeps(void) {
    struct timespec time = {0, 30000000};
    handler(SIGUSR1);
    long result = call_of(SYS_nanosleep, (long)&time);
    _exit(result == 0 ? 10 + handled : result == -EINTR ? 20 + handled : 30);
}
static void pauses(void) {
    handler(SIGUSR1);
    long result = call_of(SYS_pause, 0);
    _exit(result == -EINTR ? 20 + handled : 30);
}
static void interrupted(void) {
    MUST(!pipe(ends_of_pipe));
    static const struct { const char *name; void (*body)(void); int is_read; } calls[] = {{"read", reads, 1}, {"nanosleep", sleeps, 0}, {"pause", pauses, 0}};
    static const char *const ways[] = {"no signal", "its signal", "another result", "no call", "no call and its signal", "another call", "a result, its signal"};
    for (int c = 0; c < 3; c++)
        for (int w = 0; w < 7; w++) {
            pid_t child = traced(calls[c].body, GOOD);
            printf("- %s: %s\n", calls[c].name, ways[w]);
            pt(PTRACE_CONT, child, 0, 0);
            pause_for(10);
            kill(child, SIGUSR1);
            waited("signal", child);
            shown("registers", child);
            call_info("call", child);
            if (w == 2 || w == 6) pt(PTRACE_POKEUSER, child, REG(rax), 1);
            if (w == 3 || w == 4) pt(PTRACE_POKEUSER, child, REG(orig_rax), -1);
            if (w == 5) pt(PTRACE_POKEUSER, child, REG(orig_rax), SYS_getuid);
            if (w == 5 || w == 3) shown("changed", child);
            say("go", pt(PTRACE_CONT, child, 0, w == 1 || w == 4 || w == 6 ? SIGUSR1 : 0));
            pause_for(10);
            if (calls[c].is_read) MUST(write(ends_of_pipe[1], "x", 1) == 1);
            if (!calls[c].is_read && c == 2) kill(child, SIGUSR1);
            int status = next(child);
            status_of("then", status);
            if (WIFSTOPPED(status)) {
                shown("registers", child);
                say("go", pt(PTRACE_CONT, child, 0, SIGUSR1));
                waited("then", child);
            }
            end(child);
            if (calls[c].is_read) {
                char byte;
                MUST(!fcntl(ends_of_pipe[0], F_SETFL, O_NONBLOCK));
                while (read(ends_of_pipe[0], &byte, 1) == 1) {}
                MUST(!fcntl(ends_of_pipe[0], F_SETFL, 0));
            }
        }
    // Whose exit a tracer sees.
    pid_t child = traced(reads, GOOD);
    pt(PTRACE_CONT, child, 0, 0);
    pause_for(10);
    kill(child, SIGUSR2);
    waited("signal", child);
    say("to the next call", pt(PTRACE_SYSCALL, child, 0, 0));
    waited("enters again", child);
    shown("entry", child);
    call_info("entry", child);
    say("to its exit", pt(PTRACE_SYSCALL, child, 0, 0));
    pause_for(10);
    kill(child, SIGUSR1);
    waited("leaves", child);
    shown("exit", child);
    call_info("exit", child);
    say("result 5", pt(PTRACE_POKEUSER, child, REG(rax), 5));
    say("on", pt(PTRACE_SYSCALL, child, 0, 0));
    waited("signal", child);
    shown("registers", child);
    say("none", pt(PTRACE_CONT, child, 0, 0));
    waited("ends", child);
    // A program's registers that a debugger saves, uses and puts back make the call again.
    child = traced(reads, GOOD);
    pt(PTRACE_CONT, child, 0, 0);
    pause_for(10);
    kill(child, SIGUSR2);
    waited("signal", child);
    struct user_regs_struct saved, used;
    MUST(!pt(GETREGS, child, 0, (long)&saved));
    used = saved;
    used.rip = (unsigned long)stepped;
    used.orig_rax = -1;
    MUST(!pt(SETREGS, child, 0, (long)&used));
    say("elsewhere", pt(PTRACE_SINGLESTEP, child, 0, 0));
    waited("stops", child);
    at("now", child);
    shown("registers", child);
    say("back", pt(SETREGS, child, 0, (long)&saved));
    shown("registers", child);
    say("go", pt(PTRACE_CONT, child, 0, 0));
    pause_for(10);
    MUST(write(ends_of_pipe[1], "x", 1) == 1);
    waited("reads", child);
}

static void blocked(void) {
    sigset_t none;
    sigemptyset(&none);
    handler(SIGUSR1);
    raise(SIGUSR1);
    int first = handled;
    sigprocmask(SIG_SETMASK, &none, 0);
    _exit(first << 4 | handled);
}
static void suspends(void) {
    sigset_t mask;
    handler(SIGUSR1);
    sigemptyset(&mask), sigaddset(&mask, SIGUSR2), sigaddset(&mask, SIGUSR1);
    sigprocmask(SIG_SETMASK, &mask, 0);
    sigdelset(&mask, SIGUSR1), sigaddset(&mask, SIGHUP);
    sigsuspend(&mask);
    sigprocmask(SIG_SETMASK, 0, &mask);
    _exit(sigismember(&mask, SIGUSR1) | sigismember(&mask, SIGUSR2) << 1 | sigismember(&mask, SIGHUP) << 2 | sigismember(&mask, SIGTERM) << 3);
}
static void handles_info(int signal, siginfo_t *info, void *context) {
    (void)context;
    handled = signal == SIGUSR2 ? 1 : 2;
    flags_then = (info->si_pid == getppid()) | (info->si_code == SI_USER) << 1 | (info->si_pid == getpid()) << 2 | (info->si_value.sival_int == 1234) << 3;
}
static void tells_info(void) {
    struct sigaction action = {.sa_sigaction = handles_info, .sa_flags = SA_SIGINFO};
    MUST(!sigaction(SIGUSR2, &action, 0) && !sigaction(SIGUSR1, &action, 0));
    raise(SIGUSR1);
    _exit(flags_then << 2 | handled);
}
static void signals(void) {
    unsigned long mask = 1UL << (SIGUSR1 - 1);
    pid_t child = traced(blocked, 0);
    say("go", pt(PTRACE_CONT, child, 0, 0));
    waited("signal", child);
    say("blocked", pt(PTRACE_SETSIGMASK, child, 8, (long)&mask));
    say("go with it", pt(PTRACE_CONT, child, 0, SIGUSR1));
    waited("then", child);
    info("info", child);
    say("go with it", pt(PTRACE_CONT, child, 0, SIGUSR1));
    waited("ends", child);
    child = traced(suspends, 0);
    pt(PTRACE_CONT, child, 0, 0);
    pause_for(10);
    kill(child, SIGUSR1);
    waited("suspended", child);
    MUST(!pt(PTRACE_GETSIGMASK, child, 8, (long)&mask));
    hex("mask", mask);
    say("go with it", pt(PTRACE_CONT, child, 0, SIGUSR1));
    waited("ends", child);
    child = traced(suspends, 0);
    pt(PTRACE_CONT, child, 0, 0);
    pause_for(10);
    kill(child, SIGUSR1);
    waited("suspended", child);
    mask = 1UL << (SIGTERM - 1);
    say("another mask", pt(PTRACE_SETSIGMASK, child, 8, (long)&mask));
    MUST(!pt(PTRACE_GETSIGMASK, child, 8, (long)&mask));
    hex("mask", mask);
    say("go with it", pt(PTRACE_CONT, child, 0, SIGUSR1));
    waited("ends", child);
    // Another signal, the same with other details, and one that the thread ignores.
    child = traced(tells_info, 0);
    pt(PTRACE_CONT, child, 0, 0), next(child);
    say("another", pt(PTRACE_CONT, child, 0, SIGUSR2));
    waited("ends", child);
    child = traced(tells_info, 0);
    pt(PTRACE_CONT, child, 0, 0), next(child);
    siginfo_t details;
    MUST(!pt(PTRACE_GETSIGINFO, child, 0, (long)&details));
    details.si_value.sival_int = 1234;
    details.si_code = SI_QUEUE;
    say("details", pt(PTRACE_SETSIGINFO, child, 0, (long)&details));
    say("go", pt(PTRACE_CONT, child, 0, SIGUSR1));
    waited("ends", child);
    child = traced(tells_info, 0);
    pt(PTRACE_CONT, child, 0, 0), next(child);
    details.si_signo = SIGUSR2;
    say("details of another", pt(PTRACE_SETSIGINFO, child, 0, (long)&details));
    info("info", child);
    say("go", pt(PTRACE_CONT, child, 0, SIGUSR1));
    waited("ends", child);
    child = traced(tells_info, 0);
    pt(PTRACE_CONT, child, 0, 0), next(child);
    static const int numbers[] = {0, 65, -1};
    for (int i = 0; i < 3; i++) {
        details.si_signo = numbers[i];
        say("details of no signal", pt(PTRACE_SETSIGINFO, child, 0, (long)&details));
        siginfo_t back;
        MUST(!pt(PTRACE_GETSIGINFO, child, 0, (long)&back));
        put("signal", back.si_signo);
    }
    say("details from nowhere", pt(PTRACE_SETSIGINFO, child, 0, 8));
    end(child);
    child = traced(waits, 0);
    signal(SIGCHLD, SIG_DFL);
    pt(PTRACE_CONT, child, 0, 0);
    kill(child, SIGCHLD), waited("ignored", child), pt(PTRACE_CONT, child, 0, SIGCHLD);
    kill(child, SIGCONT), waited("continues", child), pt(PTRACE_CONT, child, 0, SIGCONT);
    kill(child, SIGWINCH), waited("ignored", child), pt(PTRACE_CONT, child, 0, 0);
    kill(child, SIGTERM), waited("ends", child), pt(PTRACE_CONT, child, 0, SIGTERM);
    waited("ended", child);
}

// What the tracer's SIGCHLD says.
static void told(const char *name) {
    sigset_t set;
    siginfo_t is;
    struct timespec time = {1, 0};
    sigemptyset(&set), sigaddset(&set, SIGCHLD);
    int found = sigtimedwait(&set, &is, &time);
    if (found < 0) printf("%s: %s\n", name, error_name(errno));
    else printf("%s: code %d, status %d\n", name, is.si_code, is.si_status);
    fflush(stdout);
}
static void waited_id(const char *name, pid_t pid, int options) {
    siginfo_t is;
    memset(&is, 0, sizeof is);
    if (waitid(P_PID, pid, &is, options)) printf("%s: %s\n", name, error_name(errno));
    else printf("%s: code %d, status %d, %s\n", name, is.si_code, is.si_status, is.si_pid == pid ? "its" : "none");
    fflush(stdout);
}
static void tracers_are_told(void) {
    sigset_t set;
    sigemptyset(&set), sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, 0);
    pid_t child = traced(waits, GOOD | EXIT);
    told("a first stop");
    pt(PTRACE_CONT, child, 0, SIGSTOP);
    told("a group stop");
    waited_id("it", child, WEXITED | WNOWAIT);
    waited_id("it", child, WSTOPPED | WNOHANG);
    waited_id("again", child, WSTOPPED | WNOHANG);
    pt(PTRACE_SYSCALL, child, 0, 0);
    kill(child, SIGCONT);
    told("a signal or a call");
    waited("one", child);
    pt(PTRACE_CONT, child, 0, 0), waited("two", child);
    pt(PTRACE_CONT, child, 0, 0);
    pause_for(5);
    while (sigtimedwait(&set, 0, &(struct timespec){0, 0}) > 0) {}
    kill(child, SIGTERM);
    told("a signal");
    waited_id("it", child, WEXITED);
    pt(PTRACE_CONT, child, 0, SIGTERM);
    told("an exit");
    waited_id("it", child, WEXITED | WCONTINUED);
    pt(PTRACE_CONT, child, 0, 0);
    told("the end");
    waited_id("it", child, WEXITED);
    child = seized(waits, 0);
    kill(child, SIGSTOP);
    told("a signal");
    waited("it", child);
    pt(PTRACE_CONT, child, 0, SIGSTOP);
    told("a group stop of one that is seized");
    waited_id("it", child, WSTOPPED);
    info("info", child);
    pt(PTRACE_LISTEN, child, 0, 0);
    kill(child, SIGCONT);
    told("its end");
    waited_id("it", child, WSTOPPED);
    info("info", child);
    end(child);
}

static void faults_now(void) { __asm__ volatile("xor %%eax, %%eax\n movb $1, 8" : : : "eax", "memory"); }
static void *thread_waits(void *nothing) { waits(); return nothing; }
static void *thread_ends(void *nothing) { pause_for(5); syscall(SYS_exit, 6); return nothing; }
static void *thread_ends_all(void *nothing) { pause_for(5); _exit(7); return nothing; }
static void *thread_dies(void *nothing) { pause_for(5); syscall(SYS_tgkill, getpid(), gettid(), SIGTERM); return nothing; }
static void *thread_faults(void *nothing) { pause_for(5); faults_now(); return nothing; }
static void *thread_runs(void *nothing) { pause_for(5); execl("/bin/true", "true", (char *)0); return nothing; }
static void with_thread(void *(*body)(void *)) {
    pthread_t thread;
    MUST(!pthread_create(&thread, 0, body, 0));
    waits();
}
static void has_one_that_waits(void) {
    pthread_t thread;
    MUST(!pthread_create(&thread, 0, thread_waits, 0));
    pause_for(5);
    _exit(5);
}
static void has_one_that_waits_and_dies(void) {
    pthread_t thread;
    MUST(!pthread_create(&thread, 0, thread_waits, 0));
    pause_for(5);
    abort();
}
static void has_one_that_ends(void) { with_thread(thread_ends); }
static void has_one_that_ends_all(void) { with_thread(thread_ends_all); }
static void has_one_that_dies(void) { with_thread(thread_dies); }
static void has_one_that_faults(void) { with_thread(thread_faults); }
static void has_one_that_runs(void) { with_thread(thread_runs); }
static void faults(void) { faults_now(); }
static void runs(void) { execl("/bin/true", "true", (char *)0); }
static void runs_as_thread_that_is_alone(void) {
    pthread_t thread;
    MUST(!pthread_create(&thread, 0, thread_runs, 0));
    syscall(SYS_exit, 9);
}
// What comes from all that a tracer follows, in an order that is no scheduler's: by leader and thread.
static void followed(void (*body)(void), long options, int is_seized, int kill_at) {
    char lines[2][64][128];
    int counts[2] = {0, 0}, thread = 0;
    pid_t child = is_seized ? seized(body, options) : traced(body, options);
    if (!is_seized) pt(PTRACE_CONT, child, 0, 0);
    for (int turn = 0; turn < 400; turn++) {
        int status;
        pid_t found = waitpid(-1, &status, __WALL | WNOHANG);
        if (found < 0) break;
        if (found == 0) {
            if (kill_at && turn == kill_at) kill(child, SIGKILL);
            pause_for(2);
            continue;
        }
        int which = found != child;
        char *line = lines[which][counts[which] < 63 ? counts[which]++ : 63];
        int event = status >> 16;
        if (found != child && !thread) thread = found;
        if (!WIFSTOPPED(status)) {
            snprintf(line, 96, WIFEXITED(status) ? "exited %d" : "killed %d", WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
            continue;
        }
        long said = message(found);
        const char *names = (unsigned long)said == (unsigned long)child ? "the leader" : said == thread && said && event == 4 ? "the thread" : said > 200 && event != 6 ? "another" : 0;
        char call[64];
        write_call(call, sizeof call, found);
        if (WSTOPSIG(status) == SIGCHLD) strcpy(call, "somewhere");
        if (names) snprintf(line, 128, "stopped %d, event %d, %s, %s", WSTOPSIG(status), event, names, call);
        else snprintf(line, 128, "stopped %d, event %d, %#lx, %s", WSTOPSIG(status), event, said, call);
        int signal = event || WSTOPSIG(status) == SIGTRAP || WSTOPSIG(status) == SIGSTOP ? 0 : WSTOPSIG(status) & 0x7f;
        pt(PTRACE_CONT, found, 0, signal);
    }
    for (int which = 0; which < 2; which++)
        for (int i = 0; i < counts[which]; i++) printf("%s %s\n", which ? "thread:" : "leader:", lines[which][i]);
    fflush(stdout);
    end(child);
}
static void ends_of_threads(void) {
    static const struct { const char *name; void (*body)(void); int kill_at; } all[] = {
        {"ends", ends, 0}, {"faults", faults, 0}, {"is killed", waits, 20}, {"its thread ends", has_one_that_ends, 60},
        {"its thread ends all", has_one_that_ends_all, 0}, {"ends beside a thread", has_one_that_waits, 0}, {"its thread is sent SIGTERM", has_one_that_dies, 0},
        {"its thread faults", has_one_that_faults, 0}, {"aborts beside a thread", has_one_that_waits_and_dies, 0}, {"runs a program", runs, 0},
        {"its thread runs a program", has_one_that_runs, 0}, {"its last thread runs a program", runs_as_thread_that_is_alone, 0},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        printf("- %s\n", all[i].name);
        followed(all[i].body, CLONE | EXIT | EXEC | GOOD, 0, all[i].kill_at);
        printf("- %s, seized\n", all[i].name);
        followed(all[i].body, CLONE | EXIT | EXEC | GOOD, 1, all[i].kill_at);
        printf("- %s, no events\n", all[i].name);
        followed(all[i].body, CLONE, 0, all[i].kill_at);
    }
}

static void forks(void) { if (!fork()) _exit(2); pause_for(20); _exit(1); }
static void vforks(void) { if (!vfork()) _exit(2); pause_for(20); _exit(1); }
static void makes_traced(void) { if (!syscall(SYS_clone, 0x2000 | SIGCHLD, 0, 0, 0, 0)) _exit(2); pause_for(20); _exit(1); }
static void makes_untraced(void) { if (!syscall(SYS_clone, 0x800000 | SIGCHLD, 0, 0, 0, 0)) _exit(2); pause_for(20); _exit(1); }
static void makes_quiet(void) { if (!syscall(SYS_clone, 0, 0, 0, 0, 0)) _exit(2); pause_for(20); _exit(1); }
static void events(void) {
    static const struct { const char *name; void (*body)(void); } all[] = {{"fork", forks}, {"vfork", vforks}, {"CLONE_PTRACE", makes_traced},
        {"CLONE_UNTRACED", makes_untraced}, {"clone without a signal", makes_quiet}};
    static const long options[] = {0, FORK, VFORK, VFORK_DONE, CLONE, FORK | VFORK | CLONE | VFORK_DONE | EXIT};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (size_t o = 0; o < sizeof options / sizeof *options; o++) {
            printf("- %s, options %#lx\n", all[i].name, options[o]);
            followed(all[i].body, options[o], 0, 0);
            printf("- %s, options %#lx, seized\n", all[i].name, options[o]);
            followed(all[i].body, options[o], 1, 0);
        }
    pid_t child = traced(forks, FORK);
    pt(PTRACE_CONT, child, 0, 0);
    waited("fork", child);
    info("info", child);
    call_info("call", child);
    pid_t other = message(child);
    say("rax", pt(PTRACE_POKEUSER, child, REG(rax), 5));
    waited("the child", other);
    info("info", other);
    call_info("call", other);
    hex("status of a child", reg(other, DEBUG(6)));
    end(other);
    say("with a signal", pt(PTRACE_CONT, child, 0, SIGUSR1));
    waited("a child that ended", child);
    end(child);
    child = traced(runs, 0);
    pt(PTRACE_CONT, child, 0, 0);
    waited("a program", child);
    info("info", child);
    shown("registers", child);
    put("message", message(child));
    end(child);
    child = traced(runs, EXEC);
    pt(PTRACE_CONT, child, 0, 0);
    waited("a program", child);
    info("info", child);
    shown("registers", child);
    put("message", message(child) == (unsigned long)child);
    pt(PTRACE_SYSCALL, child, 0, 0);
    waited("its exit", child);
    shown("registers", child);
    call_info("call", child);
    end(child);
}

static void group_stops(void) {
    for (int by = 0; by < 2; by++) {
        printf("- %s\n", by ? "seized" : "traced");
        pid_t child = by ? seized(waits, 0) : traced(waits, 0);
        if (!by) say("go", pt(PTRACE_CONT, child, 0, 0));
        kill(child, SIGSTOP);
        waited("signal", child);
        say("listen", pt(PTRACE_LISTEN, child, 0, 0));
        say("stop", pt(PTRACE_CONT, child, 0, SIGSTOP));
        waited("stops", child);
        info("info", child);
        call_info("call", child);
        put("message", message(child));
        siginfo_t details = {.si_signo = SIGUSR1};
        say("details", pt(PTRACE_SETSIGINFO, child, 0, (long)&details));
        if (by) info("info", child);
        say("listen", pt(PTRACE_LISTEN, child, 0, 0));
        say("registers", pt(PTRACE_PEEKUSER, child, 0, (long)&details));
        waited_id("nothing new", child, WSTOPPED | WNOHANG);
        kill(child, SIGUSR1);
        status_of("a signal meanwhile", next(child));
        kill(child, SIGCONT);
        waited("goes on", child);
        info("info", child);
        say("go", pt(PTRACE_CONT, child, 0, 0));
        waited("signals", child);
        say("go", pt(PTRACE_CONT, child, 0, 0));
        waited("signals", child);
        say("go", pt(PTRACE_CONT, child, 0, 0));
        kill(child, SIGSTOP);
        waited("stop signal", child);
        say("stop", pt(PTRACE_CONT, child, 0, SIGSTOP));
        waited("stops", child);
        say("but goes on", pt(PTRACE_CONT, child, 0, 0));
        kill(child, SIGUSR1);
        waited("signal", child);
        say("detach", pt(PTRACE_DETACH, child, 0, 0));
        pause_for(5);
        status_of("stopped again", next_with(child, WUNTRACED));
        kill(child, SIGCONT);
        status_of("goes on", next_with(child, WCONTINUED));
        end(child);
    }
    // One that stops untraced.
    static const long ways[] = {PTRACE_ATTACH, PTRACE_SEIZE};
    for (int w = 0; w < 2; w++) {
        printf("- %s\n", w ? "seize" : "attach");
        fflush(stdout);
        pid_t child = fork();
        if (!child) waits();
        kill(child, SIGSTOP);
        status_of("stops", next_with(child, WUNTRACED));
        say("begin", pt(ways[w], child, 0, 0));
        int status = next(child);
        status_of("is", status);
        if (WIFSTOPPED(status)) {
            info("info", child);
            say("go", pt(PTRACE_CONT, child, 0, 0));
            status_of("then", next(child));
            pt(PTRACE_CONT, child, 0, 0);
        } else {
            say("interrupt", pt(PTRACE_INTERRUPT, child, 0, 0));
            waited("is", child);
            info("info", child);
            say("listen", pt(PTRACE_LISTEN, child, 0, 0));
            say("interrupt", pt(PTRACE_INTERRUPT, child, 0, 0));
            waited("again", child);
            info("info", child);
        }
        end(child);
    }
    pid_t child = seized(spins, 0);
    say("interrupt", pt(PTRACE_INTERRUPT, child, 0, 0));
    waited("stops", child);
    info("info", child);
    call_info("call", child);
    say("interrupt again", pt(PTRACE_INTERRUPT, child, 0, 0));
    waited_id("nothing new", child, WSTOPPED | WNOHANG);
    say("listen", pt(PTRACE_LISTEN, child, 0, 0));
    waited("stops", child);
    say("go", pt(PTRACE_CONT, child, 0, SIGUSR1));
    waited("is nothing", child);
    say("detach one that runs", pt(PTRACE_DETACH, child, 0, 0));
    say("interrupt", pt(PTRACE_INTERRUPT, child, 0, 0));
    waited("stops", child);
    say("detach", pt(PTRACE_DETACH, child, 0, SIGTERM));
    waited("then", child);
    end(child);
    // Interrupted calls are made again.
    MUST(!pipe(ends_of_pipe));
    child = seized(reads, 0);
    pause_for(10);
    say("interrupt", pt(PTRACE_INTERRUPT, child, 0, 0));
    waited("stops", child);
    shown("registers", child);
    say("go", pt(PTRACE_CONT, child, 0, 0));
    pause_for(10);
    MUST(write(ends_of_pipe[1], "x", 1) == 1);
    waited("reads", child);
}

static void waits_for_kinds(void) {
    pid_t child = traced(waits, 0), clone = syscall(SYS_clone, 0, 0, 0, 0, 0);
    if (!clone) waits();
    static const struct { const char *name; int options; } all[] = {{"none", 0}, {"WALL", __WALL}, {"WCLONE", __WCLONE}, {"NOTHREAD", NOTHREAD}, {"WCLONE and NOTHREAD", __WCLONE | NOTHREAD}};
    pt(PTRACE_CONT, child, 0, 0);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        kill(child, SIGUSR1);
        printf("%s, ", all[i].name), status_of("a tracee", next_with(child, all[i].options));
        pt(PTRACE_CONT, child, 0, 0);
        MUST(!pt(PTRACE_SEIZE, clone, 0, 0) && !pt(PTRACE_INTERRUPT, clone, 0, 0));
        printf("%s, ", all[i].name), status_of("a clone", next_with(clone, all[i].options));
        if (i == 0 || pt(PTRACE_DETACH, clone, 0, 0)) next(clone), pt(PTRACE_DETACH, clone, 0, 0);
    }
    int status;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        printf("%s, ", all[i].name), say("a clone that isn't traced", waitpid(clone, &status, all[i].options | WNOHANG));
    }
    say("WUNTRACED and 0x10", waitpid(-1, &status, 0x10));
    kill(clone, SIGKILL), waitpid(clone, 0, __WALL);
    end(child);
}
static pid_t traced_by_first;
static int is_thread_done;
static void *other_thread(void *nothing) {
    int status;
    say("registers of another thread's", pt(PTRACE_PEEKUSER, traced_by_first, 0, (long)&status));
    say("let go by another thread", pt(PTRACE_CONT, traced_by_first, 0, 0));
    say("interrupt by another thread", pt(PTRACE_INTERRUPT, traced_by_first, 0, 0));
    say("kill by another thread", pt(PTRACE_KILL, traced_by_first, 0, 0));
    say("attach by another thread", pt(PTRACE_ATTACH, traced_by_first, 0, 0));
    kill(traced_by_first, SIGUSR1);
    say("NOTHREAD", waitpid(traced_by_first, &status, __WALL | NOTHREAD));
    say("NOTHREAD of any", waitpid(-1, &status, __WALL | NOTHREAD));
    status_of("without", next(traced_by_first));
    pid_t child = traced(waits, 0);
    pt(PTRACE_CONT, child, 0, 0);
    pid_t own = fork();
    if (!own) waits();
    say("seizes", pt(PTRACE_SEIZE, own, 0, 0));
    is_thread_done = child;
    char name[64], line[128];
    snprintf(name, sizeof name, "/proc/%d/status", own);
    FILE *file = fopen(name, "r");
    int tracer = -1;
    while (file && fgets(line, sizeof line, file)) sscanf(line, "TracerPid: %d", &tracer);
    if (file) fclose(file);
    put("its tracer is the thread", tracer == gettid());
    traced_by_first = own;
    return nothing;
}
static void threads_that_trace(void) {
    pthread_t thread;
    traced_by_first = traced(waits, 0);
    pid_t child = traced_by_first;
    pt(PTRACE_CONT, child, 0, 0);
    MUST(!pthread_create(&thread, 0, other_thread, 0) && !pthread_join(thread, 0));
    say("go", pt(PTRACE_CONT, child, 0, 0));
    // The thread's tracees are let go by its end.
    pause_for(10);
    say("seize what it had", pt(PTRACE_SEIZE, is_thread_done, 0, 0));
    say("and the other", pt(PTRACE_SEIZE, traced_by_first, 0, 0));
    end(is_thread_done), end(traced_by_first), end(child);
}

static void tracer_ends(long options, int at, int how) {
    int says[2];
    MUST(!pipe(says));
    fflush(stdout);
    pid_t tracer = fork();
    MUST(tracer >= 0);
    if (!tracer) {
        pid_t child = how == 1 ? seized(waits, options) : traced(waits, options);
        if (at >= 1 && how == 0) pt(PTRACE_CONT, child, 0, 0);
        if (at == 2) kill(child, SIGUSR1), pause_for(10);
        if (at == 3) kill(child, SIGUSR1), next(child);
        if (at == 4) kill(child, SIGSTOP), next(child), pt(PTRACE_CONT, child, 0, SIGSTOP), next(child);
        MUST(write(says[1], &child, sizeof child) == sizeof child);
        if (at == 5) execl("/bin/true", "true", (char *)0);
        _exit(0);
    }
    pid_t child;
    MUST(read(says[0], &child, sizeof child) == sizeof child);
    MUST(waitpid(tracer, 0, 0) == tracer);
    pause_for(10);
    char name[64], line[256] = "";
    snprintf(name, sizeof name, "/proc/%d/stat", child);
    FILE *file = fopen(name, "r");
    char state = '-';
    if (file && fgets(line, sizeof line, file)) state = strrchr(line, ')')[2];
    if (file) fclose(file);
    int is_over = state == '-' || state == 'Z';
    printf("options %#lx, at %d, %s: %s\n", options, at, how ? "seized" : "traced", is_over ? "over" : state == 'T' ? "stopped" : "goes on");
    fflush(stdout);
    if (!is_over) kill(child, SIGKILL);
    close(says[0]), close(says[1]);
}
static void ends_of_tracers(void) {
    MUST(!prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0));
    for (int how = 0; how < 2; how++)
        for (int at = 0; at < 6; at++) {
            if (how == 1 && at == 0) continue;
            tracer_ends(0, at, how), tracer_ends(EXITKILL, at, how), tracer_ends(GOOD | EXIT, at, how);
        }
}

static volatile long watched;
static void stores(void) { pause_for(20); watched = 1; _exit(5); }
static void catches(void) { handler(SIGTRAP); pause_for(20); watched = 1; _exit(10 + handled); }
static void forks_and_stores(void) { if (!fork()) { watched = 1; _exit(0); } wait(0); watched = 2; _exit(6); }
static void watches(void) {
    pid_t child = traced(stores, 0);
    MUST(!pt(PTRACE_POKEUSER, child, DEBUG(0), (long)&watched) && !pt(PTRACE_POKEUSER, child, DEBUG(7), 13 << 16 | 1));
    say("detach", pt(PTRACE_DETACH, child, 0, 0));
    waited("stores", child);
    child = traced(catches, 0);
    MUST(!pt(PTRACE_POKEUSER, child, DEBUG(0), (long)&watched) && !pt(PTRACE_POKEUSER, child, DEBUG(7), 13 << 16 | 1));
    say("detach", pt(PTRACE_DETACH, child, 0, 0));
    waited("stores and catches", child);
    child = traced(catches, 0);
    MUST(!pt(PTRACE_POKEUSER, child, DEBUG(2), (long)&watched) && !pt(PTRACE_POKEUSER, child, DEBUG(7), 13 << 24 | 1 << 4));
    say("go", pt(PTRACE_CONT, child, 0, 0));
    waited("stores", child);
    info("info", child);
    hex("status", reg(child, DEBUG(6)));
    say("on", pt(PTRACE_CONT, child, 0, 0));
    waited("ends", child);
    child = traced(forks_and_stores, FORK);
    MUST(!pt(PTRACE_POKEUSER, child, DEBUG(0), (long)&watched) && !pt(PTRACE_POKEUSER, child, DEBUG(7), 13 << 16 | 1));
    say("go", pt(PTRACE_CONT, child, 0, 0));
    waited("forks", child);
    pid_t other = message(child);
    waited("the child", other);
    for (int n = 0; n < 7; n++) hex("the child's", reg(other, DEBUG(n)) != 0);
    say("detach the child", pt(PTRACE_DETACH, other, 0, 0));
    say("go", pt(PTRACE_CONT, child, 0, 0));
    waited("hears of the child", child);
    say("go", pt(PTRACE_CONT, child, 0, 0));
    waited("stores", child);
    end(child);
    child = traced(runs, EXEC);
    MUST(!pt(PTRACE_POKEUSER, child, DEBUG(0), (long)&watched) && !pt(PTRACE_POKEUSER, child, DEBUG(7), 13 << 16 | 1));
    say("go", pt(PTRACE_CONT, child, 0, 0));
    waited("a program", child);
    for (int n = 0; n < 8; n++) hex("the program's", n == 6 ? reg(child, DEBUG(n)) : reg(child, DEBUG(n)) != 0);
    end(child);
}

static void memory(void) {
    static char *page;
    page = mmap(0, 4 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *shared = mmap(0, 4096, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(page != MAP_FAILED && shared != MAP_FAILED);
    memset(page, 7, 4 * 4096);
    MUST(!mprotect(page + 4096, 4096, PROT_NONE) && !mprotect(page + 8192, 4096, PROT_READ) && !munmap(page + 12288, 4096));
    pid_t child = traced(waits, 0);
    unsigned long word = 0;
    static const struct { const char *name; long offset; } places[] = {{"a page", 0}, {"across two", 4092}, {"PROT_NONE", 4096}, {"read-only", 8192}, {"across the end", 12284}, {"no page", 12288}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        printf("%s, ", places[i].name), say("read", pt(PTRACE_PEEKDATA, child, (long)page + places[i].offset, (long)&word));
        printf("%s, ", places[i].name), say("write", pt(PTRACE_POKEDATA, child, (long)page + places[i].offset, word));
    }
    say("read shared", pt(PTRACE_PEEKTEXT, child, (long)shared, (long)&word));
    say("write shared, read-only", pt(PTRACE_POKETEXT, child, (long)shared, word));
    say("read 0", pt(PTRACE_PEEKDATA, child, 0, (long)&word));
    say("read the kernel", pt(PTRACE_PEEKDATA, child, 0xffffffff81000000, (long)&word));
    say("write the kernel", pt(PTRACE_POKEDATA, child, 0xffff888000000000, 0));
    say("read -1", pt(PTRACE_PEEKDATA, child, -1, (long)&word));
    say("read to nowhere", pt(PTRACE_PEEKDATA, child, (long)page, 8));
    say("read nothing to nowhere", pt(PTRACE_PEEKDATA, child, 8, 8));
    end(child);
}

int main(void) {
    static const struct part parts[] = {
        {"requests", requests}, {"registers", registers}, {"debug registers", debug_registers}, {"register sets", register_sets},
        {"other requests", others}, {"pending signals", pending_signals}, {"stops at calls", at_calls}, {"emulated calls", emulated},
        {"steps", stepping}, {"steps into handlers", steps_into_handlers}, {"interrupted calls", interrupted}, {"signals", signals},
        {"what tracers are told", tracers_are_told}, {"ends", ends_of_threads}, {"events", events}, {"stops of the process", group_stops},
        {"waits", waits_for_kinds}, {"threads that trace", threads_that_trace}, {"ends of tracers", ends_of_tracers}, {"watchpoints", watches}, {"memory", memory}};
    // Numbers of processes are larger than what calls return here.
    for (pid_t pid = 0; pid <= 200;) {
        pid = fork();
        MUST(pid >= 0);
        if (!pid) _exit(0);
        MUST(waitpid(pid, 0, 0) == pid);
    }
    run_parts(parts, sizeof parts / sizeof *parts, 0);
    return 0;
}
