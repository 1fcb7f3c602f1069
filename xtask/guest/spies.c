// A program that its user may run and not read, started over and over, and spies of that user on another CPU, who read through every
// door that leads into a process: no byte of it is to be seen, whatever moment they come at.
#include "check.h"
#include <sys/prctl.h>
#include <sys/uio.h>

enum { USER = 1000, ROUNDS = 400, MARK = 16, OWN_FD = 9, MUCH = 8 << 20, DOORS = 5 };

// In the copy that root makes, this says something else.
static volatile char mark[MARK] __attribute__((aligned(MARK))) = "open to my user";
static const char hidden[MARK] = "kept from a use";
static const char *const kept = "/tmp/kept", own_folder[] = "/var";

static void copy_with_other_mark(void) {
    static char bytes[1 << 20];
    int from = open("/proc/self/exe", O_RDONLY), to = open(kept, O_CREAT | O_TRUNC | O_WRONLY, 0700), found = 0;
    ssize_t length = read(from, bytes, sizeof bytes);
    NEED(from >= 0 && to >= 0 && length > 0 && length < (ssize_t)sizeof bytes);
    for (ssize_t at = 0; at + MARK <= length; at++)
        if (!memcmp(bytes + at, (char *)mark, MARK)) memcpy(bytes + at, hidden, MARK), found++;
    NEED(found == 1 && write(to, bytes, length) == length && !fchmod(to, 0711) && !close(to) && !close(from));
}

// What a spy shares with those who start him.
struct shared { volatile pid_t target; volatile int is_over, seen[DOORS], looks, successes; };
static struct shared *shared;

static void look_at(pid_t target) {
    char path[64], bytes[MARK] = "", text[4096];
    struct iovec here = {bytes, MARK}, there = {(void *)mark, MARK};
    if (process_vm_readv(target, &here, 1, &there, 1, 0) == MARK) {
        shared->successes++;
        if (!memcmp(bytes, hidden, MARK)) shared->seen[0]++;
    }
    snprintf(path, sizeof path, "/proc/%d/mem", target);
    int fd = open(path, O_RDONLY);
    for (int i = 0; fd >= 0 && i < 20; i++)
        if (pread(fd, bytes, MARK, (off_t)(uintptr_t)mark) == MARK && !memcmp(bytes, hidden, MARK)) shared->seen[1]++;
    close(fd);
    snprintf(path, sizeof path, "/proc/%d/maps", target);
    fd = open(path, O_RDONLY);
    ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (length > 0) {
        text[length] = 0;
        if (strstr(text, kept)) shared->seen[2]++;
    }
    close(fd);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", target, OWN_FD);
    if (readlink(path, text, sizeof text) > 0) shared->seen[3]++;
    snprintf(path, sizeof path, "/proc/%d/cwd", target);
    length = readlink(path, text, sizeof text - 1);
    if (length == sizeof own_folder - 1 && !memcmp(text, own_folder, length)) shared->seen[4]++;
    shared->looks++;
}

static void spy(void) {
    while (!shared->is_over) if (shared->target) look_at(shared->target);
    _exit(0);
}

static void start_kept(void) {
    int go[2];
    char byte;
    NEED(!pipe(go));
    pid_t child = fork();
    if (child == 0) {
        // It can be looked into until it runs the other program.
        prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
        if (read(go[0], &byte, 1) != 1) _exit(1);
        for (volatile int i = 0; i < 2000; i++) {}
        execl(kept, kept, "run", (char *)0);
        _exit(1);
    }
    NEED(child > 0);
    shared->target = child;
    for (volatile int i = 0; i < 2000; i++) {}
    NEED(write(go[1], "x", 1) == 1);
    int status;
    NEED(waitpid(child, &status, 0) == child && status == 5 << 8);
    shared->target = 0;
    close(go[0]), close(go[1]);
}

static void no_byte_of_a_kept_program_is_seen(void) {
    copy_with_other_mark();
    shared = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(shared != MAP_FAILED && !setresgid(USER, USER, USER) && !setresuid(USER, USER, USER));
    pid_t spies[2];
    for (int i = 0; i < 2; i++) {
        spies[i] = fork();
        NEED(spies[i] >= 0);
        if (spies[i] == 0) spy();
    }
    for (int i = 0; i < ROUNDS; i++) start_kept();
    shared->is_over = 1;
    for (int i = 0; i < 2; i++) waitpid(spies[i], 0, 0);
    CHECK(shared->looks > ROUNDS && shared->successes > 0);
    for (int i = 0; i < DOORS; i++) CHECK(!shared->seen[i]);
    printf("  %d looks, %d into the program before, seen %d %d %d %d %d\n", shared->looks, shared->successes, shared->seen[0],
           shared->seen[1], shared->seen[2], shared->seen[3], shared->seen[4]);
}

static const struct test_case cases[] = {
    {"no byte of a kept program is seen", no_byte_of_a_kept_program_is_seen},
};

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "run")) {
        // Not `mark` itself, so that it is read here too.
        if (dup2(0, OWN_FD) != OWN_FD || chdir(own_folder)) return 8;
        for (volatile int i = 0; i < 20000; i++) {}
        // Its end takes long, too: its memory goes before its files.
        char *much = mmap(0, MUCH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        if (much == MAP_FAILED) return 7;
        return mark[0] == hidden[0] ? 5 : 6;
    }
    return RUN(cases, argc, argv);
}
