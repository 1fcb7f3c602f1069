// Counts how often the guest executes each kernel instruction between the two clock readings of a measured stretch.
//
// A plugin of QEMU's (TCG), used by `./uvm profile`. The benchmark program reads its clock by `lfence; rdtsc` at the start and at
// the end of what it measures: the first such pair opens the window, the next one closes it. Every instruction in the kernel's
// half of the address space has a counter that QEMU bumps inline; a window's counts are the differences over it.
// Under -icount the counts repeat exactly, and each turn of a `rep` counts as one, as it does for the benchmark's clock.
//
// At exit the file given as `out=PATH` gets a line `ADDRESS COUNT` (hexadecimal, decimal) for each instruction that ran.
#include <stdint.h>

// One instruction. `run` counts always; `before` is its value when the window opened, `measured` the sum over all windows.
struct counter {
    uint64_t address, run, before, measured;
};

#include "plugin.h"

static const uint64_t KERNEL_HALF = UINT64_C(1) << 63;
static int window_is_open;

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

static void print(FILE *out, const struct counter *counter) {
    if (counter->measured) fprintf(out, "%" PRIx64 " %" PRIu64 "\n", counter->address, counter->measured);
}
