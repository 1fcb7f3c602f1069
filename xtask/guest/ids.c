// What becomes of ids and capabilities: every change of ids, every call on capabilities, exec and fork, from many states.
#include "callers.h"

static char self[256];

static void show(const char *what, int error) {
    uid_t r, e, s;
    gid_t gr, ge, gs;
    struct sets sets;
    char ambient[64] = "", bounding[64] = "";
    getresuid(&r, &e, &s);
    getresgid(&gr, &ge, &gs);
    MUST(!get_sets(0, &sets));
    int lost = 0;
    for (int i = 0; i <= CAP_LAST_CAP; i++) {
        if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, i, 0, 0) == 1) sprintf(ambient + strlen(ambient), ",%d", i);
        if (prctl(PR_CAPBSET_READ, i, 0, 0, 0) != 1) lost++;
    }
    sprintf(bounding, "%d", lost);
    printf("  %-34s %-5s %d %d %d/%d %d %d fs %d %d e %llx p %llx i %llx a %s lost %s dump %d keep %d bits %x nnp %d\n", what,
           error_name(error), r, e, s, gr, ge, gs, setfsuid(-1), setfsgid(-1), (unsigned long long)sets.effective,
           (unsigned long long)sets.permitted, (unsigned long long)sets.inheritable, *ambient ? ambient + 1 : "-", bounding,
           prctl(PR_GET_DUMPABLE, 0, 0, 0, 0), prctl(PR_GET_KEEPCAPS, 0, 0, 0, 0), prctl(PR_GET_SECUREBITS, 0, 0, 0, 0),
           prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
}

#define ALL ((UINT64_C(1) << (CAP_LAST_CAP + 1)) - 1)
static long ids(long call, long a, long b, long c) { return syscall(call, a, b, c); }
static long s_setuid_0(void) { return ids(SYS_setuid, 0, 0, 0); }
static long s_setuid_1000(void) { return ids(SYS_setuid, 1000, 0, 0); }
static long s_setuid_1001(void) { return ids(SYS_setuid, 1001, 0, 0); }
static long s_seteuid_0(void) { return ids(SYS_setresuid, -1, 0, -1); }
static long s_seteuid_1000(void) { return ids(SYS_setresuid, -1, 1000, -1); }
static long s_setruid_1000(void) { return ids(SYS_setresuid, 1000, -1, -1); }
static long s_swap(void) { return ids(SYS_setreuid, geteuid(), getuid(), 0); }
static long s_setreuid_m1_1000(void) { return ids(SYS_setreuid, -1, 1000, 0); }
static long s_fsuid_0(void) { ids(SYS_setfsuid, 0, 0, 0); return 0; }
static long s_fsuid_1000(void) { ids(SYS_setfsuid, 1000, 0, 0); return 0; }
static long s_setgid_1000(void) { return ids(SYS_setgid, 1000, 0, 0); }
static long s_setegid_1001(void) { return ids(SYS_setresgid, -1, 1001, -1); }
static long s_fsgid_1001(void) { ids(SYS_setfsgid, 1001, 0, 0); return 0; }
static long s_groups(void) { gid_t group = 5; return syscall(SYS_setgroups, 1, &group); }
static long s_keep(void) { return prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0); }
static long s_nodump(void) { return prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); }
static long s_dump(void) { return prctl(PR_SET_DUMPABLE, 1, 0, 0, 0); }
static long s_dump_2(void) { return prctl(PR_SET_DUMPABLE, 2, 0, 0, 0); }
static long s_none(void) { return set_sets(0, 0, 0); }
static long s_effective_none(void) { struct sets s; get_sets(0, &s); return set_sets(0, s.permitted, s.inheritable); }
static long s_effective_all(void) { struct sets s; get_sets(0, &s); return set_sets(s.permitted, s.permitted, s.inheritable); }
static long s_all(void) { return set_sets(ALL, ALL, 0); }
static long s_inherit(void) { struct sets s; get_sets(0, &s); return set_sets(s.effective, s.permitted, CAP(KILL) | CAP(CHOWN)); }
static long s_only_kill(void) { return set_sets(CAP(KILL), CAP(KILL), CAP(KILL)); }
static long s_effective_more(void) { return set_sets(ALL, CAP(KILL), 0); }
static long s_bound_kill(void) { return prctl(PR_CAPBSET_DROP, CAP_KILL, 0, 0, 0); }
static long s_bound_bad(void) { return prctl(PR_CAPBSET_DROP, 64, 0, 0, 0); }
static long s_ambient_kill(void) { return prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_KILL, 0, 0); }
static long s_ambient_lower(void) { return prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_LOWER, CAP_KILL, 0, 0); }
static long s_ambient_clear(void) { return prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); }
static long s_bits_noroot(void) { return prctl(PR_SET_SECUREBITS, 1, 0, 0, 0); }
static long s_bits_nofixup(void) { return prctl(PR_SET_SECUREBITS, 4, 0, 0, 0); }
static long s_bits_locked(void) { return prctl(PR_SET_SECUREBITS, 0x2f, 0, 0, 0); }
static long s_bits_noambient(void) { return prctl(PR_SET_SECUREBITS, 0x40, 0, 0, 0); }
static long s_nnp(void) { return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); }
static long s_of_other(void) { struct cap_header h = {CAP_VERSION, getppid()}; struct cap_data d[2] = {{0, 0, 0}, {0, 0, 0}}; return syscall(SYS_capset, &h, d); }
static long s_hostname(void) { return sethostname("uvm", 3); }
static long s_root(void) { return chroot("/"); }
static long s_device(void) { unlink("/tmp/device"); return mknod("/tmp/device", S_IFCHR | 0600, 0x103); }
static long s_low(void) { return mmap((void *)4096, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED ? -1 : 0; }

struct step { const char *name; long (*take)(void); };
#define STEP(name) {#name, s_##name}
static const struct step steps[] = {
    STEP(setuid_0), STEP(setuid_1000), STEP(setuid_1001), STEP(seteuid_0), STEP(seteuid_1000), STEP(setruid_1000), STEP(swap),
    STEP(setreuid_m1_1000), STEP(fsuid_0), STEP(fsuid_1000), STEP(setgid_1000), STEP(setegid_1001), STEP(fsgid_1001), STEP(groups),
    STEP(keep), STEP(nodump), STEP(dump), STEP(dump_2), STEP(none), STEP(effective_none), STEP(effective_all), STEP(all),
    STEP(inherit), STEP(only_kill), STEP(effective_more), STEP(bound_kill), STEP(bound_bad), STEP(ambient_kill), STEP(ambient_lower),
    STEP(ambient_clear), STEP(bits_noroot), STEP(bits_nofixup), STEP(bits_locked), STEP(bits_noambient), STEP(nnp), STEP(of_other),
    STEP(hostname), STEP(root), STEP(device), STEP(low),
};
enum { STEPS = sizeof steps / sizeof *steps };

static void in_child(void (*body)(const struct step *), const struct step *step) {
    fflush(stdout);
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) { body(step); fflush(stdout); _exit(0); }
    MUST(waitpid(child, 0, 0) == child);
}

static void take(const struct step *step) {
    errno = 0;
    int error = step->take() < 0 ? errno : 0;
    show(step->name, error);
}

static void run(const struct step *step) { show(step->name, 0); fflush(stdout); execl(self, self, "shown", (char *)0); _exit(1); }

// Steps before the one that is looked at.
static const char *const states[][6] = {
    {0}, {"setuid_1000", 0}, {"setruid_1000", 0}, {"seteuid_1000", 0}, {"keep", "setuid_1000", 0},
    {"keep", "setuid_1000", "effective_all", 0}, {"inherit", "ambient_kill", 0}, {"inherit", "ambient_kill", "keep", "setuid_1000", 0},
    {"keep", "setuid_1000", "only_kill", "ambient_kill", 0}, {"bits_noroot", 0}, {"bits_nofixup", "setuid_1000", 0}, {"bits_locked", 0},
    {"bits_noambient", "inherit", 0}, {"bound_kill", 0}, {"bound_kill", "inherit", 0}, {"none", 0}, {"none", "setuid_1000", 0},
    {"fsuid_1000", 0}, {"setegid_1001", "dump", 0}, {"nnp", "setruid_1000", 0},
};

static const char *const *state;

static void reach(const struct step *step) {
    // Whoever runs this has a file creation mask, groups and a dumpable memory of his own.
    for (const char *const *name = state; *name; name++)
        for (int i = 0; i < STEPS; i++)
            if (!strcmp(steps[i].name, *name)) steps[i].take();
    if (step) take(step);
    else run(&(struct step){"before exec", 0});
}

int main(int count, char **arguments) {
    setvbuf(stdout, 0, _IOFBF, 1 << 16);
    if (count > 1) {
        show("after exec", 0);
        return 0;
    }
    snprintf(self, sizeof self, "%s", arguments[0]);
    for (size_t s = 0; s < sizeof states / sizeof *states; s++) {
        state = states[s];
        printf("from");
        for (const char *const *name = state; *name; name++) printf(" %s", *name);
        printf("\n");
        for (int i = 0; i < STEPS; i++) in_child(reach, &steps[i]);
        in_child(reach, 0);
    }
    printf("the table is whole\n");
    return 0;
}
