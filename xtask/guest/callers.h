// The callers of the rights tables, one to a column: processes with ids, groups and capabilities of many kinds. A row names a
// call and what it is made on; each cell is what the kernel answers that caller. The tables are the same on every kernel: the
// answers in the tree come from Linux.
#ifndef CALLERS_H
#define CALLERS_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MUST(condition) do { if (!(condition)) { \
    printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, strerror(errno)); exit(1); } } while (0)

// As in <linux/capability.h>, which musl's users needn't have.
enum {
    CAP_CHOWN = 0, CAP_DAC_OVERRIDE = 1, CAP_DAC_READ_SEARCH = 2, CAP_FOWNER = 3, CAP_FSETID = 4, CAP_KILL = 5, CAP_SYS_PTRACE = 19,
    CAP_SYS_NICE = 23, CAP_SYS_RESOURCE = 24, CAP_LAST_CAP = 40, CAP_VERSION = 0x20080522,
};
struct cap_header { uint32_t version; int pid; };
struct cap_data { uint32_t effective, permitted, inheritable; };

struct sets { uint64_t effective, permitted, inheritable; };

__attribute__((unused)) static int get_sets(pid_t pid, struct sets *sets) {
    struct cap_header header = {CAP_VERSION, pid};
    struct cap_data data[2];
    if (syscall(SYS_capget, &header, data)) return -1;
    sets->effective = data[0].effective | (uint64_t)data[1].effective << 32;
    sets->permitted = data[0].permitted | (uint64_t)data[1].permitted << 32;
    sets->inheritable = data[0].inheritable | (uint64_t)data[1].inheritable << 32;
    return 0;
}

__attribute__((unused)) static int set_sets(uint64_t effective, uint64_t permitted, uint64_t inheritable) {
    struct cap_header header = {CAP_VERSION, 0};
    struct cap_data data[2] = {
        {(uint32_t)effective, (uint32_t)permitted, (uint32_t)inheritable},
        {effective >> 32, permitted >> 32, inheritable >> 32}};
    return syscall(SYS_capset, &header, data);
}

#define CAP(name) (UINT64_C(1) << CAP_##name)

struct caller {
    const char *name;
    uid_t real, effective, saved;
    gid_t gid, group;
    // User of files, where it isn't the effective one; and capabilities kept beside the ids.
    int files;
    uint64_t kept;
    // Those that the ids bring are dropped.
    int bare;
};

static const struct caller callers[] = {
    {"root", 0, 0, 0, 0, 0, -1, 0, 0},
    {"user", 1000, 1000, 1000, 1000, 1000, -1, 0, 0},
    {"other", 1001, 1001, 1001, 1001, 1001, -1, 0, 0},
    {"member", 1001, 1001, 1001, 1001, 1000, -1, 0, 0},
    {"setid", 1000, 0, 0, 1000, 1000, -1, 0, 0},
    {"lowered", 0, 1000, 0, 0, 0, -1, 0, 0},
    {"files", 0, 0, 0, 0, 0, 1000, 0, 0},
    {"bare", 0, 0, 0, 0, 0, -1, 0, 1},
    {"override", 1001, 1001, 1001, 1001, 1001, -1, CAP(DAC_OVERRIDE), 0},
    {"search", 1001, 1001, 1001, 1001, 1001, -1, CAP(DAC_READ_SEARCH), 0},
    {"owner", 1001, 1001, 1001, 1001, 1001, -1, CAP(FOWNER), 0},
    {"chown", 1001, 1001, 1001, 1001, 1001, -1, CAP(CHOWN) | CAP(FSETID), 0},
    {"signals", 1001, 1001, 1001, 1001, 1001, -1, CAP(KILL) | CAP(SYS_PTRACE), 0},
    {"nice", 1001, 1001, 1001, 1001, 1001, -1, CAP(SYS_NICE) | CAP(SYS_RESOURCE), 0},
};
enum { CALLERS = sizeof callers / sizeof *callers };

static void become(const struct caller *who) {
    gid_t group = who->group;
    MUST(!setgroups(1, &group));
    MUST(!setresgid(who->gid, who->gid, who->gid));
    if (who->kept) MUST(!prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0));
    MUST(!setresuid(who->real, who->effective, who->saved));
    if (who->kept) MUST(!set_sets(who->kept, who->kept, 0));
    if (who->files >= 0) setfsuid(who->files);
    if (who->bare) MUST(!set_sets(0, 0, 0));
}

static const char *error_name(int error) {
    static const struct { int error; const char *name; } names[] = {
        {0, "."}, {EPERM, "PERM"}, {EACCES, "ACCES"}, {ENOENT, "NOENT"}, {EEXIST, "EXIST"}, {ESRCH, "SRCH"},
        {EINVAL, "INVAL"}, {ENOSYS, "NOSYS"}, {ENOTDIR, "NOTDIR"}, {EISDIR, "ISDIR"}, {ENOTEMPTY, "NOTEMPTY"},
        {EXDEV, "XDEV"}, {ENXIO, "NXIO"}, {EBUSY, "BUSY"}, {EIO, "IO"}, {EBADF, "BADF"}, {ELOOP, "LOOP"},
        {ETXTBSY, "TXTBSY"}, {EROFS, "ROFS"}, {EAGAIN, "AGAIN"}, {EOPNOTSUPP, "NOTSUP"}, {ENOEXEC, "NOEXEC"}, {EFAULT, "FAULT"}, {ECONNREFUSED, "REFUSED"},
    };
    static char number[16];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].error == error) return names[i].name;
    snprintf(number, sizeof number, "%d", error);
    return number;
}

// A line of a table: an error, or what a call returned.
__attribute__((unused)) static void say(const char *name, long result) {
    if (result == -1) printf("%s: %s\n", name, error_name(errno));
    else printf("%s: %ld\n", name, result);
    fflush(stdout);
}

struct part {
    const char *name;
    void (*run)(void);
};

// Runs the parts of a table, each in a process of its own, after `prepare` if there is one.
__attribute__((unused)) static void run_parts(const struct part *parts, size_t count, void (*prepare)(void)) {
    for (size_t i = 0; i < count; i++) {
        printf("== %s\n", parts[i].name);
        fflush(stdout);
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0) {
            if (prepare) prepare();
            parts[i].run();
            fflush(stdout);
            _exit(0);
        }
        int status;
        MUST(waitpid(child, &status, 0) == child);
        if (status) printf("ended %x\n", status);
    }
    printf("the table is whole\n");
}

// Makes a call as a caller, in a process of its own; its error, or 0.
__attribute__((unused)) static int answer_to(const struct caller *who, int (*call)(void)) {
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        become(who);
        _exit(call() == 0 ? 0 : errno);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

__attribute__((unused)) static void print_callers(int width) {
    printf("%-*s", width, "");
    for (int i = 0; i < CALLERS; i++) printf(" %s", callers[i].name);
    printf("\n");
}
#endif
