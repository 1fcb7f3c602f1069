// What the plugins of `./uvm profile` share: QEMU's interface, a table of counters by instruction, and the file that they leave.
//
// The prototypes are those of the plugin interface, version 1 (QEMU 4.2 to 8); Debian packages no header with them.
// Who includes this has defined `struct counter`, whose first member is the instruction's address, and says by `translated` what to do
// with a block and by `print` what to write.
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef uint64_t plugin_id;
typedef uint32_t access_info;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_plugin_hwaddr;
enum { NO_REGISTERS = 0, INLINE_ADD = 0, READS_AND_WRITES = 3 };

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
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *,
                                      void (*accessed)(unsigned cpu, access_info, uint64_t address, void *data), int flags,
                                      int which, void *data);
bool qemu_plugin_mem_is_store(access_info);
struct qemu_plugin_hwaddr *qemu_plugin_get_hwaddr(access_info, uint64_t address);
bool qemu_plugin_hwaddr_is_io(const struct qemu_plugin_hwaddr *);
uint64_t qemu_plugin_hwaddr_phys_addr(const struct qemu_plugin_hwaddr *);

EXPORT int qemu_plugin_version = 1;

enum { SLOTS = 1 << 20 };

// A hash table that never moves, since translated code holds pointers into it; the order of first use, to walk it. QEMU translates one
// block at a time.
static struct counter counters[SLOTS];
static struct counter *used[SLOTS];
static size_t used_count;

static struct counter *counter_of(uint64_t address) {
    size_t at = (size_t)(address * UINT64_C(0x9e3779b97f4a7c15) >> 44);
    for (; counters[at].address != address; at = (at + 1) % SLOTS) {
        if (counters[at].address == 0) {
            if (used_count == SLOTS / 2) {
                fputs("the plugin: too many instructions\n", stderr);
                exit(1);
            }
            counters[at].address = address;
            return used[used_count++] = &counters[at];
        }
    }
    return &counters[at];
}

static void translated(plugin_id id, struct qemu_plugin_tb *block);
// Writes what there is to say about an instruction, if anything.
static void print(FILE *out, const struct counter *counter);

static const char *out_path;

static void ended(plugin_id id, void *data) {
    (void)id, (void)data;
    FILE *out = fopen(out_path, "w");
    if (!out) {
        perror(out_path);
        return;
    }
    for (size_t i = 0; i < used_count; i++) print(out, used[i]);
    fclose(out);
}

// `about` describes the machine; nothing here depends on it.
EXPORT int qemu_plugin_install(plugin_id id, const void *about, int count, char **arguments) {
    (void)about;
    if (count != 1 || strncmp(arguments[0], "out=", 4) != 0) {
        fputs("the plugin's one argument is out=PATH\n", stderr);
        return -1;
    }
    out_path = strdup(arguments[0] + 4);
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_atexit_cb(id, ended, NULL);
    return 0;
}
