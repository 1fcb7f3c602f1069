// Counts how often the guest executes each kernel instruction between the two clock readings of a measured stretch.
//
// A plugin of QEMU's (TCG), used by `./uvm profile`. The benchmark program reads its clock by `lfence; rdtsc` at the start and at
// the end of what it measures: the first such pair opens the window, the next one closes it. Every instruction in the kernel's
// half of the address space has a counter that QEMU bumps inline; a window's counts are the differences over it.
// Under -icount the counts repeat exactly, and each turn of a `rep` counts as one, as it does for the benchmark's clock.
//
// At exit the file given as `out=PATH` gets a line `ADDRESS COUNT` (hexadecimal, decimal) for each instruction that ran.
//
// The prototypes are those of the plugin interface, version 1 (QEMU 4.2 to 8); Debian packages no header with them.
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef uint64_t plugin_id;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
enum { NO_REGISTERS = 0, INLINE_ADD = 0 };

void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*translated)(plugin_id, struct qemu_plugin_tb *));
void qemu_plugin_register_atexit_cb(plugin_id, void (*ended)(plugin_id, void *), void *data);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t index);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *);
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *);
void qemu_plugin_register_vcpu_insn_exec_inline(struct qemu_plugin_insn *, int operation, void *counter, uint64_t step);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *, void (*executed)(unsigned cpu, void *data), int flags,
                                            void *data);

EXPORT int qemu_plugin_version = 1;

enum { SLOTS = 1 << 20 };
static const uint64_t KERNEL_HALF = UINT64_C(1) << 63;

// One instruction. `run` counts always; `before` is its value when the window opened, `measured` the sum over all windows.
struct counter {
    uint64_t address, run, before, measured;
};

// A hash table that never moves, since translated code holds pointers into it; the order of first use, to walk it.
static struct counter counters[SLOTS];
static struct counter *used[SLOTS];
static size_t used_count;

static int window_is_open;
static const char *out_path;

static struct counter *counter_of(uint64_t address) {
    size_t at = (size_t)(address * UINT64_C(0x9e3779b97f4a7c15) >> 44);
    for (; counters[at].address != address; at = (at + 1) % SLOTS) {
        if (counters[at].address == 0) {
            if (used_count == SLOTS / 2) {
                fputs("profile: too many instructions\n", stderr);
                exit(1);
            }
            counters[at].address = address;
            return used[used_count++] = &counters[at];
        }
    }
    return &counters[at];
}

static void clock_was_read(unsigned cpu, void *data) {
    (void)cpu, (void)data;
    window_is_open = !window_is_open;
    for (size_t i = 0; i < used_count; i++) {
        if (window_is_open) used[i]->before = used[i]->run;
        else used[i]->measured += used[i]->run - used[i]->before;
    }
}

static int is(const struct qemu_plugin_insn *instruction, const char *bytes, size_t length) {
    return qemu_plugin_insn_size(instruction) == length && memcmp(qemu_plugin_insn_data(instruction), bytes, length) == 0;
}

static void translated(plugin_id id, struct qemu_plugin_tb *block) {
    (void)id;
    size_t count = qemu_plugin_tb_n_insns(block);
    for (size_t i = 0; i < count; i++) {
        struct qemu_plugin_insn *instruction = qemu_plugin_tb_get_insn(block, i);
        uint64_t address = qemu_plugin_insn_vaddr(instruction);
        if (address >= KERNEL_HALF) {
            qemu_plugin_register_vcpu_insn_exec_inline(instruction, INLINE_ADD, &counter_of(address)->run, 1);
        } else if (is(instruction, "\x0f\xae\xe8", 3) && i + 1 < count &&
                   is(qemu_plugin_tb_get_insn(block, i + 1), "\x0f\x31", 2)) {
            qemu_plugin_register_vcpu_insn_exec_cb(instruction, clock_was_read, NO_REGISTERS, NULL);
        }
    }
}

static void ended(plugin_id id, void *data) {
    (void)id, (void)data;
    FILE *out = fopen(out_path, "w");
    if (!out) {
        perror(out_path);
        return;
    }
    for (size_t i = 0; i < used_count; i++) {
        if (used[i]->measured) fprintf(out, "%" PRIx64 " %" PRIu64 "\n", used[i]->address, used[i]->measured);
    }
    fclose(out);
}

// `about` describes the machine; nothing here depends on it.
EXPORT int qemu_plugin_install(plugin_id id, const void *about, int count, char **arguments) {
    (void)about;
    if (count != 1 || strncmp(arguments[0], "out=", 4) != 0) {
        fputs("profile: the plugin's one argument is out=PATH\n", stderr);
        return -1;
    }
    out_path = strdup(arguments[0] + 4);
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_atexit_cb(id, ended, NULL);
    return 0;
}
