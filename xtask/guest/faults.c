// Programs that die of their own faults: the right signal, the right si_code and si_addr, and the kernel lives on.
#include "check.h"

#pragma GCC diagnostic ignored "-Warray-bounds"
#pragma GCC diagnostic ignored "-Winfinite-recursion"

static volatile int sink;

static char *page(int protection) {
    char *at = mmap(0, PAGE, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NEED(at != MAP_FAILED);
    return at;
}

static void dies(void (*body)(void), int signal) {
    int status = in_child(body);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == signal);
}

static void write_null(void) { *(volatile char *)0 = 1; }
static void null_write(void) {
    catch_faults();
    RAISES(write_null(), SIGSEGV, SEGV_MAPERR, 0);
    RAISES(*(volatile char *)123 = 1, SIGSEGV, SEGV_MAPERR, 123);
    signal(SIGSEGV, SIG_DFL);
    dies(write_null, SIGSEGV);
}

static char *code;
static void run_data(void) { ((void (*)(void))code)(); }
static void execution_of_data(void) {
    catch_faults();
    code = page(PROT_READ | PROT_WRITE);
    *code = (char)0xc3; // ret
    RAISES(run_data(), SIGSEGV, SEGV_ACCERR, code);
    CHECK(!mprotect(code, PAGE, PROT_READ | PROT_EXEC));
    CATCH(run_data());
    CHECK(!caught_signal);
    static char in_data = (char)0xc3;
    code = &in_data;
    RAISES(run_data(), SIGSEGV, SEGV_ACCERR, code);
    char on_stack = (char)0xc3;
    code = &on_stack;
    RAISES(run_data(), SIGSEGV, SEGV_ACCERR, code);
    signal(SIGSEGV, SIG_DFL);
    dies(run_data, SIGSEGV);
}

static void write_to_read_only(void) {
    catch_faults();
    char *at = page(PROT_READ);
    CATCH(sink = *at);
    CHECK(!caught_signal);
    RAISES(at[100] = 1, SIGSEGV, SEGV_ACCERR, at + 100);
    RAISES(*(volatile char *)(uintptr_t)write_null = 1, SIGSEGV, SEGV_ACCERR, write_null);
    at = page(PROT_READ | PROT_WRITE);
    *at = 1;
    CHECK(!mprotect(at, PAGE, PROT_READ));
    RAISES(*at = 2, SIGSEGV, SEGV_ACCERR, at);
    CHECK(*at == 1);
}

static void no_access(void) {
    catch_faults();
    char *at = page(PROT_NONE);
    RAISES(sink = *at, SIGSEGV, SEGV_ACCERR, at);
    munmap(at, PAGE);
    RAISES(sink = *(volatile char *)at, SIGSEGV, SEGV_MAPERR, at);
}

static void kernel_addresses(void) {
    catch_faults();
    volatile char *high = (volatile char *)0xffffffff80000000;
    CATCH(sink = *high);
    CHECK(caught_signal == SIGSEGV);
    CATCH(*high = 1);
    CHECK(caught_signal == SIGSEGV);
    // An address that no page table can map: the processor doesn't tell which.
    RAISES(sink = *(volatile char *)0x8000000000000000, SIGSEGV, SI_KERNEL, 0);
}

__attribute__((noinline)) static int deeper(volatile char *above) {
    volatile char room[2000];
    room[0] = above ? above[0] + 1 : 0;
    return deeper(room) + room[0];
}
static void overflow(void) { sink = deeper(0); }
static void stack_overflow(void) {
    catch_faults();
    CATCH(overflow());
    CHECK(caught_signal == SIGSEGV && caught_code == SEGV_MAPERR);
    char here;
    CHECK((char *)caught_address < &here);
    signal(SIGSEGV, SIG_DFL);
    dies(overflow, SIGSEGV);
}

static char *mapping;
static void touch_past_end(void) { sink = mapping[PAGE]; }
static void truncated_file(void) {
    catch_faults();
    int fd = open("/tmp/truncated", O_RDWR | O_CREAT | O_TRUNC, 0600);
    NEED(fd >= 0 && !ftruncate(fd, 2 * PAGE));
    mapping = mmap(0, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    NEED(mapping != MAP_FAILED);
    mapping[0] = 1, mapping[PAGE] = 2;
    RAISES(sink = mapping[2 * PAGE + 5], SIGBUS, BUS_ADRERR, mapping + 2 * PAGE + 5);
    CHECK(!ftruncate(fd, PAGE));
    RAISES(mapping[PAGE] = 3, SIGBUS, BUS_ADRERR, mapping + PAGE);
    RAISES(touch_past_end(), SIGBUS, BUS_ADRERR, mapping + PAGE);
    CHECK(mapping[0] == 1);
    CHECK(!ftruncate(fd, 2 * PAGE));
    CATCH(sink = mapping[PAGE]);
    CHECK(!caught_signal && mapping[PAGE] == 0);
    CHECK(!ftruncate(fd, 0));
    FAILS(write(fd, mapping, 1), EFAULT);
    signal(SIGBUS, SIG_DFL);
    dies(touch_past_end, SIGBUS);
    // A private mapping loses what it only borrowed. A page that it wrote is its own: Linux takes that away too, the UVM way is
    // to keep it. Either will do, but nothing else.
    CHECK(!ftruncate(fd, 2 * PAGE));
    char *private = mmap(0, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    private[0] = 9, sink = private[PAGE];
    catch_faults();
    CHECK(!ftruncate(fd, 0));
    RAISES(sink = private[PAGE], SIGBUS, BUS_ADRERR, private + PAGE);
    CATCH(sink = private[0]);
    CHECK(caught_signal == SIGBUS || (!caught_signal && sink == 9));
    unlink("/tmp/truncated");
}

static void divide(void) { __asm__ volatile("xor %%edx, %%edx; xor %%ecx, %%ecx; mov $1, %%eax; div %%ecx" ::: "eax", "ecx", "edx"); }
static void undefined(void) { __asm__ volatile("ud2"); }
static void privileged(void) { __asm__ volatile("hlt"); }
static void breakpoint(void) { __asm__ volatile("int3"); }
static void processor_exceptions(void) {
    catch_faults();
    CATCH(divide());
    CHECK(caught_signal == SIGFPE && caught_code == FPE_INTDIV);
    CATCH(undefined());
    CHECK(caught_signal == SIGILL && caught_code == ILL_ILLOPN);
    RAISES(privileged(), SIGSEGV, SI_KERNEL, 0);
    CATCH(breakpoint());
    CHECK(caught_signal == SIGTRAP);
    signal(SIGFPE, SIG_DFL), signal(SIGILL, SIG_DFL), signal(SIGTRAP, SIG_DFL);
    dies(divide, SIGFPE);
    dies(undefined, SIGILL);
    dies(breakpoint, SIGTRAP);
}

// A program that reaches for ports, model-specific registers or control registers only hurts itself.
static void touch_machine(void) {
    catch_faults();
    CATCH(__asm__ volatile("outb %%al, $0xf4" : : "a"(0)));
    CHECK(caught_signal == SIGSEGV);
    CATCH(__asm__ volatile("cli"));
    CHECK(caught_signal == SIGSEGV);
    CATCH(__asm__ volatile("mov %%cr3, %%rax" ::: "rax"));
    CHECK(caught_signal == SIGSEGV);
    CATCH(__asm__ volatile("wrmsr" : : "a"(0), "d"(0), "c"(0xc0000082)));
    CHECK(caught_signal == SIGSEGV);
}

// A handler that can't be entered since the stack is gone: the process dies, the kernel doesn't.
static void ruin_stack(void) {
    struct sigaction action = {.sa_sigaction = catch_handler, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, 0);
    __asm__ volatile("mov $16, %%rsp; movb $0, 0" ::: "memory");
}
static void no_stack_for_the_handler(void) { dies(ruin_stack, SIGSEGV); }

static void blocked_fault(void) {
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, 0);
    write_null();
}
static void a_blocked_fault_kills(void) { dies(blocked_fault, SIGSEGV); }

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"null_write", null_write},
        {"execution_of_data", execution_of_data},
        {"write_to_read_only", write_to_read_only},
        {"no_access", no_access},
        {"kernel_addresses", kernel_addresses},
        {"stack_overflow", stack_overflow},
        {"truncated_file", truncated_file},
        {"processor_exceptions", processor_exceptions},
        {"touch_machine", touch_machine},
        {"no_stack_for_the_handler", no_stack_for_the_handler},
        {"a_blocked_fault_kills", a_blocked_fault_kills},
    };
    return RUN(cases, argc, argv);
}
