// Runs a program twice and tells whether the second run has left the kernel's memory as it was: `flat KIB COMMAND ARGUMENTS...`.
//
// Kernel stacks and the kernel's heap are kept for the next who needs them, so the first run may leave as much as it ever used at a
// time. After the second, pages of programs and their tables, stacks and heap must be what they were but for KIB, and so must free memory
// with the files' pages. The exit code is the command's, or 1 if memory is missing.
#include "check.h"

static const struct {
    const char *name;
    int must_not; // 1: grow, -1: shrink
} watched[] = {{"free", -1}, {"AnonPages:", 1}, {"PageTables:", 1}, {"KernelStack:", 1}, {"Slab:", 1}, {"Shmem:", 0}};
enum { WATCHED = sizeof watched / sizeof *watched };

static long line_of(const char *text, const char *name) {
    const char *at = strstr(text, name);
    return at ? atol(at + strlen(name)) : 0;
}

static void look(long *values) {
    static char text[8192];
    int fd = open("/proc/meminfo", O_RDONLY);
    ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    text[got < 0 ? 0 : got] = 0;
    // Files stay in memory as long as there is room, and give it up.
    values[0] = line_of(text, "MemFree:") + line_of(text, "\nCached:");
    for (int i = 1; i < WATCHED; i++) values[i] = line_of(text, watched[i].name);
}

static int run(char **argv) {
    pid_t child = fork();
    if (child == 0) {
        execvp(argv[0], argv);
        perror(argv[0]);
        _exit(127);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 1;
    return WEXITSTATUS(status);
}

int main(int argc, char **argv) {
    long bound = argc > 2 ? atol(argv[1]) : 0, before[WATCHED], after[WATCHED];
    if (argc < 3) return 2;
    int code = run(argv + 2), bad = 1;
    if (code) return code;
    sleep(2);
    while (waitpid(-1, 0, WNOHANG) > 0) {}
    look(before);
    code = run(argv + 2);
    // Whoever was orphaned may still be on the way out.
    for (int attempt = 0; attempt < 20 && bad; attempt++) {
        sleep(1);
        while (waitpid(-1, 0, WNOHANG) > 0) {}
        look(after);
        bad = 0;
        for (int i = 0; i < WATCHED; i++) bad |= (after[i] - before[i]) * watched[i].must_not > bound;
    }
    for (int i = 0; i < WATCHED; i++) printf("memory: %-12s %8ld KiB before, %8ld after\n", watched[i].name, before[i], after[i]);
    puts(bad ? "FAILED: memory is not as before" : "memory is as before");
    return code ? code : bad;
}
