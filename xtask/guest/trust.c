// Who may do what to a process: every call and every file of /proc that names one, for every caller of callers.h, on processes with
// ids and capabilities of many kinds, that may be dumped or not.
#include "callers.h"
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/uio.h>

static pid_t target;
static char page[4096] = "bytes";

static int signals_none(void) { return kill(target, 0); }
static int signals_usr1(void) { return kill(target, SIGUSR1); }
static int signals_cont(void) { return kill(target, SIGCONT); }
static int signals_thread(void) { return syscall(SYS_tgkill, target, target, SIGUSR1); }
static int queues(void) { union sigval value = {0}; return sigqueue(target, SIGUSR1, value); }
static int renices(void) { return setpriority(PRIO_PROCESS, target, 12); }
static int renices_up(void) { return setpriority(PRIO_PROCESS, target, 3); }
static int asks_nice(void) { errno = 0; getpriority(PRIO_PROCESS, target); return errno ? -1 : 0; }
static int binds(void) { cpu_set_t set; CPU_ZERO(&set); CPU_SET(0, &set); return sched_setaffinity(target, sizeof set, &set); }
static int asks_cpus(void) { cpu_set_t set; return sched_getaffinity(target, sizeof set, &set); }
static int schedules(void) { struct sched_param none = {0}; return syscall(SYS_sched_setscheduler, target, SCHED_BATCH, &none); }
static int parameters(void) { struct sched_param none = {0}; return syscall(SYS_sched_setparam, target, &none); }
static int limits_get(void) { struct rlimit limit; return syscall(SYS_prlimit64, target, RLIMIT_CORE, 0, &limit); }
static int limits_set(void) { struct rlimit limit = {0, 0}; return syscall(SYS_prlimit64, target, RLIMIT_CORE, &limit, 0); }
static int limits_raise(void) { struct rlimit limit = {900, 900}; return syscall(SYS_prlimit64, target, RLIMIT_LOCKS, &limit, 0); }
static int robust(void) { void *head; size_t size; return syscall(SYS_get_robust_list, target, &head, &size); }
static int reads_memory(void) {
    char byte;
    struct iovec here = {&byte, 1}, there = {page, 1};
    return process_vm_readv(target, &here, 1, &there, 1, 0) == 1 ? 0 : -1;
}
static int writes_memory(void) {
    char byte = 'x';
    struct iovec here = {&byte, 1}, there = {page, 1};
    return process_vm_writev(target, &here, 1, &there, 1, 0) == 1 ? 0 : -1;
}
static int seizes(void) { return ptrace(PTRACE_SEIZE, target, 0, 0) ? -1 : 0; }
static int attaches(void) { return ptrace(PTRACE_ATTACH, target, 0, 0) ? -1 : 0; }
static int asks_group(void) { return getpgid(target) < 0 ? -1 : 0; }
static int asks_session(void) { return getsid(target) < 0 ? -1 : 0; }
static int asks_sets(void) { struct sets sets; return get_sets(target, &sets); }

static const char *file;
static int opens_file(int flags) {
    char path[64], byte;
    snprintf(path, sizeof path, "/proc/%d/%s", target, file);
    int fd = open(path, flags);
    if (fd < 0) return -1;
    if (flags == O_RDONLY && strcmp(file, "mem") && read(fd, &byte, 1) < 0 && errno != EISDIR && errno != EINVAL) return -1;
    return 0;
}
static int opens(void) { return opens_file(O_RDONLY); }
static int opens_to_write(void) { return opens_file(O_WRONLY); }
static int reads_link(void) {
    char path[64], to[256];
    snprintf(path, sizeof path, "/proc/%d/%s", target, file);
    return readlink(path, to, sizeof to) < 0 ? -1 : 0;
}
static int walks(void) {
    char path[64];
    struct stat stat_;
    snprintf(path, sizeof path, "/proc/%d/%s", target, file);
    return stat(path, &stat_);
}

#define CALL(call) {#call, call}
static const struct call { const char *name; int (*make)(void); } calls[] = {
    CALL(signals_none), CALL(signals_usr1), CALL(signals_cont), CALL(signals_thread), CALL(queues), CALL(renices), CALL(renices_up),
    CALL(asks_nice), CALL(binds), CALL(asks_cpus), CALL(schedules), CALL(parameters), CALL(limits_get), CALL(limits_set),
    CALL(limits_raise), CALL(robust), CALL(reads_memory), CALL(writes_memory), CALL(seizes), CALL(attaches), CALL(asks_group),
    CALL(asks_session), CALL(asks_sets),
};

// What the target is: ids, and what it does before it waits.
struct target { const char *name; int caller; int dumpable; int execs; };
static const struct target targets[] = {
    {"root", 0, 1, 0}, {"root, hidden", 0, 0, 0}, {"user", 1, 1, 0}, {"user, hidden", 1, 0, 0}, {"user, dropped", 1, -1, 0},
    {"user, after exec", 1, -1, 1}, {"member", 3, 1, 0}, {"setid", 4, 1, 0}, {"setid, hidden", 4, -1, 0}, {"setid, after exec", 4, -1, 1},
    {"lowered", 5, 1, 0}, {"files", 6, 1, 0}, {"bare", 7, 1, 0}, {"override", 8, 1, 0},
};

static char self[256];

static void wait_for_end(int ready) {
    signal(SIGUSR1, SIG_IGN);
    MUST(write(ready, "x", 1) == 1);
    for (;;) pause();
}

static void begin(const struct target *what) {
    int ready[2];
    char byte;
    MUST(!pipe(ready));
    target = fork();
    MUST(target >= 0);
    if (target == 0) {
        // Another session, so that no signal passes for belonging to it.
        setsid();
        MUST(!setpriority(PRIO_PROCESS, 0, 10));
        become(&callers[what->caller]);
        if (what->dumpable >= 0) MUST(!prctl(PR_SET_DUMPABLE, what->dumpable, 0, 0, 0));
        if (what->execs) {
            char number[16];
            snprintf(number, sizeof number, "%d", ready[1]);
            execl(self, self, number, (char *)0);
            MUST(!"exec");
        }
        wait_for_end(ready[1]);
    }
    MUST(read(ready[0], &byte, 1) == 1);
    close(ready[0]);
    close(ready[1]);
}

static void end(void) {
    kill(target, SIGKILL);
    MUST(waitpid(target, 0, 0) == target);
}

static void row(const char *name, const struct target *what, int (*call)(void)) {
    printf("%-22s %-18s", name, what->name);
    for (int i = 0; i < CALLERS; i++) {
        begin(what);
        printf(" %s", error_name(answer_to(&callers[i], call)));
        end();
    }
    printf("\n");
}

// Owners and modes of a process's files tell, too, who may do what.
static void owners(const struct target *what) {
    static const char *const names[] = {".", "fd", "task", "maps", "mem", "status", "cwd"};
    begin(what);
    printf("%-22s %-18s", "owners", what->name);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[64];
        struct stat stat;
        snprintf(path, sizeof path, "/proc/%d/%s", target, names[i]);
        MUST(!lstat(path, &stat));
        printf(" %s:%o:%u:%u", names[i], stat.st_mode & 07777, stat.st_uid, stat.st_gid);
    }
    printf("\n");
    end();
}

// A descriptor of /proc/self/mem is of the memory that was there when it was opened.
static void kept_memory(void) {
    int fd = open("/proc/self/mem", O_RDONLY), back[2];
    char number[16], byte;
    MUST(fd >= 0 && !pipe(back) && pread(fd, &byte, 1, (off_t)page) == 1 && byte == page[0]);
    snprintf(number, sizeof number, "%d", fd);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        int own = open("/proc/self/mem", O_RDONLY);
        snprintf(number, sizeof number, "%d", own);
        execl(self, self, number, "mem", (char *)0);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child);
    printf("memory of before exec: %d\n", WEXITSTATUS(status));
}

int main(int count, char **arguments) {
    setvbuf(stdout, 0, _IOFBF, 1 << 16);
    if (count == 2) wait_for_end(atoi(arguments[1]));
    if (count == 3) {
        char byte = 0;
        ssize_t got = pread(atoi(arguments[1]), &byte, 1, (off_t)page);
        return got < 0 ? errno : got ? 100 : 101;
    }
    snprintf(self, sizeof self, "%s", arguments[0]);
    print_callers(41);
    for (size_t t = 0; t < sizeof targets / sizeof *targets; t++) {
        const struct target *what = &targets[t];
        for (size_t c = 0; c < sizeof calls / sizeof *calls; c++) row(calls[c].name, what, calls[c].make);
        static const char *const files[] = {"maps", "smaps", "mem", "environ", "status", "stat", "cmdline", "limits", "fd", "fdinfo",
                                            "task", "io", "mounts", "comm", "statm", "cwd", "root/tmp"};
        static const char *const links[] = {"exe", "cwd", "root", "fd/0"};
        char name[32];
        for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
            file = files[f];
            snprintf(name, sizeof name, "opens %s", file);
            row(name, what, opens);
        }
        file = "mem";
        row("writes mem", what, opens_to_write);
        for (size_t f = 0; f < sizeof links / sizeof *links; f++) {
            file = links[f];
            snprintf(name, sizeof name, "reads link %s", file);
            row(name, what, reads_link);
            snprintf(name, sizeof name, "walks %s", file);
            row(name, what, walks);
        }
        owners(what);
    }
    kept_memory();
    printf("the table is whole\n");
    return 0;
}
