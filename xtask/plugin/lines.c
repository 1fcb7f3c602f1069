// Counts, between two marks of a measured stretch, how often the guest's two CPUs execute each instruction, and how often a cache line
// that the other CPU had last has to move for it.
//
// A plugin of QEMU's (TCG), used by `./uvm profile --of smp`. The benchmark program executes one of two long no-operations at the
// start and at the end of what it measures (bench/smp.c): see MARK. Each line of 64 bytes of the machine's memory has a state, as in a
// protocol of caches that never forget: which CPUs have it, and whether one has it to write. A load moves it if the other CPU has it
// to write, a store if the other has it at all. The order is that in which QEMU ran them.
//
// At exit the file given as `out=PATH` gets a line `ADDRESS INSTRUCTIONS MOVED` (hexadecimal, decimal) for each instruction that ran.
#include <stdint.h>

enum { CPUS = 2 };

// One instruction, by CPU.
struct counter {
    uint64_t address, run[CPUS], moved[CPUS];
};

#include "plugin.h"

enum { LINE_SHIFT = 6, LINES = 1 << 24, WRITER = 1 << CPUS, ALL = WRITER - 1 };
// nopl 0x6d726b00(%rax), with the last byte of its number 1 where the stretch begins and 2 where it ends.
static const uint8_t MARK[] = {0x0f, 0x1f, 0x80};
static const uint8_t MARK_END[] = {0x6b, 0x72, 0x6d};

// Who has each line, a bit for each CPU, and WRITER.
static uint8_t states[LINES];
static bool is_open;

static void opened(unsigned cpu, void *data) {
    (void)cpu, (void)data;
    __atomic_store_n(&is_open, true, __ATOMIC_RELAXED);
}
static void closed(unsigned cpu, void *data) {
    (void)cpu, (void)data;
    __atomic_store_n(&is_open, false, __ATOMIC_RELAXED);
}

static void executed(unsigned cpu, void *data) {
    if (cpu < CPUS && __atomic_load_n(&is_open, __ATOMIC_RELAXED)) ((struct counter *)data)->run[cpu]++;
}

static void accessed(unsigned cpu, access_info access, uint64_t address, void *data) {
    struct qemu_plugin_hwaddr *at = qemu_plugin_get_hwaddr(access, address);
    if (cpu >= CPUS || !at || qemu_plugin_hwaddr_is_io(at)) return;
    uint8_t *state = &states[qemu_plugin_hwaddr_phys_addr(at) >> LINE_SHIFT & (LINES - 1)];
    uint8_t before = __atomic_load_n(state, __ATOMIC_RELAXED), own = (uint8_t)(1 << cpu), after;
    bool has_moved;
    if (qemu_plugin_mem_is_store(access)) {
        has_moved = before & ALL & ~own;
        after = own | WRITER;
    } else {
        has_moved = !(before & own) && before & WRITER;
        after = before & own ? before : (uint8_t)((before & ALL) | own);
    }
    if (after != before) __atomic_store_n(state, after, __ATOMIC_RELAXED);
    if (has_moved && __atomic_load_n(&is_open, __ATOMIC_RELAXED)) ((struct counter *)data)->moved[cpu]++;
}

// 1 or 2, or 0 for what is no mark.
static int mark_of(const struct qemu_plugin_insn *instruction) {
    const uint8_t *bytes = qemu_plugin_insn_data(instruction);
    if (qemu_plugin_insn_size(instruction) != sizeof MARK + 1 + sizeof MARK_END || memcmp(bytes, MARK, sizeof MARK) ||
        memcmp(bytes + sizeof MARK + 1, MARK_END, sizeof MARK_END)) {
        return 0;
    }
    return bytes[sizeof MARK];
}

static void translated(plugin_id id, struct qemu_plugin_tb *block) {
    (void)id;
    for (size_t i = 0; i < qemu_plugin_tb_n_insns(block); i++) {
        struct qemu_plugin_insn *instruction = qemu_plugin_tb_get_insn(block, i);
        struct counter *counter = counter_of(qemu_plugin_insn_vaddr(instruction));
        int mark = mark_of(instruction);
        qemu_plugin_register_vcpu_insn_exec_cb(instruction, mark == 1 ? opened : mark == 2 ? closed : executed, NO_REGISTERS,
                                               counter);
        qemu_plugin_register_vcpu_mem_cb(instruction, accessed, NO_REGISTERS, READS_AND_WRITES, counter);
    }
}

static void print(FILE *out, const struct counter *counter) {
    uint64_t run = 0, moved = 0;
    for (int cpu = 0; cpu < CPUS; cpu++) run += counter->run[cpu], moved += counter->moved[cpu];
    if (run + moved) fprintf(out, "%" PRIx64 " %" PRIu64 " %" PRIu64 "\n", counter->address, run, moved);
}
