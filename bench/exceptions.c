// What two CPUs do that take page faults and nothing else: a program without a kernel, for a machine that has one or two CPUs.
//
// Each CPU touches pages that are not there. The handler says that the page is there, and works for a while in memory of its own;
// the CPUs share nothing but the machine. So what two of them do, against one, is the most that two CPUs of this machine could do
// under any kernel whose exceptions come as often.
//
// A multiboot kernel, booted by QEMU. Its command line has, in nanoseconds, how often an exception is to come on a CPU alone. Printed
// for a program to read (see xtask/src/bench/bare.rs):
//   clock|TICKS OF THE TIME STAMP COUNTER IN A MILLISECOND
//   bare|NANOSECONDS|CPUS|EXCEPTIONS|TICKS      one line for each CPU that took part
// Windows with one CPU and with two take turns.
#include <stdint.h>

typedef uint32_t u32;
typedef uint64_t u64;

enum { CPUS = 2, PAGES = 1024, WINDOW_MS = 100, WINDOWS = 5, APIC = 0xfee00000, TRAMPOLINE = 0x8000 };
// What CPU n touches: 4 MiB from here on, by a table of its own.
enum { TOUCHED = 0x400000 };

// --- the machine ------------------------------------------------------------------------------------------------

static void out8(uint16_t port, uint8_t value) { __asm__ volatile("outb %0, %1" : : "a"(value), "Nd"(port)); }
static uint8_t in8(uint16_t port) {
    uint8_t value;
    __asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"(port));
    return value;
}

static u32 ticks(void) {
    u32 low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return low;
}

static void say(uint16_t port, const char *text) {
    for (; *text; text++) {
        while (!(in8((uint16_t)(port + 5)) & 0x20)) {}
        out8(port, (uint8_t)*text);
    }
}

static void say_number(u32 value, const char *behind) {
    char digits[12], *at = digits + sizeof digits;
    *--at = 0;
    do *--at = (char)('0' + value % 10);
    while (value /= 10);
    say(0x3f8, at);
    say(0x3f8, behind);
}

static u32 timer(void) {
    out8(0x43, 0);
    u32 low = in8(0x40);
    return low | (u32)in8(0x40) << 8;
}

// The least of some readings over 20 milliseconds of the timer: the host may have taken its own time in each.
static u32 ticks_in_a_millisecond(void) {
    u32 best = 0xffffffff;
    for (int i = 0; i < 5; i++) {
        out8(0x43, 0x34), out8(0x40, 0xff), out8(0x40, 0xff);
        u32 from = timer(), start = ticks(), passed;
        while ((passed = (from - timer()) & 0xffff) < 23864) {}
        u32 rate = (ticks() - start) / passed * 1193;
        if (rate < best) best = rate;
    }
    return best;
}

struct tss {
    u32 link, stack, stack_segment, rest[22], ports;
};

static struct tss tss[CPUS];
static u64 gdt[5 + CPUS], idt[256];
static u32 directory[1024] __attribute__((aligned(4096)));
u32 tables[CPUS][PAGES] __attribute__((aligned(4096)));
static char frames[CPUS][4096] __attribute__((aligned(4096)));
char stacks[CPUS][8192] __attribute__((aligned(4096)));
// Rounds of the handler's work.
u32 work;

struct pointer {
    uint16_t limit;
    const void *base;
} __attribute__((packed));

// In assembly, below.
void page_fault(void);
void leave(void);
void touch(char *at, u32 pages, u32 *esp0);
extern const char trampoline[], trampoline_end[];

static u64 segment(u32 base, u32 limit, u32 access, u32 flags) {
    return (u64)(base >> 24) << 56 | (u64)flags << 52 | (u64)(limit >> 16 & 15) << 48 | (u64)access << 40 |
           (u64)(base & 0xffffff) << 16 | (limit & 0xffff);
}

static void gate(int vector, void (*to)(void), u32 level) {
    u32 at = (u32)to;
    idt[vector] = (u64)(at >> 16) << 48 | (u64)(0x8e00 | level << 13) << 32 | 8u << 16 | (at & 0xffff);
}

static void make_tables(void) {
    gdt[1] = segment(0, 0xfffff, 0x9a, 12), gdt[2] = segment(0, 0xfffff, 0x92, 12);
    gdt[3] = segment(0, 0xfffff, 0xfa, 12), gdt[4] = segment(0, 0xfffff, 0xf2, 12);
    directory[0] = 0x87;
    directory[(u32)APIC >> 22] = ((u32)APIC & 0xffc00000) | 0x93;
    for (int cpu = 0; cpu < CPUS; cpu++) {
        gdt[5 + cpu] = segment((u32)&tss[cpu], sizeof tss[cpu] - 1, 0x89, 0);
        tss[cpu].stack_segment = 16, tss[cpu].ports = sizeof tss[cpu] << 16;
        directory[1 + cpu] = (u32)tables[cpu] | 7;
    }
    gate(14, page_fault, 0);
    gate(0x80, leave, 3);
}

static void use_tables(int cpu) {
    struct pointer to_gdt = {sizeof gdt - 1, gdt}, to_idt = {sizeof idt - 1, idt};
    gdt[5 + cpu] &= ~(1ull << 41); // It may have been used before.
    __asm__ volatile("lgdt %0\n\tlidt %1\n\tljmp $8, $1f\n1:" : : "m"(to_gdt), "m"(to_idt) : "memory");
    __asm__ volatile("mov %0, %%ss\n\tmov %1, %%ds\n\tmov %1, %%es\n\tltr %w2" : : "r"(16), "r"(0x23), "r"((5 + cpu) * 8));
    __asm__ volatile("mov %0, %%cr4\n\tmov %1, %%cr3\n\tmov %2, %%cr0" : : "r"(0x10), "r"(directory), "r"(0x80010011));
}

static void send(u32 what) {
    volatile u32 *command = (volatile u32 *)(APIC + 0x300);
    *(volatile u32 *)(APIC + 0x310) = 1 << 24;
    *command = what;
    while (*command & 1 << 12) {}
}

// --- what is measured -------------------------------------------------------------------------------------------

static volatile u32 arrived, phase, size, over, ended;
static u32 window, spent[CPUS], taken[CPUS];

static void meet(void) {
    u32 before = phase;
    if (__sync_add_and_fetch(&arrived, 1) == size) {
        arrived = 0;
        __sync_add_and_fetch(&phase, 1);
    }
    while (phase == before) {}
}

// In rounds, which all begin together. The first warms up.
static void take_exceptions(u32 cpu) {
    spent[cpu] = taken[cpu] = 0;
    for (u32 round = 0; !over; round++) {
        for (u32 page = 0; page < PAGES; page++) tables[cpu][page] = (u32)frames[cpu] | 6;
        __asm__ volatile("mov %0, %%cr3" : : "r"(directory) : "memory");
        meet();
        u32 start = ticks();
        touch((char *)TOUCHED + (cpu << 22), PAGES, &tss[cpu].stack);
        u32 took = ticks() - start;
        meet();
        if (round) spent[cpu] += took, taken[cpu] += PAGES;
        if (cpu == 0 && spent[0] >= window) over = 1;
        meet();
    }
}

// Begins as the second CPU does, and halts it at the end: while it isn't needed, the host runs one CPU.
void second_cpu(void) {
    use_tables(1);
    take_exceptions(1);
    ended = 1;
    for (;;) __asm__ volatile("cli\n\thlt");
}

static void measure(u32 cpus) {
    size = cpus, over = 0, ended = cpus == 1;
    if (cpus == 2) {
        send(0x4500);
        for (u32 start = ticks(); ticks() - start < window / 20;) {}
        send(0x4600 | TRAMPOLINE >> 12);
    }
    take_exceptions(0);
    while (!ended) {}
}

// Ticks of an exception on one CPU whose handler works for so many rounds.
static u32 ticks_of_one(u32 rounds) {
    work = rounds;
    measure(1);
    return spent[0] / taken[0];
}

static void tell(u32 nanos, u32 cpus) {
    for (u32 cpu = 0; cpu < cpus; cpu++) {
        say(0x3f8, "bare|");
        say_number(nanos, "|");
        say_number(cpus, "|");
        say_number(taken[cpu], "|");
        say_number(spent[cpu], "\n");
    }
}

void first_cpu(const u32 *info) {
    make_tables();
    use_tables(0);
    for (const char *at = trampoline; at < trampoline_end; at++) ((volatile char *)TRAMPOLINE)[at - trampoline] = *at;
    u32 clock = ticks_in_a_millisecond();
    window = clock * WINDOW_MS;
    say(0x3f8, "clock|");
    say_number(clock, "\n");
    enum { MANY = 20000 };
    u32 least = ticks_of_one(0), more = ticks_of_one(MANY) - least;
    const char *word = (const char *)info[4];
    while (*word && *word != ' ') word++;
    while (*word) {
        u32 nanos = 0;
        for (; *word == ' '; word++) {}
        for (; *word >= '0' && *word <= '9'; word++) nanos = nanos * 10 + (u32)(*word - '0');
        if (*word && *word != ' ') break;
        // A machine that is faster than its clock tells works a little too long; the rates are what it did.
        u32 wanted = nanos / 100 * (clock / 10) / 1000;
        work = wanted > least ? (wanted - least) * 16 / (more * 16 / MANY) : 0;
        for (int i = 0; i < WINDOWS; i++) {
            measure(1);
            tell(nanos, 1);
            measure(2);
            tell(nanos, 2);
        }
    }
    say(0x3f8, "end\n");
    say(0x2f8, "exit 0\n");
    out8(0xf4, 0);
    for (;;) __asm__ volatile("cli\n\thlt");
}

__asm__(".text\n"
        ".balign 4\n"
        ".long 0x1badb002, 0, -0x1badb002\n"
        ".globl start\n"
        "start:\n"
        "   mov $stacks + 8192, %esp\n"
        "   push %ebx\n"
        "   call first_cpu\n"

        // In real mode, copied to TRAMPOLINE.
        "trampoline:\n"
        ".code16\n"
        "   cli\n"
        "   xor %ax, %ax\n"
        "   mov %ax, %ds\n"
        "   lgdtl 0x8000 + first_gdt - trampoline\n"
        "   mov %cr0, %eax\n"
        "   or $1, %al\n"
        "   mov %eax, %cr0\n"
        "   ljmpl $8, $protected\n"
        "first_gdt:\n"
        "   .word 23\n"
        "   .long gdt\n"
        "trampoline_end:\n"
        ".code32\n"
        "protected:\n"
        "   mov $16, %eax\n"
        "   mov %eax, %ds\n"
        "   mov %eax, %es\n"
        "   mov %eax, %ss\n"
        "   mov $stacks + 2 * 8192, %esp\n"
        "   call second_cpu\n"

        // touch(at, pages, esp0): a program touches the pages; exceptions use the stack below what is saved here.
        "touch:\n"
        "   push %ebx\n"
        "   push %esi\n"
        "   push %edi\n"
        "   push %ebp\n"
        "   mov 20(%esp), %eax\n"
        "   mov 24(%esp), %ecx\n"
        "   mov 28(%esp), %edx\n"
        "   mov %esp, (%edx)\n"
        "   push $0x23\n"
        "   push %esp\n"
        "   push $2\n"
        "   push $0x1b\n"
        "   push $program\n"
        "   iret\n"
        "program:\n"
        "   movb $1, (%eax)\n"
        "   add $4096, %eax\n"
        "   dec %ecx\n"
        "   jnz program\n"
        "   int $0x80\n"
        "leave:\n"
        "   add $20, %esp\n"
        "   pop %ebp\n"
        "   pop %edi\n"
        "   pop %esi\n"
        "   pop %ebx\n"
        "   ret\n"

        "page_fault:\n"
        "   push %eax\n"
        "   push %ecx\n"
        "   mov %cr2, %eax\n"
        "   shr $12, %eax\n"
        "   orl $1, tables - 0x400 * 4(, %eax, 4)\n"
        "   mov work, %ecx\n"
        "   test %ecx, %ecx\n"
        "   jz 2f\n"
        "1: incl -64(%esp)\n"
        "   dec %ecx\n"
        "   jnz 1b\n"
        "2: pop %ecx\n"
        "   pop %eax\n"
        "   add $4, %esp\n"
        "   iret\n");
